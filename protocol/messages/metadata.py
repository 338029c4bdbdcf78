"""Metadata (key 3), DescribeCluster (60), DescribeTopicPartitions (75): who is in the cluster and who leads what.

Any broker answers all three. Metadata is a client's first question after ApiVersions, and its question again
whenever a leader has moved: brokers with their addresses, topics with their partitions, leaders and replicas.
DescribeCluster is the admin client's view of the cluster without topics. DescribeTopicPartitions lists topics
page by page, in the order of their names, and adds the replicas that a metadata quorum tracks as eligible
leaders.

Addresses are those of the listener that the question came in by. A set of authorized operations is a bit field:
bit n says that the client may do the ACL operation with code n; -2**31 says that the client did not ask (KIP-430).
"""

from __future__ import annotations

from protocol.message import ZERO_UUID, Array, Bool, Int8, Int16, Int32, Message, String, Struct, Uuid, plain, since


class MetadataRequest(Message, api=3, versions="0-13", flexible="9+"):
    """Asks for the brokers, and for some topics, all topics or none.

    Versions:
      0   an empty list asks for all topics
      1   None asks for all, an empty list for none (KIP-4)
      2   the response gains the cluster id (KIP-78)
      3   and the throttle time (KIP-124)
      4   allow_auto_topic_creation; before, asking may always create
      5   the response gains offline replicas (KIP-112)
      6   as 5, throttled after the response instead of before (KIP-219)
      7   the response gains leader epochs (KIP-320)
      8   authorized operations (KIP-430)
      9   flexible (KIP-482)
      10  topic_id and nullable names, but no broker looked at the ids yet (KIP-516)
      11  include_cluster_authorized_operations moves to DescribeCluster (KIP-700)
      12  topics may be asked for by id (KIP-516)
      13  the response can tell the client to start over from its bootstrap servers (KIP-1102)
    """

    topics: Array[MetadataRequestTopic] | None = plain(nullable="1+")  # None: all; in version 0 an empty list means all
    allow_auto_topic_creation: Bool = since(4, default=True)  # the broker must agree too: auto.create.topics.enable
    include_cluster_authorized_operations: Bool = since(8, default=False, until=10)
    include_topic_authorized_operations: Bool = since(8, default=False)


class MetadataRequestTopic(Struct):
    """A topic, by name or by id."""

    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)  # zero: see name
    name: String | None = plain(nullable="10+")  # None: see topic_id, from version 12 on


class MetadataResponse(Message, api=3, versions="0-13", flexible="9+"):
    """The brokers that live, and what is known of each topic asked for.

    Versions:
      0   brokers, topics, partitions
      1   rack, controller_id, is_internal (KIP-4, KIP-36)
      2   cluster_id (KIP-78)
      3   throttle_time_ms (KIP-124)
      4   as 3
      5   offline_replicas (KIP-112)
      6   as 5, throttled after the response (KIP-219)
      7   leader_epoch (KIP-320)
      8   authorized operations of cluster and topics (KIP-430)
      9   flexible (KIP-482)
      10  topic_id (KIP-516)
      11  cluster_authorized_operations moves to DescribeCluster (KIP-700)
      12  a topic asked for by an unknown id has no name (KIP-516)
      13  error_code, for REBOOTSTRAP_REQUIRED (KIP-1102)
    """

    # how long the quota makes the client wait; 0: within it
    throttle_time_ms: Int32 = since(3, default=0, ignorable=True)
    brokers: Array[MetadataResponseBroker]  # the live ones that have the listener asked on
    cluster_id: String | None = since(2, default=None, ignorable=True)  # None: the broker does not know it
    controller_id: Int32 = since(1, default=-1, ignorable=True)  # -1: no controller now
    topics: Array[MetadataResponseTopic]
    cluster_authorized_operations: Int32 = since(8, default=-(2**31), until=10)  # bit field; -2**31: not asked for
    error_code: Int16 = since(13, default=0, ignorable=True)


class MetadataResponseBroker(Struct):
    """A broker, and where it listens."""

    node_id: Int32
    host: String
    port: Int32
    rack: String | None = since(1, default=None, ignorable=True)  # None: the broker has no rack


class MetadataResponseTopic(Struct):
    """A topic: its partitions, or why it has none to show."""

    error_code: Int16
    name: String | None = plain(nullable="12+")  # None: asked for by an id that no topic has
    # zero: asked for by a name that no topic has, or a topic from before ids
    topic_id: Uuid = since(10, default=ZERO_UUID, ignorable=True)
    # kept by the brokers for themselves, like __consumer_offsets
    is_internal: Bool = since(1, default=False, ignorable=True)
    partitions: Array[MetadataResponsePartition]
    topic_authorized_operations: Int32 = since(8, default=-(2**31))  # bit field; -2**31: not asked for


