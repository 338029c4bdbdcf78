"""The calls that operating systems do each in their own way: both ways of each do the same, and none is elsewhere."""

from __future__ import annotations

import ast
import ctypes
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from inspect import signature
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kbroker.ports import Region
from kbroker.runtime import platform
from kbroker.runtime.files import SystemDisk, SystemFile
from kbroker.runtime.platform import linux, portable

ROOT = Path(__file__).parents[2]
HOME = ROOT / "kbroker" / "runtime" / "platform"
WAYS = [pytest.param(linux, id="linux"), pytest.param(portable, id="portable")]


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


# ---- which ways are taken


def test_linux_has_its_own_ways_and_loads_no_others() -> None:
    told = python(
        """
        import sys
        from kbroker.runtime import platform
        from kbroker.runtime.platform import linux
        print([name for name in platform.__all__ if getattr(platform, name) is not getattr(linux, name)])
        print([name for name in sys.modules if name.startswith("kbroker.runtime.platform.")])
        """,
        KBROKER_PORTABLE="",
    )
    assert told.stdout.splitlines() == ["[]", "['kbroker.runtime.platform.linux']"], told.stderr


def test_a_variable_takes_the_portable_ways_of_all() -> None:
    told = python(
        """
        import sys
        from kbroker.runtime import platform
        from kbroker.runtime.platform import portable
        print([name for name in platform.__all__ if getattr(platform, name) is not getattr(portable, name)])
        print("kbroker.runtime.platform.linux" in sys.modules)
        """,
        KBROKER_PORTABLE="1",
    )
    assert told.stdout.splitlines() == ["[]", "False"], told.stderr


def test_a_call_that_this_python_lacks_is_replaced_alone() -> None:
    """One built for glibc 2.17 has no preadv2 and no memfd_create."""
    told = python(
        """
        import os
        del os.RWF_NOWAIT, os.memfd_create
        from kbroker.runtime import platform
        from kbroker.runtime.platform import portable
        taken = [name for name in platform.__all__ if getattr(portable, name) is getattr(platform, name)]
        print([name for name in taken if callable(getattr(platform, name))])
        """,
        KBROKER_PORTABLE="",
    )
    assert told.stdout.splitlines() == ["['is_resident', 'lasting_path', 'read_resident', 'secret_file']"], told.stderr


@pytest.mark.parametrize("name", platform.__all__)
def test_both_ways_are_called_alike(name: str) -> None:
    ours, theirs = getattr(linux, name), getattr(portable, name)
    if not callable(ours):
        assert type(ours) is type(theirs)
        return
    try:
        of_system = signature(ours)
    except ValueError:  # of a call of the operating system's that tells none
        return
    assert len(of_system.parameters) >= len(signature(theirs).parameters)
    if not isinstance(ours, type) and ours.__module__ == linux.__name__:
        assert of_system == signature(theirs)


# ---- no names of Linux elsewhere

MODULES = ("ctypes", "errno", "fcntl", "mmap", "os", "resource", "select", "signal", "socket", "stat", "time")


def names_on(system: str, module: str) -> set[str]:
    """What a module of the standard library has on an operating system, by the stubs that mypy brings."""
    import mypy

    stubs = Path(mypy.__path__[0], "typeshed", "stdlib")
    path = next(each for each in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi") if each.exists())
    its = SimpleNamespace(platform=system, version_info=(3, 15))

    def names(body: list[ast.stmt]) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.If):
                holds = eval(ast.unparse(node.test), {"sys": its})
                yield from names(node.body if holds else node.orelse)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                yield from (each.asname or each.name for each in node.names)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.AnnAssign):
                yield ast.unparse(node.target)
            elif isinstance(node, ast.Assign):
                yield from (ast.unparse(each) for each in node.targets)

    return set(names(ast.parse(path.read_text()).body))


PLACES = ("/proc/", "/sys/", "/dev/shm")


def linux_only() -> set[tuple[str, str]]:
    found = {(each, name) for each in MODULES for name in names_on("linux", each) - names_on("darwin", each)}
    return found | {("ctypes", "CDLL")}  # for what Python itself has no name


