"""Plays of logins: a step at the left margin, behind it, with four blanks in front, what came of it.

config KEY=VALUE ...              of the broker, before all else
user NAME MECHANISM PASSWORD      has a credential from now on, as Apache's tools make it
NAME versions
NAME handshake MECHANISM [0]      in version 1, or 0: then tokens come bare
NAME password USER PASSWORD       the token of PLAIN
NAME scram USER PASSWORD [token]  all of the exchange; [token]: they are a delegation token's
NAME asks                         something that only those who are known may ask
NAME token                        a delegation token for itself, which `scram` knows as NAME's
wait MS
clock MS                          the wall's clock jumps
"""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

from kbroker.security.scram import ScramClient
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.handshake import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.messages.metadata import MetadataRequest
from protocol.messages.security import CreateDelegationTokenRequest
from tests.security.sasl_world import SaslClient, SaslWorld


class Actor:
    """A client that shows who it is."""

    def __init__(self, world: SaslWorld) -> None:
        self._world = world
        self.client: SaslClient = world.client()
        self.client.channel.session.security_protocol = "SASL_PLAINTEXT"
        self._is_bare = False
        self.waits: list[int] = []  # requests whose answers come late

    def said(self, request: Message, version: int) -> str:
        number = self.client.send(request, version)
        answer = self.client.late(number)
        if answer is None and not self.client.closing:
            self.waits.append(number)
            return "no answer yet"
        return f"hung up: {self.client.closing}" if answer is None else told(answer)

    def late(self) -> list[str]:
        """What has come since."""
        found = [told(self.client.late(each)) for each in self.waits if self.client.late(each) is not None]
        if self.waits and self.client.closing:
            found.append(f"hung up: {self.client.closing}")
            self.waits.clear()
        return found

    def versions(self) -> str:
        return self.said(ApiVersionsRequest(client_software_name="play", client_software_version="1"), 3)

    def handshake(self, mechanism: str, version: str = "1") -> str:
        self._is_bare = version == "0"
        return self.said(SaslHandshakeRequest(mechanism=mechanism), int(version))

    def password(self, user: str, password: str) -> str:
        return self._token(f"\0{user}\0{password}".encode())

    def _token(self, token: bytes) -> str:
        if not self._is_bare:
            return self.said(SaslAuthenticateRequest(auth_bytes=token), 2)
        self.client.send_bytes(token)
        answer = self.client.take()
        return (
            f"bare {answer[4:]!r}"
            if answer
            else f"hung up: {self.client.closing}"
            if self.client.closing
            else "nothing"
        )

    def scram(self, mechanism: str, user: str, password: str, extensions: dict[str, str]) -> str:
        scram = ScramClient(mechanism, user, password, "nonce", extensions)
        number = self.client.send(SaslAuthenticateRequest(auth_bytes=scram.first()), 2)
        answer = self.client.late(number)
        if answer is None:
            self.waits.append(number)
            return "no answer yet"
        final = scram.evaluate_challenge(bytes(answer.auth_bytes))
        assert final is not None
        return self.said(SaslAuthenticateRequest(auth_bytes=final), 2)

    def asks(self) -> str:
        return self.said(MetadataRequest(topics=[]), 12)


def told(answer: Any) -> str:
    """An answer in a line."""
    code = ErrorCode.of(getattr(answer, "error_code", 0)).name
    parts = [code, getattr(answer, "error_message", None) or ""]
    if getattr(answer, "mechanisms", None):
        parts.append("mechanisms " + ",".join(answer.mechanisms))
    if getattr(answer, "session_lifetime_ms", 0):
        parts.append(f"for {answer.session_lifetime_ms} ms")
    return " ".join(filter(None, parts))


class Stage:
    """Runs the steps of one play."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.actors: dict[str, Actor] = {}
        self.tokens: dict[str, tuple[str, str]] = {}

    @cached_property
    def world(self) -> SaslWorld:
        """Made by the first step that is no `config`."""
        return SaslWorld(**{key.replace(".", "_"): value for key, value in self.config.items()})

    def step(self, line: str) -> list[str]:
        name, *words = line.split()
        if name == "config":
            assert "world" not in vars(self), "config comes first"
            self.config |= dict(word.split("=", 1) for word in words)
            return []
        if name == "user":
            self.world.add_scram(words[1], words[0], words[2])
            return []
        if name == "wait":
            self.world.advance(int(words[0]))
            return [f"{each}: {line}" for each, actor in self.actors.items() for line in actor.late()]
        if name == "clock":
            self.world.clock.jump_wall(int(words[0]))
            return []
        if name not in self.actors:
            self.actors[name] = Actor(self.world)
        return [self._act(self.actors[name], name, words)]

    def _act(self, actor: Actor, name: str, words: list[str]) -> str:
        verb, *rest = words
        if verb == "scram":
            session = actor.client.channel.session
            assert session.login is not None
            user, password = rest[:2]
            extensions = {}
            if rest[2:]:
                (user, password), extensions = self.tokens[user], {"tokenauth": "true"}
            return actor.scram(session.login.mechanism, user, password, extensions)
        if verb == "token":
            made = actor.client.ask(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
            self.tokens[name] = made.token_id, base64.b64encode(made.hmac).decode()
            return ErrorCode.of(made.error_code).name
        done: str = getattr(actor, verb)(*rest)
        return done
