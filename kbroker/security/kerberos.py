"""GSSAPI (RFC 4752): a login by a ticket of Kerberos. Kafka's listeners ask for it by default.

    client                                    broker
    a ticket for the service        ------->
                                    <-------  that the broker knows the key of the service
    (nothing)                       ------->
                                    <-------  which layers there may be: none, wrapped
    none, and as whom; wrapped      ------->  let in

The broker needs the key of its service (a keytab), and asks no server. Whom the client wants to be does not count, as
with Kafka: it is who its ticket says, by `kerberos_names.py`. What is wrapped can be made by the owner of the ticket's
key alone, so that a ticket that another has heard and sends again is worth nothing; that is why no list of tickets is
kept.

By python-gssapi, which needs Kerberos' own library (an extra: `kerberos`). It is loaded where a listener has GSSAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.security.kerberos_names import NoRuleError
from kbroker.security.login import Accepted, Challenge, LoginError, Reason, Verdict
from kbroker.usage import installed_by

if TYPE_CHECKING:
    from collections.abc import Callable

NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))  # and no size of what would be wrapped


class Context(Protocol):
    """The broker's end of Kerberos' exchange. Each method raises TicketError."""

    def accept(self, token: bytes) -> bytes:
        """What is answered, empty for nothing."""

    @property
    def is_complete(self) -> bool:
        """Whether both know each other."""

    @property
    def client(self) -> str:
        """Whose ticket it is, once complete."""

    def wrap(self, data: bytes) -> bytes:
        """For the client, signed."""

    def unwrap(self, token: bytes) -> bytes:
        """Of the client's."""


class TicketError(ValueError):
    """A ticket, or what comes with it, is not taken."""


class Gssapi:
    """context: made for this exchange. user_of: a principal's user; it may raise NoRuleError."""

    __slots__ = ("_context", "_has_offered", "_user_of")

    def __init__(self, context: Context, user_of: Callable[[str], str]) -> None:
        self._context = context
        self._user_of = user_of
        self._has_offered = False

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """The next token. Raises: LoginError."""
        try:
            if self._has_offered:
                return self._last(token)
            if not self._context.is_complete:
                answer = self._context.accept(token)
                if answer or not self._context.is_complete:
                    return Challenge(answer)
            elif token:
                raise LoginError(Reason.MALFORMED, "GSSAPI: a token behind the ticket, where none is due")
            self._has_offered = True
            return Challenge(self._context.wrap(OFFER))
        except TicketError as error:
            raise LoginError(Reason.CREDENTIALS, f"GSSAPI: {error}") from None

    def _last(self, token: bytes) -> Accepted:
        chosen = self._context.unwrap(token)
        if len(chosen) < len(OFFER) or chosen[0] != NO_LAYER:
            raise LoginError(Reason.MALFORMED, "GSSAPI: the client wants a layer of its own around all that follows")
        try:
            return Accepted(self._user_of(self._context.client))
        except NoRuleError as error:
            raise LoginError(Reason.CREDENTIALS, f"GSSAPI: {error}") from None


class Service:
    """A broker's key in a keytab. Raises: ValueError in a line if it cannot be used."""

    def __init__(self, principal: str, keytab: str) -> None:
        try:
            import gssapi
        except (ImportError, OSError) as error:
            why = "python-gssapi is not installed" if isinstance(error, ImportError) else str(error)
            raise ValueError(f"{why}: {installed_by('kerberos')}") from None
        self._library = gssapi
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        store = {"keytab": f"FILE:{keytab}", "rcache": "none:"}
        try:
            self._key = gssapi.Credentials(usage="accept", name=name, store=store)
        except gssapi.exceptions.GSSError as error:
            raise ValueError(f"no key of {principal} in {keytab}: {_words(error)}") from None
        self.realm = str(self._key.name).rpartition("@")[2]

    def context(self) -> Context:
        """For one exchange."""
        return _LibraryContext(self._library, self._key)


class _LibraryContext:
    def __init__(self, library: object, key: object) -> None:
        self._gssapi = library
        self._context = library.SecurityContext(creds=key, usage="accept")  # type: ignore[attr-defined]

    @property
    def is_complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def client(self) -> str:
        return str(self._context.initiator_name)

    def accept(self, token: bytes) -> bytes:
        return self._asked(lambda: self._context.step(token) or b"")

    def wrap(self, data: bytes) -> bytes:
        return self._asked(lambda: self._context.wrap(data, False).message)

    def unwrap(self, token: bytes) -> bytes:
        return self._asked(lambda: self._context.unwrap(token).message)

    def _asked(self, ask: Callable[[], bytes]) -> bytes:
        try:
            return bytes(ask())
        except self._gssapi.exceptions.GSSError as error:  # type: ignore[attr-defined]
            raise TicketError(_words(error)) from None


def _words(error: Exception) -> str:
    """What the library says, without numbers."""
    text = str(getattr(error, "min_code_message", None) or error)
    return " ".join(text.split())[:200]
