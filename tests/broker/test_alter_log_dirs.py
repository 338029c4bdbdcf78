"""Replicas that move between log directories: asked for, copied, changed over, interrupted at every step."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kbroker.broker.facts import JobDone
from kbroker.broker.jobs import Errand
from kbroker.core import EXPIRED
from kbroker.log.directory import Flush, Truncate
from kbroker.log.future_logs import CloseJob
from kbroker.log.log import Log
from kbroker.log.names import TopicPartition
from kbroker.log.producer_state import Origin
from kbroker.sim.disk import PowerLoss
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.logdirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribeLogDirsRequest,
)
from protocol.messages.topics import DeleteTopicsRequest
from tests.log.worlds import batch
from tests.requests import produce, produced
from tests.world import World

STRIDE = 6  # every change of the disk is some seed's


def two_directories(**settings: str) -> World:
    """In which nothing is too old to be kept."""
    return World(("/a", "/b"), log_retention_ms="-1", **settings)


def moving(path: str, topic: str = "t", index: int = 0) -> AlterReplicaLogDirsRequest:
    topics = [AlterReplicaLogDirTopic(name=topic, partitions=[index])]
    return AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=topics)])


def move(world: World, path: str, topic: str = "t", index: int = 0, version: int = 2) -> ErrorCode:
    """Ask for a move; nothing that is under way goes on."""
    client = world.client()
    number = client.start(moving(path, topic, index), version)
    (result,) = client.look()[number].results
    (part,) = result.partitions
    assert (result.topic_name, part.partition_index) == (topic, index)
    return ErrorCode(part.error_code)


def places(world: World) -> dict[str, list[tuple[str, int, bool, int]]]:
    """By directory: topic, index, whether it is a copy on its way, lag."""
    results = world.client().ask(DescribeLogDirsRequest(topics=None), 4).results
    return {
        each.log_dir: [
            (topic.name, part.partition_index, part.is_future_key, part.offset_lag)
            for topic in each.topics
            for part in topic.partitions
        ]
        for each in results
    }


def written(world: World, *values: bytes, topic: str = "t") -> None:
    """With acks=all: each is durable, if flush.messages says so, before the next."""
    for value in values:
        client = world.client()
        number = client.send(produce(value, topic=topic, acks=-1), 9)
        until(world, lambda client=client, number=number: number in client.look())  # type: ignore[misc]
        assert produced(client.answers[number]).error_code == 0


def read(world: World, topic: str = "t") -> bytes:
    """All that there is, batch by batch."""
    log = world.partition(topic).log
    assert log is not None
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset).region
        assert region is not None
        found += region.read()
        offset = next_offset(region.read())
    return found


def next_offset(batches: bytes) -> int:
    at = offset = 0
    while at < len(batches):
        offset = int.from_bytes(batches[at : at + 8], "big") + int.from_bytes(batches[at + 23 : at + 27], "big") + 1
        at += 12 + int.from_bytes(batches[at + 8 : at + 12], "big")
    return offset


def home_and_other(world: World, topic: str = "t") -> tuple[str, str]:
    """Where a topic's partition is, and where it is not."""
    home = world.partition(topic).log.folder.path.rpartition("/")[0]  # type: ignore[union-attr]
    return home, "/b" if home == "/a" else "/a"


def until(world: World, there: Callable[[], bool]) -> None:
    for _ in range(500):
        if there():
            return
        world.advance(20)
    raise AssertionError("never")


def has_moved(world: World, path: str) -> Callable[[], bool]:
    return lambda: world.partition("t").log.folder.path == f"{path}/t-0"  # type: ignore[union-attr]


@pytest.mark.parametrize("version", range(3))
def test_a_alter_log_dirs_with_all_it_has(version: int) -> None:
    world = two_directories(log_segment_bytes="300")
    world.create("t")
    written(world, *(b"%d" % at * 50 for at in range(10)))
    home, other = home_and_other(world)
    before, log = read(world), world.partition("t").log
    assert move(world, other, version=version) is ErrorCode.NONE
    until(world, has_moved(world, other))
    assert read(world) == before
    assert world.partition("t").log is log
    assert places(world) == {home: [], other: [("t", 0, False, 0)]}
    written(world, b"later")
    world.advance(120_000)  # the old files go
    assert [each.name for each in world.disk.list(home) if each.is_dir] == []
    assert {each.name for each in world.disk.list(f"{other}/t-0")} >= {"partition.metadata"}
    assert "replaces-other-copy" not in {each.name for each in world.disk.list(f"{other}/t-0")}
    world.restart()
    assert (read(world)[: len(before)], len(world.logs)) == (before, 1)


