"""Compaction in a process beside the broker: what it leaves, and what is left when either of the two ends."""

from __future__ import annotations

import errno
import io
import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbroker.log.cleaner.cleaner import BeginCompaction
from kbroker.log.cleaner.compaction import Compacting, Compaction, Plan, Source
from kbroker.log.facts import LogCleaned
from kbroker.log.manager import LogManager
from kbroker.ports import Disk
from kbroker.runtime import files
from kbroker.runtime.compaction_beside import LEAST_BYTES, READY, Beside, Child, CompactionBeside
from kbroker.runtime.compaction_process import PIECES_IN_THE_OPEN, Quiet, QuietDisk, Work, serve
from kbroker.runtime.files import SystemDisk
from kbroker.sim.disk import SimDisk
from protocol.records import Record
from protocol.records.content import build_batch
from tests.log.cleaning import COMPACTED, QUICK, Compacted
from tests.log.managers import notices, run_jobs, start, told
from tests.log.worlds import NOW
from tests.sim.test_cleaner_crashes import check, story

CONFIG = COMPACTED._replace(segment_bytes=40_000)


def dirty(folder: Path, begin: BeginCompaction | None) -> LogManager:
    """A broker's logs with one that wants to be compacted, on the real disk."""
    manager = start(SystemDisk(), str(folder), config=CONFIG, manager_config=QUICK, begin=begin)  # type: ignore[arg-type]
    log = manager.get_or_create("t", 0, None, CONFIG, is_new=True, wall_ms=NOW)
    for at in range(60):
        records = [Record(each, NOW + at, b"%d" % (at * each % 50), b"%04d" % at * 10) for each in range(30)]
        log.append_as_leader(memoryview(build_batch(records, codec_id=at % 5)), 0, NOW)
    log.roll(NOW)
    log.set_high_watermark(log.log_end_offset)
    manager.flush("t", 0)
    run_jobs(manager)
    return manager


def compact(manager: LogManager, turns: int = 60) -> None:
    """Let time go by until there is nothing more to do."""
    for turn in range(1, turns):
        manager.due(10 * turn, NOW)
        run_jobs(manager, 10 * turn)


def content(folder: Path) -> dict[str, bytes]:
    """The partition's files, those left out that say which run it was."""
    return {path.name: path.read_bytes() for path in sorted((folder / "t-0").iterdir()) if "0000" in path.name}


def test_it_leaves_the_very_bytes_that_compaction_in_the_broker_leaves(tmp_path: Path) -> None:
    folders, begins = [tmp_path / "a", tmp_path / "b"], [None, Beside(least_bytes=0)]
    for folder, begin in zip(folders, begins, strict=True):
        folder.mkdir()
        manager = dirty(folder, begin)
        before = content(folder)
        compact(manager)
        [cleaned] = told(manager, LogCleaned)
        assert cleaned.bytes_after < cleaned.bytes_before / 2
        assert content(folder) != before
        manager.close()
    assert content(folders[0]) == content(folders[1])


def test_a_process_that_is_killed_is_said_once_and_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    begin = _Ending(after=2)
    manager = dirty(tmp_path, begin)
    before = content(tmp_path)
    compact(manager)
    [said] = notices(manager)
    assert said.startswith("t-0: is not compacted any more, until the next start: ")
    assert said.endswith(f"was ended by signal {signal.SIGKILL}")
    assert content(tmp_path) == before
    assert len(begin.begun) == 1
    manager.close()


