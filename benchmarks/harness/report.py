"""What a run of the bench found, as text, JSON and a picture: medians, spreads, ratios, verdicts.

Pure: from samples to strings. A ratio is taken round by round, ours to the Apache round next to it in time, and its
median decides; every sample is kept, and shown in the JSON. Several runs together are `runs.py`'s business.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from benchmarks.harness.brokers import APACHES, FLOOR, OURS
from benchmarks.harness.rows import Metric, Row


class Finding(NamedTuple):
    """One metric of one row. ours, theirs, floor: samples by round; but for ours they may be empty."""

    row: str
    title: str
    metric: Metric
    ours: list[float]
    theirs: list[float]
    floor: Sequence[float] = ()

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
        """Whether the median keeps the budget; None where there is none, or no broker to compare with."""
        judged = self.judged
        return self.metric.allows(statistics.median(judged)) if judged else None

    @property
    def verdict(self) -> str:
        """For a table; unsteady: single rounds say otherwise than their median, so that the run proves little."""
        kept = {self.metric.allows(value) for value in self.judged}
        if self.holds is None:
            return ""
        return ("holds" if self.holds else "MISSED") + ("" if len(kept) == 1 else ", unsteady")

    @property
    def judged(self) -> list[float]:
        """What the verdict is about: values by themselves, or ratios."""
        return self.ours if self.metric.most is not None else self.ratios


class Outcome(NamedTuple):
    """What came of a row: findings, or the reason why there are none.

    warm_rounds: how many came before those that count; settled: whether both brokers had stopped getting faster.
    """

    row: str
    title: str
    findings: list[Finding]
    warm_rounds: int = 0
    settled: bool = True
    failure: str = ""
    seconds: float = 0

    @property
    def misses(self) -> bool:
        """Whether some budget was missed."""
        return any(each.holds is False for each in self.findings)


def findings(row: Row, samples: dict[str, list[dict[str, float]]]) -> list[Finding]:
    """A row's metrics, from what its rounds gave for each broker and for the floor."""
    found = []
    for metric in row.metrics:
        key = metric.beyond_floor or metric.key
        ours, theirs, floor = (
            [measured[key] for measured in samples.get(kind, []) if key in measured] for kind in (OURS, APACHES, FLOOR)
        )
        if metric.beyond_floor:
            ours, theirs = _above(ours, floor), _above(theirs, floor)
        found.append(Finding(row.key, row.title, metric, ours, theirs, floor))
    return found


def _above(samples: list[float], floor: list[float]) -> list[float]:
    return [sample - least for sample, least in zip(samples, floor, strict=False)]


HEADINGS = ("row", "measure", "kbroker", "Apache", "floor", "ratio", "spread", "budget", "verdict")


def table(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Lines for a table under HEADINGS. spread: least and greatest ratio (or value, without a peer) of the rounds."""
    lines: list[tuple[str, ...]] = []
    for outcome in outcomes:
        if outcome.failure:
            lines.append((outcome.title, *[""] * (len(HEADINGS) - 2), f"FAILED: {outcome.failure}"))
        lines += [_line(each, outcome.settled) for each in outcome.findings]
    return lines


def _line(each: Finding, settled: bool) -> tuple[str, ...]:
    spread = each.ratios or each.ours
    return (
        each.title,
        each.metric.title,
        shown(each.ours, each.metric),
        shown(each.theirs, each.metric),
        shown(each.floor, each.metric) if each.floor else "",
        "" if each.ratio is None else f"{each.ratio:.2f}x",
        f"{min(spread):.2f} - {max(spread):.2f}" if spread else "",
        each.metric.budget,
        each.verdict + (", not warm" if each.verdict and not settled else ""),
    )


def shown(samples: Sequence[float], metric: Metric) -> str:
    """The median with its unit."""
    return with_unit(statistics.median(samples), metric) if samples else "-"


def with_unit(value: float, metric: Metric) -> str:
    """For a table; in brackets what depends on whatever else the machine does."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{digits}f} {metric.unit}"
    return text if metric.shows_value else f"({text})"


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The table in columns."""
    lines = [HEADINGS, *table(outcomes)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table for a page."""
    return markdown_table(HEADINGS, table(outcomes))


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lines under headings, in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *lines))


def as_json(machine: dict[str, str], outcomes: Sequence[Outcome]) -> str:
    """Everything, samples too."""
    rows = [_as_dict(each) for outcome in outcomes for each in outcome.findings]
    ways = [outcome._asdict() | {"findings": len(outcome.findings)} for outcome in outcomes]
    return json.dumps({"machine": machine, "rows": rows, "outcomes": ways}, indent=2)


def _as_dict(each: Finding) -> dict[str, object]:
    return {
        "row": each.row,
        "title": each.title,
        "measure": each.metric.key,
        "unit": each.metric.unit,
        "kbroker": each.ours,
        "apache": each.theirs,
        "floor": list(each.floor),
        "ratio": each.ratio,
        "ratios": each.ratios,
        "budget": each.metric.budget,
        "verdict": each.verdict,
    }


# ---- picture

_BAR, _LEFT, _WIDTH, _LINE = 18, 330, 900, 30
_COLOURS = {True: "#2f7d4f", False: "#b3402e", None: "#6b7280"}


def as_svg(machine: dict[str, str], outcomes: Sequence[Outcome]) -> str:
    """Bars: ours as a part of Apache's, whose own bar is the line at 1; the tick is the budget."""
    drawn = [each for outcome in outcomes for each in outcome.findings if each.ratio is not None]
    longest = max([1.1, *(min(each.ratio or 0, 3.0) for each in drawn)])
    unit = (_WIDTH - _LEFT - 90) / longest
    height = 60 + _LINE * len(drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="20" font-weight="bold">kbroker as a part of Apache Kafka (1 = Apache)</text>'
        f'<text x="10" y="36" fill="#6b7280" font-size="11">{escape(machine.get("summary", ""))}</text>',
    ]
    for at, each in enumerate(drawn):
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
