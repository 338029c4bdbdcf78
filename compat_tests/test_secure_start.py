"""A newcomer's first secured broker: what `kbroker start --secure` prints is pasted into Java and Spark, and they work.

Beside the admin another user logs in, who sees no topic's name; and Apache's tools administer it all. The same for
kafka-python and librdkafka is in tests/cli/test_secure_start.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests import environments
from compat_tests.apache import NEWEST, RELEASES, run_tool
from tests.cli.test_secure_start import Started

SECTION = "7 Apache's tools"
pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PRODUCER = {"3.9.1": "kafka.tools.ConsoleProducer", NEWEST: "org.apache.kafka.tools.ConsoleProducer"}
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONFIG = {"3.9.1": "kafka.admin.ConfigCommand", NEWEST: "org.apache.kafka.tools.ConfigCommand"}
ACLS = {"3.9.1": "kafka.admin.AclCommand", NEWEST: "org.apache.kafka.tools.AclCommand"}
TOPICS = "org.apache.kafka.tools.TopicCommand"
PASSWORD = "wonderland"
SPARK = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.jars", {jars!r}).getOrCreate()
spark.range(3).selectExpr("cast(id as string) as value").write.format("kafka"){options}.option("topic", "spark").save()
print(spark.read.format("kafka"){options}.option("subscribe", "spark").load().count(), "by kafka")
from kbroker.pipeline import register
register(spark)
print(spark.read.format("kbroker"){options}.option("subscribe", "spark").load().count(), "by kbroker")
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    running = Started(tmp_path_factory.mktemp("secure"))
    yield running
    running.end()


def pasted(started: Started, folder: Path) -> tuple[str, str]:
    """A file with the lines for Java as they were printed, and the address in it."""
    file = folder / "client.properties"
    file.write_text("\n".join(started.parts["java"]))
    (address,) = (line.partition("=")[2] for line in started.parts["java"] if line.startswith("bootstrap"))
    return str(file), address


@pytest.mark.parametrize("release", RELEASES)
def test_java_console_tools(started: Started, release: str, tmp_path: Path) -> None:
    """kafka-console-producer and -consumer, by what `kbroker start --secure` prints"""
    file, address = pasted(started, tmp_path)
    topic = f"java-{release}"
    where = ("--bootstrap-server", address, "--topic", topic)
    flag = "--producer.config" if release == "3.9.1" else "--command-config"
    done = run_tool(release, PRODUCER[release], *where, flag, file, text="one\ntwo\n")
    assert "ERROR" not in done.stderr + done.stdout, done.stderr
    flag = "--consumer.config" if release == "3.9.1" else "--command-config"
    done = run_tool(release, CONSUMER, *where, flag, file, "--from-beginning", "--max-messages", "2")
    assert done.stdout.split() == ["one", "two"], done.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_tools_administer_it(started: Started, release: str, tmp_path: Path) -> None:
    """kafka-configs, kafka-acls, kafka-topics: a user is made, sees nothing, and then what a rule allows"""
    file, address = pasted(started, tmp_path)
    as_admin = ("--bootstrap-server", address, "--command-config", file)
    user, topic = f"user-{release}", f"seen-{release}"
    made = f"SCRAM-SHA-512=[password={PASSWORD}]"
    entity = ("--entity-type", "users", "--entity-name", user)
    done = run_tool(release, CONFIG[release], *as_admin, "--alter", "--add-config", made, *entity)
    assert f"Completed updating config for user {user}" in done.stdout, done.stdout + done.stderr
    done = run_tool(release, TOPICS, *as_admin, "--create", "--topic", topic)
    assert f"Created topic {topic}" in done.stdout, done.stdout + done.stderr
    lines = Path(file).read_text().splitlines()
    login = f'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" '
    own = tmp_path / "own.properties"
    own.write_text("\n".join([*lines, f'{login} password="{PASSWORD}";']))
    as_user = ("--bootstrap-server", address, "--command-config", str(own))
    assert run_tool(release, TOPICS, *as_user, "--list").stdout.strip() == ""
    rule = ("--add", "--allow-principal", f"User:{user}", "--operation", "Describe", "--topic", topic)
    done = run_tool(release, ACLS[release], *as_admin, *rule)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_tool(release, TOPICS, *as_user, "--list").stdout.split() == [topic]
    assert f"principal=User:{user}" in run_tool(release, ACLS[release], *as_admin, "--list").stdout


def test_spark(started: Started, tmp_path: Path) -> None:
    """Spark's own connector and format("kbroker"), by what `kbroker start --secure` prints"""
    try:
        jars = environments.jars_of(Path(__file__).parent / "spark.pom.xml", "spark-jars-4.2.0")
    except environments.NoClientError as reason:
        environments.unavailable(str(reason))
    script = tmp_path / "pasted.py"
    options = "".join(started.parts["spark"])
    script.write_text(SPARK.format(jars=",".join(map(str, jars)), options=options))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["3 by kafka", "3 by kbroker"], done.stderr[-3000:]
