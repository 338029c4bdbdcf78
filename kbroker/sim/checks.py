"""What must hold in a simulated world, looked at after every event, and the history that says what happened.

Clients tell what they were promised (an acknowledged batch, a record they read, an assignment, a committed offset);
machines are looked at directly. A breach raises `Broken`. What is checked:

- an acknowledged or once read record stays at its offset, byte for byte, and no offset carries two records;
- after a power cut a log keeps a prefix of what it had, at least up to what it called durable, and, with
  flush.messages=1, all that anybody was told of;
- a record of an idempotent producer is there once, any other at most as often as it was sent;
- log start <= high watermark <= log end, and none goes back while the broker runs; nothing is forgotten unasked;
- a reader gets offsets without a gap, below the high watermark;
- a topic that was made again begins empty, and only if somebody wished the one before away;
- assignments of one generation of a group never overlap; committed offsets are those last committed;
- a parked answer leaves by its deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from struct import Struct
from typing import TYPE_CHECKING

from kbroker.sim.catalogue import Catalogue
from kbroker.sim.commits import GroupHistory
from protocol.records.batch import BatchHeader, check, scan
from protocol.records.content import parse_records

if TYPE_CHECKING:
    from kbroker.core import Core, Request
    from kbroker.log.log import Log
    from kbroker.sim.machine import Machine
    from kbroker.sim.world import World
    from protocol.records import Record

Where = tuple[str, int]

Moment = tuple[int, int]
"""What had happened when somebody asked: power cuts, and ends and beginnings of topics."""

LATER_LIMIT_MS = 60_000
"""By when an answer must have left that waits for another part of the broker, not for a deadline of its own."""

FOREVER = 1 << 62
SCAN_BYTES = 1 << 20
_LENGTH = Struct(">i")


class PartitionHistory:
    """What is known of one partition.

    known: value by offset, of records that were acknowledged or seen. end: behind the last of them. may_start: how far
    the log start may have moved: DeleteRecords or retention. durable: what a power cut must leave. told: behind the
    last record that a client knows of; a power cut must leave these if they are flushed before anybody is told.
    """

    __slots__ = (
        "batches",
        "durable",
        "end",
        "era",
        "flushed_first",
        "forgotten",
        "high_watermark",
        "known",
        "log",
        "log_end",
        "may_start",
        "start",
        "stranger",
        "told",
        "where",
    )

    def __init__(self, where: Where) -> None:
        self.where = where
        self.known: dict[int, bytes] = {}
        self.batches: dict[int, int] = {}  # checksum by base offset, of batches whose records have been read
        self.end = 0
        self.era = 0  # of its topic, in which this partition was made
        self.log: Log | None = None  # while the broker runs
        self.stranger: Log | None = None  # an earlier topic's of the name, found after a start
        self.may_start = 0
        self.forgotten = 0  # the largest log start there ever was: below, a power cut may bring back some of it
        self.durable = 0
        self.told = 0
        self.flushed_first = False
        self.start = self.high_watermark = self.log_end = 0

    def __repr__(self) -> str:
        return f"{self.where[0]}-{self.where[1]}"

    @property
    def is_internal(self) -> bool:
        """Whether the broker itself writes it, not our producers."""
        return self.where[0].startswith("__")


class Checks:
    """The judge of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: dict[Where, PartitionHistory] = {}
        self.losses = 0  # power cuts: what clients took for safe may be gone
        self.acknowledged = 0  # records
        self.read = 0  # records
        self.groups = GroupHistory(world)
        self.catalogue = Catalogue(world, self.groups)
        self._machines: list[Machine] = []
        self._producer_ids: set[tuple[int, int]] = set()
        self._next_producer_id = 1000
        self._sent: dict[bytes, int] = {}  # how often each value was sent; idempotent ones count once
        self._places: dict[bytes, list[tuple[Where, int]]] = {}
        self._due: list[tuple[int, int, Request, Core, Machine]] = []
        self._parked = 0

    def watch(self, machine: Machine) -> None:
        """Look at a machine from now on."""
        self._machines.append(machine)
        machine.on_parked = lambda request: self._park(machine, request)
        machine.on_down = self._went_down
        machine.on_up = self._came_up

    def history(self, where: Where) -> PartitionHistory:
        """What is known of a partition."""
        found = self.partitions.get(where)
        if found is None:
            found = self.partitions[where] = PartitionHistory(where)
        return found

    # ---- told by clients

    def sent(self, values: Collection[bytes], *, idempotent: bool) -> None:
        """These are on their way to a log, perhaps again."""
        for value in values:
            self._sent[value] = 1 if idempotent else self._sent.get(value, 0) + 1

    def appended(self, where: Where, base_offset: int, values: Sequence[bytes], moment: Moment) -> None:
        """A producer was told that its records are at these offsets. moment: when it asked."""
        history = self.history(where)
        self.acknowledged += len(values)
        if not self.is_since(moment, where[0]):
            return  # answered before a power cut, heard after it
        for offset, value in enumerate(values, base_offset):
            self._place(history, offset, value)
        history.told = max(history.told, base_offset + len(values))

    def fetched(
        self, where: Where, position: int, high_watermark: int, records: Sequence[Record], moment: Moment
    ) -> None:
        """A consumer has read from `position` on. records: those at or behind it. moment: when it asked."""
        history = self.history(where)
        self.read += len(records)
        expected = position
        for record in records:
            jumps = record.offset != expected and not expected < record.offset <= history.forgotten
            if jumps and self.is_since(moment, where[0]):
                raise self.world.broken(f"{history}: a reader at {expected} gets {record.offset}")
            if record.offset >= high_watermark:
                raise self.world.broken(f"{history}: {record.offset} is read, the high watermark is {high_watermark}")
            expected = record.offset + 1
        if self.is_since(moment, where[0]):
            for record in records:
                self._place(history, record.offset, bytes(record.value or b""))
            history.told = max(history.told, expected)

    def may_forget(self, where: Where, before: int) -> None:
        """Somebody has asked for records below an offset to be deleted, or retention may do so (FOREVER)."""
        history = self.history(where)
        history.may_start = max(history.may_start, before)

    def _place(self, history: PartitionHistory, offset: int, value: bytes) -> None:
        known = history.known.get(offset)
        if known is not None:
            if known != value:
                raise self.world.broken(f"{history}: offset {offset} is {known!r}, and now {value!r}")
            return
        if value not in self._sent:
            raise self.world.broken(f"{history}: {value!r} at {offset} was never sent")
        places = self._places.setdefault(value, [])
        places.append((history.where, offset))
        if len(places) > self._sent[value]:
            raise self.world.broken(f"{value!r} was sent {self._sent[value]} times and is at {places}")
        history.known[offset] = value
        history.end = max(history.end, offset + 1)

    @property
    def moment(self) -> Moment:
        """Now, for `is_since`."""
        return self.losses, self.catalogue.changes

    def is_since(self, moment: Moment, topic: str) -> bool:
        """Whether no power cut, and no end of a topic of this name, has come between a moment and now."""
        return moment[0] == self.losses and self.catalogue.is_same(topic, moment[1])

    def next_producer_id(self) -> int:
        """An id for a producer where no broker hands them out."""
        self._next_producer_id += 1
        return self._next_producer_id

    def gave_producer_id(self, producer_id: int, epoch: int) -> None:
        """A broker handed out an id: nobody else has it."""
        if (producer_id, epoch) in self._producer_ids:
            raise self.world.broken(f"producer id {producer_id} was handed out twice")
        self._producer_ids.add((producer_id, epoch))

    # ---- seen on machines

    def look(self) -> None:
        """After every event: what can be seen at once, on the machines that did something."""
        for machine in self._machines:
            core = machine.core
            if core is None or not machine.moved:
                continue
            machine.moved = False
            for where, log in core.broker.logs.logs():
                history = self.partitions.get(where) or self.history(where)
                if history.log is not log:
                    if history.stranger is log:
                        continue  # until the controller's first request; nobody can connect before
                    self._begins(machine, history, log)
                if (
                    log.log_end_offset != history.log_end
                    or log.high_watermark != history.high_watermark
                    or log.log_start_offset != history.start
                    or log.recovery_point != history.durable
                ):
                    self._look_at(history, log)
        due = self._due
        while due and due[0][0] < self.world.now_ms:
            deadline_ms, _, request, core, machine = heappop(due)
            if machine.core is core and request.answer is None and request in request.channel.pending:
                raise self.world.broken(f"{request!r} was to be answered by {deadline_ms / 1000:.3f} s")

    def _begins(self, machine: Machine, history: PartitionHistory, log: Log) -> None:
        """There is a log that was not there at the last look: a new partition's, perhaps in another's place."""
        topic, before = history.where[0], history.log
        era = self.catalogue.era(topic)  # a doomed topic, too, gets a log that it could not get earlier
        if before is not None or not self.catalogue.is_doomed(topic):
            era = self.catalogue.begins(topic, machine.broker.replicas.partitions[history.where].topic_id)
        if before is not None and history.era == era:
            raise self.world.broken(f"{history}: its log was replaced, and nobody wished it away")
        if before is not None or history.era != era:
            self._forget_all(history)
        if log.log_end_offset or log.log_start_offset:
            raise self.world.broken(f"{history}: is new, and goes from {log.log_start_offset} to {log.log_end_offset}")
        history.log, history.era = log, era

    def _forget_if_over(self, history: PartitionHistory) -> bool:
        """After a start, nobody can tell a doomed topic's log from that of the next one of its name."""
        era = self.catalogue.era(history.where[0])
        is_over = history.era != era or self.catalogue.is_doomed(history.where[0])
        if is_over:
            self._forget_all(history)
            history.era = era
        return is_over

    def _is_strange(self, machine: Machine, history: PartitionHistory) -> bool:
        """Whether the log that a broker found under a name is of a topic that was deleted: a power cut undid that."""
        topic, index = history.where
        if not self.catalogue.was_doomed(topic) or self.catalogue.is_doomed(topic):
            return False
        fault, machine.disk.fault = machine.disk.fault, None
        found = machine.broker.logs.topic_id(topic, index)
        machine.disk.fault = fault
        return found is not None and self.catalogue.is_of_the_past(topic, found)

    def _forget_all(self, history: PartitionHistory) -> None:
        """Its topic is gone, and all that was promised with it."""
        self._forget_from(history, 0)
        history.end = history.forgotten = history.told = 0
        history.start = history.high_watermark = history.log_end = history.durable = 0
        if history.may_start != FOREVER:
            history.may_start = 0

    def _look_at(self, history: PartitionHistory, log: Log) -> None:
        start, high_watermark, end = log.log_start_offset, log.high_watermark, log.log_end_offset
        state = f"{history}: log start {start}, high watermark {high_watermark}, end {end}"
        before = f"they were {history.start}, {history.high_watermark}, {history.log_end}"
        if not start <= high_watermark <= end:
            raise self.world.broken(f"{state}: out of order")
        if start < history.start or high_watermark < history.high_watermark or end < history.log_end:
            raise self.world.broken(f"{state}: {before}")
        if end < history.end:
            raise self.world.broken(f"{state}: record {history.end - 1} was acknowledged or read")
        history.forgotten = max(history.forgotten, start)
        if start > history.may_start:
            raise self.world.broken(f"{state}: nobody asked for more than {history.may_start} to be forgotten")
        if log.recovery_point > end:
            raise self.world.broken(f"{state}: durable up to {log.recovery_point}")
        history.start, history.high_watermark, history.log_end = start, high_watermark, end
        history.durable = log.recovery_point

    def _park(self, machine: Machine, request: Request) -> None:
        waiting = request.waiting
        now_ms = self.world.now_ms
        deadline_ms = now_ms + LATER_LIMIT_MS if waiting is None else max(waiting.deadline_ms, now_ms)
        assert machine.core is not None
        self._parked += 1
        heappush(self._due, (deadline_ms, self._parked, request, machine.core, machine))

    # ---- ends and beginnings of processes

    def _went_down(self, machine: Machine, power_loss: bool) -> None:
        self.look_once(machine)
        if power_loss:
            self.losses += 1
            self.groups.lost_power()
            for history in self.partitions.values():
                promised = max(history.durable, history.told) if history.flushed_first else history.durable
                history.end = min(history.end, promised)

    def look_once(self, machine: Machine) -> None:
        """Take note of where its logs end now: a process may die in the middle of an event."""
        core = machine.core
        assert core is not None
        for where, log in core.broker.logs.logs():
            self.history(where).durable = min(log.recovery_point, log.log_end_offset)

    def _came_up(self, machine: Machine) -> None:
        assert machine.core is not None
        there: dict[Where, Log] = dict(machine.core.broker.logs.logs())
        for where, log in there.items():
            history = self.history(where)
            if self._is_strange(machine, history):
                history.stranger = log
                self._vanished(history)
                continue
            if self._forget_if_over(history):
                history.may_start = max(history.may_start, log.log_start_offset)
            self.compare(history, log)
            history.log = log
        may_be_offline = not all(directory.online for directory in machine.broker.logs.directories)
        for where, history in self.partitions.items():
            if where not in there:
                self._vanished(history, may_be_offline=may_be_offline)

    def _vanished(self, history: PartitionHistory, *, may_be_offline: bool = False) -> None:
        """A partition is not there after a start: a power cut before its first fsync may do that, or a dead disk."""
        history.log = None
        self._forget_if_over(history)
        if may_be_offline:
            return
        if history.end:
            raise self.world.broken(f"{history}: is gone, up to {history.end} was promised")
        self._forget_all(history)

    def _forget_from(self, history: PartitionHistory, end: int) -> None:
        """A power cut took everything from here on."""
        for offset in [each for each in history.known if each >= end]:
            self._places[history.known.pop(offset)].remove((history.where, offset))
        for offset in [each for each in history.batches if each >= end]:
            del history.batches[offset]

    def compare(self, history: PartitionHistory, log: Log) -> None:
        """Read a whole log, and hold it against what is known: after every start, and at the end."""
        end = log.log_end_offset
        if end < history.end:
            raise self.world.broken(f"{history}: ends at {end}, {history.end} was promised")
        self._forget_from(history, end)
        history.start = min(history.start, log.log_start_offset)  # the log start checkpoint may be older
        history.high_watermark = history.log_end = 0
        self._look_at(history, log)
        offset = log.log_start_offset
        while offset < end:
            fetched = log.read(offset, SCAN_BYTES, end)
            assert fetched.region is not None, (history, offset)
            offset = self._compare_batches(history, log.log_start_offset, memoryview(fetched.region.read()), offset)
        history.end = max(history.end, end)

    def _compare_batches(self, history: PartitionHistory, start: int, data: memoryview, expected: int) -> int:
        """Batches as they are on the disk; those seen before by their checksums. Returns: the offset behind them."""
        for position, header in scan(whole_batches(data)):
            check(data, position, len(data))
            base_offset, last_offset, checksum = header[0], header[0] + header[6], header[4]
            follows = base_offset == expected or expected == start <= last_offset
            if not follows and not expected < base_offset <= history.forgotten:
                raise self.world.broken(f"{history}: {expected} should follow, there is {BatchHeader(*header)}")
            expected = last_offset + 1
            if history.batches.get(base_offset) == checksum or history.is_internal or BatchHeader(*header).is_control:
                continue
            for record in parse_records(data, position, header):
                if record.offset >= start:
                    self._place(history, record.offset, bytes(record.value or b""))
            history.batches[base_offset] = checksum
        return expected


def whole_batches(data: memoryview) -> memoryview:
    """Record bytes without a last batch that is cut short."""
    position, end = 0, len(data)
    while position + 12 <= end:
        after = position + 12 + _LENGTH.unpack_from(data, position + 8)[0]
        if after > end:
            break
        position = after
    return data[:position]
