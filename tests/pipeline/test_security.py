"""Brokers that want to know who comes: TLS and SASL/PLAIN, by the connector's own options; and refusals."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat_tests.apache import NEWEST, KraftBroker, free_port
from kbroker.pipeline import archive, audit, replay
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.security import security_of, wrapped
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

pytestmark = pytest.mark.slow

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
ALICE = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'{LOGIN} username="alice" password="wonder land";'}


class Guarded(NamedTuple):
    """Addresses of one broker's listeners, and who has signed its certificate."""

    plain: str
    sasl: str
    sasl_tls: str
    ca_file: str

    def tls_options(self) -> dict[str, str]:
        store = {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca_file}
        return {"security.protocol": "SASL_SSL", **ALICE, **store}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Apache's broker with a listener of each kind."""
    folder = tmp_path_factory.mktemp("guarded")
    _certificate(folder)
    plain, controller, sasl, tls = (free_port() for _ in range(4))
    users = f'{LOGIN} user_alice="wonder land";'
    settings = {
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port}"
            for name, port in (("PLAINTEXT", plain), ("CONTROLLER", controller), ("SASL", sasl), ("TLS", tls))
        ),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},TLS://127.0.0.1:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": users,
        "listener.name.tls.plain.sasl.jaas.config": users,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
    }
    with KraftBroker(NEWEST, folder / "broker", settings=settings, port=plain):
        yield Guarded(f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}", f"127.0.0.1:{tls}", str(folder / "ca.pem"))


def _certificate(folder: Path) -> None:
    """A certificate of 127.0.0.1 that has signed itself: ca.pem; with its key: broker.pem."""
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(folder / "key.pem"),
        "-out",
        str(folder / "ca.pem"),
    ]
    subprocess.run(made, check=True, capture_output=True)
    (folder / "broker.pem").write_text((folder / "key.pem").read_text() + (folder / "ca.pem").read_text())


def test_jobs_log_in_over_tls(spark: Any, guarded: Guarded, tmp_path: Path) -> None:
    inside = Source(guarded.sasl_tls, guarded.tls_options())
    with Cluster(Source(guarded.plain).settings) as cluster:
        fill(cluster, "secret", [records(200)])
    archive.archive(spark, inside, ["secret"], str(tmp_path / "archive"), until_now=True)
    replay.replay(spark, inside, str(tmp_path / "archive"), topics={"secret": "copy"})
    found = audit.audit(spark, inside, Source(guarded.plain), {"secret": "copy"})
    assert (found["equal"], found["records_right"]) == (True, 200)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({**ALICE, "sasl.jaas.config": f'{LOGIN} username="alice" password="x";'}, "does not let 'alice' in"),
        ({}, "hung up: it may want another security.protocol"),
    ],
)
def test_who_is_not_let_in_is_told_in_a_line(guarded: Guarded, options: dict[str, str], line: str) -> None:
    protocol = {"security.protocol": "SASL_PLAINTEXT"} if options else {}
    with pytest.raises(Exception) as caught, Cluster(Source(guarded.sasl, {**protocol, **options}).settings) as cluster:  # noqa: PT011
        cluster.topics()
    assert line in explain(caught.value)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"security.protocol": "SASL_PLAINTEXT"}, "security.protocol=SASL_PLAINTEXT wants sasl.mechanism: PLAIN, "),
        ({"security.protocol": "TLS"}, "allowed: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({**ALICE, "security.protocol": "SASL_SSL", "sasl.jaas.config": "alice"}, "no login module as Java writes it"),
    ],
)
def test_what_jobs_cannot_speak_is_refused_before_anything_is_sent(options: dict[str, str], line: str) -> None:
    with pytest.raises(PipelineError) as caught:
        security_of(options)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    ("written", "password"),
    [('"it\'s"', "it's"), ("'say \"x\"'", 'say "x"'), (r'"a\"b\\c"', 'a"b\\c'), (r'"a\tb\101"', "a\tbA"), ('""', "")],
)
def test_a_password_is_what_java_takes_it_for(written: str, password: str) -> None:
    jaas = {"sasl.jaas.config": f'{LOGIN} username="alice" password={written};'}
    login = security_of({**ALICE, "security.protocol": "SASL_SSL", **jaas}).login
    assert login is not None
    assert (login.user, login.password) == ("alice", password)


def test_a_certificate_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with socket.socket() as plain, pytest.raises(PipelineError, match=r"ca\.pem: no store; allowed: a file of JKS"):
        wrapped(security_of({"security.protocol": "SSL", "ssl.ca.location": f"{tmp_path}/ca.pem"}), plain, "127.0.0.1")
