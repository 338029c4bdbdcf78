"""docs/security.md does what it says: its commands are run as they are printed, beside a secured broker."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from kbroker.properties import parse_properties
from kbroker.security.client import NAMES, first_name
from tests.processes import BrokerProcess

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text()
BLOCKS = re.findall(r"((?:^    .+\n)+)", PAGE, re.MULTILINE)


def block(beginning: str) -> str:
    """The one with this at its beginning."""
    (found,) = (each for each in BLOCKS if each.strip().startswith(beginning))
    return re.sub(r"^    ", "", found, flags=re.MULTILINE)


@pytest.mark.slow
def test_users_and_rules_are_made_as_printed(tmp_path: Path) -> None:
    start = block("pip install '.[security,cli]'").splitlines()[1].split()
    assert start[:2] == ["kbroker", "start"]
    command = [sys.executable, "-m", "kbroker", *start[1:], "--port", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        assert broker.stdout is not None
        while "kbroker consume" not in broker.stdout.readline():
            pass
        file = tmp_path / "data" / "secure-admin.properties"
        told = parse_properties(file.read_text())
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        script = block("kbroker topics --command-config") + block("echo wonderland")
        done = subprocess.run(
            ["bash", "-euc", script], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "alice" in done.stdout
        alice = {
            "bootstrap_servers": told["bootstrap.servers"],
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "wonderland",
            "ssl_cafile": told["ssl.truststore.location"],
        }
        producer = KafkaProducer(**alice, max_block_ms=10_000)
        assert producer.send("orders", b"x").get(10).offset == 0
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("others", b"x").get(10)
        producer.close()
        consumer = KafkaConsumer(
            "orders", **alice, group_id="billing", auto_offset_reset="earliest", consumer_timeout_ms=10_000
        )
        assert next(consumer).value == b"x"
        consumer.close()
        broker.send_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_certificate_is_made_for_the_name_that_is_told(tmp_path: Path) -> None:
    words = block("kbroker start --secure --data ./data --override").replace("\\\n", " ").split()
    assert words[2] == "--secure"
    overrides = dict(each.split("=", 1) for each in words if "=" in each)
    broker = BrokerProcess(
        tmp_path,
        arguments=("--secure", "--data", str(tmp_path / "data")),
        listeners="SASL_SSL://127.0.0.1:0",
        advertised_listeners=overrides["advertised.listeners"],
    )
    broker.await_start()
    broker.process.send_signal(signal.SIGTERM)
    broker.process.communicate(timeout=60)
    command = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(tmp_path / "data/secure-broker.pem")]
    assert "DNS:broker.example" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_names_in_the_table_are_known() -> None:
    (table,) = re.findall(r"\| what \| Java \| kafka-python.*?\n\n", PAGE + "\n", re.DOTALL)
    names = [each.partition("=")[0] for each in re.findall(r"`([\w.=]+)`", table) if not each.startswith(".")]
    assert len(names) > 20
    assert [name for name in names if first_name(name) not in NAMES] == []
