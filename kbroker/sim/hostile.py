"""Clients that send well-formed requests of a hostile shape, and do not care what they are answered.

One of the kinds of `faults.py`. What they ask for is at most refused: they write into no topic and join no group, so
that all checks hold beside them. Ordinary clients must not notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.config.limits import LARGE_REQUEST_BYTES, PARTITIONS_PER_FETCH, REQUESTS_IN_FLIGHT_PER_CONNECTION
from protocol.headers import encode_request_header
from protocol.message import Message
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

if TYPE_CHECKING:
    from kbroker.sim.machine import Machine
    from kbroker.sim.net import Net, Wire
    from kbroker.sim.world import World

MANY = LARGE_REQUEST_BYTES // 8  # elements of some ten bytes: enough to be decoded in slices
LONGEST_STAY_MS = 60_000
NOWHERE = "no-such-topic"

Frames = list[tuple[Message, int]]  # requests and their versions


def many_keys(rng: random.Random) -> Frames:
    """As many coordinators at once."""
    keys = [f"hostile-{number}" for number in range(rng.randrange(MANY))]
    return [(FindCoordinatorRequest(key_type=0, coordinator_keys=keys), 4)]


def named_again_and_again(rng: random.Random) -> Frames:
    """One thing, named very often."""
    count = rng.randrange(MANY)
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    topic = MetadataRequestTopic(name=NOWHERE)
    return [
        (DescribeConfigsRequest(resources=[broker] * count), 1),
        (DescribeGroupsRequest(groups=["group-0"] * count), 5),
        (MetadataRequest(topics=[topic] * count, allow_auto_topic_creation=False), 9),
    ]


def sessions(rng: random.Random) -> Frames:
    """Fetch sessions of partitions that do not exist, some of more than are taken."""
    count = rng.choice((10, MANY, PARTITIONS_PER_FETCH // 20))
    partitions = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in range(count)]
    topics = [FetchTopic(topic=NOWHERE, partitions=partitions)]
    return [
        (FetchRequest(max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics), 12) for _ in range(3)
    ]


def long_polls(rng: random.Random) -> Frames:
    """As many as may be under way, on the topic of all clients, and a few more."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    poll = FetchRequest(
        max_wait_ms=LONGEST_STAY_MS,
        min_bytes=1 << 30,
        session_epoch=-1,
        topics=[FetchTopic(topic="alpha", partitions=[partition])],
    )
    return [(poll, 11)] * (REQUESTS_IN_FLIGHT_PER_CONNECTION + 10)


def a_flood(rng: random.Random) -> Frames:
    """Many small requests, one behind the other."""
    return [(ApiVersionsRequest(), 0)] * rng.randrange(500)


def a_controllers(rng: random.Random) -> Frames:
    """What only a controller may send."""
    topics = [StopReplicaTopicV1(name="alpha", partition_indexes=list(range(rng.randrange(MANY))))]
    return [(StopReplicaRequest(controller_id=1, controller_epoch=1 << 30, delete_partitions=True, topics=topics), 1)]


def many_partitions(rng: random.Random) -> Frames:
    """Records for partitions that do not exist."""
    data = [PartitionProduceData(index=each, records=b"r" * 300) for each in range(rng.randrange(600))]
    topic = TopicProduceData(name=NOWHERE, partition_data=data)
    return [(ProduceRequest(acks=rng.choice((0, 1, -1)), timeout_ms=1_000, topic_data=[topic]), 7)]


SHAPES: tuple[Callable[[random.Random], Frames], ...] = (
    many_keys,
    named_again_and_again,
    sessions,
    long_polls,
    a_flood,
    a_controllers,
    many_partitions,
)


AMONG_SEVERAL = tuple(shape for shape in SHAPES if shape is not a_controllers)
"""A broker that is not alone knows its controller by addresses, and those only by and by."""


class Hostile:
    """One such client: it comes, sends what it has to send, and hangs up after a while, read or unread."""

    def __init__(self, world: World, net: Net, name: str) -> None:
        self._world = world
        self._net = net
        self._name = name
        self._rng = world.rng(name)
        self._wire: Wire | None = None

    def attack(self, machine: Machine) -> None:
        """Do to a machine what chance says."""
        shape = self._rng.choice(SHAPES if len(self._net.hosts) == 1 else AMONG_SEVERAL)
        self._world.note(f"{self._name} sends {machine} {shape.__name__.replace('_', ' ')}")
        self._wire = self._net.connect(self._name, machine, lambda data: None, lambda why: None)
        for number, (request, version) in enumerate(shape(self._rng)):
            head = encode_request_header(type(request), version, number, self._name)
            self._wire.send(head + request.encode(version))
        self._world.after(self._rng.randrange(LONGEST_STAY_MS), self.leave)

    def leave(self) -> None:
        """Hang up."""
        if self._wire is not None and self._wire.open:
            self._wire.close()
