"""Topics on simulated machines: made, grown, deleted, with and without failures on the way."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kbroker.controller import topics
from kbroker.controller.admin import Growth
from kbroker.controller.controller_channel import KEEPING_UP
from kbroker.metadata.store import (
    CONTROLLER_EPOCH,
    decode_config,
    decode_topic,
    delete_topic_path,
    state_path,
    topic_path,
)
from kbroker.ports import Create
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.control import LeaderAndIsrRequest
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tests.controller.cluster import Client, Cluster

TWO_LOG_DIRS = "/data,/more"  # one may fail, and the broker goes on


def delete(cluster: Cluster, *names: str, timeout_ms: int = 1000) -> list[ErrorCode]:
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
    response = cluster.ask(request, 5, cluster.controller.id)
    return [ErrorCode(each.error_code) for each in response.responses]


def grow(
    cluster: Cluster, name: str, count: int, replicas: list[list[int]] | None = None, *, validate_only: bool = False
) -> ErrorCode:
    assignments = None
    if replicas is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=each) for each in replicas]
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assignments)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=validate_only)
    return ErrorCode(cluster.ask(request, 3, cluster.controller.id).results[0].error_code)


# -- creation


def test_a_lone_broker_leads_the_topics_it_creates() -> None:
    cluster = Cluster(1)
    assert cluster.create("t", 3) is ErrorCode.NONE
    assert cluster.leaders(1, "t") == [1, 1, 1]


def test_the_broker_is_told_that_new_replicas_are_new() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (2,))
    (told,) = [each for each in cluster.nodes[2].inbox if isinstance(each, LeaderAndIsrRequest)][-1].topic_states
    (state,) = told.partition_states
    assert (state.is_new, state.leader_epoch) == (True, 0)


def test_leaders_of_a_new_topic_are_spread_over_the_brokers() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 3, 3)
    assert sorted(cluster.leaders(2, "t")) == [1, 2, 3]


def test_every_broker_hears_of_a_new_topic() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 1, 1)
    assert [("t" in node.plane.cache.topics) for node in cluster.nodes.values()] == [True, True, True]


def test_only_the_assigned_brokers_get_replicas() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (3, 2), (2, 1))
    held = {broker: sorted(node.replicas.partitions) for broker, node in cluster.nodes.items()}
    assert held == {1: [("t", 1)], 2: [("t", 0), ("t", 1)], 3: [("t", 0)]}


def test_the_nodes_of_a_topic_are_those_of_kafka() -> None:
    cluster = Cluster(1)
    cluster.create("t", 1, retention_ms="5")
    made = decode_topic(cluster.data(topic_path("t")))
    assert made.topic_id == cluster.nodes[1].plane.cache.topic_id("t")
    assert decode_config(cluster.data("/config/topics/t")) == {"retention.ms": "5"}
    assert cluster.data(state_path("t", 0)) == (
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}'
    )


def test_the_settings_of_a_topic_are_known_before_its_first_log_opens() -> None:
    cluster = Cluster(1)
    cluster.create("t", 1, retention_ms="5")
    assert cluster.nodes[1].configs.topic_config("t").retention_ms == 5


def test_a_replica_that_is_dead_at_creation_is_not_in_sync_and_joins_as_follower() -> None:
    cluster = Cluster(1, 2)
    cluster.stop(2)
    cluster.write_topic("t", (2, 1))
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))
    cluster.start(2)
    assert cluster.nodes[2].replicas.partitions["t", 0].leader_id == 1


def test_a_topic_without_a_live_replica_waits_for_one() -> None:
    cluster = Cluster(1, 2)
    cluster.stop(2)
    cluster.write_topic("t", (2,))
    cluster.start(2)
    assert cluster.leaders(1, "t") == [2]


def test_a_topic_written_by_somebody_else_comes_to_life() -> None:
    cluster = Cluster(1)
    cluster.write_topic("old", (1,))
    assert cluster.leaders(1, "old") == [1]
    assert cluster.nodes[1].plane.cache.topic_id("old") != ZERO_UUID


# -- of many partitions


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two new partitions are many."""
    monkeypatch.setattr(topics, "NEW_PARTITIONS_AT_ONCE", 2)


def begin(cluster: Cluster, request: Message, version: int) -> Client:
    """Ask the controller; what follows is under way."""
    client = Client(cluster.controller)
    client.send(request, version)
    return client


