"""InitializeShareGroupState (key 83), ReadShareGroupState (84), WriteShareGroupState (85), DeleteShareGroupState (86),
ReadShareGroupStateSummary (87).

What the share coordinator is asked: to keep what came of the records of share-partitions, a partition of a topic as
one share group reads it. Brokers send these, the leaders of the partitions and the groups' coordinators; the share
coordinator of a share-partition is found by "group:topic id:partition". Two epochs fence: the state's, which rises
when the offsets of a group are reset, and the leader's. Source: KIP-932.
"""

from __future__ import annotations

from protocol.message import Array, Int8, Int16, Int32, Int64, Message, String, Struct, Uuid, plain, since


class InitializeShareGroupStateRequest(Message, api=83, versions="0", flexible="0+"):
    """Begins to keep the state of share-partitions, or begins it again in a higher epoch.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topics: Array[InitializeStateData]


class InitializeStateData(Struct):
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: Array[InitializeStatePartition]


class InitializeStatePartition(Struct):
    """One partition."""

    partition: Int32
    state_epoch: Int32
    start_offset: Int64  # -1: the leader finds it by the group's share.auto.offset.reset


class InitializeShareGroupStateResponse(Message, api=83, versions="0", flexible="0+"):
    """Whether the state is kept.

    Versions:
      0  introduced by KIP-932
    """

    results: Array[StateResult]


class StateResult(Struct):
    """The outcomes for one topic's partitions."""

    topic_id: Uuid
    partitions: Array[StatePartitionResult]


class StatePartitionResult(Struct):
    """The outcome for one partition."""

    partition: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error


class ReadShareGroupStateRequest(Message, api=84, versions="0", flexible="0+"):
    """Asks for the state of share-partitions, for a leader that begins with them; older leaders are fenced by it.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topics: Array[ReadStateData]


class ReadStateData(Struct):
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: Array[ReadStatePartition]


class ReadStatePartition(Struct):
    """One partition."""

    partition: Int32
    leader_epoch: Int32


class ReadShareGroupStateResponse(Message, api=84, versions="0", flexible="0+"):
    """The state of each share-partition.

    Versions:
      0  introduced by KIP-932
    """

    results: Array[ReadStateResult]


class ReadStateResult(Struct):
    """The state of one topic's partitions."""

    topic_id: Uuid
    partitions: Array[ReadStatePartitionResult]


class ReadStatePartitionResult(Struct):
    """The state of one partition."""

    partition: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    state_epoch: Int32
    start_offset: Int64  # -1: not known yet
    state_batches: Array[StateBatch]


class StateBatch(Struct):
    """What came of some records in a row."""

    first_offset: Int64
    last_offset: Int64  # of the last record itself
    delivery_state: Int8  # 0 available, 2 acknowledged, 3 archiving, 4 archived
    delivery_count: Int16


class WriteShareGroupStateRequest(Message, api=85, versions="0-1", flexible="0+"):
    """Changes the state of share-partitions.

    Versions:
      0  introduced by KIP-932
      1  delivery_complete_count (KIP-1226)
    """

    group_id: String
    topics: Array[WriteStateData]


class WriteStateData(Struct):
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: Array[WriteStatePartition]


class WriteStatePartition(Struct):
    """One partition."""

    partition: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64  # everything below is over; -1: unchanged
    # records from start_offset on that are over; -1 unknown
    delivery_complete_count: Int32 = since(1, default=-1, ignorable=True)
    state_batches: Array[StateBatch]


class WriteShareGroupStateResponse(Message, api=85, versions="0-1", flexible="0+"):
    """Whether the state is kept.

    Versions:
      0  introduced by KIP-932
      1  as 0
    """

    results: Array[StateResult]


class DeleteShareGroupStateRequest(Message, api=86, versions="0", flexible="0+"):
    """Asks to forget the state of share-partitions.

    Versions:
      0  introduced by KIP-932
    """

    group_id: String
    topics: Array[DeleteStateData]


class DeleteStateData(Struct):
    """The partitions of one topic."""

    topic_id: Uuid
    partitions: Array[DeleteStatePartition]


class DeleteStatePartition(Struct):
    """One partition."""

    partition: Int32


class DeleteShareGroupStateResponse(Message, api=86, versions="0", flexible="0+"):
    """Whether the state is forgotten.

    Versions:
      0  introduced by KIP-932
    """

    results: Array[StateResult]


class ReadShareGroupStateSummaryRequest(Message, api=87, versions="0-1", flexible="0+"):
    """Asks how far share-partitions are; no leader is fenced by it.

    Versions:
      0  introduced by KIP-932
      1  the response gains delivery_complete_count (KIP-1226)
    """

    group_id: String
    topics: Array[ReadStateData]


class ReadShareGroupStateSummaryResponse(Message, api=87, versions="0-1", flexible="0+"):
    """How far each share-partition is.

    Versions:
      0  introduced by KIP-932
      1  delivery_complete_count (KIP-1226)
    """

    results: Array[StateSummaryResult]


class StateSummaryResult(Struct):
    """How far one topic's partitions are."""

    topic_id: Uuid
    partitions: Array[StateSummaryPartitionResult]


class StateSummaryPartitionResult(Struct):
    """How far one partition is."""

    partition: Int32
    error_code: Int16
    error_message: String | None = plain(default=None)  # None: no error
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64  # -1: not known yet
    # records from start_offset on that are over; -1 unknown
    delivery_complete_count: Int32 = since(1, default=-1, ignorable=True)
