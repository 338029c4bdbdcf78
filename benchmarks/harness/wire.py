"""Load on a broker's socket without a client library: frames made beforehand, sent again and again.

Used by `rows.py`. A client library costs several times what a broker does, and would hide it. What is measured is
sent as the same bytes to every broker; the frames are made by `protocol`, whose bytes Apache's classes judge. Every
answer is looked at: an error code other than 0 ends the run.
"""

from __future__ import annotations

import random
import socket
import ssl
import struct
import time
from collections.abc import Sequence

from kbroker.runtime.blocking import BlockingConnection, connect
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import Message
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from protocol.records import Record
from protocol.records.compression import codec_named
from protocol.records.content import build_batch
from tests.frames import Frames, framed

CLIENT_ID = "bench"
PRODUCE_VERSION = 9
FETCH_VERSION = 12
TIMEOUT_S = 180  # Apache on a slow machine takes a minute and more to lead 5,000 partitions
TOPIC_EXISTS = 36
_ERROR_CODE = struct.Struct(">h")
_OFFSET_MARK = 0x0123456789ABCDEF  # stands for the fetch offset in a prepared request

WORDS = ("order", "customer", "region", "amount", "paid", "shipped", "invoice", "pending", "status", "created")


class LoadError(RuntimeError):
    """The broker answered an error, or hung up."""


# ---- frames


def frame(request: Message, version: int, correlation_id: int = 1) -> bytes:
    """A request as it goes over the wire, its size in front."""
    return framed(encode_request_header(type(request), version, correlation_id, CLIENT_ID) + request.encode(version))


def batch(count: int, size: int, codec: str = "none") -> bytes:
    """A v2 batch of `count` records with values of `size` bytes: words and numbers, about as dense as JSON is."""
    rng = random.Random(count * size)
    now_ms = int(time.time() * 1000)
    records = []
    for offset in range(count):
        value = ""
        while len(value) < size:
            value += f'"{rng.choice(WORDS)}":{rng.randrange(1_000_000)},'
        records.append(Record(offset, now_ms, None, value[:size].encode()))
    return bytes(build_batch(records, codec_id=codec_named(codec).codec_id))


