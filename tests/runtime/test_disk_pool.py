"""The disk pool: work on threads, outcomes on the loop."""

from __future__ import annotations

import threading

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

    pool.run(lambda: None, lambda error: outcomes.append((error, threading.current_thread())))
    pool.run(fail, lambda error: outcomes.append((error, threading.current_thread())))
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

    pool.run(wait, lambda error: None)
    pool.run(lambda: None, lambda error: None)
    begun.wait()
    threading.Timer(0.05, go_on.set).start()
    pool.close()
    loop.close()
    assert caplog.records == []
