"""The rules of streams groups (KIP-1071): heartbeats, leaving, fencing, offsets, deletion.

A heartbeat goes one way: who sends it, the topology, the topics, the epoch, the target assignment, the step of this
member towards it. Each of these works on the group as it is and adds records; all are written in one batch, replay
changes the group, and the answer leaves once that is committed. What is refused is raised as KafkaError on the way, and
has changed nothing. Describing is describe.py's.

    timer       per       when it rings
    session     member    it was silent for too long, and is removed
    rebalance   member    it has not let go of tasks in time, and is removed
    initial     group     members have had time to join: the first target assignment is computed
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.groups.group import GroupType
from kbroker.groups.modern import Bounded, ModernGroups, metadata_hash, partition_count
from kbroker.groups.streams import records
from kbroker.groups.streams.assignor import Member, SubtopologyTasks, assign, java_order
from kbroker.groups.streams.group import CLIENT_TAGS, Progress, StreamsGroup, StreamsMember, no_metadata
from kbroker.groups.streams.reconciliation import Epoch, MemberState, compare_epoch, reconcile
from kbroker.groups.streams.requests import check_request, to_stored
from kbroker.groups.streams.tasks import NOTHING, Task, Tasks, from_ids, to_ids
from kbroker.groups.streams.topology import (
    ConfiguredTopology,
    InternalTopic,
    Status,
    configure,
    is_stateful,
    required_topics,
    source_topics,
)
from protocol.errors import ErrorCode, KafkaError, shortened
from protocol.messages import streams_groups as wire
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.coordinator import Caller, Operation, TimerKey
    from kbroker.groups.records import GroupsRecord, KeyedRecord
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataDelta
    from protocol.messages.group_offsets import OffsetCommitRequest
    from protocol.messages.stored_streams_groups import StreamsGroupMemberMetadataValue, StreamsGroupTopologyValue
    from protocol.messages.transactions import TxnOffsetCommitRequest

JOIN, LEAVE, LEAVE_FOR_A_WHILE = 0, -1, -2
NAMES_THE_MEMBER_SINCE = 9  # OffsetCommit
KNOWS_CLIENT_TAGS_SINCE = 1  # StreamsGroupHeartbeat
FAILURES_TOLD = 3
TIMERS = ("session", "rebalance")
STANDBY_REPLICAS = "num.standby.replicas"


class TopicCreation(Protocol):
    """Who creates internal topics, as a heartbeat asks it."""

    def refused(self, names: Collection[str]) -> list[str]:
        """Those of some topics that the sender may not create."""
        ...

    def failures(self, names: Collection[str]) -> list[str]:
        """Which of them could not be created lately, and why."""
        ...


class _Step(NamedTuple):
    """One heartbeat of a member, half done.

    group: not yet in the shard if it is new. member: as it was. replaced: the static member whose place it takes.
    """

    group: StreamsGroup
    request: StreamsGroupHeartbeatRequest
    member: StreamsMember
    replaced: StreamsMember | None
    changes: list[GroupsRecord]
    statuses: list[tuple[Status, str]]


class StreamsGroups(ModernGroups[StreamsGroup]):
    """The rules of streams groups in one shard."""

    TYPE = GroupType.STREAMS

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        config = shard.config
        self.session_timeout = Bounded(
            "streams.session.timeout.ms",
            config.group_streams_session_timeout_ms,
            config.group_streams_min_session_timeout_ms,
            config.group_streams_max_session_timeout_ms,
        )
        self.heartbeat_interval = Bounded(
            "streams.heartbeat.interval.ms",
            config.group_streams_heartbeat_interval_ms,
            config.group_streams_min_heartbeat_interval_ms,
            config.group_streams_max_heartbeat_interval_ms,
        )
        self.assignment_interval = Bounded(
            "streams.assignment.interval.ms",
            config.group_streams_assignment_interval_ms,
            config.group_streams_min_assignment_interval_ms,
            config.group_streams_max_assignment_interval_ms,
        )
        self.standby_replicas = Bounded(
            "streams.num.standby.replicas",
            config.group_streams_num_standby_replicas,
            0,
            config.group_streams_max_standby_replicas,
        )

    # --- settings

    def _task_offset_interval_ms(self, group_id: str) -> int:
        config = self.shard.config
        wanted = self.setting(group_id, "streams.task.offset.interval.ms", config.group_streams_task_offset_interval_ms)
        return max(wanted, config.group_streams_min_task_offset_interval_ms)

    def _assignment_configs(self, group_id: str) -> dict[str, str]:
        """What the assignment depends on besides members and topology, as it is recorded with the epoch."""
        config, own = self.shard.config, self.shard.group_configs(group_id)
        tags = own.get("streams.rack.aware.assignment.tags")
        names = config.group_streams_rack_aware_assignment_tags if tags is None else tags.split(",")
        named = [name.strip() for name in names if name.strip()]
        return {STANDBY_REPLICAS: str(self.standby_replicas.of(own))} | (
            {CLIENT_TAGS: ",".join(named)} if named else {}
        )

    # --- heartbeats

    def streams_heartbeat(
        self,
        operation: Operation,
        request: StreamsGroupHeartbeatRequest,
        caller: Caller,
        creation: TopicCreation,
    ) -> Mapping[str, InternalTopic]:
        """StreamsGroupHeartbeat. Returns: internal topics that have to be created, for the API handler to do.

        creation: what the handler knows of it.
        """
        if self._is_quiet(request, caller):
            self._lives_on(operation, request, caller)
            return {}
        try:
            check_request(request)
            if request.member_epoch in (LEAVE, LEAVE_FOR_A_WHILE):
                self._leave(operation, request, caller)
                return {}
            return self._heartbeat(operation, request, caller, creation)
        except KafkaError as error:
            operation.reply(caller.call, refused_heartbeat(error.code, error.message))
            return {}

    def _is_quiet(self, request: StreamsGroupHeartbeatRequest, caller: Caller) -> bool:
        """As ConsumerGroups._is_quiet: whether a heartbeat says nothing new, and `_heartbeat` would tell nothing."""
        group = self.shard.groups.get(request.group_id)
        if not isinstance(group, StreamsGroup):
            return False
        member = group.members.get(request.member_id)
        return (
            member is not None
            and 0 < request.member_epoch == member.current.epoch == group.assignment_epoch == group.group_epoch
            and member.current.state is MemberState.STABLE
            and group.has_no_news(member)
            and request.endpoint_information_epoch == group.endpoint_epoch
            and request.active_tasks is None
            and request.standby_tasks is None
            and request.warmup_tasks is None
            and request.task_offsets is None
            and request.task_end_offsets is None
            and request.rebalance_timeout_ms == -1
            and (request.instance_id is None or group.instances.get(request.instance_id) == request.member_id)
            and request.rack_id is None
            and request.topology is None
            and request.process_id is None
            and request.user_endpoint is None
            and request.client_tags is None
            and not request.shutdown_application
            and member.about.client_id == caller.client_id
            and member.about.client_host == caller.client_host
            and self._assignment_configs(request.group_id) == group.last_configs
        )

    def _lives_on(self, operation: Operation, request: StreamsGroupHeartbeatRequest, caller: Caller) -> None:
        """Answer a quiet heartbeat."""
        response = self._told(
            request.group_id, request.member_id, request.member_epoch, request.endpoint_information_epoch
        )
        self.shard.write_and_reply(operation, [], caller.call, response, _refused)
        self.restart_session(operation, request.group_id, request.member_id)

    def _heartbeat(
        self,
        operation: Operation,
        request: StreamsGroupHeartbeatRequest,
        caller: Caller,
        creation: TopicCreation,
    ) -> Mapping[str, InternalTopic]:
        step = self._begin(request)
        group, changes = step.group, step.changes
        about = _about(step, caller)
        has_changed = about != step.member.about
        if has_changed:
            changes.append(records.member_record(group.group_id, request.member_id, about))
        moves = _counts_as_change(step.member.about, about) if request.instance_id is not None else has_changed
        topology = self._topology(step)
        if about.topology_epoch < topology.epoch:
            step.statuses.append((Status.STALE_TOPOLOGY, _behind(about.topology_epoch, topology.epoch)))
        configured, topics_hash = self._configure(group, topology)
        _check_tasks(configured, request)
        validated_epoch = topology.epoch if configured.is_ready else -1
        configs = self._assignment_configs(group.group_id)
        epoch = group.group_epoch
        if (
            moves
            or topics_hash != group.metadata_hash
            or validated_epoch != group.validated_epoch
            or configs != group.last_configs
        ):
            epoch += 1
            changes.append(records.epoch_record(group, epoch, topics_hash, validated_epoch, configs))
        delayed_until_ms = self._initial_delay(operation, group)
        updated = step.member._replace(about=about)
        progress = _progress(group.progress.get(request.member_id, Progress()), request)
        target_epoch, target = self._target(
            operation, step, updated, epoch, configured, topology, configs, delayed_until_ms, progress
        )
        updated = self._reconcile(step, updated, target, target_epoch)
        before = step.member if step.replaced is None else step.replaced
        endpoint_epoch = group.endpoint_epoch + _endpoint_moves(before, updated)
        missing = self._tell_missing(step, configured, creation)
        self._tell_rest(step, about, configs, caller)
        response = self._response(step, updated, topology, endpoint_epoch)
        if self.shard.write_and_reply(operation, changes, caller.call, response, _refused):
            self._done(operation, step, updated, configured, endpoint_epoch, delayed_until_ms, progress)
            return missing
        return {}

    def _begin(self, request: StreamsGroupHeartbeatRequest) -> _Step:
        """The group, and the member that speaks. Raises: KafkaError."""
        is_joining = request.member_epoch == JOIN
        changes: list[GroupsRecord] = []
        group = self._group(request.group_id, changes if is_joining else None)
        if request.instance_id is not None:
            member, replaced = self._static_member(group, request, changes)
        else:
            known = group.members.get(request.member_id)
            if known is None:
                if not is_joining:
                    raise _unknown(group.group_id, request.member_id)
                self._check_size(group)
            member, replaced = known or StreamsMember(request.member_id, no_metadata()), None
        if replaced is None:
            _check_epoch(member, request)
        return _Step(group, request, member, replaced, changes, [])

    def _group(self, group_id: str, changes: list[GroupsRecord] | None) -> StreamsGroup:
        """The group; a new one in the place of none, or of an empty classic one. changes: None if there must be one."""
        found = self.shard.groups.get(group_id)
        if isinstance(found, StreamsGroup) and not found.is_going:
            return found
        if found is None or found.is_going:
            if changes is None:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
            return StreamsGroup(group_id)
        if changes is None or found.TYPE is not GroupType.CLASSIC or not found.is_idle:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        changes += self.shard.kind_of(found).tombstones(found)
        return StreamsGroup(group_id)

    def _check_size(self, group: StreamsGroup) -> None:
        most = self.shard.config.group_streams_max_size
        if len(group.members) >= most:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {most} members.",
            )

    def _static_member(
        self, group: StreamsGroup, request: StreamsGroupHeartbeatRequest, changes: list[GroupsRecord]
    ) -> tuple[StreamsMember, StreamsMember | None]:
        """(the member, whose place it takes). A static member that is away gives its place, and its tasks, away."""
        member_id, instance_id = request.member_id, request.instance_id
        holder = group.members.get(group.instances.get(instance_id or "", ""))
        if request.member_epoch != JOIN:
            _check_instance(holder, request)
            assert holder is not None, instance_id
            return holder, None
        if holder is None:
            found = group.members.get(member_id)
            if found is None:
                self._check_size(group)
            return found or StreamsMember(member_id, no_metadata()), None
        if holder.current.epoch != LEAVE_FOR_A_WHILE:
            if holder.member_id == member_id:
                return holder, None
            raise KafkaError(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
                f"id is owned by {holder.member_id} member.",
            )
        back = StreamsMember(member_id, holder.about, holder.current._replace(epoch=0, previous_epoch=0))
        changes += records.member_tombstones(group.group_id, holder.member_id)
        changes.append(records.member_record(group.group_id, member_id, back.about))
        changes.append(records.target_record(group.group_id, member_id, group.target_of(holder.member_id)))
        changes.append(records.current_record(group.group_id, member_id, back.current))
        return back, holder

    # -- topology and topics

    def _topology(self, step: _Step) -> StreamsGroupTopologyValue:
        """The group's topology: that of its first member. Raises: KafkaError."""
        group, asked = step.group, step.request.topology
        known = group.topology
        if asked is None:
            assert known is not None, group.group_id  # only who joins may leave it out, and does not
            return known
        given = to_stored(asked)
        if known is None:
            step.changes.append(records.topology_record(group.group_id, given))
            return given
        if known.epoch <= given.epoch and known != given:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
        return known

    def _configure(self, group: StreamsGroup, topology: StreamsGroupTopologyValue) -> tuple[ConfiguredTopology, int]:
        """The topology beside the topics, and the hash of these; worked out when one of them may be another."""
        if group.configured is not None and group.topology is not None:
            return group.configured, group.metadata_hash
        image = self.shard.image
        configured = configure(topology, lambda name: partition_count(image, name) or None)
        return configured, metadata_hash(image, required_topics(topology))

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """See GroupKind: a group whose topics there is news of looks at them with the next heartbeat."""
        news = set(delta.topics)
        for group in self.groups() if news else ():
            if group.topology is not None and not news.isdisjoint(required_topics(group.topology)):
                group.configured = None

    # -- the target assignment

    def _initial_delay(self, operation: Operation, group: StreamsGroup) -> int | None:
        """Until when members are waited for that may join, None: not; it begins with the first one."""
        if group.members or group.delayed_until_ms is not None:
            return group.delayed_until_ms
        default = self.shard.config.group_streams_initial_rebalance_delay_ms
        delay_ms = self.setting(group.group_id, "streams.initial.rebalance.delay.ms", default)
        return operation.now_ms + delay_ms if delay_ms > 0 else None

    def _target(
        self,
        operation: Operation,
        step: _Step,
        updated: StreamsMember,
        epoch: int,
        configured: ConfiguredTopology,
        topology: StreamsGroupTopologyValue,
        configs: Mapping[str, str],
        delayed_until_ms: int | None,
        progress: Progress,
    ) -> tuple[int, Tasks]:
        """(epoch of the target assignment, the member's share of it), computed now if it is due."""
        group = step.group
        own = group.target_of(updated.member_id if step.replaced is None else step.replaced.member_id)
        if delayed_until_ms is not None:
            step.statuses.append((Status.ASSIGNMENT_DELAYED, _DELAYED.format("initial rebalance delay")))
            return group.assignment_epoch, NOTHING
        if group.assignment_epoch >= epoch:
            return group.assignment_epoch, own
        if not self._is_due(operation, group):
            step.statuses.append((Status.ASSIGNMENT_DELAYED, _DELAYED.format("assignment interval")))
            return group.assignment_epoch, own
        members = dict(group.members)
        targets = dict(group.target)
        said = group.progress | {updated.member_id: progress}
        if step.replaced is not None:
            del members[step.replaced.member_id]
            targets[updated.member_id] = targets.pop(step.replaced.member_id, NOTHING)
        members[updated.member_id] = updated
        found = self._assign(members, targets, said, configured, topology, configs)
        step.changes.extend(_target_records(group.group_id, targets, found, epoch, operation.wall_ms))
        return epoch, found[updated.member_id]

    def _is_due(self, operation: Operation, group: StreamsGroup) -> bool:
        """Whether the last target assignment is old enough (KIP-1263)."""
        interval_ms = self.assignment_interval.of(self.shard.group_configs(group.group_id))
        since_ms = operation.wall_ms - group.assigned_ms
        return not group.assigned_ms or since_ms >= interval_ms or since_ms < 0  # the clock was put back

    def _assign(
        self,
        members: Mapping[str, StreamsMember],
        targets: Mapping[str, Tasks],
        said: Mapping[str, Progress],
        configured: ConfiguredTopology,
        topology: StreamsGroupTopologyValue,
        configs: Mapping[str, str],
    ) -> dict[str, Tasks]:
        """The target assignment of all members; nothing while topics are missing."""
        if not configured.is_ready:
            return dict.fromkeys(members, NOTHING)
        known = [
            Member(
                member_id,
                members[member_id].about.process_id,
                targets.get(member_id, NOTHING),
                said.get(member_id, Progress()).offsets,
            )
            for member_id in java_order(members)
        ]
        parts = [
            SubtopologyTasks(part.subtopology_id, configured.tasks[part.subtopology_id], is_stateful(part))
            for part in topology.subtopologies
        ]
        return assign(known, parts, int(configs[STANDBY_REPLICAS]))

    # -- the member's own step

    def _reconcile(self, step: _Step, member: StreamsMember, target: Tasks, target_epoch: int) -> StreamsMember:
        request, group = step.request, step.group
        owned = owned_tasks(request)
        process_id = member.about.process_id
        current = reconcile(member.current, process_id, target, target_epoch, owned, group.owners)
        if current != member.current:
            step.changes.append(records.current_record(group.group_id, member.member_id, current))
        return member._replace(current=current)

    # -- the answer

    def _tell_missing(
        self, step: _Step, configured: ConfiguredTopology, creation: TopicCreation
    ) -> Mapping[str, InternalTopic]:
        """Say what is wrong with the topics. Returns: those to be created, none if one of them may not be."""
        if configured.problem is None:
            return {}
        status, detail = configured.problem
        refused = creation.refused(configured.missing) if configured.missing else []
        if refused:
            detail += f"; Unauthorized to CREATE on topics {', '.join(refused)}."
        elif failures := creation.failures(configured.missing):
            more = f" and {len(failures) - FAILURES_TOLD} more" if len(failures) > FAILURES_TOLD else ""
            detail += f"; Creation failed: {', '.join(failures[:FAILURES_TOLD])}{more}."
        step.statuses.append((status, detail))
        return {} if refused else configured.missing

    def _tell_rest(
        self, step: _Step, about: StreamsGroupMemberMetadataValue, configs: Mapping[str, str], caller: Caller
    ) -> None:
        asker = step.group.shutdown_requested_by
        if asker is None and step.request.shutdown_application:
            asker = step.request.member_id
        if asker is not None:
            step.statuses.append((Status.SHUTDOWN_APPLICATION, _SHUTDOWN.format(asker)))
        has = {each.key for each in about.client_tags}
        lacks = [name for name in configs.get(CLIENT_TAGS, "").split(",") if name and name not in has]
        if lacks and caller.version >= KNOWS_CLIENT_TAGS_SINCE:
            step.statuses.append((Status.MISSING_CLIENT_TAGS, _TAGS.format(", ".join(lacks))))

    def _response(
        self, step: _Step, updated: StreamsMember, topology: StreamsGroupTopologyValue, endpoint_epoch: int
    ) -> StreamsGroupHeartbeatResponse:
        request, tasks = step.request, updated.current.tasks
        says_all = request.rebalance_timeout_ms != -1 and request.active_tasks is not None  # an answer may be lost
        response = self._told(step.group.group_id, updated.member_id, updated.current.epoch, endpoint_epoch)
        response.status = [wire.Status(status_code=code, status_detail=shortened(why)) for code, why in step.statuses]
        if request.member_epoch == JOIN or says_all or tasks != step.member.current.tasks:
            response.active_tasks = to_ids(tasks.active, wire.TaskIds)
            response.standby_tasks = to_ids(tasks.standby, wire.TaskIds)
            response.warmup_tasks = to_ids(tasks.warmup, wire.TaskIds)
        if endpoint_epoch != request.endpoint_information_epoch:
            response.partitions_by_user_endpoint = self._endpoints(step, updated, topology)
        return response

    def _told(self, group_id: str, member_id: str, epoch: int, endpoint_epoch: int) -> StreamsGroupHeartbeatResponse:
        """What every answer says."""
        lag = self.shard.config.group_streams_acceptable_recovery_lag
        return StreamsGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms(group_id),
            task_offset_interval_ms=self._task_offset_interval_ms(group_id),
            acceptable_recovery_lag=self.setting(group_id, "streams.acceptable.recovery.lag", lag),
            status=[],
            endpoint_information_epoch=endpoint_epoch,
        )

    def _endpoints(
        self, step: _Step, updated: StreamsMember, topology: StreamsGroupTopologyValue
    ) -> list[wire.EndpointToPartitions]:
        """Which partitions the members' endpoints have state of; this member comes last."""
        gone = {updated.member_id} | ({step.replaced.member_id} if step.replaced is not None else set())
        members = [member for member in step.group.members.values() if member.member_id not in gone]
        return [
            wire.EndpointToPartitions(
                user_endpoint=wire.Endpoint(host=endpoint.host, port=endpoint.port),
                active_partitions=self._partitions(topology, member.current.tasks.active),
                standby_partitions=self._partitions(
                    topology, member.current.tasks.standby | member.current.tasks.warmup
                ),
            )
            for member in (*members, updated)
            if (endpoint := member.about.user_endpoint) is not None
        ]

    def _partitions(self, topology: StreamsGroupTopologyValue, tasks: frozenset[Task]) -> list[wire.TopicPartition]:
        """The partitions that tasks read. A topic with fewer partitions than there are tasks has none for the last."""
        found = []
        for part in topology.subtopologies:
            mine = sorted(at for subtopology_id, at in tasks if subtopology_id == part.subtopology_id)
            for name in source_topics(part) if mine else ():
                count = partition_count(self.shard.image, name)
                if there := [at for at in mine if at < count]:
                    found.append(wire.TopicPartition(topic=name, partitions=there))
        return found

    def _done(
        self,
        operation: Operation,
        step: _Step,
        updated: StreamsMember,
        configured: ConfiguredTopology,
        endpoint_epoch: int,
        delayed_until_ms: int | None,
        progress: Progress,
    ) -> None:
        """What is not stored, once what is has been written."""
        group_id, member_id = step.group.group_id, updated.member_id
        group = self.shard.groups[group_id]
        assert isinstance(group, StreamsGroup), group
        group.configured, group.endpoint_epoch = configured, endpoint_epoch
        if progress.offsets or progress.end_offsets:
            group.progress[member_id] = progress
        if step.request.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = member_id
            operation.event(group_id, f"{member_id} asks the whole application to shut down")
        if delayed_until_ms is not None and group.delayed_until_ms is None:
            operation.set_timer("initial", group_id, delayed_until_ms - operation.now_ms)
        group.delayed_until_ms = delayed_until_ms
        if step.replaced is not None and step.replaced.member_id != member_id:
            self.cancel_timers(operation, group_id, step.replaced.member_id, TIMERS)
        self.restart_session(operation, group_id, member_id)
        if updated.current != step.member.current:
            self._restart_rebalance(operation, group_id, updated)

    def _restart_rebalance(self, operation: Operation, group_id: str, member: StreamsMember) -> None:
        """Give a member that must let go of tasks its time for that."""
        if member.current.state is MemberState.UNREVOKED_TASKS:
            operation.set_timer("rebalance", group_id, max(member.about.rebalance_timeout_ms, 0), member.member_id)
        else:
            operation.cancel_timer("rebalance", group_id, member.member_id)

    # --- leaving

    def _leave(self, operation: Operation, request: StreamsGroupHeartbeatRequest, caller: Caller) -> None:
        """A member leaves for good, or, if it is static, for a while. Raises: KafkaError."""
        group = self._group(request.group_id, None)
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise _unknown(group.group_id, request.member_id)
        else:
            member = group.members.get(group.instances.get(request.instance_id, ""))
            _check_instance(member, request)
            assert member is not None, request.instance_id
        response = StreamsGroupHeartbeatResponse(
            error_code=ErrorCode.NONE, member_id=member.member_id, member_epoch=request.member_epoch
        )
        changes: list[GroupsRecord]
        if request.member_epoch == LEAVE_FOR_A_WHILE:
            current = member.current
            away = current._replace(
                epoch=LEAVE_FOR_A_WHILE,
                previous_epoch=current.epoch,
                pending=NOTHING,
                since=dict.fromkeys(current.tasks.active, 0),
            )
            changes = [records.current_record(group.group_id, member.member_id, away)]
        else:
            changes = _removal(group, [member])
        if request.shutdown_application and group.shutdown_requested_by is None:
            group.shutdown_requested_by = member.member_id
        if self.shard.write_and_reply(operation, changes, caller.call, response, _refused):
            timers = TIMERS if request.member_epoch == LEAVE else ("rebalance",)
            self.cancel_timers(operation, group.group_id, member.member_id, timers)
            operation.event(group.group_id, f"{member.member_id} leaves", is_detail=True)

    def fence(self, operation: Operation, group: StreamsGroup, member_ids: list[str], reason: str) -> ErrorCode:
        """See ModernGroups."""
        gone = [group.members[member_id] for member_id in member_ids]
        code = operation.write(_removal(group, gone), None)
        if code is ErrorCode.NONE:
            for member in gone:
                self.cancel_timers(operation, group.group_id, member.member_id, TIMERS)
                operation.event(group.group_id, f"{member.member_id} {reason}, and is removed")
        return code

    # --- time

    def timer(self, operation: Operation, group: StreamsGroup, key: TimerKey) -> None:
        """See GroupKind."""
        if key.kind == "initial":
            group.delayed_until_ms = None
            self._assign_delayed(operation, group)
        elif key.kind == "rebalance":
            member = group.members.get(key.member_id)
            if member is not None and member.current.state is MemberState.UNREVOKED_TASKS:
                code = self.fence(
                    operation, group, [key.member_id], "did not let go of tasks within its rebalance timeout"
                )
                if code is not ErrorCode.NONE:
                    self._restart_rebalance(operation, group.group_id, member)
        else:
            super().timer(operation, group, key)

    def _assign_delayed(self, operation: Operation, group: StreamsGroup) -> None:
        """The members have had time to join: give them a target, so that each has it with its next heartbeat."""
        topology, configured = group.topology, group.configured
        if not group.members or topology is None or configured is None:
            return
        if group.group_epoch <= group.assignment_epoch or not self._is_due(operation, group):
            return
        found = self._assign(group.members, group.target, group.progress, configured, topology, group.last_configs)
        operation.write(
            _target_records(group.group_id, group.target, found, group.group_epoch, operation.wall_ms), None
        )

    # --- the shard's own questions

    def make(self, group_id: str, wall_ms: int | None) -> StreamsGroup:
        """See GroupKind."""
        return StreamsGroup(group_id)

    def replay(self, group: StreamsGroup, record: KeyedRecord) -> bool:
        """See GroupKind."""
        return group.replay(record.key, record.value)  # type: ignore[union-attr]

    def loaded(self, operation: Operation, group: StreamsGroup) -> None:
        """See GroupKind: members have all of their session, and all of their time to let go of tasks."""
        group.count_owners()
        super().loaded(operation, group)
        for member in group.members.values():
            if member.current.state is MemberState.UNREVOKED_TASKS:
                self._restart_rebalance(operation, group.group_id, member)

    def unload(self, operation: Operation, group: StreamsGroup) -> None:
        """See GroupKind."""
        operation.cancel_timer("initial", group.group_id)
        for member_id in group.members:
            self.cancel_timers(operation, group.group_id, member_id, TIMERS)

    # --- offsets

    def commit_error(
        self, operation: Operation, group: StreamsGroup, request: OffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind: a member names itself and its epoch; an older one counts for tasks that it has had since."""
        epoch = request.generation_id_or_member_epoch
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < NAMES_THE_MEMBER_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        return _epoch_error(group, member, epoch, request.topics)

    def transactional_commit_error(
        self, group: StreamsGroup, request: TxnOffsetCommitRequest, version: int
    ) -> ErrorCode:
        """See GroupKind. Before version 6 an epoch of the past is told as a generation of the past."""
        epoch = request.generation_id
        names_no_member = epoch < 0 and not request.member_id and request.group_instance_id is None
        if names_no_member or (epoch < 0 and not group.members):
            return ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code = _epoch_error(group, member, epoch, request.topics)
        return ErrorCode.ILLEGAL_GENERATION if code is ErrorCode.STALE_MEMBER_EPOCH and version < 6 else code

    def fetch_error(self, group: StreamsGroup, member_id: str | None, member_epoch: int) -> ErrorCode:
        """See GroupKind."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = group.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.current.epoch else ErrorCode.STALE_MEMBER_EPOCH

    def offset_delete_error(self, group: StreamsGroup) -> ErrorCode:
        """See GroupKind."""
        return ErrorCode.NONE

    # --- removal

    def tombstones(self, group: StreamsGroup) -> list[GroupsRecord]:
        """See GroupKind."""
        return [*records.group_tombstones(group.group_id)] if group.is_recorded else []

    def forgotten(self, operation: Operation, group: StreamsGroup) -> None:
        """See GroupKind."""
        operation.cancel_timer("initial", group.group_id)


# --- who speaks


def _check_instance(holder: StreamsMember | None, request: StreamsGroupHeartbeatRequest) -> None:
    """Whether a static member speaks for itself. Raises: KafkaError."""
    if holder is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown.")
    if holder.member_id != request.member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced by member "
            f"{holder.member_id}.",
        )


