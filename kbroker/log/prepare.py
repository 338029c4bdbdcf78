"""Records that cannot be appended as they came: brought into the topic's format and codec first, on any thread.

What a producer sends is mostly a v2 batch in a codec that the topic takes: `append.py` checks and stamps it where it
lies. A set of v0 or v1, or a batch that compression.type wants otherwise, is rebuilt here, which takes time and
memory; so does a look at batches that decompress to much. Append refuses them with `UnpreparedError`, the handler has
it done, on the pool where they are not small, and appends what came out with `Origin.PREPARED`. Where the topic keeps
an old format, everything is rebuilt (`old_formats.py`).
Pure: bytes and settings in, bytes out; no log, no offset, no producer is looked at.

The checks are Apache's, with Apache's codes (LogValidator of 3.9). A set without a whole message is none at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.limits import RECORDS_PER_COMPRESSED_BATCH
from kbroker.log.append import (
    LOW_ATTRIBUTES_AT,
    UnpreparedError,
    append_time_of,
    batch_for_client,
    codec_wanted,
    look_at_records,
    rebuilt,
    too_large,
)
from kbroker.log.old_formats import as_old_set
from protocol.errors import ErrorCode
from protocol.records import RecordError
from protocol.records._walker import COMPILED
from protocol.records.batch import (
    ATTRIBUTES,
    CODEC_MASK,
    LEGACY_ATTRIBUTES_AT,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    NO_TIMESTAMP,
    set_max_timestamp,
)
from protocol.records.compression import LIMIT_BYTES, codec_of
from protocol.records.content import DISORDERED, LATEST

if TYPE_CHECKING:
    from kbroker.log.config import LogConfig
    from protocol.records.convert import Messages
    from protocol.records.legacy import Message

SMALL_BYTES = 4096
"""Up to this size, records that are to be compressed are prepared where they are: a thread would cost more."""

COPIED_BYTES = 128 << 10 if COMPILED else SMALL_BYTES
"""The same for what no codec has a part in, and for all of a request: some 80 us, and 300 if records are tiny."""

USUAL_RATIO = 16
"""Of decompressed to compressed bytes: that much is free."""


def is_small(records: memoryview, config: LogConfig) -> bool:
    """Whether preparing takes no longer than handing it to the pool would."""
    is_copied = config.compression_type in ("producer", "uncompressed")
    if len(records) > (COPIED_BYTES if is_copied else SMALL_BYTES):
        return False
    if len(records) <= LOW_ATTRIBUTES_AT:
        return True
    at = LEGACY_ATTRIBUTES_AT if records[MAGIC_AT] < MAGIC else LOW_ATTRIBUTES_AT
    return not records[at] & CODEC_MASK


class Opened:
    """What the batches of a request have decompressed to so far, beyond what is usual for their size.

    All of them together may to as much as one of them.
    """

    __slots__ = ("opened_bytes",)

    def __init__(self) -> None:
        self.opened_bytes = 0

    def next(self, size_bytes: int) -> int:
        """What the next batch, of this size, may become. Raises: RecordError MESSAGE_TOO_LARGE if that is nothing."""
        self.opened_bytes = max(self.opened_bytes - USUAL_RATIO * size_bytes, 0)
        left = LIMIT_BYTES - self.opened_bytes
        if left <= 0:
            raise self.too_much()
        return left

    def too_much(self) -> RecordError:
        """What is said of the batch that is one too many."""
        reason = f"the batches of the request decompress to more than {LIMIT_BYTES} bytes"
        return RecordError(ErrorCode.MESSAGE_TOO_LARGE, 0, reason)


def prepare(records: memoryview, config: LogConfig, wall_ms: int, opened: Opened | None = None) -> memoryview:
    """These records as the topic keeps them, checked: one v2 batch, or a set of an old format, in the topic's codec.

    Empty if there is no whole message in them. records: of `append.must_prepare`, or less than a message; they stay as
    they are. wall_ms: for limits of timestamps. opened: by others of the same request. Raises: RecordError, KafkaError,
    as `append.plan_as_leader` does.
    """
    batch = _as_batch(records, config, wall_ms, opened or Opened())
    return batch if config.message_format == MAGIC or not batch else as_old_set(batch, config)


def _as_batch(records: memoryview, config: LogConfig, wall_ms: int, opened: Opened) -> memoryview:
    """The records in one v2 batch, in the topic's codec."""
    limit = opened.next(len(records))
    if len(records) <= LOW_ATTRIBUTES_AT:
        return memoryview(b"")
    if records[MAGIC_AT] == MAGIC:
        return _recompressed(records, config, wall_ms, opened)
    from protocol.records.convert import in_batch, open_set, records_of  # for clients before 0.11: most have none

    try:
        messages = open_set(records, limit)
    except RecordError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            opened.opened_bytes = LIMIT_BYTES
        raise
    if messages.codec_id:
        opened.opened_bytes += len(messages.body)
    if not messages.records_count:
        return memoryview(b"")
    if messages.codec_id and len(records) > config.max_message_bytes:
        raise too_large(len(records), config)
    _check(messages, config, wall_ms)
    codec = None if config.compression_type == "producer" else codec_wanted(config)
    codec_id = messages.codec_id if codec is None else codec.codec_id
    level = None if codec is None else config.compression_level
    made = records_of(messages)
    messages = messages._replace(body=b"")  # what was decompressed goes before the records are put into a batch
    batch = in_batch(messages, made, codec_id=codec_id, level=level)
    if len(batch) > config.max_message_bytes:
        raise too_large(len(batch), config)
    return memoryview(batch)


