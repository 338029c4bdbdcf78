"""The process that compacts one log beside a broker: pieces asked for on standard input, told on standard output.

Started by `compaction_beside.py`. It gives way to all: its work is done by a thread of Linux' class SCHED_IDLE, which
has a processor only if no other thread wants one, and loses it at once; elsewhere the process has the least priority.
Two things keep that from being a trap:

- Whatever changes files is done by another thread, of the usual class: who is without a processor within the file
  system may hold what others' fsyncs wait for.
- A piece that took many times its own time says that the machine is full. The next ones are done by the usual thread,
  so that a log is compacted on any machine.

It ends with the broker, however that ended: two processes must never write the same `.cleaned` files.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import BinaryIO, NoReturn, TypeVar, cast

from kbroker.log.cleaner.compaction import Compaction, LastOfProducer, Plan
from kbroker.log.cleaner.errors import GoneError, UncleanableError
from kbroker.ports import Buffer, Disk, OpenMode
from kbroker.runtime.compaction_beside import READY, State
from kbroker.runtime.files import OPEN_FLAGS, SystemDisk, SystemFile
from kbroker.runtime.platform import end_with_parent, give_way

T = TypeVar("T")

PIECE_BYTES = 1 << 20  # some 8 ms: after so much it is seen whether the machine is full
PIECES_A_REQUEST = 16  # each request costs the broker a turn of its loop
LATE_S = 0.1  # a piece that waited longer, and several times what it worked, was starved
PIECES_IN_THE_OPEN = 64  # are done by the usual thread then


def main() -> None:
    """Serve until the broker is gone. The last arguments: its process's id, and what `Tether` gives."""
    end_with_parent(signal.SIGKILL, *map(int, sys.argv[-2:]))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group, they are meant for the broker
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a codec of a user's prints is no answer
    serve(sys.stdin.buffer, answers, Quiet())


def serve(requests: BinaryIO, answers: BinaryIO, quiet: Quiet) -> None:
    """Say that it is ready, take the plan, then do as asked until there is nothing more."""

    def send(message: object) -> None:
        pickle.dump(message, answers)
        answers.flush()

    send(READY)
    try:
        work = Work(QuietDisk(quiet), cast(Plan, pickle.load(requests)), quiet)
        while True:
            send(work.do(*pickle.load(requests)))
    except (EOFError, BrokenPipeError):
        return


class Work:
    """One log's compaction, as it is asked for."""

    def __init__(self, disk: Disk, plan: Plan, quiet: Quiet) -> None:
        self._quiet = quiet
        self._compaction = Compaction(disk, plan, PIECE_BYTES)
        self._producers: Mapping[int, LastOfProducer] = {}

    def do(self, name: str, *arguments: object) -> tuple[bool | Exception, State]:
        """What came of one request, a failure included, and how far the compaction is now."""
        compaction = self._compaction
        outcome: bool | Exception
        try:
            outcome = self._asked(name, *arguments)
        except (OSError, UncleanableError, GoneError) as error:
            outcome = error
        return outcome, State(
            compaction.end_offset,
            compaction.moved_bytes,
            compaction.written_bytes,
            compaction.kept_records,
            compaction.map_share,
            compaction.take_written() if name == "rewrite" and outcome is True else None,
        )

    def _asked(self, name: str, *arguments: object) -> bool:
        compaction = self._compaction
        if name == "begin":
            [base_offset] = arguments
            compaction.begin_group(cast(int, base_offset))
            return False
        if name == "note":
            return self._some(compaction.note_some)
        end_offset, producers = arguments
        if producers is not None:
            self._producers = cast(Mapping[int, LastOfProducer], producers)
        return self._some(partial(compaction.rewrite_some, cast(int, end_offset), self._producers))

    def _some(self, piece: Callable[[], bool]) -> bool:
        """Several pieces, fewer if the machine is full; whether they were the last."""
        for _ in range(PIECES_A_REQUEST):
            if self._quiet.do(piece):
                return True
            if self._quiet.was_late:
                break
        return False


class Quiet:
    """Has work done by a thread that gives way to all others, if that gets it done at all.

    was_late: whether the last piece was starved.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        """clock, worked: seconds, of the machine and of the calling thread."""
        self.was_late = False
        self._clock = clock
        self._worked = worked
        self._in_the_open = 0
        self._waited_s = 0.0  # by the piece under way, for what others do
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._news: SimpleQueue[tuple[bool, Callable[[], object]]] = SimpleQueue()
        self._changed: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> T:
        """The work's outcome."""
        if self._in_the_open > 0:
            self._in_the_open -= 1
            self.was_late = False
            return work()
        self._work.put(work)
        while True:
            is_over, act = self._news.get()
            if is_over:
                return cast(T, act())
            self._changed.put(_outcome_of(act))

    def change(self, act: Callable[[], T]) -> T:
        """Do something that must not be left half done: by the thread that does not give way."""
        if threading.current_thread() is not self._thread:
            return act()
        began = self._clock()
        self._news.put((False, act))
        outcome = self._changed.get()
        self._waited_s += self._clock() - began
        return cast(T, outcome())

    def _run(self) -> None:
        with suppress(OSError):  # forbidden here: it goes on as a usual one
            give_way()
        while True:
            work = self._work.get()
            began, before, self._waited_s = self._clock(), self._worked(), 0.0
            outcome = _outcome_of(work)
            waited_s, worked_s = self._clock() - began - self._waited_s, self._worked() - before
            self.was_late = waited_s > LATE_S + 4 * worked_s
            if self.was_late:
                self._in_the_open = PIECES_IN_THE_OPEN
            self._news.put((True, outcome))


def _outcome_of(work: Callable[[], object]) -> Callable[[], object]:
    """Do it; what gives its value, or raises its error, on another thread."""
    try:
        value = work()
    except Exception as error:
        return partial(_raise, error)
    return lambda: value


def _raise(error: Exception) -> NoReturn:
    raise error


class QuietFile(SystemFile):
    """A file that is written to by the thread that does not give way."""

    __slots__ = ("_quiet",)

    def __init__(self, fd: int, quiet: Quiet) -> None:
        super().__init__(fd)
        self._quiet = quiet

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """As a plain one."""
        self._quiet.change(partial(super().write, buffers, position))

    def sync(self) -> None:
        """As a plain one."""
        self._quiet.change(super().sync)


class QuietDisk(SystemDisk):
    """The machine's disk, changed by the thread that does not give way; what a compaction calls."""

    __slots__ = ("_quiet",)

    def __init__(self, quiet: Quiet) -> None:
        self._quiet = quiet

    def open(self, path: str, mode: OpenMode) -> SystemFile:
        """One open(2)."""
        if mode == "read":
            return super().open(path, mode)
        return QuietFile(self._quiet.change(partial(os.open, path, OPEN_FLAGS[mode], 0o644)), self._quiet)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """utimensat(2)."""
        self._quiet.change(partial(super().set_modified, path, modified_ms))

    def remove(self, path: str) -> None:
        """unlink(2)."""
        self._quiet.change(partial(super().remove, path))
