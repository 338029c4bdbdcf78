"""Whole worlds: that they repeat themselves, that seeds pass, that checks see what they are to see."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count

import pytest

from kbroker.api.routes import SERVED, Served
from kbroker.sim.swarm import Swarm
from tests.sim.campaign import campaign

DIGEST = "import logging; logging.disable(); from kbroker.sim.swarm import simulate; print(simulate(1).digest)"


def digest_in_a_process(hash_seed: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", DIGEST],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout


@pytest.mark.slow
def test_a_seed_repeats_itself_whatever_the_order_of_sets() -> None:
    assert digest_in_a_process("1") == digest_in_a_process("2")


@pytest.mark.slow
def test_a_seed_repeats_itself() -> None:
    first, second = Swarm(8, machines=1), Swarm(8, machines=1)
    assert first.run() == second.run()


def test_a_seed_of_a_cluster_repeats_itself() -> None:
    assert Swarm(3, machines=3).run() == Swarm(3, machines=3).run()


@pytest.mark.slow
def test_an_api_that_no_client_asks_for_leaves_a_seed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Swarm(8, machines=1).run()
    monkeypatch.setitem(SERVED, 1_000, Served("Unasked", "handshake", 0, 5))
    assert Swarm(8, machines=1).run() == before


def test_seeds_differ() -> None:
    assert Swarm(8).run().digest != Swarm(17).run().digest


@pytest.mark.parametrize("seed", [1, 17])
def test_a_few_worlds_hold(seed: int) -> None:
    assert Swarm(seed, machines=1).run().simulated_ms >= 300_000


@pytest.mark.parametrize(
    ("seed", "machines"),
    [(1, 3), (13_107_010, 3), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((700013, 3), (720075, 5)))],
)
def test_a_few_clusters_hold(seed: int, machines: int) -> None:
    swarm = Swarm(seed, machines=machines)
    swarm.run()
    assert len({swarm.checks.promise(where).holder for where in swarm.checks.partitions}) > 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_worlds_hold() -> None:
    assert campaign(count(1), seconds=5).failed is None
