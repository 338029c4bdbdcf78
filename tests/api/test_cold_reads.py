"""Segments that nobody has read lately, or whose index is damaged: who reads them waits, and nobody else does."""

from __future__ import annotations

import errno

import pytest

from kbroker.broker.facts import JobDone
from kbroker.config.limits import COLD_PATIENCE_MS
from kbroker.log.times import TimeScan
from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from tests.requests import batch, fetch, list_offsets, produce, produced
from tests.world import BROKER, Client, World

FIRST = "/a/t-0/00000000000000000000"


@pytest.fixture
def world() -> World:
    """A broker that has just started, with ten batches of "t" in segments of three; its disk does nothing yet."""
    world = World()
    world.create("t", segment_bytes="700", index_interval_bytes="1")
    world.create("other")
    client = world.client()
    for at in range(10):
        client.ask(produce(records=batch(b"v" * 120, timestamps=(100 * at,))), 9)
    client.ask(produce(b"v", topic="other"), 9)
    world.settle()
    world.restart()
    world.disk_is_busy = True
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def records(client: Client, number: int) -> tuple[int, bool]:
    """Code, and whether there are records, in an answer of one partition."""
    part = client.look()[number].responses[0].partitions[0]
    return part.error_code, bool(part.records)


def test_who_reads_a_cold_segment_waits_for_the_disk_and_nobody_else_does(world: World, client: Client) -> None:
    number = client.send(fetch(1, max_wait_ms=500), 12)
    other = world.client()
    told = [
        produced(other.ask(produce(b"v", topic="other"), 9)).error_code,
        produced(other.ask(produce(b"v"), 9)).error_code,  # of the same partition
        bool(other.ask(fetch(10, max_wait_ms=500), 12).responses[0].partitions[0].records),
    ]
    before = dict(client.look())
    world.disk_is_busy = False
    world.settle()
    assert (told, before, records(client, number)) == ([0, 0, True], {}, (0, True))


@pytest.mark.parametrize("version", [2, 12])
def test_one_job_is_enough_for_all_who_wait(world: World, version: int) -> None:
    clients = [world.client() for _ in range(3)]
    numbers = [client.send(fetch(1, max_wait_ms=500), version) for client in clients]
    jobs = world.core.effects.take_jobs()
    for job in jobs:
        job.run()
        world.core.step(JobDone(job, None), world.clock.now_ms())
    world.disk_is_busy = False
    world.settle()
    answered = [records(client, number) for client, number in zip(clients, numbers, strict=True)]
    assert (len(jobs), answered) == (1, [(0, True)] * 3)


def test_a_fetch_that_wants_many_bytes_waits_for_the_disk_too(world: World, client: Client) -> None:
    number = client.send(fetch(1, max_wait_ms=500, min_bytes=500), 12)
    before = dict(client.look())
    world.disk_is_busy = False
    world.settle()
    assert (before, records(client, number)) == ({}, (0, True))


NO_ANSWER: dict[int, object] = {}


def ready(world: World) -> None:
    """The disk does what it was asked for."""
    world.disk_is_busy = False
    world.settle()


@pytest.mark.parametrize("version", [0, 2, 4, 12])
@pytest.mark.parametrize("min_bytes", [0, 1, 500])
def test_a_fetch_that_does_not_wait_waits_for_the_disk_all_the_same(
    world: World, client: Client, version: int, min_bytes: int
) -> None:
    number = client.send(fetch(1, min_bytes=min_bytes), version)
    before = dict(client.look())
    ready(world)
    assert (before, records(client, number)) == (NO_ANSWER, (0, True))


@pytest.mark.parametrize("offset", range(10))
def test_each_segment_has_records_the_first_time_it_is_asked_for_them(
    world: World, client: Client, offset: int
) -> None:
    world.disk_is_busy = False
    assert records(client, client.send(fetch(offset), 4)) == (0, True)


