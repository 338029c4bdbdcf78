"""Worlds with flush.messages=1, slow disks and power cuts: what anybody was told of is there afterwards."""

from __future__ import annotations

import pytest

from kbroker.sim.swarm import Swarm


def flushed_first(seed: int, acks: int) -> Swarm:
    """A world whose topics are all flushed before anybody is told; producers ask for these acks."""
    swarm = Swarm(seed, machines=1)
    for at, topic in enumerate(swarm.topics):
        swarm.topics[at] = topic._replace(configs={**topic.configs, "flush.messages": "1"})
        for index in range(topic.partitions):
            swarm.checks.promise((topic.name, index)).flushed_first = True
    for producer in swarm.producers:
        producer.acks, producer.idempotent = acks, False
    failing_disks = {"disk error", "dead disk"}  # after a failed fsync nobody can tell what a power cut takes
    swarm.faults.kinds = [kind for kind in swarm.faults.kinds if kind not in failing_disks]
    (machine,) = swarm.machines
    machine.job_ms = (0, 500)
    for at_s in range(5, 60, 5):
        swarm.world.after(at_s * 1000 + seed, lambda: machine.kill(power_loss=True))
    return swarm


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("seed", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
def test_a_power_cut_takes_nothing_that_anybody_was_told_of(seed: int, acks: int) -> None:
    swarm = flushed_first(seed, acks)
    assert (swarm.run(60_000).acknowledged > 20, swarm.checks.losses > 5) == (True, True)
