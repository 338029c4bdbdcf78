"""From the batches of a request to what an append will do: checks, offsets, timestamps; one plan, one write.

`plan_as_leader` and `plan_as_follower` are called by the log before anything is written. They touch no file and no
state of the log: what they change is the request's own buffer (base offset, leader epoch, now and then the timestamp
and with it the checksum), in place. A refused request may leave a stamped buffer behind, which is not read again.

The checks are Apache's, in Apache's order, with Apache's codes (LogValidator, UnifiedLog of 3.9).
"""

from __future__ import annotations

from typing import Protocol

from kbroker.config.limits import NAMED_RECORDS, OPENED_AT_ONCE_BYTES, RECORDS_PER_COMPRESSED_BATCH
from kbroker.log.config import LogConfig
from kbroker.log.errors import RefusedRecordsError
from kbroker.log.old_formats import refuse_in_old_format, stamped
from kbroker.log.producer_state import BatchSpan, Marker, Origin, Producers
from kbroker.log.scan import SMALLEST_BYTES, header_at, is_intact
from kbroker.ports import Buffer
from protocol.errors import ErrorCode, KafkaError
from protocol.records import RecordError, TornBatchError, crc32c
from protocol.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CODEC_MASK,
    CONTROL,
    COUNT,
    CRC,
    HEADER_SIZE,
    LAST_DELTA,
    LENGTH,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    PRODUCER_ID,
    HeaderTuple,
    assign,
    scan,
    set_max_timestamp,
    unpack_header,
)
from protocol.records.compression import LIMIT_BYTES, Codec, codec_named, codec_of
from protocol.records.content import (
    DISORDERED,
    EARLIEST,
    KEYLESS,
    LATEST,
    FactsTuple,
    check_opened,
    check_records,
    parse_records,
    rebuild_batch,
    refused_records,
)
from protocol.records.control_records import ControlType, parse_marker

LOW_ATTRIBUTES_AT = ATTRIBUTES_AT + 1
_CLIENT, _PREPARED = Origin.CLIENT, Origin.PREPARED  # looked up once


class UnexpectedOffsetError(KafkaError):
    """A leader's batch begins before the end of the log.

    first_offset: where the batch begins. A follower whose log is empty starts again there: its leader's log start
    offset may lie within a batch (DeleteRecords).
    """

    def __init__(self, first_offset: int, log_end_offset: int) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_SERVER_ERROR, f"the leader sent offset {first_offset}, the log ends at {log_end_offset}"
        )
        self.first_offset = first_offset


class Opener(Protocol):
    """A request, in whose batches so many bytes of records have been decompressed so far."""

    opened_bytes: int


class UnpreparedError(KafkaError):
    """A client's records are not in the topic's format or codec, or take long to look at; nothing was written.

    `prepare.py` rebuilds them, or looks at them, off the loop.

    is_old: whether they are of format v0 or v1; only old requests may bring those.
    """

    def __init__(self, *, is_old: bool) -> None:
        what = "a message of an old format, not a batch" if is_old else "a batch that is not in the topic's codec"
        super().__init__(ErrorCode.INVALID_RECORD, what)
        self.is_old = is_old


class AppendPlan:
    """What an append will write, or has written.

    first_offset, last_offset: of the records, as the producer is answered. buffers: to be written one behind the other,
    `size` bytes together. batches: (header, base_offset, max_timestamp) of each, the latter two as written.
    max_timestamp: largest of all, -1 if none has one, in the batch that ends with max_timestamp_offset.
    append_time_ms: the timestamp that the log gave the records, -1 if they keep their own.
    duplicate: the batch that this one repeats; then nothing is to be written, and the offsets are that batch's.
    needs_flush: set by the log once written: it rolled, or flush.messages have come together.
    """

    __slots__ = (
        "append_time_ms",
        "batches",
        "buffers",
        "duplicate",
        "first_offset",
        "last_offset",
        "max_timestamp",
        "max_timestamp_offset",
        "needs_flush",
        "size",
    )

    def __init__(
        self,
        batches: list[tuple[HeaderTuple, int, int]],
        buffers: list[Buffer],
        size: int,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        max_timestamp_offset: int,
        append_time_ms: int = NO_TIMESTAMP,
        duplicate: BatchSpan | None = None,
    ) -> None:
        self.batches = batches
        self.buffers = buffers
        self.size = size
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self.append_time_ms = append_time_ms
        self.duplicate = duplicate
        self.needs_flush = False

    def __repr__(self) -> str:
        kind = "AppendPlan" if self.duplicate is None else "AppendPlan, duplicate,"
        return f"<{kind} offsets {self.first_offset} to {self.last_offset}, {self.size} bytes>"


