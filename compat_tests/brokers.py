"""The broker under test on the loopback: kbroker, or one of Apache's for comparison.

Used by the fixtures in conftest.py, by tests that need settings of their own, and by the bench. Owns our processes and
their settings; Apache's brokers are those of `apache.py`. A test that fails on Apache's broker is a wrong test:
`--broker apache-4.4.0` tells.

Ours is that of `kbroker.testing`, as anybody's tests have it, wherever a test does no more than speak to it. A process
it is where the test is about one: what is killed by -9, whose memory is measured, whose log directories or ZooKeeper
the test has chosen, and what a bench compares.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from compat_tests.apache import RELEASES, BrokerServer, KraftBroker, NotReadyError, Quorum, Server, free_port
from kbroker.properties import format_properties
from kbroker.testing import broker as broker_for_tests

CHOICES = ("kbroker", *(f"apache-{release}" for release in reversed(RELEASES)))


@dataclass(frozen=True)
class Place:
    """Where a broker answers, which is all that a test of clients needs to know of it."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`, as bootstrap.servers wants it."""
        return f"{self.host}:{self.port}"


@contextmanager
def place_of(choice: str, folder: Path, settings: Mapping[str, str]) -> Iterator[Place]:
    """The broker that `--broker` names, for as long as the block takes; ours in this process. Raises NotReadyError."""
    if choice == "kbroker":
        with broker_for_tests(settings=settings) as ours:
            yield Place(KbrokerProcess.host, ours.port)
    else:
        with broker_of(choice, folder, settings) as server:
            yield Place(server.host, server.port)


class KbrokerProcess(BrokerServer):
    """`kbroker start` on a free port, with its data under `folder/data`. A restart keeps port and data."""

    release = "kbroker"

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, port: int = 0) -> None:
        """settings: server.properties beyond, or instead of, the defaults."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port
        self._settings = {"log.dirs": str(folder / "data"), **(settings or {})}
        super().__init__(folder, self._command())

    def stop(self, timeout_s: float = 30) -> None:
        """As Server.stop; the next start takes the same port."""
        super().stop(timeout_s)
        self.command = self._command()

    def kill(self) -> None:
        """As Server.kill; the next start takes the same port."""
        super().kill()
        self.command = self._command()

    def _command(self) -> list[str]:
        settings = {"listeners": f"PLAINTEXT://{self.host}:{self.port}", **self._settings}
        overrides = [word for name, value in settings.items() for word in ("--override", f"{name}={value}")]
        return [sys.executable, "-m", "kbroker.cli", "start", *overrides]

    def _answers(self) -> bool:
        if not self.port:
            listens = re.search(rf"PLAINTEXT://{re.escape(self.host)}:([1-9]\d*)", self.output)
            if listens is None:
                return False
            self.port = int(listens[1])
        return super()._answers()


def broker_of(choice: str, folder: Path, settings: Mapping[str, str] | None = None) -> Server:
    """The broker that `--broker` names, as a process not yet started. Raises NotReadyError."""
    if choice == "kbroker":
        return KbrokerProcess(folder, settings=settings)
    if choice not in CHOICES:
        raise NotReadyError(f"no broker called {choice}; there are {', '.join(CHOICES)}")
    return KraftBroker(choice.removeprefix("apache-"), folder, settings=settings)


class KbrokerMember(BrokerServer):
    """`kbroker start` as a member of the cluster of a quorum, by a file of six lines. A restart keeps port and data."""

    release = "kbroker"

    def __init__(
        self,
        quorum: Quorum,
        folder: Path,
        node_id: int,
        *,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """settings: server.properties beyond, or instead of, the six."""
        self.port, self.node_id, self.quorum = port or free_port(), node_id, quorum
        self.log_dirs = [folder / "data0"]
        ours = {
            "process.roles": "broker",
            "node.id": str(node_id),
            "controller.quorum.bootstrap.servers": quorum.servers,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.host}:{self.port}",
            "log.dirs": str(self.log_dirs[0]),
        }
        folder.mkdir(parents=True, exist_ok=True)
        self.settings_file = folder / "server.properties"
        self.settings_file.write_text(format_properties({**ours, **(settings or {})}))
        super().__init__(folder, [sys.executable, "-m", "kbroker.cli", "start", str(self.settings_file)])

    def start(self) -> Self:
        """Format the directory if it is new, start, and return once the broker is unfenced."""
        if not (self.log_dirs[0] / "meta.properties").exists():
            self.format(self.quorum.cluster_id)
        return super().start()

    def format(self, cluster_id: str) -> None:
        """Say in each directory that is new whose it is."""
        tool = [sys.executable, "-m", "kbroker.cli", "storage", "format", "--ignore-formatted"]
        command = [*tool, "-c", str(self.settings_file), "-t", cluster_id]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
