"""From the batches of a coordinator's partition into a shard: what a new leader does before it serves.

Called by runtime.py, a slice at a time. Unlike Kafka: a batch that cannot be read is passed by, with a line in the log,
instead of all that is in the partition.
"""

from __future__ import annotations

import logging
from typing import Any

from kbroker.coordinator.shard import Shard
from kbroker.log.scan import SMALLEST_BYTES, header_at
from protocol.errors import ErrorCode
from protocol.message import DecodeError
from protocol.records import Record, RecordError
from protocol.records.batch import HEADER_SIZE, MAGIC, MAGIC_AT, BatchHeader
from protocol.records.content import parse_records
from protocol.records.control_records import ControlType, parse_marker

log = logging.getLogger("kbroker.coordinator")


def replay_batches(shard: Shard[Any], topic: str, data: memoryview, offset: int) -> int:
    """Feed the whole batches in `data`, from `offset` on, to a shard; returns the offset that follows them.

    Raises: RecordError for bytes that are no batch.
    """
    at = 0
    while len(data) - at >= SMALLEST_BYTES:
        if data[at + MAGIC_AT] == MAGIC and len(data) - at < HEADER_SIZE:
            break
        found = header_at(data, at)
        if found is None:
            raise RecordError(ErrorCode.CORRUPT_MESSAGE, at, f"offset {offset}, where no batch begins")
        header = BatchHeader(*found)
        if header.size_bytes > len(data) - at:
            break
        try:
            _replay_batch(shard, data, at, header, offset)
        except (RecordError, DecodeError) as error:
            first, last = header.base_offset, header.last_offset
            log.error("%s-%d: offsets %d to %d passed by: %s", topic, shard.partition, first, last, error)
        offset = header.last_offset + 1
        at += header.size_bytes
    assert at > 0, f"no whole batch at offset {offset}"
    return offset


def _replay_batch(shard: Shard[Any], data: memoryview, at: int, header: BatchHeader, offset: int) -> None:
    """Feed the records from `offset` on. Raises: RecordError, DecodeError if no coordinator can have written them."""
    records = _records(data, at, header)
    if header.magic == MAGIC and header.is_control:
        # a cleaner leaves a batch without records in place of a marker whose transaction is gone
        commits = bool(records) and parse_marker(records[0]).control_type is ControlType.COMMIT
        shard.replay_marker(header.producer_id, commit=commits, record_offset=header.base_offset)
        return
    producer_id = header.producer_id if header.is_transactional else -1
    for record in records:
        if record.offset >= offset and record.key is not None:
            decoded = shard.decode(record.key, record.value)
            if decoded is not None:
                shard.replay(decoded, record_offset=header.base_offset, producer_id=producer_id)


def _records(data: memoryview, at: int, header: BatchHeader) -> list[Record]:
    """Those of a batch, or of a message of an old format, as Apache's coordinators write where a topic keeps that."""
    if header.magic == MAGIC:
        return parse_records(data, at, header)
    from protocol.records.legacy import parse_set  # few topics have such a format

    return parse_set(data[at : at + header.size_bytes])
