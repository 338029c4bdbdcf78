"""One broker for a test: `broker()`.

    with broker() as b:                       # on a free port, its data in memory
        KafkaProducer(bootstrap_servers=b.bootstrap)
        b.kill()                              # as a process is killed
        b.start()                             # the same port and data
        b.advance(hours=1)                    # time that the test moves

It is the broker of `kbroker start`, on a thread of this process, with a few settings of its own (`SETTINGS`). Whatever
a test writes wrongly is a `UsageError` of one line.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from kbroker.config import BrokerConfig, ConfigError, Given
from kbroker.faults import Faults, ScriptedCore, Seen, UsageError, scripted
from kbroker.ports import Post
from kbroker.runtime.clock import SystemRandom
from kbroker.runtime.descriptors import Shares
from kbroker.runtime.node import Host, Node, NodeStore, StartupError
from kbroker.runtime.switched_disk import SwitchedDisk
from kbroker.security.client import PROTOCOLS, client_security
from kbroker.security.recipes import Recipe
from kbroker.testing._client import Connections
from kbroker.testing._clock import HandClock
from kbroker.testing._disk import DiskFaults
from kbroker.testing._folder import Folder
from kbroker.testing._helpers import Helpers
from kbroker.testing._thread import NodeThread
from kbroker.usage import unknown

if TYPE_CHECKING:
    from kbroker.runtime.secure import Secured

SETTINGS: Mapping[str, str] = {
    "connections.max.idle.ms": "-1",  # a test that moves time by hours would otherwise lose its connections
    "log.segment.delete.delay.ms": "0",
    "offsets.topic.num.partitions": "1",  # fifty folders are fifty times the work of one
    "transaction.state.log.num.partitions": "1",
}
"""Where a broker for tests is not as `kbroker start` makes one; a test may set them otherwise."""

DESCRIPTORS = 1024  # of all that one process may have, which is not ours to raise
HOST = "127.0.0.1"
LAST_PORT = 65535

Result = TypeVar("Result")


def broker(
    *,
    data: str | PathLike[str] | None = None,
    port: int = 0,
    security: str = "plaintext",
    settings: Mapping[str, object] | None = None,
    **more: object,
) -> Broker:
    """A broker that is not started yet; `with` starts it and closes it.

    data: a folder to keep its data in; None: memory, gone with the broker. port: 0 for any free one. security:
    "plaintext", "ssl", "sasl_plaintext" or "sasl_ssl", as `kbroker start --secure` makes it; `clients` says what
    clients are told. settings: of server.properties; `more` are settings, too, with `_` for each dot:
    `broker(num_partitions=3)`. Raises: UsageError for a setting that there is not.
    """
    return Broker(data=data, port=port, security=security, settings={**(settings or {}), **more})


class Home(Protocol):
    """The cluster that a broker is one of."""

    clock: HandClock
    cluster_id: str

    def data_of(self, node_id: int) -> Path:
        """The broker's folder."""

    def connect(self, post: Post) -> NodeStore:
        """The metadata store."""

    def starting(self) -> None:
        """It is about to start."""

    def changed(self) -> None:
        """It has started or ended; returns once the others know."""


