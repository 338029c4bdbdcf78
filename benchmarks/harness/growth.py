"""Curves: what a load costs as there is more of something, measured at steps that grow by ten or so.

Run by `benchmarks/curves.py`. A step is a row of the bench with another number in it. Both brokers get a step's rounds
in turn; the first step of a curve warms them up for longer. A broker that fails a step, and a peer one of whose rounds
takes longer than `Grower.most_s`, does not go on to larger ones, and why is kept beside its points. Draws nothing
(`growth_pages.py` does).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.brokers import OURS, Broker, started
from benchmarks.harness.crowds import Connections, GroupOf100
from benchmarks.harness.rows import FULL, MB, Fresh, Measured, Metric, Partitions100, Row, prepare
from benchmarks.harness.runner import maker
from benchmarks.harness.wire import Producer, batch, create_topics, produce_frame

REQUESTS = 5_000  # of a round of connections, or more where each sends one
BATCHES = 50_000  # of a round of partitions in one request; at most REQUESTS requests
TOPIC_PARTITIONS = 1_000
JOIN_DELAY_MS = 1_000

Points = dict[str, dict[str, float]]
"""A measure's medians, by broker and step (as text, as JSON has it)."""


class ConnectionsAt(Connections):
    """So many connections, each sending one small produce a turn."""

    def __init__(self, count: int) -> None:
        super().__init__(FULL)
        self.connections = count
        self.turns = -(-REQUESTS // count)


class PartitionsAt(Partitions100):
    """Requests of so many partitions, with a batch of one small record for each."""

    def __init__(self, count: int) -> None:
        super().__init__(FULL._replace(requests_100_partitions=min(REQUESTS, BATCHES // count)))
        self.partitions = count


class GroupAt(GroupOf100):
    """So many members that join a new group at once. group.initial.rebalance.delay.ms is JOIN_DELAY_MS, to be waited
    for twice."""

    delay_s = 2 * JOIN_DELAY_MS / 1000

    def __init__(self, count: int) -> None:
        super().__init__(FULL)
        self.members = count


class HeldAt(Row):
    """So many partitions in a new broker, in topics of 1,000: made, with a record in each, there after a restart."""

    key = "held"
    title = "partitions of a broker"
    metrics = (
        Metric("memory", "resident memory", "MB"),
        Metric("start", "exec to first acked produce", "s"),
        Metric("create", "created, a record in each", "s"),
    )
    uses_fresh = True

    def __init__(self, count: int) -> None:
        super().__init__(FULL)
        self.count = count

    def measure_fresh(self, kind: str, fresh: Fresh) -> Measured:
        each = min(self.count, TOPIC_PARTITIONS)
        names = [f"bench-many-{number}" for number in range(self.count // each)]
        with fresh(kind, {"log.retention.check.interval.ms": "300000"}) as broker:  # as shipped
            broker.launch()
            with broker.connect(patience_s=60) as connection:
                create_topics(connection, ["bench-start"])
                begun = time.perf_counter()
                for name in names:
                    create_topics(connection, [name], each)
                    Producer(connection, produce_frame(name, [batch(1, 100)] * each))
                create = time.perf_counter() - begun
            memory = broker.rss_bytes()
            broker.stop()
            begun = broker.launch()
            with broker.connect(patience_s=120) as connection:
                Producer(connection, produce_frame(names[-1], [batch(1, 100)]))
                start = time.perf_counter() - begun
        return {"memory": memory / MB, "start": start, "create": create}


class Curve(NamedTuple):
    """One load at growing steps.

    axis: what there is more of. shown: keys of the measures in its picture. warm, rounds: how often each broker is
    measured at a step, before it counts and so that it counts.
    """

    key: str
    title: str
    axis: str
    row: Callable[[int], Row]
    steps: tuple[int, ...]
    shown: tuple[str, ...]
    warm: Callable[[int], int]
    rounds: Callable[[int], int]

    @property
    def metrics(self) -> list[Metric]:
        """Its measures, as the row has them, those of the picture."""
        by_key = {metric.key: metric for metric in self.row(self.steps[0]).metrics}
        return [by_key[key] for key in self.shown]


CURVES = (
    Curve(
        "connections",
        "Connections, each sending one small produce a turn",
        "connections",
        ConnectionsAt,
        (1, 10, 100, 1_000, 10_000),
        ("cpu",),
        warm=lambda step: 4 if step == 1 else 1,
        rounds=lambda step: 3,
    ),
    Curve(
        "batches",
        "Partitions in one produce request, a small batch for each",
        "partitions in a request",
        PartitionsAt,
        (1, 10, 100, 1_000),
        ("cpu",),
        warm=lambda step: 2,
        rounds=lambda step: 3,
    ),
    Curve(
        "group",
        "Members that join a new group at once",
        "members",
        GroupAt,
        (10, 30, 100, 300, 1_000),
        ("stable", "cpu"),
        warm=lambda step: 1,
        rounds=lambda step: 3,
    ),
    Curve(
        "held",
        "Partitions that a broker has, with a record in each",
        "partitions",
        HeldAt,
        (100, 1_000, 5_000, 10_000, 20_000, 50_000),
        ("memory", "start"),
        warm=lambda step: 0,
        rounds=lambda step: 3 if step <= 1_000 else 1,
    ),
)


class Grown(NamedTuple):
    """What a curve gave. samples: by measure, broker and step; ends: why a broker did not go on, by broker."""

    key: str
    samples: dict[str, dict[str, dict[str, list[float]]]]
    ends: dict[str, str]
    seconds: float

    def condensed(self) -> dict[str, Any]:
        """What is kept of it: medians of the rounds."""
        points = {
            measure: {
                kind: {step: float(f"{statistics.median(values):.4g}") for step, values in steps.items()}
                for kind, steps in kinds.items()
            }
            for measure, kinds in self.samples.items()
        }
        return {"points": points, "ends": self.ends}


class Grower:
    """One run of some curves. kinds: which brokers. most_s: what a peer's round may take, for it to be asked for more.

    most_step: larger ones are left out. rounds: instead of the curves' own.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        folder: Path,
        *,
        most_s: float,
        most_step: int | None = None,
        rounds: int | None = None,
    ) -> None:
        self._kinds = list(kinds)
        self._folder = folder
        self._most_s = most_s
        self._most_step = most_step
        self._rounds = rounds

    def run(self, curves: Sequence[Curve]) -> Iterator[Grown]:
        """All curves; those that do not start brokers of their own share two."""
        shared = [curve for curve in curves if not curve.row(curve.steps[0]).uses_fresh]
        with ExitStack() as stack:
            settings = {"group.initial.rebalance.delay.ms": str(JOIN_DELAY_MS)}
            brokers = {
                kind: stack.enter_context(started(kind, self._folder / kind, settings))
                for kind in self._kinds
                if shared
            }
            for curve in shared:
                yield self._grow(curve, brokers)
        for curve in curves:
            if curve not in shared:
                yield self._grow(curve, {})

    def _grow(self, curve: Curve, brokers: dict[str, Broker]) -> Grown:
        print(f"\n{curve.title}", flush=True)
        begun = time.perf_counter()
        grown = Grown(curve.key, {key: {kind: {} for kind in self._kinds} for key in curve.shown}, {}, 0)
        going = list(self._kinds)
        for step in curve.steps:
            if self._most_step is None or step <= self._most_step:
                self._step(curve, step, going, brokers, grown)
        return grown._replace(seconds=time.perf_counter() - begun)

    def _step(self, curve: Curve, step: int, going: list[str], brokers: dict[str, Broker], grown: Grown) -> None:
        """Measure one step. going: brokers that are still asked; who is not to go on is taken out."""
        row, warm = curve.row(step), curve.warm(step)
        longest = dict.fromkeys(going, 0.0)
        with ExitStack() as stack:
            for kind in going[:]:
                with self._or_ends(kind, step, going, grown):
                    if brokers:
                        stack.enter_context(_prepared(row, brokers[kind]))
            for number in range(warm + (self._rounds or curve.rounds(step))):
                for kind in going[:]:
                    with self._or_ends(kind, step, going, grown):
                        begun = time.perf_counter()
                        measured = self._measure(row, kind, brokers)
                        longest[kind] = max(longest[kind], time.perf_counter() - begun)
                        _told(curve, step, kind, measured, "warming up" if number < warm else "")
                        if number >= warm:
                            for key in curve.shown:
                                grown.samples[key][kind].setdefault(str(step), []).append(measured[key])
        for kind in going[:]:
            if kind != OURS and longest[kind] > self._most_s and step != curve.steps[-1]:
                going.remove(kind)
                grown.ends[kind] = f"not asked for more than {step:,}, where a round took {longest[kind]:.0f} s"

    def _measure(self, row: Row, kind: str, brokers: dict[str, Broker]) -> Measured:
        if brokers:
            return row.measure(brokers[kind])
        return row.measure_fresh(kind, maker(self._folder))

    @contextmanager
    def _or_ends(self, kind: str, step: int, going: list[str], grown: Grown) -> Iterator[None]:
        """A broker that fails goes no further, and the other one does."""
        try:
            yield
        except Exception as error:  # whatever it is
            if kind in going:
                going.remove(kind)
            grown.ends[kind] = f"failed at {step:,}: {type(error).__name__}: {error}".split("\n")[0][:200]
            print(f"  {kind} {grown.ends[kind]}", flush=True)


@contextmanager
def _prepared(row: Row, broker: Broker) -> Iterator[None]:
    prepare(row, [broker])
    try:
        yield
    finally:
        with suppress(Exception):  # a broker that failed the step may not take it away either
            row.finish(broker)


def _told(curve: Curve, step: int, kind: str, measured: Measured, remark: str) -> None:
    values = ", ".join(f"{measured[each.key]:.4g} {each.unit}" for each in curve.metrics)
    print(f"  {step:>6,} {kind:8} {values} {remark}".rstrip(), flush=True)
