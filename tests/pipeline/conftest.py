"""One Spark session and one broker for all tests of the pipeline.

They are a stage of their own in scripts/test, which installs the extra; where it is missing these files are left out,
and one test is skipped for all of them, or fails under CI=true.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ABSENT = [name for name in ("pyspark", "pyarrow", "plotly") if find_spec(name) is None]
ABSENT += [name for name in ("java", "mvn") if shutil.which(name) is None]
_HERE = Path(__file__).parent
collect_ignore = [path.name for path in _HERE.glob("test_*.py") if ABSENT and path.name != "test_installed.py"]


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Import none of these files, nor pandas, pyiceberg and moto, for a run that takes none of their tests."""
    return True if {"not java", "not spark"} & set(config.getoption("markexpr").split(" and ")) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.java)
            item.add_marker(pytest.mark.timeout(300))


def _jars() -> str:
    """Spark's Kafka connector, which the tests compare with, and what tables and object stores need."""
    import pyspark

    from compat_tests import environments

    older = pyspark.__version__.startswith("4.1.")
    poms = ["tables-4.1"] if older else ["spark", "tables"]
    homes = {name: Path(environments.__file__).with_name(f"{name}.pom.xml") for name in poms}
    names = {"spark": "spark-jars-4.2.0"}
    found = [jar for name, pom in homes.items() for jar in environments.jars_of(pom, names.get(name, f"{name}-jars"))]
    return ",".join(map(str, found))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session: two threads, a JVM that starts soon and stays small."""
    from kbroker.pipeline import jars, session

    small = {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",  # 50 by itself, each time that a table is looked at
        "spark.ui.showConsoleProgress": "false",
        # of a handful of rows: compiling Java for each query, and planning it again while it runs, takes longer
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.jars": (files := _jars()),
        **jars.of_formats(files),
    }
    started = session.start("local[2]", conf=small)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Any]:
    """A kbroker, on a thread beside the session's driver."""
    from kbroker import testing

    with testing.broker() as started:
        yield started


@pytest.fixture
def source(broker: Any) -> Any:
    """The broker as jobs are told of it."""
    from kbroker.pipeline.kafka import Source

    return Source(broker.bootstrap)


@pytest.fixture
def cluster(source: Any) -> Iterator[Any]:
    """A client of the broker."""
    from kbroker.pipeline.wire import Cluster

    with Cluster(source.settings) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest, _serial: Iterator[int]) -> str:
    """A name that no other test uses."""
    return f"t{next(_serial)}"


@pytest.fixture(scope="session")
def _serial() -> Iterator[int]:
    return iter(range(1, 10**6))