def new(name: str, partitions: int, replication_factor: int = 1) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replication_factor, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def run_until(cluster: Cluster, condition: Callable[[], object]) -> None:
    while not condition():
        assert cluster.world.step(cluster.world.now_ms + 1000), "nothing is under way"


def begun(cluster: Cluster, name: str, partitions: int, replication_factor: int = 1) -> None:
    """A topic of which some partitions are made, and the last ones are not."""
    begin(cluster, new(name, partitions, replication_factor), 7)
    run_until(cluster, lambda: cluster.has(state_path(name, 0)))
    assert not cluster.has(state_path(name, partitions - 1))


def test_a_small_topic_does_not_wait_for_a_wide_one(few_at_once: None) -> None:
    cluster = Cluster(1)
    begun(cluster, "wide", 40)
    small = begin(cluster, new("small", 1), 7)
    run_until(cluster, small.answer)
    is_wide_made = cluster.has(state_path("wide", 39))
    cluster.settle()
    assert (is_wide_made, cluster.leaders(1, "wide")) == (False, [1] * 40)


def test_wide_topics_are_made_in_turn(few_at_once: None) -> None:
    cluster = Cluster(1)
    begun(cluster, "a", 20)
    begin(cluster, new("b", 6), 7)
    run_until(cluster, lambda: cluster.has(state_path("b", 5)))
    assert not cluster.has(state_path("a", 19))


def test_clients_hear_of_all_partitions_of_a_new_topic_at_once(few_at_once: None) -> None:
    cluster = Cluster(1, 2)
    heard: set[int] = set()
    begin(cluster, new("wide", 9, 2), 7)
    while cluster.world.step(cluster.world.now_ms + 1000):
        images = [node.plane.cache.topics.get("wide") for node in cluster.nodes.values()]
        heard |= {len(image.partitions) for image in images if image is not None}
    assert heard == {9}


def test_clients_hear_of_all_partitions_that_a_topic_grows_by_at_once(few_at_once: None) -> None:
    cluster = Cluster(1)
    cluster.create("t", 1)
    heard = {1}
    topic = CreatePartitionsTopic(name="t", count=8, assignments=None)
    begin(cluster, CreatePartitionsRequest(topics=[topic], timeout_ms=1000, validate_only=False), 3)
    while cluster.world.step(cluster.world.now_ms + 1000):
        heard.add(len(cluster.leaders(1, "t")))
    assert heard == {1, 8}


def test_a_topic_grows_while_it_is_made(few_at_once: None) -> None:
    cluster = Cluster(1)
    begun(cluster, "wide", 20)
    cluster.controller.plane.admin.grow([Growth("wide", 23, None)], validate_only=False)
    cluster.settle()
    assert cluster.leaders(1, "wide") == [1] * 23


def test_a_topic_is_deleted_while_it_is_made(few_at_once: None) -> None:
    cluster = Cluster(1, 2)
    before = set(cluster.ensemble.tree.nodes)
    begun(cluster, "wide", 20, 2)
    cluster.controller.plane.admin.delete(["wide"])
    cluster.settle()
    assert set(cluster.ensemble.tree.nodes) == before
    assert [node.logs() for node in cluster.nodes.values()] == [[], []]
    assert cluster.create("wide", 3) is ErrorCode.NONE


def test_a_broker_that_comes_while_a_topic_is_made_has_its_part_of_it(few_at_once: None) -> None:
    cluster = Cluster(1, 2)
    begun(cluster, "wide", 20, 2)
    cluster.restart(2)
    assert cluster.leaders(2, "wide") == cluster.leaders(1, "wide")
    assert len(cluster.leaders(2, "wide")) == len(cluster.nodes[2].logs()) == 20


def test_another_controller_makes_the_rest_of_a_topic(few_at_once: None) -> None:
    cluster = Cluster(1, 2, 3)
    begun(cluster, "wide", 20)
    cluster.stop(1)
    cluster.start(1)
    cluster.advance(1000)
    assert -1 not in cluster.leaders(2, "wide")
    assert len(cluster.leaders(2, "wide")) == 20


def test_no_more_partitions_are_made_than_brokers_keep_up_with(few_at_once: None) -> None:
    cluster = Cluster(1)
    channels = cluster.controller.plane.controller.channels
    line = channels._lines[1]
    longest = 0
    begin(cluster, new("wide", 40), 7)
    while cluster.world.step(cluster.world.now_ms + 1000):
        longest = max(longest, len(line))
    assert KEEPING_UP < longest <= KEEPING_UP + 2


