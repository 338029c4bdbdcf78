"""What a log asks to be made durable, and its files given back: flush jobs, descriptors."""

from __future__ import annotations

from kbroker.log.config import LogConfig
from tests.log.worlds import (
    NOW,
    batch,
    fetch,
    flush,
    new_disk,
    open_at,
)

SMALL = LogConfig(segment_bytes=320, index_interval_bytes=100)


# ---- flush


def test_a_flush_moves_the_recovery_point() -> None:
    log = open_at(new_disk())
    log.append_as_leader(batch(3), 0, NOW)
    flush(log)
    assert (log.recovery_point, log.start_flush()) == (3, None)


def test_a_flush_of_what_was_cut_meanwhile_counts_for_nothing() -> None:
    log = open_at(new_disk())
    for _ in range(3):
        log.append_as_leader(batch(), 0, NOW)
    job = log.start_flush()
    assert job is not None
    job.run()
    log.truncate_to(1, NOW)
    log.append_as_leader(batch(5), 1, NOW)
    assert log.flushed(job, 0) == 0


def test_flushes_are_asked_for_by_count() -> None:
    log = open_at(new_disk(), LogConfig(flush_messages=3))
    asked = [log.append_as_leader(batch(), 0, NOW).needs_flush for _ in range(4)]
    assert asked == [False, False, True, True]


def test_the_high_watermark_does_not_pass_what_a_count_wants_durable_first() -> None:
    log = open_at(new_disk(), LogConfig(flush_messages=3))
    marks = []
    for _ in range(4):
        log.append_as_leader(batch(), 0, NOW)
        marks.append(log.set_high_watermark(log.log_end_offset))
    flush(log)
    assert (marks, log.set_high_watermark(log.log_end_offset)) == ([1, 2, 2, 2], 4)


def test_a_count_starts_anew_behind_what_is_wanted_durable_already() -> None:
    log = open_at(new_disk(), LogConfig(flush_messages=3))
    wanted = []
    for _ in range(7):
        log.append_as_leader(batch(), 0, NOW)
        wanted.append(log.flush_wanted)
    assert wanted == [0, 0, 3, 3, 3, 6, 6]


def test_nobody_waits_for_what_was_cut() -> None:
    log = open_at(new_disk(), LogConfig(flush_messages=1))
    log.append_as_leader(batch(3), 0, NOW)
    log.truncate_to(0, NOW)
    assert not log.awaits_flush


def test_a_roll_asks_for_a_flush_of_what_it_closed() -> None:
    log = open_at(new_disk(), SMALL)
    asked = [log.append_as_leader(batch(), 0, NOW).needs_flush for _ in range(5)]
    job = log.start_flush(rolled_only=True)
    assert job is not None
    job.run()
    assert (asked, log.flushed(job, 0)) == ([False] * 4 + [True], 4)


# ---- descriptors


def test_few_descriptors_are_held_however_many_segments_there_are() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL, limit=5)
    for _ in range(200):
        log.append_as_leader(batch(), 0, NOW)
    for offset in range(0, 200, 3):
        fetch(log, offset)
    assert disk.open_files <= 6