def test_a_replica_whose_log_starts_within_a_batch_moves() -> None:
    world = two_directories()
    world.create("t")
    world.client().ask(produce(b"a", b"b", b"c"), 9)
    world.partition("t").delete_records(1)
    written(world, b"d")
    before, (_, other) = read(world), home_and_other(world)
    assert move(world, other) is ErrorCode.NONE
    until(world, has_moved(world, other))
    log = world.partition("t").log
    assert log is not None
    assert (read(world), log.log_start_offset, log.log_end_offset) == (before, 1, 4)


def test_what_is_written_meanwhile_moves_along() -> None:
    world = two_directories(log_flush_interval_messages="1")
    world.create("t")
    written(world, b"early")
    _, other = home_and_other(world)
    client = world.client()
    sent = [client.start(produce(b"first", acks=-1), 9)]
    assert move(world, other) is ErrorCode.NONE
    steps = 0
    while not has_moved(world, other)() and steps < 1000:
        steps += 1
        if steps < 20:
            sent.append(client.start(produce(b"%d" % steps, acks=-1), 9))
        if not world._next_event():
            world.advance(20)
    world.settle()
    answers = client.look()
    assert [produced(answers[each]).error_code for each in sent] == [0] * len(sent)
    assert read(world).count(b"early") == 1
    assert world.partition("t").log.high_watermark == 1 + len(sent)  # type: ignore[union-attr]


def test_a_copy_on_its_way_shows_with_its_lag() -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a", b"b")
    home, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    assert places(world) == {home: [("t", 0, False, 0)], other: [("t", 0, True, 2)]}


def test_to_be_where_it_is_calls_a_move_off() -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a")
    home, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    assert move(world, home) is ErrorCode.NONE
    world.disk_is_busy = False
    world.advance(120_000)
    assert places(world) == {home: [("t", 0, False, 0)], other: []}
    assert [each.name for each in world.disk.list(other) if each.is_dir] == []


