"""Compaction of one log beside Apache's cleaner, in one run on one machine: 1 GB of 100-byte values, 10 % unique keys.

    scripts/bench cleaner [--megabytes N] [--rounds N] [--only time | p99]

- Time: each cleans a copy of the same directory, in turns; the times are the cleaners' own, JVM start and opening left
  out. Ours in a process beside, as a broker has it.
- 99th percentile: one small produce at a time to another partition, of a broker that has such a log: before, while it
  is compacted, and afterwards. Cores are kept awake, as in the rows of latency of `scripts/bench broker`. Apache's
  broker the same way, to tell what the machine does to anybody's; the budget is ours alone.

Files are in a temporary folder (set TMPDIR to choose the disk).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.awake import cores_awake
from benchmarks.harness.brokers import APACHES, OURS, RELEASE, Broker, started
from benchmarks.harness.wire import Connection, LoadError, Producer, batch, create_topics, produce_frame
from compat_tests.compaction import clean_by_apache, clean_by_us
from kbroker.log.checkpoints import parse_offsets
from kbroker.log.config import LogConfig
from kbroker.log.folder import OpenFiles
from kbroker.log.recovery import open_log
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.compaction_beside import Beside
from kbroker.runtime.files import SystemDisk
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.records import Record
from protocol.records.content import build_batch

NOW = 1_700_000_000_000
MOST_TIME, MOST_P99 = 1.0, 2.0
VALUE_BYTES, RECORDS_A_BATCH, BYTES_A_RECORD = 100, 140, 120
SEGMENT_BYTES = 128 << 20
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=SEGMENT_BYTES,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)
DIRTY_RATIO = "min.cleanable.dirty.ratio"
TOPIC = ("cleanup.policy=compact", f"segment.bytes={SEGMENT_BYTES}", f"{DIRTY_RATIO}=1.0")  # never due, so far
TOPIC_RESOURCE = 2
PINGS_AT_ONCE, PINGS_ALONE = 200, 20_000
PINGS_OF_A_WARM_UP = {OURS: 5_000, APACHES: 40_000}  # a JVM compiles first
DATA = {OURS: "data", APACHES: "data0"}  # where in a broker's folder its log directory is
PATIENCE_S = 120


def fill(directory: Path, megabytes: int) -> int:
    """Write the log of t-0; how many of its offsets can be cleaned."""
    folder = directory / "t-0"
    folder.mkdir(parents=True)
    log = open_log(
        SystemDisk(), str(folder), CONFIG, open_files=OpenFiles(9), random=SystemRandom(), wall_ms=NOW, clean=False
    )
    rng = random.Random(1)
    records = megabytes * 1_000_000 // BYTES_A_RECORD
    value, keys = rng.randbytes(VALUE_BYTES), records // 10
    while log.log_end_offset < records:
        batch_of_keys = [Record(at, NOW + at, b"%012d" % rng.randrange(keys), value) for at in range(RECORDS_A_BATCH)]
        log.append_as_leader(memoryview(build_batch(batch_of_keys)), 0, NOW)
    log.roll(NOW)
    end_offset = log.log_end_offset
    log.append_as_leader(memoryview(build_batch([Record(0, NOW, b"last", b"")])), 0, NOW)
    log.close()
    return end_offset


# ---- beside Apache's


def times(name: Path, source: Path, rounds: int) -> bool:
    """Measure both cleaners in turns; whether the budget holds."""
    ratios = []
    for at in range(rounds):
        ours, theirs = name / f"ours-{at}", name / f"theirs-{at}"
        shutil.copytree(source, ours)
        os.sync()  # the copy's pages are not to be written while a cleaner is timed
        took = clean_by_us(ours, CONFIG, Beside())
        shutil.rmtree(ours)
        shutil.copytree(source, theirs)
        os.sync()
        apache_ms = clean_by_apache(theirs, CONFIG, "-Xmx1g")
        shutil.rmtree(theirs)
        ratios.append(took.ms / apache_ms)
        print(f"kbroker {took.ms:,.0f} ms ({took.cpu_ms:,.0f} ms CPU), Apache 3.9.1 {apache_ms:,.0f} ms", flush=True)
    ratio = statistics.median(ratios)
    print(f"{ratio:.2f}x Apache's time, at most {MOST_TIME:.2f}x: {verdict(ratio <= MOST_TIME)}", flush=True)
    return ratio <= MOST_TIME


def verdict(holds: bool) -> str:
    """Of a budget."""
    return "ok" if holds else "MISSED"


# ---- beside other partitions


class Waits(NamedTuple):
    """How long requests took, in us."""

    p50: float
    p99: float
    longest: float
    count: int

    @classmethod
    def of(cls, seconds: list[float]) -> Waits:
        """From each one's seconds."""
        hundredths = statistics.quantiles(seconds, n=100)
        return cls(hundredths[49] * 1e6, hundredths[98] * 1e6, max(seconds) * 1e6, len(seconds))

    def __str__(self) -> str:
        return f"p50 {self.p50:,.0f}, p99 {self.p99:,.0f}, longest {self.longest:,.0f} us of {self.count:,}"


