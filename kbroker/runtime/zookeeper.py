"""The metadata store of a cluster: a real ZooKeeper ensemble, by kazoo.

Made by the composition root when `zookeeper.connect` is set. kazoo owns the connection, its threads, the heartbeats and
the session; this file turns the port's operations into its calls, keeps their order, and remembers watches across
connections (kazoo forgets them with the connection, and so does the ensemble).

Order: one connection answers requests in the order they were sent, and tells of a change before any answer that has
seen it. kazoo hands watches and answers to two threads; `_Handler` has one for both, so that the order stays.

Connections come and go, the session stays as long as it is heard of within its timeout. What was under way when a
connection broke is CONNECTION_LOST; what had not been sent yet waits for the next one. Then each watch is set again,
and fires if its node is not what it was. When the session is over, everything is SESSION_EXPIRED, and a new one
follows.

Unlike Kafka, which ends when no ZooKeeper answers within zookeeper.connection.timeout.ms: it is said once in that time,
and tried on, at the start and whenever the connection is lost. A server in read-only mode does not answer: it hangs up.
So it is with one whose certificate is not trusted, and with one that refuses the login.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol import serialization as wire
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import Callback, EventType, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry

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
    Post,
    SessionExpired,
    SessionStarted,
    SetData,
    Stat,
    StoreAnswer,
    StoreFault,
)
from kbroker.runtime.platform import Bell
from kbroker.runtime.zookeeper_security import OPEN, Security, in_bytes, why_no_tls
from protocol.namedtuple import NamedTuple

log = logging.getLogger("kbroker.store")

NOTHING = None
"""The data of a node without content: an Apache broker takes empty data for content, which it cannot read."""

MOST_BACK_OFF_S = 1.0  # between two attempts to connect


class _ThrottledError(zk.ZookeeperError):  # type: ignore[misc]
    """ZooKeeper's THROTTLEDOP, which kazoo does not know: it has too much to do, and has not done it."""


class _UnknownError(zk.ZookeeperError):  # type: ignore[misc]
    """A code that kazoo does not know: without this its connection ends, and kazoo begins no other."""


zk.EXCEPTIONS[-127] = _ThrottledError
zk.EXCEPTIONS.default_factory = lambda: _UnknownError

_FAULTS: dict[type[Exception], StoreFault] = {
    zk.NoNodeError: StoreFault.NO_NODE,
    zk.NodeExistsError: StoreFault.NODE_EXISTS,
    zk.BadVersionError: StoreFault.BAD_VERSION,
    zk.NotEmptyError: StoreFault.NOT_EMPTY,
    zk.NoChildrenForEphemeralsError: StoreFault.NO_CHILDREN_FOR_EPHEMERALS,
    zk.RolledBackError: StoreFault.ROLLED_BACK,
    zk.RuntimeInconsistency: StoreFault.ROLLED_BACK,
    zk.SessionExpiredError: StoreFault.SESSION_EXPIRED,
    zk.SessionMovedError: StoreFault.CONNECTION_LOST,
    zk.ConnectionLoss: StoreFault.CONNECTION_LOST,
    zk.ConnectionClosedError: StoreFault.CONNECTION_LOST,
    _ThrottledError: StoreFault.CONNECTION_LOST,
}
_KINDS: dict[str, Literal["made", "deleted", "set", "children"]] = {
    EventType.CREATED: "made",
    EventType.DELETED: "deleted",
    EventType.CHANGED: "set",
    EventType.CHILD: "children",
}

