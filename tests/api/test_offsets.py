"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.requests import batch, fetch, fetched, list_offsets, produce
from tests.world import Client, World

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    client = world.client()
    client.ask(produce(records=batch(b"a", b"b", timestamps=(1000, 2000))), 9)
    client.ask(produce(records=batch(b"c", b"d", timestamps=(5000, 3000))), 9)
    return world


def found(answer: Any) -> tuple[int, int, int]:
    (part,) = answer.topics[0].partitions
    return part.error_code, part.offset, part.timestamp


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_finds_the_end(client: Client, version: int) -> None:
    assert found(client.ask(list_offsets(LATEST), version)) == (0, 4, -1)


@pytest.mark.parametrize(
    ("timestamp", "offset", "its_timestamp"),
    [
        (EARLIEST, 0, -1),
        (EARLIEST_LOCAL, 0, -1),
        (LATEST_TIERED, -1, -1),
        (EARLIEST_PENDING_UPLOAD, -1, -1),
        (MAX_TIMESTAMP, 2, 5000),
        (0, 0, 1000),
        (1000, 0, 1000),
        (1001, 1, 2000),
        (2001, 2, 5000),
        (5001, -1, -1),
    ],
)
def test_each_kind_of_question(client: Client, timestamp: int, offset: int, its_timestamp: int) -> None:
    assert found(client.ask(list_offsets(timestamp), 11)) == (0, offset, its_timestamp)


def test_of_records_without_a_time_the_first_one_has_the_largest(world: World, client: Client) -> None:
    world.create("timeless")
    client.ask(produce(records=batch(b"a", b"b", timestamps=(-1, -1)), topic="timeless"), 9)
    assert found(client.ask(list_offsets(MAX_TIMESTAMP, topic="timeless"), 7)) == (0, 0, -1)


def test_the_largest_time_is_that_of_a_record_that_is_left(client: Client) -> None:
    delete(client, 3)
    assert found(client.ask(list_offsets(MAX_TIMESTAMP), 7)) == (0, 3, 3000)
    delete(client, 4)
    assert found(client.ask(list_offsets(MAX_TIMESTAMP), 7)) == (0, -1, -1)


@pytest.mark.parametrize("timestamp", [LATEST, 0])
def test_refused_partitions_are_counted(world: World, client: Client, timestamp: int) -> None:
    client.ask(list_offsets(timestamp), 9)
    request = list_offsets(timestamp)
    request.topics[0].name = "nowhere"
    code = found(client.ask(request, 9))[0]
    assert world.broker.counters.errors == {(2, code): 1}


def test_the_answer_carries_the_leader_epoch_of_the_record(world: World, client: Client) -> None:
    state = LeaderState(1, 1, 5, (1,), 1, (1,))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    client.ask(produce(records=batch(b"e", timestamps=(9000,))), 9)
    epochs = [
        client.ask(list_offsets(timestamp), 7).topics[0].partitions[0].leader_epoch
        for timestamp in (EARLIEST, 9000, LATEST)
    ]
    assert epochs == [0, 5, 5]


def lead_with_a_follower(world: World) -> None:
    """As a leader that was a follower: it does not know yet whether what it has is committed."""
    world.partition("t").log.high_watermark = 2  # type: ignore[union-attr]
    state = LeaderState(1, 1, 5, (1, 2), 5, (1, 2))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    ("timestamp", "version", "error"),
    [
        (LATEST, 5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (LATEST, 4, ErrorCode.LEADER_NOT_AVAILABLE),
        (MAX_TIMESTAMP, 7, ErrorCode.OFFSET_NOT_AVAILABLE),
        (2001, 5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (9000, 5, ErrorCode.OFFSET_NOT_AVAILABLE),
        (9000, 4, ErrorCode.LEADER_NOT_AVAILABLE),
    ],
)
def test_a_new_leader_tells_no_end_before_the_one_that_was_told_already(
    world: World, client: Client, timestamp: int, version: int, error: ErrorCode, isolation_level: int
) -> None:
    lead_with_a_follower(world)
    request = list_offsets(timestamp, isolation_level=isolation_level)
    before = found(client.ask(request, version))
    world.partition("t").follower_fetched(2, 4, 0, -1, 0)
    after = found(client.ask(request, version))
    assert (before[:2], after[0]) == ((error, -1), 0)


@pytest.mark.parametrize(("timestamp", "offset"), [(EARLIEST, 0), (1001, 1)])
def test_a_new_leader_tells_what_is_committed_for_certain(
    world: World, client: Client, timestamp: int, offset: int
) -> None:
    lead_with_a_follower(world)
    assert found(client.ask(list_offsets(timestamp), 7))[:2] == (0, offset)


def test_a_new_leader_shows_its_end_to_a_replica(world: World, client: Client) -> None:
    lead_with_a_follower(world)
    request = list_offsets(LATEST)
    request.replica_id = 2
    assert found(client.ask(request, 7)) == (0, 4, -1)


def test_the_end_is_the_high_watermark_to_a_consumer(world: World, client: Client) -> None:
    world.partition("t").isr = (1, 2)
    client.ask(produce(b"e"), 9)
    assert found(client.ask(list_offsets(LATEST), 7)) == (0, 4, -1)


def test_a_partition_named_twice_is_refused_each_time(world: World, client: Client) -> None:
    world.create("other")
    request = list_offsets(LATEST)
    request.topics = [*request.topics, *list_offsets(LATEST, topic="other").topics, *list_offsets(EARLIEST).topics]
    codes = [part.error_code for topic in client.ask(request, 7).topics for part in topic.partitions]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]