def _check_epoch(member: StreamsMember, request: StreamsGroupHeartbeatRequest) -> None:
    found = compare_epoch(member.current, request.member_epoch, owned_tasks(request))
    if found is not Epoch.GOOD:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The streams group member has a {found.value} member epoch ({request.member_epoch}) than the one known by "
            f"the group coordinator ({member.current.epoch}). The member must abandon all its partitions and rejoin.",
        )


def owned_tasks(request: StreamsGroupHeartbeatRequest) -> Tasks | None:
    """The tasks that a member says it has; None if it does not say."""
    roles = request.active_tasks, request.standby_tasks, request.warmup_tasks
    return None if None in roles else Tasks(*(from_ids(ids or ()) for ids in roles))


def _check_tasks(configured: ConfiguredTopology, request: StreamsGroupHeartbeatRequest) -> None:
    """Whether the member's tasks are there at all. Raises: KafkaError."""
    if not configured.is_ready:
        return
    for subtopology_id, partition in sorted(set().union(*(owned_tasks(request) or NOTHING))):
        count = configured.tasks.get(subtopology_id)
        if count is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Subtopology {subtopology_id} does not exist in the topology.")
        if not 0 <= partition < count:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Task {partition} for subtopology {subtopology_id} is invalid. Number of tasks for this subtopology: "
                f"{count}",
            )


