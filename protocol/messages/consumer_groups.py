"""ConsumerGroupHeartbeat (key 68), ConsumerGroupDescribe (69): groups whose coordinator assigns (KIP-848).

Heartbeats are all that members of such a group send, besides commits. The coordinator knows what each member
subscribes to, computes a target assignment and leads each member there step by step: a heartbeat says what the
member owns, the response what it may own now. What has not changed since the last heartbeat is left out, as None
or -1. Epochs count: the group's moves with subscriptions, the assignment's follows when the target is computed, a
member's follows when it has let go of what it must.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Int8, Int16, Int32, Message, String, Struct, Uuid, plain, since


class ConsumerGroupHeartbeatRequest(Message, api=68, versions="0-1", flexible="0+"):
    """Says that a member is alive, and what it owns and wants.

    Versions:
      0  introduced by KIP-848, flexible from the start
      1  subscribed_topic_regex; members make up their ids (KIP-1082)
    """

    group_id: String
    member_id: String  # kept as long as the process lives; in version 0 empty to be given one
    member_epoch: Int32  # 0 joins, -1 leaves, -2 leaves a static member's place to be taken again
    instance_id: String | None = plain(default=None)  # None: unchanged, or a dynamic member
    rack_id: String | None = plain(default=None)  # None: unchanged, or unknown
    # how long the member may take to let go of partitions; -1: unchanged
    rebalance_timeout_ms: Int32 = plain(default=-1)
    subscribed_topic_names: Array[String] | None = plain(default=None)  # None: unchanged
    subscribed_topic_regex: String | None = since(1, default=None)  # in RE2 syntax; None: unchanged
    server_assignor: String | None = plain(default=None)  # "uniform", "range"; None: unchanged, or the broker's choice
    topic_partitions: Array[TopicPartitions] | None = plain(default=None)  # what the member owns; None: unchanged


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: Array[Int32]


class ConsumerGroupHeartbeatResponse(Message, api=68, versions="0-1", flexible="0+"):
    """Tells a member its epoch, and what it may own.

    Versions:
      0  introduced by KIP-848, flexible from the start
      1  INVALID_REGULAR_EXPRESSION may appear
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    member_id: String | None = plain(default=None)
    member_epoch: Int32  # to send with the next heartbeat
    heartbeat_interval_ms: Int32  # when to send it
    assignment: Assignment | None = plain(default=None)  # None: unchanged


class Assignment(Struct):
    """All that a member may own now."""

    topic_partitions: Array[TopicPartitions]


class ConsumerGroupDescribeRequest(Message, api=69, versions="0-1", flexible="0+"):
    """Asks for the state and members of consumer groups.

    Versions:
      0  introduced by KIP-848, flexible from the start
      1  the response gains member types (KIP-1099)
    """

    group_ids: Array[String]
    include_authorized_operations: Bool


class ConsumerGroupDescribeResponse(Message, api=69, versions="0-1", flexible="0+"):
    """The state and members of each group.

    Versions:
      0  introduced by KIP-848, flexible from the start
      1  member_type (KIP-1099)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    groups: Array[DescribedGroup]


class DescribedGroup(Struct):
    """A group."""

    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    group_id: String
    group_state: String  # Empty, Assigning, Reconciling, Stable, Dead; empty on error
    group_epoch: Int32  # moves whenever members or their subscriptions do
    assignment_epoch: Int32  # the group epoch that the target assignment was computed for
    assignor_name: String
    members: Array[Member]
    # bit n: the client may do the ACL operation with code n; -2**31: not asked for
    authorized_operations: Int32 = plain(default=-(2**31))


class Member(Struct):
    """A member of a group."""

    member_id: String
    instance_id: String | None = plain(default=None)  # None: a dynamic member
    rack_id: String | None = plain(default=None)  # None: unknown
    member_epoch: Int32  # the group epoch that it has caught up with
    client_id: String
    client_host: String  # "/" and its address
    subscribed_topic_names: Array[String]
    subscribed_topic_regex: String | None = plain(default=None)  # None: none
    assignment: DescribedAssignment  # what it owns now
    target_assignment: DescribedAssignment  # what it will own when it has caught up
    # 0 speaks the classic protocol, 1 the consumer protocol; -1 unknown
    member_type: Int8 = since(1, default=-1, ignorable=True)


class DescribedAssignment(Struct):
    """The partitions a member owns, or shall own."""

    topic_partitions: Array[DescribedTopicPartitions]


class DescribedTopicPartitions(Struct):
    """Partitions of one topic, which is named as well."""

    topic_id: Uuid
    topic_name: String
    partitions: Array[Int32]
