"""Lines to brokers that a test plays itself: over sockets on loopback, and over a simulated network.

A `Bench` has the port under test (`peers`), what it posted (`events`) and brokers made by `broker(...)`. A played
broker greets as real ones do and keeps what it is asked in `asked`; the test answers. Time passes by `advance` alone.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from kbroker.broker.session import Principal, Session
from kbroker.config import BrokerLayers, Given, resolve_broker, resolve_listeners
from kbroker.peers import PLAINTEXT, BrokerConnections
from kbroker.ports import Endpoint, PeerEvent
from kbroker.runtime.loop import Loop, Timer
from kbroker.runtime.peers import SocketPeers
from kbroker.runtime.tls import Tls
from kbroker.runtime.transport import PlaintextTransport, WantWriteError
from kbroker.sim.net import Net, Wire
from kbroker.sim.peers import SimPeers
from kbroker.sim.world import World
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.frames import FrameDecoder
from protocol.headers import encode_response_header, parse_request_header, request_header_version, skip_tags
from protocol.message import Message
from protocol.messages.handshake import ApiVersion, ApiVersionsResponse
from protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    MetadataResponse,
    MetadataResponseBroker,
)
from tests.certificates import Authority
from tests.runtime.loopback import HandClock
from tests.runtime.veiled_transport import VeiledTransport

CLUSTER = "c29tZS1jbHVzdGVyLWlkIQ"
SERVED = {3: (0, 12), 4: (0, 7), 18: (0, 3)}
API_VERSIONS, METADATA, DESCRIBE_CLUSTER = 18, 3, 60
CONTROLLERS = 2  # what DescribeCluster describes
SSL = 1  # the security protocol
PATIENCE_S = 10.0


class Asked:
    """A request that a played broker has got, and may answer."""

    def __init__(self, broker: PlayedBroker, connection: Any, frame: bytes) -> None:
        api, self.version, self.correlation_id, self.client_id, start = parse_request_header(frame)
        self.kind = BY_KEY[api].request
        if request_header_version(self.kind, self.version) == 2:
            start = skip_tags(frame, start)
        self.request: Any = self.kind.decode(frame, self.version, start)
        self.connection = connection
        self._broker = broker

    def answer(self, response: Message, correlation_id: int | None = None) -> None:
        """Answer it, perhaps as if it had another number."""
        number = self.correlation_id if correlation_id is None else correlation_id
        head = encode_response_header(self.kind, self.version, number)
        self.answer_bytes(head + response.encode(self.version))

    def answer_bytes(self, frame: bytes) -> None:
        """Send any frame as an answer."""
        self._broker.say(self.connection, len(frame).to_bytes(4, "big") + frame)

    def hang_up(self) -> None:
        """Close the connection it came on."""
        self._broker.hang_up(self.connection)


class PlayedBroker:
    """A broker that knows itself as `id`, at `address`; `others` are the brokers it tells of."""

    def __init__(self, broker_id: int) -> None:
        self.id = broker_id
        self.cluster_id: str | None = CLUSTER
        self.address = Endpoint("PLAINTEXT", 0, "", 0)
        self.brokers: list[tuple[int, Endpoint]] = []  # as its Metadata has it
        self.served = dict(SERVED)
        self.refuses_handshake = False
        self.is_mute = False  # hears, and says nothing
        self.greetings = 0
        self.asked: list[Asked] = []
        self.open: list[Any] = []  # connections
        self.accepted = 0
        self.hang_up: Callable[[Any], None] = lambda connection: None
        self.say: Callable[[Any, bytes], None] = lambda connection, data: None

    def accepts(self, connection: Any) -> None:
        """Somebody has connected."""
        self.accepted += 1
        self.open.append(connection)

    def ended(self, connection: Any) -> None:
        """A connection has ended."""
        if connection in self.open:
            self.open.remove(connection)

    def hears(self, connection: Any, frame: bytes) -> None:
        """A frame has come."""
        asked = Asked(self, connection, frame)
        if self.is_mute:
            return
        if asked.kind.api == API_VERSIONS and self.refuses_handshake:
            asked.version = 0
            asked.answer(ApiVersionsResponse(error_code=35, api_keys=[]))
        elif asked.kind.api == API_VERSIONS:
            keys = [
                ApiVersion(api_key=key, min_version=first, max_version=last)
                for key, (first, last) in self.served.items()
            ]
            asked.answer(ApiVersionsResponse(error_code=0, api_keys=keys))
        elif asked.kind.api == METADATA and not self._serves(asked):
            self.hang_up(connection)
        elif asked.kind.api == METADATA:
            self.greetings += 1
            brokers = [MetadataResponseBroker(node_id=id_, host=at.host, port=at.port) for id_, at in self.brokers]
            asked.answer(MetadataResponse(brokers=brokers, cluster_id=self.cluster_id, controller_id=-1, topics=[]))
        elif asked.kind.api == DESCRIBE_CLUSTER:
            self._describe(asked)
        else:
            self.asked.append(asked)

    def _describe(self, asked: Asked) -> None:
        """As a controller of a quorum."""
        self.greetings += 1
        nodes = [DescribeClusterBroker(broker_id=id_, host=at.host, port=at.port) for id_, at in self.brokers]
        code = 0 if asked.request.endpoint_type == CONTROLLERS else ErrorCode.MISMATCHED_ENDPOINT_TYPE
        asked.answer(
            DescribeClusterResponse(
                error_code=code, endpoint_type=CONTROLLERS, cluster_id=self.cluster_id or "", brokers=nodes
            )
        )

    def be_controller(self) -> None:
        """It is a controller of a quorum, which serves no Metadata."""
        del self.served[METADATA]
        self.served[DESCRIBE_CLUSTER] = (0, 2)

    def _serves(self, asked: Asked) -> bool:
        first, last = self.served[asked.kind.api or 0]
        return first <= asked.version <= last


class Bench:
    """The port, and what it said."""

    peers: BrokerConnections

    def __init__(self) -> None:
        self.events: list[PeerEvent] = []

    def broker(self, broker_id: int = 2, *, listens: bool = True) -> PlayedBroker:
        """A broker to speak to, at an address of its own."""
        raise NotImplementedError

    def settle(self) -> None:
        """Let happen what happens without time passing."""
        raise NotImplementedError

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        raise NotImplementedError

    def until(self, condition: Callable[[], object]) -> None:
        """Let things happen until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"did not come true; events: {self.events}"
            self.settle()

    def close(self) -> None:
        """Give everything back."""
        self.peers.close()


