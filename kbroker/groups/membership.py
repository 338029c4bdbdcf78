"""The rules of classic groups: what a join, a sync, a heartbeat, a leave and a passed deadline do to a group.

Called by shard.py with the group already found. Each function moves the group's rebalance on and leaves its effects in
`operation`; what is to be stored of the group is written through `operation`, and comes into the group by replay alone.
Behaviour and error codes are Apache Kafka 3.9's. Where it forgets a parked call (a client that asks again on a new
connection, a member removed while it waits for its assignment), this broker answers it. KIP-62 (timeouts), KIP-134
(initial delay), KIP-345 (static members), KIP-394 (member ids), KIP-814 (a static leader comes back).
"""

from __future__ import annotations

from kbroker.config import BrokerConfig
from kbroker.config.limits import (
    MEMBER_NAME_LENGTH,
    PENDING_MEMBERS_PER_GROUP,
    PROTOCOLS_PER_MEMBER,
    REBALANCE_WAIT_MS,
)
from kbroker.coordinator import Caller, Operation
from kbroker.groups.classic_group import (
    COMPLETING,
    DEAD,
    EMPTY,
    PREPARING,
    STABLE,
    ClassicGroup,
    Member,
    Protocols,
    elect_protocol,
)
from kbroker.groups.effects import GroupStored, StaticMemberReplaced, append_error
from kbroker.groups.kinds import refuse_join, refuse_sync
from kbroker.groups.records import group_record
from kbroker.ports import Random
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000  # a newcomer cannot send heartbeats; if its join waits longer it has to ask again

SKIPS_ASSIGNMENT_SINCE = 9  # JoinGroup version, KIP-814
NEEDS_MEMBER_ID_SINCE = 4  # JoinGroup version, KIP-394


# --- join


