"""Files open at once: many segments to flush, and what becomes of work when no descriptor is left."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from kbroker.log.checkpoints import parse_offsets, read_text
from kbroker.log.config import LogConfig
from kbroker.log.errors import UnforeseenError
from kbroker.log.log import Log
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import LogManager
from kbroker.log.names import HIGH_WATERMARKS, RECOVERY_POINTS, TopicPartition
from kbroker.sim.disk import SimDisk
from protocol.errors import ErrorCode
from protocol.records.batch import BASE_OFFSET
from tests.log.managers import TOPIC_ID, append, create, names, run_jobs, start, wakes_ms
from tests.log.worlds import FOLDER, NOW, batch, fetch, new_disk, open_at, refused
from tests.log.worlds import offsets_in as offsets_of

TINY = LogConfig(segment_bytes=100)
EACH = LogConfig(index_interval_bytes=0)  # an entry for each batch but the first
FEW = ManagerConfig(initial_delay_ms=0, open_files=4)
RETRY_MS = 1_000


def with_segments(disk: SimDisk, count: int) -> LogManager:
    """A partition with so many segments, nothing of it flushed."""
    manager = start(disk, config=TINY, manager_config=FEW)
    manager.get_or_create("t", 0, TOPIC_ID, TINY, is_new=True, wall_ms=NOW)
    run_jobs(manager)
    for _ in range(count):
        append(manager, "t")
    return manager


def most_open(disk: SimDisk) -> list[int]:
    """From now on: the largest number of files open at once, in a list of one."""
    most = [0]

    def look(call: str, path: str) -> None:
        most[0] = max(most[0], disk.open_files)

    disk.slow = look
    return most


def test_a_flush_of_many_segments_has_few_files_open_at_once() -> None:
    disk = SimDisk()
    manager = with_segments(disk, 50)
    most = most_open(disk)
    manager.flush("t", 0)
    run_jobs(manager)
    log = manager.get("t", 0)
    assert log is not None
    assert (log.recovery_point, most[0] <= 4 + 2) == (50, True)


def test_a_clean_stop_has_few_files_open_at_once() -> None:
    disk = SimDisk()
    manager = with_segments(disk, 50)
    most = most_open(disk)
    manager.close()
    assert most[0] <= 4 + 2


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_flush_without_a_descriptor_is_made_again_and_the_directory_stays(code: int) -> None:
    disk = SimDisk()
    manager = with_segments(disk, 3)
    manager.flush("t", 0)
    disk.fail("open", ".log", code)
    assert run_jobs(manager, now_ms=7) == 1
    assert wakes_ms(manager) <= 7 + RETRY_MS
    manager.due(7 + RETRY_MS, NOW)
    run_jobs(manager)
    log = manager.get("t", 0)
    assert log is not None
    assert log.recovery_point == 3


@pytest.mark.parametrize("name", [RECOVERY_POINTS, HIGH_WATERMARKS])
def test_work_that_ended_by_what_nobody_foresaw_is_done_again_and_the_directory_stays(name: str) -> None:
    disk = SimDisk()
    manager = with_segments(disk, 3)
    manager.flush("t", 0)
    manager.due(0, NOW)
    for job in manager.take_jobs(7):
        manager.finished(job, UnforeseenError("MemoryError()"), 7)
    manager.due(7 + RETRY_MS, NOW)
    run_jobs(manager)
    log = manager.get("t", 0)
    assert log is not None
    assert (log.recovery_point, name in names(disk, "/a"), manager.has_online_directory) == (3, True, True)


def recovery_points(disk: SimDisk) -> dict[TopicPartition, int]:
    return parse_offsets(read_text(disk, "/a", RECOVERY_POINTS) or "0\n0\n")


def test_a_checkpoint_that_could_not_be_put_in_place_is_written_again() -> None:
    disk = SimDisk()
    manager = with_segments(disk, 3)
    manager.flush("t", 0)
    run_jobs(manager)
    manager.due(0, NOW)
    disk.fail("rename", f"{RECOVERY_POINTS}.pending", errno.EMFILE)
    run_jobs(manager, now_ms=7)
    before = recovery_points(disk)
    manager.due(7 + RETRY_MS, NOW)
    run_jobs(manager)
    assert (before, recovery_points(disk), manager.has_online_directory) == ({("t", 0): 0}, {("t", 0): 3}, True)


def test_a_topics_id_that_could_not_be_written_for_want_of_a_descriptor_is_written_later() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    disk.fail("open", "partition.metadata.pending", errno.EMFILE)
    run_jobs(manager)
    assert "partition.metadata" not in names(disk, "/a/t-0")
    manager.due(RETRY_MS, NOW)
    run_jobs(manager)
    assert "partition.metadata" in names(disk, "/a/t-0")


def test_a_partition_is_not_made_without_descriptors_and_the_directory_stays() -> None:
    disk = SimDisk()
    manager = start(disk)
    disk.fail("open", ".log", errno.EMFILE)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        create(manager, "t")
    create(manager, "t")
    assert manager.has_online_directory


def test_a_flush_that_could_not_begin_for_want_of_a_descriptor_is_begun_later() -> None:
    disk = SimDisk()
    manager = start(disk)
    config = LogConfig(index_interval_bytes=0)
    manager.get_or_create("t", 0, None, config, is_new=True, wall_ms=NOW)
    for _ in range(3):
        append(manager, "t")
    disk.fail("open", ".index", errno.EMFILE)
    manager.flush("t", 0)
    manager.due(RETRY_MS, NOW)
    run_jobs(manager)
    log = manager.get("t", 0)
    assert log is not None
    assert log.recovery_point == 3


def test_a_start_without_descriptors_is_refused_and_gives_no_directory_up() -> None:
    disk = SimDisk()
    start(disk, "/a", "/b").close()
    disk.restart(power_loss=False)
    disk.fail("open", "/b/.kafka_cleanshutdown", errno.EMFILE)
    with pytest.raises(Exception, match=r"^/b/\.kafka_cleanshutdown: EMFILE .* \(ulimit -n\)$"):
        start(disk, "/a", "/b")


def offsets_in(log: Log) -> list[int]:
    """Where each batch of the active segment begins."""
    return [header[BASE_OFFSET] for _, header in log.segments[-1].batches_from(0)]


@pytest.mark.parametrize("file", [".log", ".index", ".timeindex"])
def test_an_append_without_descriptors_leaves_no_batch_whose_offsets_come_again(file: str) -> None:
    disk = SimDisk()
    manager = start(disk, config=EACH)
    manager.get_or_create("t", 0, None, EACH, is_new=True, wall_ms=NOW)
    for _ in range(2):
        append(manager, "t")
    manager.close()
    manager = start(disk, config=EACH)
    log = manager.get("t", 0)
    assert log is not None
    disk.fail("open", file, errno.EMFILE)
    for _ in range(3):  # the first or the second wants the file
        with suppress(OSError):
            append(manager, "t")
    assert offsets_in(log) == list(range(log.log_end_offset))


def test_an_index_that_cannot_be_written_for_want_of_a_descriptor_is_written_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kbroker.log.index._BLOCK_BYTES", 8)
    disk = SimDisk()
    manager = start(disk)
    log = manager.get_or_create("t", 0, None, EACH, is_new=True, wall_ms=NOW)
    append(manager, "t")
    disk.fail("open", ".index", errno.EMFILE)
    for _ in range(3):
        append(manager, "t")
    assert offsets_in(log) == [0, 1, 2, 3]
    assert log.segments[-1].offsets.count == 3


def lacking_once(file: str, opened_before: int) -> Callable[[str, str], OSError | None]:
    """A fault: no descriptor for a file with this ending, after so many were opened."""
    opened = 0

    def fault(call: str, path: str) -> OSError | None:
        nonlocal opened
        opened += call == "open" and path.endswith(file)
        is_the_one = call == "open" and path.endswith(file) and opened == opened_before + 1
        return OSError(errno.EMFILE, "EMFILE", path) if is_the_one else None

    return fault


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(("opened_before", "file"), [(1, ".index"), (2, ".timeindex")])
def test_a_segment_that_could_not_be_begun_for_want_of_a_descriptor_does_not_hide_what_is_appended_after(
    opened_before: int, file: str, is_clean: bool
) -> None:
    disk = new_disk()
    log = open_at(disk, LogConfig(segment_bytes=400))
    log.append_as_leader(batch(size=100), 0, NOW)
    disk.fault = lacking_once(file, opened_before)
    with pytest.raises(OSError, match="EMFILE"):
        log.append_as_leader(batch(size=250), 0, NOW)  # does not fit: the segment is to be rolled
    for _ in range(2):
        log.append_as_leader(batch(size=10), 0, NOW)
    log.close() if is_clean else log.close_files()
    log = open_at(disk, LogConfig(segment_bytes=400), clean=is_clean)
    assert [offsets_of(fetch(log, offset)) for offset in range(log.log_end_offset)] == [[0, 1, 2], [1, 2], [2]]


def test_indices_that_could_not_be_made_anew_for_want_of_a_descriptor_are_made_anew_later() -> None:
    disk = new_disk()
    log = open_at(disk, EACH)
    for _ in range(4):
        log.append_as_leader(batch(), 0, NOW)
    log.close()
    disk.flip_bit(f"{FOLDER}/00000000000000000000.index", 8 * 15)  # a position that is no batch's
    log = open_at(disk, EACH)
    disk.fault = lacking_once(".timeindex", 0)
    with pytest.raises(OSError, match="EMFILE"):
        fetch(log, 2)
    assert offsets_of(fetch(log, 2)) == [2, 3]


def test_files_set_aside_are_removed_although_a_descriptor_was_lacking_for_the_rest() -> None:
    disk, config = SimDisk(), LogConfig(segment_bytes=100, retention_ms=10)
    manager = start(disk, config=config)
    log = manager.get_or_create("t", 0, None, config, is_new=True, wall_ms=NOW)
    for _ in range(4):
        append(manager, "t")
    log.advance_log_start(2)
    disk.fail("open", "4.timeindex", errno.EMFILE)  # all of it is too old: another segment is to be begun
    manager.due(0, NOW + 1000)
    manager.due(60_000, NOW + 1000)
    run_jobs(manager)
    manager.close()
    assert [name for name in names(disk, "/a/t-0") if ".deleted" in name] == []
