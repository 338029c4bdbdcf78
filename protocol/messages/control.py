"""The control plane of a cluster in ZooKeeper mode: what the controller tells the brokers, and what they ask of it.

Downwards, from the controller to every broker: LeaderAndIsr (key 4) makes replicas leaders or followers, StopReplica
(5) takes them away, UpdateMetadata (6) says what Metadata requests are to be answered with. Each carries two fences:
the controller epoch, so that a deposed controller is refused with STALE_CONTROLLER_EPOCH, and the broker epoch, so that
a message meant for a broker's earlier life is refused with STALE_BROKER_EPOCH. Both only rise; the broker epoch is the
ZooKeeper transaction id under which the broker's registration was created.

Upwards, from a broker to the controller: ControlledShutdown (7) asks to be relieved of its partitions, AlterPartition
(56) reports a changed set of in-sync replicas, AllocateProducerIds (67) asks for producer ids to hand out, and Envelope
(58) passes on a client's request that only the controller can carry out.

Clients send none of these. Kafka 4 removed the first four together with ZooKeeper.
"""

from __future__ import annotations

from protocol.message import (
    ZERO_UUID,
    Array,
    Bool,
    Bytes,
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
    tagged,
    until,
)


class LeaderAndIsrRequest(Message, api=4, versions="0-7", flexible="4+"):
    """Who leads and who follows, for the partitions that the addressed broker holds a replica of.

    The broker compares each leader epoch with the one it has: a newer one is acted on, an older one is refused with
    STALE_CONTROLLER_EPOCH, and an equal one, too, unless it brings the topic id that was missing.

    Versions:
      0  partitions in one flat list
      1  is_new (KIP-112)
      2  broker_epoch; partitions grouped by topic (KIP-380)
      3  adding_replicas and removing_replicas (KIP-455)
      4  flexible (KIP-482)
      5  topic ids and type (KIP-516)
      6  leader_recovery_state (KIP-704)
      7  is_k_raft_controller, for the migration away from ZooKeeper (KIP-866)
    """

    controller_id: Int32  # node id of the sender
    # True: the sender is a KRaft controller in the middle of a migration
    is_k_raft_controller: Bool = since(7, default=False)
    controller_epoch: Int32  # the sender's
    # registration of the addressee that is meant; -1 unknown, and not checked
    broker_epoch: Int64 = since(2, default=-1, ignorable=True)
    # 0 unknown, 1 only what changed, 2 every replica of the broker; a ZooKeeper controller sends 0
    type: Int8 = since(5, default=0)
    ungrouped_partition_states: Array[LeaderAndIsrPartitionState] = until(1, default=[])
    topic_states: Array[LeaderAndIsrTopicState] = since(2, default=[])
    # where the leaders of these partitions listen for other brokers, for followers to fetch from
    live_leaders: Array[LeaderAndIsrLiveLeader]


class LeaderAndIsrPartitionState(Struct):
    """The state of one partition, as it stands in ZooKeeper."""

    topic_name: String = until(1, default="", ignorable=True)
    partition_index: Int32
    controller_epoch: Int32  # that in which this state was written; may be older than the sender's
    leader: Int32  # node id; -1 none
    leader_epoch: Int32  # rises with every change of leader or of the in-sync set by the controller
    isr: Array[Int32]  # node ids of the in-sync replicas
    partition_epoch: Int32  # version of the partition's state node in ZooKeeper, which an AlterPartition has to name
    replicas: Array[Int32]  # node ids in order of preference; the first is the preferred leader
    # those of `replicas` that a reassignment is bringing in
    adding_replicas: Array[Int32] = since(3, default=[], ignorable=True)
    # those of `replicas` that a reassignment is taking out
    removing_replicas: Array[Int32] = since(3, default=[], ignorable=True)
    # True: the replica never existed here, so a missing log is no sign of a lost disk
    is_new: Bool = since(1, default=False, ignorable=True)
    # 0 recovered, 1 the leader was elected uncleanly and is still recovering
    leader_recovery_state: Int8 = since(6, default=0)


class LeaderAndIsrTopicState(Struct):
    """The partitions of one topic."""

    topic_name: String
    # kept in each partition's folder; zero: the topic has no id
    topic_id: Uuid = since(5, default=ZERO_UUID, ignorable=True)
    partition_states: Array[LeaderAndIsrPartitionState]


class LeaderAndIsrLiveLeader(Struct):
    """The address of a live broker."""

    broker_id: Int32
    host_name: String
    port: Int32


