"""How far share groups are behind in partitions that other brokers lead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.end_offsets import PATIENCE_MS, EndOffsets
from kbroker.ports import PeerAnswer, PeerFault, PeerFaultKind
from protocol.errors import ErrorCode
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from tests.controller.cluster import Cluster
from tests.requests import produce
from tests.share.ask import GROUP


@pytest.fixture
def cluster() -> Cluster:
    """Broker 1 coordinates the group, which reads a topic of three records that broker 2 leads."""
    few = {"offsets_topic_num_partitions": "1", "share_coordinator_state_topic_num_partitions": "1"}
    cluster = Cluster(1, 2, **few)
    update = FeatureUpdateKey(feature="share.version", max_version_level=2)
    assert cluster.ask(UpdateFeaturesRequest(feature_updates=[update]), 1).error_code == 0
    assert cluster.assign("t", (2,), (1,), (2,)) == 0
    assert cluster.assign("__consumer_offsets", (1,)) == 0
    assert cluster.assign("__share_group_state", (1,)) == 0
    cluster.settle()
    for value in (b"a", b"b", b"c"):
        cluster.ask(produce(value), 9, 2)
    first = {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    cluster.ask(ShareGroupHeartbeatRequest(**first), 1)
    cluster.advance(1_000)
    return cluster


def lags(cluster: Cluster) -> dict[int, tuple[int, int, int]]:
    named = DescribeShareGroupOffsetsRequestTopic(topic_name="t", partitions=[0, 1, 2])
    group = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[named])
    (found,) = cluster.ask(DescribeShareGroupOffsetsRequest(groups=[group]), 1).groups
    (topic,) = found.topics
    return {each.partition_index: (each.start_offset, each.lag, each.error_code) for each in topic.partitions}


def begin_at_0(cluster: Cluster) -> None:
    leave = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=-1)
    cluster.ask(leave, 1)
    starts = [AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=0) for index in range(3)]
    named = [AlterShareGroupOffsetsRequestTopic(topic_name="t", partitions=starts)]
    assert not cluster.ask(AlterShareGroupOffsetsRequest(group_id=GROUP, topics=named), 0).error_code


def test_lag_is_told_of_partitions_that_another_broker_leads(cluster: Cluster) -> None:
    begin_at_0(cluster)
    assert lags(cluster) == {0: (0, 3, 0), 1: (0, 0, 0), 2: (0, 0, 0)}


def test_of_a_partition_without_a_leader_that_is_said_in_place_of_its_lag(cluster: Cluster) -> None:
    begin_at_0(cluster)
    cluster.stop(2)
    cluster.advance(1_000)
    assert lags(cluster) == {
        0: (0, -1, ErrorCode.LEADER_NOT_AVAILABLE),
        1: (0, 0, 0),
        2: (0, -1, ErrorCode.LEADER_NOT_AVAILABLE),
    }


class Bench:
    """Questions of broker 1 about a partition that broker 2 leads, which is asked by hand."""

    def __init__(self) -> None:
        self.leader = 2
        self.asked: list[Any] = []
        self.heard: list[tuple[int, ErrorCode]] = []
        cache: Any = SimpleNamespace(partition=lambda topic, index: SimpleNamespace(leader=self.leader))
        replicas: Any = SimpleNamespace(partitions={})
        self.ends = EndOffsets(1, cache, replicas, cast(Any, self))
        self.is_under_way = False

    def is_asking(self, broker_id: int, purpose: str) -> bool:
        return self.is_under_way

    def ask(self, asker: object, broker_id: int, purpose: str, request: Any, token: object, **more: Any) -> bool:
        self.asked.append((broker_id, request, SimpleNamespace(token=token)))
        self.is_under_way = True
        return True

    def question(self, index: int = 0, now_ms: int = 0) -> None:
        self.ends.ask([("t", index)], lambda ends, now_ms: self.heard.extend(ends.values()), now_ms)

    def end(self, event: PeerAnswer | PeerFault, now_ms: int = 0) -> None:
        self.is_under_way = False
        self.ends.heard(self.asked[-1][2], event, now_ms)


FAULT = PeerFault(None, PeerFaultKind.RESET, was_sent=True, why="gone")


def answer(*offsets: int, code: int = 0) -> PeerAnswer:
    parts = [
        ListOffsetsPartitionResponse(partition_index=index, error_code=code, timestamp=-1, offset=offset)
        for index, offset in enumerate(offsets)
    ]
    return PeerAnswer(None, ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=parts)]))


def test_what_comes_up_while_a_leader_is_asked_is_asked_together() -> None:
    bench = Bench()
    for index in (0, 1, 1, 2):
        bench.question(index)
    bench.end(answer(5))
    (_, first, _), (_, second, _) = bench.asked
    assert [len(each.topics[0].partitions) for each in (first, second)] == [1, 2]
    bench.end(answer(5, 6, 7))
    assert bench.heard == [(5, 0), (6, 0), (6, 0), (7, 0)]


def test_a_leader_that_gives_no_answer_is_asked_again_for_a_while_or_another_one() -> None:
    bench = Bench()
    bench.question()
    bench.end(FAULT, 1)
    bench.leader = 3
    bench.end(FAULT, PATIENCE_MS - 1)
    assert [broker_id for broker_id, *_ in bench.asked] == [2, 2, 3]
    bench.end(FAULT, PATIENCE_MS)
    assert (len(bench.asked), bench.heard) == (3, [(-1, ErrorCode.NETWORK_EXCEPTION)])


def test_what_a_leader_says_of_a_partition_is_passed_on_and_of_one_that_it_leaves_out_that_it_has_none() -> None:
    bench = Bench()
    bench.question()
    bench.end(answer(-1, code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
    bench.question(7)
    bench.end(answer(5))
    bench.leader = 1
    bench.question()
    assert [code for _, code in bench.heard] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ]
