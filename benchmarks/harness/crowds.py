"""Rows with many of something: connections, waiting consumers, group members, partitions; and cold reads.

Run by `benchmarks/broker.py` beside those of `rows.py`. The frames are made beforehand here too.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import struct
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness.brokers import Broker
from benchmarks.harness.rows import KEEP, MB, Fresh, Measured, Metric, Row
from benchmarks.harness.wire import (
    Connection,
    Consumer,
    LoadError,
    Producer,
    batch,
    create_topics,
    delete_topics,
    fetch_frame,
    produce_frame,
)
from protocol.messages.embedded import ConsumerProtocolSubscription
from protocol.messages.groups import (
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.stored import encode_versioned

MEMBER_ID_REQUIRED = 79
JOIN_VERSION, SYNC_VERSION = 5, 3
SUBSCRIPTION = encode_versioned(ConsumerProtocolSubscription(topics=["bench-group"]), 1)
"""What members bring. It has to be a real one: Apache's coordinator reads it, and never ends a join it cannot read."""


def raise_file_limit() -> None:
    """As many descriptors as this user may have; brokers started from now on inherit it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Connections(Row):
    """1,000 connections, each sending one small produce a turn: all requests are out before answers are read."""

    key = "connections-1000"
    title = "1,000 connections, one small produce each"
    metrics = (Metric("cpu", "CPU per request", "us", 0.7),)
    connections = 1000
    turns = 10

    def prepare(self, broker: Broker) -> None:
        with broker.connect() as connection:
            create_topics(connection, ["bench-crowd"], configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        data = produce_frame("bench-crowd", [batch(1, 100)])
        with ExitStack() as stack:
            crowd = [stack.enter_context(broker.connect()) for _ in range(self.connections)]
            producers = [Producer(connection, data) for connection in crowd]  # each has asked once
            before = broker.cpu_s()
            for _ in range(self.turns):
                for connection in crowd:
                    connection.send_bytes(data)
                for connection in crowd:
                    connection.frame()
            used = broker.cpu_s() - before
            producers[0].run(1)  # looks at an answer
        count = self.turns * self.connections
        self.requests += count
        return {"cpu": used / count * 1e6}

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-crowd"])


class LongPolls(Row):
    """200 consumers wait at the end of quiet partitions, asking again every 500 ms (fetch.max.wait.ms as shipped)."""

    key = "long-polls"
    title = "200 consumers of quiet partitions"
    metrics = (Metric("busy", "CPU", "%", 0.25),)
    settles_by = "busy"
    consumers = 200
    turns = 6
    max_wait_ms = 500

    def prepare(self, broker: Broker) -> None:
        with broker.connect() as connection:
            create_topics(connection, ["bench-quiet"])

    def measure(self, broker: Broker) -> Measured:
        data, at = fetch_frame("bench-quiet", max_wait_ms=self.max_wait_ms, partition_bytes=1 << 20)
        struct.pack_into(">q", data, at, 0)
        with ExitStack() as stack:
            crowd = [stack.enter_context(broker.connect()) for _ in range(self.consumers)]
            for connection in crowd:  # the first turn spreads them over the half second
                connection.send_bytes(data)
                time.sleep(self.max_wait_ms / 1000 / self.consumers)
            begun, before = time.perf_counter(), broker.cpu_s()
            for _ in range(self.turns):
                for connection in crowd:
                    connection.frame()
                    connection.send_bytes(data)
            used, seconds = broker.cpu_s() - before, time.perf_counter() - begun
            for connection in crowd:
                connection.frame()
        self.requests += self.turns * self.consumers
        return {"busy": 100 * used / seconds}

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-quiet"])


class GroupOf100(Row):
    """100 members join a new group at once, until each has its assignment: beyond group.initial.rebalance.delay.ms."""

    key = "group-100"
    title = "a group of 100 members joins"
    metrics = (
        Metric("stable", "beyond the initial delay", "ms", shows_value=False),
        Metric("cpu", "CPU", "ms"),
    )
    members = 100
    settles_by = None
    delay_s = 2 * 3.0  # as shipped, and once more, for members came during the first
    _serial = 0

    @property
    def warm_most(self) -> int:
        return 2

    def measure(self, broker: Broker) -> Measured:
        GroupOf100._serial += 1
        group = f"bench-group-{os.getpid()}-{GroupOf100._serial}"
        with ExitStack() as stack:
            crowd = [stack.enter_context(broker.connect()) for _ in range(self.members)]
            _find_coordinator(crowd[0], group)
            begun, before = time.perf_counter(), broker.cpu_s()
            _join_and_sync(crowd, group)
            seconds, used = time.perf_counter() - begun, broker.cpu_s() - before
        self.requests += 3 * self.members
        return {"stable": (seconds - self.delay_s) * 1000, "cpu": used * 1000}


def _find_coordinator(connection: Connection, group: str) -> None:
    """Until there is one that takes members: the first group of a broker has its topic made, and loaded."""
    request = FindCoordinatorRequest(key=group, key_type=0)
    deadline = time.monotonic() + 30
    while (
        connection.ask(request, 3).error_code
        or connection.ask(_join(f"{group}-probe", ""), JOIN_VERSION).error_code != MEMBER_ID_REQUIRED
    ):
        if time.monotonic() > deadline:
            raise LoadError("no group coordinator")
        time.sleep(0.05)


def _join_and_sync(crowd: list[Connection], group: str) -> None:
    """The exchange of Kafka's classic consumers: an id for each, a join, the leader's assignments."""
    names = [connection.ask(_join(group, ""), JOIN_VERSION) for connection in crowd]
    if any(answer.error_code != MEMBER_ID_REQUIRED for answer in names):
        raise LoadError(f"JoinGroup: error {names[0].error_code}, not the one that brings a member id")
    for connection, answer in zip(crowd, names, strict=True):
        connection.send(_join(group, answer.member_id), JOIN_VERSION)
    joined = [connection.receive() for connection in crowd]
    if any(answer.error_code for answer in joined):
        raise LoadError(f"JoinGroup: errors {sorted({answer.error_code for answer in joined})}")
    for connection, answer in zip(crowd, joined, strict=True):
        parts = [SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"x" * 40) for each in answer.members]
        request = SyncGroupRequest(
            group_id=group, generation_id=answer.generation_id, member_id=answer.member_id, assignments=parts
        )
        connection.send(request, SYNC_VERSION)
    synced = [connection.receive() for connection in crowd]
    if any(answer.error_code or not answer.assignment for answer in synced):
        raise LoadError(f"SyncGroup: errors {sorted({answer.error_code for answer in synced})}")


def _join(group: str, member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )


class Partitions5000(Row):
    """Five topics of 1,000 partitions in a new broker: made, held in memory, there again after a restart."""

    key = "partitions-5000"
    title = "5,000 partitions"
    metrics = (
        Metric("create", "created, all led", "s", shows_value=False),
        Metric("memory", "resident memory", "MB"),
        Metric("stop", "clean stop", "s", shows_value=False),
        Metric("restart", "exec to first acked produce", "s", shows_value=False),
    )
    uses_fresh = True
    peer_rounds = 1  # Apache's takes a minute and a half
    topics, partitions = 5, 1000

    @property
    def rounds(self) -> int:
        return min(self.scale.starts, 2)

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        names = [f"bench-many-{number}" for number in range(self.topics)]
        data = produce_frame(names[-1], [batch(1, 100)] * self.partitions)
        with fresh(kind, {"log.retention.check.interval.ms": "300000"}) as broker:  # as shipped
            broker.launch()
            with broker.connect(patience_s=60) as connection:
                create_topics(connection, ["bench-start"])
                begun = time.perf_counter()
                create_topics(connection, names, self.partitions)
                Producer(connection, data)
                create = time.perf_counter() - begun
            memory = broker.rss_bytes()
            begun = time.perf_counter()
            broker.stop()
            stop = time.perf_counter() - begun
            os.sync()  # or the start shares the disk with what its predecessor has left to the kernel to write
            begun = broker.launch()
            with broker.connect(patience_s=60) as connection:
                Producer(connection, data)
                restart = time.perf_counter() - begun
        return {"create": create, "memory": memory / MB, "stop": stop, "restart": restart}


class ColdReads(Row):
    """One small produce at a time: alone, and beside a consumer that reads a log which is not in the page cache.

    On two cores a producer, a broker and a consumer get into each other's way, with either broker: beside the same
    read from the page cache shows how much that is. What is more beside the cold one is the disk's doing.
    """

    key = "cold-reads"
    title = "one small produce at a time, beside a reader"
    metrics = (
        Metric("worse", "p99 beside a cold read to p99 alone", "x"),
        Metric("warm", "p99 beside a cached read to p99 alone", "x"),
        Metric("alone", "p99 alone", "us", shows_value=False),
        Metric("cold", "p99 beside a cold read", "us", 0.6, shows_value=False),
    )
    measures_latency = True
    settles_by = None
    cold_bytes = 200 * MB
    records = 16

    @property
    def warm_most(self) -> int:
        return 2

    def prepare(self, broker: Broker) -> None:
        data = batch(self.records, 1000)
        self._batch_bytes = len(data)
        count = self.cold_bytes // len(data)
        self._end_offset = (count + 1) * self.records
        with broker.connect() as connection:
            create_topics(connection, ["bench-cold", "bench-warm"], configs=("segment.bytes=134217728",))
            Producer(connection, produce_frame("bench-cold", [data])).run(count)

    def measure(self, broker: Broker) -> Measured:
        with broker.connect() as connection:
            producer = Producer(connection, produce_frame("bench-warm", [batch(1, 100)]))
            alone = _p99(producer.latencies(self.scale.pings))
            evict(broker.folder, "bench-cold-")
            cold = _p99(self._beside_reader(broker, producer))
            warm = _p99(self._beside_reader(broker, producer))
        return {"worse": cold / alone, "warm": warm / alone, "alone": alone * 1e6, "cold": cold * 1e6}

    def _beside_reader(self, broker: Broker, producer: Producer) -> list[float]:
        reader = multiprocessing.get_context("fork").Process(target=self._read, args=(broker,))
        reader.start()
        seconds: list[float] = []
        while reader.is_alive():
            seconds += producer.latencies(100)
        reader.join()
        if reader.exitcode:
            raise LoadError("the reader failed")
        self.requests += len(seconds)
        return seconds

    def _read(self, broker: Broker) -> None:
        with broker.connect() as connection:
            consumer = Consumer(
                connection,
                "bench-cold",
                batch_bytes=self._batch_bytes,
                batch_records=self.records,
                partition_bytes=1 << 20,
            )
            consumer.run(self._end_offset)

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-cold", "bench-warm"])


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


def evict(folder: Path, prefix: str) -> None:
    """Make the logs of these partitions durable and drop them from the page cache."""
    for path in folder.glob(f"*/{prefix}*/*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


ROWS: tuple[type[Row], ...] = (Connections, LongPolls, GroupOf100, ColdReads, Partitions5000)
