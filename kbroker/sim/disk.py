"""A disk in memory that forgets what was not synced: `kbroker.ports.Disk` for simulations and crash tests.

Owns the files of one simulated machine, split in two: what a running process sees, and what a power cut would leave.
`crash_at` stops the machine at the n-th call; `restart` settles what survived. Faults (an errno for a call, a full
volume, slow calls, flipped bits) are set from outside. Stricter than a journaling file system on purpose: any subset
of the unsynced writes may survive, each whole, torn at a sector or byte, or not at all, whatever happens to the names.
Names in one folder survive in the order in which they changed, as on every journaling file system, or in none
(`ordered_names = False`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kbroker.ports import Buffer, Entry, OpenMode, Volume

SECTOR = 512
"""What a real disk writes whole; the simulated one tears between sectors, and sometimes within the last one."""

Fault = Callable[[str, str], OSError | None]
"""Asked before every call with its name and path; what it returns is raised instead of (or within) the call."""


class PowerLoss(BaseException):
    """The machine stopped here. A BaseException, so that no handler in the core survives its own power cut."""


class _Node:
    """One file's content: as seen, as durable, and the changes between the two in order."""

    __slots__ = ("data", "durable", "modified_ms", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (position, bytes written) or (new size, None)
        self.modified_ms = 0

    def write(self, position: int, content: bytes) -> None:
        self.pending.append((position, content))
        self.data = _put(self.data, position, content)

    def resize(self, size: int) -> None:
        self.pending.append((size, None))
        self.data = _resized(self.data, size)

    def sync(self) -> None:
        for position, content in self.pending:
            self.durable = _apply(self.durable, position, content)
        self.pending.clear()

    def settle(self, rng: random.Random) -> None:
        """After a power cut: the durable bytes and whatever else happened to reach the platter."""
        for position, content in self.pending:
            fate = rng.random()
            if fate < 0.4:
                continue
            if content is not None and fate < 0.7:
                content = _torn(content, rng)
            self.durable = _apply(self.durable, position, content)
        self.pending.clear()
        self.data = bytearray(self.durable)


def _apply(data: bytearray, position: int, content: bytes | None) -> bytearray:
    return _resized(data, position) if content is None else _put(data, position, content)


def _put(data: bytearray, position: int, content: bytes) -> bytearray:
    end = position + len(content)
    if end > len(data):
        data = _resized(data, end)
    data[position:end] = content
    return data


def _resized(data: bytearray, size: int) -> bytearray:
    """`data` cut or filled up to `size`; a map of the old content is poisoned, as the port says it may be."""
    if size == len(data):
        return data
    try:
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))
    except BufferError:  # it is mapped
        changed = bytearray(data[:size].ljust(size, b"\0"))
        data[:] = b"\xde" * len(data)
        return changed
    return data


def _torn(content: bytes, rng: random.Random) -> bytes:
    """A part of a write: a prefix, or the same length with some sectors never written."""
    if rng.random() < 0.5 or len(content) <= SECTOR:
        return content[: rng.randrange(len(content) + 1)]
    torn = bytearray(content)
    for start in range(0, len(torn), SECTOR):
        if rng.random() < 0.3:
            torn[start : start + SECTOR] = bytes(len(torn[start : start + SECTOR]))
    return bytes(torn)


class _Names(dict[str, "_Node | _Folder"]):
    """What is in a folder, by name."""

    __slots__ = ()

    def copy(self) -> _Names:
        """Of the same kind."""
        return type(self)(self)


class _CaselessNames(_Names):
    """The same of a file system that keeps names as they were given, and finds them in small or capital letters."""

    __slots__ = ()

    def _known(self, name: str) -> str:
        return next((each for each in self if each.lower() == name.lower()), name)

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(self._known(name), default)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(self._known(str(name)))

    def __getitem__(self, name: str) -> _Node | _Folder:
        return super().__getitem__(self._known(name))

    def __delitem__(self, name: str) -> None:
        super().__delitem__(self._known(name))


class _Folder:
    """One folder: the names as seen, and as they would be after a power cut."""

    __slots__ = ("durable", "names")

    def __init__(self, kind: type[_Names] = _Names) -> None:
        self.names = kind()
        self.durable = kind()


