"""The loop: readiness, time, signals and threads, told once each and on its own thread."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from itertools import accumulate
from types import SimpleNamespace

import pytest

from kbroker.runtime.loop import (
    EASE_S,
    LONG_TURN_S,
    LOOKOUT_S,
    MOST_HALVINGS,
    MOST_MISSES,
    RESTLESS_S,
    RESTLESS_TURNS,
    SOON_PER_TURN,
    SOON_S,
    Loop,
)
from tests.contracts.test_readiness import KINDS


@pytest.fixture(params=sorted(KINDS))
def loop(request: pytest.FixtureRequest) -> Iterator[Loop]:
    loop = Loop(KINDS[request.param]())
    loop.failed = _raise
    yield loop
    loop.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.setblocking(False)
    with here, there:
        yield here, there


def _raise(error: Exception) -> None:
    raise error


Pair = tuple[socket.socket, socket.socket]


# ---- descriptors


def test_a_reader_is_called_in_every_turn_in_which_there_is_something(loop: Loop, pair: Pair) -> None:
    seen: list[str] = []
    loop.add_reader(pair[0].fileno(), lambda: seen.append("readable"))
    loop.turn(wait=False)
    pair[1].send(b"x")
    loop.turn()
    loop.turn()
    assert seen == ["readable", "readable"]


def test_reader_and_writer_of_one_descriptor_are_told_apart(loop: Loop, pair: Pair) -> None:
    seen: list[str] = []
    fd = pair[0].fileno()
    loop.add_reader(fd, lambda: seen.append("readable"))
    loop.add_writer(fd, lambda: seen.append("writable"))
    loop.turn()
    loop.remove_writer(fd)
    pair[1].send(b"x")
    loop.turn()
    assert seen == ["writable", "readable"]


def test_a_hang_up_is_told_to_whoever_waits(loop: Loop, pair: Pair) -> None:
    seen: list[str] = []
    loop.add_writer(pair[0].fileno(), lambda: seen.append("writable"))
    pair[1].close()
    loop.turn()
    assert seen == ["writable"]


def test_a_descriptor_that_nobody_watches_does_not_end_a_wait(loop: Loop, pair: Pair) -> None:
    fd = pair[0].fileno()
    loop.add_reader(fd, lambda: pytest.fail("removed"))
    loop.remove_reader(fd)
    pair[1].close()
    fired: list[str] = []
    loop.call_later(0.01, lambda: fired.append("timer"))
    loop.turn()
    assert fired == ["timer"]


def test_a_reader_may_remove_and_close_another_one_that_is_ready_too(loop: Loop, pair: Pair) -> None:
    other, far = socket.socketpair()
    seen: list[int] = []

    def only_one(mine: socket.socket, others: socket.socket) -> None:
        seen.append(mine.fileno())
        loop.remove_reader(others.fileno())

    loop.add_reader(pair[0].fileno(), lambda: only_one(pair[0], other))
    loop.add_reader(other.fileno(), lambda: only_one(other, pair[0]))
    pair[1].send(b"x")
    far.send(b"x")
    loop.turn()
    other.close()
    far.close()
    assert len(seen) == 1


def test_removing_what_is_not_there_does_nothing(loop: Loop) -> None:
    loop.remove_reader(0)
    loop.remove_writer(0)


def test_a_callback_that_raises_is_reported_and_the_others_are_called(loop: Loop, pair: Pair) -> None:
    seen: list[object] = []
    loop.failed = seen.append
    loop.call_soon(lambda: 1 // 0)
    loop.call_soon(lambda: seen.append("the next"))
    loop.turn()
    assert [type(each) for each in seen] == [ZeroDivisionError, str]


# ---- time


def test_timers_fire_once_in_the_order_of_their_times(loop: Loop) -> None:
    fired: list[str] = []
    loop.call_later(0.002, lambda: fired.append("second"))
    loop.call_later(0.001, lambda: fired.append("first"))
    loop.run_until(lambda: len(fired) == 2)
    loop.turn(wait=False)
    assert fired == ["first", "second"]


def test_a_timer_that_was_set_again_fires_at_its_new_time_only(loop: Loop) -> None:
    fired: list[str] = []
    timer = loop.timer(lambda: fired.append("moved"))
    timer.set(0)
    timer.set(60)
    loop.turn(wait=False)
    before = list(fired)
    timer.set(0)
    loop.turn()
    assert (before, fired, timer.due_s) == ([], ["moved"], None)


def test_a_timer_may_cancel_another_one_that_is_due(loop: Loop) -> None:
    fired: list[str] = []
    later = loop.timer(lambda: fired.append("cancelled"))
    loop.call_later(0, later.cancel)
    later.set(0)
    loop.turn()
    loop.turn(wait=False)
    assert fired == []


def test_a_timer_may_set_itself_again(loop: Loop) -> None:
    fired: list[int] = []

    def again() -> None:
        fired.append(len(fired))
        if len(fired) < 3:
            timer.set(0)

    timer = loop.timer(again)
    timer.set(0)
    loop.run_until(lambda: len(fired) == 3)
    assert timer.due_s is None


# ---- soon, threads, signals


def test_what_is_called_soon_and_calls_soon_lets_sockets_be_asked_in_between(loop: Loop, pair: Pair) -> None:
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        loop.call_soon(lambda: seen.append("second"))

    loop.call_soon(first)
    loop.add_reader(pair[0].fileno(), lambda: seen.append("readable"))
    loop.turn()
    pair[1].send(b"x")
    loop.turn()
    assert seen == ["first", "readable", "second"]


def test_a_thread_wakes_the_loop_and_its_call_runs_on_the_loops_thread(loop: Loop) -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: loop.call_from_thread(lambda: seen.append(threading.get_ident())))
    loop.call_later(30, lambda: pytest.fail("was not woken"))
    thread.start()
    loop.run_until(lambda: seen)
    thread.join()
    assert seen == [threading.get_ident()]


def test_calls_from_threads_are_not_lost_when_the_pipe_is_full(loop: Loop) -> None:
    seen: list[int] = []
    for number in range(100_000):  # more than a pipe holds
        loop.call_from_thread(lambda number=number: seen.append(number))  # type: ignore[misc]
    loop.run_until(lambda: len(seen) == 100_000)
    assert seen == list(range(100_000))


def test_a_signal_ends_the_wait_and_is_told_in_a_turn(loop: Loop) -> None:
    seen: list[str] = []
    loop.on_signal(signal.SIGUSR1, lambda: seen.append("told"))
    loop.call_later(30, lambda: pytest.fail("was not woken"))
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    loop.run_until(lambda: seen)
    assert seen == ["told"]


def test_a_closed_loop_leaves_signals_as_they_were() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    loop = Loop()
    loop.on_signal(signal.SIGUSR2, lambda: None)
    loop.close()
    assert signal.getsignal(signal.SIGUSR2) is before


# ---- looking before sleeping


class _Epoll:
    """Ready at given times, on a clock that a look moves by 10 us."""

    def __init__(self, ready_us: list[int]) -> None:
        self.now_us = 0
        self.looks, self.sleeps = 0, 0
        self._ready_us = ready_us

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def poll(self, timeout_s: float | None, most: int) -> list[tuple[int, int]]:
        if timeout_s == 0:
            self.looks += 1
            self.now_us += 10
        else:
            self.sleeps += 1
            self.now_us = max(self.now_us, self._ready_us[0])
        return [(self._ready_us.pop(0), 0)] if self._ready_us[0] <= self.now_us else []


def _turns(
    monkeypatch: pytest.MonkeyPatch, gaps_us: list[int], processors: int = 2, *, full_sockets: int = 0
) -> _Epoll:
    """A loop's waits for events with these gaps between them, as far as it looked and slept."""
    monkeypatch.setattr("kbroker.runtime.loop.usable_processors", lambda: processors)
    loop = Loop()
    fake = _Epoll(list(accumulate(gaps_us)))
    loop._writers.update(dict.fromkeys(range(100, 100 + full_sockets), lambda: None))
    monkeypatch.setattr(loop, "_readiness", fake)
    monkeypatch.setattr("kbroker.runtime.loop.time", fake)
    for _ in gaps_us:
        loop.turn()
    monkeypatch.undo()
    loop.close()
    return fake


