"""What the groups of Kafka 4 have in common: members with epochs, and a target assignment that the coordinator makes.

Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) are subclasses of `ModernGroup`, the
state, and of `ModernGroups`, the rules. Epochs count:

    group epoch         moves whenever members, their subscriptions, or the topics that they read do
    assignment epoch    the group epoch that the target assignment was computed for
    member epoch        the assignment epoch that the member has caught up with

All that is stored changes by replay alone. An operation works out records from what is there, writes them in one batch,
and is answered when that is committed (`GroupShard.write_and_reply`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from kbroker.coordinator.effects import SetTimer, TimerKey
from kbroker.groups.group import Aging, Group
from kbroker.groups.kinds import GroupKind
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.coordinator import Operation
    from kbroker.coordinator.effects import Call
    from kbroker.groups.shard import GroupShard
    from kbroker.metadata.cache import MetadataCache, MetadataDelta
    from protocol.message import Message

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Partitions by topic id."""
NOTHING: Assignment = {}
FIRST_EPOCH = 1  # of a group that has had no member yet; that of its first member is the next one
MEMBER_BYTES, GROUP_BYTES = 1_500, 3_000  # of the objects themselves, about


class State(Enum):
    """The states of all kinds; the value is the word on the wire. NOT_READY is of streams groups alone."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"
    NOT_READY = "NotReady"


class MemberState(Enum):
    """Where a member is on its way to the target; the value is the number in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


class ModernMember(Protocol):
    """What every kind of member has."""

    @property
    def member_id(self) -> str:
        """Made up by the client, from version 1 of the heartbeat on."""

    @property
    def member_epoch(self) -> int:
        """The assignment epoch it has caught up with; -2: a static member that is away."""
        ...

    @property
    def client_host(self) -> str:
        """Its address, with a slash in front."""
        ...

    @property
    def topics(self) -> Iterable[str]:
        """Names of the topics that it subscribes to, whether they exist or not."""
        ...


M = TypeVar("M", bound=ModernMember)


class ModernGroup(Group, Generic[M]):
    """The state of a group.

    metadata_hash: of the topics that are read, as they were when the group epoch moved last. subscribers: how many
    members subscribe to a topic, by its name. target: the target assignment by member id. assigned_ms: when it was
    computed, by the wall clock. refresh_ms: when the topics
    are looked at again, 0 for at once; None: when they change. That is known to this coordinator alone.
    """

    __slots__ = (
        "_state",
        "assigned_ms",
        "assignment_epoch",
        "group_epoch",
        "members",
        "metadata_hash",
        "refresh_ms",
        "subscribers",
        "target",
    )
    protocol_type: str

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.members: dict[str, M] = {}
        self.group_epoch = self.assignment_epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assigned_ms = 0
        self.subscribers: dict[str, int] = {}
        self.target: dict[str, Assignment] = {}
        self.refresh_ms: int | None = 0
        self._state: State | None = None

    # --- changes, by replay

    def put_member(self, member: M) -> None:
        """A member is new, or has changed."""
        before = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._count_topics(before, member)
        self._state = None

    def remove_member(self, member_id: str) -> M | None:
        """A member is gone. Returns: what it was; None if it was not there."""
        before = self.members.pop(member_id, None)
        self._count_topics(before, None)
        self._state = None
        return before

    def set_epoch(self, group_epoch: int, metadata_hash: int) -> None:
        """The group epoch has moved."""
        self.group_epoch, self.metadata_hash = group_epoch, metadata_hash
        self._state = None

    def set_target(self, member_id: str, assignment: Assignment | None) -> None:
        """What a member shall have in the end; None: it is gone."""
        if assignment is None:
            self.target.pop(member_id, None)
        else:
            self.target[member_id] = assignment

    def set_assignment_epoch(self, assignment_epoch: int, assigned_ms: int = 0) -> None:
        """The target is the one for this group epoch. assigned_ms: by the wall clock; 0 if that does not matter."""
        self.assignment_epoch, self.assigned_ms = assignment_epoch, assigned_ms
        self._state = None

    def _count_topics(self, before: M | None, after: M | None) -> None:
        gone, new = self._topics_of(before), self._topics_of(after)
        if gone is not new:  # a member that only goes on to its target keeps them
            _count(self.subscribers, gone, -1)
            _count(self.subscribers, new, 1)

    def _topics_of(self, member: M | None) -> Iterable[str]:
        return () if member is None else self.topics_of(member)

    # --- questions

    @property
    def state(self) -> State:  # type: ignore[override]
        """What follows from members and epochs; worked out when it is asked for."""
        if self._state is None:
            self._state = self.work_out_state()
        return self._state

    def topics_of(self, member: M) -> Iterable[str]:
        """Names of the topics that a member subscribes to, each once."""
        return member.topics

    @abstractmethod
    def work_out_state(self) -> State:
        """The state that follows from members and epochs now."""

    def subscribers_with(self, before: M | None, after: M | None) -> dict[str, int]:
        """How many would subscribe to each topic if a member changed."""
        counts = dict(self.subscribers)
        _count(counts, self._topics_of(before), -1)
        _count(counts, self._topics_of(after), 1)
        return counts

    # --- what its shard asks

    @property
    def size(self) -> int:
        """See Group.size."""
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        """See Group.is_idle."""
        return not self.members

    @property
    def is_recorded(self) -> bool:
        """See Group.is_recorded."""
        return self.group_epoch > FIRST_EPOCH or bool(self.members)

    def reads(self, topic: str) -> bool:
        """See Group.reads."""
        return topic in self.subscribers

    def aging(self) -> Aging | None:
        """See Group.aging: each offset since its own commit, unless a member subscribes to the topic."""
        return Aging(None, set(self.subscribers))

    def held(self) -> Iterator[tuple[str, int]]:
        """See Group.held."""
        yield "", GROUP_BYTES + len(self.group_id)
        for member in self.members.values():
            yield member.client_host, MEMBER_BYTES + len(member.member_id) + sum(map(len, member.topics))


