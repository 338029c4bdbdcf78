"""Times as people write them."""

from __future__ import annotations

import os
import time

import pytest
from kafka import KafkaProducer

from kbroker.cli._times import time_ms
from tests.cli.asking import Ask

HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("text", "ago_ms"),
    [("-1h", HOUR_MS), ("-90m", 90 * 60_000), ("-2d12h", 60 * HOUR_MS), ("-1w1d1h1m1s", 8 * 24 * HOUR_MS + 3_661_000)],
)
def test_so_long_ago(text: str, ago_ms: int) -> None:
    before = int(time.time() * 1000)
    found = time_ms(text)
    assert found is not None
    assert before - ago_ms <= found <= int(time.time() * 1000) - ago_ms


def test_a_date_is_of_the_local_zone_where_it_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert time_ms("1970-01-02T09:00") == time_ms("1970-01-02T00:00Z") == 24 * HOUR_MS
        assert time_ms("1970-01-02T01:00:00.5+01:00") == 24 * HOUR_MS + 500
        assert time_ms("1970-01-03") == 39 * HOUR_MS
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["-1", "5", "20261125", "-", "-h", "-1y", "1h", "2026-13-01", "2026-11-25T25:00", "now"]
)
def test_what_is_no_time(text: str) -> None:
    assert time_ms(text) is None


def test_what_is_older_than_time_is_the_beginning() -> None:
    assert time_ms("-99999w") == time_ms("1901-01-01") == 0


@pytest.mark.parametrize(
    ("where", "values"), [("-1h", ["new"]), ("2001-01-01", ["new"]), ("1999-01-01", ["old", "new"])]
)
def test_consuming_begins_at_a_time(ask: Ask, where: str, values: list[str]) -> None:
    if "of-times" not in ask("topics", "--list")[1].split():
        producer = KafkaProducer(bootstrap_servers=os.environ["KBROKER_BOOTSTRAP_SERVER"])
        producer.send("of-times", b"old", timestamp_ms=946_684_800_000)  # 2000
        producer.close()
        ask("produce", "-t", "of-times", stdin=b"new\n")
    assert ask("consume", "of-times", "-o", where, "-e")[1].split() == values
