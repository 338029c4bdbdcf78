"""What `scripts/bench pipeline` makes of the rates that it has measured."""

from __future__ import annotations

import pytest

from benchmarks.pipeline import chosen, show_rates

READS, TUNED, DISK = "connector reads 1 KB", "connector reads tuned 1 KB", "source from disk 1 KB"


def nothing() -> None:
    """A row that takes no time."""


def test_a_budget_is_judged_by_the_median_of_the_turns_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    rates = {
        (READS, "kbroker"): [100.0, 200.0, 120.0],
        (READS, "apache"): [100.0, 100.0, 150.0],
        (DISK, "kbroker"): [310.0, 400.0, 480.0],
    }
    assert show_rates(rates) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| connector reads 1 KB | 120 | Apache Kafka 100 | 1.00x (0.80 to 2.00) | >= 1.0x | holds |",
        "| source from disk 1 KB | 400 | the connector 120 | 3.10x (2.00 to 4.00) | >= 3.0x | holds |",
    ]


def test_a_budget_that_most_turns_miss_is_missed(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_rates({(READS, "kbroker"): [1.0, 2.0, 9.0], (READS, "apache"): [2.0, 3.0, 1.0]}) == 1
    assert "0.67x (0.50 to 9.00) | >= 1.0x | MISSED" in capsys.readouterr().out


def test_rows_that_are_chosen_come_with_what_stands_beside_them() -> None:
    names = [(READS, "kbroker"), (READS, "apache"), (TUNED, "kbroker"), (TUNED, "apache"), (DISK, "kbroker")]
    runners = dict.fromkeys(names, nothing)
    assert list(chosen(runners, "disk")) == [(READS, "kbroker"), (DISK, "kbroker")]
    assert list(chosen(runners, "tuned")) == [(TUNED, "kbroker"), (TUNED, "apache")]
    assert list(chosen(runners, "")) == names
