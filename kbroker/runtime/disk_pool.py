"""Threads for what may wait for a disk: fsync, cold reads, recovery, compression of cold data.

Made by `node.py`, used by `server.py` and by the server of the core's disk effects. A job is a plain function that
touches nothing but files and its own values; its outcome comes back as a call on the loop's thread. Never reads or
writes the core's state.

Threads of its own, not `concurrent.futures`: that takes a quarter of a megabyte, and 3 ms of a start, for futures that
no code would look at, and starts one more thread where a job is told the end of the one before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from kbroker.runtime.loop import Loop

THREADS = 4  # enough that a slow fsync of one directory does not hold up cold reads of another

_Job: TypeAlias = Callable[[], None]
_Done: TypeAlias = Callable[[BaseException | None], None]


class DiskPool:
    """A few threads, each started when a job would have to wait for those that there are. For the loop's thread."""

    def __init__(self, loop: Loop, threads: int = THREADS) -> None:
        self._loop = loop
        self._most = threads
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[tuple[_Job, _Done] | None] = SimpleQueue()  # None: one thread is to end
        self._under_way = 0  # jobs whose end the loop has not been told
        self._is_closed = False

    def submit(self, job: _Job, done: _Done) -> None:
        """Run `job` on a thread, then `done` with its error, or None, on the loop. Nothing happens after `close`.

        Where the system has no thread for it, and there is none yet, the job is not run, and that is its error.
        """
        if self._is_closed:
            return
        self._under_way += 1
        self._jobs.put((job, done))
        if len(self._threads) < min(self._under_way, self._most):
            try:
                self._start_thread()
            except RuntimeError as error:
                if not self._threads:  # else it waits for those, and the next job tries again
                    self._jobs.get_nowait()
                    self._loop.call_from_thread(partial(self._over, done, error))

    def _start_thread(self) -> None:
        # Not waited for at the end of a process that did not come to `close`: it ends as one that is killed.
        thread = Thread(target=self._work, name=f"kbroker-disk_{len(self._threads)}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def allow(self, threads: int) -> None:
        """Have so many at most from now on; those that there are stay."""
        self._most = threads

    def close(self) -> None:
        """Wait for what is running; start nothing more."""
        self._is_closed = True
        try:
            while True:
                self._jobs.get_nowait()
        except Empty:
            pass
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    # -- on a thread

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            self._do(*item)
            del item  # or it would hold the job until the next one comes

    def _do(self, job: _Job, done: _Done) -> None:
        try:
            job()
        except BaseException as error:
            self._loop.call_from_thread(partial(self._over, done, error))
        else:
            self._loop.call_from_thread(partial(self._over, done, None))

    # -- on the loop

    def _over(self, done: _Done, error: BaseException | None) -> None:
        self._under_way -= 1
        done(error)
