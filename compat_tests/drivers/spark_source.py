"""Reads and writes topics by `format("kbroker")` on whichever Spark runs it, and prints what came of each as JSON.

Started by test_spark_versions.py with: bootstrap, topic, log directory, a folder of its own, `classic` or `connect`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["PYSPARK_PYTHON"] = sys.executable
import pyspark
from pyspark.sql import SparkSession

from kbroker.pipeline import load, register
from kbroker.pipeline.errors import explain

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main(bootstrap: str, topic: str, folder: str, own: str, mode: str) -> None:
    """Run them all."""
    builder = SparkSession.builder.remote("local[1]") if mode == "connect" else SparkSession.builder.master("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {"spark": pyspark.__version__, "session": type(spark).__module__}
    where, what = {"kafka.bootstrap.servers": bootstrap}, {"subscribe": topic}

    def tried(name: str, call: Callable[[], Any]) -> None:
        try:
            found[name] = call()
        except Exception as error:
            found[name] = explain(error)

    def read(**options: str) -> Any:
        return spark.read.format("kbroker").options(**where, **what, **options)

    def streamed(target: str, form: str, *names: str, **options: str) -> None:
        rows = spark.readStream.format("kbroker").options(**where, **what, startingOffsets="earliest", **options).load()
        writer = (rows.select(*names) if names else rows).writeStream.format(form)
        writer = (
            writer.options(**where, topic=target) if form == "kbroker" else writer.option("path", f"{own}/{target}")
        )
        query = writer.option("checkpointLocation", f"{own}/{target}-state").trigger(availableNow=True).start()
        query.awaitTermination()
        if error := query.exception():
            raise error

    def read_stream(target: str, **options: str) -> int:
        streamed(target, "parquet", **options)
        return int(spark.read.parquet(f"{own}/{target}").count())

    def written(target: str) -> int:
        return int(spark.read.format("kbroker").options(**where, subscribe=target).load().count())

    def write() -> int:
        rows = read().load().select("key", "value")
        rows.write.format("kbroker").mode("append").options(**where, topic=f"{topic}-out").save()
        return written(f"{topic}-out")

    def write_stream() -> int:
        streamed(f"{topic}-copy", "kbroker", "key", "value")
        return written(f"{topic}-copy")

    def columns() -> list[Any]:
        some = read().schema("offset bigint, key binary").load()
        return [some.columns, some.where("offset < 3").count()]

    tried("load", lambda: load(spark, **where, **what).count())
    tried("register", lambda: register(spark))
    tried("batch", lambda: read(includeHeaders="true", minPartitions="3").load().where("headers is not null").count())
    tried("columns", columns)
    tried(
        "where",
        lambda: read(pushDownPredicate="true").load().where("partition = 0 and offset >= 10 and offset < 15").count(),
    )
    tried("key", lambda: read(pushDownPredicate="true").load().where("key = cast('key-1' as binary)").count())
    tried("disk", lambda: spark.read.format("kbroker").load(folder).where(f"topic = '{topic}'").count())
    tried("write", write)
    tried("stream", lambda: read_stream("read"))
    tried("the stream again", lambda: read_stream("read"))
    tried("rate", lambda: read_stream("slowly", maxOffsetsPerTrigger="100"))
    tried("write a stream", write_stream)
    print(json.dumps(found))
    spark.stop()


main(*sys.argv[1:])
