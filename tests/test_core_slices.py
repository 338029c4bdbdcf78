"""What takes long is done in slices: others are answered in between, and answers keep their order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from kbroker.api import groups, topics
from kbroker.api.routes import ROUTES
from kbroker.channel import Request
from kbroker.config.limits import (
    ELEMENTS_AT_ONCE,
    LARGE_PRODUCE_BYTES,
    LARGE_REQUEST_BYTES,
    LONG_PRODUCE_BYTES,
    MANY_PARTITIONS,
    PARTITIONS_PER_FETCH,
)
from kbroker.controller import topics as deletions
from kbroker.controller.epoch import STEP_PARTITIONS
from kbroker.core import EXPIRED
from kbroker.timing import scheduler
from kbroker.timing.scheduler import SLICE_STEPS
from protocol.errors import ErrorCode
from protocol.frames import KEPT_BYTES
from protocol.headers import encode_request_header
from protocol.message import Message
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    TopicPartitions,
)
from tests.requests import VERSIONS, batch, fetch, produce
from tests.test_cost import LineCount
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


def keys(count: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=[f"key-{number}" for number in range(count)])


def test_another_client_is_answered_while_a_large_request_is_under_way(world: World) -> None:
    large, other = world.client(), world.client()
    number = large.send(keys(20_000), 4)
    other.ask(produce(b"v"), 9)
    before = dict(large.look())
    world.advance(0)
    assert (before, len(large.look()[number].coordinators)) == ({}, 20_000)


def test_no_event_takes_more_than_a_slice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    runtime = world.broker.groups.runtime
    partition_of = runtime.partition_of
    monkeypatch.setattr(runtime, "partition_of", lambda key: looked_up.append(key) or partition_of(key))
    world.client().ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["a"]), 4)
    world.settle()
    world.client().send(keys(5_000), 4)
    most = 0
    while world.broker.scheduler.is_slicing:
        before = len(looked_up)
        world.core.step(EXPIRED, world.clock.now_ms())
        most = max(most, len(looked_up) - before)
    assert 0 < most <= SLICE_STEPS


def test_what_comes_behind_a_long_request_waits_for_it(world: World) -> None:
    client = world.client()
    first = client.send(keys(20_000), 4)
    full = client.channel.full
    client.send(VERSIONS, 3)
    world.advance(0)
    client.look()
    assert (full, client.order, client.channel.full) == (True, [first, first + 1], False)


def filled(size_bytes: int) -> tuple[DeleteGroupsRequest, int]:
    """A request that fills a frame of this size, and how many groups it names."""
    groups = [f"group-{number:04}" for number in range(1_000)]
    request = DeleteGroupsRequest(groups_names=groups)
    head = encode_request_header(type(request), 1, 1, "test")
    groups[0] += "x" * (size_bytes - len(head) - len(request.encode(1)))
    return request, len(groups)


@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "behind another"])
@pytest.mark.parametrize("over_bytes", [0, 1])
def test_the_largest_request_that_is_done_in_one_go(
    world: World, over_bytes: int, is_held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.timing.scheduler.FIRST_STEPS", 1)
    monkeypatch.setattr("kbroker.api.groups.GROUPS_DELETED_AT_ONCE", 1_000)
    client = world.client()
    if is_held:
        client.send(fetch(max_wait_ms=60_000), 12)
    request, groups = filled(LARGE_REQUEST_BYTES + over_bytes)
    number = client.start(request, 1)
    if is_held:
        world.client().start(produce(b"v"), 9)
    in_one_go = number in client.look()
    world.advance(0)
    assert (in_one_go, len(client.look()[number].results)) == (over_bytes == 0, groups)


def test_too_many_elements_end_the_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ROUTES[FindCoordinatorRequest.api], "elements", 1000)
    client = world.client()
    client.send(keys(5_000), 4)
    world.advance(0)
    assert "more elements than are taken" in client.closing


@pytest.mark.parametrize(("count", "closes"), [(ELEMENTS_AT_ONCE, False), (ELEMENTS_AT_ONCE + 1, True)])
def test_what_is_not_done_in_slices_may_have_fewer_elements(world: World, count: int, closes: bool) -> None:
    client = world.client()
    client.send(DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(count)]), 2)
    world.advance(0)
    assert ("more elements than are taken" in client.closing) is closes


def test_what_is_wrong_with_many_settings_is_told_of_some(world: World) -> None:
    configs = [AlterableConfig(name=f"segment.byte-{number}", value="1") for number in range(3_000)]
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=configs)
    client = world.client()
    number = client.send(AlterConfigsRequest(resources=[resource], validate_only=False), 1)
    world.advance(0)
    (answer,) = client.look()[number].responses
    text = answer.error_message
    assert (answer.error_code, "did you mean segment.bytes?" in text) == (ErrorCode.INVALID_CONFIG, True)
    assert (text[-11:], len(text) < 1_200) == ("; 2980 more", True)


def test_news_of_a_topic_are_not_looked_for_in_all_that_are_made_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    has_leaders = topics._has_leaders
    monkeypatch.setattr(topics, "_has_leaders", lambda *which: looked.append(which) or has_leaders(*which))
    made = [
        CreatableTopic(name=f"t-{at}", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for at in range(100)
    ]
    client = world.client()
    number = client.send(CreateTopicsRequest(topics=made, timeout_ms=60_000), 5)
    world.advance(0)
    codes = [topic.error_code for topic in client.look()[number].topics]
    assert (codes, len(looked) <= 3 * len(made)) == ([0] * 100, True)


def test_a_request_of_a_client_that_has_gone_is_given_up(world: World) -> None:
    client = world.client()
    client.send(keys(20_000), 4)
    client.hang_up()
    world.core.step(EXPIRED, world.clock.now_ms())
    assert not world.broker.scheduler.is_slicing


def once(client: Client, request: object, version: int, part: str) -> int:
    return len(getattr(client.ask(request, version), part))  # type: ignore[arg-type]


class Named(list[str]):
    """Names that know how far somebody has gone through them."""

    seen = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self.seen += 1
            yield name


def call_of(world: World, request: type[Message], version: int) -> Request:
    return Request(
        world.broker, world.client().channel, ROUTES[request.api or 0], version, 1, None, world.clock.now_ms()
    )


def with_offsets_topic(world: World) -> None:
    """Else FindCoordinator waits until it is there."""
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)


def test_names_are_not_gone_through_before_the_first_break(world: World) -> None:
    with_offsets_topic(world)
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=Named("abcdefgh"))
    next(groups.find_coordinator(find, call_of(world, FindCoordinatorRequest, 4)))  # type: ignore[arg-type]
    describe = DescribeGroupsRequest(groups=Named("abcdefgh"))
    next(groups.describe_groups(describe, call_of(world, DescribeGroupsRequest, 5)))
    assert (find.coordinator_keys.seen, describe.groups.seen) == (1, 1)  # type: ignore[attr-defined]


class StepCount:
    """Lines run in each step of a long request: nothing else is done in between."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        monkeypatch.setattr(scheduler, "SLICE_STEPS", 1)
        monkeypatch.setattr(scheduler, "FIRST_STEPS", 0)

    def most_lines(self, request: Message, version: int) -> int:
        """Of all steps from the request to its answer."""
        world, client = self.world, self.world.client()
        frame = encode_request_header(type(request), version, 1, None) + request.encode(version)
        with LineCount() as count:
            world.core.receive(client.channel, memoryview(bytearray(frame)), world.clock.now_ms())
        most = count.lines
        for _ in range(100_000):
            if client.channel.out:
                return most
            with LineCount() as count:
                if not world._next_event():
                    world.core.step(EXPIRED, world.clock.now_ms())
            most = max(most, count.lines)
        raise AssertionError(f"no answer; closing: {client.closing!r}")


