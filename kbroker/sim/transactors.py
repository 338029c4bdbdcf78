"""Simulated transactional producers: some write to random partitions, some consume, transform and produce.

They speak as clients of Kafka do: InitProducerId, AddPartitionsToTxn, Produce, AddOffsetsToTxn and TxnOffsetCommit,
EndTxn, each asked again until it is answered or until patience is over. A producer in doubt starts again with
InitProducerId, as a new process would; several clients may hold one transactional id, and fence each other. What was
asked and answered is told to the `Ledger`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.metadata.cache import TRANSACTION_STATE
from kbroker.sim.client import Lost, Script, Sleep
from kbroker.sim.consumers import EARLIEST, Reader
from kbroker.sim.producers import RETRIABLE
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.records import Record
from protocol.records.content import build_batch

if TYPE_CHECKING:
    from kbroker.sim.checks import Where
    from kbroker.sim.ledger import Deed, Ledger
    from kbroker.sim.machine import Machine
    from kbroker.sim.topics import Topic

PRODUCE, FETCH, OFFSETS, FIND = 0, 1, 9, 10
ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT = 24, 25, 26, 28
OF_CLIENTS = {ADD_PARTITIONS: (0, 3), END: (0, 4), COMMIT: (0, 4), FIND: (1, 6), PRODUCE: (3, 11), FETCH: (4, 99)}
"""Versions that a client of the first protocol of transactions may choose."""
OF_NEW_CLIENTS = OF_CLIENTS | {END: (5, 5), COMMIT: (5, 6), PRODUCE: (12, 13)}
"""The same of the second (KIP-890)."""
TRANSACTION = 1  # FindCoordinator: key_type
MANY_SINCE = {FIND: 4, OFFSETS: 8}
STABLE_SINCE = 7  # of OffsetFetch: who asks is told that an offset is about to be committed (KIP-447)
IDS_SINCE = {PRODUCE: 13, OFFSETS: 10, COMMIT: 6}

WAIT = RETRIABLE | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}
MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
GONE = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""Another holds the transactional id, or it was fenced for taking too long."""
UNKNOWN_THERE = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE})
"""The transaction is not under way, or not with this partition, as far as the coordinator knows."""


class Fenced(Exception):  # noqa: N818 - what happened, not an error
    """This producer's epoch is over."""


class Impatient(Exception):  # noqa: N818 - what happened, not an error
    """Asked often enough without an answer that says something."""


