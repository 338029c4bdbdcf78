"""Requests of share groups, as short as tests want them, and a world that has a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.messages.share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
)
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ForgottenShareTopic,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from protocol.records.batch import CONTROL
from protocol.records.content import parse_set
from tests.world import Client, World

GROUP = "work"
Batches = Sequence[tuple[int, int, Sequence[int]]]


class Member:
    """A member of a share group, and its session at the broker."""

    def __init__(self, world: World, topics: Sequence[str] = ("t",), member_id: str = "m", group: str = GROUP) -> None:
        self.world = world
        self.client: Client = world.client(member_id)
        self.member_id, self.group, self.epoch = member_id, group, 0
        self.topics = topics
        self.batch_size, self.max_records, self.mode = 500, 500, 0

    def request(self, batches: Batches = (), *, wait_ms: int = 200, **fields: Any) -> ShareFetchRequest:
        """The next fetch. batches: acknowledgements of partition 0 of the first topic."""
        topics = []
        if self.epoch == 0 or batches:
            topics = [
                ShareFetchTopic(
                    topic_id=self.world.topic_id(topic),
                    partitions=[
                        ShareFetchPartition(
                            partition_index=index,
                            acknowledgement_batches=_batches(batches) if at == index == 0 else [],
                        )
                        for index in self.world.plane.cache.topics[topic].partitions
                    ],
                )
                for at, topic in enumerate(self.topics)
            ]
        said = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch,
            "max_wait_ms": wait_ms,
            "min_bytes": 1,
            "max_records": self.max_records,
            "batch_size": self.batch_size,
            "share_acquire_mode": self.mode,
            "topics": topics,
            "forgotten_topics_data": list[ForgottenShareTopic](),
        }
        return ShareFetchRequest(**said | fields)

    def fetch(self, batches: Batches = (), **fields: Any) -> Any:
        """Fetch, and let a little time pass; the answer."""
        number = self.client.send(self.request(batches, **fields), 2)
        self.epoch += 1
        self.world.advance(300)
        return self.client.look()[number]

    def start(self, batches: Batches = (), **fields: Any) -> int:
        """Fetch and wait; the number of the answer."""
        number = self.client.send(self.request(batches, **fields), 2)
        self.epoch += 1
        return number

    def acquire(self, batches: Batches = (), **fields: Any) -> list[tuple[int, int, int]]:
        """Fetch; what is acquired, as (first, last, count), from all partitions."""
        answer = self.fetch(batches, **fields)
        assert not answer.error_code, answer
        return acquired(answer)

    def acknowledge(self, *batches: tuple[int, int, Sequence[int]], epoch: int | None = None, **fields: Any) -> Any:
        """Acknowledge records of partition 0 of the first topic; the answer."""
        partition = ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=_batches(batches))
        topic = ShareAcknowledgeTopic(topic_id=self.world.topic_id(self.topics[0]), partitions=[partition])
        said = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.epoch if epoch is None else epoch,
            "topics": [topic] if batches else [],
        }
        number = self.client.send(ShareAcknowledgeRequest(**said | fields), 2)
        if epoch is None:
            self.epoch += 1
        self.world.advance(300)
        return self.client.look()[number]

    def says(self, *batches: tuple[int, int, Sequence[int]]) -> int:
        """The error code of an acknowledgement."""
        answer = self.acknowledge(*batches)
        code: int = answer.error_code or answer.responses[0].partitions[0].error_code
        return code


def _batches(batches: Batches) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))
        for first, last, types in batches
    ]


def acquired(answer: Any) -> list[tuple[int, int, int]]:
    """What an answer says of acquired records."""
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in answer.responses
        for part in topic.partitions
        for each in part.acquired_records
    ]


def values(answer: Any) -> list[bytes]:
    """The values of the records that were acquired."""
    found = []
    for topic in answer.responses:
        for part in topic.partitions:
            offsets = {at for each in part.acquired_records for at in range(each.first_offset, each.last_offset + 1)}
            found += [
                record.value or b""
                for header, records in parse_set(bytes(part.records))
                for record in records
                if record.offset in offsets and not header.attributes & CONTROL
            ]
    return found


def initialize(world: World, topic: str = "t", group: str = GROUP, start_offset: int = 0, state_epoch: int = 1) -> None:
    """Have the share coordinator begin with a topic, as the coordinator of the group does."""
    partitions = [
        InitializeStatePartition(partition=index, state_epoch=state_epoch, start_offset=start_offset)
        for index in world.plane.cache.topics[topic].partitions
    ]
    data = InitializeStateData(topic_id=world.topic_id(topic), partitions=partitions)
    request = InitializeShareGroupStateRequest(group_id=group, topics=[data])
    for _ in range(10):
        client = world.client()
        number = client.send(request, 0)
        world.advance(100)
        answer = client.look()[number]
        codes = {each.error_code for result in answer.results for each in result.partitions}
        if codes == {0}:
            return
        from kbroker.broker.coordinator_types import SHARE, create_if_missing

        create_if_missing(SHARE.topic, world.plane)
        world.advance(100)
    raise AssertionError(codes)
