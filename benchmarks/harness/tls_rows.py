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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

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
WARM, COUNTED = 4, 10  # turns of a round
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
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            authority = Authority(Path(folder))
            plain, port = free_port(), free_port()
            broker = stack.enter_context(fresh(kind, settings(kind, authority, port, plain)))
            broker.port = port
            broker.launch()
            context = authority.context()
            wait(broker, context)
            loops = ([], []) if kind == APACHES else [self._loops(stack, authority, each) for each in (context, None)]
            by_tls, by_plain_text = self._measure(broker, context, plain, loops)
            medians = {key: statistics.median(turn[key] for turn in by_tls) for key in by_tls[0]}
            return {
                **{key: value for key, value in medians.items() if not key.startswith("loop")},
                "handshake": handshakes(broker, context),
                **({} if kind == APACHES else _beside_a_loop(by_tls, by_plain_text, medians)),
            }

    def _loops(self, stack: ExitStack, authority: Authority, context: ssl.SSLContext | None) -> Sequence[_Beside]:
        """Two, by TLS or by plain text, of the same sizes as the load of a turn."""
        request = len(produce_frame(TOPIC, [batch(self.records, 1000)]))
        own, name = (None, "plain") if context is None else (authority.broker, "tls")
        made = []
        for of, mode, sizes in (("cpu", "in", (request, SMALL_ANSWER)), ("fetch_cpu", "out", (SMALL_ANSWER, FETCHED))):
            loop = stack.enter_context(Loop(mode, own, authority.broker.parent / f"{mode}-{name}", *sizes))
            made.append(_Beside(of, loop, context, self._bytes // max(sizes), max(sizes)))
        return made

    @property
    def _bytes(self) -> int:
        """Of a turn."""
        return self.scale.bytes_1k // 2 // WARM

    def _measure(
        self, broker: Broker, context: ssl.SSLContext, plain: int, loops: Sequence[Sequence[_Beside]]
    ) -> tuple[list[Measured], list[Measured]]:
        """Turns by TLS, and by plain text at this port. loops: beside both."""
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
            turns: tuple[list[Measured], list[Measured]] = ([], [])
            for turn in range(2 * (WARM + COUNTED)):
                producer, consumer = ends[turn % 2]
                consumer.offset = max(each.offset for _, each in ends)
                turns[turn % 2].append(
                    self._turn(broker, producer, consumer, len(data)) | dict(map(_took, loops[turn % 2]))
                )
        return turns[0][WARM:], turns[1][WARM:]

    def _turn(self, broker: Broker, producer: Producer, consumer: Consumer, size: int) -> Measured:
        count = self._bytes // size
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


class _Beside(NamedTuple):
    """A loop beside one of the broker's figures (of), and what it is asked in a turn: so many requests of a size."""

    of: str
    loop: Loop
    context: ssl.SSLContext | None
    count: int
    size: int


def _took(beside: _Beside) -> tuple[str, float]:
    """Seconds of the processor for a GB, as a figure of the turn."""
    return f"loop_{beside.of}", beside.loop.run(beside.context, beside.count) / (beside.count * beside.size) * GB


def _beside_a_loop(by_tls: Sequence[Measured], by_plain_text: Sequence[Measured], medians: Measured) -> Measured:
    """What TLS adds to the broker in terms of what it adds to the loop, of turns next to each other; and the whole."""

    def added(key: str) -> float:
        return statistics.median(one[key] - other[key] for one, other in zip(by_tls, by_plain_text, strict=True))

    return {
        **{f"{name}adds": added(key) / added(f"loop_{key}") for name, key in (("", "cpu"), ("fetch_", "fetch_cpu"))},
        **{
            f"{name}times": medians[key] / medians[f"loop_{key}"]
            for name, key in (("", "cpu"), ("fetch_", "fetch_cpu"))
        },
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