class PoolAtOnce:
    """A disk pool that does its jobs where they are given, and tells of them in the loop's next turn."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def submit(self, job: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        """Do it."""
        failure: BaseException | None = None
        try:
            job()
        except OSError as error:
            failure = error
        self._loop.call_soon(partial(done, failure))


class HandTimer(Timer):
    """Fires when the test lets its clock's time pass."""

    def set(self, delay_s: float) -> None:
        """By the loop's hand clock."""
        loop = cast(HandLoop, self._loop)
        self.due_s = loop.clock.ms / 1000 + delay_s

    def cancel(self) -> None:
        """Do not fire."""
        self.due_s = None


class HandLoop(Loop):
    """A loop whose timers go by a clock that tests move."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock = clock
        self.hand_timers: list[HandTimer] = []

    def timer(self, callback: Callable[[], object]) -> Timer:
        """One that goes by the clock."""
        self.hand_timers.append(HandTimer(self, callback))
        return self.hand_timers[-1]

    def fire_due(self) -> None:
        """Call who is due."""
        for timer in self.hand_timers:
            if timer.due_s is not None and timer.due_s * 1000 <= self.clock.ms + 0.5:
                timer.fire()


class SocketConnection:
    """The played broker's end of a connection."""

    def __init__(self, bench: SocketBench, broker: PlayedBroker, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = bench.accepted(sock)
        self._broker = broker
        self._bench = bench
        self._decoder = FrameDecoder(1 << 30)
        self._view = memoryview(bytearray(1 << 16))
        bench.loop.add_reader(self.socket.fileno(), self.on_readable)

    def on_readable(self) -> None:
        """Hear frames, or the end."""
        if self.socket.fileno() < 0:
            return
        try:
            size = self.socket.recv_into(self._view)
        except BlockingIOError as error:
            if isinstance(error, WantWriteError):
                self._bench.loop.call_soon(self.on_readable)
            return
        except ConnectionError:
            size = 0
        if not size:
            self.close()
            return
        for frame in [bytes(each) for each in self._decoder.feed(memoryview(bytes(self._view[:size])))]:
            self._broker.hears(self, frame)
        if self.socket.fileno() >= 0 and self.socket.has_bytes_buffered():
            self._bench.loop.call_soon(self.on_readable)

    def close(self) -> None:
        """Hang up."""
        if self.socket.fileno() >= 0:
            self._bench.loop.remove_reader(self.socket.fileno())
            self.socket.close()
            self._broker.ended(self)


class SocketBench(Bench):
    """Sockets on loopback, on one loop. protocol, accepted: of the listeners, and what a transport is made by there."""

    protocol = PLAINTEXT
    accepted: Callable[[socket.socket], Any] = staticmethod(PlaintextTransport.over)

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.loop = HandLoop(self.clock)
        self.faults: list[Exception] = []
        self.loop.failed = self.faults.append
        self._listening: list[socket.socket] = []
        self._connections: list[SocketConnection] = []
        pool = cast(Any, PoolAtOnce(self.loop))
        self.peers = SocketPeers("broker-1", self.loop, self.clock, pool, self.events.append, 1 << 24)

    def broker(self, broker_id: int = 2, *, listens: bool = True) -> PlayedBroker:
        """On a free port."""
        broker = PlayedBroker(broker_id)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        broker.address = Endpoint("INSIDE", self.protocol, "127.0.0.1", listening.getsockname()[1])
        broker.hang_up = lambda connection: connection.close()
        broker.say = self._say
        if listens:
            self.loop.add_reader(listening.fileno(), partial(self._accept, broker, listening))
            self._listening.append(listening)
        else:
            listening.close()
        return broker

    def _accept(self, broker: PlayedBroker, listening: socket.socket) -> None:
        connection = SocketConnection(self, broker, listening.accept()[0])
        self._connections.append(connection)
        broker.accepts(connection)

    def _say(self, connection: SocketConnection, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[connection.socket.send(rest) :]
            except BlockingIOError:
                self.loop.turn(wait=False)

    def settle(self) -> None:
        """Some turns of the loop."""
        for _ in range(20):
            self.loop.turn(wait=False)
        assert self.faults == []

    def advance(self, by_ms: int) -> None:
        """Move the clock, and let what is due happen."""
        self.clock.ms += by_ms
        self.loop.fire_due()
        self.settle()

    def close(self) -> None:
        """Close the sockets and the loop."""
        super().close()
        for connection in self._connections:
            connection.close()
        for listening in self._listening:
            self.loop.remove_reader(listening.fileno())
            listening.close()
        self.loop.close()


class VeiledBench(SocketBench):
    """Over a transport that has the troubles of TLS."""

    protocol = PLAINTEXT + 1
    accepted = VeiledTransport

    def __init__(self) -> None:
        super().__init__()
        self.peers.transports[self.protocol] = lambda sock, host: VeiledTransport(sock, is_client=True)


class TlsBench(SocketBench):
    """Over TLS. A played broker has a certificate, and so have the peers: each takes the other's."""

    protocol = SSL

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        given = Authority(Path(self._folder.name)).settings(ssl_client_auth="required")
        static = {key.replace("_", "."): Given(text, "the test") for key, text in given.items()}
        layers = BrokerLayers(static=static)
        self.tls = Tls(layers, resolve_listeners(resolve_broker(layers)), in_cluster=True)
        self.peers.transports[SSL] = self.tls.connect
        self.principals: list[Principal] = []

    def accepted(self, sock: socket.socket) -> Any:  # type: ignore[override]
        """A broker's end of TLS."""
        session = Session("SSL", "127.0.0.1", 0)
        transport = self.tls.accept("SSL", sock, session)
        shaken = transport._shaken

        def identified(made: ssl.SSLObject) -> None:
            shaken(made)
            self.principals.append(session.principal)

        transport._shaken = identified
        return transport

    def close(self) -> None:
        """The certificates, too."""
        super().close()
        self._folder.cleanup()


class SimHost:
    """A played broker on the simulated network."""

    def __init__(self, broker: PlayedBroker, name: str, *, listens: bool) -> None:
        self.name = name
        self._broker = broker
        self._listens = listens

    def accept(self, wire: Wire) -> bool:
        """Somebody connects."""
        if self._listens:
            self._broker.accepts(wire)
        return self._listens

    def receive(self, wire: Wire, frame: bytes) -> None:
        """A frame has come."""
        self._broker.hears(wire, frame)

    def gone(self, wire: Wire) -> None:
        """The other end has gone."""
        self._broker.ended(wire)


class SimBench(Bench):
    """A simulated network that takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("peers")
        self.net = Net(self.world, (0, 0))
        self.peers = SimPeers("broker-1", self.world, self.net, self.events.append)

    def broker(self, broker_id: int = 2, *, listens: bool = True) -> PlayedBroker:
        """A host of its own."""
        broker = PlayedBroker(broker_id)
        name = f"host-{len(self.net.hosts)}"
        self.net.hosts[name] = SimHost(broker, name, listens=listens)
        broker.address = Endpoint("PLAINTEXT", 0, name, 9092)
        broker.say = lambda wire, data: wire.send_answers(lambda: data)

        def hang_up(wire: Wire) -> None:
            broker.ended(wire)
            wire.hang_up()

        broker.hang_up = hang_up
        return broker

    def settle(self) -> None:
        """Everything that happens in this millisecond."""
        self.world.run_until(self.world.now_ms)

    def advance(self, by_ms: int) -> None:
        """Let the world go on."""
        self.world.run_until(self.world.now_ms + by_ms)


BENCHES: dict[str, Callable[[], Bench]] = {
    "sockets": SocketBench,
    "veiled": VeiledBench,
    "TLS": TlsBench,
    "simulated": SimBench,
}
