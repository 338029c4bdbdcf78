"""Plays: named stories of a broker and its clients as plain text, each step followed by what came of it.

A line at the left margin is a step, a line with four blanks in front is what it led to; `#` begins a comment. `perform`
plays the steps in a world without chance faults and returns the text with what really happened, so that a test
compares, and `scripts/sim --play FILE --rewrite` writes it back, to be looked at in the diff.

    topic NAME PARTITIONS [KEY=VALUE ...]      before the first start
    start | stop | kill | power-cut            the broker
    crash in N calls [power-cut]               at its n-th change to the disk from now
    NAME produce TOPIC-P VALUE ... [acks=all]  one batch; acks 1 unless given; retried until its outcome is known
    NAME read TOPIC-P [from=OFFSET]            to the end
    lose answers of NAME                       the answer to its next request is lost, with the connection
    disk fails CALL CODE                       the next such call
    clock MS                                   the broker's wall clock jumps
    wait MS
    log TOPIC-P                                what is in the log of the partition

Clients whose name begins with `idempotent` are; the others are not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.sim.admins import Founder
from kbroker.sim.checks import Checks
from kbroker.sim.client import Lost, Script
from kbroker.sim.compose import alone
from kbroker.sim.consumers import EARLIEST, Reader
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.store import Ensemble
from kbroker.sim.topics import Topic
from kbroker.sim.world import World
from protocol.records.content import parse_set

if TYPE_CHECKING:
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


class Actor(Producer, Reader):
    """A client that does as it is told, one step at a time, in the newest versions."""

    def __init__(self, name: str, stage: Stage) -> None:
        super().__init__(name, stage.world, stage.net, [stage.machine], stage.checks)
        self.fixed_versions = {**dict.fromkeys(range(100), NEWEST), API_VERSIONS: 3}
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
        self.begin()
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
        ensemble = Ensemble(lambda delay_ms, job: void(self.world.after(delay_ms, job)), lambda: 0)
        self.machine = Machine(self.world, self.net, 1, alone(SETTINGS, ensemble))
        self.checks.watch(self.machine)
        self.world.watchers.append(self.checks.look)
        self._actors: dict[str, Actor] = {}

    def step(self, line: str) -> list[str]:
        """Do one step; what came of it. Raises: ValueError if it says nothing that we know."""
        before = len(self.world.lines)
        said: list[str] = []
        match line.split():
            case ["topic", name, partitions, *configs]:
                self.topics.append(Topic(name, int(partitions), dict(pair.split("=") for pair in configs)))
            case ["start"]:
                self._start()
            case ["stop"]:
                self.machine.stop()
                self._wait_for(lambda: not self.machine.up)
            case ["kill"]:
                self.machine.kill()
            case ["power-cut"]:
                self.machine.kill(power_loss=True)
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
                said = self._log(_where(place))
            case [name, "produce", place, *words]:
                self._produce(name, _where(place), words)
            case [name, "read", place, *words]:
                offset = int(words[0].removeprefix("from=")) if words else None
                actor = self._actor(name)
                self._perform(actor, lambda: actor.read(_where(place), offset))
            case _:
                raise ValueError(f"no such step: {line}")
        return [text[10:] for text in list(self.world.lines)[before:]] + said

    def _start(self) -> None:
        if not self.machine.start():
            return
        if self.topics and not self.checks.catalogue.ids:
            founder = Founder("founder", self.world, self.net, [self.machine], self.checks)
            founder.fixed_versions = {**dict.fromkeys(range(100), NEWEST), API_VERSIONS: 3}
            founder.topics = self.topics
            founder.start()
            self._wait_for(lambda: not founder.alive)
        self._settle(100)

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
        """Have an actor do something; starts the broker again if it went down meanwhile, as an operator would."""
        actor.play(script)
        until_ms = self.world.now_ms + STEP_MS
        while actor.alive and self.world.now_ms < until_ms:
            if not self.machine.up:
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

    def _log(self, where: Where) -> list[str]:
        log = self.machine.broker.logs.get(*where)
        if log is None:
            return ["is not there"]
        said = [f"{log.log_start_offset} to {log.log_end_offset}"]
        fetched = log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
        for batch, records in parse_set(fetched.region.read() if fetched.region else b""):
            values = " ".join(bytes(record.value or b"").decode() for record in records)
            said.append(f"{batch.base_offset}: {values} (epoch {batch.partition_leader_epoch})")
        return said


def perform(text: str) -> str:
    """Play a play; the text with what really happened. Raises: Broken, ValueError."""
    stage = Stage()
    out: list[str] = []
    for line in text.splitlines():
        if line.startswith(INDENT):
            continue
        out.append(line)
        if line and not line.startswith("#"):
            out += [INDENT + said for said in stage.step(line)]
    return "\n".join(out) + "\n"


def _where(place: str) -> Where:
    topic, _, index = place.rpartition("-")
    return topic, int(index)


def void(_: object) -> None:
    """Make a value nothing, where a job must not return one."""
