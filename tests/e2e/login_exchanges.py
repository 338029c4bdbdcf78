"""Requests about logins, users and delegation tokens on a listener of plain text: what Kafka answers to them there."""

from __future__ import annotations

from protocol.errors import ErrorCode
from protocol.messages.handshake import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ScramCredentialDeletion,
)
from tests.e2e.exchanges import exchange
from tests.e2e.world import World

NOT_HERE = ErrorCode.ILLEGAL_SASL_STATE
NO_TOKENS = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


@exchange(17)
def sasl_handshake(here: World, version: int) -> None:
    assert here.ask(SaslHandshakeRequest(mechanism="PLAIN"), version).error_code == NOT_HERE


@exchange(36)
def sasl_authenticate(here: World, version: int) -> None:
    assert here.ask(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), version).error_code == NOT_HERE


@exchange(38)
def create_delegation_token(here: World, version: int) -> None:
    asked = CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)
    assert here.ask(asked, version).error_code == NO_TOKENS


@exchange(39)
def renew_delegation_token(here: World, version: int) -> None:
    assert here.ask(RenewDelegationTokenRequest(hmac=b"h", renew_period_ms=-1), version).error_code == NO_TOKENS


@exchange(40)
def expire_delegation_token(here: World, version: int) -> None:
    asked = ExpireDelegationTokenRequest(hmac=b"h", expiry_time_period_ms=-1)
    assert here.ask(asked, version).error_code == NO_TOKENS


@exchange(41)
def describe_delegation_token(here: World, version: int) -> None:
    assert here.ask(DescribeDelegationTokenRequest(owners=None), version).error_code == NO_TOKENS


@exchange(50)
def describe_user_scram_credentials(here: World, version: int) -> None:
    found = here.ask(DescribeUserScramCredentialsRequest(users=None), version)
    assert (found.error_code, found.results) == (ErrorCode.NONE, [])


@exchange(51)
def alter_user_scram_credentials(here: World, version: int) -> None:
    gone = ScramCredentialDeletion(name="absent", mechanism=1)
    done = here.ask(AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[]), version)
    assert done.results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND
