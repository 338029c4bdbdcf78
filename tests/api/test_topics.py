"""CreateTopics in detail: what is refused, what is told, what is only tried."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.controller.events import TopicsChanged
from kbroker.core import EXPIRED
from kbroker.metadata.store import delete_topic_path
from kbroker.ports import Create
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    TopicPartitions,
)
from tests.controller.cluster import Cluster
from tests.world import World


def topic(
    name: str = "t",
    partitions: int = 1,
    factor: int = 1,
    assignments: list[tuple[int, list[int]]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in assignments or ()],
        configs=[CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()],
    )


def create(
    cluster: Cluster, *topics: CreatableTopic, version: int = 7, timeout_ms: int = 1000, **more: Any
) -> list[Any]:
    validate_only = more.pop("validate_only", False)
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only)
    results: list[Any] = cluster.ask(request, version, **more).topics
    return results


def codes(cluster: Cluster, *topics: CreatableTopic, **more: Any) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for each in create(cluster, *topics, **more)]


@pytest.mark.parametrize("version", range(8))
def test_topics_are_created_in_every_version(version: int) -> None:
    assert codes(Cluster(1), topic("a", 2), topic("b"), version=version) == [ErrorCode.NONE, ErrorCode.NONE]


def test_the_answer_tells_what_was_made() -> None:
    cluster = Cluster(1)
    (made,) = create(cluster, topic(partitions=2, configs={"retention.ms": "9"}))
    assert (made.num_partitions, made.replication_factor) == (2, 1)
    assert made.topic_id == cluster.nodes[1].plane.cache.topic_id("t") != ZERO_UUID
    told = {each.name: (each.value, each.config_source) for each in made.configs}
    assert (told["retention.ms"], told["segment.bytes"]) == (("9", 1), ("1073741824", 5))


def test_numbers_may_be_left_to_the_broker() -> None:
    (made,) = create(Cluster(1, 2, num_partitions="4", default_replication_factor="2"), topic("t", -1, -1))
    assert (made.num_partitions, made.replication_factor) == (4, 2)


def test_replicas_may_be_chosen_by_the_client() -> None:
    cluster = Cluster(1, 2)
    assert codes(cluster, topic("t", -1, -1, [(1, [2, 1]), (0, [1, 2])])) == [ErrorCode.NONE]
    assert cluster.leaders(2, "t") == [1, 2]


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (topic(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (topic(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (topic(factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic(factor=2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (topic("", 1), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (topic(configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"no.such.thing": "1"}), ErrorCode.INVALID_CONFIG),
        (topic(configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (topic("t", 1, -1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (topic("t", -1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
        (topic("t", -1, -1, [(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [1]), (1, [1, 2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [1]), (2, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [-4])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (topic("t", -1, -1, [(0, [1]), (1, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_what_is_wrong_with_a_topic(wanted: CreatableTopic, code: ErrorCode) -> None:
    cluster = Cluster(1)
    nodes = set(cluster.ensemble.tree.nodes)
    (result,) = create(cluster, wanted)
    assert (result.error_code, result.num_partitions, result.topic_id) == (code, -1, ZERO_UUID)
    assert result.error_message
    assert set(cluster.ensemble.tree.nodes) == nodes


def test_a_topic_is_not_assigned_to_a_broker_that_is_gone() -> None:
    cluster = Cluster(1, 2)
    cluster.stop(2)
    for only in (False, True):
        (result,) = create(cluster, topic("t", -1, -1, [(0, [1, 2])]), validate_only=only)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert result.error_message == (
            "The manual partition assignment includes broker 2, but no such broker is registered."
        )
    assert not cluster.has("/brokers/topics/t")


def test_one_bad_topic_does_not_spoil_the_others() -> None:
    assert codes(Cluster(1), topic("a", 0), topic("b")) == [ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE]


def test_a_topic_exists_once() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert codes(cluster, topic()) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_the_same_topic_twice_in_a_request() -> None:
    assert codes(Cluster(1), topic(), topic()) == [ErrorCode.INVALID_REQUEST]


def test_a_topic_whose_deletion_is_asked_for_is_there_until_it_is_done() -> None:
    cluster = Cluster(1)
    cluster.ensemble.tree.apply(Create(delete_topic_path("t")), 0)  # left by a controller that died in the last step
    assert codes(cluster, topic()) == [ErrorCode.TOPIC_ALREADY_EXISTS]
    cluster.settle()
    assert codes(cluster, topic()) == [ErrorCode.NONE]


def test_dots_and_underscores_count_as_the_same() -> None:
    cluster = Cluster(1)
    cluster.create("a.b_c")
    assert codes(cluster, topic("a_b.c"), topic("a-b-c")) == [ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.NONE]
    assert codes(cluster, topic("x.y"), topic("x_y")) == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def made(world: World, *names: str) -> list[tuple[ErrorCode, str]]:
    answer = world.client().ask(CreateTopicsRequest(topics=[topic(name) for name in names], timeout_ms=1000), 7)
    return [(ErrorCode(each.error_code), each.error_message or "") for each in answer.topics]


def test_where_the_file_system_ignores_case_topics_that_differ_in_nothing_else_are_refused() -> None:
    """APFS: both would have one folder."""
    world, refused = World(ignores_case=True), ErrorCode.INVALID_TOPIC_EXCEPTION
    assert made(world, "orders", "a_b") == [(ErrorCode.NONE, "")] * 2
    why = "a log directory of this broker is on a file system that does not tell capital letters from small ones"
    assert made(world, "Orders") == [(refused, f"Topic 'Orders' collides with existing topic: orders; {why}")]
    assert made(world, "A.b", "x", "X") == [
        (refused, f"Topic 'A.b' collides with existing topic: a_b; {why}"),
        (ErrorCode.NONE, ""),
        (refused, f"Topic 'X' collides with existing topic: x; {why}"),
    ]
    assert made(world, "a.b") == [(refused, "Topic 'a.b' collides with existing topic: a_b")]
    world.client().ask(DeleteTopicsRequest(topic_names=["orders"], timeout_ms=1000), 5)
    world.settle()
    assert made(world, "Orders") == [(ErrorCode.NONE, "")]


def test_elsewhere_topics_may_differ_in_case_alone() -> None:
    assert made(World(), "orders", "Orders") == [(ErrorCode.NONE, "")] * 2


def test_trying_makes_nothing() -> None:
    cluster = Cluster(1)
    (tried,) = create(cluster, topic(partitions=3), validate_only=True)
    assert (tried.error_code, tried.num_partitions) == (ErrorCode.NONE, 3)
    assert not cluster.has("/brokers/topics/t")
    assert codes(cluster, topic(partitions=0), validate_only=True) == [ErrorCode.INVALID_PARTITIONS]


def test_without_time_the_topic_is_made_and_the_answer_says_timed_out() -> None:
    cluster = Cluster(1)
    assert codes(cluster, topic(), timeout_ms=0) == [ErrorCode.REQUEST_TIMED_OUT]
    assert cluster.leaders(1, "t") == [1]


def test_at_its_deadline_a_request_says_timed_out() -> None:
    cluster = Cluster(1)
    cluster.nodes[1].store.cut()
    assert codes(cluster, topic()) == [ErrorCode.REQUEST_TIMED_OUT]


def test_an_empty_request_has_an_empty_answer() -> None:
    assert create(Cluster(1)) == []


def test_only_the_controller_changes_topics() -> None:
    cluster = Cluster(1, 2)
    cluster.create("t")
    growth = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="t", count=2, assignments=None)], timeout_ms=1, validate_only=False
    )
    answers = (
        create(cluster, topic(), broker_id=2)[0].error_code,
        cluster.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1), 5, 2).responses[0].error_code,
        cluster.ask(growth, 3, 2).results[0].error_code,
    )
    assert answers == (ErrorCode.NOT_CONTROLLER,) * 3


@pytest.mark.parametrize("version", range(4))
def test_topics_grow_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    growth = CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[growth], timeout_ms=1000, validate_only=False)
    assert cluster.ask(request, version).results[0].error_code == ErrorCode.NONE


def test_a_topic_twice_in_a_request_does_not_grow() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    growth = CreatePartitionsTopic(name="t", count=2, assignments=None)
    request = CreatePartitionsRequest(topics=[growth, growth], timeout_ms=1000, validate_only=False)
    assert [each.error_code for each in cluster.ask(request, 3).results] == [ErrorCode.INVALID_REQUEST]


@pytest.mark.parametrize("version", range(6))
def test_topics_are_deleted_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    request = DeleteTopicsRequest(topic_names=["t", "u"], timeout_ms=1000)
    results = cluster.ask(request, version).responses
    assert [each.error_code for each in results] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("version", range(3))
def test_leaders_are_elected_in_every_version(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    assert cluster.ask(request, version).replica_election_results == []


def test_an_unknown_kind_of_election_is_refused_where_no_partition_is_named_too() -> None:
    request = ElectLeadersRequest(election_type=7, topic_partitions=None, timeout_ms=1000)
    assert Cluster(1).ask(request, 2).error_code == ErrorCode.INVALID_REQUEST


def test_an_election_that_is_not_held_says_why_in_the_words_of_apaches_controller() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2,))
    cluster.stop(2)
    told = {}
    for kind in (0, 1):
        asked = [TopicPartitions(topic="t", partitions=[0]), TopicPartitions(topic="nope", partitions=[0])]
        answer = cluster.ask(ElectLeadersRequest(election_type=kind, topic_partitions=asked, timeout_ms=1000), 2)
        for result in answer.replica_election_results:
            told[kind, result.topic] = result.partition_result[0].error_message
    head = "Failed to elect leader for partition t-0 under strategy "
    assert told == {
        (0, "t"): head + "PreferredReplicaPartitionLeaderElectionStrategy",
        (1, "t"): head + "OfflinePartitionLeaderElectionStrategy(true)",
        (0, "nope"): "The partition does not exist.",
        (1, "nope"): "The partition does not exist.",
    }


@pytest.mark.parametrize("name", ["", ".", "..", "t/partitions", "t/partitions/0/state"])
def test_what_is_named_like_no_topic_cannot_grow(name: str) -> None:
    cluster = Cluster(1)
    cluster.create("t")
    growths = [CreatePartitionsTopic(name=each, count=2, assignments=None) for each in (name, "t")]
    request = CreatePartitionsRequest(topics=growths, timeout_ms=1000, validate_only=False)
    told = {each.name: each.error_code for each in cluster.ask(request, 3).results}
    assert told == {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "t": ErrorCode.NONE}


def test_a_topic_is_not_larger_than_zookeeper_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.controller.epoch.TRANSACTION_BYTES", 1_000)
    cluster = Cluster(1)
    wide = topic("wide", 100)
    assert codes(cluster, wide, topic("t"), timeout_ms=60_000) == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert codes(cluster, wide, validate_only=True) == [ErrorCode.POLICY_VIOLATION]


def test_an_election_that_is_not_held_in_time_says_so() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    cluster.nodes[1].store.cut()
    cluster.nodes[1].plane.controller.put(TopicsChanged())  # comes first, and waits for the store
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=1000)
    assert cluster.ask(request, 2).error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_names_of_deleted_topics_are_free_when_the_answer_leaves(count: int) -> None:
    world, names = World(), [f"t{at}" for at in range(count)]
    for name in names:
        world.create(name)
    client = world.client()
    client.start(DeleteTopicsRequest(topic_names=names, timeout_ms=1000), 5)
    while not client.channel.out:
        world.step()
    again = [topic(name) for name in reversed(names)]
    made = client.ask(CreateTopicsRequest(topics=again, timeout_ms=1000), 5)
    assert [each.error_code for each in made.topics] == [ErrorCode.NONE] * count


@pytest.mark.parametrize("count", [3, 300])
def test_a_deleted_topic_that_a_client_has_made_anew_does_not_hold_the_answer_up(count: int) -> None:
    world, names = World(), [f"t{at:03d}" for at in range(count)]
    for name in names:
        world.create(name)
    first = world.topic_id(names[0])
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name=names[0])])
    client = world.client()
    client.start(DeleteTopicsRequest(topic_names=names, timeout_ms=1000), 5)
    while world.plane.cache.topic_id(names[0]) in (first, ZERO_UUID):
        world.client().start(wanted, 9)
        world.core.step(EXPIRED, world.clock.now_ms())
        world.step()
    world.advance(0)
    (answer,) = client.look().values()
    assert [each.error_code for each in answer.responses] == [ErrorCode.NONE] * count


def test_a_topic_on_its_way_out_is_not_waited_for_by_who_would_have_it_made() -> None:
    world = World()
    world.create("a")
    world.create("t")
    world.client().start(DeleteTopicsRequest(topic_names=["a", "t"], timeout_ms=1000), 5)
    while "t" in world.plane.cache.topics:
        world.step()
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True)
    assert world.client().ask(wanted, 9).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert world.client().ask(wanted, 9).topics[0].error_code == ErrorCode.NONE
