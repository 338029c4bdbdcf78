"""Records as columns: log bytes into Arrow record batches, and Arrow columns back into v2 batches.

Called by the data source and by whatever writes to a topic. Its loops run once per batch; those per record are in
`protocol.records._walker`. Knows no socket, file or Spark. The columns are those of Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from protocol.records import Record
from protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    SMALLEST_LEGACY_LENGTH,
    TRANSACTIONAL,
    HeaderTuple,
    check,
    set_base_offset,
    unpack_header,
)
from protocol.records.content import Room, build_batch, gather_records, open_records, parse_records
from protocol.records.control_records import ControlType, parse_key
from protocol.records.legacy import check_crc, parse_message
from protocol.records.legacy import scan as scan_messages

ROWS = 1 << 16
"""Rows of a record batch, at most: few enough for a task's memory, enough that the calls per batch do not count."""
BYTES = 4 << 20
"""Key and value bytes after which a record batch is full: memory of this size is used again and stays in the cache, at
32 MB every batch has new pages to fault in (1 KB records: half as many a second)."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))
DDL = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
HEADERS_DDL = "headers array<struct<key: string, value: binary>>"

NO_TIMESTAMP_TYPE, CREATE_TIME, APPEND_TIME = -1, 0, 1  # Kafka's own numbers


class Span(NamedTuple):
    """Which records of a partition are wanted: from `start` up to, not with, `end`."""

    topic: str
    partition: int
    start: int
    end: int


def decoded(
    chunks: Iterable[memoryview],
    span: Span,
    *,
    headers: bool = False,
    aborted: Callable[[], Sequence[tuple[int, int]]] | None = None,
    verify: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The wanted records of a sequence of whole batches, and old messages, in order.

    chunks: log bytes, each of whole batches. aborted: (producer_id, first_offset) of the transactions to leave out,
    asked after each chunk has come; None hands out what is not committed too. verify: look at checksums.
    Raises: RecordError for bytes that are no records.
    """
    rows = _Rows(span, headers)
    gone = _Aborted()
    for chunk in chunks:
        if aborted is not None:
            gone.expect(aborted())
        for position, header in _batches(chunk):
            if header is None:
                yield from rows.add_old(chunk, position)
                continue
            if verify:
                check(chunk, position, len(chunk))
            if header[0] + header[6] < span.start:
                gone.passes(chunk, position, header)
                continue
            if header[0] >= span.end:
                break
            if gone.passes(chunk, position, header) and header[12]:
                yield from rows.add(chunk, position, header)
    yield from rows.take()


def _batches(chunk: memoryview) -> Iterator[tuple[int, HeaderTuple | None]]:
    """Positions of whole batches with their headers, None for an old message; what is cut short at the end is left."""
    position, size = 0, len(chunk)
    while position + LENGTH_OVERHEAD + SMALLEST_LEGACY_LENGTH <= size:
        length = int.from_bytes(chunk[position + 8 : position + 12], "big", signed=True)
        after = position + LENGTH_OVERHEAD + length
        if after > size:
            return
        old = length < SMALLEST_LEGACY_LENGTH or chunk[position + MAGIC_AT] != MAGIC
        if not old and length < HEADER_SIZE - LENGTH_OVERHEAD:
            check(chunk, position, size)  # says what is wrong
        yield position, None if old else unpack_header(chunk, position)
        position = after


def last_offset(chunk: memoryview) -> int | None:
    """The offset of the last record of the whole batches and messages in a chunk; None if there are none."""
    last = None
    for position, header in _batches(chunk):
        if header is None:
            last = int.from_bytes(chunk[position : position + 8], "big")
        else:
            last = header[0] + header[6]
    return last


