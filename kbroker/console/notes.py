"""The last requests of a broker: their bytes, when what happened to each, and what it waited for.

`Notes` is the witness of a core that has a console. A request is noted when its frame comes and when its answer is put
in its place; what of both is kept is a few kilobytes, as bytes: they are decoded by the console's own process. What it
costs a request is a copy of those and some looks at the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from kbroker.channel import Unbegun
from kbroker.ports import Region
from kbroker.replica.partition import Partition
from protocol.headers import parse_request_header
from protocol.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kbroker.api.call import Waiting
    from kbroker.channel import Channel, Piece, Request
    from kbroker.ports import Clock

KEPT_BYTES = 8 << 10  # of a request, and of an answer
MOST_NOTES = 4000
MOST_BYTES = 16 << 20  # of requests and answers together; those of the oldest notes are let go
MOST_STAGES = 30
MOST_NAMED = 5  # partitions that a stage names


class Stage:
    """Something that happened to a request. at_ns: on the broker's own clock. what: a word; why: a sentence."""

    __slots__ = ("at_ns", "what", "why")

    def __init__(self, at_ns: int, what: str, why: str = "") -> None:
        self.at_ns, self.what, self.why = at_ns, what, why


class Note:
    """One request. number: counted from 1. frame, answer: as far as they are kept; None once they are let go."""

    __slots__ = (
        "answer",
        "answer_size",
        "api",
        "at_ms",
        "channel",
        "client_id",
        "connection",
        "correlation_id",
        "fault",
        "frame",
        "number",
        "size",
        "stages",
        "version",
    )

    def __init__(self, number: int, channel: Channel, connection: int, frame: memoryview, at_ms: int) -> None:
        self.number = number
        self.channel: Channel | None = channel
        self.connection = connection
        self.at_ms = at_ms
        self.size = len(frame)
        self.frame: bytes | None = bytes(frame[:KEPT_BYTES])
        self.api, self.version, self.correlation_id, self.client_id = -1, -1, None, ""  # type: int, int, int | None, str
        self.stages: list[Stage] = []
        self.answer: list[Any] | None = None  # bytes, and the size of what is in files
        self.answer_size = 0
        self.fault = ""

    @property
    def is_answered(self) -> bool:
        """Whether its answer was put in its place."""
        return bool(self.stages) and self.stages[-1].what in ("answered", "silent", "closed")


class Notes:
    """What a core has told of its last requests: a `Witness` of it. notes: oldest first."""

    def __init__(self, clock: Clock) -> None:
        self.notes: deque[Note] = deque()
        self.now_ns, self._wall_ms = clock.now_ns, clock.wall_ms
        self._unanswered: dict[Channel, dict[int | None, Note]] = {}
        self._numbers: dict[Channel, int] = {}
        self._count = self._connections = 0
        self._kept_bytes = 0
        self._with_bytes: deque[Note] = deque()
        self._received: Note | None = None

    def connection_of(self, channel: Channel) -> int:
        """The number of a connection, counted from 1."""
        number = self._numbers.get(channel)
        if number is None:
            self._connections += 1
            number = self._numbers[channel] = self._connections
        return number

    def connected(self) -> dict[Channel, int]:
        """Connections that have asked something, by their numbers."""
        return self._numbers

    # -- what the core tells

    def received(self, channel: Channel, frame: memoryview) -> None:
        """Note it, unless it is of a login: a password may be in it."""
        self._received = None
        if channel.login is not None and channel.session.login is not None:
            return
        self._count += 1
        note = self._received = Note(self._count, channel, self.connection_of(channel), frame, self._wall_ms())
        note.stages.append(Stage(self.now_ns(), "received"))
        try:
            note.api, note.version, note.correlation_id, client_id, _ = parse_request_header(frame)
            note.client_id = client_id or ""
        except DecodeError:
            pass
        self._unanswered.setdefault(channel, {})[note.correlation_id] = note
        self.notes.append(note)
        self._with_bytes.append(note)
        self._kept_bytes += _held(note)
        self._make_room()

    def _make_room(self) -> None:
        if len(self.notes) > MOST_NOTES:
            oldest = self.notes.popleft()
            self._let_go_of(oldest)
            if self._with_bytes[0] is oldest:
                self._with_bytes.popleft()
        while self._kept_bytes > MOST_BYTES:
            self._let_go_of(self._with_bytes.popleft())

    def _let_go_of(self, note: Note) -> None:
        self._kept_bytes -= _held(note)
        note.frame = note.answer = None

    def taken(self, channel: Channel) -> None:
        """Say why there is no answer yet, if there is none."""
        note, self._received = self._received, None
        if note is None or note.is_answered:
            return
        if channel.pending and channel.pending[-1].waiting.__class__ is Unbegun:
            note.stages.append(Stage(self.now_ns(), "held", HELD))
        elif note.stages[-1].what in ("received", "begun"):
            note.stages.append(Stage(self.now_ns(), "waits", ELSEWHERE))

    def begun(self, request: Request) -> None:
        """As `Witness`."""
        self._stage(request, "begun")

    def parked(self, request: Request, waiting: Waiting) -> None:
        """As `Witness`."""
        self._stage(request, "waits", reason_of(waiting))

    def woken(self, request: Request) -> None:
        """As `Witness`."""
        self._stage(request, "woken")

    def answered(self, request: Request, pieces: Sequence[Piece]) -> None:
        """Keep some of the answer."""
        notes = self._unanswered.get(request.channel)
        note = notes.pop(request.correlation_id, None) if notes is not None else None
        if note is not None:
            pending = request.channel.pending
            why = BEHIND if pending and pending[0] is not request else ""
            note.stages.append(Stage(self.now_ns(), "answered" if pieces else "silent", why))
            self._keep_answer(note, pieces)

    def closed(self, channel: Channel, why: str) -> None:
        """The connection is gone, or about to be."""
        for note in self._unanswered.pop(channel, {}).values():
            note.stages.append(Stage(self.now_ns(), "closed", why))
        if self._numbers.pop(channel, None) is not None:
            for note in self.notes:
                if note.channel is channel:
                    note.channel = None

    def _stage(self, request: Request, what: str, why: str = "") -> None:
        note = self._unanswered.get(request.channel, {}).get(request.correlation_id)
        if note is not None and len(note.stages) < MOST_STAGES:
            note.stages.append(Stage(self.now_ns(), what, why))

    def _keep_answer(self, note: Note, pieces: Sequence[Piece]) -> None:
        kept: list[Any] = []
        left = KEPT_BYTES
        for piece in pieces:
            size = len(piece)
            note.answer_size += size
            if isinstance(piece, Region):
                kept.append(size)
            elif left > 0:
                kept.append(bytes(piece[:left]))
                left -= size
        if note.frame is not None:
            note.answer = kept
            self._kept_bytes += sum(len(each) for each in kept if isinstance(each, bytes))

    # -- what waits now

    def waiting(self) -> Iterator[tuple[Request, str]]:
        """Requests that are not answered yet, and what each waits for."""
        for channel in tuple(self._unanswered):
            for request in tuple(channel.pending):
                if request.answer is not None:
                    yield request, BEHIND
                elif request.waiting.__class__ is Unbegun:
                    yield request, HELD
                elif request.waiting is not None:
                    yield request, reason_of(request.waiting)  # type: ignore[arg-type]
                else:
                    yield request, ELSEWHERE


