"""`kbroker start --secure`: what it prints works in clients as it is; what it must not print is not there."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError

from kbroker.cli import run
from kbroker.properties import parse_properties
from tests.cli.asking import Captured

pytestmark = pytest.mark.slow

TITLES = {"Java": "java", "librdkafka": "librdkafka", "kafka-python": "python", "Spark": "spark", "try": "try"}


class Started:
    """A secured broker. said: all that it has printed. parts: the lines to paste, by whom they are for."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "kbroker", "start", "--secure", "--port", "0", *words]
        self.folder = folder
        self.errors = folder / "errors"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.said: list[str] = []
        self.parts: dict[str, list[str]] = {}
        timer = threading.Timer(60, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        part: list[str] = []
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if line.startswith("    "):
                part.append(line.strip())
            else:
                part = self.parts.setdefault(TITLES.get(re.split("[ ,:(]", line.strip())[0], "other"), [])
            if line.startswith(("    kbroker consume", "{")):
                break
        timer.cancel()

    def end(self) -> str:
        """Returns: all that it has said."""
        self.process.send_signal(signal.SIGTERM)
        rest = self.process.communicate(timeout=60)[0]
        return "\n".join([*self.said, rest, self.errors.read_text()])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    running = Started(tmp_path_factory.mktemp("secure"), "--log-level", "debug")
    yield running
    if running.process.poll() is None:
        running.end()


def admin_file(started: Started) -> Path:
    return started.folder / "data" / "secure-admin.properties"


def test_the_lines_for_java_are_those_of_the_file(started: Started) -> None:
    pasted = parse_properties("\n".join(started.parts["java"]))
    assert pasted == parse_properties(admin_file(started).read_text())
    assert stat.S_IMODE(os.stat(admin_file(started)).st_mode) == 0o600


def test_the_lines_for_kafka_python_work_as_they_are(started: Started) -> None:
    names: dict[str, Any] = {"KafkaProducer": KafkaProducer}
    producer = eval(f"KafkaProducer({' '.join(started.parts['python'])})", names)
    assert producer.send("pasted", b"x").get(10).offset >= 0
    producer.close()


def test_the_lines_for_librdkafka_work_as_they_are(started: Started) -> None:
    producer = Producer(dict(line.split("=", 1) for line in started.parts["librdkafka"]))
    errors: list[object] = []
    producer.produce("pasted", b"x", on_delivery=lambda error, message: errors.append(error))
    assert producer.flush(20) == 0
    assert errors == [None]


def test_the_file_serves_all_commands(started: Started, capsys: Captured) -> None:
    words = ["--command-config", str(admin_file(started))]
    assert run(["topics", *words, "--create", "--topic", "made"]) == 0
    assert run(["topics", *words, "--list"]) == 0
    assert "made" in capsys.readouterr().out.split()
    assert run(["users", *words, "--list"]) == 0
    assert "admin" in capsys.readouterr().out


def test_a_wrong_password_is_one_line(started: Started, capsys: Captured) -> None:
    wrong = 'sasl.jaas.config=ScramLoginModule required username="admin" password="sesame";'
    words = ["--command-config", str(admin_file(started)), "-X", wrong]
    for command in (["topics", "--list"], ["produce", "-t", "pasted"], ["consume", "-t", "pasted", "-e"]):
        assert run([*command, *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith("kbroker: SASL_AUTHENTICATION_FAILED: ")
        assert said.count("\n") == 1
        assert "sesame" not in said


def test_an_authority_that_is_not_trusted_is_one_line(started: Started, capsys: Captured) -> None:
    words = ["--command-config", str(admin_file(started)), "-X", "bootstrap.timeout.ms=1500"]
    words += ["-X", "ssl.truststore.location=/etc/ssl/certs/no-such.pem"]
    assert run(["topics", "--list", *words]) == 2
    line = "kbroker: ssl.truststore.location=/etc/ssl/certs/no-such.pem: No such file or directory\n"
    assert capsys.readouterr().err == line


def test_a_client_without_a_login_gets_nothing(started: Started) -> None:
    (address,) = (each.partition("=")[2] for each in started.parts["librdkafka"] if each.startswith("bootstrap"))
    with pytest.raises(KafkaError):
        KafkaProducer(bootstrap_servers=address, bootstrap_timeout_ms=1500)


def test_a_start_again_keeps_the_password_and_does_not_say_it(tmp_path: Path) -> None:
    first = Started(tmp_path)
    password = parse_properties("\n".join(first.parts["librdkafka"]))["sasl.password"]
    first.end()
    again = Started(tmp_path, "--log-level", "debug")
    settings = parse_properties(admin_file(again).read_text())
    producer = KafkaProducer(
        bootstrap_servers=settings["bootstrap.servers"],
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="admin",
        sasl_plain_password=password,
        ssl_cafile=settings["ssl.truststore.location"],
    )
    assert producer.send("again", b"x").get(10).offset == 0
    producer.close()
    said = again.end()
    assert password not in said
    assert "(in " in said


def test_a_machine_is_told_where_the_client_settings_are(tmp_path: Path) -> None:
    started = Started(tmp_path, "--log-format", "json")
    path = json.loads(started.said[-1])["client_properties"]
    password = parse_properties(Path(path).read_text())["sasl.jaas.config"].split('"')[-2]
    assert len(password) > 20
    assert password not in started.end()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["server.properties"], "--secure writes its own settings: leave PROPERTIES out"),
        (
            ["--override", "listeners=PLAINTEXT://:1"],
            "--override: listeners=PLAINTEXT://:1: allowed with --secure: SASL_SSL://HOST:PORT",
        ),
        (["--override", "zookeeper.connect=x:1"], "--secure is for a broker that is alone"),
    ],
)
def test_what_does_not_go_with_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, words: list[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server.properties").write_text("")
    assert run(["start", "--secure", *words]) in (1, 2)
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "server.properties"]
