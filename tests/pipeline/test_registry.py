"""Topics whose records are framed by a schema registry, against one that runs: Apicurio's."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compat_tests import apicurio
from kbroker.cli import run
from kbroker.pipeline import archive, audit, profile, session
from kbroker.pipeline import registry as registries
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.registry import Access, Registry, new_refs
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from tests.pipeline.given import T0, fill
from tests.pipeline.test_decoders import MONEY, avro_bytes, framed, record


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with apicurio.registry() as found:
        yield found


@pytest.fixture
def registry(url: str) -> Counting:
    return Counting(url)


class Counting(Registry):
    """A run's registry that notes what is asked of it."""

    def __init__(self, url: str) -> None:
        super().__init__(Access(url))
        self.asked: Counter[str] = Counter()

    def _ask(self, call: Any, *given: Any) -> Any:
        self.asked[f"{call.__name__}{given}"] += 1
        return super()._ask(call, *given)

    def register(self, subject: str, schema: Any, form: str = "AVRO", references: Mapping[str, str] = {}) -> int:
        """references: names and subjects, of which the first version is meant."""
        from confluent_kafka.schema_registry import Schema, SchemaReference

        found = [SchemaReference(name, other, 1) for name, other in references.items()]
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return int(self._client.register_schema(subject, Schema(text, form, found)))

    def serialized(self, topic: str, schema: Any, value: Any) -> bytes:
        """A value as Confluent's serializer of Avro has it, which registers the schema."""
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext

        serializer = AvroSerializer(self._client, json.dumps(schema))
        return bytes(serializer(value, SerializationContext(topic, MessageField.VALUE)))


def put(cluster: Cluster, topic: str, *values: bytes | None, key: bytes | None = None) -> None:
    fill(cluster, topic, [[Record(index, T0 + index, key, value, ()) for index, value in enumerate(values)]])


def archived(
    spark: Any, source: Source, topic: str, folder: Path, registry: Registry | None, **given: Any
) -> dict[str, Any]:
    rest = {"values": "registry" if registry else None, "registry": registry, **given}
    return archive.archive(spark, source, [topic], str(folder), until_now=True, **rest)


def data(spark: Any, folder: Path, topic: str) -> list[Any]:
    """What values were decoded to, in order."""
    rows = spark.read.option("mergeSchema", "true").parquet(str(folder / f"topic={topic}"))
    found = rows.orderBy("offset").select("value_data").collect()
    return [row.value_data and row.value_data.asDict(recursive=True) for row in found]


def reasons(spark: Any, folder: Path, topic: str) -> dict[int, str]:
    rows = spark.read.parquet(str(folder / "_quarantine" / f"topic={topic}")).select("offset", "reason").collect()
    return {row.offset: row.reason for row in rows}


def test_an_archive_follows_the_schemas_and_sets_apart_what_has_none(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, url: str
) -> None:
    one, two = record(id="long"), record(id="long", name="string")
    two["fields"][1]["default"] = "-"
    registry = Counting(url)
    first = [registry.serialized(topic, one, {"id": number}) for number in range(3)]
    put(cluster, topic, *first, None, b"no", b"{} {} {}", framed(9999, b"\2"), first[0][:5])
    run_one = Counting(url)
    assert archived(spark, source, topic, tmp_path, run_one)["quarantined"] == 4
    assert data(spark, tmp_path, topic) == [{"id": 0}, {"id": 1}, {"id": 2}, None]
    why = reasons(spark, tmp_path, topic)
    number = int.from_bytes(first[0][1:5], "big")
    assert (why[6], why[7]) == (
        "value: schema id 9999 is not in the registry",
        f"value: no AVRO of schema id {number}: it ends too early",
    )
    assert {why[4][:20], why[5][:20]} == {"value: it has 2 byte", "value: it has no fra"}
    assert set(run_one.asked.values()) == {1}  # nothing twice

    put(cluster, topic, *[registry.serialized(topic, two, {"id": 7, "name": "x"})], first[1])
    found = archived(spark, source, topic, tmp_path, Counting(url))
    assert (found["records"], found["quarantined"]) == (2, 0)
    assert data(spark, tmp_path, topic)[-2:] == [{"id": 7, "name": "x"}, {"id": 1, "name": None}]
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]
    archive.compact_files(spark, str(tmp_path))
    assert [each and each["id"] for each in data(spark, tmp_path, topic)] == [0, 1, 2, None, 7, 1]
    for other, keys in ((None, None), (registry, "registry")):
        with pytest.raises(PipelineError, match=r"was begun with .*: give the same"):
            archived(spark, source, topic, tmp_path, other, keys=keys)


