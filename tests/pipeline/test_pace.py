"""How fast archive and mirror read, which topics they take in later, and what is told of their batches."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline import ahead, archive, audit, mirror
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka import Source
from kbroker.pipeline.progress import Pace, Progress, Step
from kbroker.pipeline.wire import Cluster, PartitionEnd
from tests.pipeline.given import fill, records


def archived(spark: Any, source: Source, folder: Path, topics: list[str], **given: Any) -> Any:
    return archive.archive(spark, source, topics, str(folder), until_now=True, **given)


def test_a_limit_is_shared_by_what_each_partition_has() -> None:
    spans = {("t", 0): PartitionEnd(10, 410), ("t", 1): PartitionEnd(0, 100), ("t", 2): PartitionEnd(5, 6)}
    found = ahead.limited(spans, 100)
    assert found == {("t", 0): PartitionEnd(10, 90), ("t", 1): PartitionEnd(0, 20), ("t", 2): PartitionEnd(5, 6)}
    assert ahead.limited(spans, None) == ahead.limited(spans, 501) == spans


def test_an_archive_keeps_to_its_limits_and_loses_nothing(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic, [records(240), records(60, 2)])
    steps: list[Any] = []
    found = archived(spark, source, tmp_path, [topic], pace=Pace(150, 4), on_batch=steps.append)
    assert (found["records"], found["batches"]) == (300, 2)
    assert [step.records[topic] for step in steps if step] == [150, 150]
    assert [step.behind[topic] for step in steps if step] == [150, 0]
    assert found["files"] >= 8  # a file a task
    assert audit.audit(spark, str(tmp_path), source, {topic: topic})["equal"]


def test_topics_of_a_pattern_are_archived_those_that_come_later_too(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    fill(cluster, f"{topic}-a", [records(20)])
    fill(cluster, f"other-{topic}-a", [records(30)])
    pattern = f"{topic}-.*"
    assert archived(spark, source, tmp_path, [], pattern=pattern)["records"] == 20
    fill(cluster, f"{topic}-b", [records(40)])
    again = archived(spark, source, tmp_path, [])  # the archive knows its pattern
    assert {name: each["records"] for name, each in again["topics"].items()} == {f"{topic}-b": 40}
    assert archived(spark, source, tmp_path, [], pattern=pattern)["batches"] == 0
    with pytest.raises(PipelineError, match=f"was begun with --topics-pattern {topic}"):
        archived(spark, source, tmp_path, [f"{topic}-a"])
    with pytest.raises(PipelineError, match=f"has no topic that {topic}x matches"):
        archived(spark, source, tmp_path / "none", [], pattern=f"{topic}x")
    with pytest.raises(PipelineError, match=r"\[: no regular expression"):
        archived(spark, source, tmp_path / "none", [], pattern="[")


def test_a_mirror_keeps_to_its_limit_and_takes_in_topics_of_its_pattern(
    spark: Any, source: Source, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from kbroker.testing import broker

    fill(cluster, f"{topic}-a", [records(90)])
    steps: list[Any] = []
    with broker() as other:
        target = Source(other.bootstrap)

        def mirrored() -> Any:
            given: dict[str, Any] = {"pattern": f"{topic}-.*", "pace": Pace(50), "on_batch": steps.append}
            return mirror.mirror(spark, source, target, {}, str(tmp_path), **given)

        assert mirrored()["records"] == 90
        fill(cluster, f"{topic}-b", [records(30)])
        assert mirrored()["records"] == 30
        names = {f"{topic}-{each}": f"{topic}-{each}" for each in "ab"}
        assert audit.audit(spark, source, target, names)["equal"]
    assert [dict(step.records) for step in steps if step] == [
        {f"{topic}-a": 50},
        {f"{topic}-a": 40},
        {f"{topic}-b": 30},
    ]


def test_batches_are_told_as_lines_and_as_metrics(tmp_path: Path) -> None:
    file = tmp_path / "progress.jsonl"
    with Progress("archive", str(file), "127.0.0.1:0") as progress:
        progress.step(Step(0, 1.5, {"a": 10, "b": 5}, {"a": 2}, {"a": 7, "b": 0}, {}))
        progress.step(Step(1, 0.5, {"a": 7}, {}, {"a": 0}, {"a": {0: 12}}))
        url = f"http://127.0.0.1:{progress.port}"
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["batch"], line["records"], line["quarantined"], line["behind"]) for line in lines] == [
        (0, 15, 2, 7),
        (1, 7, 0, 0),
    ]
    assert [line.get("renewed") for line in lines] == [None, {"a": {"0": 12}}]
    assert lines[1]["topics"] == {"a": {"records": 7, "quarantined": 0, "behind": 0}}
    assert 'kbroker_pipeline_records_total{job="archive",topic="a"} 17' in text
    assert 'kbroker_pipeline_quarantined_records_total{job="archive",topic="a"} 2' in text
    assert 'kbroker_pipeline_behind_records{job="archive",topic="b"} 0' in text
    assert 'kbroker_pipeline_batches_total{job="archive"} 2' in text


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_metrics_that_cannot_be_served_are_told(address: str) -> None:
    with pytest.raises(PipelineError, match=f"^--metrics {address}: write HOST:PORT, as 127.0.0.1:9404$"):
        Progress("archive", None, address)


def test_metrics_at_a_port_that_is_taken_are_told() -> None:
    with Progress("archive", None, "127.0.0.1:0") as progress:
        taken = f"127.0.0.1:{progress.port}"
        with pytest.raises(PipelineError, match=f"^--metrics {taken}: Address already in use: write another HOST:PORT"):
            Progress("archive", None, taken)


def test_lines_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be written: No such file"):
        Progress("archive", str(tmp_path / "none" / "lines"))
