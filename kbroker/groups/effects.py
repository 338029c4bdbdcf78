"""What a group's shard has written, and who waits for it; and what a client is told when it could not be written.

A note goes along with records to the log (`Operation.write`), and comes back when they are committed, or when the
leadership is lost before (`committed` and `abandoned` of shard.py). One with a `group_type` is for the rules of that
kind. Why an append failed is told in the words of Kafka's group coordinator, not of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kbroker.coordinator.effects import Again, Call
from kbroker.groups.group import GroupType
from kbroker.groups.offsets import TopicPartition
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.namedtuple import NamedTuple

KNOWS_LOADING_SINCE = 2  # TxnOffsetCommit


class GroupStored(NamedTuple):
    """The leader's assignment of a generation; to be handed out once it is committed."""

    group_id: str
    generation: int

    @property
    def group_type(self) -> GroupType:
        """Whose rules it is for."""
        return GroupType.CLASSIC


class StaticMemberReplaced(NamedTuple):
    """A static member under its new id, in a stable group; it is told when that is committed."""

    group_id: str
    instance_id: str
    new_member_id: str
    old_leader: str

    @property
    def group_type(self) -> GroupType:
        """Whose rules it is for."""
        return GroupType.CLASSIC


class OffsetsStored(NamedTuple):
    """The offsets of a commit, with the answer that leaves when they are committed."""

    partitions: Iterable[TopicPartition]
    call: Call
    response: Message


class Gathering:
    """An answer that waits for several batches. waiting: how many are under way."""

    __slots__ = ("call", "response", "waiting")

    def __init__(self, call: Call, response: Message) -> None:
        self.call = call
        self.response = response
        self.waiting = 0


class Removed(NamedTuple):
    """Tombstones. places: in the response, where it shows if they may be lost."""

    gathering: Gathering
    places: list[object]


class Answered(NamedTuple):
    """An answer that leaves when what it says is committed. refused: the same with an error in it. again: see Reply."""

    call: Call
    response: Message
    refused: Callable[[ErrorCode], Message]
    again: Again | None = None


Note: TypeAlias = GroupStored | StaticMemberReplaced | OffsetsStored | Removed | Answered


def append_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when a classic group's record could not be appended. Source: Kafka 3.9, storeGroup."""
    return _GROUP_ERRORS.get(code, code)


def write_error(code: ErrorCode) -> ErrorCode:
    """The same of a group of Kafka 4, and of the removal of a group or of offsets. Source: Apache Kafka 4.

    Members of those groups do not know REBALANCE_IN_PROGRESS, and end themselves.
    """
    return ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.REQUEST_TIMED_OUT else append_error(code)


def commit_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when the append of its offsets failed. Source: Apache Kafka 3.9."""
    return _COMMIT_ERRORS.get(code, code)


def loading_error(code: ErrorCode, version: int) -> ErrorCode:
    """What a client is told that speaks this version of TxnOffsetCommit: old ones may crash at groups that load."""
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < KNOWS_LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code


_NOT_THERE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_FETCH_SIZE)
_GROUP_ERRORS = {
    **_NOT_THERE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
}
_COMMIT_ERRORS = {
    **_NOT_THERE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
