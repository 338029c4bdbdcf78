"""Classic groups, whose members agree among themselves who reads what; and how to find a coordinator.

FindCoordinator (key 10), JoinGroup (11), SyncGroup (14), Heartbeat (12), LeaveGroup (13), DescribeGroups (15),
ListGroups (16), DeleteGroups (42).

Any broker answers FindCoordinator and, for itself, ListGroups; the rest go to the coordinator of the group: the
leader of the partition of __consumer_offsets that the group id hashes to. A classic group agrees in rounds,
counted by generation_id. All members join with what they support; the coordinator picks a protocol that all
support and hands one member, the leader, all members' metadata; the leader computes an assignment and syncs it;
the others sync to be given theirs. From then on each member sends heartbeats, until REBALANCE_IN_PROGRESS tells
it to join again. Metadata and assignment are bytes that only members understand (`protocol_type` says in which
tongue; that of consumers is "consumer").

A member with a group_instance_id is static (KIP-345): it may come back under it within its session timeout
without a new round. FENCED_INSTANCE_ID tells the older of two claimants to stop.
"""

from __future__ import annotations

from protocol.message import Array, Bool, Bytes, Int8, Int16, Int32, Message, String, Struct, plain, since, until


class FindCoordinatorRequest(Message, api=10, versions="0-6", flexible="3+"):
    """Asks which broker coordinates some groups, transactional ids or share-group partitions.

    Versions:
      0  one group
      1  key_type: a transactional id as well (KIP-98)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  flexible (KIP-482)
      4  several keys at once (KIP-699)
      5  the client knows TRANSACTION_ABORTABLE (KIP-890)
      6  key type 2 (KIP-932)
    """

    key: String = until(3, default="")
    # 0 group id, 1 transactional id, 2 share group: keys are "group:topic id:partition"
    key_type: Int8 = since(1, default=0)
    coordinator_keys: Array[String] = since(4, default=[])


class FindCoordinatorResponse(Message, api=10, versions="0-6", flexible="3+"):
    """The broker that coordinates each key.

    Versions:
      0  one coordinator
      1  throttle_time_ms (KIP-124) and error_message
      2  as 1, throttled after the response (KIP-219)
      3  flexible (KIP-482)
      4  several coordinators (KIP-699)
      5  TRANSACTION_ABORTABLE may appear (KIP-890)
      6  as 5
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16 = until(3, default=0)
    error_message: String | None = since(1, default="", until=3, ignorable=True)  # None: no error
    node_id: Int32 = until(3, default=0)  # -1 on error
    host: String = until(3, default="")  # empty on error
    port: Int32 = until(3, default=0)  # -1 on error
    coordinators: Array[Coordinator] = since(4, default=[])


class Coordinator(Struct):
    """The broker that coordinates one key."""

    key: String
    node_id: Int32  # -1 on error
    host: String  # empty on error
    port: Int32  # -1 on error
    error_code: Int16
    error_message: String | None  # None: no error


class JoinGroupRequest(Message, api=11, versions="0-9", flexible="6+"):
    """Asks to be a member of the next generation.

    Versions:
      0  the group protocol of Kafka 0.9
      1  rebalance_timeout_ms (KIP-62)
      2  the response gains the throttle time (KIP-124)
      3  as 2, throttled after the response instead of before (KIP-219)
      4  a newcomer is sent away with MEMBER_ID_REQUIRED and an id to join with (KIP-394)
      5  group_instance_id (KIP-345)
      6  flexible (KIP-482)
      7  the response gains the protocol type (KIP-559)
      8  reason (KIP-800)
      9  the response can tell the leader not to assign (KIP-814)
    """

    group_id: String
    session_timeout_ms: Int32  # silence after which the member is out
    # how long the round waits for this member to join; -1: as long as its session
    rebalance_timeout_ms: Int32 = since(1, default=-1, ignorable=True)
    member_id: String  # empty: a newcomer
    group_instance_id: String | None = since(5, default=None)  # None: a dynamic member
    protocol_type: String  # "consumer", "connect", ...: one per group
    protocols: Array[JoinGroupRequestProtocol]  # in order of preference
    reason: String | None = since(8, default=None, ignorable=True)  # for the coordinator's log


class JoinGroupRequestProtocol(Struct):
    """A way of assigning that the member supports."""

    name: String  # of the assignor: "range", "cooperative-sticky", ...
    metadata: Bytes  # what the assignor needs to know: the subscription


class JoinGroupResponse(Message, api=11, versions="0-9", flexible="6+"):
    """The generation that the member is part of now.

    Versions:
      0  the group protocol of Kafka 0.9
      1  as 0
      2  throttle_time_ms (KIP-124)
      3  as 2, throttled after the response (KIP-219)
      4  MEMBER_ID_REQUIRED may appear (KIP-394)
      5  group_instance_id; FENCED_INSTANCE_ID may appear (KIP-345)
      6  flexible (KIP-482)
      7  protocol_type, protocol_name may be None (KIP-559)
      8  as 7
      9  skip_assignment (KIP-814)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(2, default=0, ignorable=True)
    error_code: Int16
    generation_id: Int32 = plain(default=-1)  # -1 on error
    protocol_type: String | None = since(7, default=None, ignorable=True)  # None on error
    protocol_name: String | None = plain(nullable="7+")  # the one picked; empty or None on error
    leader: String  # id of the member that computes the assignment
    skip_assignment: Bool = since(9, default=False)  # a static leader has come back: the old assignment holds
    member_id: String  # of the receiver; with MEMBER_ID_REQUIRED the id to join with
    members: Array[JoinGroupResponseMember]  # all members, told to the leader; empty for the others


