"""Where facts and time go in a broker: to each part that takes them, in order, until none is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest

from kbroker.broker.facts import Handler
from kbroker.broker.jobs import Job
from kbroker.log.facts import LogDirectoryFailed, Notice
from tests.world import World


class Seen(NamedTuple):
    """A fact of these tests' own."""

    number: int


class Listener:
    """A part that takes `Seen`, and tells the next one until it has seen `last`."""

    def __init__(self, world: World, last: int = 0) -> None:
        self.seen: list[int] = []
        self._world = world
        self._last = last

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Of `Seen`."""
        return {Seen: self._see}

    def _see(self, fact: Seen, now_ms: int) -> None:
        self.seen.append(fact.number)
        if fact.number < self._last:
            self._world.broker.tell(Seen(fact.number + 1))


@pytest.fixture
def world() -> World:
    return World()


def test_a_fact_reaches_every_part_that_takes_its_type(world: World) -> None:
    parts = [Listener(world), Listener(world)]
    for part in parts:
        world.broker.add(part)
    world.core.step(Seen(7), 0)
    assert [part.seen for part in parts] == [[7], [7]]


def test_what_a_fact_leads_to_is_heeded_in_the_same_step(world: World) -> None:
    part = Listener(world, last=3)
    world.broker.add(part)
    world.core.step(Seen(1), 0)
    assert (part.seen, list(world.broker.facts)) == ([1, 2, 3], [])


def test_a_fact_that_nobody_takes_is_an_error_and_not_forgotten(world: World) -> None:
    with pytest.raises(KeyError):
        world.core.step(Seen(1), 0)


def test_a_part_is_called_when_its_alarm_is_due(world: World) -> None:
    at_ms = world.clock.now_ms() + 50
    rang: list[int] = []
    world.broker.scheduler.alarm(rang.append).set(at_ms)
    world.advance(60)
    assert rang == [at_ms]


class FailingJob:
    """Work that the disk refuses."""

    def run(self) -> None:
        """Raises: OSError."""
        raise OSError(5, "Input/output error")


class Owner:
    """Who gave a job."""

    def __init__(self) -> None:
        self.ended: list[tuple[Job, int | None]] = []

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """Remember it."""
        self.ended.append((job, error and error.errno))


def test_the_end_of_a_job_is_its_owner_s(world: World) -> None:
    job, owner, other = FailingJob(), Owner(), Owner()
    world.broker.give(job, owner)
    world.broker.give(FailingJob(), other)
    world.settle()
    assert (owner.ended, len(other.ended), world.core.effects.take_jobs()) == ([(job, 5)], 1, [])


def test_a_job_is_taken_once(world: World) -> None:
    world.settle()
    world.broker.give(FailingJob(), Owner())
    assert [len(world.core.effects.take_jobs()), len(world.core.effects.take_jobs())] == [1, 0]


def test_without_a_log_directory_the_broker_cannot_go_on(world: World) -> None:
    world.core.step(LogDirectoryFailed("/data", [], is_last=True), 0)
    assert world.plane.fatal == "no log directory is left"


def test_what_the_logs_have_to_say_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.core.step(Notice("the disk smells"), 0)
    assert [record.message for record in caplog.records if record.name == "kbroker.logs"] == ["the disk smells"]


def test_nothing_told_piles_up(world: World) -> None:
    for number in range(3):
        world.create(f"t{number}")
        world.advance(1000)
    assert (list(world.broker.facts), world.replicas.touched) == ([], [])
