"""The simple assignor of share groups: each member reads from some partitions, each partition has some readers.

A function of members, partitions and what was assigned before. Where all members subscribe to the same topics, each
partition gets the same number of readers, just enough that no member is idle, and members get as equally many
partitions as that allows; where they do not, this holds of each topic. What was assigned stays where it may.

Unlike SimpleAssignor of Apache Kafka, whose choice among equals depends on hashes, equals are taken in the order of
their names.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Partition: TypeAlias = tuple[bytes, int]
    """Topic id and index."""


def assign(
    subscriptions: Mapping[str, Iterable[bytes]],
    partitions: Mapping[bytes, Iterable[int]],
    before: Mapping[str, Mapping[bytes, Iterable[int]]],
) -> dict[str, dict[bytes, frozenset[int]]]:
    """What each member reads from. subscriptions: topic ids by member. partitions: that can be assigned, by topic."""
    by_topics: dict[frozenset[bytes], list[str]] = {}
    for member_id in sorted(subscriptions):
        by_topics.setdefault(frozenset(subscriptions[member_id]), []).append(member_id)
    found: dict[str, set[Partition]] = {member_id: set() for member_id in subscriptions}
    if len(by_topics) == 1:
        ((topics, members),) = by_topics.items()
        _share(members, _of(topics, partitions), before, found)
    else:
        for topic_id in sorted(frozenset().union(*by_topics)):
            readers = sorted(each for topics, members in by_topics.items() if topic_id in topics for each in members)
            _share(readers, _of((topic_id,), partitions), before, found)
    return {member_id: _by_topic(mine) for member_id, mine in found.items()}


def _of(topics: Iterable[bytes], partitions: Mapping[bytes, Iterable[int]]) -> list[Partition]:
    return [(topic_id, index) for topic_id in sorted(topics) for index in sorted(partitions.get(topic_id, ()))]


def _by_topic(mine: Iterable[Partition]) -> dict[bytes, frozenset[int]]:
    topics: dict[bytes, set[int]] = {}
    for topic_id, index in mine:
        topics.setdefault(topic_id, set()).add(index)
    return {topic_id: frozenset(indexes) for topic_id, indexes in topics.items()}


def _share(
    members: list[str],
    partitions: list[Partition],
    before: Mapping[str, Mapping[bytes, Iterable[int]]],
    found: dict[str, set[Partition]],
) -> None:
    """Share partitions out among members that may all read all of them."""
    if not members or not partitions:
        return
    readers_each = -(-len(members) // len(partitions))
    total = readers_each * len(partitions)
    most, with_most = -(-total // len(members)), total % len(members) or len(members)
    readers: dict[Partition, set[str]] = {partition: set() for partition in partitions}
    loads: dict[str, int] = {}
    full = 0  # members that have as many as any may
    for member_id in members:
        mine = [each for each in _of(before.get(member_id, ()), before.get(member_id, {})) if each in readers]
        allowed = most if full < with_most else max(most - 1, 1)
        kept = [each for each in mine if len(readers[each]) < readers_each][:allowed]
        for partition in kept:
            readers[partition].add(member_id)
        loads[member_id] = len(kept)
        full += len(kept) == most
    least = [(load, member_id) for member_id, load in loads.items()]
    heapify(least)
    for partition in partitions:
        passed = []
        while len(readers[partition]) < readers_each and least:
            load, member_id = heappop(least)
            if member_id in readers[partition]:
                passed.append((load, member_id))
                continue
            readers[partition].add(member_id)
            passed.append((load + 1, member_id))
        for each in passed:
            heappush(least, each)
    for partition, some in readers.items():
        for member_id in some:
            found[member_id].add(partition)
