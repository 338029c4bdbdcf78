"""Rows with the groups of Kafka 4: consumer groups (KIP-848) that come together, or idle; share groups (KIP-932).

Run by `benchmarks/broker.py` beside those of `rows.py`. Members are names in requests: a hundred of a consumer group
share a connection, as its coordinator does not mind; every share group has a connection of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.harness.brokers import Broker
from benchmarks.harness.rows import BATCH_BYTES, Fresh, Measured, Metric, Row
from benchmarks.harness.wire import (
    TIMEOUT_S,
    Connection,
    LoadError,
    Producer,
    batch,
    create_topics,
    delete_topics,
    frame,
    produce_frame,
)
from protocol.headers import parse_response_header
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    SharePartitionData,
)

HEARTBEAT_VERSION, DESCRIBE_VERSION, SHARE_HEARTBEAT_VERSION, SHARE_VERSION = 1, 1, 1, 2
JOIN, LEAVE = 0, -1  # epochs of members
LOADING = (14, 15, 16)  # the coordinator loads, is not available, or is another until its topic is there
ASSIGNMENT_INTERVAL_S = 1.0  # group.consumer.assignment.interval.ms as shipped
HEARTBEAT_INTERVAL_S = 5.0  # group.consumer.heartbeat.interval.ms as shipped
MEMBERS_TOPIC, SHARE_TOPIC = "bench-members", "bench-share"
IDLE_SETTINGS = {
    "group.consumer.session.timeout.ms": "60000",  # the longest: the first are silent until the last are there
    "log.retention.check.interval.ms": "300000",  # as shipped: the topic's partitions are not what is measured
}
GROUP_RESOURCE, SET = 32, 0
ACCEPT = 1


class Member:
    """One member of a consumer group: what it was told, and what it says next."""

    def __init__(self, connection: Connection, group: str, number: int) -> None:
        self.connection = connection
        self.group = group
        self.member_id = f"{group}-{number}"
        self.epoch = JOIN
        self.owned: list[TopicPartitions] = []
        self.has_news = False  # it was told what to own, and has not yet said that it does

    def is_settled(self, newest: int) -> bool:
        """Whether it owns the one partition that it can expect, and has caught up and nothing more to say."""
        return sum(len(each.partitions) for each in self.owned) == 1 and self.epoch == newest and not self.has_news

    def heartbeat(self) -> ConsumerGroupHeartbeatRequest:
        """All of itself to join; later what it owns, if that is new: all that it may own, for it lets go at once."""
        joins, has_news, self.has_news = self.epoch == JOIN, self.has_news, False
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if joins else -1,
            subscribed_topic_names=[MEMBERS_TOPIC] if joins else None,
            topic_partitions=self.owned if joins or has_news else None,
        )

    def told(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        """Take over an answer."""
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned, self.has_news = answer.assignment.topic_partitions, True


class Crowd:
    """A consumer group with as many members as its topic has partitions, a hundred of them on a connection."""

    per_connection = 100

    def __init__(self, broker: Broker, stack: ExitStack, group: str, count: int) -> None:
        self.group = group
        self.connections = [stack.enter_context(broker.connect()) for _ in range(-(-count // self.per_connection))]
        self.members = [
            Member(self.connections[number // self.per_connection], group, number) for number in range(count)
        ]

    def assemble(self) -> float:
        """All join and have a partition each, and the group is stable; the seconds in which answers were waited for.

        A member says at once what it has to say. Only in the interval within which a coordinator makes no second
        assignment all are silent.
        """
        seconds = _beat(self.members)
        time.sleep(ASSIGNMENT_INTERVAL_S * 1.1)
        deadline = time.monotonic() + TIMEOUT_S
        while (unsettled := self._unsettled()) or not self._is_stable():
            seconds += _beat(unsettled or self.members)
            if time.monotonic() > deadline:
                raise LoadError(f"{self.group} is not stable after {TIMEOUT_S} s")
        return seconds

    def _unsettled(self) -> list[Member]:
        newest = max(member.epoch for member in self.members)
        return [member for member in self.members if not member.is_settled(newest)]

    def _is_stable(self) -> bool:
        """Whether the coordinator says so."""
        request = ConsumerGroupDescribeRequest(group_ids=[self.group], include_authorized_operations=False)
        (found,) = self.connections[0].ask(request, DESCRIBE_VERSION).groups
        return bool(found.group_state == "Stable" and len(found.members) == len(self.members))

    def leave(self) -> None:
        """All members at once: sessions that expire later would be work in another round."""
        for member in self.members:
            member.epoch = LEAVE
        _beat(self.members)


def _beat(members: Sequence[Member]) -> float:
    """A heartbeat of each, those of a connection at once; the seconds from the first sent to the last answered.

    What they say is made before, and what they are told is read afterwards: that is not the broker's work.
    """
    frames: dict[Connection, bytearray] = {}
    for member in members:
        frames.setdefault(member.connection, bytearray()).extend(frame(member.heartbeat(), HEARTBEAT_VERSION))
    begun = time.perf_counter()
    for connection, data in frames.items():
        connection.send_bytes(data)
    answers = [bytes(member.connection.frame()) for member in members]
    seconds = time.perf_counter() - begun
    for member, answer in zip(members, answers, strict=True):
        member.told(_heard(answer))
    return seconds


def _heard(answer: bytes | memoryview) -> ConsumerGroupHeartbeatResponse:
    """Raises LoadError for an error, such as an epoch that is not the group's any more."""
    _, start = parse_response_header(ConsumerGroupHeartbeatResponse, HEARTBEAT_VERSION, answer)
    response = ConsumerGroupHeartbeatResponse.decode(answer, HEARTBEAT_VERSION, start)
    if response.error_code:
        raise LoadError(f"ConsumerGroupHeartbeat: error {response.error_code} {response.error_message}")
    return response


