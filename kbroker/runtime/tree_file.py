"""A tree of nodes in a SQLite file: every change durable before it is answered.

Used by the metadata stores of this machine, `embedded.py` and `shared_store.py`, which say when; it knows no sessions
beyond their numbers, and posts nothing.

| table | column | what |
|---|---|---|
| `node` | `path` TEXT, primary key | `/brokers/topics/orders`; the root is `/` |
| | `data` BLOB | what the node holds |
| | `czxid`, `mzxid` INTEGER | transactions that made it, and last set its data |
| | `version`, `children_version` INTEGER | how often its data was set, its children changed |
| | `sequence` INTEGER | number of its next sequential child |
| | `ephemeral` INTEGER | 1: of a session, gone at the next opening |
| | `checksum` INTEGER | CRC-32C of all that |
| `counter` | `name` TEXT, `value` INTEGER | `zxid`: last transaction; `session`: last session; `layout`: 2 |
| | | `open_zxid`, `open_session`: those two as SQLite's log was last moved into the file; -1: closed in order |
| | | `total`: sum of all nodes' checksums and of that of the other counters |

Ephemeral nodes are written down, too, so that opening after a crash deletes them as ZooKeeper would when the session
ends, and their parents count on. The file belongs to one process at a time (SQLite's lock); a second one gets an
OSError that says so.

A changed bit is never taken for metadata: nodes are under checksums, and a row that is gone is missed in their sum.
SQLite notices damage to its own pages, and `wal.py` to its log. A file that was not closed and has no log, or an empty
one, and in which nothing has happened since the log was last moved into it, has lost what was in there: it would be a
tree of days ago. So the log is never empty while a file is open. A new file is complete before it has its name: one
that is empty was emptied. What is damaged is refused, in one line (DamagedError).

SQLite changes files before their content has been looked at: it moves the log of a file that was not closed into
it, or removes that, whatever the file holds; it writes back what a rollback journal beside the file has; of an emptied
file it takes the log for a leftover. So a file with a log or a journal is looked at in a copy first, and nothing is
written to any file before it was looked at: a refusal leaves all as it was.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from kbroker.metadata.tree import NO_SESSION, Node, Tree, split
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.wal import has_lost_transactions
from kbroker.tables import shrink
from protocol.records import crc32c

if TYPE_CHECKING:
    from kbroker.runtime import sqlite  # imported late at run time: a broker on ZooKeeper never needs it

LAYOUT = 2

_TABLES = """
CREATE TABLE node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    version INTEGER NOT NULL, children_version INTEGER NOT NULL, sequence INTEGER NOT NULL, ephemeral INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_TYPES = (str, bytes, int, int, int, int, int, int, int)
_PUT = "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT = "INSERT OR REPLACE INTO counter VALUES (?, ?)"
_COUNTED = ("zxid", "session", "layout", "open_zxid", "open_session")
_CLOSED = (-1, -1)
_WRAP = 1 << 62  # what SQLite's integers hold, and some to spare
_FAULT_LENGTH = 200  # SQLite quotes whole statements
_LOCK_AT, _LOCK_BYTES = 0x40000000, 512  # where SQLite locks a file ("File Locking And Concurrency", sqlite.org)
_SAVES_IN_LOG = 500  # before SQLite's log is moved into the file; the first save is moved at once

_Row = tuple[str, bytes, int, int, int, int, int, int, int]


class DamagedError(OSError):
    """The file does not hold what was written to it."""


class Change:
    """What one transaction is to write. sum: of all nodes' checksums, then. moves_log: into the file, afterwards."""

    __slots__ = ("counters", "gone", "is_called_off", "is_whole", "is_written", "moves_log", "rows", "sum")

    def __init__(
        self, rows: Sequence[_Row], gone: Sequence[str], counters: dict[str, int], total: int, moves_log: bool
    ) -> None:
        self.rows = rows
        self.gone = gone
        self.counters = counters
        self.sum = total
        self.moves_log = moves_log
        self.is_written = self.is_whole = self.is_called_off = False


