"""The metadata server of a cluster on one machine: kazoo is the judge, and bytes where kazoo would not send them."""

from __future__ import annotations

import errno
import queue
import shutil
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient, KazooState
from kazoo.security import make_digest_acl

from kbroker.runtime.metadata_server import server as of_sockets
from kbroker.runtime.metadata_server import wire
from kbroker.runtime.metadata_server.server import MOST_FRAME_BYTES
from kbroker.runtime.metadata_server.wire import Code, EventType, Op
from tests.frames import framed, take
from tests.runtime.metadata_servers import PATIENCE_S, RunningServer
from tests.test_cost import LineCount

LEAST_S = 0.5  # the shortest session
BIG_BYTES = 1 << 20
MORE_THAN_A_SOCKET_HOLDS = 25  # answers of 2 MB


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path) as running:
        yield running


def connected(server: RunningServer) -> Iterator[Any]:
    made = KazooClient(server.address)
    made.start(PATIENCE_S)
    yield made
    made.stop()
    made.close()


client = pytest.fixture(connected, name="client")
other = pytest.fixture(connected, name="other")


class Raw:
    """A client that sends what it is told to, and gives what comes back, frame by frame."""

    def __init__(self, server: RunningServer) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        self.session, self.password = 0, bytes(16)

    def connect(self, *, session: int = 0, password: bytes = bytes(16), timeout_ms: int = 10_000) -> int:
        """Returns: the timeout granted."""
        self.send(struct.pack(">iqiq", 0, 0, timeout_ms, session) + wire.INT.pack(16) + password + b"\0")
        answer = self.receive()
        granted, self.session = struct.unpack_from(">iq", answer, 4)
        self.password = answer[20:36]
        assert answer[36:] == b"\0"
        return int(granted)

    def send(self, *frames: bytes) -> None:
        self._socket.sendall(framed(*frames))

    def receive(self) -> bytes:
        """The next frame; empty if the server has hung up."""
        try:
            return bytes(take(self._socket))
        except ConnectionError:
            return b""

    def ask(self, xid: int, op: int, body: bytes = b"") -> tuple[int, int, int, bytes]:
        """Returns: xid, zxid, error, body."""
        self.send(struct.pack(">ii", xid, op) + body)
        answer = self.receive()
        return *struct.unpack_from(">iqi", answer), answer[16:]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def raw(server: RunningServer) -> Iterator[Raw]:
    made = Raw(server)
    yield made
    made.close()


# ---- by kazoo


def test_a_node_is_made_read_set_and_deleted(client: Any) -> None:
    assert client.create("/a/b/c", b"1", makepath=True) == "/a/b/c"
    assert client.get_children("/a") == ["b"]
    before = client.get("/a/b/c")[1]
    stat = client.set("/a/b/c", b"two", version=0)
    assert (stat.version, stat.dataLength, stat.numChildren, stat.ephemeralOwner) == (1, 3, 0, 0)
    assert stat.czxid == before.czxid < stat.mzxid
    client.delete("/a", recursive=True)
    assert client.exists("/a") is None


def test_a_stat_tells_of_children(client: Any) -> None:
    client.create("/a")
    _, made = client.create("/a/b", include_data=True)
    client.create("/a/c")
    client.delete("/a/c")
    names, stat = client.get_children("/a", include_data=True)
    assert (names, stat.numChildren, stat.cversion) == (["b"], 1, 3)
    assert stat.pzxid > made.czxid


@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (zk.NoNodeError, lambda client: client.get("/none")),
        (zk.NodeExistsError, lambda client: client.create("/a")),
        (zk.NodeExistsError, lambda client: client.create("/")),
        (zk.BadVersionError, lambda client: client.set("/a", b"", version=7)),
        (zk.NotEmptyError, lambda client: client.delete("/a")),
        (zk.NoChildrenForEphemeralsError, lambda client: client.create("/e/child")),
        (zk.BadArgumentsError, lambda client: client.delete("/")),
        (zk.InvalidACLError, lambda client: client.create("/mine", acl=[make_digest_acl("me", "secret", all=True)])),
        (zk.UnimplementedError, lambda client: client.set_acls("/a", [make_digest_acl("me", "secret", all=True)])),
    ],
)
def test_what_cannot_be_is_said_by_zookeepers_errors(client: Any, error: type[Exception], wrong: Any) -> None:
    client.create("/a")
    client.create("/a/b")
    client.create("/e", ephemeral=True)
    with pytest.raises(error):
        wrong(client)


