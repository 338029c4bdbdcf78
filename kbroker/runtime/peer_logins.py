"""How this broker logs in at others: by the settings of the listener that it connects to.

A token of OAUTHBEARER comes from a function of the user's own. It may ask a server, so it is called on a thread before
a connection is begun (`prepare`), and its token is kept for as long as a connection takes to come about.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.client import ClientLogin
from kbroker.config.given import ConfigError
from kbroker.config.sasl import PeerLogin, peer_login
from kbroker.security.callbacks import load
from kbroker.security.exchanges import exchange_of
from kbroker.security.scram import NONCE_BYTES, printable

if TYPE_CHECKING:
    from kbroker.client import Connection
    from kbroker.config import BrokerLayers
    from kbroker.ports import Random

FRESH_S = 10.0  # a token that was given so lately is shown


class PeerLogins:
    """layers: the settings as they are now."""

    def __init__(self, layers: Callable[[], BrokerLayers], random: Random) -> None:
        self._layers = layers
        self._random = random
        self._bearers: dict[str, tuple[float, str]] = {}  # by function

    def begin(self, listener: str, client: Connection) -> ClientLogin:
        """A login on a connection to a listener of this name. Raises: ConfigError."""
        login = self._of(listener)
        nonce = printable(self._random.token(NONCE_BYTES))
        _, bearer = self._bearers.get(login.source, (0.0, ""))
        return ClientLogin(client, login.mechanism, exchange_of(login, nonce, bearer))

    def waits(self, listener: str) -> bool:
        """Whether something has to be asked before a connection is begun."""
        try:
            return self._of(listener).is_bearer
        except ConfigError:
            return False  # it is said when the login begins

    def prepare(self, listener: str) -> None:
        """Have a token ready; on any thread. Raises: ConfigError, which says nothing of what the function raised."""
        source = self._of(listener).source
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
