"""Offsets by time: found to the record, over batches, segments and what was deleted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from kbroker.log.times import Found, TimeSearch
from protocol.records import Record
from protocol.records.legacy import build_set
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


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_bit_in_a_time_index_leads_past_no_record(bit: int) -> None:
    world = World()
    world.create("t", segment_bytes="1500", index_interval_bytes="0")
    for at in range(1, 21):
        world.client().ask(produce(records=batch(b"v" * 50, b"w" * 50, timestamps=(100 * at, 100 * at + 50))), 9)
    log, times = world.partition("t").log, range(90, 2061, 10)
    assert log is not None
    expected, path = [first_at_or_after(log, time) for time in times], log.folder.file_path(0, "timeindex")
    world.restart()
    file = world.disk.open(path, "write")
    for position in range(6, file.size() - 12, 12):  # in each entry but the last, by which the segment is found
        (byte,) = file.read(position, 1)
        file.write([bytes((byte ^ 1 << bit,))], position)
    log = world.partition("t").log
    assert log is not None
    assert [first_at_or_after(log, time) for time in times] == expected


def of(times: Sequence[int], *, codec_id: int) -> World:
    """A log of batches of three records with these timestamps, in several segments."""
    world = World()
    world.create("t", segment_bytes="500", index_interval_bytes="0", file_delete_delay_ms="1000000")
    client = world.client()
    for at in range(0, len(times), 3):
        some = times[at : at + 3]
        values = [Random(time).randbytes(80) for time in some]
        client.ask(produce(records=batch(*values, timestamps=some, codec_id=codec_id)), 9)
    return world


@pytest.mark.parametrize("codec_id", [0, 1])
@pytest.mark.parametrize(
    "times",
    [
        [100, 900, 200, 800, 800, 300, 700, 100, 700, 100, 650, 650, 600, 5, 5, 5, 5, 4, 3, 600, 2],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18],
        [18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1],
        [-1] * 18,
        [9, -1, -1, 9, -1, -1, -1, 8, -1, -1, -1, -1, 7, -1, -1, -1, -1, -1],
    ],
)
def test_wherever_the_log_starts_the_largest_timestamp_is_that_of_a_record_that_is_left(
    times: list[int], codec_id: int
) -> None:
    log = of(times, codec_id=codec_id).partition("t").log
    assert log is not None
    found, expected = [], []
    for start in range(len(times)):
        log.advance_log_start(start)
        found.append(with_max_timestamp(log))
        latest = max(times[start:])
        expected.append(Found(times.index(latest, start), latest))
    assert (found, len(log.segments) > 2) == (expected, True)
    log.advance_log_start(len(times))
    assert with_max_timestamp(log) is None


@pytest.mark.parametrize("codec_id", [0, 1])
def test_wherever_the_log_starts_the_largest_timestamp_of_old_messages_is_one_that_is_left(codec_id: int) -> None:
    times = [100, 900, 200, 800, 800, 300, 700, 100, 700]
    world = World(log_message_format_version="0.10.2", inter_broker_protocol_version="2.8")
    world.create("t")
    for at in range(0, 9, 3):
        some = [Record(index, time, None, b"v") for index, time in enumerate(times[at : at + 3])]
        world.client().send(produce(records=bytes(build_set(some, 1, codec_id=codec_id))), 2)
    log = world.partition("t").log
    assert log is not None
    assert (log.log_end_offset, log.active.file.read(16, 1)) == (9, b"\x01")
    for start in range(9):
        log.advance_log_start(start)
        latest = max(times[start:])
        assert with_max_timestamp(log) == Found(times.index(latest, start), latest)


def test_segments_that_wait_for_their_deletion_are_not_looked_into(world: World) -> None:
    log = world.partition("t").log
    assert log is not None
    log.advance_log_start(19)
    search = TimeSearch(log, 0)
    scans = [search.next_scan(), search.next_scan()]
    assert [scan is None for scan in scans] == [False, True]


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