def test_the_oldest_version_may_ask_for_both_ends_of_a_partition_at_once(client: Client) -> None:
    topics = [*list_offsets(LATEST).topics, *list_offsets(EARLIEST).topics]
    answer = client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), 0)
    parts = [part for topic in answer.topics for part in topic.partitions]
    assert [(part.error_code, part.old_style_offsets) for part in parts] == [(0, [4]), (0, [0])]


@pytest.mark.parametrize(
    ("timestamp", "since"),
    [
        (LATEST, 1),
        (EARLIEST, 1),
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (EARLIEST_PENDING_UPLOAD, 11),
        (-7, 12),
    ],
)
def test_what_a_negative_timestamp_may_ask_depends_on_the_version(client: Client, timestamp: int, since: int) -> None:
    codes = [found(client.ask(list_offsets(timestamp), version))[0] for version in range(1, 12)]
    refused = min(since, 12) - 1
    assert codes == [ErrorCode.UNSUPPORTED_VERSION] * refused + [0] * (11 - refused)


def test_the_end_is_of_the_current_leader_epoch(world: World, client: Client) -> None:
    world.partition("t").isr = (1, 2)
    world.replicas.become("t", 0, world.topic_id("t"), LeaderState(1, 1, 5, (1, 2), 1, (1, 2)), is_new=False)
    client.ask(produce(b"e"), 9)
    (part,) = client.ask(list_offsets(LATEST), 7).topics[0].partitions
    assert (part.offset, part.leader_epoch) == (4, 5)
    world.partition("t").leader_epoch = 6
    client.ask(produce(b"f"), 9)
    (part,) = client.ask(list_offsets(LATEST), 7).topics[0].partitions
    assert (part.offset, part.leader_epoch) == (4, 6)


def test_unknown_partitions_and_epochs_are_told(client: Client) -> None:
    assert found(client.ask(list_offsets(LATEST, index=9), 7))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found(client.ask(list_offsets(LATEST, epoch=9), 7))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_an_empty_log_has_no_record_of_any_time(world: World, client: Client) -> None:
    world.create("empty")
    asked = (EARLIEST, LATEST, MAX_TIMESTAMP, 0)
    offsets = [found(client.ask(list_offsets(timestamp, topic="empty"), 7))[1] for timestamp in asked]
    assert offsets == [0, 0, -1, -1]


# ---- OffsetForLeaderEpoch


def end_of(client: Client, epoch: int, *, version: int = 4, current: int = -1, index: int = 0) -> Any:
    asked = OffsetForLeaderPartition(partition=index, leader_epoch=epoch, current_leader_epoch=current)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
    (part,) = client.ask(request, version).topics[0].partitions
    return part


@pytest.mark.parametrize("version", range(5))
def test_the_current_epoch_ends_at_the_end_of_the_log(client: Client, version: int) -> None:
    part = end_of(client, 0, version=version)
    told_epoch = 0 if version >= 1 else -1  # version 0 has no place for it
    assert (part.error_code, part.leader_epoch, part.end_offset) == (0, told_epoch, 4)


def test_an_older_epoch_ends_where_the_next_one_begins(world: World, client: Client) -> None:
    world.replicas.become("t", 0, world.topic_id("t"), LeaderState(1, 1, 5, (1,), 1, (1,)), is_new=False)
    client.ask(produce(b"e"), 9)
    assert [(part.leader_epoch, part.end_offset) for part in (end_of(client, 3), end_of(client, 5))] == [(0, 4), (5, 5)]


