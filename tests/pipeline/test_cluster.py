"""Every job on a real standalone Spark cluster. All heaps are bounded, some 2 GB together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.kafka import Source
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records
from tests.pipeline.standalone import LONG_S, standalone

pytestmark = pytest.mark.slow


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
