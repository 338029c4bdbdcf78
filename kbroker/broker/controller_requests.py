"""The queue of controllers' requests: LeaderAndIsr, StopReplica, UpdateMetadata, obeyed one after the other.

Called by `api/control.py` for what comes over the network, and by `store_plane.py` for what this broker's own
controller says, which never leaves the process: `ControllerRequestQueue` obeys them strictly in the order they came,
from any sender. A request of an older controller is refused as a whole with STALE_CONTROLLER_EPOCH, one meant
for an earlier life of this broker with STALE_BROKER_EPOCH.

Unlike Kafka, which reads a topic's settings from ZooKeeper in the middle of LeaderAndIsr, a request with partitions of
topics that are new here waits in the queue until their settings are read, and those behind it wait with it. One stops,
and what is behind it waits, at a partition that this broker is to lead while its log, as a follower's, is being cut
(nothing may be appended before that is durable), and at one whose files find no descriptor. It goes on where it stopped
when a log has been cut, and a second later; if the broker has registered again meanwhile, it is refused.
One of many replicas is obeyed in slices, between which others have their turn. A LeaderAndIsr with the type FULL, which
belongs to a migration to KRaft, is treated like any other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from kbroker.broker.facts import Reply, Touched
from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.controller.events import ControlAnswer
from kbroker.log.errors import OutOfDescriptorsError
from kbroker.log.facts import LogTruncated
from kbroker.metadata.cache import CLUSTER_TOLD, MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.replica.facts import RoleChanged
from kbroker.replica.partition import LeaderState
from kbroker.timing import Steps as Slices
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.broker.facts import Handler, Tell, Ticket
    from kbroker.ports import Clock
    from kbroker.replica import ReplicaManager
    from kbroker.timing import Scheduler

log = logging.getLogger("kbroker.control")

ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
ControlResponse: TypeAlias = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse
ReadSettings: TypeAlias = Callable[
    [list[str], Callable[[Mapping[str, Mapping[str, str]]], None], Callable[[Exception], None]], None
]
"""Finds out what is set for topics, and gives it to its second argument; to the third why it cannot."""
Obeyed: TypeAlias = Generator[bool, None, ControlResponse]
"""A request on its way: after each step, whether it waits for a log that is being cut, or for a descriptor."""

NOT_CHECKED = -1  # a broker epoch, or a leader epoch, that the sender does not know
EPOCH_DURING_DELETE = -2  # a leader epoch newer than any: the topic is going
IDS_IN_ANSWERS_SINCE = 5  # LeaderAndIsr
REPLICAS_AT_ONCE = 16  # each may make a folder and three files, and take some 300 us, more where the disk is busy


class OwnRequest(NamedTuple):
    """The ticket of a request that this broker's controller has for this broker: its answer is a ControlAnswer."""

    request: ControlRequest


class CutsEnded(NamedTuple):
    """A log that a request in the queue may have waited for has been cut, or is gone."""


