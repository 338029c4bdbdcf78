"""ZooKeeper's wire format as far as `metadata_server` speaks it: frames to requests, answers and events to bytes.

Called by `sessions.py`. Knows no tree and no session. Every frame is an INT32 length and that many bytes. The first one
on a connection is a ConnectRequest, each of the others a header (INT32 xid, INT32 type) and a body; an answer's header
is INT32 xid, INT64 zxid, INT32 error. Strings and buffers have an INT32 length, -1 for null; vectors an INT32 count.

| connect request | | connect answer | |
|---|---|---|---|
| INT32 | protocol version, 0 | INT32 | protocol version, 0 |
| INT64 | last zxid seen | INT32 | session timeout in ms; 0: the session is over |
| INT32 | session timeout in ms | INT64 | session |
| INT64 | session; 0: a new one | buffer | password, 16 bytes |
| buffer | password | BOOL | read-only: as the request has it, or not |
| BOOL | read-only will do; left out by old clients | | |

Source: ZooKeeper's zookeeper.jute (3.8), and ZooDefs for the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

from kbroker.ports import Check, Children, Create, Delete, Exists, Get, Multi, SetData
from protocol.namedtuple import NamedTuple

INT, LONG = struct.Struct(">i"), struct.Struct(">q")
STAT = struct.Struct(">qqqqiiiqiiq")
_REPLY = struct.Struct(">iiqi")  # with the frame's length
_MULTI_HEADER = struct.Struct(">i?i")

EVENT_XID, PING_XID = -1, -2
SYNC_CONNECTED = 3  # the state that events are told in
ANYBODY = ("world", "anyone")
ALL_PERMISSIONS = 31
PASSWORD_BYTES = 16
_EPHEMERAL, _SEQUENTIAL = 1, 2  # flags of create; 4 and more are containers and nodes with a time to live


class Op(IntEnum):
    """Types of requests."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    AUTH = 100
    SET_WATCHES = 101
    SET_WATCHES2 = 105
    CLOSE_SESSION = -11
    ERROR = -1  # in the answer to a transaction


class Code(IntEnum):
    """Errors of answers."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114


class EventType(IntEnum):
    """What a watch tells of."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WireError(Exception):
    """A frame is none that a client sends: its connection is closed."""


