"""Writing records to topics from Spark's tasks: in order, with their timestamps, and there once whatever is repeated.

Called by replay and mirror. Spark's connector cannot set timestamps, and repeats what a task had written before it
died. Here a partition's records are numbered from the state's `base`: the n-th of them has sequence number n, under a
producer id that the state keeps. A task that starts again asks where the partition ends, passes over what is there and
goes on; a request of its dead predecessor that arrives late is a duplicate by its number, and dropped by the broker.
No other producer may write to those partitions meanwhile: that is checked, by the last record that is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from kbroker.pipeline.columns import ROWS, Producer, Span, batches_of, decoded, encoded, records_of
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import LATEST, Cluster, Place, Settings, chunks
from protocol.namedtuple import NamedTuple
from protocol.records import Record
from protocol.records.compression import codec_named

BATCH_BYTES = 500_000
"""Of records before compression: a batch stays under any broker's message.max.bytes unless one record alone is over."""
WRITTEN = "topic string, partition int, source_offset bigint, target_offset bigint, records bigint, appended bigint"
"""A row for each run of records whose offsets moved by the same distance. appended: those not there before."""
_WRITTEN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("source_offset", pa.int64()),
        ("target_offset", pa.int64()),
        ("records", pa.int64()),
        ("appended", pa.int64()),
    ]
)


class Task(NamedTuple):
    """What a writing task is told. bases: offset where the job's records begin in each target partition.

    rate: records a second of each task, None for as fast as it goes. codec: a compression.type.
    """

    settings: Settings
    producer: Producer
    bases: Mapping[Place, int]
    rate: float | None = None
    codec: str = "none"


def written(ordered: DataFrame, task: Task) -> DataFrame:
    """Write rows (topic and partition being the target's; offset the source's) and say where they went: WRITTEN.

    ordered: the rows of one target partition are all in one of the frame's partitions, side by side, in order.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Cluster(task.settings, patient=True) as cluster:
            for place, pieces in groupby(_pieces(batches), key=lambda piece: piece[0]):
                yield from _Writer(cluster, task, place).write(piece for _, piece in pieces)

    return ordered.mapInArrow(write, WRITTEN)


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Place, pa.RecordBatch]]:
    """The rows of one place after the other."""
    for batch in batches:
        if not batch.num_rows:
            continue
        topics = batch.column("topic").dictionary_encode()
        codes = topics.indices.to_numpy().astype(np.int64) << 32 | batch.column("partition").to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), batch.num_rows]
        for start, end in pairwise(starts):
            place = (batch.column("topic")[start].as_py(), batch.column("partition")[start].as_py())
            yield place, batch.slice(start, end - start)


class _Writer:
    """Writes one target partition."""

    def __init__(self, cluster: Cluster, task: Task, place: Place) -> None:
        self._cluster, self._task, self._place = cluster, task, place
        if place not in task.bases:
            raise PipelineError(f"{place[0]} has no partition {place[1]}: give it as many as the source has, or re-key")
        self._base = task.bases[place]
        self._codec = codec_named(task.codec).codec_id
        end = cluster.offsets([place], LATEST)[place]
        self._there = end - self._base  # records that an earlier attempt has written
        if self._there < 0:
            raise PipelineError(
                f"{place[0]}-{place[1]} ends at {end}, before {self._base} where this job began to write: it was "
                "made again or cut; remove the job's state (--state) to write it all again"
            )
        # ten batches a second at a given rate, so that it is kept by the second and not by the megabyte
        self._most = max(1, int(task.rate / 10)) if task.rate else ROWS
        self._index = 0
        self._runs: list[list[int]] = []  # source offset, target offset, records

    def write(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._cluster.append(self._place, self._batches(pieces))
        if self._index < self._there:
            raise self._foreign()
        runs = np.array(self._runs, np.int64).reshape(-1, 3)
        there = np.clip(self._base + self._there - runs[:, 1], 0, runs[:, 2])
        columns = [pa.array(runs[:, 0]), pa.array(runs[:, 1]), pa.array(runs[:, 2]), pa.array(runs[:, 2] - there)]
        topic = pa.repeat(pa.scalar(self._place[0], pa.string()), len(runs))
        partition = pa.repeat(pa.scalar(self._place[1], pa.int32()), len(runs))
        yield pa.RecordBatch.from_arrays([topic, partition, *columns], schema=_WRITTEN)

    def _batches(self, pieces: Iterator[pa.RecordBatch]) -> Iterator[bytearray]:
        began = time.monotonic()
        for piece in pieces:
            first = self._index
            self._note(piece.column("offset").to_numpy())
            passed = min(max(self._there - first, 0), piece.num_rows)
            if passed and first + passed == self._there:
                self._compare(records_of(piece.slice(passed - 1, 1))[0])
            sequence = first + passed
            for run in batches_of(records_of(piece.slice(passed)), BATCH_BYTES, self._most):
                self._wait(began, sequence - self._there)
                yield encoded(run, codec_id=self._codec, producer=self._task.producer, sequence=sequence)
                sequence += len(run)

    def _wait(self, began: float, sent: int) -> None:
        if self._task.rate:
            threading.Event().wait(max(0.0, began + sent / self._task.rate - time.monotonic()))

    def _note(self, offsets: Any) -> None:
        """Remember which target offsets these source offsets become."""
        starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
        for start, end in pairwise(starts):
            source, target = int(offsets[start]), self._base + self._index
            last = self._runs[-1] if self._runs else None
            if last is not None and source == last[0] + last[2]:
                last[2] += end - start
            else:
                self._runs.append([source, target, end - start])
            self._index += end - start

    def _compare(self, mine: Record) -> None:
        """The last record that is there must be the one that this job put there."""
        at = self._base + self._there - 1
        span = Span(*self._place, at, at + 1)
        found = list(
            decoded((data for data, _ in chunks(self._cluster, self._place, at, at + 1, committed=False)), span)
        )
        theirs = records_of(found[0])[0] if found and found[0].num_rows == 1 else None
        if theirs is None or (theirs.key, theirs.value) != (mine.key, mine.value):
            raise self._foreign()

    def _foreign(self) -> PipelineError:
        topic, partition = self._place
        return PipelineError(
            f"{topic}-{partition} holds records behind offset {self._base} that this job did not write: no other "
            "producer may write to it meanwhile. Use another topic, or remove the job's state (--state) to go on there"
        )
