"""A log directory with one of everything in it, written by our own log on any disk: for the tools' tests."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.config import LogConfig
from kbroker.log.log import Log
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import LogManager, open_logs
from kbroker.log.producer_state import Origin
from kbroker.ports import Disk
from kbroker.sim.clock import SimRandom
from kbroker.timing import Scheduler
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.log.worlds import NOW

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=100, segment_index_bytes=1200, retention_ms=-1)
COMPACTED = SMALL._replace(cleanup_policy=frozenset({"compact"}), compact=True, delete=False, file_delete_delay_ms=0)
COMPACTED_TOPIC = "cleaned"
TOPIC_ID = bytes(range(1, 17))


def open_directory(
    disk: Disk,
    path: str,
    wall_ms: int = NOW,
    config: LogConfig = SMALL,
    identity: str | None = "some-cluster",
    tell: Callable[[object], None] = lambda fact: None,
) -> LogManager:
    """The logs in a directory, as a broker with id 1 opens them. identity: its cluster's id, None for the stored."""
    return open_logs(
        disk,
        SimRandom(1),
        [path],
        config_of=lambda topic: COMPACTED if topic == COMPACTED_TOPIC else config,
        cluster_id=identity,
        node_id=1,
        config=ManagerConfig(initial_delay_ms=0, cleaner=CleanerConfig(backoff_ms=10)),
        now_ms=0,
        wall_ms=wall_ms,
        tell=tell,
        alarm=Scheduler().alarm(lambda now_ms: None),
    )


def fill(disk: Disk, path: str, *, compacted: bool = False) -> None:
    """Write one of everything and stop cleanly. compacted: a compacted log, too, which Apache's tool complains of."""
    manager = open_directory(disk, path)
    for codec_id, name in enumerate(CODECS):
        log = _new(manager, f"codec-{name}")
        for number in range(8):
            _append(log, _records(number, 5), codec_id=codec_id, leader_epoch=number // 3)
    _fill_segments(manager)
    _fill_transactions(manager)
    _fill_old_formats(manager)
    if compacted:
        _fill_compacted(manager)
    _new(manager, "empty")
    for _, log in manager.logs():
        log.set_high_watermark(log.log_end_offset)
    forgetful = manager.get("segments", 0)
    assert forgetful is not None
    forgetful.advance_log_start(13)
    run_jobs(manager)
    if compacted:
        _compact(manager)
    manager.close(broker_epoch=7)


def run_jobs(manager: LogManager) -> None:
    """Do what the pool would."""
    while jobs := manager.take_jobs(0):
        for job in jobs:
            job.run()
            manager.finished(job, None, 0)


def _compact(manager: LogManager) -> None:
    """Let the cleaner do what it finds to do in a moment. Raises AssertionError if that is nothing."""
    for partition, _ in list(manager.logs()):
        manager.flush(*partition)
    run_jobs(manager)
    for now_ms in range(10, 400, 10):
        manager.due(now_ms, NOW)
        run_jobs(manager)
    log = manager.get(COMPACTED_TOPIC, 0)
    assert log is not None
    assert log.cleaned_to > 0, log


def _new(manager: LogManager, topic: str) -> Log:
    config = COMPACTED if topic == COMPACTED_TOPIC else SMALL
    return manager.get_or_create(topic, 0, TOPIC_ID, config, is_new=True, wall_ms=NOW)


def _records(number: int, count: int) -> list[Record]:
    """Records with and without keys, values and headers."""
    return [
        Record(
            at,
            NOW + 10 * number + (at * 7) % 5,
            None if (number + at) % 4 == 0 else f"key-{at}".encode(),
            None if (number + at) % 5 == 0 and (number + at) % 4 else f"value {number} ".encode() * (at + 1),
            tuple((f"h{i}".encode(), None if i % 2 else b"x" * i) for i in range(at % 3)),
        )
        for at in range(count)
    ]


def _append(
    log: Log, records: list[Record], *, codec_id: int = 0, leader_epoch: int = 0, **producer: int | bool
) -> None:
    batch = build_batch(records, codec_id=codec_id, **producer)  # type: ignore[arg-type]
    log.append_as_leader(memoryview(batch), leader_epoch, NOW)


def _fill_segments(manager: LogManager) -> None:
    """Several segments by an idempotent producer, and other ones in between."""
    log = _new(manager, "segments")
    sequence = 0
    for number in range(24):
        records = _records(number, 3)
        if number % 3:
            _append(log, records, producer_id=42, producer_epoch=1, base_sequence=sequence, leader_epoch=number // 6)
            sequence += len(records)
        else:
            _append(log, records, leader_epoch=number // 6)


def _fill_transactions(manager: LogManager) -> None:
    """Committed, aborted and one open, by two producers that overlap."""
    log = _new(manager, "transactions")
    for turn in range(6):
        for producer_id in (7, 8):
            _append(
                log,
                _records(turn, 2),
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=2 * turn,
                transactional=True,
            )
        for producer_id in (8, 7) if turn < 5 else (8,):
            kind = ControlType.ABORT if (turn + producer_id) % 2 else ControlType.COMMIT
            marker = build_marker_batch(
                EndTransactionMarker(kind, turn), producer_id=producer_id, producer_epoch=0, timestamp=NOW + turn
            )
            log.append_as_leader(memoryview(marker), 0, NOW, Origin.COORDINATOR)


def _fill_old_formats(manager: LogManager) -> None:
    """Messages of v0 and v1, plain and in wrappers of each codec, as a follower of an old broker has them."""
    for magic in (0, 1):
        log = _new(manager, f"format-{magic}")
        for codec_id in (0, 1, 2, 3, 0):
            for number in range(2):
                base = log.log_end_offset
                records = [
                    each._replace(offset=base + at, timestamp=each.timestamp if magic else -1, headers=())
                    for at, each in enumerate(_records(number, 4))
                ]
                log.append_as_follower(memoryview(legacy.build_set(records, magic, codec_id=codec_id)), NOW)


def _fill_compacted(manager: LogManager) -> None:
    """Keys written again and again, in batches of each codec and old messages, and a transaction that was aborted."""
    log = _new(manager, COMPACTED_TOPIC)
    for number in range(20):
        keys = [b"key-%d" % ((number + at) % 7) for at in range(4)]
        records = [
            Record(at, NOW + number, key, None if (number + at) % 6 == 0 else b"value %d" % number)
            for at, key in enumerate(keys)
        ]
        if number % 5 == 4:
            old = [each._replace(offset=log.log_end_offset + at) for at, each in enumerate(records)]
            log.append_as_follower(memoryview(legacy.build_set(old, 1, codec_id=number % 4)), NOW)
        elif number == 7:
            _append(log, records, producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
            end = EndTransactionMarker(ControlType.ABORT, 0)
            data = build_marker_batch(end, producer_id=5, producer_epoch=0, timestamp=NOW + number)
            log.append_as_leader(memoryview(data), 0, NOW, Origin.COORDINATOR)
        else:
            _append(log, records, codec_id=number % 5)
    log.roll(NOW)
    _append(log, [Record(0, NOW, b"last", b"")])
