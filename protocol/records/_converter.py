# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The loops that run once per record where a record changes its format, or is of an old one; compiled like `_walker`.

`walk_messages` checks messages of formats v0 and v1 (drawn in `legacy`); `to_records` makes records of a v2 batch of
them, `to_messages` the reverse, `renumbered` other messages. `convert` calls this with the uncompressed content of one
wrapper, one batch or one set without wrappers; it knows no codec and no v2 header. The rules are those of `_walker`,
whose head has them. The loops touch no Python object, and run without the interpreter's lock.
"""

from __future__ import annotations

import zlib

try:
    import cython
except ImportError:  # Cython is needed to compile this file, not to run it
    from protocol.records import _no_cython as cython
if cython.compiled:
    from cython.cimports._folding import fold
    from cython.cimports.libc.string import memcpy

from protocol.errors import ErrorCode
from protocol.records._crc32 import CRC32_TABLE
from protocol.records._errors import RecordError
from protocol.records._numbers import big_endian, checked_varint, varint_bytes, write_varint
from protocol.records._record import Readable

COMPILED: bool = cython.compiled


def walk_messages(
    buffer: Readable, start: cython.Py_ssize_t, end: cython.Py_ssize_t, magic: cython.int
) -> tuple[int, int, int, int, int, int, int]:
    """Check the messages of one format in [start, end), up to a wrapper, another format, or one that the end cuts off.

    Returns: (count, position behind the last, max_timestamp, min_timestamp, first without a key, first that says
    LogAppendTime, offset of the last); -1 where there is none. Timestamps leave out messages without one.
    Raises: RecordError, CORRUPT_MESSAGE for a size, magic or checksum that cannot be, else INVALID_RECORD.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    table_view: cython.const[cython.uint][::1] = CRC32_TABLE  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    table: cython.pointer[cython.const[cython.uint]]
    _check_range(start, end, len(buffer))
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
        table = cython.address(table_view[0])
    else:
        data, table = buffer, table_view
    with cython.nogil:
        broken, count, stop, highest, lowest, keyless, stamped, last = _walk_messages(data, table, start, end, magic)
    if broken:
        code = ErrorCode.CORRUPT_MESSAGE if broken < 4 else ErrorCode.INVALID_RECORD
        raise RecordError(code, stop, _BROKEN[broken], count)
    return count, stop, highest, lowest, keyless, stamped, last


