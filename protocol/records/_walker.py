# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The loops that run once per record of a v2 batch: `walk` checks them, `parse` reads them, `pack` writes them.

`gather` and `spread` do the same with columns of records. `batch` and `content` call this with the uncompressed records
of one batch; it knows no header, codec or checksum. The file is plain Python and runs as it is; where there was a C
compiler at installation, Cython has compiled this same file and Python imports that instead (docs/decisions has the
measurements). So its rules are those of both: annotations are C types, arithmetic stays inside 64 bits, no literal is
wider than 31 bits, no loop mentions a name of the module (compiled, that is a Python object: it cost 4 ns a record),
and no byte is read that was not compared with `end` before, since compiled code has no other guard.

A record, all numbers but the first byte zigzag varints, at most 5 bytes each (timestamp_delta: 10):

    size  attributes(1 byte, unused)  timestamp_delta  offset_delta  key_size  key  value_size  value
    headers_count  (key_size  key  value_size  value)*

`size` counts what follows it; key_size and value_size below 0 mean null; header keys are never null. As in Kafka,
bits of a varint beyond its type are dropped, and the batch's count must use up its bytes exactly. What is long and
touches no Python object runs without the interpreter's lock. The old formats have their loops in `_converter`.
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    import cython
except ImportError:  # Cython is needed to compile this file, not to run it
    from protocol.records import _no_cython as cython
if cython.compiled:
    from cython.cimports.cpython.buffer import PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.libc.string import memcpy

from protocol.errors import ErrorCode
from protocol.records._errors import RecordError
from protocol.records._numbers import big_endian, varint_bytes, write_varint
from protocol.records._record import Cells, HeaderTuple, Readable, Record, Run

COMPILED: bool = cython.compiled
_SMALLEST_INT64 = -(2**63)
_LARGEST_INT64 = 2**63 - 1
_UINT32 = 2**32 - 1


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
    none: cython.longlong = -1 - base_timestamp  # the delta of a record without timestamp
    highest: cython.longlong
    lowest: cython.longlong
    _check_range(start, end, len(buffer), count)
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    with cython.nogil:
        broken, index, position, highest, highest_at, lowest, keyless, disordered = _walk(data, start, end, count, none)
    if broken:
        raise _broken(_BROKEN[broken], position, index)
    if position != end:
        raise _left_over(position, end, count)
    earliest, latest = base_timestamp + lowest, base_timestamp + highest
    if earliest < _SMALLEST_INT64 or latest > _LARGEST_INT64:
        raise RecordError(ErrorCode.INVALID_TIMESTAMP, end, f"timestamps {earliest} to {latest} do not fit in 64 bits")
    return latest, highest_at, earliest, keyless, disordered


_BROKEN = (
    "",
    "its size is no number, too small, or more than the batch has left",
    "no timestamp_delta",
    "no offset_delta",
    "its key does not fit",
    "its value does not fit",
    "its number of headers is none or negative",
    "a header's key is null, or its key or value does not fit",
    "its size is more than its fields",
)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    none: cython.longlong,
) -> tuple[
    cython.int,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.longlong,
    cython.longlong,
    cython.longlong,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
]:
    """The loop of `walk`, a function of its own so that a C compiler sees no Python object in it.

    none: the delta of a record without timestamp. Returns: a slot of _BROKEN (0: nothing), index and position of that
    record or count and end; largest delta, its offset_delta, smallest delta; first without a key, first out of order.
    """
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t = position
    index: cython.Py_ssize_t
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    highest: cython.longlong = none
    highest_at: cython.longlong = -1
    lowest: cython.longlong = none
    keyless: cython.Py_ssize_t = -1
    disordered: cython.Py_ssize_t = -1
    broken: cython.int = 0
    for index in range(count):
        start = stop
        size, position = _varint(data, start, end, 32)
        if position < 0 or size < 6 or size > end - position:  # attributes and five varints of one byte
            return 1, index, start, highest, highest_at, lowest, keyless, disordered
        stop = position + size
        delta, position = _varint(data, position + 1, stop, 64)
        if position < 0:
            return 2, index, start, highest, highest_at, lowest, keyless, disordered
        offset_delta, position = _varint(data, position, stop, 32)
        if position < 0:
            return 3, index, start, highest, highest_at, lowest, keyless, disordered
        if delta > highest:
            highest = delta
            highest_at = offset_delta
        if delta != none and (delta < lowest or lowest == none):
            lowest = delta
        if offset_delta != index and disordered < 0:
            disordered = index
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size > stop - position:
            return 4, index, start, highest, highest_at, lowest, keyless, disordered
        if size >= 0:
            position += size
        elif keyless < 0:
            keyless = index
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size > stop - position:
            return 5, index, start, highest, highest_at, lowest, keyless, disordered
        if size > 0:
            position += size
        if position == stop - 1 and data[position] == 0:  # no headers, as nearly always
            continue
        broken = _headers_broken(data, position, stop)
        if broken:
            return broken, index, start, highest, highest_at, lowest, keyless, disordered
    return 0, count, stop, highest, highest_at, lowest, keyless, disordered


