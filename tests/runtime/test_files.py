"""What only the real disk has: short writes, descriptors, locks that other programs see."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.runtime import files
from kbroker.runtime.files import SystemDisk


@pytest.mark.parametrize("buffers", [[b"hello world"], [b"hello", b" ", b"world"]])
def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, buffers: list[bytes]) -> None:
    monkeypatch.setattr(files, "pwrite", lambda fd, data, position: os.pwrite(fd, data[:2], position))
    monkeypatch.setattr(files, "pwritev", lambda fd, some, position: os.pwrite(fd, b"".join(some)[:3], position))
    file = SystemDisk().open(str(tmp_path / "a"), "create")
    file.write(buffers, 1)
    assert (tmp_path / "a").read_bytes() == b"\0hello world"


def test_an_error_after_a_short_write_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fills_up(fd: int, data: bytes, position: int) -> int:
        if position:
            raise OSError(errno.ENOSPC, "full")
        return os.pwrite(fd, data[:2], position)

    monkeypatch.setattr(files, "pwrite", fills_up)
    file = SystemDisk().open(str(tmp_path / "a"), "create")
    with pytest.raises(OSError, match="full"):
        file.write([b"hello"], 0)


def test_the_last_holder_closes_the_descriptor(tmp_path: Path) -> None:
    file = SystemDisk().open(str(tmp_path / "a"), "create")
    fd = file.fileno()
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_another_process_cannot_take_a_lock_by_record_locks(tmp_path: Path) -> None:
    lock = SystemDisk().lock(str(tmp_path / ".lock"))
    script = "import fcntl,sys; fcntl.lockf(open(sys.argv[1],'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    taken = subprocess.run([sys.executable, "-c", script, str(tmp_path / ".lock")], capture_output=True, check=False)
    lock.release()
    assert b"BlockingIOError" in taken.stderr


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def none(path: str) -> int:
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(files, "lock_file", none)
    with pytest.raises(OSError, match=r"its file system locks no files, .*; put log.dirs on a disk") as caught:
        SystemDisk().lock(str(tmp_path / ".lock"))
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / ".lock"))


def test_a_file_system_that_maps_no_files_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(fd: int, size: int) -> None:
        raise OSError(errno.ENODEV, "No such device")

    (tmp_path / "f").write_bytes(b"x")
    monkeypatch.setattr(files, "_map", none)
    with pytest.raises(OSError, match=r"its file system maps no files .*; put log.dirs on a disk"):
        SystemDisk().open(str(tmp_path / "f"), "read").map()
