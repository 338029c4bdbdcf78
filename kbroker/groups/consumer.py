"""Consumer groups as a kind of groups (KIP-848): heartbeats, epochs, target assignments, timers.

Called by shard.py, and by the coordinator for ConsumerGroupHeartbeat and ConsumerGroupDescribe. An operation works out
the records of what is to change, has the shard write them in one batch, and answers when they are committed. How a
member is led to its target is reconciliation.py's, who gets what an assignor's (assignors.py); members that speak the
classic protocol are classic_members.py's, groups that change their protocol migration.py's, and expressions that
stand for topics regexes.py's. Behaviour and error codes are Apache Kafka 4.4's.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from kbroker.groups import classic_members, migration, regexes
from kbroker.groups.assignors import Assignor, GroupSpec, MemberSpec, load_assignors
from kbroker.groups.classic_group import ClassicGroup
from kbroker.groups.consumer_group import (
    JOINING,
    LEFT,
    LEFT_FOR_A_WHILE,
    NO_PARTITIONS,
    NOTHING_OWNED,
    ConsumerGroup,
    ConsumerGroupMember,
    Owned,
)
from kbroker.groups.consumer_records import (
    current_record,
    epoch_record,
    group_tombstones,
    member_record,
    member_tombstones,
    regex_tombstone,
    replay,
    target_epoch_record,
    target_record,
)
from kbroker.groups.group import Group, GroupType
from kbroker.groups.modern import (
    MEMBER_BYTES,
    NOTHING,
    Assignment,
    Bounded,
    MemberState,
    ModernGroups,
    metadata_hash,
    partition_count,
    racks,
)
from kbroker.groups.reconciliation import Goal, Reported, reconcile
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import Assignment as ToldAssignment
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedGroup,
    DescribedTopicPartitions,
    Member,
    TopicPartitions,
)

if TYPE_CHECKING:
    from kbroker.coordinator import Caller, Operation, TimerKey
    from kbroker.groups.records import GroupsRecord, KeyedRecord
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataCache, MetadataDelta
    from protocol.messages.group_offsets import OffsetCommitRequest
    from protocol.messages.groups import HeartbeatRequest, JoinGroupRequest, MemberIdentity, SyncGroupRequest
    from protocol.messages.transactions import TxnOffsetCommitRequest

MEMBER_EPOCHS_SINCE = 9  # OffsetCommit: a member of KIP-848 cannot speak an older one
STALE_EPOCH_SINCE = 6  # TxnOffsetCommit; older clients hear ILLEGAL_GENERATION
OWN_IDS_SINCE = 1  # ConsumerGroupHeartbeat: members make up their ids
TIMERS = ("session", "rebalance", "join", "sync")


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """The rules of consumer groups."""

    TYPE = GroupType.CONSUMER

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self.assignors: dict[str, Assignor] = load_assignors(shard.config.group_consumer_assignors)
        self.regexes = regexes.Regexes(self)
        config = shard.config
        self.session_timeout = Bounded(
            "consumer.session.timeout.ms",
            config.group_consumer_session_timeout_ms,
            config.group_consumer_min_session_timeout_ms,
            config.group_consumer_max_session_timeout_ms,
        )
        self.heartbeat_interval = Bounded(
            "consumer.heartbeat.interval.ms",
            config.group_consumer_heartbeat_interval_ms,
            config.group_consumer_min_heartbeat_interval_ms,
            config.group_consumer_max_heartbeat_interval_ms,
        )
        self.assignment_interval = Bounded(
            "consumer.assignment.interval.ms",
            config.group_consumer_assignment_interval_ms,
            config.group_consumer_min_assignment_interval_ms,
            config.group_consumer_max_assignment_interval_ms,
        )

    @property
    def default_assignor(self) -> str:
        """What a group is assigned by whose members do not ask for one."""
        return next(iter(self.assignors))

    # --- heartbeats

    def consumer_heartbeat(
        self,
        operation: Operation,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        may_describe: Callable[[str], bool],
    ) -> None:
        """ConsumerGroupHeartbeat; answered when what it changed is committed."""
        if self._is_quiet(request, caller):
            self._lives_on(operation, request, caller)
            return
        try:
            _check(request, caller.version, self.assignors)
            if request.member_epoch in (LEFT, LEFT_FOR_A_WHILE):
                self._leave(operation, request, caller)
            else:
                self._beat(operation, request, caller, may_describe)
        except KafkaError as error:
            operation.reply(caller.call, refused(error.code, error.message))

    def _is_quiet(self, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> bool:
        """Whether a member says no more than that it is alive, and there is nothing to tell it: of most heartbeats.

        What `_beat` would come to if nothing of what it looks at has changed.
        """
        group = self.shard.groups.get(request.group_id)
        if request.topic_partitions is not None or not isinstance(group, ConsumerGroup):
            return False
        member, epoch = group.members.get(request.member_id), request.member_epoch
        if member is None or not 0 < epoch == member.member_epoch == group.assignment_epoch == group.group_epoch:
            return False
        return (
            member.state is MemberState.STABLE
            and group.refresh_ms is None
            and not group.regexes
            and (request.instance_id is None or group.static_member(request.instance_id) is member)
            and _says_nothing_of_itself(request, member, caller)
        )

    def _lives_on(self, operation: Operation, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> None:
        """Answer a quiet heartbeat."""
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(request.group_id),
            assignment=None,
        )
        group = self.current(request.group_id)
        self.live_on(operation, group, request.member_id, caller.call, response, refused)

    def _beat(
        self,
        operation: Operation,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        may_describe: Callable[[str], bool],
    ) -> None:
        joins = request.member_epoch == JOINING
        changes: list[GroupsRecord] = []
        group, upgraded = self._group_of(operation, request.group_id, changes, create=joins)
        self.check_room(group, request.member_id, request.instance_id)
        member_id = request.member_id or self.new_id()
        reported = _reported(request.topic_partitions)
        before = self._member_of(group, member_id, request, reported, changes)
        after = before if _says_nothing_of_itself(request, before, caller) else _as_it_says(request, before, caller)
        self._check_memory(operation, group, before, after, caller)
        after = self.advance(operation, group, before, after, reported, changes, by_classic=False)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(request.group_id),
            assignment=None,
        )
        if joins or _says_all(request) or _owns_differently(before, after):
            response.assignment = _told(after.assigned)
        if not self.shard.write_and_reply(operation, changes, caller.call, response, refused):
            return
        group = self.current(request.group_id)
        if upgraded is not None:
            migration.left_behind(operation, upgraded, group)
            operation.event(
                request.group_id, f"is a consumer group now: member {member_id} of that protocol has joined"
            )
        self.wrote(operation, group, before, after)
        self.restart_session(operation, request.group_id, member_id)
        self.regexes.maybe_resolve(operation, group, may_describe)

    def _group_of(
        self,
        operation: Operation,
        group_id: str,
        changes: list[GroupsRecord],
        *,
        create: bool,
        called: str = "Consumer group",
    ) -> tuple[ConsumerGroup, ClassicGroup | None]:
        """The group, as it is or as it is about to become one; and the classic group that it was.

        Raises: KafkaError GROUP_ID_NOT_FOUND.
        """
        found = self.shard.groups.get(group_id)
        if found is None or found.is_going:
            if create:
                return ConsumerGroup(group_id), None
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"{called} {group_id} not found.")
        if isinstance(found, ConsumerGroup):
            return found, None
        if not create or not isinstance(found, ClassicGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if not found.members:
            changes += self.shard.kind_of(found).tombstones(found)
            return ConsumerGroup(group_id), found
        group = migration.upgrade(found, self.shard.config, self.shard.image)
        changes += self.shard.kind_of(found).tombstones(found)
        changes += migration.upgrade_records(group)
        return group, found

    def _member_of(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        reported: Reported | None,
        changes: list[GroupsRecord],
    ) -> ConsumerGroupMember:
        """The member that sends a heartbeat, as it was. Raises: KafkaError for one that may not."""
        epoch, joins = request.member_epoch, request.member_epoch == JOINING
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and not joins:
                text = f"Member {member_id} is not a member of group {group.group_id}."
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
            member = member or ConsumerGroupMember(member_id)
            check_epoch(member, epoch, reported)
            return member
        holder = group.static_member(request.instance_id)
        if joins:
            return self.joining_static(group, member_id, request.instance_id, changes, is_classic=False)
        check_holder(holder, member_id, request.instance_id)
        assert holder is not None, request.instance_id
        check_epoch(holder, epoch, reported)
        return holder

    def joining_static(
        self, group: ConsumerGroup, member_id: str, instance_id: str, changes: list[GroupsRecord], *, is_classic: bool
    ) -> ConsumerGroupMember:
        """A static member joins: a new one, or it takes the place of the holder of its instance id.

        Raises: KafkaError UNRELEASED_INSTANCE_ID while the holder has not left.
        """
        holder = group.static_member(instance_id)
        if holder is None:
            return group.members.get(member_id) or ConsumerGroupMember(member_id)
        if not is_classic and holder.classic is None and holder.member_epoch != LEFT_FOR_A_WHILE:
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {holder.member_id} member.",
            )
        member = holder._replace(member_id=member_id, member_epoch=0, previous_epoch=0)
        group_id = group.group_id
        changes += member_tombstones(group_id, holder.member_id)
        changes.append(member_record(group_id, member))
        changes.append(target_record(group_id, member_id, group.target.get(holder.member_id, NOTHING)))
        changes.append(current_record(group_id, member))
        return member

    def check_room(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> None:
        """Raises: KafkaError GROUP_MAX_SIZE_REACHED if the group has no room for a newcomer."""
        most = self.shard.config.group_consumer_max_size
        if instance_id is not None and instance_id in group.static:
            return
        if len(group.members) >= most and member_id not in group.members:
            text = f"The consumer group has reached its maximum capacity of {most} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def _check_memory(
        self,
        operation: Operation,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        caller: Caller,
    ) -> None:
        if after.names == before.names and after.regex == before.regex and after.member_id in group.members:
            return
        size = sum(map(len, after.names)) + len(after.regex)
        more = MEMBER_BYTES + size if after.member_id not in group.members else size
        if not self.shard.memory.admits(caller.client_host, more, operation.now_ms):
            text = "The consumer groups of this broker hold as much as they may."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)

    def new_id(self) -> str:
        """An id for a member that has none: a Uuid as Kafka writes it."""
        while (made := urlsafe_b64encode(self.shard.rng.token(16)).decode().rstrip("=")).startswith("-"):
            pass
        return made

    # --- the way of a member from what it was to what it says

    def advance(
        self,
        operation: Operation,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        reported: Reported | None,
        changes: list[GroupsRecord],
        *,
        by_classic: bool,
    ) -> ConsumerGroupMember:
        """Work out what follows from what a member says now: epochs, target, its own next state. Adds to `changes`."""
        group_id = group.group_id
        if after is not before and not after.says_the_same(before):
            changes.append(member_record(group_id, after))
        names_changed = after.names != before.names
        regex = self.regexes.changed(group, before, after, changes)
        bump = names_changed or regex.is_resolved or (by_classic and regex.is_changed)
        if not by_classic and after.server_assignor != before.server_assignor:
            default = self.default_assignor
            bump = bump or group.preferred_assignor(default) != group.preferred_assignor(default, before, after)
        epoch = self.move_epoch(operation, group, before, after, changes, bump=bump)
        target_epoch, target = self._target(operation, group, epoch, before, after, changes)
        led = self.lead(
            group, after, target_epoch, target, reported, subscription_changed=names_changed or regex.is_changed
        )
        if led != after:
            changes.append(current_record(group_id, led))
        return led

    def lead(
        self,
        group: ConsumerGroup,
        member: ConsumerGroupMember,
        target_epoch: int,
        target: Assignment,
        reported: Reported | None,
        *,
        subscription_changed: bool = False,
    ) -> ConsumerGroupMember:
        """The next state of a member on its way to its target; the same if it has caught up."""
        if not subscription_changed and member.is_reconciled_to(target_epoch):
            return member
        goal = Goal(target_epoch, target, self.topic_ids(group.topics_of(member)), group.has_owner, reported)
        return reconcile(member, goal, subscription_changed=subscription_changed)

    def move_epoch(
        self,
        operation: Operation,
        group: ConsumerGroup,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        changes: list[GroupsRecord],
        *,
        bump: bool,
    ) -> int:
        """The group epoch: the next one if members, subscriptions or topics have changed."""
        if not bump and group.refresh_ms is None:
            return group.group_epoch
        known = before if before.member_id in group.members else group.static_member(after.instance_id)
        found = metadata_hash(self.shard.image, group.subscribers_with(known, after))
        if not bump and found == group.metadata_hash:
            return group.group_epoch
        changes.append(epoch_record(group.group_id, group.group_epoch + 1, found))
        return group.group_epoch + 1

    def _target(
        self,
        operation: Operation,
        group: ConsumerGroup,
        epoch: int,
        before: ConsumerGroupMember,
        after: ConsumerGroupMember,
        changes: list[GroupsRecord],
    ) -> tuple[int, Assignment]:
        """Epoch and target of a member: of another target assignment, if one is due and may be computed already."""
        holder = group.static_member(after.instance_id)
        last = group.target.get(after.member_id if holder is None else holder.member_id, NOTHING)
        if epoch <= group.assignment_epoch or not self._may_assign(operation, group):
            return group.assignment_epoch, last
        members = {key: each for key, each in group.members.items() if holder is None or key != holder.member_id}
        members[after.member_id] = after
        targets = dict(group.target)
        if holder is not None and holder.member_id != after.member_id:
            targets[after.member_id] = targets.pop(holder.member_id, NOTHING)
        name = group.preferred_assignor(self.default_assignor, before, after)
        assigned = self._assign(group, name, members, targets, epoch)
        for member_id in members:
            wanted = assigned.get(member_id, NOTHING)
            if group.target.get(member_id) != wanted:
                changes.append(target_record(group.group_id, member_id, wanted))
        changes.append(target_epoch_record(group.group_id, epoch, operation.wall_ms))
        operation.event(group.group_id, f"has a target assignment by {name} for epoch {epoch}", is_detail=True)
        return epoch, assigned.get(after.member_id, NOTHING)

    def _may_assign(self, operation: Operation, group: ConsumerGroup) -> bool:
        interval_ms = self.assignment_interval.of(self.shard.group_configs(group.group_id))
        return not group.assigned_ms or not interval_ms or operation.wall_ms >= group.assigned_ms + interval_ms

    def _assign(
        self,
        group: ConsumerGroup,
        name: str,
        members: Mapping[str, ConsumerGroupMember],
        targets: Mapping[str, Assignment],
        epoch: int,
    ) -> Mapping[str, Assignment]:
        """The target assignment. Raises: KafkaError UNKNOWN_SERVER_ERROR if the assignor fails."""
        spec = GroupSpec(
            {
                member_id: MemberSpec(
                    member_id,
                    member.instance_id,
                    member.rack_id,
                    frozenset(self.topic_ids(group.topics_of(member))),
                    targets.get(member_id, NOTHING),
                )
                for member_id, member in members.items()
            },
            _is_homogeneous(members.values()),
        )
        try:
            return self.assignors[name].assign(spec, ImageTopics(self.shard.image))
        except Exception as error:  # an entry point's own code may raise anything
            text = f"Failed to compute a new target assignment for epoch {epoch}: {error}"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text) from error

    def topic_ids(self, names: Iterable[str]) -> set[bytes]:
        """The ids of those topics that are there."""
        topics = self.shard.image.topics
        return {topics[name].topic_id for name in names if name in topics}

    def wrote(
        self, operation: Operation, group: ConsumerGroup, before: ConsumerGroupMember, after: ConsumerGroupMember
    ) -> None:
        """A member's changes have been written, with the topics as they are now: timers that follow from its state.

        group: as it is in the shard since.
        """
        group.refresh_ms = None
        if after.classic is not None or (before.state is after.state and before.member_epoch == after.member_epoch):
            return
        if after.state is MemberState.UNREVOKED_PARTITIONS:
            operation.set_timer("rebalance", group.group_id, after.rebalance_timeout_ms, after.member_id)
        else:
            operation.cancel_timer("rebalance", group.group_id, after.member_id)

    def current(self, group_id: str) -> ConsumerGroup:
        """The group in the shard, after something was written."""
        group = self.shard.groups[group_id]
        assert isinstance(group, ConsumerGroup), group_id
        return group

    # --- leaving

    def _leave(self, operation: Operation, request: ConsumerGroupHeartbeatRequest, caller: Caller) -> None:
        group, _ = self._group_of(operation, request.group_id, [], create=False, called="Group")
        member_id, instance_id = request.member_id, request.instance_id
        if instance_id is not None:
            member = group.static_member(instance_id)
            check_holder(member, member_id, instance_id)
        else:
            member = group.members.get(member_id)
        if member is None:
            text = f"Member {member_id} is not a member of group {group.group_id}."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
            assignment=None,
        )
        if request.member_epoch == LEFT_FOR_A_WHILE:
            away = member._replace(
                member_epoch=LEFT_FOR_A_WHILE,
                assigned={topic: dict.fromkeys(parts, 0) for topic, parts in member.assigned.items()} or NOTHING_OWNED,
                pending_revocation=NOTHING_OWNED,
            )
            self.shard.write_and_reply(
                operation, [current_record(group.group_id, away)], caller.call, response, refused
            )
            return

        def written(changes: list[GroupsRecord]) -> ErrorCode:
            return (
                ErrorCode.NONE
                if self.shard.write_and_reply(operation, changes, caller.call, response, refused)
                else ErrorCode.UNKNOWN_SERVER_ERROR
            )

        self.remove(operation, group, [member_id], "left", written)

    def fence(self, operation: Operation, group: ConsumerGroup, member_ids: list[str], reason: str) -> ErrorCode:
        """See ModernGroups.fence."""
        return self.remove(operation, group, member_ids, reason, lambda changes: operation.write(changes, None))

    def remove(
        self,
        operation: Operation,
        group: ConsumerGroup,
        member_ids: list[str],
        reason: str,
        write: Callable[[list[GroupsRecord]], ErrorCode],
    ) -> ErrorCode:
        """Take members out. If only classic ones are left, the group is a classic one from now on.

        write: has records written. Returns: NONE, or why they could not be; then nothing has changed.
        """
        group_id, leaving = group.group_id, [group.members[each] for each in member_ids]
        downgraded = migration.downgrade(group, leaving, self.shard.config, self.shard.image, operation.wall_ms)
        changes: list[GroupsRecord] = []
        if downgraded is not None:
            changes += group_tombstones(group)
            changes.append(downgraded)
        else:
            for member_id in member_ids:
                changes += member_tombstones(group_id, member_id)
            gone = regexes.without_members(group, leaving)
            changes += [regex_tombstone(group_id, regex) for regex in gone]
            counts = dict(group.subscribers)
            for member in leaving:
                for topic in group.topics_of(member):
                    counts[topic] -= 1
            left = [topic for topic, count in counts.items() if count > 0]
            epoch = group.group_epoch + 1
            changes.append(epoch_record(group_id, epoch, metadata_hash(self.shard.image, left)))
            if len(group.members) == len(member_ids):
                changes.append(target_epoch_record(group_id, epoch, 0))
        known = dict(group.members)
        code = write(changes)
        if code is not ErrorCode.NONE:
            operation.event(group_id, f"could not be written to __consumer_offsets: {code.name}")
            return code
        for member_id in member_ids:
            self.cancel_timers(operation, group_id, member_id, TIMERS)
            operation.event(group_id, f"member {member_id} {reason}", is_detail=True)
        if downgraded is not None:
            migration.downgraded(operation, self, group_id, known, f"member {', '.join(member_ids)} {reason}")
        return code

    # --- timers

    def timer(self, operation: Operation, group: ConsumerGroup, key: TimerKey) -> None:
        """See GroupKind.timer."""
        if key.kind == "regex":
            self.regexes.go_on(operation, group)
            return
        member = group.members.get(key.member_id)
        if member is None:
            return
        if key.kind == "rebalance":
            if member.state is not MemberState.UNREVOKED_PARTITIONS:
                return
            why = f"did not let go of partitions within its rebalance timeout of {member.rebalance_timeout_ms} ms"
        elif key.kind in ("join", "sync"):
            why = f"did not {key.kind} within its rebalance timeout of {member.rebalance_timeout_ms} ms"
        else:
            why = "sent no heartbeat within its session timeout"
        if self.fence(operation, group, [key.member_id], why) is not ErrorCode.NONE:
            operation.set_timer(key.kind, group.group_id, self.session_timeout_ms(group.group_id), key.member_id)

    def loaded(self, operation: Operation, group: ConsumerGroup) -> None:
        """See GroupKind.loaded: sessions, and revocations, have their whole time again."""
        for member in group.members.values():
            if member.classic is not None:
                operation.set_timer("session", group.group_id, member.classic.session_timeout_ms, member.member_id)
                continue
            self.restart_session(operation, group.group_id, member.member_id)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                operation.set_timer("rebalance", group.group_id, member.rebalance_timeout_ms, member.member_id)

    def unload(self, operation: Operation, group: ConsumerGroup) -> None:
        """See GroupKind.unload."""
        for member_id in group.members:
            self.cancel_timers(operation, group.group_id, member_id, TIMERS)
        operation.cancel_timer("regex", group.group_id)

    # --- classic members

    def join(self, operation: Operation, group: ConsumerGroup, request: JoinGroupRequest, caller: Caller) -> None:
        """See classic_members.join."""
        classic_members.join(self, operation, group, request, caller)

    def sync(self, operation: Operation, group: ConsumerGroup, request: SyncGroupRequest, caller: Caller) -> None:
        """See classic_members.sync."""
        classic_members.sync(self, operation, group, request, caller)

    def heartbeat(self, operation: Operation, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
        """See classic_members.heartbeat."""
        return classic_members.heartbeat(operation, group, request)

    def leave(self, operation: Operation, group: ConsumerGroup, who: Iterable[MemberIdentity]) -> list[ErrorCode]:
        """See classic_members.leave."""
        return classic_members.leave(self, operation, group, who)

    # --- the way into state

    def make(self, group_id: str, wall_ms: int | None) -> ConsumerGroup:
        """See GroupKind.make."""
        return ConsumerGroup(group_id)

    def replay(self, group: ConsumerGroup, record: KeyedRecord) -> bool:
        """See GroupKind.replay."""
        return replay(group, record)  # type: ignore[arg-type]

    def tombstones(self, group: ConsumerGroup) -> list[GroupsRecord]:
        """See GroupKind.tombstones."""
        return list(group_tombstones(group)) if group.is_recorded else []

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """See GroupKind.new_metadata_image: expressions may match other topics, too."""
        super().new_metadata_image(operation, delta)
        if delta.made or delta.deleted:
            self.regexes.topics_changed()

    # --- offsets

    def commit_error(
        self, operation: Operation, group: ConsumerGroup, request: OffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind.commit_error."""
        epoch, member_id = request.generation_id_or_member_epoch, request.member_id
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and version < MEMBER_EPOCHS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        wanted = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        return self._epoch_error(member, epoch, wanted)

    def transactional_commit_error(
        self, group: ConsumerGroup, request: TxnOffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind.transactional_commit_error."""
        epoch, member_id = request.generation_id, request.member_id
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        if epoch == -1 and not member_id and request.group_instance_id is None:
            return ErrorCode.NONE  # an old client, which does not say who it is
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        wanted = ((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
        code = self._epoch_error(member, epoch, wanted)
        if code is ErrorCode.STALE_MEMBER_EPOCH and version < STALE_EPOCH_SINCE:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    def _epoch_error(self, member: ConsumerGroupMember, epoch: int, wanted: Iterable[tuple[str, int]]) -> ErrorCode:
        """Whether a member may commit in an epoch: in its own, or in one since it has got each partition (KIP-1251)."""
        if epoch == member.member_epoch:
            return ErrorCode.NONE
        stale = ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
        if epoch > member.member_epoch:
            return stale
        image = self.shard.image
        for name, partition in wanted:
            topic = image.topic_id(name)
            had = member.pending_revocation.get(topic, NO_PARTITIONS).get(partition)
            since = member.assigned.get(topic, NO_PARTITIONS).get(partition, had)
            if since is None or epoch < since:
                return stale
        return ErrorCode.NONE

    def fetch_error(self, group: ConsumerGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
        """See GroupKind.fetch_error."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_epoch == member.member_epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def offset_delete_error(self, group: ConsumerGroup) -> ErrorCode:
        """See GroupKind.offset_delete_error."""
        return ErrorCode.NONE

    # --- administration

    def describe_group(self, group: Group | None, group_id: str) -> DescribedGroup:
        """ConsumerGroupDescribe of one group."""
        if not isinstance(group, ConsumerGroup):
            missing = group is None or group.is_going
            text = f"Group {group_id} not found." if missing else f"Group {group_id} is not a consumer group."
            return not_described(group_id, ErrorCode.GROUP_ID_NOT_FOUND, text)
        described = not_described(group_id, ErrorCode.NONE, None)
        described.group_state = group.state.value
        described.group_epoch, described.assignment_epoch = group.group_epoch, group.assignment_epoch
        described.assignor_name = group.preferred_assignor(self.default_assignor)
        described.members = [self._described(group, member) for member in group.members.values()]
        return described

    def _described(self, group: ConsumerGroup, member: ConsumerGroupMember) -> Member:
        has: dict[bytes, list[int]] = {}
        for owned in (member.assigned, member.pending_revocation):
            for topic, parts in owned.items():
                has.setdefault(topic, []).extend(parts)
        return Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.names),
            subscribed_topic_regex=member.regex,
            assignment=self._described_assignment(has),
            target_assignment=self._described_assignment(group.target.get(member.member_id, NOTHING)),
            member_type=1 if member.classic is None else 0,
        )

    def _described_assignment(self, assignment: Mapping[bytes, Iterable[int]]) -> DescribedAssignment:
        image = self.shard.image
        named = [(topic, image.topic_name(topic), parts) for topic, parts in assignment.items()]
        return DescribedAssignment(
            topic_partitions=[
                DescribedTopicPartitions(topic_id=topic, topic_name=name, partitions=sorted(parts))
                for topic, name, parts in named
                if name is not None
            ]
        )


