"""`/metrics` and `/health` over HTTP, on a listener of their own (`kbroker.metrics.listener`); off without it.

As little of HTTP/1.1 as a scraper or a probe needs: GET and HEAD, one request a connection. It runs on the broker's
loop, since what it tells is the broker's; a page is made and sent in parts, and what is not taken waits for the socket.
Who sends nothing, or too much, or does not read, is hung up on after a while. Where too many are connected, the oldest
of those goes for the newcomer: silent connections shut no probe out. `metrics.py` knows what is told.
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kbroker.runtime.metrics import exposition

if TYPE_CHECKING:
    from kbroker.core import Core
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.server import Server

log = logging.getLogger("kbroker.monitoring")

MOST_VISITORS = 16  # at once; a scraper or two and a probe are usual
ACCEPT_PAUSE_S = 0.1
PATIENCE_S = 10.0  # from the connection to the last byte taken
HEAD_BYTES = 8192  # of a request
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Page = tuple[int, str, Iterator[bytes]]
"""Status, content type, content in parts."""


class Monitoring:
    """The listener, and the clients that are connected to it."""

    def __init__(self, loop: Loop, core: Core, server: Server, listening: socket.socket) -> None:
        self._loop = loop
        self._core = core
        self._server = server
        self._listening = listening
        self._visitors: dict[Visitor, None] = {}  # the oldest first
        self._again = loop.timer(self._listen)
        listening.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Hang up on all clients."""
        self._again.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for visitor in list(self._visitors):
            visitor.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # gone again
            return
        except OSError as error:  # out of descriptors: until there is one, the listener would be readable without end
            log.warning("cannot accept a connection on kbroker.metrics.listener: %s", error.strerror)
            self._loop.remove_reader(self._listening.fileno())
            self._again.set(ACCEPT_PAUSE_S)
            return
        if len(self._visitors) >= MOST_VISITORS:
            next((each for each in self._visitors if not each.is_served), next(iter(self._visitors))).close()
        sock.setblocking(False)
        self._visitors[Visitor(self._loop, sock, self.page, self._visitors.pop)] = None

    def page(self, path: str) -> Page:
        """What is told under a path."""
        if path == "/metrics":
            return 200, METRICS_TYPE, exposition(self._core, self._server)
        if path == "/health":
            serves, told = self._core.health()
            return 200 if serves else 503, "application/json", iter([json.dumps(told).encode() + b"\n"])
        return 404, "text/plain", iter([b"there are /metrics and /health\n"])


class Visitor:
    """One connection: a request, its answer, the end. is_served: whether an answer is on its way."""

    def __init__(
        self, loop: Loop, sock: socket.socket, page: Callable[[str], Page], gone: Callable[[Visitor], object]
    ) -> None:
        self.is_served = False
        self._loop = loop
        self._socket = sock
        self._page = page
        self._gone = gone
        self._head = b""
        self._unsent = memoryview(b"")
        self._parts: Iterator[bytes] = iter(())
        self._timer = loop.timer(self.close)
        self._timer.set(PATIENCE_S)
        loop.add_reader(sock.fileno(), self._read)

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._socket.fileno() < 0:
            return
        self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._gone(self)

    def _read(self) -> None:
        try:
            data = self._socket.recv(HEAD_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._head += data
        if b"\r\n\r\n" in self._head or b"\n\n" in self._head:
            self._loop.remove_reader(self._socket.fileno())
            self._answer()
            self.is_served = True
            self._loop.add_writer(self._socket.fileno(), self._write)
        elif not data or len(self._head) > HEAD_BYTES:
            self.close()

    def _answer(self) -> None:
        words = self._head.split(b"\n", 1)[0].decode("latin-1").split()
        method, path = words[0] if words else "", words[1].partition("?")[0] if len(words) > 1 else ""
        status, kind, parts = self._page(path)
        if method not in ("GET", "HEAD"):
            status, kind, parts = 405, "text/plain", iter([b"GET and HEAD are served\n"])
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
        self._unsent = memoryview(head.encode())
        self._parts = parts if method != "HEAD" else iter(())

    def _write(self) -> None:
        """Send what is there; the next part is made when it is gone, in another turn of the loop."""
        try:
            if not self._unsent:
                self._unsent = memoryview(next(self._parts))
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except StopIteration:
            self._end()
        except OSError:
            self.close()

    def _end(self) -> None:
        """All is sent: say so, and let the other side hang up; bytes of its that are not read would undo ours."""
        self.is_served = False
        self._loop.remove_writer(self._socket.fileno())
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # it has hung up
            self.close()
            return
        self._loop.add_reader(self._socket.fileno(), self._pass_by)

    def _pass_by(self) -> None:
        """What comes behind the request is nothing to us."""
        try:
            if not self._socket.recv(HEAD_BYTES):
                self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()


REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
