"""The metadata server's sockets and its file: frames to `sessions.py`, what it says to clients, once that is durable.

Made by `kbroker dev-cluster` on a loop of its own process. All requests that are there in one turn of the loop are done
in memory, then written to SQLite in one transaction, then answered: one fsync for all of them.

One process, one file, no replica: for trying things out. A cluster that is to survive a machine has a real ensemble.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from kbroker.runtime.loop import Loop
from kbroker.runtime.metadata_server.sessions import Connection, Sessions
from kbroker.runtime.metadata_server.wire import INT, WireError
from kbroker.runtime.tree_file import TreeFile

log = logging.getLogger("kbroker.metadata")

HOST = "127.0.0.1"
BACKLOG = 128
RECEIVE_BYTES = 1 << 16
MOST_FRAME_BYTES = 4 << 20  # Kafka's own limit on what it reads of ZooKeeper (jute.maxbuffer)
MOST_UNSENT_BYTES = 64 << 20  # for a client that does not read; 100,000 paths are some 5 MB
ENOUGH_UNSENT_BYTES = MOST_UNSENT_BYTES - 2 * MOST_FRAME_BYTES  # what it asks beyond that waits: it has more to read
TICK_S = 0.1  # between two looks at who was not heard of
SILENT_S = 10.0  # without asking for a session: as long as ZooKeeper waits (zookeeper.nio.sessionlessCnxnTimeout)
ZXID_GAP = 1 << 20  # more than transactions can fail, and so are not written down, between two that are


class MetadataServer:
    """A listening server. port: where. tree: what it holds, for its owner to look at."""

    def __init__(
        self, loop: Loop, path: str, *, host: str = HOST, port: int = 0, failed: Callable[[OSError], object]
    ) -> None:
        """Open the file, made if missing, and listen. host: "" for every interface. port: 0 for any free one.

        failed: told once if the file cannot be written any more; no client is answered from then on.
        Raises: OSError: the file cannot be used, the port is taken.
        """
        self._loop = loop
        self._failed = failed
        self._file = TreeFile(path)
        self.tree = self._file.tree
        self.tree.zxid += ZXID_GAP  # a client may have seen numbers that did not survive
        self._sessions = Sessions(self.tree, self._file.session, os.urandom)
        self._wires: dict[Connection, _Wire] = {}
        self._is_settling = self._is_broken = self._is_deaf = False
        try:
            self._listening = socket.create_server((host, port), backlog=BACKLOG)
        except OSError:
            self._file.abandon()
            raise
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        loop.add_reader(self._listening.fileno(), self._accept)
        self._ticked_s = time.monotonic()
        self._timer = loop.call_later(TICK_S, self._tick)

    @property
    def is_used(self) -> bool:
        """Whether a client with a session is connected."""
        return any(each.connection.session is not None for each in self._wires.values())

    def close(self) -> None:
        """Hang up on all clients, and give the file back. Sessions are over at the next opening."""
        self._timer.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for each in list(self._wires.values()):
            self._drop(each)
        self._save()
        self._file.close()

    # -- on the loop

    def _accept(self) -> None:
        try:
            client, _ = self._listening.accept()
        except OSError:  # gone again, or out of descriptors: the next tick tries again
            self._loop.remove_reader(self._listening.fileno())
            self._is_deaf = True
            return
        client.setblocking(False)
        with suppress(OSError):  # macOS has no options for one that was reset already: a read tells of that
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each = _Wire(client)
        self._wires[each.connection] = each
        self._loop.add_reader(client.fileno(), lambda: self._readable(each))

    def _readable(self, each: _Wire) -> None:
        try:
            data = each.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(each)
            return
        each.received += data
        self._handle(each)

    def _handle(self, each: _Wire) -> None:
        """What a client asks, as long as it has not too much to read: a request of some bytes may be for a megabyte."""
        now_ms, out = _now_ms(), each.connection.out
        owed_bytes = len(each.unsent) + sum(map(len, out))
        try:
            while not each.connection.is_over:
                if owed_bytes > ENOUGH_UNSENT_BYTES:
                    each.is_held = True
                    self._loop.remove_reader(each.socket.fileno())
                    break
                if (frame := each.next_frame()) is None:
                    break
                told = len(out)
                self._sessions.received(each.connection, frame, now_ms)
                owed_bytes += sum(map(len, out[told:]))
        except WireError as error:
            log.warning("a client of the metadata server sends what is no request: %s", error)
            each.connection.out.clear()
            self._drop(each)
        self._settle_soon()

    def _resume_reading(self, each: _Wire) -> None:
        """A client that was held has read enough to be answered more."""
        if each.is_held and each.connection in self._wires:
            each.is_held = False
            self._loop.add_reader(each.socket.fileno(), lambda: self._readable(each))
            self._handle(each)

    def _settle_soon(self) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """What was done becomes durable, then it is answered."""
        self._is_settling = False
        if self._save():
            for connection in self._sessions.take_told():
                each = self._wires.get(connection)
                if each is not None:
                    self._send(each)

    def _save(self) -> bool:
        if self.tree.touched and not self._is_broken:
            try:
                self._file.save(self._sessions.last)
            except OSError as error:
                self._is_broken = True
                self._failed(error)
        return not self._is_broken

    def _send(self, each: _Wire) -> None:
        if each.connection.out:
            each.unsent += b"".join(each.connection.out)
            each.connection.out.clear()
        self._flush(each)

    def _flush(self, each: _Wire) -> None:
        """Go on sending. What is in `out` stays there: it is not durable before the turn's `_settle`."""
        try:
            if each.unsent:
                del each.unsent[: each.socket.send(each.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(each)
            return
        if each.is_held and len(each.unsent) < ENOUGH_UNSENT_BYTES // 2 and not each.connection.out:
            self._loop.call_soon(lambda: self._resume_reading(each))
        is_done = each.connection.is_over and not each.unsent and not each.connection.out
        if len(each.unsent) > MOST_UNSENT_BYTES or is_done:
            self._drop(each)
        elif bool(each.unsent) != each.is_writing:
            each.is_writing = not each.is_writing
            if each.is_writing:
                self._loop.add_writer(each.socket.fileno(), lambda: self._flush(each))
            else:
                self._loop.remove_writer(each.socket.fileno())

    def _drop(self, each: _Wire) -> None:
        if self._wires.pop(each.connection, None) is None:
            return
        self._sessions.lost(each.connection)
        self._loop.remove_reader(each.socket.fileno())
        self._loop.remove_writer(each.socket.fileno())
        with suppress(OSError):
            each.socket.close()

    def _tick(self) -> None:
        self._timer.set(TICK_S)
        if self._is_deaf:
            self._is_deaf = False
            self._loop.add_reader(self._listening.fileno(), self._accept)
        now_s = time.monotonic()
        stalled_s = now_s - self._ticked_s - 2 * TICK_S
        self._ticked_s = now_s
        if stalled_s > 0:  # a process that was stopped has not listened: what clients sent is still to be read
            self._sessions.excuse(round(stalled_s * 1000))
        self._expire()
        for wire in list(self._wires.values()):
            if wire.connection.session is None and not wire.connection.is_over and now_s >= wire.began_s + SILENT_S:
                self._drop(wire)  # it holds a descriptor that a broker may want

    def _expire(self) -> None:
        """End the sessions of those that were silent: a line for each broker, one for all others."""
        others = []
        for session, broker_id in self._sessions.expire(_now_ms()):
            self._settle_soon()
            if broker_id is None:
                others.append(session.number)
            else:
                log.warning("broker %d was not heard of for %d ms: its session is over", broker_id, session.timeout_ms)
        if others:
            what = "%d session%s of no broker, %d the first, not heard of in time: over"
            log.warning(what, len(others), "s" * (len(others) != 1), others[0])


class _Wire:
    """A client's socket. received: what is no whole frame yet; unsent: what its socket did not take.

    is_held: it is not read, for it has much to read itself; what is in `received` waits, too.
    """

    __slots__ = ("began_s", "connection", "is_held", "is_writing", "received", "socket", "unsent")

    def __init__(self, client: socket.socket) -> None:
        self.socket = client
        self.connection = Connection()
        self.began_s = time.monotonic()
        self.received = bytearray()
        self.unsent = bytearray()
        self.is_held = self.is_writing = False

    def next_frame(self) -> bytes | None:
        """The next whole frame, taken out. Raises: WireError for a length that none has."""
        if len(self.received) < INT.size:
            return None
        (size,) = INT.unpack_from(self.received)
        if not 0 <= size <= MOST_FRAME_BYTES:
            raise WireError(f"a frame of {size} bytes; allowed: up to {MOST_FRAME_BYTES}")
        end = INT.size + size
        if len(self.received) < end:
            return None
        frame = bytes(self.received[INT.size : end])
        del self.received[:end]
        return frame


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