class MetadataResponsePartition(Struct):
    """A partition: its leader and its replicas."""

    error_code: Int16  # LEADER_NOT_AVAILABLE, LISTENER_NOT_FOUND; REPLICA_NOT_AVAILABLE in version 0
    partition_index: Int32
    leader_id: Int32  # -1: no leader
    leader_epoch: Int32 = since(7, default=-1, ignorable=True)  # -1 unknown
    replica_nodes: Array[Int32]  # node ids, the preferred leader first
    isr_nodes: Array[Int32]  # node ids in sync with the leader
    # node ids whose broker or log directory is gone
    offline_replicas: Array[Int32] = since(5, default=[], ignorable=True)


class DescribeClusterRequest(Message, api=60, versions="0-2", flexible="0+"):
    """Asks for the brokers, or for the controllers, of the cluster.

    Versions:
      0  introduced by KIP-700, flexible from the start
      1  endpoint_type (KIP-919)
      2  include_fenced_brokers (KIP-1073)
    """

    include_cluster_authorized_operations: Bool
    endpoint_type: Int8 = since(1, default=1)  # 1 brokers, 2 controllers; a broker knows 1 only
    # registered with the metadata quorum, but not allowed to serve
    include_fenced_brokers: Bool = since(2, default=False)


class DescribeClusterResponse(Message, api=60, versions="0-2", flexible="0+"):
    """The nodes of the cluster and its id.

    Versions:
      0  introduced by KIP-700, flexible from the start
      1  endpoint_type; MISMATCHED_ENDPOINT_TYPE and UNSUPPORTED_ENDPOINT_TYPE may appear (KIP-919)
      2  is_fenced (KIP-1073)
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    endpoint_type: Int8 = since(1, default=1)  # what was described: 1 brokers, 2 controllers
    cluster_id: String
    # -1 none; a broker of a cluster with a metadata quorum names any live broker
    controller_id: Int32 = plain(default=-1)
    brokers: Array[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = plain(default=-(2**31))  # bit field; -2**31: not asked for


class DescribeClusterBroker(Struct):
    """A node, and where it listens."""

    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = plain(default=None)  # None: the broker has no rack
    is_fenced: Bool = since(2, default=False)


class DescribeTopicPartitionsRequest(Message, api=75, versions="0", flexible="0+"):
    """Asks for a page of partitions of some topics, or of all.

    Versions:
      0  introduced by KIP-966, flexible from the start
    """

    topics: Array[TopicRequest]  # empty: all
    # partitions a page; the broker has a limit of its own as well
    response_partition_limit: Int32 = plain(default=2000)
    cursor: Cursor | None = plain(default=None)  # where the page starts; None: at the first topic


class TopicRequest(Struct):
    """A topic, by name."""

    name: String


class Cursor(Struct):
    """A partition to go on from."""

    topic_name: String
    partition_index: Int32


class DescribeTopicPartitionsResponse(Message, api=75, versions="0", flexible="0+"):
    """A page of partitions, grouped by topic, and where the next one starts.

    Versions:
      0  introduced by KIP-966, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    topics: Array[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = plain(default=None)  # None: this was the last page


class DescribeTopicPartitionsResponseTopic(Struct):
    """A topic: its partitions on this page, or why it has none to show."""

    error_code: Int16
    name: String | None  # None: unknown
    topic_id: Uuid
    is_internal: Bool = plain(default=False)  # kept by the brokers for themselves, like __consumer_offsets
    partitions: Array[DescribeTopicPartitionsResponsePartition]
    topic_authorized_operations: Int32 = plain(default=-(2**31))  # bit field; -2**31: not asked for


class DescribeTopicPartitionsResponsePartition(Struct):
    """A partition: its leader, its replicas, and who may lead after them."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32  # -1: no leader
    leader_epoch: Int32 = plain(default=-1)  # -1 unknown
    replica_nodes: Array[Int32]  # node ids, the preferred leader first
    isr_nodes: Array[Int32]  # node ids in sync with the leader
    # out of sync, but have all committed records; None: not tracked
    eligible_leader_replicas: Array[Int32] | None = plain(default=None)
    # members of the above that crashed since; None: not tracked
    last_known_elr: Array[Int32] | None = plain(default=None)
    offline_replicas: Array[Int32]  # node ids whose broker or log directory is gone
