"""Segments that span more than 2^31 offsets: divided when a log is opened, and nothing of them is lost."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.log import Log
from kbroker.sim.disk import PowerLoss, SimDisk
from protocol.records import Record, legacy
from tests.log.worlds import FOLDER, NOW, all_offsets, batch, fetch, marker, new_disk, open_at

CONFIG = LogConfig(index_interval_bytes=100, segment_index_bytes=4096, cleanup_policy=frozenset({"compact"}))
NOT_COMPACTED = LogConfig(index_interval_bytes=100, segment_index_bytes=4096)
FAR = 2**31
OFFSETS = [0, 1, 7, FAR - 1, FAR, FAR + 5, 2 * FAR + 4, 2 * FAR + 5, 5 * FAR]
LAST = 5 * FAR + 100


def path(base_offset: int, part: str = "log") -> str:
    return f"{FOLDER}/{base_offset:020d}.{part}"


def file_of(disk: SimDisk, base_offset: int, content: bytes, part: str = "log") -> None:
    file = disk.open(path(base_offset, part), "create")
    file.write([content], 0)
    file.sync()
    file.close()


def old_log(disk: SimDisk, *, tail: bytes = b"", active: bool = True) -> None:
    """What an old broker's cleaner left: one segment from 0 on, and behind it the active one."""
    content = b"".join(batch(base_offset=at, epoch=0, timestamp=NOW + n) for n, at in enumerate(OFFSETS))
    file_of(disk, 0, content + tail)
    if active:
        file_of(disk, LAST, bytes(batch(base_offset=LAST, epoch=0)))
    disk.sync_dir(FOLDER)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_spans_too_many_offsets_is_divided_and_nothing_is_cut(clean: bool) -> None:
    disk = new_disk()
    old_log(disk)
    for _ in range(2):
        log = open_at(disk, CONFIG, clean=clean)
        assert all_offsets(log) == [*OFFSETS, LAST]
        assert bases(log) == [0, FAR, 2 * FAR + 4, 5 * FAR, LAST]
        for offset in OFFSETS:
            assert int.from_bytes(fetch(log, offset)[:8], "big") == offset
        log.close()


def test_gaps_that_it_leaves_are_those_of_a_compacted_log_whatever_its_settings_are_now() -> None:
    disk = new_disk()
    old_log(disk)
    log = open_at(disk, NOT_COMPACTED, clean=False)
    assert all_offsets(log)[: len(OFFSETS)] == OFFSETS


def test_it_is_said_once_in_one_line() -> None:
    disk = new_disk()
    old_log(disk)
    found: list[str] = []
    for _ in range(2):
        open_at(disk, CONFIG, notices=found).close()
    [line] = [line for line in found if "divided" in line]
    assert line == f"{path(0)}: spans more than {2**31 - 1} offsets: divided into 4 segments"


@pytest.mark.parametrize("clean", [True, False])
def test_the_last_segment_is_divided_too(clean: bool) -> None:
    disk = new_disk()
    old_log(disk, active=False)
    log = open_at(disk, CONFIG, clean=clean, recovery_point=OFFSETS[-1] + 1)
    assert all_offsets(log) == OFFSETS
    assert log.append_as_leader(batch(key=b"k"), 0, NOW).first_offset == OFFSETS[-1] + 1


def test_a_torn_end_is_still_cut_and_nothing_else() -> None:
    disk = new_disk()
    old_log(disk, tail=bytes(batch(base_offset=OFFSETS[-1] + 1, epoch=0))[:-1], active=False)
    assert all_offsets(open_at(disk, CONFIG, clean=False, recovery_point=OFFSETS[-1] + 1)) == OFFSETS


def test_a_changed_bit_in_an_offset_is_no_reason_to_divide() -> None:
    disk = new_disk()
    small = LogConfig(segment_bytes=300)
    log = open_at(disk, small)
    for _ in range(6):
        log.append_as_leader(batch(), 0, NOW)
    log.close()
    last = log.segments[-1]
    disk.flip_bit(path(last.base_offset), 8 * (last.size - len(batch())) + 20)
    assert all_offsets(open_at(disk, small, clean=False)) == list(range(5))
    assert [name for name in disk.paths() if name.endswith((".cleaned", ".swap"))] == []


