"""Records that brokers keep: in __consumer_offsets, in __transaction_state, and control records in every log.

Groups: a key is an OffsetCommitKey or a GroupMetadataKey, told apart by the version in front: 0 and 1 are offsets, 2 is
a group (3 and up belong to newer kinds of groups, and are skipped by who does not know them). Transactions:
TransactionLogKey. In both topics a record without a value deletes what is stored under its key, and the topic is
compacted: the last record of a key is the state. Each key and value has its version in front, an int16;
`encode_versioned` and `decode_versioned` below write and read it.

A control record is part of a control batch, never shown to consumers. Its key is a ControlRecordTypeSchema; an
EndTxnMarker as the value ends a transaction in one partition. LeaderChangeMessage opens each epoch of a metadata
quorum, written by its leader; what else a quorum writes of itself is in quorum.py.

Written and read by the coordinators and the log, in the formats of Apache Kafka, so that either broker loads what the
other wrote.
"""

from __future__ import annotations

from struct import Struct as PackedStruct
from typing import Any, TypeVar

from protocol.message import (
    ZERO_UUID,
    Array,
    Bytes,
    DecodeError,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    since,
    tagged,
)


class OffsetCommitKey(Message, versions="0-1", flexible="none"):
    """Where an offset belongs.

    Versions:
      0  written by Kafka 0.8.2
      1  as 0; what is written today
    """

    group: String
    topic: String
    partition: Int32


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """How far a group has read one partition.

    Versions:
      0  written by Kafka 0.8.2
      1  expire_timestamp, where the client chose how long to keep the offset
      2  without expire_timestamp: kept for offsets.retention.minutes after the group is empty (KIP-211)
      3  leader_epoch (KIP-320)
      4  flexible (KIP-915); topic_id, filled in by Kafka 4

    Kafka 3.9 writes 3, or 1 where there is an expire_timestamp.
    """

    offset: Int64  # of the next record to be read
    leader_epoch: Int32 = since(3, default=-1, ignorable=True)  # of the last record read; -1 unknown
    metadata: String  # the client's own words; empty if it had none
    commit_timestamp: Int64  # milliseconds since 1970, by the coordinator's clock
    # milliseconds since 1970; -1: by the broker's rule
    expire_timestamp: Int64 = since(1, default=-1, until=1, ignorable=True)
    topic_id: Uuid = tagged(0, since=4, default=ZERO_UUID, ignorable=True)  # zero: unknown


class GroupMetadataKey(Message, versions="2", flexible="none"):
    """Which classic group.

    Versions:
      2  the only one, so that keys of offsets (0, 1) and of groups can be told apart
    """

    group: String


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """A classic group after a rebalance: its generation, its members and what each was given.

    Versions:
      0  written by Kafka 0.9
      1  rebalance_timeout (KIP-62)
      2  current_state_timestamp (KIP-211)
      3  group_instance_id (KIP-345)
      4  flexible (KIP-915)

    Kafka 3.9 writes 3.
    """

    # "consumer" for consumers, "connect" for Kafka Connect; empty for a group that only keeps offsets
    protocol_type: String
    generation: Int32  # counts rebalances; 0: none yet
    protocol: String | None  # assignor that the members agreed on; None: there are no members
    leader: String | None  # member id; None: there are no members
    current_state_timestamp: Int64 = since(2, default=-1, ignorable=True)  # milliseconds since 1970; -1 unknown
    members: Array[MemberMetadata]


class MemberMetadata(Struct):
    """A member of the group."""

    member_id: String
    group_instance_id: String | None = since(3, default=None, ignorable=True)  # None: not a static member
    client_id: String
    client_host: String  # address, with a slash in front
    rebalance_timeout: Int32 = since(1, default=-1, ignorable=True)  # milliseconds; -1: as session_timeout
    session_timeout: Int32  # milliseconds
    # metadata from its JoinGroup for the chosen protocol; of consumers a ConsumerProtocolSubscription
    subscription: Bytes
    assignment: Bytes  # from the leader's SyncGroup; of consumers a ConsumerProtocolAssignment


