"""A few bytes that open to ten gigabytes cost a bounded amount of memory, whatever codec and format they come in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from protocol.records.compression import LIMIT_BYTES
from tests.protocol.records.bombs import BOMBS

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts memory as Linux tells it")
ALLOWED = 2 * LIMIT_BYTES + (16 << 20)
"""Beside a copy of what was sent: what came out before it was too much, in pieces and joined, and some for the rest."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_a_fixed_amount_of_memory(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.protocol.records.bombs", name], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    sent, before, most = map(int, done.stdout.split())
    assert most - before < ALLOWED + sent
