"""Members of a consumer group that speak the classic protocol: while a group migrates, both kinds are in it (KIP-848).

Called by consumer.py. To such a member the coordinator is the leader: it joins, hears at once which generation (its
member epoch) it is in, and its SyncGroup brings what it may own. A rebalance is a heartbeat that says
REBALANCE_IN_PROGRESS, as it knows it. Behaviour and error codes are Apache Kafka 4.4's.

Unlike Kafka: metadata that is no ConsumerProtocolSubscription is INCONSISTENT_GROUP_PROTOCOL, not UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.groups import migration
from kbroker.groups.consumer_group import NOTHING_OWNED, ClassicMember, ConsumerGroup, ConsumerGroupMember, Owned
from kbroker.groups.consumer_records import group_tombstones
from kbroker.groups.group import CONSUMER
from kbroker.groups.kinds import refuse_join, refuse_sync
from kbroker.groups.modern import NOTHING, MemberState
from protocol.errors import ErrorCode, KafkaError
from protocol.message import DecodeError
from protocol.messages.embedded import ConsumerProtocolSubscription
from protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.stored import decode_versioned

if TYPE_CHECKING:
    from kbroker.coordinator import Caller, Operation
    from kbroker.groups.consumer import ConsumerGroups
    from kbroker.groups.reconciliation import Reported
    from kbroker.groups.records import GroupsRecord
    from protocol.message import Message

NEEDS_MEMBER_ID_SINCE = 4  # JoinGroup version, KIP-394


def join(
    kind: ConsumerGroups, operation: Operation, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller
) -> None:
    """Become a member, or say again what one is; answered when that is committed."""
    try:
        _join(kind, operation, group, request, caller)
    except KafkaError as error:
        refuse_join(operation, caller, error.code, "")


def _join(
    kind: ConsumerGroups, operation: Operation, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller
) -> None:
    config, group_id = kind.shard.config, group.group_id
    names = [protocol.name for protocol in request.protocols]
    instance_id, is_unknown = request.group_instance_id, not request.member_id
    member_id = request.member_id or kind.new_id()
    kind.check_room(group, member_id, instance_id)
    if config.group_consumer_migration_policy == "disabled" or not group.supports_classic(request.protocol_type, names):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if is_unknown and instance_id is None and caller.version >= NEEDS_MEMBER_ID_SINCE:
        refuse_join(operation, caller, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        return
    changes: list[GroupsRecord] = []
    before = _member(kind, group, member_id, instance_id, changes, is_unknown=is_unknown)
    subscription = _subscription(bytes(request.protocols[0].metadata))
    after = before._replace(
        instance_id=before.instance_id if instance_id is None else instance_id,
        rack_id=before.rack_id if subscription.rack_id is None else subscription.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        names=tuple(sorted(set(subscription.topics))),
        regex="",
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=ClassicMember(
            request.session_timeout_ms, tuple((each.name, bytes(each.metadata)) for each in request.protocols)
        ),
    )
    if not kind.shard.memory.admits(caller.client_host, _said_bytes(after) - _said_bytes(before), operation.now_ms):
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
    reported = _owned(kind, subscription)
    holder = group.static_member(instance_id)
    downgrade = None
    if holder is not None and migration.may_replace(group, holder, config):
        after, downgrade = _downgrade(kind, operation, group, before, after, reported, changes)
    else:
        after = kind.advance(operation, group, before, after, reported, changes, by_classic=True)
    response = JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=after.member_epoch,
        protocol_type=CONSUMER,
        protocol_name=names[0],
        leader="",
        member_id=member_id,
        members=[],
    )
    known = dict(group.members)
    if not kind.shard.write_and_reply(operation, changes, caller.call, response, _refused_join(caller, member_id)):
        return
    if holder is not None and holder.member_id != member_id:
        kind.cancel_timers(operation, group_id, holder.member_id, ("session", "rebalance", "join", "sync"))
    if downgrade is not None:
        why = "its last member of the newer protocol was replaced"
        migration.downgraded(operation, kind, group_id, known, why, downgrade)
        return
    group = kind.current(group_id)
    kind.wrote(operation, group, before, after)
    group.rejoining.discard(member_id)
    operation.cancel_timer("join", group_id, member_id)
    operation.cancel_timer("rebalance", group_id, member_id)
    operation.set_timer("session", group_id, request.session_timeout_ms, member_id)
    operation.set_timer("sync", group_id, after.rebalance_timeout_ms, member_id)


def _member(
    kind: ConsumerGroups,
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    changes: list[GroupsRecord],
    *,
    is_unknown: bool,
) -> ConsumerGroupMember:
    """The member that joins, as it was. Raises: KafkaError."""
    if instance_id is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id)
    if is_unknown:
        return kind.joining_static(group, member_id, instance_id, changes, is_classic=True)
    holder = group.static_member(instance_id)
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if holder.member_id != member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
    return holder


def _downgrade(
    kind: ConsumerGroups,
    operation: Operation,
    group: ConsumerGroup,
    before: ConsumerGroupMember,
    after: ConsumerGroupMember,
    reported: Reported,
    changes: list[GroupsRecord],
) -> tuple[ConsumerGroupMember, migration.Downgrade]:
    """The last member of the newer protocol is replaced by this one: the group is a classic one from now on."""
    bump = after.names != before.names or after.regex != before.regex
    epoch = kind.move_epoch(operation, group, before, after, changes, bump=bump)
    rebalances = group.assignment_epoch < epoch
    holder = group.static_member(after.instance_id)
    assert holder is not None, after
    if not rebalances:
        after = kind.lead(group, after, group.assignment_epoch, group.target.get(holder.member_id, NOTHING), reported)
    record = migration.downgrade_to(group, [], after, epoch, kind.shard.image, operation.wall_ms)
    changes += group_tombstones(group, {holder.member_id: after.member_id})
    changes.append(record)
    return after, migration.Downgrade(rebalances, after)


def _said_bytes(member: ConsumerGroupMember) -> int:
    said = 0 if member.classic is None else sum(len(name) + len(data) for name, data in member.classic.protocols)
    return said + sum(map(len, member.names))


def _refused_join(caller: Caller, member_id: str) -> Callable[[ErrorCode], Message]:
    def refused(code: ErrorCode) -> Message:
        return JoinGroupResponse(
            error_code=code,
            protocol_name=None if caller.version >= 7 else "",
            leader="",
            member_id=member_id,
            members=[],
        )

    return refused


def _subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    try:
        return decode_versioned(ConsumerProtocolSubscription, metadata, newer_as_newest=True)
    except DecodeError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error


def _owned(kind: ConsumerGroups, subscription: ConsumerProtocolSubscription) -> Reported:
    image = kind.shard.image
    return {
        image.topic_id(each.topic): tuple(each.partitions)
        for each in subscription.owned_partitions
        if each.topic in image.topics
    }


# --- sync, heartbeat, leave


def sync(
    kind: ConsumerGroups, operation: Operation, group: ConsumerGroup, request: SyncGroupRequest, caller: Caller
) -> None:
    """Hear what one may own."""
    member, code = _validated(group, request.member_id, request.group_instance_id, request.generation_id)
    if member is None or member.classic is None:
        refuse_sync(operation, caller, code)
        return
    name = member.classic.protocols[0][0]
    if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, name):
        refuse_sync(operation, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return
    if group.assignment_epoch > member.member_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _ask_to_rejoin(operation, group, member)
        refuse_sync(operation, caller, ErrorCode.REBALANCE_IN_PROGRESS)
        return
    response = SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=_assignment(kind, member.assigned, member.classic),
    )
    operation.cancel_timer("sync", group.group_id, member.member_id)
    operation.set_timer("session", group.group_id, member.classic.session_timeout_ms, member.member_id)
    kind.shard.write_and_reply(
        operation, [], caller.call, response, lambda code: SyncGroupResponse(error_code=code, assignment=b"")
    )


def _assignment(kind: ConsumerGroups, owned: Owned, classic: ClassicMember) -> bytes:
    return migration.encode_assignment(owned or NOTHING_OWNED, kind.shard.image, classic.protocols[0][1])


def heartbeat(operation: Operation, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
    """Whether the member is to join again: there is a newer target, it has let go of something, or has to."""
    member, code = _validated(group, request.member_id, request.group_instance_id, request.generation_id)
    if member is None or member.classic is None:
        return code
    operation.set_timer("session", group.group_id, member.classic.session_timeout_ms, member.member_id)
    if (
        member.member_epoch < group.assignment_epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
    ):
        _ask_to_rejoin(operation, group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _ask_to_rejoin(operation: Operation, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
    if member.member_id not in group.rejoining:
        group.rejoining.add(member.member_id)
        operation.set_timer("join", group.group_id, member.rebalance_timeout_ms, member.member_id)


def _validated(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerGroupMember | None, ErrorCode]:
    """The classic member that asks; None, and why not."""
    member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
    if member is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if member.member_id != member_id:
        return None, ErrorCode.FENCED_INSTANCE_ID
    if member.classic is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    return (member, ErrorCode.NONE) if generation == member.member_epoch else (None, ErrorCode.ILLEGAL_GENERATION)


def leave(
    kind: ConsumerGroups, operation: Operation, group: ConsumerGroup, who: Iterable[MemberIdentity]
) -> list[ErrorCode]:
    """Members go, by themselves or removed by an administrator, who names a static one by its instance alone."""
    codes: list[ErrorCode] = []
    leaving: dict[str, None] = {}
    for each in who:
        instance_id = each.group_instance_id
        member = group.members.get(each.member_id) if instance_id is None else group.static_member(instance_id)
        if member is None:
            codes.append(ErrorCode.UNKNOWN_MEMBER_ID)
        elif instance_id is not None and each.member_id and member.member_id != each.member_id:
            codes.append(ErrorCode.FENCED_INSTANCE_ID)
        else:
            codes.append(ErrorCode.NONE)
            leaving[member.member_id] = None
    if leaving and kind.fence(operation, group, list(leaving), "left") is not ErrorCode.NONE:
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.NONE else code for code in codes]
    return codes
