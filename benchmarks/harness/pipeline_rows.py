"""Jobs of `kbroker pipeline` beside the same work by hand: plain Spark on its Kafka connector, as engineers write it.

Called by benchmarks/pipeline.py. A row is a job of ours and what does the same: both read the same topic, write to the
same disk, in one session, in turns. Plain archives are streams with a checkpoint, up to now, for that is what takes
each record once; the plain profile reads the topic once, keeps small columns and makes the same tables of them.

As a program it measures Iceberg's row, in a session on Spark 4.1: there is no Iceberg for the Spark of the other rows.

    python -m benchmarks.harness.pipeline_rows BOOTSTRAP TOPIC TURNS FOLDER JAR,JAR...
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from kbroker.pipeline import archive, jars, profile, session
from kbroker.pipeline.archive import Kind
from kbroker.pipeline.kafka import Source

OURS, PLAIN = "kbroker", "plain"
CPU = "processor time"
BUDGETS = {"archive, Parquet": 0.8, "archive, Iceberg": 1.1, "profile": 0.7}
"""What share of the plain job's time ours may take."""
Times = dict[str, dict[str, list[float]]]
"""Seconds of each turn that counts, by row and who ran it; and, as `CPU` and who, of processors: what Spark's JVM and
its Python workers took. On a machine with other work that says more."""
SMALL = {"spark.sql.shuffle.partitions": "2"}


def in_turns(spark: Any, rows: Mapping[str, Mapping[str, Callable[[], None]]], turns: int) -> Times:
    """Run ours and the plain one by turns, each turn in another order; one that does not count warms."""
    jvm = spark.sparkContext._gateway.proc.pid
    times: Times = {row: {f"{what}{kind}": [] for what in ("", f"{CPU}, ") for kind in (OURS, PLAIN)} for row in rows}
    for row, runners in rows.items():
        order = [OURS, PLAIN]
        for number in range(turns + 1):
            for kind in order:
                begun, used = time.perf_counter(), processor_s(jvm)
                runners[kind]()
                seconds, used = time.perf_counter() - begun, processor_s(jvm) - used
                print(f"turn {number}: {row} {kind} {seconds:.1f} s, {CPU} {used:.1f} s", file=sys.stderr, flush=True)
                if number:
                    times[row][kind].append(seconds)
                    times[row][f"{CPU}, {kind}"].append(used)
            order.reverse()
    return times


def processor_s(root: int) -> float:
    """Seconds of processors that a process and all below it have used, those that have ended too."""
    below: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            below.setdefault(int(fields[1]), []).append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    found, line = 0, [root]
    while line:
        process = line.pop()
        found += ticks.get(process, 0)
        line += below.get(process, [])
    return found / os.sysconf("SC_CLK_TCK")


def on_this_spark(spark: Any, source: Source, topic: str, folder: Path) -> dict[str, dict[str, Callable[[], None]]]:
    """The rows for which there is no need of another Spark."""
    fresh = (folder / f"{number}" for number in count())
    return {
        "archive, Parquet": {
            OURS: lambda: ours(spark, source, topic, next(fresh)),
            PLAIN: lambda: plain_parquet(spark, source, topic, next(fresh)),
        },
        "profile": {
            OURS: partial(drained, lambda: profile.profile(spark, source, [topic])),
            PLAIN: partial(drained, lambda: plain_profile(spark, source, topic)),
        },
    }


def ours(spark: Any, source: Source, topic: str, folder: Path, form: str = "parquet") -> None:
    """The job, into a new folder, which is gone afterwards."""
    archive.archive(spark, source, [topic], str(folder), until_now=True, kind=Kind(form))
    shutil.rmtree(folder)


def drained(tables: Callable[[], Mapping[str, DataFrame]]) -> None:
    """Make all tables of a profile."""
    found = tables()
    for table in found.values():
        table.write.format("noop").mode("overwrite").save()
    for frame in found.values():
        frame.sparkSession.catalog.clearCache()
        break


# ---- by hand


def connector(spark: Any, source: Source, topic: str, *, stream: bool) -> Any:
    """The topic through Spark's connector, with headers, as the jobs have them."""
    reader = (spark.readStream if stream else spark.read).format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", source.bootstrap).option("startingOffsets", "earliest")
    return reader.option("includeHeaders", "true").load()


