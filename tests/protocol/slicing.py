"""Generators that take breaks, run to their end."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any


def in_one_go(steps: Generator[None, None, Any]) -> tuple[Any, int]:
    """What a generator returns, and how often it yielded."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1
