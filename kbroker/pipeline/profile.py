"""`profile`: what is in topics, in numbers: rates, sizes, keys, balance, lateness, consumers' lag, compressibility.

Each table is a DataFrame made from a DataFrame of records; `report.py` draws them. Values are read once: what is asked
of a record afterwards is a row of small columns (`slim`), kept by Spark while the tables are made. Times are those of
records that may be true: the others, as of a producer that stamps microseconds, are counted in a table of their own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from kbroker.pipeline import audit, kafka, ranges
from kbroker.pipeline.columns import FIRST_MS, LAST_MS, Encoder
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.framed import PREFIX, SIDES
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.registry import Registry
from kbroker.pipeline.session import setting
from kbroker.pipeline.wire import Cluster, Place
from protocol.records.compression import codec_named, codec_names

Summary = dict[str, Any]
BUCKETS = 120
"""Points of a plot over time, about."""
STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 43_200, 86_400, 604_800)
TOP_KEYS = 50
SAMPLE = 5_000
"""Records of a partition whose compressibility is tried, from its end."""
BATCH_BYTES = 16_384
"""A producer's batch.size, as shipped."""
OLD_OVERHEAD = {0: 26, 1: 34}
"""Bytes of a message of formats v0 and v1 beyond its key and value: offset, size and header."""
LATE_S = (1, 60, 600, 3600, 86_400)
TABLES = ("partitions", "over_time", "sizes", "keys", "lateness", "compression", "lag", "timestamps", "schemas")
SCHEMAS = (
    "topic string, side string, schema_id bigint, subject string, version int, form string, records bigint, "
    "first_time timestamp, first_partition int, first_offset bigint, last_time timestamp, last_partition int, "
    "last_offset bigint"
)
EARLY_MS, AHEAD_MS = 10**11, 86_400_000
"""What may be true of a timestamp: it is none of the early 1970s, as seconds taken for ms are, and none beyond
tomorrow, as microseconds and nanoseconds are."""
UNITS_SINCE_MS = 946_684_800_000
"""The year 2000: before that, a time far ahead is not taken for one in microseconds or nanoseconds."""
UNITS = {"in seconds": 1000.0, "in microseconds": 1e-3, "in nanoseconds": 1e-6}
"""What odd timestamps may be meant in, and how many ms of it one is."""


def profile(
    spark: SparkSession,
    side: Source | str,
    topics: Sequence[str],
    *,
    allow_gaps: bool = False,
    registry: Registry | None = None,
) -> dict[str, DataFrame]:
    """The tables of topics, by name, as TABLES has them. side: a cluster, or the folder of an archive or of logs, which
    know of no groups. registry: of `schemas`, which is empty without. Raises PipelineError."""
    now_ms = int(time.time() * 1000)
    if isinstance(side, str):
        spans, lags = {}, []
        records = audit.records_of_side(spark, side, topics, allow_gaps)
    else:
        with Cluster(side.settings) as cluster:
            spans = cluster.ends(kafka.existing(cluster, topics, side.bootstrap), committed=True)
            lags = _lags(cluster, {place: span.end for place, span in spans.items()})
        if not any(span.end > span.start for span in spans.values()):
            raise _nothing(topic for topic, _ in spans)
        times, prefix = (EARLY_MS, now_ms + AHEAD_MS), PREFIX if registry else 0
        records = kafka.read_sizes(spark, side, spans, value_prefix=prefix, times=times, allow_gaps=allow_gaps)
    rows = slim(records, now_ms, framed=registry is not None)
    # to try how each column gets smaller is half of this pass: 2.8 s of 6.3 of the processor for two million records
    with setting(spark, "spark.sql.inMemoryColumnarStorage.compressed", "false"):
        rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
        what = f.count("*").alias("n"), f.min("time_ms").alias("first"), f.max("time_ms").alias("last")
        bounds = rows.agg(*what).first()  # it fills the cache
    assert bounds is not None
    if not bounds["n"]:  # markers, and what was aborted
        raise _nothing([topic for topic, _ in spans] or topics or [str(side)])
    tail = {place: span._replace(start=max(span.start, span.end - SAMPLE)) for place, span in spans.items()}
    sample = _last(records, rows) if isinstance(side, str) else kafka.read(spark, side, tail, allow_gaps=allow_gaps)
    counted = by_size(rows).persist(StorageLevel.MEMORY_AND_DISK)
    seconds = ((bounds["last"] or 0) - (bounds["first"] or 0)) / 1000
    return {
        "partitions": partitions(counted),
        "over_time": over_time(rows, step_for(seconds)),
        "sizes": sizes(counted),
        "keys": keys(rows),
        "lateness": lateness(rows, counted),
        "compression": compression(sample).where(f.col("codec").isin(codec_names())),
        "lag": spark.createDataFrame(lags, "group string, topic string, partition int, committed bigint, lag bigint"),
        "timestamps": timestamps(rows),
        "schemas": named(schemas(rows), registry) if registry else spark.createDataFrame([], SCHEMAS),
    }


