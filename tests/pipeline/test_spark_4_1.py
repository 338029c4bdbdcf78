"""The jobs on Spark 4.1, the newest for which there is Iceberg: the tests of tables again, in sessions on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat_tests import environments

LONG_S = 1200
pytestmark = pytest.mark.slow


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("file", ["test_tables.py", "test_object_stores.py"])
def test_tables_of_iceberg_and_delta_on_spark_4_1(file: str) -> None:
    older = environments.package("pyspark", "4.1.4")
    variables = {**os.environ, "PYTHONPATH": f"{older}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    variables.pop("PYTEST_XDIST_WORKER", None)
    tests = Path(__file__).with_name(file)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "spark", str(tests)],
        cwd=Path(__file__).parents[2],
        env=variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