def test_schemas_that_the_topics_subject_does_not_have_are_met_in_its_records(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    """Subjects may be named by record: then a topic has many. Its keys are framed, too."""
    ids = [registry.register(f"{topic}.{each}", record(**{each: "string", "n": "int"})) for each in ("a", "b")]
    text = registry.register(f"{topic}.c", record(n="string"))
    key = framed(registry.register(f"{topic}-key", '"string"'), b"\2k")
    values = [avro_bytes(record(a="string", n="int"), {"a": "x", "n": 3}), avro_bytes(record(n="string"), {"n": "t"})]
    put(cluster, topic, framed(ids[0], values[0]), framed(ids[1], values[0]), framed(text, values[1]), key=key)
    found = archived(spark, source, topic, tmp_path, registry, keys="registry")
    assert (found["records"], found["quarantined"]) == (3, 1)
    assert data(spark, tmp_path, topic) == [{"a": "x", "n": 3, "b": None}, {"a": None, "n": 3, "b": "x"}]
    fits = f"value: schema id {text} has no column: value.n is string and the column is bigint"
    assert reasons(spark, tmp_path, topic) == {2: fits}
    rows = spark.read.parquet(str(tmp_path / f"topic={topic}")).select("key_schema", "key_data").distinct().collect()
    assert [row.key_data for row in rows] == ["k"]


def test_records_whose_schemas_are_known_do_not_keep_the_others_from_being_met(spark: Any) -> None:
    class Decoder:
        def unknown(self, batch: pa.RecordBatch) -> list[Any]:
            return [("value", 7, (1, 2))] if batch.column("value")[0].as_py() == b"new" else []

    def rows(value: bytes) -> Any:
        return spark.createDataFrame([(b"k", value, None)], "key binary, value binary, reason string")

    decoder: Any = Decoder()
    assert new_refs(rows(b"known").union(rows(b"new")), decoder) == [("value", 7, (1, 2))]


def test_protobuf_and_json_with_what_their_schemas_refer_to(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    registry.register(f"{topic}-money", MONEY, "PROTOBUF")
    text = """syntax = "proto3"; package x; import "c/money.proto";
    message A { int64 id = 1; c.Money price = 2; } message B { string name = 1; }"""
    proto = registry.register(f"{topic}-value", text, "PROTOBUF", {"c/money.proto": f"{topic}-money"})
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "on": {"type": "boolean"}}}
    other = registry.register(f"{topic}-json", schema, "JSON")
    put(
        cluster,
        topic,
        framed(proto, b"\0\x08\5\x12\2\x08\7"),
        framed(proto, b"\2\2\x0a\1x"),
        framed(other, b'{"id": 6, "on": true}'),
        framed(other, b'{"id": "6"}'),
    )
    assert archived(spark, source, topic, tmp_path, registry)["quarantined"] == 1
    nothing = dict.fromkeys(["id", "price", "name", "on"])
    assert data(spark, tmp_path, topic) == [
        {**nothing, "id": 5, "price": {"units": 7}},
        {**nothing, "name": "x"},
        {**nothing, "id": 6, "on": True},
    ]
    assert reasons(spark, tmp_path, topic) == {3: f'value: no JSON of schema id {other}: "6" is not of type "integer"'}


