"""What a report draws, without Spark."""

from __future__ import annotations

import pandas as pd
from matplotlib.dates import date2num
from matplotlib.figure import Figure

from kbroker.pipeline.report import ALONE, _over_time

MOMENT = pd.Timestamp("2026-01-02 03:04:05")


def drawn(times: list[pd.Timestamp]) -> Figure:
    figure = Figure()
    _over_time(figure, pd.DataFrame({"topic": "t", "time": times, "records_per_s": 10.0, "bytes_per_s": 1000.0}))
    return figure


def test_a_topic_that_was_written_at_once_shows_a_point_in_its_minute() -> None:
    axes = drawn([MOMENT]).axes
    assert [each.lines[0].get_marker() for each in axes] == ["o", "o"]
    assert [each.get_xlim() for each in axes] == [(date2num(MOMENT - ALONE), date2num(MOMENT + ALONE))] * 2


def test_what_was_written_over_time_is_a_line() -> None:
    axes = drawn([MOMENT, MOMENT + ALONE]).axes
    assert [(each.lines[0].get_marker(), len(each.lines[0].get_xdata())) for each in axes] == [("None", 2)] * 2