class ControllerRequestQueue:
    """The requests of controllers, obeyed in the order they came.

    broker_epoch: of this life of the broker, -1 before it is registered. controller_epoch: the newest one seen.
    heeds_partition_epochs: whether there is news within a leader epoch: a quorum changes replicas, and who is in sync,
    without a new one. is_waiting_for_descriptors: and looks again by itself, as no event tells when one is free.
    Answers to those that had to wait are told as facts, and so is what has changed in the image of the cluster.
    """

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        cache: MetadataCache,
        configs: Configs,
        read_settings: ReadSettings,
        scheduler: Scheduler,
        clock: Clock,
        tell: Tell,
    ) -> None:
        self.broker_epoch = NOT_CHECKED
        self.heeds_partition_epochs = False
        self.controller_epoch = 0
        self._retry_at = scheduler.alarm(lambda now_ms: self.log_settled())
        self._broker_id = broker_id
        self._replicas = replicas
        self._cache = cache
        self._configs = configs
        self._read_settings = read_settings
        self._scheduler = scheduler
        self._clock = clock
        self._tell = tell
        self._is_obeying = False  # one that is not in the queue any more, in slices
        self._queue: deque[tuple[ControlRequest, int, Ticket]] = deque()
        self._held: Slices | None = None  # what is left of one that waits for a log, or for a descriptor

    def handle(self, request: ControlRequest, version: int, ticket: Ticket) -> ControlResponse | None:
        """Obey now, or None: then the answer follows, as a `Reply` with this ticket."""
        is_next = not self._queue and not self._is_obeying
        if is_next and not _is_long(request) and not self._unknown_topics(request):
            return self._obey(request, version, ticket)
        self._queue.append((request, version, ticket))
        if is_next:
            self._prepare()
        return None

    # -- the queue

    def _unknown_topics(self, request: ControlRequest) -> list[str]:
        """Topics whose settings must be read before their first partition can be opened."""
        if not isinstance(request, LeaderAndIsrRequest) or self._refusal(request) is not ErrorCode.NONE:
            return []
        topics = {name: None for name, _, _ in leader_states(request)}
        return [name for name in topics if name not in self._configs.overrides]

    def _awaits_cut(self, topic: str, state: LeaderAndIsrPartitionState) -> bool:
        """Whether this broker is to lead a partition whose log is being cut."""
        return state.leader == self._broker_id and self._replicas.is_being_cut(topic, state.partition_index)

    @property
    def is_waiting_for_descriptors(self) -> bool:
        """Whether a request has got no further for want of them."""
        return self._retry_at.pending

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What a request that waits for a log waits for; both planes pass these facts on."""
        return {
            LogTruncated: lambda fact, now_ms: self.log_settled(),
            RoleChanged: lambda fact, now_ms: self.log_settled(),  # perhaps it has no log any more
            CutsEnded: lambda fact, now_ms: self.resume(),
        }

    def log_settled(self) -> None:
        """A log has been cut, or is gone: once all parts have heard of it, the queue goes on."""
        if self._held is not None:
            self._tell(CutsEnded())

    def resume(self) -> None:
        """Begin with what is left of a request that waits, if one does."""
        held, self._held = self._held, None
        self._retry_at.cancel()
        if held is not None:
            self._scheduler.start_task(self, held)

    def _prepare(self) -> None:
        """Work the queue off, up to a request that needs settings first."""
        while self._queue and not self._is_obeying:
            request, version, ticket = self._queue[0]
            unknown = self._unknown_topics(request)
            if unknown:
                self._read_settings(unknown, self._have_settings, self._give_up)
                return
            self._queue.popleft()
            if _is_long(request):
                self._is_obeying = True
                self._scheduler.start_task(self, self._obey_in_slices(self._obeyed(request, version), ticket))
            else:
                response = self._obey(request, version, ticket)
                if response is not None:
                    self._reply(ticket, response)

    def _obey_in_slices(self, obeyed: Obeyed, ticket: Ticket) -> Slices:
        """Ends early, to be begun again by `resume`, where something has to be waited for."""
        try:
            while True:
                if next(obeyed):
                    self._hold(obeyed, ticket)
                    return
                yield
        except StopIteration as end:
            self._reply(ticket, end.value)
        finally:
            self._is_obeying = self._held is not None
        self._prepare()

    def _have_settings(self, settings: Mapping[str, Mapping[str, str]]) -> None:
        for topic, overrides in settings.items():
            self._configs.set_topic(topic, overrides)
        self._prepare()

    def _give_up(self, error: Exception) -> None:
        """The session ended: with it this life of the broker, to which these requests were sent."""
        log.warning("requests of the controller are dropped: %r", error)
        while self._queue:
            request, version, ticket = self._queue.popleft()
            self._reply(ticket, refuse(request, ErrorCode.STALE_BROKER_EPOCH, version))

    def _reply(self, ticket: Ticket, response: ControlResponse) -> None:
        if isinstance(ticket, OwnRequest):
            self._tell(ControlAnswer(self._broker_id, ticket.request, response))
        else:
            self._tell(Reply(ticket, response))

    # -- obeying

    def _refusal(self, request: ControlRequest) -> ErrorCode:
        if request.broker_epoch != NOT_CHECKED and request.broker_epoch < self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        return ErrorCode.NONE

    def _obey(self, request: ControlRequest, version: int, ticket: Ticket) -> ControlResponse | None:
        """All of it at once; None where some of it has to wait: `resume` begins with what is left."""
        obeyed = self._obeyed(request, version)
        try:
            while not next(obeyed):
                pass
        except StopIteration as end:
            response: ControlResponse = end.value
            return response
        self._is_obeying = True
        self._hold(obeyed, ticket)
        return None

    def _hold(self, obeyed: Obeyed, ticket: Ticket) -> None:
        self._held = self._obey_in_slices(obeyed, ticket)
        self._retry_at.set(self._clock.now_ms() + DESCRIPTOR_RETRY_MS)

    def _obeyed(self, request: ControlRequest, version: int) -> Obeyed:
        """Refused where it begins, or where it goes on: it may have waited into another life of the broker."""
        obeyed = self._steps_of(request, version)
        try:
            while (code := self._refusal(request)) is ErrorCode.NONE:
                self.controller_epoch = request.controller_epoch
                yield next(obeyed)
        except StopIteration as end:
            response: ControlResponse = end.value
            return response
        log.warning(
            "%s of controller %d refused with %s: epochs %d and %d, ours are %d and %d",
            type(request).__name__,
            request.controller_id,
            code.name,
            request.controller_epoch,
            request.broker_epoch,
            self.controller_epoch,
            self.broker_epoch,
        )
        return refuse(request, code, version)

    def _steps_of(self, request: ControlRequest, version: int) -> Obeyed:
        if isinstance(request, LeaderAndIsrRequest):
            return (yield from self._leader_and_isr(request, version))
        if isinstance(request, StopReplicaRequest):
            return (yield from self._stop_replica(request))
        return self._update_metadata(request)

    def _leader_and_isr(
        self, request: LeaderAndIsrRequest, version: int
    ) -> Generator[bool, None, LeaderAndIsrResponse]:
        outcomes = []
        for topic, topic_id, state in leader_states(request):
            while self._awaits_cut(topic, state):
                yield True
            while (code := self._become(topic, topic_id, state)) is None:
                yield True
            outcomes.append((topic, topic_id, state.partition_index, code))
            yield False
        return _leader_and_isr_response(outcomes, version)

    def _become(self, topic: str, topic_id: bytes, state: LeaderAndIsrPartitionState) -> ErrorCode | None:
        """Make one partition what the controller wants; the outcome for the answer.

        None where there was no descriptor for it. To say KAFKA_STORAGE_ERROR would have the controller take the replica
        for lost with its directory, until the broker's next start.
        """
        index = state.partition_index
        partition = self._replicas.partitions.get((topic, index))
        if partition is not None and partition.leader_epoch != NOT_CHECKED:
            if partition.log is None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if partition.is_of_another(topic_id):
                return ErrorCode.INCONSISTENT_TOPIC_ID
            is_same = state.leader_epoch == partition.leader_epoch
            if is_same and self.heeds_partition_epochs:
                return self._replicas.amend(partition, _leader_state(state))
            adds_id = is_same and topic_id != ZERO_UUID and partition.topic_id == ZERO_UUID
            if state.leader_epoch <= partition.leader_epoch and not adds_id:
                return ErrorCode.STALE_CONTROLLER_EPOCH
        if self._broker_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            self._replicas.become(topic, index, topic_id, _leader_state(state), is_new=state.is_new)
        except OutOfDescriptorsError:
            return None
        except KafkaError as error:
            log.error("%s-%d cannot become what the controller wants: %s", topic, index, error)
            return error.code
        return ErrorCode.NONE

    def _stop_replica(self, request: StopReplicaRequest) -> Generator[bool, None, StopReplicaResponse]:
        errors = []
        for topic, state in _stop_states(request):
            code, index = self._stop(topic, state), state.partition_index
            errors.append(StopReplicaPartitionError(topic_name=topic, partition_index=index, error_code=code))
            yield False
        return StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=errors)

    def _stop(self, topic: str, state: StopReplicaPartitionState) -> ErrorCode:
        index = state.partition_index
        partition = self._replicas.partitions.get((topic, index))
        if partition is not None:
            if partition.log is None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            is_checked = state.leader_epoch not in (NOT_CHECKED, EPOCH_DURING_DELETE)
            if is_checked and state.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
        try:
            self._replicas.stop(topic, index, delete=state.delete_partition)
        except KafkaError as error:
            return error.code
        except OSError as error:
            log.error("%s-%d cannot be deleted: %s", topic, index, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        if state.delete_partition and not self._replicas.of_topic(topic):
            self._configs.forget_topic(topic)
        return ErrorCode.NONE

    def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        was_told = bool(self._cache.brokers)
        delta = self._cache.update(request)
        if not was_told:
            self._tell(Touched([CLUSTER_TOLD]))
        self._tell(delta)
        return UpdateMetadataResponse(error_code=ErrorCode.NONE)


def _leader_state(state: LeaderAndIsrPartitionState) -> LeaderState:
    return LeaderState(
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=tuple(state.isr),
        partition_epoch=state.partition_epoch,
        replicas=tuple(state.replicas),
        adding=tuple(state.adding_replicas),
        removing=tuple(state.removing_replicas),
    )


def _is_long(request: ControlRequest) -> bool:
    """Whether to obey takes longer than others should wait."""
    parts: Iterator[object] = iter(())
    if isinstance(request, LeaderAndIsrRequest):
        parts = leader_states(request)
    elif isinstance(request, StopReplicaRequest):
        parts = _stop_states(request)
    return any(True for _ in islice(parts, REPLICAS_AT_ONCE, None))


def leader_states(request: LeaderAndIsrRequest) -> Iterator[tuple[str, bytes, LeaderAndIsrPartitionState]]:
    """(topic, its id or zero, state) of every partition, whatever version the request came in."""
    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, topic.topic_id, state
    for state in request.ungrouped_partition_states:
        yield state.topic_name, ZERO_UUID, state


def _stop_states(request: StopReplicaRequest) -> Iterator[tuple[str, StopReplicaPartitionState]]:
    """(topic, what is to become of a replica), whatever version the request came in."""

    def old(index: int) -> StopReplicaPartitionState:
        return StopReplicaPartitionState(
            partition_index=index, leader_epoch=NOT_CHECKED, delete_partition=request.delete_partitions
        )

    for topic in request.topic_states:
        for state in topic.partition_states:
            yield topic.topic_name, state
    for grouped in request.topics:
        for index in grouped.partition_indexes:
            yield grouped.name, old(index)
    for single in request.ungrouped_partitions:
        yield single.topic_name, old(single.partition_index)


def _leader_and_isr_response(
    outcomes: Iterable[tuple[str, bytes, int, ErrorCode]], version: int, code: ErrorCode = ErrorCode.NONE
) -> LeaderAndIsrResponse:
    """outcomes: topic, its id, partition, code."""
    response = LeaderAndIsrResponse(error_code=code)
    if version < IDS_IN_ANSWERS_SINCE:
        response.partition_errors = [
            LeaderAndIsrPartitionError(topic_name=topic, partition_index=index, error_code=error)
            for topic, _, index, error in outcomes
        ]
        return response
    topics: dict[bytes, LeaderAndIsrTopicError] = {}
    for _, topic_id, index, error in outcomes:
        topic = topics.setdefault(topic_id, LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=[]))
        topic.partition_errors.append(LeaderAndIsrPartitionError(partition_index=index, error_code=error))
    response.topics = list(topics.values())
    return response


def refuse(request: ControlRequest, code: ErrorCode, version: int) -> ControlResponse:
    """The answer that refuses a whole request, and each of its partitions."""
    if isinstance(request, LeaderAndIsrRequest):
        refused = [(topic, topic_id, state.partition_index, code) for topic, topic_id, state in leader_states(request)]
        return _leader_and_isr_response(refused, version, code)
    if isinstance(request, StopReplicaRequest):
        errors = [
            StopReplicaPartitionError(topic_name=topic, partition_index=state.partition_index, error_code=code)
            for topic, state in _stop_states(request)
        ]
        return StopReplicaResponse(error_code=code, partition_errors=errors)
    return UpdateMetadataResponse(error_code=code)
