"""Fetch (key 1): record batches from given offsets on; consumers read with it, followers replicate with it.

A follower is told from a consumer by its replica id, and its fetch offset tells the leader how far it has got:
that is what moves the high watermark. A leader with too little to send waits up to `max_wait_ms`. Consumers see
records below the high watermark, or below the last stable offset with isolation level 1; followers see
everything. `records` is the raw log format, never parsed or copied here: decoding yields a view on the frame,
encoding takes buffers or file regions as they are.

Fetch sessions (version 7, KIP-227): the broker remembers what a session fetches, so a request names only what
changed, and a response only the partitions with something to say. (session_id, session_epoch) is (0, -1) without
a session, (0, 0) to ask for one, (id, 0) to replace one, (id, n) for the n-th exchange in it, and (id, -1) to end
it.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Struct,
    Uuid,
    plain,
    since,
    tagged,
    until,
)


class FetchRequest(Message, api=1, versions="0-18", flexible="12+"):
    """Offsets to read from, grouped by topic, with limits on time and size.

    Versions:
      0   a message set of format 0
      1   the response gains the throttle time
      2   the client reads format 1 (KIP-32)
      3   max_bytes; partitions are served in the order given (KIP-74)
      4   isolation_level; the client reads format 2 (KIP-98)
      5   the follower's log_start_offset (KIP-107)
      6   the client knows KAFKA_STORAGE_ERROR (KIP-112)
      7   fetch sessions (KIP-227)
      8   as 7, throttled after the response instead of before (KIP-219)
      9   current_leader_epoch fences stale readers (KIP-320)
      10  zstd may appear (KIP-110)
      11  rack_id, to read from a near replica (KIP-392)
      12  flexible (KIP-482); cluster_id; last_fetched_epoch, so that the leader finds where logs diverge (KIP-595)
      13  topic ids instead of names (KIP-516)
      14  the client knows OFFSET_MOVED_TO_TIERED_STORAGE (KIP-405)
      15  replica_state instead of replica_id, with the follower's broker epoch (KIP-903)
      16  the response can name the new leader (KIP-951)
      17  the follower's log directory (KIP-853)
      18  the follower's high watermark (KIP-1166)

    Kafka 4 serves 4 and up.
    """

    # sent by voters of a metadata quorum; a broker answers INCONSISTENT_CLUSTER_ID if it is not its own
    cluster_id: String | None = tagged(0, since=12, default=None, ignorable=True)
    # node id of the follower; -1 a consumer, -2 a debugging consumer; from 15 on see replica_state
    replica_id: Int32 = until(14, default=-1)
    replica_state: ReplicaState = tagged(1, since=15, default={})
    max_wait_ms: Int32  # how long to wait until min_bytes are there
    min_bytes: Int32  # 0: answer at once
    # of the whole response; the first batch of the first partition with data is sent even if larger
    max_bytes: Int32 = since(3, default=2**31 - 1, ignorable=True)
    # 0 read uncommitted, 1 read committed: only below the last stable offset
    isolation_level: Int8 = since(4, default=0, ignorable=True)
    session_id: Int32 = since(7, default=0, ignorable=True)  # 0: none yet
    # -1: no session, or the end of one; 0: full request; then counts up, and wraps to 1
    session_epoch: Int32 = since(7, default=-1, ignorable=True)
    topics: Array[FetchTopic]  # in a session: only what is new or changed
    forgotten_topics_data: Array[ForgottenTopic] = since(7, default=[])  # what to drop from the session
    rack_id: String = since(11, default="", ignorable=True)  # the consumer's client.rack; empty: unknown


class ReplicaState(Struct):
    """Which follower is asking, and in which of its lives."""

    replica_id: Int32 = plain(default=-1)  # node id; -1 a consumer
    replica_epoch: Int64 = plain(default=-1)  # broker epoch of the follower; -1 unknown


class FetchTopic(Struct):
    """What to read of one topic."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: Uuid = since(13, default=ZERO_UUID, ignorable=True)
    partitions: Array[FetchPartition]


