"""Answers of Produce and Fetch that name the leader of a partition that is not led here (KIP-951)."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.core import EXPIRED
from kbroker.metadata.store import BrokerInfo, Endpoint
from protocol.errors import ErrorCode
from protocol.messages.control import UpdateMetadataPartitionState
from protocol.messages.fetch import FetchRequest, ReplicaState
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.requests import batch, fetch, fetched, produce, produced
from tests.world import Client, World

ME, OTHER = 1, 2
FOLLOWED, ELSEWHERE, ELSEWHERE_TOO = 1, 7, 8
NOBODY = (-1, -1)
HERE = (ME, "localhost", 9092, None)
THERE = (OTHER, "two.example", 9292, "b")
"""The endpoints of both, as they are told on the listener PLAINTEXT."""


@pytest.fixture
def world() -> World:
    """t-0 is led here, t-1 followed, and broker 2 leads it in epoch 5; t-7 and t-8 it has to itself, in epoch 6."""
    world = World()
    world.create("t", partitions=2)
    world.create("z", compression_type="gzip")
    followed = world.partition("t", FOLLOWED)
    followed.is_leader, followed.leader_id, followed.leader_epoch = False, OTHER, 5
    for index in (ELSEWHERE, ELSEWHERE_TOO):
        told_elsewhere(world, index, epoch=6)
    know_other(world)
    return world


def told_elsewhere(world: World, index: int, epoch: int) -> None:
    """The metadata cache hears that broker 2 leads a partition."""
    world.plane.cache.topics["t"].partitions[index] = UpdateMetadataPartitionState(
        partition_index=index, controller_epoch=1, leader=OTHER, leader_epoch=epoch, isr=[2], zk_version=0, replicas=[2]
    )


def know_other(world: World, listener: str = "PLAINTEXT") -> None:
    """The metadata cache hears where broker 2 is."""
    world.plane.cache.brokers[OTHER] = BrokerInfo(OTHER, (Endpoint(listener, 0, "two.example", 9292),), "b")


def lose(world: World, topic: str) -> None:
    """Broker 2 leads partition 0 from now on, in epoch 4."""
    partition = world.partition(topic)
    partition.is_leader, partition.leader_id, partition.leader_epoch = False, OTHER, 4
    world.replicas.touched.append(partition)


def writing(world: World, version: int, *indices: int) -> ProduceRequest:
    """The same batch for some partitions of t."""
    parts = [PartitionProduceData(index=index, records=batch(b"v")) for index in indices]
    topic = TopicProduceData(name="t" if version < 13 else "", topic_id=world.topic_id("t"), partition_data=parts)
    return ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic])


def reading(world: World, version: int, *indices: int, **more: Any) -> FetchRequest:
    return fetch(topic="t" if version < 13 else "", topic_id=world.topic_id("t"), indices=indices, **more)


def leader(part: Any) -> tuple[int, int, int]:
    """What a partition's part of the answer says: its error, the leader, and the leader's epoch."""
    return part.error_code, part.current_leader.leader_id, part.current_leader.leader_epoch


def nodes(answer: Any) -> list[tuple[int, str, int, str | None]]:
    return [(each.node_id, each.host, each.port, each.rack) for each in answer.node_endpoints]


def moved(epoch: int) -> tuple[int, int, int]:
    return ErrorCode.NOT_LEADER_OR_FOLLOWER, OTHER, epoch


def test_a_producer_is_told_by_its_code_alone_that_a_partition_is_led_elsewhere(world: World) -> None:
    answers = world.client().ask(writing(world, 9, FOLLOWED, ELSEWHERE), 9).responses[0].partition_responses
    assert [(each.error_code, each.error_message) for each in answers] == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, None)] * 2


@pytest.mark.parametrize(("index", "epoch"), [(FOLLOWED, 5), (ELSEWHERE, 6)])
@pytest.mark.parametrize("version", range(9, 14))
def test_a_producer_is_told_who_leads_and_where(
    world: World, client: Client, version: int, index: int, epoch: int
) -> None:
    answer = client.ask(writing(world, version, index), version)
    told = moved(epoch) if version >= 10 else (ErrorCode.NOT_LEADER_OR_FOLLOWER, *NOBODY)
    assert (leader(produced(answer)), nodes(answer)) == (told, [THERE] if version >= 10 else [])


@pytest.mark.parametrize("version", range(12, 19))
def test_a_consumer_is_told_who_leads_and_where(world: World, client: Client, version: int) -> None:
    answer = client.ask(reading(world, version, ELSEWHERE), version)
    told = moved(6) if version >= 16 else (ErrorCode.NOT_LEADER_OR_FOLLOWER, *NOBODY)
    assert (leader(fetched(answer)[ELSEWHERE]), nodes(answer)) == (told, [THERE] if version >= 16 else [])


def test_a_consumer_of_an_epoch_that_is_over_is_told_the_new_one(world: World, client: Client) -> None:
    world.partition("t").leader_epoch = 4
    answer = client.ask(reading(world, 16, 0, current_leader_epoch=3), 16)
    assert (leader(fetched(answer)[0]), nodes(answer)) == ((ErrorCode.FENCED_LEADER_EPOCH, ME, 4), [HERE])


def test_a_follower_is_told_who_leads_and_where(world: World, client: Client) -> None:
    request = reading(world, 17, FOLLOWED)
    request.replica_state = ReplicaState(replica_id=OTHER, replica_epoch=7)
    answer = client.ask(request, 17)
    assert (leader(fetched(answer)[FOLLOWED]), nodes(answer)) == (moved(5), [THERE])


@pytest.mark.parametrize(
    ("index", "epoch", "code"),
    [(0, -1, 0), (0, 9, ErrorCode.UNKNOWN_LEADER_EPOCH), (99, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)],
)
def test_no_leader_is_named_to_who_need_not_go_anywhere(
    world: World, client: Client, index: int, epoch: int, code: int
) -> None:
    answer = client.ask(reading(world, 16, index, current_leader_epoch=epoch), 16)
    assert (leader(fetched(answer)[index]), nodes(answer)) == ((code, *NOBODY), [])


def test_each_leader_is_described_once(world: World, client: Client) -> None:
    written = client.ask(writing(world, 10, ELSEWHERE, 0, ELSEWHERE_TOO), 10)
    read = client.ask(reading(world, 16, ELSEWHERE, 0, ELSEWHERE_TOO), 16)
    assert [leader(part) for part in written.responses[0].partition_responses] == [moved(6), (0, *NOBODY), moved(6)]
    assert [leader(part) for part in fetched(read).values()] == [moved(6), (0, *NOBODY), moved(6)]
    assert (nodes(written), nodes(read)) == ([THERE], [THERE])


def test_a_leader_that_cannot_be_reached_is_named_without_an_address(world: World, client: Client) -> None:
    know_other(world, "REPLICATION")
    other_listener = client.ask(writing(world, 10, ELSEWHERE), 10)
    del world.plane.cache.brokers[OTHER]
    dead = client.ask(writing(world, 10, ELSEWHERE), 10)
    assert [(leader(produced(each)), nodes(each)) for each in (other_listener, dead)] == [(moved(6), [])] * 2


def test_a_partition_without_a_leader_has_an_epoch_all_the_same(world: World, client: Client) -> None:
    world.partition("t", FOLLOWED).leader_id = -1
    answer = client.ask(writing(world, 10, FOLLOWED), 10)
    assert (leader(produced(answer)), nodes(answer)) == ((ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, 5), [])


def test_a_producer_that_waits_is_told_who_leads_now(world: World, client: Client) -> None:
    world.partition("t").isr = (ME, OTHER)
    number = client.send(produce(b"v", acks=-1), 10)
    lose(world, "t")
    world.core.step(EXPIRED, world.clock.now_ms())
    answer = client.look()[number]
    assert (leader(produced(answer)), nodes(answer)) == (moved(4), [THERE])


def test_a_consumer_that_waits_is_told_who_leads_now(world: World, client: Client) -> None:
    number = client.send(reading(world, 16, 0, max_wait_ms=60_000), 16)
    told_elsewhere(world, 0, epoch=4)
    world.replicas.stop("t", 0, delete=False)
    world.core.step(EXPIRED, world.clock.now_ms())
    answer = client.look()[number]
    assert (leader(fetched(answer)[0]), nodes(answer)) == (moved(4), [THERE])


def test_a_producer_whose_records_were_made_anew_is_told_who_leads_now(world: World, client: Client) -> None:
    world.disk_is_busy = True
    number = client.start(produce(b"v" * 5000, topic="z"), 10)
    lose(world, "z")
    before = dict(client.look())
    world.disk_is_busy = False
    world.settle()
    answer = client.look()[number]
    assert (before, leader(produced(answer)), nodes(answer)) == ({}, moved(4), [THERE])


def test_a_large_answer_names_leaders_too(world: World, client: Client) -> None:
    """Both are handled, and written, in slices."""
    count = 1200
    writes, reads = writing(world, 10, *[ELSEWHERE] * count), reading(world, 16, *range(count))
    numbers = client.send(writes, 10), client.send(reads, 16)
    world.advance(0)
    written, read = (client.look()[number] for number in numbers)
    assert {leader(part) for part in written.responses[0].partition_responses} == {moved(6)}
    assert leader(fetched(read)[ELSEWHERE]) == moved(6)
    assert (nodes(written), nodes(read)) == ([THERE], [THERE])


def test_what_the_cache_knows_counts_for_a_replica_whose_disk_has_failed(world: World, client: Client) -> None:
    world.disk_is_busy = True
    number = client.start(produce(b"v" * 5000, topic="z"), 10)
    lose(world, "z")
    world.partition("z").log = None
    world.disk_is_busy = False
    world.settle()
    answer = client.look()[number]
    told = ErrorCode.NOT_LEADER_OR_FOLLOWER, ME, 0
    assert (leader(produced(answer)), nodes(answer)) == (told, [HERE])