@pytest.mark.parametrize(
    ("topic", "path", "code"),
    [
        ("t", "/c", ErrorCode.LOG_DIR_NOT_FOUND),
        ("none", "/b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("x" * 249, "/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_what_cannot_be_is_refused_as_apache_does(topic: str, path: str, code: ErrorCode) -> None:
    world = two_directories()
    world.create("t")
    assert move(world, path, topic) is code


def test_a_replica_that_other_brokers_have_is_not_available() -> None:
    world = two_directories()
    world.replicas.is_known = lambda topic, index: True
    assert move(world, "/a") is ErrorCode.REPLICA_NOT_AVAILABLE


def test_nothing_moves_into_a_directory_that_is_offline_or_while_one_is() -> None:
    world = World(("/a", "/b", "/c"))
    world.create("t")
    home, _ = home_and_other(world)
    broken, good = sorted({"/a", "/b", "/c"} - {home})
    world.logs.disk_failed(broken, OSError(errno.EIO, "broken", broken))
    assert move(world, broken) is ErrorCode.KAFKA_STORAGE_ERROR
    assert move(world, good) is ErrorCode.KAFKA_STORAGE_ERROR
    assert move(world, home) is ErrorCode.NONE


@pytest.mark.parametrize("path", ["/a", "/b", "/c"])
def test_a_partition_is_made_in_the_directory_preferred_before_it_was_there(path: str) -> None:
    world = World(("/a", "/b", "/c"))
    assert move(world, path) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.create("t")
    assert home_and_other(world)[0] == path


def test_a_topic_is_deleted_with_its_copy() -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a")
    _, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    world.disk_is_busy = False
    client = world.client()
    client.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 5)
    world.advance(120_000)
    assert [each.name for path in ("/a", "/b") for each in world.disk.list(path) if each.is_dir] == []


def test_a_copy_whose_directory_fails_leaves_the_partition_as_it_was() -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a")
    home, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    world.disk_is_busy = False
    world.disk.fail("write", "0.log", errno.EIO)
    world.advance(1000)
    assert [each.online for each in world.logs.directories if each.path == other] == [False]
    written(world, b"b")
    assert home_and_other(world)[0] == home


@pytest.mark.parametrize(("call", "end"), [("read", ".log"), ("sync_dir", "")])
def test_a_disk_that_a_replica_cannot_leave_goes_offline_and_not_the_one_it_moves_to(call: str, end: str) -> None:
    """The error of a read, or of an fsync, names no file."""
    world = two_directories()
    world.create("t")
    written(world, b"a")
    home, other = home_and_other(world)

    def fails(name: str, path: str) -> OSError | None:
        is_met = name == call and (path.endswith(end) if end else path == home)
        return OSError(errno.EIO, "EIO") if is_met else None

    world.disk.fault = fails
    assert move(world, other) is ErrorCode.NONE
    world.advance(1000)
    assert {each.path: each.online for each in world.logs.directories} == {home: False, other: True}


def test_a_move_goes_on_after_a_stop() -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a", b"b")
    _, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    world.disk_is_busy = False
    before = read(world)
    world.core.effects.take_jobs()  # never run
    world.restart()
    until(world, has_moved(world, other))
    assert read(world) == before


def test_the_groups_partition_moves_under_its_coordinator() -> None:
    world = two_directories(offsets_topic_num_partitions="1")
    world.client().ask(FindCoordinatorRequest(key="g"), 3)
    world.advance(10)
    shard = world.broker.groups.runtime.shards[0]
    _, other = home_and_other(world, "__consumer_offsets")
    assert move(world, other, "__consumer_offsets") is ErrorCode.NONE
    until(world, lambda: home_and_other(world, "__consumer_offsets")[0] == other)
    assert world.broker.groups.runtime.shards[0] is shard
    assert world.broker.groups.runtime._led[0][0] is world.partition("__consumer_offsets")


def crash_while_moving(at: int, seed: int, *, power_loss: bool) -> bool:
    """Stop at the n-th change of the disk, and start again: what was acknowledged is there. Returns: if it stopped."""
    world = two_directories(log_flush_interval_messages="1", log_segment_bytes="400", log_segment_delete_delay_ms="0")
    world.disk._rng.seed(seed)
    world.create("t")
    written(world, *(b"v%d" % each * 30 for each in range(8)))
    _, other = home_and_other(world)
    known = read(world)
    world.disk.crash_at = world.disk.calls + at
    crashed = False
    acknowledged = known
    try:
        assert move(world, other) is ErrorCode.NONE
        for each in range(6):
            written(world, b"w%d" % each * 30)
            acknowledged = read(world)
            world.advance(20)
        world.advance(2000)
    except PowerLoss:
        crashed = True
    if not crashed:
        world.disk.crash_at = None
    world.disk.restart(power_loss=power_loss)
    world.start()
    assert read(world)[: len(acknowledged)] == acknowledged
    assert len(world.logs) == 1
    until(world, lambda: not world.logs.has_futures)
    world.advance(5000)
    assert read(world)[: len(acknowledged)] == acknowledged
    world.restart()
    assert read(world)[: len(acknowledged)] == acknowledged
    return crashed


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("power_loss", [False, True])
def test_nothing_is_lost_wherever_a_move_is_interrupted(seed: int, power_loss: bool) -> None:
    at = 1 + seed
    while crash_while_moving(at, seed, power_loss=power_loss):
        at += STRIDE
    assert at > 50


def cut(world: World, offset: int) -> None:
    """As a follower's log is that went astray."""
    world.logs.truncate("t", 0, offset, now_ms=world.clock.now_ms(), wall_ms=world.clock.wall_ms())


def with_all_copied(**settings: str) -> tuple[World, str, Log]:
    """A replica of six records on its way, where to, and the copy, that has them all."""
    world = two_directories(**settings)
    world.create("t")
    written(world, *(b"old%d" % each for each in range(6)))
    _, other = home_and_other(world)
    assert move(world, other) is ErrorCode.NONE
    future = world.logs.futures.get(TopicPartition("t", 0))
    assert future is not None
    while future.log_end_offset < 6:
        run_jobs_but(Truncate, world)
    return world, other, future


def run_jobs_but(kind: type, world: World) -> list[Errand]:
    """What the disk is to do now, but for jobs that hang. Returns: those."""
    hanging = []
    for errand in world.core.effects.take_jobs():
        if isinstance(errand.job, kind):
            hanging.append(errand)
        else:
            run(errand, world)
    world.clock.advance(20)
    world.core.step(EXPIRED, world.clock.now_ms())
    return hanging


def run(errand: Errand, world: World) -> None:
    errand.run()
    world.core.step(JobDone(errand, None), world.clock.now_ms())


def test_what_was_cut_is_not_in_a_copy_though_a_crash_comes_before_it_is_gone_on_with() -> None:
    world, other, _ = with_all_copied()
    cut(world, 2)
    log = world.partition("t").log
    assert log is not None
    for _ in range(6):
        log.append_as_leader(memoryview(bytearray(batch(fill=b"n"))), 0, world.clock.wall_ms(), Origin.CLIENT)
    expected = read(world)
    world.disk.restart(power_loss=False)
    world.start()
    until(world, has_moved(world, other))
    assert read(world) == expected


def test_a_copy_is_cut_with_the_log_that_it_follows() -> None:
    world, other, future = with_all_copied()
    cut(world, 2)
    expected = read(world)
    assert (future.log_end_offset, future.cuts_under_way) == (2, 1)
    until(world, has_moved(world, other))
    assert read(world) == expected


def test_a_copy_with_records_of_an_epoch_that_the_log_has_not_is_cut_to_where_both_agree() -> None:
    world, other, future = with_all_copied()
    log = world.partition("t").log
    assert log is not None
    log.append_as_leader(memoryview(bytearray(batch(fill=b"n"))), 5, world.clock.wall_ms(), Origin.CLIENT)
    future.append_as_follower(memoryview(bytearray(batch(base_offset=6, epoch=3))), world.clock.wall_ms())
    expected = read(world)
    until(world, has_moved(world, other))
    assert read(world) == expected


def test_a_cut_above_what_was_copied_leaves_the_copy_as_it_is() -> None:
    world, _, future = with_all_copied()
    log = world.partition("t").log
    assert log is not None
    for _ in range(2):
        log.append_as_leader(memoryview(bytearray(batch())), 0, world.clock.wall_ms(), Origin.CLIENT)
    cut(world, 7)
    assert future.log_end_offset == 6


def test_a_copy_takes_no_place_before_a_cut_is_durable() -> None:
    world, other, _ = with_all_copied()
    cut(world, 2)
    for _ in range(50):
        run_jobs_but(Truncate, world)
    assert not has_moved(world, other)()


def test_a_move_that_is_called_off_leaves_nobody_waiting_for_the_flush_that_it_held_up() -> None:
    world = two_directories(log_flush_interval_messages="1")
    world.create("t")
    written(world, b"a")
    home, other = home_and_other(world)
    assert move(world, other) is ErrorCode.NONE
    while not any(each.held for each in world.logs.directories):
        run_jobs_but(CloseJob, world)
    client = world.client()
    number = client.start(produce(b"b", acks=-1), 9)
    assert move(world, home) is ErrorCode.NONE
    until(world, lambda: number in client.look())
    assert produced(client.answers[number]).error_code == ErrorCode.NONE


def test_who_waits_for_a_flush_is_answered_if_the_copy_that_takes_over_is_flushed_already() -> None:
    world = two_directories(log_flush_interval_messages="1")
    world.create("t")
    written(world, b"a")
    _, other = home_and_other(world)
    client = world.client()
    client.start(produce(b"b", acks=-1), 9)
    (flush,) = run_jobs_but(Flush, world)
    number = client.start(produce(b"c", acks=-1), 9)  # of the next flush, which the move holds up
    assert move(world, other) is ErrorCode.NONE
    while not any(each.held for each in world.logs.directories):
        run_jobs_but(Flush, world)
    run(flush, world)
    until(world, lambda: number in client.look())
    assert has_moved(world, other)()
    assert produced(client.answers[number]).error_code == ErrorCode.NONE


def test_epochs_start_where_they_did_though_their_first_records_were_compacted_away() -> None:
    """Followers that had others there are told so by where they start."""
    world = two_directories(log_cleaner_backoff_ms="1000", log_cleaner_dedupe_buffer_size="1048577")
    world.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01")
    log, wall_ms = world.partition("t").log, world.clock.wall_ms()
    assert log is not None
    for epoch in (0, 0, 7, 7, 7):
        log.append_as_leader(memoryview(bytearray(batch(key=b"k"))), epoch, wall_ms, Origin.CLIENT)
    log.roll(wall_ms)
    log.append_as_leader(memoryview(bytearray(batch(key=b"k"))), 7, wall_ms, Origin.CLIENT)
    log.commit_all()
    world.logs.flush("t", 0)
    until(world, lambda: log.cleaned_to == 5)
    _, other = home_and_other(world)
    assert move(world, other) is ErrorCode.NONE
    until(world, has_moved(world, other))
    moved = world.partition("t").log
    assert moved is not None
    on_disk = world.disk.open(f"{other}/t-0/leader-epoch-checkpoint", "read").read(0, 100)
    assert (moved.epochs.entries(), on_disk) == ([(0, 0), (7, 2)], b"0\n2\n0 0\n7 2\n")


def compacted_to_5() -> World:
    """t-0 has two segments; the first, of the offsets 0 to 4, is compacted."""
    world = two_directories(log_cleaner_backoff_ms="1000")
    world.create("t", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", flush_messages="1")
    log, wall_ms = world.partition("t").log, world.clock.wall_ms()
    assert log is not None
    for at in range(6):
        log.append_as_leader(memoryview(bytearray(batch(key=b"k"))), 0, wall_ms, Origin.CLIENT)
        if at == 4:
            log.roll(wall_ms)
    log.commit_all()
    world.logs.flush("t", 0)
    until(world, lambda: log.cleaned_to == 5)
    return world


def test_what_was_compacted_before_a_move_is_not_compacted_again() -> None:
    world = compacted_to_5()
    _, other = home_and_other(world)
    assert move(world, other) is ErrorCode.NONE
    until(world, has_moved(world, other))
    world.advance(1_000)
    assert world.partition("t").log.cleaned_to == 5  # type: ignore[union-attr]
    on_disk = world.disk.open(f"{other}/cleaner-offset-checkpoint", "read").read(0, 100)
    assert on_disk == b"0\n1\nt 0 5\n"


def test_what_is_compacted_while_its_copy_is_made_is_dirty_in_the_copy() -> None:
    world = compacted_to_5()
    _, other = home_and_other(world)
    log = world.partition("t").log
    assert log is not None
    log.cleaned_to = 2  # as of before, when the copy is begun
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    log.cleaned_to = 5
    world.disk_is_busy = False
    until(world, has_moved(world, other))
    assert world.partition("t").log.cleaned_to == 2  # type: ignore[union-attr]


def test_what_is_written_anew_behind_a_cut_is_dirty_in_a_copy_that_has_nothing_of_it_yet() -> None:
    world = compacted_to_5()
    _, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    world.logs.truncate("t", 0, 3, now_ms=world.clock.now_ms(), wall_ms=world.clock.wall_ms())
    future = world.logs.futures.get(TopicPartition("t", 0))
    assert future is not None
    assert future.cleaned_to == 3


def test_a_throttled_move_takes_its_time() -> None:
    world = two_directories(log_segment_bytes="1000000")
    world.create("t")
    written(world, *(b"%d" % (at % 10) * 100_000 for at in range(20)))
    world.plane.configs.set_dynamic(broker={"replica.alter.log.dirs.io.max.bytes.per.second": "400000"})
    _, other = home_and_other(world)
    before, begin_ms = read(world), world.clock.now_ms()
    assert move(world, other) is ErrorCode.NONE
    until(world, has_moved(world, other))
    assert 3_000 < world.clock.now_ms() - begin_ms < 6_000  # 2 MB, but for the last step
    assert read(world) == before


@pytest.mark.parametrize("call", ["read", "sync_dir"])
def test_a_disk_that_fails_while_replicas_move_away_from_it_is_the_one_that_goes_offline(call: str) -> None:
    world = two_directories()
    world.create("t")
    written(world, b"a")
    home, other = home_and_other(world)
    world.disk_is_busy = True
    assert move(world, other) is ErrorCode.NONE
    world.disk_is_busy = False

    def fail(name: str, path: str) -> OSError | None:
        is_source = path == f"{home}/t-0/{0:020d}.log" if call == "read" else path == home and has_moved(world, other)()
        return OSError(errno.EIO, "EIO") if name == call and is_source else None  # no name: the file is open already

    world.disk.fault = fail
    world.advance(1000)
    assert [each.path for each in world.logs.directories if each.online] == [other]
    assert not any(each.held for each in world.logs.directories)


def test_a_disk_that_fails_when_a_replica_is_to_move_away_from_it_is_the_one_that_goes_offline() -> None:
    world = two_directories()
    world.create("t")
    home, other = home_and_other(world)
    world.disk.fail("open", f"{home}/t-0/partition.metadata", errno.EIO)
    assert move(world, other) is ErrorCode.KAFKA_STORAGE_ERROR
    assert [each.path for each in world.logs.directories if each.online] == [other]


def test_a_stop_just_before_a_copy_is_made_durable_is_clean() -> None:
    world, other, _ = with_all_copied()
    expected = read(world)
    world.stop()
    assert all(world.disk.stat(f"{path}/.kafka_cleanshutdown") for path in ("/a", "/b"))
    world.disk.restart(power_loss=False)
    world.start()
    until(world, has_moved(world, other))
    assert read(world) == expected
