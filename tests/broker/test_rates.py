"""Rates and buckets of quotas, by examples; Apache's own class judges them in tests/judges/test_quota_rates.py."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.broker.rates import Rate, TokenBucket, Windows

WINDOWS = Windows(11, 1)


def test_a_client_may_begin_with_what_ten_windows_bring() -> None:
    rate = Rate(WINDOWS, 100.0)
    assert rate.record(1000, 0) == 0
    assert rate.record(1, 0) > 0


def test_who_is_over_waits_until_the_rate_is_allowed() -> None:
    """KIP-13: (rate - bound) / bound of the time that it is taken over."""
    rate = Rate(WINDOWS, 100.0)
    assert rate.record(1500, 0) == 5000


def test_old_windows_are_forgotten() -> None:
    rate = Rate(WINDOWS, 100.0)
    rate.record(1500, 0)
    assert rate.measure(10_999) > 0
    assert rate.measure(11_000) == 0


def test_what_was_not_used_after_all_does_not_count() -> None:
    rate = Rate(WINDOWS, 100.0)
    rate.record(5000, 0)
    rate.add(-5000, 0)
    assert rate.record(1000, 1) == 0


def test_a_client_that_may_use_nothing_waits_for_all_windows() -> None:
    assert Rate(WINDOWS, 0.0).record(1, 0) == 11_000


def test_a_new_bound_counts_for_what_was_used_before() -> None:
    rate = Rate(WINDOWS, 1000.0)
    assert rate.record(5000, 0) == 0
    rate.set_bound(100.0)
    assert rate.record(0, 0) == 40_000


def test_a_rate_that_is_renewed_goes_on_with_what_was_used_and_the_old_one_is_closed() -> None:
    rate = Rate(WINDOWS, 1000.0)
    assert rate.record(4000, 0) == rate.record(1000, 0) == 0
    again = rate.renewed(100.0)
    assert again.record(0, 0) == 40_000
    assert (again.most, rate.most, rate.until_ms) == (1000, -1, -1)


@pytest.mark.parametrize("seed", range(5))
def test_the_quick_way_counts_as_the_long_way_does(seed: int) -> None:
    random, now_ms = Random(seed), 0
    quick, slow = Rate(WINDOWS, 1000.0), Rate(WINDOWS, 1000.0)
    for _ in range(2000):
        now_ms += random.choice((0, 0, 1, 7, 90, 400, random.randrange(15_000) if random.random() < 0.02 else 0))
        size = random.randrange(300)
        slow.room = -1.0 if slow.until_ms < 0 else slow.room
        slow._close()  # it looks at its windows each time
        assert quick.record(size, now_ms) == slow.record(size, now_ms)


def test_a_bucket_is_full_at_first_and_fills_again() -> None:
    """KIP-599: what all windows bring, 2 a second here; it falls below zero by one use."""
    bucket = TokenBucket(WINDOWS, 2.0)
    assert bucket.measure(1 << 40) == 22
    bucket.add(30, 1 << 40)
    assert bucket.wait_ms(1 << 40) == 4000
    assert bucket.wait_ms((1 << 40) + 4000) == 0
    assert bucket.measure((1 << 40) + 3_600_000) == 22


def test_a_quota_may_be_any_number() -> None:
    rate = Rate(Windows(11, 1), 1.7e308)
    assert rate.most == 1 << 62
    assert rate.record(1 << 40, 1) == 0
