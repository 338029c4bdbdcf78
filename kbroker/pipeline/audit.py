"""`audit`: whether two sides hold the same records in the same order, and which offsets differ if not.

A side is a cluster, an archive or a log directory. First each partition's facts: count, offsets, gaps, duplicates, and
a checksum over its records in order (key, value, headers, timestamp; not the offset, for a copy of a compacted or
transactional topic has no gaps). Partitions whose facts differ are then compared record by record: what is on one side
alone, what has changed where it lies, what has changed its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from kbroker.pipeline import archive, kafka, manifests, ranges, segments
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.ranges import AT, PLACE, greatest_before, ranked
from kbroker.pipeline.source import register
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster

Summary = dict[str, Any]
SHOWN = 100
"""Ranges of differing offsets that are told of a partition; the rest are counted."""


def audit(
    spark: SparkSession,
    left: Source | str,
    right: Source | str,
    topics: Mapping[str, str],
    *,
    allow_gaps: bool = False,
    ignore_timestamps: bool = False,
) -> Summary:
    """Compare. left, right: a cluster, or the folder of an archive. topics: name on the left -> name on the right.

    Returns: a summary with `equal`, the facts of each side by partition, and `differences`. Raises PipelineError.
    """
    names = dict(topics)
    rows = [
        records_of_side(spark, left, list(names), allow_gaps),
        _renamed(records_of_side(spark, right, list(names.values()), allow_gaps), names),
    ]
    newest = _newest(spark, (left, right), names)
    for topic, generation in newest.items():  # a side without generations has this one alone
        rows = [
            side.where((f.col("topic") != topic) | (f.col("generation") == generation)) if _is_archive(given) else side
            for given, side in zip((left, right), rows, strict=True)
        ]
    sides = [digest(side, timestamps=not ignore_timestamps).persist(StorageLevel.MEMORY_AND_DISK) for side in rows]
    try:
        return _compared(sides, newest)
    finally:
        for side in sides:
            side.unpersist()


def _compared(sides: Sequence[DataFrame], newest: Mapping[str, int]) -> Summary:
    """The summary of two sides' digests."""
    found = [{(row.topic, row.partition): row.asDict() for row in facts(side).collect()} for side in sides]
    partitions = []
    suspects = []
    for place in sorted({*found[0], *found[1]}):
        both = [side.get(place) for side in found]
        same = _same(*both)
        partitions.append({"topic": place[0], "partition": place[1], "equal": same, "left": both[0], "right": both[1]})
        if not same:
            suspects.append(place)
    differing = differences(*(_only(side, suspects) for side in sides)) if suspects else None
    return {
        "job": "audit",
        "equal": not suspects,
        "records_left": sum(each["records"] for each in found[0].values()),
        "records_right": sum(each["records"] for each in found[1].values()),
        **({"generations": newest} if newest else {}),
        "partitions": partitions,
        "differences": _told(differing) if differing is not None else [],
    }


def records_of_side(spark: SparkSession, side: Source | str, topics: Sequence[str], allow_gaps: bool) -> DataFrame:
    """The records of a cluster's topics, an archive, or a log directory: committed ones. Raises PipelineError."""
    if _is_archive(side):
        return archive.read(spark, side, topics)
    if isinstance(side, str):
        there = segments.topics(side)
        if missing := set(topics) - there:
            raise PipelineError(f"{side} has no topic {min(missing)!r}; it has: {', '.join(sorted(there))}")
        register(spark)
        reader = spark.read.format("kbroker").option("includeHeaders", "true")
        if topics:
            reader = reader.option("subscribe", ",".join(topics))
        return reader.option("kafka.isolation.level", "read_committed").load(side).select(*kafka.COLUMNS)
    with Cluster(side.settings) as cluster:
        spans = cluster.ends(kafka.existing(cluster, topics, side.bootstrap), committed=True)
    return kafka.read(spark, side, spans, allow_gaps=allow_gaps)


def _is_archive(side: Source | str) -> TypeGuard[str]:
    return isinstance(side, str) and not any(Path(side).glob("*-*/*.log"))


def _newest(spark: SparkSession, sides: tuple[Source | str, Source | str], names: Mapping[str, str]) -> dict[str, int]:
    """By topic (as the left calls it), which of its generations is compared, where an archive has several and stands
    beside the very topic that it was made of: that one holds the newest alone."""
    found = {}
    for folder, other, back in ((sides[0], sides[1], False), (sides[1], sides[0], True)):
        if not _is_archive(folder) or isinstance(other, str):
            continue
        _, read = manifests.progress(Storage(spark, folder))
        with Cluster(other.settings) as cluster:
            ids = cluster.ids(names if back else names.values())
        for left, right in names.items():
            known = read.topics.get(right if back else left)
            if known and known.generation and known.id and ids.get(left if back else right) == known.id:
                found[left] = known.generation
    return found


def _renamed(records: DataFrame, names: Mapping[str, str]) -> DataFrame:
    back = {new: old for old, new in names.items() if new != old}
    return records.replace(back, subset=["topic"]) if back else records


