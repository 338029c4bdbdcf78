"""The header of a v2 record batch: where each field is, reading it whole, and rewriting the fields a broker sets.

The log calls this once per batch on every append, fetch and recovery; it looks at no record (that is `_walker` and
`content`) and never copies record bytes. A batch on the wire and in a .log file is:

    offset  size  name                     who writes it
         0     8  base_offset              producer: 0; the leader rewrites it            not under the CRC
         8     4  length                   bytes that follow this field                   not under the CRC
        12     4  partition_leader_epoch   the leader rewrites it                         not under the CRC
        16     1  magic                    2 (v0 and v1 sets have theirs at 16 as well)   not under the CRC
        17     4  crc                      CRC-32C of everything from 21 to the end
        21     2  attributes               see below
        23     4  last_offset_delta        offset of the last record less base_offset; survives compaction
        27     8  base_timestamp           of the first record, ms; the delete horizon if attribute bit 6 is set
        35     8  max_timestamp            largest of the records, or when the log appended them
        43     8  producer_id              -1 if neither idempotent nor transactional
        51     2  producer_epoch           -1 without a producer id
        53     4  base_sequence            -1 without a producer id
        57     4  records_count            records that follow; fewer than last_offset_delta + 1 after compaction
        61        the records, compressed as one block if attributes say so

    attributes: bits 0-2 codec, 3 timestamp is LogAppendTime, 4 transactional, 5 control, 6 delete horizon

Source: Kafka documentation, "Message format"; KIP-98 (producers), KIP-534 (delete horizon).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records._checksum import crc32c
from protocol.records._errors import RecordError, TornBatchError
from protocol.records._record import HeaderTuple as HeaderTuple
from protocol.records._record import Readable, Writable

MAGIC = 2
HEADER_SIZE = 61
LENGTH_OVERHEAD = 12  # base_offset and length: bytes of a batch that its own length leaves out
SMALLEST_LEGACY_LENGTH = 14  # no batch or message of any format is shorter

BASE_OFFSET_AT = 0
LENGTH_AT = 8
LEADER_EPOCH_AT = 12
MAGIC_AT = 16
LEGACY_ATTRIBUTES_AT = 17  # in a message of v0 or v1
CRC_AT = 17
ATTRIBUTES_AT = 21
LAST_OFFSET_DELTA_AT = 23
BASE_TIMESTAMP_AT = 27
MAX_TIMESTAMP_AT = 35
PRODUCER_ID_AT = 43
PRODUCER_EPOCH_AT = 51
BASE_SEQUENCE_AT = 53
RECORDS_COUNT_AT = 57
RECORDS_AT = 61

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
LARGEST_SEQUENCE = 0x7FFFFFFF

# Where each field stands in a HeaderTuple, in the order of the drawing above and of BatchHeader.
(
    BASE_OFFSET,
    LENGTH,
    LEADER_EPOCH,
    MAGIC_BYTE,
    CRC,
    ATTRIBUTES,
    LAST_DELTA,
    BASE_TIMESTAMP,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    PRODUCER_EPOCH,
    BASE_SEQUENCE,
    COUNT,
) = range(13)

HEADER = Struct(">qiibIhiqqqhii")
assert HEADER.size == HEADER_SIZE, HEADER.size
unpack_header = HEADER.unpack_from  # (buffer, position) -> HeaderTuple, not checked yet

_LENGTH_TO_CRC = Struct(">iibI")
_OFFSET_LENGTH_EPOCH = Struct(">qii")
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_CRC_ATTRIBUTES = Struct(">Ih")
_UINT32 = Struct(">I")


class BatchHeader(NamedTuple):
    """A v2 header by name: `BatchHeader(*header)` of a plain tuple, where names matter more than speed."""

    base_offset: int
    length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return size_of(self)

    @property
    def last_offset(self) -> int:
        """Offset of the last record that was ever in the batch."""
        return last_offset_of(self)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record that was ever in the batch, -1 without a producer id."""
        return last_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec_id(self) -> int:
        """Number of the codec, 0 to 7."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether all records carry max_timestamp, set by the broker, instead of their producers' times."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        """Whether the records are control records, which consumers do not hand out."""
        return self.attributes & CONTROL != 0

    @property
    def has_producer_id(self) -> bool:
        """Whether the batch came from an idempotent or transactional producer."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """From when on the cleaner may drop the tombstones and markers in the batch; None if not decided yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def size_of(header: HeaderTuple) -> int:
    """Bytes of the whole batch, header included."""
    return header[LENGTH] + LENGTH_OVERHEAD


def last_offset_of(header: HeaderTuple) -> int:
    """Offset of the last record that was ever in the batch."""
    return header[BASE_OFFSET] + header[LAST_DELTA]


