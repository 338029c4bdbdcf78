"""What groups keep of their members, where no play sees it: nothing stays of one that has gone."""

from __future__ import annotations

from kbroker.coordinator import Caller
from kbroker.groups.classic_group import ClassicGroup, Member
from kbroker.groups.consumer_group import ClassicMember, ConsumerGroup, ConsumerGroupMember

TOPIC = b"t" * 16
CLASSIC = ClassicMember(10_000, (("range", b""),))


def test_nothing_is_kept_of_a_classic_member_that_has_gone() -> None:
    group = ClassicGroup("g", 0)
    group.add(Member("m", [("range", b"")]))
    group.joining["m"] = group.syncing["m"] = Caller(object(), 0)
    group.unsynced.add("m")
    group.remove("m")
    assert (group.members, group.leader, group.joining, group.syncing, group.unsynced) == ({}, None, {}, {}, set())


def test_a_member_that_has_gone_has_not_to_join_again() -> None:
    group = ConsumerGroup("g")
    group.put_member(ConsumerGroupMember("m", classic=CLASSIC))
    group.rejoining.add("m")
    group.remove_member("m")
    assert group.rejoining == set()


def test_the_others_are_classic_beside_the_only_member_that_is_not() -> None:
    group = ConsumerGroup("g")
    group.put_member(ConsumerGroupMember("new"))
    group.put_member(ConsumerGroupMember("old", classic=CLASSIC))
    group.put_member(ConsumerGroupMember("older", classic=CLASSIC))
    before = [group.all_others_are_classic(each) for each in ("new", "old", "gone")]
    group.put_member(ConsumerGroupMember("newer"))
    assert (before, group.all_others_are_classic("new")) == ([True, False, False], False)


def test_a_member_waits_while_what_it_is_to_have_belongs_to_another() -> None:
    group = ConsumerGroup("g")
    taker = ConsumerGroupMember("taker", 2)
    group.put_member(taker)
    group.put_member(ConsumerGroupMember("owner", 1, assigned={TOPIC: {0: 1}}))
    group.set_target("taker", {TOPIC: frozenset({0})})
    waits = [group.waits_for_others(taker)]
    group.put_member(ConsumerGroupMember("owner", 2))
    waits.append(group.waits_for_others(taker))
    group.put_member(taker._replace(assigned={TOPIC: {0: 1}}))
    waits.append(group.waits_for_others(group.members["taker"]))
    assert waits == [True, False, False]


def test_a_group_that_is_loaded_has_its_expressions_resolved_by_no_version_yet() -> None:
    assert ConsumerGroup("g").regex_version < 0
