"""Replicas that move between the log directories of simulated machines, and are compacted: nothing is lost."""

from __future__ import annotations

import pytest

from kbroker.sim.moving import Moving


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_world_whose_replicas_move_and_are_compacted_keeps_what_it_has_acknowledged(seed: int) -> None:
    world = Moving(seed)
    assert world.run(20_000, healing_ms=60_000) > 0
    assert world.checks.moved > 0
    assert world.cleaned


def test_a_world_of_flushed_records_that_move_outlives_power_cuts_and_failing_disks() -> None:
    world = Moving(4, kinds=["power", "disk error", "dead disk"])
    assert world.run(20_000, healing_ms=60_000) > 0
    assert world.checks.moved > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(100, 105), 1_673_770_411])
def test_more_worlds(seed: int) -> None:
    assert Moving(seed).run() > 0