class LeaderAndIsrResponse(Message, api=4, versions="0-7", flexible="4+"):
    """Which partitions the broker could not bring into the state asked for.

    Versions:
      0  partitions in one flat list
      1  KAFKA_STORAGE_ERROR may appear (KIP-112)
      2  as 1
      3  as 1
      4  flexible (KIP-482)
      5  grouped by topic, which is named by its id alone (KIP-516)
      6  as 5
      7  as 5
    """

    error_code: Int16  # of the whole request, a stale epoch for instance; then nothing was done
    partition_errors: Array[LeaderAndIsrPartitionError] = until(4, default=[])
    topics: Array[LeaderAndIsrTopicError] = since(5, default=[])


class LeaderAndIsrPartitionError(Struct):
    """The outcome for one partition; successes are listed too."""

    topic_name: String = until(4, default="", ignorable=True)
    partition_index: Int32
    error_code: Int16


class LeaderAndIsrTopicError(Struct):
    """The outcomes for one topic."""

    topic_id: Uuid
    partition_errors: Array[LeaderAndIsrPartitionError]


class StopReplicaRequest(Message, api=5, versions="0-4", flexible="2+"):
    """Replicas that the addressed broker is to stop, and perhaps to delete.

    Sent when a reassignment leaves the broker out, when a topic is deleted, and, without deletion, when the broker
    shuts down in an orderly way.

    Versions:
      0  partitions in one flat list, all to be deleted or none
      1  broker_epoch; partitions grouped by topic (KIP-380)
      2  flexible (KIP-482)
      3  for each partition a leader epoch and whether to delete it, so that a late request cannot stop a newer replica
         (KIP-570)
      4  is_k_raft_controller (KIP-866)
    """

    controller_id: Int32  # node id of the sender
    # True: the sender is a KRaft controller in the middle of a migration
    is_k_raft_controller: Bool = since(4, default=False)
    controller_epoch: Int32  # the sender's
    # registration of the addressee that is meant; -1 unknown, and not checked
    broker_epoch: Int64 = since(1, default=-1, ignorable=True)
    # for all partitions of the request; from version 3 on each has its own
    delete_partitions: Bool = until(2, default=False)
    ungrouped_partitions: Array[StopReplicaPartitionV0] = until(0, default=[])  # version 0 only
    topics: Array[StopReplicaTopicV1] = since(1, default=[], until=2)  # versions 1 and 2
    topic_states: Array[StopReplicaTopicState] = since(3, default=[])  # version 3 on


class StopReplicaPartitionV0(Struct):
    """One replica, as version 0 names it."""

    topic_name: String
    partition_index: Int32


class StopReplicaTopicV1(Struct):
    """The replicas of one topic, as versions 1 and 2 name them."""

    name: String
    partition_indexes: Array[Int32]


class StopReplicaTopicState(Struct):
    """The replicas of one topic."""

    topic_name: String
    partition_states: Array[StopReplicaPartitionState]


class StopReplicaPartitionState(Struct):
    """What is to become of one replica."""

    partition_index: Int32
    # refused if older than the broker's; -1 unknown and -2 the topic is being deleted: not checked
    leader_epoch: Int32 = plain(default=-1)
    delete_partition: Bool  # True: remove the log's folder, too


class StopReplicaResponse(Message, api=5, versions="0-4", flexible="2+"):
    """Which replicas were stopped.

    Versions:
      0  one flat list of partitions
      1  as 0
      2  flexible (KIP-482)
      3  FENCED_LEADER_EPOCH may appear (KIP-570)
      4  as 3
    """

    error_code: Int16  # of the whole request, a stale epoch for instance; then nothing was done
    partition_errors: Array[StopReplicaPartitionError]


class StopReplicaPartitionError(Struct):
    """The outcome for one replica; successes are listed too."""

    topic_name: String
    partition_index: Int32
    error_code: Int16


class UpdateMetadataRequest(Message, api=6, versions="0-8", flexible="6+"):
    """What has changed in the cluster: every live broker, and the partitions with a new state.

    Goes to every broker, whatever it holds: it fills the cache from which Metadata requests are answered. The list of
    brokers is always complete and replaces the old one; the list of partitions is added to what the broker knows.

    Versions:
      0  one plaintext address a broker; partitions in one flat list
      1  several endpoints a broker (KIP-2)
      2  rack (KIP-36)
      3  names of listeners (KIP-103)
      4  offline_replicas (KIP-112)
      5  broker_epoch; partitions grouped by topic (KIP-380)
      6  flexible (KIP-482)
      7  topic ids (KIP-516)
      8  is_k_raft_controller and type (KIP-866)
    """

    controller_id: Int32  # node id of the sender
    # True: the sender is a KRaft controller in the middle of a migration
    is_k_raft_controller: Bool = since(8, default=False)
    # 0 unknown, 1 only what changed, 2 all partitions: forget the others; a ZooKeeper controller sends 0
    type: Int8 = tagged(0, since=8, default=0)
    controller_epoch: Int32  # the sender's
    # registration of the addressee that is meant; -1 unknown, and not checked
    broker_epoch: Int64 = since(5, default=-1, ignorable=True)
    ungrouped_partition_states: Array[UpdateMetadataPartitionState] = until(4, default=[])
    topic_states: Array[UpdateMetadataTopicState] = since(5, default=[])
    live_brokers: Array[UpdateMetadataBroker]


