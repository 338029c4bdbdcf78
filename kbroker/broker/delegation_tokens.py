"""Delegation tokens: who has them, until when, and what is kept of them in the metadata store (KIP-48, KIP-373).

A token is an id and a secret, the HMAC of the id by `delegation.token.secret.key`, which is the same on all brokers: so
the store has no secrets. Its owner logs in by SCRAM with the id and the secret in base64, and is the owner to the
broker. Its owner, or a renewer, can put off its end, up to its last day. Each broker keeps an image of all.

| path | content |
|---|---|
| `/delegation_token/tokens/ID` | a token, version 3 of its JSON |
| `/delegation_token/token_changes/token_change_N` | the id of a token that has changed |

Tokens that have ended are removed by an alarm, on each broker. Source: DelegationTokenManager, ZkData of Apache Kafka
3.9, by behaviour.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from kbroker.broker.notices import Notices
from kbroker.broker.session import Principal
from kbroker.config.limits import WRITTEN_AT_ONCE
from kbroker.controller.epoch import pieces
from kbroker.metadata.entities import desanitized, sanitized
from kbroker.metadata.store import encode_uuid, understood
from kbroker.metadata.tree import ancestors
from kbroker.ports import Create, Delete, Get, Multi, NodeChanged, Outcome, SetData, StoreFault
from kbroker.security.scram import HASHES, LEAST_ITERATIONS, Credential, make_credential
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kbroker.config import BrokerConfig
    from kbroker.controller.admin import Pending
    from kbroker.metadata.steps import Procedure, Steps
    from kbroker.ports import Clock, Random
    from kbroker.timing import Scheduler

    Start: TypeAlias = Callable[[Procedure[Any]], Pending[Any]]

log = logging.getLogger("kbroker.security")

TOKENS = "/delegation_token/tokens"
TOKEN_CHANGES = "/delegation_token/token_changes"
SALT_BYTES = 32
_ID = re.compile(r"[\w-]{1,100}")


class Token(NamedTuple):
    """A token, without its secret. requester: who made it, perhaps for another."""

    id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    most_ms: int
    expires_ms: int

    def may_be_renewed_by(self, principal: Principal) -> bool:
        """Whether a principal may put off its end."""
        return principal == self.owner or principal in self.renewers

    def concerns(self, principal: Principal) -> bool:
        """Whether it is the principal's own, in some way."""
        return principal == self.requester or self.may_be_renewed_by(principal)

    def is_over(self, wall_ms: int) -> bool:
        """Whether it has ended."""
        return self.expires_ms < wall_ms or self.most_ms < wall_ms


class Tokens:
    """The tokens of a cluster, wherever they come from. config: delegation.token.*, with a secret key."""

    def __init__(self, config: BrokerConfig, clock: Clock, random: Random) -> None:
        assert config.delegation_token_secret_key, "there is no key"
        self.tokens: dict[str, Token] = {}
        self._key = config.delegation_token_secret_key.encode()
        self._clock = clock
        self._random = random
        self._by_secret: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, str], Credential] = {}  # by mechanism and id, of those that have logged in

    def put(self, token_id: str, token: Token | None) -> None:
        """A token is this now, or gone."""
        if token is None:
            if self.tokens.pop(token_id, None) is not None:
                del self._by_secret[self.secret(token_id)]
            for mechanism in HASHES:
                self._credentials.pop((mechanism, token_id), None)
        else:
            self.tokens[token_id] = token
            self._by_secret[self.secret(token_id)] = token_id

    # -- logging in

    def secret(self, token_id: str) -> bytes:
        """The secret of a token."""
        return hmac.digest(self._key, token_id.encode(), "sha512")

    def credential(self, mechanism: str, token_id: str) -> Credential | None:
        """What a login by a token is checked with; takes milliseconds the first time."""
        token = self.tokens.get(token_id)
        if token is None or token.is_over(self._clock.wall_ms()):
            return None
        found = self._credentials.get((mechanism, token_id))
        if found is None:
            password = base64.b64encode(self.secret(token_id))
            found = make_credential(mechanism, password, self._random.token(SALT_BYTES), LEAST_ITERATIONS)
            self._credentials[mechanism, token_id] = found
        expires_ms = min(token.expires_ms, token.most_ms)
        return found._replace(expires_ms=expires_ms, owner=token.owner.name)


