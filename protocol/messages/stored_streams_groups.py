"""Records of Streams groups in __consumer_offsets (KIP-1071): keys 17 and 19 to 23, told apart by the version in front.

Read and written as `stored.py` says: `encode_versioned`, `decode_versioned`. A key that names a member belongs to that
member of the group, the others to the whole group. A record without a value deletes what is stored under its key.

| key | of | what |
|---|---|---|
| 17 | group | StreamsGroupMetadata: the group's epoch |
| 19 | member | StreamsGroupMemberMetadata: who it is |
| 20 | group | StreamsGroupTargetAssignmentMetadata: the epoch of the target assignment |
| 21 | member | StreamsGroupTargetAssignmentMember: its target assignment |
| 22 | member | StreamsGroupCurrentMemberAssignment: what it has |
| 23 | group | StreamsGroupTopology |
"""

from __future__ import annotations

from protocol.message import Array, Int8, Int16, Int32, Int64, Message, String, Struct, UInt16, plain, tagged


class StreamsGroupMetadataKey(Message, versions="17", flexible="none"):
    """Which group.

    Versions:
      17  the only one: the type of the record
    """

    group_id: String


class StreamsGroupMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of a group, and what it was made of.

    Versions:
      0  introduced by KIP-1071; the topology description's epochs by KIP-1331
    """

    epoch: Int32  # moves with members, topology and topics
    metadata_hash: Int64  # of the topics that the topology needs
    validated_topology_epoch: Int32 = tagged(0, since=0, default=-1)  # of the topology if all its topics are as needed
    last_assignment_configs: Array[LastAssignmentConfig] | None = tagged(1, since=0, default=[])
    stored_description_topology_epoch: Int32 = tagged(2, since=0, default=-1)  # -1 none, -2 it is not known whether
    failed_description_topology_epoch: Int32 = tagged(3, since=0, default=-1)  # that the plugin refused for good


class LastAssignmentConfig(Struct):
    """A setting of the assignment, such as num.standby.replicas."""

    key: String
    value: String


class StreamsGroupMemberMetadataKey(Message, versions="19", flexible="none"):
    """Which member.

    Versions:
      19  the only one: the type of the record
    """

    group_id: String
    member_id: String


class StreamsGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """Who a member is.

    Versions:
      0  introduced by KIP-1071
    """

    instance_id: String | None  # None: a dynamic member
    rack_id: String | None  # None: unknown
    client_id: String
    client_host: String  # "/" and its address
    rebalance_timeout_ms: Int32 = plain(default=-1)  # how long it may take to let go of tasks
    topology_epoch: Int32  # of the topology that it came with
    process_id: String
    user_endpoint: Endpoint | None = plain(default=None)
    client_tags: Array[KeyValue]


class Endpoint(Struct):
    """Where a process can be asked for its state."""

    host: String
    port: UInt16


class KeyValue(Struct):
    """A tag of a client."""

    key: String
    value: String


class StreamsGroupTargetAssignmentMetadataKey(Message, versions="20", flexible="none"):
    """Which group.

    Versions:
      20  the only one: the type of the record
    """

    group_id: String


class StreamsGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """The epoch of a group's target assignment.

    Versions:
      0  introduced by KIP-1071; assignment_timestamp by KIP-1263
    """

    assignment_epoch: Int32  # the group epoch that it was computed for
    assignment_timestamp: Int64 = tagged(0, since=0, default=0, ignorable=True)  # when, in ms since 1970; 0: never


class StreamsGroupTargetAssignmentMemberKey(Message, versions="21", flexible="none"):
    """Which member.

    Versions:
      21  the only one: the type of the record
    """

    group_id: String
    member_id: String


class StreamsGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """What a member will have.

    Versions:
      0  introduced by KIP-1071
    """

    active_tasks: Array[TargetTaskIds]
    standby_tasks: Array[TargetTaskIds]
    warmup_tasks: Array[TargetTaskIds]


class TargetTaskIds(Struct):
    """Tasks of one subtopology."""

    subtopology_id: String
    partitions: Array[Int32]


class StreamsGroupCurrentMemberAssignmentKey(Message, versions="22", flexible="none"):
    """Which member.

    Versions:
      22  the only one: the type of the record
    """

    group_id: String
    member_id: String


class StreamsGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """What a member has.

    Versions:
      0  introduced by KIP-1071; the epochs of tasks by KIP-1251
    """

    member_epoch: Int32  # -2: a static member that is away
    previous_member_epoch: Int32
    state: Int8  # 0 stable, 1 it must let go of tasks, 2 it waits for tasks of others
    active_tasks: Array[CurrentTaskIds]
    standby_tasks: Array[CurrentTaskIds]
    warmup_tasks: Array[CurrentTaskIds]
    # to be let go of
    active_tasks_pending_revocation: Array[CurrentTaskIds]
    standby_tasks_pending_revocation: Array[CurrentTaskIds]
    warmup_tasks_pending_revocation: Array[CurrentTaskIds]


class CurrentTaskIds(Struct):
    """Tasks of one subtopology. assignment_epochs: when each was given to the member; of active tasks alone."""

    subtopology_id: String
    partitions: Array[Int32]
    assignment_epochs: Array[Int32] | None = tagged(0, since=0, default=[])


class StreamsGroupTopologyKey(Message, versions="23", flexible="none"):
    """Which group.

    Versions:
      23  the only one: the type of the record
    """

    group_id: String


class StreamsGroupTopologyValue(Message, versions="0", flexible="0+"):
    """The topology of a group; see StreamsGroupHeartbeatRequest.

    Versions:
      0  introduced by KIP-1071
    """

    epoch: Int32
    subtopologies: Array[Subtopology]


class Subtopology(Struct):
    """A part of a topology that is connected in itself."""

    subtopology_id: String
    source_topics: Array[String]
    source_topic_regex: Array[String]
    state_changelog_topics: Array[TopicInfo]
    repartition_sink_topics: Array[String]
    repartition_source_topics: Array[TopicInfo]
    copartition_groups: Array[CopartitionGroup]


class CopartitionGroup(Struct):
    """Topics that must have the same number of partitions; indexes into the arrays of their subtopology."""

    source_topics: Array[Int16]
    source_topic_regex: Array[Int16]
    repartition_source_topics: Array[Int16]


class TopicInfo(Struct):
    """An internal topic, as it is wanted. partitions, replication_factor: 0 if it does not say."""

    name: String
    partitions: Int32
    replication_factor: Int16
    topic_configs: Array[TopicConfig]


class TopicConfig(Struct):
    """A setting of a topic."""

    key: String
    value: String
