"""Tables of Iceberg's or Delta's format: an archive's records in two tables, those that are set apart in the second.

Called by archive. Written by the formats' own connectors, whose transactions make a batch be there once: a commit bears
the batch's number, which a table takes once (Iceberg: the id under which a snapshot is staged and published; Delta: the
transaction's txnAppId and txnVersion). A job that was cut off left a batch open in its manifests; the next one writes
those of the two tables that do not have it.

A table lies in the archive's folder, or in a catalog that the user's session knows.
"""

from __future__ import annotations

import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from kbroker.pipeline import counts, jars, kafka, manifests
from kbroker.pipeline.counts import KINDS, QUARANTINE, RECORDS, Counts
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.manifests import DELTA, ICEBERG, Batch
from kbroker.pipeline.session import setting
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.typed import ddl_of, quoted

_STAGED, _PUBLISHED = "wap.id", "published-wap-id"
"""Iceberg's, in a snapshot's summary: the id that it was staged under; and, where it was not staged on the table as it
was when it was published, of the snapshot that was made of it."""
DAY_MS = 86_400_000
_TAKEN = "DuplicateWAPCommitException"
"""What Iceberg raises where an id was published before."""
_TRANSFORM = re.compile(r"(?:(years|months|days|hours)\((\w+)\)|(bucket|truncate)\((\d+), *(\w+)\)|(\w+))")


class Table(ABC):
    """One table of an archive. name: as Spark's SQL has it."""

    form: str
    partitions: Sequence[str]
    """By what it is partitioned if its user does not say."""

    def __init__(self, spark: SparkSession, name: str, archive: str) -> None:
        self.name, self._spark, self._archive = name, spark, archive

    def create(self, columns: StructType, partition_by: Sequence[str]) -> None:
        """Make the table. Raises PipelineError for what it cannot be partitioned by."""
        parts = ", ".join(self._partition(each, columns) for each in partition_by or self.partitions)
        fields = ", ".join(f"{quoted(each.name)} {ddl_of(each.dataType)}" for each in columns.fields)
        self._sql(f"CREATE TABLE {self.name} ({fields}) USING {self.form} PARTITIONED BY ({parts}) {self._properties}")

    _properties = ""

    def _partition(self, text: str, columns: StructType) -> str:
        found = _TRANSFORM.fullmatch(text)
        column = str(found[2] or found[5] or found[6]) if found else ""
        if column not in columns.names:
            raise PipelineError(
                f"--partition-by {text}: write a column ({', '.join(columns.names)}), or of Iceberg days(timestamp), "
                "bucket(16, key), truncate(4, key) and their like"
            )
        return text.replace(column, quoted(column))

    def frame(self) -> DataFrame:
        """Its rows."""
        return self._spark.table(self.name)

    def fit(self, wanted: StructType) -> None:
        """Have the columns, and the fields of structs, that rows have which are to be written; those that are there
        stay, and may become wider."""
        if any(_changes(self.frame().schema, wanted)):
            self.refresh()
            for change in _changes(self.frame().schema, wanted):
                self._alter(change)

    def refresh(self) -> None:
        """Have it be seen as other processes left it: a catalog keeps what it has seen."""
        self._spark.catalog.refreshTable(self.name)

    def _alter(self, change: str) -> None:
        self._sql(f"ALTER TABLE {self.name} {change}")

    def append(self, rows: DataFrame, batch: int) -> bool:
        """Add a batch's rows, whole or not at all; not at all, too, if another job has brought this batch meanwhile.
        Whether they were computed."""
        self.fit(rows.schema)
        return self._write(rows, batch)

    def _sql(self, text: str) -> Any:
        return self._spark.sql(text)

    @abstractmethod
    def exists(self) -> bool:
        """Whether it is there."""

    @abstractmethod
    def has(self, batch: Batch) -> bool:
        """Whether a batch was added."""

    @abstractmethod
    def _write(self, rows: DataFrame, batch: int) -> bool:
        """Add rows of the table's columns by a commit that bears the batch's number, unless one bears it. Whether they
        were computed."""

    @abstractmethod
    def compact(self) -> None:
        """Put small files together."""

    @abstractmethod
    def expire(self, before_ms: int) -> None:
        """Let go of versions that are older, and of files that only they have."""

    @abstractmethod
    def files(self) -> int:
        """How many files it has."""


