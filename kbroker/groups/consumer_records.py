"""The records of consumer groups (KIP-848) from their state, and back: types 3 to 8 and 16 of __consumer_offsets.

Made by consumer.py for what it wants stored; `replay` is the way of all of them into a group, live and when it is
loaded. The formats are in protocol/messages/stored_consumer_groups.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kbroker.groups.consumer_group import (
    LEFT,
    NOTHING_OWNED,
    ClassicMember,
    ConsumerGroup,
    ConsumerGroupMember,
    Owned,
    ResolvedRegex,
)
from kbroker.groups.modern import FIRST_EPOCH, Assignment, MemberState
from kbroker.groups.records import ModernRecord, modern_record
from protocol.messages.stored_consumer_groups import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
    TopicPartitions,
)

MEMBER_STATES = {state.value: state for state in MemberState}

# --- from state


def member_record(group_id: str, member: ConsumerGroupMember) -> ModernRecord:
    """A member: who it is, and what it subscribes to."""
    classic = None
    if member.classic is not None:
        protocols = [ClassicProtocol(name=name, metadata=metadata) for name, metadata in member.classic.protocols]
        classic = ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms, supported_protocols=protocols
        )
    return modern_record(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.names),
            subscribed_topic_regex=member.regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
            classic_member_metadata=classic,
        ),
    )


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ModernRecord:
    """The group epoch has moved."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return modern_record(ConsumerGroupMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Assignment) -> ModernRecord:
    """What a member shall own in the end."""
    topics = [TopicPartition(topic_id=topic, partitions=sorted(parts)) for topic, parts in target.items()]
    return modern_record(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        ConsumerGroupTargetAssignmentMemberValue(topic_partitions=topics),
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> ModernRecord:
    """The target is the one for this group epoch. wall_ms: when it was computed; 0: the next need not wait for long."""
    return modern_record(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms),
    )


def current_record(group_id: str, member: ConsumerGroupMember) -> ModernRecord:
    """Where a member is on its way to the target."""
    return modern_record(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state.value,
            assigned_partitions=_owned_topics(member.assigned),
            partitions_pending_revocation=_owned_topics(member.pending_revocation),
        ),
    )


def _owned_topics(owned: Owned) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic, partitions=list(parts), assignment_epochs=list(parts.values()))
        for topic, parts in owned.items()
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> ModernRecord:
    """The topics that an expression matches."""
    topics, version, timestamp_ms = resolved
    return modern_record(
        ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex),
        ConsumerGroupRegularExpressionValue(topics=list(topics), version=version, timestamp=timestamp_ms),
    )


def regex_tombstone(group_id: str, regex: str) -> ModernRecord:
    """No member subscribes by an expression any more."""
    return modern_record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def member_tombstones(group_id: str, member_id: str) -> list[ModernRecord]:
    """What makes the log forget a member, in the order in which Apache's readers want it."""
    return [
        modern_record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        modern_record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        modern_record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: ConsumerGroup, renamed: Mapping[str, str] | None = None) -> list[ModernRecord]:
    """What makes the log forget a group, in the order in which Apache's readers want it.

    renamed: new member ids by old, of members whose records in the same batch have the new one.
    """
    group_id = group.group_id
    member_ids = [(renamed or {}).get(member_id, member_id) for member_id in group.members]
    of_members = [member_tombstones(group_id, member_id) for member_id in member_ids]
    return [
        *(current for current, _, _ in of_members),
        *(target for _, target, _ in of_members),
        modern_record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        *(member for _, _, member in of_members),
        *(regex_tombstone(group_id, regex) for regex in group.resolved),
        modern_record(ConsumerGroupMetadataKey(group_id=group_id), None),
    ]


# --- into state


def replay(group: ConsumerGroup, record: ModernRecord) -> bool:
    """Apply a record to its group. Returns: whether it says that the group is gone."""
    _REPLAY[record.key_type](group, record)
    return record.key_type == _GROUP and record.value is None


def _replay_group(group: ConsumerGroup, record: ModernRecord) -> None:
    if record.value is None:
        group.set_epoch(FIRST_EPOCH, 0)
    else:
        group.set_epoch(record.value.epoch, record.value.metadata_hash)


def _replay_topics(group: ConsumerGroup, record: ModernRecord) -> None:
    """Written until Kafka 4.0, and of no use beside a hash: what differs shows with the next heartbeat."""


def _replay_member(group: ConsumerGroup, record: ModernRecord) -> None:
    member_id, value = record.key.member_id, record.value
    if value is None:
        group.remove_member(member_id)
        return
    classic = value.classic_member_metadata
    group.put_member(
        _member(group, member_id)._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            names=tuple(sorted(set(value.subscribed_topic_names))),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicMember(
                classic.session_timeout_ms,
                tuple((each.name, bytes(each.metadata)) for each in classic.supported_protocols),
            ),
        )
    )


def _replay_target_epoch(group: ConsumerGroup, record: ModernRecord) -> None:
    if record.value is None:
        group.set_assignment_epoch(-1, 0)
    else:
        group.set_assignment_epoch(record.value.assignment_epoch, record.value.assignment_timestamp)


def _replay_target(group: ConsumerGroup, record: ModernRecord) -> None:
    value = record.value
    target = None if value is None else {each.topic_id: frozenset(each.partitions) for each in value.topic_partitions}
    group.set_target(record.key.member_id, target)


def _replay_current(group: ConsumerGroup, record: ModernRecord) -> None:
    member_id, value = record.key.member_id, record.value
    if value is None:
        if member_id in group.members:  # what it has is free; it goes with the tombstone of its own record
            group.move_member(
                group.members[member_id].moved(LEFT, LEFT, MemberState.STABLE, NOTHING_OWNED, NOTHING_OWNED)
            )
        return
    group.move_member(
        _member(group, member_id).moved(
            value.member_epoch,
            value.previous_member_epoch,
            MEMBER_STATES.get(value.state, MemberState.UNKNOWN),
            _owned(value.assigned_partitions, value.member_epoch),
            _owned(value.partitions_pending_revocation, value.member_epoch),
        )
    )


def _owned(topics: Iterable[TopicPartitions], member_epoch: int) -> Owned:
    """Partitions with their epochs; records of Kafka 4.2 and older have none, and the member's stands for them."""
    owned: dict[bytes, dict[int, int]] = {}
    for each in topics:
        epochs = each.assignment_epochs or [member_epoch] * len(each.partitions)
        owned[each.topic_id] = dict(zip(each.partitions, epochs, strict=False))
    return owned or NOTHING_OWNED


def _member(group: ConsumerGroup, member_id: str) -> ConsumerGroupMember:
    return group.members.get(member_id) or ConsumerGroupMember(member_id)


def _replay_regex(group: ConsumerGroup, record: ModernRecord) -> None:
    value = record.value
    resolved = None if value is None else ResolvedRegex(tuple(sorted(value.topics)), value.version, value.timestamp)
    group.set_resolved(record.key.regular_expression, resolved)


_GROUP = 3
_REPLAY: dict[int, Callable[[ConsumerGroup, ModernRecord], None]] = {
    _GROUP: _replay_group,
    4: _replay_topics,
    5: _replay_member,
    6: _replay_target_epoch,
    7: _replay_target,
    8: _replay_current,
    16: _replay_regex,
}
