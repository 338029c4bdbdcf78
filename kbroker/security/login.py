"""A login as the broker sees it: which request may come next, and what each mechanism says to a token.

Pure: tokens in, verdicts out. `broker/logins.py` makes one for each connection to a listener that speaks SASL, and does
what a verdict wants done; `core.py` asks it whether a frame may be looked at at all. The states are Kafka's
(SaslServerAuthenticator):

    INITIAL_REQUEST --ApiVersions--> HANDSHAKE --SaslHandshake--> AUTHENTICATE --the last token--> COMPLETE
      |      |  (of a version that is not known: HANDSHAKE_OR_VERSIONS)  ^                          |    |
      |      +-----------------------SaslHandshake-----------------------+------- again ------------+    |
      |                                                                  ^                               |
      +--> FAILED, from each                                             +--- SaslHandshake --- EXPIRED <+

The row of a state in `RULES` is which states may follow, and the API keys that are handled in it. After SaslHandshake 0
tokens come bare, without a header; after 1 in SaslAuthenticate. A login again, on the same connection (KIP-368), has to
be by the same mechanism and as the same principal.

Unlike Kafka: the token of a client of 0.9 that sends no SaslHandshake (GSSAPI) is not understood. Another request in
the middle of a login is not parsed and answered by ILLEGAL_SASL_STATE: the connection ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol, TypeAlias

from protocol.namedtuple import NamedTuple

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36

MIN_REAUTH_INTERVAL_MS = 1000
"""A client may log in again once a second. Source: KafkaChannel of Apache Kafka 3.9."""


class State(Enum):
    """Where a login stands."""

    INITIAL_REQUEST = "initial request"
    HANDSHAKE_OR_VERSIONS = "handshake or versions"
    HANDSHAKE = "handshake"
    AUTHENTICATE = "authenticate"
    COMPLETE = "complete"
    EXPIRED = "expired"  # the client has to log in again
    FAILED = "failed"

    __hash__ = object.__hash__  # each is one object


INITIAL_REQUEST, HANDSHAKE_OR_VERSIONS, HANDSHAKE = State.INITIAL_REQUEST, State.HANDSHAKE_OR_VERSIONS, State.HANDSHAKE
AUTHENTICATE, COMPLETE, EXPIRED, FAILED = State.AUTHENTICATE, State.COMPLETE, State.EXPIRED, State.FAILED

_FIRST = frozenset({API_VERSIONS, SASL_HANDSHAKE})
_ALL = frozenset(range(1 << 10))
RULES: dict[State, tuple[set[State], frozenset[int]]] = {
    INITIAL_REQUEST: ({HANDSHAKE_OR_VERSIONS, HANDSHAKE, AUTHENTICATE, FAILED}, _FIRST),
    HANDSHAKE_OR_VERSIONS: ({HANDSHAKE_OR_VERSIONS, HANDSHAKE, AUTHENTICATE, FAILED}, _FIRST),
    HANDSHAKE: ({AUTHENTICATE, FAILED}, frozenset({SASL_HANDSHAKE})),
    AUTHENTICATE: ({COMPLETE, FAILED}, frozenset({SASL_AUTHENTICATE})),
    COMPLETE: ({AUTHENTICATE, EXPIRED, FAILED}, _ALL),
    EXPIRED: ({AUTHENTICATE, FAILED}, frozenset({SASL_HANDSHAKE})),
    FAILED: (set(), frozenset()),
}


class Reason(Enum):
    """Why a login failed, as it is counted."""

    CREDENTIALS = "credentials"  # no such user, or another password
    TOKEN = "token"  # it is not signed as it should be, is not for us, or has expired
    MALFORMED = "malformed"  # a token that the mechanism does not know
    MECHANISM = "mechanism"  # it is not enabled, or changed on the way
    STATE = "state"  # a request at the wrong moment
    UNAVAILABLE = "unavailable"  # what checks it cannot say: keys that were not fetched, a callback that failed
    EXPIRED = "expired"  # a session that was over sent something else than a login


class LoginError(Exception):
    """A login has failed.

    reason: as it is counted. told: what the client may know of it; None where it may only know that. Both, and the
    text, hold no password and no token.
    """

    def __init__(self, reason: Reason, text: str, told: str | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.told = told


class Challenge(NamedTuple):
    """The client has to say more. token: for the client."""

    token: bytes


class Accepted(NamedTuple):
    """The client is who it says it is.

    token: the last one for the client. expires_ms: when what it has shown ends, on the wall's clock; None for never.
    by_token: it has shown a delegation token.
    """

    user: str
    token: bytes = b""
    expires_ms: int | None = None
    by_token: bool = False


class Beside(NamedTuple):
    """Who the client is has to be asked elsewhere, which may take long. check: does that, on any thread.

    It returns an `Accepted`, or raises LoginError.
    """

    check: Callable[[], Accepted]


Verdict: TypeAlias = Challenge | Accepted | Beside


class Mechanism(Protocol):
    """The broker's end of one exchange."""

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """What a token of the client's comes to. Raises: LoginError."""
        ...


