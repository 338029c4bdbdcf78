"""Records as columns: log bytes into Arrow record batches, and Arrow columns back into v2 batches.

Called by the data source and by whatever writes to a topic. Its loops run once per batch; those per record are in
`protocol.records._walker`. Knows no socket, file or Spark. The columns are those of Spark's Kafka source.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.hashing import murmur2
from protocol.namedtuple import NamedTuple
from protocol.records import Record, RecordError, crc32c
from protocol.records.batch import (
    ATTRIBUTES,
    ATTRIBUTES_AT,
    BASE_OFFSET,
    CODEC_MASK,
    CONTROL,
    COUNT,
    HEADER_SIZE,
    LARGEST_SEQUENCE,
    LENGTH_AT,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    PRODUCER_ID,
    PRODUCER_ID_AT,
    SMALLEST_LEGACY_LENGTH,
    TRANSACTIONAL,
    HeaderTuple,
    check,
    last_offset_of,
    set_base_offset,
    unpack_header,
    write_crc,
)
from protocol.records.content import (
    LARGEST_DELTA,
    LARGEST_OFFSET,
    Cells,
    Columns,
    Room,
    Run,
    build_batch,
    build_batch_of,
    gather_records,
    open_records,
    parse_records,
    run_of,
)
from protocol.records.control_records import ControlType, parse_key
from protocol.records.legacy import check_crc, parse_message
from protocol.records.legacy import scan as scan_messages

ROWS = 1 << 16
"""Rows of a record batch, at most: few enough for a task's memory, enough that the calls per batch do not count."""
BYTES = (4 << 20) - (1 << 16)
"""Bytes after which a record batch is full: just below the 4 MB up to which Arrow in Spark's JVM uses its memory again.
Beyond that each batch has new pages to fault in there, a fifth of all time for records of 1 KB."""
ROW_BYTES = 64
"""What a row takes beside its key and value, with a topic's name of middling length."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_RAW_HEADERS = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
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
        ("timestampMs", pa.int64()),
    ]
)
SCHEMA_WITH_HEADERS = SCHEMA.append(pa.field("headers", HEADERS))
DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "timestampMs bigint"
)
HEADERS_DDL = "headers array<struct<key: string, value: binary>>"

NOTHING = memoryview(b"")
_INT32 = struct.Struct(">i")
PRODUCER = struct.Struct(">qhi")
"""Producer id, epoch and base sequence, as they lie in a batch from PRODUCER_ID_AT on."""
FIRST_MS, LAST_MS = -62_135_510_400_000, 253_402_214_399_999
"""Which of records' timestamps Spark has, too: days of the years 1 to 9999 in any zone, as Python's datetime has them.
Of a record with another one `timestamp` is null; `timestampMs` is what the record has, always."""
_LARGEST_TIME = 2**63 - 1
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
) -> Iterator[pa.RecordBatch]:
    """The wanted records of a sequence of whole batches, and old messages, in order.

    chunks: log bytes, each of whole batches. aborted: (producer_id, first_offset) of the transactions to leave out,
    asked after each chunk has come; None hands out what is not committed too.
    Raises: RecordError for bytes that are no records; its position is in the chunk that came last: of the batch, where
    the damage is in what was decompressed.
    """
    rows = _Rows(span, headers)
    gone = _Aborted()
    for chunk in chunks:
        if aborted is not None:
            gone.expect(aborted())
        has_end = yield from _add_all(rows, chunk, span, gone)
        rows.gather()  # the chunk may be used again for the next one
        if has_end:
            break
    yield from rows.take()


def _add_all(rows: _Rows, chunk: memoryview, span: Span, gone: _Aborted) -> Generator[pa.RecordBatch, None, bool]:
    """Add what is wanted of a chunk; what was full before comes out. Returns: whether the span ends in it."""
    position = rows.add_plain(chunk, 0)
    while found := _batch_at(chunk, position):
        header, after = found
        if header is None:
            yield from rows.add_old(chunk, position)
        else:
            check(chunk, position, len(chunk))
            if header[BASE_OFFSET] >= span.end:
                return True
            if gone.passes(chunk, position, header) and last_offset_of(header) >= span.start and header[COUNT]:
                yield from rows.add(chunk, position, header)
        position = rows.add_plain(chunk, after)
    return False


def _batch_at(chunk: memoryview, position: int) -> tuple[HeaderTuple | None, int] | None:
    """The header of a whole batch, None for that of an old message, and where it ends; None if it is cut short."""
    size = len(chunk)
    if position + LENGTH_OVERHEAD + SMALLEST_LEGACY_LENGTH > size:
        return None
    length = int.from_bytes(chunk[position + 8 : position + 12], "big", signed=True)
    after = position + LENGTH_OVERHEAD + length
    if after > size:
        return None
    old = length < SMALLEST_LEGACY_LENGTH or chunk[position + MAGIC_AT] != MAGIC
    if not old and length < HEADER_SIZE - LENGTH_OVERHEAD:
        check(chunk, position, size)  # says what is wrong
    return None if old else unpack_header(chunk, position), after


def end_of_batches(chunk: memoryview) -> int:
    """Where the last batch or message ends that is whole; the chunk's end if there is one that none can be."""
    position, last = 0, len(chunk) - LENGTH_OVERHEAD - SMALLEST_LEGACY_LENGTH
    while position <= last:
        (length,) = _INT32.unpack_from(chunk, position + LENGTH_AT)
        if length < SMALLEST_LEGACY_LENGTH:
            return len(chunk)
        after = position + LENGTH_OVERHEAD + length
        if after > len(chunk):
            break
        position = after
    return position


