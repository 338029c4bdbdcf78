"""`broker(security=...)`: a test's broker that wants to know who comes, and what its clients are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from kbroker.testing import Broker, UsageError, broker

WAYS = ("ssl", "sasl_plaintext", "sasl_ssl")


@pytest.fixture(params=WAYS)
def secured(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with broker(security=request.param) as b:
        yield b


def produced(settings: dict[str, Any], topic: str, value: bytes, *, tries_ms: int = 3000) -> int:
    """The offset of a record that a stock client has written. tries_ms: to connect. Raises: KafkaError."""
    producer = KafkaProducer(**settings, max_block_ms=5000, retries=0, bootstrap_timeout_ms=tries_ms)
    try:
        return int(producer.send(topic, value).get(10).offset)
    finally:
        producer.close(0)


def test_a_client_with_what_it_is_told_writes_and_reads(secured: Broker) -> None:
    told = secured.clients.kafka_python()
    assert produced(told, "orders", b"one") == 0
    consumer = KafkaConsumer("orders", **told, auto_offset_reset="earliest", consumer_timeout_ms=5000)
    assert next(consumer).value == b"one"
    consumer.close()


def test_the_kit_asks_as_the_admin(secured: Broker) -> None:
    secured.create_topic("kit")
    secured.produce("kit", b"a", b"b")
    assert [each.value for each in secured.records("kit")] == [b"a", b"b"]
    secured.restart()
    assert secured.topics() == {"kit": 1}
    secured.reset()
    assert secured.topics() == {}


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_is_told_nothing_is_not_let_in(way: str) -> None:
    with broker(security=way) as b, pytest.raises(KafkaError):
        produced({"bootstrap_servers": b.bootstrap}, "orders", b"x", tries_ms=800)


def test_another_user_may_do_what_a_rule_says() -> None:
    with broker(security="sasl_plaintext") as b:
        b.create_topic("orders")
        b.create_topic("others")
        alice = b.create_user("alice", "won,der=land")
        b.allow("alice", "write", topic="orders")
        assert produced(alice.kafka_python(), "orders", b"x") == 0
        with pytest.raises(KafkaError):
            produced(alice.kafka_python(), "others", b"x")
        with pytest.raises(KafkaError):
            produced(alice._replace(password="wrong").kafka_python(), "orders", b"x", tries_ms=800)
        with pytest.raises(UsageError, match="operation 'fly': allowed for a topic: ALL, READ"):
            b.allow("alice", "fly", topic="orders")


def test_a_way_that_there_is_not_is_named() -> None:
    with pytest.raises(UsageError, match="security='tls': write one of plaintext, ssl, sasl_plaintext, sasl_ssl"):
        broker(security="tls")


def test_a_test_in_another_language_is_told_as_well() -> None:
    command = [sys.executable, "-m", "kbroker.testing", "--security", "sasl_ssl"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())["clients"]
        assert told["security.protocol"] == "SASL_SSL"
        assert os.path.exists(told["ssl.truststore.location"])
        process.communicate()
