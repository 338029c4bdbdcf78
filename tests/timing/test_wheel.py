"""The timing wheel against a sorted list, and the promises that make it worth having."""

from __future__ import annotations

import random
import tracemalloc

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kbroker.timing.wheel import BUCKETS_PER_LEVEL, FEW_TIMERS, NEVER, Timer, TimingWheel

DELAYS_MS = st.one_of(st.integers(0, 25), st.integers(0, 10_000), st.integers(0, 10**10))


def payloads(timers: list[Timer[str]]) -> list[str]:
    return [timer.payload for timer in timers]


def test_timer_comes_back_at_its_deadline_and_not_a_millisecond_earlier() -> None:
    for delay_ms in [1, 19, 20, 21, 399, 400, 401, 7_999, 8_000, 45_000, 1_800_000]:
        wheel: TimingWheel[str] = TimingWheel(now_ms=7)
        wheel.add(7 + delay_ms, "x")
        assert wheel.advance(7 + delay_ms - 1) == []
        assert payloads(wheel.advance(7 + delay_ms)) == ["x"], delay_ms


def test_timers_come_back_by_deadline_after_a_long_jump() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for deadline_ms in [9_000, 3, 450, 20, 0, 160_001]:
        wheel.add(deadline_ms, str(deadline_ms))
    assert payloads(wheel.advance(200_000)) == ["0", "3", "20", "450", "9000", "160001"]


def test_timer_that_is_due_already_comes_back_at_the_next_advance() -> None:
    wheel: TimingWheel[str] = TimingWheel(now_ms=1_000)
    wheel.add(3, "late")
    assert payloads(wheel.advance(1_000)) == ["late"]


def test_timer_that_was_given_back_as_due_is_out_of_the_wheel() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(5, "x")
    assert [timer.payload for timer in wheel.due(5)] == ["x"]
    assert (wheel.size, list(wheel.due(1_000))) == (0, [])


def test_cancelled_timer_never_comes_back() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    timer = wheel.add(5_000, "x")
    wheel.advance(4_990)
    assert wheel.cancel(timer)
    assert wheel.advance(10_000) == []


def test_second_cancel_says_that_there_was_nothing_to_cancel() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    timer = wheel.add(5, "x")
    wheel.cancel(timer)
    assert not wheel.cancel(timer)


def test_cancel_after_it_came_back_says_so() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    timer = wheel.add(5, "x")
    wheel.advance(5)
    assert not wheel.cancel(timer)


def test_empty_wheel_has_no_next_deadline() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.cancel(wheel.add(900, "x"))
    assert wheel.next_ms == NEVER


def test_sleeper_with_few_timers_wakes_at_the_first_deadline_and_not_at_its_buckets_start() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    for number in range(FEW_TIMERS):
        wheel.add(500 + number, "within 400 to 799")
    assert wheel.next_ms == 500


def test_sleeper_wakes_for_a_bucket_that_starts_before_the_first_deadline_of_the_first_bucket() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(790, "within 400 to 799")
    wheel.advance(395)
    wheel.add(405, "within 400 to 419")
    assert wheel.next_ms == 405


def test_sleeper_wakes_once_a_level_and_never_for_an_empty_bucket() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(3_600_000, "in an hour")
    for delay_ms in range(0, 100_000, 500):
        wheel.cancel(wheel.add(delay_ms, "cancelled"))
    wakes = 0
    while (next_ms := wheel.next_ms) != NEVER:
        wheel.advance(next_ms)
        wakes += 1
    assert wakes <= 6  # levels of 1 ms, 20 ms, 400 ms, 8 s, 160 s and 53 min


def test_levels_are_made_on_demand() -> None:
    wheel: TimingWheel[str] = TimingWheel()
    wheel.add(19, "first level")
    assert len(wheel._buckets) == 1
    wheel.add(20, "second")
    assert len(wheel._buckets) == 2
    wheel.add(BUCKETS_PER_LEVEL**4, "fifth")
    assert len(wheel._buckets) == 5


def test_adding_and_cancelling_for_ever_keeps_no_memory() -> None:
    wheel: TimingWheel[str] = TimingWheel()

    def churn(from_ms: int) -> None:
        for now_ms in range(from_ms, from_ms + 2_000):
            wheel.advance(now_ms)
            for delay_ms in (1, 500, 30_000):
                wheel.cancel(wheel.add(now_ms + delay_ms, "x"))

    churn(0)
    tracemalloc.start()
    churn(2_000)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 20_000


def test_same_calls_give_the_same_order() -> None:
    def run() -> list[str]:
        rng = random.Random(7)
        wheel: TimingWheel[str] = TimingWheel()
        for number in range(2_000):
            wheel.add(rng.randrange(300), str(number))
        return payloads(wheel.advance(300))

    assert run() == run()


class WheelBesideAList(RuleBasedStateMachine):
    """Whatever is added, cancelled and advanced, a plain list of deadlines agrees."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_700_000_000_123
        self.wheel: TimingWheel[int] = TimingWheel(self.now_ms)
        self.pending: dict[int, Timer[int]] = {}
        self.added = 0

    @rule(delays_ms=st.lists(DELAYS_MS, max_size=20))
    def add(self, delays_ms: list[int]) -> None:
        for delay_ms in delays_ms:
            self.added += 1
            self.pending[self.added] = self.wheel.add(self.now_ms + delay_ms, self.added)

    @rule(choice=st.randoms(use_true_random=False))
    def cancel(self, choice: random.Random) -> None:
        if self.pending:
            number = choice.choice(sorted(self.pending))
            assert self.wheel.cancel(self.pending.pop(number))

    @rule(delay_ms=DELAYS_MS)
    def advance(self, delay_ms: int) -> None:
        self.now_ms += delay_ms
        self.advanced()

    @rule()
    def advance_to_next(self) -> None:
        if self.wheel.next_ms != NEVER:
            self.now_ms = max(self.now_ms, self.wheel.next_ms)
            self.advanced()

    def advanced(self) -> None:
        expired = self.wheel.advance(self.now_ms)
        due = {number for number, timer in self.pending.items() if timer.deadline_ms <= self.now_ms}
        assert {timer.payload for timer in expired} == due
        assert [timer.deadline_ms for timer in expired] == sorted(timer.deadline_ms for timer in expired)
        for number in due:
            del self.pending[number]

    @invariant()
    def next_deadline_is_never_late(self) -> None:
        if self.pending:
            first_ms = min(timer.deadline_ms for timer in self.pending.values())
            assert self.wheel.next_ms <= max(self.now_ms, first_ms)
        else:
            assert self.wheel.next_ms == NEVER

    @invariant()
    def counts_what_is_pending(self) -> None:
        assert len(self.wheel) == len(self.pending)
        assert all(timer.pending for timer in self.pending.values())


TestWheelBesideAList = WheelBesideAList.TestCase
TestWheelBesideAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
