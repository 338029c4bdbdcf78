"""What must hold in a simulated world, looked at after every event, and the history that says what happened.

Clients tell what they were promised (an acknowledged batch, a record they read, an assignment, a committed offset);
machines are looked at directly. What a partition was promised (`Promise`) is kept apart from what each machine holds of
it (`Held`). A breach raises `Broken`. What is checked:

- an acknowledged or once read record stays at its offset, byte for byte, and no offset carries two records;
- after a power cut a log keeps a prefix of what it had, at least up to what it called durable, and, with
  flush.messages=1, all that clients were told of;
- a record of an idempotent producer is there once, any other at most as often as it was sent;
- log start <= high watermark <= log end, and none goes back while the broker runs; nothing is forgotten unasked;
- a reader gets offsets without a gap, below the high watermark;
- a topic that was made again begins empty, and only if a client asked for the deletion of the one before;
- in one controller epoch one machine is controller;
- a partition of one replica has its log on one machine, and no topic that is gone gets a log again;
- assignments of one generation of a group never overlap; committed offsets are those last committed;
- a parked answer leaves by its deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heappop, heappush
from struct import Struct
from typing import TYPE_CHECKING

from kbroker.api.coordinator_ready import AwaitShard
from kbroker.channel import Unbegun
from kbroker.core import FETCH
from kbroker.sim.catalogue import Catalogue
from kbroker.sim.commits import GroupHistory
from protocol.records.batch import BASE_OFFSET, CRC, BatchHeader, check, last_offset_of, scan
from protocol.records.content import parse_records

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.channel import Request
    from kbroker.core import Core
    from kbroker.log.log import Log
    from kbroker.sim.machine import Machine
    from kbroker.sim.world import World
    from protocol.records import Record

Where = tuple[str, int]

Moment = tuple[int, int]
"""What had happened when a client asked: power cuts, and ends and beginnings of topics."""

LATER_LIMIT_MS = 60_000
"""By when an answer must have left that waits for another part of the broker, not for a deadline of its own."""
BATCHES_SINCE = 4  # of Fetch: answers to older ones carry message sets, converted on the pool

FOREVER = 1 << 62
SCAN_BYTES = 1 << 20
_LENGTH = Struct(">i")


class Promise:
    """What clients were told of one partition, wherever it is.

    known: value by offset, of records that were acknowledged or seen. end: behind the last of them. may_start: how far
    the log start may have moved: DeleteRecords or retention. told: behind the last record that a client knows of; a
    power cut must leave these if they are flushed before a client is told. holder: who has its one replica. lost_at:
    how many power cuts there had been, with the last one of a machine that holds it.
    """

    __slots__ = (
        "batches",
        "end",
        "era",
        "flushed_first",
        "forgotten",
        "holder",
        "known",
        "lost_at",
        "may_start",
        "told",
        "where",
    )

    def __init__(self, where: Where) -> None:
        self.where = where
        self.known: dict[int, bytes] = {}
        self.batches: dict[int, int] = {}  # checksum by base offset, of batches whose records have been read
        self.end = 0
        self.era = 0  # of its topic, in which this partition was made
        self.may_start = 0
        self.forgotten = 0  # the largest log start there ever was: below, a power cut may bring back some of it
        self.told = 0
        self.flushed_first = False
        self.holder: Machine | None = None
        self.lost_at = 0

    def __repr__(self) -> str:
        return f"{self.where[0]}-{self.where[1]}"

    @property
    def is_internal(self) -> bool:
        """Whether the broker itself writes it, not our producers."""
        return self.where[0].startswith("__")


class Held:
    """What one machine holds of a partition, as last seen. durable: what a power cut there must leave."""

    __slots__ = ("durable", "high_watermark", "log", "log_end", "machine", "promise", "start", "stranger")

    def __init__(self, promise: Promise, machine: Machine) -> None:
        self.promise = promise
        self.machine = machine
        self.log: Log | None = None  # while the broker runs
        self.stranger: Log | None = None  # an earlier topic's of the name, found after a start
        self.start = self.high_watermark = self.log_end = self.durable = 0

    def __repr__(self) -> str:
        return f"{self.promise} on {self.machine}"

    def clear(self) -> None:
        """It holds nothing any more."""
        self.start = self.high_watermark = self.log_end = self.durable = 0


def _is_led_or_followed(broker: Broker, where: Where, log: Log) -> bool:
    """Whether a broker uses a log that looked like another topic's: it was made just before its process was killed."""
    partition = broker.replicas.partitions.get(where)
    return partition is not None and partition.log is log


