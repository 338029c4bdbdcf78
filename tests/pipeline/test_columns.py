"""Log bytes as rows, without Spark: what most batches are read by, and what any batch is, come to the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.pipeline import columns
from kbroker.pipeline.columns import Encoder, Span
from kbroker.pipeline.errors import PipelineError
from protocol.records import Record, RecordError, legacy
from protocol.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_SIZE, LENGTH_AT, LENGTH_OVERHEAD, MAGIC_AT, write_crc
from protocol.records.content import build_batch
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.pipeline.given import records

ABORTED = 5
"""The producer whose transaction is aborted."""


def mixed(seed: int) -> bytes:
    """A log of every kind of batch, most of them plain; offsets with gaps. Producer ABORTED's transaction is open."""
    rng, log, offset = random.Random(seed), b"", 0
    for number in range(60):
        run = [each._replace(offset=offset + index) for index, each in enumerate(records(rng.randrange(1, 40), number))]
        kind = rng.choice(["plain"] * 6 + ["codec", "appended", "transaction", "old", "marker", "empty", "wider"])
        last = run[-1].offset
        given: dict[str, Any] = {}
        if kind == "codec":
            given = {"codec_id": rng.randrange(1, 5)}
        elif kind == "appended":
            given = {"append_time": 1_700_000_000_123 + number}
        elif kind == "transaction":
            given = {"producer_id": rng.choice([ABORTED, 6]), "producer_epoch": 0, "base_sequence": 0}
            given["transactional"] = True
        elif kind == "wider":
            last += 3
            given = {"last_offset": last}
        if kind == "old":
            log += legacy.build_set([each._replace(headers=()) for each in run], rng.randrange(2))
        elif kind == "marker":
            end = EndTransactionMarker(ControlType.COMMIT, 0)
            log += build_marker_batch(end, producer_id=6, producer_epoch=0, timestamp=run[0].timestamp, offset=offset)
            last = offset
        elif kind == "empty":
            log += build_batch([], base_offset=offset, last_offset=last, max_timestamp=-1)
        else:
            log += build_batch(run, **given)
        offset = last + 1 + rng.randrange(3)
    return log


def rows(log: bytes, start: int, end: int, *, headers: bool) -> list[dict[str, object]]:
    aborted = lambda: [(ABORTED, 0)]  # noqa: E731
    found = columns.decoded([memoryview(log)], Span("t", 3, start, end), headers=headers, aborted=aborted)
    return [row for batch in found for row in batch.select(columns.SCHEMA.names).to_pylist()]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("limit", [("BYTES", 6000), ("ROWS", 50)])
