"""Requests that kafka-python has no classes for, in our own, over its connections.

A connection of that client sends whatever has the handful of attributes below, so what the commands ask takes the same
way, with the same login, as all else that they ask.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from protocol.apis import BY_KEY
from protocol.headers import encode_request_header, parse_response_header
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

    from protocol.message import Message


def ask(admin: KafkaAdminClient, request: Message, node_id: int | None = None) -> Any:
    """A broker's answer. node_id: which broker; None: any. Raises: the client's errors; IncompatibleBrokerVersion
    where the broker does not serve the request."""
    return admin._manager.run(admin._manager.send, _Asked(request), node_id)


class _Asked:
    """A request, as a connection of kafka-python takes it."""

    _min_version = _max_version = None

    def __init__(self, request: Message) -> None:
        self._request = request
        self.name = type(request).__name__
        self.min_version, self.max_version = request.versions[0], request.versions[-1]
        self.API_KEY = request.api
        self.API_VERSION: int | None = None
        self.header: _Expected | None = None
        self._head = b""

    def with_header(self, correlation_id: int, client_id: str) -> None:
        """Make its header."""
        assert self.API_VERSION is not None
        self.header = _Expected(type(self._request), self.API_VERSION, correlation_id)
        self._head = encode_request_header(type(self._request), self.API_VERSION, correlation_id, client_id)

    def encode(self, *, framed: bool, header: bool) -> bytes:
        """The request's frame."""
        assert framed
        assert header
        assert self.API_VERSION is not None
        frame = self._head + self._request.encode(self.API_VERSION)
        return len(frame).to_bytes(4, "big") + frame

    def expect_response(self) -> bool:
        """All of ours are answered."""
        return True


class _Head(NamedTuple):
    correlation_id: int


class _Expected:
    """The answer that is to come: in the client it is found by the request's header, and decodes itself."""

    def __init__(self, request: type[Message], version: int, correlation_id: int) -> None:
        assert request.api is not None
        self._answer, self._version = BY_KEY[request.api].response, version
        self.correlation_id = correlation_id
        self.api_key, self.api_version = request.api, version

    def get_response_class(self) -> _Expected:
        """Itself."""
        return self

    def parse_header(self, frame: BytesIO) -> _Head:
        """Read the header, and leave the reader behind it."""
        data = frame.read()
        correlation_id, at = parse_response_header(self._answer, self._version, data)
        frame.seek(frame.tell() - len(data) + at)
        return _Head(correlation_id)

    def decode(self, frame: BytesIO) -> Message:
        """Read the rest. Raises: ValueError."""
        return self._answer.decode(frame.read(), self._version)
