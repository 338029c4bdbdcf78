"""What does not belong into a log directory, or reads badly: one line, and the start goes on."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.directory import DirectoryRefusedError
from kbroker.log.manager import LogManager
from kbroker.log.producer_state import Origin
from kbroker.sim.disk import SimDisk
from tests.log.managers import TOPIC_ID, append, create, names, notices, run_jobs, start
from tests.log.worlds import NOW, all_offsets, batch, marker


def stopped() -> SimDisk:
    """A disk with three batches of a producer in t-0 of /a, stopped cleanly."""
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    for sequence in range(3):
        log.append_as_leader(batch(producer=(9, 0, sequence)), 0, NOW)
    log.set_high_watermark(3)
    run_jobs(manager)
    manager.close()
    disk.restart(power_loss=False)
    return disk


def offsets(manager: LogManager) -> list[int]:
    log = manager.get("t", 0)
    assert log is not None
    return all_offsets(log)


def write(disk: SimDisk, path: str, content: bytes) -> None:
    file = disk.open(path, "create")
    file.resize(0)
    file.write([content], 0)


SNAPSHOT = "/a/t-0/00000000000000000003.snapshot"


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x7f" * 200, b"\0\2" + bytes(8), bytes(range(90, 146))])
def test_a_bad_snapshot_is_made_anew_from_the_batches(content: bytes) -> None:
    disk = stopped()
    write(disk, SNAPSHOT, content)
    manager = start(disk)
    log = manager.get("t", 0)
    assert log is not None
    assert log.append_as_leader(batch(producer=(9, 0, 2)), 0, NOW).duplicate is not None
    assert [line for line in notices(manager) if line.startswith(f"{SNAPSHOT}: ")] == notices(manager) != []


@pytest.mark.parametrize("content", [b"\x7f" * 34, b"\0\1" + bytes(32), b"\0\0" + b"\xff" * 32])
def test_a_bad_index_of_aborted_transactions_is_made_anew(content: bytes) -> None:
    disk = SimDisk()
    manager = start(disk)
    create(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    log.set_high_watermark(2)
    run_jobs(manager)
    manager.close()
    disk.restart(power_loss=False)
    write(disk, "/a/t-0/00000000000000000000.txnindex", content)
    log = start(disk).get("t", 0)
    assert log is not None
    aborted = log.read(0, 1000, 2, with_aborted=True).aborted
    assert [tuple(entry) for entry in aborted or []] == [(9, 0, 1, 2)]


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint.tmp",
        "log-start-offset-checkpoint.pending",
        ".kafka_cleanshutdown",
        "t-0/00000000000000000007.log",
        "t-0/00000000000000000003.snapshot",
        "t-0/leader-epoch-checkpoint",
        "t-0/partition.metadata",
    ],
)
def test_a_folder_with_the_name_of_a_file_of_ours_is_set_aside(name: str) -> None:
    disk = stopped()
    if disk.stat(f"/a/{name}") is not None:
        disk.remove(f"/a/{name}")
    disk.make_dir(f"/a/{name}")
    manager = start(disk)
    short = name.rpartition("/")[2]
    assert f"/a/{name}: is none of this broker's: set aside as {short}.foreign" in notices(manager)
    assert offsets(manager) == [0, 1, 2]
    manager.close()
    assert disk.stat("/a/.kafka_cleanshutdown") is not None


def test_what_was_set_aside_before_is_kept() -> None:
    disk = stopped()
    for _ in range(2):
        disk.make_dir("/a/t-0/00000000000000000007.log")
        start(disk).close()
        disk.restart(power_loss=False)
    assert [name for name in names(disk, "/a/t-0") if "foreign" in name] == [
        "00000000000000000007.log.foreign",
        "00000000000000000007.log.foreign-2",
    ]


@pytest.mark.parametrize("name", ["lost+found", "t-0/backup", "notes"])
def test_other_folders_are_left_alone(name: str) -> None:
    disk = stopped()
    disk.make_dir(f"/a/{name}")
    assert offsets(start(disk)) == [0, 1, 2]
    assert disk.stat(f"/a/{name}") is not None


@pytest.mark.parametrize("name", ["u-0", "notes.txt", "t-0/notes.txt", "t-0/99999999999999999999.log"])
def test_a_foreign_file_stands_in_nobodys_way(name: str) -> None:
    disk = stopped()
    write(disk, f"/a/{name}", b"text")
    manager = start(disk)
    manager.get_or_create("u", 0, TOPIC_ID, LogConfig(), is_new=True, wall_ms=NOW)
    append(manager, "u")
    assert manager.has_online_directory


def test_a_folder_called_meta_properties_refuses_the_start_by_name() -> None:
    disk = stopped()
    disk.remove("/a/meta.properties")
    disk.make_dir("/a/meta.properties")
    with pytest.raises(DirectoryRefusedError, match=r"^/a/meta\.properties: is a folder$"):
        start(disk)


@pytest.mark.parametrize("code", [errno.EISDIR, errno.EPERM, errno.ENOENT])
def test_what_cannot_be_opened_is_named(code: int) -> None:
    disk = stopped()
    disk.fail("open", "/a/t-0/00000000000000000000.log", code, times=100)
    with pytest.raises(DirectoryRefusedError, match=r"/a/t-0/00000000000000000000\.log: E"):
        start(disk)
