"""The parts of one broker, put together: what handlers ask, and where facts go.

Made by `assembly.py`, driven by `core.py`. It decides nothing: a fact goes to the parts that take facts of its type,
partitions that moved to the coordinator that keeps its state in them, jobs for the disk to their runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

from kbroker.broker.authorizer import AuthHelper
from kbroker.broker.cold_reads import ColdReads
from kbroker.broker.coordinator_types import GROUP, SHARE, TRANSACTION
from kbroker.broker.counters import Counters
from kbroker.broker.decompression import Decompression
from kbroker.broker.facts import BrokerConfigChanged, JobDone, QuotasChanged, Touched
from kbroker.broker.jobs import Errand
from kbroker.log.facts import LogMoved
from kbroker.metadata.cache import MetadataDelta, TopicKey
from kbroker.metadata.entities import EntitiesChanged
from kbroker.metadata.features import FeaturesChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from kbroker.broker.alter_log_dirs import AlterLogDirs
    from kbroker.broker.client_quotas import ClientQuotas
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.coordinators import LateCoordinator
    from kbroker.broker.delegation_tokens import Tokens
    from kbroker.broker.facts import FactQueue, Handler, Part
    from kbroker.broker.fetch_sessions import FetchSessions
    from kbroker.broker.jobs import Job, Owner
    from kbroker.broker.log_background import LogBackground
    from kbroker.broker.logins import Logins
    from kbroker.broker.quorum_plane import QuorumPlane
    from kbroker.broker.session import Session
    from kbroker.broker.share_groups import ShareGroups
    from kbroker.broker.share_partitions import SharePartitions
    from kbroker.broker.store_plane import StorePlane
    from kbroker.broker.transaction_markers import TransactionMarkers
    from kbroker.broker.transaction_partitions import TransactionPartitions
    from kbroker.config import BrokerConfig
    from kbroker.coordinator import Runtime
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.groups.shard import GroupShard
    from kbroker.log.manager import LogManager
    from kbroker.metadata.features import Features
    from kbroker.ports import Clock, Random
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler
    from kbroker.txn.coordinator import TransactionCoordinator
    from kbroker.txn.shard import TransactionShard


class Leaving(Protocol):
    """A broker's way out of its cluster."""

    @property
    def is_over(self) -> bool:
        """Whether it may stop; True until it has begun."""


