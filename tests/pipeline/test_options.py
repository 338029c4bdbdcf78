"""Options of `format("kbroker")` that cannot be meant so, told by its readers and writers; without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kbroker.pipeline.columns import Span
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.options import Options
from kbroker.pipeline.source import KbrokerSource, WireReader, WireStream, WireWriter
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records


def given_of(source: Source, topic: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": source.bootstrap, "subscribe": topic, **options}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"assign": '{"a": []}'}, 'option assign: \'{"a": []}\': write {"topic": [0, 1]}'),
        ({"assign": '{"a": [0.5]}'}, 'option assign: \'{"a": [0.5]}\': write {"topic": [0, 1]}'),
        ({"assign": "[]"}, "option assign: '[]': write "),
        (
            {"subscribe": "a", "startingOffsets": '{"a": {"0": 1.5}}'},
            'option startingOffsets: write {"a": {"0": NUMBER',
        ),
        (
            {"subscribe": "a", "startingOffsets": '{"a": {"0": true}}'},
            'option startingOffsets: write {"a": {"0": NUMBE',
        ),
        ({"subscribe": "a", "startingOffsets": ""}, "option startingOffsets: '' is not earliest, latest or JSON"),
        ({"subscribe": "a", "startingTimestamp": "9" * 30}, "is more than 9223372036854775807, the largest number"),
        ({"subscribe": "a", "endingOffsetsByTimestamp": "x"}, "option endingOffsetsByTimestamp: 'x': write {\"topic\""),
        ({"subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": -5}}'}, "-5 is no time in ms"),
        ({"subscribe": "a", "kafka.acks": "2"}, "option kafka.acks: '2' is none of all, -1, 0, 1"),
        ({"subscribe": "a", "kafka.max.poll.records": "x"}, "option kafka.max.poll.records: 'x' is no number"),
        ({"subscribe": "a", "kafka.fetch.max.bytes": "-5"}, "option kafka.fetch.max.bytes: '-5' is no number"),
        (
            {"subscribe": "a", "kafka.default.api.timeout.ms": "0"},
            "default.api.timeout.ms=0: it is a number of ms, 1 a",
        ),
    ],
)
def test_an_option_of_another_kind_is_told_and_not_taken_for_one(
    source: Source, cluster: Cluster, options: dict[str, str], line: str
) -> None:
    if not cluster.has("a"):
        fill(cluster, "a", [records(10)])
    with pytest.raises(PipelineError) as caught:
        KbrokerSource({"kafka.bootstrap.servers": source.bootstrap, **options}).reader(None).partitions()
    assert line in str(caught.value)


def test_numbers_that_mean_no_limit_are_taken() -> None:
    Options({"kafka.connections.max.idle.ms": "-1", "kafka.receive.buffer.bytes": "-1", "kafka.retries": " 5 "})


def test_a_read_that_may_lose_data_goes_on_with_what_is_there(source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(10)])
    given = given_of(source, topic, failOnDataLoss="false", endingOffsets=f'{{"{topic}": {{"0": 80}}}}')
    assert [each.span for each in WireReader(Options(given)).partitions()] == [Span(topic, 0, 0, 10)]


def test_no_task_is_made_for_no_record(source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(10)])
    assert len(WireReader(Options(given_of(source, topic, minPartitions="1000000"))).partitions()) == 10


def test_a_stream_does_not_begin_beyond_the_end(source: Source, cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, [records(10)])
    given = given_of(source, topic, startingOffsets=f'{{"{topic}": {{"0": 80}}}}')
    with pytest.raises(PipelineError, match=f"{topic}-0 would be read from 80, beyond 10 where that ends"):
        WireStream(Options(given)).initialOffset()
    lenient = WireStream(Options({**given, "failOnDataLoss": "false"}))
    assert lenient.initialOffset()[topic]["0"] == 10


def test_a_writer_finds_its_broker_and_its_topic_before_it_has_tasks(source: Source) -> None:
    schema = StructType([StructField("value", StringType())])
    away = Options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "a"})
    with pytest.raises(PipelineError, match=r"no broker answers at 127\.0\.0\.1:1: Connection refused"):
        WireWriter(away, schema)
    with pytest.raises(PipelineError, match="topic absent at "):
        WireWriter(Options({"kafka.bootstrap.servers": source.bootstrap, "topic": "absent"}), schema)


@pytest.mark.parametrize("named", [True, False], ids=["a topic of all rows", "a topic in each row"])
def test_a_writer_takes_a_batch_without_a_row(source: Source, cluster: Cluster, topic: str, named: bool) -> None:
    fill(cluster, topic, [[]])
    schema = StructType([StructField(name, StringType()) for name in ("topic", "value")])
    given = {"kafka.bootstrap.servers": source.bootstrap} | ({"topic": topic} if named else {})
    rows = pa.RecordBatch.from_pydict({"topic": [topic] * 3, "value": ["a", "b", "c"]})
    WireWriter(Options(given), schema).write(iter([rows.slice(0, 0), rows]))
    assert sum(end.end for end in cluster.ends([topic]).values()) == 3
