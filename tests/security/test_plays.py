"""Every play of a login happens as written; REWRITE_PLAYS=1 writes down what happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.security.theatre import perform

PLAYS = sorted((Path(__file__).parent / "plays").glob("*.play"))


@pytest.mark.parametrize("path", PLAYS, ids=lambda path: path.stem)
def test_play(path: Path) -> None:
    written = path.read_text()
    happened = perform(written)
    if os.environ.get("REWRITE_PLAYS"):
        path.write_text(happened)
    assert happened == written
