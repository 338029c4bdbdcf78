"""Numbers as records have them: what all loops over records share, written once.

`_walker`, `_converter` and `_cleaner` import these where they run interpreted. The build puts the text of this file in
the place of that import before it compiles one of them (hatch_build.py): a C compiler takes a function of ten
instructions into its loop only if it sees it there, and a `.pxd` would be the same functions a second time, in another
language. The rules are those of `_walker`, whose head has them.
"""

from __future__ import annotations

try:
    import cython
except ImportError:  # Cython is needed to compile this file, not to run it
    from protocol.records import _no_cython as cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def checked_varint(
    data: cython.pointer[cython.const[cython.uchar]], position: cython.Py_ssize_t, bits: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """Read one zigzag varint of 32 or 64 bits that `_walker` has checked: its value and the position behind it."""
    value: cython.ulonglong = data[position]
    byte: cython.ulonglong = value
    shift: cython.int = 7
    value &= 0x7F
    while byte > 0x7F:
        position += 1
        byte = data[position]
        if shift > 27 and (bits == 32 or shift == 63):
            byte &= 0x8F if bits == 32 else 0x81  # the last byte's bits beyond the type
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint_bytes(value: cython.longlong) -> cython.int:
    """How many bytes a zigzag varint has."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    size: cython.int = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def write_varint(
    target: cython.pointer[cython.uchar], at: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write one zigzag varint; the position behind it."""
    rest: cython.ulonglong = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        target[at] = rest & 0x7F | 0x80
        rest >>= 7
        at += 1
    target[at] = rest
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def big_endian(
    data: cython.pointer[cython.const[cython.uchar]], at: cython.Py_ssize_t, size: cython.int
) -> cython.longlong:
    """The signed number in the `size` bytes at `at`."""
    value: cython.longlong = data[at]
    i: cython.int
    value = (value ^ 0x80) - 0x80
    for i in range(1, size):
        value = (value << 8) | data[at + i]
    return value
