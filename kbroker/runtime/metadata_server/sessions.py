"""Who is connected, whose sessions go on, and what becomes of each request: the metadata server without its sockets.

Made by `server.py`, which brings frames and the time, and takes bytes. A session outlives its connection for as long as
its timeout says; it ends with its ephemeral nodes and its watches. Watches belong to a connection: a client that comes
back sets them again, and hears at once of those whose nodes have changed meanwhile.

What is to be sent lies in each connection's `out` until the tree is durable: `server.py` sees to that, once for all
requests of a turn, and of the connections that were told something (`take_told`).

Unlike ZooKeeper: each client may do everything, and a node with another access list than that is refused
(INVALID_ACL); nodes have no times (ctime and mtime are 0); empty data is told as none; there are no containers, no
times to live, no persistent watches, no SASL (UNIMPLEMENTED); sessions do not outlive the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kbroker.metadata.store import BROKER_IDS, broker_ids, broker_path
from kbroker.metadata.tree import Node, Tree
from kbroker.ports import Children, Create, Delete, Exists, Get, Multi, Outcome, SetData, StoreFault
from kbroker.runtime.metadata_server import wire
from kbroker.runtime.metadata_server.wire import Code, Connect, EventType, Op, Request, SetWatches

LEAST_TIMEOUT_MS, MOST_TIMEOUT_MS = 500, 60_000
NO_PASSWORD = bytes(wire.PASSWORD_BYTES)

_CODES = {
    None: Code.OK,
    StoreFault.NO_NODE: Code.NO_NODE,
    StoreFault.NODE_EXISTS: Code.NODE_EXISTS,
    StoreFault.BAD_VERSION: Code.BAD_VERSION,
    StoreFault.NOT_EMPTY: Code.NOT_EMPTY,
    StoreFault.NO_CHILDREN_FOR_EPHEMERALS: Code.NO_CHILDREN_FOR_EPHEMERALS,
}
_EVENTS = {
    "made": EventType.CREATED,
    "deleted": EventType.DELETED,
    "set": EventType.DATA_CHANGED,
    "children": EventType.CHILDREN_CHANGED,
}


class Connection:
    """One client's. out: frames to be sent. is_over: it is to be closed when they are."""

    __slots__ = ("is_over", "out", "session")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.out: list[bytes] = []
        self.is_over = False


class Session:
    """connection: None while it has none. expires_ms: when it is over unless it is heard of."""

    __slots__ = ("connection", "expires_ms", "number", "password", "timeout_ms")

    def __init__(self, number: int, password: bytes, timeout_ms: int) -> None:
        self.number = number
        self.password = password
        self.timeout_ms = timeout_ms
        self.expires_ms = 0
        self.connection: Connection | None = None


