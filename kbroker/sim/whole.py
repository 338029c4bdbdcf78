"""A cluster at rest: all brokers are there, everything is led, and all have been told the same.

Called when a world has healed and had its time: then whatever was cut, lost or begun must have come to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.metadata.store import DELETE_TOPICS, TOPICS, decode_state, decode_topic, state_path

if TYPE_CHECKING:
    from kbroker.sim.machine import Machine
    from kbroker.sim.store import Ensemble
    from kbroker.sim.world import World


def check_whole(world: World, ensemble: Ensemble, machines: Sequence[Machine]) -> None:
    """Raises: Broken, for the first thing that is not whole."""
    nodes = ensemble.tree.nodes
    for machine in machines:
        if not machine.up or not machine.broker.plane.ready:
            raise world.broken(f"{machine} is not back")
    controllers = [machine for machine in machines if machine.broker.store_plane.controller.is_active]
    if len(controllers) != 1:
        raise world.broken(f"controllers: {controllers}")
    if nodes[DELETE_TOPICS].children:
        raise world.broken(f"deletions asked for and not done: {sorted(nodes[DELETE_TOPICS].children)}")
    topics = sorted(nodes[TOPICS].children)
    for machine in machines:
        cache = machine.broker.plane.cache
        if sorted(cache.topics) != topics:
            raise world.broken(f"{machine} knows of {sorted(cache.topics)}, there are {topics}")
        if sorted(cache.brokers) != [each.broker_id for each in machines]:
            raise world.broken(f"{machine} knows of brokers {sorted(cache.brokers)}")
        if cache.controller_id != controllers[0].broker_id:
            raise world.broken(f"{machine} takes {cache.controller_id} for controller, it is {controllers[0]}")
    for topic in topics:
        for index, assignment in decode_topic(nodes[f"{TOPICS}/{topic}"].data).partitions.items():
            _check_partition(world, ensemble, machines, (topic, index), assignment.replicas)


def _check_partition(
    world: World,
    ensemble: Ensemble,
    machines: Sequence[Machine],
    partition: tuple[str, int],
    replicas: tuple[int, ...],
) -> None:
    topic, index = partition
    node = ensemble.tree.nodes[state_path(topic, index)]
    state = decode_state(node.data, node.stat())
    if state.leader not in state.isr or not set(state.isr) <= set(replicas):
        raise world.broken(f"{topic}-{index} of {replicas} is not led: {state}")
    for machine in machines:
        told = machine.broker.plane.cache.partition(topic, index)
        if told is None or (told.leader, told.leader_epoch) != (state.leader, state.leader_epoch):
            raise world.broken(f"{machine} was told of {topic}-{index}: {told}, and it is {state}")
        held = machine.broker.replicas.partitions.get(partition)
        if machine.broker_id not in replicas:
            continue
        if held is None or (held.leader_id, held.leader_epoch) != (state.leader, state.leader_epoch):
            raise world.broken(f"{machine} does not do what it was told of {topic}-{index}: {state}")
