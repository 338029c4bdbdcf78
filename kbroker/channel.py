"""A connection as the core knows it: its requests, the order of their answers, and how these are written.

Owns what a connection holds, which is where back-pressure comes from, and the frame that an answer leaves in. When a
request is begun, and when it is answered, is decided in `core.py`; the socket is `runtime/connection.py`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Hashable
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias

from kbroker.api.call import Call
from kbroker.api.handshake import API_VERSIONS
from kbroker.config.limits import ANSWER_BYTES_PER_CONNECTION, REQUESTS_IN_FLIGHT_PER_CONNECTION
from kbroker.ports import Region
from protocol.headers import NO_TAGS
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.api.call import Answer, Waiting
    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.broker.session import Session
    from kbroker.ports import Buffer
    from kbroker.timing import Parked

    Piece: TypeAlias = Buffer | Region

_SIZE_AND_CORRELATION = Layout(">ii")
_CORRELATION_BYTES = 4


class Request(Call):
    """A call with the place of its answer: what handlers see as `call.ticket` is the request itself."""

    __slots__ = ("answer", "channel", "correlation_id", "late", "parked", "route", "waiting")
    answer: list[Piece] | None  # encoded, while earlier answers are missing; [] is no answer at all
    late: bool  # stands in its channel's `pending`, and its answer comes now
    parked: Parked[Hashable, Request] | None  # the purgatory's receipt for it
    waiting: Waiting | Unbegun | None

    def __init__(
        self, channel: Channel, route: Route, version: int, correlation_id: int, client_id: str | None, now_ms: int
    ) -> None:
        self.broker = channel.broker
        self.session = channel.session
        self.version = version
        self.client_id = client_id
        self.now_ms = now_ms
        self.channel = channel
        self.route = route
        self.correlation_id, self.opened_bytes = correlation_id, 0
        self.late = self.has_errors = self.is_large = False
        self.answer = self.waiting = self.parked = self.verified = None

    @property
    def ticket(self) -> Request:
        """Itself: not kept, or every request would be garbage that only the collector finds."""
        return self

    def __repr__(self) -> str:
        return f"{self.route.name} v{self.version} #{self.correlation_id} of {self.client_id!r} at {self.session}"


class Unbegun:
    """A request that has not been begun, for one before it has no answer yet: its frame, and where its body begins."""

    __slots__ = ("frame", "start")

    def __init__(self, frame: memoryview, start: int) -> None:
        self.frame = memoryview(bytearray(frame))  # the receive buffer is the next frame's
        self.start = start


class Resume(NamedTuple):
    """The fact that a held request is the first of its connection now."""

    request: Request


class Channel:
    """A connection as the core knows it: answers leave in the order of their requests.

    out: what may be written now, in order. closing: why to hang up once `out` is written, or empty. held_by: the
    request that has to be carried out before the next one is begun, if there is one.
    """

    __slots__ = ("broker", "closing", "held_by", "held_bytes", "out", "pending", "session", "unsent_bytes")

    def __init__(self, broker: Broker, session: Session) -> None:
        self.broker = broker
        self.session = session
        self.pending: deque[Request] = deque()  # requests whose answers, or whose predecessors', are not there yet
        self.out: list[Piece] = []
        self.unsent_bytes = 0  # of `out`, and of what the connection has taken of it
        self.held_bytes = 0  # of answers, and of requests that are not begun, in `pending`
        self.closing = ""
        self.held_by: Request | None = None

    @property
    def full(self) -> bool:
        """Whether no more requests are taken until answers have left, or one is carried out: back-pressure."""
        return (
            self.held_by is not None
            or len(self.pending) >= REQUESTS_IN_FLIGHT_PER_CONNECTION
            or self.unsent_bytes + self.held_bytes > ANSWER_BYTES_PER_CONNECTION
        )

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self.pending)

    def written(self) -> None:
        """The connection has taken `out`."""
        self.out = []

    def sent(self) -> None:
        """Everything taken has reached the operating system."""
        self.unsent_bytes = 0


def emit(channel: Channel, buffers: list[Piece]) -> None:
    """Put an answer where it may be written."""
    channel.out += buffers
    first = buffers[0] if buffers else b""
    channel.unsent_bytes += len(first) if len(buffers) == 1 and first.__class__ is bytes else bytes_in(buffers)


def bytes_in(buffers: list[Piece]) -> int:
    """Of memory: regions are in files."""
    return sum(len(piece) for piece in buffers if piece.__class__ is not Region)


def encode(request: Request, response: Answer) -> list[Piece]:
    """The answer with its size and header in front; small answers are one buffer."""
    return _with_header(request, request.route.write(response, request.version))


def encode_slices(request: Request, response: Answer) -> Generator[None, None, list[Piece]]:
    """The same as `encode`, with a break now and then."""
    pieces = yield from request.route.write_slices(response, request.version)
    return _with_header(request, pieces)


def _with_header(request: Request, pieces: list[Piece]) -> list[Piece]:
    route = request.route
    tags = NO_TAGS if request.version >= route.flexible_from and route.api != API_VERSIONS else b""
    size = _CORRELATION_BYTES + len(tags) + (len(pieces[0]) if len(pieces) == 1 else sum(map(len, pieces)))
    first = _SIZE_AND_CORRELATION.pack(size, request.correlation_id) + tags
    if pieces[0].__class__ is bytes:
        pieces[0] = first + pieces[0]
    else:
        pieces.insert(0, first)
    return pieces
