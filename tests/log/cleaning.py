"""A manager with one compacted partition on a simulated disk, and what its log must say of each key."""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.cleaner.cleaner import BeginCompaction
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.config import LogConfig
from kbroker.log.log import Log
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import LogManager
from kbroker.log.names import TopicPartition
from kbroker.log.producer_state import Origin
from kbroker.sim.disk import SimDisk
from protocol.records import Record, legacy
from protocol.records.batch import MAGIC, MAGIC_AT
from protocol.records.content import build_batch, parse_set
from tests.log.managers import run_jobs, start
from tests.log.worlds import NOW, marker

COMPACTED = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    segment_index_bytes=2400,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.01,
    file_delete_delay_ms=0,
)
QUICK = ManagerConfig(initial_delay_ms=0, cleaner=CleanerConfig(backoff_ms=10))
DAY = 24 * 3600 * 1000
Keyed = tuple[str, str | None]


class Compacted:
    """A broker's logs with partition t-0, whose clocks move when a test says so."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        config: LogConfig = COMPACTED,
        manager_config: ManagerConfig = QUICK,
        config_at_start: LogConfig | None = None,
        begin: BeginCompaction | None = None,
    ) -> None:
        """config_at_start: what is known of the settings while logs are loaded, if that is not all."""
        self.config_at_start = config_at_start or config
        self.disk = SimDisk(0, lambda: self.wall_ms) if disk is None else disk
        self.config = config
        self.manager_config = manager_config
        self.begin = begin
        self.now_ms = 0
        self.wall_ms = NOW
        self.sequences: dict[int, int] = {}
        self.written: list[Record] = []
        self.manager: LogManager
        self.start()

    def start(self) -> None:
        """Open the directory, and make the partition if it is not there."""
        self.manager = start(
            self.disk, config=self.config_at_start, manager_config=self.manager_config, begin=self.begin
        )
        self.manager.get_or_create("t", 0, None, self.config, is_new=True, wall_ms=self.wall_ms)
        self.manager.reconfigure("t", 0, self.config)
        self.log.set_high_watermark(self.log.log_end_offset)

    @property
    def log(self) -> Log:
        log = self.manager.get("t", 0)
        assert log is not None
        return log

    def append(
        self,
        *records: Keyed,
        producer: int = -1,
        epoch: int = 0,
        transactional: bool = False,
        codec_id: int = 0,
    ) -> None:
        """One batch; a new segment is flushed at once."""
        first = self.log.log_end_offset
        made = [
            Record(at, self.wall_ms + at, key.encode(), None if value is None else value.encode())
            for at, (key, value) in enumerate(records)
        ]
        sequence = self.sequences.get(producer, 0) if producer >= 0 else -1
        if producer >= 0:
            self.sequences[producer] = sequence + len(made)
        data = build_batch(
            made,
            codec_id=codec_id,
            producer_id=producer,
            producer_epoch=epoch if producer >= 0 else -1,
            base_sequence=sequence,
            transactional=transactional,
        )
        self.written += [record._replace(offset=first + at) for at, record in enumerate(made)]
        self._append(memoryview(data), Origin.CLIENT)

    def end(self, producer: int, *, commit: bool, epoch: int = 0) -> None:
        """A transaction ends."""
        self._append(marker(producer, epoch, commit=commit), Origin.COORDINATOR)

    def _append(self, data: memoryview, origin: Origin) -> None:
        plan = self.log.append_as_leader(data, 0, self.wall_ms, origin)
        self.log.set_high_watermark(self.log.log_end_offset)
        if plan.needs_flush:
            self.flush()

    def append_old(self, data: bytes) -> None:
        """Old messages as a follower gets them."""
        self.log.append_as_follower(memoryview(bytearray(data)), self.wall_ms)
        self.log.set_high_watermark(self.log.log_end_offset)

    def flush(self) -> None:
        self.manager.flush("t", 0)
        run_jobs(self.manager, self.now_ms)

    def roll(self) -> None:
        self.log.roll(self.wall_ms)
        self.flush()

    def compact(self, turns: int = 40) -> None:
        """Let time go by until there is nothing more to do."""
        for _ in range(turns):
            self.now_ms += 10
            self.manager.due(self.now_ms, self.wall_ms)
            run_jobs(self.manager, self.now_ms)

    def records(self) -> list[Record]:
        """What a consumer reads, markers left out."""
        return [record for batch, records in self.batches() for record in records if not batch & 0x20]

    def batches(self) -> list[tuple[int, list[Record]]]:
        """Attributes and records of each batch."""
        found: list[tuple[int, list[Record]]] = []
        log, offset = self.log, self.log.log_start_offset
        while offset < log.log_end_offset:
            region = log.read(offset, 1 << 20, log.log_end_offset).region
            if region is None:
                break
            data = region.read()
            if data[MAGIC_AT] != MAGIC:
                records = legacy.parse_message(data, next(legacy.scan(data)))
                found.append((0, records))
                offset = records[-1].offset + 1
                continue
            for header, records in parse_set(data):
                found.append((header.attributes, records))
                offset = header.last_offset + 1
        return found

    def left(self) -> list[tuple[int, str, str | None]]:
        """Offset, key and value of what a consumer reads."""
        return [
            (each.offset, (each.key or b"").decode(), None if each.value is None else each.value.decode())
            for each in self.records()
        ]

    def names(self) -> list[str]:
        """Files of the partition."""
        return sorted(entry.name for entry in self.disk.list("/a/t-0"))

    def cleaned_to(self) -> int:
        return self.log.cleaned_to


def check_against(found: Sequence[Record], written: Sequence[Record], end_offset: int) -> None:
    """What compaction must never change: of each key the last record is there, or it was a tombstone; nothing else
    is there that was not written, and offsets rise.
    """
    by_offset = {record.offset: record for record in written}
    last_written = {record.key: record for record in written if record.offset < end_offset}
    last_found = {record.key: record for record in found}
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets)), offsets
    for record in found:
        assert by_offset[record.offset] == record, record
    for key, record in last_written.items():
        assert last_found.get(key) == record or (record.value is None and key not in last_found), (key, record)


PARTITION = TopicPartition("t", 0)
