"""A model for the explorer (explorer.py): the reconciliation of a consumer group (KIP-848).

Its members and their network are in `explored_members.py`. What must hold besides: no partition is with two members, as
the coordinator knows them and as the members themselves do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import product
from typing import TypeAlias

from kbroker.groups.consumer import check_epoch
from kbroker.groups.consumer_group import ConsumerGroupMember, Owned
from kbroker.groups.reconciliation import Goal, HasOwner, reconcile
from kbroker.sim.explored_members import MemberModel, MemberWorld
from protocol.errors import KafkaError

TOPIC = bytes(16)
Parts: TypeAlias = frozenset[int]
NONE: Parts = frozenset()


class PartitionModel(MemberModel[ConsumerGroupMember, Parts]):
    """targets: how many target assignments there are at most."""

    def __init__(self, *, members: int = 2, partitions: int = 1, targets: int = 3) -> None:
        choices = [
            tuple(frozenset(at for at, owner in enumerate(owners) if owner == member) for member in range(members))
            for owners in product((None, *range(members)), repeat=partitions)
        ]
        super().__init__(members, choices, targets, NONE)

    def _joined(self, member: int) -> ConsumerGroupMember:
        return ConsumerGroupMember(f"member {member}")

    def _fences(self, current: ConsumerGroupMember, epoch: int, said: Parts | None) -> bool:
        try:
            check_epoch(current, epoch, None if said is None else _reported(said))
        except KafkaError:
            return True
        return False

    def _reconcile(
        self, current: ConsumerGroupMember, member: int, state: MemberWorld, said: Parts | None
    ) -> ConsumerGroupMember:
        target = _reported(state.target[member])
        reported = None if said is None else _reported(said)
        return reconcile(current, Goal(state.target_epoch, target, {TOPIC}, self._owners(state.known), reported))

    def _owners(self, known: Iterable[ConsumerGroupMember | None]) -> HasOwner:
        held = frozenset().union(*(_held(each) for each in known if each is not None))
        return lambda topic, partition: partition in held

    def _epoch(self, known: ConsumerGroupMember) -> int:
        return known.member_epoch

    def _given(self, known: ConsumerGroupMember) -> Parts:
        return _parts(known.assigned)

    def _has_reached(self, known: ConsumerGroupMember, target_epoch: int) -> bool:
        return known.is_reconciled_to(target_epoch)

    def key(self, state: MemberWorld) -> Hashable:
        """All but the epochs in which partitions were given, which decide nothing here."""
        known = tuple(
            each and (each.member_epoch, each.previous_epoch, each.state, _parts(each.assigned), _pending(each))
            for each in state.known
        )
        return known, state.clients, state.target, state.target_epoch

    def _shared(self, state: MemberWorld) -> str | None:
        given = [_held(each) for each in state.known if each is not None]
        present = [client.owned for client, each in zip(state.clients, state.known, strict=True) if each is not None]
        for what, several in (("given to", given), ("with", present)):
            for partition in frozenset().union(*several):
                if sum(partition in parts for parts in several) > 1:
                    return f"partition {partition} is {what} two members"
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
