"""What many partitions cost the metadata store: messages counted, and one that is in the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.controller import epoch
from kbroker.metadata.store import (
    CONTROLLER_EPOCH,
    Assignment,
    LeaderIsr,
    TopicInfo,
    encode_state,
    encode_topic,
    partition_path,
    partitions_path,
    state_path,
    topic_path,
)
from kbroker.ports import Create, Get, Multi, Operation, SetData
from protocol.errors import ErrorCode
from protocol.messages.control import ControlledShutdownRequest, LeaderAndIsrRequest, UpdateMetadataRequest
from protocol.messages.topics import DeleteTopicsRequest
from tests.controller.cluster import Cluster, Node

MANY = 90
FEW = 12  # messages, of whatever is done once for a topic or an event


class Messages:
    """What a broker's store is told to do from now on."""

    def __init__(self, node: Node) -> None:
        self.operations: list[Operation] = []
        submit = node.store.submit

        def counted(operations: Sequence[Operation], token: object) -> None:
            self.operations += operations
            submit(operations, token)

        node.store.submit = counted  # type: ignore[method-assign]

    @property
    def state_reads(self) -> int:
        return sum(isinstance(each, Get) and each.path.endswith("/state") for each in self.operations)

    @property
    def others(self) -> int:
        return len(self.operations) - self.state_reads


def write(cluster: Cluster, *operations: Create | SetData) -> None:
    """As somebody else would."""
    assert cluster.ensemble.tree.apply(Multi(operations), 0).fault is None
    cluster.ensemble.spread()
    cluster.settle()


def test_many_partitions_are_made_with_few_messages() -> None:
    cluster = Cluster(1, 2, 3)
    sent = Messages(cluster.controller)
    assert cluster.create("t", MANY, 3) is ErrorCode.NONE
    assert (sent.state_reads, sent.others <= FEW) == (0, True), sent.operations
    assert -1 not in cluster.leaders(2, "t")


def test_further_partitions_are_made_with_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic that has some: nothing that is there is made again."""
    monkeypatch.setattr("kbroker.controller.topics.NEW_PARTITIONS_AT_ONCE", MANY // 2)
    cluster = Cluster(1)
    sent = Messages(cluster.controller)
    cluster.create("t", MANY)
    assert cluster.leaders(1, "t") == [1] * MANY
    assert sent.others <= 2 * FEW, sent.operations


def test_a_topic_of_many_partitions_is_deleted_with_few_messages() -> None:
    cluster = Cluster(1, 2)
    before = set(cluster.ensemble.tree.nodes)
    cluster.create("t", MANY, 2)
    sent = Messages(cluster.controller)
    cluster.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4, cluster.controller.id)
    assert set(cluster.ensemble.tree.nodes) == before
    assert sent.others <= 2 * FEW, sent.operations


def test_a_dead_broker_is_replaced_with_few_messages() -> None:
    """What the controller has written itself it does not read before it writes over it."""
    cluster = Cluster(1, 2, 3)
    cluster.create("t", MANY, 3)
    sent = Messages(cluster.controller)
    cluster.stop(3)
    assert {cluster.state("t", index).isr for index in range(MANY)} <= {(1, 2), (2, 1)}
    assert 3 not in cluster.leaders(2, "t")
    assert (sent.state_reads, sent.others <= FEW) == (0, True), sent.operations


def test_a_new_controller_reads_each_state_once() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", MANY, 3)
    sent = Messages(cluster.nodes[2]), Messages(cluster.nodes[3])
    cluster.stop(1)
    assert {cluster.state("t", index).isr for index in range(MANY)} <= {(2, 3), (3, 2)}
    assert 1 not in cluster.leaders(2, "t")
    assert sum(each.state_reads for each in sent) == MANY
    assert sum(each.others for each in sent) <= 5 * FEW, [each.operations for each in sent]


def test_a_new_controller_tells_of_each_partition_once() -> None:
    """Not of those in sync first, then of those left, then of who leads them."""
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", *[(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 3)
    cluster.nodes[3].inbox.clear()
    cluster.stop(1)
    assert cluster.controller.id == 2
    told = [len(topic.partition_states) for each in cluster.nodes[3].inbox for topic in each.topic_states]
    assert [type(each) for each in cluster.nodes[3].inbox] == [
        UpdateMetadataRequest,  # who lives
        LeaderAndIsrRequest,
        UpdateMetadataRequest,
    ]
    assert told == [9, 9]
    assert cluster.leaders(3, "t") == [2, 2, 3] * 3


def test_many_new_topics_are_taken_in_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two answers of the store nobody else has his turn."""
    monkeypatch.setattr(epoch, "STEP_PARTITIONS", 3)
    cluster = Cluster(1)
    controller, store = cluster.controller.plane.controller, cluster.controller.store
    read: list[int] = []
    known: list[int] = []
    submit = store.submit

    def counted(operations: Sequence[Operation], token: object) -> None:
        assert controller.epoch is not None
        read.append(sum(isinstance(each, Get) and each.path in paths for each in operations))
        known.append(len(controller.epoch.context.assignments))
        submit(operations, token)

    content = encode_topic(TopicInfo(bytes(range(16)), {0: Assignment((1,))}))
    paths = [topic_path(f"t{number}") for number in range(7)]
    monkeypatch.setattr(store, "submit", counted)
    write(cluster, *[Create(path, content) for path in paths])
    assert [each for each in read if each] == [3, 3, 1]
    assert list(dict.fromkeys(known)) == [0, 3, 6, 7]
    assert [cluster.leaders(1, f"t{number}") for number in range(7)] == [[1]] * 7


