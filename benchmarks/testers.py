"""How long a test waits for its broker, in the ways there are: here, as a process, Apache's; prints a Markdown table.

    scripts/bench testers [ROUNDS]

"First" is from a fresh interpreter, or nothing at all, until one record has been acknowledged; "next" is from the end
of one test until the next has a broker that knows nothing. Beside each stands the processor time of all processes that
took part, which other programs on the machine change less. Medians. Apache's rows need Java, and are left out, visibly,
without. Budgets are the guide's promises: a reset in at most 10 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from compat_tests import apache
from kbroker.testing import Broker, Cluster, UsageError, broker, cluster
from kbroker.testing._helpers import Helpers

ROUNDS = 10
RESET_BUDGET_MS = 10.0
TOPIC = "orders"
MOST_TRIES = 10_000

_FIRST = """
from kbroker.testing import {name}
with {call} as kafka:
    kafka.produce("orders", b"x")
"""


class Took(NamedTuple):
    """Milliseconds by the clock, and of all processors."""

    wall_ms: float
    cpu_ms: float

    def __str__(self) -> str:
        return f"{self.wall_ms:,.1f} ms ({self.cpu_ms:,.1f})"


def measured(rounds: int, once: Callable[[], object]) -> Took:
    """The median of some rounds."""
    walls, cpus = [], []
    for _ in range(rounds):
        began_cpu, began = _cpu_s(), time.perf_counter()
        once()
        walls.append(time.perf_counter() - began)
        cpus.append(_cpu_s() - began_cpu)
    return Took(statistics.median(walls) * 1000, statistics.median(cpus) * 1000)


def _cpu_s() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def first(rounds: int, name: str, call: str) -> Took:
    """A fresh interpreter imports, starts, produces and ends."""
    code = _FIRST.format(name=name, call=call)
    return measured(rounds, lambda: subprocess.run([sys.executable, "-c", code], check=True))


def emptied(rounds: int, kafka: Broker | Cluster) -> Took:
    """A reset of what one test has left: a topic with a record."""
    took: list[Took] = []
    for _ in range(rounds):
        kafka.produce(TOPIC, b"x")
        took.append(measured(1, kafka.reset))
    walls, cpus = zip(*took, strict=True)
    return Took(statistics.median(walls), statistics.median(cpus))


def started_anew() -> None:
    """A broker of its own for one test, once everything is imported."""
    with broker() as kafka:
        kafka.produce(TOPIC, b"x")


def as_a_process() -> None:
    """As tests in other languages have it."""
    command = [sys.executable, "-m", "kbroker.testing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        _produce(json.loads(process.stdout.readline())["bootstrap"])
        process.communicate()


def apaches(how: str) -> None:
    """A broker of Apache's with an empty directory, from jars: `how` is a release in KRaft mode, or ZooKeeper."""
    with tempfile.TemporaryDirectory(prefix="kbroker-testers-") as name:
        if how == "ZooKeeper":
            with apache.zookeeper_cluster(Path(name)) as (one,):
                _produce(one.address)
        else:
            with apache.KraftBroker(how, Path(name)) as server:
                _produce(server.address)


def _produce(address: str) -> None:
    class Far(Helpers):
        """What a test asks of a broker, of one that is somewhere else."""

        @property
        def bootstrap(self) -> str:
            return address

    for _ in range(MOST_TRIES):
        try:
            Far().produce(TOPIC, b"x")
            return
        except UsageError as error:  # Apache's broker tells of a leader a little before it is one
            if "NOT_LEADER_OR_FOLLOWER" not in str(error):
                raise
    raise TimeoutError(f"no leader at {address} after {MOST_TRIES} requests")


def main() -> int:
    """Measure; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench testers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS, metavar="ROUNDS", help="default: %(default)s")
    rounds = parser.parse_args().rounds
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors\n")
    print("| | first (processor time) | next test |\n|---|---|---|")
    with broker() as one, cluster(3) as three:
        resets = emptied(10 * rounds, one), emptied(10 * rounds, three)
    print(f"| `kafka_broker` | {first(rounds, 'broker', 'broker()')} | {resets[0]}, emptied |")
    each = measured(10 * rounds, started_anew)
    print(f"| `broker()` for each test | as above | {each}, a new one |")
    print(f"| `kafka_cluster`, three brokers | {first(rounds, 'cluster', 'cluster(3)')} | {resets[1]}, emptied |")
    print(f"| `python -m kbroker.testing` | {measured(rounds, as_a_process)} | the same again |", flush=True)
    if reason := apache.missing():
        print(f"\nApache's brokers are left out: {reason}")
    else:
        for how, title in (
            (apache.NEWEST, "Apache Kafka 4.4, KRaft"),
            ("ZooKeeper", "Apache Kafka 3.9 with ZooKeeper"),
        ):
            took = measured(max(1, rounds // 4), lambda how=how: apaches(how))  # type: ignore[misc]
            print(
                f"| {title}, as a process, from jars | {took} | the same again, or topics with other names |",
                flush=True,
            )
    is_missed = resets[0].wall_ms > RESET_BUDGET_MS
    if is_missed:
        print(f"\nmissed: a reset takes at most {RESET_BUDGET_MS:.0f} ms")
    return 1 if is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