def refused(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: int,
    needs_key: bool,
    limits: tuple[int, int] | None,
    most: cython.Py_ssize_t,
) -> list[tuple[int, int | None]]:
    """Which of the records that `walk` has checked with the same arguments a topic does not take, at most so many.

    needs_key: whether a key may not be missing. limits: the first and the last timestamp allowed; records without one
    may have none. Returns: index and bad timestamp of each, None where the key is missing.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    position: cython.Py_ssize_t = start
    index: cython.Py_ssize_t
    size: cython.longlong
    delta: cython.longlong
    stop: cython.Py_ssize_t
    found: list[tuple[int, int | None]] = []
    walk(buffer, start, end, count, base_timestamp)
    earliest, latest = (_SMALLEST_INT64, _LARGEST_INT64) if limits is None else limits
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    for index in range(count):
        if len(found) >= most:
            break
        size, position = _varint(data, position, end, 32)
        stop = position + size
        delta, position = _varint(data, position + 1, stop, 64)
        size, position = _varint(data, position, stop, 32)
        size, position = _varint(data, position, stop, 32)
        timestamp = base_timestamp + delta
        if size < 0 and needs_key:
            found.append((index, None))
        elif timestamp != -1 and not earliest <= timestamp <= latest:
            found.append((index, timestamp))
        position = stop
    return found


def first_since(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    base_timestamp: int,
    timestamp: int,
    offset_delta: cython.longlong,
) -> tuple[int, int] | None:
    """The first record from an offset_delta on that is not older than a timestamp: its offset_delta, its timestamp.

    The other arguments, and what is raised, as for `walk`.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    least: cython.longlong = max(_SMALLEST_INT64, min(timestamp - base_timestamp, _LARGEST_INT64))
    position: cython.Py_ssize_t = start
    left: cython.Py_ssize_t = count
    size: cython.longlong
    delta: cython.longlong = 0
    found: cython.longlong = 0
    behind: cython.Py_ssize_t
    is_wanted: cython.bint = False
    walk(buffer, start, end, count, base_timestamp)
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    with cython.nogil:
        while left > 0 and not is_wanted:
            left -= 1
            size, position = _varint(data, position, end, 32)
            delta, behind = _varint(data, position + 1, end, 64)
            found, behind = _varint(data, behind, end, 32)
            position += size
            is_wanted = delta >= least and found >= offset_delta
    return (found, base_timestamp + delta) if is_wanted else None


def accept(
    buffer: memoryview, most_bytes: cython.Py_ssize_t, base_offset: cython.longlong, leader_epoch: cython.longlong
) -> HeaderTuple | None:
    """Check all of a producer's batch but its checksum, and stamp it as its leader does, if it is as most batches are.

    buffer: writable. Returns: the header as it came, once offset and epoch are written over its own. None, and nothing
    written, for a batch that is wrong in any way or asks for a closer look: more bytes than one v2 batch or than
    most_bytes, attributes other than TRANSACTIONAL, a base offset, offset deltas other than 0, 1, 2..., a
    max_timestamp that is not its records', a producer without sequence. The caller finds out which.
    """
    data: cython.pointer[cython.uchar]
    if not cython.compiled:
        return _accepted(buffer, len(buffer), most_bytes, base_offset, leader_epoch)
    got = cython.declare(cython.Py_buffer)  # 50 ns less than a typed view: much, for a batch of a single record
    PyObject_GetBuffer(buffer, cython.address(got), PyBUF_WRITABLE)
    try:
        data = cython.cast(cython.pointer[cython.uchar], got.buf)
        return _accepted(data, got.len, most_bytes, base_offset, leader_epoch)
    finally:
        PyBuffer_Release(cython.address(got))


