"""Append, read, roll, cut and forget, on the simulated disk."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.errors import RefusedRecordsError
from kbroker.log.facts import SegmentsDeleted
from kbroker.log.isolation import HIGH_WATERMARK, LOG_END, TXN_COMMITTED
from kbroker.log.prepare import prepare
from kbroker.log.producer_state import Origin
from protocol.errors import ErrorCode, KafkaError
from protocol.records import Record
from protocol.records.batch import BatchHeader, unpack_header
from protocol.records.content import build_batch, parse_set
from tests.log.worlds import (
    FOLDER,
    NOW,
    all_offsets,
    batch,
    broken,
    copy_of,
    emptied_marker,
    fetch,
    marker,
    new_disk,
    offsets_in,
    open_at,
    record,
    refused,
)

SMALL = LogConfig(segment_bytes=320, index_interval_bytes=100)


def test_appends_get_consecutive_offsets() -> None:
    log = open_at(new_disk())
    spans = [
        (plan.first_offset, plan.last_offset) for plan in (log.append_as_leader(batch(n), 0, NOW) for n in (1, 3, 2))
    ]
    assert spans == [(0, 0), (1, 3), (4, 5)]


def test_what_is_read_is_what_was_appended_with_offset_and_epoch() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(2), 7, NOW)
    log.append_as_leader(batch(2), 7, NOW)
    assert fetch(log, 2) == bytes(batch(2, base_offset=2, epoch=7))


def test_a_read_begins_with_the_batch_that_holds_the_offset() -> None:
    log = open_at(new_disk())
    for _ in range(3):
        log.append_as_leader(batch(10), 0, NOW)
    assert offsets_in(fetch(log, 15)) == [10, 20]


def test_a_read_ends_below_the_bound() -> None:
    log = open_at(new_disk())
    for _ in range(5):
        log.append_as_leader(batch(), 0, NOW)
    assert offsets_in(fetch(log, 1, bound=3)) == [1, 2]


def test_a_read_at_the_end_is_empty() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(), 0, NOW)
    assert fetch(log, 1) == b""


@pytest.mark.parametrize("offset", [2, 100])
def test_a_read_beyond_the_end_is_out_of_range(offset: int) -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(), 0, NOW)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        fetch(log, offset)


def test_the_first_batch_is_read_whole_though_it_is_too_large() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(size=200), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    assert fetch(log, 0, max_bytes=10) == bytes(batch(size=200, epoch=0))


def test_a_first_batch_without_room_is_left_out_where_it_need_not_be_whole() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(size=200), 0, NOW)
    assert [log.read(0, most, 1, whole_first_batch=False).region for most in (10, 0)] == [None, None]


def test_a_read_may_cut_its_last_batch_off() -> None:
    log = open_at(new_disk())
    for _ in range(3):
        log.append_as_leader(batch(), 0, NOW)
    assert len(fetch(log, 0, max_bytes=len(batch()) + 20)) == len(batch()) + 20


def test_every_offset_is_found_across_segments_and_index_entries() -> None:
    log = open_at(new_disk(), SMALL)
    for _ in range(100):
        log.append_as_leader(batch(3), 0, NOW)
    assert [offsets_in(fetch(log, offset))[0] for offset in range(300)] == [offset // 3 * 3 for offset in range(300)]


def test_a_consumer_reads_all_of_it_through_rolls() -> None:
    log = open_at(new_disk(), SMALL)
    seen, next_offset = [], 0
    for _ in range(50):
        log.append_as_leader(batch(), 0, NOW)
        found = offsets_in(fetch(log, next_offset))
        seen += found
        next_offset = found[-1] + 1
    assert seen == list(range(50))


def test_regions_stay_good_when_the_log_forgets_their_file() -> None:
    log = open_at(new_disk(), SMALL)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    region = log.read(0, 1000, 20).region
    assert region is not None
    log.set_high_watermark(20)
    log.advance_log_start(20)
    for job in log.delete_old_segments(NOW):
        job.run()
    assert offsets_in(region.read())[0] == 0


def test_a_lookup_reads_little_at_a_time_however_sparse_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_at(new_disk(), LogConfig(index_interval_bytes=1 << 30))
    for _ in range(100):
        log.append_as_leader(batch(size=1000), 0, NOW)
    sizes: list[int] = []
    file = type(log.active.file)
    read = file.read
    monkeypatch.setattr(file, "read", lambda *args: (sizes.append(args[2]), read(*args))[1])
    assert log.available_bytes(50, 100) > 0
    assert max(sizes) <= 8192


# ---- refusals


def test_a_compressed_batch_of_millions_of_records_is_refused_unread() -> None:
    with refused(ErrorCode.MESSAGE_TOO_LARGE):
        open_at(new_disk()).append_as_leader(batch(1_000_001, records=b"", attributes=1), 0, NOW)


def test_a_coordinator_writes_no_marker_without_a_record() -> None:
    with refused(ErrorCode.INVALID_RECORD):
        open_at(new_disk()).append_as_leader(emptied_marker(), 0, NOW, Origin.COORDINATOR)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (memoryview(bytearray()), ErrorCode.INVALID_RECORD),
        (broken(batch(), 70), ErrorCode.CORRUPT_MESSAGE),
        (broken(batch(), 19), ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1], ErrorCode.INVALID_RECORD),
        (batch()[:30], ErrorCode.INVALID_RECORD),
        (broken(batch(), 10), ErrorCode.INVALID_RECORD),
        (broken(broken(batch(), 11), 70), ErrorCode.INVALID_RECORD),
        (memoryview(bytearray(bytes(batch()) + bytes(20))), ErrorCode.CORRUPT_MESSAGE),
        (broken(batch(), 16), ErrorCode.CORRUPT_MESSAGE),
        (batch(base_offset=5), ErrorCode.INVALID_RECORD),
        (batch(0, last_offset_delta=0), ErrorCode.INVALID_RECORD),
        (batch(2, last_offset_delta=5), ErrorCode.INVALID_RECORD),
        (marker(1, 0, commit=True), ErrorCode.INVALID_RECORD),
        (batch(producer=(1, 0, -1)), ErrorCode.INVALID_RECORD),
        (memoryview(bytearray(bytes(batch()) + bytes(batch()))), ErrorCode.INVALID_RECORD),
        (batch(size=2000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(size=1500), ErrorCode.RECORD_LIST_TOO_LARGE),
        (batch(attributes=8, timestamp=-1), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(records: memoryview, code: ErrorCode) -> None:
    log = open_at(new_disk(), LogConfig(max_message_bytes=1800, segment_bytes=1000))
    with refused(code):
        log.append_as_leader(records, 0, NOW)
    assert (log.log_end_offset, log.size, len(log.epochs)) == (0, 0, 0)


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])  # the short way and the careful one
def test_a_batch_may_be_as_long_as_a_segment(timestamp_type: str) -> None:
    config = LogConfig(segment_bytes=len(batch()), message_timestamp_type=timestamp_type)
    assert open_at(new_disk(), config).append_as_leader(batch(), 0, NOW).last_offset == 0


def test_bytes_behind_the_only_batch_are_left_out() -> None:
    log = open_at(new_disk())
    log.append_as_leader(memoryview(bytearray(bytes(batch()) + bytes(batch())[:40])), 0, NOW)
    assert log.size == len(batch())


def test_messages_of_old_formats_are_no_batches() -> None:
    message = bytearray(b"\0" * 8 + (22).to_bytes(4, "big") + b"\0" * 4 + b"\1" + b"\0" * 9 + b"\xff" * 8)
    with refused(ErrorCode.INVALID_RECORD):
        open_at(new_disk()).append_as_leader(memoryview(message + bytes(40)), 0, NOW)


@pytest.mark.parametrize(("max_timestamp", "is_taken"), [(NOW, True), (NOW - 1001, False)])
def test_a_batch_that_claims_log_append_time_is_as_late_as_it_says(max_timestamp: int, is_taken: bool) -> None:
    log = open_at(new_disk(), LogConfig(message_timestamp_before_max_ms=1000))
    records = batch(attributes=8, timestamp=5, max_timestamp=max_timestamp)
    with nullcontext() if is_taken else refused(ErrorCode.INVALID_TIMESTAMP):
        log.append_as_leader(records, 0, NOW)
    assert log.log_end_offset == is_taken


@pytest.mark.parametrize("timestamp", [NOW - 1001, NOW + 501, -5])
def test_timestamps_outside_the_limits_are_refused(timestamp: int) -> None:
    config = LogConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    with refused(ErrorCode.INVALID_TIMESTAMP):
        open_at(new_disk(), config).append_as_leader(batch(timestamp=timestamp), 0, NOW)


def test_log_append_time_is_stamped_and_the_checksum_follows() -> None:
    log = open_at(new_disk(), LogConfig(message_timestamp_type="LogAppendTime"))
    plan = log.append_as_leader(batch(timestamp=5), 3, NOW)
    expected = batch(timestamp=5, max_timestamp=NOW, attributes=8, epoch=3)
    assert (plan.append_time_ms, fetch(log, 0)) == (NOW, bytes(expected))


# ---- records


def test_records_that_do_not_parse_are_refused() -> None:
    with refused(ErrorCode.INVALID_RECORD):
        open_at(new_disk()).append_as_leader(batch(2, records=record(0, b"x") + b"\x7f"), 0, NOW)


def test_nobody_looks_at_records_where_the_settings_do_not_ask_for_it() -> None:
    log = open_at(new_disk(), LogConfig(check_records=False))
    assert log.append_as_leader(batch(1, records=b"\x7f"), 0, NOW).last_offset == 0


def test_a_record_without_a_key_is_refused_on_a_compacted_topic_and_named() -> None:
    log = open_at(new_disk(), LogConfig(cleanup_policy=frozenset({"compact"})))
    with refused(ErrorCode.INVALID_RECORD) as raised:
        log.append_as_leader(batch(2, records=record(0, b"x", b"k") + record(1, b"x")), 0, NOW)
    assert named(raised) == [1]


def named(raised: pytest.ExceptionInfo[KafkaError]) -> list[int]:
    assert isinstance(raised.value, RefusedRecordsError)
    return [index for index, _ in raised.value.records]


def test_every_record_with_a_bad_timestamp_is_named() -> None:
    log = open_at(new_disk(), LogConfig(message_timestamp_after_max_ms=500))
    records = record(0, b"x") + record(1, b"x", timestamp_delta=501) + record(2, b"x", timestamp_delta=502)
    with refused(ErrorCode.INVALID_TIMESTAMP) as raised:
        log.append_as_leader(batch(3, records=records), 0, NOW)
    assert named(raised) == [1, 2]


def test_a_batch_with_a_bad_timestamp_and_a_missing_key_is_refused_for_the_timestamp() -> None:
    log = open_at(new_disk(), LogConfig(cleanup_policy=frozenset({"compact"}), message_timestamp_after_max_ms=500))
    records = record(0, b"x") + record(1, b"x", b"k", timestamp_delta=501) + record(2, b"x", b"k")
    with refused(ErrorCode.INVALID_TIMESTAMP) as raised:
        log.append_as_leader(batch(3, records=records), 0, NOW)
    assert named(raised) == [0, 1]


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_every_record_of_a_batch_that_claims_log_append_time_is_named(timestamp_type: str) -> None:
    log = open_at(new_disk(), LogConfig(message_timestamp_type=timestamp_type))
    records = batch(2, attributes=8, records=record(0, b"x") + record(1, b"x"), max_timestamp=-1)
    with refused(ErrorCode.INVALID_TIMESTAMP) as raised:
        log.append_as_leader(records, 0, NOW)
    assert named(raised) == [0, 1]


def test_no_more_records_are_named_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.log.append.NAMED_RECORDS", 2)
    log = open_at(new_disk(), LogConfig(cleanup_policy=frozenset({"compact"})))
    with refused(ErrorCode.INVALID_RECORD) as raised:
        log.append_as_leader(batch(3, records=record(0, b"x") + record(1, b"x") + record(2, b"x")), 0, NOW)
    assert named(raised) == [0, 1]


def test_a_wrong_max_timestamp_is_put_right() -> None:
    log = open_at(new_disk())
    records = record(0, b"x", timestamp_delta=5)
    plan = log.append_as_leader(batch(records=records, max_timestamp=NOW + 99), 0, NOW)
    assert (plan.max_timestamp, fetch(log, 0)) == (
        NOW + 5,
        bytes(batch(records=records, max_timestamp=NOW + 5, epoch=0)),
    )


def values_of(data: bytes) -> list[tuple[int, bytes | None]]:
    ((_, records),) = parse_set(data)
    return [(each.offset, each.value) for each in records]


def test_a_topic_with_its_own_codec_recompresses() -> None:
    gzip = LogConfig(compression_type="gzip")
    log = open_at(new_disk(), gzip)
    for records, epoch in ((batch(), 0), (batch(3, size=500, producer=(7, 2, 0)), 4)):
        log.append_as_leader(prepare(records, gzip, NOW), epoch, NOW, Origin.PREPARED)
    data = fetch(log, 1)
    header = BatchHeader(*unpack_header(data))
    assert len(data) < 200
    assert (header.codec_id, header.producer_id, header.producer_epoch, header.base_sequence) == (1, 7, 2, 0)
    assert (header.partition_leader_epoch, values_of(data)) == (4, [(i, b"v" * 500) for i in (1, 2, 3)])


def test_a_topic_without_compression_unpacks() -> None:
    packed = memoryview(build_batch([Record(0, NOW, None, b"v" * 500)], codec_id=4))
    plain = LogConfig(compression_type="uncompressed")
    log = open_at(new_disk(), plain)
    log.append_as_leader(prepare(packed, plain, NOW), 0, NOW, Origin.PREPARED)
    assert fetch(log, 0) == bytes(batch(size=500, epoch=0))


def test_a_compressed_batch_is_kept_as_it_came() -> None:
    packed = bytes(build_batch([Record(0, NOW, None, b"v" * 500)], codec_id=4))
    log = open_at(new_disk())
    log.append_as_leader(memoryview(bytearray(packed)), 0, NOW)
    assert fetch(log, 0)[16:] == packed[16:]


def test_a_batch_in_the_topics_codec_is_kept_as_it_came() -> None:
    packed = bytes(build_batch([Record(0, NOW, None, bytes(range(256)) * 4)], codec_id=1, level=1))
    log = open_at(new_disk(), LogConfig(compression_type="gzip", compression_level=9))
    log.append_as_leader(memoryview(bytearray(packed)), 0, NOW)
    assert fetch(log, 0)[16:] == packed[16:]


def test_offset_deltas_out_of_order_are_put_right() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(2, records=record(0, b"a") + record(0, b"b")), 0, NOW)
    assert values_of(fetch(log, 0)) == [(0, b"a"), (1, b"b")]


# ---- producers


def test_a_repeated_batch_is_answered_with_its_first_offsets() -> None:
    log = open_at(new_disk())
    for sequence in range(0, 10, 2):
        log.append_as_leader(batch(2, producer=(9, 0, sequence)), 0, NOW)
    plan = log.append_as_leader(batch(2, producer=(9, 0, 2)), 0, NOW)
    assert (plan.first_offset, plan.last_offset, log.log_end_offset) == (2, 3, 10)
    assert plan.duplicate is not None


@pytest.mark.parametrize(
    ("epoch", "sequence", "code"),
    [
        (1, 3, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (1, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (2, 1, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (0, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_is_out_of_turn_is_refused(epoch: int, sequence: int, code: ErrorCode) -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(2, producer=(9, 1, 0)), 0, NOW)
    with refused(code):
        log.append_as_leader(batch(1, producer=(9, epoch, sequence)), 0, NOW)


def test_coordinators_have_no_sequences() -> None:
    log = open_at(new_disk())
    for _ in range(3):
        log.append_as_leader(batch(producer=(9, 1, -1)), 0, NOW, Origin.COORDINATOR)
    assert log.log_end_offset == 3


def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_committed() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(3)
    open_at_1 = log.last_stable_offset
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    ended = log.last_stable_offset
    log.set_high_watermark(4)
    assert (open_at_1, ended, log.last_stable_offset) == (1, 1, 4)


def test_each_reader_has_its_own_end() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(2)
    assert [log.readable_end(each) for each in (LOG_END, HIGH_WATERMARK, TXN_COMMITTED)] == [3, 2, 0]


def test_aborted_transactions_are_told_to_readers_that_overlap_them() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    log.append_as_leader(batch(), 0, NOW)
    told = [log.read(offset, 1000, 3, with_aborted=True).aborted for offset in (0, 2)]
    assert [[entry[:3] for entry in entries or []] for entries in told] == [[(9, 0, 1)], []]


# ---- roll


def test_a_segment_rolls_before_it_is_too_large() -> None:
    log = open_at(new_disk(), SMALL)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    assert len(log.segments) == 5
    assert all(segment.size <= 320 for segment in log.segments)


def test_a_segment_rolls_when_a_batch_is_that_much_later_than_its_first() -> None:
    log = open_at(new_disk(), LogConfig(segment_ms=1000))
    for timestamp in (NOW, NOW + 1000, NOW + 1001):
        log.append_as_leader(batch(timestamp=timestamp), 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_a_compacted_topic_rolls_in_time_to_be_compacted() -> None:
    log = open_at(new_disk(), LogConfig(max_compaction_lag_ms=1000, cleanup_policy=frozenset({"compact"})))
    for at_ms in (0, 1000, 1001):
        log.append_as_leader(batch(timestamp=NOW + at_ms, key=b"k"), 0, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_makes_a_segment_roll_earlier() -> None:
    log = open_at(new_disk(), LogConfig(segment_ms=1000, segment_jitter_ms=1000))
    jitter = log.active.jitter_ms
    assert jitter > 0
    log.append_as_leader(batch(), 0, NOW)
    log.append_as_leader(batch(timestamp=NOW + 1001 - jitter), 0, NOW)
    assert len(log.segments) == 2


def test_a_segment_rolls_when_an_index_is_full() -> None:
    log = open_at(new_disk(), LogConfig(segment_index_bytes=60, index_interval_bytes=10))
    for timestamp in range(20):
        log.append_as_leader(batch(timestamp=NOW + timestamp), 0, NOW)
    assert len(log.segments) > 2
    assert all(segment.times.count <= 5 for segment in log.segments)


def test_a_segment_rolls_when_offsets_would_not_fit_its_index() -> None:
    log = open_at(new_disk())
    log.append_as_follower(copy_of(batch(epoch=0)), NOW)
    log.append_as_follower(copy_of(batch(base_offset=2**31, epoch=0)), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_rolled_segments_indices_are_trimmed_and_end_with_its_largest_timestamp() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL)
    for timestamp in range(8):
        log.append_as_leader(batch(timestamp=NOW + timestamp), 0, NOW)
    sizes = {part: disk.stat(f"{FOLDER}/{0:020d}.{part}").size for part in ("index", "timeindex")}  # type: ignore[union-attr]
    assert sizes == {"index": 8, "timeindex": 24}
    assert log.segments[0].times.last_timestamp == NOW + 3


# ---- cut


def test_truncation_cuts_records_epochs_and_producers() -> None:
    log = open_at(new_disk(), SMALL)
    for i in range(20):
        log.append_as_leader(batch(producer=(9, 0, i)), i // 5, NOW)
    assert log.truncate_to(12, NOW).removed is not None
    assert (log.log_end_offset, all_offsets(log)) == (12, list(range(12)))
    assert log.epochs.entries() == [(0, 0), (1, 5), (2, 10)]
    assert log.append_as_leader(batch(producer=(9, 0, 12)), 4, NOW).first_offset == 12


def test_truncation_beyond_the_end_changes_nothing() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(), 0, NOW)
    log.truncate_to(5, NOW)
    assert log.log_end_offset == 1


def test_truncation_before_the_first_segment_starts_again_there() -> None:
    log = open_at(new_disk(), log_start_offset=100)
    log.append_as_leader(batch(), 0, NOW)
    log.truncate_to(50, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (50, 50, 0)


def test_starting_again_drops_everything() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL)
    for i in range(20):
        log.append_as_leader(batch(producer=(9, 0, i)), 0, NOW)
    removed = log.truncate_fully(1000, NOW).removed
    assert removed is not None
    removed.run()
    assert (log.log_start_offset, log.log_end_offset, len(log.producers), len(log.epochs)) == (1000, 1000, 0, 0)
    assert {path.rpartition("/")[2][:20] for path in disk.paths()} == {f"{1000:020d}"}


def test_appends_go_on_where_a_cut_left_off() -> None:
    log = open_at(new_disk(), SMALL)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    log.truncate_to(7, NOW)
    for _ in range(10):
        log.append_as_leader(batch(), 1, NOW)
    assert all_offsets(log) == list(range(17))


# ---- forget


def retained(config: LogConfig, high_watermark: int = 20, wall_ms: int = NOW) -> list[int]:
    """Base offsets of the segments left of 20 batches, one ms apart, four to a segment."""
    log = open_at(new_disk(), config)
    for i in range(20):
        log.append_as_leader(batch(timestamp=NOW + i, key=b"" if config.compact else None), 0, NOW)
    log.set_high_watermark(high_watermark)
    log.delete_old_segments(wall_ms)
    assert log.log_start_offset == log.segments[0].base_offset
    return [segment.base_offset for segment in log.segments]


def test_segments_whose_latest_record_is_too_old_go() -> None:
    config = LogConfig(segment_bytes=320, retention_ms=1000)
    assert retained(config, wall_ms=NOW + 1000 + 8) == [8, 12, 16]


def test_the_active_segment_goes_too_once_it_is_too_old() -> None:
    assert retained(LogConfig(segment_bytes=320, retention_ms=1000), wall_ms=NOW + 5000) == [20]


def test_records_without_timestamps_are_as_old_as_the_last_of_their_segment() -> None:
    clock = [NOW]
    log = open_at(new_disk(wall_ms=lambda: clock[0]), LogConfig(retention_ms=1000))
    for age_ms in (5000, 900):
        clock[0] = NOW + 5000 - age_ms
        log.append_as_leader(batch(timestamp=-1), 0, clock[0])
    log.set_high_watermark(2)
    log.delete_old_segments(NOW + 5000)
    assert log.log_start_offset == 0


def test_the_oldest_segments_go_when_the_log_is_too_large() -> None:
    size = 20 * len(batch())
    assert retained(LogConfig(segment_bytes=320, retention_bytes=size - 2 * 4 * len(batch()))) == [8, 12, 16]


def test_nothing_goes_above_the_high_watermark() -> None:
    assert retained(LogConfig(segment_bytes=320, retention_ms=0), high_watermark=9, wall_ms=NOW + 5000) == [8, 12, 16]


@pytest.mark.parametrize(
    ("config", "start", "expected"),
    [
        ({"retention_ms": 1000}, 0, (5, 0, 20, "retention time 1000 ms")),
        ({"retention_bytes": 700}, 0, (2, 0, 8, "retention size 700 bytes")),
        ({"retention_ms": -1}, 9, (2, 0, 8, "log start offset 9")),
        ({"retention_bytes": 700}, 4, (2, 0, 8, "log start offset 4, retention size 700 bytes")),
        ({"retention_ms": -1}, 3, None),
    ],
)
def test_what_goes_and_why_is_told(
    config: dict[str, int], start: int, expected: tuple[int, int, int, str] | None
) -> None:
    log = open_at(new_disk(), LogConfig(segment_bytes=320)._replace(**config))  # type: ignore[arg-type]
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(20)
    log.advance_log_start(start)
    told: list[SegmentsDeleted] = []
    size = log.size
    log.delete_old_segments(NOW + 5000, told.append)
    found = [(fact.segments, fact.first_offset, fact.log_start_offset, fact.why) for fact in told]
    assert found == ([] if expected is None else [expected])
    assert sum(fact.size_bytes for fact in told) == size - log.size


def test_a_compacted_topic_forgets_nothing_by_age() -> None:
    config = LogConfig(segment_bytes=320, retention_ms=0, cleanup_policy=frozenset({"compact"}))
    assert retained(config, wall_ms=NOW + 5000) == [0, 4, 8, 12, 16]


def test_deleted_records_are_out_of_range_and_their_segments_go() -> None:
    log = open_at(new_disk(), SMALL)
    for _ in range(20):
        log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(20)
    log.advance_log_start(9)
    log.delete_old_segments(NOW)
    assert [segment.base_offset for segment in log.segments] == [8, 12, 16]
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        fetch(log, 8)


def test_records_above_the_high_watermark_cannot_be_deleted() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(), 0, NOW)
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.advance_log_start(1)


def test_files_are_set_aside_first_and_removed_by_the_job() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL)
    for _ in range(8):
        log.append_as_leader(batch(), 0, NOW)
    log.set_high_watermark(8)
    log.advance_log_start(4)
    (job,) = log.delete_old_segments(NOW)
    aside = [path for path in disk.paths() if path.endswith(".deleted")]
    job.run()
    assert len(aside) == 3
    assert not [path for path in disk.paths() if "00000000000000000000" in path]


def test_a_partition_is_deleted_by_renaming_its_folder() -> None:
    disk = new_disk()
    log = open_at(disk)
    log.append_as_leader(batch(), 0, NOW)
    region = log.read(0, 1000, 1).region
    log.move_to("/logs/t-0.abc-delete")
    log.delete().run()
    assert disk.list("/logs") == []
    assert region is not None
    assert offsets_in(region.read()) == [0]
