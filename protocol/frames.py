"""Frames: four bytes of size, big endian, then that many bytes of a request or an answer.

`FrameDecoder` turns what a socket delivers into whole frames. It is told how many bytes came and where, and never
touches the socket. A frame that arrives whole is handed out as a view on the receive buffer; one that does not is
gathered in a buffer of the decoder's own, which the caller is offered (`room`) to receive the rest into: so a large
frame is copied only as far as its first part. That buffer serves frame after frame, for fresh memory costs a page
fault every 4 KiB, until `release` gives it back. One of over KEPT_BYTES serves a single frame, and belongs to that.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE_BYTES = 4
_size_at = Struct(">i").unpack_from
KEPT_BYTES = 4 << 20  # of the buffer for the next frame
_ROOM = 1 << 20  # a peer that announces a larger frame gets memory as it delivers, and no faster than this
NO_LIMIT = 1 << 62  # on frames


_NOTHING = memoryview(b"")


class FrameError(ValueError):
    """A size that no frame may have: the stream cannot be followed any further.

    frames: what came whole before it with the same call.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.frames: Sequence[memoryview] = ()


class FrameDecoder:
    """One direction of one connection. max_bytes: the largest frame taken, without its size field.

    rest: what the last `feed` did not look at, for it was to find so many frames at most; empty if there is nothing.
    body: the buffer of the frame that is being gathered, None between frames.
    """

    __slots__ = ("_filled", "_head", "_max_bytes", "_size", "_spare", "body", "rest")

    def __init__(self, max_bytes: int) -> None:
        assert max_bytes >= 0, max_bytes
        self._max_bytes = max_bytes
        self._head = b""  # the first bytes of a size field that came in parts
        self.body: bytearray | None = None
        self._spare: bytearray | None = None  # the buffer of the last frame gathered
        self._filled = 0  # bytes of it that are there
        self._size = 0  # bytes it will have
        self.rest = _NOTHING

    def allow(self, max_bytes: int) -> None:
        """Take frames of this size from now on."""
        self._max_bytes = max_bytes

    @property
    def midway(self) -> bool:
        """Whether the stream stopped inside a frame."""
        return self.body is not None or bool(self._head)

    @property
    def held_bytes(self) -> int:
        """Memory of its own that it keeps: the frame being gathered, or the buffer of the last one."""
        buffer = self._spare if self.body is None else self.body
        return 0 if buffer is None else len(buffer)

    def feed(self, data: memoryview, most: int = NO_LIMIT) -> Sequence[memoryview]:
        """The frames that are whole now: views, good until the next `feed`, `filled` or write to `data`'s buffer.

        data: whatever came, in order, unless it went into `room`. most: frames at once; what is behind them is in
        `rest`, to be fed before anything else. Raises: FrameError.
        """
        frames: list[memoryview] = []
        self.rest = _NOTHING
        position, end = 0, len(data)
        if self.body is not None:
            position = self._gather(data, frames)
        elif self._head:
            taken = SIZE_BYTES - len(self._head)
            self._head += bytes(data[:taken])
            if len(self._head) < SIZE_BYTES:
                return frames
            (size,) = _size_at(self._head)
            self._head = b""
            position = self._cut(data, taken, size, frames)
        while end - position >= SIZE_BYTES and len(frames) < most:
            (size,) = _size_at(data, position)
            position += SIZE_BYTES
            if 0 <= size <= end - position and size <= self._max_bytes:  # as nearly all are: whole
                frames.append(data[position : position + size])
                position += size
            else:
                position = self._cut(data, position, size, frames)
        if position < end:
            if len(frames) < most:
                self._head = bytes(data[position:])
            else:
                self.rest = data[position:]
        return frames

    def room(self) -> memoryview | None:
        """Where more of the frame being gathered belongs; None between frames. Receive into it, then `filled`.

        It is let go of before the next call: the buffer grows where it lies.
        """
        if self.body is None:
            return None
        if self._filled == len(self.body):
            self._grow(self._filled + _ROOM)
        return memoryview(self.body)[self._filled : min(self._size, self._filled + _ROOM)]

    def filled(self, count: int) -> Sequence[memoryview]:
        """`count` bytes were received into `room`: the frame, if that was its end."""
        assert self.body is not None
        assert 0 < count <= min(self._size, len(self.body)) - self._filled, count
        self._filled += count
        return (self._finish(),) if self._filled == self._size else ()

    def release(self) -> bool:
        """Give back the buffer of the last frame gathered; whether there was one."""
        spare, self._spare = self._spare, None
        return spare is not None

    def _cut(self, data: memoryview, position: int, size: int, frames: list[memoryview]) -> int:
        """The frame of `size` bytes at `position`, or the beginning of it; returns the position after that.

        frames: those before it. Raises: FrameError for a size that no frame may have.
        """
        if not 0 <= size <= self._max_bytes:
            error = FrameError(
                f"a frame of {size} bytes: "
                + ("sizes are not negative" if size < 0 else f"at most {self._max_bytes} are taken")
            )
            error.frames = frames
            raise error
        if len(data) - position >= size:
            frames.append(data[position : position + size])
            return position + size
        self._size = size
        self._filled = len(data) - position
        wanted = min(size, max(_ROOM, 2 * self._filled))
        spare = self._spare
        if spare is None or len(spare) < wanted or (frames and frames[0].obj is spare):
            self.body = bytearray(wanted)  # the last frame's buffer is too small, or is still to be looked at
        else:
            self.body = spare
        self._spare = None
        self.body[: self._filled] = data[position:]
        return len(data)

    def _gather(self, data: memoryview, frames: list[memoryview]) -> int:
        """More of the frame being gathered; returns how much of `data` belonged to it."""
        assert self.body is not None
        taken = min(len(data), self._size - self._filled)
        if self._filled + taken > len(self.body):
            self._grow(self._filled + taken)
        self.body[self._filled : self._filled + taken] = data[:taken]
        self._filled += taken
        if self._filled == self._size:
            frames.append(self._finish())
        return taken

    def _grow(self, least: int) -> None:
        """Have room for so many bytes, or for the frame. A large buffer is made longer by moving pages, not bytes."""
        assert self.body is not None
        self.body += bytes(min(self._size, least) - len(self.body))

    def _finish(self) -> memoryview:
        assert self.body is not None
        frame = memoryview(self.body)[: self._size]
        self._spare = self.body if self._size <= KEPT_BYTES else None
        self.body = None
        self._filled = self._size = 0
        return frame
