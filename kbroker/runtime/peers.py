"""Other brokers on a real network: the port `Peers` over sockets on the broker's own loop.

Made by the composition root. It connects, and reads and writes bytes through a transport of the endpoint's security
protocol; all that a connection decides is in `kbroker/peers/`. Nothing here waits: a host that is a name is looked up
on a thread.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.client import ClientLogin, Connection
from kbroker.config import ConfigError
from kbroker.peers import OF_SASL, PLAINTEXT, BrokerConnections
from kbroker.ports import PeerFaultKind
from kbroker.runtime.memory import empty_buffer
from kbroker.runtime.transport import PlaintextTransport, WantReadError, WantWriteError

if TYPE_CHECKING:
    from kbroker.peers import BrokerConnection, Link
    from kbroker.ports import Clock, Endpoint, PeerEvent
    from kbroker.runtime.disk_pool import DiskPool
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.peer_logins import PeerLogins
    from kbroker.runtime.transport import Transport

    MakeTransport = Callable[[socket.socket, Endpoint], Transport]

RECEIVE_BYTES = 256 << 10  # of the buffer that all connections share; larger answers are received into one of their own

_Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


class SocketPeers(BrokerConnections):
    """The connections of one broker. post: takes events; never called from within `send`.

    most_frame_bytes: of one answer. unreachable: brokers that no connection gets to, for a test wants it so.
    transports: by security protocol, what makes one of a connected socket and where that is connected to. Others are
    not spoken. logins: for those of SASL.
    """

    def __init__(
        self,
        name: str,
        loop: Loop,
        clock: Clock,
        pool: DiskPool,
        post: Callable[[PeerEvent], None],
        most_frame_bytes: int,
        logins: PeerLogins | None = None,
    ) -> None:
        super().__init__(name, clock.now_ms, post)
        self.loop = loop
        self.pool = pool
        self.logins = logins
        self._most_frame_bytes = most_frame_bytes
        self._receive_view = empty_buffer(RECEIVE_BYTES)  # most brokers have no others
        self.unreachable: frozenset[int] = frozenset()
        self.transports: dict[int, MakeTransport] = {PLAINTEXT: lambda sock, endpoint: PlaintextTransport.over(sock)}
        self.spoken = self.transports.keys()
        self._silent: dict[_Address, int] = {}  # addresses where connecting came to no end: when, as a count
        self._silences = 0
        self._wake = loop.timer(self.expire)

    def make_client(self, client_id: str, numbers: Iterator[int], logs_in: bool) -> Connection:
        """One that receives where all do, an answer of so many bytes at most."""
        view, most_bytes = self._receive_view, self._most_frame_bytes
        return Connection(
            client_id, numbers=numbers, receive_view=view, most_frame_bytes=most_bytes, authenticates=logs_in
        )

    def log_in(self, connection: BrokerConnection) -> ClientLogin:
        """By the settings of the listener. Raises: ConfigError."""
        assert self.logins is not None, connection
        return self.logins.client_login(connection.endpoint, connection.client)

    def dial(self, connection: BrokerConnection) -> Link:
        """A connection, begun in the next turn of the loop."""
        link = SocketLink(self, connection)
        self.loop.call_soon(link.resolve)
        return link

    def to_try(self, addresses: Iterable[_Address]) -> list[_Address]:
        """A host's addresses, those that kept silent last: or none behind such a one would ever have its turn."""
        return sorted(addresses, key=lambda each: self._silent.get(each, 0))

    def was_silent(self, address: _Address) -> None:
        """Connecting to it was given up without an answer."""
        self._silences += 1
        self._silent[address] = self._silences

    def cut(self, broker_ids: Collection[int]) -> None:
        """Lose the connections to these brokers, and get no new ones, until this is called without them."""
        self.unreachable = frozenset(broker_ids)
        for connection in list(self._connections.values()):
            if connection.broker_id in self.unreachable:
                connection.fail(PeerFaultKind.RESET, "cut off", self.now_ms())
        self.settle()

    def soon(self, what: Callable[[], None]) -> None:
        """In the next turn of the loop."""
        self.loop.call_soon(what)

    def wake_at(self, deadline_ms: int | None) -> None:
        """By the one timer."""
        if deadline_ms is None:
            self._wake.cancel()
        else:
            self._wake.set(max(deadline_ms - self.now_ms(), 0) / 1000)

    def close(self) -> None:
        """Drop every connection."""
        super().close()
        self._wake.cancel()


