"""Brokers that start, die and lose sessions while topics come and go, their events in any interleaving.

Each seed is one history. While it runs no assertion of the code may fail, and no two brokers write in the same epoch;
at its end, when everybody is back and everything has settled, the cluster must be whole.
"""

from __future__ import annotations

import random

import pytest

from kbroker.controller.admin import Growth, NewTopic
from kbroker.controller.events import AlterPartition, ControlAnswer, ElectionType, ElectLeaders, Reassign, ShutDown
from kbroker.metadata.store import (
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    TOPICS,
    Assignment,
    LeaderIsr,
    decode_state,
    decode_topic,
)
from protocol.messages.control import AlterPartitionRequest, AlterPartitionState, AlterPartitionTopic
from tests.controller.cluster import Cluster, Node, Replicas

BROKERS = (1, 2, 3)
TOPIC_NAMES = ("a", "b", "c")
STEPS = 300
ROUNDS = 3


class Swarm:
    """A cluster that does one small thing at a time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = Cluster(*BROKERS)
        self.disks: dict[int, Replicas] = {broker: node.replicas for broker, node in self.cluster.nodes.items()}
        self.leaving: set[int] = set()  # brokers that said they are about to stop
        self.epochs: dict[int, set[int]] = {}  # brokers that were controller, by epoch

    def run(self) -> None:
        moves = [self.handle] * 12 + [self.step] * 10 + [self.send] * 10
        moves += [self.create, self.create, self.grow, self.delete, self.elect, self.stop, self.start, self.start]
        moves += [self.expire, self.shut_down, self.fail_disk, self.reassign, self.reassign]
        moves += [self.reassign, self.reassign, self.catch_up, self.catch_up]
        for _ in range(STEPS):
            self.chance.choice(moves)()
            self.note_epochs()
        for broker in self.leaving & self.cluster.nodes.keys():
            self.cluster.nodes.pop(broker).plane.close()
        for broker in BROKERS:
            if broker not in self.cluster.nodes:
                self.boot(broker)
        self.cluster.settle()
        for _ in range(ROUNDS):  # reassignments that wait for their new replicas, and deletions that wait for those
            self.catch_up()
            self.cluster.settle()

    def node(self) -> Node | None:
        nodes = list(self.cluster.nodes.values())
        return self.chance.choice(nodes) if nodes else None

    # -- what happens

    def handle(self) -> None:
        node = self.node()
        if node and node.events:
            node.turn()

    def step(self) -> None:
        node = self.node()
        if node and not node.events:
            node.turn()

    def send(self) -> None:
        """A request of a controller reaches another broker; its answer is there when it has been obeyed."""
        node = self.node()
        if node is None or not node.plane.outbox_brokers:
            return
        target = self.chance.choice(node.plane.outbox_brokers)
        other = self.cluster.nodes.get(target)
        request = node.plane.controller.outbox.head(target)
        if other is None or request is None:
            return
        ticket = object()
        response = other.plane.control_requests.take(request, 7, ticket)
        for _ in range(20):
            if response is not None:
                node.heed(ControlAnswer(target, request, response))  # type: ignore[arg-type]
                return
            other.turn()
            response = next((each.response for each in other.replies if each.ticket is ticket), None)

    def create(self) -> None:
        node = self.node()
        if node:
            factor = self.chance.randint(1, 3)
            topic = NewTopic(self.chance.choice(TOPIC_NAMES), self.chance.randint(1, 3), factor, {}, {})
            node.plane.admin.create([topic], validate_only=False)

    def grow(self) -> None:
        node = self.node()
        if node:
            growth = Growth(self.chance.choice(TOPIC_NAMES), self.chance.randint(2, 6), None)
            node.plane.admin.grow([growth], validate_only=False)

    def delete(self) -> None:
        node = self.node()
        if node:
            node.plane.admin.delete([self.chance.choice(TOPIC_NAMES)])

    def elect(self) -> None:
        node = self.node()
        if node:
            kind = self.chance.choice(list(ElectionType))
            wanted = ElectLeaders(((self.chance.choice(TOPIC_NAMES), 0),), kind, lambda codes, changed: None)
            node.plane.controller.put(wanted)

    def reassign(self) -> None:
        """Move something that the controller knows, or call it off."""
        for node in self.cluster.nodes.values():
            epoch = node.plane.controller.epoch
            known = list(epoch.context.all_partitions()) if epoch is not None else []
            if known:
                target = tuple(self.chance.sample(BROKERS, self.chance.randint(1, 3)))
                targets = {self.chance.choice(known): self.chance.choice([target, target, None])}
                node.plane.controller.put(Reassign(targets, lambda outcomes: None))

    def catch_up(self) -> None:
        """Every leader says of all its replicas that they are in sync; it is so of those that are alive."""
        tree = self.cluster.ensemble.tree
        for topic in sorted(tree.nodes[TOPICS].children):
            for index, assignment in decode_topic(tree.nodes[f"{TOPICS}/{topic}"].data).partitions.items():
                node = tree.nodes.get(f"{TOPICS}/{topic}/partitions/{index}/state")
                if node is not None:
                    self.propose(topic, index, assignment, decode_state(node.data, node.stat()))

    def propose(self, topic: str, index: int, assignment: Assignment, state: LeaderIsr) -> None:
        leader = self.cluster.nodes.get(state.leader)
        if leader is None:
            return
        proposed = AlterPartitionState(
            partition_index=index,
            leader_epoch=state.leader_epoch,
            new_isr=[each for each in assignment.replicas if each in self.cluster.nodes],
            partition_epoch=state.version,
        )
        request = AlterPartitionRequest(
            broker_id=leader.id,
            broker_epoch=leader.plane.control_requests.broker_epoch,
            topics=[AlterPartitionTopic(topic_name=topic, partitions=[proposed])],
        )
        for node in self.cluster.nodes.values():
            if node.plane.controller.is_active:
                node.plane.controller.put(AlterPartition(request, 1, lambda response: None))

    def stop(self) -> None:
        node = self.node()
        if node and len(self.cluster.nodes) > 1:
            self.cluster.nodes.pop(node.id).plane.close()

    def start(self) -> None:
        broker = self.chance.choice(BROKERS)
        if broker not in self.cluster.nodes:
            self.boot(broker)

    def boot(self, broker: int) -> None:
        """A process begins with what its disk holds, and no idea of its roles."""
        disk = self.disks[broker]
        disk.partitions.clear()
        disk.failing = False
        self.leaving.discard(broker)
        self.cluster.nodes[broker] = Node(self.cluster, broker, {}, disk)

    def expire(self) -> None:
        node = self.node()
        if node:
            node.store.expire()

    def shut_down(self) -> None:
        node = self.node()
        if node:
            target = self.chance.choice(BROKERS)
            self.leaving.add(target)
            node.plane.controller.put(ShutDown(target, -1, lambda code, left: None))

    def fail_disk(self) -> None:
        """From now on the disk takes no new partition and deletes none; a restart mends it."""
        node = self.node()
        if node:
            self.leaving.add(node.id)
            node.replicas.failing = True

    # -- what must hold

    def note_epochs(self) -> None:
        for node in self.cluster.nodes.values():
            epoch = node.plane.controller.epoch
            if epoch is not None:
                self.epochs.setdefault(epoch.context.epoch, set()).add(node.id)
        shared = {epoch: ids for epoch, ids in self.epochs.items() if len(ids) > 1}
        assert not shared, shared

    def check(self) -> None:
        """Everybody is there: one controller, every partition led, everybody told, nothing half deleted."""
        cluster = self.cluster
        tree = cluster.ensemble.tree
        assert [node.id for node in cluster.nodes.values() if node.plane.ready] == list(cluster.nodes)
        controller = cluster.controller.plane.controller
        assert controller.is_idle
        assert controller.epoch is not None
        assert str(controller.epoch.context.epoch).encode() == tree.nodes[CONTROLLER_EPOCH].data
        assert tree.nodes[DELETE_TOPICS].children == set()
        topics = {name: decode_topic(tree.nodes[f"{TOPICS}/{name}"].data) for name in tree.nodes[TOPICS].children}
        for node in cluster.nodes.values():
            assert sorted(node.plane.cache.topics) == sorted(topics), node.id
            assert node.plane.cache.controller_id == cluster.controller.id
            assert sorted(node.plane.cache.brokers) == sorted(cluster.nodes)
        for topic, info in topics.items():
            for index, assignment in info.partitions.items():
                assert not assignment.is_moving, (topic, index, assignment)
                self.check_partition(topic, index, assignment.replicas)

    def check_partition(self, topic: str, index: int, replicas: tuple[int, ...]) -> None:
        path = f"{TOPICS}/{topic}/partitions/{index}/state"
        node = self.cluster.ensemble.tree.nodes[path]
        state = decode_state(node.data, node.stat())
        assert state.leader in state.isr, (topic, index, state)
        assert set(state.isr) <= set(replicas), (topic, index, state)
        for broker in self.cluster.nodes.values():
            told = broker.plane.cache.partition(topic, index)
            assert told is not None, (broker.id, topic, index)
            assert (told.leader, told.leader_epoch) == (state.leader, state.leader_epoch), (broker.id, told, state)
            held = broker.replicas.partitions.get((topic, index))
            assert (held is not None) == (broker.id in replicas), (broker.id, topic, index)
            if held is not None:
                assert (held.leader_id, held.leader_epoch) == (state.leader, state.leader_epoch), (broker.id, topic)


@pytest.mark.parametrize("seed", range(60))
def test_the_cluster_is_whole_when_everybody_is_back(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.run()
    swarm.check()