@pytest.mark.parametrize("version", [2, 12])
@pytest.mark.parametrize("min_bytes", [1, 500])
def test_behind_the_end_of_its_wait_a_fetch_waits_for_the_disk(
    world: World, client: Client, version: int, min_bytes: int
) -> None:
    number = client.send(fetch(1, max_wait_ms=500, min_bytes=min_bytes), version)
    world.advance(600)
    before = dict(client.look())
    ready(world)
    assert (before, records(client, number)) == (NO_ANSWER, (0, True))


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, ErrorCode.NOT_LEADER_OR_FOLLOWER), (5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)],
)
@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_a_disk_that_brings_nothing_in_the_end_is_said_to_be_at_fault(
    world: World, client: Client, version: int, code: ErrorCode, max_wait_ms: int
) -> None:
    number = client.send(fetch(1, max_wait_ms=max_wait_ms), version)
    world.advance(max_wait_ms + COLD_PATIENCE_MS + 200)
    assert records(client, number) == (code, False)
    ready(world)
    assert records(client, client.send(fetch(1), version)) == (0, True)


def test_a_partition_beside_others_that_have_records_is_waited_for_too(world: World, client: Client) -> None:
    """Who takes an empty part for the end of its partition would lose the rest."""
    request = fetch(1)
    request.topics += fetch(0, topic="other").topics
    number = client.send(request, 4)
    before = dict(client.look())
    ready(world)
    sizes = [len(topic.partitions[0].records or b"") > 0 for topic in client.look()[number].responses]
    assert (before, sizes) == (NO_ANSWER, [True, True])


def test_a_partition_for_which_there_is_no_room_is_not_waited_for(world: World, client: Client) -> None:
    request = fetch(0, topic="other", max_bytes=1)
    request.topics += fetch(1).topics
    number = client.send(request, 4)
    sizes = [len(topic.partitions[0].records or b"") > 0 for topic in client.look()[number].responses]
    assert sizes == [True, False]