def test_what_comes_back_at_once_finds_the_loop_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _turns(monkeypatch, [30] * 100).sleeps == 0


def test_a_quiet_loop_sleeps_and_hardly_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _turns(monkeypatch, [1000] * 2000)
    assert seen.sleeps == 2000
    looks = LOOKOUT_S * 1e6 / 10 + 1  # before one sleep, of 10 us each
    assert seen.looks < (2000 / 2**MOST_MISSES + 10) * looks


def test_a_loop_that_was_quiet_wakes_up_to_a_client_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _turns(monkeypatch, [1000] * 600 + [20] * 2000)
    assert seen.sleeps < 600 + 2**MOST_MISSES


def test_one_processor_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _turns(monkeypatch, [20] * 10, processors=1).looks == 0


def test_nobody_looks_while_a_socket_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _turns(monkeypatch, [20] * 10, full_sockets=1).looks == 0


def test_what_waits_for_rest_comes_when_nothing_is_ready(loop: Loop, pair: Pair) -> None:
    here, there = pair
    order: list[str] = []
    there.send(b"12")
    loop.add_reader(here.fileno(), lambda: order.append(here.recv(1).decode()))
    loop.at_rest(lambda: order.append("rest"))
    for _ in range(5):
        loop.turn(wait=False)
    assert order == ["1", "2", "rest"]


