"""Topics of three replicas on three to five simulated machines: nothing that was acknowledged is lost."""

from __future__ import annotations

import pytest

from kbroker.sim.replicated import ReplicatedSwarm
from kbroker.sim.world import Broken


@pytest.mark.parametrize("seed", [1, 6])
def test_a_world_of_replicated_topics_keeps_what_it_has_acknowledged(seed: int) -> None:
    assert ReplicatedSwarm(seed).run(20_000, healing_ms=60_000) > 0


def test_a_world_of_flushed_records_outlives_power_cuts_and_failing_disks() -> None:
    swarm = ReplicatedSwarm(3, kinds=["power", "disk error", "dead disk"])
    assert swarm.run(20_000, healing_ms=60_000) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 107))
def test_more_worlds(seed: int) -> None:
    assert ReplicatedSwarm(seed).run(120_000) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3_425_991_910, 3_425_992_098, 3_425_992_178])
def test_worlds_in_which_a_broker_restarts_while_there_is_no_controller(seed: int) -> None:
    assert ReplicatedSwarm(seed).run() > 0


@pytest.mark.slow
def test_a_world_in_which_a_disk_fails_at_the_end_of_a_followers_append() -> None:
    assert ReplicatedSwarm(689_219_421).run() > 0


def test_a_quiet_world_has_everybody_in_sync_and_the_same_logs_everywhere() -> None:
    swarm = ReplicatedSwarm(3, kinds=[])
    assert swarm.run(10_000, healing_ms=40_000) > 0


def test_the_judge_sees_a_replica_that_differs() -> None:
    swarm = ReplicatedSwarm(3, kinds=[])
    swarm.run(5_000, healing_ms=40_000)
    partitions = swarm.machines[0].broker.replicas.partitions
    log = next(each.log for each in partitions.values() if each.log is not None and each.log.size)
    log.segments[0].file.write([b"?"], 61)
    with pytest.raises(Broken, match="not the same"):
        swarm.checks.agree()


def test_the_judge_sees_that_an_acknowledged_record_is_gone() -> None:
    swarm = ReplicatedSwarm(3, kinds=[])
    swarm.run(5_000, healing_ms=40_000)
    promise = next(each for each in swarm.checks.partitions.values() if each.known)
    promise.known[max(promise.known) + 1] = b"never written"
    with pytest.raises(Broken, match="was promised"):
        swarm.checks.all_is_there()
