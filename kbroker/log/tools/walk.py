"""Every batch of a `.log` file as it lies there, broken ones too: for people who want to see, and for verification.

Called by dump and verify. Recovery and reads have `scan`, which stops at the first batch that does not hold. Reads
only, in bounded pieces.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.log.scan import SMALLEST_BYTES, header_at, is_intact
from kbroker.ports import File
from protocol.namedtuple import NamedTuple
from protocol.records import Record, RecordError, legacy
from protocol.records.batch import HEADER_SIZE, LOG_APPEND_TIME, MAGIC, BatchHeader, size_of, unpack_header
from protocol.records.content import parse_records

CHUNK_BYTES = 1 << 20


class Batch(NamedTuple):
    """A batch of v2, or one message of v0 or v1 with the header fields that it has.

    data: all of it. intact: whether its checksum holds.
    """

    position: int
    header: BatchHeader
    data: memoryview
    intact: bool

    @property
    def end(self) -> int:
        """Position behind it."""
        return self.position + len(self.data)

    @property
    def time_type(self) -> str:
        """Kafka's name of what its timestamps are."""
        if self.header.magic == 0:
            return "NoTimestampType"
        return "LogAppendTime" if self.header.attributes & LOG_APPEND_TIME else "CreateTime"

    def records(self) -> list[Record]:
        """Its records, out of their wrapper if it is one of v0 or v1. Raises RecordError."""
        if self.header.magic == MAGIC:
            return parse_records(self.data, 0, unpack_header(self.data, 0))
        (message,) = legacy.scan(self.data)
        return legacy.parse_message(self.data, message)


def batches(file: File, start: int, end: int) -> Iterator[Batch]:
    """The batches from `start`, which must be a batch's position, up to `end`.

    Stops where the bytes are no batch, or one that reaches beyond `end`; `why_not` says which.
    """
    data, data_at, position = memoryview(b""), start, start
    while end - position >= SMALLEST_BYTES:
        at = position - data_at
        if len(data) - at < HEADER_SIZE:
            data, data_at, at = memoryview(file.read(position, min(CHUNK_BYTES, end - position))), position, 0
        header = header_at(data, at)
        if header is None or position + size_of(header) > end:
            return
        size = size_of(header)
        if at + size > len(data):
            data, data_at, at = memoryview(file.read(position, max(CHUNK_BYTES, size))), position, 0
            if len(data) < size:
                return
        yield Batch(position, BatchHeader(*header), data[at : at + size], is_intact(data, at, header))
        position += size


def why_not(file: File, position: int, end: int) -> str:
    """Why there is no batch at `position`, where `batches` stopped."""
    left = end - position
    beginning = file.read(position, min(left, CHUNK_BYTES))
    if not any(beginning):
        return f"{left} bytes of zeros" if left <= CHUNK_BYTES else f"{left} bytes, the first of them zeros"
    try:
        header = header_at(beginning, 0)
        if header is not None:
            return f"a batch of {size_of(header)} bytes is cut off after {left}"
        next(legacy.scan(beginning))
    except RecordError as error:
        return error.reason
    return f"{left} bytes that begin no batch"
