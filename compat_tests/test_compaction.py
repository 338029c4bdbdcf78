"""The same log compacted by Apache's cleaner and by ours: the same batches and records are left."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from compat_tests.apache import dump_log
from compat_tests.compaction import clean_by_apache, clean_by_us, left_in
from kbroker.log.config import LogConfig
from kbroker.log.folder import OpenFiles
from kbroker.log.log import Log
from kbroker.log.producer_state import Origin
from kbroker.log.recovery import open_log
from kbroker.runtime.files import SystemDisk
from kbroker.sim.clock import SimRandom
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from tests.log.worlds import NOW, marker

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
CONFIG = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=20_000,
    index_interval_bytes=500,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
)


class Writer:
    """Appends of every kind, as chance has them."""

    def __init__(self, log: Log, seed: int) -> None:
        self.log = log
        self.rng = random.Random(seed)
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def records(self, count: int, base: int = 0) -> list[Record]:
        rng = self.rng
        found = []
        for at in range(count):
            value = None if rng.random() < 0.15 else rng.randbytes(rng.randrange(60)) * 2
            headers = ((b"h", b"x"),) if rng.random() < 0.2 else ()
            time = NOW + base + at if rng.random() < 0.9 else -1
            found.append(Record(base + at, time, b"key-%d" % rng.randrange(60), value, headers))
        return found

    def old(self) -> None:
        base = self.log.log_end_offset
        records = [each._replace(headers=()) for each in self.records(self.rng.randrange(1, 6), base)]
        magic, codec_id = self.rng.choice([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3)])
        self.log.append_as_follower(memoryview(legacy.build_set(records, magic, codec_id=codec_id)), NOW)

    def new(self) -> None:
        count, producer = self.rng.randrange(1, 8), self.rng.choice([-1, -1, 5, 6, 7, 8])
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        self.sequences[producer] = sequence + count
        in_transaction = producer >= 7
        if in_transaction:
            self.open.add(producer)
        data = build_batch(
            self.records(count),
            codec_id=self.rng.randrange(5),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=in_transaction,
        )
        self.log.append_as_leader(memoryview(data), 0, NOW)

    def end(self) -> None:
        if self.open:
            producer = self.open.pop()
            data = marker(producer, 0, commit=self.rng.random() < 0.5)
            self.log.append_as_leader(data, 0, NOW, Origin.COORDINATOR)

    def write(self, times: int, *, old: bool) -> None:
        for _ in range(times):
            self.rng.choice([self.new, self.new, self.end, *([self.old] if old else [])])()
        while self.open:
            self.end()
        self.log.roll(NOW)
        self.log.append_as_leader(memoryview(build_batch([Record(0, NOW, b"last", b"")])), 0, NOW)


def written(directory: Path, seed: int, *, old: bool) -> None:
    """A log directory with a partition that has something of everything."""
    folder = directory / "t-0"
    folder.mkdir(parents=True)
    log = open_log(
        SystemDisk(), str(folder), CONFIG, open_files=OpenFiles(9), random=SimRandom(1), wall_ms=NOW, clean=False
    )
    log.set_high_watermark(0)
    Writer(log, seed).write(600, old=old)
    log.close()


@pytest.mark.parametrize(
    ("seed", "old"), [(1, False), (2, False), pytest.param(3, True, marks=pytest.mark.quick), (4, True)]
)
def test_both_cleaners_leave_the_same(tmp_path: Path, seed: int, old: bool) -> None:
    written(tmp_path / "ours", seed, old=old)
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    before = len(left_in(tmp_path / "ours"))
    clean_by_us(tmp_path / "ours", CONFIG)
    clean_by_apache(tmp_path / "theirs", CONFIG)
    ours, theirs = left_in(tmp_path / "ours"), left_in(tmp_path / "theirs")
    assert len(ours) < before
    assert ours == theirs


def test_apaches_tool_finds_nothing_wrong_with_what_is_compacted(tmp_path: Path) -> None:
    written(tmp_path / "ours", 5, old=False)
    clean_by_us(tmp_path / "ours", CONFIG)
    files = [str(path) for path in sorted((tmp_path / "ours" / "t-0").glob("*.*")) if path.suffix in (".log", ".index")]
    done = dump_log("3.9.1", "--index-sanity-check", "--files", ",".join(files))
    assert done.returncode == 0, done.stderr
    assert "passed sanity check" in done.stdout
    assert "Mismatch" not in done.stdout + done.stderr
