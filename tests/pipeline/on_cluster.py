"""A driver program for a standalone Spark cluster: every job once, in one session. Run by test_cluster.py.

    python -m tests.pipeline.on_cluster MASTER BOOTSTRAP TOPIC LOG_DIR FOLDER

Prints one line of JSON at its end.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kbroker.pipeline import archive, audit, compact_check, convert, mirror, profile, register, replay, session
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.report import write_report

SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.executor.memory": "500m",  # Spark takes no heap that calls itself smaller than 450 MiB
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # begin once both workers have an executor
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
}


def main(master: str, bootstrap: str, topic: str, log_dir: str, folder: str) -> None:
    """Run all jobs, and say what came of them."""
    spark = session.start(master, conf=SMALL)
    source = Source(bootstrap)
    copy, mirrored = {topic: f"{topic}-copy"}, {topic: f"{topic}-mirrored"}
    found: dict[str, Any] = {
        "archive": archive.archive(spark, source, [topic], f"{folder}/archive", until_now=True)["records"],
        "replay": replay.replay(spark, source, f"{folder}/archive", topics=copy)["written"],
        "mirror": mirror.mirror(spark, source, source, mirrored, f"{folder}/mirror")["records"],
        "audits": [audit.audit(spark, source, source, names)["equal"] for names in (copy, mirrored)],
        "profile": write_report(profile.profile(spark, source, [topic]), f"{folder}/report.html", bootstrap)["topics"][
            topic
        ]["records"],
        "compact-check": compact_check.compact_check(spark, source, [topic])["topics"][topic]["records"],
        "convert": convert.convert(spark, log_dir, f"{folder}/converted")["segments"],
    }
    register(spark)
    wire = spark.read.format("kbroker").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    disk = spark.read.format("kbroker").option("pushDownPredicate", "true").load(log_dir).where(f"topic = '{topic}'")
    found["source"] = [wire.count(), disk.count()]
    found["executors"] = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is one of them
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
