"""Producers to the leaders of a cluster, over bare sockets: several connections at once, idempotent if wanted.

Used by `cluster_rows.py` and `benchmarks/control.py`. A batch is made once; of the next one only the sequence and the
checksum are new, and are written over the old. Every answer's error code is looked at.

Where in a batch of v2: checksum 17, attributes 21, producer id 43, producer epoch 51, base sequence 53, count 57.
"""

from __future__ import annotations

import selectors
import struct
import time
from collections.abc import Sequence

from benchmarks.harness.clusters import POLL_S, Cluster, partitions, until
from benchmarks.harness.wire import (
    PRODUCE_VERSION,
    TIMEOUT_S,
    Connection,
    LoadError,
    batch,
    check_produced,
    frame,
)
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import InitProducerIdRequest
from protocol.records import crc32c

IN_FLIGHT = 5  # what an idempotent producer may have under way
ALL, LEADER = -1, 1
INIT_PRODUCER_ID_VERSION = 2
_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
CRC_AT, CHECKED_AT, PRODUCER_AT = 17, 21, 43
ERROR_CODE_AT = 4 + 4 + 1 + 1 + 1 + 1 + 4  # in an answer of one partition, without the topic's name
RECEIVE_BYTES = 1 << 16


class Stream:
    """One partition's batches on a connection to its leader.

    producer_id: -1 for a producer that is not idempotent. sent, answered: batches so far.
    """

    def __init__(
        self, connection: Connection, topic: str, index: int, data: bytes, count: int, acks: int, producer_id: int = -1
    ) -> None:
        """data: a batch of so many records."""
        self.connection = connection
        self.sent = self.answered = 0
        self._records = count
        self._producer_id = producer_id
        part = PartitionProduceData(index=index, records=data)
        request = ProduceRequest(
            acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
        )
        self._frame = bytearray(frame(request, PRODUCE_VERSION))
        self._batch_at = self._frame.index(data)
        self._size = len(data)
        self._error_at = ERROR_CODE_AT + len(topic)
        self._received = b""
        self._begin()

    def _begin(self) -> None:
        """One batch, whose answer is decoded whole: those that follow are as long.

        A broker does not lead its partitions the moment metadata says so: until then, again.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self.send()
            answer = bytes(self.connection.frame())
            try:
                check_produced(memoryview(answer))
                break
            except LoadError:
                if time.monotonic() > deadline:
                    raise
            self.sent -= 1
            time.sleep(POLL_S)
        self._answer_bytes = len(answer) + 4
        self.answered += 1

    @property
    def records(self) -> int:
        """How many are acknowledged."""
        return self.answered * self._records

    def send(self) -> None:
        """The next batch."""
        self.connection.send_bytes(self.next_frame())
        self.sent += 1

    def next_frame(self) -> bytearray:
        """The request that is to be sent next."""
        if self._producer_id >= 0:
            data, at = self._frame, self._batch_at
            _PRODUCER.pack_into(data, at + PRODUCER_AT, self._producer_id, 0, self.sent * self._records)
            checked = memoryview(data)[at + CHECKED_AT : at + self._size]
            _CRC.pack_into(data, at + CRC_AT, crc32c(checked))
        return self._frame

    def receive(self) -> int:
        """What has come; how many answers that made whole. Raises: LoadError for one with an error."""
        data = self.connection.socket.recv(RECEIVE_BYTES)
        if not data:
            raise LoadError("the broker hung up")
        data, size, at = self._received + data, self._answer_bytes, self._error_at
        whole = len(data) // size
        for number in range(whole):
            code = data[number * size + at : number * size + at + 2]
            if code != b"\0\0":
                raise LoadError(f"a batch is refused: error {int.from_bytes(code, 'big', signed=True)}")
        self._received = data[whole * size :]
        self.answered += whole
        return whole

    def ping(self) -> float:
        """One batch and its answer: the seconds that took."""
        sending = self.next_frame()
        begun = time.perf_counter()
        self.connection.send_bytes(sending)
        while not self.receive():
            pass
        taken = time.perf_counter() - begun
        self.sent += 1
        return taken


def open_streams(
    cluster: Cluster, topic: str, record_bytes: int, count: int, acks: int, *, idempotent: bool
) -> list[Stream]:
    """A stream for each partition of a topic, to its leader, with batches of so many records."""
    with cluster.connect() as connection:
        found = partitions(connection, topic)
        producer_id = new_producer_id(connection) if idempotent else -1
    data = batch(count, record_bytes)
    return [
        Stream(cluster.connect(each.leader_id), topic, each.partition_index, data, count, acks, producer_id)
        for each in found
    ]


def new_producer_id(connection: Connection) -> int:
    """An id for an idempotent producer; a broker that has just begun has none to give yet."""
    asked = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    got: list[int] = []

    def is_given() -> bool:
        answer = connection.ask(asked, INIT_PRODUCER_ID_VERSION)
        if not answer.error_code:
            got.append(answer.producer_id)
        return bool(got)

    until(is_given, "a producer id is given")
    return got[0]


def run(streams: Sequence[Stream], batches: int) -> float:
    """So many batches on all streams together, IN_FLIGHT on each; the seconds until the last is answered."""
    left = batches
    with selectors.DefaultSelector() as selector:
        begun = time.perf_counter()
        for each in streams:
            selector.register(each.connection.socket, selectors.EVENT_READ, each)
            for _ in range(min(IN_FLIGHT, left)):
                each.send()
                left -= 1
        while any(each.answered < each.sent for each in streams):
            ready = selector.select(30)
            if not ready:
                raise LoadError("no answer for 30 s")
            for key, _ in ready:
                stream: Stream = key.data
                for _ in range(min(stream.receive(), left)):
                    stream.send()
                    left -= 1
        return time.perf_counter() - begun
