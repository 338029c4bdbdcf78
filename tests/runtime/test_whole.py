"""A whole broker behind its sockets, on a thread of the test: bounds on connections and frames, controllers."""

from __future__ import annotations

import logging
import struct

import pytest

from kbroker.api.produce import Preparing
from kbroker.log.directory import Flush
from kbroker.testing import broker
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.control import StopReplicaRequest
from protocol.messages.handshake import ApiVersionsRequest
from tests.processes import Client
from tests.requests import produce, produced

PATIENCE_S = 5.0


def test_a_broker_that_is_alone_hears_no_controller() -> None:
    with broker() as b:
        answer = Client(b.port).ask(StopReplicaRequest(controller_id=1, controller_epoch=1), 3)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_an_oversized_frame_is_one_line_and_a_closed_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with broker(socket_request_max_bytes=100_000) as b:
        client = Client(b.port)
        client.socket.sendall(struct.pack(">i", 100_001))
        assert client.socket.recv(1) == b""
    [said] = [record for record in caplog.records if "100001" in record.getMessage()]
    assert ("at most 100000" in said.getMessage(), said.exc_info) == (True, None)


def test_max_connections_counts_and_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with broker(max_connections=3) as b:
        clients = [Client(b.port) for _ in range(4)]
        with pytest.raises(ConnectionError):
            clients[3].ask(ApiVersionsRequest(), 0)
    assert len([record for record in caplog.records if "max.connections=3" in record.getMessage()]) == 1


def test_a_dynamic_bound_on_connections_is_kept_after_a_restart() -> None:
    wanted = IncrementalAlterableConfig(name="max.connections", config_operation=0, value="2")
    brokers = IncrementalAlterConfigsResource(resource_type=4, resource_name="", configs=[wanted])
    with broker() as b:
        answer = Client(b.port).ask(IncrementalAlterConfigsRequest(resources=[brokers], validate_only=False), 1)
        assert answer.responses[0].error_code == 0
        b.restart()
        clients = [Client(b.port) for _ in range(3)]
        with pytest.raises(ConnectionError):
            clients[2].ask(ApiVersionsRequest(), 0)


def no_memory_once(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """The first job of this kind ends as where memory has run out."""
    run, left = kind.run, [MemoryError()]  # type: ignore[attr-defined]

    def run_or_fail(self: object) -> None:
        if left:
            raise left.pop()
        run(self)

    monkeypatch.setattr(kind, "run", run_or_fail)


def test_a_batch_for_which_memory_ran_out_is_answered_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory_once(monkeypatch, Preparing)
    with broker(log_retention_hours=-1) as b:
        b.create_topic("t", compression_type="gzip")
        client = Client(b.port)
        client.wait(PATIENCE_S)
        codes = [produced(client.ask(produce(bytes(1 << 19)), 9)).error_code for _ in range(2)]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR, 0]


def test_a_flush_for_which_memory_ran_out_is_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    no_memory_once(monkeypatch, Flush)
    with broker(log_retention_hours=-1, log_flush_interval_messages=1) as b:
        b.create_topic("t")
        client = Client(b.port)
        client.wait(PATIENCE_S)
        assert produced(client.ask(produce(b"v", timeout_ms=60_000), 9)).error_code == 0
