"""Topics and their partitions: CreateTopics (key 19), DeleteTopics (20), CreatePartitions (37), ElectLeaders (43),
AlterPartitionReassignments (45), ListPartitionReassignments (46).

Sent by admin clients; only the controller carries them out, and every other broker answers NOT_CONTROLLER or passes the
request on. Each topic or partition succeeds or fails by itself. A request is answered when its change has reached the
brokers concerned, or when `timeout_ms` has passed: then with REQUEST_TIMED_OUT, although the change goes on.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    plain,
    since,
    tagged,
    until,
)


class CreateTopicsRequest(Message, api=19, versions="0-7", flexible="5+"):
    """Topics to be made.

    Versions:
      0  introduced by KIP-4
      1  validate_only
      2  the response gains the throttle time (KIP-124)
      3  as 2, throttled after the response instead of before (KIP-219)
      4  num_partitions and replication_factor may be left to the broker (KIP-464)
      5  flexible (KIP-482); the response tells what was made (KIP-525)
      6  the client knows THROTTLING_QUOTA_EXCEEDED (KIP-599)
      7  the response gains the topic id (KIP-516)

    Kafka 4 serves 2 and up.
    """

    topics: Array[CreatableTopic]
    timeout_ms: Int32 = plain(default=60000)  # 0 or less: answer at once
    validate_only: Bool = since(1, default=False)  # True: check everything, make nothing


class CreatableTopic(Struct):
    """A topic to be made, with its replicas chosen by the controller or by the client."""

    name: String
    num_partitions: Int32  # -1: see assignments, or, from version 4 on, num.partitions of the broker
    replication_factor: Int16  # -1: see assignments, or, from version 4 on, default.replication.factor of the broker
    assignments: Array[CreatableReplicaAssignment]  # empty: the controller chooses
    configs: Array[CreatableTopicConfig]  # what differs from the defaults


class CreatableReplicaAssignment(Struct):
    """The replicas of one partition."""

    partition_index: Int32  # the indexes of a topic run from 0 without a gap
    broker_ids: Array[Int32]  # node ids, the preferred leader first; as many for each partition of the topic


class CreatableTopicConfig(Struct):
    """One setting of the topic."""

    name: String
    value: String | None  # None is refused: it means nothing here


class CreateTopicsResponse(Message, api=19, versions="0-7", flexible="5+"):
    """What became of each topic.

    Versions:
      0  an error code for each topic
      1  error_message
      2  throttle_time_ms (KIP-124)
      3  as 2, throttled after the response (KIP-219)
      4  as 3
      5  flexible (KIP-482); partitions, replication factor and configs of the new topic (KIP-525)
      6  THROTTLING_QUOTA_EXCEEDED may appear (KIP-599)
      7  topic_id (KIP-516)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    topics: Array[CreatableTopicResult]


class CreatableTopicResult(Struct):
    """The outcome for one topic, and what was made, or would have been."""

    name: String
    topic_id: Uuid = since(7, default=ZERO_UUID, ignorable=True)  # zero: not made
    error_code: Int16
    error_message: String | None = since(1, default="", ignorable=True)  # None: no more to say than the code does
    # not 0: why the three fields below are not filled in; TOPIC_AUTHORIZATION_FAILED without the right to describe its
    # configs
    topic_config_error_code: Int16 = tagged(0, since=5, default=0, ignorable=True)
    num_partitions: Int32 = since(5, default=-1, ignorable=True)  # -1 not told
    replication_factor: Int16 = since(5, default=-1, ignorable=True)  # -1 not told
    # all settings in force, defaults too; None or empty: not told
    configs: Array[CreatableTopicConfigs] | None = since(5, default=[], ignorable=True)


class CreatableTopicConfigs(Struct):
    """One setting of the new topic."""

    name: String
    value: String | None  # None: it has none, or is_sensitive hides it
    read_only: Bool
    # where the value comes from; codes as in DescribeConfigs (see configs.py); -1 unknown
    config_source: Int8 = plain(default=-1)
    is_sensitive: Bool  # a secret: its value is never told


