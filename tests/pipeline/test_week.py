"""A week of an archive that goes on, a day each: what happens to those who keep one, and at its end every record.

`archive --format iceberg --values registry`, as a process on a small Spark cluster, into a file system of its own. Days
that end the job are followed by another one, as a scheduler would start it. What was written, and not
archived because its topic was deleted, is told. On Spark 4.1, for which there is Iceberg; some 2 GB of heaps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from confluent_kafka.schema_registry import Schema
from pyiceberg.table import StaticTable

from compat_tests import apicurio, environments
from compat_tests.waiting import eventually
from kbroker.pipeline.registry import Access, Registry
from kbroker.pipeline.wire import Cluster
from protocol.records import Record
from tests.pipeline.given import T0, fill
from tests.pipeline.test_decoders import avro_bytes, framed, record

LONG_S = 3000
PATIENCE_S = 600.0
DISK = "96m"
PARTITIONS = 2
SHAPES = [record(n="long"), record(n="long", who="string")]
SHAPES[1]["fields"][1]["default"] = "-"
UNKNOWN_ID = 9999
EXECUTOR = "CoarseGrainedExecutorBackend"
pytestmark = pytest.mark.slow


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A folder with a file system of its own, in memory, that is soon full."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)], capture_output=True)
    if done.returncode:
        environments.unavailable(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # a process of Spark's may end a little later


class Written(NamedTuple):
    """A record as it has to be in the table."""

    generation: int
    partition: int
    offset: int
    timestamp_ms: int
    n: int
    who: str | None


class Producers:
    """Who writes to the topic. kept: what has to be in the table at the end; apart: how many are set apart."""

    def __init__(self, cluster: Cluster, topic: str, ids: list[int]) -> None:
        self._cluster, self.topic, self._ids = cluster, topic, ids
        self._next: Counter[int] = Counter()
        self._generation, self._n = 0, 0
        self.kept: list[Written] = []
        self.apart = 0

    def write(self, count: int, shape: int = 1, stamp: int = T0, *, is_kept: bool = True) -> None:
        """So many records into each partition, of one of SHAPES, with times from `stamp` on."""
        parts = []
        for partition in range(PARTITIONS):
            rows = []
            for at in range(count):
                value = {"n": self._n, **({"who": f"u{self._n % 7}"} if shape else {})}
                body = framed(self._ids[shape], avro_bytes(SHAPES[shape], value))
                rows.append(Record(at, stamp + at, b"k", body, ()))
                if is_kept:
                    place = self._generation, partition, self._next[partition] + at
                    self.kept.append(Written(*place, stamp + at, value["n"], value.get("who")))
                self._n += 1
            self._next[partition] += count
            parts.append(rows)
        fill(self._cluster, self.topic, parts)

    def write_of_no_schema(self, count: int) -> None:
        """Records that the registry knows nothing of."""
        rows = [Record(at, T0, b"k", framed(UNKNOWN_ID, b"\0"), ()) for at in range(count)]
        fill(self._cluster, self.topic, [rows, []])
        self._next[0] += count
        self.apart += count

    def make_anew(self) -> None:
        """Delete the topic. It is made again by the next record."""
        self._cluster.remove([self.topic])
        eventually(lambda: not self._cluster.has(self.topic))
        self._generation, self._next = self._generation + 1, Counter()


class Job:
    """The archive's job, as its keeper starts it."""

    def __init__(self, words: list[str], variables: Mapping[str, str], log: Path) -> None:
        self._words, self._variables, self._log = words, variables, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, once more."""
        with self._log.open("ab") as log:
            command = [*self._words, *more]
            self._process = subprocess.Popen(command, env=self._variables, stdout=log, stderr=log)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def said(self) -> str:
        """All that its runs have printed."""
        return self._log.read_text(errors="replace")

    def end(self, how: signal.Signals) -> int:
        """Send a signal to it, and be told its exit code."""
        assert self._process is not None
        children = _below(self._process.pid)
        self._process.send_signal(how)
        code = self._process.wait(PATIENCE_S)
        if how == signal.SIGKILL:  # its JVMs see that and end, some time
            for each in children:
                _kill(each)
        return code

    def kill_an_executor(self) -> None:
        """As the kernel does where memory runs out."""
        assert self._process is not None
        running = [each for each in _below(self._process.pid) if EXECUTOR in _command(each)]
        assert running, self.said[-2000:]
        _kill(running[0])

    def wait_for_its_end(self) -> int:
        """Until it ends by itself: the exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _below(pid: int) -> list[int]:
    """The processes that descend from one."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(each.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for each in new for child in parents.get(each, [])]
        found += new
    return found


def table(folder: Path, name: str = "records") -> Any:
    """A table of the archive, by PyIceberg; None if it is not there yet."""
    metadata = folder / name / "metadata"
    known = (
        sorted(metadata.glob("v*.metadata.json"), key=lambda path: int(path.name[1:-14])) if metadata.is_dir() else []
    )
    return StaticTable.from_metadata(str(known[-1])).scan().to_arrow() if known else None


def rows(folder: Path) -> list[Written]:
    """What the table has."""
    found = table(folder)
    columns = ("generation", "partition", "offset", "timestampMs", "value_data")
    if found is None or not set(columns) <= set(found.column_names):
        return []
    each = found.select(list(columns)).to_pylist()
    return sorted(
        Written(*(row[name] for name in columns[:4]), row["value_data"]["n"], row["value_data"].get("who"))
        for row in each
    )


def count_by_duckdb(folder: Path) -> tuple[int, int]:
    """How many records there are, and how many of them have no timestamp of Spark's."""
    session = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = __import__(f"duckdb_extension_{name}")
        (binary,) = Path(package.__path__[0]).rglob(f"{name}.duckdb_extension")
        session.load_extension(str(binary))
    asked = f"SELECT count(*), count(*) - count(timestamp) FROM iceberg_scan('{folder / 'records'}')"
    found = session.sql(asked).fetchone()
    assert found is not None
    return found[0], found[1]