def _same(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    if left is None or right is None:
        return False
    same: bool = (left["records"], left["checksum"]) == (right["records"], right["checksum"])
    return same and not left["duplicates"] and not right["duplicates"]


def _only(side: DataFrame, places: Sequence[tuple[str, int]]) -> DataFrame:
    spark = side.sparkSession
    wanted = spark.createDataFrame(list(places), "topic string, partition int")
    return side.join(f.broadcast(wanted), list(PLACE), "left_semi")


# ---- DataFrame -> DataFrame


def digest(records: DataFrame, *, timestamps: bool = True) -> DataFrame:
    """Topic, partition, generation, offset, and a 128-bit `digest` of each record."""
    parts: list[Column] = [f.col("timestampMs").cast("string") if timestamps else f.lit("")]
    headers = f.transform("headers", lambda each: f.concat_ws("=", f.hex(each["key"]), _hex_or_none(each["value"])))
    parts += [f.hex("key"), f.hex("value"), f.when(f.size("headers") > 0, f.array_join(headers, ","))]
    # one text a record, null unlike empty; MD5 is for accidents, not for adversaries
    text = f.concat_ws("|", *map(_or_none, parts))
    generation = f.col("generation") if "generation" in records.columns else f.lit(0)
    return records.select(*PLACE, generation.alias("generation"), "offset", f.md5(text).alias("digest"))


def _or_none(text: Column) -> Column:
    return f.coalesce(text, f.lit("-"))


def _hex_or_none(content: Column) -> Column:
    return _or_none(f.hex(content))


def facts(digests: DataFrame) -> DataFrame:
    """A row for each partition: records, first and last offset, gaps (how many, and offsets missing in them),
    duplicates (offsets seen again), and a checksum of all digests in order."""
    mixed, step = f.xxhash64("rank", "digest"), f.col("step")
    return (
        ranked(digests)
        .groupBy(*PLACE)
        .agg(
            f.count("*").alias("records"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
            f.count_if(step > 1).alias("gaps"),
            f.coalesce(f.sum(f.when(step > 1, step - 1)), f.lit(0)).alias("missing"),
            f.count_if(step == 0).alias("duplicates"),
            f.bit_xor(mixed).alias("_xor"),
            f.sum(mixed.cast("decimal(38,0)")).alias("_sum"),
        )
        .select("*", f.md5(f.concat_ws("|", "_xor", "_sum")).alias("checksum"))
        .drop("_xor", "_sum")
    )


def differences(left: DataFrame, right: DataFrame) -> DataFrame:
    """Runs of offsets that differ: topic, partition, kind, generation, first, last, records.

    left, right: digests. kind: `missing` (offsets of the left, that the right does not have), `extra` (offsets of the
    right), `changed` (same offset, other record), `moved` (offsets of the left whose record comes too early or too late
    on the right).
    """
    nth = Window.partitionBy(*PLACE, "digest").orderBy(*AT)
    both = [
        side.select(*PLACE, "digest", f.row_number().over(nth).alias("_nth"), f.struct(*AT).alias(name))
        for side, name in ((left, "left"), (right, "right"))
    ]
    paired = both[0].join(both[1], [*PLACE, "digest", "_nth"], "full_outer")
    single = paired.where(f.col("left").isNull() | f.col("right").isNull())
    one = single.select(*PLACE, f.coalesce("left", "right").alias("at"), f.col("left").isNotNull().alias("_mine"))
    kinds = one.groupBy(*PLACE, "at").agg(f.bool_or("_mine").alias("_l"), f.bool_or(~f.col("_mine")).alias("_r"))
    kind = f.when(f.col("_l") & f.col("_r"), "changed").when(f.col("_l"), "missing").otherwise("extra")
    unpaired = kinds.select(*PLACE, kind.alias("kind"), "at.*")
    matched = paired.where(f.col("left").isNotNull() & f.col("right").isNotNull()).select(*PLACE, "left.*", "right")
    moved = greatest_before(matched, "right", "_high").where(f.col("right") < f.col("_high"))
    return runs(unpaired.unionByName(moved.select(*PLACE, f.lit("moved").alias("kind"), *AT)))


def runs(offsets: DataFrame) -> DataFrame:
    """Offsets (topic, partition, kind, generation, offset) as runs: first, last, records. Found in ranges of offsets,
    and then joined where two ranges meet."""
    of = (*PLACE, "kind", "generation")
    ranged = offsets.withColumn("_range", f.floor(f.col("offset") / ranges.RECORDS))
    within = Window.partitionBy(*of, "_range").orderBy("offset")
    pieces = (
        ranged.withColumn("_run", f.col("offset") - f.row_number().over(within))
        .groupBy(*of, "_range", "_run")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.count("*").alias("records"))
    )
    order = Window.partitionBy(*of).orderBy("first")
    begins = f.coalesce(f.col("first") != f.lag("last").over(order) + 1, f.lit(True)).cast("int")
    return (
        pieces.select(*of, "first", "last", "records", begins.alias("_begins"))
        .withColumn("_run", f.sum("_begins").over(order))
        .groupBy(*of, "_run")
        .agg(f.min("first").alias("first"), f.max("last").alias("last"), f.sum("records").alias("records"))
        .drop("_run")
    )


def _told(found: DataFrame) -> list[dict[str, Any]]:
    """The first ranges of each partition and kind, and how many records all of them have."""
    place = Window.partitionBy(*PLACE, "kind")
    numbered = found.withColumn("_n", f.row_number().over(place.orderBy("generation", "first"))).withColumn(
        "_all", f.sum("records").over(place)
    )
    rows = numbered.where(f.col("_n") <= SHOWN).orderBy(*PLACE, "kind", "generation", "first").collect()
    told: dict[tuple[str, int, str], dict[str, Any]] = {}
    for row in rows:
        entry = told.setdefault(
            (row.topic, row.partition, row.kind),
            {"topic": row.topic, "partition": row.partition, "kind": row.kind, "records": row["_all"], "offsets": []},
        )
        offsets = str(row.first) if row.first == row.last else f"{row.first}-{row.last}"
        entry["offsets"].append(f"{offsets} of generation {row.generation}" if row.generation else offsets)
    return list(told.values())