_BROKEN = (
    "",
    "a size less than any message has",
    "its magic is not 0, 1 or 2",
    "its checksum does not hold",
    "its key does not fit",
    "its value does not fill the rest of it",
)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk_messages(
    data: cython.pointer[cython.const[cython.uchar]],
    table: cython.pointer[cython.const[cython.uint]],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    magic: cython.int,
) -> tuple[
    cython.int,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.longlong,
    cython.longlong,
    cython.Py_ssize_t,
    cython.Py_ssize_t,
    cython.longlong,
]:
    """The loop of `walk_messages`. Returns: a slot of _BROKEN (0: nothing), and what that returns."""
    stop: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    keyless: cython.Py_ssize_t = -1
    stamped: cython.Py_ssize_t = -1
    timestamp: cython.longlong
    highest: cython.longlong = -1
    lowest: cython.longlong = -1
    last: cython.longlong = -1
    broken: cython.int = 0
    while end - start >= 12:
        broken, stop = _whole_message(data, table, start, end, magic)
        if broken or not stop:
            break
        broken = _misfit(data, start + 18 + 8 * magic, stop)
        if broken:
            break
        if magic:
            timestamp = big_endian(data, start + 18, 8)
            if timestamp > highest:
                highest = timestamp
            if timestamp != -1 and (timestamp < lowest or lowest == -1):
                lowest = timestamp
            if data[start + 17] & 8 and stamped < 0:
                stamped = count
        if keyless < 0 and data[start + 18 + 8 * magic] > 0x7F:
            keyless = count
        last = big_endian(data, start, 8)
        count += 1
        start = stop
    return broken, count, start, highest, lowest, keyless, stamped, last


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _whole_message(
    data: cython.pointer[cython.const[cython.uchar]],
    table: cython.pointer[cython.const[cython.uint]],
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    magic: cython.int,
) -> tuple[cython.int, cython.Py_ssize_t]:
    """A slot of _BROKEN for the message at `start`, and where it ends; 0 if it is cut off, a wrapper, or another's."""
    size: cython.longlong = big_endian(data, start + 8, 4)
    crc: cython.longlong
    if size < 14:
        return 1, 0
    if end - start < 17 or data[start + 16] != magic:
        return 2 if end - start >= 17 and data[start + 16] > 2 else 0, 0
    if size > end - start - 12:
        return 0, 0
    if size < 14 + 8 * magic:
        return 1, 0
    crc = big_endian(data, start + 12, 4) ^ _crc32(data, table, start + 16, start + 12 + size)
    if crc & 0xFFFF or crc >> 16 & 0xFFFF:  # what is above these 32 bits is the sign
        return 3, 0
    return 0, 0 if data[start + 17] & 7 else start + 12 + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _misfit(
    data: cython.pointer[cython.const[cython.uchar]], position: cython.Py_ssize_t, stop: cython.Py_ssize_t
) -> cython.int:
    """A slot of _BROKEN unless a key and a value, each behind its size, are all there is in [position, stop)."""
    size: cython.longlong = big_endian(data, position, 4)
    position += 4
    if size > stop - position - 4:
        return 4
    if size > 0:
        position += size
    size = big_endian(data, position, 4)
    position += 4
    return 0 if position + (size if size > 0 else 0) == stop else 5


def measure(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    least_delta: cython.longlong,
) -> tuple[int, int, int, int, int, int]:
    """What of the records of a batch that `walk` has checked becomes messages: those of offset_delta >= least_delta.

    Returns: (their position, their count, bytes of their keys and values, offset_delta of the first, of the last,
    and the largest timestamp_delta). Positions, not offsets, tell what comes first; 0 where there is none of them.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    _check_range(start, end, len(buffer))
    if cython.compiled:
        data = cython.address(view[0]) if end > start else cython.NULL
    else:
        data = buffer
    with cython.nogil:
        position, kept, held, first, last, highest = _measure(data, start, end, count, least_delta)
    return position, kept, held, first, last, highest


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    least_delta: cython.longlong,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.longlong, cython.longlong, cython.longlong]:
    """The loop of `measure`."""
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    stop: cython.Py_ssize_t
    start: cython.Py_ssize_t = position
    kept: cython.Py_ssize_t = 0
    held: cython.Py_ssize_t = 0
    first: cython.longlong = 0
    last: cython.longlong = 0
    highest: cython.longlong = 0
    for _ in range(count):
        size, position = checked_varint(data, position, 32)
        stop = position + size
        delta, position = checked_varint(data, position + 1, 64)
        offset_delta, position = checked_varint(data, position, 32)
        if kept == 0:
            if offset_delta < least_delta:
                start = position = stop
                continue
            first = offset_delta
            highest = delta
        if delta > highest:
            highest = delta
        last = offset_delta
        kept += 1
        size, position = checked_varint(data, position, 32)
        if size > 0:
            held += size
            position += size
        size, position = checked_varint(data, position, 32)
        if size > 0:
            held += size
        position = stop
    return start, kept, held, first, last, highest


def to_messages(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    *,
    magic: cython.int,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: cython.longlong,
    out: bytearray,
) -> None:
    """Write `count` records of a batch, which `walk` has checked, as messages of format `magic`, without headers.

    base_offset: what offset deltas count from in the messages. append_time: ms, given to all of them, and they say
    LogAppendTime; -1 for each record's own time. out: has room for exactly those messages (`measure`).
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    room: cython.uchar[::1] = out
    table_view: cython.const[cython.uint][::1] = CRC32_TABLE  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    target: cython.pointer[cython.uchar]
    table: cython.pointer[cython.const[cython.uint]]
    _check_range(start, end, len(buffer))
    if not count:
        return
    if cython.compiled:
        data, target, table = cython.address(view[0]), cython.address(room[0]), cython.address(table_view[0])
    else:
        data, target, table = buffer, out, table_view
    with cython.nogil:
        at = _to_messages(data, target, table, start, end, count, magic, base_offset, base_timestamp, append_time)
    assert at == len(out), (at, len(out))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _to_messages(
    data: cython.pointer[cython.const[cython.uchar]],
    target: cython.pointer[cython.uchar],
    table: cython.pointer[cython.const[cython.uint]],
    position: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    magic: cython.int,
    base_offset: cython.longlong,
    base_timestamp: cython.longlong,
    append_time: cython.longlong,
) -> cython.Py_ssize_t:
    """The loop of `to_messages`; where it ended in its target."""
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    key: cython.Py_ssize_t
    key_size: cython.longlong
    stop: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    for _ in range(count):
        size, position = checked_varint(data, position, 32)
        stop = position + size
        delta, position = checked_varint(data, position + 1, 64)
        offset_delta, position = checked_varint(data, position, 32)
        key_size, key = checked_varint(data, position, 32)
        position = key + key_size if key_size > 0 else key
        size, position = checked_varint(data, position, 32)
        offset_delta += base_offset
        delta += base_timestamp
        at = _put_message(
            target, at, table, magic, offset_delta, delta, append_time, data, key, key_size, position, size
        )
        position = stop
    return at


