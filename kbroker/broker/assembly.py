"""The one place where a broker is put together, for a real machine, a simulated one and a test alike.

The composer of a broker brings what differs: disk, clock, chance, the addresses, and where the truth about the cluster
comes from: a metadata store, or a metadata quorum (`control_plane.py`). The logs come first, since loading them may
fail or take long, and the store may live beside them:

    facts = FactQueue()
    parts = Surroundings(disk, clock, random, scheduler)
    logs = load_logs(facts, configs, paths, parts, broker_id=1, cluster_id=None)
    broker = assemble(facts, configs, logs, parts, store, make_peers, broker_id=1, cluster_id=None, endpoints=...)
    core = Core(broker, clock.now_ms())
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.broker.alter_partition import AlterPartitionManager
from kbroker.broker.broker import Broker
from kbroker.broker.control_plane import Basis, Quorum
from kbroker.broker.control_sender import ControlSender
from kbroker.broker.controlled_shutdown import ControlledShutdown
from kbroker.broker.coordinator_types import COORDINATOR_TYPES, GROUP, TRANSACTION
from kbroker.broker.coordinators import LateCoordinator
from kbroker.broker.fetch_sessions import FetchSessions
from kbroker.broker.log_background import LogBackground
from kbroker.broker.replica_fetchers import ReplicaFetchers
from kbroker.broker.store_plane import StorePlane
from kbroker.broker.transaction_partitions import TransactionPartitions
from kbroker.config.limits import MOST_FETCH_REGIONS, MOST_LOG_FILES
from kbroker.log.config import LogConfig
from kbroker.log.log_jobs import ManagerConfig, one_after_another
from kbroker.log.manager import open_logs
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.requester import Requester, inter_broker_listener
from kbroker.replica import ReplicaManager
from kbroker.timing import Scheduler
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.broker.facts import FactQueue
    from kbroker.broker.jobs import Job, Owner
    from kbroker.broker.quorum_plane import QuorumPlane
    from kbroker.broker.share_partitions import SharePartitions
    from kbroker.broker.transaction_markers import TransactionMarkers
    from kbroker.config import BrokerConfig
    from kbroker.coordinator import Runtime
    from kbroker.log.cleaner.cleaner import BeginCompaction
    from kbroker.log.log_jobs import RunAll
    from kbroker.log.log_loader import LoadProgress
    from kbroker.log.manager import LogManager
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.store import Endpoint
    from kbroker.ports import Clock, Disk, MetadataStore, Peers, Random
    from kbroker.txn.shard import WriteMarkers


class Surroundings(NamedTuple):
    """The world as a broker is given it."""

    disk: Disk
    clock: Clock
    random: Random
    scheduler: Scheduler


def load_logs(
    facts: FactQueue,
    configs: Configs,
    paths: Sequence[str],
    world: Surroundings,
    *,
    broker_id: int,
    cluster_id: str | None,
    open_files: int = MOST_LOG_FILES,
    run_all: RunAll = one_after_another,
    progress: Callable[[LoadProgress], None] | None = None,
    begin_compaction: BeginCompaction | None = None,
) -> LogManager:
    """Take the log directories and load what is in them; waits for the disk. Raises: DirectoryRefusedError, OSError."""
    logs = open_logs(
        world.disk,
        world.random,
        paths,
        config_of=lambda topic: LogConfig.of(configs.topic_config(topic), configs.broker),
        cluster_id=cluster_id,
        node_id=broker_id,
        config=ManagerConfig.of(configs.broker)._replace(open_files=open_files),
        now_ms=world.clock.now_ms(),
        wall_ms=world.clock.wall_ms(),
        tell=facts.append,
        run_all=run_all,
        progress=progress,
        begin_compaction=begin_compaction,
        alarm=world.scheduler.alarm(lambda now_ms: logs.due(now_ms, world.clock.wall_ms())),
    )
    return logs


def assemble(
    facts: FactQueue,
    configs: Configs,
    logs: LogManager,
    world: Surroundings,
    source: MetadataStore | Quorum,
    make_peers: Callable[[], Peers],
    *,
    broker_id: int,
    cluster_id: str | None,
    endpoints: tuple[Endpoint, ...],
    strict: bool = False,
    fetch_regions: int = MOST_FETCH_REGIONS,
) -> Broker:
    """A broker of these. endpoints: as advertised, with the ports that clients connect to.

    source: of what is true of the cluster. With a quorum the cluster's id is known.
    """
    _, clock, random, scheduler = world
    tell, config = facts.append, configs.broker
    replicas = ReplicaManager(broker_id, logs, clock, configs, tell)
    cache = MetadataCache()
    requester = Requester(broker_id, cache, configs, make_peers, clock, inter_broker_listener(configs, endpoints))

    def give(job: Job, owner: Owner) -> None:
        broker.give(job, owner)

    basis = Basis(
        broker_id, cluster_id, configs, replicas, logs, cache, requester, endpoints, clock, random, scheduler, tell
    )
    plane = _plane_on(source, basis, give)

    def send_markers(markers: WriteMarkers, now_ms: int) -> None:
        broker.markers.send(markers, now_ms)

    carries: dict[int, Callable[[Any, int], None]] = {
        TRANSACTION.key_type: send_markers,
        GROUP.key_type: lambda what, now_ms: broker.share_groups.initialize_state(what, now_ms),
    }
    coordinators = {
        key_type: LateCoordinator(kind, plane, replicas, clock, random, scheduler, tell, carries.get(key_type))
        for key_type, kind in COORDINATOR_TYPES.items()
    }
    groups, transactions = coordinators[GROUP.key_type], coordinators[TRANSACTION.key_type]

    partitions = TransactionPartitions(
        broker_id, transactions.runtime, lambda: transactions.coordinator, cache, requester, tell
    )
    broker: Broker = Broker(
        facts,
        plane,
        logs,
        LogBackground(logs, replicas, clock, configs),
        replicas,
        coordinators,
        lambda: _markers(broker, groups.runtime, cache, requester),
        lambda: _share_partitions(broker, requester),
        partitions,
        FetchSessions(config.max_incremental_fetch_session_cache_slots, random),
        clock,
        random,
        scheduler,
        strict=strict,
        fetch_regions=fetch_regions,
    )
    _add_parts(broker, plane, requester, world)
    return broker


def _markers(broker: Broker, groups: Runtime[Any], cache: MetadataCache, requester: Requester) -> TransactionMarkers:
    from kbroker.broker.transaction_markers import TransactionMarkers  # most brokers have no transactions

    made = TransactionMarkers(
        broker.plane.broker_id, broker.replicas, cache, groups, broker.clock, requester, broker.scheduler
    )
    made.done = lambda markers, now_ms: broker.transactions.have_marked(markers, now_ms)
    return made


def _share_partitions(broker: Broker, requester: Requester) -> SharePartitions:
    from kbroker.broker.share_partitions import SharePartitions  # most brokers have no share groups

    return SharePartitions(broker, requester)


def _plane_on(
    source: MetadataStore | Quorum, basis: Basis, give: Callable[[Job, Owner], None]
) -> StorePlane | QuorumPlane:
    """The one place where it is decided which of the two it is."""
    if isinstance(source, Quorum):
        from kbroker.broker.quorum_plane import quorum_plane  # most brokers are in no such cluster

        return quorum_plane(source, basis, give)
    return StorePlane(basis, source)


def _add_parts(broker: Broker, plane: StorePlane | QuorumPlane, requester: Requester, world: Surroundings) -> None:
    """Those that hear facts, and that handlers do not ask."""
    _, clock, _, scheduler = world
    replicas = broker.replicas
    broker.add(requester)
    if isinstance(plane, StorePlane):
        if broker.config.authorizer_class_name:
            _add_access_rules(broker, plane, broker.config, scheduler)
        if broker.config.delegation_token_secret_key:
            _add_delegation_tokens(broker, plane, broker.config, scheduler)
        leaving = ControlledShutdown(plane, replicas, requester, clock, scheduler)
        broker.leaving = leaving
        broker.add(leaving)
        broker.add(ControlSender(plane.controller, requester, broker.tell))
    else:
        _add_parts_of_member(broker, plane)
    broker.add(AlterPartitionManager(replicas, plane, clock, scheduler, broker.tell))
    broker.add(ReplicaFetchers(replicas, plane, requester, clock, scheduler))


def _add_parts_of_member(broker: Broker, plane: QuorumPlane) -> None:
    from kbroker.broker.published_security import PublishedRules, PublishedTokens

    broker.leaving = plane
    for part in plane.parts:
        broker.add(part)
    if broker.config.authorizer_class_name:
        rules = PublishedRules(broker.config)
        broker.auth_helper.authorizer = rules
        plane.publishers.append(rules)
    if broker.config.delegation_token_secret_key:
        tokens = PublishedTokens(broker.config, broker.clock, broker.random)
        broker.delegation_tokens = tokens
        plane.publishers.append(tokens)


def _add_access_rules(broker: Broker, plane: StorePlane, config: BrokerConfig, scheduler: Scheduler) -> None:
    from kbroker.broker.acl_authorizer import AclAuthorizer  # most brokers have none

    broker.auth_helper.authorizer = plane.keep(lambda steps: AclAuthorizer(config, steps, scheduler, plane.admin.start))


def _add_delegation_tokens(broker: Broker, plane: StorePlane, config: BrokerConfig, scheduler: Scheduler) -> None:
    from kbroker.broker.delegation_tokens import DelegationTokens  # most brokers have no key for them

    clock, random = broker.clock, broker.random
    broker.delegation_tokens = plane.keep(
        lambda steps: DelegationTokens(config, steps, scheduler, plane.admin.start, clock, random)
    )
