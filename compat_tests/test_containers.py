"""The image in a container: started by Testcontainers' modules, unchanged, and by environments of other images' pages.

`--image NAME` is the image, made by `docker build -t NAME .`; without it, and without an engine (DOCKER_HOST says
where, else Docker's own socket), all of this is skipped, visibly. Nothing is pulled: Testcontainers' own helper, Ryuk,
is switched off, and what is started is ended here. A module decides by the tag what an image can do, so that it gets
one of Confluent's numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from compat_tests import environments
from compat_tests.environments import unavailable

SECTION = "12 In place of other images"
pytestmark = pytest.mark.timeout(900)

START_S = 90.0
TAG = "7.9.0"
ID = "4L6g3nShT-eMCtK--X86sw"
PYTHON = ["testcontainers[kafka]==4.15.0", "kafka-python==3.0.12", "packaging"]
NODE = ["@testcontainers/kafka@10.28.0", "kafkajs@2.2.4"]


def docker(*words: str, check: bool = True) -> str:
    """What a command of the engine's client prints."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config) -> Iterator[str]:
    """The image under the name that modules take for one of theirs."""
    name = pytestconfig.getoption("--image")
    if not name:
        pytest.skip("no image is named: --image NAME, after docker build -t NAME .")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        unavailable("there is no container engine: docker info fails")
    tagged = f"kbroker-under-test:{TAG}"
    docker("tag", name, tagged)
    yield tagged
    docker("rmi", tagged, check=False)


def started_by(command: list[str]) -> list[str]:
    """What a driver prints, that has a module start the image and a client use it."""
    own = {
        "TESTCONTAINERS_RYUK_DISABLED": "true",
        "TESTCONTAINERS_CHECKS_DISABLE": "true",
        "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
    }
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("mode", ["kraft", "zookeeper"])
def test_the_module_for_python_starts_it(image: str, mode: str) -> None:
    """Testcontainers for Python 4.15.0 starts it: {mode}"""
    python = environments.python("testcontainers", "4.15.0", PYTHON)
    driver = environments.driver("testcontainers_driver.py")
    assert started_by([str(python), driver, image, mode]) == ["0", "a book"]


@pytest.mark.parametrize("flavour", ["apache", "native", "confluent", "old", "old-kraft"])
def test_the_modules_for_java_start_it(image: str, flavour: str) -> None:
    """Testcontainers for Java 1.21.3 starts it: {flavour}"""
    jars = environments.jars_of(Path(__file__).with_name("testcontainers.pom.xml"), "testcontainers-1.21.3")
    classpath = os.pathsep.join(map(str, jars))
    driver = environments.driver("TestcontainersDriver.java")
    assert started_by(["java", "-Xmx256m", "-cp", classpath, driver, image, flavour]) == ["0", "a book"]


@pytest.mark.parametrize("mode", ["kraft", "zookeeper"])
def test_the_module_for_node_starts_it(image: str, mode: str) -> None:
    """Testcontainers for Node 10.28.0 starts it: {mode}"""
    modules = environments.node("testcontainers", "10.28.0", NODE) / "node_modules"
    driver = environments.driver("testcontainers_driver.js")
    assert started_by(["node", driver, str(modules), image, mode]) == ["0", "a book"]


@pytest.mark.parametrize("cluster_id", [[], ["kraftCluster"]], ids=["of its own", "named"])
def test_the_module_for_go_starts_it(image: str, cluster_id: list[str]) -> None:
    """Testcontainers for Go 0.38.0 starts it"""
    driver = environments.go_program("testcontainers-go-0.38.0", "testcontainers_go")
    assert started_by([driver, image, *cluster_id]) == ["0", "a book"]


# -- environments of compose files


class Containers:
    """Containers on a network of their own, by name."""

    def __init__(self, image: str) -> None:
        self._image = image
        self.network = f"kbroker-{uuid.uuid4().hex[:8]}"
        self._names: list[str] = []
        docker("network", "create", self.network)

    def run(self, name: str, environment: Mapping[str, str], *more: str, command: tuple[str, ...] = ()) -> None:
        """Start one, as `docker compose up` would. more: options of `docker run`."""
        variables = [word for key, value in environment.items() for word in ("--env", f"{key}={value}")]
        options = ["--network", self.network, "--network-alias", name, "--hostname", name, *variables, *more]
        docker("run", "--detach", "--name", f"{self.network}-{name}", *options, self._image, *command)
        self._names.append(name)

    def exec(self, name: str, *command: str) -> str:
        """What a command in a container prints."""
        return docker("exec", "--interactive", f"{self.network}-{name}", *command)

    def log(self, name: str) -> str:
        """What it has said."""
        return docker("logs", f"{self.network}-{name}")

    def await_health(self, *names: str) -> None:
        """Until all are healthy, as `depends_on` with that condition waits."""
        end_s = time.monotonic() + START_S
        for name in names:
            while (state := self._state(name)) != "healthy":
                assert time.monotonic() < end_s, f"{name} is {state}\n{self.log(name)[-3000:]}"
                time.sleep(0.2)  # there is nothing to wait for but another look

    def _state(self, name: str) -> str:
        found = json.loads(docker("inspect", f"{self.network}-{name}"))[0]["State"]
        return str(found["Health"]["Status"] if found["Running"] else found["Status"])

    def end(self) -> None:
        """Remove them all."""
        for name in self._names:
            docker("rm", "--force", "--volumes", f"{self.network}-{name}", check=False)
        docker("network", "rm", self.network, check=False)


