"""How many records a batch has, by place and kind, seen while it is written: nothing is read again for it.

Called by what writes an archive's records (`files`, `tables`). Spark's observed metrics are aggregates over the rows
that pass; a histogram with a bin for each number counts exactly.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as f

RECORDS, QUARANTINE = "records", "quarantine"
KINDS = (RECORDS, QUARANTINE)
Counts = Counter[tuple[int, str]]
"""Records by place (the number of a span, as `place` has it) and kind."""


def observed(rows: DataFrame, places: int) -> tuple[DataFrame, Observation]:
    """Rows of kafka.read_apart, and what sees them pass."""
    seen = Observation("counts")
    code = 2 * f.col("place") + f.col("reason").isNotNull().cast("int")
    return rows.observe(seen, f.histogram_numeric(code, f.lit(2 * places + 2)).alias("found")), seen


def of_written(seen: Observation) -> Counts:
    """Once a command has written them."""
    return _counts(seen.get["found"])


def of_plan(seen: Observation, written: DataFrame) -> Counts:
    """Once the very plan of this frame has run, outside of a command."""
    row = written._jdf.queryExecution().observedMetrics().apply(seen._name)
    return _counts([(each["x"], each["y"]) for each in json.loads(row.json())["found"] or ()])


def _counts(bins: Sequence[Any] | None) -> Counts:
    found: Counts = Counter()
    for code, records in bins or ():  # tasks bring bins of their own
        found[int(code) // 2, KINDS[int(code) % 2]] += int(records)
    return found
