"""Groups of all kinds, as the broker that coordinates them is asked about them.

Used by `_helpers.py`. A kind of group is described, and its members are put out, by requests of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.testing._client import Connection

CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
LEAVES = -1
WITH_TYPES = 5  # ListGroups tells the kind of each group

Place = tuple[str, int]
"""A topic's name and a partition's number."""


class Group(NamedTuple):
    """A group. state: Kafka's word, "Stable". members: client ids. committed: next offset by partition; of a share
    group, where it begins. kind: "classic", "consumer", "share", "streams". epoch: the group epoch; None if classic."""

    name: str
    state: str
    members: tuple[str, ...]
    committed: dict[Place, int]
    kind: str = CLASSIC
    epoch: int | None = None


class ShareGroup(NamedTuple):
    """A share group. start: the first record of each partition that is not over. lag: how many are not; -1 unknown."""

    name: str
    state: str
    members: tuple[str, ...]
    start: dict[Place, int]
    lag: dict[Place, int]
    epoch: int


def listed(connection: Connection) -> dict[str, str] | None:
    """The kind of each group that a broker coordinates; None while it is loading them."""
    answer = connection.ask(ListGroupsRequest(), WITH_TYPES)
    if answer.error_code:
        return None
    return {each.group_id: (each.group_type or CLASSIC).lower() for each in answer.groups}


def described(connection: Connection, name: str, kind: str) -> Any:
    """What the coordinator says of a group: the part of its answer that is about it."""
    return _described(connection, [name], kind)[0]


def share_offsets(connection: Connection, name: str) -> tuple[int, dict[Place, int], dict[Place, int]]:
    """Error code, and start and lag of each partition that a share group has begun with."""
    from protocol.messages import share_group_offsets as wire

    asked = wire.DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None)
    group = connection.ask(wire.DescribeShareGroupOffsetsRequest(groups=[asked]), 1).groups[0]
    parts = {
        (topic.topic_name, part.partition_index): part
        for topic in group.topics
        for part in topic.partitions
        if not part.error_code and part.start_offset >= 0
    }
    start = {place: part.start_offset for place, part in parts.items()}
    return group.error_code, start, {place: part.lag for place, part in parts.items()}


def delete_groups(connection: Connection) -> bool:
    """Put all members of the broker's groups out, and delete these. Returns: whether there is no group now."""
    kinds = listed(connection)
    if not kinds:
        return kinds is not None
    for kind in sorted({*kinds.values()}):
        names = [name for name in kinds if kinds[name] == kind]
        for group in _described(connection, names, kind):
            if group.members:
                _PUT_OUT[kind](connection, group)
    connection.ask(DeleteGroupsRequest(groups_names=list(kinds)), 1)
    return listed(connection) == {}  # one stays that awaits its first members, or offsets of a transaction


def _described(connection: Connection, names: Sequence[str], kind: str) -> Sequence[Any]:
    answer: Any
    if kind == CONSUMER:
        from protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

        request = ConsumerGroupDescribeRequest(group_ids=list(names), include_authorized_operations=False)
        answer = connection.ask(request, 1)
    elif kind == SHARE:
        from protocol.messages.share_groups import ShareGroupDescribeRequest

        asked = ShareGroupDescribeRequest(group_ids=list(names), include_authorized_operations=False)
        answer = connection.ask(asked, 1)
    elif kind == STREAMS:
        from protocol.messages.streams_groups import StreamsGroupDescribeRequest

        answer = connection.ask(
            StreamsGroupDescribeRequest(group_ids=list(names), include_authorized_operations=False), 0
        )
    else:
        answer = connection.ask(DescribeGroupsRequest(groups=list(names)), 4)
    groups: Sequence[Any] = answer.groups
    return groups


# --- members, put out


def _put_out_classic(connection: Connection, group: Any) -> None:
    members = [
        MemberIdentity(member_id=each.member_id, group_instance_id=each.group_instance_id) for each in group.members
    ]
    connection.ask(LeaveGroupRequest(group_id=group.group_id, members=members), 4)


def _put_out_consumers(connection: Connection, group: Any) -> None:
    from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

    for each in group.members:
        about = {"member_id": each.member_id, "member_epoch": LEAVES, "instance_id": each.instance_id}
        connection.ask(ConsumerGroupHeartbeatRequest(group_id=group.group_id, **about), 1)


def _put_out_sharers(connection: Connection, group: Any) -> None:
    from protocol.messages.share_groups import ShareGroupHeartbeatRequest

    for each in group.members:
        leaves = ShareGroupHeartbeatRequest(group_id=group.group_id, member_id=each.member_id, member_epoch=LEAVES)
        connection.ask(leaves, 1)


def _put_out_streams(connection: Connection, group: Any) -> None:
    from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

    for each in group.members:
        about = {"member_id": each.member_id, "member_epoch": LEAVES, "instance_id": each.instance_id}
        request = StreamsGroupHeartbeatRequest(group_id=group.group_id, endpoint_information_epoch=0, **about)
        connection.ask(request, 0)


_PUT_OUT: Mapping[str, Any] = {
    CLASSIC: _put_out_classic,
    CONSUMER: _put_out_consumers,
    SHARE: _put_out_sharers,
    STREAMS: _put_out_streams,
}