class _Ending(Beside):
    """Its process is killed before a request."""

    def __init__(self, after: int) -> None:
        super().__init__(least_bytes=0)
        self.begun: list[Child] = []
        self._after = after

    def start(self) -> Child:
        child = super().start()
        self.begun.append(child)
        send, sent_so_far = child.send, 0

        def killing(message: object) -> None:
            nonlocal sent_so_far
            sent_so_far += 1
            if sent_so_far > self._after:
                os.kill(child.pid, signal.SIGKILL)
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            send(message)

        child.send = killing  # type: ignore[method-assign]
        return child


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_where_no_process_starts_logs_are_compacted_in_the_broker(tmp_path: Path, command: tuple[str, ...]) -> None:
    manager = dirty(tmp_path, Beside(command, least_bytes=0))
    compact(manager)
    assert len(told(manager, LogCleaned)) == 1
    assert notices(manager) == []
    manager.close()


def test_a_module_in_the_working_directory_is_not_taken_for_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(4)")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    child = Beside().start()
    child.end()


def test_a_stop_gives_up_what_is_under_way_without_a_word(tmp_path: Path) -> None:
    begin = Beside(least_bytes=0)
    manager = dirty(tmp_path, begin)
    before = content(tmp_path)
    manager.due(10, NOW)
    for turn in range(1, 60):
        manager.due(10 * turn, NOW)
        jobs = manager.take_jobs(0)
        for job in jobs:
            job.run()
            if begin._children:
                begin.close()
            manager.finished(job, None, 10 * turn)
    assert begin._children == set()
    assert notices(manager) == []
    assert content(tmp_path) == before
    manager.close()


def test_small_logs_get_no_process() -> None:
    world = Compacted(begin=Beside(("/nowhere/python",)))
    begun = world.manager.cleaner._begin(world.disk, _plan(LEAST_BYTES - 1))
    assert isinstance(begun, Compaction)
    assert isinstance(world.manager.cleaner._begin(world.disk, _plan(LEAST_BYTES)), CompactionBeside)


def _plan(size: int) -> Plan:
    return Plan("/a/t-0", COMPACTED, [Source(0, size, 1)], 0, 1, [], NOW, 1 << 20, 0.9, 1 << 16, bytes(16))


BROKER = """
import sys
from kbroker.runtime.compaction_beside import Child, command
child = Child(command())
print(child.receive(), child.pid, flush=True)
sys.stdin.read()
"""


def test_the_process_ends_with_the_broker_even_if_somebody_else_holds_its_pipes() -> None:
    command = [sys.executable, "-c", BROKER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        ready, pid = broker.stdout.readline().split()
        assert ready.decode() == READY
        held = os.pidfd_open(int(pid))
        pipes = [os.open(f"/proc/{broker.pid}/fd/{fd}", os.O_RDWR) for fd in _pipes_to(broker.pid, int(pid))]
        broker.kill()
    assert _ends(held)
    for fd in (held, *pipes):
        os.close(fd)


def _pipes_to(broker: int, child: int) -> list[str]:
    """The broker's descriptors of the pipes that are the child's input and output."""
    ends = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in (0, 1)]
    names = os.listdir(f"/proc/{broker}/fd")
    return [fd for fd in names if int(fd) > 2 and os.readlink(f"/proc/{broker}/fd/{fd}") in ends]


def _ends(pidfd: int) -> bool:
    """Whether a process is over within a minute."""
    return bool(select.select([pidfd], [], [], 60)[0])


# ---- on a disk that fails


class _Here:
    """A child that is not a process: messages go through pickle all the same. Its disk is a simulated one."""

    pid = 0

    def __init__(self, disk: Disk, quiet: Quiet) -> None:
        self._disk = disk
        self._quiet = quiet
        self._work: Work | None = None
        self._answer: bytes = b""

    def send(self, message: object) -> None:
        message = pickle.loads(pickle.dumps(message))
        if self._work is None:
            assert isinstance(message, Plan)
            self._work = Work(self._disk, message, self._quiet)
        else:
            self._answer = pickle.dumps(self._work.do(*message))  # type: ignore[misc]

    def receive(self) -> object:
        return pickle.loads(self._answer)

    def end(self) -> None:
        self._work = None


