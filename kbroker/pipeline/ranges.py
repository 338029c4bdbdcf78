"""Questions about the records of a partition in order, asked of ranges of its offsets, and their answers combined.

Called by audit and profile. A window over a whole partition would be one task, however large the partition is.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

RECORDS = 250_000
"""Offsets of a range."""
PLACE = ("topic", "partition")
AT = ("generation", "offset")
"""What orders the records of a partition. generation: 0 where a side has no other."""
_RANGE = (*PLACE, "generation", "_range")


def _in_ranges(rows: DataFrame) -> DataFrame:
    return rows.withColumn("_range", f.floor(f.col("offset") / RECORDS))


def _earlier() -> Window:
    """Of a range's rows: all ranges of the partition before it."""
    order = Window.partitionBy(*PLACE).orderBy("generation", "_range")
    return order.rowsBetween(Window.unboundedPreceding, -1)


def greatest_before(rows: DataFrame, column: str, name: str, fewer: DataFrame | None = None) -> DataFrame:
    """Rows with the greatest value of a column that comes before each in its partition; null if none.

    rows: with PLACE, AT and the column. With `range` and `before_ms` (`sizes.sized`), what comes before each in its
    range is known, and no partition is sorted. fewer: rows with the same greatest values in each `range`.
    """
    if "range" in rows.columns:
        ranged = rows.withColumnsRenamed({"range": "_range", "before_ms": "_within"})
    else:
        within = Window.partitionBy(*_RANGE).orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
        ranged = _in_ranges(rows).withColumn("_within", f.max(column).over(within))
    ends = fewer.withColumnRenamed("range", "_range") if fewer else ranged
    ends = ends.groupBy(*_RANGE).agg(f.max(column).alias("_most"))
    earlier = ends.select(*_RANGE, f.max("_most").over(_earlier()).alias("_earlier"))
    joined = ranged.join(f.broadcast(earlier), list(_RANGE))
    return joined.withColumn(name, f.greatest("_within", "_earlier")).drop("_range", "_within", "_earlier")


def ranked(rows: DataFrame) -> DataFrame:
    """Rows with their number in their partition, from 1 on (`rank`), and how far the offset is behind the one before
    in the same generation (`step`; null if there is none)."""
    ranged = _in_ranges(rows)
    ends = ranged.groupBy(*_RANGE).agg(f.count("*").alias("_count"), f.max("offset").alias("_last"))
    same = Window.partitionBy(*PLACE, "generation").orderBy("_range")
    earlier = ends.select(
        *_RANGE,
        f.coalesce(f.sum("_count").over(_earlier()), f.lit(0)).alias("_base"),
        f.lag("_last").over(same).alias("_before"),
    )
    within = Window.partitionBy(*_RANGE).orderBy("offset")
    joined = ranged.join(f.broadcast(earlier), list(_RANGE))
    step = f.col("offset") - f.coalesce(f.lag("offset").over(within), "_before")
    rank = f.col("_base") + f.row_number().over(within)
    return joined.withColumns({"rank": rank, "step": step}).drop("_range", "_base", "_before")
