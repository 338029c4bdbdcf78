"""What a record is once it has been read, whatever format it came in."""

from __future__ import annotations

from protocol.namedtuple import NamedTuple

Readable = bytes | bytearray | memoryview
Writable = bytearray | memoryview


# What `batch.unpack_header` returns; `batch` has a name for the place of each field, as in `header[PRODUCER_ID]`.
HeaderTuple = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]

# The records of one batch in a buffer, decompressed: where they start there, where they end, how many there are,
# base_offset, base_timestamp, and the time of their append where that is every record's own.
Run = tuple[int, int, int, int, int, int | None]

# A column of bytes: the size of each, -1 for null, as int64; all their bytes, one behind the other.
Cells = tuple[memoryview, memoryview]


class Record(NamedTuple):
    """One record of any format, as a value.

    offset: absolute. timestamp: ms since 1970, -1 for none. headers: (key, value) in the order sent; keys are UTF-8
    that was not checked.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


# What the walker tells of a batch's records, as a plain tuple, and the places in it: those of the fields of `Facts`.
FactsTuple = tuple[int, int, int, int, int]
LATEST, LATEST_AT, EARLIEST, KEYLESS, DISORDERED = range(5)


class Facts(NamedTuple):
    """What a broker must know of a batch's records before it appends them.

    max_timestamp, min_timestamp: ms, of the records that have a timestamp; -1 if none has one. The records' own, also
    where the batch says LogAppendTime. max_timestamp_offset_delta: of the first record with max_timestamp, or -1.
    first_without_key: index of the first record with a null key, -1 if all have keys.
    first_out_of_order: index of the first record whose offset delta is not its index, -1 if they run 0, 1, 2...
    """

    max_timestamp: int
    max_timestamp_offset_delta: int
    min_timestamp: int
    first_without_key: int
    first_out_of_order: int