@contextmanager
def keeper_of(folder: Path, bootstrap: str, topic: str, registry: str, log: Path) -> Iterator[Job]:
    """A job that can be started, and ends with the block."""
    older = environments.package("pyspark", "4.1.4")
    jars = environments.jars_of(Path(environments.__file__).with_name("tables-4.1.pom.xml"), "tables-4.1-jars")
    small = {
        "spark.driver.memory": "900m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": str(older),  # else its workers would be those of the Spark that is installed
    }
    words = [sys.executable, "-m", "kbroker", "pipeline", "archive", "--bootstrap", bootstrap, "--topics", topic]
    words += ["--to", str(folder), "--format", "iceberg", "--values", "registry", "--schema-registry-url", registry]
    words += ["--recreated", "continue", "--master", "local-cluster[2,1,600]", "--jars", str(jars[0].parent)]
    words += [word for name, value in small.items() for word in ("--conf", f"{name}={value}")]
    variables = {**os.environ, "PYTHONPATH": f"{older}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    job = Job(words, variables, log)
    try:
        yield job
    finally:
        if job.is_alive:
            job.end(signal.SIGKILL)


@pytest.mark.timeout(LONG_S)
def test_every_query_is_right_after_a_week_of_bad_days(
    broker: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with apicurio.registry() as url, small_disk(disk):
        client = Registry(Access(url))._client
        ids = [client.register_schema(f"{topic}-value", Schema(json.dumps(each), "AVRO")) for each in SHAPES]
        producers = Producers(cluster, topic, ids)
        folder = disk / "orders"
        with keeper_of(folder, broker.bootstrap, topic, url, tmp_path / "log") as job:
            week(job, producers, folder, disk)
            assert rows(folder) == sorted(producers.kept)
            assert job.end(signal.SIGINT) == 0
            job.start("--until", "now", "--compact-files", "--expire-days", "0")
            assert job.wait_for_its_end() == 0, job.said[-3000:]
        assert rows(folder) == sorted(producers.kept)
        odd = sum(1 for each in producers.kept if each.timestamp_ms > T0 * 1000)
        assert count_by_duckdb(folder) == (len(producers.kept), odd)
        apart = table(folder, "quarantine").to_pylist()
        assert Counter(row["reason"] for row in apart) == {
            f"value: schema id {UNKNOWN_ID} is not in the registry": producers.apart
        }


def week(job: Job, producers: Producers, folder: Path, disk: Path) -> None:
    """The days."""

    def is_all_there() -> bool:
        assert job.is_alive, job.said[-3000:]
        return len(rows(folder)) == len(producers.kept)

    def at_work() -> bool:
        return (folder / "_manifest" / "open.json").exists()

    # Monday: records of a first schema, then of a second one; some that the registry does not know
    producers.write(200, shape=0)
    job.start()
    eventually(is_all_there, PATIENCE_S)
    producers.write(100)
    producers.write_of_no_schema(5)
    eventually(is_all_there, PATIENCE_S)

    # Tuesday: a producer stamps nanoseconds
    producers.write(100, stamp=T0 * 10**6)
    eventually(is_all_there, PATIENCE_S)

    # Wednesday: an executor is killed in the middle of a batch
    producers.write(3000)
    eventually(at_work, PATIENCE_S)
    job.kill_an_executor()
    eventually(is_all_there, PATIENCE_S)

    # Thursday: the topic is deleted and made again
    producers.make_anew()
    producers.write(150)
    eventually(is_all_there, PATIENCE_S)

    # Friday: the driver is killed in the middle of a batch
    producers.write(3000)
    eventually(at_work, PATIENCE_S)
    job.end(signal.SIGKILL)
    job.start()
    eventually(is_all_there, PATIENCE_S)

    # Saturday: the disk fills up, and room is made
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(16384))
    producers.write(3000)
    assert job.wait_for_its_end() == 2
    assert job.said.splitlines()[-1].startswith("kbroker: the disk is full"), job.said[-3000:]
    ballast.unlink()
    job.start()
    eventually(is_all_there, PATIENCE_S)

    # Sunday: while no job runs, the topic is deleted with records that were not archived, and made again
    assert job.end(signal.SIGINT) == 0
    producers.write(50, is_kept=False)
    producers.make_anew()
    producers.write(70)
    told = len(job.said)
    job.start()
    eventually(is_all_there, PATIENCE_S)
    assert f"topic {producers.topic} was deleted and made again: of the one before there is" in job.said[told:]
