"""Leader election: five decisions, from what is known of a partition to its next leader and in-sync replicas.

Called by `machine.py`, which writes the outcome down. Nothing here changes anything. Each returns the election's
result, or None if no replica may lead: then the partition stays as it is, or loses its leader.

Source: PartitionLeaderElectionAlgorithms of Apache Kafka 3.9, by behaviour; KIP-460 (unclean), KIP-704 (recovery).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.namedtuple import NamedTuple


class Elected(NamedTuple):
    """The outcome. unclean: the leader was not in sync, so that records may be lost."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False


def offline(
    replicas: Sequence[int], isr: Collection[int], live: Collection[int], *, unclean_allowed: bool
) -> Elected | None:
    """The leader is gone: the first live replica in sync; if there is none and it is allowed, the first live one."""
    in_sync = [replica for replica in replicas if replica in live and replica in isr]
    if in_sync:
        return Elected(in_sync[0], _kept(isr, live))
    if unclean_allowed:
        alive = [replica for replica in replicas if replica in live]
        if alive:
            return Elected(alive[0], (alive[0],), unclean=True)
    return None


def reassigned(targets: Sequence[int], isr: Collection[int], live: Collection[int]) -> Elected | None:
    """The partition has moved: the first of its new replicas that is live and in sync."""
    leader = next((replica for replica in targets if replica in live and replica in isr), None)
    return None if leader is None else Elected(leader, tuple(isr))


def preferred(replicas: Sequence[int], isr: Collection[int], live: Collection[int]) -> Elected | None:
    """Back to the first replica of all, if it is live and in sync."""
    if replicas and replicas[0] in live and replicas[0] in isr:
        return Elected(replicas[0], tuple(isr))
    return None


def controlled_shutdown(
    replicas: Sequence[int], isr: Collection[int], live: Collection[int], leaving: Collection[int]
) -> Elected | None:
    """Brokers are about to stop: the first live replica in sync that stays; those that leave are out of sync at once.

    live: those about to stop among them.
    """
    stays = [replica for replica in replicas if replica in live and replica in isr and replica not in leaving]
    if not stays:
        return None
    return Elected(stays[0], tuple(replica for replica in isr if replica not in leaving))


def restarted(
    replicas: Sequence[int], leader: int, isr: Collection[int], live: Collection[int], doubtful: Collection[int]
) -> Elected | None:
    """Some in sync have restarted unseen, and may lack what they had: they are out of sync, unless all in sync have.

    The leader stays if it is none of them. doubtful: those that have restarted.
    """
    steady = [replica for replica in live if replica not in doubtful]
    in_sync = _kept(isr, steady) or _kept(isr, live)
    if not in_sync:
        return None
    first = next(replica for replica in replicas if replica in in_sync)
    return Elected(leader if leader in in_sync else first, in_sync)


def _kept(isr: Collection[int], live: Collection[int]) -> tuple[int, ...]:
    return tuple(replica for replica in isr if replica in live)
