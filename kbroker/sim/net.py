"""The simulated network: connections that carry frames both ways, late, and now and then not at all.

Within a connection everything arrives in order or not at all, as TCP has it; between connections anything may overtake
anything. A connection that is cut loses what is under way, or delivers it later than its sender's next connection
delivers what it sends: each end learns of the cut in its own time. A host behind a `wall` reaches no other. A link
between two machines may be blocked one way: what is sent that way waits until it is not any more, as TCP sends again
and again, and who waits for it may be out of patience by then.

Made once a world. Clients connect (`Net.connect`), machines accept; frames are bytes that are not looked into here. A
machine that speaks to another is its client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.sim.world import World

CONNECT_TIMEOUT_MS = 10_000  # socket.connection.setup.timeout.ms of clients
LATEST_MS = 3_000  # what was under way when a connection was cut arrives at most this much later


class Host(Protocol):
    """A machine as the network knows it."""

    name: str

    def accept(self, wire: Wire) -> bool:
        """A client connects; false if this host does not listen."""
        ...

    def receive(self, wire: Wire, frame: bytes) -> None:
        """A whole frame has arrived."""
        ...

    def gone(self, wire: Wire) -> None:
        """The connection has ended."""
        ...


class Wire:
    """One connection. Of its two ends, each is open until it learns otherwise."""

    __slots__ = (
        "_answered_ms",
        "_client_open",
        "_held_answers",
        "_held_frames",
        "_net",
        "_on_answer",
        "_on_lost",
        "_sent_ms",
        "_server_open",
        "_waiting",
        "client",
        "host",
        "number",
    )

    def __init__(
        self,
        net: Net,
        number: int,
        client: str,
        host: Host,
        on_answer: Callable[[bytes], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._net = net
        self.number = number
        self.client = client
        self.host = host
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._client_open = True
        self._server_open = False
        self._waiting: deque[bytes] | None = deque()  # sent before the connection was there
        self._sent_ms = self._answered_ms = 0  # when the last frame each way arrives: none overtakes it
        self._held_frames: list[bytes | None] = []  # on the wrong side of a block; None: the end
        self._held_answers: list[bytes | None] = []

    def __repr__(self) -> str:
        return f"{self.client}#{self.number}"

    @property
    def open(self) -> bool:
        """Whether the client believes in it."""
        return self._client_open

    # ---- the client's end

    def send(self, frame: bytes) -> None:
        """Send a frame (without its size) to the machine."""
        assert self._client_open, self
        if self._waiting is not None:
            self._waiting.append(frame)
        else:
            self._carry_up(frame)

    def close(self) -> None:
        """The client hangs up: the machine learns of it behind what was sent before."""
        if not self._client_open:
            return
        self._client_open = False
        world, net = self._net.world, self._net
        delay_ms = max(net.delay(self) + world.now_ms, self._sent_ms) - world.now_ms
        world.after(delay_ms, self._deliver, None)

    # ---- the machine's end

    def send_answers(self, data: Callable[[], bytes | None]) -> None:
        """Send whole answers with their sizes to the client. data: called when the network takes them; None: it fails.

        A connection of which that fails ends.
        """
        net, world = self._net, self._net.world
        if self.client in net.deaf:
            net.deaf[self.client] -= 1
            if not net.deaf[self.client]:
                del net.deaf[self.client]
                self.cut("its answer is lost")
                return
        at_ms = self._answered_ms = max(world.now_ms + net.delay(self), self._answered_ms)
        if net.reads_late():
            world.after(at_ms - world.now_ms, self._arrive_late, data)
            return
        taken = data()
        if taken is None:
            self.cut("the disk failed under an answer")
        else:
            world.after(at_ms - world.now_ms, self._arrive, taken)

    def hang_up(self) -> None:
        """The machine closes: the client learns of it behind what was answered before."""
        self._server_open = False
        world = self._net.world
        at_ms = max(world.now_ms + self._net.delay(self), self._answered_ms)
        world.after(at_ms - world.now_ms, self._arrive, None)

    # ---- what becomes of it

    def cut(self, why: str) -> None:
        """The network loses it; what is under way is lost as well, or late."""
        rng, world = self._net.rng, self._net.world
        world.note(f"{self} is cut: {why}")
        for end in (self._end_server, lambda: self._end_client(why)):
            world.after(rng.choice((0, 0, rng.randrange(LATEST_MS))), end)

    def kill_server(self) -> None:
        """The machine's process is gone: nothing arrives there any more, the client is told or has to find out."""
        self._server_open = False
        self._waiting = None
        rng, world = self._net.rng, self._net.world
        world.after(rng.choice((self._net.delay(self), rng.randrange(LATEST_MS))), self._end_client, "reset")

    def unblocked(self) -> None:
        """A block is gone: what was held up arrives soon, and before anything that comes after it."""
        world, net = self._net.world, self._net
        if self._held_frames:
            world.after(net.delay(self), self._release_frames)
        if self._held_answers:
            world.after(net.delay(self), self._release_answers)

    def _release_frames(self) -> None:
        held, self._held_frames = self._held_frames, []
        for frame in held:
            self._deliver(frame)

    def _release_answers(self) -> None:
        held, self._held_answers = self._held_answers, []
        for data in held:
            self._arrive(data)

    def _connected(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        if not self.host.accept(self):
            self._net.world.after(self._net.delay(self), self._end_client, "refused")
            return
        self._server_open = True
        for frame in waiting:
            self._carry_up(frame)

    def _carry_up(self, frame: bytes) -> None:
        world = self._net.world
        at_ms = self._sent_ms = max(world.now_ms + self._net.delay(self), self._sent_ms)
        world.after(at_ms - world.now_ms, self._deliver, frame)

    def _deliver(self, frame: bytes | None) -> None:
        """frame: None if the client has hung up."""
        if self._held_frames or self._net.is_blocked(self.client, self.host.name):
            self._held_frames.append(frame)
        elif frame is None:
            self._end_server()
        elif self._server_open:
            self.host.receive(self, frame)

    def _arrive_late(self, data: Callable[[], bytes | None]) -> None:
        if not self._server_open:  # its process, and with it the open file, may be gone: nothing behind it comes either
            self._end_client("reset")
            return
        taken = data()
        if taken is None:
            self.cut("the disk failed under an answer")
        else:
            self._arrive(taken)

    def _arrive(self, data: bytes | None) -> None:
        """data: None if the machine has hung up."""
        if self._held_answers or self._net.is_blocked(self.host.name, self.client):
            self._held_answers.append(data)
        elif data is None:
            self._end_client("closed by the broker")
        elif self._client_open:
            self._on_answer(data)

    def _end_server(self) -> None:
        self._waiting = None
        if self._server_open:
            self._server_open = False
            self.host.gone(self)

    def _end_client(self, why: str) -> None:
        if self._client_open:
            self._client_open = False
            self._on_lost(why)


class Net:
    """All connections of a world. delay_ms: least and most of one way; spike: share of frames that take far longer."""

    def __init__(self, world: World, delay_ms: tuple[int, int] = (0, 3)) -> None:
        self.world = world
        self.rng = world.rng("net")
        self.delay_ms = delay_ms
        self.spike = 0.0
        self.slow_ms: dict[str, int] = {}  # by client: what every frame on its connections takes longer
        self.late_reads = 0.0  # share of answers whose file regions are read only when the peer takes them
        self.walled: set[str] = set()  # clients that reach no machine
        self.deaf: dict[str, int] = {}  # clients of whom an answer will be lost: the next is 1
        self.hosts: dict[str, Host] = {}  # machines by name, for those that speak to each other
        self.blocked: set[tuple[str, str]] = set()  # (from, to): nothing gets through this way
        self._wires: dict[Wire, None] = {}
        self._numbered = 0

    def connect(
        self, client: str, host: Host, on_answer: Callable[[bytes], None], on_lost: Callable[[str], None]
    ) -> Wire:
        """Begin a connection; frames may be sent at once. on_answer: gets whole answers. on_lost: why it ended."""
        self._numbered += 1
        wire = Wire(self, self._numbered, client, host, on_answer, on_lost)
        if client in self.walled or self.is_blocked(client, host.name) or self.is_blocked(host.name, client):
            self.world.after(CONNECT_TIMEOUT_MS, wire._end_client, "unreachable")
            return wire
        if len(self._wires) > 64:
            self._wires = {each: None for each in self._wires if each.open or each._server_open}
        self._wires[wire] = None
        self.world.after(self.delay(wire), wire._connected)
        return wire

    def wires(self) -> list[Wire]:
        """Connections that an end still believes in, oldest first."""
        return [wire for wire in self._wires if wire.open or wire._server_open]

    def wall(self, client: str) -> None:
        """Cut a client off, until `unwall`."""
        self.walled.add(client)
        for wire in self.wires():
            if wire.client == client:
                wire.cut("walled off")

    def unwall(self, client: str) -> None:
        """Let a client reach the others again."""
        self.walled.discard(client)

    def block(self, source: str, target: str) -> None:
        """Let nothing through from one machine to another, until `unblock`."""
        self.blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """What was sent this way meanwhile arrives, if the receiver still waits for it."""
        if (source, target) not in self.blocked:
            return
        self.blocked.discard((source, target))
        for wire in self._wires:
            if {wire.client, wire.host.name} == {source, target}:
                wire.unblocked()

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets through this way."""
        return bool(self.blocked) and (source, target) in self.blocked

    def delay(self, wire: Wire) -> int:
        """How long the next frame takes."""
        low, high = self.delay_ms
        rng = self.rng
        delay_ms = low + int(rng.random() * (high - low + 1))
        if self.spike and rng.random() < self.spike:
            delay_ms += int(rng.expovariate(1 / 300))
        if self.slow_ms:
            delay_ms += self.slow_ms.get(wire.client, 0)
        return delay_ms

    def reads_late(self) -> bool:
        """Whether the next answer is taken slowly."""
        return self.late_reads > 0 and self.rng.random() < self.late_reads
