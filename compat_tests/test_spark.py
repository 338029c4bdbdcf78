"""Spark's Kafka connector: batch writes and reads, streams. What needs transactions is not asked here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import environments
from compat_tests.brokers import Place
from compat_tests.clients import Client, ClientError, Driver, start
from compat_tests.test_groups import fill
from compat_tests.waiting import eventually

SECTION, COLUMN = "8 Spark", "Spark 4.2.0"
T0 = 1_700_000_000_000
MINUTE = 60_000
REQUIREMENTS = ["pyspark==4.2.0", "pandas==2.3.3", "pyarrow==26.0.1"]
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


def _command() -> list[str]:
    python = environments.python("pyspark", "4.2.0", REQUIREMENTS)
    jars = environments.jars_of(Path(__file__).parent / "spark.pom.xml", "spark-jars-4.2.0")
    return [str(python), environments.driver("spark_driver.py"), ",".join(map(str, jars))]


SPARK = Client("Spark", "4.2.0", _command)


class Spark:
    """The driver of Spark; its operations are those of spark_driver.py."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def ask(self, operation: str, **arguments: Any) -> Any:
        """The answer to one request. Raises ClientError."""
        return self.driver.ask(operation, **arguments)

    def read(self, topic: str, **options: str) -> list[dict[str, Any]]:
        """A batch read of a topic."""
        rows = self.ask("read", options={"subscribe": topic, "startingOffsets": "earliest", **options})
        return list(rows)


