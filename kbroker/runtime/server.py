"""Listening sockets, the connections they accept, and the one timer that wakes the core.

Made by `main.py`. It turns readiness into calls of the core (`receive`, `expire`, `handle`) and the core's answers
into writes; it knows listeners and limits on connections, and nothing about requests. Everything here runs on the
loop's thread, except the reads of `DiskPool`, which come back through `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from kbroker.api.broker import DiskDone
from kbroker.runtime.connection import Connection

if TYPE_CHECKING:
    from kbroker.core import Channel, Core
    from kbroker.log.background import Job
    from kbroker.ports import Clock, Region
    from kbroker.runtime.disk_pool import DiskPool
    from kbroker.runtime.files import SystemFile

log = logging.getLogger("kbroker.server")

RECEIVE_BYTES = 256 << 10  # of the shared receive buffer: at 1 KB records larger ones gained nothing
ACCEPTS_PER_TURN = 64  # a storm of connects gets no more of a loop turn than this
ACCEPT_PAUSE_S = 0.1
PROBE_EVERY = 128 << 10  # the kernel reads ahead in windows of this size: between two hot probes little can be cold
NOTHING_TO_READ = (errno.EAGAIN, errno.EWOULDBLOCK)


class Limits(NamedTuple):
    """What a server takes from its clients. Names and defaults are those of server.properties."""

    max_frame_bytes: int  # socket.request.max.bytes
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: dict[str, int]
    idle_ms: int  # connections.max.idle.ms; < 0: never
    send_buffer_bytes: int  # socket.send.buffer.bytes; -1: the system's own


def listening_socket(host: str, port: int, *, backlog: int, receive_buffer_bytes: int) -> socket.socket:
    """A socket that listens. host: "" for every interface. port: 0 for any free one. Raises: OSError.

    receive_buffer_bytes: of the connections to come; -1 leaves it to the system. Set before the first one is accepted,
    since it bounds the window that a peer is offered.
    """
    everywhere = not host and socket.has_dualstack_ipv6()
    listening = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if everywhere or ":" in host else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=everywhere,
    )
    if receive_buffer_bytes > 0:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return listening


class Server:
    """All sockets of one broker, on one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, core: Core, clock: Clock, pool: DiskPool, limits: Limits
    ) -> None:
        self.loop = loop
        self.core = core
        self.clock = clock
        self.max_frame_bytes = limits.max_frame_bytes
        self.receive_buffer = bytearray(RECEIVE_BYTES)
        self.receive_view = memoryview(self.receive_buffer)
        self._limits = limits
        self._pool = pool
        self._listening: dict[str, socket.socket] = {}
        self._connections: dict[Channel, Connection] = {}
        self._by_ip: Counter[str] = Counter()
        self._settling = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at_ms: int | None = None

    def accept_from(self, name: str, listening: socket.socket) -> None:
        """Serve the connections of a listening socket, under this listener's name."""
        listening.setblocking(False)
        self._listening[name] = listening
        self.loop.add_reader(listening.fileno(), self._accept, name, listening)

    def settle(self) -> None:
        """After every event: write what other connections' answers became ready, and set the timer anew."""
        core = self.core
        if self._settling:
            return  # a flush below made room for a request whose answers concern others: they are flushed there
        self._settling = True
        while core.dirty:
            for channel in core.take_dirty():
                connection = self._connections.get(channel)
                if connection is not None:
                    connection.flush()
        self._settling = False
        for job in core.broker.take_jobs():
            self._run(job)
        deadline_ms = core.next_deadline_ms()
        if deadline_ms != self._wake_at_ms:
            self._set_timer(deadline_ms)

    def _set_timer(self, deadline_ms: int | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._wake_at_ms = deadline_ms
        if deadline_ms is not None:
            delay_ms = max(deadline_ms - self.clock.now_ms(), 0)
            self._wake = self.loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._wake = None
        self._wake_at_ms = None
        self.core.expire(self.clock.now_ms())
        self.settle()

    def close(self) -> None:
        """Stop accepting and hang up on everyone."""
        for listening in self._listening.values():
            self.loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for connection in list(self._connections.values()):
            connection.close("")
        if self._wake is not None:
            self._wake.cancel()

    def _run(self, job: Job) -> None:
        """Work for the disk, on the pool."""

        def done(error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OSError):
                raise error  # to the loop's exception handler: a bug
            self.core.handle(DiskDone(job, error), self.clock.now_ms())
            self.settle()

        self._pool.run(job.run, done)

    # -- accepting

    def _accept(self, name: str, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the client waits in the backlog
                log.error("cannot accept a connection on listener %s: %s", name, error.strerror)
                self._pause(name, listening)
                return
            self._welcome(name, sock, address[0].removeprefix("::ffff:"), address[1])

    def _pause(self, name: str, listening: socket.socket) -> None:
        """Try again in a while: until a descriptor is free, the listener would be readable without end."""
        self.loop.remove_reader(listening.fileno())

        def again() -> None:
            if name in self._listening:
                self.loop.add_reader(listening.fileno(), self._accept, name, listening)

        self.loop.call_later(ACCEPT_PAUSE_S, again)

    def _welcome(self, name: str, sock: socket.socket, host: str, port: int) -> None:
        refusal = self._refusal(host)
        if refusal:
            log.warning("refused a connection of %s on listener %s: %s", host, name, refusal)
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._limits.send_buffer_bytes)
        now_ms = self.clock.now_ms()
        channel = self.core.open(name, host, port)
        connection = Connection(self, sock, channel, host, now_ms)
        self._connections[channel] = connection
        self._by_ip[host] += 1
        if self._limits.idle_ms >= 0:
            self._watch_idle(connection, self._limits.idle_ms)

    def _refusal(self, host: str) -> str:
        limits = self._limits
        if len(self._connections) >= limits.max_connections:
            return f"max.connections={limits.max_connections} are open"
        most = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if self._by_ip[host] >= most:
            return f"max.connections.per.ip={most} are open from this address"
        return ""

    def _watch_idle(self, connection: Connection, after_ms: int) -> None:
        """Look at a connection when it could be idle for too long at the earliest: one timer each, however busy."""

        def look() -> None:
            if connection.closed:
                return
            quiet_ms = self.clock.now_ms() - connection.last_heard_ms
            if quiet_ms < self._limits.idle_ms:
                self._watch_idle(connection, self._limits.idle_ms - quiet_ms)
            elif connection.channel.busy:  # it waits for us: a long poll, or a rebalance
                self._watch_idle(connection, self._limits.idle_ms)
            else:
                connection.close(f"idle for connections.max.idle.ms={self._limits.idle_ms}")

        self.loop.call_later(max(after_ms, 1) / 1000, look)

    def gone(self, connection: Connection, reason: str) -> None:
        """A connection has closed itself."""
        channel = connection.channel
        if self._connections.pop(channel, None) is None:
            return
        self._by_ip[connection.peer_host] -= 1
        if not self._by_ip[connection.peer_host]:
            del self._by_ip[connection.peer_host]
        if reason:
            log.info("closed the connection of %s: %s", channel.session, reason)
        self.core.closed(channel, self.clock.now_ms())

    # -- regions

    def is_resident(self, region: Region, size: int) -> bool:
        """Whether sending the region's first `size` bytes will not wait for a disk, as far as a few probes tell."""
        fd = cast("SystemFile", region.file).fileno()
        last = region.position + size - 1
        probe = [bytearray(1)]
        try:
            for position in (*range(region.position, last, PROBE_EVERY), last):
                os.preadv(fd, probe, position, os.RWF_NOWAIT)
        except OSError as error:
            return error.errno not in NOTHING_TO_READ  # a file system without RWF_NOWAIT: nothing to be known
        return True

    def read_ahead(self, region: Region, size: int, ready: Callable[[], None]) -> None:
        """Read the region's first `size` bytes into the page cache on the disk pool; then `ready` on the loop."""
        file = region.file

        def read() -> None:
            file.read(region.position, size)

        self._pool.run(read, lambda error: ready())  # an error shows again, to its owner, when it is sent