def test_topics_of_other_columns_are_told_before_anything_is_read(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    for name, kind in ((topic, "long"), (f"{topic}b", "string")):
        registry.serialized(name, record(id=kind), {"id": 1 if kind == "long" else "x"})
        put(cluster, name, b"x")
    with pytest.raises(PipelineError, match=rf"topics {topic} and {topic}b differ: value\.id is string and the column"):
        archive.archive(
            spark, source, [topic, f"{topic}b"], str(tmp_path), until_now=True, values="registry", registry=registry
        )


def test_a_registry_that_is_away_is_missed_only_where_something_is_new(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    sound = registry.serialized(topic, record(id="long"), {"id": 1})
    put(cluster, topic, sound)

    class Away(Counting):
        def _ask(self, call: Any, *given: Any) -> Any:
            if "subject" in call.__name__ or "versions" in call.__name__ or given == (9998,):
                raise PipelineError("the schema registry does not answer")
            return super()._ask(call, *given)

    away = Away(registry._url)
    with pytest.raises(PipelineError, match="does not answer"):
        archived(spark, source, topic, tmp_path, away)
    assert archived(spark, source, topic, tmp_path, registry)["records"] == 1
    put(cluster, topic, sound)
    assert archived(spark, source, topic, tmp_path, Away(registry._url))["records"] == 1
    put(cluster, topic, framed(9998, b""))
    with pytest.raises(PipelineError, match="does not answer"):
        archived(spark, source, topic, tmp_path, Away(registry._url))


def test_tables_follow_the_schemas(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    kind, subject = archive.Kind("delta"), f"{topic}-value"
    names: dict[str, Any] = {"first-name": {"type": "string"}}
    one = registry.register(subject, {"type": "object", "properties": names}, "JSON")
    put(cluster, topic, framed(one, b'{"first-name": "a"}'), b"no", framed(9996, b""))
    assert archived(spark, source, topic, tmp_path, registry, kind=kind)["quarantined"] == 2
    names |= {"of": {"type": "object", "properties": {"x-y": {"type": "integer"}}}}
    two = registry.register(subject, {"type": "object", "properties": names}, "JSON")
    put(cluster, topic, framed(two, b'{"first-name": "b", "of": {"x-y": 1}}'))
    assert archived(spark, source, topic, tmp_path, registry, kind=kind)["records"] == 1
    rows = spark.read.format("delta").load(str(tmp_path / "records")).orderBy("offset").select("value_data").collect()
    found = [row.value_data.asDict(recursive=True) for row in rows]
    assert found == [{"first-name": "a", "of": None}, {"first-name": "b", "of": {"x-y": 1}}]
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]


def test_profile_shows_schemas_over_time(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, registry: Counting
) -> None:
    from kbroker.pipeline.report import write_report

    one = registry.serialized(topic, record(id="long"), {"id": 1})
    wider = record(id="long", more=["null", "string"])
    wider["fields"][1]["default"] = None
    two = registry.serialized(topic, wider, {"id": 1})
    put(cluster, topic, one, one, two, None, b"{}", framed(9997, b""))
    tables = profile.profile(spark, source, [topic], registry=registry)
    rows = {row.schema_id: row for row in tables["schemas"].collect()}
    ids = [int.from_bytes(each[1:5], "big") for each in (one, two)]
    shown = [(rows[each].subject, rows[each].version, rows[each].form, rows[each].records) for each in ids]
    assert shown == [(f"{topic}-value", 1, "AVRO", 2), (f"{topic}-value", 2, "AVRO", 1)]
    assert (rows[ids[0]].first_offset, rows[ids[0]].last_offset, rows[None].records) == (0, 1, 1)
    assert (rows[ids[1]].last_time - rows[ids[0]].first_time).microseconds == 2000
    assert (rows[9997].subject, rows[9997].version) == (None, None)
    write_report(tables, str(tmp_path / "report.html"), "here")
    assert f"<td>value<td>{ids[1]}<td>{topic}-value<td>2<td>AVRO<td>1<td>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("there", ["nothing", "a listener that hangs", "another server"])
def test_a_registry_that_is_not_there_is_told_before_spark_starts(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    monkeypatch.setattr(session, "start", None)
    monkeypatch.setattr(registries, "ANSWER_S", 1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if there == "a listener that hangs":
            listener.listen()
        where = url[:-3] if there == "another server" else f"http://127.0.0.1:{listener.getsockname()[1]}"
        begun_s = time.monotonic()
        words = ["archive", "--to", str(tmp_path / "a"), "--values", "registry"]
        for each in (words, ["profile", "--report", str(tmp_path / "r.html")]):
            assert run(["pipeline", *each, "--schema-registry-url", where]) == 2
            said = capsys.readouterr().err.splitlines()
            assert said[-1].startswith(f"kbroker: the schema registry at {where} ")
        assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize(
    "words",
    [
        ["--values", "registry"],
        ["--schema-registry-url", "http://127.0.0.1:1"],
        ["--keys", "registry"],
        ["--values", "registry", "--schema-registry-url", "nonsense"],
        ["--values", "registry", "--schema-registry-url", "http://127.0.0.1:1", "--registry-option", "nosuch=1"],
    ],
)
def test_options_of_a_registry_that_make_no_sense_are_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["pipeline", "archive", "--to", str(tmp_path), *words]) == 2
    assert "registry" in capsys.readouterr().err.splitlines()[-1]
