"""What the controller tells the brokers: gathered while an event is handled, sent as few requests, in order per broker.

`Batch` gathers states and turns them into requests of Apache 3.9's versions (LeaderAndIsr 7, UpdateMetadata 8,
StopReplica 4; `VERSIONS` in metadata/requester.py). `ControllerChannelManager` keeps one line of requests for each live
broker; the head stays in line until it is answered or the broker is gone, so nothing overtakes. It sends nothing: the
own broker's line is emptied by the control plane, the others' by `broker/control_sender.py`.

Source: ControllerChannelManager and ControllerBrokerRequestBatch of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from kbroker.controller.context import Context, TopicPartition
from kbroker.metadata.cache import LEADER_DURING_DELETE
from kbroker.metadata.store import NO_LEADER, LeaderIsr
from kbroker.timing import Touched
from protocol.messages.control import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from protocol.namedtuple import NamedTuple

ControlRequest: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest

NO_EPOCH = -1
EPOCH_DURING_DELETE = -2

KEEPING_UP = 2
"""Requests in line, at most, of a broker that keeps up: who leads some new partitions, and what all hear of them."""


class ControlRequestDue(NamedTuple):
    """A broker's line has another head: it is to be sent."""

    broker_id: int


class ControlLineClosed(NamedTuple):
    """A broker's line is gone: the broker is, or this controller's epoch is over."""

    broker_id: int


class AnsweredKey(NamedTuple):
    """What waits for a broker's answer watches. number: of the request, among all that were ever put in its line."""

    broker_id: int
    number: int


class ControllerChannelManager:
    """A line of requests for each live broker."""

    def __init__(self, tell: Callable[[ControlRequestDue | ControlLineClosed | Touched], None]) -> None:
        """tell: told when a line has another head, or is gone, and what was answered."""
        self._lines: dict[int, deque[ControlRequest]] = {}
        self._count: dict[int, int] = {}  # of requests that were put, by broker; it outlives the line
        self._tell = tell

    def open(self, broker_id: int) -> None:
        """A broker is alive: requests for it are kept from now on."""
        self._lines.setdefault(broker_id, deque())

    def close(self, broker_id: int) -> None:
        """A broker is gone, and what was to be sent to it with it."""
        line = self._lines.pop(broker_id, None)
        if line is None:
            return
        self._tell(ControlLineClosed(broker_id))
        if line:
            last = self._count[broker_id]
            self._tell(Touched([AnsweredKey(broker_id, last - before) for before in range(len(line))]))

    def clear(self) -> None:
        """This controller's epoch is over."""
        for broker_id in list(self._lines):
            self.close(broker_id)

    def put(self, broker_id: int, request: ControlRequest) -> None:
        """Say this to a broker, after all that was put before; nothing if it is gone."""
        line = self._lines.get(broker_id)
        if line is not None:
            line.append(request)
            self._count[broker_id] = self._count.get(broker_id, 0) + 1
            if len(line) == 1:
                self._tell(ControlRequestDue(broker_id))

    def head(self, broker_id: int) -> ControlRequest | None:
        """What to say to a broker now."""
        line = self._lines.get(broker_id)
        return line[0] if line else None

    def answered(self, broker_id: int, request: ControlRequest) -> bool:
        """The head was answered, the next one may go. Returns: False if it was no longer in line."""
        line = self._lines.get(broker_id)
        if not line or line[0] is not request:
            return False
        line.popleft()
        self._tell(Touched([AnsweredKey(broker_id, self._count[broker_id] - len(line))]))
        if line:
            self._tell(ControlRequestDue(broker_id))
        return True

    def unanswered(self) -> list[AnsweredKey]:
        """The last request of each broker that has one in line: with them, all brokers know what was put before now."""
        return [AnsweredKey(broker_id, self._count[broker_id]) for broker_id, line in self._lines.items() if line]

    def is_answered(self, key: AnsweredKey) -> bool:
        """Whether a request was answered, or will not be: its broker is gone."""
        line = self._lines.get(key.broker_id)
        return not line or self._count[key.broker_id] - len(line) >= key.number

    @property
    def is_followed(self) -> bool:
        """Whether a broker keeps up with what it is told; one that hangs does not keep the others back."""
        return not self._lines or min(map(len, self._lines.values())) <= KEEPING_UP

    def brokers(self) -> list[int]:
        """Those with a line."""
        return list(self._lines)


