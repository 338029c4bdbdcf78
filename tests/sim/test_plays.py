"""Named stories of the whole broker; `REWRITE_PLAYS=1` writes what really happened into the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kbroker.sim.transaction_play import perform

PLAYS = sorted(Path(__file__).with_name("plays").glob("*.play"))


@pytest.mark.parametrize("path", PLAYS, ids=lambda path: path.stem)
def test_play(path: Path) -> None:
    text = path.read_text()
    happened = perform(text)
    if os.environ.get("REWRITE_PLAYS"):
        path.write_text(happened)
    else:
        assert happened == text


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no such step: dance"):
        perform("dance\n")
