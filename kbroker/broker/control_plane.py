"""The source of truth about a cluster, as the rest of a broker sees it: who is in it, who leads what, what is set.

There are two. A cluster on ZooKeeper, or a broker alone with a store of its own, is `store_plane.py`: a controller
among the brokers says what each of them leads (LeaderAndIsr). A cluster on a quorum (KRaft) is `quorum_plane.py`: the
same follows from the log of metadata records. Which it is, is decided once, in `assembly.py`; what handlers and parts
may ask of either is here. A handler of which only a broker with a store has a use asks `Broker.store_plane`.

Of either kind, what is to be done to replicas goes through one queue (`controller_requests.py`), and what is known of
the cluster through one image (`metadata/cache.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from protocol.message import ZERO_UUID
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kbroker.broker.facts import Handler, Tell
    from kbroker.broker.producer_id_blocks import ProducerIds
    from kbroker.config.quorum import QuorumSettings
    from kbroker.controller import Controller
    from kbroker.controller.admin import Charge, Made, NewTopic, Pending
    from kbroker.log.manager import LogManager
    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.entities import Entities
    from kbroker.metadata.features import Features
    from kbroker.metadata.requester import Asker, Requester
    from kbroker.metadata.store import BrokerInfo, Endpoint, SupportedFeature
    from kbroker.ports import Clock, Random
    from kbroker.quorum.metadata_log import MetadataLog
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler
    from protocol.messages.control import AlterPartitionRequest, AlterPartitionResponse


class Counted(NamedTuple):
    """How many partitions a topic has. topic_id: of which topic; the name may be given to another one."""

    topic_id: bytes
    partitions: int


UNCOUNTED = Counted(ZERO_UUID, 0)


class Quorum(NamedTuple):
    """What a member of a quorum's cluster is given in place of a metadata store.

    metadata_log: open. directory_ids: of all log directories, by path. incarnation_id: of this life, random.
    previous_epoch: of the life before, if that ended with a clean stop, else -1.
    """

    settings: QuorumSettings
    metadata_log: MetadataLog
    directory_ids: Mapping[str, bytes]
    incarnation_id: bytes
    previous_epoch: int


class Basis(NamedTuple):
    """What a control plane is made on: the parts of a broker that are there before it. endpoints: as advertised."""

    broker_id: int
    cluster_id: str | None
    configs: Configs
    replicas: ReplicaManager
    logs: LogManager
    cache: MetadataCache
    requester: Requester
    endpoints: tuple[Endpoint, ...]
    clock: Clock
    random: Random
    scheduler: Scheduler
    tell: Tell


class ControlPlane(Protocol):
    """This broker's place in its cluster. listener: over which brokers speak to each other.

    cluster_id: None until it is known. fatal: why the broker cannot go on in this cluster; then its process stops.
    controller: this broker's own, active or not; None where brokers are no controllers. cache, features, configs,
    entities: what this broker knows of the cluster.
    """

    broker_id: int
    cluster_id: str | None
    listener: str
    cache: MetadataCache
    configs: Configs
    features: Features
    producer_ids: ProducerIds

    @property
    def controller(self) -> Controller | None:
        """See above."""

    @property
    def fatal(self) -> str:
        """See above."""

    @property
    def entities(self) -> Entities:
        """What is set for users, clients and addresses."""

    @property
    def broker_epoch(self) -> int:
        """Of this life of the broker; -1 while it is not registered."""

    @property
    def supported(self) -> tuple[SupportedFeature, ...]:
        """The features that this broker knows, with the levels of each."""

    @property
    def ready(self) -> bool:
        """Whether this broker is registered and has been told of the cluster, itself included."""

    @property
    def open_to_brokers(self) -> bool:
        """Whether connections are to be taken: clients', or as yet only other brokers'."""

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """The facts that it takes."""

    def fenced_brokers(self) -> Sequence[BrokerInfo]:
        """Brokers that are registered, and may not serve."""

    def eligible_leaders(self, topic: str, index: int) -> tuple[Sequence[int], Sequence[int]]:
        """Replicas out of sync that have all that is committed, and those of them that crashed last (KIP-966)."""

    def count_partitions(
        self, topic: str, done: Callable[[Counted], None], failed: Callable[[Exception], None]
    ) -> None:
        """How many partitions a topic has, those included that have never had a leader."""

    def find_hosts(self, done: Callable[[frozenset[str]], None], failed: Callable[[Exception], None]) -> None:
        """The hosts of all brokers that are registered now, which this one may not have been told of."""

    def read_configs(self, entities: Sequence[tuple[str, str]]) -> Pending[dict[tuple[str, str], dict[str, str]]]:
        """What is set for topics and groups. entities: (kind, name), the kind in the plural."""

    def auto_create(self, topics: Sequence[NewTopic], charge: Charge | None = None) -> dict[str, Pending[Made]]:
        """Have topics made because a client asked for them; once, however many ask. Returns: by name."""

    def alter_partition(
        self,
        asker: Asker,
        request: AlterPartitionRequest,
        version: int,
        token: object,
        answered: Callable[[AlterPartitionResponse], None],
    ) -> bool:
        """Ask the controller to change in-sync sets. Returns: whether there is one to ask.

        asker: hears the answer of another node; answered: takes that of this broker's own controller.
        """

    def close(self) -> None:
        """Leave the cluster."""
