"""A model for the explorer (explorer.py): the reconciliation of a Streams group, its members and their network.

Members have a process each. The target assignment changes at will, a few times. A member sends a heartbeat, and the
answer arrives or is lost. What an answer tells it to let go of and to take, it does later, before its next heartbeat or
after it; until it has, its heartbeats do not say what it has, as those of Apache's client. A member that is fenced
drops everything and joins again. A member may be removed, as when its session runs out: what that client then still
does is its own affair until it is told, as in Kafka.

What must hold: no task is active with two members, as the coordinator knows them and as the members themselves do; no
process has a task in two roles; a member's epoch never goes back, nor past the target's; and whoever waits, waits for
something: when nothing moves any more, all have reached the target.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import product
from typing import TypeAlias, TypeVar

from kbroker.groups.streams.reconciliation import Current, Epoch, Owners, compare_epoch, reconcile
from kbroker.groups.streams.tasks import NOTHING, Task, Tasks
from protocol.namedtuple import NamedTuple

T = TypeVar("T")


class Client(NamedTuple):
    """A member as it knows itself. owned: what it has. told: what it was told last to have; None nothing new."""

    epoch: int = 0
    owned: Tasks = NOTHING
    told: Tasks | None = None


class TaskWorld(NamedTuple):
    """known: the members as the coordinator knows them, None for one that it does not know."""

    known: tuple[Current | None, ...]
    clients: tuple[Client, ...]
    target: tuple[Tasks, ...]
    target_epoch: int


class NewTarget(NamedTuple):
    """The assignor has run."""

    target: tuple[Tasks, ...]


class Heartbeat(NamedTuple):
    """A member's heartbeat is handled; the answer arrives, or is lost."""

    member: int
    is_answered: bool


class Obeys(NamedTuple):
    """A member does what it was told."""

    member: int


class Removed(NamedTuple):
    """The coordinator removes a member."""

    member: int


TaskEvent: TypeAlias = NewTarget | Heartbeat | Obeys | Removed


class TaskModel:
    """targets: how many target assignments there are at most. with_standby: each may have a standby task, too."""

    def __init__(self, *, members: int = 2, tasks: int = 1, targets: int = 3, with_standby: bool = True) -> None:
        self._members = range(members)
        self._targets = targets
        self._choices = list(_assignments(members, tasks, with_standby=with_standby))

    def begins(self) -> list[TaskWorld]:
        """Members that have not joined; nothing is assigned."""
        count = len(self._members)
        return [TaskWorld((None,) * count, (Client(),) * count, (NOTHING,) * count, 1)]

    def events(self, state: TaskWorld) -> Iterator[TaskEvent]:
        """See the top of this file."""
        yield from self._moves(state)
        for member in self._members:
            yield Heartbeat(member, is_answered=False)
            yield Removed(member)
        if state.target_epoch <= self._targets:
            for target in self._choices:
                if target != state.target:
                    yield NewTarget(target)

    def _moves(self, state: TaskWorld) -> Iterator[TaskEvent]:
        """What brings members on, with no accident and no new target."""
        for member in self._members:
            yield Obeys(member)
            yield Heartbeat(member, is_answered=True)

    def after(self, state: TaskWorld, event: TaskEvent) -> TaskWorld | None:
        """See Model."""
        if isinstance(event, NewTarget):
            after = state._replace(target=event.target, target_epoch=state.target_epoch + 1)
        elif isinstance(event, Removed):
            after = state._replace(known=_put(state.known, event.member, None))
        elif isinstance(event, Obeys):
            client = state.clients[event.member]
            obedient = client if client.told is None else Client(client.epoch, client.told)
            after = state._replace(clients=_put(state.clients, event.member, obedient))
        else:
            after = self._handle(state, event)
        return None if after == state else after

    def _handle(self, state: TaskWorld, event: Heartbeat) -> TaskWorld:
        member, client, current = event.member, state.clients[event.member], state.known[event.member]
        said = client.owned if client.told is None else None  # it says nothing of what is about to change
        is_fenced = (
            client.epoch != 0 if current is None else compare_epoch(current, client.epoch, said) is not Epoch.GOOD
        )
        if is_fenced:
            return state._replace(clients=_put(state.clients, member, Client())) if event.is_answered else state
        known = self._reconcile(current or Current(), member, state, said)
        after = state._replace(known=_put(state.known, member, known))
        if event.is_answered:
            told = None if known.tasks == client.owned else known.tasks
            after = after._replace(clients=_put(state.clients, member, Client(known.epoch, client.owned, told)))
        return after

    def _reconcile(self, current: Current, member: int, state: TaskWorld, owned: Tasks | None) -> Current:
        """What a broker does. Tests put a fault in its place."""
        owners = self._owners(state.known)
        return reconcile(current, f"process {member}", state.target[member], state.target_epoch, owned, owners)

    def _owners(self, known: Iterable[Current | None]) -> Owners:
        owners = Owners()
        for member, current in enumerate(known):
            if current is not None:
                owners.add(current.tasks.with_all(current.pending), f"process {member}")
        return owners

    def key(self, state: TaskWorld) -> Hashable:
        """All but the epochs in which tasks were given, which decide nothing here."""
        known = tuple(current and current[:5] for current in state.known)
        return known, state.clients, state.target, state.target_epoch

    def objection(self, before: TaskWorld, event: TaskEvent, after: TaskWorld) -> str | None:
        """See the top of this file."""
        given = [current.tasks.with_all(current.pending) for current in after.known if current is not None]
        present = [client for client, current in zip(after.clients, after.known, strict=True) if current is not None]
        for what, several in (("given to", given), ("with", [client.owned for client in present])):
            for task in set().union(*(tasks.active for tasks in several)):
                if sum(task in tasks.active for tasks in several) > 1:
                    return f"{task} is {what} two members"
            if any(tasks.active & tasks.standby for tasks in several):
                return f"a process has a task in two roles: {several}"
        for old, new in zip(before.known, after.known, strict=True):
            if new is not None and new.epoch > after.target_epoch:
                return f"a member is in epoch {new.epoch}, the target in {after.target_epoch}"
            if old is not None and new is not None and new.epoch < old.epoch:
                return f"a member's epoch went from {old.epoch} to {new.epoch}"
        return None if any(self.after(after, move) for move in self._moves(after)) else _unreached(after)


def _unreached(state: TaskWorld) -> str | None:
    """What is not as the target says, in a state in which nothing moves."""
    for member, (current, client) in enumerate(zip(state.known, state.clients, strict=True)):
        if current is None or not current.has_reached(state.target_epoch) or client.owned != state.target[member]:
            return f"member {member} waits for nothing: {current}, {client}, target {state.target[member]}"
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


def _put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
