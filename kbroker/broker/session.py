"""A connection as the broker's parts and handlers know it: where it came in, who is at its other end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.ports import BROKER_SOFTWARE
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.security.login import Login


class Principal(NamedTuple):
    """Who a client is: the type, User unless a plug-in has others, and the name."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal("User", "ANONYMOUS")
"""A client that has not authenticated."""


class Grants:
    """What a principal at a host is known to be allowed, so that it is not asked again: until a rule changes.

    readable: names of topics; None for one without a name, which is refused elsewhere. writable: (name, id) as requests
    have them.
    """

    __slots__ = ("readable", "writable")

    def __init__(self) -> None:
        self.readable: set[str | None] = set()
        self.writable: set[tuple[str, bytes]] = set()

    def read(self, topics: Iterable[str | None]) -> None:
        """These topics may be read. The caller has asked the authorizer just now."""

    def write(self, topics: Iterable[tuple[str, bytes]]) -> None:
        """These topics may be written to. As above."""


NOTHING = Grants()
"""Where no authorizer remembers anything."""


UNMETERED: tuple[object, Any] = (object(), None)
"""Of no client id."""


class Session:
    """One connection as handlers know it, for its whole life."""

    __slots__ = (
        "_principal",
        "by_token",
        "client_software",
        "fetched",
        "grants",
        "is_controller",
        "listener",
        "login",
        "mechanism",
        "peer_host",
        "peer_port",
        "produced",
        "request",
        "security_protocol",
    )

    def __init__(self, listener: str, peer_host: str, peer_port: int, security_protocol: str = "PLAINTEXT") -> None:
        self.listener = listener  # the name under which it came in: answers advertise this listener's addresses
        self.peer_host = peer_host
        self.peer_port = peer_port
        self.security_protocol = security_protocol  # of the listener
        self.principal = ANONYMOUS  # until a certificate or a login has shown who it is
        self.login: Login | None = None  # under way, or to be repeated some time
        self.mechanism = ""  # of SASL, by which it has logged in
        self.by_token = False  # it has logged in by a delegation token
        self.client_software = ""  # "name version", from ApiVersions v3+ (KIP-511)
        self.request = ""  # the API that was asked for last, where that is asked for
        # The id of the client that asked last, and the meter of its quota (`rates.py`).
        self.produced = self.fetched = UNMETERED
        self.is_controller = False  # has sent LeaderAndIsr, StopReplica or UpdateMetadata

    @property
    def principal(self) -> Principal:
        """Who is at the other end."""
        return self._principal

    @principal.setter
    def principal(self, principal: Principal) -> None:
        self._principal = principal
        self.grants = NOTHING
        self.produced = self.fetched = UNMETERED

    @property
    def says_it_is_a_broker(self) -> bool:
        """Whether kbroker is at the other end: nothing is allowed by it, for anybody may say so."""
        return self.client_software.partition(" ")[0] == BROKER_SOFTWARE

    def __repr__(self) -> str:
        return f"{self.peer_host}:{self.peer_port} on {self.listener}"
