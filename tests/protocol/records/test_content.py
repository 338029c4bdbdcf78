"""Whole v2 batches: laid out as Kafka lays them out, read back, refused when they lie."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords, MemoryRecordsBuilder
from kafka.record.default_records import DefaultRecordBatchBuilder

from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, batch
from protocol.records.batch import BASE_OFFSET, COUNT
from protocol.records.content import (
    DISORDERED,
    KEYLESS,
    Facts,
    build_batch,
    check_records,
    first_record_since,
    latest_record,
    parse_records,
    parse_set,
    rebuild_batch,
)

CODECS = range(5)
THREE = [
    Record(10, 1000, b"k", b"value", ((b"h", b"1"), (b"h", None))),
    Record(11, 1007, None, None),
    Record(12, 1003, b"", b""),
]

# THREE as Kafka writes it, by hand: leader epoch 5, producer 9 epoch 2 from sequence 40, transactional.
GOLDEN_RECORDS = (
    bytes([2 * 19, 0, 0, 0, 2]) + b"k" + bytes([10]) + b"value" + bytes([4, 2]) + b"h" + bytes([2]) + b"1"
    + bytes([2]) + b"h" + bytes([1])
    + bytes([2 * 6, 0, 14, 2, 1, 1, 0])
    + bytes([2 * 6, 0, 6, 4, 0, 0, 0])
)  # fmt: skip
GOLDEN_BODY = (
    b"\x00\x10"
    + (2).to_bytes(4, "big")
    + (1000).to_bytes(8, "big")
    + (1007).to_bytes(8, "big")
    + (9).to_bytes(8, "big")
    + (2).to_bytes(2, "big")
    + (40).to_bytes(4, "big")
    + (3).to_bytes(4, "big")
    + GOLDEN_RECORDS
)
GOLDEN = (
    (10).to_bytes(8, "big")
    + (9 + len(GOLDEN_BODY)).to_bytes(4, "big")
    + (5).to_bytes(4, "big")
    + b"\x02"
    + crc32c(GOLDEN_BODY).to_bytes(4, "big")
    + GOLDEN_BODY
)


def facts_of(data: bytes | bytearray, limit: int = 1 << 20) -> Facts:
    view = memoryview(data)
    return Facts(*check_records(view, 0, batch.check(view, 0, len(view)), limit))


def mended(data: bytes | bytearray, at: int, value: bytes) -> bytearray:
    """The batch with some bytes replaced and a checksum that holds."""
    out = bytearray(data)
    out[at : at + len(value)] = value
    batch.write_crc(out, 0, len(out))
    return out


def test_a_batch_is_laid_out_as_by_hand() -> None:
    built = build_batch(THREE, leader_epoch=5, producer_id=9, producer_epoch=2, base_sequence=40, transactional=True)
    assert built == GOLDEN


def test_a_batch_written_by_hand_is_read() -> None:
    ((header, records),) = parse_set(GOLDEN)
    assert records == THREE
    assert (header.last_offset, header.last_sequence, header.is_transactional, header.is_control) == (
        12,
        42,
        True,
        False,
    )


@pytest.mark.parametrize("codec_id", CODECS)
def test_records_survive_every_codec(codec_id: int) -> None:
    data = build_batch(THREE, codec_id=codec_id)
    ((header, records),) = parse_set(data)
    assert (header.codec_id, records) == (codec_id, THREE)


@pytest.mark.parametrize("codec_id", CODECS)
def test_facts_are_the_same_under_every_codec(codec_id: int) -> None:
    assert facts_of(build_batch(THREE, codec_id=codec_id)) == Facts(1007, 1, 1000, 1, -1)


def test_batches_of_a_buffer_are_read_in_turn() -> None:
    data = build_batch(THREE) + build_batch([Record(13, -1, None, b"x")], codec_id=1)
    assert [r.offset for _, records in parse_set(data) for r in records] == [10, 11, 12, 13]


def test_append_time_is_every_records_timestamp() -> None:
    ((header, records),) = parse_set(build_batch(THREE, append_time=5000))
    assert (header.max_timestamp, header.base_timestamp) == (5000, 1000)
    assert {record.timestamp for record in records} == {5000}


def test_a_delete_horizon_is_the_base_timestamp() -> None:
    ((header, records),) = parse_set(build_batch(THREE, delete_horizon_ms=777))
    assert (header.delete_horizon_ms, records) == (777, THREE)


def test_compacted_batches_keep_the_offsets_they_covered() -> None:
    ((header, records),) = parse_set(build_batch(THREE[1:2], base_offset=10, last_offset=12))
    assert (header.base_offset, header.last_offset, records) == (10, 12, THREE[1:2])


def test_an_emptied_batch_keeps_its_producers_sequence() -> None:
    data = build_batch(
        [],
        base_offset=10,
        last_offset=12,
        max_timestamp=1007,
        producer_id=9,
        producer_epoch=0,
        base_sequence=4,
        codec_id=4,
    )
    ((header, records),) = parse_set(data)
    assert records == []
    assert (header.last_sequence, header.base_timestamp, header.max_timestamp, header.codec_id) == (6, -1, 1007, 0)


def test_a_compressed_batch_emptied_by_another_broker_is_read() -> None:
    empty = build_batch([], base_offset=1, last_offset=1, max_timestamp=-1)
    ((_, records),) = parse_set(mended(empty, batch.ATTRIBUTES_AT, b"\x00\x04"))
    assert records == []


def test_offsets_too_far_apart_for_one_batch_are_refused() -> None:
    with pytest.raises(OverflowError):
        build_batch([Record(0, 0, None, None), Record(2**31, 0, None, None)])


@pytest.mark.parametrize("codec_id", CODECS)
@pytest.mark.parametrize("count", [0, 2, 4, -1])
def test_a_wrong_count_is_an_invalid_record(codec_id: int, count: int) -> None:
    data = mended(build_batch(THREE, codec_id=codec_id), batch.RECORDS_COUNT_AT, count.to_bytes(4, "big", signed=True))
    with pytest.raises(RecordError) as caught:
        facts_of(data)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_an_unknown_codec_is_an_unsupported_compression_type() -> None:
    with pytest.raises(RecordError) as caught:
        facts_of(mended(build_batch(THREE), batch.ATTRIBUTES_AT, b"\x00\x06"))
    assert (caught.value.code, caught.value.position) == (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 61)


@pytest.mark.parametrize("codec_id", CODECS[1:])
def test_a_bomb_is_too_large(codec_id: int) -> None:
    data = build_batch([Record(0, 0, None, bytes(1 << 21))], codec_id=codec_id)
    with pytest.raises(RecordError) as caught:
        facts_of(data)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec_id", CODECS[1:])
def test_records_that_claim_a_codec_they_do_not_have_are_corrupt(codec_id: int) -> None:
    with pytest.raises(RecordError) as caught:
        facts_of(mended(build_batch(THREE), batch.ATTRIBUTES_AT, bytes([0, codec_id])))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec_id", CODECS)
def test_every_flipped_bit_under_a_mended_checksum_is_read_or_refused(codec_id: int) -> None:
    data = build_batch(THREE, codec_id=codec_id)
    for bit in range(8 * batch.ATTRIBUTES_AT, 8 * len(data)):
        flipped = mended(data, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]))
        view = memoryview(flipped)
        header = batch.check(view, 0, len(view))
        try:
            facts = check_records(view, 0, header, 1 << 16)
            records = parse_records(view, 0, header, 1 << 16)
        except RecordError as error:
            assert error.code is not ErrorCode.UNKNOWN_SERVER_ERROR  # noqa: PT017
        else:
            assert len(records) == header[COUNT]
            assert (facts[KEYLESS] == -1) == all(record.key is not None for record in records)


def test_offsets_beyond_64_bits_are_refused() -> None:
    data = build_batch(THREE)
    batch.set_base_offset(data, 0, 2**63 - 2)
    with pytest.raises(RecordError) as caught:
        parse_set(data)
    assert caught.value.code is ErrorCode.INVALID_RECORD


BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.binary(max_size=10), BYTES), max_size=3).map(tuple)


@st.composite
def some_records(draw: Any) -> list[Record]:
    """Records as a broker may hold them: offsets rise, possibly with gaps; timestamps in any order."""
    offset = draw(st.integers(0, 2**50))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        timestamp = draw(st.integers(-1, 2**62))
        found.append(Record(offset, timestamp, draw(BYTES), draw(BYTES), draw(HEADERS)))
        offset += draw(st.integers(1, 1000) | st.just(1))
    return found


FIELDS = st.fixed_dictionaries(
    {
        "codec_id": st.sampled_from(CODECS),
        "leader_epoch": st.integers(-1, 2**31 - 1),
        "producer_id": st.integers(0, 2**63 - 1),
        "producer_epoch": st.integers(0, 2**15 - 1),
        "base_sequence": st.integers(0, 2**31 - 1),
        "transactional": st.booleans(),
        "control": st.booleans(),
        "delete_horizon_ms": st.none() | st.integers(0, 2**62),
    }
)


@settings(max_examples=150)
@given(some_records(), FIELDS)
def test_build_then_parse_is_identity(records: list[Record], fields: dict[str, Any]) -> None:
    ((header, found),) = parse_set(build_batch(records, **fields))
    assert found == records
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert header.partition_leader_epoch == fields["leader_epoch"]
    assert header[9:12] == (fields["producer_id"], fields["producer_epoch"], fields["base_sequence"])
    assert (header.is_transactional, header.is_control) == (fields["transactional"], fields["control"])
    assert header.delete_horizon_ms == fields["delete_horizon_ms"]


def first_of(records: list[Record], timestamp: int, offset: int) -> tuple[int, int] | None:
    found = (each for each in records if each.offset >= offset and each.timestamp >= timestamp)
    return next(((each.offset, each.timestamp) for each in found), None)


@settings(max_examples=200)
@given(some_records(), FIELDS, st.data())
def test_the_first_record_since_a_time_is_that_of_the_parsed_ones(
    records: list[Record], fields: dict[str, Any], data: st.DataObject
) -> None:
    view = memoryview(build_batch(records, **fields))
    header = batch.check(view, 0, len(view))
    parsed = parse_records(view, 0, header)
    which, least = data.draw(st.sampled_from(parsed)), data.draw(st.sampled_from(parsed)).offset
    for timestamp in (which.timestamp - 1, which.timestamp, which.timestamp + 1, -(2**63), 2**63 - 1):
        for offset in (least, least + 1):
            assert first_record_since(view, 0, header, timestamp, offset) == first_of(parsed, timestamp, offset)


@settings(max_examples=200)
@given(some_records(), FIELDS, st.data())
def test_the_latest_record_is_that_of_the_parsed_ones(
    records: list[Record], fields: dict[str, Any], data: st.DataObject
) -> None:
    view = memoryview(build_batch(records, **fields))
    header = batch.check(view, 0, len(view))
    parsed = parse_records(view, 0, header)
    least = data.draw(st.sampled_from(parsed)).offset
    for offset in (least, least + 1):
        left = [each for each in parsed if each.offset >= offset]
        latest = max(left, key=lambda each: each.timestamp, default=None)
        expected = None if latest is None else (latest.offset, latest.timestamp)
        assert latest_record(view, 0, header, offset) == expected


@settings(max_examples=200)
@given(some_records(), FIELDS, st.sampled_from(CODECS))
def test_a_rebuilt_batch_has_the_same_records_numbered_from_0(
    records: list[Record], fields: dict[str, Any], codec_id: int
) -> None:
    view = memoryview(build_batch(records, **fields))
    header = batch.check(view, 0, len(view))
    parsed = parse_records(view, 0, header)
    in_order = check_records(view, 0, header)[DISORDERED] < 0
    ((rebuilt, found),) = parse_set(rebuild_batch(view, 0, header, codec_id=codec_id, in_order=in_order))
    first = parsed[0].offset if in_order else header[BASE_OFFSET]
    assert found == [record._replace(offset=first + index) for index, record in enumerate(parsed)]
    assert (rebuilt.codec_id, rebuilt[8:], rebuilt.is_transactional) == (codec_id, header[8:], fields["transactional"])


def test_rebuilding_a_batch_of_headers_takes_a_few_times_its_bytes_of_memory() -> None:
    records = [Record(1, 7, None, None, ((b"", None),) * 300_000)]
    view = memoryview(build_batch(records, base_offset=0, codec_id=1))
    header = batch.check(view, 0, len(view))
    tracemalloc.start()
    rebuild_batch(view, 0, header, codec_id=1, in_order=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6_000_000  # parsed, it takes 30 MB


def test_a_look_for_a_time_in_a_batch_of_headers_takes_a_few_times_its_bytes_of_memory() -> None:
    view = memoryview(build_batch([Record(0, 7, None, None, ((b"", None),) * 300_000)], codec_id=1))
    header = batch.check(view, 0, len(view))
    tracemalloc.start()
    assert first_record_since(view, 0, header, 7, 0) == (0, 7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000  # parsed, it takes 30 MB


@settings(max_examples=300)
@given(some_records(), st.sampled_from(CODECS), st.lists(st.tuples(st.integers(21), st.integers(0, 255)), max_size=4))
def test_damage_under_a_mended_checksum_is_read_or_refused(
    records: list[Record], codec_id: int, damage: list[tuple[int, int]]
) -> None:
    data = build_batch(records, codec_id=codec_id)
    for at, value in damage:
        data[21 + at % (len(data) - 21)] = value
    batch.write_crc(data, 0, len(data))
    try:
        ((header, found),) = parse_set(data, 1 << 16)
    except RecordError:
        return
    assert len(found) == header.records_count
    for each in found[:3]:
        since = first_record_since(memoryview(data), 0, header, each.timestamp, each.offset)
        assert since == first_of(found, each.timestamp, each.offset)


@settings(max_examples=80)
@given(some_records(), st.sampled_from(CODECS))
def test_kafka_python_reads_ours(records: list[Record], codec_id: int) -> None:
    named = [r._replace(headers=tuple((b"name", value) for _, value in r.headers)) for r in records]
    (theirs,) = list(iterate(MemoryRecords(bytes(build_batch(named, codec_id=codec_id)))))
    assert [
        Record(r.offset, r.timestamp, r.key, r.value, tuple((k.encode(), v) for k, v in r.headers)) for r in theirs
    ] == named


def iterate(records: MemoryRecords) -> Any:
    while (one := records.next_batch()) is not None:
        assert one.validate_crc()
        yield one


@settings(max_examples=80)
@given(some_records(), st.sampled_from(CODECS))
def test_we_read_what_kafka_python_writes(records: list[Record], codec_id: int) -> None:
    builder = MemoryRecordsBuilder(magic=2, compression_type=codec_id, batch_size=1 << 30)
    wanted = []
    for index, record in enumerate(records):
        headers = tuple((b"name", value) for _, value in record.headers)
        timestamp = max(record.timestamp, 0)
        builder.append(timestamp, record.key, record.value, [(k.decode(), v) for k, v in headers])
        wanted.append(Record(index, timestamp, record.key, record.value, headers))
    builder.close()
    ((_, found),) = parse_set(bytes(builder.buffer()))
    assert found == wanted


@settings(max_examples=80)
@given(some_records())
def test_uncompressed_batches_equal_kafka_pythons_to_the_byte(records: list[Record]) -> None:
    records = [
        Record(index, max(r.timestamp, 0), r.key, r.value, tuple((b"name", v) for _, v in r.headers))
        for index, r in enumerate(records)
    ]
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=3,
        producer_epoch=1,
        base_sequence=7,
        batch_size=1 << 30,
    )
    for r in records:
        headers = [(name.decode(), value) for name, value in r.headers]
        builder.append(r.offset, timestamp=r.timestamp, key=r.key, value=r.value, headers=headers)
    ours = build_batch(records, transactional=True, producer_id=3, producer_epoch=1, base_sequence=7, leader_epoch=0)
    theirs = bytearray(builder.build())
    batch.set_leader_epoch(theirs, 0, 0)
    assert ours == theirs
