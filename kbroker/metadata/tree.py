"""ZooKeeper's tree of nodes as a plain value: operations in, outcomes and fired watches out.

Owns the meaning of the `MetadataStore` operations (versions, transaction numbers, sequential names, ephemeral nodes,
watches that fire once, transactions of all or nothing). `runtime/embedded.py` makes it durable for one broker and
`sim/store.py` shares one among simulated brokers. It keeps no log, knows no time and sends nothing.

Source: ZooKeeper Programmer's Guide, "Data Model" and "Watches".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from kbroker.ports import (
    Check,
    Children,
    Create,
    Delete,
    Exists,
    Get,
    Multi,
    NodeChanged,
    Operation,
    Outcome,
    SetData,
    Stat,
    StoreFault,
)
from kbroker.tables import shrink
from protocol.namedtuple import NamedTuple

Key = TypeVar("Key")
Value = TypeVar("Value")

NO_SESSION = 0  # the session of nodes that stay
ANY_VERSION = -1


class Node:
    """One node. sequence: the number that its next sequential child gets. pzxid: of the last change of its children."""

    __slots__ = ("children", "children_version", "czxid", "data", "mzxid", "pzxid", "sequence", "session", "version")

    def __init__(self, data: bytes, zxid: int, session: int = NO_SESSION) -> None:
        self.data = data
        self.czxid = zxid
        self.mzxid = zxid
        self.pzxid = zxid
        self.version = 0
        self.children_version = 0
        self.session = session
        self.sequence = 0
        self.children: set[str] = set()

    def stat(self) -> Stat:
        """What a client is told of it."""
        return Stat(self.czxid, self.mzxid, self.version, self.children_version, self.session)


Write: TypeAlias = Create | SetData | Delete | Check


class _Transaction:
    """What one transaction has done so far: how to take it back, what it touched, what watchers are to hear."""

    __slots__ = ("changes", "touched", "undo")

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []
        self.touched: list[str] = []
        self.changes: list[NodeChanged] = []


class Fired(NamedTuple):
    """A watch that went off, and whose it was."""

    session: int
    event: NodeChanged


class Tree:
    """All nodes, and who watches them.

    zxid: number of the last transaction. touched: paths of nodes made, set or deleted since they were taken away
    (a parent counts as touched by its children): what a durable store writes down.
    """

    def __init__(self, zxid: int = 0) -> None:
        self.zxid = zxid
        self.nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self.touched: set[str] = set()
        self._ephemerals: dict[int, dict[str, None]] = {}  # paths by session
        self._data_watches = _Watches()  # set by Get and Exists
        self._child_watches = _Watches()  # set by Children
        self._fired: list[Fired] = []

    def apply(self, operation: Operation, session: int) -> Outcome:
        """Do one operation for a session; what it fired is in `take_fired`."""
        match operation:
            case Get(path, watch):
                return self._get(path, session if watch else None)
            case Children(path, watch):
                return self._children(path, session if watch else None)
            case Exists(path, watch):
                return self._exists(path, session if watch else None)
            case Multi(operations):
                return self._multi(operations, session)
            case _:
                return self._multi((operation,), session).parts[0]

    def end_session(self, session: int) -> None:
        """Delete the ephemeral nodes of a session, and forget its watches."""
        self.forget(session)
        for path in list(self._ephemerals.get(session, ())):
            self.apply(Delete(path), session)

    def forget(self, session: int) -> None:
        """Forget the watches of a session, which goes on."""
        self._data_watches.forget(session)
        self._child_watches.forget(session)

    def take_fired(self) -> Sequence[Fired]:
        """The watches that went off since the last call, in order."""
        fired, self._fired = self._fired, []
        return fired

    def restore(self, nodes: Iterable[tuple[str, Node]]) -> None:
        """Fill an empty tree with nodes kept somewhere, the root among them or not."""
        for path, node in nodes:
            self.nodes[path] = node
            self._note_owner(path, node)
        for path in self.nodes:
            if path != "/":
                parent, name = split(path)
                self.nodes[parent].children.add(name)

    # -- reads

    def _get(self, path: str, watcher: int | None) -> Outcome:
        node = self.nodes.get(path)
        if node is None:
            return Outcome(StoreFault.NO_NODE, path)
        self._data_watches.add(path, watcher)
        return Outcome(None, path, node.stat(), data=node.data)

    def _children(self, path: str, watcher: int | None) -> Outcome:
        node = self.nodes.get(path)
        if node is None:
            return Outcome(StoreFault.NO_NODE, path)
        self._child_watches.add(path, watcher)
        return Outcome(None, path, node.stat(), names=tuple(sorted(node.children)))

    def _exists(self, path: str, watcher: int | None) -> Outcome:
        self._data_watches.add(path, watcher)
        node = self.nodes.get(path)
        return Outcome(None, path, node.stat() if node else None)

    # -- writes

    def _multi(self, operations: Sequence[Write], session: int) -> Outcome:
        done = _Transaction()
        parts: list[Outcome] = []
        self.zxid += 1
        for operation in operations:
            outcome = self._write(operation, session, done)
            if outcome.fault is not None:
                for take_back in reversed(done.undo):
                    take_back()
                rolled_back = [Outcome(StoreFault.ROLLED_BACK, each.path) for each in operations]
                rolled_back[len(parts)] = outcome
                return Outcome(outcome.fault, outcome.path, parts=tuple(rolled_back))
            parts.append(outcome)
        self.touched.update(done.touched)
        for change in done.changes:
            self._fire(change)
        return Outcome(None, "", parts=tuple(parts))

    def _write(self, operation: Write, session: int, done: _Transaction) -> Outcome:
        match operation:
            case Create():
                return self._create(operation, session, done)
            case Delete(path, version):
                return self._delete(path, version, done)
            case SetData(path, data, version):
                return self._set(path, data, version, done)
            case Check(path, version):
                return Outcome(self._fault(path, version), path)

    def _create(self, create: Create, session: int, done: _Transaction) -> Outcome:
        parent_path, _ = split(f"{create.path}0" if create.sequential else create.path)  # it may end in "/" then
        parent = self.nodes.get(parent_path)
        if parent is None:
            return Outcome(StoreFault.NO_NODE, create.path)
        if parent.session != NO_SESSION:
            return Outcome(StoreFault.NO_CHILDREN_FOR_EPHEMERALS, create.path)
        path = f"{create.path}{parent.sequence:010d}" if create.sequential else create.path
        if path in self.nodes:
            return Outcome(StoreFault.NODE_EXISTS, path)
        node = Node(create.data, self.zxid, session if create.ephemeral else NO_SESSION)
        name = split(path)[1]
        before = parent.pzxid
        self._link(parent, path, name, node)
        parent.children_version += 1
        parent.sequence += 1  # every child counts, so that numbers rise whatever kinds are mixed
        parent.pzxid = self.zxid

        def take_back() -> None:
            self._unlink(parent, path, name)
            parent.pzxid = before
            parent.children_version -= 1
            parent.sequence -= 1

        done.undo.append(take_back)
        done.touched += [parent_path, path]
        done.changes += [NodeChanged(path, "made"), NodeChanged(parent_path, "children")]
        return Outcome(None, path, node.stat())

    def _delete(self, path: str, version: int, done: _Transaction) -> Outcome:
        fault = self._fault(path, version)
        if fault is None and self.nodes[path].children:
            fault = StoreFault.NOT_EMPTY
        if fault is not None:
            return Outcome(fault, path)
        parent_path, name = split(path)
        parent, node = self.nodes[parent_path], self.nodes[path]
        before = parent.pzxid
        self._unlink(parent, path, name)
        parent.children_version += 1
        parent.pzxid = self.zxid

        def take_back() -> None:
            self._link(parent, path, name, node)
            parent.pzxid = before
            parent.children_version -= 1

        done.undo.append(take_back)
        done.touched += [parent_path, path]
        done.changes += [NodeChanged(path, "deleted"), NodeChanged(parent_path, "children")]
        return Outcome(None, path)

    def _set(self, path: str, data: bytes, version: int, done: _Transaction) -> Outcome:
        fault = self._fault(path, version)
        if fault is not None:
            return Outcome(fault, path)
        node = self.nodes[path]
        before = node.data, node.version, node.mzxid
        node.data, node.version, node.mzxid = data, node.version + 1, self.zxid

        def take_back() -> None:
            node.data, node.version, node.mzxid = before

        done.undo.append(take_back)
        done.touched.append(path)
        done.changes.append(NodeChanged(path, "set"))
        return Outcome(None, path, node.stat())

    def _link(self, parent: Node, path: str, name: str, node: Node) -> None:
        self.nodes[path] = node
        parent.children.add(name)
        self._note_owner(path, node)

    def _note_owner(self, path: str, node: Node) -> None:
        if node.session != NO_SESSION:
            self._ephemerals.setdefault(node.session, {})[path] = None

    def _unlink(self, parent: Node, path: str, name: str) -> None:
        session = self.nodes.pop(path).session
        if session != NO_SESSION:
            own = self._ephemerals[session]
            del own[path]
            if not own:
                del self._ephemerals[session]
        parent.children.discard(name)
        shrink(self.nodes, parent.children)

    def _fault(self, path: str, version: int) -> StoreFault | None:
        node = self.nodes.get(path)
        if node is None:
            return StoreFault.NO_NODE
        return None if version in (ANY_VERSION, node.version) else StoreFault.BAD_VERSION

    # -- watches

    def _fire(self, change: NodeChanged) -> None:
        path, kind = change
        sessions: set[int] = set()
        if kind != "children":
            sessions |= self._data_watches.take(path)
        if kind in ("children", "deleted"):
            sessions |= self._child_watches.take(path)
        self._fired += [Fired(session, change) for session in sorted(sessions)]


class _Watches:
    """Who watches what, found from either side: a change costs its watchers, a session's end what it watches."""

    __slots__ = ("_paths", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[str, set[int]] = {}  # by path
        self._paths: dict[int, set[str]] = {}  # by session

    def add(self, path: str, session: int | None) -> None:
        """session: None if no session watches."""
        if session is not None:
            self._sessions.setdefault(path, set()).add(session)
            self._paths.setdefault(session, set()).add(path)

    def take(self, path: str) -> set[int]:
        """Who watches a path, and does not any more."""
        sessions = self._sessions.pop(path, set())
        for session in sessions:
            _forget(self._paths, session, path)
        return sessions

    def forget(self, session: int) -> None:
        """It watches nothing any more."""
        for path in self._paths.pop(session, ()):
            _forget(self._sessions, path, session)


def split(path: str) -> tuple[str, str]:
    """A path's parent and name; the parent of the topmost is "/"."""
    parent, _, name = path.rpartition("/")
    assert name, path
    return parent or "/", name


def ancestors(path: str) -> list[str]:
    """The paths above a node from the top down, the root left out: what must exist before it."""
    names = path.split("/")[1:-1]
    return ["/" + "/".join(names[: at + 1]) for at in range(len(names))]


def _forget(table: dict[Key, set[Value]], key: Key, value: Value) -> None:
    table[key].discard(value)
    if not table[key]:
        del table[key]
