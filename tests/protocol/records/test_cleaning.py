"""What compaction leaves: by the loops as they are installed, and by the same loops interpreted."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, cleaning, legacy, walker_kind
from protocol.records.batch import BatchHeader, last_offset_of, unpack_header
from protocol.records.cleaning import Kept, OffsetMap, Scratch, kept_of_batch, kept_of_messages, note_batch
from protocol.records.content import build_batch, parse_set
from tests.protocol.records.loops import KINDS, use

LOOPS = ("keep_records", "put_keys", "shifted")
SECRET = bytes(range(16))
DAY = 24 * 3600 * 1000


@pytest.fixture(params=KINDS, autouse=True)
def each_kind_of_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test twice, where there was a C compiler."""
    use(request.param, monkeypatch, cleaning, "_cleaner", LOOPS)


def rec(offset: int, key: bytes | None, value: bytes | None = b"v", timestamp: int = 1000) -> Record:
    return Record(offset, timestamp + offset, key, value)


def offset_map(*batches: bytes, keys: int = 100, memory: int = 1 << 20) -> OffsetMap:
    offsets = OffsetMap(memory, 0.9, SECRET, keys)
    for data in batches:
        view = memoryview(bytearray(data))
        header = unpack_header(view, 0)
        if note_batch(offsets, view, 0, header, 0):
            offsets.latest_offset = last_offset_of(header)
    return offsets


def kept(
    offsets: OffsetMap,
    data: bytes,
    *,
    discard: bool = False,
    marks_nothing: bool = False,
    keep_empty: bool = False,
    now_ms: int = 5000,
) -> Kept | None:
    view = memoryview(bytearray(data))
    return kept_of_batch(
        offsets,
        view,
        0,
        unpack_header(view, 0),
        discard=discard,
        marks_nothing=marks_nothing,
        keep_empty=keep_empty,
        now_ms=now_ms,
        horizon_ms=now_ms + DAY,
        scratch=Scratch(),
    )


def parsed(left: Kept | None) -> tuple[BatchHeader, list[Record]]:
    assert left is not None
    [(header, records)] = parse_set(bytearray(left.content))
    return header, records


@pytest.mark.parametrize("codec_id", range(5))
def test_the_last_record_of_each_key_stays(codec_id: int) -> None:
    records = [rec(0, b"a"), rec(1, b"b"), rec(2, b"a", b"new"), rec(3, b"c" * 40)]
    first = build_batch(records, codec_id=codec_id, leader_epoch=3, producer_id=9, producer_epoch=1, base_sequence=4)
    later = build_batch([rec(4, b"b")])
    header, left = parsed(kept(offset_map(first, later), first))
    assert left == records[2:]
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (0, 3, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 1, 4)
    assert (header.codec_id, header.records_count, header.max_timestamp) == (codec_id, 2, 1003)


def test_the_largest_timestamp_is_that_of_the_records_that_stay() -> None:
    first = build_batch([rec(0, b"a", timestamp=9000), rec(1, b"b")])
    header, _ = parsed(kept(offset_map(first, build_batch([rec(2, b"a")])), first))
    assert header.max_timestamp == 1001


def test_append_time_stays() -> None:
    first = build_batch([rec(0, b"a"), rec(1, b"b")], append_time=7000)
    header, [record] = parsed(kept(offset_map(first, build_batch([rec(2, b"a")])), first))
    assert (header.max_timestamp, record.timestamp) == (7000, 7000)


def test_a_batch_of_which_all_stays_is_not_made_anew() -> None:
    first = build_batch([rec(0, b"a"), rec(1, b"b")])
    left = kept(offset_map(first), first)
    assert left is not None
    assert isinstance(left.content, memoryview)
    assert bytes(left.content) == first


def test_what_lies_behind_the_map_stays() -> None:
    first, second = build_batch([rec(0, b"a")]), build_batch([rec(1, b"a"), rec(2, None)])
    assert kept(offset_map(first), second) == Kept(memoryview(second), 2, 1002, 2)


def test_records_without_a_key_go() -> None:
    first = build_batch([rec(0, None), rec(1, b"")])
    assert parsed(kept(offset_map(first), first))[1] == [rec(1, b"")]


