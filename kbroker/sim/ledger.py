"""What transactions were promised, in a simulated world: part of `checks.py` for who writes and reads in transactions.

A transaction is OPEN until its producer asks for an end; if the answer to a commit is lost it is in doubt, until
a reader sees one of its records as committed, or skips one as aborted. From then on all of it must be so, everywhere:

- a reader of committed records never gets a record whose producer did not ask for a commit, or that is aborted;
- what was acknowledged as committed is never skipped, and in the end every reader has had all of it;
- an input is counted by exactly one committed transaction;
- a partition's last stable offset is where its first open transaction begins, no later and no earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import TYPE_CHECKING

from protocol.records.batch import BatchHeader, scan
from protocol.records.content import parse_records
from protocol.records.control_records import ControlType, parse_marker

if TYPE_CHECKING:
    from kbroker.log.log import Log
    from kbroker.sim.checks import Where
    from kbroker.sim.world import World

SCAN_BYTES = 1 << 20


class Fate(Enum):
    """How a transaction stands, as far as its producer and its readers know."""

    OPEN = "no commit was asked for"
    IN_DOUBT = "a commit was asked for"
    COMMITTED = "it is committed"
    ABORTED = "it is aborted"


class Deed:
    """One transaction. values: its records, and the partition of each. inputs: what it counts."""

    __slots__ = ("fate", "inputs", "name", "values")

    def __init__(self, name: str) -> None:
        self.name = name
        self.fate = Fate.OPEN
        self.values: dict[bytes, Where] = {}
        self.inputs: list[tuple[Where, int]] = []

    def __repr__(self) -> str:
        return self.name


class Ledger:
    """All transactions of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = 0
        self.aborted = 0
        self.counted: dict[tuple[Where, int], Deed] = {}  # inputs
        self._deeds: list[Deed] = []
        self._by_value: dict[bytes, Deed] = {}

    # ---- told by producers

    def begin_transaction(self, name: str) -> Deed:
        """A producer begins a transaction."""
        deed = Deed(name)
        self._deeds.append(deed)
        return deed

    def writes(self, deed: Deed, where: Where, values: Iterable[bytes]) -> None:
        """Records of a transaction are on their way."""
        for value in values:
            assert value not in self._by_value, value
            self._by_value[value] = deed
            deed.values[value] = where

    def asks(self, deed: Deed, *, commit: bool) -> None:
        """Its end is asked for."""
        if commit and deed.fate is Fate.OPEN:
            deed.fate = Fate.IN_DOUBT

    def ended(self, deed: Deed, *, commit: bool) -> None:
        """Its end was acknowledged."""
        self._settle(deed, Fate.COMMITTED if commit else Fate.ABORTED, "its producer is told so")

    # ---- told by readers

    def read(self, reader: object, where: Where, offset: int, value: bytes) -> None:
        """A reader got a record as a committed one."""
        deed = self._of(value)
        if deed.fate is Fate.OPEN:
            raise self.world.broken(
                f"{reader} reads {value!r} at {offset} of {where}: no client asked for {deed}'s commit"
            )
        self._settle(deed, Fate.COMMITTED, f"{reader} reads {value!r} at {offset} of {where}")

    def skipped(self, reader: object, where: Where, offset: int, value: bytes) -> None:
        """A reader was told to pass over a record, as an aborted one."""
        self._settle(self._of(value), Fate.ABORTED, f"{reader} skips {value!r} at {offset} of {where}")

    def _of(self, value: bytes) -> Deed:
        deed = self._by_value.get(value)
        if deed is None:
            raise self.world.broken(f"{value!r} was never written in a transaction")
        return deed

    def _settle(self, deed: Deed, fate: Fate, why: str) -> None:
        if deed.fate is fate:
            return
        if deed.fate in (Fate.COMMITTED, Fate.ABORTED):
            raise self.world.broken(f"{deed} is {deed.fate.name}, and {why}")
        deed.fate = fate
        if fate is Fate.ABORTED:
            self.aborted += 1
            return
        self.committed += 1
        for each in deed.inputs:
            other = self.counted.setdefault(each, deed)
            if other is not deed:
                raise self.world.broken(f"{each} is counted by {other} and by {deed}")

    # ---- at the end

    def check_read(self, reader: object, seen: Collection[bytes], topics: Collection[str]) -> None:
        """A reader that has read some topics to their end has had all that was committed there."""
        for deed in self._deeds:
            for value, where in deed.values.items():
                if where[0] in topics and deed.fate is Fate.COMMITTED and value not in seen:
                    raise self.world.broken(f"{reader} has not read {value!r} of {where}, and {deed} is committed")


def stable_end(log: Log) -> int:
    """The last stable offset that a log should have, from its batches alone: a second opinion."""
    return stable_ends(log, 0)[0]


def stable_ends(log: Log, opened_at: int) -> tuple[int, int]:
    """The same; and what it may be instead, where the log ended at `opened_at` when its broker started.

    A marker below that which the high watermark has still to pass is not waited for: producers' snapshots, Kafka's too,
    do not tell of it. A leader that lacks it gets the same one.
    """
    high_watermark = log.high_watermark
    open_from: dict[int, int] = {}
    ended: list[tuple[int, int]] = []  # where a transaction begins, and its marker
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        fetched = log.read(offset, SCAN_BYTES, end)
        assert fetched.region is not None, (log, offset)
        data = memoryview(fetched.region.read())
        for position, found in scan(data):
            header = BatchHeader(*found)
            offset = header.last_offset + 1
            if header.is_control:
                marker = parse_marker(parse_records(data, position, header)[0])
                assert marker.control_type in (ControlType.COMMIT, ControlType.ABORT), marker
                first = open_from.pop(header.producer_id, None)
                if first is not None:
                    ended.append((first, header.last_offset))
            elif header.is_transactional:
                open_from.setdefault(header.producer_id, header.base_offset)

    def stable_if(waits_from: int) -> int:
        waiting = (first for first, marked_at in ended if marked_at >= waits_from)
        return min([high_watermark, *open_from.values(), *waiting])

    return stable_if(high_watermark), stable_if(max(high_watermark, opened_at))
