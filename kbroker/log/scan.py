"""Walking over the batches of a `.log` file without trusting it: headers for lookups, whole batches for recovery.

Called by the segment and by recovery. Everything is read through the Disk port in bounded pieces; nothing is written.
Batches of format v2 are the rule. Messages of v0 and v1, which an old Apache broker may have left, are walked too: they
appear as headers with the fields they have, `base_offset` being the offset of their (last) record.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct

from kbroker.ports import File
from protocol.records import crc32c
from protocol.records.batch import (
    ATTRIBUTES_AT,
    BASE_OFFSET,
    CRC,
    HEADER_SIZE,
    LAST_DELTA,
    LENGTH,
    LENGTH_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    MAGIC_BYTE,
    HeaderTuple,
    unpack_header,
)

CHUNK_BYTES = 8192  # a lookup scans at most index.interval.bytes and one batch: mostly one read
WALK_BYTES = 1 << 20  # recovery reads this much at a time, or one batch if that is larger
SMALLEST_BYTES = 26  # LENGTH_OVERHEAD and the shortest message of v0

_LEGACY = Struct(">qiIbb")  # offset, size, crc, magic, attributes
_INT64 = Struct(">q")
_UINT32 = Struct(">I")


def header_at(data: bytes | memoryview, at: int) -> HeaderTuple | None:
    """The header of the batch or old message at `at`; None if the bytes there cannot begin one.

    data: may end behind the header. Only sizes and magic are looked at, not the checksum.
    """
    left = len(data) - at
    if left < SMALLEST_BYTES:
        return None
    if data[at + MAGIC_AT] != MAGIC:
        return _legacy_header(data, at)
    if left < HEADER_SIZE:
        return None
    header: HeaderTuple = unpack_header(data, at)
    is_possible = header[LENGTH] >= HEADER_SIZE - LENGTH_OVERHEAD and header[BASE_OFFSET] >= 0
    return header if is_possible and header[LAST_DELTA] >= 0 else None


def _legacy_header(data: bytes | memoryview, at: int) -> HeaderTuple | None:
    offset, size, crc, magic, attributes = _LEGACY.unpack_from(data, at)
    if magic not in (0, 1) or size < SMALLEST_BYTES - LENGTH_OVERHEAD + 8 * magic or offset < 0:
        return None
    timestamp = _INT64.unpack_from(data, at + 18)[0] if magic else -1
    return offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, -1


def is_intact(data: memoryview, at: int, header: HeaderTuple) -> bool:
    """Whether the checksum holds of the whole batch or old message at `at`."""
    end = at + header[LENGTH] + LENGTH_OVERHEAD
    if header[MAGIC_BYTE] == MAGIC:
        return bool(crc32c(data[at + ATTRIBUTES_AT : end]) == header[CRC])
    return bool(zlib.crc32(data[at + MAGIC_AT : end]) == _UINT32.unpack_from(data, at + LENGTH_OVERHEAD)[0])


def headers(file: File, position: int, end: int) -> Iterator[tuple[int, HeaderTuple]]:
    """Positions and headers from `position`, which must be a batch's, up to `end`; records are skipped over.

    Stops before `end` where the bytes are no batch, or one that reaches beyond.
    """
    data, start = b"", position
    while position < end:
        at = position - start
        if len(data) - at < HEADER_SIZE:
            data, start, at = file.read(position, min(CHUNK_BYTES, end - position)), position, 0
        header = header_at(data, at)
        if header is None or position + header[LENGTH] + LENGTH_OVERHEAD > end:
            return
        yield position, header
        position += header[LENGTH] + LENGTH_OVERHEAD


def intact_batches(file: File, position: int, end: int) -> Iterator[tuple[int, HeaderTuple]]:
    """Positions and headers of whole batches whose checksums hold; stops at the first that does not."""
    data, start = memoryview(b""), position
    while end - position >= SMALLEST_BYTES:
        at = position - start
        if len(data) - at < HEADER_SIZE:
            data, start, at = memoryview(file.read(position, min(WALK_BYTES, end - position))), position, 0
        header = header_at(data, at)
        if header is None:
            return
        size = header[LENGTH] + LENGTH_OVERHEAD
        if position + size > end:
            return
        if at + size > len(data):
            data, start, at = memoryview(file.read(position, max(WALK_BYTES, size))), position, 0
            if len(data) < size:
                return
        if not is_intact(data, at, header):
            return
        yield position, header
        position += size
