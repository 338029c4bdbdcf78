"""A classic group: its state, its members, its generation, and the moves between states that are legal.

Owned by one shard (shard.py). What is stored of it (`replay`) changes by replay alone; who has joined a rebalance, and
who waits, changes by the rules of membership.py, and is forgotten with the shard. It keeps itself consistent and
decides what follows from its members alone: which protocol wins, who leads, whether all have joined. It knows no
time but `wall_ms`, sends nothing and stores nothing.

EMPTY -> PREPARING_REBALANCE (members join) -> COMPLETING_REBALANCE (the leader assigns) -> STABLE -> PREPARING again.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from enum import Enum

from kbroker.coordinator.effects import Caller
from kbroker.groups.group import CONSUMER, Aging, Group, GroupType
from protocol.messages.stored import GroupMetadataValue, MemberMetadata
from protocol.primitives import utf8

GROUP_BYTES, MEMBER_BYTES = 2_000, 1_000  # of the objects themselves


class State(Enum):
    """The five states; the value is the word on the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY, DEAD, STABLE = State.EMPTY, State.DEAD, State.STABLE
PREPARING, COMPLETING = State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE

MAY_FOLLOW = {
    EMPTY: {PREPARING, DEAD},
    PREPARING: {COMPLETING, EMPTY, DEAD},
    COMPLETING: {STABLE, PREPARING, DEAD},
    STABLE: {PREPARING, DEAD},
    DEAD: set[State](),
}

Protocols = list[tuple[str, bytes]]  # (name, metadata), in order of preference


