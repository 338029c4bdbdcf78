"""ShareGroupHeartbeat (key 76), ShareGroupDescribe (77), ShareFetch (78), ShareAcknowledge (79): queues (KIP-932).

The members of a share group read the same partitions together, record by record: the leader of a partition gives each
record to one of them at a time, under an acquisition lock, and remembers what came of it. Heartbeats go to the group's
coordinator; fetches and acknowledgements to the leaders, in a share session that both sides count by epochs. Version 0
was for early access in Kafka 4.0, and has gone.
"""

from __future__ import annotations

from protocol.message import (
    Array,
    Bool,
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
)


class ShareGroupHeartbeatRequest(Message, api=76, versions="1", flexible="0+"):
    """Says that a member is alive, and what it wants to read.

    Versions:
      1  introduced by KIP-932
    """

    group_id: String
    member_id: String  # the member makes it up, and keeps it as long as it lives
    member_epoch: Int32  # 0 joins, -1 leaves; else the last one that it was told
    rack_id: String | None = plain(default=None)  # None: unchanged, or unknown
    subscribed_topic_names: Array[String] | None = plain(default=None)  # None: unchanged


class ShareGroupHeartbeatResponse(Message, api=76, versions="1", flexible="0+"):
    """Tells a member its epoch, and what it reads from.

    Versions:
      1  introduced by KIP-932
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    member_id: String | None = plain(default=None)
    member_epoch: Int32  # to send with the next heartbeat
    heartbeat_interval_ms: Int32  # when to send it
    assignment: ShareAssignment | None = plain(default=None)  # None: unchanged


class ShareAssignment(Struct):
    """All that a member reads from."""

    topic_partitions: Array[ShareTopicPartitions]


class ShareTopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: Array[Int32]


class ShareGroupDescribeRequest(Message, api=77, versions="1", flexible="0+"):
    """Asks for the state and members of share groups.

    Versions:
      1  introduced by KIP-932
    """

    group_ids: Array[String]
    include_authorized_operations: Bool


class ShareGroupDescribeResponse(Message, api=77, versions="1", flexible="0+"):
    """The state and members of each group.

    Versions:
      1  introduced by KIP-932
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    groups: Array[DescribedShareGroup]


class DescribedShareGroup(Struct):
    """A group."""

    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    group_id: String
    group_state: String  # Empty, Stable, Dead; empty on error
    group_epoch: Int32  # moves whenever members or their subscriptions do
    assignment_epoch: Int32  # the group epoch that the target assignment was computed for
    assignor_name: String
    members: Array[DescribedShareMember]
    # bit n: the client may do the ACL operation with code n; -2**31: not asked for
    authorized_operations: Int32 = plain(default=-(2**31))


class DescribedShareMember(Struct):
    """A member of a group."""

    member_id: String
    rack_id: String | None = plain(default=None)  # None: unknown
    member_epoch: Int32
    client_id: String
    client_host: String  # "/" and its address
    subscribed_topic_names: Array[String]
    assignment: DescribedShareAssignment


class DescribedShareAssignment(Struct):
    """The partitions that a member reads from."""

    topic_partitions: Array[DescribedShareTopicPartitions]


class DescribedShareTopicPartitions(Struct):
    """Partitions of one topic, which is named as well."""

    topic_id: Uuid
    topic_name: String
    partitions: Array[Int32]


class ShareFetchRequest(Message, api=78, versions="1-2", flexible="0+"):
    """Asks the leader of some partitions for records to work on, and says what came of earlier ones.

    Versions:
      1  introduced by KIP-932
      2  share_acquire_mode (KIP-1206), is_renew_ack and the acknowledgement type renew (KIP-1222)
    """

    group_id: String | None = plain(default=None)
    member_id: String | None
    share_session_epoch: Int32  # 0 opens a session, -1 ends it; else one more than before
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = plain(default=0x7FFFFFFF)
    max_records: Int32  # may be exceeded where a batch of the log ends behind it
    batch_size: Int32  # records that one batch of acquired ones should have
    # 0 whole batches of the log, 1 never more than max_records
    share_acquire_mode: Int8 = since(2, default=0, ignorable=True)
    is_renew_ack: Bool = since(2, default=False)  # acknowledgements renew locks; nothing is fetched
    topics: Array[ShareFetchTopic]
    forgotten_topics_data: Array[ForgottenShareTopic]