class JoinGroupResponseMember(Struct):
    """A member, as its leader needs to know it."""

    member_id: String
    group_instance_id: String | None = since(5, default=None, ignorable=True)  # None: a dynamic member
    metadata: Bytes  # under the protocol picked


class SyncGroupRequest(Message, api=14, versions="0-5", flexible="4+"):
    """Brings the leader's assignment, and asks for the sender's part of it.

    Versions:
      0  the group protocol of Kafka 0.9
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  group_instance_id (KIP-345)
      4  flexible (KIP-482)
      5  protocol_type and protocol_name, INCONSISTENT_GROUP_PROTOCOL if they are not the group's (KIP-559)
    """

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = since(3, default=None)  # None: a dynamic member
    # the group's; from version 5 on None is refused
    protocol_type: String | None = since(5, default=None, ignorable=True)
    # the one picked; from version 5 on None is refused
    protocol_name: String | None = since(5, default=None, ignorable=True)
    assignments: Array[SyncGroupRequestAssignment]  # from the leader; empty from the others


class SyncGroupRequestAssignment(Struct):
    """What one member shall work on."""

    member_id: String
    assignment: Bytes


class SyncGroupResponse(Message, api=14, versions="0-5", flexible="4+"):
    """What the sender shall work on.

    Versions:
      0  the group protocol of Kafka 0.9
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  FENCED_INSTANCE_ID may appear (KIP-345)
      4  flexible (KIP-482)
      5  protocol_type and protocol_name (KIP-559)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16
    protocol_type: String | None = since(5, default=None, ignorable=True)  # None on error
    protocol_name: String | None = since(5, default=None, ignorable=True)  # None on error
    assignment: Bytes  # empty on error, and if the leader gave this member nothing


class HeartbeatRequest(Message, api=12, versions="0-4", flexible="4+"):
    """Says that a member is alive.

    Versions:
      0  the group protocol of Kafka 0.9
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  group_instance_id (KIP-345)
      4  flexible (KIP-482)
    """

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = since(3, default=None)  # None: a dynamic member


class HeartbeatResponse(Message, api=12, versions="0-4", flexible="4+"):
    """Says whether the member may go on.

    Versions:
      0  the group protocol of Kafka 0.9
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  FENCED_INSTANCE_ID may appear (KIP-345)
      4  flexible (KIP-482)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16  # REBALANCE_IN_PROGRESS: join again


class LeaveGroupRequest(Message, api=13, versions="0-5", flexible="4+"):
    """Takes members out of a group at once, without waiting for their sessions to end.

    Versions:
      0  the group protocol of Kafka 0.9
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  several members, static ones by their instance id: an admin client can do it (KIP-345)
      4  flexible (KIP-482)
      5  reason (KIP-800)
    """

    group_id: String
    member_id: String = until(2, default="")
    members: Array[MemberIdentity] = since(3, default=[])


class MemberIdentity(Struct):
    """A member to take out."""

    member_id: String  # empty when an admin client names a static member
    group_instance_id: String | None = plain(default=None)  # None: a dynamic member
    reason: String | None = since(5, default=None, ignorable=True)  # for the coordinator's log


