"""One client's socket: bytes in as whole frames, answers out as buffers and file regions.

Made and owned by `server.py`, called by the loop when its socket is ready. It never looks inside a frame and decides
nothing about Kafka: frames go to the core's channel, and what the channel has in `out` is written in that order.

Reading. A readable socket is read into one buffer that all connections of a loop share. A frame that arrived whole is
handled right there; the part of one that did not is moved into a buffer of the connection's own, and the rest is
received behind it. So an idle connection owns no buffer, and a large frame is copied only as far as its first part.
One connection gets REQUESTS_PER_LOOP_TURN requests handled before the others get theirs, and fewer while loop turns are
long; what else came with them is kept as it came until its turn comes. What came while the channel had enough in flight
is held back. Nothing more is received until all of it is handled.

Writing. Buffers go out by one `sendmsg`, file regions by `sendfile` where the transport can, and the bytes before a
region are held back with MSG_MORE, on Linux, so that an answer's head and its records share packets. A region that is
not in the page cache is first read ahead on the disk pool: a cold read stalls its own connection and no other. Between
portions of regions others that have sent something get their turn, and then portions are smaller. A few small regions
are read and leave between their heads in one call: up to some 100 KB a copy costs less than the three calls that a
region takes.

Ending. A client that sends no more is still given what is under way to it, for it may only have shut that side down; if
it is gone, sending says so. What it waits for (a long poll, a rebalance) is given up.

Controllers. A connection of the control plane's listener, or one that turned out to be a controller's, is in the
server's lane: it has a receive buffer of its own, because it is read in the middle of another connection's turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

from kbroker.config.limits import DECODED_TIMES, PARKED_BYTES, REQUESTS_PER_LOOP_TURN
from kbroker.ports import Region
from kbroker.runtime.platform import MSG_MORE
from kbroker.runtime.transport import WantReadError, WantWriteError
from protocol.frames import NO_LIMIT, FrameDecoder, FrameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from kbroker.channel import Channel
    from kbroker.core import Core
    from kbroker.ports import Buffer, Clock
    from kbroker.runtime.files import SystemFile
    from kbroker.runtime.loop import Loop
    from kbroker.runtime.transport import Transport

log = logging.getLogger("kbroker.server")

MOST_BUFFERS = 512  # in one sendmsg; the kernel takes 1,024
REGION_BYTES = 1 << 20  # sent, and looked up in the page cache, at a time
PORTION_BYTES = 128 << 10  # sent at a time where others have been found waiting
REGIONS_PER_TURN = 8  # then the other connections get their turn, however fast this one is read

SMALL_REGIONS_BYTES = 96 << 10  # of regions that one write reads: a slow reader holds no more memory than that for them

NOTICED_BYTES = 64 << 10  # held in a channel: from here on the server is told of more

NOTHING = memoryview(b"")

IDLE, WAITS_SOCKET, WAITS_INPUT, WAITS_DISK, WAITS_TURN = range(5)  # what the queue of a connection waits for


class Owner(Protocol):
    """The server that a connection is one of, as the connection knows it. bytes_in, bytes_out: over all connections."""

    bytes_in: int
    bytes_out: int

    @property
    def loop(self) -> Loop:
        """Calls the connection when its socket is ready."""

    @property
    def core(self) -> Core:
        """Takes requests."""

    @property
    def clock(self) -> Clock:
        """The broker's."""

    @property
    def max_frame_bytes(self) -> int:
        """Of one request; a larger one closes the connection."""

    @property
    def receive_view(self) -> memoryview:
        """Where every connection receives what comes between its frames."""

    @property
    def lane(self) -> Sized:
        """Connections of controllers."""

    def prefer(self, connection: Connection) -> None:
        """This one is a controller's."""

    def empty_lane(self) -> None:
        """Handle what controllers have sent."""

    def settle(self) -> None:
        """After every event: write what became ready on other connections."""

    def shake_later(self, go_on: Callable[[], None]) -> None:
        """Go on with a handshake, when others have had their turn."""

    def note_failed_handshake(self, connection: Connection, kind: str) -> None:
        """One is over before its time; kind: of what failed, empty where the client has left."""

    def gathered(self, connection: Connection, size: int) -> None:
        """A connection holds so many bytes of a frame that is not whole yet."""

    def grew(self, size: int) -> None:
        """So many more bytes are held for clients."""

    def is_resident(self, region: Region, size: int) -> bool:
        """Whether a region's first bytes are in the page cache, as far as one can tell."""
        ...

    def portion_bytes(self, connection: Connection) -> int:
        """How much of a region to send at a time to a connection that reads much."""
        ...

    def waiting(self) -> int:
        """How many who do not read much have sent something."""
        ...

    def read_small(self, region: Region) -> Buffer | None:
        """A region's bytes, if they are in the page cache; None also if that cannot be told."""
        ...

    def read_ahead(self, region: Region, size: int, ready: Callable[[], None]) -> None:
        """Bring a region's first bytes into the page cache; then `ready`, on the loop."""

    def gone(self, connection: Connection, reason: str) -> None:
        """A connection has closed itself."""


