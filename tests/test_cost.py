"""What a request costs, counted so that no machine matters: lines of Python run, and blocks of memory kept.

A ratchet. Lines are those of kbroker and protocol, generated codecs included, from a frame to its encoded answer in
a warm broker; what stands in for the disk and the walker of records (compiled where it counts) is left out. Counts
differ a little between versions of Python: a limit has `SLACK` over what 3.11 counts. Whoever makes a scenario
cheaper lowers its limit, and a test insists; whoever makes one dearer says in the commit what for.
"""

from __future__ import annotations

import gc
import struct
import sys
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import pytest

from benchmarks.harness.group_rows import HEARTBEAT_VERSION, MEMBERS_TOPIC, Member
from benchmarks.harness.wire import CLIENT_ID, batch, fetch_frame, produce_frame
from benchmarks.harness.wire import frame as frame_of
from kbroker.channel import Channel
from kbroker.config.broker import AUTHORIZERS
from kbroker.config.limits import LONG_POLL_STEP_MS
from kbroker.replica.partition import LeaderState
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.security import AclCreation, CreateAclsRequest
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from protocol.messages.streams_groups import StreamsGroupHeartbeatRequest
from protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch
from tests.groups.streams.theatre import subtopology, topology
from tests.quotas import alter, altered
from tests.world import World

if TYPE_CHECKING:
    from kbroker.broker.acl_authorizer import AclAuthorizer

ROOT = str(Path(__file__).parent.parent)
COUNTED = (f"{ROOT}/kbroker/", f"{ROOT}/protocol/", "<")
LEFT_OUT = (
    f"{ROOT}/kbroker/sim/",
    f"{ROOT}/protocol/records/_walker.py",
    f"{ROOT}/protocol/records/_converter.py",
    "<frozen",
    "<string>",
)
SLACK = 1.08
ANSWER_AT = 9  # behind its size, the correlation id, and no tagged fields
WARM_UP = 3
ACCESS_RULES = 1_000

LINES = {
    "produce one record": 223,
    "produce 100 records in a batch": 242,
    "produce one record to each of 100 partitions": 7555,
    "produce one record, acks=all": 255,
    "fetch a log": 316,
    "fetch at the end, nothing to wait for": 252,
    "list where a log ends": 184,
}
TRANSACTION_LINES = 1783  # AddPartitionsToTxn 3, Produce 11 of one record, EndTxn 4
QUOTA_LINES = {"produce one record": 6, "fetch a log": 23}  # on top, with quotas of bytes
POLL_LINES, SHARED_POLL_LINES = 640, 405
IN_A_SESSION = 20  # partitions, of which a fetch names one
SESSION_LINES = {"a consumer": 1410, "a follower": 1175}
SESSION_VERSION = 12
FOLLOWER = 2
HEARTBEAT_LINES = {"consumer": 35, "share": 35, "streams": 456}  # of a member that says no more than that it lives
GROUP_PARTITIONS = 50
JOINING_MEMBERS = 20
ROUND_LINES = {  # of a member of a group in which all join at the same time, with a partition for each
    "to join": 977,
    "to hear of a target that another member owns yet": 620,
    "to be given a partition": 696,
    "to say that it has it": 353,
}


def frames() -> dict[str, bytes]:
    one, many = batch(1, 100), batch(100, 100)
    log, at = fetch_frame("t", max_wait_ms=500, partition_bytes=1 << 20)
    struct.pack_into(">q", log, at, 0)
    end, at = fetch_frame("empty", max_wait_ms=0, partition_bytes=1 << 20)
    struct.pack_into(">q", end, at, 0)
    asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
    requests = (
        produce_frame("t", [one]),
        produce_frame("t", [many]),
        produce_frame("hundred", [one] * 100),
        produce_frame("t", [one], acks=-1),
        bytes(log),
        bytes(end),
        frame_of(ListOffsetsRequest(replica_id=-1, topics=[asked]), 9),
    )
    return dict(zip(LINES, requests, strict=True))


@pytest.fixture(scope="module")
def world() -> World:
    """What is produced is in it from the start: any of the tests may be the first to ask, or the only one."""
    return prepared(World())


