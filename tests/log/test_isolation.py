"""How far each sees into a log."""

from __future__ import annotations

import pytest

from kbroker.log.isolation import HIGH_WATERMARK, TXN_COMMITTED, FetchIsolation


@pytest.mark.parametrize(("level", "isolation"), [(0, HIGH_WATERMARK), (1, TXN_COMMITTED), (7, HIGH_WATERMARK)])
def test_only_level_1_reads_committed(level: int, isolation: FetchIsolation) -> None:
    assert FetchIsolation.of(level) is isolation
