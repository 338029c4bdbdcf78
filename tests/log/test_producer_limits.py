"""All logs of a broker together remember only so many producers."""

from __future__ import annotations

import pytest

from tests.requests import batch, produce
from tests.world import World

PRODUCERS = 64


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("kbroker.log.producer_limits.PRODUCERS", PRODUCERS)
    world = World()
    for name, partitions in (("quiet", 1), ("loud", 5)):
        world.create(name, partitions=partitions)
    return world


def write(world: World, topic: str, index: int, producer_id: int) -> None:
    records = batch(b"v", producer=(producer_id, 0, 0), timestamps=(world.clock.wall_ms(),))
    answer = world.client().ask(produce(records=records, topic=topic, index=index), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def known(world: World, topic: str, index: int) -> int:
    log = world.partition(topic, index).log
    assert log is not None
    return len(log.producers)


def test_the_partitions_with_most_forget(world: World) -> None:
    for producer_id in range(4):
        write(world, "quiet", 0, producer_id)
    for producer_id in range(4 * PRODUCERS):
        write(world, "loud", producer_id % 5, 1_000 + producer_id)
        assert sum(known(world, "loud", index) for index in range(5)) + 4 <= PRODUCERS
    assert (known(world, "quiet", 0), known(world, "loud", 0) > 4) == (4, True)


def test_what_is_read_at_a_start_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for producer_id in range(PRODUCERS):
        write(world, "loud", producer_id % 5, producer_id)
    monkeypatch.setattr("kbroker.log.producer_limits.PRODUCERS", PRODUCERS // 2)
    world.restart()
    assert 0 < sum(known(world, "loud", index) for index in range(5)) <= PRODUCERS // 2


def test_what_goes_with_its_topic_makes_room(world: World) -> None:
    for producer_id in range(PRODUCERS - 2):
        write(world, "loud", 0, producer_id)
    world.logs.delete("loud", 0, now_ms=world.clock.now_ms())
    for producer_id in range(PRODUCERS // 2):
        write(world, "quiet", 0, producer_id)
    assert known(world, "quiet", 0) == PRODUCERS // 2