def plan_as_leader(
    records: memoryview,
    next_offset: int,
    leader_epoch: int,
    config: LogConfig,
    producers: Producers,
    now_ms: int,
    origin: Origin = Origin.CLIENT,
    opener: Opener | None = None,
) -> AppendPlan:
    """Check one v2 batch of a producer or coordinator, and stamp it with offset, leader epoch and timestamp.

    records: writable; bytes behind the batch that are no whole batch are ignored. now_ms: wall clock. opener: the
    request that it came in, if that may open only so much at once.
    Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD (also for v0 and v1: convert first), MESSAGE_TOO_LARGE,
    RECORD_LIST_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, and what producers raise; UnpreparedError.
    """
    if origin is _PREPARED:
        return _plan_prepared(records, next_offset, leader_epoch, config, producers, now_ms)
    return _plan_with_care(records, next_offset, leader_epoch, config, producers, now_ms, origin, opener)


def _plan_prepared(
    records: memoryview, next_offset: int, leader_epoch: int, config: LogConfig, producers: Producers, now_ms: int
) -> AppendPlan:
    """`plan_as_leader`, of a batch that `prepare.py` has made: its records have been looked at."""
    if records[MAGIC_AT] != MAGIC:
        return _plan_old(records, next_offset, config, now_ms)
    header: HeaderTuple = unpack_header(records, 0)
    repeated = producers.check(header, _CLIENT) if header[PRODUCER_ID] >= 0 else None
    if repeated is not None:
        return plan_of_duplicate(repeated, config)
    max_timestamp = now_ms if config.log_append_time else header[MAX_TIMESTAMP]
    return _stamped(records, header, max_timestamp, next_offset, leader_epoch, config, now_ms)


def _plan_with_care(
    records: memoryview,
    next_offset: int,
    leader_epoch: int,
    config: LogConfig,
    producers: Producers,
    now_ms: int,
    origin: Origin,
    opener: Opener | None,
) -> AppendPlan:
    """`plan_as_leader`, of any batch: each check by itself, in Apache's order."""
    if origin is _CLIENT and must_prepare(records, config):
        raise UnpreparedError(is_old=records[MAGIC_AT] != MAGIC)
    records, header = _checked(records, config, origin)
    attributes, max_timestamp, producer_id = header[ATTRIBUTES], header[MAX_TIMESTAMP], header[PRODUCER_ID]
    rebuild = None
    if config.looks_at_records:
        facts = look_at_records(records, header, config, now_ms, opener, OPENED_AT_ONCE_BYTES)
        max_timestamp = facts[LATEST]
        if facts[DISORDERED] >= 0 or config.compression_type != "producer":
            rebuild = _codec_to_rebuild_with(header, facts, config, origin)
    if config.log_append_time or attributes & LOG_APPEND_TIME:
        max_timestamp = append_time_of(header, config, now_ms)
    if producer_id >= 0:
        if attributes & CONTROL:
            refuse_in_old_format(config)
            producers.check_marker(header, marker_of(records, header))
        else:
            repeated = producers.check(header, origin)
            if repeated is not None:
                return plan_of_duplicate(repeated, config)

    if rebuild is not None:
        records = rebuilt(records, header, config, rebuild, facts)
        header = unpack_header(records, 0)
    return _stamped(records, header, max_timestamp, next_offset, leader_epoch, config, now_ms)


