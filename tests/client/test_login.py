"""A client's login, against a broker's own end of it."""

from __future__ import annotations

import pytest

from kbroker.client import ClientLogin, Connection, LoginRefusedError, State
from kbroker.security.exchanges import BearerClient, Exchange, PlainClient
from kbroker.security.scram import ScramClient
from tests.security.sasl_world import SaslWorld


def check_token(token: str) -> str | None:
    return "alice" if token == "right" else None


@pytest.fixture
def world() -> SaslWorld:
    world = SaslWorld(sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256", connections_max_reauth_ms="9000")
    world.add_scram("SCRAM-SHA-256", "alice", "alice-secret")
    return world


def log_in(world: SaslWorld, mechanism: str, exchange: Exchange) -> tuple[Connection, ClientLogin]:
    """Through with it; time passes as it must."""
    other = world.client()
    connection = Connection("me", authenticates=True)

    def send(data: bytes) -> None:
        other.send_bytes(data[4:])
        world.run_beside()
        world.advance(200)

    send(connection.negotiate("test", "1"))
    connection.feed(memoryview(other.take()))
    login = ClientLogin(connection, mechanism, exchange)
    data = login.first_request()
    while data:
        send(data)
        (answer,) = connection.feed(memoryview(other.take()))
        data = login.answered(answer)
    return connection, login


def test_each_mechanism_gets_a_client_in(world: SaslWorld) -> None:
    for mechanism, exchange in (
        ("PLAIN", PlainClient("alice", "alice-secret")),
        ("SCRAM-SHA-256", ScramClient("SCRAM-SHA-256", "alice", "alice-secret", "nonce")),
    ):
        connection, login = log_in(world, mechanism, exchange)
        assert connection.state is State.READY
        assert login.lifetime_ms == 9000


def test_a_token_gets_a_client_in_and_another_does_not() -> None:
    callback = f"{__name__}:check_token"
    world = SaslWorld(sasl_enabled_mechanisms="OAUTHBEARER", sasl_server_callback_handler_class=callback)
    assert log_in(world, "OAUTHBEARER", BearerClient("right"))[0].state is State.READY
    with pytest.raises(LoginRefusedError, match="invalid_token") as refused:
        log_in(world, "OAUTHBEARER", BearerClient("SECRET"))
    assert "SECRET" not in str(refused.value)


def test_a_refusal_says_why_and_no_password(world: SaslWorld) -> None:
    with pytest.raises(LoginRefusedError, match="Invalid username or password") as refused:
        log_in(world, "PLAIN", PlainClient("alice", "SECRET"))
    assert "SECRET" not in str(refused.value)
    with pytest.raises(LoginRefusedError, match="it takes: PLAIN, SCRAM-SHA-256"):
        log_in(world, "GSSAPI", PlainClient("alice", "SECRET"))


@pytest.mark.parametrize(
    "said", [b"", b"r=nonce,s=c2FsdA==,i=4096", b"r=nonceX,s=c2FsdA==,i=1", b"r=nonceX,s=!,i=4096"]
)
def test_a_broker_of_scram_that_says_something_odd_is_not_believed(said: bytes) -> None:
    with pytest.raises(ValueError, match="SCRAM"):
        ScramClient("SCRAM-SHA-256", "alice", "secret", "nonce").evaluate_challenge(said)


def test_a_broker_that_does_not_know_the_credential_is_not_believed() -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "secret", "nonce")
    client.evaluate_challenge(b"r=nonceX,s=c2FsdA==,i=4096")
    with pytest.raises(ValueError, match="does not know"):
        client.evaluate_challenge(b"v=c2FsdA==")
    assert not client.done
