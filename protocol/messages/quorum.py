"""A member of a quorum's cluster: what brokers ask the controllers of a metadata quorum, and the quorum's own records.

In a KRaft cluster (KIP-500) the controllers keep all metadata in one log, `__cluster_metadata-0`. A broker is an
observer of that log: it reads it by Fetch from the quorum's leader, and where the log no longer goes back far enough it
fetches a snapshot in pieces (FetchSnapshot, key 59). It registers once for each of its lives (BrokerRegistration, 62),
says that it lives and how far it has read (BrokerHeartbeat, 63), and which log directory holds each replica
(AssignReplicasToDirs, 73). These are served on the controllers' listeners. DescribeQuorum (55) and UnregisterBroker
(64) come from admin clients; a broker passes them on.

The records at the end are values of control records that a quorum writes into its log and its snapshots
(`records/control_records.py` has the keys). Like LeaderChangeMessage in stored.py they have no version in front: their
first field is it.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Struct,
    UInt16,
    Uuid,
    plain,
    since,
    tagged,
)


class DescribeQuorumRequest(Message, api=55, versions="0-2", flexible="0+"):
    """Asks who leads the metadata quorum and how far its voters and observers are.

    Versions:
      0  introduced by KIP-595, flexible from the start
      1  as 0 (KIP-836)
      2  as 0 (KIP-853)
    """

    topics: Array[DescribeQuorumTopic]  # __cluster_metadata with its partition 0; all else is refused


class DescribeQuorumTopic(Struct):
    """The partitions to describe of one topic."""

    topic_name: String
    partitions: Array[DescribeQuorumPartition]


class DescribeQuorumPartition(Struct):
    """A partition, by its index."""

    partition_index: Int32


class DescribeQuorumResponse(Message, api=55, versions="0-2", flexible="0+"):
    """The leader of the quorum, and the replicas of its log.

    Versions:
      0  introduced by KIP-595, flexible from the start
      1  when each replica last fetched, and when it last had all (KIP-836)
      2  error messages, directory ids of replicas, the nodes' addresses (KIP-853)
    """

    error_code: Int16  # of the whole request
    error_message: String | None = since(2, default="", ignorable=True)  # None: no error
    topics: Array[DescribeQuorumTopicResult]
    nodes: Array[QuorumNode] = since(2, default=[])  # where the voters are reached


class DescribeQuorumTopicResult(Struct):
    """What is known of one topic."""

    topic_name: String
    partitions: Array[DescribeQuorumPartitionResult]


class DescribeQuorumPartitionResult(Struct):
    """The state of one partition's quorum."""

    partition_index: Int32
    error_code: Int16
    error_message: String | None = since(2, default="", ignorable=True)  # None: no error
    leader_id: Int32  # node id; -1 unknown
    leader_epoch: Int32
    high_watermark: Int64  # -1 unknown
    current_voters: Array[QuorumReplicaState]
    observers: Array[QuorumReplicaState]  # brokers, and controllers that have no vote


class QuorumReplicaState(Struct):
    """How far one replica of the log is."""

    replica_id: Int32  # node id
    replica_directory_id: Uuid = since(2, default=ZERO_UUID)  # zero: unknown
    log_end_offset: Int64  # -1 unknown
    # ms since 1970 by the leader's clock; -1 unknown, and for the leader itself
    last_fetch_timestamp: Int64 = since(1, default=-1, ignorable=True)
    # ms since 1970 when its fetch last reached the leader's log end; of the leader now; -1 unknown
    last_caught_up_timestamp: Int64 = since(1, default=-1, ignorable=True)


class QuorumNode(Struct):
    """A node of the quorum."""

    node_id: Int32
    listeners: Array[QuorumListener]


class QuorumListener(Struct):
    """An address of a node of the quorum."""

    name: String  # of the listener
    host: String
    port: UInt16


class FetchSnapshotRequest(Message, api=59, versions="0-1", flexible="0+"):
    """Asks for a piece of a snapshot of the metadata log, from a byte position on.

    A Fetch answered with a snapshot_id sends the reader here. The snapshot's bytes are record batches; a piece ends
    wherever max_bytes ends it.

    Versions:
      0  introduced by KIP-630, flexible from the start
      1  replica_directory_id (KIP-853)
    """

    cluster_id: String | None = tagged(0, since=0, default=None)  # None: not checked, else INCONSISTENT_CLUSTER_ID
    replica_id: Int32 = plain(default=-1)  # node id of the sender
    max_bytes: Int32 = plain(default=2**31 - 1)  # of all pieces together
    topics: Array[SnapshotTopic]


class SnapshotTopic(Struct):
    """The snapshots to read of one topic."""

    name: String
    partitions: Array[SnapshotPartition]


