"""Batches and logs for the tests of this package, built in one line."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest
from crc32c import crc32c

from kbroker.log.config import LogConfig
from kbroker.log.folder import OpenFiles
from kbroker.log.log import Log
from kbroker.log.recovery import open_log
from kbroker.log.times import Found, TimeSearch
from kbroker.ports import Disk
from kbroker.sim.clock import SimRandom
from kbroker.sim.disk import SimDisk
from protocol.errors import ErrorCode, KafkaError
from protocol.records.batch import BASE_OFFSET, LENGTH, last_offset_of

_HEADER = Struct(">qiibIhiqqqhii")
FOLDER = "/logs/t-0"
NOW = 1_700_000_000_000


def varint(value: int) -> bytes:
    """Zigzag varint."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def record(delta: int, value: bytes, key: bytes | None = None, timestamp_delta: int = 0) -> bytes:
    """One v2 record."""
    body = b"\0" + varint(timestamp_delta) + varint(delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def batch(
    count: int = 1,
    *,
    base_offset: int = 0,
    epoch: int = -1,
    timestamp: int = NOW,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
    size: int = 10,
    records: bytes | None = None,
    last_offset_delta: int | None = None,
    max_timestamp: int | None = None,
    fill: bytes = b"v",
    key: bytes | None = None,
) -> memoryview:
    """A v2 batch of `count` records with values of `size` bytes. producer: id, epoch, base sequence."""
    if records is None:
        records = b"".join(record(i, fill * size, key) for i in range(count))
    data = bytearray(61 + len(records))
    _HEADER.pack_into(
        data,
        0,
        base_offset,
        len(data) - 12,
        epoch,
        2,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        timestamp,
        timestamp if max_timestamp is None else max_timestamp,
        *producer,
        count,
    )
    data[61:] = records
    data[17:21] = crc32c(memoryview(data)[21:]).to_bytes(4, "big")
    return memoryview(data)


def marker(
    producer_id: int,
    epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> memoryview:
    """A control batch that ends a transaction."""
    key = b"\0\0" + int(commit).to_bytes(2, "big")
    value = b"\0\0" + coordinator_epoch.to_bytes(4, "big")
    return batch(
        producer=(producer_id, epoch, -1),
        attributes=0x30,
        records=record(0, value, key),
        base_offset=base_offset,
        epoch=leader_epoch,
    )


def emptied_marker() -> memoryview:
    """A control batch whose only record is gone."""
    return batch(0, producer=(9, 0, -1), attributes=0x30, records=b"", last_offset_delta=0)


def broken(data: memoryview, at: int) -> memoryview:
    """A bit of one byte changed."""
    data[at] ^= 1
    return data


def copy_of(*batches: memoryview) -> memoryview:
    """As one answer to a follower has them."""
    return memoryview(bytearray(b"".join(batches)))


def refused(code: ErrorCode) -> Any:
    """The block raises this code."""
    return pytest.raises(KafkaError, match=code.name)


def new_disk(seed: int = 0, wall_ms: Callable[[], int] = lambda: 0) -> SimDisk:
    """A simulated disk with the folder of one partition. wall_ms: what files say of when they changed."""
    disk = SimDisk(seed, wall_ms)
    disk.make_dir("/logs")
    disk.make_dir(FOLDER)
    disk.sync_dir("/")
    disk.sync_dir("/logs")
    return disk


def open_at(
    disk: Disk,
    config: LogConfig | None = None,
    *,
    clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    wall_ms: int = NOW,
    limit: int = 100,
    folder: str = FOLDER,
    notices: list[str] | None = None,
) -> Log:
    """The log in FOLDER. notices: what is told a person is added to it."""
    return open_log(
        disk,
        folder,
        config or LogConfig(),
        open_files=OpenFiles(limit),
        random=SimRandom(1),
        wall_ms=wall_ms,
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        notices=notices,
    )


def flush(log: Log) -> None:
    """Make it durable now."""
    job = log.start_flush()
    if job is not None:
        job.run()
        log.flushed(job, 0)


def fetch(log: Log, offset: int, max_bytes: int = 1 << 30, bound: int | None = None) -> bytes:
    """What a read returns, as bytes."""
    region = log.read(offset, max_bytes, log.log_end_offset if bound is None else bound).region
    return b"" if region is None else region.read()


def offsets_in(data: bytes) -> list[int]:
    """Base offsets of the batches in `data`."""
    found, at = [], 0
    while at + 61 <= len(data):
        header = _HEADER.unpack_from(data, at)
        found.append(header[BASE_OFFSET])
        at += header[LENGTH] + 12
    return found


def all_offsets(log: Log) -> list[int]:
    """Base offsets of all batches from the log's start to its end, read as a consumer would."""
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = fetch(log, offset)
        if not data:
            break
        found += offsets_in(data)
        header = None
        at = 0
        while at + 61 <= len(data):
            header = _HEADER.unpack_from(data, at)
            at += header[LENGTH] + 12
        assert header is not None
        offset = last_offset_of(header) + 1
    return found


def first_at_or_after(log: Log, timestamp: int) -> Found | None:
    """The first record that is not older, read at once."""
    return _read(TimeSearch(log, timestamp))


def with_max_timestamp(log: Log) -> Found | None:
    """The first record with the largest timestamp, read at once."""
    return _read(TimeSearch(log, None))


def _read(search: TimeSearch) -> Found | None:
    while (scan := search.next_scan()) is not None:
        scan.run()
        if scan.found is not None:
            return scan.found
    return None
