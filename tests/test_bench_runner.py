"""How the bench runs rows: when a warm-up is over, what a row that fails costs, and how it is broken off."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import ending
from benchmarks.harness.report import Outcome
from benchmarks.harness.rows import QUICK, Fresh, Measured, Metric, Row
from benchmarks.harness.runner import Runner, has_settled


def warm(*costs: float) -> dict[str, list[Measured]]:
    return {"apache": [{"cpu": cost} for cost in costs], "kbroker": [{"cpu": 1.0}] * len(costs)}


def test_a_compiler_still_at_work_keeps_the_warm_up_going() -> None:
    assert not has_settled(warm(46, 29, 14, 12.6, 11, 9), "cpu")


def test_a_warm_up_is_over_when_costs_no_longer_fall() -> None:
    assert has_settled(warm(46, 29, 14, 12.6, 8, 7.9, 8.1, 7.6), "cpu")


def test_costs_that_rise_do_not_keep_a_warm_up_going() -> None:
    assert has_settled(warm(5, 5, 7, 8), "cpu")


def test_three_rounds_are_too_few_to_tell() -> None:
    assert not has_settled(warm(5, 5, 5), "cpu")


class Works(Row):
    key = "works"
    title = "works"
    metrics = (Metric("cpu", "CPU", "s", most=2),)
    uses_fresh = True

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        return {"cpu": 1.0}


class Hangs(Works):
    key = "hangs"
    title = "hangs"

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        raise TimeoutError("timed out")


class OncePeer(Works):
    key = "once"
    peer_rounds = 1


def run(*rows: type[Row], **settings: Any) -> list[Outcome]:
    return Runner(["kbroker", "apache"], Path("/nowhere"), **settings).run([row(QUICK) for row in rows])


def test_a_row_that_fails_says_why() -> None:
    assert run(Hangs)[0].failure == "TimeoutError: timed out"


def test_a_row_that_fails_leaves_the_others_to_be_measured() -> None:
    assert run(Hangs, Works)[1].findings[0].verdict == "holds"


def test_results_are_told_as_rows_end() -> None:
    told: list[int] = []
    run(Works, Works, publish=lambda outcomes: told.append(len(outcomes)))
    assert told == [1, 2]


def test_a_row_may_give_the_peer_fewer_rounds() -> None:
    finding = run(OncePeer)[0].findings[0]
    assert (len(finding.ours), len(finding.theirs)) == (QUICK.rounds, 1)


# ---- the process


@pytest.mark.parametrize(("kept", "said"), [("", "broken off"), ("rows are in --out", "broken off: rows are in --out")])
def test_a_bench_that_is_told_to_end_does_so_as_by_ctrl_c(kept: str, said: str) -> None:
    done = []

    def main() -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            done.append("brokers ended")
        return 0

    was = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match=f"^{said}$"):
            ending.run(main, kept)
    finally:
        signal.signal(signal.SIGTERM, was)
    assert done == ["brokers ended"]
