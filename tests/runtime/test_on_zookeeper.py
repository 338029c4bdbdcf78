"""`kbroker start` with zookeeper.connect: processes on a real ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat_tests.apache import NoApacheError, ZooKeeper, missing
from kbroker.metadata.features import SUPPORTED
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.processes import BrokerProcess, Client, within

pytestmark = [pytest.mark.java, pytest.mark.slow]

PATIENCE_S = 30.0
SESSION_MS = 3_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeper]:
    if reason := missing():
        pytest.skip(reason)
    try:
        made = ZooKeeper(tmp_path / "zookeeper")
    except NoApacheError as error:
        pytest.skip(str(error))
    with made:
        yield made


class Brokers:
    """Processes by id, each in a folder of its own."""

    def __init__(self, folder: Path, connect: str) -> None:
        self.connect = connect
        self.running: dict[int, BrokerProcess] = {}
        self._folder = folder

    def start(self, number: int, place: str = "", **settings: str) -> BrokerProcess:
        """Not awaited."""
        folder = self._folder / (place or f"broker{number}")
        folder.mkdir(exist_ok=True)
        given = {"broker_id": str(number), "zookeeper_connect": self.connect}
        given["zookeeper_session_timeout_ms"] = str(SESSION_MS)
        return BrokerProcess(folder, **given, **settings)

    def up(self, *numbers: int) -> None:
        for number, process in [(number, self.start(number)) for number in numbers]:
            self.running[number] = process.await_start()

    def kill(self, number: int) -> None:
        process = self.running.pop(number)
        process.process.kill()
        process.wait()

    def metadata(self, number: int) -> MetadataResponse:
        client = Client(self.running[number].port)
        try:
            response: MetadataResponse = client.ask(MetadataRequest(topics=None), 9)
            return response
        finally:
            client.close()

    def await_that(self, number: int, holds: Callable[[MetadataResponse], bool]) -> MetadataResponse:
        """What a broker says of the cluster, once this holds of it."""
        seen = None
        for _ in within(PATIENCE_S):
            seen = self.metadata(number)
            if holds(seen):
                return seen
        raise AssertionError(seen)


@pytest.fixture
def brokers(tmp_path: Path, server: ZooKeeper) -> Iterator[Brokers]:
    made = Brokers(tmp_path, f"{server.address}/kafka/one")
    yield made
    for process in made.running.values():
        process.stop()


def node_ids(response: MetadataResponse) -> set[int]:
    return {each.node_id for each in response.brokers}


def leaders(response: MetadataResponse) -> list[int]:
    return [each.leader_id for topic in response.topics for each in topic.partitions]


def create(brokers: Brokers, number: int, name: str, partitions: int) -> None:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
    client = Client(brokers.running[number].port)
    (made,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5).topics
    client.close()
    assert made.error_code == 0, made


def test_three_brokers_share_topics_and_another_one_controls_when_the_controller_is_killed(brokers: Brokers) -> None:
    brokers.up(1, 2, 3)
    before = brokers.await_that(1, lambda seen: node_ids(seen) == {1, 2, 3})
    create(brokers, before.controller_id, "spread", 6)
    assert sorted(leaders(brokers.metadata(before.controller_id))) == [1, 1, 2, 2, 3, 3]
    brokers.kill(before.controller_id)
    survivor = min(brokers.running)
    after = brokers.await_that(survivor, lambda seen: node_ids(seen) == {1, 2, 3} - {before.controller_id})
    assert after.controller_id in brokers.running
    brokers.up(before.controller_id)
    brokers.await_that(survivor, lambda seen: sorted(leaders(seen)) == [1, 1, 2, 2, 3, 3])


def test_a_broker_that_was_thought_dead_registers_again(brokers: Brokers) -> None:
    brokers.up(1, 2)
    brokers.await_that(1, lambda seen: node_ids(seen) == {1, 2})
    os.kill(brokers.running[2].process.pid, signal.SIGSTOP)
    brokers.await_that(1, lambda seen: node_ids(seen) == {1})
    os.kill(brokers.running[2].process.pid, signal.SIGCONT)
    brokers.await_that(1, lambda seen: node_ids(seen) == {1, 2})


def test_a_broker_id_that_another_broker_keeps_is_given_up_with_one_line(brokers: Brokers) -> None:
    brokers.up(1)
    twin = brokers.start(1, place="twin")
    assert twin.wait() == 1
    said = (
        f"broker.id 1 is taken: another broker is registered with it, PLAINTEXT://127.0.0.1:{brokers.running[1].port}"
    )
    assert [line for line in twin.log.splitlines() if said in line and "waiting" not in line]


def test_directories_of_another_cluster_are_refused_with_one_line(brokers: Brokers, server: ZooKeeper) -> None:
    brokers.up(1)
    brokers.running.pop(1).stop()
    brokers.connect = f"{server.address}/kafka/two"
    lost = brokers.start(1)
    assert lost.wait() == 1
    (line,) = [line for line in lost.log.splitlines() if line.startswith("kbroker: ")]
    assert line.endswith("(meta.properties), ZooKeeper is of no cluster yet: is zookeeper.connect right?")


def test_a_start_without_an_ensemble_waits_and_says_so_and_can_be_ended(brokers: Brokers, server: ZooKeeper) -> None:
    server.kill()
    waiting = brokers.start(1, zookeeper_connection_timeout_ms="200")
    for _ in within(PATIENCE_S):
        if waiting.log.count("no ZooKeeper answers at") >= 2:
            break
    assert not (waiting.log_path.parent / "data").exists()
    assert waiting.stop() == 0


def test_a_topic_larger_than_zookeeper_takes_leaves_it_to_others(brokers: Brokers) -> None:
    brokers.up(1)
    far = range(1_000_000_000, 1_000_000_100)
    assignments = [CreatableReplicaAssignment(partition_index=at, broker_ids=list(far)) for at in range(1_300)]
    wide = CreatableTopic(name="wide", num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
    client = Client(brokers.running[1].port)
    client.send(CreateTopicsRequest(topics=[wide], timeout_ms=2_000), 5)
    create(brokers, 1, "other", 1)
    client.close()
    assert "connected to ZooKeeper again" not in brokers.running[1].log


def test_a_path_that_only_others_may_make_is_named_in_one_line(brokers: Brokers, server: ZooKeeper) -> None:
    from kazoo.client import KazooClient
    from kazoo.security import make_acl

    admin = KazooClient(server.address)
    admin.start()
    admin.set_acls("/", [make_acl("world", "anyone", read=True)])
    admin.stop()
    admin.close()
    brokers.connect = f"{server.address}/kafka"
    stranger = brokers.start(1)
    assert stranger.wait() == 1
    (line,) = [line for line in stranger.log.splitlines() if line.startswith("kbroker: ")]
    assert line.endswith("/cluster/id cannot be made in ZooKeeper: is there the path of zookeeper.connect?")


def test_a_broker_without_an_id_gets_one_and_keeps_it(brokers: Brokers) -> None:
    for _ in range(2):
        process = brokers.start(-1, place="any").await_start()
        assert any("1001, of cluster" in line for line in process.says)
        process.stop()


def test_the_registration_is_apaches(brokers: Brokers, server: ZooKeeper) -> None:
    from kazoo.client import KazooClient

    brokers.up(1)
    client = KazooClient(brokers.connect)
    client.start()
    data, _ = client.get("/brokers/ids/1")
    client.stop()
    client.close()
    content = json.loads(data)
    port = brokers.running[1].port
    assert content.pop("timestamp").isdigit()
    assert content == {
        "features": {name: {"min_version": 1, "max_version": last} for name, _, last in SUPPORTED},
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"],
        "jmx_port": -1,
        "port": port,
        "host": "127.0.0.1",
        "version": 5,
    }