def _about(step: _Step, caller: Caller) -> StreamsGroupMemberMetadataValue:
    """The member as it describes itself now: what it leaves out is what it was."""
    from protocol.messages.stored_streams_groups import Endpoint, KeyValue, StreamsGroupMemberMetadataValue

    request, before = step.request, step.member.about
    endpoint = request.user_endpoint
    known = None if request.member_epoch == JOIN else before.user_endpoint
    tags = request.client_tags
    return StreamsGroupMemberMetadataValue(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        topology_epoch=before.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=before.process_id if request.process_id is None else request.process_id,
        user_endpoint=known if endpoint is None else Endpoint(host=endpoint.host, port=endpoint.port),
        client_tags=before.client_tags
        if tags is None
        else [KeyValue(key=key, value=value) for key, value in sorted({each.key: each.value for each in tags}.items())],
    )


def _counts_as_change(before: StreamsGroupMemberMetadataValue, after: StreamsGroupMemberMetadataValue) -> bool:
    """Whether the assignment may be another because of what a static member says of itself."""
    return (before.topology_epoch, before.rack_id, before.client_tags, before.process_id) != (
        after.topology_epoch,
        after.rack_id,
        after.client_tags,
        after.process_id,
    )


def _progress(before: Progress, request: StreamsGroupHeartbeatRequest) -> Progress:
    offsets, ends = request.task_offsets, request.task_end_offsets
    return Progress(
        before.offsets if offsets is None else _by_task(offsets),
        before.end_offsets if ends is None else _by_task(ends),
    )


