"""Brokers and topics: connect, create, list, describe, grow, delete."""

from __future__ import annotations

import pytest

from compat_tests.brokers import Place
from compat_tests.clients import ClientError, Driver
from compat_tests.waiting import eventually

SECTION = "1 Brokers and topics"
UNKNOWN_TOPIC_OR_PARTITION, TOPIC_ALREADY_EXISTS = 3, 36


def test_client_connects_and_finds_the_broker(client: Driver, broker: Place) -> None:
    """Connect, agree on versions, find the broker"""
    assert [(host, port) for _, host, port in client.brokers()] == [(broker.host, broker.port)]


def test_client_is_the_release_it_claims_to_be(client: Driver) -> None:
    """The release itself says that it is this one"""
    assert client.version() == client.release


def test_created_topic_is_listed(client: Driver, topic: str) -> None:
    """Create a topic, list topics"""
    client.create_topic(topic)
    eventually(lambda: topic in client.topics())


def test_created_topic_has_the_partitions_asked_for(client: Driver, topic: str) -> None:
    """Create a topic with three partitions, describe it"""
    client.create_topic(topic, partitions=3)
    eventually(lambda: client.partitions(topic) == [0, 1, 2])


def test_creating_a_topic_twice_is_refused(client: Driver, topic: str) -> None:
    """Creating a topic that exists is refused"""
    client.create_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.create_topic(topic)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


def test_added_partitions_are_there(client: Driver, reference: Driver, topic: str) -> None:
    """Add partitions"""
    reference.create_topic(topic)
    client.add_partitions(topic, 4)
    eventually(lambda: reference.partitions(topic) == [0, 1, 2, 3])


def test_deleted_topic_is_gone(client: Driver, reference: Driver, topic: str) -> None:
    """Delete a topic"""
    reference.create_topic(topic)
    client.delete_topic(topic)
    eventually(lambda: topic not in reference.topics())


def test_deleting_an_unknown_topic_is_refused(client: Driver, topic: str) -> None:
    """Deleting an unknown topic is refused"""
    with pytest.raises(ClientError) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION
