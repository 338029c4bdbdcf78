"""Nodes that follow a simulated quorum and live in its cluster, and nothing else: of a broker, those two parts alone.

A `LoneMember` is driven as a core is, on a simulated network or on a real one. `ObserverWorld` lets some of them live
with a model of a quorum and its faults, and judges:

- what a member was told up to an offset is what the quorum committed up to it: nothing left out, twice, or in another
  order, through snapshots, cuts, restarts and power cuts;
- its log and snapshots are the quorum's, byte for byte, below its high watermark;
- after everything has healed, each has all, is registered and unfenced.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from kbroker.broker.facts import JobDone
from kbroker.broker.jobs import Errand
from kbroker.broker.life import Life
from kbroker.broker.observer import Observer
from kbroker.config import BrokerLayers, Given
from kbroker.config.quorum import quorum_settings
from kbroker.log.formatting import format_directories, previous_broker_epoch, take_formatted
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.metadata.requester import Requester
from kbroker.metadata.store import Endpoint
from kbroker.quorum.facts import Committed, Registered
from kbroker.quorum.life import Identity
from kbroker.quorum.metadata_log import log_config, open_metadata_log
from kbroker.quorum.metadata_version import supported_features
from kbroker.quorum.observer import QuorumObserver
from kbroker.sim.controllers import ClusterState, Controllers
from kbroker.sim.disk import PowerLoss, SimDisk
from kbroker.sim.net import Net
from kbroker.sim.peers import SimPeers
from kbroker.sim.quorum import PORT
from kbroker.sim.quorum_faults import QUORUM_FAULTS, QuorumFaults
from kbroker.sim.world import LocalClock, World
from kbroker.timing import NEVER, Scheduler
from protocol.messages.metadata_records import ConfigRecord, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.jobs import Job, Owner
    from kbroker.ports import Clock, Disk, Peers, Random
    from kbroker.sim.world import Event
    from protocol.message import Message

DIRECTORY = "/data"
GAVE_UP = "could not be registered"
"""Of the end of a member that was not let in for initial.broker.registration.timeout.ms: its former life lived on for
the controllers, of which each new leader waits for a whole session."""


class LoneMember:
    """The parts of one life. published: what it was told, folded; told: the facts, in order, for who looks."""

    def __init__(
        self,
        node_id: int,
        settings: Mapping[str, str],
        disk: Disk,
        clock: Clock,
        random: Random,
        make_peers: Callable[[], Peers],
        *,
        index_bytes: int = 4096,
    ) -> None:
        """Raises: OSError, DirectoryRefusedError, CorruptFileError."""
        layers = BrokerLayers(static={key: Given(text, "a test") for key, text in settings.items()})
        configs = Configs(layers)
        quorum_config = quorum_settings(configs.broker)
        assert quorum_config is not None, settings
        path = quorum_config.metadata_log_dir
        now_ms = clock.now_ms()
        formatted = take_formatted(disk, random, [path], node_id, path)
        previous = previous_broker_epoch(disk, [path])
        self.clock = clock
        self.facts: deque[object] = deque()
        self.told: list[object] = []
        self.state = ClusterState()
        self.published = -1  # up to this offset
        self.keeps_facts = True
        self._replacing: ClusterState | None = None  # by a snapshot that is not whole yet
        self.scheduler = Scheduler(now_ms)
        self._errands: list[Errand] = []
        metadata_log = open_metadata_log(
            disk, path, log_config(configs.broker)._replace(segment_index_bytes=index_bytes), random, clock.wall_ms()
        )
        self.quorum = QuorumObserver(
            quorum_config, formatted.cluster_id, formatted.directory_ids[path], metadata_log, random
        )
        requester = self.requester = Requester(node_id, MetadataCache(), configs, make_peers, clock, "PLAINTEXT")
        requester.cluster_id = formatted.cluster_id
        tell = self.facts.append
        self.observer = Observer(
            self.quorum, quorum_config, requester, configs, clock, self.scheduler, self._give, tell
        )
        identity = Identity(
            node_id,
            formatted.cluster_id,
            random.token(16),
            None,
            supported_features(),
            tuple(formatted.directory_ids.values()),
            previous,
        )
        self.life = Life(identity, self.observer, requester, configs, self.scheduler, tell)
        self._handlers: dict[type, list[Callable[[object, int], None]]] = {}
        for part in (requester, self.observer, self.life):
            for kind, handler in part.handlers.items():
                self._handlers.setdefault(kind, []).append(handler)
        self._handlers[Committed] = [self._committed]
        self._handlers[Registered] = [self._is_ready]

    # -- driven as a core

    def start(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Begin."""
        now_ms = self.clock.now_ms()
        self.observer.start(now_ms)
        self.life.start(endpoints, now_ms)
        self._drain(now_ms)

    def step(self, event: object | None, now_ms: int) -> None:
        """Something has happened; None: time has moved on."""
        self.scheduler.ring(now_ms)
        if isinstance(event, JobDone):
            event.errand.owner.finished(event.errand.job, event.error, now_ms)
        elif event is not None:
            self.facts.append(event)
        else:
            if self.scheduler.is_slicing:
                self.scheduler.run_slice(self.clock.now_ms)
            self.scheduler.ring_wanted(now_ms)
        self._drain(now_ms)

    def _drain(self, now_ms: int) -> None:
        while self.facts:
            fact = self.facts.popleft()
            if self.keeps_facts:
                self.told.append(fact)
            for handler in self._handlers.get(fact.__class__, ()):
                handler(fact, now_ms)

    @property
    def wake_ms(self) -> int:
        """When to call `step` next."""
        return 0 if self.scheduler.has_work else self.scheduler.wheel.next_ms

    def _give(self, job: Job, owner: Owner) -> None:
        self._errands.append(Errand(job, owner))

    def take_jobs(self) -> list[Errand]:
        """To be run, and to come back as `JobDone`."""
        errands, self._errands = self._errands, []
        return errands

    @property
    def fatal(self) -> str:
        """Why it cannot go on."""
        return self.observer.fatal or self.life.fatal

    # -- what it is told

    def _committed(self, fact: object, now_ms: int) -> None:
        committed = cast("Committed", fact)
        if committed.is_snapshot and committed.is_first:
            self._replacing = ClusterState()
        state = self._replacing if committed.is_snapshot else self.state
        assert state is not None, committed
        for record in committed.records:
            state.apply(record)
        if committed.is_snapshot and not committed.is_last:
            return
        if self._replacing is not None:
            self.state, self._replacing = self._replacing, None
        self.published = committed.offset
        self.life.published(committed.offset)
        self._is_ready(fact, now_ms)
        if self.observer.wants_snapshot:
            values = [encode_record(record, version) for record, version in self.state.records()]
            self.observer.take_snapshot(values, committed)

    def _is_ready(self, fact: object, now_ms: int) -> None:
        """Its own registration is among what it was told."""
        if 0 <= self.life.broker_epoch <= self.published:
            self.life.ready_to_serve(now_ms)


