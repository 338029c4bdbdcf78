"""One job at a time at an archive, or a mirror's state: the second is told, and one taken for dead does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import archive, audit, lease, manifests, mirror
from kbroker.pipeline.archive import Kind
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.lease import Lease
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster
from tests.pipeline.given import fill, records

BUSY = f"is being written by another job: process {os.getpid()} on .*, since .*: let it end, or stop it"


def archived(spark: Any, source: Source, topic: str, folder: Path, form: str = "parquet") -> int:
    found = archive.archive(spark, source, [topic], str(folder), until_now=True, kind=Kind(form))
    return int(found["records"])


def left_behind(store: Storage, **differs: Any) -> None:
    """What a job leaves that did not end in good order."""
    with Lease(store) as held:
        held.acquire()
        name = f"{lease.FOLDER}/{held._name}"
        state = {**store.read_json(name), **differs}
    store.write_json(name, state)


@contextmanager
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if what runs here were another process, of another machine, that has little patience."""
    with monkeypatch.context() as patch:
        patch.setattr(lease, "_HELD", set())
        patch.setattr(lease.platform, "node", lambda: "elsewhere")
        patch.setattr(lease, "LEASE_S", 0.1)
        patch.setattr(lease, "BEAT_S", 0.1)
        yield


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_a_second_job_at_an_archive_ends_with_a_line(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, form: str
) -> None:
    fill(cluster, topic, [records(10)])
    with Lease(Storage(spark, str(tmp_path))) as held:
        held.acquire()
        with pytest.raises(PipelineError, match=BUSY):
            archived(spark, source, topic, tmp_path, form)
    assert archived(spark, source, topic, tmp_path, form) == 10
    jobs: list[Callable[[], Any]] = [lambda: archive.compact_files(spark, str(tmp_path))]
    if form == "delta":
        jobs.append(lambda: archive.expire(spark, str(tmp_path), 7))
    with Lease(Storage(spark, str(tmp_path))) as held:
        held.acquire()
        for job in jobs:
            with pytest.raises(PipelineError, match=BUSY):
                job()
    for job in jobs:
        job()


def test_a_second_mirror_with_the_same_state_ends_with_a_line(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    with Lease(Storage(spark, str(tmp_path))) as held:
        held.acquire()
        with pytest.raises(PipelineError, match=BUSY):
            mirror.mirror(spark, source, source, {topic: f"{topic}-m"}, str(tmp_path))
    assert mirror.mirror(spark, source, source, {topic: f"{topic}-m"}, str(tmp_path))["records"] == 10


def test_of_many_that_begin_at_a_time_one_is_the_owner(spark: Any, tmp_path: Path) -> None:
    all_are_here, taken, told = threading.Barrier(6), [], []

    def begin() -> None:
        with Lease(Storage(spark, str(tmp_path))) as held:
            all_are_here.wait()
            try:
                held.acquire()
                taken.append(held)
            except PipelineError as error:
                told.append(str(error))
            all_are_here.wait()

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(taken), len(told)) == (1, 5)


def test_a_job_whose_process_has_gone_is_followed_at_once(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setattr(lease, "LEASE_S", 10**6)
    left_behind(Storage(spark, str(tmp_path)), process=gone.pid, over=False)
    fill(cluster, topic, [records(10)])
    assert archived(spark, source, topic, tmp_path) == 10
    left_behind(Storage(spark, str(tmp_path)), over=False)  # of a container with the same numbers
    assert archived(spark, source, topic, tmp_path) == 0


def test_a_job_of_another_machine_is_known_by_its_beats(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Storage(spark, str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(lease, "BEAT_S", 0.05)
        with Lease(store) as other, Lease(store) as mine:
            other.acquire()
            with elsewhere(monkeypatch), monkeypatch.context() as patience:
                patience.setattr(lease, "LEASE_S", 60.0)
                with pytest.raises(PipelineError, match=BUSY):
                    mine.acquire()
    left_behind(store, host="elsewhere", over=False)
    with monkeypatch.context() as patch, Lease(store) as mine:
        patch.setattr(lease, "LEASE_S", 0.1)
        mine.acquire()
        assert mine.follows_a_dead_one


def test_an_archive_whose_job_stood_still_is_right_when_it_goes_on(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written its files and is about to say so, when another one, that took it for dead, removes them."""
    fill(cluster, topic, [records(50)])
    monkeypatch.setattr(lease, "BEAT_S", 10.0**6)
    close = manifests.close

    def late(*given: Any) -> None:
        monkeypatch.setattr(manifests, "close", close)
        fill(cluster, topic, [records(20)])
        with elsewhere(monkeypatch):
            assert archived(spark, source, topic, tmp_path) == 70
        close(*given)

    monkeypatch.setattr(manifests, "close", late)
    with pytest.raises(PipelineError, match="was taken over by another job"):
        archived(spark, source, topic, tmp_path)
    assert archived(spark, source, topic, tmp_path) == 0
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("topic=*/**/*.parquet")}
    store = Storage(spark, str(tmp_path))
    assert files == {path for each in manifests.counting(store) for path in each["files"]}


def test_a_compaction_that_stood_still_removes_nothing(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        fill(cluster, topic, [records(20)])
        archived(spark, source, topic, tmp_path)
    monkeypatch.setattr(lease, "BEAT_S", 10.0**6)
    close = manifests.close_compaction

    def late(*given: Any) -> None:
        monkeypatch.setattr(manifests, "close_compaction", close)
        with elsewhere(monkeypatch):
            assert archived(spark, source, topic, tmp_path) == 0
        close(*given)

    monkeypatch.setattr(manifests, "close_compaction", late)
    with pytest.raises(PipelineError, match="was taken over by another job"):
        archive.compact_files(spark, str(tmp_path))
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]
    assert archive.compact_files(spark, str(tmp_path))["files_after"] == 1
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]


def test_an_owner_that_was_overtaken_is_told_at_its_next_step(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 10.0**6)
    with Lease(Storage(spark, str(tmp_path))) as held:
        held.acquire()
        held.check()
        with elsewhere(monkeypatch), Lease(Storage(spark, str(tmp_path))) as other:
            other.acquire()
            with pytest.raises(PipelineError, match="was taken over by another job"):
                held.check()


@pytest.mark.parametrize("form", ["a folder", "a file system that knows renames alone"])
def test_a_file_that_is_there_is_not_written_again(spark: Any, tmp_path: Path, form: str) -> None:
    root = str(tmp_path)
    if form != "a folder":
        spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.lease.link./here", f"file://{tmp_path}")
        root = "viewfs://lease/here"
    store = Storage(spark, root)
    assert store.create_json("a/b.json", {"n": 1})
    assert not store.create_json("a/b.json", {"n": 2})
    assert store.read_json("a/b.json") == {"n": 1}
    store.write_json("a/b.json", {"n": 3})
    assert (store.read_json("a/b.json"), store.names("a")) == ({"n": 3}, ["b.json"])
