"""Archives in Iceberg's and Delta's tables: exactly once, read by others' readers, kept in order by the formats.

Iceberg has no release for Spark 4.2 yet: its cases run in a session on 4.1, which test_spark_4_1.py starts. In
scripts/test Delta's run there too; on 4.2 test_object_stores.py has a table of Delta's.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyspark
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from compat_tests import apicurio
from compat_tests.waiting import eventually
from kbroker.pipeline import archive, audit, compact_check, lease, manifests, profile, replay, tables
from kbroker.pipeline.archive import Kind
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.registry import Access, Registry
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from tests.pipeline.given import T0, fill, records
from tests.pipeline.test_decoders import avro_bytes, framed, record
from tests.pipeline.test_lease import elsewhere

ON_4_1 = pyspark.__version__.startswith("4.1.")


@pytest.fixture(params=["delta", *(["iceberg"] if ON_4_1 else [])])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def archived(spark: Any, source: Source, topic: str, folder: Path, form: str, **given: Any) -> Any:
    kind = Kind(form, **given.pop("kind", {}))
    return archive.archive(spark, source, [topic], str(folder), until_now=True, kind=kind, **given)


def equal(spark: Any, left: Any, right: Any, topic: str, copy: str) -> bool:
    return bool(audit.audit(spark, left, right, {topic: copy})["equal"])


def by_delta_rs(folder: Path) -> list[dict[str, Any]]:
    return DeltaTable(str(folder / "records")).to_pyarrow_table().to_pylist()


def by_pyiceberg(folder: Path) -> list[dict[str, Any]]:
    newest = max((folder / "records" / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:-14]))
    return StaticTable.from_metadata(str(newest)).scan().to_arrow().to_pylist()


def by_duckdb(folder: Path, form: str) -> list[dict[str, Any]]:
    """With the extension that pip has brought: DuckDB itself would fetch it."""
    session = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    package = __import__(f"duckdb_extension_{form}")
    (binary,) = Path(package.__path__[0]).rglob(f"{form}.duckdb_extension")
    if form == "iceberg":
        (avro,) = Path(__import__("duckdb_extension_avro").__path__[0]).rglob("avro.duckdb_extension")
        session.load_extension(str(avro))
    session.load_extension(str(binary))
    return session.sql(f"SELECT * FROM {form}_scan('{folder / 'records'}')").to_arrow_table().to_pylist()


def content(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((row["partition"], row["offset"], row["timestampMs"], row["key"], row["value"]) for row in rows)


def test_what_is_archived_is_read_by_others_and_by_the_jobs(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    given = [records(300), [each._replace(value=b"{}") for each in records(200, 2)]]
    given[0][7] = given[0][7]._replace(value=b"\xff")
    fill(cluster, topic, given)
    found = archived(spark, source, topic, tmp_path, form, values="text")
    assert (found["records"], found["quarantined"]) == (500, 1)
    expected = sorted(
        (partition, index, each.timestamp, each.key, each.value)
        for partition, content in enumerate(given)
        for index, each in enumerate(content)
        if each.value != b"\xff"
    )
    read = [by_duckdb(tmp_path, form), by_delta_rs(tmp_path) if form == "delta" else by_pyiceberg(tmp_path)]
    for rows in read:
        assert content(rows) == expected
    assert {row["value_text"] for row in read[0]} >= {"{}", None}
    folder = str(tmp_path)
    assert equal(spark, folder, source, topic, topic)
    assert replay.replay(spark, source, folder, topics={topic: f"{topic}-copy"})["written"] == 500
    assert audit.audit(spark, source, source, {topic: f"{topic}-copy"})["equal"]
    assert compact_check.compact_check(spark, folder, [topic])["topics"][topic]["records"] == 500
    rows = profile.profile(spark, folder, [topic])
    assert rows["partitions"].selectExpr("sum(records)").first()[0] == 500
    assert rows["compression"].selectExpr("min(before)").first()[0] > 0


def test_an_archive_goes_on_compacts_and_lets_go_of_old_versions(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    for count in (100, 50, 70):
        fill(cluster, topic, [records(count)])
        assert archived(spark, source, topic, tmp_path, form)["records"] == count
    assert archived(spark, source, topic, tmp_path, form)["batches"] == 0
    compaction = archive.compact_files(spark, str(tmp_path))
    assert compaction["files_after"] < compaction["files_before"]
    archive.expire(spark, str(tmp_path), 7)
    fill(cluster, topic, [records(10)])
    assert archived(spark, source, topic, tmp_path, form)["records"] == 10
    assert equal(spark, str(tmp_path), source, topic, topic)


def test_a_batch_that_one_table_has_is_finished_in_the_other(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [[Record(index, T0, b"k", b"\xff" if index % 10 else b"", ()) for index in range(100)]])
    append = tables.Table.append

    def once(table: Any, rows: Any, batch: int) -> bool:
        assert table.name.strip("`").endswith("records"), "cut off"
        return append(table, rows, batch)

    with monkeypatch.context() as patch:
        patch.setattr(tables.Table, "append", once)
        with pytest.raises(AssertionError, match="cut off"):
            archived(spark, source, topic, tmp_path, form, values="text")
    assert archive.read(spark, str(tmp_path)).count() == 10
    found = archived(spark, source, topic, tmp_path, form, values="text")
    assert (found["records"], found["quarantined"]) == (100, 90)
    assert equal(spark, str(tmp_path), source, topic, topic)


def test_a_batch_that_is_there_is_known_without_the_snapshot_that_brought_it(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in (40, 30):
        fill(cluster, topic, [records(count)])
        with monkeypatch.context() as patch:
            patch.setattr(manifests, "close", manifests.close if count == 40 else lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError) if count == 30 else pytest.MonkeyPatch.context():
                archived(spark, source, topic, tmp_path, form)
    store = Storage(spark, str(tmp_path))
    for table in tables.Tables(store, manifests.described(store))._tables.values():
        table.compact()
        if form == "iceberg":
            table._call("expire_snapshots", "older_than => current_timestamp(), retain_last => 1")
    assert archived(spark, source, topic, tmp_path, form)["records"] == 30
    assert equal(spark, str(tmp_path), source, topic, topic)


LATE = {"delta": (tables.Delta, "_write"), "iceberg": (tables.Iceberg, "_call")}
"""The last step of a commit."""


@pytest.mark.parametrize("at", ["its first step", "its last step"])
def test_a_job_that_stood_still_while_another_brought_its_batch_adds_nothing(
    spark: Any,
    source: Source,
    cluster: Cluster,
    topic: str,
    tmp_path: Path,
    form: str,
    at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other one took it for dead, as one of another machine does, and wrote the same batch and more."""
    fill(cluster, topic, [records(50)])
    monkeypatch.setattr(lease, "BEAT_S", 10.0**6)
    of, name = (tables.Table, "append") if at == "its first step" else LATE[form]
    step = getattr(of, name)

    def late(*given: Any) -> Any:
        monkeypatch.setattr(of, name, step)
        fill(cluster, topic, [records(20)])
        with elsewhere(monkeypatch):
            assert archived(spark, source, topic, tmp_path, form)["records"] == 70
        return step(*given)

    monkeypatch.setattr(of, name, late)
    with pytest.raises(PipelineError, match="was taken over by another job"):
        archived(spark, source, topic, tmp_path, form)
    assert archive.read(spark, str(tmp_path)).count() == 70
    assert equal(spark, str(tmp_path), source, topic, topic)


