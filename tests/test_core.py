"""The core: answers in order, back-pressure, hang-ups, waiting answers and their deadlines, failures as codes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import pytest

from kbroker.api.routes import ROUTES, Route
from kbroker.broker.address_authorizer import AddressAuthorizer
from kbroker.config.limits import REQUESTS_IN_FLIGHT_PER_CONNECTION
from kbroker.core import EXPIRED
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header
from protocol.message import Message
from protocol.messages.control import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from protocol.messages.handshake import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from tests.requests import VERSIONS, fetch, produce, produced
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t")
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


# ---- order


def test_an_answer_waits_for_the_answers_of_earlier_requests(client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=500), 12)
    client.send(VERSIONS, 3)
    assert client.look() == {}
    client.send(produce(b"v"), 9)
    client.look()
    assert client.order == [waiting, waiting + 1, waiting + 2]


def create(name: str) -> CreateTopicsRequest:
    wanted = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    return CreateTopicsRequest(topics=[wanted], timeout_ms=60_000)


def test_a_request_behind_another_is_begun_when_that_one_is_answered(world: World, client: Client) -> None:
    client.start(create("new"), 5)
    number = client.send(MetadataRequest(topics=[MetadataRequestTopic(name="new")]), 9)
    assert client.look()[number].topics[0].error_code == ErrorCode.NONE


def test_each_held_request_is_begun_after_the_one_before(world: World, client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=500), 12)
    for number in range(3):
        client.send(create(f"new{number}"), 5)
    assert "new0" not in world.plane.cache.topics
    world.advance(601)
    assert list(client.look()) == [waiting, waiting + 1, waiting + 2, waiting + 3]
    assert "new2" in world.plane.cache.topics


def test_produce_and_fetch_are_begun_behind_what_waits(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=500, topic="t", min_bytes=10_000), 12)
    client.send(create("new"), 5)
    client.send(produce(b"v"), 9)
    log = world.partition("t").log
    assert (log is not None and log.log_end_offset, client.look()) == (1, {})


def test_a_held_request_keeps_its_own_bytes(client: Client) -> None:
    client.send(fetch(max_wait_ms=500), 12)
    body = encode_request_header(MetadataRequest, 9, 7, "x") + MetadataRequest(topics=[]).encode(9)
    frame = bytearray(body)
    client._world.core.receive(client.channel, memoryview(frame), 0)
    frame[:] = bytes(len(frame))
    client._world.advance(601)
    assert not client.closing


def test_a_malformed_request_that_was_held_ends_the_connection_when_it_is_its_turn(
    world: World, client: Client
) -> None:
    waiting = client.send(fetch(max_wait_ms=500), 12)
    client.send_bytes(encode_request_header(MetadataRequest, 9, 7, "x") + b"\xff")
    before = client.closing
    world.advance(601)
    assert (before, "malformed Metadata" in client.closing, list(client.look())) == ("", True, [waiting])


def test_held_requests_count_against_what_a_connection_may_keep(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.channel.ANSWER_BYTES_PER_CONNECTION", 1000)
    client.send(fetch(max_wait_ms=1000), 12)
    client.send(MetadataRequest(topics=[MetadataRequestTopic(name="t" * 200)] * 6), 8)
    full = client.channel.full
    world.advance(1101)
    client.look()
    assert (full, client.channel.held_bytes) == (True, 0)


def test_a_held_request_of_a_gone_client_is_never_begun(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=500), 12)
    client.send(create("new"), 5)
    client.hang_up()
    world.advance(600)
    assert "new" not in world.plane.cache.topics


def test_a_parked_fetch_is_answered_by_an_append_on_another_connection(world: World, client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=500), 12)
    world.client().ask(produce(b"v"), 9)
    records = client.look()[waiting].responses[0].partitions[0].records
    assert bytes(records)[-2:] == b"v\0"


def test_a_channel_with_an_answer_from_elsewhere_is_dirty_once(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=500), 12)
    world.core.effects.take_writes()
    world.client().ask(produce(b"v"), 9)
    assert list(world.core.effects.take_writes()) == [client.channel]
    assert list(world.core.effects.take_writes()) == []


def test_a_parked_fetch_is_answered_at_its_deadline_and_not_before(world: World, client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=500), 12)
    world.advance(500)
    assert client.look() == {}
    world.advance(101)  # to the end of a step
    assert client.look()[waiting].responses[0].partitions[0].records == b""


def test_a_parked_fetch_waits_until_min_bytes_have_come(world: World, client: Client) -> None:
    waiting = client.send(fetch(min_bytes=200, max_wait_ms=60_000), 12)
    other = world.client()
    other.ask(produce(b"v" * 50), 9)
    assert client.look() == {}
    other.ask(produce(b"v" * 50), 9)
    assert waiting in client.look()


def test_the_deletion_of_a_topic_answers_who_waits_for_it(world: World, client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=60_000), 12)
    world.client().ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000), 4)
    answer = client.look()[waiting]
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_a_gone_client_has_not_taken_is_dropped(client: Client) -> None:
    client.send(VERSIONS, 3)
    client.hang_up()
    assert client.channel.out == []


def test_a_gone_client_leaves_nothing_behind(world: World, client: Client) -> None:
    client.send(fetch(max_wait_ms=60_000), 12)
    client.hang_up()
    world.client().ask(produce(b"v"), 9)
    world.advance(60_000)
    assert client.take() == b""
    assert client.channel not in world.core.effects.take_writes()


# ---- back-pressure


def test_a_connection_is_full_at_its_limit_of_requests_in_flight(client: Client) -> None:
    for _ in range(REQUESTS_IN_FLIGHT_PER_CONNECTION - 1):
        client.send(fetch(max_wait_ms=60_000), 12)
    assert not client.channel.full
    client.send(fetch(max_wait_ms=60_000), 12)
    assert client.channel.full


def test_a_full_connection_has_room_again_once_its_answers_have_left(world: World, client: Client) -> None:
    for _ in range(REQUESTS_IN_FLIGHT_PER_CONNECTION):
        client.send(fetch(max_wait_ms=1000), 12)
    world.advance(1101)
    assert len(client.look()) == REQUESTS_IN_FLIGHT_PER_CONNECTION
    assert not client.channel.full


def test_answers_behind_one_that_waits_count_as_unsent_bytes(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.channel.ANSWER_BYTES_PER_CONNECTION", 1000)
    client.send(fetch(max_wait_ms=1000), 12)
    answered = 0
    while not client.channel.full and answered < 50:
        client.send(fetch(max_wait_ms=0), 12)
        answered += 1
    assert answered < 20
    world.advance(1101)
    client.look()
    client.channel.sent()
    assert not client.channel.full


def test_answers_that_nobody_reads_count_until_they_are_sent(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.channel.ANSWER_BYTES_PER_CONNECTION", 3_000)
    answered_bytes = 0
    while not client.channel.full and answered_bytes < 10_000:
        client.send(VERSIONS, 3)
        answered_bytes += len(client.channel.out[-1])  # type: ignore[arg-type]
        client.channel.written()
        assert client.channel.unsent_bytes == answered_bytes
    assert 3_000 < answered_bytes < 4_000
    client.channel.sent()
    assert not client.channel.full


def test_records_from_files_do_not_count_as_unsent_bytes(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 100_000), 9)
    client.send(fetch(max_wait_ms=500), 12)
    assert client.channel.unsent_bytes < 1000


# ---- what is not a request


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0",
        bytes(7),
        struct.pack(">hhi", 0, 9, 1) + b"\0\xffx",
        struct.pack(">hhih", 0, 9, 1, -1) + b"\0\x05\x01",
    ],
    ids=["empty", "one byte", "half a header", "client id cut", "body cut"],
)
def test_a_malformed_frame_ends_the_connection(client: Client, frame: bytes) -> None:
    client.send_bytes(frame)
    assert client.closing
    assert client.take() == b""


@pytest.mark.parametrize(("key", "version"), [(9999, 0), (-1, 0), (0, 99), (1, -1), (0, 2)])
def test_what_is_not_served_ends_the_connection(client: Client, key: int, version: int) -> None:
    client.send_bytes(struct.pack(">hhih", key, version, 1, -1))
    assert client.closing


@pytest.mark.parametrize(("more_bytes", "closes"), [(0, False), (1, True)])
def test_only_a_produce_may_be_very_large(
    client: Client, monkeypatch: pytest.MonkeyPatch, more_bytes: int, closes: bool
) -> None:
    frame = encode_request_header(MetadataRequest, 9, 7, "x") + MetadataRequest(topics=[]).encode(9)
    monkeypatch.setattr("kbroker.core.REQUEST_BYTES_EXCEPT_PRODUCE", len(frame) - more_bytes)
    client.send_bytes(frame)
    assert bool(client.closing) is closes


@pytest.mark.parametrize("is_broker", [True, False])
def test_what_controllers_say_may_be_very_large_if_it_comes_from_a_broker(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch, is_broker: bool
) -> None:
    monkeypatch.setattr("kbroker.core.REQUEST_BYTES_EXCEPT_PRODUCE", 10)
    if not is_broker:
        world.broker.auth_helper.authorizer = AddressAuthorizer(
            world.plane, lambda host: [host], world.broker.give, world.broker.tell, alone=True, control_listener=""
        )
    number = client.send(UpdateMetadataRequest(controller_id=9, controller_epoch=0, live_brokers=[]), 8)
    assert (bool(client.closing), number in client.look()) == (not is_broker, is_broker)


def updates(replicas: int) -> UpdateMetadataRequest:
    state = UpdateMetadataPartitionState(
        partition_index=0, controller_epoch=0, leader=9, leader_epoch=0, isr=[9], zk_version=0,
        replicas=[9] * replicas, offline_replicas=[],
    )  # fmt: skip
    topic = UpdateMetadataTopicState(topic_name="of-another", topic_id=b"i" * 16, partition_states=[state])
    return UpdateMetadataRequest(controller_id=9, controller_epoch=0, topic_states=[topic], live_brokers=[])


def test_what_controllers_say_may_have_any_number_of_elements_and_counts_as_its_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ROUTES[UpdateMetadataRequest.api], "elements", 1000)
    monkeypatch.setattr("kbroker.timing.scheduler.SLICE_STEPS", 1)
    client, request = world.client(), updates(replicas=20_000)
    number = client.start(request, 8)
    most_held = client.channel.held_bytes
    while world.broker.scheduler.is_slicing:
        world.core.step(EXPIRED, world.clock.now_ms())
        most_held = max(most_held, client.channel.held_bytes)
    assert (client.closing, number in client.look()) == ("", True)
    assert len(request.encode(8)) <= most_held < 2 * len(request.encode(8))


def test_nothing_is_answered_after_a_malformed_frame(client: Client) -> None:
    first = client.send(VERSIONS, 3)
    client.send(fetch(max_wait_ms=60_000), 12)
    client.send_bytes(b"\0")
    assert list(client.look()) == [first]
    assert not client.channel.busy


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_the_first_layout(client: Client, version: int) -> None:
    client.send_bytes(struct.pack(">hhih", 18, version, 7, -1) + b"whatever")
    frame = client.take()
    assert frame[4:8] == struct.pack(">i", 7)
    answer = ApiVersionsResponse.decode(frame[8:], 0)
    assert (answer.error_code, [(api.api_key, api.min_version) for api in answer.api_keys]) == (35, [(18, 0)])
    assert not client.closing


def test_tagged_fields_of_a_header_are_skipped(client: Client) -> None:
    head = encode_request_header(ApiVersionsRequest, 3, 5, "c")
    assert head[-1:] == b"\0"
    client.send_bytes(head[:-1] + b"\x01\x07\x02ab" + VERSIONS.encode(3))
    assert client.take()[4:8] == struct.pack(">i", 5)


# ---- no answer


def test_acks_0_is_silence(world: World, client: Client) -> None:
    client.send(produce(b"v", acks=0), 9)
    assert client.take() == b""
    assert not client.closing
    assert world.partition("t").log.log_end_offset == 1  # type: ignore[union-attr]


def test_acks_0_that_failed_ends_the_connection(client: Client) -> None:
    client.send(produce(b"v", acks=0, topic="unknown"), 9)
    assert client.closing
    assert client.take() == b""


def test_silence_behind_a_waiting_answer_does_not_hold_up_the_next(world: World, client: Client) -> None:
    waiting = client.send(fetch(max_wait_ms=60_000, min_bytes=1000), 12)
    client.send(produce(b"v", acks=0), 9)
    last = client.send(VERSIONS, 3)
    assert client.look() == {}
    world.advance(60_101)
    client.look()
    assert client.order == [waiting, last]


# ---- failures


@dataclass
class Failing:
    """A handler that fails."""

    error: Exception

    def __call__(self, request: Message, call: Any) -> Any:
        raise self.error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(error: Exception) -> None:
        was = ROUTES[0]
        failing = Route(0, was.request, was.first, was.last, Failing(error), was.refuse, (), flat=was.flat)
        monkeypatch.setitem(ROUTES, 0, failing)

    return install


def test_a_bug_is_an_error_code_to_clients(world: World, client: Client, failing: Any) -> None:
    world.broker.strict = False
    failing(ZeroDivisionError("a bug"))
    answer = client.ask(produce(b"v"), 9)
    assert produced(answer).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_bug_stops_a_simulation(client: Client, failing: Any) -> None:
    failing(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        client.send(produce(b"v"), 9)


def test_a_failing_disk_is_a_storage_error(world: World, client: Client) -> None:
    world.disk.fail("write", ".log", 5)
    answer = client.ask(produce(b"v"), 9)
    assert produced(answer).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert world.partition("t").log is None


# ---- bytes that should be text


def test_a_name_that_is_no_utf8_is_an_invalid_name_and_the_connection_goes_on(client: Client) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="XY")])
    frame = encode_request_header(MetadataRequest, 4, 7, "XY") + request.encode(4)
    client.send_bytes(frame.replace(b"XY", b"\xc3\x28"))
    (topic,) = MetadataResponse.decode(client.take()[8:], 4).topics
    assert (topic.name, topic.error_code, client.closing) == ("\ufffd(", ErrorCode.INVALID_TOPIC_EXCEPTION, "")
