"""What a start makes of the copies that interrupted moves between log directories have left."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.checkpoints import replace_file
from kbroker.log.names import MOVED, TopicPartition
from kbroker.sim.disk import SimDisk
from tests.log.managers import create, names, notices, run_jobs, start
from tests.log.test_manager import two_copies
from tests.log.worlds import NOW


def with_a_copy_alone(*, is_marked: bool) -> SimDisk:
    """A disk with a copy of a partition in /b, on its way there from /a, where the partition is gone."""
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t")
    manager.futures.create(TopicPartition("t", 0), manager.futures.target("t", 0, "/b"), NOW)
    run_jobs(manager)
    if is_marked:
        (folder,) = (name for name in names(disk, "/b") if name.endswith("-future"))
        replace_file(disk, f"/b/{folder}", MOVED, b"")
    disk.rename("/a/t-0", f"/a/t-0.{'0' * 32}-delete")
    disk.restart(power_loss=False)
    return disk


@pytest.mark.parametrize(
    ("call", "path", "is_marked"),
    [
        ("stat", MOVED, False),
        ("stat", MOVED, True),
        ("rename", "-future", False),
        ("rename", "-future", True),
        ("sync_dir", "/b", True),
        ("remove", MOVED, True),
    ],
)
def test_a_directory_that_fails_when_it_is_settled_what_becomes_of_a_copy_goes_offline_alone(
    call: str, path: str, is_marked: bool
) -> None:
    disk = with_a_copy_alone(is_marked=is_marked)
    disk.fail(call, path, errno.EIO)
    manager = start(disk, "/a", "/b")
    assert [directory.online for directory in manager.directories] == [True, False]
    manager.close()
    disk.restart(power_loss=False)
    again = start(disk, "/a", "/b")
    assert (again.get("t", 0) is not None, all(each.online for each in again.directories)) == (is_marked, True)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_copy_beside_its_partition_in_one_directory_is_set_aside(is_marked: bool) -> None:
    """Somebody has put what was in two log directories into one; nothing can take the partition's place there."""
    disk = with_a_copy_alone(is_marked=is_marked)
    (copy,) = (name for name in names(disk, "/b") if name.endswith("-future"))
    disk.rename(f"/a/t-0.{'0' * 32}-delete", "/a/t-0")
    disk.rename(f"/b/{copy}", f"/a/{copy}")
    manager = start(disk, "/a")
    assert (manager.get("t", 0) is not None, manager.has_futures) == (True, False)
    assert [name[-6:] for name in names(disk, "/a") if name.startswith("t-0")] == ["t-0", "-stray"]
    assert f"/a/{copy}: a copy in the log directory that has its partition: set aside" in notices(manager)


@pytest.mark.parametrize(
    ("call", "path", "online"),
    [
        ("stat", f"/a/t-0/{MOVED}", "/b"),
        ("stat", f"/b/t-0/{MOVED}", "/a"),
        ("sync_dir", "/a", "/b"),
        ("remove", MOVED, "/a"),
    ],
)
def test_a_directory_that_fails_when_a_replaced_copy_goes_is_offline_alone(call: str, path: str, online: str) -> None:
    disk = two_copies(first=3, second=3)
    replace_file(disk, "/b/t-0", MOVED, b"")
    for each in ("/a", "/b"):
        disk.remove(f"{each}/.kafka_cleanshutdown")
    disk.fail(call, path, errno.EIO)
    manager = start(disk, "/a", "/b")
    assert [directory.path for directory in manager.directories if directory.online] == [online]
    manager.close()
    disk.restart(power_loss=False)
    log = start(disk, "/a", "/b").get("t", 0)
    assert log is not None
    assert (log.folder.path, log.log_end_offset) == ("/b/t-0", 3)
