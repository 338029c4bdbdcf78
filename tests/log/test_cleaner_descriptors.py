"""A compaction that finds no file descriptor left is given up, and begun anew later: nothing of it goes on halfway."""

from __future__ import annotations

import errno

from kbroker.sim.disk import SimDisk
from tests.log.cleaning import Compacted
from tests.sim.test_cleaner_crashes import check, story


def lived(fault_at: int) -> tuple[Compacted, bool]:
    """A world in which the n-th file to be opened while it is compacted cannot be; whether it came to that."""
    opened, failed = 0, False

    def fault(call: str, path: str) -> OSError | None:
        nonlocal opened, failed
        if not (call.startswith(("open", "create")) and world.compacting):
            return None
        opened += 1
        failed = failed or opened == fault_at
        return OSError(errno.EMFILE, "injected", path) if opened == fault_at else None

    world = Starved(SimDisk(0))
    world.disk.fault = fault
    story(world)
    world.disk.fault = None
    return world, failed


class Starved(Compacted):
    """Has time for a second try."""

    compacting = False

    def compact(self, turns: int = 40) -> None:
        self.compacting = True
        super().compact(turns + 400)
        self.compacting = False


def test_it_is_begun_anew_and_leaves_what_it_would_have_left() -> None:
    wanted, _ = lived(0)
    fault_at, failed = 0, True
    while failed:
        fault_at += 1
        world, failed = lived(fault_at)
        assert world.manager.directories[0].online
        assert world.cleaned_to() == wanted.cleaned_to(), fault_at
        assert world.left() == wanted.left(), fault_at
        check(world)
    assert fault_at > 20, fault_at
