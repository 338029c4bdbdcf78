"""Three brokers of one kind as a cluster of processes, to be measured together.

Used by `cluster_rows.py`. Ours are coordinated by a dev-cluster's metadata server, or by Apache's ZooKeeper where a row
compares with Apache Kafka 3.9.1 on it; Apache's 4.4.0 by themselves (KRaft), each node broker and controller at once.
What a cluster used is the sum over its brokers; what keeps the metadata is no broker and not counted, but for
KRaft, where it is the brokers' own work. Data directories lie side by side, and are gone at the end.

Or one cluster has a member of each kind (`members`), beside two of Apache's brokers and on a controller of Apache's, so
that what a member costs is compared where all else is the same.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness.brokers import APACHE_JVM, APACHES, HOST, OURS, RELEASE, ROOT, Broker, Kbroker
from benchmarks.harness.wire import TIMEOUT_S, Connection, LoadError
from compat_tests.apache import KraftBroker, Quorum, QuorumBroker, ZooKeeper, ZooKeeperBroker, free_port
from kbroker.log.checkpoints import format_uuid
from protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)

COUNT = 3
HEAP = "768m"
JVM = tuple(each for each in APACHE_JVM if not each.startswith("-Xms"))  # a start heap over the largest is refused
METADATA_VERSION = 9
SESSION_TIMEOUT_MS = 6000
SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "auto.leader.rebalance.enable": "false",
}
POLL_S = 0.005


class ApacheMember(Broker):
    """A broker of an Apache cluster. make: writes its settings, and gives its command line."""

    kind = APACHES

    def __init__(self, folder: Path, settings: Mapping[str, str], make: Callable[[ApacheMember], list[str]]) -> None:
        super().__init__(folder, {**settings, "controlled.shutdown.enable": "false"})
        self._make = make

    def command(self) -> list[str]:
        """Its main class; a new data directory is formatted first, if there is need for it."""
        return self._make(self)


class Cluster:
    """Brokers with the ids 1, 2, 3, all of them started."""

    def __init__(self, kind: str, members: Sequence[Broker]) -> None:
        self.kind = kind
        self.members = dict(enumerate(members, 1))

    @property
    def living(self) -> dict[int, Broker]:
        """Those that run."""
        return {number: each for number, each in self.members.items() if each.alive}

    def cpu_s(self) -> float:
        """Processor seconds so far of all that run."""
        return sum(each.cpu_s() for each in self.living.values())

    def connect(self, number: int = 1) -> Connection:
        """A connection to one of them."""
        return self.members[number].connect()

    def controller(self) -> Connection:
        """A connection to the broker that topics are made at."""
        with self.connect() as connection:
            return self.connect(seen(connection, []).controller_id)

    def await_brokers(self) -> None:
        """Until each knows of all, and of a controller."""
        for each in self.living.values():
            with each.connect(patience_s=TIMEOUT_S) as connection:
                until(lambda: self._are_all(seen(connection, [])), "the brokers know each other")

    def _are_all(self, known: MetadataResponse) -> bool:
        return len(known.brokers) == len(self.living) and known.controller_id in self.living

    def await_in_sync(self, topics: Sequence[str]) -> None:
        """Until all replicas of these topics' partitions are in sync, as every broker tells."""
        for each in self.living.values():
            with each.connect() as connection:
                for topic in topics:
                    until(lambda: all_in_sync(partitions(connection, topic)), f"{topic} is in sync")  # noqa: B023


class Membership(Cluster):
    """Two of Apache's brokers, 1 and 2, and one more beside them; what that uses is counted."""

    def __init__(self, kind: str, beside: Mapping[int, Broker], number: int, member: Broker) -> None:
        self.kind = kind
        self.members = {**beside, number: member}
        self._member = member

    def cpu_s(self) -> float:
        """Processor seconds so far of the one more."""
        return self._member.cpu_s()

    def controller(self) -> Connection:
        """To any broker: it passes on what a controller has to do."""
        return self.connect()


class QuorumKbroker(Kbroker):
    """A kbroker whose directories are formatted for a quorum's cluster."""

    def __init__(self, folder: Path, settings: Mapping[str, str], cluster_id: str) -> None:
        super().__init__(folder, settings)
        self._cluster_id = cluster_id

    def command(self) -> list[str]:
        """As Kbroker's; a new data directory is formatted first."""
        command = super().command()
        tool = [sys.executable, "-m", "kbroker.cli", "storage", "format", "--ignore-formatted"]
        subprocess.run([*tool, "-c", command[-1], "-t", self._cluster_id], check=True, capture_output=True, cwd=ROOT)
        return command


