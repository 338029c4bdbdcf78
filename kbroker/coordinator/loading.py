"""From the batches of a coordinator's partition into a shard: what a new leader does before it serves.

Called by runtime.py, a slice at a time. Unlike Kafka: a batch that cannot be read is passed by, with a line in the log,
instead of all that is in the partition.
"""

from __future__ import annotations

import logging
from typing import Any

from kbroker.coordinator.shard import Shard
from protocol.errors import ErrorCode
from protocol.message import DecodeError
from protocol.records import RecordError
from protocol.records.batch import HEADER_SIZE, BatchHeader, unpack_header
from protocol.records.content import parse_records
from protocol.records.control_records import ControlType, parse_marker

log = logging.getLogger("kbroker.coordinator")


def replay_batches(shard: Shard[Any], topic: str, data: memoryview, offset: int) -> int:
    """Feed the whole batches in `data`, from `offset` on, to a shard; returns the offset that follows them.

    Raises: RecordError for bytes that are no batch.
    """
    at = 0
    while len(data) - at >= HEADER_SIZE:
        header = BatchHeader(*unpack_header(data, at))
        if header.size_bytes < HEADER_SIZE:
            raise RecordError(ErrorCode.CORRUPT_MESSAGE, at, f"a batch of {header.size_bytes} bytes at offset {offset}")
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
    records = parse_records(data, at, header)
    if header.is_control:
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
