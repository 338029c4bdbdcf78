"""Exactly once: producer ids, transactions (KIP-98), and what tools see of them.

InitProducerId (key 22), AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26), TxnOffsetCommit (28),
WriteTxnMarkers (27); the views DescribeProducers (61), DescribeTransactions (65), ListTransactions (66).

A producer asks for an id and an epoch; sequence numbers under them let brokers drop duplicates. With a
transactional id it asks its transaction coordinator, the leader of the partition of __transaction_state that the
id hashes to, and is the only one from then on: the epoch fences earlier holders. It tells the coordinator which
partitions and which groups the transaction touches, produces, commits offsets by TxnOffsetCommit to the group's
coordinator, and ends. The coordinator then writes the outcome into its log, and by WriteTxnMarkers has every
leader concerned append a marker. Under transaction version 2 (KIP-890) produces and offset commits add their
partitions by themselves, and each end raises the epoch.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Int8,
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


class InitProducerIdRequest(Message, api=22, versions="0-6", flexible="2+"):
    """Asks for a producer id, and if transactional ends whatever an earlier holder left open.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  producer_id and producer_epoch: a producer may recover by raising its own epoch (KIP-360)
      4  the client knows PRODUCER_FENCED (KIP-588)
      5  the client knows TRANSACTION_ABORTABLE (KIP-890)
      6  enable2_pc and keep_prepared_txn, two-phase commit (KIP-939); unstable in Kafka 4.3
    """

    transactional_id: String | None  # None: idempotent only, any broker answers
    transaction_timeout_ms: Int32  # an open transaction older than this is aborted; counts with a transactional id only
    producer_id: Int64 = since(3, default=-1)  # of the asking producer; -1: none yet
    producer_epoch: Int16 = since(3, default=-1)  # of the asking producer; -1: none yet
    enable2_pc: Bool = since(6, default=False)  # the transaction shall never time out: another system decides its end
    keep_prepared_txn: Bool = since(6, default=False)  # leave the open transaction open


class InitProducerIdResponse(Message, api=22, versions="0-6", flexible="2+"):
    """The producer's id and epoch.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  as 2
      4  PRODUCER_FENCED may appear (KIP-588)
      5  TRANSACTION_ABORTABLE may appear (KIP-890)
      6  the transaction that was kept open (KIP-939)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    producer_id: Int64 = plain(default=-1)  # -1 on error
    producer_epoch: Int16
    ongoing_txn_producer_id: Int64 = since(6, default=-1)  # -1: none is open
    ongoing_txn_producer_epoch: Int16 = since(6, default=-1)  # -1: none is open


class AddPartitionsToTxnRequest(Message, api=24, versions="0-5", flexible="3+"):
    """Says which partitions transactions are about to write to.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response instead of before (KIP-219)
      2  the client knows PRODUCER_FENCED (KIP-588)
      3  flexible (KIP-482)
      4  several transactions at once, and verify_only: for brokers, which ask on behalf of a produce (KIP-890)
      5  the sender knows TRANSACTION_ABORTABLE (KIP-890)
    """

    transactions: Array[AddPartitionsToTxnTransaction] = since(4, default=[])
    v3_and_below_transactional_id: String = until(3, default="")
    v3_and_below_producer_id: Int64 = until(3, default=0)
    v3_and_below_producer_epoch: Int16 = until(3, default=0)
    v3_and_below_topics: Array[AddPartitionsToTxnTopic] = until(3, default=[])


class AddPartitionsToTxnTransaction(Struct):
    """The partitions of one transaction."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    verify_only: Bool = plain(default=False)  # ask whether they are in it instead of adding them
    topics: Array[AddPartitionsToTxnTopic]


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: String
    partitions: Array[Int32]


class AddPartitionsToTxnResponse(Message, api=24, versions="0-5", flexible="3+"):
    """Which partitions are part of the transactions.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response (KIP-219)
      2  PRODUCER_FENCED may appear (KIP-588)
      3  flexible (KIP-482)
      4  several transactions, error_code (KIP-890)
      5  TRANSACTION_ABORTABLE may appear (KIP-890)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16 = since(4, default=0, ignorable=True)  # of the exchange as a whole: CLUSTER_AUTHORIZATION_FAILED
    results_by_transaction: Array[AddPartitionsToTxnResult] = since(4, default=[])
    results_by_topic_v3_and_below: Array[AddPartitionsToTxnTopicResult] = until(3, default=[])


class AddPartitionsToTxnResult(Struct):
    """The outcomes for one transaction."""

    transactional_id: String
    topic_results: Array[AddPartitionsToTxnTopicResult]


