"""The two indices of a segment: from offset to position, and from timestamp to offset.

Owns the `.index` and `.timeindex` files. Sparse: one entry each `index.interval.bytes` of log. Entries ascend strictly
in their first column. Called by the segment only; never reads the log itself, never checks that an entry is true to it.

    .index       0  4  offset of an append's last record, less the base offset of the segment
                 4  4  position in the .log file where that append starts
    .timeindex   0  8  largest timestamp so far, ms
                 8  4  last offset of the batch that has it, less the base offset

The newest entries wait in memory until a block of them is worth a write: readers of this process see them there, a
crash loses nothing that recovery would not rebuild anyway. A file being written to is lengthened to its full capacity
at once, so that one map of it stays good; trimming cuts it to what it holds. Lookups are binary searches of the map.

Source: Kafka documentation, implementation, "Log"; KIP-33 (time index).
"""

from __future__ import annotations

from struct import Struct

from kbroker.log.errors import lacks_descriptors
from kbroker.log.folder import Folder
from kbroker.log.names import SegmentPart

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")
_OFFSET_KEY = Struct(">I").unpack_from
_TIME_KEY = Struct(">q").unpack_from
_ZEROS = bytes(12)
_BLOCK_BYTES = 4096  # of entries kept in memory: about 2 MB of log at the default interval

MAX_RELATIVE_OFFSET = 2**31 - 1
"""Kafka reads relative offsets as signed, so a segment spans no more offsets than this."""

NO_TIMESTAMP = -1


class _Index:
    """What both indices share: entries of fixed size in a file, the newest of them in memory."""

    __slots__ = ("_tail", "_view", "_written", "base_offset", "count", "folder", "max_bytes", "most_entries", "touched")

    part: SegmentPart
    entry_size: int
    most_entries: int

    def __init__(self, folder: Folder, base_offset: int, max_bytes: int, file_bytes: int) -> None:
        """max_bytes: capacity when full. file_bytes: what is there now; a torn last entry is dropped."""
        self.folder = folder
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self.count = file_bytes // self.entry_size
        self.touched = False
        self._tail: bytearray | None = None  # entries not in the file yet
        self._written = self.count  # entries in the file
        self._view: memoryview | None = None
        if self.count > 1:  # a single entry may be zeros: record 0, of the first instant of 1970
            self._drop_unused()

    @property
    def is_full(self) -> bool:
        """Whether another entry has no room."""
        return self.count >= self.most_entries

    # ---- the file

    def _drop_unused(self) -> None:
        """Zeros behind the entries were laid out by a writer that never came to trim them."""
        view, size = self._map(), self.entry_size
        if bytes(view[(self.count - 1) * size : self.count * size]).strip(b"\0"):
            return
        low, high = 0, self.count - 1  # the first unused entry is in [low, high]
        while low < high:
            middle = (low + high) // 2
            if bytes(view[middle * size : (middle + 1) * size]).strip(b"\0"):
                low = middle + 1
            else:
                high = middle
        self.count = self._written = low

    def _map(self) -> memoryview:
        """The file in memory, mapped on first use."""
        view = self._view
        if view is None:
            file = self.folder.open(self.base_offset, self.part, "read")
            view = self._view = file.map()
            file.close()
            self.folder.open_files.opened(self)
        self.touched = True
        return view

    def close_files(self) -> None:
        """Give the map, and the descriptor that it holds, back."""
        self._view = None

    def _unmap(self) -> None:
        if self._view is not None:
            self._view = None
            self.folder.open_files.closed(self)

    def write_tail(self) -> None:
        """Put the entries that are only in memory into the file; nothing becomes durable."""
        tail = self._tail
        if not tail:
            return
        position = self._written * self.entry_size
        file = self.folder.open(self.base_offset, self.part, "create")
        try:
            capacity = self.max_bytes // self.entry_size * self.entry_size
            if file.size() < capacity:
                self._unmap()
                file.resize(capacity)
            file.write([tail], position)
        finally:
            file.close()
        self._tail = None
        self._written = self.count

    def trim(self) -> None:
        """Write what is only in memory and cut the file to its entries: for a segment that takes no more."""
        self.write_tail()
        self._unmap()
        file = self.folder.open(self.base_offset, self.part, "create")
        try:
            if file.size() != self.count * self.entry_size:
                file.resize(self.count * self.entry_size)
        finally:
            file.close()

    def keep(self, count: int) -> None:
        """Forget all entries but the first `count`."""
        assert 0 <= count <= self.count, (count, self.count)
        if count == self.count:
            return
        written = self._written
        if count >= written:
            assert self._tail is not None
            del self._tail[(count - written) * self.entry_size :]
            self.count = count
            return
        self._tail = None
        self.count = self._written = count
        self._unmap()
        file = self.folder.open(self.base_offset, self.part, "create")
        try:
            file.resize(count * self.entry_size)
        finally:
            file.close()

    def _add(self, entry: bytes) -> None:
        tail = self._tail
        if tail is None:
            tail = self._tail = bytearray()
        tail += entry
        self.count += 1
        if len(tail) >= _BLOCK_BYTES:
            try:
                self.write_tail()
            except OSError as error:
                if not lacks_descriptors(error):
                    raise  # the batch is written already, and is not undone for an index: a later entry tries again

    def _at(self, slot: int) -> tuple[memoryview | bytearray, int]:
        """The buffer that holds entry `slot`, and the entry's position in it."""
        written = self._written
        if slot < written:
            return self._map(), slot * self.entry_size
        assert self._tail is not None
        return self._tail, (slot - written) * self.entry_size


