"""A log compacted by a process beside the broker's: its pieces are asked for over two pipes.

Made for `kbroker start`, given to the cleaner, which asks for each piece on a thread of the disk pool. That thread
waits without the interpreter's lock, and the work takes neither that lock nor a processor that the broker could use
(`compaction_process.py`, docs/decisions/0019-compaction.md). Choosing, swap and checkpoints stay in the broker; a
process that ends before its time is as a log that cannot be compacted: said once, nothing of it is in place.

Small logs are compacted in the broker: a process costs as much to start. So are all if none can be started.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, cast

from kbroker.log.cleaner import in_this_process
from kbroker.log.cleaner.errors import GoneError, UncleanableError
from kbroker.runtime.platform import Tether
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.log.cleaner.compaction import Compacting, LastOfProducer, Plan
    from kbroker.log.cleaner.writing import Written
    from kbroker.ports import Disk

LEAST_BYTES = 16 << 20
"""Of a log that gets a process: compacting less takes no longer than a Python takes to start."""

_MAIN = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"
READY = "ready"


def command(module: str = "kbroker.runtime.compaction_process") -> tuple[str, ...]:
    """What starts the process: this Python, whose modules come from where the broker's come from, and nowhere else."""
    return sys.executable, "-P", "-c", _MAIN.format(path=sys.path, module=module)


class State(NamedTuple):
    """How far a compaction has come. written: the group that became durable with this piece, if one did."""

    end_offset: int
    moved_bytes: int = 0
    written_bytes: int = 0
    kept_records: int = 0
    map_share: float = 0.0
    written: Written | None = None


class Beside:
    """Begins compactions, each in a process of its own if its log is large enough."""

    def __init__(self, start_by: Sequence[str] | None = None, least_bytes: int = LEAST_BYTES) -> None:
        """start_by: a command line in place of `command`. least_bytes: of a log that gets a process."""
        self._start_by = start_by
        self._least_bytes = least_bytes
        self._is_possible = True
        self._is_closed = False
        self._children: set[Child] = set()

    def __call__(self, disk: Disk, plan: Plan) -> Compacting:
        """disk: of this machine, and no other: the process opens the same paths."""
        if self._is_possible and sum(source.size for source in plan.sources) >= self._least_bytes:
            return CompactionBeside(self, plan)
        return in_this_process(disk, plan)

    def start(self) -> Child:
        """A process that is ready. Raises GoneError: it is none; from now on logs are compacted in the broker."""
        if self._is_closed:
            raise GoneError("the broker stops")
        try:
            child = Child(self._start_by or command())
        except OSError as error:
            self._is_possible = False
            raise GoneError(str(error)) from None
        if child.receive() != READY:
            self._is_possible = False
            child.end()
            raise GoneError("no process")
        self._children.add(child)
        if self._is_closed:  # meanwhile, by another thread
            child.kill()
        return child

    def ended(self, child: Child, folder: str) -> Exception:
        """What it means that a process has said nothing more. folder: the partition's."""
        fate = child.fate()
        return (
            GoneError(folder)
            if self._is_closed
            else UncleanableError(f"{folder}: the process that compacted it {fate}")
        )

    def forget(self, child: Child) -> None:
        """It is not asked any more."""
        self._children.discard(child)

    def close(self) -> None:
        """The broker stops: give up what is under way, which might not have a processor for long. Any thread."""
        self._is_closed = True
        for child in list(self._children):
            child.kill()


