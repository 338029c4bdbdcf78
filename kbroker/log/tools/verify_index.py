"""Whether an index is true to its log, entry by entry, as the batches of the log pass by.

Called by verify_partition. Pure: bytes and batches in, faults out; each fault comes with the number of the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from struct import Struct

from kbroker.log.tools.walk import Batch

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")

Entries = list[tuple[int, int]]
Faults = list[tuple[str, str]]
"""Where, and what."""


def parse_offset_index(content: bytes, base_offset: int, may_be_laid_out: bool) -> tuple[Entries, Faults]:
    """(offset, position) of each entry, and what is wrong without a look at the log.

    may_be_laid_out: whether unused zeros may follow the entries, as in a segment that is being written to.
    """
    rows, faults = _rows(content, _OFFSET_ENTRY, may_be_laid_out)
    entries = [(base_offset + relative, position) for relative, position in rows]
    for at, (before, after) in enumerate(pairwise(entries), start=1):
        if after[0] <= before[0]:
            faults.append((f"entry {at}", f"offset {after[0]} follows {before[0]}"))
        if after[1] <= before[1]:
            faults.append((f"entry {at}", f"position {after[1]} follows {before[1]}"))
    return entries, faults


def parse_time_index(content: bytes, base_offset: int, may_be_laid_out: bool) -> tuple[Entries, Faults]:
    """(timestamp, offset) of each entry, and what is wrong without a look at the log. As `parse_offset_index`."""
    rows, faults = _rows(content, _TIME_ENTRY, may_be_laid_out)
    entries = [(timestamp, base_offset + relative) for timestamp, relative in rows]
    for at, (before, after) in enumerate(pairwise(entries), start=1):
        if after[0] <= before[0]:
            faults.append((f"entry {at}", f"timestamp {after[0]} follows {before[0]}"))
        if after[1] < before[1]:
            faults.append((f"entry {at}", f"offset {after[1]} follows {before[1]}"))
    return entries, faults


def _rows(content: bytes, entry: Struct, may_be_laid_out: bool) -> tuple[list[tuple[int, int]], Faults]:
    faults: Faults = []
    if surplus := len(content) % entry.size:
        faults.append((f"position {len(content) - surplus}", f"{surplus} bytes that are no whole entry"))
    used = len(content.rstrip(b"\0"))
    count = (used + entry.size - 1) // entry.size
    whole = len(content) // entry.size
    if whole > count and not (may_be_laid_out or (whole == 1 and not used)):
        faults.append((f"entry {count}", f"{whole - count} entries of zeros"))
    count = min(count, whole)
    return list(entry.iter_unpack(content[: count * entry.size])), faults


class OffsetIndexCheck:
    """The entries of an offset index against the batches of its log.

    An entry speaks of an append: its position is that of the first batch, its offset the last of all its batches.
    """

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._at = 0
        self._open: list[int] = []  # entries whose position has passed, but not their offset

    def batch(self, batch: Batch) -> Iterator[tuple[int, str]]:
        """A batch passes; the entries that are not true to it."""
        entries, header = self._entries, batch.header
        while self._at < len(entries) and entries[self._at][1] <= batch.position:
            offset, position = entries[self._at]
            if position < batch.position:
                yield self._at, f"position {position} lies within a batch"
            elif offset < header.base_offset:
                yield self._at, f"offset {offset} lies before the batch at position {position}"
            else:
                self._open.append(self._at)
            self._at += 1
        for at in self._open[:]:
            offset = entries[at][0]
            if header.last_offset >= offset:
                self._open.remove(at)
                if header.last_offset > offset:
                    yield at, f"offset {offset} lies within the batch that ends with {header.last_offset}"

    def rest(self) -> Iterator[tuple[int, str]]:
        """The log has ended; the entries that speak of more."""
        for at in (*self._open, *range(self._at, len(self._entries))):
            offset, position = self._entries[at]
            yield at, f"offset {offset} at position {position} lies behind the log's last batch"


class TimeIndexCheck:
    """The entries of a time index against the batches of its log."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._at = 0
        self._largest = -1  # timestamp so far

    def batch(self, batch: Batch) -> Iterator[tuple[int, str]]:
        """A batch passes; the entries that are not true to it."""
        header = batch.header
        before, self._largest = self._largest, max(self._largest, header.max_timestamp)
        while self._at < len(self._entries) and self._entries[self._at][1] <= header.last_offset:
            timestamp, offset = self._entries[self._at]
            if offset < header.base_offset and header.magic == 2:
                yield self._at, f"offset {offset} is in no batch"
            elif timestamp != header.max_timestamp:
                yield self._at, f"timestamp {timestamp}, the batch of offset {offset} has {header.max_timestamp}"
            elif before > timestamp:
                yield self._at, f"timestamp {timestamp}, but offsets below {offset} go up to {before}"
            self._at += 1

    def rest(self) -> Iterator[tuple[int, str]]:
        """The log has ended; the entries that speak of more."""
        for at in range(self._at, len(self._entries)):
            yield at, f"offset {self._entries[at][1]} lies behind the log's last batch"
