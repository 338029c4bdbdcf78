"""Rows with the sizes of values and headers in place of their bytes: what a profile needs of records.

Called by `kafka.read_sizes` in Spark's Python workers. The JVM then never sees the bytes, which are most of a record.
Nor does it sort a partition to learn which timestamps came before another: the worker reads them in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kbroker.pipeline.columns import numbers

SIZES = "value_bytes int, header_bytes int, `range` int, before_ms bigint"
"""The columns that `sized` adds."""
_NONE = np.iinfo(np.int64).min


def sized(
    batches: Iterable[pa.RecordBatch], number: int, value_prefix: int, times: tuple[int, int]
) -> Iterator[pa.RecordBatch]:
    """Rows of SCHEMA_WITH_HEADERS, all of one partition in its order, without headers, with SIZES.

    `value` keeps its first `value_prefix` bytes. header_bytes: names and values together, 0 without headers. range:
    `number`, for all of them. before_ms: the largest timestamp before this one in these rows, of those that lie within
    `times` (ms, both ends); null if there is none.
    """
    latest = _NONE
    for batch in batches:
        stamps = batch.column("timestampMs").to_numpy()
        so_far = np.maximum.accumulate(np.where((stamps >= times[0]) & (stamps <= times[1]), stamps, _NONE))
        before = np.maximum(np.concatenate(([_NONE], so_far[:-1])), latest)
        latest = max(latest, int(so_far[-1]))
        value = batch.column("value")
        count = batch.num_rows
        rows = batch.drop_columns(["headers"])
        rows = rows.set_column(rows.schema.get_field_index("value"), "value", pc.binary_slice(value, 0, value_prefix))
        rows = rows.append_column("value_bytes", pc.binary_length(value))
        rows = rows.append_column("header_bytes", numbers(pa.int32(), count, header_bytes(batch.column("headers"))))
        rows = rows.append_column("range", numbers(pa.int32(), count, np.full(count, number, np.int32)))
        yield rows.append_column("before_ms", numbers(pa.int64(), count, before, before == _NONE))


def header_bytes(headers: pa.ListArray) -> np.ndarray:
    """Bytes of each row's headers, names and values together."""
    if headers.null_count == len(headers):
        return np.zeros(len(headers), np.int32)
    pairs = headers.flatten()
    names, values = (_filled(pc.binary_length(pairs.field(name))) for name in ("key", "value"))
    before = np.concatenate(([0], np.cumsum(names + values)))
    counts = _filled(pc.list_value_length(headers))
    ends = np.cumsum(counts)
    return (before[ends] - before[ends - counts]).astype(np.int32)


def _filled(lengths: pa.Int32Array) -> np.ndarray:
    """Lengths, 0 where there is null."""
    return np.nan_to_num(lengths.to_numpy(zero_copy_only=False)).astype(np.int64)
