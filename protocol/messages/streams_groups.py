"""StreamsGroupHeartbeat (key 88), StreamsGroupDescribe (89), StreamsGroupTopologyDescriptionUpdate (93): KIP-1071.

Groups whose members are threads of Kafka Streams, and whose coordinator hands out tasks instead of partitions. A task
is a subtopology and a partition: it reads that partition of all source topics of the subtopology. The first heartbeat
of a member brings the topology; the coordinator has the internal topics created that it needs, and gives each task to
one member as its active task, to others as a standby (keeps a copy of the state) or a warm-up task (builds a copy, to
take the task over). What has not changed since the last heartbeat is left out, as None or -1.
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
    String,
    Struct,
    UInt16,
    plain,
    since,
    until,
)


class StreamsGroupHeartbeatRequest(Message, api=88, versions="0-1", flexible="0+"):
    """Says that a member is alive, and which tasks it has.

    Versions:
      0  introduced by KIP-1071, flexible from the start
      1  as 0; the response gains topology_description_required (KIP-1331)
    """

    group_id: String  # the application.id
    member_id: String  # made up by the member, kept as long as its process lives
    member_epoch: Int32  # 0 joins, -1 leaves, -2 leaves a static member's place to be taken again
    endpoint_information_epoch: Int32  # the latest that the member has seen
    instance_id: String | None = plain(default=None)  # None: a dynamic member
    rack_id: String | None = plain(default=None)  # None: unchanged, or unknown
    rebalance_timeout_ms: Int32 = plain(default=-1)  # how long the member may take to let go of tasks; -1: unchanged
    topology: Topology | None = plain(default=None)  # in the first heartbeat only
    # tasks that the member has; None: unchanged. All three or none
    active_tasks: Array[TaskIds] | None = plain(default=None)
    standby_tasks: Array[TaskIds] | None = plain(default=None)
    warmup_tasks: Array[TaskIds] | None = plain(default=None)
    process_id: String | None = plain(default=None)  # of members that share memory and disk; None: unchanged
    user_endpoint: Endpoint | None = plain(default=None)  # None: unchanged, or there is none
    client_tags: Array[KeyValue] | None = plain(default=None)  # for placing standby tasks; None: unchanged
    task_offsets: Array[TaskOffset] | None = plain(default=None)  # how far tasks have restored; None: unchanged
    task_end_offsets: Array[TaskOffset] | None = plain(default=None)  # how far they have to; None: unchanged
    shutdown_application: Bool = plain(default=False)  # all members of the group shall end


class Topology(Struct):
    """What an application reads, keeps and writes, as far as the coordinator has to know."""

    epoch: Int32
    subtopologies: Array[Subtopology]


class Subtopology(Struct):
    """A part of a topology that is connected in itself; each of its tasks is run as a whole by one thread."""

    subtopology_id: String
    source_topics: Array[String]  # the user's own topics that it reads
    source_topic_regex: Array[String]  # in RE2 syntax
    state_changelog_topics: Array[TopicInfo]
    repartition_sink_topics: Array[String]  # repartition topics that it writes
    repartition_source_topics: Array[TopicInfo]  # repartition topics that it reads
    copartition_groups: Array[CopartitionGroup]


class TopicInfo(Struct):
    """An internal topic, as it is wanted."""

    name: String
    partitions: Int32  # 0: to be derived from other topics, as for every changelog topic
    replication_factor: Int16  # 0: the brokers' default
    topic_configs: Array[KeyValue]


class KeyValue(Struct):
    """A setting of a topic, or a tag of a client."""

    key: String
    value: String


class CopartitionGroup(Struct):
    """Topics that must have the same number of partitions; indexes into the arrays of their subtopology."""

    source_topics: Array[Int16]
    source_topic_regex: Array[Int16]
    repartition_source_topics: Array[Int16]


class TaskIds(Struct):
    """Tasks of one subtopology."""

    subtopology_id: String
    partitions: Array[Int32]


class Endpoint(Struct):
    """Where a process can be asked for its state (application.server, interactive queries)."""

    host: String
    port: UInt16


class TaskOffset(Struct):
    """How far a task's changelogs go, added up."""

    subtopology_id: String
    partition: Int32
    offset: Int64


