"""Offsets by time: the first record at or after a timestamp, and the record with the largest one.

Called by ListOffsets. A time index leads to a batch, the batch's header tells whether to open it, and only one batch
is read record by record. Waits for the disk where the log is cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.log.scan import headers
from protocol.records import legacy
from protocol.records.batch import LENGTH_OVERHEAD, MAGIC, NO_TIMESTAMP, HeaderTuple
from protocol.records.content import record_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kbroker.log.log import Log
    from kbroker.log.segment import Segment


class Found(NamedTuple):
    """A record by offset and timestamp (ms)."""

    offset: int
    timestamp: int


def first_at_or_after(log: Log, timestamp: int) -> Found | None:
    """The first record with a timestamp not below `timestamp`, None if all are older. Raises: KafkaError, OSError."""
    for segment in log.segments:
        if segment.largest_timestamp >= timestamp:
            position = segment.position_for_timestamp(timestamp, log.log_start_offset)
            found = _first(log, segment, position, lambda each: each >= timestamp)
            if found is not None:
                return found
    return None


def with_max_timestamp(log: Log) -> Found | None:
    """The first record with the largest timestamp of all, None in a log without timestamps. Raises as above."""
    latest = max(log.segments, key=lambda segment: segment.max_timestamp)  # the first of several
    largest = latest.max_timestamp
    if largest == NO_TIMESTAMP:
        return None
    position = latest.position_for_timestamp(largest, log.log_start_offset)
    return _first(log, latest, position, lambda each: each == largest)


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


def _first(log: Log, segment: Segment, position: int, wanted: Callable[[int], bool]) -> Found | None:
    """The first record from a position on whose timestamp is wanted. wanted: holds for the batch if for any record."""
    for at, header in headers(segment.file, position, segment.size):
        if wanted(header[8]) and header[0] + header[6] >= log.log_start_offset:
            found = _first_in_batch(log, segment, at, header, wanted)
            if found is not None:
                return found
    return None


def _first_in_batch(
    log: Log, segment: Segment, position: int, header: HeaderTuple, wanted: Callable[[int], bool]
) -> Found | None:
    data = memoryview(segment.file.read(position, header[1] + LENGTH_OVERHEAD))
    times = record_times(data, 0, header) if header[3] == MAGIC else _legacy_times(data)
    for offset, timestamp in times:
        if offset >= log.log_start_offset and wanted(timestamp):
            return Found(offset, timestamp)
    return None


def _legacy_times(data: memoryview) -> Iterator[tuple[int, int]]:
    """Of a message of v0 or v1, or of those in a wrapper."""
    return ((record.offset, record.timestamp) for record in legacy.parse_set(data))
