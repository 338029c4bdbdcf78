"""What of its topics a job has read, and which offsets it reads next: decided on the driver, before they are read.

Called by archive and mirror, who keep `Read` in their state. A topic is known by its id (Metadata 10): one that was
deleted and made again under the same name is another topic, and is read from its beginning, in a generation of its own,
if its user says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import Cluster, PartitionEnd, Place
from protocol.namedtuple import NamedTuple

CHUNK = 2_000_000
"""Records of a partition that are read in one go, at most: what is read again after a stop."""
STOP, CONTINUE = "stop", "continue"
RECREATED = (STOP, CONTINUE)
"""What to do about a topic that was deleted and made again."""

Spans = Mapping[Place, PartitionEnd]


class Topic(NamedTuple):
    """Which topic of its name is meant. id: "" if the brokers tell none. generation: how many of it came before."""

    id: str
    generation: int = 0


class Read(NamedTuple):
    """How far topics have been read. next: the first offset of each partition that was not."""

    topics: Mapping[str, Topic]
    next: Mapping[Place, int]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """From what `state` made."""
        return cls(
            {name: Topic(*each) for name, each in state.get("ids", {}).items()},
            {(topic, index): offset for topic, index, offset in state.get("next", ())},
        )

    def state(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "ids": {name: list(each) for name, each in sorted(self.topics.items())},
            "next": [[*place, offset] for place, offset in sorted(self.next.items())],
        }

    def behind(self, spans: Spans) -> Self:
        """Once these spans have been read, too."""
        return self._replace(next={**self.next, **{place: span.end for place, span in spans.items()}})


class Policy(NamedTuple):
    """What to do about records that cannot be read any more."""

    allow_gaps: bool = False
    recreated: str = STOP


def find_spans(cluster: Cluster, read: Read, topics: Sequence[str], policy: Policy) -> tuple[Read, Spans]:
    """Which topics are there now, and where their partitions begin and end. Raises PipelineError for one that is gone.

    One that has been read, and may be made again, is waited for: it has no spans.
    """
    ids = cluster.ids(topics)
    for name in topics:
        if name not in ids and (policy.recreated == STOP or name not in read.topics):
            more = ": --recreated continue goes on, and reads it from its beginning once it is there again"
            raise PipelineError(f"topic {name} is not there any more{more if name in read.topics else ''}")
    ends = cluster.ends(ids, committed=True)
    return begun(read, ids, ends, policy), ends


def begun(read: Read, ids: Mapping[str, str], ends: Spans, policy: Policy, wish: str = "--recreated continue") -> Read:
    """How far the topics that are there now have been read. Raises PipelineError for one that is another than before,
    unless its user wants to go on. wish: how that is said."""
    topics, offsets = dict(read.topics), dict(read.next)
    for name, found in ids.items():
        known = topics.get(name)
        if known is None or (not known.id and _shorter(read, name, ends) is None):
            topics[name] = Topic(found, known.generation if known else 0)
            continue
        if (why := _another(read, name, found, ends)) is None:
            continue
        if policy.recreated == STOP:
            raise PipelineError(f"{why}: {wish} reads it from its beginning, as generation {known.generation + 1}")
        topics[name] = Topic(found, known.generation + 1)
        offsets = {place: offset for place, offset in offsets.items() if place[0] != name}
    return Read(topics, offsets)


def _another(read: Read, name: str, found: str, ends: Spans) -> str | None:
    """Why the topic of this name is not the one that was read; None if it is."""
    known = read.topics[name]
    if is_another(known.id, found):
        return f"topic {name} was deleted and made again since it was read (its id was {known.id} and is {found})"
    if place := _shorter(read, name, ends):
        return (
            f"{name}-{place[1]} ends at {ends[place].end}, before {read.next[place]} up to which it was read: it was "
            "deleted and made again, or cut"
        )
    return None


def is_another(before: str, now: str) -> bool:
    """Whether two ids are of two topics. One that no broker tells may be any's."""
    return bool(before and now and before != now)


