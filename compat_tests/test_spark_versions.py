"""`format("kbroker")` on each version of Spark that it is said to load on, and under Spark Connect.

Each version lives in a virtual environment of its own in `.cache/clients/`, some 700 MB: for scripts/compat alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import environments
from compat_tests.environments import NoClientError, unavailable
from kbroker import testing
from tests.pipeline.given import records

ROOT = Path(__file__).parents[1]
REQUIRED = ["pyarrow==26.0.1", "pandas==2.3.3", "numpy==2.4.6", "crc32c==2.9.post0", "lz4==4.4.5", "cramjam==2.11.0"]
REQUIRED += ["zstandard==0.25.0", "setuptools==80.9.0"]
CONNECT = ["grpcio==1.85.3", "grpcio-status==1.85.3", "googleapis-common-protos==1.76.0"]
pytestmark = [pytest.mark.java, pytest.mark.timeout(1500)]

EVERYTHING = {
    "load": 500, "register": None, "batch": 100, "columns": [["offset", "key"], 6], "where": 5, "disk": 500,
    "write": 500, "stream": 500, "the stream again": 500, "rate": 500, "write a stream": 500,
}  # fmt: skip


def no(what: str, since: str, version: str) -> str:
    return f"{what} need Spark {since} or newer: this is {version}"


LACKS: dict[str, dict[str, Any]] = {
    "3.5.9": {
        "register": no("data sources in Python (kbroker.pipeline.load reads the same without)", "4.0", "3.5.9"),
    },
    "4.0.4": {
        "rate": no("streams with the option maxOffsetsPerTrigger", "4.2", "4.0.4"),
        "write a stream": no("streams that are written", "4.1", "4.0.4"),
    },
    "4.1.3": {"rate": no("streams with the option maxOffsetsPerTrigger", "4.2", "4.1.3")},
    "4.2.0": {},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Any]:
    with testing.broker() as started:
        yield started


@pytest.mark.parametrize("mode", ["classic", "connect"])
@pytest.mark.parametrize("version", LACKS)
def test_the_data_source_on_a_version_of_spark(broker: Any, tmp_path: Path, version: str, mode: str) -> None:
    from kbroker.pipeline.kafka import Source
    from kbroker.pipeline.wire import Cluster
    from tests.pipeline.given import fill

    if version == "3.5.9" and mode == "connect":
        pytest.skip("Spark 3.5 brings no server of Spark Connect with its wheel")
    try:
        python = environments.python("pyspark", version, [f"pyspark=={version}", *REQUIRED, *CONNECT])
    except NoClientError as reason:
        unavailable(str(reason))
    topic = f"t-{version}-{mode}"
    with Cluster(Source(broker.bootstrap).settings) as cluster:
        fill(cluster, topic, [records(300), records(200, 2)])
        for each in ("out", "copy"):
            cluster.create(f"{topic}-{each}", 2, {"retention.ms": "-1"})
    words = [
        str(python),
        environments.driver("spark_source.py"),
        broker.bootstrap,
        topic,
        str(broker.data),
        str(tmp_path),
    ]
    paths = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [*words, mode], capture_output=True, text=True, env={**os.environ, **paths}, cwd=tmp_path, timeout=1400
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found.pop("spark"), ".connect." in found.pop("session")) == (version, mode == "connect")
    keys = sum(each.key == b"key-1" for each in [*records(300), *records(200, 2)])
    expected = {**EVERYTHING, "key": keys, **LACKS[version]}
    if version == "3.5.9":
        expected = {name: expected[name] for name in ("load", "register")}
        found = {name: found[name] for name in expected}
    assert found == expected
