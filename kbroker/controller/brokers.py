"""Failure and start of brokers, and of their log directories: what the controller does about each.

Procedures run by `controller.py` when a watch says that `/brokers/ids` or `/log_dir_event_notification` has changed,
or a broker answers that a disk failed. A broker whose registration has another czxid than before has died and come
back in between: it is taken for dead, then for new.

Source: KafkaController of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from kbroker.controller import reassignment
from kbroker.controller.context import PartitionState, ReplicaState
from kbroker.controller.controller_channel import Batch
from kbroker.controller.epoch import ControllerEpoch, check_fence, pieces
from kbroker.controller.state_machines import (
    Replica,
    bring_online,
    elect_for_shutdown,
    elect_offline,
    live_replicas,
    transition_partitions,
    transition_replicas,
    unclean_topics,
)
from kbroker.controller.topics import fail_deletions, unblock
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    BROKER_IDS,
    LOG_DIR_EVENTS,
    BrokerInfo,
    broker_ids,
    broker_path,
    decode_broker,
    decode_log_dir_event,
    understood,
)
from kbroker.ports import Children, Delete, Get, Outcome

log = logging.getLogger("kbroker.controller")


def read_brokers(*, watch: bool) -> Procedure[dict[int, BrokerInfo]]:
    """The registered brokers. watch: the list and each registration, from now on."""
    (children,) = yield [Children(BROKER_IDS, watch)]
    ids = broker_ids(children.names)
    answers = yield [Get(broker_path(broker_id), watch) for broker_id in ids]
    return {
        broker_id: info
        for broker_id, answer in zip(ids, answers, strict=True)
        if answer.stat is not None and (info := _registration(broker_id, answer)) is not None
    }


def _registration(broker_id: int, answer: Outcome) -> BrokerInfo | None:
    assert answer.stat is not None, answer
    return understood(answer.path, answer.data, partial(decode_broker, broker_id, stat=answer.stat))


def brokers_changed(epoch: ControllerEpoch) -> Procedure[None]:
    """The set of registered brokers is another one."""
    context = epoch.context
    now = yield from read_brokers(watch=True)
    bounced = {each for each in now.keys() & context.brokers.keys() if now[each].epoch != context.brokers[each].epoch}
    failed = (context.brokers.keys() - now.keys()) | bounced
    new = (now.keys() - context.brokers.keys()) | bounced
    if failed:
        log.info("failed brokers: %s", sorted(failed))
        for broker in failed:
            del context.brokers[broker]
            epoch.channels.close(broker)
        yield from _brokers_failed(epoch, failed)
    if new:
        log.info("new brokers: %s", sorted(new))
        for broker in new:
            context.brokers[broker] = now[broker]
            epoch.channels.open(broker)
        yield from _brokers_started(epoch, new)


def broker_modified(epoch: ControllerEpoch, broker_id: int) -> Procedure[None]:
    """A live broker has written other addresses into its registration."""
    (answer,) = yield [Get(broker_path(broker_id), watch=True)]
    known = epoch.context.brokers.get(broker_id)
    if answer.stat is None or known is None:
        return
    info = _registration(broker_id, answer)
    if info is not None and info.epoch == known.epoch and info != known:
        epoch.context.brokers[broker_id] = info
        batch = epoch.batch()
        batch.update_metadata(epoch.context.brokers, [])
        batch.send()


def _brokers_started(epoch: ControllerEpoch, brokers: Iterable[int]) -> Procedure[None]:
    """Tell new brokers everything and the others about them; their replicas are back, their partitions may go on."""
    context = epoch.context
    fresh = set(brokers)
    for broker in fresh:
        context.failed_disks.pop(broker, None)
        context.shutting_down.discard(broker)
    batch = epoch.batch()
    batch.update_metadata(context.brokers.keys() - fresh, [])
    batch.send()
    batch = epoch.batch()
    batch.update_metadata(fresh, context.all_partitions())
    batch.send()  # before any LeaderAndIsr: an Apache broker follows no leader that it has not heard of
    batch = epoch.batch()
    replicas = [(partition, broker) for broker in sorted(fresh) for partition in context.partitions_on(broker)]
    yield from transition_replicas(
        epoch, batch, [each for each in replicas if _may_be_back(epoch, each)], ReplicaState.ONLINE
    )
    batch.send()
    yield from elect_offline_partitions(epoch)
    yield from reassignment.resume(epoch, fresh)
    yield from unblock(epoch, {partition[0] for partition, _ in replicas})


def _may_be_back(epoch: ControllerEpoch, replica: Replica) -> bool:
    return epoch.context.replica_state(*replica) not in (ReplicaState.DELETION_DONE, ReplicaState.NON_EXISTENT)


def _brokers_failed(epoch: ControllerEpoch, brokers: Iterable[int]) -> Procedure[None]:
    """Brokers have died: others lead and are in sync without them."""
    context = epoch.context
    failed = set(brokers)
    context.shutting_down -= failed
    replicas = [(partition, broker) for broker in sorted(failed) for partition in context.partitions_on(broker)]
    yield from replicas_lost(epoch, replicas)


def replicas_lost(epoch: ControllerEpoch, replicas: list[Replica]) -> Procedure[None]:
    """Replicas are offline: elect around them, take them out of sync, hold deletions up."""
    context = epoch.context
    going = [each for each in replicas if context.is_to_be_deleted(each[0])]
    staying = [each for each in replicas if not context.is_to_be_deleted(each[0])]
    leaderless = [partition for partition, broker in staying if context.leader(partition) == broker]
    # out of sync before, all of them after an orderly stop: no state changes, and yet a replica is offline now
    idle = [each for each, broker in staying if each in context.leaders and broker not in context.leaders[each].isr]
    transition_partitions(epoch, leaderless, PartitionState.OFFLINE)
    yield from elect_offline_partitions(epoch)
    batch = epoch.batch()
    yield from transition_replicas(epoch, batch, staying, ReplicaState.OFFLINE)
    yield from fail_deletions(epoch, going)
    if idle or not leaderless:
        batch.update_metadata(context.brokers, idle)
    batch.send()


def elect_offline_partitions(epoch: ControllerEpoch) -> Procedure[None]:
    """Give a leader to every partition that has none and may have one, and tell the brokers."""
    batch = epoch.batch()
    yield from gather_elections(epoch, batch)
    batch.send()


def gather_elections(epoch: ControllerEpoch, batch: Batch) -> Procedure[None]:
    """The same, but what the brokers are to be told is only gathered.

    Also where the topic is to be deleted, until that begins: it may wait for a reassignment, which needs one.
    """
    context = epoch.context
    states = (PartitionState.OFFLINE, PartitionState.NEW)
    waiting = [each for each in context.partitions_in(states) if each[0] not in context.deleting]
    if not waiting:
        return
    known = {each: context.leaders.get(each) for each in waiting}
    allowed = yield from unclean_topics(epoch, waiting)
    outcomes = yield from bring_online(epoch, batch, waiting, elect_offline(epoch, allowed))
    # a leader of an old protocol may have shrunk its set, and died before it told: only now no broker in it lives
    left = [each for each, code in outcomes.items() if code and context.leaders.get(each) != known[each]]
    if left:
        allowed = yield from unclean_topics(epoch, left)
        some = [each for each in left if each[0] in allowed]
        yield from bring_online(epoch, batch, some, elect_offline(epoch, allowed))


def log_dirs_failed(epoch: ControllerEpoch) -> Procedure[None]:
    """Brokers have noticed a failed log directory: ask them which replicas were in it, by a LeaderAndIsr for each."""
    (children,) = yield [Children(LOG_DIR_EVENTS, watch=True)]
    paths = [f"{LOG_DIR_EVENTS}/{name}" for name in children.names]
    answers = yield [Get(path) for path in paths]
    brokers = {
        broker
        for answer in answers
        if answer.fault is None and (broker := understood(answer.path, answer.data, decode_log_dir_event)) is not None
    }
    replicas = [
        (partition, broker)
        for broker in sorted(brokers & epoch.context.brokers.keys())
        for partition in epoch.context.partitions_on(broker)
        if epoch.context.replica_state(partition, broker) is ReplicaState.ONLINE
    ]
    batch = epoch.batch()
    yield from transition_replicas(epoch, batch, replicas, ReplicaState.ONLINE)
    batch.send()
    check_fence((yield [epoch.fenced(Delete(path)) for path in paths]))


def disk_answers(
    epoch: ControllerEpoch, broker: int, failed: Iterable[tuple[str, int]], good: Iterable[tuple[str, int]]
) -> Procedure[None]:
    """A broker has answered a LeaderAndIsr: which of its replicas are in a failed log directory, which are not."""
    before = epoch.context.failed_disks.setdefault(broker, set())
    lost = [(partition, broker) for partition in failed if partition not in before]
    back = [(partition, broker) for partition in good if partition in before]
    before.update(partition for partition, _ in lost)
    before.difference_update(partition for partition, _ in back)
    if lost:
        yield from replicas_lost(epoch, lost)
    if back:
        batch = epoch.batch()
        yield from transition_replicas(
            epoch, batch, [each for each in back if _may_be_back(epoch, each)], ReplicaState.ONLINE
        )
        batch.send()
        yield from elect_offline_partitions(epoch)


def shut_down(epoch: ControllerEpoch, broker: int) -> Procedure[list[tuple[str, int]]]:
    """A broker is about to stop: move its leaders away, some at a time. Returns: those that no other can lead."""
    context = epoch.context
    context.shutting_down.add(broker)
    shared = [
        partition
        for partition in context.partitions_on(broker)
        if len(context.replicas(partition)) > 1
        and partition in context.leaders
        and not context.is_to_be_deleted(partition)
    ]
    led = [partition for partition in shared if context.leader(partition) == broker]
    followed = [(partition, broker) for partition in shared if context.leader(partition) != broker]
    batch = epoch.batch()
    for some in pieces(led):
        yield from bring_online(epoch, batch, some, elect_for_shutdown(epoch))
    yield from epoch.send(batch)
    batch = epoch.batch()
    for some_replicas in pieces(followed):
        yield from transition_replicas(epoch, batch, some_replicas, ReplicaState.OFFLINE)
    yield from epoch.send(batch)
    return [partition for partition in led if context.leader(partition) == broker]


def is_without_leader(epoch: ControllerEpoch, partition: tuple[str, int]) -> bool:
    """Whether a partition's leader is dead, or it has none."""
    return epoch.context.leader(partition) not in live_replicas(epoch, partition)
