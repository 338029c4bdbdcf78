"""What an archive sets apart instead of ending there, and the one line where it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from kbroker.pipeline import archive, audit, profile
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.storage import as_path
from kbroker.pipeline.typed import depth_of, parsed
from kbroker.pipeline.values import _check_deep, json_text
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from tests.pipeline.given import T0, fill, records

JSON = ["{}", "[]", "1", "-0", '"a"', "null", " [1, 2] ", '{"a":1,"a":2}', "1" * 5000, "1e400", '"\\ud800"']
JSON += ["[" * 1001 + "]" * 1001, "[" * 50_000 + "]" * 50_000, '{"a":' * 1001 + "1" + "}" * 1001]
NO_JSON = ["", '{"a":1} x', '{"a":1}{}', "NaN", "Infinity", "-Infinity", "01", "1.", ".5", "[1,]", '{"a":1,}', "{a:1}"]
NO_JSON += ["'a'", '"\t"', '"\\x"', "tru", "\ufeff{}", "[" * 1001 + "]" * 1000, "[" * 1001 + "]" * 1002, "[1 2]"]
NO_JSON += ['{"a" 1}', "{1:2}", "[,]", "+1", "0x1", "\x0b1", '"a', '{"a":}', "١"]


def sound(check: Callable[[Any], Any], value: Any) -> bool:
    try:
        check(value)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("text", JSON)
def test_what_rfc_8259_has_is_json(text: str) -> None:
    assert sound(json_text, text.encode())
    assert sound(_check_deep, text)  # as it is checked where Python would call itself too often


@pytest.mark.parametrize("text", NO_JSON)
def test_what_rfc_8259_does_not_have_is_none(text: str) -> None:
    assert not sound(json_text, text.encode())
    assert not sound(_check_deep, text)


def archived(spark: Any, source: Source, topic: str, folder: Path, **given: Any) -> dict[str, Any]:
    return archive.archive(spark, source, [topic], str(folder), until_now=True, **given)


def valued(*values: bytes | None) -> list[Record]:
    return [Record(index, T0 + index, b"k", value, ()) for index, value in enumerate(values)]


def apart(spark: Any, folder: Path, topic: str) -> dict[int, str]:
    """The reasons of what is set apart, by offset."""
    rows = spark.read.parquet(str(folder / "_quarantine" / f"topic={topic}")).select("offset", "reason").collect()
    return {row.offset: row.reason for row in rows}


def test_values_are_a_struct_by_a_schema_and_what_does_not_fit_is_set_apart(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    values = [b'{"id": 1, "name": "a"}', b'{"id": "x"}', b"[1]", b"{", None, b'{"id": 2, "more": true}']
    values += [b'{"id": 1%s}' % (b"0" * 1001), b'{"name": %s}' % (b"[" * 1001 + b"]" * 1001)]
    values += [b'\r\n\t {"id": 3}\n']
    fill(cluster, topic, [valued(*values)])
    given = {"values": "json", "schema": "id bigint, name string"}
    found = archived(spark, source, topic, tmp_path, **given)
    assert (found["records"], found["quarantined"], found["schema"]) == (9, 5, given["schema"])
    rows = spark.read.parquet(str(tmp_path / f"topic={topic}")).orderBy("offset").select("value_json.*").collect()
    assert [(*row,) for row in rows] == [(1, "a"), (None, None), (2, None), (3, None)]
    reasons = apart(spark, tmp_path, topic)
    assert {reasons.pop(offset) for offset in (1, 2, 6, 7)} == {"the value does not fit the schema"}
    assert reasons[3].startswith("the value is no JSON: ")
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]
    for other in ({"values": "text"}, {"values": "json"}, {"values": "json", "schema": "id int"}):
        with pytest.raises(PipelineError, match=r"was begun with .*: give the same, or another --to"):
            archived(spark, source, topic, tmp_path, **other)
    assert archive.compact_files(spark, str(tmp_path))["files_after"] == 2
    assert spark.read.parquet(str(tmp_path / f"topic={topic}")).where("value_json.id = 2").count() == 1


def test_a_schema_is_inferred_from_a_sample_and_kept(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    deep = b'{"deep": %s}' % (b"[" * 600 + b"]" * 600)
    fill(cluster, topic, [valued(b'{"at": [1.5]}', b'{"ID": "x", "id": 1}', b"no", b"7", deep)])
    found = archived(spark, source, topic, tmp_path, values="json", schema="infer")
    assert (found["schema"], found["inferred_from"]) == ("ID string, at array<double>", 3)
    assert (found["records"], found["quarantined"]) == (5, 2)
    fill(cluster, topic, [valued(b'{"at": "text"}')])
    assert archived(spark, source, topic, tmp_path, values="json", schema="infer")["quarantined"] == 1


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_fields_may_have_any_names(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    value = '{"a.b": 1, "x-y": {"`": 2, "é<:": [{"1": 3}]}}'
    fill(cluster, topic, [valued(value.encode())])
    archived(spark, source, topic, tmp_path, values="json", schema="infer", kind=archive.Kind(form))
    archive.compact_files(spark, str(tmp_path))
    place = tmp_path / ("records" if form == "delta" else f"topic={topic}")
    (row,) = spark.read.format(form).load(str(place)).selectExpr("to_json(value_json) as found").collect()
    assert json.loads(row.found) == json.loads(value)


@pytest.mark.parametrize(
    ("text", "depth"),
    [("1", 0), ('{"a": [1, {}]}', 3), ("[" * 99 + "]" * 99, 99), ("[" + '"[\\"[{",{},' * 99 + "1]", 2)],
)
def test_how_deeply_json_is_nested_is_seen(text: str, depth: int) -> None:
    assert depth_of(text) == depth


def test_a_schema_whose_names_differ_by_case_alone_is_told() -> None:
    fields = [{"name": name, "type": "string", "nullable": True, "metadata": {}} for name in ("a", "b", "A")]
    inner = {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": fields}}
    whole = {"type": "struct", "fields": [{**fields[0], "name": "x", "type": inner}]}
    with pytest.raises(PipelineError, match="the schema names a twice"):
        parsed(json.dumps(whole))


@pytest.mark.parametrize("schema", ["id bigin", "{", '{"type": "struct"}', '"int"'])
def test_a_schema_that_is_none_is_one_line(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, schema: str
) -> None:
    fill(cluster, topic, [valued(b"{}")])
    with pytest.raises(PipelineError, match="the schema is ") as caught:
        archived(spark, source, topic, tmp_path, values="json", schema=schema)
    assert "\n" not in explain(caught.value)


@pytest.fixture
def damaged(cluster: Cluster, broker: Any, topic: str) -> str:
    """A topic of four batches of 100, of which the second is damaged on disk."""
    fill(cluster, topic, [records(400)])
    log = broker.data / f"{topic}-0" / f"{0:020}.log"
    content = bytearray(log.read_bytes())
    second = 12 + int.from_bytes(content[8:12], "big")
    content[second + 200] ^= 1
    log.write_bytes(content)
    return topic


def test_a_damaged_batch_is_set_apart_and_all_others_are_archived(
    spark: Any, source: Source, damaged: str, tmp_path: Path
) -> None:
    found = archived(spark, source, damaged, tmp_path)
    assert (found["records"], found["quarantined"]) == (301, 1)
    (why,) = apart(spark, tmp_path, damaged).items()
    assert (why[0], why[1][:31]) == (100, "a damaged batch: CORRUPT_MESSAG")
    rows = archive.read(spark, str(tmp_path)).select("offset").collect()
    assert sorted(row.offset for row in rows) == [*range(100), *range(200, 400)]
    assert archived(spark, source, damaged, tmp_path)["records"] == 0


def test_a_job_that_ends_at_a_damaged_batch_says_where_it_is(spark: Any, source: Source, damaged: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        profile.profile(spark, source, [damaged])
    assert explain(caught.value).startswith(f"{damaged}-0, offset 100: CORRUPT_MESSAGE: ")


def test_a_header_whose_name_is_no_text_is_set_apart_and_kept(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [[Record(0, T0, b"k", b"v", ((b"a", b"1"),)), Record(1, T0, b"k", b"v", ((b"\xff", b"1"),))]])
    assert archived(spark, source, topic, tmp_path)["quarantined"] == 1
    assert apart(spark, tmp_path, topic) == {1: "a header's name is no UTF-8"}
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]


def test_what_java_raises_in_a_batch_is_one_line_with_its_reason(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(10)])
    laid_out = archive.laid_out
    for wrong, reason in (("1 div (offset - 5)", "DIVIDE_BY_ZERO"), ("raise_error('so it is')", "so it is")):
        column = f.expr(f"cast({wrong} as string)")
        monkeypatch.setattr(archive, "laid_out", lambda rows, column=column: laid_out(rows).withColumn("wrong", column))
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
            archived(spark, source, topic, tmp_path)
        assert reason in explain(caught.value)
        assert "\n" not in explain(caught.value)
    monkeypatch.setattr(archive, "laid_out", laid_out)
    assert archived(spark, source, topic, tmp_path)["records"] == 10


def test_the_last_cause_of_what_java_raised_is_told() -> None:
    text = """An error occurred while calling o822.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure.
