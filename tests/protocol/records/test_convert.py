"""Records in another format: by the loops as they are installed, and by the same loops interpreted."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, convert, legacy
from protocol.records.batch import write_crc
from protocol.records.content import build_batch, parse_set
from protocol.records.convert import batch_of, down_convert, open_set
from tests.protocol.records.loops import KINDS, use

RECORDS = [Record(10, 1000, b"a", b"first"), Record(11, -1, None, b""), Record(12, 1002, b"", None)]
LOOPS = ("measure", "renumbered", "to_messages", "to_records", "walk_messages")


@pytest.fixture(params=KINDS, autouse=True)
def each_kind_of_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice, where there was a C compiler."""
    use(request.param, monkeypatch, convert, "_converter", LOOPS)


def old_set(magic: int, codec_id: int = 0, **more: int) -> bytearray:
    return legacy.build_set(RECORDS, magic, codec_id=codec_id, **more)


def down(data: bytes | bytearray, magic: int, from_offset: int = 0) -> bytes:
    parts, _ = down_convert(memoryview(data), magic, from_offset=from_offset)
    return b"".join(bytes(part) for part in parts)


# ---- up


@pytest.mark.parametrize("codec_id", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_set_becomes_a_batch_of_the_same_records(magic: int, codec_id: int) -> None:
    ((header, records),) = parse_set(batch_of(open_set(memoryview(old_set(magic, codec_id)))))
    assert header.codec_id == codec_id
    assert records == [
        record._replace(offset=index, timestamp=record.timestamp if magic else -1)
        for index, record in enumerate(RECORDS)
    ]


def test_a_batch_of_an_old_set_may_have_another_codec() -> None:
    ((header, records),) = parse_set(batch_of(open_set(memoryview(old_set(1, codec_id=1))), codec_id=4, level=1))
    assert (header.codec_id, len(records)) == (4, 3)


def test_messages_of_a_wrapper_with_append_time_keep_that_time() -> None:
    ((header, records),) = parse_set(batch_of(open_set(memoryview(old_set(1, codec_id=1, append_time=77)))))
    assert not header.is_log_append_time
    assert {record.timestamp for record in records} == {77}


def test_an_append_time_is_given_to_the_batch() -> None:
    ((header, records),) = parse_set(batch_of(open_set(memoryview(old_set(1))), append_time=5000))
    assert header.is_log_append_time
    assert {record.timestamp for record in records} == {5000}


def test_what_the_end_cuts_off_is_left_out() -> None:
    assert [open_set(memoryview(old_set(1))[:size]).records_count for size in (0, 11, 30, 48, 150, -1)] == [
        0,
        0,
        0,
        1,
        3,
        2,
    ]


def test_facts_of_a_set_are_those_of_its_messages() -> None:
    messages = open_set(memoryview(old_set(1, codec_id=2)))
    assert (messages.max_timestamp, messages.min_timestamp, messages.first_without_key) == (1002, 1000, 1)
    assert (messages.wrapper_offset, messages.last_offset, messages.first_stamped) == (12, 2, -1)


def test_checksums_are_those_of_zlib_at_any_length() -> None:
    for size in (*range(300), 4096, 4111, 100_003):
        value = bytes(at * 7 & 0xFF for at in range(size))
        old = legacy.build_set([Record(0, 1000, None, value)], 1)  # zlib's
        batch = batch_of(open_set(memoryview(old)))
        assert down(batch, 1) == old, size
        old[-1] ^= 1
        with pytest.raises(RecordError, match="checksum"):
            open_set(memoryview(old))


def test_a_message_that_claims_append_time_is_told() -> None:
    assert open_set(memoryview(old_set(1) + old_set(1, append_time=7))).first_stamped == 3


@pytest.mark.parametrize("codec_id", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_any_flipped_bit_of_a_set_is_refused_or_harmless(magic: int, codec_id: int) -> None:
    data = old_set(magic, codec_id)
    right = batch_of(open_set(memoryview(data)))
    sizes = [message.position + at for message in legacy.scan(data) for at in range(8, 12)]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            try:
                messages = open_set(memoryview(flipped))
            except RecordError:
                continue
            if messages.records_count == len(RECORDS):
                assert batch_of(messages) == right  # an offset, which the leader gives anew
            else:  # the buffer seems to cut that message off, which Kafka takes, too
                assert position in sizes


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(old_set(0) + old_set(1), ErrorCode.INVALID_RECORD, id="two formats"),
        pytest.param(old_set(1) + old_set(1, 1), ErrorCode.INVALID_RECORD, id="a wrapper behind messages"),
        pytest.param(old_set(1, 1) + old_set(1), ErrorCode.INVALID_RECORD, id="messages behind a wrapper"),
        pytest.param(
            legacy.wrapped(old_set(1, 1), 1, 9, 1, -1, None), ErrorCode.INVALID_RECORD, id="a wrapper in a wrapper"
        ),
        pytest.param(legacy.wrapped(old_set(0), 1, 9, 1, -1, None), ErrorCode.INVALID_RECORD, id="v0 in a v1 wrapper"),
        pytest.param(legacy.wrapped(b"", 1, 9, 1, -1, None), ErrorCode.INVALID_RECORD, id="an empty wrapper"),
        pytest.param(old_set(1)[:8] + bytes(60), ErrorCode.CORRUPT_MESSAGE, id="a size of 0"),
        pytest.param(
            legacy.build_set([Record(0, -2, None, b"")], 1), ErrorCode.INVALID_TIMESTAMP, id="a timestamp below -1"
        ),
    ],
)
def test_sets_that_cannot_be_are_refused(data: bytearray, code: ErrorCode) -> None:
    with pytest.raises(RecordError) as refused:
        batch_of(open_set(memoryview(data)))
    assert refused.value.code is code