WatchKey = tuple[str, bool]
"""A node's path, and whether its children are watched (or the node itself)."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with one for watches and answers: they stay in the order in which the connection brought them.

    And waiting for a socket is one call of the system: kazoo makes an epoll for each wait, five times a request.

    What wakes kazoo's connection, once for each request that it is given, is a `Bell`, as both ends of what kazoo makes
    a pair of sockets. A pair holds some 300 bytes, one for each request: a caller with one more waited for the
    connection's thread, which may wait for the lock that the caller holds. All stood still, the broker's loop included.

    tls: how connections are to be secured, None for not at all; kazoo would trust the system's certificates beside
    those that are named. failed: told of each handshake that fails. hosts: of the ensemble; each is waited for only as
    long as leaves the others their turn before the session is over.
    """

    def __init__(
        self, tls: ssl.SSLContext | None = None, failed: Callable[[str], None] = lambda _: None, hosts: int = 1
    ) -> None:
        super().__init__()
        self._tls = tls
        self._failed = failed
        self._hosts = hosts

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        bell = Bell()
        return bell, bell

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        """A connection that the ensemble may be spoken to on. The rest that kazoo gives is for TLS of its own.

        timeout: of the session.
        """
        if timeout is not None:
            timeout /= self._hosts
        if self._tls is None:
            plain: socket.socket = super().create_connection(address, timeout=timeout)
            return plain
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            self._failed(f"no TLS with {hostname}:{address[1]}: {why_no_tls(error)}")
            raise

    def dispatch_callback(self, callback: Callback) -> None:
        self.completion_queue.put(lambda: callback.func(*callback.args))

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], failing: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As select.select, of however high a descriptor. failing: none, kazoo asks for no others."""
        held = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        if held:
            return held, [], []  # decrypted already: the system knows of nothing more to read
        waiting = select.poll()
        for each in readers:
            waiting.register(each, select.POLLIN)
        for each in writers:
            waiting.register(each, select.POLLOUT)
        found = dict(waiting.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [each for each in readers if each.fileno() in found],
            [each for each in writers if each.fileno() in found],
            [],
        )


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, which counts as one after its login, and tries again when that has failed."""

    def __init__(self, store: ZooKeeperStore, client: KazooClient, user: str, password: str) -> None:
        login = {"mechanism": "DIGEST-MD5", "username": user, "password": in_bytes(password)}
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options=login)
        self._store = store
        self._user = user

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, timeout)
        except (zk.ZookeeperError, zk.SASLException) as error:  # whatever it says: of others kazoo's thread would end
            self._store.not_let_in(f"{host} refuses the login of {self._user}")
            raise zk.ConnectionDropped("no login") from error
        self._store.came_up()


class _Transaction(wire.Transaction):  # type: ignore[misc]
    """kazoo's, whose answer tells the stat of what was made, too: (path, stat)."""

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        """The results of its parts, an exception for each if it failed. Source: ZooKeeper's MultiResponse."""
        results: list[Any] = []
        header, offset = wire.MultiHeader.deserialize(data, offset)
        while not header.done:
            result, offset = _RESULTS[header.type](data, offset)
            results.append(result)
            header, offset = wire.MultiHeader.deserialize(data, offset)
        return results


def _made(data: bytes, offset: int) -> tuple[Any, int]:
    path, offset = wire.read_string(data, offset)
    stat, offset = _written(data, offset)
    return (path, stat), offset


def _written(data: bytes, offset: int) -> tuple[Any, int]:
    return ZnodeStat._make(wire.stat_struct.unpack_from(data, offset)), offset + wire.stat_struct.size


def _failed(data: bytes, offset: int) -> tuple[Any, int]:
    (code,) = wire.int_struct.unpack_from(data, offset)
    return zk.EXCEPTIONS[code](), offset + wire.int_struct.size


_RESULTS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    wire.Create2.type: _made,
    wire.SetData.type: _written,
    wire.Delete.type: lambda data, offset: (True, offset),
    wire.CheckVersion.type: lambda data, offset: (True, offset),
    -1: _failed,
}


class _Submitted:
    """Operations that were submitted together, and what came of them so far."""

    __slots__ = ("lost", "missing", "operations", "outcomes", "token")

    def __init__(self, operations: Sequence[Operation], token: object) -> None:
        self.operations = operations
        self.token = token
        self.outcomes: list[Outcome | None] = [None] * len(operations)
        self.missing = len(operations)
        self.lost = False  # the connection broke under one of them: none of the others is sent any more


