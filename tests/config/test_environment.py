"""Environments of containers: those that the documentation of other images shows start a broker, or say why not."""

from __future__ import annotations

import pytest

from kbroker.config import (
    ONE_BROKER,
    BrokerConfig,
    BrokerLayers,
    ConfigError,
    Listeners,
    resolve_broker,
    resolve_listeners,
    static_values,
    unheeded,
    warnings,
)
from kbroker.config.environment import from_environment

CONFLUENT = {
    "KAFKA_NODE_ID": "1",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:29092,PLAINTEXT_HOST://localhost:9092",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qk",
}
APACHE = CONFLUENT | {
    "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:29092",
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
}
BITNAMI = {
    "KAFKA_CFG_NODE_ID": "1",
    "KAFKA_CFG_PROCESS_ROLES": "controller,broker",
    "KAFKA_CFG_LISTENERS": "PLAINTEXT://:29092,CONTROLLER://:9093,PLAINTEXT_HOST://:9092",
    "KAFKA_CFG_ADVERTISED_LISTENERS": "PLAINTEXT://broker:29092,PLAINTEXT_HOST://localhost:9092",
    "KAFKA_CFG_LISTENER_SECURITY_PROTOCOL_MAP": CONFLUENT["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"],
    "KAFKA_CFG_CONTROLLER_QUORUM_VOTERS": "1@kafka:9093",
    "KAFKA_CFG_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_KRAFT_CLUSTER_ID": "MkU3OEVBNTcwNTJENDM2Qk",
    "ALLOW_PLAINTEXT_LISTENER": "yes",
}


def resolved(environment: dict[str, str], file: str = "") -> tuple[BrokerConfig, Listeners]:
    given = static_values(file, environment=environment)
    config = resolve_broker(BrokerLayers(static=given, alone=ONE_BROKER))
    return config, resolve_listeners(config)


@pytest.mark.parametrize("environment", [CONFLUENT, APACHE, BITNAMI], ids=["Confluent", "Apache", "Bitnami"])
@pytest.mark.parametrize("file", ["", "advertised.listeners=PLAINTEXT://localhost:9092"], ids=["no file", "a file"])
def test_an_environment_as_other_images_document_it_starts_a_broker(environment: dict[str, str], file: str) -> None:
    config, listeners = resolved(environment, file)
    assert {(each.name, each.host, each.port) for each in listeners.bound} == {
        ("PLAINTEXT", "", 29092),
        ("PLAINTEXT_HOST", "", 9092),
    }
    assert {(each.name, each.host, each.port) for each in listeners.advertised} == {
        ("PLAINTEXT", "broker", 29092),
        ("PLAINTEXT_HOST", "localhost", 9092),
    }
    assert (config.broker_id, config.node_id, config.cluster_id) == (1, 1, "MkU3OEVBNTcwNTJENDM2Qk")
    told = [line.partition(":")[0] for line in warnings(static_values(file, environment=environment))]
    assert sorted(told) == ["controller.quorum.voters", "process.roles"]


@pytest.mark.parametrize(
    ("advertised", "bound"),
    [
        ("PLAINTEXT://example.com:19092", [("", 19092)]),
        ("PLAINTEXT://[2001:db8::1]:19092", [("", 19092)]),
        ("PLAINTEXT://:19092", [("", 19092)]),
        (" PLAINTEXT://a:1 , SASL_SSL://b:2 ", [("", 1), ("", 2)]),
    ],
)
def test_listeners_follow_from_the_variable_that_advertises_them(advertised: str, bound: list[tuple[str, int]]) -> None:
    environment = {"KAFKA_ADVERTISED_LISTENERS": advertised, "KAFKA_LISTENERS": ""}
    assert [(each.host, each.port) for each in resolved(environment)[1].bound] == bound


