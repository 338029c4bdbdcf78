"""SaslHandshake, SaslAuthenticate: how a client shows who it is.

Served: SaslHandshake 0-1, SaslAuthenticate 0-2. On a listener that speaks SASL nothing else but ApiVersions is handled
before; on another one, and once the client is known, both are ILLEGAL_SASL_STATE, unless its session ends some time and
it logs in again (KIP-368). The rules are `security/login.py`'s, what they need of the broker `broker/logins.py`'s.

Unlike Kafka: a login again by another mechanism is refused at the handshake, not behind it; and the refusal of a
mechanism is late, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.call import FIRST
from kbroker.api.routes import ByVersion, Route
from kbroker.security.login import LoginError
from protocol.errors import ErrorCode
from protocol.messages.handshake import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call, Result

TOO_LATE = "SaslAuthenticate request received after successful authentication"


def sasl_handshake(request: SaslHandshakeRequest, call: Call) -> Result:
    """Agree on a mechanism."""
    login, logins = call.session.login, call.broker.logins
    if login is None or logins is None or not logins.may_begin(call.session, call.now_ms):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
    response = SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=list(login.mechanisms))
    try:
        login.handshake(request.mechanism, call.version)
    except LoginError as error:
        response.error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        logins.refuse(error, call.session, call.ticket, call.now_ms, response)
        return FIRST
    return response


def sasl_authenticate(request: SaslAuthenticateRequest, call: Call) -> Result:
    """Take a token of the mechanism."""
    login, logins = call.session.login, call.broker.logins
    if login is None or logins is None or not login.takes_token:
        code = ErrorCode.ILLEGAL_SASL_STATE
        return SaslAuthenticateResponse(error_code=code, error_message=TOO_LATE, auth_bytes=b"")
    return logins.evaluate(bytes(request.auth_bytes), call.session, call.ticket, call.now_ms) or FIRST


def _refuse_handshake(request: SaslHandshakeRequest, code: ErrorCode, text: str, version: int) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=code, mechanisms=[])


def _refuse_authenticate(
    request: SaslAuthenticateRequest, code: ErrorCode, text: str, version: int
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=text, auth_bytes=b"")


ROUTES = (
    Route(17, SaslHandshakeRequest, 0, 1, sasl_handshake, _refuse_handshake, ()),
    Route(36, SaslAuthenticateRequest, 0, 2, sasl_authenticate, _refuse_authenticate, ()),
)


def bare_route() -> Route:
    """Of a token that has come without a header; its answer leaves without one, too."""
    made = Route(36, SaslAuthenticateRequest, 0, 0, sasl_authenticate, _refuse_authenticate, ())
    made.writers = ByVersion(lambda version: lambda response: [bytes(response.auth_bytes)])
    return made


BARE = bare_route()