@cython.cfunc
def _accepted(
    data: cython.pointer[cython.uchar],
    size: cython.Py_ssize_t,
    most_bytes: cython.Py_ssize_t,
    base_offset: cython.longlong,
    leader_epoch: cython.longlong,
) -> HeaderTuple | None:
    """`accept`, of `size` bytes at `data`."""
    if size < 61 or size > most_bytes:
        return None
    length: cython.longlong = big_endian(data, 8, 4)
    attributes: cython.longlong = big_endian(data, 21, 2)
    delta: cython.longlong = big_endian(data, 23, 4)
    base_timestamp: cython.longlong = big_endian(data, 27, 8)
    max_timestamp: cython.longlong = big_endian(data, 35, 8)
    producer_id: cython.longlong = big_endian(data, 43, 8)
    base_sequence: cython.longlong = big_endian(data, 53, 4)
    count: cython.longlong = big_endian(data, 57, 4)
    if (
        length != size - 12
        or data[16] != 2
        or (attributes != 0 and attributes != 0x10)
        or count < 1
        or delta != count - 1
        or big_endian(data, 0, 8) != 0
        or (producer_id >= 0 and base_sequence < 0)
        or base_timestamp < -1
        or max_timestamp < -1
        or base_timestamp >> 60 > 0  # differences stay within 64 bits
        or max_timestamp >> 60 > 0
    ):
        return None
    none: cython.longlong = -1 - base_timestamp
    highest: cython.longlong
    lowest: cython.longlong
    broken, _, position, highest, _, lowest, _, disordered = _walk(data, 61, size, count, none)
    if broken or position != size or disordered >= 0 or highest != max_timestamp - base_timestamp or lowest >> 60 < -1:
        return None
    header = (
        0,
        length,
        big_endian(data, 12, 4),
        2,
        big_endian(data, 17, 4) & _UINT32,
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        big_endian(data, 51, 2),
        base_sequence,
        count,
    )
    shift: cython.int
    for shift in range(8):
        data[7 - shift] = base_offset & 0xFF
        base_offset >>= 8
    for shift in range(4):
        data[15 - shift] = leader_epoch & 0xFF
        leader_epoch >>= 8
    return header


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


def gather(
    buffer: Readable,
    runs: Sequence[Run],
    row: cython.Py_ssize_t,
    numbers: tuple[memoryview, memoryview],
    key_ends: memoryview,
    keys: memoryview,
    value_ends: memoryview,
    values: memoryview,
    marks: memoryview,
) -> int:
    """Read the records of batches into columns, behind the `row` rows that are there: what Arrow calls an array.

    runs: one for each batch, all of them in `buffer`. numbers: offsets and timestamps, int64. key_ends, value_ends:
    int32; at r + 1 where row r ends in `keys` and in `values`. marks: a byte a row: 1 its key is null, 2 its value is
    null, 4 it has headers. All writable, with room for all their records, and for as many bytes as they have.
    Returns: how many of the records have headers. Raises: as `walk`; the rows behind `row` mean nothing then.
    """
    last, size = row, 0
    for start, end, count, _, base_timestamp, _ in runs:
        walk(buffer, start, end, count, base_timestamp)
        last += count
        size += end - start
    assert len(numbers[0]) >= last <= len(numbers[1]), (len(numbers[0]), len(numbers[1]), last)  # the only guard below
    assert len(key_ends) > last < len(value_ends), (len(key_ends), len(value_ends), last)
    assert len(marks) >= last, (len(marks), last)
    assert len(keys) - key_ends[row] >= size <= len(values) - value_ends[row], (key_ends[row], value_ends[row], size)
    if last == row:
        return 0
    return _gather(buffer, runs, row, numbers, key_ends, keys, value_ends, values, marks)


