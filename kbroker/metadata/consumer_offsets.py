"""Offsets of consumers in ZooKeeper, where clients before Kafka 0.8.2 keep them: OffsetCommit 0, OffsetFetch 0.

One node for each partition, /consumers/GROUP/offsets/TOPIC/INDEX, with the offset in decimal; other tools of that time
read and write the same nodes. The coordinator of the group knows nothing of them. Source: ZooKeeper data structures of
Kafka 0.8; KafkaZkClient of 3.9, by behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.metadata.steps import Procedure
from kbroker.ports import Create, Get, SetData, StoreFault
from protocol.namedtuple import NamedTuple

ROOT = "/consumers"


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


def is_group(name: str) -> bool:
    """Whether a group of this name can have a node."""
    return bool(name) and "/" not in name and name not in (".", "..") and "\0" not in name


def path_of(group: str, place: Place) -> str:
    """Where a group's offset in a partition is kept."""
    return f"{ROOT}/{group}/offsets/{place.topic}/{place.partition}"


def keep(group: str, offsets: Sequence[tuple[Place, int]]) -> Procedure[list[StoreFault | None]]:
    """Write the offsets; says of each what went wrong. A first offset makes the nodes above it."""
    outcomes = yield [SetData(path_of(group, place), b"%d" % offset) for place, offset in offsets]
    faults = [outcome.fault for outcome in outcomes]
    missing = [at for at, fault in enumerate(faults) if fault is StoreFault.NO_NODE]
    if not missing:
        return faults
    topics = dict.fromkeys(offsets[at][0].topic for at in missing)
    above = [f"{ROOT}/{group}", f"{ROOT}/{group}/offsets", *(f"{ROOT}/{group}/offsets/{topic}" for topic in topics)]
    yield [Create(path) for path in above]  # most are there
    written = yield [Create(path_of(group, offsets[at][0]), b"%d" % offsets[at][1]) for at in missing]
    for at, outcome in zip(missing, written, strict=True):
        faults[at] = outcome.fault
    raced = [at for at in missing if faults[at] is StoreFault.NODE_EXISTS]  # another broker's first commit
    written = yield [SetData(path_of(group, offsets[at][0]), b"%d" % offsets[at][1]) for at in raced]
    for at, outcome in zip(raced, written, strict=True):
        faults[at] = outcome.fault
    return faults


def kept(group: str, places: Sequence[Place]) -> Procedure[list[int | None]]:
    """The offset of each partition, None where there is none, or no number."""
    outcomes = yield [Get(path_of(group, place)) for place in places]
    return [None if outcome.fault is not None else _number(outcome.data) for outcome in outcomes]


def _number(data: bytes) -> int | None:
    try:
        return int(data)
    except ValueError:
        return None
