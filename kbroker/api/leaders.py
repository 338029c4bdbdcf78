"""CurrentLeader and NodeEndpoints in answers to Produce and Fetch (KIP-951): who leads what the client asked for here.

Called by `produce.py` and `fetch_reader.py` once a partition has failed, in the versions whose answers have a place for
it: the client goes to the leader at once, and asks for no metadata first. As in Kafka, what a replica here was told by
LeaderAndIsr counts before the metadata cache, and the address is that of the listener on which the client came.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.api.call import Call
    from protocol.flat import Flat

UNKNOWN = (-1, -1)


def current_leader(call: Call, topic: str | None, index: int, nodes: list[Flat]) -> Flat:
    """A partition's leader and its epoch, -1 for what is not known; its address is added to `nodes`, if it has one.

    nodes: the fields of each NodeEndpoint of the answer. Returns: the fields of LeaderIdAndEpoch.
    """
    name, cache = topic or "", call.broker.plane.cache
    replica = call.broker.replicas.partitions.get((name, index))
    if replica is not None and replica.log is not None:
        leader_id, epoch = replica.leader_id, replica.leader_epoch
    else:
        state = cache.partition(name, index)
        leader_id, epoch = UNKNOWN if state is None else (state.leader, state.leader_epoch)
    endpoint = cache.node(leader_id, call.session.listener)
    if endpoint is not None and all(node_id != leader_id for node_id, _host, _port, _rack in nodes):
        nodes.append((leader_id, endpoint.host, endpoint.port, cache.brokers[leader_id].rack))
    return leader_id, epoch
