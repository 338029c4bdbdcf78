"""Whether the other files here run at all: they need the extra `pipeline`, Java and Maven."""

from __future__ import annotations

import os

import pytest

from tests.pipeline.conftest import ABSENT


def test_spark_and_java_are_here_or_it_is_said() -> None:
    reason = f"tests/pipeline is left out: not installed: {', '.join(ABSENT)}"
    if ABSENT and os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; CI has to run it")
    if ABSENT:
        pytest.skip(reason)