class DeleteTopicsRequest(Message, api=20, versions="0-6", flexible="4+"):
    """Topics to be deleted, with all their data.

    Versions:
      0  introduced by KIP-4
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  the client knows TOPIC_DELETION_DISABLED (KIP-322)
      4  flexible (KIP-482)
      5  the response gains error messages; the client knows THROTTLING_QUOTA_EXCEEDED (KIP-599)
      6  topics by name or by id (KIP-516)

    Kafka 4 serves 1 and up.
    """

    topics: Array[DeleteTopicState] = since(6, default=[])  # version 6 on
    topic_names: Array[String] = until(5, default=[], ignorable=True)  # versions 0 to 5
    timeout_ms: Int32  # 0 or less: answer at once


class DeleteTopicState(Struct):
    """A topic, by name or by id, never both."""

    name: String | None = plain(default=None)  # None: see topic_id
    topic_id: Uuid  # zero: see name


class DeleteTopicsResponse(Message, api=20, versions="0-6", flexible="4+"):
    """What became of each topic.

    Versions:
      0  an error code for each topic
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  TOPIC_DELETION_DISABLED may appear, before in its place INVALID_REQUEST (KIP-322)
      4  flexible (KIP-482)
      5  error_message; THROTTLING_QUOTA_EXCEEDED may appear (KIP-599)
      6  topic_id; UNKNOWN_TOPIC_ID may appear (KIP-516)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    responses: Array[DeletableTopicResult]


class DeletableTopicResult(Struct):
    """The outcome for one topic."""

    # None: asked for by an id that no topic has, or by one whose name the client may not learn
    name: String | None = plain(nullable="6+")
    # zero: asked for by a name that no topic has, or a topic from before ids
    topic_id: Uuid = since(6, default=ZERO_UUID, ignorable=True)
    error_code: Int16
    error_message: String | None = since(5, default=None, ignorable=True)  # None: no more to say than the code does


class CreatePartitionsRequest(Message, api=37, versions="0-3", flexible="2+"):
    """Topics to be given more partitions.

    Versions:
      0  introduced by KIP-195
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  the client knows THROTTLING_QUOTA_EXCEEDED (KIP-599)
    """

    topics: Array[CreatePartitionsTopic]
    timeout_ms: Int32  # 0 or less: answer at once
    validate_only: Bool  # True: check everything, change nothing


class CreatePartitionsTopic(Struct):
    """A topic, and how many partitions it is to have."""

    name: String
    count: Int32  # old ones included; not above the present number is INVALID_PARTITIONS
    # one for each new partition, in order; None: the controller chooses
    assignments: Array[CreatePartitionsAssignment] | None


class CreatePartitionsAssignment(Struct):
    """The replicas of one new partition."""

    broker_ids: Array[Int32]  # node ids, the preferred leader first


class CreatePartitionsResponse(Message, api=37, versions="0-3", flexible="2+"):
    """What became of each topic.

    Versions:
      0  introduced by KIP-195
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  THROTTLING_QUOTA_EXCEEDED may appear (KIP-599)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[CreatePartitionsTopicResult]


class CreatePartitionsTopicResult(Struct):
    """The outcome for one topic."""

    name: String
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no more to say than the code does


class ElectLeadersRequest(Message, api=43, versions="0-2", flexible="2+"):
    """Partitions whose leader is to be elected again.

    Versions:
      0  introduced by KIP-183 as ElectPreferredLeaders
      1  election_type (KIP-460)
      2  flexible (KIP-482)
    """

    # 0 the preferred leader, if it is in sync; 1 unclean: any live replica if none is in sync, at the price of records
    election_type: Int8 = since(1, default=0)
    topic_partitions: Array[TopicPartitions] | None  # None: all partitions of the cluster
    timeout_ms: Int32 = plain(default=60000)  # how long to wait until the new leaders are known


class TopicPartitions(Struct):
    """The partitions of one topic."""

    topic: String
    partitions: Array[Int32]  # indexes


