"""Share groups as their members and administrators see them: who reads from what, offsets, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.coordinator import TopicStore
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from protocol.messages.share_groups import ShareGroupDescribeRequest, ShareGroupHeartbeatRequest
from tests.api.test_authorization import deny
from tests.requests import produce
from tests.share.ask import GROUP, Member, acquired
from tests.world import World


@pytest.fixture
def world() -> World:
    world = World(share_coordinator_state_topic_num_partitions="2", offsets_topic_num_partitions="2")
    world.create("t", partitions=2)
    world.create("u")
    return world


def ask(world: World, request: Any, version: int = 0) -> Any:
    client = world.client()
    number = client.send(request, version)
    world.advance(500)
    return client.look()[number]


def beat(
    world: World, member: str = "m", epoch: int = 0, topics: list[str] | None = None, group: str = GROUP, **also: Any
) -> Any:
    request = ShareGroupHeartbeatRequest(
        group_id=group, member_id=member, member_epoch=epoch, subscribed_topic_names=topics, **also
    )
    for _ in range(20):
        answer = ask(world, request, 1)
        if answer.error_code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return answer
        find(world)
    raise AssertionError(answer)


def find(world: World) -> None:
    from protocol.messages.groups import FindCoordinatorRequest

    ask(world, FindCoordinatorRequest(key=GROUP), 3)


def parts(world: World, answer: Any) -> dict[str, list[int]]:
    names = {image.topic_id: name for name, image in world.plane.cache.topics.items()}
    return {names[bytes(each.topic_id)]: list(each.partitions) for each in answer.assignment.topic_partitions}


def joined(world: World, member: str = "m", topics: list[str] | None = None) -> Any:
    """Join, and hear of what has begun; the last answer with an assignment."""
    answer = beat(world, member, 0, topics or ["t"])
    assert answer.error_code == 0, answer
    return beat(world, member, answer.member_epoch, topics or ["t"])


def offsets(world: World, group: str = GROUP, version: int = 1) -> dict[tuple[str, int], tuple[int, int]]:
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    )
    (found,) = ask(world, request, version).groups
    assert found.error_code == 0, found
    return {
        (topic.topic_name, each.partition_index): (each.start_offset, each.lag)
        for topic in found.topics
        for each in topic.partitions
    }


def alter(world: World, topic: str, **starts: int) -> Any:
    partitions = [
        AlterShareGroupOffsetsRequestPartition(partition_index=int(index[1:]), start_offset=start)
        for index, start in starts.items()
    ]
    named = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    return ask(world, AlterShareGroupOffsetsRequest(group_id=GROUP, topics=named))


def test_a_member_is_assigned_what_has_begun(world: World) -> None:
    answer = joined(world)
    assert (answer.member_epoch, parts(world, answer)) == (3, {"t": [0, 1]})


def test_a_group_begins_at_epoch_1_so_its_first_member_is_in_the_second(world: World) -> None:
    answer = beat(world, "m", 0, ["t"])
    (group,) = ask(world, ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False), 1).groups
    assert (answer.member_epoch, group.group_epoch, group.assignment_epoch) == (2, 2, 2)


def test_members_share_the_partitions(world: World) -> None:
    joined(world, "a")
    second = joined(world, "b")
    first = beat(world, "a", 3, ["t"])
    assert [parts(world, first), parts(world, second)] in (
        [{"t": [0]}, {"t": [1]}],
        [{"t": [1]}, {"t": [0]}],
    )


def test_a_member_reads_what_its_group_has_begun_with(world: World) -> None:
    joined(world)
    member = Member(world)
    member.acquire()
    world.client().ask(produce(b"a"), 9)
    assert member.acquire() == [(0, 0, 1)]


def test_what_a_group_is_outlives_its_coordinator(world: World) -> None:
    before = joined(world)
    world.restart()
    world.advance(500)
    after = beat(world, "m", before.member_epoch, ["t"])
    assert (after.member_epoch, parts(world, after)) == (before.member_epoch, parts(world, before))


def test_a_member_that_is_silent_is_removed(world: World) -> None:
    joined(world, "a")
    joined(world, "b")
    epoch = beat(world, "a", 2, ["t"]).member_epoch
    world.advance(40_000)
    beat(world, "a", epoch)
    world.advance(20_000)
    answer = beat(world, "a", epoch, ["t"])
    assert parts(world, answer) == {"t": [0, 1]}
    assert beat(world, "b", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_leaves(world: World) -> None:
    epoch = joined(world).member_epoch
    assert beat(world, "m", -1).error_code == 0
    assert beat(world, "m", epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("epoch", "fields", "code"),
    [
        (0, {"member": ""}, ErrorCode.INVALID_REQUEST),
        (0, {"topics": []}, ErrorCode.INVALID_REQUEST),
        (0, {"rack_id": "", "topics": ["t"]}, ErrorCode.INVALID_REQUEST),
        (-2, {}, ErrorCode.INVALID_REQUEST),
        (9, {}, ErrorCode.FENCED_MEMBER_EPOCH),
        (9, {"group": "unknown"}, ErrorCode.GROUP_ID_NOT_FOUND),
        (9, {"member": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, {"member": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(
    world: World, epoch: int, fields: dict[str, Any], code: ErrorCode
) -> None:
    joined(world)
    assert beat(world, epoch=epoch, **fields).error_code == code


def test_there_are_so_many_members_and_no_more() -> None:
    world = World(group_share_max_size="1")
    world.create("t")
    assert beat(world, "a", 0, ["t"]).error_code == 0
    assert beat(world, "b", 0, ["t"]).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_group_is_described_and_listed(world: World) -> None:
    joined(world)
    (group,) = ask(world, ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False), 1).groups
    (member,) = group.members
    assert (group.group_state, group.assignor_name, member.subscribed_topic_names) == ("Stable", "simple", ["t"])
    listed = ask(world, ListGroupsRequest(types_filter=["share"]), 5).groups
    assert [(each.group_id, each.group_type, each.group_state) for each in listed] == [(GROUP, "share", "Stable")]


def test_an_unknown_group_is_not_described(world: World) -> None:
    beat(world, "m", 0, ["t"])
    (group,) = ask(world, ShareGroupDescribeRequest(group_ids=["x"], include_authorized_operations=False), 1).groups
    assert (group.error_code, group.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "")


def test_offsets_and_lag_are_told(world: World) -> None:
    joined(world)
    member = Member(world)
    member.acquire()
    world.client().ask(produce(b"a", b"b", b"c"), 9)
    assert member.acquire() == [(0, 2, 1)]
    assert member.says((0, 0, [1])) == 0
    assert member.says((2, 2, [1])) == 0
    assert offsets(world) == {("t", 0): (1, 1), ("t", 1): (0, 0)}


def test_offsets_are_altered_while_the_group_is_empty(world: World) -> None:
    joined(world)
    assert alter(world, "t", p0=0).error_code == ErrorCode.NON_EMPTY_GROUP
    member = Member(world)
    member.acquire()
    world.client().ask(produce(b"a", b"b", b"c"), 9)
    member.acquire()
    assert member.says((0, 2, [1])) == 0
    member.acknowledge(epoch=-1)
    beat(world, "m", -1)
    answer = alter(world, "t", p0=1, p7=0)
    assert [each.error_code for each in answer.responses[0].partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert offsets(world)["t", 0] == (1, 2)
    joined(world)
    member.epoch = 0
    assert member.acquire() == [(1, 2, 1)]


@pytest.mark.parametrize(("step", "starts"), [(1, (-1, -1)), (2, (1, -1))], ids=["announced", "noted"])
def test_offsets_are_altered_only_if_the_group_knows(
    world: World, monkeypatch: pytest.MonkeyPatch, step: int, starts: tuple[int, int]
) -> None:
    joined(world)
    beat(world, "m", -1)
    append, written = TopicStore.append, 0

    def refusing(store: TopicStore, *records: Any) -> Any:
        nonlocal written
        written += store.topic == "__consumer_offsets"
        if written == step:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return append(store, *records)

    monkeypatch.setattr(TopicStore, "append", refusing)
    assert alter(world, "t", p0=1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert kept(world) == starts
    assert alter(world, "t", p0=1).error_code == 0
    assert offsets(world)["t", 0] == (1, 0)


def kept(world: World) -> tuple[int, int]:
    """The start offsets of partitions 0 and 1 that the share coordinator has."""
    shards = world.broker.share_coordinator.runtime.shards.values()
    found = {place.partition: state.start_offset for shard in shards for place, state in shard.states.items()}
    return found[0], found[1]


def test_offsets_of_a_topic_are_deleted(world: World) -> None:
    joined(world, topics=["t", "u"])
    request = DeleteShareGroupOffsetsRequest(
        group_id=GROUP,
        topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in ("t", "x")],
    )
    assert ask(world, request).error_code == ErrorCode.NON_EMPTY_GROUP
    beat(world, "m", -1)
    answer = ask(world, request)
    assert [each.error_code for each in answer.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert set(offsets(world)) == {("u", 0)}


def test_a_group_is_deleted_with_what_is_kept_of_it(world: World) -> None:
    joined(world)
    answer = ask(world, DeleteGroupsRequest(groups_names=[GROUP]), 2)
    assert answer.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    beat(world, "m", -1)
    answer = ask(world, DeleteGroupsRequest(groups_names=[GROUP, "x"]), 2)
    assert {each.group_id: each.error_code for each in answer.results} == {
        GROUP: 0,
        "x": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    shards = world.broker.share_coordinator.runtime.shards.values()
    assert [place for shard in shards for place in shard.states] == []
    assert ask(world, ListGroupsRequest(), 5).groups == []


def test_partitions_that_are_added_are_read_from_their_first_record(world: World) -> None:
    from protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic

    epoch = joined(world).member_epoch
    more = CreatePartitionsTopic(name="t", count=3, assignments=None)
    ask(world, CreatePartitionsRequest(topics=[more], timeout_ms=1_000, validate_only=False), 3)
    world.client().ask(produce(b"a", index=2), 9)
    for _ in range(4):
        answer = beat(world, "m", epoch, ["t"])
        epoch = answer.member_epoch
    assert parts(world, answer) == {"t": [0, 1, 2]}
    assert acquired(Member(world).fetch()) == [(0, 0, 1)]


def test_offsets_of_topics_that_may_not_be_described_are_hidden(world: World) -> None:
    joined(world)
    beat(world, "m", 2, ["t", "u"])
    world.advance(500)
    assert {topic for topic, _ in offsets(world)} == {"t", "u"}
    deny(world, (Operation.DESCRIBE, ResourceType.TOPIC), names=["t"])
    assert {topic for topic, _ in offsets(world)} == {"u"}
    named = [DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[0]) for topic in ("t", "u")]
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=named)
    (found,) = ask(world, DescribeShareGroupOffsetsRequest(groups=[asked]), 1).groups
    told = {topic.topic_name: (topic.topic_id == ZERO_UUID, topic.partitions[0].error_code) for topic in found.topics}
    assert told == {"t": (True, ErrorCode.TOPIC_AUTHORIZATION_FAILED), "u": (False, 0)}


def test_a_group_with_topics_that_may_not_be_described_is_hidden(world: World) -> None:
    joined(world)
    deny(world, (Operation.DESCRIBE, ResourceType.TOPIC), names=["t"])
    (found,) = ask(world, ShareGroupDescribeRequest(group_ids=[GROUP], include_authorized_operations=False), 1).groups
    assert (found.error_code, found.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