class Iceberg(Table):
    """A table of Iceberg's."""

    form = ICEBERG
    partitions = ("topic", "days(timestamp)")
    # a task writes what it has read, wherever that goes: a shuffle by partition would have one write a day's records
    _properties = "TBLPROPERTIES ('format-version'='2', 'write.distribution-mode'='none', 'write.wap.enabled'='true')"

    def exists(self) -> bool:
        """Whether it is there."""
        return bool(self._spark.catalog.tableExists(self.name))

    def _write(self, rows: DataFrame, batch: int) -> bool:
        """Stage a snapshot and publish it, which Iceberg does with an id once."""
        name = self._id_of(batch)
        with setting(self._spark, "spark.wap.id", name):
            rows.writeTo(self.name).append()
        staged = self._sql(f"SELECT snapshot_id, committed_at, summary FROM {self.name}.snapshots")
        newest = staged.where(f.col("summary")[_STAGED] == name).orderBy(f.desc("committed_at")).first()
        try:
            self._call("cherrypick_snapshot", f"snapshot_id => {newest['snapshot_id']}")
        except Exception as error:
            if _TAKEN not in str(error):
                raise
        return True

    def _id_of(self, batch: int) -> str:
        return f"{self._archive}-{batch}"

    def has(self, batch: Batch) -> bool:
        """By its snapshots; where that one may have expired, by the records: a batch is there whole."""
        self.refresh()
        summary, name = f.col("summary"), self._id_of(batch.number)
        told = (summary[_STAGED] == name) | (summary[_PUBLISHED] == name)
        current = self._sql(f"SELECT snapshot_id FROM {self.name}.history WHERE is_current_ancestor")
        if not self._sql(f"SELECT * FROM {self.name}.snapshots").join(current, "snapshot_id").where(told).isEmpty():
            return True
        rows = [(*place, *span, batch.read.topics[place[0]].generation) for place, span in batch.spans.items()]
        spans = self._spark.createDataFrame(
            rows, "topic string, partition int, first bigint, behind bigint, generation int"
        )
        mine = self.frame().where(f.col("topic").isin([*{topic for topic, _ in batch.spans}]))
        first, behind = min(each.start for each in batch.spans.values()), max(each.end for each in batch.spans.values())
        near = mine.where(f"offset >= {first} AND offset < {behind}")  # by files' own bounds: others are not read
        found = near.join(f.broadcast(spans), ["topic", "partition", "generation"])
        return not found.where("offset >= first AND offset < behind").isEmpty()

    def compact(self) -> None:
        """Put small files together; in order of partition and offset, where the session can parse that."""
        order = "partition ASC, generation ASC, offset ASC"
        ordered = f"strategy => 'sort', sort_order => '{order}', "
        parsed = jars.ICEBERG_EXTENSION in self._spark.conf.get("spark.sql.extensions", "")
        self._call("rewrite_data_files", f"{ordered if parsed else ''}options => map('min-input-files', '2')")
        self._call("rewrite_manifests")

    def expire(self, before_ms: int) -> None:
        """Let go of snapshots that are older; of files that no snapshot has once they are three days old, as Iceberg
        has it: a job may be writing them."""
        self._call("expire_snapshots", f"older_than => timestamp_millis({before_ms}), retain_last => 1")
        orphans_ms = min(before_ms, int(time.time() * 1000) - 3 * DAY_MS)
        self._call("remove_orphan_files", f"older_than => timestamp_millis({orphans_ms})")

    def _call(self, procedure: str, arguments: str = "") -> None:
        catalog, _, table = self.name.partition(".")
        more = f", {arguments}" if arguments else ""
        self._sql(f"CALL {catalog}.system.{procedure}(table => '{table}'{more})")

    def files(self) -> int:
        """How many files it has."""
        return int(self._sql(f"SELECT file_path FROM {self.name}.files").count())


