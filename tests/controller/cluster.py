"""Brokers on simulated machines that share an ensemble, whole ones, who speak to each other through `Peers`.

What is under way takes no time: `settle` lets all of it happen within the millisecond, and time moves when a test says
so (`advance`), or when somebody has to wait for an answer. Followers do not fetch unless `replicates` is set, so that a
test can say itself who is in sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.broker.assembly import Surroundings, assemble, load_logs
from kbroker.broker.broker import Broker
from kbroker.broker.facts import BrokerConfigChanged, FactQueue
from kbroker.broker.store_plane import StorePlane
from kbroker.config import BrokerLayers, Given
from kbroker.log.names import parse_folder_name
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import (
    Assignment,
    Endpoint,
    LeaderIsr,
    TopicInfo,
    decode_state,
    encode_topic,
    state_path,
    topic_path,
)
from kbroker.ports import FETCHER, Create, Region
from kbroker.replica import ReplicaManager
from kbroker.sim.clock import SimRandom
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net, Wire
from kbroker.sim.peers import SimPeers
from kbroker.sim.store import Ensemble, SimSession
from kbroker.sim.world import World
from kbroker.timing import Scheduler
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header, parse_request_header, parse_response_header
from protocol.message import Message
from protocol.messages.control import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

LOG_DIR = "/data"
PATIENCE_MS = 60_000
CONTROL_REQUESTS: dict[int, type[Message]] = {4: LeaderAndIsrRequest, 5: StopReplicaRequest, 6: UpdateMetadataRequest}


class Lines:
    """A broker's lines to the others; those of its fetchers are mute unless the cluster replicates."""

    def __init__(self, lines: SimPeers, cluster: Cluster) -> None:
        self._lines = lines
        self._cluster = cluster
        self.join, self.drop, self.close = lines.join, lines.drop, lines.close

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message,
        version: int,
        token: object,
        timeout_ms: int,
    ) -> None:
        if self._cluster.replicates or not purpose.startswith(FETCHER):
            self._lines.send(broker_id, endpoint, purpose, request, version, token, timeout_ms)


class Node(Machine):
    """One machine, with listeners PLAINTEXT at host1:9092 and INSIDE at inside1:9093, if it is number 1.

    inbox: what controllers on other machines asked of it. told: that its settings have changed.
    """

    plane: StorePlane
    store: SimSession

    def __init__(self, cluster: Cluster, broker_id: int, cluster_id: str | None = None, **settings: str) -> None:
        super().__init__(cluster.world, cluster.net, broker_id, lambda machine: self._assemble())
        self.id = broker_id
        self.job_ms = (0, 0)
        self.name = f"host{broker_id}"
        cluster.net.hosts[self.name] = cluster.net.hosts[f"inside{broker_id}"] = self
        self.inbox: list[Message] = []
        self.told: list[object] = []
        self._cluster = cluster
        self._cluster_id = cluster_id
        given = {"log.dirs": LOG_DIR, **cluster.settings, **{key.replace("_", "."): settings[key] for key in settings}}
        self._static = {key: Given(text, "test") for key, text in given.items()}

    def _assemble(self) -> Broker:
        configs, facts = Configs(BrokerLayers(static=self._static)), FactQueue()
        parts = Surroundings(
            self.disk, self.clock, SimRandom(self.rng.randrange(1 << 62)), Scheduler(self.world.now_ms)
        )
        own = {"broker_id": self.id, "cluster_id": self._cluster_id}
        logs = load_logs(facts, configs, configs.broker.log_dirs, parts, **own)  # type: ignore[arg-type]
        self.store = self._cluster.ensemble.connect(self.post)
        endpoints = (Endpoint("PLAINTEXT", 0, self.name, 9092), Endpoint("INSIDE", 0, f"inside{self.id}", 9093))
        broker = assemble(
            facts,
            configs,
            logs,
            parts,
            self.store,
            lambda: Lines(self.make_peers(), self._cluster),
            **own,  # type: ignore[arg-type]
            endpoints=endpoints,
            strict=True,
        )
        broker.on(BrokerConfigChanged, lambda fact, now_ms: self.told.append(fact))
        self.plane = broker.store_plane
        return broker

    def receive(self, wire: Wire, frame: bytes) -> None:
        """A frame has arrived; those of controllers are remembered."""
        key, version, _, client_id, _ = parse_request_header(frame)
        if key in CONTROL_REQUESTS:
            kind = CONTROL_REQUESTS[key]
            start = len(encode_request_header(kind, version, 0, client_id))
            self.inbox.append(kind.decode(memoryview(frame), version, start))
        super().receive(wire, frame)

    def turn(self, what: Callable[..., object], *arguments: object) -> None:
        """Do something as a step of the broker's, and what follows from it at once."""
        self._run(what, *arguments)  # type: ignore[arg-type]

    @property
    def replicas(self) -> ReplicaManager:
        return self.broker.replicas

    @property
    def configs(self) -> Configs:
        return self.plane.configs

    def logs(self) -> list[tuple[str, int]]:
        """The partitions whose logs are on its disk, and not deleted."""
        here = self.configs.broker.log_dirs
        folders = [parse_folder_name(entry.name) for path in here for entry in self.disk.list(path) if entry.is_dir]
        return sorted(each.topic_partition for each in folders if each is not None and each.state == "live")


