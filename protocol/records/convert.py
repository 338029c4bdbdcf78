"""Records from one format into another: v0 and v1 sets into v2 batches when they are appended, and back when an old
client fetches.

Pure: bytes in, bytes out, on any thread. Append calls `open_set` and `batch_of`, and for a topic of an old format
`down_convert` and `in_place`; a fetch calls `down_convert`. What is lost on the way down is what the old formats cannot
say: headers, producers and transactions; markers have no old form and are left out. Offsets, keys, values, timestamps
and codecs stay, and so does what belongs together: a compressed batch becomes one wrapper, a wrapper one batch. The
loops over records are in `_converter`. Source: KIP-31 (relative offsets), KIP-32 (timestamps), KIP-98, KIP-110 (no zstd
in old formats).
"""

from __future__ import annotations

from struct import Struct

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records import legacy
from protocol.records._built import use_or_refuse
from protocol.records._errors import RecordError, TornBatchError
from protocol.records._record import Readable
from protocol.records._walker import walk
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL,
    COUNT,
    HEADER,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    check,
    size_of,
    write_crc,
)
from protocol.records.compression import LIMIT_BYTES, codec_of
from protocol.records.content import batch_body

use_or_refuse(__package__, "_converter")  # here, not in the package: most brokers convert nothing

from protocol.records._converter import measure, renumbered, to_messages, to_records, walk_messages  # noqa: E402

OVERHEAD = tuple(LENGTH_OVERHEAD + overhead for overhead in legacy.OVERHEAD)
"""Bytes of a message beside its key and value, by magic."""

_INT64 = Struct(">q")


class Messages(NamedTuple):
    """The messages of one v0 or v1 set, out of their wrapper and checked: `records_count` of them in body[start:end].

    codec_id: of the wrapper, 0 without one. wrapper_offset: of the wrapper, -1 without one. append_time: ms, which the
    wrapper gives all of them (it says LogAppendTime), else None. max_timestamp, min_timestamp: ms, -1 for none.
    first_without_key, first_stamped: which one is the first without a key, or that says LogAppendTime itself; -1.
    last_offset: as the last of them has it.
    """

    magic: int
    codec_id: int
    wrapper_offset: int
    append_time: int | None
    body: Readable
    start: int
    end: int
    records_count: int
    max_timestamp: int
    min_timestamp: int
    first_without_key: int
    first_stamped: int
    last_offset: int


def open_set(buffer: memoryview, limit: int = LIMIT_BYTES) -> Messages:
    """The messages of a producer's set of v0 or v1: any number of messages, or one wrapper.

    A message that the end of the buffer cuts off is left out, as Kafka does; there may be none at all then.
    limit: bytes that a wrapper may decompress to. Raises: RecordError; INVALID_RECORD also for more than one wrapper,
    or two formats in one set, CORRUPT_MESSAGE for a checksum, of a message inside a wrapper too.
    """
    size = len(buffer)
    magic = buffer[MAGIC_AT] if size > MAGIC_AT else 0
    count, stop, *_ = facts = walk_messages(buffer, 0, size, min(magic, 1))
    if stop < size:
        try:
            message = next(legacy.scan(buffer, stop))
        except TornBatchError:
            pass
        else:
            if message.magic != magic or count:
                raise _invalid(stop, "a wrapper among messages" if message.codec_id else "two formats in one set")
            return _unwrapped(buffer, message, limit, alone=True)
    return Messages(magic, 0, -1, None, buffer, 0, stop, count, *facts[2:])


def _unwrapped(buffer: memoryview, wrapper: legacy.Message, limit: int, *, alone: bool) -> Messages:
    """The messages of a wrapper; alone: nothing whole may come behind it."""
    legacy.check_crc(buffer, wrapper)
    behind = wrapper.position + wrapper.size_bytes
    if alone and behind < len(buffer):
        try:
            next(legacy.scan(buffer, behind))
        except TornBatchError:
            pass
        else:
            raise _invalid(behind, "more than one wrapper")
    body = legacy.decompressed(buffer, wrapper, limit)
    count, stop, *facts = walk_messages(body, 0, len(body), wrapper.magic)
    if stop < len(body):
        try:
            message = next(legacy.scan(body, stop))
        except TornBatchError:
            pass  # old brokers cut sets at a size when they compressed them: Kafka takes what is whole
        else:
            what = f"a v{message.magic} message in a v{wrapper.magic} wrapper"
            raise _invalid(stop, what if message.magic != wrapper.magic else "a wrapper in a wrapper")
    if not count:
        raise _invalid(wrapper.position, "a wrapper without messages")
    append_time = None
    if wrapper.is_log_append_time:
        append_time = facts[0] = facts[1] = wrapper.timestamp
    return Messages(wrapper.magic, wrapper.codec_id, wrapper.offset, append_time, body, 0, stop, count, *facts)


