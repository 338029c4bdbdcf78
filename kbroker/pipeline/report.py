"""Draws the tables of `profile`: a page of HTML that needs no server and no network, a PNG of each plot beside it, and
the numbers as Parquet.

Called on the driver with tables that are small by then: aggregates, never records.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from pyspark.sql import DataFrame

Summary = dict[str, Any]
ALONE = pd.Timedelta(minutes=1)  # shown on either side of a single point in time
COLOURS = ("#2a6f97", "#e07a5f", "#81b29a", "#f2cc8f", "#6d597a", "#b56576", "#3d405b", "#8ab17d")
_CSS = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em;color:#222}
h1{font-size:1.6em}h2{margin-top:2em;border-bottom:1px solid #ddd;font-size:1.2em}img{max-width:100%}
div.wide{overflow-x:auto;font-size:.85em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .8em;text-align:right;
border-bottom:1px solid #eee}th{background:#f6f6f6}td:first-child,th:first-child{text-align:left}p.note{color:#666}"""


def write_report(tables: dict[str, DataFrame], file: str, where: str) -> Summary:
    """Write FILE.html, and beside it FILE-files/ with the plots and the tables. where: the cluster's name in the title.

    Returns: the summary, by topic. Raises OSError.
    """
    page = Path(file)
    beside = page.with_name(f"{page.stem}-files")
    beside.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.write.mode("overwrite").parquet(str(beside / f"{name}.parquet"))
    spark = next(iter(tables.values())).sparkSession
    small = {name: spark.read.parquet(str(beside / f"{name}.parquet")).toPandas() for name in tables}
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>Topics of {html.escape(where)}</title>"]
    parts.append(f"<style>{_CSS}</style><h1>Topics of {html.escape(where)}</h1>")
    overview = summary_of(small)
    parts.append(_table(overview))
    for name, title, note, draw in _PLOTS:
        if small[name].empty:
            parts.append(f"<h2>{title}</h2><p class=note>Nothing to show.</p>")
            continue
        png = _png(draw, small[name])
        (beside / f"{name}.png").write_bytes(png)
        image = base64.b64encode(png).decode()
        parts.append(f'<h2>{title}</h2><p class=note>{note}</p><img alt="{title}" src="data:image/png;base64,{image}">')
    if len(odd := small["timestamps"]):
        parts.append(f"<h2>Odd timestamps</h2><p class=note>{_ODD}</p>" + _table(odd.sort_values(["topic", "odd"])))
    parts.append("<h2>Partitions</h2>" + _table(_shown_partitions(small["partitions"])))
    page.write_text("\n".join(parts) + "</html>\n")
    return {"job": "profile", "report": str(page), "topics": overview.set_index("topic").to_dict("index")}


