"""What is made anew before it is appended: sets of old formats, and batches in another codec than the topic's."""

from __future__ import annotations

import pytest

from kbroker.log.append import must_prepare
from kbroker.log.config import LogConfig
from kbroker.log.prepare import COPIED_BYTES, is_small, prepare
from kbroker.log.producer_state import Origin
from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, legacy
from protocol.records.content import build_batch, parse_set
from tests.log.worlds import NOW, new_disk, open_at, refused

KEYED = [Record(offset, NOW + offset, b"k%d" % offset, b"value") for offset in range(3)]
PLAIN = LogConfig()


def view(data: bytes | bytearray) -> memoryview:
    return memoryview(data)


def old(magic: int = 1, records: list[Record] = KEYED, **more: int) -> memoryview:
    return view(legacy.build_set(records, magic, **more))


@pytest.mark.parametrize(
    ("records", "config", "must"),
    [
        (old(0), PLAIN, True),
        (old(1, codec_id=1), PLAIN, True),
        (view(build_batch(KEYED)), PLAIN, False),
        (view(build_batch(KEYED, codec_id=2)), PLAIN, False),
        (view(build_batch(KEYED)), LogConfig(compression_type="zstd"), True),
        (view(build_batch(KEYED, codec_id=4)), LogConfig(compression_type="zstd"), False),
        (view(build_batch(KEYED, codec_id=4)), LogConfig(compression_type="uncompressed"), True),
        (view(b"\0" * 20), PLAIN, False),
        (view(b"\3" * 30), PLAIN, False),
    ],
)
def test_records_are_made_anew_where_format_or_codec_is_not_the_topics(
    records: memoryview, config: LogConfig, must: bool
) -> None:
    assert must_prepare(records, config) == must


@pytest.mark.parametrize(
    ("records", "config", "small"),
    [
        (old(1), PLAIN, True),
        (old(1, codec_id=1), PLAIN, False),
        (view(build_batch(KEYED)), LogConfig(compression_type="gzip"), True),
        (view(build_batch(KEYED, codec_id=4)), LogConfig(compression_type="uncompressed"), False),
        (old(1, [KEYED[0]._replace(value=bytes(5000))]), LogConfig(compression_type="gzip"), False),
        (old(1, [KEYED[0]._replace(value=bytes(5000))]), PLAIN, COPIED_BYTES > 5000),
        (old(1, [KEYED[0]._replace(value=bytes(5000))]), LogConfig(message_format=0), COPIED_BYTES > 5000),
        (old(1, [KEYED[0]._replace(value=bytes(140_000))]), PLAIN, False),
    ],
)
def test_only_what_is_small_and_not_compressed_is_prepared_in_the_loop(
    records: memoryview, config: LogConfig, small: bool
) -> None:
    assert is_small(records, config) == small


@pytest.mark.parametrize("config", [PLAIN, LogConfig(compression_type="gzip")])
def test_what_was_prepared_is_appended_with_the_next_offsets(config: LogConfig) -> None:
    log = open_at(new_disk(), config=config)
    for _ in range(2):
        log.append_as_leader(prepare(old(), config, NOW), 5, NOW, Origin.PREPARED)
    plan = log.append_as_leader(prepare(old(), config, NOW), 5, NOW, Origin.PREPARED)
    fetched = log.read(0, 1 << 20, 9).region
    assert fetched is not None
    batches = parse_set(fetched.read())
    assert (plan.first_offset, plan.last_offset, plan.max_timestamp) == (6, 8, NOW + 2)
    assert [(header.base_offset, header.partition_leader_epoch) for header, _ in batches] == [(0, 5), (3, 5), (6, 5)]
    assert [record.value for _, records in batches for record in records] == [b"value"] * 9


def test_on_a_topic_with_append_time_all_records_get_it() -> None:
    config = LogConfig(message_timestamp_type="LogAppendTime")
    log = open_at(new_disk(), config=config)
    plan = log.append_as_leader(prepare(old(), config, NOW), 0, NOW + 50, Origin.PREPARED)
    fetched = log.read(0, 1 << 20, 9).region
    assert fetched is not None
    ((_, records),) = parse_set(fetched.read())
    assert ({record.timestamp for record in records}, plan.append_time_ms) == ({NOW + 50}, NOW + 50)