HELD = "an earlier request of the same connection has no answer yet"
BEHIND = "earlier answers of its connection"
ELSEWHERE = "another part: a coordinator, the metadata store, another broker, or the disk"


def _held(note: Note) -> int:
    return len(note.frame or b"") + sum(len(each) for each in note.answer or () if isinstance(each, bytes))


def reason_of(waiting: Waiting) -> str:
    """What a parked request waits for, in a sentence."""
    kind = type(waiting).__name__
    keys: Sequence[Hashable] = waiting.keys
    partitions = [each for each in keys if isinstance(each, Partition)]
    names = _names(partitions)
    if kind == "DelayedFetch":
        return f"purgatory: records in {names}, until fetch.min.bytes are there or fetch.max.wait.ms are over"
    if kind == "ColdFetch":
        return f"disk: it reads {names}"
    if kind == "DelayedProduce":
        return "; ".join(_of_produce(each) for each in partitions[:MOST_NAMED]) or "replicas"
    if kind == "Muted":
        return "quota: its client was throttled"
    named = _WORDS.get(kind, kind)
    return f"{named}{': ' + names if partitions else ''}"


_WORDS = {
    "AwaitStore": "metadata store",
    "AwaitMarkers": "markers of the transaction, in all its partitions",
    "AwaitChange": "controller: the topics' new state on all brokers",
    "AwaitElection": "controller: an election",
    "AwaitTopics": "controller: a topic that is made",
    "AwaitId": "a block of producer ids",
    "DelayedListOffsets": "purgatory: the end of the log after an election",
    "DelayedDelete": "replicas: all have to delete the records",
    "UntilTouched": "the authorizer",
}


def _of_produce(partition: Partition) -> str:
    log = partition.log
    if log is None:
        return f"{partition.topic}-{partition.index}: its log directory is offline"
    behind = [
        str(each.broker_id)
        for each in partition.followers.values()
        if each.broker_id in partition.isr and each.log_end_offset < log.log_end_offset
    ]
    name = f"{partition.topic}-{partition.index}"
    if not behind and log.flush_wanted > log.recovery_point:
        return f"disk: {name} is synced up to {log.recovery_point}, wanted is {log.flush_wanted} (flush.messages)"
    followers = f"broker{'s' if len(behind) > 1 else ''} {', '.join(behind)} to fetch" if behind else "its followers"
    return f"replicas: {name} is committed up to {log.high_watermark} of {log.log_end_offset}; it waits for {followers}"


def _names(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{each.topic}-{each.index}" for each in partitions[:MOST_NAMED])
    return shown + (f" and {len(partitions) - MOST_NAMED} more" if len(partitions) > MOST_NAMED else "")
