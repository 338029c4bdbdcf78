"""`archive`: topics into a folder of Parquet, or tables of Iceberg or Delta, exactly once; and reading an archive.

A batch is decided (`ahead`), said in the archive's manifests to be open, written by its format (`files`, `tables`), and
closed; how far its topics are read is told with it. One that was cut off is there or not, as its format's commit has
it, and is finished or decided again. So readers who go by the manifests or the tables (`read`, and all jobs here) see
each record once, at whichever step a job was stopped. A topic that was deleted and made again has its records in a
generation of their own: their offsets begin again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from kbroker.pipeline import ahead, kafka, lease, manifests
from kbroker.pipeline.ahead import Policy, Spans
from kbroker.pipeline.counts import QUARANTINE, RECORDS, Counts
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.files import Files
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.lease import Lease
from kbroker.pipeline.manifests import ARCHIVE, PARQUET, Batch, Count, described, form_of
from kbroker.pipeline.progress import FREE, Pace, Step
from kbroker.pipeline.registry import Following, Registry
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.tables import DAY_MS, Tables
from kbroker.pipeline.typed import INFER, Typed, ddl_of, grown, inferred, parsed, with_struct
from kbroker.pipeline.values import REGISTRY, Decodes, decoder
from kbroker.pipeline.wire import Cluster
from protocol.namedtuple import NamedTuple

PAUSE_S, SILENT_S = 5.0, 20.0
"""How long an archive waits that goes on and has found nothing new; and how long the brokers may be away of one that
ends: a user waits for it."""

Summary = dict[str, Any]


class Kind(NamedTuple):
    """What an archive is to be. table: its name in a catalog, None for tables that lie in the archive's folder.
    partition_by: of tables; their format's own way if there is none."""

    format: str = PARQUET
    table: str | None = None
    partition_by: Sequence[str] = ()


class Decoded(NamedTuple):
    """What values and keys become, and by which schema or registry, as `archive` has them."""

    values: str | None = None
    schema: str | None = None
    keys: str | None = None
    registry: Registry | None = None


PLAIN = Kind()


def archive(
    spark: SparkSession,
    source: Source,
    topics: Sequence[str],
    to: str,
    *,
    until_now: bool,
    pattern: str | None = None,
    pace: Pace = FREE,
    kind: Kind = PLAIN,
    values: str | None = None,
    schema: str | None = None,
    keys: str | None = None,
    registry: Registry | None = None,
    allow_gaps: bool = False,
    recreated: str = ahead.STOP,
    on_batch: Callable[[Step | None], None] = lambda _: None,
) -> Summary:
    """Archive what there is, or (until_now=False) that and all that comes, until interrupted.

    pattern: a regular expression, instead of topics: those whose whole name it matches, and those that are added later.
    values: one of values.FORMATS, or None to keep bytes as they are. schema: of avro, JSON; of json, Spark's DDL or
    JSON, typed.INFER, or None for text. keys: values.REGISTRY, or None to keep them as they are. registry: of values
    and keys that say so. recreated: one of ahead.RECREATED. on_batch: is called after each look at the
    topics, with what was done; None for nothing. Raises PipelineError.
    """
    store = Storage(spark, to)
    patient = source.patient(SILENT_S) if until_now else source
    decoded = Decoded(values, schema, keys, registry)
    with Cluster(patient.settings) as cluster, Lease(store) as held:
        wish = topics, pattern
        job = _Job(store, held, patient, cluster, wish, kind, decoded, Policy(allow_gaps, recreated), pace, until_now)
        try:
            while (step := job.batch()) is not None or not until_now:
                on_batch(step)
                job.wait(found=step is not None)
        except KeyboardInterrupt:
            if until_now:
                raise  # what there was is not all archived: nothing may be made of it as if it were
    return _summary(store, job)


