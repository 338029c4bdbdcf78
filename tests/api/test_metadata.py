"""Metadata, DescribeCluster, DescribeTopicPartitions: what clients are told of brokers and topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.config.limits import METADATA_PATIENCE_MS, WRITTEN_AT_ONCE
from kbroker.controller.admin import NewTopic
from kbroker.metadata.store import DELETE_TOPICS, BrokerInfo
from kbroker.ports import BROKER_SOFTWARE, Children, Endpoint, Operation
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from tests.broker.test_authorizer import Only
from tests.controller.cluster import Client, Cluster


def ask(cluster: Cluster, *names: str, version: int = 13, broker: int = 0, create: bool = True, **more: Any) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=create if version >= 4 else True)
    return cluster.ask(request, version, broker, **more)


def ask_all(cluster: Cluster, version: int) -> Any:
    request = MetadataRequest(topics=[] if version == 0 else None)
    return cluster.ask(request, version)


@pytest.mark.parametrize("version", range(14))
def test_all_topics_in_every_version(version: int) -> None:
    cluster = Cluster(1, 2)
    cluster.create("a", 2, 2)
    cluster.create("b")
    response = ask_all(cluster, version)
    assert sorted(topic.name for topic in response.topics) == ["a", "b"]
    assert [(broker.node_id, broker.host, broker.port) for broker in response.brokers] == [
        (1, "host1", 9092),
        (2, "host2", 9092),
    ]


@pytest.mark.parametrize("version", range(1, 14))
def test_no_topics_in_every_version_that_can_ask_so(version: int) -> None:
    cluster = Cluster(1)
    cluster.create("a")
    assert ask(cluster, version=version).topics == []


def test_a_topic_with_its_partitions() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("a", (2, 1), (1, 2))
    (topic,) = ask(cluster, "a").topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.NONE, False)
    assert topic.topic_id == cluster.nodes[1].plane.cache.topic_id("a") != ZERO_UUID
    assert [
        (p.partition_index, p.leader_id, p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in topic.partitions
    ] == [
        (0, 2, 0, [2, 1], [2, 1]),
        (1, 1, 0, [1, 2], [1, 2]),
    ]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
def test_topics_of_the_brokers_themselves_are_internal(name: str) -> None:
    cluster = Cluster(1)
    cluster.create(name)
    assert ask(cluster, name).topics[0].is_internal


def test_cluster_and_controller_are_named() -> None:
    cluster = Cluster(1, 2)
    response = ask(cluster, broker=2)
    assert (response.controller_id, response.cluster_id) == (1, cluster.nodes[1].plane.cluster_id)


def test_addresses_are_those_of_the_listener() -> None:
    response = ask(Cluster(1), listener="INSIDE")
    assert [(broker.host, broker.port) for broker in response.brokers] == [("inside1", 9093)]


def test_a_leader_without_the_listener_is_said_to_be_so() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    codes = [
        ask(cluster, "a", listener="OTHER", version=version).topics[0].partitions[0].error_code for version in (5, 6)
    ]
    assert codes == [ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND]


def test_a_dead_leader() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("a", (2,))
    cluster.stop(2)
    (partition,) = ask(cluster, "a").topics[0].partitions
    assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (
        ErrorCode.LEADER_NOT_AVAILABLE,
        -1,
        [2],
    )


def test_version_0_leaves_dead_replicas_out_and_says_so() -> None:
    cluster = Cluster(1, 2)
    cluster.assign("a", (1, 2))
    cluster.stop(2)
    (partition,) = ask(cluster, "a", version=0).topics[0].partitions
    assert (partition.error_code, partition.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])
    (partition,) = ask(cluster, "a", version=1).topics[0].partitions
    assert (partition.error_code, partition.replica_nodes) == (ErrorCode.NONE, [1, 2])


def test_topics_by_id() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    topic_id = cluster.nodes[1].plane.cache.topic_id("a")
    topics = [MetadataRequestTopic(topic_id=each, name=None) for each in (topic_id, b"x" * 16)]
    found = cluster.ask(MetadataRequest(topics=topics), 12).topics
    assert sorted((topic.error_code, topic.name or "") for topic in found) == [
        (0, "a"),
        (ErrorCode.UNKNOWN_TOPIC_ID, ""),
    ]


def test_ids_are_refused_before_version_12() -> None:
    topics = [MetadataRequestTopic(topic_id=b"x" * 16, name="a")]
    (topic,) = Cluster(1).ask(MetadataRequest(topics=topics), 11).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "ä"])
def test_names_that_no_topic_can_have(name: str) -> None:
    cluster = Cluster(1)
    for create in (True, False):
        (topic,) = ask(cluster, name, create=create).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_an_unknown_topic_is_created_with_the_broker_s_defaults() -> None:
    cluster = Cluster(1, num_partitions="3")
    (topic,) = ask(cluster, "a").topics
    assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 3)


@pytest.mark.parametrize("version", range(4))
def test_old_clients_always_create(version: int) -> None:
    assert ask(Cluster(1), "a", version=version).topics[0].error_code == ErrorCode.NONE


def test_creation_needs_both_sides() -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(Cluster(1), "a", create=False).topics[0].error_code == unknown
    assert ask(Cluster(1, auto_create_topics_enable="false"), "a").topics[0].error_code == unknown


def test_a_creation_that_takes_long_is_answered_as_kafka_does_at_once() -> None:
    cluster = Cluster(1)
    cluster.nodes[1].store.cut()
    assert ask(cluster, "a").topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_one_question_does_not_make_more_topics_than_one_creation_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.api.metadata.NEW_PARTITIONS_PER_REQUEST", 2)
    cluster = Cluster(1)
    assert [topic.error_code for topic in ask(cluster, "a", "b", "c").topics] == [ErrorCode.POLICY_VIOLATION] * 3
    assert [topic.error_code for topic in ask(cluster, "a", "b").topics] == [ErrorCode.NONE] * 2


def test_the_names_of_all_topics_are_not_read_for_each_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    store = cluster.nodes[1].store
    submit, listed = store.submit, []

    def noted(operations: Sequence[Operation], token: object) -> None:
        listed.extend(each for each in operations if each == Children(DELETE_TOPICS))
        submit(operations, token)

    monkeypatch.setattr(store, "submit", noted)
    names = [f"t{number}" for number in range(WRITTEN_AT_ONCE + 10)]
    found = [topic.error_code for topic in ask(cluster, *names).topics]
    assert (found, len(listed)) == ([ErrorCode.NONE] * len(names), 2)


def test_a_topic_that_two_ask_for_is_begun_once() -> None:
    cluster = Cluster(1)
    admin = cluster.nodes[1].plane.admin
    begun = admin.auto_create([NewTopic(name, 1, 1, {}, {}) for name in ("a", "b")])
    again = admin.auto_create([NewTopic(name, 1, 1, {}, {}) for name in ("b", "c")])
    assert (begun["a"] is begun["b"] is again["b"], again["c"] is not again["b"]) == (True, True)


def test_a_creation_that_fails_says_why() -> None:
    cluster = Cluster(1, default_replication_factor="2")
    assert ask(cluster, "a").topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_what_the_controller_thinks_of_this_broker_makes_a_client_ask_again() -> None:
    cluster = Cluster(1, 2)
    cluster.controller.broker.auth_helper.authorizer = Only()
    (other,) = cluster.nodes.keys() - {cluster.controller.id}
    assert ask(cluster, "a", broker=other).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_creation_that_the_store_has_not_confirmed_is_asked_for_again() -> None:
    cluster = Cluster(1)
    node = cluster.nodes[1]
    cluster.ensemble.end_session(node.plane._session)  # and nobody knows yet whether the topic was made
    assert ask(cluster, "a").topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_a_name_that_differs_in_a_dot_only_is_not_created() -> None:
    cluster = Cluster(1)
    cluster.create("a.b")
    assert ask(cluster, "a_b").topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_topic_of_a_metadata_quorum_is_not_created_by_asking_for_it() -> None:
    assert ask(Cluster(1), "__cluster_metadata").topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_of_two_names_that_differ_in_a_dot_only_one_is_created() -> None:
    cluster = Cluster(1)
    found = [topic.error_code for topic in ask(cluster, "a.b", "a_b").topics]
    assert found == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]


def test_a_name_is_free_again_after_a_creation_that_failed() -> None:
    cluster = Cluster(1, default_replication_factor="2")
    ask(cluster, "a.b")
    cluster.create("a_b")
    assert ask(cluster, "a_b").topics[0].error_code == ErrorCode.NONE


def test_coordinators_topics_are_created_as_such() -> None:
    cluster = Cluster(1, offsets_topic_num_partitions="4", offsets_topic_replication_factor="1")
    (topic,) = ask(cluster, "__consumer_offsets").topics
    assert (topic.is_internal, len(topic.partitions)) == (True, 4)
    assert cluster.nodes[1].configs.topic_config("__consumer_offsets").compacts


def test_a_broker_that_is_not_controller_has_the_controller_create() -> None:
    cluster = Cluster(1, 2)
    sent: list[tuple[int, Endpoint, Any]] = []
    peers = cluster.nodes[2].plane._requester._join()
    peers.send = lambda broker, address, purpose, request, *_: sent.append((broker, address, request))  # type: ignore[method-assign,assignment]
    assert ask(cluster, "a", broker=2).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
    ((broker, address, request),) = sent
    assert (broker, address) == (1, Endpoint("PLAINTEXT", 0, "host1", 9092))
    assert [(topic.name, topic.num_partitions, topic.replication_factor) for topic in request.topics] == [("a", -1, -1)]


def test_a_broker_that_knows_of_no_controller_does_not_create() -> None:
    cluster = Cluster(1, 2)
    cluster.nodes[2].plane.controller.active_id = -1
    for _ in range(2):
        assert ask(cluster, "a", broker=2).topics[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE


def test_known_topics_are_told_beside_those_that_are_created() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    assert [(topic.name, topic.error_code) for topic in ask(cluster, "b", "a", "b").topics] == [("b", 0), ("a", 0)]


def test_operations_are_told_if_asked_for() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    topics = [MetadataRequestTopic(name="a")]
    request = MetadataRequest(
        topics=topics, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    response = cluster.ask(request, 8)
    # as Apache tells without an authorizer: READ 3 to DESCRIBE 8, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert response.cluster_authorized_operations == 0b1_1111_1010_0000
    assert ask(cluster, "a").topics[0].topic_authorized_operations == -(2**31)


def test_nothing_is_allowed_on_a_topic_whose_id_nobody_knows() -> None:
    topics = [MetadataRequestTopic(topic_id=bytes(15) + b"\7", name=None)]
    (topic,) = Cluster(1).ask(MetadataRequest(topics=topics, include_topic_authorized_operations=True), 12).topics
    assert (topic.error_code, topic.topic_authorized_operations) == (ErrorCode.UNKNOWN_TOPIC_ID, -(2**31))


def test_an_answer_is_worked_out_once_between_two_updates() -> None:
    cluster = Cluster(1)
    cluster.create("a", 2)
    ask(cluster, "a")
    memo = dict(cluster.nodes[1].plane.cache.memo)
    ask(cluster, "a")
    assert cluster.nodes[1].plane.cache.memo == memo
    cluster.create("b")
    assert cluster.nodes[1].plane.cache.memo == {}


# -- of a broker that has not been told of the cluster

QUESTIONS = (
    (MetadataRequest(topics=[]), 9),
    (DescribeClusterRequest(include_cluster_authorized_operations=False), 1),
    (DescribeTopicPartitionsRequest(topics=[]), 0),
)


def asked_too_soon(cluster: Cluster, request: Message, version: int) -> Client:
    """Of broker 2, whose image is empty still."""
    cache = cluster.nodes[2].plane.cache
    cache.brokers, cache.controller_id = {}, -1
    client = Client(cluster.nodes[2])
    client.send(request, version)
    return client


@pytest.mark.parametrize(("question", "version"), QUESTIONS)
def test_a_question_about_the_cluster_waits_until_the_broker_has_been_told(question: Message, version: int) -> None:
    cluster = Cluster(1, 2)
    client = asked_too_soon(cluster, question, version)
    assert client.answer() is None
    cluster.start(3)  # all are told of it
    answer = client.answer()
    if not isinstance(question, DescribeTopicPartitionsRequest):
        assert (answer.controller_id, [each.host for each in answer.brokers]) == (1, ["host1", "host2", "host3"])
    assert answer is not None


def test_a_question_about_the_cluster_does_not_wait_for_ever() -> None:
    cluster = Cluster(1, 2)
    client = asked_too_soon(cluster, *QUESTIONS[0])
    cluster.advance(METADATA_PATIENCE_MS)
    answer = client.answer()
    assert (answer.controller_id, answer.brokers) == (-1, [])


def test_a_broker_need_not_wait_to_see_whom_it_speaks_to() -> None:
    cluster = Cluster(1, 2)
    cache = cluster.nodes[2].plane.cache
    cache.brokers, cache.controller_id = {}, -1
    line = Client(cluster.nodes[2])
    line.send(ApiVersionsRequest(client_software_name=BROKER_SOFTWARE, client_software_version="1"), 3)
    line.answer()
    line.send(*QUESTIONS[0])
    assert line.answer().cluster_id == cluster.nodes[1].plane.cluster_id


def test_a_question_that_waited_may_be_wrong() -> None:
    cluster = Cluster(1, 2)
    topics = [MetadataRequestTopic(topic_id=b"i" * 16, name=None)]
    client = asked_too_soon(cluster, MetadataRequest(topics=topics), 10)  # by id before that is understood
    cluster.start(3)
    assert [each.error_code for each in client.answer().topics] == [ErrorCode.INVALID_REQUEST]


# -- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_is_described(version: int) -> None:
    cluster = Cluster(1, 2)
    response = cluster.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version, 2)
    assert (response.controller_id, response.cluster_id) == (1, cluster.nodes[1].plane.cluster_id)
    assert [(broker.broker_id, broker.host) for broker in response.brokers] == [(1, "host1"), (2, "host2")]


def test_controllers_are_not_to_be_had_from_a_broker() -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    answer = Cluster(1).ask(request, 1)
    text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    assert (answer.error_code, answer.error_message) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, text)


def test_unknown_endpoint_types_are_refused() -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=9)
    answer = Cluster(1).ask(request, 1)
    expected = (ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 9")
    assert (answer.error_code, answer.error_message) == expected


# -- DescribeTopicPartitions


def pages(cluster: Cluster, names: list[str], limit: int, cursor: Cursor | None = None) -> list[list[tuple[str, int]]]:
    """(topic, partition) on each page."""
    told = []
    while True:
        topics = [TopicRequest(name=name) for name in names]
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit, cursor=cursor)
        response = cluster.ask(request, 0)
        told.append([(topic.name, each.partition_index) for topic in response.topics for each in topic.partitions])
        if response.next_cursor is None:
            return told
        cursor = Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )


def test_partitions_are_told_page_by_page_in_order() -> None:
    cluster = Cluster(1)
    cluster.create("b", 3)
    cluster.create("a", 2)
    assert pages(cluster, [], 2) == [[("a", 0), ("a", 1)], [("b", 0), ("b", 1)], [("b", 2)]]
    assert pages(cluster, ["b", "a"], 100) == [[("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]]


def test_eligible_leaders_are_empty_lists_since_java_clients_fail_on_none() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    response = cluster.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")]), 0)
    partition = response.topics[0].partitions[0]
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


def test_eligible_leaders_are_told_as_the_control_plane_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    cluster.create("a", 2)
    monkeypatch.setattr(cluster.nodes[1].plane, "eligible_leaders", lambda topic, index: ([index + 7], [8]))
    (topic,) = cluster.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")]), 0).topics
    assert [(each.eligible_leader_replicas, each.last_known_elr) for each in topic.partitions] == [
        ([7], [8]),
        ([8], [8]),
    ]


def test_brokers_that_may_not_serve_are_told_to_those_who_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1)
    elsewhere = BrokerInfo(8, (Endpoint("OTHER", 0, "host8", 1),))
    fenced = BrokerInfo(7, (Endpoint("PLAINTEXT", 0, "host7", 9092),), "rack")
    monkeypatch.setattr(cluster.nodes[1].plane, "fenced_brokers", lambda: [elsewhere, fenced])
    told = []
    for included in (False, True):
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=included)
        brokers = cluster.ask(request, 2).brokers
        told.append([(each.broker_id, each.host, each.port, each.rack, each.is_fenced) for each in brokers])
    assert told == [[(1, "host1", 9092, None, False)], [*told[0], (7, "host7", 9092, "rack", True)]]


def test_a_cursor_may_name_a_topic_that_is_gone() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    cluster.create("c")
    assert pages(cluster, [], 5, Cursor(topic_name="b", partition_index=3)) == [[("c", 0)]]


def test_the_broker_has_a_limit_of_its_own() -> None:
    cluster = Cluster(1, max_request_partition_size_limit="1")
    cluster.create("a", 2)
    assert pages(cluster, [], 100) == [[("a", 0)], [("a", 1)]]


def test_unknown_topics_are_told_and_not_created() -> None:
    cluster = Cluster(1)
    response = cluster.ask(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a")]), 0)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert not cluster.has("/brokers/topics/a")


def test_a_cursor_below_zero_is_refused() -> None:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name="a")], cursor=Cursor(topic_name="a", partition_index=-1)
    )
    assert Cluster(1).ask(request, 0).topics[0].error_code == ErrorCode.INVALID_REQUEST


def test_the_cursor_s_topic_is_among_those_asked_for() -> None:
    cluster = Cluster(1)
    cluster.create("a")
    cursor = Cursor(topic_name="b", partition_index=0)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a"), TopicRequest(name="c")], cursor=cursor)
    assert [topic.error_code for topic in cluster.ask(request, 0).topics] == [ErrorCode.INVALID_REQUEST] * 2
