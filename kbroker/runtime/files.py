"""The real disk: `kbroker.ports.Disk` and `File` on the operating system's calls, by position and without copies.

Made once by the composer of a broker. Never retries, never caches a descriptor, never swallows an error: what the
operating system says reaches the log as OSError.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Sequence

from kbroker.ports import Buffer, Entry, OpenMode, Volume
from kbroker.runtime.platform import lock_file, pwritev, sync_file, unlock_file

_ALWAYS = os.O_CLOEXEC | os.O_NONBLOCK  # the latter for a pipe, which open(2) would wait at; it is nothing to a file
OPEN_FLAGS: dict[OpenMode, int] = {
    "read": os.O_RDONLY | _ALWAYS,
    "write": os.O_RDWR | _ALWAYS,
    "create": os.O_RDWR | os.O_CREAT | _ALWAYS,
}
_MOST_BUFFERS = 1024  # IOV_MAX on Linux and macOS: more in one call is EINVAL

_NO_SUCH_CALL = (errno.ENODEV, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system
_NO_LOCKS = "its file system locks no files, so two brokers could write here; put log.dirs on a disk of this machine"
_NO_MAPS = "its file system maps no files into memory (mmap), as indices are; put log.dirs on a disk of this machine"

_KIND, _FOLDER, _FILE = 0o170000, 0o040000, 0o100000
_make = tuple.__new__

pread, pwrite = os.pread, os.pwrite  # looked up once: a produce request makes few other calls


class SystemFile:
    """An open file descriptor, closed when the last holder lets go."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 once closed."""
        return self.fd

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self.fd).st_size

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes (below 2 GiB) from `position`; fewer only at the end."""
        return pread(self.fd, size, position)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """One call to the operating system, unless it takes less than all or there are over 1,024 buffers."""
        if len(buffers) == 1:
            data = buffers[0]
            written = pwrite(self.fd, data, position)
            if written != len(data):
                self._write_rest(memoryview(data)[written:], position + written)
            return
        for first in range(0, len(buffers), _MOST_BUFFERS):
            some = buffers[first : first + _MOST_BUFFERS]
            size = sum(map(len, some))
            written = pwritev(self.fd, some, position)
            if written != size:
                self._write_rest(memoryview(b"".join(some))[written:], position + written)
            position += size

    def _write_rest(self, rest: memoryview, position: int) -> None:
        """After a short write: again, until it is all there or the operating system says why not (ENOSPC, mostly)."""
        while rest:
            written = pwrite(self.fd, rest, position)
            rest = rest[written:]
            position += written

    def resize(self, size: int) -> None:
        """Cut, or lengthen with a hole."""
        os.ftruncate(self.fd, size)

    def sync(self) -> None:
        """Content and size, not the time stamps."""
        sync_file(self.fd)

    def map(self) -> memoryview:
        """The file in memory, read only; unmapped when the last view of it is dropped."""
        size = self.size()
        if size == 0:
            return memoryview(b"")
        try:
            return memoryview(_map(self.fd, size))
        except OSError as error:
            if error.errno in _NO_SUCH_CALL:
                raise OSError(error.errno, _NO_MAPS) from None
            raise

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def __repr__(self) -> str:
        return f"SystemFile(fd={self.fd})"


def _map(fd: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False)  # otherwise every map holds a descriptor
    return mmap.mmap(fd, size, access=mmap.ACCESS_READ)


class SystemLock:
    """A lock file that neither another process nor this one takes twice."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        try:
            self._fd = lock_file(path)
        except OSError as error:
            if error.errno in _NO_SUCH_CALL:
                raise OSError(error.errno, _NO_LOCKS, path) from None
            raise

    def release(self) -> None:
        """Let others take it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            unlock_file(fd)


class SystemDisk:
    """The file systems of this machine, satisfying `kbroker.ports.Disk`."""

    __slots__ = ()

    def open(self, path: str, mode: OpenMode) -> SystemFile:
        """One open(2)."""
        return SystemFile(os.open(path, OPEN_FLAGS[mode], 0o644))

    def list(self, path: str) -> list[Entry]:
        """Names with sizes, links followed; a name that vanishes meanwhile is left out."""
        entries = []
        with os.scandir(path) as names:
            for name in names:
                try:
                    status = name.stat()
                except OSError as error:
                    if name.is_symlink():
                        entries.append(Entry(name.name, 0, 0, False, True))
                    elif not isinstance(error, FileNotFoundError):
                        raise
                    continue
                kind = status.st_mode & _KIND  # as `_entry`, without the call: a start lists thousands
                size = status.st_size if kind == _FILE else 0
                modified_ms, is_dir = status.st_mtime_ns // 1_000_000, kind == _FOLDER
                entries.append(_make(Entry, (name.name, size, modified_ms, is_dir, kind not in (_FILE, _FOLDER))))
        return entries

    def stat(self, path: str) -> Entry | None:
        """One name with its size."""
        name = path.rpartition("/")[2]
        try:
            return _entry(name, os.stat(path))
        except OSError as error:
            if os.path.islink(path):
                return Entry(name, 0, 0, False, True)
            if not isinstance(error, FileNotFoundError):
                raise
            return None

    def rename(self, old: str, new: str) -> None:
        """rename(2): atomic, replacing."""
        os.rename(old, new)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """utimensat(2)."""
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def remove(self, path: str) -> None:
        """unlink(2)."""
        os.unlink(path)

    def make_dir(self, path: str) -> None:
        """mkdir(2)."""
        os.mkdir(path, 0o755)

    def remove_dir(self, path: str) -> None:
        """rmdir(2)."""
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        """fsync of the folder itself."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> SystemLock:
        """A record lock, which Apache's broker respects and which respects Apache's."""
        return SystemLock(path)

    def volume(self, path: str) -> Volume:
        """What statvfs says; free is what it leaves to an ordinary user."""
        volume = os.statvfs(path)
        return Volume(volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize)


def _entry(name: str, status: os.stat_result) -> Entry:
    kind = status.st_mode & _KIND
    size = status.st_size if kind == _FILE else 0
    return Entry(name, size, status.st_mtime_ns // 1_000_000, kind == _FOLDER, kind not in (_FILE, _FOLDER))
