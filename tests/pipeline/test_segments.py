"""Segment files as rows, without Spark: read a piece at a time, wherever the pieces end."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from kbroker.pipeline import columns, segments
from kbroker.pipeline.columns import Span
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.segments import PAGE, Segment
from kbroker.pipeline.source import KbrokerSource
from protocol.records.batch import HEADER_SIZE, write_crc
from protocol.records.content import build_batch
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.pipeline.given import records
from tests.pipeline.test_columns import mixed

EVERYTHING = Span("t", 0, 0, 10**9)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "READ_BYTES", PAGE)


def segment(folder: Path, log: bytes, position: int = 0, span: Span = EVERYTHING) -> Segment:
    path = folder / f"{0:020}.log"
    path.write_bytes(log)
    return Segment(str(path), span, position, None)


def read(given: Segment) -> list[dict[str, object]]:
    return [row for batch in segments.rows(given, headers=True) for row in batch.to_pylist()]


def decoded(log: bytes) -> list[dict[str, object]]:
    batches = columns.decoded([memoryview(log)], EVERYTHING, headers=True)
    return [row for batch in batches for row in batch.to_pylist()]


def sized(count: int, size: int, offset: int) -> bytes:
    """A batch of so many records of so many bytes."""
    run = [each._replace(offset=offset + index, value=b"v" * size) for index, each in enumerate(records(count))]
    return bytes(build_batch(run))


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_a_segment_are_the_whole_of_it(tmp_path: Path, seed: int) -> None:
    log = mixed(seed)
    assert len(log) > 5 * PAGE
    assert read(segment(tmp_path, log)) == decoded(log)


def test_a_segment_is_read_from_any_position(tmp_path: Path) -> None:
    batches = [sized(3, 700, 3 * number) for number in range(20)]
    log = b"".join(batches)
    for number in range(20):
        position = sum(map(len, batches[:number]))
        assert read(segment(tmp_path, log, position)) == decoded(log[position:])


def test_batches_of_many_pieces_are_read(tmp_path: Path) -> None:
    sizes = [10, 5000, 100_000, 10, 1_000_000, 4085, 10, 10]
    log = b"".join(sized(1, size, offset) for offset, size in enumerate(sizes))
    found = read(segment(tmp_path, log))
    assert [len(row["value"]) for row in found] == sizes  # type: ignore[arg-type]
    assert found == decoded(log)


@pytest.mark.parametrize("left", [1, 11, 12, 25, 26, 60, 5000])
def test_a_batch_that_is_cut_short_is_not_there(tmp_path: Path, left: int) -> None:
    log = sized(5, 900, 0) + sized(5, 900, 5) + sized(1, 10_000, 10)[:left]
    assert [row["offset"] for row in read(segment(tmp_path, log))] == list(range(10))


def test_damage_is_told_with_its_position_in_the_file_and_no_other(tmp_path: Path) -> None:
    batches = [bytearray(sized(3, 700, 3 * number)) for number in range(20)]
    batches[15][-1] ^= 1
    position = sum(map(len, batches[:15]))
    given = segment(tmp_path, b"".join(batches))
    told = re.escape(f"{given.path}: position {position}: CORRUPT_MESSAGE: ") + "checksum [^()]*: `kbroker"
    with pytest.raises(PipelineError, match=told):
        read(given)


def test_a_record_that_is_none_is_told_with_its_position_in_the_file(tmp_path: Path) -> None:
    batches = [bytearray(sized(3, 700, 3 * number)) for number in range(20)]
    damaged = batches[15]
    damaged[HEADER_SIZE + 1] = 0xFF  # the size of the first record goes on with the attributes, then the next byte
    write_crc(damaged, 0, len(damaged))
    position = sum(map(len, batches[:15]))
    given = segment(tmp_path, b"".join(batches))
    with pytest.raises(PipelineError, match=r": position \d+, record 0: INVALID_RECORD: ") as caught:
        read(given)
    told = int(re.search(r"position (\d+)", str(caught.value))[1])  # type: ignore[index]
    assert position < told < position + len(damaged)


@pytest.mark.parametrize("headers", [False, True])
def test_a_compressed_record_that_is_none_is_told_with_the_position_of_its_batch(tmp_path: Path, headers: bool) -> None:
    """Where it is among the decompressed bytes is no position of the file."""
    plain, many = sized(3, 700, 0), bytearray(build_batch(records(50), codec_id=1))
    many[HEADER_SIZE - 1] += 1  # says that it holds one more
    write_crc(many, 0, len(many))
    given = segment(tmp_path, plain * 10 + many + plain * 10)
    with pytest.raises(PipelineError, match=f": position {10 * len(plain)}, record 50: INVALID_RECORD: "):
        list(segments.rows(given, headers=headers))


def test_a_segment_that_is_cut_back_while_it_is_read_ends_there(tmp_path: Path) -> None:
    """A broker that follows another cuts back what that one has not."""
    given = segment(tmp_path, b"".join(sized(3, 700, 3 * number) for number in range(40)))
    with open(given.path, "rb") as file:
        batches = segments.Pieces(file.fileno(), 0).whole_batches()
        next(batches)
        os.truncate(given.path, 2 * PAGE)
        assert 0 < sum(map(len, batches)) < 2 * PAGE


def of_length(size: int) -> bytes:
    """As much of a batch as its size."""
    return bytes(8) + (size - 12).to_bytes(4, "big") + bytes(size - 12)


@pytest.mark.parametrize(
    "sizes",
    [
        [
            4 * PAGE,
            3 * PAGE + 10,
            *[PAGE // 64] * 1000,
        ],  # what is left of the second is hardly read, but longer than most
        [5 * PAGE] * 20,
        [PAGE // 64] * 1000,
        [9 * PAGE + 5, 7, 11] + [3 * PAGE - 1] * 9,
    ],
)
def test_large_batches_cost_no_more_reads_and_memory_than_they_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """A piece of memory's size was once what was left of a batch, for all the rest of the file."""
    log = b"".join(of_length(max(size, 26)) for size in sizes)
    reads, memory, read = [], set(), segments.preadv

    def counted(fd: int, views: list[memoryview], position: int) -> int:
        memory.add(views[0].obj)
        reads.append(read(fd, views, position))
        return reads[-1]

    monkeypatch.setattr(segments, "preadv", counted)
    with open(segment(tmp_path, log).path, "rb") as file:
        assert b"".join(bytes(each) for each in segments.Pieces(file.fileno(), 0).whole_batches()) == log
    assert len(reads) <= -(-len(log) // PAGE)
    assert len(memory) <= 2


def test_a_file_system_that_reads_less_than_it_was_asked_for_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, read_at = segment(tmp_path, log := mixed(1) + sized(1, 20 * PAGE, 10**6)), segments.preadv
    monkeypatch.setattr(segments, "preadv", lambda fd, views, position: read_at(fd, [views[0][:1000]], position))
    assert read(given) == decoded(log)


def test_a_segment_that_is_cut_back_within_a_large_batch_ends_before_it(tmp_path: Path) -> None:
    small = sized(3, 700, 0)
    given = segment(tmp_path, small + of_length(40 * PAGE))
    with open(given.path, "rb") as file:
        batches = segments.Pieces(file.fileno(), 0).whole_batches()
        found = [bytes(next(batches))]
        os.truncate(given.path, 20 * PAGE)
        assert b"".join(found + [bytes(each) for each in batches]) == small


@pytest.mark.parametrize("options", [{"path": "."}, {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}])
def test_the_one_task_of_a_read_without_parts_has_no_rows(options: dict[str, str]) -> None:
    """Spark makes it, of no part in particular, where a reader has none."""
    reader = KbrokerSource(options).reader(None)
    assert list(reader.read(InputPartition(None))) == []


def test_nothing_is_read_behind_the_end_of_what_is_wanted(tmp_path: Path) -> None:
    log = b"".join(sized(3, 700, 3 * number) for number in range(40))
    with open(segment(tmp_path, log).path, "rb") as file:
        pieces = segments.Pieces(file.fileno(), 0)
        list(columns.decoded(pieces.whole_batches(), Span("t", 0, 4, 7)))
    assert pieces.position < 2 * PAGE


def test_committed_records_end_where_the_first_transaction_is_open(tmp_path: Path) -> None:
    def of_producer(producer_id: int, offset: int) -> bytes:
        run = [each._replace(offset=offset + index) for index, each in enumerate(records(5))]
        return bytes(build_batch(run, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True))

    (place := tmp_path / "t-0").mkdir()
    end = EndTransactionMarker(ControlType.COMMIT, 0)
    committed = of_producer(6, 0) + build_marker_batch(end, producer_id=6, producer_epoch=0, timestamp=0, offset=5)
    (place / f"{0:020}.log").write_bytes(committed + sized(2, 10, 6) + of_producer(7, 8) + sized(2, 10, 13))
    found: dict[bool, list[int]] = {}
    for committed_only in (False, True):
        planned = segments.plan(str(tmp_path), segments.Wanted(), committed=committed_only)
        rows = [row for each in planned for batch in segments.rows(each, headers=False) for row in batch.to_pylist()]
        found[committed_only] = [row["offset"] for row in rows]
    assert found == {False: [*range(5), *range(6, 15)], True: [*range(5), 6, 7]}


def test_damage_behind_a_transaction_that_is_open_is_told(tmp_path: Path) -> None:
    begun = build_batch(records(5), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    (place := tmp_path / "t-0").mkdir()
    (place / f"{0:020}.log").write_bytes(begun + struct.pack(">qiib15x", 5, 20, 0, 2) + sized(1, 10, 6))
    (planned,) = segments.plan(str(tmp_path), segments.Wanted(), committed=True)
    with pytest.raises(PipelineError, match=f"position {len(begun)}: CORRUPT_MESSAGE"):
        list(segments.rows(planned, headers=False))
