"""Simulated administrators: they make the topics of a world, grow them, cut records off, look at settings."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from kbroker.sim.producers import RETRIABLE
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from kbroker.sim.topics import Topic

CREATE_TOPICS, METADATA = 19, 3
MAY_LOOK_ONLY_SINCE = 4  # Metadata: before, a topic that a request names is made with the broker's defaults
NOT_YET = RETRIABLE | {
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.INVALID_REPLICATION_FACTOR,  # no broker is registered at the moment
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE,
}


class TopicCreator(Router):
    """Makes the topics of its world, again and again until all are there; then tells their ids."""

    topics: Sequence[Topic] = ()

    def live(self) -> Script:
        """Create, look, and look again."""
        while not all(self.checks.catalogue.ids.get(topic.name) for topic in self.topics):
            try:
                yield from self.shake_hands()
                yield from self._create()
                yield from self._compare_topics()
            except Lost as lost:
                self.misled_by_controller()
                self.note(f"lost an answer: {lost.why}")
            yield from self.pause(300)

    def _create(self) -> Generator[Any, Any, None]:
        request = CreateTopicsRequest(
            topics=[creatable(topic) for topic in self.topics if not self.checks.catalogue.ids.get(topic.name)],
            timeout_ms=self.rng.choice((100, 10_000)),
        )
        answer: CreateTopicsResponse = yield from self.ask(request, to=(yield from self.controller()))
        for result in answer.topics:
            code = ErrorCode.of(result.error_code)
            if code is ErrorCode.NOT_CONTROLLER:
                self.misled_by_controller()
            self.note(f"creates {result.name}: {code.name}")
            if code not in NOT_YET and code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise self.world.broken(f"{self}: {result.name}: {code.name}: {result.error_message}")

    def _compare_topics(self) -> Generator[Any, Any, None]:
        request = MetadataRequest(topics=None if self.versions[METADATA] else [], allow_auto_topic_creation=True)
        if self.versions[METADATA] >= MAY_LOOK_ONLY_SINCE and self.rng.random() < 0.5:
            names = [MetadataRequestTopic(name=topic.name) for topic in self.topics]
            request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
        answer: MetadataResponse = yield from self.ask(request, to=(yield from self.controller()))
        wanted = {topic.name: topic for topic in self.topics}
        for found in answer.topics:
            topic = wanted.get(found.name or "")
            if topic is None or found.error_code != ErrorCode.NONE:
                continue
            if len(found.partitions) < topic.partitions:
                continue  # one that had no live replica at its creation is told of once it has a leader
            if len(found.partitions) != topic.partitions:
                raise self.world.broken(f"{self}: {topic.name} has {len(found.partitions)} partitions: {found}")
            if self.versions[METADATA] >= 10:
                self.checks.catalogue.knows(topic.name, found.topic_id, len(found.partitions))
            else:
                del self.versions[METADATA]  # too old to tell the id: ask as a newer client
                self.fixed_versions[METADATA] = 12
                self.hang_up()
                return


def creatable(topic: Topic) -> CreatableTopic:
    """What CreateTopics is asked for, to make this topic."""
    configs = [CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()]
    chosen = topic.assignment
    return CreatableTopic(
        name=topic.name,
        num_partitions=-1 if chosen else topic.partitions,
        replication_factor=-1 if chosen else topic.replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(chosen)
        ],
        configs=configs,
    )