class CompactionBeside:
    """One log's: a `Compacting`. Its process is there from the first piece until `close`."""

    def __init__(self, beside: Beside, plan: Plan) -> None:
        self._beside = beside
        self._plan = plan
        self._child: Child | None = None
        self._state = State(plan.first_dirty)
        self._group: int | None = None  # base offset of what is being written, or waits to be put in place
        self._producers: Mapping[int, LastOfProducer] | None = None  # those that the process has been told

    @property
    def end_offset(self) -> int:
        """It will be clean to here."""
        return self._state.end_offset

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written so far."""
        return self._state.moved_bytes

    @property
    def written_bytes(self) -> int:
        """Of the groups that are done."""
        return self._state.written_bytes

    @property
    def kept_records(self) -> int:
        """Of the groups that are done."""
        return self._state.kept_records

    @property
    def map_share(self) -> float:
        """Which part of the memory for keys is taken."""
        return self._state.map_share

    def note_some(self) -> bool:
        """Note the keys of some pieces; whether they were the last. Raises as `Compaction` does, and GoneError."""
        if self._child is None:
            self._child = self._beside.start()
            self._child.send(self._plan)
        return self._ask("note")

    def begin_group(self, base_offset: int) -> None:
        """The next segments, up to which `rewrite_some` says, become one that begins here."""
        self._group = base_offset
        self._ask("begin", base_offset)

    def rewrite_some(self, end_offset: int, producers: Mapping[int, LastOfProducer]) -> bool:
        """Rewrite some pieces of a group; whether they were the last, and it is durable."""
        known, self._producers = self._producers is producers, producers
        return self._ask("rewrite", end_offset, None if known else producers)

    def take_written(self) -> Written:
        """The group that is durable now."""
        written = self._state.written
        assert written is not None, self._group
        self._group = None
        return written

    def close(self) -> list[str]:
        """End the process, which has nothing to do now; the files of a segment not taken."""
        from kbroker.log.cleaner.writing import cleaned_paths

        child, self._child = self._child, None
        if child is not None:
            self._beside.forget(child)
            child.end()
        return [] if self._group is None else cleaned_paths(self._plan.folder, self._group)

    def _ask(self, *request: object) -> bool:
        child = self._child
        assert child is not None, request
        child.send(request)
        answer = child.receive()
        if answer is None:
            raise self._beside.ended(child, self._plan.folder)
        outcome, self._state = cast("tuple[bool | Exception, State]", answer)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Child:
    """A process of ours, asked over its standard input, that answers on its standard output. pid: its id."""

    def __init__(self, start_by: Sequence[str]) -> None:
        """start_by: its command line, to which is added what `end_with_parent` wants to know. Raises OSError."""
        self._status: int | None = None
        asked, requests = os.pipe()
        try:
            answers, answered = os.pipe()
        except OSError:
            os.close(asked)
            os.close(requests)
            raise
        self._requests: BinaryIO = open(requests, "wb")  # noqa: SIM115 - closed by `end`
        self._answers: BinaryIO = open(answers, "rb")  # noqa: SIM115
        ways = [(os.POSIX_SPAWN_DUP2, asked, 0), (os.POSIX_SPAWN_DUP2, answered, 1)]
        self._tether = Tether()
        command = [*start_by, str(os.getpid()), str(self._tether.fd)]
        try:
            self.pid = os.posix_spawn(command[0], command, os.environ, file_actions=ways)
        except OSError:
            self._close()
            raise
        finally:
            self._tether.given()
            os.close(asked)
            os.close(answered)

    def send(self, message: object) -> None:
        """Send something; if the process has ended, no answer comes."""
        import pickle

        with suppress(BrokenPipeError):
            pickle.dump(message, self._requests)
            self._requests.flush()

    def receive(self) -> object:
        """What it says next; None: nothing more."""
        import pickle

        try:
            return pickle.load(self._answers)
        except (EOFError, pickle.UnpicklingError):
            return None

    def fate(self) -> str:
        """How it ended, once it says nothing more."""
        self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if self._status < 0:
            return f"was ended by signal {-self._status}"
        return f"ended with exit code {self._status}"

    def kill(self) -> None:
        """The waiting caller is told that there is no answer."""
        if self._status is None:  # else its id may be another process's
            os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Have it ended, and wait for nothing."""
        self._close()
        if self._status is None:
            self.kill()
            threading.Thread(target=os.waitpid, args=(self.pid, 0), daemon=True).start()

    def _close(self) -> None:
        self._tether.close()
        self._answers.close()
        with suppress(BrokenPipeError):  # of what it was not told any more
            self._requests.close()
