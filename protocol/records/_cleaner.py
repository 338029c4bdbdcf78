# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The loops of compaction that run once per record: which offset a key has last, and which records stay.

`cleaning` calls this with uncompressed content that `_walker.walk` or `_converter.walk_messages` has checked; it knows
no header, codec or checksum. Compiled like `_walker`, whose head has the rules. The loops touch no Python object, and
run without the interpreter's lock.

The table of keys is one run of 64-bit numbers, three to a slot: 128 bits of a key's hash, and its latest offset plus
one, 0 where the slot is free; a key goes to the first free slot at or behind its own. The hash is SipHash-2-4 with 128
bits, under a secret: with a hash that anybody can compute, two keys might be made to collide, and one would be lost.
Interpreted, BLAKE2b stands in for it; a table never leaves the process. Source: Aumasson and Bernstein, "SipHash".
"""

from __future__ import annotations

from hashlib import blake2b

try:
    import cython
except ImportError:  # Cython is needed to compile this file, not to run it
    from protocol.records import _no_cython as cython
if cython.compiled:
    from cython.cimports.libc.string import memcpy

from protocol.records._numbers import big_endian, checked_varint, varint_bytes, write_varint
from protocol.records._record import Readable

COMPILED: bool = cython.compiled
_SMALLEST_INT64 = -(2**63)


def put_keys(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    *,
    magic: cython.int,
    base_offset: cython.longlong,
    from_offset: cython.longlong,
    table: memoryview,
    secret: tuple[int, int, int, int],
    used: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
) -> tuple[int, int]:
    """Note the offsets of the keys of `count` checked records, those at or above from_offset.

    base_offset: what theirs count from. table: of numbers, as drawn above. used, most: slots taken, and how many may
    be. Returns: slots taken, and the offset of the first record whose key found no room, -1 if all did.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    slots_view: cython.ulonglong[::1] = table
    data: cython.pointer[cython.const[cython.uchar]]
    slots: cython.pointer[cython.ulonglong]
    size: cython.Py_ssize_t = len(table) // 3
    s0: cython.ulonglong = secret[0]
    s1: cython.ulonglong = secret[1]
    s2: cython.ulonglong = secret[2]
    s3: cython.ulonglong = secret[3]
    assert 0 <= start <= end <= len(buffer), (start, end, len(buffer))  # compiled code reads within exactly these
    assert used <= most < size, (used, most, size)  # a search ends at a free slot
    if not count:
        return used, -1
    if cython.compiled:
        data, slots = cython.address(view[0]), cython.address(slots_view[0])
    else:
        data, slots = buffer, slots_view
    with cython.nogil:
        used, refused = _put_keys(
            data, start, count, magic, base_offset, from_offset, slots, size, s0, s1, s2, s3, used, most
        )
    return used, refused


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_keys(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    magic: cython.int,
    base_offset: cython.longlong,
    from_offset: cython.longlong,
    slots: cython.pointer[cython.ulonglong],
    size: cython.Py_ssize_t,
    s0: cython.ulonglong,
    s1: cython.ulonglong,
    s2: cython.ulonglong,
    s3: cython.ulonglong,
    used: cython.Py_ssize_t,
    most: cython.Py_ssize_t,
) -> tuple[cython.Py_ssize_t, cython.longlong]:
    """The loop of `put_keys`."""
    slot: cython.Py_ssize_t
    offset: cython.longlong
    key: cython.Py_ssize_t
    key_size: cython.longlong
    _has_value: cython.bint
    _delta: cython.longlong
    stop: cython.Py_ssize_t
    first: cython.ulonglong
    second: cython.ulonglong
    for _ in range(count):
        offset, key, key_size, _has_value, _delta, stop = _record_at(data, position, magic, base_offset)
        position = stop
        if key_size < 0 or offset < from_offset:
            continue
        first, second = _hash(data, key, key_size, s0, s1, s2, s3)
        slot = _slot_of(slots, size, first, second)
        if slots[slot + 2] == 0:
            if used >= most:
                return used, offset
            used += 1
            slots[slot] = first
            slots[slot + 1] = second
        slots[slot + 2] = offset + 1
    return used, -1


