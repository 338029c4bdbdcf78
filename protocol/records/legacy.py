"""Message sets of format v0 and v1: what clients before Kafka 0.11 send, and what old brokers left in their logs.

Called where a batch's magic is 0 or 1: append (before conversion), recovery, the tools. Owns parsing and building in
the one format; turning one format into another is not done here. There is no batch: a set is messages one behind the
other, and a compressed set is one message, the wrapper, whose value is a set of its own. On the wire and in a .log:

    offset  size  name
         0     8  offset          of the message; of a wrapper, that of its last message
         8     4  size            bytes that follow this field
        12     4  crc             CRC-32 (not CRC-32C) of everything from 16 to the end
        16     1  magic           0 or 1
        17     1  attributes      bits 0-2 codec; v1: bit 3 timestamp is LogAppendTime
        18     8  timestamp       v1 only; ms, -1 for none; of a wrapper, the largest, or when the log appended it
     18/26     4  key_size        -1 for null
              ..  key
               4  value_size      -1 for null
              ..  value

Inside a wrapper, v0 messages have absolute offsets and v1 messages count from 0; the last one has the wrapper's own
(KIP-31). Under a LogAppendTime wrapper all messages have the wrapper's timestamp (KIP-32).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records._errors import RecordError, TornBatchError
from protocol.records._record import Readable, Record, Writable
from protocol.records.batch import (
    CODEC_MASK,
    LEGACY_ATTRIBUTES_AT,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SMALLEST_LEGACY_LENGTH,
)
from protocol.records.compression import LIMIT_BYTES, codec_of

CRC_AT = 12
MAGIC_AT = 16
TIMESTAMP_AT = 18
KEY_SIZE_AT = (18, 26)  # by magic
OVERHEAD = (SMALLEST_LEGACY_LENGTH, SMALLEST_LEGACY_LENGTH + 8)  # smallest size of a message, by magic
LARGEST_OFFSET = 2**63 - 1
LAST_CODEC_ID = 3  # zstd came with v2

_HEADER = Struct(">qiIBB")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")


class Message(NamedTuple):
    """What stands before a message's key, and where the message is; a wrapper is one message.

    position: of its first byte in the buffer. size_bytes: all of it. timestamp: ms, -1 for none and always in v0.
    """

    position: int
    size_bytes: int
    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    @property
    def codec_id(self) -> int:
        """Number of the codec; above 0 the message is a wrapper."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the timestamp was set by the broker."""
        return self.magic > 0 and self.attributes & LOG_APPEND_TIME != 0


def scan(buffer: Readable, start: int = 0, end: int | None = None) -> Iterator[Message]:
    """Walk over the messages of a set, wrappers unopened; checksums are not looked at.

    Every message that is yielded lies whole within [start, end).
    Raises: TornBatchError if the buffer ends inside a message; RecordError for a size or magic that cannot be, and
    UNSUPPORTED_FOR_MESSAGE_FORMAT for a v2 batch.
    """
    position = start
    end = len(buffer) if end is None else end
    while position < end:
        message = _message_at(buffer, position, end)
        yield message
        position += message.size_bytes


def check_crc(buffer: Readable, message: Message) -> None:
    """Raise RecordError, CORRUPT_MESSAGE, unless the message's checksum holds."""
    after = message.position + message.size_bytes
    computed = zlib.crc32(memoryview(buffer)[message.position + MAGIC_AT : after])
    if computed != message.crc:
        reason = f"checksum {message.crc:#x} stored, {computed:#x} computed"
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, message.position, reason)


def parse_set(buffer: Readable, limit: int = LIMIT_BYTES) -> list[Record]:
    """All records of a set, out of their wrappers, with absolute offsets; every checksum is checked.

    limit: bytes that one wrapper may decompress to. Raises: as `scan`, `check_crc` and `parse_message`.
    """
    records = []
    for message in scan(buffer):
        check_crc(buffer, message)
        records += parse_message(buffer, message, limit)
    return records


def parse_message(buffer: Readable, message: Message, limit: int = LIMIT_BYTES) -> list[Record]:
    """The one record of a message, or those inside a wrapper. Keys and values are copies.

    limit: bytes that a wrapper may decompress to. Raises: RecordError; within a wrapper positions are those of its
    decompressed bytes, and its messages' checksums are checked, as Kafka does when it appends them.
    """
    if not message.codec_id:
        key, value = _key_and_value(buffer, message)
        return [Record(message.offset, message.timestamp, _copy(key), _copy(value))]
    records = _parse_inner(decompressed(buffer, message, limit), message)
    return _absolute(records, message) if message.magic else records