@pytest.fixture(scope="module")
def ruled_world() -> World:
    """The same, with many access rules, one of which lets every client do everything."""
    world = prepared(World(authorizer_class_name=AUTHORIZERS[0], super_users="User:ANONYMOUS"))
    rules = [
        AclCreation(
            resource_type=2,
            resource_name=f"x{number}",
            resource_pattern_type=3 + number % 2,
            principal=f"User:{number}",
            host="*",
            operation=2,
            permission_type=2 + number % 2,
        )
        for number in range(ACCESS_RULES)
    ]
    everyone = AclCreation(
        resource_type=2, resource_name="*", principal="User:*", host="*", operation=2, permission_type=3
    )
    client = world.client()
    number = client.send(CreateAclsRequest(creations=[*rules, everyone]), 3)
    world.advance(1000)
    assert {each.error_code for each in client.look()[number].results} == {0}
    cast("AclAuthorizer", world.broker.auth_helper.authorizer).rules.super_users = frozenset()
    return world


def prepared(world: World) -> World:
    world.create("t")
    world.create("empty")
    world.create("hundred", partitions=100)
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    for name, request in frames().items():
        if name.startswith("produce"):
            ask(world, channel, request)
            answered(channel)
    return world


class LineCount:
    """Lines of ours that run while this is in use."""

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> LineCount:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if name.startswith(COUNTED) and not name.startswith(LEFT_OUT) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._line


def ask(world: World, channel: Channel, frame: bytes) -> None:
    world.core.receive(channel, memoryview(bytearray(frame[4:])), world.clock.now_ms())
    assert world.core.effects.wake_ms >= 0


def answered(channel: Channel) -> None:
    assert channel.out
    assert not channel.closing
    channel.written()
    channel.sent()


def lines_of(world: World, frame: bytes) -> int:
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    for _ in range(WARM_UP):
        ask(world, channel, frame)
        answered(channel)
    with LineCount() as count:
        ask(world, channel, frame)
    answered(channel)
    return count.lines


@pytest.mark.parametrize("scenario", LINES)
def test_a_request_runs_no_more_lines_than_it_may(world: World, scenario: str) -> None:
    assert lines_of(world, frames()[scenario]) <= LINES[scenario] * SLACK


@pytest.mark.parametrize("scenario", [each for each in LINES if each != "list where a log ends"])
def test_a_thousand_access_rules_cost_the_data_path_next_to_nothing(
    world: World, ruled_world: World, scenario: str
) -> None:
    frame = frames()[scenario]
    assert lines_of(ruled_world, frame) <= lines_of(world, frame) * 1.03


@pytest.fixture
def metered_world() -> World:
    """The same as `world`, with quotas that no client reaches."""
    world = prepared(World())
    client = world.client("admin")
    client.ask(alter(altered({"client-id": None}, producer_byte_rate=1e12, consumer_byte_rate=1e12)), 1)
    world.settle()
    return world


@pytest.mark.parametrize("scenario", QUOTA_LINES)
def test_quotas_that_no_client_reaches_cost_a_few_lines_and_nothing_once_they_are_gone(
    world: World, metered_world: World, scenario: str
) -> None:
    frame = frames()[scenario]
    without = lines_of(world, frame)
    assert lines_of(metered_world, frame) <= without + QUOTA_LINES[scenario]
    metered_world.client("admin").ask(
        alter(altered({"client-id": None}, producer_byte_rate=None, consumer_byte_rate=None)), 1
    )
    metered_world.settle()
    assert abs(lines_of(metered_world, frame) - without) <= 1


def lines_of_a_poll(world: World, polls: int) -> float:
    """For each of some fetches that wait and get nothing: from the frame to the answer at the end of its wait.

    The least of the rounds: in every other one a timing wheel turns, wherever the clock of the world stood before.
    """
    frame, at = fetch_frame("empty", max_wait_ms=500, partition_bytes=1 << 20)
    struct.pack_into(">q", frame, at, 0)
    channels = [world.core.open("PLAINTEXT", "localhost", 1) for _ in range(polls)]
    counted = []
    for _ in range(WARM_UP):
        with LineCount() as count:
            for channel in channels:
                ask(world, channel, bytes(frame))
            world.advance(500 + LONG_POLL_STEP_MS + 1)
        for channel in channels:
            answered(channel)
        counted.append(count.lines)
    return min(counted) / polls


def test_a_poll_that_gets_nothing_runs_no_more_lines_than_it_may(world: World) -> None:
    assert lines_of_a_poll(world, 1) <= POLL_LINES * SLACK