class _Job:
    """An archive at work."""

    def __init__(
        self,
        store: Storage,
        held: Lease,
        source: Source,
        cluster: Cluster,
        wish: tuple[Sequence[str], str | None],
        kind: Kind,
        decoded: Decoded,
        policy: Policy,
        pace: Pace,
        until_now: bool,
    ) -> None:
        self._store, self._source, self._cluster, self._policy, self._pace = store, source, cluster, policy, pace
        self._decoder: Decodes | None = decoder(decoded.values, decoded.schema)
        known = described(store)
        began = _topics_of(store, known, wish, decoded, kind)
        self._pattern = wish[1] or known.get("pattern")
        if self._pattern:
            self._topics = sorted({*began, *kafka.matching(cluster, self._pattern)})
            if not self._topics and until_now:
                raise PipelineError(f"{source.bootstrap} has no topic that {self._pattern} matches")
        else:
            self._topics = began or kafka.existing(cluster, wish[0], source.bootstrap)
        ends: Spans = cluster.ends(cluster.ids(self._topics), committed=True)
        self._began = Typed(StructType.fromJson(known["schema"])) if known.get("schema") else None
        given = decoded.schema if decoded.values == "json" else None
        self.typed = _typed(store, source, known, given, self._began, ends)
        begun = {} if known else {"id": uuid.uuid4().hex, **kind._asdict(), "pattern": self._pattern}
        begun |= {"values": decoded.values, "keys": decoded.keys}
        self._known = _with_topics(cluster, {**known, **begun}, self._topics)
        self._follow = _followed(decoded, known)
        self._told, self._held = known, held
        self._sink = _begun(store, held, known, self._known, self._began or self.typed, decoded.values)
        self._cut = self._sink.recover(may_live=held.follows_a_dead_one)
        self._number, self.read = manifests.progress(store)
        self._goal = ends if until_now else None
        self.batches, self.files = 0, 0
        self.added: dict[str, dict[str, int]] = {}
        self._asked = time.monotonic()
        self._renewed: dict[str, dict[int, int]] = {}

    def batch(self) -> Step | None:
        """Write the next batch; None if there is nothing new."""
        self._asked = time.monotonic()
        self._learn()
        before = self.read
        self.read, ends = ahead.find_spans(self._cluster, before, self._topics, self._policy)
        self._renewed |= ahead.renewed(before, self.read)
        if self._cut is not None:
            spans = ahead.still_there(self._cut.spans, ahead.ids_of(self._cut.read), self.read, ends)
        else:
            wanted = ahead.no_further(ends, self._goal) if self._goal else ends
            spans = ahead.limited(ahead.spans(self.read, wanted, self._policy), self._pace.max_offsets)
            if not spans:
                return None
        self._look_at_schemas()
        try:
            batch = Batch(self._number, spans, self.read.behind(spans))
            counts, files = write_batch(self._store, self._sink, self._rows, batch, self._held.check)
        except Exception as error:
            if self._follow and self._follow.learns(error, partial(self._taken, spans)):
                self._sink.recover()  # nothing of it is there: it is decided again, by schemas that are known now
                return self.batch()
            if self._policy.recreated == ahead.STOP or not ahead.changed(self._cluster, self.read, spans):
                raise
            self._cut = self._sink.recover()
            return self.batch()
        self._cut, self.read, self._number = None, self.read.behind(spans), self._number + 1
        renewed, self._renewed = self._renewed, {}
        step = _step(self._number - 1, time.monotonic() - self._asked, counts, ahead.left(self.read, ends), renewed)
        self._add(step, files)
        return step

    def _add(self, step: Step, files: int) -> None:
        """To what this run has added."""
        self.batches, self.files = self.batches + 1, self.files + files
        for topic, records in step.records.items():
            entry = self.added.setdefault(topic, {"records": 0, "quarantined": 0})
            entry["records"] += records
            entry["quarantined"] += step.quarantined.get(topic, 0)

    def wait(self, *, found: bool) -> None:
        """Until the next batch is due."""
        due = self._asked + (self._pace.every_s if self._pace.every_s is not None else 0 if found else PAUSE_S)
        if self._goal is None and (rest := due - time.monotonic()) > 0:
            threading.Event().wait(rest)

    def _learn(self) -> None:
        """Take in topics that are new, and say what the archive is of."""
        if self._pattern and (new := set(kafka.matching(self._cluster, self._pattern)) - {*self._topics}):
            self._topics = sorted({*self._topics, *new})
            self._known = _with_topics(self._cluster, self._known, self._topics)
        self._tell()

    def _look_at_schemas(self) -> None:
        """Have the decoder, and what the archive says of itself, follow the registry; for a batch that was cut off they
        stay as they were."""
        if self._follow:
            if self._cut is None:
                self._follow.refresh(self._topics)
            self._decoder = self._follow.decoder
            self._known[REGISTRY] = self._follow.state
            self._tell()

    def _tell(self) -> None:
        """Say what the archive is of, once no batch is cut off."""
        wanted = _described_with(self._known, self.typed)
        if self._cut is None and wanted != self._told:
            self._store.write_json(ARCHIVE, wanted)
            self._told = wanted

    def _taken(self, spans: Spans, decodes: Decodes | None = None) -> DataFrame:
        """What is read of spans, as kafka.read_apart has it."""
        return kafka.read_apart(
            self._store.spark,
            self._source,
            spans,
            decodes,
            allow_gaps=self._policy.allow_gaps,
            ids=ahead.ids_of(self.read),
            least=self._pace.min_partitions,
        )

    def _rows(self, spans: Spans) -> DataFrame:
        """What is read of spans, as it is to be written."""
        rows = self._taken(spans, self._decoder)
        shape = self.typed if self._cut is None else self._began
        return ahead.in_generations(laid_out(with_struct(rows, shape) if shape else rows), self.read)


