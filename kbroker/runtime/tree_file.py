"""A tree of nodes in a SQLite file: every change durable before anybody hears of it.

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
| `counter` | `name` TEXT, `value` INTEGER | `zxid`: last transaction; `session`: last session; `layout`: 1 |

Ephemeral nodes are written down, too, so that opening after a crash deletes them as ZooKeeper would when the session
ends, and their parents count on. The file belongs to one process at a time (SQLite's lock); a second one gets an
OSError that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.metadata.tree import NOBODY, Node, Tree

if TYPE_CHECKING:
    import sqlite3  # imported late at run time: a broker on ZooKeeper never needs it

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


class TreeFile:
    """An open file. tree: what it holds, to be changed by its owner. session: the last one that was written down."""

    def __init__(self, path: str) -> None:
        """Open the file, made if missing, and end the sessions of earlier lives; that is not written yet.

        Raises: OSError if the file cannot be opened, is taken by another process, or is not ours.
        """
        self._path = path
        self._file = _open(path)
        self.session = self._counter("session")
        self.tree = Tree(self._counter("zxid"))
        self.tree.restore(self._nodes())
        for earlier in {node.session for node in self.tree.nodes.values()} - {NOBODY}:
            self.tree.end_session(earlier)

    def save(self, session: int) -> None:
        """Write down every touched node, in one transaction: one fsync. session: the last one.

        Raises: OSError; then the nodes count as touched still.
        """
        nodes, touched = self.tree.nodes, self.tree.touched
        with _as_os_error(self._path), self._file:
            self._file.executemany(_PUT, [_row(path, nodes[path]) for path in touched if path in nodes])
            gone = [(path,) for path in touched if path not in nodes]
            self._file.executemany("DELETE FROM node WHERE path = ?", gone)
            self._file.executemany(_COUNT, [("zxid", self.tree.zxid), ("session", session), ("layout", LAYOUT)])
        touched.clear()

    def close(self) -> None:
        """Give the file back; nothing more is written."""
        self._file.close()

    def _counter(self, name: str) -> int:
        row = self._file.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return int(row[0]) if row else 0

    def _nodes(self) -> Iterator[tuple[str, Node]]:
        columns = "path, data, czxid, mzxid, version, children_version, sequence, ephemeral"
        for path, data, czxid, *rest in self._file.execute(f"SELECT {columns} FROM node"):
            ephemeral = rest[-1]
            node = Node(bytes(data), czxid, self.session if ephemeral else NOBODY)
            node.mzxid, node.version, node.children_version, node.sequence = rest[:-1]
            yield path, node


def _row(path: str, node: Node) -> tuple[str, bytes, int, int, int, int, int, int]:
    ephemeral = int(node.session != NOBODY)
    versions = (node.version, node.children_version, node.sequence)
    return (path, node.data, node.czxid, node.mzxid, *versions, ephemeral)


def _open(path: str) -> sqlite3.Connection:
    import sqlite3

    with _as_os_error(path):
        # Of several threads only one uses it at a time: whoever owns the store sees to that.
        file = sqlite3.connect(path, timeout=0, check_same_thread=False)
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
