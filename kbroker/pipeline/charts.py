"""The charts of a report: what `profile` has counted, as figures that a reader can look closer at.

Called by `report.py` with tables that are small by then. A chart is a function from a table to a figure, or to a
sentence where there is nothing to draw. Times are UTC.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

Figure: TypeAlias = Any  # of plotly's, which has no types here
Chart: TypeAlias = Figure | str
ALONE = pd.Timedelta(minutes=1)  # shown on either side of a single point in time
COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#3d405b", "#8ab17d")
LATE = {-1: "more", 0: "in time", 1: "≤ 1 s", 60: "≤ 1 min", 600: "≤ 10 min", 3600: "≤ 1 h", 86_400: "≤ 1 day"}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LETTERS = 24
"""Of the name of a topic or a key, beside a chart; all of it is shown where a reader points at it."""
_LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "height": 380,
    "margin": {"l": 70, "r": 20, "t": 40, "b": 60},
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "legend": {"font": {"size": 11}},  # at the right, where a reader moves through many: above, it would cover the plot
}


def over_time(table: pd.DataFrame) -> Chart:
    """Records and bytes a second."""
    if table.empty:
        return "No record has a timestamp that can be true."
    figure = make_subplots(1, 2, horizontal_spacing=0.12)
    for name, colour, rows in _topics(table):
        rows = rows.sort_values("time")
        for column, value in enumerate(("records_per_s", "bytes_per_s"), 1):
            mode = "lines" if len(rows) > 1 else "markers"  # one point makes no line
            style = {"name": _short(name), "line_color": colour, "mode": mode, "legendgroup": name}
            figure.add_scatter(x=rows["time"], y=rows[value], showlegend=column == 1, row=1, col=column, **style)
    figure.update_xaxes(title_text="time (UTC)", matches="x", type="date")
    if table["time"].nunique() == 1:  # by itself the axis would show some years around it
        moment = table["time"].min()
        figure.update_xaxes(range=[moment - ALONE, moment + ALONE])
    figure.update_yaxes(rangemode="tozero", exponentformat="SI")
    figure.update_yaxes(title_text="records/s", col=1).update_yaxes(title_text="bytes/s", col=2)
    return _laid_out(figure)


def balance(table: pd.DataFrame) -> Chart:
    """Records of each partition, and their mean."""
    topics = _topics(table)
    figure = make_subplots(
        len(topics), 1, subplot_titles=[_short(name) for name, *_ in topics], vertical_spacing=0.3 / len(topics)
    )
    for row, (name, colour, rows) in enumerate(topics, 1):
        bars = {"x": rows["partition"], "y": rows["records"], "name": _short(name), "hovertext": name}
        figure.add_bar(**bars, marker_color=colour, row=row, col=1)
        figure.add_hline(y=float(rows["records"].mean()), line={"dash": "dash", "width": 1}, row=row, col=1)
    figure.update_xaxes(title_text="partition", tickformat="d", dtick=1 if table["partition"].max() < 40 else None)
    figure.update_yaxes(title_text="records", rangemode="tozero", exponentformat="SI")
    return _laid_out(figure, height=120 + 240 * len(topics), showlegend=False)


def sizes(table: pd.DataFrame) -> Chart:
    """Records by the size of their values."""
    words = {-1: "null", 0: "empty"}
    return _bars(table, "up_to", "records", lambda up_to: words.get(up_to, f"≤ {_binary(up_to)}"), "records")


def keys(table: pd.DataFrame) -> Chart:
    """The shares of the most frequent keys, and the keys of the topic where they are largest."""
    if table.empty:
        return "No record has a key."
    figure = make_subplots(1, 2, horizontal_spacing=0.2)
    for name, colour, rows in _topics(table):
        rows = rows.sort_values("rank")
        style = {
            "name": _short(name),
            "mode": "lines+markers",
            "line_color": colour,
            "text": rows["key"].map(html.escape),
        }
        figure.add_scatter(x=rows["rank"], y=100 * rows["share"], row=1, col=1, **style)
    name, colour, rows = max(_topics(table), key=lambda each: float(each[2]["share"].max()))
    top = rows.sort_values("rank").head(10)[::-1]
    places = [f"#{rank}" for rank in top["rank"]]
    bars = {"x": top["records"], "y": places, "orientation": "h", "text": [_short(each) for each in top["key"]]}
    figure.add_bar(**bars, hovertext=top["key"].map(html.escape), marker_color=colour, showlegend=False, row=1, col=2)
    figure.update_xaxes(title_text="rank of the key", col=1)
    figure.update_xaxes(
        title_text=f"records of the most frequent keys<br>of {_short(name)}", exponentformat="SI", col=2
    )
    figure.update_yaxes(title_text="% of the records with a key", rangemode="tozero", col=1)
    return _laid_out(figure)


def lateness(table: pd.DataFrame) -> Chart:
    """How late records are, but for those that are in time: they would leave the others no height."""
    table = table.copy()
    table["share"] = 100 * table["records"] / table.groupby("topic")["records"].transform("sum")
    late = table[table["up_to_s"] != 0]
    return "No record is late." if late.empty else _bars(late, "up_to_s", "share", LATE.__getitem__, "% of the records")


def compression(table: pd.DataFrame) -> Chart:
    """What is left by each codec."""
    if table.empty:
        return "There are no records whose compressibility could be tried."
    table = table.copy()
    table["share"] = 100 * table["after"] / table["before"]
    table["place"] = [CODECS.index(each) for each in table["codec"]]
    return _bars(table, "place", "share", CODECS.__getitem__, "% of the bytes without")


def lag(table: pd.DataFrame) -> Chart:
    """Records that groups have not read."""
    if table.empty:
        return "No consumer group has committed an offset of these topics."
    sums = table.groupby(["group", "topic"])["lag"].sum().reset_index().sort_values("lag").tail(20)
    names = [f"{_short(group)} · {_short(topic)}" for group, topic in zip(sums["group"], sums["topic"], strict=True)]
    figure = go.Figure(go.Bar(x=sums["lag"], y=names, orientation="h", marker_color=COLOURS[0]))
    figure.update_xaxes(title_text="records behind the end", rangemode="tozero", exponentformat="SI")
    figure.update_yaxes(automargin=True)
    return _laid_out(figure, height=160 + 26 * len(sums))


Drawn = tuple[str, str, Callable[[pd.DataFrame], Chart]]
CHARTS: Mapping[str, Drawn] = {
    "over_time": ("Rates over time", "By the records' own timestamps.", over_time),
    "partitions": ("Balance of partitions", "The line is the mean.", balance),
    "sizes": ("Sizes of values", "In bytes, up to each power of two.", sizes),
    "keys": ("Skew of keys", "The 50 most frequent keys.", keys),
    "lateness": ("Late records", "How far a record lies behind the latest before it in its partition.", lateness),
    "compression": ("Compressibility", "Of each partition's last records, in batches of 16 KiB.", compression),
    "lag": ("Consumer lag", "Committed offsets of groups, against the ends of the partitions.", lag),
}
"""By the table that each draws: its title, and what to know."""


def _bars(table: pd.DataFrame, column: str, value: str, words: Callable[[Any], str], label: str) -> Figure:
    """Bars side by side, of each topic's `value` at each `column`, -1 being the last of late ones."""
    places = sorted(table[column].unique(), key=lambda each: (each == -1 and column == "up_to_s", each))
    figure = go.Figure()
    for name, colour, rows in _topics(table):
        found = rows.groupby(column)[value].sum()
        heights = [float(found.get(place, 0)) for place in places]
        bars = {"x": [words(place) for place in places], "y": heights, "name": _short(name), "hovertext": name}
        figure.add_bar(**bars, marker_color=colour)
    figure.update_xaxes(type="category")
    figure.update_yaxes(title_text=label, rangemode="tozero", exponentformat="SI")
    return _laid_out(figure)


def _laid_out(figure: Figure, **given: Any) -> Figure:
    return figure.update_layout({**_LAYOUT, **given})


def _topics(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Name, colour and rows of each topic."""
    names = sorted(table["topic"].unique())
    return [(name, COLOURS[index % len(COLOURS)], table[table["topic"] == name]) for index, name in enumerate(names)]


def _short(text: str) -> str:
    """A name as charts show it, which would take marks of HTML for their own; without its middle, if it is long: many
    begin alike."""
    return html.escape(text if len(text) <= LETTERS else f"{text[: LETTERS // 2]}…{text[1 - LETTERS // 2 :]}")


def _binary(size: int) -> str:
    """A power of two bytes."""
    for unit, bytes_of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_of:
            return f"{size // bytes_of} {unit}"
    return f"{size} B"
