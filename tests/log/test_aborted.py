"""The aborted transactions of a segment."""

from __future__ import annotations

import errno
from struct import pack

import pytest

from kbroker.log.aborted import AbortedIndex, AbortedTransaction, parse_aborted
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.folder import Folder, OpenFiles
from kbroker.log.producer_state import Origin
from tests.log.worlds import FOLDER, NOW, batch, fetch, marker, new_disk, open_at

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


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_an_abort_that_finds_no_descriptor_for_its_index_is_not_written_and_can_be_tried_again(code: int) -> None:
    disk = new_disk()
    log = open_at(disk)
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    disk.fail("open", ".txnindex", code)
    with pytest.raises(OSError, match=r"EMFILE|ENFILE"):
        log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    before = log.log_end_offset
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    log.set_high_watermark(2)
    assert (before, log.last_stable_offset) == (1, 2)


def test_a_follower_that_finds_no_descriptor_for_the_index_of_aborts_takes_nothing_of_what_it_was_sent() -> None:
    leader, disk = open_at(new_disk()), new_disk()
    leader.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    leader.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    sent = memoryview(bytearray(fetch(leader, 0)))
    follower = open_at(disk)
    disk.fail("open", ".txnindex", errno.EMFILE)
    with pytest.raises(OSError, match=r"EMFILE|ENFILE"):
        follower.append_as_follower(sent, NOW)
    before = follower.log_end_offset
    follower.append_as_follower(sent, NOW)
    assert (before, follower.log_end_offset) == (0, 2)