def _nothing(topics: Iterable[str]) -> PipelineError:
    return PipelineError(f"{', '.join(sorted(set(topics)))}: no records, nothing to profile")


def _last(records: DataFrame, rows: DataFrame) -> DataFrame:
    """The last records of each partition. rows: as from `slim`."""
    place = ("topic", "partition")
    at = f.max(f.struct("generation", "offset"))
    ends = rows.groupBy(*place).agg(at.alias("_end")).select(*place, "_end.generation", f.col("_end.offset").alias("_"))
    by = [*place, *(["generation"] if "generation" in records.columns else [])]
    ends = ends if len(by) == 3 else ends.drop("generation")
    return records.join(f.broadcast(ends), by).where(f.col("offset") > f.col("_") - SAMPLE).drop("_")


def _lags(cluster: Cluster, ends: dict[Place, int]) -> list[tuple[str, str, int, int, int]]:
    return [
        (group, *place, offset, ends[place] - offset)
        for group in cluster.groups()
        for place, offset in cluster.committed(group).items()
        if place in ends
    ]


def step_for(seconds: float) -> int:
    """Seconds of a bucket, for about BUCKETS of them."""
    return next((step for step in STEPS_S if seconds / step <= BUCKETS), STEPS_S[-1])


# ---- DataFrame -> DataFrame


def slim(records: DataFrame, now_ms: int | None = None, kept: Sequence[str] = (), *, framed: bool = False) -> DataFrame:
    """What the tables need of a record: its value's and headers' sizes, not their bytes; the first bytes of its key;
    and other columns to be kept.

    time_ms: its timestamp if that may be true, as seen at now_ms; else null, and `odd` says what it looks like. framed:
    have the ids of its schemas, too.
    """
    now_ms = int(time.time() * 1000) if now_ms is None else now_ms
    may_be_true = f.col("timestampMs").between(EARLY_MS, now_ms + AHEAD_MS)
    header_bytes = f.aggregate(
        "headers",
        f.lit(0),
        lambda so_far, each: so_far + f.octet_length(each["key"]) + f.coalesce(f.octet_length(each["value"]), f.lit(0)),
    )
    there = records.columns
    return records.select(
        "topic",
        "partition",
        f.col("generation") if "generation" in there else f.lit(0).alias("generation"),
        "offset",
        "timestampMs",
        odd_timestamp(now_ms).alias("odd"),
        f.when(may_be_true, f.col("timestampMs")).alias("time_ms"),
        f.substring("key", 1, 64).alias("key"),
        f.xxhash64("key").alias("key_hash"),
        *(schema_id(side).alias(f"{side}_schema") for side in SIDES if framed),
        f.coalesce(f.octet_length("key"), f.lit(0)).alias("key_bytes"),
        f.col("value_bytes") if "value_bytes" in there else f.octet_length("value").alias("value_bytes"),
        f.col("header_bytes") if "header_bytes" in there else f.coalesce(header_bytes, f.lit(0)).alias("header_bytes"),
        *(name for name in ("range", "before_ms") if name in there),
        *kept,
    )


def odd_timestamp(now_ms: int) -> Any:
    """What a timestamp looks like that cannot be true; null if it may be."""
    stamp, latest = f.col("timestampMs"), now_ms + AHEAD_MS
    odd = f.when(stamp == -1, "none").when(stamp < 0, "before 1970").when(stamp < EARLY_MS, "in seconds")
    for unit, ms in list(UNITS.items())[1:]:
        odd = odd.when((stamp > latest) & (stamp * ms >= UNITS_SINCE_MS) & (stamp * ms <= latest), unit)
    return odd.when(stamp > latest, "in the future")


