"""DescribeShareGroupOffsets (key 90), AlterShareGroupOffsets (91), DeleteShareGroupOffsets (92).

Sent by admin clients to the coordinator of a share group. The one offset of a share-partition is its start: all
records below are over. It is altered and deleted only while the group has no members. Source: KIP-932.
"""

from __future__ import annotations

from protocol.message import Array, Int16, Int32, Int64, Message, String, Struct, Uuid, plain, since


class DescribeShareGroupOffsetsRequest(Message, api=90, versions="0-1", flexible="0+"):
    """Asks for the start offsets of share groups.

    Versions:
      0  introduced by KIP-932
      1  the response gains lags (KIP-1226)
    """

    groups: Array[DescribeShareGroupOffsetsRequestGroup]


class DescribeShareGroupOffsetsRequestGroup(Struct):
    """What is wanted of one group."""

    group_id: String
    topics: Array[DescribeShareGroupOffsetsRequestTopic] | None  # None: all that the group has begun with


class DescribeShareGroupOffsetsRequestTopic(Struct):
    """The partitions wanted of one topic."""

    topic_name: String
    partitions: Array[Int32]


class DescribeShareGroupOffsetsResponse(Message, api=90, versions="0-1", flexible="0+"):
    """The start offsets of each group.

    Versions:
      0  introduced by KIP-932
      1  lag (KIP-1226)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    groups: Array[DescribeShareGroupOffsetsResponseGroup]


class DescribeShareGroupOffsetsResponseGroup(Struct):
    """The start offsets of one group."""

    group_id: String
    topics: Array[DescribeShareGroupOffsetsResponseTopic]
    error_code: Int16 = plain(default=0)
    error_message: String | None = plain(default=None)  # None: no error


class DescribeShareGroupOffsetsResponseTopic(Struct):
    """The start offsets of one topic."""

    topic_name: String
    topic_id: Uuid
    partitions: Array[DescribeShareGroupOffsetsResponsePartition]


class DescribeShareGroupOffsetsResponsePartition(Struct):
    """The start offset of one partition."""

    partition_index: Int32
    start_offset: Int64  # -1: not known yet
    leader_epoch: Int32
    lag: Int64 = since(1, default=-1, ignorable=True)  # records that are not over; -1 unknown
    error_code: Int16 = plain(default=0)
    error_message: String | None = plain(default=None)  # None: no error


class AlterShareGroupOffsetsRequest(Message, api=91, versions="0", flexible="0+"):
    """Asks to begin share-partitions again at other offsets.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topics: Array[AlterShareGroupOffsetsRequestTopic]


class AlterShareGroupOffsetsRequestTopic(Struct):
    """The partitions of one topic."""

    topic_name: String
    partitions: Array[AlterShareGroupOffsetsRequestPartition]


class AlterShareGroupOffsetsRequestPartition(Struct):
    """One partition."""

    partition_index: Int32
    start_offset: Int64


class AlterShareGroupOffsetsResponse(Message, api=91, versions="0", flexible="0+"):
    """Which offsets are altered.

    Versions:
      0  introduced by KIP-932
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # of the group as a whole
    error_message: String | None = plain(default=None)  # None: no error
    responses: Array[AlterShareGroupOffsetsResponseTopic]


class AlterShareGroupOffsetsResponseTopic(Struct):
    """The outcomes for one topic."""

    topic_name: String
    topic_id: Uuid
    partitions: Array[AlterShareGroupOffsetsResponsePartition]


class AlterShareGroupOffsetsResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error


class DeleteShareGroupOffsetsRequest(Message, api=92, versions="0", flexible="0+"):
    """Asks to forget all offsets of a share group in some topics.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topics: Array[DeleteShareGroupOffsetsRequestTopic]


class DeleteShareGroupOffsetsRequestTopic(Struct):
    """One topic."""

    topic_name: String


class DeleteShareGroupOffsetsResponse(Message, api=92, versions="0", flexible="0+"):
    """In which topics offsets are forgotten.

    Versions:
      0  introduced by KIP-932
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # of the group as a whole
    error_message: String | None = plain(default=None)  # None: no error
    responses: Array[DeleteShareGroupOffsetsResponseTopic]


class DeleteShareGroupOffsetsResponseTopic(Struct):
    """The outcome for one topic."""

    topic_name: String
    topic_id: Uuid
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
