"""Log bytes as rows, without Spark."""

from __future__ import annotations

import pyarrow as pa

from kbroker.pipeline import columns
from kbroker.pipeline.columns import Span
from protocol.records.content import build_batch
from tests.pipeline.given import records


def test_columns_of_a_batch_say_where_they_end() -> None:
    """Memory is laid out for many more rows than these."""
    (batch,) = columns.decoded([memoryview(build_batch(records(20)))], Span("t", 0, 0, 20))
    batch.validate(full=True)
    sizes = {name: batch.column(name).nbytes for name in ("offset", "timestamp", "partition")}
    assert sizes == {"offset": 160, "timestamp": 160, "partition": 80}
    assert pa.Table.from_batches([batch]).nbytes < 3000
