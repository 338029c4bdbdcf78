"""How to install is said in one way: by a checkout's path, and by the program, which is installed, by an extra."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from runpy import run_path

import pytest

from kbroker.usage import installed_by as hint

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
PROGRAMS = [
    path for folder in ("kbroker", "benchmarks", "scripts") for path in ROOT.glob(f"{folder}/**/*") if path.is_file()
]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
OF_OTHERS = {"kafka-python", "aiokafka", "confluent-kafka", "pyspark", "pytest-xdist"}


def installed_by(path: Path) -> list[str]:
    """What each `pip install` in a file asks for; nothing where it is the program's to fill in."""
    found: list[str] = []
    for rest in re.findall(r"pip install ([^`#{\n]+)(?![^\n]*\{)", path.read_text(errors="ignore")):
        words = [word.strip("'") for word in re.findall(r"'[^']*'|[^\s'\");]+", rest)]
        found += [
            word
            for before, word in zip(["", *words], words, strict=False)
            if word[0] != "-" and before not in ("-c", "-r")
        ]
    return found


def is_known(asked: str, place: str) -> bool:
    """Whether it is there to be installed: kbroker from this place, with its extras, or a client library."""
    ours = re.fullmatch(rf"({place})(?:\[([\w,-]+)\])?", asked)
    if ours is not None:
        return set(filter(None, (ours[2] or "").split(","))) <= EXTRAS
    return re.split(r"[=<>~]", asked)[0] in OF_OTHERS


def test_what_the_pages_say_to_install_is_a_checkout_by_its_path() -> None:
    """There is no release: by its name it would not be found, or be another one's."""
    said = [(path.name, each) for path in PAGES for each in installed_by(path)]
    assert len(said) > 10
    assert [each for each in said if not is_known(each[1], place=r"\.|\.\.?/[\w/]*kbroker")] == []


def test_what_the_program_says_to_install_adds_to_what_is_installed() -> None:
    said = [(path.name, each) for path in PROGRAMS if path.suffix == ".py" for each in installed_by(path)]
    assert [each for each in said if not is_known(each[1], place=r"\.|kbroker")] == []
    assert is_known(hint("security").split("'")[1], place="kbroker")


def test_what_was_compiled_stays_where_it_cannot_be_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_loops = run_path(str(ROOT / "hatch_build.py"))["compile_loops"]
    monkeypatch.setitem(compile_loops.__globals__, "_build_extensions", lambda *_: 1 / 0)
    extension = tmp_path / "records" / "_walker.cpython-311-x86_64-linux-gnu.so"
    extension.parent.mkdir()
    extension.touch()
    assert compile_loops(tmp_path, "protocol") == []
    assert extension.exists()
    assert "division by zero" in capsys.readouterr().err
    monkeypatch.setenv("KBROKER_PURE", "1")
    assert compile_loops(tmp_path, "protocol") == []
    assert not extension.exists()
