"""`mirror`: topics from one Kafka cluster to another, either of them any Kafka; and groups' offsets with them.

Works in chunks. A chunk is decided (spans of source offsets, where the target's partitions end, a producer id), written
into the state, carried out, and closed; one that was cut off is carried out again as it was decided, and by its
sequence numbers each record is at the target once. Which source offset became which target offset is kept as Parquet
beside the state: rows of runs, `source_offset` to `target_offset` for so many `records`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from kbroker.pipeline import ahead, kafka
from kbroker.pipeline.ahead import Policy, Read, Spans, is_another
from kbroker.pipeline.columns import Producer
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.lease import Lease
from kbroker.pipeline.names import carried, check_names
from kbroker.pipeline.progress import FREE, Pace, Step
from kbroker.pipeline.storage import Storage, files_as_they_are
from kbroker.pipeline.wire import AnswerError, Cluster, PartitionEnd, Place
from kbroker.pipeline.write import PACKED, WRITTEN, Task, appended, packed
from protocol.errors import ErrorCode

Summary = dict[str, Any]
Names = Mapping[str, str]
"""A topic's name at the source -> its name at the target."""
Committed = dict[str, list[tuple[str, int, int]]]
"""By group: topic (as the target calls it), partition, offset."""
STATE, MAP = "mirror.json", "map"
MAPPED = f"{WRITTEN}, generation int"
"""Of the map. generation: which one of its topic's at the source the offsets are of."""
PAUSE_S = 2.0
_OF_MEMBERS = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS)
"""What a commit from outside is answered while a group has members."""


def mirror(
    spark: SparkSession,
    source: Source,
    target: Source,
    topics: Mapping[str, str],
    state: str,
    *,
    pattern: str | None = None,
    pace: Pace = FREE,
    groups: Sequence[str] = (),
    until_now: bool = True,
    codec: str = "none",
    allow_gaps: bool = False,
    recreated: str = ahead.STOP,
    on_batch: Callable[[Step | None], None] = lambda _: None,
) -> Summary:
    """Mirror what there is, or (until_now=False) that and all that comes, until interrupted.

    topics: name at the source -> name at the target. pattern: a regular expression, instead of topics, whose copies
    have their names: those whose whole name it matches, and those that are added later. state: a folder for this mirror
    alone. groups: whose committed offsets are translated, ("*",) for all. recreated: one of ahead.RECREATED. on_batch:
    is called after each look at the source, with what was done; None for nothing. Raises PipelineError.
    """
    check_names(topics)
    store = Storage(spark, state)
    names = dict(topics)
    copied = 0
    translated: dict[str, Any] = {}
    committed: Committed | None = None  # what was translated last
    with Cluster(source.settings) as here, Cluster(target.settings) as there, Lease(store) as held:
        if pattern:
            names = {topic: topic for topic in kafka.matching(here, pattern)}
        if names or not pattern:
            kafka.existing(here, list(names), source.bootstrap)
        elif until_now:
            raise PipelineError(f"{source.bootstrap} has no topic that {pattern} matches")
        _check_groups(here, groups, source.bootstrap)
        held.acquire()
        known = _begin(store, source, target, names)
        _check_target(spark, store, known, there, names)
        _make_topics(here, there, names)
        job = _Job(spark, store, known, here, there, (source, target), names, codec, Policy(allow_gaps, recreated))
        job.pattern, job.pace = pattern, pace
        try:
            while True:
                asked = time.monotonic()
                held.check()
                step = job.chunk(until_now=until_now)
                moved = sum(step.records.values()) if step else 0
                copied += moved
                on_batch(step and step._replace(seconds=time.monotonic() - asked))
                if groups and ((now := _committed(here, job.names, groups)) != committed or moved):
                    committed, translated = now, _move_groups(spark, store, there, now)
                if until_now and not step:
                    break
                pause = pace.every_s if pace.every_s is not None else 0 if step else PAUSE_S
                if not until_now and (rest := asked + pause - time.monotonic()) > 0:
                    threading.Event().wait(rest)
        except KeyboardInterrupt:
            if until_now:
                raise  # what there was is not all mirrored
    return {
        "job": "mirror",
        "from": source.bootstrap,
        "to": target.bootstrap,
        "records": copied,
        "chunks": known["chunks"],
        "groups": translated,
    }


def offsets_map(spark: SparkSession, state: str) -> DataFrame:
    """What became of which offset: columns of MAPPED; the topic is the target's name."""
    store = Storage(spark, state)
    if not store.names(MAP):
        return spark.createDataFrame([], MAPPED)
    return files_as_they_are(spark).schema(MAPPED).parquet(*(store.path(f"{MAP}/{name}") for name in store.names(MAP)))


# ---- DataFrame -> DataFrame


