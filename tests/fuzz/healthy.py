"""A client that behaves: kafka-python produces to a topic of its own and reads it back in a group, until stopped.

Used by the live fuzz. Its complaints are findings: whatever others do to a broker, it sees none of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

RECORDS_PER_S = 50
PATIENCE_S = 30.0
# kafka-python 3.0.12 forgets a rebalance whose end comes when its poll has given up, if news of the topic caused it: it
# has no partitions then, sends no heartbeats, and does not join again. So it polls for longer than a rebalance takes.
POLL_MS = 5_000
REMEMBERED_LINES = 40  # of what its library says


class _Memory(logging.Handler):
    """The last lines of a logger, to be told with a complaint."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
        self.lines: deque[str] = deque(maxlen=REMEMBERED_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


class HealthyClient:
    """received: how many records came back, each once and in order. complaints: what went wrong.

    longest_s: the longest that a record took to be acknowledged, once the first had been.
    """

    def __init__(self, port: int) -> None:
        self.received = 0
        self.complaints: list[str] = []
        self.longest_s = 0.0
        self._begun_s: float | None = None  # when the record left that is under way
        self._topic = f"healthy-{port}-{time.time_ns():x}"  # a name that no damaged frame hits upon
        self._address = f"127.0.0.1:{port}"
        self._sent = 0
        self._stop = threading.Event()
        self._said = _Memory()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,)) for work in (self._produce, self._consume)
        ]

    def __enter__(self) -> Self:
        logging.getLogger("kafka.coordinator").addHandler(self._said)
        logging.getLogger("kafka.coordinator").setLevel(logging.INFO)
        admin = KafkaAdminClient(bootstrap_servers=self._address)
        admin.create_topics([NewTopic(self._topic, 1, 1)])
        admin.close()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if not self.complaints and self.received < self._sent:
            said = "\n".join(self._said.lines)
            self.complaints.append(f"the healthy client got {self.received} of {self._sent} records back:\n{said}")
        logging.getLogger("kafka.coordinator").removeHandler(self._said)

    def waited_s(self) -> float:
        """The longest wait, with the one that has not ended."""
        begun_s = self._begun_s
        return max(self.longest_s, time.monotonic() - begun_s if begun_s is not None else 0.0)

    def _guarded(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except Exception as error:
            self.complaints.append(f"the healthy client failed: {error!r}")

    def _produce(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._address, acks="all", retries=0)
        while not self._stop.wait(1 / RECORDS_PER_S) and not self.complaints:
            self._begun_s = time.monotonic() if self._sent else None
            producer.send(self._topic, b"%d" % self._sent).get(PATIENCE_S)
            self.longest_s, self._begun_s = self.waited_s(), None
            self._sent += 1
        producer.close()

    def _consume(self) -> None:
        consumer = KafkaConsumer(
            self._topic,
            bootstrap_servers=self._address,
            group_id=self._topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            metadata_max_age_ms=500,  # a group whose leader knew no partitions yet is given some with the next look
        )
        deadline = None
        while not self.complaints:
            for records in consumer.poll(timeout_ms=POLL_MS).values():
                for record in records:
                    assert record.value == b"%d" % self.received, f"{record.value!r} instead of {self.received}"
                    self.received += 1
            if self._stop.is_set():
                deadline = deadline or time.monotonic() + PATIENCE_S
                if (not self._threads[0].is_alive() and self.received >= self._sent) or time.monotonic() > deadline:
                    break
        consumer.close()