class UpdateMetadataPartitionState(Struct):
    """The state of one partition, as clients are to be told."""

    topic_name: String = until(4, default="", ignorable=True)
    partition_index: Int32
    controller_epoch: Int32  # that in which this state was written
    leader: Int32  # node id; -1 none, -2 the topic is being deleted: forget the partition
    leader_epoch: Int32
    isr: Array[Int32]  # node ids of the in-sync replicas
    zk_version: Int32  # version of the partition's state node in ZooKeeper
    replicas: Array[Int32]  # node ids in order of preference
    # those of `replicas` whose broker is dead or whose disk failed
    offline_replicas: Array[Int32] = since(4, default=[], ignorable=True)


class UpdateMetadataTopicState(Struct):
    """The partitions of one topic that have changed."""

    topic_name: String
    topic_id: Uuid = since(7, default=ZERO_UUID, ignorable=True)  # zero: the topic has no id
    partition_states: Array[UpdateMetadataPartitionState]


class UpdateMetadataBroker(Struct):
    """A live broker and where it listens."""

    id: Int32
    # of the plaintext listener, the only one that version 0 knows
    v0_host: String = until(0, default="", ignorable=True)
    v0_port: Int32 = until(0, default=0, ignorable=True)
    endpoints: Array[UpdateMetadataEndpoint] = since(1, default=[], ignorable=True)
    rack: String | None = since(2, default="", ignorable=True)  # None: the broker has none


class UpdateMetadataEndpoint(Struct):
    """One listener of a broker."""

    port: Int32
    host: String
    # name of the listener; before version 3 the name of its protocol stands for it
    listener: String = since(3, default="", ignorable=True)
    security_protocol: Int16  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL


class UpdateMetadataResponse(Message, api=6, versions="0-8", flexible="6+"):
    """That the broker has taken the news in, or why not.

    Versions:
      0    an error code and nothing else
      1-5  as 0
      6    flexible (KIP-482)
      7-8  as 6
    """

    error_code: Int16  # STALE_CONTROLLER_EPOCH and STALE_BROKER_EPOCH are the ones to expect


class ControlledShutdownRequest(Message, api=7, versions="0-3", flexible="3+"):
    """A broker asks to stop: move the leadership of all its partitions away first.

    The broker repeats it, controlled.shutdown.max.retries times at most, while partitions remain.

    Versions:
      0  has a request header of its own kind, without a client id
      1  the usual request header
      2  broker_epoch (KIP-380)
      3  flexible (KIP-482)
    """

    broker_id: Int32  # node id of the sender
    # registration of the sender; -1 unknown, and not checked
    broker_epoch: Int64 = since(2, default=-1, ignorable=True)


class ControlledShutdownResponse(Message, api=7, versions="0-3", flexible="3+"):
    """Which partitions the broker still leads.

    Versions:
      0  an error code and what remains
      1  as 0
      2  as 0
      3  flexible (KIP-482)
    """

    error_code: Int16
    remaining_partitions: Array[RemainingPartition]  # empty: the broker may stop now


class RemainingPartition(Struct):
    """A partition without another replica that could lead it."""

    topic_name: String
    partition_index: Int32


class AlterPartitionRequest(Message, api=56, versions="0-3", flexible="0+"):
    """A leader asks to change the in-sync replicas of its partitions, or to call a recovery done.

    Sent by leaders, one request in flight at a time, since KIP-497; before, brokers wrote to ZooKeeper and raised a
    notice there. Until it is answered, a leader counts with the larger of the old and the new set.

    Versions:
      0  introduced by KIP-497 as AlterIsr, flexible from the start
      1  leader_recovery_state (KIP-704)
      2  topic ids instead of names (KIP-841)
      3  the broker epoch of each replica, so that a replica that has restarted is not let in by mistake (KIP-903)
    """

    broker_id: Int32  # node id of the sender
    broker_epoch: Int64 = plain(default=-1)  # registration of the sender
    topics: Array[AlterPartitionTopic]


