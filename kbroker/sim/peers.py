"""Other brokers on a simulated network: the port `Peers` over the connections of `Net`.

Made for a machine at each of its boots; gone with the process. All that a line decides is in `kbroker/peers/`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.peers import Lines

if TYPE_CHECKING:
    from kbroker.peers import Line, Link
    from kbroker.ports import PeerEvent
    from kbroker.sim.net import Net, Wire
    from kbroker.sim.world import Event, World


class SimPeers(Lines):
    """The lines of one simulated machine. name: the machine's, as the network knows it.

    run: does something that happened to a line in a turn of the machine's loop; post: takes what became of requests.
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

    def dial(self, line: Line) -> Link:
        """A connection to the machine of that name."""
        return WireLink(self, line)

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
        """Something has happened to a line: a turn of the loop, and what became of its requests."""

        def turn() -> None:
            what()
            self.settle()

        self._in_turn(turn)

    def close(self) -> None:
        """Drop every line."""
        super().close()
        self._cancel()

    def _cancel(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None


class WireLink:
    """One connection of a line. The network takes frames at once: a line greets before it knows who listens."""

    def __init__(self, peers: SimPeers, line: Line) -> None:
        self._peers = peers
        self._line = line
        self._wire: Wire | None = None
        self._is_closed = False
        peers.soon(self._begin)

    def _begin(self) -> None:
        if self._is_closed:
            return
        host = self._peers.net.hosts.get(self._line.endpoint.host)
        if host is None:
            self._lost("no such host")
            return
        self._wire = self._peers.net.connect(self._peers.host_name, host, self._heard, self._lost)
        self._line.connected()

    def send(self, frame: bytes) -> None:
        """Send a frame."""
        assert self._wire is not None, self._line
        if self._wire.open:
            self._wire.send(frame)

    def close(self) -> None:
        """Hang up."""
        self._is_closed = True
        if self._wire is not None:
            self._wire.close()

    def _heard(self, data: bytes) -> None:
        """Whole answers with their sizes, one behind the other."""
        view = memoryview(data)
        while view and not self._is_closed:
            size = int.from_bytes(view[:4], "big")
            frame, view = view[4 : 4 + size], view[4 + size :]
            self._peers.happens(lambda frame=frame: self._line.received(frame, self._peers.now_ms()))  # type: ignore[misc]

    def _lost(self, why: str) -> None:
        if not self._is_closed:
            self._peers.happens(lambda: self._line.lost(why, self._peers.now_ms()))
