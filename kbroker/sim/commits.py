"""What groups were promised: assignments by generation, and committed offsets; part of `checks.py`.

A commit whose answer is lost may count or not, now or a little later; two that overlap in time may come in either
order. So each partition of a group has a few candidates for its committed offset, and an OffsetFetch must answer with
one of them: never with an offset that a later commit has replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.sim.world import World

Where = tuple[str, int]

NOTHING = -1
"""The committed offset of a partition that has none."""

STRAGGLER_MS = 20_000
"""A commit that was sent longer ago, and not answered, will not arrive any more."""


class Commit:
    """One offset on its way. answered_ms: None while its outcome is unknown."""

    __slots__ = ("answered_ms", "offset", "sent_ms")

    def __init__(self, offset: int, sent_ms: int) -> None:
        self.offset = offset
        self.sent_ms = sent_ms
        self.answered_ms: int | None = None


class GroupHistory:
    """What is known of all groups of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.generations = 0
        self.committed = 0
        self._owners: dict[tuple[str, int, int], dict[Where, str]] = {}
        self._commits: dict[tuple[str, Where], list[Commit]] = {}
        self._unknown: set[tuple[str, Where]] = set()  # a power cut may have taken the last commits
        self._losses = 0
        self._going: set[str] = set()  # topics whose committed offsets may go at any time

    def lost_power(self) -> None:
        """What was committed and not yet durable may be gone."""
        self._losses += 1
        self._unknown.update(self._commits)

    def topic_may_go(self, topic: str, *, goes: bool) -> None:
        """A topic's deletion was asked for, or has come to its end: its offsets went with it, or were kept."""
        if goes:
            self._going.add(topic)
        else:
            self._going.discard(topic)
        self._unknown.update(key for key in self._commits if key[1][0] == topic)

    # ---- assignments

    def assigned(self, group: str, generation: int, member: str, places: Iterable[Where], losses: int) -> None:
        """A member was told its part. losses: power cuts when it asked: they may bring back a generation's number."""
        owners = self._owners.get((group, generation, losses))
        if owners is None:
            owners = self._owners[group, generation, losses] = {}
            self.generations += 1
        for where in places:
            owner = owners.setdefault(where, member)
            if owner != member:
                raise self.world.broken(f"{group}, generation {generation}: {where} belongs to {owner} and {member}")

    # ---- offsets

    def committing(self, group: str, where: Where, offset: int) -> Commit:
        """A commit is sent."""
        commit = Commit(offset, self.world.now_ms)
        self._commits.setdefault((group, where), [_nothing()]).append(commit)
        return commit

    def answered(self, group: str, where: Where, commit: Commit, *, accepted: bool) -> None:
        """A commit was answered: it counts, or it never will."""
        key = group, where
        commits = self._commits[key]
        if not accepted:
            commits.remove(commit)
            return
        self.committed += 1
        commit.answered_ms = self.world.now_ms
        self._commits[key] = [each for each in commits if not _is_over(each, commit)]
        if where[0] not in self._going:
            self._unknown.discard(key)

    def candidates(self, group: str, where: Where) -> set[int] | None:
        """What an OffsetFetch may answer now; None: anything."""
        if (group, where) in self._unknown or where[0] in self._going:
            return None
        return {commit.offset for commit in self._commits.get((group, where), (_nothing(),))}

    def fetched(self, group: str, where: Where, offset: int, before: set[int] | None) -> None:
        """An OffsetFetch was answered. before: the candidates when it was sent."""
        now = self.candidates(group, where)
        if before is not None and now is not None and offset not in before | now:
            raise self.world.broken(
                f"{group}: {where} is committed at {offset}, and not at one of {sorted(before | now)}"
            )


def _nothing() -> Commit:
    nothing = Commit(NOTHING, 0)
    nothing.answered_ms = 0
    return nothing


def _is_over(each: Commit, later: Commit) -> bool:
    """Whether one commit cannot be what counts once a later one has been accepted."""
    if each is later:
        return False
    if each.answered_ms is None:
        return each.sent_ms + STRAGGLER_MS < later.sent_ms
    return each.answered_ms < later.sent_ms