def _plan_old(records: memoryview, next_offset: int, config: LogConfig, now_ms: int) -> AppendPlan:
    """The plan of a set that `prepare.py` has made for a log of an old format; one append, however many messages."""
    content, count, max_timestamp = stamped(records, next_offset, config, now_ms)
    size, magic = len(content), records[MAGIC_AT]
    if size > config.segment_bytes:
        raise _longer_than_segment(size, config)
    times = max_timestamp, max_timestamp
    header = (next_offset, size - LENGTH_OVERHEAD, -1, magic, 0, 0, count - 1, *times, -1, -1, -1, count)
    last_offset = next_offset + count - 1
    return AppendPlan(
        [(header, next_offset, max_timestamp)],
        [content],
        size,
        next_offset,
        last_offset,
        max_timestamp,
        last_offset,
        now_ms if config.log_append_time and magic else NO_TIMESTAMP,
    )


def _stamped(
    records: memoryview,
    header: HeaderTuple,
    max_timestamp: int,
    next_offset: int,
    leader_epoch: int,
    config: LogConfig,
    now_ms: int,
) -> AppendPlan:
    """The plan of a checked batch, with the offset, epoch and timestamp that it gets."""
    size = len(records)
    if size > config.segment_bytes:
        raise _longer_than_segment(size, config)
    assign(records, 0, next_offset, header[LENGTH], leader_epoch)
    if max_timestamp != header[MAX_TIMESTAMP] or header[ATTRIBUTES] & LOG_APPEND_TIME or config.log_append_time:
        set_max_timestamp(records, 0, max_timestamp, log_append_time=config.log_append_time)
    last_offset = next_offset + header[LAST_DELTA]
    return AppendPlan(
        [(header, next_offset, max_timestamp)],
        [records],
        size,
        next_offset,
        last_offset,
        max_timestamp,
        last_offset,
        now_ms if config.log_append_time else NO_TIMESTAMP,
    )


def _checked(records: memoryview, config: LogConfig, origin: Origin) -> tuple[memoryview, HeaderTuple]:
    """The only batch in `records` and its header, as far as one can tell without a look at its records."""
    given = len(records)
    if given < HEADER_SIZE or records[MAGIC_AT] != MAGIC:
        raise _unreadable(records)
    header: HeaderTuple = unpack_header(records, 0)
    crc, size = header[CRC], header[LENGTH] + LENGTH_OVERHEAD
    if size > given or size < HEADER_SIZE:
        raise _unreadable(records)
    if size > config.max_message_bytes:
        raise too_large(size, config)
    if crc32c(records[ATTRIBUTES_AT:size]) != crc:
        raise _refused(ErrorCode.CORRUPT_MESSAGE, f"checksum {crc:#010x} stored, not that of the batch")
    if given != size:
        records = _only_batch(records, size)
    if origin is Origin.CLIENT:
        _check_as_a_clients(header)
    return records, header


def must_prepare(records: memoryview, config: LogConfig) -> bool:
    """Whether these records of a client have to be rebuilt before they can be appended (`prepare.py`)."""
    if len(records) <= LOW_ATTRIBUTES_AT:
        return False  # no batch, as it will be told
    if records[MAGIC_AT] != MAGIC:
        return records[MAGIC_AT] < MAGIC
    if config.message_format != MAGIC:
        return True
    if config.compression_type == "producer":
        return False
    return codec_wanted(config).codec_id != records[LOW_ATTRIBUTES_AT] & CODEC_MASK


def batch_for_client(records: memoryview, config: LogConfig) -> tuple[memoryview, HeaderTuple]:
    """A client's only batch and its header, checked but for its records. Raises: as `plan_as_leader`."""
    return _checked(records, config, _CLIENT)


