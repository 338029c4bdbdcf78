"""What tests of several files here ask for."""

from __future__ import annotations

import logging
import queue
from collections.abc import Iterator
from logging.handlers import QueueHandler

import pytest


@pytest.fixture
def said() -> Iterator[queue.Queue[logging.LogRecord]]:
    """The lines of the store on ZooKeeper."""
    lines: queue.Queue[logging.LogRecord] = queue.Queue()
    handler = QueueHandler(lines)
    logging.getLogger("kbroker.store").addHandler(handler)
    yield lines
    logging.getLogger("kbroker.store").removeHandler(handler)
