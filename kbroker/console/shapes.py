"""How numbers, times and sizes are written on a page, and drawn: filters for templates.

What is drawn is SVG, made here of numbers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 240, 48
NONE = "–"


def count(value: float | None) -> str:
    """12,345; a dash for what is not known."""
    if value is None:
        return NONE
    return f"{value:,.1f}" if isinstance(value, float) and not value.is_integer() else f"{int(value):,}"


def size(value: float | None) -> str:
    """Bytes as people say them."""
    if value is None or value < 0:
        return NONE
    number = float(value)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError(value)


def when(at_ms: int | None) -> str:
    """A time in UTC, to the millisecond."""
    if at_ms is None or not 0 <= at_ms < 253402300800000:
        return NONE
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{at_ms % 1000:03}"


def clock(at_ms: float | None) -> str:
    """The time of a day in UTC, to the millisecond."""
    return when(None if at_ms is None else int(at_ms)).partition(" ")[2] or NONE


def span(ms: float | None) -> str:
    """How long: 3 ms, 2.5 s, 4 min, 3 h, 2 d."""
    if ms is None:
        return NONE
    for limit, unit, divisor in ((1, "µs", 0.001), (1000, "ms", 1), (60_000, "s", 1000), (3_600_000, "min", 60_000),
                                 (86_400_000, "h", 3_600_000)):  # fmt: skip
        if abs(ms) < limit:
            return f"{ms / divisor:.3g} {unit}"
    return f"{ms / 86_400_000:.3g} d"


def curve(points: Sequence[float], label: str) -> Markup:
    """A line of numbers, the oldest left; its label is what a screen reader says."""
    most = max(points, default=0) or 1
    step = WIDTH / max(len(points) - 1, 1)
    line = " ".join(f"{at * step:.1f},{HEIGHT - 2 - each / most * (HEIGHT - 6):.1f}" for at, each in enumerate(points))
    drawn = Markup('<polyline points="{}"/>').format(line) if len(points) > 1 else Markup("")
    return Markup(
        '<svg class="curve" role="img" viewBox="0 0 {w} {h}" preserveAspectRatio="none">'
        "<title>{label}: at most {most}</title>{drawn}</svg>"
    ).format(w=WIDTH, h=HEIGHT, label=label, most=count(round(most, 1)), drawn=drawn)


def bar(value: float | None, most: float | None, label: str) -> Markup:
    """A share of a whole."""
    share = 0.0 if not value or not most else min(max(value / most, 0), 1)
    return Markup(
        '<svg class="bar" role="img" viewBox="0 0 100 8" preserveAspectRatio="none"><title>{label}</title>'
        '<rect width="100" height="8" class="whole"/><rect width="{width:.1f}" height="8" class="part"/></svg>'
    ).format(label=label, width=share * 100)


FILTERS: dict[str, Any] = {
    "count": count,
    "size": size,
    "when": when,
    "clock": clock,
    "span": span,
    "curve": curve,
    "bar": bar,
}