class Sessions:
    """All of them, over one tree. last: the highest number given to a session so far."""

    def __init__(self, tree: Tree, last: int, token: Callable[[int], bytes]) -> None:
        """token: so many random bytes, which cannot be guessed."""
        self._tree = tree
        self._token = token
        self._sessions: dict[int, Session] = {}
        self._told: dict[Connection, None] = {}
        self.last = last

    def received(self, connection: Connection, frame: bytes, now_ms: int) -> None:
        """One frame of a client's, without its length. Raises: WireError, then its connection is to be closed."""
        session = connection.session
        if session is None:
            self._connect(connection, wire.parse_connect(frame), now_ms)
            return
        session.expires_ms = now_ms + session.timeout_ms
        try:
            request = wire.parse_request(frame)
        except wire.RefusedError as error:
            self._say(connection, wire.reply(wire.xid_of(frame), self._tree.zxid, error.code))
            return
        body, code = self._answered(connection, session, request)
        self._say(connection, wire.reply(request.xid, self._tree.zxid, code, body))

    def take_told(self) -> Sequence[Connection]:
        """Those with something to be sent, or to be closed, since the last call."""
        told, self._told = tuple(self._told), {}
        return told

    def _say(self, connection: Connection, frame: bytes) -> None:
        connection.out.append(frame)
        self._told[connection] = None

    def _hang_up(self, connection: Connection) -> None:
        connection.is_over = True
        self._told[connection] = None

    def lost(self, connection: Connection) -> None:
        """A client has hung up: its session goes on, its watches do not."""
        session, connection.session = connection.session, None
        if session is not None and session.connection is connection:
            session.connection = None
            self._tree.forget(session.number)

    def expire(self, now_ms: int) -> list[tuple[Session, int | None]]:
        """End the sessions that were not heard of in time; which these were, and which broker each was."""
        late = [each for each in self._sessions.values() if each.expires_ms <= now_ms]
        brokers = self._registered() if late else {}
        for each in late:
            self._end(each)
        return [(each, brokers.get(each.number)) for each in late]

    def _registered(self) -> dict[int, int]:
        """Broker ids by the sessions that they are registered in."""
        nodes = self._tree.nodes
        ids = broker_ids(nodes[BROKER_IDS].children) if BROKER_IDS in nodes else []
        return {nodes[broker_path(each)].session: each for each in ids if broker_path(each) in nodes}

    def excuse(self, stalled_ms: int) -> None:
        """No client was listened to for so long, which is no session's fault."""
        for each in self._sessions.values():
            each.expires_ms += stalled_ms

    # -- sessions

    def _connect(self, connection: Connection, asked: Connect, now_ms: int) -> None:
        timeout_ms = min(max(asked.timeout_ms, LEAST_TIMEOUT_MS), MOST_TIMEOUT_MS)
        if asked.session == 0:
            self.last += 1
            session = Session(self.last, self._token(wire.PASSWORD_BYTES), timeout_ms)
            self._sessions[session.number] = session
        else:
            known = self._sessions.get(asked.session)
            if known is None or known.password != asked.password:
                self._say(connection, wire.connect_answer(0, 0, NO_PASSWORD, has_read_only=asked.has_read_only))
                self._hang_up(connection)
                return
            session = known
            if session.connection is not None:  # it has not been noticed yet that this one is gone
                self._hang_up(session.connection)
                self.lost(session.connection)
            session.timeout_ms = timeout_ms
        session.connection, connection.session = connection, session
        session.expires_ms = now_ms + timeout_ms
        self._say(
            connection,
            wire.connect_answer(timeout_ms, session.number, session.password, has_read_only=asked.has_read_only),
        )

    def _end(self, session: Session) -> None:
        del self._sessions[session.number]
        if session.connection is not None:
            self._hang_up(session.connection)
            session.connection.session = None
        self._tree.end_session(session.number)
        self._send_events()

    # -- requests

    def _answered(self, connection: Connection, session: Session, request: Request) -> tuple[bytes, int]:
        """What is answered: the body and the error."""
        op, body = request.op, request.body
        match body:
            case Create() | SetData() | Delete() | Get() | Children() | Exists():
                return self._done(op, body, session)
            case Multi():
                return self._multi(request.ops, body, session)
            case SetWatches():
                self._set_watches(body, session)
                return b"", Code.OK
            case wire.PathOnly(path):
                return self._path_only(op, path)
        if op == Op.CLOSE_SESSION:
            self._end(session)
        return b"", Code.OK if op in (Op.PING, Op.AUTH, Op.CLOSE_SESSION) else Code.UNIMPLEMENTED

    def _done(
        self, op: int, operation: Create | SetData | Delete | Get | Children | Exists, session: Session
    ) -> tuple[bytes, int]:
        code = _refusal(operation)
        if code is not None:
            return b"", code
        outcome = self._tree.apply(operation, session.number)
        self._send_events()
        if outcome.fault is not None:
            return b"", _CODES[outcome.fault]
        if isinstance(operation, Exists) and outcome.stat is None:
            return b"", Code.NO_NODE
        return self._body(op, outcome), Code.OK

    def _multi(self, ops: Sequence[int], multi: Multi, session: Session) -> tuple[bytes, int]:
        refusals = [_refusal(each) for each in multi.operations]
        at = next((at for at, refusal in enumerate(refusals) if refusal is not None), None)
        if at is not None:
            code: int = refusals[at] or Code.OK
        else:
            outcome = self._tree.apply(multi, session.number)
            self._send_events()
            if outcome.fault is None:
                done = zip(ops, outcome.parts, strict=True)
                parts = [wire.multi_part(op, self._body(op, part)) for op, part in done]
                return b"".join(parts) + wire.MULTI_END, Code.OK
            at = next(at for at, part in enumerate(outcome.parts) if part.fault is not StoreFault.ROLLED_BACK)
            code = _CODES[outcome.fault]
        codes = [Code.OK] * at + [code] + [Code.RUNTIME_INCONSISTENCY] * (len(ops) - at - 1)
        return b"".join(map(wire.multi_fault, codes)) + wire.MULTI_END, Code.OK

    def _body(self, op: int, outcome: Outcome) -> bytes:
        match op:
            case Op.CREATE:
                return wire.string(outcome.path)
            case Op.CREATE2:
                return wire.string(outcome.path) + self._stat(outcome.path)
            case Op.SET_DATA | Op.EXISTS:
                return self._stat(outcome.path)
            case Op.GET_DATA:
                return wire.buffer(outcome.data) + self._stat(outcome.path)
            case Op.GET_CHILDREN | Op.GET_CHILDREN2:
                names = wire.vector(map(wire.string, outcome.names))
                return names + self._stat(outcome.path) if op == Op.GET_CHILDREN2 else names
        return b""

    def _stat(self, path: str) -> bytes:
        node = self._tree.nodes.get(path)  # gone if a later part of its transaction deleted it
        return _packed(Node(b"", 0) if node is None else node)

    def _path_only(self, op: int, path: str) -> tuple[bytes, int]:
        if op == Op.SYNC:
            return wire.string(path), Code.OK
        node = self._tree.nodes.get(path)
        return (b"", Code.NO_NODE) if node is None else (wire.access() + _packed(node), Code.OK)

    # -- watches

    def _set_watches(self, watches: SetWatches, session: Session) -> None:
        """Set them again; those whose nodes have changed since fire at once instead."""
        nodes, connection = self._tree.nodes, session.connection
        assert connection is not None, session.number  # which has just sent this

        def changed(path: str, at: Callable[[Node], int], event: EventType) -> bool:
            """Whether it has fired."""
            node = nodes.get(path)
            if node is not None and at(node) <= watches.zxid:
                return False
            self._say(connection, wire.event(EventType.DELETED if node is None else event, path))
            return True

        for path in watches.data:
            if not changed(path, lambda node: node.mzxid, EventType.DATA_CHANGED):
                self._tree.apply(Get(path, watch=True), session.number)
        for path in watches.exist:
            if path in nodes:
                self._say(connection, wire.event(EventType.CREATED, path))
            elif _is_path(path):
                self._tree.apply(Exists(path, watch=True), session.number)
        for path in watches.child:
            if not changed(path, lambda node: node.pzxid, EventType.CHILDREN_CHANGED):
                self._tree.apply(Children(path, watch=True), session.number)

    def _send_events(self) -> None:
        """Watches that went off, before the answer to the client that set them."""
        for number, (path, kind) in self._tree.take_fired():
            session = self._sessions.get(number)
            if session is not None and session.connection is not None:
                self._say(session.connection, wire.event(_EVENTS[kind], path))


def _packed(node: Node) -> bytes:
    return wire.STAT.pack(
        node.czxid,
        node.mzxid,
        0,  # ctime
        0,  # mtime
        node.version,
        node.children_version,
        0,  # of the access list
        node.session,
        len(node.data),
        len(node.children),
        node.pzxid,
    )


def _refusal(operation: object) -> Code | None:
    """Why an operation is not even tried, if so."""
    path: str = getattr(operation, "path", "")
    if isinstance(operation, Create) and operation.sequential:
        path += "0"  # the number may be the whole name: /queue/ becomes /queue/0000000000
    if path == "/":
        if isinstance(operation, Create):
            return Code.NODE_EXISTS
        return Code.BAD_ARGUMENTS if isinstance(operation, Delete) else None
    return None if _is_path(path) else Code.BAD_ARGUMENTS


def _is_path(path: str) -> bool:
    """Whether a node could have it. Source: ZooKeeper Programmer's Guide, "The ZooKeeper Data Model"."""
    names = path[1:].split("/")
    return path[:1] == "/" and not any(name in ("", ".", "..") for name in names) and "\0" not in path
