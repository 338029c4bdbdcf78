"""`format("kbroker")`: the columns and options of Spark's Kafka source, over the wire and from log directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import audit, columns, load, register, segments
from kbroker.pipeline.columns import Span
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.options import Options
from kbroker.pipeline.source import KbrokerSource, WirePart, WireStream
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from protocol.records.batch import unpack_header
from protocol.records.content import build_batch, parse_records
from tests.pipeline.given import KEEP, T0, fill, records


@pytest.fixture(autouse=True)
def _known(spark: Any) -> None:
    register(spark)


def wire(spark: Any, source: Source, topic: str, **options: str) -> Any:
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def connector(spark: Any, source: Source, topic: str, **options: str) -> Any:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def digested(frame: Any) -> Any:
    """Facts of a frame of the connector's columns."""
    return audit.facts(audit.digest(frame.selectExpr("*", "unix_millis(timestamp) as timestampMs"))).collect()


def rows(frame: Any) -> list[Any]:
    return sorted(((*row,) for row in frame.drop("headers").collect()), key=lambda row: (row[3], row[4]))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "startingOffsets": json.dumps({"TOPIC": {"0": 5, "1": -2}}),
            "endingOffsets": json.dumps({"TOPIC": {"0": 40, "1": -1}}),
        },
        {"startingTimestamp": str(T0 + 100_000)},
        {"startingTimestamp": str(T0), "endingTimestamp": str(T0 + 60_000)},
    ],
)
def test_it_reads_what_the_connector_reads(
    spark: Any, source: Source, cluster: Cluster, topic: str, options: dict[str, str]
) -> None:
    fill(cluster, topic, [records(300), records(200, 2)], codec_id=4)
    mine = {name: text.replace("TOPIC", topic) for name, text in options.items()}
    ours = wire(spark, source, topic, **mine).drop("timestampMs")
    assert rows(ours) == rows(connector(spark, source, topic, **mine))


def test_python_workers_speak_to_the_jvm_by_a_unix_socket(spark: Any) -> None:
    """Over TCP on the loopback, records of 1 KB took half as long again."""
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect()
    assert found == ["True"]


def test_headers_and_more_tasks_than_partitions(spark: Any, source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(300)])
    ours = wire(spark, source, topic, includeHeaders="true", minPartitions="4")
    assert digested(ours.drop("timestampMs")) == digested(connector(spark, source, topic, includeHeaders="true"))
    assert ours.rdd.getNumPartitions() == 4


def test_a_log_directory_holds_what_the_broker_serves(
    spark: Any, source: Source, cluster: Cluster, broker: Any, topic: str
) -> None:
    cluster.create(topic, 2, {**KEEP, "segment.bytes": "5000"})
    for seed in range(3):
        fill(cluster, topic, [records(300, seed), records(200, seed)], codec_id=seed)
    folder = broker.data
    disk = spark.read.format("kbroker").option("pushDownPredicate", "true").load(str(folder))
    disk = disk.where(f"topic = '{topic}'")
    assert rows(disk) == rows(wire(spark, source, topic))
    assert disk.rdd.getNumPartitions() > 2  # a task a segment, of this topic's alone


