"""A password that is set at run time outlives the broker, of either kind: the next one of its id reads it in ZooKeeper.

Apache's broker is given another key store by kafka-configs; kbroker takes its place, and shows the same certificate; it
is given a third one; Apache's broker comes back, and shows that. Both have the same password.encoder.secret.
"""

from __future__ import annotations

import socket
import ssl
from functools import partial
from pathlib import Path

import pytest

from compat_tests import waiting
from compat_tests.apache import Server, ZooKeeper, ZooKeeperBroker, free_port, run_tool
from compat_tests.brokers import KbrokerProcess
from tests.certificates import Authority, Made

SECTION = "14 Passwords that are set at run time"
RELEASE = "3.9.1"
eventually = partial(waiting.eventually, within_s=60)
pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]
PREFIX = "listener.name.ssl.ssl.keystore."


def serial(port: int, authority: Authority) -> int:
    """Of the certificate that a broker shows."""
    raw = socket.create_connection(("127.0.0.1", port), 10)
    with authority.context().wrap_socket(raw, server_hostname="127.0.0.1") as sock:
        return int((sock.getpeercert() or {})["serialNumber"], 16)  # type: ignore[arg-type]


def shows(port: int, authority: Authority, made: Made) -> bool:
    try:
        return serial(port, authority) == made.certificate.serial_number
    except (OSError, ssl.SSLError):
        return False


def alter(broker: Server, path: Path, password: str) -> None:
    """By kafka-configs."""
    change = f"{PREFIX}location={path},{PREFIX}password={password}"
    entity = ("--entity-type", "brokers", "--entity-name", "1", "--alter", "--add-config", change)
    done = run_tool(RELEASE, "kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, *entity)
    assert done.returncode == 0, done.stdout + done.stderr


def test_either_kind_reads_what_the_other_has_written(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    stores = []
    for number in range(3):
        made, path = authority.make("CN=broker"), tmp_path / f"{number}.p12"
        path.write_bytes(made.pkcs12(f"password {number}"))
        stores.append((made, path, f"password {number}"))
    plain, port = free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{port}",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(stores[0][1]),
        "ssl.keystore.password": stores[0][2],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust),
        "password.encoder.secret": "of, 'this' cluster",
        "zookeeper.session.timeout.ms": "6000",
    }
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        place = {"broker.id": "1", "zookeeper.connect": zookeeper.address}
        apache = ZooKeeperBroker(tmp_path / "apache", zookeeper=zookeeper.address, settings=settings, port=plain)
        with apache:
            assert shows(port, authority, stores[0][0])
            alter(apache, *stores[1][1:])
            eventually(lambda: shows(port, authority, stores[1][0]))
        ours = KbrokerProcess(tmp_path / "ours", settings={**settings, **place}, port=plain)
        with ours:
            eventually(lambda: shows(port, authority, stores[1][0]))
            alter(ours, *stores[2][1:])
            eventually(lambda: shows(port, authority, stores[2][0]))
            assert "password 2" not in ours.output
        with apache:
            eventually(lambda: shows(port, authority, stores[2][0]))
