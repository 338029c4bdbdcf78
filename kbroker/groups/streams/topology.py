"""The topology of a Streams group: how many tasks it has, which internal topics it needs, what is wrong with it.

A topology names the topics that each subtopology reads and keeps; how many partitions repartition and changelog topics
have follows from the others. `configure` works that out of the topics that are there, each time that they change; it is
pure, and bounded by the size of the topology. What the topics lack is a status that members are told, for they may be
there soon; what can never work is refused. Source: KIP-1071, "Topology updates" and "Automatic creation of topics".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TypeAlias

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_streams_groups import StreamsGroupTopologyValue, Subtopology, TopicInfo
from protocol.namedtuple import NamedTuple

PartitionCount: TypeAlias = Callable[[str], int | None]
NAMED_IN_A_STATUS = 3


class Status(IntEnum):
    """What a member is told about its group, by the numbers of the protocol."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class InternalTopic(NamedTuple):
    """A repartition or changelog topic, as it has to be. replication_factor: -1 the brokers' default."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


class ConfiguredTopology(NamedTuple):
    """A topology beside the topics that are there.

    tasks: how many each subtopology has; of none if `problem` says why. missing: internal topics to be created.
    partitions: of repartition and changelog topics, as derived. problem: (status, its detail) that members are told.
    """

    epoch: int
    tasks: Mapping[str, int]
    missing: Mapping[str, InternalTopic]
    partitions: Mapping[str, int]
    problem: tuple[Status, str] | None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class TopicsError(Exception):
    """The topics are not as the topology needs them. problem: the status to tell of it."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.problem = status, detail


def required_topics(topology: StreamsGroupTopologyValue) -> set[str]:
    """The topics that the topology reads or keeps state in."""
    found: set[str] = set()
    for part in topology.subtopologies:
        found.update(part.source_topics)
        found.update(topic.name for topic in part.repartition_source_topics)
        found.update(topic.name for topic in part.state_changelog_topics)
    return found


def source_topics(part: Subtopology) -> list[str]:
    """The topics that a subtopology reads, repartition topics too; each once, in order."""
    return list(dict.fromkeys([*part.source_topics, *(topic.name for topic in part.repartition_source_topics)]))


def is_stateful(part: Subtopology) -> bool:
    """Whether tasks of a subtopology have state, and so may have standby tasks."""
    return bool(part.state_changelog_topics)


def configure(topology: StreamsGroupTopologyValue, count: PartitionCount) -> ConfiguredTopology:
    """Work the topology out. count: partitions of a topic that is there, else None.

    Raises: KafkaError, STREAMS_INVALID_TOPOLOGY, if no topics could ever make it work.
    """
    try:
        _check_source_topics(topology, count)
        decided = _partition_counts(topology, count)
        missing = _missing_topics(topology, count, decided)
        if missing:
            names = _some(missing)
            raise _MissingTopicsError(names, missing, decided)
        tasks = {part.subtopology_id: _task_count(part, count) for part in topology.subtopologies}
    except _MissingTopicsError as error:
        return ConfiguredTopology(topology.epoch, {}, error.missing, error.decided, error.problem)
    except TopicsError as error:
        return ConfiguredTopology(topology.epoch, {}, {}, {}, error.problem)
    return ConfiguredTopology(topology.epoch, tasks, {}, decided, None)


class _MissingTopicsError(TopicsError):
    def __init__(self, names: str, missing: Mapping[str, InternalTopic], decided: Mapping[str, int]) -> None:
        super().__init__(Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {names}")
        self.missing = missing
        self.decided = decided


def _check_source_topics(topology: StreamsGroupTopologyValue, count: PartitionCount) -> None:
    missing = {name for part in topology.subtopologies for name in part.source_topics if count(name) is None}
    if missing:
        raise TopicsError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_some(sorted(missing))} are missing.")


def _some(names: Iterable[str]) -> str:
    """At most three names, and how many more there are."""
    names = list(names)
    more = len(names) - NAMED_IN_A_STATUS
    return ", ".join(names[:NAMED_IN_A_STATUS]) + (f" and {more} additional topics" if more > 0 else "")


# -- partitions of internal topics


def _partition_counts(topology: StreamsGroupTopologyValue, count: PartitionCount) -> dict[str, int]:
    """Partitions of all repartition and changelog topics, whether they are there or not."""
    decided = _repartition_counts(topology, count)
    _make_equal(topology, count, decided)
    for part in topology.subtopologies:
        sources = source_topics(part)
        if not sources:
            raise _invalid(f"No source topics found for subtopology {part.subtopology_id}")
        most = max(_count_of(name, count, decided) for name in sources)
        decided |= {topic.name: most for topic in part.state_changelog_topics if topic.name not in sources}
    return decided


