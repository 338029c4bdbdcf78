"""A metadata store that refuses what a broker needs: no right to a node. Who can do without goes on."""

from __future__ import annotations

import logging

import pytest

from kbroker.controller import failover
from kbroker.controller.controller import STAND_AGAIN_MS
from kbroker.controller.epoch import ControllerEpoch
from kbroker.metadata.steps import Procedure, StoreRefusedError
from kbroker.metadata.store import (
    BROKER_IDS,
    CONTROLLER,
    TOPICS,
    broker_path,
    config_path,
    delete_topic_path,
    encode_config,
    state_path,
    topic_path,
)
from kbroker.ports import Create, Delete, Multi, Operation, Outcome, SetData, StoreFault
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from tests.controller.cluster import Cluster


def refuse(cluster: Cluster, path: str, *brokers: int) -> None:
    """From now on these may do nothing with the node, nor with those below it."""
    apply = cluster.ensemble.tree.apply

    def guarded(operation: Operation, session: int) -> Outcome:
        where = getattr(operation, "path", "")
        lasting = session if session in cluster.ensemble.sessions else 0  # who is gone may have his nodes removed
        is_theirs = lasting in {cluster.nodes[each].store.session for each in brokers}
        is_there = f"{where}/".startswith(f"{path}/")
        return Outcome(StoreFault.REFUSED, where) if is_theirs and is_there else apply(operation, session)

    cluster.ensemble.tree.apply = guarded  # type: ignore[method-assign]


def close_to(cluster: Cluster, path: str, *brokers: int) -> None:
    """From now on these may only read the node, and those below it: it is somebody else's (zookeeper.set.acl)."""
    apply = cluster.ensemble.tree.apply

    def guarded(operation: Operation, session: int) -> Outcome:
        parts = operation.operations if isinstance(operation, Multi) else (operation,)
        closed = [isinstance(part, Create | SetData | Delete) and part.path.startswith(path) for part in parts]
        if session not in {cluster.nodes[each].store.session for each in brokers} or not any(closed):
            return apply(operation, session)
        outcomes = tuple(
            Outcome(StoreFault.REFUSED if each else StoreFault.ROLLED_BACK, part.path)
            for part, each in zip(parts, closed, strict=True)
        )
        return Outcome(StoreFault.REFUSED, "", parts=outcomes) if isinstance(operation, Multi) else outcomes[0]

    cluster.ensemble.tree.apply = guarded  # type: ignore[method-assign]


def end_controller(cluster: Cluster) -> None:
    cluster.ensemble.tree.apply(Delete(CONTROLLER), 0)
    cluster.ensemble.spread()
    cluster.settle()


def test_a_broker_that_cannot_serve_as_controller_leaves_it_to_another(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(1, 2, 3)
    refuse(cluster, TOPICS, 1, 2)
    with caplog.at_level(logging.ERROR, "kbroker.controller"):
        end_controller(cluster)
        assert [node.plane.controller.is_active for node in cluster.nodes.values()] == [False, False, True]
    assert sum("not a controller for 60 s: " in each.getMessage() for each in caplog.records) <= 2
    assert cluster.create("t", 2, 3) is ErrorCode.NONE


def test_a_broker_that_fails_at_taking_over_leaves_it_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2)
    take_over = failover.take_over

    def fails_at_1(epoch: ControllerEpoch) -> Procedure[None]:
        if epoch.broker_id == 1:
            raise KeyError("what nobody foresaw")
        yield from take_over(epoch)

    monkeypatch.setattr(failover, "take_over", fails_at_1)
    with pytest.raises(KeyError):
        end_controller(cluster)
    cluster.settle()
    assert [node.plane.controller.is_active for node in cluster.nodes.values()] == [False, True]
    assert cluster.create("t", 1, 2) is ErrorCode.NONE


def test_nobody_can_serve_as_controller_and_nobody_tries_for_ever() -> None:
    cluster = Cluster(1, 2)
    refuse(cluster, TOPICS, 1, 2)
    end_controller(cluster)
    assert CONTROLLER not in cluster.ensemble.tree.nodes
    assert [node.plane.controller.is_active for node in cluster.nodes.values()] == [False, False]


def test_it_stands_again_later() -> None:
    cluster = Cluster(1, 2)
    may_do_all = cluster.ensemble.tree.apply
    refuse(cluster, TOPICS, 1, 2)
    end_controller(cluster)
    cluster.advance(STAND_AGAIN_MS - 1_000)
    cluster.ensemble.tree.apply = may_do_all  # type: ignore[method-assign]
    assert CONTROLLER not in cluster.ensemble.tree.nodes
    cluster.advance(1_000)
    assert sum(node.plane.controller.is_active for node in cluster.nodes.values()) == 1


