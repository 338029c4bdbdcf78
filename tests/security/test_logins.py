"""What a listener that speaks SASL lets its clients do, before and behind a login."""

from __future__ import annotations

import logging

import pytest

from kbroker.security.login import RULES, State
from protocol.errors import ErrorCode
from protocol.headers import encode_request_header
from protocol.messages.handshake import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.metadata import MetadataRequest
from tests.security.sasl_world import SaslClient, SaslWorld

RIGHT = b"\0alice\0alice-secret"


@pytest.fixture
def world() -> SaslWorld:
    return SaslWorld()


@pytest.fixture
def client(world: SaslWorld) -> SaslClient:
    return world.client()


def bare(client: SaslClient, token: bytes) -> bytes:
    """What a token without a header brings."""
    client.look()
    client.send_bytes(token)
    return client.take()


# -- who gets in


def test_a_user_of_the_login_module_gets_in(world: SaslWorld, client: SaslClient) -> None:
    assert client.versions().error_code == ErrorCode.NONE
    assert client.log_in_plain("alice", "alice-secret").error_code == ErrorCode.NONE
    session = client.channel.session
    assert (str(session.principal), session.mechanism) == ("User:alice", "PLAIN")
    assert client.may_ask()
    assert world.logins.succeeded == {("PLAINTEXT", "PLAIN"): 1}


def test_a_password_may_have_any_character(client: SaslClient) -> None:
    assert client.log_in_plain("bob", "b,=o b").error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("token", "reason", "told"),
    [
        (b"\0alice\0wrong", "credentials", "Authentication failed: Invalid username or password"),
        (b"\0carol\0alice-secret", "credentials", "Authentication failed: Invalid username or password"),
        (b"\0alice\0", "credentials", "Authentication failed: password not specified"),
        (b"\0\0x", "credentials", "Authentication failed: username not specified"),
        (b"bob\0alice\0alice-secret", "credentials", "an authorization id that is different from username"),
        (b"alice", "malformed", "due to invalid credentials with SASL mechanism PLAIN"),
        (b"", "malformed", "due to invalid credentials with SASL mechanism PLAIN"),
        (b"\0\xff\0x", "malformed", "due to invalid credentials with SASL mechanism PLAIN"),
    ],
)
def test_who_gets_no_further_is_told_late_and_hung_up_on(
    world: SaslWorld, client: SaslClient, token: bytes, reason: str, told: str
) -> None:
    client.handshake("PLAIN")
    number = client.send(SaslAuthenticateRequest(auth_bytes=token), 2)
    world.advance(99)
    assert client.late(number) is None
    assert not client.closing
    world.advance(1)
    answer = client.late(number)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert told in answer.error_message
    assert client.closing
    assert world.logins.failed == {("PLAINTEXT", "PLAIN", reason): 1}
    assert str(client.channel.session.principal) == "User:ANONYMOUS"


def test_what_comes_behind_a_failed_login_is_not_handled(world: SaslWorld, client: SaslClient) -> None:
    client.handshake("PLAIN")
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    assert client.channel.full  # its driver holds frames back
    world.advance(100)
    assert not client.may_ask()


