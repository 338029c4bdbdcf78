"""A kbroker in a running cluster of Apache Kafka 4.4: one controller, two of Apache's brokers, and one of ours.

It joins by a file of six lines. All the time an idempotent producer writes with acks=all to a topic of three replicas;
nothing that it was told is safe may be lost, twice or out of order, and replicas are compared byte for byte.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests import waiting
from compat_tests.apache import NEWEST, Quorum, QuorumBroker, Server, run_tool
from compat_tests.brokers import KbrokerMember
from compat_tests.checker import Acknowledged, complaints, everything
from compat_tests.clients import LIBRDKAFKA, Driver, running
from compat_tests.raw import METADATA, Connection
from protocol.messages.metadata import MetadataRequest, MetadataResponse

OURS = 3
eventually = partial(waiting.eventually, within_s=60)
TOOLS = "org.apache.kafka.tools"
WRITTEN = 3  # partitions of the topic that is written all the time
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "controlled.shutdown.retry.backoff.ms": "500",
    "replica.lag.time.max.ms": "5000",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
RULED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Access rules are kept and told; who connects here may do everything all the same."""
pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


class Cluster:
    """Brokers 1 and 2 are Apache's, 3 is ours; `with` runs all, controllers first. brokers: by node id."""

    def __init__(self, folder: Path, quorum: Quorum) -> None:
        self.folder, self.quorum = folder, quorum
        self.brokers: dict[int, Server] = {
            node_id: QuorumBroker(quorum, folder / f"broker{node_id}", node_id, settings=SETTINGS | RULED, heap="320m")
            for node_id in (1, 2)
        }
        self.brokers[OURS] = KbrokerMember(quorum, folder / f"broker{OURS}", OURS, settings=SETTINGS | RULED)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for each in (*self.quorum.controllers.values(), *self.brokers.values()):
                stack.enter_context(each)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> str:
        """Of all brokers, as bootstrap.servers wants them."""
        return ",".join(broker.address for broker in self.brokers.values())

    def seen(self, at: int) -> MetadataResponse:
        """The cluster as a broker tells it."""
        with Connection(self.brokers[at].port) as connection:
            answer: MetadataResponse = connection.ask(MetadataRequest(topics=None), METADATA)
            return answer

    def partitions(self, topic: str, at: int = OURS) -> list[tuple[int, tuple[int, ...], frozenset[int]]]:
        """(leader, replicas, in-sync replicas) of each partition, as a broker tells them."""
        return [
            (each.leader_id, tuple(each.replica_nodes), frozenset(each.isr_nodes))
            for known in self.seen(at).topics
            if known.name == topic
            for each in sorted(known.partitions, key=lambda each: each.partition_index)
        ]

    def make(self, topic: str, *replicas: Sequence[int], at: int = 1, **configs: str) -> None:
        """A topic with these replicas, known to every broker that runs."""
        admin = KafkaAdminClient(bootstrap_servers=self.brokers[at].address)
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        assignment = dict(enumerate(map(list, replicas)))
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignment, topic_configs=settings)])
        admin.close()
        for number, broker in self.brokers.items():
            if broker.alive:
                eventually(lambda number=number: len(self.partitions(topic, number)) == len(replicas))  # type: ignore[misc]

    def tool(self, name: str, *arguments: str, at: int = OURS, code: int = 0) -> str:
        """What one of Apache's tools said, that knows one broker."""
        done = run_tool(NEWEST, name, "--bootstrap-server", self.brokers[at].address, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def move(self, topic: str, *replicas: Sequence[int], at: int = OURS) -> None:
        """Apache's tool moves the partitions of a topic, and says in the end that it is done."""
        plan = self.folder / f"{topic}.json"
        moves = [{"topic": topic, "partition": index, "replicas": list(some)} for index, some in enumerate(replicas)]
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        command = [f"{TOOLS}.reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan)]
        self.tool(*command, "--execute", at=at)
        for number in self.brokers:
            eventually(
                lambda number=number: (
                    [set(isr) for _, _, isr in self.partitions(topic, number)]  # type: ignore[misc]
                    == [set(some) for some in replicas]
                )
            )
        said = self.tool(*command, "--verify", at=at)
        assert said.count("is completed") == len(replicas), said

    def all_in_sync(self, topic: str) -> None:
        """Wait until every broker knows that every replica is in sync."""
        for number in self.brokers:
            eventually(
                lambda number=number: all(set(isr) == set(some) for _, some, isr in self.partitions(topic, number))  # type: ignore[misc]
            )

    def log(self, topic: str, index: int, at: int) -> bytes:
        """The bytes of a replica."""
        found = sorted((self.folder / f"broker{at}").glob(f"data*/{topic}-{index}/*.log"))
        return b"".join(each.read_bytes() for each in found)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("quorum")
    with Cluster(folder, Quorum(NEWEST, folder, settings=RULED)) as made:
        yield made


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[Driver]:
    with running(cluster.addresses, tmp_path, LIBRDKAFKA) as (found,):
        yield found


def test_a_broker_that_joined_is_one_of_the_cluster_as_all_of_them_tell_it(cluster: Cluster) -> None:
    for number in cluster.brokers:
        eventually(lambda number=number: {each.node_id for each in cluster.seen(number).brokers} == {1, 2, OURS})  # type: ignore[misc]


def test_a_busy_topic_is_moved_onto_it_and_back_and_it_is_killed_and_no_record_is_lost(
    cluster: Cluster, driver: Driver
) -> None:
    topic = "busy"
    cluster.make(topic, [1, 2], [2, 1], [1, 2], min_insync_replicas="2")
    driver.start_writing(topic, WRITTEN, 2, 200)

    def written_on() -> None:
        before = driver.written()
        eventually(lambda: all(now > then + 20 for now, then in zip(driver.written(), before, strict=True)))

    written_on()
    cluster.move(topic, [OURS, 1, 2], [OURS, 2, 1], [1, OURS, 2])
    cluster.tool(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    eventually(lambda: [leader for leader, _, _ in cluster.partitions(topic)] == [OURS, OURS, 1])
    written_on()
    cluster.brokers[OURS].kill()
    eventually(lambda: OURS not in {leader for leader, _, _ in cluster.partitions(topic, 1)})
    written_on()
    cluster.brokers[OURS].start()
    cluster.all_in_sync(topic)
    cluster.tool(f"{TOOLS}.LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    eventually(lambda: [leader for leader, _, _ in cluster.partitions(topic)] == [OURS, OURS, 1])
    written_on()
    cluster.brokers[1].kill()
    eventually(lambda: 1 not in {leader for leader, _, _ in cluster.partitions(topic)})
    written_on()
    cluster.brokers[1].start()
    cluster.all_in_sync(topic)
    cluster.brokers[OURS].stop()
    eventually(lambda: OURS not in {leader for leader, _, _ in cluster.partitions(topic, 1)})
    written_on()
    cluster.brokers[OURS].start()
    cluster.all_in_sync(topic)
    written_on()
    places, failed = driver.stop_writing()
    cluster.all_in_sync(topic)
    logs = {at: [cluster.log(topic, index, at) for index in range(WRITTEN)] for at in cluster.brokers}
    assert logs[OURS] == logs[1] == logs[2]
    cluster.move(topic, [1, 2], [2, 1], [1, 2])
    assert failed == []
    acknowledged = [Acknowledged("librdkafka", *each) for each in places]
    assert complaints(acknowledged, everything(driver, topic, WRITTEN)) == []
    eventually(lambda: not any(cluster.log(topic, index, OURS) for index in range(WRITTEN)))


def test_clients_admin_requests_are_passed_on_and_answered_as_the_controllers_answer(cluster: Cluster) -> None:
    """Apache's tools, which know ours alone."""
    topic = "asked"
    topics = f"{TOOLS}.TopicCommand"
    cluster.tool(topics, "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    said = cluster.tool(topics, "--create", "--topic", topic, "--partitions", "2", code=1)
    assert f"Topic '{topic}' already exists." in said
    cluster.tool(topics, "--alter", "--topic", topic, "--partitions", "4")
    for number in cluster.brokers:
        eventually(lambda number=number: len(cluster.partitions(topic, number)) == 4)  # type: ignore[misc]
    configs = "org.apache.kafka.tools.ConfigCommand"
    change = ("--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config")
    cluster.tool(configs, *change, "min.insync.replicas=2,segment.bytes=1048576")
    described = cluster.tool(topics, "--describe", "--topic", topic)
    assert "min.insync.replicas=2" in described
    assert "segment.bytes=1048576" in described
    refused = cluster.tool(configs, *change, "segment.bytes=zero", code=1)
    assert "segment.bytes" in refused
    client = ("--entity-type", "clients", "--entity-name", "c")
    cluster.tool(configs, "--alter", *client, "--add-config", "producer_byte_rate=1000")
    quotas = cluster.tool(configs, "--describe", *client)
    assert "producer_byte_rate=1000" in quotas
    rules = "org.apache.kafka.tools.AclCommand"
    for operation in ("READ", "WRITE"):
        cluster.tool(rules, "--add", "--allow-principal", "User:alice", "--operation", operation, "--topic", topic)
    told = cluster.tool(rules, "--list", at=1)
    assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in told
    eventually(lambda: sorted(cluster.tool(rules, "--list").split()) == sorted(told.split()))
    cluster.tool(rules, "--remove", "--force", "--topic", topic)
    eventually(lambda: "alice" not in cluster.tool(rules, "--list"))
    quorum = cluster.tool(f"{TOOLS}.MetadataQuorumCommand", "describe", "--status")
    assert f"LeaderId: {min(cluster.quorum.controllers)}" in " ".join(quorum.split())
    assert f"{OURS}" in cluster.tool(f"{TOOLS}.MetadataQuorumCommand", "describe", "--replication")
    features = cluster.tool(f"{TOOLS}.FeatureCommand", "describe")
    assert "Feature: metadata.version" in features
    cluster.tool(topics, "--delete", "--topic", topic)
    for number in cluster.brokers:
        eventually(lambda number=number: not cluster.partitions(topic, number))  # type: ignore[misc]
    eventually(lambda: not list((cluster.folder / f"broker{OURS}").glob(f"data*/{topic}-?")))


def test_a_member_that_stands_still_is_fenced_and_comes_back(cluster: Cluster, driver: Driver) -> None:
    topic = "paused"
    cluster.make(topic, [OURS, 1, 2], [1, OURS, 2], min_insync_replicas="2")
    driver.start_writing(topic, 2, 2, 200)
    eventually(lambda: min(driver.written()) > 50)
    os.kill(cluster.brokers[OURS].pid, signal.SIGSTOP)
    try:
        eventually(lambda: [leader for leader, _, _ in cluster.partitions(topic, 1)] == [1, 1])
        before = min(driver.written())
        eventually(lambda: min(driver.written()) > before + 50)
    finally:
        os.kill(cluster.brokers[OURS].pid, signal.SIGCONT)
    cluster.all_in_sync(topic)
    assert f"broker {OURS} is fenced: controllers have not heard of it in time" in cluster.brokers[OURS].output
    before = min(driver.written())
    eventually(lambda: min(driver.written()) > before + 50)
    places, failed = driver.stop_writing()
    assert failed == []
    acknowledged = [Acknowledged("librdkafka", *each) for each in places]
    assert complaints(acknowledged, everything(driver, topic, 2)) == []


@pytest.mark.parametrize(
    ("settings", "cluster_id", "line"),
    [
        ({}, "", "meta.properties: there is none with a cluster.id: kbroker storage format makes it"),
        ({}, "AAAAAAAAAAAAAAAAAAAAAA", "a controller of cluster "),
        ({"node.id": "1"}, "ours", "node.id=1 is that of another broker, which lives"),
        ({"process.roles": "broker,controller", "controller.quorum.voters": "9@h:1,8@h:2"}, "ours", "votes in no"),
        ({"controller.quorum.bootstrap.servers": "127.0.0.1:1"}, "ours", "no controller has answered"),
    ],
    ids=["unformatted", "another cluster", "node id taken", "controller", "no quorum"],
)  # fmt: skip
def test_a_member_that_cannot_join_says_why_in_a_line(
    cluster: Cluster, tmp_path: Path, settings: dict[str, str], cluster_id: str, line: str
) -> None:
    wanted = {"initial.broker.registration.timeout.ms": "4000", "broker.session.timeout.ms": "3000", **settings}
    member = KbrokerMember(cluster.quorum, tmp_path, 9, settings=wanted)
    if cluster_id and "controller" not in settings.get("process.roles", ""):
        member.format(cluster.quorum.cluster_id if cluster_id == "ours" else cluster_id)
    done = subprocess.run(member.command, capture_output=True, text=True, timeout=60)
    said = (done.stdout + done.stderr).splitlines()
    assert done.returncode != 0
    assert [each for each in said if line in each], said
    assert not any("Traceback" in each for each in said), said