def translated_offsets(committed: DataFrame, runs: DataFrame) -> DataFrame:
    """Offsets that groups have committed at the source (group, topic, partition, committed) as the target's: `target`.

    An offset inside a run moves with it; one in a gap goes to the record behind the gap; one before all that was
    mirrored to the first record. Groups of partitions of which nothing was mirrored have no row.
    """
    runs = runs.select("topic", "partition", "source_offset", "target_offset", "records")
    pairs = committed.join(runs, ["topic", "partition"])
    before = f.col("source_offset") <= f.col("committed")
    step = f.least(f.col("committed") - f.col("source_offset"), f.col("records"))
    return (
        pairs.groupBy("group", "topic", "partition", "committed")
        .agg(
            f.max_by(f.col("target_offset") + step, f.when(before, f.col("source_offset"))).alias("_inside"),
            f.min("target_offset").alias("_first"),
        )
        .select("group", "topic", "partition", "committed", f.coalesce("_inside", "_first").alias("target"))
    )


# ---- chunks


def _begin(store: Storage, source: Source, target: Source, names: Mapping[str, str]) -> dict[str, Any]:
    """The state, of a mirror from and to these places; made if there is none."""
    wanted = {"from": source.bootstrap, "to": target.bootstrap}
    if not store.exists(STATE):
        known: dict[str, Any] = {**wanted, "chunks": 0, **Read({}, {}).state(), "open": None}
        store.write_json(STATE, known)
    known = dict(store.read_json(STATE))
    if {name: known[name] for name in wanted} != wanted:
        raise PipelineError(
            f"{store.root} is the state of a mirror from {known['from']} to {known['to']}: give another --state"
        )
    for old, new in names.items():  # what is mirrored is known by its name at the source: it would not be sent again
        if (before := known.setdefault("names", {}).setdefault(old, new)) != new:
            raise PipelineError(f"{old} was mirrored to {before} by this state: give another --state ({store.root})")
    return known


def _check_groups(here: Cluster, groups: Sequence[str], bootstrap: str) -> None:
    """Raises PipelineError for a group that there is not: of one that was mistyped nothing would be translated."""
    there = here.groups() if groups and tuple(groups) != ("*",) else list(groups)
    for group in groups:
        if group not in there and not here.committed(group):
            raise PipelineError(f"{bootstrap} has no group {group!r}; it has: {', '.join(there[:10]) or 'none'}")


def _check_target(spark: SparkSession, store: Storage, known: dict[str, Any], there: Cluster, names: Names) -> None:
    """Raises PipelineError where records are gone that were mirrored: none is sent a second time."""
    ids = there.ids(names.values())
    for topic, before in known.get("target_ids", {}).items():
        if topic in names.values() and (topic not in ids or is_another(before, ids[topic])):
            raise PipelineError(
                f"topic {topic} at the target was deleted, or made again, since it was mirrored: {_AGAIN}"
            )
    ends = there.ends(ids)
    end_of_runs = f.max(f.col("target_offset") + f.col("records")).alias("end")
    for row in offsets_map(spark, store.root).groupBy("topic", "partition").agg(end_of_runs).collect():
        end = ends[row.topic, row.partition].end if (row.topic, row.partition) in ends else 0
        if row.topic in names.values() and end < row.end:
            raise PipelineError(
                f"{row.topic}-{row.partition} ends at {end} at the target, before {row.end} up to which it was "
                f"mirrored: it was deleted, made again or cut: {_AGAIN}"
            )


_AGAIN = "mirror it by itself with another --state, to have all of it again"


