"""Simulated producers: idempotent or not, acks 0, 1 or all, a few requests at a time, retrying as real ones do.

Every record has a value of its own, so that the checks can tell where it went. A producer keeps its batches in order a
partition; after a lost connection it sends again what was not answered, with the same sequence numbers if it is
idempotent. One that is told that its sequence is unknown or out of order starts again under another id, and does not
repeat what it is in doubt of. Out of order is also what is sent behind a batch that was refused: that is sent again
behind it, as Apache's client does. A partition that does not know the producer yet takes the batch behind it, too,
with any sequence, as Apache's brokers do. That happens when the in-sync set grows between the two; the first batch is
out of order then.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from protocol.namedtuple import NamedTuple
from protocol.records import Record, legacy
from protocol.records.content import build_batch

if TYPE_CHECKING:
    from kbroker.sim.checks import Moment, Where
    from kbroker.sim.machine import Machine
    from kbroker.sim.topics import Topic

PRODUCE, INIT_PRODUCER_ID = 0, 22
ZSTD, ZSTD_SINCE = 4, 7
BATCHES_SINCE = 3  # of Produce: older ones carry message sets

RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
SEQUENCE_LOST = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


class Batch(NamedTuple):
    """Records on their way to one partition. sequence: of the first, -1 unless idempotent."""

    where: Where
    values: list[bytes]
    sequence: int


def _error_code(answer: Message | None) -> int | None:
    assert answer is None or isinstance(answer, ProduceResponse)
    return None if answer is None else answer.responses[0].partition_responses[0].error_code


class Producer(Router):
    """Writes to some topics, as long as it lives.

    acks: 0, 1 or -1. pace_ms: mean time between its requests.
    """

    topics: Sequence[Topic] = ()
    acks = 1
    idempotent = False
    pace_ms = 1000
    codec_id = 0
    most_records = 4
    pipelined = 1  # requests at a time, each to another partition
    ahead = 1  # batches of a partition at a time, at most: five are known again
    tries = 20  # of one batch, before it is given up

    def live(self) -> Script:
        """Batch after batch."""
        self.made = 0
        self.acknowledged = 0
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[Where, int] = {}
        self.overtaken: set[Where] = set()  # partitions that took a batch behind a first one that was refused
        while True:
            yield from self.pause(self.pace_ms)
            if self.idempotent and self.producer_id < 0:
                yield from self._get_id()
                self.overtaken.clear()
            yield from self.shake_hands()
            yield from self.know(self.topics)
            many = self.checks.catalogue.count
            places = [(topic.name, index) for topic in self.topics for index in range(many(topic))]
            count = min(self.rng.randint(1, self.pipelined), len(places))
            wheres = self.rng.sample(places, count)
            if self.ahead > 1:
                wheres = [where for where in wheres for _ in range(self.rng.randint(1, self.ahead))]
            yield from self.deliver([self.batch(where) for where in wheres])

    def batch(self, where: Where, values: list[bytes] | None = None) -> Batch:
        """The next batch for a partition."""
        if values is None:
            count = self.rng.randint(1, self.most_records)
            padding = b"x" * self.rng.choice((0, 0, 10, 200))
            values = [b"%s.%d%s" % (self.name.encode(), self.made + n, padding) for n in range(count)]
            self.made += count
        sequence = -1
        if self.idempotent:
            sequence = self.sequences.get(where, 0)
            self.sequences[where] = sequence + len(values) & 0x7FFFFFFF
        return Batch(where, values, sequence)

    def deliver(self, batches: list[Batch]) -> Generator[Any, Any, None]:
        """Send batches, one a request, until each is acknowledged or given up."""
        for _ in range(self.tries):
            try:
                led, again = yield from self.by_leader(batches, lambda batch: batch.where)
            except Lost as lost:
                self.note(f"does not know who leads: {lost.why}")
                led, again = {}, batches
            for leader, group in led.items():
                again += yield from self._send_batches(leader, group)
                if self.idempotent and self.producer_id < 0:  # it has started again: the others' sequences are void
                    return
            batches = again
            if not batches or (self.acks == 0 and led):
                return
            yield from self.pause(300)
        self.note(f"gives up {len(batches)} batches")
        self._start_over()

    def _send_batches(self, leader: Machine, batches: list[Batch]) -> Generator[Any, Any, list[Batch]]:
        """Send batches to the leader of their partitions; those of unknown outcome."""
        for batch in batches:
            self.checks.sent(batch.values, idempotent=self.idempotent)
        moment = self.checks.moment
        try:
            answers: list[Message | None] = list(
                (yield from self.ask_all([self._request(batch) for batch in batches], to=leader))
            )
        except Lost as lost:
            answers = lost.answers
            self.note(f"lost {len(batches) - len(answers)} answers: {lost.why}")
        again: list[Batch] = []
        for at, batch in enumerate(batches):
            answer = answers[at] if at < len(answers) else None
            before = [each for each in again if each.where == batch.where]
            comes_later = bool(before) and _error_code(answer) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if before and before[0].sequence == 0 and _error_code(answer) == ErrorCode.NONE:
                self.overtaken.add(batch.where)
            if (answer is None or comes_later or not self._conclude(batch, answer, moment, leader)) and self.acks:
                self.misled(batch.where)
                again.append(batch)
        return again

    def _conclude(self, batch: Batch, answer: Message, moment: Moment, leader: Machine) -> bool:
        """Whether a batch's outcome is known."""
        assert isinstance(answer, ProduceResponse)
        part = answer.responses[0].partition_responses[0]
        code = ErrorCode.of(part.error_code)
        topic, index = batch.where
        if code is ErrorCode.NONE:
            if part.base_offset >= 0:
                self.checks.appended(batch.where, part.base_offset, batch.values, moment)
            self.acknowledged += len(batch.values)
            self.note(f"wrote {len(batch.values)} to {topic}-{index} at {part.base_offset}")
            return True
        self.note(f"{topic}-{index}: {code.name}")
        if code in RETRIABLE:
            return False
        if code in SEQUENCE_LOST and self.idempotent:
            self._sequence_lost(batch, part, leader)
            return True
        raise self.world.broken(f"{self}: {topic}-{index} answers {code.name}: {part.error_message}")

    def _sequence_lost(self, batch: Batch, part: PartitionProduceResponse, leader: Machine) -> None:
        """Only one who leads must know what was acknowledged: a zombie never had what its successors appended.

        It refuses before it could ask its followers for anything, in Kafka too, and nothing is lost by that.
        """
        may_forget = (
            self.checks.promise(batch.where).lost_at
            or self.checks.catalogue.was_deleted(batch.where[0])
            or self.checks.may_be_outdated(leader, batch.where)
            or batch.where in self.overtaken
        )
        if not may_forget:
            raise self.world.broken(f"{self}: {batch.where} forgot sequence {batch.sequence}: {part.error_message}")
        self._start_over()

    def _start_over(self) -> None:
        self.producer_id = self.epoch = -1
        self.sequences.clear()

    def _get_id(self) -> Generator[Any, Any, None]:
        """An id from the broker; one of the client's own choice where none are given out."""
        while self.producer_id < 0:
            try:
                yield from self.connect()
                if not self.serves(INIT_PRODUCER_ID):
                    self.producer_id, self.epoch = self.checks.next_producer_id(), 0
                    return
                answer: InitProducerIdResponse = yield from self.ask(
                    InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                )
                if answer.error_code == ErrorCode.NONE:
                    self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
                    self.checks.gave_producer_id(answer.producer_id, answer.producer_epoch)
                    self.note(f"is producer {self.producer_id}")
                    return
            except Lost:
                pass
            yield from self.pause(500)

    def _set(self, records: list[Record], sequence: int) -> bytearray:
        """The records in the format that the version is of: v0 for 0 and 1, v1 for 2, a batch from 3 on."""
        if self.idempotent:  # there are no ids in the older formats
            self.versions[PRODUCE] = max(self.versions[PRODUCE], BATCHES_SINCE)
        version = self.versions[PRODUCE]
        codec_id = self.codec_id if self.codec_id != ZSTD or version >= ZSTD_SINCE else 0
        if version < BATCHES_SINCE:
            return legacy.build_set(records, magic=0 if version < 2 else 1, codec_id=codec_id)
        return build_batch(
            records,
            codec_id=codec_id,
            producer_id=self.producer_id if self.idempotent else -1,
            producer_epoch=self.epoch if self.idempotent else -1,
            base_sequence=sequence,
        )

    def key_of(self, value: bytes) -> bytes | None:
        """The key of the record that has this value."""
        return None

    def _request(self, batch: Batch) -> ProduceRequest:
        name, index = batch.where
        by_id = self.versions[PRODUCE] >= 13
        topic_id = self.checks.catalogue.topic_id(name)
        now_ms = 1_700_000_000_000 + self.world.now_ms
        records = [Record(at, now_ms, self.key_of(value), value) for at, value in enumerate(batch.values)]
        data = self._set(records, batch.sequence)
        return ProduceRequest(
            acks=self.acks,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(
                    name="" if by_id else name,
                    topic_id=topic_id if by_id else ZERO_UUID,
                    partition_data=[PartitionProduceData(index=index, records=bytes(data))],
                )
            ],
        )
