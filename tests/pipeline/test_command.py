"""`kbroker pipeline NAME` as a user types it; and once on a standalone Spark cluster, a master and two workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from compat_tests import environments
from compat_tests.apache import free_port
from compat_tests.waiting import eventually
from kbroker.pipeline import jars
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

SMALL = ["--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1"]
SMALL += ["--conf", "spark.driver.memory=1g", "--conf", "spark.sql.shuffle.partitions=2"]


def pipeline(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    pom = Path(jars.__file__).with_name("connector.pom.xml")
    folder = environments.spark_jars(pom, "pipeline-jars-4.2.0")[0].parent
    command = [sys.executable, "-m", "kbroker.cli", "pipeline", *words, "--jars", str(folder), *SMALL]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


def test_a_job_prints_its_summary_and_writes_it_as_json(
    source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(100)])
    words = ["archive", "--bootstrap", source.bootstrap, "--topics", topic, "--to", str(tmp_path / "archive")]
    done = pipeline(*words, "--until", "now", "--summary", str(tmp_path / "summary.json"), "--master", "local[2]")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"topics {topic}: records 100, quarantined 0" in done.stdout
    assert json.loads((tmp_path / "summary.json").read_text())["records"] == 100


def test_an_audit_that_cannot_look_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = pipeline("audit", "--left", str(tmp_path), "--right", nobody, "--topics", "t", "--master", "local[1]")
    assert done.returncode == 2
    assert done.stderr == f"kbroker: file:{tmp_path} is no archive: it has no _manifest folder\n"


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """A master and two workers; the master's URL."""
    home = Path(pyspark.__file__).parent
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    base = [str(home / "bin" / "spark-class")]
    ui = ["--webui-port", "0"]
    worker = [
        *base,
        "org.apache.spark.deploy.worker.Worker",
        master,
        "-c",
        "1",
        "-m",
        "600m",
        "--host",
        "127.0.0.1",
        *ui,
    ]
    commands = [[*base, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), *ui]]
    commands += [[*worker, "--work-dir", str(folder / f"work{number}")] for number in range(2)]
    variables = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(home)}
    with ExitStack() as stack:
        logs = []
        for number, command in enumerate(commands):
            log = folder / f"daemon{number}.log"
            out = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(command, stdout=out, stderr=out, env=variables)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            logs.append(log)
            if number == 0:
                eventually(lambda: "Starting Spark master" in log.read_text(errors="replace"), 60)  # noqa: B023
        eventually(lambda: len(re.findall("Registering worker", logs[0].read_text(errors="replace"))) == 2, 90)
        yield master


def test_the_same_command_runs_on_a_cluster(source: Source, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    fill(cluster, topic, [records(300), records(200, 2)])
    executors = ["--conf", "spark.executor.memory=500m", "--conf", "spark.driver.host=127.0.0.1"]
    bootstrap = ["--bootstrap", source.bootstrap]
    folder = str(tmp_path / "archive")
    with standalone(tmp_path) as master:
        on = ["--master", master, *executors]
        said = [
            pipeline("archive", *bootstrap, "--topics", topic, "--to", folder, "--until", "now", *on),
            pipeline("replay", *bootstrap, "--from", folder, "--topic", f"{topic}={topic}-copy", *on),
            pipeline("audit", "--left", folder, "--right", source.bootstrap, "--topics", f"{topic}={topic}-copy", *on),
        ]
    assert [(done.returncode, done.stderr) for done in said] == [(0, "")] * 3
    assert "equal yes, records_left 500, records_right 500" in said[2].stdout


def test_without_spark_a_broker_installs_and_the_command_says_what_to_do() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from kbroker.cli import run; sys.exit(run(sys.argv[1:]))"
    words = ["pipeline", "profile", "--report", "x.html"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "kbroker: the pipeline needs pyspark: pip install 'kbroker[pipeline]'\n",
    )