class Delta(Table):
    """A table of Delta's. path: where it lies, if its name is not one of a catalog."""

    form = DELTA
    partitions = ("topic", "date")

    def __init__(self, spark: SparkSession, name: str, archive: str, path: str | None = None) -> None:
        super().__init__(spark, name, archive)
        self._path = path

    def _partition(self, text: str, columns: StructType) -> str:
        if "(" in text:
            raise PipelineError(f"--partition-by {text}: Delta partitions by columns alone; date is one")
        return super()._partition(text, columns)

    def exists(self) -> bool:
        """Whether it is there."""
        return bool(self._log().tableExists() if self._path else self._spark.catalog.tableExists(self.name))

    def refresh(self) -> None:
        """It is always looked at."""

    def _log(self) -> Any:
        """Delta's own log of the table."""
        path = self._path or self._sql(f"DESCRIBE DETAIL {self.name}").first()["location"]
        delta: Any = self._spark.sparkContext._jvm.org.apache.spark.sql.delta
        return delta.DeltaLog.forTable(self._spark._jsparkSession, path)

    def _alter(self, change: str) -> None:
        if " TYPE " in change:
            self._sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
        super()._alter(change)

    def _write(self, rows: DataFrame, batch: int) -> bool:
        if self._last() >= batch:
            return False
        rows.writeTo(self.name).options(txnAppId=self._archive, txnVersion=str(batch)).append()
        return True

    def has(self, batch: Batch) -> bool:
        """By the last transaction of this archive: Delta keeps its number."""
        return self._last() >= batch.number

    def _last(self) -> int:
        """The batch of the last transaction; -1 if there was none."""
        log = self._log()
        now = log.update(False, getattr(log, "update$default$2")(), getattr(log, "update$default$3")())
        last = now.transactions().get(self._archive)
        return int(last.get()) if last.isDefined() else -1

    def compact(self) -> None:
        """Put small files together."""
        self._sql(f"OPTIMIZE {self.name}")

    def expire(self, before_ms: int) -> None:
        """Remove files that only older versions have."""
        hours = max(0, int(time.time() * 1000) - before_ms) // 3_600_000
        self._sql(f"VACUUM {self.name} RETAIN {hours} HOURS")

    def files(self) -> int:
        """How many files it has."""
        return int(self._sql(f"DESCRIBE DETAIL {self.name}").first()["numFiles"])


class Tables:
    """The two tables of an archive."""

    def __init__(self, store: Storage, known: Mapping[str, Any]) -> None:
        """known: what the archive says of itself. Raises PipelineError where the session lacks the format's jars."""
        self._store, self._spark = store, store.spark
        self._open: Batch | None = None
        form, named = manifests.form_of(known), known.get("table")
        _check_session(self._spark, form)
        if form == ICEBERG:
            base = named or f"{_catalog_of(store)}.{RECORDS}"
            names = (base, f"{named}_{QUARANTINE}" if named else f"{_catalog_of(store)}.{QUARANTINE}")
            made: list[Table] = [Iceberg(self._spark, name, known["id"]) for name in names]
        elif named:
            made = [Delta(self._spark, name, known["id"]) for name in (named, f"{named}_{QUARANTINE}")]
        else:
            paths = [store.path(kind) for kind in KINDS]
            made = [Delta(self._spark, f"delta.{quoted(path)}", known["id"], path) for path in paths]
        self._tables = dict(zip(KINDS, made, strict=True))

    def create(self, values: str, partition_by: Sequence[str]) -> None:
        """Make both, that of records last: where it is, the other is. values: the columns that values are decoded to,
        as DDL."""
        if self._tables[RECORDS].exists():
            return
        for kind, table in reversed(self._tables.items()):
            if not table.exists():
                table.create(self._columns(kind, values), partition_by)

    def exist(self) -> bool:
        """Whether one of them is there."""
        return any(table.exists() for table in self._tables.values())

    def check_new(self) -> None:
        """Raises PipelineError if one is there already: it is not this archive's."""
        for table in self._tables.values():
            if table.exists():
                raise PipelineError(f"the table {table.name} is there, and no archive of this folder's: name another")

    def _columns(self, kind: str, values: str) -> StructType:
        more = [f"{kafka.RECORDS}, generation int"]
        if isinstance(self._tables[kind], Delta):
            more.append("date date")
        more.append(values if kind == RECORDS else kafka.APART)
        return StructType.fromDDL(", ".join(filter(None, more)))

    def recover(self, *, may_live: bool = False) -> Batch | None:
        """A batch that was cut off, and may be in one table and not in the other. may_live: as `Files` has it; a batch
        is carried out as it was decided, and closed by one job alone."""
        state = manifests.opened(self._store)
        self._open = Batch.of(state) if state else None
        return self._open

    def append(self, kind: str, rows: DataFrame, batch: Batch) -> tuple[Counts, list[str]]:
        """Add a batch's rows of one kind, unless they are there; how many of each kind there are."""
        table = self._tables[kind]
        seen, observation = counts.observed(rows, len(batch.spans))
        is_there = self._open is not None and batch.number == self._open.number and table.has(batch)
        if not is_there:
            apart = () if kind == QUARANTINE else ("damage", "reason")
            decoded = [name for name in rows.columns if kind == QUARANTINE and name.startswith(("key_", "value_"))]
            date = () if isinstance(table, Delta) else ("date",)
            some = seen.where(f.col("reason").isNull() == (kind == RECORDS))
            is_there = not table.append(some.drop("place", *apart, *decoded, *date), batch.number)
        if is_there:
            seen.write.format("noop").mode("overwrite").save()
        return counts.of_written(observation), []

    def read(self, topics: Sequence[str], *, quarantined: bool) -> DataFrame:
        """All records, of these topics if any are named. Raises PipelineError."""
        known = manifests.described(self._store)["topics"]
        if missing := set(topics) - set(known):
            raise PipelineError(f"{self._store.root} has no topic {min(missing)!r}; it has: {', '.join(known)}")
        columns = (*kafka.COLUMNS, "generation")
        for table in self._tables.values():
            table.refresh()
        rows = self._tables[RECORDS].frame().select(*columns)
        if quarantined:
            apart = self._tables[QUARANTINE].frame().where(f.col("damage").isNull())
            rows = rows.unionByName(apart.select(*columns))
        return rows.where(f.col("topic").isin([*topics])) if topics else rows

    def compact(self) -> dict[str, Any]:
        """Put small files together, by the format's own procedure."""
        before = self._files()
        for table in self._tables.values():
            table.compact()
        return {"job": "compact-files", "files_before": before, "files_after": self._files()}

    def _files(self) -> int:
        return sum(table.files() for table in self._tables.values())

    def expire(self, days: int) -> None:
        """Let go of versions that are older than so many days, by the format's own procedure."""
        for table in self._tables.values():
            table.expire(int(time.time() * 1000) - days * DAY_MS)