class TransactionLogKey(Message, versions="0", flexible="none"):
    """Which transactional id.

    Versions:
      0  introduced by KIP-98
    """

    transactional_id: String


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """Where the last transaction of a transactional id stands.

    Versions:
      0  introduced by KIP-98
      1  flexible, written from transaction version 1 on (KIP-915); the four tagged fields serve an epoch that rises
         with every transaction (KIP-890)

    Kafka 3.9 with ZooKeeper writes 0.
    """

    producer_id: Int64  # of the present or last transaction
    # of the transaction before, where the id has changed since; -1 none
    previous_producer_id: Int64 = tagged(0, since=1, default=-1)
    # already told to the producer, where the epochs of the present id are used up; -1 none
    next_producer_id: Int64 = tagged(1, since=1, default=-1)
    producer_epoch: Int16  # of the present or last transaction
    next_producer_epoch: Int16 = tagged(3, since=1, default=-1)  # goes with next_producer_id; -1 none
    transaction_timeout_ms: Int32  # after which the coordinator aborts the transaction
    # 0 empty, 1 ongoing, 2 prepare commit, 3 prepare abort, 4 complete commit, 5 complete abort, 6 dead, 7 prepare
    # epoch fence
    transaction_status: Int8
    transaction_partitions: Array[PartitionsSchema] | None  # None: no partitions yet, or none any more
    transaction_last_update_timestamp_ms: Int64  # milliseconds since 1970
    transaction_start_timestamp_ms: Int64  # milliseconds since 1970; -1: no transaction yet
    # 2: the producer has a new epoch for every transaction; 0: unknown, or an older producer
    client_transaction_version: Int16 = tagged(2, since=1, default=0)


class PartitionsSchema(Struct):
    """The partitions of one topic that take part."""

    topic: String
    partition_ids: Array[Int32]  # indexes


class ControlRecordTypeSchema(Message, versions="0", flexible="none"):
    """The key of a control record.

    Versions:
      0  introduced by KIP-98
    """

    # 0 abort, 1 commit, 2 leader change, 3 snapshot header, 4 snapshot footer, 5 KRaft version, 6 KRaft voters; readers
    # skip what they do not know
    type: Int16


class EndTxnMarker(Message, versions="0", flexible="none"):
    """The value of a control record of type abort or commit: the transaction of the batch's producer ends here.

    Versions:
      0  introduced by KIP-98
    """

    # leader epoch of the coordinator's partition; an older one than the last seen is TRANSACTION_COORDINATOR_FENCED
    coordinator_epoch: Int32


class LeaderChangeMessage(Message, versions="0-1", flexible="0+"):
    """The value of a control record of type leader change; without a version in front, since its first field is that.

    Versions:
      0  introduced by KIP-595, flexible from the start
      1  voter_directory_id (KIP-853)
    """

    version: Int16  # of this very message; 1 where voters are records of the log
    leader_id: Int32  # node id
    voters: Array[Voter]  # the quorum of this epoch
    granting_voters: Array[Voter]  # those who voted for the leader


class Voter(Struct):
    """A voter of the quorum."""

    voter_id: Int32
    voter_directory_id: Uuid = since(1, default=ZERO_UUID)  # zero: unknown


M = TypeVar("M", bound=Message)
_VERSION = PackedStruct(">h")


def encode_versioned(message: Message, version: int) -> bytes:
    """The message with its version in front, an int16, as keys and values are stored.

    Raises: EncodeError.
    """
    body: bytes
    (body,) = message.encode_parts(version)  # in one piece: none has records
    return _VERSION.pack(version) + body


def encode_flat(kind: type[Message], values: tuple[Any, ...], version: int) -> bytes:
    """The same of a message's fields (`flat.py`), for a writer of one with each request. Raises: EncodeError."""
    body: bytes
    (body,) = kind.write_flat(values, version)
    return _VERSION.pack(version) + body


def decode_versioned(kind: type[M], buffer: bytes | bytearray | memoryview, *, newer_as_newest: bool = False) -> M:
    """The message behind the version that the buffer begins with.

    newer_as_newest: read a version above those of `kind` as its highest; Kafka does so for the consumer protocol, for
    keys of control records and for EndTxnMarker, which promise to add fields at the end only.
    Raises: DecodeError, for a version that `kind` does not have, too.
    """
    version = version_of(buffer)
    first, last = kind.versions
    if newer_as_newest:
        version = min(version, last)
    if not first <= version <= last:
        raise DecodeError("version", f"{kind.__name__} has versions {first} to {last}, not {version}")
    return kind.decode(buffer, version, _VERSION.size)


def version_of(buffer: bytes | bytearray | memoryview) -> int:
    """The version that the buffer begins with; in a key it tells the kind of record.

    Raises: DecodeError.
    """
    if len(buffer) < _VERSION.size:
        raise DecodeError("version", f"needs {_VERSION.size} bytes, {len(buffer)} are left")
    version: int = _VERSION.unpack_from(buffer)[0]
    return version
