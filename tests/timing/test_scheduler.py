"""Alarms: when they ring, and in which order. Work in slices: how much at a time, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest

from kbroker.timing.scheduler import FIRST_STEPS, SLICE_MS, SLICE_STEPS, Alarm, KeyedAlarms, Scheduler, begun


def work(done: list[str], name: str, steps: int) -> Generator[None, None, None]:
    for _ in range(steps):
        done.append(name)
        yield


def still() -> int:
    return 0


def ticking() -> Callable[[], int]:
    """A clock on which each look takes a millisecond."""
    now_ms = -1

    def look() -> int:
        nonlocal now_ms
        now_ms += 1
        return now_ms

    return look


def test_a_short_task_is_done_at_once() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work(done, "a", FIRST_STEPS - 1))
    assert (len(done), scheduler.is_slicing) == (FIRST_STEPS - 1, False)


def test_of_a_long_task_some_is_done_at_once() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work(done, "a", 1000))
    assert (len(done), scheduler.tasks) == (FIRST_STEPS, 1)


def worth(done: list[str], steps: int) -> Generator[None, None, int]:
    yield from work(done, "a", steps)
    return steps


def test_a_task_that_is_short_comes_to_something_without_turns() -> None:
    done: list[str] = []
    assert (begun(worth(done, FIRST_STEPS - 1)), len(done)) == (FIRST_STEPS - 1, FIRST_STEPS - 1)


def test_of_a_task_that_is_long_the_other_steps_come_back() -> None:
    done: list[str] = []
    others = begun(worth(done, FIRST_STEPS + 5))
    assert (len(done), isinstance(others, int) or len(list(others))) == (FIRST_STEPS, 5)


def test_behind_other_work_nothing_is_done_at_once() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work([], "a", 1000))
    scheduler.start_task("b", work(done, "b", 1))
    assert done == []


def test_a_slice_is_so_many_steps() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work(done, "a", 1000))
    scheduler.run_slice(still)
    assert len(done) == FIRST_STEPS + SLICE_STEPS


def test_a_slice_ends_with_its_time() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work(done, "a", 1000))
    scheduler.run_slice(ticking())
    assert len(done) <= FIRST_STEPS + SLICE_MS


def test_owners_get_their_slices_in_turn() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    for name in "aab":
        scheduler.start_task(name, work(done, name, 1000))
    done.clear()
    for _ in range(4):
        scheduler.run_slice(still)
    assert [done[at] for at in range(0, 4 * SLICE_STEPS, SLICE_STEPS)] == ["a", "b", "a", "b"]


def test_an_owners_tasks_are_done_one_after_the_other() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work(done, "first", 1000))
    scheduler.start_task("a", work(done, "second", 10))
    while scheduler.is_slicing:
        scheduler.run_slice(still)
    assert done == ["first"] * 1000 + ["second"] * 10


def test_what_a_slice_has_left_goes_to_the_next_task() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.start_task("a", work([], "a", FIRST_STEPS + 1))
    scheduler.start_task("b", work(done, "b", 1))
    scheduler.run_slice(still)
    assert (done, scheduler.is_slicing) == (["b"], False)


class Bracket:
    """A context that is told of."""

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def __enter__(self) -> None:
        self._done.append("(")

    def __exit__(self, *_: object) -> None:
        self._done.append(")")


def test_a_slice_is_run_in_the_context_and_first_steps_are_not() -> None:
    done: list[str] = []
    scheduler = Scheduler()
    scheduler.context = Bracket(done)
    scheduler.start_task("a", work(done, "a", FIRST_STEPS + 2))
    scheduler.run_slice(still)
    assert done[FIRST_STEPS:] == ["(", "a", "a", ")"]


# ---- alarms


def named(scheduler: Scheduler, rang: list[tuple[str, int]], name: str) -> Alarm:
    return scheduler.alarm(lambda now_ms: rang.append((name, now_ms)))


def test_an_alarm_that_is_set_again_rings_at_the_new_time_only() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()
    alarm = named(scheduler, rang, "a")
    alarm.set(10)
    alarm.set(30)
    for now_ms in (20, 30, 40):
        scheduler.ring(now_ms)
    assert (rang, alarm.pending) == ([("a", 30)], False)


def test_an_alarm_that_is_cancelled_does_not_ring() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()
    alarm = named(scheduler, rang, "a")
    alarm.set(10)
    alarm.cancel()
    scheduler.ring(10)
    assert (rang, scheduler.next_ms) == ([], None)


def test_alarms_that_are_due_together_ring_in_the_order_of_their_parts_whenever_they_were_set() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()
    first, second, third = (named(scheduler, rang, name) for name in "abc")
    third.set(10)
    second.set(9)
    first.set(10)
    scheduler.ring(10)
    assert [name for name, _ in rang] == ["a", "b", "c"]


def test_what_is_done_about_the_first_may_cancel_or_move_the_others() -> None:
    rang: list[str] = []
    scheduler = Scheduler()

    def ring(key: str, now_ms: int) -> None:
        rang.append(key)
        if key == "a":
            alarms.cancel("b")
            alarms.set("c", 20)

    alarms = scheduler.alarms_by_key(ring)
    for key in "abc":
        alarms.set(key, 10)
    scheduler.ring(10)
    before = list(rang)
    scheduler.ring(20)
    assert (before, rang, len(alarms)) == (["a"], ["a", "c"], 0)


def test_an_alarm_that_is_set_while_others_ring_rings_the_next_time() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()
    late = named(scheduler, rang, "late")
    scheduler.alarm(lambda now_ms: late.set(12)).set(10)
    scheduler.ring(15)
    before = list(rang), scheduler.next_ms
    scheduler.ring(15)
    assert (before, rang) == (([], 12), [("late", 15)])


def test_what_is_due_behind_an_alarm_whose_part_fails_rings_the_next_time() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()

    def fail(now_ms: int) -> None:
        raise RuntimeError("a bug")

    scheduler.alarm(fail).set(10)
    named(scheduler, rang, "b").set(10)
    with pytest.raises(RuntimeError):
        scheduler.ring(10)
    before = list(rang)
    scheduler.ring(10)
    assert (before, rang) == ([], [("b", 10)])


def test_a_key_has_one_alarm_which_can_be_forgotten() -> None:
    rang: list[str] = []
    scheduler = Scheduler()
    alarms: KeyedAlarms[str] = scheduler.alarms_by_key(lambda key, now_ms: rang.append(key))
    alarms.set("a", 30)
    alarms.set("a", 10)
    alarms.set("b", 10)
    forgotten = alarms.cancel("b"), alarms.cancel("b")
    scheduler.ring(30)
    assert (forgotten, rang) == ((True, False), ["a"])


def test_an_alarm_that_is_moved_on_rings_at_the_later_time_and_not_before() -> None:
    rang: list[tuple[str, int]] = []
    scheduler = Scheduler()
    alarms: KeyedAlarms[str] = scheduler.alarms_by_key(lambda key, now_ms: rang.append((key, now_ms)))
    alarms.set("a", 10)
    alarms.set("a", 25)
    alarms.set("b", 30)
    alarms.set("b", 35)
    alarms.set("b", 20)
    for now_ms in (10, 15, 20, 24, 25, 40):
        scheduler.ring(now_ms)
    assert (rang, len(alarms), scheduler.next_ms) == ([("b", 20), ("a", 25)], 0, None)


def test_an_alarm_that_is_moved_on_stays_in_the_wheel_where_it_is_until_its_first_time() -> None:
    scheduler = Scheduler()
    alarms: KeyedAlarms[str] = scheduler.alarms_by_key(lambda key, now_ms: None)
    for now_ms in range(0, 45_000, 5_000):
        alarms.set("a", now_ms + 45_000)
    before = scheduler.next_ms
    scheduler.ring(45_000)
    assert (before, len(alarms), scheduler.next_ms) == (45_000, 1, 85_000)


def test_what_is_wanted_at_once_rings_in_its_turn_once_for_each_time_that_it_is_wanted() -> None:
    rang: list[str] = []
    scheduler = Scheduler()

    def go_on(now_ms: int) -> None:
        rang.append("again")
        alarm.soon()

    alarm = scheduler.alarm(go_on)
    scheduler.alarm(lambda now_ms: rang.append("behind it")).set(10)
    alarm.soon()
    scheduler.ring(10)
    before = list(rang)
    scheduler.ring_wanted(10)
    assert (before, rang, scheduler.has_work, alarm.pending) == (["behind it"], ["behind it", "again"], True, True)


@pytest.mark.parametrize(
    ("before", "asked_ms", "rings"),
    [(None, 30, 30), (50, 30, 30), (20, 30, 20), (20, 10, "soon"), (None, 2**63 - 1, None)],
    ids=["not set", "set for later", "set for earlier", "asked for what is over", "never"],
)
def test_an_alarm_that_is_wanted_by_a_time_rings_no_later(
    before: int | None, asked_ms: int, rings: int | str | None
) -> None:
    scheduler = Scheduler(10)
    alarm = scheduler.alarm(lambda now_ms: None)
    if before is not None:
        alarm.set(before)
    alarm.by(asked_ms, 10)
    assert ("soon" if scheduler.has_work else alarm.deadline_ms if alarm.pending else None) == rings
    alarm.by(15, 10)
    assert (alarm in scheduler.wanted, alarm.deadline_ms == 15) == (rings == "soon", rings != "soon")