def _count(counts: dict[str, int], topics: Iterable[str], change: int) -> None:
    for topic in topics:
        now = counts.get(topic, 0) + change
        if now:
            counts[topic] = now
        else:
            del counts[topic]


class Quiet:
    """Of a heartbeat that said nothing new and was told nothing, how long the same one is answered the same.

    That is as long as nothing has been written of its group, the group's topics and settings are what they were, and
    all that the shard has written is committed. All else that such a heartbeat does is to begin its session again.
    """

    __slots__ = ("_changes", "_group", "_session", "_session_ms", "_settings", "_shard")

    def __init__(self, shard: GroupShard, group: ModernGroup[Any], session: TimerKey, session_ms: int) -> None:
        self._shard, self._group, self._session, self._session_ms = shard, group, session, session_ms
        self._changes, self._settings = group.changes, shard.group_configs(group.group_id)

    def holds(self, now_ms: int) -> bool:
        """See Again."""
        shard, group = self._shard, self._group
        if (
            group.changes != self._changes
            or shard.waiting
            or shard.written_end > shard.high_watermark
            or shard.groups.get(group.group_id) is not group
            or shard.group_configs(group.group_id) is not self._settings
        ):
            return False
        shard.set_timer(self._session, now_ms + self._session_ms)
        return True


class Bounded:
    """A number that a group may have set for itself (resource type GROUP), as near as the broker allows (KIP-1240)."""

    __slots__ = ("_default", "_least", "_most", "_name")

    def __init__(self, name: str, default: int, least: int, most: int) -> None:
        self._name, self._least, self._most = name, least, most
        self._default = self._within(default)

    def of(self, said: Mapping[str, str]) -> int:
        """For a group of which this is set."""
        return self._within(int(said[self._name])) if self._name in said else self._default

    def _within(self, wanted: int) -> int:
        return min(max(wanted, self._least), self._most)


G = TypeVar("G", bound=ModernGroup[Any])


