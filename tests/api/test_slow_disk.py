"""A disk that takes its time: what has to be read waits, and nobody else does."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from kbroker.broker.facts import JobDone
from protocol.errors import ErrorCode
from tests.requests import batch, list_offsets, produce, produced
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    """Ten batches, timestamps 100, 200, ..., in several segments; the disk does no work until it is free."""
    world = World()
    world.create("t", segment_bytes="400", index_interval_bytes="0")
    world.create("other")
    client = world.client()
    for at in range(1, 11):
        client.ask(produce(records=batch(b"v" * 120, timestamps=(100 * at,))), 9)
    world.settle()
    world.disk_is_busy = True
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def found(client: Client, number: int) -> tuple[ErrorCode, int, int]:
    """Code, offset and timestamp."""
    answer: Any = client.look()[number].topics[0].partitions[0]
    return ErrorCode(answer.error_code), answer.offset, answer.timestamp


def test_who_asks_by_time_waits_for_the_disk_and_nobody_else_does(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    other = produced(world.client().ask(produce(b"v", topic="other"), 9)).error_code
    before = dict(client.look())
    world.disk_is_busy = False
    world.settle()
    assert (other, before, found(client, number)) == (0, {}, (ErrorCode.NONE, 4, 500))


def test_who_asks_for_an_end_does_not_wait(client: Client) -> None:
    assert found(client, client.send(list_offsets(-1), 5)) == (ErrorCode.NONE, 10, -1)


def test_a_disk_that_never_answers_is_a_timeout(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    world.advance(29_999)
    before = dict(client.look())
    world.advance(1)
    assert (before, found(client, number)) == ({}, (ErrorCode.REQUEST_TIMED_OUT, -1, -1))
    assert world.broker.counters.errors == {(2, ErrorCode.REQUEST_TIMED_OUT): 1}


def test_what_is_read_after_the_timeout_is_nobody_s(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    world.advance(30_000)
    world.disk_is_busy = False
    world.settle()
    assert found(client, number) == (ErrorCode.REQUEST_TIMED_OUT, -1, -1)


def test_a_disk_that_fails_at_it_is_a_storage_error(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    for errand in world.core.effects.take_jobs():
        world.core.step(JobDone(errand, OSError(errno.EIO, "Input/output error")), world.clock.now_ms())
    assert (found(client, number)[0], world.partition("t").log) == (ErrorCode.KAFKA_STORAGE_ERROR, None)


def test_a_leader_that_resigns_meanwhile_does_not_answer(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    world.partition("t").is_leader = False
    world.disk_is_busy = False
    world.settle()
    assert found(client, number) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)


def test_records_that_go_meanwhile_are_looked_for_in_the_next_segment(world: World, client: Client) -> None:
    number = client.send(list_offsets(0), 5)
    jobs = world.core.effects.take_jobs()
    log = world.partition("t").log
    assert log is not None
    for errand in jobs:
        errand.job._end = 0  # type: ignore[attr-defined]  # as if nothing were left of it
        errand.run()
        world.core.step(JobDone(errand, None), world.clock.now_ms())
    world.disk_is_busy = False
    world.settle()
    assert found(client, number) == (
        ErrorCode.NONE,
        log.segments[1].base_offset,
        100 * log.segments[1].base_offset + 100,
    )
