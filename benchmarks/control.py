"""How soon a broker obeys its controller while producers have it saturated: LeaderAndIsr, with its lane and without.

One kbroker in a cluster of its own, one process of producers that never stops (32 connections, five batches of 16 KB
under way on each), and a controller's connection that sends a LeaderAndIsr of ten partitions every 20 ms, each with the
next leader epoch. Three ways to come:

- **own listener**: on that of control.plane.listener.name.
- **known connection**: on the listener that all use, on one connection, which goes first since its first LeaderAndIsr.
- **no lane**: the same, on a new connection for each request, which waits among the producers' for its turn.

The budget, 50 ms at the 99th percentile, is for the first two; the third shows what the lane is worth.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.brokers import HOST, OURS, ROOT, Kbroker
from benchmarks.harness.clusters import Cluster, metadata_server
from benchmarks.harness.report import markdown_table
from benchmarks.harness.rows import BATCH_BYTES, KEEP, MB
from benchmarks.harness.wire import Connection, LoadError, create_topics
from compat_tests.apache import free_port
from protocol.messages.control import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

BUDGET_MS = 50.0
CONNECTIONS, LED = 32, 10
VERSION, METADATA_VERSION = 7, 12
PACE_S = 0.02
WRITTEN, TOLD = "bench-written", "bench-told"
HEADINGS = ("LeaderAndIsr by", "p50", "p99", "longest", "produced meanwhile", "broker's processor", "budget")


class Found(NamedTuple):
    """What one way came to. seconds: of each request. rate: of the producers, bytes a second. cpu: of one core."""

    seconds: list[float]
    rate: float
    cpu: float

    @property
    def p99_ms(self) -> float:
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[98] * 1000


def main() -> int:
    """Measure the three ways; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench control", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=500, help="for each way")
    arguments = parser.parse_args()
    lines, missed = [], False
    for way, is_own, is_kept in (
        ("own listener", True, True),
        ("known connection", False, True),
        ("no lane", False, False),
    ):
        found = measure(arguments.requests, is_own=is_own, is_kept=is_kept)
        misses = is_kept and found.p99_ms > BUDGET_MS
        missed |= misses
        p50, longest = statistics.median(found.seconds) * 1000, max(found.seconds) * 1000
        verdict = "" if not is_kept else f"<= {BUDGET_MS:g} ms: {'MISSED' if misses else 'holds'}"
        cells = f"{p50:.1f} ms", f"{found.p99_ms:.1f} ms", f"{longest:.1f} ms", f"{found.rate / MB:.0f} MB/s"
        lines.append((way, *cells, f"{found.cpu:.0%}", verdict))
        print(*lines[-1], sep="  ", flush=True)
    print(f"\n{markdown_table(HEADINGS, lines)}")
    return int(missed)


def measure(requests: int, *, is_own: bool, is_kept: bool) -> Found:
    """One way, on a broker of its own. is_own: by a listener of its own; is_kept: on one connection."""
    with (
        tempfile.TemporaryDirectory(prefix="kbroker-bench-") as folder,
        running(Path(folder), is_own) as (broker, port),
    ):
        with broker.connect() as connection:
            create_topics(connection, [WRITTEN], CONNECTIONS, configs=KEEP)
            create_topics(connection, [TOLD], LED)
            topic_id = topic_id_of(connection, TOLD)
        with producers(broker) as produced:
            begun, cpu, before = time.perf_counter(), broker.cpu_s(), produced()
            seconds = tell(port, topic_id, requests, is_kept=is_kept)
            took = time.perf_counter() - begun
            return Found(seconds, (produced() - before) / took, (broker.cpu_s() - cpu) / took)


def tell(port: int, topic_id: bytes, requests: int, *, is_kept: bool) -> list[float]:
    """Send them, one after the other's answer; the seconds that each took. Raises: LoadError if one is refused."""
    seconds = []
    kept = Connection(HOST, port)
    for number in range(requests):
        connection = kept if is_kept else Connection(HOST, port)
        request = leader_and_isr(topic_id, leader_epoch=number + 1)
        begun = time.perf_counter()
        answer = connection.ask(request, VERSION)
        seconds.append(time.perf_counter() - begun)
        codes = {answer.error_code, *(part.error_code for each in answer.topics for part in each.partition_errors)}
        if codes != {0}:
            raise LoadError(f"LeaderAndIsr {number}: {sorted(codes)}")
        if not is_kept:
            connection.close()
        time.sleep(PACE_S)
    kept.close()
    return seconds


def leader_and_isr(topic_id: bytes, leader_epoch: int) -> LeaderAndIsrRequest:
    """Ten partitions led by the broker as before, in another epoch."""
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index, controller_epoch=1, leader=1, leader_epoch=leader_epoch, isr=[1],
            partition_epoch=leader_epoch, replicas=[1], adding_replicas=[], removing_replicas=[], is_new=False,
        )
        for index in range(LED)
    ]  # fmt: skip
    topic = LeaderAndIsrTopicState(topic_name=TOLD, topic_id=topic_id, partition_states=states)
    return LeaderAndIsrRequest(controller_id=1, controller_epoch=1, topic_states=[topic], live_leaders=[])


def topic_id_of(connection: Connection, topic: str) -> bytes:
    """As the broker has it."""
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    found: bytes = connection.ask(asked, METADATA_VERSION).topics[0].topic_id
    return found


@contextmanager
def running(folder: Path, is_own: bool) -> Iterator[tuple[Kbroker, int]]:
    """A broker that is its own controller, and the port on which one is to speak to it."""
    with metadata_server(folder / "metadata") as address:
        settings = {"zookeeper.connect": address}
        broker = Kbroker(folder / OURS, settings)
        port = broker.port
        if is_own:
            port = free_port()
            broker.settings |= {
                "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{HOST}:{port}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "control.plane.listener.name": "CONTROLLER",
            }
        try:
            broker.launch()
            Cluster(OURS, [broker]).await_brokers()
            yield broker, port
        finally:
            broker.kill()


@contextmanager
def producers(broker: Kbroker) -> Iterator[Callable[[], int]]:
    """A process of them, which has begun; what is given tells how many bytes they have had answered."""
    command = [sys.executable, "-m", "benchmarks.harness.saturate", str(broker.port), WRITTEN, str(BATCH_BYTES // 1010)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def produced() -> int:
            stdin.write("\n")
            stdin.flush()
            return int(stdout.readline())

        try:
            produced()
            yield produced
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
