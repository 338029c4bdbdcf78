"""A simulated world of transactions from one seed: producers, mappers and readers of committed records, and faults.

`simulate(seed)` is what `scripts/sim transactions` and the tests run. Some transactional ids are held by several
clients that fence each other; some transactions are walked away from; machines die in the middle of a write, are cut
off, come back. `Ledger` and `Checks` look on. After the faults the world heals: then every input must have been counted
exactly once, every reader must have had all that was committed and nothing else, and no transaction may be open.
Where power fails, records are flushed before a client is told of them: else one replica cannot keep a promise. In half
of the other worlds of three machines or more, each partition has three replicas, those of the coordinators, too: there
another machine takes over what its former leader has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.metadata.cache import TRANSACTION_STATE
from kbroker.sim.admins import TopicCreator
from kbroker.sim.checks import Checks
from kbroker.sim.committed import CommittedReader
from kbroker.sim.compose import alone, one_of_several
from kbroker.sim.faults import Faults
from kbroker.sim.ledger import Ledger, stable_ends
from kbroker.sim.machine import Machine
from kbroker.sim.net import Net
from kbroker.sim.producers import Producer
from kbroker.sim.replicated import ReplicatedChecks
from kbroker.sim.store import Ensemble
from kbroker.sim.topics import Topic
from kbroker.sim.transactors import Mapper, Transactor
from kbroker.sim.whole import check_whole
from kbroker.sim.world import World
from kbroker.txn.state import State
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    import random

    from kbroker.log.log import Log
    from kbroker.sim.checks import Where
    from kbroker.sim.client import Client

FAULTS_MS = 120_000
HEALING_MS = 90_000
"""By when everything must work again: two request timeouts, and the longest transaction that was walked away from."""
HURRY_MS = 100  # between the transactions of who has to work off a backlog
LOOK_MS = 5_000
OVERDUE_LOOK_MS = 2_000  # transaction.abort.timed.out.transaction.cleanup.interval.ms
SLACK_MS = 3_000
TIMEOUTS_MS = (3_000, 10_000, 30_000)
KINDS = (
    *("kill", "kill within", "stop", "cut", "wall", "slow network", "slow disk", "disk error", "dead disk"),
    *("clock", "session", "store cut", "lost answers", "link", "zombie"),
)


REPLICAS = 3
REPLICATED = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}
ONE_REPLICA_FAULTS = ("disk error", "dead disk")
"""Of machines that fail for good one after the other there are too few for three replicas."""


class Outcome(NamedTuple):
    """What a world came to. digest: of everything that happened in it."""

    seed: int
    digest: str
    events: int
    committed: int
    aborted: int
    counted: int
    boots: int


class ExactlyOnce:
    """A world of transactions.

    kinds: of faults. replicated: whether each partition has three replicas. None lets the seed choose.
    """

    def __init__(
        self,
        seed: int,
        machines: int | None = None,
        kinds: Sequence[str] | None = None,
        kept_lines: int | None = 400,
        *,
        replicated: bool | None = None,
    ) -> None:
        self.seed = seed
        self.world = World(f"transactions/{seed}", kept_lines)
        rng = self.world.rng("exactly once")
        self.net = Net(self.world, (0, rng.choice((0, 3, 40))))
        self.ledger = Ledger(self.world)
        self.power = rng.random() < 0.5
        if kinds is None:
            kinds = [kind for kind in (*KINDS, *(("power",) if self.power else ())) if rng.random() < 0.5]
        topics = _topics(rng, power="power" in kinds)
        store_chance = self.world.rng("store")
        self.ensemble = Ensemble(self._later, lambda: store_chance.randint(0, 2))
        settings = _settings(power="power" in kinds)
        count = rng.choice((1, 3, 3, 4)) if machines is None else machines
        if replicated is None:
            replicated = count >= REPLICAS and "power" not in kinds and self.world.rng("replicas").random() < 0.5
        self.checks = ReplicatedChecks(self.world) if replicated else Checks(self.world)
        self.topics = [topic._replace(replicas=REPLICAS) for topic in topics] if replicated else topics
        if replicated:
            kinds = [kind for kind in kinds if kind not in ONE_REPLICA_FAULTS]
            settings |= REPLICATED
        self._promise_flushes()
        if count == 1:
            kinds = [kind for kind in kinds if kind not in ("link", "zombie")]
        compose = alone(settings, self.ensemble) if count == 1 else one_of_several(settings, self.ensemble)
        self.machines = [Machine(self.world, self.net, number, compose) for number in range(1, count + 1)]
        for machine in self.machines:
            self.checks.watch(machine)
        self.world.watchers.append(self.checks.check)
        self._people(rng)
        self.faults = Faults(self.world, self.net, self.machines, [each.name for each in self.clients], kinds)
        self._served_since: dict[object, int] = {}
        self._looked_at: dict[tuple[Machine, Where], tuple[Log, int, int, int, int]] = {}  # bounds that were right

    def _later(self, delay_ms: int, job: Callable[[], None]) -> None:
        self.world.after(delay_ms, job)

    def _promise_flushes(self) -> None:
        for topic in self.topics:
            for index in range(topic.partitions):
                self.checks.promise((topic.name, index)).flushed_first = topic.is_flushed_first

    def _people(self, rng: random.Random) -> None:
        orders, counts, both = self.topics
        given = self.world, self.net, self.machines, self.checks
        founder = TopicCreator("founder", *given)
        founder.topics = self.topics
        self.source = Producer("orders", *given)
        self.source.topics, self.source.idempotent, self.source.acks = [orders], True, -1
        self.source.pace_ms = rng.choice((300, 1_500))
        self.mappers: list[Mapper] = []
        for index in range(orders.partitions):
            for number in range(rng.choice((1, 2))):
                mapper = Mapper(f"mapper-{index}-{number}", *given)
                mapper.transactional_id, mapper.source = f"mapper-{index}", (orders.name, index)
                mapper.topics, mapper.writes_to = [orders], [counts, both]
                mapper.asks_stable = orders.replicas > 1
                self.mappers.append(mapper)
        self.writers: list[Transactor] = []
        for number in range(rng.randint(1, 3)):
            writer = Transactor(f"writer-{number}", *given)
            writer.transactional_id = f"writer-{rng.randrange(number + 1)}"
            writer.writes_to = [both]
            self.writers.append(writer)
        for each in (*self.mappers, *self.writers):
            each.ledger = self.ledger
            each.timeout_ms = rng.choice(TIMEOUTS_MS)
            each.raises = rng.random() < 0.5
            each.pace_ms = rng.choice((100, 1_000))
        self.readers: list[CommittedReader] = []
        for number in range(2):
            reader = CommittedReader(f"reader-{number}", *given)
            reader.ledger, reader.topics = self.ledger, [counts, both]
            reader.sessions = rng.random() < 0.5
            reader.max_bytes = rng.choice((1, 1_000, 1 << 20))
            self.readers.append(reader)
        self.clients: list[Client] = [founder, self.source, *self.mappers, *self.writers, *self.readers]

    def run(self, faults_ms: int = FAULTS_MS) -> Outcome:
        """Let it live, heal it, hold it to its promises. Raises: Broken."""
        world = self.world
        self.faults.start(self.clients)
        self._look_often()
        world.run_until(faults_ms)
        self.faults.heal()
        for each in (*self.mappers, *self.writers):
            each.restless = False
        before = [each.committed for each in self.writers]
        world.run_until(world.now_ms + HEALING_MS)
        for mapper in self.mappers:
            mapper.pace_ms = HURRY_MS  # there may be more left than its own pace gets through
        for writer, was in zip(self.writers, before, strict=True):
            if writer.committed == was and not self._is_shared(writer):
                raise world.broken(f"{writer} commits nothing since everything works again")
            writer.stop()
        self.source.stop()
        world.run_until(world.now_ms + HEALING_MS)
        for mapper in self.mappers:
            mapper.stop()
        world.run_until(world.now_ms + HEALING_MS)
        self._check_end()
        return self.outcome()

    def _is_shared(self, writer: Transactor) -> bool:
        """Whether several hold its id: then some only ever fence each other."""
        return sum(each.transactional_id == writer.transactional_id for each in self.writers) > 1

    def outcome(self) -> Outcome:
        """Numbers so far."""
        boots = sum(machine.boots for machine in self.machines)
        ledger = self.ledger
        counted = len(ledger.counted)
        return Outcome(
            self.seed, self.world.digest, self.world.events, ledger.committed, ledger.aborted, counted, boots
        )

    # ---- looking on

    def _look_often(self) -> None:
        self.check()
        self.world.after(LOOK_MS, self._look_often)

    def check(self) -> None:
        """What is too costly to look at after each event. Raises: Broken."""
        for machine in self.machines:
            if not machine.up:
                continue
            fault, machine.disk.fault = machine.disk.fault, None
            for where, log in machine.broker.logs.logs():
                partition = machine.broker.replicas.partitions.get(where)
                if partition is None or not partition.is_leader or partition.log is not log:
                    continue
                bounds = log, log.log_start_offset, log.log_end_offset, log.high_watermark, log.last_stable_offset
                if self._looked_at.get((machine, where)) == bounds:
                    continue
                self._looked_at[machine, where] = bounds
                ways = stable_ends(log, machine.opened_at.get(where, 0))
                if log.last_stable_offset not in ways:
                    text = f"{where} on {machine} is stable to {log.last_stable_offset}, not to {ways[0]}"
                    raise self.world.broken(text)
            machine.disk.fault = fault
            self._look_for_overdue(machine)

    def _look_for_overdue(self, machine: Machine) -> None:
        """No transaction is open for longer than it may be, where its coordinator could have aborted it."""
        now_ms = self.world.now_ms
        for shard in machine.broker.transaction_runtime.shards.values():
            if shard.loading:
                continue
            partition = machine.broker.replicas.partitions[TRANSACTION_STATE, shard.partition]
            if partition.is_under_min_isr or shard.waiting:
                self._served_since[shard] = now_ms  # nothing can be written, or committed, for now
            since_ms = self._served_since.setdefault(shard, now_ms)
            for known in shard.transactions.values():
                due_ms = max(known.started_ms + known.timeout_ms, since_ms) + OVERDUE_LOOK_MS + SLACK_MS
                if known.state is State.ONGOING and due_ms < now_ms:
                    raise self.world.broken(f"{known} is open since {known.started_ms}")

    def _check_end(self) -> None:
        world = self.world
        check_whole(world, self.ensemble, self.machines)
        self.check()
        for machine in self.machines:
            for where, log in machine.broker.logs.logs():
                if log.last_stable_offset != log.log_end_offset:
                    raise world.broken(f"{where} ends at {log.log_end_offset}, stable to {log.last_stable_offset}")
            for shard in machine.broker.transaction_runtime.shards.values():
                for known in shard.transactions.values():
                    if known.state not in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
                        raise world.broken(f"{known} does not come to its end")
        for reader in self.readers:
            for place, position in reader.positions.items():
                end = self.checks.log_end(place)
                if position != end:
                    raise world.broken(f"{reader} is at {position} of {place}, {end} is the end")
            self.ledger.check_read(reader, reader.seen, {topic.name for topic in reader.topics})
        orders = self.topics[0]
        for index in range(orders.partitions):
            self._check_counted((orders.name, index))

    def _check_counted(self, where: Where) -> None:
        """Every input was counted; that none was twice, the ledger sees when it happens."""
        for offset in range(self.checks.log_end(where)):
            if (where, offset) not in self.ledger.counted:
                raise self.world.broken(f"{offset} of {where} is not counted, of {self.checks.log_end(where)}")


def simulate(seed: int, machines: int | None = None) -> Outcome:
    """Run the world of a seed to its end. Raises: Broken, or whatever the broker itself raised."""
    return ExactlyOnce(seed, machines).run()


def _topics(rng: random.Random, *, power: bool) -> list[Topic]:
    configs = {"retention.ms": "-1", "segment.index.bytes": "4096"}
    if power:
        configs["flush.messages"] = "1"
    if rng.random() < 0.5:
        configs["segment.bytes"] = rng.choice(("2000", "20000"))
    return [Topic("orders", 2, configs), Topic("counts", 2, configs), Topic("both", rng.randint(1, 3), configs)]


def _settings(*, power: bool) -> dict[str, str]:
    settings = {
        "log.retention.check.interval.ms": "5000",
        "log.index.size.max.bytes": "4096",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(OVERDUE_LOOK_MS),
        "producer.id.expiration.ms": "2147483647",  # the wall clock jumps: who sleeps for a day is forgotten
    }
    if power:
        settings["log.flush.interval.messages"] = "1"
    return settings
