"""The rows of the bench: what load each puts on a broker, what is measured, what is allowed.

Run by `benchmarks/broker.py`, one row after the other; a row's rounds go to both brokers in turn. A row knows one
broker at a time and compares nothing. Budgets are those of the design; a row without one is there to be watched.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from benchmarks.harness.brokers import Broker
from benchmarks.harness.floor import Echo
from benchmarks.harness.wire import (
    Connection,
    Consumer,
    Producer,
    batch,
    create_topics,
    delete_topics,
    produce_frame,
)

GB = 1_000_000_000
MB = 1_000_000
BATCH_BYTES = 16_384  # batch.size of Apache's producer
KEEP = ("retention.bytes=134217728", "segment.bytes=67108864")  # of a topic that is written without end
KEEP_TO_READ = ("retention.bytes=536870912", "segment.bytes=134217728")  # and read soon after

Measured = dict[str, float]
Fresh = Callable[[str, dict[str, str]], AbstractContextManager[Broker]]
"""A new broker of this kind with these settings, not yet started, in a folder of its own."""


class Metric(NamedTuple):
    """One number of a row.

    most_ratio: what ours may be as a part of Apache's (with more_is_better: has to be); most: what it may be by itself,
    in `unit`. more_is_better: for throughput. shows_value: false for times and rates of a machine that others use too:
    only their ratio holds. beyond_floor: another metric's key; this one is what is left of that when the floor's is
    taken away.
    """

    key: str
    title: str
    unit: str
    most_ratio: float | None = None
    most: float | None = None
    more_is_better: bool = False
    shows_value: bool = True
    beyond_floor: str = ""

    @property
    def budget(self) -> str:
        """The budget as text; empty if there is none."""
        sign = ">=" if self.more_is_better else "<="
        if self.most is not None:
            return f"{sign} {self.most:g} {self.unit}"
        return "" if self.most_ratio is None else f"{sign} {self.most_ratio:g}x"

    def allows(self, value: float) -> bool | None:
        """Whether a value (with `most`) or a ratio is within the budget; None if there is none."""
        limit = self.most if self.most is not None else self.most_ratio
        if limit is None:
            return None
        return value >= limit if self.more_is_better else value <= limit


class Scale(NamedTuple):
    """How much load a round is.

    rounds: for each broker, interleaved, of a row with a budget; watched_rounds: of one without. warm_most: how many
    go before them, not counted, at most: fewer if both brokers have stopped getting faster (`runner.has_settled`).
    """

    rounds: int
    watched_rounds: int
    warm_most: int
    bytes_1k: int
    bytes_100: int
    pings: int
    requests_100_partitions: int
    fetch_log_bytes: int
    fetch_bytes: int
    memory_bytes: int
    starts: int


QUICK = Scale(
    rounds=3,
    watched_rounds=2,
    warm_most=12,  # a JVM compiles what runs some ten thousand times; below 600 MB it costs three times more
    bytes_1k=200 * MB,
    bytes_100=100 * MB,
    pings=5_000,
    requests_100_partitions=400,
    fetch_log_bytes=200 * MB,
    fetch_bytes=1 * GB,
    memory_bytes=1 * GB,
    starts=2,
)
FULL = Scale(
    rounds=7,
    watched_rounds=3,
    warm_most=10,
    bytes_1k=400 * MB,
    bytes_100=200 * MB,
    pings=15_000,
    requests_100_partitions=1_500,
    fetch_log_bytes=500 * MB,
    fetch_bytes=2 * GB,
    memory_bytes=10 * GB,
    starts=5,
)


class Row:
    """One kind of load: rounds, the first of which warm up; each broker has `prepare` and `fill` before them."""

    key: str
    title: str
    metrics: tuple[Metric, ...]
    uses_fresh = False  # every round starts brokers of its own, by `fresh`
    measures_latency = False  # of single requests, between which cores would fall asleep
    settles_by: str | None = "cpu"  # what of it falls while a broker warms up; None: warm_most rounds, without looking
    peer_rounds = 1000  # with uses_fresh: in how many rounds Apache gets its turn too
    fills = 0  # calls of `fill` for each broker, in turn

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.requests = 0  # sent by all rounds so far

    def prepare(self, broker: Broker) -> None:
        """Make topics, put into them what is to be read."""

    def fill(self, broker: Broker) -> None:
        """Put a part of it into them.

        For what is read from the page cache: what was written first gets the memory that is most scattered, and costs a
        tenth more to read than what half a gigabyte later was written.
        """

    def measure(self, broker: Broker) -> Measured:
        """One round."""
        raise NotImplementedError

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        """One round of a row that starts its own brokers."""
        raise NotImplementedError

    def measure_floor(self, echo: Echo) -> Measured:
        """What a round gives without a broker, where that says something."""
        return {}

    def finish(self, broker: Broker) -> None:
        """Take away what `prepare` made."""

    @property
    def rounds(self) -> int:
        """How many rounds each broker gets."""
        return self.scale.rounds if any(metric.budget for metric in self.metrics) else self.scale.watched_rounds

    @property
    def warm_most(self) -> int:
        """How many rounds go before them, at most."""
        return self.scale.warm_most


def prepare(row: Row, brokers: Sequence[Broker]) -> None:
    """Before a row's first round."""
    for broker in brokers:
        row.prepare(broker)
    for _ in range(row.fills):
        for broker in brokers:
            row.fill(broker)


