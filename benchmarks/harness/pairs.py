"""Two brokers on one machine: what a second one, with half of the load, gains and costs.

Run by `benchmarks/broker.py` beside the rows of `rows.py`. The two know nothing of each other; each has a topic and a
producer of its own. The producers want processor time too, so that on two cores two brokers cannot be twice one:
beside the throughput stands what a GB costs the brokers.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier

from benchmarks.harness.brokers import Broker
from benchmarks.harness.rows import BATCH_BYTES, GB, KEEP, MB, Measured, Metric, Row, Scale
from benchmarks.harness.wire import LoadError, Producer, batch, create_topics, delete_topics, produce_frame

PATIENCE_S = 120
_FORK = multiprocessing.get_context("fork")


class TwoBrokers(Row):
    """Two producers, first both at one broker, then each at one of its own; the second broker is up all the time."""

    key = "two-brokers"
    title = "two producers, 1 KB records: at one broker, at two"
    metrics = (
        Metric("one", "throughput, one broker", "MB/s", more_is_better=True, shows_value=False),
        Metric("two", "throughput, two brokers", "MB/s", more_is_better=True, shows_value=False),
        Metric("gain", "throughput, two to one", "x", more_is_better=True),
        Metric("cpu", "CPU per GB, one broker", "s"),
        Metric("cpu_two", "CPU per GB, two brokers", "s"),
    )
    settles_by = "cpu_two"  # the colder one

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale)
        self._others: dict[str, Broker] = {}

    def prepare(self, broker: Broker) -> None:
        records = BATCH_BYTES // 1010
        self._payload = records * 1000
        self._frames = [produce_frame(f"bench-pair-{number}", [batch(records, 1000)]) for number in (0, 1)]
        other = type(broker)(broker.folder.with_name(f"{broker.kind}-second"), {})
        self._others[broker.kind] = other
        other.launch_ready()
        for each in (broker, other):
            with each.connect() as connection:
                create_topics(connection, ["bench-pair-0", "bench-pair-1"], configs=KEEP)

    def measure(self, broker: Broker) -> Measured:
        one, cpu = self._load([broker, broker])
        two, cpu_two = self._load([broker, self._others[broker.kind]])
        return {"one": one, "two": two, "gain": two / one, "cpu": cpu, "cpu_two": cpu_two}

    def _load(self, targets: Sequence[Broker]) -> tuple[float, float]:
        """One producer at each; MB a second of both, processor seconds of the brokers per GB."""
        count = self.scale.bytes_1k // 2 // self._payload
        start = _FORK.Barrier(len(targets) + 1)
        producers = [
            _FORK.Process(target=_produce, args=(broker, data, count, start))
            for broker, data in zip(targets, self._frames, strict=True)
        ]
        for producer in producers:
            producer.start()
        start.wait(PATIENCE_S)
        begun, before = time.perf_counter(), _cpu_s(targets)
        for producer in producers:
            producer.join()
        seconds, used = time.perf_counter() - begun, _cpu_s(targets) - before
        if any(producer.exitcode for producer in producers):
            raise LoadError("a producer failed")
        self.requests += count * len(targets)
        size = count * len(targets) * self._payload
        return size / seconds / MB, used / size * GB

    def finish(self, broker: Broker) -> None:
        with self._others.pop(broker.kind):  # its end is all it does
            pass
        with broker.connect() as connection:
            delete_topics(connection, ["bench-pair-0", "bench-pair-1"])


def _produce(broker: Broker, data: bytes, count: int, start: Barrier) -> None:
    with broker.connect() as connection:
        producer = Producer(connection, data)
        start.wait(PATIENCE_S)
        producer.run(count)


def _cpu_s(brokers: Sequence[Broker]) -> float:
    return sum(broker.cpu_s() for broker in set(brokers))


ROWS: tuple[type[Row], ...] = (TwoBrokers,)
