"""Other brokers on a simulated network: the port `Peers` over the connections of `Net`.

Made for a machine at each of its boots; gone with the process. All that a connection decides is in `kbroker/peers/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.peers import BrokerConnections
from protocol.frames import SIZE_BYTES

if TYPE_CHECKING:
    from kbroker.peers import BrokerConnection, Link
    from kbroker.ports import PeerEvent
    from kbroker.sim.net import Net, Wire
    from kbroker.sim.world import Event, World


class SimPeers(BrokerConnections):
    """The connections of one simulated machine. name: the machine's, as the network knows it.

    run: does something that happened to one in a turn of the machine's loop; post: takes what became of requests.
    """

    def __init__(
        self,
        name: str,
        world: World,
        net: Net,
        post: Callable[[PeerEvent], None],
        run: Callable[[Callable[[], None]], None] = lambda what: what(),
    ) -> None:
        super().__init__(name, lambda: world.now_ms, post)
        self.world = world
        self.host_name = name
        self.net = net
        self.run = run
        self._wake: Event | None = None

    def dial(self, connection: BrokerConnection) -> Link:
        """A connection to the machine of that name."""
        return WireLink(self, connection)

    def soon(self, what: Callable[[], None]) -> None:
        """In the same millisecond, as an event of its own."""
        self.world.after(0, self._in_turn, what)

    def wake_at(self, deadline_ms: int | None) -> None:
        """Another event instead of the one before."""
        self._cancel()
        if deadline_ms is not None:
            self._wake = self.world.after(max(deadline_ms - self.world.now_ms, 0), self._in_turn, self._on_timer)

    def _on_timer(self) -> None:
        self._wake = None
        self.expire()

    def _in_turn(self, what: Callable[[], None]) -> None:
        if not self.is_closed:
            self.run(what)

    def happens(self, what: Callable[[], None]) -> None:
        """Something has happened to a connection: a turn of the loop, and what became of its requests."""

        def turn() -> None:
            what()
            self.settle()

        self._in_turn(turn)

    def settle(self) -> None:
        """As on sockets; here a timer is cheap, and a look in vain is an event of the world."""
        super().settle()
        self.rewind()

    def close(self) -> None:
        """Drop every connection."""
        super().close()
        self._cancel()

    def _cancel(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None


class WireLink:
    """The link of a connection. The network takes requests at once: one greets before it knows who listens."""

    def __init__(self, peers: SimPeers, connection: BrokerConnection) -> None:
        self._peers = peers
        self._connection = connection
        self._wire: Wire | None = None
        self._is_closed = False
        peers.soon(self._begin)

    def _begin(self) -> None:
        if self._is_closed:
            return
        host = self._peers.net.hosts.get(self._connection.endpoint.host)
        if host is None:
            self._lost("no such host")
            return
        self._wire = self._peers.net.connect(self._peers.host_name, host, self._heard, self._lost)
        self._connection.connected()

    def send(self, data: bytes) -> None:
        """Send a request; the network takes it without its size."""
        assert self._wire is not None, self._connection
        if self._wire.open:
            self._wire.send(data[SIZE_BYTES:])

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        if self._wire is not None:
            self._wire.close()

    def _heard(self, data: bytes) -> None:
        """Whole answers with their sizes, one behind the other."""
        connection, now_ms = self._connection, self._peers.now_ms
        if not self._is_closed:
            self._peers.happens(lambda: connection.received(connection.client.feed, memoryview(data), now_ms()))

    def _lost(self, why: str) -> None:
        if not self._is_closed:
            self._peers.happens(lambda: self._connection.lost(why, self._peers.now_ms()))
