"""The kinds of groups that a shard holds, in one table, and what it asks of the rules of each.

A shard (shard.py) keeps the table of groups and all offsets. What is special to a kind is a `GroupKind`: how its
records change a group, what a timer means, who may commit, what goes when the group is deleted. A shard makes one of
each when the first group of the kind appears, and code that no group needs is not loaded (docs/decisions/0036).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from kbroker.groups.group import Group, GroupType
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    DescribedGroup,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kbroker.config import BrokerConfig
    from kbroker.coordinator import Caller, Operation, TimerKey
    from kbroker.groups.memory import GroupMemory
    from kbroker.groups.records import GroupsRecord, KeyedRecord
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataCache, MetadataDelta
    from kbroker.ports import Random
    from protocol.message import Message
    from protocol.messages.group_offsets import OffsetCommitRequest
    from protocol.messages.transactions import TxnOffsetCommitRequest


class Surroundings(NamedTuple):
    """What shards of groups know of the broker around them.

    image: of the cluster; topics and their ids. group_configs: what is set for a group (resource type GROUP), as text.
    """

    config: BrokerConfig
    rng: Random
    memory: GroupMemory
    image: MetadataCache
    group_configs: Callable[[str], Mapping[str, str]]


class GroupKind(ABC):
    """The rules of one kind of groups in one shard. `group` is always of this kind."""

    TYPE: ClassVar[GroupType]

    def __init__(self, shard: GroupShard) -> None:
        self.shard = shard

    # --- the way into state

    @abstractmethod
    def make(self, group_id: str, wall_ms: int | None) -> Group:
        """A group of this kind of which nothing is known. wall_ms: None while it is read from the log."""

    @abstractmethod
    def replay(self, group: Any, record: KeyedRecord) -> bool:
        """Apply a record of this kind to its group. Returns: whether the record says that the group is gone."""

    @abstractmethod
    def loaded(self, operation: Operation, group: Any) -> None:
        """All records have been replayed: begin to serve the group."""

    @abstractmethod
    def unload(self, operation: Operation, group: Any) -> None:
        """Another broker leads the partition: answer parked calls, cancel timers."""

    @abstractmethod
    def timer(self, operation: Operation, group: Any, key: TimerKey) -> None:
        """A timer of the group is due."""

    def committed(self, operation: Operation, note: Any) -> None:
        """A note of this kind's own (see effects.py) is committed."""
        raise AssertionError(note)

    def abandoned(self, operation: Operation, note: Any, code: ErrorCode) -> None:
        """What was written with a note of this kind's own may or may not be there for the next leader."""
        raise AssertionError(note)

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:  # noqa: B027  # most kinds need not know
        """This broker's image of the cluster is another one: once for all groups of the kind."""

    # --- requests of classic members (KIP-848 lets them be members of consumer groups)

    def join(self, operation: Operation, group: Any, request: JoinGroupRequest, caller: Caller) -> None:
        """JoinGroup. group: None if there is none (for classic groups alone)."""
        refuse_join(operation, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)

    def sync(self, operation: Operation, group: Any, request: SyncGroupRequest, caller: Caller) -> None:
        """SyncGroup."""
        refuse_sync(operation, caller, ErrorCode.UNKNOWN_MEMBER_ID)

    def heartbeat(self, operation: Operation, group: Any, request: HeartbeatRequest) -> ErrorCode:
        """Heartbeat."""
        return ErrorCode.UNKNOWN_MEMBER_ID

    def leave(self, operation: Operation, group: Any, who: Iterable[MemberIdentity]) -> list[ErrorCode]:
        """LeaveGroup: a code for each."""
        return [ErrorCode.UNKNOWN_MEMBER_ID for _ in who]

    def describe(self, group: Any, version: int) -> DescribedGroup:
        """DescribeGroups, which knows classic groups alone."""
        code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
        return described(group.group_id, "Dead", code, f"Group {group.group_id} is not a classic group.")

    # --- offsets

    def commit_error(self, operation: Operation, group: Any, request: OffsetCommitRequest, version: int) -> ErrorCode:
        """Whether the sender may commit for the group; a commit of a member may be a sign of life."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def transactional_commit_error(self, group: Any, request: TxnOffsetCommitRequest, version: int) -> ErrorCode:
        """Whether the sender may commit for the group in a transaction."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_error(self, group: Any, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether the sender may read the group's offsets (OffsetFetch 9). member_epoch: -1 for no member at all."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def offset_delete_error(self, group: Any) -> ErrorCode:
        """Whether offsets of topics that no member reads may be deleted (OffsetDelete)."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    # --- removal

    @abstractmethod
    def delete_error(self, group: Any) -> ErrorCode:
        """Whether the group may be deleted."""

    @abstractmethod
    def tombstones(self, group: Any) -> list[GroupsRecord]:
        """What makes the log forget a group without members, besides its offsets; [] if it has no record of its own."""

    def forgotten(self, operation: Operation, group: Any) -> None:  # noqa: B027  # a group without members has no timers
        """The tombstones have been written: cancel what is left of its timers."""


def refuse_join(operation: Operation, caller: Caller, error: ErrorCode, member_id: str = "") -> None:
    """Answer a join with an error. member_id: as the client knows it, or the one to come back with."""
    operation.reply(
        caller.call,
        JoinGroupResponse(
            error_code=error,
            protocol_name=None if caller.version >= 7 else "",
            leader="",
            member_id=member_id,
            members=[],
        ),
    )


def refuse_sync(operation: Operation, caller: Caller, error: ErrorCode) -> None:
    """Answer a sync with an error."""
    operation.reply(caller.call, SyncGroupResponse(error_code=error, assignment=b""))


def described(
    group_id: str, state: str, error: ErrorCode = ErrorCode.NONE, message: str | None = None
) -> DescribedGroup:
    """A group in the answer to DescribeGroups, with nothing in it."""
    return DescribedGroup(
        error_code=error,
        error_message=message if error is not ErrorCode.NONE else None,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=[],
    )


# --- the table


def _load_share() -> type[GroupKind]:
    from kbroker.groups.share import ShareGroups

    return ShareGroups


def _load_classic() -> type[GroupKind]:
    from kbroker.groups.classic import ClassicGroups

    return ClassicGroups


def _load_consumer() -> type[GroupKind]:
    from kbroker.groups.consumer import ConsumerGroups

    return ConsumerGroups


def _load_streams() -> type[GroupKind]:
    from kbroker.groups.streams.membership import StreamsGroups

    return StreamsGroups


KINDS: dict[GroupType, Callable[[], type[GroupKind]]] = {
    GroupType.SHARE: _load_share,
    GroupType.CLASSIC: _load_classic,
    GroupType.CONSUMER: _load_consumer,
    GroupType.STREAMS: _load_streams,
}
"""How the rules of a kind are loaded."""


def _share_records() -> dict[int, tuple[type[Message], type[Message]]]:
    from protocol.messages import stored_share_groups as stored

    return {
        10: (stored.ShareGroupMemberMetadataKey, stored.ShareGroupMemberMetadataValue),
        11: (stored.ShareGroupMetadataKey, stored.ShareGroupMetadataValue),
        12: (stored.ShareGroupTargetAssignmentMetadataKey, stored.ShareGroupTargetAssignmentMetadataValue),
        13: (stored.ShareGroupTargetAssignmentMemberKey, stored.ShareGroupTargetAssignmentMemberValue),
        14: (stored.ShareGroupCurrentMemberAssignmentKey, stored.ShareGroupCurrentMemberAssignmentValue),
        15: (stored.ShareGroupStatePartitionMetadataKey, stored.ShareGroupStatePartitionMetadataValue),
    }


def _classic_records() -> dict[int, tuple[type[Message], type[Message]]]:
    from protocol.messages.stored import GroupMetadataKey, GroupMetadataValue

    return {2: (GroupMetadataKey, GroupMetadataValue)}


def _consumer_records() -> dict[int, tuple[type[Message], type[Message]]]:
    from protocol.messages import stored_consumer_groups as stored

    return {
        3: (stored.ConsumerGroupMetadataKey, stored.ConsumerGroupMetadataValue),
        4: (stored.ConsumerGroupPartitionMetadataKey, stored.ConsumerGroupPartitionMetadataValue),
        5: (stored.ConsumerGroupMemberMetadataKey, stored.ConsumerGroupMemberMetadataValue),
        6: (stored.ConsumerGroupTargetAssignmentMetadataKey, stored.ConsumerGroupTargetAssignmentMetadataValue),
        7: (stored.ConsumerGroupTargetAssignmentMemberKey, stored.ConsumerGroupTargetAssignmentMemberValue),
        8: (stored.ConsumerGroupCurrentMemberAssignmentKey, stored.ConsumerGroupCurrentMemberAssignmentValue),
        16: (stored.ConsumerGroupRegularExpressionKey, stored.ConsumerGroupRegularExpressionValue),
    }


def _streams_records() -> dict[int, tuple[type[Message], type[Message]]]:
    from protocol.messages import stored_streams_groups as stored

    return {
        17: (stored.StreamsGroupMetadataKey, stored.StreamsGroupMetadataValue),
        19: (stored.StreamsGroupMemberMetadataKey, stored.StreamsGroupMemberMetadataValue),
        20: (stored.StreamsGroupTargetAssignmentMetadataKey, stored.StreamsGroupTargetAssignmentMetadataValue),
        21: (stored.StreamsGroupTargetAssignmentMemberKey, stored.StreamsGroupTargetAssignmentMemberValue),
        22: (stored.StreamsGroupCurrentMemberAssignmentKey, stored.StreamsGroupCurrentMemberAssignmentValue),
        23: (stored.StreamsGroupTopologyKey, stored.StreamsGroupTopologyValue),
    }


RECORDS: dict[GroupType, Callable[[], dict[int, tuple[type[Message], type[Message]]]]] = {
    GroupType.SHARE: _share_records,
    GroupType.CLASSIC: _classic_records,
    GroupType.CONSUMER: _consumer_records,
    GroupType.STREAMS: _streams_records,
}
"""The classes of key and value, by the type of the key (its first int16); those of offsets are 0 and 1."""

TYPE_OF_KEY: dict[int, GroupType] = {
    2: GroupType.CLASSIC,
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), GroupType.CONSUMER),
    **dict.fromkeys((17, 19, 20, 21, 22, 23), GroupType.STREAMS),
}
"""Whose record it is, by the type of its key. One that is not here is of a newer Kafka, and passed by."""

TYPE_OF_KEY |= dict.fromkeys(range(10, 16), GroupType.SHARE)


@cache
def record_classes(key_type: int) -> tuple[type[Message], type[Message]]:
    """The classes of key and value of a record in `TYPE_OF_KEY`."""
    return RECORDS[TYPE_OF_KEY[key_type]]()[key_type]