def test_polls_that_end_together_share_the_waking_up(world: World) -> None:
    assert lines_of_a_poll(world, 20) <= SHARED_POLL_LINES * SLACK


def session_frames(world: World, reader: str, count: int) -> list[bytes]:
    """The next fetches of a session on the partitions of `followed`; each names the first, where there is a batch."""

    def asked(session_id: int, epoch: int, indices: range) -> FetchRequest:
        partitions = [
            FetchPartition(
                partition=index,
                fetch_offset=0,
                partition_max_bytes=1 << 20,
                log_start_offset=0,
                current_leader_epoch=5 if reader == "a follower" else -1,
            )
            for index in indices
        ]
        return FetchRequest(
            replica_id=FOLLOWER if reader == "a follower" else -1,
            max_wait_ms=0,
            min_bytes=1,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(topic="followed", partitions=partitions)],
        )

    begun = world.client().ask(asked(0, 0, range(IN_A_SESSION)), SESSION_VERSION)
    assert begun.session_id
    return [frame_of(asked(begun.session_id, epoch, range(1)), SESSION_VERSION) for epoch in range(1, count + 1)]


@pytest.fixture(scope="module")
def followed() -> World:
    """A topic that is led here, with a follower in sync, and a batch in its first partition."""
    world = World()
    world.create("followed", partitions=IN_A_SESSION)
    state, topic_id = LeaderState(1, 1, 5, (1, FOLLOWER), 5, (1, FOLLOWER)), world.topic_id("followed")
    for index in range(IN_A_SESSION):
        world.replicas.become("followed", index, topic_id, state, is_new=False)
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    ask(world, channel, produce_frame("followed", [batch(1, 100)]))
    answered(channel)
    return world


@pytest.mark.parametrize("reader", SESSION_LINES)
def test_a_fetch_in_a_session_runs_no_more_lines_than_it_may(followed: World, reader: str) -> None:
    channel = followed.core.open("PLAINTEXT", "localhost", 1)
    for request in session_frames(followed, reader, WARM_UP):
        with LineCount() as count:
            ask(followed, channel, request)
        answered(channel)
    assert count.lines <= SESSION_LINES[reader] * SLACK


def first_heartbeat(kind: str) -> tuple[Any, int]:
    """What a member says to join, and in which version."""
    told: dict[str, Any] = {"group_id": kind, "member_id": "m", "member_epoch": 0}
    if kind == "share":
        return ShareGroupHeartbeatRequest(**told, subscribed_topic_names=["read"]), 1
    told["rebalance_timeout_ms"] = 60_000
    if kind == "consumer":
        return ConsumerGroupHeartbeatRequest(**told, subscribed_topic_names=["read"], topic_partitions=[]), 1
    tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    shape = topology(subtopology(reads="read"))
    return StreamsGroupHeartbeatRequest(**told, **tasks, endpoint_information_epoch=0, topology=shape), 1


@pytest.mark.parametrize("kind", HEARTBEAT_LINES)
def test_a_heartbeat_of_an_idle_member_runs_few_lines_however_many_partitions_it_has(kind: str) -> None:
    world = World(offsets_topic_num_partitions="1", share_coordinator_state_topic_num_partitions="1")
    world.create("read", partitions=GROUP_PARTITIONS)
    client = world.client(CLIENT_ID, "localhost")
    client.send(FindCoordinatorRequest(key=kind), 3)
    world.advance(100)
    request, version = first_heartbeat(kind)
    for _ in range(6):  # until it has all that it is to have, and has said so
        number = client.send(request, version)
        world.advance(5_000)
        answer = client.look()[number]
        assert not answer.error_code, answer
        idle = {"group_id": kind, "member_id": "m", "member_epoch": answer.member_epoch}
        if kind == "consumer":
            owned = None if answer.assignment is None else answer.assignment.topic_partitions
            request = ConsumerGroupHeartbeatRequest(**idle, topic_partitions=owned)
        elif kind == "share":
            request = ShareGroupHeartbeatRequest(**idle)
        else:
            epoch = answer.endpoint_information_epoch
            request = StreamsGroupHeartbeatRequest(**idle, endpoint_information_epoch=epoch)
    assert lines_of(world, frame_of(request, version)) <= HEARTBEAT_LINES[kind] * SLACK


