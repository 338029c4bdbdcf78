"""The Dockerfile, as far as it can be held without an engine: what it copies is there, and its parts fit together."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from kbroker.config import BrokerLayers, resolve_broker, resolve_listeners, static_values

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
BUILD, FINAL = re.split(r"^FROM .*$", DOCKERFILE, flags=re.MULTILINE)[1:]


def all_of(instruction: str, text: str = DOCKERFILE) -> list[str]:
    """What follows this word at the beginning of lines."""
    return re.findall(rf"^{instruction} +(.*)$", text, flags=re.MULTILINE)


def copied() -> list[str]:
    """What comes from the repository."""
    lines = [line.split() for line in all_of("COPY") if not line.startswith("--from")]
    return [source for words in lines for source in words[:-1]]


@pytest.mark.parametrize("source", copied())
def test_what_is_copied_is_there_and_not_ignored(source: str) -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert ((ROOT / source).exists(), source in kept) == (True, True)


def test_what_a_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {"pyproject.toml", "hatch_build.py", "constraints.txt", "kbroker", "protocol"}
    assert needed | {project["project"]["readme"]} <= set(copied())


def test_no_compiled_walker_of_another_python_gets_in() -> None:
    dropped = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith(("!", "#"))]
    assert any(fnmatch("protocol/records/_walker.cpython-311-x86_64-linux-gnu.so", line) for line in dropped[1:])


def test_it_starts_with_the_file_that_it_copied_as_a_normal_user() -> None:
    (entry,), (user,) = all_of("ENTRYPOINT", FINAL), all_of("USER", FINAL)
    assert (f'"{all_of("COPY docker.properties", FINAL)[0]}"' in entry, user) == (True, "kbroker")


def test_its_data_lie_in_the_volume_and_its_port_is_exposed() -> None:
    given = static_values((ROOT / "docker.properties").read_text())
    (volume,), (port,) = all_of("VOLUME", FINAL), all_of("EXPOSE", FINAL)
    assert given["log.dirs"].text.startswith(volume + "/")
    (listener,) = resolve_listeners(resolve_broker(BrokerLayers(static=given))).bound
    assert listener.port == int(port)


def test_both_stages_have_the_same_python() -> None:
    assert len({line.split()[0] for line in all_of("FROM")}) == 1
