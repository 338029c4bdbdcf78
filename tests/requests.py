"""Requests with the defaults that a test seldom minds, and readers of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.message import ZERO_UUID
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record
from protocol.records.content import build_batch

VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")


def batch(
    *values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), timestamps: Sequence[int] = (), codec_id: int = 0
) -> bytes:
    """A v2 batch of records with these values. producer: id, epoch, base sequence. timestamps: ms, else all 0."""
    records = [Record(at, timestamps[at] if timestamps else 0, None, value) for at, value in enumerate(values)]
    producer_id, epoch, sequence = producer
    built = build_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, codec_id=codec_id
    )
    return bytes(built)


def produce(
    *values: bytes,
    topic: str = "t",
    topic_id: bytes = ZERO_UUID,
    index: int = 0,
    acks: int = 1,
    timeout_ms: int = 1000,
    records: bytes | None = None,
) -> ProduceRequest:
    """One batch for one partition; records: the batch itself, instead of values."""
    data = PartitionProduceData(index=index, records=batch(*values) if records is None else records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
    )


def produced(answer: Any) -> Any:
    """The one partition of an answer to `produce`."""
    ((part,),) = [topic.partition_responses for topic in answer.responses]
    return part


def fetch(
    offset: int = 0,
    *,
    topic: str = "t",
    topic_id: bytes = ZERO_UUID,
    indices: Sequence[int] = (0,),
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation_level: int = 0,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    session: tuple[int, int] = (0, -1),
    forget: Sequence[int] = (),
) -> FetchRequest:
    """From one offset on, of some partitions of one topic. session: id and epoch."""
    partitions = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=current_leader_epoch,
            last_fetched_epoch=last_fetched_epoch,
        )
        for index in indices
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forget))]
        if forget
        else [],
    )


def fetched(answer: Any) -> dict[int, Any]:
    """The partitions of an answer to `fetch`, by index, in their order."""
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


def list_offsets(
    timestamp: int, *, topic: str = "t", index: int = 0, isolation_level: int = 0, epoch: int = -1
) -> ListOffsetsRequest:
    """One question about one partition."""
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
