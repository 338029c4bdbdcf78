"""InitProducerId: ids that nobody else gets."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.limits import TRANSACTIONAL_ID_LENGTH
from kbroker.metadata.store import PRODUCER_ID_BLOCK
from protocol.errors import ErrorCode
from protocol.messages.transactions import InitProducerIdRequest
from tests.controller.cluster import Cluster


def ask(cluster: Cluster, version: int = 5, broker: int = 0, **fields: Any) -> Any:
    request = InitProducerIdRequest(
        transactional_id=fields.pop("transactional_id", None),
        transaction_timeout_ms=fields.pop("transaction_timeout_ms", 1000),
        **fields,
    )
    return cluster.ask(request, version, broker)


@pytest.mark.parametrize("version", range(6))
def test_an_id_in_every_version(version: int) -> None:
    answer = ask(Cluster(1), version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 0, 0)


def test_ids_do_not_repeat_over_blocks_brokers_and_restarts() -> None:
    cluster = Cluster(1, 2)
    ids = [ask(cluster, broker=broker).producer_id for _ in range(1100) for broker in (1, 2)]
    cluster.restart(1)
    ids.append(ask(cluster).producer_id)
    assert len(set(ids)) == len(ids)


def test_a_block_is_written_as_apache_does() -> None:
    cluster = Cluster(1)
    ask(cluster)
    assert cluster.data(PRODUCER_ID_BLOCK) == b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}'


def test_the_next_block_is_claimed_before_the_last_is_used_up() -> None:
    cluster = Cluster(1)
    for _ in range(950):
        ask(cluster)
    cluster.settle()
    assert b'"block_start":"1000"' in cluster.data(PRODUCER_ID_BLOCK)


def test_without_a_store_the_producer_asks_again() -> None:
    cluster = Cluster(1)
    cluster.nodes[1].store.cut()
    assert ask(cluster).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "x", "transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": "x", "transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_what_is_refused(fields: dict[str, Any], code: ErrorCode) -> None:
    answer = ask(Cluster(1), **fields)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize(
    ("length", "is_refused"), [(0, True), (TRANSACTIONAL_ID_LENGTH, False), (TRANSACTIONAL_ID_LENGTH + 1, True)]
)
def test_a_transactional_id_has_a_length(length: int, is_refused: bool) -> None:
    answer = ask(Cluster(1), transactional_id="i" * length)
    assert (answer.error_code == ErrorCode.INVALID_REQUEST) is is_refused
