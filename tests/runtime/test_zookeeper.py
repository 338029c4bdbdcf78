"""The store on a real ZooKeeper whose connection breaks, which is paused, which is killed and comes back."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from compat_tests.apache import NoApacheError, ZooKeeper, missing
from kbroker.ports import (
    Create,
    Exists,
    Get,
    Multi,
    NodeChanged,
    Operation,
    Outcome,
    SessionExpired,
    SessionStarted,
    SetData,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)
from kbroker.runtime.zookeeper import ZooKeeperStore

pytestmark = [pytest.mark.java, pytest.mark.slow]

Event = TypeVar("Event")
PATIENCE_S = 30.0
SESSION_MS = 2_000


class Client:
    """A store whose events are taken one by one."""

    def __init__(self, connect: str, session_ms: int = SESSION_MS) -> None:
        self._events: queue.Queue[StoreEvent] = queue.Queue()
        self.store = ZooKeeperStore(
            connect, self._events.put, session_timeout_ms=session_ms, connection_timeout_ms=200, max_in_flight=4
        )

    def next(self, kind: type[Event]) -> Event:
        """The next event, which is of this kind."""
        event = self._events.get(timeout=PATIENCE_S)
        assert isinstance(event, kind), event
        return event

    def ask(self, *operations: Operation) -> tuple[Outcome, ...]:
        self.store.submit(operations, "asked")
        return self.next(StoreAnswer).outcomes

    def settled(self, operation: Operation) -> Outcome:
        """The outcome of an operation that is asked again as long as connections break under it."""
        while (outcome := self.ask(operation)[0]).fault is StoreFault.CONNECTION_LOST:
            pass
        return outcome


class Wire:
    """A way to a server that can be cut: connections break, and new ones are refused until it is mended."""

    def __init__(self, host: str, port: int) -> None:
        self._to = host, port
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_cut = False
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.forward: Callable[[bytes], bool] = lambda data: True  # False: what the client sends gets no further
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for each in self._sockets:
                _break(each)
            self._sockets.clear()

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        _break(self._listening)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                server = None if self._is_cut else self._connected()
                if server is None:
                    client.close()
                    continue
                self._sockets += [client, server]
            threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _connected(self) -> socket.socket | None:
        with suppress(OSError):
            return socket.create_connection(self._to)
        return None

    def _pass(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_client or self.forward(data):
                    sink.sendall(data)
        _break(source)
        _break(sink)


def _break(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeper]:
    if reason := missing():
        pytest.skip(reason)
    try:
        made = ZooKeeper(tmp_path)
    except NoApacheError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def wire(server: ZooKeeper) -> Iterator[Wire]:
    made = Wire(server.host, server.port)
    yield made
    made.close()


@pytest.fixture
def client(wire: Wire) -> Iterator[Client]:
    made = Client(wire.address)
    yield made
    made.store.close()


@pytest.fixture
def other(server: ZooKeeper) -> Iterator[Client]:
    """Somebody else, whose connection is never cut."""
    made = Client(server.address)
    made.next(SessionStarted)
    yield made
    made.store.close()


def test_a_session_outlives_its_connection(client: Client, wire: Wire) -> None:
    session = client.next(SessionStarted).session
    client.ask(Create("/mine", ephemeral=True))
    wire.cut()
    wire.mend()
    found = client.settled(Get("/mine"))
    assert found.stat is not None
    assert found.stat.session == session


def test_what_is_submitted_without_a_connection_is_done_on_the_next_one(client: Client, wire: Wire) -> None:
    client.next(SessionStarted)
    wire.cut()
    client.store.submit([Create("/later", b"x")], "waits")
    wire.mend()
    assert client.next(StoreAnswer).outcomes[0].fault in (None, StoreFault.CONNECTION_LOST)  # noticed before or after
    assert client.settled(Exists("/")).fault is None


def test_a_write_whose_answer_was_lost_is_in_doubt_and_so_is_all_behind_it(client: Client, wire: Wire) -> None:
    client.next(SessionStarted)
    wire.forward = lambda data: b"/swallowed" not in data
    client.store.submit([Create("/swallowed"), *(Create(f"/behind-{number}") for number in range(9))], "lost")
    wire.cut()
    wire.forward = lambda data: True
    wire.mend()
    outcomes = client.next(StoreAnswer).outcomes
    assert {outcome.fault for outcome in outcomes} == {StoreFault.CONNECTION_LOST}
    assert len(outcomes) == 10


@pytest.mark.parametrize(
    ("before", "change", "kind"),
    [
        ([Create("/w")], SetData("/w", b"new"), "set"),
        ([], Create("/w"), "made"),
    ],
)
def test_a_watch_hears_of_what_happened_while_the_connection_was_away(
    client: Client, other: Client, wire: Wire, before: list[Operation], change: Operation, kind: str
) -> None:
    client.next(SessionStarted)
    client.ask(*before, Exists("/w", watch=True))
    wire.cut()
    other.ask(change)
    wire.mend()
    assert client.next(NodeChanged) == NodeChanged("/w", kind)


def test_a_watch_goes_on_over_connections(client: Client, other: Client, wire: Wire) -> None:
    client.next(SessionStarted)
    client.ask(Create("/w"), Get("/w", watch=True))
    for _ in range(2):
        wire.cut()
        wire.mend()
        client.settled(Exists("/"))
    other.ask(SetData("/w", b"x"))
    assert client.next(NodeChanged) == NodeChanged("/w", "set")


def test_a_session_that_nobody_hears_of_is_over_and_a_new_one_begins(client: Client, other: Client, wire: Wire) -> None:
    first = client.next(SessionStarted).session
    client.ask(Create("/gone", ephemeral=True))
    other.ask(Exists("/gone", watch=True))
    wire.cut()
    assert other.next(NodeChanged) == NodeChanged("/gone", "deleted")
    wire.mend()
    client.next(SessionExpired)
    assert client.next(SessionStarted).session != first
    assert client.ask(Exists("/gone"))[0].stat is None


def test_a_paused_server_ends_nothing_within_the_session_timeout(client: Client, server: ZooKeeper) -> None:
    client.next(SessionStarted)
    os.kill(server.pid, signal.SIGSTOP)
    client.store.submit([Create("/patient")], "waits")
    os.kill(server.pid, signal.SIGCONT)
    assert client.next(StoreAnswer).outcomes[0].fault is None


def test_a_server_that_was_killed_and_is_back_knows_the_session(server: ZooKeeper) -> None:
    client = Client(server.address, 5 * SESSION_MS)  # a busy machine may take seconds to start the server again
    session = client.next(SessionStarted).session
    client.ask(Create("/mine", ephemeral=True))
    server.kill()
    server.start()
    found = client.settled(Get("/mine"))
    assert found.stat is not None
    assert found.stat.session == session
    client.store.close()


def test_a_server_that_is_not_there_is_named_once_in_a_while_and_waited_for(
    server: ZooKeeper, said: queue.Queue[logging.LogRecord]
) -> None:
    """At the start, and whenever it goes."""
    server.kill()
    client = Client(server.address)
    lines = [said.get(timeout=PATIENCE_S).getMessage()]
    server.start()
    client.next(SessionStarted)
    while not said.empty():
        said.get()
    server.kill()
    lines += [said.get(timeout=PATIENCE_S).getMessage() for _ in range(2)]
    client.store.close()
    assert lines == [f"no ZooKeeper answers at {server.address}; trying on"] * 3


def test_a_node_without_content_has_no_data_rather_than_empty_data(server: ZooKeeper, other: Client) -> None:
    """An Apache broker that finds empty data in `/latest_producer_id_block` gives out no producer ids."""
    other.ask(Create("/alone"), Multi((Create("/in"), Create("/in/transaction"))))
    client = KazooClient(server.address)
    client.start()
    found = [client.get(path)[0] for path in ("/alone", "/in", "/in/transaction")]
    client.stop()
    client.close()
    assert found == [None, None, None]
    assert other.ask(Get("/alone"))[0].data == b""


def test_a_folder_of_the_ensemble_is_the_root_and_made_if_missing(server: ZooKeeper, other: Client) -> None:
    client = Client(f"{server.address}/kafka/deep")
    client.next(SessionStarted)
    client.ask(Create("/a", b"x"))
    client.store.close()
    assert other.ask(Get("/kafka/deep/a"))[0].data == b"x"


def test_an_address_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"zookeeper\.connect=127\.0\.0\.1:soon: allowed: host:port"):
        ZooKeeperStore("127.0.0.1:soon", print)
