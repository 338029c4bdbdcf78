"""This broker's image of the cluster: brokers, topics, leaders, as the controller last told it by UpdateMetadata.

Fed by `broker/controller_requests.py`; read for Metadata answers and by parts that look for a leader or a topic. It is
eventually right, never asked to decide anything, and keeps the very structs of the requests. `memo` holds what readers
have worked out of it and forgets everything at each update, since any answer may depend on any broker's being alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.tables import shrink
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
)
from protocol.namedtuple import NamedTuple

NO_CONTROLLER = -1
LEADER_DURING_DELETE = -2
"""The leader that UpdateMetadata names for a partition that is being deleted."""

CONSUMER_OFFSETS, TRANSACTION_STATE = "__consumer_offsets", "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE})  # of Apache 3.9


CLUSTER_TOLD = "the cluster is told"
"""A key of the purgatory: touched when the first brokers have come into the image."""


class TopicKey(NamedTuple):
    """What an answer watches that waits for news of a topic."""

    topic: str


class TopicImage:
    """A topic: its id (zero if it has none), and the state of each partition by index."""

    __slots__ = ("name", "partitions", "topic_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_id = ZERO_UUID
        self.partitions: dict[int, UpdateMetadataPartitionState] = {}


class MetadataDelta(NamedTuple):
    """Fact: this broker's image of the cluster is another one (UpdateMetadata).

    topics: that there is news of. made, grown: topics that are new, or have more partitions; deleted: partitions of
    deleted topics.
    """

    topics: Sequence[str]
    made: Sequence[str] = ()
    grown: Sequence[str] = ()
    deleted: Sequence[tuple[str, int]] = ()


class MetadataCache:
    """Brokers by id, topics by name. memo: see the top of this file."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, TopicImage] = {}
        self.controller_id = NO_CONTROLLER
        self.memo: dict[Hashable, Any] = {}
        self._names: dict[bytes, str] = {}

    # -- reading

    def topic_id(self, name: str) -> bytes:
        """A topic's id; zero if the topic is unknown or has none."""
        topic = self.topics.get(name)
        return topic.topic_id if topic else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id)

    def partition(self, topic: str, index: int) -> UpdateMetadataPartitionState | None:
        """Leader, epochs and replicas of a partition; None if there is none."""
        image = self.topics.get(topic)
        return image.partitions.get(index) if image else None

    def node(self, broker_id: int, listener: str) -> Endpoint | None:
        """Where a broker can be reached by a listener's name; None if it is dead, or has no such listener."""
        broker = self.brokers.get(broker_id)
        return broker.endpoint(listener) if broker else None

    def sorted_names(self) -> list[str]:
        """All topics, by name in order."""
        names: list[str] | None = self.memo.get("names")
        if names is None:
            names = self.memo["names"] = sorted(self.topics)
        return names

    # -- news

    def update(self, request: UpdateMetadataRequest) -> MetadataDelta:
        """Take news in: all live brokers, and the partitions that changed.

        The type FULL of version 8 belongs to a migration to KRaft; as an Apache broker that takes no part in one does,
        it is treated like any other.
        """
        self.memo.clear()
        self.controller_id = request.controller_id if request.controller_id >= 0 else NO_CONTROLLER
        self.brokers = {broker.id: _broker(broker) for broker in request.live_brokers}
        topics: dict[str, None] = {}
        made: dict[str, None] = {}
        grown: dict[str, None] = {}
        deleted: list[tuple[str, int]] = []
        for name, topic_id, states in _grouped(request):
            topics[name] = None
            was_there = name in self.topics
            if self._update_topic(name, topic_id, states, deleted) and name not in made:
                (grown if was_there else made)[name] = None
        return MetadataDelta(list(topics), list(made), list(grown), deleted)

    def _update_topic(
        self,
        name: str,
        topic_id: bytes,
        states: Sequence[UpdateMetadataPartitionState],
        deleted: list[tuple[str, int]],
    ) -> bool:
        """Whether there are more partitions than before. deleted: is added to."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicImage(name)
        if topic.topic_id != topic_id:
            self._names.pop(topic.topic_id, None)
            topic.topic_id = topic_id
        if topic_id != ZERO_UUID:
            self._names[topic_id] = name
        before = len(topic.partitions)
        for state in states:
            if state.leader == LEADER_DURING_DELETE:
                before -= topic.partitions.pop(state.partition_index, None) is not None
                deleted.append((name, state.partition_index))
            else:
                topic.partitions[state.partition_index] = state
        if not topic.partitions:
            del self.topics[name]
            self._names.pop(topic.topic_id, None)
            shrink(self.topics, self._names)
        return len(topic.partitions) > before


def _grouped(request: UpdateMetadataRequest) -> Iterator[tuple[str, bytes, Sequence[UpdateMetadataPartitionState]]]:
    """(topic, its id or zero, partitions), however the version of a request groups them."""
    for topic in request.topic_states:
        yield topic.topic_name, topic.topic_id, topic.partition_states
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, (state,)


def _broker(broker: UpdateMetadataBroker) -> BrokerInfo:
    if broker.endpoints:
        endpoints = tuple(
            Endpoint(
                each.listener or SECURITY_PROTOCOLS[each.security_protocol],
                each.security_protocol,
                each.host,
                each.port,
            )
            for each in broker.endpoints
        )
    else:
        endpoints = (Endpoint("PLAINTEXT", 0, broker.v0_host, broker.v0_port),)
    return BrokerInfo(broker.id, endpoints, broker.rack or None)
