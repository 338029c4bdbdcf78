"""Many idle connections: each costs the broker little memory, and it still serves the others."""

from __future__ import annotations

import resource
import socket
import struct
from contextlib import ExitStack
from pathlib import Path

import pytest

from compat_tests.apache import Server
from compat_tests.brokers import broker_of

SECTION = "6 Under kill -9 and with many connections"
CONNECTIONS = 10_000
BUDGET_BYTES = 12 << 10
SPARE_FILES = 500  # the broker's and pytest's own
pytestmark = [pytest.mark.quick, pytest.mark.timeout(300)]


def resident_bytes(pid: int) -> int:
    """The resident set of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def connect(server: Server) -> socket.socket:
    """A connection that has agreed on versions, as a client's that then falls silent."""
    connection = socket.create_connection((server.host, server.port), timeout=30)
    connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size, socket.MSG_WAITALL)
    return connection


def test_idle_connection_costs_at_most_12_kb(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """10,000 idle connections cost at most 12 KB each, and one more is served"""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (-1, resource.RLIM_INFINITY) and hard < CONNECTIONS + SPARE_FILES:
        pytest.skip(f"ulimit -n is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the broker inherits it
    try:
        with broker_of(request.config.getoption("--broker"), tmp_path) as server, ExitStack() as open_connections:
            for _ in range(100):  # what the first connections cost once for all
                connect(server).close()
            before = resident_bytes(server.pid)
            for _ in range(CONNECTIONS):
                open_connections.enter_context(connect(server))
            each = (resident_bytes(server.pid) - before) / CONNECTIONS
            connect(server).close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{each:.0f} bytes each")
    assert each <= BUDGET_BYTES
