"""Records that brokers keep of share groups: in `__share_group_state`, and in `__consumer_offsets` (KIP-932).

In front of a key stands an int16 that tells its kind, and is the only version of its class. In `__share_group_state`:
0 a snapshot of a share-partition, 1 what has changed since; each snapshot makes the updates before it superfluous. In
`__consumer_offsets`: 10 a member, 11 a group's epoch, 12 its target's epoch, 13 a member's target, 14 what a member
has, 15 which share-partitions have begun. A value has its version in front (`stored.encode_versioned`).
"""

from __future__ import annotations

from protocol.message import Array, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, tagged


class ShareSnapshotKey(Message, versions="0", flexible="none"):
    """Which share-partition a snapshot is of.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topic_id: Uuid
    partition: Int32


class ShareSnapshotValue(Message, versions="0", flexible="0+"):
    """All that is known of a share-partition.

    Versions:
      0  introduced by KIP-932; delivery_complete_count by KIP-1226
    """

    snapshot_epoch: Int32  # counts snapshots
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64  # everything below is over; -1: not known yet
    # records from start_offset on that are over; -1 unknown
    delivery_complete_count: Int32 = tagged(0, since=0, default=-1)
    create_timestamp: Int64  # milliseconds since 1970: of the first snapshot of this state
    write_timestamp: Int64  # of this one
    state_batches: Array[StoredStateBatch]


class StoredStateBatch(Struct):
    """What came of some records in a row."""

    first_offset: Int64
    last_offset: Int64  # of the last record itself
    delivery_state: Int8  # 0 available, 2 acknowledged, 3 archiving, 4 archived
    delivery_count: Int16


class ShareUpdateKey(Message, versions="1", flexible="none"):
    """Which share-partition an update is of.

    Versions:
      1  introduced by KIP-932
    """

    group_id: String
    topic_id: Uuid
    partition: Int32


class ShareUpdateValue(Message, versions="0", flexible="0+"):
    """What has changed of a share-partition since its last snapshot, or update.

    Versions:
      0  introduced by KIP-932; delivery_complete_count by KIP-1226
    """

    snapshot_epoch: Int32  # of the snapshot that this belongs to
    leader_epoch: Int32  # -1: unchanged
    start_offset: Int64  # -1: unchanged
    # records from start_offset on that are over; -1 unknown
    delivery_complete_count: Int32 = tagged(0, since=0, default=-1)
    state_batches: Array[StoredStateBatch]


class ShareGroupMemberMetadataKey(Message, versions="10", flexible="none"):
    """Which member of a share group.

    Versions:
      10  introduced by KIP-932
    """

    group_id: String
    member_id: String


class ShareGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """A member of a share group.

    Versions:
      0  introduced by KIP-932
    """

    rack_id: String | None  # None: unknown
    client_id: String
    client_host: String  # "/" and its address
    subscribed_topic_names: Array[String]


class ShareGroupMetadataKey(Message, versions="11", flexible="none"):
    """Which share group.

    Versions:
      11  introduced by KIP-932
    """

    group_id: String


class ShareGroupMetadataValue(Message, versions="0", flexible="0+"):
    """A share group.

    Versions:
      0  introduced by KIP-932
    """

    epoch: Int32  # moves whenever members, their subscriptions or their topics do
    metadata_hash: Int64  # of the topics; 0 unknown


class ShareGroupTargetAssignmentMetadataKey(Message, versions="12", flexible="none"):
    """Which share group's target.

    Versions:
      12  introduced by KIP-932
    """

    group_id: String


class ShareGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """How old a share group's target is.

    Versions:
      0  introduced by KIP-932
    """

    assignment_epoch: Int32  # the group epoch that the target was computed for
    # milliseconds since 1970; 0 unknown
    assignment_timestamp: Int64 = tagged(0, since=0, default=0, ignorable=True)


class ShareGroupTargetAssignmentMemberKey(Message, versions="13", flexible="none"):
    """Which member's target.

    Versions:
      13  introduced by KIP-932
    """

    group_id: String
    member_id: String


class ShareGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """What a member shall read from.

    Versions:
      0  introduced by KIP-932
    """

    topic_partitions: Array[ShareTargetTopicPartition]


class ShareTargetTopicPartition(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: Array[Int32]


class ShareGroupCurrentMemberAssignmentKey(Message, versions="14", flexible="none"):
    """Which member.

    Versions:
      14  introduced by KIP-932
    """

    group_id: String
    member_id: String


class ShareGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """What a member reads from.

    Versions:
      0  introduced by KIP-932
    """

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8  # 0 stable
    assigned_partitions: Array[ShareTargetTopicPartition]


class ShareGroupStatePartitionMetadataKey(Message, versions="15", flexible="none"):
    """Which share group.

    Versions:
      15  introduced by KIP-932
    """

    group_id: String


class ShareGroupStatePartitionMetadataValue(Message, versions="0", flexible="0+"):
    """Which share-partitions of a group the share coordinator knows of.

    Versions:
      0  introduced by KIP-932
    """

    initializing_topics: Array[ShareTopicPartitionsInfo]  # it has been asked to begin, and has not answered yet
    initialized_topics: Array[ShareTopicPartitionsInfo]
    deleting_topics: Array[ShareTopicInfo]  # it has been asked to forget, and has not answered yet


class ShareTopicPartitionsInfo(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    topic_name: String
    partitions: Array[Int32]


class ShareTopicInfo(Struct):
    """One topic."""

    topic_id: Uuid
    topic_name: String
