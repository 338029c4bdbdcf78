"""Three nodes that share a metadata store and speak to each other over sockets, all on the test's own loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.config import Given
from kbroker.ports import Post
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.descriptors import Shares
from kbroker.runtime.embedded import Run
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.loop import Loop
from kbroker.runtime.node import Host, Later, Node, NodeStore
from kbroker.runtime.shared_store import SharedStore
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import Message
from protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

PATIENCE_S = 20.0
BROKERS = (1, 2, 3)
CLUSTER = "c29tZS1jbHVzdGVyLWlkIQ"


class Cluster:
    """Nodes by id, on one loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.faults: list[Exception] = []
        self.loop.failed = self.faults.append
        self.store = SharedStore()
        self.nodes: dict[int, Node] = {}
        for broker_id in BROKERS:
            self.start(broker_id)

    def start(self, broker_id: int, port: int = 0) -> None:
        """A node, and wait until the cluster has told it everything."""
        given = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "log.dirs": str(self.folder / str(broker_id)),
            "broker.id": str(broker_id),
            "num.partitions": "6",
            "offsets.topic.num.partitions": "3",
        }
        static = {key: Given(value, "the test") for key, value in given.items()}

        def open_store(path: str, post: Post, later: Later, run: Run) -> NodeStore:
            return self.store.connect(post)

        host = Host(SystemDisk(), SystemClock(), SystemRandom(), Shares.of(1024), open_store=open_store)
        node = self.nodes[broker_id] = Node(static, self.loop, host)
        node.cluster_id = CLUSTER
        node.open()
        self.until(lambda: node.ready or node.fatal)
        node.serve()

    def until(self, condition: Callable[[], object]) -> None:
        """Turn the loop until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        wake = self.loop.timer(lambda: None)
        while not condition():
            assert time.monotonic() < deadline, "did not come true"
            wake.set(0.05)
            self.loop.turn()
        wake.cancel()
        assert self.faults == []

    def ask(self, broker_id: int, request: Message, version: int) -> Any:
        """What a client of one broker is told: in the broker's own core, by bytes."""
        node = self.nodes[broker_id]
        core = node.core
        channel = core.open("PLAINTEXT", "127.0.0.1", 1)
        frame = encode_request_header(type(request), version, 1, "test") + request.encode(version)
        core.receive(channel, memoryview(bytearray(frame)), node.broker.clock.now_ms())
        node.server.settle()
        self.until(lambda: channel.out)
        answer = b"".join(bytes(piece) for piece in channel.out)[4:]  # type: ignore[arg-type]
        kind = {MetadataRequest: MetadataResponse, FindCoordinatorRequest: FindCoordinatorResponse}[type(request)]  # type: ignore[index]
        return kind.decode(answer, version, parse_response_header(kind, version, answer)[1])

    def leaders(self, broker_id: int, topic: str) -> list[int]:
        """Of each partition, as one broker tells."""
        image = self.nodes[broker_id].broker.plane.cache.topics.get(topic)
        return [] if image is None else [state.leader for _, state in sorted(image.partitions.items())]

    def close(self) -> None:
        """Stop what runs."""
        for node in self.nodes.values():
            node.stop()
        self.store.close()
        self.loop.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


def others(cluster: Cluster) -> int:
    """A broker that is not the controller."""
    return next(each for each, node in cluster.nodes.items() if not node.broker.plane.controller.is_active)


def create(cluster: Cluster, topic: str) -> None:
    """By asking a broker for it that is not the controller."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
    for _ in range(10):
        answer = cluster.ask(others(cluster), request, 9)
        if answer.topics[0].error_code == ErrorCode.NONE:
            return
    raise AssertionError(answer)


def test_all_brokers_know_each_other_and_one_controller(cluster: Cluster) -> None:
    answers = [cluster.ask(broker, MetadataRequest(topics=[]), 9) for broker in BROKERS]
    assert [sorted(each.node_id for each in answer.brokers) for answer in answers] == [list(BROKERS)] * 3
    assert len({answer.controller_id for answer in answers}) == 1
    assert len({answer.cluster_id for answer in answers}) == 1


def test_a_topic_that_any_broker_is_asked_for_is_spread_over_all(cluster: Cluster) -> None:
    create(cluster, "spread")
    cluster.until(lambda: all(len(cluster.leaders(broker, "spread")) == 6 for broker in BROKERS))
    assert sorted(cluster.leaders(1, "spread")) == [1, 1, 2, 2, 3, 3]
    assert cluster.leaders(1, "spread") == cluster.leaders(2, "spread") == cluster.leaders(3, "spread")
    for broker, node in cluster.nodes.items():
        led = [index for index, leader in enumerate(cluster.leaders(broker, "spread")) if leader == broker]
        held = [partition.index for partition in node.broker.replicas.of_topic("spread")]
        assert sorted(held) == led


def test_a_broker_that_is_not_the_controller_has_the_offsets_topic_made(cluster: Cluster) -> None:
    request = FindCoordinatorRequest(key="group")
    told: list[int] = []

    def found() -> bool:
        answer = cluster.ask(others(cluster), request, 3)
        told.append(answer.error_code)
        return bool(answer.error_code == ErrorCode.NONE)

    cluster.until(found)
    assert set(told) <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE}


def test_exactly_the_partitions_of_a_stopped_broker_are_without_a_leader_until_it_returns(cluster: Cluster) -> None:
    create(cluster, "half")
    cluster.until(lambda: all(-1 not in cluster.leaders(each, "half") != [] for each in BROKERS))
    before = cluster.leaders(1, "half")
    gone = others(cluster)
    port = cluster.nodes[gone].ports["PLAINTEXT"]
    cluster.nodes.pop(gone).stop()
    rest = sorted(cluster.nodes)
    without = [-1 if leader == gone else leader for leader in before]
    cluster.until(lambda: all(cluster.leaders(each, "half") == without for each in rest))
    cluster.start(gone, port)
    cluster.until(lambda: all(cluster.leaders(each, "half") == before for each in BROKERS))


def test_another_broker_takes_over_from_a_controller_that_stops(cluster: Cluster) -> None:
    (controller,) = (each for each, node in cluster.nodes.items() if node.broker.plane.controller.is_active)
    port = cluster.nodes[controller].ports["PLAINTEXT"]
    cluster.nodes.pop(controller).stop()
    rest = list(cluster.nodes.values())
    cluster.until(lambda: sum(node.broker.plane.controller.is_active for node in rest) == 1)
    cluster.start(controller, port)
    cluster.until(lambda: all(sorted(node.broker.plane.cache.brokers) == list(BROKERS) for node in rest))
