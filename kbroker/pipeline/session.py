"""One Spark session for a job: its settings, its noise, its end.

Called by the command line and by tests. The JVM's own error stream goes to a file, for a user sees one line; the file
is there until a job has done its work. A session that the caller of a job gives is used as it is.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from kbroker.pipeline import jars
from kbroker.pipeline.errors import PipelineError

HERE = "local[*]"
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",  # by itself 10,000, of which VACUUM makes tasks
}
ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",  # dates of the archive are the same everywhere
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20),  # by itself 64 MB, which the JVM and a worker each have
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",  # rows of 1 KB from Python workers come half as fast again by it
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.executorEnv.PYTHONSAFEPATH": "1",  # Python workers do not import a clone's own folder, where the job is run
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",  # a topic called 007 keeps its zeros
}

SHUFFLE = "spark.sql.shuffle.partitions"
"""By itself Spark has 200, whatever the cluster's size: here twice as many as there are cores."""
_LOGS: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()
"""Where the error stream goes of a session's JVM."""


def master_of(given: str | None, conf: Mapping[str, str]) -> str | None:
    """Where Spark runs: where its user says; None where Spark's own settings say it, as spark-submit's do on YARN and
    Kubernetes; else on this machine."""
    if given or "spark.master" in conf:
        return given or conf["spark.master"]
    home = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    defaults = Path(home, "spark-defaults.conf")
    is_told = (
        "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started this
        or "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        or (defaults.is_file() and re.search(r"(?m)^\s*spark\.master[\s=]", defaults.read_text()))
    )
    return None if is_told else HERE


def start(
    master: str | None = HERE,
    *,
    jar_folder: str | None = None,
    packages: Sequence[str] = (),
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session. master: None where Spark's own settings say it. jar_folder, packages: jars beside Spark's, as
    jars.settings has them. conf: its settings beyond, or instead of, ours.

    Raises PipelineError.
    """
    os.environ["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or sys.executable
    settings = {
        **ALWAYS,
        **(LOCAL if master and master.startswith("local") else {}),
        **jars.settings(jar_folder, packages),
        **(conf or {}),
    }
    builder = SparkSession.builder.appName("kbroker pipeline")
    if master:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _quiet() as log:
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            why = _last_words(Path(log).read_text(errors="replace")) or error
            raise PipelineError(
                f"Spark does not start{f' on {master}' if master else ''}: {why} (all of it: {log})"
            ) from error
    if SHUFFLE not in settings:
        spark.conf.set(SHUFFLE, str(max(8, 2 * spark.sparkContext.defaultParallelism)))
    _LOGS[spark] = log
    return spark


def stop(spark: SparkSession, *, done: bool) -> None:
    """End a session that was started here. done: its job has done its work, and what the JVM has said tells nothing."""
    spark.stop()
    if done and (log := _LOGS.pop(spark, None)):
        Path(log).unlink(missing_ok=True)


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the session's has this value meanwhile, and afterwards what it had, if it had any."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def _last_words(log: str) -> str:
    """The last line, but for those of a trace, which say where in Spark and not what."""
    lines = [line for line in log.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return lines[-1] if lines else ""


@contextmanager
def _quiet() -> Iterator[str]:
    """What is started in here inherits a file as its error stream."""
    handle, path = tempfile.mkstemp(prefix="kbroker-pipeline-", suffix=".log")
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(handle, 2)
    try:
        yield path
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(handle)
