"""Where partitions begin and end, how large they are, and what groups have committed: asked of many partitions at once.

Called by the pages of topics and groups. Each partition is asked of its leader, sizes of every broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.console.cluster import Cluster, ConsoleError, Place, by_topic, check, merged
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic
from protocol.messages.logdirs import DescribableLogDirTopic, DescribeLogDirsRequest
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST, EARLIEST = -1, -2  # in place of a time
BY_NAME = 9  # the last version of OffsetFetch that names topics


def offsets_at(cluster: Cluster, wanted: Mapping[Place, int], *, committed_only: bool = False) -> dict[Place, int]:
    """The first offset at or behind a time, or EARLIEST, LATEST; -1: nothing is that young.

    wanted: ms since 1970 by place. committed_only: the end is where an open transaction begins. A partition without a
    leader is left out.
    """

    def of_leader(node: int) -> dict[Place, int]:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=at, timestamp=wanted[topic, at]) for at in numbers],
            )
            for topic, numbers in by_topic(leaders[node]).items()
        ]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(committed_only), topics=topics)
        answer = cluster.ask(request, node)
        return {
            (topic.name, part.partition_index): part.offset
            if part.offset >= 0 or not part.old_style_offsets
            else part.old_style_offsets[0]
            for topic in answer.topics
            for part in topic.partitions
            if not part.error_code
        }

    leaders = cluster.leaders(wanted)
    found = cluster.each(leaders, of_leader)
    return merged({node: each for node, each in found.items() if not isinstance(each, ConsoleError)})


def ends(cluster: Cluster, places: Iterable[Place]) -> tuple[dict[Place, int], dict[Place, int]]:
    """Log start and log end offsets."""
    wanted = list(places)
    return (
        offsets_at(cluster, dict.fromkeys(wanted, EARLIEST)),
        offsets_at(cluster, dict.fromkeys(wanted, LATEST)),
    )


class Stored:
    """What a broker has of a partition in one of its log directories."""

    __slots__ = ("is_future", "lag", "node", "path", "place", "size")

    def __init__(self, node: int, path: str, place: Place, size: int, lag: int, *, is_future: bool) -> None:
        self.node, self.path, self.place, self.size, self.lag, self.is_future = node, path, place, size, lag, is_future


def stored(cluster: Cluster, topics: Iterable[str] | None = None) -> tuple[list[Stored], list[dict[str, Any]]]:
    """Replicas and their sizes; and the log directories, each with its broker. topics: None for all.

    Raises: ConsoleError where no broker tells them.
    """
    wanted = None
    if topics is not None:
        wanted = [
            DescribableLogDirTopic(topic=name, partitions=[each.number for each in found.partitions])
            for name in topics
            if (found := cluster.known(name)) is not None
        ]
    replicas: list[Stored] = []
    directories: list[dict[str, Any]] = []
    for node, answer in cluster.ask_all(DescribeLogDirsRequest(topics=wanted)).items():
        if answer.error_code:
            check(answer.error_code)
        for each in answer.results:
            directories.append(
                {
                    "broker": node,
                    "path": each.log_dir,
                    "error": each.error_code,
                    "total_bytes": each.total_bytes,
                    "usable_bytes": each.usable_bytes,
                    "partitions": sum(len(topic.partitions) for topic in each.topics),
                    "bytes": sum(part.partition_size for topic in each.topics for part in topic.partitions),
                }
            )
            replicas += [
                Stored(
                    node,
                    each.log_dir,
                    (topic.name, part.partition_index),
                    part.partition_size,
                    part.offset_lag,
                    is_future=part.is_future_key,
                )
                for topic in each.topics
                for part in topic.partitions
            ]
    return replicas, directories


def committed(cluster: Cluster, group: str, places: Iterable[Place] | None = None) -> dict[Place, tuple[int, str]]:
    """A group's committed offsets, each with what the member wrote beside it. places: None for all that it has.

    Raises: ConsoleError.
    """
    topics = None
    if places is not None:
        topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=numbers) for name, numbers in by_topic(places).items()
        ]
    node = cluster.coordinator(group)
    try:
        answer = cluster.ask(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]), node, BY_NAME
        )
    except ConsoleError as error:
        if error.status != 501:
            raise
        answer = cluster.ask(OffsetFetchRequest(group_id=group, topics=topics), node, 7)
    found = answer.groups[0] if answer.groups else answer
    check(found.error_code)
    return {
        (topic.name, part.partition_index): (part.committed_offset, part.metadata or "")
        for topic in found.topics
        for part in topic.partitions
        if part.committed_offset >= 0 and (places is None or (topic.name, part.partition_index) in places)
    }


def committed_by_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, dict[Place, int]]:
    """Committed offsets of many groups, by group; one that cannot be read is left out."""
    found: dict[str, dict[Place, int]] = {}
    for group in groups:
        try:
            found[group] = {place: offset for place, (offset, _) in committed(cluster, group).items()}
        except ConsoleError:
            continue
    return found
