"""What a profile and a compaction check say, and logs of old formats rewritten."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.log.tools.verify import verify
from kbroker.pipeline import audit, compact_check, convert, kafka, profile, ranges, register
from kbroker.pipeline.charts import CHARTS
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.report import write_report
from kbroker.pipeline.wire import Cluster
from kbroker.runtime.files import SystemDisk
from protocol.records import Record, legacy
from tests.pipeline.given import T0, fill, frame, records

MINUTE = 60_000


def some(*rows: tuple[int, int, bytes | None, bytes | None]) -> list[Any]:
    return [("t", 0, offset, T0 + ms, key, value) for offset, ms, key, value in rows]


def table(made: Any, *names: str) -> list[Any]:
    return sorted(tuple(row[name] for name in names) for row in made.collect())


def test_lateness_is_measured_against_the_latest_before(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = some(
        (0, 0, None, b""), (1, 10_000, None, b""), (2, 9_500, None, b""), (3, 10_000, None, b""), (4, 0, None, b"")
    )
    for size in (ranges.RECORDS, 2, 1):  # the whole partition in one range, and several
        monkeypatch.setattr(ranges, "RECORDS", size)
        found = profile.lateness(profile.slim(frame(spark, rows)))
        assert table(found, "up_to_s", "records", "worst_ms") == [(0, 3, 0), (1, 1, 500), (60, 1, 10_000)]


def test_a_time_without_records_has_a_rate_of_0(spark: Any) -> None:
    rows = some((0, 0, None, b"abcd"), (1, 1000, None, b"abcd"), (2, 40_000, None, b"ab"))
    found = profile.over_time(profile.slim(frame(spark, rows)), 10)
    assert [row[1:] for row in table(found, "time", "records_per_s", "bytes_per_s")] == [
        (0.2, 0.8),
        (0.0, 0.0),
        (0.0, 0.0),
        (0.0, 0.0),
        (0.1, 0.2),
    ]


def test_sizes_are_counted_by_powers_of_two(spark: Any) -> None:
    values = [None, b"", b"x", b"x" * 2, b"x" * 3, b"x" * 4, b"x" * 5]
    rows = some(*((index, 0, b"k", value) for index, value in enumerate(values)))
    found = profile.sizes(profile.by_size(profile.slim(frame(spark, rows))))
    assert table(found, "up_to", "records") == [(-1, 1), (0, 1), (1, 1), (2, 1), (4, 2), (8, 1)]


def test_keys_are_ranked_by_their_share(spark: Any) -> None:
    rows = some(*((index, 0, key, b"") for index, key in enumerate([b"a", b"b", b"a", None, b"a"])))
    found = profile.keys(profile.slim(frame(spark, rows)))
    assert table(found, "rank", "key", "records", "share", "distinct_keys") == [
        (1, "a", 3, 0.75, 2),
        (2, "b", 1, 0.25, 2),
    ]


def test_long_keys_that_begin_alike_are_keys_of_their_own(spark: Any) -> None:
    rows = some(*((index, 0, b"x" * 64 + tail, b"") for index, tail in enumerate([b"a", b"b", b"a", b""])))
    found = profile.keys(profile.slim(frame(spark, rows)))
    assert table(found, "rank", "records", "distinct_keys") == [(1, 2, 3), (2, 1, 3), (3, 1, 3)]


def test_a_topic_of_which_nothing_was_committed_has_nothing_to_profile(spark: Any, source: Source, topic: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=source.bootstrap, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"x").get(60)
    producer.abort_transaction()
    producer.close()
    with pytest.raises(PipelineError, match=f"{topic}: no records, nothing to profile"):
        profile.profile(spark, source, [topic])


def test_a_report_has_every_plot_and_the_numbers(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(500), records(100)])
    cluster.commit(f"g-{topic}", {(topic, 0): 100})
    summary = write_report(profile.profile(spark, source, [topic]), str(tmp_path / "report.html"), source.bootstrap)
    assert summary["topics"][topic]["records"] == 600
    assert summary["topics"][topic]["largest_lag"] == 400
    beside = tmp_path / "report-files"
    assert {path.stem for path in beside.glob("*.parquet")} == set(profile.TABLES)
    assert (tmp_path / "report.html").read_text().count("plotly-graph-div") == len(CHARTS)


def test_tasks_that_read_sizes_alone_and_whole_records_make_the_same_tables(
    spark: Any, source: Source, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(300), records(40, seed=2)])
    whole = profile.slim(kafka.read(spark, source, cluster.ends([topic])))
    monkeypatch.setattr(kafka, "_parts", partial(kafka._parts, size=70))
    found = profile.profile(spark, source, [topic])
    counted = profile.by_size(whole)
    made = {"partitions": profile.partitions(counted), "sizes": profile.sizes(counted), "keys": profile.keys(whole)}
    made["lateness"] = profile.lateness(whole)
    for name, of_whole in made.items():
        assert sorted(found[name].collect(), key=str) == sorted(of_whole.collect(), key=str), name
    late = table(found["lateness"], "up_to_s", "records", "worst_ms")
    assert late[-1][2] > 3_500_000  # seen across ranges, too


def test_compaction_keeps_the_last_of_each_key_and_no_tombstone(spark: Any) -> None:
    rows = some((0, 0, b"a", b"old"), (1, 0, b"b", b"1"), (2, 0, b"a", b"new"), (3, 0, b"b", None), (4, 0, None, b"?"))
    found = compact_check.compacted(profile.slim(frame(spark, rows)))
    assert table(found, "records", "bytes") == [(2, len(b"anew") + 1)]


def test_retention_counts_from_the_newest_record(spark: Any) -> None:
    rows = some((0, 0, None, b"x"), (1, MINUTE, None, b"x"), (2, 2 * MINUTE, None, b"x"))
    assert table(compact_check.retained(profile.slim(frame(spark, rows)), MINUTE), "records") == [(2,)]


def test_a_change_that_leaves_nothing_saves_all(spark: Any, source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [[Record(index, T0, b"k", None, ()) for index in range(5)]])
    found = compact_check.compact_check(spark, source, [topic])["topics"][topic]["changes"]
    assert found[0] == {"change": "cleanup.policy=compact", "records": 0, "bytes": 0, "saves": "100.0 %"}


def test_a_codec_saves_on_what_repeats(spark: Any, source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [[Record(index, T0, b"k", b"again and " * 50) for index in range(200)]])
    found = compact_check.compact_check(spark, source, [topic])["topics"][topic]["changes"]
    saves = {each["change"]: float(each["saves"].removesuffix(" %")) for each in found}
    assert saves["compression.type=zstd"] > 80
    assert saves["format v1"] < 0 < saves["cleanup.policy=compact"]


# ---- convert


def old_log(folder: Path, magic: int, contents: list[bytes | bytearray]) -> Path:
    place = folder / f"v{magic}-0"
    place.mkdir(parents=True)
    (folder / "meta.properties").write_text("version=0\nbroker.id=1\n")
    (place / f"{0:020}.log").write_bytes(b"".join(contents))
    return folder


def plain(records_: list[Record]) -> list[Record]:
    return [each._replace(headers=()) for each in records_]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec_id", [0, 1, 2, 3])
def test_old_messages_become_batches_with_the_same_records(
    spark: Any, tmp_path: Path, magic: int, codec_id: int
) -> None:
    given = plain(records(300))
    sets = [legacy.build_set(given[at : at + 50], magic, codec_id=codec_id) for at in range(0, 300, 50)]
    old = old_log(tmp_path / "old", magic, sets)
    done = convert.convert(spark, str(old), str(tmp_path / "new"))
    assert (done["segments"], done["records"]) == (1, 300)
    compared = audit.audit(spark, str(old), str(tmp_path / "new"), {f"v{magic}": f"v{magic}"})
    assert (compared["equal"], compared["records_left"]) == (True, 300)
    register(spark)
    offsets = spark.read.format("kbroker").load(str(tmp_path / "new")).select("offset").collect()
    assert sorted(row.offset for row in offsets) == list(range(300))
    findings = [each for each in verify(SystemDisk(), [str(tmp_path / "new")], deep=True) if hasattr(each, "level")]
    assert [str(each) for each in findings if each.level == "fault"] == []


def test_a_damaged_message_is_named(spark: Any, tmp_path: Path) -> None:
    content = bytearray(legacy.build_set(plain(records(10)), 1))
    content[20] ^= 1  # of the first message's timestamp
    old = old_log(tmp_path / "old", 1, [content])
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        convert.convert(spark, str(old), str(tmp_path / "new"))
    assert "00000000000000000000.log: position 0" in explain(caught.value)
    assert not list((tmp_path / "new").rglob("*.log"))


@pytest.mark.parametrize("size", [b"\x7f\xff\xff\xff", bytes(4)])
def test_a_segment_that_ends_early_is_an_end_only_if_it_is_the_last(spark: Any, tmp_path: Path, size: bytes) -> None:
    content = bytearray(legacy.build_set(plain(records(10)), 1))
    second = len(legacy.build_set(plain(records(1)), 1))
    content[second + 8 : second + 12] = size
    old = old_log(tmp_path / "old", 1, [content])
    assert convert.convert(spark, str(old), str(tmp_path / "torn"))["records"] == 1
    (old / "v1-0" / f"{10:020}.log").write_bytes(legacy.build_set([Record(10, T0, b"k", b"v", ())], 1))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        convert.convert(spark, str(old), str(tmp_path / "new"))
    assert f"00000000000000000000.log: position {second}: " in explain(caught.value)


def test_a_folder_without_partitions_is_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with pytest.raises(PipelineError, match="it is no log directory"):
        convert.convert(spark, str(tmp_path / "old"), str(tmp_path / "new"))
