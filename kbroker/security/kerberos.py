"""GSSAPI (RFC 4752): a login by a ticket of Kerberos, both ends. Kafka's listeners ask for it by default.

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

A broker that logs in at another is the client: it has a ticket made by its keytab, for which a server of Kerberos is
asked (`OwnTickets`, on a thread), and wants to know the other one, too.

By python-gssapi, which needs Kerberos' own library (an extra: `kerberos`). It is loaded where a listener has GSSAPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kbroker.security.kerberos_names import NoRuleError
from kbroker.security.login import Accepted, Challenge, LoginError, Reason, Verdict
from kbroker.usage import installed_by

if TYPE_CHECKING:
    from collections.abc import Callable

NO_LAYER = 1
OFFER = bytes((NO_LAYER, 0, 0, 0))  # and no size of what would be wrapped


class Context(Protocol):
    """An end of Kerberos' exchange. Each method raises TicketError."""

    def accept(self, token: bytes) -> bytes:
        """What is answered, empty for nothing. token: empty for what the client says first."""

    @property
    def is_complete(self) -> bool:
        """Whether both know each other."""

    @property
    def client(self) -> str:
        """Whose ticket it is, once complete, at the broker's end."""

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


class TicketClient:
    """The client's end (`exchanges.Exchange`). context: made for this exchange. ticket: its first token."""

    __slots__ = ("_context", "_has_chosen", "_ticket")

    def __init__(self, context: Context, ticket: bytes) -> None:
        self._context = context
        self._ticket = ticket
        self._has_chosen = False

    def first(self) -> bytes:
        """The ticket."""
        return self._ticket

    def evaluate_challenge(self, token: bytes) -> bytes | None:
        """To the broker's proof, then to its offer. Raises: ValueError."""
        try:
            if not self._context.is_complete:
                return self._context.accept(token)
            if self._has_chosen:
                return None
            offer = self._context.unwrap(token)
            if len(offer) != len(OFFER) or not offer[0] & NO_LAYER:
                raise ValueError("GSSAPI: the broker wants a layer of its own around all that follows")
            self._has_chosen = True
            return self._context.wrap(OFFER)
        except TicketError as error:
            raise ValueError(f"GSSAPI: {error}") from None


class OwnTickets:
    """What makes tickets for other services, by a key in a keytab. Raises: ValueError if there is no library."""

    def __init__(self, principal: str, keytab: str) -> None:
        self._library = _library()
        self._principal = principal
        # what the server gives is kept for this process alone, and asked for again when it ends
        self._store = {"client_keytab": f"FILE:{keytab}", "ccache": f"MEMORY:kbroker-{principal}"}

    def ticket_client(self, service: str, host: str) -> TicketClient:
        """An exchange with a service on a host; it may have to ask a server. Raises: ValueError in a line."""
        gssapi = self._library
        own = gssapi.Name(self._principal, gssapi.NameType.kerberos_principal)
        other = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        flags = gssapi.RequirementFlag
        try:
            key = gssapi.Credentials(usage="initiate", name=own, store=self._store)
            wanted = flags.mutual_authentication | flags.integrity
            context = _LibraryContext(
                gssapi, gssapi.SecurityContext(name=other, creds=key, usage="initiate", flags=wanted)
            )
            return TicketClient(context, context.accept(b""))
        except (gssapi.exceptions.GSSError, TicketError) as error:
            raise ValueError(f"no ticket of {self._principal} for {service}@{host}: {_words(error)}") from None


def _library() -> Any:
    try:
        import gssapi
    except (ImportError, OSError) as error:
        why = "python-gssapi is not installed" if isinstance(error, ImportError) else str(error)
        raise ValueError(f"{why}: {installed_by('kerberos')}") from None
    return gssapi


class Service:
    """A broker's key in a keytab. Raises: ValueError in a line if it cannot be used."""

    def __init__(self, principal: str, keytab: str) -> None:
        gssapi = self._library = _library()
        name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        store = {"keytab": f"FILE:{keytab}", "rcache": "none:"}
        try:
            self._key = gssapi.Credentials(usage="accept", name=name, store=store)
        except gssapi.exceptions.GSSError as error:
            raise ValueError(f"no key of {principal} in {keytab}: {_words(error)}") from None
        self.realm = str(self._key.name).rpartition("@")[2]

    def context(self) -> Context:
        """For one exchange."""
        return _LibraryContext(self._library, self._library.SecurityContext(creds=self._key, usage="accept"))


class _LibraryContext:
    def __init__(self, library: Any, context: Any) -> None:
        self._gssapi = library
        self._context = context

    @property
    def is_complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def client(self) -> str:
        return str(self._context.initiator_name)

    def accept(self, token: bytes) -> bytes:
        return self._asked(lambda: self._context.step(token or None) or b"")

    def wrap(self, data: bytes) -> bytes:
        return self._asked(lambda: self._context.wrap(data, False).message)

    def unwrap(self, token: bytes) -> bytes:
        return self._asked(lambda: self._context.unwrap(token).message)

    def _asked(self, ask: Callable[[], bytes]) -> bytes:
        try:
            return bytes(ask())
        except self._gssapi.exceptions.GSSError as error:
            raise TicketError(_words(error)) from None


def _words(error: Exception) -> str:
    """What the library says, without numbers."""
    text = str(getattr(error, "min_code_message", None) or error)
    return " ".join(text.split())[:200]
