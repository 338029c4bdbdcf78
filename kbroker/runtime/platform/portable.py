"""The ways of POSIX: what stands for Linux' own calls on macOS, on BSD, and on a Linux whose C library lacks some.

Each piece says what its name means, for `linux.py` too. Those of macOS are written from its documentation; a fake of
the system's calls stands for it in the tests, and they have not been run on a Mac.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EBUSY, EINVAL, ENOSYS, ENOTSUP, ENOTTY
from typing import TYPE_CHECKING, Any, ClassVar, cast

from kbroker.runtime.platform.readiness import READABLE as READABLE
from kbroker.runtime.platform.readiness import WRITABLE as WRITABLE
from kbroker.runtime.platform.readiness import Kqueue, PosixPoll

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from kbroker.ports import Buffer, Region
    from kbroker.runtime.files import SystemFile

# -- readiness

Poll = Kqueue if hasattr(select, "kqueue") else PosixPoll


def usable_processors() -> int:
    """How many processors this process may use."""
    return os.cpu_count() or 1


def waking_pipe() -> tuple[int, int]:
    """A pipe of this process alone, to read from and to write to, neither of which blocks."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    return ends


class Bell:
    """A count between threads, as both ends of a pair of sockets: each byte sent adds one, each `recv` takes one.

    It is readable while the count is not 0, and takes any number of bytes without blocking: Linux' eventfd. Here it is
    a pipe with a byte in it while there is something to count.
    """

    def __init__(self) -> None:
        self._read, self._write = waking_pipe()
        self._count = 0
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """To wait for; -1 once closed."""
        return self._read

    def send(self, data: bytes) -> int:
        """Add as many as there are bytes."""
        with self._lock:
            if not self._count and data:
                os.write(self._write, b"\0")
            self._count += len(data)
        return len(data)

    def recv(self, _: int) -> bytes:
        """Take one. Raises: BlockingIOError if there is none."""
        with self._lock:
            if self._count <= 1:
                os.read(self._read, 1)
            self._count = max(self._count - 1, 0)
        return b"\0"

    def close(self) -> None:
        """Idempotent: it is closed as either end."""
        read, self._read = self._read, -1
        if read >= 0:
            os.close(read)
            os.close(self._write)


# -- sockets

MSG_MORE = 0
"""A flag of send: more follows at once, so wait for it. BSD has TCP_NOPUSH, an option that is set and cleared by two
calls, and macOS does not send what waits when it is cleared: so an answer's head is a packet of its own there."""

PROTOCOLS_OVER_TCP = ""
"""A file that names what the kernel can do on a TCP connection by itself, TLS for one; empty where there is none."""

SENDS_FILES = hasattr(os, "sendfile")
"""Whether there is `send_file`: else the bytes are read and sent."""


def send_file(sock: int, fd: int, position: int, size: int) -> int:
    """Send bytes of a file to a socket without a copy into this process. Returns: how many; 0 at the file's end.

    size: above 0, which BSD takes for all that there is. Raises: BlockingIOError if the socket takes nothing now.
    """
    assert size > 0, size
    try:
        return os.sendfile(sock, fd, position, size)
    except OSError as error:
        if error.errno == EBUSY:  # FreeBSD: the pages are being read
            raise BlockingIOError(error.errno, error.strerror) from None
        raise


# -- files

MEMORY_FOLDER = ""
"""A folder whose files are in memory; empty where there is none."""


def sync_file(fd: int) -> None:
    """Return once the file's content and size are on the disk, and not only in a cache of the disk's.

    macOS' fsync leaves them in such a cache; F_FULLFSYNC does not, but not every file system there knows it.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as error:
            if error.errno not in (EINVAL, ENOSYS, ENOTSUP, ENOTTY):
                raise
    os.fsync(fd)


def pwritev(fd: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write several, one behind the other. Returns: how many bytes were taken. macOS has it since release 11."""
    return os.pwrite(fd, b"".join(buffers), position)


def preadv(fd: int, buffers: Sequence[memoryview], position: int) -> int:
    """Read into several, one behind the other. Returns: how many bytes there were."""
    total = 0
    for buffer in buffers:
        data = os.pread(fd, len(buffer), position + total)
        buffer[: len(data)] = data
        total += len(data)
        if len(data) < len(buffer):
            break
    return total