def warm_coordinator(broker: Broker) -> None:
    """A member comes and goes: who first asks for a coordinator has its topic made, and then it has to be loaded."""
    with broker.connect() as connection:
        _until_served(connection, FindCoordinatorRequest(key="bench-probe", key_type=0), 3)
        member = Member(connection, "bench-probe", 0)
        member.told(_until_served(connection, member.heartbeat(), HEARTBEAT_VERSION))
        member.epoch = LEAVE
        _beat([member])


def _until_served(connection: Connection, request: Any, version: int) -> Any:
    """The first answer that does not ask for patience."""
    deadline = time.monotonic() + 30
    while (answer := connection.ask(request, version)).error_code in LOADING:
        if time.monotonic() > deadline:
            raise LoadError(f"no group coordinator: error {answer.error_code}")
        time.sleep(0.05)
    return answer


class ConsumerGroupOf1000(Row):
    """1,000 members join a new consumer group of a topic with 1,000 partitions, until it is stable with one each."""

    key = "consumer-group-1000"
    title = "a consumer group (KIP-848) of 1,000 members joins"
    metrics = (
        Metric("stable", "stable, beyond the assignment interval", "ms", 0.5, shows_value=False),
        Metric("cpu", "CPU", "ms", 0.3),
    )
    members = 1000
    _serial = 0

    @property
    def warm_most(self) -> int:
        return min(self.scale.warm_most, 6)

    def prepare(self, broker: Broker) -> None:
        with broker.connect() as connection:
            create_topics(connection, [MEMBERS_TOPIC], self.members)
        warm_coordinator(broker)

    def measure(self, broker: Broker) -> Measured:
        ConsumerGroupOf1000._serial += 1
        with ExitStack() as stack:
            crowd = Crowd(broker, stack, f"bench-consumers-{os.getpid()}-{self._serial}", self.members)
            before = broker.cpu_s()
            seconds = crowd.assemble()
            used = broker.cpu_s() - before
            crowd.leave()
        self.requests += self.members
        return {"stable": seconds * 1000, "cpu": used * 1000}

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, [MEMBERS_TOPIC])


