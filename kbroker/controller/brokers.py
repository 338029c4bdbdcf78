"""Brokers that come, go, or lose a disk, in the controller's hands.

Procedures run by `controller.py` when a watch says that `/brokers/ids` or `/log_dir_event_notification` has changed,
or a broker answers that a disk failed. A broker whose registration has another czxid than before has died and come
back in between: it is taken for dead, then for new.

Source: KafkaController of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kbroker.controller.context import PartitionState, ReplicaState
from kbroker.controller.machine import (
    Replica,
    bring_online,
    elect_for_shutdown,
    elect_offline,
    live_replicas,
    move_partitions,
    move_replicas,
    unclean_topics,
)
from kbroker.controller.term import Term, check_fence
from kbroker.controller.topics import fail_deletions, unblock
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    BROKER_IDS,
    LOG_DIR_EVENTS,
    BrokerInfo,
    broker_path,
    decode_broker,
    decode_log_dir_event,
)
from kbroker.ports import Children, Delete, Get

log = logging.getLogger("kbroker.controller")


def read_brokers(term: Term) -> Procedure[dict[int, BrokerInfo]]:
    """The registered brokers; the list and each registration watched from now on."""
    (children,) = yield [Children(BROKER_IDS, watch=True)]
    ids = sorted(int(name) for name in children.names if name.isdigit())
    answers = yield [Get(broker_path(broker_id), watch=True) for broker_id in ids]
    return {
        broker_id: decode_broker(broker_id, answer.data, answer.stat)
        for broker_id, answer in zip(ids, answers, strict=True)
        if answer.stat is not None
    }


def brokers_changed(term: Term) -> Procedure[None]:
    """The set of registered brokers is another one."""
    context = term.context
    now = yield from read_brokers(term)
    bounced = {each for each in now.keys() & context.brokers.keys() if now[each].epoch != context.brokers[each].epoch}
    gone = (context.brokers.keys() - now.keys()) | bounced
    come = (now.keys() - context.brokers.keys()) | bounced
    if gone:
        log.info("brokers gone: %s", sorted(gone))
        for broker in gone:
            del context.brokers[broker]
            term.outbox.close(broker)
        yield from _left(term, gone)
    if come:
        log.info("brokers come: %s", sorted(come))
        for broker in come:
            context.brokers[broker] = now[broker]
            term.outbox.open(broker)
        yield from _joined(term, come)


def broker_modified(term: Term, broker_id: int) -> Procedure[None]:
    """A live broker has written other addresses into its registration."""
    (answer,) = yield [Get(broker_path(broker_id), watch=True)]
    known = term.context.brokers.get(broker_id)
    if answer.stat is None or known is None:
        return
    info = decode_broker(broker_id, answer.data, answer.stat)
    if info.epoch == known.epoch and info != known:
        term.context.brokers[broker_id] = info
        batch = term.batch()
        batch.update_metadata(term.context.brokers, [])
        batch.send()


def _joined(term: Term, brokers: Iterable[int]) -> Procedure[None]:
    """Tell new brokers everything and the others about them; their replicas are back, their partitions may go on."""
    context = term.context
    fresh = set(brokers)
    for broker in fresh:
        context.failed_disks.pop(broker, None)
        context.shutting_down.discard(broker)
    batch = term.batch()
    batch.update_metadata(context.brokers.keys() - fresh, [])
    batch.send()
    batch = term.batch()
    batch.update_metadata(fresh, context.all_partitions())
    replicas = [(partition, broker) for broker in sorted(fresh) for partition in context.partitions_on(broker)]
    yield from move_replicas(term, batch, [each for each in replicas if _may_be_back(term, each)], ReplicaState.ONLINE)
    batch.send()
    yield from elect_offline_partitions(term)
    yield from unblock(term, {partition[0] for partition, _ in replicas})


def _may_be_back(term: Term, replica: Replica) -> bool:
    return term.context.replica_state(*replica) not in (ReplicaState.DELETION_DONE, ReplicaState.NON_EXISTENT)


def _left(term: Term, brokers: Iterable[int]) -> Procedure[None]:
    """Brokers have died: others lead and are in sync without them."""
    context = term.context
    gone = set(brokers)
    context.shutting_down -= gone
    replicas = [(partition, broker) for broker in sorted(gone) for partition in context.partitions_on(broker)]
    yield from replicas_lost(term, replicas)


def replicas_lost(term: Term, replicas: list[Replica]) -> Procedure[None]:
    """Replicas are offline: elect around them, take them out of sync, hold deletions up."""
    context = term.context
    going = [each for each in replicas if context.is_going(each[0])]
    staying = [each for each in replicas if not context.is_going(each[0])]
    leaderless = [partition for partition, broker in staying if context.leader(partition) == broker]
    move_partitions(term, leaderless, PartitionState.OFFLINE)
    yield from elect_offline_partitions(term)
    batch = term.batch()
    yield from move_replicas(term, batch, staying, ReplicaState.OFFLINE)
    yield from fail_deletions(term, going)
    if not leaderless:
        batch.update_metadata(context.brokers, [])
    batch.send()


def elect_offline_partitions(term: Term) -> Procedure[None]:
    """Give a leader to every partition that has none and may have one."""
    states = (PartitionState.OFFLINE, PartitionState.NEW)
    waiting = [each for each in term.context.partitions_in(states) if not term.context.is_going(each)]
    if not waiting:
        return
    batch = term.batch()
    allowed = yield from unclean_topics(term, waiting)
    yield from bring_online(term, batch, waiting, elect_offline(term, allowed))
    batch.send()


def log_dirs_failed(term: Term) -> Procedure[None]:
    """Brokers have noticed a failed log directory: ask them which replicas were in it, by a LeaderAndIsr for each."""
    (children,) = yield [Children(LOG_DIR_EVENTS, watch=True)]
    paths = [f"{LOG_DIR_EVENTS}/{name}" for name in children.names]
    answers = yield [Get(path) for path in paths]
    brokers = {decode_log_dir_event(answer.data) for answer in answers if answer.fault is None}
    replicas = [
        (partition, broker)
        for broker in sorted(brokers & term.context.brokers.keys())
        for partition in term.context.partitions_on(broker)
        if term.context.replica_state(partition, broker) is ReplicaState.ONLINE
    ]
    batch = term.batch()
    yield from move_replicas(term, batch, replicas, ReplicaState.ONLINE)
    batch.send()
    check_fence((yield [term.fenced(Delete(path)) for path in paths]))


def disk_answers(
    term: Term, broker: int, failed: Iterable[tuple[str, int]], good: Iterable[tuple[str, int]]
) -> Procedure[None]:
    """A broker has answered a LeaderAndIsr: which of its replicas are in a failed log directory, which are not."""
    before = term.context.failed_disks.setdefault(broker, set())
    lost = [(partition, broker) for partition in failed if partition not in before]
    back = [(partition, broker) for partition in good if partition in before]
    before.update(partition for partition, _ in lost)
    before.difference_update(partition for partition, _ in back)
    if lost:
        yield from replicas_lost(term, lost)
    if back:
        batch = term.batch()
        yield from move_replicas(term, batch, [each for each in back if _may_be_back(term, each)], ReplicaState.ONLINE)
        batch.send()
        yield from elect_offline_partitions(term)


def shut_down(term: Term, broker: int) -> Procedure[list[tuple[str, int]]]:
    """A broker is about to stop: move its leaders away. Returns: the partitions that nobody else can lead."""
    context = term.context
    context.shutting_down.add(broker)
    shared = [
        partition
        for partition in context.partitions_on(broker)
        if len(context.replicas(partition)) > 1 and partition in context.leaders and not context.is_going(partition)
    ]
    led = [partition for partition in shared if context.leader(partition) == broker]
    batch = term.batch()
    yield from bring_online(term, batch, led, elect_for_shutdown(term))
    batch.send()
    followed = [(partition, broker) for partition in shared if partition not in led]
    batch = term.batch()
    yield from move_replicas(term, batch, followed, ReplicaState.OFFLINE)
    batch.send()
    return [partition for partition in led if context.leader(partition) == broker]


def is_without_leader(term: Term, partition: tuple[str, int]) -> bool:
    """Whether a partition's leader is dead, or it has none."""
    return term.context.leader(partition) not in live_replicas(term, partition)
