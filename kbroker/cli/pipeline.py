"""`kbroker pipeline NAME`: data jobs on Spark, from the command line.

Reads options, starts a session, calls the job, and shows its summary: as lines, and as JSON with `--summary FILE`.
Whatever goes wrong is one line, behind those that say what is being done. Exit
code: 0 done, 1 (audit) the sides differ, 2 it could not be done.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.cli import complain
from kbroker.cli._cluster import properties_of
from kbroker.cli._numbers import Number, whole
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.names import check_names
from kbroker.usage import installed_by

if TYPE_CHECKING:
    from kbroker.pipeline.kafka import Source

Summary = dict[str, Any]
Session = Any  # a SparkSession: Spark is loaded when a job is run, and its name belongs to the pipeline
GREETING_S = 10.0
"""How long a broker may take to answer at all, before a job begins."""
_FILE = "kbroker.cli.pipeline.file"
_NEEDED = ("pyspark", "pyarrow", "numpy", "pandas", "plotly")


@click.group("pipeline", context_settings={"help_option_names": ["-h", "--help"]})
def pipeline() -> None:
    """Topics into tables and back, on Spark."""


def _note_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    ctx.meta[_FILE] = path


def _with_file(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """What --option says, behind what the file of --command-config does."""
    path = ctx.meta.get(_FILE)
    if path is None:
        return given
    settings = {key: value for key, value in properties_of(path).items() if key != "bootstrap.servers"}
    return (*(f"{key}={value}" for key, value in settings.items()), *given)


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that every job has."""
    options = [
        click.option("--master", help="Where Spark runs; if not given where its own settings say, else local[*]."),
        click.option(
            "--command-config",
            type=click.Path(exists=True, dir_okay=False),
            is_eager=True,
            expose_value=False,
            callback=_note_file,
            help="A properties file of Kafka client settings; --option beats it.",
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_with_file,
            help="A Kafka client setting.",
        ),
        click.option("--conf", "confs", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
        click.option(
            "--jars", "jar_folder", type=click.Path(file_okay=False), help="Folder of jars that Spark needs besides."
        ),
        click.option(
            "--packages",
            default="",
            metavar="A,B",
            help="Jars that Spark fetches: iceberg, delta, s3a, gs, or GROUP:NAME:VERSION.",
        ),
        click.option("--summary", "summary_file", type=click.Path(dir_okay=False), help="Write the summary as JSON."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


_bootstrap = click.option("--bootstrap", default="127.0.0.1:9092", show_default=True, metavar="HOST:PORT")
_topics = click.option("--topics", default="", metavar="A,B", help="Which; all if not given.")
_gaps = click.option("--allow-gaps", is_flag=True, help="Go on where records have aged out before they were read.")
_recreated = click.option(
    "--recreated",
    type=click.Choice(["stop", "continue"]),
    default="stop",
    show_default=True,
    help="What to do once a topic was deleted and made again: continue reads the new one from its beginning.",
)


def _registry(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a job that asks a schema registry."""
    setting = "A setting of Confluent's client, as basic.auth.user.info."
    where = click.option("--schema-registry-url", "registry", metavar="URL", help="Where the schemas are.")
    how = click.option("--registry-option", "registry_options", multiple=True, metavar="KEY=VALUE", help=setting)
    return where(how(command))


def _paced(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of the jobs that may go on."""
    options = [
        click.option("--until", type=click.Choice(["now"]), help="Stop at what is there now; else go on until Ctrl-C."),
        click.option(
            "--topics-pattern", "pattern", metavar="REGEX", help="Topics that it matches, those added later too."
        ),
        click.option(
            "--max-offsets-per-trigger", "max_offsets", type=Number(min=1), metavar="N", help="Of a batch, about."
        ),
        click.option("--trigger", metavar="TIME", help="Begin a batch so often: 30s, 5m, 1h. At once if not given."),
        click.option("--progress", "lines", type=click.Path(dir_okay=False), help="Append a line of JSON a batch."),
        click.option("--metrics", "address", metavar="HOST:PORT", help="Answer with Prometheus' metrics there."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _pace(given: dict[str, Any], *, min_partitions: int | None = None) -> dict[str, Any]:
    """What the options of `_paced` say, as a job takes it."""
    from kbroker.pipeline.progress import Pace

    every_s = _seconds(given["trigger"]) if given["trigger"] else None
    pace = Pace(given["max_offsets"], min_partitions, every_s)
    return {"pattern": given["pattern"], "pace": pace, "until_now": given["until"] == "now"}


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(ms|s|m|h)", text)
    if not found:
        raise click.UsageError(f"--trigger {text}: write 500ms, 30s, 5m or 1h")
    return float(found[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[found[2]]


def _check_paced(given: dict[str, Any], topics: str) -> None:
    """Raises: UsageError for what cannot be meant."""
    if given["pattern"] and topics:
        raise click.UsageError("--topics or --topics-pattern: give one of them")
    try:
        re.compile(given["pattern"] or "")
    except re.error as error:
        raise click.UsageError(f"--topics-pattern {given['pattern']}: no regular expression: {error}") from None
    if given["trigger"]:
        _seconds(given["trigger"])
        if given["until"] == "now":
            raise click.UsageError(
                "--trigger is for a job that goes on: one with --until now begins each batch at once"
            )


@pipeline.command()
@_bootstrap
@_topics
@click.option("--to", "folder", required=True, help="The archive's folder, by any path that Spark takes.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "iceberg", "delta"]),
    default="parquet",
    show_default=True,
    help="What records are written as: files, or tables in the folder.",
)
@click.option("--table", metavar="CATALOG.DB.NAME", help="Of tables in a catalog of Spark's, not in the folder.")
@click.option(
    "--partition-by",
    "partition_by",
    multiple=True,
    metavar="COLUMN|TRANSFORM",
    help="Of tables; topic and days(timestamp) of Iceberg's, topic and date of Delta's, if not given.",
)
@_paced
@click.option("--min-partitions", type=Number(min=1), metavar="N", help="Tasks of a batch, at least.")
@click.option(
    "--values",
    type=click.Choice(["json", "avro", "text", "registry"]),
    help="Decode values; what does not is set apart.",
)
@click.option("--keys", type=click.Choice(["registry"]), help="Decode keys, too.")
@_registry
@click.option(
    "--schema",
    "schema_file",
    metavar="FILE|infer",
    help="Of avro: an .avsc file. Of json: columns, as Spark's DDL or JSON has them; infer takes them from a sample.",
)
@click.option("--compact-files", is_flag=True, help="Then put the archive's small files together.")
@click.option(
    "--expire-days", type=Number(min=0), metavar="N", help="Then let go of versions of the tables older than N days."
)
@_gaps
@_recreated
@_shared
def archive(bootstrap: str, topics: str, folder: str, **given: Any) -> int:
    """Topics to Parquet, Iceberg or Delta, exactly once."""
    _check_paced(given, topics)
    form, table, parts = given.pop("form"), given.pop("table"), given.pop("partition_by")
    if form == "parquet" and (table or parts or given["expire_days"] is not None):
        raise click.UsageError("--table, --partition-by and --expire-days are of --format iceberg and delta")
    if form != "parquet" and not (given["packages"] or given["jar_folder"] or os.environ.get("KBROKER_PIPELINE_JARS")):
        given["packages"] = form
    if given["values"] == "avro" and not given["schema_file"]:
        raise click.UsageError("--values avro needs --schema FILE.avsc")
    if (given["values"] == "registry") != (given["registry"] is not None):
        raise click.UsageError("--values registry and --schema-registry-url URL need each other")
    if given["keys"] and given["values"] != "registry":
        raise click.UsageError("--keys registry needs --values registry")
    if (given["compact_files"] or given["expire_days"] is not None) and given["until"] != "now":
        raise click.UsageError("--compact-files and --expire-days need --until now: a stream that goes on has no end")
    schema = _schema(given["schema_file"], given["values"]) if given["schema_file"] else None
    source = partial(_source, bootstrap, given["options"])

    def check() -> None:
        _check_progress("archive", given)
        _check_registry(given)

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import archive as jobs

        rest = {name: given[name] for name in ("values", "keys", "allow_gaps", "recreated")}
        rest |= {"schema": schema, "registry": _registry_of(given), "kind": jobs.Kind(form, table, list(parts))}
        rest |= _pace(given, min_partitions=given["min_partitions"])
        with _progress("archive", given, say) as on_batch:
            summary = jobs.archive(spark, source(), _names(topics), folder, on_batch=on_batch, **rest)
        if given["compact_files"]:
            summary["compaction"] = jobs.compact_files(spark, folder)
        if given["expire_days"] is not None:
            jobs.expire(spark, folder, given["expire_days"])
        return summary

    return _run(job, given, "archiving", (source, _awaited(given, _names(topics))), check=check)


@pipeline.command()
@_bootstrap
@click.option("--from", "folder", required=True, help="The archive's folder.")
@click.option("--topic", "renamed", multiple=True, metavar="A[=B]", help="Replay topic A, as B; all if not given.")
@click.option("--since", metavar="TIME", help="From this time on: 2026-01-31, 2026-01-31T12:00, or ms since 1970.")
@click.option("--until", metavar="TIME", help="Before this time.")
@click.option("--keys", type=click.Path(exists=True, dir_okay=False), help="Only records with a key of this file.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N records a second.")
@click.option("--rekey", is_flag=True, help="Let keys choose partitions, instead of keeping their numbers.")
@click.option("--partitions", type=Number(min=1), help="Of a topic that is made for it.")
@click.option("--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("--state", help="Where it is kept how far this replay got; beside the archive if not given.")
@_shared
def replay(bootstrap: str, folder: str, renamed: tuple[str, ...], **given: Any) -> int:
    """An archive back into topics: keys, headers, timestamps and order are kept."""
    names, target = _renamed(renamed), partial(_source, bootstrap, given["options"])
    since, until = _time(given["since"]), _time(given["until"])

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import replay as jobs

        rest = {name: given[name] for name in ("keys", "rate", "rekey", "partitions", "codec", "state")}
        return jobs.replay(spark, target(), folder, topics=names or None, since=since, until=until, **rest)

    return _run(job, given, "replaying", (target, ()), (lambda: folder, ()))


@pipeline.command()
@click.option("--left", required=True, metavar="HOST:PORT|DIR")
@click.option("--right", required=True, metavar="HOST:PORT|DIR")
@click.option("--topics", required=True, metavar="A[=B],C", help="Which; B is what A is called on the right.")
@click.option("--ignore-timestamps", is_flag=True, help="Compare keys, values and headers only.")
@_gaps
@_shared
def audit(left: str, right: str, topics: str, **given: Any) -> int:
    """Whether two sides hold the same records: exit code 0 equal, 1 different, 2 could not look."""
    names = _renamed(_names(topics))
    sides = [partial(_side, each, given["options"]) for each in (left, right)]

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import audit as jobs

        rest = {"allow_gaps": given["allow_gaps"], "ignore_timestamps": given["ignore_timestamps"]}
        return jobs.audit(spark, sides[0](), sides[1](), names, **rest)

    return _run(job, given, "comparing", *zip(sides, (list(names), list(names.values())), strict=True))


@pipeline.command()
@click.option("--from", "source", required=True, metavar="HOST:PORT")
@click.option("--to", "target", required=True, metavar="HOST:PORT")
@click.option("--topics", default="", metavar="A[=B],C", help="Which; B is what A is called at the target.")
@_paced
@click.option("--groups", default="", metavar="G,H|*", help="Consumer groups whose offsets are translated; * for all.")
@click.option("--state", help="A folder for this mirror alone; kbroker-mirror/FROM--TO if not given.")
@click.option("--codec", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@_gaps
@_recreated
@_shared
def mirror(source: str, target: str, topics: str, groups: str, **given: Any) -> int:
    """Topics, and groups' offsets, from one Kafka cluster to another; goes on where it stopped."""
    _check_paced(given, topics)
    if not (topics or given["pattern"]):
        raise click.UsageError("--topics or --topics-pattern: give one of them")
    names = _renamed(_names(topics))
    ends = [partial(_source, each, given["options"]) for each in (source, target)]

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import mirror as jobs

        state = given["state"] or f"kbroker-mirror/{source}--{target}".replace(":", "_")
        rest = {name: given[name] for name in ("codec", "allow_gaps", "recreated")} | _pace(given)
        with _progress("mirror", given, say) as on_batch:
            return jobs.mirror(
                spark, ends[0](), ends[1](), names, state, groups=_names(groups), on_batch=on_batch, **rest
            )

    read = ends[0], _awaited(given, list(names))
    return _run(job, given, "mirroring", read, (ends[1], ()), check=partial(_check_progress, "mirror", given))


@pipeline.command()
@_bootstrap
@click.option("--from", "folder", metavar="DIR", help="An archive or a log directory, instead of a cluster.")
@_topics
@click.option(
    "--report", required=True, type=click.Path(dir_okay=False), help="The page to write; its tables lie beside it."
)
@_registry
@_gaps
@_shared
def profile(bootstrap: str, folder: str | None, topics: str, report: str, **given: Any) -> int:
    """Rates, sizes, skew, balance, lateness, lag and compressibility of topics, as a page with plots."""
    side = partial(_side, folder or bootstrap, given["options"])

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import profile as jobs
        from kbroker.pipeline.report import write_report

        rest = {"allow_gaps": given["allow_gaps"], "registry": _registry_of(given)}
        tables = jobs.profile(spark, side(), _names(topics), **rest)
        return write_report(tables, report, folder or bootstrap)

    def check() -> None:
        from kbroker.pipeline.report import check_writable

        check_writable(report)
        _check_registry(given)

    return _run(job, given, "profiling", (side, _names(topics)), check=check)


@pipeline.command("compact-check")
@click.option("--from", "side", required=True, metavar="HOST:PORT|DIR", help="A cluster, an archive, a log directory.")
@_topics
@click.option(
    "--retention-ms", "retentions", type=Number(), multiple=True, help="Try this one; 1, 7 and 30 days if none."
)
@_gaps
@_shared
def compact_check(side: str, topics: str, retentions: tuple[int, ...], **given: Any) -> int:
    """What compaction, codecs, record formats and retention would save. Nothing is changed."""
    records = partial(_side, side, given["options"])

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import compact_check as jobs

        rest = {"retentions_ms": retentions or jobs.RETENTIONS_MS, "allow_gaps": given["allow_gaps"]}
        return jobs.compact_check(spark, records(), _names(topics), **rest)

    return _run(job, given, "trying", (records, _names(topics)))


@pipeline.command()
@click.option("--from", "folder", required=True, help="A log directory; no broker may be writing to it.")
@click.option("--to", "target", required=True, help="The folder for the converted one.")
@_shared
def convert(folder: str, target: str, **given: Any) -> int:
    """Log directories with messages of formats v0 and v1, rewritten as v2."""

    def job(spark: Session, say: Callable[[str], None]) -> Summary:
        from kbroker.pipeline import convert as jobs

        return jobs.convert(spark, folder, target)

    return _run(job, given, "converting")


# ---- what all jobs share


@contextmanager
def _progress(job: str, given: dict[str, Any], say: Callable[[str], None]) -> Iterator[Callable[[Any], None]]:
    """What is told each batch: the bar, the lines, the metrics."""
    from kbroker.pipeline.progress import Progress

    with Progress(job, given["lines"], given["address"]) as progress:
        if progress.port:
            _tell(f"metrics at port {progress.port}")

        def told(step: Any) -> None:
            if step is not None:
                progress.step(step)
                say(f"batch {step.number}")
                for topic, offsets in step.renewed.items():
                    _tell(_renewed_line(topic, offsets))

        yield told


def _check_progress(job: str, given: dict[str, Any]) -> None:
    """Raises: PipelineError where the progress of batches cannot be written or served as asked."""
    from kbroker.pipeline.progress import Progress

    with Progress(job, given["lines"], given["address"]):
        pass


def _awaited(given: dict[str, Any], topics: Sequence[str]) -> Sequence[str]:
    """Of the topics that a job follows, those that have to be there now: it may wait for one to be made again."""
    return () if given["recreated"] == "continue" else topics


def _renewed_line(topic: str, offsets: Mapping[int, int]) -> str:
    """What a user is told of a topic that was made again: what was behind these offsets is nowhere."""
    upto = ", ".join(f"{offset} of partition {index}" for index, offset in offsets.items())
    return f"topic {topic} was deleted and made again: of the one before there is what came before offset {upto}"


def _run(
    job: Callable[[Session, Callable[[str], None]], Summary],
    given: dict[str, Any],
    doing: str,
    *sides: tuple[Callable[[], Source | str], Sequence[str]],
    check: Callable[[], None] = lambda: None,
) -> int:
    """Run a job, and show what came of it.

    sides: what it reads and writes, and which topics have to be there. check: raises PipelineError where the job cannot
    end well. Both come before Spark starts, and before hours of work.
    """
    if given["summary_file"]:
        _check_summary(given["summary_file"])
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        return complain(f"the pipeline needs {missing[0]}: {installed_by('pipeline')}")
    from kbroker.pipeline import session
    from kbroker.pipeline.errors import explain

    logging.getLogger().addHandler(logging.NullHandler())  # Py4J would tell of a Ctrl-C in some dozens of lines
    spark, done = None, False
    try:
        check()
        for side, topics in sides:
            _greet(side(), topics)
        conf = _pairs(given["confs"], "--conf")
        master = session.master_of(given["master"], conf)
        fetching = f", which fetches {given['packages']}" if given["packages"] else ""
        _tell(f"starting Spark {f'on {master}' if master else 'where its settings say'}{fetching}")
        packages = _names(given["packages"])
        spark = session.start(master, jar_folder=given["jar_folder"], packages=packages, conf=conf)
        _tell(doing)
        with _bar(spark, doing) as say:
            summary = job(spark, say)
        _show(summary, given["summary_file"])
        done = True
    except click.ClickException:
        raise
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # a user sees one line, whatever it was that Spark raised
        if os.environ.get("KBROKER_PIPELINE_TRACE"):
            raise
        return complain(explain(error))
    finally:
        if spark is not None:
            session.stop(spark, done=done)
    return 0 if summary.get("equal", True) else 1


def _tell(step: str) -> None:
    """What is being done now, on standard error: a user sees that it goes on."""
    print(f"{step} ...", file=sys.stderr, flush=True)


def _check_summary(file: str) -> None:
    """Raises: UsageError where it cannot be written. Leaves no file."""
    folder = Path(file).absolute().parent
    if not folder.is_dir():
        raise click.UsageError(f"--summary {file}: there is no such folder")
    try:
        with open(file, "a") if Path(file).exists() else tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise click.UsageError(f"--summary {file}: it cannot be written: {error.strerror}") from None


def _greet(side: Source | str, topics: Sequence[str]) -> None:
    """Ask a cluster whether it is there, and has these topics; and whether an archive or a log directory is there.
    Raises PipelineError."""
    if isinstance(side, str):
        if "://" not in side and not Path(side).exists():
            raise PipelineError(f"{side}: there is no such folder")
        return
    from kbroker.pipeline.kafka import existing
    from kbroker.pipeline.wire import Cluster

    _tell(f"asking the broker at {side.bootstrap}")
    with Cluster(side.patient(GREETING_S).settings) as cluster:
        cluster.learn_leaders([])
        if topics:
            existing(cluster, topics, side.bootstrap)


def _show(summary: Summary, file: str | None) -> None:
    if file is not None:
        Path(file).write_text(json.dumps(summary, indent=1, default=str) + "\n")
    for line in _lines(summary):
        print(line)


def _lines(summary: Summary) -> Iterator[str]:
    """A summary for people: plain values in one line, what is in lists a line each."""
    plain = {name: value for name, value in summary.items() if not isinstance(value, dict | list) and name != "job"}
    yield ": ".join(filter(None, [summary["job"], _entry(plain)]))
    for name, value in summary.items():
        if isinstance(value, dict):
            for key, each in value.items():
                entry = each if isinstance(each, dict) else {"": each}
                lists = [content for content in entry.values() if isinstance(content, list)]
                short = {part: content for part, content in entry.items() if not isinstance(content, list)}
                yield f"  {name} {key}: {_entry(short).strip()}"
                yield from (f"    {_entry(row)}" for rows in lists for row in rows)
        elif isinstance(value, list):
            yield from (f"  {_entry(each)}" for each in value)


def _entry(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_WORDS.get(name, name)} {_entry(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return _worded(value)


_WORDS = {"quarantined": "of these quarantined", "inferred_from": "inferred from values"}
"""What a summary's names are called in its lines."""


def _worded(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def _bar(spark: Session, doing: str) -> Iterator[Callable[[str], None]]:
    """How many of Spark's tasks are done, on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)

        def watch() -> None:
            while not over.wait(0.5):
                stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each))]
                if stages:
                    total = sum(each.numTasks for each in stages)
                    bar.update(task, completed=sum(each.numCompletedTasks for each in stages), total=total)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield lambda text: bar.update(task, description=f"{doing}: {text}")
        finally:
            over.set()
            thread.join()


def _source(bootstrap: str, options: Sequence[str]) -> Source:
    from kbroker.pipeline.kafka import Source
    from kbroker.pipeline.wire import split_address

    for address in bootstrap.split(","):
        split_address(address)
    return Source(bootstrap, _pairs(options, "--option"))


def _side(text: str, options: Sequence[str]) -> Source | str:
    """HOST:PORT or a folder; a folder is what has a slash, or is there."""
    if "/" in text or Path(text).exists() or not re.search(":[0-9]+$", text):
        return text
    return _source(text, options)


def _registry_of(given: dict[str, Any], **more: Any) -> Any:
    """The schema registry, if one is given. Raises PipelineError."""
    if given["registry"] is None:
        return None
    from kbroker.pipeline.registry import Access, Registry

    return Registry(Access(given["registry"], _pairs(given["registry_options"], "--registry-option")), **more)


def _check_registry(given: dict[str, Any]) -> None:
    """Raises PipelineError where a schema registry is given that does not answer."""
    if given["registry"] is not None:
        _tell(f"asking the schema registry at {given['registry']}")
        _registry_of(given, retries=0).check()


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    for each in given:
        if "=" not in each:
            raise click.UsageError(f"{option} {each}: write KEY=VALUE")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _schema(file: str, values: str | None) -> str:
    if values not in ("avro", "json"):
        raise click.UsageError("--schema is of --values avro or json")
    if values == "json" and file == "infer":
        return file
    if not Path(file).is_file():
        raise click.UsageError(f"--schema {file}: there is no such file")
    try:
        return Path(file).read_text("utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{file}: allowed: JSON in UTF-8") from None


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _renamed(names: Sequence[str]) -> dict[str, str]:
    """A[=B] as A -> B. Raises: UsageError as `check_names`, and where a topic is named twice."""
    found: dict[str, str] = {}
    for each in names:
        old, _, new = each.partition("=")
        if found.get(old, new or old) != (new or old):
            raise click.UsageError(f"{old} cannot be {found[old]} and {new or old}: name it once")
        found[old] = new or old
    try:
        check_names(found)
    except PipelineError as error:
        raise click.UsageError(str(error)) from None
    return found


def _time(text: str | None) -> int | None:
    """ms since 1970 of a time as a user writes it; without a zone it is UTC."""
    if text is None:
        return None
    with suppress(ValueError):
        return whole(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is no time: write 2026-01-31T12:00, or ms since 1970") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
