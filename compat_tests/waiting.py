"""Waiting for what a test expects, with a deadline: tests never sleep for a fixed time and hope."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


def eventually(holds: Callable[[], bool], within_s: float = 20) -> None:
    """Return once `holds()` is true; fail the test if it is not so in time. It is asked without a pause at first."""
    deadline = time.monotonic() + within_s
    pause_s = 0.0
    while not holds():
        if time.monotonic() > deadline:
            pytest.fail(f"did not hold within {within_s} s")
        time.sleep(pause_s)
        pause_s = min(pause_s + 0.01, 0.2)