def seen(connection: Connection, topics: Sequence[str]) -> MetadataResponse:
    """What a broker knows of these topics, and of the brokers."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in topics])
    answer: MetadataResponse = connection.ask(asked, METADATA_VERSION)
    return answer


def partitions(connection: Connection, topic: str) -> list[MetadataResponsePartition]:
    """Its partitions by index, as one broker knows them."""
    found = seen(connection, [topic]).topics[0].partitions
    return sorted(found, key=lambda each: each.partition_index)


def all_in_sync(found: Sequence[MetadataResponsePartition]) -> bool:
    """Whether every replica of these partitions is."""
    return bool(found) and all(len(each.isr_nodes) == len(each.replica_nodes) for each in found)


def until(done: Callable[[], bool], what: str, patience_s: float = TIMEOUT_S) -> None:
    """Ask until it holds. Raises: LoadError after so long."""
    deadline = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > deadline:
            raise LoadError(f"not within {patience_s:.0f} s: {what}")
        time.sleep(POLL_S)


# ---- making one


@contextmanager
def cluster(
    kind: str, folder: Path, *, zookeeper: ZooKeeper | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """Three brokers that know each other; killed, not stopped, at the end.

    zookeeper: what coordinates them; without it the metadata server of a dev-cluster, or KRaft.
    """
    wanted = {**SETTINGS, **(settings or {})}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if kind == OURS:
            address = zookeeper.address if zookeeper else stack.enter_context(metadata_server(folder / "metadata"))
            members: list[Broker] = _ours(folder, wanted, address)
        elif zookeeper:
            members = _on_zookeeper(folder, wanted, zookeeper.address)
        else:
            members = _kraft(folder, wanted)
        for each in members:
            stack.callback(each.kill)
            each.launch()
        made = Cluster(kind, members)
        made.await_brokers()
        yield made


@contextmanager
def clusters(kinds: Sequence[str], folder: Path) -> Iterator[list[Cluster]]:
    """A cluster of each kind, all of them up at once."""
    with ExitStack() as stack:
        yield [stack.enter_context(cluster(kind, folder / kind)) for kind in kinds]


@contextmanager
def members(kinds: Sequence[str], folder: Path) -> Iterator[list[Cluster]]:
    """One cluster on a controller of Apache Kafka 4.4.0: its brokers 1 and 2, and one of each kind from 3 on."""
    place = folder / "members"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        quorum = Quorum(RELEASE, place)
        for controller in quorum.controllers.values():
            stack.enter_context(controller)
        beside = {number: _apache_in(quorum, place, number) for number in (1, 2)}
        added = dict(enumerate(kinds, len(beside) + 1))
        brokers = {
            number: _kbroker_in(quorum, place, number) if kind == OURS else _apache_in(quorum, place, number)
            for number, kind in added.items()
        }
        together = Cluster(APACHES, [*beside.values(), *brokers.values()])
        for each in together.members.values():
            stack.callback(each.kill)
            each.launch()
        together.await_brokers()
        yield [Membership(kind, beside, number, brokers[number]) for number, kind in added.items()]


def _apache_in(quorum: Quorum, folder: Path, number: int) -> Broker:
    def command(member: ApacheMember) -> list[str]:
        made = QuorumBroker(
            quorum, member.folder, number, settings=member.settings, heap=HEAP, jvm=JVM, port=member.port
        )
        made.format()
        return made.command

    return ApacheMember(folder / f"broker{number}", SETTINGS, command)


def _kbroker_in(quorum: Quorum, folder: Path, number: int) -> Broker:
    of_quorum = {
        "process.roles": "broker",
        "broker.id": str(number),
        "node.id": str(number),
        "controller.quorum.bootstrap.servers": quorum.servers,
        "controller.listener.names": "CONTROLLER",
    }
    return QuorumKbroker(folder / f"broker{number}", SETTINGS | of_quorum, quorum.cluster_id)


@contextmanager
def metadata_server(folder: Path) -> Iterator[str]:
    """The address of a metadata server, in a process of its own."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.harness.metadata_server", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"{HOST}:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _ours(folder: Path, settings: Mapping[str, str], address: str) -> list[Broker]:
    return [
        Kbroker(
            folder / f"broker{number}",
            {
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                **settings,
                "broker.id": str(number),
                "zookeeper.connect": address,
            },
        )
        for number in range(1, COUNT + 1)
    ]


def _on_zookeeper(folder: Path, settings: Mapping[str, str], address: str) -> list[Broker]:
    def member(number: int) -> Broker:
        def command(member: ApacheMember) -> list[str]:
            made = ZooKeeperBroker(
                member.folder,
                zookeeper=address,
                node_id=number,
                settings=member.settings,
                heap=HEAP,
                jvm=JVM,
                port=member.port,
            )
            return made.command

        timeout = {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        return ApacheMember(folder / f"broker{number}", {**timeout, **settings}, command)

    return [member(number) for number in range(1, COUNT + 1)]


def _kraft(folder: Path, settings: Mapping[str, str]) -> list[Broker]:
    controllers = {number: free_port() for number in range(1, COUNT + 1)}
    voters = ",".join(f"{number}@{HOST}:{port}" for number, port in controllers.items())
    cluster_id = format_uuid(uuid.uuid4().bytes)

    def member(number: int) -> Broker:
        def command(member: ApacheMember) -> list[str]:
            listeners = f"PLAINTEXT://{member.address},CONTROLLER://{HOST}:{controllers[number]}"
            own = {"controller.quorum.voters": voters, "listeners": listeners}
            made = KraftBroker(
                RELEASE,
                member.folder,
                settings={**member.settings, **own},
                heap=HEAP,
                jvm=JVM,
                port=member.port,
                node_id=number,
            )
            made.format(cluster_id)
            return made.command

        timeout = {"broker.session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        return ApacheMember(folder / f"broker{number}", {**timeout, **settings}, command)

    return [member(number) for number in range(1, COUNT + 1)]
