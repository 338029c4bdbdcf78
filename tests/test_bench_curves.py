"""Curves of the bench: who goes on to larger steps, what is kept, and that page and pictures say what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.curves import PICTURES, kept, page, pictures
from benchmarks.harness.growth import CURVES, Curve, Grower, Grown
from benchmarks.harness.growth_pages import picture, section
from benchmarks.harness.rows import QUICK, Fresh, Measured, Metric, Row
from benchmarks.table import PAGE


class Grows(Row):
    key = "grows"
    metrics = (Metric("cpu", "CPU", "us"), Metric("unseen", "something else", "s"))
    uses_fresh = True
    fails: frozenset[tuple[str, int]] = frozenset()

    def __init__(self, count: int) -> None:
        super().__init__(QUICK)
        self.count = count

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        if (kind, self.count) in self.fails:
            raise TimeoutError("timed out")
        return {"cpu": float(self.count * (2 if kind == "apache" else 1)), "unseen": 1.0}


class PeerFails(Grows):
    fails = frozenset({("apache", 10)})


class OursFails(Grows):
    fails = frozenset({("kbroker", 10)})


def curve(row: type[Grows]) -> Curve:
    return Curve("grows", "A load", "things", row, (1, 10, 100), ("cpu",), warm=lambda step: 1, rounds=lambda step: 3)


def grown(row: type[Grows], **settings: Any) -> Grown:
    grower = Grower(["kbroker", "apache"], Path("/nowhere"), **{"most_s": 60.0, **settings})
    return next(grower.run([curve(row)]))


def steps(found: Grown, kind: str) -> list[str]:
    return list(found.samples["cpu"][kind])


def test_warm_up_rounds_do_not_count() -> None:
    assert grown(Grows).samples["cpu"]["kbroker"]["10"] == [10.0, 10.0, 10.0]


def test_a_peer_whose_rounds_take_too_long_is_not_asked_for_more() -> None:
    found = grown(Grows, most_s=-1.0)
    assert (steps(found, "apache"), steps(found, "kbroker")) == (["1"], ["1", "10", "100"])


def test_the_end_of_a_peer_is_said() -> None:
    assert grown(Grows, most_s=-1.0).ends == {"apache": "not asked for more than 1, where a round took 0 s"}


def test_a_peer_that_fails_a_step_leaves_ours_to_go_on() -> None:
    found = grown(PeerFails)
    assert (steps(found, "apache"), steps(found, "kbroker")) == (["1"], ["1", "10", "100"])
    assert found.ends == {"apache": "failed at 10: TimeoutError: timed out"}


def test_ours_that_fails_a_step_goes_no_further() -> None:
    found = grown(OursFails)
    assert (steps(found, "kbroker"), found.ends) == (["1"], {"kbroker": "failed at 10: TimeoutError: timed out"})


def test_steps_that_are_too_large_are_left_out() -> None:
    assert steps(grown(Grows, most_step=10), "kbroker") == ["1", "10"]


def test_what_is_kept_of_a_step_is_its_median() -> None:
    found = Grown("grows", {"cpu": {"kbroker": {"1": [3.0, 1.0, 2.0]}}}, {}, 1.0)
    assert found.condensed() == {"points": {"cpu": {"kbroker": {"1": 2.0}}}, "ends": {}}


def test_a_picture_has_a_line_for_each_broker_and_says_who_did_not_go_on() -> None:
    drawn = picture(curve(Grows), grown(PeerFails).condensed())
    assert drawn.count("<polyline") == 2
    assert "Apache Kafka: failed at 10" in drawn


def test_a_table_leaves_empty_what_a_broker_did_not_reach() -> None:
    run = {"machine": {"summary": "a machine"}, "curves": {"grows": grown(PeerFails).condensed()}}
    assert section([curve(Grows)], run).splitlines()[-3:] == [
        "| Apache Kafka: CPU, us | 2.00 |  |  |",
        "",
        "Apache Kafka: failed at 10: TimeoutError: timed out.",
    ]


def test_every_curve_draws_measures_that_its_row_has() -> None:
    assert all(len(curve.metrics) == len(curve.shown) for curve in CURVES)


def test_the_page_and_the_pictures_say_what_is_kept() -> None:
    assert page() == PAGE.read_text()
    run = kept()
    found = {} if run is None else pictures(run)
    assert {path.name: path.read_text() for path in PICTURES.glob("*.svg")} == found
