"""One exchange for each API of share groups, good for every version served: a member, and who keeps the state."""

from __future__ import annotations

from typing import Any

from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from protocol.messages.share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStateData,
    DeleteStatePartition,
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ReadStateData,
    ReadStatePartition,
    StateBatch,
    WriteShareGroupStateRequest,
    WriteStateData,
    WriteStatePartition,
)
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from tests.e2e.exchanges import exchange
from tests.e2e.world import NONE, PATIENCE_S, Topic, World
from tests.processes import within

SHARE, MEMBER, ACCEPT, ACKNOWLEDGED = 2, "m", 1, 2


def begun(here: World, topic: Topic, version: int = 0) -> str:
    """A share group that reads partition 0 from the first record on."""
    group = here.name("share")
    key = f"{group}:{'A' * 22}:0"
    here.until(
        FindCoordinatorRequest(coordinator_keys=[key], key_type=SHARE),
        6,
        lambda found: found.coordinators[0].error_code == NONE,
    )
    partition = InitializeStatePartition(partition=0, state_epoch=1, start_offset=0)
    data = InitializeStateData(topic_id=topic.id, partitions=[partition])
    request = InitializeShareGroupStateRequest(group_id=group, topics=[data])
    here.until(request, version, lambda answer: part(answer).error_code == NONE)
    return group


def part(answer: Any) -> Any:
    """The one partition of an answer of the share coordinator."""
    ((found,),) = [result.partitions for result in answer.results]
    return found


def acquire(here: World, group: str, topic: Topic, version: int = 1) -> Any:
    """Open a session, and acquire what there is; the partition's part of the answer."""
    partition = ShareFetchPartition(partition_index=0, acknowledgement_batches=[])
    request = ShareFetchRequest(
        group_id=group,
        member_id=MEMBER,
        share_session_epoch=0,
        max_wait_ms=5_000,
        min_bytes=1,
        max_records=500,
        batch_size=500,
        topics=[ShareFetchTopic(topic_id=topic.id, partitions=[partition])],
        forgotten_topics_data=[],
    )
    answer = here.ask(request, version)
    assert answer.error_code == NONE, answer
    ((found,),) = [each.partitions for each in answer.responses]
    return found


def joined(here: World, topic: Topic) -> str:
    """A share group whose one member has its assignment."""
    group = here.group()
    epoch, answer = 0, None

    for _ in within(PATIENCE_S):
        request = ShareGroupHeartbeatRequest(
            group_id=group, member_id=MEMBER, member_epoch=epoch, subscribed_topic_names=[topic.name]
        )
        answer = here.ask(request, 1)
        assert answer.error_code == NONE, answer
        epoch = answer.member_epoch
        if answer.assignment and answer.assignment.topic_partitions:
            return group
    raise AssertionError(answer)


def left(here: World, topic: Topic) -> str:
    """A share group without members."""
    group = joined(here, topic)
    answer = here.ask(ShareGroupHeartbeatRequest(group_id=group, member_id=MEMBER, member_epoch=-1), 1)
    assert answer.error_code == NONE, answer
    return group


@exchange(76)
def share_group_heartbeat(here: World, version: int) -> None:
    joined(here, here.topic())


@exchange(77)
def share_group_describe(here: World, version: int) -> None:
    topic = here.topic()
    request = ShareGroupDescribeRequest(group_ids=[joined(here, topic)], include_authorized_operations=True)
    (group,) = here.ask(request, version).groups
    (member,) = group.members
    assert (group.error_code, group.group_state, member.subscribed_topic_names) == (NONE, "Stable", [topic.name])


def starts(here: World, group: str, version: int) -> list[int]:
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)
    (found,) = here.ask(DescribeShareGroupOffsetsRequest(groups=[asked]), version).groups
    assert found.error_code == NONE, found
    return [part.start_offset for each in found.topics for part in each.partitions]


def altered(here: World, topic: Topic, version: int) -> str:
    group = left(here, topic)
    partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=2)
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic.name, partitions=[partition])]
    answer = here.ask(AlterShareGroupOffsetsRequest(group_id=group, topics=topics), version)
    assert (answer.error_code, answer.responses[0].partitions[0].error_code) == (NONE, NONE)
    return group


