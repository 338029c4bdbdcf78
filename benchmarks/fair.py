"""Clients that hurt others, beside some that behave: how long the good ones wait, and what the broker's memory does.

`scripts/bench fair [--rows ROW...] [--beside-apache]`. Each row is well-formed requests of a hostile shape
(`harness/attacks.py`), or connections that never log in (`harness/before_login.py`, to our broker only), sent from a
process of its own to a broker of its own, or to Apache Kafka's, while a healthy producer sends a record each 20 ms and
others do what clients do (`harness/healthy.py`). Printed, as a table: the
producer's median, 99th percentile and longest wait, the broker's resident memory before, at its peak, and at the end of
a rest, before which the topics that the attack has made, or is still having made, are deleted; errors, rebalances, and
budgets missed. Budgets, of our own broker: 100 ms (`--longest-ms 250` on two busy cores), no error, 300 MB more at the
peak, 20 MB more after the rest. The next rows go on while a broker rests. One that dies, or cannot be asked any more,
is told in its row, and the next row has a new one. Whole, with ten seconds for each attack: some ten minutes, with
Apache's beside it half an hour (`--seconds 5`: twenty minutes).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.attacks import HOSTILE, ROWS
from benchmarks.harness.before_login import ROWS as BEFORE_LOGIN
from benchmarks.harness.before_login import listening
from benchmarks.harness.brokers import APACHES, BROKERS, OURS, Broker
from benchmarks.harness.healthy import Healthy
from protocol.messages.logdirs import DescribeLogDirsRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.topics import DeleteTopicsRequest
from tests.processes import Client

WARM_UP_S = 2.0
DELETED_AT_ONCE = 1_000
GONE_S = {OURS: 180.0, APACHES: 20.0}  # at most, for what an attack has made
HEAD = """| row | broker | p50 ms | p99 ms | longest ms | MB before | at the peak | after | |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
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
    peak: int = 0
    after: int = 0

    def misses(self, longest_ms: float) -> list[str]:
        """The budgets that were not kept."""
        longest = max(self.waits_ms, default=0.0)
        return [
            text
            for missed, text in (
                (longest > longest_ms, f"waited {longest:.0f} ms"),
                (bool(self.complaints), "; ".join(self.complaints[:2])),
                (self.peak - self.before > MORE_AT_PEAK, f"{(self.peak - self.before) >> 20} MB more at the peak"),
                (self.after - self.before > MORE_AFTER, f"{(self.after - self.before) >> 20} MB more after a rest"),
            )
            if missed
        ]


class Row:
    """One attack on a broker of its own, which then rests until its memory is looked at again. A context manager.

    kind: of broker.
    """

    def __init__(self, name: str, kind: str, rest_s: float) -> None:
        self.name, self.kind = name, kind
        self._rest_s = rest_s
        self._rested_s = 0.0  # when that is, on time.monotonic's clock
        self._open = ExitStack()
        self._broker: Broker
        self._outcome = Outcome([], [], 0)

    def attack(self, seconds: float) -> None:
        """Do it beside clients that behave."""
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-fair-")))
        broker = self._open.enter_context(BROKERS[self.kind](folder / self.kind, SETTINGS))
        self._broker, port = broker, broker.port
        if self.name in BEFORE_LOGIN:
            protocol, attack = BEFORE_LOGIN[self.name]
            settings, ports = listening(folder, port)
            broker.settings.update(settings)
            port = ports[protocol]
        else:
            attack = ROWS[self.name]
        broker.launch_ready()
        healthy = Healthy(broker.port)
        healthy.start()
        time.sleep(WARM_UP_S)
        healthy.waits_ms.clear()
        before = broker.rss_bytes()
        attacker = multiprocessing.Process(target=attack, args=(port,), daemon=True)
        attacker.start()
        time.sleep(seconds)
        attacker.kill()
        attacker.join()
        waits = healthy.waited_ms()
        healthy.stop()
        self._outcome = Outcome(waits, healthy.complaints, before)
        try:
            _delete_hostile_topics(broker.port, GONE_S[self.kind])
            self._outcome = self._outcome._replace(peak=broker.peak_rss_bytes())
        except (OSError, EOFError, KeyError) as error:  # KeyError: the kernel says nothing of a process that has ended
            self._lost(error)
        self._rested_s = time.monotonic() + self._rest_s

    def _lost(self, error: Exception) -> None:
        """The broker cannot be asked any more: said before what its clients complain of, which follows from it."""
        what = "cannot be asked any more" if self._broker.alive else "has died"
        self._outcome = self._outcome._replace(complaints=[f"{what} ({error!r})", *self._outcome.complaints])

    @property
    def is_rested(self) -> bool:
        """Whether its time has come."""
        return time.monotonic() >= self._rested_s

    def __enter__(self) -> Row:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ended(self) -> Outcome:
        """Wait for the end of its rest, and end its broker."""
        with self._open:
            time.sleep(max(self._rested_s - time.monotonic(), 0))
            try:
                self._outcome = self._outcome._replace(after=self._broker.rss_bytes())
            except (OSError, KeyError) as error:
                self._lost(error)
            return self._outcome


