"""What the log is told of a Streams group: its records, made of state and decisions.

Made for membership.py, which has them written; applied by `StreamsGroup.replay`. Formats: Apache Kafka 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.groups.records import ModernRecord, modern_record
from kbroker.groups.streams.group import StreamsGroup
from kbroker.groups.streams.reconciliation import Current
from kbroker.groups.streams.tasks import Task, Tasks, by_subtopology, to_ids
from protocol.messages.stored_streams_groups import (
    CurrentTaskIds,
    LastAssignmentConfig,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    StreamsGroupTopologyValue,
    TargetTaskIds,
)


def epoch_record(
    group: StreamsGroup,
    epoch: int,
    metadata_hash: int | None = None,
    validated_epoch: int | None = None,
    configs: Mapping[str, str] | None = None,
) -> ModernRecord:
    """A new epoch of the group. The rest: None for what it was."""
    configs = group.last_configs if configs is None else configs
    stored, failed = group.description_epochs
    value = StreamsGroupMetadataValue(
        epoch=epoch,
        metadata_hash=group.metadata_hash if metadata_hash is None else metadata_hash,
        validated_topology_epoch=group.validated_epoch if validated_epoch is None else validated_epoch,
        last_assignment_configs=[LastAssignmentConfig(key=key, value=configs[key]) for key in sorted(configs)],
        stored_description_topology_epoch=stored,
        failed_description_topology_epoch=failed,
    )
    return modern_record(StreamsGroupMetadataKey(group_id=group.group_id), value)


def topology_record(group_id: str, topology: StreamsGroupTopologyValue) -> ModernRecord:
    """The topology of the group."""
    return modern_record(StreamsGroupTopologyKey(group_id=group_id), topology)


def member_record(group_id: str, member_id: str, about: StreamsGroupMemberMetadataValue) -> ModernRecord:
    """Who a member is."""
    return modern_record(StreamsGroupMemberMetadataKey(group_id=group_id, member_id=member_id), about)


def target_epoch_record(group_id: str, epoch: int, assigned_ms: int) -> ModernRecord:
    """The target assignment is that of an epoch. assigned_ms: 0 if it was not computed."""
    value = StreamsGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=assigned_ms)
    return modern_record(StreamsGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def target_record(group_id: str, member_id: str, target: Tasks) -> ModernRecord:
    """A member's target assignment."""
    value = StreamsGroupTargetAssignmentMemberValue(
        active_tasks=to_ids(target.active, TargetTaskIds),
        standby_tasks=to_ids(target.standby, TargetTaskIds),
        warmup_tasks=to_ids(target.warmup, TargetTaskIds),
    )
    return modern_record(StreamsGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def current_record(group_id: str, member_id: str, current: Current) -> ModernRecord:
    """What a member has."""
    tasks, pending = current.tasks, current.pending
    value = StreamsGroupCurrentMemberAssignmentValue(
        member_epoch=current.epoch,
        previous_member_epoch=current.previous_epoch,
        state=current.state,
        active_tasks=_with_epochs(tasks.active, current.since),
        standby_tasks=to_ids(tasks.standby, CurrentTaskIds),
        warmup_tasks=to_ids(tasks.warmup, CurrentTaskIds),
        active_tasks_pending_revocation=_with_epochs(pending.active, current.since),
        standby_tasks_pending_revocation=to_ids(pending.standby, CurrentTaskIds),
        warmup_tasks_pending_revocation=to_ids(pending.warmup, CurrentTaskIds),
    )
    return modern_record(StreamsGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), value)


def _with_epochs(tasks: frozenset[Task], since: Mapping[Task, int]) -> list[CurrentTaskIds]:
    return [
        CurrentTaskIds(
            subtopology_id=subtopology_id,
            partitions=partitions,
            assignment_epochs=[since[subtopology_id, partition] for partition in partitions],
        )
        for subtopology_id, partitions in by_subtopology(tasks).items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[ModernRecord]:
    """A member is gone."""
    return [
        modern_record(kind(group_id=group_id, member_id=member_id), None)
        for kind in (
            StreamsGroupCurrentMemberAssignmentKey,
            StreamsGroupTargetAssignmentMemberKey,
            StreamsGroupMemberMetadataKey,
        )
    ]


def group_tombstones(group_id: str) -> list[ModernRecord]:
    """A group without members is gone."""
    kinds = StreamsGroupTargetAssignmentMetadataKey, StreamsGroupMetadataKey, StreamsGroupTopologyKey
    return [modern_record(kind(group_id=group_id), None) for kind in kinds]
