"""What makes a broker a member of a quorum's cluster, and what is refused in a line."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerLayers, ConfigError, resolve_broker, resolve_listeners, static_values, warnings
from kbroker.config.quorum import QuorumSettings, Voter, quorum_settings

SIX_LINES = """
process.roles=broker
node.id=7
controller.quorum.bootstrap.servers=one:9093,[::1]:9094
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://:9092
log.dirs=/a,/b
"""


def member(text: str) -> QuorumSettings | None:
    return quorum_settings(resolve_broker(BrokerLayers(static=static_values(text))))


def test_six_lines_make_a_member() -> None:
    assert member(SIX_LINES) == QuorumSettings(7, (("one", 9093), ("::1", 9094)), (), "CONTROLLER", 0, "/a")


def test_voters_are_servers_where_no_others_are_given() -> None:
    found = member(SIX_LINES.replace("bootstrap.servers=one:9093,[::1]:9094", "voters=1@one:9093,2@two:9094"))
    assert found is not None
    assert found.servers == (("one", 9093), ("two", 9094))
    assert found.voters == (Voter(1, "one", 9093), Voter(2, "two", 9094))


def test_the_metadata_log_may_have_a_directory_of_its_own() -> None:
    found = member(SIX_LINES + "metadata.log.dir=/meta\n")
    assert found is not None
    assert found.metadata_log_dir == "/meta"


def test_the_controllers_listener_has_its_protocol_in_the_map() -> None:
    found = member(SIX_LINES + "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_SSL\n")
    assert found is not None
    assert found.security_protocol == 3


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            "process.roles=broker",
            "process.roles=controller",
            "process.roles=controller: allowed: broker, or broker,con",
        ),
        (
            "process.roles=broker",
            "process.roles=broker,controller",
            "controller.quorum.bootstrap.servers=one:9093,[::1]:9094: allowed: one, for a broker that is alone",
        ),
        ("node.id=7", "", "node.id=-1: allowed: at least 0"),
        ("log.dirs=/a,/b", "zookeeper.connect=z:2181", "zookeeper.connect=z:2181: allowed: without process.roles"),
        (
            "controller.quorum.bootstrap.servers=one:9093,[::1]:9094",
            "",
            "process.roles=broker: allowed: with controller",
        ),
        ("controller.listener.names=CONTROLLER", "", "controller.listener.names=: allowed: at least one"),
        ("one:9093", "one", "controller.quorum.bootstrap.servers=one,[::1]:9094: 'one'; allowed: host:port"),
        ("one:9093", "one:0", "controller.quorum.bootstrap.servers=one:0,[::1]:9094: 'one:0'; allowed: host:port"),
        (
            "bootstrap.servers=one:9093,[::1]:9094",
            "voters=one:9093",
            "controller.quorum.voters=one:9093: 'one:9093'; allowed: id@host:port",
        ),
        (
            "bootstrap.servers=one:9093,[::1]:9094",
            "voters=7@one:9093",
            "node.id=7: allowed: no id of controller.quorum.voters: this broker votes in no metadata quorum",
        ),
        ("names=CONTROLLER", "names=PLAINTEXT", "listeners=PLAINTEXT://:9092: PLAINTEXT; allowed: none of controller"),
        (
            "log.dirs=/a,/b",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT",
            "controller.listener.names=CONTROLLER: CONTROLLER; allowed: names of listener.security.protocol.map",
        ),
    ],
)
def test_what_cannot_be_a_member_is_told_in_a_line(before: str, after: str, line: str) -> None:
    assert before in SIX_LINES
    with pytest.raises(ConfigError) as refused:
        member(SIX_LINES.replace(before, after))
    assert refused.value.lines[0].startswith(line)


def test_a_quorum_of_one_is_a_broker_that_is_alone() -> None:
    text = "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@localhost:9093\n"
    assert member(text) is None
    assert [line.partition(":")[0] for line in warnings(static_values(text))] == [
        "process.roles",
        "controller.quorum.voters",
    ]


def test_a_members_settings_have_an_effect() -> None:
    assert warnings(static_values(SIX_LINES + "broker.heartbeat.interval.ms=500\n")) == []
    assert warnings(static_values("broker.heartbeat.interval.ms=500\n")) != []


def test_the_listener_of_controllers_is_none_of_a_members_own() -> None:
    config = resolve_broker(BrokerLayers(static=static_values(SIX_LINES)))
    assert [each.name for each in resolve_listeners(config).bound] == ["PLAINTEXT"]