def waits(name: Path, source: Path, end_offset: int, rounds: int) -> bool:
    """Measure another partition's producer beside the cleaners, in turns; whether the budget holds."""
    ratios: dict[str, list[float]] = {OURS: [], APACHES: []}
    for at in range(rounds):
        for kind, found in ratios.items():
            before, beside, after, took_s = one_log(kind, name / f"{kind}-{at}", source, end_offset)
            found.append(beside.p99 / statistics.mean((before.p99, after.p99)))
            print(f"{kind}: {found[-1]:.2f}x", flush=True)
            print(f"  before: {before}\n  beside: {beside}, in {took_s:.1f} s\n  after:  {after}", flush=True)
    ratio, theirs = (statistics.median(ratios[kind]) for kind in (OURS, APACHES))
    print(
        f"{ratio:.2f}x the p99 of before and after, at most {MOST_P99:.2f}x: {verdict(ratio <= MOST_P99)}; "
        f"Apache {RELEASE} {theirs:.2f}x",
        flush=True,
    )
    return ratio <= MOST_P99


def one_log(kind: str, folder: Path, source: Path, end_offset: int) -> tuple[Waits, Waits, Waits, float]:
    """A broker that comes to have the log: how long a producer waits before, beside and after, and seconds beside."""
    settings = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    with started(kind, folder, settings) as broker:
        with broker.connect() as connection:
            create_topics(connection, ["t"], configs=TOPIC)
            create_topics(connection, ["other"])
        broker.stop()
        take_over(source / "t-0", folder / DATA[kind] / "t-0")
        broker.launch_ready()
        with broker.connect() as connection, broker.connect() as admin, cores_awake():
            producer = Producer(connection, produce_frame("other", [batch(1, 100)]))
            producer.latencies(PINGS_OF_A_WARM_UP[kind])
            before = producer.latencies(PINGS_ALONE)
            set_dirty_ratio(admin, "0.01")
            beside, took_s = until_cleaned(broker, producer, end_offset)
            after = producer.latencies(PINGS_ALONE)
    return Waits.of(before), Waits.of(beside), Waits.of(after), took_s


def take_over(source: Path, target: Path) -> None:
    """Put the log's files where an empty partition's are, and have them on the disk."""
    for path in target.glob("0*"):
        path.unlink()
    for path in source.glob("0*"):
        shutil.copy(path, target)
    os.sync()


def set_dirty_ratio(admin: Connection, ratio: str) -> None:
    """From which part of the log on it is compacted."""
    config = IncrementalAlterableConfig(name=DIRTY_RATIO, config_operation=0, value=ratio)
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="t", configs=[config])
    answer = admin.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    [outcome] = answer.responses
    if outcome.error_code:
        raise LoadError(f"{DIRTY_RATIO}: error {outcome.error_code} {outcome.error_message}")


def until_cleaned(broker: Broker, producer: Producer, end_offset: int) -> tuple[list[float], float]:
    """Produce while the log is compacted: each request's seconds, and all of them."""
    checkpoint, begun = broker.folder / DATA[broker.kind] / "cleaner-offset-checkpoint", time.monotonic()
    seconds: list[float] = []
    while not checkpoint.exists() or end_offset not in parse_offsets(checkpoint.read_text()).values():
        if time.monotonic() - begun > PATIENCE_S:
            raise LoadError(f"not compacted in {PATIENCE_S} s: {broker.output()[-2000:]}")
        seconds += producer.latencies(PINGS_AT_ONCE)
    return seconds, time.monotonic() - begun


def main() -> int:
    """Measure; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench cleaner", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("time", "p99"))
    arguments = parser.parse_args()
    held = True
    with tempfile.TemporaryDirectory(prefix="kbroker-cleaner-") as name:
        source = Path(name, "log")
        end_offset = fill(source, arguments.megabytes)
        print(f"a log of {arguments.megabytes} MB, {end_offset:,} records", flush=True)
        if arguments.only != "p99":
            held &= times(Path(name), source, arguments.rounds)
        if arguments.only != "time":
            held &= waits(Path(name), source, end_offset, arguments.rounds)
    return int(not held)


if __name__ == "__main__":
    sys.exit(main())
