"""What a peer cannot have us do by records of TLS that hold no data: new keys, which each have an answer."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any, cast

from kbroker.runtime.ssl_transport import (
    FIRST_BYTES,
    LOOKS,
    SAID_BACK_BYTES,
    SCRATCH_BYTES,
    USELESS_BYTES,
    SslTransport,
    TlsError,
)
from kbroker.runtime.transport import WantWriteError

VIEW = memoryview(bytearray(1 << 16))


class NewKeys:
    """In place of OpenSSL: all that comes is new keys, and each byte of it has one for an answer.

    data: how many bytes there are beside them, of all that is read at once.
    """

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, data: int) -> None:
        self._incoming, self._outgoing, self._data = incoming, outgoing, data
        self.read_bytes = 0

    def do_handshake(self) -> None:
        """There is none."""

    def pending(self) -> int:
        return 0

    def unwrap(self) -> None:
        """Nor an end."""

    def read(self, size: int, buffer: memoryview) -> int:
        came = self._incoming.read()
        self.read_bytes += len(came)
        self._outgoing.write(came)
        if not came or not self._data:
            raise ssl.SSLWantReadError
        return self._data


def begin(data: int = 0) -> tuple[SslTransport, NewKeys, socket.socket]:
    server, client = socket.socketpair()
    client.setblocking(False)
    made: list[NewKeys] = []

    def make(incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        made.append(NewKeys(incoming, outgoing, data))
        return cast("Any", made[-1])

    transport = SslTransport(server, make, id, memoryview(bytearray(SCRATCH_BYTES)))
    assert received(transport) is BlockingIOError
    assert transport.is_shaken
    return transport, made[0], client


def send(client: socket.socket) -> None:
    """As much as goes."""
    with suppress(BlockingIOError):
        while True:
            client.send(bytes(1 << 16))


def received(transport: SslTransport) -> int | type[OSError]:
    """How much data; or why none."""
    try:
        return transport.recv_into(VIEW)
    except OSError as error:
        return type(error)


def test_new_keys_without_end_do_not_keep_a_call_from_returning_and_end_the_connection() -> None:
    transport, keys, client = begin()
    send(client)
    assert received(transport) is BlockingIOError
    assert 0 < keys.read_bytes <= LOOKS * FIRST_BYTES
    while (outcome := received(transport)) is BlockingIOError:
        send(client)
    assert outcome is TlsError
    assert keys.read_bytes <= USELESS_BYTES + LOOKS * FIRST_BYTES
    client.close()
    transport.close()


def test_answers_to_new_keys_are_not_gathered_for_who_does_not_read_them() -> None:
    transport, keys, client = begin(data=1)
    send(client)
    calls = 0
    while received(transport) == 1:
        calls += 1
        send(client)
    assert calls > SAID_BACK_BYTES // (FIRST_BYTES + calls)
    assert received(transport) is WantWriteError
    read, waiting = keys.read_bytes, transport._outgoing.pending
    assert waiting <= SAID_BACK_BYTES + FIRST_BYTES + calls
    assert received(transport) is WantWriteError
    assert keys.read_bytes == read
    while client.recv(1 << 20) and received(transport) is WantWriteError:
        pass
    assert transport._outgoing.pending < waiting
    client.close()
    transport.close()
