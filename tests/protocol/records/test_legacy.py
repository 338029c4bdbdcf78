"""Message sets of format v0 and v1: plain, wrapped, cut and damaged."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from protocol.errors import ErrorCode
from protocol.records import Readable, Record, RecordError, TornBatchError, legacy
from protocol.records.compression import codec_of
from protocol.records.legacy import build_set, parse_set

MAGICS = (0, 1)
CODECS = (0, 1, 2, 3)
each_format = pytest.mark.parametrize(("magic", "codec_id"), [(m, c) for m in MAGICS for c in CODECS])


def by_hand(magic: int, offset: int, attributes: int, timestamp: int, key: bytes | None, value: bytes | None) -> bytes:
    """One message, from the table."""
    content = bytes([magic, attributes])
    content += timestamp.to_bytes(8, "big", signed=True) if magic else b""
    for part in (key, value):
        content += b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part
    message = zlib.crc32(content).to_bytes(4, "big") + content
    return offset.to_bytes(8, "big", signed=True) + len(message).to_bytes(4, "big") + message


def two(magic: int) -> list[Record]:
    return [Record(20, 1000 if magic else -1, b"k", b"vv"), Record(21, 900 if magic else -1, None, None)]


def wrapped(magic: int, inner: Readable, offset: int = 21, attributes: int = 1, timestamp: int = 1000) -> bytes:
    return by_hand(magic, offset, attributes, timestamp, None, bytes(codec_of(attributes & 7, magic).compress(inner)))


def code_of(data: bytes | bytearray) -> ErrorCode:
    with pytest.raises(RecordError) as caught:
        parse_set(data)
    return caught.value.code


@pytest.mark.parametrize("magic", MAGICS)
def test_a_set_is_laid_out_as_by_hand(magic: int) -> None:
    expected = by_hand(magic, 20, 0, 1000, b"k", b"vv") + by_hand(magic, 21, 0, 900, None, None)
    assert build_set(two(magic), magic) == expected


@pytest.mark.parametrize("magic", MAGICS)
def test_a_set_written_by_hand_is_read(magic: int) -> None:
    assert parse_set(by_hand(magic, 20, 0, 1000, b"k", b"vv") + by_hand(magic, 21, 0, 900, None, None)) == two(magic)


def test_offsets_in_a_v1_wrapper_count_from_zero() -> None:
    inner = by_hand(1, 0, 0, 1000, b"k", b"vv") + by_hand(1, 1, 0, 900, None, None)
    assert build_set(two(1), 1, codec_id=2) == wrapped(1, inner, attributes=2)


def test_offsets_in_a_v0_wrapper_are_absolute() -> None:
    inner = by_hand(0, 20, 0, 0, b"k", b"vv") + by_hand(0, 21, 0, 0, None, None)
    assert build_set(two(0), 0, codec_id=2) == wrapped(0, inner, attributes=2)


def test_a_compacted_v1_wrapper_keeps_gaps_between_its_offsets() -> None:
    inner = by_hand(1, 3, 0, 1000, b"k", b"vv") + by_hand(1, 7, 0, 900, None, None)
    assert [record.offset for record in parse_set(wrapped(1, inner, offset=107))] == [103, 107]


def test_a_v1_wrapper_at_offset_zero_is_taken_at_its_messages_word() -> None:
    inner = by_hand(1, 0, 0, 1000, b"k", b"vv") + by_hand(1, 1, 0, 900, None, None)
    assert [record.offset for record in parse_set(wrapped(1, inner, offset=0))] == [0, 1]


def test_a_v1_wrapper_below_its_last_message_is_invalid() -> None:
    inner = by_hand(1, 0, 0, 1000, b"k", b"vv") + by_hand(1, 5, 0, 900, None, None)
    assert code_of(wrapped(1, inner, offset=4)) is ErrorCode.INVALID_RECORD


def test_offsets_in_a_wrapper_beyond_64_bits_are_invalid() -> None:
    inner = by_hand(1, 2**62, 0, 1000, b"k", b"vv") + by_hand(1, -(2**62), 0, 900, None, None)
    assert code_of(wrapped(1, inner, offset=2**62)) is ErrorCode.INVALID_RECORD


def test_append_time_is_on_the_wrapper_and_for_all_inside() -> None:
    data = build_set(two(1), 1, codec_id=1, append_time=7777)
    (wrapper,) = legacy.scan(data)
    assert (wrapper.is_log_append_time, wrapper.timestamp) == (True, 7777)
    assert [record.timestamp for record in parse_set(data)] == [7777, 7777]


def test_a_wrappers_append_time_overrides_what_its_messages_say() -> None:
    inner = by_hand(1, 0, 0, 1000, b"k", b"vv")
    assert [r.timestamp for r in parse_set(wrapped(1, inner, attributes=0x09, timestamp=5))] == [5]


@each_format
def test_every_truncation_is_torn(magic: int, codec_id: int) -> None:
    first = build_set(two(magic)[:1], magic)
    data = first + build_set(two(magic)[1:], magic, codec_id=codec_id)
    for cut in range(len(first) + 1, len(data)):
        with pytest.raises(TornBatchError) as caught:
            parse_set(data[:cut])
        assert caught.value.position == len(first)


@each_format
def test_every_bit_flipped_behind_the_size_is_noticed(magic: int, codec_id: int) -> None:
    data = build_set(two(magic), magic, codec_id=codec_id)
    for bit in range(8 * 12, 8 * next(legacy.scan(data)).size_bytes):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            parse_set(data)
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (wrapped(1, b""), ErrorCode.INVALID_RECORD),  # nobody inside
        (by_hand(1, 0, 1, 0, None, None), ErrorCode.INVALID_RECORD),  # no value
        (by_hand(1, 0, 1, 0, None, b"?"), ErrorCode.CORRUPT_MESSAGE),  # no gzip
        (by_hand(0, 0, 4, 0, None, b"?"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),  # zstd
        (by_hand(0, 0, 7, 0, None, b"?"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (wrapped(1, by_hand(0, 0, 0, 0, b"k", b"v")), ErrorCode.INVALID_RECORD),  # v0 in v1
        (wrapped(1, wrapped(1, by_hand(1, 0, 0, 0, b"k", b"v"))), ErrorCode.INVALID_RECORD),  # a wrapper in a wrapper
        (wrapped(0, by_hand(0, 0, 0, 0, b"k", b"v")[:-1] + b"w"), ErrorCode.CORRUPT_MESSAGE),  # inner checksum
        (by_hand(0, 0, 0, 0, b"k", b"v")[:16] + b"\3", ErrorCode.CORRUPT_MESSAGE),  # magic
        (by_hand(0, 0, 0, 0, b"k", b"v")[:16] + b"\2", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (b"\0" * 11 + b"\x0d" + b"\0" * 13, ErrorCode.CORRUPT_MESSAGE),  # size
        (b"\0" * 11 + b"\x0e" + b"\0\0\0\0\1" + b"\0" * 9, ErrorCode.CORRUPT_MESSAGE),  # size for v1
    ],
)
def test_sets_that_cannot_be(data: bytes, code: ErrorCode) -> None:
    assert code_of(data) is code


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("sizes", [(2, 0), (0, 2), (-1, 9), (9, -1), (0, 0), (2**31 - 1, 0)])
def test_keys_and_values_that_do_not_fill_their_message_are_invalid(magic: int, sizes: tuple[int, int]) -> None:
    key_size, value_size = (size.to_bytes(4, "big", signed=True) for size in sizes)
    content = bytes([magic, 0]) + bytes(8 * magic) + key_size + b"k" + value_size
    message = zlib.crc32(content).to_bytes(4, "big") + content
    assert code_of(bytes(8) + len(message).to_bytes(4, "big") + message) is ErrorCode.INVALID_RECORD


def test_what_is_cut_inside_a_wrapper_is_left_out() -> None:
    inner = by_hand(0, 20, 0, 0, b"k", b"vv") + by_hand(0, 21, 0, 0, b"cut", b"off")[:-3]
    assert parse_set(wrapped(0, inner)) == two(0)[:1]


@pytest.mark.parametrize("codec_id", CODECS[1:])
def test_a_bomb_in_a_wrapper_is_too_large(codec_id: int) -> None:
    data = build_set([Record(0, 0, None, bytes(1 << 21))], 1, codec_id=codec_id)
    with pytest.raises(RecordError) as caught:
        parse_set(data, 1 << 20)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_headers_and_zstd_are_not_to_be_had() -> None:
    with pytest.raises(ValueError, match="headers"):
        build_set([Record(0, 0, None, None, ((b"h", b""),))], 1)
    with pytest.raises(ValueError, match="codec 4"):
        build_set(two(1), 1, codec_id=4)


def test_offsets_are_written_in_place() -> None:
    data = build_set(two(1), 1)
    for index, message in enumerate(legacy.scan(bytes(data))):
        legacy.set_offset(data, message.position, 70 + index)
    assert [record.offset for record in parse_set(data)] == [70, 71]


def test_timestamps_are_written_in_place_with_their_checksum() -> None:
    data = build_set(two(1), 1)
    for message in legacy.scan(bytes(data)):
        legacy.set_timestamp(data, message, 4, log_append_time=True)
    assert [(m.timestamp, m.is_log_append_time) for m in legacy.scan(data)] == [(4, True), (4, True)]
    assert [record.timestamp for record in parse_set(data)] == [4, 4]


def test_setting_the_timestamp_a_message_has_writes_nothing() -> None:
    data: Any = bytes(build_set(two(1)[:1], 1))
    (message,) = legacy.scan(data)
    legacy.set_timestamp(data, message, 1000, log_append_time=False)  # would raise: read-only
    assert parse_set(data) == two(1)[:1]


BYTES = st.none() | st.binary(max_size=200)


@st.composite
def some_records(draw: Any, magic: int) -> list[Record]:
    """Records as these formats can carry them; offsets may have gaps."""
    offset = draw(st.integers(0, 2**50))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        found.append(Record(offset, draw(st.integers(-1, 2**62)) if magic else -1, draw(BYTES), draw(BYTES)))
        offset += draw(st.integers(1, 1000) | st.just(1))
    return found


@pytest.mark.parametrize("magic", MAGICS)
@settings(max_examples=100)
@given(st.data())
def test_build_then_parse_is_identity(magic: int, data: Any) -> None:
    records = data.draw(some_records(magic))
    assert parse_set(build_set(records, magic, codec_id=data.draw(st.sampled_from(CODECS)))) == records


@pytest.mark.parametrize("magic", MAGICS)
@settings(max_examples=100)
@given(st.data())
def test_kafka_python_writes_the_same_and_reads_ours(magic: int, data: Any) -> None:
    drawn = data.draw(some_records(magic))
    records = [
        r._replace(offset=index, timestamp=max(r.timestamp, 0) if magic else -1) for index, r in enumerate(drawn)
    ]
    codec_id = data.draw(st.sampled_from(CODECS))
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec_id, batch_size=1 << 30)
    for r in records:
        builder.append(r.offset, timestamp=r.timestamp, key=r.key, value=r.value)
    assert [r._replace(offset=0) for r in parse_set(bytes(builder.build()))] == [r._replace(offset=0) for r in records]
    ours = MemoryRecords(bytes(build_set(records, magic, codec_id=codec_id)))
    found = []
    while (one := ours.next_batch()) is not None:
        assert one.validate_crc()
        found += [Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value) for r in one]
    assert found == records


@pytest.mark.parametrize("magic", MAGICS)
@settings(max_examples=200)
@given(st.data())
def test_damage_is_read_or_refused(magic: int, data: Any) -> None:
    damaged = build_set(data.draw(some_records(magic)), magic, codec_id=data.draw(st.sampled_from(CODECS)))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4)):
        damaged[at % len(damaged)] = value
    for position, size in [(m.position, m.size_bytes) for m in tolerant_scan(damaged)]:
        legacy._write_crc(damaged, position, position + size)
    try:
        parse_set(damaged, 1 << 16)
    except RecordError as error:
        assert error.code in (  # noqa: PT017
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            ErrorCode.MESSAGE_TOO_LARGE,
        )


def tolerant_scan(data: bytearray) -> list[legacy.Message]:
    """The messages before the first that cannot be."""
    found = []
    try:
        found.extend(legacy.scan(data))
    except RecordError:
        return found
    return found


@settings(max_examples=300)
@given(st.binary(max_size=100), st.integers(0, 60), st.integers(0, 2), st.integers(0, 4))
def test_any_bytes_are_read_or_refused(content: bytes, size: int, magic: int, attributes: int) -> None:
    data = bytes(8) + size.to_bytes(4, "big") + bytes(4) + bytes([magic, attributes]) + content
    with pytest.raises(RecordError):
        parse_set(data + b"\1")
