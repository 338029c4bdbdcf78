"""Offsets by time: the first record at or after a timestamp, and the record with the largest one.

Called by ListOffsets. A time index leads to a batch, the batch's header tells whether to open it, and only one batch
is read record by record, or two where the log starts inside one. What is read is read by a job (`TimeScan`), since the
log may be cold.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from kbroker.log.index_warmup import TouchJob, warm_times
from kbroker.log.scan import headers
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records.batch import MAGIC, MAGIC_BYTE, MAX_TIMESTAMP, NO_TIMESTAMP, HeaderTuple, last_offset_of, size_of
from protocol.records.content import first_record_since, latest_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kbroker.log.log import Log
    from kbroker.log.segment import Segment
    from kbroker.ports import File

_base_offset = attrgetter("base_offset")


class Found(NamedTuple):
    """A record by offset and timestamp (ms)."""

    offset: int
    timestamp: int


class TimeSearch:
    """A look for a record by time: it says which stretch of which file to read next, and reads nothing itself.

    In most logs one stretch is enough. Between two the log may go on, lose segments or be cut back.
    """

    __slots__ = ("_log", "_scans", "_timestamp")

    def __init__(self, log: Log, timestamp: int | None) -> None:
        """timestamp: the first record that is not older is wanted; None: the first one with the largest of all."""
        self._log = log
        self._timestamp = timestamp
        self._scans = self._for_largest() if timestamp is None else self._for_first(timestamp)

    def first_job(self) -> TouchJob | None:
        """What to have done before the first scan: time indices that were not read yet may be cold."""
        return warm_times(self._left())

    def next_scan(self) -> TimeScan | None:
        """What to read now; None: there is no such record. Raises: OSError."""
        return next(self._scans, None)

    def again(self) -> TimeSearch:
        """The same from its beginning: for one that has found what was removed while it was read."""
        return TimeSearch(self._log, self._timestamp)

    def _left(self) -> Sequence[Segment]:
        """The segments but those that lie before the log's start, and are not deleted yet."""
        log = self._log
        return log.segments[max(bisect_right(log.segments, log.log_start_offset, key=_base_offset) - 1, 0) :]

    def _for_first(self, timestamp: int) -> Iterator[TimeScan]:
        tried = -1
        while True:
            untried = (each for each in self._left() if each.base_offset > tried)
            segment = next((each for each in untried if each.largest_timestamp >= timestamp), None)
            if segment is None:
                return
            tried = segment.base_offset
            yield self._scan(segment, timestamp)

    def _for_largest(self) -> Iterator[TimeScan]:
        """Where the log starts inside a segment, its largest may be that of a record that is gone."""
        first, *others = self._left()
        behind = max((each.max_timestamp for each in others), default=NO_TIMESTAMP)
        if first.base_offset < self._log.log_start_offset and first.max_timestamp >= behind:
            yield self._scan(first, first.max_timestamp)
            start_offset = self._log.log_start_offset
            position = first.offsets.lookup(start_offset)[1]
            yield LargestScan(first.file, position, first.size, start_offset, behind)
        whole = [each for each in self._left() if each.base_offset >= self._log.log_start_offset and each.size]
        if whole:
            latest = max(whole, key=lambda segment: segment.max_timestamp)  # the first of several
            yield self._scan(latest, latest.max_timestamp)

    def _scan(self, segment: Segment, timestamp: int) -> TimeScan:
        start_offset = self._log.log_start_offset
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
        for position, header in self._headers():
            if header[MAX_TIMESTAMP] >= self._timestamp:
                found = self._first_in_batch(position, header)
                if found is not None:
                    return found
        return None

    def _headers(self) -> Iterator[tuple[int, HeaderTuple]]:
        """Of batches that are not gone as a whole."""
        found = headers(self._file, self._position, self._end)
        for position, header in found:
            if last_offset_of(header) >= self._start_offset:
                yield position, header

    def _first_in_batch(self, position: int, header: HeaderTuple) -> Found | None:
        data = self._batch(position, header)
        if header[MAGIC_BYTE] == MAGIC:
            found = first_record_since(data, 0, header, self._timestamp, self._start_offset)
            return None if found is None else Found(*found)
        return next((each for each in self._messages(data) if each.timestamp >= self._timestamp), None)

    def _batch(self, position: int, header: HeaderTuple) -> memoryview:
        return memoryview(self._file.read(position, size_of(header)))

    def _messages(self, data: memoryview) -> Iterator[Found]:
        """What is left of a message of v0 or v1, or of those in a wrapper."""
        from protocol.records.legacy import parse_set  # most logs have none

        found = (Found(record.offset, record.timestamp) for record in parse_set(data))
        return (each for each in found if each.offset >= self._start_offset)


class LargestScan(TimeScan):
    """The same for the first record with the largest time, if that is not older than a time."""

    __slots__ = ()

    def _first(self) -> Found | None:
        """By the headers; but of the batch in which the log starts, the header tells that of records that are gone."""
        found, largest = None, self._timestamp - 1
        at: tuple[int, HeaderTuple] | None = None
        for count, (position, header) in enumerate(self._headers()):
            if not count:
                found = self._largest_in_batch(position, header)
                largest = max(largest, NO_TIMESTAMP if found is None else found.timestamp)
            elif header[MAX_TIMESTAMP] > largest:
                largest, at = header[MAX_TIMESTAMP], (position, header)
        if at is not None:
            found = self._largest_in_batch(*at)
        return found if found is not None and found.timestamp >= self._timestamp else None

    def _largest_in_batch(self, position: int, header: HeaderTuple) -> Found | None:
        data = self._batch(position, header)
        if header[MAGIC_BYTE] == MAGIC:
            found = latest_record(data, 0, header, self._start_offset)
            return None if found is None else Found(*found)
        return max(self._messages(data), key=lambda message: message.timestamp, default=None)


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
