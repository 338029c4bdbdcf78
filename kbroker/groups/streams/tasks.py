"""Tasks of Kafka Streams, and what a member of a Streams group has of them: active, standby and warm-up tasks.

A task is a subtopology and a partition of its input. Values only: from and to the arrays of the protocol, and the
questions that assignment and reconciliation ask of sets of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias, TypeVar

from protocol.namedtuple import NamedTuple

Task: TypeAlias = tuple[str, int]
"""(subtopology id, partition)."""

NO_TASKS: frozenset[Task] = frozenset()
T = TypeVar("T")


class Tasks(NamedTuple):
    """Tasks by role.

    active: processes the records. standby: keeps a copy of the state. warmup: builds a copy, to take the task over.
    """

    active: frozenset[Task] = NO_TASKS
    standby: frozenset[Task] = NO_TASKS
    warmup: frozenset[Task] = NO_TASKS

    def has_any(self) -> bool:
        """Whether there is a task of any role."""
        return bool(self.active or self.standby or self.warmup)

    def overlaps(self, other: Tasks) -> bool:
        """Whether a task is in both, in the same role."""
        return not (
            self.active.isdisjoint(other.active)
            and self.standby.isdisjoint(other.standby)
            and self.warmup.isdisjoint(other.warmup)
        )

    def within(self, other: Tasks) -> bool:
        """Whether the other has all of these, in the same roles."""
        return self.active <= other.active and self.standby <= other.standby and self.warmup <= other.warmup

    def with_all(self, other: Tasks) -> Tasks:
        """The tasks of both."""
        return Tasks(self.active | other.active, self.standby | other.standby, self.warmup | other.warmup)


NOTHING = Tasks()


def from_ids(ids: Iterable[Any]) -> frozenset[Task]:
    """The tasks in an array of TaskIds, of any message."""
    return frozenset((each.subtopology_id, partition) for each in ids for partition in each.partitions)


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """Partitions by subtopology, both in order."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return found


def to_ids(tasks: Iterable[Task], kind: type[T]) -> list[T]:
    """An array of TaskIds. kind: the class that the message has for them."""
    make: Any = kind
    return [
        make(subtopology_id=subtopology_id, partitions=partitions)
        for subtopology_id, partitions in by_subtopology(tasks).items()
    ]