def inner_messages(buffer: Readable, wrapper: Message, limit: int = LIMIT_BYTES) -> list[Message]:
    """The messages inside a wrapper as they stand there, for tools: positions are those of the decompressed bytes.

    Raises: RecordError, as `parse_message`, but for checksums.
    """
    messages: list[Message] = []
    with suppress(TornBatchError):  # those before the cut are kept
        messages.extend(scan(decompressed(buffer, wrapper, limit)))
    return messages


def decompressed(buffer: Readable, wrapper: Message, limit: int = LIMIT_BYTES) -> Readable:
    """The set inside a wrapper, as bytes. Raises: RecordError.

    limit: how many those may be.
    """
    value = _key_and_value(buffer, wrapper)[1]
    if value is None:
        raise _invalid(wrapper.position, "a wrapper without a value")
    if wrapper.codec_id > LAST_CODEC_ID:
        reason = f"codec {wrapper.codec_id} in a v{wrapper.magic} message"
        raise RecordError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, wrapper.position, reason)
    try:
        return codec_of(wrapper.codec_id, wrapper.magic).decompress(value, limit)
    except RecordError as error:
        raise RecordError(error.code, wrapper.position, error.reason) from None


def build_set(
    records: Sequence[Record],
    magic: int,
    *,
    base_offset: int | None = None,
    codec_id: int = 0,
    level: int | None = None,
    append_time: int | None = None,
) -> bytearray:
    """A message set of these records, one wrapper if a codec is given, as Kafka's own builder lays it out.

    records: offsets rise; headers are not to be had in these formats (ValueError). base_offset: what offsets within a
    v1 wrapper count from, the first record's if not given. append_time: ms, makes v1 messages LogAppendTime.
    """
    assert magic in (0, 1), magic
    assert append_time is None or magic == 1
    if not 0 <= codec_id <= LAST_CODEC_ID:
        raise ValueError(f"codec {codec_id} cannot be used in v{magic} messages")
    out = bytearray()
    if not records:
        return out
    time_bit = LOG_APPEND_TIME if append_time is not None else 0
    relative_to = 0
    if codec_id and magic:
        relative_to = records[0].offset if base_offset is None else base_offset
    for record in records:
        if record.headers:
            raise ValueError(f"record {record.offset} has headers, which v{magic} messages cannot carry")
        timestamp = record.timestamp if append_time is None else append_time
        _append(out, record.offset - relative_to, magic, time_bit, timestamp, record.key, record.value)
    if not codec_id:
        return out
    max_timestamp = max(NO_TIMESTAMP, max(record.timestamp for record in records))
    return wrapped(out, magic, records[-1].offset, codec_id, max_timestamp, append_time, level)


def wrapped(
    messages: Readable,
    magic: int,
    last_offset: int,
    codec_id: int,
    max_timestamp: int,
    append_time: int | None,
    level: int | None = None,
) -> bytearray:
    """The wrapper of these messages. last_offset: absolute, of the last one. append_time: ms, None for CreateTime."""
    time_bit = LOG_APPEND_TIME if append_time is not None and magic else 0
    timestamp = max_timestamp if append_time is None else append_time
    wrapper = bytearray()
    value = codec_of(codec_id, magic).compress(messages, level)
    _append(wrapper, last_offset, magic, codec_id | time_bit, timestamp, None, value)
    return wrapper


def set_offset(buffer: Writable, position: int, offset: int) -> None:
    """Write a message's offset in place; it is not under the CRC."""
    _INT64.pack_into(buffer, position, offset)


def set_timestamp(buffer: Writable, message: Message, timestamp: int, *, log_append_time: bool) -> None:
    """Write a v1 message's timestamp and its type in place and recompute the CRC, unless both are already so."""
    assert message.magic == 1, message
    if message.timestamp == timestamp and message.is_log_append_time == log_append_time:
        return
    attributes = message.codec_id | (LOG_APPEND_TIME if log_append_time else 0)
    buffer[message.position + LEGACY_ATTRIBUTES_AT] = attributes
    _INT64.pack_into(buffer, message.position + TIMESTAMP_AT, timestamp)
    _write_crc(buffer, message.position, message.position + message.size_bytes)