def test_where_nothing_is_wanted_there_are_no_rows(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Spark makes one task, of no part in particular, where a reader has none."""
    cluster.create(topic, 2)
    assert wire(spark, source, topic).collect() == []
    assert spark.read.format("kbroker").load(str(tmp_path)).collect() == []


@pytest.mark.parametrize(
    "option", ["assign", "subscribePattern", "startingOffsets", "endingTimestamp", "minPartitions"]
)
def test_an_option_that_a_log_directory_is_not_read_by_is_named(option: str, tmp_path: Path) -> None:
    given = {
        "path": str(tmp_path),
        "subscribe": "t",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    KbrokerSource(given).reader(None)
    with pytest.raises(PipelineError, match=f"^option {option} is not for log directories: "):
        KbrokerSource(given | {option: "1"}).reader(None)


def test_conditions_choose_segments_and_positions(cluster: Cluster, broker: Any, topic: str) -> None:
    cluster.create(topic, 1, {**KEEP, "segment.bytes": "5000", "index.interval.bytes": "100"})
    for seed in range(10):
        fill(cluster, topic, [records(100, seed)])
    folder = str(broker.data / f"{topic}-0")
    everything = segments.plan(folder, segments.Wanted(), committed=False)
    end = segments.plan(folder, segments.Wanted(start=950), committed=False)
    middle = segments.plan(folder, segments.Wanted(start=450, end=460), committed=False)
    assert len(everything) > 5
    assert (len(end), len(middle)) == (1, 1)
    found = [batch for each in middle for batch in segments.rows(each, headers=False)]
    assert [offset for batch in found for offset in batch.column("offset").to_pylist()] == list(range(450, 460))
    young = segments.plan(folder, segments.Wanted(since=T0 + 10**9), committed=False)
    assert len(young) == 1  # the active segment, whose index does not say so yet


def test_a_segment_that_is_read_whole_needs_no_index(tmp_path: Path) -> None:
    """The active one's is 10 MB, laid out in advance."""
    place = tmp_path / "t-0"
    (place / f"{0:020}.index").mkdir(parents=True)
    (place / f"{0:020}.log").write_bytes(build_batch(records(20)))
    (whole,) = segments.plan(str(tmp_path), segments.Wanted(), committed=False)
    assert whole.position == 0
    with pytest.raises(IsADirectoryError):  # as a part of it does
        segments.plan(str(tmp_path), segments.Wanted(start=5), committed=False)


def test_memory_is_used_again_once_its_rows_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BYTES", 1000)
    log = memoryview(b"".join(build_batch(records(first + 10)[first:]) for first in range(0, 200, 10)))
    span = columns.Span("t", 0, 0, 200)
    held = list(columns.decoded([log], span))
    assert [offset for batch in held for offset in batch["offset"].to_pylist()] == list(range(200))
    assert [value for batch in held for value in batch["value"].to_pylist()] == [each.value for each in records(200)]
    used = {batch["offset"].buffers()[1].address for batch in columns.decoded([log], span)}
    assert len(held) > 5
    assert len(used) == 2  # the next rows are read while the caller still has the last


def test_deleted_records_are_not_read_from_disk(tmp_path: Path) -> None:
    place = tmp_path / "t-0"
    place.mkdir()
    (place / f"{0:020}.log").write_bytes(build_batch(records(20)))
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 15\n")
    planned = segments.plan(str(tmp_path), segments.Wanted(), committed=False)
    offsets = [
        row for each in planned for batch in segments.rows(each, headers=False) for row in batch["offset"].to_pylist()
    ]
    assert offsets == [15, 16, 17, 18, 19]


def test_a_task_that_reads_a_segment_loads_no_pandas(tmp_path: Path) -> None:
    place = tmp_path / "t-0"
    place.mkdir()
    (place / f"{0:020}.log").write_bytes(build_batch(records(20)))
    code = (
        "import sys; from kbroker.pipeline import segments\n"
        "for each in segments.plan(sys.argv[1], segments.Wanted(), committed=False):\n"
        "    assert sum(rows.num_rows for rows in segments.rows(each, headers=False)) == 20\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_written_rows_keep_their_timestamps_and_their_keys_choose_partitions(
    spark: Any, source: Source, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, [records(300)])
    cluster.create(f"{topic}-out", 3, KEEP)
    columns = wire(spark, source, topic, includeHeaders="true").select("key", "value", "timestamp", "headers")
    writer = columns.write.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    writer.option("topic", f"{topic}-out").mode("append").save()
    theirs = connector(spark, source, f"{topic}-out")
    assert theirs.groupBy("key").agg({"partition": "count"}).count() == columns.select("key").distinct().count()
    keys = theirs.where("key is not null").select("key", "partition").distinct()
    assert keys.count() == keys.select("key").distinct().count()
    pair = ["key", "value", "timestamp"]
    assert theirs.select(pair).exceptAll(columns.select(pair)).count() == 0


def test_a_stream_reads_in_steps_and_goes_on_from_its_checkpoint(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300), records(300)])
    counts: list[int] = []

    def run() -> None:
        reader = spark.readStream.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
        stream = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        frame = stream.option("maxOffsetsPerTrigger", "400").load()
        writer = frame.writeStream.foreachBatch(lambda batch, number: counts.append(batch.count()))
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    run()
    fill(cluster, topic, [records(10), []])
    run()
    assert counts == [400, 200, 10]