class Produce(Row):
    """One connection sends batches of one partition, five in flight, acks=1: what a busy producer does."""

    record_bytes: int
    codec = "none"
    acks = 1

    def round_bytes(self) -> int:
        """Bytes of a round."""
        return self.scale.bytes_1k

    def prepare(self, broker: Broker) -> None:
        topic = f"bench-{self.key}"
        records = BATCH_BYTES // (self.record_bytes + 10)  # as many as Apache's producer puts in a batch
        self._payload = records * self.record_bytes
        self._frame = produce_frame(topic, [batch(records, self.record_bytes, self.codec)], self.acks)
        with broker.connect() as connection:
            create_topics(connection, [topic], configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        count = self.round_bytes() // self._payload
        with broker.connect() as connection:
            producer = Producer(connection, self._frame)
            before = broker.cpu_s()
            seconds = producer.run(count)
            used = broker.cpu_s() - before
        self.requests += count
        return {"cpu": used / (count * self._payload) * GB, "rate": count * self._payload / seconds / MB}

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, [f"bench-{self.key}"])


def cpu_per_gb(most_ratio: float | None = None) -> Metric:
    """Processor seconds of the broker for 10^9 bytes of values."""
    return Metric("cpu", "CPU per GB", "s", most_ratio)


def rate(least_ratio: float | None = None) -> Metric:
    """Bytes of values a second; the generator, on the other core, is often what limits it."""
    return Metric("rate", "throughput", "MB/s", least_ratio, more_is_better=True, shows_value=False)


class Produce1K(Produce):
    key = "produce-1k"
    title = "produce, 1 KB records, acks=1"
    metrics = (cpu_per_gb(0.36), rate())
    record_bytes = 1000


class Produce100(Produce):
    key = "produce-100"
    title = "produce, 100 B records, acks=1"
    metrics = (cpu_per_gb(0.35), rate())
    record_bytes = 100

    def round_bytes(self) -> int:
        return self.scale.bytes_100


