"""Topics as DataFrames, through Spark's Kafka connector; and which offsets a job reads.

Called by every job. What is read is decided before it is read, by offsets of each partition, so that a job means the
same records however often one of its tasks is run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import Cluster, PartitionEnd, Place, Settings
from protocol.namedtuple import NamedTuple

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
"""What a record is in every job, in this order."""
RECORDS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
TUNED = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(32 << 20),
    "kafkaConsumer.pollTimeoutMs": "60000",  # then the broker is given up, as by our own client
}
"""Settings of the consumer, which double the connector's rate; a user's own win."""


class Source(NamedTuple):
    """A cluster to read from. options: Kafka client settings, without the prefix `kafka.`."""

    bootstrap: str
    options: Mapping[str, str] = {}

    @property
    def settings(self) -> Settings:
        """For the wire client."""
        return Settings.of(self.bootstrap, self.options)

    def reader_options(self, *, committed: bool, allow_gaps: bool = False) -> dict[str, str]:
        """Options of the connector, those of a reader."""
        given = {f"kafka.{name}": value for name, value in self.options.items()}
        isolation = "read_committed" if committed else "read_uncommitted"
        return {
            **TUNED,
            "kafka.isolation.level": isolation,
            **given,
            "kafka.bootstrap.servers": self.bootstrap,
            "includeHeaders": "true",
            "failOnDataLoss": str(not allow_gaps).lower(),
        }


def existing(cluster: Cluster, topics: Sequence[str], bootstrap: str) -> list[str]:
    """The topics, all of the cluster's if none are named. Raises PipelineError for one that is missing."""
    if not topics:
        found = cluster.topics()
        if not found:
            raise PipelineError(f"{bootstrap} has no topics")
        return found
    missing = [topic for topic in topics if not cluster.has(topic)]
    if missing:
        near = ", ".join(cluster.topics()[:10]) or "none"
        raise PipelineError(f"{bootstrap} has no topic {missing[0]!r}; it has: {near}")
    return list(dict.fromkeys(topics))


def read(
    spark: SparkSession,
    source: Source,
    spans: Mapping[Place, PartitionEnd],
    *,
    committed: bool = True,
    allow_gaps: bool = False,
) -> DataFrame:
    """The records of these spans: columns as in COLUMNS; each partition is one task's, in order."""
    wanted = {place: span for place, span in spans.items() if span.end > span.start}
    if not wanted:
        return spark.createDataFrame([], RECORDS)
    reader = spark.read.format("kafka").options(**source.reader_options(committed=committed, allow_gaps=allow_gaps))
    frame = (
        reader.option("assign", json.dumps(_by_topic(dict.fromkeys(wanted), names=True)))
        .option("startingOffsets", json.dumps(_by_topic({place: span.start for place, span in wanted.items()})))
        .option("endingOffsets", json.dumps(_by_topic({place: span.end for place, span in wanted.items()})))
        .load()
    )
    return frame.select(*COLUMNS)


def stream(
    spark: SparkSession, source: Source, topics: Sequence[str], *, committed: bool = True, allow_gaps: bool = False
) -> DataFrame:
    """The topics as a stream from their beginnings."""
    reader = spark.readStream.format("kafka").options(
        **source.reader_options(committed=committed, allow_gaps=allow_gaps)
    )
    return reader.option("subscribe", ",".join(topics)).option("startingOffsets", "earliest").load().select(*COLUMNS)


def empty_headers_are_none(frame: DataFrame) -> DataFrame:
    """No headers and an empty list of them are the same thing."""
    return frame.withColumn("headers", f.when(f.size("headers") > 0, f.col("headers")))


def _by_topic(places: Mapping[Place, int | None], *, names: bool = False) -> dict[str, object]:
    topics: dict[str, dict[str, int | None]] = {}
    for (topic, partition), value in sorted(places.items()):
        topics.setdefault(topic, {})[str(partition)] = value
    return {topic: [int(each) for each in found] for topic, found in topics.items()} if names else dict(topics)