class _BesideHere(Beside):
    def __init__(self, quiet: Quiet) -> None:
        super().__init__(least_bytes=0)
        self._quiet = quiet
        self._disk: Disk

    def __call__(self, disk: Disk, plan: Plan) -> Compacting:
        self._disk = disk
        return super().__call__(disk, plan)

    def start(self) -> Child:
        return _Here(self._disk, self._quiet)  # type: ignore[return-value]


class _Direct(Quiet):
    """Does everything at once."""

    def __init__(self) -> None:
        self.was_late = False

    def do(self, work: Callable[[], bool]) -> bool:  # type: ignore[override]
        return work()


def test_the_same_calls_reach_the_disk_in_the_same_order() -> None:
    """Hence the power may fail at any of them, as tests/sim/test_cleaner_crashes.py has it."""
    seen: list[list[tuple[str, str]]] = []
    for begin in (None, _BesideHere(_Direct())):
        calls: list[tuple[str, str]] = []
        disk = SimDisk(0)
        disk.fault = lambda call, path, calls=calls: calls.append((call, path))
        world = Compacted(disk, begin=begin)
        story(world)
        check(world)
        seen.append(calls)
    assert seen[0] == seen[1]
    assert len([call for call, path in seen[0] if path.endswith(".cleaned")]) > 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE])
def test_an_error_of_the_disk_is_the_same_error_in_the_broker(code: int) -> None:
    disk = SimDisk(0)
    disk.fault = lambda call, path: OSError(code, "injected", path) if path.endswith("index.cleaned") else None
    world = Compacted(disk, begin=_BesideHere(_Direct()))
    for at in range(60):
        world.append((f"k{at % 4}", f"{at}" * 12))
    world.roll()
    world.compact()
    [directory] = world.manager.directories
    assert directory.online == (code == errno.EMFILE)
    assert told(world.manager, LogCleaned) == []


# ---- giving way


def gives_way() -> bool:
    """Whether this thread does: by Linux' class, or by being nice, which on Linux is a thread's, too."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE or os.getpriority(os.PRIO_PROCESS, 0) == 19


def test_what_changes_files_is_not_left_to_the_thread_that_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, path, policies = Quiet(), str(tmp_path / "f"), dict[str, bool]()
    disk = QuietDisk(quiet)

    def watch(module: object, name: str) -> None:
        call = getattr(module, name)

        def watched(*arguments: object, **others: object) -> object:
            policies[name] = gives_way()
            return call(*arguments, **others)

        monkeypatch.setattr(module, name, watched)

    for module, name in ((files, "pwritev"), (os, "open"), (files, "sync_file"), (os, "utime"), (os, "unlink")):
        watch(module, name)

    def work() -> bool:
        file = disk.open(path, "create")
        file.write([b"ab", b"c"], 0)
        file.sync()
        disk.set_modified(path, 5)
        assert file.read(0, 9) == b"abc"
        disk.remove(path)
        with pytest.raises(FileNotFoundError):
            disk.remove(path)
        return gives_way()

    assert quiet.do(work)
    assert policies == dict.fromkeys(("open", "pwritev", "sync_file", "utime", "unlink"), False)


def test_a_starved_piece_has_the_next_ones_done_by_a_usual_thread() -> None:
    clock: Iterator[float] = iter(())
    quiet = Quiet(lambda: next(clock), lambda: 0.0)

    clock = iter((0.0, 0.1))
    assert (quiet.do(gives_way), quiet.was_late) == (True, False)
    clock = iter((0.0, 2.0))
    assert (quiet.do(gives_way), quiet.was_late) == (True, True)
    assert {quiet.do(gives_way) for _ in range(PIECES_IN_THE_OPEN)} == {False}
    clock = iter((0.0, 0.1))
    assert (quiet.do(gives_way), quiet.was_late) == (True, False)


def test_it_ends_with_its_input() -> None:
    answers = io.BytesIO()
    serve(io.BytesIO(), answers, _Direct())
    assert pickle.loads(answers.getvalue()) == READY