def keep_records(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    *,
    magic: cython.int,
    base_offset: cython.longlong,
    latest_offset: cython.longlong,
    drop_tombstones: cython.bint,
    table: memoryview,
    secret: tuple[int, int, int, int],
    out: bytearray,
) -> tuple[int, int, int, int, int]:
    """Copy those of `count` checked records that stay: behind latest_offset, or their keys' last ones.

    base_offset: what theirs count from. drop_tombstones: whether records without a value go as well. out: has room for
    all of them. Returns: (bytes written, records kept, tombstones among them, largest timestamp_delta or timestamp of
    those, last offset of those); the last two are -2^63 and -1 if none is.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    slots_view: cython.ulonglong[::1] = table
    room: cython.uchar[::1] = out
    data: cython.pointer[cython.const[cython.uchar]]
    slots: cython.pointer[cython.ulonglong]
    target: cython.pointer[cython.uchar]
    size: cython.Py_ssize_t = len(table) // 3
    s0: cython.ulonglong = secret[0]
    s1: cython.ulonglong = secret[1]
    s2: cython.ulonglong = secret[2]
    s3: cython.ulonglong = secret[3]
    least: cython.longlong = _SMALLEST_INT64
    assert 0 <= start <= end <= len(buffer), (start, end, len(buffer))  # compiled code reads within exactly these
    assert end - start <= len(out), (start, end, len(out))
    if not count:
        return 0, 0, 0, least, -1
    if cython.compiled:
        data, slots, target = cython.address(view[0]), cython.address(slots_view[0]), cython.address(room[0])
    else:
        data, slots, target = buffer, slots_view, out
    with cython.nogil:
        at, kept, tombstones, highest, last = _keep_records(
            data,
            start,
            count,
            magic,
            base_offset,
            latest_offset,
            drop_tombstones,
            slots,
            size,
            s0,
            s1,
            s2,
            s3,
            target,
            least,
        )
    return at, kept, tombstones, highest, last


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _keep_records(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    magic: cython.int,
    base_offset: cython.longlong,
    latest_offset: cython.longlong,
    drop_tombstones: cython.bint,
    slots: cython.pointer[cython.ulonglong],
    size: cython.Py_ssize_t,
    s0: cython.ulonglong,
    s1: cython.ulonglong,
    s2: cython.ulonglong,
    s3: cython.ulonglong,
    target: cython.pointer[cython.uchar],
    highest: cython.longlong,
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t, cython.longlong, cython.longlong]:
    """The loop of `keep_records`. highest: less than any timestamp."""
    offset: cython.longlong
    key: cython.Py_ssize_t
    key_size: cython.longlong
    has_value: cython.bint
    delta: cython.longlong
    stop: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    first: cython.ulonglong
    second: cython.ulonglong
    known: cython.longlong
    at: cython.Py_ssize_t = 0
    kept: cython.Py_ssize_t = 0
    tombstones: cython.Py_ssize_t = 0
    last: cython.longlong = -1
    start: cython.Py_ssize_t
    for _ in range(count):
        start = position
        offset, key, key_size, has_value, delta, stop = _record_at(data, position, magic, base_offset)
        position = stop
        if offset <= latest_offset:
            if key_size < 0 or (drop_tombstones and not has_value):
                continue
            first, second = _hash(data, key, key_size, s0, s1, s2, s3)
            slot = _slot_of(slots, size, first, second)
            known = slots[slot + 2]  # the offset plus one, 0 if the key has none
            if offset < known - 1:
                continue
        if cython.compiled:
            memcpy(target + at, data + start, stop - start)
        else:
            target[at : at + stop - start] = data[start:stop]
        at += stop - start
        kept += 1
        last = offset
        if delta > highest:
            highest = delta
        if not has_value:
            tombstones += 1
    return at, kept, tombstones, highest, last


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _record_at(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    magic: cython.int,
    base_offset: cython.longlong,
) -> tuple[cython.longlong, cython.Py_ssize_t, cython.longlong, cython.bint, cython.longlong, cython.Py_ssize_t]:
    """The record or old message at `position`: offset, where its key is, the key's size (below 0: null), whether it
    has a value, timestamp_delta (of a message, its timestamp), and where it ends.
    """
    size: cython.longlong
    delta: cython.longlong
    offset_delta: cython.longlong
    key_size: cython.longlong
    stop: cython.Py_ssize_t
    value: cython.Py_ssize_t
    if magic < 2:
        stop = position + 12 + big_endian(data, position + 8, 4)
        offset_delta = big_endian(data, position, 8)
        delta = big_endian(data, position + 18, 8) if magic else -1
        position += 22 + 8 * magic
        key_size = big_endian(data, position - 4, 4)
        value = position + (key_size if key_size > 0 else 0)
        size = big_endian(data, value, 4)
        return base_offset + offset_delta, position, key_size, size >= 0, delta, stop
    size, position = checked_varint(data, position, 32)
    stop = position + size
    delta, position = checked_varint(data, position + 1, 64)
    offset_delta, position = checked_varint(data, position, 32)
    key_size, position = checked_varint(data, position, 32)
    value = position + (key_size if key_size > 0 else 0)
    size, value = checked_varint(data, value, 32)
    return base_offset + offset_delta, position, key_size, size >= 0, delta, stop


def shifted(
    buffer: Readable,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    shift: cython.longlong,
) -> bytearray:
    """Checked records of a v2 batch with `shift` added to every timestamp_delta: for another base timestamp.

    Sums have to stay within 64 bits.
    """
    view: cython.const[cython.uchar][::1] = buffer  # type: ignore[valid-type]  # C syntax
    data: cython.pointer[cython.const[cython.uchar]]
    target: cython.pointer[cython.uchar]
    assert 0 <= start <= end <= len(buffer), (start, end, len(buffer))
    out = bytearray(end - start + 14 * count)  # a delta grows from one byte to ten at most, a size to five
    if not count:
        return out
    room: cython.uchar[::1] = out
    if cython.compiled:
        data, target = cython.address(view[0]), cython.address(room[0])
    else:
        data, target = buffer, out
    with cython.nogil:
        at = _shifted(data, start, count, shift, target)
    assert at <= len(out), (at, len(out))
    del room  # while it looks at the bytes they cannot be cut
    return out[:at]


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _shifted(
    data: cython.pointer[cython.const[cython.uchar]],
    position: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    shift: cython.longlong,
    target: cython.pointer[cython.uchar],
) -> cython.Py_ssize_t:
    """The loop of `shifted`; where it ended in its target."""
    size: cython.longlong
    delta: cython.longlong
    stop: cython.Py_ssize_t
    behind: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    for _ in range(count):
        size, position = checked_varint(data, position, 32)
        stop = position + size
        delta, behind = checked_varint(data, position + 1, 64)
        delta += shift
        size += varint_bytes(delta) - (behind - position - 1)
        at = write_varint(target, at, size)
        target[at] = data[position]
        at = write_varint(target, at + 1, delta)
        if cython.compiled:
            memcpy(target + at, data + behind, stop - behind)
        else:
            target[at : at + stop - behind] = data[behind:stop]
        at += stop - behind
        position = stop
    return at


# ---- the table


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _slot_of(
    slots: cython.pointer[cython.ulonglong], size: cython.Py_ssize_t, first: cython.ulonglong, second: cython.ulonglong
) -> cython.Py_ssize_t:
    """Where the three numbers of a key are, or would go. size: how many slots there are, at least one of them free."""
    slot: cython.Py_ssize_t = first % size * 3
    while slots[slot + 2] != 0 and (slots[slot] != first or slots[slot + 1] != second):
        slot += 3
        if slot == size * 3:
            slot = 0
    return slot


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(
    data: cython.pointer[cython.const[cython.uchar]],
    at: cython.Py_ssize_t,
    size: cython.longlong,
    v0: cython.ulonglong,
    v1: cython.ulonglong,
    v2: cython.ulonglong,
    v3: cython.ulonglong,
) -> tuple[cython.ulonglong, cython.ulonglong]:
    """128 bits of the `size` bytes at `at`. v0 to v3: the state that SipHash begins with under its secret."""
    if not cython.compiled:
        digest = blake2b(bytes(data[at : at + size]), digest_size=16, key=v0.to_bytes(8, "big")).digest()
        return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big")
    word: cython.ulonglong
    left: cython.longlong = size
    first: cython.ulonglong
    shift: cython.int = 0
    while left >= 8:
        word = _little_endian64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
        left -= 8
    word = size
    word <<= 56
    while left > 0:
        first = data[at]
        word |= first << shift
        shift += 8
        at += 1
        left -= 1
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= 0xEE
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _round(
    v0: cython.ulonglong, v1: cython.ulonglong, v2: cython.ulonglong, v3: cython.ulonglong
) -> tuple[cython.ulonglong, cython.ulonglong, cython.ulonglong, cython.ulonglong]:
    """One round of SipHash; compiled only, since it counts on numbers of 64 bits."""
    v0 += v1
    v1 = (v1 << 13 | v1 >> 51) ^ v0
    v0 = v0 << 32 | v0 >> 32
    v2 += v3
    v3 = (v3 << 16 | v3 >> 48) ^ v2
    v0 += v3
    v3 = (v3 << 21 | v3 >> 43) ^ v0
    v2 += v1
    v1 = (v1 << 17 | v1 >> 47) ^ v2
    v2 = v2 << 32 | v2 >> 32
    return v0, v1, v2, v3


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _little_endian64(data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t) -> cython.ulonglong:
    """The eight bytes at `at` as an unsigned number."""
    value: cython.ulonglong = data[at + 7]
    i: cython.int
    for i in range(1, 8):
        value = value << 8 | data[at + 7 - i]
    return value
