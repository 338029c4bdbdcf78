"""Opening a log after clean and unclean stops."""

from __future__ import annotations

import zlib

import pytest

from kbroker.log.config import LogConfig
from kbroker.log.errors import NewerFormatError
from kbroker.log.folder import OpenFiles
from kbroker.log.producer_state import Origin
from kbroker.log.recovery import RecoveryProgress, open_log
from kbroker.log.times import Found
from kbroker.sim.clock import SimRandom
from kbroker.sim.disk import SimDisk
from protocol.errors import KafkaError
from protocol.records import Record, legacy
from tests.log.worlds import (
    FOLDER,
    NOW,
    all_offsets,
    batch,
    fetch,
    first_at_or_after,
    flush,
    marker,
    new_disk,
    open_at,
    with_max_timestamp,
)

SMALL = LogConfig(segment_bytes=320, index_interval_bytes=100)


def path(base_offset: int, part: str) -> str:
    return f"{FOLDER}/{base_offset:020d}.{part}"


def size_of(disk: SimDisk, name: str) -> int:
    entry = disk.stat(name)
    assert entry is not None, name
    return entry.size


def content(disk: SimDisk, name: str) -> bytes:
    return disk.open(name, "read").read(0, 1 << 20)


def write(disk: SimDisk, name: str, data: bytes, position: int = 0) -> None:
    disk.open(name, "create").write([data], position)


