"""What simulated brokers log is what their worlds do to them: nobody is to read it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
