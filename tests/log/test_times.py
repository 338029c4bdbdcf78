"""Offsets by time: found to the record, over batches, segments and what was deleted."""

from __future__ import annotations

import pytest

from kbroker.log.times import Found
from tests.log.worlds import first_at_or_after, with_max_timestamp
from tests.requests import batch, produce
from tests.test_cost import LineCount
from tests.world import World


@pytest.fixture
def world() -> World:
    """Ten batches of two records, timestamps 100, 150, 200, 250, ..., in several segments."""
    world = World()
    world.create("t", segment_bytes="400", index_interval_bytes="0")
    client = world.client()
    for at in range(1, 11):
        client.ask(produce(records=batch(b"v" * 50, b"w" * 50, timestamps=(100 * at, 100 * at + 50))), 9)
    assert len(world.partition("t").log.segments) > 3  # type: ignore[union-attr]
    return world


@pytest.mark.parametrize(
    ("timestamp", "offset", "its_timestamp"),
    [(0, 0, 100), (100, 0, 100), (101, 1, 150), (151, 2, 200), (950, 17, 950), (951, 18, 1000), (1050, 19, 1050)],
)
def test_the_first_record_at_or_after(world: World, timestamp: int, offset: int, its_timestamp: int) -> None:
    log = world.partition("t").log
    assert log is not None
    assert first_at_or_after(log, timestamp) == Found(offset, its_timestamp)


def test_nothing_is_younger_than_the_youngest(world: World) -> None:
    log = world.partition("t").log
    assert log is not None
    assert first_at_or_after(log, 1051) is None


def test_the_largest_timestamp_is_found_wherever_it_is(world: World) -> None:
    client = world.client()
    client.ask(produce(records=batch(b"x", b"y", b"z", timestamps=(1, 7777, 7777))), 9)
    client.ask(produce(records=batch(b"late", timestamps=(5,))), 9)
    log = world.partition("t").log
    assert log is not None
    assert with_max_timestamp(log) == Found(21, 7777)


def test_records_below_the_log_start_are_not_found(world: World) -> None:
    log = world.partition("t").log
    assert log is not None
    log.advance_log_start(3)
    assert first_at_or_after(log, 0) == Found(3, 250)


def test_of_log_append_time_every_record_has_the_batchs_time() -> None:
    world = World()
    world.create("t", message_timestamp_type="LogAppendTime")
    now_ms = world.clock.wall_ms()
    world.client().ask(produce(records=batch(b"a", b"b", timestamps=(1, 2))), 9)
    log = world.partition("t").log
    assert log is not None
    assert (first_at_or_after(log, 0), with_max_timestamp(log)) == (Found(0, now_ms), Found(0, now_ms))


def test_a_log_without_records_has_no_times() -> None:
    world = World()
    world.create("t")
    log = world.partition("t").log
    assert log is not None
    assert (first_at_or_after(log, 0), with_max_timestamp(log)) == (None, None)


def test_nothing_is_done_once_per_record_of_a_batch_that_is_looked_into() -> None:
    world = World()
    world.create("t")
    world.client().ask(produce(records=batch(*[b"v"] * 2_000, timestamps=tuple(range(2_000)))), 9)
    log = world.partition("t").log
    assert log is not None
    with LineCount() as count:
        found = first_at_or_after(log, 1_999)
    assert (found, count.lines < 200) == (Found(1_999, 1_999), True)
