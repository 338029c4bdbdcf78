"""Produce (key 0): a producer gives a partition leader record batches to append.

Sent by producers, to the leader of every partition named. One exchange carries many partitions, and each succeeds
or fails by itself. `records` is the raw log format: nothing here parses it, decoding yields a view on the frame,
and encoding takes buffers or file regions as they are. With acks 0 no response is sent at all; a broker that
could not append then closes the connection, the only sign it can give.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
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


class ProduceRequest(Message, api=0, versions="0-13", flexible="9+"):
    """Record batches to append, grouped by topic and partition.

    Versions:
      0   message sets of format 0
      1   the response gains the throttle time
      2   message sets of format 1 (timestamps, KIP-32)
      3   transactional_id; batches of format 2, one batch a partition (KIP-98)
      4   the client knows KAFKA_STORAGE_ERROR (KIP-112)
      5   the response gains the log start offset (KIP-185)
      6   as 5, throttled after the response instead of before (KIP-219)
      7   zstd is allowed (KIP-110)
      8   the response can blame single records (KIP-467)
      9   flexible (KIP-482)
      10  the response can name the new leader (KIP-951)
      11  the client knows TRANSACTION_ABORTABLE (KIP-890)
      12  a transactional produce adds its partitions to the transaction by itself, under transaction version 2
          (KIP-890)
      13  topic ids instead of names (KIP-516)

    Kafka 4 refuses 0-2 but goes on listing them in ApiVersions, for librdkafka's sake (KAFKA-18659).
    """

    transactional_id: String | None = since(3, default=None)  # None: not transactional
    acks: Int16  # -1 all in-sync replicas, 1 the leader, 0 no response; anything else is INVALID_REQUIRED_ACKS
    timeout_ms: Int32  # how long the leader may wait for the in-sync replicas; matters with acks -1 only
    topic_data: Array[TopicProduceData]


class TopicProduceData(Struct):
    """The batches of one topic."""

    name: String = until(12, default="", ignorable=True)
    topic_id: Uuid = since(13, default=ZERO_UUID, ignorable=True)
    partition_data: Array[PartitionProduceData]


class PartitionProduceData(Struct):
    """The batches of one partition."""

    index: Int32
    records: Records | None  # version 3 on: exactly one batch of format 2; before: message sets of format 0 or 1


class ProduceResponse(Message, api=0, versions="0-13", flexible="9+"):
    """Where each partition's batch went, or why it did not.

    Versions:
      0     error and base offset
      1     throttle_time_ms (KIP-13)
      2     log_append_time_ms (KIP-32)
      3     as 2
      4     KAFKA_STORAGE_ERROR may appear (KIP-112)
      5     log_start_offset, which lets an idempotent producer tell lost state from lost records (KIP-185)
      6, 7  as 5, but throttled after the response (KIP-219)
      8     record_errors and error_message (KIP-467)
      9     flexible (KIP-482)
      10    current_leader and node_endpoints, so that a client need not refresh its metadata (KIP-951)
      11    TRANSACTION_ABORTABLE may appear (KIP-890)
      12    as 11
      13    topic ids instead of names (KIP-516)
    """

    responses: Array[TopicProduceResponse]
    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    # addresses of the leaders named in current_leader
    node_endpoints: Array[NodeEndpoint] = tagged(0, since=10, default=[])


class TopicProduceResponse(Struct):
    """The outcomes for one topic."""

    name: String = until(12, default="", ignorable=True)
    topic_id: Uuid = since(13, default=ZERO_UUID, ignorable=True)
    partition_responses: Array[PartitionProduceResponse]


class PartitionProduceResponse(Struct):
    """The outcome for one partition."""

    index: Int32
    error_code: Int16
    base_offset: Int64  # offset given to the first record; -1 on error, or for a duplicate whose offset is forgotten
    # milliseconds since 1970 when the topic uses LogAppendTime; -1 when the records keep CreateTime
    log_append_time_ms: Int64 = since(2, default=-1, ignorable=True)
    log_start_offset: Int64 = since(5, default=-1, ignorable=True)  # -1 unknown
    # the records that made the broker refuse the whole batch
    record_errors: Array[BatchIndexAndErrorMessage] = since(8, default=[], ignorable=True)
    error_message: String | None = since(8, default=None, ignorable=True)  # what those records have in common
    current_leader: LeaderIdAndEpoch = tagged(0, since=10, default={})  # filled with NOT_LEADER_OR_FOLLOWER only


class BatchIndexAndErrorMessage(Struct):
    """A record for whose sake its batch was refused."""

    batch_index: Int32  # position in the batch, from 0
    batch_index_error_message: String | None = plain(default=None)


class LeaderIdAndEpoch(Struct):
    """Who leads a partition now, as far as the answering broker knows."""

    leader_id: Int32 = plain(default=-1)  # node id; -1 unknown
    leader_epoch: Int32 = plain(default=-1)  # -1 unknown


class NodeEndpoint(Struct):
    """The address of a broker."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = plain(default=None)  # None: the broker has no rack
