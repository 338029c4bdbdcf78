"""The jobs' own client where brokers are away or hang: what goes on elsewhere, and what is told, and when."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from compat_tests.waiting import eventually
from kbroker.pipeline import archive, wire
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import Cluster, Settings
from protocol.headers import parse_request_header
from protocol.message import Message
from protocol.messages.handshake import ApiVersionsResponse
from protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from protocol.messages.transactions import InitProducerIdResponse


class Listener(socketserver.ThreadingTCPServer):
    """As much of a broker as our client needs to find its cluster, and to be given producer id 7."""

    daemon_threads = True

    def __init__(self, brokers: list[Listener]) -> None:
        self.brokers, self.hangs, self.greeted, self.clients = brokers, False, 0, 0
        self._open: list[socket.socket] = []
        super().__init__(("127.0.0.1", 0), _Served)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        super().process_request(request, client_address)

    def die(self) -> None:
        """Hang up on everybody, and refuse who comes."""
        self.shutdown()
        self.server_close()
        for each in self._open:
            with suppress(OSError):  # it has hung up itself
                each.shutdown(socket.SHUT_RDWR)

    def answer(self, api: int) -> Message:
        if api == 18:
            self.greeted += 1
            return ApiVersionsResponse(error_code=0, api_keys=[], throttle_time_ms=0)
        if api == 22:
            return InitProducerIdResponse(throttle_time_ms=0, error_code=0, producer_id=7, producer_epoch=0)
        named = [
            MetadataResponseBroker(node_id=number, host="127.0.0.1", port=each.server_address[1], rack=None)
            for number, each in enumerate(self.brokers)
        ]
        return MetadataResponse(throttle_time_ms=0, brokers=named, cluster_id="c", controller_id=0, topics=[])


class _Served(socketserver.StreamRequestHandler):
    server: Listener

    def setup(self) -> None:
        super().setup()
        self.server.clients += 1

    def finish(self) -> None:
        self.server.clients -= 1
        super().finish()

    def handle(self) -> None:
        while size := self.rfile.read(4):
            frame = self.rfile.read(struct.unpack(">i", size)[0])
            if self.server.hangs:
                continue
            api, version, correlation, *_ = parse_request_header(memoryview(frame))
            body = self.server.answer(api).encode(version)
            self.wfile.write(struct.pack(">ii", 4 + len(body), correlation) + body)


@contextmanager
def listeners(count: int) -> Iterator[list[Listener]]:
    """Brokers of one cluster; each of them names all."""
    made: list[Listener] = []
    made += [Listener(made) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.die()


@pytest.fixture
def cluster_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], tuple[Cluster, list[Listener]]]]:
    """A client that was given the address of the first of so many brokers, and waits a fifth of a second for each."""
    monkeypatch.setattr(wire, "QUESTION_S", 0.2)
    with ExitStack() as stack:

        def made(count: int) -> tuple[Cluster, list[Listener]]:
            brokers = stack.enter_context(listeners(count))
            cluster = stack.enter_context(Cluster(Settings(brokers[0].address)))
            cluster.look([])
            return cluster, brokers

        yield made


Made = Callable[[int], tuple[Cluster, list[Listener]]]


def test_a_cluster_answers_as_long_as_one_of_its_brokers_does(cluster_of: Made) -> None:
    cluster, (first, second, third) = cluster_of(3)
    assert cluster.trouble() is None
    first.die()
    third.die()
    assert cluster.trouble() is None
    assert cluster.trouble() is None
    assert second.greeted == 1  # and is asked from then on
    second.die()
    told = cluster.trouble()
    assert told
    assert all(f"{each.address}: Connection refused" in told for each in (first, second, third))


def test_brokers_that_hang_are_not_waited_for_long(cluster_of: Made) -> None:
    cluster, brokers = cluster_of(2)
    for each in brokers:
        each.hangs = True
    begun_s = time.monotonic()
    told = cluster.trouble()
    assert time.monotonic() - begun_s < wire.ANSWER_S / 4
    assert told
    assert all(f"{each.address}: timed out" in told for each in brokers)
    brokers[1].hangs = False
    assert cluster.trouble() is None


def test_brokers_that_hang_do_not_hold_up_one_that_answers(cluster_of: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, brokers = cluster_of(4)
    monkeypatch.setattr(wire, "QUESTION_S", 20)
    brokers[0].die()
    brokers[1].hangs = brokers[2].hangs = True
    begun_s = time.monotonic()
    assert cluster.trouble() is None
    assert time.monotonic() - begun_s < wire.QUESTION_S


def test_brokers_that_were_asked_in_vain_are_hung_up_on(cluster_of: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_START_S", 0)
    cluster, (first, *others) = cluster_of(5)
    first.die()
    assert cluster.trouble() is None
    eventually(lambda: sorted(each.clients for each in others) == [0, 0, 0, 1])


def test_a_broker_that_answered_in_time_is_waited_for_as_ever(cluster_of: Made) -> None:
    cluster, _ = cluster_of(1)
    assert cluster.trouble() is None
    assert cluster._connections[-1]._socket.gettimeout() == wire.ANSWER_S


def test_a_call_goes_on_at_another_broker_than_the_one_given(cluster_of: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE_S", 1)
    cluster, (first, _) = cluster_of(2)
    first.die()
    assert cluster.producer().producer_id == 7


def test_an_error_tells_of_the_first_addresses_of_many(cluster_of: Made) -> None:
    cluster, brokers = cluster_of(6)
    for each in brokers:
        each.die()
    told = cluster.trouble()
    assert told
    assert told.count("Connection refused") == wire.TOLD
    assert "; 2 more. Start it" in told


class Stream:
    """A stream, its session, and the cluster it reads, in one: which questions are answered, what is over when."""

    def __init__(self, answers: str, ends_by_itself_after: int) -> None:
        self.answers, self.looks, self.after = iter(answers), 0, ends_by_itself_after
        self.isActive = True
        self.conf = self

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        return not self.isActive

    def trouble(self) -> str | None:
        self.looks += 1
        if self.looks == self.after:
            self.stop()
        return "it is away" if next(self.answers) == "-" else None

    def stop(self) -> None:
        self.isActive = False

    def get(self, name: str) -> str:
        return "0"

    def set(self, name: str, value: str) -> None: ...


def awaited(stream: Any, patience_s: float = 0) -> int:
    archive._await(stream, stream, stream, "b:1", patience_s)
    return int(stream.looks)


def test_an_archive_goes_on_after_a_question_without_an_answer() -> None:
    assert awaited(Stream("-+-++-+", 7)) == 7


def test_an_archive_ends_once_two_questions_in_a_row_have_no_answer() -> None:
    stream = Stream("+-+--", 9)
    with pytest.raises(PipelineError, match=r"b:1 does not answer any more \(it is away\)"):
        awaited(stream)
    assert stream.looks == 5


def test_an_archive_is_as_patient_as_it_is_told() -> None:
    assert awaited(Stream("------", 6), patience_s=60) == 6


def test_an_archive_that_is_over_while_nobody_answers_is_over() -> None:
    assert awaited(Stream("--", 2)) == 2


@pytest.mark.parametrize("address", ["", "host", "host:", "host:0", "host:65536", "host:٩٠", "[::1]", "a:b:9092"])
def test_an_address_that_can_be_none_is_named(address: str) -> None:
    with pytest.raises(PipelineError, match="is no HOST:PORT"):
        wire.split_address(address)