def test_an_inner_checksum_is_checked() -> None:
    inner = old_set(1)
    inner[-1] ^= 1
    with pytest.raises(RecordError) as refused:
        open_set(memoryview(legacy.wrapped(inner, 1, 2, 1, -1, None)))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_bomb_in_a_wrapper_is_refused() -> None:
    bomb = legacy.build_set([Record(0, 0, None, bytes(1 << 20))], 1, codec_id=1)
    with pytest.raises(RecordError) as refused:
        open_set(memoryview(bomb), limit=1 << 16)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


# ---- down


@pytest.mark.parametrize("codec_id", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_a_batch_becomes_messages_of_the_same_records(magic: int, codec_id: int) -> None:
    found = legacy.parse_set(down(build_batch(RECORDS, codec_id=codec_id), magic))
    assert found == [record._replace(timestamp=record.timestamp if magic else -1) for record in RECORDS]


def test_headers_are_dropped() -> None:
    batch = build_batch([RECORDS[0]._replace(headers=((b"h", b"v"),))])
    assert legacy.parse_set(down(batch, 1)) == RECORDS[:1]


def test_an_append_time_stays_one() -> None:
    (message,) = legacy.scan(down(build_batch(RECORDS[:1], append_time=9), 1))
    assert (message.timestamp, message.is_log_append_time) == (9, True)


def test_records_before_the_offset_asked_for_are_left_out_if_they_can_be() -> None:
    plain = [record.offset for record in legacy.parse_set(down(build_batch(RECORDS), 1, from_offset=11))]
    packed = [record.offset for record in legacy.parse_set(down(build_batch(RECORDS, codec_id=1), 1, from_offset=11))]
    assert (plain, packed) == ([11, 12], [10, 11, 12])


def test_markers_and_what_compaction_emptied_have_no_old_form() -> None:
    marker = build_batch([Record(0, 5, b"\0\0\0\1", b"\0" * 6)], producer_id=1, transactional=True, control=True)
    emptied = build_batch([], base_offset=1, last_offset=2, max_timestamp=5)
    parts, end = down_convert(memoryview(marker + emptied), 1, from_offset=0)
    assert (parts, end) == ([], len(marker) + len(emptied))


def test_what_is_old_enough_comes_as_it_is() -> None:
    data = old_set(0) + old_set(1, codec_id=1)
    assert down(data, 1) == data


def test_a_log_of_all_formats_comes_in_one() -> None:
    log = old_set(0) + old_set(1) + old_set(1, codec_id=3) + build_batch(RECORDS) + build_batch(RECORDS, codec_id=2)
    assert legacy.parse_set(down(log, 0)) == [record._replace(timestamp=-1) for record in RECORDS] * 5


@pytest.mark.parametrize("codec_id", [4, 5])
def test_a_codec_that_the_old_formats_lack_ends_what_can_be_given(codec_id: int) -> None:
    foreign = build_batch(RECORDS, codec_id=4)
    plain = build_batch(RECORDS)
    foreign[22] = codec_id
    convert.write_crc(foreign, 0, len(foreign))
    parts, end = down_convert(memoryview(plain + foreign), 1, from_offset=0)
    assert (len(parts), end) == (1, len(plain))
    with pytest.raises(RecordError) as refused:
        down_convert(memoryview(foreign), 1, from_offset=0)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_batch_cut_off_at_the_end_is_left_for_later() -> None:
    first, second = build_batch(RECORDS), build_batch(RECORDS, codec_id=1)
    for size in range(len(first), len(first) + len(second)):
        assert down_convert(memoryview(first + second)[:size], 1, from_offset=0)[1] == len(first)


@pytest.mark.parametrize("data", [build_batch(RECORDS), build_batch(RECORDS, codec_id=1), old_set(1), old_set(1, 1)])
def test_a_flipped_bit_is_never_given_a_right_checksum(data: bytearray) -> None:
    right = [record._replace(timestamp=-1, offset=0) for record in RECORDS]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 4
        try:
            found = legacy.parse_set(down(flipped, 0))
        except RecordError:
            continue
        served = [record._replace(offset=0) for record in found]
        assert served == right[: len(served)] or served == right[-len(served) :]


@pytest.mark.parametrize("codec_id", range(4))
def test_a_batch_whose_wanted_records_compaction_took_is_left_out(codec_id: int) -> None:
    data = build_batch([Record(0, 1, b"k", b"v")], codec_id=codec_id)
    data[23:27] = (2).to_bytes(4, "big")  # last_offset_delta: two more were there
    write_crc(data, 0, len(data))
    found = {at: down_convert(memoryview(data), 1, from_offset=at) for at in (0, 1, 2)}
    assert {at: (len(parts), used) for at, (parts, used) in found.items()} == {
        0: (1, len(data)),
        1: (0, len(data)),
        2: (0, len(data)),
    }
