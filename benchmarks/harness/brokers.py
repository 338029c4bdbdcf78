"""kbroker and Apache Kafka as processes to be measured: started, watched, ended.

Used by `rows.py`. Both get the same settings where both have them, data directories side by side on the same disk, and
nothing else to do. What a broker used is what the kernel counted for its process: processor time, user and system,
of all its threads; resident memory. Apache's gets the heap and the collector that its own start script gives it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.wire import Connection, LoadError, wait_until_ready
from compat_tests.apache import KraftBroker, free_port
from kbroker.properties import format_properties

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
RELEASE = "4.4.0"
OURS, APACHES, FLOOR = "kbroker", "apache", "floor"
STOP_S = 300  # for a clean shutdown: with 50,000 partitions each has files to be synced
END_S = 30  # for one that is not needed any more

# bin/kafka-server-start.sh and kafka-run-class.sh of the release
APACHE_JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
    "-Xms1g",
)

SETTINGS = {
    # Topics that are written to stay small, so that the page cache uses the same pages again: one that the hypervisor
    # has to find first costs some 3 s a GB, as much as a broker does.
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "100",
    "log.initial.task.delay.ms": "1000",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "3000",  # as shipped
}


class Broker:
    """One broker's process and folder. A context manager: the folder is gone at the end."""

    kind: str

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)

    def command(self) -> list[str]:
        """The command line, everything it needs being in the folder."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """`host:port`, as bootstrap.servers wants it."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process's id, while it runs."""
        assert self._process is not None, self.kind
        return self._process.pid

    def launch(self) -> float:
        """Start the process and do not wait; the moment that was, by time.perf_counter()."""
        assert self._process is None, self.kind
        command = self.command()
        with open(self.folder / "output", "ab") as output:
            begun = time.perf_counter()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
        return begun

    def connect(self, patience_s: float = 0) -> Connection:
        """A connection; while the process is starting, as soon as it listens."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return Connection(HOST, self.port)
            except OSError:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.kind} does not listen: {self.output()[-2000:]}") from None
                time.sleep(0.001)

    def output(self) -> str:
        """What the process said so far."""
        return (self.folder / "output").read_text(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether the process was launched and has not ended."""
        return self._process is not None and self._process.poll() is None

    def launch_ready(self) -> None:
        """Start the process and wait until it answers."""
        self.launch()
        with self.connect(patience_s=60) as connection:
            wait_until_ready(connection)

    def stop(self) -> None:
        """A clean shutdown, waited for.

        Raises: LoadError if it does not come to its end: what starts behind it would start as after a crash.
        """
        if not self._ends_within(STOP_S):
            raise LoadError(f"{self.kind} has not ended {STOP_S} s after SIGTERM")

    def _ends_within(self, patience_s: float) -> bool:
        """Whether SIGTERM is enough; it does not run any more in any case."""
        process, self._process = self._process, None
        if process is None:
            return True
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return False
        return True

    def kill(self) -> None:
        """End the process as a crash would (kill -9); nothing if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends_within(END_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- what the kernel counted

    def cpu_s(self) -> float:
        """Processor seconds so far, user and system, all threads, to the nanosecond (clock_getcpuclockid(3))."""
        return time.clock_gettime_ns((~self.pid << 3) | 2) / 1e9

    def rss_bytes(self) -> int:
        """Resident memory now, with the pages of the files it has mapped."""
        return self._status("VmRSS")

    def peak_rss_bytes(self) -> int:
        """The most resident memory it ever had."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.split()[0]) * 1024
        raise KeyError(name)


class Kbroker(Broker):
    """This checkout's broker, in this Python."""

    kind = OURS

    def command(self) -> list[str]:
        """`kbroker start`, with a settings file, as the installed command runs it."""
        settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{self.address}",
            **self.settings,
            "log.dirs": str(self.folder / "data"),
        }
        path = self.folder / "server.properties"
        path.write_text(format_properties(settings))
        return [sys.executable, "-c", "from kbroker.cli import main; main()", "start", str(path)]


class Apache(Broker):
    """Apache Kafka: broker and controller in one process, with its usual heap of 1 GiB."""

    kind = APACHES
    release = RELEASE

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        super().__init__(folder, settings)
        self._kafka = KraftBroker(
            self.release, folder, settings=self.settings, heap="1g", jvm=APACHE_JVM, port=self.port, node_id=1
        )

    def command(self) -> list[str]:
        """Its main class; a new data directory is formatted first, outside of what is timed."""
        self._kafka.format()
        return self._kafka.command


BROKERS: dict[str, type[Broker]] = {OURS: Kbroker, APACHES: Apache}


@contextmanager
def started(kind: str, folder: Path, settings: dict[str, str] | None = None) -> Iterator[Broker]:
    """A broker that answers."""
    with BROKERS[kind](folder, settings or {}) as broker:
        broker.launch_ready()
        yield broker