def test_columns_that_are_not_asked_for_are_not_read(
    spark: Any, source: Source, cluster: Cluster, broker: Any, topic: str
) -> None:
    fill(cluster, topic, [records(300)])
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap).option("subscribe", topic)
    assert reader.schema("offset bigint, key binary").load().where("offset < 7").count() == 7
    (part,) = (few := KbrokerSource(given_of(source, topic)).reader(of_ddl("value binary, offset bigint"))).partitions()
    assert {tuple(batch.schema.names) for batch in few.read(part)} == {("value", "offset")}
    disk = spark.read.format("kbroker").schema("offset bigint").load(str(broker.data / f"{topic}-0"))
    assert (disk.columns, disk.count()) == (["offset"], 300)
    for ddl, why in (
        ("nosuch int", "there is no column 'nosuch'; there are: key, "),
        ("offset int", "column offset is big"),
        ("offset bigint, offset bigint", "column offset is named twice"),
        ("offset bigint not null", "column offset: leave NOT NULL out"),
    ):
        with pytest.raises(PipelineError, match=why):
            KbrokerSource(given_of(source, topic)).reader(of_ddl(ddl))


def given_of(source: Source, topic: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": source.bootstrap, "subscribe": topic, **options}


def of_ddl(ddl: str) -> Any:
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)


def test_a_condition_on_the_key_leaves_its_records_alone_on_the_way_to_spark(
    spark: Any, source: Source, cluster: Cluster, broker: Any, topic: str
) -> None:
    from pyspark.sql.datasource import EqualTo, In

    fill(cluster, topic, [records(300), records(200, 2)])
    every = [each for each in [*records(300), *records(200, 2)] if each.key == b"key-1"]
    condition = "key = cast('key-1' as binary)"
    assert wire(spark, source, topic, pushDownPredicate="true").where(condition).count() == len(every)
    for options in (given_of(source, topic), {"path": str(broker.data), "subscribe": topic}):
        reader = KbrokerSource(options | {"pushDownPredicate": "true"}).reader(None)
        list(reader.pushFilters([EqualTo(("key",), b"key-1"), In(("key",), (b"key-1", b"key-2"))]))
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in found) == len(every)


@pytest.mark.parametrize("place", ["the wire", "disk"])
def test_a_frame_that_is_used_with_several_conditions_has_the_rows_of_each(
    spark: Any, source: Source, cluster: Cluster, broker: Any, topic: str, place: str
) -> None:
    """Spark reads a frame by the last conditions that its source was told, wherever it is used."""
    fill(cluster, topic, [records(30), records(20, 2)])
    disk = spark.read.format("kbroker").option("subscribe", topic)
    frame = wire(spark, source, topic) if place == "the wire" else disk.load(str(broker.data))
    assert [frame.where("offset < 5").count(), frame.count()] == [10, 50]
    assert frame.where("partition = 0").union(frame.where("partition = 1")).count() == 50


def test_a_condition_on_keys_of_which_one_is_null_is_one(
    spark: Any, source: Source, cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, [records(30)])
    frame = wire(spark, source, topic, pushDownPredicate="true")
    wanted = sum(each.key in (b"key-1", b"key-2") for each in records(30))
    assert frame.where("key in (cast('key-1' as binary), null, cast('key-2' as binary))").count() == wanted > 0


def test_a_condition_on_time_begins_where_the_first_record_is_young_enough(
    spark: Any, source: Source, cluster: Cluster, topic: str
) -> None:
    from pyspark.sql.datasource import GreaterThanOrEqual

    fill(cluster, topic, [records(300), records(20)])
    since = T0 + 250_000

    def parts(moment: int) -> list[tuple[int, int, int]]:
        reader = KbrokerSource(given_of(source, topic, pushDownPredicate="true")).reader(None)
        list(reader.pushFilters([GreaterThanOrEqual(("timestampMs",), moment)]))
        return [each.span[1:] for each in reader.partitions() if isinstance(each, WirePart)]

    assert parts(since) == [(0, 250, 300)]
    assert parts(T0 + 10**9) == []
    assert parts(-1) == parts(0) == [(0, 0, 300), (1, 0, 20)]
    frame = wire(spark, source, topic, pushDownPredicate="true")
    assert frame.where(f"timestampMs >= {since}").count() == sum(each.timestamp >= since for each in records(300))


