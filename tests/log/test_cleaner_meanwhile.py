"""What happens to a log, to its folder and to its directory while it is compacted, and what a compaction does then."""

from __future__ import annotations

import pytest

from tests.log.cleaning import Compacted
from tests.log.test_cleaner import filled, step


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
