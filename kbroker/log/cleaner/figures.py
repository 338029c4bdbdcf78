"""What the cleaner tells a monitoring system: how the last compaction went, how dirty logs are.

Kept by the cleaner, a few numbers for each sweep and each compaction; read by `api/figures.py` under the names that
Kafka's LogCleaner and LogCleanerManager have.
"""

from __future__ import annotations


class CleanerFigures:
    """Numbers since the start.

    Of the last compaction that reached its end: read_bytes (of the segments rewritten), written_bytes, map_share
    (which part of log.cleaner.dedupe.buffer.size, divided by the threads, its keys took), took_ms.
    Of the last sweep over all logs: swept_ms (wall clock; 0: there was none yet), dirtiest_ratio, overdue_ms (by how
    much the oldest dirty record is older than max.compaction.lag.ms).
    """

    __slots__ = ("dirtiest_ratio", "map_share", "overdue_ms", "read_bytes", "swept_ms", "took_ms", "written_bytes")

    def __init__(self) -> None:
        self.read_bytes = 0
        self.written_bytes = 0
        self.map_share = 0.0
        self.took_ms = 0
        self.swept_ms = 0
        self.dirtiest_ratio = 0.0
        self.overdue_ms = 0

    @property
    def recopied(self) -> float:
        """Which part of what was read has been written again."""
        return self.written_bytes / max(1, self.read_bytes)
