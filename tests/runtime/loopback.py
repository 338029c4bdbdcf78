"""A server on loopback with a stub for a core, a clock and a pool that tests move by hand, and clients beside it.

Used by the tests of connections and of the server. The loop is turned one turn at a time; nothing sleeps. What the stub
does with a frame is told by the frame's first byte:

| byte | meaning                                                       |
|------|---------------------------------------------------------------|
| e    | answer with the frame itself                                  |
| p    | answer later, when the test calls `answer`                    |
| r    | answer with a head, the region that the test has put ready    |
|      | and the tail, if there is one                                 |
| c    | this is a controller's; answer as for e                       |
| x    | hang up                                                       |
| !    | fail                                                          |
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from kbroker.broker.session import Session
from kbroker.channel import Channel
from kbroker.core import EXPIRED, Closed
from kbroker.ports import Region
from kbroker.runtime.connection import Connection
from kbroker.runtime.loop import Loop
from kbroker.runtime.server import Limits, Server, bound_socket
from kbroker.runtime.transport import Transport
from kbroker.timing import NEVER
from tests.frames import framed

PATIENCE_S = 10.0
LIMITS = Limits(
    max_frame_bytes=1 << 20,
    max_connections=1000,
    max_connections_per_ip=1000,
    max_connections_per_ip_overrides={},
    idle_ms=60_000,
    send_buffer_bytes=-1,
)


class HandClock:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        """Where the test has put it."""
        return self.ms

    def wall_ms(self) -> int:
        """The same."""
        return self.ms


class HandPool:
    """A disk pool whose jobs a test runs."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    def submit(self, job: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Keep it."""
        self.jobs.append((job, done))

    def work(self) -> None:
        """Do what has been given so far."""
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            job()
            done(None)


class StubEffects:
    """As the real ones, as a test has them. asked: called each time that somebody asks when to wake the core."""

    def __init__(self) -> None:
        self.writes: dict[Channel, None] = {}
        self.moved: dict[object, None] = {}
        self.held_bytes = 0
        self.deadline_ms = NEVER
        self.asked: Callable[[], object] = lambda: None

    @property
    def wake_ms(self) -> int:
        """What the test has set."""
        self.asked()
        return self.deadline_ms

    def take_writes(self) -> Sequence[Channel]:
        """As the real one."""
        writes = tuple(self.writes)
        self.writes.clear()
        return writes

    def take_jobs(self) -> Sequence[object]:
        """There are none."""
        return ()