class _NameChange:
    """A change to one or two folders that is not durable yet: all of it survives or none."""

    __slots__ = ("folders", "link", "unlink")

    def __init__(
        self, link: tuple[_Folder, str, _Node | _Folder] | None, unlink: tuple[_Folder, str, _Node | _Folder] | None
    ) -> None:
        self.link = link
        self.unlink = unlink
        self.folders = [part[0] for part in (link, unlink) if part]

    def make_durable(self) -> None:
        if self.unlink:
            folder, name, node = self.unlink
            if folder.durable.get(name) is not node:
                return  # the name was never durable, so neither is what became of it
            del folder.durable[name]
        if self.link:
            folder, name, node = self.link
            folder.durable[name] = node


class SimDisk:
    """A simulated machine's disk. Paths are absolute; the folder `/` exists.

    seed: decides what survives a power cut, and nothing else.
    wall_ms: the clock for modification times. ignores_case: as the file systems of macOS do.
    """

    def __init__(self, seed: int = 0, wall_ms: Callable[[], int] = lambda: 0, *, ignores_case: bool = False) -> None:
        self._rng = random.Random(seed)
        self._wall_ms = wall_ms
        self._kind = _CaselessNames if ignores_case else _Names
        self._root = _Folder(self._kind)
        self._changes: list[_NameChange] = []
        self._locks: set[str] = set()
        self._boot = 0
        self._down = False
        self.calls = 0  # made since the start
        self.crash_at: int | None = None  # the call (counting from 1) that never returns
        self.crash_on_reads = False  # otherwise a crash lands only on calls that change something
        self.capacity: int | None = None  # bytes; None: endless
        self.ordered_names = True  # a changed name survives only with the changes before it in its folder
        self.open_files = 0  # handles not closed yet
        self.fault: Fault | None = None
        self.slow: Callable[[str, str], None] | None = None  # told of each call; may advance a clock
        self.trace: list[tuple[str, str]] | None = None  # set to [] to record every call

    # ---- faults, and what a test does to the machine

    def fail(self, call: str, path_end: str, code: int, times: int = 1) -> None:
        """Make the next `times` calls of this name on paths with this ending raise OSError(code)."""
        left = times

        def fault(name: str, path: str) -> OSError | None:
            nonlocal left
            if name != call or not path.endswith(path_end) or left == 0:
                return None
            left -= 1
            return OSError(code, errno.errorcode[code], path)

        self.fault = fault

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit of a file at rest, durably. bit: below 8 times the file's size."""
        node = self._file(path)
        node.sync()
        node.data[bit // 8] ^= 1 << bit % 8
        node.durable[bit // 8] ^= 1 << bit % 8

    @property
    def is_down(self) -> bool:
        """Whether the machine has stopped: even if the last call came back, with an error that the caller ignored."""
        return self._down

    def restart(self, *, power_loss: bool = True) -> None:
        """Bring the machine up again: after a power cut, or (power_loss=False) after only the process died."""
        if power_loss:
            self._settle_names()
            self._settle(self._root)
        self._boot += 1
        self._down = False
        self.crash_at = None
        self._locks.clear()
        self.open_files = 0

    def _settle_names(self) -> None:
        """Which names survive: of each folder the first few changes, unless told that order means nothing."""
        dropped: set[int] = set()  # folders of which no later change survives
        odds = self._rng.choice((0.0, 0.1, 0.3, 1.0))
        for change in self._changes:
            folders = {id(folder) for folder in change.folders}
            if folders & dropped or self._rng.random() < odds:
                dropped |= folders if self.ordered_names else set()
            else:
                change.make_durable()
        self._changes.clear()

    def _settle(self, folder: _Folder) -> None:
        folder.names = folder.durable.copy()
        for node in folder.names.values():
            if isinstance(node, _Folder):
                self._settle(node)
            else:
                node.settle(self._rng)

    def paths(self) -> list[str]:
        """Every file there is, sorted."""
        found: list[str] = []

        def walk(folder: _Folder, prefix: str) -> None:
            for name, node in folder.names.items():
                if isinstance(node, _Folder):
                    walk(node, f"{prefix}/{name}")
                else:
                    found.append(f"{prefix}/{name}")

        walk(self._root, "")
        return sorted(found)

    # ---- the port

    def open(self, path: str, mode: OpenMode) -> SimFile:
        """A handle, good until the machine goes down."""
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if node is None and mode != "create":
            self._enter("open", path, changes=False)
            _refuse(errno.ENOENT, path)
        self._enter("open", path, changes=node is None)
        if node is None:
            node = _Node()
            node.modified_ms = self._wall_ms()
            self._change(link=(folder, name, node))
        if isinstance(node, _Folder):
            _refuse(errno.EISDIR, path)
        return SimFile(self, node, path, mode != "read")

    def list(self, path: str) -> list[Entry]:
        """Names in an order that does not repeat itself, as on a real disk."""
        self._enter("list", path, changes=False)
        folder = self._folder(path)
        entries = [_entry(name, node) for name, node in folder.names.items()]
        self._rng.shuffle(entries)
        return entries

    def stat(self, path: str) -> Entry | None:
        """What is at a path."""
        self._enter("stat", path, changes=False)
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return None
        node = folder.names.get(name) if name else folder
        return None if node is None else _entry(name, node)

    def rename(self, old: str, new: str) -> None:
        """Atomic, replacing a file; durable when a folder it touches is synced."""
        self._enter("rename", old, changes=True)
        old_folder, old_name = self._parent(old)
        new_folder, new_name = self._parent(new)
        node = old_folder.names.get(old_name)
        if node is None:
            _refuse(errno.ENOENT, old)
        if isinstance(new_folder.names.get(new_name), _Folder):
            _refuse(errno.ENOTEMPTY, new)
        self._change(link=(new_folder, new_name, node), unlink=(old_folder, old_name, node))

    def clear(self, path: str) -> None:
        """Another disk, on which there is nothing, is in the place of the one that was there."""
        gone, (above, name) = self._folder(path), self._parent(path)
        self._changes = [each for each in self._changes if each.link is None or each.link[2] is not gone]
        above.names[name] = above.durable[name] = _Folder(self._kind)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """At once, and durable."""
        self._enter("set_modified", path, changes=True)
        self._file(path).modified_ms = modified_ms
        self._leave()

    def remove(self, path: str) -> None:
        """Take a file's name away; open handles stay good."""
        self._enter("remove", path, changes=True)
        folder, name = self._parent(path)
        self._change(unlink=(folder, name, self._file(path)))

    def make_dir(self, path: str) -> None:
        """A new folder, gone after a power cut unless its parent was synced."""
        self._enter("make_dir", path, changes=True)
        folder, name = self._parent(path)
        if name in folder.names:
            _refuse(errno.EEXIST, path)
        self._change(link=(folder, name, _Folder(self._kind)))

    def remove_dir(self, path: str) -> None:
        """Only an empty one."""
        self._enter("remove_dir", path, changes=True)
        gone = self._folder(path)
        if gone.names:
            _refuse(errno.ENOTEMPTY, path)
        folder, name = self._parent(path)
        self._change(unlink=(folder, name, gone))

    def sync_dir(self, path: str) -> None:
        """Every change of a name in this folder becomes durable, in order."""
        self._enter("sync_dir", path, changes=True)
        folder = self._folder(path)
        later = []
        for change in self._changes:
            if folder in change.folders:
                change.make_durable()
            else:
                later.append(change)
        self._changes = later
        self._leave()

    def lock(self, path: str) -> SimLock:
        """Held until released or until the machine restarts."""
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked", path)
        self.open(path, "create").close()
        self._locks.add(path)
        return SimLock(self._locks, path)

    def volume(self, path: str) -> Volume:
        """What `capacity` leaves."""
        self._enter("volume", path, changes=False)
        total = 1 << 40 if self.capacity is None else self.capacity
        return Volume(total, max(0, total - self.used_bytes()))

    # ---- within

    def used_bytes(self) -> int:
        """Bytes in all files."""
        return sum(len(self._file(path).data) for path in self.paths())

    def _enter(self, call: str, path: str, *, changes: bool) -> None:
        """Every call comes through here: counted, delayed, failed, or the last one."""
        if self._down:
            raise PowerLoss
        if self.trace is not None:
            self.trace.append((call, path))
        if self.slow is not None:
            self.slow(call, path)
        if changes or self.crash_on_reads:
            self.calls += 1
            if self.crash_at is not None and self.calls >= self.crash_at:
                self._down = True
                if self._rng.random() < 0.5:  # as often after the call took effect as before
                    raise PowerLoss
        if self.fault is not None and not self._down:
            error = self.fault(call, path)
            if error is not None:
                raise error

    def _leave(self) -> None:
        """A call that changed something has done so; if the power went meanwhile, its caller never learns."""
        if self._down:
            raise PowerLoss

    def _change(
        self,
        *,
        link: tuple[_Folder, str, _Node | _Folder] | None = None,
        unlink: tuple[_Folder, str, _Node | _Folder] | None = None,
    ) -> None:
        if unlink:
            del unlink[0].names[unlink[1]]
        if link:
            link[0].names[link[1]] = link[2]
        self._changes.append(_NameChange(link, unlink))
        self._leave()

    def _parent(self, path: str) -> tuple[_Folder, str]:
        assert path.startswith("/"), path
        *folders, name = path[1:].split("/")
        folder = self._root
        for part in folders:
            node = folder.names.get(part)
            if node is None:
                _refuse(errno.ENOENT, path)
            if isinstance(node, _Node):
                _refuse(errno.ENOTDIR, path)
            folder = node
        return folder, name

    def _folder(self, path: str) -> _Folder:
        folder, name = self._parent(path)
        node = folder.names.get(name) if name else folder
        if node is None:
            _refuse(errno.ENOENT, path)
        if isinstance(node, _Node):
            _refuse(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> _Node:
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if node is None:
            _refuse(errno.ENOENT, path)
        if isinstance(node, _Folder):
            _refuse(errno.EISDIR, path)
        return node


class SimFile:
    """A handle on a simulated file; satisfies `kbroker.ports.File`."""

    __slots__ = ("_boot", "_closed", "_disk", "_node", "_path", "_writable")

    def __init__(self, disk: SimDisk, node: _Node, path: str, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._writable = writable
        self._boot = disk._boot
        self._closed = False
        disk.open_files += 1

    def size(self) -> int:
        """Length in bytes."""
        self._enter("size", changes=False)
        return len(self._node.data)

    def read(self, position: int, size: int) -> bytes:
        """Bytes as this process would see them."""
        self._enter("read", changes=False)
        return bytes(self._node.data[position : position + size])

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Into the page cache; a full volume or an injected fault leaves a part behind."""
        content = b"".join(buffers)
        try:
            self._enter("write", changes=True)
        except OSError:
            self._node.write(position, content[: self._disk._rng.randrange(len(content) + 1)])
            raise
        capacity = self._disk.capacity
        if capacity is not None:
            room = capacity - self._disk.used_bytes() + max(0, len(self._node.data) - position)
            if room < len(content):
                self._node.write(position, content[: max(0, room)])
                _refuse(errno.ENOSPC, self._path)
        self._node.write(position, content)
        self._node.modified_ms = self._disk._wall_ms()
        self._disk._leave()

    def resize(self, size: int) -> None:
        """Poisons maps of the old content."""
        self._enter("resize", changes=True)
        self._node.resize(size)
        self._disk._leave()

    def sync(self) -> None:
        """Content and size survive from here on. A failed one loses, as Linux does, its claim to what it held."""
        try:
            self._enter("sync", changes=True)
        except OSError:
            self._node.pending.clear()  # marked clean though never written: a second sync would report success
            raise
        self._node.sync()
        self._disk._leave()

    def map(self) -> memoryview:
        """The page cache itself."""
        self._enter("map", changes=False)
        return memoryview(self._node.data).toreadonly()

    def close(self) -> None:
        """Idempotent."""
        if not self._closed:
            self._closed = True
            if self._boot == self._disk._boot:
                self._disk.open_files -= 1

    def __del__(self) -> None:
        self.close()

    def _enter(self, call: str, *, changes: bool) -> None:
        if self._closed:
            _refuse(errno.EBADF, self._path)
        if self._boot != self._disk._boot:
            raise PowerLoss  # a handle from before the restart: its process is dead
        assert self._writable or not changes or call == "sync", f"{call} on {self._path}, opened to read"
        self._disk._enter(call, self._path, changes=changes)

    def __repr__(self) -> str:
        return f"SimFile({self._path!r})"


class SimLock:
    """A held lock file."""

    __slots__ = ("_held", "_path")

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        """Let others take it."""
        self._held.discard(self._path)


def _entry(name: str, node: _Node | _Folder) -> Entry:
    if isinstance(node, _Folder):
        return Entry(name, 0, 0, True)
    return Entry(name, len(node.data), node.modified_ms, False)


def _refuse(code: int, path: str) -> NoReturn:
    raise OSError(code, errno.errorcode[code], path)
