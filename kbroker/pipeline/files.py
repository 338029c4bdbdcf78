"""Plain Parquet: an archive's records as files in their places, of which those count that a manifest names.

Called by archive. The folder:

    topic=T/date=YYYY-MM-DD/*.parquet   records: columns of COLUMNS
    _quarantine/topic=T/date=.../       records that are set apart, whole, and `reason`: why

A file is written where it stays, and nothing is renamed: an object store would copy it. So a job that was cut off
leaves files that no manifest names; the next one removes them. Spark's own sink for streams writes so: it keeps a list
of what its tasks have written, which becomes the manifest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from kbroker.pipeline import counts, kafka, manifests
from kbroker.pipeline.counts import RECORDS, Counts
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.manifests import MANIFEST, Batch
from kbroker.pipeline.registry import columns_of
from kbroker.pipeline.session import setting
from kbroker.pipeline.storage import Storage, files_as_they_are
from kbroker.pipeline.typed import ddl_of
from kbroker.pipeline.values import REGISTRY

QUARANTINE = "_quarantine"
COLUMNS = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, offset bigint, "
    "timestamp timestamp, timestampType int, timestampMs bigint, generation int, topic string, date string, "
    f"{kafka.APART}"
)
FILE_BYTES = 128 << 20
"""What compaction makes files of."""
OPEN_FILES = 4
"""How many files a task writes at a time. Of a partition's records in order, that is as many days as meet in one place;
Spark sorts the rows of a task that needs more."""
_LOG = "_spark_metadata"
"""Where Spark's sink keeps its list."""


class Files:
    """The files of an archive."""

    def __init__(self, store: Storage) -> None:
        self._spark, self._store = store.spark, store

    def recover(self, *, may_live: bool = False) -> Batch | None:
        """Remove what was written by a job that was cut off, and is in no manifest. Its batch is decided again: none
        is to be finished. may_live: the job may have been taken for dead."""
        state = manifests.opened(self._store)
        if state is None:
            return None
        if may_live:
            manifests.fence(self._store, state)
        there = set(names(self._store)) if self._store.names(MANIFEST) else set()
        for path, _ in self._store.files():
            if path.endswith(".parquet") and path not in there:
                self._store.delete(path)
        for base in ("", f"{QUARANTINE}/"):
            self._store.delete(f"{base}{_LOG}")
        self._store.delete(manifests.OPEN)
        return None

    def append(self, kind: str, rows: DataFrame, batch: Batch) -> tuple[Counts, list[str]]:
        """Write a batch's rows of one kind; how many of each kind there were, and the files."""
        seen, observation = counts.observed(rows, len(batch.spans))
        some = seen.where(f.col("reason").isNull() == (kind == RECORDS)).drop("place")
        files = self._written("" if kind == RECORDS else QUARANTINE, some)
        return counts.of_plan(observation, some), files

    def _written(self, base: str, rows: DataFrame) -> list[str]:
        """Write rows; the files' paths within the archive."""
        store, log = self._store, f"{base}/{_LOG}".lstrip("/")
        store.delete(log)
        jvm: Any = self._spark.sparkContext._jvm
        columns = jvm.scala.jdk.javaapi.CollectionConverters.asScala(["topic", "date"]).toSeq()
        parquet = jvm.org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat()
        sinks = jvm.org.apache.spark.sql.execution.streaming.sinks
        none = jvm.PythonUtils.toScalaMap({})
        sink = sinks.FileStreamSink(self._spark._jsparkSession, store.path(base), parquet, columns, none)
        with setting(self._spark, "spark.sql.maxConcurrentOutputFileWriters", str(OPEN_FILES)):
            sink.addBatch(0, rows._jdf)
        listed = store.read_text(f"{log}/0").splitlines()[1:]
        files = [store.name(unquote(json.loads(line)["path"])) for line in listed]
        store.delete(log)
        return sorted(files)

    def read(self, topics: Sequence[str], *, quarantined: bool) -> DataFrame:
        """All records, of these topics if any are named. Raises PipelineError."""
        wanted = names(self._store)
        of = {path: found[1] for path in wanted if (found := re.search(r"topic=([^/]+)/", path))}
        known = {*of.values(), *manifests.described(self._store).get("topics", ())}
        if missing := set(topics) - known:
            raise PipelineError(f"{self._store.root} has no topic {min(missing)!r}; it has: {', '.join(sorted(known))}")
        chosen = [
            path
            for path in wanted
            if (quarantined or not path.startswith(QUARANTINE)) and (not topics or of[path] in topics)
        ]
        frame = self._frame(chosen, COLUMNS)
        return frame.where(f.col("damage").isNull()).select(*kafka.COLUMNS, "generation")

    def _frame(self, paths: Sequence[str], ddl: str) -> DataFrame:
        reader, frames = files_as_they_are(self._spark).schema(ddl), []
        for base in ("", QUARANTINE):
            some = [self._store.path(path) for path in paths if path.startswith(QUARANTINE) == bool(base)]
            if some:
                frame = reader.option("basePath", self._store.path(base)).parquet(*some)
                frames.append(frame.withColumn("kind", f.lit(base)))
        if not frames:
            return self._spark.createDataFrame([], f"{ddl}, kind string")
        return reduce(DataFrame.unionByName, frames)

    def compact(self) -> dict[str, Any]:
        """Put the small files of each topic and date together, in order of partition and offset; nothing else
        changes."""
        store, old = self._store, names(self._store)
        number = manifests.progress(store)[0] - 1
        if number < 0:
            raise PipelineError(f"{store.root} has no batches yet")
        if not any("number" in each for each in manifests.counting(store)):
            return {"job": "compact-files", "files_before": len(old), "files_after": len(old)}
        manifests.write_open(store, {"through": number})
        about = manifests.described(store)
        value_json = ddl_of(StructType.fromJson(about["schema"])) if about.get("schema") else "string"
        columns = [COLUMNS, "value_text string", f"value_json {value_json}", columns_of(about.get(REGISTRY, {}))]
        whole = self._frame(old, ", ".join(filter(None, columns)))
        sizes = {path: size for path, size in store.files() if path in set(old)}
        order = ("topic", "date", "partition", "generation", "offset")
        files = []
        for base in ("", QUARANTINE):
            size = sum(size for path, size in sizes.items() if path.startswith(QUARANTINE) == bool(base))
            if size:
                rows = whole.where(f.col("kind") == base).drop("kind")
                ordered = rows.repartitionByRange(size // FILE_BYTES + 1, *order).sortWithinPartitions(*order)
                files += self._written(base, ordered)
        manifests.close_compaction(store, number, files)
        for path in set(old) - set(files):
            store.delete(path)
        store.delete(manifests.OPEN)
        told = {"files_before": len(old), "files_after": len(files), "bytes_before": sum(sizes.values())}
        return {"job": "compact-files", **told}


def names(store: Storage) -> list[str]:
    """The files that count: their paths within the archive."""
    return [path for manifest in manifests.counting(store) for path in manifest["files"]]
