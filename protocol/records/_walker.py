# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The loops that run once per record of a v2 batch: `walk` checks them, `parse` reads them, `pack` writes them.

`batch` and `content` call this with the uncompressed records of one batch; it knows no header, codec or checksum. The
file is plain Python and runs as it is; where there was a C compiler at installation, Cython has compiled this same
file and Python imports that instead (docs/decisions has the measurements). So its rules are those of both: annotations
are C types, arithmetic stays inside 64 bits, no literal is wider than 31 bits, and no byte is read that was not
compared with `end` before, since compiled code has no other guard.

A record, all numbers but the first byte zigzag varints, at most 5 bytes each (timestamp_delta: 10):

    size  attributes(1 byte, unused)  timestamp_delta  offset_delta  key_size  key  value_size  value
    headers_count  (key_size  key  value_size  value)*

`size` counts what follows it; key_size and value_size below 0 mean null; header keys are never null. As in Kafka,
bits of a varint beyond its type are dropped, and the batch's count must use up its bytes exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:  # Cython is needed to compile this file, not to run it
    from protocol.records import _no_cython as cython

from protocol.errors import ErrorCode
from protocol.records._errors import RecordError
from protocol.records._record import Readable, Record

COMPILED: bool = cython.compiled
SMALLEST_RECORD = 6  # attributes and five varints of one byte
_SMALLEST_INT64 = -(2**63)
_LARGEST_INT64 = 2**63 - 1


def walk(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: int,
) -> tuple[int, int, int, int, int]:
    """Check that [start, end) holds exactly `count` well-formed records, and say what a broker must know of them.

    Returns: (max_timestamp, its record's offset_delta, min_timestamp, first record without a key, first record whose
    offset_delta is not its index); -1 where there is none. Timestamps are ms and leave out records that have none (-1).
    Raises: RecordError, INVALID_RECORD for structure, INVALID_TIMESTAMP where base and delta leave 64 bits.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    position: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = start
    index: cython.Py_ssize_t
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    none: cython.longlong = -1 - base_timestamp  # the delta of a record without timestamp
    highest: cython.longlong = none
    highest_at: cython.longlong = -1
    lowest: cython.longlong = none
    first_without_key: cython.Py_ssize_t = -1
    first_out_of_order: cython.Py_ssize_t = -1
    _check_range(start, end, len(buffer), count)
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    for index in range(count):
        size, position = _varint(data, position, end, 32)
        if position < 0 or size < SMALLEST_RECORD or size > end - position:
            raise _broken("its size is no number, too small, or more than the batch has left", stop, index)
        start = stop
        stop = position + size
        position += 1
        delta, position = _varint(data, position, stop, 64)
        if position < 0:
            raise _broken("no timestamp_delta", start, index)
        if delta > highest:
            highest = delta
            highest_at = -2  # known in a moment
        if delta != none and (delta < lowest or lowest == none):
            lowest = delta
        offset_delta, position = _varint(data, position, stop, 32)
        if position < 0:
            raise _broken("no offset_delta", start, index)
        if highest_at == -2:
            highest_at = offset_delta
        if offset_delta != index and first_out_of_order < 0:
            first_out_of_order = index
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size > stop - position:
            raise _broken("its key does not fit", start, index)
        if size >= 0:
            position += size
        elif first_without_key < 0:
            first_without_key = index
        position = _skip_rest(data, position, stop)
        if position < 0:
            raise _broken(_REST_IS_BROKEN[position], start, index)
    if position != end:
        raise _left_over(position, end, count)
    earliest, latest = base_timestamp + lowest, base_timestamp + highest
    if earliest < _SMALLEST_INT64 or latest > _LARGEST_INT64:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, end, f"timestamps {earliest} to {latest} do not fit in 64 bits")
    return latest, highest_at, earliest, first_without_key, first_out_of_order


def parse(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> list[Record]:
    """Read the records that `walk` has checked with the same arguments, and copy their keys, values and headers.

    append_time: ms, every record's timestamp in a LogAppendTime batch; None to take each record's own.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    position: cython.Py_ssize_t = start
    size: cython.longlong
    headers: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    records: list[Record] = []
    make = tuple.__new__

    walk(buffer, start, end, count, base_timestamp)
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    for _ in range(count):
        size, position = _varint(data, position, end, 32)
        delta, position = _varint(data, position + 1, end, 64)
        offset_delta, position = _varint(data, position, end, 32)
        size, position = _varint(data, position, end, 32)
        key = None
        if size >= 0:
            key = bytes(data[position : position + size])
            position += size
        size, position = _varint(data, position, end, 32)
        value = None
        if size >= 0:
            value = bytes(data[position : position + size])
            position += size
        headers, position = _varint(data, position, end, 32)
        pairs: tuple[tuple[bytes, bytes | None], ...] = ()
        if headers > 0:
            found, position = _read_headers(data, position, end, headers)
            pairs = tuple(found)
        timestamp = base_timestamp + delta if append_time is None else append_time
        records.append(make(Record, (base_offset + offset_delta, timestamp, key, value, pairs)))
    return records