def summary_of(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each topic: the numbers that a reader asks for first."""
    rows = []
    for topic, each in tables["partitions"].groupby("topic"):
        records = int(each.records.sum())
        late, keys = (_of(tables[name], topic) for name in ("lateness", "keys"))
        packed = _of(tables["compression"], topic)
        best = packed.loc[packed.after.idxmin()] if len(packed) else None
        span = each.last_time.max() - each.first_time.min()  # none where all timestamps are odd
        seconds = max(span.total_seconds(), 1) if not pd.isna(span) else None
        rows.append(
            {
                "topic": topic,
                "records": records,
                "bytes": int(each["bytes"].sum()),
                "records_per_s": round(records / seconds, 1) if seconds else "-",
                "busiest_partition": f"{each.records.max() / each.records.mean():.2f}x the mean",
                "null_keys": int(each.null_keys.sum()),
                "null_values": int(each.null_values.sum()),
                "odd_timestamps": int(each.odd_timestamps.sum()),
                "keys": int(keys.distinct_keys.max()) if len(keys) else 0,
                "top_key": f"{100 * keys.share.max():.1f} %" if len(keys) else "none",
                "late": f"{100 * late[late.up_to_s != 0].records.sum() / records:.2f} %",
                "smallest_codec": f"{best.codec}, {100 * best.after / best.before:.0f} %" if best is not None else "",
                "largest_lag": int(_of(tables["lag"], topic).lag.max()) if len(_of(tables["lag"], topic)) else 0,
            }
        )
    return pd.DataFrame(rows)


def _of(table: pd.DataFrame, topic: Any) -> pd.DataFrame:
    return table[table.topic == topic]


def _shown_partitions(table: pd.DataFrame) -> pd.DataFrame:
    shown = table.sort_values(["topic", "partition"]).copy()
    quantiles = shown.pop("value_bytes_p50_p90_p99_max")
    shown["value bytes p50 / p90 / p99 / max"] = [
        " / ".join(f"{int(each):,}" for each in cell) if cell is not None and len(cell) else "" for cell in quantiles
    ]
    return shown


def _table(rows: pd.DataFrame) -> str:
    heads = "".join(f"<th>{html.escape(str(name).replace('_', ' '))}" for name in rows.columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(each)}" for each in row) for row in rows.itertuples(index=False))
    return f"<div class=wide><table><tr>{heads}{body}</table></div>"


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return html.escape(f"{value:,.1f}" if isinstance(value, float) else str(value))


# ---- plots


def _png(draw: Callable[[Figure, pd.DataFrame], None], table: pd.DataFrame) -> bytes:
    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, table)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e5e5e5")
        axes.set_axisbelow(True)
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _topics(table: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Name, colour and rows of each topic."""
    names = sorted(table.topic.unique())
    return [(name, COLOURS[index % len(COLOURS)], _of(table, name)) for index, name in enumerate(names)]


def _short(value: float, _: Any = None) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _binary(size: int) -> str:
    """A power of two bytes."""
    for unit, bytes_of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= bytes_of:
            return f"{size // bytes_of} {unit}"
    return f"{size} B"


def _counts(axes: Any) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(_short))
    axes.set_ylim(bottom=0)


def _over_time(figure: Figure, table: pd.DataFrame) -> None:
    left, right = figure.subplots(1, 2, sharex=True)
    for name, colour, rows in _topics(table):
        rows = rows.sort_values("time")
        marker = "o" if len(rows) == 1 else None  # one point makes no line
        left.plot(rows.time, rows.records_per_s, color=colour, label=name, marker=marker)
        right.plot(rows.time, rows.bytes_per_s, color=colour, marker=marker)
    if table.time.nunique() == 1:  # by itself the axis would show some years around it
        left.set_xlim(table.time.min() - ALONE, table.time.min() + ALONE)
    for axes, what in ((left, "records/s"), (right, "bytes/s")):
        axes.set_ylabel(what)
        axes.tick_params(axis="x", labelrotation=30)
        _counts(axes)
    left.legend(frameon=False, fontsize=8)


def _balance(figure: Figure, table: pd.DataFrame) -> None:
    topics = _topics(table)
    for axes, (name, colour, rows) in zip(figure.subplots(1, len(topics), squeeze=False)[0], topics, strict=True):
        rows = rows.sort_values("partition")
        axes.bar(rows.partition.astype(str) if len(rows) <= 40 else rows.partition, rows.records, color=colour)
        axes.axhline(rows.records.mean(), color="#444", linewidth=1, linestyle="--")
        axes.set(title=name, xlabel="partition", ylabel="records")
        _counts(axes)


def _bars(
    figure: Figure, table: pd.DataFrame, column: str, value: str, words: Callable[[Any], str], label: str
) -> None:
    """Bars side by side, of each topic's `value` at each `column`."""
    axes = figure.subplots()
    places = sorted(table[column].unique(), key=lambda each: (each == -1 and column == "up_to_s", each))
    topics = _topics(table)
    width = 0.8 / len(topics)
    for index, (name, colour, rows) in enumerate(topics):
        found = rows.groupby(column)[value].sum()
        heights = [found.get(place, 0) for place in places]
        middles = [place - 0.4 + width * (index + 0.5) for place in range(len(places))]
        axes.bar(middles, heights, width, color=colour, label=name)
    axes.set_xticks(range(len(places)), [words(place) for place in places], rotation=30 if len(places) > 8 else 0)
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    _counts(axes)


