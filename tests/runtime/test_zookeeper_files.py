"""The files that a connection to an ensemble is secured with: what cannot be used is named before anybody is asked."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from kbroker.config import BrokerLayers, Given
from kbroker.config.resolve import resolve_broker
from kbroker.runtime.zookeeper_security import Security, security_of

TLS = {"zookeeper.ssl.client.enable": "true"}
LOGIN = {"kbroker.zookeeper.sasl.jaas.config": 'DigestLoginModule required username="k" password="p";'}


def made(**settings: str) -> Security:
    static = {key: Given(text, "here") for key, text in settings.items()}
    return security_of(resolve_broker(BrokerLayers(static)))


def test_without_settings_everything_is_open() -> None:
    assert made() == Security(None, None, False)
    assert made().rights("/config/users") is None


def test_files_count_for_nothing_without_tls() -> None:
    assert made(**{"zookeeper.ssl.keystore.location": "/nowhere"}).tls is None


@pytest.mark.parametrize("key", ["zookeeper.ssl.keystore.location", "zookeeper.ssl.truststore.location"])
def test_a_file_that_cannot_be_used_is_named(key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{key}={tmp_path}/a.pem: No such file or directory"):
        made(**TLS, **{key: f"{tmp_path}/a.pem"})
    (tmp_path / "a.pem").write_bytes(b"\xfe\xed\xfe\xed a store of Java's")
    with pytest.raises(ValueError, match=f"{key}={tmp_path}/a.pem: no PEM file with "):
        made(**TLS, **{key: f"{tmp_path}/a.pem"})


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        ({}, "TLSv1_2", "TLSv1_2"),
        ({"zookeeper.ssl.protocol": "TLSv1.3"}, "TLSv1_3", "TLSv1_3"),
        ({"zookeeper.ssl.enabled.protocols": "TLSv1.3,TLSv1.2"}, "TLSv1_2", "TLSv1_3"),
    ],
)
def test_versions_of_tls(settings: dict[str, str], least: str, most: str) -> None:
    tls = made(**TLS, **settings).tls
    assert tls is not None
    assert (tls.minimum_version, tls.maximum_version) == (ssl.TLSVersion[least], ssl.TLSVersion[most])
    assert tls.verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(("text", "checks"), [("HTTPS", True), ("", False)])
def test_whether_a_certificate_must_be_of_the_host(text: str, checks: bool) -> None:
    tls = made(**TLS, **{"zookeeper.ssl.endpoint.identification.algorithm": text}).tls
    assert tls is not None
    assert tls.check_hostname is checks


def test_a_login_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.runtime.zookeeper_security.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"needs pure-sasl: type pip install 'kbroker\[zookeeper-login\]'"):
        made(**LOGIN)


@pytest.mark.parametrize(
    ("path", "readers"),
    [("/brokers/ids/1", 2), ("/config/users/a", 1), ("/config/brokers", 1), ("/config/topics/t", 2)],
)
def test_secrets_are_not_read_by_everybody(path: str, readers: int) -> None:
    assert len(Security(secures=True).rights(path) or ()) == readers


def test_the_place_of_old_consumers_is_open() -> None:
    assert Security(secures=True).rights("/consumers") is None
    assert Security(secures=True).rights("/consumers/g") is not None
