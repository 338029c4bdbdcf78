"""`scripts/bench pipeline`: the pipeline beside plain Spark, and beside itself on more records.

- `rates`: Spark's Kafka connector on kbroker beside Apache Kafka, and our data source beside the connector. All rows of
  a size are the same query of the same records (all columns, thrown away by Spark's `noop`). Budgets: the connector on
  kbroker at least as fast as on Apache's broker; reading segments from disk at least 3 times the connector as it is
  shipped, over the wire 1.5 times.
- `beside`: jobs beside the same work by hand on the connector (harness/pipeline_rows.py).
- `growth`: the jobs on a cluster of two workers, from one to eight million records (harness/pipeline_growth.py).
- `jobs`: the jobs in one process, on 1, 2 and 4 times as many records.

Rows take turns, each turn in another order; one turn that does not count warms the JVM, the Python workers and the page
cache. Printed: the median over the turns, the median of the turns' ratios, the least and the greatest.

    scripts/bench pipeline [--quick] [--records N] [--jobs-records N] [--turns N] [--only PART] [--rows TEXT]
                           [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import pipeline_growth, pipeline_rows
from benchmarks.harness.brokers import APACHES, OURS, Broker, started
from compat_tests import environments
from kbroker.pipeline import archive, audit, compact_check, convert, mirror, profile, register, replay, session
from kbroker.pipeline.columns import encoded
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from protocol.records import Record, legacy
from tests.pipeline.standalone import standalone

PARTITIONS = 2
KEEP = {"retention.ms": "-1"}
TUNED = {
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(32 << 20),
}
PARTS = ("rates", "beside", "growth", "jobs")
JOBS = ("archive", "replay", "mirror", "audit", "profile", "compact-check", "convert")
Rates = dict[tuple[str, str], list[float]]
"""Records a second in each turn that counts, by row and who ran it."""
Runners = Mapping[tuple[str, str], Callable[[], None]]
"""What a turn of each row is."""


def main() -> int:
    """Run all parts; 1 if a budget is missed."""
    given = _arguments()
    parts = [given.only] if given.only else PARTS
    missed = False
    kept: dict[str, Any] = {}
    with scratch() as folder:
        if "growth" in parts:
            kept["growth"] = grown(folder, 100_000 if given.quick else 1_000_000)
            missed |= shown(*pipeline_growth.told(kept["growth"]))
        if "beside" in parts:
            kept["beside"] = beside_plain(folder, given.records, given.turns, given.rows)
            missed |= shown(*pipeline_rows.told(kept["beside"]))
        if "rates" in parts or "jobs" in parts:
            spark = session.start("local[2]", conf={"spark.jars": connector_jars(), **pipeline_rows.SMALL})
            register(spark)
            if "rates" in parts:
                shapes = {"100 B": (100, given.records), "1 KB": (1000, given.records // 5)}
                rates = measure(spark, folder, shapes, given.turns, given.rows)
                kept["rates"] = {" ".join(row): found for row, found in rates.items()}
                missed |= bool(show_rates(rates))
            if "jobs" in parts:
                kept["jobs"] = jobs(spark, folder / "jobs", given.jobs_records)
                show_times(kept["jobs"], given.jobs_records)
            spark.stop()
    if given.json:
        Path(given.json).write_text(json.dumps(kept, indent=1) + "\n")
    return int(missed)


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(prog="scripts/bench pipeline")
    options.add_argument("--quick", action="store_true", help="a million records of 100 B, 50,000 for the jobs")
    options.add_argument("--records", type=int, help="of 100 B; a fifth as many of 1 KB. 5,000,000")
    options.add_argument("--jobs-records", type=int, help="at first; then twice and four times as many. 250,000")
    options.add_argument("--turns", type=int, default=5, help="of each row, behind the one that warms")
    options.add_argument(
        "--rows", default="", metavar="TEXT", help="only rows with this in their names, and rows beside"
    )
    options.add_argument("--only", choices=PARTS, help="one part alone")
    options.add_argument("--json", help="write the numbers there")
    given = options.parse_args()
    given.records = given.records or (1_000_000 if given.quick else 5_000_000)
    given.jobs_records = given.jobs_records or (50_000 if given.quick else 250_000)
    return given


def connector_jars(version: str = "4.2.0") -> str:
    """Spark's Kafka connector and what it needs, as `spark.jars` has them."""
    pom = Path(environments.__file__).with_name("spark.pom.xml")
    return ",".join(map(str, environments.jars_of(pom, f"spark-jars-{version}", {"spark.version": version})))


