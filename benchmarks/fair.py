"""Clients that hurt others, beside one that behaves: how long the good one waits, and what the broker's memory does.

`scripts/bench fair [--rows ROW...]`. Each row is well-formed requests of a hostile shape, sent from processes of their
own to a broker of its own, while a healthy producer sends a record each 20 ms and a healthy member of a group sends a
heartbeat each 100 ms. Printed: the producer's median, 99th percentile and longest wait, errors and rebalances, the
broker's resident memory before, at its peak, and at the end of a rest. Budgets: 100 ms (250 on two busy cores), no
error, 300 MB more at the peak, 20 MB more after the rest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.wire import batch, fetch_frame, frame, produce_frame
from protocol.message import Message
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.control import StopReplicaRequest, StopReplicaTopicV1
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.processes import BrokerProcess, Client

LONGEST_WAIT_MS = 250
MORE_AT_PEAK, MORE_AFTER = 300 << 20, 20 << 20
HEALTHY, GROUP = "healthy", "healthy-group"
SETTINGS = {"group_initial_rebalance_delay_ms": "0", "offsets_topic_num_partitions": "1"}
HEAD = struct.Struct(">i")
HELD_FRAME = 99_000_000


class Outcome(NamedTuple):
    """What a row did to the others. Times in ms, memory in bytes."""

    waits_ms: Sequence[float]
    complaints: Sequence[str]
    before: int
    peak: int
    after: int

    def misses(self) -> list[str]:
        """The budgets that were not kept."""
        longest = max(self.waits_ms, default=0.0)
        return [
            text
            for missed, text in (
                (longest > LONGEST_WAIT_MS, f"waited {longest:.0f} ms"),
                (bool(self.complaints), "; ".join(self.complaints[:2])),
                (self.peak - self.before > MORE_AT_PEAK, f"{(self.peak - self.before) >> 20} MB more at the peak"),
                (self.after - self.before > MORE_AFTER, f"{(self.after - self.before) >> 20} MB more after a rest"),
            )
            if missed
        ]


# ---- attacks: each gets a port, and goes on until it is ended


def again(port: int, data: bytes) -> None:
    """One request after the other, on one connection after the other."""
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            while True:
                client.sendall(data)
                _take(client)


def _take(client: socket.socket) -> None:
    """One answer, thrown away."""
    head = client.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        raise OSError("closed")
    left = HEAD.unpack(head)[0]
    while left > 0:
        got = len(client.recv(min(left, 1 << 20)))
        if not got:
            raise OSError("closed")
        left -= got


def hold(port: int, connections: int, parts: Callable[[], Iterator[bytes]]) -> None:
    """Send some bytes on many connections, read nothing, and begin anew whenever one is closed."""
    clients: list[socket.socket] = []
    while True:
        for _ in range(connections - len(clients)):
            with suppress(OSError):
                client = socket.create_connection(("127.0.0.1", port))
                client.settimeout(2)
                clients.append(client)
                for part in parts():
                    client.sendall(part)
        time.sleep(0.5)
        clients = [each for each in clients if _is_open(each)]


def _is_open(client: socket.socket) -> bool:
    try:
        client.setblocking(False)
        return client.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _describe_configs() -> bytes:
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    return frame(DescribeConfigsRequest(resources=[broker] * 4000), 4)


def _find_coordinator() -> bytes:
    return frame(FindCoordinatorRequest(key_type=0, coordinator_keys=["k"] * 1_000_000), 4)


def _many_coordinators() -> bytes:
    return frame(FindCoordinatorRequest(key_type=0, coordinator_keys=[str(key) for key in range(190_000)]), 4)


def _describe_groups() -> bytes:
    return frame(DescribeGroupsRequest(groups=[GROUP] * 8000), 5)


def _fetch() -> bytes:
    partitions = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in range(49_000)]
    topics = [FetchTopic(topic="made-up", partitions=partitions)]
    return frame(FetchRequest(max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics), 12)


def _metadata() -> bytes:
    topics = [MetadataRequestTopic(name=f"new-{time.time_ns()}-{each}") for each in range(5000)]
    return frame(MetadataRequest(topics=topics), 9)


def _stop_replica() -> bytes:
    topics = [StopReplicaTopicV1(name="t", partition_indexes=list(range(1_900_000)))]
    return frame(StopReplicaRequest(controller_id=1, controller_epoch=1, topics=topics), 1)


def _create_topics() -> bytes:
    topic = CreatableTopic(
        name=f"wide-{time.time_ns()}", num_partitions=10_000, replication_factor=1, assignments=[], configs=[]
    )
    return frame(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 5)


def _half_frame() -> Iterator[bytes]:
    yield HEAD.pack(HELD_FRAME)
    for _ in range(HELD_FRAME // (1 << 20) - 1):
        yield bytes(1 << 20)


def _parked_and_held() -> Iterator[bytes]:
    poll, at = fetch_frame(HEALTHY, max_wait_ms=600_000, partition_bytes=1, min_bytes=1 << 30)
    struct.pack_into(">q", poll, at, 0)
    yield bytes(poll) * 64
    yield HEAD.pack(HELD_FRAME)
    for _ in range(HELD_FRAME // (1 << 20)):
        yield bytes(1 << 20)


def _unread() -> Iterator[bytes]:
    yield frame(ApiVersionsRequest(), 0) * 50_000


ROWS: dict[str, Callable[[int], None]] = {
    "describe-configs": lambda port: again(port, _describe_configs()),
    "describe-groups": lambda port: again(port, _describe_groups()),
    "find-coordinator": lambda port: again(port, _find_coordinator()),
    "many-coordinators": lambda port: again(port, _many_coordinators()),
    "fetch-many": lambda port: again(port, _fetch()),
    "metadata-new-topics": lambda port: again(port, _metadata()),
    "stop-replica": lambda port: again(port, _stop_replica()),
    "create-wide-topic": lambda port: again(port, _create_topics()),
    "half-frames": lambda port: hold(port, 12, _half_frame),
    "parked-and-held": lambda port: hold(port, 30, _parked_and_held),
    "unread-answers": lambda port: hold(port, 60, _unread),
}


# ---- those who behave


class Healthy:
    """A producer and a member of a group, each on a thread."""

    def __init__(self, port: int) -> None:
        self.waits_ms: list[float] = []
        self.complaints: list[str] = []
        self._port = port
        self._begun = 0.0
        self._stop = threading.Event()
        self._data = produce_frame(HEALTHY, [batch(1, 100)], acks=-1)
        self._threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._produce, self._belong)]

    def start(self) -> None:
        """Begin."""
        client = Client(self._port)
        topic = CreatableTopic(name=HEALTHY, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000), 5)
        for thread in self._threads:
            thread.start()

    def waited_ms(self) -> list[float]:
        """All waits, with the one that has not ended."""
        begun = self._begun
        return [*self.waits_ms, *([(time.perf_counter() - begun) * 1000] if begun else [])]

    def stop(self) -> None:
        """End."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.complaints.append(f"{work.__name__} failed: {error!r}")

    def _produce(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not self._stop.wait(0.02):
                self._begun = time.perf_counter()
                client.sendall(self._data)
                _take(client)
                self.waits_ms.append((time.perf_counter() - self._begun) * 1000)
                self._begun = 0.0

    def _belong(self) -> None:
        client = Client(self._port)
        self._until(client, FindCoordinatorRequest(key=GROUP), 3)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id=GROUP, session_timeout_ms=10_000, member_id="", protocol_type="consumer", protocols=protocols
        )
        joined = self._until(client, join, 3)
        assignment = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
        place = {"group_id": GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
        self._until(client, SyncGroupRequest(**place, assignments=assignment), 2)
        while not self._stop.wait(0.1):
            code = client.ask(HeartbeatRequest(**place), 2).error_code
            if code:
                self.complaints.append(f"heartbeat: error {code}")
                return

    def _until(self, client: Client, request: Message, version: int):  # type: ignore[no-untyped-def]
        while True:
            answer = client.ask(request, version)
            if not answer.error_code:
                return answer
            time.sleep(0.1)


def measure(attack: Callable[[int], None], seconds: float, rest_s: float) -> Outcome:
    """One row, on a broker of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="kbroker-fair-") as folder,
        BrokerProcess(Path(folder), **SETTINGS) as broker,
    ):
        healthy = Healthy(broker.port)
        healthy.start()
        time.sleep(2)
        healthy.waits_ms.clear()
        before = peak = broker.rss_bytes
        attacker = multiprocessing.Process(target=attack, args=(broker.port,), daemon=True)
        attacker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            peak = max(peak, broker.rss_bytes)
        attacker.kill()
        attacker.join()
        waits = healthy.waited_ms()
        time.sleep(rest_s)
        outcome = Outcome(waits, list(healthy.complaints), before, peak, broker.rss_bytes)
        healthy.stop()
    return outcome


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench fair", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), metavar="ROW", choices=list(ROWS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default %(default)s)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds after it (default %(default)s)")
    asked = parser.parse_args()
    missed = 0
    print("row                    p50    p99    max ms    n   MB before  peak  after")
    for name in asked.rows:
        outcome = measure(ROWS[name], asked.seconds, asked.rest)
        waits = sorted(outcome.waits_ms) or [0.0]
        at_99 = waits[int(len(waits) * 0.99)]
        numbers = f"{statistics.median(waits):6.1f} {at_99:6.1f} {waits[-1]:9.1f} {len(waits):4}"
        before, peak, after = (size >> 20 for size in (outcome.before, outcome.peak, outcome.after))
        print(f"{name:20} {numbers}  {before:8} {peak:6} {after:5}  {'; '.join(outcome.misses())}", flush=True)
        missed += bool(outcome.misses())
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
