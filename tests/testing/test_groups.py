"""Groups of Kafka 4 in the helpers: they are seen by their kind, and a reset puts their members out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.waiting import eventually
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.testing import Broker, UsageError, broker
from protocol.errors import ErrorCode
from protocol.messages import streams_groups as wire
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

MEMBER = "0123456789abcdefghijkw"
SETTINGS = {"group.streams.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def b() -> Iterator[Broker]:
    with broker(settings=SETTINGS) as started:
        yield started


@pytest.fixture
def client(b: Broker) -> Iterator[BlockingConnection]:
    b.create_topic("orders")
    host, _, port = b.bootstrap.rpartition(":")
    with BlockingConnection(connect(host, int(port)), "teller") as connection:
        finds = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=["work"])
        eventually(lambda: not connection.ask(finds, 4).coordinators[0].error_code)
        yield connection


def consumer(group: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )


def sharer(group: str) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=MEMBER, member_epoch=0, subscribed_topic_names=["orders"]
    )


def streams(group: str) -> wire.StreamsGroupHeartbeatRequest:
    part = wire.Subtopology(
        subtopology_id="0",
        source_topics=["orders"],
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return wire.StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=wire.Topology(epoch=0, subtopologies=[part]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="one",
        client_tags=[],
    )


@pytest.mark.parametrize(
    ("kind", "joins", "version"), [("consumer", consumer, 1), ("share", sharer, 1), ("streams", streams, 0)]
)
def test_a_group_is_seen_by_its_kind_and_forgotten_by_a_reset(
    b: Broker, client: BlockingConnection, kind: str, joins: Callable[[str], Any], version: int
) -> None:
    eventually(lambda: not client.ask(joins("work"), version).error_code)
    found = b.groups()["work"]
    assert (found.kind, found.members, found.state) == (kind, ("teller",), "Stable")
    assert found.epoch
    if kind == "share":
        assert b.share_group("work").members == ("teller",)
    else:
        with pytest.raises(UsageError, match="there is no share group 'work': there are none"):
            b.share_group("work")
    b.reset()
    assert b.groups() == {}


@pytest.mark.parametrize(("joins", "version"), [(consumer, 1), (sharer, 1), (streams, 0)])
def test_a_fault_meets_the_heartbeats_of_a_group_of_each_kind(
    b: Broker, client: BlockingConnection, joins: Callable[[str], Any], version: int
) -> None:
    eventually(lambda: not client.ask(joins("others"), version).error_code)
    api = type(joins("work")).__name__.removesuffix("Request")
    b.faults.on(api, group="work").fail("FENCED_MEMBER_EPOCH").times(1)
    assert client.ask(joins("others"), version).error_code == 0
    met = [client.ask(joins("work"), version).error_code for _ in range(2)]
    assert met == [ErrorCode.FENCED_MEMBER_EPOCH, 0]
    b.reset()


def share_fetch(topic_id: bytes, epoch: int, parts: tuple[int, ...] = (0, 1)) -> ShareFetchRequest:
    topic = ShareFetchTopic(
        topic_id=topic_id,
        partitions=[ShareFetchPartition(partition_index=each, acknowledgement_batches=[]) for each in parts],
    )
    return ShareFetchRequest(
        group_id="work",
        member_id=MEMBER,
        share_session_epoch=epoch,
        max_wait_ms=100,
        min_bytes=1,
        max_records=10,
        batch_size=10,
        topics=[topic] if epoch == 0 else [],
        forgotten_topics_data=[],
    )


def from_the_beginning(group: str) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterableConfig(name="share.auto.offset.reset", config_operation=0, value="earliest")
    wanted = IncrementalAlterConfigsResource(resource_type=32, resource_name=group, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[wanted], validate_only=False)


def _partitions(answer: ShareGroupHeartbeatResponse) -> list[int]:
    topics = [] if answer.assignment is None else answer.assignment.topic_partitions
    return [each for topic in topics for each in topic.partitions]


def codes(answer: ShareFetchResponse) -> dict[int, tuple[int, int]]:
    """By partition: error, and how many records were acquired."""
    return {
        part.partition_index: (
            part.error_code,
            sum(each.last_offset - each.first_offset + 1 for each in part.acquired_records),
        )
        for topic in answer.responses
        for part in topic.partitions
    }


def test_faults_meet_what_a_share_groups_member_fetches_and_acknowledges(b: Broker, client: BlockingConnection) -> None:
    b.create_topic("jobs", partitions=2)
    for index in (0, 1):
        b.produce("jobs", b"job", partition=index)
    (found,) = client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="jobs")]), 12).topics
    joins = sharer("work")
    joins.subscribed_topic_names = ["jobs"]
    eventually(lambda: not client.ask(from_the_beginning("work"), 1).responses[0].error_code)
    eventually(lambda: _partitions(client.ask(joins, 1)) == [0, 1])

    b.faults.on("ShareFetch", group="work").fail("SHARE_SESSION_LIMIT_REACHED").times(1)
    refused = client.ask(share_fetch(found.topic_id, 0), 2)
    assert (refused.error_code, codes(refused)) == (ErrorCode.SHARE_SESSION_LIMIT_REACHED, {})
    assert codes(client.ask(share_fetch(found.topic_id, 0), 2)) == {0: (0, 1), 1: (0, 1)}

    b.faults.on("ShareAcknowledge", group="work").disconnect(after=True)
    accepts = [AcknowledgementBatch(first_offset=0, last_offset=0, acknowledge_types=[1])]
    parts = [ShareAcknowledgePartition(partition_index=each, acknowledgement_batches=accepts) for each in (0, 1)]
    topic = ShareAcknowledgeTopic(topic_id=found.topic_id, partitions=parts)
    said = ShareAcknowledgeRequest(group_id="work", member_id=MEMBER, share_session_epoch=1, topics=[topic])
    with pytest.raises(ConnectionError):
        client.ask(said, 2)
    eventually(lambda: set(b.share_group("work").lag.values()) == {0})
    b.reset()
