"""What generated readers and writers call for the rare cases: long lengths, long arrays, unknown tags.

The common case is inlined in the generated code, and everything here may be slow. Any exception sends the caller
to `explain.py`, so none carries a message.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from protocol.message import DecodeError, EncodeError, Message
from protocol.primitives import read_uvarint, read_uvarint_rest, utf8, uvarint

MAX_STRING_BYTES = 0x7FFF
MOST_UNKNOWN_TAGS = 10_000
"""Of one struct. Kafka has a handful in all; two bytes each, a frame could hold millions."""


class Malformed(Exception):  # noqa: N818 - it never leaves this package
    """Something is wrong with the input; `explain.py` says what."""


class TooMany(Exception):  # noqa: N818 - as above
    """More elements than the caller wants to take."""


def explain_read(message: type[Message], version: int, buffer: Any, start: int, error: Exception) -> DecodeError:
    """What stopped a reader, as `explain.py` finds out, which most brokers never load."""
    from protocol import explain

    return explain.explain_read(message, version, buffer, start, error)


def explain_write(value: Message, version: int, error: Exception) -> EncodeError:
    """What stopped a writer, likewise."""
    from protocol import explain

    return explain.explain_write(value, version, error)


def explain_slices(error: Exception) -> DecodeError:
    """What stopped a sliced reader, without another look at the message: it may be large."""
    if isinstance(error, TooMany):
        return DecodeError("", "more elements than are taken in one request")
    return DecodeError("", "ends early, or has a length or a value that it may not have")


def long_string(buffer: Any, position: int, first: int) -> tuple[str, int]:
    """A compact string whose first length byte is 0 or above 127."""
    if not first:
        raise Malformed
    size, position = read_uvarint_rest(buffer, position, first)
    if not 0 < size <= MAX_STRING_BYTES + 1:
        raise Malformed
    end = position + size - 1
    return utf8(buffer[position:end]), end


def long_string_or_none(buffer: Any, position: int, first: int) -> tuple[str | None, int]:
    """As `long_string`, and None for 0."""
    if not first:
        return None, position
    size, position = read_uvarint_rest(buffer, position, first)
    return (None, position) if not size else _string(buffer, position, size)


def _string(buffer: Any, position: int, size: int) -> tuple[str, int]:
    if size > MAX_STRING_BYTES + 1:
        raise Malformed
    end = position + size - 1
    return utf8(buffer[position:end]), end


def long_array(buffer: Any, position: int, count: int, item: Struct) -> tuple[list[Any], int]:
    """`count` primitives; refused before anything is allocated if the buffer does not hold them."""
    end = position + count * item.size
    if count < 0 or end > len(buffer):
        raise Malformed
    return [value for (value,) in item.iter_unpack(buffer[position:end])], end


def long_array_or_none(buffer: Any, position: int, count: int, item: Struct) -> tuple[list[Any] | None, int]:
    """As `long_array`, and None for a negative count."""
    return (None, position) if count < 0 else long_array(buffer, position, count, item)


def long_count(buffer: Any, position: int, first: int) -> int:
    """The compact count of an array, whose first byte is `first`: one more than it has elements."""
    return read_uvarint_rest(buffer, position, first)[0] if first > 127 else first


def array_count(buffer: Any, position: int, first: int, least: int, nullable: bool) -> tuple[int, int]:
    """The compact count of an array that is long, null or malformed: one more than it has elements, 0 for null.

    least: bytes that an element takes; refused if the buffer does not hold so many elements.
    """
    if first > 127:
        first, position = read_uvarint_rest(buffer, position, first)
    if (first - 1) * least > len(buffer) - position or not (first or nullable):
        raise Malformed
    return first, position


def compact_array(buffer: Any, position: int, first: int, item: Struct) -> tuple[list[Any], int]:
    """As `long_array`, of a compact count whose first byte is `first`."""
    if first > 127:
        first, position = read_uvarint_rest(buffer, position, first)
    return long_array(buffer, position, first - 1, item)


def compact_array_or_none(buffer: Any, position: int, first: int, item: Struct) -> tuple[list[Any] | None, int]:
    """As `compact_array`, and None for 0."""
    if first > 127:
        first, position = read_uvarint_rest(buffer, position, first)
    return long_array_or_none(buffer, position, first - 1, item)


def unknown_tags(buffer: Any, position: int, count: int) -> tuple[dict[int, bytes], int]:
    """The tagged fields of a struct that knows none; `count` is the first byte of their number."""
    if count > 127:
        count, position = read_uvarint_rest(buffer, position, count)
    if count > MOST_UNKNOWN_TAGS:
        raise Malformed
    end = len(buffer)
    found: dict[int, bytes] = {}
    for _ in range(count):  # the end of the buffer stops it long before a false count does
        tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        if position + size > end:
            raise Malformed
        found[tag] = bytes(buffer[position : position + size])
        position += size
    return found, position


def skip_unknown_tags(buffer: Any, position: int, count: int) -> int:
    """Pass over the tagged fields of a struct that knows none; returns where they end."""
    return unknown_tags(buffer, position, count)[1]


def tag_section(tags: dict[int, bytes]) -> bytes:
    """Tagged fields as Kafka writes them: their number, then tag, size and content in the order of the tags."""
    if len(tags) == 1:  # nearly always, and small
        ((tag, content),) = tags.items()
        if 0 <= tag < 128 > len(content):
            return bytes((1, tag, len(content))) + content
    out = [uvarint(len(tags))]
    for tag, content in sorted(tags.items()):
        if not 0 <= tag <= 0xFFFFFFFF:
            raise Malformed
        out += (uvarint(tag), uvarint(len(content)), content)
    return b"".join(out)


def length(size: int) -> bytes:
    """A compact length (size is already one more) of anything but a string."""
    if size > 0x7FFFFFFF:
        raise Malformed
    return uvarint(size)


def string_length(size: int) -> bytes:
    """A compact length (size is already one more) of a string."""
    if size > MAX_STRING_BYTES + 1:
        raise Malformed
    return uvarint(size)


def array_of(values: list[Any], prefix: bytes, code: str) -> bytes:
    """Primitives behind their count; for arrays too long to have a ready-made Struct."""
    return prefix + Struct(f">{len(values)}{code}").pack(*values) if code != "16s" else prefix + _uuids(values)


def _uuids(values: list[bytes]) -> bytes:
    if any(len(value) != 16 for value in values):
        raise Malformed
    return b"".join(values)


def size_of(records: Any) -> int:
    """Bytes in a Records value, whether one buffer or the pieces of one."""
    return sum(map(len, records)) if isinstance(records, list | tuple) else len(records)
