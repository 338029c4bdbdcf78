"""What stands in front of every request and answer: which API, which version, whose.

    request   0  2  api_key                       answer   0  4  correlation_id
              2  2  api_version                            4  .  tagged fields (header version 1)
              4  4  correlation_id
              8  .  client_id: 2 bytes of length, -1 none  (header versions 1 and 2)
              .  .  tagged fields                          (header version 2)

A request whose version is flexible has header version 2, any other has 1; ControlledShutdown version 0, older than
client ids, has 0. An answer of a flexible version has header version 1, any other 0; ApiVersions always 0, since its
reader does not yet know what the broker speaks (KIP-511). The client id keeps its two-byte length in all versions, so
that a header can be read up to there before the version is known to be served.

Called by each receiver of a frame: `parse_request_header` costs one unpack and builds no object.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import TYPE_CHECKING

from protocol.message import DecodeError
from protocol.namedtuple import NamedTuple
from protocol.primitives import read_uvarint, utf8

if TYPE_CHECKING:
    from protocol.message import Message

API_VERSIONS = 18
CONTROLLED_SHUTDOWN = 7

_FIXED = Struct(">hhih")
CORRELATION_AT, BEHIND_CORRELATION = 4, 8
_WITHOUT_CLIENT_BYTES = 8
_CORRELATION = Struct(">i")
NO_TAGS = b"\x00"
MOST_TAGS = 1_000  # there are none that count; two bytes each, a frame could have millions, passed over one by one


class RequestHeader(NamedTuple):
    """A request's header up to the client id. end: where the tagged fields, or the body, begin."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    end: int


def parse_request_header(frame: bytes | bytearray | memoryview) -> tuple[int, int, int, str | None, int]:
    """The fields of `RequestHeader`, as a plain tuple. Raises: DecodeError.

    A header of version 0 ends where the client id would begin; of all APIs only ControlledShutdown 0 has it.
    """
    try:
        api_key, version, correlation_id, size = _FIXED.unpack_from(frame)
    except StructError:
        return _short_header(frame)
    if api_key == CONTROLLED_SHUTDOWN and version == 0:
        return api_key, version, correlation_id, None, _WITHOUT_CLIENT_BYTES
    if size < 0:
        if size != -1:
            raise DecodeError("client_id", f"length {size}")
        return api_key, version, correlation_id, None, _FIXED.size
    end = _FIXED.size + size
    if end > len(frame):
        raise DecodeError("client_id", f"{size} bytes, {len(frame) - _FIXED.size} left")
    try:
        return api_key, version, correlation_id, str(frame[_FIXED.size : end], "utf-8"), end
    except UnicodeDecodeError:
        return api_key, version, correlation_id, utf8(frame[_FIXED.size : end]), end


def _short_header(frame: bytes | bytearray | memoryview) -> tuple[int, int, int, str | None, int]:
    """A header of fewer bytes than one with a client id has."""
    if len(frame) >= _WITHOUT_CLIENT_BYTES and bytes(frame[:4]) == b"\x00\x07\x00\x00":
        return CONTROLLED_SHUTDOWN, 0, int.from_bytes(frame[4:8], "big", signed=True), None, _WITHOUT_CLIENT_BYTES
    raise DecodeError("header", f"{len(frame)} bytes are no request")


def skip_tags(frame: bytes | bytearray | memoryview, position: int) -> int:
    """Behind the tagged fields at `position`, of which request headers have none that matter. Raises: DecodeError."""
    try:
        if frame[position] == 0:
            return position + 1
        count, position = read_uvarint(frame, position)
        if count > MOST_TAGS:
            raise DecodeError("header.tags", f"{count} of them: at most {MOST_TAGS} are taken")
        for _ in range(count):
            _, position = read_uvarint(frame, position)
            size, position = read_uvarint(frame, position)
            position += size
            if position > len(frame):
                raise IndexError(position)
    except IndexError:
        raise DecodeError("header.tags", "end of the frame") from None
    except ValueError as error:
        raise DecodeError("header.tags", str(error)) from None
    return position


def request_header_version(message: type[Message], version: int) -> int:
    """0, 1 or 2, of a request class in one version."""
    if message.flexible[0] <= version <= message.flexible[1]:
        return 2
    return 0 if message.api == CONTROLLED_SHUTDOWN and version == 0 else 1


def response_header_version(message: type[Message], version: int) -> int:
    """0 or 1, of a request or response class in one version."""
    if message.api == API_VERSIONS:
        return 0
    return 1 if message.flexible[0] <= version <= message.flexible[1] else 0


def encode_request_header(message: type[Message], version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request of this class. client_id: at most 32767 bytes of UTF-8."""
    assert message.api is not None, message
    head = Struct(">hhi").pack(message.api, version, correlation_id)
    header_version = request_header_version(message, version)
    if header_version == 0:
        return head
    name = None if client_id is None else client_id.encode()
    head += b"\xff\xff" if name is None else len(name).to_bytes(2, "big", signed=True) + name
    return head + NO_TAGS if header_version == 2 else head


def encode_response_header(message: type[Message], version: int, correlation_id: int) -> bytes:
    """The header of an answer of this class."""
    head = _CORRELATION.pack(correlation_id)
    return head + NO_TAGS if response_header_version(message, version) else head


def parse_response_header(message: type[Message], version: int, frame: bytes | memoryview) -> tuple[int, int]:
    """Correlation id, and where the body begins. Raises: DecodeError."""
    if len(frame) < _CORRELATION.size:
        raise DecodeError("header", f"{len(frame)} bytes are no answer")
    (correlation_id,) = _CORRELATION.unpack_from(frame)
    if response_header_version(message, version):
        return correlation_id, skip_tags(frame, _CORRELATION.size)
    return correlation_id, _CORRELATION.size
