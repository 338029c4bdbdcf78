"""The image of a cluster: what all records of the metadata log say together, and what some of them changed.

Records are applied one by one in the order of the log, each once (`MetadataImage.apply`); what they did is collected
until it is taken (`take_delta`). Called by a member of the cluster with committed records and with those of snapshots,
from bottom to top on one thread; read by all its parts. It never looks at offsets, files or sockets, and does not know
which broker it is in.

The values are the records themselves, as they would be in a snapshot: a RegisterBrokerRecord with all that has changed
since, a PartitionRecord as its changes have left it. They are shared and never changed in place: a change puts another
one there, so that what a delta remembers and what a snapshot is being written of stay as they were.

Source: KIP-631, KIP-866 (transactions of records), KIP-858 (directories), KIP-966 (eligible leader replicas).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import copy
from typing import Any, TypeVar

from kbroker.quorum.metadata_version import (
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    KRAFT_VERSION,
    METADATA_VERSION,
    record_version,
    why_not,
)
from protocol.message import ZERO_UUID, Message
from protocol.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from protocol.namedtuple import NamedTuple
from protocol.schema import fields

R = TypeVar("R", bound=Message)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MIGRATING = ZERO_UUID
"""The directory id of a replica of which is not known in which log directory it is (KIP-858)."""
NO_CHANGE = -2
"""The leader in a PartitionChangeRecord that leaves the leader as it is."""
TOPIC, BROKER = 2, 4
"""Types of resources that settings belong to."""

PartitionKey = tuple[bytes, int]
"""Topic id and index."""
Resource = tuple[int, str]
"""Type and name of what settings belong to."""
QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types and names of what a quota is for, sorted by type; None is the default of its type."""
ScramKey = tuple[int, str]
"""Mechanism and user."""


class ImageError(ValueError):
    """A record that does not fit what the records before it say: one sentence."""


class Topic(NamedTuple):
    """A topic. partitions: by index; of a topic that is in an image, that image changes it."""

    name: str
    topic_id: bytes
    partitions: dict[int, PartitionRecord]


class MetadataDelta:
    """What some records have changed: for each key what was there before them, None if nothing was.

    What is there now, the image says; a key that it does not have is gone. partitions has an entry for each partition
    of a topic that is gone as well. A key may be here though its value is as before.
    """

    def __init__(self) -> None:
        self.features: dict[str, int | None] = {}
        self.brokers: dict[int, RegisterBrokerRecord | None] = {}
        self.controllers: dict[int, RegisterControllerRecord | None] = {}
        self.topics: dict[bytes, Topic | None] = {}  # created and deleted ones
        self.partitions: dict[PartitionKey, PartitionRecord | None] = {}
        self.configs: dict[Resource, Mapping[str, str] | None] = {}
        self.client_quotas: dict[QuotaEntity, Mapping[str, float] | None] = {}
        self.scram: dict[ScramKey, UserScramCredentialRecord | None] = {}
        self.acls: dict[bytes, AccessControlEntryRecord | None] = {}
        self.delegation_tokens: dict[str, DelegationTokenRecord | None] = {}

    def __bool__(self) -> bool:
        """Whether anything has changed."""
        return any(vars(self).values())


