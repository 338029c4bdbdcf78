"""Drawings of what lies on disk and goes over the wire, in SVG: a log, an index, a request's stages, a rebalance.

Called by templates. Every text is escaped; styles are classes of the console's sheet. A table says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from kbroker.console.shapes import clock, count, span

WIDTH = 1000
ROW = 26
COLUMN_MOST = 8  # members in a diagram


def _text(x: float, y: float, text: object, name: str = "", anchor: str = "start") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(x, y, name, anchor, text)


def _line(x1: float, y1: float, x2: float, y2: float, name: str = "line", arrow: bool = False) -> Markup:
    line = Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(x1, y1, x2, y2, name)
    if not arrow:
        return line
    side = -6 if x2 > x1 else 6
    tip = Markup('<polygon points="{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}" class="{}"/>').format(
        x2, y2, x2 + side, y2 - 4, x2 + side, y2 + 4, name
    )
    return line + tip


def _box(x: float, y: float, width: float, height: float, name: str, title: str = "") -> Markup:
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" class="{}"><title>{}</title></rect>'
    ).format(x, y, max(width, 1), height, name, title)


def _drawn(height: float, label: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg class="drawn" role="img" viewBox="0 0 {} {:.0f}"><title>{}</title>').format(
        WIDTH, height, label
    )
    return head + Markup("").join(parts) + Markup("</svg>")


def log_drawn(data: Mapping[str, Any]) -> Markup:
    """Segments side by side as wide as they have offsets, with the marks in them, and epochs below."""
    segments = data["segments"]
    first = segments[0]["base_offset"] if segments else 0
    last = max(data["log_end_offset"], first + 1)
    scale = (WIDTH - 40) / (last - first)

    def x(offset: int) -> float:
        return float(20 + (min(max(offset, first), last) - first) * scale)

    parts = []
    for each in segments:
        wide = x(each["end_offset"]) - x(each["base_offset"])
        title = f"segment {each['base_offset']} to {each['end_offset']}, {count(each['bytes'])} bytes"
        parts.append(_box(x(each["base_offset"]), 40, wide - 1, 44, "active" if each["active"] else "box", title))
        if wide > 60:
            parts.append(_text(x(each["base_offset"]) + 4, 66, f"{each['base_offset']:,}"))
    marks = (
        ("log start", data["log_start_offset"], "line", 14),
        ("last stable", data["last_stable_offset"], "third", 14),
        ("high watermark", data["high_watermark"], "first", 28),
        ("synced to", data["recovery_point"], "second", 112),
        ("log end", data["log_end_offset"], "line", 98),
    )
    for name, offset, style, y in marks:
        at = x(offset)
        anchor = "end" if at > WIDTH / 2 else "start"
        parts += [_line(at, min(y + 2, 40), at, max(y - 8, 84), style), _text(at, y, f"{name} {offset:,}", "", anchor)]
    for at, each in enumerate(data["epochs"]):
        following = data["epochs"][at + 1]["from"] if at + 1 < len(data["epochs"]) else last
        wide = x(following) - x(each["from"])
        parts.append(
            _box(x(each["from"]), 124, wide - 1, 18, "box", f"leader epoch {each['epoch']} from {each['from']}")
        )
        if wide > 50:
            parts.append(_text(x(each["from"]) + 4, 137, f"epoch {each['epoch']}", "soft"))
    return _drawn(150, f"the log from offset {first} to {last}: {len(segments)} segments", parts)


def index_drawn(data: Mapping[str, Any]) -> Markup:
    """Entries of an offset index as lines from offsets, above, to bytes, below."""
    entries = data["offsets"]
    if not entries:
        return Markup("")
    low, high = data["base_offset"], max(entries[-1]["offset"], data["base_offset"] + 1)
    most = max(data["bytes"], 1)

    def top(offset: int) -> float:
        return float(20 + (offset - low) / (high - low) * (WIDTH - 40))

    def bottom(position: int) -> float:
        return float(20 + position / most * (WIDTH - 40))

    parts = [
        _box(20, 22, WIDTH - 40, 14, "box", "offsets"),
        _box(20, 116, WIDTH - 40, 14, "active", "bytes of the .log"),
    ]
    parts += [_text(20, 16, f"offset {low:,}"), _text(WIDTH - 20, 16, f"{high:,}", "", "end")]
    parts += [_text(20, 146, "byte 0 of the .log"), _text(WIDTH - 20, 146, f"{data['bytes']:,}", "", "end")]
    shown = entries[:: max(1, len(entries) // 120)]
    parts += [_line(top(each["offset"]), 36, bottom(each["position"]), 116) for each in shown]
    looked = data["looked_up"]
    if looked["wanted"] >= 0:
        at = top(min(max(looked["wanted"], low), high))
        parts += [_line(at, 18, at, 36, "second"), _line(at, 36, bottom(looked["position"]), 116, "second", arrow=True)]
    return _drawn(152, f"the offset index: {data['offset_entries']} entries", parts)


def timeline(stages: Sequence[Mapping[str, Any]]) -> Markup:
    """A request's stages side by side, as long as they took."""
    if len(stages) < 2:
        return Markup("")
    total = max(stages[-1]["ms"], 0.001)
    names = {
        "received": "first",
        "begun": "first",
        "waits": "second",
        "held": "third",
        "woken": "first",
        "told": "first",
    }
    parts = []
    for before, after in pairwise(stages):
        x, end = 20 + before["ms"] / total * (WIDTH - 40), 20 + after["ms"] / total * (WIDTH - 40)
        title = f"{before['what']}: {span(after['ms'] - before['ms'])}. {before['why']}"
        parts.append(_box(x, 22, end - x - 1, 22, names.get(before["what"], "box"), title))
        if end - x > 110:
            text = {"received": "core", "begun": "core", "woken": "core", "told": "core"}.get(
                before["what"], before["what"]
            )
            parts.append(_text(x + 2, 60, f"{text} {span(after['ms'] - before['ms'])}"))
    parts += [_text(20, 15, "received"), _text(WIDTH - 20, 15, f"{stages[-1]['what']} after {span(total)}", "", "end")]
    return _drawn(68, f"it took {span(total)}", parts)


def sequence(data: Mapping[str, Any]) -> Markup:
    """Members as columns beside their coordinator; what they say goes down with time."""
    members = data["members"][:COLUMN_MOST]
    left, gap = 250, (WIDTH - 280) / max(len(members), 1)
    at = {member: left + gap * (number + 0.75) for number, member in enumerate(members)}
    events = [each for each in data["events"] if each["client"] in at]
    height = 50 + ROW * len(events)
    parts = [_text(left, 18, "coordinator", "", "middle"), _line(left, 26, left, height)]
    for member, x in at.items():
        shown = member if len(member) <= 24 else f"{member[:22]}…"
        parts += [_text(x, 18, shown, "", "middle"), _line(x, 26, x, height)]
    for row, each in enumerate(events):
        y, x = 50 + ROW * row, at[each["client"]]
        name = "second" if each["bad"] else "third" if each["out"] else "first"
        parts.append(_text(8, y + 4, clock(each["at_ms"]), "soft"))
        parts.append(_line(left, y, x, y, name, arrow=True) if each["out"] else _line(x, y, left, y, name, arrow=True))
        parts.append(_text(left + 10, y - 4, each["text"]))
    return _drawn(height + 10, f"{len(events)} events of {len(members)} members", parts)


FILTERS: dict[str, Any] = {
    "log_drawn": log_drawn,
    "index_drawn": index_drawn,
    "timeline": timeline,
    "sequence": sequence,
}
