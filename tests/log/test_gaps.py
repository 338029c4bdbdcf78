"""Files of a log that were lost: what is said, and what stays."""

from __future__ import annotations

import pytest

from kbroker.log.checkpoints import format_offsets, replace_file
from kbroker.log.config import LogConfig
from kbroker.log.manager import LogManager
from kbroker.sim.disk import SimDisk
from tests.log.managers import append, names, notices, start
from tests.log.worlds import NOW, all_offsets

ONE_BATCH = LogConfig(segment_bytes=100)


def filled(disk: SimDisk, config: LogConfig = ONE_BATCH) -> LogManager:
    """t-0 in /a, with the segments 0 to 4 of a batch each."""
    manager = start(disk, config=config)
    manager.get_or_create("t", 0, None, config, is_new=True, wall_ms=NOW)
    for _ in range(5):
        append(manager, "t")
    return manager


def file_of(offset: int, part: str = "log") -> str:
    return f"/a/t-0/{offset:020d}.{part}"


def lose(disk: SimDisk, offset: int) -> None:
    for part in ("log", "index", "timeindex"):
        disk.remove(file_of(offset, part))


def empty(disk: SimDisk, offset: int) -> None:
    disk.open(file_of(offset), "write").resize(0)


def restarted(disk: SimDisk, config: LogConfig = ONE_BATCH) -> LogManager:
    disk.restart(power_loss=False)
    return start(disk, config=config)


def offsets(manager: LogManager) -> list[int]:
    log = manager.get("t", 0)
    assert log is not None
    return all_offsets(log)


@pytest.mark.parametrize("damage", [lose, empty])
def test_what_lies_behind_a_gap_after_an_unclean_stop_is_kept_aside_and_named(damage: object) -> None:
    disk = SimDisk()
    filled(disk)
    damage(disk, 2)  # type: ignore[operator]
    manager = restarted(disk)
    assert offsets(manager) == [0, 1]
    assert [name for name in names(disk, "/a/t-0") if "after-gap" in name] == [
        "00000000000000000003.log.after-gap",
        "00000000000000000004.log.after-gap",
    ]
    kept = "00000000000000000004.log.after-gap"
    assert f"{file_of(4)}: 78 bytes behind lost batches: kept aside as {kept}" in notices(manager)


def test_of_an_empty_segment_behind_a_gap_nothing_is_kept() -> None:
    disk = SimDisk()
    filled(disk)
    lose(disk, 2)
    empty(disk, 4)
    restarted(disk)
    assert [name for name in names(disk, "/a/t-0") if "after-gap" in name] == ["00000000000000000003.log.after-gap"]


def test_what_was_kept_aside_before_is_not_replaced() -> None:
    disk = SimDisk()
    filled(disk)
    lose(disk, 3)
    manager = restarted(disk)
    append(manager, "t")
    append(manager, "t")
    lose(disk, 3)
    restarted(disk)
    assert [name for name in names(disk, "/a/t-0") if "after-gap" in name] == [
        "00000000000000000004.log.after-gap",
        "00000000000000000004.log.after-gap-2",
    ]


@pytest.mark.parametrize("damage", [lose, empty])
def test_a_gap_after_a_clean_stop_is_said_and_nothing_is_lost_by_it(damage: object) -> None:
    disk = SimDisk()
    filled(disk).close()
    damage(disk, 2)  # type: ignore[operator]
    manager = restarted(disk)
    assert offsets(manager) == [0, 1, 3, 4]
    assert notices(manager) == [f"{file_of(3)}: offsets 2 to 2 before it are missing: readers go on behind them"]


def test_a_gap_below_what_is_trusted_after_an_unclean_stop_is_said() -> None:
    disk = SimDisk()
    filled(disk).close()
    disk.remove("/a/.kafka_cleanshutdown")
    lose(disk, 2)
    assert f"{file_of(3)}: offsets 2 to 2 before it are missing: readers go on behind them" in notices(restarted(disk))


def test_a_directory_without_gaps_says_nothing() -> None:
    disk = SimDisk()
    filled(disk).close()
    assert notices(restarted(disk)) == []


def test_a_log_that_ends_before_its_clean_stop_is_said() -> None:
    disk = SimDisk()
    filled(disk).close()
    empty(disk, 4)
    manager = restarted(disk)
    assert notices(manager) == ["/a/t-0: ends at offset 4, it was durable to 5: what came between is lost"]


def test_a_compacted_log_may_have_gaps() -> None:
    disk = SimDisk()
    config = ONE_BATCH._replace(compact=True)
    filled(disk, config).close()
    lose(disk, 2)
    assert notices(restarted(disk, config)) == []


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("cleaned_to", "expected"), [(3, [0, 1, 3, 4]), (2, [0, 1])])
def test_where_a_log_was_compacted_once_it_may_have_gaps(clean: bool, cleaned_to: int, expected: list[int]) -> None:
    disk = SimDisk()
    manager = filled(disk)
    log = manager.get("t", 0)
    assert log is not None
    log.cleaned_to = cleaned_to
    if clean:
        manager.close()
    else:
        replace_file(disk, "/a", "cleaner-offset-checkpoint", format_offsets({("t", 0): cleaned_to}).encode())
    lose(disk, 2)
    manager = restarted(disk)
    assert offsets(manager) == ([0, 1, 3, 4] if clean else expected)
    assert (notices(manager) == []) == (cleaned_to == 3)


def test_nothing_is_read_for_it_after_a_clean_stop() -> None:
    disk = SimDisk()
    filled(disk).close()
    disk.restart(power_loss=False)
    disk.trace = []
    start(disk, config=ONE_BATCH)
    assert [path for call, path in disk.trace if call == "open" and path == file_of(1)] == []
