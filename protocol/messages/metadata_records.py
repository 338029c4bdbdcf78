"""Records of the metadata log of a KRaft cluster: what its controllers write and its brokers apply, in order.

The value of each data record in `__cluster_metadata-0` and in its snapshots (key: null) is one of these, in a frame:

    uvarint  version of the frame, always 1
    uvarint  type of the record, see TYPES
    uvarint  version of the record
    ...      the record

Control records between them (quorum.py, stored.py) belong to the quorum and not to the metadata. A record of an unknown
type or version is an error: metadata.version decides what may be written, and each member has said what it knows.
Source: KIP-631, and the KIPs named with the records.
"""

from __future__ import annotations

from protocol.message import (
    Array,
    Bool,
    Bytes,
    DecodeError,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    UInt16,
    Uuid,
    plain,
    since,
    tagged,
)
from protocol.primitives import read_uvarint, uvarint

FRAME_VERSION = 1


class RegisterBrokerRecord(Message, versions="0-4", flexible="0+"):
    """A broker begins a life; all that was known of an earlier one is replaced.

    Versions:
      0  introduced by KIP-631
      1  in_controlled_shutdown (KIP-841)
      2  is_migrating_zk_broker (KIP-866)
      3  log_dirs (KIP-858)
      4  cordoned_log_dirs (KIP-1066)
    """

    broker_id: Int32  # node id
    is_migrating_zk_broker: Bool = since(2, default=False)
    incarnation_id: Uuid  # made at random when its process started
    broker_epoch: Int64  # offset of this record in the log that first had it
    end_points: Array[BrokerEndpoint]
    features: Array[BrokerFeature]
    rack: String | None  # None: the broker has none
    fenced: Bool = plain(default=True)
    in_controlled_shutdown: Bool = since(1, default=False)
    log_dirs: Array[Uuid] = tagged(0, since=3, default=[])  # directory ids of those that work
    cordoned_log_dirs: Array[Uuid] | None = tagged(1, since=4, default=None)  # None: the broker has not told yet


class BrokerEndpoint(Struct):
    """An address of a broker or a controller."""

    name: String  # of the listener
    host: String
    port: UInt16
    security_protocol: Int16  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class BrokerFeature(Struct):
    """A feature and the levels of it that a node understands."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


class UnregisterBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker is forgotten.

    Versions:
      0  introduced by KIP-631
    """

    broker_id: Int32
    broker_epoch: Int64


class TopicRecord(Message, versions="0", flexible="0+"):
    """A topic is created; its partitions follow as records of their own.

    Versions:
      0  introduced by KIP-631
    """

    name: String
    topic_id: Uuid


class PartitionRecord(Message, versions="0-2", flexible="0+"):
    """The whole state of a partition.

    Versions:
      0  introduced by KIP-631; leader_recovery_state (KIP-704)
      1  directories (KIP-858)
      2  eligible_leader_replicas and last_known_elr (KIP-966)
    """

    partition_id: Int32 = plain(default=-1)  # index
    topic_id: Uuid
    replicas: Array[Int32]  # node ids in order of preference
    isr: Array[Int32]  # node ids of the in-sync replicas
    removing_replicas: Array[Int32]  # those of `replicas` that a reassignment is taking out
    adding_replicas: Array[Int32]  # those of `replicas` that a reassignment is bringing in
    leader: Int32 = plain(default=-1)  # node id; -1 none
    # 0 recovered, 1 the leader was elected uncleanly and is still recovering
    leader_recovery_state: Int8 = tagged(0, since=0, default=0)
    leader_epoch: Int32 = plain(default=-1)
    partition_epoch: Int32 = plain(default=-1)  # rises with every change of the partition
    directories: Array[Uuid] = since(1, default=[])  # log directory of each of `replicas`, in their order
    # out of sync, but have all committed records; None: none
    eligible_leader_replicas: Array[Int32] | None = tagged(1, since=2, default=None)
    last_known_elr: Array[Int32] | None = tagged(2, since=2, default=None)  # of these, crashed since; None: none


class ConfigRecord(Message, versions="0", flexible="0+"):
    """One setting of a broker, a topic or a group.

    Versions:
      0  introduced by KIP-631
    """

    resource_type: Int8  # 2 topic, 4 broker, 16 client metrics, 32 group
    resource_name: String  # of all brokers: empty
    name: String
    value: String | None  # None: not set any more


