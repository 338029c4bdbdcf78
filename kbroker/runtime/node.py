"""One broker on a given loop: opened, served, stopped.

Made by `main.py` for `kbroker start`, and by `kbroker.testing` once for each broker of a test. It opens the log
directories and the metadata store, binds the listeners and builds the parts and the core. It takes no signals, sets no
limits of the process and leaves the garbage collector alone: those belong to who owns the process, and several nodes
may live in one, each on a loop and a thread of its own.

    node = Node(static, loop, host)
    node.open()                                             # what is wrong with settings, folders, ports shows here
    loop.run_until(lambda: node.ready or node.fatal)
    node.serve()                                            # clients are let in
    loop.run_until(...)
    node.stop()                                             # or node.kill()
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kbroker.broker.address_authorizer import AddressAuthorizer
from kbroker.broker.assembly import Surroundings, assemble, load_logs
from kbroker.broker.broker import Broker
from kbroker.broker.control_plane import Quorum
from kbroker.broker.facts import BrokerConfigChanged, EndpointsChanged, FactQueue, JobDone, Leave, tell_of_end
from kbroker.broker.jobs import Errand, Job, Owner
from kbroker.config import (
    ONE_BROKER,
    BrokerConfig,
    BrokerLayers,
    ConfigError,
    Given,
    Listeners,
    listener_limits,
    listeners_after,
    resolve_broker,
    resolve_listeners,
)
from kbroker.config.broker import SECURITY_PROTOCOLS
from kbroker.config.listeners import Listener
from kbroker.config.settings import INT_MAX
from kbroker.core import Core
from kbroker.log.checkpoints import format_uuid
from kbroker.log.cleaner.cleaner import BeginCompaction
from kbroker.log.directory import DirectoryRefusedError, DirectoryUnusableError
from kbroker.log.errors import CorruptFileError, fault_of
from kbroker.log.facts import Notice
from kbroker.log.log_loader import stored_identity
from kbroker.log.manager import LogManager
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import TOPICS, Endpoint
from kbroker.ports import Clock, Disk, MetadataStore, Post, Random, SessionStarted
from kbroker.runtime.descriptors import Shares
from kbroker.runtime.disk_pool import THREADS, DiskPool
from kbroker.runtime.embedded import EmbeddedStore, Run
from kbroker.runtime.loading import Loading, Show
from kbroker.runtime.loop import Loop
from kbroker.runtime.server import Limits, ListenerLimits, Server, bound_socket
from kbroker.runtime.store_file import StoreMissingError, find_store
from kbroker.runtime.tree_file import DamagedError
from kbroker.timing import Scheduler
from kbroker.usage import UsageError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.config.quorum import QuorumSettings
    from kbroker.runtime.cluster_id_lookup import ClusterIdLookup
    from kbroker.runtime.monitoring import Monitoring
    from kbroker.runtime.peers import SocketPeers
    from kbroker.runtime.tls import Tls

log = logging.getLogger("kbroker")

MOST_NAMED = 5  # partitions in one line
DAY_S = 24 * 3600.0
STORE_RETRY_S = 1.0  # after a failure to write it
FIRST_NODE_ID = 1
CLUSTER_ID_BYTES = INCARNATION_BYTES = 16
NO_EPOCH = -1
FIRST_OF_SASL = SECURITY_PROTOCOLS.index("SASL_PLAINTEXT")  # they follow those without a login, in the same order
MOST_ANSWER_FRAMES = 2  # an answer of another broker holds what a request brought it, and something around it


class StartupError(Exception):
    """The broker cannot start; the text is the one line that says why."""


class AddressInUseError(StartupError):
    """An address to listen on is another process's. key: the setting that says it. host, port: its value, if it is one
    address; port is None where it names several.
    """

    def __init__(self, text: str, key: str, host: str, port: int | None) -> None:
        super().__init__(text)
        self.key, self.host, self.port = key, host, port


def cannot_listen(where: object, error: OSError | OverflowError, key: str, host: str, port: int | None) -> StartupError:
    """Why an address cannot be taken. where: as it is shown. key, host, port: as AddressInUseError has them."""
    code = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(code) if code is not None and code > 0 else getattr(error, "strerror", None) or str(error)
    line = f"cannot listen on {where}: {reason}"
    return AddressInUseError(line, key, host, port) if code == errno.EADDRINUSE else StartupError(line)


class NoDirectoryError(StartupError):
    """A log directory cannot be used just now; another one could."""


class NodeStore(MetadataStore, Protocol):
    """A metadata store that can be left behind as by a process that was killed."""

    def abandon(self) -> None:
        """Let go of it without ending the session; nothing is posted afterwards."""
        ...


Later = Callable[[Callable[[], None]], object]
MakeCore = Callable[[Broker, int], Core]


def embedded_store(path: str, post: Post, later: Later, run: Run) -> NodeStore:
    """The store of a broker that is alone. path: of its file. Raises: OSError."""
    return EmbeddedStore(path, post, later, run)


class Host(NamedTuple):
    """What a node is given of the machine it runs on.

    shares: descriptors it may have. open_store: given the embedded store's path, where to post, what calls back after a
    while, and a thread to wait on. make_core: of the parts and the time in ms. show_loading: how a long start is shown,
    None for lines of the log. begin_compaction: None for compactions in this process.
    """

    disk: Disk
    clock: Clock
    random: Random
    shares: Shares
    open_store: Callable[[str, Post, Later, Run], NodeStore] = embedded_store
    make_core: MakeCore = Core
    cluster_id: str | None = None  # of a cluster that was there before the node
    show_loading: Show | None = None
    begin_compaction: BeginCompaction | None = None


class Node:
    """A broker of this process.

    config, listeners, paths (of the log directories), node_id, cluster_id: from the start. ports (by listener),
    endpoints (as advertised), core, and broker, whose parts were put together for it: once it is open.
    """

    def __init__(self, static: dict[str, Given], loop: Loop, host: Host) -> None:
        """static: everything given before the start (`config.static_values`). Raises: ConfigError, StartupError."""
        connect = static.get("zookeeper.connect")
        is_on_zookeeper = connect is not None and bool(connect.text.strip())
        self._is_in_cluster = is_on_zookeeper or _is_member(static)
        self.layers = BrokerLayers(static=static, alone={} if self._is_in_cluster else ONE_BROKER)
        self.config: BrokerConfig = resolve_broker(self.layers)
        self._quorum = _quorum_settings(self.config)
        self.listeners = resolve_listeners(self.config)
        self._limits_of_listeners = limits_of_listeners(self.layers, self.listeners)
        self._sasl = [each.name for each in self.listeners.bound if each.protocol.startswith("SASL_")]
        quorum = self._quorum
        self._of_controllers = "" if quorum is None else SECURITY_PROTOCOLS[quorum.security_protocol]
        self._logs_in = bool(self._sasl) or self._of_controllers.startswith("SASL_")
        self._check_logins(self.layers)
        self._check_assignors()
        self.paths = [_full(path) for path in self.config.log_dirs or [self.config.log_dir] if path]
        self.ports: dict[str, int] = {}
        self.endpoints: tuple[Endpoint, ...] = ()
        self._loop = loop
        self._host = host
        self._world = Surroundings(host.disk, host.clock, host.random, Scheduler(host.clock.now_ms()))
        self._sockets: dict[str, socket.socket] = {}
        self.metrics_port = 0
        self._monitored: socket.socket | None = None
        self._monitoring: Monitoring | None = None
        self._tls = self._load_tls()
        self._renew: Callable[[], Sequence[str]] = tuple
        self._next_day = loop.timer(self.look_at_certificates)
        self._is_open = self._is_ending = self._is_loaded = False
        self._receive: Callable[[object], None] = _ignore  # what the store and the peers post
        self._peers: SocketPeers | None = None  # made with the first request to another broker
        self._unreachable: Collection[int] = ()
        self._choose_identity()

    def _load_tls(self) -> Tls | None:
        """Raises: ConfigError."""
        dialled = [self._quorum.listener] if self._quorum and self._of_controllers.endswith("SSL") else []
        if not dialled and not any(each.protocol.endswith("SSL") for each in self.listeners.bound):
            return None
        from kbroker.runtime.tls import Tls  # who speaks plain text loads no OpenSSL

        return Tls(self.layers, self.listeners, in_cluster=self._is_in_cluster, dialled=dialled)

    def _faults(self, layers: BrokerLayers) -> list[str]:
        """Why changed settings cannot be used for TLS, or for logins, a line each."""
        lines = [] if self._tls is None else self._tls.faults(layers)
        try:
            self._check_logins(layers)
        except ConfigError as error:
            lines += error.lines
        return lines

    def _check_logins(self, layers: BrokerLayers) -> None:
        """Raises: ConfigError for a listener whose clients, or other brokers, cannot log in; or this broker at the
        controllers'.
        """
        if self._sasl:
            from kbroker.config.sasl import peer_login, sasl_config  # most brokers have no such listener

            enabled = {name: sasl_config(layers, name).mechanisms for name in self._sasl}
            of_brokers = {self.listeners.inter_broker, self.listeners.control_plane or ""} & enabled.keys()
            for name in of_brokers if self._is_in_cluster else ():
                mechanism = peer_login(layers, name).mechanism
                if mechanism not in enabled[name]:
                    allowed = f"one of sasl.enabled.mechanisms of listener {name} ({', '.join(enabled[name])})"
                    raise ConfigError([f"sasl.mechanism.inter.broker.protocol={mechanism}: allowed: {allowed}"])
        if self._quorum is not None and self._of_controllers.startswith("SASL_"):
            from kbroker.config.sasl import peer_login

            peer_login(layers, self._quorum.listener)

    def _check_assignors(self) -> None:
        """Raises: ConfigError for an assignor of consumer groups that is not there, or cannot be used."""
        if "group.consumer.assignors" in self.layers.static:
            from kbroker.groups.assignors import load_assignors  # a start with the default needs none of them yet

            try:
                load_assignors(self.config.group_consumer_assignors)
            except ValueError as error:
                raise ConfigError([str(error)]) from None

    def _choose_identity(self) -> None:
        """broker.id if it is given, else what the directories were made with, else 1; their cluster, or a new one.

        Of a member of a quorum's cluster all is said by its settings and its formatted directories.
        """
        if self._quorum is not None:
            self._take_formatted(self._quorum)
            return
        try:
            known = stored_identity(self._host.disk, self.paths)
        except DirectoryRefusedError as error:
            raise StartupError(str(error)) from None
        given = max(self.config.broker_id, self.config.node_id)
        self._has_id = given >= 0 or known.node_id is not None
        self.node_id = given if given >= 0 else FIRST_NODE_ID if known.node_id is None else known.node_id
        self._stored_cluster_id = known.cluster_id
        own = known.cluster_id or self._host.cluster_id or self.config.cluster_id
        self.cluster_id = own or format_uuid(self._host.random.token(CLUSTER_ID_BYTES))

    def _take_formatted(self, quorum: QuorumSettings) -> None:
        """Raises: StartupError."""
        from kbroker.log.formatting import previous_broker_epoch, take_formatted  # most brokers are in no such cluster

        disk, random = self._host.disk, self._host.random
        self.node_id, self._has_id = quorum.node_id, True
        try:
            found = take_formatted(disk, random, self.paths, quorum.node_id, _full(quorum.metadata_log_dir))
        except DirectoryRefusedError as error:
            raise StartupError(str(error)) from None
        self._previous_epoch = previous_broker_epoch(disk, self.paths)
        self.cluster_id, self._directory_ids = found.cluster_id, found.directory_ids

    # -- coming up

    def open(self, given_up: Callable[[], object] = lambda: False) -> bool:
        """Take the ports, find the cluster, load the logs, begin to join. Not from within a callback of the loop.

        given_up: asked while an ensemble is waited for. Returns: whether it is open; else it was given up. Raises:
        StartupError. Then, too, nothing is held.
        """
        self._store_path = self._find_store()
        try:
            self._bind()  # first: where a port is taken nothing has been made or asked yet
            is_open = self._open(given_up)
        except BaseException:
            self._close_sockets()
            raise
        if not is_open:
            self._close_sockets()
        return is_open

    def _open(self, given_up: Callable[[], object]) -> bool:
        configs = Configs(self.layers)
        if self._tls is not None or self._logs_in:
            configs.verify = self._faults
        introduction = self._meet_ensemble(given_up) if self.config.zookeeper_connect else None
        try:
            if introduction is not None and not introduction.is_over:
                return False
            if self.config.cluster_id not in (None, self.cluster_id):
                log.warning("cluster.id=%s: has no effect: this is cluster %s", self.config.cluster_id, self.cluster_id)
            self._load(configs)
        finally:
            if introduction is not None and not self._is_loaded:
                self._store.close()
        if introduction is not None and introduction.session:
            self._receive(SessionStarted(introduction.session))
        elif self._quorum is not None:
            from kbroker.broker.quorum_plane import Join

            self._receive(Join())
        return True

    def _load(self, configs: Configs) -> None:
        facts = self._facts = FactQueue()
        self._logs = self._load_logs(facts, configs)
        self._pool = DiskPool(self._loop, self._disk_threads(self.config))
        self._store_pool = DiskPool(self._loop, 1)  # its own: a slow log directory takes all of the other
        self._name_pool = DiskPool(self._loop)  # its own: where no name server answers, each look-up takes long
        try:
            self._listen()
            self._build(facts, configs)
        except BaseException:
            self._close_logs()
            raise
        self._is_loaded = True

    def _disk_threads(self, config: BrokerConfig) -> int:
        """A thread that waits for a compaction beside the broker is not one that fsyncs have to wait for."""
        return THREADS + (config.log_cleaner_threads if self._host.begin_compaction else 0)

    def _meet_ensemble(self, given_up: Callable[[], object]) -> ClusterIdLookup:
        """Wait until an ensemble has said which cluster this is. Raises: StartupError if it is another one."""
        from kbroker.runtime.cluster_id_lookup import ClusterIdLookup
        from kbroker.runtime.zookeeper import ZooKeeperStore  # kazoo costs a lone broker's start a tenth
        from kbroker.runtime.zookeeper_security import security_of

        config = self.config
        assert config.zookeeper_connect is not None
        if not self._has_id and not config.broker_id_generation_enable:
            raise StartupError("broker.id is not set, and broker.id.generation.enable=false")
        try:
            self._store: NodeStore = ZooKeeperStore(
                config.zookeeper_connect,
                self._post,
                session_timeout_ms=config.zookeeper_session_timeout_ms,
                connection_timeout_ms=config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms,
                max_in_flight=config.zookeeper_max_in_flight_requests,
                security=security_of(config),
            )
        except ValueError as error:
            raise StartupError(str(error)) from None
        above = None if self._has_id else config.reserved_broker_max_id
        introduction = ClusterIdLookup(self._store, self._stored_cluster_id, self.cluster_id, above=above)
        self._receive = introduction.handle
        self._loop.run_until(lambda: introduction.is_over or given_up())
        if introduction.fault:
            self._store.close()
            raise StartupError(introduction.fault)
        self.cluster_id = introduction.cluster_id or self.cluster_id
        self.node_id = self.node_id if self._has_id else introduction.broker_id
        return introduction

    def _post(self, event: object) -> None:
        # Never at once: its cause is in the middle of a step. Most stores call from other threads.
        self._loop.call_from_thread(lambda: self._receive(event))

    @property
    def ready(self) -> bool:
        """Whether it is registered in its cluster, and may serve."""
        return self.core.effects.ready

    @property
    def fatal(self) -> str:
        """Why it cannot go on, or empty."""
        return self.core.effects.fatal

    @property
    def serves(self) -> bool:
        """Whether clients are let in."""
        return self._is_open

    def serve(self) -> None:
        """Let clients in. Happens by itself once the controller, if it is another broker, may come."""
        if self._is_open or self._is_ending:
            return
        self._is_open = True
        if self._tls is not None:
            self._next_day.set(DAY_S)
        for listener in self.listeners.bound:
            name, tls = listener.name, self._tls if listener.protocol.endswith("SSL") else None
            self.server.accept_from(
                name,
                self._sockets[name],
                control=name == self.listeners.control_plane,
                transport=partial(tls.accept, name) if tls else None,
                security_protocol=listener.protocol,
            )

    def reload_tls(self) -> None:
        """Read certificates again that files may have others of now; nothing happens where there is no TLS."""
        if self._tls is not None:
            self._tls.reload(self.broker.plane.configs.layers)

    def renew_by(self, renew: Callable[[], Sequence[str]]) -> None:
        """What makes certificates again that near their end, asked once a day. It returns what was made, in words."""
        self._renew = renew

    def look_at_certificates(self) -> None:
        """Once a day: have those made again that end soon, if they are ours, and say which do all the same."""
        assert self._tls is not None
        self._next_day.set(DAY_S)
        try:
            made = self._renew()
        except (OSError, UsageError) as error:
            log.error("certificates cannot be made again: %s", error)
        else:
            if made:
                log.info("near its end, and made again: %s", ", ".join(made))
                self.reload_tls()
        self._tls.warn_of_ends()

    @property
    def tls_by(self) -> str:
        """What enciphers, for people; empty where no listener speaks TLS."""
        if self._tls is None:
            return ""
        return f"{self._tls.library}{' and the kernel' if self._tls.by_kernel else ''}"

    @property
    def speaks_tls(self) -> bool:
        """Whether a listener does."""
        return self._tls is not None

    def _warn_of_unclaimed(self, topics: Collection[str]) -> None:
        """A line for each log directory that holds partitions of no topic that there is."""
        for directory, logs in self._logs.by_directory():
            found = sorted(str(each) for each in logs if each.topic not in topics)
            if found:
                shown = ", ".join(found[:MOST_NAMED]) + (", ..." if len(found) > MOST_NAMED else "")
                place = f"{directory.path}: partitions of no topic that there is, left alone ({len(found)})"
                log.warning("%s: %s", place, shown)

    def leave(self) -> None:
        """Begin to hand leaders over; clients are served meanwhile. Not from within a callback of the loop."""
        self._receive(Leave())

    @property
    def has_left(self) -> bool:
        """Whether nothing more can be handed over."""
        return self.core.effects.has_left or bool(self.fatal)

    def stop(self) -> None:
        """Close all connections, leave the cluster, make everything durable. Not from within a callback of the loop."""
        try:
            self._hang_up()
            self._loop.run_until(lambda: self.server.jobs_done)  # no log is closed while it is being flushed
            self._end_membership(at_once=False)
        finally:
            self._close_sockets()
            self._pool.close()
            self._store_pool.close()
            try:
                self._close_logs(self.broker.plane.broker_epoch if self._quorum is not None else NO_EPOCH)
            finally:
                self._name_pool.close()  # last: where no name server answers, this waits for half a minute

    def _hang_up(self) -> None:
        self._is_ending = True
        self._next_day.cancel()
        if self._peers is not None:
            self._peers.close()
        self.server.close()

    def cut_from(self, broker_ids: Collection[int]) -> None:
        """Reach none of these brokers from now on; [] ends it. For tests."""
        self._unreachable = broker_ids
        if self._peers is not None:
            self._peers.cut(broker_ids)

    def kill(self) -> None:
        """End as a process does that is killed: connections break, nothing more is written, no session is ended.

        What was written is in the files, as the operating system would have it.
        """
        self._hang_up()
        self._close_sockets()
        self._pool.close()
        self._store_pool.close()
        self._name_pool.close()
        self._end_membership(at_once=True)
        self._logs.abandon()

    def _end_membership(self, *, at_once: bool) -> None:
        """Leave the cluster; at_once: as a process does that is killed."""
        if self._quorum is not None:
            observer = self.broker.quorum_plane.observer
            observer.abandon() if at_once else observer.close()
        elif at_once:
            self._store.abandon()
        else:
            self._store.close()

    def _close_sockets(self) -> None:
        if self._monitoring is not None:
            self._monitoring.close()
        elif self._monitored is not None:
            self._monitored.close()
        for listening in self._sockets.values():
            listening.close()

    def _close_logs(self, broker_epoch: int = NO_EPOCH) -> None:
        """broker_epoch: of a life in a quorum's cluster, which the next one tells controllers (KIP-966)."""
        self._logs.close(broker_epoch=broker_epoch, run_all=side_by_side)
        for fact in self._facts:
            if isinstance(fact, Notice):
                log.warning("%s", fact.text)

    def _load_logs(self, facts: FactQueue, configs: Configs) -> LogManager:
        """Take the log directories and load what is in them, the directories side by side."""
        try:
            return load_logs(
                facts,
                configs,
                self.paths,
                self._world,
                broker_id=self.node_id,
                cluster_id=self.cluster_id,
                open_files=self._host.shares.log_files,
                run_all=side_by_side,
                progress=Loading(self._host.show_loading),
                begin_compaction=self._host.begin_compaction,
            )
        except DirectoryUnusableError as error:
            raise NoDirectoryError(str(error)) from None
        except DirectoryRefusedError as error:
            raise StartupError(str(error)) from None

    def _find_store(self) -> str:
        """Where its own metadata is. Raises: StartupError if it is not where it should be."""
        if self._host.open_store is not embedded_store or self._is_in_cluster:
            return ""  # the metadata is elsewhere
        try:
            return find_store(self._host.disk, self.paths)
        except StoreMissingError as error:
            raise StartupError(str(error)) from None

    def _bind(self) -> None:
        """Take the ports; no client can connect yet. Raises: StartupError."""
        for listener in self.listeners.bound:
            try:
                self._sockets[listener.name] = bound_socket(
                    listener.host, listener.port, receive_buffer_bytes=self.config.socket_receive_buffer_bytes
                )
            except OSError as error:
                raise self._cannot_listen(listener, error) from None
        self.ports = {name: listening.getsockname()[1] for name, listening in self._sockets.items()}
        self._bind_monitoring()
        self.endpoints = self._told(self.listeners)

    def _told(self, listeners: Listeners) -> tuple[Endpoint, ...]:
        """The addresses that clients are told, with the ports that were taken."""
        return tuple(
            Endpoint(
                listener.name,
                SECURITY_PROTOCOLS.index(listener.protocol),
                listener.host or socket.gethostname(),
                listener.port or self.ports[listener.name],
            )
            for listener in listeners.advertised
        )

    def _listen(self) -> None:
        """Connections made from now on wait until the broker is ready. Raises: StartupError."""
        for listener in self.listeners.bound:
            try:
                self._sockets[listener.name].listen(self.config.socket_listen_backlog_size)
            except OSError as error:  # another process has come to listen since
                raise self._cannot_listen(listener, error) from None
        if self._monitored is not None:
            from kbroker.runtime.monitoring import MOST_VISITORS  # most brokers have no such listener

            self._monitored.listen(MOST_VISITORS)

    def _cannot_listen(self, listener: Listener, error: OSError) -> StartupError:
        port = listener.port if len(self.listeners.bound) == 1 else None
        return cannot_listen(listener, error, "listeners", listener.host, port)

    def _advertise(self, config: BrokerConfig) -> None:
        """Settings have changed: tell other addresses, if there are others now."""
        try:
            self.endpoints = self._told(listeners_after(self.config, config))
        except ConfigError as error:  # it was legal when it was set; listeners may have changed since
            log.error("clients are told the same addresses as before: %s", "; ".join(error.lines))
        self.broker.tell(EndpointsChanged(self.endpoints))

    def _bind_monitoring(self) -> None:
        """Take the port of /metrics and /health, if there is to be one. Raises: StartupError."""
        address = self.config.kbroker_metrics_listener
        if address:
            host, _, port = address.rpartition(":")
            try:
                self._monitored = bound_socket(host.strip("[]"), int(port), receive_buffer_bytes=-1)
            except (OSError, OverflowError) as error:
                key = "kbroker.metrics.listener"
                raise cannot_listen(f"{key}={address}", error, key, host, int(port)) from None
            self.metrics_port = self._monitored.getsockname()[1]

    def _build(self, facts: FactQueue, configs: Configs) -> None:
        """Put the parts together."""
        host, loop = self._host, self._loop
        clock = host.clock

        def deliver(event: object) -> None:
            effects = self.core.step(event, clock.now_ms())
            self.server.settle()
            if not self._is_open and effects.is_open:
                self.serve()

        source: MetadataStore | Quorum
        if self._quorum is not None:
            source = self._open_quorum(self._quorum)
        else:
            if not self._is_in_cluster:
                self._store = self._open_store()
            source = self._store

        def make_peers() -> SocketPeers:
            from kbroker.runtime.peers import SocketPeers

            name, most_bytes = f"broker-{self.node_id}", MOST_ANSWER_FRAMES * self.config.socket_request_max_bytes
            peers = self._peers = SocketPeers(name, loop, clock, self._name_pool, deliver, most_bytes)
            if self._tls is not None:
                peers.transports[SECURITY_PROTOCOLS.index("SSL")] = self._tls.connect
            if self._logs_in:
                from kbroker.runtime.peer_logins import PeerLogins

                peers.logins = PeerLogins(lambda: configs.layers, host.random)
                peers.transports |= {each + FIRST_OF_SASL: make for each, make in tuple(peers.transports.items())}
            peers.cut(self._unreachable)
            return peers

        broker = self.broker = assemble(
            facts,
            configs,
            self._logs,
            self._world,
            source,
            make_peers,
            broker_id=self.node_id,
            cluster_id=self.cluster_id,
            endpoints=self.endpoints,
            fetch_regions=host.shares.fetch_regions,
        )

        def look_up(job: Job, owner: Owner) -> None:
            def tell(fact: JobDone) -> None:
                if not self._is_ending:
                    deliver(fact)

            self._name_pool.submit(job.run, lambda error: tell_of_end(Errand(job, owner), error, tell))

        listener = broker.auth_helper.control_listener = self.listeners.control_plane or ""
        if broker.auth_helper.authorizer is None:
            alone = isinstance(source, EmbeddedStore)
            broker.auth_helper.authorizer = AddressAuthorizer(
                broker.plane, addresses_of, look_up, broker.tell, alone=alone, control_listener=listener
            )
        if self._sasl:
            self._take_logins(configs, look_up)
        self.core = host.make_core(broker, clock.now_ms())
        self.server = Server(loop, self.core, clock, self._pool, self._limits(configs))
        self._receive = deliver
        if self._monitored is not None:
            from kbroker.runtime.monitoring import Monitoring

            self._monitoring = Monitoring(loop, self.core, self.server, self._monitored)
        self._follow_settings(configs)

    def _limits(self, configs: Configs) -> Limits:
        """What the server takes of its clients; listeners' own limits that make no sense are passed by, with a line."""
        config = configs.broker
        try:
            self._limits_of_listeners = limits_of_listeners(configs.layers, self.listeners)
        except ConfigError as error:
            log.error("limits of listeners stay as they were: %s", "; ".join(error.lines))
        return Limits(
            max_frame_bytes=config.socket_request_max_bytes,
            max_connections=config.max_connections,
            max_connections_per_ip=config.max_connections_per_ip,
            max_connections_per_ip_overrides=_counts_by_address(config.max_connections_per_ip_overrides),
            idle_ms=config.connections_max_idle_ms,
            send_buffer_bytes=config.socket_send_buffer_bytes,
            held_bytes=config.queued_max_request_bytes,
            most_sockets=self._host.shares.sockets,
            creation_rate=config.max_connection_creation_rate,
            rate_windows=(config.quota_window_num, config.quota_window_size_seconds),
            of_listeners=self._limits_of_listeners,
        )

    def _follow_settings(self, configs: Configs) -> None:
        """Do as the settings say when they change."""
        broker = self.broker
        broker.on(BrokerConfigChanged, lambda fact, now_ms: self.server.limit(self._limits(configs)))
        broker.on(BrokerConfigChanged, lambda fact, now_ms: self._pool.allow(self._disk_threads(configs.broker)))
        broker.on(BrokerConfigChanged, lambda fact, now_ms: self._advertise(configs.broker))
        broker.on(BrokerConfigChanged, lambda fact, now_ms: self.reload_tls())

    def _take_logins(self, configs: Configs, beside: Callable[[Job, Owner], None]) -> None:
        """Raises: StartupError."""
        from kbroker.broker.logins import Logins  # most brokers have no listener that speaks SASL

        def fetch_now(url: str) -> bytes:
            from kbroker.runtime.jwks import fetch

            return fetch(url)

        broker, (_, clock, random, scheduler) = self.broker, self._world
        entities = broker.plane.entities
        try:
            broker.logins = Logins(
                self._sasl,
                configs,
                entities,
                clock,
                random,
                scheduler,
                broker.tell,
                beside,
                fetch_now,
                broker.delegation_tokens,
            )
        except ConfigError as error:
            raise StartupError("; ".join(error.lines)) from None
        broker.add(broker.logins)

    def _open_quorum(self, settings: QuorumSettings) -> Quorum:
        """The metadata log, and who this broker is among those of the quorum's cluster. Raises: StartupError."""
        from kbroker.quorum.metadata_log import log_config, open_metadata_log

        disk, random, wall_ms = self._host.disk, self._host.random, self._host.clock.wall_ms()
        directory = _full(settings.metadata_log_dir)
        try:
            opened = open_metadata_log(disk, directory, log_config(self.config), random, wall_ms)
        except OSError as error:
            raise StartupError(fault_of(error, directory)) from None
        except CorruptFileError as error:
            raise StartupError(str(error)) from None
        return Quorum(settings, opened, self._directory_ids, random.token(INCARNATION_BYTES), self._previous_epoch)

    def _open_store(self) -> NodeStore:
        """The store that it has to itself, or shares with the other brokers of a test. Raises: StartupError."""
        loop = self._loop
        try:
            store = self._host.open_store(
                self._store_path,
                self._post,
                lambda again: loop.call_later(STORE_RETRY_S, again),
                self._store_pool.submit,
            )
        except DamagedError as error:
            raise StartupError(f"{error}; kbroker metadata rebuild {' '.join(self.paths)} rebuilds it") from None
        except OSError as error:
            raise StartupError(str(error)) from None
        if isinstance(store, EmbeddedStore):
            self._warn_of_unclaimed(store.names_under(TOPICS))
        return store


