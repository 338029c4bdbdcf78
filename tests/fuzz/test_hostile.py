"""The hostile shapes of the live fuzz."""

from __future__ import annotations

import select
import socket
import struct
from random import Random

import pytest

from kbroker.api.routes import load
from protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from tests.fuzz.hostile import MOST_BYTES, arrays, encoded, finish, grown
from tests.fuzz.live import malformed
from tests.requests import produce


def test_a_grown_request_is_well_formed_and_long() -> None:
    load()
    rng = Random(1)
    for request, version in (
        (FindCoordinatorRequest(key_type=0, coordinator_keys=["key"]), 4),
        (DescribeGroupsRequest(groups=["g"]), 5),
        (produce(b"v"), 9),
    ):
        frame = encoded(request, version)
        longest = max((grown(rng, frame) or b"" for _ in range(5)), key=len)
        assert 10 * len(frame) < len(longest) <= 2 * MOST_BYTES
        assert not malformed(longest)


def test_a_request_without_arrays_does_not_grow() -> None:
    load()
    assert grown(Random(1), encoded(ApiVersionsRequest(), 0)) is None


def test_arrays_within_arrays_are_found() -> None:
    assert [name for _, name in arrays(produce(b"v"))] == ["topic_data", "partition_data"]


def test_a_broker_that_hangs_up_before_the_client_has_finished_is_no_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        broker, _ = server.accept()
    broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
    broker.close()
    hung_up = select.poll()
    hung_up.register(client, select.POLLRDHUP)
    hung_up.poll(10_000)
    with client:
        finish(client)
        with pytest.raises(ConnectionResetError):
            client.recv(1)