def _shorter(read: Read, name: str, ends: Spans) -> Place | None:
    """A partition that ends before where it has been read."""
    places = (place for place, offset in read.next.items() if place[0] == name and place in ends)
    return next((place for place in sorted(places) if ends[place].end < read.next[place]), None)


def spans(read: Read, ends: Spans, policy: Policy, most: int = CHUNK) -> dict[Place, PartitionEnd]:
    """What to read next, `most` records of a partition. Raises PipelineError where records are gone before they were
    read, unless that is allowed."""
    found = {}
    for place, (first, end) in sorted(ends.items()):
        start = read.next.get(place, first)
        if start < first and not policy.allow_gaps:
            raise PipelineError(
                gone(f"{place[0]}-{place[1]} begins at {first}, behind {start} up to which it was read")
            )
        start = max(start, first)
        if start < end:
            found[place] = PartitionEnd(start, min(end, start + most))
    return found


def limited(spans: Mapping[Place, PartitionEnd], most: int | None) -> dict[Place, PartitionEnd]:
    """About so many records of these in all, each partition's share being that of what it has."""
    total = sum(span.end - span.start for span in spans.values())
    if most is None or total <= most:
        return dict(spans)
    share = {place: -(-(span.end - span.start) * most // total) for place, span in spans.items()}
    return {place: span._replace(end=span.start + share[place]) for place, span in spans.items()}


def left(read: Read, ends: Spans) -> dict[str, int]:
    """How many offsets of each topic are there, and not read yet."""
    found: dict[str, int] = {}
    for place, (first, end) in ends.items():
        found[place[0]] = found.get(place[0], 0) + max(0, end - max(first, read.next.get(place, first)))
    return found


def still_there(spans: Spans, before: Mapping[str, str], read: Read, ends: Spans) -> dict[Place, PartitionEnd]:
    """Those of decided spans whose topics are the ones still that they were, by their ids before: others of their
    names may be there."""
    now = {topic: read.topics[topic].id for topic, _ in ends}
    return {
        place: span
        for place, span in spans.items()
        if place[0] in now and not is_another(before.get(place[0], ""), now[place[0]])
    }


def gone(what: str) -> str:
    """What a user is told where records are gone that were to be read."""
    return (
        f"{what}: records that were to be read are gone: they aged out or were deleted before they were read. Start "
        "again with --allow-gaps to go on with what is there"
    )


def no_further(ends: Spans, goal: Spans) -> dict[Place, PartitionEnd]:
    """Where partitions end, but no further than the goal: what comes while a job is at work is not its own."""
    return {place: span._replace(end=min(span.end, goal[place].end)) for place, span in ends.items() if place in goal}


def changed(cluster: Cluster, read: Read, spans: Spans) -> bool:
    """Whether a topic of these is not the one any more that it was."""
    topics = {topic for topic, _ in spans}
    now = cluster.ids(topics)
    return any(topic not in now or is_another(read.topics[topic].id, now[topic]) for topic in topics)


def renewed(before: Read, now: Read) -> dict[str, dict[int, int]]:
    """Topics that were made again between the two: how far each partition of the one before was read."""
    return {
        name: {index: offset for (topic, index), offset in sorted(before.next.items()) if topic == name}
        for name, topic in now.topics.items()
        if name in before.topics and topic.generation > before.topics[name].generation
    }


def ids_of(read: Read) -> dict[str, str]:
    """The topics' ids."""
    return {name: topic.id for name, topic in read.topics.items()}


def in_generations(records: DataFrame, read: Read, names: Mapping[str, str] | None = None) -> DataFrame:
    """Records with the generation of their topic. names: what the topics are called in them."""
    generation = f.lit(0)
    for name, topic in read.topics.items():
        if topic.generation:
            generation = f.when(f.col("topic") == (names or {}).get(name, name), topic.generation).otherwise(generation)
    return records.withColumn("generation", generation)
