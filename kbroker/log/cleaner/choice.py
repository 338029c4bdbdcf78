"""Dirty ratios: which logs are worth compacting, and which part of each, by sizes and times; no record is read.

A log is clean below `cleaned_to` and dirty behind it, up to what must be left alone: the active segment, what is not
durable, what a transaction may still undo, what is younger than min.compaction.lag.ms. The dirtiest log comes first.

Unlike Kafka: what the recovery point on the disk does not cover is left alone, so that after a crash no gap that
compaction has made is ever taken for lost records.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.config import NEVER
from kbroker.log.index import MAX_RELATIVE_OFFSET
from kbroker.log.log import Log
from kbroker.log.segment import Segment
from protocol.namedtuple import NamedTuple


class DirtyRange(NamedTuple):
    """What there is to compact in a log.

    first_dirty, end_offset: keys are noted of this stretch; what lies before it is compacted again with them. ratio:
    the dirty part of the bytes below end_offset. overdue_ms: by how much the oldest dirty segment is older than
    max.compaction.lag.ms.
    """

    first_dirty: int
    end_offset: int
    dirty_bytes: int
    ratio: float
    overdue_ms: int

    def is_due(self, least_ratio: float) -> bool:
        """Whether it is worth the work. least_ratio: min.cleanable.dirty.ratio."""
        return self.dirty_bytes > 0 and (self.overdue_ms > 0 or self.ratio > least_ratio)


def dirt_of(log: Log, durable_to: int, wall_ms: int) -> DirtyRange | None:
    """What there is to compact, None if there is nothing at all.

    durable_to: the recovery point that a crash would find. Raises OSError.
    """
    segments = log.segments
    if len(segments) < 2:
        return None
    first_dirty = log.cleaned_to
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    last_stable = min(log.last_stable_offset, log.recovery_point, durable_to)
    lag_ms = log.config.min_compaction_lag_ms
    count = 0  # segments that may be compacted
    for at, segment in enumerate(segments[:-1]):
        following = segments[at + 1].base_offset
        too_young = lag_ms > 0 and following > first_dirty and segment.largest_timestamp > wall_ms - lag_ms
        if following > last_stable or too_young:
            break
        count += 1
    if not count:
        return None
    end_offset = segments[count].base_offset
    clean_bytes = dirty_bytes = 0
    for at in range(count):
        if segments[at + 1].base_offset <= first_dirty:
            clean_bytes += segments[at].size
        else:
            dirty_bytes += segments[at].size
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    return DirtyRange(first_dirty, end_offset, dirty_bytes, ratio, _overdue_ms(log, first_dirty, count, wall_ms))


def _overdue_ms(log: Log, first_dirty: int, count: int, wall_ms: int) -> int:
    """By how much the first record of a dirty segment is older than max.compaction.lag.ms; 0 if none is."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= NEVER:
        return 0
    dirty = (each for at, each in enumerate(log.segments[:count]) if log.segments[at + 1].base_offset > first_dirty)
    born = (segment.first_timestamp for segment in dirty if segment.size)
    return max((wall_ms - lag_ms - each for each in born if 0 < each < wall_ms - lag_ms), default=0)


def groups_of(segments: Sequence[Segment], end_offset: int, *, most_bytes: int, most_index: int) -> list[list[Segment]]:
    """The segments put together into groups, each to become one: as many as fit into the limits.

    end_offset: behind the last one. most_bytes: of batches, segment.bytes. most_index: bytes of each index. No group
    spans more offsets than a segment's relative offsets can tell.
    """
    groups: list[list[Segment]] = []
    size = offsets_bytes = times_bytes = 0
    for at, segment in enumerate(segments):
        end = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        index = segment.index_bytes
        fits = (
            groups
            and size + segment.size <= most_bytes
            and offsets_bytes + index[0] <= most_index
            and times_bytes + index[1] <= most_index
            and (not segment.size or end - 1 - groups[-1][0].base_offset <= MAX_RELATIVE_OFFSET)
        )
        if not fits:
            groups.append([])
            size = offsets_bytes = times_bytes = 0
        groups[-1].append(segment)
        size += segment.size
        offsets_bytes += index[0]
        times_bytes += index[1]
    return groups
