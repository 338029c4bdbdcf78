"""The disks of one broker: AlterReplicaLogDirs (key 34) and DescribeLogDirs (35).

Sent by admin clients (kafka-log-dirs, and kafka-reassign-partitions when it moves replicas between disks) to the broker
whose disks they mean, since each broker knows its own log.dirs only. A move between two disks of a broker copies the
log into a "future" replica beside the present one, which it replaces when it has caught up.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Int16, Int32, Int64, Message, String, Struct, plain, since


class AlterReplicaLogDirsRequest(Message, api=34, versions="0-2", flexible="2+"):
    """Which log directory some replicas of this broker are to be in.

    Versions:
      0  introduced by KIP-113
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)

    Kafka 4 serves 1 and up.
    """

    dirs: Array[AlterReplicaLogDir]


class AlterReplicaLogDir(Struct):
    """The replicas that are to be in one directory."""

    path: String  # absolute, one of the broker's log.dirs
    topics: Array[AlterReplicaLogDirTopic]


class AlterReplicaLogDirTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: Array[Int32]  # indexes; if the broker has no replica yet, a later one will be made in this directory


class AlterReplicaLogDirsResponse(Message, api=34, versions="0-2", flexible="2+"):
    """Whether each move has begun.

    Versions:
      0  introduced by KIP-113
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[AlterReplicaLogDirTopicResult]


class AlterReplicaLogDirTopicResult(Struct):
    """The outcomes for one topic."""

    topic_name: String
    partitions: Array[AlterReplicaLogDirPartitionResult]


class AlterReplicaLogDirPartitionResult(Struct):
    """The outcome for one replica."""

    partition_index: Int32
    # REPLICA_NOT_AVAILABLE when the broker has none now; the directory is remembered for it all the same
    error_code: Int16


class DescribeLogDirsRequest(Message, api=35, versions="0-5", flexible="2+"):
    """Asks what is on this broker's disks.

    Versions:
      0  introduced by KIP-113
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  the response gains an error code (KIP-784)
      4  the response gains the sizes of the volumes (KIP-827)
      5  the response says which directories take no new logs (KIP-1066)

    Kafka 4 serves 1 and up.
    """

    topics: Array[DescribableLogDirTopic] | None  # None: everything


class DescribableLogDirTopic(Struct):
    """Some partitions of one topic."""

    topic: String
    partitions: Array[Int32]  # indexes


class DescribeLogDirsResponse(Message, api=35, versions="0-5", flexible="2+"):
    """The log directories and what is in each.

    Versions:
      0  introduced by KIP-113
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  error_code (KIP-784)
      4  total_bytes and usable_bytes (KIP-827)
      5  is_cordoned (KIP-1066)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    # of the whole request; before version 3 an empty answer stood for CLUSTER_AUTHORIZATION_FAILED
    error_code: Int16 = since(3, default=0, ignorable=True)
    results: Array[DescribeLogDirsResult]


class DescribeLogDirsResult(Struct):
    """One log directory."""

    error_code: Int16  # KAFKA_STORAGE_ERROR: the directory is offline, so there is no more to tell
    log_dir: String  # absolute path
    topics: Array[DescribeLogDirsTopic]
    total_bytes: Int64 = since(4, default=-1, ignorable=True)  # size of the volume that the directory is on; -1 unknown
    usable_bytes: Int64 = since(4, default=-1, ignorable=True)  # what is free on it; -1 unknown
    is_cordoned: Bool = since(5, default=False, ignorable=True)  # True: no new log is put there (cordoned.log.dirs)


class DescribeLogDirsTopic(Struct):
    """The logs of one topic in this directory."""

    name: String
    partitions: Array[DescribeLogDirsPartition]


class DescribeLogDirsPartition(Struct):
    """One log."""

    partition_index: Int32
    partition_size: Int64  # bytes of all its segments
    # how far it is behind, in offsets: a future replica behind the present one, any other behind the high watermark; -1
    # unknown
    offset_lag: Int64
    is_future_key: Bool  # True: a future replica, still being copied