def _catalog_of(store: Storage) -> str:
    """Iceberg's catalog of the folder, made known to the session."""
    name = "kbroker_" + hashlib.sha256(store.root.encode()).hexdigest()[:12]
    key = f"spark.sql.catalog.{name}"
    settings = {key: "org.apache.iceberg.spark.SparkCatalog", f"{key}.type": "hadoop", f"{key}.warehouse": store.root}
    for each, value in settings.items():
        store.spark.conf.set(each, value)
    return name


_CLASSES = {ICEBERG: "org.apache.iceberg.spark.SparkCatalog", DELTA: "org.apache.spark.sql.delta.catalog.DeltaCatalog"}


def _check_session(spark: SparkSession, form: str) -> None:
    """Raises PipelineError where a session cannot write the format."""
    utils: Any = spark.sparkContext._jvm.org.apache.spark.util.Utils
    if not utils.classIsLoadable(_CLASSES[form]):
        raise PipelineError(f"the session lacks {form}'s jars: give --packages {form}, or --jars with a folder of them")
    if form == DELTA and spark.conf.get("spark.sql.catalog.spark_catalog", "") != _CLASSES[DELTA]:
        raise PipelineError(f"the session is not set up for Delta: it needs {jars.DELTA_SETTINGS}")


def _changes(now: StructType, wanted: StructType, path: str = "") -> Iterator[str]:
    """How a table becomes one that holds rows of these columns, as clauses of ALTER TABLE."""
    there = {each.name: each.dataType for each in now.fields}
    for field in wanted.fields:
        name = f"{path}{quoted(field.name)}"
        if field.name in there:
            yield from _deeper(there[field.name], field.dataType, name)
        else:
            yield f"ADD COLUMN {name} {ddl_of(field.dataType)}"


def _deeper(now: DataType, wanted: DataType, path: str) -> Iterator[str]:
    if isinstance(now, StructType) and isinstance(wanted, StructType):
        yield from _changes(now, wanted, f"{path}.")
    elif isinstance(now, ArrayType) and isinstance(wanted, ArrayType):
        yield from _deeper(now.elementType, wanted.elementType, f"{path}.element")
    elif isinstance(now, MapType) and isinstance(wanted, MapType):
        yield from _deeper(now.valueType, wanted.valueType, f"{path}.value")
    elif now.simpleString() != wanted.simpleString():
        yield f"ALTER COLUMN {path} TYPE {wanted.simpleString()}"
