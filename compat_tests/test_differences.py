"""Apache's broker and ours are asked the same, right and wrong, and must answer the same.

Stories are played to kbroker and to Apache Kafka 3.9.1, whose coordinator of classic groups is ours too. Compared is
all that a client is told, but for what each broker makes up (ids, counted as they come), and what it says in words only
where scripts look for the words. What differs on purpose stands at the heads of kbroker/api/*.py and in docs/groups.md,
and is in no story.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import zookeeper_cluster
from compat_tests.brokers import broker_of, place_of
from compat_tests.raw import Connection
from compat_tests.waiting import eventually
from protocol.message import Message, Struct
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.logdirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.security import DeleteAclsFilter, DeleteAclsRequest, DescribeAclsRequest
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.topics import TopicPartitions as ElectionPartitions
from protocol.records import Record
from protocol.records.batch import write_crc
from protocol.records.content import build_batch
from protocol.schema import fields

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
MADE_UP = {"member_id", "leader", "session_id", "producer_id", "topic_id"}
WORDS = {"error_message"}
NOT_COMPARED = WORDS | {
    "batch_index_error_message",
    "throttle_time_ms",
    "aborted_transactions",  # none: null or empty
    "log_append_time_ms",  # of a batch sent again: told by Kafka wherever it comes from
}
SUBSCRIPTION = struct.pack(">hih1sii", 0, 1, 1, b"t", -1, 0)  # what a consumer that reads topic t says of itself
UNKNOWN_MEMBER_ID, MEMBER_ID_REQUIRED = 25, 79
SETTINGS_OF_A_GROUP = 1 << 10 | 1 << 11
"""DESCRIBE_CONFIGS and ALTER_CONFIGS: no operations of groups in Kafka 3.9, but in 4.3 and 4.4."""


class Told:
    """A connection to a broker, and all that was answered on it, in a form that both brokers' answers can have."""

    def __init__(self, connection: Connection, not_compared: Set[str] = frozenset(NOT_COMPARED)) -> None:
        self.answers: list[str] = []
        self._connection = connection
        self._numbers: dict[tuple[str, Any], int] = {}
        self._never_compared = self._not_compared = not_compared

    def ask(self, request: Message, version: int, *, in_words: bool = False) -> Any:
        """The answer, also kept. in_words: with what it says in words."""
        answer = self.ask_aside(request, version)
        self._not_compared = self._never_compared - WORDS if in_words else self._never_compared
        self.answers.append(f"{type(request).__name__} {version}: {self._plain('', answer)}")
        return answer

    def ask_aside(self, request: Message, version: int) -> Any:
        """The answer, not kept: how often something is asked until it is so may differ."""
        return self._connection.ask(request, version)

    def _plain(self, name: str, value: Any) -> Any:
        if isinstance(value, Struct):
            kept = [field.name for field in fields(type(value)) if field.name not in self._not_compared]
            return {each: self._plain(each, getattr(value, each)) for each in kept}
        if isinstance(value, list):
            plain = [self._plain(name, each) for each in value]
            return (
                sorted(plain, key=str) if name in ("partitions", "configs") else plain
            )  # Kafka's hash tables shuffle them
        value = bytes(value) if isinstance(value, memoryview) else value
        if name == "authorized_operations":  # of a group
            return value & ~SETTINGS_OF_A_GROUP
        if name in MADE_UP and value not in ("", 0, -1):
            return self._numbers.setdefault((name, value), len(self._numbers))
        return value


def produce_and_look_up(told: Told) -> None:
    """Batches good and bad, idempotent ones among them; then offsets by time, by epoch, and after a deletion."""
    topic(told, "t")
    topic(told, "lone", configs={"min.insync.replicas": "2"})
    topic(told, "keyed", configs={"cleanup.policy": "compact"})
    good = batch(b"a", b"b")
    for records in (good + good, good[:-1], good[:30], b""):
        told.ask(producing("t", records), 3)
    produced = [("t", good), ("t", good + b"\0"), ("nowhere", good), ("lone", good)]
    produced += [("keyed", batch(b"v")), ("keyed", batch(b"v", key=b"k"))]
    produced += [("t", changed(good, at, form, value)) for at, form, value in HEADERS]
    sequences = [(0, 0), (0, 0), (0, 5), (0, 2), (1, 3), (1, 0), (0, 4)]  # epoch and base sequence
    produced += [("t", batch(b"a", b"b", producer=(7, epoch, sequence))) for epoch, sequence in sequences]
    for version in (3, 7, 9, 11):
        for name, records in produced:
            told.ask(producing(name, records), version)
    look_up(told)
    for before in (1, 0, 3, 99, -2, -1):
        parts = [DeleteRecordsPartition(partition_index=0, offset=before)]
        told.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=parts)], timeout_ms=5000), 2)
        told.ask(fetching(0, 0), 12)
        if before == 3:
            look_up(told)