class SocketLink:
    """The link of a connection, from the look-up of its host to its end."""

    def __init__(self, peers: SocketPeers, connection: BrokerConnection) -> None:
        self._peers = peers
        self._connection = connection
        self._socket: socket.socket | None = None  # until it is connected
        self._transport: Transport | None = None
        self._reads_when_writable = False
        self._unsent: deque[memoryview] = deque()
        self._addresses: deque[_Address] = deque()  # of its host, not tried yet
        self._connecting: _Address | None = None  # to this one
        self._is_closed = False

    # -- for the connection

    def send(self, data: bytes) -> None:
        """Write it now, as far as the transport takes it, and the rest when it takes more."""
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        self._unsent.clear()
        if self._connecting is not None:
            self._peers.was_silent(self._connecting)
        opened = self._transport or self._socket
        self._transport = self._socket = None
        if opened is not None:
            self._peers.loop.remove_reader(opened.fileno())
            self._peers.loop.remove_writer(opened.fileno())
            opened.close()

    # -- connecting

    def resolve(self) -> None:
        """Find the address, then connect."""
        host, port = self._connection.endpoint[2:]
        if self._is_closed:
            return
        if self._connection.broker_id in self._peers.unreachable:
            self._lost("cut off")
            return
        logins, listener = self._peers.logins, self._connection.endpoint.listener
        waits = self._connection.endpoint.security_protocol in OF_SASL and logins is not None and logins.waits(listener)
        found = _literal(host, port)
        if found is not None and not waits:
            self._addresses.append(found)
            self._connect()
            return

        addresses: list[_Address] = []

        def look_up() -> None:
            if self._is_closed:  # it has waited for other look-ups longer than the connection has for it
                return
            if waits and logins is not None:
                logins.prepare(self._connection.endpoint)
            if found is not None:
                addresses.append(found)
                return
            addresses.extend(
                (family, name)  # type: ignore[misc]  # AF_INET and AF_INET6 have these forms
                for family, _, _, _, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            )

        def looked_up(error: BaseException | None) -> None:
            if error is not None:
                self._lost(f"{host}: {error.strerror if isinstance(error, OSError) else error}")
            elif not self._is_closed:
                self._addresses.extend(self._peers.to_try(addresses))
                self._connect()

        self._peers.pool.submit(look_up, looked_up)

    def _connect(self) -> None:
        """Try the next address: a name may have several, of which a broker listens on some."""
        self._connecting = family, name = self._addresses.popleft()
        try:
            sock = self._socket = socket.socket(family, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host that is gone says nothing by itself
            code = sock.connect_ex(name)
        except OSError as error:
            self._not_connected(error.strerror or str(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._not_connected(os.strerror(code))
            return
        self._peers.loop.add_writer(sock.fileno(), self._on_connected)

    def _on_connected(self) -> None:
        sock = self._socket
        if sock is None:
            return
        self._peers.loop.remove_writer(sock.fileno())
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(os.strerror(code))
            return
        self._connecting = None
        try:
            is_to_itself = sock.getsockname() == sock.getpeername()
        except OSError as error:  # reset since it was there
            self._not_connected(error.strerror or str(error))
            return
        if is_to_itself:  # where no process listens, TCP may come to connect to itself
            self._not_connected("Connection refused")
            return
        endpoint = self._connection.endpoint
        try:
            self._transport = self._peers.transports[endpoint.security_protocol](sock, endpoint)
        except (ConfigError, ValueError) as error:  # no certificate for this listener; a name that TLS does not take
            self._not_connected(str(error))
            return
        self._socket = None
        self._peers.loop.add_reader(self._transport.fileno(), self._on_readable)
        self._connection.connected()
        self._peers.settle()

    def _not_connected(self, why: str) -> None:
        sock, self._socket = self._socket, None
        self._connecting = None
        if sock is not None:
            sock.close()
        if self._addresses:
            self._connect()
        else:
            self._lost(why)

    # -- in and out

    def _on_readable(self) -> None:
        transport = self._transport
        if transport is None:
            return
        self._read(transport)
        if self._unsent:  # which may have waited for what has come
            self._write()
        if transport.buffers_input and self._may_read_on(transport):
            self._peers.loop.call_soon(self._on_readable)

    def _may_read_on(self, transport: Transport) -> bool:
        return self._transport is transport and not self._reads_when_writable and transport.has_bytes_buffered()

    def _read(self, transport: Transport) -> None:
        connection = self._connection
        client = connection.client
        try:
            size = transport.recv_into(client.buffer())
        except WantWriteError:
            self._reads_when_writable = True
            self._peers.loop.add_writer(transport.fileno(), self._on_writable)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error.strerror or str(error))
        else:
            if size:
                connection.received(client.received, size, self._peers.now_ms())
                self._peers.settle()
            else:
                self._lost("closed by the broker")

    def _on_writable(self) -> None:
        reads, self._reads_when_writable = self._reads_when_writable, False
        self._write()
        if reads:
            self._on_readable()

    def _write(self) -> None:
        """As far as it goes. Does not call the connection back: it may be the connection that sends."""
        transport, unsent, is_full = self._transport, self._unsent, False
        if transport is None:
            return
        try:
            while unsent:
                sent = transport.send(unsent[0])
                if sent < len(unsent[0]):
                    unsent[0] = unsent[0][sent:]
                else:
                    unsent.popleft()
        except WantReadError:
            pass
        except (BlockingIOError, InterruptedError):
            is_full = True
        except OSError as error:
            why = error.strerror or str(error)
            self._unsent.clear()
            self._peers.loop.call_soon(lambda: self._lost(why))
            return
        if is_full:
            self._peers.loop.add_writer(transport.fileno(), self._on_writable)
        elif not self._reads_when_writable:
            self._peers.loop.remove_writer(transport.fileno())

    def _lost(self, why: str) -> None:
        if self._is_closed:
            return
        self._connection.lost(why, self._peers.now_ms())
        self._peers.settle()


def _literal(host: str, port: int) -> _Address | None:
    """An address that needs no look-up."""
    with suppress(OSError):
        socket.inet_pton(socket.AF_INET, host)
        return socket.AF_INET, (host, port)
    with suppress(OSError):
        socket.inet_pton(socket.AF_INET6, host)
        return socket.AF_INET6, (host, port, 0, 0)
    return None
