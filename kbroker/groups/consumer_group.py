"""A consumer group (KIP-848): its members, what each owns, and what follows from that.

Owned by one shard (shard.py), changed by replay alone, through consumer.py. It knows no time, sends and stores nothing.
A member is a value: an operation makes the next one of it, writes that, and replay puts it in the place of the one
before.

    EMPTY                        no member
    ASSIGNING                    the group epoch is greater than the assignment epoch: a target has to be computed
    RECONCILING                  some member has not caught up with the target
    STABLE                       all have
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from kbroker.coordinator import java_hash
from kbroker.groups.assignors import in_java_order
from kbroker.groups.group import CONSUMER, GroupType
from kbroker.groups.modern import MemberState, ModernGroup, State
from protocol.namedtuple import NamedTuple

MAY_FOLLOW = {
    State.EMPTY: {State.ASSIGNING, State.RECONCILING, State.STABLE, State.DEAD},
    State.ASSIGNING: {State.RECONCILING, State.STABLE, State.EMPTY, State.DEAD},
    State.RECONCILING: {State.ASSIGNING, State.STABLE, State.EMPTY, State.DEAD},
    State.STABLE: {State.ASSIGNING, State.RECONCILING, State.EMPTY, State.DEAD},
    State.DEAD: set[State](),
}
"""What may be seen after a state; one batch of records may lead over several."""

LEFT_FOR_A_WHILE = -2  # the epoch of a static member that is away
LEFT = -1
JOINING = 0

Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Partitions by topic id, each with its assignment epoch: that in which the member got it (KIP-1251)."""
NOTHING_OWNED: Owned = {}
NO_PARTITIONS: Mapping[int, int] = {}


class ClassicMember(NamedTuple):
    """What a member says that speaks the classic protocol. protocols: (name, metadata), in order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerGroupMember(NamedTuple):
    """One member.

    member_epoch, previous_epoch: see modern.py; the previous one passes once more, where an answer was lost. names: of
    the topics that it subscribes to, sorted. regex: in RE2 syntax, "": none. assigned: what it owns, or may take now.
    pending_revocation: what it has still to let go of. classic: None for one that speaks KIP-848.
    """

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    names: tuple[str, ...] = ()
    regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMember | None = None
    assigned: Owned = NOTHING_OWNED
    pending_revocation: Owned = NOTHING_OWNED

    @property
    def topics(self) -> tuple[str, ...]:
        """See ModernMember: those that it names."""
        return self.names

    def moved(
        self, member_epoch: int, previous_epoch: int, state: MemberState, assigned: Owned, pending_revocation: Owned
    ) -> ConsumerGroupMember:
        """The same member elsewhere on its way to the target; `_replace` takes three times as long."""
        said = self[4:13]  # instance_id to classic
        return ConsumerGroupMember(self[0], member_epoch, previous_epoch, state, *said, assigned, pending_revocation)

    def owned(self) -> Iterable[tuple[bytes, Mapping[int, int]]]:
        """What no other may have, by topic: what is assigned, then what it has still to let go of."""
        return *self.assigned.items(), *self.pending_revocation.items()

    def says_the_same(self, other: ConsumerGroupMember) -> bool:
        """Whether nothing differs that the record of a member keeps."""
        return self._subscription() == other._subscription()

    def _subscription(self) -> tuple[object, ...]:
        return (
            self.member_id, self.instance_id, self.rack_id, self.rebalance_timeout_ms, self.client_id, self.client_host,
            self.names, self.regex, self.server_assignor, self.classic,
        )  # fmt: skip

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        """Whether it has caught up with the target of this epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch


class ResolvedRegex(NamedTuple):
    """The topics that an expression matches. version, timestamp_ms: of the metadata, and when it was looked up."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


class ConsumerGroup(ModernGroup[ConsumerGroupMember]):
    """The state of a consumer group.

    static: member id by instance id. assignors: how many members want an assignor, by its name. classic_protocols: how
    many classic members support a protocol. owners: member id by partition, of the partitions that have an owner.
    resolved: by expression. regexes: how many members subscribe by an expression. regex_version: of the topics that
    they were looked up in last, as this coordinator counts. rejoining: classic members that are to join again.
    """

    __slots__ = (
        "assignors",
        "classic_members",
        "classic_protocols",
        "owners",
        "regex_version",
        "regexes",
        "rejoining",
        "resolved",
        "static",
    )
    TYPE = GroupType.CONSUMER
    protocol_type = CONSUMER

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.static: dict[str, str] = {}
        self.assignors: dict[str, int] = {}
        self.classic_members = 0
        self.classic_protocols: dict[str, int] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.regexes: dict[str, int] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.regex_version = -1
        self.rejoining: set[str] = set()

    # --- changes, by replay

    def put_member(self, member: ConsumerGroupMember) -> None:
        """See ModernGroup.put_member."""
        before = self.members.get(member.member_id)
        super().put_member(member)
        self._count(before, -1)
        self._count(member, 1)
        self._change_owner(before, member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def move_member(self, member: ConsumerGroupMember) -> None:
        """A member is elsewhere on its way to the target, and says of itself what it did (see `moved`)."""
        self._change_owner(self.members.get(member.member_id), member)
        self.members[member.member_id] = member
        self._state = None

    def remove_member(self, member_id: str) -> ConsumerGroupMember | None:
        """See ModernGroup.remove_member."""
        before = super().remove_member(member_id)
        self.rejoining.discard(member_id)
        self._count(before, -1)
        self._change_owner(before, None)
        if before is not None and before.instance_id is not None and self.static.get(before.instance_id) == member_id:
            del self.static[before.instance_id]  # else the one that has taken its place has it already
        return before

    def _count(self, member: ConsumerGroupMember | None, change: int) -> None:
        if member is None:
            return
        if member.server_assignor is not None:
            _add(self.assignors, member.server_assignor, change)
        if member.regex:
            _add(self.regexes, member.regex, change)
        if member.classic is not None:
            self.classic_members += change
            for name in {name for name, _ in member.classic.protocols}:
                _add(self.classic_protocols, name, change)

    def _change_owner(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """What a member had is free, and what it has is its own."""
        if before is not None:
            for topic, partitions in before.owned():
                owners = self.owners.get(topic, {})
                for partition in partitions:
                    if owners.get(partition) == before.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic, None)
        if after is not None:
            for topic, partitions in after.owned():
                self.owners.setdefault(topic, {}).update(dict.fromkeys(partitions, after.member_id))

    def set_resolved(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Other topics match an expression; None: no member subscribes by it any more."""
        holders = [member for member in self.members.values() if member.regex == regex]
        for member in holders:
            self._count_topics(member, None)
        if resolved is None:
            self.resolved.pop(regex, None)
        else:
            self.resolved[regex] = resolved
        for member in holders:
            self._count_topics(None, member)

    # --- questions

    def topics_of(self, member: ConsumerGroupMember) -> Iterable[str]:
        """Names of the topics that a member subscribes to, by name or by expression."""
        if not member.regex:
            return member.names
        resolved = self.resolved.get(member.regex)
        return member.names if resolved is None else {*member.names, *resolved.topics}

    def work_out_state(self) -> State:
        """See ModernGroup.state."""
        if not self.members:
            return State.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return State.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return State.STABLE
        return State.RECONCILING

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """The member that has an instance id."""
        return None if instance_id is None else self.members.get(self.static.get(instance_id, ""))

    def has_owner(self, topic_id: bytes, partition: int) -> bool:
        """Whether a member has a partition, be it that it has still to let go of it."""
        return partition in self.owners.get(topic_id, ())

    def preferred_assignor(
        self, default: str, before: ConsumerGroupMember | None = None, after: ConsumerGroupMember | None = None
    ) -> str:
        """The assignor that most members want. before, after: a member that is about to change."""
        counts = dict(self.assignors)
        for member, change in ((before, -1), (after, 1)):
            if member is not None and member.server_assignor is not None:
                _add(counts, member.server_assignor, change)
        return max(in_java_order(counts, java_hash), key=counts.__getitem__) if counts else default

    def supports_classic(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a classic member may join: one of its protocols must be known to every other classic member."""
        if protocol_type != CONSUMER:
            return False
        if not self.members:
            return any(True for _ in names)
        return any(self.classic_protocols.get(name, 0) == self.classic_members for name in names)

    def all_others_are_classic(self, member_id: str) -> bool:
        """Whether only this member speaks KIP-848."""
        member = self.members.get(member_id)
        return member is not None and member.classic is None and self.classic_members == len(self.members) - 1

    def waits_for_others(self, member: ConsumerGroupMember) -> bool:
        """Whether something of a member's target has still another owner."""
        return any(
            partition not in member.assigned.get(topic, NO_PARTITIONS) and self.has_owner(topic, partition)
            for topic, partitions in self.target.get(member.member_id, {}).items()
            for partition in partitions
        )


def _add(counts: dict[str, int], key: str, change: int) -> None:
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]
