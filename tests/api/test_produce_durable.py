"""Produce with flush.messages: nobody is told of a batch, producer or consumer, before its fsync has ended."""

from __future__ import annotations

import errno

import pytest

from kbroker.broker.facts import JobDone
from kbroker.broker.jobs import Errand
from kbroker.config.limits import LONGEST_FSYNC_MS
from kbroker.core import EXPIRED
from kbroker.log.directory import Flush
from kbroker.log.isolation import HIGH_WATERMARK
from protocol.errors import ErrorCode
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.groups import FindCoordinatorRequest
from tests.requests import batch, fetch, fetched, list_offsets, produce, produced
from tests.world import Client, World

LATEST = -1
LOG = "/a/t-0/00000000000000000000.log"


@pytest.fixture
def world() -> World:
    """A topic that is flushed at each record; its disk is busy."""
    world = World()
    world.create("t", flush_messages="1")
    world.settle()
    world.disk_is_busy = True
    return world


def disk_is_free(world: World) -> None:
    """It does what it was asked for."""
    world.disk_is_busy = False
    world.settle()


def run(world: World, errands: list[Errand]) -> None:
    """The disk does these, and nothing that they lead to."""
    for errand in errands:
        errand.run()
        world.core.step(JobDone(errand, None), world.clock.now_ms())


@pytest.mark.parametrize("acks", [1, -1])
def test_the_answer_waits_for_the_fsync(world: World, client: Client, acks: int) -> None:
    number = client.send(produce(b"v", acks=acks, timeout_ms=0), 9)
    before = dict(client.look())
    disk_is_free(world)
    assert (before, produced(client.look()[number]).base_offset) == ({}, 0)


def test_acks_0_waits_for_nothing(world: World, client: Client) -> None:
    client.send(produce(b"v", acks=0), 9)
    assert not client.channel.busy


def test_other_topics_do_not_wait(world: World, client: Client) -> None:
    world.create("quick")
    assert produced(client.ask(produce(b"v", topic="quick"), 9)).error_code == 0


def test_consumers_do_not_see_a_record_before_it_is_durable(world: World, client: Client) -> None:
    reader = world.client()
    waiting = reader.send(fetch(max_wait_ms=10_000), 12)
    client.send(produce(b"v"), 9)
    early = world.client()
    seen = (
        bytes(fetched(early.ask(fetch(), 12))[0].records),
        early.ask(list_offsets(LATEST), 5).topics[0].partitions[0].offset,
        dict(reader.look()),
    )
    disk_is_free(world)
    late = fetched(reader.look()[waiting])[0]
    assert (seen, late.high_watermark, len(late.records) > 0) == ((b"", 0, {}), 1, True)


def test_what_comes_while_an_fsync_runs_has_the_next_one_to_itself(world: World, client: Client) -> None:
    first = client.send(produce(b"a"), 9)
    jobs = world.core.effects.take_jobs()
    others = [world.client() for _ in range(3)]
    for other in others:
        other.send(produce(b"b"), 9)
    run(world, jobs)
    after_one = [*client.look(), *(len(other.look()) for other in others)]
    jobs = world.core.effects.take_jobs()
    run(world, jobs)
    after_two = [len(other.look()) for other in others]
    assert (after_one, [type(each.job) for each in jobs], after_two) == ([first, 0, 0, 0], [Flush], [1, 1, 1])


def test_a_count_of_several_makes_only_the_one_that_fills_it_wait(world: World, client: Client) -> None:
    world.create("some", flush_messages="3")
    answered = []
    for _ in range(4):
        other = world.client()
        other.send(produce(b"v", topic="some"), 9)
        answered.append(len(other.look()))
    assert (answered, world.partition("some").readable_end(HIGH_WATERMARK)) == ([1, 1, 0, 1], 2)


