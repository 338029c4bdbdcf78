"""Named stories of replication on real processes: brokers and ZooKeeper, each on a host of its own, in a real network.

Three brokers, Apache's ZooKeeper, and stock clients that write all the time, idempotent and with acks=all. Hosts are
network namespaces (see namespaces.py): links are cut and slowed, processes killed and paused, and then all is mended.
In the end every acknowledged record is there once, where its writer was told, in order; and the replicas have the same
bytes. The same stories are told step by step in tests/sim/test_replication_stories.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat_tests import waiting
from compat_tests.checker import Acknowledged, complaints, everything
from compat_tests.clients import LIBRDKAFKA, REFERENCE, Client, Driver, running
from compat_tests.namespaces import BrokerOn, Network, NoNamespacesError, ZooKeeperOn
from compat_tests.raw import METADATA, Connection
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.metadata import MetadataRequest, MetadataResponse
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]
eventually = partial(waiting.eventually, within_s=60)

NUMBERS = (1, 2, 3)
ZOOKEEPER, CLIENT = "zk", "client"
LEADERS = {0: 1, 1: 2, 2: 3}  # of a new topic's partitions
PAUSE_MS, SIZE = 10, 500  # 50 kB/s from each writer
MOST_KILLS = 10  # a kill and all that follows takes some ten seconds
MORE = 20  # records, for a partition to be taken for one that is written to
WRITERS = {"librdkafka": LIBRDKAFKA, "kafka-python": REFERENCE}
SETTINGS = {
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "2000",
    "replica.socket.timeout.ms": "3000",
    "controller.socket.timeout.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
    "min.insync.replicas": "2",
}


class State(NamedTuple):
    """A partition, as a broker tells it."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


class Lab:
    """Three brokers and a ZooKeeper on hosts 1 to 3 and `zk`; whoever asks or writes is on host `client`."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.zookeeper = ZooKeeperOn(network[ZOOKEEPER], folder / "zookeeper")
        connect = {"zookeeper.connect": self.zookeeper.address}
        self.brokers = {
            number: BrokerOn(
                network[str(number)], folder / f"broker{number}", {**SETTINGS, **connect, "broker.id": str(number)}
            )
            for number in NUMBERS
        }

    @property
    def bootstrap(self) -> str:
        """Of all brokers."""
        return ",".join(broker.address for broker in self.brokers.values())

    def ask(self, at: int, request: Message, version: int) -> Any:
        """A broker's answer. Raises OSError."""
        socket = self.network[CLIENT].connect(self.brokers[at].host, self.brokers[at].port)
        with Connection(over=socket) as connection:
            return connection.ask(request, version)

    def seen(self, at: int) -> MetadataResponse:
        """The cluster as a broker tells it."""
        answer: MetadataResponse = self.ask(at, MetadataRequest(topics=None), METADATA)
        return answer

    def controller(self, at: int = 1) -> int:
        """Who controls, as a broker tells it."""
        return self.seen(at).controller_id

    def partitions(self, topic: str, at: int) -> dict[int, State]:
        """The partitions of a topic, as a broker tells them."""
        return {
            each.partition_index: State(each.leader_id, tuple(each.replica_nodes), frozenset(each.isr_nodes))
            for known in self.seen(at).topics
            if known.name == topic
            for each in known.partitions
        }

    def make(self, topic: str, *replicas: tuple[int, ...]) -> None:
        """A topic with these replicas, known to all brokers and in sync."""
        assignments = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
            for index, ids in enumerate(replicas)
        ]
        new = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=[])
        request = CreateTopicsRequest(topics=[new], timeout_ms=30_000)
        (made,) = self.ask(self.controller(), request, 5).topics
        assert made.error_code == ErrorCode.NONE, made
        self.await_whole(topic)

    def await_whole(self, topic: str) -> None:
        """Wait until each broker tells of each partition that all of its replicas are in sync."""

        def whole() -> bool:
            told = [self.partitions(topic, at) for at in NUMBERS]
            return all(
                states and all(each.leader > 0 and each.in_sync == set(each.replicas) for each in states.values())
                for states in told
            )

        eventually(lambda: tried(whole))

    def elect_preferred(self) -> None:
        """Let the first replica lead, everywhere."""
        request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=30_000)
        answer = self.ask(self.controller(), request, 2)
        assert answer.error_code == ErrorCode.NONE, answer

    def reassign(self, topic: str, index: int, replicas: list[int] | None) -> None:
        """Let a partition be on these brokers; None: call off the move under way."""
        part = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=30_000, topics=[ReassignableTopic(name=topic, partitions=[part])]
        )
        answer = self.ask(self.controller(), request, 0)
        assert answer.error_code == answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer

    def signal(self, number: int, what: signal.Signals) -> None:
        """Pause a broker's process, or let it go on."""
        os.kill(self.brokers[number].pid, what)

    def log(self, topic: str, index: int, at: int) -> bytes:
        """The bytes of a replica."""
        found = sorted((self.folder / f"broker{at}" / "data" / f"{topic}-{index}").glob("*.log"))
        return b"".join(each.read_bytes() for each in found)

    def mend(self) -> None:
        """All links and all processes as at first."""
        self.network.mend()
        for server in (self.zookeeper, *self.brokers.values()):
            if server.alive:
                os.kill(server.pid, signal.SIGCONT)
            else:
                server.kill()  # what has ended by itself
                server.start()
        eventually(lambda: tried(lambda: all(len(self.seen(at).brokers) == len(NUMBERS) for at in NUMBERS)))


