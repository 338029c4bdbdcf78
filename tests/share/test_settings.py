"""Where a share group begins, as text."""

from __future__ import annotations

import pytest

from kbroker.config import BrokerLayers, resolve_broker
from kbroker.config.share_groups import AutoOffsetReset, ShareGroupConfig, parse_auto_offset_reset


@pytest.mark.parametrize(
    ("text", "reset"),
    [
        ("latest", AutoOffsetReset()),
        ("EARLIEST", AutoOffsetReset(is_earliest=True)),
        ("by_duration:PT1H", AutoOffsetReset(since_ms=3_600_000)),
        ("by_duration:P1DT2H3M4.5S", AutoOffsetReset(since_ms=93_784_500)),
        ("by_duration:PT0S", AutoOffsetReset(since_ms=0)),
    ],
)
def test_where_a_group_begins(text: str, reset: AutoOffsetReset) -> None:
    assert parse_auto_offset_reset(text) == reset


@pytest.mark.parametrize(
    "text",
    ["", "none", "by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1H", "latest:1"],
)
def test_what_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        parse_auto_offset_reset(text)


def test_what_is_out_of_bounds_counts_as_the_nearest_bound() -> None:
    said = {"share.record.lock.duration.ms": "1", "share.delivery.count.limit": "99"}
    config = ShareGroupConfig.of(said, resolve_broker(BrokerLayers()))
    assert (config.record_lock_duration_ms, config.delivery_count_limit) == (15_000, 10)
