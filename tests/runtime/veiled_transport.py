"""A transport with all the troubles of TLS and none of its secrets: what a connection has to bear, in small.

    client          server
    H   ------------>              a handshake, before any data
        <------------  h
    D size veiled bytes -->        at most BLOCK_BYTES
        <------------  K           new keys, after BLOCKS of them: before that no more data is sent

What one side has to say by itself is held up once, as by a full socket. Used by the tests of transports and of
connections.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from kbroker.ports import Buffer
from kbroker.runtime.transport import WantReadError, WantWriteError

BLOCK_BYTES, BLOCKS = 1000, 8
VEIL = bytes(each ^ 0x55 for each in range(256))


class VeiledTransport:
    """One end. is_client: begins the handshake. wanted: how often it has raised what, for tests to look at."""

    sends_files = False
    buffers_input = True

    def __init__(self, sock: socket.socket, *, is_client: bool = False) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.wanted: Counter[type[BlockingIOError]] = Counter()
        self._raw, self._plain, self._unsent = bytearray(), bytearray(), bytearray()
        self._taken = 0  # bytes of the owner's that `_unsent` stands for
        self._sent = self._heard = 0  # blocks, since the keys are new
        self._greeted = self._ended = self._holds_up = False
        if is_client:
            self._say(b"H")

    @property
    def is_shaken(self) -> bool:
        return self._greeted

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    def has_bytes_buffered(self) -> bool:
        return bool(self._plain or self._unsent)

    def recv_into(self, buffer: memoryview, /) -> int:
        while not self._plain:
            if not self._flushed():
                raise self._want(WantWriteError())
            if self._ended:
                return 0
            self._hear()
        self._flushed()
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        del self._plain[:size]
        return size

    def send(self, data: Buffer, /) -> int:
        while not self._greeted or self._sent == BLOCKS:
            if not self._flushed():
                raise BlockingIOError
            try:
                self._hear()
            except BlockingIOError:
                raise self._want(WantReadError()) from None
            if self._ended:
                raise ConnectionResetError
        if not self._flushed():
            raise BlockingIOError
        if not self._taken:
            self._taken = min(len(data), BLOCK_BYTES)
            self._unsent += b"D" + self._taken.to_bytes(2, "big") + bytes(data[: self._taken]).translate(VEIL)
            if not self._flushed():
                raise BlockingIOError
        self._sent += 1
        taken, self._taken = self._taken, 0
        return taken

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()], flags: int, /) -> int:
        return self.send(b"".join(buffers))

    def send_file(self, fd: int, position: int, size: int) -> int:
        raise AssertionError("it cannot")

    def _want(self, error: BlockingIOError) -> BlockingIOError:
        self.wanted[type(error)] += 1
        return error

    def _say(self, what: bytes) -> None:
        self._unsent += what
        self._holds_up = True

    def _flushed(self) -> bool:
        if self._holds_up:
            self._holds_up = False
            return False
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        return not self._unsent

    def _hear(self) -> None:
        data = self.socket.recv(1 << 16)
        self._ended = not data
        raw = self._raw
        raw += data
        while raw:
            if raw[:1] == b"D":
                size = 3 + int.from_bytes(raw[1:3], "big")
                if len(raw) < max(size, 3):
                    return
                self._plain += raw[3:size].translate(VEIL)
                del raw[:size]
                self._heard += 1
                if self._heard == BLOCKS:
                    self._heard = 0
                    self._say(b"K")
                continue
            if raw[:1] == b"K":
                self._sent = 0
            else:
                self._greeted = True
                if raw[:1] == b"H":
                    self._say(b"h")
            del raw[:1]