def test_tasks_have_no_more_records_than_is_said(source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(300), records(20)])
    reader = KbrokerSource(given_of(source, topic, maxRecordsPerPartition="100", minPartitions="2")).reader(None)
    found = [each.span[1:] for each in reader.partitions() if isinstance(each, WirePart)]
    assert found == [(0, 0, 100), (0, 100, 200), (0, 200, 300), (1, 0, 20)]


def test_a_stream_waits_for_enough_but_not_for_too_long(
    source: Source, cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("kbroker.pipeline.source.time.monotonic", lambda: now[0])
    fill(cluster, topic, [records(30)])
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": "20", "maxTriggerDelay": "10s"}
    stream = WireStream(Options(given_of(source, topic, **options)))
    read = stream.latestOffset(stream.initialOffset())
    assert read[topic]["0"] == 30
    fill(cluster, topic, [records(10)])
    assert stream.latestOffset(read) == read
    now[0] = 10.0
    assert stream.latestOffset(read)[topic]["0"] == 40
    assert stream.latestOffset(read) == read  # and then it waits again
    fill(cluster, topic, [records(10)])
    assert stream.latestOffset(read)[topic]["0"] == 50


@pytest.mark.parametrize(("text", "found"), [("15m", 900), ("500ms", 0.5), ("20", 0.02), ("2 h", 7200), ("1d", 86_400)])
def test_times_are_as_spark_writes_them(text: str, found: float) -> None:
    assert Options({"maxTriggerDelay": text}).seconds("maxTriggerDelay", "1s") == found


def test_a_batch_that_ends_without_its_start_known_tells_of_a_topic_made_again(
    source: Source, cluster: Cluster, topic: str
) -> None:
    """Spark before 4.2 does not say where a stream stands."""
    fill(cluster, topic, [records(30)])
    given = given_of(source, topic, startingOffsets="earliest")
    strict, lenient = (WireStream(Options({**given, "recreated": word})) for word in ("stop", "continue"))
    read = strict.latestOffset()
    fill(cluster, topic, [records(5)])
    assert [part.span[2:] for part in strict.partitions(read, strict.latestOffset())] == [(30, 35)]
    cluster.remove([topic])
    fill(cluster, topic, [records(10, 2)])
    with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made again since it was read"):
        strict.partitions(read, strict.latestOffset())
    assert [part.span[2:] for part in lenient.partitions(read, lenient.latestOffset())] == [(0, 10)]


def test_load_reads_what_the_data_source_reads(spark: Any, source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(300), []])
    cluster.create(f"{topic}-empty", 1)
    assert rows(load(spark, **given_of(source, topic))) == rows(wire(spark, source, topic))
    assert load(spark, **given_of(source, f"{topic}-empty")).collect() == []


def test_a_stream_tells_of_a_topic_that_was_made_anew(source: Source, cluster: Cluster, topic: str) -> None:
    given = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    strict, lenient = (WireStream(Options({**given, "failOnDataLoss": flag})) for flag in ("true", "false"))
    fill(cluster, topic, [records(30)])
    read = strict.latestOffset(strict.initialOffset())
    cluster.remove([topic])
    fill(cluster, topic, [records(10, 2)])
    with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made again since it was read"):
        strict.latestOffset(read)
    parts = lenient.partitions(read, lenient.latestOffset(read))
    assert [part.span for part in parts if isinstance(part, WirePart)] == [Span(topic, 0, 0, 10)]


def test_a_stream_writes_what_it_reads(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300), records(200, 2)])
    cluster.create(f"{topic}-out", 2, KEEP)
    reader = spark.readStream.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "maxOffsetsPerTrigger": "300",
    }
    columns = reader.options(**options).load().select("key", "value", "timestamp", "headers", "partition")
    writer = columns.writeStream.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    writer = writer.option("topic", f"{topic}-out").option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert audit.audit(spark, source, source, {topic: f"{topic}-out"})["differences"] == []


