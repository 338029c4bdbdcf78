"""A model for the explorer (explorer.py): the reconciliation of a consumer group (KIP-848), its members, their network.

The target assignment changes at will, a few times. A member sends a heartbeat, and the answer arrives or is lost. What
an answer tells it to let go of and to take, it does later, before its next heartbeat or after it; until it has, its
heartbeats do not say what it has. A member that is fenced drops everything and joins again. A member may be removed, as
when its session runs out: what that client then still does is its own affair until it is told, as in Kafka.

What must hold: no partition is with two members, as the coordinator knows them and as the members themselves do; a
member's epoch never goes back, nor past the target's; and whoever waits, waits for something: when nothing moves any
more, all have reached the target.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import product
from typing import TypeAlias, TypeVar

from kbroker.groups.consumer import check_epoch
from kbroker.groups.consumer_group import ConsumerGroupMember, Owned
from kbroker.groups.reconciliation import Goal, OwnerEpoch, reconcile
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple

T = TypeVar("T")

TOPIC = bytes(16)
Parts: TypeAlias = frozenset[int]
NONE: Parts = frozenset()


class Client(NamedTuple):
    """A member as it knows itself. owned: what it has. told: what it was told last to have; None nothing new."""

    epoch: int = 0
    owned: Parts = NONE
    told: Parts | None = None


class PartitionWorld(NamedTuple):
    """known: the members as the coordinator knows them, None for one that it does not know."""

    known: tuple[ConsumerGroupMember | None, ...]
    clients: tuple[Client, ...]
    target: tuple[Parts, ...]
    target_epoch: int


class NewTarget(NamedTuple):
    """The assignor has run."""

    target: tuple[Parts, ...]


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


PartitionEvent: TypeAlias = NewTarget | Heartbeat | Obeys | Removed


class PartitionModel:
    """targets: how many target assignments there are at most."""

    def __init__(self, *, members: int = 2, partitions: int = 1, targets: int = 3) -> None:
        self._members = range(members)
        self._targets = targets
        places = (None, *self._members)
        self._choices = [
            tuple(frozenset(at for at, owner in enumerate(owners) if owner == member) for member in self._members)
            for owners in product(places, repeat=partitions)
        ]

    def begins(self) -> list[PartitionWorld]:
        """Members that have not joined; nothing is assigned."""
        count = len(self._members)
        return [PartitionWorld((None,) * count, (Client(),) * count, (NONE,) * count, 1)]

    def events(self, state: PartitionWorld) -> Iterator[PartitionEvent]:
        """See the top of this file."""
        yield from self._moves()
        for member in self._members:
            yield Heartbeat(member, is_answered=False)
            yield Removed(member)
        if state.target_epoch <= self._targets:
            for target in self._choices:
                if target != state.target:
                    yield NewTarget(target)

    def _moves(self) -> Iterator[PartitionEvent]:
        """What brings members on, with no accident and no new target."""
        for member in self._members:
            yield Obeys(member)
            yield Heartbeat(member, is_answered=True)

    def after(self, state: PartitionWorld, event: PartitionEvent) -> PartitionWorld | None:
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

    def _handle(self, state: PartitionWorld, event: Heartbeat) -> PartitionWorld:
        member, client, current = event.member, state.clients[event.member], state.known[event.member]
        said = client.owned if client.told is None else None  # it says nothing of what is about to change
        if _is_fenced(current, client.epoch, said):
            return state._replace(clients=_put(state.clients, member, Client())) if event.is_answered else state
        known = self._reconcile(current or ConsumerGroupMember(f"member {member}"), member, state, said)
        after = state._replace(known=_put(state.known, member, known))
        if event.is_answered:
            given = _parts(known.assigned)
            told = None if given == client.owned else given
            after = after._replace(clients=_put(state.clients, member, Client(known.member_epoch, client.owned, told)))
        return after

    def _reconcile(
        self, current: ConsumerGroupMember, member: int, state: PartitionWorld, said: Parts | None
    ) -> ConsumerGroupMember:
        """What a broker does. Tests put a fault in its place."""
        target = {TOPIC: state.target[member]} if state.target[member] else {}
        reported = None if said is None else _reported(said)
        return reconcile(current, Goal(state.target_epoch, target, {TOPIC}, self._owners(state.known), reported))

    def _owners(self, known: Iterable[ConsumerGroupMember | None]) -> OwnerEpoch:
        epochs = {partition: each.member_epoch for each in known if each is not None for partition in _held(each)}
        return lambda topic, partition: epochs.get(partition, -1)

    def key(self, state: PartitionWorld) -> Hashable:
        """All but the epochs in which partitions were given, which decide nothing here."""
        known = tuple(
            each and (each.member_epoch, each.previous_epoch, each.state, _parts(each.assigned), _pending(each))
            for each in state.known
        )
        return known, state.clients, state.target, state.target_epoch

    def objection(self, before: PartitionWorld, event: PartitionEvent, after: PartitionWorld) -> str | None:
        """See the top of this file."""
        given = [_held(each) for each in after.known if each is not None]
        present = [client.owned for client, each in zip(after.clients, after.known, strict=True) if each is not None]
        for what, several in (("given to", given), ("with", present)):
            for partition in frozenset().union(*several):
                if sum(partition in parts for parts in several) > 1:
                    return f"partition {partition} is {what} two members"
        for old, new in zip(before.known, after.known, strict=True):
            if new is not None and new.member_epoch > after.target_epoch:
                return f"a member is in epoch {new.member_epoch}, the target in {after.target_epoch}"
            if old is not None and new is not None and new.member_epoch < old.member_epoch:
                return f"a member's epoch went from {old.member_epoch} to {new.member_epoch}"
        return None if any(self.after(after, move) for move in self._moves()) else _unreached(after)


def _is_fenced(current: ConsumerGroupMember | None, epoch: int, said: Parts | None) -> bool:
    if current is None:
        return epoch != 0
    try:
        check_epoch(current, epoch, None if said is None else _reported(said))
    except KafkaError:
        return True
    return False


def _unreached(state: PartitionWorld) -> str | None:
    """What is not as the target says, in a state in which nothing moves."""
    for member, (current, client) in enumerate(zip(state.known, state.clients, strict=True)):
        has_all = current is not None and current.is_reconciled_to(state.target_epoch)
        if not has_all or client.owned != state.target[member]:
            return f"member {member} waits for nothing: {current}, {client}, target {state.target[member]}"
    return None


def _reported(parts: Parts) -> Mapping[bytes, Parts]:
    return {TOPIC: parts} if parts else {}


def _parts(owned: Owned) -> Parts:
    return frozenset(owned.get(TOPIC, ()))


def _pending(member: ConsumerGroupMember) -> Parts:
    return _parts(member.pending_revocation)


def _held(member: ConsumerGroupMember) -> Parts:
    """What no other member may have."""
    return _parts(member.assigned) | _pending(member)


def _put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])