def look_up(told: Told) -> None:
    """Every offset that can be asked for, but that of the largest timestamp."""
    for timestamp in (-1, -2, -4, -5, -6, 0, 999, 1000, 1001, 1002):
        for epoch in (-2, -1, 0, 1):
            asked = [ListOffsetsPartition(partition_index=0, current_leader_epoch=epoch, timestamp=timestamp)]
            topics = [ListOffsetsTopic(name="t", partitions=asked)]
            told.ask(ListOffsetsRequest(replica_id=-1, isolation_level=epoch % 2, topics=topics), 9)
            parts = [OffsetForLeaderPartition(partition=0, current_leader_epoch=epoch, leader_epoch=timestamp)]
            ends = [OffsetForLeaderTopic(topic="t", partitions=parts)]
            told.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=ends), 4)


def fetch_in_sessions(told: Told) -> None:
    """Fetches of all sizes and epochs; then a session that goes on, goes wrong and is left."""
    topic(told, "t", partitions=3)
    for index in (0, 0, 1):
        told.ask(producing("t", batch(b"v" * 100), index), 9)
    for version in (4, 9, 11, 12):
        for index, offset in ((0, 0), (0, 1), (0, 2), (0, 3), (0, -1), (2, 0), (7, 0)):
            for size in (0, 1, 180, 1 << 20):
                told.ask(fetching(index, offset, size=size), version)
        for epoch in (-2, -1, 0, 1):
            told.ask(fetching(0, 1, epoch=epoch), version)
            if version >= 12:
                told.ask(fetching(0, 1, last_epoch=epoch), version)
    session = told.ask(fetching(0, 2, session=(0, 0)), 12).session_id
    told.ask(fetching(1, 0, session=(session, 1)), 12)
    told.ask(fetching(1, 1, session=(session, 2)), 12)
    told.ask(fetching(7, 0, session=(session, 3)), 12)
    told.ask(fetching(2, 0, session=(session, 4), forget=7), 12)
    told.ask(fetching(2, 0, session=(session, 4)), 12)  # that was the last epoch
    told.ask(fetching(2, 9, session=(session, 5)), 12)
    told.ask(fetching(2, 0, session=(session, 6)), 12)
    told.ask(fetching(0, 0, session=(session + 1, 1)), 12)
    told.ask(fetching(0, 0, session=(session, -1)), 12)
    told.ask(fetching(0, 0, session=(session, 7)), 12)


def administer(told: Told) -> None:
    """Topics made, grown and deleted, settings changed, partitions sent elsewhere: rightly, and wrongly."""
    topic(told, "t", partitions=2)
    for name in ("t", "", ".", "a b", "x" * 250, "n"):
        told.ask(making(name), 5, in_words=True)
    for partitions, factor in ((0, 1), (-2, 1), (1, 0), (1, 3), (1, -3)):
        told.ask(making("n", partitions, factor), 5, in_words=True)
    for wanted in ([(0, [1, 1])], [(0, [1]), (2, [1])], [(0, [])], [(0, [1]), (0, [1])]):
        told.ask(making("n", -1, -1, assignments=wanted), 5, in_words=True)
    told.ask(making("n", assignments=[(0, [1])]), 5)
    for value in ("soon", "-5", None):
        told.ask(making("n", configs={"retention.ms": value}), 5)
    told.ask(making("n", configs={"no.such": "1"}), 5)
    told.ask(making("n", times=2), 5, in_words=True)
    for count in (1, 0, -1, 2):
        told.ask(growing("t", count), 3, in_words=True)
    for replicas in ([], [[9]], [[1, 1]]):
        told.ask(growing("t", 3, replicas), 3, in_words=True)
    told.ask(growing("nope", 3), 3)
    for names in (["nope"], ["a b"]):
        told.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=5000), 5, in_words=True)
    change_settings(told)
    for name, index, brokers in (
        ("t", 0, [1]),
        ("t", 0, None),
        ("t", 9, [1]),
        ("nope", 0, [1]),
        ("t", 0, []),
        ("t", 0, [1, 1]),
        ("t", 0, [1, 9]),
    ):
        part = ReassignablePartition(partition_index=index, replicas=brokers)
        wanted = [ReassignableTopic(name=name, partitions=[part])]
        told.ask(AlterPartitionReassignmentsRequest(topics=wanted), 0, in_words=True)
    told.ask(ListPartitionReassignmentsRequest(topics=None), 0)
    told.ask(DescribeAclsRequest(**ANY_RULE), 2, in_words=True)
    told.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**ANY_RULE)]), 2, in_words=True)