class ImageTopics:
    """The image of the cluster, as an assignor sees it."""

    def __init__(self, image: MetadataCache) -> None:
        self._image = image

    def partitions(self, topic_id: bytes) -> int:
        """See TopicSpec."""
        name = self._image.topic_name(topic_id)
        return 0 if name is None else partition_count(self._image, name)

    def racks(self, topic_id: bytes, partition: int) -> set[str]:
        """See TopicSpec."""
        name = self._image.topic_name(topic_id)
        return set() if name is None else racks(self._image, name, partition)


# --- answers


def refused(code: ErrorCode, text: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """An answer with an error in it."""
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        error_message=text or code.message,
        member_epoch=0,
        heartbeat_interval_ms=0,
        assignment=None,
    )


def not_described(group_id: str, code: ErrorCode, text: str | None) -> DescribedGroup:
    """A group in the answer to ConsumerGroupDescribe, with nothing in it."""
    return DescribedGroup(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _told(owned: Owned) -> ToldAssignment:
    return ToldAssignment(
        topic_partitions=[TopicPartitions(topic_id=topic, partitions=sorted(parts)) for topic, parts in owned.items()]
    )


# --- requests


def _check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Mapping[str, Assignor]) -> None:
    """Whether a request makes sense at all. Raises: KafkaError."""
    fault = _fault(request, version)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        text = f"ServerAssignor {request.server_assignor} is not supported. "
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, f"{text}Supported assignors: {', '.join(assignors)}.")


