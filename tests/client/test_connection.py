"""A client's end of a connection: bytes out, answers in, what a broker may not send. The broker is made of bytes."""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

import pytest

from kbroker.client import Answer, Connection, ProtocolError, State, correlation_ids
from kbroker.client.connection import RULES
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header, encode_response_header
from protocol.message import Message
from protocol.messages.control import ControlledShutdownRequest
from protocol.messages.handshake import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslHandshakeRequest,
)
from protocol.messages.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from protocol.messages.produce import ProduceRequest
from tests.frames import framed

ASK = MetadataRequest(topics=[], allow_auto_topic_creation=False)
SERVED = ApiVersionsResponse(error_code=0, api_keys=[ApiVersion(api_key=3, min_version=1, max_version=12)])


def ready(**given: object) -> Connection:
    made = Connection("me", **given)  # type: ignore[arg-type]
    made.connected()
    return made


def answer(response: Message, version: int, number: int) -> bytes:
    return framed(encode_response_header(type(response), version, number) + response.encode(version))


def metadata(number: int, host: str = "h", version: int = 9) -> bytes:
    broker = MetadataResponseBroker(node_id=number, host=host, port=1)
    return answer(MetadataResponse(brokers=[broker], topics=[], controller_id=1), version, number)


def hosts(connection: Connection, data: bytes) -> list[str]:
    return [each.decode().brokers[0].host for each in connection.feed(memoryview(data))]


def pieces(data: bytes, rng: Random) -> list[bytes]:
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(5))})
    return [data[first:last] for first, last in pairwise(cuts)]


# ---- out


@pytest.mark.parametrize(
    ("request_", "version"),
    [(ASK, 8), (ASK, 9), (ControlledShutdownRequest(broker_id=1), 0), (ControlledShutdownRequest(broker_id=1), 3)],
    ids=["header 1", "header 2, flexible", "header 0, without a client id", "header 2 of the same API"],
)
def test_a_request_has_its_size_and_the_header_of_its_version(request_: Message, version: int) -> None:
    connection = ready(numbers=correlation_ids(77))
    for number in (77, 78):
        header = encode_request_header(type(request_), version, number, "me")
        assert connection.ask(request_, version) == framed(header + request_.encode(version))


def test_numbers_begin_again_behind_the_largest() -> None:
    numbers = correlation_ids((1 << 31) - 1)
    assert [next(numbers) for _ in range(3)] == [(1 << 31) - 1, 0, 1]


def test_numbers_go_on_on_the_next_connection() -> None:
    numbers = correlation_ids()
    ready(numbers=numbers).ask(ASK, 9)
    assert ready(numbers=numbers).ask(ASK, 9)[8:12] == struct.pack(">i", 2)


def test_produce_without_acks_waits_for_no_answer() -> None:
    connection = ready()
    connection.ask(ProduceRequest(acks=0, timeout_ms=1, topic_data=[]), 9)
    connection.ask(ASK, 9)
    assert connection.in_flight == 1
    assert hosts(connection, metadata(2, "second")) == ["second"]


# ---- in


def test_answers_come_in_the_order_of_requests_each_with_its_token() -> None:
    connection = ready()
    for version in (9, 5, 4):
        connection.ask(ASK, version, f"v{version}")
    data = metadata(1, "a", 9) + metadata(2, "b", 5) + metadata(3, "c", 4)
    found = [(each.token, each.decode().brokers[0].host) for each in connection.feed(memoryview(data))]
    assert found == [("v9", "a"), ("v5", "b"), ("v4", "c")]
    assert connection.in_flight == 0


@pytest.mark.parametrize("seed", range(20))
def test_answers_may_come_in_any_pieces(seed: int) -> None:
    connection = ready()
    for _ in range(3):
        connection.ask(ASK, 9)
    data = metadata(1, "a") + metadata(2, "b" * 3000) + metadata(3, "c")
    found = [host for piece in pieces(data, Random(seed)) for host in hosts(connection, piece)]
    assert found == ["a", "b" * 3000, "c"]


@pytest.mark.parametrize("view_bytes", [4, 100, 1 << 16])
def test_a_socket_may_receive_into_the_buffer(view_bytes: int) -> None:
    connection = ready(receive_view=memoryview(bytearray(view_bytes)))
    data, found = memoryview(b""), []
    for number, host in enumerate(("a", "b" * 3000, "c"), 1):
        connection.ask(ASK, 9)
        data = memoryview(metadata(number, host))
        while data:
            buffer = connection.buffer()
            size = min(len(buffer), len(data))
            buffer[:size], data = data[:size], data[size:]
            del buffer
            found += [each.decode().brokers[0].host for each in connection.received(size)]
    assert found == ["a", "b" * 3000, "c"]


def test_an_answer_that_is_kept_is_not_written_over() -> None:
    connection = ready()
    kept: list[Answer] = []
    for number in (1, 2):
        connection.ask(ASK, 9)
        data = memoryview(metadata(number, "ab"[number - 1] * 100))
        assert not connection.feed(data[:4])
        kept += connection.feed(data[4:])
        connection.keep()
    assert [each.decode().brokers[0].host[0] for each in kept] == ["a", "b"]


