"""The records of __consumer_offsets: offsets and groups, to bytes and back.

Written by membership.py and shard.py, read when a partition is loaded. Keys and values begin with an int16 that is
the version, and for keys also tells their kind: 0 and 1 an offset, 2 a group; what is above is of a newer Kafka and is
passed by. Written as Apache Kafka 3.9 writes them, so either broker can load the other's.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.groups.effects import Record
from kbroker.groups.group import STABLE, Group, Member
from kbroker.groups.offsets import Commit, TopicPartition
from protocol.message import DecodeError
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

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VERSION = 3  # 4 is flexible and says nothing more
OFFSET_WITH_EXPIRY_VERSION = 1  # the only one that can hold an expiry of the client's own
GROUP_VERSION = 3


class OffsetKey(NamedTuple):
    """Whose offset it is."""

    group_id: str
    where: TopicPartition


def offset_record(group_id: str, where: TopicPartition, commit: Commit) -> Record:
    """An offset of a group."""
    version = OFFSET_VERSION if commit.expires_ms < 0 else OFFSET_WITH_EXPIRY_VERSION
    value = OffsetCommitValue(
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata,
        commit_timestamp=commit.committed_ms,
        expire_timestamp=commit.expires_ms,
    )
    return Record(_offset_key(group_id, where), encode_versioned(value, version))


def offset_tombstone(group_id: str, where: TopicPartition) -> Record:
    """A group has no offset for a partition any more."""
    return Record(_offset_key(group_id, where), None)


def group_record(group: Group, assignments: dict[str, bytes]) -> Record:
    """A group in its present generation. assignments: by member id, for every member."""
    members = [
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
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=members,
    )
    return Record(_group_key(group.group_id), encode_versioned(value, GROUP_VERSION))


def group_tombstone(group_id: str) -> Record:
    """A group is gone."""
    return Record(_group_key(group_id), None)


def read_key(key: bytes) -> OffsetKey | str | None:
    """What a record is about: an offset, a group (its id), or something this broker does not know.

    Raises: DecodeError.
    """
    version = version_of(key)
    if 0 <= version <= OFFSET_KEY_VERSION:
        offset = decode_versioned(OffsetCommitKey, key)
        return OffsetKey(offset.group, (offset.topic, offset.partition))
    if version == GROUP_KEY_VERSION:
        return decode_versioned(GroupMetadataKey, key).group
    return None


def read_offset(value: bytes, position: int) -> Commit:
    """An offset. position: of its record. Raises: DecodeError."""
    read = decode_versioned(OffsetCommitValue, value)
    return Commit(read.offset, read.leader_epoch, read.metadata, read.commit_timestamp, read.expire_timestamp, position)


def read_group(group_id: str, value: bytes) -> Group:
    """A group as its last generation was stored: stable, or empty. Raises: DecodeError."""
    read = decode_versioned(GroupMetadataValue, value)
    ids = [each.member_id for each in read.members]
    instances = [each.group_instance_id for each in read.members if each.group_instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise DecodeError("members", "a member, or an instance, is there twice")
    if ids and (read.protocol is None or read.leader not in ids):
        raise DecodeError("leader", f"{read.leader} of protocol {read.protocol} is not among the members")
    group = Group(group_id, None if read.current_state_timestamp == -1 else read.current_state_timestamp)
    for each in read.members:
        group.add(
            Member(
                each.member_id,
                [(read.protocol or "", bytes(each.subscription))],
                instance_id=each.group_instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=each.session_timeout,
                rebalance_timeout_ms=each.session_timeout if version_of(value) == 0 else each.rebalance_timeout,
                assignment=bytes(each.assignment),
            )
        )
    group.generation = read.generation
    group.protocol_type = read.protocol_type or None
    group.protocol = read.protocol
    group.leader = read.leader
    group.state = STABLE if group.members else group.state
    group.subscribed = group.read_subscriptions()
    return group


def _offset_key(group_id: str, where: TopicPartition) -> bytes:
    return encode_versioned(OffsetCommitKey(group=group_id, topic=where[0], partition=where[1]), OFFSET_KEY_VERSION)


def _group_key(group_id: str) -> bytes:
    return encode_versioned(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)
