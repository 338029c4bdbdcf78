"""A simulated cluster whose topics have several replicas: its judge, and the world that it judges.

What must hold, looked at after every event and in whole at the end:

- a record acknowledged with acks=all, or read by a consumer, is never lost, and stays at its offset;
- wherever two replicas run, their logs agree byte for byte below the smaller of their high watermarks;
- in one leader epoch of a partition one machine leads;
- log start <= high watermark <= log end, and a high watermark does not go back while its broker runs;
- after everything has healed, all replicas are in sync, and their logs are the same.

A record counts as kept once it is in the page cache of all in sync, as in Kafka. Where every record is flushed first
(`FLUSHED_FAULTS`), power is cut, too, and disks fail. Some worlds have consumer groups, whose committed offsets are
replicated like anything else. Some have a topic of an old message format, of which Kafka promises less (`excused.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from kbroker.metadata.store import decode_state, state_path
from kbroker.sim.admins import TopicCreator
from kbroker.sim.allowed_loss import AllowedLoss
from kbroker.sim.checks import FOREVER, Checks
from kbroker.sim.compose import one_of_several
from kbroker.sim.consumers import Consumer
from kbroker.sim.faults import Faults
from kbroker.sim.formats import pieces
from kbroker.sim.machine import Machine
from kbroker.sim.members import Member, all_is_shared
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.store import Ensemble
from kbroker.sim.topics import Topic
from kbroker.sim.whole import check_whole
from kbroker.sim.world import World

if TYPE_CHECKING:
    import random

    from kbroker.log.config import LogConfig
    from kbroker.log.log import Log
    from kbroker.replica import Partition
    from kbroker.sim.checks import Moment, Where
    from kbroker.sim.client import Client
    from kbroker.sim.machine import Compose

FAULTS = ("kill", "kill within", "stop", "cut", "wall", "slow network", "slow disk", "session", "store cut", "link")
"""What a replicated record survives in the page cache."""

FLUSHED_FAULTS = (*FAULTS, "power", "disk error", "dead disk")
"""What it survives if each is flushed before it counts."""

OLD_SHARE = 0.5
"""Of worlds, in which there is a topic of an old message format."""

OLD_FORMATS = ("0.9.0", "0.10.2")
SCAN_BYTES = 1 << 20
FAULTS_MS = 120_000

FOLLOWS = -1
Seen: TypeAlias = "tuple[Partition, int, Log, LogConfig, tuple[int, int, int]]"
"""Of a replica at the last look: the epoch in which it leads, or FOLLOWS; log start, high watermark, log end."""


class ReplicatedChecks(Checks):
    """The judge of one world of replicated topics."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._machines: list[Machine] = []
        self._leaders: dict[tuple[Where, int], Machine] = {}
        self._newest: dict[
            Where, tuple[int, Machine]
        ] = {}  # by partition: its newest leader epoch, and who leads in it
        self._bounds: dict[tuple[Machine, Where], tuple[Log, int]] = {}
        self._seen: dict[Machine, dict[Where, Seen]] = {}
        self.allowed_loss = AllowedLoss()

    def watch(self, machine: Machine) -> None:
        """Look at a machine from now on."""
        self._machines.append(machine)
        self._seen[machine] = {}
        machine.on_up = self._came_up
        machine.on_down = self._went_down

    def _went_down(self, machine: Machine, power_loss: bool) -> None:
        """A process may die in the middle of an event, behind a cut."""
        for where, partition in machine.broker.replicas.partitions.items():
            if partition.log is None:
                self.allowed_loss.went_offline(machine, where)
            else:
                self.allowed_loss.check(machine, where, partition.log, leads=False)

    def _came_up(self, machine: Machine) -> None:
        self._seen[machine].clear()
        self.allowed_loss.came_up(machine, dict(machine.broker.logs.logs()))

    def check(self) -> None:
        """After every event: leaders and bounds, on the machines that did something, where they are not as before."""
        for machine in self._machines:
            if not machine.up or not machine.moved:
                continue
            machine.moved = False
            seen = self._seen[machine]
            for where, partition in machine.broker.replicas.partitions.items():
                log = partition.log
                if log is None:
                    self._look_who_leads(machine, where, partition)
                    continue
                epoch = partition.leader_epoch if partition.is_leader else FOLLOWS
                bounds = log.log_start_offset, log.high_watermark, log.log_end_offset
                now = partition, epoch, log, log.config, bounds
                if seen.get(where) != now:
                    seen[where] = now
                    self._look_who_leads(machine, where, partition)
                    is_newest = epoch != FOLLOWS and self._newest[where] == (epoch, machine)
                    self._look_at_log(machine, where, log, leads=is_newest)

    def _look_who_leads(self, machine: Machine, where: Where, partition: Partition) -> None:
        if not partition.is_leader:
            return
        leader = self._leaders.setdefault((where, partition.leader_epoch), machine)
        if partition.leader_epoch > self._newest.get(where, (-1, machine))[0]:
            self._newest[where] = (partition.leader_epoch, machine)
        if leader is not machine:
            raise self.world.broken(f"{machine} and {leader} lead {partition!r}")

    def may_be_outdated(self, machine: Machine, where: Where) -> bool:
        """Whether another machine leads, or led, in a newer epoch: a leader cut off from the others answers as before.

        Nor does one that leads no more know as much as its successor: any replica answers (KIP-392). Clients that name
        the leader epoch they know are told (KIP-320); these do not.
        """
        partition = machine.broker.replicas.partitions.get(where) if machine.up else None
        is_led_here = partition is not None and partition.is_leader
        return not is_led_here or self._newest.get(where, (-1, machine))[1] is not machine

    def is_since(self, moment: Moment, where: Where) -> bool:
        """Whether nothing was lost of a partition since a moment."""
        return where not in self.allowed_loss.lost_from and super().is_since(moment, where)

    def _look_at_log(self, machine: Machine, where: Where, log: Log, *, leads: bool) -> None:
        start, high_watermark, end = log.log_start_offset, log.high_watermark, log.log_end_offset
        known, before = self._bounds.get((machine, where), (log, 0))
        if not start <= high_watermark <= end:
            why = "out of order"
        elif known is log and high_watermark < before and where not in self.allowed_loss.lost_from:
            why = f"the high watermark was {before}"
        elif self.allowed_loss.check(machine, where, log, leads=leads):
            why = "it leads, and lacks what was committed"
        else:
            self._bounds[machine, where] = (log, high_watermark)
            return
        state = f"{where} on {machine}: log start {start}, high watermark {high_watermark}, end {end}"
        raise self.world.broken(f"{state}: {why}")

    def log_end(self, where: Where) -> int:
        """Where a partition ends, on its leader."""
        log = self._leading_log(where)
        return 0 if log is None else log.log_end_offset

    def _leading_log(self, where: Where) -> Log | None:
        for machine in self._machines:
            partition = machine.broker.replicas.partitions.get(where) if machine.up else None
            if partition is not None and partition.is_leader:
                return partition.log
        return None

    # ---- whole logs

    def agree(self) -> None:
        """All logs that run agree below their high watermarks."""
        for where in {where: None for machine in self._machines if machine.up for where in _partitions(machine)}:
            logs = [(each, log) for each in self._machines if each.up and (log := _partitions(each).get(where))]
            for (one, first), (other, second) in pairwise(logs):
                end = min(first.high_watermark, second.high_watermark, self._kept_to(where))
                start = max(first.log_start_offset, second.log_start_offset)
                with _undisturbed(one), _undisturbed(other):
                    is_same = start >= end or self.is_same(where, first, second, range(start, end))
                if not is_same:
                    raise self.world.broken(f"{where} is not the same on {one} and {other}, {start} to {end}")

    def is_same(self, where: Where, first: Log, second: Log, offsets: range) -> bool:
        """Whether two logs of a partition are as they should be to each other."""
        return _bytes(first, offsets.start, offsets.stop) == _bytes(second, offsets.start, offsets.stop)

    def is_kept(self, where: Where, there: Mapping[int, bytes], offset: int, value: bytes) -> bool:
        """Whether a log has what was promised of an offset. there: its values."""
        return there.get(offset) == value

    def _kept_to(self, where: Where) -> int:
        return self.allowed_loss.lost_from.get(where, FOREVER)

    def all_is_there(self) -> None:
        """Every replica is the same to its end, and has every record that a client was promised."""
        self.agree()
        for where, promise in self.partitions.items():
            for machine in self._machines:
                log = _partitions(machine).get(where)
                if log is None:
                    continue
                if log.high_watermark != log.log_end_offset:
                    raise self.world.broken(f"{where} on {machine} is not committed to its end: {log}")
                there = values_in(log)
                for offset, value in promise.known.items():
                    is_promised = log.log_start_offset <= offset < self._kept_to(where)
                    if is_promised and not self.is_kept(where, there, offset, value):
                        raise self.world.broken(f"{where} on {machine}: {value!r} was promised at {offset}")


