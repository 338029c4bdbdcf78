"""What a broker makes of its settings of TLS, and what it says of those that it cannot use."""

from __future__ import annotations

import socket
import ssl
from functools import partial
from pathlib import Path

import pytest

from kbroker.broker.session import Session
from kbroker.config import BrokerLayers, ConfigError, Given, resolve_broker, resolve_listeners
from kbroker.runtime.ssl_transport import SCRATCH_BYTES, SslTransport
from kbroker.runtime.tls import Tls
from tests.certificates import Authority
from tests.security.jks_writer import write_jks

SECRET = "sesame-42"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def layers(*, dynamic: dict[str, str] | None = None, **settings: str) -> BrokerLayers:
    """settings: with `_` for `.`; `listener_name_x_...` is a listener's own."""
    static = {key.replace("_", "."): Given(text, "the test") for key, text in settings.items() if text}
    return BrokerLayers(static=static, dynamic_broker=dynamic or {})


def load(given: BrokerLayers, *, in_cluster: bool = False) -> Tls:
    return Tls(given, resolve_listeners(resolve_broker(given)), in_cluster=in_cluster)


def refusal(given: BrokerLayers, *, in_cluster: bool = False) -> str:
    """The one line."""
    with pytest.raises(ConfigError) as caught:
        load(given, in_cluster=in_cluster)
    (line,) = caught.value.lines
    assert SECRET not in line
    return line


def context(tls: Tls, listener: str = "SSL") -> ssl.SSLContext:
    return tls._loaded[listener].server