class Batch:
    """What one step of the controller wants the brokers to know."""

    def __init__(self, controller_id: int, listener: str, context: Context, channels: ControllerChannelManager) -> None:
        """listener: the one over which brokers speak to each other."""
        self._controller_id = controller_id
        self._listener = listener
        self._context = context
        self._channels = channels
        self._leader_and_isr: dict[int, dict[TopicPartition, LeaderAndIsrPartitionState]] = {}
        self._stops: dict[int, dict[TopicPartition, StopReplicaPartitionState]] = {}
        self._update_to: set[int] = set()
        self._updates: dict[TopicPartition, None] = {}

    # -- gathering

    def leader_and_isr(
        self, brokers: Iterable[int], partition: TopicPartition, state: LeaderIsr, *, is_new: bool
    ) -> None:
        """Tell these replicas who leads, and all other brokers through UpdateMetadata."""
        assignment = self._context.assignments[partition[0]][partition[1]]
        for broker in brokers:
            if broker < 0:
                continue
            states = self._leader_and_isr.setdefault(broker, {})
            was_new = partition in states and states[partition].is_new
            states[partition] = LeaderAndIsrPartitionState(
                partition_index=partition[1],
                controller_epoch=state.controller_epoch,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                partition_epoch=state.version,
                replicas=list(assignment.replicas),
                adding_replicas=list(assignment.adding),
                removing_replicas=list(assignment.removing),
                is_new=is_new or was_new,
                leader_recovery_state=state.recovery,
            )
        self.update_metadata(self._context.brokers, [partition])

    def stop(self, brokers: Iterable[int], partition: TopicPartition, *, delete: bool) -> None:
        """Tell these brokers to give their replica up."""
        epoch = NO_EPOCH
        if self._context.is_to_be_deleted(partition):
            epoch = EPOCH_DURING_DELETE
        elif partition in self._context.leaders:
            epoch = self._context.leaders[partition].leader_epoch
        for broker in brokers:
            self._stops.setdefault(broker, {})[partition] = StopReplicaPartitionState(
                partition_index=partition[1], leader_epoch=epoch, delete_partition=delete
            )

    def update_metadata(self, brokers: Iterable[int], partitions: Iterable[TopicPartition]) -> None:
        """Tell these brokers which brokers there are, and the states of these partitions."""
        self._update_to.update(brokers)
        for partition in partitions:
            self._updates[partition] = None

    # -- sending

    def send(self) -> None:
        """Put it all in line: who leads, then what clients are told, then what is to stop."""
        for _ in self.slices():
            pass

    def slices(self, size: int = 1) -> Iterator[None]:
        """The same, with a break after `size` partitions: a topic is told of whole, however many it has."""
        for broker, states in sorted(self._leader_and_isr.items()):
            if broker in self._context.brokers:
                self._channels.put(broker, self._leader_and_isr_request(broker, states))
        if self._update_to:
            topics: dict[str, UpdateMetadataTopicState] = {}
            for count, partition in enumerate(self._updates, 1):
                self._add_update(topics, partition)
                if count % size == 0 and count < len(self._updates):
                    yield
            updates, brokers = list(topics.values()), self._live_brokers()
            for broker in sorted(self._update_to & self._context.brokers.keys()):
                self._channels.put(broker, self._update_request(broker, updates, brokers))
        for broker, stops in sorted(self._stops.items()):
            if broker in self._context.brokers:
                self._channels.put(broker, self._stop_request(broker, stops))

    def _leader_and_isr_request(
        self, broker: int, states: dict[TopicPartition, LeaderAndIsrPartitionState]
    ) -> LeaderAndIsrRequest:
        topics: dict[str, LeaderAndIsrTopicState] = {}
        for (topic, _), state in states.items():
            if topic not in topics:
                topic_id = self._context.topic_id(topic)
                topics[topic] = LeaderAndIsrTopicState(topic_name=topic, topic_id=topic_id, partition_states=[])
            topics[topic].partition_states.append(state)
        leaders = sorted({state.leader for state in states.values()} & self._context.brokers.keys())
        return LeaderAndIsrRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.brokers[broker].epoch,
            topic_states=list(topics.values()),
            live_leaders=[live for leader in leaders if (live := self._live_leader(leader)) is not None],
        )

    def _live_leader(self, broker: int) -> LeaderAndIsrLiveLeader | None:
        node = self._context.brokers[broker].endpoint(self._listener)
        return node and LeaderAndIsrLiveLeader(broker_id=broker, host_name=node.host, port=node.port)

    def _add_update(self, topics: dict[str, UpdateMetadataTopicState], partition: TopicPartition) -> None:
        topic, index = partition
        if index in self._context.untold.get(topic, ()):
            return
        state = self._context.leaders.get(partition)
        if state is None and topic not in self._context.deleting:
            return
        state = state or LeaderIsr(NO_LEADER, NO_EPOCH, ())
        is_deleting = topic in self._context.deleting
        if topic not in topics:
            topic_id = self._context.topic_id(topic)
            topics[topic] = UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=[])
        topics[topic].partition_states.append(
            UpdateMetadataPartitionState(
                partition_index=index,
                controller_epoch=state.controller_epoch,
                leader=LEADER_DURING_DELETE if is_deleting else state.leader,
                leader_epoch=EPOCH_DURING_DELETE if is_deleting else state.leader_epoch,
                isr=list(state.isr),
                zk_version=state.version,
                replicas=list(self._context.replicas(partition)),
                offline_replicas=self._context.offline_replicas(partition),
            )
        )

    def _live_brokers(self) -> list[UpdateMetadataBroker]:
        return [
            UpdateMetadataBroker(
                id=broker.id,
                endpoints=[
                    UpdateMetadataEndpoint(
                        port=each.port, host=each.host, listener=each.listener, security_protocol=each.security_protocol
                    )
                    for each in broker.endpoints
                ],
                rack=broker.rack,
            )
            for _, broker in sorted(self._context.brokers.items())
        ]

    def _update_request(
        self, broker: int, topics: list[UpdateMetadataTopicState], brokers: list[UpdateMetadataBroker]
    ) -> UpdateMetadataRequest:
        return UpdateMetadataRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.brokers[broker].epoch,
            topic_states=topics,
            live_brokers=brokers,
        )

    def _stop_request(self, broker: int, stops: dict[TopicPartition, StopReplicaPartitionState]) -> StopReplicaRequest:
        topics: dict[str, StopReplicaTopicState] = {}
        for (topic, _), state in stops.items():
            grouped = topics.setdefault(topic, StopReplicaTopicState(topic_name=topic, partition_states=[]))
            grouped.partition_states.append(state)
        return StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=self._context.epoch,
            broker_epoch=self._context.brokers[broker].epoch,
            topic_states=list(topics.values()),
        )
