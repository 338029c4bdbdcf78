"""Plays: named stories of a broker and its clients as plain text, each step followed by what came of it.

A line at the left margin is a step, a line with four blanks in front is what it led to; `#` begins a comment. The steps
are played in a world without chance faults, and `perform_on` returns the text with what really happened, so that a test
compares, and `scripts/sim --play FILE --rewrite` writes it back, to be looked at in the diff.

    machines N [KEY=VALUE ...]                 before all else; N brokers that share a metadata store, 1 unless said
    topic NAME PARTITIONS [KEY=VALUE ...]      before the first start; with several machines, a replica on each, or, of
                                               each partition, on=BROKER,...[/BROKER,...], the preferred leader first
    start | stop | kill | power-cut [BROKER]   the broker, or one of them; all of them, where none is named
    kill leader of TOPIC-P
    crash in N calls [power-cut]               at its n-th change to the disk from now
    NAME produce TOPIC-P VALUE ... [acks=all]  one batch; acks 1 unless given; retried until its outcome is known
    NAME read TOPIC-P [from=OFFSET]            to the end
    lose answers of NAME                       the answer to its next request is lost, with the connection
    disk fails CALL CODE                       the next such call
    clock MS                                   the broker's wall clock jumps
    wait MS
    log TOPIC-P                                what is in the log of the partition

Clients whose name begins with `idempotent` are; the others are not. Steps of transactions: `transaction_play.py`; of
what becomes of a cluster: `cluster_play.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.sim.admins import TopicCreator
from kbroker.sim.checks import Checks
from kbroker.sim.client import Client, Lost, Script
from kbroker.sim.compose import alone, one_of_several
from kbroker.sim.consumers import EARLIEST, Reader
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.replicated import ReplicatedChecks
from kbroker.sim.store import Ensemble
from kbroker.sim.topics import Topic
from kbroker.sim.world import World
from protocol.records.content import parse_set
from protocol.records.control_records import parse_marker

if TYPE_CHECKING:
    from kbroker.log.log import Log
    from kbroker.sim.checks import Where

INDENT = "    "
STEP_MS = 60_000
"""A step that takes longer has failed."""

SETTINGS = {
    "log.index.size.max.bytes": "4096",
    "offsets.topic.num.partitions": "1",
    "log.initial.task.delay.ms": "1000",
}
NEWEST, API_VERSIONS = 99, 18
VERSIONS = {**dict.fromkeys(range(100), NEWEST), API_VERSIONS: 3}
"""Of the clients of plays."""
OF_SEVERAL = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


class Actor(Producer, Reader):
    """A client that does as it is told, one step at a time, in the newest versions."""

    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name, stage.world, stage.net, stage.machines, stage.checks)
        self.fixed_versions = VERSIONS
        self.idempotent = name.startswith("idempotent")
        self.sessions = False
        self.max_wait_ms = 0
        self.tries = 3
        self.made = self.acknowledged = 0
        self.producer_id = self.epoch = -1
        self.sequences = {}
        self._next: Callable[[], Script] | None = None

    def play(self, script: Callable[[], Script]) -> None:
        """Begin a step."""
        self._next = script
        self.start()

    def live(self) -> Script:
        """The step that was given."""
        assert self._next is not None
        return self._next()

    def produce(self, where: Where, values: list[bytes]) -> Script:
        """Write one batch."""
        if self.idempotent and self.producer_id < 0:
            yield from self._get_id()
        yield from self.shake_hands()
        yield from self.deliver([self.batch(where, values)])

    def read(self, where: Where, offset: int | None) -> Script:
        """Read to the end, and tell what was there."""
        self.start_over()
        yield from self.shake_hands()
        while True:
            try:
                if where not in self.positions:
                    yield from self.look_up([where], EARLIEST)
                    if where in self.positions and offset is not None:
                        self.positions[where] = offset
                elif not (yield from self.fetch()) and self.caught_up:
                    return
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
            yield from self.pause(300)


class Stage:
    """The world of one play."""

    def __init__(self) -> None:
        self.world = World("play", None)
        self.net = Net(self.world, (1, 1))
        self.checks = Checks(self.world)
        self.topics: list[Topic] = []
        self.machines: list[Machine] = []
        self.ensemble = Ensemble(lambda delay_ms, job: void(self.world.after(delay_ms, job)), lambda: 0)
        self._actors: dict[str, Actor] = {}

    @property
    def machine(self) -> Machine:
        """The first one."""
        return self.machines[0]

    def _build(self, count: int, settings: dict[str, str]) -> None:
        """Make the machines."""
        settings = SETTINGS | (OF_SEVERAL if count > 1 else {}) | settings
        if count > 1:
            self.checks = ReplicatedChecks(self.world)
        compose = (alone if count == 1 else one_of_several)(settings, self.ensemble)
        self.machines += [Machine(self.world, self.net, number, compose) for number in range(1, count + 1)]
        for machine in self.machines:
            self.checks.watch(machine)
        self.world.watchers.append(self.checks.check)

    def step(self, line: str) -> list[str]:
        """Do one step; what came of it. Raises: ValueError if it says nothing that we know."""
        before = len(self.world.lines)
        words = line.split()
        if not self.machines:
            self._build(*((int(words[1]), _pairs(words[2:])) if words[0] == "machines" else (1, {})))
        said = self.do(words)
        return [*_once([text[10:] for text in list(self.world.lines)[before:]]), *said]

    def do(self, words: list[str]) -> list[str]:
        """Do one step; what there is to say of it that the world does not tell by itself."""
        said: list[str] = []
        match words:
            case ["machines", *_]:
                pass
            case ["topic", name, partitions, *configs]:
                self.topics.append(self._topic(name, int(partitions), _pairs(configs)))
            case ["start", *brokers]:
                self._start(self._named(brokers))
            case ["stop", *brokers]:
                self._stop(self._named(brokers))
            case ["kill", "leader", "of", place]:
                self._leader(where_of(place)).kill()
            case ["kill" | "power-cut" as how, *brokers]:
                for machine in self._named(brokers):
                    machine.kill(power_loss=how == "power-cut")
            case ["crash", "in", calls, "calls", *how]:
                self.machine.kill_in_calls(int(calls), power_loss=how == ["power-cut"])
            case ["lose", "answers", "of", name]:
                self.net.deaf[name] = 2  # every step begins with a handshake
            case ["disk", "fails", call, code]:
                self.machine.disk.fail(call, "", getattr(errno, code))
            case ["clock", by_ms]:
                self.machine.clock.jump_wall(int(by_ms))
            case ["wait", ms]:
                self._settle(int(ms))
            case ["log", place]:
                said = self._log(where_of(place))
            case [name, "produce", place, *words]:
                self._produce(name, where_of(place), words)
            case [name, "read", place, *words]:
                offset = int(words[0].removeprefix("from=")) if words else None
                actor = self._actor(name)
                self._perform(actor, lambda: actor.read(where_of(place), offset))
            case _:
                raise ValueError(f"no such step: {' '.join(words)}")
        return said

    def _topic(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        on = configs.pop("on", "")
        chosen = tuple(tuple(map(int, each.split(","))) for each in on.split("/")) if on else ()
        replicas = len(chosen[0]) if chosen else len(self.machines)
        return Topic(name, partitions, configs, replicas=replicas, assignment=chosen)

    def _named(self, brokers: list[str]) -> list[Machine]:
        return [machine for machine in self.machines if not brokers or str(machine.broker_id) in brokers]

    def _start(self, machines: list[Machine]) -> None:
        came_up = [machine.start() for machine in machines if not machine.up]
        if not all(came_up):
            return
        if self.topics and not self.checks.catalogue.ids:
            founder = TopicCreator("founder", self.world, self.net, self.machines, self.checks)
            founder.fixed_versions = dict(VERSIONS)
            founder.topics = self.topics
            founder.start()
            self._wait_for(lambda: not founder.alive)
        self._settle(100)

    def _stop(self, machines: list[Machine]) -> None:
        """As SIGTERM does: leaders are handed over first, if there is a broker to take them."""
        for machine in machines:
            machine.stop()
            self._wait_for(lambda it=machine: not it.up)  # type: ignore[misc]

    def _actor(self, name: str) -> Actor:
        if name not in self._actors:
            self._actors[name] = Actor(name, self)
        return self._actors[name]

    def _produce(self, name: str, where: Where, words: list[str]) -> None:
        actor = self._actor(name)
        acks = [word.removeprefix("acks=") for word in words if word.startswith("acks=")]
        actor.acks = {"0": 0, "1": 1, "all": -1}[acks[0] if acks else "1"]
        values = [word.encode() for word in words if not word.startswith("acks=")]
        self._perform(actor, lambda: actor.produce(where, values))

    def _perform(self, actor: Actor, script: Callable[[], Script]) -> None:
        actor.play(script)
        self.wait_for(actor)

    def wait_for(self, actor: Client) -> None:
        """Let an actor do its step; starts the broker again if it went down meanwhile, as an operator would."""
        until_ms = self.world.now_ms + STEP_MS
        while actor.alive and self.world.now_ms < until_ms:
            if not any(machine.up for machine in self.machines):
                self.machine.start()
            self._settle(100)
        if actor.alive:
            actor.note("is still at it")
            actor.stop()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        until_ms = self.world.now_ms + STEP_MS
        while not done() and self.world.now_ms < until_ms:
            self._settle(10)

    def _settle(self, ms: int) -> None:
        self.world.run_until(self.world.now_ms + ms)

    def log(self, where: Where) -> Log | None:
        """That of a partition's leader; of one machine alone, its own."""
        if len(self.machines) == 1:
            return self.machine.broker.logs.get(*where)
        return self._leader(where).broker.logs.get(*where)

    def _leader(self, where: Where) -> Machine:
        for machine in self.machines:
            partition = machine.broker.replicas.partitions.get(where) if machine.up else None
            if partition is not None and partition.is_leader:
                return machine
        raise ValueError(f"no broker leads {where[0]}-{where[1]}")

    def _log(self, where: Where) -> list[str]:
        log = self.log(where)
        if log is None:
            return ["is not there"]
        said = [f"{log.log_start_offset} to {log.log_end_offset}"]
        fetched = log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
        for batch, records in parse_set(fetched.region.read() if fetched.region else b""):
            values = " ".join(bytes(record.value or b"").decode() for record in records)
            if batch.is_control:
                values = parse_marker(records[0]).control_type.name
            if batch.producer_id >= 0 and (batch.is_transactional or batch.is_control):
                values += f" of {batch.producer_id}/{batch.producer_epoch}"
            said.append(f"{batch.base_offset}: {values} (epoch {batch.partition_leader_epoch})")
        return said


class Steps(Protocol):
    """What carries out the steps of a play: a whole world (`Stage`), or a test's, of a coordinator alone."""

    def step(self, line: str) -> list[str]:
        """Do one step; what came of it. Raises: ValueError if it says nothing that is known here."""
        ...


def perform_on(stage: Steps, text: str) -> str:
    """Play a play; the text with what really happened. Every play runs by this. Raises: Broken, ValueError."""
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        out.append(line)
        if step := line.partition("#")[0].strip():
            out += [INDENT + said for said in stage.step(step)]
    return "\n".join(out) + "\n"


def _pairs(words: list[str]) -> dict[str, str]:
    """What KEY=VALUE says."""
    return {key: value for key, _, value in (word.partition("=") for word in words)}


def _once(lines: list[str]) -> list[str]:
    """Without what is said again right behind itself."""
    return [line for at, line in enumerate(lines) if not at or line != lines[at - 1]]


def where_of(place: str) -> Where:
    """The partition that a play calls `place`."""
    topic, _, index = place.rpartition("-")
    return topic, int(index)


def void(_: object) -> None:
    """Make a value nothing, where a job must not return one."""
