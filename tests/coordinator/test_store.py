"""A coordinator's topic over a broker's replicas: what is appended, read, cold, offline, or not there."""

from __future__ import annotations

import errno

import pytest

from kbroker.coordinator.store import TopicStore
from protocol.errors import ErrorCode, KafkaError
from protocol.records.batch import BatchHeader, unpack_header
from protocol.records.content import parse_records
from tests.api.test_follower_fetch import lead
from tests.log.worlds import refused
from tests.world import World

RECORDS = [(b"key", b"value"), (b"gone", None)]


@pytest.fixture
def world() -> World:
    made = World()
    made.create("t", segment_bytes="200", index_interval_bytes="1")
    return made


def store_of(world: World, codec_id: int = 0) -> TopicStore:
    return TopicStore("t", world.replicas, world.clock, codec_id)


def first_batch(store: TopicStore, offset: int = 0) -> tuple[BatchHeader, memoryview]:
    part = store.read(0, offset)
    assert part is not None
    part.run()
    data = part.batches()
    assert data is not None
    return BatchHeader(*unpack_header(data, 0)), data


def offline(world: World) -> None:
    world.replicas.storage_error(world.partition("t"), OSError(errno.EIO, "broken"))
    world.settle()
    assert world.partition("t").log is None


def test_records_are_one_batch_at_the_end_of_the_log_with_the_time_of_day(world: World) -> None:
    store = store_of(world)
    assert store.append(0, RECORDS, -1, -1) == (0, 2, 2)
    assert store.append(0, RECORDS[:1], -1, -1) == (2, 3, 3)
    header, data = first_batch(store)
    assert [(each.key, each.value) for each in parse_records(data, 0, header)] == RECORDS
    assert (header.base_timestamp, header.codec_id) == (world.clock.wall_ms(), 0)


@pytest.mark.parametrize(("producer_id", "is_transactional"), [(-1, False), (0, True), (7, True)])
def test_a_batch_of_a_producer_is_transactional(world: World, producer_id: int, is_transactional: bool) -> None:
    store = store_of(world)
    store.append(0, RECORDS, producer_id, 3)
    header, _ = first_batch(store)
    assert (header.is_transactional, header.producer_id, header.producer_epoch) == (is_transactional, producer_id, 3)


def test_why_an_append_would_be_refused_is_what_it_is_refused_with(world: World) -> None:
    store, partition = store_of(world), world.partition("t")
    told = [store.append_error(0), store.append_error(9)]
    for epoch, isr in ((5, (1, 2)), (6, (1,))):
        lead(world, isr, epoch)
        partition.min_insync_replicas = 2
        told.append(store.append_error(0))
    with pytest.raises(KafkaError) as refused:
        store.append(0, RECORDS, -1, -1)
    offline(world)
    told.append(store.append_error(0))
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert told == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NONE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]


def test_batches_are_in_the_codec_of_the_setting(world: World) -> None:
    store = store_of(world, 1)
    store.append(0, RECORDS, -1, -1)
    assert first_batch(store)[0].codec_id == 1


def test_a_read_begins_where_it_is_asked_to_and_ends_with_the_log(world: World) -> None:
    store = store_of(world)
    ends = [store.append(0, RECORDS, -1, -1).end_offset for _ in range(5)]
    for end in ends[:-1]:
        part = store.read(0, end)
        assert part is not None
        assert (part.offset, first_batch(store, end)[0].base_offset) == (end, end)
    assert store.read(0, ends[-1]) is None


def test_a_read_begins_at_the_log_start_where_older_records_are_gone(world: World) -> None:
    store = store_of(world)
    for _ in range(5):
        store.append(0, RECORDS, -1, -1)
    world.partition("t").delete_records(4)
    part = store.read(0, 0)
    assert part is not None
    assert part.offset == 4


def test_a_cold_segment_is_made_ready_by_a_job_and_asked_again(world: World) -> None:
    store = store_of(world)
    for _ in range(5):
        store.append(0, RECORDS, -1, -1)
    world.settle()
    world.restart()
    store = store_of(world)
    cold = store.read(0, 2)
    assert cold is not None
    cold.run()
    assert (cold.offset, cold.batches()) == (2, None)
    assert first_batch(store, 2)[0].base_offset == 2


def test_a_partition_that_is_offline_can_be_neither_read_nor_written(world: World) -> None:
    store = store_of(world)
    store.append(0, RECORDS, -1, -1)
    offline(world)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        store.read(0, 0)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        store.append(0, RECORDS, -1, -1)
    assert store.high_watermark(0) == 0


def test_a_slice_that_cannot_be_read_takes_the_directory_offline(world: World) -> None:
    store = store_of(world)
    store.append(0, RECORDS, -1, -1)
    error = store.failed(0, OSError(errno.EIO, "broken"))
    world.settle()
    assert (type(error), error.code, world.partition("t").log) == (KafkaError, ErrorCode.KAFKA_STORAGE_ERROR, None)


def test_the_high_watermark_is_that_of_the_log_and_0_where_there_is_none(world: World) -> None:
    store = store_of(world)
    store.append(0, RECORDS, -1, -1)
    assert (store.high_watermark(0), store.high_watermark(1)) == (2, 0)