def test_old_messages_are_found_by_the_first_offset_inside_their_wrapper() -> None:
    disk = new_disk()
    wrapper = legacy.build_set([Record(FAR + at, NOW, None, b"v") for at in (1, 2, 3)], 1, codec_id=1)
    file_of(disk, 0, bytes(legacy.build_set([Record(0, NOW, None, b"v")], 1)) + bytes(wrapper))
    file_of(disk, LAST, bytes(batch(base_offset=LAST, epoch=0)))
    disk.sync_dir(FOLDER)
    log = open_at(disk, CONFIG)
    assert bases(log) == [0, FAR + 1, LAST]
    assert fetch(log, FAR + 1)[:8] == (FAR + 3).to_bytes(8, "big")


@pytest.mark.parametrize("damaged", [False, True])
def test_aborted_transactions_go_with_their_markers(damaged: bool) -> None:
    disk = new_disk()
    content, told = b"", []
    for first in (3, FAR + 3):
        content += batch(base_offset=first, epoch=0, producer=(9, 0, 0 if first == 3 else 1), attributes=0x10)
        content += marker(9, 0, commit=False, base_offset=first + 1, leader_epoch=0)
        told.append((9, first, first + 1))
    entries = b"".join(
        b"".join(
            value.to_bytes(width, "big") for value, width in zip((0, *each, each[2] + 1), (2, 8, 8, 8, 8), strict=True)
        )
        for each in told
    )
    file_of(disk, 0, content)
    file_of(disk, 0, b"\x7f" + entries[1:] if damaged else entries, "txnindex")
    file_of(disk, LAST, bytes(batch(base_offset=LAST, epoch=0)))
    disk.sync_dir(FOLDER)
    log = open_at(disk, CONFIG)
    assert bases(log) == [0, FAR + 3, LAST]
    found = [log.read(at, 1 << 20, log.log_end_offset, with_aborted=True).aborted for at in (3, FAR + 3)]
    assert [[(each.producer_id, each.first_offset, each.last_offset) for each in some or []] for some in found] == [
        [told[0]],
        [told[1]],
    ]


@pytest.mark.parametrize("seed", range(3))
def test_power_fails_at_every_call(seed: int) -> None:
    call, crashed = 1, True
    while crashed:
        disk = new_disk(seed)
        old_log(disk)
        disk.crash_at = disk.calls + call
        try:
            open_at(disk, CONFIG, clean=False)
            crashed = disk.is_down
        except PowerLoss:
            pass
        disk.crash_at = None
        disk.restart()
        log = open_at(disk, CONFIG, clean=False)
        assert all_offsets(log) == [*OFFSETS, LAST], call
        assert not [name for name in disk.paths() if name.endswith((".cleaned", ".swap"))]
        call += 1
    assert call > 40


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_every_call_may_fail_and_the_next_start_finds_all(code: int) -> None:
    call, failures, failed = 0, 0, True
    while failed:
        call += 1
        disk = new_disk()
        old_log(disk)
        calls, failed = 0, False

        def fault(kind: str, name: str, at: int = call) -> OSError | None:
            nonlocal calls, failed
            calls += kind not in ("read", "open_read", "stat", "list")
            failed = failed or calls == at
            return OSError(code, "injected", name) if calls == at else None

        disk.fault = fault
        try:
            open_at(disk, CONFIG)
        except OSError:
            failures += 1
        disk.fault = None
        disk.restart(power_loss=False)
        assert all_offsets(open_at(disk, CONFIG)) == [*OFFSETS, LAST], call
    assert failures > 20


def test_parts_are_segments_as_if_they_had_been_written_so() -> None:
    disk = new_disk()
    old_log(disk)
    log = open_at(disk, CONFIG)
    for segment in log.segments:
        kept = segment.index_bytes
        segment.rebuild_indices()
        assert segment.index_bytes == kept