def join(
    operation: Operation,
    group: ClassicGroup,
    request: JoinGroupRequest,
    caller: Caller,
    config: BrokerConfig,
    rng: Random,
) -> None:
    """Take a member into the next generation; it is answered when that begins."""
    member_id = request.member_id
    names = {protocol.name for protocol in request.protocols}
    if not _has_room(group, member_id, config.group_max_size):
        _forget(operation, group, member_id)
        refuse_join(operation, caller, ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif not group.supports(request.protocol_type, names) or len(request.protocols) > PROTOCOLS_PER_MEMBER:
        refuse_join(operation, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
    elif not member_id:
        _newcomer(operation, group, request, caller, config, rng)
    elif member_id in group.pending_members and request.group_instance_id is None:
        _add_member(operation, group, _member(member_id, request, caller), request.protocol_type, caller, config)
    else:
        _rejoin(operation, group, request, caller, config)
    _complete_join_if_everybody_is_there(operation, group, config)


def _has_room(group: ClassicGroup, member_id: str, most: int) -> bool:
    if group.state is EMPTY:
        return True
    if group.state is PREPARING:  # counted by who waits, so that the last to come back is the one too many
        return member_id in group.joining or len(group.joining) < most
    return member_id in group.members or len(group.members) < most


def _newcomer(
    operation: Operation,
    group: ClassicGroup,
    request: JoinGroupRequest,
    caller: Caller,
    config: BrokerConfig,
    rng: Random,
) -> None:
    instance_id = request.group_instance_id
    name = caller.client_id if instance_id is None else instance_id
    new_id = f"{name[:MEMBER_NAME_LENGTH]}-{_uuid(rng)}"
    if instance_id is not None and instance_id in group.static:
        _replace_static_member(operation, group, new_id, request, caller, config)
    elif instance_id is None and caller.version >= NEEDS_MEMBER_ID_SINCE:
        if len(group.pending_members) >= PENDING_MEMBERS_PER_GROUP:
            _forget(operation, group, next(iter(group.pending_members)))
        group.pending_members[new_id] = None
        operation.set_timer("session", group.group_id, request.session_timeout_ms, new_id)
        refuse_join(operation, caller, ErrorCode.MEMBER_ID_REQUIRED, new_id)
    else:
        _add_member(operation, group, _member(new_id, request, caller), request.protocol_type, caller, config)


def _uuid(rng: Random) -> str:
    digits = rng.token(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _member(member_id: str, request: JoinGroupRequest, caller: Caller) -> Member:
    return Member(
        member_id,
        _protocols(request),
        instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
    )


def _protocols(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, bytes(protocol.metadata)) for protocol in request.protocols]


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _add_member(
    operation: Operation, group: ClassicGroup, member: Member, protocol_type: str, caller: Caller, config: BrokerConfig
) -> None:
    if group.state is PREPARING and group.generation == 0:
        group.extend_join = True
    if not group.members:
        group.protocol_type = protocol_type
    member.is_new = True
    group.add(member)
    group.joining[member.member_id] = caller
    operation.set_timer("session", group.group_id, NEW_MEMBER_JOIN_TIMEOUT_MS, member.member_id)
    if group.may_rebalance:
        prepare_rebalance(operation, group, config, f"new member {member.member_id}")


def _rejoin(
    operation: Operation, group: ClassicGroup, request: JoinGroupRequest, caller: Caller, config: BrokerConfig
) -> None:
    """A known member joins: part of a rebalance, the cause of one, or a question about the present generation."""
    member_id = request.member_id
    error = member_error(group, member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return refuse_join(operation, caller, error, member_id)
    member = group.members[member_id]
    protocols = _protocols(request)
    changed = protocols != member.protocols
    leads = group.leader == member_id
    if group.state is COMPLETING and not changed:  # it may have missed the answer to its first join
        return _tell_generation(operation, group, member_id, caller)
    if group.state is STABLE and not changed and not leads:  # the leader may know of topics that changed
        return _tell_generation(operation, group, member_id, caller)
    assert group.state in (PREPARING, COMPLETING, STABLE), group.state
    group.update(member, protocols, request.session_timeout_ms, _rebalance_timeout_ms(request))
    _park_join(operation, group, member_id, caller)
    if group.may_rebalance:
        why = "changed its protocols" if changed else "leads and joins again"
        prepare_rebalance(operation, group, config, f"member {member_id} {why}: {request.reason or 'no reason given'}")
    return None


def _replace_static_member(
    operation: Operation,
    group: ClassicGroup,
    new_id: str,
    request: JoinGroupRequest,
    caller: Caller,
    config: BrokerConfig,
) -> None:
    """A static member has come back without its member id: it gets a new one, and the holder of the old is fenced."""
    instance_id = request.group_instance_id
    assert instance_id is not None
    old_id = group.static[instance_id]
    member, old_leader = group.members[old_id], group.leader
    assert old_leader is not None, group.group_id
    newcomer = _member(new_id, request, caller)
    newcomer.client_id, newcomer.client_host, newcomer.assignment = (
        member.client_id,
        member.client_host,
        member.assignment,
    )
    members = [newcomer if each is member else each for each in group.members.values()]
    keeps_assignment = group.state is STABLE and elect_protocol(members) == group.protocol
    if keeps_assignment:
        leader = new_id if old_leader == old_id else old_leader
        record = group_record(group, members, leader, {each.member_id: each.assignment for each in members})
        error = operation.write([record], StaticMemberReplaced(group.group_id, instance_id, new_id, old_leader))
        if error is not ErrorCode.NONE:
            return refuse_join(operation, caller, append_error(error))
    else:
        group.rename(old_id, new_id)
    _answer_join(operation, group, old_id, ErrorCode.FENCED_INSTANCE_ID)
    _answer_sync(operation, group, old_id, ErrorCode.FENCED_INSTANCE_ID)
    group.update(member, newcomer.protocols, newcomer.session_timeout_ms, newcomer.rebalance_timeout_ms)
    operation.cancel_timer("session", group.group_id, old_id)
    _restart_session(operation, group, member)
    group.joining[new_id] = caller
    if not keeps_assignment and group.may_rebalance:  # in COMPLETING too: the leader assigns to the old id
        prepare_rebalance(operation, group, config, f"static member {instance_id} is now {new_id}")
    return None


def static_member_stored(operation: Operation, group: ClassicGroup, note: StaticMemberReplaced) -> None:
    """A static member's new id is committed: tell it that its old assignment holds."""
    caller = group.joining.get(note.new_member_id)
    if group.state is not STABLE or caller is None or group.static.get(note.instance_id) != note.new_member_id:
        return  # a rebalance or yet another newcomer has overtaken it; its call belongs to that
    del group.joining[note.new_member_id]
    if caller.version >= SKIPS_ASSIGNMENT_SINCE:
        leads = group.leader == note.new_member_id
        _tell_generation(operation, group, note.new_member_id, caller, skip_assignment=leads)
    else:  # named the old leader, it does not take itself for one and compute an assignment that would not be used
        _tell_generation(operation, group, note.new_member_id, caller, leader=note.old_leader)
    _restart_session(
        operation, group, group.members[note.new_member_id]
    )  # it may have run out while the call was parked


def static_member_not_stored(
    operation: Operation, group: ClassicGroup, note: StaticMemberReplaced, code: ErrorCode
) -> None:
    """It took too long: the member asks again. It keeps the new id, which may be committed yet."""
    caller = group.joining.get(note.new_member_id)
    if group.state is STABLE and caller is not None:
        del group.joining[note.new_member_id]
        refuse_join(operation, caller, append_error(code))
        _restart_session(operation, group, group.members[note.new_member_id])  # as above


# --- rebalance


def prepare_rebalance(operation: Operation, group: ClassicGroup, config: BrokerConfig, reason: str) -> None:
    """Ask all members to join again. An empty group first waits a while for more members to come."""
    if group.state is COMPLETING:
        _fail_syncs(operation, group, ErrorCode.REBALANCE_IN_PROGRESS)
    _expect_no_sync(operation, group)
    was_empty = group.state is EMPTY
    group.become(PREPARING, operation.wall_ms)
    operation.event(group.group_id, f"rebalances after generation {group.generation}: {reason}", is_detail=True)
    if was_empty:
        delay_ms = config.group_initial_rebalance_delay_ms
        _wait_for_more_members(operation, group, config, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    else:
        operation.set_timer("join", group.group_id, group.rebalance_timeout_ms)
        _complete_join_if_everybody_is_there(operation, group, config)


def _wait_for_more_members(
    operation: Operation, group: ClassicGroup, config: BrokerConfig, delay_ms: int, left_ms: int
) -> None:
    """Let the initial delay run; it may be extended by up to `left_ms` afterwards."""
    group.extend_join = False
    group.initial_delay_ms = delay_ms
    group.initial_left_ms = left_ms
    if delay_ms <= 0:
        _complete_join(operation, group, config)
    else:
        operation.set_timer("join", group.group_id, delay_ms)


def join_timer(operation: Operation, group: ClassicGroup, config: BrokerConfig) -> None:
    """The time to join is over; unless it was the initial delay, and a member came during it."""
    if group.state is not PREPARING:
        return
    left_ms = group.initial_left_ms
    if left_ms and group.extend_join:
        delay_ms = min(config.group_initial_rebalance_delay_ms, left_ms)
        _wait_for_more_members(operation, group, config, delay_ms, max(left_ms - group.initial_delay_ms, 0))
    else:
        _complete_join(operation, group, config)


def _complete_join_if_everybody_is_there(operation: Operation, group: ClassicGroup, config: BrokerConfig) -> None:
    if group.state is PREPARING and group.initial_left_ms is None and group.everybody_joined:
        _complete_join(operation, group, config)


def _complete_join(operation: Operation, group: ClassicGroup, config: BrokerConfig) -> None:
    """Begin the next generation with those who joined, and with static members, who may be late."""
    assert group.state is PREPARING, group.state
    group.initial_left_ms = None
    late = [
        each.member_id
        for each in group.members.values()
        if each.member_id not in group.joining and each.instance_id is None
    ]
    for member_id in late:
        _forget(operation, group, member_id)
    if not group.elect_joined_leader() and group.members:  # only static members are left, none of them here
        operation.set_timer("join", group.group_id, max(group.rebalance_timeout_ms, REBALANCE_WAIT_MS))
        return
    operation.cancel_timer("join", group.group_id)
    group.next_generation(operation.wall_ms)
    if group.state is EMPTY:
        operation.event(group.group_id, f"is empty in generation {group.generation}")
        error = operation.write([group_record(group, (), None, {})], None)
        if error is not ErrorCode.NONE:  # the log still says who the members were; their sessions end there as well
            operation.event(group.group_id, f"could not be written to __consumer_offsets: {error.name}")
        return
    count = len(group.members)
    operation.event(group.group_id, f"begins generation {group.generation} with {count} member{'s' * (count != 1)}")
    for member in group.members.values():
        caller = group.joining.pop(member.member_id, None)
        if caller is not None:
            _tell_generation(operation, group, member.member_id, caller)
        _restart_session(operation, group, member)
        member.is_new = False
        group.unsynced.add(member.member_id)
    assert not group.joining, group.joining
    operation.set_timer("sync", group.group_id, group.rebalance_timeout_ms)


# --- sync


def sync(
    operation: Operation, group: ClassicGroup, request: SyncGroupRequest, caller: Caller, config: BrokerConfig
) -> None:
    """Hand a member its assignment: at once in a stable group, else when the leader's has been committed."""
    member_id = request.member_id
    error = _sync_error(group, request)
    if error is not ErrorCode.NONE:
        return refuse_sync(operation, caller, error)
    _synced(operation, group, member_id)
    if group.state is STABLE:
        operation.reply(caller.call, _assignment(group, group.members[member_id]))
        return _restart_session(operation, group, group.members[member_id])
    assert group.state is COMPLETING, group.state
    _answer_sync(operation, group, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.syncing[member_id] = caller
    if member_id == group.leader and group.storing != group.generation:
        given = {each.member_id: bytes(each.assignment) for each in request.assignments}
        assignments = {each: given.get(each, b"") for each in group.members}
        _store_assignment(operation, group, assignments, config)
    return None


def _store_assignment(
    operation: Operation, group: ClassicGroup, assignments: dict[str, bytes], config: BrokerConfig
) -> None:
    """Write what the leader has assigned; if that cannot be, begin again."""
    record = group_record(group, group.members.values(), group.leader, assignments)
    note = GroupStored(group.group_id, group.generation)
    error = operation.write([record], note)
    if error is ErrorCode.NONE:
        group.storing = group.generation
    else:
        assignment_not_stored(operation, group, note, config, error)


def assignment_not_stored(
    operation: Operation, group: ClassicGroup, note: GroupStored, config: BrokerConfig, error: ErrorCode
) -> None:
    """The leader's assignment was refused by the log, or waited too long for its replicas: begin again."""
    if group.state is not COMPLETING or group.generation != note.generation:
        return  # a rebalance has overtaken it
    group.storing = None
    _fail_syncs(operation, group, append_error(error))
    prepare_rebalance(operation, group, config, f"its assignment could not be stored: {error.name}")


def _sync_error(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = member_error(group, request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for wanted, present in ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol)):
        if wanted is not None and wanted != present:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE


def assignment_stored(operation: Operation, group: ClassicGroup, note: GroupStored) -> None:
    """The leader's assignment is committed: hand it out."""
    if group.state is not COMPLETING or group.generation != note.generation:
        return  # a rebalance has overtaken it
    group.storing = None
    group.become(STABLE, operation.wall_ms)
    for member in group.members.values():
        caller = group.syncing.pop(member.member_id, None)
        if caller is not None:
            operation.reply(caller.call, _assignment(group, member))
            _restart_session(operation, group, member)
    operation.event(group.group_id, f"is stable in generation {group.generation}", is_detail=True)


def sync_timer(operation: Operation, group: ClassicGroup, config: BrokerConfig) -> None:
    """Members that have not come for their assignment in time are out."""
    if group.state not in (COMPLETING, STABLE) or not group.unsynced:
        return
    gone = [member_id for member_id in group.members if member_id in group.unsynced]
    for member_id in gone:
        _forget(operation, group, member_id)
    prepare_rebalance(operation, group, config, f"{', '.join(gone)} did not come for an assignment")


def _synced(operation: Operation, group: ClassicGroup, member_id: str) -> None:
    if member_id in group.unsynced:
        group.unsynced.remove(member_id)
        if not group.unsynced:
            operation.cancel_timer("sync", group.group_id)


def _expect_no_sync(operation: Operation, group: ClassicGroup) -> None:
    if group.unsynced:
        group.unsynced.clear()
        operation.cancel_timer("sync", group.group_id)


def _fail_syncs(operation: Operation, group: ClassicGroup, error: ErrorCode) -> None:
    for member in group.members.values():
        if member.member_id in group.syncing:
            _answer_sync(operation, group, member.member_id, error)
            _restart_session(operation, group, member)


# --- heartbeat, leave, expiry


def heartbeat(
    operation: Operation, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """A member is alive; the code tells it whether to join again."""
    error = member_error(group, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    assert group.state in (PREPARING, COMPLETING, STABLE), group.state
    _restart_session(operation, group, group.members[member_id])
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is PREPARING else ErrorCode.NONE


def leave(operation: Operation, group: ClassicGroup, who: MemberIdentity, config: BrokerConfig) -> ErrorCode:
    """Take a member out at once. An admin client names a static member by its instance alone (empty member id)."""
    member_id, instance_id = who.member_id, who.group_instance_id
    if not member_id:
        member_id = group.static.get(instance_id, "") if instance_id is not None else ""
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif member_id in group.pending_members:
        _forget(operation, group, member_id)
        _complete_join_if_everybody_is_there(operation, group, config)
        return ErrorCode.NONE
    else:
        error = member_error(group, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
    _remove_member(operation, group, member_id, config, f"left: {who.reason or 'no reason given'}")
    return ErrorCode.NONE


def session_timer(operation: Operation, group: ClassicGroup, member_id: str, config: BrokerConfig) -> None:
    """A member, or an id handed out, has been silent for its session. One whose call is parked is not silent."""
    if member_id in group.pending_members:
        group.remove(member_id)
        _complete_join_if_everybody_is_there(operation, group, config)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    waits = member_id in group.joining or member_id in group.syncing
    if member.is_new or not waits:
        _remove_member(operation, group, member_id, config, "sent no heartbeat within its session timeout")


def _remove_member(
    operation: Operation, group: ClassicGroup, member_id: str, config: BrokerConfig, reason: str
) -> None:
    _forget(operation, group, member_id)
    if group.state in (STABLE, COMPLETING):
        prepare_rebalance(operation, group, config, f"member {member_id} {reason}")
    else:
        operation.event(group.group_id, f"member {member_id} {reason}", is_detail=True)
        _complete_join_if_everybody_is_there(operation, group, config)


def _forget(operation: Operation, group: ClassicGroup, member_id: str) -> None:
    """Drop a member, its parked calls (it has to join again if it still lives) and its timer."""
    if member_id in group.members or member_id in group.pending_members:
        _answer_join(operation, group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        _answer_sync(operation, group, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        operation.cancel_timer("session", group.group_id, member_id)
        group.remove(member_id)


def unload(operation: Operation, group: ClassicGroup) -> None:
    """Another broker leads the group's partition now: send all members there."""
    for member_id in list(group.members):
        _answer_join(operation, group, member_id, ErrorCode.NOT_COORDINATOR)
        _answer_sync(operation, group, member_id, ErrorCode.NOT_COORDINATOR)
        operation.cancel_timer("session", group.group_id, member_id)
    for member_id in group.pending_members:
        operation.cancel_timer("session", group.group_id, member_id)
    operation.cancel_timer("join", group.group_id)
    operation.cancel_timer("sync", group.group_id)
    assert not group.joining, group.joining
    assert not group.syncing, group.syncing
    group.become(DEAD, operation.wall_ms)


def converted(operation: Operation, group: ClassicGroup) -> None:
    """The group is of another kind now: its members ask again, and what was set for it as a classic one is over."""
    for member_id in list(group.members):
        _answer_join(operation, group, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        _answer_sync(operation, group, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    for member_id in group.pending_members:
        operation.cancel_timer("session", group.group_id, member_id)
    operation.cancel_timer("join", group.group_id)
    operation.cancel_timer("sync", group.group_id)


def loaded(operation: Operation, group: ClassicGroup, config: BrokerConfig) -> None:
    """The group has been read from the log: its members' sessions start again."""
    assert group.state in (STABLE, EMPTY), group.state
    for member in group.members.values():
        _restart_session(operation, group, member)
    if len(group.members) > config.group_max_size:
        prepare_rebalance(
            operation, group, config, f"more than group.max.size={config.group_max_size} members were loaded"
        )


# --- answers


def member_error(group: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    """Whether the sender is who it says: of the two holders of an instance id the older one is fenced (KIP-345)."""
    if instance_id is not None:
        current = group.static.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _tell_generation(
    operation: Operation,
    group: ClassicGroup,
    member_id: str,
    caller: Caller,
    *,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> None:
    """Answer a join with the present generation; its leader learns who the members are.

    leader: named instead of the real one, so that the receiver does not take itself for it.
    """
    assert group.protocol is not None, group.group_id
    assert group.leader is not None, group.group_id
    members = []
    if member_id == group.leader and leader is None:
        members = [
            JoinGroupResponseMember(
                member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(group.protocol)
            )
            for each in group.members.values()
        ]
    operation.reply(
        caller.call,
        JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader if leader is None else leader,
            skip_assignment=skip_assignment,
            member_id=member_id,
            members=members,
        ),
    )


def _assignment(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def _park_join(operation: Operation, group: ClassicGroup, member_id: str, caller: Caller) -> None:
    """Park a join; one parked before for the same member came over a connection that its client has given up."""
    _answer_join(operation, group, member_id, ErrorCode.REBALANCE_IN_PROGRESS)
    group.joining[member_id] = caller


def _answer_join(operation: Operation, group: ClassicGroup, member_id: str, error: ErrorCode) -> None:
    caller = group.joining.pop(member_id, None)
    if caller is not None:
        shown = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member_id
        refuse_join(operation, caller, error, shown)


def _answer_sync(operation: Operation, group: ClassicGroup, member_id: str, error: ErrorCode) -> None:
    caller = group.syncing.pop(member_id, None)
    if caller is not None:
        refuse_sync(operation, caller, error)


def _restart_session(operation: Operation, group: ClassicGroup, member: Member) -> None:
    operation.set_timer("session", group.group_id, member.session_timeout_ms, member.member_id)