@cython.cfunc
def _gather(
    buffer: Readable,
    runs: Sequence[Run],
    row: cython.Py_ssize_t,
    numbers: tuple[memoryview, memoryview],
    key_ends: memoryview,
    keys: memoryview,
    value_ends: memoryview,
    values: memoryview,
    marks: memoryview,
) -> int:
    """The loop of `gather`, of records that have been checked."""
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    offsets: cython.longlong[::1] = numbers[0]
    times: cython.longlong[::1] = numbers[1]
    after_key: cython.int[::1] = key_ends
    after_value: cython.int[::1] = value_ends
    key_bytes: cython.uchar[::1] = keys
    value_bytes: cython.uchar[::1] = values
    flags: cython.uchar[::1] = marks
    position: cython.Py_ssize_t
    end: cython.Py_ssize_t
    _index: cython.Py_ssize_t
    count: cython.Py_ssize_t
    base_offset: cython.longlong
    base_time: cython.longlong
    fixed: cython.bint
    stop: cython.Py_ssize_t
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    key_end: cython.int = key_ends[row]
    value_end: cython.int = value_ends[row]
    mark: cython.uchar
    with_headers: cython.Py_ssize_t = 0

    data = cython.address(view[0]) if cython.compiled else buffer
    for first, behind, records, base, base_timestamp, append_time in runs:
        position, end, count, base_offset = first, behind, records, base
        fixed = append_time is not None  # the time of its append is every record's
        base_time = append_time if fixed else base_timestamp
        for _index in range(count):
            size, position = _varint(data, position, end, 32)
            stop = position + size
            delta, position = _varint(data, position + 1, end, 64)
            offset_delta, position = _varint(data, position, end, 32)
            offsets[row] = base_offset + offset_delta
            times[row] = base_time if fixed else base_time + delta
            size, position = _varint(data, position, end, 32)
            mark = 1 if size < 0 else 0
            if size > 0:
                _copy(data, position, size, key_bytes, key_end)
                key_end += size
                position += size
            size, position = _varint(data, position, end, 32)
            mark |= 2 if size < 0 else 0
            if size > 0:
                _copy(data, position, size, value_bytes, value_end)
                value_end += size
                position += size
            if data[position] != 0:
                mark |= 4
                with_headers += 1
            row += 1
            after_key[row] = key_end
            after_value[row] = value_end
            flags[row - 1] = mark
            position = stop
    return with_headers


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _copy(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    size: cython.longlong,
    target: cython.uchar[::1],
    at: cython.Py_ssize_t,
) -> cython.void:
    """So many bytes to a place that has room for them."""
    if cython.compiled:
        memcpy(cython.address(target[at]), data + position, size)
    else:
        target[at : at + size] = data[position : position + size]


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


def spread(
    room: cython.Py_ssize_t,
    timestamps: memoryview,
    keys: Cells,
    values: Cells,
    headers: memoryview,
    names: Cells,
    contents: Cells,
) -> tuple[bytearray, int]:
    """Write records from columns as the body of a batch, with offsets from 0 on: the inverse of `gather`.

    room: bytes of zero to put before it. timestamps: int64, one a record. headers: how many each record has, int64;
    names, contents: of all of them. Returns: room and body; the largest timestamp.
    Raises: OverflowError for a timestamp too far from the first for the format; AssertionError for columns that do not
    fit each other.
    """
    count = len(timestamps)
    assert 0 < count == len(keys[0]) == len(values[0]) == len(headers), (count, len(keys[0]), len(values[0]))
    assert len(names[0]) == len(contents[0]), (len(names[0]), len(contents[0]))
    size = room + 36 * count + 10 * len(names[0])  # what the numbers of a record take at most, and of a header
    for sizes, least, whole in (
        (keys[0], -1, len(keys[1])),
        (values[0], -1, len(values[1])),
        (headers, 0, len(names[0])),
        (names[0], 0, len(names[1])),
        (contents[0], -1, len(contents[1])),
    ):
        found = _sum(sizes, least)  # compiled code has no other guard
        assert found == whole, (found, whole)
        size += 0 if sizes is headers else whole
    out = bytearray(size)
    end, latest, far = _spread(out, room, timestamps, keys, values, headers, names, contents)
    if far >= 0:
        base = timestamps[0]
        raise OverflowError(f"timestamp {timestamps[far]} is more than 63 bits from base timestamp {base}")
    del out[end:]
    return out, latest


@cython.cfunc
def _sum(sizes: memoryview, least: cython.longlong) -> cython.longlong:
    """Of sizes, where -1 is none; below -1 if one is below `least`, or the sum is no size."""
    view: cython.const[cython.longlong][::1] = sizes  # type: ignore[valid-type]  # C syntax
    size: cython.longlong
    index: cython.Py_ssize_t
    found: cython.longlong = 0
    for index in range(len(view)):
        size = view[index]
        if size < least or size > 0x7FFFFFFF:
            return -2
        found += size if size > 0 else 0
    return found


