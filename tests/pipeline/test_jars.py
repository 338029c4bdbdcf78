"""The connector's jars: fetched once into a cache, and a line where that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.pipeline import jars
from kbroker.pipeline.errors import PipelineError


def test_they_are_fetched_into_an_empty_cache_and_found_there_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetched = jars.settings()
    assert [Path(each).name.rpartition("-")[0] for each in fetched["spark.jars"].split(",")] == list(jars._WANTED)
    monkeypatch.setenv("PATH", "/nowhere")
    assert jars.settings() == fetched


def test_a_resolver_without_an_answer_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] Could not transfer artifact a:b:1'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(PipelineError, match=r"Could not transfer artifact a:b:1\): is there a network\?.*--jars DIR"):
        jars.settings()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name != "kbroker"]


def test_a_folder_without_the_jars_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"there is no spark-sql-kafka-0-10_2\.13-\*\.jar"):
        jars.settings(str(tmp_path))
