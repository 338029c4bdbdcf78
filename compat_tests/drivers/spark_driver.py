"""Driver of Spark and its Kafka connector. Arguments: the connector's jars, comma-separated; the broker's host:port.

One local session for all requests. Every stream runs with the availableNow trigger: it ends when it has read what was
there when it began. Rows travel as JSON with Latin-1 texts, as in driver.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
from driver import data, security, serve, text
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

JARS, ADDRESS = sys.argv[1], sys.argv[2]
os.environ["PYSPARK_PYTHON"] = sys.executable
HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS = {"topic": "string", "partition": "int", "key": "binary", "value": "binary", "headers": HEADERS}


def shown(row: Row) -> dict[str, Any]:
    answer = {name: row[name] for name in ("topic", "partition", "offset") if name in row}
    answer |= {"key": text(row["key"]), "value": text(row["value"])}
    if "timestamp_ms" in row:
        answer["timestamp"] = row["timestamp_ms"]
    if "headers" in row:
        answer["headers"] = [[header.key, text(header.value)] for header in row["headers"] or []]
    return answer


class Operations:
    def __init__(self) -> None:
        settings = {
            "spark.jars": JARS,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.log.level": "ERROR",
        }
        builder = SparkSession.builder.master("local[2]").appName("compat")
        for name, value in settings.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()

    def version(self) -> str:
        return str(pyspark.__version__)

    # batches

    def write(self, rows: list[dict[str, Any]], options: dict[str, str]) -> None:
        """The columns are those of the first row."""
        names = [name for name in COLUMNS if name in rows[0]]
        values = [tuple(self._value(name, row[name]) for name in names) for row in rows]
        schema = ", ".join(f"{name} {COLUMNS[name]}" for name in names)
        frame = self.spark.createDataFrame(values, schema).coalesce(1)
        frame.write.format("kafka").options(**self._with_servers(options)).save()

    @staticmethod
    def _value(name: str, value: Any) -> Any:
        if name == "headers":
            return [(key, data(one)) for key, one in value]
        return data(value) if name in ("key", "value") else value

    def read(self, options: dict[str, str]) -> list[Any]:
        frame = self.spark.read.format("kafka").options(**self._with_servers(options)).load()
        ordered = frame.withColumn("timestamp_ms", f.expr("unix_millis(timestamp)")).orderBy(
            "topic", "partition", "offset"
        )
        return [shown(row) for row in ordered.collect()]

    def tasks(self, options: dict[str, str]) -> int:
        """Into how many tasks Spark splits a read."""
        frame = self.spark.read.format("kafka").options(**self._with_servers(options)).load()
        return frame.rdd.getNumPartitions()

    # streams

    def stream_to_parquet(self, options: dict[str, str], folder: str) -> list[str]:
        """Append to folder/out with the checkpoint folder/checkpoint. Returns: all values in folder/out, sorted."""
        place = Path(folder)
        stream = self._stream(options).select(f.col("value").cast("string"))
        self._run(stream.writeStream.format("parquet").option("path", str(place / "out")), place)
        return sorted(row.value for row in self.spark.read.parquet(str(place / "out")).collect())

    def stream_to_topic(self, options: dict[str, str], topic: str, folder: str) -> None:
        stream = self._stream(options).select("key", "value")
        sink = stream.writeStream.format("kafka").options(**self._with_servers({"topic": topic}))
        self._run(sink, Path(folder))

    def stream_windows(self, options: dict[str, str], folder: str) -> dict[str, int]:
        """Records per minute of their timestamps, through a watermark and foreachBatch."""
        counts: dict[str, int] = {}

        def keep(batch: DataFrame, number: int) -> None:
            for row in batch.collect():
                counts[str(int(row.start))] = row["count"]

        windows = (
            self._stream(options).withWatermark("timestamp", "1 minute").groupBy(f.window("timestamp", "1 minute"))
        )
        sums = windows.count().select(f.expr("unix_millis(window.start)").alias("start"), "count")
        self._run(sums.writeStream.outputMode("update").foreachBatch(keep), Path(folder))
        return counts

    def _stream(self, options: dict[str, str]) -> DataFrame:
        return self.spark.readStream.format("kafka").options(**self._with_servers(options)).load()

    @staticmethod
    def _run(writer: Any, folder: Path) -> None:
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(60):
                raise TimeoutError("the stream did not end")
        finally:
            query.stop()

    def set_conf(self, name: str, value: str) -> None:
        self.spark.conf.set(name, value)

    @staticmethod
    def _with_servers(options: dict[str, str]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": ADDRESS, **security(), **options}


if __name__ == "__main__":
    serve(Operations())
