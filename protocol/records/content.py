"""The records of a v2 batch: checked without being read, parsed into values, built into a batch.

Called on append when a topic's settings ask for a look at each record, by the coordinators to read and write their
topics, by the cleaner, the tools and the pipeline. The header is `batch`'s business: its checksum has been checked
before anything here is called, except by `parse_set`, which does both. Loops over records are in `_walker`, but for
those of a batch in the wrong order, which run for one batch in a great many.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.primitives import varint
from protocol.records._errors import RecordError
from protocol.records._record import (
    DISORDERED,
    EARLIEST,
    KEYLESS,
    LATEST,
    Cells,
    Facts,
    FactsTuple,
    Readable,
    Record,
    Run,
)
from protocol.records._walker import accept, first_since, gather, pack, parse, refused, spread, walk
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL,
    COUNT,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    RECORDS_AT,
    TRANSACTIONAL,
    BatchHeader,
    HeaderTuple,
    check,
    scan,
    write_crc,
)
from protocol.records.compression import LIMIT_BYTES, codec_of

__all__ = [
    "DISORDERED",
    "EARLIEST",
    "KEYLESS",
    "LATEST",
    "Cells",
    "Columns",
    "Facts",
    "FactsTuple",
    "Room",
    "Run",
    "accept",
    "batch_body",
    "build_batch",
    "build_batch_of",
    "build_plain",
    "check_opened",
    "check_records",
    "first_record_since",
    "gather_records",
    "latest_record",
    "open_records",
    "parse_records",
    "parse_set",
    "rebuild_batch",
    "refused_records",
    "run_of",
]

LARGEST_DELTA = 2**31 - 1
LARGEST_OFFSET = 2**63 - 1
SMALLEST_TIMESTAMP = -(2**63)
_UINT32, _UINT64 = 2**32 - 1, 2**64 - 1


def check_records(buffer: memoryview, position: int, header: HeaderTuple, limit: int = LIMIT_BYTES) -> FactsTuple:
    """Check that the batch at `position` holds as many well-formed records as it says; what a broker must know of them.

    header: the batch's own, already checked. limit: bytes that compressed records may become.
    Returns: the fields of `Facts`. Raises: RecordError; positions in a compressed batch are those of its
    decompressed bytes. Stricter than Kafka in one thing: in compressed batches, too, each record's size must agree
    with its fields.
    """
    if not header[ATTRIBUTES] & CODEC_MASK:
        end = position + LENGTH_OVERHEAD + header[LENGTH]
        return walk(buffer, position + RECORDS_AT, end, header[COUNT], header[BASE_TIMESTAMP])
    return check_opened(buffer, position, header, limit)[0]


def check_opened(buffer: memoryview, position: int, header: HeaderTuple, limit: int) -> tuple[FactsTuple, int]:
    """The same of a compressed batch, with the size of its records in bytes once they are decompressed."""
    body, start, end = batch_body(buffer, position, header, limit)
    return walk(body, start, end, header[COUNT], header[BASE_TIMESTAMP]), end - start


def parse_records(buffer: memoryview, position: int, header: HeaderTuple, limit: int = LIMIT_BYTES) -> list[Record]:
    """The records of the batch at `position`, with absolute offsets and the timestamps that consumers see.

    Keys, values and headers are copies. header, limit, errors: as for `check_records`.
    """
    body, start, end = batch_body(buffer, position, header, limit)
    _check_offsets(position, header)
    return parse(body, *run_of(start, end, header))


def _check_offsets(position: int, header: HeaderTuple) -> None:
    first = header[BASE_OFFSET]
    if first > LARGEST_OFFSET - LARGEST_DELTA:
        raise RecordError(ErrorCode.INVALID_RECORD, position, f"offsets from {first} on do not fit in 64 bits")


class Room(NamedTuple):
    """Where `gather_records` puts records: writable views, of Arrow's layout. How much of them is taken, callers know.

    offsets, timestamps: int64, one a row. key_ends, value_ends: int32, one more than rows, the first being 0. marks: a
    byte a row: 1 its key is null, 2 its value is null, 4 it has headers.
    """

    offsets: memoryview
    timestamps: memoryview
    key_ends: memoryview
    keys: memoryview
    value_ends: memoryview
    values: memoryview
    marks: memoryview


def open_records(
    buffer: memoryview, position: int, header: HeaderTuple, limit: int = LIMIT_BYTES
) -> tuple[memoryview, int, int]:
    """The records of the batch at `position`, decompressed: bytes, where they start there, where they end.

    header, limit, errors: as for `check_records`.
    """
    _check_offsets(position, header)
    body, start, end = batch_body(buffer, position, header, limit)
    return body if isinstance(body, memoryview) else memoryview(body), start, end


def run_of(start: int, end: int, header: HeaderTuple) -> Run:
    """What `gather_records` wants to know of a batch. start, end: where its records are, decompressed."""
    append_time = header[MAX_TIMESTAMP] if header[ATTRIBUTES] & LOG_APPEND_TIME else None
    return start, end, header[COUNT], header[BASE_OFFSET], header[BASE_TIMESTAMP], append_time


def gather_records(body: memoryview, runs: Sequence[Run], row: int, room: Room) -> int:
    """Put the records of batches into columns, behind `row` rows: those that have headers, counted.

    body: where the records are, of all of them; from `open_records`. room has to have rows for all of them, and as many
    bytes as they are. Offsets and timestamps are those that `parse_records` gives. Raises: RecordError.
    """
    ends = (room.key_ends, room.keys, room.value_ends, room.values)
    return gather(body, runs, row, (room.offsets, room.timestamps), *ends, room.marks)


def first_record_since(
    buffer: memoryview, position: int, header: HeaderTuple, timestamp: int, offset: int, limit: int = LIMIT_BYTES
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record, from `offset` on, that is not older; as `parse_records` has them.

    For lookups by time, of which one batch in a log is looked at: nothing is copied. Parsed, a small batch of millions
    of headers would take gigabytes. header, limit, errors: as for `check_records`.
    """
    body, start, end = batch_body(buffer, position, header, limit)
    is_append_time = bool(header[ATTRIBUTES] & LOG_APPEND_TIME)
    least = SMALLEST_TIMESTAMP if is_append_time else timestamp
    found = first_since(body, start, end, header[COUNT], header[BASE_TIMESTAMP], least, offset - header[BASE_OFFSET])
    if found is None or (is_append_time and header[MAX_TIMESTAMP] < timestamp):
        return None
    return header[BASE_OFFSET] + found[0], header[MAX_TIMESTAMP] if is_append_time else found[1]