class Broker:
    """One broker's parts.

    facts: told, and not yet taken by the core. strict: an unexpected failure is raised instead of answered;
    simulations and tests want that. fetch_regions: of how many partitions the records go into one answer; each may hold
    a file open until it has left. scheduler: what is done in time and in slices; the core turns it.
    """

    def __init__(
        self,
        facts: FactQueue,
        plane: ControlPlane,
        logs: LogManager,
        log_background: LogBackground,
        replicas: ReplicaManager,
        coordinators: Mapping[int, LateCoordinator],
        make_markers: Callable[[], TransactionMarkers],
        make_share_partitions: Callable[[], SharePartitions],
        transaction_partitions: TransactionPartitions,
        fetch_sessions: FetchSessions,
        clock: Clock,
        random: Random,
        scheduler: Scheduler,
        *,
        strict: bool,
        fetch_regions: int,
    ) -> None:
        self.facts = facts
        self.tell = facts.append
        self.plane = plane
        self.logs = logs
        self.replicas = replicas
        self.coordinators = coordinators
        self._groups, self._transactions = coordinators[GROUP.key_type], coordinators[TRANSACTION.key_type]
        self.group_runtime: Runtime[GroupShard] = self._groups.runtime
        self.transaction_runtime: Runtime[TransactionShard] = self._transactions.runtime
        self._make_markers = make_markers
        self._markers: TransactionMarkers | None = None
        self.share_coordinator = coordinators[SHARE.key_type]
        self._make_share_partitions = make_share_partitions
        self._share_partitions: SharePartitions | None = None
        self._share_groups: ShareGroups | None = None
        self.transaction_partitions = transaction_partitions
        self.fetch_sessions = fetch_sessions
        self.clock = clock
        self.random = random
        self.strict = strict
        self.fetch_regions = fetch_regions
        self.auth_helper = AuthHelper()
        self.delegation_tokens: Tokens | None = None  # where there is a key to sign them with
        self.logins: Logins | None = None  # where a listener speaks SASL
        self.counters = Counters()
        self.decompression = Decompression(self.give)
        self.cold_reads = ColdReads(self.give, replicas, self.tell)
        self.leaving: Leaving  # is put in with what it needs
        self.scheduler = scheduler
        self._log_background = log_background
        self._alter_log_dirs: AlterLogDirs | None = None
        self._coordinators = {each.topic: each for each in coordinators.values()}
        self._errands: list[Errand] = []
        for each in coordinators.values():
            each.give_jobs_to(self.give)
        for_who_needs_them = (BrokerConfigChanged, EntitiesChanged, FeaturesChanged, LogMoved)
        self._handlers: dict[type, list[Handler]] = {fact: [] for fact in for_who_needs_them}
        self.on(JobDone, lambda fact, now_ms: fact.errand.owner.finished(fact.errand.job, fact.error, now_ms))
        parts: list[Part] = [plane, *coordinators.values(), transaction_partitions, log_background]
        for part in parts:
            self.add(part)
        self.on(MetadataDelta, lambda fact, now_ms: self.tell(Touched([TopicKey(topic) for topic in fact.topics])))
        self.quotas: ClientQuotas | None = None  # from the first one on
        self.on(EntitiesChanged, lambda fact, now_ms: self._heed_entities(fact))
        if logs.has_futures:
            self._load_alter_log_dirs()  # which are to hear who leads what

    @property
    def store_plane(self) -> StorePlane:
        """The control plane of a broker with a metadata store, for what only such a broker has or does."""
        return cast("StorePlane", self.plane)

    @property
    def quorum_plane(self) -> QuorumPlane:
        """The control plane of a member of a quorum's cluster, for what only such a broker does."""
        return cast("QuorumPlane", self.plane)

    @property
    def config(self) -> BrokerConfig:
        """The settings as they are now: some change while the broker runs."""
        return self.plane.configs.broker

    @property
    def features(self) -> Features:
        """What the cluster has finalized: `broker.features.is_on(GROUP_VERSION)`."""
        return self.plane.features

    @property
    def groups(self) -> GroupCoordinator:
        """What is asked of groups; its code is loaded with the first question."""
        return cast("GroupCoordinator", self._groups.coordinator)

    @property
    def transactions(self) -> TransactionCoordinator:
        """What is asked of transactions; its code is loaded with the first question."""
        return cast("TransactionCoordinator", self._transactions.coordinator)

    @property
    def markers(self) -> TransactionMarkers:
        """Outcomes of transactions on their way into partitions, from the first of them on."""
        if self._markers is None:
            self._markers = self._make_markers()
        return self._markers

    @property
    def share_partitions(self) -> SharePartitions:
        """What partitions led here are to share groups; a part from the first ShareFetch on."""
        if self._share_partitions is None:
            share = self._share_partitions = self._make_share_partitions()
            self.add(share)
            self.add(share.requests)
        return self._share_partitions

    @property
    def share_groups(self) -> ShareGroups:
        """Share groups that this broker coordinates, as share coordinators see them."""
        if self._share_groups is None:
            from kbroker.broker.share_groups import ShareGroups  # most brokers have none

            self._share_groups = ShareGroups(self)
            self.add(self._share_groups)
        return self._share_groups

    @property
    def share_partitions_in_use(self) -> SharePartitions | None:
        """The same, for who looks at them; None if there was no ShareFetch yet."""
        return self._share_partitions

    @property
    def alter_log_dirs(self) -> AlterLogDirs:
        """Replicas on their way between log directories; a part from the first of them on."""
        return self._alter_log_dirs or self._load_alter_log_dirs()

    def _load_alter_log_dirs(self) -> AlterLogDirs:
        from kbroker.broker.alter_log_dirs import AlterLogDirs

        moves = self._alter_log_dirs = AlterLogDirs(self.logs, self.replicas, self.clock, self.scheduler, self.give)
        self.add(moves)
        return moves

    def _heed_entities(self, fact: EntitiesChanged) -> None:
        """Something else is set for users, clients or addresses: perhaps quotas."""
        entities = self.plane.entities
        quotas = self.quotas
        if quotas is None:
            from kbroker.broker.client_quotas import QUOTAS, ClientQuotas  # most brokers have none

            if all(entities.of(path).keys().isdisjoint(QUOTAS) for path in fact.paths):
                return
            quotas = self.quotas = ClientQuotas(self.config)
        before = quotas.kinds
        for path in fact.paths:
            quotas.set_entity(path, entities.of(path))
        if quotas.kinds != before:
            self.tell(QuotasChanged())

    # -- where facts go

    def add(self, part: Part) -> None:
        """One more part that facts reach."""
        for kind, handler in part.handlers.items():
            self.on(kind, handler)

    def on(self, kind: type, handler: Handler) -> None:
        """Hand facts of this type to `handler`, too, after those that came before."""
        self._handlers.setdefault(kind, []).append(handler)

    def handle(self, fact: object, now_ms: int) -> None:
        """A fact, from within or from outside."""
        for handler in self._handlers[fact.__class__]:
            handler(fact, now_ms)

    def take_touched(self) -> Sequence[Hashable]:
        """The partitions that moved since the last time: keys of the purgatory. Coordinators hear of theirs."""
        replicas = self.replicas
        touched, replicas.touched = replicas.touched, []
        for partition in touched:
            if partition.is_internal:
                coordinator = self._coordinators.get(partition.topic)
                if coordinator is not None:
                    coordinator.moved(partition, self.clock.now_ms())
        markers = self._markers
        if markers is not None and markers.uncommitted:
            for partition in touched:
                markers.moved(partition, self.clock.now_ms())
        share = self._share_partitions
        if share is not None and share.awaits_dead_letters:
            for partition in touched:
                share.moved(partition, self.clock.now_ms())
        return touched

    @property
    def held_bytes(self) -> int:
        """Memory in use for clients beside what is held for their connections, about: groups, fetch sessions."""
        return sum(each.held_bytes for each in self.coordinators.values()) + self.fetch_sessions.held_bytes

    # -- work for the disk

    def give(self, job: Job, owner: Owner) -> None:
        """Have a job run; `owner` hears of its end."""
        self._errands.append(Errand(job, owner))

    def take_jobs(self) -> list[Errand]:
        """What is to be run, in any order; each comes back as a JobDone."""
        if not self._errands and not self.logs.busy:  # asked after every event
            return []
        errands, self._errands = self._errands, []
        errands += self._log_background.take_jobs()
        return errands

    def disk_failed(self, error: OSError) -> None:
        """An OSError reached the core: if it names a file in a log directory, that one goes offline."""
        if isinstance(error.filename, str):
            self.logs.disk_failed(error.filename, error)

    # -- clients

    def disconnected(self, session: Session) -> None:
        """A client has gone. Its group memberships outlive its connection, and so do its fetch sessions if they may.

        Share sessions do not.
        """
        self.fetch_sessions.disconnected(session)
        if self._share_partitions is not None:
            self._share_partitions.disconnected(session)
        if self.logins is not None:
            self.logins.disconnected(session)
