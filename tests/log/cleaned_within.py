"""Compaction of a log that is larger than the memory it may take: test_cleaner_memory.py.

`python -m tests.log.cleaned_within FOLDER` makes the log, has it compacted on the real disk, checks what is left, and
prints the log's bytes, the number of passes, and the bytes of memory that the process had before, and at most
meanwhile. A process of its own, so that nobody else's memory counts.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.config import LogConfig
from kbroker.log.facts import LogCleaned
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import LogManager
from kbroker.runtime.files import SystemDisk
from protocol.records import Record
from protocol.records.cleaning import SLOT_BYTES
from protocol.records.content import build_batch, parse_set
from tests.log.managers import run_jobs, start, told
from tests.log.worlds import NOW
from tests.protocol.records.bombs import forget_peak, resident

RECORDS, KEYS, VALUE_BYTES, RECORDS_A_BATCH = 24_000, 12_000, 1000, 16
KEYS_A_PASS = 4_000
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=8 << 20,
    min_cleanable_dirty_ratio=0.01,
    file_delete_delay_ms=0,
)
MANAGER = ManagerConfig(
    initial_delay_ms=0, cleaner=CleanerConfig(backoff_ms=10, dedupe_buffer_size=KEYS_A_PASS * SLOT_BYTES)
)
MOST_TURNS = 500


def fill(manager: LogManager) -> dict[bytes, int]:
    """Write the log, its active segment being empty; the last offset of each key."""
    log, rng, last = manager.get("t", 0), random.Random(1), {}
    assert log is not None
    value = rng.randbytes(VALUE_BYTES)
    while log.log_end_offset < RECORDS:
        first = log.log_end_offset
        keys = [b"%d" % rng.randrange(KEYS) for _ in range(RECORDS_A_BATCH)]
        last.update((key, first + at) for at, key in enumerate(keys))
        records = [Record(at, NOW, key, value) for at, key in enumerate(keys)]
        log.append_as_leader(memoryview(build_batch(records)), 0, NOW)
    log.roll(NOW)
    log.set_high_watermark(log.log_end_offset)
    manager.flush("t", 0)
    run_jobs(manager)
    return last


def compact(manager: LogManager) -> None:
    """Let time go by until the log is clean to its end."""
    log = manager.get("t", 0)
    assert log is not None
    for turn in range(1, MOST_TURNS):
        manager.due(10 * turn, NOW)
        run_jobs(manager, 10 * turn)
        if log.cleaned_to == log.log_end_offset:
            return
    raise AssertionError(f"clean to {log.cleaned_to} of {log.log_end_offset} after {MOST_TURNS} turns")


def left_in(folder: Path) -> dict[bytes, int]:
    """The offset of each key, of which there must be one."""
    found: dict[bytes, int] = {}
    for path in folder.glob("*.log"):
        for _, records in parse_set(path.read_bytes()):
            for record in records:
                assert record.key is not None
                assert record.key not in found, record
                found[record.key] = record.offset
    return found


def main(folder: str) -> None:
    """Make, compact, check, tell."""
    manager = start(SystemDisk(), folder, config=CONFIG, manager_config=MANAGER)  # type: ignore[arg-type]
    manager.get_or_create("t", 0, None, CONFIG, is_new=True, wall_ms=NOW)
    last = fill(manager)
    size = sum(path.stat().st_size for path in Path(folder, "t-0").glob("*.log"))
    forget_peak()
    before = resident("VmRSS")
    compact(manager)
    most, passes = resident("VmHWM"), len(told(manager, LogCleaned))
    assert left_in(Path(folder, "t-0")) == last
    print(size, passes, before, most)


if __name__ == "__main__":
    main(sys.argv[1])
