"""What the controllers of a simulated quorum decide about topics: who leads, who is in sync, what a broker asks for.

Beside `controllers.py`, for worlds whose machines are whole brokers. The rules are Apache's as far as brokers meet
them: a leader is elected of those in sync that serve; who leaves, or whose log directory fails (KIP-858), is taken out
of the in-sync sets but for the last; a leader may put back whom it names with the epoch of its present life (KIP-903),
if that one serves (KIP-841). Clients' requests come in Envelopes.

Source: ReplicationControlManager and ProducerIdControlManager of Apache Kafka 4.3, by behaviour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.sim.controllers import Answer, ClusterState, Controllers
from protocol.apis import BY_KEY
from protocol.errors import ErrorCode
from protocol.headers import encode_response_header, parse_request_header, request_header_version, skip_tags
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopicResult,
    EnvelopeRequest,
    EnvelopeResponse,
)
from protocol.messages.metadata_records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from protocol.messages.quorum import (
    AssignedDirectoryResult,
    AssignedPartitionResult,
    AssignedTopicResult,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from protocol.messages.topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kbroker.sim.net import Net
    from kbroker.sim.quorum import QuorumNode
    from kbroker.sim.world import World
    from protocol.message import Message
    from protocol.messages.control import AlterPartitionState
    from protocol.messages.topics import CreatableTopic

NO_LEADER, AS_BEFORE = -1, -2
PARTITION_VERSION = 1
OF_TOPICS = 2  # resource type of configs
PRODUCER_IDS = 1000  # in a block
UNASSIGNED = (1).to_bytes(16, "big")  # no directory is known yet

Where = tuple[bytes, int]


class PartitionState:
    """A partition, as the records say."""

    __slots__ = ("directories", "isr", "leader", "leader_epoch", "partition_epoch", "replicas")

    def __init__(self, record: PartitionRecord) -> None:
        self.replicas = list(record.replicas)
        self.directories = dict(zip(record.replicas, record.directories, strict=True))
        self.isr = list(record.isr)
        self.leader = record.leader
        self.leader_epoch = record.leader_epoch
        self.partition_epoch = record.partition_epoch

    def __repr__(self) -> str:
        return f"<leader {self.leader} in epoch {self.leader_epoch}, in sync {self.isr} of {self.replicas}>"

    def change(self, record: PartitionChangeRecord) -> None:
        """What a record changes: another leader, or the same again, is another leader epoch."""
        if record.isr is not None:
            self.isr = list(record.isr)
        if record.directories is not None:
            self.directories = dict(zip(self.replicas, record.directories, strict=True))
        if record.leader != AS_BEFORE:
            self.leader = record.leader
            self.leader_epoch += 1
        self.partition_epoch += 1


class TopicState(ClusterState):
    """Topics, too. names: by topic id."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[bytes, str] = {}
        self.partitions: dict[Where, PartitionState] = {}
        self.next_producer_id = 0

    def apply(self, record: Message) -> None:
        """The next record."""
        if isinstance(record, TopicRecord):
            self.names[record.topic_id] = record.name
        elif isinstance(record, PartitionRecord):
            self.partitions[record.topic_id, record.partition_id] = PartitionState(record)
        elif isinstance(record, PartitionChangeRecord):
            self.partitions[record.topic_id, record.partition_id].change(record)
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = record.next_producer_id
        else:
            super().apply(record)

    def records(self) -> Iterable[tuple[Message, int]]:
        """As a snapshot has them."""
        yield from super().records()
        for topic_id, name in self.names.items():
            yield TopicRecord(name=name, topic_id=topic_id), 0
        for (topic_id, index), each in self.partitions.items():
            record = PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=list(each.replicas),
                isr=list(each.isr),
                removing_replicas=[],
                adding_replicas=[],
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                partition_epoch=each.partition_epoch,
                directories=list(each.directories.values()),
            )
            yield record, PARTITION_VERSION
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=0, next_producer_id=self.next_producer_id), 0

    def serves(self, broker_id: int) -> bool:
        """Whether a broker may lead."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced and not broker.in_controlled_shutdown

    def can_use(self, broker_id: int, partition: PartitionState) -> bool:
        """Whether the log directory of a replica is one that its broker has told, and has not lost."""
        directory = partition.directories[broker_id]
        return directory == UNASSIGNED or directory in self.brokers[broker_id].log_dirs


class TopicControllers(Controllers):
    """A quorum that decides about topics."""

    state: TopicState

    def __init__(self, world: World, net: Net, *, controllers: int = 3, session_timeout_ms: int = 9000) -> None:
        super().__init__(
            world, net, controllers=controllers, session_timeout_ms=session_timeout_ms, make_state=TopicState
        )
        self.served |= {19: (2, 7), 56: (2, 3), 58: (0, 0), 67: (0, 0)}

    # -- brokers that come and go

    def leaves(self, broker_id: int) -> list[tuple[Message, int]]:
        """It is in sync nowhere but where it is the last, and leads nothing."""
        return self._without(broker_id, self.state.partitions.items())

    def loses(self, broker_id: int, directories: Sequence[bytes]) -> list[tuple[Message, int]]:
        """The same, of what it has there."""
        partitions = self.state.partitions.items()
        return self._without(broker_id, [it for it in partitions if it[1].directories.get(broker_id) in directories])

    def _without(self, broker_id: int, partitions: Iterable[tuple[Where, PartitionState]]) -> list[tuple[Message, int]]:
        records: list[tuple[Message, int]] = []
        for where, each in partitions:
            if broker_id not in each.isr and each.leader != broker_id:
                continue
            isr = [other for other in each.isr if other != broker_id] or each.isr
            leader = AS_BEFORE
            if each.leader == broker_id:
                leader = self._elected(each, isr, but=broker_id)
            records.append((self._changed(*where, leader=leader, isr=isr), PARTITION_VERSION))
        return records

    hands_over = leaves

    def comes_back(self, broker_id: int) -> list[tuple[Message, int]]:
        """It leads where no other is in sync."""
        return [
            (self._changed(*where, leader=broker_id), PARTITION_VERSION)
            for where, each in self.state.partitions.items()
            if each.leader == NO_LEADER and broker_id in each.isr and self.state.can_use(broker_id, each)
        ]

    def leads_anything(self, broker_id: int) -> bool:
        """Whether a broker leads a partition."""
        return any(each.leader == broker_id for each in self.state.partitions.values())

    def _elected(self, partition: PartitionState, isr: list[int], *, but: int) -> int:
        serving = (each for each in partition.replicas if each in isr and each != but and self.state.serves(each))
        return next((each for each in serving if self.state.can_use(each, partition)), NO_LEADER)

    @staticmethod
    def _changed(
        topic_id: bytes, index: int, *, leader: int = AS_BEFORE, isr: list[int] | None = None
    ) -> PartitionChangeRecord:
        return PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=leader, isr=isr)

    # -- what is asked

    def decide(self, node: QuorumNode, request: Message, answer: Answer) -> None:
        """Requests of brokers, and of clients in Envelopes."""
        if isinstance(request, AlterPartitionRequest):
            self._alter_partitions(node, request, answer)
        elif isinstance(request, AllocateProducerIdsRequest):
            first = self.state.next_producer_id
            record = ProducerIdsRecord(broker_id=request.broker_id, next_producer_id=first + PRODUCER_IDS)
            node.append([(record, 0)])
            response = AllocateProducerIdsResponse(error_code=0, producer_id_start=first, producer_id_len=PRODUCER_IDS)
            self.when_committed(node, lambda: answer(response))
        elif isinstance(request, EnvelopeRequest):
            self._open(node, request, answer)
        elif isinstance(request, CreateTopicsRequest):
            self._create_topics(node, request, answer)
        elif isinstance(request, AssignReplicasToDirsRequest):
            self._assign(node, request, answer)
        else:
            raise AssertionError(f"{request!r} is not served")

    def _refusal(self, request: Message, error: ErrorCode) -> Message:
        if isinstance(request, AlterPartitionRequest):
            return AlterPartitionResponse(error_code=error, topics=[])
        if isinstance(request, AllocateProducerIdsRequest):
            return AllocateProducerIdsResponse(error_code=error, producer_id_start=-1, producer_id_len=0)
        if isinstance(request, EnvelopeRequest):
            return EnvelopeResponse(error_code=error)
        if isinstance(request, CreateTopicsRequest):
            topics = [CreatableTopicResult(name=each.name, error_code=error) for each in request.topics]
            return CreateTopicsResponse(topics=topics)
        return super()._refusal(request, error)

    def _open(self, node: QuorumNode, envelope: EnvelopeRequest, answer: Answer) -> None:
        data = bytes(envelope.request_data)
        key, version, correlation_id, _, start = parse_request_header(data)
        kind = BY_KEY[key].request
        if request_header_version(kind, version) == 2:
            start = skip_tags(data, start)

        def put_back(response: Message) -> None:
            inner = encode_response_header(type(response), version, correlation_id) + response.encode(version)
            answer(EnvelopeResponse(response_data=inner, error_code=0))

        self.decide(node, kind.decode(data[start:], version), put_back)

    def _create_topics(self, node: QuorumNode, request: CreateTopicsRequest, answer: Answer) -> None:
        records: list[tuple[Message, int]] = []
        results = []
        serving = [each for each in self.state.brokers if self.state.serves(each)]
        for topic in request.topics:
            wanted = topic.replication_factor if topic.replication_factor > 0 else 3
            if topic.name in self.state.names.values():
                results.append(CreatableTopicResult(name=topic.name, error_code=ErrorCode.TOPIC_ALREADY_EXISTS))
            elif wanted > len(serving):
                results.append(CreatableTopicResult(name=topic.name, error_code=ErrorCode.INVALID_REPLICATION_FACTOR))
            else:
                made, topic_id = self._made(topic, serving, wanted)
                records += made
                results.append(CreatableTopicResult(name=topic.name, error_code=0, topic_id=topic_id))
        if records:
            node.append(records)
        self.when_committed(node, lambda: answer(CreateTopicsResponse(topics=results)))

    def _made(self, topic: CreatableTopic, serving: list[int], wanted: int) -> tuple[list[tuple[Message, int]], bytes]:
        topic_id = self.rng.randbytes(16)
        records: list[tuple[Message, int]] = [(TopicRecord(name=topic.name, topic_id=topic_id), 0)]
        for config in topic.configs:
            record = ConfigRecord(
                resource_type=OF_TOPICS, resource_name=topic.name, name=config.name, value=config.value
            )
            records.append((record, 0))
        for index in range(max(topic.num_partitions, 1)):
            replicas = self.rng.sample(serving, wanted)
            record_of_partition = PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=list(replicas),
                removing_replicas=[],
                adding_replicas=[],
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[UNASSIGNED for _ in replicas],
            )
            records.append((record_of_partition, PARTITION_VERSION))
        return records, topic_id

    def _assign(self, node: QuorumNode, request: AssignReplicasToDirsRequest, answer: Answer) -> None:
        """Take note of directories; who is the last in sync leads again where its directory can be used."""
        broker_id = request.broker_id
        records: list[tuple[Message, int]] = []
        for directory in request.directories:
            for topic in directory.topics:
                for part in topic.partitions:
                    where = topic.topic_id, part.partition_index
                    known = self.state.partitions[where]
                    leads = known.leader == NO_LEADER and broker_id in known.isr and self.state.serves(broker_id)
                    record = self._changed(*where, leader=broker_id if leads else AS_BEFORE)
                    record.directories = list((known.directories | {broker_id: directory.id}).values())
                    records.append((record, PARTITION_VERSION))
        node.append(records)
        self.when_committed(node, lambda: answer(_assigned(request)))

    # -- in-sync sets

    def _alter_partitions(self, node: QuorumNode, request: AlterPartitionRequest, answer: Answer) -> None:
        asker = self.state.brokers.get(request.broker_id)
        if asker is None or asker.broker_epoch != request.broker_epoch:
            answer(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH, topics=[]))
            return
        records: list[tuple[Message, int]] = []
        results = []
        for topic in request.topics:
            parts = []
            for wanted in topic.partitions:
                where = topic.topic_id, wanted.partition_index
                error = self._why_not(request.broker_id, where, wanted)
                if error is ErrorCode.NONE:
                    isr = [each.broker_id for each in wanted.new_isr_with_epochs] or list(wanted.new_isr)
                    records.append((self._changed(*where, isr=isr), PARTITION_VERSION))
                    known = self.state.partitions[where]
                    result = AlterPartitionResult(
                        partition_index=wanted.partition_index,
                        error_code=0,
                        leader_id=known.leader,
                        leader_epoch=known.leader_epoch,
                        isr=isr,
                        partition_epoch=known.partition_epoch + 1,
                    )
                else:
                    result = AlterPartitionResult(
                        partition_index=wanted.partition_index,
                        error_code=error,
                        leader_id=-1,
                        leader_epoch=-1,
                        isr=[],
                        partition_epoch=-1,
                    )
                parts.append(result)
            results.append(AlterPartitionTopicResult(topic_id=topic.topic_id, partitions=parts))
        if records:
            node.append(records)
        self.when_committed(node, lambda: answer(AlterPartitionResponse(error_code=0, topics=results)))

    def _why_not(self, broker_id: int, where: Where, wanted: AlterPartitionState) -> ErrorCode:
        known = self.state.partitions.get(where)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        if wanted.leader_epoch < known.leader_epoch or known.leader != broker_id:
            return ErrorCode.FENCED_LEADER_EPOCH
        if wanted.leader_epoch > known.leader_epoch:
            return ErrorCode.NOT_CONTROLLER
        if wanted.partition_epoch != known.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        for each in wanted.new_isr_with_epochs:
            known_epoch = self.state.brokers[each.broker_id].broker_epoch
            if not self.state.serves(each.broker_id) or each.broker_epoch not in (-1, known_epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE


def _assigned(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
    """All is taken."""
    directories = [
        AssignedDirectoryResult(
            id=directory.id,
            topics=[
                AssignedTopicResult(
                    topic_id=topic.topic_id,
                    partitions=[
                        AssignedPartitionResult(partition_index=part.partition_index, error_code=0)
                        for part in topic.partitions
                    ],
                )
                for topic in directory.topics
            ],
        )
        for directory in request.directories
    ]
    assert all(each.id != ZERO_UUID for each in request.directories), request
    return AssignReplicasToDirsResponse(error_code=0, directories=directories)
