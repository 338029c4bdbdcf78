"""Several runs of the bench together: what is kept of each, and the table of docs/benchmarks.md.

Used by `benchmarks/table.py` and by the test that holds the table to the results. A kept run is a small JSON file in
`benchmarks/results/`: medians, no samples. Rows, their titles and their budgets are those of the code, so that a
budget moved without a new run shows. Writes nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.harness.report import markdown_table, with_unit
from benchmarks.harness.rows import Metric, Row

Run = dict[str, Any]
"""A kept run, as `condensed` makes it."""

SHOWN = "all rows"
"""The name of the table, as the markers around it have it."""

WANTED_RUNS = 3


def condensed(run: dict[str, Any]) -> Run:
    """What is kept of a bench.json: the machine, medians, the spread of what the budget is about, failures."""
    cold = {each["row"] for each in run["outcomes"] if not each["settled"]}
    rows = {f"{each['row']}/{each['measure']}": _condensed_row(each, each["row"] in cold) for each in run["rows"]}
    failed = {each["row"]: each["failure"] for each in run["outcomes"] if each["failure"]}
    return {"machine": run["machine"], "rows": rows, "failed": failed}


def _condensed_row(row: dict[str, Any], cold: bool) -> dict[str, Any]:
    kept: dict[str, Any] = {
        kind: _rounded(statistics.median(row[kind])) for kind in ("kbroker", "apache", "floor") if row[kind]
    }
    if row["ratios"]:
        kept["ratio"] = _rounded(statistics.median(row["ratios"]))
    kept["rounds"] = len(row["kbroker"])
    kept["unsteady"] = row["verdict"].endswith("unsteady")
    kept["cold"] = cold  # some broker was still getting faster
    return kept


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


class Measure(NamedTuple):
    """One metric of a row over all runs. values: what each run kept of it, None where it has nothing."""

    row: type[Row]
    metric: Metric
    values: list[dict[str, Any] | None]

    @property
    def there(self) -> list[dict[str, Any]]:
        """The runs that have it."""
        return [value for value in self.values if value is not None]

    def medians(self, kind: str) -> list[float]:
        """A broker's medians, or the ratios', run by run."""
        return [value[kind] for value in self.there if kind in value]

    @property
    def judged(self) -> list[float]:
        """What the verdict is about, run by run."""
        return self.medians("kbroker" if self.metric.most is not None else "ratio")

    @property
    def verdict(self) -> str:
        """It holds only if it holds in every run."""
        if not self.metric.budget:
            return ""
        if not self.judged:
            return "not measured"
        total, count = len(self.values), len(self.judged)
        missed = sum(not self.metric.allows(value) for value in self.judged)
        unsteady = sum(value["unsteady"] for value in self.there)
        remarks = [f"MISSED{_in(missed, total)}"] if missed else ["holds"] if count == total else []
        remarks += [f"no result{_in(total - count, total)}"] if count < total else []
        remarks += [f"unsteady{_in(unsteady, total)}"] if unsteady else []
        cold = sum(value["cold"] for value in self.there)
        remarks += [f"not warm{_in(cold, total)}"] if cold else []
        return ", ".join(remarks)


def _in(count: int, total: int) -> str:
    return "" if count == total else f" in {count} of {total}"


def measures(rows: Sequence[type[Row]], runs: Sequence[Run]) -> list[Measure]:
    """Every metric of these rows with what the runs have of it."""
    return [
        Measure(row, metric, [run["rows"].get(f"{row.key}/{metric.key}") for run in runs])
        for row in rows
        for metric in row.metrics
    ]


def published(runs: Sequence[Run]) -> list[Run]:
    """The runs that the budgets are judged by: those on an optimised interpreter, if there are any."""
    return [run for run in runs if _is_optimised(run)] or list(runs)


def _is_optimised(run: Run) -> bool:
    return run["machine"].get("python", "").endswith("optimised")  # runtime/interpreter.py says it so


def full_table(rows: Sequence[type[Row]], runs: Sequence[Run]) -> str:
    """Every measure that a run has: medians of the runs' medians, ratios run by run, verdicts; a row's title once.

    Below it the rows whose budgets no run is about.
    """
    headings = ("row", "measure", "kbroker", "Apache", "floor", "ratio", "budget", "verdict")
    found = measures(rows, runs)
    lines: list[tuple[str, ...]] = []
    title = ""
    for each in found:
        if not each.there:
            continue
        lines.append(
            (
                "" if each.row.title == title else each.row.title,
                each.metric.title,
                *(_median(each.medians(kind), each.metric) for kind in ("kbroker", "apache", "floor")),
                _median_and_all(each.medians("ratio"), "x"),
                each.metric.budget,
                each.verdict,
            )
        )
        title = each.row.title
    table = markdown_table(headings, lines)
    return "\n\n".join([_about(runs), *_places(runs), *_failures(runs), table, *_open(found)])


def _open(found: Sequence[Measure]) -> list[str]:
    """The rows with a budget and no figure."""
    titles = dict.fromkeys(f"- {each.row.title}" for each in found if each.metric.budget and not each.there)
    return ["\n".join(["Rows whose budgets have no figure yet:", *titles])] if titles else []


def _about(runs: Sequence[Run]) -> str:
    if not runs:
        return "No full run is kept yet."
    scales = sorted({run["machine"]["scale"] for run in runs})
    few = "" if len(runs) >= WANTED_RUNS else f" The budgets ask for {WANTED_RUNS} full runs; these are fewer."
    many = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    return f"The median of {many} ({' and '.join(scales)}), and in brackets each run's own.{few}"


def _places(runs: Sequence[Run]) -> list[str]:
    return ["\n".join(f"- {run['machine']['summary']}" for run in runs)] if runs else []


def _failures(runs: Sequence[Run]) -> list[str]:
    failures = [f"- {row}, {run['machine']['when']}: {why}" for run in runs for row, why in run["failed"].items()]
    return ["\n".join(["Rows that failed:", *failures])] if failures else []


def _median(values: Sequence[float], metric: Metric) -> str:
    return with_unit(statistics.median(values), metric) if values else ""


def _median_and_all(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    median = _short(statistics.median(values)) + unit
    return median if len(values) == 1 else f"{median} ({', '.join(map(_short, values))})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


# ---- pages


def marks(name: str, bench: str = "scripts/bench table") -> tuple[str, str]:
    """The lines between which what a bench has written under this name stands."""
    return f"<!-- {bench}: {name} -->", f"<!-- {bench}: end of {name} -->"


def put_table(page: str, name: str, table: str, bench: str = "scripts/bench table") -> str:
    """The page with the table between its marks. Raises ValueError if they are not there."""
    begin, end = marks(name, bench)
    before, mark, rest = page.partition(begin)
    _, other, after = rest.partition(end)
    if not mark or not other:
        raise ValueError(f"no {begin} and {end}")
    return f"{before}{begin}\n{table}\n{end}{after}"
