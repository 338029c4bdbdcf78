"""Topics of coordinators that get more partitions: what is kept is found until the broker starts again."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.messages.transactions import EndTxnRequest, InitProducerIdRequest
from tests.world import World

KEYS = [f"key-{number}" for number in range(6)]
GROUP, TRANSACTION = 0, 1


def world_of(kind: int) -> World:
    """A broker whose coordinator has been asked for: its topic has two partitions."""
    world = World(offsets_topic_num_partitions="2", transaction_state_log_num_partitions="2")
    world.create("t")
    world.client().ask(FindCoordinatorRequest(key="k", key_type=kind), 3)
    world.advance(100)
    return world


def grow(world: World, topic: str, count: int = 3) -> None:
    more = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)], timeout_ms=1000, validate_only=False
    )
    client = world.client()
    number = client.send(more, 3)
    world.advance(100)
    assert client.look()[number].results[0].error_code == ErrorCode.NONE


def commit(world: World) -> None:
    for group in KEYS:
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
        topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
        answer = world.client().ask(OffsetCommitRequest(group_id=group, topics=topics), 8)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def committed(world: World) -> list[int]:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answers = [world.client().ask(OffsetFetchRequest(group_id=group, topics=topics), 7) for group in KEYS]
    return [answer.topics[0].partitions[0].committed_offset for answer in answers]


def init(world: World, name: str) -> tuple[int, int]:
    asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = world.client().ask(asked, 4)
    assert answer.error_code == ErrorCode.NONE
    return answer.producer_id, answer.producer_epoch


def test_offsets_stay_where_their_groups_are_looked_for(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(GROUP)
    commit(world)
    grow(world, "__consumer_offsets")
    assert committed(world) == [7] * len(KEYS)
    assert "__consumer_offsets has 3 partitions now: ids keep theirs of the first 2" in caplog.text
    commit(world)


def test_groups_that_a_start_finds_elsewhere_are_told(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(GROUP)
    commit(world)
    grow(world, "__consumer_offsets")
    caplog.clear()
    world.restart()
    world.advance(100)
    lost = [each for each in committed(world) if each == -1]
    told = [each for each in caplog.messages if "The offsets that these groups have committed are not found" in each]
    counts = [
        int(each.split(": ")[1].split()[0]) for each in told
    ]  # "__consumer_offsets-1: 2 of 3 ids found here, ..."
    assert lost
    assert sum(counts) == len(lost)


def test_a_start_tells_nothing_where_the_number_is_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(GROUP)
    commit(world)
    world.restart()
    world.advance(100)
    assert (committed(world), [each for each in caplog.messages if "ids" in each]) == ([7] * len(KEYS), [])


def test_producers_are_fenced_by_the_next_holder_of_their_id() -> None:
    world = world_of(TRANSACTION)
    before = [init(world, name) for name in KEYS]
    grow(world, "__transaction_state")
    assert [init(world, name) for name in KEYS] == [(producer_id, epoch + 1) for producer_id, epoch in before]
    for name, (producer_id, epoch) in zip(KEYS, before, strict=True):
        end = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=False)
        assert world.client().ask(end, 3).error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize(("kind", "topic"), [(GROUP, "__consumer_offsets"), (TRANSACTION, "__transaction_state")])
def test_no_id_is_looked_for_before_it_is_known_how_many_partitions_there_are(kind: int, topic: str) -> None:
    world = World(offsets_topic_num_partitions="50", transaction_state_log_num_partitions="50")
    runtime = world.broker.group_runtime if kind == GROUP else world.broker.transaction_runtime
    before = runtime.partition_of("k")
    world.client().ask(FindCoordinatorRequest(key="k", key_type=kind), 3)
    world.advance(100)
    assert (before, runtime.topic, runtime.partitions) == (-1, topic, 50)
