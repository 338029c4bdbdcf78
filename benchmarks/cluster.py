"""Three kbroker processes beside three Apache Kafka brokers: replication, failover and what many partitions cost.

Rows of throughput and latency are beside Apache Kafka 4.4.0 (KRaft, 768 MiB of heap each), both clusters up at once and
their rounds in turn; those of a controller are beside Apache Kafka 3.9.1, one cluster after the other on a ZooKeeper of
its own. Rows of a member have one cluster, of Apache Kafka 4.4.0 with a controller and two brokers, and in it a kbroker
and a third of Apache's, which lead or follow in turn; what these use is counted. Printed as every round ends, and as a
Markdown table at the end. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.broker import describe_machine
from benchmarks.harness.awake import cores_awake
from benchmarks.harness.brokers import APACHES, OURS
from benchmarks.harness.cluster_rows import FRESH, FULL, MEMBERS, QUICK, STEADY, ClusterRow, FreshRow, SteadyRow
from benchmarks.harness.clusters import Cluster, cluster, clusters, members
from benchmarks.harness.crowds import raise_file_limit
from benchmarks.harness.ending import run
from benchmarks.harness.report import Finding, Outcome, as_markdown
from benchmarks.harness.rows import Measured
from benchmarks.harness.runner import has_settled
from compat_tests import apache
from compat_tests.apache import ZooKeeper

Samples = dict[str, list[Measured]]
MakeClusters = Callable[[Sequence[str], Path], AbstractContextManager[Sequence[Cluster]]]


def main() -> int:
    """Run the rows asked for; 1 if a budget is missed or a row failed, 2 if the command line is wrong."""
    arguments = _arguments()
    size = QUICK if arguments.quick else FULL
    if arguments.rounds:
        size = size._replace(rounds=arguments.rounds)
    if arguments.warm_rounds is not None:
        size = size._replace(warm_most=arguments.warm_rounds)
    kinds = [OURS] if arguments.alone else [OURS, APACHES]
    wanted = {*arguments.rows} or {row.key for row in (*STEADY, *MEMBERS, *FRESH)}
    on_apaches = [row.key for row in MEMBERS] + [row.key for row in FRESH if row.on_zookeeper]
    needs_java = not arguments.alone or not wanted.isdisjoint(on_apaches)
    if needs_java and (reason := apache.missing()):
        without = ", ".join(on_apaches)
        print(
            f"no Apache Kafka and no ZooKeeper ({reason}): install them, or give --alone and --rows without {without}"
        )
        return 2
    raise_file_limit()
    print(describe_machine("quick" if arguments.quick else "full")["summary"], flush=True)
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-", dir=arguments.folder) as folder:
        bench = Bench(kinds, Path(folder))
        bench.steady([row(size) for row in STEADY if row.key in wanted], clusters)
        bench.steady([row(size) for row in MEMBERS if row.key in wanted], members)
        for row in FRESH:
            if row.key in wanted:
                bench.fresh(row(size))
    print(f"\n{as_markdown(bench.outcomes)}")
    return int(any(each.failure or each.misses for each in bench.outcomes))


def _arguments() -> argparse.Namespace:
    keys = [row.key for row in (*STEADY, *MEMBERS, *FRESH)]
    parser = argparse.ArgumentParser(prog="scripts/bench cluster", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", nargs="*", default=[], choices=keys, metavar="ROW", help=", ".join(keys))
    parser.add_argument("--quick", action="store_true", help="smaller and fewer rounds")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the rows' own")
    parser.add_argument("--warm-rounds", type=int, default=None, help="at most; instead of the rows' own")
    parser.add_argument("--alone", action="store_true", help="kbroker only: values without ratios")
    parser.add_argument("--folder", default=None, help="where data directories go for the time (default: temporary)")
    return parser.parse_args()


class Bench:
    """A run. outcomes: of the rows so far."""

    def __init__(self, kinds: Sequence[str], folder: Path) -> None:
        self.outcomes: list[Outcome] = []
        self._kinds, self._folder = kinds, folder
        self._unsettled: set[str] = set()  # rows whose warm-up was not enough

    def steady(self, rows: Sequence[SteadyRow], make: MakeClusters) -> None:
        """Rows whose rounds go to clusters that stay up, in turn. make: a cluster for each kind."""
        if not rows:
            return
        with make(self._kinds, self._folder) as running:
            for row in rows:
                self._guarded(row, lambda row=row: self._rounds(row, running))  # type: ignore[misc]

    def fresh(self, row: FreshRow) -> None:
        """A row that makes its own, one kind after the other."""
        self._guarded(row, lambda: self._once_each(row))

    def _rounds(self, row: SteadyRow, running: Sequence[Cluster]) -> Samples:
        warm, samples = ({each.kind: list[Measured]() for each in running} for _ in range(2))
        with prepared(row, running), cores_awake(row.measures_latency):
            for _ in range(row.size.warm_most):
                _round(row, running, warm, "warming up")
                if has_settled(warm, "cpu"):
                    break
            else:
                self._unsettled.add(row.key)
            for _ in range(row.size.rounds):
                _round(row, running, samples, "")
        return samples

    def _once_each(self, row: FreshRow) -> Samples:
        samples: Samples = {}
        for kind in self._kinds if row.has_peer else [OURS]:
            with ExitStack() as stack:
                keeper = (
                    stack.enter_context(ZooKeeper(self._folder / f"zookeeper-{kind}")) if row.on_zookeeper else None
                )
                made = stack.enter_context(cluster(kind, self._folder / f"{row.key}-{kind}", zookeeper=keeper))
                samples[kind] = [row.measure(made, keeper.address if keeper else "")]
            _show(kind, samples[kind][0], "")
        return samples

    def _guarded(self, row: ClusterRow, measure: Callable[[], Samples]) -> None:
        print(f"\n{row.title}", flush=True)
        begun, failure, samples = time.perf_counter(), "", Samples()
        try:
            samples = measure()
        except Exception as error:  # whatever it is, the other rows are measured all the same
            traceback.print_exc()
            failure = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        seconds = time.perf_counter() - begun
        found = [] if failure else findings(row, samples)
        print(f"  {failure or 'ended'}, {seconds:.0f} s", flush=True)
        settled = row.key not in self._unsettled
        self.outcomes.append(Outcome(row.key, row.title, found, settled=settled, failure=failure, seconds=seconds))


def _round(row: SteadyRow, running: Sequence[Cluster], into: Samples, remark: str) -> None:
    for each in running:
        into[each.kind].append(row.measure(each))
        _show(each.kind, into[each.kind][-1], remark)


def findings(row: ClusterRow, samples: Samples) -> list[Finding]:
    """A row's metrics, from what its rounds gave for each kind."""
    ours, theirs = (samples.get(kind, []) for kind in (OURS, APACHES))
    return [
        Finding(row.key, row.title, metric, [each[metric.key] for each in ours], [each[metric.key] for each in theirs])
        for metric in row.metrics
    ]


@contextmanager
def prepared(row: SteadyRow, running: Sequence[Cluster]) -> Iterator[None]:
    """What the row needs is there within the block, and taken away afterwards."""
    try:
        for each in running:
            row.begin(each)
        yield
    finally:
        for each in running:
            with suppress(Exception):
                row.end(each)


def _show(kind: str, measured: Measured, remark: str) -> None:
    print(f"  {kind:8}", "  ".join(f"{key} {value:.4g}" for key, value in measured.items()), remark, flush=True)


if __name__ == "__main__":
    run(main)
