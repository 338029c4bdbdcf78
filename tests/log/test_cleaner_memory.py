"""Compaction takes a fixed amount of memory, however large the log and however many its keys are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = 6 << 20
"""The keys, pieces of segments read and written, and the cleaner's own code, which is loaded when first needed."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts memory as Linux tells it")
def test_a_log_larger_than_the_memory_for_it_is_compacted_in_several_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.log.cleaned_within", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    size, passes, before, most = map(int, done.stdout.split())
    assert passes > 3
    assert size > 3 * ALLOWED
    assert most - before < ALLOWED
