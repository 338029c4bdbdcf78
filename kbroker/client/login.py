"""A client's login over a `Connection` that is AUTHENTICATING: requests out, answers in, until the broker knows it.

    SaslHandshake -> SaslAuthenticate -> ... -> authenticated

No socket and no clock, as in `connection.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.client.connection import Answer, Connection
    from kbroker.security.exchanges import Exchange

HANDSHAKE_VERSION = 1  # tokens follow in SaslAuthenticate (KIP-152), since Kafka 1.0
AUTHENTICATE_VERSIONS = range(3)


class LoginRefusedError(ConnectionError):
    """The broker does not let the client in; or it is not the broker that knows the credential."""


class ClientLogin:
    """One login. lifetime_ms: once it is over, how long the broker lets the session last; 0: for ever."""

    def __init__(self, connection: Connection, mechanism: str, exchange: Exchange) -> None:
        self.lifetime_ms = 0
        self._connection = connection
        self._mechanism = mechanism
        self._exchange = exchange
        self._has_begun = False

    def first_request(self) -> bytes:
        """The first request."""
        from protocol.messages.handshake import SaslHandshakeRequest

        return self._connection.ask(SaslHandshakeRequest(mechanism=self._mechanism), HANDSHAKE_VERSION)

    def answered(self, answer: Answer) -> bytes:
        """The next request; empty: the client is known. Raises: LoginRefusedError, DecodeError."""
        response = answer.decode()
        if not self._has_begun:
            self._has_begun = True
            if response.error_code:
                offered = ", ".join(response.mechanisms) or "none"
                raise LoginRefusedError(f"it does not take {self._mechanism}; it takes: {offered}")
            return self._say(self._exchange.first())
        if response.error_code:
            reason = response.error_message or ErrorCode.of(response.error_code).message
            raise LoginRefusedError(f"the login by {self._mechanism} is refused: {reason}")
        try:
            token = self._exchange.evaluate_challenge(bytes(response.auth_bytes))
        except ValueError as error:
            raise LoginRefusedError(str(error)) from None
        if token is not None:
            return self._say(token)
        self.lifetime_ms = max(response.session_lifetime_ms, 0)
        self._connection.authenticated()
        return b""

    def _say(self, token: bytes) -> bytes:
        from protocol.messages.handshake import SaslAuthenticateRequest

        assert SaslAuthenticateRequest.api is not None
        last = self._connection.served.get(SaslAuthenticateRequest.api, (0, 0))[1]
        version = min(last, AUTHENTICATE_VERSIONS[-1])
        return self._connection.ask(SaslAuthenticateRequest(auth_bytes=token), version)