def test_a_batch_that_was_prepared_and_sent_twice_is_kept_once() -> None:
    config = LogConfig(compression_type="gzip")
    log = open_at(new_disk(), config=config)
    sent = build_batch(
        [record._replace(timestamp=NOW) for record in KEYED], producer_id=7, producer_epoch=0, base_sequence=0
    )
    plans = [log.append_as_leader(prepare(view(sent), config, NOW), 0, NOW, Origin.PREPARED) for _ in range(2)]
    assert [plan.duplicate is not None for plan in plans] == [False, True]
    assert log.log_end_offset == 3


def test_the_largest_timestamp_is_the_records_whatever_the_batch_claims() -> None:
    config = LogConfig(compression_type="gzip")
    ((header, _),) = parse_set(prepare(view(build_batch(KEYED, max_timestamp=NOW * 2)), config, NOW))
    assert header.max_timestamp == NOW + 2


def test_a_level_of_the_topic_is_the_level_of_its_codec_alone() -> None:
    records = [Record(at, NOW, None, bytes(range(256)) * 40) for at in range(20)]
    fast, best = (
        len(prepare(old(1, records), LogConfig(compression_type="gzip", compression_level=level), NOW))
        for level in (1, 9)
    )
    assert fast > best


def test_no_whole_message_is_nothing_at_all() -> None:
    assert len(prepare(old()[:30], PLAIN, NOW)) == 0


@pytest.mark.parametrize(
    ("records", "config", "code"),
    [
        pytest.param(
            old(1, [KEYED[0]._replace(key=None)]),
            LogConfig(cleanup_policy=frozenset({"compact"})),
            ErrorCode.INVALID_RECORD,
            id="no key on a compacted topic",
        ),
        pytest.param(old(1), LogConfig(max_message_bytes=100), ErrorCode.MESSAGE_TOO_LARGE, id="large as a batch"),
        pytest.param(
            old(1, [Record(0, NOW, None, bytes(500))], codec_id=1),
            LogConfig(max_message_bytes=60),
            ErrorCode.MESSAGE_TOO_LARGE,
            id="large as a wrapper",
        ),
        pytest.param(
            old(1, [Record(0, NOW, None, bytes(500))], codec_id=1),
            LogConfig(max_message_bytes=300, compression_type="uncompressed"),
            ErrorCode.MESSAGE_TOO_LARGE,
            id="large in the topic's codec",
        ),
        pytest.param(
            old(1),
            LogConfig(message_timestamp_after_max_ms=1),
            ErrorCode.INVALID_TIMESTAMP,
            id="a timestamp ahead of the clock",
        ),
        pytest.param(
            old(1),
            LogConfig(message_timestamp_before_max_ms=1, message_timestamp_after_max_ms=1),
            ErrorCode.INVALID_TIMESTAMP,
            id="timestamps beside the clock",
        ),
        pytest.param(
            old(1, codec_id=1, append_time=5),
            LogConfig(message_timestamp_type="LogAppendTime"),
            ErrorCode.INVALID_TIMESTAMP,
            id="a producer's append time",
        ),
        pytest.param(old(1, append_time=-1), PLAIN, ErrorCode.INVALID_TIMESTAMP, id="an append time of none"),
        pytest.param(
            old(1, codec_id=1, append_time=-1), PLAIN, ErrorCode.INVALID_TIMESTAMP, id="a wrapper's append time of none"
        ),
    ],
)
def test_old_sets_are_refused_as_batches_are(records: memoryview, config: LogConfig, code: ErrorCode) -> None:
    with refused(code):
        prepare(records, config, NOW)


def test_the_first_untimely_record_is_named() -> None:
    config = LogConfig(message_timestamp_after_max_ms=1)
    with pytest.raises(Exception, match="record 2"):
        prepare(old(1), config, NOW)


def test_an_append_time_that_a_producer_claims_passes_where_times_are_the_producers() -> None:
    ((_, records),) = parse_set(prepare(old(1, codec_id=1, append_time=NOW), PLAIN, NOW))
    assert {record.timestamp for record in records} == {NOW}


def test_messages_without_a_timestamp_pass_any_limit() -> None:
    config = LogConfig(message_timestamp_after_max_ms=1, message_timestamp_before_max_ms=1)
    assert len(prepare(old(0), config, NOW)) > 0


def test_zeros_are_no_set_of_any_format() -> None:
    with pytest.raises(RecordError) as raised:
        prepare(view(bytes(61)), PLAIN, NOW)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
