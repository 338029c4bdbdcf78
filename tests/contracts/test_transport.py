"""What every transport keeps, however it changes the bytes on their way. Both ends of a connection are of the kind.

A new kind is a line in `KINDS`: of two sockets that are connected it makes the server's end and the client's.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kbroker.runtime.kernel_ssl_transport import KernelSslTransport, kernel_fault
from kbroker.runtime.ssl_transport import SCRATCH_BYTES, SslTransport
from kbroker.runtime.transport import PlaintextTransport, Transport, WantReadError, WantWriteError
from tests.certificates import Authority
from tests.runtime.veiled_transport import VeiledTransport

Kind = Callable[[socket.socket, socket.socket], tuple[Transport, Transport]]
PATIENCE_S = 10.0
ROOM_BYTES = 1 << 16
SCRATCH = memoryview(bytearray(SCRATCH_BYTES))


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    with TemporaryDirectory() as folder:
        authority = Authority(Path(folder))
        accepts, connects = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority.context()
        accepts.load_cert_chain(authority.broker)
    return accepts, connects


def tls_on_the_socket(server: socket.socket, client: socket.socket) -> tuple[Transport, Transport]:
    """As for the kernel's TLS, which OpenSSL does here."""
    accepts, connects = tls_contexts()
    options = {"do_handshake_on_connect": False}
    return (
        KernelSslTransport(server, partial(accepts.wrap_socket, server_side=True, **options), id),
        KernelSslTransport(client, partial(connects.wrap_socket, server_hostname="127.0.0.1", **options), id),
    )


def tls(version: ssl.TLSVersion, server: socket.socket, client: socket.socket) -> tuple[Transport, Transport]:
    accepts, connects = tls_contexts()
    accepts.maximum_version = connects.maximum_version = version
    make = partial(connects.wrap_bio, server_hostname="127.0.0.1")
    return (
        SslTransport(server, partial(accepts.wrap_bio, server_side=True), id, SCRATCH),
        SslTransport(client, make, id, SCRATCH),
    )


KINDS: dict[str, Kind] = {
    "plaintext": lambda server, client: (PlaintextTransport.over(server), PlaintextTransport.over(client)),
    "TLS 1.3": partial(tls, ssl.TLSVersion.TLSv1_3),
    "TLS 1.2": partial(tls, ssl.TLSVersion.TLSv1_2),
    "TLS on the socket": tls_on_the_socket,
    "veiled": lambda server, client: (VeiledTransport(server), VeiledTransport(client, is_client=True)),
}


@pytest.fixture(params=KINDS)
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Transport, Transport]]:
    """The server's and the client's."""
    made = KINDS[request.param](*socket.socketpair())
    yield made
    for each in made:
        each.close()


class Attempts:
    """Calls of one transport, each made only when it may get anywhere."""

    def __init__(self, transport: Transport, usual: int) -> None:
        self.transport, self._usual = transport, usual
        self.waits_for = 0  # events of the socket

    def make(self, call: Callable[[], int]) -> int | None:
        """What it returns; None if it has to wait."""
        try:
            done = call()
        except WantReadError:
            self.waits_for = select.POLLIN
        except WantWriteError:
            self.waits_for = select.POLLOUT
        except BlockingIOError:
            self.waits_for = self._usual
        else:
            self.waits_for = 0
            return done
        return None


def wait(*all_: Attempts) -> None:
    """Until one of them may go on."""
    poll = select.poll()
    for each in all_:
        if not each.waits_for:
            return
        poll.register(each.transport.fileno(), each.waits_for)
    assert poll.poll(PATIENCE_S * 1000), "it waits for what does not come"


def carry(source: Transport, target: Transport, data: bytes, room: int = ROOM_BYTES) -> bytes:
    """What arrives at the target."""
    sender, receiver = Attempts(source, select.POLLOUT), Attempts(target, select.POLLIN)
    rest, got, view = memoryview(data), bytearray(), memoryview(bytearray(room))
    while len(got) < len(data):
        if rest:
            taken = sender.make(partial(source.send, rest))
            rest = rest[taken:] if taken else rest
        size = receiver.make(lambda: target.recv_into(view))
        assert size != 0, "it has ended"
        got += view[: size or 0]
        if len(got) < len(data):
            wait(*([sender] if rest else []), receiver)
    return bytes(got)