def size_of_batch(beginning: memoryview) -> int:
    """How long the batch or message is that begins so; the least that it can be, if that cannot be seen yet."""
    if len(beginning) < LENGTH_OVERHEAD:
        return LENGTH_OVERHEAD + SMALLEST_LEGACY_LENGTH
    return LENGTH_OVERHEAD + int(_INT32.unpack_from(beginning, LENGTH_AT)[0])


def last_offset(chunk: memoryview) -> int | None:
    """The offset of the last record of the whole batches and messages in a chunk; None if there are none."""
    last, position = None, 0
    while found := _batch_at(chunk, position):
        header, after = found
        last = int.from_bytes(chunk[position : position + 8], "big") if header is None else last_offset_of(header)
        position = after
    return last


def position_of(chunk: memoryview, offset: int) -> int | None:
    """Where the batch or message begins that has this offset as its own; None if there is none."""
    position = 0
    while position + LENGTH_OVERHEAD <= len(chunk):
        if int.from_bytes(chunk[position : position + 8], "big") == offset:
            return position
        if (found := _batch_at(chunk, position)) is None:
            break
        position = found[1]
    return None


def beginning_of(chunk: memoryview, position: int) -> int:
    """Where the batch or message begins that a position is in."""
    begins = 0
    while (found := _batch_at(chunk, begins)) and begins < found[1] <= position:
        begins = found[1]
    return begins


class Damage(NamedTuple):
    """A batch, or an old message, that does not decode. offset: its first. after: the offset behind it.

    data: its bytes, as they are.
    """

    offset: int
    after: int
    data: bytes
    reason: str

    @classmethod
    def of(cls, chunk: memoryview, error: RecordError) -> Self:
        """What is at an error's position, of a chunk of the log."""
        at = beginning_of(chunk, error.position)
        size = size_of_batch(chunk[at:])
        first = int.from_bytes(chunk[at : at + 8], "big")
        following = chunk[at + size :]
        last = last_offset(chunk[at : at + size])
        after = int.from_bytes(following[:8], "big") if len(following) >= 8 else (first if last is None else last) + 1
        index = "" if error.index is None else f", record {error.index} of the batch"
        reason = f"{error.code.name}: {error.reason}{index}"
        return cls(first, max(after, first + 1), bytes(chunk[at : at + size]), reason)


def note_transactions(chunk: memoryview, begun: dict[int, int]) -> int:
    """Note which transactions begin and end in whole batches and messages. begun: by producer, where open ones begin.

    Returns: the offset behind the last record, 0 if there is none. Raises: RecordError for bytes that are no batch.
    """
    end, position = 0, 0
    while (found := _batch_at(chunk, position)) and found[1] > position:
        header, after = found
        last = int.from_bytes(chunk[position : position + 8], "big") if header is None else last_offset_of(header)
        end, position = max(end, last + 1), after
        if header is not None and header[ATTRIBUTES] & TRANSACTIONAL:
            if header[ATTRIBUTES] & CONTROL:
                begun.pop(header[PRODUCER_ID], None)
            else:
                begun.setdefault(header[PRODUCER_ID], header[BASE_OFFSET])
    return end


