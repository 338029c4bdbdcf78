"""What is said of partitions that are to move between brokers; how they do is in controller/test_reassignment.py."""

from __future__ import annotations

import pytest

from kbroker.metadata.store import Assignment
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.controller.cluster import Cluster
from tests.world import BROKER, World


def reassigning(topic: str, index: int, replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    part = ReassignablePartition(partition_index=index, replicas=replicas)
    return AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[part])])


@pytest.mark.parametrize(
    ("topic", "index", "replicas", "code", "text"),
    [
        ("t", 0, [BROKER], ErrorCode.NONE, None),
        ("t", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None),
        ("t", 9, [BROKER], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:9."),
        ("t", 9, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find partition t:9."),
        ("nope", 0, [BROKER], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Unable to find a topic named nope."),
        ("t", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "an empty replica list."),
        ("t", 0, [BROKER, BROKER], ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the broker {BROKER} more than once."),
        ("t", 0, [BROKER, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9, but no such broker is registered."),
        ("t", 0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker -1, but no such broker is registered."),
    ],
)
def test_what_becomes_of_a_reassignment(
    topic: str, index: int, replicas: list[int] | None, code: ErrorCode, text: str | None
) -> None:
    world = World()
    world.create("t")
    told = world.client().ask(reassigning(topic, index, replicas), 0)
    (part,) = told.responses[0].partitions
    assert (told.error_code, part.partition_index, part.error_code) == (ErrorCode.NONE, index, code)
    assert (part.error_message or "").endswith(text or "")


@pytest.mark.parametrize(
    ("replicas", "text"),
    [([2, 1], None), ([1], "The replication factor is changed from 2 to 1"), (None, None)],
)
def test_a_move_may_be_kept_from_changing_how_many_replicas_there_are(
    replicas: list[int] | None, text: str | None
) -> None:
    cluster = Cluster(1, 2)
    cluster.assign("t", (1, 2))
    request = reassigning("t", 0, replicas)
    request.allow_replication_factor_change = False
    told = cluster.ask(request, 1, cluster.controller.id)
    (part,) = told.responses[0].partitions
    assert not told.allow_replication_factor_change
    assert part.error_message == text
    assert (part.error_code == ErrorCode.INVALID_REPLICATION_FACTOR) == (text is not None)


def test_nothing_is_being_moved() -> None:
    world = World()
    world.create("t")
    asked = [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9]) for name in ("t", "nope")]
    for topics in (None, asked):
        told = world.client().ask(ListPartitionReassignmentsRequest(topics=topics), 0)
        assert (told.error_code, told.topics) == (ErrorCode.NONE, [])


def test_what_another_controller_has_begun_to_move_is_listed() -> None:
    cluster = Cluster(1)
    cluster.create("t")
    epoch = cluster.nodes[1].plane.controller.epoch
    assert epoch is not None
    epoch.context.assignments["t"][0] = Assignment((1, 2), (2,), (1,))
    asked = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 0])]
    for topics in (None, asked):
        (topic,) = cluster.ask(ListPartitionReassignmentsRequest(topics=topics), 0).topics
        assert [(each.replicas, each.adding_replicas, each.removing_replicas) for each in topic.partitions] == [
            ([1, 2], [2], [1])
        ]


def test_only_the_controller_knows_of_moves() -> None:
    cluster = Cluster(1, 2)
    cluster.create("t")
    told = (
        cluster.ask(reassigning("t", 0, [1]), 0, 2),
        cluster.ask(ListPartitionReassignmentsRequest(topics=None), 0, 2),
    )
    assert [each.error_code for each in told] == [ErrorCode.NOT_CONTROLLER] * 2
