"""Heartbeats that say again what they said: answered from the bytes of before, as long as nothing has changed."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.config.broker import AUTHORIZERS
from kbroker.config.limits import MOST_REPEATED, REPEATED_BYTES
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic
from tests.quotas import REQUEST, alter, altered
from tests.world import Client, World

GROUP, TOPIC = "work", "t"
GROUP_RESOURCE, SET = 32, 0
SESSION_MS, INTERVAL_MS = 45_000, 5_000


class Members:
    """A world with consumers, each with a connection of its own."""

    def __init__(self, **settings: str) -> None:
        self.world = World(offsets_topic_num_partitions="1", **settings)
        self.world.create(TOPIC, partitions=2)
        self.clients: dict[str, Client] = {}
        self.epochs: dict[str, int] = {}
        self.admin = self.world.client("admin")
        self.ask(self.admin, FindCoordinatorRequest(key=GROUP), 3)

    def ask(self, client: Client, request: Any, version: int) -> Any:
        number = client.send(request, version)
        self.world.advance(100)
        return client.look()[number]

    def join(self, member: str) -> None:
        """Until it has all that it is to have, and has said so, and has been answered again."""
        self.clients[member] = self.world.client()
        answer = self.beat(member, 0, rebalance_timeout_ms=60_000, subscribed_topic_names=[TOPIC], topic_partitions=[])
        while True:
            owned = None if answer.assignment is None else answer.assignment.topic_partitions
            answer = self.beat(member, topic_partitions=owned)
            if owned is None:
                return

    def beat(self, member: str, epoch: int | None = None, **said: Any) -> ConsumerGroupHeartbeatResponse:
        epoch = self.epochs[member] if epoch is None else epoch
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=member, member_epoch=epoch, **said)
        answer: ConsumerGroupHeartbeatResponse = self.ask(self.clients[member], request, 1)
        self.epochs[member] = answer.member_epoch
        return answer

    def is_known(self, member: str) -> bool:
        """Whether an answer is kept for its next heartbeat, and holds."""
        kept = self.clients[member].channel.repeated.values()
        return any(each.again.holds(self.world.clock.now_ms()) for each in kept)


@pytest.fixture
def members() -> Members:
    made = Members()
    made.join("a")
    assert made.is_known("a")
    return made


def test_a_heartbeat_that_comes_again_has_the_same_answer_and_is_counted(members: Members) -> None:
    first, counted = members.beat("a"), members.world.core._requests[68]
    assert members.beat("a") == first
    assert members.world.core._requests[68] == counted + 1


def test_each_is_answered_under_its_own_number(members: Members) -> None:
    client = members.clients["a"]
    request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=members.epochs["a"])
    numbers = [client.start(request, 1) for _ in range(3)]
    assert list(client.look())[-3:] == numbers


def test_a_member_that_only_repeats_itself_lives_until_it_is_silent_for_a_session(members: Members) -> None:
    for _ in range(2 * SESSION_MS // INTERVAL_MS):
        members.world.advance(INTERVAL_MS - 100)
        assert members.is_known("a")
        assert not members.beat("a").error_code
    members.world.advance(SESSION_MS - 101)
    group = members.world.broker.group_runtime.find(GROUP).groups[GROUP]  # type: ignore[union-attr]
    assert "a" in group.members
    members.world.advance(2)
    assert "a" not in group.members
    assert members.beat("a").error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_ends_it(members: Members) -> None:
    members.join("b")
    assert not members.is_known("a")
    assert members.beat("a").member_epoch == members.epochs["b"]


def test_news_of_the_topics_end_it(members: Members) -> None:
    more = CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)
    members.ask(members.admin, CreatePartitionsRequest(topics=[more], timeout_ms=1_000, validate_only=False), 3)
    assert not members.is_known("a")
    members.world.advance(1_000)
    answer = members.beat("a")
    assert answer.assignment is not None
    assert [each.partitions for each in answer.assignment.topic_partitions] == [[0, 1, 2]]


def test_settings_of_the_group_end_it(members: Members) -> None:
    config = IncrementalAlterableConfig(name="consumer.heartbeat.interval.ms", config_operation=SET, value="7000")
    resource = IncrementalAlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=GROUP, configs=[config])
    members.ask(members.admin, IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    assert members.beat("a").heartbeat_interval_ms == 7_000


def test_a_coordinator_that_has_gone_ends_it(members: Members) -> None:
    members.world.broker.group_runtime.resigned(0, members.world.clock.now_ms())
    assert members.beat("a").error_code == ErrorCode.NOT_COORDINATOR


def test_a_feature_that_is_not_finalized_any_more_ends_it(members: Members) -> None:
    features = members.world.broker.features
    features.adopt({name: level for name, level in features.finalized.items() if name != "group.version"}, 9)
    assert members.beat("a").error_code == ErrorCode.UNSUPPORTED_VERSION


def test_committed_offsets_do_not(members: Members) -> None:
    topic = OffsetCommitRequestTopic(
        name=TOPIC,
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")],
    )
    commit = OffsetCommitRequest(
        group_id=GROUP, member_id="a", generation_id_or_member_epoch=members.epochs["a"], topics=[topic]
    )
    members.ask(members.clients["a"], commit, 9)
    assert members.is_known("a")


def test_it_is_the_connections_own(members: Members) -> None:
    before, members.clients["a"] = members.clients["a"], members.world.client()
    assert not members.is_known("a")
    members.beat("a")
    assert members.is_known("a")
    members.clients["a"] = before
    assert members.is_known("a")
    members.clients["a"] = members.world.client(host="127.0.0.2")  # which is written of the member
    members.beat("a")
    assert not members.is_known("a")
    members.clients["a"] = before
    assert not members.is_known("a")


def test_where_requests_are_counted_for_quotas_each_is_asked_whole(members: Members) -> None:
    alteration = alter(altered({"client-id": None}, **{REQUEST: 1e9}))
    members.ask(members.admin, alteration, 1)
    client = members.world.client()
    members.clients["a"], before = client, members.clients["a"]
    members.beat("a")
    assert not client.channel.repeated
    members.clients["a"] = before
    assert not members.beat("a").error_code


def test_where_there_are_access_rules_each_is_asked_whole() -> None:
    ruled = Members(authorizer_class_name=AUTHORIZERS[0], super_users="User:ANONYMOUS")
    ruled.join("a")
    assert not ruled.clients["a"].channel.repeated


def test_a_connection_keeps_few_and_small_ones(members: Members) -> None:
    client = members.clients["a"]
    for number in range(2 * MOST_REPEATED):
        members.clients["a"] = client
        request = ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id="a", member_epoch=members.epochs["a"])
        request.unknown_tags = {7: bytes([number // 256, number % 256])}
        members.ask(client, request, 1)
        assert len(client.channel.repeated) <= MOST_REPEATED
    request.unknown_tags = {7: bytes(REPEATED_BYTES)}
    client.channel.repeated.clear()
    members.ask(client, request, 1)
    assert not client.channel.repeated