def write_batch(
    store: Storage,
    sink: Files | Tables,
    rows_of: Callable[[Spans], DataFrame],
    batch: Batch,
    check: Callable[[], None],
) -> tuple[list[Count], int]:
    """Add a batch to the archive, whole or not at all: the one place where rows are written. How many there are, and in
    how many files of plain Parquet.

    rows_of: what is read of spans. Where something is to be set apart, that partition is read a second time. check:
    raises where another job has taken the archive over.
    """
    check()
    manifests.write_open(store, batch.state())
    found, names = sink.append(RECORDS, rows_of(batch.spans), batch) if batch.spans else (Counts(), [])
    places = sorted(batch.spans)
    apart = {places[place] for place, kind in found if kind == QUARANTINE}
    if apart:
        some = batch._replace(spans={place: batch.spans[place] for place in apart})
        check()
        names += sink.append(QUARANTINE, rows_of(some.spans), some)[1]
    counts: dict[tuple[str, str], int] = {}
    for (place, kind), records in sorted(found.items()):
        key = kind, places[place][0]
        counts[key] = counts.get(key, 0) + records
    told = [Count(*key, records) for key, records in counts.items()]
    check()
    manifests.close(store, batch, told, names)
    return told, len(names)


def _step(
    number: int,
    seconds: float,
    counts: Sequence[Count],
    behind: Mapping[str, int],
    renewed: Mapping[str, Mapping[int, int]],
) -> Step:
    records: Counter[str] = Counter()
    apart: Counter[str] = Counter()
    for each in counts:
        records[each.topic] += each.records
        apart[each.topic] += each.records if each.kind == QUARANTINE else 0
    return Step(number, seconds, records, +apart, behind, renewed)


# ---- DataFrame -> DataFrame


def laid_out(records: DataFrame) -> DataFrame:
    """Records with the date (UTC) of their timestamp, null where Spark has none of the record's."""
    days = f.floor(f.unix_millis("timestamp") / DAY_MS)  # to_date would take the session's zone
    return records.withColumn("date", f.date_from_unix_date(days.cast("int")))


# ---- what an archive is


def _topics_of(
    store: Storage, known: Mapping[str, Any], wish: tuple[Sequence[str], str | None], decoded: Decoded, kind: Kind
) -> list[str]:
    """The topics that an archive was begun with, none if it is new. Raises PipelineError if others are named, or it is
    to be of another kind, or it is no archive."""
    if not known:
        if store.exists() and any(not name.startswith(f"{lease.FOLDER}/") for name, _ in store.files()):
            raise PipelineError(f"{store.root} is not empty and is no archive: give another --to")
        return []
    began: list[str] = known["topics"]
    topics, pattern = wish
    was = None
    if (pattern and pattern != known.get("pattern")) or (topics and known.get("pattern")):
        was = f"--topics-pattern {known['pattern']}" if known.get("pattern") else f"topics {','.join(began)}"
    elif topics and sorted(set(topics)) != began:
        was = f"topics {','.join(began)}"
    elif decoded.values != known.get("values"):
        was = f"--values {known['values']}" if known.get("values") else "values as they are"
    elif decoded.keys != known.get("keys"):
        was = f"--keys {known['keys']}" if known.get("keys") else "keys as they are"
    elif kind.format != form_of(known):
        was = f"--format {form_of(known)}"
    elif kind.table is not None and kind.table != known.get("table"):
        was = f"--table {known['table']}" if known.get("table") else "tables in its folder"
    elif kind.partition_by and list(kind.partition_by) != known.get("partition_by"):
        was = f"--partition-by {','.join(known.get('partition_by') or ['(its own way)'])}"
    if was:
        raise PipelineError(f"{store.root} was begun with {was}: give the same, or another --to")
    return began


def _followed(decoded: Decoded, known: Mapping[str, Any]) -> Following | None:
    """What follows a registry's schemas; None where nothing is of one. Raises PipelineError where none is given."""
    sides = [side for side, form in (("key", decoded.keys), ("value", decoded.values)) if form == REGISTRY]
    if not sides:
        return None
    if decoded.registry is None:
        raise PipelineError("a schema registry is needed: --schema-registry-url")
    return Following(decoded.registry, sides, known.get(REGISTRY))


