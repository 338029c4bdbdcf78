"""Chance from the operating system."""

from __future__ import annotations

import os

import pytest

from kbroker.runtime.clock import SystemRandom


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 256, 257, 65_537])
def test_every_number_below_the_limit_comes_and_no_other(limit: int) -> None:
    few = min(limit, 8)
    drawn = [SystemRandom().below(limit) * few // limit for _ in range(400)]
    assert set(drawn) == set(range(few))


def test_all_numbers_are_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 256 bytes there are, once: what is above the limit is drawn again, and nothing is folded."""
    drawn = iter(reversed(range(256)))
    monkeypatch.setattr(os, "urandom", lambda size: bytes([next(drawn)]))
    counts = [0] * 5
    for _ in range(5 * 32):  # three bits of a byte count: each number has 32 of them
        counts[SystemRandom().below(5)] += 1
    assert counts == [32] * 5


def test_large_limits_take_as_many_bytes_as_they_need() -> None:
    assert max(SystemRandom().below(1 << 80) for _ in range(100)) >= 1 << 72
