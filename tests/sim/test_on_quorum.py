"""Topics of three replicas on members of a quorum's cluster: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kbroker.sim.on_quorum import QuorumSwarm
from kbroker.sim.world import Broken


def test_a_quiet_world_has_everything_led_and_in_sync_and_the_judge_sees_what_differs() -> None:
    swarm = QuorumSwarm(1, kinds=[], quorum_kinds=[], machines=3)
    assert swarm.run(3_000, healing_ms=12_000) > 0
    where = next(iter(swarm.quorum.state.partitions))
    swarm.quorum.state.partitions[where].leader_epoch += 1
    with pytest.raises(Broken, match="was told of"):
        swarm._check_whole()


def test_batches_in_doubt_are_known_again_by_brokers_that_have_all_been_started_again() -> None:
    """Their snapshots know the last one alone; and a disk fails that an empty one takes the place of."""
    swarm = QuorumSwarm(21, kinds=["dead disk", "stop"], quorum_kinds=[], machines=3)
    assert swarm.run(25_000, healing_ms=30_000) > 0
    assert any("an empty disk is" in line for line in swarm.world.lines)


@pytest.mark.slow
def test_a_partition_that_does_not_know_a_producer_takes_the_third_of_its_batches_when_two_were_refused() -> None:
    """For the in-sync set has grown in between: the first is out of order then, and the producer starts again."""
    assert QuorumSwarm(2728236947).run() > 0


A_WORLD = """
import logging
from kbroker.sim.on_quorum import QuorumSwarm
logging.disable()
swarm = QuorumSwarm(503)
swarm.faults.start(swarm.clients)
swarm.world.run_until(26_000)
print(swarm.world.digest)
"""


def digest_in_a_process(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", A_WORLD], env=environment, capture_output=True, check=True
    ).stdout.decode()


@pytest.mark.slow
def test_a_seed_is_the_same_world_in_every_process() -> None:
    """Sets of texts and ids have another order in each: nothing may follow from it."""
    assert digest_in_a_process("1") == digest_in_a_process("3")


@pytest.mark.slow
def test_a_world_outlives_brokers_and_controllers_that_die() -> None:
    swarm = QuorumSwarm(2, kinds=["kill", "stop"], quorum_kinds=["controllers", "deposed", "snapshots"])
    assert swarm.run(10_000, healing_ms=40_000) > 0
