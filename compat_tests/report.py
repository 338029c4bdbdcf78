"""Writes the results of the compatibility suite as docs/compatibility.md: one table for each module of tests.

A cell is one test. Its table is the module's SECTION, its row the first line of the test's docstring (with the test's
parameters filled in), its column the client or release that the test is given, or the broker where there is none. A
cell without a tick has a numbered reason below its table. Registered by conftest.py under `--matrix`; modules
without a SECTION, and what was not run in this session, are not shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from compat_tests.clients import CLIENTS

_Rows = dict[str, dict[str, tuple[str, str]]]
"""Row -> column -> (outcome, reason)."""

_COLUMNS = ("client", "kind", "release")
_INTRODUCTION = """# Compatibility

What stock clients do against {broker}, each cell one test against a running broker on the loopback.
This page is written by `scripts/compat`; do not edit it.

✓ works · ✗ fails · – not possible, for the reason given below the table
"""


def cell_of(item: pytest.Item, order: int) -> tuple[str, str, str, int]:
    """(section, row, column, order) of a test; rows are shown in the order of the source, whichever ran first."""
    assert isinstance(item, pytest.Function)
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    column = next((f"{parameters[name]}" for name in _COLUMNS if name in parameters), "")
    column = column or getattr(item.module, "COLUMN", "")
    sentence = (item.function.__doc__ or item.name).strip().splitlines()[0].rstrip(".")
    return item.module.SECTION, sentence.format(**parameters), column, order


class MatrixReporter:
    """Collects outcomes while tests run, here or in pytest-xdist's workers, and writes the page at the end."""

    def __init__(self, path: Path, broker: str) -> None:
        self._path, self._broker = path, broker
        self._cells: dict[str, _Rows] = {}
        self._order: dict[tuple[str, str], int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of one test; a failed or skipped phase outweighs a passed one."""
        cell = dict(report.user_properties).get("cell")
        if cell is None or (report.passed and report.when != "call"):
            return
        assert isinstance(cell, tuple | list)  # a list when it comes from a worker
        section, row, column, order = cell
        self._order[section, row] = min(order, self._order.get((section, row), order))
        columns = self._cells.setdefault(section, {}).setdefault(row, {})
        if column not in columns or not report.passed:
            columns[column] = (report.outcome, "" if report.passed else _reason(report))

    def pytest_sessionfinish(self) -> None:
        """Write the page."""
        parts = [_INTRODUCTION.format(broker=self._broker)]
        for name in sorted(self._cells, key=_section_order):
            rows = sorted(self._cells[name].items(), key=lambda row: self._order[name, row[0]])
            parts += [_section(name, dict(rows))]
        self._path.write_text("\n".join(parts))


def _section(name: str, rows: _Rows) -> str:
    return f"## {name.partition(' ')[2]}\n\n" + "\n".join(_table(rows)) + "\n"


def _section_order(section: str) -> int:
    """Sections are numbered in the source; the numbers are not shown."""
    number = section.partition(" ")[0]
    return int(number) if number.isdigit() else 99


def _table(rows: _Rows) -> Iterable[str]:
    order = [str(client) for client in CLIENTS]
    found = {column for cells in rows.values() for column in cells}
    columns = [name for name in order if name in found] + sorted(found - set(order))
    yield "| | " + " | ".join(name or "result" for name in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    reasons: list[str] = []
    for row, cells in rows.items():
        marks = [_mark(cells.get(column), reasons) for column in columns]
        yield f"| {row} | " + " | ".join(marks) + " |"
    if reasons:
        yield ""
        yield from (f"{number}. {reason}" for number, reason in enumerate(reasons, 1))


def _mark(cell: tuple[str, str] | None, reasons: list[str]) -> str:
    if cell is None:
        return ""
    outcome, reason = cell
    if outcome == "passed":
        return "✓"
    if reason not in reasons:
        reasons.append(reason)
    return f"{'–' if outcome == 'skipped' else '✗'} ({reasons.index(reason) + 1})"


def _reason(report: pytest.TestReport) -> str:
    if report.skipped:
        assert isinstance(report.longrepr, tuple)
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return re.sub(r"\s+", " ", text.splitlines()[0] if text else "failed").replace("|", "\\|")[:200]
