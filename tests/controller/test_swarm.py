"""Machines that start, die and lose sessions while topics come and go, what is under way in any interleaving.

Each seed is one history. While it runs no assertion of the code may fail, and no two brokers write in the same epoch;
at its end, when everybody is back and everything has settled, the cluster must be whole.
"""

from __future__ import annotations

import errno
import random

import pytest

from kbroker.controller.admin import Growth, NewTopic
from kbroker.controller.events import AlterPartition, ElectionType, ElectLeaders, Reassign, ShutDown
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
from tests.controller.cluster import Cluster, Node

BROKERS = (1, 2, 3)
TOPIC_NAMES = ("a", "b", "c")
STEPS = 300
ROUNDS = 3
MOST_DELAY_MS = 3  # of a message, to the store or to a broker, one way
REST_MS = 5_000  # in which everything that is under way ends, and lines that failed are there again


def broken(call: str, path: str) -> OSError | None:
    """The fault of a disk under one of two log directories."""
    return OSError(errno.EIO, "EIO", path) if call == "rename" and path.startswith("/more/") else None


class Swarm:
    """A cluster that does one small thing at a time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(*BROKERS, log_dirs="/data,/more")  # of which one may fail
        self.cluster.net.delay_ms = (0, MOST_DELAY_MS)
        self.cluster.ensemble.delay_ms = lambda: self.rng.randint(0, MOST_DELAY_MS)
        self.leaving: set[int] = set()  # brokers that said they are about to stop
        self.epochs: dict[int, set[int]] = {}  # brokers that were controller, by epoch

    def run(self) -> None:
        moves = [self.step] * 32
        moves += [self.create, self.create, self.grow, self.delete, self.elect, self.stop, self.start, self.start]
        moves += [self.expire, self.shut_down, self.fail_disk, self.reassign, self.reassign]
        moves += [self.reassign, self.reassign, self.catch_up, self.catch_up]
        for _ in range(STEPS):
            self.rng.choice(moves)()
            self.note_epochs()
        for broker in self.leaving & self.cluster.nodes.keys():
            self.end(broker)
        for broker in BROKERS:
            if broker not in self.cluster.nodes:
                self.boot(broker)
        self.cluster.advance(REST_MS)
        for _ in range(ROUNDS):  # reassignments that wait for their new replicas, and deletions that wait for those
            self.catch_up()
            self.cluster.advance(REST_MS)

    def node(self) -> Node | None:
        nodes = list(self.cluster.nodes.values())
        return self.rng.choice(nodes) if nodes else None

    # -- what happens

    def step(self) -> None:
        """The next things that are under way, a controller's request or what a broker makes of it among them."""
        for _ in range(self.rng.randint(1, 10)):
            self.cluster.world.step()

    def create(self) -> None:
        node = self.node()
        if node:
            factor = self.rng.randint(1, 3)
            topic = NewTopic(self.rng.choice(TOPIC_NAMES), self.rng.randint(1, 3), factor, {}, {})
            node.plane.admin.create([topic], validate_only=False)

    def grow(self) -> None:
        node = self.node()
        if node:
            growth = Growth(self.rng.choice(TOPIC_NAMES), self.rng.randint(2, 6), None)
            node.plane.admin.grow([growth], validate_only=False)

    def delete(self) -> None:
        node = self.node()
        if node:
            node.plane.admin.delete([self.rng.choice(TOPIC_NAMES)])

    def elect(self) -> None:
        node = self.node()
        if node:
            kind = self.rng.choice(list(ElectionType))
            wanted = ElectLeaders(((self.rng.choice(TOPIC_NAMES), 0),), kind, lambda codes, changed: None)
            node.plane.controller.put(wanted)

    def reassign(self) -> None:
        """Move something that the controller knows, or call it off."""
        for node in self.cluster.nodes.values():
            epoch = node.plane.controller.epoch
            known = list(epoch.context.all_partitions()) if epoch is not None else []
            if known:
                target = tuple(self.rng.sample(BROKERS, self.rng.randint(1, 3)))
                targets = {self.rng.choice(known): self.rng.choice([target, target, None])}
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
            self.end(node.id)

    def end(self, broker: int) -> None:
        """The process is killed, and its session over."""
        node = self.cluster.nodes.pop(broker)
        session = node.store.session
        node.kill()
        self.cluster.ensemble.end_session(session)

    def start(self) -> None:
        broker = self.rng.choice(BROKERS)
        if broker not in self.cluster.nodes:
            self.boot(broker)

    def boot(self, broker: int) -> None:
        """A process begins with what its disk holds, which is whole again, and no idea of its roles."""
        self.leaving.discard(broker)
        node = self.cluster.nodes[broker] = self.cluster.machine(broker)
        node.disk.fault = None
        assert node.start()

    def expire(self) -> None:
        node = self.node()
        if node:
            node.store.expire()

    def shut_down(self) -> None:
        node = self.node()
        if node:
            target = self.rng.choice(BROKERS)
            self.leaving.add(target)
            node.plane.controller.put(ShutDown(target, -1, lambda code, left: None))

    def fail_disk(self) -> None:
        """What is renamed next in one log directory, as a partition that is deleted, takes it offline."""
        node = self.node()
        if node:
            self.leaving.add(node.id)
            node.disk.fault = broken

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


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_the_cluster_is_whole_when_everybody_is_back(seed: int) -> None:
    swarm = Swarm(seed)
    swarm.run()
    swarm.check()
