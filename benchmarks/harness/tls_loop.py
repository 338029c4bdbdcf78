"""What TLS costs by itself: a loop over the same objects of Python's `ssl` as the broker's, and nothing around it.

As a program it is a server of one connection, by TLS or by plain text. `in`: what comes is deciphered, written to a
file, and each request answered with a few bytes. `out`: each request is answered with bytes of the file, enciphered; of
plain text by sendfile. It knows sizes, not Kafka's protocol. `Loop` is the same as a context manager, with what its
process used.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Protocol

from benchmarks.harness.brokers import HOST, ROOT
from benchmarks.harness.wire import TIMEOUT_S

RECEIVED_AT_ONCE, ENCIPHERED_AT_ONCE, RECORD = 128 << 10, 64 << 10, 16 << 10  # as runtime/ssl_transport.py has them
PLAIN = "plain"  # instead of a certificate


class Loop:
    """The process. mode: in, out. own: its certificate and key; None for plain text. A context manager."""

    def __init__(self, mode: str, own: Path | None, file: Path, request_bytes: int, answer_bytes: int) -> None:
        given = (PLAIN if own is None else str(own), str(file), str(request_bytes), str(answer_bytes))
        self._command = [sys.executable, "-m", "benchmarks.harness.tls_loop", mode, *given]
        self._request_bytes, self._answer_bytes = request_bytes, answer_bytes

    def __enter__(self) -> Loop:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def run(self, context: ssl.SSLContext | None, count: int, in_flight: int = 5) -> float:
        """Seconds of the processor that so many requests took. context: None for plain text."""
        data, buffer = bytes(self._request_bytes), bytearray(1 << 20)
        with socket.create_connection((HOST, self._port), TIMEOUT_S) as raw:
            sock = raw if context is None else context.wrap_socket(raw, server_hostname=HOST)
            before, sent, received = self._cpu_s(), 0, 0
            while received < count * self._answer_bytes:
                while sent < min(count, received // self._answer_bytes + in_flight):
                    sock.sendall(data)
                    sent += 1
                received += sock.recv_into(buffer)
            return self._cpu_s() - before

    def _cpu_s(self) -> float:
        return time.clock_gettime_ns((~self._process.pid << 3) | 2) / 1e9  # as `Broker.cpu_s`


class _End(Protocol):
    """What a connection is to the loop."""

    def read_into(self, buffer: memoryview) -> int:
        """As much as is there and fits; 0 at the end."""
        ...

    def write(self, data: memoryview) -> None:
        """All of it."""

    def send_file(self, fd: int, answer: memoryview) -> None:
        """The first bytes of the file, as many as `answer` has room for."""


class _Plain:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.read_into = sock.recv_into
        self.write = sock.sendall

    def send_file(self, fd: int, answer: memoryview) -> None:
        sent = 0
        while sent < len(answer):
            sent += os.sendfile(self._sock.fileno(), fd, sent, len(answer) - sent)


class _Tls:
    """One connection's, over two buffers in memory."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._sock, self._received = sock, memoryview(bytearray(RECEIVED_AT_ONCE))
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._hear()
        self._flush()

    def read_into(self, buffer: memoryview) -> int:
        """As much as is there and fits; 0 at the end."""
        size = 0
        while True:
            try:
                while size < len(buffer):
                    size += self._object.read(len(buffer) - size, buffer[size:])  # type: ignore[arg-type]
            except ssl.SSLWantReadError:
                if size:
                    return size
                if not self._hear():
                    return 0
            else:
                return size

    def write(self, data: memoryview) -> None:
        """All of it."""
        for start in range(0, len(data), ENCIPHERED_AT_ONCE):
            part = data[start : start + ENCIPHERED_AT_ONCE]
            for at in range(0, len(part), RECORD):
                self._object.write(part[at : at + RECORD])
            self._flush()

    def send_file(self, fd: int, answer: memoryview) -> None:
        """As it is in memory."""
        os.preadv(fd, [answer], 0)
        self.write(answer)

    def _hear(self) -> int:
        size = self._sock.recv_into(self._received)
        self._incoming.write(self._received[:size])
        return size

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._sock.sendall(self._outgoing.read())


def serve(end: _End, mode: str, fd: int, request_bytes: int, answer: memoryview) -> None:
    """Until the other end hangs up."""
    buffer, size, position = memoryview(bytearray(256 << 10)), 0, 0
    while got := end.read_into(buffer):
        if mode == "in":
            os.pwrite(fd, buffer[:got], position)
            position = (position + got) % (64 << 20)  # the same pages again
        size += got
        while size >= request_bytes:
            size -= request_bytes
            if mode == "out":
                end.send_file(fd, answer)
            else:
                end.write(answer)


def main(mode: str, own: str, file: str, request_bytes: str, answer_bytes: str) -> None:
    """Serve on a free port, whose number is printed, until ended."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if own != PLAIN:
        context.load_cert_chain(own)
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    answer = memoryview(bytearray(int(answer_bytes)))
    if mode == "out":
        os.pwrite(fd, bytes(len(answer)), 0)
    with socket.create_server((HOST, 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            sock, _ = server.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                end: _End = _Plain(sock) if own == PLAIN else _Tls(sock, context)
                serve(end, mode, fd, int(request_bytes), answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
