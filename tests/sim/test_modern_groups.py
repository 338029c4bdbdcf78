"""The groups of Kafka 4 on three to five simulated machines that die: nothing is read twice at a time, none is lost."""

from __future__ import annotations

import pytest

from kbroker.sim.modern_groups import ModernGroups
from kbroker.sim.share_members import ACCEPT, Shared
from kbroker.sim.world import Broken, World
from protocol.messages.share_groups import AcknowledgementBatch, AcquiredRecords

WHERE = "t", 0


def test_groups_of_all_kinds_outlive_their_coordinators() -> None:
    world = ModernGroups(4, kinds=["kill", "stop", "cut", "session"])
    assert world.run(25_000, healing_ms=60_000) > 0
    assert len(world.shared.accepted) > 100
    assert sum(machine.boots for machine in world.machines) > len(world.machines)
    assert all(member.beats for member in world.of_epochs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_worlds_of_groups(seed: int) -> None:
    assert ModernGroups(seed).run() > 0


def given(first: int, last: int, count: int = 1) -> AcquiredRecords:
    return AcquiredRecords(first_offset=first, last_offset=last, delivery_count=count)


def accepts(first: int, last: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[ACCEPT])


def test_the_judge_sees_an_accepted_record_that_comes_again() -> None:
    shared = Shared(World(1), limit=5)
    shared.delivered(WHERE, given(0, 3), asked_ms=0)
    shared.said(WHERE, accepts(1, 2), is_answered=True)
    shared.delivered(WHERE, given(0, 3, 2), asked_ms=0)  # it was on its way already
    with pytest.raises(Broken, match="was accepted, and is delivered again"):
        shared.delivered(WHERE, given(0, 3, 3), asked_ms=1)


def test_the_judge_sees_a_record_that_comes_too_often_and_one_that_never_does() -> None:
    shared = Shared(World(1), limit=2)
    shared.delivered(WHERE, given(0, 0, 2), asked_ms=0)
    shared.delivered(WHERE, given(1, 2), asked_ms=0)
    shared.said(WHERE, accepts(1, 1), is_answered=False)
    assert shared.missing(WHERE, 4) == [2, 3]
    with pytest.raises(Broken, match="too often"):
        shared.delivered(WHERE, given(0, 0, 3), asked_ms=0)
