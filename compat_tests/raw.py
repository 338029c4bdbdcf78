"""A producer and a reader over one connection each, so that a test knows exactly what was sent and answered.

Stock clients hide retries and lost connections; the kill test must see them. Used by test_kill.py,
test_idle_connections.py and test_differences.py; speaks to any broker.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from random import Random
from typing import Any

from kbroker.runtime.blocking import BlockingConnection, connect
from protocol.errors import ErrorCode
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import Record
from protocol.records.content import build_batch, parse_set

METADATA, PRODUCE, FETCH, INIT_PRODUCER_ID = 9, 9, 11, 2
"""The versions spoken: any broker since Kafka 2.4 serves them."""

SAFE_DOWNGRADE = 2
IN_FLIGHT = 5
"""Requests sent ahead of their answers: what Kafka allows an idempotent producer."""


class Connection(BlockingConnection):
    """One connection; requests out, answers in, in order."""

    def __init__(self, port: int = 0, timeout_s: float = 30, *, over: socket.socket | None = None) -> None:
        """over: a socket that is connected already, in place of the loopback's port. Raises OSError."""
        super().__init__(over or connect("127.0.0.1", port, timeout_s), "raw", answer_s=timeout_s)


def lower(port: int, feature: str, level: int) -> None:
    """Have a broker that is alone run a feature at this level instead of the newest."""
    key = FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=SAFE_DOWNGRADE)
    with Connection(port) as connection:
        done = connection.ask(UpdateFeaturesRequest(feature_updates=[key]), 2)
    assert done.error_code == ErrorCode.NONE, done.error_message


class Producer(threading.Thread):
    """Produces to partition 0 of a topic until told to stop, over every lost connection.

    What is not acknowledged is sent again, in order, on the next connection. acknowledged: the values, in order.
    failure: what ended it early, or None.
    """

    def __init__(self, port: int, topic: str, *, acks: int, idempotent: bool, seed: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self.reconnects = 0
        self.failure: str | None = None
        self._port, self._topic, self._acks, self._idempotent = port, topic, acks, idempotent
        self._random = Random(seed)
        self._producer: tuple[int, int] | None = None
        self._next = 0
        self._unacknowledged: deque[tuple[list[bytes], bytearray]] = deque()
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Have everything acknowledged, then end; returns when done."""
        self._stopping.set()
        self.join(60)
        if self.is_alive():
            self.failure = f"{len(self._unacknowledged)} batches still without an answer after 60 s"

    def run(self) -> None:
        """The thread."""
        try:
            while not (self._stopping.is_set() and not self._unacknowledged):
                try:
                    with Connection(self._port) as connection:
                        self._prepare(connection)
                        self._produce(connection)
                except (OSError, _RetryError):
                    self.reconnects += 1
                    time.sleep(0.005)  # the broker is down: not a wait for anything, only a slower turn
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _prepare(self, connection: Connection) -> None:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
        topic = connection.ask(asked, METADATA).topics[0]
        if topic.error_code or any(partition.leader_id < 0 for partition in topic.partitions):
            raise _RetryError
        if self._idempotent and self._producer is None:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = connection.ask(request, INIT_PRODUCER_ID)
            _raise_unless_retriable(answer.error_code)
            self._producer = answer.producer_id, answer.producer_epoch

    def _produce(self, connection: Connection) -> None:
        for _, batch in self._unacknowledged:
            self._send(connection, batch)
        while self._unacknowledged or not self._stopping.is_set():
            while len(self._unacknowledged) < IN_FLIGHT and not self._stopping.is_set():
                self._unacknowledged.append(self._batch())
                self._send(connection, self._unacknowledged[-1][1])
            if not self._unacknowledged:
                return
            answer = connection.receive().responses[0].partition_responses[0]
            if answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:  # then it is there already
                _raise_unless_retriable(answer.error_code)
            self.acknowledged += self._unacknowledged.popleft()[0]

    def _batch(self) -> tuple[list[bytes], bytearray]:
        count = self._random.randint(1, 20)
        values = [b"%d %s" % (self._next + at, b"." * self._random.randint(0, 2000)) for at in range(count)]
        now = int(time.time() * 1000)
        records = [Record(at, now, None, value) for at, value in enumerate(values)]
        if self._producer is None:
            batch = build_batch(records)
        else:
            producer_id, epoch = self._producer
            batch = build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._next)
        self._next += count
        return values, batch

    def _send(self, connection: Connection, batch: bytearray) -> None:
        partition = PartitionProduceData(index=0, records=bytes(batch))
        topic = TopicProduceData(name=self._topic, partition_data=[partition])
        connection.send(ProduceRequest(acks=self._acks, timeout_ms=30_000, topic_data=[topic]), PRODUCE)


def read_all(port: int, topic: str) -> list[bytes | None]:
    """The values of partition 0 from its first record to its high watermark."""
    values: list[bytes | None] = []
    offset = 0
    with Connection(port) as connection:
        while True:
            part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=4 << 20)
            topics = [FetchTopic(topic=topic, partitions=[part])]
            request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=4 << 20, topics=topics)
            answer = connection.ask(request, FETCH).responses[0].partitions[0]
            assert answer.error_code == 0, ErrorCode.of(answer.error_code)
            if offset >= answer.high_watermark:
                return values
            for header, records in _whole_batches(answer.records):
                values += [record.value for record in records if record.offset >= offset]
                offset = header.base_offset + header.last_offset_delta + 1


def _whole_batches(data: object) -> list[tuple[Any, list[Record]]]:
    """The batches of a fetch answer without the last one, if it was cut short."""
    view = memoryview(data)  # type: ignore[arg-type]
    end = 0
    while len(view) - end > 12 and end + 12 + (size := struct.unpack_from(">i", view, end + 8)[0]) <= len(view):
        end += 12 + size
    return parse_set(view[:end])


class _RetryError(Exception):
    """The broker is not ready: reconnect and send again."""


def _raise_unless_retriable(code: int) -> None:
    if code == ErrorCode.NONE:
        return
    if ErrorCode.of(code).retriable:
        raise _RetryError
    raise RuntimeError(f"the broker answered {ErrorCode.of(code).name}")
