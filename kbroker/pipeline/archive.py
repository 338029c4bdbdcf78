"""`archive`: topics into Parquet, exactly once; and reading an archive.

An archive is a folder:

    topic=T/date=YYYY-MM-DD/*.parquet   records: columns of kafka.COLUMNS, and generation
    _quarantine/topic=T/date=.../       records that are set apart, whole, and `reason`: why
    _manifest/archive.json              which topics it is of
    _manifest/batch-N.json              which files a batch has added: a file that is in none is none; how far it read
    _manifest/compact-N.json            which files hold all of batches 0 to N, and which they replace
    _staging/                           files of a batch that is being written

A batch is decided (`ahead`), written aside, named in a manifest, then moved into place. The manifest says how far its
topics have been read: one that was cut off before it was written is decided again. So readers who go by the manifests
(`read`, and all jobs here) see each record once, whatever was stopped when. A topic that was deleted and made again has
its records in a generation of their own: their offsets begin again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from kbroker.pipeline import ahead, kafka
from kbroker.pipeline.ahead import Policy, Read, Spans
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.registry import Following, Registry, columns_of
from kbroker.pipeline.storage import Storage, files_as_they_are
from kbroker.pipeline.typed import INFER, Typed, inferred, parsed, with_struct
from kbroker.pipeline.values import REGISTRY, Decodes, decoder
from kbroker.pipeline.wire import Cluster

MANIFEST, STAGING, QUARANTINE = "_manifest", "_staging", "_quarantine"
ARCHIVE = f"{MANIFEST}/archive.json"
FILE_BYTES = 128 << 20
"""What compaction makes files of."""
PAUSE_S, SILENT_S = 5.0, 20.0
"""How long an archive waits that goes on and has found nothing new; and how long the brokers may be away of one that
ends: a user waits for it."""
FILES = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, offset bigint, "
    "timestamp timestamp, timestampType int, timestampMs bigint, generation int, topic string, date string, "
    f"{kafka.APART}"
)

Summary = dict[str, Any]


def archive(
    spark: SparkSession,
    source: Source,
    topics: Sequence[str],
    to: str,
    *,
    until_now: bool,
    values: str | None = None,
    schema: str | None = None,
    keys: str | None = None,
    registry: Registry | None = None,
    allow_gaps: bool = False,
    recreated: str = ahead.STOP,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Archive what there is, or (until_now=False) that and all that comes, until interrupted.

    values: one of values.FORMATS, or None to keep bytes as they are. schema: of avro, JSON; of json, Spark's DDL or
    JSON, typed.INFER, or None for text. keys: values.REGISTRY, or None to keep them as they are. registry: of values
    and keys that say so. recreated: one of ahead.RECREATED. Raises PipelineError.
    """
    store = Storage(spark, to)
    decode: Decodes | None = decoder(values, schema)
    policy = Policy(allow_gaps, recreated)
    patient = source.patient(SILENT_S) if until_now else source
    with Cluster(patient.settings) as cluster:
        known = described(store)
        topics = _topics_of(store, known, topics, values, keys) or kafka.existing(cluster, topics, source.bootstrap)
        ends: Spans = cluster.ends(cluster.ids(topics), committed=True)
        typed = _typed(spark, source, store, known, schema, ends) if values == "json" else None
        follow = _followed(registry, known, values, keys)
        _begin(store, cluster, known, topics, values, typed, keys)
        recover(store)
        first = number = next_number(store)
        read, goal = progress(store), ends if until_now else None
        try:
            while True:
                read, ends = ahead.look(cluster, read, topics, policy)
                if not (spans := ahead.spans(read, ahead.no_further(ends, goal) if goal else ends, policy)):
                    if until_now or threading.Event().wait(PAUSE_S):
                        break
                    continue
                if follow:
                    follow.look(topics)
                    _note(store, follow)
                    decode = follow.decoder
                ids = ahead.ids_of(read)
                taken = partial(kafka.read_apart, spark, patient, spans, allow_gaps=allow_gaps, ids=ids)
                rows = taken(decoder=decode)
                laid = ahead.in_generations(laid_out(with_struct(rows, typed) if typed else rows), read)
                try:
                    write_batch(store, laid, number, read.behind(spans))
                except Exception as error:
                    if follow and follow.learns(error, taken):
                        continue  # and is read again
                    if recreated == ahead.STOP or not ahead.changed(cluster, read, spans):
                        raise
                    continue  # none of the batch is there: it is decided again
                read, number = read.behind(spans), number + 1
                on_progress(f"batch {number}")
        except KeyboardInterrupt:
            if until_now:
                raise  # what there was is not all archived: nothing may be made of it as if it were
    return _summary(store, first, read, typed)