class MetadataImage:
    """What the records applied so far say. Nothing but `apply` changes it.

    features: finalized levels by name, each at least 1; metadata.version is among them, kraft.version is not.
    brokers, controllers: by node id, with what has changed since they registered. topics: by id. topic_ids: by name.
    configs, client_quotas: settings and quotas by name; what has none has no entry. next_producer_id: -1 before the
    first block was given.
    """

    def __init__(self) -> None:
        self.features: dict[str, int] = {}
        self.brokers: dict[int, RegisterBrokerRecord] = {}
        self.controllers: dict[int, RegisterControllerRecord] = {}
        self.topics: dict[bytes, Topic] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.configs: dict[Resource, Mapping[str, str]] = {}
        self.client_quotas: dict[QuotaEntity, Mapping[str, float]] = {}
        self.next_producer_id = -1
        self.scram: dict[ScramKey, UserScramCredentialRecord] = {}
        self.acls: dict[bytes, AccessControlEntryRecord] = {}
        self.delegation_tokens: dict[str, DelegationTokenRecord] = {}
        self._delta = MetadataDelta()
        self._transaction: list[Message] | None = None  # since a BeginTransactionRecord that has no end yet

    @property
    def metadata_version(self) -> int:
        """The level of metadata.version; 0 before a record has said it."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def in_transaction(self) -> bool:
        """Whether records wait for the end of their transaction: the image is behind the log then, and no snapshot."""
        return self._transaction is not None

    def topic_named(self, name: str) -> Topic | None:
        """The topic of this name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: bytes, index: int) -> PartitionRecord | None:
        """The state of a partition."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(index)

    def apply(self, record: Message) -> None:
        """Take in the next record of the log. Within a transaction it counts when that has ended.

        Raises: ImageError, and the image must not be used any more.
        """
        change = _CHANGES.get(type(record))
        if change is not None:
            if self._transaction is None:
                change(self, record)
            else:
                self._transaction.append(record)
        elif isinstance(record, BeginTransactionRecord):
            if self._transaction is not None:
                raise ImageError("BeginTransactionRecord within a transaction")
            self._transaction = []
        elif isinstance(record, EndTransactionRecord | AbortTransactionRecord):
            waiting, self._transaction = self._transaction, None
            if waiting is None:
                raise ImageError(f"{type(record).__name__} outside of a transaction")
            if isinstance(record, EndTransactionRecord):
                for each in waiting:
                    self.apply(each)
        else:
            assert isinstance(record, NoOpRecord | ZkMigrationStateRecord), record

    def take_delta(self) -> MetadataDelta:
        """What has changed since this was last called."""
        delta, self._delta = self._delta, MetadataDelta()
        return delta

    def records(self) -> list[tuple[Message, int]]:
        """A snapshot: records that make this image of an empty one, and the version of each, in Apache's order.

        What the finalized levels have no place for is left out.
        """
        level = self.metadata_version
        found: list[Message] = [
            FeatureLevelRecord(name=name, feature_level=self.features[name])
            for name in sorted(self.features, key=lambda name: (name != METADATA_VERSION, name))
        ]
        found += _fitting(RegisterBrokerRecord, self.brokers.values(), record_version(RegisterBrokerRecord, level))
        found += self.controllers.values()
        has_elr = ELIGIBLE_LEADER_REPLICAS_VERSION in self.features
        version = record_version(PartitionRecord, level) if has_elr else 1
        for topic in self.topics.values():
            found.append(TopicRecord(name=topic.name, topic_id=topic.topic_id))
            found += _fitting(PartitionRecord, topic.partitions.values(), version)
        found += _config_records(self.configs)
        found += _quota_records(self.client_quotas)
        if self.next_producer_id >= 0:
            found.append(ProducerIdsRecord(broker_id=-1, next_producer_id=self.next_producer_id))
        found += self.acls.values()
        found += self.scram.values()
        found += self.delegation_tokens.values()
        return [(each, record_version(type(each), level)) for each in found]

    # ---- topics

    def _topic(self, record: TopicRecord) -> None:
        _remember(self._delta.topics, record.topic_id, self.topics.get(record.topic_id))
        self.topics[record.topic_id] = Topic(record.name, record.topic_id, {})
        self.topic_ids[record.name] = record.topic_id

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        topic = self._existing(record.topic_id, "RemoveTopicRecord")
        for index, partition in topic.partitions.items():
            _remember(self._delta.partitions, (record.topic_id, index), partition)
        _remember(self._delta.topics, record.topic_id, topic)
        del self.topics[record.topic_id]
        if self.topic_ids.get(topic.name) == record.topic_id:
            del self.topic_ids[topic.name]
        resource = (TOPIC, topic.name)
        if resource in self.configs:
            _remember(self._delta.configs, resource, self.configs.pop(resource))

    def _partition(self, record: PartitionRecord) -> None:
        topic = self._existing(record.topic_id, "PartitionRecord")
        changes = {
            "directories": _directories(record, topic.name),
            "eligible_leader_replicas": record.eligible_leader_replicas or None,
            "last_known_elr": record.last_known_elr or None,
        }
        changes = {name: value for name, value in changes.items() if value != getattr(record, name)}
        self._place(topic, record.partition_id, _changed(record, **changes) if changes else record)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self._existing(record.topic_id, "PartitionChangeRecord")
        partition = topic.partitions.get(record.partition_id)
        if partition is None:
            raise ImageError(f"PartitionChangeRecord for {topic.name}-{record.partition_id}, which there is not")
        self._place(topic, record.partition_id, _merged(partition, record, topic.name))

    def _clear_elr(self, record: ClearElrRecord) -> None:
        if record.topic_name and record.topic_name not in self.topic_ids:
            raise ImageError(f"ClearElrRecord for topic {record.topic_name}, which there is not")
        names = (record.topic_name,) if record.topic_name else tuple(self.topic_ids)
        for topic in map(self.topic_named, names):
            assert topic is not None
            for index, partition in topic.partitions.items():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    epoch = partition.partition_epoch + 1
                    changes = {"eligible_leader_replicas": None, "last_known_elr": None, "partition_epoch": epoch}
                    self._place(topic, index, _changed(partition, **changes))

    def _place(self, topic: Topic, index: int, partition: PartitionRecord) -> None:
        _remember(self._delta.partitions, (topic.topic_id, index), topic.partitions.get(index))
        topic.partitions[index] = partition

    def _existing(self, topic_id: bytes, what: str) -> Topic:
        topic = self.topics.get(topic_id)
        if topic is None:
            raise ImageError(f"{what} for the topic with id {topic_id.hex()}, which there is not")
        return topic

    # ---- nodes

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        _put(self._delta.brokers, self.brokers, record.broker_id, record)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        _drop(self._delta.brokers, self.brokers, record.broker_id)

    def _fence_broker(self, record: FenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=True)

    def _unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        self._change_broker(record.id, record.epoch, fenced=False)

    def _broker_registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        changes: dict[str, Any] = {}
        if record.fenced not in (-1, 0, 1) or record.in_controlled_shutdown not in (0, 1):
            values = f"fenced={record.fenced}, in_controlled_shutdown={record.in_controlled_shutdown}"
            raise ImageError(f"BrokerRegistrationChangeRecord for broker {record.broker_id} with {values}")
        if record.fenced:
            changes["fenced"] = record.fenced == 1
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = record.log_dirs
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = record.cordoned_log_dirs
        self._change_broker(record.broker_id, record.broker_epoch, **changes)

    def _change_broker(self, broker_id: int, epoch: int, **changes: Any) -> None:
        broker = self.brokers.get(broker_id)
        if broker is None or broker.broker_epoch != epoch:
            known = "which is not registered" if broker is None else f"whose epoch is {broker.broker_epoch}"
            raise ImageError(f"a change of broker {broker_id} of epoch {epoch}, {known}")
        _put(self._delta.brokers, self.brokers, broker_id, _changed(broker, **changes))

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        _put(self._delta.controllers, self.controllers, record.controller_id, record)

    def _unregister_controller(self, record: UnregisterControllerRecord) -> None:
        _drop(self._delta.controllers, self.controllers, record.controller_id)

    # ---- all else

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name == METADATA_VERSION and (reason := why_not(record.feature_level)):
            raise ImageError(reason)
        if record.name == KRAFT_VERSION:  # KAFKA-18979: the quorum's own records say it, this one is a mistake
            return
        if record.feature_level:
            _put(self._delta.features, self.features, record.name, record.feature_level)
        else:
            _drop(self._delta.features, self.features, record.name)

    def _config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        _set(self._delta.configs, self.configs, resource, record.name, record.value)

    def _client_quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted({each.entity_type: each.entity_name for each in record.entity}.items()))
        value = None if record.remove else record.value
        _set(self._delta.client_quotas, self.client_quotas, entity, record.key, value)

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = record.next_producer_id

    def _user_scram_credential(self, record: UserScramCredentialRecord) -> None:
        _put(self._delta.scram, self.scram, (record.mechanism, record.name), record)

    def _remove_user_scram_credential(self, record: RemoveUserScramCredentialRecord) -> None:
        _drop(self._delta.scram, self.scram, (record.mechanism, record.name))

    def _access_control_entry(self, record: AccessControlEntryRecord) -> None:
        _put(self._delta.acls, self.acls, record.id, record)

    def _remove_access_control_entry(self, record: RemoveAccessControlEntryRecord) -> None:
        if record.id not in self.acls:
            raise ImageError(
                f"RemoveAccessControlEntryRecord for the rule with id {record.id.hex()}, which there is not"
            )
        _drop(self._delta.acls, self.acls, record.id)

    def _delegation_token(self, record: DelegationTokenRecord) -> None:
        _put(self._delta.delegation_tokens, self.delegation_tokens, record.token_id, record)

    def _remove_delegation_token(self, record: RemoveDelegationTokenRecord) -> None:
        _drop(self._delta.delegation_tokens, self.delegation_tokens, record.token_id)


def differences(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """What has changed from one image to another that a snapshot was loaded into."""
    delta = MetadataDelta()
    for name in (
        "features",
        "brokers",
        "controllers",
        "configs",
        "client_quotas",
        "scram",
        "acls",
        "delegation_tokens",
    ):
        _compare(getattr(delta, name), getattr(old, name), getattr(new, name))
    for topic_id in {**old.topics, **new.topics}:  # in an order that is the same each time
        before, now = old.topics.get(topic_id), new.topics.get(topic_id)
        if before is None or now is None:
            delta.topics[topic_id] = before
        changed: dict[int, PartitionRecord | None] = {}
        _compare(changed, before.partitions if before else {}, now.partitions if now else {})
        delta.partitions.update(((topic_id, index), partition) for index, partition in changed.items())
    return delta


def _compare(changed: dict[K, V | None], old: Mapping[K, V], new: Mapping[K, V]) -> None:
    for key in {**old, **new}:
        before = old.get(key)
        if before is not new.get(key) and before != new.get(key):
            changed[key] = before


def _remember(delta: dict[K, V | None], key: K, before: V | None) -> None:
    if key not in delta:
        delta[key] = before


def _put(delta: dict[K, V | None], table: dict[K, V], key: K, value: V) -> None:
    _remember(delta, key, table.get(key))
    table[key] = value


def _drop(delta: dict[K, V | None], table: dict[K, V], key: K) -> None:
    if key in table:
        _remember(delta, key, table.pop(key))


def _set(delta: dict[K, Any], table: dict[K, Mapping[str, V]], key: K, name: str, value: V | None) -> None:
    """Change one value among those of a key, None: take it away."""
    before = table.get(key)
    now = dict(before or {})
    if value is None:
        now.pop(name, None)
    else:
        now[name] = value
    if before is not None or now:
        _remember(delta, key, before)
    if now:
        table[key] = now
    else:
        table.pop(key, None)


def _changed(record: R, **changes: Any) -> R:
    """A record like this one but for these fields."""
    made = copy(record)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def _merged(partition: PartitionRecord, change: PartitionChangeRecord, topic: str) -> PartitionRecord:
    """A partition as a change leaves it. topic: its name."""
    made = copy(partition)
    for name in ("replicas", "isr", "removing_replicas", "adding_replicas", "directories"):
        value = getattr(change, name)
        if value is not None:
            setattr(made, name, value)
    for name in ("eligible_leader_replicas", "last_known_elr"):
        value = getattr(change, name)
        if value is not None:
            setattr(made, name, value or None)
    if change.leader != NO_CHANGE:
        made.leader = change.leader
        made.leader_epoch += 1
    if change.leader_recovery_state >= 0:
        made.leader_recovery_state = change.leader_recovery_state
    made.partition_epoch += 1
    made.directories = _directories(made, topic)
    return made


def _directories(partition: PartitionRecord, topic: str) -> list[bytes]:
    """The directories of a partition's replicas; those of a record that has none are not known."""
    directories, count = partition.directories, len(partition.replicas)
    if all(each == MIGRATING for each in directories):
        return [MIGRATING] * count
    if len(directories) != count:
        where = f"{topic}-{partition.partition_id}"
        raise ImageError(f"{where} has {count} replicas, and directories of {len(directories)}")
    return directories


