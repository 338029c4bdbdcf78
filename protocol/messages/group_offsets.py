"""OffsetCommit (key 8), OffsetFetch (9), OffsetDelete (47): how far a group has read.

Sent to the coordinator of the group by its members, by clients that use a group id without joining (generation
-1, empty member id), and by admin clients. A committed offset is the next one to read, not the last one read.
Members of both kinds of groups use these: in a classic group the sender proves itself by generation and member
id, in a consumer group (KIP-848) by member epoch and member id.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    plain,
    since,
    until,
)


class OffsetCommitRequest(Message, api=8, versions="0-10", flexible="8+"):
    """Offsets to remember for a group.

    Versions:
      0   kept in ZooKeeper
      1   kept in __consumer_offsets; generation, member_id and commit_timestamp
      2   retention_time_ms instead of commit_timestamp
      3   the response gains the throttle time (KIP-124)
      4   as 3, throttled after the response instead of before (KIP-219)
      5   no retention_time_ms: the broker decides (KIP-211)
      6   committed_leader_epoch (KIP-320)
      7   group_instance_id (KIP-345)
      8   flexible (KIP-482)
      9   members of consumer groups commit as well (KIP-848)
      10  topic ids instead of names (KIP-848)

    Kafka 4 serves 2 and up.
    """

    group_id: String
    generation_id_or_member_epoch: Int32 = since(1, default=-1, ignorable=True)  # -1: from outside the group
    member_id: String = since(1, default="", ignorable=True)  # empty: from outside the group
    group_instance_id: String | None = since(7, default=None)  # None: a dynamic member
    # -1: offsets.retention.minutes of the broker
    retention_time_ms: Int64 = since(2, default=-1, until=4, ignorable=True)
    topics: Array[OffsetCommitRequestTopic]


class OffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: String = until(9, default="", ignorable=True)
    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)
    partitions: Array[OffsetCommitRequestPartition]


class OffsetCommitRequestPartition(Struct):
    """The offset of one partition."""

    partition_index: Int32
    committed_offset: Int64  # the next one to read
    # of the record before committed_offset; -1 unknown
    committed_leader_epoch: Int32 = since(6, default=-1, ignorable=True)
    commit_timestamp: Int64 = since(1, default=-1, until=1)  # milliseconds since 1970; -1: now
    committed_metadata: String | None  # whatever the client wants back; offset.metadata.max.bytes bounds it


class OffsetCommitResponse(Message, api=8, versions="0-10", flexible="8+"):
    """Which offsets are remembered.

    Versions:
      0     kept in ZooKeeper
      1     ILLEGAL_GENERATION and UNKNOWN_MEMBER_ID may appear
      2     as 1
      3     throttle_time_ms (KIP-124)
      4     as 3, throttled after the response (KIP-219)
      5, 6  as 4
      7     FENCED_INSTANCE_ID may appear (KIP-345)
      8     flexible (KIP-482)
      9     STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND may appear (KIP-848)
      10    topic ids instead of names; UNKNOWN_TOPIC_ID may appear (KIP-848)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    topics: Array[OffsetCommitResponseTopic]


class OffsetCommitResponseTopic(Struct):
    """The outcomes for one topic."""

    name: String = until(9, default="", ignorable=True)
    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)
    partitions: Array[OffsetCommitResponsePartition]


class OffsetCommitResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16


class OffsetFetchRequest(Message, api=9, versions="0-10", flexible="6+"):
    """Asks for a group's committed offsets.

    Versions:
      0   from ZooKeeper
      1   from __consumer_offsets
      2   topics None: all there are (KIP-88)
      3   the response gains the throttle time (KIP-124)
      4   as 3, throttled after the response instead of before (KIP-219)
      5   the response gains leader epochs (KIP-320)
      6   flexible (KIP-482)
      7   require_stable (KIP-447)
      8   several groups at once (KIP-709)
      9   member_id and member_epoch (KIP-848)
      10  topic ids instead of names (KIP-848)

    Kafka 4 serves 1 and up.
    """

    group_id: String = until(7, default="")
    topics: Array[OffsetFetchRequestTopic] | None = until(7, default=[], nullable="2+")  # None: all that have an offset
    groups: Array[OffsetFetchRequestGroup] = since(8, default=[])
    # UNSTABLE_OFFSET_COMMIT, try again, where a transaction may still move the offset
    require_stable: Bool = since(7, default=False)