def tried(holds: Callable[[], bool]) -> bool:
    """Whether it holds; not so, if whoever is asked does not answer."""
    try:
        return holds()
    except OSError:
        return False


class Story:
    """Writers to a topic with three partitions, each led by one of the brokers at first; used as a `with` block.

    The block's end mends everything, and judges.
    """

    def __init__(self, lab: Lab, drivers: dict[str, Driver], topic: str) -> None:
        self.lab, self.topic = lab, topic
        self._drivers = drivers

    def __enter__(self) -> Story:
        first, second, third = NUMBERS
        self.lab.make(self.topic, (first, second, third), (second, third, first), (third, first, second))
        for driver in self._drivers.values():
            driver.start_writing(self.topic, len(LEADERS), PAUSE_MS, SIZE)
        self.goes_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.lab.mend()
            if kind is None:
                self.lab.await_whole(self.topic)
                self.goes_on()
        finally:
            ended = {name: driver.stop_writing() for name, driver in self._drivers.items()}
        if kind is None:
            self._judge(ended)

    def leader(self, index: int, at: int) -> int:
        """Who leads a partition, as a broker tells it; -1: it does not answer."""
        try:
            return self.lab.partitions(self.topic, at)[index].leader
        except OSError:
            return -1

    def written(self) -> dict[str, list[int]]:
        """How many records are acknowledged, by writer and partition."""
        return {name: driver.written() for name, driver in self._drivers.items()}

    def goes_on(self, *partitions: int) -> None:
        """Wait until each writer has more acknowledged in each of the partitions; none named: in all."""
        before = self.written()
        wanted = partitions or tuple(LEADERS)

        def more() -> bool:
            now = self.written()
            return all(now[name][index] >= before[name][index] + MORE for name in now for index in wanted)

        eventually(more)

    def _judge(self, ended: dict[str, tuple[list[tuple[int, int, int]], list[str]]]) -> None:
        assert [failed for _, failed in ended.values() if failed] == []
        acknowledged = [Acknowledged(name, *each) for name, (places, _) in ended.items() for each in places]
        found = everything(self._drivers["kafka-python"], self.topic, len(LEADERS))
        assert complaints(acknowledged, found) == []
        for index in LEADERS:
            whole = self.lab.log(self.topic, index, 1)
            assert len(whole) > len(acknowledged) / len(LEADERS) * SIZE
            eventually(partial(self._are_alike, index))

    def _are_alike(self, index: int) -> bool:
        """Whether the replicas have the same bytes."""
        return len({self.lab.log(self.topic, index, at) for at in NUMBERS}) == 1


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    with ExitStack() as running_:
        try:
            network = running_.enter_context(Network(*map(str, NUMBERS), ZOOKEEPER, CLIENT))
        except NoNamespacesError as reason:
            pytest.skip(f"no network namespaces here: {reason}")
        made = Lab(network, folder)
        running_.enter_context(made.zookeeper)
        for broker in made.brokers.values():
            running_.callback(broker.kill)
            broker.start()
        made.mend()
        yield made


