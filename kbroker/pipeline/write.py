"""Writing records to topics from Spark's tasks: in order, with their timestamps, and there once whatever is repeated.

Called by replay and mirror. Two stages. Rows become batches, by as many tasks as the rows come in, a range of offsets
each: that is the work, and a mirror's workers do it where they have read them. Then each target partition's batches are
appended by one task, for a partition has one order; it does nothing with a record.

Spark's connector cannot set timestamps, and repeats what a task had written before it died. Here a partition's records
are numbered from the state's `base`: the n-th of them has sequence number n, under a producer id that the state keeps.
A task that starts again asks where the partition ends, passes over what is there and goes on; a request of its dead
predecessor that arrives late is a duplicate by its number, and dropped by the broker. No other producer may write to
those partitions meanwhile: that is checked, by the last record that is there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, groupby, islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kbroker.pipeline.columns import ROWS, Encoder, Producer, Span, decoded, encoded, produced
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import with_headers
from kbroker.pipeline.wire import LATEST, Cluster, Place, Settings, chunks
from protocol.namedtuple import NamedTuple
from protocol.records import Record
from protocol.records.batch import COUNT, unpack_header
from protocol.records.compression import codec_named
from protocol.records.content import parse_records

BATCH_BYTES = 500_000
"""Of records before compression: a batch stays under any broker's message.max.bytes unless one record alone is over."""
MOST_TASKS = 256
"""That append at a time, at most: with more target partitions than that a task has several, one after the other."""
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
PACKED = "place int, range int, number int, runs array<bigint>, data binary"
"""A row for each batch. place: of its target partition, in the order of the task's bases. range, number: which task
made it, and which one of its batches it is: the order of a partition's batches. runs: first source offset and number of
records of each run of offsets without a gap."""
_BATCH = pa.schema(
    [
        ("place", pa.int32()),
        ("range", pa.int32()),
        ("number", pa.int32()),
        ("runs", pa.list_(pa.int64())),
        ("data", pa.binary()),
    ]
)
_MANY = 16
"""Batches that go to Spark in one go: some 8 MB."""


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

    ordered: the rows of each of the frame's partitions are in order, and what one of them has of a target partition
    comes before what the next one has of it.
    """
    return appended(with_headers(ordered).mapInArrow(partial(packed, task, {}), PACKED), task)


def appended(batches: DataFrame, task: Task) -> DataFrame:
    """Append batches (rows of PACKED) and say where their records went: WRITTEN."""
    tasks = max(1, min(len(task.bases), MOST_TASKS))
    placed = batches.repartitionById(tasks, f.col("place") % tasks).sortWithinPartitions("place", "range", "number")

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = sorted(task.bases)
        with Cluster(task.settings, patient=True) as cluster:
            for number, rows in groupby(_rows(batches), key=lambda row: row[0]):
                yield from _Writer(cluster, task, places[number]).write((runs, data) for _, runs, data in rows)

    return placed.mapInArrow(append, WRITTEN)


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[int], bytes]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in ("place", "runs", "data")), strict=True)


def packed(task: Task, names: Mapping[str, str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of one of a frame's partitions, in order, as batches: rows of PACKED. names: of topics whose name at the
    target is another one."""
    context = TaskContext.get()
    mine = context.partitionId() if context else 0
    numbers = {place: number for number, place in enumerate(sorted(task.bases))}
    codec_id = codec_named(task.codec).codec_id
    # ten batches a second at a given rate, so that it is kept by the second and not by the megabyte
    most = max(1, int(task.rate / 10)) if task.rate else ROWS
    found: list[tuple[int, int, int, list[int], bytearray]] = []
    made = 0
    for (topic, partition), piece in _pieces(batches):
        place = names.get(topic, topic), partition
        if place not in numbers:
            raise PipelineError(f"{place[0]} has no partition {place[1]}: give it as many as the source has, or re-key")
        rows, offsets = Encoder(piece), piece.column("offset").to_numpy()
        for first, last in rows.batches(BATCH_BYTES, most):
            data = rows.encoded(first, last, codec_id)
            found.append((numbers[place], mine, made, _runs(offsets[first:last]), data))
            made += 1
            if len(found) == _MANY:
                yield _as_rows(found)
                found = []
    if found:
        yield _as_rows(found)