def look_at_records(
    records: memoryview,
    header: HeaderTuple,
    config: LogConfig,
    now_ms: int,
    opener: Opener | None = None,
    most_bytes: int = LIMIT_BYTES,
) -> FactsTuple:
    """Check that the records parse, have keys on a compacted topic, and timestamps within the topic's limits.

    most_bytes: that all batches of an opener may decompress to. Returns: the fields of `Facts`. Raises: KafkaError;
    UnpreparedError where they are more.
    """
    if header[ATTRIBUTES] & CODEC_MASK and header[COUNT] > RECORDS_PER_COMPRESSED_BATCH:
        raise _refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{header[COUNT]} records in a compressed batch, at most {RECORDS_PER_COMPRESSED_BATCH} are taken",
        )
    if opener is not None and header[ATTRIBUTES] & CODEC_MASK:
        facts = _open(records, header, opener, most_bytes)
    else:
        facts = check_records(records, 0, header)
    limits = None
    if config.limits_timestamps:
        limits = (now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms)
        lowest, highest = facts[EARLIEST], facts[LATEST]
        if header[ATTRIBUTES] & LOG_APPEND_TIME:
            lowest = highest = header[MAX_TIMESTAMP]
        if lowest == NO_TIMESTAMP or limits[0] <= lowest <= highest <= limits[1]:
            limits = None  # kept by all
    if limits is not None or (config.compact and facts[KEYLESS] >= 0):
        raise _unwanted(records, header, limits, needs_key=config.compact)
    return facts


def _open(records: memoryview, header: HeaderTuple, opener: Opener, most_bytes: int) -> FactsTuple:
    """Look at compressed records as far as their request may have any opened. Raises: UnpreparedError beyond that."""
    left = most_bytes - opener.opened_bytes
    if left <= 0:
        raise UnpreparedError(is_old=False)
    try:
        facts, size = check_opened(records, 0, header, left)
    except RecordError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            opener.opened_bytes = most_bytes
            raise UnpreparedError(is_old=False) from None
        raise
    opener.opened_bytes += size
    return facts


def _unwanted(
    records: memoryview, header: HeaderTuple, limits: tuple[int, int] | None, *, needs_key: bool
) -> RefusedRecordsError:
    """Which records have no key where one is needed, or a timestamp outside the limits; only called once one has."""
    own_limits = None if header[ATTRIBUTES] & LOG_APPEND_TIME else limits
    found = refused_records(records, 0, header, needs_key=needs_key, limits=own_limits, most=NAMED_RECORDS)
    if own_limits is not limits:  # all have the batch's own timestamp
        keyless = {index for index, _ in found}
        every = range(min(header[COUNT], NAMED_RECORDS))
        found = [(index, None if index in keyless else header[MAX_TIMESTAMP]) for index in every]
    code = ErrorCode.INVALID_RECORD if limits is None else ErrorCode.INVALID_TIMESTAMP
    return RefusedRecordsError(code, [(index, _why_unwanted(index, at, limits)) for index, at in found])


def _why_unwanted(index: int, timestamp: int | None, limits: tuple[int, int] | None) -> str:
    if timestamp is None or limits is None:
        return "Compacted topic cannot accept message without key"
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. "
        f"The timestamp should be within [{limits[0]}, {limits[1]}]"
    )


def append_time_of(header: HeaderTuple, config: LogConfig, now_ms: int) -> int:
    """The batch's largest timestamp, on a topic with LogAppendTime or in a batch that claims to have it.

    Raises: KafkaError INVALID_TIMESTAMP.
    """
    if header[ATTRIBUTES] & LOG_APPEND_TIME and (config.log_append_time or header[MAX_TIMESTAMP] == NO_TIMESTAMP):
        why = "Producer should not set timestamp type to LogAppendTime."
        raise RefusedRecordsError(
            ErrorCode.INVALID_TIMESTAMP, [(index, why) for index in range(min(header[COUNT], NAMED_RECORDS))]
        )
    return now_ms if config.log_append_time else header[MAX_TIMESTAMP]