class TreeFile:
    """An open file. tree: what it holds, to be changed by its owner. session: the last one that was written down."""

    def __init__(self, path: str, *, is_copy: bool = False) -> None:
        """Open the file, made if missing, and end the sessions of earlier lives; that is not written yet.

        is_copy: it may be changed even if it is refused. Raises: OSError if the file cannot be opened, is taken by
        another process, is not ours, or (DamagedError) is not as it was left.
        """
        self._path = path
        _check_unused_here(path)
        if not os.path.lexists(path) and not _has_content(_beside(path, "-wal")):
            _make(path)
        had_log = _check_files(path)
        if not is_copy and any(os.path.exists(_beside(path, suffix)) for suffix in ("-wal", "-journal")):
            _judge(path)
        self._file = _open(path)
        _in_use_here[_inode(path)] = self
        self._checksums: dict[str, int] = {}  # of the rows that are written
        self._sum = 0  # of these
        self._saves = 0
        self._opened = _CLOSED
        self._in_use = threading.Lock()  # SQLite's connection is one thread's at a time
        try:
            self._load(had_log)
            self._prepare()
        except BaseException:
            self._file.close()
            _in_use_here.pop(_inode(path), None)
            raise
        for earlier in {node.session for node in self.tree.nodes.values()} - {NO_SESSION}:
            self.tree.end_session(earlier)

    def _load(self, had_log: bool) -> None:
        with _as_os_error(self._path):
            counters: dict[str, int] = dict(self._file.execute("SELECT name, value FROM counter"))
            rows: list[_Row] = self._file.execute("SELECT * FROM node").fetchall()
        self._check(counters, rows, had_log)
        self.session = counters["session"]
        self.tree = Tree(counters["zxid"])
        self.tree.restore((row[0], self._node(row, counters["zxid"])) for row in rows)
        if counters["layout"] == LAYOUT:
            self._opened = counters.get("open_zxid", -1), counters.get("open_session", -1)
            self._checksums = {row[0]: row[-1] for row in rows}
            self._sum = sum(self._checksums.values())
        else:  # there were no checksums: they are written with the first change
            self.tree.touched.update(row[0] for row in rows)

    def _prepare(self) -> None:
        """The file is sound: have it written as `write` needs it."""
        with _as_os_error(self._path):
            # one fsync a transaction; with the exclusive lock, no shared memory
            self._file.execute("PRAGMA journal_mode = WAL")
            if len(self._file.execute("SELECT * FROM node LIMIT 0").description) < len(_TYPES):  # layout 1
                self._file.execute("ALTER TABLE node ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")

    def _check(self, counters: Mapping[str, int], rows: Sequence[_Row], had_log: bool) -> None:
        layout = counters.get("layout")
        if isinstance(layout, int) and layout > LAYOUT:
            raise OSError(f"{self._path}: written by a newer version of this broker (layout {layout}, not {LAYOUT})")
        fault = fault_of_rows(counters, rows)
        at = (counters.get("zxid"), counters.get("session"))
        if not fault and not had_log and at == (counters.get("open_zxid"), counters.get("open_session")):
            fault = "it was not closed in order, and its log, the -wal file, is gone or empty"
        if fault:
            raise damaged(self._path, fault)

    def _node(self, row: _Row, zxid: int) -> Node:
        _, data, czxid, mzxid, version, children_version, sequence, ephemeral, *_ = row
        node = Node(data, czxid, self.session if ephemeral else NO_SESSION)
        node.mzxid, node.version, node.children_version, node.sequence = mzxid, version, children_version, sequence
        node.pzxid = zxid  # not written down: no later than this
        return node

    def save(self, session: int) -> None:
        """Write down every touched node, in one transaction: one fsync. session: the last one.

        Raises: OSError; then the nodes count as touched still.
        """
        change = self.prepare(session)
        try:
            self.write(change)
        finally:
            self.finish(change)

    def prepare(self, session: int) -> Change:
        """What there is to be written now, as it stands: `write` does it, on any thread; `finish` ends it.

        One at a time. The tree may be changed meanwhile: that is for the next one.
        """
        nodes, touched, before = self.tree.nodes, self.tree.touched, self._checksums
        rows = [_row(path, nodes[path]) for path in touched if path in nodes]
        gone = [path for path in touched if path not in nodes]
        moved = sum(row[-1] for row in rows) - sum(before.get(path, 0) for path in touched)
        moves_log = self._saves % _SAVES_IN_LOG == 0
        counters = _counters(self.tree.zxid, session, (self.tree.zxid, session) if moves_log else self._opened)
        touched.clear()
        return Change(rows, gone, counters, self._sum + moved, moves_log)

    def write(self, change: Change) -> None:
        """Durable when this returns. Raises: OSError."""
        with self._in_use, _as_os_error(self._path):
            if change.is_called_off:
                return
            with self._file:
                self._file.executemany(_PUT, change.rows)
                self._file.executemany("DELETE FROM node WHERE path = ?", [(path,) for path in change.gone])
                total = _total(change.sum, change.counters)
                self._file.executemany(_COUNT, [*change.counters.items(), ("total", total)])
            change.is_written = True
            if change.moves_log:  # whose content stays until the next transaction: an empty one is missed
                self._file.execute("PRAGMA wal_checkpoint(RESTART)")
            change.is_whole = True

    def finish(self, change: Change) -> None:
        """Note what became of it; what was not written is touched still. If it was not begun, it is called off."""
        with self._in_use:
            change.is_called_off = True
        if not change.is_written:
            self.tree.touched.update(row[0] for row in change.rows)
            self.tree.touched.update(change.gone)
            return
        self._sum = change.sum
        self._checksums.update((row[0], row[-1]) for row in change.rows)
        for path in change.gone:
            self._checksums.pop(path, None)
        shrink(self._checksums)
        self.session = change.counters["session"]
        self._opened = change.counters["open_zxid"], change.counters["open_session"]
        self._saves += change.is_whole

    def close(self) -> None:
        """Give the file back, complete in itself; no node is written any more."""
        from kbroker.runtime import sqlite

        counters = _counters(self.tree.zxid, self.session, _CLOSED)
        misses_log = self._opened != _CLOSED  # SQLite takes its log away, whatever was done: that must be no fault
        if misses_log:
            with suppress(sqlite.Error):
                with self._file:
                    self._file.executemany(_COUNT, [*counters.items(), ("total", _total(self._sum, counters))])
                misses_log = False
        if misses_log:
            self._close_but_for_log()
        else:
            self._file.close()
        _in_use_here.pop(_inode(self._path), None)

    def _close_but_for_log(self) -> None:
        """The disk is full: the log stays, as after a kill."""
        log = _beside(self._path, "-wal")
        kept = f"{log}.kept"
        with suppress(OSError):
            os.remove(kept)  # of another time
        with suppress(OSError):
            os.link(log, kept)
        self._file.close()
        with suppress(OSError):
            if os.path.exists(log):
                os.remove(kept)
            else:
                os.rename(kept, log)

    def abandon(self) -> None:
        """Give the file back with the nodes of sessions that go on, as a process does that is killed."""
        self.close()


