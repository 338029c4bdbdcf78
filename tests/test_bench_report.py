"""What the bench says of its samples."""

from __future__ import annotations

from benchmarks.harness.report import Finding, Outcome, as_markdown, as_svg
from benchmarks.harness.rows import Metric


def finding(ours: list[float], theirs: list[float], **budget: float) -> Finding:
    return Finding("row", "a row", Metric("cpu", "CPU", "s", **budget), ours, theirs)  # type: ignore[arg-type]


def test_the_median_of_the_rounds_ratios_decides() -> None:
    assert finding([1, 2, 9], [10, 10, 10], most_ratio=0.5).ratio == 0.2


def test_rounds_that_contradict_their_median_make_a_verdict_unsteady() -> None:
    assert finding([1, 2, 9], [10, 10, 10], most_ratio=0.5).verdict == "holds, unsteady"


def test_a_missed_budget_is_said_plainly() -> None:
    assert finding([6, 7, 9], [10, 10, 10], most_ratio=0.5).verdict == "MISSED"


def test_an_absolute_budget_needs_no_peer() -> None:
    assert finding([0.2, 0.2], [], most=0.25).verdict == "holds"


def test_a_ratio_budget_without_a_peer_has_no_verdict() -> None:
    assert finding([1, 2], [], most_ratio=0.5).verdict == ""


def test_the_picture_shows_every_finding_with_a_ratio() -> None:
    assert (
        as_svg({}, [Outcome("row", "a row", [finding([1], [2], most_ratio=0.9), finding([1], [])])]).count("<rect x=")
        == 1
    )


def test_a_verdict_on_a_broker_that_was_still_warming_up_says_so() -> None:
    outcome = Outcome("row", "a row", [finding([1], [2], most_ratio=0.9)], settled=False)
    assert as_markdown([outcome]).endswith("| holds, not warm |")


def test_a_row_that_failed_stands_in_the_table_with_its_reason() -> None:
    assert as_markdown([Outcome("row", "a row", [], failure="timed out")]).endswith("| FAILED: timed out |")
