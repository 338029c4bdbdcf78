"""GSSAPI without a KDC: the exchange with a stand-in for Kerberos, and names of principals. With one: tests/runtime."""

from __future__ import annotations

import pytest

from kbroker.security.kerberos import OFFER, Gssapi, TicketClient, TicketError
from kbroker.security.kerberos_names import KerberosNames, NoRuleError
from kbroker.security.login import Accepted, Challenge, LoginError, Reason

REALM = "EXAMPLE.COM"
TICKET, WRAPPED = b"a ticket of alice", b"wrapped:"


class StandIn:
    """Takes one ticket; what is wrapped has a word in front. answer: to the ticket."""

    client = f"alice@{REALM}"

    def __init__(self, answer: bytes = b"") -> None:
        self.is_complete = False
        self._answer = answer

    def accept(self, token: bytes) -> bytes:
        if token != TICKET:
            raise TicketError("no ticket")
        self.is_complete = True
        return self._answer

    def wrap(self, data: bytes) -> bytes:
        return WRAPPED + data

    def unwrap(self, token: bytes) -> bytes:
        if not token.startswith(WRAPPED):
            raise TicketError("not signed")
        return token.removeprefix(WRAPPED)


class AtClient(StandIn):
    """The other end: it takes the broker's proof."""

    def accept(self, token: bytes) -> bytes:
        if token != b"the broker's proof":
            raise TicketError("no proof")
        self.is_complete = True
        return b""


def exchange(answer: bytes = b"") -> Gssapi:
    return Gssapi(StandIn(answer), KerberosNames(["DEFAULT"], REALM).user_of)


def test_a_ticket_then_no_layer_is_a_login() -> None:
    one = exchange()
    assert one.evaluate(TICKET, 0) == Challenge(WRAPPED + OFFER)
    assert one.evaluate(WRAPPED + b"\1\0\0\0whom I want", 0) == Accepted("alice")


def test_a_client_that_wants_to_know_the_broker_answers_with_nothing_first() -> None:
    one = exchange(b"the broker's proof")
    assert one.evaluate(TICKET, 0) == Challenge(b"the broker's proof")
    assert one.evaluate(b"", 0) == Challenge(WRAPPED + OFFER)
    assert one.evaluate(WRAPPED + OFFER, 0) == Accepted("alice")


def test_both_ends_come_to_a_login() -> None:
    broker, client = exchange(b"the broker's proof"), TicketClient(AtClient(), TICKET)
    said: bytes | None = client.first()
    for _ in range(2):
        assert said is not None
        verdict = broker.evaluate(said, 0)
        assert isinstance(verdict, Challenge)
        said = client.evaluate_challenge(verdict.token)
    assert said == WRAPPED + OFFER
    assert broker.evaluate(said, 0) == Accepted("alice")
    assert client.evaluate_challenge(b"") is None


@pytest.mark.parametrize("tokens", [[b"another's"], [b"the broker's proof", b"not wrapped"]])
def test_a_broker_that_proves_nothing_gets_no_further(tokens: list[bytes]) -> None:
    client = TicketClient(AtClient(), TICKET)
    client.first()
    for token in tokens[:-1]:
        client.evaluate_challenge(token)
    with pytest.raises(ValueError, match="GSSAPI: no"):
        client.evaluate_challenge(tokens[-1])


@pytest.mark.parametrize("offer", [b"", b"\2\0\0\0", b"\1\0\0"])
def test_a_broker_that_wants_a_layer_is_left(offer: bytes) -> None:
    client = TicketClient(AtClient(), TICKET)
    assert client.evaluate_challenge(b"the broker's proof") == b""
    with pytest.raises(ValueError, match="a layer of its own"):
        client.evaluate_challenge(WRAPPED + offer)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([b"another's"], Reason.CREDENTIALS),
        ([b""], Reason.CREDENTIALS),
        ([TICKET, b"\1\0\0\0"], Reason.CREDENTIALS),
        ([TICKET, TICKET], Reason.CREDENTIALS),
        ([TICKET, WRAPPED], Reason.MALFORMED),
        ([TICKET, WRAPPED + b"\1\0\0"], Reason.MALFORMED),
        ([TICKET, WRAPPED + b"\2\0\0\0"], Reason.MALFORMED),
    ],
)
def test_what_is_out_of_turn_is_refused(tokens: list[bytes], reason: Reason) -> None:
    one = exchange()
    for token in tokens[:-1]:
        assert isinstance(one.evaluate(token, 0), Challenge)
    with pytest.raises(LoginError) as caught:
        one.evaluate(tokens[-1], 0)
    assert caught.value.reason is reason


def test_a_token_where_none_is_due_is_refused() -> None:
    one = exchange(b"proof")
    one.evaluate(TICKET, 0)
    with pytest.raises(LoginError, match="where none is due"):
        one.evaluate(TICKET, 0)


def test_who_no_rule_names_is_let_in_by_none() -> None:
    one = Gssapi(StandIn(), KerberosNames(["DEFAULT"], "ANOTHER").user_of)
    one.evaluate(TICKET, 0)
    with pytest.raises(LoginError, match=r"no rule of sasl\.kerberos\.principal\.to\.local\.rules applies to alice"):
        one.evaluate(WRAPPED + OFFER, 0)


RULES = [
    "RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1-$2@$0](hb-.*@OTHER)s/-.*//",
    "RULE:[2:$1](up)/U",
    "RULE:[1:$1](Low.*)s/w/x//L",
    "DEFAULT",
]


@pytest.mark.parametrize(
    ("principal", "user"),
    [
        (f"App.service-name@{REALM}", "service-name"),
        (f"App.service-name/example.com@{REALM}", "service-name"),
        ("hb/host@OTHER", "hb"),
        (f"up/host@{REALM}", "UP"),
        (f"LowWow@{REALM}", "loxwow"),
        (f"user@{REALM}", "user"),
        (f"user/host@{REALM}", "user"),
        ("user", "user"),
    ],
)
def test_principals_become_users(principal: str, user: str) -> None:
    assert KerberosNames(RULES, REALM).user_of(principal) == user


@pytest.mark.parametrize("principal", ["user@OTHER", "a/b/c@EXAMPLE.COM", "a@b@c", f"user/host@{REALM}x"])
def test_a_principal_without_a_rule_has_no_user(principal: str) -> None:
    with pytest.raises(NoRuleError):
        KerberosNames(RULES, REALM).user_of(principal)


def test_a_rule_makes_no_name_with_a_realm_in_it() -> None:
    with pytest.raises(NoRuleError, match="which is no name"):
        KerberosNames(["RULE:[1:$1@$0]"], REALM).user_of(f"user@{REALM}")


@pytest.mark.parametrize(
    "rule", ["", "default", "RULE:", "RULE:[1:$1", "RULE:[1:$1](*)", "RULE:[1:$1]s/(/x/", "DEFAULT/L"]
)
def test_a_rule_that_is_none_is_named(rule: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: DEFAULT|no expression"):
        KerberosNames([rule], REALM)
