"""Log bytes as rows, without Spark: what most batches are read by, and what any batch is, come to the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from kbroker.pipeline import columns
from kbroker.pipeline.columns import Span
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