def _fault(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """What is wrong with a request, of any group; the first thing that Kafka would say."""
    epoch = request.member_epoch
    if not request.member_id.strip() and (version >= OWN_IDS_SINCE or epoch > 0 or epoch == LEFT):
        return "MemberId can't be empty."
    if not request.group_id.strip():
        return "GroupId can't be empty."
    if request.instance_id is not None and not request.instance_id.strip():
        return "InstanceId can't be empty."
    if request.rack_id is not None and not request.rack_id.strip():
        return "RackId can't be empty."
    if epoch > JOINING:
        return None
    if epoch == JOINING:
        return _fault_of_joining(request)
    if epoch == LEFT_FOR_A_WHILE and request.instance_id is None:
        return "InstanceId can't be null."
    return "MemberEpoch is invalid." if epoch < LEFT_FOR_A_WHILE else None


def _fault_of_joining(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return None


def _says_nothing_of_itself(
    request: ConsumerGroupHeartbeatRequest, member: ConsumerGroupMember, caller: Caller
) -> bool:
    """Whether a member describes itself as it did, of which it says nothing in most heartbeats."""
    said = request.subscribed_topic_names, request.subscribed_topic_regex, request.rack_id, request.server_assignor
    if said != (None, None, None, None) or request.rebalance_timeout_ms != -1:
        return False
    if request.instance_id not in (None, member.instance_id) or member.classic is not None:
        return False
    return member.client_id == caller.client_id and member.client_host == caller.client_host


def _says_all(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether a member says all that it has to say to join, as after it has lost an answer."""
    if request.rebalance_timeout_ms == -1 or request.topic_partitions is None:
        return False
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _as_it_says(
    request: ConsumerGroupHeartbeatRequest, before: ConsumerGroupMember, caller: Caller
) -> ConsumerGroupMember:
    """A member as it describes itself now: what it leaves out is what it was."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return before._replace(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=before.server_assignor if request.server_assignor is None else request.server_assignor,
        names=before.names if names is None else tuple(sorted(set(names))),
        regex=before.regex if regex is None else regex,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def check_epoch(member: ConsumerGroupMember, epoch: int, reported: Reported | None) -> None:
    """Raises: KafkaError FENCED_MEMBER_EPOCH for one that speaks in another epoch than it is in.

    That before passes if it owns no more than it may: the answer with the newer one may have been lost.
    """
    if epoch in (JOINING, member.member_epoch):
        return
    if epoch < member.member_epoch and epoch == member.previous_epoch and _is_within(reported, member.assigned):
        return
    which = "greater" if epoch > member.member_epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def check_holder(holder: ConsumerGroupMember | None, member_id: str, instance_id: str) -> None:
    """Whether a member holds the instance id that it names. Raises: KafkaError."""
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {holder.member_id}."
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)


def _is_within(reported: Reported | None, owned: Owned) -> bool:
    return reported is not None and all(
        topic in owned and owned[topic].keys() >= set(parts) for topic, parts in reported.items()
    )


def _reported(topics: Iterable[TopicPartitions] | None) -> Reported | None:
    return None if topics is None else {topic.topic_id: tuple(topic.partitions) for topic in topics}


def _owns_differently(before: ConsumerGroupMember, after: ConsumerGroupMember) -> bool:
    """Whether the partitions differ that a member may own, not counting when it got them."""
    if before.assigned is after.assigned:
        return False
    return {topic: parts.keys() for topic, parts in before.assigned.items()} != {
        topic: parts.keys() for topic, parts in after.assigned.items()
    }


def _is_homogeneous(members: Iterable[ConsumerGroupMember]) -> bool:
    """Whether all members name the same topics, or all subscribe by the same expression and by no name."""
    said = {(member.names, member.regex) for member in members}
    if len(said) > 1:
        return False
    return not any(names and regex for names, regex in said)