class PartitionChangeRecord(Message, versions="0-2", flexible="0+"):
    """What of a partition has changed; its partition epoch rises by one, its leader epoch with a new leader.

    Versions:
      0  introduced by KIP-631; leader_recovery_state (KIP-704)
      1  directories (KIP-858)
      2  eligible_leader_replicas and last_known_elr (KIP-966)
    """

    partition_id: Int32 = plain(default=-1)  # index
    topic_id: Uuid
    isr: Array[Int32] | None = tagged(0, since=0, default=None)  # None here and below: as before
    leader: Int32 = tagged(1, since=0, default=-2)  # node id; -1 none from now on, -2 as before
    replicas: Array[Int32] | None = tagged(2, since=0, default=None)
    removing_replicas: Array[Int32] | None = tagged(3, since=0, default=None)
    adding_replicas: Array[Int32] | None = tagged(4, since=0, default=None)
    leader_recovery_state: Int8 = tagged(5, since=0, default=-1)  # -1 as before
    directories: Array[Uuid] | None = tagged(8, since=1, default=None)
    eligible_leader_replicas: Array[Int32] | None = tagged(6, since=2, default=None)
    last_known_elr: Array[Int32] | None = tagged(7, since=2, default=None)


class FenceBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker may not serve any more. Written by Kafka before 3.3, which has BrokerRegistrationChangeRecord.

    Versions:
      0  introduced by KIP-631
    """

    id: Int32  # node id
    epoch: Int64  # of its registration


class UnfenceBrokerRecord(Message, versions="0", flexible="0+"):
    """A broker may serve. Written by Kafka before 3.3, which has BrokerRegistrationChangeRecord.

    Versions:
      0  introduced by KIP-631
    """

    id: Int32  # node id
    epoch: Int64  # of its registration


class RemoveTopicRecord(Message, versions="0", flexible="0+"):
    """A topic is deleted with all its partitions and settings.

    Versions:
      0  introduced by KIP-631
    """

    topic_id: Uuid


class DelegationTokenRecord(Message, versions="0", flexible="0+"):
    """A delegation token is made, or has another end.

    Versions:
      0  introduced by KIP-900
    """

    owner: String  # a principal, such as User:alice
    requester: String  # the principal that asked for it
    renewers: Array[String]  # principals
    issue_timestamp: Int64  # ms since 1970, as the next two
    max_timestamp: Int64  # beyond which it cannot be renewed
    expiration_timestamp: Int64
    token_id: String


class UserScramCredentialRecord(Message, versions="0", flexible="0+"):
    """What a user's SCRAM login is checked against.

    Versions:
      0  introduced by KIP-900
    """

    name: String  # of the user
    mechanism: Int8  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512
    salt: Bytes
    stored_key: Bytes
    server_key: Bytes
    iterations: Int32


class FeatureLevelRecord(Message, versions="0", flexible="0+"):
    """The level of a feature that is in force from here on.

    Versions:
      0  introduced by KIP-778
    """

    name: String  # metadata.version, group.version, ...
    feature_level: Int16  # 0: not in force any more


class ClientQuotaRecord(Message, versions="0", flexible="0+"):
    """A quota of a client, or of all that have none of their own.

    Versions:
      0  introduced by KIP-631
    """

    entity: Array[EntityData]
    key: String  # producer_byte_rate, consumer_byte_rate, request_percentage, ...
    value: Float64
    remove: Bool  # True: the quota is gone, and `value` says nothing


class EntityData(Struct):
    """A part of what a quota is for."""

    entity_type: String  # user, client-id or ip
    entity_name: String | None  # None: the default of this type


class ProducerIdsRecord(Message, versions="0", flexible="0+"):
    """A block of producer ids was given to a broker.

    Versions:
      0  introduced by KIP-730
    """

    broker_id: Int32
    broker_epoch: Int64 = plain(default=-1)
    next_producer_id: Int64  # where the next block begins


class BrokerRegistrationChangeRecord(Message, versions="0-3", flexible="0+"):
    """What of a broker's registration has changed.

    Versions:
      0  introduced by KIP-778
      1  in_controlled_shutdown (KIP-841)
      2  log_dirs (KIP-858)
      3  cordoned_log_dirs (KIP-1066)
    """

    broker_id: Int32
    broker_epoch: Int64  # of the registration; one of another life is an error
    fenced: Int8 = tagged(0, since=0, default=0)  # 1 fenced, -1 unfenced, 0 as before
    in_controlled_shutdown: Int8 = tagged(1, since=1, default=0)  # 1 it stops, 0 as before
    log_dirs: Array[Uuid] = tagged(2, since=2, default=[])  # empty: as before
    cordoned_log_dirs: Array[Uuid] | None = tagged(3, since=3, default=None)  # None: as before


class AccessControlEntryRecord(Message, versions="0", flexible="0+"):
    """An access rule is added.

    Versions:
      0  introduced by KIP-801
    """

    id: Uuid  # of this rule, for its removal
    resource_type: Int8  # 2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user
    resource_name: String
    pattern_type: Int8  # 3 literal, 4 prefixed
    principal: String
    host: String  # "*" all; with metadata.version 4.4-IV1 also a network in CIDR notation (KIP-1276)
    operation: Int8
    permission_type: Int8  # 2 deny, 3 allow


class RemoveAccessControlEntryRecord(Message, versions="0", flexible="0+"):
    """An access rule is removed.

    Versions:
      0  introduced by KIP-801
    """

    id: Uuid


class NoOpRecord(Message, versions="0", flexible="0+"):
    """Says nothing; written every half second, so that brokers see how far they are behind (KIP-835).

    Versions:
      0  introduced by KIP-835
    """


class ZkMigrationStateRecord(Message, versions="0", flexible="0+"):
    """How far the way from ZooKeeper to the quorum has been gone.

    Versions:
      0  introduced by KIP-866
    """

    zk_migration_state: Int8  # 0 none, 1 before, 2 in the middle, 3 after, 4 a cluster that never had ZooKeeper


class RemoveUserScramCredentialRecord(Message, versions="0", flexible="0+"):
    """A user can no longer log in by one mechanism.

    Versions:
      0  introduced by KIP-900
    """

    name: String
    mechanism: Int8  # 1 SCRAM-SHA-256, 2 SCRAM-SHA-512


class BeginTransactionRecord(Message, versions="0", flexible="0+"):
    """What follows counts all together, at the EndTransactionRecord, or not at all.

    Versions:
      0  introduced by KIP-866
    """

    name: String | None = tagged(0, since=0, default=None)  # for those who read the log


class EndTransactionRecord(Message, versions="0", flexible="0+"):
    """All since the BeginTransactionRecord counts.

    Versions:
      0  introduced by KIP-866
    """


class AbortTransactionRecord(Message, versions="0", flexible="0+"):
    """Nothing since the BeginTransactionRecord counts.

    Versions:
      0  introduced by KIP-866
    """

    reason: String | None = tagged(0, since=0, default=None)


class RemoveDelegationTokenRecord(Message, versions="0", flexible="0+"):
    """A delegation token is no longer good.

    Versions:
      0  introduced by KIP-900
    """

    token_id: String


class RegisterControllerRecord(Message, versions="0", flexible="0+"):
    """A controller begins a life.

    Versions:
      0  introduced by KIP-919
    """

    controller_id: Int32  # node id
    incarnation_id: Uuid
    zk_migration_ready: Bool
    end_points: Array[BrokerEndpoint]
    features: Array[BrokerFeature]


class ClearElrRecord(Message, versions="0", flexible="0+"):
    """Eligible leader replicas are forgotten, of one topic or of all.

    Versions:
      0  introduced by KIP-966
    """

    topic_name: String  # empty: all topics


class UnregisterControllerRecord(Message, versions="0", flexible="0+"):
    """A controller is forgotten.

    Versions:
      0  introduced by KIP-1312
    """

    controller_id: Int32


TYPES: dict[int, type[Message]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
    29: UnregisterControllerRecord,
}
_NUMBER_OF = {cls: number for number, cls in TYPES.items()}


class MetadataRecordError(DecodeError):
    """Bytes that are no metadata record known here: applying what follows without it would be wrong."""


def encode_record(record: Message, version: int) -> bytes:
    """The record in its frame, as it is the value of a record in the log. Raises: EncodeError."""
    number = _NUMBER_OF[type(record)]
    return b"".join((uvarint(FRAME_VERSION), uvarint(number), uvarint(version), record.encode(version)))


def decode_record(value: bytes | bytearray | memoryview | None) -> tuple[Message, int]:
    """The record in this frame, and its version. Raises: MetadataRecordError, for an unknown type or version, too."""
    try:
        frame_version, position = read_uvarint(value or b"", 0)
        number, position = read_uvarint(value or b"", position)
        version, position = read_uvarint(value or b"", position)
    except (IndexError, ValueError):
        raise MetadataRecordError("frame", "of a metadata record is cut short or has a number too large") from None
    if frame_version != FRAME_VERSION:
        reason = f"of a metadata record has version {frame_version}, known is {FRAME_VERSION}"
        raise MetadataRecordError("frame", reason)
    cls = TYPES.get(number)
    if cls is None:
        raise MetadataRecordError("type", f"{number} of a metadata record, in version {version}, is not known")
    first, last = cls.versions
    if not first <= version <= last:
        raise MetadataRecordError("version", f"{version} of {cls.__name__} is not known, {first} to {last} are")
    assert value is not None
    try:
        record, end = cls.decode_from(value, version, position)
    except DecodeError as error:
        raise MetadataRecordError(f"{cls.__name__}.{error.path}", error.reason) from None
    if end != len(value):
        raise MetadataRecordError(cls.__name__, f"has {len(value) - end} bytes behind it")
    return record, version