@pytest.fixture(scope="module")
def drivers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Driver]]:
    host = lab.network[CLIENT]

    def there(client: Client) -> Client:
        return replace(client, command=lambda: host.command(client.command()))

    clients = [there(client) for client in WRITERS.values()]
    with running(lab.bootstrap, tmp_path_factory.mktemp("clients"), *clients) as started:
        yield dict(zip(WRITERS, started, strict=True))


@pytest.fixture
def story(lab: Lab, drivers: dict[str, Driver], topic: str) -> Iterator[Story]:
    with Story(lab, drivers, topic) as told:
        yield told


def index_led_by(number: int) -> int:
    """The partition that a broker leads while nothing has happened."""
    return next(index for index, leader in LEADERS.items() if leader == number)


def others(*numbers: int) -> list[int]:
    return [each for each in NUMBERS if each not in numbers]


@pytest.mark.quick
def test_a_leader_cut_off_from_zookeeper_but_not_from_its_peers_is_followed_by_another(lab: Lab, story: Story) -> None:
    """The zombie, which may acknowledge nothing once another leads."""
    zombie = others(lab.controller())[0]
    led, (other, _) = index_led_by(zombie), others(zombie)
    lab.network.cut(str(zombie), ZOOKEEPER)
    eventually(lambda: story.leader(led, other) in others(zombie))
    story.goes_on()


@pytest.mark.parametrize("controls", [False, True], ids=["it does not control", "it controls"])
def test_a_leader_cut_off_from_its_peers_but_not_from_zookeeper_commits_nothing(
    lab: Lab, story: Story, controls: bool
) -> None:
    controller = lab.controller()
    lonely = controller if controls else others(controller)[0]
    led, (one, other) = index_led_by(lonely), others(lonely)
    lab.network.cut(str(lonely), str(one), str(other))
    if controls:  # which is told of what the others cannot say to it only by ZooKeeper: it leads, and shrinks alone
        eventually(lambda: lab.partitions(story.topic, lonely)[led].in_sync == {lonely})
    else:
        rest = [index for index in LEADERS if index != led]
        eventually(lambda: all(lonely not in lab.partitions(story.topic, one)[each].in_sync for each in rest))
        story.goes_on(*rest)
    before = [counts[led] for counts in story.written().values()]
    if not controls:
        story.goes_on(*rest)
        assert [counts[led] for counts in story.written().values()] == before


def test_the_controller_cut_off_from_one_broker(lab: Lab, story: Story, topic: str) -> None:
    """The broker hears no orders: what is made meanwhile it takes up later."""
    controller = lab.controller()
    deaf, other = others(controller)
    lab.network.cut(str(controller), str(deaf))
    eventually(lambda: deaf not in lab.partitions(story.topic, controller)[index_led_by(controller)].in_sync)
    story.goes_on(index_led_by(controller))
    lab.network.mend()
    lab.await_whole(story.topic)
    lab.make(f"{topic}-late", (deaf, other))


