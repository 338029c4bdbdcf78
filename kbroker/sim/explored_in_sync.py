"""A model for the explorer (explorer.py): leader, followers and the in-sync set of one partition.

Each broker has a real `Partition` (replica/partition.py) over a log that only knows the leader epoch of each record.
The controller elects from the in-sync set, grants changes of it, and tells each broker when it likes: brokers act on
old news. Followers fetch, fall behind, crash and come back with their log. A proposal is granted with or without the
leader hearing of it, or refused. Left out: unclean elections, disks that forget, and how a follower finds where its log
differs.

Brokers are interchangeable: states that only differ in their names are one, as are those that only differ in what
cannot matter any more (`InSyncModel.key` says what). Any of those in sync may be elected, whatever their order. So two
brokers and three are explored to the end.

What must hold: what was below the high watermark of a leader stays, on every replica that the controller has in sync,
and so on each leader to come; no two leaders commit different records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from itertools import permutations
from typing import Any, TypeAlias

from kbroker.replica.followers import NEVER_MS, Follower, InSyncRules
from kbroker.replica.partition import LeaderState, Partition
from protocol.errors import KafkaError
from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

NO_LEADER = -1
NOW_MS, LAG_MS = 0, 10


class _Config:
    has_epochs = True


class ShortLog:
    """As much of a log as a Partition asks for. records: the leader epoch of each."""

    config = _Config()
    __slots__ = ("high_watermark", "records")

    def __init__(self, records: tuple[int, ...] = (), high_watermark: int = 0) -> None:
        self.records = records
        self.high_watermark = high_watermark

    @property
    def log_end_offset(self) -> int:
        """See Log."""
        return len(self.records)

    def set_high_watermark(self, offset: int) -> int:
        """See Log."""
        self.high_watermark = min(offset, len(self.records))
        return self.high_watermark

    def commit_all(self) -> None:
        """See Log."""
        self.high_watermark = len(self.records)

    def begin_epoch(self, epoch: int) -> None:
        """See Log."""


class Append(NamedTuple):
    """A client writes to a broker that thinks that it leads."""

    broker: int


class Fetch(NamedTuple):
    """A follower fetches from the broker that it thinks leads."""

    broker: int


class FallsBehind(NamedTuple):
    """Followers that a leader has not caught up have been so for too long; it may propose to go on without them."""

    broker: int


class Decides(NamedTuple):
    """The controller answers a leader's proposal. is_heard: whether the leader hears of it."""

    broker: int
    is_heard: bool


class Told(NamedTuple):
    """The controller's news reach a broker."""

    broker: int


class Crashes(NamedTuple):
    """A broker dies; the controller notices, and elects another leader if it was the leader. elected: who, or -1."""

    broker: int
    elected: int = NO_LEADER


class Returns(NamedTuple):
    """It is back, with its log."""

    broker: int


InSyncEvent: TypeAlias = Append | Fetch | FallsBehind | Decides | Told | Crashes | Returns


class Cluster:
    """partitions: a broker's, None while it is dead. logs: what each has on disk. committed: what no one may lose."""

    __slots__ = ("committed", "decided", "logs", "partitions")

    def __init__(self, decided: LeaderState, brokers: int) -> None:
        self.decided = decided
        self.partitions: list[Partition | None] = [None] * brokers
        self.logs = [ShortLog() for _ in range(brokers)]
        self.committed: tuple[int, ...] = ()


