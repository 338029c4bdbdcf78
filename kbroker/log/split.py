"""Segments that span more offsets than their indices can tell: each is divided into several when its log is opened.

Cleaners of brokers before Kafka 1.1.1 put segments together without a look at their offsets (KAFKA-6264), so that one
file may hold batches 2^31 and more behind its base offset. Called by recovery, before anything is cut. Nothing of such
a file is given up: batches are copied as they lie, what is no batch at its end goes with the last part.

A crash leaves the old segment or all of the new ones. The parts are written as `.cleaned` and made durable; they become
`.swap` from the last to the first, so that until the first is one there is a `.cleaned` at or before every `.swap`, by
which the next start knows that it was not the end (`recovery`). Only then do they take their names.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kbroker.log.cleaner.writing import CleanedSegment
from kbroker.log.index import MAX_RELATIVE_OFFSET, NO_TIMESTAMP
from kbroker.log.jobs import remove_if_there
from kbroker.log.scan import WALK_BYTES, headers
from kbroker.log.segment import SEGMENT_FILES, Segment
from protocol.records import RecordError
from protocol.records.batch import BASE_OFFSET, MAGIC, MAGIC_BYTE, MAX_TIMESTAMP, HeaderTuple, last_offset_of, size_of

if TYPE_CHECKING:
    from kbroker.log.aborted import AbortedTransaction
    from kbroker.log.folder import Folder
    from kbroker.log.names import SegmentPart


def overflowing(segments: list[Segment], end_offset: int, recovery_point: int) -> list[Segment]:
    """Those whose batches lie further behind their base offset than an index can say. Raises: OSError, KafkaError.

    A changed bit in an offset is not taken for that: a segment's offsets rise, and end where the next one begins. The
    very last batch of a log has no such neighbour: what it says counts if the recovery point lies behind it.
    end_offset: behind that batch.
    """
    bounds = [after.base_offset for _, after in pairwise(segments)]
    found = [
        segment
        for segment, bound in zip(segments, bounds, strict=False)
        if _reaches_beyond(segment, bound) and _rises(segment, bound)
    ]
    last = segments[-1] if segments else None
    if last is not None and end_offset - 1 - last.base_offset > MAX_RELATIVE_OFFSET:
        *before, end = [last_offset_of(header) for _, header in headers(last.file, 0, last.size)]
        several = bool(before) and before[-1] - last.base_offset > MAX_RELATIVE_OFFSET
        if (several or end < recovery_point) and _rises(last, end + 1):
            found.append(last)
    return found


def _reaches_beyond(segment: Segment, bound: int) -> bool:
    """Whether a segment's last batch is too far from its beginning; mostly nothing has to be read to say no."""
    if bound - 1 - segment.base_offset <= MAX_RELATIVE_OFFSET:
        return False
    return segment.end()[0] - 1 - segment.base_offset > MAX_RELATIVE_OFFSET


def _rises(segment: Segment, bound: int) -> bool:
    """Whether its batches' offsets rise all along, up to a bound."""
    before = segment.base_offset - 1
    for _, header in headers(segment.file, 0, segment.size):
        if header[BASE_OFFSET] <= before:
            return False
        before = last_offset_of(header)
    return before < bound


def split(segment: Segment, aborted: list[AbortedTransaction], wall_ms: int) -> list[Segment]:
    """Segments in the place of one, in the folder too, durably. aborted: what its index of them says. Raises: OSError.

    The first one keeps the base offset, even if nothing of it is within reach.
    """
    folder = segment.folder
    parts = _written(segment, aborted, wall_ms)
    names = [[folder.file_path(part.base_offset, each) for each in _parts_of(part)] for part in parts]
    folder.disk.sync_dir(folder.path)
    for files in reversed(names):
        for path in files:
            folder.disk.rename(f"{path}.cleaned", f"{path}.swap")
    segment.close()
    if segment.aborted is not None:
        remove_if_there(folder.disk, folder.file_path(segment.base_offset, "txnindex"))
    for files in names:
        for path in files:
            folder.disk.rename(f"{path}.swap", path)
    folder.disk.sync_dir(folder.path)
    return [_opened(folder, part, segment, wall_ms) for part in parts]


def _parts_of(part: CleanedSegment) -> tuple[SegmentPart, ...]:
    """The kinds of files that one has."""
    return SEGMENT_FILES if part.has_aborted else SEGMENT_FILES[:3]


def _opened(folder: Folder, part: CleanedSegment, old: Segment, wall_ms: int) -> Segment:
    return Segment(
        folder,
        part.base_offset,
        old.config,
        created_ms=wall_ms,
        size=part.size,
        index_bytes=part.index_bytes,
        has_aborted=part.has_aborted,
    )


def _written(segment: Segment, aborted: list[AbortedTransaction], wall_ms: int) -> list[CleanedSegment]:
    """The parts, in files of their own, durable."""
    folder, file = segment.folder, segment.file
    entry = folder.disk.stat(folder.file_path(segment.base_offset, "log"))
    modified_ms = wall_ms if entry is None else entry.modified_ms
    part, parts, end, last_offset = _begun(segment, segment.base_offset), [], 0, segment.base_offset
    for position, header in headers(file, 0, segment.size):
        size, last_offset = size_of(header), last_offset_of(header)
        content = file.read(position, size)
        if last_offset - part.base_offset > MAX_RELATIVE_OFFSET:
            parts.append(part)
            part = _begun(segment, _first_offset(content, header))
        part.add(content, last_offset, header[MAX_TIMESTAMP], 0)
        end = position + size
    parts.append(part)
    while end < segment.size:
        rest = file.read(end, min(WALK_BYTES, segment.size - end))
        part.add(rest, last_offset, NO_TIMESTAMP, 0)
        end += len(rest)
    for at, each in enumerate(parts):
        bound = parts[at + 1].base_offset if at + 1 < len(parts) else last_offset + 1
        each.finish([one for one in aborted if each.base_offset <= one.last_offset < bound], modified_ms)
    return parts


def _begun(segment: Segment, base_offset: int) -> CleanedSegment:
    return CleanedSegment(segment.folder.disk, segment.folder.path, base_offset, segment.config, WALK_BYTES)


def _first_offset(content: bytes, header: HeaderTuple) -> int:
    """The first offset in a batch; that of a wrapper stands inside it, for its own is the last one's."""
    if header[MAGIC_BYTE] == MAGIC:
        return header[BASE_OFFSET]
    from protocol.records.legacy import parse_message, scan  # most logs have none

    try:
        return min(record.offset for record in parse_message(content, next(scan(content))))
    except RecordError:
        return header[BASE_OFFSET]  # its records are not needed