def _delete_hostile_topics(port: int, patience_s: float) -> None:
    """What an attack has made it may keep; who measures memory takes it away, and what is still being made as well."""
    client = Client(port)
    client.wait(patience_s)
    end = time.monotonic() + patience_s
    while _has_hostile_logs(client) and time.monotonic() < end:
        names = [topic.name for topic in client.ask(MetadataRequest(topics=None), 9).topics]
        hostile = [name for name in names if name.startswith(HOSTILE)]
        for start in range(0, len(hostile), DELETED_AT_ONCE):
            some = hostile[start : start + DELETED_AT_ONCE]
            client.ask(DeleteTopicsRequest(topic_names=some, timeout_ms=120_000), 5)
        time.sleep(1)


def _has_hostile_logs(client: Client) -> bool:
    """Also those of a topic that no client hears of yet, for not all of its partitions are there."""
    directories = client.ask(DescribeLogDirsRequest(topics=None), 1).results
    return any(topic.name.startswith(HOSTILE) for directory in directories for topic in directory.topics)


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench fair", description=__doc__.split("\n\n")[0])
    names = [*ROWS, *BEFORE_LOGIN]
    parser.add_argument("--rows", nargs="*", default=names, metavar="ROW", choices=names)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack (default %(default)s)")
    parser.add_argument("--rest", type=float, default=60.0, help="seconds after it (default %(default)s)")
    parser.add_argument("--longest-ms", type=float, default=100.0, help="the producer may wait (default %(default)s)")
    parser.add_argument("--beside-apache", action="store_true", help="each row on Apache Kafka's broker, too")
    asked = parser.parse_args()
    kinds = [OURS, APACHES] if asked.beside_apache else [OURS]
    print(HEAD, flush=True)
    missed, resting = 0, deque[Row]()
    with ExitStack() as all_rows:
        for name, kind in ((name, kind) for name in asked.rows for kind in kinds):
            if name in BEFORE_LOGIN and kind != OURS:
                continue
            row = all_rows.enter_context(Row(name, kind, asked.rest))
            row.attack(asked.seconds)
            resting.append(row)
            while resting and resting[0].is_rested:
                missed += told(resting.popleft(), asked.longest_ms)
        missed += sum(told(row, asked.longest_ms) for row in resting)
    return 1 if missed else 0


def told(row: Row, longest_ms: float) -> bool:
    """Print a row; whether it misses a budget."""
    outcome = row.ended()
    waits = sorted(outcome.waits_ms) or [0.0]
    at_99 = waits[int(len(waits) * 0.99)]
    before, peak, after = (size >> 20 for size in (outcome.before, outcome.peak, outcome.after))
    misses = "; ".join(outcome.misses(longest_ms)) if row.kind == OURS else "; ".join(outcome.complaints[:2])
    print(
        f"| {row.name} | {row.kind} | {statistics.median(waits):.1f} | {at_99:.1f} | {waits[-1]:.0f} | "
        f"{before} | {peak} | {after} | {misses} |",
        flush=True,
    )
    return row.kind == OURS and bool(misses)


if __name__ == "__main__":
    sys.exit(main())
