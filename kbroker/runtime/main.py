"""The composition root: one broker process, from its settings to its last checkpoint.

Called by `kbroker start`. It opens the log directories and the metadata store, binds the listeners, builds the parts
and the core, and runs the loop until a signal. It makes every choice of implementation (real disk, real clock, SQLite)
and no other: what a broker does is the core's business.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial

from kbroker.api.broker import Broker
from kbroker.api.plane import ControlPlane
from kbroker.config import ONE_BROKER, BrokerConfig, BrokerLayers, Given, resolve_broker, resolve_listeners
from kbroker.core import Core
from kbroker.log import LogConfig
from kbroker.log.background import ManagerConfig
from kbroker.log.checkpoints import format_uuid
from kbroker.log.directory import DirectoryRefusedError, LoadProgress, stored_identity
from kbroker.log.manager import LogManager, open_logs
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import Endpoint
from kbroker.replica import ReplicaManager
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.descriptors import Shares, raise_limit
from kbroker.runtime.disk_pool import DiskPool
from kbroker.runtime.embedded import EmbeddedStore
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.loop import Loop
from kbroker.runtime.server import Limits, Server, listening_socket

log = logging.getLogger("kbroker")

STORE_FILE = "metadata.db"
STORE_RETRY_S = 1.0  # after a failure to write it
SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
FIRST_NODE_ID = 1
CLUSTER_ID_BYTES = 16


class StartupError(Exception):
    """The broker cannot start; the text is the one line that says why."""


class BrokerProcess:
    """A broker on this machine.

    node_id, cluster_id, ports (by listener), endpoints (as advertised): known once `run` has called `started`.
    """

    def __init__(self, static: dict[str, Given]) -> None:
        """static: everything given before the start (`config.static_values`). Raises: ConfigError, StartupError."""
        self.layers = BrokerLayers(static=static, alone=ONE_BROKER)
        self.config: BrokerConfig = resolve_broker(self.layers)
        self.listeners = resolve_listeners(self.config)
        self.paths = [_full(path) for path in self.config.log_dirs or [self.config.log_dir] if path]
        self.ports: dict[str, int] = {}
        self.endpoints: tuple[Endpoint, ...] = ()
        self._clock = SystemClock()
        self._random = SystemRandom()
        self._disk = SystemDisk()
        self._shares = Shares.of(raise_limit())
        self._stopping = False
        self._choose_identity()

    def run(self, started: Callable[[BrokerProcess], None]) -> int:
        """Start, call `started` once clients are served, serve until SIGTERM or SIGINT, stop cleanly.

        Returns: the exit code. Raises: StartupError.
        """
        loop = Loop()
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.on_signal(number, self._stop)
            return self._run(loop, started)
        finally:
            loop.close()

    def _run(self, loop: Loop, started: Callable[[BrokerProcess], None]) -> int:
        configs = Configs(self.layers)
        logs = self._open_logs(configs)
        pool = DiskPool(loop)
        sockets: dict[str, socket.socket] = {}
        try:
            sockets = self._bind()
            self._build(loop, pool, configs, logs)
            self._serve(loop, sockets, started)
        finally:
            for listening in sockets.values():
                listening.close()
            pool.close()
            logs.close(run_all=side_by_side)
            for notice in logs.notices:
                log.warning("%s", notice)
        log.info("broker %d has stopped", self.node_id)
        return 1 if self.core.broker.plane.fatal else 0

    def _stop(self) -> None:
        self._stopping = True

    def _serve(self, loop: Loop, sockets: dict[str, socket.socket], started: Callable[[BrokerProcess], None]) -> None:
        plane = self.core.broker.plane
        server = self.server
        loop.run_until(lambda: plane.ready or plane.fatal or self._stopping)
        if plane.ready:
            for name, listening in sockets.items():
                server.accept_from(name, listening, control=name == self.listeners.control_plane)
            gc.freeze()  # what is here now stays: later collections need not look at it. Collecting what does not, a
            # few hundred objects, would cost a twentieth of the start
            started(self)
            loop.run_until(lambda: self._stopping or plane.fatal)
        if plane.fatal:
            log.error("%s", plane.fatal)
        server.close()
        loop.run_until(lambda: server.jobs_done)  # a log is not closed while one of its flushes is under way
        plane.close()

    # -- coming up

    def _choose_identity(self) -> None:
        """broker.id if it is given, else what the directories were made with, else 1; their cluster, or a new one."""
        try:
            known = stored_identity(self._disk, self.paths)
        except DirectoryRefusedError as error:
            raise StartupError(str(error)) from None
        given = max(self.config.broker_id, self.config.node_id)
        self.node_id = given if given >= 0 else FIRST_NODE_ID if known.node_id is None else known.node_id
        self.cluster_id = known.cluster_id or format_uuid(self._random.token(CLUSTER_ID_BYTES))

    def _open_logs(self, configs: Configs) -> LogManager:
        """Take the log directories and load what is in them, the directories side by side."""
        config = self.config
        try:
            return open_logs(
                self._disk,
                self._random,
                self.paths,
                config_of=lambda topic: LogConfig.of(configs.topic_config(topic), configs.broker),
                cluster_id=self.cluster_id,
                node_id=self.node_id,
                config=ManagerConfig.of(config)._replace(open_files=self._shares.log_files),
                now_ms=self._clock.now_ms(),
                wall_ms=self._clock.wall_ms(),
                run_all=side_by_side,
                progress=_show_progress,
            )
        except DirectoryRefusedError as error:
            raise StartupError(str(error)) from None

    def _bind(self) -> dict[str, socket.socket]:
        """Take the ports. Connections made from now on wait until the broker is ready. Raises: StartupError."""
        sockets: dict[str, socket.socket] = {}
        for listener in self.listeners.bound:
            try:
                sockets[listener.name] = listening_socket(
                    listener.host,
                    listener.port,
                    backlog=self.config.socket_listen_backlog_size,
                    receive_buffer_bytes=self.config.socket_receive_buffer_bytes,
                )
            except OSError as error:
                for listening in sockets.values():
                    listening.close()
                reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
                reason = reason.partition(" (while ")[0]  # it names the address, as we have
                raise StartupError(f"cannot listen on {listener}: {reason}") from None
        self.ports = {name: listening.getsockname()[1] for name, listening in sockets.items()}
        self.endpoints = tuple(
            Endpoint(
                listener.name,
                SECURITY_PROTOCOLS[listener.protocol],
                listener.host or socket.gethostname(),
                listener.port or self.ports[listener.name],
            )
            for listener in self.listeners.advertised
        )
        return sockets

    def _build(self, loop: Loop, pool: DiskPool, configs: Configs, logs: LogManager) -> None:
        """Put the parts together."""

        def deliver(event: object) -> None:
            self.core.handle(event, self._clock.now_ms())
            self.server.settle()
            plane = self.core.broker.plane
            if plane.config_changed:
                self.server.limit(_limits(plane.configs.broker, self._shares))

        def post(event: object) -> None:
            loop.call_soon(partial(deliver, event))  # never at once: whoever caused it is in the middle of a step

        replicas = ReplicaManager(self.node_id, logs, self._clock, configs)
        try:
            store = EmbeddedStore(
                f"{self.paths[0]}/{STORE_FILE}", post, lambda again: loop.call_later(STORE_RETRY_S, again)
            )
        except OSError as error:
            raise StartupError(str(error)) from None
        plane = ControlPlane(
            self.node_id, configs, replicas, store, self._clock, self._random, self.endpoints, self.cluster_id
        )
        broker = Broker(plane, logs, replicas, self._clock, self._random, fetch_regions=self._shares.fetch_regions)
        self.core = Core(broker, self._clock.now_ms())
        self.server = Server(loop, self.core, self._clock, pool, _limits(self.config, self._shares))


def _full(path: str) -> str:
    """A log directory's whole path. Raises: StartupError for what no file system can have."""
    try:
        if b"\0" not in os.fsencode(path):
            return os.path.abspath(path)
    except UnicodeEncodeError:  # the locale's encoding has no such character
        pass
    raise StartupError(f"log.dirs: {path!r} is no name for a directory here")


