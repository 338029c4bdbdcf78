"""The in-flight records of one share-partition, as stretches of offsets that have the same fate.

Owned by `share_partition.py`, which says what becomes of them. Here they are found, cut and joined again: a stretch
costs the same whether it holds one record or a million, and most do hold what was fetched together.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class RecordState(IntEnum):
    """What a record is to a share group; the value is what is stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # on its way into the dead letter queue (KIP-1191)
    ARCHIVED = 4


AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVING, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVING, RecordState.ARCHIVED
TERMINAL = frozenset({ACKNOWLEDGED, ARCHIVED})

MAY_FOLLOW = {
    AVAILABLE: {ACQUIRED, ARCHIVED},  # archived: the log does not have it any more
    ACQUIRED: {AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED},
    ARCHIVING: {ARCHIVED},
    ACKNOWLEDGED: set[RecordState](),
    ARCHIVED: set[RecordState](),
}


class Stretch:
    """Records in a row with the same fate. first, last: offsets, both included.

    count: deliveries so far. member_id, deadline_ms: whose they are until when, if they are acquired. fetched: how many
    records were acquired together with these at first. pending: the state that is being written, None if none is.
    """

    __slots__ = ("count", "deadline_ms", "fetched", "first", "last", "member_id", "pending", "state")

    def __init__(self, first: int, last: int, state: RecordState, count: int, fetched: int = 0) -> None:
        self.first, self.last, self.state, self.count = first, _one(first, last), state, count
        self.fetched = fetched or last - first + 1
        self.member_id = ""
        self.deadline_ms = 0
        self.pending: RecordState | None = None

    @property
    def size(self) -> int:
        """How many offsets."""
        return self.last - self.first + 1

    @property
    def is_free(self) -> bool:
        """Whether these can be acquired."""
        return self.state is AVAILABLE and self.pending is None

    @property
    def is_over(self) -> bool:
        """Whether nothing can become of these any more."""
        return self.state in TERMINAL and self.pending is None

    def become(self, state: RecordState) -> None:
        """Change the state; no member's lock is on it then."""
        assert state in MAY_FOLLOW[self.state], (self, state)
        self.state, self.pending = state, None
        self.member_id, self.deadline_ms = "", 0

    def acquire(self, member_id: str, deadline_ms: int) -> None:
        """Deliver these once more: locked for a member until a time."""
        assert self.is_free, self
        self.state, self.member_id, self.deadline_ms = ACQUIRED, member_id, deadline_ms
        self.count += 1

    def _part(self, first: int, last: int) -> Stretch:
        made = Stretch(first, last, self.state, self.count, self.fetched)
        made.member_id, made.deadline_ms = self.member_id, self.deadline_ms
        return made

    def cut(self, first: int, last: int) -> tuple[list[Stretch], list[Stretch]]:
        """Become only `first` to `last`; returns what was before it, and behind it."""
        assert self.pending is None, self
        assert self.first <= first <= last <= self.last, (self, first, last)
        before = [self._part(self.first, first - 1)] if self.first < first else []
        behind = [self._part(last + 1, self.last)] if last < self.last else []
        self.first, self.last = first, _one(first, last)
        return before, behind

    def __repr__(self) -> str:
        owner = f" {self.member_id} until {self.deadline_ms}" if self.member_id else ""
        becomes = "" if self.pending is None else f" -> {self.pending.name}"
        return f"<{self.first}-{self.last} {self.state.name}{becomes} x{self.count}{owner}>"


_first = attrgetter("first")


def _one(first: int, last: int) -> int:
    """The last of two offsets; the same object as the first if they are equal: there may be very many such."""
    return first if last == first else last


class InFlight:
    """Stretches in the order of their offsets; between two of them may be offsets of which nothing is known."""

    __slots__ = ("stretches",)

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []

    def __len__(self) -> int:
        return len(self.stretches)

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self.stretches)

    @property
    def end_offset(self) -> int:
        """Behind the last one. There is one."""
        return self.stretches[-1].last + 1

    def at_or_behind(self, offset: int) -> int:
        """The index of the stretch that holds an offset, or of the next one; their number if there is none."""
        at = bisect_right(self.stretches, offset, key=_first) - 1
        return at if at >= 0 and self.stretches[at].last >= offset else at + 1

    def add(self, stretch: Stretch) -> None:
        """One of offsets of which nothing was known."""
        at = self.at_or_behind(stretch.first)
        assert at == len(self.stretches) or self.stretches[at].first > stretch.last, (stretch, self.stretches[at])
        self.stretches.insert(at, stretch)

    def cut(self, at: int, first: int, last: int) -> int:
        """Cut the stretch at an index so that one of it is `first` to `last`; returns the index of that."""
        stretch = self.stretches[at]
        if stretch.first == first and stretch.last == last:
            return at
        before, behind = stretch.cut(first, last)
        self.stretches[at : at + 1] = [*before, stretch, *behind]
        return at + len(before)

    def join(self) -> None:
        """Make one stretch of neighbours that are over: that is all there is to be known of them."""
        stretches = self.stretches
        if not any(map(_are_joinable, stretches, stretches[1:])):
            return
        joined = stretches[:1]
        for stretch in stretches[1:]:
            if _are_joinable(joined[-1], stretch):
                joined[-1].last = stretch.last
            else:
                joined.append(stretch)
        self.stretches = joined

    def drop_below(self, offset: int) -> None:
        """Forget what lies below an offset, but what is being written."""
        stretches = self.stretches
        at = 0
        while at < len(stretches) and stretches[at].first < offset:
            stretch = stretches[at]
            if stretch.pending is not None:
                at += 1
            elif stretch.last < offset:
                del stretches[at]
            else:
                stretch.cut(offset, stretch.last)
                break


def _are_joinable(one: Stretch, next_one: Stretch) -> bool:
    return one.is_over and next_one.is_over and one.last + 1 == next_one.first