def _placed(error: RecordError, position: int) -> RecordError:
    """The error with a position of the chunk, where its own is in other bytes."""
    return RecordError(error.code, position, error.reason, error.index)


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
        attributes, producer_id = header[ATTRIBUTES], header[PRODUCER_ID]
        if attributes & CONTROL:
            if attributes & TRANSACTIONAL and producer_id in self._open:
                try:
                    kind = parse_key(parse_records(chunk, position, header)[0].key)
                except RecordError as error:
                    raise _placed(error, position) from None
                if kind == ControlType.ABORT:
                    self._open.discard(producer_id)
            return False
        if not attributes & TRANSACTIONAL:
            return True
        last = last_offset_of(header)
        begun = {first for first in self._expected.get(producer_id, ()) if first <= last}
        if begun:
            self._expected[producer_id] -= begun
            self._open.add(producer_id)
        return producer_id not in self._open


class _Memory:
    """The memory of one record batch's columns, for so many rows, and bytes in each of key and value."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows, self.size = rows, size
        self.offsets, self.times, self.micros = (np.empty(rows, np.int64) for _ in range(3))
        self.key_ends, self.value_ends = np.zeros(rows + 1, np.int32), np.zeros(rows + 1, np.int32)
        self.marks, self.types = np.empty(rows, np.uint8), np.empty(rows, np.int32)
        self.keys, self.values = np.empty(size, np.uint8), np.empty(size, np.uint8)
        columns = {
            "offsets": self.offsets,
            "timestamps": self.times,
            "key_ends": self.key_ends,
            "keys": self.keys,
            "value_ends": self.value_ends,
            "values": self.values,
            "marks": self.marks,
        }
        self.room = Room(**{name: memoryview(column) for name, column in columns.items()})
        self.addresses = {name: column.ctypes.data for name, column in columns.items()}
        self.addresses["types"], self.addresses["micros"] = self.types.ctypes.data, self.micros.ctypes.data


class _Lent:
    """Says that a record batch, and all that was cut out of it, is gone: then its memory is used again.

    Fresh memory has to be faulted in page by page, which took longer than all the rest of reading 1 KB records.
    """

    def __init__(self, memory: _Memory, free: list[_Memory]) -> None:
        self._memory, self._free = memory, free
        self._addresses = memory.addresses  # to ask an array for its own takes longer than all else here

    def __del__(self) -> None:
        self._free.append(self._memory)

    def buffer(self, name: str, size: int) -> pa.Buffer:
        """The first bytes of one of the memory's columns."""
        return pa.foreign_buffer(self._addresses[name], size, self)