def _repartition_counts(topology: StreamsGroupTopologyValue, count: PartitionCount) -> dict[str, int]:
    """A repartition topic has as many partitions as it says, else as the largest topic that its writer reads.

    A writer is looked at again when a topic that it reads is decided; so the work is bounded by what it reads.
    """
    fixed = (topic for part in topology.subtopologies for topic in part.repartition_source_topics if topic.partitions)
    decided = {topic.name: topic.partitions for topic in fixed}
    readers: dict[str, list[Subtopology]] = {}
    for part in topology.subtopologies:
        for topic in part.repartition_source_topics:
            readers.setdefault(topic.name, []).append(part)
    waiting = deque(part for part in topology.subtopologies if part.repartition_sink_topics)
    while waiting:
        part = waiting.popleft()
        open_sinks = [name for name in dict.fromkeys(part.repartition_sink_topics) if name not in decided]
        most = _largest_known(part, count, decided) if open_sinks else None
        if most is not None:
            for name in open_sinks:
                decided[name] = most
                waiting.extend(each for each in readers.get(name, ()) if each is not part)
    if any(name not in decided for part in topology.subtopologies for name in part.repartition_sink_topics):
        raise _invalid(f"{_UNDECIDED}. There may be loops in the topology that cannot be resolved.")
    if any(name not in decided for name in readers):
        raise _invalid(f"{_UNDECIDED}, because a repartition source topic is never used as a sink topic.")
    return decided


_UNDECIDED = "Failed to compute number of partitions for all repartition topics"


def _largest_known(part: Subtopology, count: PartitionCount, decided: Mapping[str, int]) -> int | None:
    known = [decided.get(topic.name) for topic in part.repartition_source_topics]
    known += [count(name) for name in part.source_topics]
    return max((each for each in known if each is not None), default=None)


def _make_equal(topology: StreamsGroupTopologyValue, count: PartitionCount, decided: dict[str, int]) -> None:
    """Give repartition topics that are joined with others as many partitions as those have."""
    internal = {topic.name: topic for part in topology.subtopologies for topic in part.repartition_source_topics}
    for part in topology.subtopologies:
        for group in _copartition_groups(part):
            flexible = [name for name in group if name in internal and not internal[name].partitions]
            counts = {name: _count_of(name, count, decided) for name in group}
            others = {name: partitions for name, partitions in counts.items() if name not in internal}
            fixed = {
                name: partitions for name, partitions in counts.items() if name in internal and name not in flexible
            }
            bound = others or fixed or counts
            wanted = max(bound.values(), default=0)
            if (others or fixed) and min(bound.values()) != wanted:
                raise TopicsError(
                    Status.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Following topics do not have the same number of partitions: [{_as_map(bound)}]",
                )
            for name, partitions in fixed.items():
                if partitions != wanted:
                    raise TopicsError(
                        Status.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{partitions}] of repartition topic [{name}] doesn't match "
                        f"number of partitions [{wanted}] of the source topic.",
                    )
            decided |= dict.fromkeys(flexible, wanted)


def _copartition_groups(part: Subtopology) -> list[list[str]]:
    """The names of topics that must have equally many partitions."""
    own, internal = part.source_topics, [topic.name for topic in part.repartition_source_topics]
    groups = []
    for group in part.copartition_groups:
        for index, most in [(at, len(own)) for at in group.source_topics] + [
            (at, len(internal)) for at in group.repartition_source_topics
        ]:
            if not 0 <= index < most:
                raise _invalid(
                    f"A copartition group of subtopology {part.subtopology_id} names topic {index} of {most}."
                )
        names = [own[at] for at in group.source_topics] + [internal[at] for at in group.repartition_source_topics]
        groups.append(sorted(set(names)))
    return groups


def _as_map(counts: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}={counts[name]}" for name in sorted(counts)) + "}"


def _count_of(name: str, count: PartitionCount, decided: Mapping[str, int]) -> int:
    """Partitions of a topic: those that it has, else those that it will have."""
    there = count(name)
    found = decided.get(name) if there is None else there
    if found is None:
        raise _invalid(f"Number of partitions is not set for topic: {name}")
    return found


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)


# -- what is there


def _missing_topics(
    topology: StreamsGroupTopologyValue, count: PartitionCount, decided: Mapping[str, int]
) -> dict[str, InternalTopic]:
    """Internal topics that are not there. Raises: TopicsError for one that is, with other partitions."""
    wanted: dict[str, InternalTopic] = {}
    for part in topology.subtopologies:
        own = set(part.source_topics)
        changelogs = (topic for topic in part.state_changelog_topics if topic.name not in own)
        for topic in (*part.repartition_source_topics, *changelogs):
            wanted[topic.name] = _internal_topic(topic, decided)
    missing = {}
    for name, expected in sorted(wanted.items()):
        there = count(name)
        if there is None:
            missing[name] = expected
        elif there != expected.partitions:
            raise TopicsError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {expected.partitions}, "
                f"found {there}",
            )
    return missing


def _internal_topic(topic: TopicInfo, decided: Mapping[str, int]) -> InternalTopic:
    configs = {each.key: each.value for each in topic.topic_configs}
    return InternalTopic(topic.name, topic.partitions or decided[topic.name], topic.replication_factor or -1, configs)


def _task_count(part: Subtopology, count: PartitionCount) -> int:
    """One task for each partition of the largest topic. All topics are there."""
    return max(count(name) or 0 for name in source_topics(part))