class Connection:
    """A transport and the core's channel behind it.

    in_lane: whether it is a controller's. last_heard_ms: when bytes last came in or went out.
    ended: the client sends no more, and what it was answered is still on its way.
    """

    __slots__ = (
        "_backlog",
        "_buffers_input",
        "_decoder",
        "_logs_in",
        "_queue",
        "_reading",
        "_region_ready",
        "_rest",
        "_server",
        "_transport",
        "_turn_due",
        "_turns_left",
        "_view",
        "_waits",
        "channel",
        "closed",
        "ended",
        "fd",
        "in_lane",
        "last_heard_ms",
        "peer_host",
    )

    def __init__(self, server: Owner, transport: Transport, channel: Channel, peer_host: str, now_ms: int) -> None:
        self._server = server
        self._transport = transport
        self._buffers_input = transport.buffers_input
        self.fd = transport.fileno()
        self.channel = channel
        self.peer_host = peer_host
        self.last_heard_ms = now_ms
        self.closed = False
        self.ended = False
        self.in_lane = False  # a controller's: goes first
        self._view = server.receive_view  # where bytes are received between frames
        self._logs_in = channel.most_frame_bytes < NO_LIMIT
        self._decoder = FrameDecoder(min(channel.most_frame_bytes, server.max_frame_bytes))
        self._queue: deque[Buffer | Region] = deque()  # taken from the channel, not yet taken by the kernel
        self._backlog: deque[memoryview] = deque()  # frames received and held back, in memory of their own
        self._rest = NOTHING  # received behind them and not looked at yet, in memory of its own
        self._reading = True
        self._turn_due = False  # the loop will call `_turn`
        self._waits = IDLE
        self._turns_left = 0  # portions that may leave before others are looked for
        self._region_ready = 0  # bytes of the queue's first region known to be in the page cache
        server.loop.add_reader(self.fd, self.receive if transport.is_shaken else self._shake)

    # -- in

    def receive(self) -> None:
        """Receive once, handle frames that are whole, write what that gave.

        What it causes on other connections is the server's, which settles it once for all that was ready together.
        """
        if self._backlog or self._rest or self.closed:
            return  # first what is held back; its turn is due, or answers have to leave
        frames = self._received()
        if frames:
            self._handle(frames, self.last_heard_ms)

    def _shake(self) -> None:
        """The handshake may go on: in its turn, for a step of it takes as long as many requests."""
        self._server.loop.remove_reader(self.fd)
        self._server.shake_later(self._shake_on)

    def _shake_on(self) -> None:
        if self.closed:
            return
        self.receive()
        if not self.closed:
            self._watch_input()
        self._server.settle()

    def _received(self) -> Sequence[memoryview]:
        """Read the socket once; the frames that are whole now."""
        decoder, server = self._decoder, self._server
        room = None if decoder.body is None else decoder.room()
        try:
            size = self._transport.recv_into(self._view if room is None else room)
        except (BlockingIOError, InterruptedError) as error:
            if isinstance(error, WantWriteError):
                self._stop_reading()
                self._wait_writable()
            return ()
        except OSError as error:
            self.close(error.strerror or str(error), getattr(error, "kind", ""))
            return ()
        if size == 0:
            self._end_of_input()
            return ()
        server.bytes_in += size
        self.last_heard_ms = server.clock.now_ms()
        if room is None:
            frames = self._frames_of(self._view[:size], self.last_heard_ms)
        else:
            frames = decoder.filled(size)
        if room is not None or decoder.body is not None:
            server.gathered(self, decoder.held_bytes)
        if self._buffers_input and self._transport.has_bytes_buffered():
            self._receive_soon()
        return frames

    def _receive_soon(self) -> None:
        """What the transport holds; a turn that is due already does it."""
        if not self._turn_due:
            self._turn_due = True
            self._server.loop.call_soon(self._turn)

    def _frames_of(self, data: memoryview, now_ms: int) -> Sequence[memoryview]:
        """As many frames as are the connection's turn (all, if it is a controller's); what is behind them is kept."""
        decoder = self._decoder
        try:
            turn = REQUESTS_PER_LOOP_TURN >> self._server.loop.halvings
            frames = decoder.feed(data, NO_LIMIT if self.in_lane else turn)
        except FrameError as error:
            self._handle(error.frames, now_ms)
            self.close(str(error))
            return ()
        if decoder.rest:
            self._rest = decoder.rest
            if data.obj is self._view.obj:
                self._rest = memoryview(bytearray(decoder.rest))
                self._server.grew(len(self._rest))
        return frames

    def _end_of_input(self) -> None:
        """The client is gone, or sends no more: what is under way to it goes on, what it waits for is given up."""
        if self._waits:  # sending tells the two apart
            self.ended = True
            self._stop_reading()
        else:
            self.close("")

    def _handle(self, frames: Sequence[memoryview], now_ms: int) -> None:
        """Pass frames to the core, as many as it takes now, and write what that gave. frames: no more than a turn's."""
        channel, server = self.channel, self._server
        receive = server.core.receive
        try:
            for number, frame in enumerate(frames):
                if server.lane and not self.in_lane:
                    server.empty_lane()
                if channel.closing:
                    break
                if (channel.pending or channel.unsent_bytes) and channel.full:
                    self._hold(frames[number:])
                    break
                receive(channel, frame, now_ms)
        except Exception:  # the core answers what handlers raise: this is a bug, and the client must not wait for it
            log.exception("failed on a request of %s", channel.session)
            self.close("internal error")
            return
        if self.closed:
            return
        if channel.session.is_controller and not self.in_lane:
            server.prefer(self)
        if self._logs_in and channel.most_frame_bytes == NO_LIMIT:
            self._logs_in = False
            self._decoder.allow(server.max_frame_bytes)
        if channel.closing:
            self._forget()
            self._stop_reading()
            self.flush()
        elif channel.out:
            self.flush()
        if channel.held_bytes > NOTICED_BYTES:
            server.grew(DECODED_TIMES * sum(map(len, frames)))
        if self._backlog or self._rest:
            self._pace()

    def _forget(self) -> None:
        """What is held back is not handled any more."""
        self._backlog.clear()
        self._rest = NOTHING

    def _hold(self, frames: Sequence[memoryview]) -> None:
        """Keep frames for later: copied if they are in the shared buffer, else in the buffer they were gathered in."""
        for frame in reversed(frames):
            if frame.obj is self._view.obj:
                frame = memoryview(bytearray(frame))
            else:
                self._decoder.release()
            self._backlog.appendleft(frame)
        self._server.grew(sum(map(len, frames)))

    def _pace(self) -> None:
        """When to go on with what is held back, and whether to read meanwhile."""
        if self.closed:
            return
        if not self._backlog and not self._rest:
            if not self._reading and not self.channel.closing:
                self._reading = True
                self._watch_input()
            if self._buffers_input and self._reading and self._transport.has_bytes_buffered():
                self._receive_soon()
        elif self.channel.full:  # until answers have left: back-pressure
            self._stop_reading()
        else:
            self._receive_soon()

    def _turn(self) -> None:
        """Handle some of what was held back, or in the transport."""
        self._turn_due = False
        if self.closed:
            return
        # Not `last_heard_ms`: deadlines count from when a request is looked at, and it may have been held for long.
        now_ms = self._server.clock.now_ms()
        if self._backlog:
            count = min(REQUESTS_PER_LOOP_TURN >> self._server.loop.halvings, len(self._backlog))
            frames: Sequence[memoryview] = [self._backlog.popleft() for _ in range(count)]
        elif self._rest:
            rest, self._rest = self._rest, NOTHING
            frames = self._frames_of(rest, now_ms)
            if self._decoder.midway:
                self._server.gathered(self, self._decoder.held_bytes)
        else:
            frames = self._received() if self._reading else ()
            if not frames:
                return
        self._handle(frames, now_ms)
        self._pace()
        self._server.settle()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._watch_input()

    def _watch_input(self) -> None:
        """What is called when the socket is readable."""
        loop = self._server.loop
        if self._waits == WAITS_INPUT:
            loop.add_reader(self.fd, self._on_input)
        elif self._reading:
            loop.add_reader(self.fd, self.receive if self._transport.is_shaken else self._shake)
        else:
            loop.remove_reader(self.fd)

    def prefer(self, view: memoryview) -> None:
        """It is a controller's. view: the buffer to receive into from now on. Called between frames."""
        self.in_lane = True
        self._view = view

    @property
    def is_shaken(self) -> bool:
        """Whether there is no handshake to wait for, also because the connection is closed."""
        return self.closed or self._transport.is_shaken

    @property
    def held_bytes(self) -> int:
        """Memory that is in use for this client."""
        channel = self.channel
        held = self._decoder.held_bytes + sum(map(len, self._backlog)) + len(self._rest)
        return held + len(channel.pending) * PARKED_BYTES + channel.unsent_bytes + channel.held_bytes

    def release_buffer(self) -> int:
        """Give back the memory of the last frame gathered; returns the bytes still held, of a frame in the making."""
        self._decoder.release()
        return self._decoder.held_bytes

    # -- out

    def flush(self) -> None:
        """Write what the channel has ready, as far as the kernel takes it; the rest when the socket is writable."""
        channel = self.channel
        out = channel.out
        if self._waits or len(out) != 1 or type(out[0]) is not bytes:
            if self._waits:
                self._server.grew(sum(len(piece) for piece in out if type(piece) is not Region))
            self._queue_output(channel)
            if not self._waits:
                self._write_queue()
            return
        data = out[0]  # nearly every answer that is not a fetch
        try:
            sent = self._transport.send(data)
        except (BlockingIOError, InterruptedError) as error:
            channel.out = []
            self._queue.append(data)
            self._wait_to_send(error)
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        channel.out = []
        self._server.bytes_out += sent
        if sent < len(data):
            self._queue.append(memoryview(data)[sent:])
            self._wait_writable()
            return
        channel.unsent_bytes = 0
        if channel.closing or self.ended or self._backlog or self._rest or not self._reading:
            self._written_all()

    def _queue_output(self, channel: Channel) -> None:
        queue = self._queue
        left = 0 if queue else SMALL_REGIONS_BYTES
        for piece in channel.out:
            if piece.__class__ is Region and piece.size <= left:
                data = self._server.read_small(piece)
                if data is None:
                    left = 0
                else:
                    left -= piece.size
                    channel.unsent_bytes += piece.size
                    piece = data
            queue.append(piece)
        channel.written()

    def _write_queue(self) -> None:
        queue = self._queue
        left = REGIONS_PER_TURN
        try:
            while queue:
                if isinstance(queue[0], Region):
                    if left == 0:
                        self._wait_writable()
                        return
                    left -= 1
                    if not self._send_region(queue[0]):
                        return
                    if queue and self._gives_way():  # behind the last one, too: the next answer's are small then
                        return
                elif not self._send_buffers():
                    self._wait_writable()
                    return
        except (BlockingIOError, InterruptedError) as error:
            self._wait_to_send(error)
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
        sent = self._transport.sendmsg(buffers, (), more)
        self._server.bytes_out += sent
        for data in buffers:
            size = len(data)
            if sent < size:
                queue[0] = memoryview(data)[sent:]
                return False
            sent -= size
            queue.popleft()
        return True

    def _send_region(self, region: Region) -> bool:
        """Send a portion of it, by one sendfile; false if the disk, or the reader, has to be waited for now."""
        if self._region_ready <= 0:
            wanted = min(region.size, REGION_BYTES)
            if not self._server.is_resident(region, wanted):
                self._read_ahead(region, wanted)
                return False
            self._region_ready = wanted
        size = min(region.size, self._region_ready)
        if size > PORTION_BYTES:
            size = min(size, self._server.portion_bytes(self))
        file = cast("SystemFile", region.file)
        data = None
        if self._transport.sends_files:
            sent = self._transport.send_file(file.fileno(), region.position, size)
            self._server.bytes_out += sent
        else:
            data = file.read(region.position, min(size, PORTION_BYTES))
            sent = size = len(data)
        if sent == 0:
            raise OSError(f"{region!r} ended early: its file was cut while it was being sent")
        self._region_ready -= sent
        if sent == region.size:
            self._queue.popleft()
            self._region_ready = 0
        else:  # a region belongs to the answer that was made with it: no other reads its bounds
            self._queue[0] = Region(file, region.position + sent, region.size - sent)
            if sent < size:  # the kernel has no room for more, and would say so if it was asked again
                self._wait_writable()
        if data:
            self._queue.appendleft(data)
        return sent == size

    def _read_ahead(self, region: Region, size: int) -> None:
        """Bring a cold region into the page cache on the disk pool, then go on."""
        self._wait_elsewhere(WAITS_DISK)

        def ready() -> None:
            self._region_ready = size
            self._resume_writing()

        self._server.read_ahead(region, size, ready)

    def _wait_to_send(self, error: OSError) -> None:
        """error: of the transport, which has taken nothing."""
        if isinstance(error, WantReadError):
            self._wait_elsewhere(WAITS_INPUT)
            self._watch_input()
        else:
            self._wait_writable()

    def _on_input(self) -> None:
        """What the transport has waited for to send; behind it there may be requests."""
        self._waits = IDLE
        self._watch_input()
        self._write_queue()
        self._pace()

    def _wait_writable(self) -> None:
        if not self._waits:
            self._waits = WAITS_SOCKET
            self._server.loop.add_writer(self.fd, self._on_writable)
            self._server.grew(self.channel.unsent_bytes)

    def _gives_way(self) -> bool:
        """Whether others have their turn first. Of many it takes long: then as many portions may leave behind it."""
        if self._turns_left:
            self._turns_left -= 1
            return False
        self._turns_left = self._server.waiting()
        if not self._turns_left:
            return False
        self._wait_elsewhere(WAITS_TURN)
        self._server.loop.at_rest(self._resume_writing)
        return True

    def _wait_elsewhere(self, what: int) -> None:
        """Not for the socket, or not any more; then `_resume_writing`."""
        if self._waits:
            self._server.loop.remove_writer(self.fd)
        self._waits = what

    def _resume_writing(self) -> None:
        if not self.closed:
            self._waits = IDLE
            self._write_queue()

    def _on_writable(self) -> None:
        self.last_heard_ms = self._server.clock.now_ms()
        self._write_queue()

    def _written_all(self) -> None:
        if self._waits:
            self._waits = IDLE
            self._server.loop.remove_writer(self.fd)
        channel = self.channel
        channel.sent()
        if channel.closing:
            if not channel.out:
                self.close(channel.closing)
        elif self.ended:
            self.close("")
        elif channel.muted is not None:
            self._stop_reading()
        elif self._backlog or self._rest or not self._reading:
            self._pace()

    def close(self, reason: str, kind: str = "") -> None:
        """Hang up at once. reason: for the log; empty when the client left by itself. kind: of a failed handshake."""
        if self.closed:
            return
        self.closed = True
        loop = self._server.loop
        loop.remove_reader(self.fd)
        loop.remove_writer(self.fd)
        self._queue.clear()
        self._forget()
        self._transport.close()
        if not self._transport.is_shaken:
            self._server.note_failed_handshake(self, kind)
        self._server.gone(self, reason)