class DelegationTokens(Tokens):
    """An image of the metadata store's tokens."""

    def __init__(
        self, config: BrokerConfig, steps: Steps, scheduler: Scheduler, start: Start, clock: Clock, random: Random
    ) -> None:
        super().__init__(config, clock, random)
        self._config = config
        self._steps = steps
        self._start = start
        self._notices = Notices(TOKEN_CHANGES, steps, scheduler, self._handle_changes)
        self._check = scheduler.alarm(self._remove_old)

    # -- the image

    def begin(self, now_ms: int) -> Procedure[None]:
        """A session begins: all tokens are read."""
        above = {each: None for path in (TOKENS, TOKEN_CHANGES) for each in ancestors(path)}
        yield [Create(path) for path in (*above, TOKENS, TOKEN_CHANGES)]
        (listed,) = yield from self._notices.begin(now_ms, [TOKENS])
        yield from self._read(list({**dict.fromkeys(listed.names), **dict.fromkeys(self.tokens)}))
        self._check.set(now_ms + self._config.delegation_token_expiry_check_interval_ms)

    def node_changed(self, change: NodeChanged, now_ms: int) -> bool:
        """A watch has fired; whether it was this one's."""
        return self._notices.node_changed(change, now_ms)

    def _handle_changes(self, answers: Sequence[Outcome]) -> Procedure[None]:
        yield from self._read(list(dict.fromkeys(each.data.decode("ascii", "replace") for each in answers)))

    def _read(self, ids: Sequence[str]) -> Procedure[None]:
        known = [each for each in ids if _ID.fullmatch(each)]
        for some in pieces(known, WRITTEN_AT_ONCE):
            answers = yield [Get(_path(each)) for each in some]
            for token_id, answer in zip(some, answers, strict=True):
                found = answer.fault is None
                token = understood(_path(token_id), answer.data, decode_token, is_secret=True) if found else None
                self.put(token_id, token if token is not None and token.id == token_id else None)

    def _remove_old(self, now_ms: int) -> None:
        """Remove what has ended; another broker may be faster."""
        wall_ms = self._clock.wall_ms()
        for token in [each for each in self.tokens.values() if each.is_over(wall_ms)]:
            log.info("delegation token %s of %s has ended", token.id, token.owner)
            self._start(self._removing(token.id))
        self._check.set(now_ms + self._config.delegation_token_expiry_check_interval_ms)

    # -- what clients ask

    def create(
        self, owner: Principal, requester: Principal, renewers: Collection[Principal], lifetime_ms: int
    ) -> Pending[Token]:
        """Make a token. lifetime_ms: to its last day; 0 or less: as long as may be."""
        longest_ms = self._config.delegation_token_max_lifetime_ms
        issued_ms = self._clock.wall_ms()
        most_ms = issued_ms + (longest_ms if lifetime_ms <= 0 else min(lifetime_ms, longest_ms))
        expires_ms = min(most_ms, issued_ms + self._config.delegation_token_expiry_time_ms)
        token_id = encode_uuid(self._random.token(16))
        return self._start(
            self._writing(Token(token_id, owner, requester, tuple(renewers), issued_ms, most_ms, expires_ms))
        )

    def renew(self, secret: bytes, principal: Principal, period_ms: int) -> Pending[int]:
        """Put off a token's end. period_ms: from now; below 0: as settings say. The value: when it ends."""
        return self._start(self._renewing(secret, principal, period_ms))

    def expire(self, secret: bytes, principal: Principal, period_ms: int) -> Pending[int]:
        """Have a token end. period_ms: from now; below 0: at once. The value: when it ends."""
        return self._start(self._expiring(secret, principal, period_ms))

    def _of(self, secret: bytes, principal: Principal) -> Token:
        token_id = self._by_secret.get(secret)
        if token_id is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        token = self.tokens[token_id]
        if not token.may_be_renewed_by(principal):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return token

    def _renewing(self, secret: bytes, principal: Principal, period_ms: int) -> Procedure[int]:
        token = self._of(secret, principal)
        wait_ms = self._config.delegation_token_expiry_time_ms if period_ms < 0 else period_ms
        return (yield from self._putting_off(token, wait_ms))

    def _expiring(self, secret: bytes, principal: Principal, period_ms: int) -> Procedure[int]:
        token = self._of(secret, principal)
        if period_ms < 0:
            yield from self._removing(token.id)
            return self._clock.wall_ms()
        return (yield from self._putting_off(token, period_ms))

    def _putting_off(self, token: Token, wait_ms: int) -> Procedure[int]:
        wall_ms = self._clock.wall_ms()
        if token.is_over(wall_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        changed = yield from self._writing(token._replace(expires_ms=min(token.most_ms, wall_ms + wait_ms)))
        return changed.expires_ms

    def _writing(self, token: Token) -> Procedure[Token]:
        path, data, notice = _path(token.id), encode_token(token), _notice(token.id)
        is_new = token.id not in self.tokens
        (written,) = yield [Multi((Create(path, data) if is_new else SetData(path, data), notice))]
        if written.fault is StoreFault.REFUSED:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the metadata store does not take the token")
        if written.fault is not None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        self.put(token.id, token)
        return token

    def _removing(self, token_id: str) -> Procedure[None]:
        yield [Multi((Delete(_path(token_id)), _notice(token_id)))]  # it may be gone already
        self.put(token_id, None)


def _path(token_id: str) -> str:
    return f"{TOKENS}/{token_id}"


def _notice(token_id: str) -> Create:
    return Create(f"{TOKEN_CHANGES}/token_change_", token_id.encode(), sequential=True)


def encode_token(token: Token) -> bytes:
    """Content of `/delegation_token/tokens/ID`, version 3."""
    content = {
        "version": 3,
        "owner": sanitized(str(token.owner)),
        "tokenRequester": sanitized(str(token.requester)),
        "renewers": [sanitized(str(each)) for each in token.renewers],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.most_ms,
        "expiryTimestamp": token.expires_ms,
        "tokenId": token.id,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_token(data: bytes) -> Token:
    """A token; versions before 3 have no requester. Raises: ValueError, KeyError, TypeError if it makes no sense."""
    content = json.loads(data)
    owner = _principal(content["owner"])
    requester = content.get("tokenRequester", "")
    times = [content[name] for name in ("issueTimestamp", "maxTimestamp", "expiryTimestamp")]
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in times):
        raise ValueError("times that are none")
    if not isinstance(content["tokenId"], str) or not _ID.fullmatch(content["tokenId"]):
        raise ValueError("an id that is none")
    renewers = tuple(_principal(each) for each in content["renewers"])
    return Token(content["tokenId"], owner, _principal(requester) if requester else owner, renewers, *times)


def _principal(text: object) -> Principal:
    if not isinstance(text, str):
        raise ValueError("a principal that is no text")
    kind, colon, name = desanitized(text).partition(":")
    if not colon or not kind or not name:
        raise ValueError("a principal without a type or a name")
    return Principal(kind, name)