class ElectLeadersResponse(Message, api=43, versions="0-2", flexible="2+"):
    """What became of each partition.

    Versions:
      0  introduced by KIP-183
      1  error_code (KIP-460)
      2  flexible (KIP-482)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16 = since(1, default=0)  # of the whole request; CLUSTER_AUTHORIZATION_FAILED, for instance
    # of all partitions, when that was asked, only those where something was to be done
    replica_election_results: Array[ReplicaElectionResult]


class ReplicaElectionResult(Struct):
    """The outcomes for one topic."""

    topic: String
    partition_result: Array[PartitionResult]


class PartitionResult(Struct):
    """The outcome for one partition."""

    partition_id: Int32
    error_code: Int16  # ELECTION_NOT_NEEDED is good news, too
    error_message: String | None  # None: no more to say than the code does


class AlterPartitionReassignmentsRequest(Message, api=45, versions="0-1", flexible="0+"):
    """Partitions to be moved to other brokers, and moves to be called off.

    The controller adds the new replicas, waits until they are in sync, and only then takes the old ones away; the
    response comes when the move has begun.

    Versions:
      0  introduced by KIP-455, flexible from the start
      1  allow_replication_factor_change (KIP-860)
    """

    timeout_ms: Int32 = plain(default=60000)
    # False: as many replicas as before, or the partition is refused
    allow_replication_factor_change: Bool = since(1, default=True)
    topics: Array[ReassignableTopic]


class ReassignableTopic(Struct):
    """The partitions of one topic."""

    name: String
    partitions: Array[ReassignablePartition]


class ReassignablePartition(Struct):
    """Where one partition is to be."""

    partition_index: Int32
    # node ids, the preferred leader first; None: call off the move under way
    replicas: Array[Int32] | None = plain(default=None)


class AlterPartitionReassignmentsResponse(Message, api=45, versions="0-1", flexible="0+"):
    """Whether each move has begun.

    Versions:
      0  introduced by KIP-455, flexible from the start
      1  allow_replication_factor_change (KIP-860)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    allow_replication_factor_change: Bool = since(1, default=True, ignorable=True)  # as it was asked
    error_code: Int16  # of the whole request; CLUSTER_AUTHORIZATION_FAILED, for instance
    error_message: String | None  # None: no more to say than the code does
    responses: Array[ReassignableTopicResponse]


class ReassignableTopicResponse(Struct):
    """The outcomes for one topic."""

    name: String
    partitions: Array[ReassignablePartitionResponse]


class ReassignablePartitionResponse(Struct):
    """The outcome for one partition."""

    partition_index: Int32
    error_code: Int16  # NO_REASSIGNMENT_IN_PROGRESS when there is nothing to call off
    error_message: String | None  # None: no more to say than the code does


class ListPartitionReassignmentsRequest(Message, api=46, versions="0", flexible="0+"):
    """Asks which partitions are being moved.

    Versions:
      0  introduced by KIP-455, flexible from the start
    """

    timeout_ms: Int32 = plain(default=60000)
    topics: Array[ListPartitionReassignmentsTopics] | None = plain(default=None)  # None: all that are being moved


class ListPartitionReassignmentsTopics(Struct):
    """The partitions of one topic."""

    name: String
    partition_indexes: Array[Int32]


class ListPartitionReassignmentsResponse(Message, api=46, versions="0", flexible="0+"):
    """The moves under way.

    Versions:
      0  introduced by KIP-455, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None  # None: no error
    topics: Array[OngoingTopicReassignment]  # a partition that was asked for and is not here is not being moved


class OngoingTopicReassignment(Struct):
    """The moves of one topic's partitions."""

    name: String
    partitions: Array[OngoingPartitionReassignment]


class OngoingPartitionReassignment(Struct):
    """One move."""

    partition_index: Int32
    replicas: Array[Int32]  # node ids of all replicas at this moment, old and new
    adding_replicas: Array[Int32]  # those that are coming
    removing_replicas: Array[Int32]  # those that will go once the others are in sync
