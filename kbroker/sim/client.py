"""A simulated client: real requests, encoded; real answers, decoded; connections that come and go.

A client is a script, a generator that yields what it waits for: `Sleep` or `Ask`. `ask` sends requests and gives back
their answers in order, or raises `Lost` when the connection ends first. Each connection begins with ApiVersions, and
from what that advertises the client picks a version of every API, by chance, for its whole life. Where there are
several machines it has a connection to each that it speaks to, asks any of them who leads a partition and who is
controller (`leaders.py`), and asks again when it is told that it was wrong. Subclasses (`producers.py`, `consumers.py`,
`admins.py`) are the scripts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from protocol.errors import ErrorCode
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import Message
from protocol.messages.handshake import ApiVersionsRequest, ApiVersionsResponse
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.sim.checks import Checks
    from kbroker.sim.machine import Machine
    from kbroker.sim.net import Net, Wire
    from kbroker.sim.topics import Topic
    from kbroker.sim.world import Event, World

OLDEST = {8: 1, 9: 1}
"""Versions below which no client here goes: OffsetCommit 0 and OffsetFetch 0 keep offsets in the metadata store, newer
ones in the group's topic, and a client that mixed them by chance would look for its offsets in the other place."""
REQUEST_TIMEOUT_MS = 30_000  # request.timeout.ms of clients, counted from the last answer


class Lost(Exception):  # noqa: N818 - what happened, not an error
    """The connection ended before all answers were there. answers: those that were."""

    def __init__(self, why: str, answers: list[Message | None]) -> None:
        super().__init__(why)
        self.why = why
        self.answers = answers


class Sleep(NamedTuple):
    """Wait for some time."""

    ms: int


class Ask(NamedTuple):
    """Send these requests one behind the other; wait for all answers. to: None for any machine, the same as before."""

    requests: Sequence[Message]
    timeout_ms: int
    to: Machine | None = None


class Connection:
    """A client's end of a connection to one machine."""

    __slots__ = ("in_flight", "machine", "queued", "shaking", "wire")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.wire: Wire | None = None
        self.in_flight: deque[tuple[int, type[Message], int]] = deque()  # correlation id, class, version
        self.shaking = True  # the handshake's answer comes first
        self.queued: Ask | None = None  # waits for the handshake


Script = Generator[Sleep | Ask, Any, None]
Response = TypeVar("Response", bound=Message)

RESPONSES: dict[type[Message], type[Message]] = {}


def response_class(request: type[Message]) -> type[Message]:
    """The class of a request's answer: same module, same name."""
    found = RESPONSES.get(request)
    if found is None:
        module = __import__(request.__module__, fromlist=["_"])
        found = RESPONSES[request] = getattr(module, request.__name__.replace("Request", "Response"))
    return found