# ---- DataFrame -> DataFrame


def laid_out(records: DataFrame) -> DataFrame:
    """Records with what their file goes by: `kind` (`records`, `quarantine`), and the date (UTC), null where Spark has
    no timestamp of the record's."""
    kind = f.when(f.col("reason").isNull(), "records").otherwise("quarantine")
    return records.withColumn("kind", kind).withColumn("date", f.date_format("timestamp", "yyyy-MM-dd"))


# ---- batches and manifests


def described(store: Storage) -> dict[str, Any]:
    """What an archive says of itself: topics, their settings and partitions, values, schema; nothing if it is new."""
    return dict(store.read_json(ARCHIVE)) if store.exists(ARCHIVE) else {}


def _topics_of(
    store: Storage, known: Mapping[str, Any], topics: Sequence[str], values: str | None, keys: str | None
) -> list[str]:
    """The topics that an archive was begun with, none if it is new. Raises PipelineError if others are named, or values
    or keys are to be decoded in another way, or it is no archive."""
    if not known:
        if store.exists() and store.files():
            raise PipelineError(f"{store.root} is not empty and is no archive: give another --to")
        return []
    began: list[str] = known["topics"]
    if topics and sorted(set(topics)) != began:
        raise PipelineError(f"{store.root} was begun with topics {','.join(began)}: give the same, or another --to")
    if values != known.get("values"):
        was = f"--values {known['values']}" if known.get("values") else "values as they are"
        raise PipelineError(f"{store.root} was begun with {was}: give the same, or another --to")
    if keys != known.get("keys"):
        was = f"--keys {known['keys']}" if known.get("keys") else "keys as they are"
        raise PipelineError(f"{store.root} was begun with {was}: give the same, or another --to")
    return began


def _followed(
    registry: Registry | None, known: Mapping[str, Any], values: str | None, keys: str | None
) -> Following | None:
    """What follows a registry's schemas; None where nothing is of one. Raises PipelineError where none is given."""
    sides = [side for side, form in (("key", keys), ("value", values)) if form == REGISTRY]
    if not sides:
        return None
    if registry is None:
        raise PipelineError("a schema registry is needed: --schema-registry-url")
    return Following(registry, sides, known.get(REGISTRY))


def _note(store: Storage, follow: Following) -> None:
    """Have the archive say which schemas and columns its next batch has."""
    known, state = described(store), follow.state
    if known.get(REGISTRY) != state:
        store.write_json(ARCHIVE, {**known, REGISTRY: state})


def _typed(
    spark: SparkSession, source: Source, store: Storage, known: Mapping[str, Any], schema: str | None, ends: Spans
) -> Typed | None:
    """The schema that the archive was begun with, or is begun with now; None for text. Raises PipelineError if another
    one is given."""
    given = parsed(schema) if schema not in (None, INFER) else None
    if not known:
        return inferred(spark, source, ends) if schema == INFER else given
    began = Typed(StructType.fromJson(known["schema"])) if known.get("schema") else None
    if (schema is None) != (began is None) or (given and began and given.kind != began.kind):
        was = f"the schema {began.told}" if began else "no schema"
        raise PipelineError(f"{store.root} was begun with {was}: give the same, or another --to")
    return began


def _begin(
    store: Storage,
    cluster: Cluster,
    known: Mapping[str, Any],
    topics: Sequence[str],
    values: str | None,
    typed: Typed | None,
    keys: str | None,
) -> None:
    """Have an archive that says what it is of. Of topics that are there it has the settings that they have now."""
    there = cluster.ids(topics)
    store.write_json(
        ARCHIVE,
        {
            "topics": sorted(topics),
            "values": values,
            "keys": keys,
            **({REGISTRY: known[REGISTRY]} if REGISTRY in known else {}),
            "schema": typed.kind.jsonValue() if typed else None,
            "settings": known.get("settings", {}) | {topic: cluster.configs(topic) for topic in there},
            "partitions": known.get("partitions", {}) | {topic: cluster.partitions(topic) for topic in there},
        },
    )


def next_number(store: Storage) -> int:
    """The number that the next batch has."""
    return max(map(_number, _batches(store)), default=-1) + 1


def progress(store: Storage) -> Read:
    """How far the topics have been read: the last batch's manifest says so."""
    batches = _batches(store)
    return Read.of(store.read_json(f"{MANIFEST}/{batches[-1]}")) if batches else Read({}, {})


