"""Who reads what: the assignors `uniform` and `range` of the coordinator, and how others are found.

An assignor is a function of values: members with what they subscribe to and have, topics with their partitions, to a
target assignment. Both give what Apache Kafka 4.4's classes give (tests/judges/test_assignors.py), down to the order in
which Java's hash tables go through their keys, since which partition moves may hang on it. KIP-848.

Own ones come by the entry point group `kbroker.group_assignors`: an object, or a class without arguments, that has a
`name` and `assign`. `group.consumer.assignors` lists names; the first is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from kbroker.coordinator import java_hash
from kbroker.groups.modern import NOTHING, Assignment
from protocol.namedtuple import NamedTuple

ENTRY_POINTS = "kbroker.group_assignors"
JAVA_NAMES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""What a server.properties of Apache's may call them."""
BALANCING_ROUNDS = 16  # of uniform, where subscriptions differ: each about halves what is out of balance

K = TypeVar("K")
Target: TypeAlias = dict[str, Assignment]
"""By member id. Who is not in it has nothing."""


class MemberSpec(NamedTuple):
    """A member, as an assignor sees it. topics: ids of those that it subscribes to and that exist. assigned: its target
    so far."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    topics: frozenset[bytes]
    assigned: Assignment


class TopicSpec(Protocol):
    """The topics that the group reads."""

    def partitions(self, topic_id: bytes) -> int:
        """How many a topic has; 0 if it is not there."""

    def racks(self, topic_id: bytes, partition: int) -> set[str]:
        """Where the replicas of a partition are; empty if that is not known."""
        ...


class GroupSpec(NamedTuple):
    """A group, as an assignor sees it. is_homogeneous: all members name the same topics, whether those exist or not."""

    members: Mapping[str, MemberSpec]
    is_homogeneous: bool


class Assignor(Protocol):
    """What an entry point gives."""

    @property
    def name(self) -> str:
        """The word by which clients ask for it (group.remote.assignor)."""

    def assign(self, group: GroupSpec, topics: TopicSpec) -> Target:
        """The target assignment. If it raises an error, the group keeps the target that it has."""
        ...


# --- range


class RangeAssignor:
    """Of each topic a run of partitions for each subscriber, so that topics alike are read side by side (KIP-848)."""

    name = "range"

    def assign(self, group: GroupSpec, topics: TopicSpec) -> Target:
        """See Assignor. Static members come first, by instance id: they keep their runs when they come back."""
        order = sorted(group.members.values(), key=_static_first)
        subscribers: dict[bytes, int] = {}
        for member in order:
            for topic in member.topics:
                subscribers[topic] = subscribers.get(topic, 0) + 1
        taken = dict.fromkeys(subscribers, 0)  # subscribers that have got their run
        target: Target = {}
        for member in order:
            runs: dict[bytes, frozenset[int]] = {}
            for topic in member.topics:
                at, count = taken[topic], subscribers[topic]
                taken[topic] = at + 1
                size, larger = divmod(topics.partitions(topic), count)  # the first `larger` get one more
                start = at * size + min(at, larger)
                end = start + size + (at < larger)
                if start < end:
                    runs[topic] = frozenset(range(start, end))
            target[member.member_id] = runs
        return target


def _static_first(member: MemberSpec) -> tuple[bool, bytes]:
    static = member.instance_id is not None
    return not static, utf16((member.instance_id if static else member.member_id) or "")


# --- uniform


class UniformAssignor:
    """As many partitions for each member as for the others, moving as few as that takes (KIP-848)."""

    name = "uniform"

    def assign(self, group: GroupSpec, topics: TopicSpec) -> Target:
        """See Assignor."""
        if not group.members:
            return {}
        order = [group.members[member_id] for member_id in in_java_order(group.members, java_hash)]
        if group.is_homogeneous:
            return _share_alike(order, topics)
        return _Balance(order, topics).target()


def _share_alike(order: Sequence[MemberSpec], topics: TopicSpec) -> Target:
    """All members subscribe to the same topics: each keeps what it has up to its quota, and the rest fills up."""
    wanted = in_java_order(order[0].topics, uuid_hash)
    if not wanted:
        return {}
    counts = {topic: topics.partitions(topic) for topic in wanted}
    owned = {(topic, each) for member in order for topic, parts in member.assigned.items() for each in parts}
    free = [(topic, each) for topic in wanted for each in range(counts[topic]) if (topic, each) not in owned]
    quota, larger = divmod(sum(counts.values()), len(order))
    kept: list[tuple[MemberSpec, dict[bytes, set[int]], int]] = []  # with how many more it gets
    for at, member in enumerate(order):
        has_more = larger > 0
        room = quota + has_more
        keeps: dict[bytes, set[int]] = {}
        for topic in in_java_order(member.assigned, uuid_hash):
            if topic not in counts:
                continue
            parts = in_java_order(sorted(member.assigned[topic]), lambda each: each)
            if parts[:room]:
                keeps[topic] = set(parts[:room])
            free += [(topic, each) for each in parts[room:]]
            room = max(room - len(parts), 0)
        if room and has_more and len(order) - at > larger:  # one of those who come later may have one more already
            room, has_more = room - 1, False
        larger -= has_more
        kept.append((member, keeps, room))
    rest = iter(free)
    for _, keeps, room in kept:
        for _ in range(room):
            found = next(rest, None)
            if found is None:
                break
            keeps.setdefault(found[0], set()).add(found[1])
    return {member.member_id: _frozen(keeps) for member, keeps, _ in kept}


def _frozen(assignment: Mapping[bytes, Iterable[int]]) -> Assignment:
    return {topic: frozenset(parts) for topic, parts in assignment.items()} or NOTHING


class _Balance:
    """Members subscribe to different topics: partitions without an owner go to who has least, then some move.

    Members are numbers, in order. sizes: partitions of each. owners: of each topic's partitions, -1 none.
    """

    def __init__(self, order: Sequence[MemberSpec], topics: TopicSpec) -> None:
        self.order = order
        self.subscribers: dict[bytes, list[int]] = {}
        for at, member in enumerate(order):
            for topic in member.topics:
                self.subscribers.setdefault(topic, []).append(at)
        self.owners = {topic: [-1] * topics.partitions(topic) for topic in self.subscribers}
        self.sizes = [0] * len(order)
        for at, member in enumerate(order):
            for topic in member.assigned.keys() & member.topics:
                owners = self.owners[topic]
                for partition in member.assigned[topic]:
                    if partition < len(owners):
                        owners[partition] = at
                        self.sizes[at] += 1

    def target(self) -> Target:
        """Assign what is free, balance, and say who has what."""
        for topic in self._by_need(topic for topic, owners in self.owners.items() if -1 in owners):
            ladder = _Ladder(self.subscribers[topic], self.sizes)
            owners = self.owners[topic]
            for partition, owner in enumerate(owners):
                if owner < 0:
                    self._give(topic, partition, ladder.least())
        self._balance()
        shares: list[dict[bytes, set[int]]] = [{} for _ in self.order]
        for topic, owners in self.owners.items():
            for partition, owner in enumerate(owners):
                shares[owner].setdefault(topic, set()).add(partition)
        return {member.member_id: _frozen(share) for member, share in zip(self.order, shares, strict=True)}

    def _by_need(self, topics: Iterable[bytes]) -> list[bytes]:
        """Topics with most partitions for each subscriber first; then with fewest subscribers; then by id."""

        def need(topic: bytes) -> tuple[float, int, tuple[int, int]]:
            count = len(self.subscribers[topic])
            return -(len(self.owners[topic]) / count), count, uuid_order(topic)

        return sorted(topics, key=need)

    def _give(self, topic: bytes, partition: int, to: int) -> None:
        owners = self.owners[topic]
        if owners[partition] >= 0:
            self.sizes[owners[partition]] -= 1
        owners[partition] = to
        self.sizes[to] += 1

    def _balance(self) -> None:
        """Go through the topics until a whole round moves nothing, or there were enough rounds."""
        topics = self._by_need(topic for topic, members in self.subscribers.items() if len(members) > 1)
        last_moved = -1
        for _ in range(BALANCING_ROUNDS):
            for at, topic in enumerate(topics):
                if at == last_moved:
                    return
                if self._balance_topic(topic) or last_moved < 0:
                    last_moved = at

    def _balance_topic(self, topic: bytes) -> int:
        """Move partitions of a topic from who has most to who has least. Returns: how many moved."""
        ladder, owners = _Ladder(self.subscribers[topic], self.sizes), self.owners[topic]
        if ladder.spread <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for partition, owner in enumerate(owners):
            owned.setdefault(owner, []).append(partition)
        moved = 0
        while not ladder.is_level:
            giver = ladder.most()
            while giver >= 0 and not owned.get(giver):
                ladder.exclude()
                giver = ladder.most()
            if giver < 0:
                break
            partition, taker = owned[giver].pop(), ladder.least()
            if ladder.is_level:
                break
            self._give(topic, partition, taker)
            moved += 1
        return moved


class _Ladder:
    """The subscribers of a topic by how many partitions they have: whose turn it is to get one, and to give one.

    From below all that have least get one before any gets a second; from above likewise. Sizes are those at the start
    of a range: the ranges alone count, since who is asked may not give in the end. spread: most less least.
    """

    def __init__(self, members: Sequence[int], sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self._members = sorted(members, key=lambda member: (sizes[member], member))
        least, most = sizes[self._members[0]], sizes[self._members[-1]]
        self.spread = most - least
        self._low_end, self._low_size, self._next_low = 0, least - 1, 0
        self._high_start = self._high_end = len(self._members)
        self._high_size, self._next_high = most + 1, len(self._members) - 1

    @property
    def is_level(self) -> bool:
        """Whether a move would not make it better."""
        return self._high_size - self._low_size <= 1

    def least(self) -> int:
        """Who gets the next partition."""
        members, sizes = self._members, self._sizes
        if self._next_low >= self._low_end:
            self._low_size += 1
            while self._low_end < len(members) and sizes[members[self._low_end]] == self._low_size:
                self._low_end += 1
            self._next_low = 0
        self._next_low += 1
        return members[self._next_low - 1]

    def most(self) -> int:
        """Who gives the next partition; -1: there is none left."""
        members, sizes = self._members, self._sizes
        if self._next_high < self._high_start:
            if self._high_end <= self._high_start and self._high_start > 0:  # all of the range have nothing to give
                self._high_size = sizes[members[self._high_start - 1]]
            else:
                self._high_size -= 1
            while self._high_start > 0 and sizes[members[self._high_start - 1]] == self._high_size:
                self._high_start -= 1
            self._next_high = self._high_end - 1
        if self._next_high < 0:
            return -1
        self._next_high -= 1
        return members[self._next_high + 1]

    def exclude(self) -> None:
        """Whom `most` named last has nothing to give."""
        members = self._members
        here, end = self._next_high + 1, self._high_end - 1
        members[here], members[end] = members[end], members[here]
        self._high_end -= 1


# --- the order of Java's hash tables


def in_java_order(keys: Collection[K], hashed: Callable[[K], int]) -> list[K]:
    """Keys in the order in which a HashMap of Java 19 and later goes through them; in one bucket as they come here."""
    buckets = 16
    while len(keys) * 4 > buckets * 3:
        buckets *= 2

    def bucket(key: K) -> int:
        value = hashed(key) & 0xFFFFFFFF
        return (value ^ (value >> 16)) & (buckets - 1)

    return sorted(keys, key=bucket)


def uuid_hash(topic_id: bytes) -> int:
    """The hash code of a Uuid."""
    both = int.from_bytes(topic_id[:8], "big") ^ int.from_bytes(topic_id[8:], "big")
    return (both >> 32) ^ (both & 0xFFFFFFFF)


def uuid_order(topic_id: bytes) -> tuple[int, int]:
    """The order of Uuids: two signed halves."""
    return int.from_bytes(topic_id[:8], "big", signed=True), int.from_bytes(topic_id[8:], "big", signed=True)


def utf16(text: str) -> bytes:
    """The order of strings in Java."""
    return text.encode("utf-16-be", "surrogatepass")


# --- by name


def load_assignors(names: Iterable[str]) -> dict[str, Assignor]:
    """Assignors by their names, in order. Raises: ValueError in one line for a name without one that can be used."""
    known: dict[str, Assignor] = {each.name: each for each in (UniformAssignor(), RangeAssignor())}
    found: dict[str, Assignor] = {}
    for given in names:
        name = JAVA_NAMES.get(given, given)
        assignor = known.get(name) or _by_entry_point(name)
        if assignor is None:
            known_names = ", ".join(known)
            raise ValueError(
                f"group.consumer.assignors={given}: allowed: {known_names}, or an entry point {ENTRY_POINTS}"
            )
        found[assignor.name] = assignor
    return found


def _by_entry_point(name: str) -> Assignor | None:
    from importlib.metadata import entry_points  # only who has one of its own pays for looking

    for each in entry_points(group=ENTRY_POINTS, name=name):
        where = f"group.consumer.assignors={name}: entry point {each.value}: "
        try:
            made = each.load()
            assignor: Assignor = made() if isinstance(made, type) else made
        except Exception as error:
            raise ValueError(f"{where}{type(error).__name__}: {error}") from error
        if not (hasattr(assignor, "name") and hasattr(assignor, "assign")):
            raise ValueError(f"{where}allowed: an object, or a class without arguments, that has name and assign")
        return assignor
    return None
