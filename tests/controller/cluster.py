"""A cluster of control planes on one simulated ensemble: real controllers, lanes and caches, replicas without logs.

Nothing is random but the seeds, and `settle` runs everything until nobody has anything left to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from types import GeneratorType
from typing import Any

from kbroker.api.call import LATER, Call
from kbroker.api.routes import ROUTES, load
from kbroker.broker.control_plane import ControlPlane
from kbroker.broker.facts import Reply, TopicsUpdated, Touched
from kbroker.broker.permission import Permission
from kbroker.broker.session import Session
from kbroker.config import BrokerLayers, Given
from kbroker.controller.events import ControlAnswer
from kbroker.metadata.cache import TopicKey
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint, LeaderIsr, decode_state, state_path
from kbroker.ports import StoreEvent
from kbroker.replica.followers import InSyncRules
from kbroker.replica.partition import LeaderState, Partition
from kbroker.sim.clock import SimClock, SimRandom
from kbroker.sim.store import Ensemble, SimSession
from kbroker.timing import Turns
from protocol.errors import ErrorCode, KafkaError
from protocol.message import Message
from tests.peers import Nobody


class Replica:
    """A partition as the control request queue sees one."""

    is_of_another = Partition.is_of_another

    def __init__(self, topic_id: bytes) -> None:
        self.topic_id = topic_id
        self.log: object | None = object()
        self.leader_epoch = -1
        self.leader_id = -1
        self.is_new = False


class Replicas:
    """What the control request queue asks of the replica manager, without logs."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.rules = InSyncRules(lambda: 0, 30_000)
        self.partitions: dict[tuple[str, int], Replica] = {}
        self.deleted: list[tuple[str, int]] = []
        self.stopped: list[tuple[str, int]] = []
        self.reconfigured: list[str] = []
        self.failing = False  # the disk refuses new logs and deletions
        self.cut: set[tuple[str, int]] = set()  # those whose logs are being cut

    def become(self, topic: str, index: int, topic_id: bytes, state: LeaderState, *, is_new: bool) -> None:
        if self.failing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        replica = self.partitions.setdefault((topic, index), Replica(topic_id))
        replica.leader_epoch, replica.leader_id, replica.is_new = state.leader_epoch, state.leader, is_new

    def stop(self, topic: str, index: int, *, delete: bool) -> None:
        if self.failing and delete:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        self.partitions.pop((topic, index), None)
        (self.deleted if delete else self.stopped).append((topic, index))

    def of_topic(self, topic: str) -> Iterator[Replica]:
        return (replica for (name, _), replica in self.partitions.items() if name == topic)

    def is_being_cut(self, topic: str, index: int) -> bool:
        return (topic, index) in self.cut

    def reconfigure(self, topic: str) -> None:
        self.reconfigured.append(topic)


class Node:
    """One broker: what handlers see as `call.broker`."""

    def __init__(self, cluster: Cluster, broker_id: int, settings: dict[str, str], replicas: Replicas | None) -> None:
        self.id = broker_id
        self.events: deque[StoreEvent] = deque()
        self.store: SimSession = cluster.ensemble.connect(self.events.append)
        static = {key: Given(text, "test") for key, text in settings.items()}
        self.configs = Configs(BrokerLayers(static=static))
        self.replicas = replicas or Replicas(broker_id)
        self.clock = cluster.clock
        self.random = SimRandom(broker_id)
        self.facts: deque[object] = deque()
        self.tell = self.facts.append
        self.replies: list[Reply] = []
        self.touched: list[Hashable] = []
        self.told: list[object] = []  # what is none of the control plane's business
        self.peers = Nobody()
        self.turns = Turns()
        self.permission = Permission()
        self.plane = ControlPlane(
            broker_id,
            self.configs,
            self.replicas,  # type: ignore[arg-type]
            self.store,
            cluster.clock,
            self.random,
            (Endpoint("PLAINTEXT", 0, f"host{broker_id}", 9092), Endpoint("INSIDE", 0, f"inside{broker_id}", 9093)),
            self.peers,
            self.turns,
            self.tell,
        )
        self._handlers = self.plane.handlers
        self.is_cut = False  # nobody's requests reach it
        self.inbox: list[Message] = []  # requests it has got from other brokers

    def turn(self) -> bool:
        """Heed one event of the store, and every fact; whether there was anything."""
        busy = bool(self.events or self.facts or self.turns)
        self.turns.run(self.clock.now_ms)
        if self.events:
            self.facts.append(self.events.popleft())
        while self.facts:
            self._heed(self.facts.popleft())
        return busy

    def heed(self, fact: object) -> None:
        """What comes from another broker."""
        self.facts.append(fact)
        self.turn()

    def _heed(self, fact: object) -> None:
        if isinstance(fact, Reply):
            self.replies.append(fact)
        elif isinstance(fact, Touched):
            self.touched += fact.keys
        elif isinstance(fact, TopicsUpdated):
            self.touched += [TopicKey(topic) for topic in fact.topics]
        elif type(fact) in self._handlers:
            self._handlers[type(fact)](fact, self.clock.now_ms())
        else:
            self.told.append(fact)