class PingPong(Row):
    """One small produce at a time, acks=1: the way through a broker that has nothing else to do."""

    key = "pingpong"
    title = "one small produce at a time"
    metrics = (
        Metric("p50", "latency, p50", "us", shows_value=False),
        Metric("p99", "latency, p99", "us", 0.5, shows_value=False),
        Metric("p50_own", "p50 beyond the floor", "us", 0.27, shows_value=False, beyond_floor="p50"),
        Metric("cpu", "CPU per request", "us"),
    )
    measures_latency = True

    def prepare(self, broker: Broker) -> None:
        self._frame = produce_frame("bench-pingpong", [batch(1, 100)])
        with broker.connect() as connection:
            create_topics(connection, ["bench-pingpong"], configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        with broker.connect() as connection:
            producer = Producer(connection, self._frame)
            before = broker.cpu_s()
            seconds = producer.latencies(self.scale.pings)
            used = broker.cpu_s() - before
        self.requests += len(seconds)
        return {**_middle_and_tail(seconds), "cpu": used / len(seconds) * 1e6}

    def measure_floor(self, echo: Echo) -> Measured:
        return _middle_and_tail(echo.latencies(self._frame, self.scale.pings))

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-pingpong"])


def _middle_and_tail(seconds: list[float]) -> Measured:
    hundredths = statistics.quantiles(seconds, n=100)
    return {"p50": hundredths[49] * 1e6, "p99": hundredths[98] * 1e6}


class Partitions100(Row):
    """Requests of 100 partitions, each with a batch of one 100-byte record: what many quiet partitions make."""

    key = "partitions-100"
    title = "100 partitions x 1 batch a request"
    metrics = (Metric("cpu", "CPU per batch", "us", 0.85), Metric("rate", "batches", "1/s", None, None, True, False))
    partitions = 100

    def prepare(self, broker: Broker) -> None:
        self._frame = produce_frame("bench-100", [batch(1, 100)] * self.partitions)
        with broker.connect() as connection:
            create_topics(connection, ["bench-100"], self.partitions, configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        with broker.connect() as connection:
            producer = Producer(connection, self._frame)
            before = broker.cpu_s()
            seconds = producer.run(self.scale.requests_100_partitions)
            used = broker.cpu_s() - before
        self.requests += self.scale.requests_100_partitions
        batches = self.scale.requests_100_partitions * self.partitions
        return {"cpu": used / batches * 1e6, "rate": batches / seconds}

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-100"])


class Fetch(Row):
    """One connection reads a log of 1 KB records in the page cache from its start, again and again, 1 MiB a fetch."""

    key = "fetch"
    title = "fetch from the page cache"
    metrics = (cpu_per_gb(1.0), rate(1.0))
    partition_bytes = 1 << 20  # max.partition.fetch.bytes of Apache's consumer
    records = 16
    fills = 20

    def prepare(self, broker: Broker) -> None:
        self._batch = batch(self.records, 1000)
        self._batches = self.scale.fetch_log_bytes // self.fills // len(self._batch)  # a fill
        with broker.connect() as connection:
            create_topics(connection, ["bench-fetch"])

    def fill(self, broker: Broker) -> None:
        with broker.connect() as connection:
            Producer(connection, produce_frame("bench-fetch", [self._batch])).run(self._batches - 1)  # it has sent one

    def measure(self, broker: Broker) -> Measured:
        with broker.connect() as connection:
            before = broker.cpu_s()
            seconds, size = self._read(connection, self.scale.fetch_bytes)
            used = broker.cpu_s() - before
        return {"cpu": used / size * GB, "rate": size / seconds / MB}

    def _read(self, connection: Connection, wanted: int) -> tuple[float, int]:
        seconds, total = 0.0, 0
        while total < wanted:
            consumer = Consumer(
                connection,
                "bench-fetch",
                batch_bytes=len(self._batch),
                batch_records=self.records,
                partition_bytes=self.partition_bytes,
            )
            took, size = consumer.run(self.fills * self._batches * self.records)
            seconds, total = seconds + took, total + size
            self.requests += consumer.fetches
        return seconds, total

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, ["bench-fetch"])


class Start(Row):
    """From exec to the first acknowledged produce: in a new data directory, and started again on that directory."""

    key = "start"
    title = "exec to first acked produce"
    metrics = (
        Metric("new", "new directory", "s", most=0.12),
        Metric("again", "started again", "s", most=0.12),
        Metric("cpu", "CPU until then, new directory", "s"),
    )
    uses_fresh = True
    peer_rounds = 2  # the budget is no ratio, and Apache's takes ten seconds

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        data = produce_frame("bench-start", [batch(1, 100)])
        with fresh(kind, {}) as broker:
            begun = broker.launch()
            with broker.connect(patience_s=60) as connection:
                create_topics(connection, ["bench-start"])
                Producer(connection, data)  # has been acknowledged once when it is made
                new = time.perf_counter() - begun
                used = broker.cpu_s()
            broker.stop()
            begun = broker.launch()
            with broker.connect(patience_s=60) as connection:
                Producer(connection, data)
                again = time.perf_counter() - begun
        return {"new": new, "again": again, "cpu": used}


class Memory(Row):
    """Resident memory of a new broker, and after data has gone through it both ways: in, and out to a consumer."""

    key = "memory"
    title = "resident memory"
    metrics = (
        Metric("rest", "at rest", "MB", most=26),
        Metric("after", "after the data", "MB", most=32),
    )
    uses_fresh = True
    rest_s = 5.0
    records = BATCH_BYTES // 1010
    turn_bytes = 200 * MB  # written, then read: well before retention takes it away

    @property
    def rounds(self) -> int:
        return 1

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        data = batch(self.records, 1000)
        with fresh(kind, {}) as broker:
            broker.launch()
            with broker.connect(patience_s=60) as connection, broker.connect() as other:
                create_topics(connection, ["bench-memory"], configs=KEEP_TO_READ)
                time.sleep(self.rest_s)
                rest = broker.rss_bytes()
                producer = Producer(connection, produce_frame("bench-memory", [data]))
                consumer = Consumer(
                    other, "bench-memory", batch_bytes=len(data), batch_records=self.records, partition_bytes=1 << 20
                )
                count, left = self.turn_bytes // len(data), self.scale.memory_bytes
                while left > 0:
                    producer.run(count)
                    consumer.run(consumer.offset + count * self.records)
                    left -= self.turn_bytes
                after = broker.rss_bytes()
        return {"rest": rest / MB, "after": after / MB}


class ProduceZstd(Produce):
    key = "produce-zstd"
    title = "produce, 100 B records, zstd"
    metrics = (cpu_per_gb(), rate())
    record_bytes = 100
    codec = "zstd"


class ProduceLz4(ProduceZstd):
    key = "produce-lz4"
    title = "produce, 100 B records, lz4"
    codec = "lz4"


class ProduceAll(Produce):
    key = "produce-all"
    title = "produce, 1 KB records, acks=all, one broker"
    metrics = (cpu_per_gb(), rate())
    record_bytes = 1000
    acks = -1


BUDGETED: tuple[type[Row], ...] = (Produce1K, Produce100, PingPong, Partitions100, Fetch, Start, Memory)
WATCHED: tuple[type[Row], ...] = (ProduceZstd, ProduceLz4, ProduceAll)