class _Rows:
    """Rows that have been read and not handed out yet."""

    def __init__(self, span: Span, with_headers: bool) -> None:
        self._span, self._with_headers = span, with_headers
        self._free: list[_Memory] = []
        self._same: dict[str, pa.Array] = {}  # columns that are the same in each record batch
        self._begin(ROWS, BYTES)

    def _begin(self, rows: int, size: int) -> None:
        """Begin a record batch with room for so much at least."""
        self._count = self._size = 0  # rows, and bytes that they came from: never fewer than those of their values
        self._gathered, self._body = 0, NOTHING  # rows that are in the memory, and where the others are
        self._body_at: int | None = None  # the batch that the body was decompressed from; None: the body is the chunk
        self._runs: list[Run] = []
        self._headers: list[tuple[int, Sequence[tuple[bytes, bytes | None]]]] = []
        fitting = [each for each in self._free if each.rows >= rows and each.size >= size]
        self._memory = fitting.pop() if fitting else _Memory(max(rows, ROWS), max(size, BYTES))
        self._free[:] = fitting

    def add_plain(self, chunk: memoryview, position: int) -> int:
        """Add the batches from `position` on as far as they are like most: sound, neither compressed nor of a
        transaction, timed by their producers, wanted, and with room left. Returns: where the first other one is.

        What `add` does, in one loop that calls nothing of ours: that spares some 7 us a batch.
        """
        if self._with_headers:
            return position
        if chunk is not self._body:
            self.gather()
            self._body, self._body_at = chunk, None
        count, size, begun = self._count, self._size, self._span.start
        last_base, last_header = min(self._span.end - 1, LARGEST_OFFSET - LARGEST_DELTA), len(chunk) - HEADER_SIZE
        while position <= last_header:
            base, length, _, magic, crc, attributes, delta, time, _, _, _, _, many = unpack_header(chunk, position)
            start, after = position + HEADER_SIZE, position + LENGTH_OVERHEAD + length
            if attributes or magic != MAGIC or base > last_base or base + delta < begun:
                break
            if not start < after <= len(chunk) or many <= 0 or count + many > ROWS:
                break
            if size + after - start + ROW_BYTES * (count + many) > BYTES:
                break
            if crc32c(chunk[position + ATTRIBUTES_AT : after]) != crc:
                break
            self._runs.append((start, after, many, base, time, None))
            count, size, position = count + many, size + after - start, after
        self._memory.types[self._count : count] = CREATE_TIME
        self._count, self._size = count, size
        return position

    def add(
        self, chunk: memoryview, position: int, header: HeaderTuple, time_type: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Add a batch; what was full before comes out. time_type: None to take it from the batch."""
        body, start, end = open_records(chunk, position, header)
        size, count = end - start, min(header[COUNT], end - start)
        if self._is_full(count, size):
            yield from self.take()
            self._begin(count, size)
        if body is not self._body:
            self.gather()
            self._body, self._body_at = body, None if body is chunk else position
        row = self._count
        self._runs.append(run_of(start, end, header))
        self._count += header[COUNT]
        self._size += size
        appended = APPEND_TIME if header[ATTRIBUTES] & LOG_APPEND_TIME else CREATE_TIME
        self._memory.types[row : self._count] = appended if time_type is None else time_type
        if self._with_headers and self.gather():
            records = parse_records(chunk, position, header)
            self._headers += [(row + i, record.headers) for i, record in enumerate(records) if record.headers]

    def _is_full(self, count: int, size: int) -> bool:
        """Whether so many rows more of so many bytes want a record batch of their own."""
        if not self._count:
            return count > self._memory.rows or size > self._memory.size
        return self._count + count > ROWS or self._size + size + ROW_BYTES * (self._count + count) > BYTES

    def gather(self) -> int:
        """Read the batches added since the last time: how many of their records have headers. Raises: RecordError.

        Many of a chunk go in one call: with batches of 100 records a call for each took as long as all their copying.
        """
        found = 0
        if self._runs:
            try:
                found = gather_records(self._body, self._runs, self._gathered, self._memory.room)
            except RecordError as error:
                raise error if self._body_at is None else _placed(error, self._body_at) from None
            self._runs.clear()
        self._gathered, self._body = self._count, NOTHING
        return found

    def add_old(self, chunk: memoryview, position: int) -> Iterator[pa.RecordBatch]:
        """Add what an old message holds."""
        message = next(scan_messages(chunk, position))
        if message.offset < self._span.start:
            return
        check_crc(chunk, message)
        try:
            records = parse_message(chunk, message)
        except RecordError as error:
            raise _placed(error, position) from None
        batch = memoryview(build_batch(records))
        time_type = APPEND_TIME if message.is_log_append_time else CREATE_TIME if message.magic else NO_TIMESTAMP_TYPE
        yield from self.add(batch, 0, unpack_header(batch, 0), time_type)

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows so far, those that are wanted of them, if there are any. What follows needs memory of its own."""
        self.gather()
        count, span = self._count, self._span
        first, after = (int(each) for each in np.searchsorted(self._memory.offsets[:count], (span.start, span.end)))
        if after > first:
            yield self._batch().slice(first, after - first)
        else:
            self._free.append(self._memory)

    def _batch(self) -> pa.RecordBatch:
        """All rows so far. Their memory is the batch's from now on."""
        memory, count = self._memory, self._count
        lent = _Lent(memory, self._free)
        times = memory.times[:count]
        np.multiply(times, 1000, out=memory.micros[:count])
        ends = int(memory.key_ends[count]), int(memory.value_ends[count])
        columns = [
            _binary(
                count, lent.buffer("key_ends", 4 * count + 4), lent.buffer("keys", ends[0]), memory.marks[:count] & 1
            ),
            _binary(
                count,
                lent.buffer("value_ends", 4 * count + 4),
                lent.buffer("values", ends[1]),
                memory.marks[:count] & 2,
            ),
            self._repeated("topic", count, lambda: _text(self._span.topic, memory.rows)),
            self._repeated("partition", count, lambda: repeated_number(self._span.partition, memory.rows)),
            numbers(pa.int64(), count, lent.buffer("offsets", 8 * count)),
            numbers(TIME, count, lent.buffer("micros", 8 * count), (times < FIRST_MS) | (times > LAST_MS)),
            numbers(pa.int32(), count, lent.buffer("types", 4 * count)),
            numbers(pa.int64(), count, lent.buffer("timestamps", 8 * count)),
        ]
        schema = SCHEMA
        if self._with_headers:
            columns.append(self._header_column())
            schema = SCHEMA_WITH_HEADERS
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _repeated(self, name: str, count: int, made: Callable[[], pa.Array]) -> pa.Array:
        """A column with the same in each row, made once."""
        if name not in self._same or len(self._same[name]) < count:
            self._same[name] = made()
        return self._same[name].slice(0, count)

    def _header_column(self) -> pa.Array:
        if not self._headers:
            return pa.nulls(self._count, HEADERS)
        column: list[list[dict[str, object]] | None] = [None] * self._count
        for row, pairs in self._headers:
            column[row] = [{"key": key, "value": value} for key, value in pairs]
        return _with_names(pa.array(column, _RAW_HEADERS), pa.string())


def _with_names(headers: pa.ListArray, kind: pa.DataType) -> pa.ListArray:
    """Headers with their names as text or as bytes, which are the same: a name need be no UTF-8, and is not checked."""
    content = headers.values
    names = content.field("key")
    names = pa.Array.from_buffers(kind, len(names), names.buffers(), -1, names.offset)
    pairs = pa.StructArray.from_arrays([names, content.field("value")], ["key", "value"], mask=content.is_null())
    buffers = headers.buffers()[:2]
    return pa.Array.from_buffers(pa.list_(pairs.type), len(headers), buffers, -1, headers.offset, [pairs])


# `pa.array`, `pa.scalar` and `cast` load pandas: half a second of every worker. So arrays are laid on memory.


def numbers(kind: pa.DataType, count: int, values: pa.Buffer | np.ndarray, nulls: np.ndarray | None = None) -> pa.Array:
    """A column of numbers that lie one behind the other. nulls: not 0 where there is none."""
    buffer = pa.py_buffer(values) if isinstance(values, np.ndarray) else values
    return pa.Array.from_buffers(kind, count, [None if nulls is None else _valid(nulls), buffer])


def _binary(count: int, ends: pa.Buffer, data: pa.Buffer, nulls: np.ndarray) -> pa.Array:
    """A column of bytes. nulls: not 0 where there is none."""
    return pa.Array.from_buffers(pa.binary(), count, [_valid(nulls), ends, data])


def _valid(nulls: np.ndarray) -> pa.Buffer | None:
    """A bit for each row that has a value; None if all have one. nulls: not 0 where there is none."""
    return pa.py_buffer(np.packbits(nulls == 0, bitorder="little")) if nulls.any() else None


def repeated_number(value: int, count: int) -> pa.Array:
    """A column with the same int in each row."""
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(np.full(count, value, np.int32))])


