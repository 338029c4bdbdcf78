"""Logs that keep messages of v0 or v1, because `message.format.version` says so: what is stored of a producer's batch.

Called by `prepare`, on any thread, for the set, and by `append` for its place in the log. Everything but the offsets is
made before: only where a v0 wrapper has them inside, under its checksum and compressed, it is compressed again as it is
appended, as Kafka does.

What the old formats cannot hold is refused: idempotent and transactional batches and their markers, zstd, headers.
Unlike Kafka: a record with headers is INVALID_RECORD, and is named; there it is UNKNOWN_SERVER_ERROR. A set is held to
max.message.bytes as the one batch that it is on its way, too, and not its messages alone. What coordinators write is in
v2 batches always. These logs have no leader epochs (docs/decisions/0013).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ErrorCode, KafkaError
from protocol.records import RecordError
from protocol.records.batch import ATTRIBUTES, MAGIC, MAGIC_AT, NO_TIMESTAMP, PRODUCER_ID, TRANSACTIONAL, unpack_header
from protocol.records.content import parse_records

if TYPE_CHECKING:
    from kbroker.log.config import LogConfig
    from protocol.records.batch import HeaderTuple


def as_old_set(batch: memoryview, config: LogConfig) -> memoryview:
    """A checked v2 batch from offset 0 as a set of the log's format. Raises: KafkaError, RecordError."""
    header = unpack_header(batch, 0)
    if header[PRODUCER_ID] >= 0:
        kind = "transactional" if header[ATTRIBUTES] & TRANSACTIONAL else "idempotent"
        raise _not_in(config, f"{kind} records")
    _refuse_headers(batch, header, config)
    from protocol.records.convert import down_convert  # few topics have such a format

    parts, _ = down_convert(batch, config.message_format, from_offset=0)
    content = memoryview(parts[0])
    if len(content) > config.max_message_bytes:
        _refuse_large(content, config)
    return content


def refuse_in_old_format(config: LogConfig) -> None:
    """Raise KafkaError if a control batch cannot be in such a log."""
    if config.message_format != MAGIC:
        raise _not_in(config, "control records")


def stamped(records: memoryview, next_offset: int, config: LogConfig, now_ms: int) -> tuple[bytearray, int, int]:
    """A set of `as_old_set` with its offsets, and its time if the log gives that; how many; the largest timestamp."""
    from protocol.records.convert import in_place

    append_time = now_ms if config.log_append_time and records[MAGIC_AT] else NO_TIMESTAMP
    return in_place(records, next_offset, append_time, config.compression_level)


def _not_in(config: LogConfig, what: str) -> KafkaError:
    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    return KafkaError(code, f"{what} cannot be in a log of messages of v{config.message_format}")


def _refuse_headers(batch: memoryview, header: HeaderTuple, config: LogConfig) -> None:
    for index, record in enumerate(parse_records(batch, 0, header)):
        if record.headers:
            reason = f"a record with headers cannot be a message of v{config.message_format}"
            raise RecordError(ErrorCode.INVALID_RECORD, 0, reason, index)


def _refuse_large(content: memoryview, config: LogConfig) -> None:
    """One of the messages, each of which is a batch of its own, is over max.message.bytes."""
    from protocol.records.legacy import scan

    largest = max(message.size_bytes for message in scan(content))
    if largest > config.max_message_bytes:
        reason = f"a message of {largest} bytes, max.message.bytes is {config.max_message_bytes}"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, reason)
