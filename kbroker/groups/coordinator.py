"""The group coordinator of a broker: finds the shard that a group belongs to, and answers the APIs of groups.

API handlers call one function a request, with the request's value and a Caller, and have the runtime carry out the
effects that it returns; a call that got no Reply is parked and gets it from a later step. Nothing here looks into the
log, the metadata or the time.

A group belongs to the partition of __consumer_offsets that its id hashes to; this broker coordinates it while it leads
that partition. Differs from Kafka 3.9: answers to DeleteGroups and OffsetDelete wait until the tombstones are
committed (as in Kafka 4), so that what was said to be gone does not come back with the next leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbroker.config.limits import GROUP_ID_LENGTH
from kbroker.coordinator import Caller, Effect, Operation, Reply, Runtime
from kbroker.groups.effects import Gathering, OffsetsStored, loading_error
from kbroker.groups.group import Group, GroupType
from kbroker.groups.kinds import described, refuse_join, refuse_sync
from kbroker.groups.memory import GroupMemory
from kbroker.groups.offsets import NOWHERE, Commit, TopicPartition
from kbroker.groups.shard import GroupShard
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from protocol.messages.consumer_groups import DescribedGroup as DescribedConsumerGroup
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)
from protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from kbroker.groups.streams.membership import TopicCreation
    from kbroker.groups.streams.topology import InternalTopic
    from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest

NONE = ErrorCode.NONE


def names_no_protocol(request: SyncGroupRequest, version: int) -> bool:
    """Whether a SyncGroup lacks what it has to have since version 5: it is refused for that before all else."""
    return version >= 5 and (request.protocol_type is None or request.protocol_name is None)


class GroupCoordinator:
    """All groups of a broker.

    runtime: of __consumer_offsets, with a shard for each partition that is led here. memory: of its shards.
    creations: internal topics of streams groups that were asked for, as the API handler keeps them.
    """

    def __init__(self, runtime: Runtime[GroupShard], memory: GroupMemory) -> None:
        self.runtime = runtime
        self.memory = memory
        self.creations: dict[str, Any] = {}

    # --- membership

    def join(self, request: JoinGroupRequest, caller: Caller, now_ms: int) -> list[Effect]:
        """JoinGroup: answered when the next generation begins."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            refuse_join(operation, caller, shard, request.member_id)
        else:
            shard.join(operation, request, caller)
        return operation.effects

    def sync(self, request: SyncGroupRequest, caller: Caller, now_ms: int) -> list[Effect]:
        """SyncGroup: answered when the leader's assignment is committed."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if names_no_protocol(request, caller.version):
            refuse_sync(operation, caller, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif (
            shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ):  # the rebalance is lost: join again; old clients know this
            refuse_sync(operation, caller, ErrorCode.REBALANCE_IN_PROGRESS)
        elif isinstance(shard, ErrorCode):
            refuse_sync(operation, caller, shard)
        else:
            shard.sync(operation, request, caller)
        return operation.effects

    def heartbeat(self, request: HeartbeatRequest, caller: Caller, now_ms: int) -> list[Effect]:
        """Heartbeat: answered at once; while groups are being loaded every member is believed."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            error = NONE if shard is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else shard
        else:
            error = shard.heartbeat(operation, request)
        operation.reply(caller.call, HeartbeatResponse(error_code=error))
        return operation.effects

    def leave(self, request: LeaveGroupRequest, caller: Caller, now_ms: int) -> list[Effect]:
        """LeaveGroup: one member before version 3, any number since. In a consumer group, answered once committed."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        leaving = request.members if caller.version >= 3 else [MemberIdentity(member_id=request.member_id)]
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, _refuse_leave(shard))
            return operation.effects
        group = shard.groups.get(request.group_id)
        codes = shard.leave(operation, request.group_id, leaving)
        if ErrorCode.COORDINATOR_NOT_AVAILABLE in codes:  # nothing could be written, of any of them
            operation.reply(caller.call, _refuse_leave(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return operation.effects
        members = [
            MemberResponse(member_id=who.member_id, group_instance_id=who.group_instance_id, error_code=code)
            for who, code in zip(leaving, codes, strict=True)
        ]
        response = LeaveGroupResponse(error_code=NONE, members=members)
        if caller.version < 3:
            response = LeaveGroupResponse(error_code=codes[0], members=[])
        if group is not None and group.TYPE is GroupType.CONSUMER:
            shard.write_and_reply(operation, [], caller.call, response, _refuse_leave)
        else:
            operation.reply(caller.call, response)
        return operation.effects

    # --- streams groups (KIP-1071)

    def streams_heartbeat(
        self, request: StreamsGroupHeartbeatRequest, caller: Caller, now_ms: int, creation: TopicCreation
    ) -> tuple[list[Effect], Mapping[str, InternalTopic]]:
        """StreamsGroupHeartbeat: answered when what it tells is committed. Also returned: topics to be created."""
        from kbroker.groups.streams.membership import StreamsGroups, refused_heartbeat

        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            is_blank = not request.group_id.strip()
            text = "GroupId can't be empty." if is_blank else None
            operation.reply(caller.call, refused_heartbeat(ErrorCode.INVALID_REQUEST if is_blank else shard, text))
            return operation.effects, {}
        kind = shard.kind(GroupType.STREAMS)
        assert isinstance(kind, StreamsGroups), kind
        return operation.effects, kind.streams_heartbeat(operation, request, caller, creation)

    def streams_group(self, group_id: str) -> Group | ErrorCode | None:
        """The group for StreamsGroupDescribe, of whatever kind; None if there is none, or why that is not known."""
        shard = self._shard(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.groups.get(group_id)

    # --- consumer groups (KIP-848)

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        caller: Caller,
        now_ms: int,
        may_describe: Callable[[str], bool] = lambda topic: True,
    ) -> list[Effect]:
        """ConsumerGroupHeartbeat: answered when what it changed is committed.

        may_describe: whether the member may know of a topic that its expression matches.
        """
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, refuse_heartbeat(request, shard))
        else:
            kind = shard.kind(GroupType.CONSUMER)
            kind.consumer_heartbeat(operation, request, caller, may_describe)  # type: ignore[attr-defined]
        return operation.effects

    # --- offsets

    def commit_offsets(
        self,
        request: OffsetCommitRequest,
        caller: Caller,
        now_ms: int,
        refused: Mapping[TopicPartition, ErrorCode] | None = None,
    ) -> list[Effect]:
        """OffsetCommit: answered when the offsets are committed.

        request: with the topics' names and ids filled in, whichever the version has. refused: partitions that the
        handler has turned down already (unknown, not allowed), for the same response.
        """
        shard = self._shard(request.group_id, may_be_empty=True)
        operation = self._operation(shard, now_ms)
        error = shard if isinstance(shard, ErrorCode) else shard.commit_error(operation, request, caller.version)
        codes, wall_ms = dict(refused or {}), operation.wall_ms
        wanted = {
            (topic.name, each.partition_index): _commit(each, topic.topic_id, request.retention_time_ms, wall_ms)
            for topic in request.topics
            for each in topic.partitions
        }
        commits = _admitted(operation, shard, error, request.group_id, wanted, codes, caller)
        _store(operation, shard, request.group_id, commits, caller, _commit_response(request, codes))
        return operation.effects

    def commit_offsets_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        caller: Caller,
        now_ms: int,
        refused: Mapping[TopicPartition, ErrorCode] | None = None,
    ) -> list[Effect]:
        """TxnOffsetCommit, once the transaction has been verified: the offsets count from its marker on."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            error = loading_error(shard, caller.version)
        else:
            error = shard.transactional_commit_error(request, caller.version)
        codes, wall_ms = dict(refused or {}), operation.wall_ms
        wanted = {
            (topic.name, each.partition_index): Commit(
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
                wall_ms,
                topic_id=topic.topic_id,
            )
            for topic in request.topics
            for each in topic.partitions
        }
        commits = _admitted(operation, shard, error, request.group_id, wanted, codes, caller)
        producer = request.producer_id, request.producer_epoch
        _store(operation, shard, request.group_id, commits, caller, _txn_commit_response(request, codes), *producer)
        return operation.effects

    def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> ErrorCode | dict[TopicPartition, tuple[Commit, ErrorCode]]:
        """OffsetFetch of one group: the group's error, or an offset a partition.

        partitions: None for all that have one. An offset of -1: none is committed. require_stable: a partition with a
        commit under way answers UNSTABLE_OFFSET_COMMIT (KIP-447). member_id, member_epoch: who asks, if it is a member
        of a consumer group (KIP-848).
        """
        shard = self._shard(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None:
            if member_id is not None and member_epoch >= 0:
                return ErrorCode.GROUP_ID_NOT_FOUND
            return dict.fromkeys(partitions or (), (NOWHERE, NONE))
        code = shard.kind_of(group).fetch_error(group, member_id, member_epoch)
        if code is not NONE:
            return code
        if shard.is_in_doubt(group):
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        offsets = group.offsets
        return {
            where: (NOWHERE, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if require_stable and offsets.unstable(where, shard.given_up_below)
            else (offsets.committed.get(where, NOWHERE), NONE)
            for where in (offsets.committed if partitions is None else partitions)
        }

    def committed_places(self, group_id: str) -> list[TopicPartition]:
        """The partitions that a group has committed offsets for, if it can be asked here."""
        shard = self._shard(group_id, may_be_empty=True)
        group = None if isinstance(shard, ErrorCode) else shard.groups.get(group_id)
        return [] if group is None else list(group.offsets.committed)

    def delete_offsets(
        self,
        request: OffsetDeleteRequest,
        caller: Caller,
        now_ms: int,
        refused: Mapping[TopicPartition, ErrorCode] | None = None,
    ) -> list[Effect]:
        """OffsetDelete: answered when the offsets' tombstones are committed. refused: as for `commit_offsets`."""
        shard = self._shard(request.group_id)
        operation = self._operation(shard, now_ms)
        codes = refused or {}
        topics = [
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes.get((topic.name, each.partition_index), NONE),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        places = {
            (topic.name, each.partition_index): each
            for topic in topics
            for each in topic.partitions
            if not each.error_code
        }
        response = OffsetDeleteResponse(error_code=NONE, topics=topics)
        gathering = Gathering(caller.call, response)
        result: ErrorCode | dict[TopicPartition, ErrorCode]
        if isinstance(shard, ErrorCode):
            result = shard
        else:
            result = shard.delete_offsets(operation, request.group_id, gathering, dict(places))
        if isinstance(result, ErrorCode):
            response.error_code, response.topics = result, []
        else:
            for where, code in result.items():
                places[where].error_code = code
        return _reply_unless_waiting(operation, gathering)

    # --- administration

    def describe_group(self, group_id: str, version: int) -> DescribedGroup:
        """DescribeGroups of one group; one that does not exist is Dead, from version 6 on not found (KIP-1043)."""
        shard = self._shard(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return described(group_id, "", error=shard)
        group = shard.groups.get(group_id)
        if group is not None:
            return shard.kind_of(group).describe(group, version)
        if version < 6:
            return described(group_id, "Dead")
        return described(group_id, "Dead", ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")

    def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """ConsumerGroupDescribe of one group."""
        shard = self._shard(group_id)
        if isinstance(shard, ErrorCode):
            return refuse_description(group_id, shard)
        found: DescribedConsumerGroup = shard.kind(GroupType.CONSUMER).describe_group(  # type: ignore[attr-defined]
            shard.groups.get(group_id), group_id
        )
        return found

    def list_groups(self, request: ListGroupsRequest) -> ListGroupsResponse:
        """ListGroups: of the states and types asked for, whatever their case; an unknown word matches nothing."""
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=group.TYPE.value,
            )
            for shard in self.runtime.shards.values()
            if not shard.loading
            for group in shard.groups.values()
            if (not states or group.state.value.lower() in states) and (not types or group.TYPE.value in types)
        ]
        loading = any(shard.loading for shard in self.runtime.shards.values())
        return ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else NONE, groups=groups)

    def delete_groups(self, request: DeleteGroupsRequest, caller: Caller, now_ms: int) -> list[Effect]:
        """DeleteGroups: answered when the tombstones of all the groups are committed."""
        response = DeleteGroupsResponse(results=[])
        gathering = Gathering(caller.call, response)
        effects: list[Effect] = []
        for group_id in dict.fromkeys(request.groups_names):
            result = DeletableGroupResult(group_id=group_id, error_code=NONE)
            response.results.append(result)
            shard = self._shard(group_id, may_be_empty=True)
            if isinstance(shard, ErrorCode):
                result.error_code = shard
            else:
                operation = shard.operation(now_ms)
                result.error_code = shard.delete(operation, group_id, gathering, result)
                effects += operation.effects
        if not gathering.waiting:
            effects.append(Reply(caller.call, response))
        return effects

    def _shard(self, group_id: str, *, may_be_empty: bool = False) -> GroupShard | ErrorCode:
        """The shard of a group, or why it cannot be asked. may_be_empty: offsets may be kept under the empty id."""
        if (not group_id and not may_be_empty) or len(group_id) > GROUP_ID_LENGTH:
            return ErrorCode.INVALID_GROUP_ID
        return self.runtime.find(group_id)

    def _operation(self, shard: GroupShard | ErrorCode, now_ms: int) -> Operation:
        return Operation(now_ms) if isinstance(shard, ErrorCode) else shard.operation(now_ms)


def _refuse_leave(code: ErrorCode) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=code, members=[])


def _reply_unless_waiting(operation: Operation, gathering: Gathering) -> list[Effect]:
    if not gathering.waiting:
        operation.reply(gathering.call, gathering.response)
    return operation.effects


def _admitted(
    operation: Operation,
    shard: GroupShard | ErrorCode,
    error: ErrorCode,
    group_id: str,
    wanted: Mapping[TopicPartition, Commit],
    codes: dict[TopicPartition, ErrorCode],
    caller: Caller,
) -> dict[TopicPartition, Commit]:
    """The commits to write. error: of the group. codes: of partitions refused before; gains those refused here."""
    commits = {}
    for where, commit in wanted.items():
        if where in codes:
            continue
        if isinstance(shard, ErrorCode) or error is not NONE:
            codes[where] = error
        elif not shard.metadata_fits(commit.metadata):
            codes[where] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        else:
            commits[where] = commit
    if isinstance(shard, ErrorCode) or shard.has_room(operation, group_id, commits, caller.client_host):
        return commits
    codes |= dict.fromkeys(commits, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
    return {}


def _store(
    operation: Operation,
    shard: GroupShard | ErrorCode,
    group_id: str,
    commits: dict[TopicPartition, Commit],
    caller: Caller,
    response: OffsetCommitResponse | TxnOffsetCommitResponse,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> None:
    """Have commits written, and answered when they are; at once if there are none."""
    if not commits:
        operation.reply(caller.call, response)
        return
    assert isinstance(shard, GroupShard), shard
    shard.store_offsets(
        operation,
        group_id,
        commits,
        OffsetsStored(commits, caller.call, response),
        caller.client_host,
        producer_id,
        producer_epoch,
    )


LATEST_MS = (1 << 63) - 1
"""The last time that a stored offset's expiry can say: a client may ask for any retention."""


def _commit(each: OffsetCommitRequestPartition, topic_id: bytes, retention_time_ms: int, wall_ms: int) -> Commit:
    has_expiry = retention_time_ms != -1
    return Commit(
        each.committed_offset,
        each.committed_leader_epoch,
        each.committed_metadata or "",
        wall_ms if each.commit_timestamp == -1 else each.commit_timestamp,
        min(wall_ms + retention_time_ms, LATEST_MS) if has_expiry else -1,
        topic_id=ZERO_UUID if has_expiry else topic_id,  # no record has both
    )


def _commit_response(request: OffsetCommitRequest, codes: Mapping[TopicPartition, ErrorCode]) -> OffsetCommitResponse:
    """What is to be answered if the append succeeds: in the order of the request."""
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=codes.get((topic.name, each.partition_index), NONE)
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)


def _txn_commit_response(
    request: TxnOffsetCommitRequest, codes: Mapping[TopicPartition, ErrorCode]
) -> TxnOffsetCommitResponse:
    topics = [
        TxnOffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                TxnOffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=codes.get((topic.name, each.partition_index), NONE)
                )
                for each in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return TxnOffsetCommitResponse(topics=topics)


def refuse_heartbeat(
    request: ConsumerGroupHeartbeatRequest, code: ErrorCode, text: str | None = None
) -> ConsumerGroupHeartbeatResponse:
    """An answer to ConsumerGroupHeartbeat with an error in it."""
    if not request.group_id.strip():
        code, text = ErrorCode.INVALID_REQUEST, "GroupId can't be empty."
    return ConsumerGroupHeartbeatResponse(
        error_code=code,
        error_message=text or code.message,
        member_epoch=0,
        heartbeat_interval_ms=0,
        assignment=None,
    )


def refuse_description(group_id: str, code: ErrorCode, text: str | None = None) -> DescribedConsumerGroup:
    """A group in the answer to ConsumerGroupDescribe, with nothing but an error in it."""
    return DescribedConsumerGroup(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )
