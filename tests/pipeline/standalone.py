"""A standalone Spark cluster on this machine: a master and two workers, a process each.

What is waited for is waited for until it is there or its process has died: on a machine with other work a JVM may take
minutes to start. Used by tests and by `scripts/bench pipeline`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from compat_tests.apache import free_port
from compat_tests.waiting import eventually

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