def test_kafkas_defaults(authority: Authority) -> None:
    made = context(load(layers(**authority.settings())))
    assert made.minimum_version is ssl.TLSVersion.TLSv1_2
    assert made.maximum_version is ssl.TLSVersion.TLSv1_3
    assert made.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(("word", "mode"), [("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_client_auth(word: str, mode: ssl.VerifyMode, authority: Authority) -> None:
    assert context(load(layers(**authority.settings(ssl_client_auth=word)))).verify_mode is mode


def test_a_listener_s_own_settings_beat_the_brokers_wherever_they_are_set(authority: Authority) -> None:
    settings = authority.settings(
        listeners="SSL://127.0.0.1:0,INSIDE://127.0.0.1:0",
        listener_security_protocol_map="SSL:SSL,INSIDE:SSL",
        listener_name_inside_ssl_client_auth="required",
    )
    dynamic = {"ssl.client.auth": "requested", "listener.name.inside.ssl.enabled.protocols": "TLSv1.2"}
    made = load(layers(dynamic=dynamic, **settings))
    assert [context(made, name).verify_mode for name in ("SSL", "INSIDE")] == [ssl.CERT_OPTIONAL, ssl.CERT_REQUIRED]
    assert context(made, "INSIDE").maximum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("suites", "lowest", "highest"),
    [
        ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLSv1_2", "TLSv1_2"),
        ("TLS_AES_256_GCM_SHA384,TLS_AES_128_GCM_SHA256,TLS_CHACHA20_POLY1305_SHA256", "TLSv1_3", "TLSv1_3"),
    ],
)
def test_suites_of_one_version_leave_out_the_other(
    suites: str, lowest: str, highest: str, authority: Authority
) -> None:
    made = context(load(layers(**authority.settings(ssl_cipher_suites=suites))))
    assert (made.minimum_version.name, made.maximum_version.name) == (lowest, highest)
    if highest == "TLSv1_2":
        names = [each["name"] for each in made.get_ciphers() if each["protocol"] != "TLSv1.3"]
        assert names == ["ECDHE-ECDSA-AES128-GCM-SHA256"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"ssl_keystore_location": ""}, "ssl.keystore.location: not set, and a listener of TLS needs a certificate"),
        ({"ssl_keystore_location": "/no/such"}, "ssl.keystore.location: /no/such: No such file or directory"),
        ({"ssl_truststore_location": "/no/such"}, "ssl.truststore.location: /no/such: No such file or directory"),
        ({"ssl_keystore_type": ""}, "ssl.keystore.type: JKS, but the file is PEM; allowed: PEM"),
        ({"ssl_truststore_type": "PKCS12"}, "ssl.truststore.type: PKCS12, but the file is PEM; allowed: PEM"),
        ({"ssl_keystore_password": SECRET}, "ssl.keystore.password: set; allowed with a PEM store: none"),
        ({"ssl_keystore_key": SECRET}, "ssl.keystore.certificate.chain: not set; allowed: a private key and"),
        ({"ssl_keystore_certificate_chain": SECRET}, "ssl.keystore.key: not set; allowed: a private key and"),
        (
            {"ssl_keystore_certificate_chain": SECRET, "ssl_keystore_key": SECRET},
            "ssl.keystore.location: set beside ssl.keystore.key; allowed: one of them",
        ),
        ({"ssl_truststore_certificates": SECRET}, "ssl.truststore.location: set beside ssl.truststore.certificates"),
        ({"ssl_principal_mapping_rules": "RULE:x"}, "ssl.principal.mapping.rules: 'RULE:x' is no rule; allowed: DEF"),
        ({"ssl_cipher_suites": "AES"}, "ssl.cipher.suites: AES: unknown; allowed: Java's names, as TLS_AES_256_GCM"),
        (
            {"ssl_cipher_suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.3"},
            "ssl.cipher.suites: none is for a version of ssl.enabled.protocols",
        ),
        (
            {"listener_name_ssl_ssl_keystore_location": "/no/such"},
            "listener.name.ssl.ssl.keystore.location: /no/such: No such file or directory",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(changed: dict[str, str], line: str, authority: Authority) -> None:
    assert refusal(layers(**{**authority.settings(), **changed})).startswith(line)


def test_a_key_that_does_not_fit_its_certificate(authority: Authority) -> None:
    one, other = authority.make("CN=a"), authority.make("CN=b")
    path = authority.folder / "mixed.pem"
    path.write_text(one.key_pem() + other.certificate_pem)
    line = refusal(layers(**authority.settings(ssl_keystore_location=str(path))))
    assert line.startswith("ssl.keystore.location: the private key does not fit the first certificate; allowed:")


@pytest.mark.parametrize(("password", "why"), [("wrong", "does not fit"), ("", "not set, and the private key")])
def test_the_password_of_a_key(password: str, why: str, authority: Authority) -> None:
    made = authority.make("CN=a")
    path = authority.folder / "locked.pem"
    path.write_text(made.key_pem(SECRET) + made.certificate_pem)
    settings = authority.settings(ssl_keystore_location=str(path))
    assert refusal(layers(**settings, ssl_key_password=password)).startswith(f"ssl.key.password: {why}")
    load(layers(**settings, ssl_key_password=SECRET))


def test_stores_of_java(authority: Authority) -> None:
    made = authority.make("CN=a")
    (authority.folder / "own.p12").write_bytes(made.pkcs12(SECRET))
    (authority.folder / "trust.jks").write_bytes(write_jks(SECRET, trusted=[authority.made.der]))
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "security_inter_broker_protocol": "SSL",
        "ssl_keystore_location": str(authority.folder / "own.p12"),
        "ssl_keystore_password": SECRET,
        "ssl_truststore_location": str(authority.folder / "trust.jks"),
        "ssl_truststore_password": SECRET,
    }
    load(layers(**settings), in_cluster=True)
    line = refusal(layers(**{**settings, "ssl_truststore_password": "wrong"}))
    assert line.startswith("ssl.truststore.password: does not fit")


def test_brokers_of_a_cluster_have_to_take_each_others_certificate(authority: Authority, tmp_path: Path) -> None:
    settings = authority.settings(ssl_truststore_location=str(Authority(tmp_path / "o", "CN=other").trust))
    load(layers(**settings))
    line = refusal(layers(**settings), in_cluster=True)
    assert line.startswith("ssl.truststore.location: brokers with these settings do not take each other's certificate")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"days": -1, "since": 9}, "the certificate CN=a has expired on"),
        ({"days": 5.5}, "the certificate CN=a expires in 5 days, on"),
        ({"since": -2}, "the certificate CN=a counts from"),
        ({}, ""),
    ],
)
def test_a_start_warns_of_a_certificate_s_end(
    times: dict[str, float], said: str, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    path = authority.store(authority.make("CN=a", **times))
    load(layers(**authority.settings(ssl_keystore_location=str(path))), in_cluster=True)
    assert [said in each for each in caplog.messages] == ([True] if said else [])


@pytest.mark.parametrize(
    ("subject", "hosts", "allowed", "fault"),
    [
        ("CN=broker", ("127.0.0.1", "localhost", "more"), "", None),
        ("CN=other", ("127.0.0.1", "localhost"), "", "DistinguishedName does not match: existing=CN=broker, new=CN=o"),
        ("CN=other", ("127.0.0.1", "localhost"), "dn", None),
        ("CN=broker", ("127.0.0.1",), "", "SubjectAltNames do not match: the new certificate lacks 1 of 2"),
        ("CN=broker", ("127.0.0.1",), "san", None),
    ],
)
def test_a_certificate_is_replaced_by_one_of_the_same_names(
    subject: str,
    hosts: tuple[str, ...],
    allowed: str,
    fault: str | None,
    authority: Authority,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = authority.store(authority.make("CN=broker"))
    switch = {f"ssl_allow_{allowed}_changes": "true"} if allowed else {}
    given = layers(**authority.settings(ssl_keystore_location=str(store)), **switch)
    tls = load(given)
    before = context(tls)
    assert tls.faults(given) == []
    authority.store(authority.make(subject, *hosts))
    faults = tls.faults(given)
    assert context(tls) is before
    tls.reload(given)
    assert (context(tls) is before) == bool(fault)
    assert [fault in each for each in faults] == ([True] if fault else []) if fault else not faults
    assert (fault or "was loaded again") in "".join(caplog.messages) or not fault


def test_a_failed_reload_keeps_what_runs(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    store = authority.store(authority.make("CN=broker"))
    given = layers(**authority.settings(ssl_keystore_location=str(store)))
    tls = load(given)
    before = context(tls)
    store.write_text("half a file")
    tls.reload(given)
    assert context(tls) is before
    assert "TLS of listener SSL stays as it was: ssl.keystore.location: no store" in caplog.text


def test_a_client_without_a_rule_is_nobody(authority: Authority) -> None:
    tls = load(layers(**authority.settings(ssl_client_auth="required", ssl_principal_mapping_rules="RULE:CN=x/x/")))
    with pytest.raises(ConnectionAbortedError, match=r"no rule of ssl.principal.mapping.rules applies to CN=me"):
        shake(tls, authority, "CN=me")
    assert shake(tls, authority, "CN=x") == "User:x"


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_short_handshake_knows_the_client_until_stores_are_loaded_again(version: str, authority: Authority) -> None:
    given = layers(**authority.settings(ssl_client_auth="required", ssl_enabled_protocols=version))
    tls = load(given)
    own = authority.context(authority.store(authority.make("CN=me"), "client.pem"))
    said, kept = hello(tls, own)
    assert (said, kept.session_reused) == ("User:CN=me", False)
    said, again = hello(tls, own, kept.session)
    assert (said, again.session_reused) == ("User:CN=me", True)
    authority.store(authority.make("CN=broker,O=kbroker"), "broker.pem")
    tls.reload(given)
    said, last = hello(tls, own, kept.session)
    assert (said, last.session_reused) == ("User:CN=me", False)


def shake(tls: Tls, authority: Authority, subject: str) -> str:
    """Who the client of a handshake is."""
    return hello(tls, authority.context(authority.store(authority.make(subject), "client.pem")))[0]


def hello(tls: Tls, own: ssl.SSLContext, known: ssl.SSLSession | None = None) -> tuple[str, ssl.SSLObject]:
    """Who the client is, and its end. own: what it shows; known: from before."""
    ends, made = socket.socketpair(), []
    session = Session("SSL", "127.0.0.1", 1)
    server = tls.accept("SSL", ends[0], session)
    make = partial(own.wrap_bio, server_hostname="127.0.0.1", session=known)
    client = SslTransport(ends[1], make, made.append, memoryview(bytearray(SCRATCH_BYTES)))
    room = memoryview(bytearray(100))
    try:
        for _ in range(5):
            for each in (client, server):
                try:
                    each.recv_into(room)
                except BlockingIOError:
                    continue
    finally:
        client.close()
        server.close()
    return str(session.principal), made[0]


def test_a_listener_of_others_alone_needs_a_certificate_only_where_they_want_one(authority: Authority) -> None:
    trust = {"listener_name_controller_ssl_truststore_location": str(authority.trust), "ssl_truststore_type": "PEM"}
    given = layers(listeners="PLAINTEXT://127.0.0.1:0", ssl_keystore_type="PEM", **trust)
    listeners = resolve_listeners(resolve_broker(given))
    made = Tls(given, listeners, in_cluster=True, dialled=["CONTROLLER"])
    assert made._loaded["CONTROLLER"].own is None
    made.warn_of_ends()
    made.reload(given)
    with_key = layers(
        listeners="PLAINTEXT://127.0.0.1:0",
        ssl_keystore_type="PEM",
        listener_name_controller_ssl_keystore_location=str(authority.broker),
        **trust,
    )
    made.reload(with_key)
    assert made._loaded["CONTROLLER"].own is not None


def test_a_trust_store_for_others_that_cannot_be_read_is_one_line() -> None:
    given = layers(listeners="PLAINTEXT://127.0.0.1:0", ssl_truststore_location="/no/such")
    with pytest.raises(ConfigError) as caught:
        Tls(given, resolve_listeners(resolve_broker(given)), in_cluster=True, dialled=["CONTROLLER"])
    assert caught.value.lines == [
        "ssl.truststore.location: /no/such: No such file or directory; allowed: a file that the broker can read"
    ]
