"""What holds for all tests: how Hypothesis chooses its examples, what the garbage collector looks at, and logging.

A check of a change must say the same thing twice, so examples are derived from the test itself and no deadline looks at
a busy machine's clock. One thing is left that differs: Hypothesis also tries constants of our modules that are loaded,
so that a test may get other examples when other files run before it in the same process. New examples are what people
explore with: `HYPOTHESIS_PROFILE=explore pytest tests`.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Fifteen thousand tests and what they import stay until the end: the collector need not look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    """A start in this process sets logging up, on a standard error that ends with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
