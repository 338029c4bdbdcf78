"""How fast replicas may be copied: the rate over windows, and who of leaders and followers is held back by it."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.settings import LONG_MAX
from kbroker.replica import manager
from kbroker.replica.partition import LeaderState
from kbroker.replica.throttle import Throttle, Throttled
from protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData, ReplicaState
from tests.log.worlds import batch
from tests.replica.test_fetcher import BACKOFF_MS, Follower, data
from tests.requests import fetch, fetched, produce
from tests.world import World

ME, JOINING, IN_SYNC = 1, 2, 3
NEWEST = 17
WINDOWS = 11


def throttle(limit: int, *noted: tuple[int, int]) -> Throttle:
    """Windows of a second. noted: bytes, and when."""
    found = Throttle(lambda: limit, WINDOWS, 1000)
    for size, now_ms in noted:
        found.record(size, now_ms)
    return found


# ---- the rate


@pytest.mark.parametrize(
    ("limit", "noted", "free_ms"),
    [
        (100, [], 0),
        (100, [(100, 5_000)], 0),  # the first window counts as a whole one
        (100, [(101, 5_000)], 6_010),
        (100, [(500, 5_000)], 10_000),
        (100, [(60, 5_000), (60, 5_999)], 6_200),
        (100, [(60, 5_000), (260, 6_000)], 8_200),
        (100, [(5_000, 5_000)], 16_000),  # what is older than all windows is forgotten
        (100, [(50, 5_000), (5_000, 6_500)], 17_500),
        (100, [(5_000, 5_000), (300, 6_500)], 16_000),
        (0, [(1, 5_000)], 16_000),
        (LONG_MAX, [(5_000, 5_000)], 0),
    ],
)
def test_time_brings_the_rate_down_or_forgets(limit: int, noted: list[tuple[int, int]], free_ms: int) -> None:
    assert throttle(limit, *noted).free_ms() == free_ms


def test_what_was_forgotten_counts_no_more() -> None:
    assert throttle(100, (5_000, 0), (150, 11_000)).free_ms() == 12_500


def test_over_a_long_time_no_more_is_copied_than_is_allowed() -> None:
    found, now_ms, copied = throttle(1_000), 0, 0
    while now_ms < 100_000:
        found.record(700, now_ms)
        copied += 700
        now_ms = max(now_ms + 1, found.free_ms())
    assert 98_000 <= copied <= 102_000


@pytest.mark.parametrize(
    ("named", "expected"),
    [((), False), (("*",), True), (("3:1",), True), (("3:2", "1:1"), False), (("13:1", "3:11"), False)],
)
def test_a_topic_names_replicas(named: tuple[str, ...], expected: bool) -> None:
    assert (3 in Throttled(named, 1)) is expected


def test_what_a_topic_names_is_looked_through_once_for_all_of_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be as many as the topic has replicas."""
    looked: list[object] = []

    class Counted(Throttled):
        def __init__(self, *given: Any) -> None:
            looked.append(given)
            super().__init__(*given)

    world = World()
    world.create("t", partitions=20)
    monkeypatch.setattr(manager, "Throttled", Counted)
    world.plane.configs.set_topic("t", {"leader.replication.throttled.replicas": f"3:{ME},7:{ME}"})
    world.replicas.reconfigure("t")
    assert [index for index in range(20) if world.partition("t", index).is_throttled_leader] == [3, 7]
    assert len(looked) == 2  # as leaders, as followers


# ---- leaders


@pytest.fixture
def world() -> World:
    """t-0 is led here; one follower is in sync and one is not; no more than 100 bytes a second for who is throttled."""
    world = World(leader_replication_throttled_rate="100")
    world.create("t", partitions=2, leader_replication_throttled_replicas=f"0:{ME}")
    for index in (0, 1):
        state = LeaderState(1, ME, 5, (ME, IN_SYNC), 5, (ME, JOINING, IN_SYNC))
        world.replicas.become("t", index, world.topic_id("t"), state, is_new=False)
    for index in (0, 1):
        world.client().ask(produce(b"a" * 300, index=index), 9)
    return world


def of_follower(world: World, replica_id: int, offset: int = 0, index: int = 0, **more: int) -> FetchRequest:
    request = fetch(offset, topic="", topic_id=world.topic_id("t"), indices=(index,), **more)  # type: ignore[arg-type]
    request.replica_id, request.replica_state = -1, ReplicaState(replica_id=replica_id, replica_epoch=7)
    return request


def ask(world: World, replica_id: int, offset: int = 0, index: int = 0) -> PartitionData:
    part: PartitionData = fetched(world.client().ask(of_follower(world, replica_id, offset, index), NEWEST))[index]
    return part


def test_a_follower_out_of_sync_waits_when_its_leader_has_sent_too_much(world: World) -> None:
    first, second = ask(world, JOINING), ask(world, JOINING)
    assert (len(first.records or b"") > 300, len(second.records or b"")) == (True, 0)
    assert (second.error_code, second.high_watermark) == (0, 0)
    world.advance(2_000)
    still = ask(world, JOINING)
    world.advance(3_000)
    assert (len(still.records or b""), ask(world, JOINING).records) == (0, first.records)


