"""What a setting accepts, shows and costs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kbroker.config import BrokerConfig, BrokerLayers, ConfigType, TopicConfig, resolve_broker, resolve_topic
from kbroker.config.group import GroupConfig
from kbroker.config.settings import DOUBLE_MAX, Setting

ALL = [*BrokerConfig.KEYS.values(), *TopicConfig.KEYS.values(), *GroupConfig.KEYS.values()]


def allows(key: str, text: str) -> bool:
    try:
        (BrokerConfig.KEYS.get(key) or TopicConfig.KEYS[key]).parse(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("num.partitions", "0"),
        ("num.partitions", "2147483648"),
        ("num.partitions", "1_000"),
        ("num.partitions", "١"),
        ("num.partitions", ""),
        ("offsets.topic.replication.factor", "32768"),
        ("log.retention.bytes", "9223372036854775808"),
        ("auto.create.topics.enable", "yes"),
        ("log.cleaner.min.cleanable.ratio", "1.5"),
        ("log.cleaner.min.cleanable.ratio", "nan"),
        ("log.cleanup.policy", "delete,forget"),
        ("log.message.timestamp.type", "createtime"),
        ("compression.gzip.level", "10"),
        ("compression.gzip.level", "0"),
        ("message.format.version", "three"),
        ("authorizer.class.name", "some.Authorizer"),
        ("super.users", "User:a;b"),
        ("remote.storage.enable", "true"),
        ("zookeeper.ssl.keystore.type", "JKS"),
        ("zookeeper.ssl.cipher.suites", "TLS_AES_256_GCM_SHA384"),
        ("zookeeper.ssl.crl.enable", "true"),
        ("zookeeper.ssl.enabled.protocols", "TLSv1.1,TLSv1.2"),
        ("kbroker.zookeeper.sasl.jaas.config", 'DigestLoginModule required username="a";'),
        ("max.connections.per.ip.overrides", "127.0.0.1"),
        ("leader.replication.throttled.replicas", "0-1"),
    ],
)
def test_bad_value_is_refused(key: str, text: str) -> None:
    assert not allows(key, text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("num.partitions", " +3 "),
        ("auto.create.topics.enable", "TRUE"),
        ("zookeeper.ssl.client.enable", "true"),
        ("zookeeper.ssl.keystore.type", "PEM"),
        ("zookeeper.ssl.keystore.type", ""),
        ("zookeeper.ssl.endpoint.identification.algorithm", ""),
        ("kbroker.zookeeper.sasl.jaas.config", "a.DigestLoginModule required username=a password=b;"),
        ("log.cleanup.policy", "compact, delete"),
        ("log.cleanup.policy", ""),
        ("log.cleaner.io.max.bytes.per.second", "1.7976931348623157E308"),
        ("max.connections.per.ip.overrides", "hostName:100, 127.0.0.1:200"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:101,1:102"),
        ("compression.gzip.level", "-1"),
        ("message.format.version", "0.10.2-IV0"),
    ],
)
def test_good_value_is_taken(key: str, text: str) -> None:
    assert allows(key, text)


def test_a_number_without_end_is_none() -> None:
    assert not allows("log.cleaner.io.max.bytes.per.second", "1e999")  # it has no text that DescribeConfigs could show


def test_every_default_is_a_legal_value() -> None:
    shown = [(each, each.shown(each.default)) for each in ALL]
    assert [each.name for each, text in shown if text is not None and each.parse(text) != each.default] == []


def test_every_setting_has_a_sentence() -> None:
    assert [each.name for each in ALL if not each.doc.endswith(".") or len(each.doc) < 15] == []


def test_every_fallback_and_broker_key_exists() -> None:
    keys = {**BrokerConfig.KEYS, **TopicConfig.KEYS}
    named = [key for each in ALL for key, _ in each.fallbacks] + [each.broker for each in ALL if each.broker]
    assert [key for key in named if key not in keys] == []


def test_topic_defaults_are_the_brokers_defaults() -> None:
    resolved = resolve_topic({}, resolve_broker(BrokerLayers()))
    assert [(each.name, value, each.default) for each, value in resolved.items() if value != each.default] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (DOUBLE_MAX, "1.7976931348623157E308"),
        (1e7, "1.0E7"),
        (0.0005, "5.0E-4"),
        (12345678.5, "1.23456785E7"),
        (-1e-10, "-1.0E-10"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    each = BrokerConfig.KEYS["log.cleaner.io.buffer.load.factor"]
    assert each.shown(value) == text


def test_units_follow_from_the_names() -> None:
    units = {key: BrokerConfig.KEYS[key].unit for key in ("log.retention.hours", "socket.request.max.bytes")}
    assert units == {"log.retention.hours": "h", "socket.request.max.bytes": "bytes"}


def test_secret_is_never_shown() -> None:
    secret = BrokerConfig.KEYS["sasl.jaas.config"]
    assert (secret.type, secret.shown("hunter2")) == (ConfigType.PASSWORD, None)


def test_resolved_settings_cannot_be_changed() -> None:
    config = resolve_broker(BrokerLayers())
    with pytest.raises(AttributeError, match="do not change"):
        config.num_partitions = 2


def test_resolved_settings_are_slots() -> None:
    assert not hasattr(resolve_broker(BrokerLayers()), "__dict__")


FACTS = Path(__file__).parent / "kafka-configs.tsv"


def kafka(scope: str, each: Setting) -> dict[str, str]:
    with FACTS.open() as lines:
        for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
            if row["name"] == each.name and row["scope"].removesuffix("-internal") == scope:
                return row
    return {}


OWN_CHOICE = {
    "allow.everyone.if.no.acl.found",  # of the authorizer in Kafka, as is super.users: read by it, never listed
    "cluster.id",  # given to kafka-storage in Kafka
    "console.client.config",  # Kafka has no console
    "console.listener",
    "console.names",
    "console.read.only",
    "console.schema.registry.url",
    "kbroker.metrics.listener",  # unknown to Kafka, as is the next
    "kbroker.zookeeper.sasl.jaas.config",
    "group.share.partition.max.record.locks",  # 2000 since share groups are general; 3.9 had them for a first look
    "leader.replication.throttled.rate",  # exist only dynamically, DescribeConfigs never lists them
    "follower.replication.throttled.rate",
    "group.consumer.assignors",  # the three of Kafka 4; in 3.9 with ZooKeeper there are no consumer groups
    "group.consumer.migration.policy",
    "group.coordinator.rebalance.protocols",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "super.users",
    "kbroker.tls.kernel",  # Kafka has none
}


@pytest.mark.parametrize(
    ("scope", "each"),
    [("broker", each) for each in BrokerConfig.KEYS.values()]
    + [("topic", each) for each in TopicConfig.KEYS.values()]
    + [("group", each) for each in GroupConfig.KEYS.values()],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_default_is_that_of_apache_kafka(scope: str, each: Setting) -> None:
    if each.name in OWN_CHOICE:
        return
    row = kafka(scope, each)
    default = row["default_4.3.0"] if row["default_3.9.1_zk"] in ("=", "-") else row["default_3.9.1_zk"]
    shown = each.shown(each.default)
    assert (shown or "null") == ("null" if default in ('""', "") else default)