class _Job:
    """A mirror at work: its two clusters and its state."""

    def __init__(
        self,
        spark: SparkSession,
        store: Storage,
        known: dict[str, Any],
        here: Cluster,
        there: Cluster,
        ends: tuple[Source, Source],
        names: Names,
        codec: str,
        policy: Policy,
    ) -> None:
        self._spark, self._store, self._known, self._here, self._there = spark, store, known, here, there
        self._source, self._target = ends
        self.names, self._codec, self._policy = names, codec, policy
        self._goal: Spans | None = None
        self.pattern: str | None = None
        self.pace = FREE

    def _learn(self) -> None:
        """Take in topics that are new at the source."""
        new = set(kafka.matching(self._here, self.pattern)) - {*self.names} if self.pattern else ()
        if new:
            self.names = {**self.names, **{topic: topic for topic in sorted(new)}}
            self._known["names"] = {**self._known.get("names", {}), **self.names}
            _make_topics(self._here, self._there, self.names)

    def chunk(self, *, until_now: bool) -> Step | None:
        """Carry out the open chunk, or a new one; None if there is nothing new."""
        known, store = self._known, self._store
        self._learn()
        before = Read.of(known)
        read, ends = ahead.find_spans(self._here, before, list(self.names), self._policy)
        self._goal = self._goal or ends
        if known["open"] is None:
            known["open"] = self._decide(read, ahead.no_further(ends, self._goal) if until_now else ends)
            if known["open"] is None:
                return None
        else:
            left = ahead.still_there(_spans(known["open"]), known["open"].get("ids", {}), read, ends)
            known["open"]["spans"] = [[*place, *span] for place, span in left.items()]
        chunk = known["open"]
        known |= {"ids": read.state()["ids"], "next": read.state()["next"]}
        targets = self._there.ids({topic for topic, *_ in chunk["bases"]})
        known["target_ids"] = targets | known.get("target_ids", {})
        store.write_json(STATE, known)
        spans = _spans(chunk)
        try:
            records = self._carried_out(spans, chunk, read)
        except Exception:
            if self._policy.recreated == ahead.STOP or not ahead.changed(self._here, read, spans):
                raise
            return self.chunk(until_now=until_now)
        known |= read.behind(spans).state()
        known["open"], known["chunks"] = None, known["chunks"] + 1
        store.write_json(STATE, known)
        behind, renewed = ahead.left(read.behind(spans), ends), ahead.renewed(before, read)
        return Step(known["chunks"] - 1, 0.0, records, {}, behind, renewed)

    def _carried_out(self, spans: Spans, chunk: Mapping[str, Any], read: Read) -> dict[str, int]:
        """How many records of each topic were written, by its name at the source."""
        bases = {(topic, index): base for topic, index, base in chunk["bases"]}
        task = Task(self._target.settings, Producer(*chunk["producer"]), bases, None, self._codec)
        made, ids = partial(packed, task, dict(self.names)), ahead.ids_of(read)
        batches = kafka.read_into(
            self._spark, self._source, spans, made, PACKED, allow_gaps=self._policy.allow_gaps, ids=ids
        )
        done = ahead.in_generations(appended(batches, task), read, self.names)
        place = self._store.path(f"{MAP}/chunk-{self._known['chunks']:010}")
        done.write.mode("overwrite").parquet(place)
        frame = files_as_they_are(self._spark).schema(MAPPED).parquet(place)
        back = {new: old for old, new in self.names.items()}
        found = frame.groupBy("topic").agg(f.sum("appended").alias("appended")).collect()
        return {back[row.topic]: int(row.appended) for row in found}

    def _decide(self, read: Read, ends: Spans) -> dict[str, Any] | None:
        """The next chunk; None if the source has nothing new."""
        spans, names = ahead.limited(ahead.spans(read, ends, self._policy), self.pace.max_offsets), self.names
        if not spans:
            return None
        there = self._there.ends(sorted({names[topic] for topic, _ in spans}))
        wanted = {(names[topic], index) for topic, index in spans}
        if lacking := wanted - there.keys():
            topic, index = min(lacking)
            raise PipelineError(
                f"{topic} has no partition {index} at the target, as it has at the source now: add some"
            )
        bases = [[*place, end.end] for place, end in sorted(there.items()) if place in wanted]
        ids = {topic: read.topics[topic].id for topic, _ in spans}
        rows = [[*place, *span] for place, span in sorted(spans.items())]
        return {"spans": rows, "bases": bases, "producer": list(self._there.producer()), "ids": ids}


def _spans(chunk: Mapping[str, Any]) -> Spans:
    return {(topic, index): PartitionEnd(start, end) for topic, index, start, end in chunk["spans"]}


def _make_topics(here: Cluster, there: Cluster, names: Mapping[str, str]) -> None:
    """Topics that the target lacks, with the partitions and the settings of the source's."""
    for old, new in names.items():
        needed = here.partitions(old)
        if not there.has(new):
            there.create(new, needed, carried(here.configs(old)))
        elif there.partitions(new) < needed:
            raise PipelineError(
                f"{new} has {there.partitions(new)} partitions at the target and {old} {needed} at the source: add some"
            )


# ---- groups


def _committed(here: Cluster, names: Mapping[str, str], groups: Sequence[str]) -> Committed:
    """What groups have committed at the source of what is mirrored."""
    found = {each: here.committed(each) for each in (here.groups() if tuple(groups) == ("*",) else groups)}
    return {
        group: [(names[topic], index, offset) for (topic, index), offset in places.items() if topic in names]
        for group, places in found.items()
    }


def _move_groups(spark: SparkSession, store: Storage, there: Cluster, wanted: Committed) -> dict[str, Any]:
    """Commit at the target what the groups have committed at the source; by group, what came of it."""
    rows = [(group, *row) for group, committed in wanted.items() for row in committed]
    committed = spark.createDataFrame(rows, "group string, topic string, partition int, committed bigint")
    found: dict[str, dict[Place, int]] = {}
    newest = Window.partitionBy("topic")
    runs = offsets_map(spark, store.root).withColumn("_newest", f.max("generation").over(newest))
    for row in translated_offsets(committed, runs.where("generation = _newest")).collect():
        found.setdefault(row.group, {})[row.topic, row.partition] = row.target
    return {group: _commit(there, group, found.get(group, {})) for group in wanted}


def _commit(there: Cluster, group: str, offsets: Mapping[Place, int]) -> str:
    """Never backwards: a group that has begun to read at the target goes on there."""
    has = there.committed(group)
    ahead = {place: offset for place, offset in offsets.items() if offset > has.get(place, -1)}
    if not ahead:
        return "nothing new"
    try:
        there.commit(group, ahead)
    except AnswerError as error:
        if error.code not in _OF_MEMBERS:
            raise
        return f"left alone, for it has members at the target ({error.code.name})"
    return f"{len(ahead)} partitions"
