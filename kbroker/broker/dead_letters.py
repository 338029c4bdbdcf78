"""Dead letter queues of share groups: records that could not be worked off, as records of a topic (KIP-1191).

Called by `share_partitions.py` with stretches of records that are ARCHIVING; each becomes one record that says in its
headers where it comes from and why, with its key and value if the group wants that
(`errors.deadletterqueue.copy.record.enable`). The topic's partition is the source's, modulo how many there are. This
broker appends if it leads that partition, and waits until that is committed; else it produces to the leader, as a
client does. What cannot be written, after some tries, is given up with a line in the log: the record is archived
without. A topic may be used if its name begins with `errors.deadletterqueue.topic.name.prefix` and it has
`errors.deadletterqueue.group.enable`; it is made if `errors.deadletterqueue.auto.create.topics.enable` says so.

Source: ShareGroupDLQStateManager of Apache Kafka 4.4, by behaviour.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.controller.admin import FROM_BROKER, NewTopic
from kbroker.log.isolation import LOG_END
from kbroker.log.producer_state import Origin
from kbroker.ports import DEAD_LETTERS, PeerAnswer
from kbroker.replica.facts import RoleChanged
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records import Record, RecordError
from protocol.records.batch import CONTROL, HEADER_SIZE, MAGIC, BatchHeader
from protocol.records.content import build_batch, parse_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.broker.broker import Broker
    from kbroker.broker.facts import Handler
    from kbroker.broker.jobs import Job
    from kbroker.config.share_groups import ShareGroupConfig
    from kbroker.config.topic import TopicConfig
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent, Region
    from kbroker.replica import Partition
    from kbroker.share.share_partition import DeadLetter
    from kbroker.share.share_records import Place

log = logging.getLogger("kbroker.share")

ALL_REPLICAS, PRODUCE_VERSION, PRODUCE_TIMEOUT_MS = -1, 9, 15_000
TRIES, BACKOFF_MS, LONGEST_BACKOFF_MS = 5, 1_000, 30_000
COPIED_BYTES = 1 << 20  # of the source log, read for one batch
OVERHEAD_BYTES = 21  # at most, of a record beside its key, value and headers
AGAIN = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # it was made a moment ago
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class _Sending:
    """A stretch of records on its way. offset: the next one to be written; end: behind what is under way."""

    __slots__ = ("copies", "done", "end", "letter", "offset", "place", "source", "topic", "tries")

    def __init__(
        self, place: Place, source: Partition, letter: DeadLetter, topic: str, done: Callable[[int], None]
    ) -> None:
        self.place, self.source, self.letter, self.topic, self.done = place, source, letter, topic, done
        self.offset = self.end = letter.first
        self.tries = 0
        self.copies: dict[int, Record] | None = None  # of the source, by offset; None until they are read

    def headers(self, offset: int) -> tuple[tuple[bytes, bytes | None], ...]:
        """What is said of the record at an offset."""
        said = {
            "topic": self.source.topic,
            "partition": str(self.source.index),
            "offset": str(offset),
            "group": self.place.group_id,
            "delivery.count": str(self.letter.deliveries),
            "message": self.letter.why,
        }
        return tuple((f"__dlq.errors.{name}".encode(), value.encode()) for name, value in said.items())

    def __str__(self) -> str:
        first, last = self.letter.first, self.letter.last
        return (
            f"{self.source.topic}-{self.source.index}, offsets {first} to {last}, of share group {self.place.group_id}"
        )


class _ReadSource:
    """A job: the records of a stretch of a file, from an offset up to another."""

    def __init__(self, region: Region, first: int, last: int) -> None:
        self._region, self._first, self._last = region, first, last
        self.found: dict[int, Record] = {}

    def run(self) -> None:
        """Raises: OSError."""
        from kbroker.log.scan import header_at

        data, at = memoryview(self._region.read()), 0
        while len(data) - at >= HEADER_SIZE:
            found = header_at(data, at)
            if found is None:
                return
            header = BatchHeader(*found)
            if header.size_bytes > len(data) - at or header.base_offset > self._last:
                return
            if header.magic == MAGIC and not header.attributes & CONTROL:
                try:
                    records = parse_records(data, at, header)
                except RecordError:
                    records = []  # it cannot be read: the record goes without key and value
                self.found |= {each.offset: each for each in records if self._first <= each.offset <= self._last}
            at += header.size_bytes


class DeadLetters:
    """What is on its way into dead letter queues. A part of the broker. uncommitted: appended here, by partition."""

    def __init__(self, broker: Broker, requester: Requester, config: Callable[[str], ShareGroupConfig]) -> None:
        self._broker = broker
        self._requester = requester
        self._config = config
        self.uncommitted: dict[Partition, list[tuple[int, _Sending]]] = {}
        self._waiting: dict[int, list[_Sending]] = {}  # by leader
        self._again: dict[_Sending, int] = {}  # when
        self._reading: dict[Job, _Sending] = {}
        self._alarm = broker.scheduler.alarm(self._send_again)

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Who leads what: what was appended in an earlier leadership is sent again."""
        return {RoleChanged: self._role_changed}

    def send(
        self, place: Place, source: Partition, letter: DeadLetter, done: Callable[[int], None], now_ms: int
    ) -> None:
        """Have records written; `done` is called with the time when they are, or when they are given up."""
        topic = self._config(place.group_id).dead_letter_topic
        sending = _Sending(place, source, letter, topic, done)
        refusal = self._refusal(topic)
        if refusal:
            self._give_up(sending, refusal, now_ms)
        else:
            self._write_next(sending, now_ms)

    def _refusal(self, topic: str) -> str:
        """Why a topic is no dead letter queue; empty if it is one."""
        config, cache = self._broker.config, self._broker.plane.cache
        prefix = config.errors_deadletterqueue_topic_name_prefix
        if not topic:
            return "the group has no dead letter queue any more"
        if topic.startswith("__") or not topic.startswith(prefix):
            return f"the topic's name {topic} does not begin with {prefix}"
        if topic not in cache.topics:
            if config.errors_deadletterqueue_auto_create_topics_enable:
                return ""
            return f"there is no topic {topic}, and errors.deadletterqueue.auto.create.topics.enable is false"
        is_here = any(name == topic for name, _ in self._broker.replicas.partitions)  # else its settings are not known
        if is_here and not self._topic_config(topic).errors_deadletterqueue_group_enable:
            return f"topic {topic} has errors.deadletterqueue.group.enable=false"
        return ""

    def _topic_config(self, topic: str) -> TopicConfig:
        return self._broker.plane.configs.topic_config(topic)

    # --- one batch

    def _write_next(self, sending: _Sending, now_ms: int) -> None:
        """Write the next batch of a stretch."""
        image = self._broker.plane.cache.topics.get(sending.topic)
        if image is None:
            self._make(sending.topic)
            self._later(sending, "the topic is being made", now_ms)
            return
        if not self._config(sending.place.group_id).copies_dead_letters:
            sending.copies = {}
        if sending.copies is None and self._read(sending):
            return
        index = sending.source.index % len(image.partitions)
        state = image.partitions.get(index)
        leader = -1 if state is None else state.leader
        if leader < 0:
            self._later(sending, f"{sending.topic}-{index} has no leader", now_ms)
        elif leader == self._broker.plane.broker_id:
            self._append(sending, index, now_ms)
        else:
            self._waiting.setdefault(leader, []).append(sending)
            self._produce_next(leader, now_ms)

    def _make(self, topic: str) -> None:
        configs = {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
        self._broker.plane.auto_create([NewTopic(topic, FROM_BROKER, FROM_BROKER, {}, configs)])

    def _read(self, sending: _Sending) -> bool:
        """Have the records read that are to be copied; whether that goes on."""
        sending.copies = {}
        try:
            region = sending.source.read(sending.offset, COPIED_BYTES, LOG_END, True, True).region
        except (KafkaError, OSError) as error:
            log.info("%s: is not copied into the dead letter queue: %s", sending, error)
            return False
        if region is None:
            return False
        job = _ReadSource(region, sending.offset, sending.letter.last)
        self._reading[job] = sending
        self._broker.give(job, self)
        return True

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """The records have been read, or cannot be."""
        sending = self._reading.pop(job)
        if error is None and isinstance(job, _ReadSource):
            sending.copies = job.found
        self._write_next(sending, now_ms)

    def _batch(self, sending: _Sending) -> bytearray:
        """As much as fits into one batch of the topic; sets where that ends."""
        wall_ms, copies = self._broker.clock.wall_ms(), sending.copies or {}
        most = self._topic_config(sending.topic).max_message_bytes
        copied_to = max(copies, default=sending.letter.last)
        records: list[Record] = []
        size = HEADER_SIZE
        for offset in range(sending.offset, sending.letter.last + 1):
            copy = copies.get(offset)
            record = Record(
                len(records),
                wall_ms,
                None if copy is None else copy.key,
                None if copy is None else copy.value,
                sending.headers(offset),
            )
            if HEADER_SIZE + _size(record) > most:
                record = record._replace(key=None, value=None)
            size += _size(record)
            if records and (size > most or offset > copied_to):
                break
            records.append(record)
        sending.end = sending.offset + len(records)
        return build_batch(records)

    def _append(self, sending: _Sending, index: int, now_ms: int) -> None:
        replicas = self._broker.replicas
        try:
            found = replicas.find(sending.topic, index)
            batch = memoryview(self._batch(sending))
            plan = replicas.append(found, batch, ALL_REPLICAS, Origin.CLIENT, self._broker.clock.wall_ms())
        except KafkaError as error:
            self._failed(sending, error.code, error.message, now_ms)
            return
        self.uncommitted.setdefault(found, []).append((plan.last_offset + 1, sending))
        self.moved(found, now_ms)

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition has another high watermark: to be told while there are `uncommitted` ones."""
        waiting = self.uncommitted.get(partition)
        if waiting is None or partition.log is None:
            return
        committed = [sending for end, sending in waiting if end <= partition.log.high_watermark]
        if not committed:
            return
        left = waiting[len(committed) :]
        if left:
            self.uncommitted[partition] = left
        else:
            del self.uncommitted[partition]
        for sending in committed:
            self._written(sending, now_ms)

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        if not fact.is_leader:
            for _, sending in self.uncommitted.pop(fact.partition, ()):
                self._later(sending, "its leader has changed", now_ms)

    # --- other brokers

    def _produce_next(self, broker_id: int, now_ms: int) -> None:
        if self._requester.is_asking(broker_id, DEAD_LETTERS):
            return
        waiting = self._waiting.get(broker_id)
        if not waiting:
            return
        sending = waiting.pop(0)
        image = self._broker.plane.cache.topics.get(sending.topic)
        index = sending.source.index % len(image.partitions) if image is not None else 0
        request = ProduceRequest(
            acks=ALL_REPLICAS,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(
                    name=sending.topic,
                    partition_data=[PartitionProduceData(index=index, records=self._batch(sending))],
                )
            ],
        )
        if not self._requester.ask(self, broker_id, DEAD_LETTERS, request, sending, version=PRODUCE_VERSION):
            self._failed(sending, ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} is not there", now_ms)
            self._produce_next(broker_id, now_ms)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What a leader says, or nothing."""
        sending = asked.token
        assert isinstance(sending, _Sending), sending
        code, text = ErrorCode.NETWORK_EXCEPTION, "there was no answer"
        if isinstance(event, PeerAnswer):
            response = event.response
            assert isinstance(response, ProduceResponse), event
            parts = [part for topic in response.responses for part in topic.partition_responses]
            code, text = ErrorCode.of(parts[0].error_code), parts[0].error_message or ""
        if code is ErrorCode.NONE:
            self._written(sending, now_ms)
        else:
            self._failed(sending, code, text, now_ms)
        self._produce_next(asked.broker_id, now_ms)

    # --- what becomes of it

    def _written(self, sending: _Sending, now_ms: int) -> None:
        sending.offset, sending.tries, sending.copies = sending.end, 0, None
        if sending.offset > sending.letter.last:
            log.info("%s: %d in topic %s", sending, sending.letter.last - sending.letter.first + 1, sending.topic)
            sending.done(now_ms)
        else:
            self._write_next(sending, now_ms)

    def _failed(self, sending: _Sending, code: ErrorCode, text: str, now_ms: int) -> None:
        if code in AGAIN:
            self._later(sending, f"{code.name} {text}", now_ms)
        else:
            self._give_up(sending, f"{code.name} {text}", now_ms)

    def _later(self, sending: _Sending, why: str, now_ms: int) -> None:
        sending.tries += 1
        if sending.tries > TRIES:
            self._give_up(sending, why, now_ms)
            return
        again_ms = now_ms + min(BACKOFF_MS << (sending.tries - 1), LONGEST_BACKOFF_MS)
        self._again[sending] = again_ms
        self._alarm.by(again_ms, now_ms)

    def _send_again(self, now_ms: int) -> None:
        due = [sending for sending, at_ms in self._again.items() if at_ms <= now_ms]
        for sending in due:
            del self._again[sending]
        for sending in due:
            self._write_next(sending, now_ms)
        if self._again:
            self._alarm.by(min(self._again.values()), now_ms)

    def _give_up(self, sending: _Sending, why: str, now_ms: int) -> None:
        log.error("%s: archived without a dead letter: %s", sending, why)
        sending.done(now_ms)


def _size(record: Record) -> int:
    """Bytes that a record takes in a batch, at most."""
    payload = len(record.key or b"") + len(record.value or b"")
    return OVERHEAD_BYTES + payload + sum(len(key) + len(value or b"") + 10 for key, value in record.headers)
