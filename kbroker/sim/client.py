"""A simulated client: real requests, encoded; real answers, decoded; connections that come and go.

A client is a script, a generator that yields what it waits for: `Sleep` or `Ask`. `ask` sends requests and gives back
their answers in order, or raises `Lost` when the connection ends first. Each connection begins with ApiVersions, and
from what that advertises the client picks a version of each API, mostly by chance, for its whole life. Where there are
several machines it has a connection to each that it speaks to, asks any of them who leads a partition and who is
controller (`leaders.py`), and asks again when it is told that it was wrong. Subclasses (`producers.py`, `consumers.py`,
`admins.py`) are the scripts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from kbroker.client import Connection as Protocol
from kbroker.client import ProtocolError, correlation_ids
from protocol.frames import SIZE_BYTES
from protocol.message import Message
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
PICKED_BY_CHANCE = frozenset((*range(17), *range(18, 36), 37, *range(42, 48), 56, 57, 60, 61, 65, 66, 67, 75))
"""APIs of which a client picks a version by chance; of all others it takes the newest. Each draw shifts what all later
draws of a client come to, so add an API that the broker begins to serve only when a client here asks for it."""
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
    """A client's end of a connection to one machine. queued: what is asked once the versions are known."""

    __slots__ = ("machine", "protocol", "queued", "wire")

    def __init__(self, machine: Machine, name: str, numbers: Iterator[int], queued: Ask) -> None:
        self.machine = machine
        self.protocol = Protocol(name, numbers=numbers)
        self.wire: Wire | None = None
        self.queued: Ask | None = queued


Script = Generator[Sleep | Ask, Any, None]


class Client:
    """One client program. `live` is its script, started by `start`, over when it returns or `stop` is called."""

    def __init__(self, name: str, world: World, net: Net, bootstrap: Sequence[Machine], checks: Checks) -> None:
        self.name = name
        self.world = world
        self.rng = world.rng(name)
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
        self._numbers = correlation_ids(self.rng.randrange(1 << 30) + 1)
        self._answers: list[Message | None] = []
        self._timer: Event | None = None

    def __repr__(self) -> str:
        return self.name

    def live(self) -> Script:
        """The script."""
        raise NotImplementedError

    def start(self, delay_ms: int = 0) -> None:
        """Begin, after a while."""
        self._script = self.live()
        self._timer = self.world.after(delay_ms, self._run_script)

    def stop(self) -> None:
        """End like a killed process: nothing is sent, the operating system closes the connections."""
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
        """Wait until the topics are there, as far as clients were told."""
        while not all(any(self.checks.catalogue.topic_id(topic.name)) for topic in topics):
            yield Sleep(200)

    def pause(self, mean_ms: int) -> Generator[Sleep, Any, None]:
        """Wait, about so long."""
        yield Sleep(int(self.rng.expovariate(1 / mean_ms)) if mean_ms else 0)

    def hang_up(self) -> None:
        """Close the connections, as a client does that is done with them."""
        self._forget_all()

    def note(self, line: str) -> None:
        """Tell what happens, in the world's transcript."""
        self.world.note(f"{self.name} {line}")

    # ---- within

    def _run_script(self, value: object = None, lost: Lost | None = None) -> None:
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
            self._timer = self.world.after(wait.ms, self._run_script)
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
        connection = self._asked = self._connections[machine] = Connection(machine, self.name, self._numbers, ask)
        connection.wire = self._net.connect(
            self.name,
            machine,
            lambda data: self._heard(connection, data),
            lambda why: self._lost(connection, why),
        )
        version = self.fixed_versions.get(18, self.rng.choice((0, 1, 2, 3, 4)))
        connection.wire.send(connection.protocol.negotiate("simulated", "1.0", version)[SIZE_BYTES:])

    def _any_machine(self) -> Machine:
        if self._home not in self._connections:
            self._home = self.machines[0] if len(self.machines) == 1 else self.rng.choice(self.machines)
        assert self._home is not None
        return self._home

    def _send_all(self, connection: Connection, ask: Ask) -> None:
        protocol, wire = connection.protocol, connection.wire
        assert wire is not None
        assert not protocol.in_flight, self
        connection.queued = None
        for request in ask.requests:
            assert request.api is not None, request
            wire.send(protocol.ask(request, self.versions[request.api])[SIZE_BYTES:])
        if self._asked is connection and not protocol.in_flight:
            assert self._timer is not None
            self._timer.cancel()
            self._timer = self.world.after(0, self._run_script, [])

    def _heard(self, connection: Connection, data: bytes) -> None:
        """Whole answers, one behind the other."""
        protocol = connection.protocol
        try:
            answers = protocol.feed(memoryview(data))
        except ProtocolError as error:
            raise self.world.broken(f"{self} got what it may not get: {error}") from None
        if protocol.midway:
            raise self.world.broken(f"{self} got a part of an answer")
        if connection.queued is not None:
            self._pick_versions(protocol.served)
            self._send_all(connection, connection.queued)
            return
        self._answers += [answer.decode() for answer in answers]
        if not protocol.in_flight:
            assert self._timer is not None
            self._timer.cancel()
            self._asked = None
            self._run_script(self._answers)

    def _pick_versions(self, served: Mapping[int, tuple[int, int]]) -> None:
        for api, (first, last) in served.items():
            if api not in self.versions:
                first = max(first, OLDEST.get(api, 0))
                wanted = self.fixed_versions.get(api)
                if wanted is None:
                    wanted = self.rng.randint(first, last) if api in PICKED_BY_CHANCE else last
                self.versions[api] = min(max(wanted, first), last)

    def _timed_out(self) -> None:
        self.note("gives up waiting")
        self._timer = None
        assert self._asked is not None
        self._lost(self._asked, "request timeout")

    def _lost(self, connection: Connection, why: str) -> None:
        """A connection has ended. Whether a request waits on it or not, it is forgotten."""
        asking = connection is self._asked and (connection.protocol.in_flight > 0 or connection.queued is not None)
        answers = self._answers
        self._forget(connection)
        if not asking:
            return
        self._asked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._run_script(lost=Lost(why, answers))

    def _forget(self, connection: Connection) -> None:
        """Be without a connection."""
        wire, connection.wire = connection.wire, None
        connection.protocol.close()
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
