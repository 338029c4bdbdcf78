"""Reconciliation of a member of a Streams group: step by step from the tasks it has to those of its target assignment.

A task is given only when it is free. An active task is free when no member has it as one. A process never has a task
in two roles at once, or twice, for its threads share the state directory: in each role a task is free for a member
when the member's process does not have it. What a member must let go of, it lets go of first: until it has said so, it
stays at its epoch and gets nothing new.

A pure function from values to values, called by membership.py with the result of each heartbeat; what it returns is
written as a record. Source: KIP-1071, "Assignment"; the states are those of KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType

from kbroker.groups.streams.tasks import NOTHING, Task, Tasks
from protocol.namedtuple import NamedTuple


class MemberState(IntEnum):
    """Where a member is on its way. The numbers are those of the record."""

    STABLE = 0  # it has all of its target, as of its epoch
    UNREVOKED_TASKS = 1  # it must let go of tasks, and has not said that it has
    UNRELEASED_TASKS = 2  # it has let go; tasks of its target are still with others
    UNKNOWN = 127  # of a record of a newer Kafka


_KNOWN = frozenset({MemberState.STABLE, MemberState.UNREVOKED_TASKS, MemberState.UNRELEASED_TASKS})
MAY_FOLLOW: Mapping[MemberState, frozenset[MemberState]] = {state: _KNOWN - {state} for state in MemberState}
"""A new target assignment may come in each state. Only a record of a newer Kafka makes a member UNKNOWN."""


class Owners:
    """Which processes have a task, in which role: those that a member was given, or has still to let go of.

    active: the process; standby, warmup: all of them.
    """

    __slots__ = ("active", "standby", "warmup")

    def __init__(self) -> None:
        self.active: dict[Task, str] = {}
        self.standby: dict[Task, set[str]] = {}
        self.warmup: dict[Task, set[str]] = {}

    def add(self, tasks: Tasks, process_id: str) -> None:
        """A process has these tasks from now on."""
        self.active.update(dict.fromkeys(tasks.active, process_id))
        for copies, having in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for task in having:
                copies.setdefault(task, set()).add(process_id)

    def remove(self, tasks: Tasks, process_id: str) -> None:
        """A process has these tasks no longer; nothing if others have them, as half of a compacted log may say."""
        for task in tasks.active:
            if self.active.get(task) == process_id:
                del self.active[task]
        for copies, having in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for task in having:
                processes = copies.get(task, set())
                processes.discard(process_id)
                if not processes:
                    copies.pop(task, None)

    def active_is_free(self, task: Task, process_id: str) -> bool:
        """Whether a member of this process may get a task as its active one."""
        return task not in self.active and not self._has_copy(task, process_id)

    def copy_is_free(self, task: Task, process_id: str) -> bool:
        """Whether a member of this process may get a task as a standby or warm-up task."""
        return self.active.get(task) != process_id and not self._has_copy(task, process_id)

    def _has_copy(self, task: Task, process_id: str) -> bool:
        return process_id in self.standby.get(task, ()) or process_id in self.warmup.get(task, ())


_NEVER: Mapping[Task, int] = MappingProxyType({})


class Current(NamedTuple):
    """What a member has: its current assignment, as it is recorded.

    epoch: 0 has just joined, -2 a static member that is away. tasks: given to it. pending: to be let go of, not in
    `tasks`. since: the epoch in which each active task, pending ones too, was given to it.
    """

    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    tasks: Tasks = NOTHING
    pending: Tasks = NOTHING
    since: Mapping[Task, int] = _NEVER

    def has_reached(self, target_epoch: int) -> bool:
        """Whether there is nothing left to be done for a target."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch


class Epoch(Enum):
    """How the epoch that a member names compares to the one it is known by."""

    GOOD = "good"
    GREATER = "greater"
    SMALLER = "smaller"


def compare_epoch(current: Current, epoch: int, owned: Tasks | None) -> Epoch:
    """Whether a heartbeat comes from the member that is known.

    Epoch 0 joins again. The one before is good if what the member has is within what it was given: the answer with the
    present one may have been lost.
    """
    if epoch in (0, current.epoch):
        return Epoch.GOOD
    if epoch > current.epoch:
        return Epoch.GREATER
    lost_answer = epoch == current.previous_epoch and owned is not None and owned.within(current.tasks)
    return Epoch.GOOD if lost_answer else Epoch.SMALLER


def reconcile(
    current: Current, process_id: str, target: Tasks, target_epoch: int, owned: Tasks | None, owners: Owners
) -> Current:
    """The next step of a member towards its target; the same value if there is none now.

    owned: the tasks that the member says it has, None if it did not say. owners: of all tasks, this member's too.
    """
    if current.has_reached(target_epoch):
        return current
    epoch = current.epoch
    if current.state is MemberState.UNREVOKED_TASKS:
        if owned is None or owned.overlaps(current.pending):
            return current
        epoch += 1
    elif current.state is MemberState.UNKNOWN:
        epoch = target_epoch
    return _step(current, epoch, process_id, target, target_epoch, owned, owners)


def _step(
    current: Current,
    epoch: int,
    process_id: str,
    target: Tasks,
    target_epoch: int,
    owned: Tasks | None,
    owners: Owners,
) -> Current:
    kept = Tasks(*(have & want for have, want in zip(current.tasks, target, strict=True)))
    surplus = Tasks(*(have - want for have, want in zip(current.tasks, target, strict=True)))
    if surplus.has_any() and (owned is None or owned.overlaps(surplus)):
        since = {task: current.since[task] for task in kept.active | surplus.active}
        return Current(epoch, current.epoch, MemberState.UNREVOKED_TASKS, kept, surplus, since)
    wanted = Tasks(*(want - have for have, want in zip(current.tasks, target, strict=True)))
    free = Tasks(
        _free(wanted.active, process_id, owners.active_is_free),
        _free(wanted.standby, process_id, owners.copy_is_free),
        _free(wanted.warmup, process_id, owners.copy_is_free),
    )
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED_TASKS
    since = {task: current.since[task] for task in kept.active} | dict.fromkeys(free.active, target_epoch)
    return Current(target_epoch, current.epoch, state, kept.with_all(free), NOTHING, since)


def _free(tasks: frozenset[Task], process_id: str, is_free: Callable[[Task, str], bool]) -> frozenset[Task]:
    return frozenset(task for task in tasks if is_free(task, process_id))
