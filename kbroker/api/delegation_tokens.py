"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken, DescribeDelegationToken (KIP-48, KIP-373).

Served: CreateDelegationToken and DescribeDelegationToken 0-3, the others 0-2, by any broker. Refused over PLAINTEXT, on
TLS without a certificate of the client's, and for who has logged in by a token: DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.
Without delegation.token.secret.key: DELEGATION_TOKEN_AUTH_DISABLED. The tokens are `broker/delegation_tokens.py`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kbroker.api.configs import AwaitStore
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.session import ANONYMOUS, Principal
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.api.call import Call, Result
    from kbroker.broker.delegation_tokens import DelegationTokens, Token, Tokens

USER = "User"


def create(request: CreateDelegationTokenRequest, call: Call) -> Result:
    """Make a token, for the sender or for another user."""
    requester = call.session.principal
    name = request.owner_principal_name
    owner = Principal(request.owner_principal_type or USER, name) if name else requester
    check_session(call)
    if owner != requester:
        need = Operation.CREATE_TOKENS, ResourceType.USER, str(owner)
        if not call.broker.auth_helper.allows(call.session, *need):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    renewers = [Principal(each.principal_type, each.principal_name) for each in request.renewers]
    if any(each.type != USER for each in renewers):
        raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    tokens = _tokens(call)
    return _later(
        tokens.create(owner, requester, renewers, request.max_lifetime_ms),
        lambda token: _created(token, tokens),
        lambda code: _refuse_create(request, code, "", call.version),
        call,
    )


def _created(token: Token, tokens: DelegationTokens) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=ErrorCode.NONE,
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.most_ms,
        token_id=token.id,
        hmac=tokens.secret(token.id),
    )


def renew(request: RenewDelegationTokenRequest, call: Call) -> Result:
    """Put off a token's end."""
    check_session(call)
    pending = _tokens(call).renew(bytes(request.hmac), call.session.principal, request.renew_period_ms)
    return _ends_then(pending, RenewDelegationTokenResponse, call)


def expire(request: ExpireDelegationTokenRequest, call: Call) -> Result:
    """Have a token end."""
    check_session(call)
    pending = _tokens(call).expire(bytes(request.hmac), call.session.principal, request.expiry_time_period_ms)
    return _ends_then(pending, ExpireDelegationTokenResponse, call)


def _ends_then(
    pending: Any, response: type[RenewDelegationTokenResponse] | type[ExpireDelegationTokenResponse], call: Call
) -> Result:
    """Answered with the token's new end, once that is kept."""

    def respond(code: ErrorCode, ends_ms: int = -1) -> Any:
        return response(error_code=code, expiry_timestamp_ms=ends_ms)

    return _later(pending, lambda ends_ms: respond(ErrorCode.NONE, ends_ms), respond, call)


def describe(request: DescribeDelegationTokenRequest, call: Call) -> DescribeDelegationTokenResponse:
    """Tell the tokens that concern the sender, and those that rules let it see."""
    check_session(call)
    tokens, session, helper = check_enabled(call), call.session, call.broker.auth_helper
    owners = None
    if request.owners is not None:
        owners = [Principal(each.principal_type, each.principal_name) for each in request.owners]

    def is_told(token: Token) -> bool:
        if owners is not None and not any(token.concerns(each) for each in owners):
            return False
        return (
            token.concerns(session.principal)
            or helper.allows(session, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.id, hidden=True)
            or helper.allows(session, Operation.DESCRIBE_TOKENS, ResourceType.USER, str(token.owner), hidden=True)
        )

    told = [_described(each, tokens) for each in tokens.tokens.values() if is_told(each)]
    return DescribeDelegationTokenResponse(error_code=ErrorCode.NONE, tokens=told)


def _described(token: Token, tokens: Tokens) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.most_ms,
        token_id=token.id,
        hmac=tokens.secret(token.id),
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each.type, principal_name=each.name)
            for each in token.renewers
        ],
    )


# -- common to them


def check_session(call: Call) -> None:
    """Raises: KafkaError where tokens are not handed out."""
    session = call.session
    is_one_way = session.security_protocol == "SSL" and session.principal == ANONYMOUS
    if session.by_token or session.security_protocol == "PLAINTEXT" or is_one_way:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)


def check_enabled(call: Call) -> Tokens:
    """Raises: KafkaError where there are none, for want of a key."""
    tokens = call.broker.delegation_tokens
    if tokens is None:
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return tokens


def _tokens(call: Call) -> DelegationTokens:
    """Those of a metadata store, which are changed here."""
    return cast("DelegationTokens", check_enabled(call))


def _later(pending: Any, done: Callable[[Any], Any], failed: Callable[[ErrorCode], Any], call: Call) -> Result:
    def answer_with() -> Any:
        if pending.error is not None:
            return failed(pending.error.code)
        return failed(ErrorCode.REQUEST_TIMED_OUT) if pending.value is None else done(pending.value)

    waiting: AwaitStore[Any] = AwaitStore(pending, answer_with, call.now_ms)
    answer: Result | None = waiting.answer(call.now_ms)
    return waiting if answer is None else answer


def _refuse_create(
    request: CreateDelegationTokenRequest, code: ErrorCode, text: str | None, version: int
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=request.owner_principal_type or USER,
        principal_name=request.owner_principal_name or "",
        issue_timestamp_ms=-1,
        expiry_timestamp_ms=-1,
        max_timestamp_ms=-1,
        token_id="",
        hmac=b"",
    )


def _refuse_renew(
    request: RenewDelegationTokenRequest, code: ErrorCode, text: str | None, version: int
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)


def _refuse_expire(
    request: ExpireDelegationTokenRequest, code: ErrorCode, text: str | None, version: int
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp_ms=-1)


def _refuse_describe(
    request: DescribeDelegationTokenRequest, code: ErrorCode, text: str | None, version: int
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=code, tokens=[])


ROUTES = (
    Route(38, CreateDelegationTokenRequest, 0, 3, create, _refuse_create, ()),
    Route(39, RenewDelegationTokenRequest, 0, 2, renew, _refuse_renew, ()),
    Route(40, ExpireDelegationTokenRequest, 0, 2, expire, _refuse_expire, ()),
    Route(41, DescribeDelegationTokenRequest, 0, 3, describe, _refuse_describe, ()),
)
