"""Work in slices: how much at a time, and whose turn it is."""

from __future__ import annotations

from collections.abc import Callable, Generator

from kbroker.timing.turns import FIRST_STEPS, SLICE_MS, SLICE_STEPS, Turns, begun


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
    turns = Turns()
    turns.begin("a", work(done, "a", FIRST_STEPS - 1))
    assert (len(done), bool(turns)) == (FIRST_STEPS - 1, False)


def test_of_a_long_task_some_is_done_at_once() -> None:
    done: list[str] = []
    turns = Turns()
    turns.begin("a", work(done, "a", 1000))
    assert (len(done), len(turns)) == (FIRST_STEPS, 1)


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
    turns = Turns()
    turns.begin("a", work([], "a", 1000))
    turns.begin("b", work(done, "b", 1))
    assert done == []


def test_a_slice_is_so_many_steps() -> None:
    done: list[str] = []
    turns = Turns()
    turns.begin("a", work(done, "a", 1000))
    turns.run(still)
    assert len(done) == FIRST_STEPS + SLICE_STEPS


def test_a_slice_ends_with_its_time() -> None:
    done: list[str] = []
    turns = Turns()
    turns.begin("a", work(done, "a", 1000))
    turns.run(ticking())
    assert len(done) <= FIRST_STEPS + SLICE_MS


def test_owners_get_their_slices_in_turn() -> None:
    done: list[str] = []
    turns = Turns()
    for name in "aab":
        turns.begin(name, work(done, name, 1000))
    done.clear()
    for _ in range(4):
        turns.run(still)
    assert [done[at] for at in range(0, 4 * SLICE_STEPS, SLICE_STEPS)] == ["a", "b", "a", "b"]


def test_an_owners_tasks_are_done_one_after_the_other() -> None:
    done: list[str] = []
    turns = Turns()
    turns.begin("a", work(done, "first", 1000))
    turns.begin("a", work(done, "second", 10))
    while turns:
        turns.run(still)
    assert done == ["first"] * 1000 + ["second"] * 10


def test_what_a_slice_has_left_goes_to_the_next_task() -> None:
    done: list[str] = []
    turns = Turns()
    turns.begin("a", work([], "a", FIRST_STEPS + 1))
    turns.begin("b", work(done, "b", 1))
    turns.run(still)
    assert (done, bool(turns)) == (["b"], False)


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
    turns = Turns()
    turns.context = Bracket(done)
    turns.begin("a", work(done, "a", FIRST_STEPS + 2))
    turns.run(still)
    assert done[FIRST_STEPS:] == ["(", "a", "a", ")"]
