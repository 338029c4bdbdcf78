"""The same questions to an Apache broker and to the kbroker beside it in one cluster: the answers are the same.

Both read the same metadata log and pass on to the same controllers, so what a client is told must not depend on whom it
asks: what there is, in every version that both serve, and what is refused, in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.apache import NEWEST, Quorum
from compat_tests.raw import Connection
from compat_tests.test_quorum_member import OURS, Cluster, eventually
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    ListConfigResourcesRequest,
)
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from protocol.messages.quorum import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumTopic,
    UnregisterBrokerRequest,
)
from protocol.messages.quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    ComponentData,
    DescribeClientQuotasRequest,
    EntityData,
    OpData,
)
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)
from protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from tests.judges.trees import tree

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

APACHE = 1
TOPIC, BROKER, GROUP = 2, 4, 32
SET = (1, 3, 8)  # sources: of the topic, of all brokers, of the group
SERVED = {32: (1, 4), 29: (1, 3)}  # by both, where it is not all that there is


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With something of everything in its metadata, put there through the kbroker."""
    folder = tmp_path_factory.mktemp("answers")
    with Cluster(folder, Quorum(NEWEST, folder)) as made:
        for number in made.brokers:
            eventually(lambda number=number: {each.node_id for each in made.seen(number).brokers} == {1, 2, OURS})  # type: ignore[misc]
        made.make("orders", [1, 2, OURS], [OURS, 1, 2], [2, OURS, 1], min_insync_replicas="2")
        made.make("payments", [OURS])
        with Connection(made.brokers[OURS].port) as connection:
            for request, version in _changes():
                answer = connection.ask(request, version)
                assert _codes(tree(answer, version)) == {0}, answer
        yield made


def _changes() -> list[tuple[Message, int]]:
    return [
        (_set(TOPIC, "orders", "retention.ms", "86400000"), 1),
        (_set(TOPIC, "payments", "cleanup.policy", "compact"), 1),
        (_set(BROKER, "", "log.retention.ms", "172800000"), 1),
        (_set(BROKER, str(OURS), "num.io.threads", "5"), 1),
        (_set(GROUP, "readers", "consumer.heartbeat.interval.ms", "6000"), 1),
        (_quota(("user", "alice"), ("client-id", None)), 1),
        (_quota(("user", None)), 1),
        (_scram("alice", 1), 0),
        (_scram("bob", 2), 0),
    ]


def _set(of_type: int, resource: str, name: str, value: str | None) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterableConfig(name=name, config_operation=0, value=value)
    changed = IncrementalAlterConfigsResource(resource_type=of_type, resource_name=resource, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[changed], validate_only=False)


def _quota(*entity: tuple[str, str | None], key: str = "producer_byte_rate") -> AlterClientQuotasRequest:
    parts = [EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity]
    entry = AlterClientQuotasEntry(entity=parts, ops=[OpData(key=key, value=1e6, remove=False)])
    return AlterClientQuotasRequest(entries=[entry], validate_only=False)


def _scram(name: str, mechanism: int, iterations: int = 4096) -> AlterUserScramCredentialsRequest:
    upsertion = ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"p" * 32
    )
    return AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])


