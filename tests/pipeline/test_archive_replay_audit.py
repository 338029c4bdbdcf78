"""Topics to an archive, an archive to topics, and the audit of both: end to end, and each transform by itself."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from kafka import KafkaProducer
from pyspark.sql import functions as f

from kbroker import testing
from kbroker.pipeline import archive, audit, files, kafka, manifests, profile, ranges, replay, write
from kbroker.pipeline.columns import Producer, encoded
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.hashing import murmur2
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster
from kbroker.pipeline.write import Task, written
from protocol.records import Record
from tests.pipeline.given import KEEP, T0, fill, frame, records


def archived(spark: Any, source: Source, topic: str, folder: Path, **given: Any) -> Any:
    return archive.archive(spark, source, [topic], str(folder), until_now=True, **given)


def equal(spark: Any, left: Any, right: Any, topic: str, copy: str) -> bool:
    return bool(audit.audit(spark, left, right, {topic: copy})["equal"])


def test_what_is_archived_and_replayed_is_what_there_was(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    for codec_id in range(5):  # each codec in turn, into the same partitions
        fill(cluster, topic, [records(300, seed) for seed in range(2)], codec_id)
    archived(spark, source, topic, tmp_path / "archive")
    replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"}, codec="zstd")
    found = audit.audit(spark, source, source, {topic: f"{topic}-copy"})
    assert (found["equal"], found["records_left"], found["records_right"]) == (True, 3000, 3000)


def test_an_archive_goes_on_where_it_stopped_and_compaction_changes_nothing(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(200)])
    archived(spark, source, topic, tmp_path / "archive")
    fill(cluster, topic, [records(100)])
    assert archived(spark, source, topic, tmp_path / "archive")["records"] == 100
    compaction = archive.compact_files(spark, str(tmp_path / "archive"))
    assert compaction["files_after"] < compaction["files_before"]
    assert equal(spark, str(tmp_path / "archive"), source, topic, topic)


def parquet(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def test_a_compaction_that_was_cut_off_before_it_removed_anything_is_finished(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(200)])
    archived(spark, source, topic, tmp_path)
    delete = Storage.delete
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "delete", lambda store, name: delete(store, name) if "_spark" in name else None)
        archive.compact_files(spark, str(tmp_path))
    assert archive.read(spark, str(tmp_path)).count() == 200
    archived(spark, source, topic, tmp_path)
    assert parquet(tmp_path) == set(files.names(Storage(spark, str(tmp_path))))


def test_files_of_a_batch_that_was_cut_off_before_its_manifest_are_not_there_and_are_removed(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(200)])
    archived(spark, source, topic, tmp_path)
    there = parquet(tmp_path)
    fill(cluster, topic, [records(100)])
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "close", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            archived(spark, source, topic, tmp_path)
    assert parquet(tmp_path) > there
    assert archive.read(spark, str(tmp_path)).count() == 200
    assert archived(spark, source, topic, tmp_path)["records"] == 100
    assert equal(spark, str(tmp_path), source, topic, topic)
    assert parquet(tmp_path) == set(files.names(Storage(spark, str(tmp_path))))


def test_many_manifests_are_read_in_one_go(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(20)])
    archived(spark, source, topic, tmp_path)
    fill(cluster, topic, [records(30)])
    archived(spark, source, topic, tmp_path)
    store = Storage(spark, str(tmp_path))
    one_by_one = manifests.counting(store)
    monkeypatch.setattr("kbroker.pipeline.storage.MANY", 2)
    monkeypatch.setattr(Storage, "read_json", None)
    assert manifests.counting(store) == one_by_one


def test_an_archive_up_to_now_that_is_stopped_before_is_not_taken_for_done(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    fill(cluster, topic, [records(100)])
    with monkeypatch.context() as patch:
        patch.setattr(archive, "write_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            archived(spark, source, topic, tmp_path / "archive")
    archived(spark, source, topic, tmp_path / "archive")
    assert archive.read(spark, str(tmp_path / "archive")).count() == 100


def test_values_that_do_not_decode_are_set_apart_and_replayed_all_the_same(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    broken = [each._replace(value=b"\xff{") if each.offset % 10 == 5 else each for each in records(100)]
    sound = [each._replace(value=b"{}") if each.value == b"" else each for each in broken]
    fill(cluster, topic, [sound])
    found = archived(spark, source, topic, tmp_path / "archive", values="json")
    assert (found["records"], found["quarantined"]) == (100, 10)
    assert archive.read(spark, str(tmp_path / "archive"), quarantined=False).count() == 90
    assert equal(spark, str(tmp_path / "archive"), source, topic, topic)


def test_avro_values_become_json_and_what_is_none_is_set_apart(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    schema = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}

    def avro(number: int) -> bytes:
        content = io.BytesIO()
        fastavro.schemaless_writer(content, schema, {"id": number})
        return content.getvalue()

    values = [avro(1000), avro(-1), None, b"\xff" * 20, avro(7) + b"more"]
    fill(cluster, topic, [[Record(index, T0, b"k", value, ()) for index, value in enumerate(values)]])
    found = archived(spark, source, topic, tmp_path / "archive", values="avro", schema=json.dumps(schema))
    assert (found["records"], found["quarantined"]) == (5, 2)
    table = spark.read.parquet(str(tmp_path / "archive" / f"topic={topic}")).orderBy("offset")
    assert [row.value_json for row in table.collect()] == ['{"id": 1000}', '{"id": -1}', None]
    assert equal(spark, str(tmp_path / "archive"), source, topic, topic)


def test_a_replay_keeps_to_its_rate(spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, [records(600)])
    archived(spark, source, topic, tmp_path / "archive")
    begun = time.monotonic()
    replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"}, rate=300)
    assert time.monotonic() - begun > 1.8  # 600 at 300 a second, the last tenth of a second's being sent at once


def test_a_replay_that_is_started_again_writes_what_is_missing(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300), records(200, 2)])
    archived(spark, source, topic, tmp_path / "archive")
    names, folder = {topic: f"{topic}-copy"}, str(tmp_path / "archive")
    assert replay.replay(spark, source, folder, topics=names)["written"] == 500
    fill(cluster, topic, [records(40, 3), []])
    archived(spark, source, topic, tmp_path / "archive")
    assert replay.replay(spark, source, folder, topics=names)["written"] == 40
    assert equal(spark, source, source, topic, f"{topic}-copy")


def test_a_replay_goes_on_with_a_topic_that_was_empty(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(30)])
    fill(cluster, f"{topic}-late", [[]])
    names, folder = {topic: f"{topic}-copy", f"{topic}-late": f"{topic}-late-copy"}, str(tmp_path / "archive")
    archive.archive(spark, source, list(names), folder, until_now=True)
    assert replay.replay(spark, source, folder, topics=names)["written"] == 30
    fill(cluster, f"{topic}-late", [records(20)])
    archive.archive(spark, source, list(names), folder, until_now=True)
    assert replay.replay(spark, source, folder, topics=names)["written"] == 20


def test_a_replay_finds_out_that_somebody_else_has_written(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(100)])
    archived(spark, source, topic, tmp_path / "archive")
    replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"})
    fill(cluster, f"{topic}-copy", [records(1)])
    with pytest.raises(Exception, match="that this job did not write"):
        replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"})


def test_a_replay_by_time_and_key(spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, [records(300)])
    archived(spark, source, topic, tmp_path / "archive")
    (tmp_path / "keys").write_text("key-1\nkey-2\n")
    window = {"since": T0 + 50_000, "until": T0 + 250_000}
    name = f"{topic}-part"
    replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: name}, keys=str(tmp_path / "keys"), **window)
    wanted = [
        each
        for each in records(300)
        if each.key in (b"key-1", b"key-2") and window["since"] <= each.timestamp < window["until"]
    ]
    assert cluster.ends([name])[name, 0].end == len(wanted) > 0


def test_one_partition_is_replayed_by_tasks_that_have_a_range_each(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "RECORDS", 100)
    fill(cluster, topic, [records(1000), records(30, 2)])
    archived(spark, source, topic, tmp_path)
    frame = archive.read(spark, str(tmp_path))
    rows = replay.by_range(frame, replay.in_ranges(frame)).select(
        f.spark_partition_id().alias("task"), "partition", "offset"
    )
    placed = [(row.task, row.partition, row.offset) for row in rows.collect()]
    assert placed == sorted(placed)
    assert {task for task, partition, _ in placed if partition == 0} == set(range(10))
    names = {topic: f"{topic}-copy"}
    assert replay.replay(spark, source, str(tmp_path), topics=names)["written"] == 1030
    assert replay.replay(spark, source, str(tmp_path), topics=names)["written"] == 0
    assert audit.audit(spark, source, source, names)["equal"]


@pytest.mark.parametrize("there", [137, 100, 1000])  # in the middle of a batch, at its end, all
def test_what_a_task_had_written_is_passed_over_wherever_it_ended(
    spark: Any, source: Source, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    monkeypatch.setattr(ranges, "RECORDS", 100)
    fill(cluster, topic, [records(1000)])
    copy = f"{topic}-copy"
    cluster.create(copy, 1, KEEP)
    rows = kafka.read(spark, source, cluster.ends([topic])).withColumn("generation", f.lit(0))
    task = Task(source.settings, cluster.producer(), {(copy, 0): 0})
    for some, new in ((rows.where(f"offset < {there}"), there), (rows, 1000 - there)):
        ordered = replay.by_range(some, replay.in_ranges(some))
        found = written(replay.renamed_topics(ordered, {topic: copy}), task).collect()
        assert sum(row.appended for row in found) == new
    assert [(row.source_offset, row.target_offset, row.records) for row in found] == [(0, 0, 1000)]
    assert audit.audit(spark, source, source, {topic: copy})["equal"]


def test_what_was_written_of_a_topic_of_gaps_is_told_on_the_way(
    cluster: Cluster, source: Source, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that kept it to the end would want memory for each gap."""
    monkeypatch.setattr(write, "_MANY", 2)
    cluster.create(topic, 1, KEEP)
    task = Task(source.settings, cluster.producer(), {(topic, 0): 0})
    sent = []

    def batches() -> Iterator[tuple[list[int], bytes]]:
        for number in range(5):  # of two records each, a gap before each record
            sent.append(number)
            yield [4 * number, 1, 4 * number + 2, 1], bytes(encoded([Record(index, T0, b"", b"") for index in (0, 1)]))

    told = [(len(sent), rows.num_rows) for rows in write._Writer(cluster, task, (topic, 0)).write(batches())]
    assert told == [(2, 3), (4, 4), (5, 2), (5, 1)]
    assert cluster.ends([topic])[topic, 0].end == 10


