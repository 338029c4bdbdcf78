"""Hostile clients in simulated worlds: each shape gets there, and the others do not notice."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.api.routes import ROUTES, load
from kbroker.sim.hostile import SHAPES, Hostile
from kbroker.sim.swarm import Swarm


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_well_formed(shape: object) -> None:
    load()
    for request, version in shape(Random(1)):  # type: ignore[operator]
        route = ROUTES[request.api]
        assert route.first <= version <= route.last
        assert request.decode(request.encode(version), version) == request


@pytest.mark.parametrize(
    "number", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3, 5))]
)  # in whose first minute they come
def test_a_world_with_hostile_clients_holds(number: int) -> None:
    swarm = Swarm(number, kept_lines=None, machines=1)
    swarm.faults.kinds = ["hostile"]
    swarm.run(60_000)
    assert any("hostile" in line and "sends" in line for line in swarm.world.lines)


def test_what_they_leave_parked_is_forgotten() -> None:
    swarm = Swarm(1, machines=1)
    swarm.faults.kinds = []
    swarm.run(10_000)
    (machine,) = swarm.machines
    for number in range(20):
        Hostile(swarm.world, swarm.net, f"hostile-{number}").attack(machine)
    swarm.world.run_until(swarm.world.now_ms + 200_000)
    assert machine.core is not None
    assert (len(machine.core._purgatory), machine.broker.scheduler.tasks, +machine.core._parked_by) == (0, 0, {})