def latest_record(
    buffer: memoryview, position: int, header: HeaderTuple, offset: int, limit: int = LIMIT_BYTES
) -> tuple[int, int] | None:
    """Offset and timestamp of the first record with the largest timestamp, of those from `offset` on.

    header, limit, errors: as for `check_records`.
    """
    body, start, end = batch_body(buffer, position, header, limit)
    count, base, least_delta = header[COUNT], header[BASE_TIMESTAMP], offset - header[BASE_OFFSET]
    found = first_since(body, start, end, count, base, SMALLEST_TIMESTAMP, least_delta)
    if found is None or header[ATTRIBUTES] & LOG_APPEND_TIME:
        return None if found is None else (header[BASE_OFFSET] + found[0], header[MAX_TIMESTAMP])
    earliest, latest = found[1], header[MAX_TIMESTAMP]
    while earliest < latest:  # some ten looks: of each, the compiled loop tells the first record that is not older
        middle = (earliest + latest + 1) // 2
        later = first_since(body, start, end, count, base, middle, least_delta)
        if later is None:
            latest = middle - 1
        else:
            found, earliest = later, later[1]
    return header[BASE_OFFSET] + found[0], found[1]


def refused_records(
    buffer: memoryview,
    position: int,
    header: HeaderTuple,
    *,
    needs_key: bool,
    limits: tuple[int, int] | None,
    most: int,
    limit: int = LIMIT_BYTES,
) -> list[tuple[int, int | None]]:
    """The records of the batch at `position` that a topic does not take: index, and timestamp if that is why.

    needs_key: whether a missing key is why. limits: the timestamps allowed, both ends included; None allows all.
    most: how many of them are wanted. header, limit, errors: as for `check_records`.
    """
    body, start, end = batch_body(buffer, position, header, limit)
    return refused(body, start, end, header[COUNT], header[BASE_TIMESTAMP], needs_key, limits, most)


