"""Records as columns: what `gather` writes is what `parse` reads, and it never writes beyond the room it was given."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.records import Record, RecordError
from protocol.records.batch import COUNT, RECORDS_AT, unpack_header
from protocol.records.content import Room, build_batch, gather_records, open_records, parse_records, run_of
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