class InSyncModel:
    """records, epochs: how many there are at most. make: the partition's class, in tests one with a fault."""

    def __init__(
        self,
        *,
        brokers: int = 2,
        records: int = 2,
        epochs: int = 3,
        min_insync: int = 1,
        make: type[Partition] = Partition,
    ) -> None:
        self._brokers = range(brokers)
        self._records = records
        self._epochs = epochs
        self._min_insync = min_insync
        self._make = make
        self._alive: set[int] = set()
        self._rules = InSyncRules(lambda: NOW_MS, LAG_MS)
        self._rules.is_alive = lambda broker: broker in self._alive

    def begins(self) -> list[Cluster]:
        """All brokers are in sync, the first leads."""
        everyone = tuple(self._brokers)
        cluster = Cluster(LeaderState(1, 0, 0, everyone, 0, everyone), len(everyone))
        self._alive = set(everyone)
        for broker in everyone:
            cluster.partitions[broker] = self._new(broker)
        for broker in everyone:
            self._deliver(cluster, broker)
        return [cluster]

    def events(self, state: Cluster) -> Iterator[InSyncEvent]:
        """See the top of this file."""
        for broker in self._brokers:
            partition = state.partitions[broker]
            if partition is None:
                yield Returns(broker)
                continue
            if partition.is_leader:
                yield Append(broker)
                yield FallsBehind(broker)
                yield from (Decides(broker, heard) for heard in (True, False) if partition.proposal is not None)
            else:
                yield Fetch(broker)
            yield Told(broker)
            if state.decided.leader_epoch < self._epochs:
                alive = [each for each in state.decided.isr if state.partitions[each] is not None and each != broker]
                may_lead = alive if state.decided.leader == broker else []
                yield from (Crashes(broker, each) for each in may_lead or (NO_LEADER,))

    def after(self, state: Cluster, event: InSyncEvent) -> Cluster | None:
        """See Model."""
        after = _copy(state)
        self._alive = {broker for broker in self._brokers if after.partitions[broker] is not None}
        what: dict[type[Any], Callable[..., bool]] = {
            Append: self._append,
            Fetch: self._fetch,
            FallsBehind: self._fall_behind,
            Decides: self._decide,
            Told: self._deliver,
            Crashes: self._crash,
            Returns: self._return,
        }
        if not what[type(event)](after, *event):
            return None
        for partition, log in zip(after.partitions, after.logs, strict=True):
            told = log.records[: log.high_watermark]
            if partition is not None and partition.is_leader and told[: len(after.committed)] == after.committed:
                after.committed = told
        return after

    # -- what happens; each says whether anything did

    def _append(self, cluster: Cluster, broker: int) -> bool:
        partition, log = self._at(cluster, broker)
        if len(log.records) == self._records:
            return False
        try:
            partition.check_appendable()
        except KafkaError:
            return False
        log.records = (*log.records, partition.leader_epoch)
        partition.advance_high_watermark()
        return True

    def _fetch(self, cluster: Cluster, broker: int) -> bool:
        follower, own = self._at(cluster, broker)
        leader = cluster.partitions[follower.leader_id] if follower.leader_id != NO_LEADER else None
        if leader is None or not leader.is_leader or broker not in leader.followers:
            return False
        if leader.leader_epoch != follower.leader_epoch:
            return False
        log = cluster.logs[leader.broker_id]
        before = own.records, own.high_watermark, log.high_watermark, _known(leader)
        common = _common(own.records, log.records)
        own.records = own.records[:common]
        leader.follower_fetched(broker, common, 0, 0, NOW_MS)
        own.records = log.records[: common + 1]  # one record at a time
        own.high_watermark = min(log.high_watermark, len(own.records))
        return before != (own.records, own.high_watermark, log.high_watermark, _known(leader))

    def _fall_behind(self, cluster: Cluster, broker: int) -> bool:
        leader, log = self._at(cluster, broker)
        before = _known(leader)
        for follower in leader.followers.values():
            if follower.log_end_offset != log.log_end_offset:
                follower.caught_up_ms = follower._fetched_ms = NEVER_MS
        leader.maybe_shrink_isr(NOW_MS)
        return before != _known(leader) or leader.advance_high_watermark()

    def _decide(self, cluster: Cluster, broker: int, is_heard: bool) -> bool:
        """The set that is proposed becomes the set, if the proposal is about the state that there is (KIP-497)."""
        leader, _ = self._at(cluster, broker)
        proposal, decided = leader.proposal, cluster.decided
        assert proposal is not None
        fits = (proposal.leader_epoch, proposal.partition_epoch) == (decided.leader_epoch, decided.partition_epoch)
        if not fits or decided.leader != broker:
            return False  # the leader waits for news: its proposal may be the set already
        if not self._alive.issuperset(proposal.isr):
            if is_heard:
                leader.withdraw(proposal)
            return is_heard
        cluster.decided = decided._replace(isr=proposal.isr, partition_epoch=decided.partition_epoch + 1)
        if is_heard:
            leader.granted(proposal, proposal.isr, decided.leader_epoch, cluster.decided.partition_epoch)
        return True

    def _deliver(self, cluster: Cluster, broker: int) -> bool:
        partition, log = self._at(cluster, broker)
        decided = cluster.decided
        if (partition.leader_epoch, partition.partition_epoch) == (decided.leader_epoch, decided.partition_epoch):
            return False
        (partition.lead if decided.leader == broker else partition.follow)(decided, _as_log(log))
        return True

    def _crash(self, cluster: Cluster, broker: int, elected: int) -> bool:
        cluster.partitions[broker] = None
        decided = cluster.decided
        if decided.leader == broker:
            alive = tuple(each for each in decided.isr if cluster.partitions[each] is not None)
            self._elect(cluster, elected, alive or decided.isr)
        return True

    def _elect(self, cluster: Cluster, leader: int, isr: tuple[int, ...]) -> None:
        decided = cluster.decided
        cluster.decided = decided._replace(
            leader=leader,
            leader_epoch=decided.leader_epoch + 1,
            isr=isr,
            partition_epoch=decided.partition_epoch + 1,
        )

    def _return(self, cluster: Cluster, broker: int) -> bool:
        cluster.partitions[broker] = self._new(broker)
        decided = cluster.decided
        if decided.leader == NO_LEADER and broker in decided.isr:
            self._elect(cluster, broker, (broker,))
        self._deliver(cluster, broker)
        return True

    def _new(self, broker: int) -> Partition:
        made = self._make("topic", 0, ZERO_UUID, broker, self._rules, is_internal=False)
        made.min_insync_replicas = self._min_insync
        return made

    def _at(self, cluster: Cluster, broker: int) -> tuple[Partition, ShortLog]:
        partition = cluster.partitions[broker]
        assert partition is not None, broker
        return partition, cluster.logs[broker]

    # -- what is looked at

    def key(self, state: Cluster) -> Hashable:
        """The state, whichever way its brokers are named: the smallest of its names.

        Clocks only know "now" and "long ago". Partition epochs are only compared with the one that is decided, so that
        of each counts whether it is that one. Of a follower counts whom it follows and in which epoch: it does not use
        what it hears of the in-sync set, and hears it again when it is to lead. Sets have no order.
        """
        seen = [_seen(state, broker) for broker in self._brokers]
        first = sorted(seen)
        orders = [order for order in permutations(self._brokers) if [seen[broker] for broker in order] == first]
        return min(_named(state, order) for order in orders)

    def objection(self, before: Cluster, event: InSyncEvent, after: Cluster) -> str | None:
        """See the top of this file."""
        committed = after.committed
        for partition, log in zip(after.partitions, after.logs, strict=True):
            told = log.records[: log.high_watermark]
            if partition is not None and partition.is_leader and told != committed[: log.high_watermark]:
                return f"broker {partition.broker_id} commits {told}, committed is {committed}"
        for broker in after.decided.isr:
            if after.logs[broker].records[: len(committed)] != committed:
                return f"broker {broker} is in sync, and has {after.logs[broker].records} of {committed}"
        return None