@pytest.fixture
def _topic_a(cluster: Cluster) -> None:
    if not cluster.has("a"):
        fill(cluster, "a", [records(10)])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "nobody"}, "topic nobody"),
        ({"subscribe": "a", "startingOffset": "earliest"}, "no option 'startingoffset'"),
        ({"subscribe": "a", "assign": "{}"}, "one of the options assign, subscribe, subscribePattern"),
        ({"subscribe": "a", "failOnDataLoss": "yes"}, "option failOnDataLoss: 'yes' is none of true, false"),
        (
            {"subscribe": "a", "kafka.isolation.level": "read_commited"},
            "'read_commited' is none of read_uncommitted, re",
        ),
        ({"assign": "a"}, "option assign: 'a': write {\"topic\": [0, 1]}"),
        ({"assign": '{"a": 0}'}, 'option assign: \'{"a": 0}\': write {"topic": [0, 1]}'),
        ({"subscribePattern": "*"}, "option subscribePattern: no regular expression: nothing to repeat"),
        ({"assign": '{"a": [0]}', "startingTimestamp": "noon"}, "option startingTimestamp: 'noon' is no number"),
        ({"assign": '{"a": [0]}', "startingOffsets": '{"a": 5}'}, 'option startingOffsets: write {"a": {"0": NUMBER}}'),
        (
            {"assign": '{"a": [0]}', "startingOffsetsByTimestamp": '{"a": {"0": "x"}}'},
            'option startingOffsetsByTimestamp: write {"a": {"0": NUMBER}}',
        ),
        (
            {"assign": '{"a": [0]}', "startingOffsetsByTimestamp": '{"a": {}}'},
            "option startingOffsetsByTimestamp says nothing of a-0",
        ),
        ({"subscribe": "a", "kafka.security.protocol": "SASL_SSL"}, "SASL_SSL wants sasl.mechanism: PLAIN, SCRAM"),
        ({"subscribe": " , "}, "option subscribe: no topic is named"),
        ({"subscribePattern": ""}, "option subscribePattern: no topic is named"),
        ({"assign": "{}"}, "option assign: no topic is named"),
        ({"assign": '{"a": [0, 1]}'}, "a has no partition 1: it has 1"),
        ({"assign": '{"a": [-1]}'}, "a has no partition -1: it has 1"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "option startingOffsets: a batch cannot have latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "option endingOffsets: a batch cannot have earliest"),
        (
            {"subscribe": "a", "startingOffsets": '{"a": {"0": -1}}'},
            "option startingOffsets: a has -1, which is latest",
        ),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, "option endingOffsets: a has -2, which is earliest"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "option startingOffsets: -3 is no offset"),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 0, "1": 0}}'}, "option startingOffsets: a-1 is not among"),
        (
            {"subscribe": "a", "endingOffsets": '{"a": {"0": 5}, "b": {"0": 5}}'},
            "option endingOffsets: b-0 is not among",
        ),
        (
            {"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": 5, "7": 5}}'},
            "option startingOffsetsByTimestamp: a-7 is not among what is read",
        ),
        (
            {"subscribe": "a", "startingOffsets": '{"a": {"0": 8}}', "endingOffsets": '{"a": {"0": 5}}'},
            "a-0 would be read from 8, beyond 5 where that ends",
        ),
        ({"subscribe": "a", "startingOffsets": '{"a": {"0": 80}}'}, "a-0 would be read from 80, beyond 10"),
        ({"subscribe": "a", "endingOffsets": '{"a": {"0": 80}}'}, "a-0 ends at 10, before 80"),
        ({"subscribe": "a", "maxRecordsPerPartition": "0"}, "option maxRecordsPerPartition: it is 1 at least"),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: 'soon' is no time: write 30s"),
        (
            {"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "option minOffsetsPerTrigger: 5 is more than maxOffsetsPerTrigger, 4",
        ),
        ({"subscribe": "a", "minPartitions": "0"}, "option minPartitions: it is 1 at least"),
        ({"subscribe": "a", "minPartitions": "-1"}, "option minPartitions: '-1' is no number"),
        (
            {"subscribe": "a", "kafka.isolation.levl": "read_committed"},
            "option kafka.isolation.levl: Kafka's clients have no such setting; is it isolation.level?",
        ),
        ({"subscribe": "a", "kafka.auto.offset.reset": "earliest"}, "option kafka.auto.offset.reset is not taken"),
        ({"subscribe": "a", "kafka.enable.auto.commit": "true"}, "option kafka.enable.auto.commit is not taken"),
        ({"subscribe": "a", "kafka.value.deserializer": "x"}, "option kafka.value.deserializer is not taken"),
    ],
)
@pytest.mark.usefixtures("_topic_a")
def test_a_bad_option_is_one_line(spark: Any, source: Source, options: dict[str, str], line: str) -> None:
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        reader.options(**options).load().count()
    assert line in explain(caught.value)
    assert "\n" not in explain(caught.value)


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(option: str) -> None:
    with pytest.raises(PipelineError, match=f"^option {option}: a stream has no end"):
        KbrokerSource({"subscribe": "a", option: "5"}).streamReader(None)