def pack(records: Sequence[Record], base_offset: int, base_timestamp: int) -> bytearray:
    """Write records as the body of a batch: the inverse of `parse`.

    Raises: OverflowError for an offset or a timestamp too far from its base for the format.
    """
    out = bytearray()
    body = bytearray()
    for offset, timestamp, key, value, headers in records:
        offset_delta = offset - base_offset
        if not -(2**31) <= offset_delta < 2**31:
            raise OverflowError(f"offset {offset} is more than 31 bits from base offset {base_offset}")
        timestamp_delta = timestamp - base_timestamp
        if not _SMALLEST_INT64 <= timestamp_delta <= _LARGEST_INT64:
            raise OverflowError(f"timestamp {timestamp} is more than 63 bits from base timestamp {base_timestamp}")
        body.clear()
        body.append(0)
        _put_varint(body, timestamp_delta)
        _put_varint(body, offset_delta)
        _put_bytes(body, key)
        _put_bytes(body, value)
        _put_varint(body, len(headers))
        for name, content in headers:
            _put_bytes(body, name)
            _put_bytes(body, content)
        _put_varint(out, len(body))
        out += body
    return out


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """Read one zigzag varint of 32 or 64 bits: its value and the position behind it, or a position below 0."""
    value: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while position < end and shift < bits:
        byte = data[position]
        position += 1
        if shift > 27 and (bits == 32 or shift == 63):
            byte &= 0x8F if bits == 32 else 0x81  # the last byte's bits beyond the type
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    return 0, -1


_REST_IS_BROKEN = {
    -1: "its value does not fit",
    -2: "its number of headers is none or negative",
    -3: "a header's key is null, or its key or value does not fit",
    -4: "its size is more than its fields",
}


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _skip_rest(
    data: cython.pointer[cython.const[cython.uchar]], position: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Check value and headers up to the record's end and return that, or a key of _REST_IS_BROKEN."""
    size: cython.longlong
    headers: cython.longlong
    size, position = _varint(data, position, stop, 32)
    if position < 0 or size > stop - position:
        return -1
    if size > 0:
        position += size
    headers, position = _varint(data, position, stop, 32)
    if position < 0 or headers < 0:
        return -2
    while headers > 0:
        headers -= 1
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size < 0 or size > stop - position:
            return -3
        position += size
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size > stop - position:
            return -3
        if size > 0:
            position += size
    return position if position == stop else -4


@cython.cfunc
def _read_headers(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    headers: cython.longlong,
) -> tuple[list[tuple[bytes, bytes | None]], int]:
    """Copy `headers` headers that have been checked; the pairs and the position behind them."""
    size: cython.longlong
    found = []
    while headers > 0:
        headers -= 1
        size, position = _varint(data, position, end, 32)
        name = bytes(data[position : position + size])
        position += size
        size, position = _varint(data, position, end, 32)
        content = None
        if size >= 0:
            content = bytes(data[position : position + size])
            position += size
        found.append((name, content))
    return found, position


@cython.cfunc
@cython.inline
def _put_varint(out: bytearray, value: cython.longlong) -> cython.void:
    """Append one zigzag varint."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


@cython.cfunc
@cython.inline
def _put_bytes(out: bytearray, value: bytes | None) -> cython.void:
    """Append a size and that many bytes; -1 and nothing for None."""
    if value is None:
        out.append(1)
    else:
        _put_varint(out, len(value))
        out += value


def _check_range(start: int, end: int, size: int, count: int) -> None:
    assert 0 <= start <= end <= size, (start, end, size)  # compiled code reads within exactly these
    if count < 0:
        raise RecordError(ErrorCode.INVALID_RECORD, start, f"the batch says it holds {count} records")


def _broken(reason: str, position: int, index: int) -> RecordError:
    return RecordError(ErrorCode.INVALID_RECORD, position, reason, index)


def _left_over(position: int, end: int, count: int) -> RecordError:
    return RecordError(
        ErrorCode.INVALID_RECORD, position, f"{end - position} bytes left behind the batch's {count} records"
    )
