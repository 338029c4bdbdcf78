"""The partition and replica state machines: from state to state, by elections, with the requests that follow.

Procedures on the metadata store (`kbroker.metadata.steps`), run by the controller one at a time. A change is written
down first, fenced by the controller epoch, then noted in the context and gathered into the batch; the caller sends the
batch. What cannot change stays as it was, with a line in the log.

| partition | may become |
|---|---|
| NON_EXISTENT | NEW |
| NEW | ONLINE, OFFLINE, NON_EXISTENT |
| ONLINE | ONLINE (another leader), OFFLINE |
| OFFLINE | ONLINE, OFFLINE, NON_EXISTENT |

Source: ZkPartitionStateMachine and ZkReplicaStateMachine of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from kbroker.controller import election
from kbroker.controller.context import PartitionState, ReplicaState, TopicPartition
from kbroker.controller.controller_channel import Batch
from kbroker.controller.election import Elected
from kbroker.controller.epoch import ControllerEpoch, stat_of
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    NO_LEADER,
    RECOVERED,
    RECOVERING,
    Assignment,
    LeaderIsr,
    config_path,
    decode_config,
    decode_state,
    encode_state,
    isr_without,
    partition_path,
    partitions_path,
    state_path,
    understood,
)
from kbroker.ports import Create, Get, SetData, StoreFault
from protocol.errors import ErrorCode

log = logging.getLogger("kbroker.controller")

Decide: TypeAlias = Callable[[TopicPartition, LeaderIsr], Elected | None]
Replica: TypeAlias = tuple[TopicPartition, int]

MAY_FOLLOW: dict[PartitionState, frozenset[PartitionState]] = {
    PartitionState.NON_EXISTENT: frozenset({PartitionState.NEW}),
    PartitionState.NEW: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE, PartitionState.NON_EXISTENT}),
    PartitionState.ONLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE}),
    PartitionState.OFFLINE: frozenset({PartitionState.ONLINE, PartitionState.OFFLINE, PartitionState.NON_EXISTENT}),
}

REPLICA_MAY_FOLLOW: dict[ReplicaState, frozenset[ReplicaState]] = {
    ReplicaState.NON_EXISTENT: frozenset({ReplicaState.NEW}),
    ReplicaState.NEW: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
    ReplicaState.ONLINE: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
    ReplicaState.OFFLINE: frozenset(
        {
            ReplicaState.ONLINE,
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_IMPOSSIBLE,
        }
    ),
    ReplicaState.DELETION_STARTED: frozenset({ReplicaState.DELETION_DONE, ReplicaState.DELETION_IMPOSSIBLE}),
    ReplicaState.DELETION_DONE: frozenset({ReplicaState.NON_EXISTENT}),
    ReplicaState.DELETION_IMPOSSIBLE: frozenset({ReplicaState.ONLINE, ReplicaState.OFFLINE}),
}


# -- partitions


def transition_partitions(epoch: ControllerEpoch, partitions: Iterable[TopicPartition], target: PartitionState) -> None:
    """Note a state that needs no leader: NEW, OFFLINE, NON_EXISTENT."""
    assert target is not PartitionState.ONLINE, target
    for partition in partitions:
        if _may_become(epoch, partition, target):
            epoch.context.partition_states[partition] = target


def bring_online(
    epoch: ControllerEpoch, batch: Batch, partitions: Iterable[TopicPartition], decide: Decide
) -> Procedure[dict[TopicPartition, ErrorCode]]:
    """Give partitions a leader: new ones their first, others the one that `decide` elects.

    Returns: why a partition did not get one; NONE for those that did.
    """
    legal = [partition for partition in partitions if _may_become(epoch, partition, PartitionState.ONLINE)]
    fresh = [each for each in legal if epoch.context.partition_state(each) is PartitionState.NEW]
    known = [each for each in legal if epoch.context.partition_state(each) is not PartitionState.NEW]
    outcomes: dict[TopicPartition, ErrorCode] = {}
    if fresh:
        outcomes |= yield from _first_leaders(epoch, batch, fresh)
    if known:
        outcomes |= yield from _elect(epoch, batch, known, decide)
    return outcomes


def _may_become(epoch: ControllerEpoch, partition: TopicPartition, target: PartitionState) -> bool:
    state = epoch.context.partition_state(partition)
    if target in MAY_FOLLOW[state]:
        return True
    log.error("%s-%d cannot go from %s to %s", *partition, state.name, target.name)
    return False


def _first_leaders(
    epoch: ControllerEpoch, batch: Batch, partitions: Sequence[TopicPartition]
) -> Procedure[dict[TopicPartition, ErrorCode]]:
    """The first live replica leads, all live ones are in sync, in leader epoch 0."""
    context = epoch.context
    outcomes = dict.fromkeys(partitions, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
    states: dict[TopicPartition, LeaderIsr] = {}
    for partition in partitions:
        live = [each for each in context.replicas(partition) if context.is_replica_live(each, partition)]
        if live:
            states[partition] = LeaderIsr(live[0], 0, tuple(live), context.epoch, RECOVERED, 0)
        else:
            log.error("%s-%d gets no leader: none of its replicas is live", *partition)
    topics = dict.fromkeys(topic for topic, _ in states)
    writes = [Create(partitions_path(topic)) for topic in topics if not context.has_leaders(topic)]
    parents = len(writes)
    for partition, state in states.items():
        writes += [Create(partition_path(*partition)), Create(state_path(*partition), encode_state(state))]
    answers = yield from epoch.write(writes)
    for (partition, state), answer in zip(states.items(), answers[parents + 1 :: 2], strict=True):
        if answer.fault is not None:
            log.error("%s-%d gets no leader: %s", *partition, answer.fault)
            continue
        _put_leader(epoch, batch, partition, state._replace(version=stat_of(answer)), is_new=True)
        outcomes[partition] = ErrorCode.NONE
    return outcomes


def _elect(
    epoch: ControllerEpoch, batch: Batch, partitions: Sequence[TopicPartition], decide: Decide
) -> Procedure[dict[TopicPartition, ErrorCode]]:
    """Elect by what is remembered, if the store has the same: a leader may just have changed the in-sync set.

    That no replica can be elected is decided only by what the store says.
    """
    outcomes: dict[TopicPartition, ErrorCode] = {}
    remaining = list(partitions)
    states = _remembered(epoch, remaining)
    is_remembered = True
    while remaining:
        elected: dict[TopicPartition, LeaderIsr] = {}
        unsure: list[TopicPartition] = []
        for partition in remaining:
            state = states.get(partition)
            result = decide(partition, state) if state else None
            if state is None or result is None:
                unsure.append(partition)
                continue
            elected[partition] = state._replace(
                leader=result.leader,
                leader_epoch=state.leader_epoch + 1,
                isr=result.isr,
                controller_epoch=epoch.context.epoch,
                recovery=RECOVERING if result.unclean else state.recovery,
            )
        written, remaining = yield from _write_states(epoch, elected)
        for partition, state in written.items():
            _put_leader(epoch, batch, partition, state, is_new=False)
            outcomes[partition] = ErrorCode.NONE
        if is_remembered:
            remaining += unsure
        else:
            epoch.context.leaders.update((each, states[each]) for each in unsure if each in states)
            outcomes |= dict.fromkeys(unsure, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
        states, is_remembered = (yield from read_states(epoch, remaining)), False
    return outcomes


def _remembered(epoch: ControllerEpoch, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeaderIsr]:
    """The states of partitions as they were last seen. Their versions keep what has changed since from being lost."""
    leaders = epoch.context.leaders
    return {partition: leaders[partition] for partition in partitions if partition in leaders}


def read_states(
    epoch: ControllerEpoch, partitions: Sequence[TopicPartition]
) -> Procedure[dict[TopicPartition, LeaderIsr]]:
    """The states of partitions as they stand in the store; those without one are left out.

    Raises: ControllerMovedError if one was written by a newer controller.
    """
    written = yield from read_written_states(epoch, partitions)
    return {partition: state for partition, (state, _) in written.items()}


def read_written_states(
    epoch: ControllerEpoch, partitions: Sequence[TopicPartition]
) -> Procedure[dict[TopicPartition, tuple[LeaderIsr, int]]]:
    """The same, each with the number of the transaction that wrote it.

    One of a controller epoch that never was counts: Kafka elects no leader there, until its epochs have come so far.
    """
    answers = yield [Get(state_path(*partition)) for partition in partitions]
    states: dict[TopicPartition, tuple[LeaderIsr, int]] = {}
    newer: list[TopicPartition] = []
    for partition, answer in zip(partitions, answers, strict=True):
        if answer.fault is None and answer.stat is not None:
            state = understood(answer.path, answer.data, partial(decode_state, stat=answer.stat))
            if state is None:
                continue
            states[partition] = state, answer.stat.mzxid
            if state.controller_epoch > epoch.context.epoch:
                newer.append(partition)
    if newer:
        yield from epoch.pause()  # raises if there is a newer controller, whose first write is that of its epoch
        more = f" and {len(newer) - 1} more" if len(newer) > 1 else ""
        log.warning(
            "%s-%d%s: written in controller epoch %d, which never was, the last one is %d; taken as it stands",
            *newer[0],
            more,
            states[newer[0]][0].controller_epoch,
            epoch.context.epoch,
        )
    return states


def _write_states(
    epoch: ControllerEpoch, states: dict[TopicPartition, LeaderIsr]
) -> Procedure[tuple[dict[TopicPartition, LeaderIsr], list[TopicPartition]]]:
    """Write states over the versions they were read in. Returns: those written, and those to read again."""
    if not states:
        return {}, []
    answers = yield from epoch.write(
        [SetData(state_path(*each), encode_state(state), state.version) for each, state in states.items()]
    )
    written: dict[TopicPartition, LeaderIsr] = {}
    again = []
    for (partition, state), answer in zip(states.items(), answers, strict=True):
        if answer.fault is None:
            written[partition] = state._replace(version=stat_of(answer))
        elif answer.fault is StoreFault.BAD_VERSION:
            again.append(partition)
        else:
            log.error("the state of %s-%d cannot be written: %s", *partition, answer.fault)
    return written, again


def raise_leader_epoch(
    epoch: ControllerEpoch, batch: Batch, partition: TopicPartition, assignment: Assignment
) -> Procedure[None]:
    """The same leader in a new epoch, in which it knows its other replicas; those that are added are new."""
    remaining = [partition]
    while remaining:
        states = yield from read_states(epoch, remaining)
        raised = {
            each: state._replace(leader_epoch=state.leader_epoch + 1, controller_epoch=epoch.context.epoch)
            for each, state in states.items()
        }
        written, remaining = yield from _write_states(epoch, raised)
        for each, state in written.items():
            epoch.context.leaders[each] = state
            batch.leader_and_isr(assignment.origin, each, state, is_new=False)
            batch.leader_and_isr(assignment.adding, each, state, is_new=True)


def _put_leader(
    epoch: ControllerEpoch, batch: Batch, partition: TopicPartition, state: LeaderIsr, *, is_new: bool
) -> None:
    """A partition has a leader now: remember it, and tell its replicas."""
    context = epoch.context
    context.leaders[partition] = state
    context.partition_states[partition] = PartitionState.ONLINE
    told = [each for each in context.replicas(partition) if context.is_replica_live(each, partition, stopping=True)]
    batch.leader_and_isr(told, partition, state, is_new=is_new)


# -- elections, by what the context knows


def live_replicas(epoch: ControllerEpoch, partition: TopicPartition, *, stopping: bool = False) -> set[int]:
    """The replicas that could lead. stopping: those about to stop among them."""
    context = epoch.context
    replicas = context.replicas(partition)
    return {each for each in replicas if context.is_replica_live(each, partition, stopping=stopping)}


def elect_offline(epoch: ControllerEpoch, unclean_topics: set[str], *, force: bool = False) -> Decide:
    """For partitions without a live leader. unclean_topics: where losing records is allowed; force: everywhere."""

    def decide(partition: TopicPartition, state: LeaderIsr) -> Elected | None:
        allowed = force or partition[0] in unclean_topics
        live = live_replicas(epoch, partition)
        return election.offline(epoch.context.replicas(partition), state.isr, live, unclean_allowed=allowed)

    return decide


def elect_without(epoch: ControllerEpoch, doubtful: Mapping[TopicPartition, Collection[int]]) -> Decide:
    """For partitions of whose replicas in sync some have restarted. doubtful: who, by partition."""

    def decide(partition: TopicPartition, state: LeaderIsr) -> Elected | None:
        replicas, live = epoch.context.replicas(partition), live_replicas(epoch, partition)
        return election.restarted(replicas, state.leader, state.isr, live, doubtful[partition])

    return decide


def elect_preferred(epoch: ControllerEpoch) -> Decide:
    """Back to the first replica."""

    def decide(partition: TopicPartition, state: LeaderIsr) -> Elected | None:
        return election.preferred(epoch.context.replicas(partition), state.isr, live_replicas(epoch, partition))

    return decide


def elect_reassigned(epoch: ControllerEpoch) -> Decide:
    """The first of the replicas, which are new, that can lead."""

    def decide(partition: TopicPartition, state: LeaderIsr) -> Elected | None:
        return election.reassigned(epoch.context.replicas(partition), state.isr, live_replicas(epoch, partition))

    return decide


def elect_for_shutdown(epoch: ControllerEpoch) -> Decide:
    """Away from brokers that are about to stop."""

    def decide(partition: TopicPartition, state: LeaderIsr) -> Elected | None:
        live = live_replicas(epoch, partition, stopping=True)
        leaving = epoch.context.shutting_down
        return election.controlled_shutdown(epoch.context.replicas(partition), state.isr, live, leaving)

    return decide


def unclean_topics(epoch: ControllerEpoch, partitions: Iterable[TopicPartition]) -> Procedure[set[str]]:
    """The topics, of those that have no live replica in sync, that allow an unclean election."""
    doubtful = []
    for partition in partitions:
        state = epoch.context.leaders.get(partition)
        if state is not None and not live_replicas(epoch, partition) & set(state.isr):
            doubtful.append(partition[0])
    topics = list(dict.fromkeys(doubtful))
    answers = yield [Get(config_path("topics", topic)) for topic in topics]
    default = str(epoch.configs.broker.unclean_leader_election_enable)
    allowed = set()
    for topic, answer in zip(topics, answers, strict=True):
        overrides = decode_config(answer.data) if answer.fault is None else {}
        if overrides.get("unclean.leader.election.enable", default).lower() == "true":
            allowed.add(topic)
    return allowed


# -- replicas


def transition_replicas(
    epoch: ControllerEpoch, batch: Batch, replicas: Iterable[Replica], target: ReplicaState
) -> Procedure[None]:
    """Bring replicas into a state; those that may not go there stay."""
    legal = [replica for replica in replicas if _replica_may_become(epoch, replica, target)]
    before = {(partition, broker): epoch.context.replica_state(partition, broker) for partition, broker in legal}
    for partition, broker in legal:
        epoch.context.set_replica_state(partition, broker, target)
    match target:
        case ReplicaState.ONLINE:
            _tell_online(epoch, batch, [each for each in legal if before[each] is not ReplicaState.NEW])
        case ReplicaState.OFFLINE:
            yield from _take_offline(epoch, batch, legal)
        case ReplicaState.DELETION_STARTED:
            for partition, broker in legal:
                batch.stop([broker], partition, delete=True)
        case _:
            pass


def _replica_may_become(epoch: ControllerEpoch, replica: Replica, target: ReplicaState) -> bool:
    partition, broker = replica
    state = epoch.context.replica_state(partition, broker)
    if target in REPLICA_MAY_FOLLOW[state]:
        return True
    log.error("replica %d of %s-%d cannot go from %s to %s", broker, *partition, state.name, target.name)
    return False


def _tell_online(epoch: ControllerEpoch, batch: Batch, replicas: Iterable[Replica]) -> None:
    """Brokers that are back: tell them who leads what they have."""
    for partition, broker in replicas:
        state = epoch.context.leaders.get(partition)
        if state is not None:
            batch.leader_and_isr([broker], partition, state, is_new=False)


def _take_offline(epoch: ControllerEpoch, batch: Batch, replicas: Sequence[Replica]) -> Procedure[None]:
    """Stop replicas, where there still is a broker to tell, and take them out of the in-sync sets."""
    by_broker: dict[int, list[TopicPartition]] = {}
    for partition, broker in replicas:
        batch.stop([broker], partition, delete=False)
        if epoch.context.is_to_be_deleted(partition):
            continue
        if partition in epoch.context.leaders:
            by_broker.setdefault(broker, []).append(partition)
        else:
            batch.update_metadata(epoch.context.brokers, [partition])
    for broker, partitions in by_broker.items():
        yield from _remove_from_isr(epoch, batch, broker, partitions)


def _remove_from_isr(
    epoch: ControllerEpoch, batch: Batch, broker: int, partitions: Sequence[TopicPartition]
) -> Procedure[None]:
    """A replica is not in sync any more, and does not lead; the last one in sync stays so, for what it has."""
    context = epoch.context
    states = _remembered(epoch, partitions)
    while states:
        shrunk = {
            partition: state._replace(
                leader=NO_LEADER if state.leader == broker else state.leader,
                leader_epoch=state.leader_epoch + 1,
                isr=isr_without(state.isr, broker),
                controller_epoch=context.epoch,
            )
            for partition, state in states.items()
            if broker in state.isr
        }
        for partition, state in states.items():
            if partition not in shrunk:
                context.leaders[partition] = state
        written, remaining = yield from _write_states(epoch, shrunk)
        for partition, state in written.items():
            context.leaders[partition] = state
            others = [each for each in context.replicas(partition) if each != broker]
            batch.leader_and_isr(others, partition, state, is_new=False)
            if state.leader == NO_LEADER:
                context.partition_states[partition] = PartitionState.OFFLINE
        states = yield from read_states(epoch, remaining)
