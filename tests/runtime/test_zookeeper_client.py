"""What the store on ZooKeeper makes of kazoo's client: how many messages it sends, and how it waits for a socket."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.exceptions import ConnectionDropped

from kbroker.ports import (
    Check,
    Create,
    Delete,
    Get,
    Multi,
    Operation,
    Outcome,
    SessionStarted,
    SetData,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.metadata_server.wire import Op, parse_request
from kbroker.runtime.zookeeper import ZooKeeperStore, _Handler
from kbroker.runtime.zookeeper_security import Security
from protocol.errors import ErrorCode
from protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
)
from tests import processes
from tests.runtime.metadata_servers import PATIENCE_S, RunningServer

INVALID, UNKNOWN = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


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


@pytest.mark.parametrize("wrong", [Create("/a/../b"), Get("/./a", watch=True), Multi((Create("/a/.."),))])
def test_a_path_that_cannot_be_is_refused_and_takes_nobody_s_turn(client: Client, wrong: Operation) -> None:
    for _ in range(11):  # one more than may be under way
        assert [each.fault for each in client.ask(wrong)] == [StoreFault.REFUSED]
    assert [each.fault for each in client.ask(Create("/a"))] == [None]


def test_a_connection_that_is_lost_before_it_is_heard_of_does_not_end_the_wait(client: Client) -> None:
    store = client.store
    store._client.stop()
    store._grow_impatient()  # as the connection's thread does when it is lost
    store._came_up(store._session)
    assert store._impatience is not None
    assert not store._impatience.finished.is_set()


def test_nobody_who_submits_waits_for_the_connection(tmp_path: Path) -> None:
    events: queue.Queue[StoreEvent] = queue.Queue()
    gone = threading.Event()
    with RunningServer(tmp_path) as server:
        store = ZooKeeperStore(server.address, events.put, max_in_flight=1_000)
        assert isinstance(events.get(timeout=PATIENCE_S), SessionStarted)
        connection = store._client._connection
        send = connection._send_request

        def lose(*_: object) -> None:
            """Stands still, as it would for the rest of an answer; then the connection is lost."""
            assert gone.wait(PATIENCE_S)
            connection._send_request = send
            raise ConnectionDropped("lost")

        connection._send_request = lose
        asking = threading.Thread(target=store.submit, args=((Get("/"),) * 1_000, "asked"), daemon=True)
        asking.start()
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
        gone.set()
        answer = events.get(timeout=PATIENCE_S)
        assert isinstance(answer, StoreAnswer)
        assert {each.fault for each in answer.outcomes} == {StoreFault.CONNECTION_LOST}
        store.close()


@pytest.mark.parametrize("host", ["zk1..example", "z" * 64])
def test_a_host_that_cannot_be_is_refused_whoever_stands_beside_it(host: str) -> None:
    with pytest.raises(ValueError, match=r"^zookeeper\.connect="):
        ZooKeeperStore(f"127.0.0.1:1,{host}:2181", print)


def test_topics_whose_names_make_no_path_leave_the_store_to_others(tmp_path: Path) -> None:
    settings = {"broker_id": "1", "zookeeper_max_in_flight_requests": "1"}
    with (
        RunningServer(tmp_path) as server,
        processes.BrokerProcess(tmp_path, zookeeper_connect=server.address, **settings) as process,
    ):
        client = processes.Client(process.port)

        def create(name: str) -> int:
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
            (made,) = client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5).topics
            return int(made.error_code)

        def grow(name: str) -> int:
            growth = CreatePartitionsTopic(name=name, count=2, assignments=None)
            request = CreatePartitionsRequest(topics=[growth], timeout_ms=5_000, validate_only=False)
            (grown,) = client.ask(request, 1).results
            return int(grown.error_code)

        assert [create(name) for name in (".", "..", "first")] == [INVALID, INVALID, ErrorCode.NONE]
        assert [grow(name) for name in (".", "..", "first/partitions")] == [UNKNOWN, UNKNOWN, UNKNOWN]
        assert [grow("first"), create("second")] == [ErrorCode.NONE, ErrorCode.NONE]
        client.close()


@pytest.mark.parametrize("timeout_ms", [200, 2_000])
def test_a_login_that_an_ensemble_does_not_know_is_said_and_tried_on(
    tmp_path: Path, said: queue.Queue[logging.LogRecord], timeout_ms: int
) -> None:
    """With a code of its own; and each try is a connection that comes about, until it is time for the login."""
    with RunningServer(tmp_path) as server:
        store = ZooKeeperStore(
            server.address, print, connection_timeout_ms=timeout_ms, security=Security(login=("kafka", "secret"))
        )
        try:
            wanted = f"no ZooKeeper answers at {server.address}; trying on: 127.0.0.1 refuses the login of kafka"
            for _ in range(2):  # the first lines may come before the answer to the login
                assert any(said.get(timeout=PATIENCE_S).getMessage() == wanted for _ in range(20))
        finally:
            store.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a host that is gone: whoever connects hears nothing."""
    with socket.create_server(("127.0.0.2", 0), backlog=0) as server, ExitStack() as queued:
        for _ in range(2):  # what comes now hangs: nobody accepts, and there is no more room to wait in
            waiting = queued.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"127.0.0.2:{server.getsockname()[1]}"


def test_a_session_outlives_the_members_of_the_ensemble_that_are_gone(
    tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.shuffle", lambda hosts: hosts.sort(reverse=True))  # those that are gone first
    events: queue.Queue[StoreEvent] = queue.Queue()
    with RunningServer(tmp_path) as server:
        connect = f"{server.address},{silent},{silent}"
        store = ZooKeeperStore(connect, events.put, session_timeout_ms=3_000)
        try:
            assert isinstance(events.get(timeout=PATIENCE_S), SessionStarted)
            again = threading.Event()
            store._client.add_listener(lambda state: again.set() if state == "CONNECTED" else None)
            store._client._connection._socket.shutdown(socket.SHUT_RDWR)
            assert again.wait(PATIENCE_S)
            store.submit((Get("/"),), "asked")
            assert isinstance(events.get(timeout=PATIENCE_S), StoreAnswer)
        finally:
            store.close()


def test_sockets_are_ready_to_be_read_or_written() -> None:
    here, there = socket.socketpair()
    select = _Handler().select
    with here, there:
        assert select([here], [], [], 0) == ([], [], [])
        assert select([], [here], [], None) == ([], [here], [])
        there.send(b"x")
        assert select([there, here], [], [], 5) == ([here], [], [])
        assert select([here], [there], [], 5) == ([here], [there], [])


def test_a_socket_whose_peer_is_gone_is_ready() -> None:
    here, there = socket.socketpair()
    with here:
        there.close()
        assert _Handler().select([here], [], [], 5) == ([here], [], [])
        assert _Handler().select([], [here], [], 5) == ([], [here], [])