class RefusedError(Exception):
    """A request that is understood and not served. code: what is answered."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


class Connect(NamedTuple):
    """Who comes. has_read_only: whether the client knows of that, and wants to hear of it."""

    last_zxid: int
    timeout_ms: int
    session: int
    password: bytes
    has_read_only: bool


class SetWatches(NamedTuple):
    """Watches that a client had on its last connection. zxid: what it has seen."""

    zxid: int
    data: Sequence[str]
    exist: Sequence[str]
    child: Sequence[str]


class PathOnly(NamedTuple):
    """The body of Sync and GetACL."""

    path: str


Write = Create | SetData | Delete | Check
Body = Create | SetData | Delete | Check | Get | Children | Exists | Multi | SetWatches | PathOnly | None


class Request(NamedTuple):
    """op: one of `Op`, or a number that is none. ops: of a transaction, the type of each part."""

    xid: int
    op: int
    body: Body
    ops: Sequence[int] = ()


Item = TypeVar("Item")


class _Reader:
    """A frame, from front to back. Raises: WireError where it ends too soon."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self.at = 0

    def int32(self) -> int:
        return self._unpack(INT)

    def int64(self) -> int:
        return self._unpack(LONG)

    def boolean(self) -> bool:
        return self._read(1) != b"\0"

    def buffer(self) -> bytes:
        size = self.int32()
        return b"" if size < 0 else self._read(size)

    def string(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError:
            raise WireError("a string that is no UTF-8") from None

    def vector(self, item: Callable[[], Item]) -> list[Item]:
        count = self.int32()
        if count > len(self._frame):  # each takes four bytes at least
            raise WireError(f"a vector of {count} in a frame of {len(self._frame)} bytes")
        return [item() for _ in range(count)]

    def ends(self) -> bool:
        return self.at >= len(self._frame)

    def _unpack(self, form: struct.Struct) -> int:
        value: int = form.unpack(self._read(form.size))[0]
        return value

    def _read(self, size: int) -> bytes:
        piece = self._frame[self.at : self.at + size]
        if len(piece) < size:
            raise WireError(f"{size} bytes are missing at {self.at} of {len(self._frame)}")
        self.at += size
        return piece


def parse_connect(frame: bytes) -> Connect:
    """The first frame of a connection. Raises: WireError."""
    reader = _Reader(frame)
    if reader.int32() != 0:
        raise WireError("this is no client of ZooKeeper's")
    last_zxid, timeout_ms, session, password = reader.int64(), reader.int32(), reader.int64(), reader.buffer()
    has_read_only = not reader.ends()
    return Connect(last_zxid, timeout_ms, session, password, has_read_only)


def parse_request(frame: bytes) -> Request:
    """Any other frame. A body that is not known is None.

    Raises: WireError; RefusedError of a request whose xid can be told by `xid_of`.
    """
    reader = _Reader(frame)
    xid, op = reader.int32(), reader.int32()
    if op == Op.MULTI:
        ops, body = _multi(reader)
        return Request(xid, op, body, ops)
    return Request(xid, op, _BODIES[op](reader) if op in _BODIES else None)


def xid_of(frame: bytes) -> int:
    """The number of a request. Raises: WireError."""
    return _Reader(frame).int32()


def _create(reader: _Reader) -> Create:
    path, data = reader.string(), reader.buffer()
    access = reader.vector(lambda: (reader.int32(), reader.string(), reader.string()))
    flags = reader.int32()
    if flags & ~(_EPHEMERAL | _SEQUENTIAL):
        raise RefusedError(Code.UNIMPLEMENTED)
    if (ALL_PERMISSIONS, *ANYBODY) not in access:
        raise RefusedError(Code.INVALID_ACL)
    return Create(path, data, ephemeral=bool(flags & _EPHEMERAL), sequential=bool(flags & _SEQUENTIAL))


def _set_watches(reader: _Reader) -> SetWatches:
    zxid = reader.int64()
    return SetWatches(zxid, *(reader.vector(reader.string) for _ in range(3)))


def _set_watches2(reader: _Reader) -> SetWatches:
    watches = _set_watches(reader)
    if reader.vector(reader.string) or reader.vector(reader.string):  # persistent ones, which cannot be set here
        raise RefusedError(Code.UNIMPLEMENTED)
    return watches


def _multi(reader: _Reader) -> tuple[list[int], Multi]:
    ops: list[int] = []
    parts: list[Write] = []
    while True:
        op, done, _ = reader.int32(), reader.boolean(), reader.int32()
        if done:
            return ops, Multi(tuple(parts))
        if op not in _WRITES:
            raise RefusedError(Code.UNIMPLEMENTED)
        ops.append(op)
        parts.append(_WRITES[op](reader))


_WRITES: dict[int, Callable[[_Reader], Write]] = {
    Op.CREATE: _create,
    Op.CREATE2: _create,
    Op.DELETE: lambda reader: Delete(reader.string(), reader.int32()),
    Op.SET_DATA: lambda reader: SetData(reader.string(), reader.buffer(), reader.int32()),
    Op.CHECK: lambda reader: Check(reader.string(), reader.int32()),
}
_BODIES: dict[int, Callable[[_Reader], Body]] = {
    **_WRITES,
    Op.EXISTS: lambda reader: Exists(reader.string(), reader.boolean()),
    Op.GET_DATA: lambda reader: Get(reader.string(), reader.boolean()),
    Op.GET_CHILDREN: lambda reader: Children(reader.string(), reader.boolean()),
    Op.GET_CHILDREN2: lambda reader: Children(reader.string(), reader.boolean()),
    Op.GET_ACL: lambda reader: PathOnly(reader.string()),
    Op.SYNC: lambda reader: PathOnly(reader.string()),
    Op.SET_WATCHES: _set_watches,
    Op.SET_WATCHES2: _set_watches2,
}


# -- answers


def string(text: str) -> bytes:
    """A string as it travels."""
    return buffer(text.encode())


def buffer(data: bytes) -> bytes:
    """Bytes as they travel: none at all are null, as Apache's brokers want them for a node without content."""
    return INT.pack(len(data)) + data if data else INT.pack(-1)


def vector(items: Iterable[bytes]) -> bytes:
    """Several, each as it travels."""
    parts = list(items)
    return INT.pack(len(parts)) + b"".join(parts)


def access() -> bytes:
    """The access list of every node: all for each client."""
    return vector([INT.pack(ALL_PERMISSIONS) + string(ANYBODY[0]) + string(ANYBODY[1])])


def connect_answer(timeout_ms: int, session: int, password: bytes, *, has_read_only: bool) -> bytes:
    """The frame that answers a Connect. timeout_ms: 0 if the session is over."""
    head = INT.pack(0) + INT.pack(timeout_ms) + LONG.pack(session) + INT.pack(len(password)) + password
    return _framed(head + (b"\0" if has_read_only else b""))


def reply(xid: int, zxid: int, code: int, body: bytes = b"") -> bytes:
    """The frame that answers a request. body: empty unless all went well."""
    return _REPLY.pack(_REPLY.size - INT.size + len(body), xid, zxid, code) + body


def event(kind: EventType, path: str) -> bytes:
    """The frame of a watch that has fired."""
    return reply(EVENT_XID, -1, Code.OK, INT.pack(kind) + INT.pack(SYNC_CONNECTED) + string(path))


def multi_part(op: int, body: bytes) -> bytes:
    """One part of a transaction that was done."""
    return _MULTI_HEADER.pack(op, False, Code.OK) + body


def multi_fault(code: int) -> bytes:
    """One part of a transaction that was not done."""
    return _MULTI_HEADER.pack(Op.ERROR, False, code) + INT.pack(code)


MULTI_END = _MULTI_HEADER.pack(-1, True, -1)


def _framed(body: bytes) -> bytes:
    return INT.pack(len(body)) + body