def _varint(data: Readable, at: int, mask: int) -> tuple[int, int]:
    """A zigzag varint that `walk` has checked, and the position behind it. mask: the bits of its type."""
    byte, at = data[at], at + 1
    value, shift = byte & 0x7F, 7
    while byte > 0x7F:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    value &= mask
    return (value >> 1) ^ -(value & 1), at


def parse_set(buffer: Readable, limit: int = LIMIT_BYTES) -> list[tuple[BatchHeader, list[Record]]]:
    """All v2 batches of a buffer, each checked, with its records.

    limit: bytes that the records of one compressed batch may become. Raises: RecordError, as `batch.scan`,
    `batch.check` and `parse_records` do.
    """
    view = memoryview(buffer)
    found = []
    for position, header in scan(view):
        check(view, position, len(view))
        found.append((BatchHeader(*header), parse_records(view, position, header, limit)))
    return found


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec_id: int = 0,
    level: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    append_time: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    delete_horizon_ms: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """One v2 batch of these records, as Kafka's own builder lays it out.

    records: offsets rise. Without any, base_offset, last_offset and max_timestamp must be given: the header that the
    cleaner keeps of a batch to remember its producer's sequence. base_offset, last_offset: what the batch covers, if
    more than its records do (compaction). append_time: ms, makes it a LogAppendTime batch. level: None is the codec's
    default. delete_horizon_ms: from when on tombstones and markers may go (KIP-534).
    Raises: OverflowError for offsets more than 31 bits or timestamps more than 63 bits apart.
    """
    if records:
        base_offset = records[0].offset if base_offset is None else base_offset
        last_offset = records[-1].offset if last_offset is None else last_offset
        base_timestamp = records[0].timestamp if delete_horizon_ms is None else delete_horizon_ms
        if max_timestamp is None:
            max_timestamp = max(NO_TIMESTAMP, max(record.timestamp for record in records))
    else:
        base_timestamp, codec_id, delete_horizon_ms = NO_TIMESTAMP, 0, None
    assert base_offset is not None
    assert last_offset is not None
    assert max_timestamp is not None or append_time is not None
    assert 0 <= base_offset <= last_offset, (base_offset, last_offset)
    if last_offset - base_offset > LARGEST_DELTA:
        raise OverflowError(f"offsets {base_offset} to {last_offset} are more than one batch can span")
    assert producer_id != NO_PRODUCER_ID or not transactional, "a transaction has a producer id"

    attributes = codec_id
    attributes |= LOG_APPEND_TIME if append_time is not None else 0
    attributes |= TRANSACTIONAL if transactional else 0
    attributes |= CONTROL if control else 0
    attributes |= DELETE_HORIZON if delete_horizon_ms is not None else 0
    body: Readable = pack(records, base_offset, base_timestamp)
    if codec_id:
        body = codec_of(codec_id).compress(body, level)
    out = bytearray(HEADER_SIZE)
    out += body
    HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - LENGTH_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp if append_time is None else append_time,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    write_crc(out, 0, len(out))
    return out


class Columns(NamedTuple):
    """Records as `build_batch_of` takes them: views of Arrow's layout, but with sizes in the place of ends.

    timestamps: int64, one a record. headers: how many each has, int64; names, contents: of all of them, no name null.
    """

    timestamps: memoryview
    keys: Cells
    values: Cells
    headers: memoryview
    names: Cells
    contents: Cells