class StreamsGroupHeartbeatResponse(Message, api=88, versions="0-1", flexible="0+"):
    """Tells a member its epoch, and which tasks it may have.

    Versions:
      0  introduced by KIP-1071, flexible from the start
      1  topology_description_required (KIP-1331), acceptable_recovery_lag; status 6 may appear
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    member_id: String = plain(default="")
    member_epoch: Int32 = plain(default=0)  # to send with the next heartbeat
    heartbeat_interval_ms: Int32 = plain(default=0)  # when to send it
    acceptable_recovery_lag_legacy: Int32 = until(0, default=0)  # of no use any more
    task_offset_interval_ms: Int32 = plain(default=0)  # how often to send task_offsets
    # offsets that a warm-up task may lack, and counts as caught up; -1: not told
    acceptable_recovery_lag: Int64 = since(1, default=-1, ignorable=True)
    status: Array[Status] | None = plain(default=[])  # None: unchanged
    # all tasks that the member may have now; None: unchanged
    active_tasks: Array[TaskIds] | None = plain(default=None)
    standby_tasks: Array[TaskIds] | None = plain(default=None)
    warmup_tasks: Array[TaskIds] | None = plain(default=None)
    topology_description_required: Bool = since(1, default=False)  # to send a StreamsGroupTopologyDescriptionUpdate
    endpoint_information_epoch: Int32 = plain(default=0)
    partitions_by_user_endpoint: Array[EndpointToPartitions] | None = plain(default=None)  # None: unchanged


class Status(Struct):
    """Something that the member, or who looks after it, should know of the group."""

    # 0 stale topology, 1 missing source topics, 2 incorrectly partitioned topics, 3 missing internal topics,
    # 4 shutdown of the application, 5 the assignment is delayed, 6 missing client tags
    status_code: Int8
    status_detail: String


class EndpointToPartitions(Struct):
    """What the state at one endpoint is made of."""

    user_endpoint: Endpoint
    active_partitions: Array[TopicPartition]
    standby_partitions: Array[TopicPartition]


class TopicPartition(Struct):
    """Partitions of one topic, by name."""

    topic: String
    partitions: Array[Int32]


class StreamsGroupDescribeRequest(Message, api=89, versions="0-1", flexible="0+"):
    """Asks for the state, topology and members of Streams groups.

    Versions:
      0  introduced by KIP-1071, flexible from the start
      1  include_topology_description (KIP-1331)
    """

    group_ids: Array[String]
    include_authorized_operations: Bool
    include_topology_description: Bool = since(1, default=False)


class StreamsGroupDescribeResponse(Message, api=89, versions="0-1", flexible="0+"):
    """The state, topology and members of each group.

    Versions:
      0  introduced by KIP-1071, flexible from the start
      1  topology_description and its status (KIP-1331), assignor_name (KIP-1357)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    groups: Array[DescribedGroup]


class DescribedGroup(Struct):
    """A group."""

    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    group_id: String
    group_state: String = plain(default="")  # Empty, NotReady, Assigning, Reconciling, Stable, Dead; empty on error
    group_epoch: Int32 = plain(default=0)  # moves with members, topology and topics
    assignment_epoch: Int32 = plain(default=0)  # the group epoch that the target assignment was computed for
    topology: DescribedTopology | None = plain(default=None)  # None: there is none yet
    members: Array[DescribedMember] = plain(default=[])
    # bit n: the client may do the ACL operation with code n; -2**31: not asked for
    authorized_operations: Int32 = plain(default=-(2**31))
    topology_description: TopologyDescription | None = since(1, default=None)
    # 0 not asked for, 1 there is none, 2 it could not be had, 3 it is there
    topology_description_status: Int8 = since(1, default=0)
    assignor_name: String | None = since(1, default=None, ignorable=True)


class DescribedTopology(Struct):
    """A topology, with the partitions that internal topics have if it is ready."""

    epoch: Int32
    subtopologies: Array[DescribedSubtopology] | None = plain(default=None)  # None: not known


class DescribedSubtopology(Struct):
    """A subtopology; see Subtopology."""

    subtopology_id: String
    source_topics: Array[String]
    repartition_sink_topics: Array[String]
    state_changelog_topics: Array[TopicInfo]
    repartition_source_topics: Array[TopicInfo]


class DescribedMember(Struct):
    """A member of a group; see StreamsGroupHeartbeatRequest."""

    member_id: String
    member_epoch: Int32
    instance_id: String | None = plain(default=None)
    rack_id: String | None = plain(default=None)
    client_id: String
    client_host: String  # "/" and its address
    topology_epoch: Int32
    process_id: String
    user_endpoint: Endpoint | None = plain(default=None)
    client_tags: Array[KeyValue]
    task_offsets: Array[TaskOffset]
    task_end_offsets: Array[TaskOffset]
    assignment: DescribedTasks  # what it has now
    target_assignment: DescribedTasks  # what it will have when it has caught up
    is_classic: Bool = plain(default=False)  # whether it speaks the classic protocol


class DescribedTasks(Struct):
    """Tasks by role."""

    active_tasks: Array[TaskIds]
    standby_tasks: Array[TaskIds]
    warmup_tasks: Array[TaskIds]


class TopologyDescription(Struct):
    """A topology as `Topology.describe()` of the client knows it, with its processors."""

    subtopologies: Array[TopologyDescriptionSubtopology]
    global_stores: Array[TopologyDescriptionGlobalStore]


class TopologyDescriptionSubtopology(Struct):
    """The nodes of a subtopology."""

    subtopology_id: String
    nodes: Array[TopologyDescriptionNode]


class TopologyDescriptionNode(Struct):
    """A source, a processor or a sink."""

    name: String
    node_type: Int8  # 1 source, 2 processor, 3 sink
    source_topics: Array[String]  # of a source; empty where a pattern decides
    sink_topic: String | None = plain(default=None)  # of a sink; None where each record decides
    stores: Array[String]  # of a processor
    successors: Array[String]  # names of the nodes that come next


class TopologyDescriptionGlobalStore(Struct):
    """A store that every process fills with all of a topic."""

    source: TopologyDescriptionNode
    processor: TopologyDescriptionNode


class StreamsGroupTopologyDescriptionUpdateRequest(Message, api=93, versions="0", flexible="0+"):
    """Tells the broker's plugin what a topology consists of, if it was asked for.

    Versions:
      0  introduced by KIP-1331, flexible from the start
    """

    group_id: String
    member_id: String
    topology_epoch: Int32
    topology_description: TopologyDescription


class StreamsGroupTopologyDescriptionUpdateResponse(Message, api=93, versions="0", flexible="0+"):
    """Whether the plugin has kept it.

    Versions:
      0  introduced by KIP-1331, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
