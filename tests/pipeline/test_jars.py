"""A folder of jars for a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import archive, jars
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records


def test_a_session_has_the_jars_of_the_folder_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jars.settings() == {}
    for name in ("a.jar", "b.jar", "c.txt"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KBROKER_PIPELINE_JARS", str(tmp_path))
    expected = {"spark.jars": f"{tmp_path}/a.jar,{tmp_path}/b.jar"}
    assert (jars.settings(), jars.settings(str(tmp_path))) == (expected, expected)


def test_a_folder_without_jars_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"^{tmp_path}: there is no \*\.jar in it"):
        jars.settings(str(tmp_path))


def test_packages_are_words_or_coordinates_and_bring_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    found = jars.settings(packages=["iceberg", "delta", "org.example:a:1"])
    assert found == {
        "spark.jars.packages": (
            "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,io.delta:delta-spark_4.1_2.13:4.4.0,org.example:a:1"
        ),
        "spark.sql.extensions": f"io.delta.sql.DeltaSparkSessionExtension,{jars.ICEBERG_EXTENSION}",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    assert jars.settings(packages=["s3a"]) == {
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0",
        "spark.hadoop.fs.s3a.performance.flags": "create,mkdir",
    }
    assert "spark.hadoop.fs.gs.impl" in jars.settings(packages=["gs"])


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("icebreg", "write GROUP:NAME:VERSION, or one of iceberg, delta, s3a, gs"),
        ("iceberg", r"known for Spark 4\.1, and this is 4\.2\.0: pip install 'pyspark==4\.1\.\*'"),
    ],
)
def test_packages_that_cannot_be_had_are_told(package: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.2.0")
    with pytest.raises(PipelineError, match=why):
        jars.settings(packages=[package])


def test_jars_that_the_session_lacks_are_told(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    with pytest.raises(PipelineError, match="the session lacks iceberg's jars: give --packages iceberg, or --jars"):
        archive.archive(spark, source, [topic], str(tmp_path), until_now=True, kind=archive.Kind("iceberg"))
    assert not tmp_path.joinpath("_manifest").exists()