def batch_of(
    messages: Messages, *, codec_id: int | None = None, level: int | None = None, append_time: int | None = None
) -> bytearray:
    """A v2 batch of a set's messages, as a producer would send it: from offset 0, without producer or epoch.

    codec_id: None for the wrapper's. append_time: ms, makes it a LogAppendTime batch.
    Raises: RecordError, INVALID_TIMESTAMP for one below -1; AssertionError without any message.
    """
    records = records_of(messages)
    return in_batch(messages, records, codec_id=codec_id, level=level, append_time=append_time)


class Records(NamedTuple):
    """Messages as the records of a batch, not compressed. base_timestamp: what their timestamps count from."""

    body: Readable
    base_timestamp: int


def records_of(messages: Messages) -> Records:
    """The first half of `batch_of`: what was decompressed may go before the other. Raises as that."""
    assert messages.records_count, messages
    if messages.min_timestamp < NO_TIMESTAMP:
        raise RecordError(
            ErrorCode.INVALID_TIMESTAMP, messages.start, f"timestamp {messages.min_timestamp} is negative"
        )
    given = messages.append_time
    base_timestamp = _first_timestamp(messages) if given is None else given
    body = to_records(
        messages.body,
        messages.start,
        messages.end,
        messages.records_count,
        magic=messages.magic,
        base_timestamp=base_timestamp,
        with_times=given is None,
    )
    return Records(body, base_timestamp)


def in_batch(
    messages: Messages,
    records: Records,
    *,
    codec_id: int | None = None,
    level: int | None = None,
    append_time: int | None = None,
) -> bytearray:
    """The second half of `batch_of`. messages: their body is not looked at."""
    codec_id = messages.codec_id if codec_id is None else codec_id
    body, base_timestamp = records
    if codec_id:
        body = codec_of(codec_id).compress(body, level)
    out = bytearray(HEADER_SIZE)
    out += body
    HEADER.pack_into(
        out,
        0,
        0,
        len(out) - LENGTH_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC,
        0,
        codec_id | (LOG_APPEND_TIME if append_time is not None else 0),
        messages.records_count - 1,
        base_timestamp,
        messages.max_timestamp if append_time is None else append_time,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        messages.records_count,
    )
    write_crc(out, 0, len(out))
    return out


def _first_timestamp(messages: Messages) -> int:
    if not messages.magic:
        return NO_TIMESTAMP
    timestamp: int = _INT64.unpack_from(messages.body, messages.start + legacy.TIMESTAMP_AT)[0]
    return timestamp


# ---- down


def down_convert(
    buffer: memoryview, magic: int, *, from_offset: int, limit: int = LIMIT_BYTES
) -> tuple[list[Readable], int]:
    """What lies in a stretch of a log, as messages no newer than `magic`; and where the last whole batch ends.

    buffer: batches and messages of any formats; those old enough come out as they are. from_offset: records below are
    left out of what comes uncompressed from a v2 batch, since some clients would take them for new (librdkafka).
    limit: bytes that one compressed batch may become. A batch of zstd, or of a codec that the old formats do not know,
    ends it. Raises: RecordError; for the first batch UNSUPPORTED_COMPRESSION_TYPE in that case; CORRUPT_MESSAGE for a
    checksum, before anything of that batch is given a new one.
    """
    assert magic in (0, 1), magic
    found: list[Readable] = []
    position, end = 0, len(buffer)
    while end - position > MAGIC_AT:
        try:
            if buffer[position + MAGIC_AT] == MAGIC:
                position = _from_batch(buffer, position, magic, from_offset, limit, found)
            else:
                position = _from_messages(buffer, position, magic, from_offset, limit, found)
        except TornBatchError:
            break
        except RecordError as error:
            if error.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE and position:
                break
            raise
    return found, position


def in_place(
    buffer: memoryview, base_offset: int, append_time: int = NO_TIMESTAMP, level: int | None = None
) -> tuple[bytearray, int, int]:
    """A set that `down_convert` made of one batch from offset 0, with its place in a log.

    base_offset: of its first message. append_time: ms, makes v1 messages LogAppendTime; -1 leaves their own time.
    level: of the codec; only v0 is compressed again, whose wrappers have absolute offsets inside.
    Returns: its bytes, how many messages they are, and the largest timestamp (ms, -1 for none).
    """
    magic = buffer[MAGIC_AT]
    count, _, highest, *_ = walk_messages(buffer, 0, len(buffer), magic)
    if count:
        out = _renumbered(buffer, count, magic, base_offset, append_time)
        return out, count, append_time if append_time >= 0 else highest
    wrapper = next(legacy.scan(buffer))
    count = wrapper.offset + 1
    if not magic:
        body = _renumbered(legacy.decompressed(buffer, wrapper), count, magic, base_offset, NO_TIMESTAMP)
        last_offset = base_offset + wrapper.offset
        out = legacy.wrapped(body, magic, last_offset, wrapper.codec_id, NO_TIMESTAMP, None, level)
        return out, count, NO_TIMESTAMP
    out = bytearray(buffer)
    legacy.set_offset(out, 0, base_offset + wrapper.offset)
    if append_time < 0:
        return out, count, wrapper.timestamp
    legacy.set_timestamp(out, wrapper, append_time, log_append_time=True)
    return out, count, append_time