def test_a_key_that_the_map_does_not_have_stays() -> None:
    first = build_batch([rec(0, b"a")])
    assert kept(offset_map(build_batch([rec(1, b"b")])), first) is not None


@pytest.mark.parametrize("codec_id", [0, 4])
def test_a_tombstone_gets_a_horizon_and_goes_after_it(codec_id: int) -> None:
    records = [rec(0, b"a", None), rec(1, b"b"), rec(2, b"c" * 60, timestamp=-900)]
    first = build_batch(records, codec_id=codec_id)
    offsets = offset_map(first)
    marked = kept(offsets, first)
    header, left = parsed(marked)
    assert (header.delete_horizon_ms, left, header.max_timestamp) == (5000 + DAY, records, 1001)
    assert marked is not None
    again = kept(offsets, bytes(marked.content), now_ms=5000 + DAY - 1)
    assert again is not None
    assert bytes(again.content) == bytes(marked.content)
    header, left = parsed(kept(offsets, bytes(marked.content), now_ms=5000 + DAY))
    assert (header.delete_horizon_ms, left) == (5000 + DAY, records[1:])


def test_timestamps_too_far_away_for_a_horizon_stay_as_they_are() -> None:
    first = build_batch([Record(0, 2**63 - 1, b"a", None)])
    left = kept(offset_map(first), first)
    assert left is not None
    assert bytes(left.content) == first


def test_an_aborted_batch_goes_or_leaves_its_header() -> None:
    first = build_batch(
        [rec(0, b"a"), rec(1, b"b")], transactional=True, producer_id=7, producer_epoch=2, base_sequence=5, codec_id=1
    )
    offsets = offset_map(first)
    assert kept(offsets, first, discard=True) is None
    left = kept(offsets, first, discard=True, keep_empty=True)
    header, records = parsed(left)
    assert (records, header.base_offset, header.last_offset, header.last_sequence) == ([], 0, 1, 6)
    assert (header.attributes, header.base_timestamp, header.max_timestamp) == (0x10, -1, 1001)
    assert left is not None
    assert kept(offsets, bytes(left.content), keep_empty=True) == left
    assert kept(offsets, bytes(left.content)) is None


def test_a_header_stays_where_all_records_are_superseded() -> None:
    first = build_batch([rec(0, b"a")], producer_id=7, producer_epoch=2, base_sequence=5)
    offsets = offset_map(first, build_batch([rec(1, b"a")]))
    assert kept(offsets, first) is None
    assert parsed(kept(offsets, first, keep_empty=True))[1] == []


def test_a_marker_stays_until_it_marks_nothing_and_then_gets_a_horizon() -> None:
    marker = build_batch([rec(0, b"\0\0\0\1", b"\0" * 6)], transactional=True, control=True, producer_id=7)
    offsets = offset_map(build_batch([rec(1, b"b")]))
    left = kept(offsets, marker)
    assert left is not None
    assert bytes(left.content) == marker
    header, records = parsed(kept(offsets, marker, marks_nothing=True))
    assert (header.delete_horizon_ms, header.attributes, len(records)) == (5000 + DAY, 0x70, 1)


def test_a_full_map_says_how_far_it_goes() -> None:
    first = build_batch([rec(offset, b"%d" % offset) for offset in range(50)])
    offsets = offset_map(first, keys=20)
    assert 20 <= offsets.used <= 22
    assert offsets.latest_offset == offsets.used - 1
    assert offsets.utilization > 0.8
    left = kept(offsets, first)
    assert left is not None
    assert bytes(left.content) == first


def test_keys_below_the_start_are_not_noted() -> None:
    first = memoryview(bytearray(build_batch([rec(0, b"a"), rec(1, b"b")])))
    offsets = OffsetMap(1 << 20, 0.9, SECRET, 10)
    assert note_batch(offsets, first, 0, unpack_header(first, 0), 1)
    assert offsets.used == 1


def test_memory_is_bounded() -> None:
    assert len(OffsetMap(2400, 0.9, SECRET, 10**9).table) == 300
    assert len(OffsetMap(1 << 30, 0.9, SECRET, 100).table) < 360