class AlterPartitionTopic(Struct):
    """The partitions of one topic."""

    topic_name: String = until(1, default="", ignorable=True)
    topic_id: Uuid = since(2, default=ZERO_UUID, ignorable=True)
    partitions: Array[AlterPartitionState]


class AlterPartitionState(Struct):
    """The state that a leader proposes for one partition."""

    partition_index: Int32
    leader_epoch: Int32  # the sender's; answered with FENCED_LEADER_EPOCH if old
    new_isr: Array[Int32] = until(2, default=[])  # node ids
    new_isr_with_epochs: Array[BrokerState] = since(3, default=[])  # version 3 on
    leader_recovery_state: Int8 = since(1, default=0)  # 0 recovered, 1 still recovering from an unclean election
    # of the state being replaced: its version in ZooKeeper; answered with INVALID_UPDATE_VERSION if old
    partition_epoch: Int32


class BrokerState(Struct):
    """A replica, in the life in which it caught up."""

    broker_id: Int32
    broker_epoch: Int64 = plain(default=-1)  # -1: not to be checked


class AlterPartitionResponse(Message, api=56, versions="0-3", flexible="0+"):
    """The state each partition has now.

    Versions:
      0  introduced by KIP-497, flexible from the start
      1  leader_recovery_state (KIP-704)
      2  topic ids instead of names; INELIGIBLE_REPLICA, NEW_LEADER_ELECTED and UNKNOWN_TOPIC_ID may appear (KIP-841)
      3  as 2 (KIP-903)
    """

    throttle_time_ms: Int32 = plain(default=0)  # always 0: brokers are not throttled here
    error_code: Int16  # of the whole request; then nothing was done
    topics: Array[AlterPartitionTopicResult]


class AlterPartitionTopicResult(Struct):
    """The outcomes for one topic."""

    topic_name: String = until(1, default="", ignorable=True)
    topic_id: Uuid = since(2, default=ZERO_UUID, ignorable=True)
    partitions: Array[AlterPartitionResult]


class AlterPartitionResult(Struct):
    """The outcome for one partition; the fields after the code count only if it is NONE."""

    partition_index: Int32
    error_code: Int16
    leader_id: Int32  # node id; -1 none
    leader_epoch: Int32
    isr: Array[Int32]  # node ids of the in-sync replicas
    # 0 recovered, 1 still recovering from an unclean election
    leader_recovery_state: Int8 = since(1, default=0, ignorable=True)
    partition_epoch: Int32  # version of the state in ZooKeeper, to be named by the next request


class AllocateProducerIdsRequest(Message, api=67, versions="0", flexible="0+"):
    """A broker asks for a block of producer ids that no other broker will hand out.

    Sent when the last block is running low, by brokers that serve InitProducerId.

    Versions:
      0  introduced by KIP-730, flexible from the start
    """

    broker_id: Int32  # node id of the sender
    broker_epoch: Int64 = plain(default=-1)  # registration of the sender


class AllocateProducerIdsResponse(Message, api=67, versions="0", flexible="0+"):
    """The block: producer ids that belong to the broker from now on.

    Versions:
      0  introduced by KIP-730, flexible from the start
    """

    throttle_time_ms: Int32 = plain(default=0)  # always 0: brokers are not throttled here
    error_code: Int16
    producer_id_start: Int64  # first id of the block
    producer_id_len: Int32  # how many ids follow each other from there; Kafka gives 1000 at a time


class EnvelopeRequest(Message, api=58, versions="0", flexible="0+"):
    """A client's request, passed on by the broker that received it to the controller.

    Versions:
      0  introduced by KIP-590, flexible from the start
    """

    request_data: Bytes  # the request as the client sent it: its header and body, without the size in front
    # who sent it: int16 0 and a DefaultPrincipalData (see embedded.py), unless the cluster uses a principal builder of
    # its own
    request_principal: Bytes | None
    client_host_address: Bytes  # where from: the 4 or 16 bytes of an IP address


class EnvelopeResponse(Message, api=58, versions="0", flexible="0+"):
    """The controller's answer, to be passed back to the client.

    Versions:
      0  introduced by KIP-590, flexible from the start
    """

    # header and body as the client is to get them; None: the envelope itself was refused
    response_data: Bytes | None = plain(default=None)
    # of the envelope: NOT_CONTROLLER, CLUSTER_AUTHORIZATION_FAILED and so on; not of the request inside
    error_code: Int16
