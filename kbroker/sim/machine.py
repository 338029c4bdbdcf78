"""One simulated machine that runs the real broker: its disk, its clock, its process, started, killed and cut off.

Does for the core what `runtime/node.py` and `runtime/server.py` do on a real machine: composes the parts, hands
frames to channels, writes what they have to say, wakes the core when it asks for it, runs its jobs on the disk. The
disk outlives the process. Decides nothing; faults and checks do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.broker.facts import JobDone, Leave
from kbroker.broker.session import ANONYMOUS
from kbroker.config.limits import REQUESTS_IN_FLIGHT_PER_CONNECTION
from kbroker.core import AT_REST, EXPIRED, Closed, Core
from kbroker.log.directory import DirectoryRefusedError
from kbroker.ports import Region
from kbroker.sim.disk import PowerLoss, SimDisk
from kbroker.sim.peers import SimPeers
from kbroker.sim.world import LocalClock
from kbroker.timing import NEVER

if TYPE_CHECKING:
    from kbroker.broker.broker import Broker
    from kbroker.broker.jobs import Errand
    from kbroker.broker.session import Principal
    from kbroker.channel import Channel, Request
    from kbroker.core import Effects
    from kbroker.ports import Buffer
    from kbroker.sim.net import Net, Wire
    from kbroker.sim.store import SimSession
    from kbroker.sim.world import Event, World

Compose = Callable[["Machine"], "Broker"]
"""Builds the broker of a machine from what is on its disk. Raises DirectoryRefusedError, OSError."""


class Conn:
    """A connection as the process sees it."""

    __slots__ = ("backlog", "channel", "unsent", "wire")

    def __init__(self, wire: Wire, channel: Channel) -> None:
        self.wire = wire
        self.channel = channel
        self.backlog: deque[bytes] = deque()  # received while the channel had enough in flight
        self.unsent = 0  # answers that the network has not taken yet


class Machine:
    """A machine on the network.

    core: the broker while it runs, else None. gathers: whether what waits for partitions that move is looked at after
    everything that comes within the same millisecond, or at once. on_parked: told of each request whose answer did not
    leave at once. on_down: told when the process ends, however it does, while its state can still be looked at.
    """

    def __init__(self, world: World, net: Net, broker_id: int, compose: Compose) -> None:
        self.world = world
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self.clock = LocalClock(world)  # keeps running while the machine is down
        self.rng = world.rng(self.name)
        self.disk = SimDisk(self.rng.randrange(1 << 32), self.clock.wall_ms)
        self.core: Core | None = None
        self._broker: Broker  # of the process that runs, or ran last
        self.store: SimSession | None = None  # the metadata store as this broker sees it
        self.peers: SimPeers | None = None  # the other brokers as this one does
        self.boots = 0
        self.opened_at: dict[tuple[str, int], int] = {}  # where the logs ended when the process started
        self.moved = False  # the core or a job has run since the checks last looked
        self.gathers = world.rng(f"{self.name} gathers").random() < 0.5
        self.job_ms = (0, 10)  # least and most a job for the disk takes
        self.principals: Mapping[str, Principal] = {}  # who clients are, by name; others are User:ANONYMOUS
        self.host_of: Callable[[str], str] = str  # where a client is, by its name
        self.slow_answers = 0.0  # share of answers that the peer takes its time to read
        self.on_parked: Callable[[Request], None] = lambda _: None
        self.on_down: Callable[[Machine, bool], None] = lambda machine, power_loss: None
        self.on_up: Callable[[Machine], None] = lambda machine: None
        self._net = net
        net.hosts[self.name] = self
        self._compose = compose
        self._conns: dict[Channel, Conn] = {}
        self._by_wire: dict[Wire, Conn] = {}
        self._jobs = 0  # on the disk right now
        self._asked_to_stop = False
        self._leaving = False  # hands its leaders over, or has done so
        self._stopping = False
        self._is_to_look = False  # around, at what has moved
        self._power_loss = False  # whether the next crash is one of the whole machine
        self._wake: Event | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def broker(self) -> Broker:
        """The broker that runs."""
        assert self.core is not None, self
        return self._broker

    @property
    def up(self) -> bool:
        """Whether the broker runs."""
        return self.core is not None

    # ---- the process

    def start(self) -> bool:
        """Start the broker on what the disk holds; whether it came up."""
        assert self.core is None, self
        self.boots += 1
        self._asked_to_stop = self._leaving = self._stopping = False
        try:
            self._broker = self._compose(self)
        except PowerLoss:
            self.world.note(f"{self} dies while starting")
            self._settle_disk()
            return False
        except (DirectoryRefusedError, OSError) as error:
            self.world.note(f"{self} cannot start: {error}")
            self._power_loss = False  # of a crash that was planned before, and has not come
            self._settle_disk()
            return False
        core = self.core = Core(self._broker, self.world.now_ms)
        core.gathers, self._is_to_look = self.gathers, False
        self.opened_at = {where: log.log_end_offset for where, log in self.broker.logs.logs()}
        self.world.note(f"{self} is up")
        self.on_up(self)
        self._run(lambda: None)
        return self.up

    def kill(self, *, power_loss: bool = False) -> None:
        """End the process at once: kill -9, or a power cut that loses what was not synced."""
        self._power_loss = power_loss
        self._die()

    def kill_in_calls(self, calls: int, *, power_loss: bool = False) -> None:
        """End the process in the middle of what it is about to do, at its n-th change to the disk from now."""
        self._power_loss = power_loss
        self.disk.crash_at = self.disk.calls + calls

    def stop(self) -> None:
        """Ask for a clean stop, as SIGTERM does: leaders are handed over, and it ends once no job is on the disk."""
        if self.core is None or self._asked_to_stop:
            return
        self.world.note(f"{self} is asked to stop")
        self._asked_to_stop = True
        self.world.after(0, self._turns_of_this_process(), self._leave)  # never at once, as with `post`

    def _leave(self) -> None:
        self._leaving = True
        self._take_event(Leave())

    def _end(self, why: str) -> None:
        if self.core is not None and not self._stopping:
            self.world.note(f"{self} {why}")
            self._stopping = True
            self._maybe_stop()

    def _maybe_stop(self) -> None:
        if not self._stopping or self._jobs or self.core is None:
            return
        broker = self.broker
        try:
            broker.plane.close()
            broker.logs.close()
        except PowerLoss:
            self._die()
            return
        self._down("stops", power_loss=False)
        self.disk.restart(power_loss=False)

    def _die(self) -> None:
        if self.core is None:
            return
        power_loss = self._power_loss
        self._down("loses power" if power_loss else "is killed", power_loss=power_loss)
        self._settle_disk()

    def _settle_disk(self) -> None:
        """What the end of the process leaves."""
        power_loss, self._power_loss = self._power_loss, False
        self.disk.restart(power_loss=power_loss)
        self._jobs = 0

    def _down(self, how: str, *, power_loss: bool) -> None:
        self.world.note(f"{self} {how}")
        self.on_down(self, power_loss)
        self.core = None
        if self.store is not None:
            self.store.crash()
            self.store = None
        if self.peers is not None:
            self.peers.close()
            self.peers = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        conns, self._conns, self._by_wire = self._conns, {}, {}
        for conn in conns.values():
            conn.wire.kill_server()

    # ---- the network's side

    def accept(self, wire: Wire) -> bool:
        """A client connects."""
        if self.core is None or self._stopping or not self.core.effects.is_open:
            return False
        channel = self.core.open("PLAINTEXT", self.host_of(wire.client), 50_000 + wire.number)
        channel.session.principal = self.principals.get(wire.client, ANONYMOUS)
        self._by_wire[wire] = self._conns[channel] = Conn(wire, channel)
        return True

    def receive(self, wire: Wire, frame: bytes) -> None:
        """A frame has arrived."""
        conn = self._by_wire.get(wire)
        if conn is None or conn.channel.closing:
            return
        if conn.channel.full or conn.backlog:
            conn.backlog.append(frame)
            return
        self._run(self._receive, conn, frame)

    def _receive(self, conn: Conn, frame: bytes) -> None:
        core, channel = self.core, conn.channel
        assert core is not None
        pending = channel.pending
        last = pending[-1] if pending else None  # others may be over first
        core.receive(channel, memoryview(bytearray(frame)), self.world.now_ms)  # batches are stamped in place
        if pending and pending[-1] is not last and pending[-1].answer is None:
            self.on_parked(pending[-1])
        assert len(pending) <= REQUESTS_IN_FLIGHT_PER_CONNECTION, channel.session
        self._flush(conn)

    def gone(self, wire: Wire) -> None:
        """A connection has ended."""
        conn = self._by_wire.pop(wire, None)
        if conn is not None and self.core is not None:
            self._conns.pop(conn.channel, None)
            self._run(self.core.step, Closed(conn.channel), self.world.now_ms)

    # ---- the core's side

    def make_peers(self) -> SimPeers:
        """The lines to other brokers of the process that starts."""
        self.peers = SimPeers(self.name, self.world, self._net, self._take_event, self._turns_of_this_process())
        return self.peers

    def _take_event(self, event: object) -> None:
        """Within a turn of the loop."""
        assert self.core is not None
        self.core.step(event, self.world.now_ms)

    def post(self, event: object) -> None:
        """Hand an event to the broker, never at once: its cause is in the middle of a step."""
        self.world.after(0, self._turns_of_this_process(), self._take_event, event)

    def _turns_of_this_process(self) -> Callable[..., None]:
        """`_run`, for as long as the process lasts; nothing happens afterwards, and in the next one."""
        boot = self.boots

        def run(what: Callable[..., object], *arguments: object) -> None:
            if self.core is not None and self.boots == boot:
                self._run(what, *arguments)

        return run

    def _run(self, what: Callable[..., object], *arguments: object) -> None:
        """One turn of the loop: something for the core to do, then everything that follows."""
        self.moved = True
        try:
            what(*arguments)
            effects = self._follow()
            if effects.fatal:
                self._end(f"ends by itself: {effects.fatal}")
            elif self._leaving and effects.has_left:
                self._stopping = True
                self._maybe_stop()
        except PowerLoss:
            self._die()

    def _follow(self) -> Effects:
        core = self.core
        assert core is not None
        effects = core.effects
        for channel in effects.take_writes():
            conn = self._conns.get(channel)
            if conn is not None:
                self._flush(conn)
        if effects.moved and not self._is_to_look:
            self._is_to_look = True
            self.world.after(0, self._look_around, core)
        for job in effects.take_jobs():
            self._jobs += 1
            self.world.after(self._job_delay(), self._run_job, job, core)
        wake_ms = max(effects.wake_ms, self.world.now_ms)
        if wake_ms != NEVER and (self._wake is None or wake_ms < self._wake.at_ms):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self.world.after(wake_ms - self.world.now_ms, self._on_timer)
        return effects

    def _look_around(self, core: Core) -> None:
        if self.core is core:
            self._is_to_look = False
            self._run(core.step, AT_REST, self.world.now_ms)

    def _on_timer(self) -> None:
        self._wake = None
        core, now_ms = self.core, self.world.now_ms
        assert core is not None
        wake_ms = core.effects.wake_ms
        if wake_ms == NEVER:
            return
        if wake_ms > now_ms:  # what this was set for has been answered meanwhile
            self._wake = self.world.after(wake_ms - now_ms, self._on_timer)
        else:
            self._run(core.step, EXPIRED, now_ms)

    def _flush(self, conn: Conn) -> None:
        channel = conn.channel
        if channel.out:
            pieces = channel.out
            channel.written()
            conn.wire.send_answers(lambda: self._read(pieces))
            if not self._net.reads_late():
                channel.sent()
            else:
                conn.unsent += 1
                self.world.after(self.rng.randrange(200), self._sent, conn)
        if channel.closing and conn.wire in self._by_wire:
            self.world.note(f"{self} hangs up on {conn.wire}: {channel.closing}")
            del self._by_wire[conn.wire]
            self._conns.pop(channel, None)
            conn.wire.hang_up()
            assert self.core is not None
            self.core.step(Closed(channel), self.world.now_ms)
        elif conn.backlog and not channel.full:
            self._receive(conn, conn.backlog.popleft())

    def _sent(self, conn: Conn) -> None:
        conn.unsent -= 1
        if not conn.unsent and conn.channel in self._conns:
            conn.channel.sent()
            self._run(self._flush, conn)

    def _read(self, pieces: list[Buffer | Region]) -> bytes | None:
        """What goes to the network, read from the files now; None if the disk failed."""
        out = bytearray()
        try:
            for piece in pieces:
                if isinstance(piece, Region):
                    data = piece.read()
                    if len(data) != len(piece):
                        raise self.world.broken(f"{piece!r} on its way to a client has {len(data)} bytes left")
                    out += data
                else:
                    out += piece
        except OSError:
            return None
        return bytes(out)

    # ---- the disk's side

    def _job_delay(self) -> int:
        low, high = self.job_ms
        return self.rng.randint(low, high)

    def _run_job(self, job: Errand, core: Core) -> None:
        if self.core is not core:
            return
        self.moved = True
        error: OSError | None = None
        try:
            job.run()
        except OSError as caught:
            error = caught
        except PowerLoss:
            self._die()
            return
        self.world.after(self._job_delay(), self._job_done, job, error, core)

    def _job_done(self, job: Errand, error: OSError | None, core: Core) -> None:
        if self.core is not core:
            return
        self._jobs -= 1
        self._run(core.step, JobDone(job, error), self.world.now_ms)
        self._maybe_stop()
