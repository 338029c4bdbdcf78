"""Records to put into topics, and DataFrames of records, for the tests of the pipeline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from kbroker.pipeline.columns import FIRST_MS, LAST_MS, encoded
from kbroker.pipeline.kafka import RECORDS
from kbroker.pipeline.wire import Cluster
from protocol.records import Record

T0 = 1_700_000_000_000
KEEP = {"retention.ms": "-1"}  # the records are old


def records(count: int, seed: int = 1) -> list[Record]:
    """Skewed keys, late timestamps, nulls, empties, headers."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        key = None if index % 7 == 0 else b"key-%d" % int(rng.paretovariate(0.8) % 50)
        value = None if index % 11 == 1 and key else b"" if index % 13 == 0 else b'{"number": %d}' % index
        time = T0 + 1000 * index - (3_600_000 if index % 50 == 49 else 0)
        headers = ((b"trace", b"%d" % index), (b"none", None)) if index % 5 == 0 else ()
        made.append(Record(index, time, key, value, headers))
    return made


def fill(cluster: Cluster, topic: str, partitions: Sequence[Sequence[Record]], codec_id: int = 0) -> None:
    """Make a topic with these records in its partitions, 100 a batch; a batch that is sent twice is there once."""
    if not cluster.has(topic):
        cluster.create(topic, len(partitions), KEEP)
    producer = cluster.producer()
    for index, content in enumerate(partitions):
        batches = [
            encoded(
                [each._replace(offset=place) for place, each in enumerate(content[at : at + 100])],
                codec_id=codec_id,
                producer=producer,
                sequence=at,
            )
            for at in range(0, len(content), 100)
        ]
        cluster.append((topic, index), batches)


def frame(spark: Any, rows: Sequence[tuple[Any, ...]]) -> Any:
    """A DataFrame of records as an archive has them: (topic, partition, offset, timestamp in ms, key, value), headers
    null, generation 0."""
    shown = [
        (topic, partition, offset, _time_of(ms), 0, ms, key, value, None, 0)
        for topic, partition, offset, ms, key, value in rows
    ]
    return spark.createDataFrame(shown, f"{RECORDS}, generation int")


def _time_of(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if FIRST_MS <= ms <= LAST_MS else None
