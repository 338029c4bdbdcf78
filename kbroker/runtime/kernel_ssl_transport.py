"""The transport of TLS by the kernel (kTLS): OpenSSL shakes hands on the socket itself, and leaves the rest to it.

Where the kernel has no `tls`, or not for a connection's cipher suite, OpenSSL does all of it by the same calls. It is
for who asks (kbroker.tls.kernel), on Python 3.12 and later: each record is a call, so without the kernel's help it is
slower than `ssl_transport.py`. Files are read and sent as there, for Python has no SSL_sendfile.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from kbroker.runtime.platform import PROTOCOLS_OVER_TCP
from kbroker.runtime.ssl_transport import PORTION_BYTES, RECORD_BYTES, TlsError, send_pieces
from kbroker.runtime.transport import WantReadError, WantWriteError

if TYPE_CHECKING:
    import socket

    from kbroker.ports import Buffer


def kernel_fault(path: str = PROTOCOLS_OVER_TCP) -> str:
    """Why there is no TLS by the kernel here; empty if there may be."""
    if not hasattr(ssl, "OP_ENABLE_KTLS"):
        return "Python 3.12 and later can ask for it"
    try:
        with open(path) as file:
            return "" if "tls" in file.read().split() else "the kernel's module tls is not loaded"
    except OSError:
        return "the kernel has no such thing"


class KernelSslTransport:
    """See above. shaken: takes the connection after the handshake, and may refuse it by an OSError."""

    sends_files = False
    buffers_input = True

    __slots__ = ("_shaken", "_socket", "is_shaken")

    def __init__(
        self,
        sock: socket.socket,
        wrap: Callable[[socket.socket], ssl.SSLSocket],
        shaken: Callable[[ssl.SSLSocket], object],
    ) -> None:
        """wrap: makes an SSLSocket that does not shake hands by itself."""
        sock.setblocking(False)
        self._socket = wrap(sock)
        self._shaken = shaken
        self.is_shaken = False

    def fileno(self) -> int:
        """Of the socket."""
        return self._socket.fileno()

    def has_bytes_buffered(self) -> bool:
        """Whether OpenSSL holds the rest of a record."""
        return self._socket.pending() > 0

    def recv_into(self, buffer: memoryview, /) -> int:
        """As many records as are there and fit."""
        size = 0
        try:
            self._shake()
            while size < len(buffer):
                got = self._socket.recv_into(buffer[size:] if size else buffer)
                size += got
                if not got:
                    break
        except ssl.SSLWantReadError:
            if not size:
                raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            if not size:
                raise WantWriteError from None
        except ssl.SSLEOFError:
            return size
        except ssl.SSLError as error:
            if not size:
                raise TlsError(error) from None
        return size

    def send(self, data: Buffer, /) -> int:
        """A record at a time."""
        view, taken = memoryview(data), 0
        most = min(len(view), PORTION_BYTES)
        try:
            self._shake()
            while taken < most:
                taken += self._socket.send(view[taken : min(taken + RECORD_BYTES, most)])
        except ssl.SSLWantWriteError:
            if not taken:
                raise BlockingIOError from None
        except ssl.SSLWantReadError:
            if not taken:
                raise WantReadError from None
        except ssl.SSLError as error:
            raise TlsError(error) from None
        return taken

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        """The same; small ones share a record."""
        return send_pieces(buffers, flags, lambda piece, _: self.send(piece))

    def send_file(self, fd: int, position: int, size: int) -> int:
        """Never called."""
        raise AssertionError("Python has no SSL_sendfile")

    def _shake(self) -> None:
        if not self.is_shaken:
            self._socket.do_handshake()
            self._shaken(self._socket)
            self.is_shaken = True

    def close(self) -> None:
        """Hang up, with the word of TLS for it."""
        if self.is_shaken and self._socket.fileno() >= 0:
            with suppress(OSError, ValueError):
                self._socket.unwrap()
        self._socket.close()
