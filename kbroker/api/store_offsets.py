"""OffsetCommit 0 and OffsetFetch 0: offsets in the metadata store, as clients before Kafka 0.8.2 keep them.

Called by `groups.py`, which has the versions since. Any broker answers; there is neither member nor generation. A
partition without an offset is UNKNOWN_TOPIC_OR_PARTITION, by which these clients know to start from nothing.

Unlike Kafka: a group whose name cannot be a node's (empty, or with a slash) is INVALID_GROUP_ID.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.call import LATER
from kbroker.broker.facts import Reply
from kbroker.metadata.consumer_offsets import Place, is_group, keep, kept
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.call import Call, Result
    from kbroker.ports import StoreFault

NO_OFFSET = -1


def commit_to_store(request: OffsetCommitRequest, call: Call) -> Result:
    """Write them; answered once they are durable."""
    codes: dict[Place, ErrorCode] = {}
    offsets: list[tuple[Place, int]] = []
    most = call.broker.config.offset_metadata_max_bytes
    for topic in request.topics:
        for partition in topic.partitions:
            place = Place(topic.name, partition.partition_index)
            if call.broker.plane.cache.partition(*place) is None:
                codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not is_group(request.group_id):
                codes[place] = ErrorCode.INVALID_GROUP_ID
            elif len(partition.committed_metadata or "") > most:
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                offsets.append((place, partition.committed_offset))

    def done(faults: Sequence[StoreFault | None]) -> None:
        answer([ErrorCode.NONE if fault is None else ErrorCode.UNKNOWN_SERVER_ERROR for fault in faults])

    def failed(error: Exception) -> None:
        answer([ErrorCode.UNKNOWN_SERVER_ERROR] * len(offsets))

    def answer(written: Sequence[ErrorCode]) -> None:
        codes.update(zip((place for place, _ in offsets), written, strict=True))
        call.broker.tell(Reply(call.ticket, _committed(request, codes)))

    call.broker.store_plane.start_procedure(keep(request.group_id, offsets), done, failed)
    return LATER


def _committed(request: OffsetCommitRequest, codes: dict[Place, ErrorCode]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=codes[Place(topic.name, each.partition_index)]
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def fetch_from_store(request: OffsetFetchRequest, call: Call) -> Result:
    """Read them."""
    assert request.topics is not None, request  # null only since version 2
    cache = call.broker.plane.cache
    places = [Place(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    known = [place for place in places if cache.partition(*place) is not None and is_group(request.group_id)]

    def done(offsets: Sequence[int | None]) -> None:
        found = {place: offset for place, offset in zip(known, offsets, strict=True) if offset is not None}
        answer(found, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def failed(error: Exception) -> None:
        answer({}, ErrorCode.UNKNOWN_SERVER_ERROR)

    def answer(found: dict[Place, int], otherwise: ErrorCode) -> None:
        call.broker.tell(Reply(call.ticket, _fetched(request, found, otherwise)))

    call.broker.store_plane.start_procedure(kept(request.group_id, known), done, failed)
    return LATER


def _fetched(request: OffsetFetchRequest, found: dict[Place, int], otherwise: ErrorCode) -> OffsetFetchResponse:
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=found.get(Place(topic.name, index), NO_OFFSET),
                        metadata="",
                        error_code=ErrorCode.NONE if Place(topic.name, index) in found else otherwise,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    )
