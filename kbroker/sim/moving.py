"""Worlds of replicated topics whose replicas move between log directories, and are compacted: `scripts/sim moving`.

As a replicated world, but each machine has two log directories, an operator moves replicas from one into the other,
on and on (AlterReplicaLogDirs), and one topic is compacted, on each replica by itself. Meanwhile leaders change,
brokers die, disks fail. What must hold besides:

- a copy that takes a replica's place has all that was committed there;
- of two replicas of a compacted topic each has the same record at an offset, or a later one of its key;
- once all has healed, moves come to their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.sim.client import Lost, Script
from kbroker.sim.compose import LOG_DIR, OTHER_LOG_DIR
from kbroker.sim.leaders import Router
from kbroker.sim.replicated import FAULTS_MS, ReplicatedChecks, ReplicatedSwarm, values_in
from kbroker.sim.storage import COMPACTED, KeyedProducer, key_of
from kbroker.sim.topics import Topic
from protocol.errors import ErrorCode
from protocol.messages.logdirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)

if TYPE_CHECKING:
    from kbroker.log.log import Log
    from kbroker.sim.checks import Promise, Where
    from kbroker.sim.client import Client
    from kbroker.sim.machine import Machine
    from kbroker.sim.producers import Producer
    from kbroker.sim.world import World

KEPT = Topic("kept", 2, {**COMPACTED, "min.insync.replicas": "2"}, replicas=3)
GROUPS = Topic("__consumer_offsets", 1)
MAY_BE = {
    ErrorCode.NONE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Mover(Router):
    """Has replicas moved on whichever machine, until it is stopped."""

    topics: Sequence[Topic] = ()
    pace_ms = 1_000

    def live(self) -> Script:
        """One after the other; some are called off again."""
        yield from self.shake_hands()
        while True:
            yield from self.pause(self.pace_ms)
            topic, machine = self.rng.choice(self.topics), self.rng.choice(self.machines)
            index, path = self.rng.randrange(topic.partitions), self.rng.choice((LOG_DIR, OTHER_LOG_DIR))
            wanted = [AlterReplicaLogDirTopic(name=topic.name, partitions=[index])]
            request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=wanted)])
            try:
                answer: AlterReplicaLogDirsResponse = yield from self.ask(request, to=machine)
            except Lost:
                continue
            code = ErrorCode.of(answer.results[0].partitions[0].error_code)
            self.note(f"has {topic.name}-{index} on {machine} moved to {path}: {code.name}")
            if code not in MAY_BE:
                raise self.world.broken(f"{self}: {topic.name}-{index} on {machine}: {code.name}")


class MovingChecks(ReplicatedChecks):
    """Knows what compaction may take away, and that logs are replaced. moved: how many have been."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.moved = 0
        self._last: dict[tuple[Machine, Where], tuple[int, str, int]] = {}  # boot, folder, high watermark

    def may_skip(self, promise: Promise, expected: int, offset: int) -> bool:
        """See Checks."""
        return (promise.where[0] == KEPT.name and expected < offset) or super().may_skip(promise, expected, offset)

    def _look_at_log(self, machine: Machine, where: Where, log: Log, *, leads: bool) -> None:
        boot, last, high_watermark = self._last.get((machine, where), (0, log.folder.path, 0))
        if boot == machine.boots and last != log.folder.path:
            self.moved += 1
            if log.high_watermark < high_watermark and where not in self.allowed_loss.lost_from:
                state = f"{where} on {machine}: {log!r}, committed to {log.high_watermark}"
                raise self.world.broken(f"{state}, took the place of what was committed to {high_watermark}")
        super()._look_at_log(machine, where, log, leads=leads)
        self._last[machine, where] = machine.boots, log.folder.path, log.high_watermark

    def is_same(self, where: Where, first: Log, second: Log, offsets: range) -> bool:
        """See ReplicatedChecks."""
        if where[0] != KEPT.name:
            return super().is_same(where, first, second, offsets)
        mine, theirs = values_in(first), values_in(second)
        return all(
            self.is_kept(where, there, offset, value)
            for here, there in ((mine, theirs), (theirs, mine))
            for offset, value in here.items()
            if offset in offsets
        )

    def is_kept(self, where: Where, there: Mapping[int, bytes], offset: int, value: bytes) -> bool:
        """See ReplicatedChecks."""
        if where[0] != KEPT.name or offset in there:
            return super().is_kept(where, there, offset, value)
        return any(later > offset and key_of(other) == key_of(value) for later, other in there.items())


class Moving(ReplicatedSwarm):
    """One such world."""

    more_topics = (KEPT,)
    more_settings: Mapping[str, str] = {
        "log.dirs": f"{LOG_DIR},{OTHER_LOG_DIR}",
        "log.cleaner.backoff.ms": "1000",
        "log.cleaner.dedupe.buffer.size": "1048577",
    }
    checks: MovingChecks

    def _make_checks(self) -> MovingChecks:
        return MovingChecks(self.world)

    def _new_producer(self, name: str) -> Producer:
        return KeyedProducer(name, self.world, self.net, self.machines, self.checks)

    def _more_clients(self) -> Sequence[Client]:
        self.mover = Mover("mover", self.world, self.net, self.machines, self.checks)
        self.mover.topics = [*self.all_topics, GROUPS]
        self.mover.pace_ms = self.mover.rng.choice((100, 500, 3_000))
        return [self.mover]

    def run(self, faults_ms: int = FAULTS_MS, healing_ms: int = 120_000) -> int:
        """See ReplicatedSwarm."""
        self.world.after(faults_ms, self.mover.stop)
        acknowledged = super().run(faults_ms, healing_ms)
        for machine in self.machines:
            if machine.broker.logs.has_futures:
                raise self.world.broken(f"{machine}: a move does not come to its end")
        return acknowledged

    @property
    def cleaned(self) -> bool:
        """Whether a replica is compacted."""
        return any(
            log.cleaned_to
            for machine in self.machines
            if machine.up
            for (topic, _), log in machine.broker.logs.logs()
            if topic == KEPT.name
        )
