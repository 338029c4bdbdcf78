"""Compressed batches that become much, and requests of many batches: what is done at once, what beside the loop."""

from __future__ import annotations

import gc

import pytest

from kbroker.broker.decompression import Decompression
from kbroker.core import EXPIRED
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import RecordError
from protocol.records.content import parse_set
from tests.requests import batch, fetch, fetched, list_offsets, produce, produced
from tests.world import Client, World

ZSTD = 4
HEADER_BYTES = 61  # of a batch
BOMB = batch(bytes(20 << 20), codec_id=ZSTD)  # 20 MB in two kilobytes


@pytest.fixture
def world() -> World:
    world = World(offsets_topic_num_partitions="1")
    world.create("t", partitions=20)
    return world


def many(batches: list[bytes], acks: int = 1) -> ProduceRequest:
    """One for each partition."""
    data = [PartitionProduceData(index=index, records=each) for index, each in enumerate(batches)]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)])


def codes(answer: object) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]  # type: ignore[attr-defined]


def test_what_becomes_much_is_looked_at_beside_the_loop(world: World) -> None:
    world.disk_is_busy = True
    client = world.client()
    number = client.send(many([BOMB]), 9)
    world.client().ask(produce(b"v", index=1), 9)
    before = number in client.look()
    world.disk_is_busy = False
    world.settle()
    assert (before, codes(client.look()[number])) == (False, [0])


def test_what_was_looked_at_beside_the_loop_is_stored_as_it_came(world: World) -> None:
    client = world.client()
    client.send(produce(records=BOMB), 9)
    client.send(produce(b"next"), 9)
    stored = bytes(fetched(world.client().ask(fetch(), 12))[0].records)
    assert stored[HEADER_BYTES : len(BOMB)] == BOMB[HEADER_BYTES:]
    assert [len(records[0].value or b"") for _, records in parse_set(stored)] == [20 << 20, 4]


def test_the_batches_of_a_request_together_may_become_only_so_much(world: World) -> None:
    answer = world.client().ask(many([BOMB] * 12), 9)
    assert codes(answer) == [0] * 6 + [ErrorCode.MESSAGE_TOO_LARGE] * 6


def test_nothing_stays_of_batches_that_are_refused(world: World) -> None:
    """An error knows the frames that it came through, and they know what was decompressed; gigabytes, if it stayed."""
    gc.collect()
    gc.disable()
    try:
        answer = world.client().ask(many([BOMB] * 8), 9)
        assert ErrorCode.MESSAGE_TOO_LARGE in codes(answer)
        assert [each for each in gc.get_objects() if isinstance(each, KafkaError | RecordError)] == []
    finally:
        gc.enable()


def test_small_batches_are_looked_at_at_once_however_many(world: World) -> None:
    world.disk_is_busy = True
    small = batch(bytes(100_000), codec_id=ZSTD)
    assert codes(world.client().ask(many([small] * 20), 9)) == [0] * 20


@pytest.mark.parametrize("more_bytes", [0, 1])
def test_the_most_that_is_looked_at_at_once(world: World, monkeypatch: pytest.MonkeyPatch, more_bytes: int) -> None:
    limit_bytes = 10_000
    monkeypatch.setattr("kbroker.log.append.OPENED_AT_ONCE_BYTES", limit_bytes)
    value_bytes = limit_bytes - (len(batch(bytes(limit_bytes))) - HEADER_BYTES - limit_bytes)
    client = world.client()
    world.disk_is_busy = True
    number = client.send(many([batch(bytes(value_bytes + more_bytes), codec_id=ZSTD)]), 9)
    at_once = number in client.look()
    world.disk_is_busy = False
    world.settle()
    assert (at_once, codes(client.look()[number])) == (more_bytes == 0, [0])


def test_many_bombs_are_not_opened_on_the_loop(world: World) -> None:
    """Of each request a few megabytes at once, then nothing more."""
    world.disk_is_busy = True
    client = world.client()
    client.send(many([batch(bytes(3 << 20), codec_id=ZSTD)] * 20), 9)
    (errand,) = world.core.effects.take_jobs()
    assert len(errand.job._unprepared) >= 19  # type: ignore[attr-defined]


def test_lookups_by_time_stand_in_line_with_them(world: World) -> None:
    world.client().ask(produce(records=batch(*[b"v"] * 10, timestamps=range(10), codec_id=ZSTD)), 9)
    world.disk_is_busy = True
    first, second = world.client(), world.client()
    first.send(list_offsets(5), 7)
    second.send(many([BOMB]), 9)
    waiting = len(world.broker.decompression)
    world.disk_is_busy = False
    world.settle()
    assert (waiting, first.look() != {}, second.look() != {}) == (1, True, True)


def test_addresses_have_their_turn_one_after_the_other() -> None:
    given: list[object] = []
    ended: list[object] = []

    class Owner:
        def finished(self, job: object, error: OSError | None, now_ms: int) -> None:
            ended.append(job)

    decompression = Decompression(lambda job, owner: given.append(job))
    for address, job in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        decompression.add(address, job, Owner())  # type: ignore[arg-type]
    for at in range(5):
        decompression.finished(given[at], None, 0)  # type: ignore[arg-type]
    assert given == ended == ["a1", "a2", "b1", "c1", "a3"]


def answered(world: World, client: Client, request: ProduceRequest) -> tuple[int, object]:
    """After how many events the answer is there, and the answer."""
    number = client.start(request, 9)
    events = 0
    while number not in client.look():
        world.core.step(EXPIRED, world.clock.now_ms())
        events += 1
    return events, client.answers[number]


def test_a_request_of_many_partitions_is_appended_in_slices(world: World) -> None:
    events, answer = answered(world, world.client(), many([batch(b"v" * 300)] * 20 + [batch(b"v" * 300)] * 980))
    assert (events > 1, codes(answer)) == (True, [0] * 20 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 980)


def test_a_request_of_many_bytes_is_appended_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.core.LONG_PRODUCE_BYTES", 1_000_000)
    monkeypatch.setattr("kbroker.timing.scheduler.FIRST_STEPS", 4)
    monkeypatch.setattr("kbroker.timing.scheduler.SLICE_STEPS", 4)
    events, answer = answered(world, world.client(), many([batch(bytes(100_000))] * 20))
    assert (events > 3, codes(answer)) == (True, [0] * 20)


def test_an_unacknowledged_one_of_many_bytes_that_fails_is_hung_up_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.core.LONG_PRODUCE_BYTES", 1_000_000)
    good, bad = world.client(), world.client()
    good.send(many([batch(bytes(100_000))] * 20, acks=0), 9)
    bad.send(many([batch(bytes(100_000))] * 21, acks=0), 9)
    world.advance(0)
    assert (good.closing, "failed" in bad.closing) == ("", True)
    assert produced(good.ask(produce(b"v"), 9)).base_offset == 2