def _renumbered(body: Readable, count: int, magic: int, base_offset: int, append_time: int) -> bytearray:
    """The same messages, numbered from base_offset on."""
    out = bytearray(len(body))
    renumbered(
        body,
        0,
        len(body),
        count,
        magic=magic,
        to_magic=magic,
        base_offset=base_offset,
        in_sequence=True,
        append_time=append_time,
        out=out,
    )
    return out


def _from_batch(
    buffer: memoryview, position: int, magic: int, from_offset: int, limit: int, found: list[Readable]
) -> int:
    """Convert the v2 batch at `position`; where it ends."""
    header = check(buffer, position, len(buffer))
    codec_id = header[ATTRIBUTES] & CODEC_MASK
    if header[ATTRIBUTES] & CONTROL or not header[COUNT]:  # a marker, or what compaction left of a batch
        return position + size_of(header)
    if codec_id > legacy.LAST_CODEC_ID:
        raise RecordError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, position, f"codec {codec_id} cannot be used in v{magic} messages"
        )
    body, start, end = batch_body(buffer, position, header, limit)
    walk(body, start, end, header[COUNT], header[BASE_TIMESTAMP])
    least_delta = 0 if codec_id else max(from_offset - header[BASE_OFFSET], 0)
    start, count, held, first, last, highest = measure(body, start, end, header[COUNT], least_delta)
    if count and header[BASE_OFFSET] + last >= from_offset:  # else compaction took what the client asks for: one of
        # nothing but older messages would bring it no further
        append_time = header[MAX_TIMESTAMP] if header[ATTRIBUTES] & LOG_APPEND_TIME else None
        relative_to = header[BASE_OFFSET] + first if codec_id and magic else 0
        out = bytearray(count * OVERHEAD[magic] + held)
        to_messages(
            body,
            start,
            end,
            count,
            magic=magic,
            base_offset=header[BASE_OFFSET] - relative_to,
            base_timestamp=header[BASE_TIMESTAMP],
            append_time=NO_TIMESTAMP if append_time is None else append_time,
            out=out,
        )
        if codec_id:
            latest = max(NO_TIMESTAMP, header[BASE_TIMESTAMP] + highest)
            found.append(legacy.wrapped(out, magic, header[BASE_OFFSET] + last, codec_id, latest, append_time))
        else:
            found.append(out)
    return position + size_of(header)


def _from_messages(
    buffer: memoryview, position: int, magic: int, from_offset: int, limit: int, found: list[Readable]
) -> int:
    """Convert the messages of one format that begin at `position`, or the wrapper there; where they end."""
    theirs = min(buffer[position + MAGIC_AT], 1)
    if theirs > magic:
        position = _first_wanted(buffer, position, from_offset)
    count, stop, *_ = walk_messages(buffer, position, len(buffer), theirs)
    if count and theirs <= magic:
        found.append(buffer[position:stop])
    elif count:
        found.append(_older(buffer, position, stop, count, base_offset=0))
    if count:
        return stop
    wrapper = next(legacy.scan(buffer, position))
    stop = position + wrapper.size_bytes
    if theirs <= magic:
        legacy.check_crc(buffer, wrapper)
        found.append(buffer[position:stop])
        return stop
    inside = _unwrapped(buffer, wrapper, limit, alone=False)
    base_offset = legacy.base_of(wrapper, inside.last_offset)
    out = _older(inside.body, inside.start, inside.end, inside.records_count, base_offset=base_offset)
    found.append(legacy.wrapped(out, magic, wrapper.offset, wrapper.codec_id, NO_TIMESTAMP, None))
    return stop


def _first_wanted(buffer: memoryview, position: int, from_offset: int) -> int:
    """Where the first message is that is not below `from_offset`, or else the last of these; mostly right here."""
    for message in legacy.scan(buffer, position):
        position = message.position
        if message.offset >= from_offset or message.magic != 1 or message.codec_id:
            break
    return position


def _older(body: Readable, start: int, end: int, count: int, *, base_offset: int) -> bytearray:
    """Messages of v1 as those of v0. base_offset: what their offsets count from."""
    out = bytearray(end - start - count * (OVERHEAD[1] - OVERHEAD[0]))
    renumbered(
        body,
        start,
        end,
        count,
        magic=1,
        to_magic=0,
        base_offset=base_offset,
        in_sequence=False,
        append_time=NO_TIMESTAMP,
        out=out,
    )
    return out


def _invalid(position: int, reason: str) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, position, reason)
