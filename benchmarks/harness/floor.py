"""An echo: what a request costs before any broker has done anything, the floor under every latency here.

`Echo` stands beside the brokers in the rounds of a row that measures latency; as a program this module is the server:
one connection at a time, one epoll, recv and send of what came. It answers when it has a whole request of the size
given, as a broker would.
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys

from benchmarks.harness.brokers import FLOOR, HOST, ROOT
from benchmarks.harness.wire import Connection, ping


class Echo:
    """The server as a process of its own. A context manager."""

    kind = FLOOR

    def __enter__(self) -> Echo:
        command = [sys.executable, "-m", "benchmarks.harness.floor"]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def latencies(self, data: bytes, count: int) -> list[float]:
        """One request at a time, sent back as it is: the seconds each took."""
        with Connection(HOST, self._port) as connection:
            return ping(connection.socket, data, len(data), count)[0]


def serve(connection: socket.socket) -> None:
    """Send back what comes until the other end hangs up."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    buffer = memoryview(bytearray(1 << 16))
    with select.epoll() as epoll:
        epoll.register(connection.fileno(), select.EPOLLIN)
        while True:
            epoll.poll()
            size = connection.recv_into(buffer)
            if not size:
                return
            connection.send(buffer[:size])


def main() -> None:
    """Serve on a free port, whose number is printed, until ended."""
    with socket.create_server((HOST, 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                serve(connection)


if __name__ == "__main__":
    main()