def _seen(state: Cluster, broker: int) -> tuple[Any, ...]:
    """Some of what tells a broker from others, whatever they are called: it saves most of the namings."""
    log, partition, decided = state.logs[broker], state.partitions[broker], state.decided
    epoch = -2 if partition is None else partition.leader_epoch
    return broker == decided.leader, broker in decided.isr, epoch, log.records, log.high_watermark


def _named(state: Cluster, order: tuple[int, ...]) -> tuple[Any, ...]:
    """All that the future depends on, as values that have an order. order: who is called 0, 1, ..."""
    name = {NO_LEADER: NO_LEADER, **{broker: at for at, broker in enumerate(order)}}
    decided = state.decided
    epoch = decided.partition_epoch

    def all_named(brokers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(name[each] for each in brokers))

    def part(partition: Partition) -> tuple[Any, ...]:
        role = partition.is_leader, partition.leader_epoch, partition.partition_epoch == epoch
        if not partition.is_leader:
            return *role, name[partition.leader_id]
        asked = partition.proposal
        proposal = () if asked is None else (all_named(asked.isr), name[asked.joining], asked.partition_epoch == epoch)
        followers = tuple(sorted((name[each.broker_id], *_known_of(each)) for each in partition.followers.values()))
        return *role, all_named(partition.isr), proposal, partition._epoch_start, followers

    brokers = []
    for broker in order:
        log, partition = state.logs[broker], state.partitions[broker]
        brokers.append((log.records, log.high_watermark, () if partition is None else part(partition)))
    return tuple(brokers), name[decided.leader], decided.leader_epoch, all_named(decided.isr), state.committed


def _known(partition: Partition) -> Hashable:
    """What a broker knows of a partition, as a value."""
    followers = tuple((each.broker_id, *_known_of(each)) for each in partition.followers.values())
    role = partition.is_leader, partition.leader_id, partition.leader_epoch, partition.partition_epoch, partition.isr
    return role, partition.proposal, partition._epoch_start, followers


def _known_of(follower: Follower) -> tuple[int, int, int, int]:
    return follower.log_end_offset, follower.caught_up_ms, follower._fetched_ms, follower._leader_end_then


def _copy(state: Cluster) -> Cluster:
    after = copy.copy(state)
    after.logs = [ShortLog(log.records, log.high_watermark) for log in state.logs]
    after.partitions = [
        None if partition is None else _copy_of(partition, log)
        for partition, log in zip(state.partitions, after.logs, strict=True)
    ]
    return after


def _copy_of(partition: Partition, log: ShortLog) -> Partition:
    made = copy.copy(partition)
    made.log = _as_log(log)
    made.followers = {broker: _copy_of_follower(each) for broker, each in partition.followers.items()}
    return made


def _copy_of_follower(follower: Follower) -> Follower:
    return copy.copy(follower)


def _as_log(log: ShortLog) -> Any:
    return log


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many records two logs have in common."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
