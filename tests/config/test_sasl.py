"""Settings of a listener that speaks SASL: whose value counts, and what is said of one that cannot be used."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerLayers, ConfigError, Given
from kbroker.config.sasl import SaslConfig, peer_login, sasl_config

PLAIN = 'PlainLoginModule required user_a="SECRET";'
TICKETS = 'Krb5LoginModule required useKeyTab=true keyTab="/k" principal="kafka/host@REALM";'
OF = "listener.name.a."


def layers_of(**settings: str) -> BrokerLayers:
    return BrokerLayers(static={key.replace("__", "."): Given(text, "test") for key, text in settings.items()})


def of(settings: dict[str, str]) -> SaslConfig:
    return sasl_config(BrokerLayers(static={key: Given(text, "test") for key, text in settings.items()}), "A")


def test_what_is_nearer_to_the_mechanism_counts() -> None:
    found = of(
        {
            "sasl.enabled.mechanisms": "GSSAPI",
            f"{OF}sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.jaas.config": "M required;",
            f"{OF}plain.sasl.jaas.config": PLAIN,
            "connections.max.reauth.ms": "5",
            f"{OF}plain.connections.max.reauth.ms": "7",
        }
    )
    assert list(found.mechanisms) == ["PLAIN", "SCRAM-SHA-512"]
    plain, scram = found.mechanisms.values()
    assert plain.module is not None
    assert plain.module.options == {"user_a": "SECRET"}
    assert (plain.max_reauth_ms, scram.max_reauth_ms) == (7, 5)
    assert "SECRET" not in repr(found)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, f"{OF}gssapi.sasl.jaas.config: allowed: com.sun.security.auth.module.Krb5LoginModule required"),
        ({f"{OF}gssapi.sasl.jaas.config": TICKETS}, "sasl.kerberos.service.name: allowed: kafka, which stands first"),
        (
            {f"{OF}gssapi.sasl.jaas.config": TICKETS, "sasl.kerberos.service.name": "broker"},
            "sasl.kerberos.service.name=broker: allowed: kafka, which stands first",
        ),
        (
            {f"{OF}gssapi.sasl.jaas.config": TICKETS, "sasl.server.callback.handler.class": "a:b"},
            f"{OF}gssapi.sasl.server.callback.handler.class=a:b: allowed for GSSAPI: none",
        ),
        ({f"{OF}sasl.enabled.mechanisms": "FOO"}, f"{OF}sasl.enabled.mechanisms=FOO: 'FOO'; allowed: PLAIN"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, f"{OF}plain.sasl.jaas.config: allowed: a PlainLoginModule"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", f"{OF}plain.sasl.jaas.config": "SECRET"},
            f"{OF}plain.sasl.jaas.config=[hidden]: no login module",
        ),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "sasl.oauthbearer.jwks.endpoint.url: allowed: where the keys are"),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                f"{OF}oauthbearer.sasl.server.callback.handler.class": "some.Handler",
            },
            f"{OF}oauthbearer.sasl.server.callback.handler.class=Handler: allowed for OAUTHBEARER: module:function",
        ),
    ],
)
def test_a_listener_whose_clients_cannot_log_in_is_one_line(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        of(settings)
    (said,) = refused.value.lines
    assert said.startswith(line)
    assert "SECRET" not in said


def test_controllers_are_logged_in_at_by_a_mechanism_of_their_own() -> None:
    settings = {
        "controller.listener.names": "CONTROLLER",
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.controller.scram-sha-256.sasl.jaas.config": 'x.M required username="one" password="SECRET";',
        "listener.name.a.plain.sasl.jaas.config": 'x.M required username="two" password="SECRET";',
    }
    layers = BrokerLayers(static={key: Given(text, "test") for key, text in settings.items()})
    logins = [peer_login(layers, name) for name in ("CONTROLLER", "A")]
    assert [(each.mechanism, each.user) for each in logins] == [("SCRAM-SHA-256", "one"), ("PLAIN", "two")]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"controller__listener__names": "a", "sasl__mechanism__controller__protocol": "X"},
            "sasl.mechanism.controller.protocol=X: allowed: PLAIN",
        ),
        ({"sasl__mechanism__inter__broker__protocol": "X"}, "sasl.mechanism.inter.broker.protocol=X: allowed: PLAIN"),
        ({}, f"{OF}gssapi.sasl.jaas.config: allowed: com.sun.security.auth.module.Krb5LoginModule"),
        ({"sasl__mechanism__inter__broker__protocol": "PLAIN"}, f"{OF}plain.sasl.jaas.config: allowed: a login module"),
        (
            {"sasl__mechanism__inter__broker__protocol": "OAUTHBEARER"},
            f"{OF}oauthbearer.sasl.login.callback.handler.class=: allowed: module:function",
        ),
    ],
)
def test_a_broker_that_cannot_log_in_at_others_is_one_line(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        peer_login(layers_of(**settings), "A")
    (said,) = refused.value.lines
    assert said.startswith(line)