class LeaveGroupResponse(Message, api=13, versions="0-5", flexible="4+"):
    """Who is out.

    Versions:
      0  the group protocol of Kafka 0.9
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  an outcome for each member (KIP-345)
      4  flexible (KIP-482)
      5  as 4
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16  # before version 3 the only member's
    members: Array[MemberResponse] = since(3, default=[])


class MemberResponse(Struct):
    """Whether one member is out."""

    member_id: String
    group_instance_id: String | None  # None: a dynamic member
    error_code: Int16


class DescribeGroupsRequest(Message, api=15, versions="0-6", flexible="5+"):
    """Asks for the state and members of classic groups.

    Versions:
      0  the group protocol of Kafka 0.9
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  include_authorized_operations (KIP-430)
      4  the response gains instance ids (KIP-345)
      5  flexible (KIP-482)
      6  an unknown group is an error, no longer a Dead group (KIP-1043)
    """

    groups: Array[String]  # group ids
    include_authorized_operations: Bool = since(3, default=False)


class DescribeGroupsResponse(Message, api=15, versions="0-6", flexible="5+"):
    """The state and members of each group.

    Versions:
      0  the group protocol of Kafka 0.9
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  authorized_operations (KIP-430)
      4  group_instance_id (KIP-345)
      5  flexible (KIP-482)
      6  error_message; GROUP_ID_NOT_FOUND may appear (KIP-1043)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    groups: Array[DescribedGroup]


class DescribedGroup(Struct):
    """A group."""

    error_code: Int16
    error_message: String | None = since(6, default=None)  # None: no error
    group_id: String
    group_state: String  # Empty, PreparingRebalance, CompletingRebalance, Stable, Dead; empty on error
    protocol_type: String
    protocol_data: String  # name of the protocol picked; empty unless Stable
    members: Array[DescribedGroupMember]
    # bit n: the client may do the ACL operation with code n; -2**31: not asked for
    authorized_operations: Int32 = since(3, default=-(2**31))


class DescribedGroupMember(Struct):
    """A member of a group."""

    member_id: String
    group_instance_id: String | None = since(4, default=None, ignorable=True)  # None: a dynamic member
    client_id: String  # from the header of its last join
    client_host: String  # "/" and its address
    member_metadata: Bytes  # under the protocol picked; empty unless Stable
    member_assignment: Bytes  # empty unless Stable


class ListGroupsRequest(Message, api=16, versions="0-5", flexible="3+"):
    """Asks a broker which groups it coordinates.

    Versions:
      0  the group protocol of Kafka 0.9
      1  the response gains the throttle time (KIP-124)
      2  as 1, throttled after the response instead of before (KIP-219)
      3  flexible (KIP-482)
      4  states_filter (KIP-518)
      5  types_filter (KIP-848)
    """

    states_filter: Array[String] = since(4, default=[])  # empty: any state
    types_filter: Array[String] = since(5, default=[])  # "classic", "consumer", ...; empty: any type


class ListGroupsResponse(Message, api=16, versions="0-5", flexible="3+"):
    """The groups that the broker coordinates.

    Versions:
      0  the group protocol of Kafka 0.9
      1  throttle_time_ms (KIP-124)
      2  as 1, throttled after the response (KIP-219)
      3  flexible (KIP-482)
      4  group_state (KIP-518)
      5  group_type (KIP-848)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(1, default=0, ignorable=True)
    error_code: Int16
    groups: Array[ListedGroup]


class ListedGroup(Struct):
    """A group, in short."""

    group_id: String
    protocol_type: String  # "consumer" for consumers; empty for a group that only keeps offsets
    group_state: String = since(4, default="", ignorable=True)
    group_type: String = since(5, default="", ignorable=True)


class DeleteGroupsRequest(Message, api=42, versions="0-3", flexible="2+"):
    """Asks to forget groups and their offsets.

    Versions:
      0  introduced by KIP-229
      1  as 0, throttled after the response instead of before (KIP-219)
      2  flexible (KIP-482)
      3  as 2
    """

    groups_names: Array[String]  # group ids


class DeleteGroupsResponse(Message, api=42, versions="0-3", flexible="2+"):
    """Which groups are gone.

    Versions:
      0  introduced by KIP-229
      1  as 0, throttled after the response (KIP-219)
      2  flexible (KIP-482)
      3  error_message; GROUP_DELETION_FAILED may appear
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    results: Array[DeletableGroupResult]


class DeletableGroupResult(Struct):
    """Whether one group is gone."""

    group_id: String
    error_code: Int16  # NON_EMPTY_GROUP: it has members
    error_message: String | None = since(3, default=None, ignorable=True)  # None: no more to say than the code does