class Client:
    """One client program. `live` is its script, started by `start`, over when it returns or `stop` is called."""

    def __init__(self, name: str, world: World, net: Net, bootstrap: Sequence[Machine], checks: Checks) -> None:
        self.name = name
        self.world = world
        self.chance = world.chance(name)
        self.checks = checks
        self.machines = bootstrap
        self.versions: dict[int, int] = {}  # by API key; empty until the first handshake
        self.fixed_versions: dict[int, int] = {}  # chosen by a play
        self.asked_ms = 0
        self._net = net
        self._connections: dict[Machine, Connection] = {}
        self._home: Machine | None = None  # asked where any machine will do
        self._asked: Connection | None = None  # the one whose answers are waited for
        self._script: Script | None = None
        self._correlation = self.chance.randrange(1 << 30)
        self._answers: list[Message | None] = []
        self._wanted = 0  # answers, all in all
        self._timer: Event | None = None

    def __repr__(self) -> str:
        return self.name

    def live(self) -> Script:
        """The script."""
        raise NotImplementedError

    def start(self, delay_ms: int = 0) -> None:
        """Begin, after a while."""
        self._script = self.live()
        self._timer = self.world.after(delay_ms, self._go_on)

    def stop(self) -> None:
        """End like a killed process: nothing is said to anybody, the operating system closes the connections."""
        self._forget_all()
        if self._script is not None:
            self._script.close()
            self._script = None

    @property
    def alive(self) -> bool:
        """Whether the script has not ended."""
        return self._script is not None

    def serves(self, api: int) -> bool:
        """Whether the broker has said that it serves an API."""
        return api in self.versions

    # ---- for scripts

    def ask(
        self, request: Message, timeout_ms: int = REQUEST_TIMEOUT_MS, to: Machine | None = None
    ) -> Generator[Ask, Any, Any]:
        """One request, one answer. Raises: Lost."""
        answers = yield Ask((request,), timeout_ms, to)
        return answers[0]

    def ask_all(
        self, requests: Sequence[Message], timeout_ms: int = REQUEST_TIMEOUT_MS, to: Machine | None = None
    ) -> Generator[Ask, Any, list[Message]]:
        """Pipelined requests; their answers in order. Raises: Lost."""
        return cast("list[Message]", (yield Ask(requests, timeout_ms, to)))

    def connect(self) -> Generator[Ask, Any, None]:
        """Do no more than the handshake, so that `serves` knows. Raises: Lost."""
        yield Ask((), REQUEST_TIMEOUT_MS)

    def shake_hands(self) -> Generator[Any, Any, None]:
        """Try until the versions are known: they decide what a request says."""
        while not self.versions:
            try:
                yield from self.connect()
            except Lost:
                yield from self.pause(500)

    def know(self, topics: Iterable[Topic]) -> Generator[Sleep, Any, None]:
        """Wait until the topics are there, as far as anybody was told."""
        while not all(any(self.checks.catalogue.topic_id(topic.name)) for topic in topics):
            yield Sleep(200)

    def pause(self, mean_ms: int) -> Generator[Sleep, Any, None]:
        """Wait, about so long."""
        yield Sleep(int(self.chance.expovariate(1 / mean_ms)) if mean_ms else 0)

    def hang_up(self) -> None:
        """Close the connections, as a client does that is done with them."""
        self._forget_all()

    def note(self, line: str) -> None:
        """Tell what happens, in the world's transcript."""
        self.world.note(f"{self.name} {line}")

    # ---- within

    def _go_on(self, value: object = None, lost: Lost | None = None) -> None:
        """Run the script to its next wait."""
        self._timer = None
        script = self._script
        if script is None:
            return
        try:
            wait = script.send(value) if lost is None else script.throw(lost)
        except StopIteration:
            self._script = None
            self._forget_all()
            return
        if isinstance(wait, Sleep):
            self._timer = self.world.after(wait.ms, self._go_on)
        else:
            self._ask(wait)

    def _ask(self, ask: Ask) -> None:
        self._timer = self.world.after(ask.timeout_ms, self._timed_out)
        self.asked_ms = self.world.now_ms
        self._answers = []
        machine = ask.to or self._any_machine()
        connection = self._connections.get(machine)
        if connection is not None:
            self._asked = connection
            self._send_all(connection, ask)
            return
        connection = self._asked = self._connections[machine] = Connection(machine)
        connection.wire = self._net.connect(
            self.name,
            machine,
            lambda data: self._heard(connection, data),
            lambda why: self._lost(connection, why),
        )
        connection.queued = ask
        version = self.fixed_versions.get(18, self.chance.choice((0, 1, 2, 3, 4)))
        hello = ApiVersionsRequest(client_software_name="simulated", client_software_version="1.0")
        self._send(connection, hello, version, True)

    def _any_machine(self) -> Machine:
        if self._home not in self._connections:
            self._home = self.machines[0] if len(self.machines) == 1 else self.chance.choice(self.machines)
        assert self._home is not None
        return self._home

    def _send_all(self, connection: Connection, ask: Ask) -> None:
        assert not connection.in_flight, self
        connection.queued = None
        self._wanted = 0
        for request in ask.requests:
            api = request.api
            assert api is not None, request
            version = self.versions[api]
            answered = not (api == 0 and request.acks == 0)  # type: ignore[attr-defined]
            self._wanted += answered
            self._send(connection, request, version, answered)
        if self._asked is connection and not self._wanted:
            assert self._timer is not None
            self._timer.cancel()
            self._timer = self.world.after(0, self._go_on, [])

    def _send(self, connection: Connection, request: Message, version: int, answered: bool) -> None:
        assert connection.wire is not None
        self._correlation = self._correlation + 1 & 0x7FFFFFFF
        kind = type(request)
        frame = encode_request_header(kind, version, self._correlation, self.name) + request.encode(version)
        if answered:
            connection.in_flight.append((self._correlation, response_class(kind), version))
        connection.wire.send(frame)

    def _heard(self, connection: Connection, data: bytes) -> None:
        """Whole answers, one behind the other."""
        view = memoryview(data)
        position = 0
        while position < len(view) and connection.wire is not None:
            size = int.from_bytes(view[position : position + 4], "big")
            frame = view[position + 4 : position + 4 + size]
            if len(frame) != size:
                raise self.world.broken(f"{self} got {len(frame)} bytes of an answer of {size}")
            position += 4 + size
            self._answer(connection, frame)

    def _answer(self, connection: Connection, frame: memoryview) -> None:
        if not connection.in_flight:
            raise self.world.broken(f"{self} got an answer that it never asked for")
        correlation, kind, version = connection.in_flight.popleft()
        if connection.shaking and bytes(frame[4:6]) == b"\x00\x23":  # error 35: in the layout of version 0
            version = 0
        theirs, start = parse_response_header(kind, version, frame)
        if theirs != correlation:
            raise self.world.broken(f"{self} got answer {theirs} of {kind.__name__}, the next one is {correlation}")
        response = kind.decode(frame, version, start)
        if connection.shaking:
            self._shake(connection, cast(ApiVersionsResponse, response))
            return
        self._answers.append(response)
        if not connection.in_flight:
            assert self._timer is not None
            self._timer.cancel()
            self._asked = None
            self._go_on(self._answers)

    def _shake(self, connection: Connection, response: ApiVersionsResponse) -> None:
        """The handshake is over: pick versions, send what waits."""
        connection.shaking = False
        if response.error_code != ErrorCode.NONE:
            raise self.world.broken(f"{self} is told {response.error_code} by ApiVersions")
        for each in response.api_keys:
            if each.api_key not in self.versions:
                low, high = max(each.min_version, OLDEST.get(each.api_key, 0)), each.max_version
                wanted = self.fixed_versions.get(each.api_key, self.chance.randint(low, high))
                self.versions[each.api_key] = min(max(wanted, low), high)
        queued = connection.queued
        assert queued is not None
        self._send_all(connection, queued)

    def _timed_out(self) -> None:
        self.note("gives up waiting")
        self._timer = None
        assert self._asked is not None
        self._lost(self._asked, "request timeout")

    def _lost(self, connection: Connection, why: str) -> None:
        """A connection has ended. Whether somebody waits for it or not, it is forgotten."""
        asking = connection is self._asked and (bool(connection.in_flight) or connection.queued is not None)
        answers = self._answers
        self._forget(connection)
        if not asking:
            return
        self._asked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._go_on(lost=Lost(why, answers))

    def _forget(self, connection: Connection) -> None:
        """Be without a connection."""
        wire, connection.wire = connection.wire, None
        if self._connections.get(connection.machine) is connection:
            del self._connections[connection.machine]
        if wire is not None:
            wire.close()

    def _forget_all(self) -> None:
        """Be without any, and wait for nothing."""
        for connection in list(self._connections.values()):
            self._forget(connection)
        self._asked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