def shown(lines: Sequence[str], missed: bool) -> bool:
    """Print a table; whether a budget is missed."""
    print(*lines, "", sep="\n", flush=True)
    return missed


def grown(folder: Path, million: int) -> pipeline_growth.Found:
    """Each job on a cluster of two workers, on one to eight million records. million: how many that is."""
    with started(OURS, folder / "growth") as broker:
        topics = {size: f"grow-{size}" for size in (million // 5, million, 2 * million, 4 * million, 8 * million)}
        with Cluster(Source(broker.address).settings) as cluster:
            for size, topic in topics.items():
                load(cluster, topic, 100, size, keys=1000)
        with standalone(folder) as master:
            return pipeline_growth.measured(master, broker.address, folder, topics)


def beside_plain(folder: Path, count: int, turns: int, text: str) -> pipeline_rows.Times:
    """Jobs beside the same work by hand, on so many records of 100 B; those with this text in their rows' names."""
    topic, times = "beside", {}
    with started(OURS, folder / "beside") as broker:
        source = Source(broker.address)
        with Cluster(source.settings) as cluster:
            load(cluster, topic, 100, count, keys=1000)
        if any(text in row for row in ("archive, Parquet", "profile")):
            spark = session.start("local[2]", conf={"spark.jars": connector_jars(), **pipeline_rows.SMALL})
            rows = pipeline_rows.on_this_spark(spark, source, topic, folder)
            times |= pipeline_rows.in_turns(spark, {row: each for row, each in rows.items() if text in row}, turns)
            spark.stop()
        if text in "archive, Iceberg":
            times |= on_4_1(source, topic, turns, folder)
    return times


def on_4_1(source: Source, topic: str, turns: int, folder: Path) -> pipeline_rows.Times:
    """Iceberg's row, in a program of its own on the Spark that there is Iceberg for."""
    older = environments.package("pyspark", "4.1.4")
    tables = environments.jars_of(Path(environments.__file__).with_name("tables-4.1.pom.xml"), "tables-4.1-jars")
    files = ",".join([connector_jars("4.1.3"), *(str(jar) for jar in tables if "iceberg" in jar.name)])
    words = ["-m", "benchmarks.harness.pipeline_rows", source.bootstrap, topic, str(turns), str(folder), files]
    variables = {**os.environ, "PYTHONPATH": str(older)}
    done = subprocess.run([sys.executable, *words], env=variables, stdout=subprocess.PIPE, text=True, check=True)
    times: pipeline_rows.Times = json.loads(done.stdout.splitlines()[-1])
    return times


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


def measure(spark: Any, folder: Path, shapes: Mapping[str, tuple[int, int]], turns: int, text: str) -> Rates:
    """Records a second of each row, by who ran it. text: in the names of the rows that are wanted."""
    rates: Rates = {}
    with ExitStack() as stack:
        brokers = {kind: stack.enter_context(started(kind, folder / kind)) for kind in (OURS, APACHES)}
        for name, (size, count) in shapes.items():
            reading = chosen(readers(spark, brokers, name, size), text)
            writing = chosen(writers(spark, brokers, name, size, count // 5), text)
            for broker in brokers.values():
                with Cluster(Source(broker.address).settings) as cluster:
                    load(cluster, f"bench-{size}", size, count if reading else 0)
            rates |= in_turns(count, reading, turns)
            rates |= in_turns(count // 5, writing, turns)
            for broker in brokers.values():  # the disk is needed by the next shape
                with Cluster(Source(broker.address).settings) as cluster:
                    cluster.remove([f"bench-{size}", f"bench-write-{size}"])
    return rates


def chosen(runners: Runners, text: str) -> Runners:
    """Those with this text in their rows' names, and what stands beside them."""
    wanted = {row for row in runners if text in row[0]}
    wanted |= {beside(*row) for row in wanted}
    return {row: runner for row, runner in runners.items() if row in wanted}


def beside(row: str, kind: str) -> tuple[str, str]:
    """What a row is compared with: the connector as it is shipped, or the same on Apache's broker."""
    if row.startswith("source"):
        return f"connector reads {' '.join(row.split()[-2:])}", kind
    return row, APACHES


def readers(spark: Any, brokers: Mapping[str, Broker], name: str, size: int) -> Runners:
    """Every way to read the topic of a shape."""
    topic = f"bench-{size}"
    sources = {kind: Source(broker.address) for kind, broker in brokers.items()}
    frames = {
        (f"{row} {name}", kind): connected(spark, source, topic, tuned=tuned)
        for row, tuned in (("connector reads", False), ("connector reads tuned", True))
        for kind, source in sources.items()
    }
    frames[f"source over the wire {name}", OURS] = wired(spark, sources[OURS], topic)
    frames[f"source from disk {name}", OURS] = on_disk(spark, brokers[OURS], topic)
    return {row: partial(drain, frame) for row, frame in frames.items()}


def writers(spark: Any, brokers: Mapping[str, Broker], name: str, size: int, count: int) -> Runners:
    """The connector, writing to each broker."""
    return {
        (f"connector writes {name}", kind): partial(written, spark, Source(broker.address), size, count)
        for kind, broker in brokers.items()
    }


def in_turns(count: int, runners: Runners, turns: int) -> Rates:
    """The rates of each runner. They take turns: other work on the machine meets all of them."""
    rates: Rates = {row: [] for row in runners}
    order = list(runners)
    for number in range(turns + 1 if runners else 0):
        for row in order:
            begun = time.perf_counter()
            runners[row]()
            rate = count / (time.perf_counter() - begun)
            print(f"turn {number}: {' '.join(row)} {rate:,.0f}", file=sys.stderr, flush=True)
            if number:  # the first warms
                rates[row].append(rate)
        order = [*order[1::2], *order[::2]]  # none always goes first, or behind the same neighbour
    return rates


def drain(frame: Any) -> None:
    """Read all columns and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def connected(spark: Any, source: Source, topic: str, *, tuned: bool) -> Any:
    """The topic through Spark's connector. tuned: with settings that double its rate."""
    options = TUNED if tuned else {}
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
        for records in (count // 5, count, 2 * count, 4 * count):  # the first warms: a cold JVM would flatter growth
            for name, turn in turns_of_jobs(spark, source, folder / f"{records}", records).items():
                begun = time.perf_counter()
                turn()
                spark.catalog.clearCache()
                seconds = time.perf_counter() - begun
                if records >= count:
                    times[name].append(seconds)
                print(f"{name}, {records:,} records: {seconds:.1f} s", file=sys.stderr)
    return times


def turns_of_jobs(spark: Any, source: Source, folder: Path, count: int) -> dict[str, Callable[[], Any]]:
    """What a turn of each job is, in their order, with so many records to work on."""
    topic, to = f"jobs-{count}", str(folder / "archive")
    with Cluster(source.settings) as cluster:
        load(cluster, topic, 100, count, keys=1000)
    copy, old = {topic: f"{topic}-copy"}, folder / "old"
    old_log(old, count)
    return {
        "archive": partial(archive.archive, spark, source, [topic], to, until_now=True),
        "replay": partial(replay.replay, spark, source, to, topics=copy),
        "mirror": partial(mirror.mirror, spark, source, source, {topic: f"{topic}-m"}, str(folder / "mirror")),
        "audit": partial(audited, spark, source, copy),
        "profile": partial(profiled, spark, source, topic),
        "compact-check": partial(compact_check.compact_check, spark, source, [topic]),
        "convert": partial(convert.convert, spark, str(old), str(folder / "new")),
    }


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


def show_rates(rates: Rates) -> int:
    """Print the table and the verdicts; 1 if a budget is missed."""
    missed = 0
    print("| records a second | kbroker | beside | ratio | budget | |\n|---|---|---|---|---|---|")
    for (row, kind), found in rates.items():
        other = beside(row, kind)
        if kind != OURS or other not in rates:
            continue
        budget = 1.0 if other[1] == APACHES else 3.0 if "disk" in row else 1.5
        named = "Apache Kafka" if other[1] == APACHES else "the connector"
        ratios = [mine / theirs for mine, theirs in zip(found, rates[other], strict=True)]
        ratio, spread = statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
        missed |= ratio < budget
        verdict = "holds" if ratio >= budget else "MISSED"
        theirs = f"{named} {statistics.median(rates[other]):,.0f}"
        mine = f"{statistics.median(found):,.0f}"
        print(f"| {row} | {mine} | {theirs} | {ratio:.2f}x ({spread}) | >= {budget}x | {verdict} |", flush=True)
    return int(missed)


def show_times(times: Mapping[str, list[float]], count: int) -> None:
    """How the jobs grow."""
    print(f"\n| seconds of a job on | {count:,} | {2 * count:,} | {4 * count:,} records | 4 times to 1 |")
    print("|---|---|---|---|---|")
    for name, found in times.items():
        print(f"| {name} | {found[0]:.1f} | {found[1]:.1f} | {found[2]:.1f} | {found[2] / found[0]:.1f}x |")


if __name__ == "__main__":
    sys.exit(main())
