"""The aborted transactions of a segment."""

from __future__ import annotations

from struct import pack

import pytest

from kbroker.log.aborted import AbortedIndex, AbortedTransaction, parse_aborted
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.folder import Folder, OpenFiles
from tests.log.worlds import FOLDER, new_disk

ENTRIES = [AbortedTransaction(7, 10, 20, 15), AbortedTransaction(8, 15, 30, 31), AbortedTransaction(7, 40, 50, 51)]


def filled(place: Folder | None = None) -> AbortedIndex:
    index = AbortedIndex(place or Folder(new_disk(), FOLDER, OpenFiles(10)), 0)
    for entry in ENTRIES:
        index.append(entry)
    return index


@pytest.mark.parametrize(
    ("start", "end", "which", "complete"),
    [(0, 11, [0], True), (21, 32, [1], True), (12, 16, [0, 1], True), (31, 40, [], True), (0, 99, [0, 1, 2], False)],
)
def test_what_overlaps_a_read_is_collected(start: int, end: int, which: list[int], complete: bool) -> None:
    found: list[AbortedTransaction] = []
    assert (filled().collect(start, end, found), found) == (complete, [ENTRIES[i] for i in which])


def test_entries_are_laid_out_as_kafka_does() -> None:
    place = Folder(new_disk(), FOLDER, OpenFiles(10))
    filled(place)
    content = place.disk.open(place.file_path(0, "txnindex"), "read").read(0, 999)
    assert content == b"".join(pack(">hqqqq", 0, *entry) for entry in ENTRIES)
    assert parse_aborted(content) == ENTRIES


def test_a_cut_forgets_markers_at_and_behind_it() -> None:
    place = Folder(new_disk(), FOLDER, OpenFiles(10))
    filled(place).keep_below(50)
    assert AbortedIndex(place, 0).entries() == ENTRIES[:2]


def test_a_missing_file_holds_nothing() -> None:
    assert AbortedIndex(Folder(new_disk(), FOLDER, OpenFiles(10)), 0).entries() == []


def test_damage_is_named_by_position() -> None:
    good = pack(">hqqqq", 0, *ENTRIES[0])
    with pytest.raises(CorruptFileError, match="position 34"):
        parse_aborted(good + pack(">hqqqq", 0, 1, 5, 3, 2))
    with pytest.raises(NewerFormatError, match="position 34"):
        parse_aborted(good + pack(">hqqqq", 1, 1, 5, 3, 2))
