"""Curves as pictures and as a part of docs/benchmarks.md, from what is kept of a run.

Used by `benchmarks/curves.py` and by the test that holds page and pictures to the results. Pure: from medians to
strings. Both axes are logarithmic, so that twice as much for twice as many is a line at 45 degrees where the decades of
both are equally long, and a cost that does not grow is level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from benchmarks.harness.brokers import APACHES, OURS
from benchmarks.harness.growth import Curve, Points
from benchmarks.harness.report import markdown_table
from benchmarks.harness.rows import Metric

MARK = "what grows"
FOLDER = "curves"  # beside the page
NAMES = {OURS: "kbroker", APACHES: "Apache Kafka"}
COLOURS = {OURS: "#2f7d4f", APACHES: "#b3402e"}

_PANEL, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 470, 338, 62, 18, 70, 52

Kept = dict[str, Any]
"""A kept run: `machine`, and `curves` by key, each as `Grown.condensed` makes it."""


def section(curves: Sequence[Curve], kept: Kept | None) -> str:
    """What stands between the marks of the page."""
    if kept is None:
        return "No run is kept yet."
    parts = [
        "One run; a point is the median of a step's rounds, which both brokers got in turn (one round each from 5,000 "
        f"partitions on).\n\n- {kept['machine']['summary']}"
    ]
    parts += [_part(curve, kept["curves"][curve.key]) for curve in curves if curve.key in kept["curves"]]
    return "\n\n".join(parts)


def _part(curve: Curve, grown: dict[str, Any]) -> str:
    head = (curve.axis, *(f"{step:,}" for step in _steps(curve, grown)))
    lines = [
        (f"{NAMES[kind]}: {metric.title}, {metric.unit}", *_cells(curve, grown, metric, kind))
        for metric in curve.metrics
        for kind in NAMES
        if grown["points"][metric.key].get(kind)
    ]
    picture = f"![{curve.title}: {', '.join(metric.title for metric in curve.metrics)}]({FOLDER}/{curve.key}.svg)"
    ends = [f"{NAMES[kind]}: {why}." for kind, why in grown["ends"].items()]
    return "\n\n".join([f"### {curve.title}", picture, markdown_table(head, lines), *ends])


def _steps(curve: Curve, grown: dict[str, Any]) -> list[int]:
    """Those that some broker got to."""
    reached = {int(step) for kinds in grown["points"].values() for steps in kinds.values() for step in steps}
    return [step for step in curve.steps if step in reached]


def _cells(curve: Curve, grown: dict[str, Any], metric: Metric, kind: str) -> list[str]:
    values = grown["points"][metric.key][kind]
    return [short(values[str(step)]) if str(step) in values else "" for step in _steps(curve, grown)]


def short(value: float) -> str:
    """Three figures at most, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


# ---- pictures


class _Scale(NamedTuple):
    """From values to places on an axis, by their logarithms."""

    least: float
    most: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        part = (math.log10(value) - math.log10(self.least)) / (math.log10(self.most) - math.log10(self.least))
        return self.begin + part * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Powers of ten; and where these are few, twice and five times them."""
        first, last = math.floor(math.log10(self.least)), math.ceil(math.log10(self.most))
        factors = (1,) if self.most / self.least > 1000 else (1, 2, 5)
        found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
        return [tick for tick in found if self.least <= tick <= self.most]


def picture(curve: Curve, grown: dict[str, Any]) -> str:
    """A panel for each measure, side by side."""
    width = _PANEL * len(curve.shown)
    ends = [f"{NAMES[kind]}: {why}" for kind, why in grown["ends"].items()]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT + 16 * len(ends)}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14" font-weight="bold">{escape(curve.title)}</text>',
    ]
    for at, kind in enumerate(NAMES):
        x = 12 + 110 * at
        parts.append(
            f'<rect x="{x}" y="30" width="10" height="10" fill="{COLOURS[kind]}"/>'
            f'<text x="{x + 15}" y="39">{NAMES[kind]}</text>'
        )
    for at, metric in enumerate(curve.metrics):
        parts += _panel(curve, metric, grown["points"][metric.key], at * _PANEL)
    parts += [
        f'<text x="12" y="{_HEIGHT + 8 + 16 * at}" fill="#6b7280">{escape(text)}</text>' for at, text in enumerate(ends)
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(curve: Curve, metric: Metric, points: Points, left: int) -> list[str]:
    values = [value for steps in points.values() for value in steps.values() if value > 0]
    if not values:
        return []
    steps = [int(step) for kind in points.values() for step in kind]
    x = _Scale(min(steps), max(max(steps), 2 * min(steps)), left + _LEFT, left + _PANEL - _RIGHT)
    y = _Scale(min(values) / 1.6, max(values) * 1.6, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<text x="{left + _LEFT}" y="{_TOP - 8}" fill="#374151">{escape(f"{metric.title}, {metric.unit}")}</text>',
        f'<text x="{(x.begin + x.end) / 2:.0f}" y="{_HEIGHT - 14}" text-anchor="middle" fill="#374151">'
        f"{escape(curve.axis)}</text>",
    ]
    parts += [_tick_of_x(x.place(step), step) for step in sorted(set(steps))]
    parts += [_tick_of_y(x, y.place(tick), tick) for tick in y.ticks()]
    for kind, by_step in points.items():
        found = sorted((int(step), value) for step, value in by_step.items() if value > 0)
        parts += _line(found, x, y, COLOURS[kind], below=kind == OURS)
    return parts


def _tick_of_x(x: float, step: int) -> str:
    foot = _HEIGHT - _BOTTOM
    return (
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{foot}" stroke="#e5e7eb"/>'
        f'<text x="{x:.1f}" y="{foot + 16}" text-anchor="middle" fill="#6b7280">{step:,}</text>'
    )


def _tick_of_y(x: _Scale, y: float, tick: float) -> str:
    return (
        f'<line x1="{x.begin:.1f}" y1="{y:.1f}" x2="{x.end:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        f'<text x="{x.begin - 6:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="#6b7280">{tick:,g}</text>'
    )


def _line(found: list[tuple[int, float]], x: _Scale, y: _Scale, colour: str, *, below: bool) -> list[str]:
    """A broker's points with their values, and the line through them."""
    places = [(x.place(step), y.place(value), value) for step, value in found]
    way = " ".join(f"{px:.1f},{py:.1f}" for px, py, _ in places)
    parts = [f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for px, py, value in places:
        anchor = "start" if px - x.begin < 20 else "end" if x.end - px < 20 else "middle"
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>'
            f'<text x="{px:.1f}" y="{py + (17 if below else -9):.1f}" text-anchor="{anchor}" font-size="11" '
            f'fill="{colour}">{short(value)}</text>'
        )
    return parts
