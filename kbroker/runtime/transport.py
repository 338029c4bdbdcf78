"""How the bytes of one connection get in and out of its socket; a kind of transport for each security protocol.

Kafka's TransportLayer. `server.py` makes one for each connection that it accepts, by listener, and `connection.py`
reads and writes through it. A transport knows bytes; frames, requests and logins are not its business.

It has as much of the interface of a socket that does not block as a connection uses, so that a plain socket is one and
costs nothing. What each has to keep (tests/contracts/test_transport.py asks every kind):

- `recv_into` gives at least one byte; 0 means that the peer sends no more.
- `send`, `sendmsg` and `send_file` tell how many bytes were taken, the first ones of what was offered. Those are with
  the operating system then: a transport keeps none of them back.
- Where nothing can be done now, they raise BlockingIOError: call again once the socket is readable (`recv_into`) or
  writable (the others). A transport that has to speak with its peer first (a handshake, new keys) raises
  `WantWriteError` from `recv_into` or `WantReadError` from the others: then it is the other way round.
- After that the same bytes are offered again, perhaps with more behind them: some may be on their way already.
- A transport with `buffers_input` may hold received bytes that no readiness of the socket tells of: then
  `has_bytes_buffered`, and `recv_into` is called without waiting. It is called, too, once the socket is writable again
  after a `WantWriteError`.
- Without `sends_files`, `send_file` is not called: the bytes are read and sent.
- Before a transport `is_shaken` it gives nothing; `server.py` ends one that takes too long.
- Any other OSError ends the connection. `close` does not wait; what has not left by then may be lost.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Protocol, Self

from kbroker.runtime.platform import SENDS_FILES, send_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.ports import Buffer


class WantReadError(BlockingIOError):
    """Nothing can be sent before something of the peer's has come."""


class WantWriteError(BlockingIOError):
    """Nothing can be received before something of the transport's own has left."""


class Transport(Protocol):
    """See above."""

    @property
    def sends_files(self) -> bool:
        """Whether `send_file` may be called. The same for all of a kind, as is the next."""
        ...

    @property
    def buffers_input(self) -> bool:
        """Whether `has_bytes_buffered` is to be asked."""
        ...

    @property
    def is_shaken(self) -> bool:
        """Whether the handshake is over, if there is one: before, nothing is received."""
        ...

    def has_bytes_buffered(self) -> bool:
        """Whether `recv_into` has something to give, or to try, though the socket tells of nothing."""
        ...

    def fileno(self) -> int:
        """Of the socket."""
        ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive once."""
        ...

    def send(self, data: Buffer, /) -> int:
        """Send, as much as is taken."""
        ...

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        """Send several, one behind the other. flags: MSG_MORE, if more follows at once; a transport may ignore it."""
        ...

    def send_file(self, fd: int, position: int, size: int) -> int:
        """Send bytes of an open file. 0: it ends at that position."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class PlaintextTransport(socket.socket):
    """The socket itself. `over` makes one of a socket that is open already."""

    __slots__ = ()

    sends_files = SENDS_FILES
    buffers_input = False
    is_shaken = True

    @classmethod
    def over(cls, sock: socket.socket) -> Self:
        """Take the descriptor over from `sock`, which is closed after this; it does not block any more."""
        made = cls(sock.family, sock.type, sock.proto, sock.detach())
        made.setblocking(False)
        return made

    def has_bytes_buffered(self) -> bool:
        """Never."""
        return False

    def send_file(self, fd: int, position: int, size: int) -> int:
        """sendfile(2), without a copy into this process."""
        return send_file(self.fileno(), fd, position, size)
