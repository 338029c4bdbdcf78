"""Quotas: Apache's broker and ours are asked the same about them, and stock clients are throttled by ours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from compat_tests.apache import zookeeper_cluster
from compat_tests.brokers import KbrokerProcess
from compat_tests.raw import Connection
from compat_tests.waiting import eventually
from protocol.message import Message
from tests.quotas import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST, alter, altered, describe, described

NAN, INFINITE = float("nan"), float("inf")
USER, CLIENT, ADDRESS = {"user": "a"}, {"client-id": "c"}, {"ip": "1.2.3.4"}
CHANGES = [
    alter(altered(USER, producer_byte_rate=1000)),
    alter(altered({**USER, **CLIENT}, producer_byte_rate=2000, request_percentage=12.5)),
    alter(altered(CLIENT, consumer_byte_rate=3000), altered({"user": None}, producer_byte_rate=1)),
    alter(altered({"user": None, "client-id": None}, controller_mutation_rate=5)),
    alter(altered(ADDRESS, connection_creation_rate=5), altered({"ip": None}, connection_creation_rate=7)),
    alter(
        altered({"user": "a b/\u00fc*~"}, producer_byte_rate=1000), altered({"user": "<default>"}, producer_byte_rate=4)
    ),
    alter(altered({"user": "x"}, producer_byte_rate=1), altered({"user": "x"}, producer_byte_rate=2)),
    alter(altered({"user": "v"}, producer_byte_rate=1), validate_only=True),
    alter(altered({"user": "gone"}, producer_byte_rate=None), altered({"user": "y"}, nope=None)),
]
REFUSED: list[tuple[dict[str, str | None], dict[str, float]]] = [
    ({}, {PRODUCER: 1}),
    ({"user": ""}, {PRODUCER: 1}),
    ({"ip": ""}, {CONNECTION: 1}),
    ({"group": "g"}, {PRODUCER: 1}),
    ({"": "g"}, {PRODUCER: 1}),
    (USER, {"nope": 1}),
    (USER, {CONNECTION: 1}),
    (ADDRESS, {PRODUCER: 1}),
    ({**ADDRESS, **USER}, {CONNECTION: 1}),
    ({"ip": "::1"}, {CONNECTION: 1}),
    ({"ip": "a.invalid"}, {CONNECTION: 1}),
    ({"ip": "not an ip"}, {CONNECTION: 1}),
    ({"user": "."}, {PRODUCER: 1}),
    ({"client-id": ".."}, {PRODUCER: 1}),
    *((USER, {PRODUCER: value}) for value in (1.5, -1, 0, NAN, INFINITE, 1e30)),
    *((USER, {key: value}) for key in (REQUEST, MUTATION) for value in (0, -5, INFINITE)),
    *((ADDRESS, {CONNECTION: value}) for value in (0, -1, 1.5, 1e12)),
]
FILTERS = [
    describe(),
    describe(strict=True),
    *(
        describe(("user", how, name), strict=strict)
        for how, name in ((0, "a"), (1, None), (2, None))
        for strict in (False, True)
    ),
    describe(("client-id", 2, None), ("user", 2, None)),
    describe(("client-id", 0, "c")),
    describe(("ip", 2, None)),
    describe(("ip", 0, "1.2.3.4"), strict=True),
    describe(("user", 0, "<default>")),
    describe(("user", 0, "")),
    describe(("user", 0, None)),
    describe(("user", 1, "a")),
    describe(("user", 3, "a")),
    describe(("", 2, None)),
    describe(("group", 2, None)),
    describe(("user", 2, None), ("user", 2, None)),
    describe(("client-id", 2, None), ("client-id", 2, None)),
    describe(("ip", 2, None), ("user", 2, None)),
]


def told(answer: Any) -> list[object]:
    """An answer, whatever the order of what has none."""
    if hasattr(answer, "error_code"):
        found = described(answer).items()
        entries = sorted((sorted(map(str, entity)), sorted(values.items())) for entity, values in found)
        return [answer.error_code, answer.error_message, answer.entries is None, entries]
    return sorted(
        (sorted((part.entity_type, str(part.entity_name)) for part in each.entity), each.error_code, each.error_message)
        for each in answer.entries
    )


def answers(port: int) -> list[list[object]]:
    requests: list[Message] = [*CHANGES, *(alter(altered(parts, **quotas)) for parts, quotas in REFUSED)]
    with Connection(port) as connection:
        found = [told(connection.ask(each, at % 2)) for at, each in enumerate(requests)]
        return found + [told(connection.ask(each, at % 2)) for at, each in enumerate(FILTERS)]


@pytest.mark.java
@pytest.mark.timeout(600)
def test_both_brokers_answer_the_same_about_quotas(tmp_path: Path) -> None:
    with zookeeper_cluster(tmp_path / "apache") as (apache,):
        theirs = answers(apache.port)
    with KbrokerProcess(tmp_path / "ours") as ours:
        mine = answers(ours.port)
    for at, (own, other) in enumerate(zip(mine, theirs, strict=True)):
        assert own == other, at


@pytest.fixture
def port(tmp_path: Path) -> Any:
    with KbrokerProcess(tmp_path) as broker, Connection(broker.port) as connection:
        quotas = {PRODUCER: 20_000.0, CONSUMER: 20_000.0}
        done = connection.ask(alter(altered({"client-id": "throttled"}, **quotas)), 1)
        assert [each.error_code for each in done.entries] == [0]
        yield broker.port


@pytest.mark.timeout(120)
def test_librdkafka_is_told_that_it_is_throttled(port: int) -> None:
    from confluent_kafka import Producer

    throttled: list[float] = []
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "client.id": "throttled",
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    for _ in range(3):  # 200 KB are within ten windows, 240 KB are not
        producer.produce("t", b"v" * 80_000)
    assert producer.flush(60) == 0
    eventually(lambda: producer.poll(0.1) >= 0 and bool(throttled))
    assert all(0 < each < 60 for each in throttled)


@pytest.mark.timeout(120)
def test_kafka_python_gets_all_records_at_the_pace_of_its_quota(port: int) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", client_id="free")
    for _ in range(12):
        producer.send("t", b"v" * 20_000)
    producer.flush()
    producer.close()
    began_s = time.monotonic()
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=f"127.0.0.1:{port}",
        client_id="throttled",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=50_000,
        consumer_timeout_ms=60_000,
    )
    values = [next(consumer).value for _ in range(12)]
    consumer.close()
    assert sum(map(len, values)) == 240_000
    assert time.monotonic() - began_s > 1
