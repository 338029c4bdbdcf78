"""The metadata store of a broker that is alone: the tree of nodes in memory, every change durable in SQLite.

Made by the composition root when no ZooKeeper is configured. A file `metadata.db` in the first log directory:

| table | column | what |
|---|---|---|
| `node` | `path` TEXT, primary key | `/brokers/topics/orders`; the root is `/` |
| | `data` BLOB | what the node holds |
| | `czxid`, `mzxid` INTEGER | transactions that made it, and last set its data |
| | `version`, `children_version` INTEGER | how often its data was set, its children changed |
| | `sequence` INTEGER | number of its next sequential child |
| | `ephemeral` INTEGER | 1: of a session, gone at the next opening |
| `counter` | `name` TEXT, `value` INTEGER | `zxid`: last transaction; `session`: last session; `layout`: 1 |

One `submit` is one SQLite transaction, however many operations it has: one fsync. Ephemeral nodes are written down,
too, so that opening after a crash deletes them as ZooKeeper would when the session ends, and their parents count on.
The file belongs to one process at a time (SQLite's lock); a second one gets an OSError that says so.

When a change cannot be written (a full disk), nobody knows what will survive: the session ends, as ZooKeeper's would,
and a new one starts once what memory holds is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kbroker.metadata.tree import NOBODY, Node, Tree
from kbroker.ports import (
    Operation,
    Outcome,
    Post,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreFault,
)

if TYPE_CHECKING:
    import sqlite3  # imported late at run time: a broker on ZooKeeper never needs it

log = logging.getLogger("kbroker.store")

LAYOUT = 1

_TABLES = """
CREATE TABLE IF NOT EXISTS node (
    path TEXT PRIMARY KEY, data BLOB NOT NULL, czxid INTEGER NOT NULL, mzxid INTEGER NOT NULL,
    version INTEGER NOT NULL, children_version INTEGER NOT NULL, sequence INTEGER NOT NULL, ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_PUT = "INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_COUNT = "INSERT OR REPLACE INTO counter VALUES (?, ?)"


class EmbeddedStore:
    """A `kbroker.ports.MetadataStore` in a file; what happens is posted before `submit` returns."""

    def __init__(self, path: str, post: Post, later: Callable[[Callable[[], None]], object] | None = None) -> None:
        """Open the file, made if missing, end the sessions of earlier lives, and start one.

        later: runs a job after a while, to try again what could not be written; without it, that is not tried again.
        Raises: OSError if the file cannot be opened, is taken by another process, or is not ours.
        """
        self._post = post
        self._path = path
        self._later = later
        self._file = _open(path)
        self._tree = Tree(self._counter("zxid"))
        self._session = self._counter("session") + 1
        self._is_up = True
        self._tree.restore(self._nodes())
        for earlier in {node.session for node in self._tree.nodes.values()} - {NOBODY}:
            self._tree.end_session(earlier)
        self._save()
        post(SessionStarted(self._session))

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Do these, make them durable, and post what they fired and the answer."""
        if not self._is_up:
            self._post(StoreAnswer(token, _lost(operations)))
            return
        outcomes = tuple(self._tree.apply(operation, self._session) for operation in operations)
        try:
            if self._tree.touched:
                self._save()
        except OSError as error:
            log.error("metadata cannot be written, the broker leaves its cluster until it can: %s", error)
            self._post(StoreAnswer(token, _lost(operations)))
            self._end_session()
            return
        for fired in self._tree.take_fired():
            self._post(fired.event)
        self._post(StoreAnswer(token, outcomes))

    def _end_session(self) -> None:
        self._is_up = False
        self._tree.end_session(self._session)
        self._tree.take_fired()
        self._session += 1
        self._post(SessionExpired())
        if self._later is not None:
            self._later(self._start_session)

    def _start_session(self) -> None:
        """What memory holds is written before anybody hears of it; if it cannot be yet, later."""
        try:
            self._save()
        except OSError:
            assert self._later is not None
            self._later(self._start_session)
            return
        log.info("metadata can be written again")
        self._is_up = True
        self._post(SessionStarted(self._session))

    def close(self) -> None:
        """End the session, and close the file."""
        self._tree.end_session(self._session)
        try:
            self._save()
        except OSError as error:
            log.error("metadata cannot be written: %s", error)
        self._file.close()

    def abandon(self) -> None:
        """Close the file, and leave the session to the next opening, as a process does that is killed."""
        self._is_up = False
        self._post = lambda _: None
        self._file.close()

    def _save(self) -> None:
        """Write down every touched node. One transaction. Raises: OSError; then they count as touched still."""
        nodes, touched = self._tree.nodes, self._tree.touched
        with _as_os_error(self._path), self._file:
            self._file.executemany(_PUT, [_row(path, nodes[path]) for path in touched if path in nodes])
            gone = [(path,) for path in touched if path not in nodes]
            self._file.executemany("DELETE FROM node WHERE path = ?", gone)
            self._file.executemany(_COUNT, [("zxid", self._tree.zxid), ("session", self._session), ("layout", LAYOUT)])
        touched.clear()

    def _counter(self, name: str) -> int:
        row = self._file.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _nodes(self) -> Iterator[tuple[str, Node]]:
        columns = "path, data, czxid, mzxid, version, children_version, sequence, ephemeral"
        for path, data, czxid, *rest in self._file.execute(f"SELECT {columns} FROM node"):
            ephemeral = rest[-1]
            node = Node(bytes(data), czxid, self._session - 1 if ephemeral else NOBODY)
            node.mzxid, node.version, node.children_version, node.sequence = rest[:-1]
            yield path, node


def _lost(operations: Sequence[Operation]) -> tuple[Outcome, ...]:
    return tuple(Outcome(StoreFault.SESSION_EXPIRED, "") for _ in operations)


def _row(path: str, node: Node) -> tuple[str, bytes, int, int, int, int, int, int]:
    ephemeral = int(node.session != NOBODY)
    versions = (node.version, node.children_version, node.sequence)
    return (path, node.data, node.czxid, node.mzxid, *versions, ephemeral)


def _open(path: str) -> sqlite3.Connection:
    import sqlite3

    with _as_os_error(path):
        file = sqlite3.connect(path, timeout=0)
        file.execute("PRAGMA locking_mode = EXCLUSIVE")
        file.execute("PRAGMA journal_mode = WAL")  # one fsync a transaction; with the exclusive lock, no shared memory
        file.execute("PRAGMA synchronous = FULL")
        file.executescript(_TABLES)
        found = file.execute("SELECT value FROM counter WHERE name = 'layout'").fetchone()
        if found and found[0] != LAYOUT:
            raise OSError(f"{path}: written by a version of this broker with another layout ({found[0]}, not {LAYOUT})")
    return file


class _as_os_error:  # noqa: N801 - reads as a statement
    """SQLite's failures as the operating system's, which the rest of the broker knows how to take."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import sqlite3

        if isinstance(error, sqlite3.Error):
            raise OSError(f"{self._path}: {error}") from error
