"""What an operation of a coordinator wants done: the nouns that flow out of its shards.

Every operation gathers a list of these, in order, in its `Operation`. Its caller (an API handler, a timer, the high
watermark) has the runtime carry them out. A call for which no Reply is among them is parked: its Reply comes with a
later step. What must survive is written through the operation, to the log first; see shard.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.namedtuple import NamedTuple

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
    """One timer of a shard; setting it again moves it.

    kind: a word of the shard's own. name: the group or transaction that it is about, "" for the shard itself.
    member_id: the member, "" for the whole group.
    """

    kind: str
    partition: int
    name: str = ""
    member_id: str = ""


class Again(Protocol):
    """Knows of an answer how long the same request has it."""

    def holds(self, now_ms: int) -> bool:
        """Whether the request, which has come again, has the same answer; then what else it does has been done."""
        ...


class Reply(NamedTuple):
    """Answer a call, now.

    again: None for a request that has to be asked whole if it comes again.
    """

    call: Call
    response: Message
    again: Again | None = None


class SetTimer(NamedTuple):
    """Call `timer(key)` at this time, unless the key is set again or cancelled before."""

    key: TimerKey
    deadline_ms: int


class CancelTimer(NamedTuple):
    """Forget a timer; it may be none."""

    key: TimerKey


class Written(NamedTuple):
    """A shard has written something that a call waits for: look whether it is committed already."""

    partition: int


class Forward(NamedTuple):
    """Something that only the coordinator's own surroundings know how to do."""

    what: object


class CoordinatorEvent(NamedTuple):
    """A line for the log: what an operator wants to know of a group or a transaction.

    is_detail: of how it came about, for who looks closer.
    """

    name: str
    what: str
    is_detail: bool = False


Effect: TypeAlias = Reply | SetTimer | CancelTimer | Written | Forward | CoordinatorEvent


class Writer(Protocol):
    """The way to the log of one partition: its shard."""

    @property
    def partition(self) -> int:
        """Which one it is."""

    def wall_ms(self) -> int:
        """The wall clock's time."""
        ...

    def write(
        self, records: Sequence[Any], note: object | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> ErrorCode:
        """See Shard.write."""
        ...


class Operation:
    """One operation under way: the time it happens at, the way to the log, and the effects gathered so far.

    writer: None where there is no shard to ask, and nothing will be written.
    """

    __slots__ = ("_writer", "effects", "now_ms", "partition")

    def __init__(self, now_ms: int, writer: Writer | None = None) -> None:
        self.now_ms = now_ms
        self.partition = -1 if writer is None else writer.partition
        self.effects: list[Effect] = []
        self._writer = writer

    @property
    def wall_ms(self) -> int:
        """Now, for what days later is old: `now_ms` stands still while the machine sleeps, and that adds up."""
        return self.now_ms if self._writer is None else self._writer.wall_ms()

    def write(
        self, records: Sequence[Any], note: object | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> ErrorCode:
        """Append records, in one batch, and apply them; see Shard.write."""
        assert self._writer is not None, records
        code = self._writer.write(records, note, producer_id, producer_epoch)
        if note is not None and code is ErrorCode.NONE:
            self.effects.append(Written(self.partition))
        return code

    def reply(self, call: Call, response: Message, again: Again | None = None) -> None:
        """Answer a call. again: see Reply."""
        self.effects.append(Reply(call, response, again))

    def set_timer(self, kind: str, name: str, delay_ms: int, member_id: str = "") -> None:
        """Set one of the shard's timers, `delay_ms` from now."""
        key = TimerKey(kind, self.partition, name, member_id)
        self.effects.append(SetTimer(key, self.now_ms + delay_ms))

    def cancel_timer(self, kind: str, name: str, member_id: str = "") -> None:
        """Forget one of the shard's timers."""
        self.effects.append(CancelTimer(TimerKey(kind, self.partition, name, member_id)))

    def forward(self, what: object) -> None:
        """Have the coordinator's own surroundings do something."""
        self.effects.append(Forward(what))

    def event(self, name: str, what: str, *, is_detail: bool = False) -> None:
        """Tell the log."""
        self.effects.append(CoordinatorEvent(name, what, is_detail))