@pytest.fixture
def containers(image: str) -> Iterator[Containers]:
    made = Containers(image)
    yield made
    made.end()


COMBINED = {
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "CLUSTER_ID": ID,
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_LOG_DIRS": "/tmp/kraft-combined-logs",
}
SINGLE = COMBINED | {
    "KAFKA_NODE_ID": "1",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@broker:29093",
    "KAFKA_LISTENERS": "CONTROLLER://:29093,PLAINTEXT_HOST://:9092,PLAINTEXT://:19092",
    "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT_HOST://localhost:9092,PLAINTEXT://broker:19092",
}
BITNAMI = {
    "KAFKA_CFG_NODE_ID": "0",
    "KAFKA_CFG_PROCESS_ROLES": "controller,broker",
    "KAFKA_CFG_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "KAFKA_CFG_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "KAFKA_CFG_CONTROLLER_QUORUM_VOTERS": "0@broker:9093",
    "KAFKA_CFG_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "ALLOW_PLAINTEXT_LISTENER": "yes",
}
PRODUCE = "echo a book | kafka-console-producer.sh --bootstrap-server $0 --topic orders"
CONSUME = "kafka-console-consumer.sh --bootstrap-server $0 --topic orders --from-beginning --max-messages 1"


@pytest.mark.parametrize(
    ("environment", "options", "command"),
    [
        pytest.param({}, (), (), id="no variables"),
        pytest.param(SINGLE, (), (), id="Apache's or Confluent's"),
        pytest.param(SINGLE, (), ("/etc/confluent/docker/run",), id="Confluent's script"),
        pytest.param(BITNAMI, ("--volume", "/bitnami"), ("/opt/bitnami/scripts/kafka/run.sh",), id="Bitnami's"),
    ],
)
def test_an_environment_of_another_image_s_page_starts_it(
    containers: Containers, environment: dict[str, str], options: tuple[str, ...], command: tuple[str, ...]
) -> None:
    """A broker of one: the environment of another image, and its tools"""
    containers.run("broker", environment, *options, command=command)
    containers.await_health("broker")
    where = "broker:9092" if environment is BITNAMI else "localhost:9092"
    containers.exec("broker", "bash", "-c", PRODUCE, where)
    assert containers.exec("broker", "bash", "-c", CONSUME, where) == "a book\n"
    assert "orders" in containers.exec("broker", "kafka-topics", "--bootstrap-server", where, "--list")


def test_three_that_are_a_quorum_are_a_cluster(containers: Containers) -> None:
    """Apache's cluster of three: brokers that are controllers as well"""
    voters = "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"
    names = ("kafka-1", "kafka-2", "kafka-3")
    for number, name in enumerate(names, 1):
        own = {
            "KAFKA_NODE_ID": str(number),
            "KAFKA_CONTROLLER_QUORUM_VOTERS": voters,
            "KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093,PLAINTEXT_HOST://:9092",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{name}:19092,PLAINTEXT_HOST://localhost:{20000 + number}",
        }
        containers.run(name, COMBINED | own)
    containers.await_health(*names)
    topics = ["kafka-topics.sh", "--bootstrap-server", "kafka-2:19092", "--topic", "orders"]
    containers.exec("kafka-1", *topics, "--create", "--partitions", "3", "--replication-factor", "3")
    described = json.loads(containers.exec("kafka-3", *topics, "--describe", "--json"))
    assert sorted(described[0]["partitions"][0]["isr"]) == [1, 2, 3]
    containers.exec("kafka-1", "bash", "-c", PRODUCE, "kafka-3:19092")
    assert containers.exec("kafka-2", "bash", "-c", CONSUME, "kafka-1:19092") == "a book\n"


def test_a_variable_that_cannot_be_meant_is_one_line(containers: Containers) -> None:
    """A mistake is one line, and no start"""
    containers.run("broker", {"KAFKA_SSL_KEYSTORE_FILENAME": "none.jks", "KAFKA_LISTENERS": "SSL://:9093"})
    docker("wait", f"{containers.network}-broker")
    assert containers.log("broker") == (
        "kbroker: KAFKA_SSL_KEYSTORE_FILENAME=none.jks: there is no file /etc/kafka/secrets/none.jks;"
        " mount its folder there\n"
    )
