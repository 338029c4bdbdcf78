"""Compaction of logs: which are chosen, what is left of them, and what happens meanwhile."""

from __future__ import annotations

import errno

import pytest

from kbroker.log.checkpoints import parse_offsets
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.facts import LogCleaned
from kbroker.log.log_jobs import ManagerConfig
from protocol.records import Record, legacy
from protocol.records.batch import DELETE_HORIZON
from protocol.records.cleaning import SLOT_BYTES
from tests.log.cleaning import COMPACTED, DAY, QUICK, Compacted, check_against
from tests.log.managers import notices, run_jobs, start, text, told, wakes_ms
from tests.log.worlds import NOW, batch


def filled(world: Compacted, rounds: int = 12, keys: int = 3) -> Compacted:
    """Keys k0, k1... written again and again, over several segments."""
    for at in range(rounds):
        world.append(*((f"k{key}", f"{at}" * 10) for key in range(keys)))
    return world


# ---- what is left


def test_only_the_last_record_of_each_key_is_left_before_the_active_segment() -> None:
    world = filled(Compacted())
    world.roll()
    world.compact()
    assert world.left() == [(33, "k0", "11" * 10), (34, "k1", "11" * 10), (35, "k2", "11" * 10)]
    assert not [name for name in world.names() if not name.endswith(("log", "index", "snapshot", "-checkpoint"))]


def test_the_active_segment_is_left_alone() -> None:
    world = Compacted(config=COMPACTED._replace(segment_bytes=1 << 20))
    filled(world)
    world.compact()
    assert len(world.records()) == 36


def test_a_log_without_compaction_is_left_alone() -> None:
    world = filled(Compacted(config=COMPACTED._replace(compact=False)))
    world.compact()
    assert len(world.records()) == 36


@pytest.mark.parametrize("codec_id", [1, 2, 3, 4])
def test_codecs_stay(codec_id: int) -> None:
    world = Compacted()
    for at in range(8):
        world.append(*((f"k{key}", f"{at}" * 40) for key in range(6)), codec_id=codec_id)
        world.append(("k0", f"{at}"), codec_id=codec_id)
        world.roll()
    world.compact()
    check_against(world.records(), world.written, world.log.log_end_offset)
    assert {attributes & 7 for attributes, _ in world.batches()} == {codec_id}
    assert len(world.records()) == 6


def test_what_is_left_is_found_by_offset_and_by_index() -> None:
    world = Compacted()
    for at in range(200):
        world.append((f"k{at % 70}", f"{at}" * 8))
    world.roll()
    world.compact()
    left = world.records()
    assert len(left) == 70
    for record in left:
        region = world.log.read(record.offset, 1, world.log.log_end_offset).region
        assert region is not None
        assert int.from_bytes(region.read()[:8], "big") == record.offset
    gap = world.log.read(0, 1, world.log.log_end_offset).region
    assert gap is not None
    assert int.from_bytes(gap.read()[:8], "big") == left[0].offset
    assert sum(segment.offsets.count for segment in world.log.segments) > 3
    assert max(segment.max_timestamp for segment in world.log.segments) == max(record.timestamp for record in left)


def test_a_new_value_goes_over_what_was_compacted_before() -> None:
    world = filled(Compacted())
    world.roll()
    world.compact()
    world.append(("k1", "new"))
    world.roll()
    world.compact()
    assert world.left() == [(33, "k0", "11" * 10), (35, "k2", "11" * 10), (36, "k1", "new")]
    assert world.cleaned_to() == 37


def test_a_tombstone_stays_for_delete_retention_ms() -> None:
    world = Compacted()
    world.append(("a", "1"), ("b", "1"))
    world.append(("a", None))
    world.roll()
    world.compact()
    assert world.left() == [(1, "b", "1"), (2, "a", None)]
    assert [attributes & DELETE_HORIZON for attributes, _ in world.batches()] == [0, DELETE_HORIZON]
    world.wall_ms += DAY
    world.append(("c", "1"))
    world.roll()
    world.compact()
    assert world.left() == [(1, "b", "1"), (3, "c", "1")]


def test_the_header_of_a_producers_last_batch_stays() -> None:
    world = Compacted()
    world.append(("a", "1"), producer=7)
    world.append(("a", "2"), producer=8)
    world.append(("a", "3"), producer=8)
    world.roll()
    world.compact()
    assert [[record.offset for record in records] for _, records in world.batches()] == [[], [2]]
    world.manager.close()
    world.start()
    world.append(("b", "1"), producer=7)
    assert world.log.log_end_offset == 4