def test_a_follower_in_sync_is_not_held_back_but_what_it_gets_counts(world: World) -> None:
    assert [len(ask(world, IN_SYNC).records or b"") > 300 for _ in range(3)] == [True] * 3
    assert len(ask(world, JOINING).records or b"") == 0


def test_a_partition_that_is_not_named_is_not_held_back(world: World) -> None:
    assert [len(ask(world, JOINING, index=index).records or b"") > 300 for index in (0, 1, 1, 0)] == [
        True,
        True,
        True,
        False,
    ]


def test_consumers_are_not_held_back_and_do_not_count(world: World) -> None:
    world.partition("t").log.set_high_watermark(1)  # type: ignore[union-attr]
    found = [fetched(world.client().ask(fetch(0), 12))[0].records for _ in range(3)]
    assert [len(each) > 300 for each in found] == [True] * 3
    assert len(ask(world, JOINING).records or b"") > 300


def test_an_error_is_told_though_records_are_held_back(world: World) -> None:
    ask(world, JOINING)
    assert ask(world, JOINING, offset=9).error_code == 1


def test_a_fetch_that_is_held_back_waits_as_if_nothing_were_there(world: World) -> None:
    ask(world, JOINING)
    follower = world.client()
    number = follower.send(of_follower(world, JOINING, max_wait_ms=500), NEWEST)
    world.client().ask(produce(b"b"), 9)
    waits = number not in follower.look()
    world.advance(700)
    assert (waits, len(fetched(follower.look()[number])[0].records)) == (True, 0)


def test_a_partition_that_goes_while_a_large_fetch_is_answered_costs_the_others_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("api.fetch", "api.fetch_reader"):
        monkeypatch.setattr(f"kbroker.{module}.MANY_PARTITIONS", 1)
    monkeypatch.setattr("kbroker.timing.scheduler.FIRST_STEPS", 3)  # the first partition is read
    request, client = of_follower(world, JOINING), world.client()
    request.topics[0].partitions.append(FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=1 << 20))
    number = client.send(request, NEWEST)
    world.replicas.stop("t", 0, delete=False)
    world.advance(0)
    assert [len(each.records) > 300 for each in fetched(client.look()[number]).values()] == [True, True]


def test_a_rate_that_is_lifted_lets_go_at_once(world: World) -> None:
    ask(world, JOINING)
    world.plane.configs.set_dynamic(broker={"leader.replication.throttled.rate": "100000000"})
    assert len(ask(world, JOINING).records or b"") > 300


# ---- followers


def follower(rate: str = "100") -> Follower:
    """Of p-0, throttled, and p-1, which is not."""
    found = Follower()
    found.world.plane.configs.set_dynamic(broker={"follower.replication.throttled.rate": rate})
    found.world.plane.configs.set_topic("p", {"follower.replication.throttled.replicas": f"0:{ME}"})
    found.follow(0, epoch=1)
    found.follow(1, epoch=1)
    return found


def test_a_throttled_follower_asks_for_nothing_until_it_may() -> None:
    behind = follower()
    behind.ask()
    records = batch(epoch=1, size=400)
    behind.answer(data(records, high_watermark=9), data(batch(epoch=1), index=1))
    request = behind.ask()
    assert request is not None
    assert [each.partition for topic in request.topics for each in topic.partitions] == [1]
    assert [each.partitions for each in request.forgotten_topics_data] == [[0]]
    free_ms, looked = len(records) * 10, 0
    while behind.now_ms < free_ms:
        due_ms = behind.fetcher.next_due_ms()
        assert due_ms == min(behind.now_ms + BACKOFF_MS, free_ms)
        behind.answer()
        behind.now_ms, looked = due_ms, looked + 1
        assert behind.asked() == ({0: (1, 1)} if due_ms == free_ms else {})
    assert looked > 1


def test_a_throttle_that_is_lifted_holds_nobody_back_for_longer_than_a_pause() -> None:
    behind = follower()
    behind.ask()
    behind.answer(data(batch(epoch=1, size=4000), high_watermark=9), data(batch(epoch=1), index=1))
    behind.ask()
    behind.answer()
    behind.world.plane.configs.set_dynamic(broker={"follower.replication.throttled.rate": str(LONG_MAX)})
    behind.now_ms = BACKOFF_MS
    assert behind.asked() == {0: (1, 1)}


def test_a_throttled_follower_that_is_caught_up_goes_on() -> None:
    behind = follower()
    behind.ask()
    behind.answer(data(batch(epoch=1, size=400), high_watermark=1))
    assert behind.asked() == {0: (1, 1)}


def test_without_a_rate_a_named_follower_goes_on() -> None:
    behind = follower(rate=str(LONG_MAX))
    behind.ask()
    behind.answer(data(batch(epoch=1, size=400), high_watermark=9))
    assert behind.asked() == {0: (1, 1)}


def test_a_topic_that_names_nobody_any_more_lets_go() -> None:
    behind = follower()
    behind.world.plane.configs.set_topic("p", {})
    behind.world.replicas.reconfigure("p")
    behind.ask()
    behind.answer(data(batch(epoch=1, size=400), high_watermark=9))
    assert behind.asked() == {0: (1, 1)}