def written(spark: Any, source: Source, sql: str, **options: str) -> None:
    writer = spark.sql(sql).write.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    writer.options(**options).mode("append").save()


def test_rows_without_a_key_go_to_all_partitions(spark: Any, source: Source, cluster: Cluster, topic: str) -> None:
    cluster.create(topic, 4, KEEP)
    rows = spark.range(0, 1605, 1, 8).selectExpr("cast(id as string) as value")
    rows.write.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap).option("topic", topic).mode(
        "append"
    ).save()
    ends = [end.end for end in cluster.ends([topic]).values()]
    assert sum(ends) == 1605
    assert max(ends) - min(ends) <= 8


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ("'v' as value, 7 as partition", "has no partition 7, as a row's column `partition` has it: it has 1"),
        ("'v' as value, -1 as partition", "has no partition -1"),
        ("5 as value", "column value is int: it has to be binary or string"),
        ("'v' as value, 5 as key", "column key is int: it has to be binary or string"),
        ("'v' as value, 5L as partition", "column partition is bigint: it has to be int"),
        ("'v' as value, array(named_struct('key', cast(null as string), 'value', X'00')) as headers", "has no key"),
        ("'v' as value, array(named_struct('key', 'k', 'value', X'00'), null) as headers", "a header is null"),
        ("'v' as value, array('k') as headers", "column headers is array<string>: it has to be array<struct<key"),
    ],
)
def test_a_row_that_can_be_no_record_is_one_line_at_once(
    spark: Any, source: Source, cluster: Cluster, topic: str, columns: str, line: str
) -> None:
    cluster.create(topic, 1, KEEP)
    begun_s = time.monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        written(spark, source, f"select {columns}", topic=topic)
    assert line in explain(caught.value)
    assert "\n" not in explain(caught.value)
    assert time.monotonic() - begun_s < 50  # of the minute that a broker may be away
    assert cluster.ends([topic])[topic, 0].end == 0


def test_a_row_without_a_topic_is_told(spark: Any, source: Source) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        written(spark, source, "select 'v' as value, cast(null as string) as topic")
    assert "a row has no topic" in explain(caught.value)


def test_names_of_headers_that_are_no_text_come_back_as_they_were(
    spark: Any, source: Source, cluster: Cluster, topic: str
) -> None:
    odd = ((b"\xff\xfe", b"1"), (b"", None), ("\u00e9".encode(), b"2"), (b"\xc3", b""))
    fill(
        cluster, topic, [[Record(0, T0, b"k", b"v", odd), Record(1, T0, b"k", b"v", ()), Record(2, T0, None, b"", odd)]]
    )
    cluster.create(f"{topic}-out", 1, KEEP)
    rows = wire(spark, source, topic, includeHeaders="true").drop("topic")
    writer = rows.write.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    writer.option("topic", f"{topic}-out").mode("append").save()
    found = memoryview(cluster.fetch((f"{topic}-out", 0), 0).records)
    assert [each.headers for each in parse_records(found, 0, unpack_header(found, 0))] == [odd, (), odd]
    assert audit.audit(spark, source, source, {topic: f"{topic}-out"})["equal"]
