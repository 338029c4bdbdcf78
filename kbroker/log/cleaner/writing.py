"""A cleaned segment on its way: `.log.cleaned` and its indices, written from front to back, then made durable.

Owned by one compaction. The names change where the log's owner puts the segment in place.
"""

from __future__ import annotations

from struct import Struct

from kbroker.log.aborted import AbortedTransaction, format_aborted
from kbroker.log.cleaner.errors import UncleanableError
from kbroker.log.config import LogConfig
from kbroker.log.index import MAX_RELATIVE_OFFSET, NO_TIMESTAMP
from kbroker.log.jobs import remove_if_there
from kbroker.log.names import SEGMENT_PARTS, SegmentPart, segment_file_name
from kbroker.ports import Buffer, Disk, File
from protocol.namedtuple import NamedTuple

_OFFSET_ENTRY, _TIME_ENTRY = Struct(">II"), Struct(">qI")
_MOST_BYTES = 2**31 - 1  # positions in an index are signed


class Written(NamedTuple):
    """A segment that is durable, its files' names ending in .cleaned. size: bytes; index_bytes: of both indices."""

    base_offset: int
    size: int
    index_bytes: tuple[int, int]
    has_aborted: bool


class CleanedSegment:
    """What is written so far of one segment. size: bytes of batches; records: in them. Raises OSError, all over."""

    def __init__(self, disk: Disk, folder: str, base_offset: int, config: LogConfig, chunk_bytes: int) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.records = 0
        self.index_bytes = (0, 0)
        self.has_aborted = False
        self._disk = disk
        self._folder = folder
        self._interval_bytes = config.index_interval_bytes
        self._most_index = config.segment_index_bytes
        self._chunk_bytes = chunk_bytes
        self._waiting: list[Buffer] = []
        self._written = 0
        self._offsets = bytearray()
        self._times = bytearray()
        self._since_entry = 0
        self._max_timestamp = self._time_entry = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        for part in SEGMENT_PARTS:
            remove_if_there(disk, self._path(part))
        self._file: File = disk.open(self._path("log"), "create")

    def _path(self, part: SegmentPart) -> str:
        return _path(self._folder, self.base_offset, part)

    def add(self, content: Buffer, last_offset: int, max_timestamp: int, records: int) -> None:
        """Put a batch, or some old messages, behind what there is. content: must not change until `flush`."""
        if last_offset - self.base_offset > MAX_RELATIVE_OFFSET or self.size + len(content) > _MOST_BYTES:
            raise UncleanableError(f"{self._path('log')}: offset {last_offset} does not fit into the segment")
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
        if self._since_entry > self._interval_bytes:
            self._add_entries(last_offset)
        self._waiting.append(content)
        self._since_entry += len(content)
        self.size += len(content)
        self.records += records
        if self.size - self._written >= self._chunk_bytes:
            self.flush()

    def _add_entries(self, last_offset: int) -> None:
        if len(self._offsets) + 8 > self._most_index or len(self._times) + 24 > self._most_index:
            return  # lookups read a little more
        self._offsets += _OFFSET_ENTRY.pack(last_offset - self.base_offset, self.size)
        self._add_time()
        self._since_entry = 0

    def _add_time(self) -> None:
        if self._max_timestamp > self._time_entry:
            self._times += _TIME_ENTRY.pack(self._max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._time_entry = self._max_timestamp

    def flush(self) -> None:
        """Write what waits in memory; nothing becomes durable."""
        if self._waiting:
            self._file.write(self._waiting, self._written)
            self._waiting = []
            self._written = self.size

    def finish(self, aborted: list[AbortedTransaction], modified_ms: int) -> None:
        """Write all of it and make it durable. modified_ms: wall clock; by it old messages without time are judged."""
        self.flush()
        self._add_time()
        self._file.sync()
        self._file.close()
        self._disk.set_modified(self._path("log"), modified_ms)
        self._write("index", bytes(self._offsets))
        self._write("timeindex", bytes(self._times))
        self.index_bytes = (len(self._offsets), len(self._times))
        self.has_aborted = bool(aborted)
        if aborted:
            self._write("txnindex", format_aborted(aborted))

    def _write(self, part: SegmentPart, content: bytes) -> None:
        file = self._disk.open(self._path(part), "create")
        try:
            if content:
                file.write([content], 0)
            file.sync()
        finally:
            file.close()

    def written(self) -> Written:
        """What the log's owner has to know of it, once it is finished."""
        return Written(self.base_offset, self.size, self.index_bytes, self.has_aborted)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()


def cleaned_paths(folder: str, base_offset: int) -> list[str]:
    """All files that there may be of a cleaned segment before it is in place."""
    return [_path(folder, base_offset, part) for part in SEGMENT_PARTS]


def _path(folder: str, base_offset: int, part: SegmentPart) -> str:
    return f"{folder}/{segment_file_name(base_offset, part, 'cleaned')}"
