"""What a broker counts: requests and errors by API, and how many requests are parked."""

from __future__ import annotations

import pytest

from kbroker.broker.counters import Counters
from kbroker.config.limits import LONGEST_FSYNC_MS
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest
from protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.transactions import AddPartitionsToTxnResponse
from tests.requests import VERSIONS, fetch, produce
from tests.world import Client, World

PRODUCE, FETCH, METADATA, JOIN_GROUP, HEARTBEAT, DESCRIBE_GROUPS = 0, 1, 3, 11, 12, 15
API_VERSIONS, CREATE_TOPICS = 18, 19


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def test_requests_are_counted_by_api(world: World, client: Client) -> None:
    for _ in range(3):
        client.ask(VERSIONS, 3)
    client.ask(produce(b"v"), 9)
    counted = world.broker.counters.requests
    found = {api: count for api, count in enumerate(counted) if count}
    assert found == {API_VERSIONS: 3, PRODUCE: 1, CREATE_TOPICS: 1}


def test_a_request_that_is_held_is_counted_once(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=500), 12)
    client.send(VERSIONS, 3)
    world.advance(600)
    assert world.broker.counters.requests[API_VERSIONS] == 1


def test_how_long_was_waited_for_answers_is_counted() -> None:
    world = World(group_initial_rebalance_delay_ms="300")
    world.create("t")
    world.client().send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    world.advance(10)  # it is loaded
    counters = world.broker.counters
    counters.waited_ms.clear()  # of the topics
    world.client().send(fetch(max_wait_ms=5_000), 12)
    world.client().send(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        3,
    )
    world.advance(1_000)
    world.client().ask(produce(b"v"), 9)
    assert counters.waited_ms == {FETCH: 1_000, JOIN_GROUP: 300}
    assert (counters.waits[FETCH], counters.waits[JOIN_GROUP]) == ({10: 1}, {9: 1})


def test_what_goes_well_is_no_error(world: World, client: Client) -> None:
    client.ask(produce(b"v"), 9)
    client.ask(fetch(), 12)
    client.ask(MetadataRequest(topics=None), 9)
    assert not world.broker.counters.errors


def test_each_partition_that_failed_counts(world: World, client: Client) -> None:
    client.ask(produce(b"v", index=7), 9)
    client.ask(fetch(indices=[0, 7, 8]), 12)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert world.broker.counters.errors == {(PRODUCE, unknown): 1, (FETCH, unknown): 2}


def test_a_produce_that_fails_while_it_waits_counts(world: World, client: Client) -> None:
    world.create("two", min_insync_replicas="1", flush_messages="1")
    world.disk_is_busy = True
    client.send(produce(b"v", topic="two", acks=-1), 9)
    world.advance(LONGEST_FSYNC_MS + 1100)
    assert world.broker.counters.errors == {(PRODUCE, ErrorCode.REQUEST_TIMED_OUT): 1}


def test_a_fetch_session_that_is_unknown_counts(world: World, client: Client) -> None:
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[], session_id=5, session_epoch=5)
    client.ask(request, 12)
    assert world.broker.counters.errors == {(FETCH, ErrorCode.FETCH_SESSION_ID_NOT_FOUND): 1}


def test_errors_of_other_answers_are_found_where_they_stand(world: World, client: Client) -> None:
    missing = [MetadataRequestTopic(name=name) for name in ("a", "b")]
    client.ask(MetadataRequest(topics=missing, allow_auto_topic_creation=False), 9)
    client.ask(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 3)
    client.ask(DescribeGroupsRequest(groups=["g"]), 4)
    assert {api: count for (api, _), count in world.broker.counters.errors.items()} == {
        METADATA: 2,
        HEARTBEAT: 1,
        DESCRIBE_GROUPS: 1,
    }


def test_a_part_of_an_answer_that_is_missing_is_passed_over() -> None:
    counters = Counters()
    counters.note_errors(24, AddPartitionsToTxnResponse(error_code=3))
    assert counters.errors == {(24, 3): 1}


def test_parked_requests_are_told_by_api(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=500), 12)
    client.send(fetch(indices=[0], max_wait_ms=900), 12)
    before = dict(world.core.delayed())
    world.advance(600)
    assert (before, dict(world.core.delayed())) == ({"Fetch": 2}, {"Fetch": 1})
