"""A model for the explorer (explorer.py): the records of one share-partition (KIP-932), its members, and its writes.

Members acquire records, one at a time, and accept, release or reject them, in any order. Locks run out. Members go.
What is to be written is under way until it is written or cannot be; another broker may take over in between, and knows
what was written alone: whether that includes what is under way is open.

What must hold: a record that was accepted, and of which that was written, is never given out again; none is given out
more often than the limit says; and none is over that was neither accepted nor rejected nor given out so often.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import deepcopy
from typing import TypeAlias

from kbroker.share.in_flight import ACKNOWLEDGED, ACQUIRED, TERMINAL, RecordState
from kbroker.share.share_partition import Acknowledgement, Change, Limits, LogBatch, SharePartition, StateBatch
from protocol.namedtuple import NamedTuple

ACCEPT, RELEASE, REJECT = 1, 2, 3
LOCK_MS = 1
"""Locks are taken at time 0, and have run out at this: no more of a clock is needed."""


class Written(NamedTuple):
    """What is stored of a record, and what became of it. given: how often the leader gave it out, as that knows."""

    state: int = -1
    deliveries: int = 0
    given: int = 0
    is_accepted: bool = False
    is_rejected: bool = False


class RecordWorld(NamedTuple):
    """writes: those under way, in order. records: by offset."""

    partition: SharePartition
    writes: tuple[Change, ...]
    records: tuple[Written, ...]


class Fetches(NamedTuple):
    """A member asks for a record."""

    member: str


class Says(NamedTuple):
    """A member says what came of a record that it has."""

    member: str
    offset: int
    kind: int


class Goes(NamedTuple):
    """A member is gone."""

    member: str


class Expires(NamedTuple):
    """The time of all locks is up."""


class IsWritten(NamedTuple):
    """The oldest write has ended. is_late: locks have run out meanwhile."""

    is_written: bool
    is_late: bool = False


class TakesOver(NamedTuple):
    """Another broker leads. has_all: what was under way had been written."""

    has_all: bool


RecordEvent: TypeAlias = Fetches | Says | Goes | Expires | IsWritten | TakesOver


class RecordModel:
    """writes: how many are under way at most."""

    def __init__(self, *, members: int = 2, records: int = 2, deliveries: int = 2, writes: int = 1) -> None:
        self._members = [f"m{number}" for number in range(members)]
        self._records = records
        self._limits = Limits(record_locks=200, deliveries=deliveries, lock_duration_ms=LOCK_MS)
        self._writes = writes

    def begins(self) -> list[RecordWorld]:
        """Nothing was given out."""
        return [RecordWorld(self._load((Written(),) * self._records), (), (Written(),) * self._records)]

    def _load(self, records: tuple[Written, ...]) -> SharePartition:
        """As a broker that takes over has it."""
        stored = [(offset, each) for offset, each in enumerate(records) if each.state >= 0]
        batches = [StateBatch(offset, offset, each.state, each.deliveries) for offset, each in stored]
        return SharePartition(0, batches, self._limits)

    def events(self, state: RecordWorld) -> Iterator[RecordEvent]:
        """See the top of this file."""
        if state.writes:
            yield IsWritten(is_written=True)
            yield IsWritten(is_written=False)
            yield IsWritten(is_written=False, is_late=True)
        yield TakesOver(has_all=True)
        yield TakesOver(has_all=False)
        for member in self._members:
            yield Fetches(member)
        if len(state.writes) < self._writes:
            yield Expires()
            for member in self._members:
                yield Goes(member)
            for stretch in state.partition.stretches:
                if stretch.state is ACQUIRED and stretch.pending is None:
                    for offset in range(stretch.first, stretch.last + 1):
                        for kind in (ACCEPT, RELEASE, REJECT):
                            yield Says(stretch.member_id, offset, kind)

    def after(self, state: RecordWorld, event: RecordEvent) -> RecordWorld | None:
        """See Model."""
        partition, writes = deepcopy((state.partition, state.writes))
        records = list(state.records)
        change: Change | None = None
        if isinstance(event, TakesOver):
            if event.has_all:
                for each in writes:
                    _store(records, each)
            records = [each._replace(given=each.deliveries) for each in records]
            partition, writes = self._load(tuple(records)), ()
        elif isinstance(event, Fetches):
            self._fetch(partition, event.member, records)
        elif isinstance(event, Says):
            said = Acknowledgement(event.offset, event.offset, [event.kind])
            change = partition.acknowledge(event.member, [said], 0)
            if event.kind == REJECT:
                records[event.offset] = records[event.offset]._replace(is_rejected=True)
        elif isinstance(event, Goes):
            change = partition.release(event.member)
        elif isinstance(event, Expires):
            change = self._expire(partition)
        else:
            if event.is_written:
                _store(records, writes[0])
            self._end_write(partition, writes[0], event)
            writes = writes[1:]
        if change is not None and change.stretches:
            writes = (*writes, change)
        after = RecordWorld(partition, writes, tuple(records))
        return None if self.key(after) == self.key(state) else after

    def _fetch(self, partition: SharePartition, member: str, records: list[Written]) -> None:
        """One record, of those that can be acquired."""
        offset = partition.next_fetch_offset
        if offset < self._records:
            batches = [LogBatch(each, each) for each in range(offset, self._records)]
            found = partition.acquire(member, batches, offset, most=1, batch_size=1, exactly=True, now_ms=0)
            for each in found:
                for at in range(each.first, each.last + 1):
                    records[at] = records[at]._replace(given=records[at].given + 1)

    def _expire(self, partition: SharePartition) -> Change:
        """What a broker does. Tests put a fault in its place, as in the next."""
        return partition.expire(LOCK_MS)

    def _end_write(self, partition: SharePartition, change: Change, event: IsWritten) -> None:
        partition.written(change, LOCK_MS if event.is_late else 0, is_written=event.is_written)

    def key(self, state: RecordWorld) -> Hashable:
        """All of it; stretches and writes by what is in them."""
        partition = state.partition
        held = tuple(
            (each.first, each.last, each.state, each.count, each.member_id, each.deadline_ms, each.pending)
            for each in partition.stretches
        )
        writes = tuple(tuple(batch for _, batch in change.stretches) for change in state.writes)
        return partition.start_offset, partition.end_offset, held, writes, state.records

    def objection(self, before: RecordWorld, event: RecordEvent, after: RecordWorld) -> str | None:
        """See the top of this file."""
        for offset, (old, new) in enumerate(zip(before.records, after.records, strict=True)):
            if new.given > old.given and isinstance(event, Fetches):
                if old.is_accepted:
                    return f"record {offset} was accepted, and is given out again"
                if new.given > self._limits.deliveries:
                    return f"record {offset} is given out {new.given} times"
            is_explained = new.is_accepted or new.is_rejected or new.given >= self._limits.deliveries
            if not is_explained and _is_over(after.partition, offset):
                return f"record {offset} is lost: {new}"
        return None


def _is_over(partition: SharePartition, offset: int) -> bool:
    """Whether a record is over, as far as the broker knows, and not about to be accepted."""
    if offset < partition.start_offset:
        return True
    return any(each.first <= offset <= each.last and each.state in TERMINAL for each in partition.stretches)


def _store(records: list[Written], change: Change) -> None:
    """A change has been written."""
    for batch in change.batches:
        for offset in range(batch.first, batch.last + 1):
            accepted = records[offset].is_accepted or RecordState(batch.state) is ACKNOWLEDGED
            records[offset] = records[offset]._replace(
                state=batch.state, deliveries=batch.deliveries, is_accepted=accepted
            )
