"""A streams group (KIP-1071): its members, its topology, what each member has, and what follows from that.

Owned by one shard (shard.py). What is stored is changed by `replay` alone, from the records 17 and 19 to 23 of
__consumer_offsets; what is not stored, and lost with the leadership, is said to be so. Nothing here decides what
happens (membership.py does).

    EMPTY          no member
    NOT_READY      the topology lacks topics, or they do not have the partitions that it needs
    ASSIGNING      the group epoch is greater than the assignment epoch: a target has to be computed
    RECONCILING    some member has not caught up with the target
    STABLE         all have
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kbroker.groups.group import Aging, GroupType
from kbroker.groups.modern import FIRST_EPOCH, ModernGroup, State
from kbroker.groups.streams.reconciliation import Current, MemberState, Owners
from kbroker.groups.streams.tasks import NOTHING, Task, Tasks, from_ids
from kbroker.groups.streams.topology import ConfiguredTopology, source_topics
from protocol.messages.stored_streams_groups import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
    StreamsGroupTopologyValue,
)
from protocol.namedtuple import NamedTuple

GROUP, MEMBER, TARGET, TARGET_OF_MEMBER, CURRENT, TOPOLOGY = 17, 19, 20, 21, 22, 23
"""The types of records' keys. 18 was of Kafka 4.0, before these groups were general."""

CLIENT_TAGS = "rack.aware.assignment.tags"  # among the settings of an assignment

TASK_BYTES = 120  # about what a task of a member takes

_LIVE = {State.NOT_READY, State.ASSIGNING, State.RECONCILING, State.STABLE}
MAY_FOLLOW = {
    State.EMPTY: {*_LIVE, State.DEAD},
    State.NOT_READY: {State.ASSIGNING, State.RECONCILING, State.STABLE, State.EMPTY, State.DEAD},
    State.ASSIGNING: {State.NOT_READY, State.RECONCILING, State.STABLE, State.EMPTY, State.DEAD},
    State.RECONCILING: {State.NOT_READY, State.ASSIGNING, State.STABLE, State.EMPTY, State.DEAD},
    State.STABLE: {State.NOT_READY, State.ASSIGNING, State.RECONCILING, State.EMPTY, State.DEAD},
    State.DEAD: set[State](),
}
"""What may be seen after a state; one batch of records may lead over several."""

_NO_OFFSETS: Mapping[Task, int] = MappingProxyType({})


def no_metadata() -> StreamsGroupMemberMetadataValue:
    """What is known of a member that has not said anything."""
    return StreamsGroupMemberMetadataValue(
        instance_id=None, rack_id=None, client_id="", client_host="", topology_epoch=-1, process_id="", client_tags=[]
    )


class StreamsMember(NamedTuple):
    """A member: a thread of Kafka Streams. about: as it is stored. current: what it has."""

    member_id: str
    about: StreamsGroupMemberMetadataValue
    current: Current = Current()

    @property
    def member_epoch(self) -> int:
        """See ModernMember."""
        return self.current.epoch

    @property
    def client_host(self) -> str:
        """See ModernMember."""
        return self.about.client_host

    @property
    def topics(self) -> tuple[str, ...]:
        """See ModernMember: it is the group's topology that says which."""
        return ()

    @property
    def held_tasks(self) -> Tasks:
        """Given to it, or still to be let go of."""
        return self.current.tasks.with_all(self.current.pending)


class Progress(NamedTuple):
    """How far a member has restored the state of tasks, and how far it has to, as it said last. Not stored."""

    offsets: Mapping[Task, int] = _NO_OFFSETS
    end_offsets: Mapping[Task, int] = _NO_OFFSETS