def build_batch_of(columns: Columns, *, codec_id: int = 0) -> bytearray:
    """One v2 batch of a producer without an id: as `build_batch` makes it of the same records, with offsets from 0 on.

    Raises: OverflowError for timestamps more than 63 bits apart.
    """
    out, latest = spread(HEADER_SIZE, *columns)
    if codec_id:
        body = codec_of(codec_id).compress(memoryview(out)[HEADER_SIZE:])
        out = bytearray(HEADER_SIZE)
        out += body
    count, length = len(columns.timestamps), len(out) - LENGTH_OVERHEAD
    times = columns.timestamps[0], max(NO_TIMESTAMP, latest)
    producer = NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE
    HEADER.pack_into(out, 0, 0, length, NO_LEADER_EPOCH, MAGIC, 0, codec_id, count - 1, *times, *producer, count)
    write_crc(out, 0, len(out))
    return out


def build_plain(
    contents: Sequence[tuple[bytes | None, bytes | None]],
    timestamp: int,
    *,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytearray:
    """One uncompressed v2 batch of keys and values, from offset 0 on: as `build_batch`, for a writer of many.

    timestamp: ms, of all records. attributes: TRANSACTIONAL, CONTROL.
    """
    out = bytearray(HEADER_SIZE)
    out += pack([Record(at, timestamp, key, value) for at, (key, value) in enumerate(contents)], 0, timestamp)
    count, size = len(contents), len(out)
    times = timestamp, timestamp
    producer = producer_id, producer_epoch, NO_SEQUENCE
    length = size - LENGTH_OVERHEAD
    HEADER.pack_into(out, 0, 0, length, NO_LEADER_EPOCH, MAGIC, 0, attributes, count - 1, *times, *producer, count)
    write_crc(out, 0, size)
    return out


def rebuild_batch(
    buffer: memoryview,
    position: int,
    header: HeaderTuple,
    *,
    codec_id: int,
    level: int | None = None,
    in_order: bool,
    limit: int = LIMIT_BYTES,
) -> bytearray:
    """The batch at `position` under another codec, its records numbered 0, 1, 2... and otherwise as they are.

    in_order: what `check_records`, which has passed the batch, says of its offset deltas. Raises: RecordError, beyond
    limit. The batch does not say LogAppendTime, nor a delete horizon, whatever the old one said.
    """
    body, start, end = batch_body(buffer, position, header, limit)
    body = memoryview(body)[start:end] if in_order else _numbered(body, start, header[COUNT])
    out = bytearray(buffer[position : position + HEADER_SIZE])
    out += codec_of(codec_id).compress(body, level)
    attributes = codec_id | header[ATTRIBUTES] & (TRANSACTIONAL | CONTROL)
    HEADER.pack_into(
        out,
        0,
        header[BASE_OFFSET],
        len(out) - LENGTH_OVERHEAD,
        *header[LEADER_EPOCH:ATTRIBUTES],
        attributes,
        *header[LAST_DELTA:],
    )
    write_crc(out, 0, len(out))
    return out


def _numbered(body: Readable, at: int, count: int) -> bytearray:
    """Checked records with the offset deltas 0, 1, 2...; one by one, since a few bytes may hold millions of headers."""
    out, view = bytearray(), memoryview(body)
    for index in range(count):
        size, at = _varint(body, at, _UINT32)
        stop = at + size
        _, behind_timestamp = _varint(body, at + 1, _UINT64)
        _, behind_offset = _varint(body, behind_timestamp, _UINT32)
        number = varint(index)
        out += varint(size + len(number) - (behind_offset - behind_timestamp))
        out += view[at:behind_timestamp]
        out += number
        out += view[behind_offset:stop]
        at = stop
    return out


def batch_body(buffer: memoryview, position: int, header: HeaderTuple, limit: int) -> tuple[Readable, int, int]:
    """Where the uncompressed records of the batch at `position` are: a buffer, start and end in it.

    limit: bytes that compressed records may become. Raises: RecordError, as of the codec.
    """
    end = position + LENGTH_OVERHEAD + header[LENGTH]
    start = position + RECORDS_AT
    codec_id = header[ATTRIBUTES] & CODEC_MASK
    if not codec_id:
        return buffer, start, end
    if not header[COUNT] and start == end:  # what compaction left of a batch: nothing, not nothing compressed
        return b"", 0, 0
    try:
        body = codec_of(codec_id).decompress(buffer[start:end], limit)
    except RecordError as error:
        raise RecordError(error.code, start, error.reason) from None
    return body, 0, len(body)