def _recompressed(records: memoryview, config: LogConfig, wall_ms: int, opened: Opened) -> memoryview:
    """A v2 batch in the topic's codec; one that is, and whose records are in order, keeps its bytes."""
    batch, header = batch_for_client(records, config)
    try:
        facts = look_at_records(batch, header, config, wall_ms, opened)
    except UnpreparedError:
        raise opened.too_much() from None
    claims = header[ATTRIBUTES] & LOG_APPEND_TIME
    max_timestamp = append_time_of(header, config, wall_ms) if claims else facts[LATEST]
    codec = codec_of(header[ATTRIBUTES] & CODEC_MASK) if config.compression_type == "producer" else codec_wanted(config)
    if facts[DISORDERED] < 0 and codec.codec_id == header[ATTRIBUTES] & CODEC_MASK:
        out = memoryview(bytearray(batch))
    else:
        out = rebuilt(batch, header, config, codec, facts)
    set_max_timestamp(out, 0, max_timestamp, log_append_time=False)
    return out


def _check(messages: Messages, config: LogConfig, wall_ms: int) -> None:
    """What append asks of each record."""
    if messages.codec_id and messages.records_count > RECORDS_PER_COMPRESSED_BATCH:
        raise RecordError(
            ErrorCode.MESSAGE_TOO_LARGE,
            0,
            f"{messages.records_count} messages in a wrapper, at most {RECORDS_PER_COMPRESSED_BATCH} are taken",
        )
    if config.compact and messages.first_without_key >= 0:
        reason = "a record without a key on a compacted topic"
        raise RecordError(ErrorCode.INVALID_RECORD, 0, reason, messages.first_without_key)
    _check_claims(messages, config)
    if config.limits_timestamps and messages.min_timestamp != NO_TIMESTAMP:
        earliest = wall_ms - config.message_timestamp_before_max_ms
        latest = wall_ms + config.message_timestamp_after_max_ms
        if not earliest <= messages.min_timestamp <= messages.max_timestamp <= latest:
            raise _untimely(messages, earliest, latest)


def _check_claims(messages: Messages, config: LogConfig) -> None:
    """A producer may not say that a timestamp is LogAppendTime; with a timestamp, CreateTime topics let it pass."""
    claims = 0 if messages.append_time is not None else messages.first_stamped
    if claims < 0:
        return
    if not config.log_append_time:
        if messages.append_time is not None:
            claims = -1 if messages.append_time != NO_TIMESTAMP else 0
        else:
            claims = next(
                (
                    index
                    for index, message in enumerate(_each(messages))
                    if message.is_log_append_time and message.timestamp == NO_TIMESTAMP
                ),
                -1,
            )
    if claims >= 0:
        reason = "a producer may not say that a timestamp is LogAppendTime"
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, 0, reason, claims)


def _untimely(messages: Messages, earliest: int, latest: int) -> RecordError:
    """Which timestamp is the first outside the limits; only called once one is."""
    index, timestamp = next(
        (index, timestamp)
        for index, message in enumerate(_each(messages))
        for timestamp in [message.timestamp if messages.append_time is None else messages.append_time]
        if timestamp != NO_TIMESTAMP and not earliest <= timestamp <= latest
    )
    reason = f"timestamp {timestamp} is not within [{earliest}, {latest}]"
    return RecordError(ErrorCode.INVALID_TIMESTAMP, 0, reason, index)


def _each(messages: Messages) -> list[Message]:
    """The messages one by one, to name the one that is wrong."""
    from protocol.records.legacy import scan

    return list(scan(messages.body, messages.start, messages.end))
