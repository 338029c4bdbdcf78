"""`compact-check`: what compaction, another codec, another record format or a shorter retention would save.

Simulated on what there is: nothing is changed. Works on a cluster's topics, an archive or a log directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.pipeline import audit, profile
from kbroker.pipeline.kafka import Source

Summary = dict[str, Any]
DAY_MS = 86_400_000
RETENTIONS_MS = (DAY_MS, 7 * DAY_MS, 30 * DAY_MS)
POLICY = "cleanup.policy=compact"
SAMPLED = 10
"""Codecs and formats are tried on one batch of so many: what they save depends on the kind of records."""


def compact_check(
    spark: SparkSession,
    side: Source | str,
    topics: Sequence[str],
    *,
    retentions_ms: Sequence[int] = RETENTIONS_MS,
    allow_gaps: bool = False,
) -> Summary:
    """What each change would leave of each topic. retentions_ms: which are tried. Raises PipelineError."""
    records = audit.records_of_side(spark, side, topics, allow_gaps)
    measured = profile.measured(records, SAMPLED)
    rows = profile.slim(measured, kept=["packed"]).persist()
    now = rows.groupBy("topic").agg(f.count("*").alias("records"), f.sum(profile.record_bytes()).alias("bytes"))
    whole = {row.topic: row for row in now.collect()}
    parts = [compacted(rows), *(retained(rows, each) for each in retentions_ms)]
    found: dict[str, Any] = {
        topic: {"records": row.records, "bytes": row.bytes, "changes": []} for topic, row in sorted(whole.items())
    }
    left = {(row.topic, row.change): (row.records, row.bytes) for row in _union(parts).collect()}
    for topic, change in product(found, sorted({POLICY, *map(_retention, retentions_ms)})):
        count, size = left.get((topic, change), (0, 0))  # what leaves nothing has no row
        saved = 100 - 100 * size / max(1, whole[topic].bytes)
        found[topic]["changes"].append({"change": change, "records": count, "bytes": size, "saves": f"{saved:.1f} %"})
    for row in sorted(packed(rows).collect(), key=lambda row: (row.topic, row.change)):
        saved = 100 - 100 * row.after / max(1, row.before)
        found[row.topic]["changes"].append(
            {"change": row.change, "saves": f"{saved:.1f} %", "of_bytes_tried": row.before}
        )
    rows.unpersist()
    return {"job": "compact-check", "topics": found}


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionByName(frame)
    return whole


# ---- DataFrame -> DataFrame


def compacted(rows: DataFrame) -> DataFrame:
    """What compaction leaves in the end: the last record of each key in a partition, and no tombstones.

    rows: as from profile.slim. A record without a key, which a compacted topic refuses, would stay.
    """
    content = f.struct("value_bytes", profile.record_bytes().alias("bytes"))
    last = rows.where(f.col("key").isNotNull()).groupBy("topic", "partition", "key_hash")
    kept = last.agg(f.max_by(content, f.struct("generation", "offset")).alias("last")).where(
        f.col("last.value_bytes").isNotNull()
    )
    unkeyed = rows.where(f.col("key").isNull()).select("topic", profile.record_bytes().alias("bytes"))
    return _counted(kept.select("topic", f.col("last.bytes").alias("bytes")).unionByName(unkeyed), POLICY)


def retained(rows: DataFrame, retention_ms: int) -> DataFrame:
    """What is no older than so many ms, beside the newest record of its topic whose timestamp may be true.

    Timestamps that cannot be true are taken as they are, as a broker takes them: one in the future is never too old.
    """
    newest = rows.groupBy("topic").agg(f.max("time_ms").alias("_newest"))
    young = f.coalesce(f.col("timestampMs") >= f.col("_newest") - retention_ms, f.lit(True))
    kept = rows.join(f.broadcast(newest), "topic").where(young)
    return _counted(kept.select("topic", profile.record_bytes().alias("bytes")), _retention(retention_ms))


def _retention(retention_ms: int) -> str:
    return f"retention.ms={retention_ms}"


def _counted(sizes: DataFrame, change: str) -> DataFrame:
    return sizes.groupBy("topic", f.lit(change).alias("change")).agg(
        f.count("*").alias("records"), f.sum("bytes").alias("bytes")
    )


def packed(rows: DataFrame) -> DataFrame:
    """Bytes before and after with each codec and in each old format, of one batch in SAMPLED."""
    found = profile.packed(rows).where(f.col("codec") != "none")
    is_format = f.col("codec").isin("v0", "v1")
    change = f.when(is_format, f.concat(f.lit("format "), "codec")).otherwise(
        f.concat(f.lit("compression.type="), "codec")
    )
    return found.select("topic", change.alias("change"), "before", "after")
