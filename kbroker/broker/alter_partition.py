"""AlterPartition: this broker, as a leader, asks the controller to change in-sync sets (ISR), many in one request.

A part of the broker. One request is under way at a time; what is proposed meanwhile goes with the next. A request that
gets no answer, or is refused as a whole, is asked again until it is not, after a growing pause, of the broker that is
controller by then: its partition epochs make sure that asking twice does no harm. Proposals that a new leader epoch has
made void are not sent. Where this broker is the controller itself, it asks its own queue.

Source: AlterPartitionManager and Partition.handleAlterPartitionError of Apache Kafka 3.9, by behaviour; KIP-497.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from kbroker.metadata.requester import OnceAMinute
from kbroker.ports import PeerFault
from kbroker.replica.facts import InSyncProposed
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionState,
    AlterPartitionTopic,
    BrokerState,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.control_plane import ControlPlane
    from kbroker.broker.facts import Handler, Tell
    from kbroker.metadata.requester import Asked
    from kbroker.ports import Clock, PeerEvent
    from kbroker.replica import Partition, ReplicaManager
    from kbroker.replica.partition import Proposal
    from kbroker.timing import Scheduler
    from protocol.messages.control import AlterPartitionResult

log = logging.getLogger("kbroker.replicas")

RETRY_MS, MOST_RETRY_MS = 50, 1_000  # Kafka's, and no longer than a connection to another broker pauses
PROPOSALS_AT_ONCE = 10_000
"""In one request: some 0.4 MB with three replicas. A controller hangs up on much more, and it would be asked again."""

WITH_IDS_VERSION, WITH_NAMES_VERSION = 3, 1

NOT_DONE = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
"""The controller knows the state as we do, and has refused: the set is what it was."""

OVERTAKEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""The controller knows of another state, and will tell: until then the larger set counts."""

ANSWERED = NOT_DONE | OVERTAKEN | {ErrorCode.NONE}
"""Nothing is asked again after these."""


class Proposals(NamedTuple):
    """A request to the controller. version: in which it was made."""

    proposals: dict[Partition, Proposal]
    version: int