def move_between_disks(told: Told) -> None:
    """Replicas into other log directories, rightly and wrongly; then what is asked of a cluster about itself."""
    topic(told, "t")
    told.ask(producing("t", batch(b"a", b"b")), 9)
    home, other = sorted(directories(told), key=lambda each: not directories(told)[each])
    for version in (0, 1, 2):
        for name, path in (("t", home), ("t", "/nowhere"), ("nope", home), ("t", other)):
            told.ask(moving(name, path), version)
        eventually(lambda other=other: [each[1:] for each in directories(told)[other]] == [("t", 0, False, 0)])
        home, other = other, home
    told.ask(moving("x" * 240, home), 2)
    told.ask(fetching(0, 0), 12)
    for name, index in (("t", 0), ("t", 7), ("nope", 0)):
        asked = [ElectionPartitions(topic=name, partitions=[index])]
        for kind in (0, 1):
            told.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=5000), 2)
    for version in (8, 10):
        both = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
        allowed = told.ask_aside(MetadataRequest(topics=[MetadataRequestTopic(name="t")], **both), version)
        operations = allowed.cluster_authorized_operations, allowed.topics[0].topic_authorized_operations
        told.answers.append(f"allowed, as Metadata {version} says: {operations}")
    allowed = told.ask_aside(DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
    told.answers.append(f"allowed, as DescribeCluster says: {allowed.cluster_authorized_operations}")
    for kind in (2, 9):
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=kind)
        told.ask(request, 1, in_words=True)


def directories(told: Told) -> dict[str, list[tuple[int, str, int, bool, int]]]:
    """By path: error, topic, partition, whether it is a copy on its way, lag."""
    answer = told.ask_aside(DescribeLogDirsRequest(topics=None), 2)
    return {
        each.log_dir: [
            (each.error_code, found.name, part.partition_index, part.is_future_key, part.offset_lag)
            for found in each.topics
            for part in found.partitions
        ]
        for each in answer.results
    }


def moving(name: str, path: str) -> AlterReplicaLogDirsRequest:
    """One partition into one directory."""
    topics = [AlterReplicaLogDirTopic(name=name, partitions=[0])]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])


def change_settings(told: Told) -> None:
    """One setting after the other, of a topic, of the broker and of all; then what has become of them."""
    for kind, name in ((TOPIC, "t"), (TOPIC, "nope"), (TOPIC, "a b"), (TOPIC, ""), (BROKER, "1"), (BROKER, "")):
        for key, value in (
            ("sasl.kerberos.min.time.before.relogin", "1000"),
            ("remote.fetch.max.wait.ms", "7"),
            ("no.such.key", "1"),
            ("retention.ms", "9"),
            ("cleanup.policy", "delete"),
        ):
            is_elsewhere = name == "nope" and key not in ("retention.ms", "cleanup.policy")  # looked at in other orders
            is_for_one = kind == BROKER and not name and key.startswith("sasl.")  # refused with another code
            if not is_elsewhere and not is_for_one:
                told.ask(setting(kind, name, key, value), 1)
    for operation, value in ((SET, None), (DELETE, "5"), (APPEND, "5")):
        told.ask(setting(TOPIC, "t", "retention.ms", value, operation), 1)
    eventually(lambda: shows(told, BROKER, "", "cleanup.policy") == [3])  # Apache's broker hears of it by and by
    eventually(lambda: shows(told, TOPIC, "t", "retention.ms") == [5])
    for kind, name, keys in (
        (TOPIC, "t", ["retention.ms", "segment.ms", "flush.ms", "segment.jitter.ms", "min.insync.replicas"]),
        (BROKER, "1", ["no.such.key", "sasl.kerberos.min.time.before.relogin", "remote.fetch.max.wait.ms"]),
        (BROKER, "", ["no.such.key", "remote.fetch.max.wait.ms"]),
    ):
        for key in keys:
            wanted = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
            told.ask(DescribeConfigsRequest(resources=[wanted], include_synonyms=True), 4, in_words=True)
    nowhere = DescribeConfigsResource(resource_type=TOPIC, resource_name="nope", configuration_keys=None)
    told.ask(DescribeConfigsRequest(resources=[nowhere]), 4, in_words=True)


