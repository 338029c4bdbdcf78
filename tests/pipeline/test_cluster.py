"""Every job on a real standalone Spark cluster: a master and two workers, a process each.

Whatever is waited for is waited for until it is there or its process has died: on a machine with other work a JVM may
take minutes to start. All heaps are bounded, some 2 GB together.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest

from compat_tests.apache import free_port
from compat_tests.waiting import eventually
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

pytestmark = pytest.mark.slow

LONG_S = 600


class Daemon:
    """One of Spark's own processes."""

    def __init__(self, stack: ExitStack, log: Path, kind: str, *words: str) -> None:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
        command += ["--host", "127.0.0.1", "--webui-port", "0"]
        small = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
        variables = {**os.environ, **small, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=variables)
        stack.callback(self._end)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()

    def await_line(self, text: str, count: int = 1) -> None:
        """Until it has said so that many times. Fails when it has died."""

        def said() -> bool:
            log = self._log.read_text(errors="replace")
            assert self._process.poll() is None, log[-2000:]
            return log.count(text) >= count

        eventually(said, LONG_S)


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers of one core each; the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        master = Daemon(stack, folder / "master.log", "master.Master", "--port", str(port))
        master.await_line("Starting Spark master")
        for number in range(2):
            work = ["-c", "1", "-m", "600m", "--work-dir", str(folder / f"work{number}")]
            Daemon(stack, folder / f"worker{number}.log", "worker.Worker", url, *work)
        master.await_line("Registering worker", count=2)
        yield url


@pytest.mark.timeout(LONG_S)
def test_every_job_runs_on_a_cluster_of_two_workers(
    source: Source, cluster: Cluster, broker: Any, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300), records(200, 2)])
    with standalone(tmp_path) as master:
        words = [master, source.bootstrap, topic, str(broker.data), str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "tests.pipeline.on_cluster", *words], capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("convert") > 0
    assert found == {
        "archive": 500,
        "replay": 500,
        "mirror": 500,
        "audits": [True, True],
        "profile": 500,
        "compact-check": 500,
        "source": [500, 500],
        "executors": 2,
    }
