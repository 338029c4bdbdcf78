"""Relative directories begin where the user stands, by whatever program and in whichever way they are given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTENERS = "listeners=PLAINTEXT://127.0.0.1:0"
PROGRAMS = {
    "kbroker": [sys.executable, "-m", "kbroker.cli", "start"],
    "scripts/start": [str(ROOT / "scripts" / "start")],
}

pytestmark = pytest.mark.slow


def starts(folder: Path, program: str, *arguments: str, **environment: str) -> None:
    """Run it in `folder` until it listens."""
    command = [*PROGRAMS[program], *arguments, f"--override={LISTENERS}"]
    variables = {**os.environ, **environment}
    broker = subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    try:
        assert any("listening on" in line for line in broker.stdout)
    finally:
        broker.terminate()
        broker.wait(30)
        broker.stdout.close()


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", ["override", "properties", "environment"])
def test_data_is_where_the_user_stands(tmp_path: Path, program: str, way: str) -> None:
    if way == "override":
        starts(tmp_path, program, "--override=log.dirs=mine")
    elif way == "properties":
        (tmp_path / "own.properties").write_text("log.dirs=mine\n")
        starts(tmp_path, program, "own.properties")
    else:
        starts(tmp_path, program, KAFKA_LOG_DIRS="mine")
    assert (tmp_path / "mine" / "meta.properties").exists()
