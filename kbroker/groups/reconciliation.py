"""Reconciliation: the next step of a consumer group's member on its way to the target assignment (KIP-848).

A function of values: the member as it is, the target, who owns what now, and what the member says that it owns. It
gives the member as it is next. consumer.py stores that, and tells the member. A member first lets go of what is not in
its target any more (UNREVOKED_PARTITIONS, in its old epoch), then takes what has no other owner and is in the target's
epoch; what others still own comes later (UNRELEASED_PARTITIONS). What it does not subscribe to any more it lets go of
at once, even if the target, which may be computed later, still has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.groups.consumer_group import NO_PARTITIONS, NOTHING_OWNED, ConsumerGroupMember, Owned
from kbroker.groups.modern import Assignment, MemberState
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

HasOwner = Callable[[bytes, int], bool]
Reported = Mapping[bytes, Iterable[int]]
"""What a member says that it owns, by topic id."""

UNKNOWN_STATE = (
    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
)


class Goal(NamedTuple):
    """What a member is led to. epoch, target: the target assignment. subscribed: ids of the topics that it reads now.

    has_owner: whether any member has a partition. reported: None if the member has not said what it owns.
    """

    epoch: int
    target: Assignment
    subscribed: Collection[bytes]
    has_owner: HasOwner
    reported: Reported | None


def reconcile(member: ConsumerGroupMember, goal: Goal, *, subscription_changed: bool = False) -> ConsumerGroupMember:
    """The member's next state, which may be the same.

    Raises: KafkaError FENCED_MEMBER_EPOCH for a state that only a newer broker knows.
    """
    state, reported = member.state, goal.reported
    if state is MemberState.STABLE and member.member_epoch == goal.epoch:
        return _without_unsubscribed(member, goal) if subscription_changed else member
    if state is MemberState.UNREVOKED_PARTITIONS and _still_owns(reported, member.pending_revocation):
        return _without_unsubscribed(member, goal) if subscription_changed else member
    if state is not MemberState.UNKNOWN:
        return _next(member, member.member_epoch, goal)
    if reported is None or reported:
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, UNKNOWN_STATE)
    return _next(member, goal.epoch, goal)


def _still_owns(reported: Reported | None, revoked: Owned) -> bool:
    """Whether a member may still read something that it has to let go of: if it has not said, it does."""
    return reported is None or any(
        partition in revoked.get(topic, NO_PARTITIONS) for topic, parts in reported.items() for partition in parts
    )


def _without_unsubscribed(member: ConsumerGroupMember, goal: Goal) -> ConsumerGroupMember:
    """The same member, on its way to letting go of topics that it does not read any more."""
    kept = {topic: parts for topic, parts in member.assigned.items() if topic in goal.subscribed}
    if len(kept) == len(member.assigned):
        return member
    revoked = {topic: dict(parts) for topic, parts in member.pending_revocation.items()}
    for topic, parts in member.assigned.items():
        if topic not in kept:
            revoked.setdefault(topic, {}).update(parts)
    if _still_owns(goal.reported, revoked):
        state, epoch = MemberState.UNREVOKED_PARTITIONS, member.member_epoch
        return member.moved(epoch, epoch, state, kept or NOTHING_OWNED, revoked)
    return member._replace(previous_epoch=member.member_epoch, assigned=kept or NOTHING_OWNED)


def _next(member: ConsumerGroupMember, member_epoch: int, goal: Goal) -> ConsumerGroupMember:
    """member_epoch: that it stays in if it has first to let go of something."""
    target = {topic: parts for topic, parts in goal.target.items() if topic in goal.subscribed}
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    for topic, parts in member.assigned.items():
        wanted = target.get(topic, frozenset())
        for partition, epoch in parts.items():
            (kept if partition in wanted else revoked).setdefault(topic, {})[partition] = epoch
    if revoked and _still_owns(goal.reported, revoked):
        state = MemberState.UNREVOKED_PARTITIONS
        return member.moved(member_epoch, member.member_epoch, state, kept or NOTHING_OWNED, revoked)
    waits = False
    for topic, wanted in target.items():
        own = member.pending_revocation.get(topic, NO_PARTITIONS)  # no other member's, until this one has let go
        missing = sorted(wanted - kept.get(topic, {}).keys())
        free = [each for each in missing if each in own or not goal.has_owner(topic, each)]
        waits = waits or len(free) < len(missing)
        if free:
            kept.setdefault(topic, {}).update(dict.fromkeys(free, goal.epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return member.moved(goal.epoch, member.member_epoch, state, kept or NOTHING_OWNED, NOTHING_OWNED)