def _batches(store: Storage) -> list[str]:
    """The names of the batches' manifests, in order."""
    return [name for name in store.names(MANIFEST) if name.startswith("batch-")]


def _number(manifest: str) -> int:
    return int(re.sub(r"\D", "", manifest))


def write_batch(store: Storage, rows: DataFrame, number: int, read: Read) -> None:
    """Add a batch to the archive, whole or not at all: the one place where rows are written.

    rows: records of FILES and what was made of their values, by `kind`. read: how far the topics are read by it.
    """
    stage = f"{STAGING}/batch-{number}"
    store.delete(stage)
    rows.write.partitionBy("kind", "topic", "date").parquet(store.path(stage))
    moves = [[path, _place(path, f"b{number}")] for path, _ in store.files(stage) if path.endswith(".parquet")]
    counts = _counted(rows.sparkSession, store, [path for path, _ in moves])
    manifest = {"number": number, "files": moves, "records": counts, **read.state()}
    store.write_json(_batch_name(number), manifest)
    _put(store, manifest, stage)


def _put(store: Storage, manifest: Mapping[str, Any], stage: str) -> None:
    """Have in place what a manifest names, and not what it replaces. The stage goes last: until then this is due."""
    for staged, final in manifest["files"]:
        if store.exists(staged):
            store.move(staged, final)
    for path in manifest.get("replaces", ()):
        store.delete(path)
    store.delete(stage)


def _batch_name(number: int) -> str:
    return f"{MANIFEST}/batch-{number:010}.json"


def _place(staged: str, prefix: str) -> str:
    """Where a staged file goes: its folder tells kind, topic and date."""
    found = re.fullmatch(r".*/kind=(\w+)/(topic=.*)/([^/]+)", staged)
    assert found, staged
    kind, folder, name = found.groups()
    final = f"{folder}/{prefix}-{name}"
    return f"{QUARANTINE}/{final}" if kind == "quarantine" else final


