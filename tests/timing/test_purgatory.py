"""Parked operations: over once, by a key or by time, and forgotten at once."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kbroker.timing.purgatory import Parked, Purgatory
from kbroker.timing.scheduler import Scheduler


class Bench(Purgatory[str, str]):
    """A purgatory with a scheduler that a test turns."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.over: list[str] = []
        super().__init__(self.scheduler.wheel, lambda operation, now_ms: self.over.append(operation))

    def expire(self, now_ms: int) -> list[str]:
        """The operations whose time is up by then."""
        self.scheduler.ring(now_ms)
        over, self.over = self.over, []
        return over


def always(operation: str) -> str:
    return operation.upper()


def never(_operation: str) -> None:
    return None


def test_check_answers_the_operations_that_are_ready_oldest_first() -> None:
    purgatory = Bench()
    for name in ["ready 1", "not yet", "ready 2"]:
        purgatory.park(name, ["t-0"], 100)
    answers = purgatory.check("t-0", lambda operation: operation[-1] if operation.startswith("ready") else None)
    assert list(answers) == [("ready 1", "1"), ("ready 2", "2")]


def test_operation_that_is_over_by_the_time_it_is_looked_at_is_left_out() -> None:
    purgatory = Bench()
    purgatory.park("first", ["t-0"], 100)
    second = purgatory.park("second", ["t-0"], 100)
    done = []
    for operation, _ in purgatory.check("t-0", always):
        done.append(operation)
        purgatory.cancel(second)
        purgatory.park("meanwhile", ["t-0"], 100)
    assert (done, purgatory.operations()) == (["first"], {"meanwhile"})


def test_check_leaves_other_keys_alone() -> None:
    purgatory = Bench()
    purgatory.park("x", ["t-0"], 100)
    assert list(purgatory.check("t-1", always)) == []


def test_operation_under_two_keys_is_over_once() -> None:
    purgatory = Bench()
    purgatory.park("x", ["t-0", "t-1"], 100)
    assert list(purgatory.check("t-0", always)) == [("x", "X")]
    assert list(purgatory.check("t-1", always)) == []
    assert purgatory.expire(1_000) == []


def test_operation_that_is_not_ready_expires_at_its_deadline() -> None:
    purgatory = Bench()
    purgatory.park("x", ["t-0", "t-1"], 100)
    assert list(purgatory.check("t-0", never)) == []
    assert purgatory.expire(99) == []
    assert purgatory.expire(100) == ["x"]


def test_expired_operation_is_not_checked_again() -> None:
    purgatory = Bench()
    purgatory.park("x", ["t-0"], 100)
    purgatory.expire(100)
    assert list(purgatory.check("t-0", always)) == []


def test_cancelled_operation_leaves_every_watch_list() -> None:
    purgatory = Bench()
    parked = purgatory.park("x", ["t-0", "t-1", "t-0"], 100)
    purgatory.cancel(parked)
    assert (len(purgatory), purgatory.watchers) == (0, {})


def test_second_cancel_says_that_nothing_waited() -> None:
    purgatory = Bench()
    parked = purgatory.park("x", ["t-0"], 100)
    assert purgatory.cancel(parked)
    assert not purgatory.cancel(parked)


def test_operation_without_keys_waits_for_its_deadline() -> None:
    purgatory = Bench()
    purgatory.park("x", [], 100)
    assert purgatory.scheduler.next_ms == 100
    assert purgatory.expire(100) == ["x"]


KEYS = st.integers(0, 4)


class EveryOperationIsOverOnce(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.scheduler = Scheduler()
        self.expired: list[int] = []
        self.purgatory: Purgatory[int, int] = Purgatory(self.scheduler.wheel, self.time_is_up)
        self.waiting: dict[int, Parked[int, int]] = {}
        self.parked = 0

    @rule(keys=st.lists(KEYS, max_size=4), delay_ms=st.integers(0, 2_000))
    def park(self, keys: list[int], delay_ms: int) -> None:
        self.parked += 1
        self.waiting[self.parked] = self.purgatory.park(self.parked, keys, self.now_ms + delay_ms)

    @rule(key=KEYS, divisor=st.integers(1, 3))
    def check(self, key: int, divisor: int) -> None:
        done = [number for number, _ in self.purgatory.check(key, lambda number: None if number % divisor else number)]
        wanted = [number for number, parked in self.waiting.items() if key in parked.keys and number % divisor == 0]
        assert done == wanted
        self.over(done)

    @rule(delay_ms=st.integers(0, 1_000))
    def expire(self, delay_ms: int) -> None:
        self.now_ms += delay_ms
        self.scheduler.ring(self.now_ms)
        expired, self.expired = self.expired, []
        self.over(expired)

    def time_is_up(self, number: int, now_ms: int) -> None:
        assert self.waiting[number].deadline_ms <= now_ms == self.now_ms
        self.expired.append(number)

    @rule(choice=st.randoms(use_true_random=False))
    def cancel(self, choice: random.Random) -> None:
        if self.waiting:
            number = choice.choice(sorted(self.waiting))
            assert self.purgatory.cancel(self.waiting.pop(number))

    def over(self, operations: list[int]) -> None:
        for operation in operations:
            assert not self.waiting.pop(operation).pending

    @invariant()
    def watches_exactly_what_waits(self) -> None:
        assert len(self.purgatory) == len(self.waiting)
        assert self.purgatory.watchers.keys() == {key for parked in self.waiting.values() for key in parked.keys}


TestEveryOperationIsOverOnce = EveryOperationIsOverOnce.TestCase
TestEveryOperationIsOverOnce.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
