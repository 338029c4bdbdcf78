"""Clients that behave, beside those of `attacks.py`: what they wait for, and what they complain about.

Used by `scripts/bench fair`. Each is a thread with a connection of its own. The producer sends a small record each
20 ms, and its waits are what is measured. The others only complain: a member of a group that must not be thrown out, a
reader of the producer's records, one whose long poll must not end early, a producer of large batches, and an admin who
makes topics and looks who leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from benchmarks.harness.attacks import HEALTHY, HEALTHY_GROUP
from benchmarks.harness.wire import batch, produce_frame
from protocol.message import Message
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.records import Record
from protocol.records.content import build_batch
from tests.frames import take
from tests.processes import Client

QUIET, LARGE = f"{HEALTHY}-quiet", f"{HEALTHY}-large"
LARGE_BYTES = 900_000
QUIET_WAIT_MS = 2_000


class Healthy:
    """All of them. waits_ms: the producer's. complaints: everybody's."""

    def __init__(self, port: int) -> None:
        self.waits_ms: list[float] = []
        self.complaints: list[str] = []
        self._port = port
        self._begun = 0.0
        self._stop = threading.Event()
        work = (self._produce, self._belong, self._read, self._wait_for_news, self._produce_much, self._make_topics)
        self._threads = [threading.Thread(target=self._guarded, args=(each,)) for each in work]

    def start(self) -> None:
        """Make their topics, and begin."""
        client = Client(self._port)
        for name in (HEALTHY, QUIET, LARGE):
            self._make(client, name)
        client.close()
        for thread in self._threads:
            thread.start()

    def waited_ms(self) -> Sequence[float]:
        """All waits, with the one that has not ended."""
        begun = self._begun
        return [*self.waits_ms, *([(time.perf_counter() - begun) * 1000] if begun else [])]

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[Client], None]) -> None:
        client = Client(self._port, "healthy")
        try:
            work(client)
        except Exception as error:
            self.complaints.append(f"{work.__name__.strip('_')}: {error!r}")
        finally:
            client.close()

    def _produce(self, client: Client) -> None:
        client.wait(60)
        data = produce_frame(HEALTHY, [batch(1, 100)], acks=-1)
        while not self._stop.wait(0.02):
            self._begun = time.perf_counter()
            client.socket.sendall(data)
            take(client.socket)
            self.waits_ms.append((time.perf_counter() - self._begun) * 1000)
            self._begun = 0.0

    def _produce_much(self, client: Client) -> None:
        records = bytes(build_batch([Record(0, 0, None, bytes(LARGE_BYTES))]))
        data = PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=LARGE, partition_data=[data])]
        )
        while not self._stop.wait(0.5):
            (answer,) = client.ask(request, 9).responses[0].partition_responses
            _expect_none("produced much", answer.error_code)

    def _read(self, client: Client) -> None:
        offset = 0
        while not self._stop.is_set():
            part = _fetched(client, HEALTHY, offset, 500)
            _expect_none("read", part.error_code)
            offset = part.high_watermark

    def _wait_for_news(self, client: Client) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            _expect_none("waited for news", _fetched(client, QUIET, 0, QUIET_WAIT_MS).error_code)
            waited_ms = (time.monotonic() - begun) * 1000
            if waited_ms < QUIET_WAIT_MS / 2:
                raise AssertionError(f"a long poll ended after {waited_ms:.0f} ms")

    def _make_topics(self, client: Client) -> None:
        number = 0
        wanted = MetadataRequest(topics=[MetadataRequestTopic(name=HEALTHY)])
        leader = client.ask(wanted, 9).topics[0].partitions[0].leader_id
        while not self._stop.wait(2):
            self._make(client, f"{HEALTHY}-{number}")
            number += 1
            led = client.ask(wanted, 9).topics[0].partitions[0].leader_id
            if led != leader:
                raise AssertionError(f"{HEALTHY} is said to be led by {led}")

    def _make(self, client: Client, name: str) -> None:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        (made,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 5).topics
        _expect_none(f"made {name}", made.error_code)

    def _belong(self, client: Client) -> None:
        self._until(client, FindCoordinatorRequest(key=HEALTHY_GROUP), 3)
        join = JoinGroupRequest(
            group_id=HEALTHY_GROUP,
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        joined = self._until(client, join, 3)
        assignment = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
        place = {"group_id": HEALTHY_GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
        self._until(client, SyncGroupRequest(**place, assignments=assignment), 2)
        while not self._stop.wait(0.1):
            _expect_none("heartbeat", client.ask(HeartbeatRequest(**place), 2).error_code)

    def _until(self, client: Client, request: Message, version: int):  # type: ignore[no-untyped-def]
        while True:
            answer = client.ask(request, version)
            if not answer.error_code:
                return answer
            time.sleep(0.1)


def _expect_none(what: str, code: int) -> None:
    if code:
        raise AssertionError(f"{what}: error {code}")


def _fetched(client: Client, topic: str, offset: int, wait_ms: int):  # type: ignore[no-untyped-def]
    """What a long poll of the topic's one partition is answered."""
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_id=0,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return client.ask(request, 11).responses[0].partitions[0]
