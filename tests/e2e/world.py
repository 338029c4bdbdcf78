"""What an exchange needs to get to its point: topics, records, groups, all made through the broker's own APIs.

Used by the exchanges; the live fuzz runs them too, to have real frames to damage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.records import Record
from protocol.records.content import build_batch
from tests.processes import Client, within

NODE = 1
NONE = ErrorCode.NONE
PATIENCE_S = 20.0
OF_BROKERS = (4, 5, 6, 7, 24, 56, 67, 83, 84, 85, 86, 87)  # AddPartitionsToTxn among them: since version 4 it is theirs


class Topic(NamedTuple):
    """A topic, by name and id."""

    name: str
    id: bytes


class Member(NamedTuple):
    """The only member of a stable group."""

    group: str
    id: str
    generation: int


class World:
    """A broker as one client sees it. Each topic and group made here has a name of its own."""

    def __init__(self, port: int, host: str = "127.0.0.1", control_port: int = 0) -> None:
        """control_port: of the listener on which brokers are heard, where what only they send is sent to."""
        self.host, self.port = host, port
        self.client = Client(port)
        self.broker = Client(control_port) if control_port else self.client
        self._count = 0

    def ask(self, request: Message, version: int) -> Any:
        """The broker's response."""
        return (self.broker if request.api in OF_BROKERS else self.client).ask(request, version)

    def until(self, request: Message, version: int, good: Callable[[Any], bool]) -> Any:
        """Ask until the response is good."""
        response = None
        for _ in within(PATIENCE_S):
            response = self.ask(request, version)
            if good(response):
                return response
        raise AssertionError(f"still {response}")

    def name(self, kind: str) -> str:
        """A name that nothing has."""
        self._count += 1
        return f"{kind}-{self.client.socket.getsockname()[1]}-{self._count}"

    def topic(self, partitions: int = 1) -> Topic:
        """A topic with its leaders elected."""
        name = self.name("topic")
        asked = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
        (made,) = self.ask(CreateTopicsRequest(topics=[asked]), 7).topics
        assert made.error_code == NONE, made
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        self.until(wanted, 12, lambda found: found.topics[0].error_code == NONE)
        return Topic(name, made.topic_id)

    def produce(self, topic: Topic, *values: bytes, version: int = 9, acks: int = 1) -> Any:
        """One batch to partition 0; the partition's part of the response, None for acks 0."""
        batch = build_batch([Record(offset, 1_000 + offset, None, value) for offset, value in enumerate(values)])
        data = PartitionProduceData(index=0, records=batch)
        topics = [TopicProduceData(name=topic.name, topic_id=topic.id, partition_data=[data])]
        request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics)
        if acks == 0:
            self.client.send(request, version)
            return None
        return self.ask(request, version).responses[0].partition_responses[0]

    def filled(self, count: int = 3) -> Topic:
        """A topic of one partition with so many records, at timestamps 1000, 1001, ..."""
        topic = self.topic()
        answer = self.produce(topic, *(b"value %d" % number for number in range(count)))
        assert answer.error_code == NONE, answer
        return topic

    def group(self) -> str:
        """A group id whose coordinator is ready."""
        group = self.name("group")
        self.until(
            FindCoordinatorRequest(coordinator_keys=[group]), 4, lambda found: found.coordinators[0].error_code == NONE
        )
        return group

    def joining(self, group: str, member_id: str = "", instance: str | None = None) -> JoinGroupRequest:
        """A consumer's request to join."""
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"subscription")]
        return JoinGroupRequest(
            group_id=group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=protocols,
        )

    def member(self, instance: str | None = None) -> Member:
        """The leader of a new group that has its assignment."""
        group = self.group()
        joined = self.until(self.joining(group, "", instance), 5, lambda answer: answer.error_code in (NONE, 79))
        if joined.error_code:  # MEMBER_ID_REQUIRED
            joined = self.ask(self.joining(group, joined.member_id, instance), 5)
        assert joined.error_code == NONE, joined
        member = Member(group, joined.member_id, joined.generation_id)
        assert self.ask(self.syncing(member), 5).error_code == NONE
        return member

    def syncing(self, member: Member) -> SyncGroupRequest:
        """The leader's request with everybody's assignment."""
        return SyncGroupRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member.id, assignment=b"yours")],
        )

    def committing(self, group: str, topic: Topic, offset: int) -> OffsetCommitRequest:
        """A commit for partition 0 from outside the group."""
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="mine")
        topics = [OffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[partition])]
        return OffsetCommitRequest(group_id=group, topics=topics)

    def committed(self, offset: int, version: int = 9) -> tuple[str, Topic]:
        """A group without members that has committed this offset of a topic, in a version of OffsetCommit."""
        group, topic = self.group(), self.topic()
        asked = self.committing(group, topic, offset)
        self.until(asked, version, lambda done: done.topics[0].partitions[0].error_code == NONE)
        return group, topic


def by_id(topic: Topic) -> Topic:
    """The topic without its name."""
    return Topic("", topic.id)


def by_name(topic: Topic) -> Topic:
    """The topic without its id."""
    return Topic(topic.name, ZERO_UUID)