def _codec_to_rebuild_with(header: HeaderTuple, facts: FactsTuple, config: LogConfig, origin: Origin) -> Codec | None:
    """The codec to rebuild the batch with; None if it can be kept as it came.

    Offset deltas that are not 0, 1, 2... come from old clients: Apache's broker rewrites them as well.
    """
    source = header[ATTRIBUTES] & CODEC_MASK
    if header[ATTRIBUTES] & CONTROL:
        return None
    if config.compression_type != "producer":
        target = codec_wanted(config)
        if target.codec_id != source:
            return target
    return codec_of(source) if facts[DISORDERED] >= 0 and origin is Origin.CLIENT else None


def codec_wanted(config: LogConfig) -> Codec:
    """The codec that compression.type names; not to be asked of `producer`."""
    return codec_named("none" if config.compression_type == "uncompressed" else config.compression_type)


def rebuilt(records: memoryview, header: HeaderTuple, config: LogConfig, codec: Codec, facts: FactsTuple) -> memoryview:
    """The same records in a new batch of this codec. facts: of `look_at_records`. Raises: MESSAGE_TOO_LARGE."""
    level = config.compression_level if config.compression_type == codec.name else None
    batch = rebuild_batch(records, 0, header, codec_id=codec.codec_id, level=level, in_order=facts[DISORDERED] < 0)
    if len(batch) > config.max_message_bytes:
        raise too_large(len(batch), config)
    return memoryview(batch)


def _only_batch(records: memoryview, size: int) -> memoryview:
    """The first batch, if what follows it is the beginning of another at most."""
    try:
        next(scan(records, size))
    except TornBatchError:
        return records[:size]
    except RecordError as error:
        if error.code is ErrorCode.CORRUPT_MESSAGE:
            raise
    raise _refused(ErrorCode.INVALID_RECORD, "more than one batch for one partition in one request")


def plan_of_duplicate(repeated: BatchSpan, config: LogConfig) -> AppendPlan:
    """Nothing to write: the batch that `repeated` names has been written before, and its answer is given again."""
    return AppendPlan(
        [],
        [],
        0,
        repeated.first_offset,
        repeated.last_offset,
        repeated.timestamp,
        repeated.last_offset,
        repeated.timestamp if config.log_append_time else NO_TIMESTAMP,
        repeated,
    )


# ---- follower


def plan_as_follower(records: memoryview, *, next_offset: int, config: LogConfig) -> AppendPlan | None:
    """Check the batches of a leader's answer; they keep their offsets and epochs. None if there is no whole batch.

    records: a batch that the answer cut off at its end is left out, and so is what does not fit into one segment; but
    the first batch is in the plan, however long: the leader took it.
    Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD if offsets do not ascend; UnexpectedOffsetError if the first one
    is below next_offset.
    """
    batches: list[tuple[HeaderTuple, int, int]] = []
    position, end, last_offset = 0, len(records), next_offset - 1
    max_timestamp, max_timestamp_offset = NO_TIMESTAMP, -1
    while end - position >= SMALLEST_BYTES:
        header = header_at(records, position)
        if header is None:
            if _cut_off(records, position):
                break
            raise _unreadable(records[position:])
        base_offset, after = header[BASE_OFFSET], position + header[LENGTH] + LENGTH_OVERHEAD
        if after > end or (after > config.segment_bytes and batches):
            break
        if not is_intact(records, position, header):
            raise _refused(ErrorCode.CORRUPT_MESSAGE, f"checksum of the batch at offset {base_offset} does not hold")
        if base_offset <= last_offset:
            raise _out_of_order(base_offset, last_offset, first=not batches)
        last_offset = base_offset + header[LAST_DELTA]
        if header[MAX_TIMESTAMP] > max_timestamp:
            max_timestamp, max_timestamp_offset = header[MAX_TIMESTAMP], last_offset
        batches.append((header, base_offset, header[MAX_TIMESTAMP]))
        position = after
    if not batches:
        return None
    _header, first_offset, _timestamp = batches[0]
    return AppendPlan(
        batches,
        [records if position == end else records[:position]],
        position,
        first_offset,
        last_offset,
        max_timestamp,
        max_timestamp_offset,
    )