def test_the_last_batch_before_the_active_segment_stays_as_a_header() -> None:
    world = Compacted()
    world.append(("a", "1"), ("b", "1"))
    world.append(("c", None))
    world.roll()
    world.compact()
    world.wall_ms += 2 * DAY
    world.append(("d", "1"))
    world.roll()
    world.compact()
    world.append(("d", "2"))
    world.append(("d", None))
    world.roll()
    world.compact()
    world.wall_ms += 2 * DAY
    world.append(("e", "1"))
    world.roll()
    world.compact()
    assert world.left() == [(0, "a", "1"), (1, "b", "1"), (6, "e", "1")]


# ---- transactions


def test_aborted_records_go_and_their_marker_after_its_horizon() -> None:
    world = Compacted()
    world.append(("a", "committed"))
    world.append(("a", "aborted"), producer=7, transactional=True)
    world.append(("x", "1"), producer=7, transactional=True)
    world.end(7, commit=False)
    world.append(("b", "1"))
    world.roll()
    world.compact()
    assert [key for key in world.left() if key[2]] == [(0, "a", "committed"), (4, "b", "1")]
    aborted = world.log.read(0, 1 << 20, world.log.last_stable_offset, with_aborted=True).aborted
    assert [entry.first_offset for entry in aborted or []] == [1]
    for _ in range(3):
        world.wall_ms += 2 * DAY
        world.log.expire_producers(world.wall_ms)
        world.append(("c", "1"))
        world.roll()
        world.compact()
    assert not any(attributes & 0x20 for attributes, _ in world.batches())
    assert world.log.read(0, 1 << 20, world.log.last_stable_offset, with_aborted=True).aborted == []
    assert [key[:2] for key in world.left()] == [(0, "a"), (4, "b"), (7, "c")]


def test_committed_records_count_and_an_open_transaction_is_left_alone() -> None:
    world = Compacted()
    world.append(("a", "1"))
    world.append(("a", "2"), producer=7, transactional=True)
    world.end(7, commit=True)
    world.roll()
    world.append(("a", "3"), producer=8, transactional=True)
    world.roll()
    world.append(("b", "1"))
    world.roll()
    world.compact()
    assert world.left() == [(1, "a", "2"), (3, "a", "3"), (4, "b", "1")]
    assert world.cleaned_to() == 3
    world.end(8, commit=True)
    world.roll()
    world.compact()
    assert world.left() == [(3, "a", "3"), (4, "b", "1")]


def test_a_transaction_over_several_segments_is_one() -> None:
    world = Compacted()
    for at in range(30):
        world.append((f"k{at}", "v" * 40), producer=7, transactional=True)
    world.end(7, commit=False)
    world.append(("k3", "kept"))
    world.roll()
    assert len(world.log.segments) > 4
    world.compact()
    assert [key[1:] for key in world.left()] == [("k3", "kept")]


# ---- old formats


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec_id", [0, 2])
def test_old_messages_are_compacted(magic: int, codec_id: int) -> None:
    world = Compacted(config=COMPACTED._replace(segment_bytes=400))
    records = []
    for at in range(0, 60, 3):
        part = [Record(at + i, NOW if magic else -1, b"k%d" % i, b"%d" % at) for i in range(3)]
        world.append_old(bytes(legacy.build_set(part, magic, codec_id=codec_id)))
        records += part
    world.roll()
    world.compact()
    assert world.records() == records[-3:]


def test_an_old_tombstone_goes_when_its_segment_was_not_modified_for_delete_retention_ms() -> None:
    world = Compacted(config=COMPACTED._replace(segment_bytes=80))  # none is put together with another
    world.append_old(bytes(legacy.build_set([Record(0, NOW, b"a", b"1"), Record(1, NOW, b"a", None)], 1)))
    world.roll()
    world.compact()
    assert world.left() == [(1, "a", None)]
    for key in "bc":
        world.wall_ms += 2 * DAY
        world.append((key, "1"))
        world.roll()
        world.compact()
    assert world.left()[-2:] == [(2, "b", "1"), (3, "c", "1")]
    world.wall_ms += 2 * DAY
    world.append(("d", "1"))
    world.roll()
    world.compact()
    assert ("a", None) not in [key[1:] for key in world.left()]


# ---- choosing


def test_nothing_is_done_below_the_dirty_ratio() -> None:
    world = Compacted(config=COMPACTED._replace(min_cleanable_dirty_ratio=0.6))
    world.append(*((f"k{at}", "v" * 100) for at in range(4)))
    world.roll()
    world.compact()
    assert world.cleaned_to() == 4
    world.append(("k0", "v" * 100))
    world.roll()
    world.compact()
    assert world.cleaned_to() == 4
    for _ in range(6):
        world.append(("k0", "v" * 100))
    world.roll()
    world.compact()
    assert world.cleaned_to() == 11


