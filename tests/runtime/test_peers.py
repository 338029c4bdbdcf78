"""What lines do with sockets beyond the contract of `Peers`: pieces of frames, names of hosts, full buffers."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kbroker.config.limits import MOST_PEER_BACKOFF_MS, PEER_SETUP_MS
from kbroker.ports import CONTROL, Endpoint, PeerAnswer, PeerFault
from protocol.headers import encode_response_header
from protocol.messages.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from tests.contracts.peer_benches import CLUSTER, PlayedBroker, SocketBench

DONE = LeaderAndIsrResponse(error_code=0, topics=[])


@pytest.fixture
def bench() -> Iterator[SocketBench]:
    made = SocketBench()
    made.peers.join(CLUSTER)
    yield made
    made.close()


def request(topics: int = 0) -> LeaderAndIsrRequest:
    states = [LeaderAndIsrTopicState(topic_name="t" * 200, topic_id=bytes(16), partition_states=[])] * topics
    return LeaderAndIsrRequest(
        controller_id=1, controller_epoch=3, broker_epoch=7, type=0, topic_states=states, live_leaders=[]
    )


def send(bench: SocketBench, broker: PlayedBroker, endpoint: Endpoint | None = None, topics: int = 0) -> None:
    bench.peers.send(broker.id, endpoint or broker.address, CONTROL, request(topics), 7, "token", 30_000)


def why(bench: SocketBench) -> str:
    bench.until(lambda: bench.events)
    (fault,) = bench.events
    assert isinstance(fault, PeerFault), fault
    return fault.why


def test_an_answer_that_comes_byte_by_byte_is_taken(bench: SocketBench) -> None:
    broker = bench.broker()
    send(bench, broker)
    bench.until(lambda: broker.asked)
    asked = broker.asked[0]
    frame = encode_response_header(LeaderAndIsrRequest, 7, asked.correlation_id) + DONE.encode(7)
    for byte in len(frame).to_bytes(4, "big") + frame:
        assert bench.events == []
        broker.say(asked.connection, bytes([byte]))
        bench.settle()
    (answer,) = bench.events
    assert isinstance(answer, PeerAnswer)
    assert answer.response == DONE


def test_an_answer_larger_than_is_taken_ends_the_connection(bench: SocketBench) -> None:
    broker = bench.broker()
    send(bench, broker)
    bench.until(lambda: broker.asked)
    broker.say(broker.asked[0].connection, (1 << 30).to_bytes(4, "big"))
    assert why(bench) == "a frame of 1073741824 bytes: at most 16777216 are taken"


def test_a_request_larger_than_the_kernel_takes_at_once_arrives_whole(bench: SocketBench) -> None:
    broker = bench.broker()
    send(bench, broker, topics=50_000)
    bench.until(lambda: broker.asked)
    assert broker.asked[0].request == request(50_000)


def test_a_host_with_several_addresses_is_tried_at_each(bench: SocketBench, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = bench.broker()
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, broker.address.port)) for host in ("127.0.0.2", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    send(bench, broker, Endpoint("PLAINTEXT", 0, "twice", broker.address.port))
    bench.until(lambda: broker.asked)


def test_an_address_that_does_not_answer_is_tried_last_the_next_time(
    bench: SocketBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = bench.broker()
    port = broker.address.port
    with socket.create_server(("127.0.0.2", port), backlog=0), ExitStack() as queue:
        for _ in range(2):  # what comes now hangs: nobody accepts, and there is no more room to wait in
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        send(bench, broker, Endpoint("PLAINTEXT", 0, "twice", port))
        bench.settle()
        bench.advance(PEER_SETUP_MS)
        first = why(bench)
        send(bench, broker, Endpoint("PLAINTEXT", 0, "twice", port))
        bench.advance(MOST_PEER_BACKOFF_MS)
        bench.until(lambda: broker.asked)
        assert first == f"no connection within {PEER_SETUP_MS} ms"


def test_a_host_without_an_address_is_named(bench: SocketBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    send(bench, bench.broker(), Endpoint("PLAINTEXT", 0, "nowhere", 9092))
    assert why(bench) == "nowhere: Name or service not known"


def test_a_line_dropped_while_its_host_is_looked_up_does_not_connect(
    bench: SocketBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = bench.broker()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", broker.address.port))]

    def look_up(*_: object, **__: object) -> object:
        bench.peers.drop(broker.id, CONTROL)
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    send(bench, broker, Endpoint("PLAINTEXT", 0, "slow", broker.address.port))
    bench.settle()
    assert (broker.accepted, bench.events) == (0, [])


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_is_not_looked_up(bench: SocketBench, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "looked up")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    broker = bench.broker(listens=False)
    send(bench, broker, Endpoint("PLAINTEXT", 0, host, broker.address.port))
    assert "looked up" not in why(bench)


def test_a_connection_that_is_reset_is_named_in_the_systems_words(bench: SocketBench) -> None:
    broker = bench.broker()
    send(bench, broker)
    bench.until(lambda: broker.asked)
    connection = broker.asked[0].connection
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    assert why(bench) == "Connection reset by peer"


def test_a_connection_that_is_reset_as_soon_as_it_is_there_is_named_in_the_systems_words(
    bench: SocketBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a broker that has too many of this address (max.connections.per.ip), say."""

    def fail(_: socket.socket) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(socket.socket, "getpeername", fail)
    send(bench, bench.broker())
    assert why(bench) == "Transport endpoint is not connected"


def test_lines_to_brokers_that_are_cut_off_fail_until_they_are_not(bench: SocketBench) -> None:
    far, near = bench.broker(2), bench.broker(3)
    for each in (far, near):
        send(bench, each)
    bench.until(lambda: far.asked and near.asked)
    bench.peers.cut([2])
    assert why(bench) == "cut off"
    bench.events.clear()
    send(bench, far)
    bench.advance(MOST_PEER_BACKOFF_MS)
    assert why(bench) == "cut off"
    near.asked[0].answer(DONE)
    bench.until(lambda: len(bench.events) == 2)
    bench.peers.cut([])
    send(bench, far)
    bench.advance(MOST_PEER_BACKOFF_MS)
    bench.until(lambda: len(far.asked) == 2)


def test_the_timer_is_set_by_a_request_left_by_its_answer_and_not_set_again_when_nothing_is_asked(
    bench: SocketBench,
) -> None:
    broker = bench.broker()
    (timer,) = bench.loop.hand_timers
    before = timer.due_s
    begun_ms = bench.clock.ms
    send(bench, broker)
    bench.until(lambda: broker.asked)
    broker.asked[0].answer(DONE)
    bench.until(lambda: bench.events)
    due_s = timer.due_s
    bench.advance(PEER_SETUP_MS)
    assert (before, due_s, timer.due_s) == (None, (begun_ms + PEER_SETUP_MS) / 1000, None)