class OneCall(Call):
    """A call that is its own ticket."""

    __slots__ = ()

    @property
    def ticket(self) -> OneCall:
        return self


def through(result: Any) -> Any:
    """What a handler gives back in the end, if it is one that goes on in slices."""
    while isinstance(result, GeneratorType):
        try:
            next(result)
        except StopIteration as end:
            result = end.value
    return result


class Cluster:
    """Brokers by id. Requests to handlers by `ask`."""

    def __init__(self, *broker_ids: int, **settings: str) -> None:
        load()
        self.clock = SimClock()
        self.ensemble = Ensemble()
        self.settings = {key.replace("_", "."): text for key, text in settings.items()}
        self.nodes: dict[int, Node] = {}
        for broker_id in broker_ids or (1,):
            self.start(broker_id)

    # -- life and death

    def start(self, broker_id: int, replicas: Replicas | None = None) -> Node:
        node = self.nodes[broker_id] = Node(self, broker_id, self.settings, replicas)
        self.settle()
        return node

    def stop(self, broker_id: int) -> None:
        """The session ends at once, as in an orderly stop or long after a crash."""
        self.nodes.pop(broker_id).plane.close()
        self.settle()

    def restart(self, broker_id: int) -> Node:
        self.stop(broker_id)
        return self.start(broker_id)

    def settle(self) -> None:
        """Until nothing moves any more."""
        moved = True
        while moved:
            moved = False
            for node in list(self.nodes.values()):
                while node.turn():
                    moved = True
                moved |= self._send(node)

    def _send(self, node: Node) -> bool:
        moved = False
        for target in node.plane.outbox_brokers:
            other = self.nodes.get(target)
            request = node.plane.controller.outbox.head(target)
            if other is None or other.is_cut or request is None:
                continue
            other.inbox.append(request)
            ticket = object()
            response = other.plane.control_requests.take(request, 7, ticket)
            while response is None:
                other.turn()
                response = next((each.response for each in other.replies if each.ticket is ticket), None)
            node.heed(ControlAnswer(target, request, response))  # type: ignore[arg-type]
            moved = True
        return moved

    def advance(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        for node in self.nodes.values():
            node.plane.next_deadline_ms(self.clock.now_ms())
            node.plane.expire(self.clock.now_ms())
        self.settle()

    # -- asking

    def ask(
        self, request: Message, version: int, broker_id: int = 0, listener: str = "PLAINTEXT", *, wait: bool = True
    ) -> Any:
        """What a client of a broker (the first one) gets. wait: else what it gets when its deadline passes at once."""
        node = self.nodes[broker_id or min(self.nodes)]
        route = ROUTES[type(request).api]  # type: ignore[index]
        assert route.first <= version <= route.last, (route.name, version)
        request = type(request).decode(memoryview(request.encode(version)), version)
        call = OneCall()
        call.broker, call.session, call.version = node, Session(listener, "client", 1), version  # type: ignore[assignment]
        call.client_id, call.now_ms, call.has_errors = "test", self.clock.now_ms(), False
        try:
            result = through(route.handle(request, call))
        except KafkaError as error:
            result = route.refuse(request, error.code, error.message, version)
        if result is LATER:
            self.settle()
            result = next(each for each in node.replies if each.ticket is call.ticket).response
        if not isinstance(result, Message):
            result = self._wait(node, result, settle=wait)
        return type(result).decode(memoryview(result.encode(version)), version)

    def _wait(self, node: Node, waiting: Any, *, settle: bool) -> Message:
        """Look again only when one of its keys was touched, as core does."""
        if not settle:
            expired: Message = through(waiting.expired(waiting.deadline_ms))
            return expired
        node.touched.clear()
        for _ in range(100):
            self.settle()
            touched, node.touched[:] = list(node.touched), []
            if any(key in touched for key in waiting.keys):
                answer: Message | None = through(waiting.answer(self.clock.now_ms()))
                if answer is not None:
                    return answer
            elif not touched:
                break
        late: Message = through(waiting.expired(waiting.deadline_ms))
        return late

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
