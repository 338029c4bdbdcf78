"""Delegation tokens: made, shown at a login, put off, ended; and what the metadata store has of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from kbroker.broker.delegation_tokens import TOKENS, decode_token
from kbroker.ports import Create
from protocol.errors import ErrorCode
from protocol.messages.security import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.security.sasl_world import SaslClient, SaslWorld

DAY_MS = 24 * 3_600_000


@pytest.fixture
def world() -> SaslWorld:
    return SaslWorld(delegation_token_secret_key="SECRET")


def known(world: SaslWorld, user: str = "alice", password: str = "alice-secret") -> SaslClient:
    client = world.client()
    client.log_in_plain(user, password)
    client.channel.session.security_protocol = "SASL_PLAINTEXT"
    return client


def create(client: SaslClient, *renewers: str, lifetime_ms: int = -1, version: int = 3, **other: Any) -> Any:
    named = [CreatableRenewers(principal_type="User", principal_name=each) for each in renewers]
    return client.ask(CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=lifetime_ms, **other), version)


def described(client: SaslClient, *owners: str) -> list[str]:
    named = [DescribeDelegationTokenOwner(principal_type="User", principal_name=each) for each in owners]
    answer = client.ask(DescribeDelegationTokenRequest(owners=named or None), 3)
    assert answer.error_code == 0, answer
    return [each.token_id for each in answer.tokens]


def log_in(world: SaslWorld, made: Any, mechanism: str = "SCRAM-SHA-256") -> SaslClient:
    client = world.client()
    password = base64.b64encode(made.hmac).decode()
    client.log_in_scram(mechanism, made.token_id, password, tokenauth="true")
    client.channel.session.security_protocol = "SASL_PLAINTEXT"
    return client


def test_who_shows_a_token_is_its_owner_until_it_ends(world: SaslWorld) -> None:
    made = create(known(world))
    assert made.expiry_timestamp_ms == made.issue_timestamp_ms + DAY_MS
    assert made.max_timestamp_ms == made.issue_timestamp_ms + 7 * DAY_MS
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        client = log_in(world, made, mechanism)
        assert str(client.channel.session.principal) == "User:alice"
        assert client.may_ask()
    world.advance(DAY_MS)
    client.send_bytes(b"\0\x03\0\x0c" + bytes(12))
    assert client.closing  # its session has ended, too
    with pytest.raises(AssertionError, match="no answer"):
        log_in(world, made)


def test_a_tokens_id_is_no_user_and_a_user_no_token(world: SaslWorld) -> None:
    made = create(known(world))
    with pytest.raises(AssertionError, match="no answer"):
        world.client().log_in_scram("SCRAM-SHA-256", made.token_id, base64.b64encode(made.hmac).decode())
    world.add_scram("SCRAM-SHA-256", "carol", "secret")
    with pytest.raises(AssertionError, match="no answer"):
        world.client().log_in_scram("SCRAM-SHA-256", "carol", "secret", tokenauth="true")


def test_tokens_are_handed_out_to_who_has_shown_more_than_a_token(world: SaslWorld) -> None:
    client = known(world)
    made = create(client)
    by_token = log_in(world, made)
    assert create(by_token).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    client.channel.session.security_protocol = "PLAINTEXT"
    assert create(client).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    other = SaslWorld()
    assert create(known(other)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def test_owners_and_renewers_put_off_a_tokens_end_and_others_do_not(world: SaslWorld) -> None:
    world.add_scram("SCRAM-SHA-256", "carol", "secret")
    alice, bob, carol = known(world), known(world, "bob", "b,=o b"), world.client()
    carol.log_in_scram("SCRAM-SHA-256", "carol", "secret")
    carol.channel.session.security_protocol = "SASL_PLAINTEXT"
    made = create(alice, "bob", lifetime_ms=3 * DAY_MS)
    for client, code in ((alice, 0), (bob, 0), (carol, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)):
        for kind in ("renew", "expire"):
            assert ask(client, kind, made.hmac, 1000)[0] == code
    assert ask(bob, "renew", made.hmac, -1) == (0, world.clock.wall_ms() + DAY_MS)
    assert ask(bob, "renew", made.hmac, 30 * DAY_MS) == (0, made.max_timestamp_ms)
    assert ask(bob, "renew", b"another", 1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    assert ask(alice, "expire", made.hmac, -1) == (0, world.clock.wall_ms())
    assert ask(alice, "renew", made.hmac, 1) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)


def ask(client: SaslClient, kind: str, secret: bytes, period_ms: int) -> tuple[int, int]:
    request = (
        RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        if kind == "renew"
        else ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
    )
    answer = client.ask(request, 2)
    return answer.error_code, answer.expiry_timestamp_ms


def test_a_token_that_has_ended_is_removed_in_time_and_not_renewed(world: SaslWorld) -> None:
    alice = known(world)
    made = create(alice, lifetime_ms=1000)
    world.advance(1001)
    assert ask(alice, "renew", made.hmac, -1) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    assert f"{TOKENS}/{made.token_id}" in world.ensemble.tree.nodes
    world.advance(3_600_000)
    assert f"{TOKENS}/{made.token_id}" not in world.ensemble.tree.nodes
    assert described(alice) == []


def test_tokens_are_told_to_those_whom_they_concern(world: SaslWorld) -> None:
    alice, bob = known(world), known(world, "bob", "b,=o b")
    mine, shared = create(alice).token_id, create(alice, "bob").token_id
    assert set(described(alice)) == {mine, shared}
    assert described(alice, "bob") == [shared]
    assert set(described(bob, "alice", "bob")) == {mine, shared}  # without access rules everybody may see all
    assert alice.ask(DescribeDelegationTokenRequest(owners=[]), 3).tokens == []


def test_renewers_are_users(world: SaslWorld) -> None:
    renewers = [CreatableRenewers(principal_type="Group", principal_name="x")]
    request = CreateDelegationTokenRequest(renewers=renewers, max_lifetime_ms=-1)
    assert known(world).ask(request, 3).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


def test_the_store_has_a_token_as_apache_keeps_it_and_no_secret(world: SaslWorld) -> None:
    made = create(known(world), "b ob", owner_principal_type="User", owner_principal_name="carol")
    data = world.ensemble.tree.nodes[f"{TOKENS}/{made.token_id}"].data
    assert json.loads(data) == {
        "version": 3,
        "owner": "User%3Acarol",
        "tokenRequester": "User%3Aalice",
        "renewers": ["User%3Ab%20ob"],
        "issueTimestamp": made.issue_timestamp_ms,
        "maxTimestamp": made.max_timestamp_ms,
        "expiryTimestamp": made.expiry_timestamp_ms,
        "tokenId": made.token_id,
    }
    assert base64.b64encode(made.hmac) not in data


def test_a_broker_that_starts_again_knows_its_tokens(world: SaslWorld) -> None:
    made = create(known(world))
    world.restart()
    assert log_in(world, made).may_ask()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"owner":7}', b'{"tokenId":"t","owner":"User%3Aa","renewers":7}']
)
def test_a_token_that_makes_no_sense_lets_no_one_in(
    world: SaslWorld, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world._write(Create(f"{TOKENS}/t", content))
    world._write(Create("/delegation_token/token_changes/token_change_", b"t", sequential=True))
    world.settle()
    assert "makes no sense" in caplog.text
    assert described(known(world)) == []
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode_token(content)