if sys.platform != "linux" and hasattr(os, "pwritev"):
    pwritev, preadv = os.pwritev, os.preadv  # type: ignore[assignment]


def is_resident(region: Region, size: int) -> bool:
    """Whether sending the region's first `size` bytes will not wait for a disk, as far as can be told.

    mincore says it of pages that are mapped. Without it they count as not resident: the disk pool reads them first.
    """
    calls = _MemoryCalls.found()
    return calls is not None and calls.are_resident(
        cast("SystemFile", region.file).fileno(), region.position, max(size, 1)
    )


def read_resident(region: Region) -> Buffer | None:
    """A region's bytes if all of them are in the page cache, as far as can be told; None if not, or on an error."""
    if not is_resident(region, region.size):
        return None
    try:
        data = region.file.read(region.position, region.size)
    except OSError:  # shown later, to its owner
        return None
    return data if len(data) == region.size else None


class _MemoryCalls:
    """mmap, mincore and munmap of the C library: Python's mmap does not tell where a map is."""

    _found: ClassVar[list[_MemoryCalls | None]] = []  # once they were looked for

    PROT_READ, MAP_SHARED = 1, 1  # so on Linux, macOS and every BSD

    def __init__(self) -> None:
        """Raises: ImportError, OSError, AttributeError: they are not to be had here."""
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        self._mmap, self._mincore, self._munmap = library.mmap, library.mincore, library.munmap
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        self._mmap.restype = pointer
        self._mmap.argtypes = (pointer, size, number, number, number, ctypes.c_int64)
        self._mincore.argtypes = (pointer, size, ctypes.c_char_p)
        self._munmap.argtypes = (pointer, size)
        self._failed = ctypes.c_void_p(-1).value
        self._buffer = ctypes.create_string_buffer
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    @classmethod
    def found(cls) -> _MemoryCalls | None:
        """Looked for once; None if there are none."""
        if not cls._found:
            try:
                cls._found.append(cls())
            except (ImportError, OSError, AttributeError):
                cls._found.append(None)
        return cls._found[0]

    def are_resident(self, fd: int, position: int, size: int) -> bool:
        """Whether these bytes of a file are in the page cache; false if that cannot be told."""
        start = position - position % self._page_bytes
        length = position + size - start
        address = self._mmap(None, length, self.PROT_READ, self.MAP_SHARED, fd, start)
        if address == self._failed:
            return False
        pages = -(-length // self._page_bytes)
        resident = self._buffer(pages)  # a byte for each page; the lowest bit says it
        try:
            return self._mincore(address, length, resident) == 0 and all(each & 1 for each in set(resident.raw))
        finally:
            self._munmap(address, length)


_locked: dict[int, tuple[int, int]] = {}  # device and inode of what this process has locked, by descriptor
_locking = threading.Lock()


def lock_file(path: str) -> int:
    """Lock a file, made if missing: neither another process nor this one can lock it again. Returns: a descriptor.

    Apache's broker respects it, and it respects Apache's: a record lock. Those do not exclude a second broker in the
    same process, and are gone once any descriptor of the file is closed: so what is locked is remembered here, and not
    opened again. Raises: BlockingIOError if it is locked, other OSErrors with the path.
    """
    with _locking:
        with suppress(FileNotFoundError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in _locked.values():
                raise BlockingIOError(EACCES, "locked by this process", path)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            status = os.fstat(fd)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno == EACCES:  # POSIX allows either
                raise BlockingIOError(error.errno, error.strerror, path) from None
            error.filename = path
            raise
        _locked[fd] = status.st_dev, status.st_ino
    return fd


def unlock_file(fd: int) -> None:
    """Close the descriptor, and unlock the file with it."""
    with _locking:
        os.close(fd)
        _locked.pop(fd, None)


@contextmanager
def secret_file(data: bytes) -> Iterator[str]:
    """A path for bytes, gone after the block; only this user can read it. On Linux it is in memory, here a file."""
    from tempfile import NamedTemporaryFile

    with NamedTemporaryFile(prefix="kbroker-") as file:
        file.write(data)
        file.flush()
        yield file.name


def lasting_path(data: bytes) -> str:
    """The same for as long as this process lives; if it is killed, the file stays."""
    block = secret_file(data)
    path = block.__enter__()
    atexit.register(block.__exit__, None, None, None)
    return path


# -- processes


class Tether:
    """What ends a child when this process ends, however that comes: to be made before the child is started.

    Linux' kernel sends the child a signal. Here it waits for the end of a pipe whose other end only this process has.

    fd: what the child has to inherit, and gives to `end_with_parent`; -1 on Linux.
    """

    def __init__(self) -> None:
        self.fd, self._held = os.pipe()
        os.set_inheritable(self.fd, True)

    def given(self) -> None:
        """The child has been started."""
        os.close(self.fd)

    def close(self) -> None:
        """The child has ended, or is to end now."""
        held, self._held = self._held, -1
        if held >= 0:
            os.close(held)


def end_with_parent(number: int, parent: int, fd: int) -> None:
    """In the child: end by this signal once its parent has ended. parent: its process id. fd: of its `Tether`."""
    del parent  # the pipe has ended already if it is gone

    def wait() -> None:
        with suppress(OSError):
            os.read(fd, 1)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, name="parent", daemon=True).start()


_TETHERED = "from kbroker.runtime.platform.portable import run_tethered; run_tethered()"


def start_tethered(module: str, arguments: Sequence[str], number: int, **how: Any) -> subprocess.Popen[bytes]:
    """Start `python -m module`, that gets this signal when this process ends. how: further arguments for Popen."""
    import subprocess
    import weakref

    tether = Tether()
    command = [sys.executable, "-c", _TETHERED, str(tether.fd), str(int(number)), module, *arguments]
    try:
        process = subprocess.Popen(command, pass_fds=(tether.fd,), **how)
    except BaseException:
        tether.close()
        raise
    finally:
        tether.given()
    weakref.finalize(process, tether.close)
    return process


def run_tethered() -> None:
    """In that child: be the module that was asked for."""
    from runpy import run_module

    _, fd, number, module, *arguments = sys.argv
    end_with_parent(int(number), os.getppid(), int(fd))
    sys.argv = [module, *arguments]
    run_module(module, run_name="__main__", alter_sys=True)


def give_way() -> None:
    """From now on, let all other processes go first: this thread on Linux, elsewhere the process."""
    os.nice(20)


# -- figures


def resident_bytes() -> int:
    """The process's memory, with the pages of files that it has mapped; the most that it was if no more is known."""
    if sys.platform == "darwin":
        import ctypes

        library = ctypes.CDLL(None)
        return resident_on_mac(library, ctypes.c_uint32.in_dll(library, "mach_task_self_").value)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def resident_on_mac(library: Any, task: int) -> int:
    """What task_info(MACH_TASK_BASIC_INFO) says of a task. library: has it. Raises: OSError."""
    import ctypes

    class Info(ctypes.Structure):  # struct mach_task_basic_info
        _fields_ = [
            ("virtual_size", ctypes.c_uint64),
            ("resident_size", ctypes.c_uint64),
            ("resident_size_max", ctypes.c_uint64),
            ("user_time", ctypes.c_int32 * 2),
            ("system_time", ctypes.c_int32 * 2),
            ("policy", ctypes.c_int32),
            ("suspend_count", ctypes.c_int32),
        ]

    info, words = Info(), ctypes.c_uint32(ctypes.sizeof(Info) // 4)
    fault = library.task_info(ctypes.c_uint32(task), 20, ctypes.byref(info), ctypes.byref(words))
    if fault:
        raise OSError(f"task_info: {fault}")
    return int(info.resident_size)


def open_descriptors() -> int:
    """How many the process has open."""
    return len(os.listdir("/dev/fd"))


def pid_namespace() -> int:
    """What tells processes of one container from those of another, which may have the same numbers; 0 if unknown."""
    return 0


def mounts() -> str:
    """The file systems that this process sees, as the text of Linux' mountinfo; empty where there is no such thing."""
    return ""


def give_back_memory() -> None:
    """Have the C library return to the system what is free; where it cannot be told to, nothing happens."""
    import ctypes  # only a broker that has grown pays for loading it

    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_zone_pressure_relief"):  # macOS
        library.malloc_zone_pressure_relief.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.malloc_zone_pressure_relief(None, 0)  # of all zones, as much as there is
    elif hasattr(library, "malloc_trim"):  # glibc
        library.malloc_trim(0)
