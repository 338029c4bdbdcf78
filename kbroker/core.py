"""The broker without an operating system: an event in, effects out.

Owns the order of answers on each connection, and the answers that wait, in the purgatory or for a `Reply`. It holds
the parts (`broker/broker.py`), routes each request to its handler, and maps what goes wrong: KafkaError to its code,
OSError to KAFKA_STORAGE_ERROR, anything else to UNKNOWN_SERVER_ERROR with a traceback in the log. It touches no
socket, file or clock: `runtime` and `sim` drive it alike, from one thread.

Requests of one connection are answered in order. Each is begun when the one before has been answered, so that a
Metadata sent behind a CreateTopics knows the topic. Unlike Kafka, Produce and Fetch are begun at once: they depend on
nothing before them but what they append themselves, and a producer's next batch need not wait for the last one's fsync.

What takes long is done in slices (`timing/scheduler.py`): large requests
are decoded so, handlers that are generators run so, and their answers are encoded so. No other request of the
connection is begun meanwhile. No handler has a clock; the one look at it is for the length of a slice.

A request that comes again, but for its correlation id, as most heartbeats do, is answered from the bytes of before as
long as who gave the answer says that it holds (`Again`): nothing of it is decoded, and no handler is asked.

Timers that are due fire before the request or the event of the same turn: what comes in after a deadline finds what the
deadline has brought. Work that is wanted at once (a slice) is no such timer: `Expired` does it, behind the requests.

What a step changes beyond its own answer flows up as values, and `_drain_facts` acts on them until there are none left:
partitions that moved, and the facts that parts have told (`broker/facts.py`). The driver of the core may have it
gather the partitions instead, and say when to look at what waits for them (`AtRest`): what comes in together is
then fetched, acknowledged and answered together (docs/decisions/0020-at-rest.md).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from kbroker.api.call import FIRST, HANGUP, LATER, SILENCE, Signal
from kbroker.api.handshake import API_VERSIONS, unsupported_version
from kbroker.api.produce_bounds import names_over
from kbroker.api.routes import ROUTES, NotLoadedError, tables_of
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import HangUp, QuotasChanged, Reply, Touched
from kbroker.broker.session import Session
from kbroker.channel import NO_HEADER, Channel, Muted, Repeated, Request, Resume, Unbegun, bytes_in, emit, framed
from kbroker.config.limits import (
    DECODED_TIMES,
    FEW_PARKED,
    LARGE_PRODUCE_BYTES,
    LARGE_REQUEST_BYTES,
    LONG_PRODUCE_BYTES,
    MANY_PARTITIONS,
    MOST_REPEATED,
    PARKED_OPERATIONS,
    PARKED_PER_ADDRESS,
    REPEATED_BYTES,
    REQUEST_BYTES_EXCEPT_PRODUCE,
    WOKEN_AT_ONCE,
)
from kbroker.timing import Purgatory, Steps, begun
from protocol.errors import ErrorCode, KafkaError
from protocol.frames import NO_LIMIT, SIZE_BYTES
from protocol.headers import BEHIND_CORRELATION, CORRELATION_AT, parse_request_header, skip_tags
from protocol.message import DecodeError, EncodeError, Message
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.api.call import Answer, InSlices, Result, Waiting
    from kbroker.api.figures import Family, Health
    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.broker.jobs import Errand
    from kbroker.channel import Piece
    from kbroker.coordinator.effects import Again
    from kbroker.metering import Charge, Metering

AnswerOrNone = TypeVar("AnswerOrNone", bound="Result | None")
IS_ANSWER = (tuple, Message)  # what `Answer` is at run time; mostly the first

log = logging.getLogger("kbroker.requests")

PRODUCE, FETCH = 0, 1
LIST_OFFSETS = 2
OF_CONTROLLERS = (4, 5, 6)  # LeaderAndIsr, StopReplica, UpdateMetadata
DATA_PATH = (PRODUCE, FETCH)  # others of a connection are begun while these wait
SAY_ERRORS = (*DATA_PATH, LIST_OFFSETS)  # their handlers do; in other answers they are looked for

LARGE_FIRST_STEPS = 2  # at once, of a large request: up to its first batch, which may be all there is
MANY_STEPS = 16  # of a handler, behind its first ones: from here on its answer is encoded in slices, too


class Expired(NamedTuple):
    """The event that time has moved on: what is due is done."""


class AtRest(NamedTuple):
    """The event that nothing more is ready to be received: what waits for what has moved is looked at again."""


class Closed(NamedTuple):
    """The event that a connection is gone."""

    channel: Channel


EXPIRED, AT_REST = Expired(), AtRest()
OF_DRIVERS = (Expired, AtRest, Closed)


class _Token(NamedTuple):
    """What of SaslAuthenticate comes bare."""

    auth_bytes: bytes


class Effects:
    """What is to be done after a step, and how the broker is. There is one of it: a driver takes from it what it finds.

    writes: channels with something to be written, or to be closed. moved: if there is anything in it, `AtRest` is
    wanted, soon.
    """

    __slots__ = ("_broker", "_scheduler", "_wheel", "moved", "writes")

    def __init__(self, broker: Broker) -> None:
        self._broker, self._scheduler, self._wheel = broker, broker.scheduler, broker.scheduler.wheel
        self.writes: dict[Channel, None] = {}  # with answers that came outside their own `receive`
        self.moved: dict[Hashable, None] = {}  # keys of the purgatory, gathered

    @property
    def wake_ms(self) -> int:
        """When `Expired` is wanted at the latest: NEVER if nothing is to come, 0 for at once."""
        return 0 if self._scheduler.has_work else self._wheel.next_ms

    def take_writes(self) -> Sequence[Channel]:
        """The channels to write to, each once."""
        writes = tuple(self.writes)
        self.writes.clear()
        return writes

    def take_jobs(self) -> Sequence[Errand]:
        """What is to be run, in any order, on any thread; each comes back as a `JobDone`."""
        return self._broker.take_jobs()

    @property
    def ready(self) -> bool:
        """Whether the broker is registered in its cluster, and may serve."""
        return self._broker.plane.ready

    @property
    def is_open(self) -> bool:
        """Whether connections are to be taken: clients', or as yet only the controller's."""
        return self._broker.plane.open_to_brokers

    @property
    def fatal(self) -> str:
        """Why the broker cannot go on, or empty."""
        return self._broker.plane.fatal

    @property
    def has_left(self) -> bool:
        """Whether nothing more can be handed over, after `Leave`."""
        return self._broker.leaving.is_over

    @property
    def is_busy(self) -> bool:
        """Whether work goes on that takes many slices, or opens many files."""
        return self._scheduler.is_slicing or len(self._broker.decompression) > 0

    @property
    def held_bytes(self) -> int:
        """Memory in use for clients beside what is held for their connections, about."""
        return self._broker.held_bytes


class Witness(Protocol):
    """Who is told what becomes of requests (`Core.watch`); it decides nothing."""

    def received(self, channel: Channel, frame: memoryview) -> None:
        """A frame has come; its memory is not the witness's to keep."""

    def taken(self, channel: Channel) -> None:
        """The core has done with it what it can do at once."""

    def begun(self, request: Request) -> None:
        """It is decoded, and its handler is asked."""

    def parked(self, request: Request, waiting: Waiting) -> None:
        """It waits in the purgatory."""

    def woken(self, request: Request) -> None:
        """It has waited, there or elsewhere, and what it waited for is there, or its time is up."""

    def answered(self, request: Request, pieces: Sequence[Piece]) -> None:
        """Its answer is encoded; nothing at all: there is none."""

    def closed(self, channel: Channel, why: str) -> None:
        """What has no answer yet gets none."""


