"""Well-formed requests of a hostile shape: what a client may say, and nobody says who behaves.

Used by the live fuzz, among damaged frames. Draws from the given Random alone. `attack` plays one connection: arrays
hundreds of times as long as they were, frames that end in the middle, answers that are not read, long polls without
end, fetch sessions that grow.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from kbroker.api.routes import ROUTES
from protocol.headers import encode_request_header, parse_request_header, skip_tags
from protocol.message import DecodeError, EncodeError, Message, Struct
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.handshake import ApiVersionsRequest
from tests.frames import framed

MOST_BYTES = 2 << 20  # of a request that has grown
MOST_TIMES = 50_000
HELD_BYTES = 4 << 20  # of a frame that stays unfinished
ANNOUNCED_BYTES = 90 << 20
STAY_S = 0.5  # before hanging up, without having read
PATIENCE_S = 60.0


def grown(rng: Random, frame: bytes) -> bytes | None:
    """The same request with one of its arrays very long; None if it has none, or cannot be read."""
    try:
        api, version, _, _, start = parse_request_header(frame)
        route = ROUTES.get(api)
        if route is None or not route.first <= version <= route.last:
            return None
        start = skip_tags(frame, start) if version >= route.flexible_from else start
        request = route.request.decode(memoryview(frame), version, start)
        places = list(arrays(request))
        if not places:
            return None
        owner, name = rng.choice(places)
        times = min(MOST_BYTES // len(frame), MOST_TIMES)
        setattr(owner, name, list(getattr(owner, name)) * rng.randrange(1, times + 1))
        return frame[:start] + bytes(request.encode(version))
    except (DecodeError, EncodeError, ZeroDivisionError, ValueError):
        return None


def arrays(value: Struct) -> Iterator[tuple[Struct, str]]:
    """Every array in a message that is not empty: whose it is, and its name."""
    for kind in type(value).__mro__:
        for name in getattr(kind, "__slots__", ()):
            part: Any = getattr(value, name, None)
            if isinstance(part, list) and part:
                yield value, name
                if isinstance(part[0], Struct):
                    yield from arrays(part[0])
            elif isinstance(part, Struct):
                yield from arrays(part)


def attack(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """One connection of one of the shapes. Returns: how many answers were read. Raises: OSError after `PATIENCE_S`."""
    return rng.choice(SHAPES)(rng, port, frames)


def finish(client: socket.socket) -> None:
    """Send no more. A broker that has hung up already, as it may, makes the next read raise ConnectionResetError."""
    try:
        client.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def encoded(request: Message, version: int, number: int = 0) -> bytes:
    """A whole frame."""
    return encode_request_header(type(request), version, number, "hostile") + bytes(request.encode(version))


def _grown(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """Requests that are far too long, each answer read."""
    wanted = [frame for frame in (grown(rng, rng.choice(frames)) for _ in range(4)) if frame is not None]
    with _connected(port) as client:
        client.sendall(framed(*wanted))
        finish(client)
        return _answers(client)


def _half(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """A frame that never ends."""
    with _connected(port) as client:
        client.sendall(struct.pack(">i", ANNOUNCED_BYTES))
        _send(client, bytes(rng.randrange(HELD_BYTES)))
        _stay(client)
    return 0


def _unread(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """Many requests, and no answer read."""
    with _connected(port) as client:
        _send(client, framed(encoded(ApiVersionsRequest(), 0)) * 20_000)
        _stay(client)
    return 0


def _long_polls(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """More long polls than may be under way, then half a frame."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic="no-such-topic", partitions=[partition])]
    poll = FetchRequest(max_wait_ms=60_000, min_bytes=1 << 30, session_epoch=-1, topics=topics)
    with _connected(port) as client:
        _send(client, framed(*[encoded(poll, 11)] * 80) + struct.pack(">i", ANNOUNCED_BYTES) + bytes(1 << 20))
        _stay(client)
    return 0


def _sessions(rng: Random, port: int, frames: Sequence[bytes]) -> int:
    """Fetch sessions of made-up partitions."""
    read = 0
    for _ in range(3):
        partitions = [
            FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1)
            for each in range(rng.choice((1_000, 20_000, 60_000)))
        ]
        topics = [FetchTopic(topic="made-up", partitions=partitions)]
        request = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=0, session_epoch=0, topics=topics)
        with _connected(port) as client:
            client.sendall(framed(encoded(request, 11)))
            finish(client)
            read += _answers(client)
    return read


SHAPES: tuple[Callable[[Random, int, Sequence[bytes]], int], ...] = (
    _grown,
    _grown,
    _grown,
    _half,
    _unread,
    _long_polls,
    _sessions,
)


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)


def _send(client: socket.socket, data: bytes) -> None:
    """As much as the broker takes."""
    client.settimeout(STAY_S)
    with suppress(OSError):
        client.sendall(data)


def _stay(client: socket.socket) -> None:
    """Until the broker hangs up, for a moment at most."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    poll.poll(STAY_S * 1000)


def _answers(client: socket.socket) -> int:
    """How many come until the broker closes its side."""
    count, left, head = 0, 0, b""
    with suppress(ConnectionResetError, BrokenPipeError):
        while data := client.recv(1 << 20):
            while data:
                if left:
                    taken = min(left, len(data))
                    left, data = left - taken, data[taken:]
                    continue
                head, data = head + data[: 4 - len(head)], data[4 - len(head) :]
                if len(head) == 4:
                    left, head = struct.unpack(">i", head)[0], b""
                    count += 1
    return count
