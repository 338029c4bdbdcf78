"""Transactions over the wire and the log: atomic writes, offsets in them, fencing, verification, restarts, markers."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.limits import DELETED_IF_UNKNOWN_MS
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestTopic
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import DeleteTopicsRequest
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch
from tests.world import World

NAME = "payments"
GROUP = "g"


@pytest.fixture
def world() -> World:
    """A world with a topic of three partitions, and coordinators loaded."""
    world = World(offsets_topic_num_partitions="3", transaction_state_log_num_partitions="3")
    world.create("t", partitions=3)
    client = world.client()
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    client.ask(FindCoordinatorRequest(key=NAME, key_type=1), 3)
    world.advance(100)
    return world


class Producer:
    """A transactional producer that does what it is told, and nothing by itself."""

    def __init__(self, world: World, name: str = NAME, timeout_ms: int = 60_000) -> None:
        self.client = world.client()
        self.wall_ms = world.clock.wall_ms
        self.name = name
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        self.timeout_ms = timeout_ms

    def init(self, version: int = 4) -> ErrorCode:
        request = InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=self.timeout_ms)
        answer = self.client.ask(request, version)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    def add(self, *partitions: int, topic: str = "t", version: int = 3) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        answer = self.client.ask(request, version)
        return [
            ErrorCode(each.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        ]

    def write(self, value: bytes, partition: int = 0, *, name: str | None = "", version: int = 9) -> ErrorCode:
        sequence = self.sequences.get(partition, 0)
        batch = build_batch(
            [Record(0, self.wall_ms(), None, value)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self.name if name == "" else name,
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(batch))])
            ],
        )
        (answer,) = self.client.ask(request, version).responses[0].partition_responses
        if not answer.error_code:
            self.sequences[partition] = sequence + 1
        return ErrorCode(answer.error_code)

    def end(self, *, commit: bool = True, version: int = 3) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        return ErrorCode(self.client.ask(request, version).error_code)

    def end_and_go_on(self, *, commit: bool = True) -> ErrorCode:
        """EndTxn 5: the answer says who it is from now on."""
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        answer = self.client.ask(request, 5)
        if not answer.error_code:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return ErrorCode(answer.error_code)

    def add_offsets(self, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=GROUP
        )
        return ErrorCode(self.client.ask(request, version).error_code)

    def commit_offset(
        self, offset: int, version: int = 3, partition: int = 0, *, topic_id: bytes = ZERO_UUID
    ) -> ErrorCode:
        part = TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=GROUP,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[part])],
        )
        (topic,) = self.client.ask(request, version).topics
        assert (topic.name, topic.topic_id) == (("t", ZERO_UUID) if version < 6 else ("", topic_id))
        return ErrorCode(topic.partitions[0].error_code)


@pytest.fixture
def producer(world: World) -> Producer:
    """A producer that has its id."""
    producer = Producer(world)
    assert producer.init() is ErrorCode.NONE
    return producer


def fetch(world: World, partition: int = 0, *, isolation: int = 1) -> Any:
    part = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        isolation_level=isolation,
        topics=[FetchTopic(topic="t", partitions=[part])],
    )
    return world.client().ask(request, 11).responses[0].partitions[0]


def stable_end(world: World, partition: int = 0, isolation: int = 1) -> int:
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=partition, timestamp=-1)])
    answer = world.client().ask(ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[asked]), 5)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def committed_offset(world: World) -> int:
    request = OffsetFetchRequest(group_id=GROUP, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    offset: int = world.client().ask(request, 7).topics[0].partitions[0].committed_offset
    return offset


def state(world: World, name: str = NAME) -> Any:
    (described,) = world.client().ask(DescribeTransactionsRequest(transactional_ids=[name]), 0).transaction_states
    return described


# --- commit, abort


def test_records_are_stable_when_the_transaction_is_committed(world: World, producer: Producer) -> None:
    assert producer.add(0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
    assert [producer.write(b"a", 0), producer.write(b"b", 1)] == [ErrorCode.NONE, ErrorCode.NONE]
    before = stable_end(world, 0), stable_end(world, 1)
    assert producer.end() is ErrorCode.NONE
    assert (before, stable_end(world, 0), stable_end(world, 1)) == ((0, 0), 2, 2)


def test_aborted_records_are_named_to_readers_of_what_is_committed(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    assert producer.end(commit=False) is ErrorCode.NONE
    (aborted,) = fetch(world).aborted_transactions
    assert (aborted.producer_id, aborted.first_offset, stable_end(world)) == (producer.producer_id, 0, 2)


def test_transaction_that_wrote_nothing_ends(world: World, producer: Producer) -> None:
    producer.add(0)
    assert producer.end() is ErrorCode.NONE
    assert state(world).transaction_state == "CompleteCommit"


def test_one_transaction_follows_another(world: World, producer: Producer) -> None:
    for number in range(3):
        assert producer.add(0) == [ErrorCode.NONE]
        assert producer.write(b"a") is ErrorCode.NONE
        assert producer.end(commit=number != 1) is ErrorCode.NONE
    assert (stable_end(world), len(fetch(world).aborted_transactions)) == (6, 1)


def test_end_sent_twice_is_answered_as_before(producer: Producer) -> None:
    producer.add(0)
    assert [producer.end(), producer.end()] == [ErrorCode.NONE, ErrorCode.NONE]


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_every_step_is_served(world: World, version: int) -> None:
    producer = Producer(world)
    assert producer.init(version) is ErrorCode.NONE
    assert producer.add(0, version=min(version, 3)) == [ErrorCode.NONE]
    assert producer.add_offsets(version) is ErrorCode.NONE
    assert producer.commit_offset(7, version) is ErrorCode.NONE
    assert producer.end(version=version) is ErrorCode.NONE
    assert committed_offset(world) == 7


# --- offsets


def test_offsets_count_with_the_commit(world: World, producer: Producer) -> None:
    assert producer.add_offsets() is ErrorCode.NONE
    assert producer.commit_offset(7) is ErrorCode.NONE
    before = committed_offset(world)
    producer.end()
    assert (before, committed_offset(world)) == (-1, 7)


def test_offsets_do_not_count_after_an_abort(world: World, producer: Producer) -> None:
    producer.add_offsets()
    producer.commit_offset(7)
    producer.end(commit=False)
    assert committed_offset(world) == -1


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)])
def test_offsets_of_a_group_that_takes_no_part_are_refused(producer: Producer, version: int, code: ErrorCode) -> None:
    assert producer.commit_offset(7, version) is code


def test_offsets_of_partitions_that_do_not_exist_are_refused(producer: Producer) -> None:
    producer.add_offsets()
    assert producer.commit_offset(7, partition=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_topic_by_its_id(world: World, producer: Producer) -> None:
    assert producer.commit_offset(7, 6, topic_id=world.topic_id("t")) is ErrorCode.NONE
    assert producer.commit_offset(7, 6, topic_id=bytes(15) + b"x") is ErrorCode.UNKNOWN_TOPIC_ID
    assert producer.commit_offset(7, 6, partition=9, topic_id=world.topic_id("t")) is (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    producer.end(version=5)
    assert committed_offset(world) == 7


# --- fencing


def test_newer_holder_of_an_id_fences_the_older_one(world: World, producer: Producer) -> None:
    newer = Producer(world)
    assert newer.init() is ErrorCode.NONE
    assert (newer.producer_id, newer.epoch) == (producer.producer_id, producer.epoch + 1)
    assert producer.add(0) == [ErrorCode.PRODUCER_FENCED]
    assert producer.end() is ErrorCode.PRODUCER_FENCED


def test_old_clients_are_fenced_in_words_they_know(world: World, producer: Producer) -> None:
    Producer(world).init()
    assert producer.add(0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert producer.end(version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add_offsets(version=1) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_newer_holder_waits_for_the_open_transaction_to_be_aborted(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    newer = Producer(world)
    assert [newer.init(), newer.init()] == [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]
    assert (newer.epoch, len(fetch(world).aborted_transactions)) == (producer.epoch + 2, 1)
    assert producer.write(b"b") is ErrorCode.INVALID_PRODUCER_EPOCH


def test_transaction_that_takes_too_long_is_aborted(world: World) -> None:
    producer = Producer(world, timeout_ms=1000)
    producer.init()
    producer.add(0)
    producer.write(b"a")
    world.advance(20_000)
    assert (state(world).transaction_state, len(fetch(world).aborted_transactions)) == ("CompleteAbort", 1)
    assert producer.end() is ErrorCode.PRODUCER_FENCED


def test_unused_id_is_forgotten(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.end()
    world.clock.advance(8 * 24 * 3_600_000)  # at once: nothing has to be done in between
    world.advance(3_600_000)
    assert state(world).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert producer.add(0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


# --- verification (KIP-890)


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)])
def test_partition_that_takes_no_part_is_not_written_to(producer: Producer, version: int, code: ErrorCode) -> None:
    producer.add(1)
    assert producer.write(b"a", 0, version=version) is code


def test_write_after_the_end_begins_nothing(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    producer.end()
    assert producer.write(b"late") is ErrorCode.INVALID_TXN_STATE
    assert stable_end(world) == stable_end(world, isolation=0)


def test_transactional_batch_without_an_id_is_refused(producer: Producer) -> None:
    producer.add(0)
    assert producer.write(b"a", name=None) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_stranger_to_an_id_may_not_write_in_its_transaction(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.producer_id += 1
    assert producer.write(b"a") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- an epoch for every transaction (KIP-890)


def test_a_new_client_adds_nothing_beforehand_and_goes_on_in_a_new_epoch(world: World, producer: Producer) -> None:
    epochs = []
    for number in range(3):
        codes = [producer.write(b"a", version=12), producer.write(b"b", version=12)]
        codes += [producer.commit_offset(number, version=5), producer.end_and_go_on(commit=number != 2)]
        assert codes == [ErrorCode.NONE] * 4
        epochs.append(producer.epoch)
    assert (epochs, stable_end(world), committed_offset(world)) == ([1, 2, 3], 9, 1)
    assert len(fetch(world).aborted_transactions) == 1


def test_a_batch_that_is_late_by_a_transaction_finds_its_epoch_gone(world: World, producer: Producer) -> None:
    producer.write(b"a", version=12)
    earlier = Producer(world)
    earlier.producer_id, earlier.epoch, earlier.sequences = producer.producer_id, producer.epoch, {0: 1}
    producer.end_and_go_on()
    producer.write(b"b", version=12)
    assert earlier.write(b"late", version=12) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_abort_of_what_never_came_is_complete_at_once(world: World, producer: Producer) -> None:
    assert producer.end_and_go_on(commit=False) is ErrorCode.NONE
    assert (state(world).transaction_state, producer.epoch) == ("CompleteAbort", 1)


def test_an_end_that_raised_the_epoch_is_known_again_after_a_restart(world: World, producer: Producer) -> None:
    producer.write(b"a", version=12)
    epoch = producer.epoch
    producer.end_and_go_on()
    world.restart()
    world.advance(100)
    again = Producer(world)
    again.producer_id, again.epoch = producer.producer_id, epoch
    assert (again.end_and_go_on(), again.epoch) == (ErrorCode.NONE, epoch + 1)


def test_an_old_client_that_only_writes_is_refused(producer: Producer) -> None:
    assert producer.write(b"a", version=11) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("version", [9, 11, 12])
def test_a_follower_refuses_what_its_own_coordinator_knows_nothing_of(
    world: World, producer: Producer, version: int
) -> None:
    """Told that the partition is not in its transaction, a client would abort; it has only asked the wrong broker."""
    world.partition("t").is_leader = False
    assert producer.write(b"a", version=version) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# --- misuse


def test_partition_that_does_not_exist_spoils_the_request(producer: Producer) -> None:
    codes = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.add(0, 9) == codes


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeout_out_of_range_is_refused(world: World, timeout_ms: int) -> None:
    assert Producer(world, timeout_ms=timeout_ms).init() is ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_id_of_nobody_is_no_mapping(world: World) -> None:
    producer = Producer(world, "nobody")
    producer.producer_id, producer.epoch = 5, 0
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (producer.add(0), producer.add_offsets(), producer.end()) == ([mapping], mapping, mapping)


def test_empty_id_is_invalid(world: World, producer: Producer) -> None:
    producer.name = ""
    invalid = ErrorCode.INVALID_REQUEST
    assert (producer.add(0), producer.add_offsets(), producer.end()) == ([invalid], invalid, invalid)


def test_end_without_a_transaction_is_invalid(producer: Producer) -> None:
    assert producer.end() is ErrorCode.INVALID_TXN_STATE


def test_commit_cannot_be_turned_into_an_abort(producer: Producer) -> None:
    producer.add(0)
    producer.end()
    assert producer.end(commit=False) is ErrorCode.INVALID_TXN_STATE


# --- restarts


def test_decided_transaction_is_finished_by_the_next_leader(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    world.disk.fail("write", ".log", 5) if False else None
    world.restart()
    world.advance(100)
    again = Producer(world)
    again.producer_id, again.epoch = producer.producer_id, producer.epoch
    assert again.end() is ErrorCode.NONE
    assert stable_end(world) == 2


def test_open_transaction_outlives_a_restart(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    world.restart()
    world.advance(100)
    assert (state(world).transaction_state, stable_end(world)) == ("Ongoing", 0)


# --- brokers


def markers(
    world: World, producer: Producer, *, epoch: int = 5, commit: bool = True, index: int = 0, raises: bool = False
) -> ErrorCode:
    """The answer to a marker, where the coordinator has epoch 5."""
    world.plane.cache.topics["__transaction_state"].partitions[0].leader_epoch = 5
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[index])],
        coordinator_epoch=epoch,
        transaction_version=2 if raises else 0,
    )
    (answer,) = world.client().ask(WriteTxnMarkersRequest(markers=[marker]), 2).markers
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_marker_of_another_broker_s_coordinator_ends_the_transaction_here(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    assert markers(world, producer) is ErrorCode.NONE
    assert stable_end(world) == 2


def test_marker_that_is_to_raise_the_epoch_of_an_open_transaction_has_a_higher_one(
    world: World, producer: Producer
) -> None:
    producer.add(0)
    producer.write(b"a")
    assert markers(world, producer, raises=True) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert stable_end(world) == 0
    producer.epoch += 1
    assert [markers(world, producer, raises=True) for _ in range(2)] == [ErrorCode.NONE, ErrorCode.NONE]  # and again
    assert stable_end(world) == 3


def test_marker_of_an_earlier_coordinator_is_fenced(world: World, producer: Producer) -> None:
    assert markers(world, producer) is ErrorCode.NONE
    assert markers(world, producer, epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED


@pytest.mark.parametrize("epoch", [6, 2**31 - 1])
def test_marker_in_an_epoch_that_no_coordinator_has_is_refused(world: World, producer: Producer, *, epoch: int) -> None:
    producer.add(0)
    producer.write(b"a")
    refused = markers(world, producer, epoch=epoch)
    assert (refused, stable_end(world)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    assert (markers(world, producer), stable_end(world)) == (ErrorCode.NONE, 2)


def test_marker_of_no_producer_is_refused(world: World, producer: Producer) -> None:
    producer.producer_id = -1
    assert markers(world, producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_marker_for_a_partition_that_is_not_here_is_refused(world: World, producer: Producer) -> None:
    assert markers(world, producer, index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def ask_for_many(world: World, producer: Producer, *, verify: bool) -> list[ErrorCode]:
    each = AddPartitionsToTxnTransaction(
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[0, 1])],
    )
    (answer,) = world.client().ask(AddPartitionsToTxnRequest(transactions=[each]), 4).results_by_transaction
    return [ErrorCode(part.partition_error_code) for part in answer.topic_results[0].results_by_partition]


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_clients_may_not_take_internal_topics_into_a_transaction(producer: Producer, topic: str) -> None:
    assert producer.add(0, topic=topic) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert producer.end() is ErrorCode.INVALID_TXN_STATE  # none has begun


def test_topics_without_partitions_are_named_in_the_answer(world: World, producer: Producer) -> None:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[]), AddPartitionsToTxnTopic(name="u", partitions=[])]
    of_client = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=NAME,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=topics,
    )
    answer = world.client().ask(of_client, 3).results_by_topic_v3_and_below
    assert [(each.name, each.results_by_partition) for each in answer] == [("t", []), ("u", [])]


@pytest.mark.parametrize("verify", [False, True])
def test_brokers_are_told_of_topics_without_partitions_unless_they_only_ask(
    world: World, producer: Producer, *, verify: bool
) -> None:
    each = AddPartitionsToTxnTransaction(
        transactional_id=NAME,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[])],
    )
    (answer,) = world.client().ask(AddPartitionsToTxnRequest(transactions=[each]), 4).results_by_transaction
    assert [part.name for part in answer.topic_results] == ([] if verify else ["t"])


def test_brokers_ask_whether_partitions_take_part(world: World, producer: Producer) -> None:
    producer.add(0)
    assert ask_for_many(world, producer, verify=True) == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]


def test_brokers_add_partitions_of_many_transactions_at_once(world: World, producer: Producer) -> None:
    assert ask_for_many(world, producer, verify=False) == [ErrorCode.NONE, ErrorCode.NONE]
    assert state(world).topics[0].partitions == [0, 1]


def test_transaction_whose_topic_is_deleted_ends(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    world.client().send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    world.advance(1000)
    assert producer.end() is ErrorCode.NONE
    world.advance(DELETED_IF_UNKNOWN_MS + 1000)
    assert state(world).transaction_state == "CompleteCommit"


# --- tools


def test_transactions_are_listed_by_state_and_age(world: World, producer: Producer) -> None:
    producer.add(0)
    world.advance(5000)
    client = world.client()
    found = [
        [each.transactional_id for each in client.ask(request, 1).transaction_states]
        for request in (
            ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[]),
            ListTransactionsRequest(state_filters=["Empty"], producer_id_filters=[]),
            ListTransactionsRequest(state_filters=[], producer_id_filters=[producer.producer_id]),
            ListTransactionsRequest(state_filters=[], producer_id_filters=[99]),
            ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=4000),
            ListTransactionsRequest(state_filters=[], producer_id_filters=[], duration_filter=6000),
        )
    ]
    assert found == [[NAME], [], [NAME], [], [NAME], []]


@pytest.mark.parametrize(
    ("pattern", "code", "found"),
    [
        ("pay.*", ErrorCode.NONE, [NAME]),
        ("pay", ErrorCode.NONE, []),  # it is matched as a whole
        ("", ErrorCode.NONE, [NAME]),
        (None, ErrorCode.NONE, [NAME]),
        ("pay(", ErrorCode.INVALID_REGULAR_EXPRESSION, []),
        ("(a)\\1", ErrorCode.INVALID_REGULAR_EXPRESSION, []),  # RE2 has no references to what was found before
    ],
)
def test_transactions_are_listed_by_the_look_of_their_ids(
    world: World, producer: Producer, pattern: str | None, code: ErrorCode, found: list[str]
) -> None:
    producer.add(0)
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern)
    told = world.client().ask(request, 2)
    assert (told.error_code, [each.transactional_id for each in told.transaction_states]) == (code, found)


def test_word_that_is_no_state_is_named(world: World) -> None:
    request = ListTransactionsRequest(state_filters=["Ongoing", "Sleeping"], producer_id_filters=[])
    assert world.client().ask(request, 0).unknown_state_filters == ["Sleeping"]


def test_transaction_is_described(world: World, producer: Producer) -> None:
    producer.add(0, 2)
    described = state(world)
    assert (
        described.transaction_state,
        described.producer_id,
        described.producer_epoch,
        described.transaction_timeout_ms,
        [(topic.topic, topic.partitions) for topic in described.topics],
    ) == ("Ongoing", producer.producer_id, 0, 60_000, [("t", [0, 2])])


def test_producers_of_a_partition_are_described(world: World, producer: Producer) -> None:
    producer.add(0)
    producer.write(b"a")
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 9])])
    here, nowhere = world.client().ask(request, 0).topics[0].partitions
    (found,) = here.active_producers
    assert (found.producer_id, found.last_sequence, found.current_txn_start_offset) == (producer.producer_id, 0, 0)
    assert nowhere.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("key", [NAME, "nobody"])
def test_coordinator_of_a_transaction_is_found(world: World, key: str) -> None:
    answer = world.client().ask(FindCoordinatorRequest(key=key, key_type=1), 3)
    assert (answer.error_code, answer.node_id) == (0, 1)


def test_offsets_are_added_although_no_group_has_asked_for_its_coordinator_before() -> None:
    world = World(offsets_topic_num_partitions="3", transaction_state_log_num_partitions="3")
    world.client().ask(FindCoordinatorRequest(key=NAME, key_type=1), 3)
    world.advance(100)
    producer = Producer(world)
    assert producer.init() is ErrorCode.NONE
    first = producer.add_offsets()
    world.advance(100)
    assert (first, producer.add_offsets()) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)
