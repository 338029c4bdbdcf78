"""A transaction's offsets: who takes them; and many at once, in portions, between which others have their turn."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.api import transactions
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.world import World


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> World:
    """A group whose offsets are written few at a time."""
    monkeypatch.setattr(transactions, "OFFSETS_COMMITTED_AT_ONCE", 100)
    monkeypatch.setattr("kbroker.core.LARGE_REQUEST_BYTES", 1_000)
    world = World()
    world.create("wide", partitions=350)
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)
    return world


def transactional(producer_id: int, epoch: int, partitions: int, topic: str = "wide") -> TxnOffsetCommitRequest:
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=each, committed_offset=each, committed_metadata="")
        for each in range(partitions)
    ]
    return TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=parts)],
    )


def begun(world: World) -> tuple[int, int]:
    """A producer whose transaction the group takes part in."""
    client = world.client()
    client.ask(FindCoordinatorRequest(key="x", key_type=1), 2)
    world.advance(0)
    made = client.ask(InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 1)
    producer = made.producer_id, made.producer_epoch
    names = {"transactional_id": "x", "producer_id": producer[0], "producer_epoch": producer[1]}
    assert not client.ask(AddOffsetsToTxnRequest(**names, group_id="g"), 3).error_code
    return producer


@pytest.mark.parametrize("version", [3, 5])
def test_while_partitions_of_groups_are_counted_a_transaction_is_not_said_to_lack_one(
    committed: World, version: int
) -> None:
    producer_id, epoch = begun(committed)
    committed.broker.group_runtime.resize(0)
    (topic,) = committed.client().ask(transactional(producer_id, epoch, 1), version).topics
    assert [part.error_code for part in topic.partitions] == [ErrorCode.NOT_COORDINATOR]


@pytest.mark.parametrize("version", [3, 5])
def test_a_transactions_many_offsets_are_written_in_portions_and_count_together(
    committed: World, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    client = committed.client()
    producer_id, epoch = begun(committed)
    portions: list[int] = []
    commit = committed.broker.groups.commit_offsets_in_transaction

    def noted(request: TxnOffsetCommitRequest, *others: Any) -> Any:
        portions.append(sum(len(topic.partitions) for topic in request.topics))
        return commit(request, *others)

    monkeypatch.setattr(committed.broker.groups, "commit_offsets_in_transaction", noted)
    number = client.send(transactional(producer_id, epoch, 352), version)
    committed.advance(0)
    (topic,) = client.look()[number].topics
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [(part.partition_index, part.error_code) for part in topic.partitions]
    assert codes == [(index, 0 if index < 350 else unknown) for index in range(352)]
    assert portions == [100, 100, 100, 52]
    names = {"transactional_id": "x", "producer_id": producer_id, "producer_epoch": epoch}
    assert not client.ask(EndTxnRequest(**names, committed=True), 3).error_code
    number = client.send(OffsetFetchRequest(group_id="g", topics=None), 5)
    committed.advance(0)
    (read,) = client.look()[number].topics
    assert [part.committed_offset for part in read.partitions] == list(range(350))
