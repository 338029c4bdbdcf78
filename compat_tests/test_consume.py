"""Consume without a group: assign and seek, every codec, offsets by time, what is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from compat_tests.clients import Client, ClientError, Driver

SECTION = "3 Consume"
T0 = 1_700_000_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codec_is_read(client: Driver, reference: Driver, topic: str, codec: str) -> None:
    """Consume, codec {codec}"""
    client.client.needs(codec)
    reference.create_topic(topic)
    sent = [f"{number} " + "compressible " * 20 for number in range(20)]
    reference.produce(topic, [{"value": value} for value in sent], codec=codec)
    assert [record["value"] for record in client.read(topic, 0, 0, 20)] == sent


def test_seek_starts_at_the_offset(client: Driver, reference: Driver, topic: str) -> None:
    """Assign and seek"""
    reference.create_topic(topic, partitions=2)
    reference.produce(topic, [{"value": str(number), "partition": 1} for number in range(10)])
    assert [record["offset"] for record in client.read(topic, 1, 7, 3)] == [7, 8, 9]


def test_everything_of_a_record_is_read(client: Driver, reference: Driver, topic: str) -> None:
    """Keys, null values, headers, timestamps"""
    client.client.needs("headers")
    reference.create_topic(topic)
    sent: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["h", "1"], ["h", "2"]], "timestamp": T0},
        {"key": None, "value": "no key", "headers": [], "timestamp": T0 + 1},
        {"key": "tombstone", "value": None, "headers": [], "timestamp": T0 + 2},
    ]
    reference.produce(topic, sent)
    assert [{name: record[name] for name in sent[0]} for record in client.read(topic, 0, 0, 3)] == sent


def test_big_record_is_read(client: Driver, reference: Driver, topic: str) -> None:
    """A record larger than the client's fetch limit"""
    reference.create_topic(topic, configs={"max.message.bytes": "6000000"})
    reference.produce(topic, [{"value": "x" * 5_000_000}], limit=6_000_000)
    assert [len(record["value"]) for record in client.read(topic, 0, 0, 1)] == [5_000_000]


def test_consumer_sees_what_arrives_while_it_waits(
    client: Driver, reference: Driver, start_driver: Callable[[Client], Driver], topic: str
) -> None:
    """A waiting consumer gets what arrives"""
    reader = start_driver(client.client)  # one of its own: the reference writes meanwhile
    reference.create_topic(topic)
    reference.produce(topic, [{"value": "there before"}])
    waiting = reader.start_read(topic, 0, 0, 2, 20_000)
    reference.produce(topic, [{"value": "arrives"}])
    assert [record["value"] for record in waiting()] == ["there before", "arrives"]


def test_first_and_next_offset(client: Driver, reference: Driver, topic: str) -> None:
    """First and next offset"""
    reference.create_topic(topic)
    reference.produce(topic, [{"value": str(number)} for number in range(5)])
    reference.delete_records(topic, 0, 2)
    assert client.bounds(topic, 0) == (2, 5)


def test_offset_by_time(client: Driver, reference: Driver, topic: str) -> None:
    """Offset by time"""
    reference.create_topic(topic)
    for number in range(5):
        reference.produce(topic, [{"value": str(number), "timestamp": T0 + 10 * number}])
    assert client.offset_at(topic, 0, T0 + 11) == 2


def test_offset_by_a_time_after_the_last(client: Driver, reference: Driver, topic: str) -> None:
    """No offset by a time after the last record"""
    client.client.needs("offset by a late time")
    reference.create_topic(topic)
    reference.produce(topic, [{"value": "only", "timestamp": T0}])
    assert client.offset_at(topic, 0, T0 + 1) is None


def test_unknown_topic_yields_nothing(client: Driver, topic: str) -> None:
    """An unknown topic yields no record and no crash"""
    records = []
    with suppress(ClientError):  # some say so, some wait for it to appear
        records = client.read(topic, 0, 0, 1, wait_ms=1000)
    assert records == []