# -- growth


def test_a_topic_grows() -> None:
    cluster = Cluster(1)
    cluster.create("t", 1)
    assert grow(cluster, "t", 3) is ErrorCode.NONE
    assert cluster.leaders(1, "t") == [1, 1, 1]


def test_growth_goes_on_round_the_brokers() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (2,))
    grow(cluster, "t", 4)
    assert cluster.leaders(1, "t") == [2, 3, 1, 2]


def test_new_partitions_go_where_they_are_told() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1,))
    assert grow(cluster, "t", 3, [[2], [2]]) is ErrorCode.NONE
    assert cluster.leaders(1, "t") == [1, 2, 2]


def test_growth_keeps_the_topic_id() -> None:
    cluster = Cluster(1)
    cluster.create("t", 1)
    before = cluster.nodes[1].plane.cache.topic_id("t")
    grow(cluster, "t", 2)
    assert decode_topic(cluster.data(topic_path("t"))).topic_id == before


def test_a_topic_does_not_shrink() -> None:
    cluster = Cluster(1)
    cluster.create("t", 2)
    assert grow(cluster, "t", 2) is ErrorCode.INVALID_PARTITIONS
    assert grow(cluster, "t", 1) is ErrorCode.INVALID_PARTITIONS


def test_growths_of_a_topic_at_once_follow_one_another() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    admin = cluster.controller.plane.admin
    growths = [admin.grow([Growth("t", total, None)], validate_only=False) for total in (2, 3)]
    cluster.settle()
    assert [each.value for each in growths] == [{"t": 2}, {"t": 3}]
    assert len(cluster.leaders(1, "t")) == 3


def test_growth_of_an_unknown_topic_is_refused() -> None:
    assert grow(Cluster(1), "t", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_growth_is_refused_for_wrong_assignments() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1,))
    wrong = [[[9]], [[1], [2]], [[1, 2]], [[1, 1]], [[]]]
    codes = {grow(cluster, "t", 2, replicas) for replicas in wrong}
    assert codes == {ErrorCode.INVALID_REPLICA_ASSIGNMENT}


def test_growth_can_be_tried_without_doing_it() -> None:
    cluster = Cluster(1)
    cluster.create("t", 1)
    assert grow(cluster, "t", 2, validate_only=True) is ErrorCode.NONE
    assert cluster.leaders(1, "t") == [1]


# -- deletion


def test_a_deleted_topic_leaves_nothing_behind() -> None:
    cluster = Cluster(1)
    before = set(cluster.ensemble.tree.nodes)
    cluster.create("t", 2)
    assert delete(cluster, "t") == [ErrorCode.NONE]
    assert set(cluster.ensemble.tree.nodes) == before
    assert cluster.nodes[1].logs() == []
    assert "t" not in cluster.nodes[1].plane.cache.topics


def test_a_deleted_topic_can_be_made_again_with_another_id() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    first = cluster.nodes[1].plane.cache.topic_id("t")
    delete(cluster, "t")
    assert cluster.create("t") is ErrorCode.NONE
    assert cluster.nodes[1].plane.cache.topic_id("t") != first


def test_a_new_topic_of_an_old_name_does_not_inherit_settings() -> None:
    cluster = Cluster(1)
    cluster.create("t", retention_ms="5")
    delete(cluster, "t")
    cluster.create("t")
    assert cluster.nodes[1].configs.topic_config("t").retention_ms != 5


def test_all_replicas_of_a_deleted_topic_are_deleted() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.create("t", 2, 3)
    delete(cluster, "t")
    assert [node.logs() for node in cluster.nodes.values()] == [[]] * 3
    assert not cluster.has(topic_path("t"))


def test_deletion_by_id() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    topic_id = cluster.nodes[1].plane.cache.topic_id("t")
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1000)
    (result,) = cluster.ask(request, 6).responses
    assert (result.name, result.error_code) == ("t", ErrorCode.NONE)


