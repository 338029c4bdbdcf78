"""A topic that is deleted and made again while jobs keep up with it: told, or read from its beginning."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import archive, audit, kafka, mirror, register, replay
from kbroker.pipeline.ahead import CONTINUE
from kbroker.pipeline.errors import PipelineError, explain
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.options import Options
from kbroker.pipeline.source import WirePart, WireStream
from kbroker.pipeline.wire import Cluster
from kbroker.testing import broker
from tests.pipeline.given import fill, records


@pytest.fixture(scope="module")
def target() -> Iterator[Source]:
    """A second cluster."""
    with broker() as second:
        yield Source(second.bootstrap)


def made_anew(cluster: Cluster, topic: str, count: int) -> None:
    """The topic with other records."""
    cluster.remove([topic])
    fill(cluster, topic, [records(count, 2)])


def archived(spark: Any, source: Source, topic: str, folder: Path, **given: Any) -> dict[str, Any]:
    return archive.archive(spark, source, [topic], str(folder), until_now=True, **given)


@pytest.mark.parametrize("count", [70, 30])  # more than were read, and fewer
def test_an_archive_tells_of_it_and_goes_on_in_a_generation_of_its_own(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, count: int
) -> None:
    fill(cluster, topic, [records(50)])
    archived(spark, source, topic, tmp_path)
    made_anew(cluster, topic, count)
    for given in ({}, {"allow_gaps": True}):
        with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made again since it was read"):
            archived(spark, source, topic, tmp_path, **given)
    steps: list[Any] = []
    found = archived(spark, source, topic, tmp_path, recreated=CONTINUE, on_batch=steps.append)
    assert found["topics"][topic] == {"records": count, "quarantined": 0, "generation": 1}
    assert [step.renewed for step in steps if step] == [{topic: {0: 50}}]
    assert archived(spark, source, topic, tmp_path, recreated=CONTINUE)["records"] == 0
    rows = archive.read(spark, str(tmp_path)).groupBy("generation").count().collect()
    assert sorted((*row,) for row in rows) == [(0, 50), (1, count)]
    compared = audit.audit(spark, str(tmp_path), source, {topic: topic})
    assert (compared["equal"], compared["generations"]) == (True, {topic: 1})


def test_a_replay_has_all_generations_one_after_the_other(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(50)])
    archived(spark, source, topic, tmp_path)
    made_anew(cluster, topic, 70)
    archived(spark, source, topic, tmp_path, recreated=CONTINUE)
    names = {topic: f"{topic}-copy"}
    assert replay.replay(spark, source, str(tmp_path), topics=names)["written"] == 120
    assert audit.audit(spark, str(tmp_path), source, names)["equal"]
    ends = {(f"{topic}-copy", 0): kafka.PartitionEnd(0, 120)}
    values = [row.value for row in kafka.read(spark, source, ends).orderBy("offset").collect()]
    assert values == [each.value for each in [*records(50), *records(70, 2)]]


def test_a_topic_that_is_made_again_while_it_is_archived_is_not_mixed_with_what_it_was(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, topic, [records(50)])
    write, turns = archive.write_batch, iter([lambda: made_anew(cluster, topic, 70)])

    def too_late(*given: Any) -> Any:
        next(turns, lambda: None)()
        return write(*given)

    monkeypatch.setattr(archive, "write_batch", too_late)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own
        archived(spark, source, topic, tmp_path / "stopped")
    assert "the topic was deleted and made again: UNKNOWN_TOPIC_ID" in explain(caught.value)
    turns = iter([lambda: made_anew(cluster, topic, 60)])
    found = archived(spark, source, topic, tmp_path / "continued", recreated=CONTINUE)
    assert found["topics"][topic] == {"records": 60, "quarantined": 0, "generation": 1}
    assert archive.read(spark, str(tmp_path / "continued")).count() == 60


def test_an_archive_that_may_go_on_waits_for_a_topic_that_is_away(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(50)])
    archived(spark, source, topic, tmp_path)
    cluster.remove([topic])
    with pytest.raises(PipelineError, match=f"topic {topic} is not there any more: --recreated continue goes on"):
        archived(spark, source, topic, tmp_path)
    assert archived(spark, source, topic, tmp_path, recreated=CONTINUE)["records"] == 0
    fill(cluster, topic, [records(20, 2)])
    assert archived(spark, source, topic, tmp_path, recreated=CONTINUE)["records"] == 20


@pytest.mark.parametrize("count", [70, 30])
def test_a_mirror_tells_of_it_and_goes_on_behind_what_it_has_mirrored(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path, count: int
) -> None:
    def mirrored(**given: Any) -> int:
        found = mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path), groups=[f"g-{topic}"], **given)
        return int(found["records"])

    fill(cluster, topic, [records(50)])
    cluster.commit(f"g-{topic}", {(topic, 0): 40})
    assert mirrored() == 50
    made_anew(cluster, topic, count)
    cluster.commit(f"g-{topic}", {(topic, 0): 20})
    with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made again since it was read"):
        mirrored()
    steps: list[Any] = []
    assert mirrored(recreated=CONTINUE, on_batch=steps.append) == count
    assert [step.renewed for step in steps if step] == [{topic: {0: 50}}]
    with Cluster(target.settings) as there:
        assert there.ends([topic])[topic, 0].end == 50 + count
        assert there.committed(f"g-{topic}") == {(topic, 0): 70}


def test_a_chunk_that_was_cut_off_goes_on_without_the_topic_that_was_made_again(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    names = {topic: topic, f"{topic}-b": f"{topic}-b"}
    for name in names:
        fill(cluster, name, [records(50)])

    def cut_off(*_: Any) -> int:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mirror._Job, "_carried_out", cut_off)
        with pytest.raises(KeyboardInterrupt):
            mirror.mirror(spark, source, target, names, str(tmp_path))
    made_anew(cluster, topic, 70)
    assert mirror.mirror(spark, source, target, names, str(tmp_path), recreated=CONTINUE)["records"] == 120
    assert audit.audit(spark, source, target, names)["equal"]


def test_a_mirrors_target_that_was_made_again_is_told(
    spark: Any, source: Source, cluster: Cluster, target: Source, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(30)])
    mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path))
    with Cluster(target.settings) as there:
        made_anew(there, topic, 40)
    with pytest.raises(PipelineError, match=f"topic {topic} at the target was deleted, or made again"):
        mirror.mirror(spark, source, target, {topic: topic}, str(tmp_path))


def test_a_replays_target_that_was_made_again_is_told(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(30)])
    archived(spark, source, topic, tmp_path)
    replay.replay(spark, source, str(tmp_path), topics={topic: f"{topic}-copy"})
    made_anew(cluster, f"{topic}-copy", 40)
    with pytest.raises(PipelineError, match=f"topic {topic}-copy was deleted and made again since"):
        replay.replay(spark, source, str(tmp_path), topics={topic: f"{topic}-copy"})


Made = Callable[[str], WireStream]


@pytest.fixture
def stream(source: Source, topic: str) -> Made:
    """A stream of the topic, with an option `recreated`."""

    def made(recreated: str) -> WireStream:
        given = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        return WireStream(Options({**given, "recreated": recreated}))

    return made


@pytest.mark.parametrize("count", [70, 30])
def test_a_streams_checkpoint_knows_which_topic_it_is_of(
    stream: Made, cluster: Cluster, topic: str, count: int
) -> None:
    fill(cluster, topic, [records(50)])
    read = json.loads(json.dumps(stream("stop").latestOffset(stream("stop").initialOffset())))
    made_anew(cluster, topic, count)
    with pytest.raises(PipelineError, match=f"topic {topic} was deleted and made again since it was read"):
        stream("stop").latestOffset(read)
    end = stream("continue").latestOffset(read)
    parts = stream("continue").partitions(read, end)
    assert [each.span[2:] for each in parts if isinstance(each, WirePart)] == [(0, count)]
    assert {each.topic.generation for each in parts if isinstance(each, WirePart)} == {1}
    assert stream("continue").partitions(end, stream("continue").latestOffset(end)) == []
    assert stream("continue").partitions({}, read) == []  # of a batch that was decided before there is nothing left
    cluster.remove([topic])
    with pytest.raises(PipelineError, match=f"topic {topic}"):
        stream("stop").latestOffset(end)
    assert stream("continue").partitions(end, stream("continue").latestOffset(end)) == []


def test_a_stream_has_the_generations_of_a_topic_that_is_made_again_between_its_runs(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    register(spark)
    found: list[tuple[int, int]] = []

    def run() -> None:
        options = {"subscribe": topic, "startingOffsets": "earliest", "recreated": "continue"}
        reader = spark.readStream.format("kbroker").option("kafka.bootstrap.servers", source.bootstrap)
        frame = reader.options(**options, includeGeneration="true").load().groupBy("generation").count()
        writer = frame.writeStream.outputMode("complete")
        writer = writer.foreachBatch(lambda batch, _: found.extend((*row,) for row in batch.collect()))
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    fill(cluster, topic, [records(50)])
    run()
    made_anew(cluster, topic, 70)
    run()
    assert (found[:1], sorted(found[1:])) == ([(0, 50)], [(0, 50), (1, 70)])