def test_a_retry_of_what_is_not_durable_yet_waits_as_well(world: World, client: Client) -> None:
    records = batch(b"v", producer=(7, 0, 0))
    client.send(produce(records=records), 9)
    again = world.client()
    number = again.send(produce(records=records), 9)
    before = dict(again.look())
    disk_is_free(world)
    assert (before, produced(again.look()[number]).base_offset) == ({}, 0)


def test_answers_keep_their_order_behind_one_that_waits(world: World, client: Client) -> None:
    world.create("quick")
    numbers = [client.send(produce(b"v", topic=topic), 9) for topic in ("t", "quick")]
    before = dict(client.look())
    disk_is_free(world)
    client.look()
    assert (before, client.order) == ({}, numbers)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_failed_fsync_is_a_storage_error_and_the_directorys_end(world: World, client: Client, acks: int) -> None:
    number = client.send(produce(b"v", acks=acks), 9)
    world.disk.fail("sync", LOG, errno.EIO)
    disk_is_free(world)
    answer = produced(client.look()[number])
    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert not world.logs.has_online_directory


@pytest.mark.parametrize("acks", [1, -1])
def test_an_fsync_that_cannot_even_begin_is_one_too(world: World, client: Client, acks: int) -> None:
    world.create("u", flush_messages="2", index_interval_bytes="0")
    client.ask(produce(b"v", topic="u"), 9)
    world.disk.fail("open", ".index", errno.EIO)
    answer = produced(client.ask(produce(b"v", topic="u", acks=acks), 9))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert not world.logs.has_online_directory


def test_a_disk_that_hangs_is_told_in_the_end(world: World, client: Client) -> None:
    number = client.send(produce(b"v", timeout_ms=1000), 9)
    world.advance(LONGEST_FSYNC_MS + 999)
    before = dict(client.look())
    world.advance(1)
    assert (before, produced(client.look()[number]).error_code) == ({}, ErrorCode.REQUEST_TIMED_OUT)


def test_who_waits_hears_that_the_topic_is_gone(world: World, client: Client) -> None:
    number = client.send(produce(b"v"), 9)
    world.replicas.stop("t", 0, delete=True)
    disk_is_free(world)
    world.core.step(EXPIRED, world.clock.now_ms())
    assert produced(client.look()[number]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_groups_wait_for_the_fsync_of_their_topic() -> None:
    world = World(log_flush_interval_messages="1")
    client = world.client()
    world.create("t")
    client.ask(FindCoordinatorRequest(key="g"), 3)
    world.advance(1)
    world.disk_is_busy = True
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name="t", partitions=[part])]
    number = client.send(OffsetCommitRequest(group_id="g", topics=topics), 8)
    before = dict(client.look())
    disk_is_free(world)
    answer = client.look()[number].topics[0].partitions[0]
    assert (number in before, answer.error_code) == (False, 0)


# ---- settings that change, lives that end


def test_a_smaller_count_is_made_good_at_once(world: World, client: Client) -> None:
    world.create("late", flush_messages="100")
    client.ask(produce(b"v", topic="late"), 9)
    log = world.partition("late").log
    assert log is not None
    config = log.config
    world.logs.reconfigure("late", 0, type(config)(flush_messages=1))
    disk_is_free(world)
    assert log.recovery_point == 1


def test_what_a_killed_process_left_unflushed_is_flushed_at_the_start(world: World, client: Client) -> None:
    client.send(produce(b"v"), 9)
    world.disk.restart(power_loss=False)
    world.start()
    log = world.partition("t").log
    assert log is not None
    before = (log.high_watermark, log.log_end_offset)
    disk_is_free(world)
    assert (before, log.high_watermark, log.recovery_point) == ((0, 1), 1, 1)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_power_cut_takes_nothing_that_was_answered(world: World, client: Client, acks: int) -> None:
    disk_is_free(world)
    for _ in range(5):
        client.ask(produce(b"v", acks=acks), 9)
    world.disk.restart()
    world.start()
    assert world.partition("t").readable_end(HIGH_WATERMARK) == 5
