"""What clients hear while a coordinator's log takes nothing, or does not get on: to ask again, whatever they asked.

Two brokers hold the coordinators' topics. One of them stops, and too few replicas are in sync; or it stands still, and
nothing that is appended is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.txn.state import Transaction
from protocol.errors import ErrorCode
from protocol.message import Message, Struct
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.produce import ProduceRequest
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.schema import fields
from tests.controller.cluster import Client, Cluster
from tests.groups.streams.theatre import topology
from tests.requests import produce

GROUP, TRANSACTION, SHARE = 0, 1, 2
ANSWERED_WITHIN_MS = 20_000
SETTINGS = {
    "group_initial_rebalance_delay_ms": "0",
    "min_insync_replicas": "2",
    "offsets_topic_num_partitions": "1",
    "offsets_topic_replication_factor": "2",
    "transaction_state_log_num_partitions": "1",
    "transaction_state_log_replication_factor": "2",
    "transaction_state_log_min_isr": "2",
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000",
    "share_coordinator_state_topic_num_partitions": "1",
    "share_coordinator_state_topic_replication_factor": "2",
    "share_coordinator_state_topic_min_isr": "2",
    "replica_lag_time_max_ms": "3600000",
    "transaction_partition_verification_enable": "false",
}
OF_PRODUCE = dict.fromkeys(("Produce", "Produce, again"), "NOT_ENOUGH_REPLICAS")
"""What clients of all ages know there."""
TIMED_OUT = {"OffsetCommit": "REQUEST_TIMED_OUT", "TxnOffsetCommit": "REQUEST_TIMED_OUT"}
"""What waited too long, in the words of Kafka 3.9's coordinator of classic groups."""


class Asker:
    """Asks the coordinators of two brokers."""

    def __init__(self) -> None:
        self.cluster = Cluster(1, 2, **SETTINGS)
        self.cluster.replicates = True
        for feature in ("group.version", "share.version", "streams.version", "transaction.version"):
            level = {"share.version": 2, "transaction.version": 2}.get(feature, 1)
            update = FeatureUpdateKey(feature=feature, max_version_level=level)
            self.cluster.ask(UpdateFeaturesRequest(feature_updates=[update]), 1)
        assert self.cluster.assign("t", (1,)) == 0
        self.cluster.settle()
        self.topic_id = self.cluster.nodes[1].plane.cache.topics["t"].topic_id
        self._waiting: dict[str, Client] = {}

    def coordinator(self, kind: int) -> int:
        """The broker that is asked, once it is known who that is, and loaded."""
        key = "g" if kind != SHARE else "g:AAAAAAAAAAAAAAAAAAAAAA:0"
        for _ in range(20):
            (found,) = self.cluster.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]), 6).coordinators
            if not found.error_code:
                return int(found.node_id)
            self.cluster.advance(1_000)
        raise AssertionError(found)

    def ask(self, kind: int, request: Message, version: int) -> Any:
        """The answer, which comes soon and has no error in it."""
        answer = self.cluster.ask(request, version, self.coordinator(kind))
        assert not list(error_codes(answer)), answer
        return answer

    def send(self, kind: int, request: Message, version: int, name: str = "") -> None:
        """Ask; the answer is heard later. name: of the request, if it is not the only one of its kind."""
        self.send_to(self.coordinator(kind), request, version, name or type(request).__name__.removesuffix("Request"))

    def send_to(self, broker_id: int, request: Message, version: int, name: str) -> None:
        """Ask a certain broker."""
        client = self._waiting[name] = Client(self.cluster.nodes[broker_id])
        client.send(request, version)
        self.cluster.settle()

    def hear(self) -> dict[str, str]:
        """The codes in all answers, which are there in time."""
        self.cluster.advance(ANSWERED_WITHIN_MS)
        answers = {name: client.answer() for name, client in self._waiting.items()}
        assert None not in answers.values(), answers
        self._waiting.clear()
        codes = {name: sorted({ErrorCode(code).name for code in error_codes(each)}) for name, each in answers.items()}
        return {name: " ".join(found) or "NONE" for name, found in codes.items()}


def error_codes(value: Any) -> Iterator[int]:
    """All that are in an answer."""
    for field in fields(type(value)):
        found = getattr(value, field.name)
        if field.name.endswith("error_code") and found:
            yield found
        for each in found if isinstance(found, list) else ():
            if isinstance(each, Struct):
                yield from error_codes(each)


def commit(group_id: str, **fields: Any) -> OffsetCommitRequest:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    return OffsetCommitRequest(group_id=group_id, topics=topics, **fields)