@exchange(90)
def describe_share_group_offsets(here: World, version: int) -> None:
    assert starts(here, altered(here, here.filled(3), 0), version) == [2]


@exchange(91)
def alter_share_group_offsets(here: World, version: int) -> None:
    altered(here, here.filled(3), version)


@exchange(92)
def delete_share_group_offsets(here: World, version: int) -> None:
    topic = here.topic()
    group = left(here, topic)
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic.name)]
    answer = here.ask(DeleteShareGroupOffsetsRequest(group_id=group, topics=topics), version)
    assert (answer.error_code, answer.responses[0].error_code) == (NONE, NONE)
    assert starts(here, group, 1) == []


@exchange(78)
def share_fetch(here: World, version: int) -> None:
    topic = here.filled(3)
    found = acquire(here, begun(here, topic), topic, version)
    acquired = [(each.first_offset, each.last_offset, each.delivery_count) for each in found.acquired_records]
    assert (found.error_code, acquired) == (NONE, [(0, 2, 1)])
    assert b"value 2" in bytes(found.records)


@exchange(79)
def share_acknowledge(here: World, version: int) -> None:
    topic = here.filled(3)
    group = begun(here, topic)
    acquire(here, group, topic)
    batch = AcknowledgementBatch(first_offset=0, last_offset=2, acknowledge_types=[ACCEPT])
    partition = ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])
    request = ShareAcknowledgeRequest(
        group_id=group,
        member_id=MEMBER,
        share_session_epoch=1,
        topics=[ShareAcknowledgeTopic(topic_id=topic.id, partitions=[partition])],
    )
    answer = here.ask(request, version)
    ((found,),) = [each.partitions for each in answer.responses]
    assert (answer.error_code, found.error_code) == (NONE, NONE)
    assert part(here.ask(reading(group, topic), 0)).state_batches[0].delivery_state == ACKNOWLEDGED


def reading(group: str, topic: Topic, leader_epoch: int = 0) -> ReadShareGroupStateRequest:
    data = ReadStateData(topic_id=topic.id, partitions=[ReadStatePartition(partition=0, leader_epoch=leader_epoch)])
    return ReadShareGroupStateRequest(group_id=group, topics=[data])


@exchange(83)
def initialize_share_group_state(here: World, version: int) -> None:
    begun(here, here.topic(), version)


@exchange(84)
def read_share_group_state(here: World, version: int) -> None:
    topic = here.topic()
    found = part(here.ask(reading(begun(here, topic), topic), version))
    assert (found.error_code, found.state_epoch, found.start_offset) == (NONE, 1, 0)


@exchange(85)
def write_share_group_state(here: World, version: int) -> None:
    topic = here.topic()
    group = begun(here, topic)
    batch = StateBatch(first_offset=0, last_offset=4, delivery_state=ACKNOWLEDGED, delivery_count=1)
    partition = WriteStatePartition(
        partition=0, state_epoch=1, leader_epoch=0, start_offset=0, delivery_complete_count=5, state_batches=[batch]
    )
    data = WriteStateData(topic_id=topic.id, partitions=[partition])
    assert part(here.ask(WriteShareGroupStateRequest(group_id=group, topics=[data]), version)).error_code == NONE
    assert part(here.ask(reading(group, topic), 0)).state_batches == [batch]


@exchange(86)
def delete_share_group_state(here: World, version: int) -> None:
    topic = here.topic()
    group = begun(here, topic)
    data = DeleteStateData(topic_id=topic.id, partitions=[DeleteStatePartition(partition=0)])
    assert part(here.ask(DeleteShareGroupStateRequest(group_id=group, topics=[data]), version)).error_code == NONE
    assert part(here.ask(reading(group, topic), 0)).error_code != NONE


@exchange(87)
def read_share_group_state_summary(here: World, version: int) -> None:
    topic = here.topic()
    group = begun(here, topic)
    data = ReadStateData(topic_id=topic.id, partitions=[ReadStatePartition(partition=0, leader_epoch=0)])
    found = part(here.ask(ReadShareGroupStateSummaryRequest(group_id=group, topics=[data]), version))
    assert (found.error_code, found.state_epoch, found.start_offset) == (NONE, 1, 0)