def _is_member(static: dict[str, Given]) -> bool:
    """Whether a broker is to be a member of a quorum's cluster, before it is known what is wrong with its settings."""
    roles = static.get("process.roles")
    return roles is not None and [each.strip() for each in roles.text.split(",")] == ["broker"]


def _quorum_settings(config: BrokerConfig) -> QuorumSettings | None:
    if not config.process_roles:
        return None
    from kbroker.config.quorum import quorum_settings  # most brokers have no roles

    return quorum_settings(config)


def _ignore(event: object) -> None:
    """Nothing listens yet."""


def _full(path: str) -> str:
    """A log directory's whole path. Raises: StartupError for what no file system can have."""
    try:
        if b"\0" not in os.fsencode(path):
            return os.path.abspath(path)
    except UnicodeEncodeError:  # the locale's encoding has no such character
        pass
    raise StartupError(f"log.dirs: {path!r} is no name for a directory here")


def addresses_of(host: str) -> set[str]:
    """What a name stands for, as connections show it. Raises: OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {str(address[0]) for *_, address in found}


def side_by_side(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks on a thread each, and wait for all; one task needs no thread."""
    if len(tasks) < 2:
        for task in tasks:
            task()
        return
    from concurrent.futures import ThreadPoolExecutor  # most brokers have one directory

    with ThreadPoolExecutor(len(tasks), thread_name_prefix="kbroker-load") as pool:
        list(pool.map(lambda task: task(), tasks))


def limits_of_listeners(layers: BrokerLayers, listeners: Listeners) -> dict[str, ListenerLimits]:
    """Those that have limits of their own. Raises: ConfigError."""
    found = {each.name: listener_limits(layers, each.name) for each in listeners.bound}
    return {
        name: ListenerLimits(own.get("max.connections", INT_MAX), own.get("max.connection.creation.rate", INT_MAX))
        for name, own in found.items()
        if own
    }


def _counts_by_address(text: str) -> dict[str, int]:
    """`address:count, ...`, which the settings have checked; an address may have colons itself."""
    pairs = (item.strip().rpartition(":") for item in text.split(",") if item.strip())
    return {address: int(count) for address, _, count in pairs}
