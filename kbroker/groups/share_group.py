"""A share group: its members, what each reads from, and which share-partitions have begun (KIP-932).

State alone, changed by replay (`share.py` has the rules). A member takes its target at once: no member has to let go of
anything first, since members read the same partitions together.

    uninitialized -> initializing (the share coordinator is asked) -> initialized, and from then on assigned
                                                                   -> deleting (it is asked to forget)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kbroker.groups.group import GroupType
from kbroker.groups.modern import NOTHING, Assignment, ModernGroup, State
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    Begun: TypeAlias = Mapping[bytes, tuple[str, frozenset[int]]]
    """By topic id: the topic's name, and partitions."""

LEFT = -1


class ShareMember(NamedTuple):
    """One member. topics: names, sorted. assigned: what it reads from, by its member epoch."""

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = 0
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = "/"
    topics: tuple[str, ...] = ()
    assigned: Assignment = NOTHING


class ShareGroup(ModernGroup[ShareMember]):
    """The state of a group. asked_ms: when the share coordinator was asked to begin with a topic, by this coordinator.

    has_settled: all that members subscribe to has begun and is assigned, as a heartbeat has found; until the epoch
    moves, other share-partitions begin, or there is news of the topics (refresh_ms). This coordinator alone knows it.
    """

    __slots__ = ("asked_ms", "deleting", "has_settled", "initialized", "initializing")

    TYPE = GroupType.SHARE
    protocol_type = "share"

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.initializing: Begun = {}
        self.initialized: Begun = {}
        self.deleting: Mapping[bytes, str] = {}
        self.asked_ms: dict[bytes, int] = {}
        self.has_settled = False

    def work_out_state(self) -> State:
        """See ModernGroup.work_out_state."""
        return State.STABLE if self.members else State.EMPTY

    def set_begun(self, initializing: Begun, initialized: Begun, deleting: Mapping[bytes, str]) -> None:
        """Which share-partitions the share coordinator has, or is asked for."""
        self.initializing, self.initialized, self.deleting = initializing, initialized, deleting
        self.has_settled = False

    def set_epoch(self, group_epoch: int, metadata_hash: int) -> None:
        """See ModernGroup.set_epoch."""
        super().set_epoch(group_epoch, metadata_hash)
        self.has_settled = False

    @property
    def is_recorded(self) -> bool:
        """See Group.is_recorded."""
        return super().is_recorded or bool(self.initializing or self.initialized or self.deleting)

    def assignable(self, topic_id: bytes) -> frozenset[int]:
        """The partitions of a topic that have begun."""
        return self.initialized.get(topic_id, ("", frozenset()))[1]

    def places(self) -> Iterator[tuple[bytes, int]]:
        """All share-partitions that the share coordinator may have."""
        for begun in (self.initialized, self.initializing):
            for topic_id, (_, partitions) in begun.items():
                for partition in sorted(partitions):
                    yield topic_id, partition


def merged(one: Begun, other: Begun) -> dict[bytes, tuple[str, frozenset[int]]]:
    """Both together."""
    found = dict(one)
    for topic_id, (name, partitions) in other.items():
        found[topic_id] = name, found.get(topic_id, (name, frozenset[int]()))[1] | partitions
    return found


def without(one: Begun, other: Mapping[bytes, Iterable[int]]) -> dict[bytes, tuple[str, frozenset[int]]]:
    """One without the partitions of the other."""
    found = {}
    for topic_id, (name, partitions) in one.items():
        left = partitions - frozenset(other.get(topic_id, ()))
        if left:
            found[topic_id] = name, left
    return found
