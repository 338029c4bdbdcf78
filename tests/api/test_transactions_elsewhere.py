"""Transactions that another broker coordinates: it is asked before the first write in a partition, and writes wait."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.metadata.store import BrokerInfo, Endpoint
from kbroker.ports import PeerAnswer, PeerFault, PeerFaultKind
from kbroker.txn import Producer
from kbroker.txn.state import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.control import UpdateMetadataPartitionState
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch
from tests.world import Client, World

GROUP = "g"


class Peers:
    """Takes requests down and answers none."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, AddPartitionsToTxnRequest, object]] = []
        self.addresses: list[Endpoint] = []

    def send(
        self, broker_id: int, address: Any, purpose: str, request: Any, version: int, token: object, timeout_ms: int
    ) -> None:
        self.sent.append((broker_id, request, token))
        self.addresses.append(address)


class Stage:
    """A broker that leads all partitions but those of __transaction_state, which broker 2 has."""

    def __init__(self) -> None:
        world = self.world = World(offsets_topic_num_partitions="1", transaction_state_log_num_partitions="1")
        world.create("t", partitions=2)
        for key, kind in ((GROUP, 0), ("pay", 1)):
            world.client().ask(FindCoordinatorRequest(key=key, key_type=kind), 3)
        world.advance(100)
        broker, cache = world.broker, world.plane.cache
        broker.transactions.runtime.resigned(0, 0)
        state: UpdateMetadataPartitionState = cache.topics["__transaction_state"].partitions[0]
        state.leader = 2
        cache.brokers[2] = cache.brokers[1]
        self.peers = Peers()
        broker.transaction_partitions._requester._peers = self.peers  # type: ignore[assignment]

    def write(
        self, client: Client, name: str = "pay", *, partition: int = 0, sequence: int = 0, version: int = 9
    ) -> int:
        batch = build_batch(
            [Record(0, self.world.clock.wall_ms(), None, b"a")],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )
        data = [
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(batch))])
        ]
        return client.send(ProduceRequest(transactional_id=name, acks=-1, timeout_ms=1000, topic_data=data), version)

    def answer(self, code: ErrorCode, number: int = 0) -> None:
        """The coordinator's answer to a request: the same for all that was asked."""
        _, request, token = self.peers.sent[number]
        results = [
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
                            for index in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.transactions
        ]
        self.hear(PeerAnswer(token, AddPartitionsToTxnResponse(results_by_transaction=results)))

    def hear(self, event: object) -> None:
        self.world.core.step(event, self.world.clock.now_ms())
        self.world.settle()

    def asked(self, number: int = 0) -> list[tuple[str, bool, list[TopicPartition]]]:
        return [
            (
                each.transactional_id,
                each.verify_only,
                [(topic.name, at) for topic in each.topics for at in topic.partitions],
            )
            for each in self.peers.sent[number][1].transactions
        ]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def code_of(client: Client, number: int) -> ErrorCode:
    return ErrorCode(client.look()[number].responses[0].partition_responses[0].error_code)


def test_a_write_waits_for_what_the_coordinator_says(stage: Stage) -> None:
    client = stage.world.client()
    number = stage.write(client)
    before = dict(client.look())
    stage.answer(ErrorCode.NONE)
    assert (before, stage.asked(), code_of(client, number)) == ({}, [("pay", True, [("t", 0)])], ErrorCode.NONE)


def test_the_coordinator_is_asked_at_the_listener_of_brokers_by_its_security_protocol(stage: Stage) -> None:
    cache = stage.world.plane.cache
    listener = cache.brokers[1].endpoints[0].listener
    cache.brokers[2] = BrokerInfo(2, (Endpoint("CLIENTS", 0, "two", 9092), Endpoint(listener, 1, "two", 9093)))
    stage.write(stage.world.client())
    assert stage.peers.addresses == [Endpoint(listener, 1, "two", 9093)]


def test_a_new_clients_write_is_added_and_not_only_verified(stage: Stage) -> None:
    stage.write(stage.world.client(), version=12)
    assert stage.asked() == [("pay", False, [("t", 0)])]


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 9, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 11, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 11, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_what_the_coordinator_refuses_is_not_written(
    stage: Stage, code: ErrorCode, version: int, told: ErrorCode
) -> None:
    client = stage.world.client()
    number = stage.write(client, version=version)
    stage.answer(code)
    assert (code_of(client, number), stage.world.partition("t").log.log_end_offset) == (told, 0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_what_a_peer_says_of_this_broker_makes_the_client_ask_again(stage: Stage, code: ErrorCode) -> None:
    of_partitions, of_all = stage.world.client(), stage.world.client()
    first, second = stage.write(of_partitions), stage.write(of_all, partition=1)
    stage.answer(code)
    stage.hear(PeerAnswer(stage.peers.sent[1][2], AddPartitionsToTxnResponse(error_code=code)))
    assert [code_of(of_partitions, first), code_of(of_all, second)] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2


def test_a_coordinator_that_does_not_answer_makes_the_client_ask_again(stage: Stage) -> None:
    client = stage.world.client()
    number = stage.write(client)
    stage.hear(PeerFault(stage.peers.sent[0][2], PeerFaultKind.RESET, was_sent=True, why="cut"))
    assert code_of(client, number) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_coordinator_that_nobody_knows_makes_the_client_ask_again(stage: Stage) -> None:
    stage.world.plane.cache.topics["__transaction_state"].partitions[0].leader = -1
    client = stage.world.client()
    assert code_of(client, stage.write(client)) is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_marker_that_comes_before_the_answer_makes_it_void(stage: Stage) -> None:
    client, coordinator = stage.world.client(), stage.world.client()
    number = stage.write(client)
    marker = WritableTxnMarker(
        producer_id=7,
        producer_epoch=0,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        coordinator_epoch=0,
    )
    coordinator.ask(WriteTxnMarkersRequest(markers=[marker]), 1)
    stage.answer(ErrorCode.NONE)
    log = stage.world.partition("t").log
    assert log is not None
    assert (code_of(client, number), log.last_stable_offset) == (ErrorCode.NOT_ENOUGH_REPLICAS, 1)


def test_a_transaction_that_is_open_here_asks_nobody(stage: Stage) -> None:
    client = stage.world.client()
    stage.write(client)
    stage.answer(ErrorCode.NONE)
    second = stage.write(client, sequence=1)
    assert (code_of(client, second), len(stage.peers.sent)) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("version", [9, 12])
def test_a_follower_refuses_and_asks_nobody(stage: Stage, version: int) -> None:
    stage.world.partition("t").is_leader = False
    client = stage.world.client()
    number = stage.write(client, version=version)
    assert (code_of(client, number), stage.peers.sent) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])