def shows(told: Told, kind: int, name: str, key: str) -> list[int]:
    """Where a setting comes from, if it is there."""
    wanted = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
    answer = told.ask_aside(DescribeConfigsRequest(resources=[wanted]), 4)
    return [each.config_source for each in answer.results[0].configs]


def live_in_a_group(told: Told) -> None:
    """A dynamic member and a static one, each alone in its group, with every call out of turn."""
    topic(told, "t")
    find = FindCoordinatorRequest(key="g")
    eventually(lambda: told.ask_aside(find, 2).error_code == 0)
    eventually(lambda: told.ask_aside(beat("g", 1, "x"), 3).error_code == UNKNOWN_MEMBER_ID)  # 0 while it is loading
    for group, instance in (("dynamic", None), ("static", "i")):
        call_out_of_turn(told, group, 1, "nobody", instance)
        joined = told.ask(join(group, "", instance), 7)
        if joined.error_code == MEMBER_ID_REQUIRED:
            call_out_of_turn(told, group, -1, joined.member_id, instance)
            joined = told.ask(join(group, joined.member_id, instance), 7)
        for member in (joined.member_id, "nobody", ""):
            for generation in (joined.generation_id, joined.generation_id + 1, -1):
                call_out_of_turn(told, group, generation, member, instance)
                call_out_of_turn(told, group, generation, member, "stranger")
        told.ask(sync(group, joined.generation_id, joined.member_id, instance, b"mine"), 3)
        call_out_of_turn(told, group, joined.generation_id, joined.member_id, instance)
        again = told.ask(join(group, "" if instance else joined.member_id, instance), 7)
        call_out_of_turn(told, group, again.generation_id, joined.member_id, instance)
        told.ask(sync(group, again.generation_id, again.member_id, instance, b"mine"), 3)
        for member in ("nobody", again.member_id, again.member_id):
            leaving = [MemberIdentity(member_id=member, group_instance_id=instance)]
            told.ask(LeaveGroupRequest(group_id=group, members=leaving), 3)
        call_out_of_turn(told, group, again.generation_id, again.member_id, instance)
        call_out_of_turn(told, group, -1, "", None)


def call_out_of_turn(told: Told, group: str, generation: int, member: str, instance: str | None) -> None:
    """Beat, sync, commit and ask for offsets, whatever the group is at."""
    told.ask(beat(group, generation, member, instance), 3)
    told.ask(sync(group, generation, member, instance, None), 3)
    for offset, metadata in ((generation + 1, ""), (5, "m" * 4097)):
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata=metadata)
        none = OffsetCommitRequestPartition(partition_index=9, committed_offset=offset, committed_metadata=metadata)
        commit = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            group_instance_id=instance,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[part, none])],
        )
        told.ask(commit, 7)
    told.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]), 8)
    told.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), 4)


@pytest.mark.parametrize(
    "story", [produce_and_look_up, fetch_in_sessions, administer, move_between_disks, live_in_a_group]
)
def test_both_brokers_answer_the_same(story: Callable[[Told], None], tmp_path: Path) -> None:
    answers = []
    for choice in ("kbroker", "apache-3.9.1"):
        directories = ",".join(str(tmp_path / choice / each) for each in ("a", "b"))
        settings = {**SETTINGS, "log.dirs": directories}  # a broker for tests has one, and some other defaults
        with broker_of(choice, tmp_path / choice, settings) as server, Connection(server.port) as connection:
            told = Told(connection)
            story(told)
            answers.append(told.answers)
    for ours, apaches in zip(*answers, strict=True):
        assert ours == apaches


# ---- what the stories say

