"""Apache Kafka 4.4.0 and kbroker are asked the same in the versions that came with it, and must say the same.

In words where the words are the brokers' own. What differs on purpose stands at the heads of kbroker/api/*.py, and is
not asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.apache import NEWEST, KraftBroker
from compat_tests.brokers import place_of
from compat_tests.raw import Connection
from compat_tests.test_differences import MADE_UP, NOT_COMPARED, Told
from compat_tests.waiting import eventually
from protocol.messages.configs import ListConfigResourcesRequest
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreateTopicsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.transactions import (
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
UPGRADE, SAFE_DOWNGRADE = 1, 2
LEVELS = [
    ("group.version", 2, UPGRADE),
    ("group.version", 0, UPGRADE),
    ("group.version", -1, SAFE_DOWNGRADE),
    ("group.version", 1, 7),
    ("group.version", 1, UPGRADE),
    ("share.version", 1, SAFE_DOWNGRADE),
    ("share.version", 2, SAFE_DOWNGRADE),
    ("share.version", 2, UPGRADE),
    ("nothing", 1, UPGRADE),
]


def ask_who_it_is(told: Told) -> None:
    """ApiVersions of clients that know the cluster, or take the broker for another one."""
    cluster = told.ask_aside(DescribeClusterRequest(include_cluster_authorized_operations=False), 1)
    for cluster_id, node in (
        (None, -1),
        (None, 99),
        (cluster.cluster_id, -1),
        (cluster.cluster_id, 1),
        (cluster.cluster_id, 99),
        ("another", 1),
    ):
        request = ApiVersionsRequest(
            client_software_name="tests", client_software_version="1", cluster_id=cluster_id, node_id=node
        )
        answer = told.ask_aside(request, 5)
        told.answers.append(f"{cluster_id is None} {node}: {answer.error_code} {bool(answer.api_keys)}")


def change_levels(told: Told) -> None:
    """UpdateFeatures that change nothing, or what has no mark on anything else here."""
    for version in (1, 2):
        for name, level, kind in LEVELS:
            key = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            told.ask(UpdateFeaturesRequest(feature_updates=[key], validate_only=level == 0), version, in_words=True)


def list_what_has_settings(told: Told) -> None:
    """ListConfigResources, of all kinds and of some."""
    told.ask(ListConfigResourcesRequest(), 0)
    for kinds in ([2], [4], [8], [16], [2, 4], [1], [2, 99], [0]):
        told.ask(ListConfigResourcesRequest(resource_types=kinds), 1)


def move_as_many_replicas(told: Told) -> None:
    """AlterPartitionReassignments that may not change how many replicas there are."""
    for replicas in ([1], [1, 2], [], None):
        for allowed in (True, False):
            part = ReassignablePartition(partition_index=0, replicas=replicas)
            request = AlterPartitionReassignmentsRequest(
                allow_replication_factor_change=allowed, topics=[ReassignableTopic(name="t", partitions=[part])]
            )
            told.ask(request, 1)


def commit_by_topic_id(told: Told) -> None:
    """TxnOffsetCommit 6, and 5 by name: of topics that are there or not, and of a group that is not."""
    found = told.ask_aside(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12).topics[0].topic_id
    init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
    answers = []
    eventually(lambda: answers.append(told.ask_aside(init, 4)) or answers[-1].error_code == 0, within_s=60)
    for version, topic_id in ((5, found), (6, found), (6, bytes(15) + b"x"), (6, bytes(16))):
        for index, generation in ((0, 3),) if version == 5 else ((0, -1), (9, -1), (0, 3)):
            part = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
            commit = TxnOffsetCommitRequest(
                transactional_id="x",
                group_id="g",
                producer_id=answers[-1].producer_id,
                producer_epoch=answers[-1].producer_epoch,
                generation_id=generation,
                member_id="m" if generation >= 0 else "",
                topics=[TxnOffsetCommitRequestTopic(name="t", topic_id=topic_id, partitions=[part])],
            )
            told.ask(commit, version)
    for pattern in ("x", "y|x", "x.", "(", "(x)\\1", ""):
        told.ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[], transactional_id_pattern=pattern), 2)
    told.ask(DeleteGroupsRequest(groups_names=["nowhere"]), 3)


STORIES = (ask_who_it_is, change_levels, list_what_has_settings, move_as_many_replicas, commit_by_topic_id)


def answers_of(port: int) -> list[str]:
    with Connection(port) as connection:
        told = Told(connection, frozenset(NOT_COMPARED))
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        told.ask_aside(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
        for each in (FindCoordinatorRequest(key="g"), FindCoordinatorRequest(key="x", key_type=1)):
            eventually(lambda each=each: told.ask_aside(each, 3).error_code == 0, within_s=60)  # type: ignore[misc]
        found: list[str] = []
        for story in STORIES:
            told.answers = []
            story(told)
            found += [f"{story.__name__}: {each}" for each in told.answers]
        return found


def test_the_same_is_answered_in_the_newest_versions(tmp_path: Path) -> None:
    assert "topic_id" in MADE_UP
    with KraftBroker(NEWEST, tmp_path / "apache", settings=SETTINGS) as apaches:
        theirs = answers_of(apaches.port)
    with place_of("kbroker", tmp_path / "ours", SETTINGS) as place:
        ours = answers_of(place.port)
    assert len(theirs) == len(ours)
    differing = [f"theirs: {a}\n  ours:   {b}" for a, b in zip(theirs, ours, strict=True) if a != b]
    assert not differing, "\n".join(differing)
