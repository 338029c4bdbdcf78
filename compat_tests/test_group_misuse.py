"""Groups begun, given up, administered and read back after a restart, at Apache Kafka 3.9.1 and at ours.

Members alone and two at a time, in every version of JoinGroup, looked at by every call that tools have; the answers
must be the same. What differs on purpose stands in docs/groups.md, and is in no story.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.brokers import broker_of
from compat_tests.raw import Connection
from compat_tests.test_differences import NOT_COMPARED, SUBSCRIPTION, Told, beat, sync, topic
from compat_tests.waiting import eventually
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}
IN_NO_ORDER = {"groups", "members", "results", "topics"}  # of Kafka's hash tables
PROTOCOLS = (("range", SUBSCRIPTION), ("roundrobin", b"other"))


class Client(Told):
    """A connection, and what was answered on it and on those beside it; a call may be sent and wait."""

    def __init__(self, connection: Connection, beside: Client | None = None) -> None:
        super().__init__(connection, NOT_COMPARED | {"client_host"})
        self._sent: list[str] = []
        if beside is not None:
            self.answers, self._numbers = beside.answers, beside._numbers

    def send(self, request: Message, version: int) -> None:
        """Send a call that will be answered by and by."""
        self._sent.append(f"{type(request).__name__} {version}")
        self._connection.send(request, version)

    def take(self) -> Any:
        """Its answer."""
        answer = self._connection.receive()
        self.answers.append(f"{self._sent.pop()}: {self._plain('', answer)}")
        return answer

    def _plain(self, name: str, value: Any) -> Any:
        plain = super()._plain(name, value)
        return sorted(plain, key=str) if name in IN_NO_ORDER and isinstance(plain, list) else plain


def never_begin(client: Client) -> None:
    """Joins that are refused, some of which leave a group behind."""
    for group, given in (
        ("no-type", {"protocol_type": ""}),
        ("no-protocols", {"protocols": []}),
        ("no-session", {"session_timeout_ms": 1}),
        ("stranger", {"member_id": "x"}),
        ("static-stranger", {"member_id": "x", "group_instance_id": "i"}),
        ("", {}),
    ):
        for forgotten in ([("t", (0, 9)), ("nope", (0,))], [], None):
            client.ask(joining(group, **given), 5)
            look(client, group)
            if forgotten is not None:
                forget(client, group, forgotten)
            delete(client, group)
        look(client, group)


def keep_offsets_only(client: Client) -> None:
    """Commits from outside of any group, in every version, and of members that there are not."""
    for version in range(1, 10):
        group = f"offsets-{version}"
        retention = {"retention_time_ms": 1_000_000} if version in (2, 3, 4) else {}
        client.ask(committing(group, **retention), version)
        for given in ({"generation_id_or_member_epoch": 0}, {"member_id": "x"}):
            client.ask(committing(group, **given), version)
        for partition, offset in ((9, 1), (0, -5)):
            client.ask(committing(group, partition=partition, offset=offset), version)
        look(client, group)
        forget(client, group, [("t", (0,))])
        look(client, group)
        delete(client, group)


def live_alone(client: Client) -> None:
    """One member, in every version; what is asked of its group in every state; then it leaves."""
    for version in range(10):
        group = f"alone-{version}"
        joined = client.ask(joining(group), version)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            joined = client.ask(joining(group, member_id=joined.member_id), version)
        me, generation = joined.member_id, joined.generation_id
        look(client, group)
        client.ask(joining(group, member_id=me), version)
        client.ask(joining(group, member_id=me, protocol_type="connect"), version)
        client.ask(joining(group, member_id=me, protocols=protocols([("other", b"")])), version)
        mine = {"generation_id_or_member_epoch": generation, "member_id": me}
        client.ask(committing(group, **mine), 5)
        for sync_version in range(6):
            for kind, name in ((None, None), ("consumer", "range"), ("connect", "range"), ("consumer", "x")):
                named = {"protocol_type": kind, "protocol_name": name} if sync_version >= 5 else {}
                client.ask(assigning(group, generation, me, {me: b"mine", "ghost": b"x"}, **named), sync_version)
        for given in (mine, {}, {"member_id": me}):
            client.ask(committing(group, **given), 5)
        client.ask(committing(group, name="u", **mine), 5)
        look(client, group)
        forget(client, group, [("t", (0,)), ("u", (0,))])
        delete(client, group)
        client.ask(leaving(version, group, me, "ghost"), min(version, 5))
        look(client, group)
        forget(client, group, [("t", (0,))])
        client.ask(joining(group, protocol_type="connect"), 3)
        forget(client, group, [("t", (0,))])
        look(client, group)
        client.ask(leaving(version, f"none-{version}", me), min(version, 5))


def live_together(client: Client, other: Client) -> None:
    """A leader and a follower, dynamic and static; both come back, the follower leaves, the leader is removed."""
    for number, (leads, follows) in enumerate([(None, None), ("i", "k"), ("i", None), (None, "k")]):
        group = f"both-{number}"
        lead, follow = begin_together(client, other, group, leads, follows)
        generation = lead.generation_id
        other.ask(joining(group, member_id=follow.member_id, group_instance_id=follows), 6)
        if follows is not None:
            again = other.ask(joining(group, group_instance_id=follows), 9)
            call_as(client, group, generation, follow.member_id, follows)
            call_as(client, group, generation, again.member_id, follows)
            follow = again
        for version in (6, 9) if leads is not None else ():
            lead = client.ask(joining(group, group_instance_id=leads), version)
            client.ask(sync(group, generation, lead.member_id, leads, b"other"), 3)
            look(client, group)
        client.send(joining(group, member_id=lead.member_id, group_instance_id=leads), 6)
        eventually(
            lambda who=follow, it=group, at=generation, inst=follows: (
                other.ask_aside(beat(it, at, who.member_id, inst), 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS
            )
        )
        other.ask(leaving(4, group, follow.member_id, follow.member_id), 4)
        lead = client.take()
        look(client, group)
        gone = MemberIdentity(member_id="" if leads else lead.member_id, group_instance_id=leads)
        client.ask(LeaveGroupRequest(group_id=group, members=[gone]), 4)
        look(client, group)
        delete(client, group)


def begin_together(client: Client, other: Client, group: str, leads: str | None, follows: str | None) -> Any:
    """A stable group of two. Returns: their last joins."""
    first = client.ask(joining(group, group_instance_id=leads), 6 if leads else 3)
    other.send(joining(group, group_instance_id=follows), 6 if follows else 3)
    eventually(
        lambda: (
            client.ask_aside(beat(group, 1, first.member_id, leads), 3).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        )
    )
    look(client, group)
    lead = client.ask(joining(group, member_id=first.member_id, group_instance_id=leads), 6)
    follow = other.take()
    call_as(client, group, lead.generation_id, "ghost", follows)
    assignments = {lead.member_id: b"first", follow.member_id: b"second"}
    request = assigning(group, lead.generation_id, lead.member_id, assignments, group_instance_id=leads)
    client.ask(request, 3)
    other.ask(sync(group, lead.generation_id, follow.member_id, follows, None), 3)
    look(client, group)
    return lead, follow


STORIES = (never_begin, keep_offsets_only, live_alone)


def test_both_brokers_say_the_same_of_groups(tmp_path: Path) -> None:
    answers = {}
    for choice in ("kbroker", "apache-3.9.1"):
        with broker_of(choice, tmp_path / choice, SETTINGS) as server:
            with two_clients(server.port) as (client, other):
                for story in STORIES:
                    story(client)
                live_together(client, other)
                members = begin_together(client, other, "stays", "i", None)
            server.stop()
            server.start()
            with two_clients(server.port, client) as (after, _):
                for name in ("stays", "offsets-1", "alone-3", "both-1"):
                    look(after, name)
                for member, instance in zip(members, ("i", None), strict=True):
                    call_as(after, "stays", member.generation_id, member.member_id, instance)
                after.ask(joining("stays", group_instance_id="i"), 9)
                look(after, "stays")
            answers[choice] = client.answers
    differences = [each for each in zip(*answers.values(), strict=True) if each[0] != each[1]]
    assert not differences, f"{len(differences)}, the first: {differences[0]}"


# ---- what the stories say


@contextmanager
def two_clients(port: int, before: Client | None = None) -> Iterator[tuple[Client, Client]]:
    """Two connections to a broker that coordinates groups and has topics t and u."""
    with Connection(port) as one, Connection(port) as two:
        client = Client(one, before)
        if before is None:
            for name in ("t", "u"):
                topic(client, name)
        eventually(lambda: client.ask_aside(FindCoordinatorRequest(key="g"), 2).error_code == 0)
        eventually(lambda: client.ask_aside(beat("g", 1, "x"), 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID)
        yield client, Client(two, client)


def look(client: Client, group: str) -> None:
    """All that tools ask about a group."""
    for version in (0, 2, 4, 5):
        wanted = DescribeGroupsRequest(groups=[group], include_authorized_operations=version >= 4)
        client.ask(wanted, version)
    for states, types in (
        ([], []),
        (["empty"], []),
        (["Stable", "nonsense"], []),
        ([], ["Classic"]),
        ([], ["consumer"]),
    ):
        found = client.ask_aside(ListGroupsRequest(states_filter=states, types_filter=types), 5).groups
        listed = [(each.protocol_type, each.group_state, each.group_type) for each in found if each.group_id == group]
        client.answers.append(f"listed by {states}, {types}: {listed}")
    for version in (2, 5, 7):
        client.ask(OffsetFetchRequest(group_id=group, topics=None, require_stable=version >= 7), version)
    topics = [OffsetFetchRequestTopic(name=name, partition_indexes=[0, 9, -1]) for name in ("t", "nope")]
    client.ask(OffsetFetchRequest(group_id=group, topics=topics), 1)


def call_as(client: Client, group: str, generation: int, member: str, instance: str | None) -> None:
    """A heartbeat, a sync and a commit."""
    client.ask(beat(group, generation, member, instance), 3)
    client.ask(sync(group, generation, member, instance, None), 3)
    who = {"generation_id_or_member_epoch": generation, "member_id": member, "group_instance_id": instance}
    client.ask(committing(group, **who), 7)


def delete(client: Client, group: str) -> None:
    """The group, twice."""
    for version in (0, 1):
        client.ask(DeleteGroupsRequest(groups_names=[group, "nobody", group]), version)


def forget(client: Client, group: str, places: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Offsets of the group."""
    topics = [
        OffsetDeleteRequestTopic(
            name=name, partitions=[OffsetDeleteRequestPartition(partition_index=each) for each in indexes]
        )
        for name, indexes in places
    ]
    client.ask(OffsetDeleteRequest(group_id=group, topics=topics), 0)


def protocols(given: Sequence[tuple[str, bytes]]) -> list[JoinGroupRequestProtocol]:
    """What a member can do."""
    return [JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in given]


def joining(group: str, **given: Any) -> JoinGroupRequest:
    """A consumer's request to join, with a session that outlives the story."""
    usual = {
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": protocols(PROTOCOLS),
    }
    return JoinGroupRequest(group_id=group, **(usual | given))


def assigning(group: str, generation: int, member: str, given: dict[str, bytes], **more: Any) -> SyncGroupRequest:
    """A leader's sync."""
    assignments = [SyncGroupRequestAssignment(member_id=each, assignment=data) for each, data in given.items()]
    return SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=assignments, **more)


def leaving(version: int, group: str, *members: str) -> LeaveGroupRequest:
    """They leave; before version 3 the first one does."""
    if version < 3:
        return LeaveGroupRequest(group_id=group, member_id=members[0])
    return LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=each) for each in members])


def committing(
    group: str, *, name: str = "t", partition: int = 0, offset: int = 5, **given: Any
) -> OffsetCommitRequest:
    """A commit of one partition; given: who says so."""
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset, committed_metadata="")
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=name, partitions=[part])], **given)
