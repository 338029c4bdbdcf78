"""A dry run of compaction says what the cleaner then does, and changes nothing."""

from __future__ import annotations

import pytest

from kbroker.log.cleaner.errors import UncleanableError
from kbroker.log.tools.compact import NoPartitionError, Savings, dry_run
from kbroker.log.tools.verify_partition import Progress
from kbroker.sim.disk import SimDisk
from tests.log.cleaning import DAY, Compacted

SECRET = bytes(range(16))


def savings(disk: SimDisk, path: str = "/a/t-0", now_ms: int = 0, map_bytes: int = 1 << 20) -> Savings:
    items = list(dry_run(disk, path, now_ms=now_ms, secret=SECRET, delete_retention_ms=DAY, map_bytes=map_bytes))
    found = items[-1]
    assert isinstance(found, Savings)
    steps = [each for each in items if isinstance(each, Progress)]
    assert steps[-1].bytes_done <= steps[-1].bytes_total
    return found


def content(disk: SimDisk) -> dict[str, bytes]:
    names = [entry.name for entry in disk.list("/a/t-0")]
    found = {}
    for name in names:
        file = disk.open(f"/a/t-0/{name}", "read")
        found[name] = file.read(0, file.size())
    return found


def closed_bytes(world: Compacted) -> int:
    return sum(each.size for each in world.log.segments[:-1])


def records_left(world: Compacted) -> int:
    return sum(len(records) for _, records in world.batches())


def filled() -> Compacted:
    """Values overwritten, tombstones, transactions committed, aborted and fenced; all segments but the last closed."""
    world = Compacted()
    for turn in range(30):
        world.append((f"k{turn % 4}", f"v{turn}"), (f"only-{turn}", "x"))
    world.append(("k1", None), ("k2", None))
    world.append(("k3", "aborted"), ("k4", "aborted"), producer=7, transactional=True)
    world.end(7, commit=False)
    world.append(("k3", "kept"), producer=8, transactional=True)
    world.end(8, commit=True)
    world.append(("k5", "fenced"), producer=10, transactional=True)
    world.end(10, commit=False, epoch=1)
    world.append(("k9", "p1"), producer=9)
    world.append(("k9", "p2"))
    world.roll()
    return world


def test_it_says_what_the_cleaner_then_leaves() -> None:
    world = filled()
    before = closed_bytes(world), records_left(world)
    told = savings(world.disk, now_ms=world.wall_ms)
    world.compact()
    assert told.bytes_after < told.bytes_before
    assert (told.bytes_before, told.records_before) == before
    assert (told.bytes_after, told.records_after) == (closed_bytes(world), records_left(world))


def test_it_says_what_a_second_compaction_then_leaves() -> None:
    world = filled()
    world.compact()
    world.append(("only-3", "new"), ("only-4", "new"))
    world.roll()
    world.wall_ms += 2 * DAY  # tombstones and markers may go
    told = savings(world.disk, now_ms=world.wall_ms)
    world.compact()
    assert told.first_dirty > 0
    assert (told.bytes_after, told.records_after) == (closed_bytes(world), records_left(world))


def test_it_changes_nothing() -> None:
    world = filled()
    before = content(world.disk)
    savings(world.disk, now_ms=world.wall_ms)
    assert content(world.disk) == before


def test_an_open_transaction_and_what_lies_behind_it_are_left_alone() -> None:
    world = Compacted()
    for turn in range(30):
        world.append(("k", f"v{turn}"))
    whole = savings(world.disk)
    world.append(("k", "open"), producer=7, transactional=True)
    opened = world.log.log_end_offset - 1
    for turn in range(30):
        world.append(("k", f"v{turn}"))
    told = savings(world.disk)
    assert whole.segments_end <= told.segments_end <= opened


def test_keys_that_do_not_fit_are_left_to_another_pass() -> None:
    world = Compacted()
    for turn in range(60):
        world.append((f"key-{turn}", "v"))
    told = savings(world.disk, map_bytes=24 * 16)
    assert told.end_offset < told.segments_end
    assert told.records_after == told.records_before


def test_a_log_of_one_segment_has_nothing_to_compact() -> None:
    world = Compacted()
    world.append(("k", "1"), ("k", "2"))
    told = savings(world.disk)
    assert (told.segments, told.bytes_before) == (0, 0)
    assert told.active_bytes == world.log.segments[0].size


def test_a_folder_that_is_no_partition_is_refused() -> None:
    world = filled()
    world.disk.make_dir("/a/empty-0")
    with pytest.raises(NoPartitionError, match="TOPIC-NUMBER"):
        savings(world.disk, "/a")
    with pytest.raises(NoPartitionError, match=r"no \.log file"):
        savings(world.disk, "/a/empty-0")


def test_a_broken_batch_is_named() -> None:
    world = filled()
    file = world.disk.open("/a/t-0/00000000000000000000.log", "write")
    file.write([b"\xff" * 20], 60)
    with pytest.raises(UncleanableError, match=r"00000000000000000000\.log: position 0"):
        savings(world.disk)