class FetchPartition(Struct):
    """Where to read in one partition, and how much."""

    partition: Int32
    # the leader epoch the reader believes in; -1: do not check
    current_leader_epoch: Int32 = since(9, default=-1, ignorable=True)
    fetch_offset: Int64  # first offset wanted; a follower's log end offset
    # leader epoch of the record before fetch_offset; -1: do not check for divergence
    last_fetched_epoch: Int32 = since(12, default=-1)
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)  # the follower's; -1 from a consumer
    partition_max_bytes: Int32  # from version 3 on, the first batch of the response may exceed it
    # log directory of the follower's replica; zero: unassigned
    replica_directory_id: Uuid = tagged(0, since=17, default=ZERO_UUID, ignorable=True)
    # the follower's; -1 unknown, 2**63 - 1 the follower does not tell
    high_watermark: Int64 = tagged(1, since=18, default=2**63 - 1, ignorable=True)


class ForgottenTopic(Struct):
    """Partitions of one topic that leave the fetch session."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: Uuid = since(13, default=ZERO_UUID, ignorable=True)
    partitions: Array[Int32]


class FetchResponse(Message, api=1, versions="0-18", flexible="12+"):
    """Record batches and log bounds, grouped by topic.

    Versions:
      0       records and high watermark
      1       throttle_time_ms (KIP-13)
      2, 3    as 1
      4       last_stable_offset and aborted_transactions (KIP-98)
      5       log_start_offset (KIP-107)
      6       KAFKA_STORAGE_ERROR may appear (KIP-112)
      7       error_code and session_id (KIP-227)
      8, 9    as 7
      10      zstd may appear (KIP-110)
      11      preferred_read_replica (KIP-392)
      12      flexible (KIP-482); diverging_epoch, current_leader and snapshot_id (KIP-595)
      13      topic ids instead of names (KIP-516)
      14      OFFSET_MOVED_TO_TIERED_STORAGE may appear (KIP-405)
      15      as 14
      16      node_endpoints (KIP-951)
      17, 18  as 16
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = since(7, default=0, ignorable=True)  # of the exchange as a whole: session errors, mostly
    session_id: Int32 = since(7, default=0)  # 0: no session
    responses: Array[FetchableTopicResponse]
    # addresses of the leaders named in current_leader
    node_endpoints: Array[NodeEndpoint] = tagged(0, since=16, default=[])


class FetchableTopicResponse(Struct):
    """What was read of one topic."""

    topic: String = until(12, default="", ignorable=True)
    topic_id: Uuid = since(13, default=ZERO_UUID, ignorable=True)
    partitions: Array[PartitionData]


class PartitionData(Struct):
    """What was read of one partition."""

    partition_index: Int32
    error_code: Int16
    high_watermark: Int64  # consumers see nothing from here on; -1 on error
    last_stable_offset: Int64 = since(4, default=-1, ignorable=True)  # every transaction below is decided; -1 unknown
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)  # -1 unknown
    # filled when the reader's log forked off: it must truncate and ask again
    diverging_epoch: EpochEndOffset = tagged(0, since=12, default={})
    # filled with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    current_leader: LeaderIdAndEpoch = tagged(1, since=12, default={})
    # metadata quorum only: fetch this snapshot, the log no longer goes back so far
    snapshot_id: SnapshotId = tagged(2, since=12, default={})
    # read committed only: what to skip in records; None with read uncommitted
    aborted_transactions: Array[AbortedTransaction] | None = since(4, default=[], ignorable=True)
    # node id the consumer should read from instead; -1: stay here
    preferred_read_replica: Int32 = since(11, default=-1)
    records: Records | None  # a last batch may be cut short; the reader drops it


class EpochEndOffset(Struct):
    """The last point up to which two logs can agree."""

    epoch: Int32 = plain(default=-1)  # largest leader epoch known to both; -1 none
    end_offset: Int64 = plain(default=-1)  # where that epoch ends in the leader's log; -1 none


class LeaderIdAndEpoch(Struct):
    """Who leads a partition now, as far as the answering broker knows."""

    leader_id: Int32 = plain(default=-1)  # node id; -1 unknown
    leader_epoch: Int32 = plain(default=-1)  # -1 unknown


class SnapshotId(Struct):
    """The name of a snapshot of the metadata log."""

    end_offset: Int64 = plain(default=-1)  # the first offset not in the snapshot; -1 none
    epoch: Int32 = plain(default=-1)  # leader epoch of the last record in it; -1 none


class AbortedTransaction(Struct):
    """A transaction whose records a read-committed consumer must skip."""

    producer_id: Int64
    first_offset: Int64  # of the transaction in this partition; it ends at the producer's next abort marker


class NodeEndpoint(Struct):
    """The address of a broker."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = plain(default=None)  # None: the broker has no rack
