"""What was due before a request came in has happened when the request is handled, whoever looks at the clock first."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.core import AT_REST, EXPIRED
from kbroker.timing import Steps
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
)
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.groups.streams.theatre import subtopology, topology
from tests.requests import fetch, fetched, produce
from tests.share.ask import Member, acquired
from tests.world import Client, World

GROUP, ID = "g", "payments"
SESSION_MS, MODERN_SESSION_MS = 6_000, 45_000
LOCK_MS = 30_000  # of records that a member of a share group has
WAIT_MS, LATE_MS = 500, 100  # of a fetch, and how much later it may be answered
LOOK_MS = 1_000  # at transactions that are overdue, once in so long


@pytest.fixture
def world() -> World:
    """A world with a topic, and coordinators loaded."""
    world = World(
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
        share_coordinator_state_topic_num_partitions="1",
        group_initial_rebalance_delay_ms="0",
        log_retention_ms="-1",
        transaction_abort_timed_out_transaction_cleanup_interval_ms=str(LOOK_MS),
    )
    world.create("t")
    client = world.client()
    client.ask(FindCoordinatorRequest(key=GROUP), 3)
    client.ask(FindCoordinatorRequest(key=ID, key_type=1), 3)
    world.advance(10)
    return world


def join(world: World) -> None:
    """A member joins, and is silent from now on."""
    client = world.client()
    request = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id="static",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"wants t")],
    )
    client.send(request, 5)
    world.advance(0)
    assert [answer.error_code for answer in client.look().values()] == [0]


DELETE = DeleteGroupsRequest(groups_names=[GROUP])


def deleted(answer: Any) -> ErrorCode:
    """What became of the group."""
    (result,) = answer.results
    return ErrorCode(result.error_code)


def pass_unnoticed(world: World, ms: int) -> None:
    """Time goes on, and nobody wakes the broker for it: what comes next is in the turn that was to do so."""
    world.clock.advance(ms)


@pytest.mark.parametrize(
    ("late_ms", "code"), [(-1, ErrorCode.NON_EMPTY_GROUP), (0, ErrorCode.NONE), (3, ErrorCode.NONE)]
)
def test_a_session_that_is_over_has_ended_for_a_request(world: World, late_ms: int, code: ErrorCode) -> None:
    join(world)
    pass_unnoticed(world, SESSION_MS + late_ms)
    assert deleted(world.client().ask(DELETE, 2)) is code


def first_heartbeat(kind: str) -> tuple[Message, int]:
    """What a member of a group of Kafka 4 says first, and the version in which it does."""
    told: dict[str, Any] = {"group_id": GROUP, "member_id": "m", "member_epoch": 0}
    if kind == "share":
        return ShareGroupHeartbeatRequest(**told, subscribed_topic_names=["t"]), 1
    told["rebalance_timeout_ms"] = 60_000
    if kind == "consumer":
        return ConsumerGroupHeartbeatRequest(**told, subscribed_topic_names=["t"], topic_partitions=[]), 1
    tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    shape = topology(subtopology(reads="t"))
    return StreamsGroupHeartbeatRequest(**told, **tasks, endpoint_information_epoch=0, topology=shape), 1


@pytest.mark.parametrize(
    ("late_ms", "code"), [(-1, ErrorCode.NON_EMPTY_GROUP), (0, ErrorCode.NONE), (3, ErrorCode.NONE)]
)
@pytest.mark.parametrize("kind", ["consumer", "share", "streams"])
def test_so_has_one_of_the_groups_of_kafka_4(world: World, kind: str, late_ms: int, code: ErrorCode) -> None:
    assert world.client().ask(*first_heartbeat(kind)).error_code == 0
    world.advance(0)
    pass_unnoticed(world, MODERN_SESSION_MS + late_ms)
    assert deleted(world.client().ask(DELETE, 2)) is code


@pytest.mark.parametrize(("late_ms", "count"), [(-1, 0), (0, 1), (3, 1)])
def test_a_lock_that_is_over_has_ended_for_a_request(world: World, late_ms: int, count: int) -> None:
    """The member that had it is silent; another one fetches."""
    world.client().ask(*first_heartbeat("share"))
    world.advance(1_000)
    first, second = Member(world), Member(world, member_id="n")
    first.group = second.group = GROUP
    first.acquire()
    world.client().ask(produce(b"record"), 9)
    first.start()
    pass_unnoticed(world, LOCK_MS + late_ms)
    number = second.start(wait_ms=0)
    assert len(acquired(second.client.look()[number])) == count


def test_a_session_that_is_over_has_ended_for_what_an_answer_lets_begin(world: World) -> None:
    """A request behind one that waits: it is begun where the other is answered, not where it comes in."""
    join(world)
    world.core.gathers = True
    waiting = world.client()
    waiting.start(fetch(max_wait_ms=SESSION_MS + 1_000), 4)
    behind = waiting.start(DELETE, 2)
    world.advance(SESSION_MS - 1)
    world.client().start(produce(b"record"), 3)
    pass_unnoticed(world, 1)
    world.core.step(AT_REST, world.clock.now_ms())
    world.settle()
    assert deleted(waiting.look()[behind]) is ErrorCode.NONE


def test_a_session_that_is_over_has_ended_for_what_an_event_lets_begin(world: World) -> None:
    join(world)
    waiting = world.client()
    world.advance(SESSION_MS - 1)
    topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    waiting.start(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)  # until the metadata store has answered
    behind = waiting.start(DELETE, 2)
    pass_unnoticed(world, 1)
    world.settle()
    assert deleted(waiting.look()[behind]) is ErrorCode.NONE


def test_a_transaction_that_took_too_long_is_aborted_for_a_request(world: World) -> None:
    producer = world.client()
    made = producer.ask(InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=LOOK_MS), 4)
    begun = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID,
        v3_and_below_producer_id=made.producer_id,
        v3_and_below_producer_epoch=made.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    producer.ask(begun, 3)
    world.advance(LOOK_MS - 1)
    pass_unnoticed(world, 2 * LOOK_MS)
    end = EndTxnRequest(
        transactional_id=ID, producer_id=made.producer_id, producer_epoch=made.producer_epoch, committed=True
    )
    assert producer.ask(end, 3).error_code == ErrorCode.PRODUCER_FENCED


def test_a_request_that_has_waited_long_enough_sees_nothing_of_a_later_one(world: World) -> None:
    reader = world.client()
    number = reader.start(fetch(max_wait_ms=WAIT_MS), 4)
    world.advance(WAIT_MS - 1)
    pass_unnoticed(world, 2 + LATE_MS)
    world.client().ask(produce(b"record"), 3)
    (part,) = fetched(reader.look()[number]).values()
    assert (part.high_watermark, part.records) == (0, b"")


def test_what_a_waiting_request_got_in_time_is_not_taken_from_it(world: World) -> None:
    """The record came before the deadline; only the look at who waits for it comes after."""
    world.core.gathers = True
    reader = world.client()
    number = reader.start(fetch(max_wait_ms=WAIT_MS), 4)
    world.advance(WAIT_MS - 1)
    world.client().start(produce(b"record"), 3)
    pass_unnoticed(world, 2 + LATE_MS)
    Client(world, "other", "127.0.0.1").send(DELETE, 2)
    (part,) = fetched(reader.look()[number]).values()
    assert part.high_watermark == 1


def test_work_that_is_wanted_at_once_has_its_turn_behind_requests(world: World) -> None:
    """As a coordinator that loads: its alarm rings, and is wanted again."""
    slices: list[int] = []

    def go_on(now_ms: int) -> None:
        slices.append(now_ms)
        alarm.soon()

    alarm = world.broker.scheduler.alarm(go_on)
    alarm.soon()
    world.core.step(EXPIRED, world.clock.now_ms())
    assert (world.core.effects.wake_ms, len(slices)) == (0, 1)
    pass_unnoticed(world, 5)
    world.client().ask(DELETE, 2)
    assert len(slices) == 1


def test_slices_of_a_long_request_have_their_turn_behind_others(world: World) -> None:
    done: list[None] = []

    def steps() -> Steps:
        while True:
            done.append(None)
            yield

    world.broker.scheduler.start_task("somebody", steps())
    world.core.step(EXPIRED, world.clock.now_ms())
    assert world.core.effects.wake_ms == 0
    before = len(done)
    pass_unnoticed(world, 5)
    world.client().ask(DELETE, 2)
    assert len(done) == before
