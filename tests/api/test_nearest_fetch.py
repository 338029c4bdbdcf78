"""Consumers and replicas: who answers them, and whom their leader sends to a replica of their own rack (KIP-392)."""

from __future__ import annotations

import pytest

from kbroker.core import EXPIRED
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.replica.nearest import nearest_replica
from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchRequest, PartitionData
from protocol.messages.offsets import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.requests import fetch, fetched, list_offsets, produce
from tests.world import World

ME, NEAR, FAR, LAGGING = 1, 2, 3, 4
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
NEWEST = 12  # by names


def world_with(selector: str = RACK_AWARE) -> World:
    """t-0 is led here, in rack a; its followers are in racks b, c and b, the last of them not in sync."""
    world = World(replica_selector_class=selector, broker_rack="a")
    world.create("t")
    state = LeaderState(1, ME, 5, (ME, NEAR, FAR), 5, (ME, NEAR, FAR, LAGGING))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    racks = {ME: "a", NEAR: "b", FAR: "c", LAGGING: "b"}
    world.plane.cache.brokers = {
        number: BrokerInfo(number, (Endpoint("PLAINTEXT", 0, "localhost", 9000 + number),), rack)
        for number, rack in racks.items()
    }
    for value in (b"a", b"b", b"c"):
        world.client().ask(produce(value), 9)
    for number, offset in ((NEAR, 2), (FAR, 3), (LAGGING, 3)):
        reach(world, number, offset)
    return world


def reach(world: World, number: int, offset: int) -> None:
    world.replicas.follower_fetched(world.partition("t"), number, offset, 0, 7, world.clock.now_ms())


def ask(world: World, rack: str, offset: int = 0, version: int = NEWEST, **more: int) -> PartitionData:
    request: FetchRequest = fetch(offset, **more)  # type: ignore[arg-type]
    request.rack_id = rack
    part: PartitionData = fetched(world.client().ask(request, version))[0]
    return part


# ---- the leader's choice


def chosen(world: World, rack: str, offset: int = 0) -> int:
    racks = {number: broker.rack for number, broker in world.plane.cache.brokers.items()}
    return nearest_replica(world.partition("t"), offset, rack, racks.get)


@pytest.mark.parametrize(("rack", "expected"), [("a", -1), ("b", NEAR), ("c", FAR), ("d", -1)])
def test_a_replica_in_sync_in_the_consumers_rack_is_nearest(rack: str, expected: int) -> None:
    assert chosen(world_with(), rack) == expected


@pytest.mark.parametrize(("offset", "expected"), [(0, NEAR), (2, NEAR), (3, -1)])
def test_a_replica_that_does_not_have_the_offset_is_not_chosen(offset: int, expected: int) -> None:
    assert chosen(world_with(), "b", offset) == expected


def test_a_replica_that_begins_after_the_offset_is_not_chosen() -> None:
    world = world_with()
    world.replicas.follower_fetched(world.partition("t"), NEAR, 2, 1, 7, 0)
    assert [chosen(world, "b", offset) for offset in (0, 1)] == [-1, NEAR]


def test_of_several_the_one_that_has_most_is_chosen_then_who_was_caught_up_last() -> None:
    world = world_with()
    world.partition("t").isr = (ME, NEAR, FAR, LAGGING)
    assert chosen(world, "b") == LAGGING
    world.clock.advance(5)
    reach(world, NEAR, 3)
    assert chosen(world, "b") == NEAR


# ---- what the consumer is told


@pytest.mark.parametrize("version", range(11, 13))
def test_a_leader_sends_a_consumer_to_its_rack_without_records(version: int) -> None:
    part = ask(world_with(), "b", version=version)
    assert (part.error_code, part.preferred_read_replica, bytes(part.records or b"")) == (0, NEAR, b"")
    assert (part.high_watermark, part.log_start_offset) == (2, 0)


def test_it_is_told_at_once_however_long_it_would_wait() -> None:
    assert ask(world_with(), "b", offset=2, max_wait_ms=60_000, min_bytes=1 << 20).preferred_read_replica == NEAR


