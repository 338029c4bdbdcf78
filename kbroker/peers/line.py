"""One line to another broker: what waits on it, what is under way, when it connects and when it gives up.

A state machine that touches no socket and no clock: `Lines` tells it what happened and when. Its states:

    idle --something to say--> connecting --connected--> greeting --greeted--> ready
      ^                                                                          |
      +----------- the connection ends: all that is on the line fails -----------+

Greeting is ApiVersions, to know what the broker serves, and Metadata, to know that it is a broker of this cluster, and
that nobody else of it lives at this address. Neither names who answers: what an address says of itself is compared with
whom it is believed to be. Brokers of Kafka do not ask, and a port that was given to another cluster is one that they
speak to. After a failure the line waits before it connects again, longer each time until an answer comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.limits import MOST_PEER_BACKOFF_MS, PEER_BACKOFF_MS, PEER_SETUP_MS
from kbroker.ports import BROKER_SOFTWARE, Endpoint, FlatRequest, PeerAnswer, PeerEvent, PeerFault, PeerFaultKind
from protocol.errors import ErrorCode
from protocol.headers import CORRELATION_AT, encode_request_header, parse_response_header
from protocol.message import DecodeError

if TYPE_CHECKING:
    from protocol.flat import Flat
    from protocol.message import Message

SPOKEN = frozenset({SECURITY_PROTOCOLS.index("PLAINTEXT")})
"""The security protocols of listeners that a line connects to."""

API_VERSIONS, METADATA = 18, 3
API_VERSIONS_VERSION = 3  # served since Kafka 2.4; the oldest that leads topic ids is 2.8
METADATA_VERSIONS = range(4, 13)  # 4 is the first that can be asked not to create topics


class Link(Protocol):
    """A connection as a line uses it. None of its calls may call the line back before it returns."""

    def send(self, frame: bytes) -> None:
        """Send a frame; its size in front is added here."""
        ...

    def close(self) -> None:
        """Hang up; the line hears nothing of this connection any more."""
        ...


@cache
def _response_of(api: int) -> type[Message]:
    from protocol.apis import BY_KEY  # a broker alone has no use for it

    return BY_KEY[api].response


class _Pending:
    """A request on a line."""

    __slots__ = ("body", "is_flat", "is_sent", "kind", "timeout_ms", "token", "version")

    def __init__(self, request: Message | FlatRequest, version: int, token: object, timeout_ms: int) -> None:
        self.version = version
        self.is_flat = isinstance(request, FlatRequest)
        if isinstance(request, FlatRequest):
            self.kind = request.kind
            self.body = b"".join(request.kind.write_flat(request.values, version))
        else:
            self.kind = type(request)
            self.body = request.encode(version)
        self.token = token
        self.timeout_ms = timeout_ms
        self.is_sent = False


class Line:
    """A line to one broker. dial: begins a connection to `endpoint`. tell: takes what became of each request, in order.

    Whoever dials calls `connected`, `received` and `lost`; `expire` is called when `next_deadline_ms` has come.
    """

    def __init__(
        self,
        broker_id: int,
        endpoint: Endpoint,
        client_id: str,
        cluster_id: str,
        dial: Callable[[Line], Link],
        tell: Callable[[Line, PeerEvent], None],
    ) -> None:
        self.broker_id = broker_id
        self.endpoint = endpoint
        self.is_dropped = False  # nobody wants to hear of it any more
        self._client_id = client_id
        self._cluster_id = cluster_id
        self._dial = dial
        self._tell = tell
        self._queue: deque[_Pending] = deque()
        self._link: Link | None = None
        self._served: dict[int, tuple[int, int]] | None = None  # versions by API; None before the greeting
        self._heads: dict[tuple[type[Message], int], bytes] = {}  # of what has been asked on this connection
        self._asked: tuple[type[Message], int] | None = None  # class and version of the request under way
        self._correlation_id = 0
        self._is_ready = False
        self._failures = 0  # in a row
        self._due_ms = 0  # by when the head must have been answered
        self._setup_due_ms = 0  # by when the line must be ready
        self._retry_ms = 0  # not to connect before

    def __repr__(self) -> str:
        return f"broker {self.broker_id} at {self.endpoint.host}:{self.endpoint.port}"

    # -- what is wanted

    def send(self, request: Message | FlatRequest, version: int, token: object, timeout_ms: int, now_ms: int) -> None:
        """Ask this, behind what is on the line."""
        self._queue.append(_Pending(request, version, token, timeout_ms))
        if len(self._queue) == 1:
            self._due_ms = now_ms + timeout_ms
            self._go_on(now_ms)

    def drop(self) -> None:
        """Hang up and forget everything; nobody is told."""
        self.is_dropped = True
        self._queue.clear()
        self._hang_up()

    def fail(self, kind: PeerFaultKind, why: str, now_ms: int) -> None:
        """Hang up; everything on the line fails."""
        self._hang_up()
        queue, self._queue = self._queue, deque()
        if queue:
            self._failures += 1
            self._retry_ms = now_ms + min(PEER_BACKOFF_MS << min(self._failures - 1, 16), MOST_PEER_BACKOFF_MS)
        for pending in queue:
            self._tell(self, PeerFault(pending.token, kind, pending.is_sent, why))

    # -- what happens

    def connected(self) -> None:
        """The connection is there: greet."""
        from protocol.messages.handshake import ApiVersionsRequest

        request = ApiVersionsRequest(client_software_name=BROKER_SOFTWARE, client_software_version="1")
        self._put(type(request), API_VERSIONS_VERSION, request.encode(API_VERSIONS_VERSION))

    def received(self, frame: memoryview, now_ms: int) -> None:
        """A whole frame has come."""
        if self._asked is None:
            self.fail(PeerFaultKind.OUT_OF_TURN, "an answer that nobody asked for", now_ms)
            return
        try:
            response = self._decode(frame)
        except DecodeError as error:
            self.fail(PeerFaultKind.OUT_OF_TURN, str(error), now_ms)
            return
        self._asked = None
        if self._is_ready:
            self._failures = 0
            self._end_head(PeerAnswer(self._queue[0].token, response), now_ms)
        else:
            self._greeted(cast("Message", response), now_ms)
        self._go_on(now_ms)

    def lost(self, why: str, now_ms: int) -> None:
        """The connection has ended, or did not come about."""
        self.fail(PeerFaultKind.RESET if self._is_ready else PeerFaultKind.REFUSED, why, now_ms)

    def expire(self, now_ms: int) -> None:
        """Time has moved on."""
        if not self._queue:
            return
        if self._link is not None and not self._is_ready and now_ms >= self._setup_due_ms:
            self.fail(PeerFaultKind.REFUSED, f"no connection within {PEER_SETUP_MS} ms", now_ms)
        elif now_ms >= self._due_ms:
            self.fail(PeerFaultKind.TIMED_OUT, f"no answer within {self._queue[0].timeout_ms} ms", now_ms)
        else:
            self._go_on(now_ms)

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next."""
        if not self._queue:
            return None
        if self._link is None:
            return min(self._due_ms, self._retry_ms)
        return self._due_ms if self._is_ready else min(self._due_ms, self._setup_due_ms)

    # -- within

    def _go_on(self, now_ms: int) -> None:
        """Do what can be done now for the head of the line."""
        while self._queue and self._asked is None:
            if self._link is None:
                if now_ms < self._retry_ms:
                    return
                if self.endpoint.security_protocol in SPOKEN:
                    self._setup_due_ms = now_ms + PEER_SETUP_MS
                    self._link = self._dial(self)
                else:
                    protocol = SECURITY_PROTOCOLS[self.endpoint.security_protocol]
                    why = f"the listener {self.endpoint.listener} of broker {self.broker_id} speaks {protocol}, which "
                    self.fail(PeerFaultKind.UNSPOKEN, why + "this broker does not speak to others", now_ms)
                return
            if not self._is_ready:
                return
            head = self._queue[0]
            if (head.kind, head.version) not in self._heads and not self._serves(head):
                why = f"{head.kind.__name__} v{head.version} is not served by {self!r}"
                self._end_head(PeerFault(head.token, PeerFaultKind.UNSUPPORTED, False, why), now_ms)
                continue
            head.is_sent = True
            self._put(head.kind, head.version, head.body)

    def _end_head(self, event: PeerEvent, now_ms: int) -> None:
        self._queue.popleft()
        if self._queue:
            self._due_ms = now_ms + self._queue[0].timeout_ms
        self._tell(self, event)

    def _serves(self, pending: _Pending) -> bool:
        assert self._served is not None, self
        assert pending.kind.api is not None, pending.kind
        first, last = self._served.get(pending.kind.api, (0, -1))
        return first <= pending.version <= last

    def _put(self, kind: type[Message], version: int, body: bytes) -> None:
        assert self._link is not None, self
        self._asked = asked = kind, version
        self._correlation_id = number = self._correlation_id + 1 & 0x7FFFFFFF
        head = self._heads.get(asked)
        if head is None:
            head = self._heads[asked] = encode_request_header(kind, version, 0, self._client_id)
        self._link.send(head[:CORRELATION_AT] + number.to_bytes(4, "big") + head[CORRELATION_AT + 4 :] + body)

    def _decode(self, frame: memoryview) -> Message | Flat:
        """The answer to what was asked. Raises: DecodeError."""
        assert self._asked is not None, self
        kind, version = self._asked
        assert kind.api is not None, kind
        if kind.api == API_VERSIONS and bytes(frame[4:6]) == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            version = 0  # the layout that every client reads (KIP-511)
        correlation_id, start = parse_response_header(kind, version, frame)
        if correlation_id != self._correlation_id:
            raise DecodeError("header", f"answer {correlation_id}, the one that is due is {self._correlation_id}")
        response = _response_of(kind.api)
        if self._is_ready and self._queue[0].is_flat:
            return response.read_flat(frame, version, start)
        return response.decode(frame, version, start)

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        self._asked = self._served = None
        self._heads.clear()
        self._is_ready = False
        if link is not None:
            link.close()

    # -- greeting

    def _greeted(self, response: Message, now_ms: int) -> None:
        """One more answer of the greeting; the line is ready, or goes on with it, or fails."""
        from protocol.messages.handshake import ApiVersionsResponse
        from protocol.messages.metadata import MetadataRequest, MetadataResponse

        if isinstance(response, ApiVersionsResponse):
            if response.error_code != ErrorCode.NONE:
                why = f"ApiVersions is answered with {ErrorCode.of(response.error_code).name}"
                self.fail(PeerFaultKind.UNSUPPORTED, why, now_ms)
                return
            self._served = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
            first, last = self._served.get(METADATA, (0, -1))
            version = min(last, METADATA_VERSIONS[-1])
            if version < max(first, METADATA_VERSIONS[0]):
                self.fail(PeerFaultKind.UNSUPPORTED, f"Metadata is served from {first} to {last}", now_ms)
                return
            request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            self._put(MetadataRequest, version, request.encode(version))
            return
        assert isinstance(response, MetadataResponse), response
        stranger = self._strangeness(response)
        if stranger:
            self.fail(PeerFaultKind.STRANGER, stranger, now_ms)
        else:
            self._is_ready = True

    def _strangeness(self, response: object) -> str:
        """Why this is not the broker that was meant, or nothing."""
        from protocol.messages.metadata import MetadataResponse

        assert isinstance(response, MetadataResponse), response
        if response.cluster_id is not None and response.cluster_id != self._cluster_id:
            return f"a broker of cluster {response.cluster_id}"
        here = [each.node_id for each in response.brokers if (each.host, each.port) == self.endpoint[2:]]
        if here and self.broker_id not in here:  # it may know of nobody yet; and not yet that another has gone
            return f"broker {here[0]}"
        return ""
