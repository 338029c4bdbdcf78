"""Produce: acks, codecs, idempotence, what a record may carry, sizes."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.clients import ClientError, Driver

SECTION = "2 Produce"
ACKS = {"0": 0, "1": 1, "all": -1}
MESSAGE_TOO_LARGE = 10


def values(records: list[dict[str, Any]]) -> list[str]:
    return [record["value"] for record in records]


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_produced_records_are_read(client: Driver, reference: Driver, topic: str, codec: str, acks: str) -> None:
    """Produce, codec {codec}, acks {acks}"""
    client.client.needs(codec, f"acks={acks}")
    reference.create_topic(topic)
    sent = [f"{number} " + "compressible " * 20 for number in range(20)]
    client.produce(topic, [{"value": value, "partition": 0} for value in sent], codec=codec, acks=ACKS[acks])
    assert values(reference.read(topic, 0, 0, 20)) == sent


def test_idempotent_records_are_there_once(client: Driver, reference: Driver, topic: str) -> None:
    """Produce idempotently"""
    client.client.needs("idempotent")
    reference.create_topic(topic)
    sent = [str(number) for number in range(100)]
    client.produce(topic, [{"value": value, "partition": 0} for value in sent], idempotent=True)
    assert values(reference.read(topic, 0, 0, 101, wait_ms=2000)) == sent


def test_acknowledgement_tells_partition_and_offset(client: Driver, reference: Driver, topic: str) -> None:
    """Acknowledgements tell partition and offset"""
    client.client.needs("offsets of acknowledgements")
    reference.create_topic(topic, partitions=2)
    places = client.produce(topic, [{"value": "a", "partition": 1}, {"value": "b", "partition": 1}])
    assert places == [(1, 0), (1, 1)]


def test_keys_nulls_headers_and_timestamps_arrive(client: Driver, reference: Driver, topic: str) -> None:
    """Keys, null values, headers, timestamps"""
    client.client.needs("null values", "headers", "timestamps")
    sent: list[dict[str, Any]] = [
        {"key": "k", "value": "v", "headers": [["h", "1"], ["h", "2"]], "timestamp": 1_700_000_000_000, "partition": 0},
        {"key": None, "value": "no key", "headers": [], "timestamp": 1_700_000_000_001, "partition": 0},
        {"key": "tombstone", "value": None, "headers": [], "timestamp": 1_700_000_000_002, "partition": 0},
        {"key": "\x00\xff", "value": "", "headers": [["bytes", "\xfe\x00"]], "timestamp": 7, "partition": 0},
    ]
    reference.create_topic(topic)
    client.produce(topic, sent)
    got = reference.read(topic, 0, 0, len(sent))
    assert [{name: record[name] for name in sent[0]} for record in got] == sent


def test_same_key_goes_to_one_partition(client: Driver, reference: Driver, topic: str) -> None:
    """Records with one key go to one partition"""
    reference.create_topic(topic, partitions=4)
    client.produce(topic, [{"key": "one", "value": str(number)} for number in range(5)])
    counts = [reference.bounds(topic, partition)[1] for partition in range(4)]
    assert sorted(counts) == [0, 0, 0, 5]


def test_topic_is_created_on_first_use(client: Driver, reference: Driver, topic: str) -> None:
    """A topic is created when first produced to"""
    client.produce(topic, [{"value": "first"}])
    assert values(reference.read(topic, 0, 0, 1)) == ["first"]


def test_record_of_900_kb_is_taken(client: Driver, reference: Driver, topic: str) -> None:
    """A record of 900 kB"""
    reference.create_topic(topic)
    client.produce(topic, [{"value": "x" * 900_000}])
    assert len(reference.read(topic, 0, 0, 1)[0]["value"]) == 900_000


def test_record_beyond_the_limit_is_refused(client: Driver, reference: Driver, topic: str) -> None:
    """A record beyond message.max.bytes is refused"""
    client.client.needs("limit")
    reference.create_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.produce(topic, [{"value": "x" * 2_000_000}], limit=4_000_000)
    assert refused.value.code == MESSAGE_TOO_LARGE


def test_topic_may_allow_more(client: Driver, reference: Driver, topic: str) -> None:
    """A record of 5 MB, where max.message.bytes allows it"""
    client.client.needs("limit")
    reference.create_topic(topic, configs={"max.message.bytes": "6000000"})
    client.produce(topic, [{"value": "x" * 5_000_000}], limit=6_000_000)
    assert len(reference.read(topic, 0, 0, 1)[0]["value"]) == 5_000_000
