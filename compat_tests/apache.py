"""Apache Kafka's brokers, its ZooKeeper and its tools as processes on the loopback, one call each.

Used by the compatibility suite, by tests that ask Apache's tools about our files, and by the bench. Owns the set-up
(jars by Maven, once, into `.cache/apache/<release>/`), the configuration files and the processes' lives: a process is
ready when it answers, and ends by its own id. Never reads what the brokers store.

    with KraftBroker(NEWEST, folder) as broker:
        run_tool(NEWEST, "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.address, "--list")
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from kbroker.log.checkpoints import format_uuid
from kbroker.properties import format_properties
from kbroker.runtime.blocking import BlockingConnection
from protocol.messages.metadata import MetadataRequest

NEWEST = "4.4.0"
RELEASES = ("3.9.1", NEWEST)
"""3.9.1 is the last that speaks to ZooKeeper."""

DUMP_TOOL = {"3.9.1": "kafka.tools.DumpLogSegments", NEWEST: "org.apache.kafka.tools.DumpLogSegments"}

_POM = Path(__file__).parent / "apache.pom.xml"
_CACHE = Path(__file__).parents[1] / ".cache" / "apache"
SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Options for a JVM that starts soon and stays small; a bench gives Apache's own instead."""

_LOG4J_1 = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %m (%c)%n
"""
_LOG4J_2 = """status=error
rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.target=SYSTEM_ERR
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss,SSS} %p %m (%c)%n
"""


class NoApacheError(RuntimeError):
    """There is no Java, no Maven, or no way to the jars."""


class NotReadyError(RuntimeError):
    """A process ended, or did not answer in time; the text ends with what it last said."""


def missing() -> str | None:
    """What of Java is not on this machine, or None if Apache's programs can run."""
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def jars(release: str) -> Path:
    """The folder of a release's jars, fetched if they are not there. Raises NoApacheError."""
    if reason := missing():
        raise NoApacheError(reason)
    home = _CACHE / release
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        stamp, wanted = home / "stamp", _POM.read_text()
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(home / "lib", ignore_errors=True)
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / 'lib'}"]
            command = ["mvn", "-q", "-B", "-f", str(_POM), f"-Dkafka.version={release}", *goal]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode:
                raise NoApacheError(f"mvn failed: {(done.stdout + done.stderr)[-2000:]}")
            stamp.write_text(wanted)
    return home / "lib"


def java_command(
    release: str, main_class: str, arguments: Sequence[str], *, jvm: Sequence[str] = SMALL_JVM
) -> list[str]:
    """The command line of one of a release's programs; its warnings go to the error stream."""
    lib = jars(release)
    if release < "4":
        settings, key, text = lib.parent / "log4j.properties", "log4j.configuration", _LOG4J_1
    else:
        settings, key, text = lib.parent / "log4j2.properties", "log4j2.configurationFile", _LOG4J_2
    if not settings.exists():
        settings.write_text(text)
    return ["java", *jvm, f"-D{key}=file:{settings}", "-cp", f"{lib}/*", main_class, *arguments]