def _counted(spark: SparkSession, store: Storage, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Records of staged files by kind, topic and partition."""
    if not paths:
        return []
    root = "/".join(paths[0].split("/")[:2])
    frame = files_as_they_are(spark).schema(f"{FILES}, kind string").parquet(store.path(root))
    found = frame.groupBy("kind", "topic", "partition").agg(
        f.count("*").alias("records"), f.min("offset").alias("first"), f.max("offset").alias("last")
    )
    return [row.asDict() for row in found.collect()]


def recover(store: Storage) -> None:
    """Finish what was cut off between a manifest and its moves; forget what was staged and is in no manifest.

    For the one job that writes: to any other, that may be what it is staging at this moment.
    """
    for name in store.names(STAGING):
        manifest = f"{MANIFEST}/{_manifest_of(name)}"
        if store.exists(manifest):
            _put(store, store.read_json(manifest), f"{STAGING}/{name}")
        store.delete(f"{STAGING}/{name}")


def _manifest_of(stage: str) -> str:
    kind, _, number = stage.partition("-")
    return f"{kind}-{int(number):010}.json"


def manifests(store: Storage) -> list[Mapping[str, Any]]:
    """The manifests that count: the last compaction and the batches behind it. Raises PipelineError for no archive."""
    names = store.names(MANIFEST)
    if not names:
        raise PipelineError(f"{store.root} is no archive: it has no {MANIFEST} folder")
    compacted = [name for name in names if name.startswith("compact-")][-1:]
    through = _number(compacted[0]) if compacted else -1
    batches = [name for name in names if name.startswith("batch-") and _number(name) > through]
    return store.read_all_json([f"{MANIFEST}/{name}" for name in (*compacted, *batches)])


def files(store: Storage) -> list[str]:
    """The archive's files: their paths within it."""
    return [final for _, final in _lying(store)]


def _lying(store: Storage) -> list[tuple[str, str]]:
    """The archive's files: where each lies now, and its place. They differ where a job has named a batch in a manifest
    and not put it in place yet: a reader takes it from where it is, and moves nothing."""
    staged = set(store.names(STAGING))
    found = []
    for manifest in manifests(store):
        stage = f"batch-{manifest['number']}" if "number" in manifest else f"compact-{manifest['through']}"
        for old, final in manifest["files"]:
            found.append((old if stage in staged and store.exists(old) else final, final))
    return found


def _base(path: str) -> str:
    """The folder whose partitions a file's folders are."""
    if path.startswith(STAGING):
        return "/".join(path.split("/")[:3])
    return QUARANTINE if path.startswith(QUARANTINE) else ""


def read(spark: SparkSession, folder: str, topics: Sequence[str] = (), *, quarantined: bool = True) -> DataFrame:
    """All records of an archive, those in quarantine too: columns as kafka.COLUMNS, and generation: which one of its
    topic's they are of, their order being that of generation and offset. Damaged batches are none.

    Raises PipelineError.
    """
    store = Storage(spark, folder)
    if not store.exists():
        raise PipelineError(f"{folder}: there is no such folder")
    wanted = _lying(store)
    names = {final: found[1] for _, final in wanted if (found := re.search(r"topic=([^/]+)/", final))}
    if missing := set(topics) - set(names.values()) - set(described(store).get("topics", ())):
        raise PipelineError(f"{folder} has no topic {min(missing)!r}; it has: {', '.join(sorted(set(names.values())))}")
    paths: dict[str, list[str]] = {}
    for path, final in wanted:
        if (quarantined or not final.startswith(QUARANTINE)) and (not topics or names[final] in topics):
            paths.setdefault(_base(path), []).append(store.path(path))
    reader = files_as_they_are(spark).schema(FILES)
    frames = [reader.option("basePath", store.path(base)).parquet(*found) for base, found in paths.items()]
    if not frames:
        return spark.createDataFrame([], f"{kafka.RECORDS}, generation int")
    frame = reduce(DataFrame.unionByName, frames)
    return frame.where(f.col("damage").isNull()).select(*kafka.COLUMNS, "generation")


def compact_files(spark: SparkSession, folder: str) -> Summary:
    """Put the small files of each topic and date together, in order of partition and offset; nothing else changes."""
    store = Storage(spark, folder)
    recover(store)
    found = manifests(store)
    old = files(store)
    number = next_number(store) - 1
    if number < 0:
        raise PipelineError(f"{folder} has no batches yet")
    if not any("number" in each for each in found):
        return {"job": "compact-files", "files_before": len(old), "files_after": len(old)}
    stage = f"{STAGING}/compact-{number}"
    about = described(store)
    value_json = StructType.fromJson(about["schema"]).simpleString() if about.get("schema") else "string"
    columns = [FILES, "value_text string", f"value_json {value_json}", columns_of(about.get(REGISTRY, {}))]
    kept = ", ".join(filter(None, columns))
    frames = []
    for kind, base in (("records", ""), ("quarantine", QUARANTINE)):
        paths = [store.path(path) for path in old if path.startswith(QUARANTINE) == bool(base)]
        if paths:
            frame = files_as_they_are(spark).schema(kept).option("basePath", store.path(base)).parquet(*paths)
            frames.append(frame.withColumn("kind", f.lit(kind)))
    whole = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])
    size = sum(size for path, size in store.files() if path in set(old))
    parts = max(1, size // FILE_BYTES + 1)
    order = ("kind", "topic", "date", "partition", "generation", "offset")
    ordered = whole.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    ordered.write.partitionBy("kind", "topic", "date").parquet(store.path(stage))
    moves = [[path, _place(path, f"c{number}")] for path, _ in store.files(stage) if path.endswith(".parquet")]
    manifest = {"through": number, "files": moves, "replaces": old}
    store.write_json(f"{MANIFEST}/compact-{number:010}.json", manifest)
    _put(store, manifest, stage)
    return {"job": "compact-files", "files_before": len(old), "files_after": len(moves), "bytes_before": size}


def _summary(store: Storage, first: int, read: Read, typed: Typed | None) -> Summary:
    """What this run has added, by topic. first: its first batch."""
    topics: dict[str, dict[str, Any]] = {}
    added = [name for name in _batches(store) if _number(name) >= first]
    count = 0
    for name in added:
        manifest = store.read_json(f"{MANIFEST}/{name}")
        count += len(manifest["files"])
        for each in manifest["records"]:
            entry = topics.setdefault(each["topic"], {"records": 0, "quarantined": 0})
            entry["records"] += each["records"]
            entry["quarantined"] += each["records"] if each["kind"] == "quarantine" else 0
    for name, entry in topics.items():
        if generation := read.topics[name].generation:
            entry["generation"] = generation
    return {
        "job": "archive",
        "to": store.root,
        "records": sum(each["records"] for each in topics.values()),
        "quarantined": sum(each["quarantined"] for each in topics.values()),
        "files": count,
        "batches": len(added),
        **({"schema": typed.told} if typed else {}),
        **({"inferred_from": typed.sampled} if typed and typed.sampled else {}),
        "topics": topics,
    }
