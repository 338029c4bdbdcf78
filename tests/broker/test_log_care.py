"""What the logs do by themselves is said."""

from __future__ import annotations

import logging

import pytest

from tests.requests import produce
from tests.world import World


def test_what_retention_deletes_is_said(caplog: pytest.LogCaptureFixture) -> None:
    world = World(log_retention_check_interval_ms="1000")
    world.create("t", segment_bytes="400", retention_bytes="700", retention_ms="-1")
    client = world.client()
    for _ in range(10):
        client.ask(produce(b"v" * 120), 9)
    with caplog.at_level(logging.INFO, "kbroker.logs"):
        world.advance(60_000)
    lines = [record.getMessage() for record in caplog.records if record.name == "kbroker.logs"]
    log = world.partition("t").log
    assert log is not None
    gone = f"offsets 0 to {log.log_start_offset - 1}, 1140 bytes"
    assert lines == [f"t-0: 3 segments deleted, {gone}: retention size 700 bytes breached"]
