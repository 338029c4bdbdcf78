"""`kbroker log compact --dry-run`: what it says, and what it refuses."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from kbroker.cli import run
from tests.log.tools.test_compact import content, filled

Captured = pytest.CaptureFixture[str]
FIRST = "00000000000000000000.log"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A partition with values that were overwritten."""
    path = tmp_path / "t-0"
    path.mkdir()
    for name, data in content(filled().disk).items():
        (path / name).write_bytes(data)
    return path


def compact(*words: str) -> int:
    return run(["log", "compact", *words])


def test_what_would_be_saved_is_said(folder: Path, capsys: Captured) -> None:
    assert compact("--dry-run", str(folder)) == 0
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[1:4]] == ["before", "after", "saved"]
    assert said.err == ""


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_shown_how_far_it_is(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert compact("--dry-run", str(folder)) == 0
    shown = re.findall(r"([\d.]+)/([\d.]+) \w+", re.sub(r"\x1b\[[?\d;]*\w", "", screen.getvalue()))
    assert shown
    assert shown[-1][0] == shown[-1][1] != "0", shown
    assert "saved" in capsys.readouterr().out


def test_json_has_what_is_saved_and_changes_nothing(folder: Path, capsys: Captured) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert compact("--dry-run", "--json", str(folder)) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < found["bytes_after"] == found["bytes_before"] - found["bytes_saved"] < found["bytes_before"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_log_of_one_segment_is_said_to_have_nothing(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / FIRST).write_bytes(b"")
    assert compact("--dry-run", str(tmp_path / "t-0")) == 0
    assert "nothing to compact" in capsys.readouterr().out


def test_a_broken_batch_is_one_line_and_exit_code_1(folder: Path, capsys: Captured) -> None:
    path = folder / FIRST
    path.write_bytes(path.read_bytes()[:60] + b"\xff" * 20 + path.read_bytes()[80:])
    assert compact("--dry-run", str(folder)) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith(f"kbroker: {path}: position 0: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["."], "kbroker: give --dry-run: a broker compacts"),
        (["--dry-run"], "kbroker: Missing argument 'PARTITION_FOLDER'"),
        (["--dry-run", "/no/such-0"], "kbroker: /no/such-0: there is no such directory"),
        (["--dry-run", __file__], f"kbroker: {__file__}: is not a directory"),
        (["--dry-run", "/"], "kbroker: /: is not a partition's folder"),
    ],
)
def test_a_folder_that_is_none_is_one_line(words: list[str], line: str, capsys: Captured) -> None:
    assert compact(*words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(line)
    assert said.err.count("\n") == 1
