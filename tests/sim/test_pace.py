"""What a simulated second costs: a seed must be cheap enough that an hour of a processor means days of a broker's life.

Counted, not timed: calls of functions, Python's and C's, are the same on every machine and under every load.
"""

from __future__ import annotations

import cProfile
import logging
import pstats

import pytest

from kbroker.sim.swarm import Swarm

CALLS_A_SIMULATED_SECOND = 9_500
"""At 0.2 us each, what a 3 GHz processor takes on the average, 500 simulated seconds a real one need 10,000 or less."""

SEEDS = (17, 23, 31)


@pytest.mark.slow
def test_five_hundred_simulated_seconds_a_second() -> None:
    logging.disable()
    Swarm(8, machines=1).run()  # the messages' code is written when they are first used
    profile = cProfile.Profile()
    try:
        simulated_ms = sum(profile.runcall(Swarm(seed, machines=1).run).simulated_ms for seed in SEEDS)
    finally:
        logging.disable(logging.NOTSET)
    calls = pstats.Stats(profile).total_calls * 1000 / simulated_ms  # type: ignore[attr-defined]
    assert calls <= CALLS_A_SIMULATED_SECOND, f"{calls:.0f} calls for a simulated second"
