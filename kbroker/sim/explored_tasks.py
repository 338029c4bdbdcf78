"""A model for the explorer (explorer.py): the reconciliation of a Streams group (KIP-1071).

Its members and their network are in `explored_members.py`; each has a process of its own. What must hold besides: no
task is active with two members, as the coordinator knows them and as the members themselves do; no process has a task
in two roles.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import product

from kbroker.groups.streams.reconciliation import Current, Epoch, Owners, compare_epoch, reconcile
from kbroker.groups.streams.tasks import NOTHING, Task, Tasks
from kbroker.sim.explored_members import MemberModel, MemberWorld


class TaskModel(MemberModel[Current, Tasks]):
    """targets: how many target assignments there are at most. with_standby: each may have a standby task, too."""

    def __init__(self, *, members: int = 2, tasks: int = 1, targets: int = 3, with_standby: bool = True) -> None:
        super().__init__(members, list(_assignments(members, tasks, with_standby=with_standby)), targets, NOTHING)

    def _joined(self, member: int) -> Current:
        return Current()

    def _fences(self, current: Current, epoch: int, said: Tasks | None) -> bool:
        return compare_epoch(current, epoch, said) is not Epoch.GOOD

    def _reconcile(self, current: Current, member: int, state: MemberWorld, said: Tasks | None) -> Current:
        owners = self._owners(state.known)
        return reconcile(current, f"process {member}", state.target[member], state.target_epoch, said, owners)

    def _owners(self, known: Iterable[Current | None]) -> Owners:
        owners = Owners()
        for member, current in enumerate(known):
            if current is not None:
                owners.add(current.tasks.with_all(current.pending), f"process {member}")
        return owners

    def _epoch(self, known: Current) -> int:
        return known.epoch

    def _given(self, known: Current) -> Tasks:
        return known.tasks

    def _has_reached(self, known: Current, target_epoch: int) -> bool:
        return known.has_reached(target_epoch)

    def key(self, state: MemberWorld) -> Hashable:
        """All but the epochs in which tasks were given, which decide nothing here."""
        known = tuple(current and current[:5] for current in state.known)
        return known, state.clients, state.target, state.target_epoch

    def _shared(self, state: MemberWorld) -> str | None:
        given = [current.tasks.with_all(current.pending) for current in state.known if current is not None]
        present = [each.owned for each, current in zip(state.clients, state.known, strict=True) if current is not None]
        for what, several in (("given to", given), ("with", present)):
            for task in set().union(*(tasks.active for tasks in several)):
                if sum(task in tasks.active for tasks in several) > 1:
                    return f"{task} is {what} two members"
            if any(tasks.active & tasks.standby for tasks in several):
                return f"a process has a task in two roles: {several}"
        return None


def _assignments(members: int, tasks: int, *, with_standby: bool) -> Iterator[tuple[Tasks, ...]]:
    """Every way to give each task to a member or none, with a standby task at another member or none."""
    places = [
        (active, standby)
        for active in (None, *range(members))
        for standby in ((None, *range(members)) if with_standby and active is not None else (None,))
        if standby is None or standby != active
    ]
    names: list[Task] = [("0", partition) for partition in range(tasks)]
    for chosen in product(places, repeat=tasks):
        yield tuple(
            Tasks(
                frozenset(task for task, (active, _) in zip(names, chosen, strict=True) if active == member),
                frozenset(task for task, (_, standby) in zip(names, chosen, strict=True) if standby == member),
            )
            for member in range(members)
        )
