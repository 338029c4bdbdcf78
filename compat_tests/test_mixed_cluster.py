"""One cluster of kbroker and Apache Kafka 3.9.1 on one ZooKeeper: whoever controls it, nobody can tell the difference.

Each test runs with a broker of either kind as controller. What is read comes through both brokers, and replicas are
compared byte for byte in the log directories.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from compat_tests import waiting
from compat_tests.apache import Server, ZooKeeper, ZooKeeperBroker, run_tool
from compat_tests.brokers import KbrokerProcess
from compat_tests.raw import METADATA, Connection
from protocol.messages.metadata import MetadataRequest, MetadataResponse

RELEASE = "3.9.1"
eventually = partial(waiting.eventually, within_s=60)  # three JVMs share the machine with the rest of the suite
TOOLS = "org.apache.kafka.tools"
CONTROLLERS = {"kbroker controls": "kbroker", "Apache controls": "apache"}
OTHER = {"kbroker": "apache", "apache": "kbroker"}
COORDINATED = 4  # partitions of __consumer_offsets: on both brokers
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "10000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "offsets.topic.num.partitions": str(COORDINATED),
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Mixed:
    """Broker 1 of the kind that controls, broker 2 of the other. kinds: of each."""

    def __init__(self, folder: Path, controller: str, zookeeper: str) -> None:
        self.kinds = {1: controller, 2: OTHER[controller]}
        self.folder = folder
        self.brokers: dict[int, Server] = {}
        for number, kind in self.kinds.items():
            place = folder / f"broker{number}"
            if kind == "apache":
                self.brokers[number] = ZooKeeperBroker(
                    place, zookeeper=zookeeper, node_id=number, settings=SETTINGS, heap="256m"
                )
            else:
                own = {"broker.id": str(number), "zookeeper.connect": zookeeper}
                self.brokers[number] = KbrokerProcess(place, settings={**SETTINGS, **own})

    @property
    def addresses(self) -> list[str]:
        """Of the brokers that run."""
        return [broker.address for _, broker in sorted(self.brokers.items()) if broker.alive]

    def seen(self, at: int) -> MetadataResponse:
        """The cluster as a broker tells it."""
        with Connection(self.brokers[at].port) as connection:
            connection.send(MetadataRequest(topics=None), METADATA)
            return connection.receive(MetadataResponse, METADATA)

    def topics(self, at: int) -> set[str]:
        """The topics that a broker knows."""
        return {topic.name for topic in self.seen(at).topics if topic.name is not None}

    def tool(self, name: str, *arguments: str, at: int = 1, code: int = 0) -> str:
        """What one of Apache's tools said."""
        done = run_tool(RELEASE, f"{TOOLS}.{name}", "--bootstrap-server", self.brokers[at].address, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def make(self, topic: str, *replicas: Sequence[int], at: int = 1) -> None:
        """A topic with these replicas, known to every broker that runs."""
        assignment = dict(enumerate(map(list, replicas)))
        admin = KafkaAdminClient(bootstrap_servers=self.brokers[at].address)
        admin.create_topics([NewTopic(topic, -1, -1, replica_assignments=assignment)])
        admin.close()
        for number, broker in self.brokers.items():
            if broker.alive:
                eventually(lambda number=number: len(self.partitions(topic, number)) == len(replicas))  # type: ignore[misc]

    def partitions(self, topic: str, at: int = 1) -> list[tuple[int, tuple[int, ...], frozenset[int]]]:
        """(leader, replicas, in-sync replicas) of each partition, as a broker tells them."""
        found = [each for each in self.seen(at).topics if each.name == topic]
        return [
            (each.leader_id, tuple(each.replica_nodes), frozenset(each.isr_nodes))
            for known in found
            for each in sorted(known.partitions, key=lambda each: each.partition_index)
        ]

    def produce(self, topic: str, partitions: int, count: int, first: int = 0) -> list[bytes]:
        """So many records, all of them acknowledged by all in sync."""
        producer = KafkaProducer(bootstrap_servers=self.addresses, acks="all", enable_idempotence=True, linger_ms=2)
        values = [b"%d" % number for number in range(first, first + count)]
        sent = [producer.send(topic, value, partition=at % partitions) for at, value in enumerate(values)]
        for each in sent:
            each.get(30)
        producer.close()
        return values

    def read(self, topic: str, partitions: int, count: int, at: int = 1) -> list[bytes]:
        """What is in a topic, by somebody who knows one broker; ends when there are as many as expected."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.brokers[at].address, auto_offset_reset="earliest", consumer_timeout_ms=20_000
        )
        consumer.assign([TopicPartition(topic, index) for index in range(partitions)])
        values: list[bytes] = []
        for record in consumer:
            values.append(record.value)
            if len(values) == count:
                break
        consumer.close()
        return sorted(values, key=int)

    def log(self, topic: str, index: int, at: int) -> bytes:
        """The bytes of a replica."""
        found = sorted((self.folder / f"broker{at}").glob(f"data*/{topic}-{index}/*.log"))
        return b"".join(each.read_bytes() for each in found)


@pytest.fixture(scope="module", params=CONTROLLERS.values(), ids=CONTROLLERS)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    folder = tmp_path_factory.mktemp("mixed")
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeper(folder / "zookeeper"))
        made = Mixed(folder, request.param, zookeeper.address)
        for _, broker in sorted(made.brokers.items()):
            running.enter_context(broker)
        eventually(lambda: all(len(made.seen(each).brokers) == 2 for each in made.brokers))
        yield made


@pytest.mark.quick
def test_the_first_controls(mixed: Mixed) -> None:
    assert [mixed.seen(each).controller_id for each in mixed.brokers] == [1, 1]


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.quick), 2])
def test_topics_are_made_described_and_deleted_through_either(mixed: Mixed, at: int, topic: str) -> None:
    mixed.tool("TopicCommand", "--create", "--topic", topic, "--partitions", "4", "--replication-factor", "1", at=at)
    for number in mixed.brokers:
        said = mixed.tool("TopicCommand", "--describe", "--topic", topic, at=number)
        assert sorted(re.findall(r"Leader: (\d)", said)) == ["1", "1", "2", "2"]
    mixed.tool("TopicCommand", "--delete", "--topic", topic, at=at)
    eventually(lambda: all(topic not in mixed.topics(each) for each in mixed.brokers))
    eventually(lambda: not list(mixed.folder.glob(f"broker*/data*/{topic}-?")))


@pytest.mark.quick
def test_records_are_read_through_either(mixed: Mixed, topic: str) -> None:
    mixed.make(topic, [1], [2], [1], [2])
    sent = mixed.produce(topic, 4, 400)
    assert [mixed.read(topic, 4, 400, at) for at in mixed.brokers] == [sent, sent]


@pytest.mark.quick
def test_groups_of_both_coordinators_commit_and_go_on(mixed: Mixed, topic: str) -> None:
    mixed.make(topic, [1], [2])
    mixed.produce(topic, 2, 20)
    for number in range(COORDINATED):
        seen = []
        for _ in range(2):
            consumer = KafkaConsumer(
                topic,
                bootstrap_servers=mixed.addresses,
                group_id=f"{topic}-{number}",
                auto_offset_reset="earliest",
                max_poll_records=10,
                enable_auto_commit=False,
            )
            taken: list[bytes] = []
            while len(taken) < 10:
                taken += [each.value for records in consumer.poll(1000).values() for each in records]
            consumer.commit()
            consumer.close()
            seen += taken
        assert sorted(seen, key=int) == [b"%d" % each for each in range(20)]


@pytest.mark.parametrize("at", [pytest.param(1, marks=pytest.mark.quick), 2])
def test_settings_changed_at_one_broker_count_at_the_other(mixed: Mixed, at: int, topic: str) -> None:
    mixed.make(topic, [3 - at])
    change = ["--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "max.message.bytes=100"]
    done = run_tool(RELEASE, "kafka.admin.ConfigCommand", "--bootstrap-server", mixed.brokers[at].address, *change)
    assert done.returncode == 0, done.stderr

    def is_refused() -> bool:
        producer = KafkaProducer(bootstrap_servers=mixed.addresses, acks="all")
        try:
            producer.send(topic, b"x" * 200).get(20)
        except Exception as error:
            return "MessageSizeTooLarge" in repr(error)
        finally:
            producer.close()
        return False

    eventually(is_refused)


@pytest.mark.quick
def test_an_apache_follower_has_the_bytes_of_its_kbroker_leader_also_after_a_restart(mixed: Mixed, topic: str) -> None:
    leader, follower = (1, 2) if mixed.kinds[1] == "kbroker" else (2, 1)
    mixed.make(topic, [leader, follower])
    sent = mixed.produce(topic, 1, 1000)
    mixed.brokers[follower].stop()
    eventually(lambda: mixed.partitions(topic, leader) == [(leader, (leader, follower), {leader})])
    sent += mixed.produce(topic, 1, 1000, first=1000)
    mixed.brokers[follower].start()
    eventually(lambda: mixed.partitions(topic, leader) == [(leader, (leader, follower), {leader, follower})])
    sent += mixed.produce(topic, 1, 1000, first=2000)
    assert mixed.read(topic, 1, 3000) == sent
    assert mixed.log(topic, 0, leader) == mixed.log(topic, 0, follower)


@pytest.mark.parametrize("how", [pytest.param("stop", marks=pytest.mark.quick), "kill"])
def test_control_passes_to_the_other_kind_and_back(mixed: Mixed, how: str, topic: str) -> None:
    """Ends as it began, with the first in control."""
    for gone, kept in ((1, 2), (2, 1)):
        name = f"{topic}-{kept}"
        mixed.make(f"{topic}-on-{gone}", [gone])
        getattr(mixed.brokers[gone], how)()
        eventually(lambda kept=kept: mixed.seen(kept).controller_id == kept)  # type: ignore[misc]
        mixed.make(name, [kept], at=kept)
        sent = mixed.produce(name, 1, 100)
        mixed.tool("TopicCommand", "--delete", "--topic", f"{topic}-on-{gone}", at=kept)
        mixed.brokers[gone].start()
        eventually(lambda gone=gone: not list(mixed.folder.glob(f"broker{gone}/data*/{topic}-on-{gone}-0")))  # type: ignore[misc]
        assert mixed.read(name, 1, 100, at=gone) == sent
        assert mixed.seen(gone).controller_id == kept


@pytest.mark.quick
def test_a_leader_of_either_kind_and_its_follower_have_the_same_bytes(mixed: Mixed, topic: str) -> None:
    mixed.make(topic, [1, 2], [2, 1])
    sent = mixed.produce(topic, 2, 2000)
    assert mixed.read(topic, 2, 2000) == sent
    for index in range(2):
        assert len(mixed.log(topic, index, 1)) > 1000
        eventually(lambda index=index: mixed.log(topic, index, 1) == mixed.log(topic, index, 2))  # type: ignore[misc]
    assert [in_sync for _, _, in_sync in mixed.partitions(topic)] == [{1, 2}, {1, 2}]


@pytest.mark.parametrize("source", [pytest.param(1, marks=pytest.mark.quick), 2])
def test_a_partition_moves_to_the_other_kind_and_back(mixed: Mixed, source: int, topic: str) -> None:
    target = 3 - source
    mixed.make(topic, [source])
    sent = mixed.produce(topic, 1, 500)
    for place in (target, source):
        plan = mixed.folder / f"{topic}-{place}.json"
        plan.write_text(
            f'{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":[{place}],"log_dirs":["any"]}}]}}'
        )
        command = ["reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan)]
        mixed.tool(*command, "--execute", at=1)
        for number in mixed.brokers:
            eventually(
                lambda place=place, number=number: mixed.partitions(topic, number) == [(place, (place,), {place})]
            )
        mixed.tool(*command, "--verify", at=1)
        sent += mixed.produce(topic, 1, 100, first=len(sent))
        assert mixed.read(topic, 1, len(sent)) == sent
        eventually(lambda place=place: not mixed.log(topic, 0, 3 - place))  # type: ignore[misc]


@pytest.mark.parametrize("stopped", [pytest.param(2, marks=pytest.mark.quick), 1])
def test_one_kind_leads_on_while_the_other_is_stopped_and_hands_back(mixed: Mixed, stopped: int, topic: str) -> None:
    """Stopped is the other broker, then the controller: control passes, and comes back with the next test's stop."""
    kept = 3 - stopped
    mixed.make(topic, [1, 2], [2, 1])
    sent = mixed.produce(topic, 2, 200)
    mixed.brokers[stopped].stop()
    eventually(lambda: [leader for leader, _, _ in mixed.partitions(topic, kept)] == [kept, kept])
    sent += mixed.produce(topic, 2, 200, first=200)
    mixed.make(f"{topic}-new", [kept], at=kept)
    mixed.brokers[stopped].start()
    eventually(lambda: [set(isr) for _, _, isr in mixed.partitions(topic, kept)] == [{1, 2}, {1, 2}])
    mixed.tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions", at=kept)
    eventually(lambda: [leader for leader, _, _ in mixed.partitions(topic, stopped)] == [1, 2])
    sent += mixed.produce(topic, 2, 200, first=400)
    assert mixed.read(topic, 2, 600, at=stopped) == sent