def _codes(found: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(found, list):
        return {code for each in found for code in _codes(each)}
    if not isinstance(found, dict):
        return set()
    here = {found["errorcode"]} if "errorcode" in found else set()
    return here | {code for each in found.values() for code in _codes(each)}


def told(cluster: Cluster, at: int, request: Message, version: int) -> Any:
    """What a broker answers, with lists in an order of their own, which Apache's maps have none."""
    with Connection(cluster.brokers[at].port) as connection:
        answer = connection.ask(request, version)
    found = _sorted(tree(answer, version))
    found.pop("throttletimems", None)
    return found


def _sorted(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _sorted(each) for name, each in found.items()}
    if isinstance(found, list):
        return sorted(map(_sorted, found), key=lambda each: json.dumps(each, sort_keys=True))
    return found


QUESTIONS: dict[str, Message] = {
    "two topics": MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in ("orders", "payments")]),
    "a topic that there is not": MetadataRequest(
        topics=[MetadataRequestTopic(name="gone")], allow_auto_topic_creation=False
    ),
    "brokers": DescribeClusterRequest(include_cluster_authorized_operations=False),
    "partitions": DescribeTopicPartitionsRequest(topics=[TopicRequest(name="orders"), TopicRequest(name="gone")]),
    "a page of partitions": DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name="orders")], response_partition_limit=2
    ),
    "resources": ListConfigResourcesRequest(),
    "all quotas": DescribeClientQuotasRequest(components=[], strict=False),
    "quotas of a user": DescribeClientQuotasRequest(
        components=[ComponentData(entity_type="user", match_type=0, match="alice")], strict=False
    ),
    "quotas of a default": DescribeClientQuotasRequest(
        components=[ComponentData(entity_type="user", match_type=1, match=None)], strict=True
    ),
    "users": DescribeUserScramCredentialsRequest(users=None),
    "a user twice": DescribeUserScramCredentialsRequest(
        users=[UserName(name="alice"), UserName(name="alice"), UserName(name="eve")]
    ),
    "reassignments": ListPartitionReassignmentsRequest(topics=None),
    "a quorum that there is not": DescribeQuorumRequest(
        topics=[DescribeQuorumTopic(topic_name="orders", partitions=[DescribeQuorumPartition(partition_index=0)])]
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_there_is_is_told_alike(cluster: Cluster, question: str) -> None:
    request = QUESTIONS[question]
    api = BY_KEY[request.api or 0]
    first, last = SERVED.get(api.key, api.kafka_4_4 or (0, 0))
    for version in range(max(first, 4 if api.key == 3 else 0), last + 1):
        if request.api == 3:
            for at in (APACHE, OURS):
                eventually(lambda at=at: len(cluster.partitions("orders", at)) == 3)  # type: ignore[misc]
        theirs, ours = (told(cluster, at, request, version) for at in (APACHE, OURS))
        for answer in (theirs, ours) if api.key in (3, 60) else ():
            answer.pop("controllerid", None)  # any broker, by chance
        assert ours == theirs, version


def test_what_there_is_is_told_alike_while_a_broker_is_away(cluster: Cluster) -> None:
    with_fenced = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    cluster.brokers[2].stop()
    try:
        for at in (APACHE, OURS):
            eventually(lambda at=at: {each.node_id for each in cluster.seen(at).brokers} == {APACHE, OURS})  # type: ignore[misc]
        for question, request in (QUESTIONS | {"all brokers": with_fenced}).items():
            api = BY_KEY[request.api or 0]
            _, version = SERVED.get(api.key, api.kafka_4_4 or (0, 0))
            theirs, ours = (told(cluster, at, request, version) for at in (APACHE, OURS))
            for answer in (theirs, ours) if api.key in (3, 60) else ():
                answer.pop("controllerid", None)  # any broker, by chance
            assert ours == theirs, question
    finally:
        cluster.brokers[2].start()


@pytest.mark.parametrize(("of_type", "name"), [(TOPIC, "orders"), (TOPIC, "payments"), (GROUP, "readers")])
def test_settings_are_told_alike(cluster: Cluster, of_type: int, name: str) -> None:
    """Those that are set, for the resource or for all brokers: defaults are each broker's own."""
    resource = DescribeConfigsResource(resource_type=of_type, resource_name=name, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[resource])
    theirs, ours = (
        {
            each["name"]: (each["value"], each["configsource"])
            for each in told(cluster, at, request, 4)["results"][0]["configs"]
            if each["configsource"] in SET
        }
        for at in (APACHE, OURS)
    )
    assert ours == theirs
    assert len(ours) >= 1


def test_the_same_features_are_finalized(cluster: Cluster) -> None:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    theirs, ours = (told(cluster, at, request, 3) for at in (APACHE, OURS))
    assert ours["finalizedfeatures"] == theirs["finalizedfeatures"]
    assert {each["name"] for each in ours["finalizedfeatures"]} >= {"metadata.version", "group.version"}


def _topic(name: str, partitions: int = 1, replicas: int = 1, **configs: str) -> CreateTopicsRequest:
    settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=settings
    )
    return CreateTopicsRequest(topics=[topic])