def test_after_a_refusal_the_batch_behind_does_not_take_the_first_ones_place(stage: Stage) -> None:
    client = stage.world.client()
    first = stage.write(client)
    stage.answer(ErrorCode.NOT_COORDINATOR)
    second = stage.write(client, sequence=1)
    stage.answer(ErrorCode.NONE, 1)
    again = stage.write(client)
    stage.answer(ErrorCode.NONE, 2)
    second_again = stage.write(client, sequence=1)
    codes = [code_of(client, number) for number in (first, second, again, second_again)]
    out_of_order = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS, out_of_order, ErrorCode.NONE, ErrorCode.NONE]


def test_questions_that_come_up_meanwhile_are_asked_together_each_transaction_once(stage: Stage) -> None:
    for name, partition in (("pay", 0), ("a", 0), ("b", 0), ("a", 1)):
        stage.write(stage.world.client(), name, partition=partition)
    stage.answer(ErrorCode.NONE)
    stage.answer(ErrorCode.NONE, 1)
    assert [[name for name, _, _ in stage.asked(number)] for number in range(3)] == [["pay"], ["a", "b"], ["a"]]


def test_later_requests_of_the_connection_wait_too_so_that_records_keep_their_order(stage: Stage) -> None:
    client = stage.world.client()
    stage.write(client)
    before = client.channel.full  # nothing more is received from it
    stage.answer(ErrorCode.NONE)
    assert (before, client.channel.full) == (True, False)


def commit_request(partitions: int = 1) -> TxnOffsetCommitRequest:
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=each, committed_offset=5, committed_metadata="")
        for each in range(partitions)
    ]
    return TxnOffsetCommitRequest(
        transactional_id="pay",
        group_id=GROUP,
        producer_id=7,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=parts)],
    )


@pytest.mark.parametrize(("version", "verifies"), [(4, True), (5, False)])
def test_offsets_wait_for_what_the_coordinator_says(stage: Stage, version: int, verifies: bool) -> None:
    client = stage.world.client()
    number = client.send(commit_request(), version)
    before = dict(client.look())
    stage.answer(ErrorCode.NONE)
    told = client.look()[number].topics[0].partitions[0].error_code
    assert (before, stage.asked()) == ({}, [("pay", verifies, [("__consumer_offsets", 0)])])
    assert told == ErrorCode.NONE


@pytest.mark.parametrize("version", [4, 5])
def test_many_offsets_wait_for_what_the_coordinator_says_and_are_written_in_portions(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("kbroker.api.transactions.OFFSETS_COMMITTED_AT_ONCE", 1)
    monkeypatch.setattr("kbroker.core.LARGE_REQUEST_BYTES", 10)
    client = stage.world.client()
    number = client.send(commit_request(partitions=2), version)
    stage.answer(ErrorCode.NONE)
    stage.world.advance(0)
    (topic,) = client.look()[number].topics
    assert [part.error_code for part in topic.partitions] == [ErrorCode.NONE, ErrorCode.NONE]


def test_offsets_that_come_after_the_marker_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.api.transactions.OFFSETS_COMMITTED_AT_ONCE", 1)
    monkeypatch.setattr("kbroker.core.LARGE_REQUEST_BYTES", 10)
    broker, offsets = stage.world.broker, ("__consumer_offsets", 0)
    commit = broker.groups.commit_offsets_in_transaction

    def commit_and_end(request: TxnOffsetCommitRequest, *others: Any) -> Any:
        effects = commit(request, *others)
        if request.topics[0].partitions[0].partition_index == 0:
            broker.markers.append(offsets, Producer(7, 0), 1, stage.world.clock.now_ms(), commit=True)
        return effects

    monkeypatch.setattr(broker.groups, "commit_offsets_in_transaction", commit_and_end)
    client = stage.world.client()
    number = client.send(commit_request(partitions=2), 4)
    stage.answer(ErrorCode.NONE)
    stage.world.advance(0)
    (topic,) = client.look()[number].topics
    codes = [part.error_code for part in topic.partitions]
    log = broker.replicas.find(*offsets).led()
    assert (codes, log.producers.first_unstable_offset) == ([ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS], None)
