"""The log on the real disk: appends, lookups, memory and start, against their budgets.

Times are the process's own CPU time (user and system), medians over rounds in which all subjects take turns. The log
checks everything it checks for a producer: header, checksum, every record, sequence. Files are in a temporary folder
(set TMPDIR to choose the disk). `--quick` leaves out what takes more than a few seconds to set up.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter, process_time
from typing import NamedTuple

from kbroker.log.config import LogConfig
from kbroker.log.folder import OpenFiles
from kbroker.log.log import Log
from kbroker.log.recovery import open_log
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.files import SystemDisk
from protocol.records import Record, crc32c, walker_kind
from protocol.records.batch import write_crc
from protocol.records.content import build_batch

NOW = 1_700_000_000_000
ROUNDS = 21
PARTITIONS = 10_000
SEGMENTS = 10_000


class Result(NamedTuple):
    """A measured number and what it may be at most."""

    name: str
    value: float
    unit: str
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the budget is met."""
        return self.value <= self.limit


def batch_of(count: int, size: int, producer_id: int = -1) -> bytearray:
    """A v2 batch of `count` records whose values have `size` bytes."""
    value = random.Random(1).randbytes(size)
    records = [Record(i, NOW, None, value) for i in range(count)]
    epoch, sequence = (0, 0) if producer_id >= 0 else (-1, -1)
    return build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def new_log(folder: str, config: LogConfig, limit: int = 4096) -> Log:
    """A log in a folder of its own."""
    os.makedirs(folder, exist_ok=True)
    return open_log(
        SystemDisk(), folder, config, open_files=OpenFiles(limit), random=SystemRandom(), wall_ms=NOW, clean=True
    )


def cpu_us(work: Callable[[], object], units: int) -> float:
    """CPU time of one call, by unit."""
    start = process_time()
    work()
    return (process_time() - start) / units * 1e6


def median_us(subjects: dict[str, Callable[[], Callable[[], object]]], units: int) -> dict[str, float]:
    """Medians by subject. subjects: each sets a round up and returns what is timed."""
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(ROUNDS):
        for name, prepare in subjects.items():
            samples[name].append(cpu_us(prepare(), units))
    return {name: statistics.median(values) for name, values in samples.items()}


def append_small(folder: str) -> list[Result]:
    """One-record batches of 100 bytes, without and with a producer id."""
    many = 2000
    log = new_log(f"{folder}/small", LogConfig())
    plain, idempotent = bytes(batch_of(1, 100)), batch_of(1, 100, producer_id=7)
    sequence = 0

    def appends(make: Callable[[], memoryview]) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            batches = [make() for _ in range(many)]

            def work() -> None:
                append = log.append_as_leader
                for each in batches:
                    append(each, 0, NOW)

            return work

        return prepare

    def next_in_sequence() -> memoryview:
        nonlocal sequence
        struct.pack_into(">i", idempotent, 53, sequence)
        write_crc(idempotent, 0, len(idempotent))
        sequence += 1
        return memoryview(bytearray(idempotent))

    medians = median_us(
        {
            "append a 1-record batch of 100 bytes": appends(lambda: memoryview(bytearray(plain))),
            "append one of an idempotent producer": appends(next_in_sequence),
        },
        many,
    )
    return [Result(name, value, "us", 8.0) for name, value in medians.items()]