def test_max_compaction_lag_goes_over_the_ratio() -> None:
    world = Compacted(config=COMPACTED._replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
    world.append(("a", "1"))
    world.append(("a", "2"))
    world.roll()
    world.compact()
    assert world.cleaned_to() == 0
    world.wall_ms += 1001
    world.compact()
    assert world.cleaned_to() == 2


def test_what_is_younger_than_min_compaction_lag_is_left_alone() -> None:
    world = Compacted(config=COMPACTED._replace(min_compaction_lag_ms=1000))
    world.append(("a", "1"), ("a", "2"))
    world.roll()
    world.wall_ms += 800
    world.append(("a", "3"), ("a", "4"))
    world.roll()
    world.wall_ms += 300
    world.compact()
    assert [key[0] for key in world.left()] == [1, 2, 3]


def test_what_is_not_durable_is_left_alone() -> None:
    world = Compacted()
    world.append(("a", "1"), ("a", "2"))
    world.log.roll(world.wall_ms)
    world.compact()
    assert world.cleaned_to() == 0
    world.flush()
    world.compact()
    assert world.cleaned_to() == 2


def test_what_was_rolled_before_a_kill_is_compacted_though_nothing_follows() -> None:
    world = filled(Compacted())
    world.roll()
    world.disk.restart(power_loss=False)
    world.start()
    world.compact()
    assert world.cleaned_to() == 36


def test_a_checkpoint_that_is_being_written_is_not_asked_for_again() -> None:
    world = Compacted()
    world.append(("a", "1"), ("a", "2"))
    world.roll()
    world.manager.directories[0].durable_points = {}
    world.manager.directories[0]._saved.clear()
    for _ in range(20):  # a look at the logs comes between a job's beginning and its end
        world.now_ms += 10
        world.manager.due(world.now_ms, world.wall_ms)
        for job in world.manager.take_jobs(0):
            job.run()
            world.manager.finished(job, None, world.now_ms)
    assert world.cleaned_to() == 2


def test_nothing_is_compacted_before_a_topics_settings_are_known() -> None:
    world = Compacted()
    world.append(("a", "1"), ("a", "2"))
    world.roll()
    world.manager.close()
    world.manager = start(world.disk, config=COMPACTED, manager_config=QUICK)  # a default that the topic may not have
    world.log.set_high_watermark(world.log.log_end_offset)
    world.compact()
    assert world.cleaned_to() == 0
    world.manager.reconfigure("t", 0, COMPACTED)
    world.compact()
    assert world.cleaned_to() == 2


def test_the_dirtiest_log_comes_first() -> None:
    world = Compacted()
    other = world.manager.get_or_create("u", 0, None, world.config, is_new=True, wall_ms=NOW)
    world.append(("a", "1"), ("b", "2"))
    world.roll()
    world.log.cleaned_to = 2
    world.append(("a", "1"))
    world.roll()
    other.append_as_leader(batch(key=b"k"), 0, NOW)
    other.set_high_watermark(1)
    other.roll(NOW)
    world.manager.flush("u", 0)
    run_jobs(world.manager)
    world.compact()
    assert [fact.partition for fact in told(world.manager, LogCleaned)] == [("u", 0), ("t", 0)]


def test_a_cleaner_that_is_off_does_nothing() -> None:
    for config in (CleanerConfig(enable=False), CleanerConfig(threads=0, backoff_ms=10)):
        world = filled(Compacted(manager_config=ManagerConfig(initial_delay_ms=0, cleaner=config)))
        world.compact()
        assert len(world.records()) == 36


# ---- within bounds


def test_a_map_that_is_full_goes_on_where_it_ended() -> None:
    config = QUICK._replace(cleaner=CleanerConfig(backoff_ms=10, dedupe_buffer_size=24 * 8))
    world = Compacted(manager_config=config)
    for at in range(60):
        world.append((f"k{at % 20}", f"{at}" * 6))
    world.roll()
    world.compact(200)
    assert len(told(world.manager, LogCleaned)) > 5
    check_against(world.records(), world.written, 60)
    assert world.cleaned_to() == 60


def test_segments_are_put_together_up_to_segment_bytes() -> None:
    world = Compacted()
    for at in range(40):
        world.append((f"k{at}", "v" * 50))
    world.roll()
    before = len(world.log.segments)
    world.compact()
    assert len(world.records()) == 40
    assert all(segment.size <= 600 for segment in world.log.segments)
    for at in range(36):
        world.append((f"k{at}", "v"))
    world.roll()
    world.compact()
    world.append(("k39", "v"))
    world.roll()
    world.compact()
    assert len(world.log.segments) < before
    check_against(world.records(), world.written, 77)


def test_logs_are_compacted_one_after_the_other_without_a_pause() -> None:
    world = Compacted(manager_config=ManagerConfig(cleaner=CleanerConfig(backoff_ms=15_000)))
    for index in (1, 2):
        world.manager.get_or_create("t", index, None, world.config, is_new=True, wall_ms=NOW)
    for index in range(3):
        log = world.manager.get("t", index)
        assert log is not None
        for _ in range(4):
            log.append_as_leader(batch(key=b"k"), 0, NOW)
        log.roll(NOW)
        log.set_high_watermark(log.log_end_offset)
        world.manager.flush("t", index)
    run_jobs(world.manager)
    world.manager.due(world.now_ms, NOW)
    while not wakes_ms(world.manager) or world.manager.busy:
        run_jobs(world.manager, world.now_ms)
        world.manager.due(world.now_ms, NOW)
    assert len(told(world.manager, LogCleaned)) == 3


def test_bytes_a_second_are_bounded_by_waiting() -> None:
    config = QUICK._replace(cleaner=CleanerConfig(backoff_ms=10, max_bytes_per_second=1000))
    world = filled(Compacted(manager_config=config))
    world.roll()
    world.compact(20)
    assert world.cleaned_to() == 0
    world.compact(1000)
    assert world.cleaned_to() == 36


# ---- meanwhile


def step(world: Compacted, jobs: int) -> None:
    """So many jobs, then stop in the middle of a compaction."""
    done = 0
    while done < jobs:
        world.now_ms += 10
        world.manager.due(world.now_ms, world.wall_ms)
        for job in world.manager.take_jobs(0):
            job.run()
            world.manager.finished(job, None, world.now_ms)
            done += 1


@pytest.mark.parametrize("jobs", range(1, 8))
def test_a_log_that_is_cut_meanwhile_is_not_touched(jobs: int) -> None:
    world = filled(Compacted())
    world.roll()
    step(world, jobs)
    cut_to = world.log.segments[1].base_offset if len(world.log.segments) > 2 else 33
    world.manager.truncate("t", 0, cut_to, now_ms=world.now_ms, wall_ms=NOW)
    world.log.set_high_watermark(cut_to)
    world.compact()
    assert world.log.log_end_offset == cut_to
    found = world.records()  # what was below the high watermark is not there to be cut: keys may be gone with it
    assert [world.written[record.offset] for record in found] == found
    assert not [name for name in world.names() if "cleaned" in name or "swap" in name]


@pytest.mark.parametrize("jobs", range(1, 8))
def test_a_partition_that_is_deleted_and_made_again_meanwhile_is_empty(jobs: int) -> None:
    world = filled(Compacted())
    world.roll()
    step(world, jobs)
    world.manager.delete("t", 0, now_ms=world.now_ms)
    world.manager.get_or_create("t", 0, None, world.config, is_new=True, wall_ms=NOW)
    world.compact()
    assert world.records() == []
    assert not [name for name in world.names() if "cleaned" in name or "swap" in name]


def test_what_is_read_while_a_segment_goes_is_still_there() -> None:
    world = filled(Compacted())
    world.roll()
    region = world.log.read(0, 1 << 20, world.log.log_end_offset).region
    assert region is not None
    before = region.read()
    world.compact()
    assert region.read() == before


def test_retention_and_compaction_share_a_log() -> None:
    config = COMPACTED._replace(cleanup_policy=frozenset({"compact", "delete"}), delete=True, retention_ms=1000)
    world = filled(Compacted(config=config))
    world.roll()
    world.compact()
    assert len(world.records()) == 3
    world.wall_ms += 5000
    world.append(("new", "1"))
    world.now_ms += 400_000
    world.manager.due(world.now_ms, world.wall_ms)
    run_jobs(world.manager, world.now_ms)
    assert [key[1] for key in world.left()] == ["new"]


# ---- what cannot be compacted


def test_a_log_with_a_changed_bit_is_said_once_and_left_alone() -> None:
    world = filled(Compacted())
    world.roll()
    before = world.log.segments[0].file.read(0, 1 << 20)
    world.disk.flip_bit("/a/t-0/00000000000000000000.log", 8 * 70)
    world.compact()
    [notice] = [line for line in notices(world.manager) if "compacted" in line]
    assert notice.startswith("t-0: is not compacted any more, until the next start: /a/t-0/00000000000000000000.log: ")
    assert "position 0: checksum" in notice
    assert world.manager.cleaner.uncleanable == [("t", 0)]
    assert world.manager.cleaner.uncleanable_bytes() == {"/a": [sum(each.size for each in world.log.segments[:-1])]}
    world.disk.flip_bit("/a/t-0/00000000000000000000.log", 8 * 70)
    assert world.log.segments[0].file.read(0, 1 << 20) == before
    assert not [name for name in world.names() if "cleaned" in name]


@pytest.mark.parametrize("call", ["open", "write", "sync", "rename", "sync_dir"])
def test_a_full_disk_takes_the_directory_offline_and_nothing_else(call: str) -> None:
    world = filled(Compacted())
    world.roll()

    def fault(name: str, path: str) -> OSError | None:
        is_ours = ".cleaned" in path or ".swap" in path or (call == "sync_dir" and "t-0" in path)
        return OSError(errno.ENOSPC, "no space left", path) if name == call and is_ours else None

    world.disk.fault = fault
    world.compact(10)
    assert not world.manager.directories[0].online
    world.disk.fault = None
    world.disk.restart(power_loss=False)
    world.start()
    check_against(world.records(), world.written, 36)
    world.compact()
    assert len(world.records()) == 3


# ---- how far it got


def test_how_far_a_log_is_clean_survives_a_stop() -> None:
    world = filled(Compacted())
    world.roll()
    world.compact()
    assert parse_offsets(text(world.disk, "/a/cleaner-offset-checkpoint")) == {("t", 0): 36}
    world.manager.close()
    world.start()
    assert world.cleaned_to() == 36
    world.manager.delete("t", 0, now_ms=0)
    run_jobs(world.manager)
    assert parse_offsets(text(world.disk, "/a/cleaner-offset-checkpoint")) == {}


def test_a_cut_makes_a_log_dirty_again() -> None:
    world = filled(Compacted())
    world.roll()
    world.compact()
    world.manager.truncate("t", 0, 34, now_ms=0, wall_ms=NOW)
    assert world.cleaned_to() == 34


def test_what_is_written_anew_behind_a_cut_is_dirty_after_a_crash_too() -> None:
    world = filled(Compacted())
    world.roll()
    world.compact()
    world.manager.truncate("t", 0, 33, now_ms=world.now_ms, wall_ms=NOW)
    world.flush()
    for _ in range(3):
        world.append(("new", "1"))
    world.disk.restart(power_loss=False)
    world.start()
    assert (world.log.log_end_offset, world.cleaned_to()) == (36, 33)


def test_what_was_done_is_told() -> None:
    world = filled(Compacted())
    world.roll()
    before = sum(segment.size for segment in world.log.segments)
    world.compact()
    [fact] = told(world.manager, LogCleaned)
    assert (fact.cleaned_to, fact.bytes_before, fact.records) == (36, before, 3)
    assert fact.bytes_after == world.log.size


def test_the_figures_are_of_the_last_compaction() -> None:
    world = filled(Compacted())
    world.roll()
    before = sum(segment.size for segment in world.log.segments)
    world.compact()
    figures = world.manager.cleaner.figures
    assert (figures.read_bytes, figures.written_bytes) == (before, world.log.size)
    assert figures.recopied == world.log.size / before
    assert figures.map_share == 3 * SLOT_BYTES / QUICK.cleaner.map_bytes
    assert figures.took_ms > 0


def test_the_figures_of_a_sweep_tell_of_the_dirtiest_log_and_of_the_most_overdue() -> None:
    world = filled(Compacted(config=COMPACTED._replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=DAY)))
    world.roll()
    world.compact(3)
    figures = world.manager.cleaner.figures
    assert (figures.dirtiest_ratio, figures.overdue_ms, figures.swept_ms) == (1.0, 0, NOW)
    world.wall_ms = NOW + 2 + DAY + 5000  # 2: the largest timestamp of the first batch
    world.now_ms += 10
    world.manager.due(world.now_ms, world.wall_ms)
    assert (figures.overdue_ms, figures.swept_ms) == (5000, world.wall_ms)


def test_a_clean_stop_leaves_no_half_of_a_compaction() -> None:
    world = filled(Compacted())
    world.roll()
    step(world, 3)
    world.manager.close()
    assert not [name for name in world.names() if "cleaned" in name]
    world.start()
    check_against(world.records(), world.written, 36)
