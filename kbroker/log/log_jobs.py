"""The settings of the log manager, the jobs that wait for their time, and when background work falls due.

Owned and called by the manager and its log directories. A job's `run` may happen on any thread and touches files only;
what changes names that the owning thread relies on happens in `LogManager.finished`. So a checkpoint's text is written
and made durable in `run`, under a name of its own, and put in place by the owning thread: no two writers ever race for
a file, and an older text never overtakes a newer one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from kbroker.config import BrokerConfig
from kbroker.config.limits import MOST_LOG_FILES
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.config import NEVER
from kbroker.log.names import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    TopicPartition,
)
from protocol.namedtuple import NamedTuple

RETENTION = "retention"
FLUSH = "flush"
PRODUCER_EXPIRY = "producer expiry"

RunAll = Callable[[Sequence[Callable[[], None]]], None]
"""Runs tasks, side by side if it can, and returns when all have ended. The tasks raise nothing."""


def one_after_another(tasks: Sequence[Callable[[], None]]) -> None:
    """The `RunAll` without threads, for simulations and tests."""
    for task in tasks:
        task()


class ManagerConfig(NamedTuple):
    """Broker settings of the same meaning, in ms; defaults as in Apache Kafka 3.9.

    A period of 0 or less is none: the work is done once, initial_delay_ms after the start.
    """

    retention_check_interval_ms: int = 300_000  # log.retention.check.interval.ms
    flush_scheduler_interval_ms: int = NEVER  # log.flush.scheduler.interval.ms
    recovery_point_interval_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    log_start_interval_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_interval_ms: int = 5_000  # replica.high.watermark.checkpoint.interval.ms
    producer_expiry_interval_ms: int = 600_000  # producer.id.expiration.check.interval.ms
    initial_delay_ms: int = 30_000  # of everything above, after the start
    file_delete_delay_ms: int = 60_000  # log.segment.delete.delay.ms, of what an earlier life left behind
    threads: int = 1  # num.recovery.threads.per.data.dir, for closing; a directory is loaded by one
    cleaner: CleanerConfig = CleanerConfig()
    open_files: int = MOST_LOG_FILES  # descriptors that idle segments may hold, all directories together

    @classmethod
    def of(cls, broker: BrokerConfig) -> ManagerConfig:
        """The same from a broker's resolved settings."""
        return cls(
            retention_check_interval_ms=broker.log_retention_check_interval_ms,
            flush_scheduler_interval_ms=broker.log_flush_scheduler_interval_ms,
            recovery_point_interval_ms=broker.log_flush_offset_checkpoint_interval_ms,
            log_start_interval_ms=broker.log_flush_start_offset_checkpoint_interval_ms,
            high_watermark_interval_ms=broker.replica_high_watermark_checkpoint_interval_ms,
            producer_expiry_interval_ms=broker.producer_id_expiration_check_interval_ms,
            initial_delay_ms=broker.log_initial_task_delay_ms,
            file_delete_delay_ms=broker.log_segment_delete_delay_ms,
            threads=broker.num_recovery_threads_per_data_dir,
            cleaner=CleanerConfig.of(broker),
        )


class Job(Protocol):
    """Something that waits for a disk: `run` on any thread, once, then `LogManager.finished`."""

    def run(self) -> None:
        """Raises OSError, to be handed to `finished`."""
        ...


class Later:
    """Jobs whose time has not come, soonest first."""

    __slots__ = ("_heap", "_numbered")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Job]] = []  # when, tie-breaker, what
        self._numbered = 0

    def put(self, due_ms: int, job: Job) -> None:
        """Remember one until then."""
        self._numbered += 1
        heapq.heappush(self._heap, (due_ms, self._numbered, job))

    def take(self, now_ms: int) -> Iterator[Job]:
        """Those whose time has come."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heapq.heappop(self._heap)[2]

    @property
    def next_ms(self) -> int:
        """When the first is due."""
        return self._heap[0][0] if self._heap else NEVER


class Timers:
    """When each kind of background work falls due, and the looks at all logs that are under way.

    Work comes in two kinds: checkpoints, at once; and sweeps over all partitions, a few partitions a turn.
    """

    __slots__ = ("_due", "_intervals", "_sweeps")

    def __init__(self, config: ManagerConfig, now_ms: int) -> None:
        self._intervals = {
            RETENTION: config.retention_check_interval_ms,
            FLUSH: config.flush_scheduler_interval_ms,
            PRODUCER_EXPIRY: config.producer_expiry_interval_ms,
            RECOVERY_POINTS: config.recovery_point_interval_ms,
            LOG_START_OFFSETS: config.log_start_interval_ms,
            HIGH_WATERMARKS: config.high_watermark_interval_ms,
        }
        first = now_ms + config.initial_delay_ms
        self._due = {name: first for name, interval in self._intervals.items() if interval < NEVER}
        self._sweeps: dict[str, Iterator[TopicPartition]] = {}

    def checkpoints_due(self, now_ms: int) -> list[str]:
        """The checkpoints to be written now."""
        return [name for name in OFFSET_CHECKPOINTS if self._claim_due(name, now_ms)]

    def sweep(
        self, partitions: Iterable[TopicPartition], now_ms: int, most: int
    ) -> Iterator[tuple[str, TopicPartition]]:
        """The partitions to look at in this turn, and why; at most so many for each reason, or as many as are taken."""
        for name in (RETENTION, FLUSH, PRODUCER_EXPIRY):
            if name not in self._sweeps and self._claim_due(name, now_ms):
                self._sweeps[name] = iter(list(partitions))
        for name, left in list(self._sweeps.items()):
            for _ in range(most):
                partition = next(left, None)
                if partition is None:
                    del self._sweeps[name]
                    break
                yield name, partition

    def next_ms(self, now_ms: int) -> int:
        """When something falls due: now_ms if a sweep is under way."""
        return now_ms if self._sweeps else min(self._due.values(), default=NEVER)

    def _claim_due(self, name: str, now_ms: int) -> bool:
        if self._due.get(name, NEVER) > now_ms:
            return False
        interval_ms = self._intervals[name]
        self._due[name] = now_ms + interval_ms if interval_ms > 0 else NEVER
        return True