def test_every_node_is_everybodys(client: Any) -> None:
    client.create("/a")
    (access,), _ = client.get_acls("/a")
    assert (access.perms, access.id.scheme, access.id.id) == (31, "world", "anyone")


def test_a_transaction_is_done_as_a_whole_or_not_at_all(client: Any) -> None:
    done = client.transaction()
    done.create("/t", b"1")
    done.set_data("/t", b"2")
    done.check("/t", version=1)
    done.create("/t/n-", sequence=True)
    path, stat, checked, number = done.commit()
    assert (path, stat.version, checked, number) == ("/t", 1, True, "/t/n-0000000000")
    failed = client.transaction()
    failed.delete("/t/n-0000000000")
    failed.check("/t", version=9)
    failed.create("/never")
    assert [type(each) for each in failed.commit()] == [zk.RolledBackError, zk.BadVersionError, zk.RuntimeInconsistency]
    assert client.get_children("/t") == ["n-0000000000"]


def test_a_number_may_be_the_whole_name_of_a_node(client: Any) -> None:
    client.create("/queue")
    assert [client.create("/queue/", sequence=True) for _ in range(2)] == ["/queue/0000000000", "/queue/0000000001"]
    assert client.get_children("/queue") == ["0000000000", "0000000001"]
    assert client.create("/", sequence=True) == "/0000000001"


def test_recipes_work(client: Any, other: Any) -> None:
    lock, wanted = client.Lock("/lock", "one"), other.Lock("/lock", "two")
    assert lock.acquire(timeout=PATIENCE_S)
    assert not wanted.acquire(blocking=False)
    lock.release()
    assert wanted.acquire(timeout=PATIENCE_S)
    wanted.release()
    client.Party("/party", "one").join()
    assert list(other.Party("/party", "two")) == ["one"]


def test_a_watcher_hears_of_another_clients_changes(client: Any, other: Any) -> None:
    heard: queue.Queue[tuple[str, str]] = queue.Queue()

    def note(event: Any) -> None:
        heard.put((event.type, event.path))

    client.create("/a")
    client.get("/a", watch=note)
    client.get_children("/a", watch=note)
    client.exists("/b", watch=note)
    other.create("/a/child")
    other.set("/a", b"x")
    other.create("/b")
    assert [heard.get(timeout=PATIENCE_S) for _ in range(3)] == [
        ("CHILD", "/a"), ("CHANGED", "/a"), ("CREATED", "/b"),
    ]  # fmt: skip


def test_ephemeral_nodes_go_with_their_session(client: Any, other: Any) -> None:
    gone: queue.Queue[str] = queue.Queue()
    other.create("/mine", ephemeral=True)
    assert client.exists("/mine", watch=lambda event: gone.put(event.type)).ephemeralOwner == other.client_id[0]
    other.stop()
    assert gone.get(timeout=PATIENCE_S) == "DELETED"


def test_a_session_outlives_its_connection(server: RunningServer, client: Any) -> None:
    client.create("/mine", ephemeral=True)
    session = client.client_id[0]
    states: queue.Queue[str] = queue.Queue()
    client.add_listener(states.put)
    client._connection._socket.shutdown(socket.SHUT_RDWR)
    assert [states.get(timeout=PATIENCE_S) for _ in range(2)] == [KazooState.SUSPENDED, KazooState.CONNECTED]
    assert client.exists("/mine").ephemeralOwner == session