def uses(path: Path) -> Iterator[tuple[str, str, int]]:
    """Every name of a module of the standard library in a file, and strings that are paths."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, each.name, node.lineno) for each in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            of, name = node.args[:2]
            if isinstance(of, ast.Name) and isinstance(name, ast.Constant):
                yield of.id, str(name.value), node.lineno
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "", node.value, node.lineno


def may_use(path: Path, names: set[str]) -> bool:
    """Whether it is worth while to parse a file: one of the names is a word of it, or there may be such a path."""
    text = path.read_text()
    return not names.isdisjoint(re.findall(r"\w+", text)) or any(each in text for each in PLACES)


def test_no_name_that_only_linux_has_is_used_outside_of_the_platforms_package() -> None:
    forbidden = linux_only()
    assert {("os", "eventfd"), ("select", "epoll"), ("socket", "MSG_MORE"), ("os", "memfd_create")} <= forbidden
    assert not {("os", "sendfile"), ("os", "fsync"), ("select", "poll"), ("socket", "TCP_NODELAY")} & forbidden
    names = {name for _, name in forbidden}
    found = [
        f"{path.relative_to(ROOT)}:{line}: {of}{'.' if of else ''}{name}"
        for package in ("kbroker", "protocol")
        for path in sorted((ROOT / package).rglob("*.py"))
        if HOME not in path.parents and may_use(path, names)
        for of, name, line in uses(path)
        if (of, name) in forbidden or (not of and name.startswith(PLACES))
    ]
    assert found == []


# ---- the same by both ways


@pytest.mark.parametrize("way", WAYS)
def test_a_bell_counts_and_takes_any_number(way: ModuleType) -> None:
    bell, readiness = way.Bell(), platform.Poll()
    readiness.register(bell.fileno(), platform.READABLE)
    with pytest.raises(BlockingIOError):
        bell.recv(1)
    for _ in range(100_000):  # more than a pair of sockets or a pipe holds
        bell.send(b"\0")
    for _ in range(100_000):
        assert bell.recv(1) == b"\0"
    assert readiness.poll(0, 1) == []
    bell.send(b"\0\0")
    bell.recv(1)
    assert readiness.poll(0, 1) == [(bell.fileno(), platform.READABLE)]
    bell.recv(1)
    with pytest.raises(BlockingIOError):
        bell.recv(1)
    bell.close()
    bell.close()
    assert bell.fileno() == -1


@pytest.mark.parametrize("way", WAYS)
def test_a_waking_pipe_never_blocks_and_is_not_inherited(way: ModuleType) -> None:
    read, write = way.waking_pipe()
    with pytest.raises(BlockingIOError):
        os.read(read, 1)
    with suppress(BlockingIOError):
        while os.write(write, bytes(1 << 16)):
            pass
    assert [os.get_inheritable(read), os.get_inheritable(write)] == [False, False]
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("way", WAYS)
def test_a_file_is_sent_by_the_socket_until_it_ends(way: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there, path.open("rb") as file:
        assert way.send_file(here.fileno(), file.fileno(), 90, 50) == 10
        assert way.send_file(here.fileno(), file.fileno(), 100, 50) == 0
        assert there.recv(100) == bytes(range(90, 100))
        with suppress(BlockingIOError):
            while way.send_file(here.fileno(), file.fileno(), 0, 100):
                pass


def test_pages_that_freebsd_is_reading_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: int) -> int:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(os, "sendfile", busy)
    with pytest.raises(BlockingIOError):
        portable.send_file(1, 2, 0, 10)


@pytest.mark.parametrize("way", WAYS)
def test_buffers_are_written_and_read_one_behind_the_other(way: ModuleType, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    assert way.pwritev(fd, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]], 2) == 6
    first, second = bytearray(3), bytearray(9)
    assert way.preadv(fd, [memoryview(first), memoryview(second)], 1) == 7
    assert (bytes(first), bytes(second)) == (b"\0ab", b"cdef" + bytes(5))
    way.sync_file(fd)
    os.close(fd)


def test_on_a_mac_a_file_is_synced_down_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """And by fsync where the file system does not know it; an error of the disk is told."""
    asked: list[tuple[str, int]] = []
    fault = 0

    def full(fd: int, command: int) -> int:
        asked.append(("full", command))
        if fault:
            raise OSError(fault, os.strerror(fault))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(portable.fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda fd: asked.append(("fsync", fd)))
    portable.sync_file(7)
    assert asked == [("full", 51)]
    fault = errno.ENOTSUP
    portable.sync_file(7)
    assert asked[1:] == [("full", 51), ("fsync", 7)]
    fault = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        portable.sync_file(7)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_in_the_page_cache_is_known(way: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(data := os.urandom(1 << 20))
    region = Region(SystemDisk().open(str(path), "read"), 12_345, 500_000)
    assert way.is_resident(region, region.size)
    assert bytes(way.read_resident(region)) == data[12_345:512_345]
    assert way.read_resident(Region(region.file, 1 << 20, 10)) is None


def cold(path: Path) -> Region:
    """In the middle of a file of which nothing is in the page cache."""
    path.write_bytes(os.urandom(4 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return Region(SystemDisk().open(str(path), "read"), 2 << 20, 4096)


@pytest.mark.parametrize("way", WAYS)
def test_what_has_left_the_page_cache_is_known(way: ModuleType, tmp_path: Path) -> None:
    if linux.is_resident(cold(tmp_path / "probe"), 4096):  # which has the kernel read it
        pytest.skip("this file system keeps its pages: nothing can be cold")
    assert way.read_resident(cold(tmp_path / "f")) is None
    region = cold(tmp_path / "g")
    assert not way.is_resident(region, 4096)
    region.read()
    assert way.is_resident(region, 4096)


def test_without_mincore_nothing_counts_as_resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the disk pool reads it first."""
    path = tmp_path / "f"
    path.write_bytes(b"x")
    region = Region(SystemDisk().open(str(path), "read"), 0, 1)
    monkeypatch.setattr(portable._MemoryCalls, "_found", [])
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace())
    assert not portable.is_resident(region, 1)
    assert portable.read_resident(region) is None
    monkeypatch.setattr(portable._MemoryCalls, "_found", [])