def _by_task(said: list[wire.TaskOffset]) -> dict[Task, int]:
    return {(each.subtopology_id, each.partition): each.offset for each in said}


def _endpoint_moves(before: StreamsMember, after: StreamsMember) -> bool:
    """Whether others have to hear of a member's endpoint."""
    if before.about.user_endpoint != after.about.user_endpoint:
        return True
    return after.about.user_endpoint is not None and before.current.tasks != after.current.tasks


# --- epochs and records


def _target_records(
    group_id: str, before: Mapping[str, Tasks], after: Mapping[str, Tasks], epoch: int, wall_ms: int
) -> list[Any]:
    """What makes `after` the target assignment; members whose share is as it was have no record."""
    changed = [member_id for member_id, tasks in after.items() if before.get(member_id) != tasks]
    return [
        *(records.target_record(group_id, member_id, after[member_id]) for member_id in changed),
        records.target_epoch_record(group_id, epoch, wall_ms),
    ]


def _removal(group: StreamsGroup, gone: list[StreamsMember]) -> list[Any]:
    """What removes members. A group without any is as assigned as it can be, and its next target waits for nothing."""
    epoch = group.group_epoch + 1
    changes = [each for member in gone for each in records.member_tombstones(group.group_id, member.member_id)]
    changes.append(records.epoch_record(group, epoch))
    if len(gone) == len(group.members):
        changes.append(records.target_epoch_record(group.group_id, epoch, 0))
    return changes


