"""Records that a share group gives up, as records of its dead letter queue (KIP-1191)."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.records.content import parse_set
from tests.requests import fetch, produce
from tests.share.ask import GROUP, Member, initialize, values
from tests.world import World

ACCEPT, RELEASE, REJECT = [1], [2], [3]
QUEUE = "dlq.work"


def world_with(*, copy: bool = False, queue: str = QUEUE, make: bool = True, **settings: str) -> World:
    world = World(
        group_share_min_record_lock_duration_ms="1000",
        group_share_record_lock_duration_ms="5000",
        group_share_delivery_count_limit="2",
        share_coordinator_state_topic_num_partitions="2",
        **settings,
    )
    world.create("t")
    if make:
        world.create(queue, errors_deadletterqueue_group_enable="true")
    world.plane.configs.groups[GROUP] = {
        "errors.deadletterqueue.topic.name": queue,
        "errors.deadletterqueue.copy.record.enable": "true" if copy else "false",
    }
    initialize(world)
    for at in range(5):
        world.client().ask(produce(b"v%d" % at), 9)
    return world


def letters(world: World, topic: str = QUEUE) -> list[Any]:
    answer = world.client().ask(fetch(topic=topic), 12)
    data = answer.responses[0].partitions[0].records
    return [record for _, records in parse_set(bytes(data)) for record in records] if data else []


def headers(letter: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in letter.headers}


def test_a_rejected_record_is_a_record_of_the_queue() -> None:
    world = world_with()
    member = Member(world)
    member.acquire()
    assert member.says((2, 2, REJECT)) == 0
    (letter,) = letters(world)
    said = headers(letter)
    assert (letter.key, letter.value) == (None, None)
    assert {name.removeprefix("__dlq.errors."): text for name, text in said.items() if "message" not in name} == {
        "topic": "t",
        "partition": "0",
        "offset": "2",
        "group": GROUP,
        "delivery.count": "1",
    }
    assert said["__dlq.errors.message"]


def test_a_record_of_the_queue_may_be_a_copy() -> None:
    world = world_with(copy=True)
    member = Member(world)
    member.acquire()
    assert member.says((1, 2, REJECT)) == 0
    world.advance(100)
    assert [each.value for each in letters(world)] == [b"v1", b"v2"]


def test_a_poison_record_reaches_the_queue() -> None:
    world = world_with(copy=True)
    member = Member(world)
    assert member.acquire() == [(0, 4, 1)]
    assert member.says((0, 2, ACCEPT), (3, 3, RELEASE), (4, 4, ACCEPT)) == 0
    assert member.acquire() == [(3, 3, 2)]
    world.advance(5_100)  # its lock expires, and two deliveries are the limit
    assert [(each.value, headers(each)["__dlq.errors.delivery.count"]) for each in letters(world)] == [(b"v3", "2")]
    assert member.acquire() == []


def test_what_is_in_the_queue_is_not_delivered_after_a_restart() -> None:
    world = world_with()
    member = Member(world)
    member.acquire()
    assert member.says((0, 0, ACCEPT), (1, 1, REJECT), (2, 4, RELEASE)) == 0
    world.restart()
    world.advance(500)
    assert values(Member(world).fetch()) == [b"v2", b"v3", b"v4"]
    assert len(letters(world)) == 1


def test_the_queue_is_made_if_that_is_allowed() -> None:
    world = world_with(make=False, errors_deadletterqueue_auto_create_topics_enable="true")
    member = Member(world)
    member.acquire()
    assert member.says((0, 0, REJECT)) == 0
    world.advance(5_000)
    assert [headers(each)["__dlq.errors.offset"] for each in letters(world)] == ["0"]


@pytest.mark.parametrize("queue", ["other", "dlq.missing"])
def test_what_is_no_queue_gets_nothing_and_the_record_is_given_up(queue: str, caplog: pytest.LogCaptureFixture) -> None:
    world = world_with(queue=queue, make=queue == "other")
    member = Member(world)
    member.acquire()
    assert member.says((0, 0, REJECT), (1, 4, ACCEPT)) == 0
    world.advance(500)
    assert member.acquire() == []
    assert any("archived without a dead letter" in each.getMessage() for each in caplog.records)


def test_a_topic_must_be_meant_for_it(caplog: pytest.LogCaptureFixture) -> None:
    world = world_with(make=False)
    world.create(QUEUE)
    member = Member(world)
    member.acquire()
    assert member.says((0, 0, REJECT)) == 0
    assert letters(world) == []
    assert "errors.deadletterqueue.group.enable=false" in caplog.text


def test_many_records_are_given_up_at_once() -> None:
    world = world_with(copy=True)
    for at in range(5, 400):
        world.client().ask(produce(b"v%d" % at), 9)
    member = Member(world)
    assert member.acquire() == [(0, 399, 1)]
    assert member.says((0, 399, REJECT)) == 0
    world.advance(1_000)
    assert [each.value for each in letters(world)] == [b"v%d" % at for at in range(400)]