class Checks:
    """The judge of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.partitions: dict[Where, Promise] = {}
        self.losses = 0  # power cuts: what clients took for safe may be gone
        self.acknowledged = 0  # records
        self.read = 0  # records
        self.groups = GroupHistory(world)
        self.catalogue = Catalogue(world, self.groups)
        self._held: dict[Machine, dict[Where, Held]] = {}
        self._controllers: dict[int, Machine] = {}  # by controller epoch
        self._producer_ids: set[tuple[int, int]] = set()
        self._next_producer_id = 1000
        self._sent: dict[bytes, int] = {}  # how often each value was sent; idempotent ones count once
        self._places: dict[bytes, list[tuple[Where, int]]] = {}
        self._due: list[tuple[int, int, Request, Core, Machine]] = []
        self._parked = 0

    def watch(self, machine: Machine) -> None:
        """Look at a machine from now on."""
        self._held[machine] = {}
        machine.on_parked = lambda request: self._park(machine, request)
        machine.on_down = self._went_down
        machine.on_up = self._came_up

    def promise(self, where: Where) -> Promise:
        """What is known of a partition."""
        found = self.partitions.get(where)
        if found is None:
            found = self.partitions[where] = Promise(where)
        return found

    def held(self, where: Where) -> Held | None:
        """What the machine that has a partition holds of it; None if none has."""
        holder = self.promise(where).holder
        return None if holder is None else self._held[holder].get(where)

    def log_end(self, where: Where) -> int:
        """Where a partition ends, as last seen."""
        held = self.held(where)
        return 0 if held is None else held.log_end

    def _hold(self, machine: Machine, where: Where) -> Held:
        held = self._held[machine].get(where)
        if held is None:
            held = self._held[machine][where] = Held(self.promise(where), machine)
        return held

    # ---- told by clients

    def sent(self, values: Collection[bytes], *, idempotent: bool) -> None:
        """These are on their way to a log, perhaps again."""
        for value in values:
            self._sent[value] = 1 if idempotent else self._sent.get(value, 0) + 1

    def appended(self, where: Where, base_offset: int, values: Sequence[bytes], moment: Moment) -> None:
        """A producer was told that its records are at these offsets. moment: when it asked."""
        promise = self.promise(where)
        self.acknowledged += len(values)
        if not self.is_since(moment, where):
            return  # answered before a power cut, heard after it
        for offset, value in enumerate(values, base_offset):
            self._place(promise, offset, value)
        promise.told = max(promise.told, base_offset + len(values))

    def fetched(
        self, where: Where, position: int, high_watermark: int, records: Sequence[Record], moment: Moment
    ) -> None:
        """A consumer has read from `position` on. records: those at or behind it. moment: when it asked."""
        promise = self.promise(where)
        self.read += len(records)
        expected = position
        is_since = self.is_since(moment, where)
        for record in records:
            jumps = record.offset != expected and not self.may_skip(promise, expected, record.offset)
            if jumps and is_since:
                raise self.world.broken(f"{promise}: a reader at {expected} gets {record.offset}")
            if record.offset >= high_watermark:
                raise self.world.broken(f"{promise}: {record.offset} is read, the high watermark is {high_watermark}")
            expected = record.offset + 1
        if is_since:
            for record in records:
                self._place(promise, record.offset, bytes(record.value or b""))
            promise.told = max(promise.told, expected)

    def may_skip(self, promise: Promise, expected: int, offset: int) -> bool:
        """Whether what comes next in a log, or to its reader, may begin behind the offset that should follow."""
        return expected < offset <= promise.forgotten

    def may_forget(self, where: Where, before: int) -> None:
        """A client has asked for records below an offset to be deleted, or retention may do so (FOREVER)."""
        promise = self.promise(where)
        promise.may_start = max(promise.may_start, before)

    def _place(self, promise: Promise, offset: int, value: bytes) -> None:
        known = promise.known.get(offset)
        if known is not None:
            if known != value:
                raise self.world.broken(f"{promise}: offset {offset} is {known!r}, and now {value!r}")
            return
        if value not in self._sent:
            raise self.world.broken(f"{promise}: {value!r} at {offset} was never sent")
        places = self._places.setdefault(value, [])
        places.append((promise.where, offset))
        if len(places) > self._sent[value]:
            raise self.world.broken(f"{value!r} was sent {self._sent[value]} times and is at {places}")
        promise.known[offset] = value
        promise.end = max(promise.end, offset + 1)

    @property
    def moment(self) -> Moment:
        """Now, for `is_since`."""
        return self.losses, self.catalogue.changes

    def is_since(self, moment: Moment, where: Where) -> bool:
        """Whether nothing was lost of a partition since a moment: neither power where it is, nor its topic."""
        return moment[0] >= self.promise(where).lost_at and self.catalogue.is_same(where[0], moment[1])

    def may_be_outdated(self, machine: Machine, where: Where) -> bool:
        """Whether a machine may have answered as a leader without knowing that it is none any more."""
        return False

    def is_same_topic(self, moment: Moment, topic: str) -> bool:
        """Whether neither power was lost anywhere since a moment, nor a topic of this name has ended."""
        return moment[0] == self.losses and self.catalogue.is_same(topic, moment[1])

    def next_producer_id(self) -> int:
        """An id for a producer where no broker hands them out."""
        self._next_producer_id += 1
        return self._next_producer_id

    def gave_producer_id(self, producer_id: int, epoch: int) -> None:
        """A broker handed out an id: no other producer has it."""
        if (producer_id, epoch) in self._producer_ids:
            raise self.world.broken(f"producer id {producer_id} was handed out twice")
        self._producer_ids.add((producer_id, epoch))

    # ---- seen on machines

    def check(self) -> None:
        """After every event: what can be seen at once, on the machines that did something."""
        for machine, mine in self._held.items():
            if not machine.up or not machine.moved:
                continue
            machine.moved = False
            epoch = machine.broker.store_plane.controller.epoch
            if epoch is not None and self._controllers.setdefault(epoch.context.epoch, machine) is not machine:
                raise self.world.broken(
                    f"{machine} is controller in the epoch of {self._controllers[epoch.context.epoch]}"
                )
            for where, log in machine.broker.logs.logs():
                held = mine.get(where) or self._hold(machine, where)
                if held.log is not log:
                    if held.stranger is log and not _is_led_or_followed(machine.broker, where, log):
                        continue  # until the controller's first request; no client can connect before
                    self._begins(held, log)
                if (
                    log.log_end_offset != held.log_end
                    or log.high_watermark != held.high_watermark
                    or log.log_start_offset != held.start
                    or log.recovery_point != held.durable
                ):
                    self._look_at(held, log)
        due = self._due
        while due and due[0][0] < self.world.now_ms:
            deadline_ms, _, request, core, machine = heappop(due)
            if machine.core is core and request.answer is None and request in request.channel.pending:
                raise self.world.broken(f"{request!r} was to be answered by {deadline_ms / 1000:.3f} s")

    def _begins(self, held: Held, log: Log) -> None:
        """There is a log that was not there at the last look: a new partition's, perhaps in another's place."""
        promise, machine = held.promise, held.machine
        topic, catalogue = promise.where[0], self.catalogue
        topic_id = machine.broker.replicas.partitions[promise.where].topic_id
        if catalogue.is_gone(topic, topic_id):
            raise self.world.broken(f"{held}: gets a log, and is of a topic that was deleted")
        was_there = held.log is not None
        era = catalogue.era(topic)
        if not catalogue.is_being_deleted(topic) or catalogue.is_another(topic, topic_id):
            era = catalogue.begins(topic, topic_id)
            if promise.era == era and (was_there or promise.holder not in (None, machine)):
                raise self.world.broken(
                    f"{held}: a log of {promise.holder} was replaced, and no client asked for its deletion"
                )
        # else a deleted topic's: one that it could not get earlier, or gets again from a controller that has just begun
        if was_there or promise.era != era:
            self._forget_all(held)
        if log.log_end_offset or log.log_start_offset:
            raise self.world.broken(f"{held}: is new, and goes from {log.log_start_offset} to {log.log_end_offset}")
        held.log, promise.era, promise.holder = log, era, machine

    def _forget_if_over(self, held: Held) -> bool:
        """After a start, it is impossible to tell a deleted topic's log from that of the next one of its name."""
        promise = held.promise
        era = self.catalogue.era(promise.where[0])
        is_over = promise.era != era or self.catalogue.is_being_deleted(promise.where[0])
        if is_over:
            self._forget_all(held)
            promise.era = era
        return is_over

    def _is_strange(self, held: Held) -> bool:
        """Whether the log that a broker found under a name is of a topic that was deleted: a power cut undid that."""
        topic, index = held.promise.where
        if not self.catalogue.was_deleted(topic) or self.catalogue.is_being_deleted(topic):
            return False
        machine = held.machine
        fault, machine.disk.fault = machine.disk.fault, None
        found = machine.broker.logs.topic_id(topic, index)
        machine.disk.fault = fault
        return found is not None and self.catalogue.is_of_the_past(topic, found)

    def _forget_all(self, held: Held) -> None:
        """Its topic is gone, and all that was promised with it."""
        promise = held.promise
        self._forget_from(promise, 0)
        promise.end = promise.forgotten = promise.told = 0
        promise.holder = None
        held.clear()
        if promise.may_start != FOREVER:
            promise.may_start = 0

    def _look_at(self, held: Held, log: Log) -> None:
        promise = held.promise
        start, high_watermark, end = log.log_start_offset, log.high_watermark, log.log_end_offset
        state = f"{held}: log start {start}, high watermark {high_watermark}, end {end}"
        before = f"they were {held.start}, {held.high_watermark}, {held.log_end}"
        if not start <= high_watermark <= end:
            raise self.world.broken(f"{state}: out of order")
        if start < held.start or high_watermark < held.high_watermark or end < held.log_end:
            raise self.world.broken(f"{state}: {before}")
        if log.recovery_point > end:
            raise self.world.broken(f"{state}: durable up to {log.recovery_point}")
        if promise.holder is held.machine:
            if end < promise.end:
                raise self.world.broken(f"{state}: record {promise.end - 1} was acknowledged or read")
            promise.forgotten = max(promise.forgotten, start)
            if start > promise.may_start:
                raise self.world.broken(f"{state}: no client asked for more than {promise.may_start} to be forgotten")
        held.start, held.high_watermark, held.log_end = start, high_watermark, end
        held.durable = log.recovery_point

    def _park(self, machine: Machine, request: Request) -> None:
        waiting = request.waiting
        now_ms = self.world.now_ms
        if waiting is None or isinstance(waiting, Unbegun):
            deadline_ms = now_ms + LATER_LIMIT_MS
        else:
            deadline_ms = max(waiting.deadline_ms, now_ms)
            if request.route.api == FETCH and request.version < BATCHES_SINCE:
                deadline_ms += LATER_LIMIT_MS  # what was found by then is converted, on the pool
            elif isinstance(waiting, AwaitShard):
                deadline_ms += LATER_LIMIT_MS  # a JoinGroup waits for the other members after it
        assert machine.core is not None
        self._parked += 1
        heappush(self._due, (deadline_ms, self._parked, request, machine.core, machine))

    # ---- ends and beginnings of processes

    def _went_down(self, machine: Machine, power_loss: bool) -> None:
        self.look_once(machine)
        if power_loss:
            self.losses += 1
            self.groups.lost_power()
            for held in self._held[machine].values():
                promise = held.promise
                if promise.holder is machine:
                    promised = max(held.durable, promise.told) if promise.flushed_first else held.durable
                    promise.end = min(promise.end, promised)
                    promise.lost_at = self.losses

    def look_once(self, machine: Machine) -> None:
        """Take note of where its logs end now: a process may die in the middle of an event."""
        for where, log in machine.broker.logs.logs():
            self._hold(machine, where).durable = min(log.recovery_point, log.log_end_offset)

    def _came_up(self, machine: Machine) -> None:
        there: dict[Where, Log] = dict(machine.broker.logs.logs())
        for where, log in there.items():
            held = self._hold(machine, where)
            promise = held.promise
            if self._is_strange(held) or promise.holder not in (None, machine):
                held.stranger = log
                self._vanished(held)
                continue
            if self._forget_if_over(held):
                promise.may_start = max(promise.may_start, log.log_start_offset)
            promise.holder = machine
            self.compare(held, log)
            held.log = log
        may_be_offline = not all(directory.online for directory in machine.broker.logs.directories)
        for where, held in self._held[machine].items():
            if where not in there:
                self._vanished(held, may_be_offline=may_be_offline)

    def _vanished(self, held: Held, *, may_be_offline: bool = False) -> None:
        """A partition is not there after a start: a power cut before its first fsync may do that, or a dead disk."""
        promise = held.promise
        held.log = None
        if promise.holder not in (None, held.machine):
            held.clear()  # its topic is gone, and the next one of the name is elsewhere
            return
        self._forget_if_over(held)
        if may_be_offline:
            return
        if promise.end:
            raise self.world.broken(f"{held}: is gone, up to {promise.end} was promised")
        self._forget_all(held)

    def _forget_from(self, promise: Promise, end: int) -> None:
        """A power cut took everything from here on."""
        for offset in [each for each in promise.known if each >= end]:
            self._places[promise.known.pop(offset)].remove((promise.where, offset))
        for offset in [each for each in promise.batches if each >= end]:
            del promise.batches[offset]

    def compare(self, held: Held, log: Log) -> None:
        """Read a whole log, and hold it against what is known: after every start, and at the end."""
        promise, end = held.promise, log.log_end_offset
        if end < promise.end:
            raise self.world.broken(f"{held}: ends at {end}, {promise.end} was promised")
        self._forget_from(promise, end)
        held.start = min(held.start, log.log_start_offset)  # the log start checkpoint may be older
        held.high_watermark = held.log_end = 0
        self._look_at(held, log)
        offset = log.log_start_offset
        while offset < end:
            fetched = log.read(offset, SCAN_BYTES, end)
            assert fetched.region is not None, (held, offset)
            offset = self._compare_batches(promise, log.log_start_offset, memoryview(fetched.region.read()), offset)
        promise.end = max(promise.end, end)

    def _compare_batches(self, promise: Promise, start: int, data: memoryview, expected: int) -> int:
        """Batches as they are on the disk; those seen before by their checksums. Returns: the offset behind them."""
        for position, header in scan(whole_batches(data)):
            check(data, position, len(data))
            base_offset, last_offset, checksum = header[BASE_OFFSET], last_offset_of(header), header[CRC]
            follows = base_offset == expected or expected == start <= last_offset
            if not follows and not self.may_skip(promise, expected, base_offset):
                raise self.world.broken(f"{promise}: {expected} should follow, there is {BatchHeader(*header)}")
            expected = last_offset + 1
            if promise.batches.get(base_offset) == checksum or promise.is_internal or BatchHeader(*header).is_control:
                continue
            for record in parse_records(data, position, header):
                if record.offset >= start:
                    self._place(promise, record.offset, bytes(record.value or b""))
            promise.batches[base_offset] = checksum
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