def side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks on a thread each, and wait for all; one task needs no thread."""
    if len(tasks) == 1:
        tasks[0]()
        return
    from concurrent.futures import ThreadPoolExecutor  # most brokers have one directory

    with ThreadPoolExecutor(max(len(tasks), 1), thread_name_prefix="kbroker-load") as pool:
        list(pool.map(lambda task: task(), tasks))


def _show_progress(progress: LoadProgress) -> None:
    """A line for each log that is read again after an unclean stop."""
    if progress.recovering is not None:
        partition, segments = progress.recovering
        log.info(
            "%s: recovering %s-%d, %s (%d of %d partitions loaded)",
            progress.directory,
            partition.topic,
            partition.index,
            segments,
            progress.partitions_done,
            progress.partitions,
        )


def _limits(config: BrokerConfig, shares: Shares) -> Limits:
    return Limits(
        max_frame_bytes=config.socket_request_max_bytes,
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=_counts_by_address(config.max_connections_per_ip_overrides),
        idle_ms=config.connections_max_idle_ms,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        most_sockets=shares.sockets,
    )


def _counts_by_address(text: str) -> dict[str, int]:
    """`address:count, ...`, which the settings have checked; an address may have colons itself."""
    pairs = (item.strip().rpartition(":") for item in text.split(",") if item.strip())
    return {address: int(count) for address, _, count in pairs}