def test_deletion_of_unknown_topics_is_refused() -> None:
    cluster = Cluster(1)
    topics = [DeleteTopicState(name=None, topic_id=b"x" * 16), DeleteTopicState(name="u", topic_id=ZERO_UUID)]
    results = cluster.ask(DeleteTopicsRequest(topics=topics, timeout_ms=1000), 6).responses
    codes = [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [each.error_code for each in results] == codes


def test_a_topic_that_is_named_and_numbered_is_refused() -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=b"x" * 16)], timeout_ms=1000)
    (result,) = Cluster(1).ask(request, 6).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_deletion_may_be_disabled() -> None:
    cluster = Cluster(1, delete_topic_enable="false")
    cluster.create("t")
    codes = [
        cluster.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), version).responses[0].error_code
        for version in (2, 3)
    ]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_DELETION_DISABLED]
    cluster.ensemble.tree.apply(Create(delete_topic_path("t")), 0)  # as a tool does that does not ask
    cluster.ensemble.spread()
    cluster.settle()
    assert (cluster.has(delete_topic_path("t")), cluster.leaders(1, "t")) == (False, [1])


def test_the_deletion_of_what_does_not_exist_is_forgotten() -> None:
    cluster = Cluster(1)
    cluster.ensemble.tree.apply(Create(delete_topic_path("none")), 0)
    cluster.ensemble.spread()
    cluster.settle()
    assert not cluster.has(delete_topic_path("none"))


def test_living_brokers_delete_a_topic_at_once_and_a_dead_one_when_it_is_back() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2), (2, 1))
    stopped = cluster.nodes[2]
    cluster.stop(2)
    assert delete(cluster, "t") == [ErrorCode.NONE]
    assert (cluster.nodes[1].logs(), stopped.logs()) == ([], [("t", 0), ("t", 1)])
    assert cluster.has(topic_path("t"))
    cluster.start(2)
    assert not cluster.has(topic_path("t"))
    assert stopped.logs() == []


def test_a_topic_whose_deletion_waits_for_a_dead_broker_is_marked_for_deletion() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    cluster.stop(2)
    assert delete(cluster, "t") == [ErrorCode.NONE]
    for only in (True, False):
        wanted = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=only)
        (refused,) = cluster.ask(request, 7).topics
        assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert refused.error_message == "Topic 't' is marked for deletion."
    cluster.start(2)
    assert cluster.create("t") is ErrorCode.NONE


def test_a_broker_that_comes_back_under_a_new_controller_deletes_its_part() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (1, 2), (2, 1))
    cluster.stop(2)
    delete(cluster, "t")
    cluster.restart(1)
    assert cluster.controller.id == 3
    assert "t" not in cluster.nodes[3].plane.cache.topics
    cluster.start(2)
    assert not cluster.has(topic_path("t"))
    assert cluster.nodes[2].logs() == []


def test_nobody_hears_again_of_a_deleted_topic_when_the_controller_changes() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("t", (3, 2))
    cluster.stop(3)
    delete(cluster, "t")
    cluster.nodes[1].store.expire()
    heard: set[str] = set()
    while cluster.world.step(cluster.world.now_ms):
        heard |= {name for node in cluster.nodes.values() for name in node.plane.cache.topics}
        heard |= {topic for node in cluster.nodes.values() for topic, _ in node.logs()}
    assert cluster.data(CONTROLLER_EPOCH) == b"2"
    assert heard == set()


def test_deletion_waits_for_a_failed_disk() -> None:
    cluster = Cluster(1, 2, log_dirs=TWO_LOG_DIRS)
    cluster.assign("t", (1, 2))
    cluster.nodes[2].disk.fail("rename", "/t-0", errno.EIO)
    delete(cluster, "t")
    assert cluster.has(topic_path("t"))
    cluster.stop(2)
    cluster.start(2)
    assert not cluster.has(topic_path("t"))


def test_a_half_deleted_topic_is_gone_after_a_restart() -> None:
    cluster = Cluster(1, log_dirs=TWO_LOG_DIRS)
    cluster.create("t", 2)
    cluster.nodes[1].disk.fail("rename", "/t-0", errno.EIO)
    delete(cluster, "t")
    assert cluster.has(delete_topic_path("t"))
    cluster.restart(1)
    assert not cluster.has(topic_path("t"))
    assert not cluster.has(delete_topic_path("t"))


def test_a_topic_being_deleted_does_not_grow() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    cluster.stop(2)
    delete(cluster, "t")
    assert grow(cluster, "t", 2) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_timeout_of_zero_does_not_wait() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    assert delete(cluster, "t", timeout_ms=0) == [ErrorCode.REQUEST_TIMED_OUT]
    assert not cluster.has(topic_path("t"))