def test_with_another_session_it_stands_again() -> None:
    cluster = Cluster(1, 2)
    may_do_all = cluster.ensemble.tree.apply
    refuse(cluster, TOPICS, 1, 2)
    end_controller(cluster)
    cluster.ensemble.tree.apply = may_do_all  # type: ignore[method-assign]
    cluster.nodes[2].store.expire()
    cluster.settle()
    assert [node.plane.controller.is_active for node in cluster.nodes.values()] == [False, True]


def test_partitions_get_other_leaders_though_the_node_of_one_is_somebody_elses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("mine", (2, 3), (2, 3))
    cluster.assign("theirs", (2, 3))
    close_to(cluster, topic_path("theirs"), 1)
    with caplog.at_level(logging.ERROR, "kbroker.controller"):
        cluster.stop(2)
    assert cluster.leaders(3, "mine") == [3, 3]
    assert cluster.state("theirs").leader == 2
    assert any(each.getMessage().startswith("the state of theirs-0 cannot be written") for each in caplog.records)


def test_who_becomes_controller_serves_though_the_node_of_a_partition_is_somebody_elses() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.assign("mine", (1, 2))
    cluster.assign("theirs", (1, 2))
    close_to(cluster, topic_path("theirs"), 2, 3)
    cluster.stop(1)
    assert cluster.controller.id in (2, 3)
    assert cluster.leaders(2, "mine") == [2]


def test_a_topic_whose_nodes_are_partly_somebody_elses_is_not_half_deleted() -> None:
    cluster = Cluster(1, 2)
    cluster.create("t", 1, 2)
    close_to(cluster, state_path("t", 0), 1)
    cluster.ensemble.tree.apply(Create(delete_topic_path("t")), 0)
    cluster.ensemble.spread()
    with pytest.raises(StoreRefusedError):
        cluster.settle()
    assert cluster.has(delete_topic_path("t"))
    assert cluster.has(topic_path("t"))


def test_a_broker_that_may_not_be_registered_says_so_and_ends() -> None:
    cluster = Cluster(1, 2)
    refuse(cluster, BROKER_IDS, 2)
    cluster.nodes[2].store.expire()
    cluster.settle()
    assert cluster.nodes[2].plane.fatal == (
        "it cannot be registered: the metadata store refuses what is asked of /brokers/ids"
    )
    assert broker_path(2) not in cluster.ensemble.tree.nodes


# -- one of several that a client asks for


def test_topics_are_made_though_what_is_left_of_one_is_somebody_elses() -> None:
    cluster = Cluster(1)
    left = config_path("topics", "theirs")
    assert cluster.ensemble.tree.apply(Create(left, encode_config({})), 0).fault is None
    close_to(cluster, left, 1)
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in ("mine", "theirs", "more")
    ]
    answer = cluster.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000), 7)
    assert [each.error_code for each in answer.topics] == [0, ErrorCode.UNKNOWN_SERVER_ERROR, 0]


def test_topics_grow_though_one_is_somebody_elses() -> None:
    cluster = Cluster(1)
    for name in ("mine", "theirs"):
        cluster.create(name)
    close_to(cluster, topic_path("theirs"), 1)
    topics = [CreatePartitionsTopic(name=name, count=2, assignments=None) for name in ("mine", "theirs")]
    answer = cluster.ask(CreatePartitionsRequest(topics=topics, timeout_ms=1000, validate_only=False), 3)
    assert [each.error_code for each in answer.results] == [0, ErrorCode.UNKNOWN_SERVER_ERROR]


def test_settings_are_changed_though_those_of_one_topic_are_somebody_elses() -> None:
    cluster = Cluster(1)
    for name in ("mine", "theirs"):
        cluster.create(name)
    close_to(cluster, config_path("topics", "theirs"), 1)
    wanted = IncrementalAlterableConfig(name="retention.ms", config_operation=0, value="1000")
    resources = [
        IncrementalAlterConfigsResource(resource_type=2, resource_name=name, configs=[wanted])
        for name in ("mine", "theirs")
    ]
    answer = cluster.ask(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1)
    assert [each.error_code for each in answer.responses] == [0, ErrorCode.UNKNOWN_SERVER_ERROR]