def join(member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="classic",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def init(name: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=15_000)


def share_beat(group_id: str, epoch: int) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group_id, member_id="m", member_epoch=epoch, subscribed_topic_names=["t"] if epoch == 0 else None
    )


def state(asker: Asker, group_id: str) -> InitializeShareGroupStateRequest:
    part = InitializeStatePartition(partition=0, state_epoch=1, start_offset=0)
    topics = [InitializeStateData(topic_id=asker.topic_id, partitions=[part])]
    return InitializeShareGroupStateRequest(group_id=group_id, topics=topics)


def prepared() -> tuple[Asker, Any]:
    """Groups and transactions that are there while all is well; the answer to the join of a classic group."""
    asker = Asker()
    for kind in (GROUP, TRANSACTION, SHARE):
        asker.coordinator(kind)
    joined = asker.ask(GROUP, join(), 3)
    for group_id in ("committed", "deleted"):
        asker.ask(GROUP, commit(group_id), 8)
    for group_id in ("altered", "forgotten", "removed"):
        epoch = asker.ask(GROUP, share_beat(group_id, 0), 1).member_epoch
        asker.cluster.advance(1_000)
        assert epoch == 2
        asker.ask(GROUP, share_beat(group_id, -1), 1)
    for name in ("open", "ending", "taken"):
        producer = asker.ask(TRANSACTION, init(name), 4)
        asker.ask(TRANSACTION, add(name, producer), 3)
    for name in ("begins", "writes"):
        asker.ask(TRANSACTION, init(name), 4)
    asker.ask(SHARE, state(asker, "kept"), 0)
    return asker, joined


def add(name: str, producer: Any) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )


@pytest.fixture
def too_few() -> tuple[Asker, Any]:
    """The broker beside the coordinators' has stopped, or theirs has, and the other one took over."""
    asker, joined = prepared()
    asker.cluster.stop(2)
    asker.cluster.advance(2_000)
    return asker, joined


@pytest.fixture
def too_slow() -> tuple[Asker, Any]:
    """No follower fetches any more, and each is in sync yet."""
    asker, joined = prepared()
    asker.cluster.replicates = False
    asker.cluster.advance(2_000)
    return asker, joined


