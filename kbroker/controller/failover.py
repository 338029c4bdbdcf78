"""Controller failover: read the whole cluster from the store, then bring everything into line with it.

Run by `controller.py` once this broker has been elected. Everything that is watched is read with a watch, so that
nothing between the reading and the first event is missed. Notices left for the old controller are thrown away: what
they say is in what is read here.

A broker may have died and come back while there was no controller to see it, and lack what was not on its disk yet. So
a broker that registered again after the state with it in sync was written is not taken to be in sync: the partition
gets a new leader epoch, and if it can, a leader and in-sync replicas that were there all the time. Unlike Kafka, where
such a leader goes on in its old epoch, and a follower that is ahead of it never finds out that their logs differ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kbroker.controller import leaders, reassignment
from kbroker.controller.brokers import gather_elections, read_brokers
from kbroker.controller.context import Context, PartitionState, ReplicaState, TopicPartition
from kbroker.controller.controller_channel import Batch
from kbroker.controller.epoch import ControllerEpoch, check_fence
from kbroker.controller.state_machines import (
    Replica,
    bring_online,
    elect_without,
    read_written_states,
    transition_replicas,
)
from kbroker.controller.topics import deletions_changed, give_ids, read_topics
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    DELETE_TOPICS,
    FEATURES,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    TOPICS,
    LeaderIsr,
    encode_features,
)
from kbroker.ports import Children, Create, Delete

log = logging.getLogger("kbroker.controller")


def take_over(epoch: ControllerEpoch) -> Procedure[None]:
    """Know the cluster, and say to all brokers who is in it and who leads what."""
    check_fence((yield [epoch.fenced(Create(FEATURES, encode_features({})))]))  # unless it is there
    yield from _drop_notices(epoch)
    doubtful = yield from _load(epoch)
    context = epoch.context
    for broker in context.brokers:
        epoch.channels.open(broker)
    batch = epoch.batch()
    batch.update_metadata(context.brokers, [])
    batch.send()
    batch = epoch.batch()
    yield from _line_up_replicas(epoch, batch)
    _line_up_partitions(epoch)
    yield from bring_online(epoch, batch, doubtful, elect_without(epoch, doubtful))
    yield from gather_elections(epoch, batch)
    batch.send()  # of each partition where it has arrived: no broker has to obey the leaders in between


def resume(epoch: ControllerEpoch) -> Procedure[None]:
    """With what was under way when the last epoch ended."""
    yield from reassignment.requests_changed(epoch)
    yield from reassignment.resume(epoch)
    yield from leaders.preferred_elections_changed(epoch)
    yield from deletions_changed(epoch)
    context = epoch.context
    brokers, topics = len(context.brokers), len(context.assignments)
    log.info("%d broker%s, %d topic%s", brokers, "s" * (brokers != 1), topics, "s" * (topics != 1))


def _drop_notices(epoch: ControllerEpoch) -> Procedure[None]:
    answers = yield [Children(ISR_CHANGES, watch=True), Children(LOG_DIR_EVENTS, watch=True)]
    paths = [f"{answer.path}/{name}" for answer in answers for name in answer.names]
    check_fence((yield [epoch.fenced(Delete(path)) for path in paths]))


def _load(epoch: ControllerEpoch) -> Procedure[dict[TopicPartition, set[int]]]:
    """Brokers, topics, replicas, leaders. Returns: by partition, who is in sync and has restarted since that was so."""
    context = epoch.context
    context.brokers = yield from read_brokers(watch=True)
    children, deletions = yield [Children(TOPICS, watch=True), Children(DELETE_TOPICS)]
    found = yield from read_topics(epoch, children.names)
    found |= yield from give_ids(epoch, found)
    for topic, info in found.items():
        context.add_topic(topic, info.topic_id, dict(info.partitions))
    written = yield from read_written_states(epoch, list(context.all_partitions()))
    context.leaders = {partition: state for partition, (state, _) in written.items()}
    if epoch.configs.broker.delete_topic_enable:  # living brokers may have deleted their part: none is told of it again
        context.to_delete = found.keys() & set(deletions.names)
        context.deleting = {topic for topic in context.to_delete if not context.is_moving(topic)}
    return _restarted(context, written)


def _restarted(
    context: Context, written: Mapping[TopicPartition, tuple[LeaderIsr, int]]
) -> dict[TopicPartition, set[int]]:
    """Of partitions with more than one replica: a single one has no other to differ from."""
    registered = {broker: info.epoch for broker, info in context.brokers.items()}
    found: dict[TopicPartition, set[int]] = {}
    for partition, (state, transaction) in written.items():
        if len(context.replicas(partition)) > 1 and partition[0] not in context.deleting:
            those = {each for each in state.isr if registered.get(each, transaction) > transaction}
            if those:
                found[partition] = those
    if found:
        log.info("%d partitions have replicas in sync that have restarted since", len(found))
    return found


def _line_up_replicas(epoch: ControllerEpoch, batch: Batch) -> Procedure[None]:
    """Replicas are as alive as their brokers: tell the live ones who leads, take the others out of sync."""
    context = epoch.context
    live: list[Replica] = []
    dead: list[Replica] = []
    for partition in context.all_partitions():
        is_going = partition[0] in context.deleting
        for broker in context.replicas(partition):
            is_live = context.is_replica_live(broker, partition)
            context.set_replica_state(partition, broker, ReplicaState.ONLINE if is_live else ReplicaState.OFFLINE)
            if not is_going:
                (live if is_live else dead).append((partition, broker))
    yield from transition_replicas(epoch, batch, live, ReplicaState.ONLINE)
    yield from transition_replicas(epoch, batch, dead, ReplicaState.OFFLINE)


def _line_up_partitions(epoch: ControllerEpoch) -> None:
    context = epoch.context
    partitions: Iterable[tuple[str, int]] = context.all_partitions()
    for partition in partitions:
        state = context.leaders.get(partition)
        if state is None:
            context.partition_states[partition] = PartitionState.NEW
        elif context.is_replica_live(state.leader, partition):
            context.partition_states[partition] = PartitionState.ONLINE
        else:
            context.partition_states[partition] = PartitionState.OFFLINE