class _Aborted:
    """Which transactional batches belong to aborted transactions, as they come by in order of offsets."""

    def __init__(self) -> None:
        self._expected: dict[int, set[int]] = {}  # producer -> first offsets of its aborted transactions
        self._open: set[int] = set()

    def expect(self, transactions: Sequence[tuple[int, int]]) -> None:
        for producer_id, first_offset in transactions:
            self._expected.setdefault(producer_id, set()).add(first_offset)

    def passes(self, chunk: memoryview, position: int, header: HeaderTuple) -> bool:
        """Whether the batch is for consumers."""
        attributes, producer_id = header[5], header[9]
        if attributes & CONTROL:
            if attributes & TRANSACTIONAL and producer_id in self._open:
                marker = parse_records(chunk, position, header)[0]
                if parse_key(marker.key) == ControlType.ABORT:
                    self._open.discard(producer_id)
            return False
        if not attributes & TRANSACTIONAL:
            return True
        last = header[0] + header[6]
        begun = {first for first in self._expected.get(producer_id, ()) if first <= last}
        if begun:
            self._expected[producer_id] -= begun
            self._open.add(producer_id)
        return producer_id not in self._open


class _Rows:
    """Rows that have been read and not handed out yet."""

    def __init__(self, span: Span, with_headers: bool) -> None:
        self._span, self._with_headers = span, with_headers
        self._clear(ROWS, 1 << 20)

    def _clear(self, rows: int, size: int) -> None:
        self._count = 0
        self._offsets, self._times = np.empty(rows, np.int64), np.empty(rows, np.int64)
        self._key_ends, self._value_ends = np.zeros(rows + 1, np.int32), np.zeros(rows + 1, np.int32)
        self._marks, self._types = np.empty(rows, np.uint8), np.empty(rows, np.int32)
        self._keys, self._values = np.empty(size, np.uint8), np.empty(size, np.uint8)
        self._headers: list[tuple[int, Sequence[tuple[bytes, bytes | None]]]] = []

    def add(
        self, chunk: memoryview, position: int, header: HeaderTuple, time_type: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Add a batch; what was full before comes out. time_type: None to take it from the batch."""
        opened = open_records(chunk, position, header)
        size, count = opened[2] - opened[1], min(header[12], opened[2] - opened[1])
        if self._count and (self._count + count > len(self._offsets) or self._used() + size > BYTES):
            yield from self.take()
        if count > len(self._offsets):
            self._clear(count, size)
        self._make_room(size)
        row = self._count
        columns: tuple[Any, ...] = (
            self._offsets,
            self._times,
            self._key_ends,
            self._keys,
            self._value_ends,
            self._values,
            self._marks,
        )
        found = gather_records(opened, header, row, Room(*(memoryview(each) for each in columns)))
        self._count += count
        appended = APPEND_TIME if header[5] & LOG_APPEND_TIME else CREATE_TIME
        self._types[row : self._count] = appended if time_type is None else time_type
        if found and self._with_headers:
            records = parse_records(chunk, position, header)
            self._headers += [(row + i, record.headers) for i, record in enumerate(records) if record.headers]

    def add_old(self, chunk: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        """Add what an old message holds."""
        message = next(scan_messages(chunk, position))
        if message.offset < self._span.start:
            return
        check_crc(chunk, message)
        records = parse_message(chunk, message)
        batch = memoryview(build_batch(records))
        time_type = APPEND_TIME if message.is_log_append_time else CREATE_TIME if message.magic else NO_TIMESTAMP_TYPE
        yield from self.add(batch, 0, unpack_header(batch, 0), time_type)

    def _used(self) -> int:
        return max(int(self._key_ends[self._count]), int(self._value_ends[self._count]))

    def _make_room(self, size: int) -> None:
        needed = self._used() + size
        if needed > len(self._keys):
            bigger = max(needed, 2 * len(self._keys))
            self._keys, self._values = (
                np.concatenate((each, np.empty(bigger - len(each), np.uint8))) for each in (self._keys, self._values)
            )

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows so far, those that are wanted of them, if there are any."""
        count, span = self._count, self._span
        if not count:
            return
        first, after = (int(each) for each in np.searchsorted(self._offsets[:count], (span.start, span.end)))
        columns = [
            self._binary(self._key_ends, self._keys, 1),
            self._binary(self._value_ends, self._values, 2),
            _repeated(span.topic, count),
            _numbers(pa.int32(), np.full(count, span.partition, np.int32)),
            _numbers(pa.int64(), self._offsets[:count]),
            _numbers(TIME, self._times[:count] * 1000),
            _numbers(pa.int32(), self._types[:count]),
        ]
        schema = SCHEMA
        if self._with_headers:
            columns.append(self._header_column())
            schema = SCHEMA_WITH_HEADERS
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        self._clear(ROWS, len(self._keys))
        if after > first:
            yield batch.slice(first, after - first)

    def _binary(self, ends: Any, data: Any, null_mark: int) -> pa.Array:
        count = self._count
        valid = np.packbits((self._marks[:count] & null_mark) == 0, bitorder="little")
        buffers = [pa.py_buffer(valid), pa.py_buffer(ends[: count + 1]), pa.py_buffer(data[: ends[count]])]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    def _header_column(self) -> pa.Array:
        if not self._headers:
            return pa.nulls(self._count, HEADERS)
        column: list[list[dict[str, object]] | None] = [None] * self._count
        for row, pairs in self._headers:
            column[row] = [{"key": key.decode(errors="replace"), "value": value} for key, value in pairs]
        return pa.array(column, HEADERS)


def _numbers(kind: pa.DataType, values: np.ndarray) -> pa.Array:
    """An array laid on `values`. `pa.array`, `pa.scalar` and `cast` load pandas: half a second of every worker."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


# ---- the other way


class Producer(NamedTuple):
    """Who writes: with its sequence numbers, what makes a batch that is sent twice be taken once."""

    producer_id: int = -1
    epoch: int = -1


NOBODY = Producer()
"""A producer without an id: what it sends twice is there twice."""


def records_of(rows: pa.RecordBatch) -> list[Record]:
    """The records of rows with the columns key, value and, if there, timestamp and headers; offsets count from 0."""
    count = rows.num_rows
    names = rows.schema.names
    times: Iterable[int] = [-1] * count
    if "timestamp" in names:
        micros = rows.column("timestamp").cast(pa.int64())
        times = (micros.fill_null(-1000).to_numpy(zero_copy_only=False) // 1000).tolist()
    columns = (_cells(rows, name, names) for name in ("key", "value"))
    headers: Iterable[tuple[tuple[bytes, bytes | None], ...]] = [()] * count
    if "headers" in names and rows.column("headers").null_count < count:
        headers = [_pairs(each) for each in rows.column("headers").to_pylist()]
    return list(map(Record._make, zip(range(count), times, *columns, headers, strict=True)))


def _pairs(cell: list[dict[str, object]] | None) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple((str(each["key"]).encode(), each["value"]) for each in cell or ())  # type: ignore[misc]


def _cells(rows: pa.RecordBatch, name: str, names: Sequence[str]) -> list[bytes | None]:
    """A column of bytes or text as Python's bytes: cut out of one copy of all of it, several times faster than asking
    Arrow for each."""
    if name not in names:
        return [None] * rows.num_rows
    column = rows.column(name).cast(pa.large_binary())
    ends = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    if not len(column):
        return []
    first, last = int(ends[0]), int(ends[-1])
    data = bytes(memoryview(column.buffers()[2])[first:last]) if last > first else b""
    places = (ends - first).tolist()
    cells: list[bytes | None] = [data[a:b] for a, b in pairwise(places)]
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            cells[row] = None
    return cells


def batches_of(records: list[Record], most_bytes: int, most_records: int = ROWS) -> Iterator[list[Record]]:
    """Records in runs that make batches of about `most_bytes`, before they are compressed."""
    start = size = 0
    for index, (_, _, key, value, headers) in enumerate(records):
        more = 20 + len(key or b"") + len(value or b"")
        if headers:
            more += sum(10 + len(name) + len(content or b"") for name, content in headers)
        if size and (size + more > most_bytes or index - start == most_records):
            yield records[start:index]
            start, size = index, 0
        size += more
    if start < len(records):
        yield records[start:]


def encoded(records: list[Record], *, codec_id: int = 0, producer: Producer = NOBODY, sequence: int = -1) -> bytearray:
    """One v2 batch of these records with offsets from 0. sequence: of the first, where there is a producer id."""
    batch = build_batch(
        records,
        codec_id=codec_id & CODEC_MASK,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence & 0x7FFFFFFF if producer.producer_id >= 0 else -1,
    )
    set_base_offset(batch, 0, 0)  # a producer's batch counts from 0
    return batch
