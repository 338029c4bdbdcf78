"""Managers, and what tests do with them, in a line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kbroker.log.checkpoints import read_text
from kbroker.log.cleaner.cleaner import BeginCompaction
from kbroker.log.config import LogConfig
from kbroker.log.facts import Notice
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.log_loader import LoadProgress
from kbroker.log.manager import LogManager, open_logs
from kbroker.sim.clock import SimRandom
from kbroker.sim.disk import SimDisk
from kbroker.timing import NEVER, Scheduler
from tests.log.worlds import NOW, batch

T = TypeVar("T")

TOPIC_ID = bytes(range(1, 17))
CONFIG = ManagerConfig(initial_delay_ms=0)


def start(
    disk: SimDisk,
    *paths: str,
    config: LogConfig | None = None,
    manager_config: ManagerConfig = CONFIG,
    node_id: int = 1,
    cluster_id: str | None = "c",
    progress: Callable[[LoadProgress], None] | None = None,
    begin: BeginCompaction | None = None,
) -> LogManager:
    return open_logs(
        disk,
        SimRandom(1),
        paths or ("/a",),
        config_of=lambda _: config or LogConfig(),
        cluster_id=cluster_id,
        node_id=node_id,
        config=manager_config,
        now_ms=0,
        wall_ms=NOW,
        tell=[].append,
        alarm=Scheduler().alarm(lambda now_ms: None),
        progress=progress,
        begin_compaction=begin,
    )


def wakes_ms(manager: LogManager) -> int:
    """When a manager wants `due` to be called: 0 for at once."""
    alarm = manager.alarm
    return 0 if alarm in alarm._scheduler.wanted else alarm.deadline_ms if alarm.pending else NEVER


def told(manager: LogManager, kind: type[T]) -> list[T]:
    """The facts of one type that a manager of `start` has told."""
    return [fact for fact in manager._tell.__self__ if isinstance(fact, kind)]  # type: ignore[attr-defined]


def notices(manager: LogManager) -> list[str]:
    """What it had to say."""
    return [notice.text for notice in told(manager, Notice)]


def create(manager: LogManager, topic: str, *indices: int, is_new: bool = True) -> None:
    for index in indices or (0,):
        manager.get_or_create(topic, index, TOPIC_ID, LogConfig(), is_new=is_new, wall_ms=NOW)


def append(manager: LogManager, topic: str, index: int = 0, count: int = 1) -> None:
    log = manager.get(topic, index)
    assert log is not None
    log.append_from_client(batch(count), 0, NOW)
    log.set_high_watermark(log.log_end_offset)


def run_jobs(manager: LogManager, now_ms: int = 0) -> int:
    """Run what the pool would, until there is no more; how many."""
    count = 0
    while jobs := manager.take_jobs(now_ms):
        for job in jobs:
            count += 1
            try:
                job.run()
            except OSError as error:
                manager.finished(job, error, now_ms)
            else:
                manager.finished(job, None, now_ms)
    return count


def text(disk: SimDisk, path: str) -> str:
    folder, _, name = path.rpartition("/")
    return read_text(disk, folder, name) or ""


def names(disk: SimDisk, path: str) -> list[str]:
    return sorted(entry.name for entry in disk.list(path))
