"""The world of two models for the explorer (explorer.py): members whose group's coordinator assigns, and their network.

`explored_partitions.py` puts the reconciliation of consumer groups into it, `explored_tasks.py` that of streams groups.

The target assignment changes at will, a few times. A member sends a heartbeat, and the answer arrives or is lost. What
an answer tells it to let go of and to take, it does later, before its next heartbeat or after it; until it has, its
heartbeats do not say what it has, as those of Apache's client for streams. A member that is fenced drops everything and
joins again. A member may be removed, as when its session runs out: what that client then still does is its own affair
until it is told, as in Kafka.

What must hold for both: a member's epoch never goes back, nor past the target's; and a member that waits, waits for
something: when nothing moves any more, all have reached the target.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from protocol.namedtuple import NamedTuple

K = TypeVar("K")  # a member as the coordinator knows it
A = TypeVar("A", bound=Hashable)  # what a member has, or is to have
T = TypeVar("T")


class Client(NamedTuple):
    """A member as it knows itself. owned: what it has. told: what it was told last to have; None nothing new."""

    epoch: int
    owned: Any
    told: Any = None


class MemberWorld(NamedTuple):
    """known: the members as the coordinator knows them, None for one that it does not know. target: of each member."""

    known: tuple[Any, ...]
    clients: tuple[Client, ...]
    target: tuple[Any, ...]
    target_epoch: int


class NewTarget(NamedTuple):
    """The assignor has run."""

    target: tuple[Any, ...]


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


MemberEvent: TypeAlias = NewTarget | Heartbeat | Obeys | Removed


class MemberModel(ABC, Generic[K, A]):
    """choices: all target assignments. targets: how many of them there are at most. nothing: what a newcomer has."""

    def __init__(self, members: int, choices: Sequence[tuple[A, ...]], targets: int, nothing: A) -> None:
        self._members = range(members)
        self._choices = choices
        self._targets = targets
        self._nothing = nothing
        self._newcomer = Client(0, nothing)

    def begins(self) -> list[MemberWorld]:
        """Members that have not joined; nothing is assigned."""
        count = len(self._members)
        return [MemberWorld((None,) * count, (self._newcomer,) * count, (self._nothing,) * count, 1)]

    def events(self, state: MemberWorld) -> Iterator[MemberEvent]:
        """See the top of this file."""
        yield from self._moves()
        for member in self._members:
            yield Heartbeat(member, is_answered=False)
            yield Removed(member)
        if state.target_epoch <= self._targets:
            for target in self._choices:
                if target != state.target:
                    yield NewTarget(target)

    def _moves(self) -> Iterator[MemberEvent]:
        """What brings members on, with no accident and no new target."""
        for member in self._members:
            yield Obeys(member)
            yield Heartbeat(member, is_answered=True)

    def after(self, state: MemberWorld, event: MemberEvent) -> MemberWorld | None:
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

    def _handle(self, state: MemberWorld, event: Heartbeat) -> MemberWorld:
        member, client, current = event.member, state.clients[event.member], state.known[event.member]
        said = client.owned if client.told is None else None  # it says nothing of what is about to change
        is_fenced = client.epoch != 0 if current is None else self._fences(current, client.epoch, said)
        if is_fenced:
            return state._replace(clients=_put(state.clients, member, self._newcomer)) if event.is_answered else state
        known = self._reconcile(current or self._joined(member), member, state, said)
        after = state._replace(known=_put(state.known, member, known))
        if event.is_answered:
            given = self._given(known)
            told = None if given == client.owned else given
            after = after._replace(clients=_put(state.clients, member, Client(self._epoch(known), client.owned, told)))
        return after

    def objection(self, before: MemberWorld, event: MemberEvent, after: MemberWorld) -> str | None:
        """See the top of this file."""
        if told := self._shared(after):
            return told
        for old, new in zip(before.known, after.known, strict=True):
            if new is not None and self._epoch(new) > after.target_epoch:
                return f"a member is in epoch {self._epoch(new)}, the target in {after.target_epoch}"
            if old is not None and new is not None and self._epoch(new) < self._epoch(old):
                return f"a member's epoch went from {self._epoch(old)} to {self._epoch(new)}"
        return None if any(self.after(after, move) for move in self._moves()) else self._unreached(after)

    def _unreached(self, state: MemberWorld) -> str | None:
        """What is not as the target says, in a state in which nothing moves."""
        for member, (current, client) in enumerate(zip(state.known, state.clients, strict=True)):
            has_all = current is not None and self._has_reached(current, state.target_epoch)
            if not has_all or client.owned != state.target[member]:
                return f"member {member} waits for nothing: {current}, {client}, target {state.target[member]}"
        return None

    # -- what the coordinator does, by the code that a broker runs

    @abstractmethod
    def _joined(self, member: int) -> K:
        """A member that is new to the coordinator."""

    @abstractmethod
    def _fences(self, current: K, epoch: int, said: A | None) -> bool:
        """Whether a heartbeat in this epoch is refused. said: what the member says to have; None nothing."""

    @abstractmethod
    def _reconcile(self, current: K, member: int, state: MemberWorld, said: A | None) -> K:
        """What a broker does with a heartbeat. Tests put a fault in its place."""

    @abstractmethod
    def _epoch(self, known: K) -> int:
        """Of a member."""

    @abstractmethod
    def _given(self, known: K) -> A:
        """What an answer tells a member to have."""

    @abstractmethod
    def _has_reached(self, known: K, target_epoch: int) -> bool:
        """Whether a member has all that the target of this epoch gives it."""

    @abstractmethod
    def _shared(self, state: MemberWorld) -> str | None:
        """What two members have that one alone may have; None if there is no such thing."""


def _put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
