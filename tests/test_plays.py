"""Every play happens as written; `REWRITE_PLAYS=1` writes what really happened into the files, to be looked at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.sim.cluster_play import ClusterStage
from kbroker.sim.play import Steps, perform_on
from tests.groups import theatre as groups
from tests.security import theatre as security
from tests.share import theatre as share
from tests.txn import theatre as txn

STAGES: dict[str, Callable[[], Steps]] = {
    "groups": groups.Stage,
    "security": security.Stage,
    "share": share.Stage,
    "sim": ClusterStage,
    "txn": txn.Stage,
}
"""By the folder under tests/ whose `plays` it carries out."""
PLAYS = sorted(
    (folder, path) for folder in STAGES for path in (Path(__file__).parent / folder / "plays").glob("*.play")
)


@pytest.mark.parametrize(("folder", "path"), PLAYS, ids=[f"{folder}-{path.stem}" for folder, path in PLAYS])
def test_play(folder: str, path: Path) -> None:
    written = path.read_text()
    happened = perform_on(STAGES[folder](), written)
    if os.environ.get("REWRITE_PLAYS"):
        path.write_text(happened)
    assert happened == written


def test_no_folder_of_plays_is_left_out() -> None:
    assert {path.parent.parent.name for path in Path(__file__).parent.glob("*/plays/*.play")} == STAGES.keys()
