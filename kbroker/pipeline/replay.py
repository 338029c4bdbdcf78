"""`replay`: an archive back into topics, with keys, values, headers, timestamps, and the order of each partition.

A replay is known by what it replays and where to; its state (producer id, offsets where it began) is kept beside the
archive. Started again after it was stopped, it goes on; after it has ended, it finds nothing left to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from kbroker.pipeline import archive, manifests, ranges
from kbroker.pipeline.ahead import is_another
from kbroker.pipeline.columns import Producer, hashes
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source, with_headers
from kbroker.pipeline.names import KEPT, carried, check_names
from kbroker.pipeline.storage import Storage, as_path, files_as_they_are
from kbroker.pipeline.wire import Cluster, Place
from kbroker.pipeline.write import Task, written
from protocol.namedtuple import NamedTuple

Summary = dict[str, Any]


def replay(
    spark: SparkSession,
    target: Source,
    folder: str,
    *,
    topics: Mapping[str, str] | None = None,
    since: int | None = None,
    until: int | None = None,
    keys: str | None = None,
    rekey: bool = False,
    partitions: int | None = None,
    rate: float | None = None,
    codec: str = "none",
    state: str | None = None,
) -> Summary:
    """Replay an archive. topics: archived name -> name at the target; None for all, by their own names.

    since, until: ms; records from `since` on and before `until`. keys: a file with a key a line. rekey: choose
    partitions by key as Kafka's producer does, of `partitions` if the topic is new. rate: records a second in all.

    A topic that is made for it has the settings of the archived one.
    """
    renamed = dict(topics or {})
    check_names(renamed)
    frame = selected(archive.read(spark, folder, list(renamed)), since=since, until=until)
    if keys is not None:
        frame = with_keys(frame, files_as_they_are(spark).text(as_path(keys)))
    parts = in_ranges(frame)
    names = {topic: max(part.partition for part in parts if part.topic == topic) + 1 for topic in _topics_of(parts)}
    known = manifests.described(Storage(spark, folder))
    store = Storage(spark, state or f"{folder.rstrip('/')}/_replays")
    wanted = [target.bootstrap, sorted(renamed.items()), since, until, keys, rekey, partitions]
    name = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16] + ".json"
    with Cluster(target.settings) as cluster:
        counts = {}
        for old, needed in sorted(names.items()):
            new = renamed.get(old, old)
            if not cluster.has(new):
                had = known.get("partitions", {}).get(old, needed)
                cluster.create(
                    new, partitions or max(had, needed), {**carried(known.get("settings", {}).get(old, {})), **KEPT}
                )
            counts[new] = cluster.partitions(new)
            if not rekey and counts[new] < needed:
                raise PipelineError(
                    f"{new} at {target.bootstrap} has {counts[new]} partitions, {old} was archived with {needed}: add "
                    "partitions, or let keys choose them (--rekey)"
                )
        producer, bases = _state(store, name, cluster, list(counts), rekey=rekey)
    ordered = by_key(frame, {old: counts[renamed.get(old, old)] for old in names}) if rekey else by_range(frame, parts)
    tasks = max(1, min(len(bases), spark.sparkContext.defaultParallelism))  # that write at the same time
    task = Task(target.settings, producer, bases, rate / tasks if rate else None, codec)
    done = written(renamed_topics(ordered, renamed), task)
    rows = done.groupBy("topic").agg(f.sum("records").alias("records"), f.sum("appended").alias("appended")).collect()
    found = {row.topic: {"records": row.records, "written": row.appended} for row in rows}
    return {
        "job": "replay",
        "to": target.bootstrap,
        "records": sum(each["records"] for each in found.values()),
        "written": sum(each["written"] for each in found.values()),
        "topics": found,
    }


def _state(
    store: Storage, name: str, cluster: Cluster, topics: Sequence[str], *, rekey: bool
) -> tuple[Producer, dict[Place, int]]:
    """Who writes from where: as the first run of this replay had it that had anything for that place."""
    producer, bases = None, {}
    ids = cluster.ids(topics)
    if store.exists(name):
        known = store.read_json(name)
        for topic, before in known.get("ids", {}).items():
            if is_another(before, ids.get(topic, "")):
                raise PipelineError(
                    f"topic {topic} was deleted and made again since this replay began to write to it: remove the "
                    f"replay's state ({store.path(name)}) to write it all again"
                )
        producer = Producer(*known["producer"])
        bases = {(topic, index): base for topic, index, base in known["bases"]}
    begun = {topic for topic, _ in bases} if rekey else ()  # another partition would move keys that are there already
    new = {place: end.end for place, end in cluster.ends(topics).items() if place not in bases}
    new = {place: base for place, base in new.items() if place[0] not in begun}
    if producer is not None and not new:
        return producer, bases
    producer, bases = producer or cluster.producer(), bases | new
    rows = [[*place, base] for place, base in bases.items()]
    store.write_json(name, {"producer": list(producer), "bases": rows, "ids": ids})
    return producer, bases


# ---- DataFrame -> DataFrame


def selected(records: DataFrame, *, since: int | None, until: int | None) -> DataFrame:
    """Records from `since` on and before `until`, in ms since 1970."""
    if since is not None:
        records = records.where(f.col("timestampMs") >= since)
    if until is not None:
        records = records.where(f.col("timestampMs") < until)
    return records


def with_keys(records: DataFrame, keys: DataFrame) -> DataFrame:
    """Records whose key is one of these; keys: a column `value` of text."""
    wanted = keys.select(f.col("value").cast("binary").alias("key")).distinct()
    return records.join(wanted, "key", "left_semi")


def renamed_topics(records: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Records under their topics' new names."""
    topic = f.col("topic")
    for old, new in names.items():
        if old != new:
            topic = f.when(f.col("topic") == old, new).otherwise(topic)
    return records.withColumn("topic", topic)


class Part(NamedTuple):
    """A range of offsets of an archive. range: its number in its partition, as ranges.RECORDS makes them."""

    topic: str
    partition: int
    generation: int
    range: int
    records: int


def in_ranges(records: DataFrame) -> list[Part]:
    """Where the records lie, in order; of an archive only its small columns are read for it."""
    number = f.floor(f.col("offset") / ranges.RECORDS).alias("range")
    rows = records.groupBy("topic", "partition", "generation", number).agg(f.count("*").alias("records")).collect()
    return sorted(Part(*row) for row in rows)


def by_range(records: DataFrame, parts: Sequence[Part]) -> DataFrame:
    """The records of these parts in order, a task having ranges.RECORDS of them, about: no partition is one task."""
    numbers, task, filled = [], 0, 0
    for part in parts:
        if filled and filled + part.records > ranges.RECORDS:
            task, filled = task + 1, 0
        filled += part.records
        numbers.append((*part[:4], task))
    known = "topic string, partition int, generation int, _range bigint, _task int"
    tasks = records.sparkSession.createDataFrame(numbers, known)
    ranged = records.withColumn("_range", f.floor(f.col("offset") / ranges.RECORDS))
    joined = ranged.join(f.broadcast(tasks), ["topic", "partition", "generation", "_range"])
    order = ("topic", "partition", "generation", "offset")
    placed = joined.repartitionById(task + 1, "_task").sortWithinPartitions(*order)
    return placed.select(*records.columns)


def by_key(records: DataFrame, partitions: Mapping[str, int]) -> DataFrame:
    """Records on the partition that their key has at the target, in an order that keeps that of each source partition.

    Between source partitions the order is by time: by the latest timestamp so far, for a late record must not
    overtake what lay before it. Records without a key are spread by their offset.
    """
    time = f.when(f.col("timestamp").isNotNull(), f.col("timestampMs"))
    before = ranges.greatest_before(records.withColumn("_time", time), "_time", "_before")
    so_far = f.greatest("_time", "_before")
    timed = before.withColumns({"_so_far": so_far, "_source": f.col("partition")}).drop("_time", "_before")

    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            index = batch.schema.get_field_index("partition")
            yield batch.set_column(index, "partition", _placed(batch, partitions))

    placed = with_headers(timed).mapInArrow(place, timed.schema)
    ordered = placed.repartition(max(1, min(sum(partitions.values()), 64)), "topic", "partition")
    return ordered.sortWithinPartitions("topic", "partition", "generation", "_so_far", "_source", "offset")


def _placed(batch: pa.RecordBatch, partitions: Mapping[str, int]) -> pa.Array:
    topics, keys = batch.column("topic").dictionary_encode(), batch.column("key")
    counts = np.array([partitions[each] for each in topics.dictionary.to_pylist()], np.int64)[topics.indices.to_numpy()]
    is_keyed = keys.is_valid().to_numpy(zero_copy_only=False)
    return pa.array((np.where(is_keyed, hashes(keys), batch.column("offset").to_numpy()) % counts).astype(np.int32))


def _topics_of(parts: Sequence[Part]) -> list[str]:
    return sorted({part.topic for part in parts})