def whole_nodes(path: str) -> dict[str, bytes]:
    """What can still be read of a file that may be damaged: nodes whose checksums are right, by path.

    The file is not touched: a copy is read. Raises: OSError if it cannot be copied; {} if there is none.
    """
    from kbroker.runtime import sqlite

    found: dict[str, bytes] = {}
    with copied(path) as copy, suppress(sqlite.Error):
        file = sqlite.connect(copy)
        file.text_factory = lambda text: text.decode(errors="replace")
        try:
            for row in file.execute("SELECT * FROM node"):
                had_no_checksum = len(row) == len(_TYPES) - 1 and all(map(isinstance, row, _TYPES))
                if had_no_checksum or is_whole(row):
                    found[row[0]] = row[1]
        finally:
            file.close()
    return found


@contextmanager
def copied(path: str) -> Iterator[str]:
    """A copy of a file and its log, to be opened as one likes. Raises: OSError."""
    import shutil  # a broker that starts needs neither
    import tempfile

    _check_kinds(path)
    try:
        made = tempfile.TemporaryDirectory(prefix="kbroker-metadata-")
    except OSError:  # a container may have no folder for temporary files
        made = tempfile.TemporaryDirectory(prefix="kbroker-metadata-", dir=os.path.dirname(path) or ".")
    with made as folder:
        copy = f"{folder}/copy.db"
        for suffix in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(_beside(path, suffix), copy + suffix)
        yield copy


