"""Offsets by time: the first record at or after a timestamp, and the record with the largest one.

Called by ListOffsets. A time index leads to a batch, the batch's header tells whether to open it, and only one batch
is read record by record. What is read is read by a job (`TimeScan`), since the log may be cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.cold import TouchJob, warm_times
from kbroker.log.scan import headers
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records.batch import LENGTH_OVERHEAD, MAGIC, NO_TIMESTAMP, HeaderTuple
from protocol.records.content import first_record_since

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kbroker.log.log import Log
    from kbroker.log.segment import Segment
    from kbroker.ports import File


class Found(NamedTuple):
    """A record by offset and timestamp (ms)."""

    offset: int
    timestamp: int


class TimeSearch:
    """A look for a record by time: it says which stretch of which file to read next, and reads nothing itself.

    In most logs one stretch is enough. Between two the log may go on, lose segments or be cut back.
    """

    __slots__ = ("_log", "_tried", "_wanted_ms")

    def __init__(self, log: Log, timestamp: int | None) -> None:
        """timestamp: the first record that is not older is wanted; None: the first one with the largest of all."""
        self._log = log
        self._wanted_ms = timestamp
        self._tried = -1  # base offset of the last segment that was looked into

    def first_job(self) -> TouchJob | None:
        """What to have done before the first scan: time indices that nobody has asked yet may be cold."""
        return warm_times(self._log.segments)

    def next_scan(self) -> TimeScan | None:
        """What to read now; None: there is no such record. Raises: OSError."""
        return self._for_largest() if self._wanted_ms is None else self._for_first(self._wanted_ms)

    def _for_first(self, timestamp: int) -> TimeScan | None:
        for segment in self._log.segments:
            if segment.base_offset > self._tried and segment.largest_timestamp >= timestamp:
                return self._scan(segment, timestamp)
        return None

    def _for_largest(self) -> TimeScan | None:
        latest = max(self._log.segments, key=lambda segment: segment.max_timestamp)  # the first of several
        largest = latest.max_timestamp
        if largest == NO_TIMESTAMP or self._tried >= 0:
            return None
        return self._scan(latest, largest)

    def _scan(self, segment: Segment, timestamp: int) -> TimeScan:
        start_offset = self._log.log_start_offset
        self._tried = segment.base_offset
        position = segment.position_for_timestamp(timestamp, start_offset)
        return TimeScan(segment.file, position, segment.size, start_offset, timestamp)


class TimeScan:
    """A job: read a stretch of a file for the first record, from the log's start on, that is not older than a time.

    found: it, once it has run, or None. error: what was wrong with a batch.
    """

    __slots__ = ("_end", "_file", "_position", "_start_offset", "_timestamp", "error", "found")

    def __init__(self, file: File, position: int, end: int, start_offset: int, timestamp: int) -> None:
        self.found: Found | None = None
        self.error: KafkaError | None = None
        self._file = file
        self._position = position
        self._end = end
        self._start_offset = start_offset
        self._timestamp = timestamp

    def run(self) -> None:
        """Raises: OSError."""
        try:
            self.found = self._first()
        except KafkaError as error:
            self.error = error

    def _first(self) -> Found | None:
        for position, header in headers(self._file, self._position, self._end):
            if header[8] >= self._timestamp and header[0] + header[6] >= self._start_offset:
                found = self._first_in_batch(position, header)
                if found is not None:
                    return found
        return None

    def _first_in_batch(self, position: int, header: HeaderTuple) -> Found | None:
        data = memoryview(self._file.read(position, header[1] + LENGTH_OVERHEAD))
        if header[3] == MAGIC:
            found = first_record_since(data, 0, header, self._timestamp, self._start_offset)
            return None if found is None else Found(*found)
        for offset, timestamp in _legacy_times(data):
            if offset >= self._start_offset and timestamp >= self._timestamp:
                return Found(offset, timestamp)
        return None


def segment_starts(log: Log, timestamp: int | None, wall_ms: int) -> list[int]:
    """Where segments begin whose files were last written at or before `timestamp`, and the log's end; newest first.

    timestamp: ms, None for all of them. wall_ms: when the end of the log is written. Raises: OSError.
    What ListOffsets 0 asks for: there is an entry per segment, and one for the end unless the last segment is empty.
    """
    starts: list[int] = []
    for segment in log.segments:
        if timestamp is not None:
            entry = log.folder.disk.stat(log.folder.file_path(segment.base_offset, "log"))
            if entry is not None and entry.modified_ms > timestamp:
                continue
        starts.append(max(segment.base_offset, log.log_start_offset))
    if log.active.size and (timestamp is None or wall_ms <= timestamp):
        starts.append(log.log_end_offset)
    return sorted(starts, reverse=True)


def _legacy_times(data: memoryview) -> Iterator[tuple[int, int]]:
    """Of a message of v0 or v1, or of those in a wrapper."""
    from protocol.records.legacy import parse_set  # most logs have none

    return ((record.offset, record.timestamp) for record in parse_set(data))
