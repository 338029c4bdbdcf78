"""What happens to a log, to its folder and to its directory while it is compacted, and what a compaction does then."""

from __future__ import annotations

import pytest

from kbroker.log.background import Delete
from kbroker.log.cleaner.cleaner import CleanPiece
from kbroker.log.manager import Job
from tests.log.cleaning import Compacted
from tests.log.test_cleaner import filled, step
from tests.log.worlds import NOW


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
