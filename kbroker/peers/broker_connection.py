"""One connection to another broker: what waits for it, what is under way, when it connects and when it gives up.

It touches no socket and no clock: `BrokerConnections` tells it what happened and when. The bytes are those of a
`client.Connection`, one for each link. Its states:

    idle --something to ask--> connecting --connected--> greeting --greeted--> ready
      ^                                                                          |
      +------------- it ends: all that waits or is under way fails --------------+

Greeting is ApiVersions, to know what the broker serves, and Metadata, to know that it is a broker of this cluster, and
that no other of it lives at this address. A controller of a quorum serves no Metadata, and is asked DescribeCluster for
the controllers instead (KIP-919). Neither names who answers: what an address says of itself is compared with
whom it is believed to be. Brokers of Kafka do not ask, and a port that was given to another cluster is one that they
speak to. After a failure it waits before it connects again, longer each time until an answer comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.client import ClientLogin, Connection, LoginRefusedError, ProtocolError, State
from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.given import ConfigError
from kbroker.config.limits import MOST_PEER_BACKOFF_MS, PEER_BACKOFF_MS, PEER_SETUP_MS
from kbroker.ports import BROKER_SOFTWARE, Endpoint, FlatRequest, PeerAnswer, PeerEvent, PeerFault, PeerFaultKind
from protocol.errors import ErrorCode
from protocol.message import DecodeError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.client import Answer
    from kbroker.ports import Versions
    from protocol.message import Message
    from protocol.messages.metadata import DescribeClusterResponse, MetadataResponse

METADATA, DESCRIBE_CLUSTER = 3, 60
RENEWED_AFTER = 80  # of a session's life, in percent: then a broker that wants to be shown again is connected to again
METADATA_VERSIONS = range(4, 13)  # 4 is the first that can be asked not to create topics
CONTROLLERS, ENDPOINT_TYPES_SINCE = 2, 1  # of DescribeCluster


class Link(Protocol):
    """A connection's way to the network. None of its calls may call the connection back before it returns."""

    def send(self, data: bytes) -> None:
        """Send a request, with its size in front."""
        ...

    def close(self) -> None:
        """Hang up; nothing is heard of this link any more."""
        ...


class _Pending(NamedTuple):
    """A request that waits, or is under way. body: encoded, unless it is the broker's choice in which of some versions.

    is_flat: its answer is a tuple.
    """

    kind: type[Message]
    version: Versions
    body: bytes | Message
    is_flat: bool
    token: object
    timeout_ms: int