class SimMember:
    """A lone member on a simulated machine."""

    def __init__(self, world: ObserverWorld, node_id: int, settings: Mapping[str, str]) -> None:
        self.world = world.world
        self.node_id = node_id
        self.name = f"broker-{node_id}"
        self.clock = LocalClock(self.world)
        self.rng = self.world.rng(self.name)
        self.disk = SimDisk(self.rng.randrange(1 << 32), self.clock.wall_ms)
        self.member: LoneMember | None = None
        self.boots = 0
        self.end = ""  # why it ended by itself, where no other start would help
        self._owner = world
        self._settings = settings
        self._peers: SimPeers | None = None
        self._wake: Event | None = None
        self._power_loss = False

    def __repr__(self) -> str:
        return self.name

    # -- as `Random`

    def below(self, limit: int) -> int:
        """See ports.Random."""
        return self.rng.randrange(limit)

    def token(self, size: int) -> bytes:
        """See ports.Random."""
        return self.rng.randbytes(size)

    # -- the process

    def format(self, cluster_id: str) -> None:
        """As the storage tool does."""
        format_directories(self.disk, self, [DIRECTORY], cluster_id, self.node_id, ignore_formatted=True)

    def start(self) -> bool:
        """Start on what the disk holds; whether it came up."""
        assert self.member is None, self
        self.boots += 1
        try:
            self.member = LoneMember(self.node_id, self._settings, self.disk, self.clock, self, self._make_peers)
        except PowerLoss:
            self._settle(power_loss=self._power_loss)
            return False
        self.member.keeps_facts = False
        self.world.note(f"{self} is up, its metadata log goes to {self.member.quorum.metadata_log.end_offset}")
        endpoints = (Endpoint("PLAINTEXT", 0, self.name, 9092),)
        self._run(lambda: self._started(endpoints))
        return self.member is not None

    def _started(self, endpoints: tuple[Endpoint, ...]) -> None:
        assert self.member is not None
        self.member.start(endpoints)

    def _make_peers(self) -> SimPeers:
        boot = self.boots

        def run(what: Callable[[], None]) -> None:
            if self.member is not None and self.boots == boot:
                self._run(what)

        def post(event: object) -> None:
            assert self.member is not None
            self.member.step(event, self.world.now_ms)

        self._peers = SimPeers(self.name, self.world, self._owner.net, post, run)
        return self._peers

    def _run(self, what: Callable[[], None]) -> None:
        member = self.member
        assert member is not None
        try:
            what()
            for errand in member.take_jobs():
                self.world.after(self.rng.randint(0, 10), self._job, errand, member)
        except PowerLoss:
            self.kill(power_loss=self._power_loss)
            return
        self._owner.check_committed(self)
        if member.fatal:
            self.world.note(f"{self} ends by itself: {member.fatal}")
            self.end = "" if GAVE_UP in member.fatal else member.fatal
            self.kill()
            if not self.end:
                self._owner.start_later(self)
            return
        wake_ms = max(member.wake_ms, self.world.now_ms)
        if wake_ms != NEVER and (self._wake is None or wake_ms < self._wake.at_ms):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self.world.after(wake_ms - self.world.now_ms, self._on_timer, member)

    def _on_timer(self, member: LoneMember) -> None:
        self._wake = None
        if self.member is member:
            self._run(lambda: member.step(None, self.world.now_ms))

    def _job(self, errand: Errand, member: LoneMember) -> None:
        if self.member is not member:
            return
        error: OSError | None = None
        try:
            errand.run()
        except OSError as caught:
            error = caught
        except PowerLoss:
            self.kill(power_loss=self._power_loss)
            return
        self.world.after(self.rng.randint(0, 5), self._job_done, JobDone(errand, error), member)

    def _job_done(self, done: JobDone, member: LoneMember) -> None:
        if self.member is member:
            self._run(lambda: member.step(done, self.world.now_ms))

    def kill_in_calls(self, calls: int, *, power_loss: bool) -> None:
        """End it in the middle of what it is about to do, at its n-th change to the disk from now."""
        self._power_loss = power_loss
        self.disk.crash_at = self.disk.calls + calls

    def kill(self, *, power_loss: bool = False) -> None:
        """End the process at once."""
        if self.member is None:
            return
        self.world.note(f"{self} {'loses power' if power_loss else 'is killed'}")
        self.member = None
        if self._peers is not None:
            self._peers.close()
            self._peers = None
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        self._settle(power_loss=power_loss)

    def _settle(self, *, power_loss: bool) -> None:
        self._power_loss = False
        self.disk.restart(power_loss=power_loss)