class IdleMembers(Row):
    """10,000 members, ten groups of 1,000 with a partition each, say every five seconds that they are alive.

    The budgets are no ratios, and an Apache broker's memory is its heap: kbroker is measured alone.
    """

    key = "consumer-group-10000-idle"
    title = "10,000 idle members of consumer groups (KIP-848)"
    metrics = (
        Metric("busy", "CPU", "%", most=10),
        Metric("memory", "resident memory a member", "KB", most=4),
    )
    uses_fresh = True
    peer_rounds = 0
    groups, members = 10, 1000
    intervals = 3

    @property
    def rounds(self) -> int:
        return min(self.scale.starts, 3)

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        with fresh(kind, IDLE_SETTINGS) as broker, ExitStack() as stack:
            broker.launch_ready()
            with broker.connect() as connection:
                create_topics(connection, [MEMBERS_TOPIC], self.members)
            warm_coordinator(broker)
            crowds = [Crowd(broker, stack, f"bench-idle-{each}", self.members) for each in range(self.groups)]
            rest = broker.rss_bytes()
            for crowd in crowds:
                crowd.assemble()
            memory = broker.rss_bytes() - rest
            _idle(crowds, 1)  # the first to join are late by now
            begun, before = time.perf_counter(), broker.cpu_s()
            _idle(crowds, self.intervals)
            used, seconds = broker.cpu_s() - before, time.perf_counter() - begun
            self.requests += self.intervals * self.groups * self.members
        return {"busy": 100 * used / seconds, "memory": memory / (self.groups * self.members) / 1000}


def _idle(crowds: Sequence[Crowd], intervals: int) -> None:
    """A heartbeat of every member in each interval, one at a time and evenly, in turn over all connections."""
    connections = [connection for crowd in crowds for connection in crowd.connections]
    frames = [
        (connection, frame(member.heartbeat(), HEARTBEAT_VERSION))
        for place in range(Crowd.per_connection)
        for crowd in crowds
        for connection, member in zip(crowd.connections, crowd.members[place :: Crowd.per_connection], strict=True)
    ]
    pause = HEARTBEAT_INTERVAL_S / len(frames)
    begun, sent = time.perf_counter(), 0
    for _ in range(intervals):
        for connection, data in frames:
            if sent >= len(connections):
                _heard(connection.frame())  # of the turn before
            early = begun + sent * pause - time.perf_counter()
            if early > 0:
                time.sleep(early)
            connection.send_bytes(data)
            sent += 1
    for connection in connections:
        _heard(connection.frame())


