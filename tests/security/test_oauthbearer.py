"""Logins by a token: what it has to say, whose keys have signed it, and where those come from."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from jwt.algorithms import RSAAlgorithm

from protocol.errors import ErrorCode
from protocol.messages.handshake import SaslAuthenticateRequest
from tests.security.sasl_world import SaslClient, SaslWorld

KEY, OTHER_KEY = (generate_private_key(65537, 2048) for _ in range(2))
URL = "https://issuer.example/keys"
UNSECURED = (
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
)
INVALID = {"status": "invalid_token"}


def key_set(**keys: RSAPrivateKey) -> bytes:
    return json.dumps(
        {"keys": [{**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid} for kid, key in keys.items()]}
    ).encode()


def world_of(keys: bytes = key_set(one=KEY), **settings: str) -> SaslWorld:
    url = {} if "sasl_server_callback_handler_class" in settings else {"sasl_oauthbearer_jwks_endpoint_url": URL}
    world = SaslWorld(sasl_enabled_mechanisms="OAUTHBEARER", **url, **settings)
    world.keys = keys
    world.run_beside()
    return world


def claims_at(world: SaslWorld, **other: Any) -> dict[str, Any]:
    now_s = world.clock.wall_ms() // 1000
    claims = {"sub": "alice", "iat": now_s, "exp": now_s + 60, **other}
    return {key: value for key, value in claims.items() if value is not None}


def signed(claims: Mapping[str, Any], key: Any = KEY, kid: str | None = "one", algorithm: str = "RS256") -> str:
    return jwt.encode(dict(claims), key, algorithm, headers={"kid": kid} if kid else {})


def unsigned(claims: Mapping[str, Any], alg: str = "none") -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({"alg": alg}, claims)
    ]
    return ".".join([*parts, ""])


def present(client: SaslClient, token: str, authorized: str = "") -> Any:
    """The first answer; None if it comes late."""
    assert client.handshake("OAUTHBEARER").error_code == ErrorCode.NONE
    who = f"a={authorized}" if authorized else ""
    first = f"n,{who},\x01auth=Bearer {token}\x01\x01".encode()
    return client.late(client.send(SaslAuthenticateRequest(auth_bytes=first), 2))


def expect_refused(world: SaslWorld, token: str, reason: str = "token") -> None:
    client = world.client()
    answer = present(client, token)
    assert json.loads(bytes(answer.auth_bytes)) == INVALID
    number = client.send(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
    world.advance(100)
    assert client.late(number).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert world.logins.failed["PLAINTEXT", "OAUTHBEARER", reason] > 0


def test_who_has_a_token_gets_in_until_it_ends() -> None:
    world = world_of()
    client = world.client()
    answer = present(client, signed(claims_at(world)))
    assert (answer.error_code, bytes(answer.auth_bytes)) == (ErrorCode.NONE, b"")
    assert 59_000 <= answer.session_lifetime_ms <= 60_000
    assert str(client.channel.session.principal) == "User:alice"
    assert client.may_ask()
    world.advance(60_000)
    assert not client.may_ask()
    assert client.closing


@pytest.mark.parametrize(
    "other",
    [
        {"exp": 0},
        {"exp": None},
        {"exp": "soon"},
        {"exp": True},
        {"iat": None},
        {"iat": 1 << 39},
        {"nbf": 1 << 39},
        {"sub": None},
        {"sub": " "},
        {"sub": 7},
        {"scope": 7},
        {"iss": "another"},
        {"iss": None},
        {"aud": "others"},
        {"aud": None},
        {"aud": ["others"]},
    ],
)
def test_a_token_that_says_something_else_than_is_expected_is_refused(other: dict[str, Any]) -> None:
    world = world_of(sasl_oauthbearer_expected_issuer="us", sasl_oauthbearer_expected_audience="kafka,spark")
    right = {"iss": "us", "aud": ["more", "spark"], "scope": ["a", "b"]}
    assert present(world.client(), signed(claims_at(world, **right))).error_code == ErrorCode.NONE
    expect_refused(world, signed(claims_at(world, **right | other)))


def test_claims_may_have_other_names() -> None:
    world = world_of(sasl_oauthbearer_sub_claim_name="user", sasl_oauthbearer_scope_claim_name="scp")
    client = world.client()
    present(client, signed(claims_at(world, user="bob")))
    assert str(client.channel.session.principal) == "User:bob"


def test_a_token_that_no_known_key_has_signed_is_refused() -> None:
    world = world_of()
    claims = claims_at(world)
    expect_refused(world, signed(claims, OTHER_KEY))
    expect_refused(world, signed(claims, kid="two"))
    expect_refused(world, unsigned(claims))
    expect_refused(world, unsigned(claims, alg="RS256"))
    expect_refused(world, "a.b.c")
    public = json.dumps(RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True))
    expect_refused(world, signed(claims, public * 2, algorithm="HS256"))  # a public key is no shared secret
    assert present(world.client(), signed(claims, kid=None)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("validator", ["", UNSECURED])
def test_a_token_nested_deeper_than_can_be_read_is_refused(validator: str) -> None:
    deep = base64.urlsafe_b64encode(b"[" * 3_000).decode().rstrip("=")
    world = world_of(sasl_server_callback_handler_class=validator) if validator else world_of()
    expect_refused(world, f"{deep}.{deep}.")


def test_clocks_may_differ_a_little() -> None:
    world = world_of()
    now_s = world.clock.wall_ms() // 1000
    assert present(world.client(), signed(claims_at(world, iat=now_s + 29))).error_code == ErrorCode.NONE
    assert present(world.client(), signed(claims_at(world, exp=now_s - 29))).error_code == ErrorCode.NONE
    expect_refused(world, signed(claims_at(world, iat=now_s + 32)))
    expect_refused(world, signed(claims_at(world, exp=now_s - 31)))


def test_a_client_may_not_want_to_be_another(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of()
    answer = present(world.client(), signed(claims_at(world)), authorized="bob")
    assert json.loads(bytes(answer.auth_bytes)) == INVALID


@pytest.mark.parametrize("keys", [b"", b"[]", b"{}", b'{"keys":[]}', b'{"keys":[{"kty":"RSA"}]}'])
def test_tokens_are_refused_until_there_are_keys(keys: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = world_of(keys)
    assert f"sasl.oauthbearer.jwks.endpoint.url={URL}: no keys" in caplog.text
    expect_refused(world, signed(claims_at(world)), "unavailable")
    world.keys = key_set(one=KEY)
    world.advance(200)
    world.run_beside()
    assert present(world.client(), signed(claims_at(world))).error_code == ErrorCode.NONE


def test_keys_that_were_fetched_are_good_while_their_place_does_not_answer() -> None:
    world = world_of()
    world.keys = b""
    world.advance(3_600_000)
    world.run_beside()
    assert len(world.fetched) == 2
    assert present(world.client(), signed(claims_at(world))).error_code == ErrorCode.NONE


def test_a_key_that_is_missed_is_looked_for_and_not_more_often_than_may_be() -> None:
    world = world_of()
    world.keys = key_set(one=KEY, two=OTHER_KEY)
    world.advance(10_000)
    expect_refused(world, signed(claims_at(world), OTHER_KEY, "two"))
    world.run_beside()
    assert present(world.client(), signed(claims_at(world), OTHER_KEY, "two")).error_code == ErrorCode.NONE
    expect_refused(world, signed(claims_at(world), OTHER_KEY, "three"))
    assert not world.beside


def test_an_unsigned_token_is_taken_where_that_is_asked_for_by_name() -> None:
    world = world_of(sasl_server_callback_handler_class=UNSECURED)
    client = world.client()
    assert present(client, unsigned(claims_at(world))).error_code == ErrorCode.NONE
    assert str(client.channel.session.principal) == "User:alice"
    expect_refused(world, unsigned(claims_at(world, exp=1)))
    expect_refused(world, signed(claims_at(world)))


def check_token(token: str) -> tuple[str, int] | None:
    return ("carol", 1 << 60) if token == "right" else None


def test_a_function_of_the_users_own_checks_tokens() -> None:
    world = world_of(sasl_server_callback_handler_class=f"{__name__}:check_token")
    client, other = world.client(), world.client()
    assert present(client, "right") is None
    world.run_beside()
    assert client.may_ask()
    assert str(client.channel.session.principal) == "User:carol"
    assert present(other, "SECRET") is None
    world.run_beside()
    world.advance(100)
    assert other.closing
    assert "SECRET" not in other.closing


@pytest.mark.parametrize(
    "first", [b"", b"n,,", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01\x01", b"\xff" * 9, b"n" * 70_000]
)
def test_what_is_no_token_is_refused_late(first: bytes) -> None:
    world = world_of()
    client = world.client()
    client.handshake("OAUTHBEARER")
    number = client.send(SaslAuthenticateRequest(auth_bytes=first), 2)
    world.advance(100)
    assert client.late(number).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.closing