def test_an_answer_can_be_read_flat() -> None:
    connection = ready()
    connection.ask(ASK, 9)
    (found,) = connection.feed(memoryview(metadata(1)))
    assert found.read_flat() == MetadataResponse.read_flat(found.frame, 9, found.start)


# ---- what a broker may not send


def refused(connection: Connection, data: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        connection.feed(memoryview(data))
    assert connection.state is State.CLOSED
    return caught.value


def test_the_answer_of_another_request_is_refused_and_those_before_it_count() -> None:
    connection = ready()
    for _ in range(3):
        connection.ask(ASK, 9)
    error = refused(connection, metadata(1) + metadata(3) + metadata(2))
    assert str(error) == "answer 3 has come, the one that is due is 2, to MetadataRequest"
    assert len(error.answers) == 1


def test_an_answer_to_nothing_is_refused() -> None:
    assert str(refused(ready(), metadata(1))) == "an answer to nothing that was asked"


@pytest.mark.parametrize(
    ("size", "why"), [(-1, "sizes are not negative"), (1001, "at most 1000 are taken"), (3, "3 bytes are no answer")]
)
def test_a_size_that_no_answer_has_is_refused(size: int, why: str) -> None:
    connection = ready(most_frame_bytes=1000)
    connection.ask(ASK, 9)
    connection.ask(ASK, 9)
    error = refused(connection, metadata(1) + struct.pack(">i", size) + b"???")
    assert why in str(error)
    assert len(error.answers) == 1


def test_an_end_in_the_middle_of_an_answer_is_said() -> None:
    for size in range(1, len(metadata(1))):
        connection = ready()
        connection.ask(ASK, 9)
        connection.feed(memoryview(metadata(1)[:size]))
        with pytest.raises(ProtocolError, match="in the middle of an answer"):
            connection.ended()
        assert connection.state is State.CLOSED


def test_an_end_between_answers_is_an_end() -> None:
    connection = ready()
    connection.ask(ASK, 9)
    connection.feed(memoryview(metadata(1)))
    connection.ended()
    assert connection.state is State.CLOSED


@pytest.mark.parametrize("seed", range(50))
def test_random_bytes_raise_nothing_else(seed: int) -> None:
    rng = Random(seed)
    connection = Connection("me", most_frame_bytes=10_000)
    connection.negotiate("test", "1")
    data = bytearray(answer(SERVED, 3, 1) + rng.randbytes(40))
    for _ in range(rng.randrange(4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        for piece in pieces(bytes(data), rng):
            connection.feed(memoryview(piece))
    except ProtocolError:
        assert connection.state is State.CLOSED


# ---- states


def test_versions_are_negotiated() -> None:
    connection = Connection("me")
    assert connection.negotiate("test", "1")[4:8] == struct.pack(">hh", 18, 3)
    assert connection.state is State.NEGOTIATING
    assert connection.feed(memoryview(answer(SERVED, 3, 1))) == []
    assert connection.state is State.READY
    assert [connection.serves(MetadataRequest, version) for version in (0, 1, 12, 13)] == [False, True, True, False]
    assert not connection.serves(ProduceRequest, 0)


def test_versions_that_are_refused_end_it() -> None:
    connection = Connection("me")
    connection.negotiate("test", "1")
    nothing = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[])
    error = refused(connection, answer(nothing, 0, 1))
    assert (str(error), error.unsupported) == ("ApiVersions is answered with UNSUPPORTED_VERSION", True)


def test_who_the_client_is_is_shown_before_anything_else() -> None:
    connection = Connection("me", authenticates=True)
    connection.negotiate("test", "1")
    connection.feed(memoryview(answer(SERVED, 3, 1)))
    assert connection.state is State.AUTHENTICATING
    connection.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    with pytest.raises(AssertionError, match="MetadataRequest while authenticating"):
        connection.ask(ASK, 9)
    connection.authenticated()
    connection.ask(ASK, 9)


def in_state(state: State) -> Connection:
    made = Connection("me")
    made.state = state
    return made


@pytest.mark.parametrize("state", State)
def test_each_state_allows_what_its_row_says(state: State) -> None:
    moves = {
        State.NEGOTIATING: lambda made: made.negotiate("test", "1"),
        State.READY: Connection.connected,
        State.CLOSED: Connection.close,
    }
    follow, apis = RULES[state]
    for target, move in moves.items():
        if target in follow:
            move(in_state(state))
        else:
            with pytest.raises(AssertionError):
                move(in_state(state))
    for request, version in ((ASK, 9), (ApiVersionsRequest(), 0), (SaslHandshakeRequest(mechanism="PLAIN"), 1)):
        if request.api in apis:
            in_state(state).ask(request, version)
        else:
            with pytest.raises(AssertionError, match=state.value):
                in_state(state).ask(request, version)
