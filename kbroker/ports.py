"""The doors through which the core reaches the world: time, chance, the disk, the cluster's metadata, other brokers.

Owns the protocols and the values they speak in. The core is handed objects that satisfy them; `runtime` implements
them on the operating system and `sim` in memory, and one contract test (`tests/contracts/`) runs on both. Nothing here
does anything.

What is durable when (the promise of `Disk` and `File`, which the log relies on and the simulated disk breaks
whenever it is allowed to):

| call                                  | durable after                                        |
|---------------------------------------|------------------------------------------------------|
| `File.write`, `File.resize`           | `File.sync` of any handle on the same file           |
| a file made by `Disk.open`, `make_dir`| `Disk.sync_dir` of the folder that holds the name    |
| `rename`                              | `Disk.sync_dir` of both folders; always all or nothing |
| `remove`, `remove_dir`                | `Disk.sync_dir` of the folder that held the name     |

Until then a crash may keep, drop, reorder or tear it: a write may be there in part, later writes may be there without
earlier ones, a file may have its new size and zeros for content. A file whose content was synced but whose name was
not may be gone. Names of one folder change in order: a later change does not survive an earlier one (so it is on every
journaling file system). After an `OSError` from `sync`, what was written since the last good `sync` must be taken as
lost.

Failures are `OSError` with an `errno` (EIO, ENOSPC, EROFS, EACCES, EMFILE, ...), as the operating system reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from protocol.flat import Flat
    from protocol.message import Message

Buffer = bytes | bytearray | memoryview
"""Bytes that a write takes without copying them."""

OpenMode = Literal["read", "write", "create"]
"""How `Disk.open` opens: an existing file to read; an existing file to read and write; the same, made if missing."""


class Clock(Protocol):
    """Time as the core is told it."""

    def now_ms(self) -> int:
        """Milliseconds on a clock that never goes back: for timers and deadlines.

        It starts at the wall clock's time when the process starts, and is not set after that. While the machine sleeps
        it stands still, so the age of a committed offset, or of a transactional id, which a later process asks for,
        goes by `wall_ms`.
        """
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC: for timestamps in records, and by them. May jump either way."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds on a clock that never goes back, from any start: for how long work takes."""
        ...


class Random(Protocol):
    """Chance as the core is told it: seeded in a simulation, from the operating system otherwise."""

    def below(self, limit: int) -> int:
        """A whole number in [0, limit), all equally likely. limit: >= 1."""
        ...

    def token(self, size: int) -> bytes:
        """`size` random bytes, fit for ids that must not repeat."""
        ...


class Entry(NamedTuple):
    """One name in a folder."""

    name: str
    size: int  # bytes; 0 for what is no file
    modified_ms: int  # wall clock
    is_dir: bool
    is_odd: bool = False  # neither folder nor file: a pipe, a socket, a device, a link that leads nowhere


