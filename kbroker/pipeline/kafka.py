"""Topics as DataFrames, by the jobs' own client.

Called by every job. What is read is decided before it is read, by offsets of each partition, so that a job means the
same records however often one of its tasks is run again. Spark's Kafka connector is not used: it cannot read a topic
with a timestamp that Spark has none for, and does not say which record it failed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kbroker.pipeline.ahead import gone
from kbroker.pipeline.columns import DDL, HEADERS_DDL, Span
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import Cluster, PartitionEnd, Place, Settings, rows
from protocol.namedtuple import NamedTuple

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "timestampMs", "key", "value", "headers")
"""What a record is in every job, in this order."""
RECORDS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, timestampMs bigint, "
    f"key binary, value binary, {HEADERS_DDL}"
)
TASK_RECORDS = 500_000
"""Records of a task, about, where a partition may be read by several."""


class Source(NamedTuple):
    """A cluster to read from. options: Kafka client settings, without the prefix `kafka.`."""

    bootstrap: str
    options: Mapping[str, str] = {}

    @property
    def settings(self) -> Settings:
        """For the wire client."""
        return Settings.of(self.bootstrap, self.options)


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
    ids: Mapping[str, str] | None = None,
    whole: bool = False,
    patience_s: float | None = None,
) -> DataFrame:
    """The records of these spans: columns as in COLUMNS.

    ids: the topics' ids, of which records are wanted. whole: have each partition read by one task, in order.
    patience_s: how long the brokers may be away.
    """
    settings = source.settings if patience_s is None else source.settings._replace(patience_s=patience_s)
    parts = [part for place, span in sorted(spans.items()) for part in parted(place, span, whole=whole)]
    if not parts:
        return spark.createDataFrame([], RECORDS)
    named = dict(ids or {})

    def fetched(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lossy = None if allow_gaps else gone
        for part in (parts[number] for batch in numbers for number in batch.column("id").to_pylist()):
            yield from rows(settings, part, topic_id=named.get(part.topic, ""), committed=committed, lossy=lossy)

    each_a_task = spark.range(0, len(parts), 1, len(parts))
    return each_a_task.mapInArrow(fetched, f"{DDL}, {HEADERS_DDL}").select(*COLUMNS)


def parted(place: Place, span: PartitionEnd, *, whole: bool) -> Iterator[Span]:
    """A partition's span as spans of about TASK_RECORDS, in order; none if it is empty."""
    count = 1 if whole else max(1, round((span.end - span.start) / TASK_RECORDS))
    edges = [span.start + (span.end - span.start) * index // count for index in range(count + 1)]
    return (Span(*place, start, end) for start, end in pairwise(edges) if end > start)
