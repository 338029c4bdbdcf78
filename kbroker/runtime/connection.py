"""One client's socket: bytes in as whole frames, answers out as buffers and file regions.

Made and owned by `server.py`, driven by asyncio's readiness callbacks (`add_reader`, `add_writer`); asyncio's own
transports cost several times more on a fetch. It never looks inside a frame and decides nothing about Kafka: frames
go to the core's channel, and what the channel has in `out` is written in that order.

Reading. A readable socket is read into one buffer that all connections of a loop share. A frame that arrived whole is
handled right there; the part of one that did not is moved into a buffer of the connection's own, and the rest is
received behind it. So an idle connection owns no buffer, and a large frame is copied only as far as its first part.

Writing. Buffers go out by one `sendmsg`, file regions by `sendfile`, and the bytes before a region are held back with
MSG_MORE so that an answer's head and its records share packets. A region that is not in the page cache is first read
ahead on the disk pool: a cold read stalls its own connection and no other.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import TYPE_CHECKING, cast

from kbroker.ports import Region
from protocol.frames import FrameDecoder, FrameError

if TYPE_CHECKING:
    from kbroker.core import Channel
    from kbroker.ports import Buffer
    from kbroker.runtime.files import SystemFile
    from kbroker.runtime.server import Server

MOST_BUFFERS = 512  # in one sendmsg; the kernel takes 1,024
REGION_BYTES = 1 << 20  # sent, and looked up in the page cache, at a time: a fair share of the loop

MSG_MORE = socket.MSG_MORE

IDLE, WAITS_SOCKET, WAITS_DISK = range(3)  # what the queue of a connection waits for


class Connection:
    """A socket and the core's channel behind it."""

    __slots__ = (
        "_backlog",
        "_decoder",
        "_queue",
        "_reading",
        "_region_ready",
        "_server",
        "_socket",
        "_waits",
        "channel",
        "closed",
        "fd",
        "last_heard_ms",
        "peer_host",
    )

    def __init__(self, server: Server, sock: socket.socket, channel: Channel, peer_host: str, now_ms: int) -> None:
        self._server = server
        self._socket = sock
        self.fd = sock.fileno()
        self.channel = channel
        self.peer_host = peer_host
        self.last_heard_ms = now_ms
        self.closed = False
        self._decoder = FrameDecoder(server.max_frame_bytes)
        self._queue: deque[Buffer | Region] = deque()  # taken from the channel, not yet taken by the kernel
        self._backlog: deque[bytearray] = deque()  # frames received but not handled: the channel had enough in flight
        self._reading = True
        self._waits = IDLE
        self._region_ready = 0  # bytes of the queue's first region known to be in the page cache
        server.loop.add_reader(self.fd, self.on_readable)

    def on_readable(self) -> None:
        """Receive once, handle every frame that is whole, write what that gave."""
        decoder = self._decoder
        server = self._server
        room = decoder.room()
        try:
            if room is None:
                size = self._socket.recv_into(server.receive_buffer)
            else:
                size = self._socket.recv_into(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if size == 0:
            self.close("")
            return
        now_ms = self.last_heard_ms = server.clock.now_ms()
        try:
            frames = decoder.feed(server.receive_view[:size]) if room is None else decoder.filled(size)
        except FrameError as error:
            self.close(str(error))
            return
        channel = self.channel
        receive = server.core.receive
        for frame in frames:
            if channel.closing:
                break
            if channel.full:
                self._backlog.append(bytearray(frame))
            else:
                receive(channel, frame, now_ms)
        if self._backlog:
            self._stop_reading()
        if channel.out or channel.closing:
            self.flush()
        server.settle()

    def flush(self) -> None:
        """Write what the channel has ready, as far as the kernel takes it; the rest when the socket is writable."""
        channel = self.channel
        if self._waits:
            self._take(channel)
            return
        out = channel.out
        if len(out) == 1 and not self._queue and type(out[0]) is bytes:  # nearly every answer that is not a fetch
            data = out[0]
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.close(error.strerror or str(error))
                return
            channel.written()
            if sent < len(data):
                self._queue.append(memoryview(data)[sent:])
                self._wait_writable()
                return
            if channel.closing:
                self.close(channel.closing)
            return
        self._take(channel)
        self._write_queue()

    def _take(self, channel: Channel) -> None:
        self._queue.extend(channel.out)
        channel.written()

    def _write_queue(self) -> None:
        queue = self._queue
        try:
            while queue:
                if isinstance(queue[0], Region):
                    if not self._send_region(queue[0]):
                        return
                elif not self._send_buffers():
                    self._wait_writable()
                    return
        except (BlockingIOError, InterruptedError):
            self._wait_writable()
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        self._written_all()

    def _send_buffers(self) -> bool:
        """One sendmsg of the buffers up to the next region; false if the kernel took less."""
        queue = self._queue
        buffers: list[Buffer] = []
        more = 0
        for item in queue:
            if isinstance(item, Region):
                more = MSG_MORE
                break
            if len(buffers) == MOST_BUFFERS:
                break
            buffers.append(item)
        sent = self._socket.sendmsg(buffers, (), more)
        for data in buffers:
            size = len(data)
            if sent < size:
                queue[0] = memoryview(data)[sent:]
                return False
            sent -= size
            queue.popleft()
        return True

    def _send_region(self, region: Region) -> bool:
        """One sendfile of at most REGION_BYTES; false if the disk has to be waited for first."""
        wanted = min(region.size, REGION_BYTES)
        if self._region_ready <= 0:
            if not self._server.is_resident(region, wanted):
                self._read_ahead(region, wanted)
                return False
            self._region_ready = wanted
        file = cast("SystemFile", region.file)
        sent = os.sendfile(self.fd, file.fileno(), region.position, min(region.size, self._region_ready))
        if sent == 0:
            raise OSError(f"{region!r} ended early: its file was cut while it was being sent")
        self._region_ready -= sent
        if sent == region.size:
            self._queue.popleft()
            self._region_ready = 0
        else:  # a region belongs to the answer that was made with it: nobody else reads its bounds
            self._queue[0] = Region(file, region.position + sent, region.size - sent)
        return True

    def _read_ahead(self, region: Region, size: int) -> None:
        """Bring a cold region into the page cache on the disk pool, then go on."""
        if self._waits == WAITS_SOCKET:
            self._server.loop.remove_writer(self.fd)
        self._waits = WAITS_DISK

        def ready() -> None:
            if not self.closed:
                self._region_ready = size
                self._waits = IDLE
                self._write_queue()

        self._server.read_ahead(region, size, ready)

    def _wait_writable(self) -> None:
        if not self._waits:
            self._waits = WAITS_SOCKET
            self._server.loop.add_writer(self.fd, self._on_writable)

    def _on_writable(self) -> None:
        self.last_heard_ms = self._server.clock.now_ms()
        self._write_queue()

    def _written_all(self) -> None:
        if self._waits:
            self._waits = IDLE
            self._server.loop.remove_writer(self.fd)
        channel = self.channel
        channel.sent()
        if channel.closing and not channel.out:
            self.close(channel.closing)
            return
        if self._backlog or not self._reading:
            self._resume()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._server.loop.remove_reader(self.fd)

    def _resume(self) -> None:
        """Handle what was held back, then read again."""
        channel = self.channel
        while self._backlog and not channel.full and not self.closed:
            self._server.core.receive(channel, memoryview(self._backlog.popleft()), self.last_heard_ms)
        if not self._backlog and not self._reading and not self.closed:
            self._reading = True
            self._server.loop.add_reader(self.fd, self.on_readable)
        if channel.out:
            self.flush()
        self._server.settle()

    def close(self, reason: str) -> None:
        """Hang up at once. reason: for the log; empty when the client left by itself."""
        if self.closed:
            return
        self.closed = True
        loop = self._server.loop
        loop.remove_reader(self.fd)
        loop.remove_writer(self.fd)
        self._queue.clear()
        self._backlog.clear()
        self._socket.close()
        self._server.gone(self, reason)
