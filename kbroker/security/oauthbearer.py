"""OAUTHBEARER (RFC 7628): one token, a JWT, tells who the client is and until when. Kafka's OAuthBearerSaslServer.

A refusal is a text in JSON, which the client answers with one byte; then the login has failed. How a token is checked
is `validate`: its signature by the keys of a JSON Web Key Set, who issued it and for whom, when it ends. An unsigned
token (`alg` none) is taken by `validate_unsecured` alone, which is asked for by the name of Kafka's class.

Unlike Kafka 4.4, as in Kafka up to 4.3: where `sasl.oauthbearer.expected.issuer` is not set, a token may be of any
issuer whose keys are known; there is no `sasl.oauthbearer.allow.unverified.issuer`.

Source: OAuthBearerValidatorCallbackHandler, OAuthBearerUnsecuredValidatorCallbackHandler of Apache Kafka 3.9.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from kbroker.config.given import ConfigError
from kbroker.security.login import Accepted, Beside, Challenge, LoginError, Reason, Verdict
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kbroker.config.broker import BrokerConfig

INVALID = b'{"status":"invalid_token"}'
MOST_TOKEN_BYTES = 1 << 16
ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
    "oct": ("HS256", "HS384", "HS512"),
}
"""Which signatures a key of a type may have made: a public key is never taken for a shared secret."""

_FIRST = re.compile(r"n,(?:a=(?P<authorized>[^,\x01]*))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01")


class Expected(NamedTuple):
    """What a token has to say. Settings: sasl.oauthbearer.*."""

    audience: tuple[str, ...]
    issuer: str | None
    skew_s: int
    scope_claim: str
    sub_claim: str

    @classmethod
    def of(cls, config: BrokerConfig) -> Expected:
        """By a listener's settings."""
        return cls(
            config.sasl_oauthbearer_expected_audience,
            config.sasl_oauthbearer_expected_issuer,
            config.sasl_oauthbearer_clock_skew_seconds,
            config.sasl_oauthbearer_scope_claim_name,
            config.sasl_oauthbearer_sub_claim_name,
        )


class OAuthBearer:
    """The broker's end. check: of a token and the wall's time in ms; it raises LoginError."""

    __slots__ = ("_check", "_refused")

    def __init__(self, check: Callable[[str, int], Accepted | Beside]) -> None:
        self._check = check
        self._refused: LoginError | None = None

    def evaluate(self, token: bytes, wall_ms: int) -> Verdict:
        """The first message, or the byte that a refusal is answered with."""
        if self._refused is not None:
            raise self._refused
        authorized, bearer = _read(token)
        try:
            found = self._check(bearer, wall_ms)
            if isinstance(found, Beside):
                return found
            if authorized and authorized != found.user:
                told = "Authentication failed: Client requested an authorization id that is different from the token's"
                raise LoginError(Reason.CREDENTIALS, f"user {found.user!r:.100} wants to be another", told)
        except LoginError as error:
            self._refused = LoginError(error.reason, str(error), error.told or INVALID.decode())
            return Challenge(INVALID)
        return found


def _read(token: bytes) -> tuple[str, str]:
    """Whom the client wants to be, perhaps, and its token. Raises: LoginError."""
    found = _FIRST.fullmatch(token.decode("latin-1")) if len(token) <= MOST_TOKEN_BYTES else None
    pairs = dict(each.partition("=")[::2] for each in found["pairs"].split("\x01") if each) if found else {}
    scheme, _, bearer = pairs.get("auth", "").strip().partition(" ")
    if found is None or scheme.lower() != "bearer" or not bearer:
        raise LoginError(Reason.MALFORMED, "OAUTHBEARER: the first message of the client is none")
    return found["authorized"] or "", bearer.strip()


def by_callback(function: Callable[[str], object]) -> Callable[[str, int], Beside]:
    """Have a function of the user's own check tokens, beside the loop."""

    def check(bearer: str) -> Accepted:
        found = function(bearer)
        if isinstance(found, str) and found:
            return Accepted(found)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], str) and isinstance(found[1], int):
            return Accepted(found[0], expires_ms=found[1])
        raise LoginError(Reason.TOKEN, "refused by the callback", INVALID.decode())

    return lambda bearer, wall_ms: Beside(lambda: check(bearer))


# -- signed tokens


class Keys:
    """The keys of a JSON Web Key Set. known: whether there are any yet. wanted: a token named one that is not there."""

    def __init__(self) -> None:
        self.known = False
        self.wanted = False
        self._keys: list[tuple[str | None, str, Any]] = []  # kid, kty, key

    def replace(self, text: bytes) -> None:
        """Another set in place of this one. Raises: ValueError if it is none."""
        from jwt import PyJWK
        from jwt.exceptions import PyJWTError

        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("keys"), list):
            raise ValueError("no JSON Web Key Set")
        keys: list[tuple[str | None, str, Any]] = []
        for each in content["keys"]:
            if isinstance(each, dict) and each.get("use", "sig") == "sig" and each.get("kty") in ALGORITHMS:
                try:
                    keys.append((each.get("kid"), each["kty"], PyJWK(each)))
                except (PyJWTError, ValueError, TypeError, KeyError):
                    continue  # of a curve that is not known here: others may do
        if not keys:
            raise ValueError("no key of a JSON Web Key Set that signs")
        self._keys, self.known, self.wanted = keys, True, False

    def of(self, kid: str | None, algorithm: str) -> Sequence[Any]:
        """Those that may have signed a token."""
        found = [key for name, kty, key in self._keys if kid in (None, name) and algorithm in ALGORITHMS[kty]]
        if not found:
            self.wanted = True
        return found


