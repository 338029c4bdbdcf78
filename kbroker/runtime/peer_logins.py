"""How this broker logs in at others: by the settings of the listener that it connects to.

A token of OAUTHBEARER comes from a function of the user's own, a ticket of GSSAPI from a server of Kerberos. Both may
take long, so they are asked for on a thread before a connection is begun (`prepare`). A token is kept for as long as a
connection takes to come about; a ticket is for one login.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.client import ClientLogin
from kbroker.config.given import ConfigError
from kbroker.config.sasl import GSSAPI, OAUTHBEARER, PeerLogin, peer_login
from kbroker.security.callbacks import load
from kbroker.security.exchanges import exchange_of
from kbroker.security.scram import NONCE_BYTES, printable

if TYPE_CHECKING:
    from kbroker.client import Connection
    from kbroker.config import BrokerLayers
    from kbroker.ports import Endpoint, Random
    from kbroker.security.exchanges import Exchange

FRESH_S = 10.0  # a token that was given so lately is shown, and a ticket
MOST_TICKETS = 20  # for one host: more connections are hardly begun at a time


class PeerLogins:
    """layers: the settings as they are now."""

    def __init__(self, layers: Callable[[], BrokerLayers], random: Random) -> None:
        self._layers = layers
        self._random = random
        self._bearers: dict[str, tuple[float, str]] = {}  # by function
        self._tickets: dict[tuple[str, str], list[tuple[float, Exchange]]] = {}  # by listener and host; made when

    def client_login(self, endpoint: Endpoint, client: Connection) -> ClientLogin:
        """A login on a connection to an endpoint. Raises: ConfigError."""
        listener = endpoint.listener
        login = self._of(listener)
        if login.mechanism == GSSAPI:
            made = self._tickets.get((listener, endpoint.host))
            made_s, ticket = made.pop() if made else (0.0, None)
            if ticket is None or time.monotonic() > made_s + FRESH_S:
                # it is time to log in again: a new connection has a new ticket
                raise ConfigError([f"there is no ticket for {endpoint.host} any more"])
            return ClientLogin(client, login.mechanism, ticket)
        nonce = printable(self._random.token(NONCE_BYTES))
        _, bearer = self._bearers.get(login.source, (0.0, ""))
        return ClientLogin(client, login.mechanism, exchange_of(login, nonce, bearer))

    def waits(self, listener: str) -> bool:
        """Whether something has to be asked before a connection is begun."""
        try:
            return self._of(listener).mechanism in (OAUTHBEARER, GSSAPI)
        except ConfigError:
            return False  # it is said when the login begins

    def prepare(self, endpoint: Endpoint) -> None:
        """Have a token, or a ticket, ready; on any thread.

        Raises: ConfigError, which says nothing of what a function raised.
        """
        login = self._of(endpoint.listener)
        if login.mechanism == GSSAPI:
            made = self._tickets.setdefault((endpoint.listener, endpoint.host), [])
            made.append((time.monotonic(), _ticket(login, endpoint.host)))
            del made[:-MOST_TICKETS]
            return
        source = login.source
        given_s, _ = self._bearers.get(source, (0.0, ""))
        if time.monotonic() < given_s + FRESH_S and given_s:
            return
        function = load("sasl.login.callback.handler.class", source)
        try:
            bearer = function()
        except Exception as error:
            raise ConfigError([f"sasl.login.callback.handler.class={source}: {type(error).__name__}"]) from None
        if not isinstance(bearer, str):
            raise ConfigError([f"sasl.login.callback.handler.class={source}: gave no token; allowed: text"])
        self._bearers[source] = time.monotonic(), bearer

    def _of(self, listener: str) -> PeerLogin:
        return peer_login(self._layers(), listener)


def _ticket(login: PeerLogin, host: str) -> Exchange:
    from kbroker.security.kerberos import OwnTickets

    try:
        return OwnTickets(login.user, login.keytab).ticket_client(login.service, host)
    except ValueError as error:
        raise ConfigError([str(error)]) from None
