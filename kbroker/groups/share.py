"""Share groups as a kind of groups (KIP-932): heartbeats, epochs, the simple assignor, which share-partitions begin.

Called by shard.py, and by the functions below for the APIs of share groups (`api/share_groups.py`). A heartbeat works
out the records of what is to change, has the shard write them in one batch, and is answered when they are committed.
Partitions that the group has not begun with are named in the same batch, as initializing, and the coordinator's
surroundings ask the share coordinator (`BeginShareState`, carried); `begun` is told the end. From then on they are
assigned, by the next heartbeat.

Source: GroupMetadataManager and ShareGroup of Apache Kafka 4.4, by behaviour. Unlike it: what is asked again because
its first answer was lost begins where the group's share.auto.offset.reset says, not at offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from kbroker.groups.group import GroupType
from kbroker.groups.modern import (
    FIRST_EPOCH,
    NOTHING,
    Assignment,
    Bounded,
    MemberState,
    ModernGroups,
    metadata_hash,
    partition_count,
)
from kbroker.groups.records import ModernRecord, modern_record
from kbroker.groups.share_group import LEFT, ShareGroup, ShareMember, merged, without
from kbroker.groups.simple_assignor import assign
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import stored_share_groups as stored
from protocol.messages.share_groups import (
    DescribedShareAssignment,
    DescribedShareGroup,
    DescribedShareMember,
    DescribedShareTopicPartitions,
    ShareAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareTopicPartitions,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from kbroker.coordinator import Caller, Operation
    from kbroker.coordinator.effects import Call
    from kbroker.groups.group import Group
    from kbroker.groups.records import GroupsRecord, KeyedRecord
    from kbroker.groups.shard import GroupShard
    from kbroker.groups.share_group import Begun
    from protocol.message import Message

SIMPLE = "simple"
UNKNOWN_START = -1
MEMBER, EPOCH, TARGET_EPOCH, TARGET, CURRENT, BEGUN = range(10, 16)
"""Types of records."""


class BeginShareState(NamedTuple):
    """Effect, carried: have the share coordinator begin with share-partitions. starts: by topic id and partition."""

    group_id: str
    state_epoch: int
    starts: Mapping[bytes, Mapping[int, int]]


class ShareGroups(ModernGroups[ShareGroup]):
    """The rules of share groups in one shard."""

    TYPE = GroupType.SHARE

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        config = shard.config
        self.session_timeout = Bounded(
            "share.session.timeout.ms",
            config.group_share_session_timeout_ms,
            config.group_share_min_session_timeout_ms,
            config.group_share_max_session_timeout_ms,
        )
        self.heartbeat_interval = Bounded(
            "share.heartbeat.interval.ms",
            config.group_share_heartbeat_interval_ms,
            config.group_share_min_heartbeat_interval_ms,
            config.group_share_max_heartbeat_interval_ms,
        )

    # --- the way into state

    def make(self, group_id: str, wall_ms: int | None) -> ShareGroup:
        """See GroupKind.make."""
        return ShareGroup(group_id)

    def replay(self, group: ShareGroup, record: KeyedRecord) -> bool:
        """See GroupKind.replay."""
        assert isinstance(record, ModernRecord), record
        key_type, key, value = record.key_type, record.key, record.value
        if key_type == EPOCH:
            if value is None:
                return True
            group.set_epoch(value.epoch, value.metadata_hash)
        elif key_type == TARGET_EPOCH:
            group.set_assignment_epoch(FIRST_EPOCH if value is None else value.assignment_epoch)
        elif key_type == TARGET:
            group.set_target(key.member_id, None if value is None else _assignment(value.topic_partitions))
        elif key_type == BEGUN:
            empty: Begun = {}
            group.set_begun(
                empty if value is None else _begun(value.initializing_topics),
                empty if value is None else _begun(value.initialized_topics),
                {} if value is None else {bytes(each.topic_id): each.topic_name for each in value.deleting_topics},
            )
        else:
            self._replay_member(group, key_type, key, value)
        return False

    def _replay_member(self, group: ShareGroup, key_type: int, key: Any, value: Any) -> None:
        known = group.members.get(key.member_id)
        if key_type == MEMBER and value is None:
            group.remove_member(key.member_id)
        elif key_type == MEMBER:
            group.put_member(
                (known or ShareMember(key.member_id))._replace(
                    rack_id=value.rack_id,
                    client_id=value.client_id,
                    client_host=value.client_host,
                    topics=tuple(value.subscribed_topic_names),
                )
            )
        elif key_type == CURRENT and (known is not None or value is not None):
            member = known or ShareMember(key.member_id)
            if value is None:
                member = member._replace(member_epoch=0, previous_epoch=0, assigned={})
            else:
                member = member._replace(
                    member_epoch=value.member_epoch,
                    previous_epoch=value.previous_member_epoch,
                    assigned=_assignment(value.assigned_partitions),
                )
            group.put_member(member)

    # --- heartbeats

    def find(self, group_id: str, *, may_make: bool) -> ShareGroup:
        """A share group. may_make: one that is not known yet. Raises: KafkaError GROUP_ID_NOT_FOUND."""
        group: Group | None = self.shard.groups.get(group_id)
        if group is None:
            if may_make:
                return self.make(group_id, None)
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
        if not isinstance(group, ShareGroup):
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
        return group

    def heartbeat_of_share(self, operation: Operation, request: ShareGroupHeartbeatRequest, caller: Caller) -> None:
        """ShareGroupHeartbeat. Raises: KafkaError."""
        if self._is_quiet(request, caller):
            self._lives_on(operation, request, caller)
        else:
            self._beat(operation, request, caller)

    def _is_quiet(self, request: ShareGroupHeartbeatRequest, caller: Caller) -> bool:
        """As ConsumerGroups._is_quiet: whether a heartbeat says nothing new, and `_beat` would find nothing to tell."""
        group = self.shard.groups.get(request.group_id)
        if not isinstance(group, ShareGroup):
            return False
        member = group.members.get(request.member_id)
        return (
            member is not None
            and group.has_settled
            and group.refresh_ms is None
            and 0 < request.member_epoch == member.member_epoch == group.assignment_epoch == group.group_epoch
            and request.subscribed_topic_names is None
            and request.rack_id is None
            and member.client_id == caller.client_id
            and member.client_host == caller.client_host
            and member.assigned == group.target.get(request.member_id, NOTHING)
        )

    def _lives_on(self, operation: Operation, request: ShareGroupHeartbeatRequest, caller: Caller) -> None:
        """Answer a quiet heartbeat."""
        response = ShareGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(request.group_id),
            assignment=None,
        )
        group = self.find(request.group_id, may_make=False)
        self.live_on(operation, group, request.member_id, caller.call, response, refuse)

    def _beat(self, operation: Operation, request: ShareGroupHeartbeatRequest, caller: Caller) -> None:
        joins = request.member_epoch == 0
        group = self.find(request.group_id, may_make=joins)
        member = group.members.get(request.member_id)
        if request.member_epoch == LEFT:
            self._leave(operation, group, request, caller)
            return
        if member is None and len(group.members) >= self.shard.config.group_share_max_size:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The share group has reached its maximum capacity of "
                f"{self.shard.config.group_share_max_size} members.",
            )
        _check_epoch(member, request)
        before = member or ShareMember(request.member_id)
        after = before._replace(
            rack_id=before.rack_id if request.rack_id is None else request.rack_id,
            client_id=caller.client_id,
            client_host=caller.client_host,
            topics=before.topics
            if request.subscribed_topic_names is None
            else tuple(sorted(set(request.subscribed_topic_names))),
        )
        records: list[GroupsRecord] = [] if after == member else [_member_record(group.group_id, after)]
        epoch = self._moved(group, member, after, records)
        after = self._assigned(operation, group, after, epoch, records)
        wanted = self._wanted(operation, group, group.subscribers_with(member, after))
        if wanted:
            records.append(_begun_record(group, merged(group.initializing, wanted), group.initialized, group.deleting))
        says_assignment = joins or request.subscribed_topic_names is not None or after.assigned != before.assigned
        response = ShareGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=after.member_id,
            member_epoch=after.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(group.group_id),
            assignment=_told(after.assigned) if says_assignment else None,
        )
        if not self.shard.write_and_reply(operation, records, caller.call, response, refuse):
            return
        group = cast("ShareGroup", self.shard.groups[request.group_id])
        group.refresh_ms = None
        group.has_settled = not (records or wanted or group.initializing)
        self.restart_session(operation, group.group_id, after.member_id)
        if member is None:
            operation.event(group.group_id, f"{after.member_id} joined, epoch {group.group_epoch}")
        if wanted:
            self._begin(operation, group, wanted, epoch)

    def _leave(
        self, operation: Operation, group: ShareGroup, request: ShareGroupHeartbeatRequest, caller: Caller
    ) -> None:
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(request)
        response = ShareGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=LEFT,
            heartbeat_interval_ms=0,
            assignment=None,
        )
        records = self._without(group, [member.member_id])
        if self.shard.write_and_reply(operation, records, caller.call, response, refuse):
            self.cancel_timers(operation, group.group_id, member.member_id)
            operation.event(group.group_id, f"{member.member_id} left")

    def fence(self, operation: Operation, group: ShareGroup, member_ids: list[str], reason: str) -> ErrorCode:
        """See ModernGroups.fence."""
        code = operation.write(self._without(group, member_ids), None)
        if code is ErrorCode.NONE:
            for member_id in member_ids:
                self.cancel_timers(operation, group.group_id, member_id)
                operation.event(group.group_id, f"{member_id} {reason}, and is removed")
        return code

    def _without(self, group: ShareGroup, member_ids: Collection[str]) -> list[GroupsRecord]:
        records: list[GroupsRecord] = []
        for member_id in member_ids:
            records += [
                modern_record(kind(group_id=group.group_id, member_id=member_id), None)
                for kind in (
                    stored.ShareGroupCurrentMemberAssignmentKey,
                    stored.ShareGroupTargetAssignmentMemberKey,
                    stored.ShareGroupMemberMetadataKey,
                )
            ]
        epoch = group.group_epoch + 1
        records.append(_epoch_record(group.group_id, epoch, group.metadata_hash))
        if len(group.members) == len(member_ids):
            records.append(_target_epoch_record(group.group_id, epoch, 0))
        return records

    def _moved(
        self, group: ShareGroup, before: ShareMember | None, after: ShareMember, records: list[GroupsRecord]
    ) -> int:
        """The group epoch, which moves with subscriptions, topics, and what has begun."""
        moves = before is None or before.topics != after.topics
        if group.assignment_epoch >= group.group_epoch and not moves:
            moves = self._is_assignment_pending(group)
        whole = group.metadata_hash
        if moves or group.refresh_ms == 0:
            whole = metadata_hash(self.shard.image, group.subscribers_with(before, after))
            moves = moves or whole != group.metadata_hash
        if not moves:
            return group.group_epoch
        records.append(_epoch_record(group.group_id, group.group_epoch + 1, whole))
        return group.group_epoch + 1

    def _is_assignment_pending(self, group: ShareGroup) -> bool:
        """Whether something has begun that a member subscribes to, and that no member has yet."""
        assigned: set[tuple[bytes, int]] = {
            (topic_id, partition)
            for target in group.target.values()
            for topic_id, partitions in target.items()
            for partition in partitions
        }
        image = self.shard.image
        return any(
            (topic_id, partition) not in assigned
            for topic in group.subscribers
            if topic in image.topics
            for topic_id in (image.topic_id(topic),)
            for partition in group.assignable(topic_id)
        )

    def _assigned(
        self, operation: Operation, group: ShareGroup, after: ShareMember, epoch: int, records: list[GroupsRecord]
    ) -> ShareMember:
        """The member with its target, which is computed again if the epoch has moved."""
        target, target_epoch = group.target.get(after.member_id, {}), group.assignment_epoch
        if group.assignment_epoch < epoch:
            image, members = self.shard.image, {**group.members, after.member_id: after}
            topic_ids = {
                topic: image.topic_id(topic)
                for member in members.values()
                for topic in member.topics
                if topic in image.topics
            }
            targets = assign(
                {
                    member_id: [topic_ids[topic] for topic in member.topics if topic in topic_ids]
                    for member_id, member in members.items()
                },
                {topic_id: group.assignable(topic_id) for topic_id in topic_ids.values()},
                group.target,
            )
            for member_id, assignment in targets.items():
                if group.target.get(member_id) != assignment:
                    records.append(_target_record(group.group_id, member_id, assignment))
            records.append(_target_epoch_record(group.group_id, epoch, operation.wall_ms))
            target, target_epoch = targets[after.member_id], epoch
        if after.member_epoch == target_epoch and after.assigned == target:
            return after
        after = after._replace(member_epoch=target_epoch, previous_epoch=after.member_epoch, assigned=target)
        records.append(_current_record(group.group_id, after))
        return after

    # --- what begins

    def _wanted(
        self, operation: Operation, group: ShareGroup, subscribers: Iterable[str]
    ) -> dict[bytes, tuple[str, frozenset[int]]]:
        """Partitions that members subscribe to, and that the share coordinator is to begin with, or is asked again."""
        image, retry_ms = self.shard.image, self.shard.config.group_share_initialize_retry_interval_ms
        wanted = {}
        for topic in subscribers:
            topic_id = image.topic_id(topic)
            if topic not in image.topics or not any(topic_id) or topic_id in group.deleting:
                continue
            missing = frozenset(range(partition_count(image, topic))) - group.assignable(topic_id)
            asked_ms = group.asked_ms.get(topic_id)
            if asked_ms is not None and operation.now_ms < asked_ms + retry_ms:
                missing -= group.initializing.get(topic_id, ("", frozenset[int]()))[1]
            if missing:
                wanted[topic_id] = topic, missing
        return wanted

    def _begin(self, operation: Operation, group: ShareGroup, wanted: Begun, state_epoch: int) -> None:
        starts = {}
        for topic_id, (_, partitions) in wanted.items():
            group.asked_ms[topic_id] = operation.now_ms
            start = 0 if topic_id in group.initialized else UNKNOWN_START  # partitions that were added to a topic
            starts[topic_id] = dict.fromkeys(sorted(partitions), start)
        operation.forward(BeginShareState(group.group_id, state_epoch, starts))

    def begun(self, operation: Operation, group_id: str, partitions: Mapping[bytes, Iterable[int]], call: Call) -> None:
        """The share coordinator has begun with these. call: here and below, it is told a code.

        That is NONE once what it is about is committed.
        """
        group = self.shard.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            self._write(operation, [], call)
            return
        image = self.shard.image
        new = {
            topic_id: (image.topic_name(topic_id) or "<UNKNOWN>", frozenset(indexes))
            for topic_id, indexes in partitions.items()
        }
        left = without(group.initializing, partitions)
        self._write(operation, [_begun_record(group, left, merged(group.initialized, new), group.deleting)], call)

    def deleting(self, operation: Operation, group: ShareGroup, topics: Mapping[bytes, str], call: Call) -> None:
        """The share coordinator is about to be asked to forget what it has of topics."""
        kept = {topic_id: found for topic_id, found in group.initialized.items() if topic_id not in topics}
        left = {topic_id: found for topic_id, found in group.initializing.items() if topic_id not in topics}
        self._write(operation, [_begun_record(group, left, kept, {**group.deleting, **topics})], call)

    def deleted(self, operation: Operation, group_id: str, topics: Iterable[bytes], call: Call) -> None:
        """It has forgotten them."""
        group = self.shard.groups.get(group_id)
        records: list[GroupsRecord] = []
        if isinstance(group, ShareGroup):
            left = {topic_id: name for topic_id, name in group.deleting.items() if topic_id not in set(topics)}
            records.append(_begun_record(group, group.initializing, group.initialized, left))
        self._write(operation, records, call)

    def _write(self, operation: Operation, records: list[GroupsRecord], call: Call) -> None:
        def told(code: ErrorCode) -> Message:
            return cast("Message", code)  # as the runtime carries it: `call` takes a code

        self.shard.write_and_reply(operation, records, call, told(ErrorCode.NONE), told)

    def alter(
        self,
        operation: Operation,
        group_id: str,
        starts: Mapping[bytes, tuple[str, Mapping[int, int]]],
        call: Call,
    ) -> int:
        """Begin again elsewhere, in a new epoch; returns it. Raises: KafkaError NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
        group = self.find(group_id, may_make=True)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        epoch = group.group_epoch + 1
        wanted = {topic_id: (name, frozenset(partitions)) for topic_id, (name, partitions) in starts.items()}
        records: list[GroupsRecord] = [_epoch_record(group_id, epoch, group.metadata_hash)]
        if wanted:
            records.append(_begun_record(group, merged(group.initializing, wanted), group.initialized, group.deleting))
        self._write(operation, records, call)
        return epoch

    # --- description

    def describe_share(self, group_id: str) -> DescribedShareGroup:
        """ShareGroupDescribe of one group."""
        try:
            group = self.find(group_id, may_make=False)
        except KafkaError as error:
            return not_described(group_id, error.code, error.message)
        return DescribedShareGroup(
            error_code=ErrorCode.NONE,
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=SIMPLE,
            members=[
                DescribedShareMember(
                    member_id=each.member_id,
                    rack_id=each.rack_id,
                    member_epoch=each.member_epoch,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    subscribed_topic_names=list(each.topics),
                    assignment=self._described(each.assigned),
                )
                for each in group.members.values()
            ],
        )

    def _described(self, assigned: Assignment) -> DescribedShareAssignment:
        image = self.shard.image
        return DescribedShareAssignment(
            topic_partitions=[
                DescribedShareTopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
                for topic_id, partitions in assigned.items()
                if (name := image.topic_name(topic_id)) is not None
            ]
        )

    # --- removal

    def tombstones(self, group: ShareGroup) -> list[GroupsRecord]:
        """See GroupKind.tombstones."""
        if not group.is_recorded:
            return []
        return [
            modern_record(kind(group_id=group.group_id), None)
            for kind in (
                stored.ShareGroupStatePartitionMetadataKey,
                stored.ShareGroupTargetAssignmentMetadataKey,
                stored.ShareGroupMetadataKey,
            )
        ]

    def new_metadata_image(self, operation: Operation, delta: Any) -> None:
        """See GroupKind.new_metadata_image: also, topics that are deleted are no more to be begun with."""
        super().new_metadata_image(operation, delta)
        if not delta.deleted:
            return
        image = self.shard.image
        for group in self.groups():
            known = {**group.initializing, **group.initialized, **group.deleting}
            gone = {topic_id for topic_id in known if image.topic_name(topic_id) is None}
            if gone:
                kept = [
                    {topic_id: each for topic_id, each in topics.items() if topic_id not in gone}
                    for topics in (group.initializing, group.initialized, group.deleting)
                ]
                operation.write([_begun_record(group, *cast("Any", kept))], None)


