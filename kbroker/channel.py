"""A connection as the core and its driver share it: what may be written, the order of answers, and how it is held back.

Owns what a connection holds, which is where back-pressure comes from, and the frame that an answer leaves in. When a
request is begun, and when it is answered, is decided in `core.py`; the socket is `runtime/connection.py`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias

from kbroker.api.call import SILENCE, Call
from kbroker.api.routes import ROUTES
from kbroker.config.limits import ANSWER_BYTES_PER_CONNECTION, REQUESTS_IN_FLIGHT_PER_CONNECTION
from kbroker.ports import Region
from protocol.errors import shortened
from protocol.frames import NO_LIMIT, SIZE_BYTES
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.api.call import Signal, Waiting
    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.broker.session import Session
    from kbroker.coordinator.effects import Again
    from kbroker.ports import Buffer
    from kbroker.timing import Parked

    Piece: TypeAlias = Buffer | Region

NO_HEADER = None
"""Instead of a correlation id: what came without a header is answered without one."""
CLIENT_ID_CHARACTERS = 100  # of one in a line of the log

_HEAD, _HEAD_BYTES = Layout(">ii").pack, 4  # size of what follows it, correlation id; bytes behind the size
_TAGGED_HEAD, _TAGGED_HEAD_BYTES = Layout(">iix").pack, 5  # the same, and no tagged fields


class Request(Call):
    """A call with the place of its answer: what handlers see as `call.ticket` is the request itself."""

    __slots__ = ("again", "answer", "channel", "correlation_id", "frame_bytes", "late", "parked", "waiting")
    again: Again | None  # whether the same request would be answered the same
    answer: list[Piece] | None  # encoded, while earlier answers are missing; [] is no answer at all
    frame_bytes: int  # its size; of a follower's fetch it may be none (`metering.py`)
    late: bool  # stands in its channel's `pending`
    parked: Parked[Hashable, Request] | None  # the purgatory's receipt for it
    waiting: Waiting | Unbegun | None

    def __init__(
        self,
        broker: Broker,
        channel: Channel,
        route: Route,
        version: int,
        correlation_id: int | None,
        client_id: str | None,
        now_ms: int,
        frame_bytes: int = 0,
    ) -> None:
        self.broker = broker
        self.session = channel.session
        self.version = version
        self.client_id = client_id
        self.now_ms = now_ms
        self.channel = channel
        self.route = route
        self.correlation_id, self.frame_bytes, self.opened_bytes = correlation_id, frame_bytes, 0
        self.late = self.has_errors = self.is_large = False
        self.again = self.answer = self.waiting = self.parked = self.verified = self.may_read = self.mutations = None

    @property
    def ticket(self) -> Request:
        """Itself: not kept, or every request would be garbage that only the collector finds."""
        return self

    def __repr__(self) -> str:
        client_id = None if self.client_id is None else shortened(self.client_id, CLIENT_ID_CHARACTERS)
        return f"{self.route.name} v{self.version} #{self.correlation_id} of {client_id!r} at {self.session}"


class Unbegun:
    """A request that has not been begun, for one before it has no answer yet: its frame, and where its body begins."""

    __slots__ = ("frame", "start")

    def __init__(self, frame: memoryview, start: int) -> None:
        self.frame = memoryview(bytearray(frame))  # the receive buffer is the next frame's
        self.start = start


class Resume(NamedTuple):
    """The fact that a held request is the first of its connection now."""

    request: Request


class Muted:
    """The wait of a connection whose client is over a quota: nothing ends it but time."""

    __slots__ = ("_channel", "deadline_ms")
    keys: Sequence[Hashable] = ()

    def __init__(self, channel: Channel, deadline_ms: int) -> None:
        self._channel = channel
        self.deadline_ms = deadline_ms

    def answer(self, now_ms: int) -> None:
        """Not before its time."""

    def expired(self, now_ms: int) -> Signal:
        """It is read again."""
        self._channel.muted = None
        return SILENCE


class Repeated(NamedTuple):
    """An answer that the same request has again while it `holds`.

    head, tail: around the correlation id. finalized: the features by which it was served (`metadata/features.py`).
    """

    api: int
    head: bytes
    tail: bytes
    again: Again
    finalized: Mapping[str, int]


class Channel:
    """A connection: answers leave in the order of their requests.

    A driver passes frames on unless it is `full`, takes `out` and says so (`written`, `sent`), and hangs up once that
    is written where there is a reason, `closing`. Whether anything is `pending`, and the bytes that are held, it may
    look at; what is in `pending`, and held_by, are the core's: the request to be carried out before the next is begun.
    While it is `muted`, for its client is over a quota, a driver reads nothing from it.
    repeated: answers that the same requests have again, by the frames without their correlation ids.
    """

    __slots__ = (
        "closing",
        "held_by",
        "held_bytes",
        "login",
        "muted",
        "out",
        "pending",
        "repeated",
        "routes",
        "session",
        "unsent_bytes",
    )

    def __init__(self, session: Session, routes: Mapping[int, Route] = ROUTES) -> None:
        self.session = session
        self.login = session.login  # is asked about each frame; None once there is nothing to ask
        self.routes = routes  # where its requests are looked up
        self.pending: deque[Request] = deque()  # requests whose answers, or whose predecessors', are not there yet
        self.out: list[Piece] = []
        self.unsent_bytes = 0  # of `out`, and of what the connection has taken of it
        self.held_bytes = 0  # of answers, and of requests that are not begun, in `pending`
        self.closing = ""
        self.held_by: Request | None = None
        self.repeated: dict[bytes, Repeated] = {}
        self.muted: Request | None = None  # stands in `pending` without an answer until the time is over

    @property
    def full(self) -> bool:
        """Whether no more requests are taken until answers have left, or one is carried out: back-pressure.

        Never without `pending` or `unsent_bytes`: who asks often looks at those first.
        """
        return (
            self.held_by is not None
            or self.muted is not None
            or len(self.pending) >= REQUESTS_IN_FLIGHT_PER_CONNECTION
            or self.unsent_bytes + self.held_bytes > ANSWER_BYTES_PER_CONNECTION
        )

    @property
    def most_frame_bytes(self) -> int:
        """Of a frame, while its client has still to log in."""
        login = self.session.login
        return NO_LIMIT if login is None or login.user else login.most_bytes

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return bool(self.pending)

    def written(self) -> None:
        """The connection has taken `out`. One that sends a single answer at once does these two steps itself."""
        self.out = []

    def sent(self) -> None:
        """Everything taken has reached the operating system."""
        self.unsent_bytes = 0


def emit(channel: Channel, buffers: list[Piece]) -> None:
    """Put an answer where it may be written."""
    channel.out += buffers
    is_small = len(buffers) == 1 and buffers[0].__class__ is bytes
    channel.unsent_bytes += len(buffers[0]) if is_small else bytes_in(buffers)


def bytes_in(buffers: list[Piece]) -> int:
    """Of memory: regions are in files."""
    return sum(len(piece) for piece in buffers if piece.__class__ is not Region)


def framed(request: Request, pieces: list[Piece]) -> list[Piece]:
    """An encoded answer with its size and header in front, in the same list; a small one is one buffer."""
    first = pieces[0]
    size = len(first) if len(pieces) == 1 else sum(map(len, pieces))
    if request.version >= request.route.answers_tagged_from:
        head = _TAGGED_HEAD(size + _TAGGED_HEAD_BYTES, request.correlation_id)
    elif request.correlation_id is NO_HEADER:
        head = size.to_bytes(SIZE_BYTES, "big")
    else:
        head = _HEAD(size + _HEAD_BYTES, request.correlation_id)
    if first.__class__ is bytes:
        pieces[0] = head + first
    else:
        pieces.insert(0, head)
    return pieces
