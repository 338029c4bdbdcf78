"""What a record is once it has been read, whatever format it came in."""

from __future__ import annotations

from typing import NamedTuple

Readable = bytes | bytearray | memoryview
Writable = bytearray | memoryview


class Record(NamedTuple):
    """One record of any format, as a value.

    offset: absolute. timestamp: ms since 1970, -1 for none. headers: (key, value) in the order sent; keys are UTF-8
    that nobody has checked.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
