"""One exchange for each API of transactions, good for every version served: a producer, its coordinator, the tools."""

from __future__ import annotations

from typing import NamedTuple

from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
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
from tests.e2e.exchanges import exchange
from tests.e2e.exchanges import fetched as committed_offset
from tests.e2e.world import NONE, Topic, World

TRANSACTION, COMMITTED = 1, 1  # a kind of coordinator; an isolation level


class Producer(NamedTuple):
    """One that has its id."""

    name: str
    id: int
    epoch: int


def producer(here: World) -> Producer:
    name = here.name("transactional")
    here.until(FindCoordinatorRequest(key=name, key_type=TRANSACTION), 3, lambda found: found.error_code == NONE)
    asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    made = here.until(asked, 4, lambda found: found.error_code == NONE)
    return Producer(name, made.producer_id, made.producer_epoch)


def add(here: World, who: Producer, topic: Topic, version: int = 3) -> list[int]:
    """Partition 0 joins the transaction; the error codes."""
    topics = [AddPartitionsToTxnTopic(name=topic.name, partitions=[0])]
    if version >= 4:
        each = AddPartitionsToTxnTransaction(
            transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, verify_only=False, topics=topics
        )
        (found,) = here.ask(AddPartitionsToTxnRequest(transactions=[each]), version).results_by_transaction
        results = found.topic_results
    else:
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=who.name,
            v3_and_below_producer_id=who.id,
            v3_and_below_producer_epoch=who.epoch,
            v3_and_below_topics=topics,
        )
        results = here.ask(asked, version).results_by_topic_v3_and_below
    return [part.partition_error_code for each in results for part in each.results_by_partition]


def write(here: World, who: Producer, topic: Topic) -> None:
    """A record in partition 0, as part of the transaction."""
    batch = build_batch(
        [Record(0, 1_000, None, b"x")],
        producer_id=who.id,
        producer_epoch=who.epoch,
        base_sequence=0,
        transactional=True,
    )
    data = [TopicProduceData(name=topic.name, partition_data=[PartitionProduceData(index=0, records=bytes(batch))])]
    request = ProduceRequest(transactional_id=who.name, acks=-1, timeout_ms=10_000, topic_data=data)
    (answer,) = here.ask(request, 9).responses[0].partition_responses
    assert answer.error_code == NONE, answer


def under_way(here: World) -> tuple[Producer, Topic]:
    """A transaction with a record in partition 0 of a new topic."""
    who, topic = producer(here), here.topic()
    assert add(here, who, topic) == [NONE]
    write(here, who, topic)
    return who, topic


def end(here: World, who: Producer, version: int = 3) -> int:
    asked = EndTxnRequest(transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, committed=True)
    code: int = here.ask(asked, version).error_code
    return code


def await_stable(here: World, topic: Topic, offset: int) -> None:
    """Until readers of what is committed see everything below an offset."""
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topics = [ListOffsetsTopic(name=topic.name, partitions=[partition])]
    asked = ListOffsetsRequest(replica_id=-1, isolation_level=COMMITTED, topics=topics)
    here.until(asked, 5, lambda found: found.topics[0].partitions[0].offset == offset)


@exchange(24)
def add_partitions_to_txn(here: World, version: int) -> None:
    who, topic = producer(here), here.topic()
    assert add(here, who, topic, version) == [NONE]


@exchange(25)
def add_offsets_to_txn(here: World, version: int) -> None:
    who, group = producer(here), here.group()
    asked = AddOffsetsToTxnRequest(
        transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, group_id=group
    )
    assert here.ask(asked, version).error_code == NONE


@exchange(26)
def end_txn(here: World, version: int) -> None:
    who, topic = under_way(here)
    assert end(here, who, version) == NONE
    await_stable(here, topic, 2)  # the record, and the marker behind it


@exchange(27)
def write_txn_markers(here: World, version: int) -> None:
    who, topic = under_way(here)
    marker = WritableTxnMarker(
        producer_id=who.id,
        producer_epoch=who.epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=topic.name, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    (answer,) = here.ask(WriteTxnMarkersRequest(markers=[marker]), version).markers
    assert answer.topics[0].partitions[0].error_code == NONE
    await_stable(here, topic, 2)


@exchange(28)
def txn_offset_commit(here: World, version: int) -> None:
    who, topic, group = producer(here), here.topic(), here.group()
    if version < 5:  # which does it by itself
        join = AddOffsetsToTxnRequest(
            transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, group_id=group
        )
        assert here.ask(join, 3).error_code == NONE
    part = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="mine")
    asked = TxnOffsetCommitRequest(
        transactional_id=who.name,
        group_id=group,
        producer_id=who.id,
        producer_epoch=who.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic.name, topic_id=topic.id, partitions=[part])],
    )
    assert here.ask(asked, version).topics[0].partitions[0].error_code == NONE
    assert end(here, who) == NONE
    assert committed_offset(here, 7, group, topic) == (7, "mine")  # unstable until the marker is there: asked again


@exchange(61)
def describe_producers(here: World, version: int) -> None:
    who, topic = under_way(here)
    asked = DescribeProducersRequest(topics=[TopicRequest(name=topic.name, partition_indexes=[0])])
    (part,) = here.ask(asked, version).topics[0].partitions
    (active,) = part.active_producers
    assert (active.producer_id, active.current_txn_start_offset) == (who.id, 0)


@exchange(65)
def describe_transactions(here: World, version: int) -> None:
    who, topic = under_way(here)
    (found,) = here.ask(DescribeTransactionsRequest(transactional_ids=[who.name]), version).transaction_states
    assert (found.transaction_state, found.topics[0].topic) == ("Ongoing", topic.name)


@exchange(66)
def list_transactions(here: World, version: int) -> None:
    who, _ = under_way(here)
    asked = ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[who.id])
    if version >= 2:
        asked.transactional_id_pattern = f"({who.name})+"
    (found,) = here.ask(asked, version).transaction_states
    assert found.transactional_id == who.name
