"""A core that obeys faults, and remembers what was asked: it stands between a driver and the plain one.

It is driven as `kbroker.core.Core` is, and drives one itself by the same surface: frames of clients go in, answers come
out as bytes, in the order of the requests, and it knows nothing of what is within. Used where faults are wanted, or may
be later, and nowhere else. Requests of OWN_CLIENTS are neither met nor remembered: they are a test's own questions, or
a console's.

What has to wait keeps its place in the order of its connection's answers, and has an alarm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.routes import ROUTES, SERVED, NotLoadedError
from kbroker.channel import Channel, emit, framed
from kbroker.core import IS_ANSWER, Closed, Core, Effects
from kbroker.faults.contents import errors, groups, join, name_of, partitions, split, transactional_ids
from kbroker.faults.history import Seen
from kbroker.faults.script import Asked, Fault, Faults
from kbroker.ports import Region
from protocol.apis import BY_KEY
from protocol.flat import flattened, message_of, place
from protocol.headers import API_VERSIONS, parse_request_header, skip_tags
from protocol.message import DecodeError, Message
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.produce import ProduceRequest

if TYPE_CHECKING:
    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.channel import Piece, Request
    from kbroker.ports import Clock
    from kbroker.timing import Scheduler

OWN_CLIENT = "kbroker.testing"
OWN_CLIENTS = frozenset((OWN_CLIENT, "kbroker-console"))
UNKNOWN_VERSION = 2**15 - 1
PRODUCE_KEY, ACKS = b"\0\0", place(ProduceRequest, "acks")
MOST_SESSIONS = 1000  # of fetches that are remembered: as many as a broker keeps
CHANGING = ("fail", "throttle", "corrupt")  # faults that make another answer of one


class Turn:
    """A request's place among its connection's answers.

    fault: what has met it. refusal: of the partitions that are to fail. session: what its fetch session has now.
    answer: encoded, once it may leave.
    """

    __slots__ = ("answer", "correlation_id", "fault", "refusal", "route", "seen", "session", "version")

    def __init__(self, route: Route | None, version: int, correlation_id: int) -> None:
        self.route = route  # None: its answer is passed on as it is
        self.version = version
        self.correlation_id = correlation_id
        self.fault: Fault | None = None
        self.seen: Seen | None = None
        self.refusal: Message | None = None
        self.session: dict[tuple[str, bytes, int], None] = {}
        self.answer: list[Piece] | None = None


class Line(Channel):
    """A connection as the driver has it.

    within: the core's. passed: requests that the core has to answer. waits: frames behind a request that waits.
    """

    __slots__ = ("passed", "waits", "within")

    def __init__(self, within: Channel) -> None:
        super().__init__(within.session)
        self.within = within
        self.passed: deque[Turn] = deque()
        self.waits: deque[memoryview] | None = None

    @property
    def full(self) -> bool:
        """As a plain one, and if the core takes no more."""
        return self.within.full or super().full

    @property
    def muted(self) -> Request | None:
        """As the core's."""
        return self.within.muted

    @muted.setter
    def muted(self, request: Request | None) -> None:
        """It has no time of its own."""