FAULTS = ("kills", "power", "lost answers", "cuts", "slow")
"""Of members and the network, beside those of the quorum (`quorum_faults.py`)."""


class ObserverWorld:
    """Some members and a quorum. kinds: of faults; None lets the seed choose."""

    def __init__(
        self,
        seed: int,
        kept_lines: int | None = 400,
        kinds: tuple[str, ...] | None = None,
        *,
        machines: int | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """machines: how many members; None lets the seed choose. settings: of theirs, instead of those it draws."""
        self.world = World(seed, kept_lines)
        rng = self.rng = self.world.rng("observers")
        self.net = Net(self.world, (0, rng.choice((0, 3, 40))))
        if kinds is None:
            kinds = tuple(kind for kind in (*FAULTS, *QUORUM_FAULTS) if rng.random() < 0.5)
        self.kinds = [kind for kind in kinds if kind in FAULTS]
        self.quorum = Controllers(self.world, self.net, controllers=rng.choice((1, 3, 3, 5)))
        self.quorum_faults = QuorumFaults(self.world, self.quorum, [kind for kind in kinds if kind in QUORUM_FAULTS])
        servers = ",".join(f"{each.name}:{PORT}" for each in self.quorum.nodes)
        drawn = {
            "process.roles": "broker",
            "controller.quorum.bootstrap.servers": servers,
            "controller.listener.names": "CONTROLLER",
            "listeners": "PLAINTEXT://:9092",
            "log.dirs": DIRECTORY,
            "metadata.log.segment.bytes": rng.choice(("2000", "100000")),
            "metadata.log.max.record.bytes.between.snapshots": rng.choice(("3000", "1000000")),
            "metadata.max.retention.bytes": rng.choice(("5000", "1000000")),
            "controller.quorum.fetch.max.bytes": rng.choice(("300", "1000000")),
            "controller.quorum.fetch.snapshot.max.bytes": rng.choice(("100", "1000000")),
        }
        count = machines or rng.randint(1, 4)
        self.machines = [
            SimMember(self, number, {**drawn, "node.id": str(number), **settings}) for number in range(1, count + 1)
        ]
        self._folded: dict[int, tuple[object, ...]] = {}
        self._truth = ClusterState()
        self._folded_to = 0
        self._seen: dict[SimMember, tuple[LoneMember, int]] = {}
        self.checked = 0
        for each in self.machines:
            each.format(self.quorum.cluster_id)
            each.start()
        self._written = 0
        self._is_quiet = False
        self._load()
        self._fault()

    # -- the judge

    def truth_at(self, offset: int) -> tuple[object, ...]:
        """What the quorum has committed up to an offset, which is the last of a batch."""
        for batch in self.quorum.committed[self._folded_to :]:
            for record in batch.records:
                self._truth.apply(record)
            self._folded[batch.end_offset - 1] = self._truth.image()
            self._folded_to += 1
        if offset not in self._folded:
            raise self.world.broken(f"offset {offset} was told, and is not the end of what was committed")
        return self._folded[offset]

    def check_committed(self, machine: SimMember) -> None:
        """Check, after every turn of a member, that what it was told is what was committed."""
        member = machine.member
        assert member is not None
        seen = self._seen.get(machine)
        if seen == (member, member.published):
            return
        if seen is not None and seen[0] is member and member.published < seen[1]:
            raise self.world.broken(f"{machine} was told {member.published} behind {seen[1]}")
        self._seen[machine] = (member, member.published)
        if member.published >= 0:
            self.checked += 1
            if member.state.image() != self.truth_at(member.published):
                raise self.world.broken(f"{machine} was told something else than was committed to {member.published}")

    def check_logs(self) -> None:
        """Logs are what was committed, byte for byte."""
        truth = {batch.base_offset: batch.data for batch in self.quorum.committed}
        for machine in self.machines:
            member = machine.member
            if member is None:
                continue
            kept = member.quorum.metadata_log
            offset, end = kept.start_offset, member.quorum.high_watermark
            while offset < end:
                region = kept.log.read(offset, 1 << 20, end).region
                assert region is not None, (machine, offset, end)
                data = region.read()
                position = 0
                while position < len(data):
                    wanted = truth[offset]
                    if data[position : position + len(wanted)] != wanted:
                        raise self.world.broken(f"{machine}: the batch at {offset} is not what was committed")
                    position += len(wanted)
                    offset += int.from_bytes(wanted[23:27], "big") + 1

    def check_whole(self) -> None:
        """After everything has healed."""
        leader = self.quorum.leader
        assert leader is not None
        for machine in self.machines:
            member = machine.member
            if member is None:
                raise self.world.broken(f"{machine} has ended: {machine.end}")
            if member.published != self.quorum.committed[-1].end_offset - 1:
                raise self.world.broken(f"{machine} was told up to {member.published} only")
            if member.life.is_fenced:
                raise self.world.broken(f"{machine} is fenced")
            if self.quorum.state.brokers[machine.node_id].fenced:
                raise self.world.broken(f"{machine} is fenced, the quorum says")
        self.check_logs()

    # -- load and faults

    def _load(self) -> None:
        """Records, one after another."""
        if self._is_quiet:
            return
        leading = [each for each in self.quorum.nodes if each.leads]
        for leader in leading:  # a deposed one writes in vain
            self._written += 1
            count = self.rng.choice((1, 1, 3, 20))
            records: list[tuple[Message, int]] = [
                (
                    ConfigRecord(
                        resource_type=2,
                        resource_name=f"topic-{self.rng.randrange(30)}",
                        name="retention.ms",
                        value=self.rng.choice((None, f"{self._written}")),
                    ),
                    0,
                )
                for _ in range(count)
            ]
            leader.append(records)
        self.world.after(self.rng.randint(1, 500), self._load)

    def _fault(self) -> None:
        if self.kinds:
            getattr(self, "_" + self.rng.choice(self.kinds).replace(" ", "_"))()
        self.world.after(self.rng.randint(50, 3000), self._fault)

    def _kills(self) -> None:
        self._end_one(power_loss=False)

    def _power(self) -> None:
        self._end_one(power_loss=True)

    def _end_one(self, *, power_loss: bool) -> None:
        machine = self.rng.choice(self.machines)
        if machine.member is None:
            return
        if self.rng.random() < 0.5:
            machine.kill(power_loss=power_loss)
        else:
            machine.kill_in_calls(self.rng.randrange(1, 30), power_loss=power_loss)
        self.start_later(machine)

    def start_later(self, machine: SimMember) -> None:
        """An operator starts what has ended."""
        self.world.after(self.rng.randrange(4000), self._back, machine)

    def _back(self, machine: SimMember) -> None:
        if machine.member is None and not machine.end:
            machine.start()

    def _lost_answers(self) -> None:
        self.net.deaf[self.rng.choice(self.machines).name] = self.rng.randint(1, 5)

    def _cuts(self) -> None:
        wires = self.net.wires()
        if wires:
            self.rng.choice(wires).cut("a fault")

    def _slow(self) -> None:
        self.net.spike = self.rng.choice((0.0, 0.05, 0.3))

    # -- its life

    def run(self, faults_ms: int = 60_000, *, healing_ms: int = 30_000) -> int:
        """Let it live; how often a member was looked at. Raises: Broken."""
        self.world.run_until(faults_ms)
        self.kinds = []
        self.net.spike = 0.0
        self.net.deaf.clear()
        self.quorum_faults.heal()
        for each in self.machines:
            each.disk.crash_at = None
        self.world.run_until(faults_ms + 6000)  # what was planned comes back
        for machine in self.machines:
            self._back(machine)
        self.world.run_until(faults_ms + healing_ms)
        self._is_quiet = True
        for _ in range(400):
            leader = self.quorum.leader
            if leader is not None and leader.end_offset == self.quorum.committed[-1].end_offset:
                break
            self.world.run_until(self.world.now_ms + 5)
        self.world.run_until(self.world.now_ms + 3000)
        self.check_whole()
        return self.checked
