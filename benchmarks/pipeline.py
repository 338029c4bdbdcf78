"""`scripts/bench pipeline`: Spark's Kafka connector on kbroker beside Apache Kafka, and our data source beside it.

And how the jobs' times grow. Both brokers run all the time and serve the same rows in turns, with one Spark session for
all. Rates are the best of a row's turns: the first warms the JVM. Budgets: the connector on kbroker
at least as fast as on Apache's broker; reading segments from disk at least 3 times the connector, over the wire at
least half of it. On a machine with other work look at ratios, and run it again.

    scripts/bench pipeline [--records N] [--jobs-records N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.brokers import APACHES, OURS, Broker, started
from kbroker.pipeline import archive, audit, compact_check, convert, kafka, mirror, profile, register, replay, session
from kbroker.pipeline.columns import encoded
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from protocol.records import Record, legacy

PARTITIONS = 2
KEEP = {"retention.ms": "-1"}
JOBS = ("archive", "replay", "mirror", "audit", "profile", "compact-check", "convert")


def main() -> int:
    """Run all rows; 1 if a budget is missed."""
    options = argparse.ArgumentParser(prog="scripts/bench pipeline")
    options.add_argument("--records", type=int, default=5_000_000, help="of 100 B; a fifth as many of 1 KB")
    options.add_argument(
        "--jobs-records", type=int, default=250_000, help="at first; then twice and four times as many"
    )
    options.add_argument("--turns", type=int, default=3, help="of each row, the best of which counts: 3 warm the JVM")
    options.add_argument("--json", help="write the numbers there")
    given = options.parse_args()
    spark = session.start("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    register(spark)
    shapes = {"100 B": (100, given.records), "1 KB": (1000, given.records // 5)}
    with scratch() as folder:
        rates = measure(spark, folder, shapes, given.turns)
        missed = show_rates(rates)
        times = jobs(spark, folder / "jobs", given.jobs_records)
    show_times(times)
    if given.json:
        Path(given.json).write_text(json.dumps({"rates": rates, "jobs": times}, indent=1) + "\n")
    spark.stop()
    return missed


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="kbroker-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(cluster: Cluster, topic: str, size: int, count: int, keys: int = 0) -> None:
    """Fill a topic with records of so many bytes, in batches of some 100 KB, without Spark."""
    cluster.create(topic, PARTITIONS, KEEP)
    many = max(1, 100_000 // size)
    for partition in range(PARTITIONS):
        left = count // PARTITIONS
        place = (topic, partition)
        now = int(time.time() * 1000) - left
        while left:
            step = min(many, left)
            run = [
                Record(i, now + i, b"key-%d" % (i * i % keys) if keys else None, b"%0*d" % (size, i))
                for i in range(step)
            ]
            repeats = max(1, left // step) if step == many else 1
            batch = bytes(encoded(run))
            cluster.append(place, (batch for _ in range(repeats)))
            left -= step * repeats


def measure(spark: Any, folder: Path, shapes: Mapping[str, tuple[int, int]], turns: int) -> dict[str, dict[str, float]]:
    """Records a second of each row, by broker. Both run all the time, and take turns in each row."""
    rates: dict[str, dict[str, float]] = {OURS: {}, APACHES: {}}
    with ExitStack() as stack:
        brokers = {kind: stack.enter_context(started(kind, folder / kind)) for kind in (OURS, APACHES)}
        for name, (size, count) in shapes.items():
            for broker in brokers.values():
                with Cluster(Source(broker.address).settings) as cluster:
                    load(cluster, f"bench-{size}", size, count)
            for row, records, runners in rows_of(spark, brokers, name, size, count):
                for kind, rate in best(records, runners, turns).items():
                    rates[kind][row] = rate
                print(f"{row}: " + ", ".join(f"{kind} {rates[kind][row]:,.0f}" for kind in runners), file=sys.stderr)
            for broker in brokers.values():  # the disk is needed by the next shape
                with Cluster(Source(broker.address).settings) as cluster:
                    cluster.remove([f"bench-{size}", f"bench-write-{size}"])
    return rates


def rows_of(
    spark: Any, brokers: Mapping[str, Broker], name: str, size: int, count: int
) -> Iterator[tuple[str, int, dict[str, Callable[[], None]]]]:
    """The rows of a shape: name, records of a turn, and what each broker's turn is."""
    topic = f"bench-{size}"
    sources = {kind: Source(broker.address) for kind, broker in brokers.items()}
    for row, tuned in (("connector reads", False), ("connector reads tuned", True)):
        turns = {kind: partial(drain, connected(spark, each, topic, tuned=tuned)) for kind, each in sources.items()}
        yield f"{row} {name}", count, dict(turns)
    yield (
        f"connector writes {name}",
        count // 5,
        {kind: partial(written, spark, each, size, count // 5) for kind, each in sources.items()},
    )
    yield f"source over the wire {name}", count, {OURS: partial(drain, wired(spark, sources[OURS], topic))}
    yield f"source from disk {name}", count, {OURS: partial(drain, on_disk(spark, brokers[OURS], topic))}


def best(count: int, runners: Mapping[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """The best rate of each runner, who take turns: other work on the machine meets all of them."""
    rates: dict[str, float] = dict.fromkeys(runners, 0.0)
    for number in range(turns):
        for kind, turn in sorted(runners.items(), reverse=bool(number % 2)):  # nobody always goes first, or cold
            begun = time.perf_counter()
            turn()
            rates[kind] = max(rates[kind], count / (time.perf_counter() - begun))
    return rates


def drain(frame: Any) -> None:
    """Read all columns and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def connected(spark: Any, source: Source, topic: str, *, tuned: bool) -> Any:
    """The topic through Spark's connector. tuned: with the settings that our jobs use."""
    options = kafka.TUNED if tuned else {}
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).options(**options)
    return reader.option("subscribe", topic).load()


def wired(spark: Any, source: Source, topic: str) -> Any:
    """The topic through our data source, over the wire."""
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    return reader.option("subscribe", topic).load()


def on_disk(spark: Any, broker: Broker, topic: str) -> Any:
    """The topic's segments."""
    return spark.read.format("kbroker").option("subscribe", topic).load(str(broker.folder / "data"))


def written(spark: Any, source: Source, size: int, count: int) -> None:
    """Rows of Spark's own into a topic, through its connector."""
    topic = f"bench-write-{size}"
    with Cluster(source.settings) as cluster:
        if not cluster.has(topic):
            cluster.create(topic, PARTITIONS, KEEP)
    rows = spark.range(0, count, 1, PARTITIONS).selectExpr(f"lpad(cast(id as string), {size}, '0') as value")
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", source.bootstrap)
    writer.option("topic", topic).save()


def jobs(spark: Any, folder: Path, count: int) -> dict[str, list[float]]:
    """Seconds of each job on count, 2 count and 4 count records of 100 B with keys."""
    times: dict[str, list[float]] = {name: [] for name in JOBS}
    with started(OURS, folder) as broker:
        source = Source(broker.address)
        for factor in (1, 2, 4):
            topic, to = f"jobs-{factor}", str(folder / f"archive-{factor}")
            with Cluster(source.settings) as cluster:
                load(cluster, topic, 100, count * factor, keys=1000)
            copy, old = {topic: f"{topic}-copy"}, folder / f"old-{factor}"
            old_log(old, count * factor)
            turns: dict[str, Callable[[], Any]] = {
                "archive": partial(archive.archive, spark, source, [topic], to, until_now=True),
                "replay": partial(replay.replay, spark, source, to, topics=copy),
                "mirror": partial(
                    mirror.mirror, spark, source, source, {topic: f"{topic}-m"}, str(folder / f"m-{factor}")
                ),
                "audit": partial(audited, spark, source, copy),
                "profile": partial(profiled, spark, source, topic),
                "compact-check": partial(compact_check.compact_check, spark, source, [topic]),
                "convert": partial(convert.convert, spark, str(old), str(folder / f"new-{factor}")),
            }
            for name, turn in turns.items():
                begun = time.perf_counter()
                turn()
                spark.catalog.clearCache()
                times[name].append(time.perf_counter() - begun)
                print(f"{name}, {factor} times: {times[name][-1]:.1f} s", file=sys.stderr)
    return times


def old_log(folder: Path, count: int) -> None:
    """A log directory with messages of format v1, a million in a segment."""
    (folder / "old-0").mkdir(parents=True)
    for base in range(0, count, 1_000_000):
        with open(folder / "old-0" / f"{base:020}.log", "wb") as segment:
            for first in range(base, min(count, base + 1_000_000), 1000):
                run = [Record(i, i, b"key-%d" % (i % 1000), b"%0100d" % i) for i in range(first, first + 1000)]
                segment.write(legacy.build_set(run, 1))


def audited(spark: Any, source: Source, names: dict[str, str]) -> None:
    """A copy that is not equal ends the bench."""
    summary = audit.audit(spark, source, source, names)
    assert summary["equal"], summary["differences"]


def profiled(spark: Any, source: Source, topic: str) -> None:
    """All tables of a profile."""
    for table in profile.profile(spark, source, [topic]).values():
        drain(table)


def show_rates(rates: dict[str, dict[str, float]]) -> int:
    """Print the table and the verdicts; 1 if a budget is missed."""
    ours, apaches = rates[OURS], rates[APACHES]
    missed = 0
    print("| records a second | kbroker | Apache Kafka | ratio | budget | |\n|---|---|---|---|---|---|")
    for row, rate in ours.items():
        if row in apaches:
            ratio, budget, beside = rate / apaches[row], 1.0, f"{apaches[row]:,.0f}"
        else:
            connector = ours[
                "connector reads " + row.rpartition(" ")[0].rpartition(" ")[2] + " " + row.rpartition(" ")[2]
            ]
            ratio, budget, beside = rate / connector, 3.0 if "disk" in row else 0.5, "(to the connector)"
        verdict = "holds" if ratio >= budget else "MISSED"
        missed |= ratio < budget
        print(f"| {row} | {rate:,.0f} | {beside} | {ratio:.2f}x | >= {budget}x | {verdict} |", flush=True)
    return int(missed)


def show_times(times: dict[str, list[float]]) -> None:
    """How the jobs grow."""
    print("\n| seconds of a job on | 1 | 2 | 4 times the records | 4 times to 1 |\n|---|---|---|---|---|")
    for name, found in times.items():
        print(f"| {name} | {found[0]:.1f} | {found[1]:.1f} | {found[2]:.1f} | {found[2] / found[0]:.1f}x |")


if __name__ == "__main__":
    sys.exit(main())
