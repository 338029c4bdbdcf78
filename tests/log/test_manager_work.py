"""The log manager: what is done by and by, and the clean stop."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest

from kbroker.config.limits import FOLDER_RETRY_MS, VACATED_NAMES
from kbroker.log.checkpoints import parse_offsets
from kbroker.log.config import LogConfig
from kbroker.log.directory import PARTITIONS_A_MS, Delete, Flush
from kbroker.log.log_jobs import ManagerConfig
from kbroker.log.manager import LogManager
from kbroker.log.names import OFFSET_CHECKPOINTS
from kbroker.sim.disk import PowerLoss, SimDisk
from tests.log.managers import CONFIG, TOPIC_ID, append, create, names, notices, run_jobs, start, text, wakes_ms
from tests.log.worlds import NOW, fetch, offsets_in

# ---- by and by


def test_checkpoints_are_written_when_due_and_only_if_they_changed() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=2)
    manager.due(0, NOW)
    run_jobs(manager)
    assert parse_offsets(text(disk, "/a/replication-offset-checkpoint")) == {("t", 0): 2}
    manager.due(5_000, NOW)
    assert run_jobs(manager) == 0
    append(manager, "t")
    manager.due(10_000, NOW)
    assert wakes_ms(manager) == 15_000
    assert run_jobs(manager) == 1
    assert parse_offsets(text(disk, "/a/replication-offset-checkpoint")) == {("t", 0): 3}


def test_a_checkpoint_is_written_by_one_job_at_a_time() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    jobs = manager.take_jobs(0)
    append(manager, "t", count=2)
    manager.due(5_000, NOW)
    assert manager.take_jobs(0) == []
    for job in jobs:
        job.run()
        manager.finished(job, None, 0)
    run_jobs(manager)
    assert parse_offsets(text(disk, "/a/replication-offset-checkpoint")) == {("t", 0): 2}


def test_checkpoints_of_many_partitions_are_not_written_over_and_over() -> None:
    disk = SimDisk()
    manager = start(disk)
    for index in range(3 * PARTITIONS_A_MS):
        create(manager, "t", index)
    jobs = manager.take_jobs(0)
    create(manager, "late")
    jobs += manager.take_jobs(0)
    for job in jobs:
        job.run()
        manager.finished(job, None, now_ms=100)
    manager.due(102, NOW)
    assert (wakes_ms(manager), manager.take_jobs(0)) == (103, [])
    manager.due(103, NOW)
    run_jobs(manager)
    assert ("late", 0) in parse_offsets(text(disk, "/a/recovery-point-offset-checkpoint"))


def test_a_truncation_is_not_overtaken_by_an_older_checkpoint() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=1)
    append(manager, "t", count=1)
    manager.flush("t", 0)
    run_jobs(manager)
    manager.due(60_000, NOW)
    jobs = manager.take_jobs(0)
    manager.truncate("t", 0, 1, now_ms=0, wall_ms=NOW)
    for job in jobs:
        job.run()
        manager.finished(job, None, 0)
    assert parse_offsets(text(disk, "/a/recovery-point-offset-checkpoint")) == {("t", 0): 1}


def test_a_deleted_folder_is_due_when_its_topics_settings_say() -> None:
    disk = SimDisk()
    manager = start(disk)
    manager.get_or_create("t", 0, None, LogConfig(file_delete_delay_ms=200), is_new=True, wall_ms=NOW)
    manager.due(0, NOW)
    manager.delete("t", 0, now_ms=1_000)
    assert wakes_ms(manager) == 1_200
    manager.due(1_200, NOW)
    run_jobs(manager)
    assert [name for name in names(disk, "/a") if name.endswith("-delete")] == []


def test_retention_removes_old_segments_and_then_their_files() -> None:
    disk = SimDisk()
    manager = start(disk)
    manager.get_or_create("t", 0, None, LogConfig(segment_bytes=100, retention_ms=10), is_new=True, wall_ms=NOW)
    for _ in range(4):
        append(manager, "t")
    manager.due(0, NOW + 1000)
    assert [name for name in names(disk, "/a/t-0") if name.endswith(".log")] == ["00000000000000000004.log"]
    manager.due(60_000, NOW + 1000)
    run_jobs(manager)
    assert [name for name in names(disk, "/a/t-0") if ".deleted" in name] == []


def test_nothing_is_deleted_before_a_topics_settings_are_known() -> None:
    disk, config = SimDisk(), LogConfig(segment_bytes=100, retention_ms=10)
    manager = start(disk, config=config)
    manager.get_or_create("t", 0, None, config, is_new=True, wall_ms=NOW)
    for _ in range(4):
        append(manager, "t")
    manager.close()
    manager = start(disk, config=config)
    manager.due(0, NOW + 1000)
    assert len([name for name in names(disk, "/a/t-0") if name.endswith(".log")]) > 1
    manager.reconfigure("t", 0, config)
    manager.due(CONFIG.retention_check_interval_ms, NOW + 1000)
    assert [name for name in names(disk, "/a/t-0") if name.endswith(".log")] == ["00000000000000000004.log"]


def test_a_look_at_many_logs_is_spread_over_turns() -> None:
    manager = start(SimDisk())
    create(manager, "t", *range(300))
    manager.due(0, NOW)
    assert wakes_ms(manager) == 0
    manager.due(0, NOW)
    assert wakes_ms(manager) > 0


def test_a_look_at_logs_that_lose_segments_is_spread_over_more_turns() -> None:
    disk = SimDisk()
    manager = start(disk)
    for index in range(20):
        config = LogConfig(segment_bytes=100, retention_ms=10)
        manager.get_or_create("t", index, None, config, is_new=True, wall_ms=NOW)
        for _ in range(4):
            append(manager, "t", index)
    aside, turns = [0], 0
    while not turns or not wakes_ms(manager):
        turns += 1
        manager.due(0, NOW + 1000)
        renamed = [path for at in range(20) for path in names(disk, f"/a/t-{at}") if ".deleted" in path]
        aside.append(len(renamed))
    assert max(after - before for before, after in pairwise(aside)) < aside[-1] // 5
    assert [len([each for each in names(disk, f"/a/t-{at}") if each.endswith(".log")]) for at in range(20)] == [1] * 20


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_work_without_a_period_is_done_once(interval_ms: int) -> None:
    config = ManagerConfig(initial_delay_ms=100, flush_scheduler_interval_ms=interval_ms)
    manager = start(SimDisk(), manager_config=config)
    create(manager, "t")
    manager.due(100, NOW)
    manager.due(101, NOW)
    assert wakes_ms(manager) > 101


def test_logs_are_flushed_when_their_time_has_come() -> None:
    manager = start(SimDisk(), manager_config=ManagerConfig(initial_delay_ms=0, flush_scheduler_interval_ms=100))
    manager.get_or_create("t", 0, None, LogConfig(flush_ms=1000), is_new=True, wall_ms=NOW)
    append(manager, "t", count=2)
    manager.due(999, NOW)
    run_jobs(manager, 999)
    log = manager.get("t", 0)
    assert log is not None
    assert log.recovery_point == 0
    manager.due(1100, NOW)
    run_jobs(manager, 1100)
    assert log.recovery_point == 2


def test_a_flush_makes_a_new_partitions_folder_durable_as_well() -> None:
    for seed in range(8):
        disk = SimDisk(seed)
        manager = start(disk)
        create(manager, "t")
        append(manager, "t", count=2)
        manager.flush("t", 0)
        for job in manager.take_jobs(0):
            if isinstance(job, Flush):
                job.run()
                manager.finished(job, None, 0)
        disk.restart()
        log = start(disk).get("t", 0)
        assert log is not None
        assert log.log_end_offset == 2


def test_a_folder_made_while_names_are_synced_is_synced_by_its_own_flush() -> None:
    for seed in range(8):
        disk = SimDisk(seed)
        manager = start(disk)
        create(manager, "t", 0)
        append(manager, "t", 0, count=2)
        manager.flush("t", 0)
        jobs = manager.take_jobs(0)
        for job in jobs:
            job.run()
        create(manager, "t", 1)
        append(manager, "t", 1, count=3)
        for job in jobs:
            manager.finished(job, None, 0)
        manager.flush("t", 1)
        for job in manager.take_jobs(0):
            if isinstance(job, Flush):
                job.run()
        disk.restart()
        log = start(disk).get("t", 1)
        assert log is not None
        assert log.log_end_offset == 3


@pytest.mark.parametrize("power_fails", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_made_again_owes_nothing_to_the_checkpoints_of_the_one_before(
    power_fails: bool, restarted: bool
) -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=9)
    log = manager.get("t", 0)
    assert log is not None
    log.advance_log_start(7)
    manager.flush("t", 0)
    run_jobs(manager)
    manager.due(60_000, NOW)
    run_jobs(manager, 60_000)
    assert parse_offsets(text(disk, "/a/log-start-offset-checkpoint")) == {("t", 0): 7}
    assert parse_offsets(text(disk, "/a/recovery-point-offset-checkpoint")) == {("t", 0): 9}
    manager.delete("t", 0, now_ms=60_001)  # on a disk that is too slow to have its checkpoints written yet
    if restarted:
        disk.restart(power_loss=False)
        manager = start(disk)
    create(manager, "t")
    for name in OFFSET_CHECKPOINTS:
        assert ("t", 0) not in parse_offsets(text(disk, f"/a/{name}"))
    append(manager, "t", count=2)
    if power_fails:
        manager.flush("t", 0)
        for job in manager.take_jobs(0):
            if isinstance(job, Flush):
                job.run()
        disk.restart()
    else:
        disk.restart(power_loss=False)
    log = start(disk).get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (0, 2)


def test_of_very_many_folders_that_went_no_names_are_kept() -> None:
    (directory,) = start(SimDisk()).directories
    directory.sync_names()
    for number in range(VACATED_NAMES):
        directory.moved_away(f"t-{number}")
    some = directory.may_have_had("t-0"), directory.may_have_had("other-0")
    directory.moved_away("one-more-0")
    many = directory.may_have_had("t-0"), directory.may_have_had("other-0"), directory.vacated
    directory.sync_names()
    assert (some, many) == ((True, False), (True, True, None))
    assert not directory.may_have_had("t-0")


def test_a_folder_that_was_written_into_while_it_went_is_removed_a_little_later() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    run_jobs(manager)
    manager.delete("t", 0, now_ms=0)
    manager.due(LogConfig().file_delete_delay_ms, NOW)
    (removal,) = (job for job in manager.take_jobs(0) if isinstance(job, Delete))
    disk.fail("remove_dir", "-delete", errno.ENOTEMPTY)
    with pytest.raises(OSError, match="ENOTEMPTY") as caught:
        removal.run()
    before = any(name.endswith("-delete") for name in names(disk, "/a"))
    manager.finished(removal, caught.value, 60_000)
    manager.due(60_000 + FOLDER_RETRY_MS, NOW)
    run_jobs(manager)
    after = any(name.endswith("-delete") for name in names(disk, "/a"))
    assert (before, after, notices(manager)) == (True, False, [])


def test_a_deleted_partition_comes_back_whole_or_not_at_all() -> None:
    back = 0
    for seed in range(30):
        disk = SimDisk(seed)
        config = LogConfig(segment_bytes=150)
        manager = start(disk, config=config)
        manager.get_or_create("t", 0, TOPIC_ID, config, is_new=True, wall_ms=NOW)
        for _ in range(12):
            append(manager, "t")
        manager.flush("t", 0)
        run_jobs(manager)
        manager.delete("t", 0, now_ms=0)
        manager.due(config.file_delete_delay_ms, NOW)
        for job in manager.take_jobs(0):
            if isinstance(job, Delete):
                disk.fail("remove", "4.log", errno.EIO)
                with pytest.raises(OSError, match="EIO"):
                    job.run()
        disk.restart()
        log = start(disk, config=config).get("t", 0)
        back += log is not None
        assert log is None or list(offsets_in(fetch(log, 0))) == list(range(12))
    assert back == 0


def test_a_log_begun_anew_at_its_start_stays_there_whatever_the_power_does() -> None:
    lost = 0
    for seed in range(16):
        disk = SimDisk(seed)
        manager = start(disk)
        create(manager, "t")
        manager.flush("t", 0)
        run_jobs(manager)
        append(manager, "t", count=9)
        log = manager.get("t", 0)
        assert log is not None
        log.advance_log_start(7)
        manager.due(60_000, NOW)
        run_jobs(manager, 60_000)
        disk.sync_dir("/a")
        disk.restart()
        for _ in range(2):
            manager = start(disk)
            lost += any("started empty there" in notice for notice in notices(manager))
            log = manager.get("t", 0)
            assert log is not None
            assert log.log_start_offset == 7
            manager.due(60_000, NOW)
            run_jobs(manager, 60_000)
            disk.sync_dir("/a")
            disk.restart()
    assert lost > 4


def test_settings_reach_the_log() -> None:
    manager = start(SimDisk())
    create(manager, "t")
    config = LogConfig(segment_bytes=100)
    manager.reconfigure("t", 0, config)
    append(manager, "t")
    append(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    assert len(log.segments) == 2


def test_an_emptied_log_starts_where_it_was_told_and_says_so_durably() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=2)
    manager.truncate("t", 0, 50, start_over=True, now_ms=0, wall_ms=NOW)
    run_jobs(manager)
    disk.restart()
    log = start(disk).get("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset) == (50, 50)


# ---- going down


def test_a_directory_that_fails_at_the_clean_stop_gets_no_marker() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t", 0, 1)
    append(manager, "t", 0)
    append(manager, "t", 1)
    disk.fail("sync", "/a/t-0/00000000000000000000.log", errno.EIO)
    manager.close()
    assert ".kafka_cleanshutdown" not in names(disk, "/a")
    assert ".kafka_cleanshutdown" in names(disk, "/b")


def test_a_clean_stop_finishes_a_flush_that_nobody_began() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=2)
    manager.flush("t", 0)
    manager.close()
    disk.restart()
    log = start(disk).get("t", 0)
    assert log is not None
    assert log.log_end_offset == 2


def power_fails_in_close(manager: LogManager, disk: SimDisk, call: int) -> bool:
    """Stop cleanly, and lose power at this call for the disk and come back; false if there are not so many."""
    disk.calls, disk.crash_at = 0, call
    try:
        manager.close()
    except PowerLoss:
        disk.restart()
        return True
    return False


def test_crashing_anywhere_in_a_clean_stop_loses_nothing_flushed() -> None:
    calls = 1
    while True:
        disk = SimDisk(calls)
        manager = start(disk)
        create(manager, "t")
        append(manager, "t", count=2)
        manager.flush("t", 0)
        run_jobs(manager)
        if not power_fails_in_close(manager, disk, calls):
            break
        log = start(disk).get("t", 0)
        assert log is not None
        assert log.log_end_offset == 2
        calls += 1
    assert calls > 10


def test_a_log_that_a_clean_stop_calls_durable_is_in_a_folder_that_is() -> None:
    calls = 1
    while True:
        disk = SimDisk(calls)
        manager = start(disk)
        create(manager, "t", 0, 1)
        logs = [manager.get("t", 0), manager.get("t", 1)]
        append(manager, "t", 0, count=2)
        append(manager, "t", 1, count=2)
        if not power_fails_in_close(manager, disk, calls):
            break
        again = start(disk)
        for index, log in enumerate(logs):
            assert log is not None
            kept = again.get("t", index)
            assert (kept.log_end_offset if kept else 0) >= log.recovery_point
        calls += 1
    assert calls > 10
