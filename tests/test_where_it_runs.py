"""Where kbroker cannot run, it says so in one line before anything else fails."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)


def test_windows_is_told_in_one_line() -> None:
    windows = "import sys; sys.platform = 'win32'; sys.modules.update(fcntl=None, resource=None, termios=None)"
    line = "kbroker runs on Linux and macOS; on Windows, run it in WSL (wsl --install)"
    for used in ("import kbroker.runtime.node", "from kbroker.testing import broker"):
        told = python(f"{windows}\n{used}")
        assert told.stderr.splitlines()[-1] == f"ImportError: {line}"
    told = python(f"{windows}\nfrom kbroker.cli import main; main()")
    assert (told.stderr, told.returncode) == (f"{line}\n", 2)


def test_an_old_interpreter_is_told_in_one_line() -> None:
    told = python("import sys; sys.version_info = (3, 9, 18)\nfrom kbroker.cli import main; main()")
    line = (
        f"kbroker needs Python 3.11 or newer, and {sys.executable} is 3.9.18; uv brings one: uv python install 3.13\n"
    )
    assert (told.stderr, told.returncode) == (line, 2)


@pytest.mark.parametrize("path", ["__init__.py", "__main__.py", "cli/__init__.py", "usage.py"])
def test_what_an_old_interpreter_reads_first_is_in_words_that_it_knows(path: str) -> None:
    """A file that it cannot read would be a traceback about that; Python 3.7 is the oldest that is told."""
    ast.parse((ROOT / "kbroker" / path).read_text(), feature_version=(3, 7))