FEW_LINES = (
    12_000  # a millisecond or two; of 128 elements that are decoded or encoded at once, and what a step may need
)


@pytest.fixture
def steps(world: World, monkeypatch: pytest.MonkeyPatch) -> StepCount:
    world.create("wide", partitions=2)
    for request, version in ((keys(1), 4),):  # what is compiled when it is first used
        world.client().ask(request, version)
    return StepCount(world, monkeypatch)


@pytest.mark.parametrize("size_bytes", [LARGE_PRODUCE_BYTES, 2 * LARGE_PRODUCE_BYTES])
def test_a_large_produce_is_neither_gone_through_nor_refused_in_one_step(steps: StepCount, size_bytes: int) -> None:
    nothing = [PartitionProduceData(index=each, records=None) for each in range(size_bytes // 8)]
    topics = [TopicProduceData(name="made-up", partition_data=nothing)]
    assert steps.most_lines(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 7) < FEW_LINES


def commit(partitions: int, topic: str = "wide") -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(partition_index=each, committed_offset=each, committed_metadata="")
        for each in range(partitions)
    ]
    return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=parts)])


@pytest.fixture
def committed(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A group whose offsets are written and read few at a time."""
    monkeypatch.setattr(groups, "OFFSETS_COMMITTED_AT_ONCE", 100)
    monkeypatch.setattr(groups, "OFFSETS_FETCHED_AT_ONCE", 100)
    monkeypatch.setattr("kbroker.core.LARGE_REQUEST_BYTES", 1_000)
    world.create("wide", partitions=350)
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)
    return world


def test_a_commit_of_many_offsets_is_written_in_portions_and_answered_as_one(committed: World) -> None:
    client = committed.client()
    number = client.send(commit(352), 8)
    committed.advance(0)
    (topic,) = client.look()[number].topics
    codes = [(part.partition_index, part.error_code) for part in topic.partitions]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [(index, 0 if index < 350 else unknown) for index in range(352)]
    index = committed.broker.groups.runtime.partition_of("g")
    log = committed.partition("__consumer_offsets", index).log
    assert log is not None
    assert [end - begin for begin, end in pairwise([0, 100, 200, 300, log.log_end_offset])] == [100, 100, 100, 50]


def test_a_commit_in_portions_waits_for_the_last_of_them(committed: World) -> None:
    partition = committed.partition("__consumer_offsets", committed.broker.groups.runtime.partition_of("g"))
    partition.isr = (1, 2)
    client = committed.client()
    number = client.send(commit(350), 8)
    committed.advance(0)
    before = number in client.look()
    partition.isr = (1,)
    partition.advance_high_watermark()
    committed.replicas.touched.append(partition)
    committed.core.step(EXPIRED, committed.clock.now_ms())
    assert (before, number in client.look()) == (False, True)


def test_offsets_of_a_group_are_read_in_slices_and_all_of_them_once(committed: World) -> None:
    client = committed.client()
    client.send(commit(350), 8)
    committed.advance(0)
    number = client.send(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 9), 8)
    steps = committed.broker.scheduler.tasks
    committed.advance(0)
    (group,) = client.look()[number].groups
    offsets = [part.committed_offset for part in group.topics[0].partitions]
    old = client.send(OffsetFetchRequest(group_id="g", topics=None), 5)
    committed.advance(0)
    (topic,) = client.look()[old].topics
    assert (steps, offsets, len(topic.partitions)) == (0, list(range(350)), 350)


def test_many_offsets_are_neither_written_nor_read_in_one_step(
    world: World, steps: StepCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "OFFSETS_COMMITTED_AT_ONCE", 100)
    world.create("many", partitions=1_200)
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)
    steps.most_lines(commit(1_200, "many"), 8)  # compiles
    assert steps.most_lines(commit(1_200, "many"), 8) < 2 * FEW_LINES
    steps.most_lines(OffsetFetchRequest(group_id="g", topics=None), 5)
    assert steps.most_lines(OffsetFetchRequest(group_id="g", topics=None), 5) < FEW_LINES


def test_a_late_answer_to_a_large_request_is_written_in_slices(
    world: World, steps: StepCount, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.client().send(FindCoordinatorRequest(key="g", key_type=0), 3)
    world.advance(0)
    written: list[Message] = []

    def noted(message: Message) -> list[Any]:
        written.append(message)
        return message.encode_parts(2)

    monkeypatch.setitem(ROUTES[DeleteGroupsRequest.api or 0].writers, 2, noted)
    steps.most_lines(DeleteGroupsRequest(groups_names=[f"group-{number}" for number in range(2_000)]), 2)
    assert written == []


def test_what_is_named_twice_is_looked_at_once(world: World) -> None:
    client = world.client()
    broker = DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    assert once(client, DescribeConfigsRequest(resources=[broker] * 100), 1, "results") == 1
    assert once(client, DescribeGroupsRequest(groups=["g"] * 100), 5, "groups") == 1
    assert once(client, MetadataRequest(topics=[MetadataRequestTopic(name="t")] * 100), 9, "topics") == 1
    assert once(client, FindCoordinatorRequest(key_type=0, coordinator_keys=["g"] * 100), 4, "coordinators") == 1


def many(count: int, first: int = 0, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(first, first + count)
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="made-up", partitions=partitions)],
    )


def fetched(world: World, client: Client, request: FetchRequest) -> tuple[int, int]:
    """Error code and session id."""
    number = client.send(request, 12)
    world.advance(0)
    answer = client.look()[number]
    return answer.error_code, answer.session_id


def test_a_fetch_of_too_many_partitions_is_refused(world: World) -> None:
    client = world.client()
    assert fetched(world, client, many(PARTITIONS_PER_FETCH + 1)) == (ErrorCode.INVALID_REQUEST, 0)


def test_a_session_that_has_grown_too_large_is_forgotten(world: World) -> None:
    client = world.client()
    code, session_id = fetched(world, client, many(PARTITIONS_PER_FETCH))
    grown, _ = fetched(world, client, many(1, PARTITIONS_PER_FETCH, session_id, 1))
    assert (code, grown, world.broker.fetch_sessions.partitions) == (0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)


def test_the_largest_fetch_session_goes_when_all_remember_too_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.broker.fetch_sessions.PARTITIONS_IN_FETCH_SESSIONS", 30)
    client = world.client()
    _, small = fetched(world, client, many(5))
    _, large = fetched(world, client, many(20))
    _, newest = fetched(world, client, many(10))
    codes = [fetched(world, client, many(0, 0, each, 1))[0] for each in (small, large, newest)]
    assert codes == [0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0]


def wide(count: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name="wide", num_partitions=count, replication_factor=1, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)


def most_at_once(world: World, done: list[object], number: int, client: Client) -> int:
    """The most that a single event has added to `done` until the answer was there."""
    most = 0
    while number not in client.look():
        before = len(done)
        if world.broker.scheduler.is_slicing:
            world.core.step(EXPIRED, world.clock.now_ms())
        else:
            world.step()
        most = max(most, len(done) - before)
    return most


def test_a_topic_of_many_partitions_is_made_and_deleted_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    written: list[object] = []
    deleted: list[object] = []
    get_or_create, apply, delete = world.logs.get_or_create, world.ensemble.tree.apply, world.logs.delete
    monkeypatch.setattr(world.logs, "get_or_create", lambda *a, **b: opened.append(a) or get_or_create(*a, **b))
    monkeypatch.setattr(world.ensemble.tree, "apply", lambda *a: written.append(a) or apply(*a))
    monkeypatch.setattr(world.logs, "delete", lambda *a, **b: deleted.append(a) or delete(*a, **b))
    client = world.client()
    made = client.start(wide(2_000), 5)
    most_opened = most_at_once(world, opened, made, client)
    gone = client.start(DeleteTopicsRequest(topic_names=["wide"], timeout_ms=60_000), 5)
    most_deleted = most_at_once(world, deleted, gone, client)
    assert client.answers[made].topics[0].error_code == client.answers[gone].responses[0].error_code == 0
    assert (len(opened), most_opened <= SLICE_STEPS) == (2_000, True)
    assert (len(deleted), most_deleted <= SLICE_STEPS) == (2_000, True)
    world.settle()


def test_what_has_been_deleted_of_many_partitions_is_looked_at_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    resume = deletions.resume_deletions
    monkeypatch.setattr(deletions, "resume_deletions", lambda *asked: looked.append(asked) or resume(*asked))
    client = world.client()
    most_at_once(world, [], client.start(wide(1_000), 5), client)
    gone = client.start(DeleteTopicsRequest(topic_names=["wide"], timeout_ms=60_000), 5)
    most = most_at_once(world, looked, gone, client)
    assert (client.answers[gone].responses[0].error_code, len(looked) > 5, most) == (0, True, 1)


def test_the_store_is_told_of_many_partitions_a_few_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    submit = world._store.submit
    monkeypatch.setattr(world._store, "submit", lambda steps, token: sizes.append(len(steps)) or submit(steps, token))
    client = world.client()
    client.send(wide(2_000), 5)
    world.advance(0)
    assert (client.look() != {}, max(sizes) <= 2 * STEP_PARTITIONS + 1) == (True, True)


def test_large_sessions_go_with_their_connections_where_all_remember_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.broker.fetch_sessions.PARTITIONS_IN_FETCH_SESSIONS", 2_000)
    small, large, other = world.client(), world.client(), world.client()
    _, kept = fetched(world, small, many(8))
    small.hang_up()
    _, gone = fetched(world, large, many(MANY_PARTITIONS + 1))
    large.hang_up()
    codes = [fetched(world, other, many(0, 0, each, 1))[0] for each in (kept, gone)]
    assert codes == [0, ErrorCode.FETCH_SESSION_ID_NOT_FOUND]


def test_errors_in_a_long_answer_are_counted_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.broker.counters.AT_ONCE", 10)
    breaks = []
    counters = world.broker.counters
    in_slices = counters.note_errors_in_slices
    monkeypatch.setattr(
        type(counters), "note_errors_in_slices", lambda self, *a: (breaks.append(1) for _ in in_slices(*a))
    )
    client = world.client()
    unknown = FindCoordinatorRequest(key_type=7, coordinator_keys=[f"key-{number}" for number in range(5_000)])
    client.send(unknown, 4)
    world.advance(0)
    assert (len(breaks) > 400, counters.errors[10, int(ErrorCode.INVALID_REQUEST)]) == (True, 5_000)


def test_a_large_request_counts_as_what_it_becomes_until_it_is_answered(world: World) -> None:
    with_offsets_topic(world)
    client = world.client()
    client.send(keys(20_000), 4)
    world.core.step(EXPIRED, world.clock.now_ms())
    while not client.channel.held_bytes > 20_000 * 8 * 8:  # it is decoded
        world.core.step(EXPIRED, world.clock.now_ms())
    world.advance(0)
    client.look()
    assert client.channel.held_bytes == 0


def test_a_large_produce_counts_as_its_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.core.LONG_PRODUCE_BYTES", 100_000)
    monkeypatch.setattr("kbroker.timing.scheduler.FIRST_STEPS", 2)
    client = world.client()
    client.start(produce(bytes(900_000)), 9)
    under_way = client.channel.held_bytes
    world.advance(0)
    client.look()
    assert (900_000 < under_way < 1_000_000, client.channel.held_bytes) == (True, 0)


def test_a_large_produce_is_not_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.core.LONG_PRODUCE_BYTES", 100_000)
    world.client().ask(produce(b"v"), 9)
    client = world.client()
    records = batch(bytes(900_000))
    request = produce(records=records)
    frame = bytearray(encode_request_header(type(request), 9, 1, None) + request.encode(9))
    at = frame.index(records)
    world.core.receive(client.channel, memoryview(frame), world.clock.now_ms())
    world.advance(0)
    assert frame[at : at + 8] == (1).to_bytes(8, "big")  # the offset that it has in the log


def test_a_large_produce_appends_one_batch_before_others_have_their_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take milliseconds: of a megabyte, on a disk that is busy."""
    monkeypatch.setattr("kbroker.core.LONG_PRODUCE_BYTES", 1_000)
    world.create("some", partitions=10)
    data = [PartitionProduceData(index=index, records=batch(bytes(2_000))) for index in range(10)]
    client = world.client()
    topics = [TopicProduceData(name="some", partition_data=data)]
    number = client.start(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 7)
    appended = sum(bool(world.partition("some", index).log.log_end_offset) for index in range(10))  # type: ignore[union-attr]
    world.advance(0)
    assert (appended, len(client.look()[number].responses[0].partition_responses)) == (1, 10)


def test_a_small_request_is_not_behind_large_ones_of_its_address(world: World) -> None:
    with_offsets_topic(world)
    large, small = world.client(), world.client()
    first = large.send(keys(20_000), 4)
    second = small.send(keys(40), 4)
    while second not in small.look():
        world.core.step(EXPIRED, world.clock.now_ms())
    assert first not in large.look()


def test_memory_that_a_frame_keeps_is_what_the_core_takes_over() -> None:
    assert KEPT_BYTES == LONG_PRODUCE_BYTES


def test_what_many_partitions_are_answered_takes_few_lines_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.core.LARGE_PRODUCE_BYTES", 10_000)
    data = [PartitionProduceData(index=index, records=None) for index in range(3_000)]
    topics = [TopicProduceData(name="made-up", partition_data=data)]
    client = world.client()
    number = client.start(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 7)
    most = 0
    while not client.channel.out:
        with LineCount() as count:
            world.core.step(EXPIRED, world.clock.now_ms())
        most = max(most, count.lines)
    assert (most <= 30 * len(data), len(client.look()[number].responses[0].partition_responses)) == (True, len(data))


def touched_by(world: World, polls: list[Client]) -> list[int]:
    """How many of these clients have an answer after each event, from a record on that wakes them until all have."""
    world.client().start(produce(b"v"), 9)
    counts = [sum(bool(each.look()) for each in polls)]
    while counts[-1] < len(polls):
        world.core.step(EXPIRED, world.clock.now_ms())
        counts.append(sum(bool(each.look()) for each in polls))
    return counts


def test_many_that_wait_for_one_partition_are_woken_in_slices(world: World) -> None:
    polls = [world.client() for _ in range(5 * SLICE_STEPS)]
    for each in polls:
        each.send(fetch(max_wait_ms=60_000), 12)
    counts = touched_by(world, polls)
    assert max(later - before for before, later in pairwise([0, *counts])) <= SLICE_STEPS


def test_a_partition_touched_while_its_watchers_are_woken_is_looked_at_again(world: World) -> None:
    patient = world.client()
    patient.send(fetch(max_wait_ms=60_000, min_bytes=200), 12)
    others = [world.client() for _ in range(3 * SLICE_STEPS)]
    for each in others:
        each.send(fetch(max_wait_ms=60_000, min_bytes=200), 12)
    for _ in range(5):
        world.client().send(produce(b"v"), 9)
    world.advance(0)
    assert all(each.look() for each in (patient, *others))


def test_many_that_wait_once_more_are_woken_once_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.core.WOKEN_AT_ONCE", 1)
    polls = [world.client() for _ in range(3)]
    for offset in range(2):
        numbers = [each.send(fetch(offset, max_wait_ms=60_000), 12) for each in polls]
        world.client().send(produce(b"v"), 9)
        world.advance(0)
        assert all(number in each.look() for number, each in zip(numbers, polls, strict=True))


def test_many_whose_time_is_up_are_answered_in_slices(world: World) -> None:
    polls = [world.client() for _ in range(3 * SLICE_STEPS)]
    for each in polls:
        each.send(fetch(max_wait_ms=1_000), 12)
    polls[-1].hang_up()
    world.clock.advance(1_500)
    world.core.step(EXPIRED, world.clock.now_ms())
    at_first = sum(bool(each.look()) for each in polls)
    world.advance(0)
    assert (at_first < len(polls) / 2, all(each.look() for each in polls[:-1])) == (True, True)


def test_an_address_that_has_parked_much_is_answered_early_and_others_are_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.core.PARKED_PER_ADDRESS", 10)
    for _ in range(20):
        world.client(host="10.0.0.66").send(fetch(max_wait_ms=60_000), 12)
    other = world.client(host="10.0.0.7")
    poll = other.send(fetch(max_wait_ms=60_000), 12)
    parked = len(world.core._purgatory)
    assert (parked, poll in other.look()) == (11, False)


def test_what_an_address_has_parked_is_forgotten_with_it(world: World) -> None:
    client = world.client()
    for _ in range(5):
        client.send(fetch(max_wait_ms=60_000), 12)
    client.hang_up()
    gone = dict(world.core._parked_by)
    poll = world.client()
    poll.send(fetch(max_wait_ms=100), 12)
    world.advance(1_000)
    assert (gone, sum(world.core._parked_by.values()), bool(poll.look())) == ({}, 0, True)


def test_a_connection_with_many_parked_requests_is_answered_early_before_others_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.core.PARKED_OPERATIONS", 20)
    greedy, modest = world.client(), world.client()
    for _ in range(15):
        greedy.send(fetch(max_wait_ms=60_000), 12)
    polls = [modest.send(fetch(max_wait_ms=60_000), 12) for _ in range(2)]
    world.create("another")
    assert ({*polls} & modest.look().keys(), len(world.core._purgatory)) == (set(), 12)


def test_many_topics_are_deleted_in_slices(world: World, steps: StepCount) -> None:
    there = [f"t{number}" for number in range(300)]
    topics = [
        CreatableTopic(name=each, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for each in there
    ]
    world.client().send(CreateTopicsRequest(topics=topics, timeout_ms=60_000), 5)
    world.advance(0)
    unknown = [f"unknown-{number}" for number in range(1_500)]
    most = steps.most_lines(DeleteTopicsRequest(topic_names=[*there, *unknown], timeout_ms=60_000), 5)
    assert (there[0] in world.plane.cache.topics, most < 2 * FEW_LINES) == (False, True)


def test_leaders_of_many_partitions_are_elected_in_slices(world: World, steps: StepCount) -> None:
    named = [TopicPartitions(topic="unknown", partitions=list(range(3_000)))]
    request = ElectLeadersRequest(topic_partitions=named, timeout_ms=60_000)
    assert steps.most_lines(request, 2) < FEW_LINES


def test_partitions_named_twice_are_looked_for_in_slices(steps: StepCount) -> None:
    partitions = [ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(6_500)]
    topics = [ListOffsetsTopic(name="made-up", partitions=partitions)]
    request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics)
    assert steps.most_lines(request, 7) < FEW_LINES


def test_a_fetch_of_many_partitions_is_neither_begun_nor_answered_in_one_step(steps: StepCount) -> None:
    partitions = [FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1) for each in range(3_000)]
    topics = [FetchTopic(topic="made-up", partitions=partitions)]
    request = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics)
    assert steps.most_lines(request, 12) < FEW_LINES
