"""The steps of plays of a whole broker, and the pages that print plays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.sim.cluster_play import perform
from kbroker.sim.world import Broken

PLAYS = sorted(Path(__file__).with_name("plays").glob("*.play"))


def test_the_page_on_clusters_tells_each_of_their_plays_as_it_is() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    shown = re.findall(r"^```play\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    told = {path for path in PLAYS if f"/{path.name})" in page or path.read_text() in shown}
    assert told >= {path for path in PLAYS if path.stem.startswith("cluster_")}
    assert set(shown) <= {path.read_text() for path in told}


def test_the_plays_of_the_page_for_learners_come_out_as_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    shown = re.findall(r"^```play\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        assert perform(text) == text


@pytest.mark.parametrize(
    "step", ["cut 1 off", "heal 1", "until 1 sings t-0", "slow 1 down"], ids=lambda step: step.partition(" ")[0]
)
def test_an_unknown_step_of_a_cluster_is_refused(step: str) -> None:
    with pytest.raises(ValueError, match=f"no such (step|condition): .*{step.rpartition(' ')[2]}"):
        perform(f"machines 2\n{step}\n")


def test_what_never_holds_ends_a_play() -> None:
    with pytest.raises(Broken, match="it is not so that 2 leads t-0"):
        perform("machines 2\ntopic t 1 on=1,2\nstart\nuntil 2 leads t-0\n")


def test_an_unknown_step_is_refused() -> None:
    with pytest.raises(ValueError, match="no such step: dance"):
        perform("dance\n")
