"""The page of `profile`: HTML that needs no server and no network, charts and all, and the numbers as Parquet beside.

Called on the driver with tables that are small by then: aggregates, never records. `charts.py` draws.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import TimestampType

from kbroker.pipeline.charts import CHARTS
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage import files_as_they_are

Summary = dict[str, Any]
NOTHING = "-"
"""What a cell shows that has nothing to show."""
_CSS = """body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#222}
h1{font-size:1.6em}h2{margin-top:2em;border-bottom:1px solid #ddd;font-size:1.2em}
div.wide{overflow-x:auto;font-size:.85em}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}td,th{padding:.25em .8em;text-align:right;
border-bottom:1px solid #eee;white-space:nowrap}th{background:#f6f6f6}td:first-child,th:first-child{text-align:left;
min-width:9em;max-width:24em;white-space:normal;overflow-wrap:anywhere}
p.note{color:#666}"""
_ODD = (
    "They cannot be true, and count in no time above. Times are what they may be meant for, in UTC; partition and "
    "offset are those of the first."
)

_SCHEMAS = (
    "Those of keys and values, as a schema registry has them; without an id: records that are not framed. Times are "
    "UTC; partition and offset are those of the first and the last record by time."
)


def write_report(tables: Mapping[str, DataFrame], file: str, where: str, now: datetime | None = None) -> Summary:
    """Write FILE.html, and beside it FILE-files/ with the tables. where: the cluster's name in the title.

    now: when it is made. Returns: the summary, by topic. Raises OSError.
    """
    page = Path(file)
    beside = _beside(page)
    beside.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.write.mode("overwrite").parquet(str(beside / f"{name}.parquet"))
    spark = next(iter(tables.values())).sparkSession
    small = {name: _small(files_as_they_are(spark).parquet(str(beside / f"{name}.parquet"))) for name in tables}
    page.write_text(page_of(small, where, now or datetime.now(UTC)))
    topics = summary_of(small).set_index("topic").to_dict("index")
    return {"job": "profile", "report": str(page), "topics": topics}


def _small(table: DataFrame) -> pd.DataFrame:
    """A table on the driver, its times in UTC whatever the session's zone is."""
    times = [field.name for field in table.schema.fields if isinstance(field.dataType, TimestampType)]
    found = table.withColumns({name: f.unix_millis(name) for name in times}).toPandas() if times else table.toPandas()
    for name in times:
        found[name] = pd.to_datetime(found[name], unit="ms", utc=True)
    return found


def page_of(tables: Mapping[str, pd.DataFrame], where: str, now: datetime) -> str:
    """The page."""
    title = f"Topics of {html.escape(where)}"
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_CSS}</style>"]
    parts.append(f"<script>{get_plotlyjs()}</script><h1>{title}</h1>")
    parts.append(f"<p class=note>Made {_moment(now)}. {_span(tables['partitions'])}</p>")
    parts.append(_table(summary_of(tables)))
    for name, (heading, note, draw) in CHARTS.items():
        parts.append(f"<h2>{heading}</h2>")
        drawn = draw(tables[name])
        if isinstance(drawn, str):
            parts.append(f"<p>{drawn}</p>")
        else:
            chart = drawn.to_html(full_html=False, include_plotlyjs=False, div_id=name, config={"displaylogo": False})
            parts.append(f"<p class=note>{note}</p>{chart}")
    if len(odd := tables["timestamps"]):
        parts.append(f"<h2>Odd timestamps</h2><p class=note>{_ODD}</p>{_table(odd.sort_values(['topic', 'odd']))}")
    if len(found := tables["schemas"]):
        whole = found.astype({"schema_id": "Int64", "version": "Int64"})  # some have none
        in_order = whole.sort_values(["topic", "side", "first_time", "schema_id"])
        parts.append(f"<h2>Schemas</h2><p class=note>{_SCHEMAS}</p>{_table(in_order)}")
    parts.append(
        "<h2>Partitions</h2><p class=note>Times are UTC.</p>" + _table(_shown_partitions(tables["partitions"]))
    )
    return "\n".join(parts) + "</html>\n"


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def _span(partitions: pd.DataFrame) -> str:
    first, last = partitions["first_time"].min(), partitions["last_time"].max()
    if pd.isna(first):
        return "No record has a timestamp that can be true."
    return f"Records are of {_moment(first)} to {_moment(last)}, by their own timestamps."


def check_writable(file: str) -> None:
    """Raises PipelineError where a report cannot be written. Leaves the folders that it needs, and no file."""
    page = Path(file)
    try:
        _beside(page).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=page.parent), tempfile.TemporaryFile(dir=_beside(page)):
            if page.exists():
                page.open("a").close()
    except OSError as error:
        raise PipelineError(f"the report {file} cannot be written: {error.strerror or error}") from None


def _beside(page: Path) -> Path:
    """The folder of a report's tables: its whole name, for Hadoop takes a colon in another for a file system's."""
    return page.absolute().with_name(f"{page.stem}-files")


def summary_of(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each topic: the numbers that a reader asks for first."""
    rows = []
    for topic, each in tables["partitions"].groupby("topic"):
        records = int(each.records.sum())
        late, keys, lags = (_of(tables[name], topic) for name in ("lateness", "keys", "lag"))
        packed = _of(tables["compression"], topic)
        best: Any = packed.loc[packed.after.idxmin()] if len(packed) else None
        span = each.last_time.max() - each.first_time.min()  # none where all timestamps are odd
        rows.append(
            {
                "topic": topic,
                "records": records,
                "bytes": int(each["bytes"].sum()),
                "records_per_s": NOTHING if pd.isna(span) else round(records / max(span.total_seconds(), 1), 1),
                "busiest_partition": f"{each.records.max() / each.records.mean():.2f}x the mean",
                "null_keys": int(each.null_keys.sum()),
                "null_values": int(each.null_values.sum()),
                "odd_timestamps": int(each.odd_timestamps.sum()),
                "keys": int(keys.distinct_keys.max()) if len(keys) else 0,
                "top_key": f"{100 * keys.share.max():.1f} %" if len(keys) else NOTHING,
                "late": f"{100 * late[late.up_to_s != 0].records.sum() / records:.2f} %" if len(late) else NOTHING,
                "smallest_codec": f"{best.codec}, {100 * best.after / best.before:.0f} %" if len(packed) else NOTHING,
                "largest_lag": int(lags.lag.max()) if len(lags) else NOTHING,
            }
        )
    return pd.DataFrame(rows)


def _of(table: pd.DataFrame, topic: Any) -> pd.DataFrame:
    return table[table.topic == topic]


def _shown_partitions(table: pd.DataFrame) -> pd.DataFrame:
    shown = table.sort_values(["topic", "partition"]).copy()
    quantiles = shown.pop("value_bytes_p50_p90_p99_max")
    shown["value bytes p50 / p90 / p99 / max"] = [
        " / ".join(f"{int(each):,}" for each in cell) if cell is not None and len(cell) else None for cell in quantiles
    ]
    return shown


def _table(rows: pd.DataFrame) -> str:
    heads = "".join(f"<th>{html.escape(str(name).replace('_', ' '))}" for name in rows.columns)
    body = "".join("<tr>" + "".join(f"<td>{_cell(each)}" for each in row) for row in rows.itertuples(index=False))
    return f"<div class=wide><table><tr>{heads}{body}</table></div>"


def _cell(value: Any) -> str:
    if value is None or pd.isna(value):
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return html.escape(f"{value:,.1f}" if isinstance(value, float) else str(value)) or NOTHING