def filled(disk: SimDisk, count: int = 18, config: LogConfig = SMALL) -> None:
    """A log of `count` idempotent batches, three to an epoch, cleanly closed."""
    log = open_at(disk, config)
    for i in range(count):
        log.append_as_leader(batch(timestamp=NOW + i, producer=(9, 0, i)), i // 3, NOW)
    log.close()


def test_after_a_clean_stop_everything_is_as_it_was() -> None:
    disk = new_disk()
    filled(disk)
    log = open_at(disk, SMALL)
    assert (all_offsets(log), log.recovery_point) == (list(range(18)), 18)
    assert log.epochs.entries() == [(epoch, 3 * epoch) for epoch in range(6)]
    assert log.append_as_leader(batch(producer=(9, 0, 18)), 6, NOW).first_offset == 18


@pytest.mark.parametrize("clean", [True, False])
def test_the_producers_of_a_log_that_retention_has_emptied_are_still_known(clean: bool) -> None:
    disk = new_disk()
    log = open_at(disk, LogConfig(retention_ms=1))
    log.append_as_leader(batch(3, producer=(9, 0, 0)), 0, NOW)
    log.set_high_watermark(3)
    assert log.delete_old_segments(NOW + 1000)
    for _ in range(2):
        if clean:
            log.close()
        disk.restart(power_loss=False)
        log = open_at(disk, LogConfig(retention_ms=1), clean=clean)
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.append_as_leader(batch(3, producer=(9, 0, 0)), 0, NOW).duplicate is not None


def test_after_a_clean_stop_a_duplicate_is_still_known() -> None:
    disk = new_disk()
    filled(disk)
    assert open_at(disk, SMALL).append_as_leader(batch(producer=(9, 0, 17)), 6, NOW).first_offset == 17


@pytest.mark.parametrize("config", [LogConfig(), SMALL], ids=["in one segment", "in several"])
@pytest.mark.parametrize("size", [10, 9000], ids=["small", "large"])
@pytest.mark.parametrize("clean", [True, False])
def test_after_any_stop_the_last_five_batches_are_known_again(config: LogConfig, size: int, clean: bool) -> None:
    """In a snapshot there is only the last one, and Apache's client would write the others a second time."""
    disk = new_disk()
    config = config._replace(segment_bytes=max(config.segment_bytes, 2 * size + 100))
    log = open_at(disk, config)
    for i in range(12):
        log.append_as_leader(batch(producer=(8, 0, 2 * i), count=2, size=size), 0, NOW)
        log.append_as_leader(batch(producer=(9, 0, i), size=size), 0, NOW)
    if clean:
        log.close()
    disk.restart(power_loss=False)
    log = open_at(disk, config, clean=clean, recovery_point=0 if clean else log.active.base_offset)
    for i in range(7, 12):
        assert log.append_as_leader(batch(producer=(9, 0, i), size=size), 1, NOW).first_offset == 3 * i + 2
        assert log.append_as_leader(batch(producer=(8, 0, 2 * i), count=2, size=size), 1, NOW).first_offset == 3 * i
    with pytest.raises(KafkaError, match="sent sequence 6, last was 11"):
        log.append_as_leader(batch(producer=(9, 0, 6), size=size), 1, NOW)
    assert log.log_end_offset == 36


def test_what_a_producer_wrote_in_another_epoch_or_before_a_gap_is_not_known_again() -> None:
    disk = new_disk()
    log = open_at(disk)
    for epoch, sequence in ((0, 0), (0, 1), (1, 0), (1, 1)):
        log.append_as_leader(batch(producer=(9, epoch, sequence)), 0, NOW)
    for sequence in (0, 7, 8):
        log.append_as_follower(batch(base_offset=log.log_end_offset, producer=(8, 0, sequence)), NOW)
    log.close()
    again = open_at(disk).producers
    assert {each: [span.last_sequence for span in it.batches] for each, it in again.items()} == {9: [0, 1], 8: [7, 8]}


def test_after_a_clean_stop_only_the_end_is_read() -> None:
    disk = new_disk()
    filled(disk, 1000, LogConfig(segment_bytes=40_000, index_interval_bytes=400))
    disk.trace = []
    open_at(disk, SMALL)
    read = {path.rpartition("/")[2] for call, path in disk.trace if call in ("read", "map")}
    assert read == {
        "leader-epoch-checkpoint",
        "00000000000000001000.snapshot",
        "00000000000000000512.log",
        "00000000000000000512.index",
    }


def test_after_a_clean_stop_nothing_is_preallocated() -> None:
    disk = new_disk()
    filled(disk, 3, LogConfig(preallocate=True, segment_bytes=10_000))
    assert (size_of(disk, path(0, "log")), size_of(disk, path(0, "index"))) == (3 * len(batch()), 0)


def test_what_was_preallocated_goes_with_the_roll_though_the_setting_is_another_by_then() -> None:
    disk = new_disk()
    log = open_at(disk, LogConfig(preallocate=True, segment_bytes=1000))
    log.append_as_leader(batch(), 0, NOW)
    log.reconfigure(LogConfig(segment_bytes=100))
    log.append_as_leader(batch(), 0, NOW)
    log.close()
    assert size_of(disk, path(0, "log")) == len(batch())
    assert all_offsets(open_at(disk)) == [0, 1]


def test_an_unclean_stop_of_the_process_alone_loses_nothing() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL)
    for i in range(18):
        log.append_as_leader(batch(producer=(9, 0, i)), i // 3, NOW)
    disk.restart(power_loss=False)
    log = open_at(disk, SMALL, clean=False)
    assert (all_offsets(log), log.recovery_point) == (list(range(18)), 0)
    assert log.epochs.entries() == [(epoch, 3 * epoch) for epoch in range(6)]
    assert log.append_as_leader(batch(producer=(9, 0, 17)), 6, NOW).duplicate is not None


def unclean(disk: SimDisk, config: LogConfig = SMALL, recovery_point: int = 0) -> list[int]:
    return all_offsets(open_at(disk, config, clean=False, recovery_point=recovery_point))


def test_a_torn_tail_is_cut() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, path(0, "log"), bytes(batch(base_offset=3, epoch=1))[:-1], 3 * len(batch()))
    assert unclean(disk) == [0, 1, 2]
    assert size_of(disk, path(0, "log")) == 3 * len(batch())


def test_the_log_ends_at_the_first_damaged_batch_and_later_segments_go() -> None:
    disk = new_disk()
    filled(disk)
    disk.flip_bit(path(4, "log"), 8 * (len(batch()) + 70))
    assert unclean(disk) == [0, 1, 2, 3, 4]
    assert path(8, "log") not in disk.paths()
    assert path(8, "index") not in disk.paths()


def test_damage_is_found_in_an_older_segment_although_the_last_one_is_torn() -> None:
    disk = new_disk()
    filled(disk)
    write(disk, path(4, "log"), b"X", len(batch()) + 70)
    disk.open(path(16, "log"), "write").resize(size_of(disk, path(16, "log")) - 1)
    assert unclean(disk) == [0, 1, 2, 3, 4]


def test_what_lies_below_the_recovery_point_is_trusted() -> None:
    disk = new_disk()
    filled(disk)
    disk.flip_bit(path(8, "log"), 8 * (len(batch()) + 70))
    assert all_offsets(open_at(disk, SMALL, clean=False, recovery_point=13)) == list(range(18))


def test_zeros_behind_the_last_batch_are_cut() -> None:
    disk = new_disk()
    filled(disk, 3)
    disk.open(path(0, "log"), "write").resize(10_000)
    assert unclean(disk) == [0, 1, 2]


def test_a_leftover_of_an_older_epoch_behind_newer_batches_is_cut() -> None:
    disk = new_disk()
    log = open_at(disk, SMALL)
    log.append_as_leader(batch(), 5, NOW)
    disk.restart(power_loss=False)
    write(disk, path(0, "log"), bytes(batch(base_offset=1, epoch=4)), len(batch()))
    assert unclean(disk) == [0]


def test_a_leftover_of_an_older_epoch_may_begin_at_the_recovery_point() -> None:
    disk = new_disk()
    log = open_at(disk)
    log.append_as_leader(batch(), 5, NOW)
    log.close()
    write(disk, path(0, "log"), bytes(batch(base_offset=1, epoch=4)), len(batch()))
    assert unclean(disk, LogConfig(), recovery_point=1) == [0]


def test_a_batch_of_a_broker_that_knew_no_epochs_is_kept_behind_one_that_has_one() -> None:
    disk = new_disk()
    log = open_at(disk)
    log.append_as_leader(batch(), 5, NOW)
    log.close()
    write(disk, path(0, "log"), bytes(batch(base_offset=1, epoch=-1)), len(batch()))
    log = open_at(disk, clean=False)
    assert (all_offsets(log), log.epochs.entries()) == ([0, 1], [(5, 0)])


def test_a_segment_behind_a_lost_one_goes() -> None:
    disk = new_disk()
    filled(disk)
    disk.open(path(4, "log"), "write").resize(len(batch()))
    assert unclean(disk) == [0, 1, 2, 3, 4]


def test_a_compacted_log_may_have_gaps_between_segments() -> None:
    disk = new_disk()
    filled(disk)
    disk.open(path(4, "log"), "write").resize(len(batch()))
    config = LogConfig(segment_bytes=320, cleanup_policy=frozenset({"compact"}))
    assert unclean(disk, config) == [0, 1, 2, 3, 4, *range(8, 18)]


@pytest.mark.parametrize("part", ["index", "timeindex"])
def test_a_missing_index_is_made_anew(part: str) -> None:
    disk = new_disk()
    filled(disk)
    before = content(disk, path(4, part))
    disk.remove(path(4, part))
    open_at(disk, SMALL)
    assert content(disk, path(4, part)) == before


def test_recovery_makes_the_same_indices_as_the_appends_did() -> None:
    disk = new_disk()
    filled(disk)
    names = [name for name in disk.paths() if name.endswith("index")]
    before = {name: content(disk, name) for name in names}
    open_at(disk, SMALL, clean=False)
    assert {name: content(disk, name) for name in names} == before


@pytest.mark.parametrize("bit", range(0, 64, 3))
def test_a_changed_bit_in_an_index_misleads_nobody(bit: int) -> None:
    disk = new_disk()
    filled(disk, 40, LogConfig(index_interval_bytes=200))
    disk.flip_bit(path(0, "index"), 64 * 3 + bit)
    log = open_at(disk)
    assert [int.from_bytes(fetch(log, offset)[:8], "big") for offset in range(40)] == list(range(40))


def test_orphaned_indices_go() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, path(77, "index"), b"")
    open_at(disk)
    assert disk.stat(path(77, "index")) is None


def test_deletions_that_a_crash_interrupted_are_finished() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, path(77, "log.deleted"), b"x")
    open_at(disk)
    assert disk.stat(path(77, "log.deleted")) is None


def test_a_swap_that_a_crash_interrupted_is_finished() -> None:
    disk = new_disk()
    filled(disk)
    disk.open(path(0, "log.swap"), "create").write(
        [bytes(batch(base_offset=1, epoch=0)), bytes(batch(base_offset=6, epoch=2))], 0
    )
    write(disk, path(0, "index.swap"), b"")
    write(disk, path(0, "timeindex.swap"), b"")
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    assert all_offsets(open_at(disk, config)) == [1, 6, *range(8, 18)]


def test_a_swap_below_what_is_half_cleaned_is_finished() -> None:
    disk = new_disk()
    filled(disk)
    disk.rename(path(0, "log"), path(0, "log.swap"))
    write(disk, path(4, "log.cleaned"), b"half")
    assert unclean(disk) == list(range(18))


def test_what_a_swap_replaces_goes_with_all_its_files() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, path(0, "txnindex"), b"?")
    disk.rename(path(0, "log"), path(0, "log.swap"))
    unclean(disk)
    assert disk.stat(path(0, "txnindex")) is None


def test_half_cleaned_files_and_the_swaps_behind_them_go() -> None:
    disk = new_disk()
    filled(disk)
    write(disk, path(4, "log.cleaned"), b"x")
    write(disk, path(4, "log.swap"), b"x")
    assert all_offsets(open_at(disk)) == list(range(18))
    assert not [name for name in disk.paths() if name.endswith(("cleaned", "swap"))]


def test_an_empty_folder_is_a_log_that_begins_at_the_checkpointed_start() -> None:
    disk = new_disk()
    log = open_at(disk, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (50, 50, 50)
    assert path(50, "log") in disk.paths()


def test_a_log_that_ends_before_its_start_begins_anew_there() -> None:
    disk = new_disk()
    filled(disk, 3)
    log = open_at(disk, clean=False, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, len(log.epochs), len(log.producers)) == (50, 50, 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_a_new_log_is_found_after_its_first_flush_and_a_power_cut(seed: int) -> None:
    disk = new_disk(seed)
    log = open_at(disk)
    log.append_as_follower(batch(epoch=-1), NOW)  # without an epoch, whose file would have the folder synced as well
    flush(log)
    disk.restart(power_loss=True)
    assert unclean(disk, LogConfig()) == [0]


def test_epochs_below_the_start_are_forgotten() -> None:
    disk = new_disk()
    filled(disk)
    assert open_at(disk, SMALL, log_start_offset=13).epochs.entries() == [(4, 13), (5, 15)]


def test_epochs_beyond_the_end_are_forgotten() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, f"{FOLDER}/leader-epoch-checkpoint", b"0\n2\n0 0\n9 3\n")
    assert open_at(disk).epochs.entries() == [(0, 0)]


def test_an_unreadable_epoch_file_is_made_anew_from_the_batches() -> None:
    disk = new_disk()
    filled(disk)
    write(disk, f"{FOLDER}/leader-epoch-checkpoint", b"0\nx")
    log = open_at(disk)
    flush(log)
    assert content(disk, f"{FOLDER}/leader-epoch-checkpoint") == b"0\n6\n0 0\n1 3\n2 6\n3 9\n4 12\n5 15\n"


def test_a_newer_epoch_file_is_refused_and_left_alone() -> None:
    disk = new_disk()
    filled(disk, 3)
    write(disk, f"{FOLDER}/leader-epoch-checkpoint", b"1")
    before = content(disk, f"{FOLDER}/leader-epoch-checkpoint")
    with pytest.raises(NewerFormatError, match="leader-epoch-checkpoint: line 1: has version 1"):
        open_at(disk)
    assert content(disk, f"{FOLDER}/leader-epoch-checkpoint") == before


def test_a_damaged_snapshot_is_replaced_by_an_older_one_and_the_batches_behind_it() -> None:
    disk = new_disk()
    filled(disk)
    disk.flip_bit(path(18, "snapshot"), 100)
    log = open_at(disk, SMALL)
    assert log.append_as_leader(batch(producer=(9, 0, 17)), 6, NOW).duplicate is not None


def test_producers_that_expired_while_the_broker_was_down_are_forgotten() -> None:
    disk = new_disk()
    filled(disk)
    config = LogConfig(producer_id_expiration_ms=1000)
    assert len(open_at(disk, config, wall_ms=NOW + 17 + 1000).producers) == 0


def test_transactions_survive_an_unclean_stop() -> None:
    disk = new_disk()
    log = open_at(disk)
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    log.append_as_leader(batch(producer=(8, 0, 0), attributes=0x10), 0, NOW)
    disk.restart(power_loss=False)
    disk.remove(path(0, "txnindex"))
    log = open_at(disk, clean=False)
    log.set_high_watermark(3)
    aborted = log.read(0, 1000, 3, with_aborted=True).aborted
    assert (log.last_stable_offset, [tuple(entry) for entry in aborted or []]) == (2, [(9, 0, 1, 2)])


def test_a_damaged_index_of_aborted_transactions_is_made_anew_after_a_clean_stop() -> None:
    disk = new_disk()
    log = open_at(disk, LogConfig(segment_bytes=150))
    log.append_as_leader(batch(producer=(9, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(batch(producer=(8, 0, 0), attributes=0x10), 0, NOW)
    log.append_as_leader(marker(9, 0, commit=False), 0, NOW, Origin.COORDINATOR)
    log.close()
    write(disk, path(2, "txnindex"), b"\x7f", 10)
    log = open_at(disk)
    log.set_high_watermark(3)
    aborted = log.read(0, 1000, 3, with_aborted=True).aborted
    assert [tuple(entry) for entry in aborted or []] == [(9, 0, 2, 1)]


def test_messages_of_old_formats_are_walked_and_found() -> None:
    disk = new_disk()
    kept = bytes.fromhex("0000000000000000000000160000000001000000018bcfe56800ffffffffffffffff")

    messages = []
    for offset in range(5):
        message = bytearray(kept)
        message[0:8] = offset.to_bytes(8, "big")
        message[12:16] = zlib.crc32(message[16:]).to_bytes(4, "big")
        messages.append(bytes(message))
    write(disk, path(0, "log"), b"".join(messages))
    log = open_at(disk, clean=False)
    assert (log.log_end_offset, fetch(log, 3)) == (5, messages[3] + messages[4])


@pytest.mark.parametrize("codec_id", [0, 1])
def test_times_are_found_among_messages_of_old_formats(codec_id: int) -> None:
    disk = new_disk()
    records = [Record(offset, NOW + offset, None, b"") for offset in range(6)]
    write(disk, path(0, "log"), legacy.build_set(records[:3], 1, codec_id=codec_id))
    write(disk, path(0, "log"), legacy.build_set(records[3:], 1, codec_id=codec_id), size_of(disk, path(0, "log")))
    log = open_at(disk, clean=False)
    assert (first_at_or_after(log, NOW + 4), with_max_timestamp(log)) == (Found(4, NOW + 4), Found(5, NOW + 5))


def test_the_shortest_message_of_all_is_found_at_the_end() -> None:
    disk = new_disk()
    message = bytearray(8) + (14).to_bytes(4, "big") + bytes(6) + b"\xff" * 4 + bytes(4)
    message[12:16] = zlib.crc32(message[16:]).to_bytes(4, "big")
    write(disk, path(0, "log"), bytes(message))
    assert fetch(open_at(disk, clean=False), 0) == bytes(message)


def notices_of(disk: SimDisk, *, clean: bool) -> list[str]:
    notices: list[str] = []
    open_at(disk, SMALL, clean=clean, notices=notices)
    return [notice.removeprefix(FOLDER + "/") for notice in notices]


def test_what_is_cut_and_removed_is_told() -> None:
    disk = new_disk()
    filled(disk)
    disk.flip_bit(path(8, "log"), 8 * (len(batch()) + 70))
    assert notices_of(disk, clean=False) == [
        "00000000000000000008.log: position 78: 234 bytes that make no whole batch: cut",
        "00000000000000000012.log: 312 bytes behind lost batches: kept aside as 00000000000000000012.log.after-gap",
        "00000000000000000016.log: 156 bytes behind lost batches: kept aside as 00000000000000000016.log.after-gap",
    ]


def test_a_sound_log_is_told_nothing_of() -> None:
    disk = new_disk()
    filled(disk)
    assert notices_of(disk, clean=False) + notices_of(disk, clean=True) == []


def test_a_damaged_length_at_the_end_is_noticed_even_after_a_clean_stop() -> None:
    disk = new_disk()
    filled(disk, 3)
    disk.flip_bit(path(0, "log"), 8 * (2 * len(batch()) + 8))
    told = notices_of(disk, clean=True)
    assert told[0] == "00000000000000000000.log: position 156: no batch, although the last stop was clean: recovering"
    assert all_offsets(open_at(disk)) == [0, 1]


def test_preallocated_zeros_are_no_damage() -> None:
    disk = new_disk()
    filled(disk, 3)
    disk.open(path(0, "log"), "write").resize(5000)
    assert notices_of(disk, clean=True) == []
    assert all_offsets(open_at(disk)) == [0, 1, 2]


def test_progress_is_told_by_segment() -> None:
    disk = new_disk()
    filled(disk)
    told: list[RecoveryProgress] = []
    open_log(
        disk,
        FOLDER,
        SMALL,
        open_files=OpenFiles(10),
        random=SimRandom(1),
        wall_ms=NOW,
        clean=False,
        recovery_point=9,
        progress=told.append,
    )
    assert [(step.segments_done, step.segments) for step in told] == [(1, 3), (2, 3), (3, 3)]


def test_an_idle_log_holds_no_descriptor() -> None:
    disk = new_disk()
    filled(disk)
    before = disk.open_files
    log = open_at(disk, SMALL)
    assert disk.open_files == before
    assert log.log_end_offset == 18
