"""Fixtures of the command line's tests."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from kbroker.cli import run
from kbroker.testing import broker
from tests.cli.asking import Ask, Captured


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker() as b:
        yield b.bootstrap


@pytest.fixture
def ask(bootstrap: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command against the broker: its exit code, output and complaints. stdin: what it is fed."""

    def asked(*words: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", bootstrap)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(list(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked
