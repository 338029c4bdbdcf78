"""The quorum's log on a disk: what is there after a start, and what goes when."""

from __future__ import annotations

import json

import pytest

from kbroker.config import BrokerLayers, Given, resolve_broker
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError
from kbroker.log.folder import make_dirs
from kbroker.quorum.metadata_log import MetadataLog, QuorumState, SnapshotId, log_config
from kbroker.sim.disk import SimDisk
from tests.quorum.worlds import FOLDER, NOW, batch, new_disk, open_at, put_snapshot


def names(disk: SimDisk) -> list[str]:
    return sorted(each.name for each in disk.list(FOLDER))


def append(found: MetadataLog, *batches: bytes) -> None:
    found.append(memoryview(b"".join(batches)), NOW)


def test_a_new_log_says_whose_it_is() -> None:
    disk = new_disk()
    found = open_at(disk)
    assert (found.end_offset, found.last_epoch, found.latest_snapshot) == (0, 0, None)
    file = disk.open(f"{FOLDER}/partition.metadata", "read")
    assert file.read(0, 100) == b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


def test_records_are_there_after_a_start() -> None:
    disk = new_disk()
    found = open_at(disk)
    append(found, batch(0, b"a", b"b"), batch(2, b"c", epoch=4))
    found.close()
    again = open_at(disk)
    assert (again.end_offset, again.last_epoch) == (3, 4)


def test_a_snapshot_is_there_after_a_start_and_what_was_not_whole_is_not() -> None:
    disk = new_disk()
    found = open_at(disk)
    append(found, batch(0, *([b"x"] * 10)))
    put_snapshot(found, 10, b"x")
    partial = found.begin_snapshot(SnapshotId(20, 1))
    assert partial is not None
    partial.append([b"half"])
    found.close()
    assert "00000000000000000020-0000000001.checkpoint.part" in names(disk)
    again = open_at(disk)
    assert again.snapshots == [SnapshotId(10, 1)]
    assert again.log.high_watermark == 10
    assert "00000000000000000020-0000000001.checkpoint.part" not in names(disk)


def test_a_log_that_is_behind_its_snapshot_goes_on_from_it() -> None:
    disk = new_disk()
    found = open_at(disk)
    append(found, batch(0, b"a"))
    put_snapshot(found, 100, b"x", epoch=3)
    found.close()
    again = open_at(disk)
    assert (again.start_offset, again.end_offset, again.last_epoch) == (100, 100, 3)


def test_a_log_without_the_snapshot_of_its_beginning_is_refused_in_a_line() -> None:
    disk = new_disk()
    found = open_at(disk)
    put_snapshot(found, 100, b"x")
    found.start_at_latest_snapshot(NOW)
    append(found, batch(100, b"y"))
    found.close()
    disk.remove(f"{FOLDER}/00000000000000000100-0000000001.checkpoint")
    with pytest.raises(CorruptFileError, match=f"^{FOLDER}: there is no snapshot of what is before offset 100"):
        open_at(disk)


def test_old_snapshots_and_the_log_before_go_by_size() -> None:
    disk = new_disk()
    found = open_at(disk, LogConfig(segment_bytes=200, segment_index_bytes=4096, retention_ms=-1))
    for offset in range(30):
        append(found, batch(offset, b"x" * 50))
    found.log.set_high_watermark(30)
    put_snapshot(found, 10, b"x")
    put_snapshot(found, 20, b"x")
    kept = resolve_broker(BrokerLayers(static={"metadata.max.retention.bytes": Given("100000", "")}))
    assert found.clean(kept, NOW) == []
    small = resolve_broker(BrokerLayers(static={"metadata.max.retention.bytes": Given("1000", "")}))
    for job in found.clean(small, NOW):
        job.run()
    assert found.snapshots == [SnapshotId(20, 1)]
    assert found.start_offset == 20
    assert found.log.segments[0].base_offset <= 20
    assert found.log.segments[1].base_offset > 20
    assert not [name for name in names(disk) if "deleted" in name or name.startswith("00000000000000000010-")]


def test_the_newest_snapshot_stays_however_old_it_is() -> None:
    found = open_at(new_disk())
    append(found, batch(0, *([b"x"] * 30)))
    found.log.set_high_watermark(30)
    put_snapshot(found, 10, b"x")
    put_snapshot(found, 30, b"x")
    week_ms = 7 * 24 * 3600 * 1000
    assert found.clean(resolve_broker(BrokerLayers()), NOW + week_ms) == []
    found.clean(resolve_broker(BrokerLayers()), NOW + week_ms + 1)
    assert found.snapshots == [SnapshotId(30, 1)]


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_quorum_state_is_kept_as_apaches_node_keeps_it(kraft_version: int) -> None:
    disk = new_disk()
    found = open_at(disk)
    job = found.write_state(3000, 5, kraft_version=kraft_version)
    job.run()
    found.close()
    values = json.loads(disk.open(f"{FOLDER}/quorum-state", "read").read(0, 1000))
    assert values["data_version"] == kraft_version
    assert values.get("currentVoters", []) == []  # an Apache node does not start on null
    assert open_at(disk).state == QuorumState(3000, 5)


@pytest.mark.parametrize("text", ["", "{}", '{"leaderId":1,"leaderEpoch":1,"data_version":2}', "[1]"])
def test_a_quorum_state_that_makes_no_sense_is_refused_in_a_line(text: str) -> None:
    disk = new_disk()
    make_dirs(disk, FOLDER)
    disk.open(f"{FOLDER}/quorum-state", "create").write([text.encode()], 0)
    with pytest.raises(CorruptFileError, match=rf"^{FOLDER}/quorum-state: "):
        open_at(disk)


@pytest.mark.parametrize(
    ("epoch", "end_offset", "offset"),
    [
        (2, 4, 4),  # its epoch 2 ends before ours
        (2, 9, 6),  # ours ends before its: both have it up to there
        (1, 2, 2),
        (3, 7, 7),
        (0, 1, 1),
    ],
)
def test_where_the_log_is_cut_so_that_it_agrees_with_the_leaders(epoch: int, end_offset: int, offset: int) -> None:
    found = open_at(new_disk())
    append(found, batch(0, b"", b"", b""), batch(3, b"", b"", b"", epoch=2), batch(6, b"", b"", epoch=3))
    assert found.offset_to_truncate_to(epoch=epoch, end_offset=end_offset) == offset


def test_the_logs_settings_are_apaches() -> None:
    found = log_config(resolve_broker(BrokerLayers()))
    assert (found.segment_bytes, found.max_message_bytes, found.retention_ms) == (1 << 30, 8 << 20, -1)
