"""`kbroker dev-cluster`: processes that are a cluster, lose one of them, and end together."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError

from kbroker.cli.dev_cluster import DevCluster
from kbroker.config.jaas import read_module
from kbroker.properties import parse_properties
from kbroker.runtime import secure
from kbroker.security.recipes import Recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE_S = 120.0
Begin = Callable[..., "Running"]


class Running:
    """A command that told where its brokers are."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "kbroker", "dev-cluster", *words, "--port", "0", "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.said: dict[str, Any] = json.loads(line)
        self.bootstrap: list[str] = self.said["bootstrap"].split(",")
        self.pids: list[int] = [each["pid"] for each in self.said["brokers"]]

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Returns: exit code, and what it complained of."""
        self.process.send_signal(number)
        complaints = self.process.communicate(timeout=PATIENCE_S)[1]
        return self.process.returncode, complaints


@pytest.fixture
def begin() -> Iterator[Begin]:
    running: list[Running] = []

    def begun(*words: str) -> Running:
        running.append(Running(*words))
        return running[-1]

    yield begun
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate(timeout=PATIENCE_S)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_cluster_goes_on_without_a_broker_and_ends_as_a_whole(begin: Begin) -> None:
    cluster = begin("3", "--override", "zookeeper.session.timeout.ms=2000")
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True)
    sent = [b"%d" % number for number in range(60)]
    for value in sent[:30]:
        producer.send("orders", value).get(PATIENCE_S)
    os.kill(cluster.pids[0], signal.SIGKILL)
    for value in sent[30:]:
        producer.send("orders", value).get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer("orders", bootstrap_servers=cluster.bootstrap[1:], auto_offset_reset="earliest")
    read = [next(consumer).value for _ in sent]
    consumer.close()
    code, complaints = cluster.end(signal.SIGINT)
    assert sorted(read, key=int) == sent
    assert "broker 1 has ended (killed by SIGKILL); it starts again by: kbroker start " in complaints
    assert code == 0
    assert not any(map(is_alive, cluster.pids))
    assert not Path(cluster.said["data"]).exists()


def test_a_cluster_goes_on_with_brokers_that_were_started_again(begin: Begin) -> None:
    cluster = begin("2", "--override", "zookeeper.session.timeout.ms=2000")
    assert cluster.process.stderr is not None
    os.kill(cluster.pids[0], signal.SIGKILL)
    advice = cluster.process.stderr.readline()
    command = [sys.executable, "-m", "kbroker", "start", advice.rpartition(" ")[2].strip()]
    again = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert again.stdout is not None
        assert " is ready after " in again.stdout.readline()
        os.kill(cluster.pids[1], signal.SIGKILL)
        while not (line := cluster.process.stderr.readline()).startswith("broker 2 has ended"):
            assert line.startswith("broker 1 was not heard of for 2000 ms")
        code, complaints = cluster.end(signal.SIGINT)
        assert code == 0
        assert "broker 1 was started again by hand, and loses its metadata now: end it, too" in complaints
    finally:
        again.kill()
        again.communicate()


def test_a_cluster_of_which_no_broker_is_left_ends(begin: Begin) -> None:
    cluster = begin("1")
    os.kill(cluster.pids[0], signal.SIGKILL)
    code, complaints = cluster.process.wait(PATIENCE_S), cluster.process.communicate()[1]
    assert code == 1
    assert complaints.splitlines()[-2:] == ["broker 1 has ended (killed by SIGKILL)", "kbroker: no broker is left"]


def test_data_that_is_kept_is_there_at_the_next_start(begin: Begin, tmp_path: Path) -> None:
    for number, signal_number in enumerate((signal.SIGTERM, signal.SIGHUP)):
        cluster = begin("2", "--data", str(tmp_path))
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
        assert producer.send("orders", b"x").get(PATIENCE_S).offset == number
        producer.close()
        assert cluster.end(signal_number) == (0, "")


def test_features_are_on_from_the_start_and_stay_as_they_were_set(begin: Begin, tmp_path: Path) -> None:
    cluster = begin("1", "--data", str(tmp_path))
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    told = [admin.describe_features()["transaction.version"]["finalized"][1]]
    assert admin.update_features({"transaction.version": ("SAFE_DOWNGRADE", 1)}) == {"transaction.version": "OK"}
    admin.close()
    cluster.end(signal.SIGTERM)
    admin = KafkaAdminClient(bootstrap_servers=begin("1", "--data", str(tmp_path)).bootstrap)
    told.append(admin.describe_features()["transaction.version"]["finalized"][1])
    admin.close()
    assert told == [2, 1]


def test_brokers_end_with_a_command_that_was_killed(begin: Begin) -> None:
    cluster = begin("2")
    processes = [os.pidfd_open(pid) for pid in cluster.pids]
    cluster.process.kill()
    for each in processes:
        assert select.select([each], [], [], PATIENCE_S)[0]
        os.close(each)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["0"], "'N': 0 is not in the range 1<=x<=50"),
        (["3", "--port", "65534"], "--port 65534: allowed with 3 brokers: up to 65533"),
        (["1", "--override", "x"], "--override x: write it as KEY=VALUE"),
        (["1", "--override", "num.partition=3"], "did you mean num.partitions?"),
        (["2", "--override", "broker.id=7"], "--override broker.id=7: it is chosen here for each broker"),
        (["2", "--override", "node.id=7"], "--override node.id=7: it is chosen here for each broker"),
        (["2", "--override", "advertised.listeners=PLAINTEXT://x:1"], "it is chosen here for each broker"),
        (["2", "--data", "a,b"], "a,b: allowed: a path without commas, which part directories in log.dirs"),
        (["1", "--port", "0", "--data", "/proc/c"], "kbroker: /proc/c: No such file or directory\n"),
        (["1", "--port", "0", "--override", "num.partitions=many"], "kbroker: broker 1 cannot start: "),
    ],
)
def test_a_mistake_is_one_line(words: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kbroker", "dev-cluster", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode in (1, 2)
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "name",
    [
        "KAFKA_ADVERTISED_LISTENERS",
        "KAFKA_BROKER_ID",
        "KAFKA_LISTENERS",
        "KAFKA_LOG_DIRS",
        "KAFKA_NODE_ID",
        "KAFKA_ZOOKEEPER_CONNECT",
    ],
)
def test_a_variable_that_would_take_brokers_elsewhere_is_refused(name: str) -> None:
    command = [sys.executable, "-m", "kbroker", "dev-cluster", "1", "--port", "0"]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, name: "127.0.0.1:1"}
    )
    assert ended.returncode == 2
    assert f"environment variable {name}: " in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--port", "--metadata-port"])
def test_a_port_that_is_taken_is_named_before_anything_is_made(option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "kbroker", "dev-cluster", "1", "--port", "0", option, str(port)]
        command += ["--data", str(tmp_path / "data")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"kbroker: port {port}: Address already in use; {option} N names another\n",
    )
    assert not (tmp_path / "data").exists()


def test_a_secured_cluster_speaks_and_is_spoken_to_by_login_alone(begin: Begin, tmp_path: Path) -> None:
    running = begin("2", "--secure", "--data", str(tmp_path))
    settings = parse_properties(Path(running.said["client_properties"]).read_text())
    password = read_module(settings["sasl.jaas.config"]).options["password"]
    told = Recipe(
        settings["bootstrap.servers"], "SASL_SSL", settings["ssl.truststore.location"], user="admin", password=password
    ).kafka_python()
    admin = KafkaAdminClient(**told)
    admin.create_topics([NewTopic("orders", 2, 2)])
    admin.close()
    producer = KafkaProducer(**told, acks="all")
    assert [producer.send("orders", b"x", partition=each).get(30).offset for each in (0, 1)] == [0, 0]
    producer.close()
    with pytest.raises(KafkaError):
        KafkaProducer(bootstrap_servers=running.bootstrap, bootstrap_timeout_ms=1500)
    assert running.end(signal.SIGTERM)[0] == 0
    logs = "".join(each.read_text() for each in tmp_path.glob("*.log"))
    assert "registered" in logs
    assert password not in logs


def test_certificates_of_a_secured_cluster_are_renewed_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    cluster = DevCluster(1, tmp_path, port=0, metadata_port=0, overrides={}, say=said.append, is_secure=True)
    try:
        assert cluster.await_start(), cluster.fault
        address = "127.0.0.1", cluster.brokers[0].port
        first = ssl.get_server_certificate(address)
        cluster.look_at_certificates()
        assert said == []
        monkeypatch.setattr(secure, "RENEWED_AT", 2)
        cluster.look_at_certificates()
        assert said == ["near its end, and made again: a certificate of broker"]
        until = time.monotonic() + PATIENCE_S
        while ssl.get_server_certificate(address) == first:
            assert time.monotonic() < until, cluster.brokers[0].last_words()
        (tmp_path / "secure-authority.key").unlink()
        cluster.look_at_certificates()
        assert "cannot be made again" in said[-1]
    finally:
        cluster.stop()
    assert cluster.brokers[0].code == 0