@cython.cfunc
def _spread(
    out: bytearray,
    at: cython.Py_ssize_t,
    timestamps: memoryview,
    keys: Cells,
    values: Cells,
    headers: memoryview,
    names: Cells,
    contents: Cells,
) -> tuple[int, int, int]:
    """The loop of `spread`: where it ended, the largest timestamp, the record whose timestamp is too far or -1."""
    times: cython.const[cython.longlong][::1] = timestamps  # type: ignore[valid-type]  # C syntax
    many: cython.const[cython.longlong][::1] = headers  # type: ignore[valid-type]  # C syntax
    key_sizes: cython.const[cython.longlong][::1] = keys[0]  # type: ignore[valid-type]  # C syntax
    key_bytes: cython.const[cython.uchar][::1] = keys[1]  # type: ignore[valid-type]  # C syntax
    value_sizes: cython.const[cython.longlong][::1] = values[0]  # type: ignore[valid-type]  # C syntax
    value_bytes: cython.const[cython.uchar][::1] = values[1]  # type: ignore[valid-type]  # C syntax
    name_sizes: cython.const[cython.longlong][::1] = names[0]  # type: ignore[valid-type]  # C syntax
    name_bytes: cython.const[cython.uchar][::1] = names[1]  # type: ignore[valid-type]  # C syntax
    content_sizes: cython.const[cython.longlong][::1] = contents[0]  # type: ignore[valid-type]  # C syntax
    content_bytes: cython.const[cython.uchar][::1] = contents[1]  # type: ignore[valid-type]  # C syntax
    room: cython.uchar[::1] = out
    target: cython.pointer[cython.uchar]
    base: cython.longlong = times[0]
    latest: cython.longlong = base
    lowest: cython.longlong = _SMALLEST_INT64 + max(timestamps[0], 0)
    highest: cython.longlong = _LARGEST_INT64 + min(timestamps[0], 0)
    row: cython.Py_ssize_t
    header: cython.Py_ssize_t = 0
    behind: cython.Py_ssize_t = 0
    content: cython.Py_ssize_t
    size: cython.longlong
    key: cython.Py_ssize_t = 0  # where the next one is; so the others
    value: cython.Py_ssize_t = 0
    name_at: cython.Py_ssize_t = 0
    content_at: cython.Py_ssize_t = 0

    target = cython.address(room[0]) if cython.compiled else out
    for row in range(len(times)):
        if times[row] < lowest or times[row] > highest:
            return at, latest, row
        if times[row] > latest:
            latest = times[row]
        header, behind = behind, behind + many[row]
        size = 1 + varint_bytes(times[row] - base) + varint_bytes(row) + varint_bytes(many[row])
        size += _cell_bytes(key_sizes[row]) + _cell_bytes(value_sizes[row])
        for content in range(header, behind):
            size += _cell_bytes(name_sizes[content]) + _cell_bytes(content_sizes[content])
        at = write_varint(target, at, size)
        target[at] = 0
        at = write_varint(target, at + 1, times[row] - base)
        at = write_varint(target, at, row)
        at, key = _put_cell(target, at, key_sizes[row], key_bytes, key)
        at, value = _put_cell(target, at, value_sizes[row], value_bytes, value)
        at = write_varint(target, at, many[row])
        for content in range(header, behind):
            at, name_at = _put_cell(target, at, name_sizes[content], name_bytes, name_at)
            at, content_at = _put_cell(target, at, content_sizes[content], content_bytes, content_at)
    return at, latest, -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _cell_bytes(size: cython.longlong) -> cython.longlong:
    """How many bytes a key or value takes with its size, -1 being null."""
    return varint_bytes(size) + (size if size > 0 else 0)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_cell(
    target: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    size: cython.longlong,
    data: cython.const[cython.uchar][::1],  # type: ignore[valid-type]  # C syntax
    position: cython.Py_ssize_t,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """Write a size, -1 being null, and so many bytes from a position of the data: the positions behind both."""
    at = write_varint(target, at, size)
    if size > 0:
        if cython.compiled:
            memcpy(target + at, cython.address(data[position]), size)
        else:
            target[at : at + size] = data[position : position + size]
        return at + size, position + size
    return at, position


@cython.cfunc
@cython.nogil
@cython.inline
@cython.exceptval(check=False)
def _varint(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """Read one zigzag varint of 32 or 64 bits: its value and the position behind it, or a position below 0."""
    value: cython.ulonglong
    second: cython.ulonglong
    if position < end:
        value = data[position]
        if value < 0x80:  # nearly all are one or two bytes long
            return (value >> 1) ^ -(value & 1), position + 1
        if position + 1 < end:
            second = data[position + 1]
            if second < 0x80:
                value = (value & 0x7F) | (second << 7)
                return (value >> 1) ^ -(value & 1), position + 2
    return _long_varint(data, position, end, bits)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _long_varint(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """`_varint`, of any length."""
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _headers_broken(
    data: cython.pointer[cython.const[cython.uchar]], position: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    """Check headers up to the record's end: a slot of _BROKEN, 0 if they are well-formed."""
    size: cython.longlong
    headers: cython.longlong
    headers, position = _varint(data, position, stop, 32)
    if position < 0 or headers < 0:
        return 6
    while headers > 0:
        headers -= 1
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size < 0 or size > stop - position:
            return 7
        position += size
        size, position = _varint(data, position, stop, 32)
        if position < 0 or size > stop - position:
            return 7
        if size > 0:
            position += size
    return 0 if position == stop else 8


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
