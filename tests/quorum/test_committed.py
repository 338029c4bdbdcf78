"""What is committed is read once, in order, the newest snapshot first."""

from __future__ import annotations

import pytest

from kbroker.log.errors import CorruptFileError
from kbroker.quorum import committed
from kbroker.quorum.committed import CommittedReader, ReadPiece
from kbroker.quorum.metadata_log import MetadataLog
from protocol.messages.quorum import SnapshotFooterRecord, SnapshotHeaderRecord
from tests.quorum.worlds import FOLDER, NOW, batch, new_disk, open_at, put_snapshot


def pieces(reader: CommittedReader, high_watermark: int) -> list[ReadPiece]:
    found = []
    while (piece := reader.read(high_watermark)) is not None:
        found.append(piece)
    return found


def log_of(*batches: bytes) -> MetadataLog:
    found = open_at(new_disk())
    for each in batches:
        found.append(memoryview(each), NOW)
    return found


def test_nothing_above_the_high_watermark_is_read() -> None:
    reader = CommittedReader(log_of(batch(0, b"a", b"b"), batch(2, b"c", epoch=2), batch(3, b"d", epoch=2)))
    (piece,) = pieces(reader, 3)
    assert (piece.values, piece.offset, piece.epoch, piece.timestamp) == ([b"a", b"b", b"c"], 2, 2, NOW)
    assert not reader.has_more(3)
    assert [each.values for each in pieces(reader, 4)] == [[b"d"]]


def test_a_snapshot_is_read_first_and_then_the_log_behind_it() -> None:
    found = log_of(*(batch(offset, b"%d" % offset) for offset in range(10)))
    found.log.set_high_watermark(10)
    put_snapshot(found, 8, b"all", b"of it")
    first, second = pieces(CommittedReader(found), 10)
    assert (first.is_snapshot, first.is_first, first.is_last, first.offset) == (True, True, True, 7)
    assert first.values == [b"all", b"of it"]
    assert [type(each) for each in first.control] == [SnapshotHeaderRecord, SnapshotFooterRecord]
    assert (second.is_snapshot, second.values, second.offset) == (False, [b"8", b"9"], 9)


def test_a_large_snapshot_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed, "PIECE_BYTES", 200)
    found = open_at(new_disk())
    values = [b"x" * 50] * 20 + [b"y" * 500] + [b"z"]
    put_snapshot(found, 100, *values)
    found.start_at_latest_snapshot(NOW)
    read = pieces(CommittedReader(found), 100)
    assert [value for each in read for value in each.values] == values
    assert [each.is_first for each in read] == [True] + [False] * (len(read) - 1)
    assert [each.is_last for each in read] == [False] * (len(read) - 1) + [True]


def test_a_snapshot_that_stands_for_what_was_read_is_not_read() -> None:
    found = log_of(batch(0, b"a"), batch(1, b"b"))
    reader = CommittedReader(found)
    assert len(pieces(reader, 2)) == 1
    found.log.set_high_watermark(2)
    put_snapshot(found, 2, b"both")
    found.append(memoryview(batch(2, b"c")), NOW)
    assert [each.values for each in pieces(reader, 3)] == [[b"c"]]


def test_a_log_that_begins_behind_what_was_read_starts_over_with_its_snapshot() -> None:
    found = log_of(batch(0, b"a"))
    reader = CommittedReader(found)
    assert len(pieces(reader, 1)) == 1
    put_snapshot(found, 100, b"all", epoch=2)
    found.start_at_latest_snapshot(NOW)
    (piece,) = pieces(reader, 100)
    assert (piece.is_snapshot, piece.values, reader.next_offset) == (True, [b"all"], 100)


@pytest.mark.parametrize("position", [10, 70])
def test_a_damaged_snapshot_is_told_in_a_line(position: int) -> None:
    found = open_at(new_disk())
    where = put_snapshot(found, 100, b"x" * 100)
    file = found._disk.open(f"{FOLDER}/{where.file_name}", "write")
    file.write([b"?"], position)
    found.start_at_latest_snapshot(NOW)
    with pytest.raises(CorruptFileError, match=f"^{FOLDER}/{where.file_name}: "):
        pieces(CommittedReader(found), 100)
