"""A few of the lives that `scripts/sim log` runs in bulk, among them those that once went wrong."""

from __future__ import annotations

import pytest

from tests.sim.log_campaign import life

ONCE_WRONG = [
    106720989,  # a file was taken back from the segment that was just opening it
    43527721,  # a cut was durable, the cut of its time index was not
    2926991387,  # records below the log start still had producers
    1111182068,  # the checkpoint trusted more than recovery had found
    3319668781,  # a preallocated segment was trusted before its trimming was durable
]


@pytest.mark.parametrize("seed", [*ONCE_WRONG, *range(10)])
def test_a_log_lives_through_everything(seed: int) -> None:
    life(seed)
