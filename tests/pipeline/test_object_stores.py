"""Archives in an object store: no file of records is renamed, for that is a copy there; and how much is asked of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import boto3
import pyspark
import pytest
from moto.moto_server.threaded_moto_server import MotoRequestHandler
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from kbroker.pipeline import archive, audit, replay
from kbroker.pipeline.archive import Kind
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.lease import Lease
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

ICEBERG = ["iceberg"] if pyspark.__version__.startswith("4.1.") else []


class Calls:
    """What was asked of the store. copied: keys of copies, which is what a rename is."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.copied: list[str] = []
        self._app = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start: Any) -> Any:
        self.kinds[environ["REQUEST_METHOD"]] += 1
        if "HTTP_X_AMZ_COPY_SOURCE" in environ:
            self.copied.append(environ["PATH_INFO"])
        return self._app(environ, start)

    def since(self, before: Counter[str]) -> int:
        return sum(self.kinds.values()) - sum(before.values())


@pytest.fixture(scope="module")
def calls(spark: Any) -> Iterator[Calls]:
    """An S3 on this machine, known to the session."""
    app = Calls()
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    settings = {
        "endpoint": url,
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": "key",
        "secret.key": "secret",
    }
    for name, value in settings.items():
        spark.sparkContext._jsc.hadoopConfiguration().set(f"fs.s3a.{name}", value)
    login = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=url, **login).create_bucket(Bucket="lake")
    yield app
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("form", "most"), [("parquet", 100), ("delta", 120), *((each, 120) for each in ICEBERG)])
def test_an_archive_in_s3_renames_no_records_and_asks_little(
    spark: Any, source: Source, cluster: Cluster, calls: Calls, topic: str, form: str, most: int
) -> None:
    folder = f"s3a://lake/{topic}"
    fill(cluster, topic, [records(300), records(200, 2)])

    def archived(**given: Any) -> Any:
        return archive.archive(spark, source, [topic], folder, until_now=True, kind=Kind(form), **given)

    assert archived()["records"] == 500
    fill(cluster, topic, [records(100), []])
    before = calls.kinds.copy()
    assert archived()["records"] == 100
    assert calls.since(before) <= most, calls.kinds - before
    before = calls.kinds.copy()
    assert archived()["records"] == 0
    assert calls.since(before) <= 40, calls.kinds - before
    assert [each for each in calls.copied if each.endswith((".parquet", ".avro"))] == []
    archive.compact_files(spark, folder)
    assert [each for each in calls.copied if each.endswith((".parquet", ".avro"))] == []
    assert audit.audit(spark, folder, source, {topic: topic})["equal"]
    assert replay.replay(spark, source, folder, topics={topic: f"{topic}-copy"})["written"] == 600


def test_of_two_jobs_at_an_archive_in_s3_one_is_told(
    spark: Any, source: Source, cluster: Cluster, calls: Calls, topic: str
) -> None:
    folder = f"s3a://lake/{topic}"
    fill(cluster, topic, [records(10)])
    store = Storage(spark, folder)
    assert store.create_json("_jobs/a.json", {"n": 1})
    assert not store.create_json("_jobs/a.json", {"n": 2})
    assert store.read_json("_jobs/a.json") == {"n": 1}
    store.delete("_jobs/a.json")
    with Lease(store) as held:
        held.acquire()
        with pytest.raises(PipelineError, match="is being written by another job"):
            archive.archive(spark, source, [topic], folder, until_now=True)
    assert archive.archive(spark, source, [topic], folder, until_now=True)["records"] == 10
