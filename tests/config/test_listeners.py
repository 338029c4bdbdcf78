"""Listeners: names, addresses, protocols, and one line for each mistake."""

from __future__ import annotations

import pytest

from kbroker.config import (
    BrokerLayers,
    ConfigError,
    Given,
    Listeners,
    is_every_interface,
    resolve_broker,
    resolve_listeners,
)


def listeners(**keys: str) -> Listeners:
    given = {key.replace("_", "."): Given(value, "test") for key, value in keys.items()}
    return resolve_listeners(resolve_broker(BrokerLayers(static=given)))


def fault(**keys: str) -> str:
    with pytest.raises(ConfigError) as caught:
        listeners(**keys)
    (line,) = caught.value.lines
    return line


INSIDE_OUT = "INSIDE:PLAINTEXT,OUT:PLAINTEXT,CONTROL:PLAINTEXT"


def test_default_is_plaintext_on_every_interface() -> None:
    assert [str(each) for each in listeners().bound] == ["PLAINTEXT://:9092"]


def test_listener_is_advertised_as_bound_unless_said_otherwise() -> None:
    found = listeners(listeners="PLAINTEXT://127.0.0.1:0")
    assert found.advertised == found.bound


def test_every_listener_is_advertised_under_its_own_name() -> None:
    found = listeners(
        listeners="INSIDE://:9092,OUT://:9093",
        advertised_listeners="OUT://broker.example:19093,INSIDE://broker:9092",
        listener_security_protocol_map=INSIDE_OUT,
        inter_broker_listener_name="inside",
    )
    assert [str(each) for each in found.advertised] == ["INSIDE://broker:9092", "OUT://broker.example:19093"]
    assert found.inter_broker == "INSIDE"


def test_address_of_ipv6_stands_in_brackets() -> None:
    (listener,) = listeners(listeners="PLAINTEXT://[::1]:9092").bound
    assert (listener.host, str(listener)) == ("::1", "PLAINTEXT://[::1]:9092")


def test_same_port_may_serve_ipv4_and_ipv6() -> None:
    found = listeners(listeners="INSIDE://127.0.0.1:9092,OUT://[::1]:9092", listener_security_protocol_map=INSIDE_OUT)
    assert len(found.bound) == 2


def test_listener_of_a_kraft_controller_is_left_out() -> None:
    found = listeners(
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    )
    assert [each.name for each in found.bound] == ["PLAINTEXT"]


def test_control_plane_has_its_own_listener() -> None:
    found = listeners(
        listeners="INSIDE://:9092,CONTROL://:9093",
        listener_security_protocol_map=INSIDE_OUT,
        inter_broker_listener_name="INSIDE",
        control_plane_listener_name="control",
    )
    assert found.control_plane == "CONTROL"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"listeners": "PLAINTEXT//:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://:66000"}, "port 0 to 65535"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "IPv6 as [::1]"),
        ({"listeners": ""}, "at least one"),
        ({"listeners": "MINE://:9092"}, "names of listener.security.protocol.map"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, "every name once"),
        (
            {"listeners": "A://:1,B://:1", "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"},
            "every port once",
        ),
        ({"listener_security_protocol_map": "A"}, "NAME:PROTOCOL"),
        ({"listener_security_protocol_map": "A:TCP"}, "PROTOCOL one of"),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:9092"}, "an address that clients can reach"),
        ({"advertised_listeners": "PLAINTEXT://[0:0:0:0:0:0:0:0]:9092"}, "an address that clients can reach"),
        ({"listeners": "PLAINTEXT://0.0.0.0:9092"}, "or no host at all (PLAINTEXT://:9092)"),
        ({"listeners": "PLAINTEXT://[::0]:9092"}, "or no host at all (PLAINTEXT://:9092)"),
        ({"advertised_listeners": "SSL://broker:9092"}, "names of listeners (PLAINTEXT)"),
        ({"inter_broker_listener_name": "OTHER"}, "allowed: PLAINTEXT"),
        ({"security_inter_broker_protocol": "SSL"}, "inter.broker.listener.name"),
        ({"control_plane_listener_name": "PLAINTEXT"}, "not the inter-broker one"),
    ],
)
def test_mistake_gets_one_line_with_key_and_what_is_allowed(keys: dict[str, str], said: str) -> None:
    line = fault(**keys)
    assert said in line
    assert "allowed" in line


@pytest.mark.parametrize(
    ("host", "is_all"),
    [
        ("", True),
        ("::", True),
        ("0:0:0:0:0:0:0:0", True),
        ("0000::0", True),
        ("::0.0.0.0", True),
        ("::%eth0", True),
        ("::ffff:0.0.0.0", True),
        ("::FFFF:0:0", True),
        ("0:0:0:0:0:ffff:0:0", True),
        ("0:0:0:0:0:FFFF:0.0.0.0", True),
        ("0.0.0.0", True),
        ("0", True),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
        ("ffff::", False),
        ("::ffff:0", False),
        ("0:::0", False),
        ("10.0.0.0", False),
        ("localhost", False),
    ],
)
def test_the_address_of_every_interface_has_many_spellings(host: str, is_all: bool) -> None:
    assert is_every_interface(host) is is_all
