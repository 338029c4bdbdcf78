"""What takes long is done in slices: others are answered in between, and answers keep their order."""

from __future__ import annotations

import pytest

from kbroker.config.limits import PARTITIONS_PER_FETCH
from kbroker.timing.turns import SLICE_STEPS
from protocol.errors import ErrorCode
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.requests import VERSIONS, fetch, produce
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


def keys(count: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=[f"key-{number}" for number in range(count)])


def test_another_client_is_answered_while_a_large_request_is_under_way(world: World) -> None:
    large, other = world.client(), world.client()
    number = large.send(keys(20_000), 4)
    other.ask(produce(b"v"), 9)
    before = dict(large.look())
    world.advance(0)
    assert (before, len(large.look()[number].coordinators)) == ({}, 20_000)


def test_no_event_takes_more_than_a_slice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    runtime = world.broker.groups.runtime
    partition_of = runtime.partition_of
    monkeypatch.setattr(runtime, "partition_of", lambda key: looked_up.append(key) or partition_of(key))
    world.client().ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    world.settle()
    world.client().send(keys(5_000), 4)
    most = 0
    while world.broker.turns:
        before = len(looked_up)
        world.core.expire(world.clock.now_ms())
        most = max(most, len(looked_up) - before)
    assert 0 < most <= SLICE_STEPS


def test_what_comes_behind_a_long_request_waits_for_it(world: World) -> None:
    client = world.client()
    first = client.send(keys(20_000), 4)
    full = client.channel.full
    client.send(VERSIONS, 3)
    world.advance(0)
    client.look()
    assert (full, client.order, client.channel.full) == (True, [first, first + 1], False)


def test_too_many_elements_end_the_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.core.ELEMENTS_PER_REQUEST", 1000)
    client = world.client()
    client.send(keys(5_000), 4)
    world.advance(0)
    assert "more elements than are taken" in client.closing


def test_a_request_of_a_client_that_has_gone_is_given_up(world: World) -> None:
    client = world.client()
    client.send(keys(20_000), 4)
    client.hang_up()
    world.core.expire(world.clock.now_ms())
    assert not world.broker.turns


def once(client: Client, request: object, version: int, part: str) -> int:
    return len(getattr(client.ask(request, version), part))  # type: ignore[arg-type]


def test_what_is_named_twice_is_looked_at_once(world: World) -> None:
    client = world.client()
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    assert once(client, DescribeConfigsRequest(resources=[broker] * 100), 1, "results") == 1
    assert once(client, DescribeGroupsRequest(groups=["g"] * 100), 5, "groups") == 1
    assert once(client, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * 100), 4, "coordinators") == 1
    assert once(client, MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 100), 9, "topics") == 1


def many(count: int, first: int = 0, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(first, first + count)
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="made-up", partitions=partitions)],
    )


def fetched(world: World, client: Client, request: FetchRequest) -> tuple[int, int]:
    """Error code and session id."""
    number = client.send(request, 12)
    world.advance(0)
    answer = client.look()[number]
    return answer.error_code, answer.session_id


def test_a_fetch_of_too_many_partitions_is_refused(world: World) -> None:
    client = world.client()
    assert fetched(world, client, many(PARTITIONS_PER_FETCH + 1)) == (ErrorCode.INVALID_REQUEST, 0)


def test_a_session_that_has_grown_too_large_is_forgotten(world: World) -> None:
    client = world.client()
    code, session_id = fetched(world, client, many(PARTITIONS_PER_FETCH))
    grown, _ = fetched(world, client, many(1, PARTITIONS_PER_FETCH, session_id, 1))
    assert (code, grown, world.broker.fetch_sessions.partitions) == (0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_the_largest_fetch_session_goes_when_all_remember_too_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.broker.fetch_sessions.PARTITIONS_IN_FETCH_SESSIONS", 30)
    client = world.client()
    _, small = fetched(world, client, many(5))
    _, large = fetched(world, client, many(20))
    _, newest = fetched(world, client, many(10))
    codes = [fetched(world, client, many(0, 0, each, 1))[0] for each in (small, large, newest)]
    assert codes == [0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0]


def test_a_connection_with_many_parked_requests_is_answered_early_before_others_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.core.PARKED_OPERATIONS", 20)
    greedy, modest = world.client(), world.client()
    for _ in range(15):
        greedy.send(fetch(max_wait_ms=60_000), 12)
    polls = [modest.send(fetch(max_wait_ms=60_000), 12) for _ in range(2)]
    world.create("another")
    assert ({*polls} & modest.look().keys(), len(world.core._purgatory)) == (set(), 12)