class OffsetFetchRequestTopic(Struct):
    """The partitions wanted of one topic."""

    name: String
    partition_indexes: Array[Int32]


class OffsetFetchRequestGroup(Struct):
    """What is wanted of one group."""

    group_id: String
    member_id: String | None = since(9, default=None, ignorable=True)  # None: from outside a consumer group
    member_epoch: Int32 = since(9, default=-1, ignorable=True)  # -1: do not check
    topics: Array[OffsetFetchRequestTopics] | None  # None: all that have an offset


class OffsetFetchRequestTopics(Struct):
    """The partitions wanted of one topic, one group among several."""

    name: String = until(9, default="", ignorable=True)
    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)
    partition_indexes: Array[Int32]


class OffsetFetchResponse(Message, api=9, versions="0-10", flexible="6+"):
    """A group's committed offsets.

    Versions:
      0   from ZooKeeper
      1   from __consumer_offsets
      2   error_code: before, the group's error stood at every partition (KIP-88)
      3   throttle_time_ms (KIP-124)
      4   as 3, throttled after the response (KIP-219)
      5   committed_leader_epoch (KIP-320)
      6   flexible (KIP-482)
      7   UNSTABLE_OFFSET_COMMIT may appear (KIP-447)
      8   several groups (KIP-709)
      9   STALE_MEMBER_EPOCH and UNKNOWN_MEMBER_ID may appear (KIP-848)
      10  topic ids instead of names; UNKNOWN_TOPIC_ID may appear (KIP-848)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    topics: Array[OffsetFetchResponseTopic] = until(7, default=[])
    error_code: Int16 = since(2, default=0, until=7, ignorable=True)
    groups: Array[OffsetFetchResponseGroup] = since(8, default=[])


class OffsetFetchResponseTopic(Struct):
    """The offsets of one topic."""

    name: String
    partitions: Array[OffsetFetchResponsePartition]


class OffsetFetchResponsePartition(Struct):
    """The offset of one partition."""

    partition_index: Int32
    committed_offset: Int64  # the next one to read; -1 none
    # of the record before committed_offset; -1 unknown
    committed_leader_epoch: Int32 = since(5, default=-1, ignorable=True)
    metadata: String | None  # what the client left with the offset; empty: none
    error_code: Int16


class OffsetFetchResponseGroup(Struct):
    """The offsets of one group."""

    group_id: String
    topics: Array[OffsetFetchResponseTopics]
    error_code: Int16 = plain(default=0)


class OffsetFetchResponseTopics(Struct):
    """The offsets of one topic, one group among several."""

    name: String = until(9, default="", ignorable=True)
    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)
    partitions: Array[OffsetFetchResponsePartitions]


class OffsetFetchResponsePartitions(Struct):
    """The offset of one partition, one group among several."""

    partition_index: Int32
    committed_offset: Int64  # the next one to read; -1 none
    committed_leader_epoch: Int32 = plain(default=-1)  # of the record before committed_offset; -1 unknown
    metadata: String | None  # what the client left with the offset; empty: none
    error_code: Int16


class OffsetDeleteRequest(Message, api=47, versions="0", flexible="none"):
    """Asks to forget some of a group's offsets.

    Versions:
      0  introduced by KIP-496, not flexible
    """

    group_id: String
    topics: Array[OffsetDeleteRequestTopic]


class OffsetDeleteRequestTopic(Struct):
    """The offsets of one topic."""

    name: String
    partitions: Array[OffsetDeleteRequestPartition]


class OffsetDeleteRequestPartition(Struct):
    """The offset of one partition."""

    partition_index: Int32


class OffsetDeleteResponse(Message, api=47, versions="0", flexible="none"):
    """Which offsets are forgotten.

    Versions:
      0  introduced by KIP-496, not flexible
    """

    error_code: Int16  # of the group as a whole
    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    topics: Array[OffsetDeleteResponseTopic]


class OffsetDeleteResponseTopic(Struct):
    """The outcomes for one topic."""

    name: String
    partitions: Array[OffsetDeleteResponsePartition]


class OffsetDeleteResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16  # GROUP_SUBSCRIBED_TO_TOPIC: members read it now
