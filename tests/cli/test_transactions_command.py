"""`kbroker transactions` on a broker in this process: an open transaction, and one that hangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.testing import broker
from kbroker.testing._client import Connection
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    InitProducerIdRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch
from tests.cli.asking import Ask

STRANGER = 4242
OLD_MS = 20 * 60_000


def write(connection: Connection, name: str, producer_id: int, partition: int, timestamp: int) -> None:
    batch = build_batch(
        [Record(0, timestamp, None, b"x")],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=partition, records=bytes(batch))])]
    answer = connection.ask(ProduceRequest(transactional_id=name, acks=-1, timeout_ms=1000, topic_data=data), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def begin(connection: Connection, name: str) -> int:
    """A transaction with partition 0 in it; the producer's id."""
    found = None
    while found is None or found.error_code:
        found = connection.ask(FindCoordinatorRequest(key=name, key_type=1), 3)
    init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=900_000)
    made = connection.ask(init, 4)
    while made.error_code:
        made = connection.ask(init, 4)
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=topics,
    )
    assert connection.ask(added, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    return int(made.producer_id)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """A broker where `pay` has a transaction open in t-0, and nobody's producer one in t-1; both are old."""
    with broker(transaction_partition_verification_enable=False) as b:
        b.create_topic("t", partitions=2)
        host, _, port = b.bootstrap.rpartition(":")
        connection = Connection(host, int(port))
        old = int(time.time() * 1000) - OLD_MS
        write(connection, "pay", begin(connection, "pay"), 0, old)
        write(connection, "gone", STRANGER, 1, old)
        connection.close()
        yield b.bootstrap


def rows(ask: Ask, *words: str) -> list[dict[str, Any]]:
    code, out, err = ask("transactions", *words, "--json")
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_transactional_ids_are_listed(ask: Ask) -> None:
    (row,) = rows(ask, "list")
    assert (row["transactional_id"], row["coordinator"], row["transaction_state"]) == ("pay", 1, "Ongoing")


def test_a_list_may_leave_out_what_is_young(ask: Ask) -> None:
    assert rows(ask, "list", "--duration-filter", "600000") == []


def test_a_transaction_is_described(ask: Ask) -> None:
    (row,) = rows(ask, "describe", "--transactional-id", "pay")
    assert (row["transaction_state"], row["topic_partitions"], row["transaction_timeout_ms"]) == (
        "Ongoing",
        "t-0",
        900_000,
    )


def test_an_id_that_nobody_has_is_one_line(ask: Ask) -> None:
    code, out, err = ask("transactions", "describe", "--transactional-id", "nobody")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in err


def test_producers_of_a_partition_are_described(ask: Ask) -> None:
    (row,) = rows(ask, "describe-producers", "--topic", "t", "--partition", "0")
    assert (row["producer_epoch"], row["last_sequence"], row["current_transaction_start_offset"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["find-hanging"], "--topic or --broker-id"),
        (["find-hanging", "--broker-id", "1", "--partition", "1"], "--partition wants --topic"),
        (["abort", "--topic", "t", "--partition", "1"], "say --start-offset"),
        (["abort", "--topic", "t", "--partition", "1", "--start-offset", "7"], "no transaction is open from offset 7"),
        (["describe"], "--transactional-id"),
    ],
)
def test_a_mistake_is_one_line(ask: Ask, words: list[str], why: str) -> None:
    code, out, err = ask("transactions", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert why in err


def test_what_hangs_is_found_by_topic_or_broker_and_aborted(ask: Ask) -> None:
    by_topic = rows(ask, "find-hanging", "--topic", "t")
    by_broker = rows(ask, "find-hanging", "--broker-id", "1")
    assert [(row["partition"], row["producer_id"], row["start_offset"]) for row in by_topic] == [(1, STRANGER, 0)]
    assert by_broker == by_topic
    code, out, _ = ask("transactions", "abort", "--topic", "t", "--partition", "1", "--start-offset", "0", "--json")
    assert (code, json.loads(out)) == (0, {"aborted": [{"producer_id": STRANGER, "topic": "t", "partition": 1}]})
    assert rows(ask, "find-hanging", "--topic", "t") == []
