"""Brokers that die under a job, topics and records that are not there: one line each, and nothing half-written."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.waiting import eventually
from kbroker.pipeline import archive, audit, compact_check, mirror, profile, register, replay
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.session import _last_words
from kbroker.pipeline.wire import LATEST, Cluster
from kbroker.testing import Broker, broker
from tests.pipeline.given import fill, records

pytestmark = pytest.mark.slow

HASTY = {"default.api.timeout.ms": "2000"}


@pytest.fixture
def mortal() -> Iterator[Broker]:
    """A broker that comes back to the same port and the same data."""
    with broker() as started:
        yield started


def hasty_source(mortal: Broker) -> Source:
    return Source(mortal.bootstrap, HASTY)


def equal(spark: Any, left: Any, right: Any, names: dict[str, str]) -> bool:
    return bool(audit.audit(spark, left, right, names)["equal"])


@pytest.mark.parametrize(
    "why",
    [
        "java.io.IOException: Mkdirs failed to create file:/proc/x/_manifest",
        "ExitCodeException exitCode=1: chmod: cannot access '/proc/x/_jobs': No such file or directory",
    ],
)
def test_what_java_raised_is_told_and_not_how_it_was_called(why: str) -> None:
    text = f"An error occurred while calling o62.create.\n: {why}\n\tat org.apache.A.b(A.java)\n"
    assert explain(Exception(text)) == why


@pytest.mark.parametrize(
    ("why", "package"),
    [
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "s3a"),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"', "gs"),
    ],
)
def test_a_session_without_the_jars_of_an_object_store_says_how_it_gets_them(why: str, package: str) -> None:
    said = explain(Exception(f"An error occurred while calling o1.x.\n: java.lang.RuntimeException: {why}\n\tat A.b"))
    assert said == f"the session lacks {package}'s jars: give --packages {package}, or --jars with a folder of them"


def test_a_spark_that_does_not_start_says_why_and_not_where() -> None:
    why = 'Exception in thread "main" org.apache.spark.SparkException: Master must either be yarn or start with spark'
    assert _last_words(f"some\n{why}\n\tat org.apache.A.b(A.scala:1)\n\t... 9 more\n") == why


def test_a_replay_goes_on_when_its_killed_broker_is_back(spark: Any, mortal: Broker, tmp_path: Path) -> None:
    source, folder, names = Source(mortal.bootstrap), str(tmp_path / "archive"), {"t": "copy"}
    job = threading.Thread(target=lambda: replay.replay(spark, source, folder, topics=names, rate=1000))
    with Cluster(source.settings) as cluster:
        fill(cluster, "t", [records(3000)])
        archive.archive(spark, source, ["t"], folder, until_now=True)
        cluster.create("copy", 1, {"retention.ms": "-1"})
        job.start()
        eventually(lambda: cluster.offsets([("copy", 0)], LATEST)["copy", 0] >= 300, 200)
        mortal.kill()
    mortal.start()
    job.join()
    assert equal(spark, folder, source, names)


def test_a_batch_whose_broker_dies_is_not_seen_and_is_archived_when_it_is_back(
    spark: Any, mortal: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = hasty_source(mortal), str(tmp_path / "archive")
    with Cluster(source.settings) as cluster:
        fill(cluster, "t", [records(200)])
        archive.archive(spark, source, ["t"], folder, until_now=True)
        fill(cluster, "t", [records(100)])
    whole = archive.laid_out
    with monkeypatch.context() as patch:
        patch.setattr(archive, "laid_out", lambda frame: (mortal.kill(), whole(frame))[1])
        with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
            archive.archive(spark, source, ["t"], folder, until_now=True)
    assert f"no broker answers at {mortal.bootstrap}: Connection refused" in explain(caught.value)
    assert archive.read(spark, folder).count() == 200
    mortal.start()
    assert archive.archive(spark, source, ["t"], folder, until_now=True)["records"] == 100
    assert equal(spark, folder, source, {"t": "t"})


def test_a_read_whose_broker_dies_is_one_line(spark: Any, mortal: Broker) -> None:
    source = hasty_source(mortal)
    with Cluster(source.settings) as cluster:
        fill(cluster, "t", [records(200)])
    rows = audit.records_of_side(spark, source, ["t"], False)
    mortal.kill()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        rows.count()
    assert f"no broker answers at {mortal.bootstrap}: Connection refused" in explain(caught.value)


@pytest.mark.parametrize(
    "job",
    [
        lambda spark, source, folder: profile.profile(spark, source, ["nobody"]),
        lambda spark, source, folder: compact_check.compact_check(spark, source, ["nobody"]),
        lambda spark, source, folder: audit.audit(spark, source, source, {"nobody": "nobody"}),
        lambda spark, source, folder: mirror.mirror(spark, source, source, {"nobody": "b"}, folder),
        lambda spark, source, folder: archive.archive(spark, source, ["nobody"], folder, until_now=True),
    ],
    ids=["profile", "compact-check", "audit", "mirror", "archive"],
)
def test_a_topic_that_is_not_there_is_named_by_every_job(
    spark: Any, source: Source, cluster: Cluster, job: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(PipelineError, match="has no topic 'nobody'"):
        job(spark, source, str(tmp_path / "folder"))
    assert not cluster.has("nobody")
    assert not (tmp_path / "folder").exists()


def test_python_workers_do_not_import_the_folder_where_the_job_is_run(spark: Any) -> None:
    """A clone's folder has a `kbroker` without `kbroker.protocol`, which only the installed one has."""
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.flags.safe_path).collect() == [True]


def test_what_a_python_worker_raised_is_the_line() -> None:
    text = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "pyspark/serializers.py", line 454, in loads
    return cloudpickle.loads(obj, encoding=encoding)
ModuleNotFoundError: No module named 'kbroker.protocol'
 SQLSTATE: 38000
org.apache.spark.SparkException: Job aborted due to stage failure"""
    assert explain(RuntimeError(text)) == "ModuleNotFoundError: No module named 'kbroker.protocol'"


def test_a_topic_that_an_archive_does_not_have_is_named(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    archive.archive(spark, source, [topic], str(tmp_path / "archive"), until_now=True)
    with pytest.raises(PipelineError, match="has no topic 'nobody'"):
        replay.replay(spark, source, str(tmp_path / "archive"), topics={"nobody": "nobody"})


def test_records_that_the_data_source_finds_gone_are_told_or_passed_over(
    spark: Any, source: Source, cluster: Cluster, topic: str
) -> None:
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    fill(cluster, topic, [records(100)])
    admin = KafkaAdminClient(bootstrap_servers=source.bootstrap)
    admin.delete_records({TopicPartition(topic, 0): 50})
    admin.close()
    register(spark)
    reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", f'{{"{topic}": {{"0": 10}}}}')
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        reader.load().count()
    assert "failOnDataLoss=false goes on with what is there" in explain(caught.value)
    assert reader.option("failOnDataLoss", "false").load().count() == 50