class AlterPartitionManager:
    """Proposals on their way."""

    def __init__(
        self,
        replicas: ReplicaManager,
        plane: ControlPlane,
        clock: Clock,
        scheduler: Scheduler,
        tell: Tell,
    ) -> None:
        self._replicas = replicas
        self._plane = plane
        self._tell = tell
        self._look_every_ms = max(plane.configs.broker.replica_lag_time_max_ms // 2, 1)
        self._look_at = scheduler.alarm(self._shrink_isrs)
        self._look_at.set(clock.now_ms() + self._look_every_ms)
        self._waiting: dict[Partition, None] = {}
        self._under_way: Proposals | None = None
        self._retry_at = scheduler.alarm(self._ask)
        self._pause_ms = RETRY_MS
        self._said = OnceAMinute()

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What is proposed, and what the own controller answers."""
        return {
            InSyncProposed: self._proposed,
            InSyncAnswer: lambda fact, now_ms: self._heard(fact.asked, fact.response, now_ms),
        }

    # -- time

    def _shrink_isrs(self, now_ms: int) -> None:
        """For followers that lag."""
        self._look_at.set(now_ms + self._look_every_ms)
        self._replicas.shrink_isrs(now_ms)

    # -- asking

    def _proposed(self, fact: InSyncProposed, now_ms: int) -> None:
        self._waiting[fact.partition] = None
        self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        """Send what waits, or the first of it, unless a request is under way, or a pause."""
        if self._under_way is not None or self._retry_at.pending:
            return
        waiting = ((each, each.proposal) for each in self._waiting if each.proposal is not None)
        proposals = dict(islice(waiting, PROPOSALS_AT_ONCE))
        if not proposals:
            self._waiting.clear()
            return
        by_id = all(each.topic_id != ZERO_UUID for each in proposals)
        asked = Proposals(proposals, WITH_IDS_VERSION if by_id else WITH_NAMES_VERSION)
        if self._send(asked):
            for each in proposals:
                del self._waiting[each]
            self._under_way = asked
        else:
            self._retry_at.set(now_ms + RETRY_MS)

    def _send(self, asked: Proposals) -> bool:
        """Whether there is a controller to ask."""
        plane = self._plane
        epoch = plane.broker_epoch
        if epoch < 0:
            return False  # not registered in this cluster at the moment
        request = _request(plane.broker_id, epoch, asked, tells_epochs=plane.controller is None)
        return plane.alter_partition(
            self, request, asked.version, asked, lambda response: self._tell(InSyncAnswer(asked, response))
        )

    # -- what became of it

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """Another broker, as the controller, has answered, or not."""
        under_way = self._under_way
        assert under_way is not None, asked
        if isinstance(event, PeerFault):
            self._again(under_way, now_ms)
        else:
            assert isinstance(event.response, AlterPartitionResponse), event
            self._heard(under_way, event.response, now_ms)

    def _heard(self, asked: Proposals, response: AlterPartitionResponse, now_ms: int) -> None:
        if asked is not self._under_way:
            return  # it has been answered
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode.of(response.error_code)
            text = "AlterPartition is answered with %s; it is asked again until it is not"
            log.log(self._level(code, now_ms), text, code.name)
            self._again(asked, now_ms)
            return
        self._under_way = None
        results = _results(response, asked.version)
        refused: dict[ErrorCode, list[Partition]] = {}
        for partition, proposal in asked.proposals.items():
            key = partition.topic_id if asked.version == WITH_IDS_VERSION else partition.topic
            code = self._conclude(partition, proposal, results.get((key, partition.index)), now_ms)
            if code is not ErrorCode.NONE:
                refused.setdefault(code, []).append(partition)
        for code, (first, *others) in refused.items():
            more = f" and {len(others)} more" if others else ""
            level = logging.INFO if code in ANSWERED else self._level(code, now_ms)
            log.log(level, "in-sync sets stay as they are: %s-%d%s: %s", first.topic, first.index, more, code.name)
        if refused.keys() <= ANSWERED:
            self._pause_ms = RETRY_MS
        else:
            self._pause(now_ms)
        self._ask(now_ms)

    def _level(self, code: ErrorCode, now_ms: int) -> int:
        """How loud a refusal is that is answered by asking again: each kind is said once a minute."""
        return logging.INFO if self._said.may_say(code, now_ms) else logging.DEBUG

    def _pause(self, now_ms: int) -> None:
        self._retry_at.set(now_ms + self._pause_ms)
        self._pause_ms = min(2 * self._pause_ms, MOST_RETRY_MS)

    def _again(self, asked: Proposals, now_ms: int) -> None:
        self._under_way = None
        self._waiting.update(dict.fromkeys(asked.proposals))
        self._pause(now_ms)

    def _conclude(
        self, partition: Partition, proposal: Proposal, result: AlterPartitionResult | None, now_ms: int
    ) -> ErrorCode:
        """What became of one partition's proposal; the answer may have left it out.

        Returns: with what it is refused; NONE if it is granted, or does not count any more.
        """
        code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else ErrorCode.of(result.error_code)
        if result is not None and code is ErrorCode.NONE:
            isr = tuple(result.isr)
            self._replicas.in_sync_granted(partition, proposal, isr, result.leader_epoch, result.partition_epoch)
            return ErrorCode.NONE
        if partition.proposal is not proposal:
            return ErrorCode.NONE
        if code in NOT_DONE:
            partition.withdraw(proposal)
        elif code not in ANSWERED:
            self._waiting[partition] = None
        return code


class InSyncAnswer(NamedTuple):
    """The own controller's answer."""

    asked: Proposals
    response: AlterPartitionResponse


def _request(broker_id: int, broker_epoch: int, asked: Proposals, *, tells_epochs: bool) -> AlterPartitionRequest:
    """tells_epochs: in which life of its broker each replica has caught up (KIP-903): of interest to a quorum."""
    topics: dict[str, AlterPartitionTopic] = {}
    by_id = asked.version == WITH_IDS_VERSION
    for partition, proposal in asked.proposals.items():
        topic = topics.get(partition.topic)
        if topic is None:
            named = AlterPartitionTopic(topic_name="" if by_id else partition.topic, partitions=[])
            if by_id:
                named.topic_id = partition.topic_id
            topic = topics[partition.topic] = named
        topic.partitions.append(
            AlterPartitionState(
                partition_index=partition.index,
                leader_epoch=proposal.leader_epoch,
                new_isr=[] if by_id else list(proposal.isr),
                new_isr_with_epochs=_states(partition, proposal, broker_epoch if tells_epochs else None)
                if by_id
                else [],
                partition_epoch=proposal.partition_epoch,
            )
        )
    return AlterPartitionRequest(broker_id=broker_id, broker_epoch=broker_epoch, topics=list(topics.values()))


def _states(partition: Partition, proposal: Proposal, own_epoch: int | None) -> list[BrokerState]:
    """own_epoch: None: no epochs are told, and then they are not checked."""
    if own_epoch is None:
        return [BrokerState(broker_id=each) for each in proposal.isr]
    followers = partition.followers
    return [
        BrokerState(broker_id=each, broker_epoch=followers[each].broker_epoch if each in followers else own_epoch)
        for each in proposal.isr
    ]


def _results(response: AlterPartitionResponse, version: int) -> dict[tuple[object, int], AlterPartitionResult]:
    """By topic id, or name, and partition."""
    return {
        (topic.topic_id if version == WITH_IDS_VERSION else topic.topic_name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }
