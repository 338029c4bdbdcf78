"""ElectLeaders, preferred leaders (auto.leader.rebalance.enable) and leaders that shrank their in-sync set.

Procedures run by `controller.py`. Source: KafkaController of Apache Kafka 3.9, by behaviour; KIP-183, KIP-460.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from kbroker.controller.brokers import is_without_leader
from kbroker.controller.context import TopicPartition
from kbroker.controller.epoch import ControllerEpoch, check_fence, pieces
from kbroker.controller.events import ElectionType
from kbroker.controller.state_machines import bring_online, elect_offline, elect_preferred, read_states
from kbroker.metadata.steps import Procedure
from kbroker.metadata.store import (
    ISR_CHANGES,
    PREFERRED_ELECTIONS,
    decode_isr_change,
    decode_preferred_elections,
    understood,
)
from kbroker.ports import Children, Delete, Exists, Get
from protocol.errors import ErrorCode

log = logging.getLogger("kbroker.controller")


def elect(
    epoch: ControllerEpoch, partitions: Iterable[TopicPartition], kind: ElectionType
) -> Procedure[tuple[Mapping[TopicPartition, ErrorCode], Mapping[TopicPartition, int]]]:
    """Elect leaders where one is needed. Returns: what became of each partition, and who leads those that changed."""
    asked = list(dict.fromkeys(partitions))
    outcomes: dict[TopicPartition, ErrorCode] = {}
    batch = epoch.batch()
    decide = elect_preferred(epoch) if kind is ElectionType.PREFERRED else elect_offline(epoch, set(), force=True)
    for some in pieces(asked):
        if outcomes:
            yield from epoch.pause()
        outcomes |= {partition: _objection(epoch, partition, kind) for partition in some}
        wanted = [partition for partition in some if outcomes[partition] is ErrorCode.NONE]
        elected = yield from bring_online(epoch, batch, wanted, decide)
        for partition in wanted:
            code = elected.get(partition, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
            if code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE and kind is ElectionType.PREFERRED:
                code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            outcomes[partition] = code
    yield from epoch.send(batch)
    changed = {each: epoch.context.leader(each) for each, code in outcomes.items() if code is ErrorCode.NONE}
    return outcomes, changed


def _objection(epoch: ControllerEpoch, partition: TopicPartition, kind: ElectionType) -> ErrorCode:
    context = epoch.context
    if not context.replicas(partition):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if context.is_to_be_deleted(partition):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if kind is ElectionType.PREFERRED:
        is_needed = context.leader(partition) != context.replicas(partition)[0]
    else:
        is_needed = is_without_leader(epoch, partition)
    return ErrorCode.NONE if is_needed else ErrorCode.ELECTION_NOT_NEEDED


def rebalance(epoch: ControllerEpoch) -> Procedure[None]:
    """Give leaders back to brokers that lead too few of the partitions that prefer them.

    Those that are being moved are left alone, and only those, as it may take days: on its way a partition prefers a
    replica of its target, which leads when all of them are in sync.
    """
    allowed = epoch.configs.broker.leader_imbalance_per_broker_percentage
    for broker, preferring in epoch.context.leader_counts().items():
        elsewhere = [partition for partition in preferring if epoch.context.leader(partition) != broker]
        if not epoch.context.is_live(broker) or 100 * len(elsewhere) <= allowed * len(preferring):
            continue
        log.info("broker %d leads %d of its %d partitions", broker, len(preferring) - len(elsewhere), len(preferring))
        known = epoch.context.leaders  # not of those that never had a leader
        in_sync = [each for each in elsewhere if each in known and broker in known[each].isr]
        yield from elect(epoch, in_sync, ElectionType.PREFERRED)


def isrs_changed(epoch: ControllerEpoch) -> Procedure[list[TopicPartition]]:
    """Leaders of an old protocol have written in-sync sets themselves: read them, tell all brokers. Returns: whose."""
    (children,) = yield [Children(ISR_CHANGES, watch=True)]
    paths = [f"{ISR_CHANGES}/{name}" for name in children.names]
    answers = yield [Get(path) for path in paths]
    notices = [understood(answer.path, answer.data, decode_isr_change) for answer in answers if answer.fault is None]
    changed = {each: None for notice in notices for each in notice or ()}
    known = [partition for partition in changed if epoch.context.replicas(partition)]
    states = yield from read_states(epoch, known)
    epoch.context.leaders.update(states)
    batch = epoch.batch()
    batch.update_metadata(epoch.context.brokers, states)
    batch.send()
    check_fence((yield [epoch.fenced(Delete(path)) for path in paths]))
    return list(states)


def preferred_elections_changed(epoch: ControllerEpoch) -> Procedure[None]:
    """A tool has written into `/admin/preferred_replica_election` which first replicas are to lead."""
    _, found = yield [Exists(PREFERRED_ELECTIONS, watch=True), Get(PREFERRED_ELECTIONS)]
    if found.fault is not None:
        return
    wanted = understood(PREFERRED_ELECTIONS, found.data, decode_preferred_elections) or []
    yield from elect(epoch, wanted, ElectionType.PREFERRED)
    check_fence((yield [epoch.fenced(Delete(PREFERRED_ELECTIONS))]))