\tat org.apache.spark.A.b(A.scala:1)
Caused by: org.apache.spark.SparkException: Task failed while writing rows.
\tat org.apache.spark.A.b(A.scala:1)
Caused by: java.lang.ArithmeticException: long overflow
\tat java.base/java.lang.Math.multiplyExact(Math.java:949)
\t... 9 more
"""
    assert explain(Exception(text)) == "java.lang.ArithmeticException: long overflow"


def test_a_replay_makes_a_topic_with_the_settings_of_the_archived_one(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from kbroker.pipeline import mirror, replay

    settings = {"max.message.bytes": "12582912", "cleanup.policy": "compact", "retention.ms": "604800000"}
    cluster.create(topic, 3, {**settings, "min.insync.replicas": "1", "message.timestamp.type": "CreateTime"})
    large = Record(0, T0, b"k", bytes(10 << 20), ())
    fill(cluster, topic, [[], [large], []])
    archived(spark, source, topic, tmp_path / "archive")
    replay.replay(spark, source, str(tmp_path / "archive"), topics={topic: f"{topic}-copy"})
    kept = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "CreateTime"}
    assert cluster.configs(f"{topic}-copy") == {**settings, **kept}
    assert cluster.partitions(f"{topic}-copy") == 3
    mirror.mirror(spark, source, source, {topic: f"{topic}-mirror"}, str(tmp_path / "state"))
    assert cluster.configs(f"{topic}-mirror") == settings
    for copy in ("copy", "mirror"):
        assert audit.audit(spark, source, source, {topic: f"{topic}-{copy}"})["equal"]


def test_a_folder_may_have_any_name(spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    from kbroker.pipeline import mirror, replay

    fill(cluster, topic, [valued(b"{}", b"no")])
    folder = tmp_path / "a [x] {b,c} d* e? f=1 %20" / "archive"
    assert archived(spark, source, topic, folder, values="json")["records"] == 2
    archive.compact_files(spark, str(folder))
    (folder.parent / "keys").write_text("k\n")
    names, keys = {topic: f"{topic}-copy"}, str(folder.parent / "keys")
    assert replay.replay(spark, source, str(folder), topics=names, keys=keys)["written"] == 2
    mirror.mirror(spark, source, source, {topic: f"{topic}-mirror"}, str(folder.parent / "state"))
    assert mirror.offsets_map(spark, str(folder.parent / "state")).count() == 1
    assert json.loads((folder / "_manifest" / "archive.json").read_text())["topics"] == [topic]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("12:30", f"{Path.cwd()}/12:30"),
        ("a:b/c", f"{Path.cwd()}/a:b/c"),
        ("a/b:c", "a/b:c"),
        ("file:/a", "file:/a"),
        ("s3a://b/c:d", "s3a://b/c:d"),
        ("/a:b", "/a:b"),
    ],
)
def test_what_is_before_a_colon_is_a_file_system_only_where_a_path_follows(name: str, path: str) -> None:
    assert as_path(name) == path


def test_a_folder_without_a_name_is_none() -> None:
    with pytest.raises(PipelineError, match="its name is empty"):
        as_path("")