def append_large(folder: str) -> list[Result]:
    """Batches of 64 KB beside a bare loop that computes the checksum and writes the same bytes."""
    results = []
    for size, count in ((1000, 64), (100, 600)):
        many = 300
        log = new_log(f"{folder}/large{size}", LogConfig())
        bare = os.open(f"{folder}/bare{size}", os.O_RDWR | os.O_CREAT)
        data = memoryview(batch_of(count, size))
        written = 0

        def prepare_log(log: Log = log, data: memoryview = data, many: int = many) -> Callable[[], object]:
            batches = [memoryview(bytearray(data)) for _ in range(many)]

            def work() -> None:
                for each in batches:
                    log.append_as_leader(each, 0, NOW)

            return work

        def prepare_bare(bare: int = bare, data: memoryview = data, many: int = many) -> Callable[[], object]:
            batches = [memoryview(bytearray(data)) for _ in range(many)]

            def work() -> None:
                nonlocal written
                for each in batches:
                    crc32c(each[21:])
                    os.pwrite(bare, each, written)
                    written += len(each)
                    written %= 1 << 30

            return work

        medians = median_us({"log": prepare_log, "bare": prepare_bare}, many)
        os.close(bare)
        name = f"append {len(data) // 1024} KB of {size}-byte records ({medians['log']:.1f} us) over a bare loop"
        results.append(Result(name, medians["log"] / medians["bare"], "x", 1.4))
    return results


def lookup(folder: str) -> list[Result]:
    """Offsets at random in a log of many segments, each lookup from nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    config = LogConfig(segment_bytes=8 << 10, index_interval_bytes=1 << 10, segment_index_bytes=1 << 10)
    log = new_log(f"{folder}/many", config, limit=int(hard * 0.9))
    data = bytes(batch_of(1, 930))
    while len(log.segments) < SEGMENTS:
        log.append_as_leader(memoryview(bytearray(data)), 0, NOW)
    offsets = random.Random(2).choices(range(log.log_end_offset), k=2000)

    def prepare() -> Callable[[], object]:
        def work() -> None:
            for offset in offsets:
                log.forget_places()
                log._locate(offset)

        return work

    prepare()()
    value = median_us({"lookup": prepare}, len(offsets))["lookup"]
    log.close_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [Result(f"look an offset up in {len(log.segments):,} segments", value, "us", 10.0)]


def start(folder: str) -> list[Result]:
    """Open many partitions of one small segment each after a clean stop, in a process of its own."""
    root = f"{folder}/partitions"
    data = bytes(batch_of(3, 100))
    for i in range(PARTITIONS):
        log = new_log(f"{root}/t-{i}", LogConfig())
        log.append_as_leader(memoryview(bytearray(data)), 0, NOW)
        log.close()
    command = [sys.executable, "-m", "benchmarks.log", "--open", root]
    told = [subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() for _ in range(3)]
    seconds, megabytes, kilobytes_each = min(tuple(map(float, each)) for each in told)  # the first may find a cold disk
    return [
        Result(f"open {PARTITIONS:,} partitions", seconds, "s", 2.0),
        Result("memory of that process", megabytes, "MB", 60.0),
        Result("memory of one idle partition", kilobytes_each, "KB", 6.0),
    ]


def open_all(root: str) -> None:
    """What the process of its own does: print seconds, MB in all, KB a partition."""
    disk, rng, config, open_files = SystemDisk(), SystemRandom(), LogConfig(), OpenFiles(4096)
    before = resident_mb()
    began = perf_counter()
    logs = [
        open_log(disk, f"{root}/{name}", config, open_files=open_files, random=rng, wall_ms=NOW, clean=True)
        for name in sorted(os.listdir(root))
    ]
    seconds = perf_counter() - began
    assert all(log.log_end_offset == 3 for log in logs)
    after = resident_mb()
    print(seconds, after, (after - before) * 1024 / len(logs))


def resident_mb() -> float:
    """Memory of this process now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / (1 << 20)


def main(arguments: list[str]) -> int:
    """Measure, print, and say by the exit code whether all budgets hold."""
    if arguments[:1] == ["--open"]:
        open_all(arguments[1])
        return 0
    print(f"walker: {walker_kind()}")
    parts = [append_small, append_large] if "--quick" in arguments else [append_small, append_large, lookup, start]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as folder:
        for part in parts:
            for result in part(folder):
                missed += not result.holds
                verdict = "holds" if result.holds else "MISSED"
                print(
                    f"{result.name:75} {result.value:8.2f} {result.unit:3} of {result.limit:g}  {verdict}", flush=True
                )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
