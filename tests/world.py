"""A whole broker in the test's own process: the real core and parts on a simulated disk, clock and metadata store.

    world = World(min_insync_replicas="1")
    world.create("t", partitions=2)
    client = world.client()
    answer = client.ask(ListOffsetsRequest(...), 7)

Nothing waits: `ask` asserts that the answer is there at once, `send` leaves it open, `world.advance` lets time pass.
Jobs for the disk run as soon as they are there, unless `world.disk_is_busy`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from kbroker.broker.assembly import Surroundings, assemble, load_logs
from kbroker.broker.facts import FactQueue, JobDone
from kbroker.channel import Channel
from kbroker.config import ONE_BROKER, BrokerLayers, Given
from kbroker.core import EXPIRED, Closed, Core
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.ports import Peers, Region
from kbroker.replica import Partition
from kbroker.sim.clock import SimClock, SimRandom
from kbroker.sim.disk import SimDisk
from kbroker.sim.store import Ensemble
from kbroker.timing import Scheduler
from protocol.apis import BY_KEY
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import Message
from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from tests.peers import Nobody

BROKER = 1
CLUSTER = "c29tZS1jbHVzdGVyLWlkIQ"


class World:
    """One broker, number 1, with a listener PLAINTEXT at localhost:9092 and the log directories /a and /b."""

    def __init__(self, directories: Sequence[str] = ("/a",), *, ignores_case: bool = False, **settings: str) -> None:
        """ignores_case: of the file system. settings: of server.properties, with _ for each dot."""
        self.clock = SimClock()
        self.disk = SimDisk(wall_ms=self.clock.wall_ms, ignores_case=ignores_case)
        self.disk_is_busy = False
        self.ensemble = Ensemble()
        self.directories = list(directories)
        self._settings = {name.replace("_", "."): Given(value, "the test") for name, value in settings.items()}
        for directory in directories:
            self.disk.make_dir(directory)
        self.disk.sync_dir("/")
        self.start()

    def start(self) -> None:
        """Put a broker together and wait until it is ready."""
        self._events: deque[object] = deque()
        self._clients: list[Client] = []
        configs = Configs(BrokerLayers(static=self._settings, alone=ONE_BROKER))
        facts = FactQueue()
        surroundings = Surroundings(self.disk, self.clock, SimRandom(1), Scheduler(self.clock.now_ms()))
        self.logs = load_logs(facts, configs, self.directories, surroundings, broker_id=BROKER, cluster_id=CLUSTER)
        for session in list(self.ensemble.sessions):  # of an earlier life, that had no time to end it
            self.ensemble.end_session(session)
        self._store = self.ensemble.connect(self._events.append)
        self.broker = assemble(
            facts,
            configs,
            self.logs,
            surroundings,
            self._store,
            self.peers,
            broker_id=BROKER,
            cluster_id=CLUSTER,
            endpoints=(Endpoint("PLAINTEXT", 0, "localhost", 9092),),
            strict=True,
        )
        self.plane, self.replicas = self.broker.store_plane, self.broker.replicas
        self.core = Core(self.broker, self.clock.now_ms())
        self.settle()
        assert self.plane.ready

    def peers(self) -> Peers:
        """Who other brokers are spoken to by; asked with the first request of each life."""
        return Nobody()

    def stop(self) -> None:
        """A clean stop."""
        self.plane.close()
        self.logs.close()

    def expire(self) -> None:
        """The metadata store ends the broker's session."""
        self._store.expire()
        self.settle()

    def restart(self) -> None:
        """A clean stop, and a start on what the disk has."""
        self.stop()
        self.disk.restart(power_loss=False)
        self.start()

    def settle(self) -> None:
        """Let everything happen that is under way now."""
        while self._next_event():
            pass

    def step(self) -> None:
        """Let one thing happen that is under way now."""
        assert self._next_event(), "nothing is under way"

    def _next_event(self) -> bool:
        jobs = [] if self.disk_is_busy else self.core.effects.take_jobs()
        for job in jobs:
            error = None
            try:
                job.run()
            except OSError as failure:
                error = failure
            self._events.append(JobDone(job, error))
        if self._events:
            self.core.step(self._events.popleft(), self.clock.now_ms())
            return True
        if self.broker.facts:  # a test has called a part by itself, not through the core
            self.core.step(EXPIRED, self.clock.now_ms())
            return True
        return False

    def advance(self, by_ms: int) -> None:
        """Let time pass, waking the broker whenever it asked for it."""
        end_ms = self.clock.now_ms() + by_ms
        while True:
            self.settle()
            deadline_ms = self.core.effects.wake_ms
            if deadline_ms > end_ms:
                break
            self.clock.advance(max(0, deadline_ms - self.clock.now_ms()))
            self.core.step(EXPIRED, self.clock.now_ms())
        self.clock.advance(end_ms - self.clock.now_ms())

    def client(self, client_id: str | None = "test", host: str = "127.0.0.1") -> Client:
        """A new connection."""
        return Client(self, client_id, host)

    def create(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Create a topic. settings: with _ for each dot."""
        configs = [CreatableTopicConfig(name=name.replace("_", "."), value=text) for name, text in settings.items()]
        wanted = CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=1, assignments=[], configs=configs
        )
        client = self.client()
        number = client.send(CreateTopicsRequest(topics=[wanted], timeout_ms=1000), 5)
        self.advance(0)  # one of many partitions is made in slices
        answer = client.look()[number]
        assert answer.topics[0].error_code == 0, answer

    def partition(self, topic: str, index: int = 0) -> Partition:
        """A replica."""
        return self.replicas.partitions[topic, index]

    def topic_id(self, topic: str) -> bytes:
        """A topic's id."""
        return self.plane.cache.topics[topic].topic_id


class Client:
    """A connection: frames in, answers out."""

    def __init__(self, world: World, client_id: str | None, host: str) -> None:
        self._world = world
        self._client_id = client_id
        self._next_id = 100
        self._asked: dict[int, tuple[type[Message], int]] = {}
        self._received = b""
        self.answers: dict[int, Any] = {}
        self.order: list[int] = []
        self.channel: Channel = world.core.open("PLAINTEXT", host, 50_000)

    @property
    def closing(self) -> str:
        """Why the broker hangs up, or empty."""
        return self.channel.closing

    def send(self, request: Message, version: int) -> int:
        """Send a request. Returns: its correlation id, under which `answers` has the answer once it is there."""
        number = self.start(request, version)
        self._world.settle()
        return number

    def start(self, request: Message, version: int) -> int:
        """As `send`, but nothing that is under way goes on: the test steps through it."""
        self._next_id += 1
        self._asked[self._next_id] = (type(request), version)
        head = encode_request_header(type(request), version, self._next_id, self._client_id)
        self._receive(head + request.encode(version))
        return self._next_id

    def send_bytes(self, frame: bytes) -> None:
        """Send whatever this is as one frame."""
        self._receive(frame)
        self._world.settle()

    def _receive(self, frame: bytes) -> None:
        self._world.core.receive(self.channel, memoryview(bytearray(frame)), self._world.clock.now_ms())

    def ask(self, request: Message, version: int) -> Any:
        """Send a request whose answer comes at once."""
        number = self.send(request, version)
        if number not in self.look():
            self._world.advance(0)  # it takes slices
            self.look()
        assert number in self.answers, f"no answer to {request!r}; closing: {self.closing!r}"
        return self.answers[number]

    def look(self) -> dict[int, Any]:
        """Take what the broker has sent. Returns: all answers so far, by correlation id."""
        received = self.take()
        while received:
            size = int.from_bytes(received[:4], "big")
            frame, received = received[4 : 4 + size], received[4 + size :]
            assert len(frame) == size
            number = int.from_bytes(frame[:4], "big")
            request, version = self._asked.pop(number)
            response = BY_KEY[request.api or 0].response
            _, start = parse_response_header(response, version, frame)
            self.answers[number] = response.decode(frame, version, start)
            self.order.append(number)
        return self.answers

    def take(self) -> bytes:
        """The bytes that the broker has sent since the last time."""
        pieces = self.channel.out
        self.channel.written()
        self.channel.sent()
        return b"".join(piece.read() if isinstance(piece, Region) else bytes(piece) for piece in pieces)

    def hang_up(self) -> None:
        """Close the connection."""
        self._world.core.step(Closed(self.channel), self._world.clock.now_ms())
