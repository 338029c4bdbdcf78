"""Partition reassignment: replicas added, brought into sync, the others removed; or called off.

Procedures run by `controller.py`: a client asks (AlterPartitionReassignments, or `/admin/reassign_partitions`), a
leader has taken new replicas in, a broker comes, a controller is elected. Where a partition is on its way stands in its
topic's node, so that a new controller goes on from there. Each procedure looks at one partition after the other:

| step | all replicas | adding | removing | example: 1,2 to 2,3 |
|---|---|---|---|---|
| before | old | | | 1,2 |
| asked | target, then old | target without old | old without target | 2,3,1, adding 3, removing 1 |
| target in sync | target, then old | ... | ... | as above; a leader out of the target hands over |
| done | target | | | 2,3; broker 1 deletes its replica |

A new target takes the place of one under way; to call a reassignment off is to have the old replicas for target. What
is added by the first and not by the second is removed at once.

Source: KafkaController of Apache Kafka 3.9, by behaviour; KIP-455. Unlike Kafka, a partition none of whose target
replicas could lead keeps its old ones until one can.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kbroker.controller.assignment import check_replicas
from kbroker.controller.context import Context, ReplicaState, TopicPartition
from kbroker.controller.epoch import ControllerEpoch, check_fence, check_size, fault_of
from kbroker.controller.state_machines import (
    bring_online,
    elect_offline,
    elect_reassigned,
    live_replicas,
    raise_leader_epoch,
    read_states,
    transition_replicas,
)
from kbroker.controller.topics import unblock
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    REASSIGNMENTS,
    Assignment,
    TopicInfo,
    decode_reassignments,
    decode_topic,
    encode_reassignments,
    encode_topic,
    topic_path,
    understood,
)
from kbroker.ports import Delete, Exists, Get, SetData, StoreFault
from protocol.errors import ErrorCode, KafkaError

log = logging.getLogger("kbroker.controller")

Targets: TypeAlias = Mapping[TopicPartition, "tuple[int, ...] | None"]
"""Where partitions are to be; None: call off what is under way."""


def asked(
    epoch: ControllerEpoch, targets: Targets, *, may_resize: bool = True
) -> Procedure[dict[TopicPartition, KafkaError | None]]:
    """Begin, replace or call off reassignments. Returns: why not, None where it is under way, or done.

    may_resize: whether a partition may have more or fewer replicas than before (KIP-860).
    """
    outcomes: dict[TopicPartition, KafkaError | None] = {}
    granted: dict[TopicPartition, Assignment] = {}
    for partition, target in targets.items():
        try:
            wanted = _assignment(epoch.context, partition, target)
            if not may_resize and target is not None:
                _check_size(epoch.context.assignment(partition), target)
            granted[partition] = wanted
        except KafkaError as error:
            outcomes[partition] = error
    yield from _forget_requests(epoch, granted)  # the latest target counts
    for partition, wanted in granted.items():
        try:
            yield from _move(epoch, partition, wanted)
        except KafkaError as error:
            outcomes[partition] = error
        else:
            outcomes[partition] = None
    return outcomes


def requests_changed(epoch: ControllerEpoch) -> Procedure[None]:
    """`/admin/reassign_partitions` was made or written: begin what is not under way."""
    targets = yield from _read_requests()
    context = epoch.context
    fresh = {
        partition: target for partition, target in targets.items() if not _is_on_its_way(context, partition, target)
    }
    refused = []
    for partition, target in fresh.items():
        try:
            yield from _move(epoch, partition, _assignment(context, partition, target, anywhere=True))
        except KafkaError as error:
            log.error("%s-%d cannot be reassigned: %s", *partition, error)
            refused.append(partition)
    yield from _forget_requests(epoch, refused)


def resume(epoch: ControllerEpoch, brokers: Iterable[int] | None = None) -> Procedure[None]:
    """Go on with what is under way; only what waits for one of these brokers, if some are named."""
    wanted = None if brokers is None else set(brokers)
    for partition in _moving(epoch.context):
        assignment = epoch.context.assignment(partition)
        if wanted is None or wanted & set(assignment.target):
            yield from _move(epoch, partition, assignment)


def complete(epoch: ControllerEpoch, partitions: Iterable[TopicPartition]) -> Procedure[None]:
    """The in-sync sets of these have changed: is any of them where it is to be?"""
    for partition in partitions:
        assignment = epoch.context.assignment(partition)
        if assignment.is_moving and (yield from _is_complete(epoch, partition, assignment)):
            log.info("%s-%d is in sync where it is to be: %s", *partition, assignment.target)
            yield from _move(epoch, partition, assignment)


# -- what is asked for


def _assignment(
    context: Context, partition: TopicPartition, target: Sequence[int] | None, *, anywhere: bool = False
) -> Assignment:
    """The replicas of a partition on its way. anywhere: brokers need not live. Raises: KafkaError if it may not go."""
    topic, index = partition
    if topic not in context.assignments or context.is_to_be_deleted(partition):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    if index not in context.assignments[topic]:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}.")
    now = context.assignment(partition)
    if target is None:
        if not now.is_moving:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
        wanted = now.reassigned(now.origin)
        _check_records(context, partition, wanted)
        return wanted
    wanted = now.reassigned(tuple(target))
    check_replicas(target, set() if anywhere else {each for each in wanted.adding if not context.is_live(each)})
    _check_records(context, partition, wanted)
    return wanted


def _check_size(now: Assignment, target: Sequence[int]) -> None:
    """Raises: KafkaError if there would be more or fewer replicas; of one that is moving its target counts."""
    before = len(now.target)
    if before != len(target):
        text = f"The replication factor is changed from {before} to {len(target)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, text)


def _check_records(context: Context, partition: TopicPartition, wanted: Assignment) -> None:
    """Raises: KafkaError if every replica that has the partition's records would be deleted.

    It is so where a partition's first leader was one of those that are added, for the others were dead. As a KRaft
    controller refuses it; one on ZooKeeper deletes them.
    """
    state = context.leaders.get(partition)
    if state is not None and state.isr and not set(state.isr) & set(wanted.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Unable to revert partition assignment for {partition[0]}:{partition[1]} because it would require an "
            "unclean leader election.",
        )


def _moving(context: Context) -> list[TopicPartition]:
    return [partition for partition in context.all_partitions() if context.assignment(partition).is_moving]


def _is_on_its_way(context: Context, partition: TopicPartition, target: tuple[int, ...]) -> bool:
    now = context.assignment(partition)
    return now.is_moving and now.target == target


# -- on the way


def _move(epoch: ControllerEpoch, partition: TopicPartition, wanted: Assignment) -> Procedure[None]:
    """Take a partition as far as it can go now. Raises: KafkaError if the store does not take where it is to go."""
    before = epoch.context.assignment(partition)
    if before != wanted:
        log.info("%s-%d goes from %s to %s", *partition, before.replicas, wanted.target)
        yield from _write_assignment(epoch, partition, wanted)
        dropped = [broker for broker in before.replicas if broker not in wanted.replicas]
        led = epoch.context.leader(partition)
        yield from _remove_replicas(epoch, partition, dropped)
        if led in dropped:
            yield from _lead_again(epoch, partition)
    if (yield from _is_complete(epoch, partition, wanted)):
        yield from _finish(epoch, partition, wanted)
    else:
        yield from _grow(epoch, partition, wanted)


def _lead_again(epoch: ControllerEpoch, partition: TopicPartition) -> Procedure[None]:
    """The leader is one of those that are no longer wanted: another in sync leads, in Kafka when a broker comes."""
    batch = epoch.batch()
    yield from bring_online(epoch, batch, [partition], elect_offline(epoch, set()))
    batch.send()


def _is_complete(epoch: ControllerEpoch, partition: TopicPartition, wanted: Assignment) -> Procedure[bool]:
    """Whether all replicas that are wanted are in sync, and one of them can lead."""
    if not wanted.is_moving:
        return True
    states = yield from read_states(epoch, [partition])
    isr = set(states[partition].isr) if partition in states else set()
    target = set(wanted.target)
    return target <= isr and bool(target & live_replicas(epoch, partition))


def _grow(epoch: ControllerEpoch, partition: TopicPartition, wanted: Assignment) -> Procedure[None]:
    """The leader is told of all replicas, in a new epoch; those that are added begin to follow."""
    batch = epoch.batch()
    yield from raise_leader_epoch(epoch, batch, partition, wanted)
    fresh = [
        (partition, broker)
        for broker in wanted.adding
        if epoch.context.replica_state(partition, broker) is ReplicaState.NON_EXISTENT
    ]
    yield from transition_replicas(epoch, batch, fresh, ReplicaState.NEW)
    batch.send()


def _finish(epoch: ControllerEpoch, partition: TopicPartition, wanted: Assignment) -> Procedure[None]:
    """The new replicas are all there is: one of them leads, the others stop and delete what they have."""
    context = epoch.context
    batch = epoch.batch()
    added = [(partition, each) for each in wanted.adding if context.replica_state(partition, each) is ReplicaState.NEW]
    yield from transition_replicas(epoch, batch, added, ReplicaState.ONLINE)
    batch.send()
    done = Assignment(wanted.target)
    context.assignments[partition[0]][partition[1]] = done
    batch = epoch.batch()
    leader = context.leader(partition)
    if leader in done.replicas and context.is_replica_live(leader, partition):
        yield from raise_leader_epoch(epoch, batch, partition, done)
    else:
        yield from bring_online(epoch, batch, [partition], elect_reassigned(epoch))
    batch.send()
    yield from _remove_replicas(epoch, partition, wanted.removing)
    yield from _write_assignment(epoch, partition, done)
    yield from _forget_requests(epoch, [partition])
    batch = epoch.batch()
    batch.update_metadata(context.brokers, [partition])
    batch.send()
    log.info("%s-%d is on %s now", *partition, done.replicas)
    yield from unblock(epoch, [partition[0]])  # it may have waited for one that is not a replica any more


def _remove_replicas(epoch: ControllerEpoch, partition: TopicPartition, brokers: Iterable[int]) -> Procedure[None]:
    """Brokers stop and delete their replicas. One that is away keeps its files, as in Kafka; it is not waited for."""
    replicas = [(partition, broker) for broker in brokers]
    for state in (
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_DONE,
        ReplicaState.NON_EXISTENT,
    ):
        batch = epoch.batch()
        yield from transition_replicas(epoch, batch, replicas, state)
        batch.send()


# -- what is written


def _write_assignment(epoch: ControllerEpoch, partition: TopicPartition, wanted: Assignment) -> Procedure[None]:
    """A partition's replicas, in its topic's node and in the context; what others add to the topic meanwhile stays.

    Raises: KafkaError if the node would be larger than the store takes. One that shrinks is written, however large.
    """
    topic, index = partition
    while True:
        (found,) = yield [Get(topic_path(topic))]
        assert found.stat is not None, f"{topic} has no node"
        info = decode_topic(found.data)
        content = encode_topic(TopicInfo(info.topic_id, {**info.partitions, index: wanted}))
        if len(content) > len(found.data):
            check_size(len(content))
        answers = yield [epoch.fenced(SetData(topic_path(topic), content, found.stat.version))]
        check_fence(answers)
        if fault_of(answers[0]) is not StoreFault.BAD_VERSION:
            break
    epoch.context.assignments[topic][index] = wanted


def _read_requests() -> Procedure[dict[TopicPartition, tuple[int, ...]]]:
    """What stands in `/admin/reassign_partitions`, which is watched from now on."""
    _, found = yield [Exists(REASSIGNMENTS, watch=True), Get(REASSIGNMENTS)]
    if found.fault is not None:
        return {}
    return understood(REASSIGNMENTS, found.data, decode_reassignments) or {}


def _forget_requests(epoch: ControllerEpoch, partitions: Iterable[TopicPartition]) -> Procedure[None]:
    """Take partitions out of `/admin/reassign_partitions`; without any left, the node goes."""
    there, gone = (yield from _read_requests()), set(partitions)
    left = {partition: target for partition, target in there.items() if partition not in gone}
    if left == there:
        return
    write = SetData(REASSIGNMENTS, encode_reassignments(left)) if left else Delete(REASSIGNMENTS)
    check_fence((yield [epoch.fenced(write)]))
