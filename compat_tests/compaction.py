"""One partition's folder, compacted by Apache's own cleaner or by ours; what is left of it, to be compared.

Used by the compatibility suite and by the bench. Apache's is its class, in a JVM of its own (`drivers/CleanLog.java`);
ours is a log manager whose jobs run here, one after the other. Both on the real disk.
"""

from __future__ import annotations

import resource
import subprocess
import threading
import time
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

from compat_tests.apache import jars
from kbroker.log.cleaner.cleaner import BeginCompaction, CleanPiece
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.config import LogConfig
from kbroker.log.facts import LogCleaned, Notice
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import open_logs
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.files import SystemDisk
from kbroker.timing import Scheduler
from protocol.records import Record, legacy
from protocol.records.batch import MAGIC, MAGIC_AT
from protocol.records.content import parse_set

_DRIVER = Path(__file__).parent / "drivers" / "CleanLog.java"
_TURNS = 100_000
_PATIENCE_S = 60


class Took(NamedTuple):
    """Milliseconds on the clock, and of CPU: this process's and of those that it started."""

    ms: float
    cpu_ms: float


def clean_by_apache(directory: Path, config: LogConfig, *options: str) -> float:
    """Compact partition t-0 in a log directory by Apache 3.9.1; milliseconds, of the cleaner alone."""
    command = ["java", *options, "-cp", f"{jars('3.9.1')}/*", str(_DRIVER), str(directory / "t-0")]
    command += [f"segment.bytes={config.segment_bytes}", f"delete.retention.ms={config.delete_retention_ms}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.splitlines()[-1].split()[0])


def clean_by_us(directory: Path, config: LogConfig, begin: BeginCompaction | None = None) -> Took:
    """Compact partition t-0 in a log directory once, and stop cleanly. begin: None for a compaction in this process."""
    facts: list[object] = []
    threads_of_others = set(threading.enumerate())
    wall_ms, now_ms = int(time.time() * 1000), 0
    manager = open_logs(
        SystemDisk(),
        SystemRandom(),
        [str(directory)],
        config_of=lambda _: config,
        cluster_id=None,
        node_id=1,
        config=ManagerConfig(initial_delay_ms=0, cleaner=CleanerConfig(backoff_ms=10)),
        now_ms=now_ms,
        wall_ms=wall_ms,
        tell=facts.append,
        begin_compaction=begin,
        alarm=Scheduler().alarm(lambda now_ms: None),
    )
    for (topic, index), log in manager.logs():
        manager.reconfigure(topic, index, config)
        log.set_high_watermark(log.log_end_offset)
        manager.flush(topic, index)
    began = (0.0, 0.0)
    for _ in range(_TURNS):
        if any(isinstance(fact, LogCleaned) for fact in facts):
            break
        now_ms += 10
        manager.due(now_ms, wall_ms)
        for job in manager.take_jobs(now_ms):
            if isinstance(job, CleanPiece) and not began[0]:
                began = perf_counter(), _cpu_s()
            job.run()
            manager.finished(job, None, now_ms)
    ended = perf_counter()
    manager.close()
    for thread in set(threading.enumerate()) - threads_of_others:  # who waits for a process: then its time is known
        thread.join(_PATIENCE_S)
    took = Took((ended - began[0]) * 1000, (_cpu_s() - began[1]) * 1000)
    assert not [fact for fact in facts if isinstance(fact, Notice) and "compacted" in fact.text], facts
    assert began[0], "nothing was compacted"
    return took


def _cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + ended.ru_utime + ended.ru_stime


class Left(NamedTuple):
    """A batch as far as both must agree: not when its tombstones may go, nor how its bytes are compressed."""

    base_offset: int
    last_offset: int
    attributes: int
    max_timestamp: int
    producer: tuple[int, int, int]
    records: list[Record]


def left_in(directory: Path) -> list[Left]:
    """All batches, and old messages, of partition t-0."""
    found = []
    for path in sorted((directory / "t-0").glob("*.log")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
            part, at = data[at : at + size], at + size
            if part[MAGIC_AT] != MAGIC:
                old = legacy.parse_set(part)
                found += [Left(each.offset, each.offset, 0, each.timestamp, (-1, -1, -1), [each]) for each in old]
                continue
            [(header, records)] = parse_set(part)
            producer = header.producer_id, header.producer_epoch, header.base_sequence
            found.append(
                Left(
                    header.base_offset,
                    header.last_offset,
                    header.attributes,
                    header.max_timestamp,
                    producer,
                    records,
                )
            )
    return found
