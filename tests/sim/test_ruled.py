"""Worlds of access rules that change: what was refused is in no log."""

from __future__ import annotations

import pytest

from kbroker.sim.checks import Promise
from kbroker.sim.ruled import GUARDED, Ruled, RuledChecks
from kbroker.sim.world import Broken, World


@pytest.mark.parametrize(("seed", "machines"), [(1, 1), pytest.param(2, 3, marks=pytest.mark.slow)])
def test_a_few_worlds_hold(seed: int, machines: int) -> None:
    ruled = Ruled(seed, machines=machines)
    ruled.run()
    assert ruled.checks.refused
    assert sum(each.acknowledged for each in ruled.outsiders) > 0


def test_a_seed_repeats_itself() -> None:
    assert Ruled(3, machines=1).run() == Ruled(3, machines=1).run()


@pytest.mark.parametrize("first", ["refused", "seen"])
def test_a_refused_record_in_a_log_is_noticed(first: str) -> None:
    checks = RuledChecks(World(1))
    checks.sent([b"x"], idempotent=False)

    def refuse() -> None:
        checks.refuses([b"x"])

    def see() -> None:
        checks._place(Promise((GUARDED, 0)), 0, b"x")

    begin, end = (refuse, see) if first == "refused" else (see, refuse)
    begin()
    with pytest.raises(Broken, match="was refused, and is in a log"):
        end()
