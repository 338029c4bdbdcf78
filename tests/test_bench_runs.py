"""Runs of the bench taken together, and the tables they make: the pages say what the kept runs say."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.catalogue import ALL
from benchmarks.harness.rows import QUICK, Metric, Row
from benchmarks.harness.runs import (
    Measure,
    Run,
    condensed,
    full_table,
    measures,
    published,
    put_table,
)
from benchmarks.table import PAGE, kept, page

MACHINE = {"scale": "full", "summary": "a machine", "when": "2026-01-02 03:04 UTC"}


class Load(Row):
    key = "load"
    title = "a load"
    metrics = (Metric("cpu", "CPU", "s", most_ratio=0.5), Metric("rate", "throughput", "MB/s", shows_value=False))


class Memory(Row):
    key = "memory"
    title = "memory"
    metrics = (Metric("rest", "at rest", "MB", most=45),)


def row(measure: str, ours: list[float], theirs: list[float], verdict: str = "holds") -> dict[str, Any]:
    ratios = [a / b for a, b in zip(ours, theirs, strict=False)]
    return {
        "row": measure.split("/")[0],
        "measure": measure.split("/")[1],
        "kbroker": ours,
        "apache": theirs,
        "floor": [],
        "ratios": ratios,
        "verdict": verdict,
    }


def run(*rows: dict[str, Any], failed: dict[str, str] | None = None) -> Run:
    outcomes = [{"row": key, "failure": why, "settled": True} for key, why in (failed or {}).items()]
    return condensed({"machine": MACHINE, "rows": list(rows), "outcomes": outcomes})


def ratio_of(ours: float, verdict: str = "holds") -> Run:
    return run(row("load/cpu", [ours], [10], verdict))


def cpu(*runs: Run) -> Measure:
    return measures([Load], runs)[0]


def test_a_kept_run_has_the_median_of_the_rounds_ratios() -> None:
    assert run(row("load/cpu", [1, 2, 9], [10, 10, 10]))["rows"]["load/cpu"]["ratio"] == 0.2


def test_a_kept_run_has_no_samples() -> None:
    assert run(row("load/cpu", [1, 2, 9], [10, 10, 10]))["rows"]["load/cpu"]["kbroker"] == 2


def test_a_budget_holds_if_it_holds_in_every_run() -> None:
    assert cpu(ratio_of(3), ratio_of(4), ratio_of(5)).verdict == "holds"


def test_a_budget_missed_in_one_run_is_missed() -> None:
    assert cpu(ratio_of(3), ratio_of(4), ratio_of(6)).verdict == "MISSED in 1 of 3"


def test_a_budget_missed_in_all_runs_is_said_without_a_count() -> None:
    assert cpu(ratio_of(6), ratio_of(7)).verdict == "MISSED"


def test_a_run_in_which_the_row_failed_does_not_hold() -> None:
    assert cpu(ratio_of(3), run(failed={"load": "TimeoutError"})).verdict == "no result in 1 of 2"


def test_a_run_whose_rounds_disagree_is_counted_as_unsteady() -> None:
    assert cpu(ratio_of(3), ratio_of(4, "holds, unsteady")).verdict == "holds, unsteady in 1 of 2"


def test_a_run_that_did_not_get_warm_is_said_to_be_cold() -> None:
    cold = {"row": "load", "failure": "", "settled": False}
    found = condensed({"machine": MACHINE, "rows": [row("load/cpu", [3], [10])], "outcomes": [cold]})
    assert cpu(found, ratio_of(3)).verdict == "holds, not warm in 1 of 2"


def test_a_row_without_any_run_is_not_measured() -> None:
    assert cpu().verdict == "not measured"


def test_an_absolute_budget_is_about_the_value() -> None:
    assert measures([Memory], [run(row("memory/rest", [46], []))])[0].verdict == "MISSED"


def test_the_table_shows_the_median_and_every_run() -> None:
    table = full_table([Load], [ratio_of(3), ratio_of(5), ratio_of(4)])
    assert "| 0.40x (0.30, 0.50, 0.40) | <= 0.5x | holds |" in table


def test_a_row_of_two_measures_has_its_title_once() -> None:
    both = run(row("load/cpu", [3], [10]), row("load/rate", [150], [100]))
    assert full_table([Load], [both]).count("a load") == 1


def test_a_row_whose_budget_has_no_figure_is_below_the_table() -> None:
    assert full_table([Load, Memory], [ratio_of(3)]).endswith("\n- memory")


def on(interpreter: str, ours: float) -> Run:
    found = ratio_of(ours)
    return {**found, "machine": {**MACHINE, "python": interpreter}}


FAST, PLAIN = "CPython 3.11.2, optimised", "CPython 3.11.7, built without --enable-optimizations"


def test_runs_on_an_optimised_interpreter_are_those_that_are_judged() -> None:
    assert published([on(PLAIN, 4), on(FAST, 3)]) == [on(FAST, 3)]


def test_without_any_the_plain_ones_are_judged() -> None:
    assert published([on(PLAIN, 4)]) == [on(PLAIN, 4)]


def test_too_few_runs_are_said_to_be_few() -> None:
    assert "these are fewer" in full_table([Load], [ratio_of(3)])


def test_a_failed_row_is_named_with_its_reason() -> None:
    assert "- load, 2026-01-02 03:04 UTC: it hung" in full_table([Load], [run(failed={"load": "it hung"})])


def test_a_value_that_depends_on_the_machine_is_in_brackets() -> None:
    assert "| (150 MB/s) |" in full_table([Load], [run(row("load/rate", [150], [100]))])


def test_a_table_goes_between_its_marks() -> None:
    page = "a\n<!-- scripts/bench table: x -->\nold\n<!-- scripts/bench table: end of x -->\nb\n"
    assert put_table(page, "x", "new") == page.replace("old", "new")


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="scripts/bench table: x"):
        put_table("a page", "x", "new")


def test_the_page_says_what_the_kept_runs_say() -> None:
    assert page() == PAGE.read_text()


def test_kept_runs_have_only_rows_that_the_bench_has() -> None:
    known = {f"{each.key}/{metric.key}" for each in ALL for metric in each.metrics}
    assert [key for run in kept() for key in run["rows"] if key not in known] == []


def test_every_row_of_the_bench_has_a_key_of_its_own() -> None:
    assert len({each.key for each in ALL}) == len(ALL)


def test_rows_with_a_budget_get_more_rounds_than_those_that_are_watched() -> None:
    assert {each(QUICK).rounds for each in ALL if each.key in ("produce-1k", "produce-lz4")} == {
        QUICK.rounds,
        QUICK.watched_rounds,
    }


def test_the_figures_in_the_readme_are_those_of_the_kept_runs() -> None:
    readme, text = (PAGE.parents[1] / "README.md").read_text(), PAGE.read_text()
    for said, row in {
        "takes 0.31 times": "| produce, 1 KB records, acks=1 | CPU per GB | 2.02 s | 6.74 s |  | 0.31x",
        "takes 0.99 times": "| fetch from the page cache | CPU per GB | 0.33 s | 0.35 s |  | 0.99x",
        "takes 0.13 s, Apache's broker 3.0 s": "| exec to first acked produce | new directory | 0.13 s | 2.98 s |",
        "holds 23 MB of memory, Apache's broker 396 MB": "| resident memory | at rest | 22.8 MB | 396 MB |",
    }.items():
        assert (said in readme, row in text) == (True, True), said
