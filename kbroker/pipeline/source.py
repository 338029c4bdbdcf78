"""`spark.read.format("kbroker")`: topics as tables without any jar, over the wire or straight from log directories.

Columns and options are those of Spark's Kafka source, and the column `timestampMs`: a record's timestamp as it is,
while `timestamp` is null where Spark has no such time. Options: kafka.bootstrap.servers, subscribe, subscribePattern,
assign, startingOffsets, endingOffsets, startingTimestamp, endingTimestamp, startingOffsetsByTimestamp,
endingOffsetsByTimestamp, startingOffsetsByTimestampStrategy, minPartitions, maxRecordsPerPartition, failOnDataLoss,
includeHeaders, kafka.isolation.level; of streams, maxOffsetsPerTrigger, minOffsetsPerTrigger, maxTriggerDelay; for
writing, topic. Of a stream, `recreated` (stop, continue): what to do once a topic was deleted and made again, and
`includeGeneration`: a column that counts those that a record's topic comes after. With a path (`.load(DIR)`) or the
option `segments`, a broker's log directory is read instead, one task a segment.

With the option `pushDownPredicate`, conditions on topic, partition, offset and timestamp choose files and positions,
and one on a key leaves its records alone on the way to Spark. By itself Spark applies them to all rows: it keeps what a
source in Python made of the conditions that it was told last, and reads by that wherever the same DataFrame is used,
without conditions too. Spark does not tell a source in Python which columns a query wants, and asks it for no
statistics: `.schema("key binary, offset bigint")` before `.load()` reads these alone.

What there is by Spark's version (`versions.py`): 3.5 has no data sources in Python: `load` reads the same there. 4.0:
batches, read and written, and streams that are read, without the options that need to know where a stream stands
(rates, includeGeneration) nor conditions. 4.1: conditions, and streams that are written. 4.2: all. Nothing of the JVM
is called, so it is the same under Spark Connect; workers need kbroker, and its Python.

Unlike Spark's connector: conditions on offsets reach the wire too; a written `timestamp` column is kept; security is
what `security.py` has; the groups of `groupIdPrefix` and `kafka.group.id` do not exist: nothing is ever committed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kbroker.pipeline import segments
from kbroker.pipeline.ahead import CONTINUE, STOP, Policy, Read, Topic, begun, is_another
from kbroker.pipeline.columns import DDL, HEADERS_DDL, Encoder, Span, hashes, produced, repeated_number
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.options import Options, nested
from kbroker.pipeline.versions import (
    HAS_SOURCES,
    HAS_STREAM_WRITERS,
    KNOWS_START,
    AvailableNow,
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
    check,
)
from kbroker.pipeline.wire import EARLIEST, LATEST, Cluster, PartitionEnd, Place, rows
from protocol.records.compression import codec_named, codec_names, is_codec

BATCH_BYTES = 500_000
_BYTES = ("binary", "string")
_WRITTEN = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "timestampMs": ("bigint",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""Of what types the columns may be that are written."""
TOPIC_ID, GENERATION = "id", "generation"
"""Beside the partitions in a stream's offset: whose they are."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _keep_far_times() -> None:
    """Have PySpark read conditions on times that Python has none for: it reads all of a query's before it hands them to
    a source, and would end the query there. The first or the last moment that there is stands for one beyond, which no
    record's timestamp is beyond either."""
    try:
        from pyspark.sql.variant_utils import VariantUtils
    except ImportError:  # Spark 3.5, which hands over none
        return
    of_spark = VariantUtils._get_timestamp

    def found(value: bytes, pos: int, zone_id: str) -> datetime:
        try:
            return of_spark(value, pos, zone_id)
        except OverflowError:
            is_negative = value[pos + 8] & 0x80  # after a byte that says what it is: microseconds, little-endian
            return (datetime.min if is_negative else datetime.max).replace(tzinfo=UTC)

    VariantUtils._get_timestamp = staticmethod(found)


_keep_far_times()


def register(spark: SparkSession) -> None:
    """Make `format("kbroker")` known to a session. Raises PipelineError where it has no data sources in Python."""
    check(HAS_SOURCES, "data sources in Python (kbroker.pipeline.load reads the same without)", "4.0")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(KbrokerSource)


