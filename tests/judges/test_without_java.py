"""Where there is no Java, its tests are skipped with the reason; under CI that is a failure."""

from __future__ import annotations

import pytest

from tests.judges import java


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(java, "judge", java.Judge)  # the one that runs already, if any, is not asked


def test_the_judge_says_what_is_missing() -> None:
    assert java.missing() == "not installed: java, javac, mvn"


def test_the_tests_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="not installed: java"):
        java.require("3.9.1")


def test_under_ci_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="the Java judge is missing: not installed: java"):
        java.require("3.9.1")
