"""Files of partitions that changed while no broker ran, and still make sense: a start notices, and mends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.log.checkpoints import format_clean_shutdown, format_partition_metadata, parse_clean_shutdown, replace_file
from kbroker.log.log import Log
from kbroker.log.manager import LogManager
from kbroker.log.sealed import seal
from kbroker.sim.disk import SimDisk
from tests.log.directories import fill, open_directory
from tests.log.managers import names, text
from tests.log.worlds import all_offsets, first_at_or_after, with_max_timestamp
from tests.requests import fetch, produce
from tests.world import World

SHOWN = ("segments-0", "transactions-0", "codec-gzip-0")
MARKER = "/a/.kafka_cleanshutdown"
ENTRY_BYTES = {"txnindex": 34, "index": 8, "timeindex": 12}


@pytest.fixture
def disk() -> SimDisk:
    """A directory with one of everything, stopped cleanly."""
    disk = SimDisk()
    fill(disk, "/a", compacted=True)
    return disk


def start(disk: SimDisk) -> tuple[LogManager, list[str]]:
    """A start, and what it has to say."""
    disk.restart(power_loss=False)
    lines: list[str] = []
    manager = open_directory(disk, "/a", tell=lambda fact: lines.append(getattr(fact, "text", "")))
    return manager, [line for line in lines if line]


def seen(manager: LogManager) -> dict[str, Any]:
    """What clients are shown of each log."""
    return {str(partition): _seen(log) for partition, log in sorted(manager.logs()) if str(partition) in SHOWN}


def _seen(log: Log) -> Any:
    end = log.log_end_offset
    aborted = [log.read(each, 1, end, with_aborted=True).aborted for each in range(log.log_start_offset, end)]
    producers = sorted(
        (each, entry.epoch, [span[:3] for span in entry.batches[-1:]]) for each, entry in log.producers.items()
    )
    largest = [segment.largest_timestamp for segment in log.segments]
    latest = with_max_timestamp(log)
    times = (
        [] if latest is None else [first_at_or_after(log, latest.timestamp - before) for before in range(-1, 300, 9)]
    )
    return all_offsets(log), aborted, log.epochs.entries(), producers, log.last_stable_offset, largest, times


def files(disk: SimDisk, suffix: str) -> list[str]:
    found = [f"/a/{folder}/{name}" for folder in SHOWN for name in names(disk, f"/a/{folder}")]
    return [path for path in found if path.endswith(suffix)]


def size(disk: SimDisk, path: str) -> int:
    entry = disk.stat(path)
    assert entry is not None
    return entry.size


def cut(disk: SimDisk, path: str) -> None:
    """At the end of an entry."""
    disk.open(path, "write").resize(max(size(disk, path) - ENTRY_BYTES[path.rpartition(".")[2]], 0))


def empty(disk: SimDisk, path: str) -> None:
    disk.open(path, "write").resize(0)


def remove(disk: SimDisk, path: str) -> None:
    disk.remove(path)


@pytest.mark.parametrize("damage", [cut, empty, remove])
@pytest.mark.parametrize("part", [".txnindex", ".index", ".timeindex"])
def test_an_index_that_lacks_entries_is_made_anew(
    disk: SimDisk, damage: Callable[[SimDisk, str], None], part: str
) -> None:
    expected = seen(start(disk)[0])
    for path in files(disk, part):
        if not size(disk, path):
            continue
        disk = SimDisk()
        fill(disk, "/a", compacted=True)
        damage(disk, path)
        manager, lines = start(disk)
        assert (seen(manager), any(path.rpartition("/")[0] in line for line in lines)) == (expected, True)
        manager.close(broker_epoch=8)
        assert (seen(start(disk)[0]), start(disk)[1]) == (expected, [])


@pytest.mark.parametrize("damage", [empty, remove])
def test_snapshots_that_are_lost_are_no_world_without_producers(
    disk: SimDisk, damage: Callable[[SimDisk, str], None]
) -> None:
    expected = seen(start(disk)[0])
    disk = SimDisk()
    fill(disk, "/a", compacted=True)
    for path in files(disk, ".snapshot"):
        damage(disk, path)
    manager, lines = start(disk)
    assert (seen(manager), any("snapshot" in line for line in lines)) == (expected, True)


@pytest.mark.parametrize("content", [None, b"", b"0\n", b"0\n0\n", b"0\n1\n0 0\n"])
def test_leader_epochs_that_are_lost_are_those_of_the_batches(disk: SimDisk, content: bytes | None) -> None:
    expected = seen(start(disk)[0])
    disk = SimDisk()
    fill(disk, "/a", compacted=True)
    folder = "/a/segments-0"
    if content is None:
        disk.remove(f"{folder}/leader-epoch-checkpoint")
    else:
        replace_file(disk, folder, "leader-epoch-checkpoint", content)
    manager, lines = start(disk)
    assert (seen(manager), len(lines)) == (expected, 1)
    manager.close(broker_epoch=8)
    assert (seen(start(disk)[0]), start(disk)[1]) == (expected, [])


def test_an_emptied_index_of_aborted_transactions_is_made_again_after_a_kill_too(disk: SimDisk) -> None:
    expected = seen(start(disk)[0])
    for path in files(disk, ".txnindex"):
        disk = SimDisk()
        fill(disk, "/a", compacted=True)
        disk.remove(MARKER)
        empty(disk, path)
        manager, lines = start(disk)
        said = f"{path}: is empty: rebuilt from the batches"
        is_last = path.endswith("32.txnindex")  # of the segment that is read again anyway
        assert (seen(manager), said in lines) == (expected, not is_last)


@pytest.mark.parametrize("content", [None, b"", b"0\n0\n"])
def test_without_any_leader_epochs_they_are_those_of_the_batches_after_a_kill_too(
    disk: SimDisk, content: bytes | None
) -> None:
    expected = seen(start(disk)[0])
    disk = SimDisk()
    fill(disk, "/a", compacted=True)
    disk.remove(MARKER)
    if content is None:
        disk.remove("/a/segments-0/leader-epoch-checkpoint")
    else:
        replace_file(disk, "/a/segments-0", "leader-epoch-checkpoint", content)
    assert seen(start(disk)[0]) == expected


def test_what_nobody_has_changed_is_sealed_as_it_was_opened(disk: SimDisk) -> None:
    sealed = parse_clean_shutdown(text(disk, MARKER)).partitions
    manager, lines = start(disk)
    assert ({str(partition): seal(log) for partition, log in manager.logs()}, lines) == (sealed, [])
    manager.close(broker_epoch=8)
    assert parse_clean_shutdown(text(disk, MARKER)).partitions == sealed


@pytest.mark.parametrize(
    "kept", ["", '{"version":0,"brokerEpoch":5}', '{"segments":7}', '{"partitions":{"segments-0":[1]}}']
)
def test_a_marker_that_says_nothing_of_partitions_is_one(disk: SimDisk, kept: str) -> None:
    expected = seen(start(disk)[0])
    disk = SimDisk()
    fill(disk, "/a", compacted=True)
    replace_file(disk, "/a", ".kafka_cleanshutdown", kept.encode())
    manager, lines = start(disk)
    assert (seen(manager), lines) == (expected, [])


def test_the_marker_keeps_what_is_sealed(disk: SimDisk) -> None:
    marker = parse_clean_shutdown(text(disk, MARKER))
    assert parse_clean_shutdown(format_clean_shutdown(7, marker.checksums, marker.partitions)) == marker
    assert sorted(marker.partitions) == [name for name in names(disk, "/a") if name.endswith("-0")]


def test_a_folder_that_was_emptied_is_begun_anew(disk: SimDisk) -> None:
    for name in names(disk, "/a/transactions-0"):
        disk.remove(f"/a/transactions-0/{name}")
    manager, lines = start(disk)
    log = manager.get("transactions", 0)
    assert log is not None
    assert log.log_end_offset == 0
    lost = "/a/transactions-0: ends at offset 0, it was durable to"
    assert len([line for line in lines if line.startswith(lost)]) == 1


@pytest.mark.parametrize("damage", ["another id", "nothing", "gone"])
def test_a_topic_id_that_changed_since_a_clean_stop_hides_no_record(damage: str) -> None:
    world = World()
    world.create("t")
    world.client().ask(produce(b"v"), 9)
    world.settle()
    path = "/a/t-0/partition.metadata"
    before = text(world.disk, path)
    world.stop()
    if damage == "gone":
        world.disk.remove(path)
    else:
        other = format_partition_metadata(bytes(range(16))) if damage == "another id" else ""
        replace_file(world.disk, "/a/t-0", "partition.metadata", other.encode())
    world.disk.restart(power_loss=False)
    world.start()
    part = world.client().ask(fetch(0), 12).responses[0].partitions[0]
    assert (part.error_code, bool(part.records), text(world.disk, path)) == (0, True, before)


def test_a_folder_with_the_id_of_another_topic_is_set_aside_where_no_clean_stop_knew_better() -> None:
    world = World()
    world.create("t")
    world.client().ask(produce(b"v"), 9)
    world.restart()
    world.stop()
    replace_file(world.disk, "/a/t-0", "partition.metadata", format_partition_metadata(bytes(range(16))).encode())
    world.disk.remove(MARKER)
    world.disk.restart(power_loss=False)
    world.start()
    part = world.client().ask(fetch(0), 12).responses[0].partitions[0]
    assert (part.error_code, bool(part.records)) == (0, False)
    assert any(name.endswith("-stray") for name in names(world.disk, "/a"))