class Transactor(Reader):
    """Writes transactions to random partitions of its topics, and ends them one way or another."""

    transactional_id = ""
    timeout_ms = 10_000
    pace_ms = 1_000
    tries = 30
    leaves = 0.1  # share of its transactions that it walks away from
    restless = True  # else it ends what it begins, so that all comes to an end
    writes_to: Sequence[Topic] = ()
    raises = False  # whether it speaks the second protocol: an epoch for every transaction, nothing is added beforehand
    ledger: Ledger

    def live(self) -> Script:
        """Take the id, work, and start again when something is in doubt."""
        self.start_over()
        self.made = self.committed = 0
        self._coordinators: dict[tuple[int, str], Machine] = {}
        yield from self.shake_hands()
        for api, (low, high) in (OF_NEW_CLIENTS if self.raises else OF_CLIENTS).items():
            self.versions[api] = min(max(self.versions[api], low), high)
        yield from self.know([*self.topics, *self.writes_to])
        while True:
            try:
                yield from self._take_id()
                yield from self.prepare()
                while True:
                    yield from self.pause(self.pace_ms)
                    yield from self.transact()
            except Fenced:
                self.note("is fenced")
                yield from self.pause(5_000)
            except (Impatient, Lost) as why:
                self.note(f"begins anew: {type(why).__name__}")
                yield from self.pause(500)

    def prepare(self) -> Generator[Any, Any, None]:
        """After the id is taken, before the first transaction."""
        yield from ()

    def transact(self) -> Generator[Any, Any, None]:
        """One transaction. Raises: Fenced, Impatient."""
        many = self.checks.catalogue.count
        places = [(topic.name, index) for topic in self.writes_to for index in range(many(topic))]
        deed = self._begin()
        chosen = self.rng.sample(places, self.rng.randint(1, min(3, len(places))))
        yield from self._add(chosen)
        for where in self.rng.choices(chosen, k=self.rng.randint(1, 5)):
            yield from self._write(deed, where, self._values(self.rng.randint(1, 3)))
            if self.rng.random() < 0.1:
                yield from self.pause(2_000)
        if self.restless and self.rng.random() < self.leaves:
            self.note(f"walks away from {deed}")
            yield Sleep(self.rng.randrange(3 * self.timeout_ms))
            raise Impatient
        yield from self._end(deed, commit=self.rng.random() < 0.75)

    def _begin(self) -> Deed:
        self.made += 1
        return self.ledger.begin_transaction(f"{self.name}/{self.made}")

    def _values(self, count: int) -> list[bytes]:
        return [b"%s/%d.%d" % (self.name.encode(), self.made, self.rng.randrange(1 << 40)) for _ in range(count)]

    # ---- requests

    def _until(
        self, request: Callable[[], Message], code_of: Callable[[Any], int], key: tuple[int, str]
    ) -> Generator[Any, Any, Any]:
        """Ask a coordinator until it answers. key: of FindCoordinator. Raises: Fenced, Impatient."""
        for _ in range(self.tries):
            try:
                machine = yield from self._coordinator(key)
                if machine is not None:
                    was_shadowed = self._is_shadowed()
                    answer = yield from self.ask(request(), to=machine)
                    code = ErrorCode.of(code_of(answer))
                    if code is ErrorCode.NONE:
                        return answer
                    if code in UNKNOWN_THERE and (was_shadowed or self._is_shadowed()):
                        self._coordinators.pop(key)
                        raise Impatient
                    self._handle_changes(code, answer)
                    if code in MOVED:
                        self._coordinators.pop(key, None)
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
                self._coordinators.pop(key, None)
            yield from self.pause(300)
        raise Impatient

    def _handle_changes(self, code: ErrorCode, answer: Message) -> None:
        """Go on asking, or not. Raises: Fenced, Broken."""
        self.note(f"{type(answer).__name__}: {code.name}")
        if code in GONE or (self.raises and code is ErrorCode.INVALID_TXN_STATE and type(answer) is EndTxnResponse):
            raise Fenced  # the second: it wants to commit what was aborted as its own, for it took too long
        if code not in WAIT:
            raise self.world.broken(f"{self}: {type(answer).__name__} {code.name}")

    def _coordinator(self, key: tuple[int, str]) -> Generator[Any, Any, Machine | None]:
        found = self._coordinators.get(key)
        if found is not None:
            return found
        key_type, name = key
        by_list = self.versions[FIND] >= MANY_SINCE[FIND]
        answer = yield from self.ask(
            FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])
            if by_list
            else FindCoordinatorRequest(key=name, key_type=key_type)
        )
        told = answer.coordinators[0] if by_list else answer
        if told.error_code != ErrorCode.NONE:
            return None
        machine = self._coordinators[key] = self.machine(told.node_id)
        return machine

    def _is_replaced(self, leader: Machine, where: Where) -> bool:
        """Whether another broker leads a partition in a newer epoch than this one, which has not heard of it."""
        known = leader.broker.replicas.partitions[where].leader_epoch
        led = (each.broker.replicas.partitions.get(where) for each in self.machines if each.up)
        return any(each is not None and each.is_leader and each.leader_epoch > known for each in led)

    def _is_shadowed(self) -> bool:
        """Whether a broker still takes itself for the coordinator of this producer, though another has replaced it.

        The client, or a leader that verifies a transaction, asks that one and gets INVALID_TXN_STATE or
        TRANSACTION_ABORTABLE of what only the new one knows. So it is in Kafka; the producer ends, and harms no record:
        the next one aborts.
        """
        for each in self.machines:
            if each.up:
                place = _place(each, self._own)
                known = each.broker.replicas.partitions.get(place)
                if known is not None and known.is_leader and self._is_replaced(each, place):
                    return True
        return False

    @property
    def _own(self) -> tuple[int, str]:
        return TRANSACTION, self.transactional_id

    def _take_id(self) -> Generator[Any, Any, None]:
        request = InitProducerIdRequest(transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms)
        answer = yield from self._until(lambda: request, lambda answer: answer.error_code, self._own)
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[Where, int] = {}
        self.checks.gave_producer_id(self.producer_id, self.epoch)
        self.note(f"is producer {self.producer_id} in epoch {self.epoch}")

    def _add(self, places: Sequence[Where]) -> Generator[Any, Any, None]:
        if self.raises:
            return
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        yield from self._until(
            lambda: request,
            lambda answer: max(
                part.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ),
            self._own,
        )

    def _write(self, deed: Deed, where: Where, values: list[bytes]) -> Generator[Any, Any, None]:
        """Produce until it is acknowledged. Raises: Fenced, Impatient."""
        self.checks.sent(values, idempotent=True)
        self.ledger.writes(deed, where, values)
        sequence = self.sequences.get(where, 0)
        self.sequences[where] = sequence + len(values)
        for _ in range(self.tries):
            moment = self.checks.moment
            try:
                led, _ = yield from self.by_leader([where], lambda where: where)
                for machine in led:
                    was_shadowed = self._is_shadowed()
                    answer = yield from self.ask(self._produce(where, values, sequence), to=machine)
                    part = answer.responses[0].partition_responses[0]
                    code = ErrorCode.of(part.error_code)
                    if code is ErrorCode.NONE:
                        if part.base_offset >= 0:
                            self.checks.appended(where, part.base_offset, values, moment)
                        return
                    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self._is_replaced(machine, where):
                        raise Impatient  # it lacks what came before; as a client of Kafka, abort
                    if code in UNKNOWN_THERE and (was_shadowed or self._is_shadowed()):
                        raise Impatient
                    self._handle_changes(code, answer)
            except Lost as lost:
                self.note(f"lost an answer: {lost.why}")
            self.misled(where)
            yield from self.pause(300)
        raise Impatient

    def _produce(self, where: Where, values: list[bytes], sequence: int) -> ProduceRequest:
        name, index = where
        by_id = self.versions[PRODUCE] >= IDS_SINCE[PRODUCE]
        now_ms = 1_700_000_000_000 + self.world.now_ms
        batch = build_batch(
            [Record(at, now_ms, None, value) for at, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(
                    name="" if by_id else name,
                    topic_id=self.checks.catalogue.topic_id(name) if by_id else ZERO_UUID,
                    partition_data=[PartitionProduceData(index=index, records=bytes(batch))],
                )
            ],
        )

    def _end(self, deed: Deed, *, commit: bool) -> Generator[Any, Any, None]:
        self.ledger.asks(deed, commit=commit)
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = yield from self._until(lambda: request, lambda answer: answer.error_code, self._own)
        self.ledger.ended(deed, commit=commit)
        if self.raises:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        self.committed += commit
        self.note(f"{'commits' if commit else 'aborts'} {deed}")


