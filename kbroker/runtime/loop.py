"""What a broker waits for: ready sockets, a time, a signal, work that a thread has done.

Made by `main.py`; `server.py` and `connection.py` register with it, `disk_pool.py` comes back through it. It is epoll
(kqueue or poll where there is none: `platform`) and little else: a ready descriptor is a call, at once, with nothing
made for it, and a starting broker does not import asyncio, a sixth of what it imported
(docs/decisions/0003-connections.md has the numbers). It knows no Kafka.

One thread turns the loop and is the only one to call it, but for `call_from_thread`. Callbacks may register, remove and
close what they like. A descriptor that was closed and given out again within a turn may be told of a readiness that was
its predecessor's: the callback does not block, and takes "nothing there" for an answer.

A client that asks, gets its answer and asks again is back before a processor has gone to sleep and woken up. So before
a wait the loop looks again and again for a moment, as long as that is worth it (docs/decisions/0009-lookout.md).

Where very many descriptors are ready, a turn is as long as what all of their callbacks do together, and what comes
up meanwhile waits for it. So callbacks are told to do less at a time once turns get long, and more again when none was
for a while: the length is measured once a turn, and what the work is need not be known.

A callback that raises is a bug: it is reported, and the others go on.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress

from kbroker.runtime.platform import READABLE, WRITABLE, Poll, Readiness, usable_processors, waking_pipe

log = logging.getLogger("kbroker.loop")

READY_PER_TURN = 256  # descriptors told ready at a time; the kernel gives the others their turn in the next
SOON_PER_TURN = 8  # calls, each of them a step of the broker: answers of the metadata store come by the thousand
SOON_S = 5e-3  # and no more of them after so long: to plan fifty topics takes as much by itself
RESTLESS_TURNS = 4  # that do not end with nothing ready: what waits for rest is called then all the same,
RESTLESS_S = 2e-3  # and after so long: a turn in which much is done may take that by itself
LOOKOUT_S = 100e-6  # how long to look before sleeping: until a follower may have asked for more
LONG_TURN_S = 20e-3  # of which the others have to wait for two or three
EASE_S = 0.25  # without a long turn, after which twice as much is done again
MOST_HALVINGS = 4
MOST_MISSES = 8  # in a row: then one wait in 2**8 begins with a look, so that being wrong costs next to nothing
WAKE_BYTES = 4096  # read at once from the pipe that ends a wait

Callback = Callable[[], object]


class Timer:
    """Calls back once, when its time has come; can be set again at any time."""

    __slots__ = ("_callback", "_loop", "due_s")

    def __init__(self, loop: Loop, callback: Callback) -> None:
        self._loop = loop
        self._callback = callback
        self.due_s: float | None = None  # on time.monotonic's clock; None: not set

    def set(self, delay_s: float) -> None:
        """Call back in `delay_s` seconds, and no more at the time set before."""
        self.due_s = due_s = time.monotonic() + delay_s
        self._loop._keep(self, due_s)

    def cancel(self) -> None:
        """Do not call back."""
        self.due_s = None
        self._loop._drop(self)

    def fire(self) -> None:
        """For the loop."""
        self.due_s = None
        self._callback()


class Loop:
    """Readiness, time, signals and other threads, as calls on one thread.

    failed: what becomes of an exception that a callback let out; it is logged unless this is set. is_only_one: no other
    descriptor was ready than the one whose callback runs; one that takes long clears it. halvings: how often what a
    callback does at a time is to be halved, for turns have been long of late.
    """

    def __init__(self, readiness: Readiness | None = None) -> None:
        """readiness: this platform's, unless given; closed with the loop."""
        self.failed: Callable[[Exception], object] = _log_failure
        self.is_only_one = False
        self.halvings = 0
        self._ease_s = 0.0  # when there are to be fewer, on time.monotonic's clock
        self._readiness = Poll() if readiness is None else readiness
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._soon: deque[Callback] = deque()  # other threads, and handlers of signals, append to it too
        self._after_ready: list[Callback] = []
        self._at_rest: list[Callback] = []
        self._restless_turns = 0  # in a row, with such calls waiting
        self._rest_by_s = 0.0  # on time.monotonic's clock
        self._timers: list[Timer] = []  # that are set: a handful
        self._earliest_s = math.inf  # none is due before this, on time.monotonic's clock
        self._misses = 0  # looks in vain, in a row; halved by one that was not
        self._sleeps = 0 if usable_processors() > 1 else sys.maxsize  # waits to come that begin with no look
        self._handlers: dict[int, object] = {}  # of signals, as they were before
        self._wake_read, self._wake_write = waking_pipe()
        self.add_reader(self._wake_read, self._woken)

    def run_until(self, done: Callable[[], object]) -> None:
        """Turn until `done()` holds; it is asked before every turn."""
        while not done():
            self.turn()

    def turn(self, *, wait: bool = True) -> None:
        """One turn: what is ready, and what follows that; then timers that are due, then what was to be called soon.

        wait: for something to come up. False: only what is there.
        """
        timeout_s = self._patience_s() if wait and not self._at_rest else 0
        readers, writers = self._readers, self._writers
        ready = self._wait(timeout_s)
        begun_s = time.monotonic()
        self.is_only_one = len(ready) == 1
        for fd, event in ready:
            try:
                if event & ~WRITABLE and (callback := readers.get(fd)) is not None:
                    callback()
                if event & ~READABLE and (callback := writers.get(fd)) is not None:
                    callback()
            except Exception as error:
                self.failed(error)
        self.is_only_one = False
        if ready:
            for callback in self._after_ready:
                self._call(callback)
        now_s = time.monotonic()
        if now_s >= self._earliest_s:
            self._fire_timers()
        if self._soon:
            self._call_some()
        if self._at_rest:
            self._restless_turns += 1
            if not ready or self._restless_turns >= RESTLESS_TURNS or now_s >= self._rest_by_s:
                self._rest()
        took_s = time.monotonic() - begun_s
        if took_s > LONG_TURN_S:
            self.halvings = min(self.halvings + 1, MOST_HALVINGS)
            self._ease_s = begun_s + took_s + EASE_S
        elif self.halvings and begun_s >= self._ease_s:
            self.halvings -= 1
            self._ease_s = begun_s + EASE_S

    def _wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """The descriptors that are ready: after a moment's look, if looking has paid of late, else after a sleep."""
        poll = self._readiness.poll
        if timeout_s == 0:
            return poll(0, READY_PER_TURN)
        if self._writers:  # a full socket: its reader has much to do yet, and does it sooner on a processor of its own
            return poll(timeout_s, READY_PER_TURN)
        if self._sleeps:
            self._sleeps -= 1
            return poll(timeout_s, READY_PER_TURN)
        until_s = time.monotonic() + LOOKOUT_S
        while not (ready := poll(0, READY_PER_TURN)):
            if time.monotonic() >= until_s:
                self._misses = min(self._misses + 1, MOST_MISSES)
                self._sleeps = 2**self._misses - 1
                return poll(timeout_s, READY_PER_TURN)
        self._misses >>= 1
        return ready

    def readable(self, but: Collection[int]) -> int:
        """How many descriptors other than these have something to read: for a callback that has much to do."""
        return sum(1 for fd, event in self._readiness.poll(0, READY_PER_TURN) if event & READABLE and fd not in but)

    def _call_some(self) -> None:
        """What was to be called soon; what that adds is for the next turn, and so are many: sockets are asked first."""
        until_s = time.monotonic() + SOON_S
        for _ in range(min(len(self._soon), SOON_PER_TURN)):
            self._call(self._soon.popleft())
            if time.monotonic() >= until_s:
                return

    def _rest(self) -> None:
        """What was to wait until now."""
        self._restless_turns = 0
        callbacks, self._at_rest = self._at_rest, []
        for callback in callbacks:
            self._call(callback)

    def _patience_s(self) -> float | None:
        """How long to wait for descriptors at most."""
        if self._soon:
            return 0
        if self._earliest_s == math.inf:
            return None
        return max(self._earliest_s - time.monotonic(), 0)

    def _fire_timers(self) -> None:
        now_s = time.monotonic()
        due = [timer for timer in self._timers if timer.due_s is not None and timer.due_s <= now_s]
        for timer in sorted(due, key=lambda timer: timer.due_s or 0.0):
            if timer.due_s is not None and timer.due_s <= now_s:  # the one before may have cancelled or moved it
                self._drop(timer)
                self._call(timer.fire)
        self._earliest_s = min((timer.due_s for timer in self._timers if timer.due_s is not None), default=math.inf)

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as error:
            self.failed(error)

    # -- descriptors

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Call back, and none that was to be called before, whenever `fd` has something to read, failed or hung up."""
        is_known = self._events(fd) != 0
        self._readers[fd] = callback
        self._watch(fd, is_known)

    def add_writer(self, fd: int, callback: Callback) -> None:
        """Likewise whenever `fd` takes something, failed or hung up."""
        is_known = self._events(fd) != 0
        self._writers[fd] = callback
        self._watch(fd, is_known)

    def remove_reader(self, fd: int) -> None:
        """No more; nothing happens if there was none. Before the descriptor is closed."""
        if self._readers.pop(fd, None) is not None:
            self._unwatch(fd)

    def remove_writer(self, fd: int) -> None:
        """Likewise."""
        if self._writers.pop(fd, None) is not None:
            self._unwatch(fd)

    def _events(self, fd: int) -> int:
        return (READABLE if fd in self._readers else 0) | (WRITABLE if fd in self._writers else 0)

    def _watch(self, fd: int, is_known: bool) -> None:
        if is_known:
            self._readiness.modify(fd, self._events(fd))
        else:
            self._readiness.register(fd, self._events(fd))

    def _unwatch(self, fd: int) -> None:
        events = self._events(fd)
        if events:
            self._readiness.modify(fd, events)
        else:  # not merely modified: a hang-up would be told without end
            self._readiness.unregister(fd)

    # -- time

    def timer(self, callback: Callback) -> Timer:
        """A timer that is not set yet."""
        return Timer(self, callback)

    def call_later(self, delay_s: float, callback: Callback) -> Timer:
        """A timer set once."""
        timer = Timer(self, callback)
        timer.set(delay_s)
        return timer

    def _keep(self, timer: Timer, due_s: float) -> None:
        if timer not in self._timers:
            self._timers.append(timer)
        self._earliest_s = min(self._earliest_s, due_s)  # once it is past, it is worked out again

    def _drop(self, timer: Timer) -> None:
        if timer in self._timers:
            self._timers.remove(timer)

    # -- soon, and from elsewhere

    def call_soon(self, callback: Callback) -> None:
        """Call in the next turn at the latest."""
        self._soon.append(callback)

    def after_ready(self, callback: Callback) -> None:
        """From now on, call in every turn that found a descriptor ready, once, behind what is called for those."""
        self._after_ready.append(callback)

    def at_rest(self, callback: Callback) -> None:
        """Call once no descriptor is ready, before the loop sleeps; in a busy one after some turns all the same."""
        if not self._at_rest:
            self._rest_by_s = time.monotonic() + RESTLESS_S
        self._at_rest.append(callback)

    def call_from_thread(self, callback: Callback) -> None:
        """The same, from any thread or from a signal's handler: the loop is woken."""
        self._soon.append(callback)
        with suppress(BlockingIOError):  # a full pipe wakes it as well
            os.write(self._wake_write, b"\0")

    def on_signal(self, number: int, callback: Callback) -> None:
        """Call back, in a turn of the loop, when the process gets this signal. On the main thread."""
        self._handlers[number] = signal.signal(number, lambda *_: self.call_from_thread(callback))
        signal.siginterrupt(number, False)  # what the loop calls is not told EINTR
        # A signal that comes after Python looked for signals and before it waits must end the wait, too: with this,
        # the wait finds the pipe readable, and the handler runs right after.
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def on_end(self, callback: Callable[[int], None]) -> None:
        """Call back with the signal that is to end the process: SIGTERM, Ctrl-C, or SIGHUP, of a terminal that closes.

        As with Java's shutdown hooks, SIGHUP ends nothing where it is ignored, as by nohup.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self.on_signal(number, lambda number=number: callback(number))  # type: ignore[misc]

    def _woken(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read, WAKE_BYTES)  # the rest, if any, is ready in the next turn

    def close(self) -> None:
        """Give everything back. Descriptors that are registered stay open, and are theirs who opened them."""
        if self._handlers:
            signal.set_wakeup_fd(-1)
        for number, before in self._handlers.items():
            signal.signal(number, before)  # type: ignore[arg-type]  # what signal.signal gave us
        self._readiness.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def _log_failure(error: Exception) -> None:
    log.error("failed", exc_info=error)
