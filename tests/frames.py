"""Frames of any content over a socket that waits: to send what no client may, or the same bytes again and again.

Used by tests and benchmarks that know the bytes; who asks and wants an answer has `kbroker.runtime.blocking`.
"""

from __future__ import annotations

import socket
import struct
from collections import deque

from protocol.frames import SIZE_BYTES, FrameDecoder

MOST_BYTES = 1 << 30


def framed(*frames: bytes) -> bytes:
    """With their sizes in front."""
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class Frames:
    """What comes in on one socket. It receives no byte behind the frame that it gives, unless a size came in parts."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder = FrameDecoder(MOST_BYTES)
        self._head = memoryview(bytearray(SIZE_BYTES))
        self._frames: deque[memoryview] = deque()

    def receive(self) -> memoryview:
        """The next frame without its size, good until the next. Raises: ConnectionError at the end of all."""
        while not self._frames:
            is_between = self._decoder.body is None
            size = self._socket.recv_into(self._head if is_between else self._decoder.room())
            if not size:
                raise ConnectionError("the broker hung up")
            self._frames += self._decoder.feed(self._head[:size]) if is_between else self._decoder.filled(size)
        return self._frames.popleft()


def take(sock: socket.socket) -> memoryview:
    """The next frame, of a socket that others receive from, too."""
    return Frames(sock).receive()
