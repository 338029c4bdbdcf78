"""Old clients' compressed messages take a bounded amount of a broker's memory, whatever they become."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = 300 << 20
"""More at the peak: the requests, what one wrapper becomes and what is made of it, on whatever thread."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts memory as Linux tells it")
@pytest.mark.parametrize("compression_type", ["producer", "uncompressed"])
@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_wrappers_that_become_much_are_opened_within_a_fixed_amount_of_memory(
    tmp_path: Path, codec: str, compression_type: str
) -> None:
    command = [sys.executable, "-m", "tests.api.opened_within", codec, compression_type, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    _, before, most = map(int, done.stdout.split())
    assert most - before < ALLOWED
