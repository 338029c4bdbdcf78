"""Rows about what security costs those who use it: a login before the records, and TLS at a start.

`logged-in`: one broker with a listener of plain text and one of SASL_PLAINTEXT, the same load on both, in turns.
`tls-start`: from exec to the first acknowledged produce, by TLS and by plain text, in turns; each a broker of its own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.harness.brokers import HOST, OURS, Broker
from benchmarks.harness.quota_rows import in_turn
from benchmarks.harness.rows import (
    BATCH_BYTES,
    KEEP_TO_READ,
    Fresh,
    Measured,
    Metric,
    Row,
)
from benchmarks.harness.tls_rows import connected, settings
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
from protocol.messages.handshake import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.certificates import Authority

TOPIC, SMALL = "bench-logged-in", "bench-logged-in-small"
USER, PASSWORD = "bench", "secret"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
WARM, COUNTED = 4, 24  # turns of a round; every other one is of who has logged in
SMALL_COUNT = 8_000
STARTS = 7  # of each kind in a round
START_S = 90.0


class LoggedIn(Row):
    """Produce and fetch, in turns by plain text and by who has logged in."""

    key = "logged-in"
    title = "SASL_PLAINTEXT beside PLAINTEXT: produce 1 KB and single records, fetch"
    metrics = (
        Metric("produce_more", "produce, logged in to not", "x", most=1.02),
        Metric("small_more", "single records, logged in to not", "x", most=1.02),
        Metric("fetch_more", "fetch, logged in to not", "x", most=1.02),
    )
    uses_fresh = True
    settles_by = None
    peer_rounds = 1  # the budget is no ratio to Apache's
    records = BATCH_BYTES // 1010

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        plain, port = free_port(), free_port()
        with fresh(kind, _two_listeners(kind, plain, port)) as broker:
            broker.port = plain
            broker.launch_ready()
            with Connection(HOST, broker.port) as admin:
                create_topics(admin, [TOPIC, SMALL], configs=KEEP_TO_READ)
            return self._measure(broker, port)

    def _measure(self, broker: Broker, port: int) -> Measured:
        data, one = batch(self.records, 1000), batch(1, 100)
        count = self.scale.bytes_1k // 2 // WARM // len(data)
        turns: dict[bool, list[tuple[float, ...]]] = {False: [], True: []}
        with (
            Connection(HOST, broker.port) as plain,
            Connection(HOST, broker.port) as reading,
            Connection(HOST, port) as known,
            Connection(HOST, port) as reading_known,
        ):
            for each in (known, reading_known):
                log_in(each)
            loads = {}
            for is_known, (out, back) in {False: (plain, reading), True: (known, reading_known)}.items():
                consumer = Consumer(
                    back, TOPIC, batch_bytes=len(data), batch_records=self.records, partition_bytes=1 << 20
                )
                loads[is_known] = (
                    Producer(out, produce_frame(TOPIC, [data])),
                    Producer(out, produce_frame(SMALL, [one])),
                    consumer,
                )
            for turn in range(WARM + COUNTED):
                producer, small, consumer = loads[bool(turn % 2)]
                marks = [broker.cpu_s()]
                producer.run(count)
                marks.append(broker.cpu_s())
                small.run(SMALL_COUNT)
                marks.append(broker.cpu_s())
                consumer.run(consumer.offset + count * self.records)
                marks.append(broker.cpu_s())
                if turn >= WARM:
                    turns[bool(turn % 2)].append(tuple(b - a for a, b in pairwise(marks)))
        names = ("produce_more", "small_more", "fetch_more")
        return dict(zip(names, in_turn(turns[True], turns[False]), strict=True))


def _two_listeners(kind: str, plain: int, port: int) -> dict[str, str]:
    """One of plain text, and one that wants a login."""
    listeners = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{port}"
    given = {
        "listeners": listeners,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    }
    if kind == OURS:
        return given
    controller = free_port()
    return given | {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    }


def log_in(connection: Connection) -> None:
    """By PLAIN."""
    token = f"\0{USER}\0{PASSWORD}".encode()
    for request, version in (
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=token), 2),
    ):
        answer = connection.ask(request, version)
        if answer.error_code:
            raise LoadError(f"the login is refused: {answer.error_code}")


class TlsStart(Row):
    """A start by TLS, and one by plain text."""

    key = "tls-start"
    title = "exec to first acked produce, by TLS and by plain text"
    metrics = (
        Metric("tls", "by TLS", "s"),
        Metric("plain", "by plain text", "s"),
        Metric("later", "by TLS, later by", "ms", most=30),
    )
    uses_fresh = True
    settles_by = None
    peer_rounds = 0

    @property
    def rounds(self) -> int:
        return self.scale.starts

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        starts: dict[bool, list[float]] = {False: [], True: []}
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(Path(folder))
            for turn in range(2 * STARTS):
                starts[bool(turn % 2)].append(_start(kind, fresh, authority if turn % 2 else None))
        plain, tls = (statistics.median(starts[each]) for each in (False, True))
        return {"tls": tls, "plain": plain, "later": (tls - plain) * 1000}


def _start(kind: str, fresh: Fresh, authority: Authority | None) -> float:
    """Seconds until a record is acknowledged."""
    data, port = produce_frame("bench-start", [batch(1, 100)]), free_port()
    given = {"listeners": f"PLAINTEXT://{HOST}:{port}"} if authority is None else settings(kind, authority, port)
    context = None if authority is None else authority.context()
    with fresh(kind, given) as broker:
        broker.port = port
        begun = broker.launch()
        while True:
            try:
                connection = Connection(HOST, port) if context is None else connected(broker, context)
                wait_until_ready(connection)
                break
            except OSError:
                if not broker.alive or time.perf_counter() - begun > START_S:
                    raise LoadError(f"{broker.kind} does not listen: {broker.output()[-2000:]}") from None
                time.sleep(0.001)
        with connection:
            create_topics(connection, ["bench-start"])
            Producer(connection, data)
            return time.perf_counter() - begun


ROWS: tuple[type[Row], ...] = (LoggedIn, TlsStart)
