"""Every test here needs Java: without it all of them are skipped, visibly, and under CI=true they fail."""

from __future__ import annotations

import os

import pytest

from compat_tests import apache


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    try:
        for release in apache.RELEASES:
            apache.jars(release)
    except apache.NoApacheError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"Apache's programs cannot run: {reason}")
        pytest.skip(f"Apache's programs cannot run here: {reason}")
