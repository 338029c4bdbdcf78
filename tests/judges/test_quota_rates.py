"""Rates and buckets of quotas are Apache's, to the millisecond that a client has to wait."""

from __future__ import annotations

from random import Random

import pytest

from kbroker.broker.rates import Rate, TokenBucket, Windows
from tests.judges.java import Judge

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]  # the first run fetches the jars

CASES = 400
START_MS = 1_700_000_000_000


def story(seed: int) -> dict[str, object]:
    """Some uses: in quick succession, with breaks of about a window, and with such that all is forgotten."""
    random, now_ms, uses = Random(seed), START_MS, []
    pause_ms = random.choice((3, 200, 1500))
    for _ in range(120):
        now_ms += random.randrange(pause_ms) if random.random() < 0.97 else random.randrange(30_000)
        uses.append([now_ms, random.choice((0, 1, random.randrange(2000), random.randrange(100_000)))])
    windows, seconds = random.choice(((11, 1), (11, 1), (2, 1), (1, 1), (5, 3)))
    bound = random.choice((1.0, 37.5, 1000.0, 20_000.0, 1e6))
    return {"windows": windows, "window_ms": seconds * 1000, "bound": bound, "uses": uses}


def test_clients_wait_as_long_as_apaches_do(apache: Judge) -> None:
    stories = [story(seed) for seed in range(CASES)]
    waits = 0
    for asked, answer in zip(stories, apache.ask("rates", stories), strict=True):
        windows, bound = Windows(asked["windows"], asked["window_ms"] // 1000), asked["bound"]  # type: ignore[operator, call-overload]
        rate, bucket = Rate(windows, bound), TokenBucket(windows, bound)  # type: ignore[arg-type]
        for (now_ms, amount), (measured, over_ms, tokens) in zip(asked["uses"], answer["told"], strict=True):  # type: ignore[call-overload]
            wait_ms = rate.record(amount, now_ms)
            over = measured - bound
            assert wait_ms == (int(over / bound * over_ms + 0.5) if over > 0 else 0), (asked, now_ms)
            waits += wait_ms > 0
            bucket.add(amount, now_ms)
            assert bucket.measure(now_ms) == pytest.approx(tokens, abs=1e-6 * bound), (asked, now_ms)
    assert waits > 1000