class AddPartitionsToTxnTopicResult(Struct):
    """The outcomes for one topic."""

    name: String
    results_by_partition: Array[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnPartitionResult(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    partition_error_code: Int16  # OPERATION_NOT_ATTEMPTED: another partition of the request failed


class AddOffsetsToTxnRequest(Message, api=25, versions="0-4", flexible="3+"):
    """Says that a transaction is about to commit offsets of a group.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response instead of before (KIP-219)
      2  the client knows PRODUCER_FENCED (KIP-588)
      3  flexible (KIP-482)
      4  the client knows TRANSACTION_ABORTABLE (KIP-890)
    """

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String  # its partition of __consumer_offsets becomes part of the transaction


class AddOffsetsToTxnResponse(Message, api=25, versions="0-4", flexible="3+"):
    """Whether the group's offsets are part of the transaction.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response (KIP-219)
      2  PRODUCER_FENCED may appear (KIP-588)
      3  flexible (KIP-482)
      4  TRANSACTION_ABORTABLE may appear (KIP-890)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16


class EndTxnRequest(Message, api=26, versions="0-5", flexible="3+"):
    """Ends a transaction, one way or the other.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response instead of before (KIP-219)
      2  the client knows PRODUCER_FENCED (KIP-588)
      3  flexible (KIP-482)
      4  the client knows TRANSACTION_ABORTABLE (KIP-890)
      5  the producer goes on under a new epoch: transaction version 2 (KIP-890)
    """

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool  # False: abort


class EndTxnResponse(Message, api=26, versions="0-5", flexible="3+"):
    """Whether the end is decided; the markers may still be under way.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response (KIP-219)
      2  PRODUCER_FENCED may appear (KIP-588)
      3  flexible (KIP-482)
      4  TRANSACTION_ABORTABLE may appear (KIP-890)
      5  producer_id and producer_epoch (KIP-890)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    # for the next transaction: a new one when the epochs ran out; -1 on error
    producer_id: Int64 = since(5, default=-1, ignorable=True)
    producer_epoch: Int16 = since(5, default=-1, ignorable=True)  # for the next transaction; -1 on error


class TxnOffsetCommitRequest(Message, api=28, versions="0-6", flexible="3+"):
    """Offsets to remember for a group, if the transaction commits.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response instead of before (KIP-219)
      2  committed_leader_epoch (KIP-320)
      3  flexible (KIP-482); generation_id, member_id and group_instance_id, so that a stale member is fenced
         (KIP-447)
      4  the client knows TRANSACTION_ABORTABLE (KIP-890)
      5  adds the group's offsets to the transaction by itself, under transaction version 2 (KIP-890)
      6  topic_id instead of the name (KIP-1319)
    """

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = since(3, default=-1)  # in a consumer group the member's epoch; -1: from outside the group
    member_id: String = since(3, default="")  # empty: from outside the group
    group_instance_id: String | None = since(3, default=None)  # None: a dynamic member
    topics: Array[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitRequestTopic(Struct):
    """The offsets of one topic."""

    name: String = until(5, default="", ignorable=True)
    topic_id: Uuid = since(6, default=ZERO_UUID, ignorable=True)
    partitions: Array[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequestPartition(Struct):
    """The offset of one partition."""

    partition_index: Int32
    committed_offset: Int64  # the next one to read
    # of the record before committed_offset; -1 unknown
    committed_leader_epoch: Int32 = since(2, default=-1, ignorable=True)
    committed_metadata: String | None  # whatever the client wants back; offset.metadata.max.bytes bounds it


class TxnOffsetCommitResponse(Message, api=28, versions="0-6", flexible="3+"):
    """Which offsets wait for the end of the transaction.

    Versions:
      0  introduced by KIP-98
      1  as 0, throttled after the response (KIP-219)
      2  as 1
      3  flexible (KIP-482); ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID and FENCED_INSTANCE_ID may appear (KIP-447)
      4  TRANSACTION_ABORTABLE may appear (KIP-890)
      5  as 4
      6  topic_id instead of the name; GROUP_ID_NOT_FOUND, STALE_MEMBER_EPOCH and UNKNOWN_TOPIC_ID may appear
         (KIP-1319)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    topics: Array[TxnOffsetCommitResponseTopic]


class TxnOffsetCommitResponseTopic(Struct):
    """The outcomes for one topic."""

    name: String = until(5, default="", ignorable=True)
    topic_id: Uuid = since(6, default=ZERO_UUID, ignorable=True)
    partitions: Array[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponsePartition(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16


class WriteTxnMarkersRequest(Message, api=27, versions="0-2", flexible="1+"):
    """Has leaders append the outcome of transactions; sent by transaction coordinators, between brokers.

    Versions:
      0  introduced by KIP-98
      1  flexible (KIP-482)
      2  transaction_version (KIP-1228)

    Kafka 4 serves 1 and up.
    """

    markers: Array[WritableTxnMarker]


class WritableTxnMarker(Struct):
    """The outcome of one transaction."""

    producer_id: Int64
    producer_epoch: Int16
    transaction_result: Bool  # True: committed; False: aborted
    topics: Array[WritableTxnMarkerTopic]
    coordinator_epoch: Int32  # leader epoch of the coordinator's partition of __transaction_state: fences earlier ones
    # 2: the producer's epoch must be above the last one seen; 0, 1: may be equal
    transaction_version: Int8 = since(2, default=0, ignorable=True)


class WritableTxnMarkerTopic(Struct):
    """The partitions of one topic to mark."""

    name: String
    partition_indexes: Array[Int32]


class WriteTxnMarkersResponse(Message, api=27, versions="0-2", flexible="1+"):
    """Where the markers stand now.

    Versions:
      0  introduced by KIP-98
      1  flexible (KIP-482)
      2  as 1 (KIP-1228)
    """

    markers: Array[WritableTxnMarkerResult]


class WritableTxnMarkerResult(Struct):
    """The outcomes for one transaction."""

    producer_id: Int64
    topics: Array[WritableTxnMarkerTopicResult]


class WritableTxnMarkerTopicResult(Struct):
    """The outcomes for one topic."""

    name: String
    partitions: Array[WritableTxnMarkerPartitionResult]


class WritableTxnMarkerPartitionResult(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16


class DescribeProducersRequest(Message, api=61, versions="0", flexible="0+"):
    """Asks leaders which producers they remember; the tool that looks for hanging transactions sends it.

    Versions:
      0  introduced by KIP-664, flexible from the start
    """

    topics: Array[TopicRequest]


class TopicRequest(Struct):
    """Partitions of one topic."""

    name: String
    partition_indexes: Array[Int32]


class DescribeProducersResponse(Message, api=61, versions="0", flexible="0+"):
    """The producers that each partition remembers.

    Versions:
      0  introduced by KIP-664, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    topics: Array[TopicResponse]


class TopicResponse(Struct):
    """The producers of one topic."""

    name: String
    partitions: Array[PartitionResponse]


class PartitionResponse(Struct):
    """The producers of one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    active_producers: Array[ProducerState]


class ProducerState(Struct):
    """What a partition remembers of one producer."""

    producer_id: Int64
    producer_epoch: Int32  # 32 bits here, 16 everywhere else
    last_sequence: Int32 = plain(default=-1)  # -1: none
    last_timestamp: Int64 = plain(default=-1)  # of its newest batch, milliseconds since 1970; -1: none
    coordinator_epoch: Int32  # of its last marker; -1: none
    current_txn_start_offset: Int64 = plain(default=-1)  # of its open transaction; -1: none is open


class DescribeTransactionsRequest(Message, api=65, versions="0", flexible="0+"):
    """Asks coordinators for the state of some transactions.

    Versions:
      0  introduced by KIP-664, flexible from the start
    """

    transactional_ids: Array[String]  # empty: none


class DescribeTransactionsResponse(Message, api=65, versions="0", flexible="0+"):
    """The state of each transaction.

    Versions:
      0  introduced by KIP-664, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    transaction_states: Array[DescribedTransactionState]


class DescribedTransactionState(Struct):
    """A transaction."""

    error_code: Int16
    transactional_id: String
    # Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, ...; empty on error
    transaction_state: String
    transaction_timeout_ms: Int32
    transaction_start_time_ms: Int64  # milliseconds since 1970; -1: not begun
    producer_id: Int64
    producer_epoch: Int16
    topics: Array[TopicData]  # its partitions; while it ends, those still without a marker


class TopicData(Struct):
    """Partitions of one topic."""

    topic: String
    partitions: Array[Int32]


class ListTransactionsRequest(Message, api=66, versions="0-2", flexible="0+"):
    """Asks a broker which transactions it coordinates.

    Versions:
      0  introduced by KIP-664, flexible from the start
      1  duration_filter (KIP-994)
      2  transactional_id_pattern (KIP-1152)
    """

    state_filters: Array[String]  # empty: any state
    producer_id_filters: Array[Int64]  # empty: any producer
    duration_filter: Int64 = since(1, default=-1)  # milliseconds; only those open for longer; -1: any
    transactional_id_pattern: String | None = since(2, default=None)  # in RE2 syntax; None or empty: any


class ListTransactionsResponse(Message, api=66, versions="0-2", flexible="0+"):
    """The transactions that the broker coordinates.

    Versions:
      0  introduced by KIP-664, flexible from the start
      1  as 0 (KIP-994)
      2  INVALID_REGULAR_EXPRESSION may appear (KIP-1152)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    unknown_state_filters: Array[String]  # those of the request that name no state
    transaction_states: Array[ListedTransactionState]


class ListedTransactionState(Struct):
    """A transaction, in short."""

    transactional_id: String
    producer_id: Int64
    transaction_state: String
