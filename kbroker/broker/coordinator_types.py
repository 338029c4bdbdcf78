"""The types of coordinators, in one table: which topic keeps its state, how that is made, what its code is.

Another type is a row here. FindCoordinator, the broker's parts, metrics, creation of topics, and tools that read logs
or make metadata again go by this table. What a coordinator's state is and how it changes is loaded with the first
partition that it leads, or the first request that asks it something: many brokers have neither groups nor transactions
(docs/decisions/0022). Source: CoordinatorType and AutoTopicCreationManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.broker.authorizer import ResourceType
from kbroker.controller.admin import FROM_BROKER, NewTopic
from kbroker.metadata.cache import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.config import BrokerConfig
    from kbroker.controller.admin import Charge, Made, Pending
    from kbroker.coordinator import Runtime, Shard, TopicStore
    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.configs import Configs
    from kbroker.metadata.features import Features
    from kbroker.ports import Random
    from protocol.message import Message

    RecordKinds: TypeAlias = Mapping[int, tuple[type[Message], type[Message]]]
    """The classes of key and value, by the version of the key."""


UUID_CHARACTERS = 22  # of an id in Kafka's spelling


class Parts(NamedTuple):
    """What a coordinator is made of. config: as it is at the start; configs: as it is now. image: of the cluster.

    new_id: a producer id (`ProducerIds.take_now`). features: as they are finalized now.
    """

    runtime: Runtime[Any]
    store: TopicStore
    config: BrokerConfig
    configs: Configs
    image: MetadataCache
    random: Random
    new_id: Callable[[], int]
    features: Features


class Loaded(NamedTuple):
    """A coordinator. make_shard: for (partition, leader epoch). held_bytes: memory in use for it, about."""

    coordinator: Any
    make_shard: Callable[[int, int], Shard[Any]]
    held_bytes: Callable[[], int] = lambda: 0


class CoordinatorType(NamedTuple):
    """A type of coordinator.

    key_type: in FindCoordinator. resource: what its keys name. word: for one, in the log. topic: where its state is;
    partitions, replication_factor, configs: of that where it is made; codec: of what is written to it. prepare: done
    when a client looks for one. records: what is in the topic.
    """

    key_type: int
    resource: ResourceType
    word: str
    log: logging.Logger
    topic: str
    partitions: Callable[[BrokerConfig], int]
    replication_factor: Callable[[BrokerConfig], int]
    configs: Callable[[BrokerConfig], dict[str, str]]
    codec: Callable[[BrokerConfig], int]
    prepare: Callable[[ControlPlane], None]
    load: Callable[[Parts], Loaded]
    records: Callable[[], RecordKinds]


def _load_groups(parts: Parts) -> Loaded:
    from kbroker.groups.coordinator import GroupCoordinator
    from kbroker.groups.kinds import Surroundings
    from kbroker.groups.memory import GroupMemory
    from kbroker.groups.shard import GroupShard

    runtime, store, config, configs, image, random, *_ = parts
    memory = GroupMemory(
        lambda: (group for shard in runtime.shards.values() for group in shard.groups.values()), config
    )
    surroundings = Surroundings(config, random, memory, image, configs.group)
    return Loaded(
        GroupCoordinator(runtime, memory),
        lambda partition, epoch: GroupShard(partition, epoch, store, surroundings),
        lambda: memory.held_bytes,
    )


def _load_transactions(parts: Parts) -> Loaded:
    from kbroker.txn.coordinator import TransactionCoordinator
    from kbroker.txn.shard import TransactionShard

    runtime, store, _, configs, _, _, new_id, features = parts
    return Loaded(
        TransactionCoordinator(runtime),
        lambda partition, epoch: TransactionShard(partition, epoch, store, lambda: configs.broker, new_id, features),
    )


def _load_share_states(parts: Parts) -> Loaded:
    from kbroker.share.share_coordinator import ShareCoordinator
    from kbroker.share.share_shard import ShareShard

    runtime, store, configs, image = parts.runtime, parts.store, parts.configs, parts.image
    return Loaded(
        ShareCoordinator(runtime),
        lambda partition, epoch: ShareShard(
            partition, epoch, store, lambda: configs.broker, image, store.delete_records_before
        ),
    )


def _group_records() -> RecordKinds:
    from kbroker.groups.kinds import RECORDS
    from protocol.messages.stored import OffsetCommitKey, OffsetCommitValue

    offsets = dict.fromkeys((0, 1), (OffsetCommitKey, OffsetCommitValue))
    return offsets | {key_type: classes for load in RECORDS.values() for key_type, classes in load().items()}


def _share_records() -> RecordKinds:
    from kbroker.share.share_records import RECORDS

    return RECORDS


def _transaction_records() -> RecordKinds:
    from protocol.messages import stored

    return {0: (stored.TransactionLogKey, stored.TransactionLogValue)}


GROUP = CoordinatorType(
    0,
    ResourceType.GROUP,
    "group",
    logging.getLogger("kbroker.groups"),
    CONSUMER_OFFSETS,
    lambda config: config.offsets_topic_num_partitions,
    lambda config: config.offsets_topic_replication_factor,
    lambda config: {
        "cleanup.policy": "compact",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
        "compression.type": "producer",
    },
    lambda config: config.offsets_topic_compression_codec,
    lambda plane: None,
    _load_groups,
    _group_records,
)
TRANSACTION = CoordinatorType(
    1,
    ResourceType.TRANSACTIONAL_ID,
    "transactional id",
    logging.getLogger("kbroker.transactions"),
    TRANSACTION_STATE,
    lambda config: config.transaction_state_log_num_partitions,
    lambda config: config.transaction_state_log_replication_factor,
    lambda config: {
        "unclean.leader.election.enable": "false",
        "compression.type": "uncompressed",
        "cleanup.policy": "compact",
        "min.insync.replicas": str(config.transaction_state_log_min_isr),
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
    },
    lambda config: 0,
    lambda plane: plane.producer_ids.prepare(),  # InitProducerId comes next
    _load_transactions,
    _transaction_records,
)
SHARE = CoordinatorType(
    2,
    ResourceType.CLUSTER,
    "share-partition",
    logging.getLogger("kbroker.share"),
    SHARE_GROUP_STATE,
    lambda config: config.share_coordinator_state_topic_num_partitions,
    lambda config: config.share_coordinator_state_topic_replication_factor,
    lambda config: {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
        "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        "retention.ms": "-1",
    },
    lambda config: config.share_coordinator_state_topic_compression_codec,
    lambda plane: None,
    _load_share_states,
    _share_records,
)
COORDINATOR_TYPES = {each.key_type: each for each in (GROUP, TRANSACTION, SHARE)}
"""By the key type of FindCoordinator."""
BY_TOPIC = {each.topic: each for each in COORDINATOR_TYPES.values()}


def is_share_key(key: str) -> bool:
    """Whether this names a share-partition: "group:topic id:partition", of which a group's id may have colons."""
    *groups, topic_id, partition = key.split(":") if key.count(":") >= 2 else ("", "", "")
    return bool(":".join(groups)) and len(topic_id) == UUID_CHARACTERS and partition.isdecimal()


# -- topics


def create_if_missing(name: str, plane: ControlPlane, charge: Charge | None = None) -> bool:
    """Have a coordinator's topic created that this broker does not know yet; whether it was missing.

    charge: for its partitions, if they are made here.
    """
    if name in plane.cache.topics:
        return False
    auto_create(name, plane, charge)
    return True


def auto_create(name: str, plane: ControlPlane, charge: Charge | None = None) -> Pending[Made]:
    """Have a coordinator's topic created; what comes of it. charge: as of `create_if_missing`."""
    return plane.auto_create([topic_on_demand(name, plane.configs.broker)], charge)[name]


def topic_on_demand(name: str, config: BrokerConfig) -> NewTopic:
    """How a topic is made that a request names or a coordinator needs; making it is `Admin`'s work."""
    kind = BY_TOPIC.get(name)
    if kind is None:
        return NewTopic(name, FROM_BROKER, FROM_BROKER, {}, {})
    return NewTopic(name, kind.partitions(config), kind.replication_factor(config), {}, kind.configs(config))