class SnapshotPartition(Struct):
    """Which snapshot, and from where on."""

    partition: Int32
    current_leader_epoch: Int32  # that the sender believes in; -1 unknown, and not checked
    snapshot_id: QuorumSnapshotId
    position: Int64  # byte in the snapshot's file
    replica_directory_id: Uuid = tagged(0, since=1, default=ZERO_UUID, ignorable=True)  # of the sender's metadata log


class QuorumSnapshotId(Struct):
    """The name of a snapshot."""

    end_offset: Int64  # the first offset not in it
    epoch: Int32  # leader epoch of the last record in it


class FetchSnapshotResponse(Message, api=59, versions="0-1", flexible="0+"):
    """Pieces of snapshots.

    Versions:
      0  introduced by KIP-630, flexible from the start
      1  node_endpoints (KIP-853)
    """

    throttle_time_ms: Int32 = plain(default=0, ignorable=True)
    error_code: Int16  # of the whole request
    topics: Array[SnapshotTopicResult]
    # addresses of the leaders named in current_leader
    node_endpoints: Array[SnapshotNodeEndpoint] = tagged(0, since=1, default=[])


class SnapshotTopicResult(Struct):
    """The pieces of one topic."""

    name: String
    partitions: Array[SnapshotPartitionResult]


class SnapshotPartitionResult(Struct):
    """A piece of one partition's snapshot."""

    index: Int32
    error_code: Int16  # SNAPSHOT_NOT_FOUND: it has been deleted; POSITION_OUT_OF_RANGE; the codes of a Fetch
    snapshot_id: QuorumSnapshotId
    current_leader: QuorumLeader = tagged(0, since=0, default={})  # filled where the request went to another node
    size: Int64  # bytes of the whole snapshot
    position: Int64  # byte in the snapshot where the piece begins
    unaligned_records: Records  # may begin and end in the middle of a batch


class QuorumLeader(Struct):
    """Who leads the quorum, as far as the answering node knows."""

    leader_id: Int32 = plain(default=0)  # node id; -1 unknown
    leader_epoch: Int32 = plain(default=0)


class SnapshotNodeEndpoint(Struct):
    """The address of a controller."""

    node_id: Int32
    host: String
    port: UInt16


class BrokerRegistrationRequest(Message, api=62, versions="0-4", flexible="0+"):
    """A broker begins a life: it tells the controller who it is, where it listens and what it understands.

    Repeated until it is answered. The controller writes a RegisterBrokerRecord, whose offset is the broker's epoch. A
    node id whose last incarnation still sends heartbeats is DUPLICATE_BROKER_REGISTRATION.

    Versions:
      0  introduced by KIP-631, flexible from the start
      1  is_migrating_zk_broker (KIP-866)
      2  log_dirs (KIP-858)
      3  previous_broker_epoch (KIP-966)
      4  as 3; features whose lowest level is 0 may be listed, which 0 to 3 leave out
    """

    broker_id: Int32  # node id of the sender
    cluster_id: String  # checked: INCONSISTENT_CLUSTER_ID
    incarnation_id: Uuid  # made at random when the process starts
    listeners: Array[RegistrationListener]
    features: Array[RegistrationFeature]  # metadata.version among them; UNSUPPORTED_VERSION if one in force is outside
    rack: String | None  # None: the broker has none
    is_migrating_zk_broker: Bool = since(1, default=False)  # of a cluster on its way from ZooKeeper
    log_dirs: Array[Uuid] = since(2, default=[], ignorable=True)  # directory ids of those that work
    # kept through an orderly stop: with it the controller knows that no acknowledged record is lost; -1 none
    previous_broker_epoch: Int64 = since(3, default=-1, ignorable=True)


class RegistrationListener(Struct):
    """An address of the broker."""

    name: String  # of the listener
    host: String
    port: UInt16
    security_protocol: Int16  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class RegistrationFeature(Struct):
    """A feature and the levels of it that the broker understands."""

    name: String
    min_supported_version: Int16
    max_supported_version: Int16


class BrokerRegistrationResponse(Message, api=62, versions="0-4", flexible="0+"):
    """The broker's epoch in this life, or why it may not begin.

    Versions:
      0    introduced by KIP-631, flexible from the start
      1-4  as 0
    """

    throttle_time_ms: Int32 = plain(default=0)
    error_code: Int16
    broker_epoch: Int64 = plain(default=-1)  # rises with every life; -1: none was given