def _epoch_error(group: StreamsGroup, member: StreamsMember, epoch: int, topics: Any) -> ErrorCode:
    """Whether a member may commit in an epoch (KIP-1251): an older one, if it has had the tasks since then."""
    current = member.current
    if epoch == current.epoch:
        return ErrorCode.NONE
    if epoch > current.epoch or group.topology is None:
        return ErrorCode.STALE_MEMBER_EPOCH
    readers = {name: part.subtopology_id for part in group.topology.subtopologies for name in source_topics(part)}
    for topic in topics:
        for each in topic.partitions:
            since = current.since.get((readers.get(topic.name, ""), each.partition_index))
            if since is None or epoch < since:
                return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def _unknown(group_id: str, member_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _behind(epoch: int, known: int) -> str:
    return f"The member's topology epoch {epoch} is behind the group's topology epoch {known}."


_DELAYED = "Assignment delayed due to the configured {}."
_SHUTDOWN = "Streams group member {} encountered a fatal error and requested a shutdown for the entire application."
_TAGS = (
    "Missing required client tags for rack-aware standby assignment: [{}]. "
    "Configure them via 'client.tag.<tagKey>' in your Streams config."
)


def refused_heartbeat(code: ErrorCode, why: str | None = None) -> StreamsGroupHeartbeatResponse:
    """The answer to a heartbeat that is refused."""
    return StreamsGroupHeartbeatResponse(error_code=code, error_message=why if why is None else shortened(why))


def _refused(code: ErrorCode) -> StreamsGroupHeartbeatResponse:
    return refused_heartbeat(code)
