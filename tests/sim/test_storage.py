"""Worlds that compact, convert and have old clients in them: a few here, more in the longer tests and `scripts/sim`."""

from __future__ import annotations

from itertools import count

import pytest

from kbroker.sim.storage import Storage, StorageChecks
from tests.sim.campaign import campaign


@pytest.mark.parametrize(("seed", "machines"), [(1, 1), pytest.param(2, 1, marks=pytest.mark.slow), (5, 3)])
def test_a_few_worlds_compact_and_convert_and_hold(seed: int, machines: int) -> None:
    world = Storage(seed, machines=machines)
    world.run()
    assert isinstance(world.checks, StorageChecks)
    assert world.cleaned
    assert world.checks.converted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_worlds_hold() -> None:
    assert campaign(count(1), seconds=5, kind="storage").failed is None