class ModernGroups(GroupKind, Generic[G]):
    """Rules that the kinds share. Their settings are the subclass's."""

    session_timeout: Bounded
    heartbeat_interval: Bounded

    def session_timeout_ms(self, group_id: str) -> int:
        """How long a member of a group may be silent."""
        return self.session_timeout.of(self.shard.group_configs(group_id))

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often it is asked to send a heartbeat."""
        return self.heartbeat_interval.of(self.shard.group_configs(group_id))

    @abstractmethod
    def fence(self, operation: Operation, group: G, member_ids: list[str], reason: str) -> ErrorCode:
        """Remove members, and have the others take over. Returns: NONE, or why that could not be written."""

    def groups(self) -> list[G]:
        """All groups of this kind in the shard."""
        return [group for group in self.shard.groups.values() if group.TYPE is self.TYPE]  # type: ignore[misc]

    # --- settings

    def setting(self, group_id: str, name: str, default: int) -> int:
        """A number that may be set for the group alone (resource type GROUP)."""
        text = self.shard.group_configs(group_id).get(name)
        return default if text is None else int(text)

    # --- timers

    def live_on(
        self,
        operation: Operation,
        group: G,
        member_id: str,
        call: Call,
        response: Message,
        refused: Callable[[ErrorCode], Message],
    ) -> None:
        """Answer a heartbeat that says nothing new, and is told nothing."""
        session = TimerKey("session", operation.partition, group.group_id, member_id)
        session_ms = self.session_timeout_ms(group.group_id)
        self.shard.write_and_reply(
            operation, [], call, response, refused, Quiet(self.shard, group, session, session_ms)
        )
        operation.effects.append(SetTimer(session, operation.now_ms + session_ms))

    def restart_session(self, operation: Operation, group_id: str, member_id: str) -> None:
        """The member has been heard of."""
        operation.set_timer("session", group_id, self.session_timeout_ms(group_id), member_id)

    def cancel_timers(
        self, operation: Operation, group_id: str, member_id: str, kinds: Iterable[str] = ("session",)
    ) -> None:
        """The member is gone."""
        for kind in kinds:
            operation.cancel_timer(kind, group_id, member_id)

    def timer(self, operation: Operation, group: G, key: TimerKey) -> None:
        """See GroupKind.timer: of all kinds, a member that was silent for its session is fenced."""
        assert key.kind == "session", key
        if key.member_id in group.members:
            code = self.fence(operation, group, [key.member_id], "sent no heartbeat within its session timeout")
            if code is not ErrorCode.NONE:  # the log refused it: once more
                self.restart_session(operation, group.group_id, key.member_id)

    def loaded(self, operation: Operation, group: G) -> None:
        """See GroupKind.loaded: sessions start again."""
        for member_id in group.members:
            self.restart_session(operation, group.group_id, member_id)

    def unload(self, operation: Operation, group: G) -> None:
        """See GroupKind.unload."""
        for member_id in group.members:
            self.cancel_timers(operation, group.group_id, member_id)

    # --- removal

    def delete_error(self, group: G) -> ErrorCode:
        """See GroupKind.delete_error."""
        return ErrorCode.NON_EMPTY_GROUP if group.members else ErrorCode.NONE

    # --- topics

    def new_metadata_image(self, operation: Operation, delta: MetadataDelta) -> None:
        """See GroupKind.new_metadata_image: readers of a topic with news look at it with their next heartbeat."""
        news = set(delta.topics)
        for group in self.groups() if news else ():
            if not group.subscribers.keys().isdisjoint(news):
                group.refresh_ms = 0
                group.changes += 1


# --- the image of the cluster, as groups see it


def partition_count(image: MetadataCache, topic: str) -> int:
    """How many partitions a topic has; 0 if it is not there. One that never had a leader may not be in the image."""
    found = image.topics.get(topic)
    return max(found.partitions) + 1 if found is not None and found.partitions else 0


def racks(image: MetadataCache, topic: str, partition: int) -> set[str]:
    """The racks of a partition's replicas."""
    state = image.partition(topic, partition)
    nodes = () if state is None else state.replicas
    found = (image.brokers[node].rack for node in nodes if node in image.brokers)
    return {rack for rack in found if rack is not None}


def metadata_hash(image: MetadataCache, topics: Iterable[str]) -> int:
    """A number that changes when ids, partitions or racks of topics do (KIP-1101); 0 if none of them is there."""
    known = sorted(topic for topic in topics if topic in image.topics)
    if not known:
        return 0
    whole = blake2b(digest_size=8)
    for topic in known:
        whole.update(_topic_hash(image, topic))
    return int.from_bytes(whole.digest(), "big", signed=True)


def _topic_hash(image: MetadataCache, topic: str) -> bytes:
    key = "topic hash", topic
    found: bytes | None = image.memo.get(key)
    if found is None:
        count = partition_count(image, topic)
        where = [sorted(racks(image, topic, partition)) for partition in range(count)]
        found = blake2b(repr((topic, image.topic_id(topic), where)).encode(), digest_size=8).digest()
        image.memo[key] = found
    return found
