"""Records of consumer groups in __consumer_offsets (KIP-848): what Apache Kafka 4 keeps of them, in its formats.

The first int16 of a key is the type of the record, which is the key's only version here, as for a classic group (2, in
`stored.py`). A value begins with its version, 0. A reader puts them together by group and member id:

    3   group epoch, and a hash of the metadata of the topics that are read
    4   partitions of the topics that are read; until Kafka 4.0, now only deleted
    5   a member: who it is, what it subscribes to
    6   the group epoch that the target assignment was computed for
    7   the target assignment of a member
    8   the current assignment of a member: its epoch, what it owns, what it has still to let go of
    16  the topics that a regular expression stands for
"""

from __future__ import annotations

from protocol.message import Array, Bytes, Int8, Int32, Int64, Message, String, Struct, Uuid, plain, tagged


class ConsumerGroupMetadataKey(Message, versions="3", flexible="none"):
    """Which group.

    Versions:
      3  the only one: the type of the record
    """

    group_id: String


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """The group epoch.

    Versions:
      0  introduced by KIP-848; metadata_hash by KIP-1101
    """

    epoch: Int32
    metadata_hash: Int64 = tagged(0, since=0, default=0)  # of the topics that are read; 0: none of them is there


class ConsumerGroupPartitionMetadataKey(Message, versions="4", flexible="none"):
    """Which group.

    Versions:
      4  the only one: the type of the record
    """

    group_id: String


class ConsumerGroupPartitionMetadataValue(Message, versions="0", flexible="0+"):
    """The topics that a group reads; a hash has taken its place (KIP-1101).

    Versions:
      0  introduced by KIP-848
    """

    topics: Array[TopicMetadata]


class TopicMetadata(Struct):
    """A topic."""

    topic_id: Uuid
    topic_name: String
    num_partitions: Int32
    partition_metadata: Array[PartitionMetadata]  # empty: racks are not known


class PartitionMetadata(Struct):
    """A partition."""

    partition: Int32
    racks: Array[String]


class ConsumerGroupMemberMetadataKey(Message, versions="5", flexible="none"):
    """Which member.

    Versions:
      5  the only one: the type of the record
    """

    group_id: String
    member_id: String


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member.

    Versions:
      0  introduced by KIP-848
    """

    instance_id: String | None  # None: a dynamic member
    rack_id: String | None  # None: unknown
    client_id: String
    client_host: String  # address, with a slash in front
    subscribed_topic_names: Array[String]
    subscribed_topic_regex: String | None  # in RE2 syntax; None: none
    rebalance_timeout_ms: Int32 = plain(default=-1)
    server_assignor: String | None  # None: the broker's choice
    # None: speaks KIP-848. That is written: Kafka's classes take a field that is not there for an empty struct
    classic_member_metadata: ClassicMemberMetadata | None = tagged(0, since=0, default={})


class ClassicMemberMetadata(Struct):
    """What a member says that speaks the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: Array[ClassicProtocol]


class ClassicProtocol(Struct):
    """One of its assignors."""

    name: String
    metadata: Bytes  # a ConsumerProtocolSubscription


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="6", flexible="none"):
    """Which group.

    Versions:
      6  the only one: the type of the record
    """

    group_id: String


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of the target assignment.

    Versions:
      0  introduced by KIP-848; assignment_timestamp by KIP-1263
    """

    assignment_epoch: Int32  # the group epoch that it was computed for
    # when it had been computed; milliseconds since 1970, 0 unknown
    assignment_timestamp: Int64 = tagged(0, since=0, default=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="7", flexible="none"):
    """Which member.

    Versions:
      7  the only one: the type of the record
    """

    group_id: String
    member_id: String


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """What a member shall own in the end.

    Versions:
      0  introduced by KIP-848
    """

    topic_partitions: Array[TopicPartition]


class TopicPartition(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: Array[Int32]


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="8", flexible="none"):
    """Which member.

    Versions:
      8  the only one: the type of the record
    """

    group_id: String
    member_id: String


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """Where a member is on its way to the target.

    Versions:
      0  introduced by KIP-848; assignment_epochs by KIP-1251
    """

    member_epoch: Int32  # expected from it in its heartbeats; -2: a static member that is away
    previous_member_epoch: Int32  # accepted once more, where the answer with the new one was lost
    state: Int8  # 0 stable, 1 has to let go of partitions, 2 waits for partitions of others
    assigned_partitions: Array[TopicPartitions]
    partitions_pending_revocation: Array[TopicPartitions]


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: Array[Int32]
    # of each partition, the epoch in which the member got it; empty: written by Kafka 4.2 or older
    assignment_epochs: Array[Int32] | None = tagged(0, since=0, default=[])


class ConsumerGroupRegularExpressionKey(Message, versions="16", flexible="none"):
    """Which expression.

    Versions:
      16  the only one: the type of the record
    """

    group_id: String
    regular_expression: String


class ConsumerGroupRegularExpressionValue(Message, versions="0", flexible="0+"):
    """The topics whose names match an expression.

    Versions:
      0  introduced by KIP-848, written since Kafka 4.0
    """

    topics: Array[String]
    version: Int64  # of the metadata that it was resolved with, an offset of the metadata log in Apache's brokers
    timestamp: Int64  # when it was resolved; milliseconds since 1970
