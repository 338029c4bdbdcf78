"""What the settings of a client say of who it is and whom it trusts, in any of their spellings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kbroker.security.client import ClientSecurity, Login, Store, client_security

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required"
URL = "sasl.oauthbearer.token.endpoint.url"


def of(**settings: str) -> ClientSecurity:
    return client_security({name.replace("_", "."): value for name, value in settings.items()})


def test_without_settings_it_is_plaintext() -> None:
    assert of() == ClientSecurity()
    assert of(client_id="x", sasl_mechanism="PLAIN").login is None


@pytest.mark.parametrize(
    ("settings", "login"),
    [
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{PLAIN} username="a" password="p=;";'},
            ("PLAIN", "a", "p=;"),
        ),
        ({"sasl_mechanism": "plain", "sasl_plain_username": "a", "sasl_plain_password": ""}, ("PLAIN", "a", "")),
        ({"sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": "a", "sasl.password": "p"}, ("SCRAM-SHA-256", "a", "p")),
        (
            {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": f"{SCRAM} username=a password='p';"},
            ("SCRAM-SHA-512", "a", "p"),
        ),
    ],
)
def test_user_and_password_are_read_in_every_spelling(settings: dict[str, str], login: tuple[str, ...]) -> None:
    found = client_security({"security.protocol": "sasl_plaintext", **settings}).login
    assert found is not None
    assert found[:3] == login


def test_other_logins_are_read() -> None:
    token = of(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_jaas_config=f'{SCRAM} username="id" password="x" tokenauth="true";',
    )
    assert token.login is not None
    assert token.login.is_token
    signed = client_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            URL: "https://login/token",
            "sasl.jaas.config": f'{OAUTH} clientId="me" clientSecret="x" scope="kafka";',
        }
    )
    assert signed.login == Login("OAUTHBEARER", "me", "x", endpoint="https://login/token", scope="kafka")
    unsecured = f'{OAUTH} unsecuredLoginStringClaim_sub="alice";'
    made = of(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_jaas_config=unsecured)
    assert made.login == Login("OAUTHBEARER", unsecured={"sub": "alice"})
    ticket = f'{KERBEROS} useKeyTab=true keyTab="/k" principal="a@B";'
    found = of(security_protocol="SASL_PLAINTEXT", sasl_jaas_config=ticket, sasl_kerberos_service_name="s")
    assert found.login == Login("GSSAPI", "a@B", keytab="/k", service="s")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ssl.truststore.location": "a.pem"}, {"authorities": Store("ssl.truststore.location", "a.pem")}),
        ({"ssl.cafile": "a.pem"}, {"authorities": Store("ssl.cafile", "a.pem", kind="PEM")}),
        ({"ssl.ca.location": "a.pem"}, {"authorities": Store("ssl.ca.location", "a.pem", kind="PEM")}),
        (
            {"ssl.truststore.certificates": "PEM"},
            {"authorities": Store("ssl.truststore.certificates", text="PEM", kind="PEM")},
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"checks_host": False}),
        ({"ssl.check.hostname": "False"}, {"checks_host": False}),
        (
            {"enable.ssl.certificate.verification": "false"},
            {"checks_host": False, "checks_certificate": False},
        ),
        (
            {"ssl.keystore.location": "k.p12", "ssl.keystore.type": "pkcs12", "ssl.keystore.password": "x"},
            {
                "certificate": (store := Store("ssl.keystore.location", "k.p12", kind="PKCS12", password="x")),
                "key": store,
            },
        ),
        (
            {"ssl.certificate.location": "c", "ssl_keyfile": "k", "ssl.key.password": "x"},
            {
                "certificate": Store("ssl.certificate.location", "c", kind="PEM"),
                "key": Store("ssl_keyfile", "k", kind="PEM"),
                "key_password": "x",
            },
        ),
    ],
)
def test_stores_are_read_in_every_spelling(settings: dict[str, str], expected: dict[str, Any]) -> None:
    assert client_security({"security.protocol": "SSL", **settings}) == ClientSecurity("SSL")._replace(**expected)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"security.protocol": "TLS"}, "security.protocol=TLS: allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({}, "security.protocol=SASL_SSL wants sasl.mechanism: PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanism": "DIGEST"}, "sasl.mechanism=DIGEST: allowed: PLAIN, SCRAM-SHA-256"),
        (
            {"sasl.mechanism": "PLAIN"},
            "sasl.jaas.config has no username and password: for sasl.mechanism=PLAIN write org",
        ),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": "sesame"}, "sasl.jaas.config: no login module as Java writes"),
        (
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f'{PLAIN} username="a" password="sesame";'},
            "sasl.jaas.config has a PlainLoginModule: for sasl.mechanism=SCRAM-SHA-256 write org.apache.kafka",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, f"sasl.mechanism=OAUTHBEARER wants {URL}: https"),
        ({"sasl.mechanism": "OAUTHBEARER", URL: "ftp://x"}, f"{URL}=ftp://x: allowed: https"),
        ({"sasl.mechanism": "OAUTHBEARER", URL: "https://x"}, f"{URL}=https://x wants sasl.oauthbearer.client.cred"),
        ({"sasl.login.callback.handler.class": "a.B"}, "sasl.login.callback.handler.class=a.B: a class of Java's"),
        (
            {"security.protocol": "SSL", "ssl.truststore.type": "BKS"},
            "ssl.truststore.type=BKS: allowed: JKS, PKCS12, PEM",
        ),
        ({"security.protocol": "SSL", "ssl.keyfile": "k"}, "ssl.keyfile wants ssl.certificate.location, too"),
        ({"security.protocol": "SSL", "ssl.check.hostname": "no"}, "ssl.check.hostname=no: allowed: true, false"),
        (
            {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "ldaps"},
            "ssl.endpoint.identification.algorithm=ldaps: allowed: https, or nothing",
        ),
    ],
)
def test_a_mistake_is_a_line_that_says_no_password(settings: dict[str, str], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        client_security({"security.protocol": "SASL_SSL", "sasl.password": "sesame", **settings})
    assert str(caught.value).startswith(line)
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_password_is_shown_where_a_value_is() -> None:
    found = client_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} username="alice" password="sesame";',
            "ssl.keystore.location": "k.p12",
            "ssl.keystore.password": "sesame",
            "ssl.key.password": "sesame",
        }
    )
    assert "alice" in repr(found)
    assert "sesame" not in f"{found!r} {found} {found.login} {found.key} {found.key!r} {[found]}"
