"""Compaction of one log beside Apache's cleaner, in one run on one machine: 1 GB of 100-byte values, 10 % unique keys.

    scripts/bench cleaner [MEGABYTES]

Each cleans a copy of the same directory, in turns; the times are the cleaners' own, JVM start and opening left out.
Files are in a temporary folder (set TMPDIR to choose the disk).
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from compat_tests.compaction import clean_by_apache, clean_by_us
from kbroker.log import LogConfig, OpenFiles, open_log
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.files import SystemDisk
from protocol.records import Record
from protocol.records.content import build_batch

NOW = 1_700_000_000_000
BUDGET = 1.0
ROUNDS = 3
VALUE_BYTES, RECORDS_A_BATCH, BYTES_A_RECORD = 100, 140, 120
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=128 << 20,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)


def fill(directory: Path, megabytes: int) -> None:
    """Write the log."""
    folder = directory / "t-0"
    folder.mkdir(parents=True)
    log = open_log(
        SystemDisk(), str(folder), CONFIG, open_files=OpenFiles(9), random=SystemRandom(), wall_ms=NOW, clean=False
    )
    chance = random.Random(1)
    records = megabytes * 1_000_000 // BYTES_A_RECORD
    value, keys = chance.randbytes(VALUE_BYTES), records // 10
    while log.log_end_offset < records:
        batch = [Record(at, NOW + at, b"%012d" % chance.randrange(keys), value) for at in range(RECORDS_A_BATCH)]
        log.append_as_leader(memoryview(build_batch(batch)), 0, NOW)
    log.roll(NOW)
    log.append_as_leader(memoryview(build_batch([Record(0, NOW, b"last", b"")])), 0, NOW)
    log.close()


def main() -> int:
    """Measure; 1 if the budget is missed."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    ratios = []
    with tempfile.TemporaryDirectory(prefix="kbroker-cleaner-") as name:
        source = Path(name, "log")
        fill(source, megabytes)
        for at in range(ROUNDS):
            ours, theirs = Path(name, f"ours-{at}"), Path(name, f"theirs-{at}")
            shutil.copytree(source, ours)
            took = clean_by_us(ours, CONFIG)
            shutil.rmtree(ours)
            shutil.copytree(source, theirs)
            apache_ms = clean_by_apache(theirs, CONFIG, "-Xmx1g")
            shutil.rmtree(theirs)
            ratios.append(took.ms / apache_ms)
            ours_text = f"kbroker {took.ms:,.0f} ms ({took.cpu_ms:,.0f} ms CPU)"
            print(f"{megabytes} MB: {ours_text}, Apache 3.9.1 {apache_ms:,.0f} ms")
    ratio = statistics.median(ratios)
    print(f"{ratio:.2f}x Apache's time, at most {BUDGET:.2f}x: {'ok' if ratio <= BUDGET else 'MISSED'}")
    return int(ratio > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