@pytest.mark.parametrize("room", [1, 100, ROOM_BYTES])
def test_all_arrives_in_order_in_rooms_of_any_size(ends: tuple[Transport, Transport], room: int) -> None:
    server, client = ends
    for source, target in ((client, server), (server, client), (client, server)):
        data = os.urandom(max(100, 50 * room))
        assert carry(source, target, data, room) == data


@pytest.mark.parametrize("size", [1, 4_000, 4_090, 4_096, 9_000, 12_200, 12_288, 16_384, 16_385, 40_000])
def test_what_comes_first_arrives_though_nothing_follows_it(ends: tuple[Transport, Transport], size: int) -> None:
    """Whatever is taken in at a time: nothing is left inside that no readiness tells of."""
    server, client = ends
    carry(server, client, b"greeted")
    data = os.urandom(size)
    assert carry(client, server, data) == data


def test_more_than_a_socket_holds_arrives(ends: tuple[Transport, Transport]) -> None:
    server, client = ends
    data = os.urandom(1 << 20)
    assert carry(client, server, data[:10]) == data[:10]
    assert carry(server, client, data) == data


def test_nothing_is_to_be_received_before_it_is_sent(ends: tuple[Transport, Transport]) -> None:
    server, client = ends
    carry(client, server, b"greeted")
    carry(server, client, b"greeted")
    with pytest.raises(BlockingIOError) as caught:
        server.recv_into(memoryview(bytearray(10)))
    assert not isinstance(caught.value, WantWriteError)


def test_several_buffers_leave_one_behind_the_other(ends: tuple[Transport, Transport]) -> None:
    server, client = ends
    carry(client, server, b"greeted")
    assert server.sendmsg([b"ab", memoryview(b"cd"), bytearray(b"ef")], (), socket.MSG_MORE) == 6
    view = memoryview(bytearray(100))
    size = Attempts(client, select.POLLIN).make(lambda: client.recv_into(view))
    assert size is None or bytes(view[:size]) == b"abcdef"[:size]


def test_a_full_socket_takes_no_more_and_loses_nothing(ends: tuple[Transport, Transport]) -> None:
    server, client = ends
    assert carry(client, server, b"greeted")
    block, sent = os.urandom(4000), bytearray()
    sender, receiver = Attempts(server, select.POLLOUT), Attempts(client, select.POLLIN)
    while (taken := sender.make(lambda: server.send(block))) is not None:
        sent += block[:taken]
    got, view = bytearray(), memoryview(bytearray(ROOM_BYTES))
    taken = None
    while taken is None:
        got += view[: receiver.make(lambda: client.recv_into(view)) or 0]
        taken = sender.make(lambda: server.send(block))
    sent += block[:taken]
    while len(got) < len(sent):
        got += view[: receiver.make(lambda: client.recv_into(view)) or 0]
        if len(got) < len(sent):
            wait(receiver)
    assert got == sent


def test_files_are_sent_by_those_that_can(ends: tuple[Transport, Transport], tmp_path: Path) -> None:
    server, client = ends
    (tmp_path / "log").write_bytes(b"0123456789")
    if not server.sends_files:
        return
    with (tmp_path / "log").open("rb") as file:
        assert server.send_file(file.fileno(), 2, 5) == 5
        assert server.send_file(file.fileno(), 10, 5) == 0
    view = memoryview(bytearray(100))
    assert bytes(view[: client.recv_into(view)]) == b"23456"


def test_an_end_is_told_behind_what_was_sent(ends: tuple[Transport, Transport]) -> None:
    server, client = ends
    carry(client, server, b"greeted")
    carry(server, client, b"all of it")
    server.close()
    assert client.recv_into(memoryview(bytearray(10))) == 0


def test_a_kernel_without_tls_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl, "OP_ENABLE_KTLS", 8, raising=False)
    (tmp_path / "with").write_text("espintcp mptcp tls\n")
    (tmp_path / "without").write_text("espintcp mptcp\n")
    assert kernel_fault(str(tmp_path / "with")) == ""
    assert kernel_fault(str(tmp_path / "without")) == "the kernel's module tls is not loaded"
    assert kernel_fault(str(tmp_path / "none")) == "the kernel has no such thing"
    monkeypatch.delattr(ssl, "OP_ENABLE_KTLS")
    assert kernel_fault(str(tmp_path / "with")) == "Python 3.12 and later can ask for it"
