"""Classic groups as a kind of groups: what a shard asks, answered by the rules of membership.py.

Called by shard.py alone. Here is who may commit and what is stored of a group; rebalances are membership.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.groups import membership
from kbroker.groups.classic_group import COMPLETING, EMPTY, PREPARING, STABLE, ClassicGroup
from kbroker.groups.effects import GroupStored, StaticMemberReplaced
from kbroker.groups.group import CONSUMER, GroupType
from kbroker.groups.kinds import GroupKind, described, refuse_join
from kbroker.groups.memory import join_bytes
from kbroker.groups.records import GroupRecord
from protocol.errors import ErrorCode
from protocol.messages.groups import DescribedGroup, DescribedGroupMember, HeartbeatRequest, MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.coordinator import Caller, Operation, TimerKey
    from kbroker.groups.records import GroupsRecord, KeyedRecord
    from protocol.messages.group_offsets import OffsetCommitRequest
    from protocol.messages.groups import JoinGroupRequest, SyncGroupRequest
    from protocol.messages.transactions import TxnOffsetCommitRequest


class ClassicGroups(GroupKind):
    """The rules of classic groups, and of those that only keep offsets."""

    TYPE = GroupType.CLASSIC

    def make(self, group_id: str, wall_ms: int | None) -> ClassicGroup:
        """See GroupKind.make."""
        return ClassicGroup(group_id, wall_ms)

    def replay(self, group: ClassicGroup, record: KeyedRecord) -> bool:
        """See GroupKind.replay. A group that is gone keeps its offsets."""
        assert isinstance(record, GroupRecord), record
        group.replay(record.value)
        if self.shard.loading:  # live, a generation begins with its members' answers
            group.state = STABLE if group.members else EMPTY
        return False

    def loaded(self, operation: Operation, group: ClassicGroup) -> None:
        """See GroupKind.loaded."""
        if group.state_since_ms is None and group.protocol_type is None:
            group.state_since_ms = operation.wall_ms
        membership.loaded(operation, group, self.shard.config)

    def unload(self, operation: Operation, group: ClassicGroup) -> None:
        """See GroupKind.unload."""
        membership.unload(operation, group)

    def timer(self, operation: Operation, group: ClassicGroup, key: TimerKey) -> None:
        """See GroupKind.timer."""
        config = self.shard.config
        if key.kind == "session":
            membership.session_timer(operation, group, key.member_id, config)
        elif key.kind == "join":
            membership.join_timer(operation, group, config)
        else:
            assert key.kind == "sync", key
            membership.sync_timer(operation, group, config)

    def committed(self, operation: Operation, note: GroupStored | StaticMemberReplaced) -> None:
        """See GroupKind.committed."""
        group = self._group(note.group_id)
        if group is None:
            return
        if isinstance(note, GroupStored):
            membership.assignment_stored(operation, group, note)
        else:
            membership.static_member_stored(operation, group, note)

    def abandoned(self, operation: Operation, note: GroupStored | StaticMemberReplaced, code: ErrorCode) -> None:
        """See GroupKind.abandoned. At the leadership's end `unload` has answered parked joins and syncs."""
        group = self._group(note.group_id)
        if group is None:
            return
        if isinstance(note, GroupStored):
            membership.assignment_not_stored(operation, group, note, self.shard.config, code)
        else:
            membership.static_member_not_stored(operation, group, note, code)

    def _group(self, group_id: str) -> ClassicGroup | None:
        """The group, unless it is gone, or of another kind by now."""
        group = self.shard.groups.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    # --- members

    def join(self, operation: Operation, group: ClassicGroup | None, request: JoinGroupRequest, caller: Caller) -> None:
        """See membership.join; a newcomer makes the group, a member of a group that is gone must join as a new one."""
        shard = self.shard
        if group is None and request.member_id:
            refuse_join(operation, caller, ErrorCode.UNKNOWN_MEMBER_ID, request.member_id)
            return
        if not shard.memory.admits(caller.client_host, join_bytes(group, request), operation.now_ms):
            refuse_join(operation, caller, ErrorCode.GROUP_MAX_SIZE_REACHED, request.member_id)
            return
        if group is None:
            group = shard.groups[request.group_id] = self.make(request.group_id, operation.wall_ms)
        membership.join(operation, group, request, caller, shard.config, shard.rng)

    def sync(self, operation: Operation, group: ClassicGroup, request: SyncGroupRequest, caller: Caller) -> None:
        """See membership.sync."""
        membership.sync(operation, group, request, caller, self.shard.config)

    def heartbeat(self, operation: Operation, group: ClassicGroup, request: HeartbeatRequest) -> ErrorCode:
        """See membership.heartbeat."""
        who = request.member_id, request.group_instance_id, request.generation_id
        return membership.heartbeat(operation, group, *who)

    def leave(self, operation: Operation, group: ClassicGroup, who: Iterable[MemberIdentity]) -> list[ErrorCode]:
        """See membership.leave."""
        return [membership.leave(operation, group, each, self.shard.config) for each in who]

    def describe(self, group: ClassicGroup, version: int) -> DescribedGroup:
        """See GroupKind.describe."""
        stable = group.state is STABLE
        assert not stable or group.protocol is not None, group.group_id
        answer = described(group.group_id, group.state.value)
        answer.protocol_type = group.protocol_type or ""
        answer.protocol_data = (group.protocol or "") if stable else ""
        answer.members = [
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable and group.protocol is not None else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ]
        return answer

    # --- offsets

    def commit_error(
        self, operation: Operation, group: ClassicGroup, request: OffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind.commit_error; a commit of a member is a sign of life."""
        generation, member_id = request.generation_id_or_member_epoch, request.member_id
        outsider = not member_id and request.group_instance_id is None and generation < 0
        if group.state is EMPTY and generation < 0:
            return ErrorCode.NONE
        if outsider:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = _member_of_generation(group, member_id, request.group_instance_id, generation)
        if error is ErrorCode.NONE and group.state is COMPLETING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if error is ErrorCode.NONE:
            assert group.state in (STABLE, PREPARING), group.state
            session_timeout_ms = group.members[member_id].session_timeout_ms
            operation.set_timer("session", group.group_id, session_timeout_ms, member_id)
        return error

    def transactional_commit_error(
        self, group: ClassicGroup, request: TxnOffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind.transactional_commit_error; old clients do not say who they are."""
        generation, member_id, instance_id = request.generation_id, request.member_id, request.group_instance_id
        if generation < 0 and group.state is EMPTY:
            return ErrorCode.NONE
        if generation >= 0 or member_id or instance_id is not None:
            return _member_of_generation(group, member_id, instance_id, generation)
        return ErrorCode.NONE

    def fetch_error(self, group: ClassicGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
        """See GroupKind.fetch_error: of a classic group anyone may read."""
        return ErrorCode.NONE

    def offset_delete_error(self, group: ClassicGroup) -> ErrorCode:
        """See GroupKind.offset_delete_error: of members that are no consumers it is not known what they read."""
        if group.state is not EMPTY and group.protocol_type != CONSUMER:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    # --- removal

    def delete_error(self, group: ClassicGroup) -> ErrorCode:
        """See GroupKind.delete_error."""
        return ErrorCode.NONE if group.state is EMPTY else ErrorCode.NON_EMPTY_GROUP

    def tombstones(self, group: ClassicGroup) -> list[GroupsRecord]:
        """See GroupKind.tombstones."""
        return [GroupRecord(group.group_id, None)] if group.is_recorded else []

    def forgotten(self, operation: Operation, group: ClassicGroup) -> None:
        """See GroupKind.forgotten."""
        for member_id in group.pending_members:
            operation.cancel_timer("session", group.group_id, member_id)
        group.pending_members.clear()


def _member_of_generation(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    error = membership.member_error(group, member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error
