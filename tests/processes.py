"""A broker as a process of its own, and a client that waits for its answers.

Used by the tests that need the real thing: end to end, live fuzz, starting and stopping. Knows no API by name.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kbroker.runtime.blocking import BlockingConnection, connect
from protocol.frames import SIZE_BYTES

START_S = 30.0


CONTROL_LISTENER = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CONTROL://127.0.0.1:0",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CONTROL:PLAINTEXT",
    "control_plane_listener_name": "CONTROL",
    "inter_broker_listener_name": "PLAINTEXT",
}
"""Settings for a broker that hears controllers, on a listener of their own: else one that is alone hears none."""


class BrokerProcess:
    """`kbroker start` on a free port. folder: for its data and what it says (`log`)."""

    def __init__(
        self, folder: Path, *, arguments: tuple[str, ...] = (), limits: Mapping[str, int] = {}, **settings: str
    ) -> None:
        """settings: server.properties with `_` for `.`; arguments: beside them.

        limits: in place of what `kbroker/config/limits.py` has, for tests that would wait for one.
        """
        self.log_path = folder / "log"
        given = {"listeners": "PLAINTEXT://127.0.0.1:0", "log_dirs": str(folder / "data"), **settings}
        overrides = [
            part for name, value in given.items() for part in ("--override", f"{name.replace('_', '.')}={value}")
        ]
        changes = [f"limits.{name} = {value}" for name, value in limits.items()]
        program = "; ".join(["from kbroker.config import limits", *changes, "from kbroker.cli import main", "main()"])
        module = ("-c", program) if limits else ("-m", "kbroker.cli")
        command = [sys.executable, *module, "start", *arguments, *overrides]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.says: list[str] = []  # until it listens
        self.rest = ""  # what it says after that, once it has ended
        self.ports: dict[str, int] = {}

    def await_start(self) -> Self:
        """Read what it says until it listens. Raises AssertionError with its log if it ends instead."""
        timer = threading.Timer(START_S, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.says.append(line.rstrip())
            found = re.search(r"listening on +(\w+)://.*:(\d+)$", self.says[-1])
            if found:
                self.ports[found[1]] = int(found[2])
            elif self.ports:
                timer.cancel()
                return self
        timer.cancel()
        raise AssertionError(f"it did not start: {self.log}")

    @property
    def port(self) -> int:
        """Of its first listener."""
        return next(iter(self.ports.values()))

    @property
    def log(self) -> str:
        """What it has logged."""
        return self.log_path.read_text(errors="replace")

    @property
    def rss_bytes(self) -> int:
        """Memory it holds now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Until it has ended by itself; the exit code."""
        try:
            return self.process.wait(START_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            if not self.process.stdout.closed:  # a test may stop it, and its `with` block once more
                self.rest = self.process.stdout.read()
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self.await_start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Client(BlockingConnection):
    """A connection to a broker on this machine. sent: every frame, without its size."""

    def __init__(self, port: int, client_id: str = "test") -> None:
        super().__init__(connect("127.0.0.1", port), client_id)
        self.sent: list[bytes] = []

    def send_bytes(self, data: bytes | bytearray) -> None:
        """As they are."""
        self.sent.append(bytes(data[SIZE_BYTES:]))
        super().send_bytes(data)


def within(seconds: float) -> Any:
    """An iterator that goes on for so long: for asking again until an answer changes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