class StubCore:
    """Does with frames what their first byte says."""

    def __init__(self) -> None:
        self.effects = StubEffects()
        self.gathers = False
        self.looked: list[tuple[object, ...]] = []  # at what, each time
        self.answers: list[Channel] = []  # given when looked at that
        self.channels: list[Channel] = []
        self.seen: list[bytes] = []
        self.seen_ms: list[int] = []  # when, as the core was told
        self.gone: list[Channel] = []
        self.region: Region | None = None
        self.tail = b""  # of an answer, behind its region
        self.expired_ms: list[int] = []
        self.connection_waits: list[int] = []  # of the next connections

    def open(self, listener: str, peer_host: str, peer_port: int, security_protocol: str) -> Channel:
        """A channel as the real one's."""
        channel = Channel(Session(listener, peer_host, peer_port, security_protocol))
        self.channels.append(channel)
        return channel

    def connection_wait_ms(self, peer_host: str, now_ms: int) -> int:
        """What the test has put in."""
        return self.connection_waits.pop(0) if self.connection_waits else 0

    def receive(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """See the table above."""
        data = bytes(frame)
        self.seen.append(data)
        self.seen_ms.append(now_ms)
        kind = data[:1]
        if kind == b"p":
            channel.pending.append(cast(Any, data))
        elif kind == b"x":
            channel.closing = "asked to"
            self.effects.writes[channel] = None
        elif kind == b"!":
            raise RuntimeError("the stub was told to fail")
        elif kind == b"r":
            assert self.region is not None
            size = len(self.region) + len(self.tail)
            self._emit(channel, [struct.pack(">i", size), self.region, *([self.tail] if self.tail else [])])
        else:
            channel.session.is_controller |= kind == b"c"
            self._emit(channel, [framed(data)])

    def answer(self, channel: Channel, count: int = 1) -> None:
        """Now the answers that were to come later."""
        for _ in range(count):
            self._emit(channel, [framed(cast(bytes, channel.pending.popleft()))])
        self.effects.writes[channel] = None

    def _emit(self, channel: Channel, pieces: Sequence[bytes | Region]) -> None:
        channel.out += pieces
        channel.unsent_bytes += sum(len(piece) for piece in pieces if isinstance(piece, bytes))

    def step(self, event: object, now_ms: int) -> StubEffects:
        """Remembered."""
        if isinstance(event, Closed):
            channel = event.channel
            channel.closing = channel.closing or "gone"
            channel.pending.clear()
            self.gone.append(channel)
        else:
            assert event is EXPIRED, event
            self.expired_ms.append(now_ms)
            self.effects.deadline_ms = NEVER
        return self.effects

    def at_rest(self, now_ms: int) -> Iterator[Channel]:
        """Remembered; answers what `answers` names, one each."""
        self.looked.append(tuple(self.effects.moved))
        self.effects.moved.clear()
        for channel in self.answers:
            self.answer(channel)
            yield channel


class Loopback:
    """A running server and its clients."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.loop = Loop()
        self.faults: list[Exception] = []
        self.loop.failed = self.faults.append
        self.core, self.clock, self.pool = StubCore(), HandClock(), HandPool()
        self.server = Server(self.loop, cast(Any, self.core), self.clock, cast(Any, self.pool), limits)
        self.ports: dict[str, int] = {}
        self.clients: list[socket.socket] = []
        self.listen("PLAINTEXT")

    def listen(
        self,
        name: str,
        *,
        host: str = "127.0.0.1",
        control: bool = False,
        transport: Callable[[socket.socket], Transport] | None = None,
    ) -> None:
        """One more listener."""
        listening = bound_socket(host, 0, receive_buffer_bytes=-1)
        listening.listen()
        self.ports[name] = listening.getsockname()[1]
        self.server.accept_from(
            name,
            listening,
            control=control,
            transport=None if transport is None else lambda sock, session: transport(sock),
        )

    def turn(self, count: int = 1) -> None:
        """One turn of the loop: what is ready now, without waiting."""
        for _ in range(count):
            self.loop.turn(wait=False)

    def until(self, condition: Callable[[], bool]) -> None:
        """Turn until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "did not come true"
            self.turn()

    def connect(self, name: str = "PLAINTEXT", receive_buffer_bytes: int = 0) -> socket.socket:
        """A client; accepted, or refused, when this returns."""
        client = socket.socket()
        if receive_buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        client.connect(("127.0.0.1", self.ports[name]))
        client.setblocking(False)
        self.clients.append(client)
        before = len(self.core.channels)
        self.until(lambda: len(self.core.channels) > before or is_closed(client))
        return client

    def connection(self, number: int = -1) -> Connection:
        """The server's end of a client."""
        return self.server._connections[self.core.channels[number]]

    def send(self, client: socket.socket, *frames: bytes) -> None:
        """Frames in one go."""
        self.send_bytes(client, b"".join(map(framed, frames)))

    def send_bytes(self, client: socket.socket, data: bytes) -> None:
        """Bytes, all of them, the server turning as needed."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[client.send(rest) :]
            except BlockingIOError:
                self.turn()

    def read(self, client: socket.socket, size: int) -> bytes:
        """So many bytes of what the server sends."""
        got = bytearray()

        def enough() -> bool:
            try:
                data = client.recv(size - len(got))
            except BlockingIOError:
                return False
            assert data, f"closed after {bytes(got)!r}"
            got.extend(data)
            return len(got) == size

        self.until(enough)
        return bytes(got)

    def answers(self, client: socket.socket, count: int) -> list[bytes]:
        """So many frames."""
        return [self.read(client, struct.unpack(">i", self.read(client, 4))[0]) for _ in range(count)]

    def await_close(self, client: socket.socket) -> None:
        """Turn until the server has hung up on a client; what was sent before is thrown away."""
        self.until(lambda: is_closed(client))

    def close(self) -> None:
        """The end of everything."""
        self.server.close()
        for client in self.clients:
            client.close()
        self.loop.close()


def is_closed(client: socket.socket) -> bool:
    """Whether the other side has hung up; reads what is there."""
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@contextmanager
def running(limits: Limits = LIMITS) -> Iterator[Loopback]:
    """A server that is closed afterwards, and has to have raised nothing."""
    here = Loopback(limits)
    try:
        yield here
        assert here.faults == []
    finally:
        here.close()
