"""What a simulated second costs: a seed must be cheap enough that an hour of a processor means days of a broker's life.

Counted, not timed: calls of functions, Python's and C's, are the same on every machine and under every load.
"""

from __future__ import annotations

import cProfile
import logging
import pstats
from collections.abc import Iterable

import pytest

from kbroker.sim.replicated import ReplicatedSwarm
from kbroker.sim.swarm import Swarm

CALLS_A_SIMULATED_SECOND = 10_000
"""At 0.2 us each, what a 3 GHz processor takes on the average, 500 simulated seconds a real one need 10,000 or less."""

MACHINES = 3
CALLS_A_BROKER_S_SECOND = 5_000
"""Of one machine among several that replicate: its share of a simulated second."""

SEEDS = (17, 23, 31)


def calls_a_second(worlds: Iterable[Swarm | ReplicatedSwarm]) -> float:
    """For a simulated second, while they live."""
    logging.disable()
    calls, simulated_ms = 0, 0
    try:
        for each in worlds:
            profile = cProfile.Profile()
            profile.runcall(each.run)
            calls += pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
            simulated_ms += each.world.now_ms
    finally:
        logging.disable(logging.NOTSET)
    return calls * 1000 / simulated_ms


@pytest.mark.slow
def test_five_hundred_simulated_seconds_a_second() -> None:
    calls_a_second([Swarm(8, machines=1)])  # the messages' code is written when they are first used
    calls = calls_a_second(Swarm(seed, machines=1) for seed in SEEDS)
    assert calls <= CALLS_A_SIMULATED_SECOND, f"{calls:.0f} calls for a simulated second"


@pytest.mark.slow
def test_a_broker_among_several_costs_no_more_than_one_alone() -> None:
    calls_a_second([ReplicatedSwarm(23, machines=MACHINES)])
    calls = calls_a_second(ReplicatedSwarm(seed, machines=MACHINES) for seed in SEEDS) / MACHINES
    assert calls <= CALLS_A_BROKER_S_SECOND, f"{calls:.0f} calls for a simulated second of one of {MACHINES}"