class ShareMember:
    """The one member of a share group, which accepts the records of some partitions from the first one on."""

    def __init__(self, connection: Connection, group: str, topic_id: bytes, partitions: int = 1) -> None:
        self.connection = connection
        self.group = group
        self.topic_id = topic_id
        self.partitions = partitions
        self.member_id = f"{group}-member"
        self.epoch = JOIN
        self.session_epoch = 0
        self.accepted = 0
        self.requests = 0
        self._acquired: list[AcknowledgementBatch] = []

    def join(self) -> None:
        """Have the partition assigned."""
        request = IncrementalAlterConfigsResource(
            resource_type=GROUP_RESOURCE,
            resource_name=self.group,
            configs=[
                IncrementalAlterableConfig(name="share.auto.offset.reset", config_operation=SET, value="earliest")
            ],
        )
        answer = self.connection.ask(IncrementalAlterConfigsRequest(resources=[request], validate_only=False), 1)
        if answer.responses[0].error_code:
            raise LoadError(f"settings of {self.group}: error {answer.responses[0].error_code}")
        deadline = time.monotonic() + 60
        while not self._heartbeat():
            if time.monotonic() > deadline:
                raise LoadError(f"{self.group} has no assignment")
            time.sleep(0.05)

    def leave(self) -> None:
        """So that the coordinator forgets it now."""
        self.epoch = LEAVE
        self._heartbeat()

    def _heartbeat(self) -> bool:
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            subscribed_topic_names=[SHARE_TOPIC] if self.epoch == JOIN else None,
        )
        answer = _until_served(self.connection, request, SHARE_HEARTBEAT_VERSION)
        if answer.error_code:
            raise LoadError(f"ShareGroupHeartbeat: error {answer.error_code} {answer.error_message}")
        self.epoch = answer.member_epoch
        return bool(answer.assignment and answer.assignment.topic_partitions)

    def send(self) -> None:
        """Acknowledge what was acquired; without anything, fetch."""
        self.connection.send(self._acknowledge() if self._acquired else self._fetch(), SHARE_VERSION)
        self.session_epoch += 1
        self.requests += 1

    def hold_every_other(self, count: int) -> None:
        """Acquire so many records, and accept the second of each two. Raises: LoadError."""
        acquired, deadline = 0, time.monotonic() + TIMEOUT_S
        while acquired < count:
            self.send()
            for index, batches in self._receive().items():
                acquired += _records(batches)
                self._say(
                    index, [offset for each in batches for offset in range(each.first_offset, each.last_offset + 1)]
                )
            if time.monotonic() > deadline:
                raise LoadError(f"{acquired} records acquired in {TIMEOUT_S} s, of {count}")

    def _say(self, index: int, offsets: Sequence[int]) -> None:
        """Accept these records of a partition, each by itself."""
        self._acquired = [
            AcknowledgementBatch(first_offset=each, last_offset=each, acknowledge_types=[ACCEPT])
            for each in offsets[1::2]
        ]
        self.connection.send(self._acknowledge(index), SHARE_VERSION)
        self.session_epoch += 1
        self.requests += 1
        self._receive()
        self._acquired = []

    def _fetch(self) -> ShareFetchRequest:
        partitions = [
            ShareFetchPartition(partition_index=index, acknowledgement_batches=[]) for index in range(self.partitions)
        ]
        opens = self.session_epoch == 0
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait_ms=500,
            min_bytes=1,
            max_records=500,  # max.poll.records of Apache's consumer
            batch_size=500,
            topics=[ShareFetchTopic(topic_id=self.topic_id, partitions=partitions)] if opens else [],
            forgotten_topics_data=[],
        )

    def _acknowledge(self, index: int = 0) -> ShareAcknowledgeRequest:
        partition = ShareAcknowledgePartition(partition_index=index, acknowledgement_batches=self._acquired)
        return ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            topics=[ShareAcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])],
        )

    def receive(self) -> None:
        """The answer to what was sent. Raises: LoadError."""
        acquired = self._receive()
        if self._acquired:
            self.accepted += _records(self._acquired)
            self._acquired = []
        else:
            self._acquired = [each for batches in acquired.values() for each in batches]

    def _receive(self) -> dict[int, list[AcknowledgementBatch]]:
        """What is acquired by an answer, by partition, as it is accepted. Raises: LoadError."""
        answer = self.connection.receive()
        parts = [part for topic in answer.responses for part in topic.partitions]
        if answer.error_code or any(part.error_code for part in parts):
            codes = [answer.error_code, *(part.error_code for part in parts)]
            raise LoadError(f"{type(answer).__name__}: errors {codes}")
        return {
            part.partition_index: [
                AcknowledgementBatch(
                    first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=[ACCEPT]
                )
                for each in part.acquired_records
            ]
            for part in parts
            if isinstance(part, SharePartitionData)
        }


def _records(batches: Iterable[AcknowledgementBatch]) -> int:
    return sum(each.last_offset - each.first_offset + 1 for each in batches)


