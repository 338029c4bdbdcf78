"""What a log directory does when its disk fails."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.directory import DirectoryUnusableError
from kbroker.sim.disk import SimDisk
from tests.log.managers import append, create, start
from tests.log.worlds import NOW, batch


def test_nothing_is_written_to_a_log_whose_directory_is_offline() -> None:
    """Another part may hold it until it has heard of that."""
    disk = SimDisk()
    manager = start(disk, "/a", "/b")
    create(manager, "t")
    append(manager, "t")
    log = manager.get("t", 0)
    assert log is not None
    manager.disk_failed("/a", OSError(errno.EIO, "Input/output error"))
    size = disk.stat("/a/t-0/00000000000000000000.log")
    with pytest.raises(OSError, match="the log directory is offline"):
        log.append_from_client(batch(), 0, NOW)
    with pytest.raises(OSError, match="the log directory is offline"):
        log.read(0, 100, 1)
    assert disk.stat("/a/t-0/00000000000000000000.log") == size


def test_an_error_elsewhere_takes_no_directory_offline() -> None:
    manager = start(SimDisk())
    manager.disk_failed("/elsewhere/file", OSError(errno.EIO, "Input/output error"))
    assert manager.has_online_directory


def test_a_directory_whose_file_system_maps_no_files_is_not_taken() -> None:
    """Indices are mapped: it would go offline with the first topic."""
    disk = SimDisk()
    disk.fail("map", "/a/meta.properties", errno.ENODEV)
    with pytest.raises(DirectoryUnusableError, match=r"^no log directory can be used: /a: goes offline: .*ENODEV"):
        start(disk, "/a")
