"""Records as columns: what `gather` writes is what `parse` reads, and never beyond the room that it was given; what
`spread` makes of columns is what `pack` makes of records."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import Record, RecordError
from protocol.records.batch import COUNT, RECORDS_AT, unpack_header
from protocol.records.content import (
    Cells,
    Columns,
    Room,
    build_batch,
    build_batch_of,
    gather_records,
    open_records,
    parse_records,
    run_of,
)
from tests.protocol.records.test_walker import WALKERS

BYTES = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
RECORDS = st.lists(st.tuples(st.integers(-1, 2**45), BYTES, BYTES, HEADERS), min_size=1, max_size=20)


def room_for(rows: int, size: int) -> Room:
    ends = (memoryview(array("i", bytes(4 * rows + 4))) for _ in range(2))
    keys, values = next(ends), next(ends)
    numbers = [memoryview(array("q", bytes(8 * rows))) for _ in range(2)]
    blobs = [memoryview(bytearray(size)) for _ in range(2)]
    return Room(*numbers, keys, blobs[0], values, blobs[1], memoryview(bytearray(rows)))


def cells(ends: memoryview, data: memoryview, marks: memoryview, null: int) -> list[bytes | None]:
    return [None if marks[row] & null else bytes(data[ends[row] : ends[row + 1]]) for row in range(len(marks))]


def gathered(room: Room) -> list[Any]:
    keys = cells(room.key_ends, room.keys, room.marks, 1)
    values = cells(room.value_ends, room.values, room.marks, 2)
    headers = [bool(mark & 4) for mark in room.marks]
    return list(zip(room.offsets, room.timestamps, keys, values, headers, strict=True))


@pytest.mark.parametrize("kind", WALKERS)
@settings(max_examples=60)
@given(first=RECORDS, second=RECORDS, codec=st.sampled_from([0, 1]), append_time=st.none() | st.integers(0, 2**40))
def test_columns_say_what_records_say(
    kind: str, first: list[Any], second: list[Any], codec: int, append_time: int | None
) -> None:
    parsed, row, room = [], 0, room_for(len(first) + len(second), 60_000)
    for base, values in ((7, first), (1000, second)):
        records = [Record(base + 2 * index, *each) for index, each in enumerate(values)]
        batch = memoryview(build_batch(records, codec_id=codec, append_time=append_time))
        header = unpack_header(batch, 0)
        body, start, end = open_records(batch, 0, header)
        numbers = (room.offsets, room.timestamps)
        ends = (room.key_ends, room.keys, room.value_ends, room.values)
        found = WALKERS[kind].gather(body, [run_of(start, end, header)], row, numbers, *ends, room.marks)
        row += header[COUNT]
        parsed += parse_records(batch, 0, header)
        assert found == sum(bool(each.headers) for each in records)
    assert gathered(room) == [(*each[:4], bool(each.headers)) for each in parsed]


@pytest.mark.parametrize("kind", WALKERS)
@settings(max_examples=20)
@given(values=st.lists(RECORDS, max_size=5), append_time=st.none() | st.integers(0, 2**40))
def test_batches_are_gathered_in_one_go(kind: str, values: list[list[Any]], append_time: int | None) -> None:
    body, runs, parsed = b"", [], []
    for number, each in enumerate(values):
        records = [Record(1000 * number + index, *cells) for index, cells in enumerate(each)]
        time = append_time if number % 2 else None
        batch = build_batch(records, append_time=time)
        header = unpack_header(batch, 0)
        runs.append(run_of(len(body) + RECORDS_AT, len(body) + len(batch), header))
        parsed += parse_records(memoryview(batch), 0, header)
        body += batch
    room = room_for(len(parsed), 60_000)
    ends = (room.key_ends, room.keys, room.value_ends, room.values)
    found = WALKERS[kind].gather(memoryview(body), runs, 0, (room.offsets, room.timestamps), *ends, room.marks)
    assert found == sum(bool(each.headers) for each in parsed)
    assert gathered(room) == [(*each[:4], bool(each.headers)) for each in parsed]


@pytest.mark.parametrize("kind", WALKERS)
@pytest.mark.parametrize("part", range(7))
def test_room_that_is_too_small_is_not_written_to(kind: str, part: int) -> None:
    records = [Record(index, 1, b"key", b"value") for index in range(3)]
    batch = memoryview(build_batch(records))
    header = unpack_header(batch, 0)
    body, start, end = open_records(batch, 0, header)
    room = room_for(3, end - start)
    short = Room(*(view[:-1] if index == part else view for index, view in enumerate(room)))
    numbers = (short.offsets, short.timestamps)
    ends = (short.key_ends, short.keys, short.value_ends, short.values)
    with pytest.raises(AssertionError):
        WALKERS[kind].gather(body, [run_of(start, end, header)], 0, numbers, *ends, short.marks)


def test_records_that_are_cut_are_refused() -> None:
    batch = bytearray(build_batch([Record(0, 1, b"key", b"value")]))
    batch[-1:] = b"\x7f"  # a number of headers that are not there
    header = unpack_header(batch, 0)
    body, start, end = open_records(memoryview(batch), 0, header)
    with pytest.raises(RecordError, match="header"):
        gather_records(body, [run_of(start, end, header)], 0, room_for(1, 100))


INT64 = st.integers(-(2**63), 2**63 - 1)


def numbers(values: list[int]) -> memoryview:
    return memoryview(array("q", values))


def column(values: list[bytes | None]) -> Cells:
    sizes = [-1 if each is None else len(each) for each in values]
    return numbers(sizes), memoryview(b"".join(each or b"" for each in values))


def in_columns(records: list[Record]) -> Columns:
    pairs = [pair for each in records for pair in each.headers]
    return Columns(
        numbers([each.timestamp for each in records]),
        column([each.key for each in records]),
        column([each.value for each in records]),
        numbers([len(each.headers) for each in records]),
        column([name for name, _ in pairs]),
        column([content for _, content in pairs]),
    )


@pytest.mark.parametrize("kind", WALKERS)
@settings(max_examples=60)
@given(rows=st.lists(st.tuples(INT64 | st.integers(-1, 2**45), BYTES, BYTES, HEADERS), min_size=1, max_size=70))
def test_columns_are_packed_as_their_records_are(kind: str, rows: list[Any]) -> None:
    records = [Record(index, *each) for index, each in enumerate(rows)]
    outcomes: list[Any] = []
    for packed in (
        lambda: WALKERS[kind].spread(3, *in_columns(records)),
        lambda: (bytes(3) + WALKERS[kind].pack(records, 0, records[0].timestamp), max(each[1] for each in records)),
    ):
        try:
            outcomes.append(packed())
        except OverflowError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_of_columns_is_the_batch_of_their_records(codec: int) -> None:
    for times in ([5, 7, 6], [-1, -1, -1], [2**63 - 1, 0, -1]):
        records = [Record(index, time, b"k", b"v" * 300, ((b"h", None),)) for index, time in enumerate(times)]
        assert build_batch_of(in_columns(records), codec_id=codec) == build_batch(records, codec_id=codec)


BROKEN = {
    "no records": Columns(numbers([]), column([]), column([]), numbers([]), column([]), column([])),
    "fewer keys": in_columns([Record(0, 1, b"k", b"v")])._replace(keys=column([])),
    "fewer values": in_columns([Record(0, 1, b"k", b"v")])._replace(values=column([])),
    "no headers' counts": in_columns([Record(0, 1, b"k", b"v")])._replace(headers=numbers([])),
    "more headers than names": in_columns([Record(0, 1, b"k", b"v")])._replace(headers=numbers([1])),
    "headers below none": in_columns([Record(0, 1, b"k", b"v")] * 2)._replace(headers=numbers([1, -1])),
    "a null name": in_columns([Record(0, 1, b"k", b"v", ((b"h", b"c"),))])._replace(names=column([None])),
    "a name without content": in_columns([Record(0, 1, b"k", b"v", ((b"h", b"c"),))])._replace(contents=column([])),
    "keys cut short": in_columns([Record(0, 1, b"k", b"v")])._replace(keys=(numbers([2]), memoryview(b"k"))),
    "values left over": in_columns([Record(0, 1, b"k", b"v")])._replace(values=(numbers([0]), memoryview(b"v"))),
    "a size below null": in_columns([Record(0, 1, b"k", b"v")])._replace(keys=(numbers([-2]), memoryview(b""))),
    "a size that is none": in_columns([Record(0, 1, b"k", b"v")])._replace(keys=(numbers([2**31]), memoryview(b""))),
}


@pytest.mark.parametrize("kind", WALKERS)
@pytest.mark.parametrize("broken", BROKEN)
def test_columns_that_do_not_fit_each_other_are_not_read(kind: str, broken: str) -> None:
    with pytest.raises(AssertionError):
        WALKERS[kind].spread(0, *BROKEN[broken])
