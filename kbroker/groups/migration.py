"""A running group changes its protocol: classic to consumer when its first member of the newer one joins, and back when
the last of them has gone (KIP-848, group.consumer.migration.policy).

Called by consumer.py and classic_members.py. The change is one batch: tombstones of the one kind, records of the other.
Members keep their ids, what they own and their offsets, and notice a rebalance at most. Behaviour and messages are
Apache Kafka 4.4's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.groups import membership
from kbroker.groups.classic_group import STABLE, ClassicGroup, Member, elect_protocol
from kbroker.groups.consumer_group import NOTHING_OWNED, ClassicMember, ConsumerGroup, ConsumerGroupMember
from kbroker.groups.consumer_records import (
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from kbroker.groups.group import CONSUMER
from kbroker.groups.modern import NOTHING, Assignment, metadata_hash
from kbroker.groups.records import GroupRecord
from protocol.errors import ErrorCode, KafkaError
from protocol.message import DecodeError
from protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition
from protocol.messages.stored import (
    GroupMetadataValue,
    MemberMetadata,
    decode_versioned,
    encode_versioned,
    version_of,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.coordinator import Operation
    from kbroker.groups.consumer import ConsumerGroups
    from kbroker.groups.records import GroupsRecord
    from kbroker.metadata.cache import MetadataCache

UPGRADES, DOWNGRADES = ("bidirectional", "upgrade"), ("bidirectional", "downgrade")


class Downgrade(NamedTuple):
    """A consumer group has become a classic one. rebalances: its assignment is old. joined: whose join has done it."""

    rebalances: bool
    joined: ConsumerGroupMember | None = None


# --- classic to consumer


def upgrade(classic: ClassicGroup, config: BrokerConfig, image: MetadataCache) -> ConsumerGroup:
    """The consumer group that a classic one becomes, apart from the shard.

    Raises: KafkaError GROUP_ID_NOT_FOUND if it cannot become one.
    """
    group_id = classic.group_id
    why = None
    if config.group_consumer_migration_policy not in UPGRADES:
        why = "online upgrade is disabled."
    elif classic.protocol_type != CONSUMER:
        why = "the group does not use the consumer embedded protocol."
    elif len(classic.members) > config.group_consumer_max_size:
        why = "the group size exceeds the consumer group maximum size."
    if why is not None:
        raise _cannot_upgrade(group_id, why)
    group = ConsumerGroup(group_id)
    group.set_epoch(classic.generation, 0)
    group.set_assignment_epoch(classic.generation)
    protocol = classic.protocol or elect_protocol(list(classic.members.values()))
    for member in classic.members.values():
        try:
            made = _upgraded(member, protocol, classic.generation, image)
        except DecodeError as error:
            raise _cannot_upgrade(group_id, "the embedded consumer protocol is malformed.") from error
        if made is None:
            text = "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            raise _cannot_upgrade(group_id, f"{text}assignor before re-attempting the upgrade.")
        group.put_member(made)
        group.set_target(made.member_id, {topic: frozenset(parts) for topic, parts in made.assigned.items()})
    group.set_epoch(classic.generation, metadata_hash(image, group.subscribers))
    return group


def _cannot_upgrade(group_id: str, why: str) -> KafkaError:
    text = f"Cannot upgrade classic group {group_id} to consumer group because {why}"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _upgraded(member: Member, protocol: str, generation: int, image: MetadataCache) -> ConsumerGroupMember | None:
    """The member; None if its assignment has something that would be lost. Raises: DecodeError."""
    assigned: dict[bytes, dict[int, int]] = {}
    if member.assignment:
        said = decode_versioned(ConsumerProtocolAssignment, member.assignment, newer_as_newest=True)
        if said.user_data:
            return None
        for each in said.assigned_partitions:
            if each.topic in image.topics:
                assigned[image.topic_id(each.topic)] = dict.fromkeys(each.partitions, generation)
    subscription = decode_versioned(ConsumerProtocolSubscription, member.metadata(protocol), newer_as_newest=True)
    return ConsumerGroupMember(
        member.member_id,
        member_epoch=generation,
        previous_epoch=generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        names=tuple(sorted(set(subscription.topics))),
        classic=ClassicMember(member.session_timeout_ms, tuple(member.protocols)),
        assigned=assigned or NOTHING_OWNED,
    )


def upgrade_records(group: ConsumerGroup) -> list[GroupsRecord]:
    """What makes the log know the group that `upgrade` has made."""
    group_id, members = group.group_id, list(group.members.values())
    return [
        *(member_record(group_id, member) for member in members),
        epoch_record(group_id, group.group_epoch, group.metadata_hash),
        *(target_record(group_id, each.member_id, group.target[each.member_id]) for each in members),
        target_epoch_record(group_id, group.group_epoch, 0),
        *(current_record(group_id, member) for member in members),
    ]


def left_behind(operation: Operation, classic: ClassicGroup, group: ConsumerGroup) -> None:
    """A classic group has become a consumer group: its waiting members ask again, and their sessions go on."""
    membership.converted(operation, classic)
    for member in group.members.values():
        if member.classic is not None:
            operation.set_timer("session", group.group_id, member.classic.session_timeout_ms, member.member_id)


# --- consumer to classic


def downgrade(
    group: ConsumerGroup,
    leaving: Sequence[ConsumerGroupMember],
    config: BrokerConfig,
    image: MetadataCache,
    wall_ms: int,
) -> GroupRecord | None:
    """The classic group that is left without some members; None if it stays a consumer group."""
    newer = [member for member in leaving if member.classic is None]
    left = len(group.members) - len(leaving)
    if not newer or len(group.members) - group.classic_members != len(newer) or left <= 0:
        return None
    if config.group_consumer_migration_policy not in DOWNGRADES or left > config.group_max_size:
        return None
    return downgrade_to(group, leaving, None, group.group_epoch, image, wall_ms)


def may_replace(group: ConsumerGroup, holder: ConsumerGroupMember, config: BrokerConfig) -> bool:
    """Whether the group becomes a classic one if a classic member takes the place of this one."""
    return (
        group.all_others_are_classic(holder.member_id)
        and config.group_consumer_migration_policy in DOWNGRADES
        and len(group.members) <= config.group_max_size
    )


def downgrade_to(
    group: ConsumerGroup,
    leaving: Collection[ConsumerGroupMember],
    joining: ConsumerGroupMember | None,
    epoch: int,
    image: MetadataCache,
    wall_ms: int,
) -> GroupRecord:
    """The record of the classic group. joining: a static member that takes the place of the holder of its instance."""
    holder = None if joining is None else group.static_member(joining.instance_id)
    gone = {member.member_id for member in leaving} | (set() if holder is None else {holder.member_id})
    members = [member for member in group.members.values() if member.member_id not in gone]
    targets = {member.member_id: group.target.get(member.member_id, NOTHING) for member in members}
    if joining is not None:
        members.append(joining)
        targets[joining.member_id] = NOTHING if holder is None else group.target.get(holder.member_id, NOTHING)
    protocol = elect_protocol([Member(each.member_id, _protocols(each)) for each in members])
    said = {each.member_id: dict(_protocols(each))[protocol] for each in members}
    value = GroupMetadataValue(
        protocol_type=CONSUMER,
        generation=epoch,
        protocol=protocol,
        leader=members[0].member_id,
        current_state_timestamp=wall_ms,
        members=[
            MemberMetadata(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=0 if each.classic is None else each.classic.session_timeout_ms,
                subscription=said[each.member_id],
                assignment=encode_assignment(targets[each.member_id], image, said[each.member_id]),
            )
            for each in members
        ],
    )
    return GroupRecord(group.group_id, value)


def _protocols(member: ConsumerGroupMember) -> list[tuple[str, bytes]]:
    assert member.classic is not None, member
    return list(member.classic.protocols)


def encode_assignment(
    assignment: Assignment | Mapping[bytes, Iterable[int]], image: MetadataCache, metadata: bytes
) -> bytes:
    """An assignment as a classic member reads it. metadata: of its subscription, whose version it understands."""
    named = [(image.topic_name(topic), parts) for topic, parts in assignment.items()]
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=sorted(parts)) for name, parts in named if name is not None
        ],
        user_data=None,
    )
    first, last = ConsumerProtocolAssignment.versions
    return encode_versioned(value, min(max(version_of(metadata), first), last))


def downgraded(
    operation: Operation,
    kind: ConsumerGroups,
    group_id: str,
    before: Mapping[str, ConsumerGroupMember],
    reason: str,
    how: Downgrade | None = None,
) -> None:
    """A consumer group has become a classic one: its members' sessions go on, and it rebalances if it has to.

    before: its members by id, as they were.
    """
    how = how or Downgrade(rebalances=True)
    classic = kind.shard.groups[group_id]
    assert isinstance(classic, ClassicGroup), classic
    classic.state = STABLE
    for member_id in before:
        kind.cancel_timers(operation, group_id, member_id, ("session", "rebalance", "join", "sync"))
    operation.cancel_timer("regex", group_id)
    for member in classic.members.values():
        known = how.joined if how.joined is not None and how.joined.member_id == member.member_id else None
        known = known or before[member.member_id]
        classic.update(member, _protocols(known), member.session_timeout_ms, member.rebalance_timeout_ms)
        operation.set_timer("session", group_id, member.session_timeout_ms, member.member_id)
    operation.event(group_id, f"becomes a classic group: {reason}")
    if how.rebalances:
        membership.prepare_rebalance(operation, classic, kind.shard.config, reason)
