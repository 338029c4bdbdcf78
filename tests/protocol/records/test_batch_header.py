"""A v2 header: read in one go, checked, and rewritten in place where the leader may."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from protocol.errors import ErrorCode
from protocol.records import RecordError, TornBatchError, batch

# One record, key "k", value "v", at timestamp 1_000, written by hand from the table in Kafka's documentation.
RECORD = bytes([8 * 2]) + bytes([0, 0, 0, 2]) + b"k" + bytes([2]) + b"v" + bytes([0])
UNDER_CRC = (
    b"\x00\x00"  # attributes
    b"\x00\x00\x00\x00"  # last_offset_delta
    + (1000).to_bytes(8, "big")
    + (1000).to_bytes(8, "big")
    + b"\xff" * 8  # producer_id
    + b"\xff" * 2  # producer_epoch
    + b"\xff" * 4  # base_sequence
    + b"\x00\x00\x00\x01"  # records_count
    + RECORD
)
GOLDEN = (
    (7).to_bytes(8, "big")  # base_offset
    + (9 + len(UNDER_CRC)).to_bytes(4, "big")
    + (3).to_bytes(4, "big")  # partition_leader_epoch
    + b"\x02"
    + crc32c(UNDER_CRC).to_bytes(4, "big")
    + UNDER_CRC
)


def header_of(data: bytes) -> batch.BatchHeader:
    return batch.BatchHeader(*batch.check(memoryview(data), 0, len(data)))


def test_header_fields_are_where_the_table_says() -> None:
    assert header_of(GOLDEN) == (7, len(GOLDEN) - 12, 3, 2, crc32c(UNDER_CRC), 0, 0, 1000, 1000, -1, -1, -1, 1)


def test_assigning_offset_and_epoch_leaves_the_checksum_true() -> None:
    data = bytearray(GOLDEN)
    batch.assign(data, 0, base_offset=1 << 40, length=len(GOLDEN) - 12, leader_epoch=9)
    assert header_of(bytes(data))[:3] == (1 << 40, len(GOLDEN) - 12, 9)


def test_single_fields_are_rewritten_in_place() -> None:
    data = bytearray(b"pad" + GOLDEN)
    batch.set_base_offset(data, 3, 5)
    batch.set_leader_epoch(data, 3, 6)
    assert header_of(bytes(data[3:]))[:3] == (5, len(GOLDEN) - 12, 6)


def test_a_max_timestamp_alone_is_rewritten() -> None:
    data = bytearray(GOLDEN)
    batch.set_max_timestamp(data, 0, 5000, log_append_time=False)
    header = header_of(bytes(data))
    assert (header.max_timestamp, header.is_log_append_time) == (5000, False)


@pytest.mark.parametrize("length", [-12, 0, 48])
def test_a_batch_that_says_it_is_shorter_than_its_header_is_no_batch(length: int) -> None:
    data = bytearray(GOLDEN)
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(RecordError, match="length"):
        batch.check(memoryview(data), 0, len(data))
    with pytest.raises(RecordError, match="length"):
        list(batch.scan(memoryview(data)))


def test_log_append_time_recomputes_the_checksum() -> None:
    data = bytearray(GOLDEN)
    batch.set_max_timestamp(data, 0, 5000, log_append_time=True)
    header = header_of(bytes(data))
    assert (header.max_timestamp, header.is_log_append_time) == (5000, True)


def test_setting_what_is_already_so_writes_nothing() -> None:
    frozen = memoryview(GOLDEN)
    batch.set_max_timestamp(frozen, 0, 1000, log_append_time=False)  # would raise: read-only
    assert bytes(frozen) == GOLDEN


def test_scan_names_every_batch_of_a_buffer() -> None:
    assert [position for position, _ in batch.scan(GOLDEN * 3)] == [0, len(GOLDEN), 2 * len(GOLDEN)]


def test_every_truncation_is_a_torn_batch_that_says_how_much_is_missing() -> None:
    for cut in range(1, len(GOLDEN)):
        with pytest.raises(TornBatchError) as caught:
            list(batch.scan(GOLDEN + GOLDEN[:cut]))
        assert caught.value.position == len(GOLDEN)
        assert caught.value.missing == (12 - cut if cut < 12 else len(GOLDEN) - cut)


def test_every_bit_flip_from_the_magic_on_is_noticed() -> None:
    for bit in range(8 * 16, 8 * len(GOLDEN)):
        data = bytearray(GOLDEN)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordError):
            batch.check(memoryview(data), 0, len(data))


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (8, b"\x00\x00\x00\x0d", ErrorCode.CORRUPT_MESSAGE),
        (8, b"\xff\xff\xff\xff", ErrorCode.CORRUPT_MESSAGE),
        (8, b"\x00\x00\x00\x30", ErrorCode.CORRUPT_MESSAGE),
        (16, b"\x03", ErrorCode.CORRUPT_MESSAGE),
        (16, b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (16, b"\x01", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (17, b"\x00\x00\x00\x00", ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_headers_that_cannot_be_are_refused(at: int, value: bytes, code: ErrorCode) -> None:
    data = bytearray(GOLDEN)
    data[at : at + len(value)] = value
    with pytest.raises(RecordError) as caught:
        batch.check(memoryview(data), 0, len(data))
    assert caught.value.code is code


def test_last_sequence_wraps_to_zero() -> None:
    assert [batch.last_sequence(*a) for a in [(5, 3), (0x7FFFFFFF, 0), (0x7FFFFFFF, 1), (0x7FFFFFFE, 5), (-1, 7)]] == [
        8,
        0x7FFFFFFF,
        0,
        3,
        -1,
    ]


def test_torn_batch_survives_a_process_pool() -> None:
    import pickle

    assert pickle.loads(pickle.dumps(TornBatchError(3, "cut", 5))).missing == 5


def test_each_field_of_a_header_stands_where_its_name_says() -> None:
    names = "BASE_OFFSET LENGTH LEADER_EPOCH MAGIC_BYTE CRC ATTRIBUTES LAST_DELTA BASE_TIMESTAMP MAX_TIMESTAMP"
    names += " PRODUCER_ID PRODUCER_EPOCH BASE_SEQUENCE COUNT"
    header = batch.BatchHeader(*range(13))
    assert [getattr(batch, name) for name in names.split()] == list(header)
    assert batch.size_of(header) == header.size_bytes
    assert batch.last_offset_of(header) == header.last_offset
    assert (
        header.producer_id,
        header.max_timestamp,
        header.records_count,
    ) == (batch.PRODUCER_ID, batch.MAX_TIMESTAMP, batch.COUNT)
