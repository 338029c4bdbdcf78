"""What the simulated disk forgets at a power cut, and the faults it can be told to have."""

from __future__ import annotations

import errno

import pytest

from kbroker.sim.disk import PowerLoss, SimDisk


def disk_with(content: bytes, seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    file = disk.open("/a", "create")
    file.write([content], 0)
    file.sync()
    disk.sync_dir("/")
    return disk


def read(disk: SimDisk, path: str = "/a") -> bytes:
    return disk.open(path, "read").read(0, 1 << 20)


def outcomes(change: str) -> set[bytes]:
    """Contents of /a after a power cut, over many seeds."""
    found = set()
    for seed in range(60):
        disk = disk_with(b"old" * 500, seed)
        file = disk.open("/a", "write")
        if change == "write":
            file.write([b"new" * 500], 0)
        else:
            file.write([b"one"], 1500)
            file.write([b"two"], 1503)
        disk.restart()
        found.add(read(disk))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_what_was_synced_survives(seed: int) -> None:
    disk = disk_with(b"hello", seed)
    disk.restart()
    assert read(disk) == b"hello"


def test_unsynced_writes_are_kept_dropped_or_torn() -> None:
    found = outcomes("write")
    assert b"old" * 500 in found
    assert b"new" * 500 in found
    assert len(found) > 2


def test_a_later_write_may_survive_without_an_earlier_one() -> None:
    assert b"old" * 500 + b"\0\0\0two" in outcomes("append")


def test_a_file_whose_name_was_not_synced_may_be_gone() -> None:
    gone = set()
    for seed in range(20):
        disk = SimDisk(seed)
        disk.open("/a", "create").sync()
        disk.restart()
        gone.add(disk.stat("/a") is None)
    assert gone == {True, False}


def test_a_rename_happens_wholly_or_not_at_all() -> None:
    found = set()
    for seed in range(20):
        disk = disk_with(b"new", seed)
        disk.rename("/a", "/b")
        disk.restart()
        found.add(tuple(disk.paths()))
    assert found == {("/a",), ("/b",)}


def test_a_removed_file_may_come_back() -> None:
    found = set()
    for seed in range(20):
        disk = disk_with(b"x", seed)
        disk.remove("/a")
        disk.restart()
        found.add(tuple(disk.paths()))
    assert found == {("/a",), ()}


def test_everything_survives_the_death_of_the_process_alone() -> None:
    disk = SimDisk()
    disk.open("/a", "create").write([b"hello"], 0)
    disk.restart(power_loss=False)
    assert read(disk) == b"hello"


def test_the_machine_stops_at_the_given_call_and_stays_down() -> None:
    disk = disk_with(b"x")
    disk.crash_at = disk.calls + 2
    file = disk.open("/a", "write")
    file.write([b"y"], 0)
    with pytest.raises(PowerLoss):
        file.write([b"z"], 0)
    with pytest.raises(PowerLoss):
        disk.stat("/a")


def test_handles_from_before_the_restart_are_dead() -> None:
    disk = disk_with(b"x")
    file = disk.open("/a", "write")
    disk.restart()
    with pytest.raises(PowerLoss):
        file.read(0, 1)


def test_a_full_volume_takes_what_fits() -> None:
    disk = disk_with(b"x")
    disk.capacity = 4
    with pytest.raises(OSError, match="ENOSPC"):
        disk.open("/a", "write").write([b"yyyyyy"], 1)
    assert read(disk) == b"xyyy"


def test_an_injected_error_hits_the_named_call_only() -> None:
    disk = disk_with(b"x")
    disk.fail("sync", "a", errno.EIO)
    file = disk.open("/a", "write")
    file.write([b"y"], 0)
    with pytest.raises(OSError, match="EIO"):
        file.sync()
    file.sync()


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    disk = disk_with(b"x")
    file = disk.open("/a", "write")
    file.write([b"y"], 0)
    disk.fail("sync", "a", errno.EIO)
    with pytest.raises(OSError, match="EIO"):
        file.sync()
    file.sync()
    disk.restart()
    assert read(disk) == b"x"


def test_a_flipped_bit_stays_flipped() -> None:
    disk = disk_with(b"\0\0")
    disk.flip_bit("/a", 9)
    disk.restart()
    assert read(disk) == b"\0\2"


def test_a_stale_map_shows_nonsense() -> None:
    disk = disk_with(b"hello")
    file = disk.open("/a", "write")
    view = file.map()
    file.resize(3)
    assert bytes(view) != b"hello"


def test_slow_calls_are_announced() -> None:
    disk = disk_with(b"x")
    seen: list[tuple[str, str]] = []
    disk.slow = lambda call, path: seen.append((call, path))
    disk.open("/a", "write").sync()
    assert seen == [("open", "/a"), ("sync", "/a")]
