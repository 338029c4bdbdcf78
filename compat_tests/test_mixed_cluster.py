"""One cluster of kbroker and Apache Kafka 3.9.1 on one ZooKeeper: whoever controls it, nobody can tell the difference.

Each test runs with a broker of either kind as controller. What is read comes through both brokers, and replicas are
compared byte for byte in the log directories.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from compat_tests import waiting
from compat_tests.apache import Server, ZooKeeper, ZooKeeperBroker, java_command, run_tool
from compat_tests.brokers import KbrokerProcess
from compat_tests.checker import Acknowledged, checksum, checksums, complaints, everything
from compat_tests.clients import LIBRDKAFKA, REFERENCE, ClientError, Driver, running
from compat_tests.raw import METADATA, Connection
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.requests import fetch, fetched, produce, produced

RELEASE = "3.9.1"
eventually = partial(waiting.eventually, within_s=60)  # three JVMs share the machine with the rest of the suite
TOOLS = "org.apache.kafka.tools"
CONTROLLERS = {"kbroker controls": "kbroker", "Apache controls": "apache"}
OTHER = {"kbroker": "apache", "apache": "kbroker"}
COORDINATED = 4  # partitions of __consumer_offsets, and of __transaction_state: on both brokers
INTERNAL = ("__consumer_offsets", "__transaction_state")
ELSEWHERE = (14, 15, 16)  # the coordinator loads, is not known, is another one: ask again
WRITTEN = 3  # partitions of each topic that migrates
SIZE = 500  # of the records of one that migrates, in bytes
pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "10000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "offsets.topic.num.partitions": str(COORDINATED),
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": str(COORDINATED),
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
                    place, zookeeper=zookeeper, node_id=number, settings=SETTINGS, heap="256m", log_dirs=2
                )
            else:
                own = {"broker.id": str(number), "zookeeper.connect": zookeeper}
                own["log.dirs"] = f"{place}/data0,{place}/data1"
                self.brokers[number] = KbrokerProcess(place, settings={**SETTINGS, **own})

    @property
    def addresses(self) -> list[str]:
        """Of the brokers that run."""
        return [broker.address for _, broker in sorted(self.brokers.items()) if broker.alive]

    @property
    def alive(self) -> list[int]:
        """The brokers that run."""
        return [number for number, broker in self.brokers.items() if broker.alive]

    def seen(self, at: int) -> MetadataResponse:
        """The cluster as a broker tells it."""
        with Connection(self.brokers[at].port) as connection:
            answer: MetadataResponse = connection.ask(MetadataRequest(topics=None), METADATA)
            return answer

    def topics(self, at: int) -> set[str]:
        """The topics that a broker knows."""
        return {topic.name for topic in self.seen(at).topics if topic.name is not None}

    def tool(self, name: str, *arguments: str, at: int = 1, code: int = 0) -> str:
        """What one of Apache's tools said."""
        done = run_tool(RELEASE, f"{TOOLS}.{name}", "--bootstrap-server", self.brokers[at].address, *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def settings(self, topic: str) -> str:
        """What is set for a topic, as Apache's tool describes it."""
        what = ("--bootstrap-server", self.brokers[1].address, "--describe", "--topic", topic)
        return run_tool(RELEASE, "kafka.admin.ConfigCommand", *what).stdout

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

    def move(self, at: int, topics: Sequence[str]) -> None:
        """Apache's tool moves all partitions of these topics to one broker, and says in the end that it is done."""
        places = [(topic, index) for topic in topics for index in range(len(self.partitions(topic)))]
        plan = self.folder / f"{topics[0]}-to-{at}.json"
        moves = [{"topic": topic, "partition": index, "replicas": [at]} for topic, index in places]
        plan.write_text(json.dumps({"version": 1, "partitions": moves}))
        command = ["reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan)]
        self.tool(*command, "--execute")
        for number in self.brokers:
            for topic in topics:
                there = [(at, (at,), {at})] * len(self.partitions(topic))
                eventually(lambda topic=topic, number=number, there=there: self.partitions(topic, number) == there)  # type: ignore[misc]
        said = self.tool(*command, "--verify")
        assert said.count("is completed") == len(places), said

    def produce(self, topic: str, partitions: int, count: int, first: int = 0) -> list[bytes]:
        """So many records, all of them acknowledged by all in sync."""
        producer = KafkaProducer(bootstrap_servers=self.addresses, acks="all", enable_idempotence=True, linger_ms=2)
        values = [b"%d" % number for number in range(first, first + count)]
        sent = [producer.send(topic, value, partition=at % partitions) for at, value in enumerate(values)]
        for each in sent:
            each.get(30)
        producer.close()
        return values

    def delete(self, before: int, topic: str, partitions: int) -> None:
        """Apache's tool deletes all records below an offset, and says that they are gone everywhere."""
        plan = self.folder / f"{topic}-before-{before}.json"
        places = [{"topic": topic, "partition": index, "offset": before} for index in range(partitions)]
        plan.write_text(json.dumps({"version": 1, "partitions": places}))
        said = self.tool("DeleteRecordsCommand", "--offset-json-file", str(plan), at=min(self.alive))
        assert said.count(f"low_watermark: {before}") == partitions, said

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

    def committed(self, group: str, topic: str) -> int | None:
        """What a group has committed of partition 0; None: nothing, or its coordinator is just moving."""
        place = TopicPartition(topic, 0)
        admin = KafkaAdminClient(bootstrap_servers=self.addresses)
        try:
            found = admin.list_group_offsets({group: [place]})[group].get(place)
        except (NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError):
            return None
        finally:
            admin.close()
        return None if found is None or found.offset < 0 else int(found.offset)

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


@pytest.mark.quick
def test_either_kind_tells_who_asks_the_wrong_broker_the_leader_and_its_address(mixed: Mixed, topic: str) -> None:
    followed = f"{topic}-followed"
    mixed.make(topic, [1], [2])
    mixed.make(followed, [1, 2], [2, 1])
    for at, index, leader in ((1, 1, 2), (2, 0, 1)):
        told = []
        with Connection(mixed.brokers[at].port) as connection:
            for name in (topic, followed):
                answer = connection.ask(produce(b"x", topic=name, index=index), 11)
                told.append((produced(answer), answer.node_endpoints))
            (known,) = connection.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12).topics
            read = connection.ask(fetch(topic="", topic_id=known.topic_id, indices=(index,)), 17)
            told.append((fetched(read)[index], read.node_endpoints))
        for part, (node,) in told:
            assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (leader, 0)
            assert (node.node_id, f"{node.host}:{node.port}") == (leader, mixed.brokers[leader].address)
            assert node.rack is None


@pytest.mark.quick
def test_records_are_deleted_on_a_follower_of_either_kind_too(mixed: Mixed, topic: str) -> None:
    mixed.make(topic, [1, 2], [2, 1])
    mixed.produce(topic, 2, 200)
    mixed.delete(50, topic, 2)


@pytest.mark.parametrize("leader", [1, 2])
def test_a_follower_that_was_away_goes_on_where_its_leaders_log_starts_now(
    mixed: Mixed, leader: int, topic: str
) -> None:
    """That is within a batch, and the batch is larger than what the follower asks for."""
    follower = 3 - leader
    mixed.make(topic, [leader, follower])
    change = ["--alter", "--entity-type", "topics", "--entity-name", topic, "--add-config", "max.message.bytes=4000000"]
    done = run_tool(RELEASE, "kafka.admin.ConfigCommand", "--bootstrap-server", mixed.brokers[1].address, *change)
    assert done.returncode == 0, done.stderr
    mixed.produce(topic, 1, 10)
    mixed.brokers[follower].stop()
    eventually(lambda: mixed.partitions(topic, leader) == [(leader, (leader, follower), {leader})])
    producer = KafkaProducer(
        bootstrap_servers=mixed.addresses, acks="all", linger_ms=500, batch_size=4_000_000, max_request_size=8_000_000
    )
    for sent in [producer.send(topic, b"%d" % at * 1_200_000) for at in range(3)]:
        sent.get(30)
    producer.close()
    mixed.delete(11, topic, 1)
    mixed.brokers[follower].start()
    eventually(lambda: mixed.partitions(topic, leader) == [(leader, (leader, follower), {leader, follower})])
    mixed.produce(topic, 1, 10)
    both = [mixed.log(topic, 0, each) for each in (leader, follower)]
    assert 3_600_000 < len(both[1]) <= len(both[0])
    assert both[0].endswith(both[1])


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


@pytest.mark.parametrize("source", [1, 2])
def test_a_throttled_move_to_the_other_kind_takes_its_time(mixed: Mixed, source: int, topic: str) -> None:
    """2.5 MB at 400 kB/s; Apache's tool sets the limits on leader and follower, and takes them away at the end."""
    target = 3 - source
    mixed.make(topic, [source])
    producer = KafkaProducer(bootstrap_servers=mixed.addresses, acks="all")
    for _ in range(2_500):
        producer.send(topic, bytes(1_000), partition=0)
    producer.close()
    plan = mixed.folder / f"{topic}.json"
    plan.write_text(f'{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":[{target}]}}]}}')
    command = ["reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan)]
    begun = time.monotonic()
    mixed.tool(*command, "--execute", "--throttle", "400000")
    told = time.monotonic()
    assert f"throttled.replicas=0:{source}" in mixed.settings(topic)
    eventually(lambda: mixed.partitions(topic, target) == [(target, (target,), {target})])
    assert time.monotonic() - begun > 3  # at once, without
    assert told - begun < 30
    said = mixed.tool(*command, "--verify")
    assert "is completed" in said
    assert "Clearing topic-level throttles" in said
    assert "throttled" not in mixed.settings(topic)
    eventually(lambda: not mixed.log(topic, 0, source))


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


@pytest.fixture
def drivers(mixed: Mixed, tmp_path: Path) -> Iterator[dict[str, Driver]]:
    """librdkafka and kafka-python, who know both brokers."""
    with running(",".join(mixed.addresses), tmp_path, LIBRDKAFKA, REFERENCE) as (librdkafka, python):
        yield {"librdkafka": librdkafka, "kafka-python": python}


def settle(call: Callable[[], None]) -> None:
    """Do what a client may have to be asked again: its coordinator is another one now."""

    def settled() -> bool:
        try:
            call()
        except ClientError as error:
            if error.code not in ELSEWHERE:
                raise
            return False
        return True

    eventually(settled)


def test_coordinators_move_between_kinds_with_groups_and_open_transactions_alive(
    mixed: Mixed, drivers: dict[str, Driver], topic: str
) -> None:
    """Each client has a member in a group, and a transaction with records and offsets that stays open for the move.

    What is committed a new client tells each time: librdkafka 2.16.0 crashes where it is asked after the move, and
    kafka-python 3.0.12 goes on asking the coordinator of before.
    """
    mixed.make(topic, [1])
    for name, driver in drivers.items():
        mixed.make(f"{topic}-{name}", [1])
        driver.join("member", f"{topic}-{name}", [topic])
    values, committed = [], []
    for turn, target in enumerate((2, 1, 2, 1)):
        values += mixed.produce(topic, 1, 10, first=10 * turn)
        for name, driver in drivers.items():
            place = {"group": f"{topic}-{name}-offsets", "source": topic, "offset": turn}
            driver.transact(f"{topic}-{name}", f"{topic}-{name}", [str(turn)], outcome=False, **place)  # type: ignore[arg-type]
            assert [each["value"].encode() for each in driver.poll("member", 10)] == values[-10:]
        mixed.move(target, INTERNAL)
        committed += [turn] * (turn != 2)
        last, end = committed[-1], len(values)
        for name, driver in drivers.items():
            settle(lambda driver=driver: driver.commit("member"))  # type: ignore[misc]
            group, offsets = f"{topic}-{name}", f"{topic}-{name}-offsets"
            eventually(lambda group=group, end=end: mixed.committed(group, topic) == end)  # type: ignore[misc]
            driver.ask("end_transaction", producer=f"{topic}-{name}", commit=turn != 2)
            eventually(lambda group=offsets, last=last: mixed.committed(group, topic) == last)  # type: ignore[misc]
            assert driver.read_committed(f"{topic}-{name}", len(committed)) == [str(each) for each in committed]


def test_a_set_of_topics_migrates_to_kbroker_and_back_under_load(
    mixed: Mixed, drivers: dict[str, Driver], topic: str
) -> None:
    apache = 1 if mixed.kinds[1] == "apache" else 2
    topics = {name: f"{topic}-{name}" for name in drivers}
    for name, driver in drivers.items():
        mixed.make(topics[name], *[[apache]] * WRITTEN)
        driver.start_writing(topics[name], WRITTEN, 5, SIZE)
    for place in (3 - apache, apache):
        before = {name: min(driver.written()) for name, driver in drivers.items()}
        eventually(lambda before=before: all(min(drivers[name].written()) > before[name] + 100 for name in drivers))  # type: ignore[misc]
        mixed.move(place, list(topics.values()))
    for name, driver in drivers.items():
        places, failed = driver.stop_writing()
        acknowledged = [Acknowledged(name, *each) for each in places]
        assert failed == []
        for reader in drivers.values():
            found = everything(reader, topics[name], WRITTEN)
            assert complaints(acknowledged, found) == []
            read = {index: checksum(each.value for each in records) for index, records in found.items()}
            assert read == checksums(acknowledged, SIZE)


@pytest.mark.parametrize("number", [1, 2])
def test_a_setting_of_a_broker_is_changed_through_the_other(mixed: Mixed, number: int) -> None:
    entity = ["--entity-type", "brokers", "--entity-name", str(number)]

    def configs(at: int, *arguments: str) -> str:
        place = ["--bootstrap-server", mixed.brokers[at].address]
        done = run_tool(RELEASE, "kafka.admin.ConfigCommand", *place, *entity, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    configs(3 - number, "--alter", "--add-config", "log.cleaner.threads=2")
    eventually(lambda: "log.cleaner.threads=2" in configs(number, "--describe"))
    configs(number, "--alter", "--delete-config", "log.cleaner.threads")
    eventually(lambda: "log.cleaner.threads=2" not in configs(3 - number, "--describe"))


@pytest.mark.parametrize("at", [1, 2])
def test_replicas_are_verified_through_either(mixed: Mixed, at: int, topic: str) -> None:
    """The tool reads from leaders and followers, compares checksums, and goes on until it is ended."""
    mixed.make(topic, [1, 2], [2, 1])
    mixed.produce(topic, 2, 200)
    arguments = ["--broker-list", mixed.brokers[at].address, "--topics-include", topic, "--report-interval-ms", "500"]
    command = java_command(RELEASE, f"{TOOLS}.ReplicaVerificationTool", arguments)
    tool = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = b""
    try:
        assert tool.stdout is not None
        deadline = time.monotonic() + 60
        while b"at offset 100 among" not in said and tool.poll() is None and time.monotonic() < deadline:
            if select.select([tool.stdout], [], [], 1)[0]:
                said += tool.stdout.read1()  # type: ignore[attr-defined]
    finally:
        tool.kill()
        tool.wait()
    assert re.search(rf"max lag is 0 for partition {topic}-[01] at offset 100 among 2 partitions", said.decode()), said


def test_sizes_in_log_directories_of_both_are_told_and_a_replica_moves_between_two(mixed: Mixed, topic: str) -> None:
    mixed.make(topic, [1, 2])
    mixed.produce(topic, 1, 100)

    def places() -> dict[int, tuple[str, int]]:
        said = mixed.tool("LogDirsCommand", "--describe", "--broker-list", "1,2", "--topic-list", topic)
        told = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        return {
            broker["broker"]: (place["logDir"], replica["size"])
            for broker in told["brokers"]
            for place in broker["logDirs"]
            for replica in place["partitions"]
        }

    before = places()
    assert {number: size for number, (_, size) in before.items()} == {
        number: len(mixed.log(topic, 0, number)) for number in mixed.brokers
    }
    others = {
        number: str(mixed.folder / f"broker{number}" / ("data1" if place.endswith("0") else "data0"))
        for number, (place, _) in before.items()
    }
    plan = mixed.folder / f"{topic}.json"
    move = {"topic": topic, "partition": 0, "replicas": [1, 2], "log_dirs": [others[1], others[2]]}
    plan.write_text(json.dumps({"version": 1, "partitions": [move]}))
    mixed.tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", str(plan), "--execute")
    eventually(lambda: places() == {number: (others[number], size) for number, (_, size) in before.items()})