def test_what_cannot_be_mapped_does_not_count_as_resident() -> None:
    read, write = os.pipe()
    assert not portable.is_resident(Region(SystemFile(read), 0, 1), 1)
    os.close(write)


@pytest.mark.parametrize("way", WAYS)
def test_a_lock_keeps_out_another_process_and_this_one(way: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    fd = way.lock_file(path)
    script = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    for _ in range(2):  # the attempt of this process does not unlock it
        with pytest.raises(BlockingIOError):
            way.lock_file(path)
        with pytest.raises(BlockingIOError):
            way.lock_file(str(tmp_path / ".." / tmp_path.name / ".lock"))
        assert "BlockingIOError" in python(script, path).stderr
    way.unlock_file(fd)
    assert python(script, path).stderr == ""
    way.unlock_file(way.lock_file(path))


@pytest.mark.parametrize("way", WAYS)
def test_a_file_system_without_locks_says_which_file(
    way: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> int:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", none)
    monkeypatch.setattr(fcntl, "lockf", none)
    before = os.listdir("/dev/fd")
    with pytest.raises(OSError, match=f"No locks available: '{tmp_path}/.lock'"):
        way.lock_file(f"{tmp_path}/.lock")
    assert os.listdir("/dev/fd") == before


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_can_be_read_by_its_path_and_is_gone_after(way: ModuleType) -> None:
    with way.secret_file(b"secret") as path:
        assert [Path(path).read_bytes() for _ in range(2)] == [b"secret"] * 2
        assert os.stat(path).st_mode & 0o077 == 0 or path.startswith("/proc/self/fd/")
    assert not os.path.exists(path)


@pytest.mark.parametrize("name", ["linux", "portable"])
def test_a_lasting_path_lasts_as_long_as_the_process(name: str) -> None:
    told = python(
        f"""
        from kbroker.runtime.platform import {name}
        path = {name}.lasting_path(b"secret")
        assert open(path, "rb").read() == open(path, "rb").read() == b"secret"
        print(path)
        """
    )
    assert not told.stderr
    assert told.stdout.startswith("/proc/self/fd/") or not os.path.exists(told.stdout.strip())


PARENT = """
import os, signal, sys, time
from kbroker.runtime.platform import {name} as way
child = way.start_tethered("tethered", ["a b", "c"], signal.SIGTERM, process_group=0)
print(child.pid, flush=True)
sys.stdin.read()
"""

CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), os._exit(0)))
print(sys.argv[1:], __name__, flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("name", ["linux", "portable"])
def test_a_child_ends_with_its_parent_however_that_ended(name: str, tmp_path: Path) -> None:
    (tmp_path / "tethered.py").write_text(CHILD)
    command = [sys.executable, "-c", PARENT.format(name=name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        said = sorted([parent.stdout.readline(), parent.stdout.readline()])
        assert said[1] == "['a b', 'c'] __main__\n"
        parent.kill()
        assert parent.stdout.read() == "ended\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_child_told_of_a_parent_that_is_gone_ends(way: ModuleType) -> None:
    tether = way.Tether()
    name = way.__name__.rpartition(".")[2]
    code = f"""
    import signal, time
    from kbroker.runtime.platform import {name} as way
    import sys
    way.end_with_parent(signal.SIGKILL, 1, int(sys.argv[1]))
    time.sleep(30)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tether.fd)]
    with subprocess.Popen(command, pass_fds=[tether.fd] if tether.fd >= 0 else ()) as child:
        tether.given()
        tether.close()
        assert child.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("way", WAYS)
def test_figures_of_the_process_are_told(way: ModuleType) -> None:
    assert 1 << 20 < way.resident_bytes() < 1 << 40
    before = way.open_descriptors()
    fd = os.open(os.devnull, os.O_RDONLY)
    assert way.open_descriptors() == before + 1
    os.close(fd)
    assert way.usable_processors() >= 1
    assert " / " in way.mounts() or way is portable
    way.give_back_memory()


def test_on_a_mac_memory_is_what_the_kernel_says_of_the_task() -> None:
    """A fake of task_info, with the layout of mach_task_basic_info."""

    def task_info(task: ctypes.c_uint32, flavor: int, info: object, count: object) -> int:
        assert (task.value, flavor) == (259, 20)
        pointer = ctypes.cast(info, ctypes.POINTER(ctypes.c_uint64))  # type: ignore[arg-type]
        pointer[0], pointer[1], pointer[2] = 4 << 30, 123 << 20, 456 << 20
        return 0 if ctypes.cast(count, ctypes.POINTER(ctypes.c_uint32))[0] == 12 else 4  # type: ignore[arg-type]

    assert portable.resident_on_mac(SimpleNamespace(task_info=task_info), 259) == 123 << 20
    with pytest.raises(OSError, match="task_info: 5"):
        portable.resident_on_mac(SimpleNamespace(task_info=lambda *_: 5), 259)
