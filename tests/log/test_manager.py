"""The log manager: several directories, their failures, what comes and goes."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from kbroker.log.checkpoints import format_offsets, parse_clean_shutdown, parse_offsets, replace_file
from kbroker.log.config import LogConfig
from kbroker.log.directory import OFFSETS_OF, PARTITIONS_A_MS, DirectoryRefusedError, Flush
from kbroker.log.facts import LogDirectoryFailed
from kbroker.log.log_loader import LoadProgress, stored_identity
from kbroker.log.manager import LogManager, open_logs
from kbroker.log.metaproperties import MetaProperties, parse_meta_properties
from kbroker.log.names import CLEANER_OFFSETS, LOG_START_OFFSETS, TopicPartition
from kbroker.log.producer_state import Origin
from kbroker.sim.clock import SimRandom
from kbroker.sim.disk import SimDisk
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode, KafkaError
from tests.log.managers import CONFIG, TOPIC_ID, append, create, names, notices, run_jobs, start, text, told, wakes_ms
from tests.log.worlds import NOW, all_offsets, batch, marker

# ---- coming up


def test_a_new_directory_is_made_locked_and_marked() -> None:
    disk = SimDisk()
    start(disk, "/deep/er/logs")
    meta = parse_meta_properties(text(disk, "/deep/er/logs/meta.properties"))
    assert (meta.version, meta.cluster_id, meta.node_id) == (0, "c", 1)
    assert meta.directory_id is not None


def test_an_old_directory_keeps_its_identity() -> None:
    disk = SimDisk()
    disk.make_dir("/a")
    replace_file(disk, "/a", "meta.properties", b"version=1\nnode.id=1\ncluster.id=c\nother=kept\n")
    start(disk)
    assert text(disk, "/a/meta.properties") == "version=1\nnode.id=1\ncluster.id=c\nother=kept\n"


def with_records_in_one_of_two(disk: SimDisk) -> LogManager:
    """Partitions t-0 and t-1, the second with three records, and nothing left to do."""
    manager = start(disk)
    create(manager, "t", 0, 1)
    append(manager, "t", 1, count=3)
    run_jobs(manager)
    return manager


def test_partitions_survive_a_clean_restart_without_recovery() -> None:
    disk = SimDisk()
    manager = with_records_in_one_of_two(disk)
    manager.close(broker_epoch=9)
    assert parse_clean_shutdown(text(disk, "/a/.kafka_cleanshutdown")).broker_epoch == 9
    disk.restart()
    seen: list[LoadProgress] = []
    again = start(disk, progress=seen.append)
    log = again.get("t", 1)
    assert log is not None
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (3, 3, 3)
    assert [entry.recovering for entry in seen] == [None, None]
    assert again.topic_id("t", 1) == TOPIC_ID


def test_after_a_clean_stop_a_log_is_opened_where_it_has_records_and_its_end_is_looked_for_once() -> None:
    disk = SimDisk()
    manager = with_records_in_one_of_two(disk)
    manager.close()
    disk.trace = []
    start(disk)
    opened = [path for call, path in disk.trace if call == "open" and path.endswith((".log", "index"))]
    assert opened == ["/a/t-1/00000000000000000000.log"]


def test_offset_checkpoints_are_parsed_once_at_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    start(disk).close()
    parsed: list[str] = []

    def counted(text: str) -> dict[TopicPartition, int]:
        parsed.append(text)
        return parse_offsets(text)

    monkeypatch.setattr("kbroker.log.log_loader.parse_offsets", counted)
    stored_identity(disk, ["/a"])
    start(disk)
    assert len(parsed) == 4


def test_after_a_crash_partitions_are_recovered_and_progress_is_told() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=3)
    manager.flush("t", 0)
    run_jobs(manager)
    disk.restart()
    seen: list[LoadProgress] = []
    log = start(disk, progress=seen.append).get("t", 0)
    assert log is not None
    assert all_offsets(log) == [0]
    assert any(entry.recovering is not None for entry in seen)


def test_a_crash_while_loading_is_not_taken_for_a_clean_stop() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    manager.close()
    start(disk)
    disk.restart()
    assert ".kafka_cleanshutdown" not in names(disk, "/a")


def test_logs_of_a_directory_are_closed_side_by_side() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t", *range(40))
    given: list[int] = []

    def run_all(tasks: Sequence[Callable[[], None]]) -> None:
        given.append(len(tasks))
        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(lambda task: task(), tasks))

    manager.close(run_all=run_all)
    assert given == [16]
    assert ".kafka_cleanshutdown" in names(disk, "/a")


def test_directories_are_loaded_by_the_runner_side_by_side() -> None:
    disk = SimDisk()
    start(disk, "/a", "/b").close()
    given: list[int] = []

    def run_all(tasks: Sequence[Callable[[], None]]) -> None:
        given.append(len(tasks))
        for task in reversed(tasks):
            task()

    open_logs(
        disk,
        SimRandom(1),
        ["/a", "/b"],
        config_of=lambda _: LogConfig(),
        cluster_id="c",
        node_id=1,
        config=CONFIG,
        now_ms=0,
        wall_ms=NOW,
        tell=lambda fact: None,
        alarm=Scheduler().alarm(lambda now_ms: None),
        run_all=run_all,
    )
    assert given == [2]


def test_high_watermarks_are_taken_from_the_checkpoint() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=5)
    log = manager.get("t", 0)
    assert log is not None
    log.high_watermark = 2
    manager.close()
    again = start(disk).get("t", 0)
    assert again is not None
    assert again.high_watermark == 2


# ---- refusals: one line, and nothing touched


def refusal(disk: SimDisk, *paths: str, node_id: int = 1, cluster_id: str = "c") -> str:
    """The one line, having checked that no file changed."""

    def content() -> dict[str, bytes]:
        found = {}
        for path in disk.paths():
            file = disk.open(path, "read")
            found[path] = file.read(0, file.size())
        return found

    before = content()
    with pytest.raises(DirectoryRefusedError) as caught:
        start(disk, *paths, node_id=node_id, cluster_id=cluster_id)
    assert content() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def stored(files: dict[str, str]) -> SimDisk:
    """A disk that holds these files."""
    disk = SimDisk()
    for path, content in files.items():
        folder, _, name = path.rpartition("/")
        for end in [at for at, character in enumerate(path) if character == "/"][1:]:
            if disk.stat(path[:end]) is None:
                disk.make_dir(path[:end])
        replace_file(disk, folder, name, content.encode())
    return disk


def test_a_locked_directory_is_one_line() -> None:
    disk = SimDisk()
    start(disk)
    assert refusal(disk) == "/a: is in use by another broker, which holds .lock"


def test_a_refused_start_releases_the_locks_it_took() -> None:
    disk = SimDisk()
    start(disk, "/b")
    assert "/b: is in use" in refusal_without_check(disk, "/a", "/b")
    start(disk, "/a")


def refusal_without_check(disk: SimDisk, *paths: str) -> str:
    with pytest.raises(DirectoryRefusedError) as caught:
        start(disk, *paths)
    return str(caught.value)


def test_a_directory_of_another_broker_is_one_line() -> None:
    disk = stored({"/a/meta.properties": "version=0\nbroker.id=2\ncluster.id=c\n"})
    assert refusal(disk) == "/a/meta.properties: broker id 2 differs from 1 of this broker's configuration"


def test_a_directory_of_another_cluster_is_one_line() -> None:
    disk = stored({"/a/meta.properties": "version=0\nbroker.id=1\ncluster.id=d\n"})
    assert refusal(disk) == "/a/meta.properties: cluster id d differs from c of this broker's configuration"


def test_mixed_directories_are_one_line_and_no_directory_is_made() -> None:
    disk = stored({"/a/meta.properties": "broker.id=1\ncluster.id=c\n", "/b/meta.properties": "broker.id=3\n"})
    assert "/b/meta.properties: broker id 3 differs from 1" in refusal(disk, "/new", "/a", "/b")
    assert names(disk, "/") == ["a", "b"]


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"/a/meta.properties": "version=2\n"}, "/a/meta.properties: version: has version 2"),
        ({"/a/meta.properties": "version=0\nbroker.id=x\n"}, "/a/meta.properties: broker.id: is not a number"),
        ({"/a/meta.properties": "version=0\nbroker.id=-7\n"}, "/a/meta.properties: broker.id: is no broker's number"),
        ({"/a/meta.properties": "version=0\ncluster.id=\n"}, "/a/meta.properties: cluster.id: is empty"),
        (
            {"/a/recovery-point-offset-checkpoint": "1\n0\n"},
            "/a/recovery-point-offset-checkpoint: line 1: has version 1",
        ),
        ({"/a/t-0/leader-epoch-checkpoint": "7\n0\n"}, "/a/t-0/leader-epoch-checkpoint: line 1: has version 7"),
    ],
)
def test_a_newer_or_broken_format_is_one_line(files: dict[str, str], line: str) -> None:
    disk = stored({"/a/.kafka_cleanshutdown": "", "/a/.lock": "", **files})
    if "/a/meta.properties" not in files:
        replace_file(disk, "/a", "meta.properties", b"broker.id=1\ncluster.id=c\n")
    assert refusal(disk).startswith(line)


def test_a_log_dir_that_is_a_file_is_one_line() -> None:
    disk = SimDisk()
    disk.open("/a", "create").close()
    assert refusal(disk) == "/a: is not a directory [ENOTDIR]"


def test_permission_denied_is_one_line() -> None:
    disk = stored({"/a/meta.properties": "broker.id=1\ncluster.id=c\n"})
    disk.fail("open", "/a/meta.properties", errno.EACCES, times=100)
    with pytest.raises(DirectoryRefusedError) as caught:
        start(disk)
    assert str(caught.value) == "/a/meta.properties: EACCES [EACCES]"


def test_a_directory_named_twice_is_one_line() -> None:
    assert refusal(SimDisk(), "/a", "/b", "/a/") == "/a: is named twice in log.dirs"


def two_copies(*, first: int, second: int) -> SimDisk:
    """A disk with a partition in two directories, with so many records in each."""
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    for topic, records in (("t", first), ("u", second)):
        create(manager, topic)
        if records:
            append(manager, topic, count=records)
    manager.close()
    disk.rename("/b/u-0", "/b/t-0")
    disk.restart(power_loss=False)
    return disk


def test_two_copies_of_a_partition_are_one_line() -> None:
    disk = two_copies(first=1, second=1)
    assert refusal_without_check(disk, "/a", "/b") == "/b/t-0: there is another copy at /a/t-0; remove the stale one"


@pytest.mark.parametrize(
    ("first", "second", "kept", "aside"), [(3, 0, "/a", "/b"), (0, 3, "/b", "/a"), (0, 0, "/a", "/b")]
)
def test_an_empty_copy_of_a_partition_is_set_aside(first: int, second: int, kept: str, aside: str) -> None:
    disk = two_copies(first=first, second=second)
    manager = start(disk, "/a", "/b")
    log = manager.get("t", 0)
    assert log is not None
    assert (log.folder.path, log.log_end_offset) == (f"{kept}/t-0", 3 if first or second else 0)
    assert [name[-6:] for name in names(disk, aside) if name.startswith("t-0")] == ["-stray"]
    assert notices(manager) == [f"{aside}/t-0: is empty, and there is another copy at {kept}/t-0: set aside"]


def test_a_partition_that_may_be_in_an_offline_directory_is_not_called_deleted() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t")
    manager.close()
    disk.restart(power_loss=False)
    disk.fail("open", "/a/meta.properties", errno.EIO)
    with pytest.raises(KafkaError) as caught:
        start(disk, "/a", "/b").delete("t", 0, now_ms=0)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_directory_that_cannot_set_an_empty_copy_aside_goes_offline_alone() -> None:
    disk = two_copies(first=3, second=0)
    disk.fail("rename", "/b/t-0", errno.EIO)
    manager = start(disk, "/a", "/b")
    assert [directory.online for directory in manager.directories] == [True, False]
    assert manager.get("t", 0) is not None


def test_a_partition_that_a_failing_directory_kept_an_empty_folder_of_comes_up_again() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    disk.fail("open", "/a/t-0/00000000000000000000.log", errno.ENOSPC)
    create(manager, "t")
    append(manager, "t", count=2)
    manager.close()
    disk.restart(power_loss=False)
    log = start(disk, "/a", "/b").get("t", 0)
    assert log is not None
    assert (log.folder.path, log.log_end_offset) == ("/b/t-0", 2)


def test_stored_identity_is_what_the_directories_say() -> None:
    disk = stored({"/a/meta.properties": "broker.id=4\n", "/b/meta.properties": "cluster.id=x\n"})
    assert stored_identity(disk, ["/a", "/b", "/missing"]) == MetaProperties(0, "x", 4)


def test_stored_identities_that_contradict_are_one_line() -> None:
    disk = stored({"/a/meta.properties": "broker.id=4\n", "/b/meta.properties": "broker.id=5\n"})
    with pytest.raises(DirectoryRefusedError, match="broker id 5 differs from 4"):
        stored_identity(disk, ["/a", "/b"])


# ---- foreign things


def test_foreign_things_are_reported_and_left_alone() -> None:
    disk = stored({"/a/lost+found/x": "1", "/a/notes.txt": "2", "/a/__cluster_metadata-0/quorum-state": "3"})
    manager = start(disk)
    assert notices(manager) == [
        "/a/lost+found: a foreign folder in a log directory, left alone",
        "/a/notes.txt: a foreign file in a log directory, left alone",
    ]
    assert text(disk, "/a/lost+found/x") == "1"
    assert len(manager) == 0


def test_a_copy_that_was_moving_to_another_directory_goes_with_its_partition() -> None:
    future = "t-0.0123456789abcdef0123456789abcdef-future"
    manager = start(disk := stored({f"/b/{future}/x": "", "/a/t-0/partition.metadata": "x"}), "/a", "/b")
    assert manager.delete("t", 0, now_ms=0)
    manager.due(60_000, NOW)
    run_jobs(manager, 60_000)
    assert [name for path in ("/a", "/b") for name in names(disk, path) if name.startswith("t-0")] == []


def test_a_directory_whose_records_cannot_be_read_goes_offline_alone() -> None:
    manager = start(disk := SimDisk(), "/a", "/b")
    create(manager, "bad")
    log = manager.get("bad", 0)
    assert log is not None
    for records in (batch(producer=(9, 0, 0), attributes=0x10), marker(9, 0, commit=True)):
        log.append_as_leader(records, 0, NOW, Origin.COORDINATOR)
    log.roll(NOW)
    manager.close()
    directory, _, folder = log.folder.path.rpartition("/")
    disk.remove(f"{log.folder.path}/{2:020d}.snapshot")
    disk.remove(f"{directory}/.kafka_cleanshutdown")
    position = len(batch()) + 61 + 7  # the type in the marker's key
    file = disk.open(f"{log.folder.path}/{0:020d}.log", "write")
    file.write([b"\x09"], position)
    manager = start(disk, "/a", "/b")
    assert [each.path for each in manager.directories if not each.online] == [directory]
    assert f"{directory}: goes offline: {folder}: a control record of type UNKNOWN" in notices(manager)[0]


def test_a_stray_partition_is_reported_and_left_alone() -> None:
    disk = stored({"/a/t-0.0123456789abcdef0123456789abcdef-stray/partition.metadata": "x"})
    assert "a stray partition of an earlier life, left alone" in notices(start(disk))[0]


def test_a_deletion_of_an_earlier_life_is_finished_after_the_delay() -> None:
    disk = stored({"/a/t-0.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log": "x"})
    manager = start(disk)
    manager.due(59_999, NOW)
    run_jobs(manager)
    assert any(name.endswith("-delete") for name in names(disk, "/a"))
    manager.due(60_000, NOW)
    run_jobs(manager)
    assert not any(name.endswith("-delete") for name in names(disk, "/a"))


def test_a_broken_checkpoint_is_reported_and_ignored() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=3)
    manager.close()
    disk.remove("/a/.kafka_cleanshutdown")
    replace_file(disk, "/a", "recovery-point-offset-checkpoint", b"0\n1\nnonsense\n")
    again = start(disk)
    assert "recovery-point-offset-checkpoint: line 3: expected topic" in notices(again)[0]
    log = again.get("t", 0)
    assert log is not None
    assert log.log_end_offset == 3


def test_a_checkpoint_that_changed_after_a_clean_stop_is_ignored_and_all_is_recovered() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t", count=3)
    manager.close()
    replace_file(disk, "/a", "replication-offset-checkpoint", format_offsets({("t", 0): 1}).encode())
    seen: list[LoadProgress] = []
    again = start(disk, progress=seen.append)
    assert notices(again) == [
        "/a/replication-offset-checkpoint: changed since the last clean stop; the file is ignored"
    ]
    assert any(entry.recovering for entry in seen)


# ---- placement


def test_new_partitions_go_where_the_fewest_are() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b", "/c")
    create(manager, "t", 0, 1, 2, 3, 4)
    places = [log.folder.path for _, log in manager.logs()]
    assert places == ["/a/t-0", "/b/t-1", "/c/t-2", "/a/t-3", "/b/t-4"]


def test_a_partition_is_made_once() -> None:
    manager = start(SimDisk())
    create(manager, "t")
    log = manager.get("t", 0)
    assert manager.get_or_create("t", 0, TOPIC_ID, LogConfig(), is_new=True, wall_ms=NOW) is log


def test_a_name_that_fits_no_folder_is_the_clients_fault() -> None:
    manager = start(SimDisk())
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create("t" * 249, 100_000, None, LogConfig(), is_new=True, wall_ms=NOW)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert manager.has_online_directory


def test_a_name_that_the_volume_does_not_take_is_the_clients_fault() -> None:
    disk = SimDisk()
    manager = start(disk)
    disk.fail("make_dir", "/t-0", errno.ENAMETOOLONG)
    with pytest.raises(KafkaError) as caught:
        create(manager, "t")
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert manager.has_online_directory


def test_a_partition_never_takes_the_folder_of_a_topic_that_differs_in_case_alone() -> None:
    """A controller whose own file system tells them apart does not refuse such a topic."""
    disk = SimDisk(ignores_case=True)
    manager = start(disk)
    assert manager.ignores_case
    create(manager, "orders")
    append(manager, "orders", count=3)
    with pytest.raises(KafkaError, match="/a/Orders-0: the file system does not tell capital letters") as caught:
        create(manager, "Orders")
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert manager.get("Orders", 0) is None
    manager.close()
    disk.restart(power_loss=False)
    manager = start(disk)
    log = manager.get("orders", 0)
    assert log is not None
    assert log.log_end_offset == 3
    assert manager.has_online_directory


def test_a_file_system_that_tells_small_letters_from_capital_ones_has_both() -> None:
    manager = start(SimDisk())
    assert not manager.ignores_case
    create(manager, "orders")
    create(manager, "Orders")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_where_a_directory_fails_the_next_takes_the_partition(code: int) -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    disk.fail("make_dir", "/a/t-0", code)
    create(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    assert log.folder.path == "/b/t-0"
    assert [directory.online for directory in manager.directories] == [False, True]


# ---- failure


def test_a_failing_directory_goes_offline_alone() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t", 0, 1, 2)
    manager.disk_failed("/a/t-0/00000000000000000000.log", OSError(errno.EIO, "Input/output error"))
    failed = [LogDirectoryFailed("/a", [("t", 0), ("t", 2)], is_last=False)]
    assert told(manager, LogDirectoryFailed) == failed
    assert notices(manager)[-1] == "/a: goes offline: Input/output error [EIO]"
    with pytest.raises(KafkaError) as caught:
        manager.get("t", 2)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert manager.get("t", 1) is not None
    manager.disk_failed("/a", OSError(errno.EIO, "again"))
    assert told(manager, LogDirectoryFailed) == failed


def test_a_partition_that_may_be_offline_is_not_made_anew() -> None:
    manager = start(SimDisk(), "/a", "/b")
    manager.disk_failed("/a", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(KafkaError) as caught:
        create(manager, "t", is_new=False)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_new_partition_is_made_though_a_directory_is_offline() -> None:
    manager = start(SimDisk(), "/a", "/b")
    manager.disk_failed("/a", OSError(errno.EIO, "Input/output error"))
    create(manager, "t")
    assert manager.get("t", 0) is not None


def test_an_unreadable_directory_starts_offline_beside_a_good_one() -> None:
    disk = stored({"/a/meta.properties": "broker.id=1\n", "/b/meta.properties": "broker.id=1\n"})
    disk.fail("open", "/a/meta.properties", errno.EACCES, times=100)
    manager = start(disk, "/a", "/b")
    assert [directory.online for directory in manager.directories] == [False, True]


def test_a_directory_that_fails_while_loading_is_offline() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t", 0, 1)
    manager.close()
    disk.fail("list", "/a/t-0", errno.EIO)
    again = start(disk, "/a", "/b")
    assert [directory.online for directory in again.directories] == [False, True]
    assert list(again) == [("t", 1)]


def test_a_failed_flush_takes_the_directory_offline() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t")
    append(manager, "t")
    manager.flush("t", 0)
    (job,) = [job for job in manager.take_jobs(0) if isinstance(job, Flush)]
    disk.fail("sync", ".log", errno.EIO)
    with pytest.raises(OSError, match="EIO") as caught:
        job.run()
    manager.finished(job, caught.value, 0)
    assert told(manager, LogDirectoryFailed) == [LogDirectoryFailed("/a", [("t", 0)], is_last=False)]


def test_a_flush_that_cannot_begin_takes_the_directory_offline() -> None:
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    manager.get_or_create("t", 0, None, LogConfig(index_interval_bytes=0), is_new=True, wall_ms=NOW)
    append(manager, "t")
    append(manager, "t")
    disk.fail("open", ".index", errno.EIO)
    manager.reconfigure("t", 0, LogConfig(flush_messages=1))
    assert [directory.online for directory in manager.directories] == [False, True]
    assert told(manager, LogDirectoryFailed) == [LogDirectoryFailed("/a", [("t", 0)], is_last=False)]
    assert manager.get_or_create("u", 0, None, LogConfig(), is_new=True, wall_ms=NOW).folder.path == "/b/u-0"


def test_whatever_cannot_be_opened_at_the_start_takes_one_directory_offline() -> None:
    for times in range(40):
        disk = SimDisk()
        manager = start(disk, "/a", "/b")
        create(manager, "t", 0, 1, 2)
        for index in range(3):
            append(manager, "t", index)
        disk.restart(power_loss=False)
        opened = count()
        disk.fault = lambda call, path, opened=opened, times=times: (
            OSError(errno.EIO, "EIO", path) if call == "open" and "/a/t-" in path and next(opened) == times else None
        )
        again = start(disk, "/a", "/b", config=LogConfig(flush_messages=1))
        if next(opened) <= times:
            break
        assert [directory.online for directory in again.directories] == [False, True]
        assert list(again) == [("t", 1)]
    assert 5 < times < 39


def test_when_the_last_directory_fails_the_broker_is_told() -> None:
    manager = start(SimDisk())
    manager.disk_failed("/a", OSError(errno.EIO, "Input/output error"))
    assert not manager.has_online_directory
    assert notices(manager)[-1] == "no log directory is left: this broker cannot go on"


# ---- deletion


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t")
    assert manager.delete("t", 0, now_ms=0)
    assert manager.get("t", 0) is None
    (folder,) = [name for name in names(disk, "/a") if name.startswith("t-0")]
    assert folder.endswith("-delete")
    manager.due(60_000, NOW)
    run_jobs(manager)
    assert not [name for name in names(disk, "/a") if name.startswith("t-0")]


def test_a_partition_can_be_made_again_while_the_old_one_is_being_deleted() -> None:
    manager = start(SimDisk())
    create(manager, "t")
    append(manager, "t")
    manager.delete("t", 0, now_ms=0)
    create(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset == 0


def test_a_flush_that_comes_back_after_the_deletion_is_harmless() -> None:
    manager = start(SimDisk())
    create(manager, "t")
    append(manager, "t")
    manager.flush("t", 0)
    jobs = manager.take_jobs(0)
    manager.delete("t", 0, now_ms=0)
    for job in jobs:
        job.run()
        manager.finished(job, None, 0)
    assert told(manager, LogDirectoryFailed) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda manager, index: create(manager, "late", index), id="made"),
        pytest.param(lambda manager, index: manager.delete("t", index, now_ms=0), id="deleted"),
    ],
)
def test_what_has_nothing_new_to_say_of_many_partitions_is_not_looked_at_with_each_that_comes_or_goes(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[LogManager, int], object]
) -> None:
    manager = start(SimDisk())
    create(manager, "t", *range(10 * PARTITIONS_A_MS))
    looks: Counter[str] = Counter()
    for name, offsets in OFFSETS_OF.items():

        def counted(logs: object, name: str = name, offsets: Callable[[Any], Any] = offsets) -> object:
            looks[name] += 1
            return offsets(logs)

        monkeypatch.setitem(OFFSETS_OF, name, counted)
    for index in range(5):
        change(manager, index)
        run_jobs(manager)
    assert (looks[LOG_START_OFFSETS], looks[CLEANER_OFFSETS]) == (1, 1)
    for now_ms in (wakes_ms(manager), 1_000, 2_000):
        manager.due(now_ms, NOW)
        run_jobs(manager, now_ms)
    assert (looks[LOG_START_OFFSETS], looks[CLEANER_OFFSETS]) == (2, 2)


def test_deleted_partitions_leave_the_checkpoints() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t", 0, 1)
    run_jobs(manager)
    manager.delete("t", 0, now_ms=0)
    run_jobs(manager)
    assert parse_offsets(text(disk, "/a/recovery-point-offset-checkpoint")) == {("t", 1): 0}


def test_a_partition_set_aside_keeps_its_records() -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    append(manager, "t")
    manager.set_aside("t", 0)
    manager.due(10**9, NOW)
    run_jobs(manager)
    (folder,) = [name for name in names(disk, "/a") if name.endswith("-stray")]
    assert "00000000000000000000.log" in names(disk, f"/a/{folder}")


def test_deleting_what_is_not_there_does_nothing() -> None:
    assert not start(SimDisk()).delete("t", 0, now_ms=0)