def produce_frame(topic: str, batches: Sequence[bytes], acks: int = 1) -> bytes:
    """A Produce request with a batch for each of the partitions 0, 1, 2..."""
    data = [PartitionProduceData(index=index, records=records) for index, records in enumerate(batches)]
    request = ProduceRequest(
        acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    return frame(request, PRODUCE_VERSION)


def fetch_frame(topic: str, *, max_wait_ms: int, partition_bytes: int, min_bytes: int = 1) -> tuple[bytearray, int]:
    """A sessionless Fetch of partition 0, and where in it the fetch offset is to be put (8 bytes)."""
    partition = FetchPartition(partition=0, fetch_offset=_OFFSET_MARK, partition_max_bytes=partition_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=50 << 20,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    data = bytearray(frame(request, FETCH_VERSION))
    return data, data.index(struct.pack(">q", _OFFSET_MARK))


# ---- a connection


class Connection(BlockingConnection):
    """To one broker: it asks, for what is not measured, and sends frames made beforehand, for what is."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        sock = connect(host, port, TIMEOUT_S)
        sock = sock if tls is None else tls.wrap_socket(sock, server_hostname=host)
        super().__init__(sock, CLIENT_ID, answer_s=TIMEOUT_S)
        self._frames = Frames(self.socket)

    def frame(self) -> memoryview:
        """The whole answer to a frame that was sent, without its size; good until the next one."""
        return self._frames.receive()


# ---- what is measured


class Producer:
    """The same Produce request again and again on one connection, some of them in flight."""

    def __init__(self, connection: Connection, data: bytes, in_flight: int = 5) -> None:
        self._connection = connection
        self._data = data
        self._in_flight = in_flight
        self._answer_bytes = self._look_at_one()

    def _look_at_one(self) -> int:
        """Bytes of an answer, which are the same each time; it is decoded whole this once.

        A broker does not lead its partitions the moment it comes up, or metadata says so: until then, again.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._connection.send_bytes(self._data)
            answer = memoryview(bytes(self._connection.frame()))
            try:
                check_produced(answer)
            except LoadError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            else:
                return len(answer) + 4

    def run(self, count: int) -> float:
        """Send `count` requests, take all answers; the seconds that took."""
        sock, data, size = self._connection.socket, self._data, self._answer_bytes
        buffer = bytearray(1 << 16)
        begun = time.perf_counter()
        for _ in range(min(self._in_flight, count)):
            sock.sendall(data)
        sent, received, wanted = min(self._in_flight, count), 0, count * size
        kept = b""
        while received < wanted:
            got = sock.recv_into(buffer)
            if not got:
                raise LoadError("the broker hung up")
            before, received = received // size, received + got
            kept = kept[-size:] + buffer[:got]
            for _ in range(min(received // size - before, count - sent)):
                sock.sendall(data)
                sent += 1
        seconds = time.perf_counter() - begun
        if received != wanted:
            raise LoadError(f"{received} bytes of answers, not {wanted}: some batch was refused")
        check_produced(memoryview(kept)[-size + 4 :])
        return seconds

    def latencies(self, count: int) -> list[float]:
        """One request at a time: the seconds each took, in the order sent."""
        seconds, answer = ping(self._connection.socket, self._data, self._answer_bytes, count)
        check_produced(answer[4:])
        return seconds


def ping(sock: socket.socket, data: bytes, answer_bytes: int, count: int) -> tuple[list[float], memoryview]:
    """Send `data` and wait for an answer of so many bytes, `count` times: the seconds each took, the last answer."""
    buffer = bytearray(answer_bytes)
    clock = time.perf_counter
    seconds = []
    for _ in range(count):
        begun = clock()
        sock.sendall(data)
        got = sock.recv_into(buffer)
        while got < answer_bytes:
            got += sock.recv_into(memoryview(buffer)[got:]) or _hung_up()
        seconds.append(clock() - begun)
    return seconds, memoryview(buffer)


def check_produced(answer: memoryview) -> ProduceResponse:
    """Decode an answer to Produce. Raises LoadError if any partition has an error."""
    _, start = parse_response_header(ProduceResponse, PRODUCE_VERSION, answer)
    response = ProduceResponse.decode(answer, PRODUCE_VERSION, start)
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise LoadError(f"{topic.name}-{partition.index}: error {partition.error_code}")
    return response


class Consumer:
    """Reads partition 0 of a topic from the start, whose batches are all alike."""

    def __init__(
        self, connection: Connection, topic: str, *, batch_bytes: int, batch_records: int, partition_bytes: int
    ) -> None:
        self._connection = connection
        self._data, self._at = fetch_frame(topic, max_wait_ms=500, partition_bytes=partition_bytes)
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self.offset = 0
        self.fetches = 0

    def run(self, end_offset: int) -> tuple[float, int]:
        """Fetch until end_offset; seconds, and bytes of whole batches."""
        begun, total = time.perf_counter(), 0
        while self.offset < end_offset:
            total += self.fetch()
        return time.perf_counter() - begun, total

    def fetch(self) -> int:
        """One fetch; bytes of whole batches in it."""
        self.fetches += 1
        struct.pack_into(">q", self._data, self._at, self.offset)
        self._connection.send_bytes(self._data)
        answer = self._connection.frame()
        _, start = parse_response_header(FetchResponse, FETCH_VERSION, answer)
        partition = FetchResponse.decode(answer, FETCH_VERSION, start).responses[0].partitions[0]
        if partition.error_code:
            raise LoadError(f"fetch at {self.offset}: error {partition.error_code}")
        assert isinstance(partition.records, memoryview | bytes), partition
        count = len(partition.records) // self._batch_bytes
        if count and int.from_bytes(partition.records[:8], "big") != self.offset:
            raise LoadError(f"fetch at {self.offset} got offset {int.from_bytes(partition.records[:8], 'big')}")
        self.offset += count * self._batch_records
        return count * self._batch_bytes


def _hung_up() -> int:
    raise LoadError("the broker hung up")


# ---- topics


def create_topics(
    connection: Connection,
    names: Sequence[str],
    partitions: int = 1,
    configs: Sequence[str] = (),
    replicas: int = 1,
    patience_s: float = TIMEOUT_S,
    placed: Sequence[Sequence[int]] = (),
) -> None:
    """Make topics and wait until every partition has a leader. One that exists stays.

    configs: `name=value`. placed: the brokers of each partition, the leader first; without it the controller chooses.
    """
    connection.wait(patience_s + 10)  # the broker gives up first, and says so
    settings = [CreatableTopicConfig(name=name, value=value) for name, value in (each.split("=") for each in configs)]
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(some)) for index, some in enumerate(placed)
    ]
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=-1 if placed else partitions,
            replication_factor=-1 if placed else replicas,
            assignments=list(assignments),
            configs=list(settings),
        )
        for name in names
    ]
    response = connection.ask(CreateTopicsRequest(topics=topics, timeout_ms=round(patience_s * 1000)), 5)
    for topic in response.topics:
        if topic.error_code not in (0, TOPIC_EXISTS):
            raise LoadError(f"topic {topic.name}: error {topic.error_code} {topic.error_message}")
    wait_for_leaders(connection, names, partitions, patience_s)


def wait_for_leaders(
    connection: Connection, names: Sequence[str], partitions: int, patience_s: float = TIMEOUT_S
) -> None:
    """Until metadata names a leader for every partition of these topics."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        answer = connection.ask(asked, 9)
        led = sum(part.leader_id >= 0 and not part.error_code for topic in answer.topics for part in topic.partitions)
        if led == partitions * len(names):
            return
        time.sleep(0.002)
    raise LoadError(f"no leaders for {', '.join(names)} in {patience_s:.0f} s")


def delete_topics(connection: Connection, names: Sequence[str]) -> None:
    """Take topics away; their files go some time later."""
    answer = connection.ask(DeleteTopicsRequest(topic_names=list(names), timeout_ms=30_000), 5)
    for topic in answer.responses:
        if topic.error_code:
            raise LoadError(f"cannot delete {topic.name}: error {topic.error_code}")


def wait_until_ready(connection: Connection) -> None:
    """Until metadata names a broker: the node itself, registered and not fenced."""
    deadline = time.monotonic() + TIMEOUT_S
    while not connection.ask(MetadataRequest(topics=[]), 9).brokers:
        if time.monotonic() > deadline:
            raise LoadError("no broker in the metadata")
        time.sleep(0.005)
