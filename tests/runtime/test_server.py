"""The server: who is let in and for how long, the timer, and controllers that go first."""

from __future__ import annotations

import errno
import select
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.broker.jobs import Errand
from kbroker.runtime.server import HANDSHAKES_PER_TURN, ListenerLimits, bound_socket
from kbroker.runtime.ssl_transport import SCRATCH_BYTES, SslTransport
from tests.certificates import Authority
from tests.runtime.loopback import LIMITS, Loopback, is_closed, running


@pytest.fixture
def here() -> Iterator[Loopback]:
    with running() as loopback:
        yield loopback


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as a warning."""
    return [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]


class MacSocket(socket.socket):
    """As macOS has them: buffers that are too large are refused, and a connection that was reset has no options."""

    is_reset = False

    def setsockopt(self, level: int, option: int, value: Any) -> None:  # type: ignore[override]
        if self.is_reset:
            raise OSError(errno.EINVAL, "Invalid argument")
        if option in (socket.SO_SNDBUF, socket.SO_RCVBUF) and value > 8 << 20:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        super().setsockopt(level, option, value)


@pytest.fixture
def on_a_mac(monkeypatch: pytest.MonkeyPatch) -> type[MacSocket]:
    monkeypatch.setattr(socket, "socket", MacSocket)
    return MacSocket


def test_on_a_mac_a_buffer_is_as_large_as_it_may_be(on_a_mac: type[MacSocket]) -> None:
    with bound_socket("127.0.0.1", 0, receive_buffer_bytes=100 << 20):
        pass
    with running(LIMITS._replace(send_buffer_bytes=100 << 20)) as here:
        client = here.connect()
        here.send(client, b"e1")
        assert here.answers(client, 1) == [b"e1"]


def test_on_a_mac_a_client_that_has_reset_its_connection_disturbs_no_other(
    on_a_mac: type[MacSocket], monkeypatch: pytest.MonkeyPatch, here: Loopback
) -> None:
    first = here.connect()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(on_a_mac, "is_reset", True)
        gone = socket.create_connection(first.getpeername())
        here.turn(3)
        assert is_closed(gone)
    here.send(first, b"e1")
    assert here.answers(first, 1) == [b"e1"]


# -- where it listens


@contextmanager
def listening_at(host: str, port: int = 0) -> Iterator[int]:
    """The port."""
    with bound_socket(host, port, receive_buffer_bytes=-1) as bound:
        bound.listen()
        yield bound.getsockname()[1]


@pytest.mark.parametrize(
    "host", ["", "::", "0:0:0:0:0:0:0:0", "::0", "::ffff:0.0.0.0", "0.0.0.0", "0"], ids=lambda host: host or "none"
)
def test_on_every_interface_clients_of_both_families_are_let_in(host: str) -> None:
    with listening_at(host) as port:
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port)).close()


def test_a_client_of_ipv4_is_known_by_its_own_address_where_both_families_are_let_in(here: Loopback) -> None:
    here.listen("BOTH", host="::")
    here.connect("BOTH")
    assert here.core.channels[-1].session.peer_host == "127.0.0.1"


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("::ffff:127.0.0.1", "::1")])
def test_at_one_address_clients_of_no_other_are_let_in(host: str, other: str) -> None:
    with listening_at(host) as port:
        socket.create_connection((host, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port))


def test_a_port_may_have_a_listener_of_each_family() -> None:
    """KIP-797."""
    with listening_at("127.0.0.1") as port, listening_at("::1", port) as same:
        assert same == port


# -- who is let in


def test_beyond_max_connections_a_client_is_refused_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with running(LIMITS._replace(max_connections=2)) as here:
        clients = [here.connect() for _ in range(3)]
        assert [is_closed(client) for client in clients] == [False, False, True]
        assert ["max.connections=2" in line for line in warnings(caplog)] == [True]


def test_clients_leave_the_logs_their_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    with running(LIMITS._replace(most_sockets=2)) as here:
        clients = [here.connect() for _ in range(3)]
        assert [is_closed(client) for client in clients] == [False, False, True]
        assert ["2 are open, the other descriptors" in line for line in warnings(caplog)] == [True]


def test_a_client_that_leaves_makes_room() -> None:
    with running(LIMITS._replace(max_connections=1)) as here:
        here.connect().close()
        here.until(lambda: here.core.gone != [])
        assert not is_closed(here.connect())


def test_beyond_max_connections_per_ip_a_client_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with running(LIMITS._replace(max_connections_per_ip=1)) as here:
        clients = [here.connect() for _ in range(2)]
        assert [is_closed(client) for client in clients] == [False, True]


def test_an_override_counts_for_its_address_alone() -> None:
    limits = LIMITS._replace(max_connections_per_ip=0, max_connections_per_ip_overrides={"127.0.0.1": 2})
    with running(limits) as here:
        clients = [here.connect() for _ in range(3)]
        assert [is_closed(client) for client in clients] == [False, False, True]


def test_who_connects_faster_than_it_may_waits_to_be_hung_up_on(here: Loopback) -> None:
    """KIP-612."""
    here.core.connection_waits = [300, 0]
    began_s = time.monotonic()
    first = here.connect()
    here.until(lambda: here.server.refused == 1)
    assert not is_closed(here.connect())
    here.until(lambda: is_closed(first))
    assert time.monotonic() - began_s > 0.25


def test_beyond_the_rate_of_new_connections_they_wait() -> None:
    with running(LIMITS._replace(creation_rate=1)) as here:
        for _ in range(11):  # ten windows may bring one each; behind the next the listener rests
            here.connect()
        here.until(lambda: here.server.accepted == 11)
        began_s = time.monotonic()
        socket.create_connection(("127.0.0.1", here.ports["PLAINTEXT"])).close()
        here.until(lambda: here.server.accepted == 12)
        assert time.monotonic() - began_s > 0.5


def test_a_listener_may_have_limits_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    """KIP-402."""
    with running(LIMITS._replace(of_listeners={"OTHER": ListenerLimits(max_connections=1)})) as here:
        here.listen("OTHER")
        kept, refused = here.connect("OTHER"), here.connect("OTHER")
        assert (is_closed(kept), is_closed(refused), is_closed(here.connect())) == (False, True, False)
        assert ["listener.name.other.max.connections=1 are open" in line for line in warnings(caplog)] == [True]
        kept.close()
        here.until(lambda: here.core.gone != [])
        assert not is_closed(here.connect("OTHER"))


def test_a_listeners_own_rate_of_new_connections_holds_up_no_other() -> None:
    """KIP-612."""
    with running(LIMITS._replace(of_listeners={"OTHER": ListenerLimits(creation_rate=1)})) as here:
        here.listen("OTHER")
        for _ in range(11):
            here.connect("OTHER")
        here.until(lambda: here.server.accepted == 11)
        began_s = time.monotonic()
        socket.create_connection(("127.0.0.1", here.ports["OTHER"])).close()
        here.connect()
        here.until(lambda: here.server.accepted == 12)
        assert time.monotonic() - began_s < 0.5
        here.until(lambda: here.server.accepted == 13)
        assert time.monotonic() - began_s > 0.5


def test_limits_that_change_count_from_then_on(here: Loopback) -> None:
    first = here.connect()
    here.server.limit(LIMITS._replace(max_connections=1))
    assert (is_closed(here.connect()), is_closed(first)) == (True, False)


def test_the_control_planes_listener_is_not_shut_by_clients() -> None:
    with running(LIMITS._replace(max_connections=1)) as here:
        here.listen("CONTROL", control=True)
        here.connect()
        assert not is_closed(here.connect("CONTROL"))


def test_out_of_descriptors_the_listener_rests_and_comes_back(
    here: Loopback, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accepts: list[int] = []

    def accept(self: socket.socket) -> Any:
        accepts.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    client = socket.create_connection(("127.0.0.1", here.ports["PLAINTEXT"]))
    here.clients.append(client)
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "accept", accept)
        here.until(lambda: bool(accepts))
        here.turn(50)
    here.until(lambda: here.core.channels != [])
    assert (len(accepts), len(warnings(caplog))) == (1, 1)


def test_a_peer_that_vanished_is_asked_after_by_the_kernel(here: Loopback) -> None:
    here.connect()
    assert here.connection()._transport.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


# -- for how long


def test_a_connection_is_closed_once_it_was_idle_for_too_long(here: Loopback) -> None:
    client = here.connect()
    here.clock.ms += 59_999
    here.server.sweep()
    still = not is_closed(client)
    here.clock.ms += 1
    here.server.sweep()
    assert (still, is_closed(client)) == (True, True)


def test_what_a_client_sends_or_takes_keeps_it(here: Loopback) -> None:
    client = here.connect()
    here.clock.ms += 59_999
    here.send(client, b"e")
    here.answers(client, 1)
    here.clock.ms += 1
    here.server.sweep()
    assert not is_closed(client)


def test_a_client_that_waits_for_its_answer_is_not_idle(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"p")
    here.until(lambda: here.core.seen == [b"p"])
    here.clock.ms += 1_000_000
    here.server.sweep()
    assert not is_closed(client)


def test_a_client_that_does_not_read_its_answer_is_idle(here: Loopback) -> None:
    client = here.connect(receive_buffer_bytes=4096)
    for _ in range(20):
        here.send(client, b"e" + bytes(1_000_000))
    here.turn(20)
    here.clock.ms += 60_000
    here.server.sweep()
    assert len(here.core.gone) == 1


def test_below_zero_nobody_is_idle() -> None:
    with running(LIMITS._replace(idle_ms=-1)) as here:
        client = here.connect()
        here.clock.ms += 10**12
        here.server.sweep()
        assert not is_closed(client)


def test_the_sweep_comes_by_itself(here: Loopback) -> None:
    here.server.limit(LIMITS._replace(idle_ms=10))
    client = here.connect()
    here.clock.ms += 10
    here.await_close(client)
    assert len(here.core.gone) == 1


# -- the timer and the end


def test_the_core_is_woken_at_its_deadline_and_not_again(here: Loopback) -> None:
    here.core.effects.deadline_ms = here.clock.ms
    here.server.settle()
    here.until(lambda: here.core.expired_ms != [])
    here.turn(10)
    assert here.core.expired_ms == [here.clock.ms]


def test_closing_hangs_up_on_everyone_and_listens_no_more(here: Loopback) -> None:
    client = here.connect()
    here.server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", here.ports["PLAINTEXT"]))
    assert is_closed(client)


# -- the lane


def both_ready(here: Loopback, data: socket.socket, control: socket.socket) -> None:
    """Many requests of a client and then one of a controller, all there before the loop turns."""
    here.send(data, *[b"e"] * 10)
    here.send(control, b"econtrol")


def test_the_control_planes_listener_goes_first(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    data, control = here.connect(), here.connect("CONTROL")
    both_ready(here, data, control)
    here.until(lambda: len(here.core.seen) == 11)
    assert here.core.seen[0] == b"econtrol"


def test_all_that_a_controller_has_sent_goes_first(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    data, control = here.connect(), here.connect("CONTROL")
    here.send(data, *[b"e"] * 10)
    here.send(control, *[b"econtrol"] * 60)
    here.until(lambda: len(here.core.seen) == 70)
    assert here.core.seen[:60] == [b"econtrol"] * 60


def test_what_moved_is_looked_at_once_for_all_that_came_together(here: Loopback) -> None:
    clients = [here.connect() for _ in range(3)]
    receive = here.core.receive

    def moving(channel: Any, frame: memoryview, now_ms: int) -> None:
        receive(channel, frame, now_ms)
        here.core.effects.moved[bytes(frame)] = None

    here.core.receive = moving  # type: ignore[method-assign]
    for number, client in enumerate(clients):
        here.send(client, b"e%d" % number)
    here.until(lambda: here.core.looked != [])
    assert [sorted(moved) for moved in here.core.looked] == [[b"e0", b"e1", b"e2"]]  # type: ignore[type-var]


def waiting(here: Loopback, count: int, requests: int = 1) -> list[socket.socket]:
    """Clients with so many requests each that wait, all of them to be answered when what has moved is looked at."""
    clients = [here.connect() for _ in range(count)]
    for client in clients:
        here.send(client, *[b"p"] * requests)
    here.until(lambda: len(here.core.seen) == count * requests)
    here.core.answers = [channel for channel in here.core.channels for _ in range(requests)]
    here.core.effects.moved[b"key"] = None
    here.server.settle()
    return clients


def test_an_answer_leaves_before_the_next_is_made(here: Loopback) -> None:
    (first, _) = waiting(here, 2)
    answer, left = here.core.answer, []

    def answering(channel: Any) -> None:
        left.append(here.server.bytes_out)
        answer(channel)

    here.core.answer = answering  # type: ignore[assignment]
    here.until(lambda: len(left) == 2)
    assert (left, here.answers(first, 1)) == ([0, 5], [b"p"])


def test_a_connections_answers_leave_together(here: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(here, 1, requests=3)
    flushed: list[int] = []
    monkeypatch.setattr(type(here.connection()), "flush", lambda self: flushed.append(len(self.channel.out)))
    here.until(lambda: here.core.looked != [])
    assert flushed == [3]


def test_what_came_in_one_turn_is_settled_once(here: Loopback) -> None:
    clients = [here.connect() for _ in range(3)]
    asked: list[int] = []  # how many requests there had been, each time that the core was asked for its deadline

    here.core.effects.asked = lambda: asked.append(len(here.core.seen))
    for client in clients:
        here.send(client, b"e")
    here.until(lambda: len(here.core.seen) == 3)
    assert asked == [3]


def test_the_lane_is_emptied_before_each_request_not_each_turn(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    data, control = here.connect(), here.connect("CONTROL")
    receive = here.core.receive

    def busy(*call: Any) -> None:
        receive(*call)
        if len(here.core.seen) == 3:  # while the third request is handled
            here.send(control, b"econtrol")

    here.core.receive = busy  # type: ignore[method-assign]
    here.send(data, *[b"e"] * 10)
    here.until(lambda: len(here.core.seen) == 11)
    assert here.core.seen[3] == b"econtrol"


def test_the_lane_is_not_tried_for_who_comes_alone(here: Loopback) -> None:
    data = here.connect()
    tried: list[bytes] = []
    here.server.lane.append(cast(Any, SimpleNamespace(receive=lambda: tried.append(here.core.seen[-1]))))
    here.send(data, b"e1", b"e2", b"e3")
    here.until(lambda: len(here.core.seen) == 3)
    here.send(data, b"e4")
    here.until(lambda: len(here.core.seen) == 4)
    assert tried == [b"e1", b"e2"]


def test_a_connection_that_turns_out_to_be_a_controllers_goes_first_from_then_on(here: Loopback) -> None:
    data, control = here.connect(), here.connect()
    here.send(control, b"c")
    here.answers(control, 1)
    here.core.seen.clear()
    both_ready(here, data, control)
    here.until(lambda: len(here.core.seen) == 11)
    assert here.core.seen[0] == b"econtrol"


def test_bytes_of_a_clients_frames_survive_a_controllers_in_between(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    data, control = here.connect(), here.connect("CONTROL")
    frames = [b"e%d" % number * 1000 for number in range(10)]
    here.send(data, *frames)
    here.send(control, *[b"e" + b"\xff" * 5000] * 10)
    assert here.answers(data, 10) == frames


def test_a_controllers_large_request_comes_in_whole(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    control = here.connect("CONTROL")
    here.send(control, b"e" + bytes(500_000), b"e2")
    assert [len(answer) for answer in here.answers(control, 2)] == [500_001, 2]


def test_a_controller_that_goes_leaves_the_lane(here: Loopback) -> None:
    here.listen("CONTROL", control=True)
    here.connect("CONTROL").close()
    here.until(lambda: here.core.gone != [])
    assert here.server.lane == []


def test_connections_and_their_bytes_are_counted(here: Loopback) -> None:
    client = here.connect()
    here.send(client, b"e2345")
    here.answers(client, 1)
    server = here.server
    assert (server.accepted, dict(server.connections()), server.bytes_in) == (1, {"PLAINTEXT": 1}, 9)
    assert server.bytes_out == 9


# -- work for the disk


def test_whose_job_it_is_hears_of_its_end_though_nobody_foresaw_it(here: Loopback) -> None:
    ends: list[Any] = []
    core = cast(Any, here.core)
    core.step = lambda event, now_ms: ends.append(event)
    core.effects.take_jobs = lambda: [] if here.pool.jobs or ends else [Errand(cast(Any, None), cast(Any, "owner"))]
    here.server.settle()
    ((_, done),) = here.pool.jobs
    with pytest.raises(MemoryError):  # for whoever reports bugs
        done(MemoryError())
    assert [(end.errand.owner, isinstance(end.error, OSError)) for end in ends] == [("owner", True)]
    assert here.server.jobs_done


def test_of_many_handshakes_a_few_go_on_before_others_have_their_turn(here: Loopback, tmp_path: Path) -> None:
    authority, done = Authority(tmp_path), []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.broker)
    make, scratch = partial(context.wrap_bio, server_side=True), memoryview(bytearray(SCRATCH_BYTES))
    here.listen("TLS", transport=lambda sock: SslTransport(sock, make, done.append, scratch))
    clients = []
    for _ in range(3 * HANDSHAKES_PER_TURN):
        client = authority.context().wrap_bio(ssl.MemoryBIO(), out := ssl.MemoryBIO(), server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        clients.append((here.connect("TLS"), out.read()))
    other = here.connect()
    for client, hello in clients:
        client.sendall(hello)
    here.send(other, b"hello")
    said = []
    while len(said) < len(clients):
        here.turn()
        before, said = len(said), [client for client, _ in clients if select.select([client], [], [], 0)[0]]
        assert len(said) - before <= HANDSHAKES_PER_TURN
        if before == 0 and said:
            assert here.core.seen == [b"hello"]
    assert done == []
