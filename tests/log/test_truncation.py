"""Logs that are cut back, also while files cannot be opened because too many are: then nothing is cut."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.errors import OutOfDescriptorsError
from kbroker.log.facts import LogTruncated
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.sim.disk import SimDisk
from protocol.errors import ErrorCode
from tests.log.managers import TOPIC_ID, append, names, run_jobs, start, told
from tests.log.worlds import NOW, all_offsets, batch, new_disk, open_at, refused

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=0)
RETRY_MS = 1_000


class Place:
    """A manager that has just opened a log of 20 batches of an idempotent producer, in several segments."""

    def __init__(self, *, is_flushed: bool = True, seed: int = 0) -> None:
        self.disk = SimDisk(seed)
        self.manager = self._start()
        log = self.manager.get_or_create("t", 0, TOPIC_ID, SMALL, is_new=True, wall_ms=NOW)
        for number in range(20):
            log.append_from_client(batch(producer=(7, 0, number)), 0, NOW)
        log.set_high_watermark(5)
        if is_flushed:
            self.manager.close()
            self.manager = self._start()
        else:
            run_jobs(self.manager)
        assert len(self.log.segments) > 3

    def _start(self) -> LogManager:
        return start(self.disk, config=SMALL)

    @property
    def log(self) -> Log:
        log = self.manager.get("t", 0)
        assert log is not None
        return log

    def cut(self, offset: int, *, start_over: bool = False, log_start_offset: int | None = None) -> None:
        self.manager.truncate(
            "t", 0, offset, now_ms=0, wall_ms=NOW, start_over=start_over, log_start_offset=log_start_offset
        )

    def cut_at_last(self, offset: int, *, start_over: bool = False) -> None:
        """As a follower does: again and again, and nothing is cut before."""
        before = self.log.log_end_offset
        for _ in range(10):
            try:
                self.cut(offset, start_over=start_over)
            except OutOfDescriptorsError:
                fault, self.disk.fault = self.disk.fault, None
                assert (self.log.log_end_offset, len(self.read())) == (before, before)
                self.disk.fault = fault
            else:
                return
        raise AssertionError("never")

    def read(self) -> list[int]:
        """All offsets."""
        return all_offsets(self.log)

    def go_on(self, now_ms: int = RETRY_MS) -> None:
        self.manager.due(now_ms, NOW)
        run_jobs(self.manager, now_ms)

    @property
    def is_done(self) -> bool:
        return bool(told(self.manager, LogTruncated)) and not self.log.cuts_under_way

    def state(self) -> object:
        """What a cut decides."""
        log = self.log
        entry = log.producers.get(7)
        last = entry.batches[-1] if entry is not None else None
        bounds = (log.log_start_offset, log.high_watermark, log.log_end_offset, log.epochs.entries(), last)
        return bounds, [segment.base_offset for segment in log.segments], names(self.disk, "/a/t-0")


def cut_without_trouble(offset: int, *, start_over: bool = False, is_flushed: bool = True) -> object:
    place = Place(is_flushed=is_flushed)
    place.cut(offset, start_over=start_over)
    place.go_on(0)
    return place.state()


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize(
    ("call", "path"), [("open", ".log"), ("open", ".index"), ("open", ".timeindex"), ("open", ""), ("sync_dir", "t-0")]
)
def test_a_log_is_cut_though_descriptors_were_lacking(call: str, path: str, times: int, is_flushed: bool) -> None:
    wanted = cut_without_trouble(7, is_flushed=is_flushed)
    place = Place(is_flushed=is_flushed)
    place.disk.fail(call, path, errno.EMFILE, times)
    place.cut_at_last(7)
    for attempt in range(times + 1):
        place.go_on(attempt * RETRY_MS)
    assert (place.is_done, place.state()) == (True, wanted)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("path", [".log", ".index", ".timeindex", ""])
def test_a_log_is_emptied_without_descriptors(path: str, times: int) -> None:
    place = Place()
    place.disk.fail("open", path, errno.EMFILE, times)
    place.cut_at_last(50, start_over=True)
    for attempt in range(times + 1):
        place.go_on(attempt * RETRY_MS)
    append(place.manager, "t")
    assert (place.is_done, place.log.log_start_offset, place.log.log_end_offset) == (True, 50, 51)


def test_of_what_a_cut_leaves_the_last_five_batches_are_known_again() -> None:
    log = open_at(new_disk(), LogConfig(segment_bytes=10 * len(batch())))
    for sequence in range(12):
        log.append_as_leader(batch(producer=(9, 0, sequence)), 0, NOW)
    log.truncate_to(10, NOW)
    for sequence in range(5, 10):
        assert log.append_as_leader(batch(producer=(9, 0, sequence)), 1, NOW).first_offset == sequence


def test_nothing_is_told_before_the_cut_is_durable() -> None:
    place = Place()
    place.cut(7)
    assert (place.log.cuts_under_way, told(place.manager, LogTruncated)) == (1, [])


def test_recovery_trusts_nothing_of_a_cut_that_a_crash_interrupts() -> None:
    """The checkpoint goes first, whatever becomes of the files."""
    for seed in range(16):
        place = Place(seed=seed)
        place.cut(7)
        place.disk.restart()
        place.manager = place._start()
        assert place.log.log_end_offset >= 7
        assert place.read() == list(range(place.log.log_end_offset))


def test_what_was_cut_right_before_a_clean_stop_stays_away_whatever_the_power_does() -> None:
    ends = set()
    for seed in range(16):
        place = Place(is_flushed=False, seed=seed)
        place.manager.flush("t", 0)
        (flush,) = place.manager.take_jobs(0)
        flush.run()
        offset = place.log.segments[1].base_offset
        place.cut(offset)
        place.manager.finished(flush, None, 0)
        place.manager.close()
        place.disk.restart()
        place.manager = place._start()
        ends.add(place.log.log_end_offset - offset)
    assert ends == {0}


def test_any_other_error_takes_the_directory_offline() -> None:
    place = Place()
    place.disk.fail("open", ".log", errno.EIO)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        place.cut(7)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        place.manager.get("t", 0)
