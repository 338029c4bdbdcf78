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
from kbroker.pipeline import wire
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import Cluster, Settings
from protocol.headers import encode_response_header, parse_request_header
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
            answer = self.server.answer(api)
            content = encode_response_header(type(answer), version, correlation) + answer.encode(version)
            self.wfile.write(struct.pack(">i", len(content)) + content)


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
    monkeypatch.setattr(wire, "CONNECT_S", 0.2)
    with ExitStack() as stack:

        def made(count: int) -> tuple[Cluster, list[Listener]]:
            brokers = stack.enter_context(listeners(count))
            cluster = stack.enter_context(Cluster(Settings(brokers[0].address, patience_s=0.4)))
            cluster.learn_leaders([])
            return cluster, brokers

        yield made


Made = Callable[[int], tuple[Cluster, list[Listener]]]


def trouble(cluster: Cluster) -> str | None:
    """Why a call has no answer; None if it has one."""
    try:
        cluster.producer()
    except PipelineError as error:
        return str(error)
    return None


def test_a_cluster_answers_as_long_as_one_of_its_brokers_does(cluster_of: Made) -> None:
    cluster, (first, second, third) = cluster_of(3)
    assert trouble(cluster) is None
    first.die()
    third.die()
    assert trouble(cluster) is None
    assert trouble(cluster) is None
    assert second.greeted == 1  # and is asked from then on
    second.die()
    told = trouble(cluster)
    assert told
    assert all(f"{each.address}: Connection refused" in told for each in (first, second, third))


def test_brokers_that_hang_are_not_waited_for_long(cluster_of: Made) -> None:
    cluster, brokers = cluster_of(2)
    for each in brokers:
        each.hangs = True
    begun_s = time.monotonic()
    told = trouble(cluster)
    assert time.monotonic() - begun_s < wire.ANSWER_S / 4
    assert told
    assert all(f"{each.address}: timed out" in told for each in brokers)
    brokers[1].hangs = False
    assert trouble(cluster) is None


def test_brokers_that_hang_do_not_hold_up_one_that_answers(cluster_of: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, brokers = cluster_of(4)
    monkeypatch.setattr(wire, "CONNECT_S", 20)
    brokers[0].die()
    brokers[1].hangs = brokers[2].hangs = True
    begun_s = time.monotonic()
    assert trouble(cluster) is None
    assert time.monotonic() - begun_s < wire.CONNECT_S


def test_brokers_that_were_asked_in_vain_are_hung_up_on(cluster_of: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_START_S", 0)
    cluster, (first, *others) = cluster_of(5)
    first.die()
    assert trouble(cluster) is None
    eventually(lambda: sorted(each.clients for each in others) == [0, 0, 0, 1])


def test_a_task_waits_for_a_broker_that_is_away_when_it_begins() -> None:
    with listeners(1) as (away,):
        away.hangs = True
        settings = Settings(away.address, patience_s=60)
        back = threading.Timer(0.5, lambda: setattr(away, "hangs", False))
        back.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(wire, "CONNECT_S", 0.2)
            patch.setattr(wire, "ANSWER_S", 0.2)
            with pytest.raises(PipelineError, match="no broker answers at"):
                Cluster(settings)
            with Cluster(settings, patient=True) as cluster:
                assert cluster.producer().producer_id == 7


def test_an_error_tells_of_the_first_addresses_of_many(cluster_of: Made) -> None:
    cluster, brokers = cluster_of(6)
    for each in brokers:
        each.die()
    told = trouble(cluster)
    assert told
    assert told.count("Connection refused") == wire.TOLD
    assert "; 2 more. Start it" in told


@pytest.mark.parametrize("address", ["", "host", "host:", "host:0", "host:65536", "host:٩٠", "[::1]", "a:b:9092"])
def test_an_address_that_can_be_none_is_named(address: str) -> None:
    with pytest.raises(PipelineError, match="is no HOST:PORT"):
        wire.split_address(address)
