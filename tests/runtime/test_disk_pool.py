"""The disk pool: work on threads, outcomes on the loop."""

from __future__ import annotations

import threading
import weakref
from unittest.mock import Mock

import pytest

from kbroker.runtime.disk_pool import DiskPool
from kbroker.runtime.loop import Loop


def test_the_outcome_of_a_job_comes_back_on_the_loop() -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=1)
    outcomes: list[object] = []
    failure = OSError("no such luck")

    def fail() -> None:
        raise failure

    pool.submit(lambda: None, lambda error: outcomes.append((error, threading.current_thread())))
    pool.submit(fail, lambda error: outcomes.append((error, threading.current_thread())))
    loop.run_until(lambda: len(outcomes) == 2)
    pool.close()
    loop.close()
    assert outcomes == [(None, threading.main_thread()), (failure, threading.main_thread())]


def test_what_was_not_begun_when_the_pool_closes_is_dropped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=1)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait()

    pool.submit(wait, lambda error: None)
    pool.submit(lambda: None, lambda error: None)
    begun.wait()
    threading.Timer(0.05, go_on.set).start()
    pool.close()
    loop.close()
    assert caplog.records == []


def test_a_job_at_the_end_of_another_needs_no_second_thread() -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=4)
    ran_on: list[str] = []

    def run_again(error: BaseException | None) -> None:
        if len(ran_on) < 5:
            pool.submit(lambda: ran_on.append(threading.current_thread().name), run_again)

    run_again(None)
    loop.run_until(lambda: len(ran_on) == 5)
    pool.close()
    loop.close()
    assert len(set(ran_on)) == 1


def test_jobs_run_beside_each_other_on_so_many_threads() -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=2)
    both, ends, ran_on = threading.Barrier(2, timeout=30), list[object](), set[str]()

    def meet() -> None:
        ran_on.add(threading.current_thread().name)
        both.wait()

    for _ in range(6):
        pool.submit(meet, ends.append)
    loop.run_until(lambda: len(ends) == 6)
    pool.close()
    loop.close()
    assert (ends, len(ran_on)) == ([None] * 6, 2)


def test_a_thread_that_waits_keeps_nothing_of_its_last_job() -> None:
    class Large:
        def work(self) -> None:
            raise OSError("full")

    loop = Loop()
    pool = DiskPool(loop, threads=1)
    ends: list[str] = []
    large = Large()
    # The thread lets go of it after the loop has heard of the end, perhaps when the loop waits already: wake it then.
    gone = weakref.ref(large, lambda _: loop.call_from_thread(lambda: None))
    pool.submit(large.work, lambda error: ends.append(str(error)))
    del large
    loop.run_until(lambda: ends)
    loop.run_until(lambda: gone() is None)
    pool.close()
    loop.close()
    assert ends == ["full"]


def test_a_closed_pool_runs_nothing_and_leaves_no_thread() -> None:
    loop = Loop()
    pool = DiskPool(loop)
    there, ends = set(threading.enumerate()), list[object]()
    pool.submit(lambda: None, ends.append)
    pool.close()
    pool.submit(lambda: ends.append("late"), ends.append)
    loop.run_until(lambda: ends)
    loop.close()
    assert (ends, set(threading.enumerate()) - there) == ([None], set())


def test_a_job_for_which_no_thread_can_be_started_ends_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=1)
    ran, ends = list[int](), list[object]()
    failure = RuntimeError("can't start new thread")
    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", Mock(side_effect=failure))
        pool.submit(lambda: ran.append(1), ends.append)
    assert ends == []  # never before `run` has returned
    loop.run_until(lambda: bool(ends))
    pool.submit(lambda: ran.append(2), ends.append)
    loop.run_until(lambda: len(ends) == 2)
    pool.close()
    loop.close()
    assert (ends, ran) == ([failure, None], [2])


def test_a_job_waits_for_the_threads_that_there_are_where_no_more_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = Loop()
    pool = DiskPool(loop, threads=2)
    go_on, ends = threading.Event(), list[object]()
    pool.submit(go_on.wait, ends.append)
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
    pool.submit(lambda: None, ends.append)
    go_on.set()
    loop.run_until(lambda: len(ends) == 2)
    pool.close()
    loop.close()
    assert ends == [None, None]