class File(Protocol):
    """An open file, addressed by position: there is no cursor.

    `read` and `sync` may be called from any thread, everything else only by the thread that owns the log. A handle
    stays good when its file is renamed or removed, so a holder of one (a region on its way to a socket, an fsync
    on the pool) needs no lock: it is closed by `close` or when its last holder lets go of it.
    """

    def size(self) -> int:
        """The file's length in bytes."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only where the file ends."""
        ...

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Put all the buffers, one behind the other, at `position`, making the file longer as needed.

        Raises OSError; then any part of the bytes may have been written, and the size may have grown. A hole left
        before `position` reads as zeros.
        """
        ...

    def resize(self, size: int) -> None:
        """Cut the file to `size` bytes, or lengthen it with zeros (which take no space until written)."""
        ...

    def sync(self) -> None:
        """Return once content and size are durable (the name is `Disk.sync_dir`'s business). May take long."""
        ...

    def map(self) -> memoryview:
        """The whole file as read-only memory; later writes inside its present size show through.

        Good until the file is resized: then drop it and map again. An empty file maps to an empty view.
        """
        ...

    def close(self) -> None:
        """Let go of the descriptor; idempotent. Maps made before stay good. Makes nothing durable."""
        ...


class Region:
    """A stretch of an open file on its way out, standing for its bytes without holding them.

    `len(region)` is its length in bytes. The runtime sends it with sendfile; its holder keeps the file open.
    """

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        """The bytes themselves: for conversion and tests, not for the way to a socket."""
        return self.file.read(self.position, self.size)

    def __repr__(self) -> str:
        return f"Region({self.file!r}, position={self.position}, size={self.size})"


class Lock(Protocol):
    """A folder taken by this process."""

    def release(self) -> None:
        """Let others take it; idempotent. A process that dies releases its locks."""
        ...


class Volume(NamedTuple):
    """A file system's size, and the space left to us on it, in bytes."""

    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Files by path. Paths are absolute, with `/` between names."""

    def open(self, path: str, mode: OpenMode) -> File:
        """Open a file. Raises FileNotFoundError (also when the folder of a new file is missing) and other OSErrors."""
        ...

    def list(self, path: str) -> list[Entry]:
        """What is in a folder, in no order; [] if empty. Raises FileNotFoundError, NotADirectoryError."""
        ...

    def stat(self, path: str) -> Entry | None:
        """One file or folder, or None where there is none."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file or folder another name, atomically; a file already at `new` is replaced."""
        ...

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Say of a file that it was last changed then. modified_ms: wall clock. Raises FileNotFoundError."""
        ...

    def remove(self, path: str) -> None:
        """Take a file's name away. Raises FileNotFoundError."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a folder; its parent must exist. Raises FileExistsError."""
        ...

    def remove_dir(self, path: str) -> None:
        """Take an empty folder away. Raises OSError (ENOTEMPTY) if it is not."""
        ...

    def sync_dir(self, path: str) -> None:
        """Return once the names in this folder (not the content of its files) are durable. Any thread."""
        ...

    def lock(self, path: str) -> Lock:
        """Take a lock file, made if missing, until released. Raises BlockingIOError if another holds it."""
        ...

    def volume(self, path: str) -> Volume:
        """The volume that holds `path`."""
        ...


# -- the cluster's metadata


class Stat(NamedTuple):
    """What the metadata store knows of a node beside its data."""

    czxid: int  # number of the transaction that made it; rises over the whole store
    mzxid: int  # ... that last set its data
    version: int  # how often its data was set, 0 when new
    children_version: int  # how often a child was made or deleted
    session: int  # whose ephemeral node it is; 0: no session's


class Create(NamedTuple):
    """Make a node; its parent must exist and not be ephemeral.

    ephemeral: gone with the session that made it. sequential: ten digits are added to the name, counted by the parent.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(NamedTuple):
    """Replace a node's data. version: the one it must have; -1 any."""

    path: str
    data: bytes
    version: int = -1


class Delete(NamedTuple):
    """Take away a node without children. version: the one it must have; -1 any."""

    path: str
    version: int = -1


class Check(NamedTuple):
    """Do nothing if the node has this version, else fail: in a Multi, a fence."""

    path: str
    version: int


class Get(NamedTuple):
    """Read a node. watch: say so, once, when its data is next set or it is deleted."""

    path: str
    watch: bool = False


class Children(NamedTuple):
    """Names of a node's children, sorted. watch: say so, once, when one is made or deleted, or the node deleted."""

    path: str
    watch: bool = False


class Exists(NamedTuple):
    """Whether there is such a node. watch: say so, once, when it is made, set or deleted."""

    path: str
    watch: bool = False


class Multi(NamedTuple):
    """All of these or none, in one transaction."""

    operations: tuple[Create | SetData | Delete | Check, ...]


Operation: TypeAlias = Create | SetData | Delete | Check | Get | Children | Exists | Multi


class StoreFault(Enum):
    """Why the metadata store did not do an operation. Source: ZooKeeper's KeeperException.Code."""

    NO_NODE = "there is no such node, or no parent to make it in"
    NODE_EXISTS = "there is such a node already"
    BAD_VERSION = "the node has another version"
    NOT_EMPTY = "the node has children"
    NO_CHILDREN_FOR_EPHEMERALS = "ephemeral nodes have no children"
    ROLLED_BACK = "another part of the transaction failed"
    REFUSED = "the store does not let us: no right to the node, or a request that it does not take"
    SESSION_EXPIRED = "the session is over; whether the operation was done is not known"
    CONNECTION_LOST = "the connection was lost and the session goes on; whether the operation was done is not known"


class Outcome(NamedTuple):
    """What became of one operation.

    fault: None if it was done. path: the node's, with its number if sequential. stat: the node's after the operation;
    None after Delete and Check, and where Exists found nothing (which is no fault). data: of Get. names: of Children.
    parts: of Multi, one for each of its operations; the first whose fault is not ROLLED_BACK made it fail.
    """

    fault: StoreFault | None
    path: str
    stat: Stat | None = None
    data: bytes = b""
    names: tuple[str, ...] = ()
    parts: tuple[Outcome, ...] = ()


class StoreAnswer(NamedTuple):
    """The outcomes of one `submit`, in the order of its operations."""

    token: object
    outcomes: tuple[Outcome, ...]


class NodeChanged(NamedTuple):
    """A watch has fired; it is gone now, and who still cares reads again with a new one."""

    path: str
    kind: Literal["made", "deleted", "set", "children"]


class SessionStarted(NamedTuple):
    """The store can be used from now on, as this session."""

    session: int


class SessionExpired(NamedTuple):
    """The session is over, with its ephemeral nodes and watches. A SessionStarted follows once there is a new one."""


StoreEvent: TypeAlias = StoreAnswer | NodeChanged | SessionStarted | SessionExpired
Post: TypeAlias = Callable[[StoreEvent], None]
"""How a metadata store says what happened: its opener gives one, and takes care that it never re-enters the core
from within `submit`."""


class MetadataStore(Protocol):
    """A small tree of versioned nodes that all brokers of a cluster share, with ZooKeeper's meaning.

    Paths are absolute, `/` between names. Operations take effect in the order they are submitted. An answer to a read
    never arrives before the NodeChanged of a change that the read has seen. What was answered is durable. What is
    submitted while there is no connection waits for it; what was under way when it was lost is CONNECTION_LOST.
    """

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Do these one after the other; each succeeds or fails by itself. A StoreAnswer with `token` follows."""
        ...

    def close(self) -> None:
        """End the session now, so that its ephemeral nodes vanish at once; nothing is posted afterwards."""
        ...


# -- other brokers


BROKER_SOFTWARE = "kbroker"
"""What a broker says of itself in the ApiVersions of its connections to others (KIP-511)."""

CONTROL, TO_CONTROLLER, IN_SYNC, FETCHER = "control", "to-controller", "in-sync", "fetcher"
MARKERS, TRANSACTIONS = "markers", "transactions"
SHARE_STATE, DEAD_LETTERS, END_OFFSETS = "share-state", "dead-letters", "end-offsets"
QUORUM, LIFE = "quorum", "life"
"""Purposes of connections: what a controller says, and is asked; replication; what coordinators of transactions say,
and ask; what share coordinators are asked, records for the dead letter queues of share groups, and where the
partitions end that these read; of a member of a quorum: the metadata log, and its registration and heartbeats.

In-sync sets have a connection of their own: they go to the control plane's listener, where a controller has one.
Further fetchers to one broker are `fetcher-1`, `fetcher-2` and so on.
"""


class Endpoint(NamedTuple):
    """One listener of a broker, as advertised."""

    listener: str
    security_protocol: int  # 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL
    host: str
    port: int


class PeerFaultKind(Enum):
    """Why there is no answer."""

    REFUSED = "no connection came about"
    RESET = "the connection ended before the answer"
    TIMED_OUT = "no answer came in time"
    OUT_OF_TURN = "what came is not the answer that was due"
    STRANGER = "at this address is a broker of another cluster, or another one of ours"
    UNSUPPORTED = "the broker does not serve this version"
    NOT_LET_IN = "it does not let this broker log in"
    UNSPOKEN = "its listener has a security protocol in which this broker asks nothing"


Versions: TypeAlias = "int | tuple[int, int]"
"""Of a request: the one in which it is asked; or a pair, of which the newest is meant that the other side serves."""


class FlatRequest(NamedTuple):
    """A request as the tuple of its fields (`protocol/flat.py`), and of which class: its answer is a tuple, too."""

    kind: type[Message]
    values: Flat


class PeerAnswer(NamedTuple):
    """Another broker has answered. response: its records are views, good until this event has been handled."""

    token: object
    response: Message | Flat


class PeerFault(NamedTuple):
    """A request got no answer. was_sent: whether it left, so that the broker may have obeyed, or may yet."""

    token: object
    kind: PeerFaultKind
    was_sent: bool
    why: str


PeerEvent: TypeAlias = PeerAnswer | PeerFault
"""What becomes of a request: one of these, posted like a store's events, never from within `send`."""


class Peers(Protocol):
    """The other brokers, spoken to on connections: each is to one broker and for one purpose.

    A connection has one request under way at a time, so all of it is in order: requests reach the broker in the order
    they were sent, and their ends are posted in it. When one fails, so does everything that stands behind it on the
    connection; what is sent after that begins again. A connection connects when there is something to say, and after a
    failure waits before it does so again, 50 ms at first and up to a second; what it was given meanwhile waits with it.
    On each new connection it makes sure that it has reached a broker, or a controller, of this cluster. A number below
    0 stands for a node of which only the address is known. Requests of an earlier life of
    the broker are not its business: they carry a broker epoch, and who gets one that is not its own says so in the
    answer.
    """

    def join(self, cluster_id: str) -> None:
        """The cluster whose brokers may be spoken to. Before the first `send`."""
        ...

    def send(
        self,
        broker_id: int,
        endpoint: Endpoint,
        purpose: str,
        request: Message | FlatRequest,
        version: Versions,
        token: object,
        timeout_ms: int,
    ) -> None:
        """Ask a broker something. A PeerAnswer or PeerFault with `token` follows, unless it is dropped before.

        endpoint: if it is another one than before, what is on the connection to the old one fails. timeout_ms: from
        when the request is the first on its connection until its answer is there, connecting included.
        """
        ...

    def drop(self, broker_id: int, purpose: str) -> None:
        """Forget a connection and what is on it; nothing more is posted of it. Nothing happens if there is none."""
        ...

    def close(self) -> None:
        """Drop every connection; nothing is posted afterwards."""
        ...