def _text(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


# ---- the other way


class Producer(NamedTuple):
    """Who writes: with its sequence numbers, what makes a batch that is sent twice be taken once."""

    producer_id: int = -1
    epoch: int = -1


NO_ID = Producer()
"""A producer without an id: what it sends twice is there twice."""


class Encoder:
    """Makes batches of rows with the columns key, value and, if there, timestamp and headers.

    timestampMs counts where timestamp is null, or not there. Raises PipelineError for headers that Kafka has none like.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        names, count = rows.schema.names, rows.num_rows
        self.times = _times(rows, names)
        self.keys, self.values = (
            _Column.of(rows.column(name)) if name in names else _Column.nulls(count) for name in ("key", "value")
        )
        self._headers = np.zeros(count, np.int64)
        self._names = self._contents = _Column.nulls(0)
        if "headers" in names and rows.column("headers").null_count < count:
            self._headers, self._names, self._contents = _columns_of(rows.column("headers"))
        self._header_ends = _ends(self._headers)
        of_headers = 10 * self._header_ends + (self._names.ends + self._contents.ends)[self._header_ends]
        self._ends = 20 * np.arange(count + 1) + self.keys.ends + self.values.ends + of_headers
        self._are_far = count > 0 and int(self.times.max()) - int(self.times.min()) > _LARGEST_TIME

    def batches(self, most_bytes: int, most_records: int = ROWS) -> Iterator[tuple[int, int]]:
        """The rows as runs that make batches of about `most_bytes`, before they are compressed: the first row of each,
        and the one behind its last."""
        first, count = 0, len(self.times)
        while first < count:
            full = int(np.searchsorted(self._ends, self._ends[first] + most_bytes, "right")) - 1
            last = min(max(full, first + 1), first + most_records)
            if self._are_far:
                last = first + _near(self.times[first:last])
            yield first, last
            first = last

    def encoded(self, first: int, last: int, codec_id: int = 0) -> bytearray:
        """The rows from `first` up to, not with, `last` as one v2 batch with offsets from 0."""
        headers = int(self._header_ends[first]), int(self._header_ends[last])
        columns = Columns(
            memoryview(self.times[first:last]),
            self.keys.cut(first, last),
            self.values.cut(first, last),
            memoryview(self._headers[first:last]),
            self._names.cut(*headers),
            self._contents.cut(*headers),
        )
        return build_batch_of(columns, codec_id=codec_id)


class _Column(NamedTuple):
    """A column of bytes or text. sizes: -1 for null. ends: where each begins in the data, and where the last ends."""

    sizes: np.ndarray
    ends: np.ndarray
    data: memoryview

    @classmethod
    def of(cls, column: pa.Array) -> Self:
        """A column of Arrow's."""
        widths = _widths(column)
        nulls = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        if nulls is None:
            return cls(widths, _ends(widths), _data(column))
        hidden = widths[nulls].any()  # bytes that are of no value
        widths[nulls] = 0
        return cls(np.where(nulls, -1, widths), _ends(widths), _data(column.drop_null() if hidden else column))

    @classmethod
    def nulls(cls, count: int) -> Self:
        """A column with nothing in it."""
        return cls(np.full(count, -1, np.int64), np.zeros(count + 1, np.int64), NOTHING)

    def cut(self, first: int, last: int) -> Cells:
        """The cells from `first` up to, not with, `last`."""
        return memoryview(self.sizes[first:last]), self.data[self.ends[first] : self.ends[last]]


def _places(column: pa.Array) -> np.ndarray:
    """Where each cell begins in a column's buffer, and where the last ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    places = np.frombuffer(column.buffers()[1], np.int64 if is_large else np.int32)
    return places[column.offset : column.offset + len(column) + 1]


def _widths(column: pa.Array) -> np.ndarray:
    return np.diff(_places(column)).astype(np.int64)


def _data(column: pa.Array) -> memoryview:
    places, buffer = _places(column), column.buffers()[2]
    return NOTHING if buffer is None else memoryview(buffer).cast("B")[places[0] : places[-1]]


def _ends(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))


def _near(times: np.ndarray) -> int:
    """How many of them, from the first on, are as near to the first one as a batch can tell."""
    base = int(times[0])
    far = (times < max(base, 0) - _LARGEST_TIME - 1) | (times > min(base, 0) + _LARGEST_TIME)
    return int(far.argmax()) if far.any() else len(times)


def _columns_of(headers: pa.ListArray) -> tuple[np.ndarray, _Column, _Column]:
    """How many headers each row has, and the names and contents of all. Raises PipelineError."""
    pairs = headers.flatten()
    names = pairs.field("key")
    if pairs.null_count or names.null_count:
        _refuse(headers)
    counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return counts, _Column.of(names), _Column.of(pairs.field("value"))


def _refuse(headers: pa.ListArray) -> None:
    """Say which headers are no record's. Raises PipelineError."""
    for cell in _with_names(headers, pa.binary()).to_pylist():
        for each in cell or ():
            if each is None or each["key"] is None:
                raise PipelineError(f"headers {cell}: {'a header is null' if each is None else 'a header has no key'}")


def _times(rows: pa.RecordBatch, names: Sequence[str]) -> np.ndarray:
    """Timestamps in ms, -1 for none."""
    found = np.full(rows.num_rows, -1, np.int64)
    for name, per_ms in (("timestampMs", 1), ("timestamp", 1000)):
        if name in names:
            column = rows.column(name)
            numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) // per_ms
            found = np.where(column.is_valid().to_numpy(zero_copy_only=False), numbers, found)
    return found


def hashes(keys: pa.Array) -> np.ndarray:
    """What chooses the partition of each key, 0 or more; 0 for null. A key that comes often is looked at once."""
    coded = keys.cast(pa.binary()).dictionary_encode()
    found = [murmur2(each) for each in coded.dictionary.to_pylist()]
    return np.array([*found, 0], np.int64)[coded.indices.fill_null(len(found)).to_numpy()] & 0x7FFFFFFF


def encoded(records: list[Record], *, codec_id: int = 0, producer: Producer = NO_ID, sequence: int = -1) -> bytearray:
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


def produced(batch: bytearray, producer: Producer, sequence: int) -> bytearray:
    """A batch that `encoded` made without a producer, as this one's. sequence: of its first record."""
    PRODUCER.pack_into(batch, PRODUCER_ID_AT, *producer, sequence & LARGEST_SEQUENCE)
    write_crc(batch, 0, len(batch))
    return batch
