"""A test's own questions to its brokers: one blocking connection for each broker asked, gone with the answer.

They go over the wire like anybody's, under a name that faults and history pass by.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self

from kbroker.faults.core import OWN_CLIENT
from kbroker.usage import UsageError
from protocol.apis import BY_KEY
from protocol.headers import encode_request_header, parse_response_header
from protocol.message import Message

ANSWER_S = 15.0


class Connection:
    """To one broker."""

    def __init__(self, host: str, port: int) -> None:
        """Raises: UsageError if nobody listens there."""
        self._where = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
        except OSError as error:
            raise UsageError(
                f"no broker answers at {self._where} ({error.strerror}): is it stopped? Call start()"
            ) from None
        self._number = 0

    def ask(self, request: Message, version: int) -> Any:
        """The response. Raises: UsageError if there is none."""
        assert request.api is not None
        self._number += 1
        frame = encode_request_header(type(request), version, self._number, OWN_CLIENT) + request.encode(version)
        response = BY_KEY[request.api].response
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            answer = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        except TimeoutError:
            raise UsageError(f"the broker at {self._where} does not answer: is it paused? Call resume()") from None
        except OSError:
            raise UsageError(f"the broker at {self._where} hung up: was it stopped meanwhile?") from None
        _, start = parse_response_header(response, version, answer)
        return response.decode(memoryview(answer)[start:], version)

    def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            data = self._socket.recv(size - len(got))
            if not data:
                raise ConnectionError
            got += data
        return bytes(got)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Connections:
    """To all brokers that the first one knows; in a `with` block."""

    def __init__(self, bootstrap: str) -> None:
        """bootstrap: `host:port`, or several with commas: the first that listens is asked."""
        self._addresses = bootstrap.split(",")
        self._open: dict[str, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open.values():
            connection.close()

    def to(self, address: str) -> Connection:
        """The connection to one address."""
        if address not in self._open:
            host, _, port = address.rpartition(":")
            self._open[address] = Connection(host, int(port))
        return self._open[address]

    def any(self) -> Connection:
        """A connection to whichever broker answers. Raises: UsageError if none does."""
        for at, address in enumerate(self._addresses):
            try:
                return self.to(address)
            except UsageError:
                if at == len(self._addresses) - 1:
                    raise
        raise AssertionError(self._addresses)
