"""A group of any kind: what its shard (shard.py) asks of it without knowing the kind.

Each kind has its own class of groups (`ClassicGroup`, `ConsumerGroup`, ...), which is state alone, and its own rules
(kinds.py). A group that only keeps offsets is a classic one, until a record says that it is of another kind; its
offsets stay when it changes its kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import ClassVar

from kbroker.groups.offsets import GroupOffsets
from protocol.namedtuple import NamedTuple

CONSUMER = "consumer"  # the protocol type whose metadata names topics


class GroupType(Enum):
    """The kinds of groups; the value is the word on the wire, in ListGroups (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"

    __hash__ = object.__hash__  # there is one of each, and an enum's own is a call of Python


class Aging(NamedTuple):
    """How a group's offsets grow old now (KIP-211).

    since_ms: when their age began; None for each one's own commit. kept: topics that are being read.
    """

    since_ms: int | None = None
    kept: frozenset[str] | set[str] = frozenset()


class Group(ABC):
    """What every kind of group has.

    state: its value is the word on the wire. protocol_type: None for a group that only keeps offsets. committed_from:
    the address of the last client that committed offsets, "" if they were read from the log. changes: moves with each
    record of the group that is replayed, but for offsets, and with news of its topics.
    """

    __slots__ = ("changes", "committed_from", "group_id", "offsets")

    TYPE: ClassVar[GroupType]
    state: Enum
    protocol_type: str | None

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.committed_from = ""
        self.changes = 0
        self.offsets = GroupOffsets()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many members there are."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether there is no member, and none is about to join."""

    @property
    @abstractmethod
    def is_recorded(self) -> bool:
        """Whether the log, up to its end, knows of this group more than offsets."""

    @abstractmethod
    def reads(self, topic: str) -> bool:
        """Whether some member may be reading a topic: if in doubt, yes."""

    @abstractmethod
    def aging(self) -> Aging | None:
        """How offsets grow old; None while they do not."""

    @abstractmethod
    def held(self) -> Iterator[tuple[str, int]]:
        """(address of a client, bytes that are held for it, about), besides offsets; the address may be ""."""

    # --- what follows

    def is_spent_without(self, count: int) -> bool:
        """Whether nothing is left to keep the group for once so many of its offsets are gone."""
        return self.is_idle and len(self.offsets.places()) == count

    @property
    def is_gone(self) -> bool:
        """Whether the log, up to its end, knows of no such group, and no member is about to join it."""
        return self.is_idle and not self.is_recorded and not self.offsets.places()

    @property
    def is_going(self) -> bool:
        """Whether a group has been deleted, and is here only until its tombstones are committed."""
        return self.is_gone and bool(self.offsets)