def _partitions(machine: Machine) -> dict[Where, Log]:
    return {where: each.log for where, each in machine.broker.replicas.partitions.items() if each.log is not None}


@contextmanager
def _undisturbed(machine: Machine) -> Iterator[None]:
    """While the judge looks, the disk does not fail: its faults are the broker's to meet."""
    fault, machine.disk.fault = machine.disk.fault, None
    try:
        yield
    finally:
        machine.disk.fault = fault


def _bytes(log: Log, start: int, end: int) -> bytes:
    """The batches from the one that holds `start`, below `end`."""
    out, offset = bytearray(), start
    while offset < end:
        fetched = log.read(offset, SCAN_BYTES, end)
        if fetched.region is None:
            break
        for piece in pieces(memoryview(fetched.region.read())):
            offset = piece.last_offset + 1
            if piece.last_offset < end:
                out += piece.data
    return bytes(out)


def values_in(log: Log) -> dict[int, bytes]:
    """Every record's value by its offset."""
    data = memoryview(_bytes(log, log.log_start_offset, log.log_end_offset))
    return {record.offset: bytes(record.value or b"") for piece in pieces(data) for record in piece.records()}


class ReplicatedSwarm:
    """A world of three to five machines, or more, each topic on three of them. `run` lets it live."""

    has_old_topics = True  # whether there may be some
    more_topics: Sequence[Topic] = ()
    more_settings: Mapping[str, str] = {}

    def __init__(
        self,
        seed: int,
        kept_lines: int | None = 400,
        kinds: Sequence[str] | None = None,
        *,
        machines: int | None = None,
    ) -> None:
        """kinds: of faults, machines: how many; None lets the seed choose."""
        self.world = World(seed, kept_lines)
        rng = self.world.rng("replicated")
        self.net = Net(self.world, (0, rng.choice((0, 3, 40))))
        self.checks = self._make_checks()
        self.topics = [
            Topic("alpha", rng.randint(1, 4), _settings(rng.choice(("2000", "20000"))), replicas=3),
            Topic("beta", 1, _settings("1000000"), replicas=3),
        ]
        old_chance = self.world.rng("old formats")
        has_old = old_chance.random() < OLD_SHARE and self.has_old_topics
        self.old_topics = [_old_topic(old_chance)] if has_old else []
        self.all_topics = [*self.topics, *self.old_topics, *self.more_topics]
        store_chance = self.world.rng("store")
        self.ensemble = Ensemble(lambda ms, job: void(self.world.after(ms, job)), lambda: store_chance.randint(0, 2))
        lag_ms = rng.choice(("2000", "10000"))
        settings = {
            "log.index.size.max.bytes": "4096",
            "offsets.topic.num.partitions": "1",
            "replica.lag.time.max.ms": lag_ms,
            "num.replica.fetchers": rng.choice(("1", "2")),
            "default.replication.factor": "3",
            **self.more_settings,
        }
        if self.old_topics:
            settings["inter.broker.protocol.version"] = "2.8"  # a later one keeps no old formats
            settings["replica.high.watermark.checkpoint.interval.ms"] = old_chance.choice(("100", "5000"))
        is_flushed = rng.random() < 0.4 if kinds is None else not set(kinds) <= set(FAULTS)
        if is_flushed:
            settings["log.flush.interval.messages"] = "1"
        compose = self._make_compose(settings)
        count = machines or rng.choice((3, 3, 4, 5))
        self.machines = [Machine(self.world, self.net, number, compose) for number in range(1, count + 1)]
        for machine in self.machines:
            self.checks.watch(machine)
        self.world.watchers.append(self.checks.check)
        founder = TopicCreator("founder", self.world, self.net, self.machines, self.checks)
        founder.topics = self.all_topics
        self.producers = [self._producer(number) for number in range(rng.randint(1, 3))]
        self.consumers = [self._consumer(number) for number in range(rng.randint(1, 2))]
        self.members = [self._member(number) for number in range(rng.choice((0, 2, 3)))]
        self.clients: list[Client] = [founder, *self.producers, *self.consumers, *self.members, *self._more_clients()]
        if kinds is None:
            kinds = [kind for kind in self._kinds_of_faults(is_flushed=is_flushed) if rng.random() < 0.4]
        names = [client.name for client in self.clients]
        self.faults = Faults(self.world, self.net, self.machines, names, kinds)

    def _make_compose(self, settings: Mapping[str, str]) -> Compose:
        return one_of_several(settings, self.ensemble)

    def _kinds_of_faults(self, *, is_flushed: bool) -> Sequence[str]:
        """Those that may be on in this world."""
        return FLUSHED_FAULTS if is_flushed else FAULTS

    def _make_checks(self) -> ReplicatedChecks:
        return ReplicatedChecks(self.world)

    def _more_clients(self) -> Sequence[Client]:
        return ()

    def _new_producer(self, name: str) -> Producer:
        return Producer(name, self.world, self.net, self.machines, self.checks)

    def _producer(self, number: int) -> Producer:
        producer = self._new_producer(f"producer-{number}")
        producer.idempotent = producer.rng.random() < 0.7
        if self.old_topics and number == 0:
            producer.idempotent = False
        producer.topics = [*self.topics, *self.more_topics] if producer.idempotent else self.all_topics
        producer.acks = -1
        producer.pace_ms = producer.rng.choice((200, 1_000))
        producer.tries = 200
        return producer

    def _consumer(self, number: int) -> Consumer:
        consumer = Consumer(f"consumer-{number}", self.world, self.net, self.machines, self.checks)
        consumer.topics = self.all_topics
        consumer.sessions = consumer.rng.random() < 0.7
        consumer.max_wait_ms = 1_000
        consumer.pace_ms = 300
        return consumer

    def _member(self, number: int) -> Member:
        member = Member(f"member-{number}", self.world, self.net, self.machines, self.checks)
        member.group = "group"
        member.topics = self.topics
        member.static = member.rng.random() < 0.4
        member.restless = member.rng.random() < 0.5
        member.commit_ms = member.rng.choice((500, 5_000))
        member.max_wait_ms = 1_000
        return member

    def run(self, faults_ms: int = FAULTS_MS, healing_ms: int = 120_000) -> int:
        """Let it live, heal it, hold it to its promises. Returns: records acknowledged. Raises: Broken."""
        world = self.world
        self.faults.start(self.clients)
        while world.now_ms < faults_ms:
            world.run_until(world.now_ms + 1_000)
            self.checks.agree()
        self._heal()
        for member in self.members:
            member.restless = False
        before = self.checks.acknowledged
        world.run_until(world.now_ms + healing_ms // 2)
        if self.checks.acknowledged == before:
            raise world.broken("nothing gets through since everything works again")
        for producer in self.producers:
            producer.stop()
        world.run_until(world.now_ms + healing_ms // 2)
        self._check_whole()
        self.checks.all_is_there()
        if self.members:
            all_is_shared(self.checks, self.members, self.topics)
        return self.checks.acknowledged

    def _heal(self) -> None:
        self.faults.heal()

    def _check_whole(self) -> None:
        """All brokers are there, everything is led and in sync, and all have been told the same."""
        check_whole(self.world, self.ensemble, self.machines)
        self._all_in_sync()

    def _all_in_sync(self) -> None:
        for topic in self.all_topics:
            for index in range(topic.partitions):
                node = self.ensemble.tree.nodes[state_path(topic.name, index)]
                state = decode_state(node.data, node.stat())
                if len(state.isr) < topic.replicas:
                    raise self.world.broken(f"{topic.name}-{index}: in sync are only {state.isr}")


def _old_topic(rng: random.Random) -> Topic:
    settings = {**_settings(rng.choice(("2000", "1000000"))), "message.format.version": rng.choice(OLD_FORMATS)}
    return Topic("older", rng.randint(1, 2), settings, replicas=3)


def _settings(segment_bytes: str) -> dict[str, str]:
    return {
        "retention.ms": "-1",
        "segment.index.bytes": "4096",
        "segment.bytes": segment_bytes,
        "min.insync.replicas": "2",
    }


def void(result: object) -> None:
    """Takes the result of a call, and ignores it."""
