"""Clients that hurt others, beside one that behaves: how long the good one waits, and what the broker's memory does.

`scripts/bench fair [--rows ROW...] [--beside-apache]`. Each row is well-formed requests of a hostile shape
(`harness/attacks.py`), sent from a process of its own to a broker of its own, or to Apache Kafka's, while a healthy
producer sends a record each 20 ms and a healthy member of a group sends a heartbeat each 100 ms. Printed: the
producer's median, 99th percentile and longest wait, errors and rebalances, the broker's resident memory before, at its
peak, and at the end of a rest, before which the topics that the attack has made are deleted. Budgets, of our own
broker: 100 ms (250 on two busy cores), no error, 300 MB more at the peak, 20 MB more after the rest.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.attacks import HEALTHY, HEALTHY_GROUP, HOSTILE, ROWS, take
from benchmarks.harness.brokers import APACHES, OURS, started
from benchmarks.harness.wire import batch, produce_frame
from protocol.message import Message
from protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.metadata import MetadataRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from tests.processes import Client

LONGEST_WAIT_MS = 250
MORE_AT_PEAK, MORE_AFTER = 300 << 20, 20 << 20
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "auto.create.topics.enable": "true",
    "log.segment.delete.delay.ms": "1000",
}


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
                take(client)
                self.waits_ms.append((time.perf_counter() - self._begun) * 1000)
                self._begun = 0.0

    def _belong(self) -> None:
        client = Client(self._port)
        self._until(client, FindCoordinatorRequest(key=HEALTHY_GROUP), 3)
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        join = JoinGroupRequest(
            group_id=HEALTHY_GROUP,
            session_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = self._until(client, join, 3)
        assignment = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")]
        place = {"group_id": HEALTHY_GROUP, "generation_id": joined.generation_id, "member_id": joined.member_id}
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


def measure(kind: str, attack: Callable[[int], None], seconds: float, rest_s: float) -> Outcome:
    """One row, on a broker of its own. kind: of broker."""
    with (
        tempfile.TemporaryDirectory(prefix="kbroker-fair-") as folder,
        started(kind, Path(folder) / kind, SETTINGS) as broker,
    ):
        healthy = Healthy(broker.port)
        healthy.start()
        time.sleep(2)
        healthy.waits_ms.clear()
        before = peak = broker.rss_bytes()
        attacker = multiprocessing.Process(target=attack, args=(broker.port,), daemon=True)
        attacker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.05)
            peak = max(peak, broker.rss_bytes())
        attacker.kill()
        attacker.join()
        waits = healthy.waited_ms()
        _delete_hostile_topics(broker.port)
        time.sleep(rest_s)
        outcome = Outcome(waits, list(healthy.complaints), before, peak, broker.rss_bytes())
        healthy.stop()
    return outcome


def _delete_hostile_topics(port: int) -> None:
    """What an attack has made it may keep; who measures memory takes it away."""
    client = Client(port)
    names = [topic.name for topic in client.ask(MetadataRequest(topics=None), 9).topics]
    hostile = [name for name in names if name.startswith(HOSTILE)]
    if hostile:
        client.ask(DeleteTopicsRequest(topic_names=hostile, timeout_ms=30_000), 5)


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench fair", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", nargs="*", default=list(ROWS), metavar="ROW", choices=list(ROWS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default %(default)s)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds after it (default %(default)s)")
    parser.add_argument("--beside-apache", action="store_true", help="each row on Apache Kafka's broker, too")
    asked = parser.parse_args()
    kinds = [OURS, APACHES] if asked.beside_apache else [OURS]
    missed = 0
    print("row                  broker     p50    p99    max ms    n   MB before  peak  after")
    for name, kind in ((name, kind) for name in asked.rows for kind in kinds):
        outcome = measure(kind, ROWS[name], asked.seconds, asked.rest)
        waits = sorted(outcome.waits_ms) or [0.0]
        at_99 = waits[int(len(waits) * 0.99)]
        numbers = f"{statistics.median(waits):6.1f} {at_99:6.1f} {waits[-1]:9.1f} {len(waits):4}"
        before, peak, after = (size >> 20 for size in (outcome.before, outcome.peak, outcome.after))
        misses = "; ".join(outcome.misses())
        print(f"{name:20} {kind:8} {numbers}  {before:8} {peak:6} {after:5}  {misses}", flush=True)
        missed += kind == OURS and bool(misses)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