def _cut_off(records: memoryview, position: int) -> bool:
    """Whether a header is missing only because the buffer ends within it."""
    left = len(records) - position
    return left < HEADER_SIZE and records[position + 16] == MAGIC


def _out_of_order(offset: int, last_offset: int, *, first: bool) -> KafkaError:
    if first:
        return UnexpectedOffsetError(offset, last_offset + 1)
    return KafkaError(ErrorCode.INVALID_RECORD, f"offset {offset} follows offset {last_offset}")


# ---- markers


def marker_of(batch: memoryview, header: HeaderTuple) -> Marker:
    """The end-of-transaction marker in a control batch. Raises KafkaError INVALID_RECORD if there is none."""
    records = parse_records(batch, 0, header)
    if not records:
        raise _refused(ErrorCode.INVALID_RECORD, "a control batch without a record")
    record = records[0]
    control_type, coordinator_epoch = parse_marker(record)
    return Marker(control_type is ControlType.COMMIT, coordinator_epoch, record.timestamp)


def may_abort(plan: AppendPlan, producers: Producers) -> bool:
    """Whether a plan has a marker that aborts what its producer may have open."""
    at = 0
    for header, _base_offset, _timestamp in plan.batches:
        if header[ATTRIBUTES] & CONTROL and header[COUNT] > 0 and header[PRODUCER_ID] >= 0:  # else it is a quorum's
            entry = producers.get(header[PRODUCER_ID])
            has_begun = len(plan.batches) > 1 or (entry is not None and entry.txn_first_offset >= 0)
            if has_begun and not marker_of(memoryview(plan.buffers[0])[at:], header).is_commit:
                return True
        at += header[LENGTH] + LENGTH_OVERHEAD
    return False


# ---- refusals


def _refused(code: ErrorCode, reason: str) -> KafkaError:
    return KafkaError(code, reason)


def too_large(size: int, config: LogConfig) -> KafkaError:
    """A batch over max.message.bytes."""
    return _refused(
        ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, max.message.bytes is {config.max_message_bytes}"
    )


def _longer_than_segment(size: int, config: LogConfig) -> KafkaError:
    return _refused(
        ErrorCode.RECORD_LIST_TOO_LARGE, f"{size} bytes of batches, segment.bytes is {config.segment_bytes}"
    )


def _unreadable(records: memoryview) -> KafkaError:
    """Why the bytes do not begin with a v2 batch; only called once that is known.

    What is cut off, or a message of v0 or v1, is no batch to Apache (ProduceRequest.validateRecords).
    """
    try:
        next(scan(records))
    except RecordError as error:
        is_corrupt = error.code is ErrorCode.CORRUPT_MESSAGE and not isinstance(error, TornBatchError)
        return _refused(ErrorCode.CORRUPT_MESSAGE if is_corrupt else ErrorCode.INVALID_RECORD, error.reason)
    except StopIteration:
        return _refused(ErrorCode.INVALID_RECORD, "no bytes hold no batch")
    return _refused(ErrorCode.CORRUPT_MESSAGE, "a batch with negative offsets")


def _check_as_a_clients(header: HeaderTuple) -> None:
    """Raises: KafkaError, naming the rule for producers' batches that is broken."""
    base_offset, delta, count = header[BASE_OFFSET], header[LAST_DELTA], header[COUNT]
    if base_offset:
        reason = f"base offset {base_offset}, a producer sends 0"
    elif count <= 0:
        reason = f"a batch of {count} records"
    elif delta != count - 1:
        reason = f"{count} records and a last offset delta of {delta}"
    elif header[ATTRIBUTES] & CONTROL:
        reason = "a producer may not write control records"
    elif header[PRODUCER_ID] >= 0 > header[BASE_SEQUENCE]:
        reason = f"sequence {header[BASE_SEQUENCE]} of producer {header[PRODUCER_ID]}"
    else:
        return
    raise _refused(ErrorCode.INVALID_RECORD, reason)