def damaged(path: str, fault: str) -> DamagedError:
    """The refusal of a file. fault: may quote what it found."""
    fault = "".join(each if each.isprintable() else " " for each in fault)
    fault = " ".join(fault.split())[:_FAULT_LENGTH]
    return DamagedError(f"{path}: is damaged: {fault}")


def fault_of_rows(counters: Mapping[str, int], rows: Sequence[_Row]) -> str:
    """What is wrong with the file's content, or empty."""
    layout = counters.get("layout")
    if not {"zxid", "session", "layout"} <= counters.keys() or not all(
        isinstance(each, int) for each in counters.values()
    ):
        return "a counter is gone"
    for row in rows:
        if tuple(map(type, row)) != _TYPES[: len(row)]:
            return f"a row of {row[0]!r} makes no sense"
        if layout == LAYOUT and not is_whole(row):
            return f"the checksum of {row[0]} does not match"
    paths = {"/", *(row[0] for row in rows)}
    orphan = next((path for path in paths if path != "/" and not (path[:1] == "/" and split(path)[0] in paths)), None)
    if orphan is not None:
        return f"the node above {orphan} is gone"
    if layout == LAYOUT and counters.get("total") != _total(sum(row[-1] for row in rows), counters):
        return "nodes or counters are not those that were written"
    return ""


def is_whole(row: _Row) -> bool:
    """Whether a row of the table of nodes is as it was written."""
    return len(row) == len(_TYPES) and _checksum(row[:-1]) == row[-1]


def _counters(zxid: int, session: int, opened: tuple[int, int]) -> dict[str, int]:
    return dict(zip(_COUNTED, (zxid, session, LAYOUT, *opened), strict=True))


def _total(checksums: int, counters: Mapping[str, int]) -> int:
    """What stands for all nodes and the counters, so that one that is gone is missed."""
    return (checksums + _checksum([counters.get(name) for name in _COUNTED])) % _WRAP


def _checksum(values: Sequence[object]) -> int:
    return crc32c(repr(list(values)).encode())


def _row(path: str, node: Node) -> _Row:
    ephemeral = int(node.session != NO_SESSION)
    row = (
        path, node.data, node.czxid, node.mzxid, node.version, node.children_version, node.sequence, ephemeral
    )  # fmt: skip
    return (*row, _checksum(row))


def _make(path: str) -> None:
    """A new file with nothing in it. Raises: OSError."""
    disk, new = SystemDisk(), f"{path}.new-{os.getpid()}"
    try:
        with _as_os_error(path):
            _fill(new)
        whole = disk.open(new, "write")
        whole.sync()
        whole.close()
        disk.rename(new, path)
    except BaseException:
        for suffix in ("", "-wal", "-journal"):
            with suppress(OSError):
                disk.remove(new + suffix)
        raise
    disk.sync_dir(os.path.dirname(path) or ".")


def _fill(path: str) -> None:
    """The tables. Raises: sqlite.Error."""
    from kbroker.runtime import sqlite

    counters = _counters(0, 0, _CLOSED)
    file = sqlite.connect(path, timeout=0)
    try:
        file.execute("PRAGMA synchronous = OFF")
        file.execute("PRAGMA journal_mode = WAL")
        file.executescript(_TABLES)
        with file:
            file.executemany(_COUNT, [*counters.items(), ("total", _total(0, counters))])
    finally:
        file.close()


def _beside(path: str, suffix: str) -> str:
    """What SQLite has beside a file: where that is, if the path is a link to it."""
    return os.path.realpath(path) + suffix


