"""ListOffsets (key 2), OffsetForLeaderEpoch (23), DeleteRecords (21): where a log starts and ends, and moving its
start.

All three go to the leader of the partitions named. Consumers use ListOffsets to find the beginning, the end or a
point in time; followers use it to find where to start. OffsetForLeaderEpoch tells a follower, or a consumer after
a leader change, how far its log agrees with the leader's. DeleteRecords is an admin client's: it raises the log
start offset.

A timestamp of ListOffsets is in milliseconds since 1970, and the answer is the first record at or after it.
Negative ones have a meaning: -1 the end (the last stable offset with isolation level 1, the high watermark for a
consumer, the log end offset for a follower), -2 the log start offset, -3 the record with the largest timestamp,
-4 the first offset on the broker's own disks, -5 the last one in tiered storage, -6 the first one not in tiered
storage.
"""

from __future__ import annotations

from protocol.message import Array, Int8, Int16, Int32, Int64, Message, String, Struct, plain, since, until


class ListOffsetsRequest(Message, api=2, versions="0-11", flexible="6+"):
    """Asks each partition for the offset at a timestamp.

    Versions:
      0   answers with up to max_num_offsets segment starts
      1   one offset, with its timestamp (KIP-79)
      2   isolation_level (KIP-98)
      3   as 2, throttled after the response instead of before (KIP-219)
      4   current_leader_epoch (KIP-320)
      5   the client knows OFFSET_NOT_AVAILABLE (KIP-207)
      6   flexible (KIP-482)
      7   timestamp -3 (KIP-734)
      8   timestamp -4 (KIP-405)
      9   timestamp -5 (KIP-1005)
      10  timeout_ms (KIP-1075)
      11  timestamp -6 (KIP-1023)

    Kafka 4 serves 1 and up.
    """

    replica_id: Int32  # node id of the follower; -1 a consumer, -2 a debugging consumer
    isolation_level: Int8 = since(2, default=0)  # 0 read uncommitted, 1 read committed
    topics: Array[ListOffsetsTopic]
    timeout_ms: Int32 = since(10, default=0, ignorable=True)  # how long a look into tiered storage may take


class ListOffsetsTopic(Struct):
    """The timestamps to look up in one topic."""

    name: String
    partitions: Array[ListOffsetsPartition]


class ListOffsetsPartition(Struct):
    """The timestamp to look up in one partition."""

    partition_index: Int32
    # the leader epoch the client believes in; -1: do not check
    current_leader_epoch: Int32 = since(4, default=-1, ignorable=True)
    timestamp: Int64  # milliseconds since 1970, or one of the negatives above
    max_num_offsets: Int32 = until(0, default=1)  # how many segment starts to list


class ListOffsetsResponse(Message, api=2, versions="0-11", flexible="6+"):
    """The offset that each timestamp stands at.

    Versions:
      0     a list of offsets
      1     timestamp and offset instead (KIP-79)
      2     throttle_time_ms (KIP-124)
      3     as 2, throttled after the response (KIP-219)
      4     leader_epoch (KIP-320)
      5     OFFSET_NOT_AVAILABLE may appear: a new leader does not know its high watermark yet (KIP-207)
      6     flexible (KIP-482)
      7-11  as 6
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    topics: Array[ListOffsetsTopicResponse]


class ListOffsetsTopicResponse(Struct):
    """The offsets found in one topic."""

    name: String
    partitions: Array[ListOffsetsPartitionResponse]


class ListOffsetsPartitionResponse(Struct):
    """The offset found in one partition."""

    partition_index: Int32
    error_code: Int16
    # starts of the segments written before the timestamp, newest first; and the end for -1
    old_style_offsets: Array[Int64] = until(0, default=[])
    # of the record at offset, milliseconds since 1970; -1 when the question was not a point in time
    timestamp: Int64 = since(1, default=-1)
    offset: Int64 = since(1, default=-1)  # -1: no record is that young
    leader_epoch: Int32 = since(4, default=-1)  # of the record at offset; -1 unknown


class OffsetForLeaderEpochRequest(Message, api=23, versions="0-4", flexible="4+"):
    """Asks where leader epochs end in the leader's log.

    Versions:
      0  from followers only (KIP-101)
      1  the response gains the epoch it speaks of (KIP-279)
      2  current_leader_epoch; consumers ask too (KIP-320)
      3  replica_id
      4  flexible (KIP-482)

    Kafka 4 serves 2 and up.
    """

    # node id of the follower; -1 a consumer, -2 unknown: sees beyond the high watermark
    replica_id: Int32 = since(3, default=-2, ignorable=True)
    topics: Array[OffsetForLeaderTopic]


class OffsetForLeaderTopic(Struct):
    """The epochs to look up in one topic."""

    topic: String
    partitions: Array[OffsetForLeaderPartition]


class OffsetForLeaderPartition(Struct):
    """The epoch to look up in one partition."""

    partition: Int32
    # smaller than the leader's: FENCED_LEADER_EPOCH; larger: UNKNOWN_LEADER_EPOCH; -1: do not check
    current_leader_epoch: Int32 = since(2, default=-1, ignorable=True)
    leader_epoch: Int32  # epoch of the last record that the asking side has


class OffsetForLeaderEpochResponse(Message, api=23, versions="0-4", flexible="4+"):
    """The ends of the epochs asked for.

    Versions:
      0  introduced by KIP-101
      1  leader_epoch (KIP-279)
      2  throttle_time_ms (KIP-320)
      3  as 2
      4  flexible (KIP-482)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    topics: Array[OffsetForLeaderTopicResult]


class OffsetForLeaderTopicResult(Struct):
    """The ends found in one topic."""

    topic: String
    partitions: Array[EpochEndOffset]


class EpochEndOffset(Struct):
    """The end found in one partition."""

    error_code: Int16
    partition: Int32
    # largest epoch in the leader's log that is not above the one asked for; -1 none
    leader_epoch: Int32 = since(1, default=-1, ignorable=True)
    # first offset after that epoch, the log end offset if it still runs; -1 unknown
    end_offset: Int64 = plain(default=-1)


class DeleteRecordsRequest(Message, api=21, versions="0-2", flexible="2+"):
    """Asks to give up all records below an offset.

    Versions:
      0  introduced by KIP-107
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
    """

    topics: Array[DeleteRecordsTopic]
    timeout_ms: Int32  # how long to wait until all live replicas have followed


class DeleteRecordsTopic(Struct):
    """Where one topic's partitions shall start."""

    name: String
    partitions: Array[DeleteRecordsPartition]


class DeleteRecordsPartition(Struct):
    """Where one partition shall start."""

    partition_index: Int32
    offset: Int64  # becomes the log start offset; -1: the high watermark


class DeleteRecordsResponse(Message, api=21, versions="0-2", flexible="2+"):
    """Where each partition starts now.

    Versions:
      0  introduced by KIP-107
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    topics: Array[DeleteRecordsTopicResult]


class DeleteRecordsTopicResult(Struct):
    """Where one topic's partitions start now."""

    name: String
    partitions: Array[DeleteRecordsPartitionResult]


class DeleteRecordsPartitionResult(Struct):
    """Where one partition starts now."""

    partition_index: Int32
    low_watermark: Int64  # smallest log start offset among the live replicas; -1 on error
    error_code: Int16
