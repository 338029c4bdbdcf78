"""Listeners of TLS on running brokers: who gets in, as whom, and what happens when certificates are replaced."""

from __future__ import annotations

import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kbroker.runtime.kernel_ssl_transport import kernel_fault
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tests.certificates import Authority
from tests.processes import BrokerProcess
from tests.runtime.metadata_servers import RunningServer

HOST = "127.0.0.1"
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that asks for a certificate and demands none."""
    settings = authority.settings(ssl_client_auth="requested")
    with BrokerProcess(tmp_path_factory.mktemp("broker"), **settings) as made:
        yield made


def shaken(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    sock = socket.create_connection((HOST, port), PATIENCE_S)
    return context.wrap_socket(sock, server_hostname=HOST, session=session)


def api_versions(connection: socket.socket) -> bytes:
    """The first bytes of an answer."""
    connection.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
    return connection.recv(8)


def is_refused(port: int, context: ssl.SSLContext) -> bool:
    """Whether a client gets no answer. By TLS 1.3 it knows only once it asks."""
    try:
        with shaken(port, context) as connection:
            return not api_versions(connection)
    except (ssl.SSLError, ConnectionError):
        return True


def wait_for(said: str, broker: BrokerProcess) -> None:
    """Until it is in the log, which is written behind what a client sees."""
    until = time.monotonic() + PATIENCE_S
    while said not in broker.log:
        assert time.monotonic() < until, broker.log


def serial_of(port: int, context: ssl.SSLContext) -> str:
    with shaken(port, context) as connection:
        return str((connection.getpeercert() or {})["serialNumber"])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(version: ssl.TLSVersion, broker: BrokerProcess, authority: Authority) -> None:
    context = authority.context(minimum_version=version, maximum_version=version)
    with shaken(broker.port, context) as connection:
        assert api_versions(connection)[4:] == b"\0\0\0\7"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_second_handshake_is_short(version: ssl.TLSVersion, broker: BrokerProcess, authority: Authority) -> None:
    context = authority.context(minimum_version=version, maximum_version=version)
    with shaken(broker.port, context) as connection:
        api_versions(connection)
        session = connection.session
    with shaken(broker.port, context, session) as connection:
        api_versions(connection)
        assert connection.session_reused


def test_half_finished_handshakes_hold_up_no_client(authority: Authority, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, limits={"HANDSHAKE_MS": 3000}, **authority.settings()) as broker:
        hold_up(broker, authority)


def hold_up(broker: BrokerProcess, authority: Authority) -> None:
    hello, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        authority.context().wrap_bio(hello, out, server_hostname=HOST).do_handshake()
    begun = out.read()
    silent = [socket.create_connection((HOST, broker.port), PATIENCE_S) for _ in range(500)]
    try:
        for number, each in enumerate(silent):
            each.sendall(begun[: number % len(begun)])
        with shaken(broker.port, authority.context()) as connection:
            assert api_versions(connection)
        for each in silent:
            each.settimeout(PATIENCE_S)
            while each.recv(1 << 16):
                pass
    finally:
        for each in silent:
            each.close()
    wait_for("no TLS handshake within 3000 ms", broker)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", "it speaks HTTP, no TLS"),
        (bytes.fromhex("0000000a00120000 00000007 ffff"), "it speaks no TLS: its security.protocol may be PLAINTEXT"),
    ],
)
def test_plain_text_is_refused_by_name(sent: bytes, why: str, broker: BrokerProcess) -> None:
    with socket.create_connection((HOST, broker.port), PATIENCE_S) as connection:
        connection.sendall(sent)
        connection.settimeout(PATIENCE_S)
        while connection.recv(1 << 16):
            pass
    wait_for(why, broker)


def test_strangers_certificates_are_refused(broker: BrokerProcess, authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    assert is_refused(broker.port, authority.context(other.store(other.make("CN=stranger"))))
    wait_for("its certificate is not taken: ", broker)


def test_a_certificate_is_demanded(authority: Authority, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **authority.settings(ssl_client_auth="required")) as broker:
        assert not is_refused(broker.port, authority.context(authority.store(authority.make("CN=me"))))
        assert is_refused(broker.port, authority.context())
        wait_for("it shows no certificate, and ssl.client.auth=required", broker)


def test_failed_handshakes_are_counted_by_reason(authority: Authority, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as free:
        metrics = free.getsockname()[1]
    settings = authority.settings(ssl_client_auth="required", ssl_enabled_protocols="TLSv1.3")
    with BrokerProcess(tmp_path, kbroker_metrics_listener=f"{HOST}:{metrics}", **settings) as broker:
        assert is_refused(broker.port, authority.context())
        assert is_refused(broker.port, authority.context(maximum_version=ssl.TLSVersion.TLSv1_2))
        assert is_refused(broker.port, Authority(tmp_path / "other").context())
        with socket.create_connection((HOST, broker.port), PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            connection.settimeout(PATIENCE_S)
            while connection.recv(1 << 16):
                pass
        socket.create_connection((HOST, broker.port), PATIENCE_S).close()

        def counted() -> dict[str, int]:
            page = urlopen(f"http://{HOST}:{metrics}/metrics", timeout=PATIENCE_S).read().decode()
            name = r'kbroker_handshakes_failed_total\{listener="SSL",reason="(\w+)"\} (\d+)'
            return {reason: int(count) for reason, count in re.findall(name, page)}

        until = time.monotonic() + PATIENCE_S
        while counted() != {"certificate": 1, "version": 1, "peer": 1, "no_tls": 1, "closed": 1}:
            assert time.monotonic() < until, (counted(), broker.log)


def test_sighup_loads_a_certificate_again_for_connections_to_come(authority: Authority, tmp_path: Path) -> None:
    store = authority.store(authority.make("CN=broker"), "hup.pem")
    settings = authority.settings(ssl_keystore_location=str(store))
    context = authority.context()
    with BrokerProcess(tmp_path, **settings) as broker:
        first = serial_of(broker.port, context)
        with shaken(broker.port, context) as before:
            authority.store(authority.make("CN=broker"), "hup.pem")
            broker.process.send_signal(signal.SIGHUP)
            until = time.monotonic() + PATIENCE_S
            while serial_of(broker.port, context) == first:
                assert time.monotonic() < until, broker.log
            assert api_versions(before)
        authority.store(authority.make("CN=other"), "hup.pem")
        broker.process.send_signal(signal.SIGHUP)
        wait_for("TLS of listener SSL stays as it was", broker)
        assert "Keystore DistinguishedName does not match: existing=CN=broker, new=CN=other" in broker.log
        assert serial_of(broker.port, context) != first


def test_a_request_loads_a_certificate_again(authority: Authority, tmp_path: Path) -> None:
    """As kafka-configs does: the path is set to what it is. What cannot be used is refused, and not kept."""
    store = authority.store(authority.make("CN=broker"), "altered.pem")
    key = "listener.name.ssl.ssl.keystore.location"
    context = authority.context()
    with BrokerProcess(tmp_path, **authority.settings(ssl_keystore_location=str(store))) as broker:

        def alter(path: Path) -> int:
            setting = IncrementalAlterableConfig(name=key, config_operation=0, value=str(path))
            resource = IncrementalAlterConfigsResource(resource_type=4, resource_name="1", configs=[setting])
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
            body = request.encode(0)
            frame = encode_request_header(type(request), 0, 7, None) + body
            with shaken(broker.port, context) as connection, connection.makefile("rb") as file:
                connection.sendall(len(frame).to_bytes(4, "big") + frame)
                answer = file.read(int.from_bytes(file.read(4), "big"))
            return IncrementalAlterConfigsResponse.decode(answer, 0, 4).responses[0].error_code

        serials = [serial_of(broker.port, context)]
        for _ in range(2):
            authority.store(authority.make("CN=broker"), "altered.pem")
            assert alter(store) == 0
            serials.append(serial_of(broker.port, context))
        assert len(set(serials)) == 3
        assert alter(tmp_path / "none") == ErrorCode.INVALID_CONFIG
        assert alter(authority.store(authority.make("CN=other"), "other.pem")) == ErrorCode.INVALID_CONFIG
        assert serial_of(broker.port, context) == serials[-1]


def test_a_login_goes_within_tls(authority: Authority, tmp_path: Path) -> None:
    """A listener of SASL_SSL demands no certificate, whatever ssl.client.auth of all listeners says (KIP-684)."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = authority.settings(
        listeners="SASL_SSL://127.0.0.1:0",
        security_inter_broker_protocol="SASL_SSL",
        ssl_client_auth="required",
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
    )
    login = f'listener.name.sasl_ssl.plain.sasl.jaas.config={module} required user_alice="sesame-1";'
    with BrokerProcess(tmp_path, arguments=("--override", login), **settings) as broker:
        client = {
            "bootstrap_servers": f"{HOST}:{broker.port}",
            "security_protocol": "SASL_SSL",
            "ssl_context": authority.context(),
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "sesame-1",
        }
        with closing(KafkaProducer(**client)) as producer:
            assert producer.send("t", b"x").get(PATIENCE_S).offset == 0
        assert "sesame-1" not in broker.log