def _has_content(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _check_kinds(path: str) -> None:
    """Raises: OSError where a pipe would be waited for, or a link to nowhere be taken for a file that is new."""
    for each in (path, _beside(path, "-wal"), _beside(path, "-journal")):
        if os.path.lexists(each) and not os.path.isfile(each):
            raise OSError(f"{each}: is no file")


def _check_files(path: str) -> bool:
    """Whether there is a log of SQLite's beside the file, and anything in it.

    Raises: OSError if SQLite would lose what is there, or wait for it.
    """
    _check_kinds(path)
    log = _beside(path, "-wal")
    _check_unused(path)  # before the log is read, which may be in the middle of a write
    content = b""
    with suppress(FileNotFoundError), open(log, "rb") as file:
        content = file.read()
    if not _has_content(path):
        fault = "it is empty or gone, and its log, the -wal file, is not" if content else "it is empty"
        raise damaged(path, fault)
    if has_lost_transactions(content):
        raise damaged(path, "its log, the -wal file, has lost transactions")
    return bool(content)


_in_use_here: WeakValueDictionary[tuple[int, int], TreeFile] = WeakValueDictionary()
"""Open files of this process, by device and inode: SQLite's lock is the process's, and gone with any descriptor."""


def _inode(path: str) -> tuple[int, int]:
    """(-1, -1) if there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1
    return status.st_dev, status.st_ino


def _check_unused_here(path: str) -> None:
    if _inode(path) in _in_use_here:
        raise OSError(f"{path}: is in use by another process")


def _judge(path: str) -> None:
    """Look at a file and its log in a copy. Raises: OSError, as opening it does.

    Where there is no room for a copy, opening it has to do.
    """
    with ExitStack() as stack:
        try:
            copy = stack.enter_context(copied(path))
        except OSError:
            return
        try:
            TreeFile(copy, is_copy=True).close()
        except DamagedError as error:
            raise DamagedError(str(error).replace(copy, path)) from None
        except OSError as error:
            raise OSError(str(error).replace(copy, path)) from None


def _check_unused(path: str) -> None:
    """Raises: OSError if another process has SQLite's lock, and may write while a copy is made."""
    import fcntl

    try:
        with open(path, "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCK_AT)
    except (BlockingIOError, PermissionError) as error:
        if error.filename is None:  # of the lock
            raise OSError(f"{path}: is in use by another process") from None
    except OSError:
        return  # opening it says why


def _open(path: str) -> sqlite.Connection:
    """Raises: OSError."""
    from kbroker.runtime import sqlite

    with _as_os_error(path):
        # Of several threads only one uses it at a time: `TreeFile` sees to that.
        file = sqlite.connect(path, timeout=0, check_same_thread=False)
        try:
            file.execute("PRAGMA locking_mode = EXCLUSIVE")
            file.execute("PRAGMA synchronous = FULL")
            file.execute("PRAGMA cache_size = -256")  # KiB: of more, 2 MB stay after a burst, and no write is faster
            file.execute("PRAGMA journal_size_limit = 0")  # the log gives back what a burst took
            file.execute("PRAGMA wal_autocheckpoint = 0")  # `write` does it, and says so in the file
            names = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
            if not {"node", "counter"} <= names:
                raise damaged(path, f"it is of something else, with {', '.join(sorted(names)) or 'nothing'} in it")
            (sound,) = file.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise damaged(path, sound)
        except BaseException:
            file.close()
            raise
    return file


class _as_os_error:  # noqa: N801 - reads as a statement
    """SQLite's failures as the operating system's, which the rest of the broker knows how to take."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        from kbroker.runtime import sqlite

        number = 0
        if isinstance(error, UnicodeError):  # of a column's name
            raise damaged(self._path, str(error)) from error
        if isinstance(error, sqlite.Error):  # one without a number is Python's, of a path that is no UTF-8
            number = getattr(error, "sqlite_errorcode", sqlite.SQLITE_CORRUPT)
        if number in (sqlite.SQLITE_CORRUPT, sqlite.SQLITE_NOTADB):
            raise damaged(self._path, str(error)) from error
        if number == sqlite.SQLITE_BUSY:
            raise OSError(f"{self._path}: is in use by another process") from error
        if isinstance(error, sqlite.Error):
            raise OSError(f"{self._path}: {' '.join(str(error).split())[:_FAULT_LENGTH]}") from error
