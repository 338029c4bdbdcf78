"""Time in a simulated world."""

from __future__ import annotations

from kbroker.sim.world import World


def test_an_event_that_was_called_off_brings_none_forward() -> None:
    world = World("time")
    happened: list[int] = []
    world.after(5, happened.append, 5).cancel()
    world.after(100, happened.append, 100)
    world.run_until(50)
    assert (happened, world.now_ms) == ([], 50)