def test_an_epoch_that_never_was_has_no_end(client: Client) -> None:
    part = end_of(client, 7)
    assert (part.error_code, part.leader_epoch, part.end_offset) == (0, -1, -1)


def test_a_fenced_or_lost_asker_is_told(client: Client) -> None:
    assert end_of(client, 0, current=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert end_of(client, 0, index=3).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ---- DeleteRecords


def delete(client: Client, before: int, *, topic: str = "t", index: int = 0, version: int = 2) -> tuple[int, int]:
    partition = DeleteRecordsPartition(partition_index=index, offset=before)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout_ms=1000)
    (part,) = client.ask(request, version).topics[0].partitions
    return part.error_code, part.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_before_an_offset_are_gone(client: Client, version: int) -> None:
    assert delete(client, 2, version=version) == (0, 2)
    assert found(client.ask(list_offsets(EARLIEST), 7)) == (0, 2, -1)
    assert fetched(client.ask(fetch(1), 12))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_minus_1_deletes_up_to_the_high_watermark(client: Client) -> None:
    assert delete(client, -1) == (0, 4)


def test_the_log_start_never_goes_back(client: Client) -> None:
    delete(client, 3)
    assert delete(client, 1) == (0, 3)


@pytest.mark.parametrize("before", [5, -2])
def test_an_offset_beyond_the_log_is_refused(client: Client, before: int) -> None:
    assert delete(client, before) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_a_topic_that_is_only_compacted_keeps_its_records(world: World, client: Client) -> None:
    world.create("keyed", cleanup_policy="compact")
    assert delete(client, 0, topic="keyed")[0] == ErrorCode.POLICY_VIOLATION


def test_deleted_records_stay_deleted_after_a_restart(world: World, client: Client) -> None:
    delete(client, 2)
    world.restart()
    assert found(world.client().ask(list_offsets(EARLIEST), 7)) == (0, 2, -1)


# ---- ListOffsets 0


def starts(client: Client, timestamp: int, most: int = 10, topic: str = "t") -> tuple[int, list[int]]:
    asked = list_offsets(timestamp, topic=topic)
    asked.topics[0].partitions[0].max_num_offsets = most
    (part,) = client.ask(asked, 0).topics[0].partitions
    return part.error_code, part.old_style_offsets


@pytest.fixture
def in_segments(world: World, client: Client) -> Client:
    """A topic "s" with segments from 0, 2 and 4 on, written a second after the other, and an end at 5."""
    world.create("s", segment_bytes="120")
    for values in ((b"a", b"b"), (b"c", b"d"), (b"e",)):
        world.advance(1000)
        client.ask(produce(records=batch(*values), topic="s"), 9)
    return client


@pytest.mark.parametrize(
    ("timestamp", "most", "expected"),
    [
        (LATEST, 10, [5, 4, 2, 0]),
        (LATEST, 1, [5]),
        (LATEST, 0, []),
        (LATEST, -1, []),
        (EARLIEST, 10, [0]),
        (EARLIEST, 1, [0]),
        (0, 10, []),
        (1 << 62, 2, [5, 4]),
    ],
)
def test_the_oldest_version_lists_segments(in_segments: Client, timestamp: int, most: int, expected: list[int]) -> None:
    assert starts(in_segments, timestamp, most, "s") == (0, expected)


def test_the_oldest_version_tells_segments_by_when_they_were_written(world: World, in_segments: Client) -> None:
    now_ms = world.clock.wall_ms()
    assert [starts(in_segments, now_ms - ago_ms, topic="s")[1] for ago_ms in (2500, 1500, 500, 0)] == [
        [],
        [0],
        [2, 0],
        [5, 4, 2, 0],
    ]


def test_the_oldest_version_sees_neither_what_is_deleted_nor_what_is_not_committed(
    world: World, in_segments: Client
) -> None:
    delete(in_segments, 3, topic="s")
    log = world.partition("s").log
    assert log is not None
    log.high_watermark = 4
    offsets = starts(in_segments, LATEST, topic="s")[1]
    assert (offsets[0], min(offsets)) == (4, 3)


def test_an_empty_log_lists_its_only_segment(world: World, client: Client) -> None:
    world.create("empty")
    assert (starts(client, LATEST, topic="empty"), starts(client, EARLIEST, topic="empty")) == ((0, [0]), (0, [0]))


def test_the_oldest_version_is_told_of_errors(client: Client) -> None:
    assert [starts(client, LATEST, topic="nothing"), starts(client, MAX_TIMESTAMP)] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        (ErrorCode.UNSUPPORTED_VERSION, []),
    ]
