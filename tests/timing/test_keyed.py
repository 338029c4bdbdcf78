"""Timers by key."""

from __future__ import annotations

from kbroker.timing import KeyedTimers


def due(timers: KeyedTimers[str], now_ms: int) -> list[str]:
    keys = []
    while (key := timers.pop_due(now_ms)) is not None:
        keys.append(key)
    return keys


def test_timer_set_again_comes_at_the_new_time_only() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    timers.set("a", 10)
    timers.set("a", 30)
    assert (due(timers, 20), due(timers, 30)) == ([], ["a"])


def test_timer_moved_forward_comes_early_and_once() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    timers.set("a", 30)
    timers.set("a", 10)
    assert (due(timers, 10), due(timers, 30)) == (["a"], [])


def test_cancelled_timer_does_not_come() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    timers.set("a", 10)
    assert timers.cancel("a")
    assert not timers.cancel("a")
    assert due(timers, 10) == []
    assert timers.next_deadline_ms() is None


def test_what_is_done_about_the_first_may_cancel_or_move_the_second() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    for key in ("a", "b", "c"):
        timers.set(key, 10)
    assert timers.pop_due(10) == "a"
    timers.cancel("b")
    timers.set("c", 20)
    assert due(timers, 10) == []
    assert due(timers, 20) == ["c"]


def test_timer_set_while_others_are_due_comes_in_the_same_round_if_its_time_has_come() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    timers.set("a", 10)
    assert timers.pop_due(15) == "a"
    timers.set("b", 12)
    assert due(timers, 15) == ["b"]


def test_due_keys_left_over_are_due_now() -> None:
    timers: KeyedTimers[str] = KeyedTimers()
    for key in ("a", "b"):
        timers.set(key, 10)
    timers.pop_due(10)
    assert timers.next_deadline_ms() == 10
    assert due(timers, 11) == ["b"]
