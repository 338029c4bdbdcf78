"""What goes wrong in a simulated world: a swarm of faults, chosen by the seed, and an operator who starts what is down.

Each world has its own mix: of the kinds below some are on, each at its own rate, so that some worlds die every second
and others run long enough to grow old. `heal` ends all of it; from then on everything must work again. Faults only do
to machines, disks, clocks and connections what the world outside could do to real ones.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.sim.hostile import Hostile
from kbroker.sim.store import SESSION_TIMEOUT_MS

if TYPE_CHECKING:
    from kbroker.sim.client import Client
    from kbroker.sim.machine import Machine
    from kbroker.sim.net import Net
    from kbroker.sim.world import World

ROUND_MS = 1_000
"""How often the operator looks whether a broker is down."""

HOSTILE_SHARE = 0.3
"""Of worlds, in which there are hostile clients."""

LEAST_MEAN_MS, MOST_MEAN_MS = 4_000, 120_000
"""Between two faults of one kind."""

DISK_CALLS = ("write", "sync", "read", "open", "rename", "sync_dir", "remove")
DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)


class Faults:
    """The faults of one world. kinds: those that are on."""

    def __init__(
        self,
        world: World,
        net: Net,
        machines: Sequence[Machine],
        clients: Sequence[str],
        kinds: Sequence[str] | None = None,
    ) -> None:
        """kinds: by name; None lets the seed choose."""
        self.world = world
        self.active = True
        self._net = net
        self._machines = machines
        self._clients = clients
        self._rng = world.rng("faults")
        self._doubtful: set[str] = set()  # machines that failed to sync: it is unknown what is on their disks
        self._dead: dict[str, str] = {}  # what answers nothing any more, until it is mended: directories, by machine
        self.on_mended: Callable[[Machine, str], None] = lambda machine, path: None
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill within": self._kill_within,
            "power": self._power,
            "stop": self._stop,
            "cut": self._cut,
            "wall": self._wall,
            "slow network": self._slow_network,
            "slow disk": self._slow_disk,
            "disk error": self._disk_error,
            "dead disk": self._dead_disk,
            "clock": self._clock,
            "session": self._session,
            "store cut": self._store_cut,
            "lost answers": self._lost_answers,
        }
        self._hostile_clients = 0
        if len(machines) > 1:
            self._kinds |= {"link": self._link, "zombie": self._zombie}
        if kinds is None:
            kinds = [kind for kind in self._kinds if self._rng.random() < 0.5]
            if world.rng("hostile").random() < HOSTILE_SHARE:
                kinds.append("hostile")
        self._kinds["hostile"] = self._hostile
        self.kinds = list(kinds)

    def start(self, clients: Iterable[Client]) -> None:
        """Let all machines and these clients live, and let things go wrong from now on."""
        for machine in self._machines:
            if not machine.up:
                machine.start()
        for client in clients:
            client.start(self.world.rng(f"start {client}").randrange(1_000))
        self.world.note(f"faults: {', '.join(self.kinds) or 'none'}")
        for kind in self.kinds:
            mean_ms = int(LEAST_MEAN_MS * (MOST_MEAN_MS / LEAST_MEAN_MS) ** self._rng.random())
            self._plan(kind, mean_ms)
        self.operate()

    def heal(self) -> None:
        """Nothing goes wrong any more; brokers that are down are started."""
        self.active = False
        self.world.note("everything heals")
        self._net.spike = self._net.late_reads = 0.0
        for client in sorted(self._net.walled):
            self._net.unwall(client)
        for source, target in sorted(self._net.blocked):
            self._net.unblock(source, target)
        for machine in self._machines:
            machine.disk.fault = machine.disk.crash_at = None
            machine.job_ms = (0, 10)
            if machine.store is not None:
                machine.store.heal()

    def operate(self) -> None:
        """Look after the machines, again and again: start what is down, end what cannot go on."""
        for machine in self._machines:
            if not machine.up:
                if machine.name not in self._dead:
                    machine.disk.fault = None
                elif not self.active or self._rng.random() < 0.1:
                    self._mend(machine)
                if self.active and "kill within" in self.kinds and self._rng.random() < 0.1:
                    machine.kill_in_calls(self._rng.randint(1, 30))
                machine.start()
            elif not machine.broker.logs.has_online_directory:
                self.world.note(f"{machine} has no disk left")
                machine.kill()
            elif not all(directory.online for directory in machine.broker.logs.directories):
                self._restart_mended(machine)
        self.world.after(ROUND_MS, self.operate)

    def _restart_mended(self, machine: Machine) -> None:
        """It goes on with the disks that are left; later the operator mends the others, and starts it again."""
        if self.active and self._rng.random() < 0.9:
            return
        self._mend(machine)
        if self._rng.random() < 0.5:
            machine.kill()
        else:
            machine.stop()

    def _mend(self, machine: Machine) -> None:
        """Its disks answer again; the directories on them come back with the next start."""
        self.world.note(f"{machine} has its disks mended")
        machine.disk.fault = None
        path = self._dead.pop(machine.name, "")
        if path:
            self.on_mended(machine, path)

    def _plan(self, kind: str, mean_ms: int) -> None:
        self.world.after(int(self._rng.expovariate(1 / mean_ms)), self._happen, kind, mean_ms)

    def _happen(self, kind: str, mean_ms: int) -> None:
        if self.active:
            self._kinds[kind]()
            self._plan(kind, mean_ms)

    def _machine(self) -> Machine | None:
        """One that is up."""
        machines = [machine for machine in self._machines if machine.up]
        return self._rng.choice(machines) if machines else None

    # ---- the kinds

    def _kill(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.kill()

    def _kill_within(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.kill_in_calls(self._rng.randint(1, 40))

    def _power(self) -> None:
        machine = self._machine()
        if machine is None or machine.name in self._doubtful:
            return
        if self._rng.random() < 0.5:
            machine.kill(power_loss=True)
        else:
            machine.kill_in_calls(self._rng.randint(1, 40), power_loss=True)

    def _stop(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.stop()

    def _cut(self) -> None:
        wires = self._net.wires()
        if wires:
            self._rng.choice(wires).cut("the network fails")

    def _wall(self) -> None:
        client = self._rng.choice(self._clients)
        if client not in self._net.walled:
            self._net.wall(client)
            self.world.after(self._rng.randrange(1_000, 30_000), self._net.unwall, client)

    def _hostile(self) -> None:
        """A hostile client sends what no ordinary client sends."""
        machine = self._machine()
        if machine is not None:
            self._hostile_clients += 1
            Hostile(self.world, self._net, f"hostile-{self._hostile_clients}").attack(machine)

    def _slow_network(self) -> None:
        net = self._net
        net.spike, net.late_reads = self._rng.choice((0.02, 0.2)), self._rng.choice((0.0, 0.3))

        def over() -> None:
            net.spike = net.late_reads = 0.0

        self.world.after(self._rng.randrange(1_000, 20_000), over)

    def _slow_disk(self) -> None:
        machine = self._machine()
        if machine is not None:
            machine.job_ms = (0, self._rng.choice((100, 3_000)))
            self.world.after(self._rng.randrange(1_000, 20_000), setattr, machine, "job_ms", (0, 10))

    def _disk_error(self) -> None:
        machine = self._machine()
        if machine is None:
            return
        wanted, code = self._rng.choice(DISK_CALLS), self._rng.choice(DISK_ERRORS)
        if wanted in ("read", "sync", "sync_dir"):
            code = errno.EIO
        left = self._rng.choice((1, 1, 3))

        def fault(call: str, path: str) -> OSError | None:
            nonlocal left
            if call != wanted or left == 0:
                return None
            left -= 1
            self.world.note(f"{machine}: {call} {path}: {errno.errorcode[code]}")
            if call == "sync":
                self._doubtful.add(machine.name)
                machine.disk.crash_at = None
            return OSError(code, errno.errorcode[code], path)

        machine.disk.fault = fault

    def _dead_disk(self) -> None:
        """Nothing under one of the log directories can be read or written, until it is mended."""
        machine = self._machine()
        if machine is None:
            return
        gone = self._rng.choice([directory.path for directory in machine.broker.logs.directories])
        self.world.note(f"{machine}: the disk under {gone} dies")
        self._dead[machine.name] = gone
        self._doubtful.add(machine.name)
        machine.disk.crash_at = None

        def fault(call: str, path: str) -> OSError | None:
            lies_there = path == gone or path.startswith(f"{gone}/")
            return OSError(errno.EIO, "EIO", path) if lies_there else None

        machine.disk.fault = fault

    def _clock(self) -> None:
        machine = self._machine()
        if machine is not None:
            by_ms = self._rng.choice((-1, 1)) * self._rng.choice((50, 5_000, 3_600_000))
            self.world.note(f"{machine}: the wall clock jumps by {by_ms} ms")
            machine.clock.jump_wall(by_ms)

    def _session(self) -> None:
        """The metadata store gives a broker up: who it was, and that it was controller, is over."""
        machine = self._machine()
        if machine is not None and machine.store is not None:
            self.world.note(f"{machine}: its session with the store expires")
            machine.store.expire()

    def _store_cut(self) -> None:
        """A broker does not reach the metadata store: for less than its session's timeout, or for longer."""
        machine = self._machine()
        if machine is not None and machine.store is not None:
            self.world.note(f"{machine} is cut off from the store")
            machine.store.cut()
            self.world.after(self._rng.randrange(1_000, 40_000), machine.store.heal)

    def _lost_answers(self) -> None:
        """The connection to the metadata store breaks: it is unknown what of the work under way was done."""
        machine = self._machine()
        if machine is not None and machine.store is not None:
            self.world.note(f"{machine} loses its connection with the store")
            machine.store.lose_connection(self._rng.randrange(4))

    def _link(self) -> None:
        """Two machines do not hear each other, or only one of them the other."""
        one, other = self._rng.sample(self._machines, 2)
        ways = [(one.name, other.name)]
        if self._rng.random() < 0.5:
            ways.append((other.name, one.name))
        lasts_ms = self._rng.randrange(1_000, 60_000)
        for source, target in ways:
            self.world.note(f"nothing gets from {source} to {target}")
            self._net.block(source, target)
            self.world.after(lasts_ms, self._net.unblock, source, target)

    def _zombie(self) -> None:
        """The controller does not reach the metadata store for so long that another is elected, and comes back."""
        for machine in self._machines:
            if machine.up and machine.store is not None and machine.broker.store_plane.controller.is_active:
                self.world.note(f"{machine} is controller, and cut off from the store")
                machine.store.cut()
                self.world.after(SESSION_TIMEOUT_MS + self._rng.randrange(20_000), machine.store.heal)
