"""In-sync sets that leaders want changed (AlterPartition): checked, written down behind the fence, told to all brokers.

A procedure run by `controller.py`. A leader proposes over the state it knows, named by its leader epoch and partition
epoch; what it has not heard of yet makes its proposal void, and it is told so. A proposal that is in force already is
granted again: its first answer was lost.

Source: KafkaController of Apache Kafka 3.9, by behaviour; KIP-497, KIP-704 (recovery), KIP-841 (replicas that are not
alive stay out).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TypeAlias

from kbroker.controller.context import Context, TopicPartition
from kbroker.controller.epoch import ControllerEpoch, stat_of
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import RECOVERED, RECOVERING, LeaderIsr, encode_state, state_path
from kbroker.ports import SetData, StoreFault
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionState,
    AlterPartitionTopicResult,
)

log = logging.getLogger("kbroker.controller")

Proposal: TypeAlias = tuple[TopicPartition, LeaderIsr]
Verdict: TypeAlias = "LeaderIsr | ErrorCode"

_OF_THE_UNFIT = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)

IDS_SINCE = 2
EPOCHS_SINCE = 3


def alter_partition(
    epoch: ControllerEpoch, request: AlterPartitionRequest, version: int
) -> Procedure[AlterPartitionResponse]:
    """Change the in-sync sets that may be changed. Returns: the state that each partition is in, or why it is not."""
    context = epoch.context
    sender = context.brokers.get(request.broker_id)
    if sender is None or sender.epoch != request.broker_epoch:
        log.info("AlterPartition of broker %d in an epoch that is over: %d", request.broker_id, request.broker_epoch)
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, topics=[])
    proposals = dict(_proposals(context, request, version))
    verdicts: dict[TopicPartition, Verdict] = {
        partition: _verdict(context, partition, wanted, version) for partition, wanted in proposals.items()
    }
    _say_unfit(context, [(each, proposals[each]) for each, verdict in verdicts.items() if verdict in _OF_THE_UNFIT])
    allowed = {partition: proposals[partition] for partition, verdict in verdicts.items() if verdict is ErrorCode.NONE}
    verdicts |= yield from _write(epoch, allowed)
    batch = epoch.batch()
    batch.update_metadata(context.brokers, [each for each in proposals if each in context.leaders])
    batch.send()
    return _response(context, request, version, verdicts)


def granted(context: Context, response: AlterPartitionResponse) -> list[TopicPartition]:
    """The partitions of an answer whose proposals were granted."""
    return [
        (name, each.partition_index)
        for topic in response.topics
        if (name := topic.topic_name or context.names.get(topic.topic_id))
        for each in topic.partitions
        if each.error_code == ErrorCode.NONE
    ]


def _proposals(context: Context, request: AlterPartitionRequest, version: int) -> Iterator[Proposal]:
    """The states that are wanted; topics whose id is unknown are left out."""
    for topic in request.topics:
        name = context.names.get(topic.topic_id) if version >= IDS_SINCE else topic.topic_name
        if name is not None:
            for state in topic.partitions:
                yield (name, state.partition_index), _wanted(context, request.broker_id, state, version)


def _wanted(context: Context, leader: int, state: AlterPartitionState, version: int) -> LeaderIsr:
    named = [each.broker_id for each in state.new_isr_with_epochs] if version >= EPOCHS_SINCE else state.new_isr
    return LeaderIsr(
        leader, state.leader_epoch, tuple(named), context.epoch, state.leader_recovery_state, state.partition_epoch
    )


def _verdict(context: Context, partition: TopicPartition, wanted: LeaderIsr, version: int) -> Verdict:
    """NONE if it is to be written, the present state if that is what is wanted, else why it may not be."""
    now = context.leaders.get(partition)
    if now is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if wanted.recovery not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST  # written down, no Apache broker could read the state
    if wanted.version > now.version or wanted.leader_epoch > now.leader_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has heard more than we: there is a newer controller
    if wanted.leader_epoch < now.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if (wanted.leader, wanted.isr, wanted.recovery) == (now.leader, now.isr, now.recovery):
        return now
    if wanted.version < now.version:
        return ErrorCode.INVALID_UPDATE_VERSION
    if wanted.recovery == RECOVERING and (len(wanted.isr) > 1 or now.recovery == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if _unfit(context, partition, wanted):
        return ErrorCode.INELIGIBLE_REPLICA if version >= IDS_SINCE else ErrorCode.OPERATION_NOT_ATTEMPTED
    return ErrorCode.NONE


def _unfit(context: Context, partition: TopicPartition, wanted: LeaderIsr) -> set[int]:
    """Brokers that cannot be in sync: dead ones, and those that are no replicas, perhaps not any more.

    Once all others had left the set, such a partition would have no leader for good. Source: KRaft's controller checks
    both, Kafka's on ZooKeeper the first.
    """
    replicas = context.replicas(partition)
    return {broker for broker in wanted.isr if not context.is_live(broker) or broker not in replicas}


def _say_unfit(context: Context, refused: list[Proposal]) -> None:
    """At a broker's stop these are as many as it has replicas that had just caught up."""
    if refused:
        unfit = sorted(set().union(*(_unfit(context, *each) for each in refused)))
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        log.info("%s-%d%s: brokers %s are not alive or no replicas: not in sync", *refused[0][0], more, unfit)


def _write(
    epoch: ControllerEpoch, granted: dict[TopicPartition, LeaderIsr]
) -> Procedure[dict[TopicPartition, Verdict]]:
    """Write states over the versions that their leaders know."""
    if not granted:
        return {}
    answers = yield from epoch.write(
        [SetData(state_path(*each), encode_state(state), state.version) for each, state in granted.items()]
    )
    verdicts: dict[TopicPartition, Verdict] = {}
    for (partition, state), answer in zip(granted.items(), answers, strict=True):
        if answer.fault is None:
            verdicts[partition] = epoch.context.leaders[partition] = state._replace(version=stat_of(answer))
        elif answer.fault is StoreFault.BAD_VERSION:
            verdicts[partition] = ErrorCode.INVALID_UPDATE_VERSION
        else:
            log.error("the in-sync set of %s-%d cannot be written: %s", *partition, answer.fault)
            verdicts[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
    return verdicts


def _response(
    context: Context, request: AlterPartitionRequest, version: int, verdicts: dict[TopicPartition, Verdict]
) -> AlterPartitionResponse:
    topics = []
    for topic in request.topics:
        name = context.names.get(topic.topic_id) if version >= IDS_SINCE else topic.topic_name
        results = []
        for state in topic.partitions:
            verdict = verdicts[name, state.partition_index] if name is not None else ErrorCode.UNKNOWN_TOPIC_ID
            results.append(_result(state.partition_index, verdict))
        topic_id = topic.topic_id if version >= IDS_SINCE else ZERO_UUID
        topics.append(AlterPartitionTopicResult(topic_name=topic.topic_name, topic_id=topic_id, partitions=results))
    return AlterPartitionResponse(error_code=ErrorCode.NONE, topics=topics)


def _result(index: int, verdict: Verdict) -> AlterPartitionResult:
    if isinstance(verdict, LeaderIsr):
        return AlterPartitionResult(
            partition_index=index,
            error_code=ErrorCode.NONE,
            leader_id=verdict.leader,
            leader_epoch=verdict.leader_epoch,
            isr=list(verdict.isr),
            leader_recovery_state=verdict.recovery,
            partition_epoch=verdict.version,
        )
    return AlterPartitionResult(
        partition_index=index, error_code=verdict, leader_id=0, leader_epoch=0, isr=[], partition_epoch=0
    )
