"""Rows over TLS 1.3: what a broker uses of the processor for records that are enciphered on the wire.

Each broker has one listener, of TLS, and both have a certificate of a P-256 key. The load is that of `produce-1k` and
`fetch`. A round has a broker of its own, which is warmed up within it: no other row has a listener more for this.
Handshakes are whole ones, one after the other, from this process, whose own part is in neither number.
"""

from __future__ import annotations

import ssl
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness.brokers import APACHES, HOST, Broker
from benchmarks.harness.rows import (
    BATCH_BYTES,
    GB,
    KEEP_TO_READ,
    MB,
    Fresh,
    Measured,
    Metric,
    Row,
    cpu_per_gb,
    rate,
)
from benchmarks.harness.tls_loop import Loop
from benchmarks.harness.wire import (
    Connection,
    Consumer,
    LoadError,
    Producer,
    batch,
    create_topics,
    produce_frame,
    wait_until_ready,
)
from compat_tests.apache import free_port
from tests.certificates import Authority

TOPIC = "bench-tls"
WARM, COUNTED = 4, 3  # turns of a round
HANDSHAKES = 300
START_S = 90.0
SMALL_ANSWER, FETCHED = 64, 1 << 20  # bytes of a request or an answer without records; of one with


class Tls(Row):
    """One connection produces, then one fetches, in turns of which the first warm up; then come handshakes."""

    key = "tls"
    title = "TLS 1.3: produce 1 KB records, fetch, handshakes"
    metrics = (
        cpu_per_gb(0.6)._replace(title="produce, CPU per GB"),
        rate()._replace(title="produce, throughput"),
        cpu_per_gb(0.7)._replace(key="fetch_cpu", title="fetch, CPU per GB"),
        rate()._replace(key="fetch_rate", title="fetch, throughput"),
        Metric("handshake", "CPU per handshake", "us", 1.0),
        Metric("times", "produce, in terms of a bare loop over the same objects", "x", most=1.15),
        Metric("fetch_times", "fetch, likewise", "x", most=1.15),
    )
    uses_fresh = True
    records = BATCH_BYTES // 1010

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            port = free_port()
            with fresh(kind, settings(kind, authority, port)) as broker:
                broker.port = port
                broker.launch()
                context = authority.context()
                wait(broker, context)
                measured = self._measure(broker, context)
            return {**measured, **self._beside_a_loop(measured, authority, context)}

    def _beside_a_loop(self, measured: Measured, authority: Authority, context: ssl.SSLContext) -> Measured:
        """What the broker took, in terms of the same bytes through the loop, which warms up, too."""
        request, file = len(produce_frame(TOPIC, [batch(self.records, 1000)])), authority.broker.parent / "loop"
        times = {}
        for key, of, mode, sizes in (
            ("times", "cpu", "in", (request, SMALL_ANSWER)),
            ("fetch_times", "fetch_cpu", "out", (SMALL_ANSWER, FETCHED)),
        ):
            count = self.scale.bytes_1k // WARM // max(sizes)
            with Loop(mode, authority.broker, file, *sizes) as loop:
                took = [loop.run(context, count) for _ in range(2 + COUNTED)]
            per_gb = statistics.median(took[2:]) / (count * max(sizes)) * GB
            times[key] = measured[of] / per_gb
        return times

    def _measure(self, broker: Broker, context: ssl.SSLContext) -> Measured:
        data = batch(self.records, 1000)
        with connected(broker, context) as producing, connected(broker, context) as fetching:
            create_topics(producing, [TOPIC], configs=KEEP_TO_READ)
            producer = Producer(producing, produce_frame(TOPIC, [data]))
            consumer = Consumer(
                fetching, TOPIC, batch_bytes=len(data), batch_records=self.records, partition_bytes=1 << 20
            )
            count = self.scale.bytes_1k // WARM // len(data)
            turns = [self._turn(broker, producer, consumer, count, len(data)) for _ in range(WARM + COUNTED)]
        medians = {key: statistics.median(turn[key] for turn in turns[WARM:]) for key in turns[0]}
        return {**medians, "handshake": handshakes(broker, context)}

    def _turn(self, broker: Broker, producer: Producer, consumer: Consumer, count: int, size: int) -> Measured:
        before = broker.cpu_s()
        seconds = producer.run(count)
        between = broker.cpu_s()
        took, got = consumer.run(consumer.offset + count * self.records)
        after = broker.cpu_s()
        sent = count * size
        return {
            "cpu": (between - before) / sent * GB,
            "rate": sent / seconds / MB,
            "fetch_cpu": (after - between) / got * GB,
            "fetch_rate": got / took / MB,
        }


def settings(kind: str, authority: Authority, port: int) -> dict[str, str]:
    """Of a broker with one listener for clients."""
    listener = f"SSL://{HOST}:{port}"
    given = {
        "listeners": listener,
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust),
    }
    if kind == APACHES:
        controller = free_port()
        given |= {
            "listeners": f"{listener},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": listener,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT",
        }
    return given


def connected(broker: Broker, context: ssl.SSLContext) -> Connection:
    return Connection(HOST, broker.port, context)


def wait(broker: Broker, context: ssl.SSLContext) -> None:
    """Until it answers."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            with connected(broker, context) as connection:
                wait_until_ready(connection)
                return
        except OSError:
            if not broker.alive or time.monotonic() > deadline:
                raise LoadError(f"{broker.kind} does not listen: {broker.output()[-2000:]}") from None
            time.sleep(0.01)


def handshakes(broker: Broker, context: ssl.SSLContext) -> float:
    """Microseconds of the broker's for one."""
    for counted in (False, True):
        before = broker.cpu_s()
        for _ in range(HANDSHAKES):
            with connected(broker, context) as connection:
                wait_until_ready(connection)
        if counted:
            return (broker.cpu_s() - before) / HANDSHAKES * 1e6
    raise AssertionError


ROWS: tuple[type[Row], ...] = (Tls,)