def test_the_controller_cut_off_from_zookeeper_is_followed_by_another(lab: Lab, story: Story, topic: str) -> None:
    old = lab.controller()
    one, other = others(old)
    lab.network.cut(str(old), ZOOKEEPER)
    eventually(lambda: lab.controller(at=one) in (one, other))
    story.goes_on()
    lab.network.mend()
    eventually(lambda: lab.controller(at=old) in (one, other))
    lab.make(f"{topic}-new", (old, one, other))


def test_the_cable_of_a_broker_is_pulled(lab: Lab, story: Story) -> None:
    gone = lab.controller()
    other = others(gone)[0]
    lab.network.unplug(str(gone))
    eventually(lambda: story.leader(index_led_by(gone), other) in others(gone))
    story.goes_on()


def test_a_slow_follower_leaves_the_in_sync_set_and_enters_it_again(lab: Lab, story: Story) -> None:
    slow = others(lab.controller())[0]
    leader = others(slow)[0]
    led = index_led_by(leader)
    lab.network.slow(str(slow), bits_per_s=100_000)
    eventually(lambda: tried(lambda: slow not in lab.partitions(story.topic, leader)[led].in_sync))
    story.goes_on(led)


@pytest.mark.parametrize("role", ["leader", "controller"])
def test_a_broker_is_paused_for_longer_than_its_session(lab: Lab, story: Story, role: str) -> None:
    controller = lab.controller()
    paused = controller if role == "controller" else others(controller)[0]
    other = others(paused)[0]
    lab.signal(paused, signal.SIGSTOP)
    eventually(lambda: story.leader(index_led_by(paused), other) in others(paused))
    story.goes_on()
    lab.signal(paused, signal.SIGCONT)
    eventually(lambda: len(lab.seen(other).brokers) == len(NUMBERS))


@pytest.mark.timeout(600)
def test_leaders_are_killed_one_after_the_other(lab: Lab, story: Story, request: pytest.FixtureRequest) -> None:
    """Whoever leads the first partition, which is more often than not before its followers know the high watermark."""
    at = 1
    for _ in range(min(request.config.getoption("--kills"), MOST_KILLS)):
        victim = story.leader(0, at)
        at = others(victim)[0]
        lab.brokers[victim].kill()
        eventually(lambda victim=victim, at=at: story.leader(0, at) in others(victim))  # type: ignore[misc]
        story.goes_on()
        lab.brokers[victim].start()
        lab.await_whole(story.topic)


def test_zookeeper_is_killed_and_paused_while_the_data_goes_on(lab: Lab, story: Story) -> None:
    lab.zookeeper.kill()
    story.goes_on()
    lab.zookeeper.start()
    lab.mend()
    os.kill(lab.zookeeper.pid, signal.SIGSTOP)
    story.goes_on()


def test_leaders_go_back_to_the_preferred_replicas_after_a_rolling_restart(lab: Lab, story: Story) -> None:
    for number in NUMBERS:
        lab.brokers[number].stop()
        story.goes_on()
        lab.brokers[number].start()
        lab.await_whole(story.topic)
    lab.elect_preferred()
    eventually(lambda: {index: story.leader(index, 1) for index in LEADERS} == LEADERS)
    story.goes_on()


def test_a_reassignment_is_called_off_halfway(lab: Lab, story: Story, topic: str) -> None:
    """The new replica is paused, so that it cannot get in sync before the move is called off."""
    controller = lab.controller()
    stays, new = controller, others(controller)[0]
    moving = f"{topic}-moving"
    lab.make(moving, (stays,))
    lab.signal(new, signal.SIGSTOP)
    lab.reassign(moving, 0, [new])
    eventually(lambda: set(lab.partitions(moving, stays)[0].replicas) == {stays, new})
    lab.reassign(moving, 0, None)
    eventually(lambda: lab.partitions(moving, stays)[0] == State(stays, (stays,), frozenset({stays})))
    lab.signal(new, signal.SIGCONT)
    lab.await_whole(moving)
    eventually(lambda: not lab.log(moving, 0, new))
    story.goes_on()
