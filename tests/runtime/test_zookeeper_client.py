"""What the store on ZooKeeper makes of kazoo's client: how many messages it sends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from kbroker.ports import Check, Create, Delete, Multi, Operation, Outcome, SetData, StoreAnswer, StoreEvent
from kbroker.runtime.metadata_server.wire import Op, parse_request
from kbroker.runtime.zookeeper import ZooKeeperStore
from tests.runtime.metadata_servers import PATIENCE_S, RunningServer


class Client:
    """A store, and the types of the requests that it has sent."""

    def __init__(self, server: RunningServer) -> None:
        self._events: queue.Queue[StoreEvent] = queue.Queue()
        self.store = ZooKeeperStore(server.address, self._events.put)
        self._events.get(timeout=PATIENCE_S)
        self.sent: list[int] = []
        sessions = server.server._sessions
        received = sessions.received
        sessions.received = lambda connection, frame, now_ms: (  # type: ignore[method-assign]
            self.sent.append(parse_request(frame).op) or received(connection, frame, now_ms)  # type: ignore[func-returns-value]
        )

    def ask(self, *operations: Operation) -> tuple[Outcome, ...]:
        self.store.submit(operations, "asked")
        answer = self._events.get(timeout=PATIENCE_S)
        assert isinstance(answer, StoreAnswer), answer
        return answer.outcomes


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with RunningServer(tmp_path) as server:
        made = Client(server)
        yield made
        made.store.close()


def test_a_transaction_is_one_message_whatever_it_makes(client: Client) -> None:
    made = client.ask(Multi((Create("/a"), Create("/a/b", b"1"), Create("/a/c"))))
    changed = client.ask(Multi((Check("/a/b", 0), SetData("/a/b", b"2"), Delete("/a/c"))))
    assert [made[0].fault, changed[0].fault] == [None, None]
    assert client.sent == [Op.MULTI, Op.MULTI]
