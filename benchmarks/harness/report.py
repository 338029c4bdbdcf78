"""What the bench found, as text, JSON and a picture: medians, spreads, ratios, verdicts.

Pure: from samples to strings. A ratio is taken round by round, ours to the Apache round next to it in time, and its
median decides; every sample is kept, and shown in the JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benchmarks.harness.brokers import APACHES, OURS
from benchmarks.harness.rows import Metric, Row


class Finding(NamedTuple):
    """One metric of one row. ours, theirs: samples by round; theirs may be empty."""

    row: str
    title: str
    metric: Metric
    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """Ours to theirs, round by round."""
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=False)]

    @property
    def ratio(self) -> float | None:
        """The median ratio, None without a peer."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def holds(self) -> bool | None:
        """Whether the median keeps the budget; None where there is none, or nobody to compare with."""
        kept = self._kept()
        return None if not kept else self._within(statistics.median(self._judged()))

    @property
    def verdict(self) -> str:
        """For a table; unsteady: single rounds say otherwise than their median, so that the run proves little."""
        kept = self._kept()
        if not kept:
            return ""
        return ("holds" if self.holds else "MISSED") + ("" if len(set(kept)) == 1 else ", unsteady")

    def _judged(self) -> list[float]:
        """What the budget is about: values by themselves, or ratios."""
        return self.ours if self.metric.most is not None else self.ratios

    def _kept(self) -> list[bool]:
        """Round by round, whether the budget was kept; empty where there is none."""
        if self.metric.most is None and self.metric.most_ratio is None:
            return []
        return [self._within(value) for value in self._judged()]

    def _within(self, value: float) -> bool:
        limit = self.metric.most if self.metric.most is not None else self.metric.most_ratio
        assert limit is not None, self.metric
        return value >= limit if self.metric.more_is_better else value <= limit

    @property
    def budget(self) -> str:
        """The budget as text."""
        if self.metric.most is not None:
            return f"<= {self.metric.most:g} {self.metric.unit}"
        if self.metric.most_ratio is not None:
            return f"{'>=' if self.metric.more_is_better else '<='} {self.metric.most_ratio:g}x"
        return ""


def findings(row: Row, samples: dict[str, list[dict[str, float]]]) -> list[Finding]:
    """A row's metrics, from what its rounds gave for each broker."""
    found = []
    for metric in row.metrics:
        ours, theirs = (
            [measured[metric.key] for measured in samples.get(kind, []) if metric.key in measured]
            for kind in (OURS, APACHES)
        )
        found.append(Finding(row.key, row.title, metric, ours, theirs))
    return found


HEADINGS = ("row", "measure", "kbroker", "Apache", "ratio", "spread", "budget", "verdict")


def table(found: Sequence[Finding]) -> list[tuple[str, ...]]:
    """Lines for a table under HEADINGS. spread: least and greatest ratio (or value, without a peer) of the rounds."""
    lines: list[tuple[str, ...]] = []
    for each in found:
        spread = each.ratios or each.ours
        lines.append(
            (
                each.title,
                each.metric.title,
                _value(each.ours, each.metric),
                _value(each.theirs, each.metric),
                "" if each.ratio is None else f"{each.ratio:.2f}x",
                f"{min(spread):.2f} - {max(spread):.2f}" if spread else "",
                each.budget,
                each.verdict,
            )
        )
    return lines


def _value(samples: Sequence[float], metric: Metric) -> str:
    if not samples:
        return "-"
    median = statistics.median(samples)
    digits = 0 if median >= 100 else 1 if median >= 10 else 2
    return f"{median:.{digits}f} {metric.unit}" if metric.shows_value else f"({median:.{digits}f} {metric.unit})"


def as_text(found: Sequence[Finding]) -> str:
    """The table in columns."""
    lines = [HEADINGS, *table(found)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_markdown(found: Sequence[Finding]) -> str:
    """The table for a README."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    return "\n".join([*lines, *(f"| {' | '.join(line)} |" for line in table(found))])


def as_json(machine: dict[str, str], found: Sequence[Finding]) -> str:
    """Everything, samples too."""
    rows = [
        {
            "row": each.row,
            "title": each.title,
            "measure": each.metric.key,
            "unit": each.metric.unit,
            "kbroker": each.ours,
            "apache": each.theirs,
            "ratio": each.ratio,
            "ratios": each.ratios,
            "budget": each.budget,
            "verdict": each.verdict,
        }
        for each in found
    ]
    return json.dumps({"machine": machine, "rows": rows}, indent=2)


# ---- picture

_BAR, _LEFT, _WIDTH, _LINE = 18, 330, 900, 30
_COLOURS = {True: "#2f7d4f", False: "#b3402e", None: "#6b7280"}


def as_svg(machine: dict[str, str], found: Sequence[Finding]) -> str:
    """Bars: ours as a part of Apache's, whose own bar is the line at 1; the tick is the budget."""
    shown = [each for each in found if each.ratio is not None]
    longest = max([1.1, *(min(each.ratio or 0, 3.0) for each in shown)])
    unit = (_WIDTH - _LEFT - 90) / longest
    height = 60 + _LINE * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-weight="bold">kbroker as a part of Apache Kafka (1 = Apache)</text>'
        f'<text x="10" y="36" fill="#6b7280" font-size="11">{escape(machine.get("summary", ""))}</text>',
    ]
    for at, each in enumerate(shown):
        parts.append(_bar(each, 50 + at * _LINE, unit))
    one = _LEFT + unit
    parts.append(
        f'<line x1="{one:.0f}" y1="44" x2="{one:.0f}" y2="{height - 8}" stroke="#111" stroke-dasharray="3 3"/>'
    )
    return "\n".join([*parts, "</svg>"])


def _bar(each: Finding, top: int, unit: float) -> str:
    ratio = each.ratio or 0
    middle = top + _BAR - 5
    length = min(ratio, 3.0) * unit
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(f"{each.title}: {each.metric.title}")}</text>',
        f'<rect x="{_LEFT}" y="{top}" width="{length:.1f}" height="{_BAR}" fill="{_COLOURS[each.holds]}"/>',
        f'<text x="{_LEFT + length + 6:.1f}" y="{middle}">{ratio:.2f}x</text>',
    ]
    if each.metric.most_ratio is not None:
        x = _LEFT + each.metric.most_ratio * unit
        parts.append(
            f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{top + _BAR + 4}" stroke="#111" stroke-width="2"/>'
        )
    return "".join(parts)