@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_a_fetch_in_slices_waits_for_the_disk(
    world: World, client: Client, max_wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.api.fetch.MANY_PARTITIONS", 1)
    request = fetch(1, max_wait_ms=max_wait_ms)
    request.topics += fetch(1, topic="other").topics  # where there is nothing
    number = client.send(request, 12)
    world.advance(max_wait_ms + 200)
    before = dict(client.look())
    ready(world)
    world.advance(0)
    assert (before, records(client, number)) == (NO_ANSWER, (0, True))


def test_what_is_ready_before_a_fetch_in_slices_is_through_is_read_at_once(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.api.fetch.MANY_PARTITIONS", 1)
    monkeypatch.setattr("kbroker.timing.scheduler.FIRST_STEPS", 3)
    request = fetch(1)
    request.topics += fetch(1, topic="other").topics
    number = client.start(request, 12)
    ready(world)  # before its second partition is looked at
    world.advance(0)
    assert records(client, number) == (0, True)


@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_a_follower_waits_for_the_disk(world: World, client: Client, max_wait_ms: int) -> None:
    state = LeaderState(1, BROKER, 5, (BROKER, 2), 5, (BROKER, 2))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    request = fetch(1, max_wait_ms=max_wait_ms)
    request.replica_id = 2
    number = client.send(request, 11)
    world.advance(max_wait_ms + 200)
    before = dict(client.look())
    ready(world)
    assert (before, records(client, number)) == (NO_ANSWER, (0, True))


def test_a_follower_gets_what_other_partitions_have_meanwhile(world: World, client: Client) -> None:
    """For it nothing is the end, and its leader's partitions are to stay in sync."""
    for topic in ("t", "other"):
        state = LeaderState(1, BROKER, 5, (BROKER, 2), 5, (BROKER, 2))
        world.replicas.become(topic, 0, world.topic_id(topic), state, is_new=False)
    request = fetch(1, max_wait_ms=500)
    request.topics += fetch(0, topic="other").topics
    request.replica_id = 2
    number = client.send(request, 11)
    sizes = [len(topic.partitions[0].records or b"") > 0 for topic in client.look()[number].responses]
    assert sizes == [False, True]


@pytest.mark.parametrize("timestamp", [0, 450, 900, -3])
def test_a_question_by_time_waits_for_the_disk(world: World, client: Client, timestamp: int) -> None:
    number = client.send(list_offsets(timestamp), 7)
    before = dict(client.look())
    ready(world)
    part = client.look()[number].topics[0].partitions[0]
    expected = {0: 0, 450: 5, 900: 9, -3: 9}[timestamp]
    assert (before, part.error_code, part.offset) == (NO_ANSWER, 0, expected)


@pytest.mark.parametrize(("timestamp", "start", "expected"), [(0, 5, 5), (450, 7, 7), (-3, 10, -1), (900, 10, -1)])
def test_a_record_that_is_deleted_while_it_is_looked_for_is_no_answer(
    world: World, client: Client, timestamp: int, start: int, expected: int
) -> None:
    number, log = client.send(list_offsets(timestamp), 7), world.partition("t").log
    assert log is not None
    for _ in range(2):  # the indices, then the records
        jobs = world.core.effects.take_jobs()
        for job in jobs:
            job.run()
        if any(isinstance(getattr(job, "job", job), TimeScan) for job in jobs):
            log.advance_log_start(start)
        for job in jobs:
            world.core.step(JobDone(job, None), world.clock.now_ms())
    ready(world)
    part = client.look()[number].topics[0].partitions[0]
    assert (log.log_start_offset, part.error_code, part.offset) == (start, 0, expected)


def test_with_records_of_other_partitions_it_waits_for_nothing(world: World, client: Client) -> None:
    world.create("two", partitions=2)
    other = world.client()
    for index in (0, 1):
        other.ask(produce(b"v", topic="two", index=index), 9)
    number = client.send(fetch(0, topic="two", indices=(0, 1), max_wait_ms=500), 12)
    assert records(client, number) == (0, True)


def damage(world: World) -> None:
    """An entry of the first segment's index points into the middle of a batch."""
    file = world.disk.open(f"{FIRST}.index", "write")
    file.write([(77).to_bytes(4, "big")], 4)
    file.close()


def test_an_index_is_made_anew_beside_the_loop(world: World, client: Client) -> None:
    world.disk_is_busy = False
    damage(world)
    number = client.start(fetch(1, max_wait_ms=500), 12)
    ((warm,), other) = world.core.effects.take_jobs(), world.client()
    warm.run()
    world.core.step(JobDone(warm, None), world.clock.now_ms())
    (repair,) = world.core.effects.take_jobs()
    meanwhile = [produced(other.ask(produce(b"v"), 9)).error_code, dict(client.look())]
    repair.run()
    world.core.step(JobDone(repair, None), world.clock.now_ms())
    assert (meanwhile, records(client, number)) == ([0, {}], (0, True))


def test_a_disk_that_fails_at_it_takes_the_partition_offline(world: World, client: Client) -> None:
    number = client.send(fetch(1, max_wait_ms=500), 12)
    for errand in world.core.effects.take_jobs():
        world.core.step(JobDone(errand, OSError(errno.EIO, "Input/output error")), world.clock.now_ms())
    assert records(client, number) == (ErrorCode.KAFKA_STORAGE_ERROR, False)


def test_a_log_that_is_deleted_meanwhile_concerns_nobody(world: World, client: Client) -> None:
    number = client.send(fetch(1, max_wait_ms=500), 12)
    world.replicas.stop("t", 0, delete=True)
    world.disk_is_busy = False
    world.settle()
    code, _ = records(client, number)
    assert (code != 0, len(world.broker.cold_reads)) == (True, 0)


def test_a_damaged_index_of_a_segment_that_goes_meanwhile_is_not_made_anew(world: World, client: Client) -> None:
    world.disk_is_busy = False
    damage(world)
    client.start(fetch(1, max_wait_ms=500), 12)
    (warm,), log = world.core.effects.take_jobs(), world.partition("t").log
    warm.run()
    world.core.step(JobDone(warm, None), world.clock.now_ms())
    (repair,) = world.core.effects.take_jobs()
    assert log is not None
    log.advance_log_start(log.segments[1].base_offset)
    log.delete_old_segments(world.clock.wall_ms())
    repair.run()
    world.core.step(JobDone(repair, None), world.clock.now_ms())
    assert world.disk.stat(f"{FIRST}.index") is None


def test_a_time_index_that_is_cold_is_read_beside_the_loop(world: World, client: Client) -> None:
    number = client.send(list_offsets(450), 5)
    (job,) = world.core.effects.take_jobs()
    before = [each for each in world.partition("t").log.segments if each.knows_times]  # type: ignore[union-attr]
    job.run()
    world.core.step(JobDone(job, None), world.clock.now_ms())
    world.disk_is_busy = False
    world.settle()
    answer = client.look()[number].topics[0].partitions[0]
    assert (before, answer.offset, answer.timestamp) == ([], 5, 500)
