"""What a read needs first of a segment that was not read lately, or whose index is damaged: jobs for the pool.

A reader that must not wait for the disk gets NotReadyError, which names a job; after the job the segment is told of
its end (`finish_job`), and the reader asks again. A job opens files of its own, and touches no segment.
"""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.log.scan import headers
from protocol.namedtuple import NamedTuple
from protocol.records.batch import HEADER_SIZE, MAX_TIMESTAMP, last_offset_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.log.folder import Folder

_OFFSET_ENTRY = Struct(">II")
MAX_RELATIVE_OFFSET = 2**31 - 1


class Cold(Protocol):
    """A segment, as far as it may have to be made ready."""

    @property
    def folder(self) -> Folder:
        """Where its files are."""

    @property
    def base_offset(self) -> int:
        """The first part of their names."""

    @property
    def knows_times(self) -> bool:
        """Whether its time index was opened before."""

    def finish_job(self, job: ColdJob) -> None:
        """A job for it has ended. Raises: OSError."""


class NotReadyError(Exception):
    """A segment cannot be read from without waiting for the disk. job: what to wait for."""

    def __init__(self, segment: Cold, job: WarmJob | RepairJob) -> None:
        super().__init__(f"{segment!r} is not ready")
        self.segment = segment
        self.job = job


class WarmJob:
    """Bring a segment's offset index, and the headers it leads to, into memory."""

    __slots__ = ("_base_offset", "_folder", "_interval_bytes", "_offset")

    def __init__(self, folder: Folder, base_offset: int, offset: int, interval_bytes: int) -> None:
        """offset: that is to be read. interval_bytes: of log between two entries."""
        self._folder = folder
        self._base_offset = base_offset
        self._offset = offset
        self._interval_bytes = interval_bytes

    def run(self) -> None:
        """Raises: OSError."""
        try:
            index = self._folder.open(self._base_offset, "index", "read")
            log = self._folder.open(self._base_offset, "log", "read")
        except FileNotFoundError:
            return  # deleted meanwhile: the reader finds that out
        data = index.read(0, index.size())
        entries = range(len(data) // _OFFSET_ENTRY.size)
        relative = self._offset - self._base_offset
        at = bisect_right(entries, relative, key=lambda slot: int(_OFFSET_ENTRY.unpack_from(data, slot * 8)[0])) - 1
        position = _OFFSET_ENTRY.unpack_from(data, at * 8)[1] if at >= 0 else 0
        log.read(position, self._interval_bytes + HEADER_SIZE)
        index.close()
        log.close()


class Entry(NamedTuple):
    """One of both indices. offset: the last one of the batch at `position`. timestamp: the largest up to there."""

    offset: int
    position: int
    timestamp: int
    timestamp_offset: int


class RepairJob:
    """Find out what a segment's indices should hold. size: how far the segment was looked through."""

    __slots__ = ("_base_offset", "_folder", "_interval_bytes", "entries", "last", "size")

    def __init__(self, folder: Folder, base_offset: int, size: int, interval_bytes: int) -> None:
        self._folder = folder
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self.size = size
        self.entries: list[Entry] = []
        self.last = Entry(base_offset, 0, -1, base_offset)  # of which only the timestamp counts

    def run(self) -> None:
        """Raises: OSError."""
        base_offset, entries = self._base_offset, self.entries
        timestamp, timestamp_offset, before, last_entry = -1, base_offset, -1, 0
        try:
            file = self._folder.open(base_offset, "log", "read")
        except FileNotFoundError:
            return
        for position, header in headers(file, 0, self.size):
            offset = last_offset_of(header)
            if not 0 <= offset - base_offset <= MAX_RELATIVE_OFFSET or offset <= before:
                continue  # a changed bit has moved it
            if header[MAX_TIMESTAMP] > timestamp:
                timestamp, timestamp_offset = header[MAX_TIMESTAMP], offset
            if position - last_entry > self._interval_bytes:
                entries.append(Entry(offset, position, timestamp, timestamp_offset))
                last_entry, before = position, offset
        self.last = Entry(base_offset, 0, timestamp, timestamp_offset)
        file.close()


def warm_times(segments: Sequence[Cold]) -> TouchJob | None:
    """What to wait for before these segments are asked for their timestamps; None: nothing."""
    cold = [segment for segment in segments if not segment.knows_times]
    return TouchJob([(segment.folder, segment.base_offset) for segment in cold]) if cold else None


class TouchJob:
    """Bring time indices into memory. segments: their folders and base offsets."""

    __slots__ = ("_segments",)

    def __init__(self, segments: Sequence[tuple[Folder, int]]) -> None:
        self._segments = segments

    def run(self) -> None:
        """Raises: OSError."""
        for folder, base_offset in self._segments:
            try:
                file = folder.open(base_offset, "timeindex", "read")
            except FileNotFoundError:
                continue
            file.read(0, file.size())
            file.close()


ColdJob: TypeAlias = WarmJob | RepairJob | TouchJob
