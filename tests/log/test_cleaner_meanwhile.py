"""What happens to a log, to its folder and to its directory while it is compacted, and what a compaction does then."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.cleaner.cleaner import CleanPiece
from kbroker.log.cleaner.compaction import Compaction
from kbroker.log.directory import Delete
from kbroker.log.log_jobs import Job
from tests.log.cleaning import COMPACTED, PARTITION, Compacted, check_against
from tests.log.managers import run_jobs
from tests.log.test_cleaner import filled, step
from tests.log.worlds import NOW, batch


def cut(world: Compacted) -> None:
    """The last batch before the active segment goes."""
    world.manager.truncate("t", 0, 33, now_ms=world.now_ms, wall_ms=NOW)
    del world.written[33:]
    run_jobs(world.manager, world.now_ms)


def first_piece(world: Compacted) -> CleanPiece:
    """Time goes by until a compaction begins; its first piece, which is under way."""
    while True:
        world.now_ms += 10
        world.manager.due(world.now_ms, world.wall_ms)
        for job in world.manager.take_jobs(world.now_ms):
            if isinstance(job, CleanPiece):
                return job
            job.run()
            world.manager.finished(job, None, world.now_ms)


def cut_and_write_anew(world: Compacted) -> None:
    """Another leader's batch takes its place, and has its size."""
    cut(world)
    world.append(*((f"q{key}", "11" * 10) for key in range(3)))
    world.roll()


def test_what_is_written_anew_behind_a_cut_is_not_taken_for_what_was_there_before() -> None:
    world = filled(Compacted())
    world.roll()
    taken: list[Job] = []
    while not any(".cleaned" in name for name in world.names()):
        for job in taken:
            world.manager.finished(job, None, world.now_ms)
        world.now_ms += 10
        world.manager.due(world.now_ms, world.wall_ms)
        taken = world.manager.take_jobs(world.now_ms)
        for job in taken:
            job.run()
    cut_and_write_anew(world)
    for job in taken:
        world.manager.finished(job, None, world.now_ms)
    world.compact()
    check_against(world.records(), world.written, 36)


def test_what_is_written_anew_while_names_become_durable_is_dirty() -> None:
    world = filled(Compacted())
    world.roll()
    last = world.log.segments[-2]
    while world.log.segments[-2] is last:
        step(world, 1)
    world.manager.due(world.now_ms, world.wall_ms)
    jobs = world.manager.take_jobs(world.now_ms)
    cut_and_write_anew(world)
    for job in jobs:
        job.run()
        world.manager.finished(job, None, world.now_ms)
    assert world.cleaned_to() <= 33


def test_a_log_that_is_cut_while_it_is_read_can_be_compacted() -> None:
    world = filled(Compacted())
    world.roll()
    piece = first_piece(world)
    cut(world)
    piece.run()
    world.manager.finished(piece, None, world.now_ms)
    assert world.manager.cleaner.uncleanable == []


@pytest.mark.parametrize("jobs", range(1, 8))
def test_a_partition_that_is_deleted_meanwhile_takes_nothing_offline(jobs: int) -> None:
    world = filled(Compacted())
    world.roll()
    step(world, jobs)
    world.manager.delete("t", 0, now_ms=world.now_ms)
    world.compact()
    assert world.manager.directories[0].online


@pytest.mark.parametrize("call", ["write", "sync", "set_modified"])
def test_a_partition_that_is_deleted_in_the_middle_of_a_piece_takes_nothing_offline(call: str) -> None:
    world = filled(Compacted())
    world.roll()

    def delete(name: str, path: str) -> OSError | None:
        if name == call and path.endswith(".log.cleaned") and world.manager.get("t", 0) is not None:
            world.manager.delete("t", 0, now_ms=world.now_ms)
        return None

    world.disk.fault = delete
    world.compact()
    assert world.manager.get("t", 0) is None
    assert world.manager.directories[0].online


def test_a_compaction_waits_until_the_files_of_one_that_was_given_up_are_removed() -> None:
    world = filled(Compacted())
    world.roll()
    while world.log.log_end_offset == 36:
        world.now_ms += 10
        world.manager.due(world.now_ms, world.wall_ms)
        for job in world.manager.take_jobs(world.now_ms):
            job.run()
            if any(".cleaned" in name for name in world.names()):  # written, and not in place
                world.manager.truncate("t", 0, 33, now_ms=world.now_ms, wall_ms=NOW)
            world.manager.finished(job, None, world.now_ms)
    world.manager.due(world.now_ms, world.wall_ms)
    stuck: list[Job] = []
    for job in world.manager.take_jobs(world.now_ms):
        if isinstance(job, CleanPiece | Delete):
            stuck.append(job)
        else:
            job.run()
            world.manager.finished(job, None, world.now_ms)

    def go_on(name: str, path: str) -> OSError | None:
        if name == "rename" and path.endswith(".log.cleaned"):
            while stuck:
                stuck.pop().run()
        return None

    world.disk.fault = go_on
    world.compact()
    assert world.manager.directories[0].online
    world.disk.fault = None
    for job in stuck:
        job.run()
        world.manager.finished(job, None, world.now_ms)
    world.compact()
    assert world.cleaned_to() > 0
    assert not [name for name in world.names() if "cleaned" in name]


def test_a_piece_that_is_under_way_when_its_directory_fails_keeps_what_it_works_with() -> None:
    closed: list[str] = []

    class Watched(Compaction):
        def close(self) -> list[str]:
            closed.append("closed")
            return super().close()

    world = filled(Compacted(begin=Watched))
    world.roll()
    piece = first_piece(world)
    world.manager.disk_failed("/a", OSError(errno.EIO, "injected"))
    world.now_ms += 10
    world.manager.due(world.now_ms, world.wall_ms)
    assert closed == []
    piece.run()
    world.manager.finished(piece, None, world.now_ms)
    assert closed == ["closed"]


def test_a_log_in_which_memory_ran_out_holds_up_the_compaction_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Compaction) -> bool:
        raise MemoryError

    world = filled(Compacted())
    world.roll()
    piece = first_piece(world)
    with monkeypatch.context() as patched:
        patched.setattr(Compaction, "note_some", no_memory)
        piece.run()
    with pytest.raises(MemoryError):
        world.manager.finished(piece, None, world.now_ms)
    world.manager.get_or_create("u", 0, None, COMPACTED, is_new=True, wall_ms=NOW)
    other = world.manager.get("u", 0)
    assert other is not None
    for _ in range(3):
        other.append_as_leader(batch(key=b"k"), 0, NOW)
        other.set_high_watermark(other.log_end_offset)
        other.roll(NOW)
    world.manager.flush("u", 0)
    world.compact()
    assert (other.cleaned_to > 0, world.manager.cleaner.uncleanable) == (True, [PARTITION])
