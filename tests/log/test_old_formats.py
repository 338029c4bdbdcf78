"""Logs that keep messages of v0 and v1: what clients of any age send is stored so, and every reader finds it."""

from __future__ import annotations

import pytest

from kbroker.config.formats import stored_format
from kbroker.log.append import UnpreparedError
from kbroker.log.config import LogConfig
from kbroker.log.log import Log
from kbroker.log.prepare import prepare
from kbroker.log.producer_state import Origin
from protocol.errors import ErrorCode
from protocol.records import Record, legacy
from protocol.records.content import build_batch
from tests.log.worlds import NOW, fetch, marker, new_disk, open_at, refused

RECORDS = [Record(at, NOW + at, b"k%d" % at, None if at == 1 else b"value" * at) for at in range(4)]
CODECS = range(4)
both = pytest.mark.parametrize("magic", [0, 1])


def old(magic: int, **more: object) -> LogConfig:
    return LogConfig(message_format=magic, **more)


def sent(kind: str, codec_id: int) -> memoryview:
    """The records as some client sends them."""
    if kind == "v2":
        return memoryview(build_batch(RECORDS, codec_id=codec_id))
    return memoryview(legacy.build_set(RECORDS, int(kind[1]), codec_id=codec_id))


def append(log: Log, records: memoryview, now_ms: int = NOW) -> tuple[int, int]:
    """As Produce does it; the offsets it is answered with."""
    with pytest.raises(UnpreparedError):
        log.append_from_client(memoryview(bytearray(records)), 3, now_ms)
    made = prepare(records, log.config, now_ms)
    plan = log.append_as_leader(made, 3, now_ms, Origin.PREPARED)
    return plan.first_offset, plan.last_offset


def stored(log: Log, offset: int = 0) -> list[tuple[int, int, Record]]:
    """Magic, codec and record of everything from the batch that holds an offset on."""
    data = fetch(log, offset)
    return [
        (message.magic, message.codec_id, record)
        for message in legacy.scan(data)
        for record in legacy.parse_message(data, message)
    ]


def expected(magic: int, copies: int) -> list[Record]:
    return [
        each._replace(offset=copy * len(RECORDS) + at, timestamp=each.timestamp if magic else -1)
        for copy in range(copies)
        for at, each in enumerate(RECORDS)
    ]


@both
@pytest.mark.parametrize("codec_id", CODECS)
@pytest.mark.parametrize("kind", ["v0", "v1", "v2"])
def test_what_any_client_sends_is_stored_in_the_topics_format(magic: int, codec_id: int, kind: str) -> None:
    log = open_at(new_disk(), old(magic))
    assert [append(log, sent(kind, codec_id)) for _ in range(3)] == [(0, 3), (4, 7), (8, 11)]
    found = stored(log)
    assert {(its_magic, codec) for its_magic, codec, _ in found} == {(magic, codec_id)}
    wanted = expected(0 if kind == "v0" else magic, 3)
    assert [record for _, _, record in found] == wanted


@both
@pytest.mark.parametrize("codec_id", CODECS)
@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_it_and_every_offset_can_be_read(magic: int, codec_id: int, clean: bool) -> None:
    disk = new_disk()
    config = old(magic, segment_bytes=400, index_interval_bytes=50)
    log = open_at(disk, config)
    for _ in range(6):
        append(log, sent("v2", codec_id))
    log.close()
    log = open_at(disk, config, clean=clean)
    assert (log.log_end_offset, len(log.segments) > 1) == (24, True)
    for offset in range(24):
        assert offset in [record.offset for _, _, record in stored(log, offset)]


@pytest.mark.parametrize("codec_id", CODECS)
def test_the_topics_codec_is_that_of_its_wrappers(codec_id: int) -> None:
    name = ("uncompressed", "gzip", "snappy", "lz4")[codec_id]
    log = open_at(new_disk(), old(1, compression_type=name))
    for kind in ("v0", "v1", "v2"):
        append(log, sent(kind, 2))
    assert {codec for _, codec, _ in stored(log)} == {codec_id}


@pytest.mark.parametrize("codec_id", CODECS)
def test_append_time_is_given_to_v1_and_there_is_none_in_v0(codec_id: int) -> None:
    times = {}
    for magic in (0, 1):
        log = open_at(new_disk(), old(magic, message_timestamp_type="LogAppendTime"))
        append(log, sent("v2", codec_id), NOW + 77)
        times[magic] = {record.timestamp for _, _, record in stored(log)}
    assert times == {0: {-1}, 1: {NOW + 77}}


@pytest.mark.parametrize(("transactional", "kind"), [(False, "idempotent"), (True, "transactional")])
def test_idempotent_and_transactional_batches_are_refused(transactional: bool, kind: str) -> None:
    data = build_batch(RECORDS, producer_id=9, producer_epoch=0, base_sequence=0, transactional=transactional)
    with refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT) as raised:
        prepare(memoryview(data), old(1), NOW)
    assert kind in str(raised.value)


def test_markers_are_refused() -> None:
    log = open_at(new_disk(), old(1))
    with refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT):
        log.append_as_leader(marker(9, 0, commit=True), 0, NOW, Origin.COORDINATOR)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (build_batch(RECORDS, codec_id=4), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (build_batch([RECORDS[0]._replace(headers=((b"h", b""),))]), ErrorCode.INVALID_RECORD),
        (build_batch([RECORDS[0]._replace(value=bytes(1000))]), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["zstd", "headers", "too large"],
)
def test_what_old_messages_cannot_hold_is_refused(records: bytearray, code: ErrorCode) -> None:
    with refused(code):
        prepare(memoryview(records), old(1, max_message_bytes=900), NOW)


def test_each_message_is_a_batch_of_its_own_to_the_limit() -> None:
    records = [Record(at, NOW, None, bytes(300)) for at in range(3)]
    parts = [memoryview(build_batch(records[:1]))]
    limit = len(parts[0])
    data = memoryview(legacy.build_set(records, 1))
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        prepare(data, old(1, max_message_bytes=limit), NOW)  # as one batch, which it is on its way
    assert len(prepare(data, old(1, max_message_bytes=limit * 3), NOW)) == len(data)


@pytest.mark.parametrize(
    ("format_version", "protocol_version", "magic"),
    [
        ("0.9.0", "2.8", 0),
        ("0.8.2", "2.8-IV1", 0),
        ("0.10.0-IV0", "2.8", 1),
        ("0.10.2", "2.8", 1),
        ("0.11.0", "2.8", 2),
        ("3.0-IV1", "2.8", 2),
        ("0.9.0", "3.0", 2),
        ("0.9.0", "3.9-IV0", 2),
    ],
)
def test_the_version_is_heeded_where_brokers_speak_one_before_3_0(
    format_version: str, protocol_version: str, magic: int
) -> None:
    assert stored_format(format_version, protocol_version) == magic