def run_tool(
    release: str, main_class: str, *arguments: str, text: str | None = None, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and return what it said. text: its standard input. Raises subprocess.TimeoutExpired."""
    command = java_command(release, main_class, arguments, jvm=(*SMALL_JVM, "-Xmx512m"))
    return subprocess.run(command, input=text or "", capture_output=True, text=True, timeout=timeout_s)


def dump_log(release: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a release's dump tool, as bin/kafka-dump-log.sh does."""
    return run_tool(release, DUMP_TOOL[release], *arguments)


def free_port() -> int:
    """A port of the loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A process that answers on a port of the loopback; a context manager."""

    release: str
    host = "127.0.0.1"
    port: int

    def __init__(self, folder: Path, command: Sequence[str], *, start_timeout_s: float = 180) -> None:
        """start_timeout_s: a JVM beside others on few cores."""
        self.folder = folder
        self.command = list(command)
        self.start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """`host:port`, as bootstrap.servers wants it."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id, while it runs."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """What the process said so far."""
        path = self.folder / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start the process and return once it answers. Raises NotReadyError; then it has been ended."""
        assert self._process is None, "already started"
        with open(self.folder / "output", "ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout_s: float = 30) -> None:
        """Ask the process to end (a clean shutdown), insist after `timeout_s`; idempotent."""
        self._end(signal.SIGTERM, timeout_s)

    def kill(self) -> None:
        """End the process at once, as a crash would; idempotent."""
        self._end(signal.SIGKILL, 30)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, how: signal.Signals, timeout_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout_s
        while not self._answers():
            if self._process.poll() is not None:
                raise NotReadyError(f"ended with {self._process.returncode}: {self.output[-3000:]}")
            if time.monotonic() > deadline:
                raise NotReadyError(f"no answer in {self.start_timeout_s} s: {self.output[-3000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with self._connect() as connection:
                return self._asks(connection)
        except OSError:
            return False

    def _connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=5)

    def _asks(self, connection: socket.socket) -> bool:
        raise NotImplementedError


class BrokerServer(Server):
    """A server that is a broker."""

    def _asks(self, connection: socket.socket) -> bool:
        """Whether Metadata v1 for no topics names a broker: the node itself, registered and not fenced."""
        return bool(BlockingConnection(connection, "ready?", answer_s=5).ask(MetadataRequest(topics=[]), 1).brokers)


class KraftBroker(BrokerServer):
    """One node of Apache Kafka, broker and controller at once. Its log directories are `folder/data0`, `data1`, ..."""

    def __init__(
        self,
        release: str,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        heap: str = "512m",
        jvm: Sequence[str] = SMALL_JVM,
        port: int | None = None,
        node_id: int = 1,
    ) -> None:
        """settings: server.properties beyond, or instead of, ours. heap: the most the heap may grow to."""
        self.release, self.port, self.node_id = release, port or free_port(), node_id
        controller = free_port()
        self.log_dirs = [folder / f"data{number}" for number in range(log_dirs)]
        ours = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "controller.quorum.voters": f"{node_id}@{self.host}:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.host}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            **_small_cluster(self.log_dirs),
        }
        self.settings_file = _write_settings(folder, ours, settings)
        command = java_command(release, "kafka.Kafka", [str(self.settings_file)], jvm=(*jvm, f"-Xmx{heap}"))
        super().__init__(folder, command)

    def start(self) -> Self:
        """Format the directories if they are new, start, and return once the node answers."""
        self.format()
        return super().start()

    def format(self, cluster_id: str = "") -> None:
        """Give the directories a cluster id, any if none is given, if they are new. Raises NotReadyError."""
        if not (self.log_dirs[0] / "meta.properties").exists():
            cluster_id = cluster_id or format_uuid(uuid.uuid4().bytes)
            arguments = ["format", f"--cluster-id={cluster_id}", "-c", str(self.settings_file)]
            done = run_tool(self.release, "kafka.tools.StorageTool", *arguments)
            if done.returncode:
                raise NotReadyError(f"formatting failed: {done.stdout}{done.stderr}")


class ZooKeeperBroker(BrokerServer):
    """One broker of Apache Kafka 3.9.1 in a cluster kept by ZooKeeper."""

    def __init__(
        self,
        folder: Path,
        *,
        zookeeper: str,
        node_id: int = 1,
        settings: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        heap: str = "512m",
        jvm: Sequence[str] = SMALL_JVM,
        port: int | None = None,
    ) -> None:
        """zookeeper: zookeeper.connect. The rest as for KraftBroker."""
        self.release, self.port, self.node_id = "3.9.1", port or free_port(), node_id
        self.log_dirs = [folder / f"data{number}" for number in range(log_dirs)]
        ours = {
            "broker.id": str(node_id),
            "zookeeper.connect": zookeeper,
            "listeners": f"PLAINTEXT://{self.address}",
            **_small_cluster(self.log_dirs),
        }
        self.settings_file = _write_settings(folder, ours, settings)
        command = java_command(self.release, "kafka.Kafka", [str(self.settings_file)], jvm=(*jvm, f"-Xmx{heap}"))
        super().__init__(folder, command)


class ZooKeeper(Server):
    """A ZooKeeper 3.8.4, the one that comes with Apache Kafka 3.9.1; alone, unless its settings say otherwise."""

    release = "3.9.1"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        """settings: zookeeper.properties beyond, or instead of, ours."""
        self.port = port or free_port()
        ours = {
            "dataDir": str(folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "tickTime": "500",
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr",
        }
        file = _write_settings(folder, ours, settings)
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        super().__init__(folder, java_command(self.release, main, [str(file)], jvm=(*jvm, "-Xmx256m")))

    def _asks(self, connection: socket.socket) -> bool:
        connection.sendall(b"srvr")  # `ruok` is answered before it takes sessions, and who comes then waits for nothing
        with connection.makefile("rb") as said:
            return said.read(9) == b"Zookeeper"


def _small_cluster(log_dirs: Sequence[Path]) -> dict[str, str]:
    """Settings that make a broker start soon and need no other."""
    return {
        "log.dirs": ",".join(map(str, log_dirs)),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }


def _write_settings(folder: Path, ours: Mapping[str, str], theirs: Mapping[str, str] | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "server.properties"
    path.write_text(format_properties({**ours, **(theirs or {})}))
    return path


@contextmanager
def zookeeper_cluster(folder: Path, brokers: int = 1, **arguments: str) -> Iterator[list[ZooKeeperBroker]]:
    """A ZooKeeper and so many Apache brokers with ids from 1; all end with the block.

    arguments: settings of the brokers, with `_` for `.` in their names.
    """
    settings = {key.replace("_", "."): value for key, value in arguments.items()}
    with ZooKeeper(folder / "zookeeper") as zookeeper:
        started: list[ZooKeeperBroker] = []
        try:
            for node_id in range(1, brokers + 1):
                place = folder / f"broker{node_id}"
                broker = ZooKeeperBroker(place, zookeeper=zookeeper.address, node_id=node_id, settings=settings)
                started.append(broker.start())
            yield started
        finally:
            for broker in reversed(started):
                broker.stop()


class Quorum:
    """Where the controllers of a cluster are, and its id: what its brokers are told. controllers: by node id."""

    def __init__(
        self,
        release: str,
        folder: Path,
        controllers: int = 1,
        *,
        release_version: str = "",
        settings: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
    ) -> None:
        """release_version: whose metadata.version is in force at first; that of the release if it is empty.

        settings: of the controllers, beyond, or instead of, ours. users: of SCRAM, who are there from the beginning,
        as the storage tool takes them.
        """
        self.settings = settings
        self._users = users
        self._release_version = release_version
        self.release, self.cluster_id = release, format_uuid(uuid.uuid4().bytes)
        ports = {100 + number: free_port() for number in range(controllers)}
        self.voters = ",".join(f"{node_id}@{Server.host}:{port}" for node_id, port in ports.items())
        self.servers = ",".join(f"{Server.host}:{port}" for port in ports.values())
        self.controllers = {
            node_id: QuorumController(self, folder / f"controller{node_id}", node_id, port)
            for node_id, port in ports.items()
        }

    def format(self, folder: Path, settings_file: Path) -> None:
        """Give a node's directories their ids, if they are new. Raises NotReadyError."""
        if not (folder / "data0" / "meta.properties").exists():
            arguments = ["format", f"--cluster-id={self.cluster_id}", "-c", str(settings_file)]
            if self._release_version:
                arguments.append(f"--release-version={self._release_version}")
            for each in self._users:
                arguments += ["--add-scram", each]
            done = run_tool(self.release, "kafka.tools.StorageTool", *arguments)
            if done.returncode:
                raise NotReadyError(f"formatting failed: {done.stdout}{done.stderr}")


class QuorumController(Server):
    """A controller of Apache Kafka that is no broker."""

    def __init__(self, quorum: Quorum, folder: Path, node_id: int, port: int) -> None:
        self.release, self.port, self.node_id, self._quorum = quorum.release, port, node_id, quorum
        ours = {
            "process.roles": "controller",
            "node.id": str(node_id),
            "controller.quorum.voters": quorum.voters,
            "listeners": f"CONTROLLER://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            **_small_cluster([folder / "data0"]),
        }
        self.settings_file = _write_settings(folder, ours, quorum.settings)
        command = java_command(self.release, "kafka.Kafka", [str(self.settings_file)], jvm=(*SMALL_JVM, "-Xmx256m"))
        super().__init__(folder, command)

    def start(self) -> Self:
        """Format the directory if it is new, start, and return once the controller listens."""
        self._quorum.format(self.folder, self.settings_file)
        return super().start()

    def _asks(self, connection: socket.socket) -> bool:
        """It listens; whether it has a leader, brokers find out."""
        return True


class QuorumBroker(BrokerServer):
    """A broker of Apache Kafka that is no controller, in the cluster of a quorum."""

    def __init__(
        self,
        quorum: Quorum,
        folder: Path,
        node_id: int,
        *,
        settings: Mapping[str, str] | None = None,
        log_dirs: int = 1,
        heap: str = "512m",
        jvm: Sequence[str] = SMALL_JVM,
        port: int | None = None,
    ) -> None:
        """settings: server.properties beyond, or instead of, ours."""
        self.release, self.port, self.node_id, self._quorum = quorum.release, port or free_port(), node_id, quorum
        self.log_dirs = [folder / f"data{number}" for number in range(log_dirs)]
        ours = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.voters": quorum.voters,
            "listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            **_small_cluster(self.log_dirs),
        }
        self.settings_file = _write_settings(folder, ours, settings)
        command = java_command(self.release, "kafka.Kafka", [str(self.settings_file)], jvm=(*jvm, f"-Xmx{heap}"))
        super().__init__(folder, command)

    def start(self) -> Self:
        """Format the directories if they are new, start, and return once the broker is unfenced."""
        self.format()
        return super().start()

    def format(self) -> None:
        """Give the directories their ids, if they are new. Raises NotReadyError."""
        self._quorum.format(self.folder, self.settings_file)
