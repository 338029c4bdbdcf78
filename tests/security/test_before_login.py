"""What comes before a login is over: in every order, cut anywhere, all at once, or made of chance."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, permutations

import pytest

from kbroker.security.login import RULES, State
from kbroker.security.scram import ScramClient
from protocol.headers import encode_request_header
from protocol.message import Message
from protocol.messages.handshake import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.produce import ProduceRequest
from tests.security.sasl_world import SaslClient, SaslWorld

NAME = "client"
ASKED = 77  # the number of what only those who are known may ask
SENT_AT_ONCE = 5


def frame(request: Message, version: int, number: int = 1) -> bytes:
    return encode_request_header(type(request), version, number, NAME) + request.encode(version)


FRAMES = {
    "versions": frame(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3),
    "handshake": frame(SaslHandshakeRequest(mechanism="PLAIN"), 1),
    "other": frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1),
    "right": frame(SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"), 2),
    "wrong": frame(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2),
    "ask": frame(MetadataRequest(topics=[]), 12, ASKED),
    "produce": frame(ProduceRequest(acks=1, timeout_ms=1, topic_data=[]), 9, ASKED),
}
LOGIN = ("handshake", "right")


@pytest.fixture(scope="module")
def world() -> SaslWorld:
    world = SaslWorld()
    world.add_scram("SCRAM-SHA-256", "carol", "secret")
    return world


def send_at_once(world: SaslWorld, frames: Iterable[bytes]) -> SaslClient:
    """All frames without waiting for an answer, as a driver passes them on: none while the channel is full."""
    client = world.client()
    waiting = deque(frames)
    while waiting and not client.closing:
        if client.channel.full:
            world.advance(100)
        else:
            client._receive(waiting.popleft())
    world.advance(100)
    return client


def answers(client: SaslClient) -> list[int]:
    """The numbers of what was answered."""
    data, numbers = client.take(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        numbers.append(int.from_bytes(data[4:8], "big"))
        data = data[4 + size :]
    return numbers


def is_let_in(names: Iterable[str]) -> int | None:
    """Behind which of these the client is known, by Kafka's rules; None if it never is."""
    state = "initial"
    for at, name in enumerate(names):
        if state in ("initial", "handshake") and name == "handshake":
            state = "authenticate"
        elif state == "initial" and name == "versions":
            state = "handshake"
        elif state == "authenticate" and name == "right":
            return at
        else:
            return None
    return None


def orders() -> Iterator[tuple[str, ...]]:
    some = ("versions", "handshake", "right", "ask", "produce")
    yield from chain.from_iterable(permutations(some, count) for count in range(1, SENT_AT_ONCE + 1))
    yield from permutations(("handshake", "other", "wrong", "right", "ask"))


def test_only_behind_a_login_is_anything_else_answered(world: SaslWorld) -> None:
    for names in orders():
        client = send_at_once(world, [FRAMES[name] for name in names])
        known = is_let_in(names)
        asked = [at for at, name in enumerate(names) if name in ("ask", "produce")]
        expected = sum(known is not None and at > known for at in asked)
        assert answers(client).count(ASKED) == expected, names
        is_known = str(client.channel.session.principal) == "User:alice"
        assert is_known is (known is not None), names


@pytest.mark.parametrize("cut", [*FRAMES])
def test_a_request_that_was_cut_lets_no_one_in(world: SaslWorld, cut: str) -> None:
    whole = FRAMES[cut]
    for size in range(len(whole)):
        for before in ((), ("handshake",), ("versions", "handshake")):
            client = send_at_once(world, [*(FRAMES[name] for name in before), whole[:size], *map(FRAMES.get, LOGIN)])
            assert ASKED not in answers(client)
            assert str(client.channel.session.principal) == "User:ANONYMOUS" or cut in ("versions", *LOGIN), size


def test_a_message_of_scram_that_was_cut_or_changed_lets_no_one_in(world: SaslWorld) -> None:
    for at in range(200):
        for change in (lambda data, at=at: data[:at], lambda data, at=at: data[:at] + b"A" + data[at + 1 :]):
            client, scram = world.client(), ScramClient("SCRAM-SHA-256", "carol", "secret", "nonce")
            client.handshake("SCRAM-SHA-256")
            final = scram.evaluate_challenge(client.token(scram.first()).auth_bytes)
            assert final is not None
            changed = change(final)
            if changed == final:
                continue
            number = client.send(SaslAuthenticateRequest(auth_bytes=changed), 2)
            world.advance(100)
            assert client.late(number).error_code == 58, changed
            assert str(client.channel.session.principal) == "User:ANONYMOUS"


def others_handled(world: SaslWorld) -> int:
    """How many requests were begun that are none of a login."""
    return sum(count for api, count in enumerate(world.broker.counters.requests) if api not in (17, 18, 36))


def test_frames_of_chance_let_no_one_in(world: SaslWorld) -> None:
    rng = random.Random(7)
    known = list(FRAMES.values())
    for _ in range(3_000):
        frames = []
        for _ in range(rng.randrange(1, 6)):
            data = bytearray(rng.choice(known))
            for _ in range(rng.randrange(4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            frames.append(bytes(data) if rng.random() < 0.8 else rng.randbytes(rng.randrange(40)))
        before = others_handled(world)
        client = send_at_once(world, frames)
        if str(client.channel.session.principal) == "User:ANONYMOUS":
            assert others_handled(world) == before, frames
        client.hang_up()
    assert not world.beside


def test_no_state_but_complete_handles_anything_else() -> None:
    for state, (_, handled) in RULES.items():
        assert handled <= {17, 18, 36} or state is State.COMPLETE