def test_what_follows_readiness_is_called_once_behind_all_that_were_ready(loop: Loop, pair: Pair) -> None:
    order: list[str] = []
    loop.after_ready(lambda: order.append("after"))
    loop.turn(wait=False)
    for end, name in zip(pair, "ab", strict=True):
        end.send(b"x")
        loop.add_reader(end.fileno(), lambda name=name: order.append(name))  # type: ignore[misc]
    for _ in range(2):
        loop.turn(wait=False)
    assert [sorted(order[:2]), order[2], sorted(order[3:5]), order[5:]] == [["a", "b"], "after", ["a", "b"], ["after"]]


def test_what_follows_readiness_follows_a_callback_that_fails(loop: Loop, pair: Pair) -> None:
    faults: list[Exception] = []
    loop.failed = faults.append
    called: list[int] = []
    loop.after_ready(lambda: called.append(1))
    pair[1].send(b"x")
    loop.add_reader(pair[0].fileno(), lambda: 1 // 0)
    loop.turn()
    assert (len(faults), called) == (1, [1])


def test_a_loop_that_waits_for_rest_does_not_sleep(loop: Loop) -> None:
    rested: list[int] = []
    loop.at_rest(lambda: rested.append(1))
    loop.turn()
    assert rested == [1]


def test_a_loop_that_never_rests_calls_all_the_same(loop: Loop, pair: Pair) -> None:
    here, there = pair
    there.send(b"always")
    order: list[str] = []
    loop.add_reader(here.fileno(), lambda: order.append("ready"))
    loop.at_rest(lambda: order.append("rest"))
    for _ in range(RESTLESS_TURNS + 1):
        loop.turn(wait=False)
    assert order == ["ready"] * RESTLESS_TURNS + ["rest", "ready"]


def test_what_waits_for_rest_does_not_wait_for_long_turns(
    loop: Loop, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = pair
    there.send(b"always")
    now_s = [0.0]
    monkeypatch.setattr("kbroker.runtime.loop.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    order: list[str] = []

    def work() -> None:
        order.append("ready")
        now_s[0] += RESTLESS_S

    loop.add_reader(here.fileno(), work)
    loop.at_rest(lambda: order.append("rest"))
    for _ in range(2):
        loop.turn(wait=False)
    assert order == ["ready", "rest", "ready"]


@pytest.mark.parametrize("where", ["ready", "soon", "timer"])
def test_less_is_to_be_done_at_a_time_while_turns_are_long(
    loop: Loop, pair: Pair, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    now_s = [1.0]
    monkeypatch.setattr("kbroker.runtime.loop.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    pair[1].send(b"x")

    def turn(took_s: float) -> int:
        def work() -> None:
            now_s[0] += took_s

        loop.remove_reader(pair[0].fileno())
        if where == "ready":
            loop.add_reader(pair[0].fileno(), work)
        elif where == "soon":
            loop.call_soon(work)
        else:
            loop.call_later(0, work)
        loop.turn()
        return loop.halvings

    long = [turn(2 * LONG_TURN_S) for _ in range(MOST_HALVINGS + 1)]
    short = turn(LONG_TURN_S / 2), turn(0)
    later = []
    for _ in range(MOST_HALVINGS + 1):
        now_s[0] += EASE_S
        later.append((turn(0), turn(0)))
    assert (long, short, later) == ([1, 2, 3, 4, 4], (4, 4), [(3, 3), (2, 2), (1, 1), (0, 0), (0, 0)])


def test_sockets_are_asked_between_many_calls(loop: Loop) -> None:
    called: list[int] = []
    for number in range(2 * SOON_PER_TURN):
        loop.call_soon(lambda number=number: called.append(number))  # type: ignore[misc]
    loop.turn()
    first = len(called)
    loop.turn()
    assert (first, called) == (SOON_PER_TURN, list(range(2 * SOON_PER_TURN)))


def test_sockets_are_asked_between_calls_that_take_long(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight in a turn, each of them short enough by itself, are together too long for those who wait."""
    now_s = [100.0]
    monkeypatch.setattr("kbroker.runtime.loop.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    called: list[int] = []

    def take(number: int) -> None:
        called.append(number)
        now_s[0] += 0.6 * SOON_S

    for number in range(5):
        loop.call_soon(lambda number=number: take(number))  # type: ignore[misc]
    turns = []
    for _ in range(3):
        loop.turn()
        turns.append(len(called))
    assert (turns, called) == ([2, 4, 5], list(range(5)))
