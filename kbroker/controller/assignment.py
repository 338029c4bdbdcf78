"""Replica assignment: which brokers get which replicas of a new topic, by brokers and racks; and which may be asked.

The first replicas go round the brokers, the further ones follow at a distance that grows with each round, so that the
partitions of a dead broker are shared by all others. With racks, replicas of a partition stand in as many racks as
there are. Chance comes in as two numbers. Source: AdminUtils of Apache Kafka 3.9, by behaviour; KIP-36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from protocol.errors import ErrorCode, KafkaError


def assign(
    racks: Mapping[int, str | None], partitions: int, replication_factor: int, *, start: int, shift: int, first: int = 0
) -> list[list[int]]:
    """The replicas of partitions `first` to `first + partitions - 1`, each list with the preferred leader first.

    racks: of the live brokers by id; None: has none. start: position of the first leader among the brokers; shift:
    distance of the second replica; any numbers >= 0. Raises: KafkaError INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR, and INVALID_REQUEST if only some brokers have a rack.
    """
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if replication_factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if replication_factor > len(racks):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(racks)} broker(s) are registered.",
        )
    without = [broker for broker, rack in racks.items() if rack is None]
    indexes = range(first, first + partitions)
    if len(without) == len(racks):
        return _unaware(sorted(racks), indexes, replication_factor, start, shift)
    if without:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"brokers without a rack among others with one: {sorted(without)}")
    known = {broker: rack for broker, rack in racks.items() if rack is not None}
    return _aware(known, indexes, replication_factor, start, shift)


def check_replicas(replicas: Sequence[int], missing: AbstractSet[int]) -> None:
    """Whether a partition may have the replicas that a client chose. Raises: KafkaError INVALID_REPLICA_ASSIGNMENT.

    missing: those of the brokers that are not registered.
    """
    twice = [each for each, times in Counter(replicas).items() if times > 1]
    wrong = sorted(missing | {each for each in replicas if each < 0})
    if not replicas:
        why = "an empty replica list"
    elif twice:
        why = f"the broker {twice[0]} more than once"
    elif wrong:
        why = f"broker {wrong[0]}, but no such broker is registered"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {why}.")


def _unaware(
    brokers: Sequence[int], indexes: Sequence[int], replication_factor: int, start: int, shift: int
) -> list[list[int]]:
    count = len(brokers)
    chosen = []
    for index in indexes:
        if index > 0 and index % count == 0:
            shift += 1
        leader = (index + start) % count
        others = (_follow(leader, shift, nth, count) for nth in range(replication_factor - 1))
        chosen.append([brokers[leader], *(brokers[position] for position in others)])
    return chosen


def _follow(leader: int, shift: int, nth: int, count: int) -> int:
    """Position of the n-th follower: never the leader's, and another one for each n below count - 1."""
    return (leader + 1 + (shift + nth) % (count - 1)) % count


def _aware(
    racks: Mapping[int, str], indexes: Sequence[int], replication_factor: int, start: int, shift: int
) -> list[list[int]]:
    """As without racks over a list of brokers that alternates between racks, passing over racks that are taken."""
    brokers = alternate(racks)
    count, rack_count = len(brokers), len(set(racks.values()))
    chosen = []
    for index in indexes:
        if index > 0 and index % count == 0:
            shift += 1
        leader = (index + start) % count
        replicas = [brokers[leader]]
        step = 0
        while len(replicas) < replication_factor:
            broker = brokers[_follow(leader, shift * rack_count, step, count)]
            step += 1
            taken = {racks[each] for each in replicas}
            may_share = len(taken) == rack_count or step > 2 * count
            if broker not in replicas and (may_share or racks[broker] not in taken):
                replicas.append(broker)
        chosen.append(replicas)
    return chosen


def alternate(racks: Mapping[int, str]) -> list[int]:
    """Brokers in an order that goes round the racks: the first of each, then the second of each."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    rows = [by_rack[rack] for rack in sorted(by_rack)]
    return [row[at] for at in range(max(map(len, rows), default=0)) for row in rows if at < len(row)]
