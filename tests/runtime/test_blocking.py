"""A client's connection over a socket that waits; the broker is a socket that says what a test has it say."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from kbroker.client import ProtocolError, State
from kbroker.runtime.blocking import BlockingConnection
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from tests.client.test_connection import ASK, SERVED, answer, metadata


@pytest.fixture
def ends() -> Iterator[tuple[BlockingConnection, socket.socket]]:
    """The client's and the broker's."""
    ours, theirs = socket.socketpair()
    with BlockingConnection(ours, "me", answer_s=10) as made, theirs:
        yield made, theirs


def test_answers_come_in_order_and_keep_their_bytes(ends: tuple[BlockingConnection, socket.socket]) -> None:
    connection, broker = ends
    for _ in range(3):
        connection.send(ASK, 9)
    broker.sendall(metadata(1, "a") + metadata(2, "b" * 30_000) + metadata(3, "c"))
    assert [connection.receive().brokers[0].host[0] for _ in range(3)] == ["a", "b", "c"]


def test_the_end_of_a_connection_is_an_error_of_it_from_then_on(
    ends: tuple[BlockingConnection, socket.socket],
) -> None:
    connection, broker = ends
    broker.sendall(metadata(1))
    assert connection.ask(ASK, 9).brokers
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=r"^the broker hung up$"):
        connection.ask(ASK, 9)
    with pytest.raises(ConnectionError, match="has ended before"):
        connection.ask(ASK, 9)


def test_a_broker_that_hangs_up_on_the_first_request_may_want_a_login(
    ends: tuple[BlockingConnection, socket.socket],
) -> None:
    connection, broker = ends
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError, match=r"another security\.protocol"):
        connection.ask(ASK, 9)


def test_half_an_answer_is_waited_for_no_longer_than_a_whole_one(
    ends: tuple[BlockingConnection, socket.socket],
) -> None:
    connection, broker = ends
    connection.wait(0.02)
    broker.sendall(metadata(1)[:-1])
    with pytest.raises(TimeoutError):
        connection.ask(ASK, 9)
    broker.shutdown(socket.SHUT_WR)
    with pytest.raises(ProtocolError, match="in the middle of an answer"):
        connection.receive()


def test_versions_are_negotiated_first_if_they_are_to_be() -> None:
    ours, theirs = socket.socketpair()
    with BlockingConnection(ours, "me", negotiates=True) as connection, theirs:
        theirs.sendall(answer(SERVED, 3, 1))
        connection.negotiate()
        assert connection.protocol.state is State.READY
        assert connection.protocol.serves(MetadataRequest, 12)
        assert not connection.protocol.serves(ProduceRequest, 9)