def test_a_broker_that_stops_is_replaced_some_partitions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two answers of the store nobody else has his turn."""
    monkeypatch.setattr(epoch, "STEP_PARTITIONS", 3)
    cluster = Cluster(1, 2)
    cluster.assign("t", *[(2, 1), (1, 2)] * 4)
    sent = Messages(cluster.controller)
    answer = cluster.ask(ControlledShutdownRequest(broker_id=2), 2, cluster.controller.id)
    assert (answer.error_code, answer.remaining_partitions) == (0, [])
    writes = [each.operations for each in sent.operations if isinstance(each, Multi)]
    states = [cluster.state("t", index) for index in range(8)]
    assert [sum(isinstance(part, SetData) for part in each) for each in writes] == [3, 1, 3, 1]
    assert {(each.leader, each.isr) for each in states} == {(1, (1,))}


# -- one that is in the way


def test_a_partition_half_of_which_is_there_keeps_the_others_from_nothing() -> None:
    """As an Apache controller leaves it that dies between two nodes."""
    cluster = Cluster(1)
    info = TopicInfo(bytes(range(16)), {index: Assignment((1,)) for index in range(5)})
    there = Create(partitions_path("t")), Create(partition_path("t", 3))
    write(cluster, Create(topic_path("t"), encode_topic(info)), *there)
    assert cluster.leaders(1, "t") == [1] * 5


def test_a_state_that_is_there_already_keeps_the_others_from_nothing() -> None:
    cluster = Cluster(1)
    info = TopicInfo(bytes(range(16)), {index: Assignment((1,)) for index in range(5)})
    there = Create(partitions_path("t")), Create(partition_path("t", 3)), Create(state_path("t", 3), b"whose?")
    write(cluster, Create(topic_path("t"), encode_topic(info)), *there)
    assert sorted(cluster.nodes[1].plane.cache.topics["t"].partitions) == [0, 1, 2, 4]
    assert cluster.data(state_path("t", 3)) == b"whose?"


def test_what_a_leader_has_written_meanwhile_is_not_overwritten() -> None:
    """One of an old protocol writes in-sync sets itself, and says so later."""
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", *[(2, 1, 3)] * 5)
    known = cluster.state("t", 3)
    write(cluster, SetData(state_path("t", 3), encode_state(known._replace(isr=(2, 3))), known.version))
    cluster.stop(2)
    states = [cluster.state("t", index) for index in range(5)]
    assert [(each.leader, each.isr) for each in states] == [(1, (1, 3))] * 3 + [(3, (3,))] + [(1, (1, 3))]


def test_that_nobody_can_lead_is_decided_by_what_the_store_says() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (2, 1))
    cluster.stop(1)
    known = cluster.state("t")
    assert known.isr == (2,)
    cluster.start(1)
    write(cluster, SetData(state_path("t", 0), encode_state(known._replace(isr=(2, 1))), known.version))
    cluster.stop(2)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))


def test_nothing_is_written_behind_a_fence_that_has_fallen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "WRITES_AT_ONCE", 2)
    cluster = Cluster(1, 2)
    cluster.assign("t", *[(2, 1)] * 5)
    cluster.ensemble.tree.apply(SetData(CONTROLLER_EPOCH, b"9"), 0)  # as a newer controller would
    cluster.stop(2)
    assert {cluster.state("t", index).controller_epoch for index in range(5)} == {10}  # its next one


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_outcomes_are_those_of_each_write_by_itself(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch, "WRITES_AT_ONCE", at_once)
    cluster = Cluster(1, 2)
    cluster.assign("t", *[(2, 1)] * 7)
    known = [cluster.state("t", index) for index in range(7)]
    for index in (2, 4):
        write(cluster, SetData(state_path("t", index), encode_state(known[index]), known[index].version))
    cluster.stop(2)
    states = [cluster.state("t", index) for index in range(7)]
    assert [each._replace(version=0) for each in states] == [LeaderIsr(1, 1, (1,), 1, version=0)] * 7
