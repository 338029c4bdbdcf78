"""Runs rows: both brokers up, rounds in turn, warm-up until it is one; a row that fails costs only itself.

Called by `benchmarks/broker.py`. Prints every round as it ends. Both brokers run at the same time and get a row's
rounds in turn, so that a slow moment of the machine hits both. Which numbers hold is report.py's business.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.harness.awake import cores_awake
from benchmarks.harness.brokers import BROKERS, FLOOR, Broker, started
from benchmarks.harness.floor import Echo
from benchmarks.harness.report import Outcome, findings
from benchmarks.harness.rows import Fresh, Measured, Row, prepare

FALLING = 0.9
"""A warm-up goes on while the last two rounds took less than this part of what the two before them took."""

Samples = dict[str, list[Measured]]


class Runner:
    """One run of some rows.

    kinds: which brokers. rounds, warm_rounds: instead of the rows' own, where not None. lets_cores_sleep: no spinners
    in rows of latency. publish: told all outcomes so far whenever a row ends.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        folder: Path,
        *,
        rounds: int | None = None,
        warm_rounds: int | None = None,
        lets_cores_sleep: bool = False,
        publish: Callable[[list[Outcome]], None] = lambda outcomes: None,
    ) -> None:
        self._kinds = list(kinds)
        self._folder = folder
        self._rounds = rounds
        self._warm_rounds = warm_rounds
        self._lets_cores_sleep = lets_cores_sleep
        self._publish = publish

    def run(self, rows: Sequence[Row]) -> list[Outcome]:
        """All rows; both brokers stay up for those that need no new ones, which come first."""
        outcomes: list[Outcome] = []

        def ended(outcome: Outcome) -> None:
            outcomes.append(outcome)
            self._publish(outcomes)

        shared = [row for row in rows if not row.uses_fresh]
        with ExitStack() as stack:
            if shared:
                running = [stack.enter_context(started(kind, self._folder / kind)) for kind in self._kinds]
                echo = stack.enter_context(Echo())
            for row in shared:
                ended(self._guarded(row, lambda row=row: self._shared(row, running, echo)))  # type: ignore[misc]
                revive(running)
        for row in rows:
            if row.uses_fresh:
                ended(self._guarded(row, lambda row=row: self._fresh(row)))  # type: ignore[misc]
        return outcomes

    def _guarded(self, row: Row, measure: Callable[[], Outcome]) -> Outcome:
        print(f"\n{row.title}", flush=True)
        begun = time.perf_counter()
        try:
            outcome = measure()
        except Exception as error:  # whatever it is, the other rows are measured all the same
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            outcome = Outcome(row.key, row.title, [], failure=reason)
        seconds = time.perf_counter() - begun
        remark = "" if outcome.settled else f", still falling after {outcome.warm_rounds} rounds of warm-up"
        print(f"  {f'FAILED: {outcome.failure}, ' if outcome.failure else ''}{seconds:.0f} s{remark}", flush=True)
        return outcome._replace(seconds=seconds)

    def _shared(self, row: Row, running: Sequence[Broker], echo: Echo) -> Outcome:
        with prepared(row, running), cores_awake(row.measures_latency and not self._lets_cores_sleep):
            warm: Samples = {broker.kind: [] for broker in running}
            settled = False
            most = row.warm_most if self._warm_rounds is None else self._warm_rounds
            while not settled and len(warm[running[0].kind]) < most:
                self._round(row, running, echo, warm, "warming up")
                settled = row.settles_by is not None and has_settled(warm, row.settles_by)
            samples: Samples = {kind: [] for kind in (*warm, FLOOR)}
            for _ in range(self._rounds or row.rounds):
                self._round(row, running, echo, samples)
        number = len(warm[running[0].kind])
        return Outcome(row.key, row.title, findings(row, samples), number, settled or row.settles_by is None)

    def _round(self, row: Row, running: Sequence[Broker], echo: Echo, into: Samples, remark: str = "") -> None:
        for broker in running:
            _keep(into, broker.kind, row.measure(broker), remark)
        if FLOOR in into and (measured := row.measure_floor(echo)):
            _keep(into, FLOOR, measured, remark)

    def _fresh(self, row: Row) -> Outcome:
        samples: Samples = {kind: [] for kind in self._kinds}
        rounds = self._rounds or row.rounds
        for number in range(rounds):
            for kind in self._kinds:
                if number < row.peer_rounds or kind == self._kinds[0]:
                    _keep(samples, kind, row.measure_fresh(kind, maker(self._folder)))
        return Outcome(row.key, row.title, findings(row, samples))


@contextmanager
def prepared(row: Row, running: Sequence[Broker]) -> Iterator[None]:
    """What the row needs is there within the block; afterwards it is taken away, and if the row failed, tried to."""
    try:
        prepare(row, running)
        yield
    except BaseException:
        for broker in running:
            with suppress(Exception):
                row.finish(broker)
        raise
    for broker in running:
        row.finish(broker)


def revive(running: Sequence[Broker]) -> None:
    """Start again what a row brought down; what it said last is printed."""
    for broker in running:
        if not broker.alive:
            print(f"  {broker.kind} ended: {broker.output()[-2000:]}", flush=True)
            broker.stop()
            broker.launch_ready()


def has_settled(warm: Samples, key: str) -> bool:
    """Whether for no broker the last two rounds took much less than the two before: its compiler has done its work."""
    return all(
        len(rounds) >= 4 and _mean(rounds[-2:], key) >= FALLING * _mean(rounds[-4:-2], key) for rounds in warm.values()
    )


def _mean(rounds: Sequence[Measured], key: str) -> float:
    return statistics.fmean(measured[key] for measured in rounds)


def _keep(samples: Samples, kind: str, measured: Measured, remark: str = "") -> None:
    samples[kind].append(measured)
    print(f"  {kind:8}", "  ".join(f"{key} {value:.4g}" for key, value in measured.items()), remark, flush=True)


def maker(folder: Path) -> Fresh:
    """What rows make brokers of their own with."""

    def fresh(kind: str, settings: dict[str, str]) -> Broker:
        return BROKERS[kind](Path(tempfile.mkdtemp(dir=folder)) / kind, settings)

    return fresh
