"""Jars that a job's session has beside Spark's own: those of a folder, and packages that Spark fetches.

Called before a session starts. The jobs need none: they are for tables, object stores, and what a user's settings need.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyspark

from kbroker.pipeline.errors import PipelineError

PACKAGES = {
    "iceberg": {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
    "delta": {"4.1": "io.delta:delta-spark_4.1_2.13:4.4.0", "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0"},
    "s3a": {"4.1": "org.apache.hadoop:hadoop-aws:3.4.2", "4.2": "org.apache.hadoop:hadoop-aws:3.5.0"},
    "gs": {"4.2": "org.apache.hadoop:hadoop-gcp:3.5.0"},
}
"""What a word of `--packages` stands for, by Spark's version: what the tests ran with, of the Hadoop that it has."""
ICEBERG_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def settings(folder: str | None = None, packages: Sequence[str] = ()) -> dict[str, str]:
    """Spark's settings that bring the jars of a folder (this one, or KBROKER_PIPELINE_JARS), and packages: words of
    PACKAGES, or Maven's coordinates. Raises PipelineError."""
    folder = folder or os.environ.get("KBROKER_PIPELINE_JARS")
    found: dict[str, str] = {}
    if folder:
        names = sorted(map(str, Path(folder).absolute().glob("*.jar")))
        if not names:
            raise PipelineError(f"{folder}: there is no *.jar in it")
        found["spark.jars"] = ",".join(names)
    if packages:
        found["spark.jars.packages"] = ",".join(map(_coordinates, packages))
    return found | of_formats("".join(found.values()))


def of_formats(names: str) -> dict[str, str]:
    """Spark's settings for the tables' formats, and file systems, whose jars are among these names."""
    found = dict(DELTA_SETTINGS) if "delta-spark" in names else {}
    if "hadoop-aws" in names:  # no file is named as a folder is: nothing need be asked before one is made
        found["spark.hadoop.fs.s3a.performance.flags"] = "create,mkdir"
    if "hadoop-gcp" in names:  # Hadoop knows it by no name of its own
        found["spark.hadoop.fs.gs.impl"] = "org.apache.hadoop.fs.gs.GoogleHadoopFileSystem"
        found["spark.hadoop.fs.AbstractFileSystem.gs.impl"] = "org.apache.hadoop.fs.gs.Gs"
    if "iceberg-spark-runtime" in names:
        extensions = filter(None, [found.get("spark.sql.extensions"), ICEBERG_EXTENSION])
        found["spark.sql.extensions"] = ",".join(extensions)
    return found


def _coordinates(package: str) -> str:
    """Of a word, or of what are coordinates already."""
    if ":" in package:
        return package
    by_version = PACKAGES.get(package)
    if by_version is None:
        raise PipelineError(f"--packages {package}: write GROUP:NAME:VERSION, or one of {', '.join(PACKAGES)}")
    spark = re.match(r"\d+\.\d+", pyspark.__version__)
    assert spark, pyspark.__version__
    if spark[0] not in by_version:
        known = " and ".join(by_version)
        raise PipelineError(
            f"--packages {package}: known for Spark {known}, and this is {pyspark.__version__}: "
            f"pip install 'pyspark=={known.split()[-1]}.*', or give the coordinates of one for it"
        )
    return by_version[spark[0]]