DRIVER = """
import os, signal, sys
from kbroker.pipeline import archive, jars, manifests, session
from kbroker.pipeline.kafka import Source
bootstrap, topic, folder, form, jar_files, when = sys.argv[1:]
small = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
small["spark.databricks.delta.snapshotPartitions"] = "1"
spark = session.start("local[1]", conf={**small, "spark.jars": jar_files, **jars.of_formats(jar_files)})
if when == "committed":
    manifests.close = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
archive.archive(spark, Source(bootstrap), [topic], folder, until_now=True, kind=archive.Kind(form))
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["written", "committed"])
def test_a_driver_that_is_killed_between_writing_and_closing_repeats_and_loses_nothing(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str, when: str
) -> None:
    fill(cluster, topic, [records(60)])
    archived(spark, source, topic, tmp_path, form)
    there = len(list(tmp_path.rglob("*.parquet")))
    fill(cluster, topic, [records(40)])
    words = [source.bootstrap, topic, str(tmp_path), form, spark.conf.get("spark.jars"), when]
    job = subprocess.Popen([sys.executable, "-c", DRIVER, *words], stderr=subprocess.PIPE, text=True)
    try:
        if when == "written":  # a task has made its file; the commit may or may not have come before this
            eventually(lambda: len(list(tmp_path.rglob("*.parquet"))) > there or job.poll() is not None, 250)
            job.kill()
        said = job.communicate(timeout=250)[1]
    finally:
        job.kill()
    assert job.returncode == -signal.SIGKILL, said[-2000:]
    assert archived(spark, source, topic, tmp_path, form)["records"] == 40
    assert archive.read(spark, str(tmp_path)).count() == 100
    assert equal(spark, str(tmp_path), source, topic, topic)


def test_a_schema_grows_and_what_is_there_stays(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    def put(*values: str) -> None:
        fill(cluster, topic, [[Record(index, T0, b"k", each.encode(), ()) for index, each in enumerate(values)]])

    put('{"id": 1, "at": {"x": 1}}')
    archived(spark, source, topic, tmp_path, form, values="json", schema="id int, at struct<x: int>")
    put('{"id": 5000000000, "at": {"x": 2, "y": [{"z": 3}]}, "name": "b"}')
    wider = "id bigint, at struct<y: array<struct<z: int>>>, name string"
    found = archived(spark, source, topic, tmp_path, form, values="json", schema=wider)
    assert found["quarantined"] == 0
    assert found["schema"] == "id bigint, at struct<x:int,y:array<struct<z:int>>>, name string"
    store = Storage(spark, str(tmp_path))
    frame = tables.Tables(store, manifests.described(store))._tables["records"].frame()
    rows = [json.loads(row[0]) for row in frame.orderBy("offset").selectExpr("to_json(value_json)").collect()]
    assert rows == [
        {"id": 1, "at": {"x": 1}},
        {"id": 5000000000, "at": {"x": 2, "y": [{"z": 3}]}, "name": "b"},
    ]
    with pytest.raises(PipelineError, match="makes id a string, and it is a bigint"):
        archived(spark, source, topic, tmp_path, form, values="json", schema="id string")


def test_a_registrys_columns_grow_while_a_topic_is_made_again_and_some_stamp_nanoseconds(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    from confluent_kafka.schema_registry import Schema

    shapes = [record(n="long"), record(n="long", who="string")]
    shapes[1]["fields"][1]["default"] = "-"
    with apicurio.registry() as url:
        registry = Registry(Access(url))
        ids = [registry._client.register_schema(f"{topic}-value", Schema(json.dumps(each), "AVRO")) for each in shapes]

        def put(schema: int, **more: str) -> None:
            value = avro_bytes(shapes[schema], {"n": T0, **more})
            stamped = [(T0, ids[schema]), (T0 * 10**6, ids[schema]), (T0, 9999)]
            rows = [Record(at, ms, b"k", framed(number, value), ()) for at, (ms, number) in enumerate(stamped)]
            fill(cluster, topic, [rows])

        def taken() -> tuple[int, int]:
            given = {"values": "registry", "registry": Registry(Access(url)), "recreated": "continue"}
            found = archived(spark, source, topic, tmp_path, form, **given)
            return found["records"], found["quarantined"]

        put(0)
        assert taken() == (3, 1)
        put(1, who="x")
        assert taken() == (3, 1)
        cluster.remove([topic])
        put(1, who="y")
        assert taken() == (3, 1)
    rows = by_delta_rs(tmp_path) if form == "delta" else by_pyiceberg(tmp_path)
    rows.sort(key=lambda row: (row["generation"], row["offset"]))
    assert [(row["generation"], row["offset"], row["timestampMs"], row["value_data"]["who"]) for row in rows] == [
        (0, 0, T0, None), (0, 1, T0 * 10**6, None), (0, 3, T0, "x"), (0, 4, T0 * 10**6, "x"),
        (1, 0, T0, "y"), (1, 1, T0 * 10**6, "y"),
    ]  # fmt: skip
    assert all((row["timestamp"] is None) == (row["timestampMs"] != T0) for row in rows)
    assert {row["value_schema"] for row in rows} == {*ids}
    assert archive.read(spark, str(tmp_path)).count() == 9


def partitions_of(folder: Path) -> set[str]:
    return {str(path.parent.relative_to(folder)) for path in folder.rglob("*.parquet")}


def test_a_table_is_partitioned_as_its_user_wants(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    fill(cluster, topic, [records(20), records(20)])
    archived(spark, source, topic, tmp_path / "own", form)
    wish = ["hours(timestamp)", "bucket(4, key)"] if form == "iceberg" else ["partition", "date"]
    archived(spark, source, topic, tmp_path / "wished", form, kind={"partition_by": wish})
    if form == "iceberg":
        assert partitions_of(tmp_path / "own" / "records" / "data") == {f"topic={topic}/timestamp_day=2023-11-14"}
        assert all(
            each.startswith("timestamp_hour=2023-11-14-22/key_bucket=")
            for each in partitions_of(tmp_path / "wished" / "records" / "data")
        )
    else:
        assert partitions_of(tmp_path / "own" / "records") == {f"topic={topic}/date=2023-11-14"}
        assert partitions_of(tmp_path / "wished" / "records") == {
            f"partition={index}/date=2023-11-14" for index in range(2)
        }
    with pytest.raises(PipelineError, match="was begun with --partition-by"):
        archived(spark, source, topic, tmp_path / "wished", form, kind={"partition_by": ["topic"]})


@pytest.mark.parametrize("wish", ["nothing", "days(nothing)", "days(timestamp", "a; DROP TABLE b"])
def test_what_no_table_is_partitioned_by_is_refused(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str, wish: str
) -> None:
    fill(cluster, topic, [records(1)])
    with pytest.raises(PipelineError, match="--partition-by"):
        archived(spark, source, topic, tmp_path, form, kind={"partition_by": [wish]})
    assert archived(spark, source, topic, tmp_path, form)["records"] == 1  # in the same folder: nothing was begun


def test_a_topic_that_was_made_again_has_a_generation_of_its_own(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    fill(cluster, topic, [records(50)])
    archived(spark, source, topic, tmp_path, form)
    cluster.remove([topic])
    eventually(lambda: not cluster.has(topic))
    fill(cluster, topic, [records(70, 2)])
    with pytest.raises(PipelineError, match="deleted and made again"):
        archived(spark, source, topic, tmp_path, form)
    assert archived(spark, source, topic, tmp_path, form, recreated="continue")["records"] == 70
    rows = archive.read(spark, str(tmp_path)).groupBy("generation").count().collect()
    assert {row.generation: row["count"] for row in rows} == {0: 50, 1: 70}


def test_a_table_in_a_catalog_is_named_and_one_that_is_not_the_archives_is_refused(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    fill(cluster, topic, [records(30)])
    if form == "iceberg":
        for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
            spark.conf.set(f"spark.sql.catalog.lake{name}", value)
        spark.conf.set("spark.sql.catalog.lake.warehouse", str(tmp_path / "lake"))
        name = f"lake.db.{topic}"
    else:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS db_{topic} LOCATION '{tmp_path / 'lake'}'")
        name = f"db_{topic}.{topic}"
    kind = {"table": name}
    archived(spark, source, topic, tmp_path / "a", form, kind=kind)
    assert spark.table(name).count() == 30
    fill(cluster, topic, [records(10)])
    assert archived(spark, source, topic, tmp_path / "a", form, kind=kind)["records"] == 10
    assert equal(spark, str(tmp_path / "a"), source, topic, topic)
    with pytest.raises(PipelineError, match=f"the table {name} is there"):
        archived(spark, source, topic, tmp_path / "b", form, kind=kind)
    assert not (tmp_path / "b").exists()


def test_an_archive_keeps_to_its_format(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    archived(spark, source, topic, tmp_path, "delta")
    with pytest.raises(PipelineError, match="was begun with --format delta"):
        archived(spark, source, topic, tmp_path, "parquet")
