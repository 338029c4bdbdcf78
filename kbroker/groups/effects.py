"""What a group's step wants done: the nouns that flow out of this package.

Every operation of the coordinator returns a list of these, in order, and has touched nothing but its own state. Whoever
called it (an API handler, a timer, the completion of an append) carries them out. A call for which no Reply is among
them is parked: its Reply comes with a later step.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from kbroker.groups.offsets import Commit, TopicPartition
from protocol.errors import ErrorCode
from protocol.message import Message

Call: TypeAlias = object  # whatever the caller wants back with the answer; never looked into


class Caller(NamedTuple):
    """Who asks: the call to answer, and what the request's header and connection say.

    client_host: "/" and the address, as Kafka writes it.
    """

    call: Call
    version: int = 0
    client_id: str = ""
    client_host: str = "/"


class TimerKey(NamedTuple):
    """One timer of a group; setting it again moves it. member_id: "" for the group's own timers."""

    kind: str  # session, join, sync of a group; expiry of a shard
    partition: int
    group_id: str = ""
    member_id: str = ""


class Record(NamedTuple):
    """One record of __consumer_offsets. value: None is a tombstone."""

    key: bytes
    value: bytes | None


class Reply(NamedTuple):
    """Answer a call, now."""

    call: Call
    response: Message


class Append(NamedTuple):
    """Append records to a partition of __consumer_offsets as its leader; give `write` back when they are committed.

    producer_id, producer_epoch: of the transaction that the records belong to; -1 for none.
    """

    partition: int
    records: list[Record]
    write: Write
    producer_id: int = -1
    producer_epoch: int = -1


class SetTimer(NamedTuple):
    """Call `timer(key)` at this time, unless the key is set again or cancelled before."""

    key: TimerKey
    deadline_ms: int


class CancelTimer(NamedTuple):
    """Forget a timer; it may be none."""

    key: TimerKey


class Happened(NamedTuple):
    """A line for the log: what an operator wants to know of a group."""

    group_id: str
    what: str


Effect: TypeAlias = Reply | Append | SetTimer | CancelTimer | Happened


# --- what an append was for: given back by the owner, as it was


class GroupStored(NamedTuple):
    """The leader's assignment of a generation; to be handed out once it is committed."""

    partition: int
    epoch: int
    group_id: str
    generation: int
    assignments: dict[str, bytes]


class StaticMemberReplaced(NamedTuple):
    """A static member under its new id, in a stable group. before: what to go back to if it cannot be stored."""

    partition: int
    epoch: int
    group_id: str
    instance_id: str
    old_member_id: str
    new_member_id: str
    old_leader: str
    old_protocols: list[tuple[str, bytes]]
    old_session_timeout_ms: int
    old_rebalance_timeout_ms: int


class OffsetsStored(NamedTuple):
    """Offsets of a commit, with the answer that leaves when they are committed.

    number: of the commit in its shard. producer_id: of a transaction, -1 for a plain commit.
    """

    partition: int
    epoch: int
    group_id: str
    number: int
    offsets: dict[TopicPartition, Commit]
    call: Call
    response: Message
    producer_id: int = -1


class Gathering:
    """An answer that waits for several appends. waiting: how many are under way."""

    __slots__ = ("call", "response", "waiting")

    def __init__(self, call: Call, response: Message) -> None:
        self.call = call
        self.response = response
        self.waiting = 0


class Removed(NamedTuple):
    """Tombstones. gathering: the answer that waits for them, None if nobody asked. places: where a failure shows."""

    partition: int
    epoch: int
    group_id: str
    gathering: Gathering | None
    places: list[object]


class EmptyGroupStored(NamedTuple):
    """The generation in which a group became empty; nobody waits for it."""

    partition: int
    epoch: int
    group_id: str


Write: TypeAlias = GroupStored | StaticMemberReplaced | OffsetsStored | Removed | EmptyGroupStored


class Turn:
    """One operation under way: the time it happens at and the effects it has gathered so far."""

    __slots__ = ("effects", "epoch", "now_ms", "partition")

    def __init__(self, now_ms: int, partition: int, epoch: int) -> None:
        self.now_ms = now_ms
        self.partition = partition
        self.epoch = epoch
        self.effects: list[Effect] = []

    def reply(self, call: Call, response: Message) -> None:
        """Answer a call."""
        self.effects.append(Reply(call, response))

    def append(self, records: list[Record], write: Write, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Have records appended to this shard's partition."""
        assert records, write
        self.effects.append(Append(self.partition, records, write, producer_id, producer_epoch))

    def set_timer(self, kind: str, group_id: str, delay_ms: int, member_id: str = "") -> None:
        """Set one of a group's timers, `delay_ms` from now."""
        key = TimerKey(kind, self.partition, group_id, member_id)
        self.effects.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel_timer(self, kind: str, group_id: str, member_id: str = "") -> None:
        """Forget one of a group's timers."""
        self.effects.append(CancelTimer(TimerKey(kind, self.partition, group_id, member_id)))

    def happened(self, group_id: str, what: str) -> None:
        """Tell the log."""
        self.effects.append(Happened(group_id, what))


def append_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when the append of a group's record failed. Source: Apache Kafka 3.9, storeGroup."""
    return _GROUP_ERRORS.get(code, code)


def commit_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when the append of its offsets failed. Source: Apache Kafka 3.9."""
    return _COMMIT_ERRORS.get(code, code)


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
