"""A folder of jars for a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.pipeline import jars
from kbroker.pipeline.errors import PipelineError


def test_a_session_has_the_jars_of_the_folder_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert jars.settings() == {}
    for name in ("a.jar", "b.jar", "c.txt"):
        (tmp_path / name).touch()
    monkeypatch.setenv("KBROKER_PIPELINE_JARS", str(tmp_path))
    expected = {"spark.jars": f"{tmp_path}/a.jar,{tmp_path}/b.jar"}
    assert (jars.settings(), jars.settings(str(tmp_path))) == (expected, expected)


def test_a_folder_without_jars_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=rf"^{tmp_path}: there is no \*\.jar in it"):
        jars.settings(str(tmp_path))