def plain_parquet(spark: Any, source: Source, topic: str, folder: Path) -> None:
    """A stream up to now, to Parquet by topic and day."""
    rows = connector(spark, source, topic, stream=True).withColumn("date", f.date_format("timestamp", "yyyy-MM-dd"))
    writer = rows.writeStream.format("parquet").partitionBy("topic", "date").option("path", str(folder / "data"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(folder)


def plain_iceberg(spark: Any, source: Source, topic: str, folder: Path, table: str) -> None:
    """A stream up to now, to a table of Iceberg's by topic and day."""
    spark.sql(
        f"CREATE TABLE {table} (key binary, value binary, topic string, partition int, offset bigint, timestamp "
        "timestamp, timestampType int, headers array<struct<key: string, value: binary>>) USING iceberg "
        "PARTITIONED BY (topic, days(timestamp)) TBLPROPERTIES ('format-version'='2')"
    )
    writer = connector(spark, source, topic, stream=True).writeStream.format("iceberg").outputMode("append")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("fanout-enabled", "true")
    writer.trigger(availableNow=True).toTable(table).awaitTermination()
    spark.sql(f"DROP TABLE {table} PURGE")
    shutil.rmtree(folder)


def plain_profile(spark: Any, source: Source, topic: str) -> dict[str, DataFrame]:
    """The tables of a profile, of one read of the topic."""
    whole = connector(spark, source, topic, stream=False)
    ms = f.unix_millis("timestamp")
    header_bytes = f.aggregate(
        "headers",
        f.lit(0),
        lambda sum_, each: sum_ + f.length(each["key"]) + f.coalesce(f.length(each["value"]), f.lit(0)),
    )
    rows = whole.select(
        "topic",
        "partition",
        "offset",
        "key",
        ms.alias("ms"),
        f.length("key").alias("key_bytes"),
        f.length("value").alias("value_bytes"),
        f.coalesce(header_bytes, f.lit(0)).alias("header_bytes"),
    ).persist()
    size = f.coalesce("key_bytes", f.lit(0)) + f.coalesce("value_bytes", f.lit(0)) + f.col("header_bytes")
    first, last = rows.agg(f.min("ms"), f.max("ms")).first()
    step = profile.step_for((last - first) / 1000) * 1000
    partitions = rows.groupBy("topic", "partition").agg(
        f.count("*"),
        f.sum(size),
        f.min("offset"),
        f.max("offset"),
        f.min("ms"),
        f.max("ms"),
        f.count_if(f.col("key").isNull()),
        f.count_if(f.col("value_bytes").isNull()),
        f.count_if(f.col("header_bytes") > 0),
        f.percentile_approx("value_bytes", [0.5, 0.9, 0.99, 1.0]),
    )
    over_time = rows.groupBy("topic", f.floor(f.col("ms") / step)).agg(f.count("*"), f.sum(size))
    sizes = rows.groupBy("topic", f.ceil(f.log2("value_bytes"))).count()
    counts = rows.where(f.col("key").isNotNull()).groupBy("topic", "key").count()
    order = Window.partitionBy("topic").orderBy(f.desc("count"))
    keys = counts.withColumn("rank", f.row_number().over(order)).where(f.col("rank") <= profile.TOP_KEYS)
    distinct = counts.groupBy("topic").count()
    before = Window.partitionBy("topic", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    late = rows.select("topic", f.greatest(f.max("ms").over(before) - f.col("ms"), f.lit(0)).alias("late"))
    lateness = late.groupBy("topic", f.when(f.col("late") > 0, f.ceil(f.log10("late")))).agg(
        f.count("*"), f.max("late")
    )
    odd = rows.where((f.col("ms") < profile.EARLY_MS) | (f.col("ms") > int(time.time() * 1000) + profile.AHEAD_MS))
    timestamps = odd.groupBy("topic").agg(f.count("*"), f.min("ms"), f.max("ms"))
    ends = {row.partition: row.end for row in rows.groupBy("partition").agg(f.max("offset").alias("end")).collect()}
    starting = {topic: {str(index): max(0, end + 1 - profile.SAMPLE) for index, end in ends.items()}}
    sample = spark.read.format("kafka").option("kafka.bootstrap.servers", source.bootstrap).option("subscribe", topic)
    sample = sample.option("startingOffsets", json.dumps(starting)).option("includeHeaders", "true").load()
    return {
        "partitions": partitions,
        "over_time": over_time,
        "sizes": sizes,
        "keys": keys,
        "distinct": distinct,
        "lateness": lateness,
        "timestamps": timestamps,
        "compression": profile.compression(sample),  # what the codecs make of batches: there is no plainer way
    }


# ---- what is told


def told(times: Times) -> tuple[list[str], bool]:
    """The lines of a table, and whether a budget is missed."""
    lines, missed = ["| seconds | kbroker | by hand | ratio | budget | |", "|---|---|---|---|---|---|"], False
    for row, found in times.items():
        for what in ("", f"{CPU}, "):
            mine, plain = (found[f"{what}{kind}"] for kind in (OURS, PLAIN))
            ratios = [one / other for one, other in zip(mine, plain, strict=True)]
            ratio, budget = statistics.median(ratios), BUDGETS[row]
            spread, verdict = f"{min(ratios):.2f} to {max(ratios):.2f}", "holds" if ratio <= budget else "MISSED"
            missed |= ratio > budget and not what
            told = f"<= {budget}x | {verdict}" if not what else " | "
            seconds = f"{statistics.median(mine):.1f} | {statistics.median(plain):.1f}"
            lines.append(f"| {row}{', ' if what else ''}{what[:-2]} | {seconds} | {ratio:.2f}x ({spread}) | {told} |")
    return lines, missed


def main(bootstrap: str, topic: str, turns: str, home: str, files: str) -> None:
    """Iceberg's row: prints its times as JSON."""
    conf = {**SMALL, "spark.jars": files, **jars.of_formats(files)}
    for name, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": home}.items():
        conf[f"spark.sql.catalog.plain{name}"] = value
    spark = session.start("local[2]", conf=conf)
    source, folder = Source(bootstrap), Path(home)
    fresh = (folder / f"iceberg-{number}" for number in count())
    names = (f"plain.db.t{number}" for number in count())
    rows = {
        "archive, Iceberg": {
            OURS: lambda: ours(spark, source, topic, next(fresh), "iceberg"),
            PLAIN: lambda: plain_iceberg(spark, source, topic, next(fresh), next(names)),
        }
    }
    print(json.dumps(in_turns(spark, rows, int(turns))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