def _typed(
    store: Storage, source: Source, known: Mapping[str, Any], schema: str | None, began: Typed | None, ends: Spans
) -> Typed | None:
    """The schema that the archive was begun with, or is begun with now; None for text. Of tables it may grow. Raises
    PipelineError if another one is given."""
    given = parsed(schema) if schema not in (None, INFER) else None
    if not known:
        return inferred(store.spark, source, ends) if schema == INFER else given
    if began and given and form_of(known) != PARQUET:
        return grown(began, given)
    if (schema is None) != (began is None) or (given and began and given.kind != began.kind):
        was = f"the schema {began.told}" if began else "no schema"
        raise PipelineError(f"{store.root} was begun with {was}: give the same, or another --to")
    return began


def _with_topics(cluster: Cluster, known: Mapping[str, Any], topics: Sequence[str]) -> dict[str, Any]:
    """What the archive says of itself from now on. Of topics that are there it has the settings that they have now."""
    there = cluster.ids(topics)
    return {
        **known,
        "topics": sorted(topics),
        "settings": known.get("settings", {}) | {topic: cluster.configs(topic) for topic in there},
        "partitions": known.get("partitions", {}) | {topic: cluster.partitions(topic) for topic in there},
    }


def _described_with(known: Mapping[str, Any], typed: Typed | None) -> dict[str, Any]:
    return {**known, "schema": typed.kind.jsonValue() if typed else None}


def _begun(
    store: Storage,
    held: Lease,
    before: Mapping[str, Any],
    known: dict[str, Any],
    typed: Typed | None,
    values: str | None,
) -> Files | Tables:
    """What an archive's records are written to, by this job alone. before: what it said of itself as it was looked at.
    Raises PipelineError."""
    sink = _sink(store, known)
    if isinstance(sink, Tables) and not before:
        sink.check_new()
    held.acquire()
    if described(store) != before:
        raise PipelineError(f"{store.root} was changed by another job meanwhile: start this one again")
    if isinstance(sink, Tables):
        if (wanted := _described_with(known, typed)) != before:
            store.write_json(ARCHIVE, wanted)  # before the tables: they are this archive's
        decodes = decoder(values, "{}")  # the columns of a registry's schemas come with the rows that have them
        column = f"{decodes.column} {ddl_of(typed.kind) if typed else 'string'}" if decodes else ""
        try:
            sink.create(column, known["partition_by"])
        except Exception:
            if not before and not sink.exist():  # nothing is begun: another wish may be right
                store.delete(ARCHIVE)
            raise
    return sink


def _sink(store: Storage, known: Mapping[str, Any]) -> Files | Tables:
    return Files(store) if form_of(known) == PARQUET else Tables(store, known)


# ---- reading, and keeping in order


def read(spark: SparkSession, folder: str, topics: Sequence[str] = (), *, quarantined: bool = True) -> DataFrame:
    """All records of an archive, those in quarantine too: columns as kafka.COLUMNS, and generation: which one of its
    topic's they are of, their order being that of generation and offset. Damaged batches are none.

    Raises PipelineError.
    """
    store = Storage(spark, folder)
    if not store.exists():
        raise PipelineError(f"{folder}: there is no such folder")
    return _sink(store, described(store)).read(topics, quarantined=quarantined)


def compact_files(spark: SparkSession, folder: str) -> Summary:
    """Put an archive's small files together, as its format does; nothing else changes. Raises PipelineError."""
    store = Storage(spark, folder)
    with Lease(store) as held:
        sink = _sink(store, described(store))
        held.acquire()
        if sink.recover(may_live=held.follows_a_dead_one) is not None:
            raise PipelineError(f"{folder} has a batch that was cut off: run the archive again, which finishes it")
        return sink.compact()


def expire(spark: SparkSession, folder: str, days: int) -> None:
    """Let go of versions of an archive's tables that are older than so many days. Raises PipelineError."""
    store = Storage(spark, folder)
    sink = _sink(store, described(store))
    if not isinstance(sink, Tables):
        raise PipelineError(f"{folder} is plain Parquet, and has no versions that could expire")
    with Lease(store) as held:
        held.acquire()
        sink.expire(days)


def _summary(store: Storage, job: _Job) -> Summary:
    """What this run has added, by topic."""
    topics, typed = job.added, job.typed
    for name, entry in topics.items():
        if generation := job.read.topics[name].generation:
            entry["generation"] = generation
    return {
        "job": "archive",
        "to": store.root,
        "records": sum(each["records"] for each in topics.values()),
        "quarantined": sum(each["quarantined"] for each in topics.values()),
        **({"files": job.files} if job.files else {}),
        "batches": job.batches,
        **({"schema": typed.told} if typed else {}),
        **({"inferred_from": typed.sampled} if typed and typed.sampled else {}),
        "topics": topics,
    }