def test_plain_batches_in_one_loop_are_what_each_is_by_itself(
    seed: int, limit: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With headers each batch is taken by itself."""
    monkeypatch.setattr(columns, *limit)
    log = mixed(seed)
    for start, end in ((0, 2**63 - 1), (100, 500), (333, 334)):
        expected = rows(log, start, end, headers=True)
        assert expected
        assert rows(log, start, end, headers=False) == expected
    assert rows(log[:-7], 0, 2**63 - 1, headers=False) == rows(log[:-7], 0, 2**63 - 1, headers=True)


DAMAGE = {
    "attributes": (ATTRIBUTES_AT, 0xFF, False),
    "record": (HEADER_SIZE + 9, 0xFF, False),
    "record, checksum mended": (HEADER_SIZE, 0xFF, True),
    "length": (LENGTH_AT + 3, 0x10, False),
    "magic": (MAGIC_AT, 3, False),
    "count below none": (HEADER_SIZE - 4, 0xFF, True),
    "count of none": (HEADER_SIZE - 1, 0, True),
    "count": (HEADER_SIZE - 1, 11, True),
    "offset": (0, 0x80, False),
}
"""What of a batch: where in it, the byte that is put there, whether the checksum is made to hold."""


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_batch_among_plain_ones_is_told_as_if_alone(kind: str) -> None:
    at, value, mended = DAMAGE[kind]
    batches = [build_batch(records(first + 10)[first:]) for first in range(0, 50, 10)]
    batches[2][at] = value
    if mended:
        write_crc(batches[2], 0, len(batches[2]))
    outcomes = []
    for headers in (False, True):
        try:
            outcomes.append(str(len(rows(b"".join(batches), 0, 2**63 - 1, headers=headers))))
        except RecordError as error:
            outcomes.append(f"{error.position}: {error}")
    assert outcomes[0] == outcomes[1]
    assert outcomes[0] != "50"


def _wrapper_of_damage() -> bytes:
    inner = legacy.build_set([each._replace(headers=()) for each in records(30)], 1)
    inner[-1] ^= 1
    return bytes(legacy.wrapped(inner, 1, 29, 1, 0, None))


def _compressed_beyond_its_records() -> bytes:
    batch = build_batch(records(50), codec_id=1)
    batch[HEADER_SIZE - 1] += 1
    write_crc(batch, 0, len(batch))
    return bytes(batch)


def _marker_without_a_kind() -> bytes:
    return bytes(build_batch([Record(0, 0, b"x", b"")], producer_id=ABORTED, transactional=True, control=True))


@pytest.mark.parametrize("damaged", [_wrapper_of_damage, _compressed_beyond_its_records, _marker_without_a_kind])
@pytest.mark.parametrize("headers", [False, True])
def test_damage_in_bytes_of_its_own_has_the_position_of_its_batch(damaged: Callable[[], bytes], headers: bool) -> None:
    before = build_batch(records(10)) + build_batch(records(10), producer_id=ABORTED, transactional=True)
    with pytest.raises(RecordError) as caught:
        rows(bytes(before) + damaged() + build_batch(records(10)), 0, 2**63 - 1, headers=headers)
    assert caught.value.position == len(before)


def test_a_batch_that_ends_before_its_records_is_damaged() -> None:
    """The checksum of nothing is 0, and holds."""
    batch = build_batch(records(10))
    batch[LENGTH_AT : LENGTH_AT + 4] = (ATTRIBUTES_AT - LENGTH_OVERHEAD).to_bytes(4, "big")
    batch[CRC_AT : CRC_AT + 4] = bytes(4)
    with pytest.raises(RecordError, match="size 9 is less than any message has"):
        rows(bytes(batch), 0, 2**63 - 1, headers=False)


def test_what_is_not_all_there_or_behind_the_end_is_not_read() -> None:
    batches = [build_batch(records(first + 10)[first:]) for first in range(0, 50, 10)]
    batches[4][LENGTH_AT + 3] += 5  # its checksum holds: the length is not under it
    log = b"".join(batches)
    assert len(rows(log, 0, 2**63 - 1, headers=False)) == 40
    assert len(rows(log[:-200] + bytes(300), 0, 25, headers=False)) == 25


def test_a_plain_batch_costs_no_call() -> None:
    """Of a function of `columns`: calls for each batch took a worker some 7 us."""
    log = memoryview(b"".join(build_batch([Record(offset, 0, None, bytes(100))]) for offset in range(1000)))
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == columns.__file__

    sys.setprofile(count)
    try:
        found = list(columns.decoded([log], Span("t", 0, 0, 1000)))
    finally:
        sys.setprofile(None)
    assert sum(batch.num_rows for batch in found) == 1000
    assert calls < 100


def test_columns_of_a_batch_say_where_they_end() -> None:
    """Memory is laid out for many more rows than these."""
    (batch,) = columns.decoded([memoryview(build_batch(records(20)))], Span("t", 0, 0, 20))
    batch.validate(full=True)
    sizes = {name: batch.column(name).nbytes for name in ("offset", "timestamp", "partition")}
    assert sizes == {"offset": 160, "timestamp": 160, "partition": 80}
    assert pa.Table.from_batches([batch]).nbytes < 3000


CELL = st.none() | st.binary(max_size=8) | st.integers(50, 400).map(bytes)
HEADER = st.tuples(st.binary(max_size=5).filter(lambda name: name.isascii()), CELL)
TIMES = st.integers(0, 2**45) | st.sampled_from([-1, 0, 253_402_214_399_999, 253_402_214_400_000, 2**62, 2**63 - 1])
ROWS = st.lists(st.tuples(TIMES, CELL, CELL, st.lists(HEADER, max_size=3).map(tuple)), max_size=40)


def as_rows(found: list[Record], *, large: bool = False, text: bool = False) -> pa.RecordBatch:
    """Records as Spark hands them to a Python worker. text: names of headers as text, as the data source has them."""
    blob = pa.large_binary() if large else pa.binary()
    headers = pa.list_(pa.struct([("key", pa.string() if text else pa.binary()), ("value", pa.binary())]))
    pairs = [[{"key": name, "value": value} for name, value in each.headers] or None for each in found]
    columns = {
        "key": pa.array([each.key for each in found], blob),
        "value": pa.array([each.value for each in found], blob),
        "timestampMs": pa.array([each.timestamp for each in found], pa.int64()),
        "headers": pa.array(pairs, headers),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def runs_of(found: list[Record], most_bytes: int, most_records: int) -> list[list[Record]]:
    """Records in batches of so many bytes, and so many records, at most: counted one by one."""
    runs: list[list[Record]] = []
    size = 0
    for each in found:
        more = 20 + len(each.key or b"") + len(each.value or b"")
        more += sum(10 + len(name) + len(content or b"") for name, content in each.headers)
        if not runs or size + more > most_bytes or len(runs[-1]) == most_records or _is_far(runs[-1][0], each):
            runs.append([])
            size = 0
        runs[-1].append(each)
        size += more
    return [[each._replace(offset=index) for index, each in enumerate(run)] for run in runs]


def _is_far(first: Record, other: Record) -> bool:
    return not -(2**63) <= other.timestamp - first.timestamp < 2**63


@settings(max_examples=80)
@given(ROWS, st.integers(1, 2000), st.integers(1, 50), st.integers(0, 4), st.booleans(), st.integers(0, 5))
def test_rows_become_the_batches_of_their_records(
    rows: list[Any], most_bytes: int, most_records: int, codec: int, large: bool, cut: int
) -> None:
    found = [Record(index, *each) for index, each in enumerate(rows)]
    encoder = Encoder(as_rows(found, large=large, text=codec % 2 == 0).slice(cut))  # as a part of a batch of Spark's
    made = [encoder.encoded(*run, codec) for run in encoder.batches(most_bytes, most_records)]
    assert made == [build_batch(run, codec_id=codec) for run in runs_of(found[cut:], most_bytes, most_records)]


def test_times_that_no_batch_has_together_go_to_several() -> None:
    found = [Record(index, time, b"k", b"v") for index, time in enumerate([-1, 5, 2**63 - 1, 2**63 - 2, -1])]
    encoder = Encoder(as_rows(found))
    assert list(encoder.batches(1000)) == [(0, 2), (2, 5)]


def test_rows_without_some_columns_are_records_without_them() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(["a", "bb"])], names=["value"])
    assert Encoder(rows).encoded(0, 2) == build_batch([Record(0, -1, None, b"a"), Record(1, -1, None, b"bb")])


def test_bytes_under_a_null_are_not_written() -> None:
    """Arrow leaves open what lies where there is no value."""
    ends, data = pa.py_buffer(b"".join(each.to_bytes(4, "little") for each in (0, 2, 4, 6))), pa.py_buffer(b"aabbcc")
    column = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(bytes([0b101])), ends, data])
    rows = pa.RecordBatch.from_arrays([column], names=["value"])
    expected = [Record(index, -1, None, value) for index, value in enumerate((b"aa", None, b"cc"))]
    assert Encoder(rows).encoded(0, 3) == build_batch(expected)


def test_a_batch_of_rows_costs_no_call_for_each() -> None:
    found = as_rows([Record(index, index, b"key", bytes(100)) for index in range(1000)])
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == columns.__file__

    sys.setprofile(count)
    try:
        encoder = Encoder(found)
        made = [encoder.encoded(*run) for run in encoder.batches(500_000)]
    finally:
        sys.setprofile(None)
    assert len(made) == 1
    assert calls < 40


@pytest.mark.parametrize(
    ("headers", "told"), [([None], "a header is null"), ([{"key": None, "value": b"v"}], "a header has no key")]
)
def test_headers_that_no_record_has_are_told(headers: list[Any], told: str) -> None:
    column = pa.array([None, [{"key": "good", "value": None}], headers], columns.HEADERS)
    rows = pa.RecordBatch.from_arrays([pa.array([b""] * 3), column], names=["value", "headers"])
    with pytest.raises(PipelineError, match=told):
        Encoder(rows)
