"""Topics as DataFrames, by the jobs' own client.

Called by every job. What is read is decided before it is read, by offsets of each partition, so that a job means the
same records however often one of its tasks is run again. Spark's Kafka connector is not used: it cannot read a topic
with a timestamp that Spark has none for, and does not say which record it failed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.pipeline.ahead import Spans, gone
from kbroker.pipeline.columns import DDL, HEADERS_DDL, SCHEMA_WITH_HEADERS, Damage, Span
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.sizes import SIZES, sized
from kbroker.pipeline.values import Decodes, reasons
from kbroker.pipeline.wire import Cluster, PartitionEnd, Place, Settings, rows
from protocol.namedtuple import NamedTuple

COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "timestampMs", "key", "value", "headers")
"""What a record is in every job, in this order."""
RECORDS = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, timestampMs bigint, "
    f"key binary, value binary, {HEADERS_DDL}"
)
APART = "damage string, reason string"
"""Columns of what is set apart. reason: why; null for what is not. damage: what is wrong with a batch whose bytes are
the row's value; null for a record."""
PLACE = "place int"
"""The column that says which one of the spans that are read, in their order, a row is of."""
SCHEMA_APART = SCHEMA_WITH_HEADERS.append(pa.field("damage", pa.string())).append(pa.field("reason", pa.string()))
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

    def patient(self, seconds: float) -> Source:
        """The cluster as it is read by a job that waits no longer than so for brokers that are away."""
        timeout_ms = int(1000 * min(seconds, self.settings.patience_s))
        return self._replace(options={**self.options, "default.api.timeout.ms": str(timeout_ms)})


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


def matching(cluster: Cluster, pattern: str) -> list[str]:
    """The topics that there are now whose whole names a regular expression matches. Raises PipelineError for none."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise PipelineError(f"{pattern}: no regular expression: {error}") from None
    return [topic for topic in cluster.topics() if wanted.fullmatch(topic)]


def read(
    spark: SparkSession,
    source: Source,
    spans: Spans,
    *,
    committed: bool = True,
    allow_gaps: bool = False,
    ids: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of these spans: columns as in COLUMNS.

    ids: the topics' ids, of which records are wanted. A partition's records are in its order: of several tasks that
    read it, each has what comes before the next one's.
    """
    rows = read_into(
        spark, source, spans, _as_read, f"{DDL}, {HEADERS_DDL}", committed=committed, allow_gaps=allow_gaps, ids=ids
    )
    return rows.select(*COLUMNS)