REFUSED: dict[str, tuple[Message, int]] = {
    "a topic that there is": (_topic("orders"), 7),
    "a bad name": (_topic("a topic"), 7),
    "no partitions": (_topic("none", 0), 7),
    "too many replicas": (_topic("wide", 1, 9), 7),
    "an unknown setting": (_topic("odd", colour="red"), 7),
    "a bad setting": (_topic("odd", retention_ms="soon"), 7),
    "topics that there are not": (
        DeleteTopicsRequest(topics=[DeleteTopicState(name="gone", topic_id=ZERO_UUID)], timeout_ms=9000),
        6,
    ),
    "fewer partitions": (
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name="orders", count=2, assignments=None)],
            timeout_ms=9000,
            validate_only=False,
        ),
        3,
    ),
    "an election of nothing": (
        ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="orders", partitions=[0, 9])]),
        2,
    ),
    "a move to no broker": (
        AlterPartitionReassignmentsRequest(
            topics=[
                ReassignableTopic(name="orders", partitions=[ReassignablePartition(partition_index=0, replicas=[99])])
            ]
        ),
        0,
    ),
    "a bad value of a topic": (_set(TOPIC, "orders", "segment.bytes", "many"), 1),
    "a value of no topic": (_set(TOPIC, "gone", "segment.bytes", "1048576"), 1),
    "a bad value of a group": (_set(GROUP, "readers", "consumer.session.timeout.ms", "1"), 1),
    "a quota of nothing": (_quota(("user", "alice"), key="colour"), 1),
    "a quota of an odd entity": (_quota(("planet", "mars")), 1),
    "a user with few rounds": (_scram("carol", 1, 5), 0),
    "a user with an odd mechanism": (_scram("carol", 7), 0),
    "a user that there is not": (
        AlterUserScramCredentialsRequest(deletions=[ScramCredentialDeletion(name="eve", mechanism=1)], upsertions=[]),
        0,
    ),
    "a feature that there is not": (
        UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="colour.version", max_version_level=1)]),
        2,
    ),
    "a level that there is not": (
        UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="metadata.version", max_version_level=99)]),
        2,
    ),
    "a broker that there is not": (UnregisterBrokerRequest(broker_id=77), 0),
}


@pytest.mark.parametrize("refusal", REFUSED)
def test_what_is_refused_is_refused_in_the_same_words(cluster: Cluster, refusal: str) -> None:
    request, version = REFUSED[refusal]
    theirs, ours = (told(cluster, at, request, version) for at in (APACHE, OURS))
    assert ours == theirs
    assert _codes(ours) - {ErrorCode.NONE}


def test_settings_of_a_broker_hold_on_the_broker_that_is_meant(cluster: Cluster) -> None:
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(OURS), configuration_keys=["num.io.threads", "log.retention.ms"]
    )
    request = DescribeConfigsRequest(resources=[resource])
    (result,) = told(cluster, OURS, request, 4)["results"]
    assert {each["name"]: each["value"] for each in result["configs"]} == {
        "num.io.threads": "5",
        "log.retention.ms": "172800000",
    }


@pytest.mark.parametrize("at", [APACHE, OURS])
def test_a_broker_refuses_a_bad_setting_of_its_own_and_takes_the_rest(cluster: Cluster, at: int) -> None:
    request = _set(BROKER, str(at), "num.io.threads", "none")
    request.resources += _set(TOPIC, "payments", "segment.ms", "86400000").resources
    request.resources += _set(BROKER, str(APACHE + OURS - at), "num.io.threads", "4").resources
    responses = told(cluster, at, request, 1)["responses"]
    codes = {(each["resourcetype"], each["resourcename"]): each["errorcode"] for each in responses}
    assert codes[TOPIC, "payments"] == ErrorCode.NONE
    assert codes[BROKER, str(at)] != ErrorCode.NONE
    assert codes[BROKER, str(APACHE + OURS - at)] == ErrorCode.INVALID_REQUEST