def test_a_changed_bit_is_seen_by_both_passes() -> None:
    data = build_batch([rec(0, b"a")])
    data[64] ^= 1
    view = memoryview(data)
    with pytest.raises(RecordError, match="checksum"):
        note_batch(OffsetMap(1 << 20, 0.9, SECRET, 10), view, 0, unpack_header(view, 0), 0)
    with pytest.raises(RecordError, match="checksum"):
        kept(offset_map(), data)


def test_the_hash_is_siphash() -> None:
    """The first of the vectors that its authors give: key 00 to 0f, of nothing and of one byte 00."""
    if cleaning.put_keys.__module__ != "protocol.records._cleaner" or walker_kind() != "compiled":
        pytest.skip("interpreted, BLAKE2b stands in for it")
    expected = ["a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45"]
    for key, digest in zip([b"", b"\0"], expected, strict=True):
        offsets = offset_map(build_batch([rec(0, key)]))
        slot = next(at for at in range(0, len(offsets.table), 3) if offsets.table[at + 2])
        assert offsets.table[slot : slot + 2].tobytes().hex() == digest


# ---- old formats


def left_of(messages: bytes, offsets: OffsetMap, *, drop_tombstones: bool = False) -> list[Record]:
    view, position, found = memoryview(bytearray(messages)), 0, bytearray()
    while position < len(view):
        left, position = kept_of_messages(offsets, view, position, drop_tombstones=drop_tombstones, scratch=Scratch())
        if left is not None:
            found += left.content
            assert legacy.parse_set(found)[-1].offset == left.last_offset
    return legacy.parse_set(found)


@pytest.mark.parametrize("codec_id", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_compacted_as_well(magic: int, codec_id: int) -> None:
    records = [rec(10, b"a"), rec(11, b"b", None), rec(12, b"a"), rec(13, None), rec(14, b"c"), rec(15, b"d")]
    data = legacy.build_set(records, magic, codec_id=codec_id)
    offsets = OffsetMap(1 << 20, 0.9, SECRET, 10)
    fits, behind, last_offset = cleaning.note_messages(offsets, memoryview(data), 0, 0)
    assert (fits, behind, last_offset, offsets.used) == (True, len(data), 15, 4)
    later = memoryview(legacy.build_set([rec(16, b"d")], magic))
    cleaning.note_messages(offsets, later, 0, 0)
    offsets.latest_offset = 16
    assert [each.offset for each in left_of(data, offsets)] == [11, 12, 14]
    assert [each.offset for each in left_of(data, offsets, drop_tombstones=True)] == [12, 14]
    if magic:
        assert [each.timestamp for each in left_of(data, offsets)] == [1011, 1012, 1014]


@pytest.mark.parametrize("codec_id", [0, 1])
def test_a_wrappers_append_time_stays(codec_id: int) -> None:
    data = legacy.build_set([rec(10, b"a"), rec(11, b"a")], 1, codec_id=codec_id, append_time=77)
    offsets = OffsetMap(1 << 20, 0.9, SECRET, 10)
    cleaning.note_messages(offsets, memoryview(data), 0, 0)
    offsets.latest_offset = 11
    assert [(each.offset, each.timestamp) for each in left_of(data, offsets)] == [(11, 77)]


def test_many_old_messages_are_taken_a_few_at_a_time() -> None:
    data = legacy.build_set([rec(offset, b"k%d" % offset, b"x" * 100) for offset in range(500)], 1)
    offsets = OffsetMap(1 << 20, 0.9, SECRET, 500)
    _, behind, _ = cleaning.note_messages(offsets, memoryview(data), 0, 0)
    assert behind < 20_000
    assert len(left_of(data, offsets)) == 500


def test_one_old_message_may_be_larger_than_that() -> None:
    data = legacy.build_set([rec(5, b"k", b"x" * 100_000)], 1)
    assert len(left_of(data, OffsetMap(1 << 20, 0.9, SECRET, 5))) == 1


def test_a_cut_old_message_is_refused() -> None:
    data = memoryview(legacy.build_set([rec(5, b"k")], 1))[:-1]
    with pytest.raises(RecordError) as refusal:
        cleaning.note_messages(OffsetMap(1 << 20, 0.9, SECRET, 5), data, 0, 0)
    assert refusal.value.code is ErrorCode.CORRUPT_MESSAGE