def renumbered(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    *,
    magic: cython.int,
    to_magic: cython.int,
    base_offset: cython.longlong,
    in_sequence: cython.bint,
    append_time: cython.longlong,
    out: bytearray,
) -> None:
    """Write `count` messages that `walk_messages` has checked in another of the old formats, or the same.

    base_offset: added to each one's offset, or, in_sequence, to its place among them. append_time, out: as of
    `to_messages`; a message of v0 has no time of its own (-1).
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    room: cython.uchar[::1] = out
    table_view: cython.const[cython.uint][::1] = CRC32_TABLE  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    target: cython.pointer[cython.uchar]
    table: cython.pointer[cython.const[cython.uint]]
    _check_range(start, end, len(buffer))
    if not count:
        return
    if cython.compiled:
        data, target, table = cython.address(view[0]), cython.address(room[0]), cython.address(table_view[0])
    else:
        data, target, table = buffer, out, table_view
    with cython.nogil:
        at = _renumbered(data, target, table, start, count, magic, to_magic, base_offset, in_sequence, append_time)
    assert at == len(out), (at, len(out))


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _renumbered(
    data: cython.pointer[cython.const[cython.uchar]],
    target: cython.pointer[cython.uchar],
    table: cython.pointer[cython.const[cython.uint]],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    magic: cython.int,
    to_magic: cython.int,
    base_offset: cython.longlong,
    in_sequence: cython.bint,
    append_time: cython.longlong,
) -> cython.Py_ssize_t:
    """The loop of `renumbered`; where it ended in its target."""
    index: cython.Py_ssize_t
    key: cython.Py_ssize_t
    key_size: cython.longlong
    value: cython.Py_ssize_t
    size: cython.longlong
    offset: cython.longlong
    timestamp: cython.longlong
    at: cython.Py_ssize_t = 0
    for index in range(count):
        offset = base_offset + (index if in_sequence else big_endian(data, start, 8))
        timestamp = big_endian(data, start + 18, 8) if magic else -1
        key = start + 22 + 8 * magic
        key_size = big_endian(data, key - 4, 4)
        value = key + 4 + (key_size if key_size > 0 else 0)
        size = big_endian(data, value - 4, 4)
        at = _put_message(target, at, table, to_magic, offset, timestamp, append_time, data, key, key_size, value, size)
        start += 12 + big_endian(data, start + 8, 4)
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_message(
    target: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    table: cython.pointer[cython.const[cython.uint]],
    magic: cython.int,
    offset: cython.longlong,
    timestamp: cython.longlong,
    append_time: cython.longlong,
    data: cython.pointer[cython.const[cython.uchar]],
    key: cython.Py_ssize_t,
    key_size: cython.longlong,
    value: cython.Py_ssize_t,
    value_size: cython.longlong,
) -> cython.Py_ssize_t:
    """Write one message at `at`; the position behind it. A size below 0 is null; append_time: as of `to_messages`."""
    start: cython.Py_ssize_t = at
    _put_number(target, at, 8, offset)
    target[at + 16] = magic
    target[at + 17] = 8 if magic > 0 and append_time >= 0 else 0
    at += 18
    if magic:
        _put_number(target, at, 8, timestamp if append_time < 0 else append_time)
        at += 8
    at = _put_sized(target, at, data, key, key_size)
    at = _put_sized(target, at, data, value, value_size)
    _put_number(target, start + 8, 4, at - start - 12)
    _put_number(target, start + 12, 4, _crc32(target, table, start + 16, at))
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_number(
    target: cython.pointer[cython.uchar], at: cython.Py_ssize_t, size: cython.int, value: cython.longlong
) -> cython.void:
    """Write the lowest `size` bytes of a number, the highest first."""
    while size > 0:
        size -= 1
        target[at + size] = value & 0xFF
        value >>= 8


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_sized(
    target: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    size: cython.longlong,
) -> cython.Py_ssize_t:
    """Write four bytes of size and that many bytes; -1 and nothing for a size below 0. The position behind them."""
    if size < 0:
        _put_number(target, at, 4, -1)
        return at + 4
    _put_number(target, at, 4, size)
    return _copied(target, at + 4, data, position, size)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copied(
    target: cython.pointer[cython.uchar],
    at: cython.Py_ssize_t,
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    size: cython.longlong,
) -> cython.Py_ssize_t:
    """Copy bytes; the position behind them."""
    if cython.compiled:
        memcpy(target + at, data + position, size)
    else:
        target[at : at + size] = data[position : position + size]
    return at + size


def to_records(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    *,
    magic: cython.int,
    base_timestamp: cython.longlong,
    with_times: cython.bint,
) -> bytearray:
    """The records of a batch: `count` messages that `walk_messages` has checked, numbered 0, 1, 2...

    with_times: false gives all of them base_timestamp. Timestamps are -1 or more, so that no difference leaves 64 bits.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    target: cython.pointer[cython.uchar]
    _check_range(start, end, len(buffer))
    out = bytearray(end - start + 16 * count)  # a record has up to 31 bytes beside key and value, a message 26 or 34
    if not count:
        return out
    room: cython.uchar[::1] = out
    if cython.compiled:
        data, target = cython.address(view[0]), cython.address(room[0])
    else:
        data, target = buffer, out
    with cython.nogil:
        at = _to_records(data, target, start, count, magic, base_timestamp, with_times)
    assert at <= len(out), (at, len(out))
    del room  # while it looks at the bytes they cannot be cut
    del out[at:]  # in place: of tens of megabytes there is no second copy
    return out


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _to_records(
    data: cython.pointer[cython.const[cython.uchar]],
    target: cython.pointer[cython.uchar],
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    magic: cython.int,
    base_timestamp: cython.longlong,
    with_times: cython.bint,
) -> cython.Py_ssize_t:
    """The loop of `to_records`; where it ended in its target."""
    index: cython.Py_ssize_t
    key: cython.Py_ssize_t
    key_size: cython.longlong
    value: cython.Py_ssize_t
    value_size: cython.longlong
    delta: cython.longlong = 0
    size: cython.longlong
    at: cython.Py_ssize_t = 0
    for index in range(count):
        if with_times:
            delta = (big_endian(data, start + 18, 8) if magic else -1) - base_timestamp
        key = start + 22 + 8 * magic
        key_size = big_endian(data, key - 4, 4)
        if key_size < 0:
            key_size = -1
        value = key + 4 + (key_size if key_size > 0 else 0)
        value_size = big_endian(data, value - 4, 4)
        if value_size < 0:
            value_size = -1
        size = 2 + varint_bytes(delta) + varint_bytes(index) + varint_bytes(key_size) + varint_bytes(value_size)
        if key_size > 0:
            size += key_size
        if value_size > 0:
            size += value_size
        at = write_varint(target, at, size)
        target[at] = 0
        at = write_varint(target, at + 1, delta)
        at = write_varint(target, at, index)
        at = write_varint(target, at, key_size)
        if key_size > 0:
            at = _copied(target, at, data, key, key_size)
        at = write_varint(target, at, value_size)
        if value_size > 0:
            at = _copied(target, at, data, value, value_size)
        target[at] = 0
        at += 1
        start += 12 + big_endian(data, start + 8, 4)
    return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _crc32(
    data: cython.pointer[cython.const[cython.uchar]],
    table: cython.pointer[cython.const[cython.uint]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.uint:
    """CRC-32 of [at, end). zlib's needs the interpreter's lock and a view for each message."""
    if not cython.compiled:
        return zlib.crc32(memoryview(data)[at:end])
    left = cython.declare(cython.uchar[16])
    crc: cython.uint = 0
    crc = ~crc
    folded: cython.Py_ssize_t = fold(data + at, end - at, crc, left)
    if folded:
        crc = _by_tables(left, table, 0, 16, 0)
    return ~_by_tables(data, table, at + folded, end, crc)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _by_tables(
    data: cython.pointer[cython.const[cython.uchar]],
    table: cython.pointer[cython.const[cython.uint]],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    crc: cython.uint,
) -> cython.uint:
    """The register of CRC-32 behind [at, end), sixteen bytes at a time; compiled only. crc: the register before."""
    second: cython.uint
    third: cython.uint
    fourth: cython.uint
    while end - at >= 16:
        crc ^= _little_endian(data, at)
        second = _little_endian(data, at + 4)
        third = _little_endian(data, at + 8)
        fourth = _little_endian(data, at + 12)
        crc = (
            (table[3840 + (crc & 0xFF)] ^ table[3584 + (crc >> 8 & 0xFF)])
            ^ (table[3328 + (crc >> 16 & 0xFF)] ^ table[3072 + (crc >> 24)])
            ^ (table[2816 + (second & 0xFF)] ^ table[2560 + (second >> 8 & 0xFF)])
            ^ (table[2304 + (second >> 16 & 0xFF)] ^ table[2048 + (second >> 24)])
            ^ (table[1792 + (third & 0xFF)] ^ table[1536 + (third >> 8 & 0xFF)])
            ^ (table[1280 + (third >> 16 & 0xFF)] ^ table[1024 + (third >> 24)])
            ^ (table[768 + (fourth & 0xFF)] ^ table[512 + (fourth >> 8 & 0xFF)])
            ^ (table[256 + (fourth >> 16 & 0xFF)] ^ table[fourth >> 24])
        )
        at += 16
    while at < end:
        crc = table[(crc ^ data[at]) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _little_endian(data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.uint:
    """The four bytes at `at` as an unsigned number."""
    low: cython.uint = data[at] | data[at + 1] << 8 | data[at + 2] << 16
    high: cython.uint = data[at + 3]
    return low | high << 24


def _check_range(start: int, end: int, size: int) -> None:
    assert 0 <= start <= end <= size, (start, end, size)  # compiled code reads within exactly these