class Member:
    """One member. is_new: has not been told its id by a completed join, so it cannot send heartbeats yet."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        protocols: Protocols | None = None,
        *,
        instance_id: str | None = None,
        client_id: str = "",
        client_host: str = "/",
        session_timeout_ms: int = 0,
        rebalance_timeout_ms: int = 0,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.protocols = protocols or []
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.assignment = assignment
        self.is_new = False

    def metadata(self, protocol: str) -> bytes:
        """What the member says under one of its protocols."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    @property
    def said_bytes(self) -> int:
        """How much it says under all of its protocols."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def replay(self, stored: MemberMetadata, protocol: str) -> None:
        """Become what a record says, made under this protocol."""
        self.member_id = stored.member_id
        self.instance_id = stored.group_instance_id
        self.client_id = stored.client_id
        self.client_host = stored.client_host
        self.session_timeout_ms = stored.session_timeout
        self.rebalance_timeout_ms = stored.rebalance_timeout
        self.assignment = bytes(stored.assignment)
        said = protocol, bytes(stored.subscription)
        if said not in self.protocols:
            self.protocols = [said]

    def __repr__(self) -> str:
        return f"Member({self.member_id}{'' if self.instance_id is None else f', instance {self.instance_id}'})"


class ClassicGroup(Group):
    """A classic group and everything the coordinator knows of it.

    protocol_type: None until the first member, and for a group that only keeps offsets. protocol: the one picked for
    the present generation. state_since_ms: None if the record that it was loaded from does not say.
    joining, syncing: the calls parked by member id. pending_members: member ids handed out and not used yet.
    unsynced: members of the generation whose SyncGroup is still to come. storing: a generation whose assignment is
    being written. extend_join: a member joined during the initial delay. initial_left_ms, initial_delay_ms: how far the
    initial delay may still be extended, and how long its present stretch is; None outside of it.
    """

    __slots__ = (
        "_support",
        "extend_join",
        "generation",
        "initial_delay_ms",
        "initial_left_ms",
        "joining",
        "leader",
        "members",
        "pending_members",
        "protocol",
        "protocol_type",
        "state",
        "state_since_ms",
        "static",
        "storing",
        "subscribed",
        "syncing",
        "unsynced",
    )

    TYPE = GroupType.CLASSIC

    def __init__(self, group_id: str, wall_ms: int | None) -> None:
        super().__init__(group_id)
        self.state: State = EMPTY
        self.state_since_ms = wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # member id by instance id
        self.pending_members: dict[str, None] = {}
        self.joining: dict[str, Caller] = {}
        self.syncing: dict[str, Caller] = {}
        self.unsynced: set[str] = set()
        self.storing: int | None = None
        self.extend_join = False
        self.initial_left_ms: int | None = None
        self.initial_delay_ms = 0
        self.subscribed: set[str] | None = None  # topics, None where metadata cannot be read
        self._support: Counter[str] = Counter()  # members by protocol

    # --- states

    def become(self, state: State, wall_ms: int) -> None:
        """Move to a state that may follow the present one."""
        assert state in MAY_FOLLOW[self.state], f"{self.group_id}: {self.state.name} -> {state.name}"
        self.state = state
        self.state_since_ms = wall_ms

    @property
    def may_rebalance(self) -> bool:
        """Whether a new rebalance may begin now."""
        return PREPARING in MAY_FOLLOW[self.state]

    # --- members

    def member_of(self, instance_id: str | None) -> str | None:
        """The id of the static member that has this instance id, which may be empty; None: a dynamic one has none."""
        return None if instance_id is None else self.static.get(instance_id)

    def add(self, member: Member) -> None:
        """Take a member in. The first one leads, and settles the type of protocol."""
        assert member.member_id not in self.members, member
        if member.instance_id is not None:
            assert member.instance_id not in self.static, member
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self._support.update({name for name, _ in member.protocols})
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Forget a member, or an id handed out. If it led, the member that has been here longest does."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._support.subtract({name for name, _ in member.protocols})
            if member.instance_id is not None:
                del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.joining.pop(member_id, None)
        self.syncing.pop(member_id, None)
        self.pending_members.pop(member_id, None)
        self.unsynced.discard(member_id)

    def update(self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int) -> None:
        """Take over what a member that joins again says now."""
        self._support.subtract({name for name, _ in member.protocols})
        self._support.update({name for name, _ in protocols})
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def rename(self, old_id: str, new_id: str) -> Member:
        """Give a static member a new id; it keeps its assignment, its leadership and its place."""
        assert new_id not in self.members, new_id
        member = self.members[old_id]
        assert member.instance_id is not None, member
        self.members = {new_id if key == old_id else key: value for key, value in self.members.items()}
        member.member_id = new_id
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.unsynced:
            self.unsynced.remove(old_id)
            self.unsynced.add(new_id)
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance may take: the longest that any member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def everybody_joined(self) -> bool:
        """Whether a join need not wait any longer."""
        return len(self.joining) == len(self.members) and not self.pending_members

    # --- protocols

    def supports(self, protocol_type: str, names: set[str]) -> bool:
        """Whether a member with these protocols may join: one of them must be known to every member."""
        if self.state is EMPTY:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and any(self._support[name] == len(self.members) for name in names)

    def vote(self) -> str:
        """The protocol that wins among the members there are."""
        return elect_protocol(list(self.members.values()))

    # --- generations

    def elect_joined_leader(self) -> bool:
        """See to it that the leader is among those who have joined; false if no member has."""
        if self.leader is not None and self.leader not in self.joining and self.joining:
            self.leader = next(member_id for member_id in self.members if member_id in self.joining)
        return self.leader in self.joining

    def next_generation(self, wall_ms: int) -> None:
        """Begin a generation with the members there are; without any the group is empty."""
        assert self.state is PREPARING, self.state
        self.generation += 1
        self.protocol = self.vote() if self.members else None
        self.subscribed = self.read_subscriptions()
        self.unsynced.clear()
        self.storing = None
        self.become(COMPLETING if self.members else EMPTY, wall_ms)

    def replay(self, stored: GroupMetadataValue | None) -> None:
        """Become what a record says: the one way for what is stored, live and when the group is loaded.

        Members that are here already keep what no record holds: protocols that were not chosen, calls parked. A static
        member's new id takes the old one's place. None: there is no such group any more.
        """
        stored = stored or GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[])
        before = self.members
        self.members = {}
        for each in stored.members:
            old_id = self.member_of(each.group_instance_id)
            member = before.get(each.member_id) or before.get(old_id or "") or Member(each.member_id)
            member.replay(each, stored.protocol or "")
            self.members[each.member_id] = member
        for member_id in before.keys() - self.members.keys():
            self.unsynced.discard(member_id)
        self.static = {each.instance_id: key for key, each in self.members.items() if each.instance_id is not None}
        self._support = Counter(name for each in self.members.values() for name in {name for name, _ in each.protocols})
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol = stored.protocol
        self.leader = stored.leader
        self.state_since_ms = None if stored.current_state_timestamp == -1 else stored.current_state_timestamp
        self.subscribed = self.read_subscriptions()

    def read_subscriptions(self) -> set[str] | None:
        """The topics that the members read; None if they do not say so in a way we can read."""
        if self.protocol_type != CONSUMER:
            return None
        if not self.members:
            return set()
        if self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscription = subscribed_topics(member.metadata(self.protocol))
            if subscription is None:
                return None
            topics |= subscription
        return topics

    # --- what its shard asks

    @property
    def size(self) -> int:
        """See Group.size."""
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        """See Group.is_idle."""
        return self.state is EMPTY and not self.pending_members

    @property
    def is_recorded(self) -> bool:
        """See Group.is_recorded. A group that only keeps offsets has no generation, and no record of its own."""
        return self.generation > 0

    def reads(self, topic: str) -> bool:
        """See Group.reads."""
        return self.subscribed is None or topic in self.subscribed

    def aging(self) -> Aging | None:
        """See Group.aging: of a group without members since it has none, else of topics without a reader."""
        if self.protocol_type is None:
            return Aging()
        if self.state is EMPTY:
            return Aging(self.state_since_ms)
        if self.state is STABLE and self.protocol_type == CONSUMER and self.subscribed is not None:
            return Aging(None, self.subscribed)
        return None

    def held(self) -> Iterator[tuple[str, int]]:
        """See Group.held."""
        yield "", GROUP_BYTES + len(self.group_id) + MEMBER_BYTES * len(self.pending_members)
        for member in self.members.values():
            about = MEMBER_BYTES + len(member.member_id) + len(member.instance_id or "") + len(member.assignment)
            yield member.client_host, about + member.said_bytes


def elect_protocol(members: list[Member]) -> str:
    """The protocol that wins: of those that all support, each member votes for the one it prefers."""
    assert members
    everybodys = set.intersection(*({name for name, _ in member.protocols} for member in members))
    assert everybodys, members
    votes = Counter(next(name for name, _ in member.protocols if name in everybodys) for member in members)
    return max(votes, key=votes.__getitem__)  # a tie goes to the vote of the member that has been here longest


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a consumer's metadata, None if it is something else.

    Only the beginning is read, which all versions of ConsumerProtocolSubscription have in common:

        0  int16  version
        2  int32  number of topics
        6  (int16 length, name) each
    """
    try:
        version, count = struct.unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0:
            return None
        position = 6
        topics = set()
        for _ in range(count):
            (length,) = struct.unpack_from(">h", metadata, position)
            name = metadata[position + 2 : position + 2 + length]
            if length < 0 or len(name) < length:
                return None
            topics.add(utf8(name))
            position += 2 + length
    except struct.error:
        return None
    return topics