class BrokerHeartbeatRequest(Message, api=63, versions="0-2", flexible="0+"):
    """A broker says that it lives, how far it has read the metadata log, and what it would like to be.

    Versions:
      0  introduced by KIP-631, flexible from the start
      1  offline_log_dirs (KIP-858)
      2  cordoned_log_dirs (KIP-1066)
    """

    broker_id: Int32  # node id of the sender
    broker_epoch: Int64 = plain(default=-1)  # of its registration; answered with STALE_BROKER_EPOCH if it is not that
    current_metadata_offset: Int64  # of the last record that it has applied
    want_fence: Bool  # True: do not let it serve yet
    want_shut_down: Bool  # True: move its leaderships away, it wants to stop
    offline_log_dirs: Array[Uuid] = tagged(0, since=1, default=[])  # directory ids of those that have failed
    # directory ids of those that take no new replicas; None: not known yet, the broker still recovers its logs
    cordoned_log_dirs: Array[Uuid] | None = tagged(1, since=2, default=None)


class BrokerHeartbeatResponse(Message, api=63, versions="0-2", flexible="0+"):
    """What the broker is now.

    Versions:
      0  introduced by KIP-631, flexible from the start
      1  as 0
      2  as 0
    """

    throttle_time_ms: Int32 = plain(default=0)
    error_code: Int16
    is_caught_up: Bool = plain(default=False)  # its metadata is nearly the newest
    is_fenced: Bool = plain(default=True)  # it may not lead, nor be told to clients
    should_shut_down: Bool  # it leads nothing any more: it may stop


class UnregisterBrokerRequest(Message, api=64, versions="0", flexible="0+"):
    """Forget a broker that will not come back.

    Versions:
      0  introduced by KIP-631, flexible from the start
    """

    broker_id: Int32  # node id


class UnregisterBrokerResponse(Message, api=64, versions="0", flexible="0+"):
    """Whether the broker is forgotten.

    Versions:
      0  introduced by KIP-631, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # how long the quota makes the client wait; 0: within it
    error_code: Int16  # BROKER_ID_NOT_REGISTERED, for instance
    error_message: String | None  # None: no error


class AssignReplicasToDirsRequest(Message, api=73, versions="0", flexible="0+"):
    """A broker tells which of its log directories holds which replica.

    Sent for new replicas, for those that have moved, and for all of a directory that has failed; only by a broker with
    more than one directory (KIP-858).

    Versions:
      0  introduced by KIP-858, flexible from the start
    """

    broker_id: Int32  # node id of the sender
    broker_epoch: Int64 = plain(default=-1)  # of its registration
    directories: Array[AssignedDirectory]


class AssignedDirectory(Struct):
    """A log directory and the replicas in it."""

    id: Uuid  # directory id; all below 100 are reserved: 0 migrating, 1 unassigned, 2 lost
    topics: Array[AssignedTopic]


class AssignedTopic(Struct):
    """Replicas of one topic."""

    topic_id: Uuid
    partitions: Array[AssignedPartition]


class AssignedPartition(Struct):
    """A replica, by the index of its partition."""

    partition_index: Int32


class AssignReplicasToDirsResponse(Message, api=73, versions="0", flexible="0+"):
    """Which assignments the controller took in.

    Versions:
      0  introduced by KIP-858, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)
    error_code: Int16  # of the whole request
    directories: Array[AssignedDirectoryResult]


class AssignedDirectoryResult(Struct):
    """The outcomes for one log directory."""

    id: Uuid
    topics: Array[AssignedTopicResult]


class AssignedTopicResult(Struct):
    """The outcomes for one topic."""

    topic_id: Uuid
    partitions: Array[AssignedPartitionResult]


class AssignedPartitionResult(Struct):
    """The outcome for one replica."""

    partition_index: Int32
    error_code: Int16


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    """The first record of a snapshot.

    Versions:
      0  introduced by KIP-630, flexible from the start
    """

    version: Int16  # of this very message
    last_contained_log_timestamp: Int64  # ms since 1970, append time of the last record that the snapshot stands for


class SnapshotFooterRecord(Message, versions="0", flexible="0+"):
    """The last record of a snapshot: without it the file is not whole.

    Versions:
      0  introduced by KIP-630, flexible from the start
    """

    version: Int16  # of this very message


class KRaftVersionRecord(Message, versions="0", flexible="0+"):
    """Which rules the quorum follows from here on.

    Versions:
      0  introduced by KIP-853, flexible from the start
    """

    version: Int16  # of this very message
    k_raft_version: Int16  # 0: voters are a setting; 1: voters are records of the log


class VotersRecord(Message, versions="0", flexible="0+"):
    """Who has a vote from here on.

    Versions:
      0  introduced by KIP-853, flexible from the start
    """

    version: Int16  # of this very message
    voters: Array[QuorumVoter]


class QuorumVoter(Struct):
    """A voter and where it is reached."""

    voter_id: Int32  # node id
    voter_directory_id: Uuid  # of its metadata log
    endpoints: Array[QuorumListener]
    k_raft_version_feature: KRaftVersionFeature


class KRaftVersionFeature(Struct):
    """The rules that a voter understands."""

    min_supported_version: Int16
    max_supported_version: Int16
