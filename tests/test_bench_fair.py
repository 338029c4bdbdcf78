"""What a row of `scripts/bench fair` tells when its broker does not live to the end of it."""

from __future__ import annotations

import os
import signal

import pytest

from benchmarks import fair
from benchmarks.fair import Outcome, Row, told
from benchmarks.harness.brokers import OURS


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Row:
    """On a broker of its own, with an attack that does nothing."""
    monkeypatch.setattr(fair, "WARM_UP_S", 0)
    monkeypatch.setitem(fair.ROWS, "another-producer", lambda port: None)
    return Row("another-producer", OURS, rest_s=0)


def test_a_broker_that_dies_beside_an_attack_is_told_in_its_row(
    row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask_the_dead(port: int, patience_s: float) -> None:
        os.kill(row._broker.pid, signal.SIGKILL)
        row._broker._process.wait()  # type: ignore[union-attr]
        raise ConnectionResetError

    monkeypatch.setattr(fair, "_delete_hostile_topics", ask_the_dead)
    row.attack(0.1)
    assert told(row, longest_ms=1e6)
    (printed,) = capsys.readouterr().out.splitlines()
    assert printed.startswith("| another-producer | kbroker |")
    assert "has died (FileNotFoundError" in printed


def test_a_broker_that_does_not_answer_any_more_is_told_in_its_row(
    row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(port: int, patience_s: float) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(fair, "_delete_hostile_topics", hang)
    row.attack(0.1)
    assert told(row, longest_ms=1e6)
    assert "cannot be asked any more (TimeoutError('timed out'))" in capsys.readouterr().out


def test_a_row_without_a_fault_says_nothing_at_its_end(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    row.attack(0.1)
    assert not told(row, longest_ms=1e6)
    assert capsys.readouterr().out.endswith(" |  |\n")


@pytest.mark.parametrize(
    ("outcome", "missed"),
    [
        (Outcome([1, 101], [], 0, 0, 0), ["waited 101 ms"]),
        (Outcome([1, 100], ["a", "b", "c"], 0, 0, 0), ["a; b"]),
        (Outcome([], [], 1 << 20, 302 << 20, 22 << 20), ["301 MB more at the peak", "21 MB more after a rest"]),
    ],
)
def test_budgets_missed_are_named(outcome: Outcome, missed: list[str]) -> None:
    assert outcome.misses(100) == missed