class Broker(Helpers):
    """A broker in this process: started, stopped, killed and started again, any number of times.

    node_id: its broker.id. faults: what it is to do wrong, and the history of requests. disk: the same for its disk.
    """

    def __init__(
        self,
        *,
        data: str | PathLike[str] | None = None,
        port: int = 0,
        security: str = "plaintext",
        settings: Mapping[str, object] | None = None,
        home: Home | None = None,
    ) -> None:
        """As `broker`. home: None for a broker that is alone."""
        self._home = home
        self._given_data = data
        if not 0 <= port <= LAST_PORT:
            raise UsageError(f"port={port}: leave `port` out for a free one, or write any up to {LAST_PORT}")
        self._given_port = port
        self._protocol = security.upper()
        if self._protocol not in PROTOCOLS:
            raise UsageError(f"security={security!r}: write one of {', '.join(map(str.lower, PROTOCOLS))}")
        self._secured: Secured | None = None
        self._settings = checked_settings(settings or {})
        self._clock = HandClock() if home is None else home.clock
        self.faults = Faults()
        self.disk = DiskFaults()
        self._folder: Folder | None = None
        self._reserved: socket.socket | None = None
        self._thread: NodeThread | None = None
        self._node: Node | None = None
        self._was_closed = False
        self.node_id = _node_id(self._settings)

    def __repr__(self) -> str:
        state = "running" if self.is_running else "closed" if self._was_closed else "not running"
        return f"<broker {self.node_id}, {state}{f', {self._address}' if self._reserved else ''}>"

    # -- its life

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether it is started, paused or not, and has not ended by itself."""
        return self._thread is not None and self._thread.is_alive

    @property
    def is_paused(self) -> bool:
        """Whether `pause` holds it."""
        return self._thread is not None and self._thread.is_paused

    def start(self) -> Self:
        """Start it, or start it again on the same port and data. Returns: itself, once it serves.

        Raises: UsageError: it runs already, the port is taken, a setting has a bad value.
        """
        if self.is_running:
            raise UsageError(f"{self!r} runs already: call stop() or kill() first")
        self.stop()  # if it has ended by itself, its thread is still to be joined
        self._was_closed = False
        self._reserve()
        if self._folder is None and self._home is None:
            try:
                self._folder = Folder(self._given_data)
            except UsageError:
                self.close()
                raise
        if self._protocol != "PLAINTEXT" and self._secured is None:
            self._secure()
        if self._home is not None:
            self._home.starting()
        thread = NodeThread(self._static(), self._host(), f"broker {self.node_id}")
        try:
            node = self._node = thread.start()
        except (ConfigError, StartupError, OSError) as error:
            self.close()
            raise UsageError(f"the broker cannot start: {'; '.join(str(error).splitlines())}") from None
        except BaseException:
            self.close()
            raise
        self._thread = thread
        scripted = node.core
        assert isinstance(scripted, ScriptedCore)
        scripted.call_soon = lambda job: self._run_later(thread, node, job)
        if self._home is not None:
            self._home.changed()
        return self

    def stop(self) -> None:
        """A clean stop. Its port and data are kept for `start`. Nothing happens if it does not run."""
        self._end(NodeThread.stop)

    def kill(self) -> None:
        """End it as a killed process ends: no goodbye, no flush, no mark of a clean stop."""
        self._end(NodeThread.kill)

    def _end(self, how: Callable[[NodeThread], None]) -> None:
        thread, self._thread = self._thread, None
        self._node = None
        if thread is not None:
            how(thread)
            if self._home is not None:
                self._home.changed()

    def restart(self) -> None:
        """`stop` and `start`."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it for good: its port is given back, and its data is removed if it was in memory. Idempotent."""
        self.stop()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        self._secured = None
        self._was_closed = True

    def pause(self) -> None:
        """Let it hang, as a process stopped by SIGSTOP: connections are open, and no client is answered."""
        self._alive().pause()

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._alive().resume()

    # -- what a test asks of it

    @property
    def bootstrap(self) -> str:
        """`host:port` for bootstrap.servers."""
        if self._reserved is None:
            raise UsageError(self._not_there())
        return self._address

    @property
    def port(self) -> int:
        """Of `bootstrap`."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def data(self) -> Path:
        """The folder that has its logs."""
        if self._home is not None:
            return self._home.data_of(self.node_id)
        if self._folder is None:
            raise UsageError(self._not_there())
        return self._folder.path / "data"

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Let this much time pass at once for the broker: what is due in it has happened when this returns.

        Retention, session timeouts, transaction timeouts, delayed answers; clients go by their own clocks.
        """
        self._clock.advance(ms, seconds, minutes, hours, days)
        self.catch_up()

    def catch_up(self) -> None:
        """Do what is due by now, if it runs."""
        if self._thread is not None and not self._thread.is_paused:
            while not self.call(_has_caught_up):
                pass  # each call lets the loop turn, so that jobs for the disk come back

    def requests(self, api: str | None = None, *, topic: str | None = None, group: str | None = None) -> list[Seen]:
        """What clients have asked, in order: of this API, about this topic or group."""
        return self.faults.requests(api, topic=topic, group=group)

    def reset(self) -> None:
        """Drop all topics, groups, transactions, faults and the history of requests."""
        self.forgive()
        super().reset()
        self.faults.history.clear()

    def _forget_transactional_ids(self) -> bool:
        return not self.is_running or self.call(_forget_transactional_ids)

    def forgive(self) -> None:
        """Take all faults away, of the disk too."""
        self.disk.heal()
        self.faults.clear()

    def put_back(self) -> None:
        """As new: it runs by the machine's time, and is empty."""
        if self.is_paused:
            self.resume()
        self.disk.heal()  # it could not start on one that is broken
        if not self.is_running:
            self.start()
        self.reset()
        if self._home is None and self._clock.is_ahead:
            self.stop()  # or what clients write in the next test would be as old as this one has made it
            self._clock.put_back()
            self.start()

    def report(self) -> str:
        """What it saw, in some lines: topics, last records, groups, faults, the last requests."""
        from kbroker.testing._report import report

        return report(self, [self])

    def call(self, work: Callable[[Node], Result]) -> Result:
        """For what has no name here: run `work` with the node on the broker's own thread, between two events."""
        thread, node = self._alive(), self._node
        assert node is not None
        return thread.call(lambda: work(node))

    # -- within

    def _run_later(self, thread: NodeThread, node: Node, job: Callable[[], None]) -> None:
        """Run what a fault has held back, on the broker's thread, and send what it gave."""

        def run() -> None:
            job()
            node.server.settle()

        if self._thread is thread:
            thread.call(run)

    def _alive(self) -> NodeThread:
        if self._thread is None:
            raise UsageError(self._not_there())
        return self._thread

    def _not_there(self) -> str:
        if self._was_closed:
            return f"broker {self.node_id} was closed: use it inside its `with` block, or call start() again"
        return f"broker {self.node_id} does not run: call start() first, or use `with broker() as b:`"

    @property
    def _address(self) -> str:
        assert self._reserved is not None
        return f"{HOST}:{self._reserved.getsockname()[1]}"

    def _reserve(self) -> None:
        """Bind the port without listening: no other process is given it while the broker is down."""
        if self._reserved is not None:
            return
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            reserved.bind((HOST, self._given_port))
        except OSError as error:
            reserved.close()
            raise UsageError(
                f"port {self._given_port} cannot be used ({error.strerror}): leave `port` out for a free one"
            ) from None
        self._reserved = reserved

    def _secure(self) -> None:
        """Make certificates and an admin. Raises: UsageError."""
        from kbroker.runtime.secure import put_admin, secure  # here: it takes a third of a second to load

        try:
            assert self._folder is not None
            listener = f"{self._protocol}://{self._address}"
            self._secured = secure(str(self._folder.path), protocol=self._protocol, listeners=listener)
            if self._secured.password:
                self.data.mkdir(parents=True, exist_ok=True)
                put_admin(str(self.data), self._secured)
            self._secured.write_recipe(self._address)
        except BaseException:
            self.close()
            raise

    @property
    def clients(self) -> Recipe:
        """What clients are told, by kind: `KafkaProducer(**b.clients.kafka_python())`. Of a secured broker as admin."""
        return super().clients if self._secured is None else self._secured.recipe(self.bootstrap)

    def _connections(self) -> Connections:
        if self._secured is None:
            return super()._connections()
        return Connections(self._asked, client_security(self.clients.java()))

    def _static(self) -> dict[str, Given]:
        secured = {} if self._secured is None else self._secured.settings
        own = {**secured, "listeners": f"{self._protocol}://{self._address}", "log.dirs": str(self.data)}
        return {key: Given(text, "the test") for key, text in {**SETTINGS, **own, **self._settings}.items()}

    def _host(self) -> Host:
        host = Host(
            SwitchedDisk(self.disk),
            self._clock,
            SystemRandom(),
            Shares.of(DESCRIPTORS),
            make_core=scripted(self.faults),
        )
        home = self._home
        if home is None:
            return host
        return host._replace(open_store=lambda path, post, later, run: home.connect(post), cluster_id=home.cluster_id)