def timestamps(rows: DataFrame) -> DataFrame:
    """Of timestamps that cannot be true: how many records have them, from which ms to which, what times those may be
    meant for (text in UTC, null if none that Spark has), and the first such record: partition and offset."""
    ms: Any = f.lit(1.0)
    for unit, factor in UNITS.items():
        ms = f.when(f.col("odd") == unit, factor).otherwise(ms)
    found = (
        rows.where(f.col("odd").isNotNull())
        .groupBy("topic", "odd")
        .agg(
            f.count("*").alias("records"),
            f.min("timestampMs").alias("first_ms"),
            f.max("timestampMs").alias("last_ms"),
            f.min(f.struct("partition", "offset")).alias("_at"),
        )
    )
    times = [_as_text(f.col(name) * ms).alias(name.replace("ms", "time")) for name in ("first_ms", "last_ms")]
    return found.select("*", *times, "_at.partition", "_at.offset").drop("_at")


def _as_text(ms: Any) -> Any:
    seconds = f.floor(ms / 1000)
    known = (f.col("odd") != "none") & seconds.between(FIRST_MS // 1000, LAST_MS // 1000)
    return f.when(known, f.date_format(f.timestamp_seconds(seconds), "yyyy-MM-dd HH:mm:ss"))


def schema_id(side: str) -> Any:
    """The id of the schema of keys or values, where they are framed by a registry; -1 where they are not."""
    is_framed = (f.octet_length(side) >= PREFIX) & (f.substring(side, 1, 1) == f.lit(b"\0"))
    number = f.conv(f.hex(f.substring(side, 2, PREFIX - 1)), 16, 10).cast("bigint")
    return f.when(f.col(side).isNotNull(), f.when(is_framed, number).otherwise(-1))


def schemas(rows: DataFrame) -> DataFrame:
    """A row for each schema that keys or values are of (`schema_id`; null for those without framing): how many records,
    their times, and partition and offset of the first and the last of them."""
    kinds = [rows.select("*", f.lit(side).alias("side"), f.col(f"{side}_schema").alias("schema_id")) for side in SIDES]
    at = f.struct("time_ms", "partition", "offset")
    found = (
        kinds[0]
        .unionByName(kinds[1])
        .where(f.col("schema_id").isNotNull())
        .groupBy("topic", "side", "schema_id")
        .agg(f.count("*").alias("records"), f.min(at).alias("_first"), f.max(at).alias("_last"))
    )
    ends = [
        column.alias(f"{end}_{name}")
        for end in ("first", "last")
        for name, column in (
            ("time", f.timestamp_millis(f.col(f"_{end}.time_ms"))),
            ("partition", f.col(f"_{end}.partition")),
            ("offset", f.col(f"_{end}.offset")),
        )
    ]
    number = f.when(f.col("schema_id") >= 0, f.col("schema_id")).alias("schema_id")
    return found.select("topic", "side", number, "records", *ends)


def named(found: DataFrame, registry: Registry) -> DataFrame:
    """Schemas with the subject and version that the registry has for each, and its form: SCHEMAS."""
    rows = []
    for row in found.where("schema_id is not null").select("topic", "side", "schema_id").distinct().collect():
        schema = registry.schema(row.schema_id)
        if not isinstance(schema, str):
            subjects = dict(registry.named(row.schema_id))
            mine = f"{row.topic}-{row.side}"
            subject = mine if mine in subjects else min(subjects, default=None)
            rows.append((*row, subject, subjects.get(subject or ""), schema.form))
    names = found.sparkSession.createDataFrame(rows, ", ".join(SCHEMAS.split(", ")[:6]))
    joined = found.join(f.broadcast(names), ["topic", "side", "schema_id"], "left")
    return joined.select(*(each.split()[0] for each in SCHEMAS.split(", ")))


def record_bytes() -> Any:
    """Of a row of `slim`: bytes of key, value and headers."""
    return f.col("key_bytes") + f.coalesce("value_bytes", f.lit(0)) + f.col("header_bytes")


def by_size(rows: DataFrame) -> DataFrame:
    """The rows of `slim` counted by partition, range if they have one, and size of value: what `partitions` and `sizes`
    are made of."""
    ranged = ("generation", "range") if "range" in rows.columns else ()
    return rows.groupBy("topic", "partition", *ranged, "value_bytes").agg(
        f.count("*").alias("records"),
        f.sum(record_bytes()).alias("bytes"),
        f.min("offset").alias("first_offset"),
        f.max("offset").alias("last_offset"),
        f.min("time_ms").alias("first_ms"),
        f.max("time_ms").alias("last_ms"),
        f.count("odd").alias("odd_timestamps"),
        f.count_if(f.col("key").isNull()).alias("null_keys"),
        f.count_if(f.col("header_bytes") > 0).alias("with_headers"),
    )


def partitions(counted: DataFrame) -> DataFrame:
    """A row for each partition: records, bytes, offsets, times, nulls, sizes. counted: as from `by_size`."""
    sums = {
        name: f.sum(name).alias(name) for name in ("records", "bytes", "odd_timestamps", "null_keys", "with_headers")
    }
    quantiles = f.percentile("value_bytes", [0.5, 0.9, 0.99, 1.0], f.col("records"))
    return counted.groupBy("topic", "partition").agg(
        sums["records"],
        sums["bytes"],
        f.min("first_offset").alias("first_offset"),
        f.max("last_offset").alias("last_offset"),
        f.timestamp_millis(f.min("first_ms")).alias("first_time"),
        f.timestamp_millis(f.max("last_ms")).alias("last_time"),
        sums["odd_timestamps"],
        sums["null_keys"],
        f.coalesce(f.sum(f.when(f.col("value_bytes").isNull(), f.col("records"))), f.lit(0)).alias("null_values"),
        sums["with_headers"],
        quantiles.cast("array<int>").alias("value_bytes_p50_p90_p99_max"),
    )


def over_time(rows: DataFrame, step_s: int) -> DataFrame:
    """Records and bytes a second, by topic and time (`time`: where a step begins, by the records' own timestamps).

    A step without records, between the first and the last of a topic, is there with 0: plots join what is there.
    """
    step = (f.floor(f.col("time_ms") / (1000 * step_s)) * step_s).cast("bigint")
    found = (
        rows.where(f.col("time_ms").isNotNull())
        .groupBy("topic", step.alias("step"))
        .agg((f.count("*") / step_s).alias("records_per_s"), (f.sum(record_bytes()) / step_s).alias("bytes_per_s"))
    )
    following = f.lead("step").over(Window.partitionBy("topic").orderBy("step"))
    until_then = f.sequence("step", f.coalesce(f.col("_next") - step_s, "step"), f.lit(step_s).cast("bigint"))
    whole = found.withColumn("_next", following).withColumn("at", f.explode(until_then))
    rates = (f.when(f.col("at") == f.col("step"), f.col(name)).otherwise(0.0).alias(name) for name in found.columns[2:])
    return whole.select("topic", f.timestamp_seconds("at").alias("time"), *rates)


def sizes(counted: DataFrame) -> DataFrame:
    """How many records have values of up to `up_to` bytes, by powers of two; -1 for nulls.

    counted: as from `by_size`.
    """
    size = f.col("value_bytes")
    power = (
        f.when(size.isNull(), -1).when(size == 0, 0).otherwise(f.pow(f.lit(2.0), f.ceil(f.log2(size))).cast("bigint"))
    )
    return counted.groupBy("topic", power.cast("bigint").alias("up_to")).agg(f.sum("records").alias("records"))


def keys(rows: DataFrame) -> DataFrame:
    """The most frequent keys of each topic: rank, key as text, records, share; and how many keys there are, about."""
    keyed = rows.where(f.col("key").isNotNull())
    counts = keyed.groupBy("topic", "key_hash", "key").agg(f.count("*").alias("records"))
    whole = counts.groupBy("topic").agg(f.sum("records").alias("_all"), f.count("*").alias("distinct_keys"))
    # a rank with a limit is found in each task first: no task has all keys of a topic
    rank = f.row_number().over(Window.partitionBy("topic").orderBy(f.desc("records"), "key"))
    top = counts.withColumn("rank", rank).where(f.col("rank") <= TOP_KEYS)
    return top.join(f.broadcast(whole), "topic").select(
        "topic",
        f.decode("key", "ISO-8859-1").alias("key"),
        "records",
        "rank",
        (f.col("records") / f.col("_all")).alias("share"),
        "distinct_keys",
    )


def lateness(rows: DataFrame, counted: DataFrame | None = None) -> DataFrame:
    """How many records lie behind the latest timestamp before them in their partition, by how much at most (seconds;
    0: not at all, -1: by more than all of LATE_S), and the worst of each; without those that have odd timestamps.

    counted: as from `by_size`, of rows with ranges.
    """
    timed = rows.where(f.col("time_ms").isNotNull())
    late_ms = f.greatest(f.col("_before") - f.col("time_ms"), f.lit(0))
    step = f.when(f.coalesce("late_ms", f.lit(0)) == 0, 0)
    for seconds in LATE_S:
        step = step.when(f.col("late_ms") <= 1000 * seconds, seconds)
    fewer = counted.withColumnRenamed("last_ms", "time_ms") if counted and "range" in counted.columns else None
    before = ranges.greatest_before(timed, "time_ms", "_before", fewer)
    by_step = before.select("topic", late_ms.alias("late_ms")).withColumn("up_to_s", step.otherwise(-1))
    return by_step.groupBy("topic", "up_to_s").agg(f.count("*").alias("records"), f.max("late_ms").alias("worst_ms"))


def compression(records: DataFrame) -> DataFrame:
    """What each codec makes of the records in batches of batch.size: bytes before and after, by topic. Beside the
    codecs there are `v0` and `v1`, as in PACKED."""
    return packed(measured(records, 1))


def packed(rows: DataFrame) -> DataFrame:
    """Of rows of `measured`: bytes before and after, by topic and codec."""
    found = (
        rows.where(f.col("packed").isNotNull()).select("topic", f.explode("packed").alias("_")).select("topic", "_.*")
    )
    return found.groupBy("topic", "codec").agg(f.sum("before").alias("before"), f.sum("after").alias("after"))


PACKED = "packed array<struct<codec: string, before: bigint, after: bigint>>"
"""At some rows, what each codec makes of those around them: bytes before and after. `v0` and `v1` are the same records
in the old formats, uncompressed, which have no headers."""


def measured(records: DataFrame, every: int) -> DataFrame:
    """Records with PACKED, and with their values' sizes (`value_bytes`) instead of the values, which need not be read a
    second time then. every: try one batch of so many."""
    kept = [each for each in records.schema.fields if each.name != "value"]
    ddl = ", ".join([*(f"`{each.name}` {each.dataType.simpleString()}" for each in kept), "value_bytes int", PACKED])
    kind = pa.list_(pa.struct([("codec", pa.string()), ("before", pa.int64()), ("after", pa.int64())]))

    def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            cells: list[Any] = [None] * batch.num_rows
            topics = batch.column("topic").dictionary_encode()
            for code in range(len(topics.dictionary)):
                own = pc.equal(topics.indices, code)
                cells[pc.index(own, True).as_py()] = _packed(batch.filter(own), every)
            rest = batch.select([each.name for each in kept])
            rest = rest.append_column("value_bytes", pc.binary_length(batch.column("value")).cast(pa.int32()))
            yield rest.append_column("packed", pa.array(cells, kind))

    return kafka.with_headers(records).mapInArrow(measure, ddl)


def _packed(rows: pa.RecordBatch, every: int) -> list[dict[str, Any]]:
    """An entry of PACKED, of one topic's rows."""
    encoder = Encoder(rows)
    runs = list(encoder.batches(BATCH_BYTES))[::every]
    sizes = {
        name: sum(len(encoder.encoded(*run, codec_named(name).codec_id)) for run in runs) for name in codec_names()
    }
    plain = sizes["none"]
    cells = encoder.keys.ends + encoder.values.ends
    for magic, more in OLD_OVERHEAD.items():
        sizes[f"v{magic}"] = sum(int(cells[last] - cells[first]) + more * (last - first) for first, last in runs)
    return [{"codec": name, "before": plain, "after": size} for name, size in sizes.items()]
