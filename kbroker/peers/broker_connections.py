"""All connections of one broker to others: the part of the port `Peers` that needs no network.

A subclass says how to connect (`dial`) and calls `expire` when it was told to (`wake_at`). What became of requests is
gathered here and posted when no caller is inside `send` any more.

A request that is answered in time leaves its wake-up behind: the next one on the connection is due later, and the look
in vain that comes of it, once in a time-out, costs less than a timer set by each request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from kbroker.client import ClientLogin, Connection, correlation_ids
from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.peers.broker_connection import BrokerConnection, Link
from kbroker.ports import PeerFaultKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kbroker.ports import Endpoint, FlatRequest, PeerEvent, Versions
    from protocol.message import Message


PLAINTEXT = SECURITY_PROTOCOLS.index("PLAINTEXT")
OF_SASL = frozenset(each for each, name in enumerate(SECURITY_PROTOCOLS) if name.startswith("SASL_"))


class BrokerConnections:
    """Connections by broker and purpose. name: of this broker, told in client ids. post: takes events, in order.

    spoken: the security protocols of listeners that are connected to.
    """

    spoken: Collection[int] = frozenset({PLAINTEXT})

    def __init__(self, name: str, now_ms: Callable[[], int], post: Callable[[PeerEvent], None]) -> None:
        self.now_ms = now_ms
        self._name = name
        self._post = post
        self._cluster_id = ""
        self._connections: dict[tuple[int, str], BrokerConnection] = {}
        self._events: deque[tuple[BrokerConnection, PeerEvent]] = deque()
        self._is_posting = False
        self._wake_at_ms: int | None = None
        self.is_closed = False

    # -- the port

    def join(self, cluster_id: str) -> None:
        """The cluster whose brokers may be spoken to."""
        self._cluster_id = cluster_id

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message | FlatRequest,
        version: Versions,
        token: object,
        timeout_ms: int,
    ) -> None:
        """Ask a broker something."""
        assert self._cluster_id, "no cluster was joined"
        assert not self.is_closed, "the connections are closed"
        now_ms = self.now_ms()
        connection = self._connections.get((broker_id, purpose))
        if connection is not None and connection.endpoint != endpoint:
            connection.fail(PeerFaultKind.RESET, f"it is at {endpoint.host}:{endpoint.port} now", now_ms)
            connection = None
        if connection is None:
            logs_in = endpoint.security_protocol in OF_SASL
            make = partial(self.make_client, f"{self._name}-{purpose}", correlation_ids(), logs_in)
            connection = BrokerConnection(
                broker_id, endpoint, self._cluster_id, make, self.spoken, self.log_in, self.dial, self._told
            )
            self._connections[broker_id, purpose] = connection
        connection.send(request, version, token, timeout_ms, now_ms)
        if self._events and not self._is_posting:
            self.soon(self.settle)
        deadline_ms = connection.next_deadline_ms()
        if deadline_ms is not None and (self._wake_at_ms is None or deadline_ms < self._wake_at_ms):
            self._wake_by(deadline_ms)

    def drop(self, broker_id: int, purpose: str) -> None:
        """Forget a connection and what is on it."""
        connection = self._connections.pop((broker_id, purpose), None)
        if connection is not None:
            connection.drop()

    def close(self) -> None:
        """Drop every connection."""
        self.is_closed = True
        for connection in self._connections.values():
            connection.drop()
        self._connections.clear()
        self._events.clear()

    def _told(self, connection: BrokerConnection, event: PeerEvent) -> None:
        self._events.append((connection, event))

    # -- for a subclass, which connects

    def make_client(self, client_id: str, numbers: Iterator[int], logs_in: bool) -> Connection:
        """A client's end of one connection. numbers: of requests, which go on from one to the next."""
        return Connection(client_id, numbers=numbers, authenticates=logs_in)

    def log_in(self, connection: BrokerConnection) -> ClientLogin:
        """What shows a broker who this one is, on a connection to a listener that asks for it. Raises: ConfigError."""
        raise NotImplementedError

    def dial(self, connection: BrokerConnection) -> Link:
        """Begin a connection to `connection.endpoint`; tell the connection, later, what comes of it."""
        raise NotImplementedError

    def soon(self, what: Callable[[], None]) -> None:
        """Call this when the present step is over."""
        raise NotImplementedError

    def wake_at(self, deadline_ms: int | None) -> None:
        """Call `expire` then, and not when it was said before; None: not at all."""
        raise NotImplementedError

    def _wake_by(self, deadline_ms: int | None) -> None:
        self._wake_at_ms = deadline_ms
        self.wake_at(deadline_ms)

    def expire(self) -> None:
        """The time has come that `wake_at` was told."""
        self._wake_at_ms = None
        now_ms = self.now_ms()
        for connection in list(self._connections.values()):
            connection.expire(now_ms)
        self.settle()
        self.rewind()

    def rewind(self) -> None:
        """Wake up when the first is due, be it later than was said before."""
        deadline_ms = self.next_deadline_ms()
        if deadline_ms != self._wake_at_ms:
            self._wake_by(deadline_ms)

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
        deadlines = (connection.next_deadline_ms() for connection in self._connections.values())
        return min((each for each in deadlines if each is not None), default=None)

    def settle(self) -> None:
        """After something has happened to a connection: post what became of requests. Nothing is due sooner by it."""
        if self._is_posting:
            return
        self._is_posting = True
        try:
            while self._events:
                told, event = self._events.popleft()
                if not told.is_dropped:
                    self._post(event)
        finally:
            self._is_posting = False