def test_the_banner_says_what_enciphers(authority: Authority, tmp_path: Path) -> None:
    settings = authority.settings(kbroker_tls_kernel="true")
    with BrokerProcess(tmp_path, **settings) as broker:
        assert not is_refused(broker.port, authority.context())
    (said,) = [each for each in broker.says + broker.rest.splitlines() if "TLS by" in each]
    assert "OpenSSL" in said
    assert said.endswith("and the kernel") == (not kernel_fault())
    assert ("kbroker.tls.kernel=true: has no effect" in broker.log) == bool(kernel_fault())


def test_three_brokers_speak_tls_to_each_other(authority: Authority, tmp_path: Path) -> None:
    """Controller, followers and coordinators: each asks the others over listeners that demand a certificate."""
    settings = authority.settings(
        ssl_client_auth="required",
        offsets_topic_replication_factor="3",
        offsets_topic_num_partitions="3",
        default_replication_factor="3",
        min_insync_replicas="3",
        num_partitions="3",
    )
    (tmp_path / "metadata").mkdir()
    with ExitStack() as stack:
        ensemble = stack.enter_context(RunningServer(tmp_path / "metadata"))
        brokers = []
        for number in (1, 2, 3):
            (tmp_path / str(number)).mkdir()
            given = {**settings, "broker_id": str(number), "zookeeper_connect": ensemble.address}
            brokers.append(stack.enter_context(BrokerProcess(tmp_path / str(number), **given)))
        own = authority.store(authority.make("CN=client"), "client.pem")
        client = {
            "bootstrap_servers": f"{HOST}:{brokers[2].port}",
            "security_protocol": "SSL",
            "ssl_context": authority.context(own),
        }
        with closing(KafkaProducer(acks="all", request_timeout_ms=40_000, **client)) as producer:
            sent = [producer.send("t", b"x" * 1000) for _ in range(100)]
            offsets = [each.get(PATIENCE_S * 2) for each in sent]
        assert len(offsets) == 100
        consumer = KafkaConsumer("t", group_id="g", auto_offset_reset="earliest", **client)
        with closing(consumer):
            assert len(list(islice(consumer, 100))) == 100
        assert not any("does not speak to others" in each.log for each in brokers)