class ShareAcknowledge(Row):
    """Eight new share groups read a topic of 100-byte records from its start and accept all, 500 and more at a time.

    Each has one member, which fetches (ShareFetch) and acknowledges (ShareAcknowledge) in turn; the acknowledgement is
    answered when the share coordinator has written it.
    """

    key = "share-acknowledge"
    title = "eight share groups (KIP-932) accept 100 B records"
    metrics = (
        Metric("rate", "records acknowledged", "1/s", 1.0, more_is_better=True, shows_value=False),
        Metric("cpu", "CPU per record", "us", 0.6),
    )
    groups = 8
    records = BATCH_BYTES // 110  # of a batch
    _serial = 0

    @property
    def warm_most(self) -> int:
        return min(self.scale.warm_most, 6)

    def prepare(self, broker: Broker) -> None:
        batches = self.scale.requests_100_partitions
        self._count = batches * self.records
        with broker.connect() as connection:
            create_topics(connection, [SHARE_TOPIC])
            Producer(connection, produce_frame(SHARE_TOPIC, [batch(self.records, 100)])).run(batches - 1)
        warm_coordinator(broker)

    def measure(self, broker: Broker) -> Measured:
        ShareAcknowledge._serial += 1
        with ExitStack() as stack:
            first = stack.enter_context(broker.connect())
            (topic,) = first.ask(MetadataRequest(topics=[MetadataRequestTopic(name=SHARE_TOPIC)]), 10).topics
            members = [
                ShareMember(
                    stack.enter_context(broker.connect()),
                    f"bench-share-{os.getpid()}-{self._serial}-{number}",
                    topic.topic_id,
                )
                for number in range(self.groups)
            ]
            for member in members:
                member.join()
            begun, before = time.perf_counter(), broker.cpu_s()
            self._drain(members)
            used, seconds = broker.cpu_s() - before, time.perf_counter() - begun
            for member in members:
                member.leave()
        total = sum(member.accepted for member in members)
        self.requests += sum(member.requests for member in members)
        return {"rate": total / seconds, "cpu": used / total * 1e6}

    def _drain(self, members: Sequence[ShareMember]) -> None:
        """Until each has accepted all records: no member waits for another's answer."""
        deadline = time.monotonic() + TIMEOUT_S
        for member in members:
            member.send()
        left = list(members)
        while left:
            for member in list(left):
                member.receive()
                if member.accepted < self._count:
                    member.send()
                else:
                    left.remove(member)
            if time.monotonic() > deadline:
                raise LoadError(f"{sum(each.accepted for each in members)} records accepted in {TIMEOUT_S} s")
        if any(member.accepted != self._count for member in members):
            raise LoadError(f"accepted {[each.accepted for each in members]}, not {self._count} each")

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, [SHARE_TOPIC])


class ShareLocks(Row):
    """A member of a share group holds 100,000 records one by one: of 200,000 it has accepted every other.

    So no lock shares what is kept for it with another; a member that fetches whole batches has one for each of those.
    The budget is no ratio, and an Apache broker's memory is its heap: kbroker is measured alone.
    """

    key = "share-locks"
    title = "100,000 record locks of a share group (KIP-932)"
    metrics = (Metric("memory", "resident memory", "MB", most=50),)
    uses_fresh = True
    peer_rounds = 0
    partitions, locks = 100, 2000  # as many as a share-partition may have as shipped

    @property
    def rounds(self) -> int:
        return min(self.scale.starts, 3)

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        settings = {"group.share.record.lock.duration.ms": "60000", "group.share.max.record.lock.duration.ms": "60000"}
        with fresh(kind, settings) as broker:
            broker.launch_ready()
            with broker.connect() as connection:
                create_topics(connection, [SHARE_TOPIC], self.partitions)
                (topic,) = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=SHARE_TOPIC)]), 10).topics
                Producer(connection, produce_frame(SHARE_TOPIC, [batch(self.locks, 10)] * self.partitions))  # once
                warm_coordinator(broker)
                member = ShareMember(connection, "bench-locks", topic.topic_id, self.partitions)
                member.join()
                rest = broker.rss_bytes()
                member.hold_every_other(self.partitions * self.locks)
                memory = broker.rss_bytes() - rest
            self.requests += member.requests
        return {"memory": memory / 1e6}


ROWS: tuple[type[Row], ...] = (ConsumerGroupOf1000, ShareAcknowledge, IdleMembers, ShareLocks)
