"""Mirroring between two clusters: records once, whatever was cut off; groups' offsets with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from kbroker import testing
from kbroker.pipeline import audit, mirror
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.storage import Storage
from kbroker.pipeline.wire import Cluster
from kbroker.pipeline.write import WRITTEN
from tests.pipeline.given import fill, records

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def target() -> Iterator[Source]:
    """A second cluster."""
    with testing.broker() as second:
        yield Source(second.bootstrap)


def test_a_mirror_goes_on_and_takes_groups_with_it(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300), records(200, 2)])
    cluster.commit(f"g-{topic}", {(topic, 0): 120, (topic, 1): 200})
    state = str(tmp_path / "state")
    first = mirror.mirror(spark, source, target, {topic: topic}, state, groups=[f"g-{topic}"])
    fill(cluster, topic, [records(50, 3)])
    second = mirror.mirror(spark, source, target, {topic: topic}, state, groups=["*"])
    assert (first["records"], second["records"]) == (500, 50)
    assert audit.audit(spark, source, target, {topic: topic})["equal"]
    with Cluster(target.settings) as there:
        assert there.committed(f"g-{topic}") == {(topic, 0): 120, (topic, 1): 200}
        assert there.configs(topic)["retention.ms"] == "-1"


def test_a_chunk_that_was_cut_off_is_written_once(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(300)])
    names, store = {topic: topic}, Storage(spark, str(tmp_path / "state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror, "STATE", "lost.json")  # as if it had ended before the chunk was closed
        mirror.mirror(spark, source, target, names, store.root)
    known = {**store.read_json("lost.json"), "next": [], "chunks": 0}
    known["open"] = {"spans": [[topic, 0, 0, 300]], "bases": [[topic, 0, 0]], "ids": {topic: known["ids"][topic][0]}}
    with Cluster(target.settings) as there:
        known["open"]["producer"] = list(there.producer())
    store.write_json(mirror.STATE, known)
    assert mirror.mirror(spark, source, target, {topic: topic}, store.root)["records"] == 0
    assert audit.audit(spark, source, target, {topic: topic})["equal"]


def test_a_state_is_for_one_pair_of_clusters(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path / "state"))
    with pytest.raises(PipelineError, match="give another --state"):
        mirror.mirror(spark, source, source, {topic: topic}, str(tmp_path / "state"))


def test_two_topics_are_not_mirrored_into_one(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, f"{topic}-a", [records(10)])
    fill(cluster, f"{topic}-b", [records(10, 2)])
    with pytest.raises(PipelineError, match=f"{topic}-a and {topic}-b cannot both be {topic}"):
        mirror.mirror(spark, source, target, {f"{topic}-a": topic, f"{topic}-b": topic}, str(tmp_path / "state"))


def test_a_mirror_does_not_take_records_for_mirrored_that_are_nowhere(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    def mirrored(name: str) -> int:
        return int(mirror.mirror(spark, source, target, {topic: name}, str(tmp_path / "state"))["records"])

    fill(cluster, topic, [records(30)])
    assert mirrored(topic) == 30
    with pytest.raises(PipelineError, match=f"{topic} was mirrored to {topic} by this state: give another --state"):
        mirrored(f"{topic}-again")
    with Cluster(target.settings) as there:
        there.remove([topic])
        with pytest.raises(PipelineError, match=f"topic {topic} at the target was deleted, or made again"):
            mirrored(topic)
        assert not there.has(topic)


def test_a_mirror_without_an_end_has_a_summary_when_it_is_interrupted(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    fill(cluster, topic, [records(30)])
    rest: dict[str, Any] = {"until_now": False, "on_batch": interrupt}
    assert mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path / "state"), **rest)["records"] == 30


def test_a_group_that_is_not_there_is_named(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    with pytest.raises(PipelineError, match="has no group 'nobody'"):
        mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path / "state"), groups=["nobody"])


def test_a_group_is_committed_for_again_while_its_coordinator_loads(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(10)])
    cluster.commit(f"g-{topic}", {(topic, 0): 5})
    with testing.broker() as loading:
        loading.faults.on("OffsetCommit").fail("COORDINATOR_LOAD_IN_PROGRESS").once()
        there = Source(loading.bootstrap)
        found = mirror.mirror(spark, source, there, {topic: topic}, str(tmp_path / "state"), groups=[f"g-{topic}"])
    assert found["groups"] == {f"g-{topic}": "1 partitions"}


def test_groups_are_asked_for_again_while_their_coordinator_loads() -> None:
    with testing.broker() as loading, Cluster(Source(loading.bootstrap).settings) as there:
        there.create("t", 1)
        there.commit("g", {("t", 0): 0})
        for api in ("ListGroups", "OffsetFetch"):
            loading.faults.on(api).fail("COORDINATOR_LOAD_IN_PROGRESS").once()
        assert (there.groups(), there.committed("g")) == (["g"], {("t", 0): 0})


def test_a_mirror_without_an_end_carries_what_a_group_commits_when_no_records_come(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0)
    fill(cluster, topic, [records(30)])
    group = f"g-{topic}"
    seen: list[int | None] = []

    def on_batch(_: object) -> None:
        with Cluster(target.settings) as there:
            seen.append(there.committed(group).get((topic, 0)))
        if len(seen) == 3:
            raise KeyboardInterrupt
        cluster.commit(group, {(topic, 0): 10 * len(seen)})

    rest: dict[str, Any] = {"until_now": False, "on_batch": on_batch, "groups": ["*"]}
    mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path / "state"), **rest)
    assert seen == [None, 10, 20]


def test_a_mirror_without_an_end_tells_of_a_partition_that_only_the_source_has(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(mirror, "PAUSE_S", 0)
    fill(cluster, topic, [records(30)])
    passes = iter(range(3))

    def on_batch(_: object) -> None:
        if next(passes) == 2:
            raise KeyboardInterrupt
        grow(source, topic)
        fill(cluster, topic, [[], records(20, 2)])

    def grow(where: Source, topic: str) -> None:
        admin = KafkaAdminClient(bootstrap_servers=where.bootstrap)
        admin.create_partitions({topic: 2}, raise_errors=False)
        admin.close()

    given = (spark, source, target, {topic: topic}, str(tmp_path / "state"))
    with pytest.raises(PipelineError, match=f"{topic} has no partition 1 at the target"):
        mirror.mirror(*given, until_now=False, on_batch=on_batch)
    grow(target, topic)
    assert mirror.mirror(*given)["records"] == 20


@pytest.mark.parametrize(
    ("committed", "expected"),
    [(0, 100), (10, 100), (12, 102), (15, 105), (18, 105), (20, 105), (24, 109), (25, 110), (99, 110)],
)
def test_a_committed_offset_moves_with_its_run(spark: Any, committed: int, expected: int) -> None:
    rows = [("t", 0, 10, 100, 5, 5), ("t", 0, 20, 105, 5, 5)]
    groups = spark.createDataFrame(
        [("g", "t", 0, committed)], "group string, topic string, partition int, committed bigint"
    )
    found = mirror.translated_offsets(groups, spark.createDataFrame(rows, WRITTEN)).collect()
    assert [row.target for row in found] == [expected]