def test_an_unknown_mechanism_is_refused_with_those_that_there_are(world: SaslWorld, client: SaslClient) -> None:
    number = client.send(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    world.advance(100)
    answer = client.late(number)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert client.closing
    assert world.logins.failed == {("PLAINTEXT", "", "mechanism"): 1}


def test_no_password_is_in_the_log_or_in_an_error(
    world: SaslWorld, client: SaslClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client.handshake("PLAIN")
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0SECRET"), 2)
    world.advance(100)
    client.look()
    assert "another password" in client.closing
    for text in (caplog.text, client.closing, repr(world.logins.__dict__), repr(client.answers)):
        assert "SECRET" not in text
        assert "alice-secret" not in text


# -- SCRAM


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_user_with_a_credential_gets_in(world: SaslWorld, client: SaslClient, mechanism: str) -> None:
    world.add_scram(mechanism, "a,b=c", "secret")
    assert client.log_in_scram(mechanism, "a,b=c", "secret").error_code == ErrorCode.NONE
    assert str(client.channel.session.principal) == "User:a,b=c"
    assert client.may_ask()


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_user_or_password_of_scram_is_told_alike(world: SaslWorld, client: SaslClient, user: str) -> None:
    world.add_scram("SCRAM-SHA-256", "alice", "secret")
    with pytest.raises(AssertionError, match="no answer"):
        client.log_in_scram("SCRAM-SHA-256", user, "wrong")
    world.advance(100)
    told = [each.error_message for each in client.look().values() if getattr(each, "error_message", None)]
    assert told == [
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    ]


def test_a_credential_of_one_mechanism_is_none_of_the_other(world: SaslWorld, client: SaslClient) -> None:
    world.add_scram("SCRAM-SHA-256", "alice", "secret")
    with pytest.raises(AssertionError, match="no answer"):
        client.log_in_scram("SCRAM-SHA-512", "alice", "secret")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "salt=x",
        "salt=!,stored_key=!,server_key=!,iterations=4096",
        "salt=YQ==,stored_key=YQ==,server_key=YQ==,iterations=4096",
    ],
)
def test_a_credential_that_makes_no_sense_lets_no_one_in(
    world: SaslWorld, client: SaslClient, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.put_user("alice", {"SCRAM-SHA-256": text})
    assert "SCRAM-SHA-256 of users/alice in the metadata store lets no one in" in caplog.text
    with pytest.raises(AssertionError, match="no answer"):
        client.log_in_scram("SCRAM-SHA-256", "alice", "secret")


# -- tokens without headers


def test_tokens_come_bare_behind_the_first_version_of_the_handshake(world: SaslWorld, client: SaslClient) -> None:
    assert client.handshake("PLAIN", 0).error_code == ErrorCode.NONE
    assert bare(client, RIGHT) == bytes(4)
    assert client.may_ask()


def test_a_bare_token_that_is_wrong_is_hung_up_on_late(world: SaslWorld, client: SaslClient) -> None:
    client.handshake("PLAIN", 0)
    assert bare(client, b"\0alice\0wrong") == b""
    assert not client.closing
    world.advance(100)
    assert client.take() == b""
    assert client.closing


# -- the order of things


def test_every_request_but_the_three_of_a_login_ends_the_connection_before_it(world: SaslWorld) -> None:
    for api in range(128):
        for version in (0, 3):
            client = world.client()
            head = api.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
            client.send_bytes(head + bytes(20))
            assert api in (17, 18) or client.closing, api


def test_nothing_of_a_frame_that_is_too_large_is_looked_at(client: SaslClient) -> None:
    head = encode_request_header(ApiVersionsRequest, 0, 1, "")
    client.send_bytes(head + bytes(524_289 - len(head)))
    assert client.closing


@pytest.mark.parametrize("frame", [b"", b"\0", bytes(3), b"\0\x12"])
def test_a_frame_that_is_no_request_ends_the_connection(client: SaslClient, frame: bytes) -> None:
    client.send_bytes(frame)
    assert client.closing


def test_versions_are_asked_once_and_again_only_if_the_version_was_not_known(client: SaslClient) -> None:
    number = client.send(ApiVersionsRequest(), 3)  # without a name: INVALID_REQUEST
    assert client.late(number).error_code == ErrorCode.INVALID_REQUEST
    assert client.versions().error_code == ErrorCode.NONE
    client.send(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
    assert client.closing


def test_an_authenticate_without_a_handshake_ends_the_connection(client: SaslClient) -> None:
    client.send(SaslAuthenticateRequest(auth_bytes=RIGHT), 2)
    assert client.closing


def test_a_handshake_in_the_middle_of_a_login_ends_the_connection(client: SaslClient) -> None:
    client.handshake("PLAIN")
    client.send(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert client.closing


def test_a_login_behind_a_login_is_told_that_it_is_too_late(client: SaslClient) -> None:
    client.log_in_plain("alice", "alice-secret")
    assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.token(RIGHT).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.may_ask()


def test_each_state_follows_from_another() -> None:
    reached = {state for following, _ in RULES.values() for state in following} | {State.INITIAL_REQUEST}
    assert reached == set(State)
    assert not RULES[State.FAILED][0]


# -- sessions that end


def test_a_session_that_has_ended_takes_a_login_and_nothing_else() -> None:
    world = SaslWorld(connections_max_reauth_ms="1000")
    client = world.client()
    assert client.log_in_plain("alice", "alice-secret").session_lifetime_ms == 1000
    assert client.may_ask()
    world.advance(999)
    assert client.may_ask()
    world.advance(1)
    assert client.log_in_plain("alice", "alice-secret").session_lifetime_ms == 1000
    assert client.may_ask()
    world.advance(1000)
    client.send(MetadataRequest(topics=[]), 12)
    assert client.closing
    assert world.logins.failed == {("PLAINTEXT", "PLAIN", "expired"): 1}


def test_a_login_again_before_the_end_puts_it_off() -> None:
    world = SaslWorld(connections_max_reauth_ms="10000")
    client = world.client()
    client.log_in_plain("alice", "alice-secret")
    world.advance(9000)
    client.log_in_plain("alice", "alice-secret")
    world.advance(9000)
    assert client.may_ask()


def test_a_client_logs_in_again_once_a_second_at_most() -> None:
    world = SaslWorld(connections_max_reauth_ms="10000")
    client = world.client()
    client.log_in_plain("alice", "alice-secret")
    client.log_in_plain("alice", "alice-secret")
    assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    world.advance(1000)
    assert client.handshake("PLAIN").error_code == ErrorCode.NONE


def test_a_login_again_keeps_the_user_and_the_mechanism() -> None:
    world = SaslWorld(connections_max_reauth_ms="10000")
    client = world.client()
    client.log_in_plain("alice", "alice-secret")
    client.handshake("PLAIN")
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0bob\0b,=o b"), 2)
    world.advance(100)
    assert client.closing
    client = world.client()
    client.log_in_plain("alice", "alice-secret")
    client.send(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
    world.advance(100)
    assert client.closing


# -- functions of the user's own


def check_password(user: str, password: str) -> bool:
    if user == "broken":
        raise RuntimeError(f"the directory does not know {password}")
    return (user, password) == ("carol", "of the directory")


def test_a_function_of_the_users_own_is_asked_beside_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    world = SaslWorld(sasl_server_callback_handler_class=f"{__name__}:check_password", sasl_enabled_mechanisms="PLAIN")
    client, other = world.client(), world.client()
    client.handshake("PLAIN")
    number = client.send(SaslAuthenticateRequest(auth_bytes=b"\0carol\0of the directory"), 2)
    assert client.late(number) is None
    assert client.channel.full
    other.versions()  # is not held up
    world.run_beside()
    assert client.late(number).error_code == ErrorCode.NONE
    assert client.may_ask()
    other.handshake("PLAIN")
    number = other.send(SaslAuthenticateRequest(auth_bytes=b"\0broken\0SECRET"), 2)
    world.run_beside()
    world.advance(100)
    assert other.late(number).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "SECRET" not in caplog.text
    assert world.logins.failed == {("PLAINTEXT", "PLAIN", "unavailable"): 1}


def test_a_client_that_goes_while_it_is_asked_about_is_forgotten() -> None:
    world = SaslWorld(sasl_server_callback_handler_class=f"{__name__}:check_password", sasl_enabled_mechanisms="PLAIN")
    client = world.client()
    client.handshake("PLAIN")
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0carol\0of the directory"), 2)
    client.hang_up()
    world.run_beside()
    assert not world.logins.succeeded


def test_logins_are_counted_for_who_watches(world: SaslWorld) -> None:
    world.client().log_in_plain("alice", "alice-secret")
    client = world.client()
    client.handshake("PLAIN")
    client.send(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
    told = {family.name: list(family.samples) for family in world.core.figures() if "authentication" in family.name}
    assert [(name.rpartition("metrics_")[2], found[0].value) for name, found in told.items()] == [
        ("successful_authentication_total", 1),
        ("failed_authentication_total", 1),
    ]
