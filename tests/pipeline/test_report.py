"""What a report shows, without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kbroker.pipeline import charts
from kbroker.pipeline.charts import ALONE
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.report import check_writable, page_of

MOMENT = pd.Timestamp("2026-01-02 03:04:05", tz="UTC")


def rates(times: list[pd.Timestamp]) -> pd.DataFrame:
    return pd.DataFrame({"topic": "t", "time": times, "records_per_s": 10.0, "bytes_per_s": 1000.0})


def tables(**given: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Those of a topic with one partition, and nothing else to show."""
    one: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "records": 2,
        "bytes": 20,
        "first_offset": 0,
        "last_offset": 1,
        "first_time": MOMENT,
        "last_time": MOMENT + ALONE,
        "odd_timestamps": 0,
        "null_keys": 2,
        "null_values": 2,
        "with_headers": 0,
        "value_bytes_p50_p90_p99_max": None,
    }
    empty = {
        "over_time": ["topic", "time", "records_per_s", "bytes_per_s"],
        "sizes": ["topic", "up_to", "records"],
        "keys": ["topic", "key", "records", "rank", "share", "distinct_keys"],
        "lateness": ["topic", "up_to_s", "records", "worst_ms"],
        "compression": ["topic", "codec", "before", "after"],
        "lag": ["group", "topic", "partition", "committed", "lag"],
        "schemas": ["topic", "side", "schema_id", "subject", "version", "first_time"],
        "timestamps": ["topic", "odd", "records", "first_ms", "last_ms", "first_time", "last_time"],
    }
    made = {name: pd.DataFrame(columns=columns) for name, columns in empty.items()}
    sizes = pd.DataFrame({"topic": ["t"], "up_to": [-1], "records": [2]})
    return {**made, "partitions": pd.DataFrame([one]), "sizes": sizes, **given}


def test_a_topic_that_was_written_at_once_shows_a_point_in_its_minute() -> None:
    figure = charts.over_time(rates([MOMENT]))
    assert {each.mode for each in figure.data} == {"markers"}
    assert list(figure.layout.xaxis.range) == [MOMENT - ALONE, MOMENT + ALONE]


def test_what_was_written_over_time_is_a_line_along_an_axis_that_says_its_zone() -> None:
    figure = charts.over_time(rates([MOMENT, MOMENT + ALONE]))
    assert [(each.mode, len(each.x)) for each in figure.data] == [("lines", 2)] * 2
    assert (figure.layout.xaxis.title.text, figure.layout.xaxis.type) == ("time (UTC)", "date")


def test_where_there_is_nothing_to_draw_there_is_a_sentence() -> None:
    page = page_of(tables(), "b:1", datetime(2026, 1, 3, tzinfo=UTC))
    for said in (
        "No record has a timestamp that can be true.",
        "No record has a key.",
        "No record is late.",
        "There are no records whose compressibility could be tried.",
        "No consumer group has committed an offset of these topics.",
    ):
        assert f"<p>{said}</p>" in page
    assert page.count("plotly-graph-div") == 2  # balance, sizes


def test_a_page_says_when_it_was_made_and_over_what_span() -> None:
    page = page_of(tables(), "b:1", datetime(2026, 1, 3, 4, 5, 6, tzinfo=UTC))
    assert "Made 2026-01-03 04:05:06 UTC. Records are of 2026-01-02 03:04:05 UTC to 2026-01-02 03:05:05 UTC" in page


def test_a_cell_without_anything_is_a_dash() -> None:
    page = page_of(tables(), "b:1", datetime(2026, 1, 3, tzinfo=UTC))
    shown = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<td>(<|None|nan|NaT)", shown)
    assert shown.count("<td>-") == 5  # top key, late, smallest codec, largest lag, quantiles


def test_many_topics_and_long_names_leave_the_plots_their_room() -> None:
    names = [f"a-name-that-begins-as-others-do-{number:02}" for number in range(20)]
    figure = charts.over_time(pd.concat([rates([MOMENT]).assign(topic=name) for name in names]))
    assert figure.layout.legend.orientation != "h"  # beside the plots: it is as high as there are topics
    assert {each.name for each in figure.data} == {f"a-name-that-…thers-do-{number:02}" for number in range(20)}


def test_marks_of_html_in_a_key_are_text() -> None:
    key = "</script><script>alert(1)</script>"
    row = {"topic": "t", "key": key, "records": 2, "rank": 1, "share": 1.0, "distinct_keys": 1}
    figure = charts.keys(pd.DataFrame([row]))
    assert (
        figure.data[0].text[0] == figure.data[1].hovertext[0] == "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"
    )
    page = page_of(tables(keys=pd.DataFrame([row])), "b:1", datetime(2026, 1, 3, tzinfo=UTC))
    assert "<script>alert" not in page


def test_a_page_asks_no_network() -> None:
    page = page_of(tables(over_time=rates([MOMENT])), "b:1", datetime(2026, 1, 3, tzinfo=UTC))
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=", page)


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new" / "report.html"))
    assert not (tmp_path / "new" / "report.html").exists()
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=f"^the report {tmp_path}/file/report.html cannot be written: "):
        check_writable(str(tmp_path / "file" / "report.html"))
