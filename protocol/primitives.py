"""The primitive forms of the Kafka protocol that are not a plain `struct` format: varints and what they prefix.

Used by the generated readers and writers (for what is not one byte long), the frames, the headers and the record
formats. Readers take (buffer, position) and return (value, position after). They raise IndexError at the end of
the buffer and ValueError for a malformed form; callers turn both into a DecodeError with a path.

    uvarint   7 bits a byte, low bits first, high bit says more follow; 5 bytes at most hold 32 bits, 10 hold 64
    varint    zigzag of a signed number, then as uvarint: 0 -1 1 -2 2 ... become 0 1 2 3 4 ...
    compact   length + 1 as uvarint; 0 means null
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    Buffer: TypeAlias = bytes | bytearray | memoryview

_SURROGATES = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned number below 2**32."""
    first = buffer[position]
    return (first, position + 1) if first < 128 else read_uvarint_rest(buffer, position + 1, first)


def read_uvarint_rest(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of a number whose `first` byte has been read and says that more follow."""
    byte = buffer[position]
    if byte < 128:  # two bytes, up to 16383: most lengths that are not one byte
        return first - 128 + (byte << 7), position + 1
    value = first & 127
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise ValueError("varint of more than 32 bits")


def read_uvarlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned number below 2**64."""
    value = shift = 0
    for shift in range(0, 70, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFFFFFFFFFF:
                break
            return value, position
    raise ValueError("varint of more than 64 bits")


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 32 bits."""
    value, position = read_uvarint(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A signed number of 64 bits."""
    value, position = read_uvarlong(buffer, position)
    return (value >> 1) ^ -(value & 1), position


def uvarint(value: int) -> bytes:
    """`value` >= 0 as uvarint, of any size."""
    if value < 16384:
        return ONE_BYTE[value] if value < 128 else bytes((value & 127 | 128, value >> 7))
    if value < 2097152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """A signed number as zigzag varint; -2**31 <= value < 2**31 is what readers of int32 accept."""
    return uvarint(zigzag(value))


def zigzag(value: int) -> int:
    """The unsigned number that stands for a signed one of up to 64 bits."""
    return (value << 1) ^ (value >> 63)


ONE_BYTE = [bytes((value,)) for value in range(128)]


def utf8(content: Buffer) -> str:
    """The string that these bytes are to Kafka's classes: U+FFFD in place of what is no UTF-8, as Java has it.

    One for each longest beginning of a character, as Python's "replace", but only one for an encoded surrogate.
    """
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        return str(_SURROGATES.sub(b"\xff", bytes(content)), "utf-8", "replace")