def test_listeners_that_somebody_says_are_not_derived() -> None:
    environment = {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://example.com:443"}
    assert resolved(environment, "listeners=PLAINTEXT://127.0.0.1:9092")[1].bound[0].port == 9092
    given = static_values("", environment=environment, overrides=["listeners=PLAINTEXT://:7"])
    assert given["listeners"].text == "PLAINTEXT://:7"
    assert "listeners" not in static_values("advertised.listeners=PLAINTEXT://example.com:443")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"KAFKA_PROCESS_ROLES": "broker"}, "node.id=1: allowed: no id of controller.quorum.voters"),
        ({"KAFKA_PROCESS_ROLES": "controller"}, "process.roles=controller: allowed: broker, or broker,controller for"),
        (
            {"KAFKA_CONTROLLER_QUORUM_VOTERS": "1@a:9093,2@b:9093"},
            "controller.quorum.voters=1@a:9093,2@b:9093: allowed: one, for a broker that is alone",
        ),
        (
            {"KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "a:9093,b:9093"},
            "controller.quorum.bootstrap.servers=a:9093,b:9093: allowed: one, for a broker that is alone",
        ),
        ({"CLUSTER_ID": "mine"}, "cluster.id=mine: allowed: text, 22 letters of base64url"),
        (
            {"KAFKA_CFG_NODE_ID": "2"},
            "KAFKA_CFG_NODE_ID and KAFKA_NODE_ID: allowed: one of these environment variables, or the same value",
        ),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_no_start(change: dict[str, str], line: str) -> None:
    """Or each of its brokers would start as one that is alone."""
    with pytest.raises(ConfigError) as refused:
        resolved(CONFLUENT | change)
    assert refused.value.lines[0].startswith(line)


def test_an_id_of_a_cluster_is_another_program_s_where_nothing_speaks_of_a_quorum() -> None:
    assert static_values(environment={"CLUSTER_ID": "production-7"}) == {}
    assert static_values("process.roles=broker,controller", environment=CONFLUENT)["cluster.id"].where == (
        "environment variable CLUSTER_ID"
    )


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", "advertised.listeners"),
        ("KAFKA_SOME__KEY", "some_key"),
        ("KAFKA_SOME___KEY", "some-key"),
        ("KAFKA_LISTENER_NAME_A__B_SSL", "listener.name.a_b.ssl"),
        ("KAFKA_CFG_LOG_DIRS", "log.dirs"),
        ("KAFKA_CFG_LISTENER_NAME_SASL_PLAINTEXT_MAX_CONNECTIONS", "listener.name.sasl_plaintext.max.connections"),
        ("KAFKA_CFG_LISTENER_NAME_SASL_SSL_MAX_CONNECTIONS", "listener.name.sasl_ssl.max.connections"),
        ("KAFKA_KRAFT_CLUSTER_ID", "cluster.id"),
        ("KAFKA_PORT", "port"),
    ],
)
def test_a_variable_names_a_key(variable: str, key: str) -> None:
    assert list(from_environment({variable: "x"})) == [key]


def test_two_variables_may_say_the_same() -> None:
    given = static_values(environment={"KAFKA_NUM_PARTITIONS": "3", "KAFKA_CFG_NUM_PARTITIONS": " 3"})
    assert given["num.partitions"].text.strip() == "3"


def test_variables_of_images_without_a_meaning_here_are_told_with_the_reason() -> None:
    environment = {
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "KAFKA_JMX_PORT": "9101",
        "KAFKA_LOG4J_ROOT_LOGLEVEL": "WARN",
        "KAFKA_CLIENT_PASSWORDS": "secret",
        "KAFKA_CREATE_TOPICS": "t:1:1",
        "KAFKA_ENABLE_KRAFT": "yes",
        "KAFKA_PORT": "tcp://10.0.0.7:9092",
        "KAFKA_SERVICE_HOST": "10.0.0.7",
        "KAFKA_PORT_9092_TCP_ADDR": "10.0.0.7",
        "KAFKA_UI_SERVICE_PORT_HTTP": "80",
    }
    assert from_environment(environment) == {}
    assert unheeded(environment) == [
        "KAFKA_CLIENT_PASSWORDS: has no effect: logins are sasl.enabled.mechanisms,"
        " listener.name.NAME.plain.sasl.jaas.config and kbroker users (environment)",
        "KAFKA_CREATE_TOPICS: has no effect: kbroker topics --create makes topics (environment)",
        "KAFKA_ENABLE_KRAFT: has no effect: process.roles says what it is in a metadata quorum (environment)",
        "KAFKA_HEAP_OPTS, KAFKA_JMX_PORT: has no effect: it is for a Java virtual machine, and there is none here"
        " (environment)",
        "KAFKA_LOG4J_ROOT_LOGLEVEL: has no effect: --log-level says what is logged (environment)",
        "KAFKA_PORT, KAFKA_PORT_9092_TCP_ADDR, KAFKA_SERVICE_HOST, KAFKA_UI_SERVICE_PORT_HTTP: has no effect:"
        " Kubernetes sets it for a service of that name (environment)",
    ]


def test_what_is_no_wish_of_a_user_s_is_passed_by() -> None:
    environment = {"KAFKA_HOME": "/opt/kafka", "KAFKA_VERSION": "3.9.1", "KAFKA_": "x", "KAFKA_CFG_": "x", "PATH": "/"}
    assert (from_environment(environment), unheeded(environment)) == ({}, [])