class ScriptedCore:
    """One broker's every decision, some of them wrong on demand.

    known_session: what a fetch session has that began before it was remembered here. remembers: requests are decoded
    and remembered though no fault is armed; else they are passed on as they come.
    """

    def __init__(
        self,
        core: Core,
        clock: Clock,
        scheduler: Scheduler,
        faults: Faults,
        known_session: Callable[[int], Iterable[tuple[str, bytes, int]]],
        *,
        remembers: bool = True,
    ) -> None:
        self.faults = faults
        self._known_session = known_session
        self._remembers = remembers
        self.call_soon: Callable[[Callable[[], None]], None] | None = None  # for faults released from another thread
        self._core = core
        self._clock = clock
        self._scheduler = scheduler
        self.effects = core.effects
        self._due: deque[Callable[[], None]] = deque()  # whose alarms have rung
        self._lines: dict[Channel, Line] = {}
        self._held: dict[Fault, list[Callable[[], None]]] = {}
        self._sessions: dict[int, dict[tuple[str, bytes, int], None]] = {}  # what fetch sessions have, oldest first

    # -- the surface

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    @property
    def gathers(self) -> bool:
        """As the plain core's."""
        return self._core.gathers

    @gathers.setter
    def gathers(self, gathers: bool) -> None:
        self._core.gathers = gathers

    def open(self, listener: str, peer_host: str, peer_port: int, security_protocol: str = "PLAINTEXT") -> Line:
        """A client has connected."""
        within = self._core.open(listener, peer_host, peer_port, security_protocol)
        line = self._lines[within] = Line(within)
        return line

    def receive(self, line: Line, frame: memoryview, now_ms: int) -> None:
        """A frame has come in; what waits keeps its bytes, for the buffer belongs to the next request."""
        if line.waits is None and not self._remembers and not self.faults.is_armed:
            logs_in = line.within.login is not None and line.session.login is not None  # its tokens have no header
            is_answered = logs_in or not _wants_no_answer(frame)
            self._pass(line, Turn(None, 0, 0), frame, is_answered=is_answered)
            self._collect()
            return
        own = memoryview(bytearray(frame))
        if line.waits is not None:
            line.waits.append(own)
        else:
            self._handle_frame(line, own)
            self._collect()

    def step(self, event: object, now_ms: int) -> Effects:
        """As the plain core's; a connection that is gone takes along what waited on it."""
        if isinstance(event, Closed):
            line = cast(Line, event.channel)
            line.waits, line.closing = None, line.closing or "gone"
            line.pending.clear()
            self._lines.pop(line.within, None)
            self.effects.writes.pop(line, None)
            event = Closed(line.within)
        self._core.step(event, now_ms)
        self._collect()
        return self.effects

    def at_rest(self, now_ms: int) -> Iterator[Channel]:
        """As the plain core's."""
        for channel in self._core.at_rest(now_ms):
            line = self._lines.get(channel)
            if line is not None:
                self._collect_of(line)
                yield line
        self._collect()

    # -- in

    def _handle_frame(self, line: Line, frame: memoryview) -> None:
        """Have a request met, or pass it on."""
        if line.within.login is not None and line.session.login is not None:  # logins are met by no faults
            self._pass(line, Turn(None, 0, 0), frame)
            return
        try:
            api_key, version, correlation_id, client_id, start = parse_request_header(frame)
            route = ROUTES[api_key] if api_key in SERVED else None
            if route is not None and version > self.faults.last_version(SERVED[api_key]):
                self._refuse_unknown(line, Turn(route, 0, correlation_id), version, frame)
                return
            if route is None or not route.first <= version <= route.last:
                self._pass(line, Turn(route, 0, correlation_id), frame)
                return
            start = skip_tags(frame, start) if version >= route.flexible_from else start
            body = route.request.decode(frame, version, start)
        except (DecodeError, NotLoadedError):  # as the core is about to find
            self._pass(line, Turn(None, 0, 0), frame)
            return
        turn = Turn(route, version, correlation_id)
        if client_id in OWN_CLIENTS:
            self._pass(line, turn, frame, body)
            return
        asked = self._asked_of(turn, body, client_id or "")
        self._remember(turn, body, asked)
        turn.fault = self.faults.find(asked)
        if turn.fault is None:
            self._pass(line, turn, frame, body)
        else:
            cast(Seen, turn.seen).fault = turn.fault.does
            self._meet(line, turn, turn.fault, frame, body, start)

    def _pass(
        self, line: Line, turn: Turn, frame: memoryview, body: Message | None = None, *, is_answered: bool = True
    ) -> None:
        """Have the core handle a request."""
        if is_answered and getattr(body, "acks", 1) != 0:  # a Produce that is not answered has no place to wait for
            line.pending.append(cast(Any, turn))
            line.passed.append(turn)
        self._core.receive(line.within, frame, self._clock.now_ms())
        self._collect_of(line)
        if (
            turn.fault is not None
            and turn.fault.after
            and turn.fault.action == "disconnect"
            and turn not in line.passed
        ):
            self._hang_up(line, f"{turn.fault!r}")

    def _refuse_unknown(self, line: Line, turn: Turn, version: int, frame: memoryview) -> None:
        """A version that the release does not have: what the core says to one that it does not have itself."""
        assert turn.route is not None
        if turn.route.api == API_VERSIONS:
            frame[2:4] = UNKNOWN_VERSION.to_bytes(2, "big")
            self._pass(line, turn, frame)
        else:
            self._hang_up(line, f"API key {turn.route.api} version {version} is not served")

    def _asked_of(self, turn: Turn, body: Message, client_id: str) -> Asked:
        assert turn.route is not None
        named = set(partitions(body, self._core.topic_name))
        if isinstance(body, FetchRequest):
            turn.session = self._session_of(body)
            named |= {(name, index) for name, index, _ in self._in_session(turn)}
        return Asked(turn.route.name, turn.version, client_id, named, groups(body), transactional_ids(body))

    def _session_of(self, body: FetchRequest) -> dict[tuple[str, bytes, int], None]:
        """What a fetch wants, named or not."""
        known: dict[tuple[str, bytes, int], None] = {}
        if body.session_epoch > 0:
            remembered = self._sessions.get(body.session_id)
            known = dict(remembered if remembered is not None else dict.fromkeys(self._known_session(body.session_id)))
        for topic in body.forgotten_topics_data:
            for index in topic.partitions:
                known.pop((topic.topic, topic.topic_id, index), None)
        for named in body.topics:
            known |= {(named.topic, named.topic_id, each.partition): None for each in named.partitions}
        return known

    def _in_session(self, turn: Turn) -> Iterator[tuple[str, int, FetchTopic]]:
        for topic, topic_id, index in turn.session:
            entry = FetchTopic(topic=topic, topic_id=topic_id, partitions=[])
            name = name_of(entry, self._core.topic_name)
            if name is not None:
                entry.partitions = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=0)]
                yield name, index, entry

    def _remember(self, turn: Turn, body: Message, asked: Asked) -> None:
        topics = {topic for topic, _ in asked.partitions}
        size = sum(len(topic) for topic, _ in asked.partitions) + 256 + _records_in(body)
        named = asked.groups | asked.transactional_ids
        turn.seen = Seen(asked.api, asked.version, asked.client_id, body, size, self._clock.wall_ms(), topics, named)
        self.faults.history.add(turn.seen)

    # -- before it is handled

    def _meet(self, line: Line, turn: Turn, fault: Fault, frame: memoryview, body: Message, start: int) -> None:
        if fault.after:
            if fault.action == "fail":
                turn.refusal = self._refusal_of(line, turn, self._parts(turn, body, fault)[0])
            self._pass(line, turn, frame, body)
        elif fault.action == "fail":
            self._fail(line, turn, fault, body, bytes(frame[:start]))
        elif fault.action == "disconnect":
            self._hang_up(line, f"{fault!r}")
        elif fault.action == "drop":
            line.pending.append(cast(Any, turn))
        else:
            line.waits = deque()
            self._wait(fault, partial(self._resume, line, turn, frame, body))

    def _resume(self, line: Line, turn: Turn, frame: memoryview, body: Message) -> None:
        """The wait is over: handle it, and what has come behind it."""
        frames, line.waits = line.waits, None
        if line.closing or frames is None:
            return
        self._pass(line, turn, frame, body)
        while frames and line.waits is None and not line.closing:
            self._handle_frame(line, frames.popleft())
        if line.waits is not None:
            line.waits.extend(frames)
        self.effects.writes[line] = None

    def _wait(self, fault: Fault, go_on: Callable[[], None]) -> None:
        if fault.action == "delay":
            self._later(fault.ms, go_on)
            return
        held = self._held.setdefault(fault, [])
        if not held:
            fault.on_release.append(partial(self._release_soon, fault))
        held.append(go_on)
        if fault.is_released:  # since it was met, by a thread that may have found no one to tell
            self._later(0, partial(self._release, fault))

    def _release_soon(self, fault: Fault) -> None:
        if self.call_soon is not None:
            self.call_soon(partial(self._release, fault))

    def _release(self, fault: Fault) -> None:
        for go_on in self._held.pop(fault, ()):
            go_on()
        self._collect()

    def _fail(self, line: Line, turn: Turn, fault: Fault, body: Message, header: bytes) -> None:
        """Refuse all of it, or a part, and have the rest handled."""
        refused, rest = self._parts(turn, body, fault)
        turn.refusal = self._refusal_of(line, turn, refused)
        if rest is not None:
            if isinstance(rest, FetchRequest):
                rest.max_wait_ms = 0
            self._pass(line, turn, memoryview(bytearray(header + rest.encode(turn.version))), body)
        elif turn.refusal is not None:
            line.pending.append(cast(Any, turn))
            self._record_answer(turn, turn.refusal)
            self._leave(line, turn, _encoded(turn, turn.refusal))

    def _parts(self, turn: Turn, body: Message, fault: Fault) -> tuple[Message, Message | None]:
        """What the fault is on, and the rest of a request; None: it is on all of it."""
        if fault.topic is None:
            return body, None
        topic_name = self._core.topic_name
        if isinstance(body, FetchRequest):  # the session must see all of it; the refusal takes the place of records
            topics = [entry for name, index, entry in self._in_session(turn) if fault.concerns(name, index)]
            return FetchRequest(max_wait_ms=0, min_bytes=0, session_id=body.session_id, topics=topics), body
        inside, outside = split(body, lambda each: fault.concerns(*each), topic_name)
        return inside, outside if any(partitions(outside, topic_name)) else None

    def _refusal_of(self, line: Line, turn: Turn, body: Message) -> Message | None:
        """What says the fault's error to all of a request; where that is no answer, the connection ends."""
        fault, route = turn.fault, turn.route
        assert fault is not None
        assert route is not None
        given = body if route.flat is None else flattened(body)
        refused = route.refuse(given, fault.error, f"{fault!r}", turn.version)
        if isinstance(refused, IS_ANSWER):
            return (
                cast(Message, refused) if route.flat is None else message_of(route.flat, cast(tuple[Any, ...], refused))
            )
        if not fault.after:
            self._hang_up(line, f"{fault!r}")
        return None

    # -- out

    def _collect(self) -> None:
        """Do what is due, and take what the core has made of it: a driver finds its own connections in the effects."""
        while self._due:
            self._due.popleft()()
        for channel in self.effects.take_writes():
            line = self._lines.get(channel)
            if line is not None:
                self._collect_of(line)
            elif isinstance(channel, Line):
                self.effects.writes[channel] = None

    def _collect_of(self, line: Line) -> None:
        within = line.within
        pieces = within.out
        within.written()
        within.sent()
        line.held_bytes = within.held_bytes
        for answer in _answers(pieces):
            self._answered(line, line.passed.popleft(), answer)
        if within.closing:
            self._hang_up(line, within.closing)
        self.effects.writes[line] = None

    def _answered(self, line: Line, turn: Turn, pieces: list[Piece]) -> None:
        fault = turn.fault
        try:
            if turn.route is not None and (turn.seen is not None or turn.route.api == API_VERSIONS):
                pieces = self._changed(turn, pieces)
            if fault is not None and fault.after and fault.action == "in_pieces":
                self._next_piece(line, turn, fault, memoryview(_read(pieces)))
                return
        except OSError as error:  # the disk, where records are read that would be sent from their file
            self._hang_up(line, str(error))
            return
        if fault is None or not fault.after or fault.action in CHANGING:
            self._leave(line, turn, pieces)
        elif fault.action == "disconnect":
            self._hang_up(line, f"{fault!r}")
        elif fault.action != "drop":
            self._wait(fault, partial(self._leave, line, turn, pieces))

    def _changed(self, turn: Turn, pieces: list[Piece]) -> list[Piece]:
        """The answer that is given instead of one, or the same. Raises: OSError."""
        route, fault = turn.route, turn.fault
        assert route is not None
        changes = route.api == API_VERSIONS or (fault is not None and fault.action in CHANGING)
        data = _read(pieces) if changes else _shape_of(pieces)
        start = 9 if turn.version >= route.answers_tagged_from else 8
        response: Any = BY_KEY[route.api].response.decode(data, turn.version, start)
        if route.api == API_VERSIONS:
            self._limit_to_release(response)
        if fault is not None:
            response = self._met(turn, fault, response)
        if isinstance(response, FetchResponse) and response.session_id:
            self._keep_session(response.session_id, turn)
        self._record_answer(turn, response)
        return _encoded(turn, response) if changes else pieces

    def _keep_session(self, session_id: int, turn: Turn) -> None:
        self._sessions.pop(session_id, None)
        self._sessions[session_id] = turn.session
        if len(self._sessions) > MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]

    def _record_answer(self, turn: Turn, response: Message) -> None:
        if turn.seen is not None:
            turn.seen.answered = True
            turn.seen.errors = tuple(errors(response))

    def _met(self, turn: Turn, fault: Fault, response: Any) -> Message:
        if fault.action == "fail" and turn.refusal is not None:
            if fault.topic is None:
                return turn.refusal
            join(response, turn.refusal, self._core.topic_name)
        elif fault.action == "throttle" and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = fault.ms
        elif fault.action == "corrupt" and not _corrupt(response, fault, self._core.topic_name):
            fault.give_back()
            cast(Seen, turn.seen).fault = ""
        return cast(Message, response)

    def _limit_to_release(self, response: Any) -> None:
        kept = []
        for each in response.api_keys:
            served = SERVED.get(each.api_key)
            last = self.faults.last_version(served) if served is not None else each.max_version
            if last >= each.min_version:
                each.max_version = min(each.max_version, last)
                kept.append(each)
        response.api_keys = kept
        if not self.faults.has_features:  # a client that is told of one speaks versions that the release lacks
            response.supported_features, response.finalized_features = [], []

    def _leave(self, line: Line, turn: Turn, pieces: list[Piece]) -> None:
        """Into `out` if every earlier answer has left; else it waits for them."""
        turn.answer = pieces
        while line.pending and (answer := line.pending[0].answer) is not None:
            line.pending.popleft()
            emit(line, answer)
        self.effects.writes[line] = None

    def _next_piece(self, line: Line, turn: Turn, fault: Fault, left: memoryview) -> None:
        if line.closing:
            return
        if cast(Any, line.pending[0]) is turn:
            emit(line, [bytes(left[: fault.size])])
            self.effects.writes[line] = None
            left = left[fault.size :]
        if left:
            self._later(fault.ms, partial(self._next_piece, line, turn, fault, left))
        else:
            self._leave(line, turn, [])

    def _hang_up(self, line: Line, reason: str) -> None:
        """Nothing more is taken or answered; what was answered before still leaves."""
        line.closing = line.closing or reason
        line.pending.clear()
        self.effects.writes[line] = None

    def _later(self, ms: int, job: Callable[[], None]) -> None:
        self._scheduler.alarm(lambda now_ms: self._due.append(job)).set(self._clock.now_ms() + ms)