class StreamsGroup(ModernGroup[StreamsMember]):
    """The state of a group.

    assigned_ms is 0 until there is a first target. validated_epoch: the topology's epoch if its topics are all as
    needed, else -1. last_configs: of the assignment. description_epochs: of the topology descriptions that the plugin
    of an Apache broker has kept, and refused; passed on. instances: member ids by instance id. owners: who has which
    task.
    Not stored: configured, the topology beside the topics, None until it is worked out; progress, by member id;
    delayed_until_ms, the end of the initial rebalance delay; shutdown_requested_by, a member id; endpoint_epoch, counts
    what members are told of each other's endpoints.
    """

    __slots__ = (
        "configured",
        "delayed_until_ms",
        "description_epochs",
        "endpoint_epoch",
        "instances",
        "last_configs",
        "owners",
        "progress",
        "shutdown_requested_by",
        "topology",
        "validated_epoch",
    )

    TYPE = GroupType.STREAMS
    protocol_type = "streams"
    target: dict[str, Tasks]  # type: ignore[assignment]

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.validated_epoch = -1
        self.last_configs: dict[str, str] = {}
        self.description_epochs = (-1, -1)
        self.instances: dict[str, str] = {}
        self.owners = Owners()
        self.topology: StreamsGroupTopologyValue | None = None
        self.configured: ConfiguredTopology | None = None
        self.progress: dict[str, Progress] = {}
        self.delayed_until_ms: int | None = None
        self.shutdown_requested_by: str | None = None
        self.endpoint_epoch = 0

    # --- questions

    def work_out_state(self) -> State:
        """See ModernGroup."""
        if not self.members:
            return State.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return State.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return State.ASSIGNING
        reached = all(each.current.has_reached(self.assignment_epoch) for each in self.members.values())
        return State.STABLE if reached else State.RECONCILING

    def has_no_news(self, member: StreamsMember) -> bool:
        """Whether the group has its topics, and nothing that a member is told with each heartbeat until it is over."""
        topology, configured = self.topology, self.configured
        return (
            topology is not None
            and configured is not None
            and configured.is_ready
            and self.validated_epoch == topology.epoch <= member.about.topology_epoch
            and self.delayed_until_ms is None
            and self.shutdown_requested_by is None
            and CLIENT_TAGS not in self.last_configs
        )

    @property
    def is_recorded(self) -> bool:
        """See Group."""
        return super().is_recorded or self.topology is not None

    def reads(self, topic: str) -> bool:
        """See Group."""
        return topic in self._read_topics()

    def aging(self) -> Aging | None:
        """See Group: each offset since its own commit, unless members read the topic."""
        return Aging(None, self._read_topics())

    def _read_topics(self) -> set[str]:
        parts = () if self.topology is None or not self.members else self.topology.subtopologies
        return {topic for part in parts for topic in source_topics(part)}

    def held(self) -> Iterator[tuple[str, int]]:
        """See Group."""
        yield from super().held()
        for member in self.members.values():
            said = self.progress.get(member.member_id, Progress())
            count = sum(map(len, member.held_tasks)) + len(said.offsets) + len(said.end_offsets)
            yield member.client_host, TASK_BYTES * count

    def target_of(self, member_id: str) -> Tasks:
        """A member's target assignment; nothing if it has none."""
        return self.target.get(member_id, NOTHING)

    # --- the way into state

    def replay(self, key: Any, value: Any) -> bool:
        """Apply a record. Returns: whether it says that the group is gone."""
        kind = key.versions[0]
        if kind == GROUP:
            if value is None:
                return True
            self.set_epoch(value.epoch, value.metadata_hash)
            self.validated_epoch = value.validated_topology_epoch
            self.last_configs = {each.key: each.value for each in value.last_assignment_configs or ()}
            self.description_epochs = (value.stored_description_topology_epoch, value.failed_description_topology_epoch)
        elif kind == MEMBER:
            self._replay_member(key.member_id, value)
        elif kind == TARGET:
            if value is None:
                self.set_assignment_epoch(FIRST_EPOCH)
            else:
                self.set_assignment_epoch(value.assignment_epoch, value.assignment_timestamp)
        elif kind == TARGET_OF_MEMBER:
            if value is None:
                self.target.pop(key.member_id, None)
            else:
                roles = value.active_tasks, value.standby_tasks, value.warmup_tasks
                self.target[key.member_id] = Tasks(*map(from_ids, roles))
        elif kind == CURRENT:
            self._replay_current(key.member_id, value)
        elif kind == TOPOLOGY:
            self.topology, self.configured, self._state = value, None, None
        return False

    def _replay_member(self, member_id: str, about: StreamsGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        if about is not None:
            self._put(before, StreamsMember(member_id, about, Current() if before is None else before.current))
            if about.instance_id is not None:
                self.instances[about.instance_id] = member_id
        elif before is not None:
            self.owners.remove(before.held_tasks, before.about.process_id)
            self.remove_member(member_id)
            self.progress.pop(member_id, None)
            instance_id = before.about.instance_id
            if instance_id is not None and self.instances.get(instance_id) == member_id:
                del self.instances[instance_id]
            if not self.members:
                self.shutdown_requested_by = None

    def _replay_current(self, member_id: str, value: StreamsGroupCurrentMemberAssignmentValue | None) -> None:
        before = self.members.get(member_id)
        if before is not None or value is not None:
            about = no_metadata() if before is None else before.about
            self._put(before, StreamsMember(member_id, about, Current() if value is None else current_of(value)))

    def _put(self, before: StreamsMember | None, after: StreamsMember) -> None:
        if before is not None:
            self.owners.remove(before.held_tasks, before.about.process_id)
        self.owners.add(after.held_tasks, after.about.process_id)
        self.put_member(after)

    def count_owners(self) -> None:
        """Work out again who has which task: a log that was compacted may have told it in an order that never was."""
        self.owners = Owners()
        for member in self.members.values():
            self.owners.add(member.held_tasks, member.about.process_id)


def current_of(value: StreamsGroupCurrentMemberAssignmentValue) -> Current:
    """A member's current assignment, as its record says."""
    since: dict[Task, int] = {}
    for ids in (*value.active_tasks, *value.active_tasks_pending_revocation):
        epochs = ids.assignment_epochs
        if epochs is None or len(epochs) != len(ids.partitions):
            epochs = [value.member_epoch] * len(ids.partitions)
        since.update(((ids.subtopology_id, at), epoch) for at, epoch in zip(ids.partitions, epochs, strict=True))
    pending = (
        value.active_tasks_pending_revocation,
        value.standby_tasks_pending_revocation,
        value.warmup_tasks_pending_revocation,
    )
    return Current(
        value.member_epoch,
        value.previous_member_epoch,
        MemberState(value.state) if value.state in list(MemberState) else MemberState.UNKNOWN,
        Tasks(*map(from_ids, (value.active_tasks, value.standby_tasks, value.warmup_tasks))),
        Tasks(*map(from_ids, pending)),
        since,
    )