def _fitting(cls: type[R], records: Iterable[R], version: int) -> Iterable[R]:
    """The records, without what this version of them has no field for."""
    absent = {field.name: field.default_value() for field in fields(cls) if not field.present_at(version)}
    return (_changed(each, **absent) for each in records) if absent else records


def _config_records(configs: Mapping[Resource, Mapping[str, str]]) -> list[ConfigRecord]:
    return [
        ConfigRecord(resource_type=of_type, resource_name=resource, name=name, value=value)
        for (of_type, resource), values in configs.items()
        for name, value in values.items()
    ]


def _quota_records(quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> list[ClientQuotaRecord]:
    return [
        ClientQuotaRecord(
            entity=[EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity],
            key=key,
            value=value,
            remove=False,
        )
        for entity, values in quotas.items()
        for key, value in values.items()
    ]


_CHANGES: dict[type[Message], Callable[[MetadataImage, Any], None]] = {
    RegisterBrokerRecord: MetadataImage._register_broker,
    UnregisterBrokerRecord: MetadataImage._unregister_broker,
    TopicRecord: MetadataImage._topic,
    PartitionRecord: MetadataImage._partition,
    ConfigRecord: MetadataImage._config,
    PartitionChangeRecord: MetadataImage._partition_change,
    FenceBrokerRecord: MetadataImage._fence_broker,
    UnfenceBrokerRecord: MetadataImage._unfence_broker,
    RemoveTopicRecord: MetadataImage._remove_topic,
    DelegationTokenRecord: MetadataImage._delegation_token,
    UserScramCredentialRecord: MetadataImage._user_scram_credential,
    FeatureLevelRecord: MetadataImage._feature_level,
    ClientQuotaRecord: MetadataImage._client_quota,
    ProducerIdsRecord: MetadataImage._producer_ids,
    BrokerRegistrationChangeRecord: MetadataImage._broker_registration_change,
    AccessControlEntryRecord: MetadataImage._access_control_entry,
    RemoveAccessControlEntryRecord: MetadataImage._remove_access_control_entry,
    RemoveUserScramCredentialRecord: MetadataImage._remove_user_scram_credential,
    RemoveDelegationTokenRecord: MetadataImage._remove_delegation_token,
    RegisterControllerRecord: MetadataImage._register_controller,
    UnregisterControllerRecord: MetadataImage._unregister_controller,
    ClearElrRecord: MetadataImage._clear_elr,
}
