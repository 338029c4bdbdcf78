"""Three brokers in the test's own process: topics spread over them, one stopped, killed, brought back."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from kbroker.cli import run
from kbroker.runtime.node import Node
from kbroker.testing import Cluster, UsageError, _cluster, _helpers, broker, cluster
from kbroker.testing._helpers import looks
from protocol.errors import ErrorCode
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.processes import Client, within
from tests.requests import fetch, fetched, produce, produced

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(3) as c:
        yield c


@pytest.fixture
def c(running: Cluster) -> Iterator[Cluster]:
    running.create_topic("orders", partitions=6)
    yield running
    running.put_back()


def leaders(c: Cluster, at: int = 0, topic: str = "orders") -> dict[int, int]:
    """The leader of each partition, as one broker tells it; -1 where there is none."""
    client = Client(c.brokers[at].port)
    answer = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 8)
    client.close()
    return {each.partition_index: each.leader_id for each in answer.topics[0].partitions}


def left() -> tuple[int, int, list[str]]:
    gc.collect()
    folders = [each for each in os.listdir("/dev/shm") if each.startswith(f"kbroker-testing-{os.getpid()}-")]
    return len(os.listdir("/proc/self/fd")), threading.active_count(), folders


def test_a_topic_is_spread_over_all_brokers(c: Cluster) -> None:
    assert sorted(leaders(c).values()) == [1, 1, 2, 2, 3, 3]


@pytest.mark.timeout(60)
def test_what_no_running_broker_has_is_not_waited_for(c: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_helpers, "WAIT_S", 1000)
    dead = next(at for at, leader in leaders(c).items() if leader == 2)
    c.brokers[1].kill()
    with pytest.raises(UsageError, match=f"orders-{dead} has no leader: start the broker that has it"):
        c.produce("orders", b"x", partition=dead)


def test_every_broker_tells_the_same(c: Cluster) -> None:
    assert leaders(c, 0) == leaders(c, 1) == leaders(c, 2)


def test_a_stock_client_produces_to_all_of_them_and_reads_it_back(c: Cluster) -> None:
    producer = KafkaProducer(bootstrap_servers=c.bootstrap.split(","))
    for index in range(6):
        producer.send("orders", b"%d" % index, partition=index)
    producer.flush(10)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=c.brokers[2].bootstrap)
    parts = [TopicPartition("orders", index) for index in range(6)]
    consumer.assign(parts)
    consumer.seek_to_beginning()
    read = sorted(record.value for _, record in zip(range(6), consumer, strict=False))
    consumer.close()
    assert read == [b"0", b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("at", [0, 1])
def test_without_a_broker_exactly_its_partitions_are_unavailable_until_it_returns(
    c: Cluster, at: int, end: str
) -> None:
    for index in range(6):
        c.produce("orders", b"before", partition=index)
    before = leaders(c, 2)
    gone = c.brokers[at]
    getattr(gone, end)()
    without = {index: -1 if leader == gone.node_id else leader for index, leader in before.items()}
    for _ in within(15):
        if leaders(c, 2) == without:
            break
    assert leaders(c, 2) == without
    for index, leader in without.items():
        if leader >= 0:
            c.produce("orders", b"during", partition=index)
    gone.start()
    for _ in within(15):
        if leaders(c, 2) == before:
            break
    read = {index: [each.value for each in c.records("orders", index)] for index in before}
    assert read == {index: [b"before"] if without[index] < 0 else [b"before", b"during"] for index in before}


@pytest.mark.parametrize("at", [0, 1])
def test_a_topic_of_three_replicas_loses_nothing_when_a_broker_is_killed_under_load(c: Cluster, at: int) -> None:
    c.create_topic("safe", partitions=3, replication_factor=3, min_insync_replicas=2)
    producer = KafkaProducer(bootstrap_servers=c.bootstrap.split(","), acks="all", retries=100)
    sent = []
    for number in range(600):
        sent.append(producer.send("safe", b"%d" % number, partition=number % 3))
        if number == 300:
            c.brokers[at].kill()
    for each in sent:
        each.get(30)
    producer.close()
    read = {record.value for index in range(3) for record in c.records("safe", index)}
    c.brokers[at].start()
    assert read == {b"%d" % number for number in range(600)}


def test_a_produce_to_a_broker_that_does_not_lead_is_refused(c: Cluster) -> None:
    index = next(index for index, leader in leaders(c).items() if leader != 1)
    answer = Client(c.brokers[0].port).ask(produce(b"x", topic="orders", index=index), 8)
    assert produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_who_asks_a_broker_that_does_not_lead_is_told_the_leader_and_its_address(c: Cluster) -> None:
    client = Client(c.brokers[0].port)
    topic = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 12).topics[0]
    led = next(each for each in topic.partitions if each.leader_id != c.brokers[0].node_id)
    index, leader = led.partition_index, next(each for each in c.brokers if each.node_id == led.leader_id)
    asked = fetch(topic="", topic_id=topic.topic_id, indices=(index,))
    written, read = client.ask(produce(b"x", topic="orders", index=index), 10), client.ask(asked, 16)
    for part, answer in ((produced(written), written), (fetched(read)[index], read)):
        told = part.error_code, part.current_leader.leader_id, part.current_leader.leader_epoch
        assert told == (ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.node_id, led.leader_epoch)
        assert [(each.node_id, f"{each.host}:{each.port}") for each in answer.node_endpoints] == [
            (leader.node_id, leader.bootstrap)
        ]


def test_another_broker_becomes_controller_when_it_dies(c: Cluster) -> None:
    first = c.controller
    first.kill()
    for _ in within(15):
        try:
            second = c.controller
            break
        except UsageError:
            pass
    first.start()
    c.await_agreement()
    assert (second.node_id != first.node_id, c.controller.node_id) == (True, second.node_id)


def test_a_group_is_served_wherever_its_coordinator_is(c: Cluster) -> None:
    c.produce("orders", b"x", partition=3)
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=c.bootstrap.split(","), group_id="billing", auto_offset_reset="earliest"
    )
    assert next(consumer).value == b"x"
    consumer.close()
    assert c.wait_for_group("billing", lag=0).committed["orders", 3] == 1


def test_what_a_cluster_in_a_folder_had_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with cluster(2, data=tmp_path) as c:
        c.create_topic("orders", partitions=4)
        for index in range(4):
            c.produce("orders", b"%d" % index, partition=index)
        before = leaders(c)
    with cluster(2, data=tmp_path) as c:
        for _ in within(15):
            if leaders(c) == before:
                break
        assert [each.value for each in c.records("orders")] == [b"0", b"1", b"2", b"3"]


def test_a_whole_cluster_is_stopped_and_started_with_what_it_had() -> None:
    with cluster(2) as c:
        c.create_topic("orders", partitions=2)
        c.produce("orders", b"x", partition=1)
        before = leaders(c)
        c.restart()
        for _ in within(15):
            if leaders(c) == before:
                break
        assert [each.value for each in c.records("orders")] == [b"x"]


def test_ten_in_one_process_leave_nothing() -> None:
    with cluster(3):
        pass
    before = left()
    for _ in range(10):
        with cluster(3) as c:
            c.create_topic("orders", partitions=3)
            c.produce("orders", b"x", partition=2)
    assert left() == before


def test_time_moves_for_all_of_them(c: Cluster) -> None:
    before = [each.call(lambda node: node.broker.clock.now_ms()) for each in c.brokers]
    c.advance(hours=1)
    after = [each.call(lambda node: node.broker.clock.now_ms()) for each in c.brokers]
    assert all(3_600_000 <= late - early < 3_700_000 for early, late in zip(before, after, strict=True))


def test_faults_are_each_brokers_own(c: Cluster) -> None:
    c.brokers[1].faults.on("Metadata").fail("UNKNOWN_SERVER_ERROR")
    assert [each.hits for each in c.brokers[1].faults] == [0]
    leaders(c, 0)
    leaders(c, 1)
    assert ([each.hits for each in c.brokers[1].faults], list(c.brokers[0].faults)) == ([1], [])


@pytest.mark.parametrize("count", [0, 101])
def test_a_number_that_cannot_be_says_what_to_write(count: int) -> None:
    with pytest.raises(UsageError, match=r"write cluster\(3\)"):
        cluster(count)


def test_a_file_for_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="name another folder"):
        cluster(1, data=tmp_path / "file").start()


def test_a_cluster_that_does_not_agree_in_time_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(2):
        pass
    before = left()
    monkeypatch.setattr(_cluster, "WAIT_S", 0)
    monkeypatch.setattr(_cluster, "_agrees", lambda *_: False)
    with pytest.raises(UsageError, match="do not find each other"):
        cluster(2).start()
    assert left() == before


def test_after_its_end_it_says_that_it_was_closed() -> None:
    with cluster(1) as c:
        pass
    with pytest.raises(UsageError, match="was closed: use it inside"):
        c.bootstrap  # noqa: B018


# -- moved and cut


def test_the_controller_moves_when_a_test_wants_it() -> None:
    with cluster(3) as c:
        before = c.controller
        now = c.move_controller()
        assert now is not before
        assert c.move_controller(to=before) is before
        assert c.create_topic("made-by-the-new-one", partitions=3) == "made-by-the-new-one"


def test_a_cluster_of_one_has_no_other_controller() -> None:
    with cluster(1) as c, pytest.raises(UsageError, match="no other broker to be the controller"):
        c.move_controller()


def test_a_broker_that_is_cut_off_hears_nothing_of_the_controller_until_it_is_healed() -> None:
    with cluster(3) as c:
        far = next(each for each in c.brokers if each is not c.controller)
        c.cut(far)
        c.controller.create_topic("unheard-of")
        known = far.call(lambda node: "unheard-of" in node.broker.plane.cache.topics)
        c.heal()
        for _ in looks(10):
            if far.call(lambda node: "unheard-of" in node.broker.plane.cache.topics):
                break
        heard = far.call(lambda node: "unheard-of" in node.broker.plane.cache.topics)
        assert (known, heard) == (False, True)


@pytest.mark.timeout(10)  # it would wait for longer
def test_who_goes_on_is_asked_while_the_first_broker_is_paused() -> None:
    with cluster(3) as c:
        first = c.move_controller(to=c.brokers[2])
        c.create_topic("orders", partitions=3)
        index = next(index for index, leader in leaders(c).items() if leader == first.node_id)
        c.brokers[0].pause()
        c.produce("orders", b"x", partition=index)
        assert (c.topics(), len(c.records("orders", index))) == ({"orders": 3}, 1)


def test_a_broker_whose_disk_failed_is_back_for_the_next_test() -> None:
    with cluster(2) as c:
        c.create_topic("orders", partitions=2)
        c.brokers[1].disk.broken()
        for index in (0, 1):
            with suppress(UsageError):
                c.produce("orders", b"x", partition=index)
        c.put_back()
        assert ([each.is_running for each in c.brokers], c.topics()) == ([True, True], {})


def cut_off(c: Cluster) -> list[set[int]]:
    """Whom each broker cannot reach."""

    def unreachable(node: Node) -> set[int]:
        return set(node._unreachable if node._peers is None else node._peers.unreachable)

    return [each.call(unreachable) for each in c.brokers]


def test_the_next_test_finds_nobody_cut_off() -> None:
    with cluster(3) as c:
        c.cut(c.brokers[1])
        before = cut_off(c)
        c.put_back()
        assert (before, cut_off(c)) == ([{2}, {1, 3}, {2}], [set()] * 3)


@pytest.mark.timeout(20)  # it would wait for longer
def test_a_broker_that_is_cut_off_is_back_once_it_starts_again() -> None:
    with cluster(3) as c:
        far = next(each for each in c.brokers if each is not c.controller)
        c.cut(far)
        far.restart()
        c.await_agreement()
        assert cut_off(c) == [set()] * 3


@pytest.mark.timeout(10)  # it would wait for longer
def test_others_are_killed_while_one_is_cut_off() -> None:
    with cluster(3) as c:
        c.create_topic("orders", replication_factor=3)
        first = c.controller
        far, other = (each for each in c.brokers if each is not first)
        c.cut(far)
        c.move_leader("orders", to=first)
        other.kill()
        assert not other.is_running


@pytest.mark.parametrize("stranger", [1, broker()])
@pytest.mark.parametrize(
    ("do", "instead"),
    [
        (lambda c, other: c.cut(other), r"cut\(c\.brokers\[0\]\)"),
        (lambda c, other: c.move_leader("orders", to=other), r"move_leader\('orders', to=c\.brokers\[0\]\)"),
        (lambda c, other: c.move_coordinator("g", to=other), r"move_coordinator\('g', to=c\.brokers\[0\]\)"),
        (lambda c, other: c.move_controller(to=other), r"move_controller\(to=c\.brokers\[0\]\)"),
    ],
)
def test_a_stranger_is_refused_with_what_to_write_instead(
    do: Callable[[Cluster, object], object], stranger: object, instead: str
) -> None:
    with cluster(1) as c, pytest.raises(UsageError, match=f"none of this cluster's: write {instead}"):
        do(c, stranger)


def leader(c: Cluster, topic: str, partition: int = 0) -> int:
    state = c.controller.call(lambda node: node.broker.plane.cache.partition(topic, partition))
    assert state is not None
    return state.leader


@pytest.mark.parametrize("factor", [1, 3])
def test_a_leader_moves_with_what_the_partition_has(factor: int) -> None:
    with cluster(3) as c:
        c.create_topic("orders", replication_factor=factor)
        c.produce("orders", b"one", b"two")
        for to in c.brokers:
            c.move_leader("orders", to)
            assert leader(c, "orders") == to.node_id
        assert [each.value for each in c.records("orders")] == [b"one", b"two"]


def test_a_coordinator_moves_with_its_groups() -> None:
    with cluster(3) as c:
        c.produce("orders", b"one")
        wanted = {"group_id": "billing", "auto_offset_reset": "earliest"}
        consumer = KafkaConsumer("orders", bootstrap_servers=c.bootstrap, **wanted)
        assert next(consumer).value == b"one"
        consumer.commit()
        for to in c.brokers:
            c.move_coordinator("billing", to)
        c.wait_for_group("billing", lag=0)
        consumer.close()


def test_a_leader_that_cannot_move_is_told_in_one_line() -> None:
    with cluster(2) as c:
        with pytest.raises(UsageError, match="there is no partition nope-0"):
            c.move_leader("nope", c.brokers[0])
        with pytest.raises(UsageError, match="no group was used yet"):
            c.move_coordinator("g", c.brokers[0])


def test_partitions_are_reassigned_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(3) as c:
        c.create_topic("orders", partitions=2)
        c.produce("orders", b"one", b"two")
        monkeypatch.setenv("KBROKER_BOOTSTRAP_SERVER", c.bootstrap)
        plan = str(tmp_path / "plan.json")
        for to in ([1], [2, 3], [3, 1, 2]):
            parts = [{"topic": "orders", "partition": index, "replicas": to} for index in (0, 1)]
            Path(plan).write_text(json.dumps({"version": 1, "partitions": parts}))
            assert run(["reassign", "--execute", "--reassignment-json-file", plan]) == 0
            for _ in within(10):
                if run(["reassign", "--verify", "--reassignment-json-file", plan]) == 0:
                    break
            else:
                raise AssertionError("it does not end")
        assert run(["reassign", "--list"]) == 0
        assert "No partition reassignments found." in capsys.readouterr().err
        assert len(c.records("orders")) == 2


def test_each_broker_has_a_rack_or_none_has() -> None:
    with pytest.raises(UsageError, match="2 racks for 3 brokers"):
        cluster(3, racks=["a", "b"])


def test_replicas_of_a_new_topic_and_of_one_that_grows_stand_in_different_racks() -> None:
    with cluster(4, racks=["east", "east", "west", "west"]) as c:
        c.create_topic("orders", partitions=4, replication_factor=2)
        assert run(["topics", "-b", c.bootstrap, "--alter", "--topic", "orders", "--partitions", "8"]) == 0
        c.await_agreement()
        client = Client(c.brokers[0].port)
        (found,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 8).topics
        client.close()
    assert len(found.partitions) == 8
    assert all(min(each.replica_nodes) <= 2 < max(each.replica_nodes) for each in found.partitions)