# --- records


def _member_record(group_id: str, member: ShareMember) -> ModernRecord:
    return modern_record(
        stored.ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id),
        stored.ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
        ),
    )


def _epoch_record(group_id: str, epoch: int, whole: int) -> ModernRecord:
    return modern_record(
        stored.ShareGroupMetadataKey(group_id=group_id),
        stored.ShareGroupMetadataValue(epoch=epoch, metadata_hash=whole),
    )


def _target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> ModernRecord:
    return modern_record(
        stored.ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        stored.ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=wall_ms),
    )


def _target_record(group_id: str, member_id: str, assignment: Assignment) -> ModernRecord:
    return modern_record(
        stored.ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        stored.ShareGroupTargetAssignmentMemberValue(topic_partitions=_stored(assignment)),
    )


def _current_record(group_id: str, member: ShareMember) -> ModernRecord:
    return modern_record(
        stored.ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id),
        stored.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.member_epoch,
            previous_member_epoch=member.previous_epoch,
            state=MemberState.STABLE.value,
            assigned_partitions=_stored(member.assigned),
        ),
    )


def _begun_record(
    group: ShareGroup, initializing: Begun, initialized: Begun, deleting: Mapping[bytes, str]
) -> ModernRecord:
    def infos(begun: Begun) -> list[stored.ShareTopicPartitionsInfo]:
        return [
            stored.ShareTopicPartitionsInfo(topic_id=topic_id, topic_name=name, partitions=sorted(partitions))
            for topic_id, (name, partitions) in begun.items()
        ]

    return modern_record(
        stored.ShareGroupStatePartitionMetadataKey(group_id=group.group_id),
        stored.ShareGroupStatePartitionMetadataValue(
            initializing_topics=infos(initializing),
            initialized_topics=infos(initialized),
            deleting_topics=[
                stored.ShareTopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in deleting.items()
            ],
        ),
    )