def _as_rows(found: list[tuple[int, int, int, list[int], bytearray]]) -> pa.RecordBatch:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*found, strict=True), _BATCH, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_BATCH)


def _runs(offsets: Any) -> list[int]:
    """First offset and number of each run without a gap."""
    starts = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
    return [number for start, end in pairwise(starts) for number in (int(offsets[start]), end - start)]


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
        self._base = task.bases[place]
        self._codec = codec_named(task.codec).codec_id
        end = cluster.offsets([place], LATEST)[place]
        self._there = end - self._base  # records that an earlier attempt has written
        if self._there < 0:
            raise PipelineError(
                f"{place[0]}-{place[1]} ends at {end}, before {self._base} where this job began to write: it was "
                "made again or cut; remove the job's state (--state) to write it all again"
            )
        self._index, self._began = 0, time.monotonic()
        self._runs: list[list[int]] = []  # source offset, target offset, records

    def write(self, batches: Iterator[tuple[list[int], bytes]]) -> Iterator[pa.RecordBatch]:
        """Append batches (their runs, as PACKED has them, and their bytes): rows of WRITTEN."""
        for batch in batches:
            some = chain([batch], islice(batches, _MANY - 1))
            self._cluster.append(self._place, self._batches(some))
            if done := self._runs[:-1]:  # of a compacted topic there may be as many as records
                yield self._rows_of(done)
                self._runs = self._runs[-1:]
        if self._index < self._there:
            raise self._foreign()
        yield self._rows_of(self._runs)

    def _rows_of(self, done: list[list[int]]) -> pa.RecordBatch:
        runs = np.array(done, np.int64).reshape(-1, 3)
        there = np.clip(self._base + self._there - runs[:, 1], 0, runs[:, 2])
        columns = [pa.array(runs[:, 0]), pa.array(runs[:, 1]), pa.array(runs[:, 2]), pa.array(runs[:, 2] - there)]
        topic = pa.repeat(pa.scalar(self._place[0], pa.string()), len(runs))
        partition = pa.repeat(pa.scalar(self._place[1], pa.int32()), len(runs))
        return pa.RecordBatch.from_arrays([topic, partition, *columns], schema=_WRITTEN)

    def _batches(self, batches: Iterator[tuple[list[int], bytes]]) -> Iterator[bytearray]:
        """The batches that are not there yet, numbered."""
        for runs, data in batches:
            header = unpack_header(memoryview(data), 0)
            first, count = self._index, header[COUNT]
            self._note(runs)
            if first + count < self._there:
                continue
            passed = max(self._there - first, 0)
            batch = bytearray(data)
            if passed:
                records = parse_records(memoryview(data), 0, header)
                self._compare(records[passed - 1])
                if passed == count:
                    continue
                rest = [each._replace(offset=number) for number, each in enumerate(records[passed:])]
                batch = encoded(rest, codec_id=self._codec)
            self._wait(first + passed - self._there)
            yield produced(batch, self._task.producer, first + passed)

    def _wait(self, sent: int) -> None:
        if self._task.rate:
            threading.Event().wait(max(0.0, self._began + sent / self._task.rate - time.monotonic()))

    def _note(self, runs: list[int]) -> None:
        """Remember which target offsets a batch's source offsets become."""
        for source, count in zip(runs[::2], runs[1::2], strict=True):
            last = self._runs[-1] if self._runs else None
            if last is not None and source == last[0] + last[2]:
                last[2] += count
            else:
                self._runs.append([source, self._base + self._index, count])
            self._index += count

    def _compare(self, mine: Record) -> None:
        """The last record that is there must be the one that this job put there."""
        at = self._base + self._there - 1
        span = Span(*self._place, at, at + 1)
        found = list(
            decoded((data for data, _ in chunks(self._cluster, self._place, at, at + 1, committed=False)), span)
        )
        theirs = [(each["key"], each["value"]) for rows in found for each in rows.select(["key", "value"]).to_pylist()]
        if theirs != [(mine.key, mine.value)]:
            raise self._foreign()

    def _foreign(self) -> PipelineError:
        topic, partition = self._place
        return PipelineError(
            f"{topic}-{partition} holds records behind offset {self._base} that this job did not write: no other "
            "producer may write to it meanwhile. Use another topic, or remove the job's state (--state) to go on there"
        )