@pytest.fixture(scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    drivers: dict[str, Driver] = {}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture
def spark(broker: Place, _session: dict[str, Driver], tmp_path: Path) -> Spark:
    """One Spark session for the module, started again if it died."""
    if broker.address not in _session or not _session[broker.address].alive:
        _session[broker.address] = start(SPARK, broker.address, tmp_path)
    return Spark(_session[broker.address])


def values(rows: list[dict[str, Any]]) -> list[str]:
    return [row["value"] for row in rows]


# -- writes


def test_write_by_topic_and_partition_columns(spark: Spark, reference: Driver, topic: str) -> None:
    """Write, topic and partition columns"""
    reference.create_topic(topic, partitions=3)
    spark.ask("write", rows=[{"topic": topic, "partition": p, "value": f"to {p}"} for p in range(3)], options={})
    assert [values(reference.read(topic, p, 0, 1)) for p in range(3)] == [["to 0"], ["to 1"], ["to 2"]]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_write_with_codec(spark: Spark, reference: Driver, topic: str, codec: str) -> None:
    """Write, codec {codec}"""
    reference.create_topic(topic)
    options = {"topic": topic, "kafka.compression.type": codec}
    spark.ask("write", rows=[{"value": f"{number} compressible compressible"} for number in range(10)], options=options)
    assert len(reference.read(topic, 0, 0, 10)) == 10


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_write_with_acks(spark: Spark, reference: Driver, topic: str, acks: str) -> None:
    """Write, acks {acks}"""
    reference.create_topic(topic)
    spark.ask("write", rows=[{"value": "v"}], options={"topic": topic, "kafka.acks": acks})
    assert values(reference.read(topic, 0, 0, 1)) == ["v"]


def test_write_creates_the_topic(spark: Spark, reference: Driver, topic: str) -> None:
    """Write to a topic that is created by it"""
    spark.ask("write", rows=[{"value": "v"}], options={"topic": topic})
    assert values(reference.read(topic, 0, 0, 1)) == ["v"]


def test_write_keys_and_headers(spark: Spark, reference: Driver, topic: str) -> None:
    """Write keys, null values, headers"""
    reference.create_topic(topic)
    row = {"key": "k", "value": None, "headers": [["a", "1"], ["a", "2"]]}
    spark.ask("write", rows=[row], options={"topic": topic, "includeHeaders": "true"})
    (read,) = reference.read(topic, 0, 0, 1)
    assert {name: read[name] for name in row} == row


# -- batch reads


def test_read_everything(spark: Spark, reference: Driver, topic: str) -> None:
    """Read all partitions"""
    fill(reference, topic, partitions=3, each=5)
    assert values(spark.read(topic)) == [f"{p}-{n}" for p in range(3) for n in range(5)]


def test_read_between_offsets(spark: Spark, reference: Driver, topic: str) -> None:
    """Read between offsets given as JSON"""
    fill(reference, topic, partitions=2, each=5)
    start, end = json.dumps({topic: {"0": 1, "1": 3}}), json.dumps({topic: {"0": 3, "1": -1}})
    assert values(spark.read(topic, startingOffsets=start, endingOffsets=end)) == ["0-1", "0-2", "1-3", "1-4"]


def test_read_assigned_partitions(spark: Spark, reference: Driver, topic: str) -> None:
    """Read assigned partitions"""
    fill(reference, topic, partitions=3, each=1)
    options = {"assign": json.dumps({topic: [0, 2]}), "startingOffsets": "earliest"}
    assert values(spark.ask("read", options=options)) == ["0-0", "2-0"]


def test_read_from_a_timestamp(spark: Spark, reference: Driver, topic: str) -> None:
    """Read from a timestamp, by either strategy where there is none"""
    reference.create_topic(topic, partitions=2)
    for number in range(4):
        reference.produce(topic, [{"value": str(number), "timestamp": T0 + 10 * number, "partition": 0}])
    by_time = {"subscribe": topic, "startingTimestamp": str(T0 + 15), "startingOffsetsByTimestampStrategy": "latest"}
    assert values(spark.ask("read", options=by_time)) == ["2", "3"]


def test_read_headers_and_timestamps(spark: Spark, reference: Driver, topic: str) -> None:
    """Read keys, null values, headers, timestamps"""
    reference.create_topic(topic)
    sent = {"key": "k", "value": None, "headers": [["h", "1"]], "timestamp": T0}
    reference.produce(topic, [sent])
    (row,) = spark.read(topic, includeHeaders="true")
    assert {name: row[name] for name in sent} == sent


def test_read_in_more_tasks_than_partitions(spark: Spark, reference: Driver, topic: str) -> None:
    """Read with minPartitions"""
    fill(reference, topic, partitions=2, each=50)
    options = {"subscribe": topic, "startingOffsets": "earliest", "minPartitions": "6"}
    assert spark.ask("tasks", options=options) >= 6


def test_read_topics_by_pattern(spark: Spark, reference: Driver, topic: str) -> None:
    """Read topics by pattern"""
    fill(reference, f"{topic}-a", partitions=1, each=1)
    fill(reference, f"{topic}-b", partitions=1, each=1)
    rows = spark.ask("read", options={"subscribePattern": f"{topic}-.*", "startingOffsets": "earliest"})
    assert [row["topic"] for row in rows] == [f"{topic}-a", f"{topic}-b"]


def test_read_committed(spark: Spark, reference: Driver, topic: str) -> None:
    """Read with isolation level read_committed, without transactions"""
    fill(reference, topic, partitions=1, each=3)
    assert len(spark.read(topic, **{"kafka.isolation.level": "read_committed"})) == 3


def test_missing_topic_is_an_error(spark: Spark, reference: Driver, topic: str) -> None:
    """A missing topic is an error, and not created"""
    with pytest.raises(ClientError, match="UnknownTopicOrPartition"):
        spark.read(topic)
    assert topic not in reference.topics()


@pytest.mark.parametrize("options", [{"kafka.group.id": "mine"}, {"groupIdPrefix": "mine"}], ids=str)
def test_read_with_a_group_of_ones_own(spark: Spark, reference: Driver, topic: str, options: dict[str, str]) -> None:
    """Read with kafka.group.id or groupIdPrefix"""
    fill(reference, topic, partitions=2, each=2)
    assert len(spark.read(topic, **options)) == 4


# -- streams


def test_stream_resumes_at_its_checkpoint(spark: Spark, reference: Driver, topic: str, tmp_path: Path) -> None:
    """Stream to files, restart from the checkpoint"""
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    fill(reference, topic, partitions=2, each=2)
    assert len(spark.ask("stream_to_parquet", options=options, folder=str(tmp_path))) == 4
    reference.produce(topic, [{"value": "later", "partition": 1}])
    assert spark.ask("stream_to_parquet", options=options, folder=str(tmp_path)) == [
        "0-0",
        "0-1",
        "1-0",
        "1-1",
        "later",
    ]


def test_stream_from_topic_to_topic(spark: Spark, reference: Driver, topic: str, tmp_path: Path) -> None:
    """Stream from topic to topic"""
    fill(reference, topic, partitions=1, each=20)
    reference.create_topic(f"{topic}-copy")
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    spark.ask("stream_to_topic", options=options, topic=f"{topic}-copy", folder=str(tmp_path))
    assert values(reference.read(f"{topic}-copy", 0, 0, 20)) == [f"0-{number}" for number in range(20)]


def test_stream_finds_added_partitions(spark: Spark, reference: Driver, topic: str, tmp_path: Path) -> None:
    """Stream on, after partitions were added"""
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    fill(reference, topic, partitions=1, each=1)
    spark.ask("stream_to_parquet", options=options, folder=str(tmp_path))
    reference.add_partitions(topic, 2)
    eventually(lambda: reference.partitions(topic) == [0, 1])
    reference.produce(topic, [{"value": "new", "partition": 1}], idempotent=True)  # a producer that remembers no less
    assert spark.ask("stream_to_parquet", options=options, folder=str(tmp_path)) == ["0-0", "new"]


def test_stream_counts_in_windows(spark: Spark, reference: Driver, topic: str, tmp_path: Path) -> None:
    """Stream into windows of event time, foreachBatch"""
    reference.create_topic(topic)
    start = T0 - T0 % MINUTE
    reference.produce(topic, [{"value": "v", "timestamp": start + seconds * 1000} for seconds in (1, 30, 59, 61, 62)])
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    counts = spark.ask("stream_windows", options=options, folder=str(tmp_path))
    assert counts == {str(start): 3, str(start + MINUTE): 2}


@pytest.mark.parametrize("fail", ["true", "false"])
def test_stream_whose_records_were_deleted(
    spark: Spark, reference: Driver, topic: str, tmp_path: Path, fail: str
) -> None:
    """Stream on, after records were deleted unread: failOnDataLoss {fail}"""
    options = {"subscribe": topic, "startingOffsets": "earliest", "failOnDataLoss": fail}
    fill(reference, topic, partitions=1, each=2)
    spark.ask("stream_to_parquet", options=options, folder=str(tmp_path))
    reference.produce(topic, [{"value": value} for value in ("deleted", "deleted too", "kept")])
    reference.delete_records(topic, 0, 4)
    try:
        said = " ".join(spark.ask("stream_to_parquet", options=options, folder=str(tmp_path)))
    except ClientError as error:
        said = str(error)
    assert ("DATA_LOSS" in said.upper() or "data may have been lost" in said) == (fail == "true"), said
    assert (said == "0-0 0-1 kept") == (fail == "false"), said


def test_stream_with_deprecated_offset_fetching(spark: Spark, reference: Driver, topic: str, tmp_path: Path) -> None:
    """Stream with offsets fetched by a consumer group (useDeprecatedOffsetFetching)"""
    fill(reference, topic, partitions=2, each=2)
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    spark.ask("set_conf", name="spark.sql.streaming.kafka.useDeprecatedOffsetFetching", value="true")
    try:
        read = spark.ask("stream_to_parquet", options=options, folder=str(tmp_path))
    finally:
        spark.ask("set_conf", name="spark.sql.streaming.kafka.useDeprecatedOffsetFetching", value="false")
    assert read == ["0-0", "0-1", "1-0", "1-1"]