class OffsetIndex(_Index):
    """From an offset to a position at or before its batch."""

    __slots__ = ("last_offset",)

    part: SegmentPart = "index"
    entry_size = 8

    def __init__(self, folder: Folder, base_offset: int, max_bytes: int, file_bytes: int) -> None:
        super().__init__(folder, base_offset, max_bytes, file_bytes)
        self.last_offset = self.entry(self.count - 1)[0] if self.count else base_offset
        self.most_entries = max_bytes // 8

    def entry(self, slot: int) -> tuple[int, int]:
        """Offset and position of an entry. slot: in [0, count)."""
        data, at = self._at(slot)
        relative, position = _OFFSET_ENTRY.unpack_from(data, at)
        return self.base_offset + relative, position

    def append(self, offset: int, position: int) -> None:
        """Remember where the append that ends with `offset` starts. offset: greater than the last entry's."""
        assert offset > self.last_offset or not self.count, (offset, self.last_offset)
        assert offset - self.base_offset <= MAX_RELATIVE_OFFSET, (offset, self.base_offset)
        self._add(_OFFSET_ENTRY.pack(offset - self.base_offset, position))
        self.last_offset = offset

    def lookup(self, offset: int) -> tuple[int, int]:
        """The last entry at or before `offset`, as (offset, position); (base_offset, 0) if there is none."""
        if not self.count:
            return self.base_offset, 0
        if offset >= self.last_offset:
            return self.entry(self.count - 1)
        slot = self.slot(offset)
        return self.entry(slot) if slot >= 0 else (self.base_offset, 0)

    def position_above(self, position: int) -> int | None:
        """The offset of the first entry at or after a position; None if all lie before."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        return self.entry(low)[0] if low < self.count else None

    def keep_below(self, offset: int) -> None:
        """Forget the entries at or after `offset`."""
        self.keep(self.slot(offset - 1) + 1)
        self.last_offset = self.entry(self.count - 1)[0] if self.count else self.base_offset

    def clear(self) -> None:
        """Forget all entries."""
        self.keep(0)
        self.last_offset = self.base_offset

    def slot(self, offset: int) -> int:
        """The last entry at or before `offset`; -1 if there is none."""
        relative = offset - self.base_offset
        if offset >= self.last_offset:
            return self.count - 1
        data, first, low, high = self._half(relative)
        while low < high:
            middle = (low + high) >> 1
            if _OFFSET_KEY(data, middle * 8)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        return first + low - 1

    def _half(self, relative: int) -> tuple[memoryview | bytearray, int, int, int]:
        """Where to search: in the file or in the newest entries; the buffer, its first slot, and the bounds in it."""
        tail, written = self._tail, self._written
        if tail and _OFFSET_KEY(tail, 0)[0] <= relative:
            return tail, written, 0, len(tail) // 8
        return (self._map() if written else b""), 0, 0, written  # type: ignore[return-value]


class TimeIndex(_Index):
    """From a timestamp to an offset before which no record is as late."""

    __slots__ = ("last_offset", "last_timestamp")

    last_offset: int
    last_timestamp: int

    part: SegmentPart = "timeindex"
    entry_size = 12

    def __init__(self, folder: Folder, base_offset: int, max_bytes: int, file_bytes: int) -> None:
        super().__init__(folder, base_offset, max_bytes, file_bytes)
        self._read_last()
        self.most_entries = max_bytes // 12 - 1  # one is kept for a roll, which adds its own

    def entry(self, slot: int) -> tuple[int, int]:
        """Timestamp and offset of an entry. slot: in [0, count)."""
        data, at = self._at(slot)
        timestamp, relative = _TIME_ENTRY.unpack_from(data, at)
        return timestamp, self.base_offset + relative

    def append_if_later(self, timestamp: int, offset: int) -> None:
        """Remember that the batch ending with `offset` is the latest so far; nothing if the last entry says so."""
        if timestamp <= self.last_timestamp or (self.count and offset < self.last_offset):
            return
        self._add(_TIME_ENTRY.pack(timestamp, offset - self.base_offset))
        self.last_timestamp, self.last_offset = timestamp, offset

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The last entry not later than `timestamp`, as (timestamp, offset); (-1, base_offset) if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) >> 1
            data, at = self._at(middle)
            if _TIME_KEY(data, at)[0] <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self.entry(low - 1) if low else (NO_TIMESTAMP, self.base_offset)

    def keep_below(self, offset: int) -> None:
        """Forget the entries that point at or after `offset`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) >> 1
            if self.entry(middle)[1] < offset:
                low = middle + 1
            else:
                high = middle
        self.keep(low)
        self._read_last()

    def clear(self) -> None:
        """Forget all entries."""
        self.keep(0)
        self._read_last()

    def _read_last(self) -> None:
        last: tuple[int, int] = self.entry(self.count - 1) if self.count else (NO_TIMESTAMP, self.base_offset)
        self.last_timestamp, self.last_offset = last
