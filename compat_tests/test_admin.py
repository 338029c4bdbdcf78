"""Settings, deletion of records, log directories."""

from __future__ import annotations

import pytest

from compat_tests.clients import ClientError, Driver
from compat_tests.waiting import eventually

SECTION = "5 Settings and disk"
OFFSET_OUT_OF_RANGE, INVALID_CONFIG = 1, 40


def test_records_below_an_offset_are_deleted(client: Driver, reference: Driver, topic: str) -> None:
    """Delete records below an offset"""
    reference.create_topic(topic)
    reference.produce(topic, [{"value": str(number)} for number in range(10)])
    client.delete_records(topic, 0, 4)
    assert reference.bounds(topic, 0) == (4, 10)


def test_deleting_records_beyond_the_end_is_refused(client: Driver, reference: Driver, topic: str) -> None:
    """Deleting records beyond the end is refused"""
    reference.create_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.delete_records(topic, 0, 4)
    assert refused.value.code == OFFSET_OUT_OF_RANGE


def test_topic_is_created_with_settings(client: Driver, reference: Driver, topic: str) -> None:
    """Create a topic with settings"""
    client.create_topic(topic, configs={"retention.ms": "12345"})
    eventually(lambda: reference.topic_configs(topic)["retention.ms"] == "12345")


def test_settings_of_a_topic_are_described(client: Driver, reference: Driver, topic: str) -> None:
    """Describe the settings of a topic"""
    reference.create_topic(topic, configs={"cleanup.policy": "compact"})
    described = client.topic_configs(topic)
    assert (described["cleanup.policy"], described["max.message.bytes"]) == ("compact", "1048588")


def test_settings_of_the_broker_are_described(client: Driver) -> None:
    """Describe the settings of the broker"""
    node = client.brokers()[0][0]
    assert client.broker_configs(node)["log.segment.bytes"] == "1073741824"


def test_setting_of_a_topic_is_altered(client: Driver, reference: Driver, topic: str) -> None:
    """Alter a setting of a topic"""
    reference.create_topic(topic)
    client.set_topic_config(topic, "retention.bytes", "1000000")
    eventually(lambda: reference.topic_configs(topic)["retention.bytes"] == "1000000")


def test_bad_setting_is_refused(client: Driver, reference: Driver, topic: str) -> None:
    """A bad value of a setting is refused"""
    reference.create_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.set_topic_config(topic, "retention.ms", "soon")
    assert refused.value.code == INVALID_CONFIG


def test_log_directories_are_described(client: Driver, reference: Driver, topic: str) -> None:
    """Describe the log directories"""
    reference.create_topic(topic, partitions=2)
    reference.produce(topic, [{"value": "x" * 1000, "partition": 1}])
    sizes = client.log_dirs()
    assert sizes[f"{topic}-1"] > 1000 > sizes[f"{topic}-0"]