def test_re_keyed_records_lie_where_kafkas_producer_puts_them(spark: Any, source: Source) -> None:
    assert [murmur2(each) for each in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        (-973932308) & 0xFFFFFFFF,
        (-790332482) & 0xFFFFFFFF,
        (-985981536) & 0xFFFFFFFF,
    ]
    rows = [("t", 0, index, T0, b"k%d" % (index % 5), None) for index in range(20)]
    placed = replay.by_key(frame(spark, rows), {"t": 4}).select("partition", "key", "offset").collect()
    assert {row.key: row.partition for row in placed} == {
        key: (murmur2(key) & 0x7FFFFFFF) % 4 for key in (b"k0", b"k1", b"k2", b"k3", b"k4")
    }


def test_re_keyed_records_of_a_partition_keep_their_order_even_if_late(spark: Any) -> None:
    times = [0, 5000, 1000, 6000, 2000]
    rows = [("t", 0, index, T0 + ms, b"k", b"%d" % index) for index, ms in enumerate(times)]
    placed = replay.by_key(frame(spark, rows), {"t": 3}).collect()
    assert [row.offset for row in placed] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("job", ["replay", "replay --rekey", "compact-check"])
def test_no_row_goes_to_a_python_worker_with_null_for_headers(spark: Any, source: Source, job: str) -> None:
    """Of 20,000 such rows in a batch each took 140 us: see kafka.with_headers."""
    rows = frame(spark, [("t", 0, 0, T0, b"k", None)])
    if job == "replay":
        made = written(rows, Task(source.settings, Producer(1, 0), {("t", 0): 0}))
    else:
        made = replay.by_key(rows, {"t": 1}) if job == "replay --rekey" else profile.measured(rows, 1)
    plan = made._jdf.queryExecution().analyzed().toString().splitlines()
    calls = [at for at, line in enumerate(plan) if "MapInArrow" in line]
    assert "coalesce(headers" in plan[calls[-1] + 1], plan


# ---- the audit


def differences(spark: Any, left: list[Any], right: list[Any]) -> list[tuple[Any, ...]]:
    sides = [audit.digest(frame(spark, rows)) for rows in (left, right)]
    rows = audit.differences(*sides).orderBy("kind", "first").collect()
    return [(row.kind, row["first"], row["last"]) for row in rows]


def some(*offsets: int) -> list[Any]:
    return [("t", 0, offset, T0, b"k", b"value %d" % offset) for offset in offsets]


def test_the_audit_tells_what_is_missing_extra_and_changed(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = [(*each[:5], b"other") if each[2] == 7 else each for each in some(0, 1, 4, 5, 6, 7)]
    extra = [("t", 0, 8, T0, b"k", b"new")]
    for size in (ranges.RECORDS, 3):  # the second has a run that lies in two ranges
        monkeypatch.setattr(ranges, "RECORDS", size)
        assert differences(spark, some(*range(8)), changed + extra) == [
            ("changed", 7, 7),
            ("extra", 8, 8),
            ("missing", 2, 3),
        ]


def test_the_audit_tells_what_has_moved(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = [(*a[:2], b[2], *a[3:]) for a, b in zip(some(0, 2, 1, 3), some(0, 1, 2, 3), strict=True)]
    for size in (ranges.RECORDS, 1):  # the whole partition in one range, and several
        monkeypatch.setattr(ranges, "RECORDS", size)
        assert differences(spark, some(0, 1, 2, 3), swapped) == [("moved", 2, 2)]


def test_a_copy_without_the_gaps_is_equal(spark: Any) -> None:
    rows = some(0, 5, 9)
    packed = [(*row[:2], index, *row[3:]) for index, row in enumerate(rows)]
    facts = [audit.facts(audit.digest(frame(spark, each))).collect()[0] for each in (rows, packed)]
    assert facts[0].checksum == facts[1].checksum
    assert (facts[0].gaps, facts[0].missing, facts[1].gaps) == (2, 7, 0)


def test_facts_of_ranges_of_offsets_are_those_of_the_whole(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame(spark, some(0, 1, 2, 3, 4, 4, 9, 10, 11, 30)).withColumn("generation", f.expr("int(offset > 9)"))
    whole = audit.facts(audit.digest(rows)).collect()
    monkeypatch.setattr(ranges, "RECORDS", 3)
    assert audit.facts(audit.digest(rows)).collect() == whole
    assert (whole[0].gaps, whole[0].missing, whole[0].duplicates) == (2, 22, 1)


def test_the_same_records_in_another_order_are_not_equal(spark: Any) -> None:
    rows = some(0, 1)
    turned = [(*a[:2], b[2], *a[3:]) for a, b in zip(rows, rows[::-1], strict=True)]
    facts = [audit.facts(audit.digest(frame(spark, each))).collect()[0] for each in (rows, turned)]
    assert facts[0].checksum != facts[1].checksum


def test_a_null_is_not_an_empty_value(spark: Any) -> None:
    rows = [[("t", 0, 0, T0, b"k", value)] for value in (None, b"")]
    digests = [audit.digest(frame(spark, each)).collect()[0].digest for each in rows]
    assert digests[0] != digests[1]


# ---- bad input


def test_a_log_directory_with_a_transaction_that_is_open_is_equal_to_its_cluster(
    spark: Any, source: Source, cluster: Cluster, broker: Any, topic: str
) -> None:
    cluster.create(topic, 1, {**KEEP, "segment.bytes": "5000"})
    fill(cluster, topic, [records(300)])
    producer = KafkaProducer(bootstrap_servers=source.bootstrap, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open").get(60)
    fill(cluster, topic, [records(300, 2)])  # some segments behind the one where it began
    found = audit.audit(spark, source, str(broker.data), {topic: topic})
    producer.abort_transaction()
    producer.close()
    assert (found["equal"], found["records_left"], found["records_right"]) == (True, 300, 300)


def test_a_topic_that_neither_log_directory_has_is_not_equal_on_both(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / f"{0:020}.log").write_bytes(encoded([Record(0, T0, b"k", b"v")]))
    assert audit.audit(spark, str(tmp_path), str(tmp_path), {"orders": "orders"})["records_left"] == 1
    with pytest.raises(PipelineError, match="has no topic 'ordres'; it has: orders"):
        audit.audit(spark, str(tmp_path), str(tmp_path), {"ordres": "ordres"})


def test_two_topics_are_not_replayed_into_one(spark: Any, source: Source, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="a and b cannot both be c"):
        replay.replay(spark, source, str(tmp_path), topics={"a": "c", "b": "c"})


def test_a_missing_topic_is_one_line(spark: Any, source: Source, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has no topic 'nobody'"):
        archived(spark, source, "nobody", tmp_path / "archive")
    assert not (tmp_path / "archive").exists()


def test_a_damaged_file_of_an_archive_is_named(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(50)])
    archived(spark, source, topic, tmp_path / "archive")
    victim = next((tmp_path / "archive" / f"topic={topic}").rglob("*.parquet"))
    victim.write_bytes(b"no parquet at all")
    (victim.parent / f".{victim.name}.crc").unlink(missing_ok=True)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark raises
        replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"})
    assert f"{victim} is damaged" in explain(caught.value)
    victim.unlink()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        archive.read(spark, str(tmp_path / "archive"))
    assert f"{victim} is missing" in explain(caught.value)
    manifest = next((tmp_path / "archive" / "_manifest").glob("batch-*.json"))
    manifest.write_text('{"number": 0, "fi')
    with pytest.raises(PipelineError, match=rf"{manifest} is damaged"):  # its checksum is of what it was
        archive.read(spark, str(tmp_path / "archive"))
    (manifest.parent / f".{manifest.name}.crc").unlink()
    with pytest.raises(PipelineError, match=rf"{manifest} is damaged"):
        archive.read(spark, str(tmp_path / "archive"))
    assert not cluster.has(f"{topic}-copy")


def test_records_that_aged_out_before_they_were_archived_are_told(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    fill(cluster, topic, [records(100)])
    archived(spark, source, topic, tmp_path / "archive")
    fill(cluster, topic, [records(100)])
    admin = KafkaAdminClient(bootstrap_servers=source.bootstrap)
    admin.delete_records({TopicPartition(topic, 0): 150})
    admin.close()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        archived(spark, source, topic, tmp_path / "archive")
    assert "--allow-gaps" in explain(caught.value)
    assert archived(spark, source, topic, tmp_path / "archive", allow_gaps=True)["records"] == 50


def test_a_broker_that_died_is_told_and_the_job_goes_on_when_it_is_back(spark: Any, tmp_path: Path) -> None:
    with testing.broker() as mortal:
        source = Source(mortal.bootstrap)
        with Cluster(source.settings) as cluster:
            fill(cluster, "t", [records(100)])
        archived(spark, source, "t", tmp_path / "archive")
        mortal.kill()
        with pytest.raises(PipelineError, match="no broker answers at"):
            archived(spark, source, "t", tmp_path / "archive")
        mortal.start()
        with Cluster(source.settings) as cluster:
            fill(cluster, "t", [records(50)])
        assert archived(spark, source, "t", tmp_path / "archive")["records"] == 50