class Login:
    """One connection's. mechanisms: those that are enabled, by name, each made for one exchange.

    most_bytes: of a frame, until it is complete.

    state: where it stands. mechanism: the one agreed to; empty before. is_bare: tokens come without a header. user:
    whom it was accepted as, empty before. began_again_ms: when it did that last.
    """

    __slots__ = ("_exchange", "began_again_ms", "is_bare", "mechanism", "mechanisms", "most_bytes", "state", "user")

    def __init__(self, mechanisms: Mapping[str, Callable[[], Mechanism]], most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.state = INITIAL_REQUEST
        self.mechanisms = mechanisms
        self.mechanism = ""
        self.is_bare = False
        self.user = ""
        self.began_again_ms: int | None = None
        self._exchange: Mechanism | None = None

    @property
    def takes_bare_token(self) -> bool:
        """Whether the next frame is a token without a header."""
        return self.is_bare and self.state is AUTHENTICATE

    @property
    def takes_token(self) -> bool:
        """Whether a token is awaited."""
        return self.state is AUTHENTICATE

    def admits(self, api_key: int) -> bool:
        """Whether a request may be handled now."""
        return api_key in RULES[self.state][1]

    def versions_told(self, *, understood: bool) -> None:
        """ApiVersions was answered; understood: with what is served."""
        if self.state in (INITIAL_REQUEST, HANDSHAKE_OR_VERSIONS):
            self._go(HANDSHAKE if understood else HANDSHAKE_OR_VERSIONS)

    def handshake(self, mechanism: str, version: int) -> None:
        """SaslHandshake has come. Raises: LoginError if it leads nowhere."""
        if mechanism not in self.mechanisms:
            raise LoginError(Reason.MECHANISM, f"mechanism {mechanism!r:.40} is not enabled")
        if self.user and mechanism != self.mechanism:
            raise LoginError(Reason.MECHANISM, f"mechanism {mechanism} after a login by {self.mechanism}")
        self._go(AUTHENTICATE)
        self.mechanism = mechanism
        self.is_bare = version == 0
        self._exchange = self.mechanisms[mechanism]()

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """A token has come. An Accepted is for `accept` before it is true. Raises: LoginError."""
        assert self.state is AUTHENTICATE, self.state
        assert self._exchange is not None
        return self._exchange.evaluate(token, wall_ms)

    def accept(self, accepted: Accepted) -> None:
        """The client is known now. Raises: LoginError if it was known as another before."""
        if self.user and self.user != accepted.user:
            text = f"it was {self.user!r:.100} and is {accepted.user!r:.100} now"
            raise LoginError(Reason.STATE, f"cannot change principals during re-authentication: {text}")
        self._go(COMPLETE)
        self.user = accepted.user
        self._exchange = None

    def expire(self) -> None:
        """What was shown has ended."""
        if self.state is COMPLETE:
            self._go(EXPIRED)

    def fail(self) -> None:
        """It leads nowhere."""
        self.state = FAILED
        self._exchange = None

    def _go(self, state: State) -> None:
        assert state in RULES[self.state][0], f"{self.state.name} -> {state.name}"
        self.state = state
