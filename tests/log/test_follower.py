"""What a log takes from its leader: offsets and epochs as they come, and nothing that is out of order."""

from __future__ import annotations

import pytest

from kbroker.log.append import UnexpectedOffsetError
from kbroker.log.config import LogConfig
from protocol.errors import ErrorCode
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.records.control_records import ControlType, pack_key
from tests.log.cleaning import Compacted
from tests.log.worlds import (
    FOLDER,
    NOW,
    all_offsets,
    batch,
    broken,
    copy_of,
    emptied_marker,
    fetch,
    new_disk,
    offsets_in,
    open_at,
    refused,
)


def test_a_follower_keeps_offsets_and_epochs() -> None:
    log = open_at(new_disk())
    sent = copy_of(batch(2, base_offset=0, epoch=3), batch(2, base_offset=5, epoch=4))
    log.append_as_follower(sent, NOW)
    assert fetch(log, 0) == bytes(sent)
    assert (log.log_end_offset, log.epochs.entries()) == (7, [(3, 0), (4, 5)])


@pytest.mark.parametrize("size", range(1, len(batch())))
def test_a_follower_leaves_out_a_batch_that_was_cut_off(size: int) -> None:
    log = open_at(new_disk())
    whole = batch(epoch=0)
    log.append_as_follower(copy_of(whole, batch(base_offset=1, epoch=0)[:size]), NOW)
    assert fetch(log, 0) == bytes(whole)


def test_a_follower_refuses_what_lies_before_its_end() -> None:
    log = open_at(new_disk())
    log.append_as_follower(copy_of(batch(3, epoch=0)), NOW)
    with pytest.raises(UnexpectedOffsetError) as raised:
        log.append_as_follower(copy_of(batch(base_offset=2, epoch=0)), NOW)
    assert raised.value.first_offset == 2


def test_a_follower_refuses_damage_and_disorder() -> None:
    log = open_at(new_disk())
    with refused(ErrorCode.CORRUPT_MESSAGE):
        log.append_as_follower(copy_of(broken(batch(), 65)), NOW)
    with refused(ErrorCode.INVALID_RECORD):
        log.append_as_follower(copy_of(batch(base_offset=4), batch(base_offset=4)), NOW)


def test_a_follower_takes_a_marker_that_compaction_has_emptied() -> None:
    log = open_at(new_disk())
    log.append_as_follower(emptied_marker(), NOW)
    assert (log.log_end_offset, len(log.producers)) == (1, 0)


def test_a_large_answer_to_a_follower_is_indexed_between_its_ends() -> None:
    log = open_at(new_disk(), LogConfig(index_interval_bytes=500))
    log.append_as_follower(copy_of(*(batch(base_offset=i, epoch=0) for i in range(100))), NOW)
    assert log.active.offsets.count > 10
    assert offsets_in(fetch(log, 77))[0] == 77


def test_nothing_whole_is_nothing_appended() -> None:
    log = open_at(new_disk())
    assert log.append_as_follower(batch()[:60], NOW) is None


def test_a_follower_has_a_compacted_log_byte_for_byte() -> None:
    world = Compacted()
    for number in range(12):
        world.append((f"k{number % 3}", "v" * 60), (f"once{number}", "v"))
    world.roll()
    world.compact()
    world.append(("last", "v"))
    leader, follower = world.log, open_at(new_disk())
    while follower.log_end_offset < leader.log_end_offset:
        follower.append_as_follower(copy_of(memoryview(fetch(leader, follower.log_end_offset, 500))), NOW)
    same = [b"".join(bytes(each.file.read(0, each.size)) for each in log.segments) for log in (leader, follower)]
    assert same[0] == same[1]
    assert len(world.records()) < len(world.written)
    assert follower.epochs.entries() == leader.epochs.entries()


def test_a_copy_of_a_compacted_log_is_whole_after_a_kill_though_its_settings_are_not_known_yet() -> None:
    disk, one_batch = new_disk(), LogConfig(segment_bytes=100)
    log = open_at(disk, one_batch)
    for offset in (0, 5, 9):
        log.append_as_follower(copy_of(batch(base_offset=offset, epoch=0)), NOW)
    disk.restart(power_loss=False)
    assert all_offsets(open_at(disk, one_batch, clean=False)) == [0, 5, 9]
    assert not [each.name for each in disk.list(FOLDER) if "after-gap" in each.name]


def test_a_follower_goes_on_behind_a_gap_that_no_segment_can_span() -> None:
    log, far = open_at(new_disk()), 1 << 40
    log.append_as_follower(copy_of(batch(base_offset=0, epoch=0)), NOW)
    log.append_as_follower(copy_of(batch(base_offset=far, epoch=0)), NOW)
    assert ([each.base_offset for each in log.segments], all_offsets(log)) == ([0, far], [0, far])


def test_a_follower_takes_what_a_quorum_says_of_itself() -> None:
    """A leader change is a control batch of no producer: it ends no transaction."""
    log = open_at(new_disk())
    change = Record(1, NOW, pack_key(ControlType.LEADER_CHANGE), b"\0\0")
    log.append_as_follower(copy_of(batch(epoch=0), build_batch([change], leader_epoch=1, control=True)), NOW)
    assert log.log_end_offset == 2
