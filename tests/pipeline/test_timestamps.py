"""Timestamps that no calendar has: kept as they are, and nothing ends by them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import archive, audit, compact_check, profile, register, replay
from kbroker.pipeline.columns import FIRST_MS, LAST_MS
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.report import write_report
from kbroker.pipeline.session import setting
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from tests.pipeline.given import T0, fill, frame

MICROS, NANOS, LONG_MAX = 1000 * T0, 1_000_000 * T0, 2**63 - 1
ODD = [-1, 0, T0 // 1000, FIRST_MS - 1, FIRST_MS, LAST_MS, LAST_MS + 1, MICROS, NANOS, 9_223_372_036_854_776, LONG_MAX]
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(LONG_MAX)}


def odd_records() -> list[Record]:
    """A sound one, then one of each."""
    return [Record(index, ms, b"k%d" % index, b"v", ()) for index, ms in enumerate([T0, *ODD])]


@pytest.fixture
def odd(cluster: Cluster, topic: str) -> str:
    """A topic with all of them."""
    cluster.create(topic, 1, ANY_TIME)
    fill(cluster, topic, [odd_records()])
    return topic


def test_the_source_keeps_them_in_a_column_of_their_own(spark: Any, source: Source, broker: Any, odd: str) -> None:
    register(spark)
    wire = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap).option("subscribe", odd)
    for rows in (wire.load(), spark.read.format("kbroker").load(str(broker.data)).where(f"topic = '{odd}'")):
        found = [(row.timestampMs, row.timestamp) for row in rows.orderBy("offset").collect()]
        assert [ms for ms, _ in found] == [T0, *ODD]
        assert [ms for ms, time in found if time is None] == [ms for ms in ODD if not FIRST_MS <= ms <= LAST_MS]
        assert found[0][1].astimezone(UTC) == datetime.fromtimestamp(T0 / 1000, UTC)


def test_the_source_writes_them_as_they_are(spark: Any, source: Source, cluster: Cluster, odd: str) -> None:
    register(spark)
    cluster.create(f"{odd}-out", 1, ANY_TIME)
    wire = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    rows = wire.option("subscribe", odd).load().drop("topic")
    writer = rows.write.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    writer.option("topic", f"{odd}-out").mode("append").save()
    assert audit.audit(spark, source, source, {odd: f"{odd}-out"})["equal"]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_condition_on_a_time_that_has_no_datetime_is_one(spark: Any, source: Source, odd: str, zone: str) -> None:
    register(spark)
    wire = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap).option("subscribe", odd)
    wire = wire.option("pushDownPredicate", "true")
    known = [ms for ms in ODD if FIRST_MS <= ms <= LAST_MS]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert wire.load().where("timestamp > timestamp'0001-01-01'").count() == 1 + len(known)
        assert wire.load().where("timestamp > timestamp'9999-12-31 23:59:59'").count() == 0
        assert wire.load().where(f"timestampMs >= {MICROS}").count() == 4
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_an_archive_keeps_them_and_a_replay_brings_them_back(
    spark: Any, source: Source, cluster: Cluster, odd: str, tmp_path: Path
) -> None:
    assert archive.archive(spark, source, [odd], str(tmp_path), until_now=True)["records"] == 1 + len(ODD)
    assert audit.audit(spark, str(tmp_path), source, {odd: odd})["equal"]
    cluster.create(f"{odd}-copy", 1, ANY_TIME)
    replay.replay(spark, source, str(tmp_path), topics={odd: f"{odd}-copy"})
    assert audit.audit(spark, source, source, {odd: f"{odd}-copy"})["equal"]
    replay.replay(spark, source, str(tmp_path), topics={odd: f"{odd}-since"}, since=T0, until=LAST_MS)
    assert cluster.ends([f"{odd}-since"])[f"{odd}-since", 0].end == 1
    table = spark.read.parquet(str(tmp_path / f"topic={odd}"))
    assert table.where("date is null").count() == sum(not FIRST_MS <= ms <= LAST_MS for ms in ODD)


def test_the_date_of_an_archive_is_that_of_utc_in_any_session(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [[Record(index, ms, b"k", b"v", ()) for index, ms in enumerate([-1, 0, T0])]])
    with setting(spark, "spark.sql.session.timeZone", "Asia/Tokyo"):
        archive.archive(spark, source, [topic], str(tmp_path), until_now=True)
    found = spark.read.parquet(str(tmp_path / f"topic={topic}")).orderBy("offset").selectExpr("cast(date as string)")
    assert [row.date for row in found.collect()] == ["1969-12-31", "1970-01-01", "2023-11-14"]


def test_a_profile_says_how_many_are_odd_and_when_they_may_be_meant_for(
    spark: Any, source: Source, odd: str, tmp_path: Path
) -> None:
    tables = profile.profile(spark, source, [odd])
    summary = write_report(tables, str(tmp_path / "report.html"), source.bootstrap)
    assert summary["topics"][odd]["odd_timestamps"] == len(ODD)
    moment = "2023-11-14 22:13:20"
    found = {row.odd: (row.records, row.first_ms, row.first_time) for row in tables["timestamps"].collect()}
    assert found == {
        "none": (1, -1, None),
        "in seconds": (2, 0, "1970-01-01 00:00:00"),
        "before 1970": (2, FIRST_MS - 1, None),
        "in microseconds": (1, MICROS, moment),
        "in nanoseconds": (1, NANOS, moment),
        "in the future": (4, LAST_MS, "9999-12-30 23:59:59"),
    }
    assert moment in (tmp_path / "report.html").read_text()
    assert [row.time.astimezone(UTC).isoformat(" ")[:19] for row in tables["over_time"].collect()] == [moment]


def test_a_topic_of_which_no_timestamp_can_be_true_is_profiled(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 1, ANY_TIME)
    fill(cluster, topic, [[Record(index, NANOS + index, b"k", b"v", ()) for index in range(10)]])
    summary = write_report(profile.profile(spark, source, [topic]), str(tmp_path / "report.html"), source.bootstrap)
    assert (summary["topics"][topic]["odd_timestamps"], summary["topics"][topic]["records_per_s"]) == (10, "-")


def test_retention_does_not_count_from_a_time_that_cannot_be_true(spark: Any) -> None:
    minute = 60_000
    rows = [("t", 0, index, ms, b"k", b"v") for index, ms in enumerate([T0, T0 + minute, T0 + 2 * minute, MICROS])]
    slim = profile.slim(frame(spark, rows))
    assert [row.records for row in compact_check.retained(slim, minute).collect()] == [3]


def test_a_record_with_an_odd_timestamp_makes_no_other_late(spark: Any) -> None:
    rows = [("t", 0, index, ms, b"k", b"v") for index, ms in enumerate([T0, LONG_MAX, T0 + 1, -5, T0 + 2])]
    found = profile.lateness(profile.slim(frame(spark, rows))).collect()
    assert [(row.up_to_s, row.records) for row in found] == [(0, 3)]