def test_on_a_mac_a_connection_that_has_no_options_is_heard_all_the_same(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was reset: only what reads it ends it in order."""

    def no_options(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(socket.socket, "setsockopt", no_options)
    with closing(Raw(server)) as heard:
        assert heard.connect(timeout_ms=10_000) > 0


def test_what_was_answered_is_there_after_a_restart_and_sessions_are_not(server: RunningServer, client: Any) -> None:
    client.create("/stays", b"x")
    client.create("/gone", ephemeral=True)
    before = client.exists("/stays").czxid
    states: queue.Queue[str] = queue.Queue()
    client.add_listener(states.put)
    server.stop()
    server.start()
    while states.get(timeout=PATIENCE_S) != KazooState.CONNECTED:
        pass
    assert client.retry(client.get, "/stays")[0] == b"x"
    assert client.exists("/gone") is None
    client.create("/new")
    assert client.exists("/new").czxid > before


def test_no_transaction_after_a_kill_has_the_number_of_one_that_failed_before(raw: Raw, tmp_path: Path) -> None:
    def made(path: str) -> bytes:
        return wire.string(path) + wire.INT.pack(-1) + wire.access() + wire.INT.pack(0)

    raw.connect()
    raw.ask(1, Op.CREATE, made("/first"))
    _, failed, code, _ = raw.ask(2, Op.DELETE, wire.string("/none") + wire.INT.pack(-1))
    as_killed = Path(shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy")))
    with RunningServer(as_killed) as server:
        later = Raw(server)
        later.connect()
        _, zxid, *_ = later.ask(1, Op.CREATE, made("/new"))
        later.close()
    assert code == Code.NO_NODE
    assert zxid > failed


# ---- sessions, to the byte


def test_a_session_that_is_not_heard_of_is_over(server: RunningServer, raw: Raw, client: Any) -> None:
    gone: queue.Queue[str] = queue.Queue()
    assert raw.connect(timeout_ms=1) == LEAST_S * 1000
    made = wire.string("/e") + wire.INT.pack(-1) + wire.access() + wire.INT.pack(1)
    assert raw.ask(1, Op.CREATE, made)[2] == Code.OK
    client.exists("/e", watch=lambda event: gone.put(event.type))
    assert gone.get(timeout=PATIENCE_S) == "DELETED"
    assert raw.receive() == b""
    late = Raw(server)
    assert late.connect(session=raw.session, password=raw.password) == 0
    assert late.receive() == b""
    late.close()


def test_sessions_that_end_together_are_one_line_but_for_brokers(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stay:
        silent = [stay.enter_context(closing(Raw(server))) for _ in range(4)]
        for each in silent:
            each.connect()
        for xid, path in enumerate(("/brokers", "/brokers/ids", "/brokers/ids/7")):
            made = wire.string(path) + wire.INT.pack(-1) + wire.access() + wire.INT.pack(path.endswith("7"))
            assert silent[0].ask(xid, Op.CREATE, made)[2] == Code.OK
        with server.paused():
            later_ms = of_sockets._now_ms() + 20_000
            monkeypatch.setattr(of_sockets, "_now_ms", lambda: later_ms)
            server.server._expire()
    assert [line.getMessage() for line in caplog.records] == [
        "broker 7 was not heard of for 10000 ms: its session is over",
        f"3 sessions of no broker, {silent[1].session} the first, not heard of in time: over",
    ]


def test_connections_to_which_nothing_is_told_cost_nothing(server: RunningServer) -> None:
    def lines(others: int) -> int:
        with ExitStack() as stay:
            for _ in range(others):
                stay.enter_context(closing(Raw(server))).connect()
            server.await_turns()
            with server.paused(), LineCount() as count:
                server.server._settle()
            return count.lines

    assert lines(30) == lines(2)


def test_a_ping_keeps_a_session(raw: Raw) -> None:
    raw.connect()
    assert raw.ask(wire.PING_XID, Op.PING)[::2] == (wire.PING_XID, Code.OK)


def test_nobody_loses_a_session_because_the_server_stood_still(server: RunningServer, raw: Raw) -> None:
    raw.connect(timeout_ms=1)
    raw._socket.settimeout(3 * LEAST_S)
    with server.paused(), pytest.raises(TimeoutError):
        raw.receive()
    raw._socket.settimeout(PATIENCE_S)
    assert raw.ask(wire.PING_XID, Op.PING)[2] == Code.OK


def test_a_session_is_only_for_who_knows_its_password(server: RunningServer, raw: Raw) -> None:
    raw.connect()
    thief = Raw(server)
    assert thief.connect(session=raw.session, password=b"x" * 16) == 0
    thief.close()
    assert raw.ask(1, Op.PING)[2] == Code.OK


def test_a_session_that_comes_back_takes_its_place_from_the_old_connection(server: RunningServer, raw: Raw) -> None:
    raw.connect()
    again = Raw(server)
    assert again.connect(session=raw.session, password=raw.password) > 0
    assert raw.receive() == b""
    assert again.ask(1, Op.SYNC, wire.string("/"))[2:] == (Code.OK, wire.string("/"))
    again.close()


def test_watches_end_with_their_connection(server: RunningServer, raw: Raw, client: Any) -> None:
    raw.connect()
    assert raw.ask(1, Op.EXISTS, wire.string("/w") + b"\1")[2] == Code.NO_NODE
    again = Raw(server)
    again.connect(session=raw.session, password=raw.password)
    client.create("/w")
    assert again.ask(2, Op.SYNC, wire.string("/"))[0] == 2  # not an event
    again.close()


def test_watches_that_are_set_again_fire_for_what_has_changed_meanwhile(raw: Raw, client: Any) -> None:
    raw.connect()
    for path in ("/set", "/gone", "/parent", "/same"):
        client.create(path)
    seen = raw.ask(1, Op.SYNC, wire.string("/"))[1]
    client.set("/set", b"x")
    client.delete("/gone")
    client.create("/parent/child")
    client.create("/made")
    data, exist = ("/set", "/same", "/gone"), ("/made", "/later")
    child = ("/parent", "/same")
    lists = [wire.vector(map(wire.string, paths)) for paths in (data, exist, child)]
    raw.send(struct.pack(">iiq", -8, Op.SET_WATCHES, seen) + b"".join(lists))
    events = [raw.receive() for _ in range(5)]
    assert events == [
        wire.event(kind, path)[4:]
        for kind, path in (
            (EventType.DATA_CHANGED, "/set"),
            (EventType.DELETED, "/gone"),
            (EventType.CREATED, "/made"),
            (EventType.CHILDREN_CHANGED, "/parent"),
        )
    ] + [events[-1]]
    assert struct.unpack_from(">iqi", events[-1])[::2] == (-8, Code.OK)
    client.set("/same", b"x")
    client.create("/later")
    assert [raw.receive() for _ in range(2)] == [
        wire.event(EventType.DATA_CHANGED, "/same")[4:], wire.event(EventType.CREATED, "/later")[4:],
    ]  # fmt: skip


# ---- what no client should send


@pytest.mark.parametrize(
    "sent",
    [
        b"ruok",
        wire.INT.pack(-1),
        wire.INT.pack(MOST_FRAME_BYTES + 1),
        wire.INT.pack(4) + b"\xff\xff\xff\xff",
        wire.INT.pack(0),
    ],
)
def test_garbage_ends_its_connection_and_no_others(raw: Raw, client: Any, sent: bytes) -> None:
    raw._socket.sendall(sent)
    assert raw.receive() == b""
    assert client.exists("/") is not None


@pytest.mark.parametrize("sent", [b"", wire.INT.pack(45) + bytes(20)])
def test_who_asks_for_no_session_is_hung_up_on(
    raw: Raw, client: Any, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw._socket.sendall(sent)
    monkeypatch.setattr(of_sockets, "SILENT_S", 0)
    assert raw.receive() == b""
    assert client.exists("/") is not None


def test_every_truncation_of_a_request_ends_its_connection(server: RunningServer, client: Any) -> None:
    body = wire.string("/a") + wire.buffer(b"data") + wire.access() + wire.INT.pack(0)
    whole = struct.pack(">ii", 1, Op.CREATE) + body
    for size in range(len(whole)):
        raw = Raw(server)
        raw.connect()
        raw.send(whole[:size])
        assert raw.receive() == b"", size
        raw.close()
    assert client.exists("/a") is None


def test_requests_come_a_byte_at_a_time(raw: Raw) -> None:
    raw.connect()
    frame = struct.pack(">ii", 7, Op.EXISTS) + wire.string("/none") + b"\0"
    for at in range(4 + len(frame)):
        raw._socket.sendall((wire.INT.pack(len(frame)) + frame)[at : at + 1])
    assert struct.unpack_from(">iqi", raw.receive())[::2] == (7, Code.NO_NODE)


@pytest.mark.parametrize("path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0b"])
def test_a_path_that_cannot_be_is_a_bad_argument(raw: Raw, path: str) -> None:
    raw.connect()
    assert raw.ask(1, Op.GET_DATA, wire.string(path) + b"\0")[2] == Code.BAD_ARGUMENTS
    part = struct.pack(">i?i", Op.DELETE, False, -1) + wire.string(path) + wire.INT.pack(-1)
    answer = raw.ask(2, Op.MULTI, part + wire.MULTI_END)
    assert answer[2:] == (Code.OK, wire.multi_fault(Code.BAD_ARGUMENTS) + wire.MULTI_END)


@pytest.mark.parametrize("op", [7, 17, 19, 102, 103, 106, 999])
def test_what_is_not_served_is_said_so(raw: Raw, op: int) -> None:
    raw.connect()
    assert raw.ask(1, op, wire.string("/"))[::2] == (1, Code.UNIMPLEMENTED)


def test_a_disk_that_fails_is_told_and_nobody_is_answered(server: RunningServer, raw: Raw) -> None:
    raw.connect()
    server.server._file._file.close()
    made = wire.string("/a") + wire.INT.pack(-1) + wire.access() + wire.INT.pack(0)
    raw.send(struct.pack(">ii", 1, Op.CREATE) + made)
    raw._socket.settimeout(LEAST_S)
    with pytest.raises(TimeoutError):
        raw.receive()
    assert len(server.failed) == 1


def test_who_asks_for_more_than_it_has_read_is_answered_bit_by_bit(server: RunningServer, raw: Raw) -> None:
    raw.connect()
    big = wire.string("/big") + wire.buffer(b"x" * BIG_BYTES) + wire.access() + wire.INT.pack(0)
    assert raw.ask(1, Op.CREATE, big)[2] == Code.OK
    asked = [struct.pack(">ii", xid, Op.GET_DATA) + wire.string("/big") + b"\0" for xid in range(2, 102)]
    raw._socket.sendall(b"".join(wire.INT.pack(len(frame)) + frame for frame in asked))  # 100 MB, if all were answered
    server.await_turns()
    (held,) = (len(each.unsent) + sum(map(len, each.connection.out)) for each in server.server._wires.values())
    assert held <= of_sockets.MOST_UNSENT_BYTES
    assert [wire.xid_of(raw.receive()) for _ in asked] == [*range(2, 102)]


def test_who_reads_late_is_not_told_of_a_change_that_was_not_written(server: RunningServer, raw: Raw) -> None:
    raw.connect()
    big = wire.string("/big") + wire.buffer(b"x" * (MOST_FRAME_BYTES // 2)) + wire.access() + wire.INT.pack(0)
    assert raw.ask(1, Op.CREATE, big)[2] == Code.OK
    asked = [
        struct.pack(">ii", xid, Op.GET_DATA) + wire.string("/big") + b"\0"
        for xid in range(2, 2 + MORE_THAN_A_SOCKET_HOLDS)
    ]
    raw.send(*asked)  # at once: what was read by the time that the file is closed is all of it
    server.await_turns()
    server.server._file._file.close()
    made = wire.string("/a") + wire.INT.pack(-1) + wire.access() + wire.INT.pack(0)
    raw.send(struct.pack(">ii", 99, Op.CREATE) + made)
    server.await_turns()
    assert len(server.failed) == 1
    told = [wire.xid_of(raw.receive()) for _ in range(MORE_THAN_A_SOCKET_HOLDS)]
    assert told == [*range(2, 2 + MORE_THAN_A_SOCKET_HOLDS)]
    raw._socket.settimeout(LEAST_S)
    with pytest.raises(TimeoutError):
        raw.receive()