class ShareFetchTopic(Struct):
    """The partitions of one topic: to fetch from, or to acknowledge."""

    topic_id: Uuid
    partitions: Array[ShareFetchPartition]


class ShareFetchPartition(Struct):
    """One partition, and what came of records from it."""

    partition_index: Int32
    acknowledgement_batches: Array[AcknowledgementBatch]


class AcknowledgementBatch(Struct):
    """What came of some records in a row."""

    first_offset: Int64
    last_offset: Int64  # of the last record itself
    # 0 gap, 1 accept, 2 release, 3 reject, 4 renew; one for each offset, or one for all
    acknowledge_types: Array[Int8]


class ForgottenShareTopic(Struct):
    """Partitions that the session need not remember any more."""

    topic_id: Uuid
    partitions: Array[Int32]


class ShareFetchResponse(Message, api=78, versions="1-2", flexible="0+"):
    """Records, which of them are acquired, and how the acknowledgements went.

    Versions:
      1  introduced by KIP-932
      2  as 1
    """

    throttle_time_ms: Int32 = plain(default=0, ignorable=True)  # how long the quota makes the client wait; 0: within it
    error_code: Int16 = plain(default=0, ignorable=True)  # of the request as a whole
    error_message: String | None = plain(default=None)  # None: no error
    acquisition_lock_timeout_ms: Int32  # how long the records acquired now are locked
    responses: Array[ShareFetchableTopicResponse]
    node_endpoints: Array[ShareNodeEndpoint]  # addresses of the leaders that are named


class ShareFetchableTopicResponse(Struct):
    """The answers about one topic's partitions."""

    topic_id: Uuid
    partitions: Array[SharePartitionData]


class SharePartitionData(Struct):
    """The answer about one partition."""

    partition_index: Int32
    error_code: Int16  # of the fetch
    error_message: String | None = plain(default=None)  # None: no error
    acknowledge_error_code: Int16
    acknowledge_error_message: String | None = plain(default=None)  # None: no error
    current_leader: ShareLeaderIdAndEpoch  # filled in with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    records: Records
    acquired_records: Array[AcquiredRecords]


class ShareLeaderIdAndEpoch(Struct):
    """Who leads a partition."""

    leader_id: Int32  # -1 unknown
    leader_epoch: Int32  # -1 unknown


class AcquiredRecords(Struct):
    """Records in a row that are the member's to work on, until their lock expires."""

    first_offset: Int64
    last_offset: Int64  # of the last record itself
    delivery_count: Int16  # this delivery counted


class ShareNodeEndpoint(Struct):
    """The address of a broker."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = plain(default=None)  # None: unknown


class ShareAcknowledgeRequest(Message, api=79, versions="1-2", flexible="0+"):
    """Says what came of records that were fetched.

    Versions:
      1  introduced by KIP-932
      2  is_renew_ack and the acknowledgement type renew (KIP-1222)
    """

    group_id: String | None = plain(default=None)
    member_id: String | None
    share_session_epoch: Int32  # -1 ends the session; else one more than before
    is_renew_ack: Bool = since(2, default=False)  # some of the acknowledgements renew locks
    topics: Array[ShareAcknowledgeTopic]


class ShareAcknowledgeTopic(Struct):
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: Array[ShareAcknowledgePartition]


class ShareAcknowledgePartition(Struct):
    """What came of records from one partition."""

    partition_index: Int32
    acknowledgement_batches: Array[AcknowledgementBatch]


class ShareAcknowledgeResponse(Message, api=79, versions="1-2", flexible="0+"):
    """How the acknowledgements went.

    Versions:
      1  introduced by KIP-932
      2  acquisition_lock_timeout_ms (KIP-1222)
    """

    throttle_time_ms: Int32 = plain(default=0, ignorable=True)  # how long the quota makes the client wait; 0: within it
    error_code: Int16 = plain(default=0, ignorable=True)  # of the request as a whole
    error_message: String | None = plain(default=None)  # None: no error
    acquisition_lock_timeout_ms: Int32 = since(2, default=0, ignorable=True)  # of locks that are renewed
    responses: Array[ShareAcknowledgeTopicResponse]
    node_endpoints: Array[ShareNodeEndpoint]  # addresses of the leaders that are named


class ShareAcknowledgeTopicResponse(Struct):
    """The outcomes for one topic's partitions."""

    topic_id: Uuid
    partitions: Array[ShareAcknowledgePartitionData]


class ShareAcknowledgePartitionData(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    current_leader: ShareLeaderIdAndEpoch  # filled in with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