def _place(coordinator: Machine, key: tuple[int, str]) -> Where:
    """The partition that a coordinator keeps a transactional id in."""
    return TRANSACTION_STATE, coordinator.broker.transaction_runtime.partition_of(key[1])


class Mapper(Transactor):
    """Reads one partition, writes something for each record, and commits how far it has got: all or nothing.

    source: the partition. Several mappers of one source have the same transactional id. asks_stable: whether it is of a
    version that asks for stable offsets. The others, in Kafka too, may read an old one of a coordinator that has been
    replaced and has not heard of it, though the new one has committed what that one knows to be under way.
    """

    group = "mappers"
    source: Where = ("", 0)
    most_inputs = 5
    asks_stable = False

    def prepare(self) -> Generator[Any, Any, None]:
        """Go on where the last committed transaction of whichever holder has ended."""
        self.start_over()
        if self.asks_stable:
            self.versions[OFFSETS] = max(self.versions[OFFSETS], STABLE_SINCE)
        answer = yield from self._until(self._offsets_request, self._offsets_code, (0, self.group))
        topics = answer.groups[0].topics if self.versions[OFFSETS] >= MANY_SINCE[OFFSETS] else answer.topics
        self._got: list[Record] = []
        offset = topics[0].partitions[0].committed_offset
        self.positions = {self.source: offset}
        self.placed = {self.source: (0, self.checks.moment[1])}
        if offset < 0:
            self.positions.clear()
            while not self.positions:
                yield from self.look_up([self.source], EARLIEST)
                yield from self.pause(100)
        self.note(f"goes on at {self.positions[self.source]} of {self.source}")

    def transact(self) -> Generator[Any, Any, None]:
        """Read, write, commit. Raises: Fenced, Impatient, Lost."""
        if not self._got and not (yield from self.fetch()):
            return
        inputs, self._got = self._got[: self.most_inputs], self._got[self.most_inputs :]
        deed = self._begin()
        deed.inputs = [(self.source, each.offset) for each in inputs]
        many = self.checks.catalogue.count
        places = [(topic.name, index) for topic in self.writes_to for index in range(many(topic))]
        targets: dict[Where, list[bytes]] = {}
        for each in inputs:
            value = b"%s of %d" % (self._values(1)[0], each.offset)
            targets.setdefault(self.rng.choice(places), []).append(value)
        yield from self._add(list(targets))
        for where, values in targets.items():
            yield from self._write(deed, where, values)
        yield from self._commit_offset(inputs[-1].offset + 1)
        commit = not self.restless or self.rng.random() < 0.85
        yield from self._end(deed, commit=commit)
        if not commit:
            yield from self.prepare()

    def got(self, where: Where, records: Sequence[Record]) -> None:
        """See Reader.got."""
        self._got += records

    def _commit_offset(self, offset: int) -> Generator[Any, Any, None]:
        add = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=self.group,
        )
        if not self.raises:
            yield from self._until(lambda: add, lambda answer: answer.error_code, self._own)
        topic, index = self.source
        by_id = self.versions[COMMIT] >= IDS_SINCE[COMMIT]
        part = TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        commit = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name="" if by_id else topic,
                    topic_id=self.checks.catalogue.topic_id(topic) if by_id else ZERO_UUID,
                    partitions=[part],
                )
            ],
        )
        yield from self._until(
            lambda: commit, lambda answer: answer.topics[0].partitions[0].error_code, (0, self.group)
        )

    def _offsets_request(self) -> OffsetFetchRequest:
        version = self.versions[OFFSETS]
        topic, index = self.source
        if version < MANY_SINCE[OFFSETS]:
            asked = [OffsetFetchRequestTopic(name=topic, partition_indexes=[index])]
            return OffsetFetchRequest(group_id=self.group, topics=asked, require_stable=version >= STABLE_SINCE)
        by_id = version >= IDS_SINCE[OFFSETS]
        wanted = OffsetFetchRequestTopics(
            name="" if by_id else topic,
            topic_id=self.checks.catalogue.topic_id(topic) if by_id else ZERO_UUID,
            partition_indexes=[index],
        )
        return OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self.group, topics=[wanted])], require_stable=True
        )

    def _offsets_code(self, answer: Any) -> int:
        found = answer.groups[0] if self.versions[OFFSETS] >= MANY_SINCE[OFFSETS] else answer
        return int(found.error_code or found.topics[0].partitions[0].error_code)
