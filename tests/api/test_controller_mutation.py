"""Topics made and deleted under a quota of changes (KIP-599)."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.quotas import alter, altered
from tests.world import Client, World

EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED
TEXT = "The throttling quota has been exceeded."
BURST = 11  # of a quota of one a second


@pytest.fixture
def world() -> World:
    world = World()
    world.client("admin").ask(alter(altered({"client-id": "test"}, controller_mutation_rate=1)), 1)
    world.settle()
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def creating(*names: str, partitions: int = 1, validate_only: bool = False) -> CreateTopicsRequest:
    topics = [
        CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000, validate_only=validate_only)


def test_what_is_over_the_quota_is_refused_topic_by_topic(client: Client) -> None:
    answer = client.ask(creating("a", "b", partitions=BURST + 4), 6)
    assert [(each.error_code, each.error_message) for each in answer.topics] == [(0, None), (EXCEEDED, TEXT)]
    assert (answer.throttle_time_ms, client.channel.full) == (4000, True)


def test_older_clients_are_only_made_to_wait(world: World, client: Client) -> None:
    number = client.send(creating("a", "b", partitions=BURST), 5)
    world.advance(0)  # so many are made in slices
    answer = client.look()[number]
    assert [each.error_code for each in answer.topics] == [0, 0]
    assert (answer.throttle_time_ms, client.channel.full) == (BURST * 1000, True)


def test_the_bucket_fills_again(world: World, client: Client) -> None:
    client.ask(creating("a", "b", partitions=BURST + 4), 6)
    world.advance(4000)
    assert not client.channel.full
    assert client.ask(creating("b"), 6).topics[0].error_code == 0


def test_what_is_only_checked_is_free(client: Client) -> None:
    answer = client.ask(creating("a", "b", "c", partitions=BURST, validate_only=True), 6)
    assert ([each.error_code for each in answer.topics], answer.throttle_time_ms) == ([0, 0, 0], 0)


def test_growth_and_deletion_count_too(world: World, client: Client) -> None:
    """The growth takes the bucket below zero, and is made; only what comes then is refused."""
    client.ask(creating("a", partitions=BURST), 6)
    grown = CreatePartitionsTopic(name="a", count=BURST + 2, assignments=None)
    answer = client.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=1000, validate_only=False), 3)
    assert (answer.results[0].error_code, answer.throttle_time_ms) == (0, 0)
    other = world.client()
    deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name="a", topic_id=ZERO_UUID)], timeout_ms=1000)
    refused = other.ask(deleted, 6)
    assert (refused.responses[0].error_code, refused.throttle_time_ms) == (EXCEEDED, 2000)
    world.advance(2000)
    number = other.send(deleted, 6)
    world.advance(0)
    assert other.look()[number].responses[0].error_code == 0


def test_topics_made_on_demand_count_and_are_never_refused(world: World, client: Client) -> None:
    """As in Kafka: the client that names them is not made to wait, but what it makes next is refused."""
    for name in ("a", "b"):
        asked = [MetadataRequestTopic(name=f"{name}{at}") for at in range(BURST)]
        client.send(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 9)
        world.advance(10)
    assert {each.error_code for answer in client.look().values() for each in answer.topics} == {0}
    assert not client.channel.full
    assert [each.error_code for each in client.ask(creating("c"), 6).topics] == [EXCEEDED]
    other = world.client("other")
    assert [each.error_code for each in other.ask(creating("d"), 6).topics] == [0]


def test_a_coordinators_topic_counts_for_who_asks_first(world: World, client: Client) -> None:
    client.ask(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(10)
    assert "__consumer_offsets" in world.plane.cache.topics
    assert [each.error_code for each in client.ask(creating("c"), 6).topics] == [EXCEEDED]