def load(spark: SparkSession, **options: str) -> DataFrame:
    """A batch by the options of `format("kbroker")`, on any version of Spark; a name's dots are written as they are:
    `load(spark, **{"kafka.bootstrap.servers": ..., "subscribe": ...})`. Raises PipelineError."""
    source = KbrokerSource(options) if HAS_SOURCES else KbrokerSource.without(options)
    reader = source.reader(None)
    parts = list(reader.partitions())

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch.column("id").to_pylist()):
            yield from reader.read(parts[number])

    if not parts:
        return spark.createDataFrame([], source.schema())
    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, source.schema())


class KbrokerSource(DataSource):
    """What Spark asks for readers and writers."""

    options: Mapping[str, str]

    @classmethod
    def without(cls, options: Mapping[str, str]) -> KbrokerSource:
        """Where Spark has no data sources that have options."""
        source = cls()
        source.options = options
        return source

    @classmethod
    def name(cls) -> str:
        """As in format(...)."""
        return "kbroker"

    @property
    def _given(self) -> Options:
        return Options(self.options)

    def schema(self) -> str:
        """Columns of Spark's Kafka source."""
        more = [HEADERS_DDL] if self._given.flag("includeHeaders") else []
        more += ["generation int"] if self._given.flag("includeGeneration") else []
        return ", ".join([DDL, *more])

    def reader(self, schema: StructType | None) -> DataSourceReader:
        """Of a batch."""
        given = self._given
        is_pushed = given.flag("pushDownPredicate")
        if not given.folder:
            given.check_of_batch()
            return (PushedWireReader if is_pushed else WireReader)(given, self._columns(schema))
        given.check_of_folder()
        return (PushedSegmentReader if is_pushed else SegmentReader)(given, self._columns(schema))

    def streamReader(self, schema: StructType | None) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Of a stream."""
        given = self._given
        if given.folder:
            raise PipelineError("log directories are read in batches: give kafka.bootstrap.servers to stream")
        given.check_of_stream()
        for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "includeGeneration"):
            check(KNOWS_START or given.get(name) is None, f"streams with the option {name}", "4.2")
        return WireStream(given, self._columns(schema))

    def _columns(self, schema: StructType | None) -> list[str] | None:
        """The columns that are read: those of a schema that a user has given, None for all. Raises PipelineError."""
        if schema is None:
            return None
        there = dict(each.split(" ", 1) for each in split_ddl(self.schema()))
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if field.name not in there:
                raise PipelineError(f"there is no column {field.name!r}; there are: {', '.join(there)}")
            if kind != there[field.name].replace(": ", ":").replace(", ", ","):
                raise PipelineError(f"column {field.name} is {there[field.name]}, and not {kind}")
            if not field.nullable:
                raise PipelineError(f"column {field.name}: leave NOT NULL out: Spark is promised no such thing")
        names = [field.name for field in schema.fields]
        if twice := [name for name in names if names.count(name) > 1]:
            raise PipelineError(f"column {twice[0]} is named twice")
        return None if names == list(there) else names

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch."""
        return WireWriter(self._given, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Of a stream."""
        check(HAS_STREAM_WRITERS, "streams that are written", "4.1")
        return WireStreamWriter(self._given, schema)


def split_ddl(ddl: str) -> list[str]:
    """The columns of a DDL."""
    return re.split(r", (?![^<]*>)", ddl)


def _flat(offsets: Mapping[str, Mapping[str, Any]]) -> dict[Place, int]:
    return {
        (topic, int(index)): offset
        for topic, found in offsets.items()
        for index, offset in found.items()
        if index not in (TOPIC_ID, GENERATION)
    }


def _topics(offsets: Mapping[str, Mapping[str, Any]]) -> dict[str, Topic]:
    """Which topics a stream's offsets are of."""
    return {name: Topic(found.get(TOPIC_ID, ""), found.get(GENERATION, 0)) for name, found in offsets.items()}


def _of_topics(offsets: Mapping[Place, int], topics: Mapping[str, Topic]) -> dict[str, dict[str, Any]]:
    return {
        name: {**found, TOPIC_ID: topics[name].id, GENERATION: topics[name].generation}
        for name, found in nested(offsets).items()
    }


# ---- reading over the wire


ANY_TOPIC = Topic("")
"""Whichever there is of its name."""


@dataclass
class WirePart(InputPartition):
    """One task of a read: a span of one partition. topic: which one of its name was looked at."""

    span: Span
    topic: Topic = ANY_TOPIC


def _parts(spans: Mapping[Place, PartitionEnd], given: Options) -> list[WirePart]:
    """A task a partition, or more of about the same size: by minPartitions and maxRecordsPerPartition."""
    total = sum(max(0, span.end - span.start) for span in spans.values())
    least, most = given.number("minPartitions") or 0, given.number("maxRecordsPerPartition")
    parts = []
    for place, (start, end) in sorted(spans.items()):
        count = max(1, round(least * (end - start) / total)) if total and least > len(spans) else 1
        if most:
            count = max(count, -(-(end - start) // most))
        count = min(count, max(1, end - start))
        edges = [start + (end - start) * index // count for index in range(count + 1)]
        parts += [WirePart(Span(*place, a, b)) for a, b in pairwise(edges) if b > a]
    return parts


def _fetched(
    given: Options, part: WirePart, columns: Sequence[str] | None, keys: frozenset[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    for batch in rows(
        given.settings,
        part.span,
        topic_id=part.topic.id,
        headers=given.flag("includeHeaders"),
        committed=given.committed,
        lossy=_gone if given.flag("failOnDataLoss", True) else None,
    ):
        whole = _with_generation(batch, part.topic.generation) if given.flag("includeGeneration") else batch
        yield from _wanted_of(whole, columns, keys)


def _wanted_of(
    batch: pa.RecordBatch, columns: Sequence[str] | None, keys: frozenset[bytes] | None
) -> Iterator[pa.RecordBatch]:
    """What is wanted of rows: those of some keys, and some columns; all where nothing else is said."""
    if keys is not None:
        batch = batch.filter(pc.is_in(batch.column("key"), value_set=pa.array(keys, pa.binary())))
    if batch.num_rows:
        yield batch if columns is None else batch.select(columns)


def _with_generation(batch: pa.RecordBatch, generation: int) -> pa.RecordBatch:
    return batch.append_column("generation", repeated_number(generation, batch.num_rows))


def _gone(what: str) -> str:
    return f"{what}: aged out or deleted before it was read; failOnDataLoss=false goes on with what is there"


def _check_there(start: Mapping[Place, int], end: Mapping[Place, int], last: Mapping[Place, int]) -> None:
    """Raises: PipelineError where nothing can be between start and end, or not all."""
    for (topic, index), offset in start.items():
        place, until, there = f"{topic}-{index}", end[topic, index], last[topic, index]
        if offset > until:
            raise PipelineError(f"{place} would be read from {offset}, beyond {until} where that ends")
        if until > there:
            raise PipelineError(
                f"{place} ends at {there}, before {until}: failOnDataLoss=false goes on with what is there"
            )


class WireReader(DataSourceReader):
    """A batch over the wire. columns: those that are read, None for all."""

    def __init__(self, given: Options, columns: Sequence[str] | None = None) -> None:
        self._given, self._columns = given, columns
        self._wanted = segments.Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """Spans that are read, each by a task."""
        given, wanted = self._given, self._wanted
        with Cluster(given.settings) as cluster:
            places = given.places(cluster)
            start = given.boundary(cluster, places, "starting", "earliest")
            end = given.boundary(cluster, places, "ending", "latest")
            last = cluster.offsets(places, LATEST)
            if given.flag("failOnDataLoss", True):
                _check_there(start, end, last)
            end = {place: min(offset, last[place]) for place, offset in end.items()}
            chosen = [place for place in places if wanted.has(place)]
            since = self._since(cluster, chosen)
        spans = {
            place: PartitionEnd(max(start[place], wanted.start, since[place]), min(end[place], wanted.end))
            for place in chosen
            if since[place] >= 0
        }
        return _parts(spans, given)

    def _since(self, cluster: Cluster, places: Sequence[Place]) -> dict[Place, int]:
        """Where the first record is that is young enough, before which all are older; -1 where there is none."""
        since = self._wanted.since
        return dict.fromkeys(places, 0) if since is None or since <= 0 else cluster.offsets(places, since)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; none of the one that Spark makes where there is no span."""
        if not isinstance(partition, WirePart):
            return iter(())
        return _fetched(self._given, partition, self._columns, self._wanted.keys)


class WireStream(DataSourceStreamReader, AvailableNow):
    """A stream over the wire. An offset is topic -> partition -> next offset, as Spark's Kafka source writes it, and
    beside the partitions TOPIC_ID and GENERATION: a topic that was deleted and made again is another one. columns:
    those that are read, None for all."""

    def __init__(self, given: Options, columns: Sequence[str] | None = None) -> None:
        self._given, self._columns = given, columns
        self._end: tuple[dict[Place, int], dict[str, str]] | None = None
        self._waited_since: float | None = None

    def _latest(self) -> tuple[dict[Place, int], dict[str, str]]:
        """Where the partitions end now, and the ids of their topics."""
        with Cluster(self._given.settings) as cluster:
            places = self._given.places(cluster, without_missing=self._given.goes_on)
            ids = cluster.ids({topic for topic, _ in places})
            return cluster.offsets(places, LATEST, committed=self._given.committed), ids

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new stream starts."""
        with Cluster(self._given.settings) as cluster:
            places = self._given.places(cluster)
            ids = cluster.ids({topic for topic, _ in places})
            offsets = self._given.boundary(cluster, places, "starting", "latest")
            last = cluster.offsets(places, LATEST)
            if not self._given.goes_on:
                _check_there(offsets, last, last)
            offsets = {place: min(offset, last[place]) for place, offset in offsets.items()}
        return _of_topics(offsets, {name: Topic(found) for name, found in ids.items()})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than what is there now."""
        self._end = self._latest()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends: what is there, at most maxOffsetsPerTrigger records further; where it starts, as
        long as that are not minOffsetsPerTrigger, for maxTriggerDelay at most. start: None before Spark 4.2."""
        ends, ids = self._latest() if self._end is None else self._end
        most = self._given.number("maxOffsetsPerTrigger")
        read = self._begun(start or {}, ends, ids)
        new = {place: end - read.next.get(place, 0) for place, end in ends.items()}
        total = sum(new.values())
        if start and self._end is None and self._waits(total):
            return start
        if most is not None and total > most:
            ends = {place: read.next.get(place, 0) + -(-new[place] * most // total) for place in ends}
        return _of_topics({**read.next, **ends}, read.topics)

    def _waits(self, total: int) -> bool:
        """Whether there is too little, and there was not for too long."""
        now = time.monotonic()
        least = self._given.number("minOffsetsPerTrigger")
        if least is None or total >= least or self._waited_since is None:
            self._waited_since = now  # the first batch of a run is not held back
            return False
        if now - self._waited_since >= self._given.seconds("maxTriggerDelay", "15m"):
            self._waited_since = now
            return False
        return True

    def _begun(self, start: dict[str, Any], ends: Mapping[Place, int], ids: Mapping[str, str]) -> Read:
        """How far the topics have been read that are there now. Raises PipelineError for one that is another now, or
        shorter, unless the stream is to go on with it."""
        policy = Policy(recreated=CONTINUE if self._given.goes_on else STOP)
        whole = {place: PartitionEnd(0, end) for place, end in ends.items()}
        return begun(Read(_topics(start), _flat(start)), ids, whole, policy, "recreated=continue")

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spans of a batch; a partition that is new, or one of a topic that was made again, is read from its beginning.

        Of a batch that was decided before its topic was made again there is nothing left.
        """
        before, topics, ends = _topics(start), _topics(end), _flat(end)
        with Cluster(self._given.settings) as cluster:
            now = cluster.ids(topics)
            for name in [each for each in topics if each not in now or is_another(topics[each].id, now[each])]:
                if not self._given.goes_on:
                    raise PipelineError(
                        f"topic {name} was deleted before its offsets of this batch were read: recreated=continue "
                        "goes on, and reads it from its beginning once it is there again"
                    )
                ends = {place: offset for place, offset in ends.items() if place[0] != name}
            same = {name for name in topics if name in before and self._is_same(name, before[name], topics[name])}
            read = {place: offset for place, offset in _flat(start).items() if place[0] in same and place in ends}
            read |= cluster.offsets([place for place in ends if place not in read], EARLIEST)
        spans = {place: PartitionEnd(read[place], offset) for place, offset in ends.items()}
        return [WirePart(part.span, topics[part.span.topic]) for part in _parts(spans, self._given)]

    def _is_same(self, name: str, before: Topic, now: Topic) -> bool:
        """Whether a topic is the one that it was. Raises PipelineError where it is not, and nothing has said so yet:
        before Spark 4.2 the end of a batch is found without its start."""
        if not before.id or not now.id:
            return before.generation == now.generation
        if before.id == now.id:
            return True
        if before.generation == now.generation and not self._given.goes_on:
            raise PipelineError(
                f"topic {name} was deleted and made again since it was read (its id was {before.id} and is {now.id}): "
                "recreated=continue reads it from its beginning"
            )
        return False

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, WirePart)
        return _fetched(self._given, partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark's checkpoint knows."""

    def stop(self) -> None:
        """Nothing is open between batches."""


# ---- reading log directories


@dataclass
class SegmentPart(InputPartition):
    """One task: a segment."""

    segment: segments.Segment


class SegmentReader(DataSourceReader):
    """Log directories, a task a segment. columns: those that are read, None for all."""

    def __init__(self, given: Options, columns: Sequence[str] | None = None) -> None:
        self._given, self._columns = given, columns
        self._wanted = segments.Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """The segments with what is wanted, large ones first."""
        given, wanted = self._given, self._wanted
        named = given.get("subscribe")
        if named:
            topics = frozenset(each.strip() for each in named.split(","))
            wanted = wanted._replace(topics=topics if wanted.topics is None else topics & wanted.topics)
        found = segments.plan(given.folder or "", wanted, committed=given.committed)
        return [SegmentPart(each) for each in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a segment; none of the task that Spark makes where there is no segment."""
        if not isinstance(partition, SegmentPart):
            return iter(())
        found = segments.rows(partition.segment, headers=self._given.flag("includeHeaders"))
        return (some for batch in found for some in _wanted_of(batch, self._columns, self._wanted.keys))


# ---- conditions


class _Pushed:
    """A reader that Spark tells the conditions of a query: it does so where a reader's class has `pushFilters`."""

    _wanted: segments.Wanted

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
        """Remember what the conditions say of topics, partitions, offsets, times and keys; Spark checks all of them
        again."""
        self._wanted = wanted_of(filters)
        yield from filters


class PushedWireReader(_Pushed, WireReader):
    """A batch over the wire, for a query with conditions."""


class PushedSegmentReader(_Pushed, SegmentReader):
    """Log directories, for a query with conditions."""


def wanted_of(filters: Sequence[Any]) -> segments.Wanted:
    """What conditions on topic, partition, offset, timestamp and key leave of a topic; other conditions leave all."""
    wanted = segments.Wanted()
    for each in filters:
        name, kind = ".".join(getattr(each, "attribute", ())), type(each).__name__
        value: Any = getattr(each, "value", None)
        if kind == "EqualTo" and name == "topic":
            wanted = wanted._replace(topics=frozenset([value]))
        elif kind == "In" and name == "topic":
            wanted = wanted._replace(topics=frozenset(value))
        elif kind == "EqualTo" and name == "partition":
            wanted = wanted._replace(partitions=frozenset([value]))
        elif kind == "In" and name == "partition":
            wanted = wanted._replace(partitions=frozenset(value))
        elif kind in ("EqualTo", "In") and name == "key":
            keys = frozenset(bytes(each) for each in (value if kind == "In" else [value]) if each is not None)
            wanted = wanted._replace(keys=keys if wanted.keys is None else wanted.keys & keys)
        elif name == "offset" and kind in (
            "EqualTo",
            "GreaterThan",
            "GreaterThanOrEqual",
            "LessThan",
            "LessThanOrEqual",
        ):
            wanted = _narrowed(wanted, kind, int(value))
        elif name in ("timestamp", "timestampMs") and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
            since = value if name == "timestampMs" else (value - EPOCH) // timedelta(milliseconds=1)
            wanted = wanted._replace(since=since if wanted.since is None else max(since, wanted.since))
    return wanted


def _narrowed(wanted: segments.Wanted, kind: str, offset: int) -> segments.Wanted:
    if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
        wanted = wanted._replace(start=max(wanted.start, offset + (kind == "GreaterThan")))
    if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
        wanted = wanted._replace(end=min(wanted.end, offset + (kind != "LessThan")))
    return wanted


# ---- writing


class _Writing:
    """Appends rows: by their topic and partition columns, else to the option's topic and by key."""

    def __init__(self, given: Options, schema: StructType) -> None:
        kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
        self._settings, self._topic = given.settings, given.get("topic")
        codec = given.get("kafka.compression.type") or "none"
        if not is_codec(codec):
            raise PipelineError(f"option kafka.compression.type: {codec!r} is none of {', '.join(codec_names())}")
        self._codec = codec_named(codec).codec_id
        if "value" not in kinds:
            raise PipelineError("a column `value` is needed")
        if not self._topic and "topic" not in kinds:
            raise PipelineError("the option topic or a column `topic` is needed")
        for name, kind in kinds.items():
            if name in _WRITTEN and kind not in _WRITTEN[name]:
                raise PipelineError(f"column {name} is {kind}: it has to be {' or '.join(_WRITTEN[name])}")
        with Cluster(self._settings) as cluster:  # a task would wait a minute for a broker that is away
            if self._topic:
                cluster.partitions(self._topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows; all are acknowledged when it returns. A task that is repeated writes them again."""
        sequences: dict[Place, int] = {}
        task = TaskContext.get()
        turn = task.partitionId() if task else 0  # rows without a key go to all partitions in turn
        with Cluster(self._settings, patient=True) as cluster:
            producer = cluster.producer()
            for rows in iterator:
                encoders = [(place, Encoder(some)) for place, some in self._placed(rows, cluster, turn)]
                turn += rows.num_rows
                for place, encoder in encoders:
                    sequence = sequences.get(place, 0)
                    runs = encoder.batches(BATCH_BYTES)
                    batches = ((first, encoder.encoded(first, last, self._codec)) for first, last in runs)
                    cluster.append(place, (produced(data, producer, sequence + first) for first, data in batches))
                    sequences[place] = sequence + len(encoder.times)
        return WriterCommitMessage()

    def _placed(self, rows: pa.RecordBatch, cluster: Cluster, turn: int) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """The rows of each partition. turn: of the first row, if it has no key."""
        names, number = self._topics(rows)
        many = np.array([cluster.partitions(name) for name in names], np.int64)[number]
        chosen = self._partitions(rows, many, turn)
        if (bad := (chosen < 0) | (chosen >= many)).any():
            row = int(bad.argmax())
            topic = names[number[row]]
            raise PipelineError(
                f"{topic} has no partition {chosen[row]}, as a row's column `partition` has it: it has {many[row]}. "
                "Drop the column to let keys choose"
            )
        if not rows.num_rows:
            return
        place = number << 32 | chosen
        order = np.argsort(place, kind="stable")
        ends = np.flatnonzero(np.diff(place[order])) + 1
        for some in np.split(order, ends):
            at = int(some[0])
            yield (names[number[at]], int(chosen[at])), rows if len(ends) == 0 else rows.take(pa.array(some))

    def _topics(self, rows: pa.RecordBatch) -> tuple[list[str], np.ndarray]:
        """The topics of rows, and which of them each row is of."""
        if self._topic:
            return [self._topic], np.zeros(rows.num_rows, np.int64)
        column = rows.column("topic")
        if column.null_count:
            raise PipelineError("a row has no topic: the option topic gives all rows one")
        coded = column.dictionary_encode()
        return coded.dictionary.to_pylist(), coded.indices.to_numpy().astype(np.int64)

    def _partitions(self, rows: pa.RecordBatch, many: np.ndarray, turn: int) -> np.ndarray:
        """The partition of each row: the one that it says, or its key's, or its turn's."""
        found = (turn + np.arange(rows.num_rows)) % many
        if "key" in rows.schema.names:
            keys = rows.column("key")
            found = np.where(keys.is_valid().to_numpy(zero_copy_only=False), hashes(keys) % many, found)
        if "partition" in rows.schema.names:
            said = rows.column("partition")
            is_said = said.is_valid().to_numpy(zero_copy_only=False)
            found = np.where(is_said, said.fill_null(0).to_numpy(zero_copy_only=False), found)
        return found.astype(np.int64)


class WireWriter(_Writing, DataSourceArrowWriter):
    """A batch."""


class WireStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """A stream: at least once, as Spark's Kafka sink is."""