def _sizes(figure: Figure, table: pd.DataFrame) -> None:
    words = {-1: "null", 0: "empty"}
    _bars(figure, table, "up_to", "records", lambda up_to: words.get(up_to, f"≤ {_binary(up_to)}"), "records")


def _keys(figure: Figure, table: pd.DataFrame) -> None:
    left, right = figure.subplots(1, 2)
    for name, colour, rows in _topics(table):
        rows = rows.sort_values("rank")
        left.plot(rows["rank"], 100 * rows.share, marker=".", color=colour, label=name)
    left.set(xlabel="rank of the key", ylabel="% of the records with a key", ylim=(0, None))
    left.legend(frameon=False, fontsize=8)
    name, colour, rows = max(_topics(table), key=lambda each: each[2].share.max())
    top = rows.sort_values("rank").head(10)[::-1]
    right.barh([each if len(each) <= 24 else f"{each[:23]}…" for each in top.key], top.records, color=colour)
    right.set(title=f"most frequent keys of {name}", xlabel="records")
    right.xaxis.set_major_formatter(FuncFormatter(_short))


def _lateness(figure: Figure, table: pd.DataFrame) -> None:
    words = {-1: "more", 0: "in time", 1: "≤ 1 s", 60: "≤ 1 min", 600: "≤ 10 min", 3600: "≤ 1 h", 86_400: "≤ 1 day"}
    table = table.copy()
    table["share"] = 100 * table.records / table.groupby("topic").records.transform("sum")
    table = table[table.up_to_s != 0]  # those in time would leave the others no height
    if table.empty:
        figure.text(0.5, 0.5, "No record is late.", ha="center")
        return
    _bars(figure, table, "up_to_s", "share", lambda step: words[step], "% of the records")


def _compression(figure: Figure, table: pd.DataFrame) -> None:
    table = table.copy()
    table["share"] = 100 * table.after / table.before
    order = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
    names = sorted(table.codec.unique(), key=lambda each: order.get(each, 9))
    table["place"] = [names.index(each) for each in table.codec]
    _bars(figure, table, "place", "share", lambda place: names[place], "% of the bytes without")


def _lag(figure: Figure, table: pd.DataFrame) -> None:
    axes = figure.subplots()
    sums = table.groupby(["group", "topic"]).lag.sum().reset_index().sort_values("lag").tail(20)
    axes.barh([f"{row.group} · {row.topic}" for row in sums.itertuples()], sums.lag, color=COLOURS[0])
    axes.set_xlabel("records behind the end")
    axes.xaxis.set_major_formatter(FuncFormatter(_short))


_ODD = (
    "They cannot be true, and count in no time above. Times are what they may be meant for, in UTC; partition and "
    "offset are those of the first."
)
_PLOTS: Sequence[tuple[str, str, str, Callable[[Figure, pd.DataFrame], None]]] = (
    ("over_time", "Rates over time", "By the records' own timestamps.", _over_time),
    ("partitions", "Balance of partitions", "The line is the mean.", _balance),
    ("sizes", "Sizes of values", "In bytes, up to each power of two.", _sizes),
    ("keys", "Skew of keys", "The 50 most frequent keys.", _keys),
    ("lateness", "Late records", "How far a record lies behind the latest before it in its partition.", _lateness),
    ("compression", "Compressibility", "Of each partition's last records, in batches of 16 KiB.", _compression),
    ("lag", "Consumer lag", "Committed offsets of groups, against the ends of the partitions.", _lag),
)
