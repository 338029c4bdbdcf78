"""The offset and the time index of a segment."""

from __future__ import annotations

import bisect
import random
from struct import pack

import pytest

from kbroker.log.folder import Folder, OpenFiles
from kbroker.log.index import OffsetIndex, TimeIndex
from tests.log.worlds import FOLDER, new_disk

PATH = f"{FOLDER}/{1000:020d}"


def folder() -> Folder:
    return Folder(new_disk(), FOLDER, OpenFiles(10))


def size_of(place: Folder, part: str) -> int:
    entry = place.disk.stat(f"{PATH}.{part}")
    assert entry is not None
    return entry.size


def content(place: Folder, part: str) -> bytes:
    return place.disk.open(f"{PATH}.{part}", "read").read(0, 1 << 20)


def offsets(count: int, place: Folder | None = None, capacity: int = 80_000) -> OffsetIndex:
    """Entries 1010 -> 100, 1020 -> 200, ..."""
    index = OffsetIndex(place or folder(), 1000, capacity, 0)
    for i in range(1, count + 1):
        index.append(1000 + 10 * i, 100 * i)
    return index


@pytest.mark.parametrize(
    ("offset", "found"),
    [(1000, (1000, 0)), (1009, (1000, 0)), (1010, (1010, 100)), (1025, (1020, 200)), (9**9, (1030, 300))],
)
def test_a_lookup_finds_the_last_entry_at_or_before(offset: int, found: tuple[int, int]) -> None:
    assert offsets(3).lookup(offset) == found


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 2000])
def test_lookups_agree_with_bisection_in_file_and_memory(count: int) -> None:
    index, keys = offsets(count), [1000 + 10 * i for i in range(count + 1)]
    for offset in random.Random(1).choices(range(1000, 1000 + 10 * count + 20), k=300):
        at = bisect.bisect_right(keys, offset) - 1
        assert index.lookup(offset) == (keys[at], 100 * at)


def test_an_empty_index_touches_no_file() -> None:
    place = folder()
    assert OffsetIndex(place, 1000, 800, 0).lookup(5000) == (1000, 0)
    assert place.disk.stat(f"{PATH}.index") is None


def test_entries_are_laid_out_as_kafka_does() -> None:
    place = folder()
    offsets(2, place).trim()
    assert content(place, "index") == pack(">IIII", 10, 100, 20, 200)


def test_time_entries_are_laid_out_as_kafka_does() -> None:
    place = folder()
    index = TimeIndex(place, 1000, 1200, 0)
    index.append_if_later(77, 1005)
    index.append_if_later(88, 1009)
    index.trim()
    assert content(place, "timeindex") == pack(">qIqI", 77, 5, 88, 9)


def test_a_file_that_grows_is_laid_out_in_full_and_trimmed_at_the_end() -> None:
    place = folder()
    index = offsets(600, place, capacity=10_000)
    grown = size_of(place, "index")
    index.trim()
    assert (grown, size_of(place, "index")) == (10_000, 4800)


def test_unused_room_is_not_taken_for_entries() -> None:
    place = folder()
    offsets(600, place, capacity=10_000).write_tail()
    again = OffsetIndex(place, 1000, 10_000, size_of(place, "index"))
    assert (again.count, again.last_offset) == (600, 7000)


def test_the_first_record_of_a_segment_may_be_of_timestamp_zero() -> None:
    place = folder()
    index = TimeIndex(place, 1000, 1200, 0)
    index.append_if_later(0, 1000)
    index.trim()
    assert TimeIndex(place, 1000, 1200, size_of(place, "timeindex")).last_timestamp == 0


def test_a_torn_last_entry_is_left_out() -> None:
    place = folder()
    offsets(3, place).trim()
    assert OffsetIndex(place, 1000, 800, 23).count == 2


@pytest.mark.parametrize("below", [1000, 1010, 1011, 4000, 6120, 6121, 7000, 7010])
def test_a_cut_forgets_entries_at_and_behind_the_offset(below: int) -> None:
    index = offsets(600)
    index.keep_below(below)
    kept = [1000 + 10 * i for i in range(1, 601) if 1000 + 10 * i < below]
    assert [index.entry(slot)[0] for slot in range(index.count)] == kept
    index.append(below + 5, 1)
    assert index.lookup(below + 7)[0] == below + 5


def test_an_index_is_full_at_its_capacity_and_a_time_index_one_before() -> None:
    index, times = offsets(9, capacity=80), TimeIndex(folder(), 1000, 120, 0)
    for i in range(9):
        times.append_if_later(i, 1000 + i)
    assert (index.is_full, times.is_full) == (False, True)
    index.append(2000, 1)
    assert index.is_full


def times(*entries: tuple[int, int]) -> TimeIndex:
    index = TimeIndex(folder(), 1000, 1200, 0)
    for timestamp, offset in entries:
        index.append_if_later(timestamp, offset)
    return index


def test_only_later_timestamps_get_entries() -> None:
    index = times((50, 1001), (50, 1002), (40, 1003), (60, 1004))
    assert [index.entry(i) for i in range(index.count)] == [(50, 1001), (60, 1004)]


@pytest.mark.parametrize(
    ("timestamp", "found"), [(49, (-1, 1000)), (50, (50, 1001)), (59, (50, 1001)), (99, (60, 1004))]
)
def test_a_time_lookup_finds_the_last_entry_not_later(timestamp: int, found: tuple[int, int]) -> None:
    assert times((50, 1001), (60, 1004)).lookup(timestamp) == found


def test_a_cut_time_index_ends_before_the_offset() -> None:
    index = times((50, 1001), (60, 1004), (70, 1008))
    index.keep_below(1004)
    assert (index.count, index.last_timestamp, index.last_offset) == (1, 50, 1001)


def test_the_position_above_another_is_found() -> None:
    index = offsets(3)
    assert [index.position_above(position) for position in (0, 100, 101, 301)] == [1010, 1010, 1020, None]


def test_a_map_that_was_given_back_is_made_again() -> None:
    index = offsets(600)
    before = index.lookup(3333)
    index.close_files()
    assert index.lookup(3333) == before
