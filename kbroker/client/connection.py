"""A client's end of one connection: requests become bytes, and the bytes that come become answers.

It touches no socket and no clock. Its owner sends what `ask` returns, in that order, and gives it what comes, in that
order. Several requests may be on their way; the broker answers them in the order in which they were asked.

    CONNECTING --negotiate--> NEGOTIATING --versions known--> AUTHENTICATING --authenticated--> READY
         |                                 (only if it is to be, else READY)                      ^
         +------------------connected: by a client that knows which versions it may ask-----------+

Each state may end in CLOSED. What a broker may not send is a `ProtocolError`: nothing that comes after it can be
trusted, and the state is CLOSED. What the owner may not do is an assertion.

The row of a state in `RULES` is which states may follow, and the API keys that may be asked in it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from protocol.errors import ErrorCode
from protocol.frames import SIZE_BYTES, FrameDecoder, FrameError
from protocol.headers import (
    API_VERSIONS,
    CORRELATION_AT,
    encode_request_header,
    encode_response_header,
    parse_response_header,
)
from protocol.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from protocol.flat import Flat
    from protocol.message import Message

PRODUCE, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 17, 36
NEGOTIATED_VERSION = 3
"""The version of ApiVersions that is asked: the first that tells who the client is (KIP-511). Since Kafka 2.4."""
MOST_FRAME_BYTES = (1 << 31) - 1  # what a size can say; memory is taken as the bytes come
_LARGEST_ID = (1 << 31) - 1
_UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")


class State(Enum):
    """Where a connection stands."""

    CONNECTING = "connecting"
    NEGOTIATING = "negotiating"  # ApiVersions is on its way
    AUTHENTICATING = "authenticating"  # versions are known, and who the client is has still to be shown
    READY = "ready"
    CLOSED = "closed"

    __hash__ = object.__hash__  # each is one object


CONNECTING, NEGOTIATING, AUTHENTICATING = State.CONNECTING, State.NEGOTIATING, State.AUTHENTICATING
READY, CLOSED = State.READY, State.CLOSED

_ALL = frozenset(range(1 << 10))
RULES: dict[State, tuple[set[State], frozenset[int]]] = {
    CONNECTING: ({NEGOTIATING, READY, CLOSED}, frozenset()),
    NEGOTIATING: ({AUTHENTICATING, READY, CLOSED}, frozenset({API_VERSIONS})),
    AUTHENTICATING: ({READY, CLOSED}, frozenset({SASL_HANDSHAKE, SASL_AUTHENTICATE})),
    READY: ({CLOSED}, _ALL),
    CLOSED: ({CLOSED}, frozenset()),
}


class ProtocolError(ConnectionError):
    """A broker has sent what it may not send here: the connection is of no more use.

    answers: what came before it with the same call. unsupported: the broker does not serve what a connection begins
    with, and has said so in good order.
    """

    def __init__(self, reason: str, answers: Sequence[Answer] = (), *, unsupported: bool = False) -> None:
        super().__init__(reason)
        self.answers = answers
        self.unsupported = unsupported


class Answer:
    """A whole answer. kind, version, token: of what was asked. frame, start: its bytes, and where its body begins.

    The frame is a view of the buffer it was received in: good until more is received.
    """

    __slots__ = ("frame", "kind", "start", "token", "version")

    def __init__(self, kind: type[Message], version: int, token: object, frame: memoryview, start: int) -> None:
        self.kind, self.version, self.token = kind, version, token
        self.frame, self.start = frame, start

    def decode(self) -> Any:
        """The response; its records are views of the frame. Raises: DecodeError."""
        is_refused = self.kind.api == API_VERSIONS and self.frame[self.start : self.start + 2] == _UNSUPPORTED
        version = 0 if is_refused else self.version  # the layout that every client reads (KIP-511)
        return _response_of(self.kind).decode(self.frame, version, self.start)

    def read_flat(self) -> Flat:
        """The response as a tuple (`protocol/flat.py`). Raises: DecodeError."""
        return _response_of(self.kind).read_flat(self.frame, self.version, self.start)


@cache
def _response_of(kind: type[Message]) -> type[Message]:
    from protocol.apis import BY_KEY  # who asks nothing has no use for all the messages

    assert kind.api is not None, kind
    return BY_KEY[kind.api].response


def correlation_ids(first: int = 1) -> Iterator[int]:
    """Numbers of requests: one after the other, from 0 again behind the largest."""
    return map(_LARGEST_ID.__and__, count(first))


class Connection:
    """See above. state: where it stands. served: by API key, the versions that the broker serves; empty until known.

    client_id: told with each request. numbers: of requests, if they go on from another connection's. receive_view:
    where bytes are received, if it is shared with others. authenticates: who the client is has to be shown, before
    anything else is asked.
    """

    def __init__(
        self,
        client_id: str | None,
        *,
        most_frame_bytes: int = MOST_FRAME_BYTES,
        numbers: Iterator[int] | None = None,
        receive_view: memoryview | None = None,
        authenticates: bool = False,
    ) -> None:
        self.state = CONNECTING
        self.served: Mapping[int, tuple[int, int]] = {}
        self._client_id = client_id
        self._numbers = correlation_ids() if numbers is None else numbers
        self._view = memoryview(bytearray(SIZE_BYTES)) if receive_view is None else receive_view
        self._authenticates = authenticates
        self._decoder = FrameDecoder(most_frame_bytes)
        self._asked: deque[tuple[bytes, type[Message], int, object]] = deque()  # header due, class, version, token
        self._heads: dict[tuple[type[Message], int], tuple[bytes, bytes, bytes]] = {}  # see `_make_head`

    # -- from state to state

    def negotiate(self, software_name: str, software_version: str, version: int = NEGOTIATED_VERSION) -> bytes:
        """The transport is there: the bytes that ask which versions the broker serves."""
        from protocol.messages.handshake import ApiVersionsRequest

        self._go(NEGOTIATING)
        request = ApiVersionsRequest(client_software_name=software_name, client_software_version=software_version)
        return self.ask(request, version)

    def connected(self) -> None:
        """The transport is there, and what is asked of the broker is known to be served."""
        self._go(READY)

    def authenticated(self) -> None:
        """The broker has taken the client for who it says it is."""
        assert self.state is AUTHENTICATING, self.state
        self._go(READY)

    def close(self) -> None:
        """Nothing is asked or received any more."""
        self._go(CLOSED)
        self._asked.clear()

    def ended(self) -> None:
        """The broker sends no more. Raises: ProtocolError if it owes the rest of an answer."""
        is_midway = self.midway
        self.close()
        if is_midway:
            raise ProtocolError("the connection ended in the middle of an answer")

    def _go(self, state: State) -> None:
        assert state in RULES[self.state][0], f"{self.state.name} -> {state.name}"
        self.state = state

    # -- out

    @property
    def in_flight(self) -> int:
        """How many answers are still to come."""
        return len(self._asked)

    @property
    def midway(self) -> bool:
        """Whether a part of an answer has come, and the rest is still to come."""
        return self._decoder.midway

    def serves(self, kind: type[Message], version: int) -> bool:
        """Whether the broker has said that it serves a request in that version."""
        assert kind.api is not None, kind
        first, last = self.served.get(kind.api, (0, -1))
        return first <= version <= last

    def ask(self, request: Message, version: int, token: object = None) -> bytes:
        """The bytes of a request, to be sent behind those before it. A Produce with acks=0 is never answered."""
        kind = type(request)
        is_answered = kind.api != PRODUCE or request.acks != 0  # type: ignore[attr-defined]
        return self.ask_encoded(kind, version, request.encode(version), token, is_answered=is_answered)

    def ask_encoded(
        self, kind: type[Message], version: int, body: bytes, token: object = None, *, is_answered: bool = True
    ) -> bytes:
        """The same of a request whose body is encoded already. token: given back with its answer."""
        assert kind.api in RULES[self.state][1], f"{kind.__name__} while {self.state.value}"
        before, behind, tags = self._heads.get((kind, version)) or self._make_head(kind, version)
        number = next(self._numbers).to_bytes(4, "big")
        if is_answered:
            self._asked.append((number + tags, kind, version, token))
        size = CORRELATION_AT + 4 + len(behind) + len(body)
        return b"".join((size.to_bytes(SIZE_BYTES, "big"), before, number, behind, body))

    def _make_head(self, kind: type[Message], version: int) -> tuple[bytes, bytes, bytes]:
        """What stands before and behind the number of a request, and behind that of its answer, as brokers say it."""
        whole, due = encode_request_header(kind, version, 0, self._client_id), encode_response_header(kind, version, 0)
        head = self._heads[kind, version] = whole[:CORRELATION_AT], whole[CORRELATION_AT + 4 :], due[4:]
        return head

    # -- in

    def buffer(self) -> memoryview:
        """Where the next bytes belong: receive into it once, let go of it, and call `received`."""
        room = self._decoder.room()
        return self._view if room is None else room

    def received(self, size: int) -> Sequence[Answer]:
        """So many bytes, at least one, have come into `buffer`: the answers now whole. Raises: ProtocolError."""
        if self._decoder.body is None:
            return self.feed(self._view[:size])
        return self._answers(self._decoder.filled(size))

    def feed(self, data: memoryview) -> Sequence[Answer]:
        """The same of bytes that have come into memory of another's. Raises: ProtocolError."""
        try:
            return self._answers(self._decoder.feed(data))
        except FrameError as error:
            answers = self._answers(error.frames)
            self.close()
            raise ProtocolError(str(error), answers) from None

    def keep(self) -> None:
        """Leave the bytes of the last answer to who has it: those that come go elsewhere.

        That is, if it was gathered in memory of the connection's own, as all are where there is no `receive_view`.
        """
        self._decoder.release()

    def _answers(self, frames: Sequence[memoryview]) -> Sequence[Answer]:
        answers: list[Answer] = []
        try:
            for frame in frames:
                answer = self._answer(frame)
                if self.state is NEGOTIATING:
                    self._negotiated(answer)
                else:
                    answers.append(answer)
        except DecodeError as error:
            self.close()
            raise ProtocolError(str(error), answers) from None
        except ProtocolError as error:
            self.close()
            error.answers = answers
            raise
        return answers

    def _answer(self, frame: memoryview) -> Answer:
        if not self._asked:
            raise ProtocolError("an answer to nothing that was asked")
        due, kind, version, token = self._asked.popleft()
        if frame[: len(due)] == due:
            return Answer(kind, version, token, frame, len(due))
        found, start = parse_response_header(kind, version, frame)  # it has tags, or is another one
        if found != (number := int.from_bytes(due[:4], "big")):
            raise ProtocolError(f"answer {found} has come, the one that is due is {number}, to {kind.__name__}")
        return Answer(kind, version, token, frame, start)

    def _negotiated(self, answer: Answer) -> None:
        response = answer.decode()
        if response.error_code != ErrorCode.NONE:
            why = f"ApiVersions is answered with {ErrorCode.of(response.error_code).name}"
            raise ProtocolError(why, unsupported=True)
        self.served = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        self._go(AUTHENTICATING if self._authenticates else READY)
