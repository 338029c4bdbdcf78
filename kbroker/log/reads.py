"""How a log is read: from an offset to a region of a file, without reading a record.

The reading half of `log.py`, whose state it looks at: it changes none of it but the places that it remembers, so that a
reader who goes on where a fetch ended looks nothing up.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from kbroker.log.aborted import AbortedTransaction
from kbroker.log.segment import Segment
from kbroker.ports import Region
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

_base_offset = attrgetter("base_offset")
Place = tuple[Segment, int, int]
"""A batch: its segment, its position there, and its size in bytes, 0 if it is not known yet."""

_MARKS = 16  # positions remembered between reads; a fetch that goes on where one ended looks nothing up


class Fetched(NamedTuple):
    """What a read found.

    region: the batches, from the one that holds the offset; None if there is nothing, or too little room.
    aborted: the aborted transactions that overlap it, None unless asked for.
    """

    region: Region | None
    aborted: list[AbortedTransaction] | None = None


NOTHING = Fetched(None)


class LogReads:
    """The reads of a log. What it looks at is the log's own."""

    __slots__ = ("_marks", "_tail_offset", "_tail_position")

    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    _tail_offset: int  # where the last append starts, in the active segment
    _tail_position: int
    _marks: dict[int, Place] | None  # offset -> where it is

    def read(
        self,
        offset: int,
        max_bytes: int,
        bound: int,
        whole_first_batch: bool = True,
        with_aborted: bool = False,
        wait: bool = True,
    ) -> Fetched:
        """The batches from the one that holds `offset` on, below `bound`, of one segment, about max_bytes of them.

        bound: an offset, as `readable_end` has it for each isolation. whole_first_batch: a first batch larger than
        max_bytes is given all the same; otherwise no region comes back. The region may end within a batch. Raises
        KafkaError OFFSET_OUT_OF_RANGE; OSError; and NotReadyError, if it is not to wait for the disk.
        """
        end_offset = self.log_end_offset
        if offset > end_offset or offset < self.log_start_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset}, the log has {self.log_start_offset} to {end_offset}",
            )
        if bound > end_offset:
            bound = end_offset
        place = None if offset >= bound or (max_bytes <= 0 and not whole_first_batch) else self._locate(offset, wait)
        if place is None:
            return Fetched(None, []) if with_aborted else NOTHING
        segment, position, first = place
        available = self._end_within(segment, bound) - position
        size = available
        if available > max_bytes:
            if not first:
                found = segment.find(offset)
                assert found is not None, (segment, offset)
                first = found[1]
            if first > max_bytes and not whole_first_batch:
                return Fetched(None, []) if with_aborted else NOTHING
            size = min(available, max(max_bytes, first))
        if size <= 0:
            return Fetched(None, []) if with_aborted else NOTHING
        aborted = self._aborted(segment, offset, position + size) if with_aborted else None
        return Fetched(Region(segment.file, position, size), aborted)

    def available_bytes(self, offset: int, bound: int) -> int:
        """How many bytes there are to read from `offset` to `bound`: what a parked fetch waits for.

        0 if the offset is out of range. Never reads records, nor waits for the disk. Raises: NotReadyError, OSError.
        """
        bound = min(bound, self.log_end_offset)
        if not self.log_start_offset <= offset < bound:
            return 0
        place = self._locate(offset, wait=False)
        if place is None:
            return 0
        segment, position, _ = place
        at = -1 if segment is self.segments[-1] else self.segments.index(segment)
        ends = (self._end_within(each, bound) for each in self.segments[at:] if each.base_offset < bound)
        return max(0, sum(ends) - position)

    def _locate(self, offset: int, wait: bool = True) -> Place | None:
        """Where the batch is that holds `offset`, or the next one; None behind the last."""
        segments = self.segments
        if offset == self._tail_offset:
            return segments[-1], self._tail_position, 0
        marks = self._marks
        if marks is not None:
            place = marks.get(offset)
            if place is not None:
                return place
        at = bisect_right(segments, offset, key=_base_offset) - 1
        for later in range(max(at, 0), len(segments)):
            found = segments[later].find(offset, may_wait=wait)
            if found is not None:
                return self._mark(offset, segments[later], *found)
        return None

    def _mark(self, offset: int, segment: Segment, position: int, size: int) -> Place:
        """Remember where an offset is, for the next read from it or up to it."""
        marks = self._marks
        if marks is None or len(marks) >= _MARKS:
            marks = self._marks = {}
        place = marks[offset] = (segment, position, size)
        return place

    def _end_within(self, segment: Segment, bound: int) -> int:
        """Where in this segment the batches below `bound` end."""
        active = self.segments[-1]
        if bound >= self.log_end_offset:
            if segment is active:
                marks = self._marks  # where the next read starts, unless another read has marked it
                if marks is None or bound not in marks:
                    self._mark(bound, segment, segment.size, 0)
            return segment.size
        if segment is not active and bound >= active.base_offset:
            return segment.size
        place = self._locate(bound)
        return place[1] if place is not None and place[0] is segment else segment.size

    def forget_places(self) -> None:
        """Segments went away or were cut: nothing remembered may point there."""
        self._marks = None
        self._tail_offset = -1

    def _aborted(self, segment: Segment, offset: int, end_position: int) -> list[AbortedTransaction]:
        """The aborted transactions among the records of a read. end_position: where it ends in its segment."""
        at = self.segments.index(segment)
        end_offset = segment.offsets.position_above(end_position)
        if end_offset is None:
            end_offset = self.segments[at + 1].base_offset if segment is not self.segments[-1] else self.log_end_offset
        found: list[AbortedTransaction] = []
        for later in self.segments[at:]:
            if later.aborted is not None and later.aborted.collect(offset, end_offset, found):
                break
        return found