def lines_of_a_round(world: World, channel: Channel, members: list[Member]) -> float:
    """A heartbeat of each member: of the one in the middle, since one of them has a target computed for all."""
    counted = []
    for member in members:
        request = frame_of(member.heartbeat(), HEARTBEAT_VERSION)
        with LineCount() as count:
            ask(world, channel, request)
        member.told(ConsumerGroupHeartbeatResponse.decode(b"".join(channel.out), HEARTBEAT_VERSION, ANSWER_AT))
        answered(channel)
        counted.append(count.lines)
    return median(counted)


def test_the_members_of_a_group_come_to_its_target_in_no_more_lines_than_they_may() -> None:
    world = World(offsets_topic_num_partitions="1")
    world.create(MEMBERS_TOPIC, partitions=JOINING_MEMBERS)
    world.client(CLIENT_ID, "localhost").send(FindCoordinatorRequest(key="joined"), 3)
    world.advance(100)
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    members = [Member(cast("Any", channel), "joined", number) for number in range(JOINING_MEMBERS)]
    counted = [lines_of_a_round(world, channel, members)]
    world.advance(1_100)  # no second target is computed within a second
    counted += [lines_of_a_round(world, channel, members) for _ in list(ROUND_LINES)[1:]]
    newest = max(member.epoch for member in members)
    assert all(member.is_settled(newest) for member in members)
    over = {what: lines for what, lines in zip(ROUND_LINES, counted, strict=True) if lines > ROUND_LINES[what] * SLACK}
    assert not over


def transaction(name: str, producer_id: int, epoch: int, sequence: int) -> list[bytes]:
    """The frames of a transaction with one record, from its begin to its commit."""
    records = build_batch(
        [Record(0, 1000, None, b"x" * 100)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(records))])
    add = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
    )
    write = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=30_000, topic_data=[data])
    end = EndTxnRequest(transactional_id=name, producer_id=producer_id, producer_epoch=epoch, committed=True)
    return [frame_of(add, 3), frame_of(write, 11), frame_of(end, 4)]


def test_a_transaction_runs_no_more_lines_than_it_may() -> None:
    world = World(transaction_state_log_num_partitions="1")
    world.create("t")
    client = world.client()
    client.send(FindCoordinatorRequest(key="one", key_type=1), 3)
    world.advance(100)
    given = client.ask(InitProducerIdRequest(transactional_id="one", transaction_timeout_ms=60_000), 4)
    channel = world.core.open("PLAINTEXT", "localhost", 1)
    for sequence in range(WARM_UP):
        requests = transaction("one", given.producer_id, given.producer_epoch, sequence)
        with LineCount() as count:
            for request in requests:
                ask(world, channel, request)
                answered(channel)
    assert count.lines <= TRANSACTION_LINES * SLACK


def test_records_in_a_batch_cost_no_lines(world: World) -> None:
    requests = frames()
    one = lines_of(world, requests["produce one record"])
    assert (
        lines_of(world, requests["produce 100 records in a batch"]) <= one + 40
    )  # it is large enough for an index entry


@pytest.mark.parametrize("scenario", [name for name in LINES if "fetch" in name])
def test_an_answered_fetch_keeps_no_memory(world: World, scenario: str) -> None:
    channel, frame = world.core.open("PLAINTEXT", "localhost", 1), frames()[scenario]
    kept = []
    for _ in range(3):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(100):
            ask(world, channel, frame)
            answered(channel)
        gc.collect()
        kept.append((sys.getallocatedblocks() - before) / 100)
    assert min(kept) < 1


@pytest.mark.parametrize("scenario", LINES)
def test_a_request_leaves_nothing_to_the_collector(world: World, scenario: str) -> None:
    channel, frame = world.core.open("PLAINTEXT", "localhost", 1), frames()[scenario]
    ask(world, channel, frame)
    answered(channel)
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            ask(world, channel, frame)
            answered(channel)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_over_ten_thousand_requests_the_collectors_count_stays_where_it_is(world: World) -> None:
    channel, requests = world.core.open("PLAINTEXT", "localhost", 1), frames()
    both = [requests["produce one record"], requests["fetch at the end, nothing to wait for"]]
    rounds = 2_500
    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(2):
            for _ in range(rounds):
                for frame in both:
                    ask(world, channel, frame)
                    answered(channel)
            counts.append(gc.get_count()[0])  # containers that came and did not go
        assert counts[1] - counts[0] < rounds + 50  # the simulated disk remembers each write until it is durable
        assert gc.collect() == 0
    finally:
        gc.enable()
