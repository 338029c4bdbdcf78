"""Rows over TLS 1.3: what a broker uses of the processor for records that are enciphered on the wire.

Each broker has a listener of TLS, with a certificate of a P-256 key, and one of plain text. The load is that of
`produce-1k` and `fetch`, in turns by the one and the other. A round has a broker of its own, which is warmed up within
it: no other row has a listener more for this. Handshakes are whole ones, one after the other, from this process, whose
own part is in neither number.

Our broker is compared with a bare loop, too (`tls_loop.py`): the same sizes over the same objects of `ssl`, and no more
than that. The loop knows nothing of checksums, logs and answers. What can be held against it is what TLS adds: to the
broker, of what it takes for the same load by plain text, and to the loop.
"""

from __future__ import annotations

import ssl
import statistics
import tempfile
import time
from contextlib import ExitStack
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
WARM, COUNTED = 4, 5  # turns of a round
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
        Metric("adds", "produce, what TLS adds, in terms of what it adds to a bare loop", "x", most=1.15),
        Metric("fetch_adds", "fetch, likewise", "x", most=1.15),
        Metric("times", "produce, all of it, in terms of all of a bare loop", "x"),
        Metric("fetch_times", "fetch, likewise", "x"),
    )
    uses_fresh = True
    records = BATCH_BYTES // 1010

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            plain, port = free_port(), free_port()
            with fresh(kind, settings(kind, authority, port, plain)) as broker:
                broker.port = port
                broker.launch()
                context = authority.context()
                wait(broker, context)
                measured, by_plain_text = self._measure(broker, context, plain)
            if kind == APACHES:
                return measured
            return {**measured, **self._beside_a_loop(measured, by_plain_text, authority, context)}

    def _beside_a_loop(
        self, measured: Measured, by_plain_text: Measured, authority: Authority, context: ssl.SSLContext
    ) -> Measured:
        """What the broker took, in terms of the same bytes through the loop, which warms up, too."""
        request, file = len(produce_frame(TOPIC, [batch(self.records, 1000)])), authority.broker.parent / "loop"
        times = {}
        for kind, of, mode, sizes in (
            ("", "cpu", "in", (request, SMALL_ANSWER)),
            ("fetch_", "fetch_cpu", "out", (SMALL_ANSWER, FETCHED)),
        ):
            count = self.scale.bytes_1k // WARM // max(sizes)
            with (
                Loop(mode, authority.broker, file, *sizes) as loop,
                Loop(mode, None, file.with_suffix(".plain"), *sizes) as plain_loop,
            ):
                took = [(loop.run(context, count), plain_loop.run(None, count)) for _ in range(2 + COUNTED)]
            by_tls, plain = (
                statistics.median(each) / (count * max(sizes)) * GB for each in zip(*took[2:], strict=True)
            )
            times[f"{kind}times"] = measured[of] / by_tls
            times[f"{kind}adds"] = (measured[of] - by_plain_text[of]) / (by_tls - plain)
        return times

    def _measure(self, broker: Broker, context: ssl.SSLContext, plain: int) -> tuple[Measured, Measured]:
        """By TLS, and by plain text at this port."""
        data = batch(self.records, 1000)
        with ExitStack() as connections:
            loads = []
            for made in (connected(broker, context), Connection(HOST, plain)) * 2:
                connections.enter_context(made)
                loads.append(made)
            create_topics(loads[0], [TOPIC], configs=KEEP_TO_READ)
            ends = [
                (
                    Producer(producing, produce_frame(TOPIC, [data])),
                    Consumer(
                        fetching, TOPIC, batch_bytes=len(data), batch_records=self.records, partition_bytes=1 << 20
                    ),
                )
                for producing, fetching in zip(loads[:2], loads[2:], strict=True)
            ]
            count = self.scale.bytes_1k // WARM // len(data)
            turns: list[list[Measured]] = [[], []]
            for turn in range(2 * (WARM + COUNTED)):
                producer, consumer = ends[turn % 2]
                consumer.offset = max(each.offset for _, each in ends)
                turns[turn % 2].append(self._turn(broker, producer, consumer, count, len(data)))
        by_tls, by_plain_text = (
            {key: statistics.median(turn[key] for turn in each[WARM:]) for key in each[0]} for each in turns
        )
        return {**by_tls, "handshake": handshakes(broker, context)}, by_plain_text

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


def settings(kind: str, authority: Authority, port: int, plain: int | None = None) -> dict[str, str]:
    """Of a broker with one listener for clients, or a second one, of plain text at the port `plain`."""
    listeners = f"SSL://{HOST}:{port}" + ("" if plain is None else f",PLAINTEXT://{HOST}:{plain}")
    given = {
        "listeners": listeners,
        "security.inter.broker.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.trust),
    }
    if kind == APACHES:
        controller = free_port()
        given |= {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": listeners,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listener.security.protocol.map": "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
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
