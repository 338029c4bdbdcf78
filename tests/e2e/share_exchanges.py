"""One exchange for each API of share groups, good for every version served: a member, and who keeps the state."""

from __future__ import annotations

from typing import Any

from protocol.messages.groups import FindCoordinatorRequest
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
)
from tests.e2e.exchanges import exchange
from tests.e2e.world import NONE, Topic, World

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