class BrokerConnection:
    """A connection to one broker. client: its end, as `make` makes it. dial: begins a link to `endpoint`.

    spoken: the security protocols by which it may do so. log_in: begins a login, where the broker wants one.

    tell: takes what became of each request, in order. Who dials calls `connected`, `received` and `lost`; `expire`
    is called when `next_deadline_ms` has come.
    """

    def __init__(
        self,
        broker_id: int,
        endpoint: Endpoint,
        cluster_id: str,
        make: Callable[[], Connection],
        spoken: Collection[int],
        log_in: Callable[[BrokerConnection], ClientLogin],
        dial: Callable[[BrokerConnection], Link],
        tell: Callable[[BrokerConnection, PeerEvent], None],
    ) -> None:
        self.broker_id = broker_id
        self.endpoint = endpoint
        self.is_dropped = False  # nothing more is told of it
        self._cluster_id = cluster_id
        self._spoken = spoken
        self._log_in = log_in
        self._login: ClientLogin | None = None  # under way
        self._renew_ms: int | None = None  # from then on connect again: the session is about to end
        self._dial = dial
        self._tell = tell
        self.client = make()
        self._make = make
        self._queue: deque[_Pending] = deque()
        self._link: Link | None = None
        self._is_ready = False
        self._is_asking = False  # the head is under way; what waits behind it never is
        self._failures = 0  # in a row
        self._due_ms = 0  # by when the head must have been answered
        self._setup_due_ms = 0  # by when it must be ready
        self._retry_ms = 0  # not to connect before

    def __repr__(self) -> str:
        return f"broker {self.broker_id} at {self.endpoint.host}:{self.endpoint.port}"

    # -- what is wanted

    def send(
        self, request: Message | FlatRequest, version: Versions, token: object, timeout_ms: int, now_ms: int
    ) -> None:
        """Ask this, behind what waits already. One that is asked in one of several versions is not changed later."""
        if isinstance(version, tuple):
            assert not isinstance(request, FlatRequest), request
            self._queue.append(_Pending(type(request), version, request, False, token, timeout_ms))
        elif isinstance(request, FlatRequest):
            kind, body = request.kind, b"".join(request.kind.write_flat(request.values, version))
            self._queue.append(_Pending(kind, version, body, True, token, timeout_ms))
        else:
            self._queue.append(_Pending(type(request), version, request.encode(version), False, token, timeout_ms))
        if len(self._queue) == 1:
            self._due_ms = now_ms + timeout_ms
            self._go_on(now_ms)

    def drop(self) -> None:
        """Hang up and forget everything; nothing is told."""
        self.is_dropped = True
        self._queue.clear()
        self._hang_up()

    def fail(self, kind: PeerFaultKind, why: str, now_ms: int) -> None:
        """Hang up; everything that waits or is under way fails."""
        was_sent = self._is_asking
        self._hang_up()
        queue, self._queue = self._queue, deque()
        if queue:
            self._failures += 1
            self._retry_ms = now_ms + min(PEER_BACKOFF_MS << min(self._failures - 1, 16), MOST_PEER_BACKOFF_MS)
        for number, pending in enumerate(queue):
            self._tell(self, PeerFault(pending.token, kind, was_sent and number == 0, why))

    # -- what happens

    def connected(self) -> None:
        """The link is there: greet."""
        assert self._link is not None, self
        self._link.send(self.client.negotiate(BROKER_SOFTWARE, "1"))

    def received(self, receive: Callable[[Any], Sequence[Answer]], what: int | memoryview, now_ms: int) -> None:
        """Bytes have come. receive, what: how the client's end takes them (`received`, or `feed`), and they."""
        try:
            answers = receive(what)
        except ProtocolError as error:
            self._broken(error, now_ms)
            return
        for answer in answers:
            self._answered(answer, now_ms)
        if self.client.state is State.AUTHENTICATING and self._login is None:
            self._begin_login(now_ms)
        if not self._is_ready and self.client.state is State.READY and not self.client.in_flight:
            self._ask_who_it_is(now_ms)
        self._go_on(now_ms)

    def _broken(self, error: ProtocolError, now_ms: int) -> None:
        for answer in error.answers:
            self._answered(answer, now_ms)
        self.fail(PeerFaultKind.UNSUPPORTED if error.unsupported else PeerFaultKind.OUT_OF_TURN, str(error), now_ms)

    def lost(self, why: str, now_ms: int) -> None:
        """The link has ended, or did not come about."""
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
        """Do what can be done now for the head of the queue."""
        while self._queue and not self._is_asking:
            if self._renew_ms is not None and now_ms >= self._renew_ms:
                self._hang_up()
            if self._link is None:
                self._connect(now_ms)
                return
            if not self._is_ready:
                return
            head = self._queue[0]
            version = self._version_of(head)
            if not self.client.serves(head.kind, version):
                why = f"{head.kind.__name__} v{version} is not served by {self!r}"
                self._end_head(PeerFault(head.token, PeerFaultKind.UNSUPPORTED, False, why), now_ms)
                continue
            self._is_asking = True
            body = head.body if isinstance(head.body, bytes) else head.body.encode(version)
            self._link.send(self.client.ask_encoded(head.kind, version, body))
            return

    def _version_of(self, pending: _Pending) -> int:
        """In which it is asked, if that is served; of several, the newest that is."""
        if isinstance(pending.version, int):
            return pending.version
        lowest, highest = pending.version
        return max(lowest, min(highest, self.client.served.get(pending.kind.api or 0, (0, 0))[1]))

    def _connect(self, now_ms: int) -> None:
        """Begin a link, if it is time to. Here is the choice by security protocol."""
        if now_ms < self._retry_ms:
            return
        if self.endpoint.security_protocol in self._spoken:
            self._setup_due_ms = now_ms + PEER_SETUP_MS
            self._link = self._dial(self)
        else:
            protocol = SECURITY_PROTOCOLS[self.endpoint.security_protocol]
            why = f"the listener {self.endpoint.listener} of broker {self.broker_id} speaks {protocol}, which "
            self.fail(PeerFaultKind.UNSPOKEN, why + "this broker does not speak to others", now_ms)

    def _answered(self, answer: Answer, now_ms: int) -> None:
        try:
            if self._login is not None:
                self._go_on_with_login(self._login, answer, now_ms)
            elif self._is_ready:
                head = self._queue[0]
                response = answer.read_flat() if head.is_flat else answer.decode()
                self._failures = 0
                self._end_head(PeerAnswer(head.token, response), now_ms)
            elif stranger := self._strangeness(answer.decode()):
                self.fail(PeerFaultKind.STRANGER, stranger, now_ms)
            else:
                self._is_ready = True
        except DecodeError as error:
            self.fail(PeerFaultKind.OUT_OF_TURN, str(error), now_ms)

    def _end_head(self, event: PeerEvent, now_ms: int) -> None:
        self._queue.popleft()
        self._is_asking = False
        if self._queue:
            self._due_ms = now_ms + self._queue[0].timeout_ms
        self._tell(self, event)

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        self._is_ready = self._is_asking = False
        self._login = self._renew_ms = None
        if link is not None:
            link.close()
            self.client = self._make()

    # -- showing who this broker is

    def _begin_login(self, now_ms: int) -> None:
        assert self._link is not None, self
        try:
            self._login = self._log_in(self)
        except ConfigError as error:
            self.fail(PeerFaultKind.NOT_LET_IN, "; ".join(error.lines), now_ms)
        else:
            self._link.send(self._login.first_request())

    def _go_on_with_login(self, login: ClientLogin, answer: Answer, now_ms: int) -> None:
        assert self._link is not None, self
        try:
            request = login.answered(answer)
        except LoginRefusedError as error:
            self.fail(PeerFaultKind.NOT_LET_IN, str(error), now_ms)
            return
        if request:
            self._link.send(request)
            return
        self._login = None
        if login.lifetime_ms:
            self._renew_ms = now_ms + login.lifetime_ms * RENEWED_AFTER // 100

    # -- greeting

    def _ask_who_it_is(self, now_ms: int) -> None:
        from protocol.messages.metadata import DescribeClusterRequest, MetadataRequest

        assert self._link is not None, self
        first, last = self.client.served.get(METADATA, (0, -1))
        if last < 0 and self.client.serves(DescribeClusterRequest, ENDPOINT_TYPES_SINCE):
            described = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS)
            self._link.send(self.client.ask(described, ENDPOINT_TYPES_SINCE))
            return
        version = min(last, METADATA_VERSIONS[-1])
        if version < max(first, METADATA_VERSIONS[0]):
            self.fail(PeerFaultKind.UNSUPPORTED, f"Metadata is served from {first} to {last}", now_ms)
        else:
            self._link.send(self.client.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), version))

    def _strangeness(self, response: MetadataResponse | DescribeClusterResponse) -> str:
        """Why this is not the node that was meant, or nothing."""
        from protocol.messages.metadata import MetadataResponse  # it was asked, or its like

        if isinstance(response, MetadataResponse):
            word, nodes = "broker", [(each.node_id, each.host, each.port) for each in response.brokers]
        elif response.error_code != ErrorCode.NONE:
            return f"a node that answers DescribeCluster with {ErrorCode.of(response.error_code).name}"
        else:
            word, nodes = "controller", [(each.broker_id, each.host, each.port) for each in response.brokers]
        if response.cluster_id is not None and response.cluster_id != self._cluster_id:
            return f"a {word} of cluster {response.cluster_id}"
        here = [node_id for node_id, *address in nodes if tuple(address) == self.endpoint[2:]]
        if here and self.broker_id >= 0 and self.broker_id not in here:  # it may know of none yet;
            return f"{word} {here[0]}"  # and not yet that another has gone
        return ""
