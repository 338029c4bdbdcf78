"""The records of __consumer_offsets: offsets and groups of all kinds, to bytes and back.

Made by the rules of each kind and by shard.py, applied by shard.py, live and when a partition is loaded. Keys and
values begin with an int16: of a value its version, of a key the type of the record. 0 and 1 are an offset, 2 is a
classic group, what is above belongs to the kinds of `kinds.TYPE_OF_KEY`; others are of a newer Kafka, and passed by.
Classic groups are written as Apache Kafka 3.9 writes them, the others, and offsets, as 4.4 does, so either broker can
load the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from kbroker.coordinator import KeyValue
from kbroker.groups.classic_group import ClassicGroup, Member
from kbroker.groups.kinds import TYPE_OF_KEY, record_classes
from kbroker.groups.offsets import Commit, TopicPartition
from protocol.message import ZERO_UUID, DecodeError, Message
from protocol.messages.stored import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_versioned,
    encode_versioned,
    version_of,
)
from protocol.namedtuple import NamedTuple

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VERSION = 3  # of one whose topic's id is not known
OFFSET_WITH_TOPIC_ID_VERSION = 4  # Kafka 3.9 reads it, too, and passes the id by
OFFSET_WITH_EXPIRY_VERSION = 1  # the only one that can hold an expiry of the client's own
GROUP_VERSION = 3
MODERN_VERSION = 0


class OffsetRecord(NamedTuple):
    """A group's offset of a partition; None: it has none any more."""

    group_id: str
    where: TopicPartition
    commit: Commit | None


class GroupRecord(NamedTuple):
    """A classic group in its last generation; None: it is gone."""

    group_id: str
    value: GroupMetadataValue | None


class ModernRecord(NamedTuple):
    """A record of one of the kinds of groups of Kafka 4, by the type of its key; a value of None is a tombstone."""

    group_id: str
    key_type: int
    key: Any
    value: Any


KeyedRecord: TypeAlias = GroupRecord | ModernRecord
"""A record of a group itself."""
GroupsRecord: TypeAlias = OffsetRecord | KeyedRecord


def modern_record(key: Message, value: Message | None) -> ModernRecord:
    """A record of a modern group. key: has a `group_id`; its only version is the type of the record."""
    return ModernRecord(key.group_id, key.versions[0], key, value)  # type: ignore[attr-defined]


def group_record(
    group: ClassicGroup, members: Iterable[Member], leader: str | None, assignments: Mapping[str, bytes]
) -> GroupRecord:
    """A group in its present generation. assignments: by member id, for every member."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol or ""),
                assignment=assignments[member.member_id],
            )
            for member in members
        ],
    )
    return GroupRecord(group.group_id, value)


def encode(record: GroupsRecord) -> KeyValue:
    """A record as Apache Kafka writes it; a value of None is a tombstone."""
    if record.__class__ is OffsetRecord:
        commit = record.commit
        key = _offset_key(record.group_id, record.where)
        return key, None if commit is None else _offset_value(commit)
    if record.__class__ is ModernRecord:
        value = None if record.value is None else encode_versioned(record.value, MODERN_VERSION)
        return encode_versioned(record.key, record.key_type), value
    assert isinstance(record, GroupRecord), record
    key = encode_versioned(GroupMetadataKey(group=record.group_id), GROUP_KEY_VERSION)
    return key, None if record.value is None else encode_versioned(record.value, GROUP_VERSION)


def _offset_value(commit: Commit) -> bytes:
    version = OFFSET_VERSION if commit.topic_id == ZERO_UUID else OFFSET_WITH_TOPIC_ID_VERSION
    if commit.expires_ms >= 0:
        version = OFFSET_WITH_EXPIRY_VERSION
    value = OffsetCommitValue(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        commit_timestamp=commit.committed_ms,
        expire_timestamp=commit.expires_ms,
        topic_id=commit.topic_id,
    )
    return encode_versioned(value, version)


def decode(key: bytes, value: bytes | None) -> GroupsRecord | None:
    """What a record says; None for a kind that this broker does not know. Raises: DecodeError."""
    version = version_of(key)
    if 0 <= version <= OFFSET_KEY_VERSION:
        about = decode_versioned(OffsetCommitKey, key)
        return OffsetRecord(about.group, (about.topic, about.partition), None if value is None else _read_offset(value))
    if version == GROUP_KEY_VERSION:
        group_id = decode_versioned(GroupMetadataKey, key).group
        return GroupRecord(group_id, None if value is None else _read_group(value))
    if version in TYPE_OF_KEY:
        key_class, value_class = record_classes(version)
        said: Any = decode_versioned(key_class, key)
        what: Any = None if value is None else decode_versioned(value_class, value)
        return ModernRecord(said.group_id, version, said, what)
    return None


def _read_offset(value: bytes) -> Commit:
    read = decode_versioned(OffsetCommitValue, value)
    return Commit(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp,
        read.expire_timestamp,
        topic_id=read.topic_id,
    )


def _read_group(value: bytes) -> GroupMetadataValue:
    read = decode_versioned(GroupMetadataValue, value)
    ids = [each.member_id for each in read.members]
    instances = [each.group_instance_id for each in read.members if each.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise DecodeError("members", "a member, or an instance, is there twice")
    if ids and (read.protocol is None or read.leader not in ids):
        raise DecodeError("leader", f"{read.leader} of protocol {read.protocol} is not among the members")
    if version_of(value) == 0:  # had no time of its own for a rebalance
        for each in read.members:
            each.rebalance_timeout = each.session_timeout
    return read


def _offset_key(group_id: str, where: TopicPartition) -> bytes:
    return encode_versioned(OffsetCommitKey(group=group_id, topic=where[0], partition=where[1]), OFFSET_KEY_VERSION)