def scan(buffer: Readable, start: int = 0, end: int | None = None) -> Iterator[tuple[int, HeaderTuple]]:
    """Walk over the v2 batches of a buffer, one `(position, header)` each; the checksum is not looked at.

    buffer: log bytes or a produce request's record set. start, end: byte positions, end defaults to the buffer's.
    Every batch that is yielded lies whole within [start, end) and has room for its header.
    Raises: TornBatchError if the buffer ends inside a batch; RecordError for a length or magic that cannot be, and
    UNSUPPORTED_FOR_MESSAGE_FORMAT for a v0 or v1 message (`protocol.records.legacy` reads those).
    """
    position = start
    if end is None:
        end = len(buffer)
    last_header = end - HEADER_SIZE
    while position < end:
        if position > last_header:
            raise _unreadable(buffer, position, end)
        header: HeaderTuple = unpack_header(buffer, position)
        after = position + header[LENGTH] + LENGTH_OVERHEAD
        if header[MAGIC_BYTE] != MAGIC or after > end or after < position + HEADER_SIZE:
            raise _unreadable(buffer, position, end)
        yield position, header
        position = after


def check(buffer: memoryview, position: int, end: int) -> HeaderTuple:
    """Read one v2 batch's header, having checked that it is whole, of magic 2 and that its CRC holds.

    Raises: as `scan`, and CORRUPT_MESSAGE if the checksum differs. Looks at no record and copies nothing.
    """
    if position + HEADER_SIZE > end:
        raise _unreadable(buffer, position, end)
    header: HeaderTuple = unpack_header(buffer, position)
    after = position + header[LENGTH] + LENGTH_OVERHEAD
    if header[MAGIC_BYTE] != MAGIC or after > end or after < position + HEADER_SIZE:
        raise _unreadable(buffer, position, end)
    if crc32c(buffer[position + ATTRIBUTES_AT : after]) != header[CRC]:
        raise _bad_checksum(buffer, position, after, header[CRC])
    return header


def assign(buffer: Writable, position: int, base_offset: int, length: int, leader_epoch: int) -> None:
    """Write what the leader decides, base offset and leader epoch, in place; neither is under the CRC.

    length: the header's own, written back unchanged so that one call writes all three neighbours.
    """
    assert base_offset >= 0, base_offset
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, position, base_offset, length, leader_epoch)


def set_base_offset(buffer: Writable, position: int, base_offset: int) -> None:
    """Write the base offset in place; it is not under the CRC."""
    _INT64.pack_into(buffer, position, base_offset)


def set_leader_epoch(buffer: Writable, position: int, leader_epoch: int) -> None:
    """Write the partition leader epoch in place; it is not under the CRC."""
    _INT32.pack_into(buffer, position + LEADER_EPOCH_AT, leader_epoch)


def set_max_timestamp(buffer: Writable, position: int, max_timestamp: int, *, log_append_time: bool) -> None:
    """Write max timestamp and timestamp type in place and recompute the CRC, unless both are already so.

    max_timestamp: ms; with log_append_time it becomes every record's timestamp. Attribute bits that Kafka does not
    define (7 to 15) are cleared when it writes, as Kafka does.
    """
    header = unpack_header(buffer, position)
    assert header[MAGIC_BYTE] == MAGIC, header
    attributes = header[ATTRIBUTES]
    wanted = attributes | LOG_APPEND_TIME if log_append_time else attributes & ~LOG_APPEND_TIME
    if wanted == attributes and header[MAX_TIMESTAMP] == max_timestamp:
        return
    _INT64.pack_into(buffer, position + MAX_TIMESTAMP_AT, max_timestamp)
    _CRC_ATTRIBUTES.pack_into(buffer, position + CRC_AT, 0, wanted & 0x7F)
    write_crc(buffer, position, size_of(header))


def write_crc(buffer: Writable, position: int, size: int) -> int:
    """Compute and write the checksum of the batch of `size` bytes at `position`; returns it."""
    crc = crc32c(memoryview(buffer)[position + ATTRIBUTES_AT : position + size])
    _UINT32.pack_into(buffer, position + CRC_AT, crc)
    return crc


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Sequence number of a batch's last record: wraps from 2^31-1 to 0, and is -1 without a producer id."""
    if base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (base_sequence + last_offset_delta) & LARGEST_SEQUENCE


def _unreadable(buffer: Readable, position: int, end: int) -> RecordError:
    """Say why the bytes at `position` are no whole v2 batch; only called once that is known."""
    have = end - position
    if have < LENGTH_OVERHEAD:
        return TornBatchError(position, f"{have} bytes left, less than an offset and a length", LENGTH_OVERHEAD - have)
    (length,) = _INT32.unpack_from(buffer, position + LENGTH_AT)
    if length < SMALLEST_LEGACY_LENGTH:
        return RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"length {length} is less than any batch has")
    if have <= MAGIC_AT:
        return TornBatchError(
            position, f"{have} bytes left of {length + LENGTH_OVERHEAD}", length + LENGTH_OVERHEAD - have
        )
    magic = buffer[position + MAGIC_AT]
    if magic > MAGIC:
        return RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"magic {magic} is not 0, 1 or 2")
    if magic < MAGIC:
        return RecordError(
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, position, f"a message of format v{magic}, not a batch"
        )
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        return RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"length {length} is less than a v2 header")
    return TornBatchError(position, f"{have} bytes left of {length + LENGTH_OVERHEAD}", length + LENGTH_OVERHEAD - have)


def _bad_checksum(buffer: memoryview, position: int, after: int, stored: int) -> RecordError:
    computed = crc32c(buffer[position + ATTRIBUTES_AT : after])
    return RecordError(
        ErrorCode.CORRUPT_MESSAGE, position, f"checksum {stored:#010x} stored, {computed:#010x} computed"
    )