def checked_settings(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as text by their dotted names. Raises: UsageError for a name that there is not."""
    checked = {}
    for given, value in settings.items():
        name = given.replace("_", ".")
        if name not in BrokerConfig.KEYS:
            raise unknown("setting", name, BrokerConfig.KEYS)
        if name in ("listeners", "log.dirs", "log.dir"):
            raise UsageError(f"{name} is chosen for you: write `port=` or `data=` instead")
        checked[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def _node_id(settings: Mapping[str, str]) -> int:
    key = "broker.id" if "broker.id" in settings else "node.id"
    try:
        return int(settings.get(key, "1"))
    except ValueError:
        raise UsageError(f"{key}={settings[key]}: allowed: a whole number") from None


def _has_caught_up(node: Node) -> bool:
    """Do what is due; whether nothing is, and no work for the disk is under way."""
    node.server.wake()
    return node.server.jobs_done and node.core.effects.wake_ms > node.broker.clock.now_ms()


def _forget_transactional_ids(node: Node) -> bool:
    """Write tombstones for all that are coordinated here; whether none is left. One in a transaction is."""
    runtime, now_ms = node.broker.transaction_runtime, node.broker.clock.now_ms()
    for shard in runtime.shards.values():
        if not shard.loading:
            operation = shard.operation(now_ms)
            shard.remove_expired_ids(operation, unused_for_ms=0)
            runtime.carry_out(operation.effects, now_ms)
    node.server.settle()
    return not any(shard.loading or shard.transactions for shard in runtime.shards.values())