def scripted(
    faults: Faults, make: Callable[[Broker, int], Core] = Core, *, remembers: bool = True
) -> Callable[[Broker, int], Core]:
    """What makes a core that obeys these, of the parts of a broker and the time in ms.

    make: makes the plain one. remembers: as `ScriptedCore` has it.
    """

    def made(broker: Broker, now_ms: int) -> Core:
        sessions, core = broker.fetch_sessions.partitions_of, make(broker, now_ms)
        return cast(Core, ScriptedCore(core, broker.clock, broker.scheduler, faults, sessions, remembers=remembers))

    return made


def _wants_no_answer(frame: memoryview) -> bool:
    """Whether it is a Produce with acks=0. Of what cannot be read the core hangs up."""
    if frame[:2] != PRODUCE_KEY:
        return False
    try:
        _, version, _, _, start = parse_request_header(frame)
        route = ROUTES[0]
        if not route.first <= version <= route.last:
            return False
        start = skip_tags(frame, start) if version >= route.flexible_from else start
        return bool(route.readers[version](frame, start)[0][ACKS] == 0)
    except DecodeError:
        return False


def _encoded(turn: Turn, response: Message) -> list[Piece]:
    return framed(cast(Any, turn), response.encode_parts(turn.version))


def _answers(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """The pieces of each answer; an answer begins with its size."""
    answer: list[Piece] = []
    left = 0
    for piece in pieces:
        left += len(piece) - (0 if answer else 4 + int.from_bytes(cast(bytes, piece)[:4], "big"))
        answer.append(piece)
        if not left:
            yield answer
            answer = []


def _read(pieces: Sequence[Piece]) -> bytes:
    """An answer's bytes. Raises: OSError."""
    return b"".join(piece.read() if isinstance(piece, Region) else piece for piece in pieces)


def _shape_of(pieces: Sequence[Piece]) -> bytes:
    """The same, with zeros for what is in files: records are not looked at."""
    return b"".join(bytes(len(piece)) if isinstance(piece, Region) else piece for piece in pieces)


def _records_in(body: Any) -> int:
    """Bytes of records in a Produce."""
    return sum(len(part.records or b"") for topic in getattr(body, "topic_data", ()) for part in topic.partition_data)


def _corrupt(response: Any, fault: Fault, topic_name: Callable[[bytes], str | None]) -> bool:
    """Turn the last bit of the first records that the fault is on; whether there were any."""
    for topic in response.responses:
        name = topic.topic or topic_name(topic.topic_id) or ""
        for part in topic.partitions:
            data = bytearray(part.records or b"")
            if data and fault.concerns(name, part.partition_index):
                data[-1] ^= 1
                part.records = bytes(data)
                return True
    return False
