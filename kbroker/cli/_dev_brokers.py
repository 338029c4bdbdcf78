"""The brokers of `kbroker dev-cluster`: processes on this machine, one for each, on one metadata server.

Called by `dev_cluster.py`. Owns their settings files, which start them alone just as well, their logs and their ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from kbroker.properties import format_properties
from kbroker.runtime.loop import Loop
from kbroker.runtime.platform import start_tethered

HOST = "127.0.0.1"
MOST_REPLICAS = 3  # as many as there are brokers, up to what is usual
READ_BYTES = 4096


class BrokerProcess:
    """One broker. is_ready: it serves clients. code: its exit code, None while it runs."""

    def __init__(self, node_id: int, port: int, folder: Path) -> None:
        """folder: the cluster's."""
        self.node_id = node_id
        self.port = port
        self.properties = folder / f"broker-{node_id}.properties"
        self.log = folder / f"broker-{node_id}.log"
        self.data = folder / f"broker-{node_id}"
        self.is_ready = False
        self.code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """For clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Of its process, once it was started."""
        assert self._process is not None
        return self._process.pid

    def configure(self, connect: str, count: int, overrides: Mapping[str, str], protocol: str = "PLAINTEXT") -> None:
        """Write its settings. connect: the metadata server's address. count: of brokers in the cluster."""
        replicas = str(min(count, MOST_REPLICAS))
        settings = {
            "broker.id": str(self.node_id),
            "listeners": f"{protocol}://{self.address}",
            "log.dirs": str(self.data),
            "zookeeper.connect": connect,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "2" if count > 1 else "1",
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": "2" if count > 1 else "1",
            "share.coordinator.state.topic.num.partitions": "5",
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.num.partitions": "5",
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.enable": "false",  # all end at once: there is no broker to hand anything over to
            **overrides,
        }
        self.properties.touch(mode=0o600)  # a password may be in it
        self.properties.write_text(format_properties(settings))

    def start(self, loop: Loop) -> None:
        """Run it; what it says goes to its log, but for the lines that say it is ready."""
        with open(self.log, "ab") as log:
            self._process = start_tethered(  # a cluster whose first process was killed must not stay behind
                "kbroker",
                ["start", str(self.properties)],
                signal.SIGTERM,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for their parent, which ends them in order; and `read_certificates`
            )
        said = self._process.stdout
        assert said is not None
        os.set_blocking(said.fileno(), False)
        loop.add_reader(said.fileno(), lambda: self._heard(loop, said))

    def _heard(self, loop: Loop, said: IO[bytes]) -> None:
        """It has told that it is ready, or its end of the pipe is closed: it has ended."""
        assert self._process is not None
        try:
            data = os.read(said.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self.is_ready = True
            return
        loop.remove_reader(said.fileno())
        said.close()
        self.code = self._process.wait()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self.code is None:
            self._process.send_signal(number)

    def read_certificates(self) -> None:
        """Have it read its certificates again, if it runs: without a terminal of its own it takes SIGHUP for that."""
        self.end(signal.SIGHUP)

    @property
    def is_back(self) -> bool:
        """Whether its port is served although its process has ended: the user has started it again."""
        if self.code is None:
            return False
        with suppress(OSError), socket.create_connection((HOST, self.port)):
            return True
        return False

    def last_words(self) -> str:
        """The last line of its log, or how it ended."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        if self.code is not None and self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return lines[-1] if lines else f"exit code {self.code}"


def free_ports(first: int, count: int, *, option: str = "--port") -> list[int]:
    """Ports for the brokers, one behind the other, or any free ones if first is 0. Raises: OSError if one is taken.

    option: what chooses them.
    """
    probes = [socket.socket() for _ in range(count)]
    try:
        for at, probe in enumerate(probes):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = first + at if first else 0
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise OSError(f"port {port}: {error.strerror}; {option} N names another") from None
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def all_in_order(brokers: Sequence[BrokerProcess]) -> bool:
    """Whether all serve clients."""
    return all(each.is_ready and each.code is None for each in brokers)
