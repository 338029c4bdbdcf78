"""The simple assignor: every partition is read, no member is idle, the work is even, and little moves."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from kbroker.groups.simple_assignor import assign

TOPICS = [bytes([number]) * 16 for number in range(3)]
MEMBERS = st.lists(st.sampled_from([f"m{number}" for number in range(8)]), min_size=1, unique=True)
COUNTS = st.lists(st.integers(0, 6), min_size=3, max_size=3)


def readers(found: dict[str, dict[bytes, frozenset[int]]]) -> dict[tuple[bytes, int], int]:
    counts: dict[tuple[bytes, int], int] = {}
    for topics in found.values():
        for topic, indexes in topics.items():
            for index in indexes:
                counts[topic, index] = counts.get((topic, index), 0) + 1
    return counts


@given(MEMBERS, MEMBERS, COUNTS)
def test_the_work_is_even_and_all_is_read(before: list[str], members: list[str], counts: list[int]) -> None:
    partitions = {topic: range(number) for topic, number in zip(TOPICS, counts, strict=True)}
    earlier = assign(dict.fromkeys(before, TOPICS), partitions, {})
    for since in ({}, earlier):
        found = assign(dict.fromkeys(members, TOPICS), partitions, since)
        there = {(topic, index) for topic in TOPICS for index in partitions[topic]}
        told = readers(found)
        assert told.keys() == there
        assert found.keys() == set(members)
        shares = [sum(map(len, topics.values())) for topics in found.values()]
        assert not there or min(shares) > 0
        assert len(told) < len(members) or set(told.values()) <= {1}


@given(MEMBERS, COUNTS)
def test_nothing_moves_while_nothing_changes(members: list[str], counts: list[int]) -> None:
    partitions = {topic: range(number) for topic, number in zip(TOPICS, counts, strict=True)}
    subscriptions = dict.fromkeys(members, TOPICS)
    first = assign(subscriptions, partitions, {})
    assert assign(subscriptions, partitions, first) == first


@given(st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.sets(st.sampled_from(TOPICS)), min_size=1), COUNTS)
def test_a_member_reads_what_it_subscribes_to(subscriptions: dict[str, set[bytes]], counts: list[int]) -> None:
    partitions = {topic: range(number) for topic, number in zip(TOPICS, counts, strict=True)}
    found = assign(subscriptions, partitions, {})
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert readers(found).keys() == {(topic, index) for topic in wanted for index in partitions[topic]}
    assert all(found[member].keys() <= topics for member, topics in subscriptions.items())


def test_hundreds_of_members_of_a_thousand_partitions() -> None:
    numbers = count()
    subscriptions = {f"m{next(numbers)}": TOPICS[:1] for _ in range(200)}
    found = assign(subscriptions, {TOPICS[0]: range(1000)}, {})
    assert {len(topics[TOPICS[0]]) for topics in found.values()} == {5}