class Core:
    """One broker's every decision, on one thread: an event in, effects out.

    A driver uses what has no underscore here, in `Effects` and in `Channel`, and knows no more of a broker that runs.
    effects: of all steps whose effects have not been taken yet. gathers: what moves is kept in `effects.moved` until
    `AtRest`; else it is looked at in the same step.
    """

    gathers = False

    def __init__(self, broker: Broker, now_ms: int) -> None:
        self._broker = broker
        self.effects = Effects(broker)
        self._writes, self._moved = self.effects.writes, self.effects.moved
        self._scheduler, self._wheel = broker.scheduler, broker.scheduler.wheel
        self._purgatory: Purgatory[Hashable, Request] = Purgatory(self._wheel, self._time_is_up)
        self._answered_late = 0  # of those whose time is up now
        self._overdue: deque[Request] = deque()  # of many whose time is up at once, those that are not answered yet
        self._parked_by: Counter[str] = Counter()  # of each address, how many
        self._waking: dict[Hashable, None] = {}  # keys that many watch, to be looked at in slices
        self._is_waking = False
        self._requests, self._facts, self._replicas = broker.counters.requests, broker.facts, broker.replicas
        self._features = broker.features
        self._now_ms = now_ms
        routes, authorized, self._served = tables_of(broker)
        self._routes = {False: OwnRoutes(routes), True: OwnRoutes(authorized)}  # by whether there are rules
        self._request: Callable[..., Request] = Request
        self._metering: Metering | None = None  # while there are quotas
        self._charges: Mapping[int, Charge] = {}  # what of them an answer has used, by API
        self._bytes_fetched: Callable[[Any], int] = len  # `Metering`'s, while there are quotas
        self._answer_now = self._answer  # how what is there is answered: another one while there are quotas
        self._replaced: set[str] = set()  # names of methods in whose place others are
        self._witness: Witness | None = None
        broker.on(QuotasChanged, lambda fact, now_ms: self._apply_quotas())

    # -- what happens to the broker

    def open(self, listener: str, peer_host: str, peer_port: int, security_protocol: str = "PLAINTEXT") -> Channel:
        """A client has connected to the listener of this name, where this is spoken."""
        session = Session(listener, peer_host, peer_port, security_protocol)
        if self._broker.logins is not None:
            session.login = self._broker.logins.open(session)
        return Channel(session, self._routes[self._broker.auth_helper.has_rules])

    def connection_wait_ms(self, peer_host: str, now_ms: int) -> int:
        """How long a new connection from there waits to be hung up on; 0: it is opened, within its address's quota."""
        quotas = self._broker.quotas
        return 0 if quotas is None else quotas.connections.throttle_ms(peer_host, now_ms)

    def step(self, event: object, now_ms: int) -> Effects:
        """Something has happened. Frames come by `receive`, which is the same for many of them at once.

        event: `Expired`, `AtRest`, `Closed`; or a fact from outside: a job has ended, the metadata store or another
        broker has answered, a watch has fired.
        """
        kind = event.__class__
        if kind not in OF_DRIVERS:
            if now_ms >= self._wheel.next_ms:
                self._fire(now_ms, self._scheduler.ring)
            self._now_ms = now_ms
            self._broker.handle(event, now_ms)
            self._drain_facts(now_ms)
        elif kind is Expired:
            self._expire(now_ms)
        elif kind is AtRest:
            for _ in self.at_rest(now_ms):
                pass
        else:
            self._closed(cast("Closed", event).channel, now_ms)
        return self.effects

    def receive(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        """A whole frame has come in; its answer, if it is there at once and it is its turn, is in `channel.out`.

        frame: its memory is the caller's again when this returns; the broker's for good if over LONG_PRODUCE_BYTES.
        """
        if now_ms >= self._wheel.next_ms:
            self._fire(now_ms, self._scheduler.ring)
            if channel.closing:
                return
        self._now_ms = now_ms
        if channel.login is not None and self._is_of_login(channel, frame, now_ms):
            return
        if channel.repeated and self._is_repeated(channel, frame, now_ms):
            return
        try:
            api_key, version, correlation_id, client_id, start = parse_request_header(frame)
            route = channel.routes[api_key] if api_key in self._served else None
        except DecodeError as error:
            self._hang_up(channel, f"not a request: {error}")
            return
        except NotLoadedError as error:
            log.error("%s", error)  # an operator who replaces the files of a running broker has to restart it
            self._hang_up(channel, str(error))
            return
        if route is None or not route.first <= version <= route.last:
            self._refuse_unknown(channel, api_key, version, correlation_id)
            return
        self._requests[api_key] += 1
        size = len(frame)
        if (
            size > REQUEST_BYTES_EXCEPT_PRODUCE
            and api_key != PRODUCE
            and not self._is_of_any_size(channel.session, api_key)
        ):
            self._hang_up(channel, f"{route.name} of {size} bytes: at most {REQUEST_BYTES_EXCEPT_PRODUCE} are taken")
            return
        request = self._request(self._broker, channel, route, version, correlation_id, client_id, now_ms, size)
        if channel.pending and api_key not in DATA_PATH:
            request.waiting = Unbegun(frame, start)
            _stand_in_line(request)
            channel.held_bytes += size
            return
        try:
            if version >= route.flexible_from:
                start = skip_tags(frame, start)
            if size > LARGE_REQUEST_BYTES and self._is_long(request, frame, start):
                self._begin_large(request, _owned(request, frame), start)
                self._drain_facts(now_ms)
                return
            body = route.readers[version](frame, start)[0]
        except DecodeError as error:
            self._hang_up(channel, f"malformed {route.name} v{version}: {error}")
            return
        self._handle(request, body)
        if request.again is not None:
            self._remember(request, request.again, frame)
        if self._replicas.touched:
            self._notice(now_ms)
        if self._facts or self._replicas.touched:
            self._drain_facts(now_ms)

    def _is_repeated(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Whether a frame has come before, but for its correlation id, and is answered as it was then."""
        if channel.pending or len(frame) > REPEATED_BYTES or not self._may_repeat:
            return False
        data = frame.tobytes()
        key = data[:CORRELATION_AT] + data[BEHIND_CORRELATION:]
        known = channel.repeated.get(key)
        if known is None:
            return False
        api, head, tail, again, finalized = known
        if finalized is not self._features.finalized or not again.holds(now_ms):
            del channel.repeated[key]
            return False
        self._requests[api] += 1
        emit(channel, [head + data[CORRELATION_AT:BEHIND_CORRELATION] + tail])
        return True

    def _remember(self, request: Request, again: Again, frame: memoryview) -> None:
        """Keep the answer just given, for the same request to come.

        Not where rights are asked for, and are written into an audit log, each time.
        """
        channel = request.channel
        is_open = channel.routes is self._routes[False] and self._may_repeat
        if not is_open or request.late or channel.closing or len(frame) > REPEATED_BYTES:
            return
        if len(channel.repeated) >= MOST_REPEATED:
            channel.repeated.clear()
        data, answer = frame.tobytes(), channel.out[-1]
        assert isinstance(answer, bytes), answer
        head, tail = answer[:SIZE_BYTES], answer[SIZE_BYTES + BEHIND_CORRELATION - CORRELATION_AT :]
        key = data[:CORRELATION_AT] + data[BEHIND_CORRELATION:]
        channel.repeated[key] = Repeated(request.route.api, head, tail, again, self._features.finalized)

    @property
    def _may_repeat(self) -> bool:
        """Whether nothing counts or watches each request."""
        return self._metering is None and self._witness is None

    def _is_of_login(self, channel: Channel, frame: memoryview, now_ms: int) -> bool:
        """Whether a frame is none that may be handled as a request: a bare token, or what a login does not admit."""
        login, session, logins = channel.login, channel.session, self._broker.logins
        assert login is not None, session
        assert logins is not None, session
        if session.login is None:
            channel.login = None
            return False
        if login.takes_bare_token and len(frame) <= login.most_bytes:
            from kbroker.api.sasl import BARE  # clients since 0.11 send none

            self._handle(Request(self._broker, channel, BARE, 0, NO_HEADER, None, now_ms), _Token(bytes(frame)))
            self._drain_facts(now_ms)
            return True
        api_key = int.from_bytes(frame[:2], "big")
        if login.admits(api_key) and (login.user or len(frame) <= login.most_bytes):
            return False
        what = f"API key {api_key}, {len(frame)} bytes" if len(frame) >= 2 else "no request"
        self._hang_up(channel, logins.out_of_turn(what, session))
        return True

    def _expire(self, now_ms: int) -> None:
        scheduler = self._scheduler
        self._fire(now_ms, scheduler.ring_wanted)
        if scheduler.is_slicing:
            scheduler.run_slice(self._broker.clock.now_ms)
            self._drain_facts(now_ms)

    def _fire(self, now_ms: int, ring: Callable[[int], None]) -> None:
        """Do what is due. Nothing that was held back is begun before all of it is done."""
        self._now_ms = now_ms
        for _ in self._recheck_moved(now_ms):  # who waited for what has come about is not told that it has not
            pass
        self._answered_late = 0
        ring(now_ms)
        if self._overdue:
            self._scheduler.start_task(self, self._over())
        self._drain_facts(now_ms)

    def at_rest(self, now_ms: int) -> Iterator[Channel]:
        """As the step `AtRest`; the channel of each answer once it is made: who writes it lets its reader begin."""
        self._now_ms = now_ms
        yield from self._recheck_moved(now_ms)
        if now_ms >= self._wheel.next_ms:
            self._fire(now_ms, self._scheduler.ring)
        self._drain_facts(now_ms)

    def _recheck_moved(self, now_ms: int) -> Iterator[Channel]:
        moved = tuple(self._moved)
        self._moved.clear()
        return self._recheck(moved, now_ms)

    def _closed(self, channel: Channel, now_ms: int) -> None:
        """The connection is gone: its waiting answers have no receiver."""
        self._hang_up(channel, "gone")
        channel.out = []
        if not self._parked_by[channel.session.peer_host]:
            del self._parked_by[channel.session.peer_host]
        self._writes.pop(channel, None)
        self._broker.disconnected(channel.session)
        self._drain_facts(now_ms)

    def delayed(self) -> Counter[str]:
        """How many requests are parked, by API: the sizes of Kafka's purgatories; counted at each call."""
        return Counter(request.route.name for request in self._purgatory.operations())

    # -- what is told of it: looked at when it is asked for, and changing nothing

    def figures(self) -> Iterator[Family]:
        """What is counted, in the order of a page of metrics."""
        from kbroker.api.figures import figures_of  # most brokers are never asked

        return figures_of(self._broker, self.delayed())

    def health(self) -> Health:
        """Whether the broker serves, and what a person or a probe wants to know of it first."""
        from kbroker.api.figures import health_of

        return health_of(self._broker)

    def topic_name(self, topic_id: bytes) -> str | None:
        """The topic of this id, as far as this broker has been told."""
        return self._broker.plane.cache.topic_name(topic_id)

    # -- one request

    def _handle(self, request: Request, body: Answer) -> None:
        try:
            result = request.route.handle(body, request)
            if result.__class__ is GeneratorType and not self._scheduler.is_slicing:
                result = begun(cast("InSlices", result))
        except Exception as error:  # here and in `_worked_off` a failure becomes a code
            result = self._refusal(request, body, error)
        if result is LATER and self._facts:
            result = self._told_already(request)
        if isinstance(result, IS_ANSWER):  # nearly always: without another call
            self._answer_now(request, result)
        else:
            self._conclude(request, result, body)

    def _conclude(self, request: Request, result: Result, body: Answer | None = None) -> None:
        """The one place where what a handler gives back, at once or later, becomes an answer, or what there is instead.

        body: of a request that has just been begun, with the first steps of a handler that is done in slices.
        """
        if isinstance(result, IS_ANSWER):
            if request.is_large:
                self._in_slices(request, self._encoded(request, result), LARGE_FIRST_STEPS)
            else:
                self._answer_now(request, result)
        elif result is SILENCE:
            self._keep_silent(request)
        elif result is HANGUP:
            self._hang_up(request.channel, f"{request!r} failed, and there is no answer to say so")
        elif result is LATER or result is FIRST:
            _stand_in_line(request)
            if result is FIRST:
                request.channel.held_by = request
        elif result.__class__ is GeneratorType:
            steps = self._worked_off(request, body, cast("InSlices", result))
            self._in_slices(request, steps, first_steps=None if body is None else 0)
        else:
            self._park(request, cast("Waiting", result))

    def _resolve(self, request: Request, result: Result) -> None:
        """A request that waited has a result: it waits no longer, or for something else."""
        if request.parked is not None:
            request.parked = None
            self._parked_by[request.session.peer_host] -= 1
        request.waiting = None
        self._release(request)
        if request.channel.closing:
            return
        if isinstance(result, IS_ANSWER):
            self._broker.counters.note_wait(request.route.api, self._now_ms - request.now_ms)
        self._conclude(request, result)

    def _told_already(self, request: Request) -> Answer | Signal:
        """The answer that was to come later, if it was the last thing told: it need not wait in line then."""
        fact = self._facts[-1]
        if not isinstance(fact, Reply) or fact.ticket is not request or not isinstance(fact.response, IS_ANSWER):
            return LATER
        self._facts.pop()
        request.again = fact.again
        return fact.response

    def _refusal(self, request: Request, body: Answer | None, error: Exception) -> Result:
        if isinstance(error, KafkaError):
            log.debug("%r: %s", request, error)
            code, text = error.code, error.message
        elif isinstance(error, OSError):
            log.error("%r: %s", request, error)
            self._broker.disk_failed(error)
            code, text = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR.message
        elif self._broker.strict:  # a simulation stops where a broker on a machine goes on
            raise error
        else:
            log.error("%r failed", request, exc_info=error)
            code, text = ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message
        request.has_errors = True
        return HANGUP if body is None else request.route.refuse(body, code, text, request.version)

    def _park(self, request: Request, waiting: Waiting) -> None:
        """Keep a request whose answer depends on partitions; its handler has just found that it cannot leave yet.

        Where too many wait already, here or of its address, and earlier if its connection has many, its time is up.
        """
        _stand_in_line(request)
        mine, parked = self._parked_by[request.session.peer_host], len(self._purgatory)
        if (2 * mine >= PARKED_PER_ADDRESS or 2 * parked >= PARKED_OPERATIONS) and _is_over(request, mine, parked):
            self._resolve(request, waiting.expired(self._now_ms))
            return
        self._parked_by[request.session.peer_host] = mine + 1
        request.waiting = waiting
        request.parked = self._purgatory.park(request, waiting.keys, waiting.deadline_ms)

    def _answer(self, request: Request, response: Answer) -> None:
        """Encode an answer and put it in its place."""
        if request.has_errors or request.route.api not in SAY_ERRORS:
            self._broker.counters.note_errors(request.route.api, response, request.route.flat)
        try:
            buffers = framed(request, request.route.writers[request.version](response))
        except EncodeError as error:
            self._cannot_write(request, error)
        else:
            self._put(request, buffers)

    def _keep_silent(self, request: Request) -> None:
        self._put(request, [])

    def _cannot_write(self, request: Request, error: EncodeError) -> None:
        if self._broker.strict:
            raise error
        log.error("%r: the answer cannot be written: %s", request, error)
        self._hang_up(request.channel, f"internal error answering {request!r}")

    def _put(self, request: Request, buffers: list[Piece]) -> None:
        """Into `out` if every earlier answer has left; else it waits for them."""
        channel = request.channel
        pending = channel.pending
        if channel.closing:
            return
        if not pending:
            emit(channel, buffers)
            return
        if request.late and pending[0] is request:
            pending.popleft()
            emit(channel, buffers)
        else:
            request.answer = buffers
            channel.held_bytes += bytes_in(buffers)
            if not request.late:
                _stand_in_line(request)
                return
        while pending and (answer := pending[0].answer) is not None:
            pending.popleft()
            channel.held_bytes -= bytes_in(answer)
            emit(channel, answer)
        if pending and pending[0].waiting.__class__ is Unbegun:
            self._broker.tell(Resume(pending[0]))
        self._writes[channel] = None

    def _resume(self, request: Request, now_ms: int) -> None:
        """Begin a request that was held."""
        held, channel = request.waiting, request.channel
        if channel.closing or not isinstance(held, Unbegun):  # told twice: an answer behind it came in between
            return
        request.waiting = None
        route, start = request.route, held.start
        request.now_ms = now_ms
        channel.held_bytes -= len(held.frame)
        try:
            if request.version >= route.flexible_from:
                start = skip_tags(held.frame, start)
            if len(held.frame) > LARGE_REQUEST_BYTES:
                self._begin_large(request, bytes(held.frame), start)
                return
            body = route.readers[request.version](held.frame, start)[0]
        except DecodeError as error:
            self._hang_up(channel, f"malformed {route.name} v{request.version}: {error}")
            return
        self._handle(request, body)

    def _is_of_any_size(self, session: Session, api: int) -> bool:
        """Whether a controller says what is in the cluster: it says it whole, and again until it is answered.

        Of one that is not known to be a broker yet the metadata store is asked; it comes again.
        """
        helper = self._broker.auth_helper
        if api not in OF_CONTROLLERS or helper.undecided(session, Operation.CLUSTER_ACTION) is not None:
            return False
        return helper.allows(session, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)

    # -- in slices

    def _is_long(self, request: Request, frame: memoryview, start: int) -> bool:
        """Whether a request of many bytes is also one of many parts."""
        if request.route.api != PRODUCE:
            return True
        size, version = len(frame), request.version
        return size > LONG_PRODUCE_BYTES or (
            size > LARGE_PRODUCE_BYTES and names_over(MANY_PARTITIONS, frame, version, start)
        )

    def _in_slices(self, request: Request, steps: Steps, first_steps: int | None = None) -> None:
        """Do what a request wants in slices; its connection waits, other requests of it are not begun.

        first_steps: at once, if nothing else waits; None for as many as usual.
        """
        channel = request.channel
        _stand_in_line(request)
        if channel.held_by is None:
            channel.held_by = request
        owner = request.session.peer_host, request.is_large
        self._scheduler.start_task(owner, _while_open(request, steps), first_steps)

    def _begin_large(self, request: Request, frame: bytes | memoryview, start: int) -> None:
        request.is_large = True
        self._in_slices(request, self._large(request, frame, start), LARGE_FIRST_STEPS)

    def _large(self, request: Request, frame: bytes | memoryview, start: int) -> Steps:
        """Decode a large request, then handle it."""
        channel, route, version = request.channel, request.route, request.version
        is_of_any_size = self._is_of_any_size(channel.session, route.api)
        channel.held_bytes += len(frame)
        yield
        try:
            most = NO_LIMIT if is_of_any_size else route.elements
            body: Answer = yield from route.read_slices(frame, version, start, most)
        except DecodeError as error:
            self._hang_up(channel, f"malformed {route.name} v{version}: {error}")
            return
        # Records stay where they are; and a controller is not hung up on for what it has to say.
        times = 1 if route.api == PRODUCE or is_of_any_size else DECODED_TIMES
        decoded_bytes = times * len(frame)
        channel.held_bytes += decoded_bytes - len(frame)
        request.now_ms = self._now_ms
        try:
            yield from self._worked_off(request, body, None)
        finally:
            channel.held_bytes -= decoded_bytes

    def _worked_off(self, request: Request, body: Answer | None, result: InSlices | None) -> Steps:
        """Go through with a handler, and answer. body: None if it has waited. result: None if it is not called yet."""
        outcome: Result | None = result
        count = 0
        try:
            if outcome is None and body is not None:
                outcome = request.route.handle(body, request)
            while outcome.__class__ is GeneratorType:
                try:
                    next(cast("InSlices", outcome))
                except StopIteration as end:
                    outcome = end.value
                else:
                    count += 1
                    yield
        except Exception as error:
            outcome = self._refusal(request, body, error)
        if (request.is_large or count > MANY_STEPS) and isinstance(outcome, IS_ANSWER):
            yield from self._encoded(request, outcome)
        else:
            self._resolve(request, cast("Result", outcome))

    def _encoded(self, request: Request, response: Answer) -> Steps:
        """As `_answer`, in slices."""
        route = request.route
        if request.has_errors or route.api not in SAY_ERRORS:
            yield from self._broker.counters.note_errors_in_slices(route.api, response, route.flat)
            yield
        throttle_ms = self._charge(request, response)
        if throttle_ms:
            response = cast("Metering", self._metering).throttled(request, response, throttle_ms)
        try:
            buffers = framed(request, (yield from route.write_slices(response, request.version)))
        except EncodeError as error:
            self._cannot_write(request, error)
        else:
            self._release(request)
            self._put(request, buffers)
            self._mute(request, throttle_ms)

    def _release(self, request: Request) -> None:
        """A request that held back others of its connection has been carried out."""
        channel = request.channel
        if channel.held_by is request:
            channel.held_by = None
            self._writes[channel] = None  # what it held back goes on, answer or not

    def _hang_up(self, channel: Channel, reason: str) -> None:
        """Nothing more is read or answered; what was answered before still leaves."""
        if channel.closing:
            return
        channel.closing = reason
        for request in channel.pending:
            if request.parked is not None:
                self._purgatory.cancel(request.parked)
                request.parked = None
                self._parked_by[channel.session.peer_host] -= 1
        channel.pending.clear()
        self._writes[channel] = None

    def _refuse_unknown(self, channel: Channel, api_key: int, version: int, correlation_id: int) -> None:
        """A version or API that we do not serve: ApiVersions is answered, the others cannot be."""
        if api_key == API_VERSIONS:
            if channel.session.login is not None:
                channel.session.login.versions_told(understood=False)
            request = Request(self._broker, channel, ROUTES[API_VERSIONS], 0, correlation_id, None, self._now_ms)
            self._answer_now(request, unsupported_version())
            return
        self._hang_up(channel, f"API key {api_key} version {version} is not served")

    # -- within quotas: what these do costs a broker without them nothing

    def _apply_quotas(self) -> None:
        """Count what clients use from now on, or no more. Methods are put in the place of others, and taken out."""
        for name in self._replaced & {"receive", "_resume", "_in_slices", "_keep_silent"}:
            delattr(self, name)
            self._replaced.remove(name)
        self._request, self._metering, self._charges, self._answer_now = Request, None, {}, self._answer
        for routes in self._routes.values():
            routes.use(None)
        quotas = self._broker.quotas
        if quotas is None or not quotas.is_on:
            self._show_frames()
            return
        from kbroker.metering import Metering  # most brokers have no quotas

        self._metering = Metering(self._broker, quotas)
        self._charges = self._metering.charges
        for routes in self._routes.values():
            routes.use(self._metering.limited)
        self._answer_now = self._answer_metered
        self._replace(_resume=self._resume_unless_muted, _keep_silent=self._keep_silent_metered)
        if quotas.request.is_on:
            self._request = self._metering.request
            self._replace(receive=self._receive_timed, _resume=self._resume_timed, _in_slices=self._in_slices_timed)
        elif quotas.produce.is_on or quotas.fetch.is_on:
            self._answer_now, self._bytes_fetched = self._answer_quick, self._metering.bytes_fetched
        self._show_frames()

    def _replace(self, **methods: Callable[..., None]) -> None:
        """Put these in the place of methods; not by `__dict__`, which would slow all attributes (CPython 3.11)."""
        for name, method in methods.items():
            setattr(self, name, method)
        self._replaced |= methods.keys()

    def _answer_quick(self, request: Request, response: Answer) -> None:
        """As `_answer`, where only bytes count: nearly all are counted here (`Rate.record`), without another call."""
        route, session = request.route, request.session
        api, size = route.api, request.frame_bytes
        if api == PRODUCE:
            client_id, meter = session.produced
        elif api == FETCH and size >= 0:  # below: a follower's
            (client_id, meter), size = session.fetched, self._bytes_fetched(response)
        else:
            self._answer_metered(request, response)
            return
        if client_id != request.client_id or size > meter.room or self._now_ms >= meter.until_ms or request.has_errors:
            self._answer_metered(request, response)
            return
        meter.room, meter.last_ms = meter.room - size, self._now_ms
        try:
            buffers = framed(request, route.writers[request.version](response))
        except EncodeError as error:
            self._cannot_write(request, error)
        else:
            self._put(request, buffers)

    def _answer_metered(self, request: Request, response: Answer) -> None:
        charge = self._charges.get(request.route.api)
        if charge is not None and (throttle_ms := charge(request, response, self._now_ms)):
            Core._answer(self, request, cast("Metering", self._metering).throttled(request, response, throttle_ms))
            self._mute(request, throttle_ms)
        else:
            Core._answer(self, request, response)

    def _keep_silent_metered(self, request: Request) -> None:
        throttle_ms = self._charge(request, None) if request.frame_bytes else 0  # else a connection is muted no more
        Core._keep_silent(self, request)
        self._mute(request, throttle_ms)

    def _resume_unless_muted(self, request: Request, now_ms: int) -> None:
        """Of one that is muted meanwhile: not yet; the end of that says so again."""
        if request.channel.muted is None:
            Core._resume(self, request, now_ms)

    def _receive_timed(self, channel: Channel, frame: memoryview, now_ms: int) -> None:
        metering = cast("Metering", self._metering)
        metering.begin_request()
        Core.receive(self, channel, frame, now_ms)
        metering.end(now_ms)

    def _in_slices_timed(self, request: Request, steps: Steps, first_steps: int | None = None) -> None:
        timed = cast("Metering", self._metering).timed(request, steps, lambda: self._now_ms)
        Core._in_slices(self, request, timed, first_steps)

    def _resume_timed(self, request: Request, now_ms: int) -> None:
        metering = cast("Metering", self._metering)
        metering.begin_request(request)
        self._resume_unless_muted(request, now_ms)
        metering.end(now_ms)

    def _charge(self, request: Request, response: Answer | None) -> int:
        """Count what a request has used. Returns: for how long its client is to be throttled, in ms.

        response: None where there is none.
        """
        charge = self._charges.get(request.route.api)
        return 0 if charge is None else charge(request, response, self._now_ms)

    def _mute(self, request: Request, throttle_ms: int) -> None:
        """Nothing is read from the connection for so long: behind all its answers one stands that comes at the end."""
        channel, until_ms = request.channel, self._now_ms + throttle_ms
        if not throttle_ms or channel.closing:
            return
        muted = channel.muted
        if muted is None:
            muted = Request(self._broker, channel, request.route, request.version, 0, request.client_id, self._now_ms)
            channel.muted = muted
            _stand_in_line(muted)
            self._parked_by[channel.session.peer_host] += 1
        elif muted.parked is None or muted.parked.deadline_ms >= until_ms:
            return  # its end is about to be told, or comes later
        else:
            self._purgatory.cancel(muted.parked)
        muted.waiting = Muted(channel, until_ms)
        muted.parked = self._purgatory.park(muted, (), until_ms)
        self._writes[channel] = None

    # -- watched: as above

    def watch(self, witness: Witness) -> None:
        """Tell it what becomes of each request from now on."""
        self._witness = witness

        def told(name: str, tell: Callable[..., None]) -> None:
            do = getattr(self, name)

            def both(*given: Any) -> None:
                tell(*given)
                do(*given)

            self._replace(**{name: both})

        told("_handle", lambda request, body: witness.begun(request))
        told("_park", witness.parked)
        told("_resolve", lambda request, result: witness.woken(request))
        told("_put", witness.answered)
        told("_hang_up", lambda channel, reason: None if channel.closing else witness.closed(channel, reason))
        self._show_frames()

    def _show_frames(self) -> None:
        """Show the witness each frame, whichever way of receiving counts now."""
        receive, witness = self.receive, self._witness
        if witness is None:
            return

        def shown(channel: Channel, frame: memoryview, now_ms: int) -> None:
            witness.received(channel, frame)
            receive(channel, frame, now_ms)
            witness.taken(channel)

        self._replace(receive=shown)

    # -- what follows from a step

    def _drain_facts(self, now_ms: int) -> None:
        """Until nothing more follows: look again at what watches what moved, and heed what was told."""
        replicas, facts = self._replicas, self._facts
        while True:
            if replicas.touched:
                self._notice(now_ms)
            elif facts:
                self._handle_fact(facts.popleft(), now_ms)
            else:
                return

    def _notice(self, now_ms: int) -> None:
        """Look again at what watches what moved, or gather that."""
        touched = self._broker.take_touched()
        if self._purgatory.watchers:
            if self.gathers:
                self._moved.update(dict.fromkeys(touched))
            else:
                self._look_again(touched, now_ms)

    def _handle_fact(self, fact: object, now_ms: int) -> None:
        if isinstance(fact, Reply):
            self._resolve(cast(Request, fact.ticket), cast("Result", fact.response))
        elif isinstance(fact, Touched):
            self._look_again(fact.keys, now_ms)
        elif isinstance(fact, Resume):
            self._resume(fact.request, now_ms)
        elif isinstance(fact, HangUp):
            self._hang_up(cast(Request, fact.ticket).channel, fact.why)
        else:
            self._broker.handle(fact, now_ms)

    def _recheck(self, keys: Sequence[Hashable], now_ms: int) -> Iterator[Channel]:
        """Answer what waits under these keys, if it can be answered; the channel of each answer, once it is made."""

        def answer(request: Request) -> Result | None:
            return self._asked(request, cast("Waiting", request.waiting).answer, now_ms)

        for key in keys:
            if self._purgatory.watching(key) > WOKEN_AT_ONCE:
                self._wake(key)
                continue
            answers: Iterator[tuple[Request, Result]] = self._purgatory.check(key, answer)
            for request, response in answers:
                self._resolve(request, response)
                yield request.channel

    def _look_again(self, keys: Sequence[Hashable], now_ms: int) -> None:
        for _ in self._recheck(keys, now_ms):
            pass

    def _wake(self, key: Hashable) -> None:
        """Look at the many that watch a key in slices. Touched again meanwhile, it is looked at once more."""
        self._waking[key] = None
        if not self._is_waking:
            self._is_waking = True
            self._scheduler.start_task(self, self._woken())

    def _woken(self) -> Steps:
        while self._waking:
            key = next(iter(self._waking))
            del self._waking[key]
            for parked in self._purgatory.under(key):
                if not parked.pending:
                    continue
                request = parked.payload
                response = self._asked(request, cast("Waiting", request.waiting).answer, self._now_ms)
                if response is not None:
                    self._purgatory.cancel(parked)
                    self._resolve(request, response)
                yield
        self._is_waking = False

    def _time_is_up(self, request: Request, now_ms: int) -> None:
        if self._answered_late < WOKEN_AT_ONCE:
            self._answered_late += 1
            self._resolve(request, self._asked(request, cast("Waiting", request.waiting).expired, now_ms))
        else:
            self._overdue.append(request)

    def _over(self) -> Steps:
        """Answer the many whose time is up."""
        while self._overdue:
            request = self._overdue.popleft()
            if request.parked is not None:  # its connection is still there
                self._resolve(request, self._asked(request, cast("Waiting", request.waiting).expired, self._now_ms))
                yield

    def _asked(self, request: Request, ask: Callable[[int], AnswerOrNone], now_ms: int) -> AnswerOrNone | Signal:
        """What a waiting request says now. If it fails, that ends its own connection, and no other."""
        try:
            return ask(now_ms)
        except Exception as error:
            return self._failed(request, error)

    def _failed(self, request: Request, error: Exception) -> Signal:
        """Of a request that waited, by a bug."""
        if self._broker.strict:
            raise error
        log.error("%r failed while it waited", request, exc_info=error)
        return HANGUP


class OwnRoutes(dict[int, "Route"]):
    """A broker's own table of routes, which its connections share: those of `source`, changed by quotas where need be.

    Each route is looked up there when it is first asked for.
    """

    def __init__(self, source: Mapping[int, Route]) -> None:
        super().__init__()
        self._source = source
        self._changed: Callable[[Route], Route] | None = None

    def use(self, changed: Callable[[Route], Route] | None) -> None:
        """From now on, also on connections that are there: what this makes of each route; None for the route itself."""
        self._changed = changed
        self.clear()

    def __missing__(self, api: int) -> Route:
        """Raises: as the source does."""
        route = self._source[api]
        made = self[api] = route if self._changed is None else self._changed(route)
        return made


def _stand_in_line(request: Request) -> None:
    """Its answer comes later: those behind it wait for it."""
    if not request.late:
        request.late = True
        request.channel.pending.append(request)


def _is_over(request: Request, mine: int, parked: int) -> bool:
    """Whether a request may not wait where so many do; one of a connection with few of them may for longer."""
    share = 2 if len(request.channel.pending) > FEW_PARKED else 1
    return mine >= PARKED_PER_ADDRESS // share or parked >= PARKED_OPERATIONS // share


def _owned(request: Request, frame: memoryview) -> bytes | memoryview:
    """A large request in memory of its own. Batches are stamped where they lie."""
    if request.route.api != PRODUCE:
        return bytes(frame)
    return frame if len(frame) > LONG_PRODUCE_BYTES else memoryview(bytearray(frame))


def _while_open(request: Request, steps: Steps) -> Steps:
    """The same, until the connection has closed; records that came are appended all the same."""
    channel = request.channel
    for _ in steps:
        if channel.closing and request.route.api != PRODUCE:
            return
        yield