class _Queued(NamedTuple):
    """One operation that has not been sent."""

    submitted: _Submitted
    at: int


class ZooKeeperStore:
    """A `kbroker.ports.MetadataStore` on an ensemble.

    post: called from a thread of kazoo's; it passes the event on and no more. Everything here that two threads touch is
    under one lock, which is never held while posting.
    """

    def __init__(
        self,
        connect: str,
        post: Post,
        *,
        session_timeout_ms: int = 18_000,
        connection_timeout_ms: int = 18_000,
        max_in_flight: int = 10,
        security: Security = OPEN,
    ) -> None:
        """connect: `host:port,host:port/chroot`, as zookeeper.connect. The rest are the settings of those names.

        security: who the broker is to the ensemble, and what the nodes it makes allow.

        Returns at once; a SessionStarted follows when an ensemble has been found. Raises: ValueError for an address
        that cannot be.
        """
        self._post = post
        self._connect = connect
        self._lock = threading.RLock()
        self._waiting: deque[_Queued] = deque()
        self._in_flight = 0
        self._most_in_flight = max_in_flight
        self._is_connected = False
        self._closed = False
        self._security = security
        self._why_not = ""  # the last ensemble member that was there has no trust, or none in us
        self._session = 0
        self._watches: dict[WatchKey, int | None] = {}  # what the node was: its mzxid or cversion, None if it was not
        self._reading: Counter[WatchKey] = Counter()  # reads on their way that set a watch
        self._early: dict[WatchKey, NodeChanged] = {}  # watches that went off before the answer that set them was seen
        try:
            hosts, _ = collect_hosts(connect)
            for host, _ in hosts:
                host.encode("idna")  # as the look-up does, whose failure ends kazoo's thread
        except ValueError:
            raise ValueError(f"zookeeper.connect={connect}: allowed: host:port,host:port/path") from None
        self._client = KazooClient(
            hosts=connect,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(security.tls, self.not_let_in, len(hosts)),
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=MOST_BACK_OFF_S, ignore_expire=True),
            logger=_quiet(),
        )
        if security.login is not None:
            self._client._connection = _Connection(self, self._client, *security.login)
        self._client.add_listener(self._state_changed)
        self._patience_s = connection_timeout_ms / 1000
        self._impatience: threading.Timer | None = None
        self._grow_impatient()
        self._client.start_async()

    # -- the port

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Send these in order, a bounded number at a time; the answer comes when all have an outcome."""
        submitted = _Submitted(tuple(operations), token)
        if not operations:
            self._post(StoreAnswer(token, ()))
            return
        with self._lock:
            assert not self._closed, "the store is closed"
            self._waiting.extend(_Queued(submitted, at) for at in range(len(operations)))
        self._pump()

    def close(self) -> None:
        """End the session, if the ensemble can be told of it; wait for its word no longer than kazoo does."""
        self.abandon()

    def abandon(self) -> None:
        """Post nothing any more, and end kazoo's threads: a killed process leaves its session behind by itself."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._waiting.clear()
            self._calm_down()
        self._client.stop()
        self._client.close()

    # -- sending

    def _pump(self) -> None:
        """Send what waits, as long as not too much is under way."""
        while True:
            with self._lock:
                if not (self._waiting and self._is_connected and self._in_flight < self._most_in_flight):
                    return
                queued = self._waiting.popleft()
                fault = StoreFault.CONNECTION_LOST
                if not queued.submitted.lost:
                    operation = queued.submitted.operations[queued.at]
                    self._in_flight += 1
                    try:
                        # under the lock: two threads that send must not overtake each other
                        self._send(operation, lambda outcome, queued=queued: self._sent_ends(queued, outcome))  # type: ignore[misc]
                        continue
                    except ValueError as error:  # kazoo looks at paths before it sends anything
                        self._in_flight -= 1
                        fault = _fault(error, operation)
            self._ends(queued, Outcome(fault, ""))

    def _send(self, operation: Operation, done: Callable[[Outcome], None]) -> None:
        client = self._client
        if isinstance(operation, Multi):
            self._send_multi(operation, done)
            return
        path, watch, watched = operation.path, None, None
        if isinstance(operation, Get | Children | Exists) and operation.watch:
            watch, watched = self._fired, _watch_key(operation)
        match operation:
            case Create(path, data, ephemeral, sequential):
                rights = self._security.rights(path)
                asked = client.create_async(
                    path, data or NOTHING, rights, ephemeral=ephemeral, sequence=sequential, include_data=True
                )
            case SetData(path, data, version):
                asked = client.set_async(path, data, version)
            case Delete(path, version):
                asked = client.delete_async(path, version)
            case Get():
                asked = client.get_async(path, watch)
            case Children():
                asked = client.get_children_async(path, watch, include_data=True)
            case Exists():
                asked = client.exists_async(path, watch)
            case Check(path, version):  # alone it is a transaction of one
                self._send_multi(Multi((operation,)), lambda outcome: done(outcome._replace(path=path, parts=())))
                return
        if watched is not None:
            self._reading[watched] += 1
        asked.rawlink(lambda result: done(self._outcome(operation, result)))

    def _send_multi(self, operation: Multi, done: Callable[[Outcome], None]) -> None:
        """A transaction of requests that tell stats; kazoo's own do not."""
        client = self._client
        transaction = client.transaction()
        for part in operation.operations:
            match part:
                case Create(path, data, ephemeral, sequential):
                    rights = self._security.rights(path)
                    transaction.create(path, data, rights, ephemeral=ephemeral, sequence=sequential)
                    plain = transaction.operations.pop()  # which takes no node without content, and tells no stat
                    transaction.operations.append(wire.Create2(plain.path, data or NOTHING, plain.acl, plain.flags))
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        asked = client.handler.async_result()
        client._call(_Transaction(transaction.operations), asked)
        asked.rawlink(lambda _: done(_multi_outcome(operation, asked, client.unchroot)))

    # -- what comes back, on kazoo's thread

    def _outcome(self, operation: Operation, result: Any) -> Outcome:
        assert not isinstance(operation, Multi)
        error = result.exception
        outcome = Outcome(_fault(error, operation), operation.path) if error is not None else _done(operation, result)
        if isinstance(operation, Get | Children | Exists) and operation.watch:
            self._set_watch(operation, outcome)
        return outcome

    def _sent_ends(self, queued: _Queued, outcome: Outcome) -> None:
        with self._lock:
            self._in_flight -= 1
        self._ends(queued, outcome)
        self._pump()

    def _ends(self, queued: _Queued, outcome: Outcome) -> None:
        submitted = queued.submitted
        with self._lock:
            submitted.outcomes[queued.at] = outcome
            submitted.missing -= 1
            submitted.lost = submitted.lost or outcome.fault is StoreFault.CONNECTION_LOST
            if submitted.missing or self._closed:
                return
        self._post(StoreAnswer(submitted.token, tuple(each for each in submitted.outcomes if each is not None)))

    # -- watches

    def _set_watch(self, operation: Get | Children | Exists, outcome: Outcome) -> None:
        """A read that sets a watch has ended; the watch may have gone off already."""
        key = _watch_key(operation)
        with self._lock:
            self._reading[key] -= 1
            if not self._reading[key]:
                del self._reading[key]
            early = self._early.pop(key, None)
        if outcome.fault is not None:  # only Exists watches a node that is not there, and for it that is no fault
            return
        if early is not None:
            self._client.handler.completion_queue.put(lambda: self._notify_watcher(early))  # behind the answer
        elif key[1]:
            self._watches[key] = None if outcome.stat is None else outcome.stat.children_version
        else:
            self._watches[key] = None if outcome.stat is None else outcome.stat.mzxid

    def _fired(self, event: WatchedEvent) -> None:
        """A watch went off. One that is not known has fired before, or its connection is gone: then it is set again.

        Or the answer to the read that set it is behind it in the queue: kazoo's callers link to an answer when it may
        be there already.
        """
        kind = _KINDS.get(event.type)
        if kind is None:
            return
        keys = [(event.path, False), (event.path, True)] if kind == "deleted" else [(event.path, kind == "children")]
        known = [key for key in keys if key in self._watches]
        for key in known:
            del self._watches[key]
        change = NodeChanged(event.path, kind)
        if known:
            self._notify_watcher(change)
            return
        with self._lock:
            self._early.update({key: change for key in keys if self._reading[key]})

    def _notify_watcher(self, change: NodeChanged) -> None:
        if not self._closed:
            self._post(change)

    def _watch_again(self) -> None:
        """On a new connection of the same session: set every watch, and let those fire whose node has changed."""
        for key, was in list(self._watches.items()):
            path, of_children = key
            if of_children:
                asked = self._client.get_children_async(path, self._fired, include_data=True)
            else:
                asked = self._client.exists_async(path, self._fired)
            asked.rawlink(lambda result, key=key, was=was: self._compare(key, was, result))

    def _compare(self, key: WatchKey, was: int | None, result: Any) -> None:
        error = result.exception
        if key not in self._watches or (error is not None and not isinstance(error, zk.NoNodeError)):
            return  # fired meanwhile, or this connection is gone as well, and the next one asks again
        path, of_children = key
        if of_children:
            now = None if error is not None else result.get_nowait()[1].cversion
        else:
            found = result.get_nowait()
            now = None if found is None else found.mzxid
        if now == was:
            return
        del self._watches[key]
        kind: Literal["made", "deleted", "set", "children"] = (
            "deleted" if now is None else "children" if of_children else "made" if was is None else "set"
        )
        self._notify_watcher(NodeChanged(path, kind))

    # -- the connection

    def _state_changed(self, state: str) -> None:
        """On kazoo's connection thread; the rest follows on the one that brings answers, behind those there already."""
        if state == KazooState.CONNECTED:
            if self._security.login is None:
                self.came_up()
        else:
            with self._lock:
                self._is_connected = False
                is_waiting = self._impatience is not None  # where each try ends behind its beginning, as for a login
            if not is_waiting:
                self._grow_impatient()
            if state == KazooState.LOST:
                self._client.handler.completion_queue.put(self._session_over)

    def came_up(self) -> None:
        """The ensemble knows who this is. On kazoo's connection thread, before anything else is sent."""
        session = self._client.client_id[0]
        self._client.handler.completion_queue.put(lambda: self._came_up(session))

    def not_let_in(self, why: str) -> None:
        """A member of the ensemble was there, and nothing came of it."""
        self._why_not = f": {why}"

    def _came_up(self, session: int) -> None:
        with self._lock:
            if self._client.connected:  # else it is lost again, and who does not answer then is to be named
                self._calm_down()
        self._why_not = ""
        if session == self._session:
            log.info("connected to ZooKeeper again, at %s", self._connect)
            self._watch_again()
            self._open_the_way()
            return
        log.info("connected to ZooKeeper at %s, session 0x%x", self._connect, session)
        root = self._client.chroot
        if not root:
            self._session_begins(session)
            return
        self._client.chroot = ""  # kazoo makes no folder above its own root
        steps = [at for at, character in enumerate(f"{root}/") if character == "/" and at > 0]  # most are there
        made = [self._client.create_async(root[:at], acl=self._security.rights(root[:at])) for at in steps]
        self._client.chroot = root
        made[-1].rawlink(lambda _: self._session_begins(session))

    def _session_begins(self, session: int) -> None:
        if self._closed or self._client.client_id is None or self._client.client_id[0] != session:
            return
        self._session = session
        self._post(SessionStarted(session))
        self._open_the_way()

    def _open_the_way(self) -> None:
        with self._lock:
            self._is_connected = self._client.connected
        self._pump()

    def _session_over(self) -> None:
        """Everything that waits belonged to it."""
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
            if self._closed:
                return
        for queued in waiting:
            self._ends(queued, Outcome(StoreFault.SESSION_EXPIRED, ""))
        self._watches.clear()
        if self._session:
            self._session = 0
            log.warning("ZooKeeper at %s has ended this broker's session", self._connect)
            self._post(SessionExpired())

    def _grow_impatient(self) -> None:
        """From now on a server should answer soon."""
        with self._lock:
            self._calm_down()
            if self._closed:
                return
            self._impatience = threading.Timer(self._patience_s, self._say_no_answer)
            self._impatience.daemon = True
            self._impatience.start()

    def _calm_down(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None

    def _say_no_answer(self) -> None:
        """Once in each zookeeper.connection.timeout.ms, until a server does."""
        with self._lock:
            if self._impatience is not threading.current_thread():
                return  # another has taken its place
            self._impatience = None
        if self._closed or self._is_connected:
            return
        log.error("no ZooKeeper answers at %s; trying on%s", self._connect, self._why_not)
        self._grow_impatient()


def _watch_key(operation: Get | Children | Exists) -> WatchKey:
    return operation.path, isinstance(operation, Children)


def _done(operation: Operation, result: Any) -> Outcome:
    """The outcome of what went well."""
    value = result.get_nowait()
    match operation:
        case Create():
            path, stat = value
            return Outcome(None, path, _stat(stat))
        case Get():
            data, stat = value
            return Outcome(None, operation.path, _stat(stat), data or b"")
        case Children():
            names, stat = value
            return Outcome(None, operation.path, _stat(stat), names=tuple(sorted(names)))
        case SetData() | Exists():
            return Outcome(None, operation.path, None if value is None else _stat(value))
    assert isinstance(operation, Delete), operation
    return Outcome(None, operation.path)


def _multi_outcome(operation: Multi, asked: Any, unchroot: Callable[[str], str]) -> Outcome:
    if asked.exception is not None:
        return Outcome(_fault(asked.exception, operation), "")
    results = asked.get_nowait()
    if any(isinstance(result, Exception) for result in results):
        parts = tuple(
            Outcome(_fault(result, part) if isinstance(result, Exception) else StoreFault.ROLLED_BACK, part.path)
            for part, result in zip(operation.operations, results, strict=True)
        )
        fault = next((part.fault for part in parts if part.fault is not StoreFault.ROLLED_BACK), StoreFault.ROLLED_BACK)
        return Outcome(fault, "", parts=parts)
    done = zip(operation.operations, results, strict=True)
    return Outcome(None, "", parts=tuple(_part(part, result, unchroot) for part, result in done))


def _part(part: Create | SetData | Delete | Check, result: Any, unchroot: Callable[[str], str]) -> Outcome:
    if isinstance(part, Create):
        path, stat = result
        return Outcome(None, unchroot(path), _stat(stat))
    return Outcome(None, part.path, _stat(result) if isinstance(part, SetData) else None)


def _fault(error: Exception, operation: Operation) -> StoreFault:
    fault = _FAULTS.get(type(error))
    if fault is None:
        what = getattr(operation, "path", "several nodes")
        why = str(error) if isinstance(error, ValueError) else type(error).__name__
        log.error("ZooKeeper refuses %s of %s: %s", type(operation).__name__, what, why)
        return StoreFault.REFUSED
    return fault


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.czxid, stat.mzxid, stat.version, stat.cversion, stat.ephemeralOwner)


def _quiet() -> logging.Logger:
    """kazoo's log: only what is unexpected. What a connection does is told here, in one line each."""
    logger = logging.getLogger("kazoo.client")
    logger.setLevel(logging.CRITICAL)
    return logger