HEADERS = [  # position, form and value of what is wrong, or only odd, in a batch's header
    (0, ">q", 5),
    (8, ">i", 13),
    (12, ">i", 7),
    (16, ">b", 3),
    (21, ">h", 0x20),
    (21, ">h", 0x40),
    (23, ">i", 5),
    (35, ">q", -1),
    (43, ">q", 9),
    (57, ">i", 0),
    (57, ">i", 3),
]


TOPIC, BROKER = 2, 4
SET, DELETE, APPEND = 0, 1, 2
ANY_RULE: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def making(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assignments: Sequence[tuple[int, list[int]]] = (),
    configs: Mapping[str, str | None] | None = None,
    times: int = 1,
) -> CreateTopicsRequest:
    """A topic that is only tried."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    return CreateTopicsRequest(topics=[wanted] * times, timeout_ms=20_000, validate_only=True)


def growing(name: str, count: int, replicas: Sequence[list[int]] | None = None) -> CreatePartitionsRequest:
    """More partitions, only tried."""
    chosen = None if replicas is None else [CreatePartitionsAssignment(broker_ids=each) for each in replicas]
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=chosen)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=20_000, validate_only=True)


def setting(kind: int, name: str, key: str, value: str | None, operation: int = SET) -> IncrementalAlterConfigsRequest:
    """One change of one resource."""
    change = IncrementalAlterableConfig(name=key, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def topic(told: Told, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """A topic whose partitions are led."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    assert told.ask_aside(CreateTopicsRequest(topics=[wanted], timeout_ms=20_000), 4).topics[0].error_code == 0
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
    ends = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
    eventually(lambda: not any(part.error_code for part in told.ask_aside(ends, 3).topics[0].partitions))


def producing(name: str, records: bytes, index: int = 0) -> ProduceRequest:
    """One partition's batch, with acks=all."""
    data = [PartitionProduceData(index=index, records=records)]
    topics = [TopicProduceData(name=name, partition_data=data)]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics)


def batch(*values: bytes, key: bytes | None = None, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch of records at 1000, 1001, ... ms. producer: id, epoch, base sequence."""
    records = [Record(at, 1000 + at, key, value) for at, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    return bytes(build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


def changed(records: bytes, position: int, form: str, value: int) -> bytes:
    """A batch with another number in its header, and the checksum for it."""
    data = bytearray(records)
    struct.pack_into(form, data, position, value)
    write_crc(data, 0, len(data))
    return bytes(data)


def fetching(
    index: int,
    offset: int,
    *,
    size: int = 1 << 20,
    epoch: int = -1,
    last_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: int | None = None,
) -> FetchRequest:
    """A fetch of one partition of t that waits for nothing. forget: a partition to drop from the session."""
    part = FetchPartition(
        partition=index,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
        partition_max_bytes=size,
    )
    dropped = [] if forget is None else [ForgottenTopic(topic="t", partitions=[forget])]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic="t", partitions=[part])],
        forgotten_topics_data=dropped,
    )


def beat(group: str, generation: int, member: str, instance: str | None = None) -> HeartbeatRequest:
    """A heartbeat."""
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def join(group: str, member: str, instance: str | None) -> JoinGroupRequest:
    """A consumer's request to join, with a session that outlives the story."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )


def sync(group: str, generation: int, member: str, instance: str | None, assignment: bytes | None) -> SyncGroupRequest:
    """A sync, from the leader if it brings its own assignment."""
    brought = [] if assignment is None else [SyncGroupRequestAssignment(member_id=member, assignment=assignment)]
    return SyncGroupRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance, assignments=brought
    )


@pytest.mark.parametrize("api", [55, 64], ids=["DescribeQuorum", "UnregisterBroker"])
def test_what_only_a_metadata_quorum_answers_ends_the_connection(api: int, tmp_path: Path) -> None:
    """Judged by Apache's broker on ZooKeeper, as ours is; its sibling of a metadata quorum answers them."""
    frame = struct.pack(">ihhih", 11, api, 0, 1, -1) + b"\0"
    with zookeeper_cluster(tmp_path / "apache") as (apaches,), place_of("kbroker", tmp_path / "ours", {}) as ours:
        for port in (apaches.port, ours.port):
            with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
                connection.sendall(frame)
                assert connection.recv(1) == b"", f"port {port} answered"
