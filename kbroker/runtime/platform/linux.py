"""Linux' own ways. What a name means is said in `portable.py`, which has the same ones.

Where a call is missing, its name is not defined here, and the portable one is taken: so it is with a Python that was
built for an older C library than it runs on.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

assert sys.platform == "linux", sys.platform

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from kbroker.ports import Buffer, Region
    from kbroker.runtime.files import SystemFile

# -- readiness

if hasattr(select, "epoll"):
    Poll = select.epoll
    READABLE, WRITABLE = select.EPOLLIN, select.EPOLLOUT


def usable_processors() -> int:
    """sched_getaffinity(2): fewer than there are, in a container for one."""
    return len(os.sched_getaffinity(0))


def waking_pipe() -> tuple[int, int]:
    """pipe2(2)."""
    return os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)


if hasattr(os, "eventfd"):

    class Bell:
        def __init__(self) -> None:
            self._number = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)

        def fileno(self) -> int:
            return self._number

        def send(self, data: bytes) -> int:
            os.eventfd_write(self._number, len(data))
            return len(data)

        def recv(self, _: int) -> bytes:
            os.eventfd_read(self._number)
            return b"\0"

        def close(self) -> None:
            number, self._number = self._number, -1
            if number >= 0:  # it is closed as either end
                os.close(number)


# -- sockets

MSG_MORE = int(socket.MSG_MORE)
PROTOCOLS_OVER_TCP = "/proc/sys/net/ipv4/tcp_available_ulp"

if hasattr(os, "sendfile"):
    SENDS_FILES = True
    send_file = os.sendfile

# -- files

sync_file = os.fdatasync
MEMORY_FOLDER = "/dev/shm"

if hasattr(os, "pwritev"):
    pwritev, preadv = os.pwritev, os.preadv

if hasattr(os, "RWF_NOWAIT"):
    PROBE_EVERY = 128 << 10  # the kernel reads ahead in windows of this size: between two hot probes little can be cold

    def is_resident(region: Region, size: int) -> bool:
        fd = cast("SystemFile", region.file).fileno()
        last = region.position + size - 1
        probe = [bytearray(1)]
        try:
            for position in (*range(region.position, last, PROBE_EVERY), last):
                os.preadv(fd, probe, position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError:  # a file system without RWF_NOWAIT: nothing to be known
            return True
        return True

    def read_resident(region: Region) -> Buffer | None:
        data = bytearray(region.size)
        try:
            size = os.preadv(cast("SystemFile", region.file).fileno(), [data], region.position, os.RWF_NOWAIT)
        except OSError:  # nothing to read without waiting, a file system that cannot say so, or an error: shown later
            return None
        return data if size == region.size else None


if hasattr(fcntl, "F_OFD_SETLK") and struct.calcsize("P") == 8:
    _EXCLUSIVE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock: the whole file

    def lock_file(path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Not flock(2): Apache's broker takes a POSIX record lock here, and only record locks see one another.
            # Not a plain record lock either: those do not exclude a second broker in the same process.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _EXCLUSIVE)
        except OSError as error:
            os.close(fd)
            error.filename = path
            raise
        return fd

    unlock_file = os.close

if hasattr(os, "memfd_create"):

    @contextmanager
    def secret_file(data: bytes) -> Iterator[str]:
        fd = _in_memory(data)
        try:
            yield f"/proc/self/fd/{fd}"
        finally:
            os.close(fd)

    def lasting_path(data: bytes) -> str:
        return f"/proc/self/fd/{_in_memory(data)}"

    def _in_memory(data: bytes) -> int:
        fd = os.memfd_create("kbroker", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        return fd


# -- processes

_PR_SET_PDEATHSIG = 1


class Tether:
    """Nothing: the kernel sees to it."""

    fd = -1

    def given(self) -> None:
        """Nothing to give."""

    def close(self) -> None:
        """Nothing to close."""


def end_with_parent(number: int, parent: int, fd: int) -> None:
    """prctl(2), PR_SET_PDEATHSIG; the parent may be gone already."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def start_tethered(module: str, arguments: Sequence[str], number: int, **how: Any) -> subprocess.Popen[bytes]:
    """The same, between fork and exec."""
    import ctypes
    import subprocess

    process_control = ctypes.CDLL(None).prctl  # found before the fork: the child has none of our other threads

    def tie() -> None:
        process_control(_PR_SET_PDEATHSIG, number, 0, 0, 0)

    return subprocess.Popen([sys.executable, "-m", module, *arguments], preexec_fn=tie, **how)


if hasattr(os, "SCHED_IDLE"):

    def give_way() -> None:
        """sched(7), SCHED_IDLE: it has a processor only if no other thread wants one, and loses it at once."""
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread alone


# -- figures

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """proc(5), statm."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def open_descriptors() -> int:
    """proc(5), fd."""
    return len(os.listdir("/proc/self/fd"))


def pid_namespace() -> int:
    """pid_namespaces(7)."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def mounts() -> str:
    """proc(5), mountinfo."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return file.read()


def give_back_memory() -> None:
    """malloc_trim(3)."""
    import ctypes  # only a broker that has grown pays for loading it

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl keeps little
    if trim is not None:
        trim(0)