class Client:
    """A connection to a node, on one of its listeners."""

    def __init__(self, node: Node, listener: str = "PLAINTEXT") -> None:
        assert node.core is not None
        self._node = node
        self._core = node.core
        self._asked: tuple[type[Message], int] | None = None
        self._channel = node.core.open(listener, "127.0.0.1", 50_000)

    def send(self, request: Message, version: int) -> None:
        """Send a request; nothing of what follows has happened yet."""
        self._asked = type(request), version
        head = encode_request_header(type(request), version, 1, "test")
        frame = memoryview(bytearray(head + request.encode(version)))
        self._node.turn(self._core.receive, self._channel, frame, self._node.world.now_ms)

    def answer(self) -> Any:
        """What has come back, or None."""
        pieces = self._channel.out
        if not pieces:
            return None
        assert self._asked is not None
        self._channel.written()
        self._channel.sent()
        frame = b"".join(piece.read() if isinstance(piece, Region) else bytes(piece) for piece in pieces)[4:]
        kind, version = self._asked
        response = BY_KEY[kind.api or 0].response
        _, start = parse_response_header(response, version, frame)
        return response.decode(memoryview(frame), version, start)


class Cluster:
    """Nodes that run, by id. settings: of server.properties, for all of them, with _ for each dot."""

    def __init__(self, *broker_ids: int, **settings: str) -> None:
        self.world = World("cluster")
        self.net = Net(self.world, (0, 0))
        self.ensemble = Ensemble(lambda delay_ms, job: self.world.after(delay_ms, job) and None, lambda: 0)
        self.settings = {key.replace("_", "."): text for key, text in settings.items()}
        self.replicates = False
        self.nodes: dict[int, Node] = {}
        self._machines: dict[int, Node] = {}
        for broker_id in broker_ids or (1,):
            self.start(broker_id)

    # -- life and death

    def start(self, broker_id: int) -> Node:
        """The process begins with what the disk holds."""
        node = self.nodes[broker_id] = self.machine(broker_id)
        node.inbox.clear()
        node.told.clear()
        assert node.start()
        self.settle()
        return node

    def machine(self, broker_id: int) -> Node:
        """The one of that number, whether its broker runs or not; with an empty disk if there was none."""
        if broker_id not in self._machines:
            self._machines[broker_id] = Node(self, broker_id)
        return self._machines[broker_id]

    def stop(self, broker_id: int) -> None:
        """The process and its session end at once."""
        node = self.nodes.pop(broker_id)
        session = node.store.session
        node.kill()
        self.ensemble.end_session(session)
        self.settle()

    def restart(self, broker_id: int) -> Node:
        self.stop(broker_id)
        return self.start(broker_id)

    def settle(self) -> None:
        """Until nothing moves any more, unless time does."""
        self.world.run_until(self.world.now_ms)

    def advance(self, by_ms: int) -> None:
        self.settle()
        self.world.run_until(self.world.now_ms + by_ms)

    # -- asking

    def ask(self, request: Message, version: int, broker_id: int = 0, listener: str = "PLAINTEXT") -> Any:
        """What a client of a broker (the first one) gets; what follows from it has happened, too."""
        client = Client(self.nodes[broker_id or min(self.nodes)], listener)
        client.send(request, version)
        end_ms = self.world.now_ms + PATIENCE_MS
        while (answer := client.answer()) is None:
            assert self.world.step(end_ms), f"no answer to {request!r}"
        self.settle()
        return answer

    # -- looking

    @property
    def controller(self) -> Node:
        (active,) = (node for node in self.nodes.values() if node.plane.controller.is_active)
        return active

    def data(self, path: str) -> bytes:
        return self.ensemble.tree.nodes[path].data

    def has(self, path: str) -> bool:
        return path in self.ensemble.tree.nodes

    def state(self, topic: str, index: int = 0) -> LeaderIsr:
        node = self.ensemble.tree.nodes[state_path(topic, index)]
        return decode_state(node.data, node.stat())

    def leaders(self, broker_id: int, topic: str) -> list[int]:
        """Who leads each partition, as a broker's cache says."""
        image = self.nodes[broker_id].plane.cache.topics[topic]
        return [state.leader for _, state in sorted(image.partitions.items())]

    def create(self, name: str, partitions: int = 1, replication_factor: int = 1, **configs: str) -> ErrorCode:
        """CreateTopics through the handler of the active controller."""
        from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=[CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()],
        )
        response = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, self.controller.id)
        return ErrorCode(response.topics[0].error_code)

    def assign(self, name: str, *replicas: tuple[int, ...]) -> ErrorCode:
        """A topic with these replicas for partitions 0, 1, ..."""
        from protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
            for index, brokers in enumerate(replicas)
        ]
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
        response = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7, self.controller.id)
        return ErrorCode(response.topics[0].error_code)

    def write_topic(self, name: str, *replicas: tuple[int, ...]) -> None:
        """A topic that a tool of an old Kafka writes into the store; nothing asks whether its brokers live."""
        info = TopicInfo(None, {index: Assignment(brokers) for index, brokers in enumerate(replicas)})
        self.ensemble.tree.apply(Create(topic_path(name), encode_topic(info)), 0)
        self.ensemble.spread()
        self.settle()
