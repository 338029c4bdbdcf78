"""A broker whose only listener wants a login, and clients that log in step by step.

world = SaslWorld(sasl_enabled_mechanisms="PLAIN", ...)
client = world.client()
client.log_in_plain("alice", "secret")
"""

from __future__ import annotations

from typing import Any

from kbroker.broker.facts import JobDone
from kbroker.broker.jobs import Errand, Job, Owner
from kbroker.broker.logins import Logins
from kbroker.metadata.entities import user_path
from kbroker.metadata.store import encode_config, encode_config_change
from kbroker.ports import Create
from kbroker.security.scram import ScramClient, make_credential, write_credential
from protocol.messages.handshake import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from protocol.messages.metadata import MetadataRequest
from tests.world import Client, World

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret" user_bob="b,=o b";'
PREFIX = "listener.name.plaintext."


class SaslWorld(World):
    """See above; settings of the listener have no prefix."""

    def __init__(self, **settings: str) -> None:
        self.beside: list[Errand] = []
        self.keys = b""
        self.fetched: list[str] = []
        mechanisms = {"sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "sasl_jaas_config": JAAS}
        super().__init__(**mechanisms | settings)

    def start(self) -> None:
        super().start()
        plane, scheduler = self.broker.plane, self.broker.scheduler
        logins = self.broker.logins = Logins(
            ["PLAINTEXT"],
            plane.configs,
            plane.notices.entities,
            self.clock,
            self.broker.random,
            scheduler,
            self.broker.tell,
            self._give_beside,
            self.fetch,
            self.broker.delegation_tokens,
        )
        self.broker.add(logins)
        self.logins = logins

    def _give_beside(self, job: Job, owner: Owner) -> None:
        self.beside.append(Errand(job, owner))

    def fetch(self, url: str) -> bytes:
        """What is at an address."""
        self.fetched.append(url)
        return self.keys

    def run_beside(self) -> None:
        """What was given to other threads ends."""
        while self.beside:
            errand = self.beside.pop(0)
            errand.run()
            self._events.append(JobDone(errand, None))
        self.settle()

    def client(self, client_id: str | None = "test", host: str = "127.0.0.1") -> SaslClient:
        return SaslClient(self, client_id, host)

    def add_scram(self, mechanism: str, user: str, password: str) -> None:
        """As Java's kafka-configs.sh writes it."""
        text = write_credential(make_credential(mechanism, password.encode(), b"salt" * 5, 4096))
        self.put_user(user, {mechanism: text})

    def put_user(self, user: str, settings: dict[str, str]) -> None:
        """What is set for a user, and the notice of it."""
        path = user_path(user)
        self._write(Create(f"/config/{path}", encode_config(settings)))
        self._write(Create("/config/changes/config_change_", encode_config_change(path), sequential=True))
        self.settle()

    def _write(self, create: Create) -> None:
        outcome = self.ensemble.tree.apply(create, 0)
        assert outcome.fault is None, outcome
        self.ensemble.spread()


class SaslClient(Client):
    """A client that shows who it is, a request at a time."""

    def versions(self) -> Any:
        return self.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def token(self, token: bytes, version: int = 2) -> Any:
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def late(self, number: int) -> Any:
        """An answer that has come by now."""
        self.look()
        return self.answers.get(number)

    def log_in_plain(self, user: str, password: str) -> Any:
        assert self.handshake("PLAIN").error_code == 0
        return self.token(f"\0{user}\0{password}".encode())

    def log_in_scram(self, mechanism: str, user: str, password: str, **extensions: str) -> Any:
        """The last answer; a failure comes late, and is none."""
        scram = ScramClient(mechanism, user, password, "nonce", extensions)
        assert self.handshake(mechanism).error_code == 0
        answer = self.token(scram.first())
        final = scram.evaluate_challenge(answer.auth_bytes)
        assert final is not None
        last = self.token(final)
        assert scram.evaluate_challenge(last.auth_bytes) is None
        assert scram.done
        return last

    def may_ask(self) -> bool:
        """Whether a request of those who are known is handled."""
        number = self.send(MetadataRequest(topics=[]), 12)
        return number in self.look()