def validate(bearer: str, keys: Keys, expected: Expected, wall_ms: int) -> Accepted:
    """Who a signed token says its bearer is. Raises: LoginError, which tells the names of claims and no more."""
    import jwt

    if not keys.known:
        raise LoginError(Reason.UNAVAILABLE, "the keys that sign tokens were not fetched yet")
    try:
        head = jwt.get_unverified_header(bearer)
        algorithm, kid = head.get("alg"), head.get("kid")
        if not isinstance(algorithm, str) or not isinstance(kid, str | None):
            raise LoginError(Reason.TOKEN, "a token that does not say how it is signed")
        for key in keys.of(kid, algorithm):
            try:
                options = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False)
                claims = jwt.decode(bearer, key, algorithms=[algorithm], options=options)  # type: ignore[arg-type]
            except jwt.InvalidSignatureError:
                continue
            return _judge(claims, expected, wall_ms)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise LoginError(Reason.TOKEN, f"a token that cannot be read: {type(error).__name__}") from None
    raise LoginError(Reason.TOKEN, f"a token that no known key has signed (alg {algorithm!r:.20})")


def _judge(claims: Mapping[str, Any], expected: Expected, wall_ms: int) -> Accepted:
    """Whether the claims are such as are expected. Raises: LoginError."""
    expires_s = _number(claims, "exp")
    skew_ms = 1000 * expected.skew_s
    if wall_ms >= 1000 * expires_s + skew_ms:
        raise LoginError(Reason.TOKEN, "a token that has expired")
    if 1000 * _number(claims, "iat") > wall_ms + skew_ms:
        raise LoginError(Reason.TOKEN, "a token that was issued in the future: are the clocks right?")
    if "nbf" in claims and 1000 * _number(claims, "nbf") > wall_ms + skew_ms:
        raise LoginError(Reason.TOKEN, "a token that is not valid yet")
    if expected.issuer is not None and claims.get("iss") != expected.issuer:
        raise LoginError(Reason.TOKEN, "a token of another issuer (iss)")
    audience = claims.get("aud", ())
    audience = (audience,) if isinstance(audience, str) else audience
    if expected.audience and not (
        isinstance(audience, list | tuple) and set(expected.audience) & set(map(str, audience))
    ):
        raise LoginError(Reason.TOKEN, "a token for others (aud)")
    scope = claims.get(expected.scope_claim, "")
    if not (isinstance(scope, str) or (isinstance(scope, list) and all(isinstance(each, str) for each in scope))):
        raise LoginError(Reason.TOKEN, f"a token whose {expected.scope_claim} is neither text nor a list of texts")
    user = claims.get(expected.sub_claim)
    if not isinstance(user, str) or not user.strip():
        raise LoginError(Reason.TOKEN, f"a token that names no user ({expected.sub_claim})")
    # until its very end on our clock, or the session would be over before it began
    return Accepted(user, expires_ms=max(int(1000 * expires_s), wall_ms + 1) if skew_ms else int(1000 * expires_s))


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
        raise LoginError(Reason.TOKEN, f"a token without a time in {name}")
    return value


# -- tokens that are not signed


class Unsecured(NamedTuple):
    """Options of the login module, as Kafka's unsecured validator has them."""

    sub_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    skew_ms: int = 0

    @classmethod
    def of(cls, key: str, options: Mapping[str, str]) -> Unsecured:
        """Raises: ConfigError."""
        skew = options.get("unsecuredValidatorAllowableClockSkewMs", "0")
        if not re.fullmatch("[0-9]{1,9}", skew):
            raise ConfigError([f"{key}: unsecuredValidatorAllowableClockSkewMs: allowed: a number of ms"])
        return cls(
            options.get("unsecuredValidatorPrincipalClaimName", "sub"),
            options.get("unsecuredValidatorScopeClaimName", "scope"),
            tuple(options.get("unsecuredValidatorRequiredScope", "").split()),
            int(skew),
        )


def validate_unsecured(bearer: str, expected: Unsecured, wall_ms: int) -> Accepted:
    """Who an unsigned token says its bearer is: anybody may say so. Raises: LoginError."""
    parts = bearer.split(".")
    try:
        head, claims = (json.loads(base64.urlsafe_b64decode(each + "=" * (-len(each) % 4))) for each in parts[:2])
    except (ValueError, binascii.Error, RecursionError):
        raise LoginError(Reason.TOKEN, "a token that cannot be read") from None
    if len(parts) != 3 or parts[2] or not isinstance(head, dict) or not isinstance(claims, dict):
        raise LoginError(Reason.TOKEN, "a token that is signed, or none")
    if head.get("alg") != "none":
        raise LoginError(Reason.TOKEN, "a token that says it is signed")
    if wall_ms >= 1000 * _number(claims, "exp") + expected.skew_ms:
        raise LoginError(Reason.TOKEN, "a token that has expired")
    if "iat" in claims and 1000 * _number(claims, "iat") > wall_ms + expected.skew_ms:
        raise LoginError(Reason.TOKEN, "a token that was issued in the future: are the clocks right?")
    scope = claims.get(expected.scope_claim, [])
    scope = scope.split() if isinstance(scope, str) else scope
    if not isinstance(scope, list) or not set(expected.required_scope) <= set(map(str, scope)):
        raise LoginError(Reason.TOKEN, f"a token without the scope {' '.join(expected.required_scope)}")
    user = claims.get(expected.sub_claim)
    if not isinstance(user, str) or not user.strip():
        raise LoginError(Reason.TOKEN, f"a token that names no user ({expected.sub_claim})")
    return Accepted(user, expires_ms=int(1000 * _number(claims, "exp")))
