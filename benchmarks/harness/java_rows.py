"""Rows whose load comes from Apache's own clients: kafka-producer-perf-test and kafka-consumer-perf-test.

Run by `benchmarks/broker.py`. These clients cost more processor time than either broker; they show that what the
raw-socket rows find holds for the load that people know.
"""

from __future__ import annotations

import re
import subprocess

from benchmarks.harness.brokers import RELEASE, Broker
from benchmarks.harness.rows import GB, KEEP, MB, Measured, Row, cpu_per_gb, rate
from benchmarks.harness.wire import LoadError, create_topics, delete_topics
from compat_tests.apache import run_tool

_PRODUCED = re.compile(r"^(\d+) records sent.*?\(([\d.]+) MB/sec\)", re.MULTILINE)
RECORD_BYTES = 1000
MIB = 1 << 20


def run_client(main_class: str, *arguments: str) -> str:
    """What the program printed. Raises LoadError if it failed."""
    done: subprocess.CompletedProcess[str] = run_tool(RELEASE, main_class, *arguments, timeout_s=600)
    if done.returncode:
        raise LoadError(f"{main_class}: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


class JavaRow(Row):
    """A row whose topic is written by Apache's producer."""

    @property
    def _count(self) -> int:
        return self.scale.bytes_1k // RECORD_BYTES

    @property
    def _topic(self) -> str:
        return f"bench-{self.key}"

    def _produce(self, broker: Broker) -> float:
        """Send a round's records; MB/s as the client counted them."""
        said = run_client(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--bootstrap-server", broker.address, "--topic", self._topic, "--num-records", str(self._count)),
            *("--record-size", str(RECORD_BYTES), "--throughput", "-1", "--command-property", "acks=1"),
            *("enable.idempotence=false",),
        )
        totals = _PRODUCED.findall(said)
        if not totals or int(totals[-1][0]) != self._count:
            raise LoadError(f"not all records were sent: {said[-1000:]}")
        return float(totals[-1][1]) * MIB / MB

    def finish(self, broker: Broker) -> None:
        with broker.connect() as connection:
            delete_topics(connection, [self._topic])


class JavaProduce(JavaRow):
    key = "java-produce"
    title = "kafka-producer-perf-test, 1 KB records, acks=1"
    metrics = (cpu_per_gb(), rate())

    def prepare(self, broker: Broker) -> None:
        with broker.connect() as connection:
            create_topics(connection, [self._topic], configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        before = broker.cpu_s()
        produced = self._produce(broker)
        used = broker.cpu_s() - before
        return {"cpu": used / (self._count * RECORD_BYTES) * GB, "rate": produced}


class JavaConsume(JavaRow):
    key = "java-consume"
    title = "kafka-consumer-perf-test"
    metrics = (cpu_per_gb(), rate())

    def prepare(self, broker: Broker) -> None:
        with broker.connect() as connection:
            create_topics(connection, [self._topic])
        self._produce(broker)

    def measure(self, broker: Broker) -> Measured:
        before = broker.cpu_s()
        said = run_client(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", broker.address, "--topic", self._topic, "--num-records", str(self._count)),
        )
        used = broker.cpu_s() - before
        names, values = (line.split(", ") for line in said.strip().splitlines()[-2:])
        found = dict(zip(names, values, strict=True))
        if int(found["data.consumed.in.nMsg"]) < self._count:
            raise LoadError(f"not all records came: {said}")
        rate_mb = float(found["data.consumed.in.MB"]) / (float(found["fetch.time.ms"]) / 1000) * MIB / MB
        return {"cpu": used / (self._count * RECORD_BYTES) * GB, "rate": rate_mb}


ROWS: tuple[type[Row], ...] = (JavaProduce, JavaConsume)