def _message_at(buffer: Readable, position: int, end: int) -> Message:
    have = end - position
    if have < LENGTH_OVERHEAD:
        reason = f"{have} bytes left, less than an offset and a size"
        raise TornBatchError(position, reason, LENGTH_OVERHEAD - have)
    (size,) = _INT32.unpack_from(buffer, position + 8)
    if size < SMALLEST_LEGACY_LENGTH:
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"size {size} is less than any message has")
    size_bytes = size + LENGTH_OVERHEAD
    if have > MAGIC_AT and (magic := buffer[position + MAGIC_AT]) > 1:
        if magic == 2:
            raise RecordError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, position, "a v2 batch, not a message")
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"magic {magic} is not 0, 1 or 2")
    if have < size_bytes:
        raise TornBatchError(position, f"{have} bytes left of {size_bytes}", size_bytes - have)
    offset, _, crc, magic, attributes = _HEADER.unpack_from(buffer, position)
    if size < OVERHEAD[magic]:
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"size {size} is less than a v{magic} message has")
    timestamp = _INT64.unpack_from(buffer, position + TIMESTAMP_AT)[0] if magic else NO_TIMESTAMP
    return Message(position, size_bytes, offset, crc, magic, attributes, timestamp)


def _key_and_value(buffer: Readable, message: Message) -> tuple[memoryview | None, memoryview | None]:
    """Views on a message's key and value. Raises: RecordError unless both fill the message exactly."""
    view = memoryview(buffer)
    end = message.position + message.size_bytes
    key, position = _sized(view, message.position + KEY_SIZE_AT[message.magic], end, "key")
    value, position = _sized(view, position, end, "value")
    if position != end:
        raise _invalid(message.position, f"{end - position} bytes left behind the value")
    return key, value


def _sized(view: memoryview, position: int, end: int, what: str) -> tuple[memoryview | None, int]:
    if position + 4 > end:
        raise _invalid(position, f"the message ends before its {what}'s size")
    (size,) = _INT32.unpack_from(view, position)
    position += 4
    if size < 0:
        return None, position
    if size > end - position:
        raise _invalid(position, f"the {what} has {size} bytes, the message {end - position}")
    return view[position : position + size], position + size


def _parse_inner(inner: Readable, wrapper: Message) -> list[Record]:
    """The records inside a wrapper, with their offsets as they stand there."""
    records: list[Record] = []
    try:
        for message in scan(inner):
            index = len(records)
            if message.magic != wrapper.magic:
                raise _invalid(message.position, f"a v{message.magic} message in a v{wrapper.magic} wrapper", index)
            if message.codec_id:
                raise _invalid(message.position, "a wrapper in a wrapper", index)
            check_crc(inner, message)
            key, value = _key_and_value(inner, message)
            timestamp = wrapper.timestamp if wrapper.is_log_append_time else message.timestamp
            records.append(Record(message.offset, timestamp, _copy(key), _copy(value)))
    except TornBatchError:
        pass  # old brokers cut sets at a size when they compressed them: Kafka takes what is whole
    if not records:
        raise _invalid(wrapper.position, "a wrapper without messages")
    return records


def base_of(wrapper: Message, last_offset: int) -> int:
    """What offsets inside a v1 wrapper count from. last_offset: of its last message, as it stands there."""
    if wrapper.offset == 0:
        return 0  # what some versions of librdkafka produce: the offsets are right as they are
    if wrapper.offset < last_offset:
        reason = f"the wrapper's offset {wrapper.offset} is less than its last message's, {last_offset}"
        raise _invalid(wrapper.position, reason)
    return wrapper.offset - last_offset


def _absolute(records: list[Record], wrapper: Message) -> list[Record]:
    """Offsets of a v1 wrapper's records, which count from 0 up to the wrapper's own."""
    base = base_of(wrapper, records[-1].offset)
    lowest, highest = min(record.offset for record in records), max(record.offset for record in records)
    if not -LARGEST_OFFSET <= base + lowest <= base + highest <= LARGEST_OFFSET:
        raise _invalid(wrapper.position, "offsets within the wrapper do not fit in 64 bits")
    return [record._replace(offset=base + record.offset) for record in records]


def _append(
    out: bytearray, offset: int, magic: int, attributes: int, timestamp: int, key: bytes | None, value: Readable | None
) -> None:
    """Add one message to a set."""
    start = len(out)
    out += _HEADER.pack(offset, 0, 0, magic, attributes)
    if magic:
        out += _INT64.pack(timestamp)
    for part in (key, value):
        if part is None:
            out += b"\xff\xff\xff\xff"
        else:
            out += _INT32.pack(len(part))
            out += part
    _INT32.pack_into(out, start + 8, len(out) - start - LENGTH_OVERHEAD)
    _write_crc(out, start, len(out))


def _write_crc(buffer: Writable, position: int, end: int) -> None:
    with memoryview(buffer) as view, view[position + MAGIC_AT : end] as covered:
        crc = zlib.crc32(covered)
    _UINT32.pack_into(buffer, position + CRC_AT, crc)


def _copy(part: memoryview | None) -> bytes | None:
    return None if part is None else bytes(part)


def _invalid(position: int, reason: str, index: int | None = None) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, position, reason, index)
