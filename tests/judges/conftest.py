"""The judges as fixtures."""

from __future__ import annotations

import pytest

from tests.judges.java import RELEASES, Judge, require


@pytest.fixture(scope="session", params=RELEASES)
def apache(request: pytest.FixtureRequest) -> Judge:
    """Apache's classes, in turn of each release; the test is skipped where there is no Java."""
    return require(request.param)