def _as_read(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return rows


def read_into(
    spark: SparkSession,
    source: Source,
    spans: Spans,
    made: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    ddl: str,
    *,
    committed: bool = True,
    allow_gaps: bool = False,
    ids: Mapping[str, str] | None = None,
) -> DataFrame:
    """What is made of the records of these spans by the workers that read them: Spark never sees the records.

    made: of a task's rows, which `read` would give. ddl: of what it makes.
    """
    parts = _parts(spans)
    ask = _asked(source, ids, committed=committed, allow_gaps=allow_gaps)

    def read_one(number: int) -> Iterator[pa.RecordBatch]:
        return made(ask(parts[number], None))

    return _in_tasks(spark, parts, read_one, ddl)


def read_sizes(
    spark: SparkSession, source: Source, spans: Spans, *, value_prefix: int, times: tuple[int, int], allow_gaps: bool
) -> DataFrame:
    """The committed records of these spans as `sized` has them: with sizes in place of most bytes. A partition's
    ranges are numbered in its order."""
    parts = _parts(spans)
    ask = _asked(source, None, committed=True, allow_gaps=allow_gaps)

    def read_one(number: int) -> Iterator[pa.RecordBatch]:
        return sized(ask(parts[number], None), number, value_prefix, times)

    return _in_tasks(spark, parts, read_one, f"{DDL}, {SIZES}")


def read_apart(
    spark: SparkSession,
    source: Source,
    spans: Spans,
    decoder: Decodes | None = None,
    *,
    allow_gaps: bool = False,
    ids: Mapping[str, str] | None = None,
    least: int | None = None,
) -> DataFrame:
    """The committed records of these spans, and what cannot be one: COLUMNS, what the decoder adds, APART and PLACE.
    least: by so many tasks at least.

    A batch that is damaged is a row: its bytes are the value, and `damage` says what is wrong.
    """
    total = sum(span.end - span.start for span in spans.values())
    parts = _parts(spans, size=min(TASK_RECORDS, max(1, total // least)) if least else TASK_RECORDS)
    numbers = {place: number for number, place in enumerate(sorted(spans))}
    ask = _asked(source, ids, committed=True, allow_gaps=allow_gaps)

    def read_one(number: int) -> Iterator[pa.RecordBatch]:
        part = parts[number]
        place = pa.scalar(numbers[part.topic, part.partition], pa.int32())
        for batch in ask(part, lambda damage: damaged_row(part, damage)):
            if "damage" not in batch.schema.names:
                batch = reasons(batch.append_column("damage", pa.nulls(batch.num_rows, pa.string())))
            whole = decoder.decoded(batch) if decoder else batch
            yield whole.append_column("place", pa.repeat(place, whole.num_rows))

    more = [] if decoder is None else [decoder.ddl]
    return _in_tasks(spark, parts, read_one, ", ".join([DDL, HEADERS_DDL, APART, *more, PLACE]))


def damaged_row(part: Span, damage: Damage) -> pa.RecordBatch:
    """A damaged batch as a row."""
    row = {
        "value": damage.data,
        "topic": part.topic,
        "partition": part.partition,
        "offset": damage.offset,
        "timestampMs": -1,
        "timestampType": -1,
        "damage": damage.reason,
        "reason": f"a damaged batch: {damage.reason}",
    }
    return pa.RecordBatch.from_pylist([row], SCHEMA_APART)


def with_headers(records: DataFrame) -> DataFrame:
    """Records without headers have an empty array, not null: for what goes to Spark's Python workers.

    For each row Spark asks how many bytes its batch has come to (`spark.sql.execution.arrow.maxBytesPerBatch`), and
    Arrow's ListVector goes through all rows since the last one that is not null: that took 140 us a record.
    """
    return records.withColumn("headers", f.coalesce("headers", f.array()))


def _asked(
    source: Source, ids: Mapping[str, str] | None, *, committed: bool, allow_gaps: bool
) -> Callable[[Span, Callable[[Damage], pa.RecordBatch] | None], Iterator[pa.RecordBatch]]:
    """How a task reads a span."""
    settings = source.settings
    named, lossy = dict(ids or {}), None if allow_gaps else gone

    def ask(part: Span, damaged: Callable[[Damage], pa.RecordBatch] | None) -> Iterator[pa.RecordBatch]:
        topic_id = named.get(part.topic, "")
        return rows(settings, part, topic_id=topic_id, committed=committed, lossy=lossy, damaged=damaged)

    return ask


def _parts(spans: Spans, size: int = TASK_RECORDS) -> list[Span]:
    return [part for place, span in sorted(spans.items()) for part in parted(place, span, size)]


def _in_tasks(
    spark: SparkSession, parts: Sequence[Span], read_one: Callable[[int], Iterator[pa.RecordBatch]], ddl: str
) -> DataFrame:
    """What is read of each of these, by a task each. read_one: reads the one of a number."""
    if not parts:
        return spark.createDataFrame([], ddl)

    def fetched(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch.column("id").to_pylist()):
            yield from read_one(number)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(fetched, ddl)


def parted(place: Place, span: PartitionEnd, size: int = TASK_RECORDS) -> Iterator[Span]:
    """A partition's span as spans of about `size`, in order; none if it is empty."""
    count = max(1, round((span.end - span.start) / size))
    edges = [span.start + (span.end - span.start) * index // count for index in range(count + 1)]
    return (Span(*place, start, end) for start, end in pairwise(edges) if end > start)