def _stored(assignment: Assignment) -> list[stored.ShareTargetTopicPartition]:
    return [
        stored.ShareTargetTopicPartition(topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
    ]


def _assignment(topics: Iterable[Any]) -> dict[bytes, frozenset[int]]:
    return {bytes(each.topic_id): frozenset(each.partitions) for each in topics}


def _begun(topics: Iterable[Any]) -> dict[bytes, tuple[str, frozenset[int]]]:
    return {bytes(each.topic_id): (each.topic_name, frozenset(each.partitions)) for each in topics}


def _told(assignment: Assignment) -> ShareAssignment:
    return ShareAssignment(
        topic_partitions=[
            ShareTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
        ]
    )


# --- refusals


def check_heartbeat(request: ShareGroupHeartbeatRequest) -> None:
    """Raises: KafkaError INVALID_REQUEST for what no member says."""
    if not request.member_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")
    if not request.group_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, "RackId can't be empty.")
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEFT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


def _check_epoch(member: ShareMember | None, request: ShareGroupHeartbeatRequest) -> None:
    """Raises: KafkaError UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH."""
    epoch = request.member_epoch
    if member is None:
        if epoch:
            raise _unknown_member(request)
    elif epoch and epoch not in (member.member_epoch, member.previous_epoch):
        size = "greater" if epoch > member.member_epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a {size} member epoch ({epoch}) than the one known by the group coordinator"
            f" ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )


def _unknown_member(request: ShareGroupHeartbeatRequest) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
    )


def refuse(code: ErrorCode, text: str | None = None) -> ShareGroupHeartbeatResponse:
    """An answer to ShareGroupHeartbeat with an error in it."""
    return ShareGroupHeartbeatResponse(
        error_code=code,
        error_message=text or code.message,
        member_epoch=0,
        heartbeat_interval_ms=0,
        assignment=None,
    )


def not_described(group_id: str, code: ErrorCode, text: str | None = None) -> DescribedShareGroup:
    """A group in the answer to ShareGroupDescribe, with nothing but an error in it."""
    return DescribedShareGroup(
        error_code=code,
        error_message=text or code.message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def rules(shard: GroupShard) -> ShareGroups:
    """The rules of share groups in a shard."""
    return cast("ShareGroups", shard.kind(GroupType.SHARE))
