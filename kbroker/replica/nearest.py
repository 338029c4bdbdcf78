"""Which replica a consumer is to read from: the leader, or one in sync in the consumer's own rack (KIP-392).

Asked by `api/fetch_nearest.py` with what the leader knows of its followers. A decision from values to a value.

Source: RackAwareReplicaSelector, ReplicaView and ReplicaManager.findPreferredReadReplica of Apache Kafka 3.9, by
behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.replica.followers import Follower
    from kbroker.replica.partition import Partition

LEADER = -1


def nearest_replica(partition: Partition, offset: int, rack: str, rack_of: Callable[[int], str | None]) -> int:
    """The broker that a consumer in `rack` is to read from, if it reads from `offset` on; -1 for the leader.

    rack_of: by broker id; None for who is dead, or cannot be reached by the consumer's listener, or has no rack.
    """
    if not partition.is_leader or rack_of(partition.broker_id) == rack:
        return LEADER
    near = [
        each
        for each in partition.followers.values()
        if _has(each, offset, partition) and rack_of(each.broker_id) == rack
    ]
    best = max(near, key=lambda each: (each.log_end_offset, each.caught_up_ms, each.broker_id), default=None)
    return LEADER if best is None else best.broker_id


def _has(follower: Follower, offset: int, partition: Partition) -> bool:
    """Whether what is asked for is there; one out of sync may lag for ever, and never is."""
    return follower.broker_id in partition.isr and follower.log_start_offset <= offset <= follower.log_end_offset