def ask_group_coordinator(asker: Asker, joined: Any) -> dict[str, str]:
    """One request of each kind that is written down."""
    deleted = [OffsetDeleteRequestTopic(name="t", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    in_transaction = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    altered = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    topics = [TxnOffsetCommitRequestTopic(name="t", partitions=[in_transaction])]
    given = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    if "classic" in asker.cluster.nodes[asker.coordinator(GROUP)].broker.group_runtime.shards[0].groups:
        sync = SyncGroupRequest(
            group_id="classic", generation_id=joined.generation_id, member_id=joined.member_id, assignments=given
        )
        asker.send(GROUP, sync, 3)
    asker.send(GROUP, commit("committed"), 8)
    asker.send(
        GROUP,
        TxnOffsetCommitRequest(transactional_id="x", group_id="x", producer_id=7, producer_epoch=0, topics=topics),
        3,
    )
    asker.send(GROUP, OffsetDeleteRequest(group_id="committed", topics=deleted), 0)
    asker.send(GROUP, DeleteGroupsRequest(groups_names=["deleted"]), 2)
    asker.send(GROUP, DeleteGroupsRequest(groups_names=["removed"]), 2, "DeleteGroups of a share group")
    consumer = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=30_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    asker.send(GROUP, consumer, 1)
    asker.send(GROUP, share_beat("share", 0), 1)
    streams = StreamsGroupHeartbeatRequest(
        group_id="streams",
        member_id="m",
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=30_000,
        topology=topology(),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )
    asker.send(GROUP, streams, 0)
    alter = [AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=[altered])]
    asker.send(GROUP, AlterShareGroupOffsetsRequest(group_id="altered", topics=alter), 0)
    forget = [DeleteShareGroupOffsetsRequestTopic(topic_name="t")]
    asker.send(GROUP, DeleteShareGroupOffsetsRequest(group_id="forgotten", topics=forget), 0)
    return asker.hear()


def ask_transaction_coordinator(asker: Asker) -> dict[str, str]:
    """One request of each kind, and each again once it has been answered."""
    found = asker.cluster.nodes[asker.coordinator(TRANSACTION)].broker.transaction_runtime.shards[0].transactions
    begins, ending, open_ = (found[name] for name in ("begins", "ending", "open"))
    several = AddPartitionsToTxnTransaction(
        transactional_id="begins",
        producer_id=begins.producer_id,
        producer_epoch=begins.producer_epoch,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    heard = {}
    for again in ("", ", again"):
        asker.send(TRANSACTION, init("new"), 4, f"InitProducerId{again}")
        asker.send(TRANSACTION, init("taken"), 4, f"InitProducerId, a takeover{again}")
        if again:
            asker.send(TRANSACTION, AddPartitionsToTxnRequest(transactions=[several]), 4, "AddPartitionsToTxn 4")
        asker.send(TRANSACTION, add("begins", begins), 3, f"AddPartitionsToTxn{again}")
        producer = {"producer_id": open_.producer_id, "producer_epoch": open_.producer_epoch}
        offsets = AddOffsetsToTxnRequest(transactional_id="open", group_id="g", **producer)
        asker.send(TRANSACTION, offsets, 3, f"AddOffsetsToTxn{again}")
        producer = {"producer_id": ending.producer_id, "producer_epoch": ending.producer_epoch}
        end = EndTxnRequest(transactional_id="ending", committed=True, **producer)
        asker.send(TRANSACTION, end, 3, f"EndTxn{again}")
        asker.send_to(1, write(asker, found["writes"]), 13, f"Produce{again}")
        heard |= asker.hear()
    return heard


def write(asker: Asker, producer: Transaction) -> ProduceRequest:
    """The first batch of a transaction, which has the partition added to it."""
    records = build_batch(
        [Record(0, 0, None, b"v")],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    request = produce(topic="", topic_id=asker.topic_id, acks=-1, records=bytes(records))
    request.transactional_id = producer.name
    return request


def ask_share_coordinator(asker: Asker) -> dict[str, str]:
    """One request of each kind."""
    topic_id = asker.topic_id
    asker.send(SHARE, state(asker, "other"), 0)
    written = WriteStatePartition(partition=0, state_epoch=1, leader_epoch=0, start_offset=1, state_batches=[])
    write = [WriteStateData(topic_id=topic_id, partitions=[written])]
    asker.send(SHARE, WriteShareGroupStateRequest(group_id="kept", topics=write), 0)
    read = [ReadStateData(topic_id=topic_id, partitions=[ReadStatePartition(partition=0, leader_epoch=0)])]
    asker.send(SHARE, ReadShareGroupStateRequest(group_id="kept", topics=read), 0)
    gone = [DeleteStateData(topic_id=topic_id, partitions=[DeleteStatePartition(partition=0)])]
    asker.send(SHARE, DeleteShareGroupStateRequest(group_id="kept", topics=gone), 0)
    return asker.hear()


def all_but(heard: dict[str, str], **others: str) -> dict[str, str]:
    return dict.fromkeys(heard, "COORDINATOR_NOT_AVAILABLE") | others


def test_a_group_coordinator_without_enough_replicas_is_not_available(too_few: tuple[Asker, Any]) -> None:
    heard = ask_group_coordinator(*too_few)
    assert heard == all_but(heard)


def test_a_group_coordinator_whose_replicas_are_too_slow_is_not_available(too_slow: tuple[Asker, Any]) -> None:
    heard = ask_group_coordinator(*too_slow)
    assert heard == all_but(heard, SyncGroup="REBALANCE_IN_PROGRESS", **TIMED_OUT)


def test_a_transaction_coordinator_without_enough_replicas_is_not_available(too_few: tuple[Asker, Any]) -> None:
    heard = ask_transaction_coordinator(too_few[0])
    assert heard == all_but(heard, **OF_PRODUCE)


def test_a_transaction_coordinator_whose_replicas_are_too_slow_is_not_available(too_slow: tuple[Asker, Any]) -> None:
    heard = ask_transaction_coordinator(too_slow[0])
    assert heard == all_but(heard, **OF_PRODUCE)


def test_a_share_coordinator_without_enough_replicas_is_not_available(too_few: tuple[Asker, Any]) -> None:
    heard = ask_share_coordinator(too_few[0])
    assert heard == all_but(heard, ReadShareGroupState="NONE")  # it writes nothing down, and nothing waits


def test_a_share_coordinator_whose_replicas_are_too_slow_is_not_available(too_slow: tuple[Asker, Any]) -> None:
    asker, _ = too_slow
    heard = ask_share_coordinator(asker)
    read = [ReadStateData(topic_id=asker.topic_id, partitions=[ReadStatePartition(partition=0, leader_epoch=0)])]
    asker.send(SHARE, ReadShareGroupStateSummaryRequest(group_id="kept", topics=read), 0)
    heard |= asker.hear()
    assert heard == all_but(heard)
