"""Listening sockets, the connections they accept, and the one timer that wakes the core.

Made by `node.py`. It turns readiness into events of the core (`receive`, `step`), and the core's effects into writes,
work for the disk pool and a timer; it knows listeners and limits on connections, and nothing about requests. Everything
here runs on the loop's thread, except the reads of `DiskPool`, which come back through `call_from_thread`.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.broker.facts import JobDone, tell_of_end
from kbroker.config import is_every_interface
from kbroker.config.limits import HANDSHAKE_MS, HELD_BYTES, SEND_BUFFER_BYTES, SHIPPED_SEND_BUFFER_BYTES
from kbroker.config.settings import INT_MAX
from kbroker.core import EXPIRED, Closed
from kbroker.runtime.connection import PORTION_BYTES, REGION_BYTES, Connection
from kbroker.runtime.memory import empty_buffer
from kbroker.runtime.platform import is_resident, read_resident
from kbroker.runtime.transport import PlaintextTransport
from kbroker.timing import NEVER
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.broker.jobs import Errand
    from kbroker.broker.rates import Rate
    from kbroker.broker.session import Session
    from kbroker.channel import Channel
    from kbroker.core import Core
    from kbroker.ports import Clock, Region
    from kbroker.runtime.disk_pool import DiskPool
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.transport import Transport

    MakeTransport = Callable[[socket.socket, Session], Transport]

log = logging.getLogger("kbroker.server")

RECEIVE_BYTES = 256 << 10  # of the shared receive buffer: at 1 KB records larger ones gained nothing
ACCEPTS_PER_TURN = 64  # a storm of connects gets no more of a loop turn than this,
LEAST_ACCEPTS_PER_TURN = 16  # and no less: those that wait in the kernel soon have to try again after a second
ACCEPT_PAUSE_S = 0.1
HANDSHAKES_PER_TURN = 2  # steps of them: one takes half a millisecond, with a long key of RSA five
MOST_DELAYED = 1000  # connections that wait to be hung up on; others beyond them do not wait
LANE_BYTES = 64 << 10  # of the receive buffer that controllers share
QUIET_MS = 5_000  # after so long a connection gives back the buffer its last large frame was gathered in
SWEEPS_PER_IDLE_TIME = 20  # an idle connection is noticed up to a twentieth later
LONGEST_SWEEP_S = 5.0
LEAST_ROOM = 16  # this part of the limit on memory may be exceeded before it is looked at again
MOST_ROOM = 4  # and this part may come in, for what else counts may have grown meanwhile
LEAST_BUFFER_BYTES = 4096  # of a socket: where that is refused, it is not for being too much
SHARED_MS = 10  # regions are sent in small portions after a request was found waiting


class ListenerLimits(NamedTuple):
    """Of one listener: listener.name.NAME.max.connections and .max.connection.creation.rate."""

    max_connections: int = INT_MAX
    creation_rate: int = INT_MAX


class Limits(NamedTuple):
    """What a server takes from its clients. Names and defaults are those of server.properties."""

    max_frame_bytes: int  # socket.request.max.bytes
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: dict[str, int]
    idle_ms: int  # connections.max.idle.ms; < 0: never
    send_buffer_bytes: int  # socket.send.buffer.bytes; -1: the system's own
    held_bytes: int = -1  # queued.max.request.bytes; -1: as much as limits.py says
    most_sockets: int = 1 << 20  # no setting: how many descriptors there are for clients
    creation_rate: int = INT_MAX  # max.connection.creation.rate
    rate_windows: tuple[int, int] = (11, 1)  # quota.window.num, quota.window.size.seconds
    of_listeners: Mapping[str, ListenerLimits] = {}  # those that have their own, besides


def bound_socket(host: str, port: int, *, receive_buffer_bytes: int) -> socket.socket:
    """A socket that has its address and does not listen yet. host: "" for every interface. port: 0 for any free one.

    On every interface, however that is spelled, it takes clients of IPv4 and IPv6, as Kafka's does.
    receive_buffer_bytes: of the connections to come; -1 leaves it to the system. Set before the first one is accepted,
    since it bounds the window that a peer is offered. Raises: OSError.
    """
    is_dual, host = socket.has_dualstack_ipv6(), "" if is_every_interface(host) else host
    bound = socket.socket(socket.AF_INET6 if ":" in host or (is_dual and not host) else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if bound.family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        if receive_buffer_bytes > 0:
            _set_buffer(bound, socket.SO_RCVBUF, receive_buffer_bytes)
        bound.bind((host, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _set_buffer(sock: socket.socket, option: int, size: int) -> None:
    """Ask for a buffer of so many bytes, or as many as there may be: Linux takes more for those, macOS refuses it."""
    while True:
        try:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
        except OSError as error:
            if error.errno != errno.ENOBUFS or size < LEAST_BUFFER_BYTES:
                raise
            size //= 2
        else:
            return


def _most_held(limits: Limits) -> int:
    return limits.held_bytes if limits.held_bytes > 0 else max(HELD_BYTES, 2 * limits.max_frame_bytes)


class Server:
    """All sockets of one broker, on one event loop.

    accepted, refused: how many connections, for those who count. failed_handshakes: by listener and kind. bytes_in,
    bytes_out: over all connections, sizes of frames among them.
    """

    def __init__(self, loop: Loop, core: Core, clock: Clock, pool: DiskPool, limits: Limits) -> None:
        self.loop = loop
        self.core = core
        core.gathers = True
        self._is_to_look = False  # around, once the loop is at rest
        self.clock = clock
        self.max_frame_bytes = limits.max_frame_bytes
        self.receive_view = empty_buffer(RECEIVE_BYTES)
        self.lane: list[Connection] = []  # controllers': emptied before each request of the others
        self._lane_view: memoryview | None = None
        self._limits = limits
        self._pool = pool
        self._listening: dict[str, socket.socket] = {}
        self._spoken: dict[str, tuple[str, MakeTransport | None]] = {}  # by listener
        self._shaking: deque[tuple[int, Connection]] = deque()  # by when their handshakes have to be over, in order
        self._to_shake: deque[Callable[[], None]] = deque()  # what goes on with one
        self._shake_timer = loop.timer(self._end_handshakes)
        self._control_listener = ""
        self._connections: dict[Channel, Connection] = {}
        self._by_ip: Counter[str] = Counter()
        self._gathered: dict[Connection, int] = {}  # who holds how many bytes of frames that came in parts
        self._gathered_bytes = 0
        # The account of memory: what all held when it was added up may grow by `_room_bytes`, then it is done again.
        self._most_held_bytes = _most_held(limits)
        self._room_bytes = self._most_held_bytes // MOST_ROOM
        self._grown_bytes = 0
        self._settling = False
        self._closed = False
        self._delayed: set[socket.socket] = set()  # who came too fast, to be hung up on
        self._creation: dict[str, Rate] = {}  # of all, under "", and of listeners that have their own limit
        self._by_listener: Counter[str] = Counter()
        self._count_new()
        self.accepted = self.refused = 0  # connections
        self.failed_handshakes: Counter[tuple[str, str]] = Counter()
        self.bytes_in = self.bytes_out = 0
        self._running = 0  # jobs for the disk that are under way
        self._sweep_timer = loop.timer(self.sweep)
        self._wake = loop.timer(self.wake)
        self._wake_at_ms = NEVER
        self._settled_bytes_in = 0
        self._reads_much: set[int] = set()  # descriptors of connections, since the last sweep
        self._shared_until_ms = 0  # portions are small
        loop.after_ready(self._settle_received)

    def accept_from(
        self,
        name: str,
        listening: socket.socket,
        *,
        control: bool = False,
        transport: MakeTransport | None = None,
        security_protocol: str = "PLAINTEXT",
    ) -> None:
        """Serve the connections of a listening socket, under this listener's name.

        control: it is the control plane's own (control.plane.listener.name): what comes in there goes first.
        transport: makes one, which does not block, of a socket that was accepted; None for the socket itself.
        """
        listening.setblocking(False)
        self._listening[name] = listening
        self._spoken[name] = security_protocol, transport
        if control:
            self._control_listener = name
        self.loop.add_reader(listening.fileno(), partial(self._accept, name, listening))

    def limit(self, limits: Limits) -> None:
        """Other limits count from now on; no connected client is sent away for them. Frames keep the size they had."""
        self._limits = limits
        self._most_held_bytes = _most_held(limits)
        self._room_bytes = 0
        self._count_new()

    def _count_new(self) -> None:
        """How fast connections may be made, if that is limited."""
        limits = self._limits
        rates = {"": limits.creation_rate} | {name: own.creation_rate for name, own in limits.of_listeners.items()}
        before, self._creation = self._creation, {}
        for name, bound in rates.items():
            if bound == INT_MAX:
                continue
            from kbroker.broker.rates import Rate, Windows  # most brokers take what comes

            rate = self._creation[name] = before.get(name) or Rate(Windows(*limits.rate_windows), bound)
            rate.set_bound(bound)

    def settle(self) -> None:
        """After every event: write what other connections' answers became ready, and set the timer again."""
        effects = self.core.effects
        if self._settling:
            return  # a flush below made room for a request whose answers concern others: they are flushed there
        if effects.writes:
            self._flush_writes()
        if self._closed:
            return
        if effects.moved and not self._is_to_look:
            self._is_to_look = True
            self.loop.at_rest(self._look_around)
        for job in effects.take_jobs():
            self._run(job)
        wake_ms = effects.wake_ms
        if wake_ms != self._wake_at_ms:
            self._set_timer(wake_ms)

    def _flush_writes(self) -> None:
        effects = self.core.effects
        while effects.writes:
            self._flush(effects.take_writes())

    def _flush(self, channels: Sequence[Channel]) -> None:
        self._settling = True
        try:
            for channel in channels:
                connection = self._connections.get(channel)
                if connection is not None:
                    connection.flush()
        finally:
            self._settling = False

    def _settle_received(self) -> None:
        """The same, once for all that connections have received in a turn."""
        bytes_in = self.bytes_in
        if self._settled_bytes_in != bytes_in:
            self.settle()
            self._settled_bytes_in = bytes_in

    def _look_around(self) -> None:
        """Answer what waited for what has moved while there was something to receive.

        An answer leaves before the next is made: one follower writes while the other's is still in the making. But for
        one behind which others of its connection wait: they may leave together.
        """
        self._is_to_look = False
        if self._closed:
            return
        writes = self.core.effects.writes
        for channel in self.core.at_rest(self.clock.now_ms()):
            if not channel.pending and channel in writes:
                del writes[channel]
                self._flush((channel,))
        self.settle()

    def _set_timer(self, wake_ms: int) -> None:
        self._wake_at_ms = wake_ms
        if wake_ms == NEVER:
            self._wake.cancel()
        else:
            self._wake.set(max(wake_ms - self.clock.now_ms(), 0) / 1000)

    def wake(self) -> None:
        """Do what is due now: at the timer's call, or because a test has moved the clock."""
        self._wake_at_ms = NEVER
        self.core.step(EXPIRED, self.clock.now_ms())
        self.settle()

    def connections(self) -> Counter[str]:
        """How many are open, by listener."""
        return +self._by_listener

    def close(self) -> None:
        """Stop accepting, hang up on all clients, begin no more work for the disk."""
        self._closed = True
        for listening in self._listening.values():
            self.loop.remove_reader(listening.fileno())
            listening.close()
        self._listening.clear()
        for connection in list(self._connections.values()):
            connection.close("")
        for sock in tuple(self._delayed):
            self._hang_up_late(sock)
        self._wake.cancel()
        self._sweep_timer.cancel()
        self._shake_timer.cancel()

    @property
    def jobs_done(self) -> bool:
        """Whether no work for the disk is under way, and the core knows how all of it ended."""
        return not self._running

    def _run(self, job: Errand) -> None:
        """Work for the disk, on the pool."""
        self._running += 1

        def tell(fact: JobDone) -> None:
            self.core.step(fact, self.clock.now_ms())
            self.settle()

        def done(error: BaseException | None) -> None:
            self._running -= 1
            tell_of_end(job, error, tell)

        self._pool.submit(job.run, done)

    # -- accepting

    def _accept(self, name: str, listening: socket.socket) -> None:
        for _ in range(max(ACCEPTS_PER_TURN >> self.loop.halvings, LEAST_ACCEPTS_PER_TURN)):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: the client waits in the backlog
                log.warning("cannot accept a connection on listener %s: %s", name, error.strerror)
                self._pause(name, listening)
                return
            host = address[0].removeprefix("::ffff:")
            if name == self._control_listener:
                self._welcome(name, sock, host, address[1])
            elif not self._comes_too_fast(sock, host):
                self._welcome(name, sock, host, address[1])
                if self._creation and (wait_ms := self._wait_after_new(name)):
                    self._pause(name, listening, min(wait_ms / 1000, self._limits.rate_windows[1]))
                    return

    def _wait_after_new(self, listener: str) -> int:
        """How long the next connection has to wait, in ms: no longer than until another second has begun to count."""
        rates = [self._creation[each] for each in ("", listener) if each in self._creation]
        return max((rate.record(1, self.clock.now_ms()) for rate in rates), default=0)

    def _comes_too_fast(self, sock: socket.socket, host: str) -> bool:
        """Whether an address connects faster than it may (KIP-612): it is hung up on, and has to wait for that."""
        wait_ms = self.core.connection_wait_ms(host, self.clock.now_ms())
        if not wait_ms:
            return False
        self.refused += 1
        if len(self._delayed) < MOST_DELAYED:
            self._delayed.add(sock)
            self.loop.call_later(wait_ms / 1000, partial(self._hang_up_late, sock))
        else:
            sock.close()
        return True

    def _hang_up_late(self, sock: socket.socket) -> None:
        self._delayed.discard(sock)
        sock.close()

    def _pause(self, name: str, listening: socket.socket, pause_s: float = ACCEPT_PAUSE_S) -> None:
        """Try again in a while: until a descriptor is free, the listener would be readable without end."""
        self.loop.remove_reader(listening.fileno())

        def again() -> None:
            if name in self._listening:
                self.loop.add_reader(listening.fileno(), partial(self._accept, name, listening))

        self.loop.call_later(pause_s, again)

    def _welcome(self, name: str, sock: socket.socket, host: str, port: int) -> None:
        control = name == self._control_listener
        refusal = self._refusal(name, host, control)
        if refusal:
            self.refused += 1
            log.warning("refused a connection of %s on listener %s: %s", host, name, refusal)
            sock.close()
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
            )  # nothing else tells of the end of one that waits
            if (size := self._limits.send_buffer_bytes) > 0:
                size = SEND_BUFFER_BYTES if size == SHIPPED_SEND_BUFFER_BYTES else size
                _set_buffer(sock, socket.SO_SNDBUF, size)
        except OSError:  # macOS has no options for one that was reset already
            sock.close()
            return
        protocol, make = self._spoken[name]
        channel = self.core.open(name, host, port, protocol)
        transport = PlaintextTransport.over(sock) if make is None else make(sock, channel.session)
        connection = Connection(self, transport, channel, host, self.clock.now_ms())
        self._connections[channel] = connection
        self._by_ip[host] += 1
        self._by_listener[name] += 1
        self.accepted += 1
        if control:
            self.prefer(connection)
        if make is not None:
            self._await_handshake(connection)
        if self._sweep_timer.due_s is None:
            self._sweep_later()

    def _refusal(self, listener: str, host: str, control: bool) -> str:
        """Why not, or nothing. The control plane is not shut out by clients: max.connections is not its limit."""
        limits = self._limits
        if len(self._connections) >= limits.max_connections and not control:
            return f"max.connections={limits.max_connections} are open"
        if len(self._connections) >= limits.most_sockets and not control:
            return f"{limits.most_sockets} are open, the other descriptors (ulimit -n) are for the logs"
        own = limits.of_listeners.get(listener)
        if own is not None and self._by_listener[listener] >= own.max_connections:
            return f"listener.name.{listener.lower()}.max.connections={own.max_connections} are open"
        most = limits.max_connections_per_ip_overrides.get(host, limits.max_connections_per_ip)
        if self._by_ip[host] >= most:
            return f"max.connections.per.ip={most} are open from this address"
        return ""

    # -- handshakes

    def shake_later(self, go_on: Callable[[], None]) -> None:
        """Go on with a handshake once nothing else is ready, or after some turns all the same: of many, a few."""
        if not self._to_shake:
            self.loop.at_rest(self._shake_some)
        self._to_shake.append(go_on)

    def _shake_some(self) -> None:
        for _ in range(min(HANDSHAKES_PER_TURN, len(self._to_shake))):
            self._to_shake.popleft()()
        if self._to_shake:
            self.loop.at_rest(self._shake_some)

    def note_failed_handshake(self, connection: Connection, kind: str) -> None:
        """For those who count: one is over before its time."""
        self.failed_handshakes[connection.channel.session.listener, kind or "closed"] += 1

    def _await_handshake(self, connection: Connection) -> None:
        self._shaking.append((self.clock.now_ms() + HANDSHAKE_MS, connection))
        if self._shake_timer.due_s is None:
            self._shake_timer.set(HANDSHAKE_MS / 1000)

    def _end_handshakes(self) -> None:
        """Hang up where one has taken too long. Those that are over, or broken, lie here until then."""
        now_ms, shaking = self.clock.now_ms(), self._shaking
        while shaking and (shaking[0][0] <= now_ms or shaking[0][1].is_shaken):
            connection = shaking.popleft()[1]
            if not connection.is_shaken:
                connection.close(f"no TLS handshake within {HANDSHAKE_MS} ms", "timeout")
        if shaking:
            self._shake_timer.set((shaking[0][0] - now_ms) / 1000)

    # -- the lane

    def prefer(self, connection: Connection) -> None:
        """A controller's: what it sends goes first from now on."""
        if self._lane_view is None:
            self._lane_view = memoryview(bytearray(LANE_BYTES))
        connection.prefer(self._lane_view)
        self.lane.append(connection)

    def empty_lane(self) -> None:
        """Handle what controllers have sent, before another client's request is."""
        if self.loop.is_only_one:  # no other has sent anything a moment ago: it need not be tried
            self.loop.is_only_one = False
            return
        for connection in tuple(self.lane):
            connection.receive()

    # -- memory and idleness

    def gathered(self, connection: Connection, size: int) -> None:
        """A connection now holds `size` bytes for frames that come in parts."""
        grown = size - self._gathered.get(connection, 0)
        self._gathered_bytes += grown
        self._gathered[connection] = size
        if grown > 0:
            self.grew(grown)

    def grew(self, size: int) -> None:
        """So many more bytes are held for clients, at most: whether it is too much is looked at now and then."""
        self._grown_bytes += size
        if self._grown_bytes > self._room_bytes:
            self._audit()

    def _audit(self) -> None:
        """Add up what is held for all clients; hang up on the largest holder while it is too much."""
        for connection in list(self._gathered):
            self._release(connection)
        held = {connection: connection.held_bytes for connection in self._connections.values()}
        total, most = sum(held.values()), self._most_held_bytes
        if self._limits.held_bytes <= 0:
            most -= self.core.effects.held_bytes
        if total > most:
            by_address: Counter[str] = Counter()
            for connection, size in held.items():
                by_address[connection.peer_host] += size
            while total > most:
                address, _ = by_address.most_common(1)[0]
                heaviest = max((each for each in held if each.peer_host == address), key=held.__getitem__)
                size = held.pop(heaviest)
                by_address[address] -= size
                total -= size
                heaviest.close(f"{size} bytes are held for it, more than for others: at most {most} are for all")
        self._grown_bytes = 0
        self._room_bytes = min(max(most - total, most // LEAST_ROOM), most // MOST_ROOM)

    def _release(self, connection: Connection) -> None:
        held = connection.release_buffer()
        self._gathered_bytes += held - self._gathered[connection]
        if held:
            self._gathered[connection] = held
        else:
            del self._gathered[connection]

    def sweep(self) -> None:
        """Take the buffers of connections that have gone quiet, and close those that were for too long."""
        now_ms = self.clock.now_ms()
        self._reads_much.clear()
        for connection in list(self._gathered):
            if now_ms - connection.last_heard_ms >= QUIET_MS:
                self._release(connection)
        idle_ms = self._limits.idle_ms
        if idle_ms >= 0:
            too_long = [each for each in self._connections.values() if now_ms - each.last_heard_ms >= idle_ms]
            for connection in too_long:
                if connection.ended or not connection.channel.busy:  # else it waits for us: a long poll, a rebalance
                    connection.close(f"idle for connections.max.idle.ms={idle_ms}")
        if self._connections:
            self._sweep_later()

    def _sweep_later(self) -> None:
        idle_ms = self._limits.idle_ms
        seconds = min(idle_ms / 1000 / SWEEPS_PER_IDLE_TIME, LONGEST_SWEEP_S) if idle_ms >= 0 else LONGEST_SWEEP_S
        self._sweep_timer.set(max(seconds, 0.001))

    def gone(self, connection: Connection, reason: str) -> None:
        """A connection has closed itself."""
        channel = connection.channel
        if self._connections.pop(channel, None) is None:
            return
        self._reads_much.discard(connection.fd)
        self._by_listener[channel.session.listener] -= 1
        self._by_ip[connection.peer_host] -= 1
        if not self._by_ip[connection.peer_host]:
            del self._by_ip[connection.peer_host]
        self._gathered_bytes -= self._gathered.pop(connection, 0)
        if connection.in_lane:
            self.lane.remove(connection)
        if reason:
            log.info("closed the connection of %s: %s", channel.session, reason)
        self.core.step(Closed(channel), self.clock.now_ms())
        self.settle()

    # -- regions

    is_resident = staticmethod(is_resident)
    """Whether sending the region's first `size` bytes will not wait for a disk, as far as can be told."""

    read_small = staticmethod(read_resident)
    """A region's bytes, if all of them are in the page cache, as far as can be told."""

    def portion_bytes(self, connection: Connection) -> int:
        """How much of a region to send at a time to a connection that reads much; less where others were found waiting.

        Small portions take a sixth more of the processor for each byte: what readers wait for each other is no reason.
        """
        self._reads_much.add(connection.fd)
        return REGION_BYTES if self.clock.now_ms() >= self._shared_until_ms else PORTION_BYTES

    def waiting(self) -> int:
        """How many who do not read much have sent something."""
        count = self.loop.readable(self._reads_much)
        if count:
            self._shared_until_ms = self.clock.now_ms() + SHARED_MS
        return count

    def read_ahead(self, region: Region, size: int, ready: Callable[[], None]) -> None:
        """Read the region's first `size` bytes into the page cache on the disk pool; then `ready` on the loop."""
        file = region.file

        def read() -> None:
            file.read(region.position, size)

        self._pool.submit(read, lambda error: ready())  # an error shows again, to its owner, when it is sent
