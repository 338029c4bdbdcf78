"""A client's connection over a socket that waits: for programs that ask one thing after the other.

Puts `kbroker.client.Connection` over a socket that is connected already, inside TLS or not. Used by the pipeline, by
tests and by benchmarks; a broker itself never waits.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kbroker.client import Connection, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.client import Answer
    from protocol.message import Message

ANSWER_S = 30.0  # request.timeout.ms of Kafka's clients


def connect(host: str, port: int, connect_s: float = ANSWER_S) -> socket.socket:
    """A socket that is connected. Raises: OSError."""
    sock = socket.create_connection((host, port), timeout=connect_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class BlockingConnection:
    """One connection to one broker; requests may be sent before earlier ones are answered. A context manager.

    socket: as it was given; it is closed with this. answer_s: how long each answer is waited for. negotiates:
    `negotiate` comes first; without it, what is asked has to be served. authenticates: a login follows that.
    """

    def __init__(
        self,
        sock: socket.socket,
        client_id: str,
        *,
        answer_s: float = ANSWER_S,
        negotiates: bool = False,
        authenticates: bool = False,
    ) -> None:
        self.socket = sock
        self.protocol = Connection(client_id, authenticates=authenticates)
        self.wait(answer_s)
        self._answers: deque[Answer] = deque()
        self._is_answered = False
        if not negotiates:
            self.protocol.connected()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, answer_s: float) -> None:
        """Wait so long for an answer from now on."""
        self._answer_s = answer_s
        self.socket.settimeout(answer_s)

    def negotiate(self) -> None:
        """Ask which versions the broker serves: `protocol.served` from then on. Raises: OSError."""
        self.send_bytes(self.protocol.negotiate("kbroker", "1"))
        self._hear(lambda: self.protocol.in_flight == 0)

    def ask(self, request: Message, version: int) -> Any:
        """Send, and wait for the answer, which has to be the next one. Raises: OSError."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Message, version: int) -> None:
        """Without waiting for the answer. Raises: OSError."""
        if self.protocol.state is State.CLOSED:
            raise ConnectionError("the connection has ended before")
        self.send_bytes(self.protocol.ask(request, version))

    def send_bytes(self, data: bytes | bytearray) -> None:
        """As they are, all of them. Raises: OSError."""
        self.socket.sendall(data)

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet; its bytes are its own. Raises: OSError, DecodeError."""
        self._hear(lambda: bool(self._answers))
        answer = self._answers.popleft()
        self.protocol.keep()
        self._is_answered = True
        return answer.decode()

    def _hear(self, enough: Callable[[], bool]) -> None:
        give_up_s = time.monotonic() + self._answer_s
        try:
            while not enough():
                size = self.socket.recv_into(self.protocol.buffer())
                if not size:
                    self.protocol.ended()
                    # what a listener does that wants a login, once it is asked for more than its versions
                    guess = "" if self._is_answered else ": it may want another security.protocol"
                    raise ConnectionError(f"the broker hung up{guess}")
                self._answers += self.protocol.received(size)
                self.socket.settimeout(max(give_up_s - time.monotonic(), 0.001))
        finally:
            self.socket.settimeout(self._answer_s)

    def close(self) -> None:
        """Hang up."""
        self.protocol.close()
        self.socket.close()