@pytest.mark.parametrize(("rack", "selector"), [("", RACK_AWARE), ("a", RACK_AWARE), ("b", "")])
def test_others_are_answered_by_the_leader(rack: str, selector: str) -> None:
    part = ask(world_with(selector), rack)
    assert (part.preferred_read_replica, len(part.records or b"") > 0) == (-1, True)


def test_nobody_is_sent_to_a_broker_that_is_dead_or_has_not_the_listener() -> None:
    world = world_with()
    world.plane.cache.brokers[NEAR] = BrokerInfo(NEAR, (Endpoint("OTHER", 0, "localhost", 9),), "b")
    del world.plane.cache.brokers[FAR]
    assert [ask(world, rack).preferred_read_replica for rack in ("b", "c")] == [-1, -1]


def test_an_epoch_that_is_over_is_said_before_anything_else() -> None:
    assert ask(world_with(), "b", current_leader_epoch=4).error_code == ErrorCode.FENCED_LEADER_EPOCH


# ---- a follower that is asked


def following() -> World:
    """t-0 is followed here; the high watermark is 2, the end of the log 3."""
    world = world_with()
    del world.plane.cache.brokers[NEAR]  # nobody knows where it is: nothing is fetched from it
    state = LeaderState(1, NEAR, 6, (ME, NEAR, FAR), 6, (ME, NEAR, FAR, LAGGING))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    return world


@pytest.mark.parametrize(
    ("version", "expected"), [(4, ErrorCode.NOT_LEADER_OR_FOLLOWER), (10, ErrorCode.NOT_LEADER_OR_FOLLOWER), (11, 0)]
)
def test_a_follower_answers_consumers_that_know_of_it(version: int, expected: int) -> None:
    assert ask(following(), "a", version=version).error_code == expected


def test_a_follower_answers_up_to_the_high_watermark_it_knows_and_sends_nobody_on() -> None:
    world = following()
    part, at_the_end = ask(world, "b", partition_max_bytes=1), ask(world, "b", offset=2)
    assert (part.high_watermark, part.preferred_read_replica, len(part.records or b"") > 0) == (2, -1, True)
    assert (at_the_end.error_code, len(at_the_end.records or b"")) == (0, 0)


def test_an_offset_that_a_follower_does_not_have_yet_is_out_of_its_range() -> None:
    assert ask(following(), "a", offset=4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_consumer_that_waits_at_a_follower_is_answered_when_it_learns_the_high_watermark() -> None:
    world = following()
    client = world.client()
    number = client.send(fetch(2, max_wait_ms=500), NEWEST)
    waits = number not in client.look()
    world.replicas.follow_bounds(world.partition("t"), 3, 0)
    world.core.step(EXPIRED, world.clock.now_ms())
    assert (waits, len(fetched(client.look()[number])[0].records) > 0) == (True, True)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(5, ErrorCode.FENCED_LEADER_EPOCH), (6, 0), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)]
)
def test_a_follower_looks_at_the_consumers_epoch(epoch: int, expected: int) -> None:
    assert ask(following(), "a", current_leader_epoch=epoch).error_code == expected


@pytest.mark.parametrize("epoch", [5, 6, 7])
def test_a_replica_whose_disk_failed_says_so_in_any_epoch(epoch: int) -> None:
    world = following()
    world.partition("t").log = None  # the epoch that follows from it never gets here
    assert ask(world, "a", current_leader_epoch=epoch).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_where_a_partition_or_an_epoch_ends_only_leaders_say() -> None:
    world = following()
    offsets = world.client().ask(list_offsets(-1), 6).topics[0].partitions[0]
    asked = OffsetForLeaderPartition(partition=0, leader_epoch=5)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic="t", partitions=[asked])])
    epoch = world.client().ask(request, 3).topics[0].partitions[0]
    assert (offsets.error_code, epoch.error_code) == (ErrorCode.NOT_LEADER_OR_FOLLOWER,) * 2
