"""One simulated world from one seed: machines, topics, clients and faults by chance; then healing, and liveness.

`simulate(seed)` is what `scripts/sim` and the tests run, for many seeds: some with one machine, most with three to five
that share a metadata store. After `FAULTS` simulated milliseconds of
trouble the world heals; then every producer must get through, every consumer must catch up, and all logs must hold
what was promised, also after a last clean stop and start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.sim.admins import TopicCreator
from kbroker.sim.checks import FOREVER, Checks
from kbroker.sim.compose import LOG_DIR, OTHER_LOG_DIR, alone, one_of_several
from kbroker.sim.consumers import Consumer
from kbroker.sim.faults import Faults
from kbroker.sim.machine import Machine
from kbroker.sim.members import Member, all_is_shared
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.store import Ensemble
from kbroker.sim.topic_admin import MOST_PARTITIONS, TopicAdmin
from kbroker.sim.topics import Topic
from kbroker.sim.whole import check_whole
from kbroker.sim.world import World
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    import random

    from kbroker.sim.client import Client

FAULTS_MS = 180_000
HOW_MANY_MACHINES = (1, 1, 3, 3, 3, 4, 5)
HEALING_MS = 60_000
"""By when everything must work again: two request timeouts."""


class Outcome(NamedTuple):
    """What a world came to. digest: of everything that happened in it."""

    seed: int
    digest: str
    simulated_ms: int
    events: int
    acknowledged: int
    read: int
    generations: int
    commits: int
    boots: int


class Swarm:
    """A world with everything in it. `run` lets it live."""

    def __init__(self, seed: int, kept_lines: int | None = 400, machines: int | None = None) -> None:
        """machines: how many; None lets the seed choose."""
        self.seed = seed
        self.world = World(seed, kept_lines)
        rng = self.world.rng("swarm")
        self.net = Net(self.world, (0, rng.choice((0, 3, 40))))
        self.checks = self._make_checks()
        self.topics = self._make_topics(rng)
        for topic in self.topics:
            if topic.forgets:
                for index in range(MOST_PARTITIONS):
                    self.checks.may_forget((topic.name, index), FOREVER)
            for index in range(MOST_PARTITIONS):
                self.checks.promise((topic.name, index)).flushed_first = topic.is_flushed_first
        store_chance = self.world.rng("store")
        self.ensemble = Ensemble(self._later, lambda: store_chance.randint(0, 2))
        settings = self._make_settings(rng)
        count = self.world.rng("machines").choice(HOW_MANY_MACHINES) if machines is None else machines
        compose = alone(settings, self.ensemble) if count == 1 else one_of_several(settings, self.ensemble)
        self.machines = [Machine(self.world, self.net, number, compose) for number in range(1, count + 1)]
        for machine in self.machines:
            self.checks.watch(machine)
        self.world.watchers.append(self.checks.check)
        self.producers = [self._producer(number, rng) for number in range(rng.randint(1, 4))]
        self.consumers = [self._consumer(number, rng) for number in range(rng.randint(1, 3))]
        self.members = [self._member(number, group, rng) for group in range(rng.randint(0, 2)) for number in range(3)]
        founder = TopicCreator("founder", self.world, self.net, self.machines, self.checks)
        founder.topics = self.topics
        self.keepers = [self._keeper(rng)] if rng.random() < 0.6 else []
        self.clients: list[Client] = [founder, *self.producers, *self.consumers, *self.members, *self.keepers]
        self.clients += self._make_others()
        names = [client.name for client in self.clients]
        self.faults = Faults(self.world, self.net, self.machines, names)

    def _make_checks(self) -> Checks:
        return Checks(self.world)

    def _make_topics(self, rng: random.Random) -> list[Topic]:
        return _topics(rng)

    def _make_settings(self, rng: random.Random) -> dict[str, str]:
        return settings_of(rng)

    def _make_others(self) -> list[Client]:
        """Clients that only some kinds of worlds have."""
        return []

    def _new_producer(self, name: str) -> Producer:
        return Producer(name, self.world, self.net, self.machines, self.checks)

    def _later(self, delay_ms: int, job: Callable[[], None]) -> None:
        self.world.after(delay_ms, job)

    def _producer(self, number: int, rng: random.Random) -> Producer:
        producer = self._new_producer(f"producer-{number}")
        producer.topics = rng.sample(self.topics, rng.randint(1, len(self.topics)))
        producer.idempotent = rng.random() < 0.6
        producer.acks = -1 if producer.idempotent else rng.choice((-1, 1, 1, 0))
        producer.pace_ms = rng.choice((400, 1_500, 4_000))
        producer.codec_id = rng.choice((0, 0, 1, 2, 3, 4))
        producer.pipelined = rng.choice((1, 1, 3))
        return producer

    def _consumer(self, number: int, rng: random.Random) -> Consumer:
        consumer = Consumer(f"consumer-{number}", self.world, self.net, self.machines, self.checks)
        consumer.topics = rng.sample(self.topics, rng.randint(1, len(self.topics)))
        consumer.sessions = rng.random() < 0.7
        consumer.isolation = rng.randint(0, 1)
        consumer.max_wait_ms = rng.choice((0, 1_000, 5_000))
        consumer.min_bytes = rng.choice((1, 1, 500))
        consumer.max_bytes = rng.choice((1, 1_000, 1 << 20))
        consumer.pace_ms = 300 if consumer.max_wait_ms else 2_000
        return consumer

    def _member(self, number: int, group: int, rng: random.Random) -> Member:
        member = Member(f"member-{group}-{number}", self.world, self.net, self.machines, self.checks)
        member.group = f"group-{group}"
        member.topics = self.topics
        member.static = rng.random() < 0.4
        member.restless = rng.random() < 0.5
        member.sessions = rng.random() < 0.7
        member.commit_ms = rng.choice((500, 5_000))
        member.max_wait_ms = rng.choice((500, 3_000))
        return member

    def _keeper(self, rng: random.Random) -> TopicAdmin:
        keeper = TopicAdmin("keeper", self.world, self.net, self.machines, self.checks)
        keeper.topics = self.topics
        keeper.pace_ms = rng.choice((2_000, 10_000))
        return keeper

    def _has_topics(self, producer: Producer) -> bool:
        return not all(self.checks.catalogue.is_being_deleted(topic.name) for topic in producer.topics)

    def run(self, faults_ms: int = FAULTS_MS) -> Outcome:
        """Let it live, heal it, hold it to its promises. Raises: Broken."""
        world = self.world
        self.faults.start(self.clients)
        world.run_until(faults_ms)
        self.faults.heal()
        for member in self.members:
            member.restless = False
        for keeper in self.keepers:
            keeper.restless = False
        before = [(producer.acknowledged, self._has_topics(producer)) for producer in self.producers]
        world.run_until(world.now_ms + HEALING_MS)
        for producer, (was, had_topics) in zip(self.producers, before, strict=True):
            has_topics = had_topics and self._has_topics(producer)  # a keeper may take long to make one again
            if producer.acks and producer.acknowledged == was and has_topics:
                raise world.broken(f"{producer} gets nothing through since everything works again")
            producer.stop()
        world.run_until(world.now_ms + HEALING_MS)
        self._all_is_read()
        check_whole(world, self.ensemble, self.machines)
        self._restart()
        return self.outcome()

    def outcome(self) -> Outcome:
        """Numbers so far."""
        world, checks = self.world, self.checks
        boots = sum(machine.boots for machine in self.machines)
        return Outcome(
            self.seed,
            world.digest,
            world.now_ms,
            world.events,
            checks.acknowledged,
            checks.read,
            checks.groups.generations,
            checks.groups.committed,
            boots,
        )

    def _all_is_read(self) -> None:
        for consumer in self.consumers:
            for where, position in consumer.positions.items():
                end = self.checks.log_end(where)
                if position != end:
                    raise self.world.broken(f"{consumer} stands at {position} of {where}, which ends at {end}")

        for group in {member.group: None for member in self.members}:
            all_is_shared(self.checks, [member for member in self.members if member.group == group], self.topics)

    def _restart(self) -> None:
        """A clean stop and start; `Checks` reads every log as the broker comes up."""
        for client in self.clients:
            client.stop()
        for machine in self.machines:
            machine.stop()
        self.world.run_until(self.world.now_ms + 10_000)
        for machine in self.machines:
            if not machine.up:
                raise self.world.broken(f"{machine} does not come up again")


def simulate(seed: int) -> Outcome:
    """Run the world of a seed to its end. Raises: Broken, or whatever the broker itself raised."""
    return Swarm(seed).run()


def _topics(rng: random.Random) -> list[Topic]:
    """Small indexes: they are as long as they may get while a segment is written. Time does not take records away."""
    configs = {"retention.ms": "-1", "segment.index.bytes": "4096"}
    if rng.random() < 0.6:
        configs["segment.bytes"] = rng.choice(("2000", "20000"))
    if rng.random() < 0.3:
        configs["flush.messages"] = rng.choice(("1", "10"))
    if rng.random() < 0.2:
        configs["message.timestamp.type"] = "LogAppendTime"
    forgetful = {
        "segment.index.bytes": "4096",
        "segment.bytes": "2000",
        "retention.bytes": "6000",
        "file.delete.delay.ms": "1000",
    }
    topics = [
        Topic("alpha", rng.randint(1, 4), configs),
        Topic("beta", 1, {"compression.type": "gzip", "retention.ms": "-1", "segment.index.bytes": "4096"}),
    ]
    if rng.random() < 0.5:
        topics.append(Topic("fleeting", 1, forgetful))
    if rng.random() < 0.5:
        few = {"retention.ms": "-1", "segment.index.bytes": "4096", "file.delete.delay.ms": "1000"}
        topics.append(Topic("mortal", 2, few, mortal=True))
    return topics


def settings_of(rng: random.Random) -> dict[str, str]:
    """Of every broker of a world."""
    settings = {
        "log.retention.check.interval.ms": "5000",
        "log.initial.task.delay.ms": "1000",
        "log.index.size.max.bytes": "4096",  # indexes are as long as they may get while a segment is written
        "offsets.topic.num.partitions": "3",
        "offsets.retention.check.interval.ms": "3600000",  # empty groups stay: their generations count on
        "group.initial.rebalance.delay.ms": rng.choice(("0", "1000")),
        "producer.id.expiration.ms": "2147483647",  # the wall clock jumps: who sleeps for a day is forgotten
    }
    if rng.random() < 0.5:
        settings["log.flush.interval.ms"] = "2000"
    if rng.random() < 0.4:
        settings["log.dirs"] = f"{LOG_DIR},{OTHER_LOG_DIR}"
    return settings
